//! Reports the state of a service to the service manager, as `sd_notify(3)` does, if `$NOTIFY_SOCKET` names its
//! socket. It never waits for the manager: a message that finds no room is dropped.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Shows a line in `systemctl status`.
pub fn status(line: &str) {
    send(&format!("STATUS={}", one_line(line)));
}

/// Says that the service is up, with a line for `systemctl status`.
pub fn ready(line: &str) {
    send(&format!("READY=1\nSTATUS={}", one_line(line)));
}

/// A message ends a value at a line break. The lines are short already: a manager takes no more than 4096 bytes.
fn one_line(line: &str) -> String {
    line.replace(char::is_control, " ")
}

fn send(message: &str) {
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) {
        // The service runs as well without a manager that listens.
        let _ = send_to(&path, message);
    }
}

fn send_to(path: &OsString, message: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

//! Reports the state of a service to the service manager, as `sd_notify(3)` does, if `$NOTIFY_SOCKET` names its
//! socket. It never waits for the manager: a message that finds no room is dropped.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Shows a line in `systemctl status`.
pub fn status(line: &str) {
    // The service runs as well without a manager that listens.
    let _ = send("", line);
}

/// Says that the service is up, with a line for `systemctl status`.
pub fn ready(line: &str) {
    let _ = send("READY=1\n", line);
}

/// Sends a state with a status line. The lines are short already: a manager takes no more than 4096 bytes.
fn send(state: &str, line: &str) -> io::Result<()> {
    let path = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    let address = match path.as_bytes() {
        b"" => return Ok(()),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    // A message ends a value at a line break.
    let message = format!("{state}STATUS={}", line.replace(char::is_control, " "));
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

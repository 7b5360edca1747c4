//! Reports the state of a service to the service manager, like `sd_notify(3)`, if `$NOTIFY_SOCKET` names its
//! socket. Never waits for the manager: drops a message if the socket's buffer is full.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Shows a line in `systemctl status`.
pub fn status(line: &str) {
    // The service also works if no manager listens.
    let _ = send("", line);
}

/// Reports that the service is up, with a line for `systemctl status`.
pub fn ready(line: &str) {
    let _ = send("READY=1\n", line);
}

/// Sends a state with a status line. The caller's lines are short: a manager accepts at most 4096 bytes.
fn send(state: &str, line: &str) -> io::Result<()> {
    let path = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    let address = match path.as_bytes() {
        b"" => return Ok(()),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    // A line break would end the value.
    let message = format!("{state}STATUS={}", line.replace(char::is_control, " "));
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

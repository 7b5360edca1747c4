//! A byte stream to a server, over TCP, TLS or a socket file, with a descriptor to wait for.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use crate::sys::poll;

/// Probes that keep idle connections alive, and end forgotten ones. Load balancers and NATs forget idle connections after 4 to
/// 15 minutes without notice.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(30))
    .with_interval(Duration::from_secs(10))
    .with_retries(3);

/// A connected, non-blocking byte stream.
pub(super) enum Stream {
    Plain(Socket),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Reads bytes that were already taken from the socket: TLS reads whole records.
    pub(super) fn read_ahead(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tls(tls) => tls.conn.reader().read(buffer),
            Self::Plain(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Makes closing the connection discard all bytes in transit, on both sides.
    pub(super) fn reset_when_closed(&self) {
        // A socket file has no bytes in transit, so this has no effect there.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }

    /// Writes everything, until this moment at the latest.
    pub(super) fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        loop {
            let step = match bytes {
                [] => self.flush().map(|()| 0),
                bytes => self.write(bytes),
            };
            match step {
                Ok(0) if bytes.is_empty() => return Ok(()),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(poll::writable(self.as_fd()), until)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.send_with_flags(bytes, libc::MSG_NOSIGNAL),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Tls(tls) => tls.sock.as_fd(),
        }
    }
}

/// Returns the time until a moment.
///
/// # Errors
/// `TimedOut` if the moment has passed.
pub(super) fn left(until: Instant) -> io::Result<Duration> {
    let left = Some(super::left(until)).filter(|left| !left.is_zero());
    left.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Waits for a descriptor, until this moment at the latest.
pub(super) fn wait_for(fd: poll::PollFd, until: Instant) -> io::Result<()> {
    if poll::wait_for(fd, left(until)?)? {
        return Ok(());
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Connects to a socket file. Blocks until `until` if a server is too busy to accept connections.
pub(super) fn open_unix(path: &Path, until: Instant) -> io::Result<Stream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(left(until)?))?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(true)?;
    Ok(Stream::Plain(socket))
}

/// Connects to the first of these addresses that answers.
pub(super) fn open_tcp(
    addresses: &[SocketAddr],
    until: Instant,
) -> io::Result<(TcpStream, SocketAddr)> {
    let mut failure = io::ErrorKind::AddrNotAvailable.into();
    for (address, more) in addresses.iter().zip((1..=addresses.len()).rev()) {
        // Each address gets its share of the remaining time, so that a silent one leaves time for the others.
        let share = left(until)? / u32::try_from(more).unwrap_or(u32::MAX);
        match TcpStream::connect_timeout(address, share) {
            Ok(tcp) => {
                // redlock's messages are small and each waits for its answer.
                tcp.set_nodelay(true)?;
                SockRef::from(&tcp).set_tcp_keepalive(&KEEPALIVE)?;
                tcp.set_nonblocking(true)?;
                return Ok((tcp, *address));
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

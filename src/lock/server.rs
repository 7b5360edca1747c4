//! One Redis server: its address, our credentials, and the way to it.
//!
//! The redis crate's own connection can't be waited for together with signals and timers (it has
//! no descriptor to poll), so the stream is ours; URLs, commands, replies and errors are the crate's.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, IntoConnectionInfo};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::stream::{Stream, left, open_unix};
use super::tls::{TlsFiles, shake_hands};
use super::{Error, ErrorKind};

/// Where a server is.
#[derive(Clone, PartialEq, Eq)]
enum Address {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

/// A server and our credentials there. Its `Display` and `Debug` never show a password.
pub(super) struct Server {
    address: Address,
    pub(super) database: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    tls: TlsFiles,
    /// The longest that connecting, and each answer, may take.
    pub(super) timeout: Duration,
    /// It closes the connection when it is asked for RESP3.
    closes_on_hello: AtomicBool,
}

impl Server {
    /// Reads `redis://`, `rediss://` and `unix://` URLs.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the URL is none of these; the message never repeats the URL, which
    /// may hold a password.
    pub(super) fn parse(url: &str, tls: TlsFiles, timeout: Duration) -> Result<Self, Error> {
        let bad = |why: &str| Error::new(ErrorKind::Config, format!("bad Redis URL: {why}"));
        let (url, encrypted) = match url.split_once("://") {
            Some(("rediss", rest)) => (format!("redis://{rest}"), true),
            Some(("redis" | "unix", _)) => (url.to_owned(), false),
            Some((scheme, _))
                if scheme
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '-') =>
            {
                return Err(bad(&format!(
                    "scheme {scheme}:// is unknown; use redis://, rediss:// or unix://"
                )));
            }
            _ => return Err(bad("it must begin with redis://, rediss:// or unix://")),
        };
        if url.contains('#') {
            return Err(bad(
                "a # must be written %23 (certificate checks can't be switched off)",
            ));
        }
        let info = url
            .into_connection_info()
            .map_err(|error| bad(error.category()))?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(host, port) => Address::Tcp {
                host: host.clone(),
                port: *port,
                tls: encrypted,
            },
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(bad("unknown kind of address")),
        };
        let redis = info.redis_settings();
        Ok(Self {
            address,
            database: redis.db(),
            username: redis.username().map(str::to_owned),
            password: redis.password().map(str::to_owned),
            tls,
            timeout,
            closes_on_hello: AtomicBool::new(false),
        })
    }

    /// Some proxies close the connection when they are asked for RESP3, so they are asked once.
    pub(super) fn note_that_it_closes_on_hello(&self) {
        self.closes_on_hello.store(true, Ordering::Relaxed);
    }

    /// Whether it isn't to be asked for RESP3 again.
    pub(super) fn closes_on_hello(&self) -> bool {
        self.closes_on_hello.load(Ordering::Relaxed)
    }

    /// Uses the password that a file holds, in place of the URL's.
    pub(super) fn set_password(&mut self, password: String) {
        self.password = Some(password);
    }

    /// Connects until this moment at the latest; no command has been sent yet.
    pub(super) fn open(&self, until: Instant) -> Result<Stream, Error> {
        let stream = match &self.address {
            Address::Unix(path) => Stream::Unix(
                open_unix(path, until).map_err(|error| self.unreachable_error(&error))?,
            ),
            Address::Tcp { host, port, tls } => {
                let tcp = self.open_tcp(host, *port, until)?;
                if *tls {
                    Stream::Tls(Box::new(self.encrypt(tcp, host, until)?))
                } else {
                    Stream::Tcp(tcp)
                }
            }
        };
        stream
            .set_nonblocking()
            .map_err(|error| self.unreachable_error(&error))?;
        Ok(stream)
    }

    fn open_tcp(&self, host: &str, port: u16, until: Instant) -> Result<TcpStream, Error> {
        let addresses =
            Self::resolve(host, port, until).map_err(|error| self.unreachable_error(&error))?;
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            let left = left(until).map_err(|error| self.unreachable_error(&error))?;
            match TcpStream::connect_timeout(&address, left) {
                Ok(tcp) => {
                    // Our messages are small and each waits for its answer.
                    tcp.set_nodelay(true)
                        .map_err(|error| self.unreachable_error(&error))?;
                    return Ok(tcp);
                }
                Err(error) => failure = error,
            }
        }
        Err(self.unreachable_error(&failure))
    }

    /// The addresses of a host, in time. The C library's look-up knows none, so it is
    /// left to a thread that is not waited for any longer; what isn't a name needs none.
    fn resolve(host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        let (answer, answered) = mpsc::channel();
        let name = (host.to_owned(), port);
        std::thread::Builder::new().spawn(move || {
            let _ = answer.send(name.to_socket_addrs().map(Iterator::collect));
        })?;
        answered
            .recv_timeout(left(until)?)
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    fn encrypt(
        &self,
        mut tcp: TcpStream,
        host: &str,
        until: Instant,
    ) -> Result<StreamOwned<ClientConnection, TcpStream>, Error> {
        let config = self.tls.client_config()?;
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Error::new(
                ErrorKind::Config,
                format!("\"{host}\" is not a valid certificate name"),
            )
        })?;
        let mut tls = ClientConnection::new(Arc::new(config), name)
            .map_err(|error| Error::new(ErrorKind::Config, format!("TLS: {error}")))?;
        tcp.set_nonblocking(true)
            .map_err(|error| self.unreachable_error(&error))?;
        while tls.is_handshaking() || tls.wants_write() {
            shake_hands(&mut tls, &mut tcp, until).map_err(|error| {
                if error.kind() == io::ErrorKind::InvalidData {
                    Error::new(ErrorKind::Config, format!("TLS with {self} failed: {error}; check --tls-ca, --tls-cert and --tls-key"))
                } else {
                    self.unreachable_error(&error)
                }
            })?;
        }
        Ok(StreamOwned::new(tls, tcp))
    }

    /// The error for a server that doesn't answer, with what to do next.
    pub(super) fn unreachable_error(&self, error: &io::Error) -> Error {
        let what = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no answer in time".into(),
            io::ErrorKind::ConnectionRefused => "connection refused".into(),
            io::ErrorKind::NotFound if matches!(self.address, Address::Unix(_)) => {
                "there is no such socket".into()
            }
            io::ErrorKind::UnexpectedEof => "the connection was closed".into(),
            io::ErrorKind::PermissionDenied => {
                return Error::new(
                    ErrorKind::Refused,
                    format!("can't open {self}: permission denied"),
                );
            }
            _ => error.to_string(),
        };
        Error::new(
            ErrorKind::Unreachable,
            format!("can't reach Redis at {self}: {what}; is it running, and is --url right?"),
        )
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Server, Error> {
        Server::parse(url, TlsFiles::default(), Duration::from_secs(2))
    }

    #[test]
    fn urls_of_the_manual_are_understood() {
        let server = parse("redis://me:s%20cret@host:7000/3").unwrap();
        assert_eq!(server.to_string(), "host:7000");
        assert_eq!(server.database, 3);
        assert_eq!(server.username.as_deref(), Some("me"));
        assert_eq!(server.password.as_deref(), Some("s cret"));
        assert_eq!(parse("redis://[::1]").unwrap().to_string(), "[::1]:6379");
        assert_eq!(parse("unix:///run/r.sock?db=2").unwrap().database, 2);
        assert!(matches!(
            parse("rediss://h").unwrap().address,
            Address::Tcp { tls: true, .. }
        ));
    }

    #[test]
    fn no_error_repeats_a_password() {
        for url in [
            "hunter2",
            "redis://u:hunter2@h:99999",
            "redis://u:hunter2@h/x",
            "rediss://u:hunter2@h#insecure",
            "hunter2://x",
            "u:hunter2@h://",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Config);
            if url != "hunter2://x" {
                assert!(!error.to_string().contains("hunter2"), "{error}");
            }
        }
        let server = parse("redis://u:hunter2@h").unwrap();
        assert!(!format!("{server} {server:?}").contains("hunter2"));
    }
}

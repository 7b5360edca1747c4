//! One Redis server: its address, our credentials, and the way to it.
//!
//! The redis crate's own connection can't be waited for together with signals and timers (it has
//! no descriptor to poll), so the stream is ours; URLs, commands, replies and errors are the crate's.

use std::fmt;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::CertifiedKey;
use rustls::{ClientConnection, SignatureScheme, StreamOwned};

use super::error::{Cause, Error, ErrorKind};
use super::lock;
use super::password::FreshPassword;
use super::redis_cli::RedisCli;
use super::reply::lossy_text;
use super::resolve::resolve;
use super::stream::{Stream, left, open_tcp, open_unix};
use super::tls::{self, TlsFiles};
use super::url::{Address, Login, UrlOrigin};
use crate::reason::reason;

/// What a server is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The only one.
    Only,
    /// One of those that know the primary.
    Sentinel,
    /// The primary, by what they say.
    Primary,
    /// One of the nodes of a cluster.
    Node,
}

/// A server and our credentials there. Its `Display` never shows a password.
#[derive(Clone)]
pub struct Server {
    pub address: Address,
    pub part: Part,
    pub database: i64,
    pub login: Login,
    tls: TlsFiles,
    /// The longest that connecting, and each answer, may take.
    pub timeout: Duration,
    origin: UrlOrigin,
    /// Instead of a password in the URL: one that is read for each new connection.
    pub(super) fresh_password: Option<Arc<FreshPassword>>,
    /// What all keys begin with, for messages about permissions.
    pub prefix: String,
    /// It has answered this process, or another one of the same URL has.
    reached: Arc<AtomicBool>,
    /// Other nodes of the same cluster, as far as one of them has said.
    pub(super) nodes: Arc<Mutex<Vec<Address>>>,
    pub(super) past: Arc<Past>,
}

/// Knowledge of this process about an address.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// The shortest time that the answer to a call has taken.
    round_trip: Mutex<Option<Duration>>,
    /// Address of the last connection over TCP.
    last_address: Mutex<Option<SocketAddr>>,
    /// The server said that it is a replica.
    is_replica: AtomicBool,
    /// The server closes the connection at a request for RESP3, as some proxies do. So there is one such request.
    pub(super) closes_on_hello: AtomicBool,
    /// The server has asked for a certificate, and there is none.
    lacks_own: AtomicBool,
}

impl ResolvesClientCert for Past {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.lacks_own.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

impl Server {
    /// A server that wasn't reached yet.
    pub fn new(
        (address, part): (Address, Part),
        (login, database): (Login, i64),
        origin: UrlOrigin,
        tls: TlsFiles,
        timeout: Duration,
        prefix: &str,
    ) -> Self {
        Self {
            address,
            part,
            database,
            login,
            tls,
            timeout,
            origin,
            fresh_password: None,
            prefix: prefix.to_owned(),
            reached: Arc::default(),
            nodes: Arc::default(),
            past: Arc::default(),
        }
    }

    /// Another server of the same URL, with the same credentials.
    pub(super) fn at(&self, address: Address) -> Self {
        let mut server = self.clone();
        if address != self.address {
            server.past = Arc::default();
            server.address = address;
        }
        server
    }

    /// The same server, without our credentials.
    pub fn without_login(self) -> Self {
        Self {
            login: Login::default(),
            fresh_password: None,
            database: 0,
            ..self
        }
    }

    /// What it is, and where.
    fn title(&self) -> String {
        match self.part {
            Part::Sentinel => format!("the sentinel at {self}"),
            _ => format!("Redis at {self}"),
        }
    }

    /// Whether there is a user in the URL, and no password anywhere. It may be the password itself, as of a
    /// `redis://PASSWORD@host`.
    pub fn has_only_user(&self) -> bool {
        self.login.username.is_some() && !self.has_password()
    }

    /// The user, as far as others may see it.
    pub fn shown_user(&self) -> Option<&str> {
        if self.has_only_user() {
            return Some("***");
        }
        self.login.username.as_deref()
    }

    /// Who we are there, in a sentence.
    pub(super) fn user(&self) -> String {
        let user = self.shown_user().map(|user| format!("user \"{user}\""));
        user.unwrap_or_else(|| "the default user".into())
    }

    /// Where the password was given, in a sentence.
    pub(super) fn password_origin(&self) -> String {
        match &self.fresh_password {
            Some(password) => password.origin(),
            None => format!("in the URL ({})", self.origin),
        }
    }

    /// What is said of a password that the server doesn't take.
    pub(super) fn wrong_password(&self) -> String {
        let title = self.title();
        if self.has_only_user() {
            let next = match (self.part, &self.address) {
                (Part::Sentinel, _) => "add sentinel_password_file=PATH to the URL",
                (_, Address::Unix(_)) => {
                    "use REDLOCK_PASSWORD_FILE, or ?pass=PASSWORD if the user name was meant as the password"
                }
                (_, Address::Tcp { .. }) => {
                    "use REDLOCK_PASSWORD_FILE, or :PASSWORD@HOST if the user name was meant as the password"
                }
            };
            return format!("{title} refused the user in the URL, which has no password; {next}");
        }
        let (user, origin) = (self.user(), self.password_origin());
        let next = if !self.has_password() {
            "no password was given; use REDLOCK_PASSWORD_FILE or the URL"
        } else if self.fresh_password.is_none() && self.part == Part::Sentinel {
            "the password for the sentinels, which the URL sets, is wrong"
        } else if self.login.username.is_some() {
            &format!("the password {origin} is wrong, or there is no such user")
        } else {
            &format!("the password {origin} is wrong")
        };
        format!("{title} refused {user}: {next}")
    }

    /// It has answered a question of ours.
    pub(super) fn note_answer(&self) {
        self.reached.store(true, Ordering::Relaxed);
    }

    /// Whether it has answered this process.
    pub fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// The answer to a call took this long.
    pub(super) fn note_round_trip(&self, took: Duration) {
        let mut shortest = lock(&self.past.round_trip);
        *shortest = Some(shortest.map_or(took, |before| before.min(took)));
    }

    /// Returns the shortest time that the answer to a call has taken: that of a way there and back. Zero if none has come.
    pub fn round_trip(&self) -> Duration {
        lock(&self.past.round_trip).unwrap_or_default()
    }

    /// Notes the role by which the server answers `ROLE`.
    pub(super) fn note_role(&self, answer: &Value) {
        if let Some(role) = answer.as_sequence().and_then(<[Value]>::first) {
            let is_replica = lossy_text(role) == "slave";
            self.past.is_replica.store(is_replica, Ordering::Relaxed);
        }
    }

    pub fn replica_error(&self) -> Error {
        if matches!(self.part, Part::Primary | Part::Node) {
            let message =
                format!("a failover made Redis at {self} a replica; try again after the failover");
            return Error::new(ErrorKind::NotNow, message);
        }
        let message = format!("Redis at {self} is a read-only replica; use the URL of its primary");
        Error::new(ErrorKind::Replica, message)
    }

    /// Whether it said that it is a replica.
    pub fn is_replica(&self) -> bool {
        self.past.is_replica.load(Ordering::Relaxed)
    }

    /// Shares a password that is read for each connection, if there is one.
    pub(super) fn set_fresh_password(&mut self, password: Option<Arc<FreshPassword>>) {
        if password.is_some() {
            self.login.password = None;
            self.fresh_password = password;
        }
    }

    /// Returns the password for a new connection.
    fn password(&self) -> Option<String> {
        match &self.fresh_password {
            Some(password) => password.password(),
            None => self.login.password.clone(),
        }
    }

    /// Returns true if a password is set, in the URL or elsewhere.
    fn has_password(&self) -> bool {
        self.login.password.is_some() || self.fresh_password.is_some()
    }

    /// Returns the commands that log in and choose the database.
    pub(super) fn login(&self) -> Vec<Cmd> {
        let mut commands = Vec::new();
        let (username, password) = (self.login.username.as_deref(), self.password());
        // There are users without a password.
        if username.is_some() || password.is_some() {
            let password = password.unwrap_or_default();
            commands.push(cmd("AUTH").arg(username).arg(password).clone());
        }
        if self.database != 0 {
            commands.push(cmd("SELECT").arg(self.database).clone());
        }
        commands
    }

    /// Returns true if a password crosses a network unencrypted.
    pub(super) fn sends_open_password(&self) -> bool {
        let is_encrypted = self.address.has_tls() || self.address.is_within_host();
        !is_encrypted && self.has_password()
    }

    /// How redis-cli reaches it. A user without a password may be the password itself, and isn't shown.
    pub fn redis_cli(&self) -> RedisCli {
        let user = self.login.username.clone().filter(|_| self.has_password());
        let asks = self.has_password() || self.login.username.is_some();
        RedisCli::new(&self.address, &self.tls, user, asks)
    }

    /// Connects until this moment at the latest; no command has been sent yet.
    pub(super) fn open(&self, until: Instant) -> Result<Stream, Error> {
        match &self.address {
            Address::Unix(path) => {
                open_unix(path, until).map_err(|error| self.no_socket(path, &error))
            }
            Address::Tcp { host, port, tls } => {
                let tcp = self.open_tcp(host, *port, until)?;
                if *tls {
                    return Ok(Stream::Tls(Box::new(self.encrypt(tcp, host, until)?)));
                }
                Ok(Stream::Plain(tcp.into()))
            }
        }
    }

    /// Sends a few commands over a separate connection, without waiting for replies: a server that is late carries them
    /// out when it comes to them.
    ///
    /// # Errors
    /// If there is no connection by then. A handshake of TLS needs a server that replies.
    pub fn send_without_reply(&self, commands: &[Cmd], until: Instant) -> Result<(), Error> {
        let mut stream = self.open(until)?;
        let login = self.login();
        let all = login.iter().chain(commands);
        let bytes: Vec<u8> = all.flat_map(Cmd::get_packed_command).collect();
        let sent = stream.send(&bytes, until);
        sent.map_err(|error| self.unreachable_error(&error))
    }

    /// Connects to the first address of a host that answers. The address that last worked comes last: the name server
    /// may fail, or name other addresses, while a job needs its lock renewed there.
    fn open_tcp(&self, host: &str, port: u16, until: Instant) -> Result<TcpStream, Error> {
        let last = *lock(&self.past.last_address);
        let resolved = match last {
            Some(_) => resolve(host, port, Instant::now() + super::left(until) / 2),
            None => resolve(host, port, until),
        };
        let addresses = match (&resolved, last) {
            // A name that has moved names another server, which alone may grant a lock.
            (Ok(addresses), _) => addresses,
            (Err(_), Some(last)) => &vec![last],
            (Err(error), None) => return Err(self.unknown_host(host, error)),
        };
        match (open_tcp(addresses, until), &resolved) {
            (Ok((tcp, address)), _) => {
                *lock(&self.past.last_address) = Some(address);
                Ok(tcp)
            }
            (Err(error), Ok(_)) => Err(self.unreachable_error(&error)),
            (Err(_), Err(error)) => Err(self.unknown_host(host, error)),
        }
    }

    fn encrypt(
        &self,
        mut tcp: TcpStream,
        host: &str,
        until: Instant,
    ) -> Result<StreamOwned<ClientConnection, TcpStream>, Error> {
        let config = self.tls.client_config(self.past.clone())?;
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| wrong_url(format!("\"{host}\" is not a valid certificate name")))?;
        let mut tls = ClientConnection::new(Arc::new(config), name)
            .map_err(|error| wrong_url(format!("TLS: {error}")))?;
        tls::send_hello(&mut tls, &mut tcp, until)
            .and_then(|()| self.first_bytes(&tcp, host, until))
            .map_err(|error| self.unreachable_error(&error))
            .and_then(|first| match first.first() {
                Some(b'-' | b'+') => Err(self.speaks_plainly()),
                Some(&byte) if !tls::is_tls(byte) => {
                    let text = String::from_utf8_lossy(&first);
                    Err(self.is_no_redis(text.lines().next().unwrap_or_default()))
                }
                // An end is seen in what follows.
                _ => Ok(()),
            })?;
        while tls.is_handshaking() || tls.wants_write() {
            tls::shake_hands(&mut tls, &mut tcp, until)
                .map_err(|error| self.closed_error(&error))?;
        }
        Ok(StreamOwned::new(tls, tcp))
    }

    /// What the other side says to the first message of TLS. A Redis that doesn't use TLS waits for more of
    /// it; so one that is silent is asked plainly, over another connection.
    fn first_bytes(&self, tcp: &TcpStream, host: &str, until: Instant) -> io::Result<Vec<u8>> {
        let (began, all) = (Instant::now(), left(until)?);
        match tls::first_bytes(tcp, began + all / 4) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            other => return other,
        }
        let asked_until = began + all / 2;
        let port = tcp.peer_addr()?.port();
        let plain = self.open_tcp(host, port, asked_until).ok();
        let plain = plain.and_then(|mut plain| {
            plain.write_all(b"PING\r\n").ok()?;
            tls::first_bytes(&plain, asked_until).ok()
        });
        match plain {
            Some(first) if matches!(first.first(), Some(b'-' | b'+')) => Ok(first),
            _ => tls::first_bytes(tcp, until),
        }
    }

    /// Returns `rediss` if this server is reached over TLS, otherwise `redis`: schemes of URLs begin so.
    pub fn scheme(&self) -> &'static str {
        if self.address.has_tls() {
            "rediss"
        } else {
            "redis"
        }
    }

    /// Returns the URL by another scheme, without credentials.
    fn url_with(&self, scheme: &str) -> String {
        match (self.part, self.database) {
            (Part::Node, _) => format!("{scheme}-cluster://{self}"),
            (Part::Sentinel, _) => format!("{scheme}-sentinel://{self}/NAME"),
            (Part::Primary, _) => format!("{scheme}-sentinel:// in the URL"),
            (Part::Only, 0) => format!("{scheme}://{self}"),
            (Part::Only, database) => format!("{scheme}://{self}/{database}"),
        }
    }

    fn speaks_plainly(&self) -> Error {
        let plain = self.url_with("redis");
        wrong_url(format!(
            "{self} doesn't use TLS on this port; use {plain}, or the port that does"
        ))
    }

    /// The error for a port that expects TLS.
    pub(super) fn speaks_tls(&self) -> Error {
        let encrypted = self.url_with("rediss");
        wrong_url(format!("{self} uses TLS; use {encrypted}"))
    }

    /// The error for what isn't a Redis server: what it said.
    pub(super) fn is_no_redis(&self, said: &str) -> Error {
        let message = format!("{self} does not speak the Redis protocol: it said {said:?}");
        wrong_url(message).with_origin(self.url_origin())
    }

    /// Whether a server that has closed the connection at the first word expects TLS. Another connection,
    /// where nothing else is left to find out.
    pub(super) fn expects_tls(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let tcp = match &self.address {
            Address::Tcp { host, port, tls } if !tls => self.open_tcp(host, *port, until),
            _ => return false,
        };
        tcp.is_ok_and(|mut tcp| tls::answers(&mut tcp, until))
    }

    /// The error for a name whose address isn't known.
    fn unknown_host(&self, host: &str, error: &io::Error) -> Error {
        let what = match error.kind() {
            io::ErrorKind::TimedOut => format!("no address of host \"{host}\" was found in time"),
            io::ErrorKind::NotFound => format!("no such host \"{host}\""),
            io::ErrorKind::HostUnreachable => {
                format!("host \"{host}\" can't be looked up now, as the name server doesn't answer")
            }
            _ => format!("host \"{host}\" can't be looked up"),
        };
        self.unreachable_because(&what, Cause::UnknownHost)
    }

    /// The error for a socket file that can't be connected to.
    fn no_socket(&self, path: &Path, error: &io::Error) -> Error {
        let metadata = std::fs::metadata(path);
        let is_other = metadata.is_ok_and(|file| !file.file_type().is_socket());
        let absent = |what| self.unreachable_because(what, Cause::NoServer);
        let bad = match error.kind() {
            io::ErrorKind::ConnectionRefused if is_other => "that is not a socket",
            io::ErrorKind::ConnectionRefused => {
                return absent("no server listens at this socket any more");
            }
            io::ErrorKind::NotFound => return absent("there is no such socket"),
            io::ErrorKind::InvalidInput => "the path of a socket has at most 107 bytes",
            io::ErrorKind::NotADirectory => "a part of its path is not a directory",
            io::ErrorKind::PermissionDenied => {
                let message = format!(
                    "can't open {self}: permission denied; this user needs write access to the socket, and search access to its directories"
                );
                return Error::new(ErrorKind::Refused, message);
            }
            _ => return self.unreachable_error(error),
        };
        let message = format!("can't reach Redis at {self}: {bad}");
        wrong_url(message).with_origin(self.url_origin())
    }

    /// Returns true if the server has asked for a certificate, and there is none.
    fn lacks_own(&self) -> bool {
        self.past.lacks_own.load(Ordering::Relaxed)
    }

    /// How a connection ended; the reason that the server gave may have got lost.
    fn was_closed(&self) -> &'static str {
        if self.lacks_own() && !self.was_reached() {
            "the connection was closed, after the server had asked for a client certificate (REDLOCK_TLS_CERT, REDLOCK_TLS_KEY)"
        } else {
            "the connection was closed"
        }
    }

    /// The error for a connection that the other side has ended, or that TLS can't go on with.
    pub(super) fn closed_error(&self, error: &io::Error) -> Error {
        if error.kind() == io::ErrorKind::InvalidData {
            let own = (self.lacks_own(), self.tls.cert.is_some());
            let why = tls::why(error, self.address.host(), own);
            let message = format!("TLS with {self} failed: {why}");
            return wrong_url(message).because(Cause::Tls);
        }
        self.unreachable_error(error)
    }

    /// The error for a server that doesn't answer, with what to do next.
    pub fn unreachable_error(&self, error: &io::Error) -> Error {
        use io::ErrorKind as Io;
        let is_new_default = self.is_default() && !self.was_reached();
        let (what, cause) = match error.kind() {
            Io::TimedOut | Io::WouldBlock => ("no answer in time", Some(Cause::Silent)),
            Io::ConnectionRefused if is_new_default => {
                ("connection refused", Some(Cause::NoDefaultServer))
            }
            Io::ConnectionRefused => ("connection refused", Some(Cause::NoServer)),
            Io::UnexpectedEof | Io::BrokenPipe | Io::ConnectionReset => {
                (self.was_closed(), Some(Cause::Closed))
            }
            Io::PermissionDenied => {
                let message = format!("can't open {self}: permission denied");
                return Error::new(ErrorKind::Refused, message);
            }
            _ => (&*reason(error), None),
        };
        self.unreachable_because(what, cause)
    }

    /// The error for a server that has let us in, and doesn't answer.
    pub fn silent_error(&self) -> Error {
        // Of several sentinels it is one that can't be asked.
        if self.part == Part::Sentinel {
            return self.unreachable_error(&io::ErrorKind::TimedOut.into());
        }
        let title = self.title();
        let message = format!("{title} accepts connections, but gives no answer in time");
        let error = Error::new(ErrorKind::Unreachable, message).because(Cause::Silent);
        error.with_origin(self.url_origin())
    }

    fn unreachable_because(&self, what: &str, cause: impl Into<Option<Cause>>) -> Error {
        let message = format!("can't reach {}: {what}", self.title());
        let error = Error::new(ErrorKind::Unreachable, message).because(cause);
        error.with_origin(self.url_origin())
    }

    /// Returns true if no URL is set, so that this is the default server.
    pub fn is_default(&self) -> bool {
        self.origin == UrlOrigin::Default
    }

    /// Where the address is from, as a sentence. Once it has answered, it is known to be right.
    pub fn url_origin(&self) -> Option<String> {
        match &self.origin {
            _ if self.was_reached() || self.part == Part::Primary => None,
            UrlOrigin::Option => None,
            UrlOrigin::Default => Some(format!(
                "no --url or REDLOCK_URL was given, so the default {self} was tried"
            )),
            origin => Some(format!("the URL is from {origin}")),
        }
    }
}

/// Returns an error of the URL, or of the files that it needs.
fn wrong_url(message: String) -> Error {
    Error::new(ErrorKind::Config, message)
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

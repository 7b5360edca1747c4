//! A Redis server: its address, redlock's credentials there, and connections to it.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::error::{Cause, Error, ErrorKind};
use super::password::FreshPassword;
use super::redis_cli::RedisCli;
use super::reply::lossy_text;
use super::resolve::resolve;
use super::stream::{Stream, open_tcp, open_unix, wait_for};
use super::tls::{self, TlsFiles};
use super::url::{Address, Login, UrlOrigin};
use super::{left, lock};
use crate::reason::reason;
use crate::sys::poll;

/// Time for a server that has closed a connection at once to show that it expects TLS.
const TLS_WITHIN: Duration = Duration::from_millis(500);

/// Role of a server in its deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The only server.
    Only,
    /// A sentinel, which knows the primary.
    Sentinel,
    /// The primary that the sentinels name.
    Primary,
    /// A node of a cluster.
    Node,
}

/// Address of Redis, credentials, and time limit.
#[derive(Default)]
pub struct Access<'a> {
    pub url: &'a str,
    pub origin: UrlOrigin,
    /// File with the password, which replaces the URL's.
    pub password_file: Option<PathBuf>,
    /// A password in the URL takes precedence over the file.
    pub url_first: bool,
    pub tls: TlsFiles,
    /// Longest time to connect, and to wait for each answer.
    pub timeout: Duration,
}

/// A server and redlock's credentials there. Its `Display` never shows a password.
#[derive(Clone)]
pub struct Server {
    pub address: Address,
    pub part: Part,
    pub database: i64,
    pub login: Login,
    tls: TlsFiles,
    /// Time limit for connecting, and for each answer.
    pub timeout: Duration,
    origin: UrlOrigin,
    /// A password that is read for each new connection, instead of one in the URL.
    pub(super) fresh_password: Option<Arc<FreshPassword>>,
    /// Prefix of all keys, for messages about permissions.
    pub prefix: String,
    /// True if this server, or another one of the same URL, has answered this process.
    reached: Arc<AtomicBool>,
    /// Other nodes of the same cluster, if one of them has listed them.
    pub(super) nodes: Arc<Mutex<Vec<Address>>>,
    pub(super) past: Arc<Mutex<ServerRecord>>,
}

/// Knowledge of this process about an address.
#[derive(Debug, Default)]
pub(super) struct ServerRecord {
    /// Shortest round trip of a call.
    round_trip: Option<Duration>,
    /// Address of the last connection over TCP.
    last_address: Option<SocketAddr>,
    /// True if the server reported itself a replica.
    is_replica: bool,
    /// True if the server closes the connection at a request for RESP3, as some proxies do. redlock then doesn't send it again.
    pub(super) closes_on_hello: bool,
}

impl Server {
    /// Returns a server that hasn't been reached yet.
    pub fn new(
        (address, part): (Address, Part),
        (login, database): (Login, i64),
        fresh_password: Option<Arc<FreshPassword>>,
        access: &Access,
        prefix: &str,
    ) -> Self {
        Self {
            address,
            part,
            database,
            login,
            tls: access.tls.clone(),
            timeout: access.timeout,
            origin: access.origin.clone(),
            fresh_password,
            prefix: prefix.to_owned(),
            reached: Arc::default(),
            nodes: Arc::default(),
            past: Arc::default(),
        }
    }

    /// Returns another server of the same URL, with the same credentials.
    pub(super) fn at(&self, address: Address) -> Self {
        let mut server = self.clone();
        if address != self.address {
            server.past = Arc::default();
            server.address = address;
        }
        server
    }

    /// Returns the kind and address of the server, for messages.
    fn title(&self) -> String {
        match self.part {
            Part::Sentinel => format!("the sentinel at {self}"),
            _ => format!("Redis at {self}"),
        }
    }

    /// Returns true if the URL has a user, and there is no password anywhere. The user name may be the password itself, as in
    /// `redis://PASSWORD@host`.
    pub fn has_only_user(&self) -> bool {
        self.login.username.is_some() && !self.has_password()
    }

    /// Returns the user name, or asterisks if it may be a password.
    pub fn shown_user(&self) -> Option<&str> {
        if self.has_only_user() {
            return Some("***");
        }
        self.login.username.as_deref()
    }

    /// Returns redlock's user there, for a message.
    pub(super) fn user(&self) -> String {
        let user = self.shown_user().map(|user| format!("user \"{user}\""));
        user.unwrap_or_else(|| "the default user".into())
    }

    /// Returns the origin of the password, for a message.
    pub(super) fn password_origin(&self) -> String {
        match &self.fresh_password {
            Some(password) => format!("in the file {}", password.path.display()),
            None => format!("in the URL ({})", self.origin),
        }
    }

    /// Returns the message for a password that the server doesn't accept.
    pub(super) fn wrong_password(&self) -> String {
        let title = self.title();
        if self.has_only_user() {
            let next = match self.part {
                Part::Sentinel => "add sentinel_password_file=PATH to the URL",
                _ => {
                    "use REDLOCK_PASSWORD_FILE, or :PASSWORD@HOST if the user name was meant as the password (for a socket: pass=PASSWORD)"
                }
            };
            return format!("{title} refused the user in the URL, which has no password; {next}");
        }
        let (user, origin) = (self.user(), self.password_origin());
        let or = match &self.login.username {
            Some(_) => ", or there is no such user",
            None => "",
        };
        format!("{title} refused {user}: the password {origin} is wrong{or}")
    }

    /// Notes that the server has answered.
    pub(super) fn note_answer(&self) {
        self.reached.store(true, Ordering::Relaxed);
    }

    /// Returns true if this server, or another one of the same URL, has answered this process.
    pub fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed)
    }

    /// Notes the duration of a call.
    pub(super) fn note_round_trip(&self, took: Duration) {
        let shortest = &mut lock(&self.past).round_trip;
        *shortest = Some(shortest.map_or(took, |before| before.min(took)));
    }

    /// Returns the shortest duration of a call, which is close to the network's round trip. Zero before the first answer.
    pub fn round_trip(&self) -> Duration {
        lock(&self.past).round_trip.unwrap_or_default()
    }

    /// Notes the role in the server's answer to `ROLE`.
    pub(super) fn note_role(&self, answer: &Value) {
        if let Some(role) = answer.as_sequence().and_then(<[Value]>::first) {
            lock(&self.past).is_replica = lossy_text(role) == "slave";
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

    /// Returns true if the server reported itself a replica.
    pub fn is_replica(&self) -> bool {
        lock(&self.past).is_replica
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
        // Some users have no password.
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

    /// Returns the redis-cli command lines for this server. Leaves out a user without a password, because the name may be the
    /// password itself.
    pub fn redis_cli(&self) -> RedisCli {
        let user = self.login.username.clone().filter(|_| self.has_password());
        let asks = self.has_password() || self.login.username.is_some();
        RedisCli::new(&self.address, &self.tls, user, asks)
    }

    /// Connects until this moment at the latest. Sends no command.
    pub(super) fn open(&self, until: Instant) -> Result<Stream, Error> {
        match &self.address {
            Address::Unix(path) => {
                open_unix(path, until).map_err(|error| self.unreachable_error(&error))
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

    /// Sends a few commands over a separate connection, without waiting for replies: a slow server executes them when it
    /// gets to them.
    ///
    /// # Errors
    /// If there is no connection by then. A TLS handshake needs a server that replies.
    pub fn send_without_reply(&self, commands: &[Cmd], until: Instant) -> Result<(), Error> {
        let mut stream = self.open(until)?;
        let login = self.login();
        let all = login.iter().chain(commands);
        let bytes: Vec<u8> = all.flat_map(Cmd::get_packed_command).collect();
        let sent = stream.send(&bytes, until);
        sent.map_err(|error| self.unreachable_error(&error))
    }

    /// Connects to the first address of a host that answers. If the lookup fails, uses the address that worked last, because
    /// the name server may be down while a job needs its lock renewed.
    fn open_tcp(&self, host: &str, port: u16, until: Instant) -> Result<TcpStream, Error> {
        let last = lock(&self.past).last_address;
        let share = if last.is_some() { 2 } else { 1 };
        let resolved = resolve(host, port, Instant::now() + left(until) / share);
        // If the lookup succeeds, the old address isn't tried: the name may have moved to another server, which alone may grant
        // locks.
        let addresses = resolved.or_else(|error| match last {
            Some(last) => Ok(vec![last]),
            None => Err(self.unknown_host(host, &error)),
        })?;
        let opened = open_tcp(&addresses, until);
        let (tcp, address) = opened.map_err(|error| self.unreachable_error(&error))?;
        lock(&self.past).last_address = Some(address);
        Ok(tcp)
    }

    fn encrypt(
        &self,
        mut tcp: TcpStream,
        host: &str,
        until: Instant,
    ) -> Result<StreamOwned<ClientConnection, TcpStream>, Error> {
        let config = Arc::new(self.tls.client_config()?);
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| wrong_url(format!("\"{host}\" is not a valid certificate name")))?;
        let mut tls = ClientConnection::new(config, name)
            .map_err(|error| wrong_url(format!("TLS: {error}")))?;
        let mut soon = Some(Instant::now() + left(until) / 4);
        while tls.is_handshaking() || tls.wants_write() {
            match tls::shake_hands(&mut tls, &mut tcp, soon.unwrap_or(until)) {
                // A Redis without TLS waits for more of the first message.
                Err(error) if error.kind() == io::ErrorKind::TimedOut && soon.is_some() => {
                    soon = None;
                    if self.answers_plainly(host, &tcp, Instant::now() + left(until) / 2) {
                        return Err(self.speaks_plainly());
                    }
                }
                step => step.map_err(|error| self.closed_error(&error))?,
            }
        }
        Ok(StreamOwned::new(tls, tcp))
    }

    /// Returns true if the server at the other end of a connection answers without TLS, over another connection.
    fn answers_plainly(&self, host: &str, tcp: &TcpStream, until: Instant) -> bool {
        let answer = || {
            let port = tcp.peer_addr().ok()?.port();
            let mut plain = self.open_tcp(host, port, until).ok()?;
            plain.write_all(b"PING\r\n").ok()?;
            wait_for(poll::readable(plain.as_fd()), until).ok()?;
            let mut first = [0];
            plain.read_exact(&mut first).ok()?;
            Some(first)
        };
        matches!(answer(), Some([b'+' | b'-']))
    }

    /// Returns `rediss` if this server is reached over TLS, otherwise `redis`. The schemes of URLs begin with it.
    pub fn scheme(&self) -> &'static str {
        if self.address.has_tls() {
            "rediss"
        } else {
            "redis"
        }
    }

    fn speaks_plainly(&self) -> Error {
        wrong_url(format!(
            "{self} doesn't use TLS on this port; use redis instead of rediss in the URL, or the port that does"
        ))
    }

    /// Returns the error for a port that expects TLS.
    pub(super) fn speaks_tls(&self) -> Error {
        wrong_url(format!(
            "{self} uses TLS; use rediss instead of redis in the URL"
        ))
    }

    /// Returns the error for something that isn't a Redis server, with the text that it sent.
    pub(super) fn is_no_redis(&self, text: &str) -> Error {
        let message = format!("{self} does not speak the Redis protocol: it said {text:?}");
        wrong_url(message).with_origin(self.url_origin())
    }

    /// Returns true if a server that has closed the connection at the first bytes expects TLS. Opens another connection for
    /// that, so it is the last check.
    pub(super) fn expects_tls(&self) -> bool {
        let mut encrypted = self.clone();
        match &mut encrypted.address {
            Address::Tcp { tls, .. } if !*tls => *tls = true,
            _ => return false,
        }
        let opened = encrypted.open(Instant::now() + TLS_WITHIN);
        opened.map_or_else(|error| error.has_cause(Cause::Tls), |_| true)
    }

    /// Returns the error for a host name whose address isn't known.
    fn unknown_host(&self, host: &str, error: &io::Error) -> Error {
        let what = match error.kind() {
            io::ErrorKind::NotFound => format!("no such host \"{host}\""),
            _ => format!("host \"{host}\" can't be looked up now"),
        };
        self.cant_reach(ErrorKind::Unreachable, &what, Cause::UnknownHost)
    }

    /// Returns the error for a connection that the other side has ended, or on which TLS failed.
    pub(super) fn closed_error(&self, error: &io::Error) -> Error {
        if error.kind() != io::ErrorKind::InvalidData {
            return self.unreachable_error(error);
        }
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        if matches!(cause, Some(rustls::Error::InvalidMessage(_))) && !self.was_reached() {
            return self.speaks_plainly();
        }
        let why = tls::why(error, self.address.host());
        wrong_url(format!("TLS with {self} failed: {why}")).because(Cause::Tls)
    }

    /// Returns the error for a server that doesn't answer, with the next step.
    pub fn unreachable_error(&self, error: &io::Error) -> Error {
        use io::ErrorKind as Io;
        let is_socket = self.address.is_socket();
        let is_new_default = self.is_default() && !self.was_reached();
        let may_lack_own = self.address.has_tls() && self.tls.cert.is_none();
        let why = reason(error);
        let (cause, what) = match error.kind() {
            Io::TimedOut | Io::WouldBlock => (Some(Cause::Silent), "no answer in time"),
            Io::ConnectionRefused if is_new_default => (Some(Cause::NoDefaultServer), &*why),
            Io::ConnectionRefused if is_socket => {
                (Some(Cause::NoServer), "no server listens there")
            }
            Io::ConnectionRefused => (Some(Cause::NoServer), &*why),
            Io::NotFound => (Some(Cause::NoServer), "there is no such socket"),
            Io::UnexpectedEof | Io::BrokenPipe | Io::ConnectionReset => {
                if may_lack_own && !self.was_reached() {
                    let what = "the connection was closed; if the server requires a client certificate, set REDLOCK_TLS_CERT and REDLOCK_TLS_KEY";
                    (Some(Cause::Closed), what)
                } else {
                    (Some(Cause::Closed), "the connection was closed")
                }
            }
            Io::InvalidInput => (None, "the path of a socket has at most 107 bytes"),
            Io::PermissionDenied if is_socket => {
                let what = "permission denied; this user needs write access to the socket, and search access to its directories";
                (None, what)
            }
            _ => (None, &*why),
        };
        let kind = match error.kind() {
            Io::PermissionDenied => ErrorKind::Refused,
            Io::NotADirectory | Io::InvalidInput => ErrorKind::Config,
            _ => ErrorKind::Unreachable,
        };
        self.cant_reach(kind, what, cause)
    }

    /// Returns the error for a server that accepts connections but doesn't answer.
    pub fn silent_error(&self) -> Error {
        let title = self.title();
        let message = format!("{title} accepts connections, but gives no answer in time");
        let error = Error::new(ErrorKind::Unreachable, message).because(Cause::Silent);
        error.with_origin(self.url_origin())
    }

    fn cant_reach(&self, kind: ErrorKind, what: &str, cause: impl Into<Option<Cause>>) -> Error {
        let message = format!("can't reach {}: {what}", self.title());
        let error = Error::new(kind, message).because(cause);
        error.with_origin(self.url_origin())
    }

    /// Returns true if no URL is set, so that this is the default server.
    pub fn is_default(&self) -> bool {
        self.origin == UrlOrigin::Unset
    }

    /// Returns the origin of the URL, as a sentence, if the URL may be wrong and doesn't come from `--url`.
    pub fn url_origin(&self) -> Option<String> {
        match &self.origin {
            _ if self.was_reached() || self.part == Part::Primary => None,
            UrlOrigin::Flag => None,
            UrlOrigin::Unset => Some(format!(
                "no --url or REDLOCK_URL was given, so the default {self} was tried"
            )),
            origin => Some(format!("the URL is from {origin}")),
        }
    }
}

/// A search for the server that has the locks.
pub struct Search {
    /// The server that was used last, or is tried first, with the credentials for all of them.
    pub(super) last: Arc<Server>,
    pub(super) until: Instant,
    /// True if all replicas that could follow the primary must confirm.
    pub(super) needs_all: bool,
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

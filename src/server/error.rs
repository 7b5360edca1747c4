//! The errors of a conversation with Redis: their kinds, and their messages for users.

use std::borrow::Cow;
use std::fmt;

use super::nodes::Redirect;

/// Kind of a failure. The exit status and another attempt depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No answer.
    Unreachable,
    /// The server is loading its data.
    Loading,
    /// Another client's script keeps the server busy.
    Busy,
    /// The sentinels, or other nodes of the cluster, answer; the server that has the locks doesn't.
    NoPrimary,
    /// The server can't do this now: it fails over, is full or refuses writes.
    NotNow,
    /// The server has as many clients as it admits.
    Crowded,
    /// The server has done this, but too few of its replicas have confirmed it.
    NotReplicated,
    /// The cluster is moving the keys to another node, or has moved them.
    Moving,
    /// The server is a replica, or became one in a failover, and refuses writes.
    Replica,
    /// Authentication or permissions.
    Refused,
    /// The user's configuration: URL, certificates, or a key that belongs to another program.
    Config,
    /// A bug.
    Internal,
}

impl ErrorKind {
    /// Returns true if the same request may succeed a little later.
    pub fn may_pass(self) -> bool {
        !matches!(self, Self::Refused | Self::Config | Self::Internal)
    }

    /// Returns true if the server that has the locks gave no answer.
    pub fn is_unreachable(self) -> bool {
        matches!(self, Self::Unreachable | Self::NoPrimary)
    }

    /// Returns true if waiting makes sense even if the server has never answered: it says that it will be ready, or other
    /// servers know it.
    pub fn is_worth_waiting(self) -> bool {
        self.will_pass() || self == Self::NoPrimary
    }

    /// Returns true if the server answers that it isn't ready, which may soon change.
    pub fn will_pass(self) -> bool {
        matches!(
            self,
            Self::Loading | Self::Busy | Self::Moving | Self::NotNow | Self::Crowded
        )
    }
}

/// A cause on which the rest of redlock depends, beside the kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A TLS handshake failed: the address, or a certificate, is wrong.
    Tls,
    /// A file with a certificate or a password can't be used.
    File,
    /// The host has no known address.
    UnknownHost,
    /// No server listens at the address.
    NoServer,
    /// No URL is set, and no server listens at the default address.
    NoDefaultServer,
    /// `local:` needs a server program, and none is installed.
    NoServerProgram,
    /// The server gives no answer in time.
    Silent,
    /// The other side has closed the connection.
    Closed,
    /// The user lacks these ACL rules.
    MissingRules(String),
    /// The keys are on another node of the cluster, to which the next connection goes.
    Moved(Redirect),
    /// The cluster is moving the keys to another node, and some are already there.
    Migrating(Option<Redirect>),
}

/// A failed conversation with Redis. The message is for people: what happened, and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    pub cause: Option<Cause>,
    /// Without the origin of the URL.
    pub message: String,
    /// The origin of the URL, as a sentence, if the URL may be wrong.
    pub origin: Option<String>,
    /// `redlock doctor` shows more than the message.
    pub doctor_knows_more: bool,
}

/// Longest text that a message quotes, in characters.
const QUOTED: usize = 300;

/// Returns a text as a message quotes it: cut, because anyone may have written it.
pub fn quoted(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(QUOTED) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        use ErrorKind::{Crowded, NoPrimary, NotNow, NotReplicated, Replica, Unreachable};
        let doctor_knows_more = matches!(
            kind,
            Unreachable | NoPrimary | NotReplicated | NotNow | Crowded | Replica
        );
        Self {
            kind,
            cause: None,
            message,
            origin: None,
            doctor_knows_more,
        }
    }

    /// Returns the error with its cause, if that is known.
    pub(super) fn because(mut self, cause: impl Into<Option<Cause>>) -> Self {
        self.cause = cause.into();
        self
    }

    /// Returns the next step for the user, for messages that don't name it. `is_socket`: the URL has a path.
    pub fn next_step(&self, is_socket: bool) -> &'static str {
        use Cause::{Closed, File, NoDefaultServer, NoServer, Silent, UnknownHost};
        match (self.kind, &self.cause) {
            (ErrorKind::Refused, _) => "correct the user or the password",
            (ErrorKind::NotNow | ErrorKind::Replica, _) => "see the server's log",
            (ErrorKind::Internal, _) => "is this server compatible with Redis?",
            (_, Some(NoServer)) if is_socket => "start Redis, or correct the path in the URL",
            (_, Some(NoServer | NoDefaultServer)) => {
                "start Redis there, or correct the address in the URL"
            }
            (_, Some(UnknownHost)) => "correct the host in the URL, or its name in DNS",
            (_, Some(Silent)) => "open the port if a firewall drops packets; restart a hung server",
            (_, Some(Closed)) => "see the log of the server, or of the proxy in front of it",
            (_, Some(File)) => "write that file, or correct its name",
            _ => "correct the URL, or the network between this host and that one",
        }
    }

    /// Returns true if this is the cause.
    pub fn has_cause(&self, cause: Cause) -> bool {
        self.cause == Some(cause)
    }

    /// Returns the error with the origin of the server's URL.
    pub(super) fn with_origin(self, origin: Option<String>) -> Self {
        Self { origin, ..self }
    }

    /// Returns the error with a hint at the next step.
    pub fn with_next(mut self, next: &str) -> Self {
        self.message = format!("{}; {next}", self.message);
        self
    }

    /// Returns the error with these words and a colon in front.
    pub(super) fn after(mut self, start: &str) -> Self {
        self.message = format!("{start}: {}", self.message);
        self
    }

    /// Returns true if nothing was done because the keys are on another node of a cluster. The next connection goes there,
    /// so there is no reason to wait.
    pub fn goes_elsewhere(&self) -> bool {
        matches!(self.cause, Some(Cause::Moved(_)))
    }

    /// Returns true if a cluster is moving the keys to another node.
    pub fn is_migration(&self) -> bool {
        matches!(self.cause, Some(Cause::Migrating(_)))
    }

    /// Returns the place of the keys, if a node of a cluster names another node.
    pub fn redirect(&self) -> Option<&Redirect> {
        match &self.cause {
            Some(Cause::Moved(redirect)) => Some(redirect),
            Some(Cause::Migrating(redirect)) => redirect.as_ref(),
            _ => None,
        }
    }

    /// Returns the error of a cluster node that names another node for the keys.
    #[cfg(test)]
    pub fn moved() -> Self {
        let cause = Redirect::parse("1 other:7000").map(Cause::Moved);
        Self::new(ErrorKind::NotNow, String::new()).because(cause)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.origin {
            Some(origin) => write!(f, "; {origin}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

//! The errors of a conversation with Redis: their kinds, and their messages for users.

use std::borrow::Cow;
use std::fmt;

use super::nodes::Redirect;

/// What went wrong with Redis, as far as the exit status and another try need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No answer.
    Unreachable,
    /// It reports that it is loading its data.
    Loading,
    /// It reports that another client's script keeps it busy.
    Busy,
    /// Its sentinels, or other nodes of its cluster, answer; the server that has the locks doesn't.
    NoPrimary,
    /// It was reached, and can't do what was asked now: it fails over, is full or refuses writes.
    NotNow,
    /// It reports that it has as many clients as it admits.
    Crowded,
    /// It did what was asked, but too few of its replicas have confirmed that.
    NotReplicated,
    /// It was reached, and its cluster is moving the keys to another node, or has moved them.
    Moving,
    /// It is a replica, or became one in a failover, and refuses writes.
    Replica,
    /// Authentication or permissions.
    Refused,
    /// Our configuration: URL, certificates, or a key that belongs to another program.
    Config,
    /// A bug.
    Internal,
}

impl ErrorKind {
    /// Whether the same request may succeed a little later.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Unreachable
            | Self::Loading
            | Self::Busy
            | Self::NoPrimary
            | Self::NotNow
            | Self::Crowded
            | Self::NotReplicated
            | Self::Moving
            | Self::Replica => true,
            Self::Refused | Self::Config | Self::Internal => false,
        }
    }

    /// Whether the server that has the locks gave no answer.
    pub fn is_unreachable(self) -> bool {
        matches!(self, Self::Unreachable | Self::NoPrimary)
    }

    /// Whether it is known that there is something to wait for, also where it has never answered: a server
    /// that says that it will be ready, or one of which others know.
    pub fn is_worth_waiting(self) -> bool {
        self.will_pass() || self == Self::NoPrimary
    }

    /// Whether the server answers that it is there and isn't ready, which may be over soon.
    pub fn will_pass(self) -> bool {
        matches!(
            self,
            Self::Loading | Self::Busy | Self::Moving | Self::NotNow | Self::Crowded
        )
    }
}

/// A cause that the rest of redlock depends on, beside the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A TLS handshake failed: the address, or a certificate, is wrong.
    Tls,
    /// No URL is set, and no server listens at the default address.
    NoDefaultServer,
    /// `local:` needs a server program, and none is installed.
    NoServerProgram,
    /// The server requires a password, and none is set.
    NoPassword,
}

/// A failed conversation with Redis. The message is for people: what happened, and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    message: String,
    /// The origin of the URL, if the server can't be reached.
    origin: Option<String>,
    /// `redlock doctor` shows more than the message.
    doctor_knows_more: bool,
    /// The ACL rules that are missing.
    missing_rules: Option<String>,
    /// Where the keys are instead, by a node of a cluster.
    redirect: Option<Redirect>,
    /// Some keys have moved to that node, and the others follow.
    is_migration: bool,
    cause: Option<Cause>,
}

/// How much of a text a message quotes, in characters.
const QUOTED: usize = 300;

/// The text as a message quotes it, from any author: not endless.
pub fn quoted(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(QUOTED) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        let doctor_knows_more = matches!(
            kind,
            ErrorKind::Unreachable
                | ErrorKind::NoPrimary
                | ErrorKind::NotReplicated
                | ErrorKind::NotNow
                | ErrorKind::Crowded
                | ErrorKind::Replica
        );
        Self {
            kind,
            message,
            origin: None,
            doctor_knows_more,
            missing_rules: None,
            redirect: None,
            is_migration: false,
            cause: None,
        }
    }

    /// Returns the error with its cause, if that is known.
    pub(super) fn because(mut self, cause: impl Into<Option<Cause>>) -> Self {
        self.cause = cause.into();
        self
    }

    /// Returns true if this is the cause.
    pub fn has_cause(&self, cause: Cause) -> bool {
        self.cause == Some(cause)
    }

    /// The same error, with the origin of the server's URL.
    pub(super) fn with_origin(self, origin: Option<String>) -> Self {
        Self { origin, ..self }
    }

    /// The same error, with what to do next.
    pub fn with_next(mut self, next: &str) -> Self {
        self.message = format!("{}; {next}", self.message);
        self
    }

    /// The message without the origin of the URL.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The origin of the URL, as a sentence, if the URL may be wrong.
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    /// The same error, with a hint at `redlock doctor`, which shows more.
    pub(super) fn for_doctor(mut self) -> Self {
        self.doctor_knows_more = true;
        self
    }

    /// Whether `redlock doctor` shows more than the message.
    pub fn doctor_knows_more(&self) -> bool {
        self.doctor_knows_more
    }

    /// Returns the error of a user without these ACL rules.
    pub(super) fn of_missing_rules(mut self, rules: String) -> Self {
        self.missing_rules = Some(rules);
        self
    }

    /// Returns the ACL rules that are missing, if that is the reason.
    pub fn missing_rules(&self) -> Option<&str> {
        self.missing_rules.as_deref()
    }

    /// Whether nothing was done because the keys are on another node of a cluster, which the next connection
    /// goes to; so there is no reason to wait.
    pub fn goes_elsewhere(&self) -> bool {
        self.redirect.is_some() && !self.is_migration
    }

    /// A node of a cluster says that the keys are on another one.
    #[cfg(test)]
    pub fn moved() -> Self {
        Self {
            redirect: Redirect::parse("1 other:7000"),
            ..Self::new(ErrorKind::NotNow, String::new())
        }
    }

    /// Whether the keys are just being moved to another node of a cluster.
    pub fn is_migration(&self) -> bool {
        self.is_migration
    }

    /// The same error, of keys that a node of a cluster is moving or has moved.
    pub(super) fn moved_to(self, redirect: Option<Redirect>, is_migration: bool) -> Self {
        Self {
            redirect,
            is_migration,
            ..self
        }
    }

    /// Where the keys are instead, by a node of a cluster.
    pub fn redirect(&self) -> Option<&Redirect> {
        self.redirect.as_ref()
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

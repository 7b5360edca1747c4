//! A conversation with Redis that failed, in the user's words.

use std::borrow::Cow;
use std::fmt;

use redis::{ServerError, ServerErrorKind};

use super::server::Server;

/// What went wrong with Redis, as far as the exit status needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// No answer.
    Unreachable,
    /// It was reached, and can't do it now: loading its data, failing over, full, not to be written.
    NotNow,
    /// Authentication or permissions.
    Refused,
    /// Our configuration: URL, certificates, or a key that belongs to another program.
    Config,
    /// What should not happen.
    Internal,
}

impl ErrorKind {
    /// Whether the same request may succeed a little later.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Unreachable | Self::NotNow => true,
            Self::Refused | Self::Config | Self::Internal => false,
        }
    }
}

/// A failed conversation with Redis. The message is for people: what happened, and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    pub kind: ErrorKind,
    message: String,
}

/// How much of a text a message quotes, in characters.
const QUOTED: usize = 300;

/// The text as a message quotes it, from any author: not endless.
pub(super) fn quoted(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(QUOTED) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, message }
    }

    pub(super) fn from_server(error: &ServerError, server: &Server) -> Self {
        let details = error.details().unwrap_or_default();
        let all = format!("{} {details}", error.code());
        let said = quoted(&all);
        let quoted = quoted(details);
        let (kind, message) = match (error.kind(), error.code()) {
            _ if all.contains("WRONGTYPE") => (
                ErrorKind::Config,
                "the key isn't a string, so it belongs to another program; choose another name or --prefix".to_owned(),
            ),
            _ if error.kind() == Some(ServerErrorKind::NoPerm)
                || details.contains("user executing the script can't") =>
            (
                ErrorKind::Refused,
                format!("Redis at {server} doesn't permit it: {quoted}; see \"permissions\" in redlock-protocol(7)"),
            ),
            // It answers so to a request with more than ten parts.
            _ if details.contains("unauthenticated") || error.code() == "NOAUTH" => (
                ErrorKind::Refused,
                format!("Redis at {server} requires a password; use --password-file or the URL"),
            ),
            (_, "WRONGPASS") => (
                ErrorKind::Refused,
                format!("Redis at {server} refused the user name or password"),
            ),
            _ if details.contains("AUTH") && details.contains("without any password") => (
                ErrorKind::Refused,
                format!("Redis at {server} has no password set, but one was given"),
            ),
            (Some(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown | ServerErrorKind::ReadOnly | ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown), _)
            | (_, "BUSY" | "OOM" | "MISCONF" | "NOREPLICAS") => (
                ErrorKind::NotNow,
                not_ready(error.code(), &all, server),
            ),
            _ if details.contains("max number of clients") => (
                ErrorKind::NotNow,
                format!("Redis at {server} has too many clients"),
            ),
            _ if details.contains("DB index") => (
                ErrorKind::Config,
                format!("Redis at {server} has no such database: {quoted}"),
            ),
            _ => (ErrorKind::Internal, format!("Redis at {server} answered: {said}")),
        };
        Self { kind, message }
    }
}

/// Why a server can't do it now, and what to do.
fn not_ready(code: &str, said: &str, server: &Server) -> String {
    // What a script adds of itself is of no use to a reader.
    let said = said.split(" script: ").next().unwrap_or(said);
    match code {
        "READONLY" => format!(
            "Redis at {server} is not ready: it is a read-only replica; use the URL of its primary"
        ),
        "OOM" => format!(
            "Redis at {server} is not ready: it has no memory left (maxmemory); locks that are held are not affected"
        ),
        _ => format!("Redis at {server} is not ready: {}", quoted(said)),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

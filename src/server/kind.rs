//! The trait of a kind of server, with one module for each: `single`, `sentinel`, `cluster` and `local`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::connection::Connection;
use super::endpoint::Server;
use super::sentinel::Answers;
use super::{Error, left};

/// A kind of server: it finds the server that has the locks.
pub trait Kind: Send + Sync {
    /// Connects to the server that has the locks, and authenticates.
    fn open(&self, search: &Search) -> Result<Connection, Error>;

    /// Like [`Self::open`], for a release, which needs fewer checks: a demoted primary can't free another client's lock.
    fn open_to_release(&self, search: &Search) -> Result<Connection, Error> {
        self.open(search)
    }

    /// Returns true if the locks have moved away from the server of a connection, as far as can be found out `within` a
    /// time. Otherwise the connection learns which replicas must confirm the next calls.
    fn has_moved(&self, _connection: &mut Connection, _within: Duration) -> bool {
        false
    }

    /// Returns how long a primary must be silent before another server takes over, if that is known.
    fn down_after(&self) -> Option<Duration> {
        None
    }

    /// Returns the servers that name the primary and don't have the locks: the sentinels.
    fn witnesses(&self) -> &[Arc<Server>] {
        &[]
    }

    /// Asks all witnesses for a report. Returns the name of the primary and their answers.
    fn roll_call(&self, _within: Duration) -> Option<(String, Answers)> {
        None
    }

    /// Returns the socket of a server of this host that redlock starts.
    fn local_socket(&self) -> Option<PathBuf> {
        None
    }

    /// Returns the ACL rules that a job needs on this kind of server, beside the usual ones.
    fn more_rules(&self) -> &'static str {
        ""
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

impl Search {
    /// Returns the remaining time.
    pub(super) fn left(&self) -> Duration {
        left(self.until)
    }

    /// Connects to a server, in the remaining time.
    pub(super) fn connect(
        &self,
        server: &Arc<Server>,
        questions: &[Cmd],
    ) -> Result<(Connection, Vec<Value>), Error> {
        Connection::open(server, self.left(), questions)
    }
}

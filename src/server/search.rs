//! A search for the server that has the locks, by each kind of server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::connection::Connection;
use super::endpoint::Server;
use super::{Error, left};

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

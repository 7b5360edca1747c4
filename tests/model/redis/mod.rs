//! A Redis server in memory, for models: the shipped scripts run in a Lua 5.1 interpreter over a small fake of their commands.
//! `tests/model/fake.rs` compares it with a real server.

pub mod commands;
pub mod data;
pub mod lua;

use std::collections::{BTreeMap, BTreeSet};

pub use self::data::{Bytes, Data};
pub use self::lua::Interpreter;

/// State of the server at the time of a request, except its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// The server's clock, in microseconds since 1970, which doesn't change while a script runs.
    pub clock_us: i64,
    /// Channels with the number of their subscribers: the answer of PUBLISH.
    pub listeners: BTreeMap<Bytes, i64>,
    /// Channels of a cluster's slots with the number of their subscribers: the answer of SPUBLISH.
    pub shard_listeners: BTreeMap<Bytes, i64>,
    /// Commands that the user may not call, in capitals.
    pub denied: BTreeSet<&'static str>,
    /// True if no memory is left: commands that need some are refused, except after the first write of a script.
    pub is_full: bool,
    /// Error for all writes, in the server's words: it is a replica, or can't write to its disk.
    pub refuses_writes: Option<&'static str>,
}

impl Moment {
    pub fn at(clock_us: i64) -> Self {
        Self {
            clock_us,
            ..Self::default()
        }
    }

    pub fn now_ms(&self) -> i64 {
        self.clock_us.div_euclid(1000)
    }
}

/// Error of a replica for a write.
pub const READONLY: &str = "READONLY You can't write against a read only replica.";

/// Result of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// The client's answer; an error of the server is a `Value::ServerError`.
    pub answer: redis::Value,
    /// Each channel and message, in order, including those without a subscriber.
    pub published: Vec<(Bytes, Bytes)>,
    /// Messages with a subscriber.
    pub heard: Vec<(Bytes, Bytes)>,
    /// Number of commands that have changed the data, even if only an expiry.
    pub writes: usize,
}

//! A Redis server in memory, for models: the shipped scripts run in a Lua 5.1 interpreter over a small fake of
//! the commands that they call. `tests/model/fake.rs` holds it against a real server.

pub mod commands;
pub mod data;
pub mod lua;

use std::collections::{BTreeMap, BTreeSet};

pub use self::data::{Bytes, Data};
pub use self::lua::Interpreter;

/// What the server is at the moment of a request, besides what it stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Moment {
    /// The server's clock, in microseconds since 1970. It stands still while a script runs.
    pub clock_us: i64,
    /// The channels that are listened to, and by how many: what PUBLISH answers.
    pub listeners: BTreeMap<Bytes, i64>,
    /// The same for the channels of a cluster's slots: what SPUBLISH answers.
    pub shard_listeners: BTreeMap<Bytes, i64>,
    /// Commands that the user may not call, in capitals.
    pub denied: BTreeSet<&'static str>,
    /// No memory is left: what would need some is refused, except after the first write of a script.
    pub is_full: bool,
    /// Why no write is taken, as the server says it: it is a replica, or can't write to its disk.
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

/// What a replica says to a write.
pub const READONLY: &str = "READONLY You can't write against a read only replica.";

/// What became of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// As the client gets it; an error of the server is a `Value::ServerError`.
    pub answer: redis::Value,
    /// Each channel and message, in order, also those that nobody heard.
    pub published: Vec<(Bytes, Bytes)>,
    /// Those of them that somebody heard.
    pub heard: Vec<(Bytes, Bytes)>,
    /// How many commands of it have changed what is stored, also only an expiry.
    pub writes: usize,
}

//! How a server is reached: its URL and address, the bytes on the wire, sentinels, clusters and replicas. What is said
//! about locks is the `protocol`'s; this room names no script and no lock.
//!
//! Of the redis crate it uses the words alone (`Cmd`, `Value`, `ServerError`), and never its connection: that one has no
//! descriptor to poll, no limit on a reply, and no reset of a request that was abandoned. A bare `redis::` is the crate
//! in this whole program, and `crate::redis` is this room.
//!
//! From the ground up: `error` and `url` are plain data, `nodes` and `slot` pure rules, `resp` and `reply` read what
//! comes in. A `server` is one address with its credentials, and `local` starts that of this host; `refusal` says in words what it refuses. A `connection`
//! talks to one server over its `wire`; `sentinel` and `cluster` find the server to connect to, and a `deployment` is
//! what one URL stands for.

pub mod call;
pub mod cluster;
mod confirming;
pub mod connection;
pub mod deployment;
pub mod error;
pub mod local;
pub mod nodes;
pub mod password;
pub mod pushes;
pub mod ready;
pub mod redis_cli;
pub mod refusal;
pub mod replication;
pub mod reply;
mod resolve;
pub mod resp;
pub mod sentinel;
pub mod server;
mod single;
pub mod slot;
pub mod stream;
pub mod tls;
pub mod url;
pub mod wire;

use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use self::error::{Error, ErrorKind};

/// Returns the time until a moment.
pub fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Calls `question` in a thread of its own, which sends its answer.
fn in_thread<T: Send + 'static>(
    answers: &Sender<T>,
    question: impl FnOnce() -> T + Send + 'static,
) -> io::Result<()> {
    let answers = answers.clone();
    let thread = std::thread::Builder::new().spawn(move || {
        let _ = answers.send(question());
    });
    thread.map(drop)
}

/// Locks a value that threads share. A thread that has panicked leaves it whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

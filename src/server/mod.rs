//! Connections to servers: URLs and addresses, the bytes on the wire, sentinels, clusters and replicas. This module knows no
//! script and no lock.
//!
//! The redis crate provides the types and the packing (`Cmd`, `Value`, `ServerError`, `PushKind`). redlock has its own code for
//! the socket, its deadlines and the reading of replies, because the crate's connection:
//!
//! - costs 241 to 297 µs a run, 12 % of a short one, and 397 KB of the binary;
//! - has no descriptor to poll together with signals and timers;
//! - has no deadline for a whole reply, no limit on its size, and no reset of an abandoned request.
//!
//! The crate's parser detects the processor's features before its first byte, which takes 82 µs on a virtual machine. `resp`
//! takes 3.6 µs, and leaves errors and rare kinds of replies to the parser. In this program a bare `redis::` is the crate, and
//! `crate::server` is this module.
//!
//! From the lowest layer up: `error` and `url` are plain data, `nodes` and `slot` pure rules, `resp` and `reply` parse
//! input, and `refusal` explains refusals. An `endpoint` is one address with its credentials. A `connection` talks to one
//! server over its `wire`, which has one way to send and one queue of expected answers. Some kinds of servers must be searched
//! for the one that has the locks: `sentinel`, `cluster`, and `local`, which starts the server of this host. A `deployment`
//! is all servers behind one URL, of whichever kind.

pub mod call;
pub mod cluster;
mod confirming;
pub mod connection;
pub mod deployment;
pub mod endpoint;
pub mod error;
pub mod local;
pub mod nodes;
pub mod password;
pub mod pushes;
pub mod redis_cli;
pub mod refusal;
pub mod replication;
pub mod reply;
mod resolve;
pub mod resp;
pub mod sentinel;
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

/// Returns the time until a moment, or zero if it has passed.
pub fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Calls `question` in a new thread, which sends the result to `answers`.
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

/// Locks a value that threads share. Ignores a panic of another thread, because it leaves the value whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

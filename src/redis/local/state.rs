//! How a server of this host is doing, and why it can't be used.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::redis::error::Error;

/// The words by which a caller knows that nothing is installed.
pub const NOT_INSTALLED: &str = "neither redis-server nor valkey-server is installed";

/// Why there is no connection.
pub enum NotOpen {
    /// What the system says of the socket.
    Socket(io::Error),
    Other(Error),
}

impl From<Error> for NotOpen {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// How a server of this host is doing.
pub enum State {
    Running(Running),
    /// It is there, and doesn't answer at its socket: why.
    Silent(String),
    Stopped,
}

pub struct Running {
    /// What it is: `Redis 7.0.15`.
    pub version: String,
    pub pid: u64,
    pub up_for: Duration,
    /// Where it listens.
    pub socket: PathBuf,
}

//! How a server is reached: its URL and address, the bytes on the wire, sentinels, clusters and replicas.

pub mod call;
pub mod cluster;
pub mod connection;
pub mod deployment;
pub mod error;
pub mod nodes;
pub mod password;
pub mod ready;
pub mod redis_cli;
pub mod refusal;
pub mod replication;
pub mod reply;
pub mod resp;
pub mod sentinel;
pub mod server;
pub mod slot;
pub mod stream;
pub mod tls;
pub mod transport;
pub mod url;

pub use self::error::{Error, ErrorKind};

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
pub mod resp;
pub mod sentinel;
pub mod server;
pub mod slot;
pub mod stream;
pub mod tls;
pub mod transport;
pub mod url;
pub mod wire;

pub use self::error::{Error, ErrorKind};

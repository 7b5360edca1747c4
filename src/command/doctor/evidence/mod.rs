//! What `redlock doctor` finds out about a server: `examine` asks, `facts` has what was found. Nothing is judged here.

mod answers;
mod certificate;
mod examine;
mod facts;
mod info;
mod probe;
mod replicas;
mod sentinels;

pub use self::certificate::Validity;
pub use self::examine::examine;
pub use self::facts::*;
pub use self::info::{Info, ReplicaEntry};

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
#[cfg(any(test, fuzzing))]
pub use self::info::other_primaries;
pub use self::info::{Info, ReplicaEntry};

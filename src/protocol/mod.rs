//! What is said about locks: the lock protocol on one Redis server. How that server is reached is the room `redis`'s.
//!
//! The lock is the string key PREFIX+NAME. Held exclusively it contains the holder's *token*: a
//! random text, fresh for every acquisition, with a TTL. Every client that does
//! `SET key token NX PX ttl` on the same key excludes us and is excluded by us. Held by a group
//! (shared, slots) it contains a value that keeps such clients out, and the members are in `holders`, their
//! slots and limits in `slots`.
//! Beside these, in the same hash slot: `state` (the last fence and ticket, a freeze), `meta` (the holders'
//! entries), `guards` (work elsewhere under the holds), `queue` and `waiters` (the waiters, in the order of their turns), `exempt` (those that ignore freezes),
//! notices (what a run is to learn with its next request, a key each), `history` (the holds that are over), `skips` (the runs that ended without the lock),
//! and a channel for each waiter; and for each prefix one `index` of the names in use, so that no client has to
//! walk the keyspace.
//!
//! Each operation is one Lua script, in a separate file, that checks the token before it changes
//! anything; what they share is in `lib/`, and the build script joins each with what it includes.
//!
//! What all of them keep to:
//!
//! - What was asked once and lost can be asked again with the same outcome; the token alone is enough to
//!   come back. So the server knows a waiter's ticket by its token, and a release finds in the history
//!   that it was done.
//! - The write that frees, extends or hands on comes first, and is one that a server without free
//!   memory accepts (`DEL`, `HDEL`, `ZREM`, `PEXPIRE`); after it, that server accepts all others of the
//!   script. Bookkeeping comes last. What is new is refused there.
//! - Without the lock no holder counts, and no member whose lease is over: each script that changes
//!   anything begins by removing what is left of them (`lock_value` in `lib/holders.lua`).
//! - The server's clock is never trusted beyond our own: no wait is negative, no lease longer than what
//!   was asked for, no grant later than its receipt.
//! - Each key has an expiry, whatever became of another one. Nothing grows without a bound, and one call
//!   does a bounded amount of work: what concerns more holders or waiters is done in parts, by the next calls.
//!
//! The scripts:
//!
//! - `take.lua` and `free.lua` do what `acquire.lua` and `release.lua` usually do, and leave all else to them.
//! - `acquire.lua` takes a lock, or a place in its queue; it confirms a grant, and is the heartbeat of
//!   a waiter. A repetition after a lost reply is safe.
//! - `renew.lua` extends our lease; it never shortens one that was asked for and never re-creates a lost
//!   lock.
//! - `prolong.lua` does what `renew.lua` usually does, and leaves all else to it.
//! - `keep.lua` does that with the lock's key alone, while a cluster moves the keys to another node.
//! - `check.lua` answers whether a lock is still ours.
//! - `release.lua` frees our lock, or leaves its queue, and hands the lock on.
//! - `guard.lua` admits work elsewhere under a hold, by the hold's token, and extends its lease to the hold's;
//!   `leave.lua` says that it has ended. A lock whose run is over is kept for its guards.
//! - `force.lua` frees another client's lock, and leaves a notice that names the run that did it; or it takes
//!   a waiter out of the queue.
//! - `stop.lua` leaves a notice for a holder that it is to end.
//! - `freeze.lua` and `thaw.lua` block new holders for a time, and undo that.
//! - `skip.lua` notes that a run ended without the lock; the lock itself doesn't depend on it.
//! - `inspect.lua` and `history.lua` read, and change nothing.
//!
//! A hold that ends is written into the history by the script that ends it. One that ends without a
//! release (its process died) leaves its entry in `meta`, until a later script records it:
//! `expired` when its lease is over, `lost` when the lock was taken away before that.
//!
//! A lock that is released is *handed on*: the same script writes the next waiter's token into it,
//! with a short TTL, and sends that waiter alone a message. So no client can get in between, and a lost
//! message costs a heartbeat, not a stall. A waiter without a subscription is dead and is skipped; one
//! that doesn't confirm in time, because it is suspended, costs one grant and keeps its ticket. The waiter
//! behind it asks again when that grant expires: the run that confirms a grant sees to it that the second in
//! the queue does so soon, too.
//!
//! The *fence* that each hold carries is `max(last + 1, server time in µs)`: it grows with every
//! grant also when the state was flushed or the server restarted empty.
//!
//! Types: [`Locks`] comes from the settings; it has each [`Lock`] by its name, and opens a [`Client`],
//! which talks to Redis. A [`Claim`] is one attempt to hold a lock, by its own [`Token`]. What may take long
//! is sent first, and its answer comes in later, so that a caller may watch signals in between.

mod answer;
mod claim;
mod client;
mod deadlock;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/lock.rs"]
pub mod fuzz;
#[cfg(test)]
#[path = "../../tests/golden/state.rs"]
pub mod golden;
mod grant;
mod guard;
mod history;
mod inspect;
mod lock;
mod locks;
mod name;
mod rehearsal;
mod scripts;
mod token;
mod who;

#[cfg(test)]
#[path = "../../tests/model/mod.rs"]
mod model;

pub use self::answer::{Acquired, Busy, LeaseState, Loss, Reentry, Released};
pub use self::claim::{Claim, FAILOVER, Place, QueueOptions, ReleaseMode, Request, Supersede};
pub use self::client::{Client, Incoming, Push, left};
pub use self::deadlock::{CycleMember, WaitEdge};
pub use self::grant::Grant;
pub use self::guard::{Admitted, Guard};
pub use self::history::{HistoryEntry, HoldOutcome, LockHistory, SkipReason};
pub use self::inspect::{Hold, Inspected, Key, RESULTS, Record, Waiting, Which};
pub use self::lock::{Forced, FreezeReply, Lock};
pub use self::locks::{Access, Locks};
pub use self::name::Name;
pub use self::token::Token;
pub use self::who::{Frozen, Holder, KILL_AFTER, Kept, Limit, Who};
pub use crate::redis::error::{Cause, Error, ErrorKind};
pub use crate::redis::local::{THIS_HOST_ONLY, is_server as is_local_server};
pub use crate::redis::redis_cli::RedisCli;
pub use crate::redis::replication::{Quorum, Replication};
pub use crate::redis::sentinel::Answer as Vote;
pub use crate::redis::tls::TlsFiles;
pub use crate::redis::url::UrlOrigin;
pub use crate::redis::url::passwords;

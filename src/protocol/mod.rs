//! The lock protocol on one Redis server. The layer `redis` connects to that server.
//!
//! The lock is the string key PREFIX+NAME. If one client holds it, the key contains the holder's *token*: a random text,
//! fresh for every acquisition, with a TTL. Every client that does `SET key token NX PX ttl` on the same key excludes
//! redlock and is excluded by it. If a group holds the lock (shared, slots), the key contains a value that keeps such
//! clients out. Then the members are in `holders`, their slots and limits in `slots`.
//!
//! More keys in the same hash slot:
//!
//! - `state`: the last fence and ticket, a freeze
//! - `meta`: the holders' entries
//! - `guards`: work elsewhere under the holds
//! - `queue` and `waiters`: the waiters, in the order of their turns
//! - `exempt`: the waiters that ignore freezes
//! - notices, a key each, which a run reads with its next request
//! - `history`: the holds that are over
//! - `skips`: the runs that ended without the lock
//!
//! Each waiter has a channel. Each prefix has one `index` of the names in use, so that no client must scan all keys.
//!
//! Each operation is one Lua script, in a separate file, that checks the token before it changes anything. The scripts
//! share the files in `lib/`; the build script joins each with its includes.
//!
//! Rules of all scripts:
//!
//! - A request whose reply was lost can be repeated with the same outcome, and needs only the token. So the server knows
//!   a waiter's ticket by its token, and a release learns from the history that it was done before.
//! - The write that frees, extends or hands over comes first, and is one that a server without free memory accepts
//!   (`UNLINK`, `HDEL`, `ZREM`, `PEXPIRE`). After such a write, that server accepts all others of the script.
//!   Bookkeeping comes last. A full server refuses new locks and new places in the queue.
//! - A hold is valid only with the lock's key, and a member's only within its lease. So most scripts begin by removing
//!   the holds that aren't valid any more (`lock_value` in `lib/holders.lua`).
//! - The server's clock is trusted only within limits: no wait is negative, no lease longer than requested, no grant
//!   later than its receipt.
//! - Each key has an expiry of its own, independent of other keys. Nothing grows without a bound, and one call does a
//!   bounded amount of work; the next calls do the rest.
//!
//! The scripts:
//!
//! - `take.lua` and `free.lua` do what `acquire.lua` and `release.lua` usually do, and leave all else to them.
//! - `acquire.lua` takes a lock, or a place in its queue; it confirms a grant, and is the heartbeat of a waiter. A
//!   repetition after a lost reply is safe.
//! - `renew.lua` extends this run's lease. The script never shortens a longer lease that was requested, and never
//!   re-creates a lost lock.
//! - `prolong.lua` does what `renew.lua` usually does, and leaves all else to it.
//! - `keep.lua` extends the lease by the lock's key alone, while a cluster moves the keys to another node.
//! - `check.lua` reports whether this run still holds a lock.
//! - `release.lua` frees this run's lock, or leaves its queue, and hands the lock over.
//! - `guard.lua` lets work elsewhere join a hold, by the hold's token, and extends the guard's lease to the hold's.
//!   `leave.lua` ends a guard. A lock whose run is over is kept for its guards.
//! - `force.lua` frees another client's lock, and leaves a notice that names the run that did it; or it removes a waiter
//!   from the queue.
//! - `stop.lua` leaves a notice for a holder that it must end.
//! - `freeze.lua` and `thaw.lua` block new holders for a time, and undo that.
//! - `skip.lua` records that a run ended without the lock; the lock itself doesn't depend on it.
//! - `inspect.lua` and `history.lua` read, and change nothing.
//!
//! The script that ends a hold writes it into the history. A hold that ends without a release (its process died)
//! leaves its entry in `meta`, until a later script records the hold. The record is `expired` if its lease is over,
//! `lost` if the lock was taken away before that.
//!
//! A released lock is *handed over*: the same script writes the next waiter's token into it, with a short TTL, and sends
//! a message to that waiter alone. So no client can get in between, and a lost message costs a heartbeat, not a stall. A
//! waiter without a subscription is dead and is skipped. A waiter that doesn't confirm in time, because it is suspended,
//! costs one grant and keeps its ticket. The waiter behind it asks again when that grant expires: the run that confirms
//! a grant notifies the second waiter in the queue if it would ask too late.
//!
//! The *fence* of a hold (its fencing token) is `max(last + 1, server time in µs)`. This number grows with every
//! grant, even if the state was deleted or the server restarted empty.
//!
//! Types: [`Locks`] comes from the settings; it has each [`Lock`] by its name, and opens a [`Client`], which talks to
//! Redis. A [`Claim`] is one attempt to hold a lock, by its own [`Token`]. Requests that may take long are sent first
//! and answered later, so that a caller may watch signals in between.

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
pub use self::claim::{Claim, FAILOVER, QueueOptions, QueuePlace, ReleaseMode, Request, Supersede};
pub use self::client::{Client, Incoming, Push, left};
pub use self::deadlock::{CycleMember, WaitEdge};
pub use self::grant::Grant;
pub use self::guard::{Admission, Guard};
pub use self::history::{HistoryEntry, HoldOutcome, LockHistory, SkipReason};
pub use self::inspect::{Hold, Inspected, Key, Names, RESULTS, Record, Waiting};
pub use self::lock::{Forced, FreezeReply, Lock};
pub use self::locks::Locks;
pub use self::name::Name;
pub use self::token::Token;
pub use self::who::{Frozen, Holder, KILL_AFTER, Kept, Limit, Who, cut};
pub use crate::server::endpoint::Access;
pub use crate::server::error::{Cause, Error, ErrorKind};
pub use crate::server::local::{THIS_HOST_ONLY, is_server as is_local_server};
pub use crate::server::redis_cli::RedisCli;
pub use crate::server::replication::{Quorum, Replication};
pub use crate::server::sentinel::SentinelAnswer as Vote;
pub use crate::server::tls::TlsFiles;
pub use crate::server::url::UrlOrigin;
pub use crate::server::url::passwords;

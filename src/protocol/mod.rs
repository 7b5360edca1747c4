//! The lock protocol on one Redis server, and the only code that knows Redis.
//!
//! The lock is the string key PREFIX+NAME. Held exclusively it contains the holder's *token*: a
//! random text, fresh for every acquisition, with a TTL. Every client that does
//! `SET key token NX PX ttl` on the same key excludes us and is excluded by us. Held by a group
//! (shared, slots) it contains a value that keeps such clients out, and the members are in `holders`, their
//! slots and limits in `slots`.
//! Beside these, in the same hash slot: `state` (the last fence and ticket, a freeze), `meta` (the holders'
//! entries), `queue` and `waiters` (the waiters, in the order of their turns), `notices` (what runs are to learn
//! with their next request), `history` (the holds that are over), `skips` (the runs that ended without the lock),
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
//! - A name without a fence is one that the server has never granted since it lost its data, if it did. Where a
//!   client wants that, such a name isn't granted while the server is young; that stands in `state`, so that
//!   all clients and all scripts keep to it.
//! - The server's clock is never trusted beyond our own: no wait is negative, no lease longer than what
//!   was asked for, no grant later than its receipt.
//! - Each key has an expiry, whatever became of another one. Nothing grows without a bound, and one call
//!   does a bounded amount of work: what concerns more holders or waiters is done in parts, by the next calls.
//!
//! The scripts:
//!
//! - `acquire.lua` takes a lock, or a place in its queue; it confirms a grant, and is the heartbeat of
//!   a waiter. A repetition after a lost reply is safe.
//! - `renew.lua` extends our lease; it never shortens one that was asked for and never re-creates a lost
//!   lock.
//! - `keep.lua` does that with the lock's key alone, while a cluster moves the keys to another node.
//! - `check.lua` answers whether a lock is still ours.
//! - `release.lua` frees our lock, or leaves its queue, and hands the lock on.
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
//! that doesn't confirm in time is skipped too, and keeps its ticket. It may be suspended, and so may
//! those behind it: so they are notified of the grant, reply at once, and ask again when it expires; then
//! those that haven't replied are skipped together. How many are notified depends on how long the last
//! hold lasted, so that a quick succession of short holds is not disturbed.
//!
//! The *fence* that each hold carries is `max(last + 1, server time in µs)`: it grows with every
//! grant also when the state was flushed or the server restarted empty.
//!
//! Types: [`Locks`] comes from the settings; it has each [`Lock`] by its name, and opens a [`Client`],
//! which talks to Redis. A [`Claim`] is one attempt to hold a lock, by its own [`Token`]. What may take long
//! is sent first, and its answer comes in later, so that a caller may watch signals in between.

mod ask;
mod claim;
pub mod client;
mod deadlock;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/lock.rs"]
pub mod fuzz;
mod history;
mod inspect;
mod locks;
pub mod name;
pub mod scripts;
mod token;
mod trial;
mod who;

#[cfg(test)]
#[path = "../../tests/model/mod.rs"]
mod model;

use std::ops::ControlFlow;
use std::time::Duration;

use redis::Value;

pub use self::ask::{About, Answer, Endpoint, KeyNames, Question, Refusal, left, those_that_count};
pub use self::claim::{
    Acquired, Busy, Claim, LeaseState, Loss, Place, QueueOptions, Reentry, ReleaseMode, Released,
    Request, Supersede,
};
pub use self::client::{Client, Incoming, SlowOpening};
pub use self::deadlock::{CycleMember, WaitEdge};
pub use self::history::{HistoryEntry, HoldOutcome, LockHistory, Skip, SkipReason};
pub use self::inspect::{Hold, Inspected, Key, Renewal, Waiting, Which};
pub use self::locks::{Access, Locks};
use self::name::Keys;
pub use self::name::Name;
use self::scripts::{
    FORCE, FREEZE, MOST_PARTS, STOP, Script, THAW, count, cursor, endless, holder,
    unexpected_reply, waiter,
};
pub use self::token::Token;
pub use self::trial::{Messages, Rehearsal, Trial};
pub use self::who::{Frozen, Holder, Limit, Restarted, Waiter, Who};
use crate::redis::connection::Call;
pub use crate::redis::connection::Grant;
pub use crate::redis::error::{Error, ErrorKind};
pub use crate::redis::password::{PasswordCommand, PasswordSource};
pub use crate::redis::redis_cli::RedisCli;
pub use crate::redis::replication::{Quorum, Replication};
pub use crate::redis::sentinel::KnownReplica;
pub use crate::redis::server::UrlOrigin;
pub use crate::redis::tls::TlsFiles;
pub use crate::redis::transport::Transport;
pub use crate::redis::url::passwords;

/// A lock on a server: its name and keys.
#[derive(Clone, Debug)]
pub struct Lock {
    name: Name,
    keys: Keys,
    history: u32,
}

impl Lock {
    /// Its name without the prefix.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The channel of the waiter with this id.
    fn channel_of(&self, id: &str) -> Vec<u8> {
        [&self.keys.channels, id.as_bytes()].concat()
    }

    /// Frees the lock from any holder, or (with `id`) takes it from that holder only, or removes that waiter
    /// from its queue. `by` is reported to the run that loses it; `None` when its process is known to be
    /// dead.
    pub fn force(
        &self,
        client: &mut Client,
        id: Option<&str>,
        by: Option<&Who>,
    ) -> Result<Forced, Error> {
        let by = by.map(Who::to_json).unwrap_or_default();
        let id = id.unwrap_or_default();
        // Where the search for the id goes on.
        let (mut among_holders, mut in_queue) = (b"0".to_vec(), b"0".to_vec());
        let (mut freed, mut last) = (0_u32, None);
        for _ in 0..MOST_PARTS {
            let args = vec![id.into(), by.clone(), among_holders, in_queue];
            let part = client.call(self.call(&FORCE, args), |fields| {
                Ok(match fields {
                    [Value::Int(1), entry, many, others] => {
                        ForcedPart::Freed(holder(entry)?, count(many)?, count(others)?)
                    }
                    [Value::Int(0)] => ForcedPart::Done(Forced::WasFree),
                    [Value::Int(2), id, entry] => {
                        ForcedPart::Done(Forced::HeldByOther(scripts::id(id)?, holder(entry)?))
                    }
                    [Value::Int(3), entry] => {
                        ForcedPart::Done(Forced::WaiterRemoved(waiter(entry)?))
                    }
                    [Value::Int(4), holders, queue] => {
                        ForcedPart::Compared(cursor(holders)?, cursor(queue)?)
                    }
                    other => return Err(unexpected_reply(other)),
                })
            })?;
            match part {
                ForcedPart::Freed(holder, many, others) => {
                    freed = freed.saturating_add(many);
                    last = holder.or(last);
                    if others == 0 {
                        return Ok(Forced::of(last, freed));
                    }
                    (among_holders, in_queue) = (b"0".to_vec(), b"0".to_vec());
                }
                // The last of them have ended by themselves.
                ForcedPart::Done(Forced::WasFree) if freed > 0 => {
                    return Ok(Forced::of(last, freed));
                }
                ForcedPart::Done(forced) => return Ok(forced),
                ForcedPart::Compared(holders, queue) => {
                    (among_holders, in_queue) = (holders, queue);
                }
            }
        }
        Err(endless())
    }

    /// Asks the holder with this id to end; `by` is reported to its run, which keeps the lock until its
    /// command has ended.
    pub fn stop(&self, client: &mut Client, id: &str, by: &Who) -> Result<StopReply, Error> {
        let mut among_holders = b"0".to_vec();
        for _ in 0..MOST_PARTS {
            let args = vec![id.into(), by.to_json(), among_holders];
            let part = client.call(self.call(&STOP, args), |fields| {
                Ok(match fields {
                    [Value::Int(1)] => ControlFlow::Break(StopReply::Asked),
                    [Value::Int(2)] => ControlFlow::Break(StopReply::Unwatched),
                    [Value::Int(0)] => ControlFlow::Break(StopReply::NotHeld),
                    [Value::Int(4), holders] => ControlFlow::Continue(cursor(holders)?),
                    other => return Err(unexpected_reply(other)),
                })
            })?;
            match part {
                ControlFlow::Break(reply) => return Ok(reply),
                ControlFlow::Continue(more) => among_holders = more,
            }
        }
        Err(endless())
    }

    /// Admits no new holder for a time, as `who` wants it for its reason.
    pub fn freeze(
        &self,
        client: &mut Client,
        long: Duration,
        who: &Who,
    ) -> Result<FreezeReply, Error> {
        let who = who.to_json();
        let args = vec![long.as_millis().to_string().into(), who];
        client.call(self.call(&FREEZE, args), |fields| match fields {
            [holders, entry, before] => Ok(FreezeReply {
                holders: count(holders)?,
                holder: holder(entry)?,
                before: scripts::who(before)?,
            }),
            other => Err(unexpected_reply(other)),
        })
    }

    /// Admits holders again; returns the client that had frozen it, if it was frozen.
    pub fn thaw(&self, client: &mut Client) -> Result<Option<Who>, Error> {
        client.call(self.call(&THAW, Vec::new()), |fields| match fields {
            [Value::Int(1), who] => Ok(Some(scripts::who(who)?.unwrap_or_default())),
            [Value::Int(0)] => Ok(None),
            other => Err(unexpected_reply(other)),
        })
    }

    /// A call with all keys of this lock; what all scripts need comes before the arguments.
    fn call(&self, script: &'static Script, args: Vec<Vec<u8>>) -> Call {
        let keys = &self.keys;
        let common = [
            self.name.as_str().into(),
            keys.channels.clone(),
            self.history.to_string().into(),
        ];
        Call {
            script,
            keys: vec![
                keys.lock.clone(),
                keys.state.clone(),
                keys.meta.clone(),
                keys.holders.clone(),
                keys.queue.clone(),
                keys.waiters.clone(),
                keys.history.clone(),
                keys.index.clone(),
                keys.slots.clone(),
                keys.notices.clone(),
            ],
            args: common.into_iter().chain(args).collect(),
        }
    }
}

/// What one call of `force` did.
enum ForcedPart {
    /// It took the lock from some, one of whom this is, and others hold it still.
    Freed(Option<Holder>, u32, u32),
    Done(Forced),
    /// It found nobody with the id yet: where the search goes on.
    Compared(Vec<u8>, Vec<u8>),
}

/// What `force` found.
#[derive(Clone, Debug)]
pub enum Forced {
    /// It is taken from this holder (`None`: another client's), and from this many others.
    Freed { holder: Option<Holder>, others: u32 },
    /// It had no holder.
    WasFree,
    /// A holder with another id than the given one: its id, and that holder.
    HeldByOther(String, Option<Holder>),
    /// The id is that of this waiter, which isn't in the queue any more.
    WaiterRemoved(Option<Waiter>),
}

impl Forced {
    /// It is taken from these many, one of whom this is.
    fn of(holder: Option<Holder>, many: u32) -> Self {
        Self::Freed {
            holder,
            others: many.saturating_sub(1),
        }
    }
}

/// What `stop` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReply {
    /// The holder will end.
    Asked,
    /// No process watches over this hold.
    Unwatched,
    /// No holder has this id.
    NotHeld,
}

/// What `freeze` found.
#[derive(Clone, Debug)]
pub struct FreezeReply {
    /// How many hold it still.
    pub holders: u32,
    /// One of them; `None` when none does, or for another client.
    pub holder: Option<Holder>,
    /// The client that had frozen it before.
    pub before: Option<Who>,
}

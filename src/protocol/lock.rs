//! One lock on a server: its keys, and what is done to it from outside, without a claim.

use std::ops::ControlFlow;
use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::name::{Keys, Name};
use super::scripts::{
    self, FORCE, FREEZE, MOST_PARTS, STOP, Script, THAW, count, cursor, endless, holder,
    unexpected_reply, waiter,
};
use super::who::{Holder, Waiter, Who};
use crate::redis::call::Call;
use crate::redis::error::Error;

/// A lock on a server: its name and keys.
#[derive(Clone, Debug)]
pub struct Lock {
    pub(super) name: Name,
    pub(super) keys: Keys,
    pub(super) history: u32,
}

impl Lock {
    /// Its name without the prefix.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The channel of the waiter with this id.
    pub(super) fn channel_of(&self, id: &str) -> Vec<u8> {
        [&self.keys.channels, id.as_bytes()].concat()
    }

    /// Frees the lock from any holder, or (with `id`) takes it from that holder only, or removes that waiter
    /// from its queue. `by` is reported to the run that loses it.
    pub fn force(&self, client: &mut Client, id: Option<&str>, by: &Who) -> Result<Forced, Error> {
        let by = by.to_json();
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

    /// Admits no new holder for a time, as `who` wants it for its reason, except those that ignore freezes.
    pub fn freeze(
        &self,
        client: &mut Client,
        long: Duration,
        who: &Who,
    ) -> Result<FreezeReply, Error> {
        let args = vec![long.as_millis().to_string().into(), who.to_json()];
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

    /// The same as [`Self::call`], for a script that knows of guards.
    pub(super) fn call_with_guards(&self, script: &'static Script, args: Vec<Vec<u8>>) -> Call {
        let mut call = self.call(script, args);
        call.keys.push(self.keys.guards.clone());
        call
    }

    /// A call with all keys of this lock, but for the guards; what all scripts need comes before the arguments.
    pub(super) fn call(&self, script: &'static Script, args: Vec<Vec<u8>>) -> Call {
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
                keys.exempt.clone(),
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

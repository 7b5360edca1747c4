//! A lock on a server: its keys, and the operations on it that need no claim.

use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::name::{Keys, Name};
use super::scripts::{
    FORCE, FREEZE, STOP, Script, THAW, count, cursor, entry, in_parts, unexpected_reply,
};
use super::who::{Holder, Waiter, Who};
use crate::server::call::Call;
use crate::server::error::Error;

/// The keys of a lock, in the order in which the scripts take them.
const KEYS: [&str; 12] = [
    "lock", "state", "meta", "holders", "queue", "waiters", "history", "index", "slots", "exempt",
    "guards", "skips",
];

/// Cursor at which a search starts.
const START: &[u8] = b"0";

/// A lock on a server: its name and keys.
#[derive(Clone, Debug)]
pub struct Lock {
    pub(super) name: Name,
    pub(super) keys: Keys,
    pub(super) history: u32,
}

impl Lock {
    /// Returns the name without the prefix.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the key of a notice of this kind for the run with this id (`lib/notices.lua` lists the kinds).
    pub(super) fn notice(&self, kind: &str, id: &str) -> Vec<u8> {
        self.keys.of(&format!("{kind}:{id}"))
    }

    /// Frees the lock from every holder. With `id`, takes it from that holder only, or removes that waiter
    /// from the queue. `by` is reported to the run that loses it.
    pub fn force(&self, client: &mut Client, id: Option<&str>, by: &Who) -> Result<Forced, Error> {
        let by = by.to_json();
        let id = id.unwrap_or_default();
        let start = [START, START].map(<[u8]>::to_vec);
        // Cursors among the holders and in the queue at which the search for the id goes on.
        let mut from = start.clone();
        let (mut freed, mut last) = (0_u32, None);
        let freed_from = |holder, many: u32| Forced::Freed {
            holder,
            others: many.saturating_sub(1),
        };
        in_parts(|| {
            let args = [id.into(), by.clone()].into_iter().chain(from.clone());
            client.call(self.call(&FORCE, args.collect()), |fields| {
                Ok(Some(match fields {
                    [Value::Int(1), holder, many, others] => {
                        freed = freed.saturating_add(count(many)?);
                        last = entry(holder, Holder::parse)?.or(last.take());
                        from.clone_from(&start);
                        if count(others)? > 0 {
                            return Ok(None);
                        }
                        freed_from(last.take(), freed)
                    }
                    // The last of the holders have ended by themselves.
                    [Value::Int(0)] if freed > 0 => freed_from(last.take(), freed),
                    [Value::Int(0)] => Forced::WasFree,
                    [Value::Int(2), ..] => Forced::HeldByOther,
                    [Value::Int(3), waiter] => Forced::WaiterRemoved(entry(waiter, Waiter::parse)?),
                    [Value::Int(4), holders, queue] => {
                        from = [cursor(holders)?, cursor(queue)?];
                        return Ok(None);
                    }
                    other => return Err(unexpected_reply(other)),
                }))
            })
        })
    }

    /// Asks the holder with this id to end, if it exists. `by` is reported to its run, which keeps the lock
    /// until its command has ended.
    pub fn stop(&self, client: &mut Client, id: &str, by: &Who) -> Result<(), Error> {
        let mut among_holders = START.to_vec();
        in_parts(|| {
            let args = vec![id.into(), by.to_json(), among_holders.clone()];
            client.call(self.call(&STOP, args), |fields| match fields {
                [Value::Int(0..=2)] => Ok(Some(())),
                [Value::Int(4), holders] => {
                    among_holders = cursor(holders)?;
                    Ok(None)
                }
                other => Err(unexpected_reply(other)),
            })
        })
    }

    /// Admits no new holder for a time, except runs that ignore freezes. `who` is the client that freezes the
    /// lock, with its reason.
    pub fn freeze(
        &self,
        client: &mut Client,
        long: Duration,
        who: &Who,
    ) -> Result<FreezeReply, Error> {
        let args = vec![long.as_millis().to_string().into(), who.to_json()];
        client.call(self.call(&FREEZE, args), |fields| match fields {
            [holders, holder, before] => Ok(FreezeReply {
                holders: count(holders)?,
                holder: entry(holder, Holder::parse)?,
                before: entry(before, Who::parse)?,
            }),
            other => Err(unexpected_reply(other)),
        })
    }

    /// Ends a freeze. Returns the client that had frozen the lock, if it was frozen.
    pub fn thaw(&self, client: &mut Client) -> Result<Option<Who>, Error> {
        client.call(self.call(&THAW, Vec::new()), |fields| match fields {
            [Value::Int(1), who] => Ok(Some(entry(who, Who::parse)?.unwrap_or_default())),
            [Value::Int(0)] => Ok(None),
            other => Err(unexpected_reply(other)),
        })
    }

    /// Returns a call with the lock's keys that the script takes. The arguments that all scripts need come
    /// before `args`.
    pub(super) fn call(&self, script: &'static Script, args: Vec<Vec<u8>>) -> Call {
        let common = [
            self.name.as_str().into(),
            self.keys.of(""),
            self.history.to_string().into(),
        ];
        let key = |kind| match kind {
            "lock" => self.keys.lock.clone(),
            "index" => self.keys.index.clone(),
            kind => self.keys.of(kind),
        };
        Call {
            script,
            keys: KEYS[..script.keys].iter().copied().map(key).collect(),
            args: common.into_iter().chain(args).collect(),
        }
    }
}

/// Result of [`Lock::force`].
#[derive(Clone, Debug)]
pub enum Forced {
    /// The lock was taken from this holder (`None`: another client), and from this many others.
    Freed { holder: Option<Holder>, others: u32 },
    /// The lock had no holder.
    WasFree,
    /// No holder has the given id.
    HeldByOther,
    /// The id was this waiter's, which isn't in the queue any more.
    WaiterRemoved(Option<Waiter>),
}

/// Result of [`Lock::freeze`].
#[derive(Clone, Debug)]
pub struct FreezeReply {
    /// Number of clients that still hold the lock.
    pub holders: u32,
    /// A holder; `None` if there is none, or if it is another client.
    pub holder: Option<Holder>,
    /// The client that had frozen the lock before.
    pub before: Option<Who>,
}

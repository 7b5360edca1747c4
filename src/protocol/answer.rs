//! The answers to a claim. Pure.

use std::time::Duration;

use redis::Value;

use super::scripts::{
    self, array, count, entry, flag, left, milliseconds, number, slot, some_text, unexpected_reply,
};
use super::who::{Frozen, Holder, Limit, Who};
use crate::redis::error::Error;

/// The answer to [`super::Claim::acquire`].
#[derive(Clone, Debug)]
pub enum Acquired {
    /// Ours.
    Held {
        fence: u64,
        slot: u32,
    },
    Busy(Busy),
    /// This newer run has asked us to give up.
    Superseded(Box<Who>),
    /// A run succeeded this long ago, which is recent enough.
    RecentSuccess(Duration),
    /// This many runs wait already: as many as `--max-queue` says.
    Crowded(u32),
    /// This person has removed us from the queue, or has stopped us before we knew that the lock was ours; or a
    /// newer run has. What we may have is ours to release.
    Removed(Box<Who>),
}

/// Another holder has the lock.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// How many waiters are ahead of us.
    pub ahead: u32,
    /// Our number, if we are in the queue.
    pub ticket: Option<u64>,
    /// No message reaches us, so we have to poll.
    pub polls: bool,
    /// When a lease ends (`None`: never, the key has no expiry).
    pub left: Option<Duration>,
    /// How many hold it.
    pub holders: u32,
    /// The id of the holder whose lease ends first; empty when the lock is just being handed on.
    pub id: String,
    /// That holder; `None`: another client.
    pub holder: Option<Holder>,
    /// No new holder is admitted.
    pub frozen: Option<Frozen>,
    /// The lock had no expiry, and has got one.
    pub repaired: bool,
    /// Dead waiters are left in front of us, which we clear away by asking again.
    pub is_behind_dead: bool,
    /// The client that has asked the holder to end.
    pub stopping: Option<Who>,
}

impl Busy {
    /// Returns since when a freeze keeps all out, or else the holder has been asked to end, in milliseconds since 1970 by
    /// the server's clock.
    pub fn blocked_since(&self) -> Option<u64> {
        let frozen = self.frozen.as_ref().map(|frozen| frozen.since_ms);
        let stopping = self.stopping.as_ref().and_then(|by| by.asked);
        frozen.or(stopping)
    }
}

/// The answer to [`super::Claim::renew_all`] and [`super::Claim::check_all`]; that there was no answer is an
/// [`Error`], a third thing.
#[derive(Clone, Debug)]
pub enum LeaseState {
    /// Still ours.
    Held {
        /// What is left of the lease, from when the question was sent.
        left: Duration,
        /// The newer run that wants this one to end.
        cancelled_by: Option<Box<Who>>,
    },
    /// Our own job has released it.
    Released,
    /// Definitely not ours any more.
    Lost(Loss),
}

/// A hold that another run has, too.
#[derive(Clone, Copy, Debug)]
pub struct Reentry {
    pub fence: u64,
    pub limit: Limit,
    pub slot: u32,
}

/// How a lock was lost, as far as Redis knows.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// The client that freed it with `release --force`.
    pub forced_by: Option<Who>,
    /// The holder now, if known.
    pub holder: Option<Holder>,
}

/// The answer to [`super::Claim::release`].
#[derive(Clone, Debug)]
pub enum Released {
    Now,
    /// It stays taken for this duration.
    Kept {
        left: Duration,
        /// At most, and no longer than its guards live.
        for_guards: bool,
    },
    /// Our own job had released it.
    Before,
    /// It wasn't ours (any more).
    NotOurs(Loss),
}

/// Reads the answer to [`super::Claim::acquire`].
pub fn acquired(answer: Value) -> Result<Acquired, Error> {
    let fields = array(answer)?;
    Ok(match fields.as_slice() {
        [Value::Int(1), fence, place] => Acquired::Held {
            fence: number(fence)?,
            slot: slot(place)?,
        },
        [Value::Int(0), fields @ ..] if fields.len() == 12 => Acquired::Busy(busy(fields)?),
        // A clock that was set back.
        [Value::Int(3), Value::Int(..0)] => Acquired::RecentSuccess(Duration::ZERO),
        [Value::Int(3), ago] => Acquired::RecentSuccess(Duration::from_millis(number(ago)?)),
        [Value::Int(2), by] => Acquired::Superseded(someone(by)?),
        [Value::Int(5), waiting] => Acquired::Crowded(count(waiting)?),
        [Value::Int(4), by] => Acquired::Removed(someone(by)?),
        _ => return Err(unexpected_reply(&fields)),
    })
}

/// Reads who has the lock instead, and the place in its queue.
fn busy(fields: &[Value]) -> Result<Busy, Error> {
    let mut fields_left = fields.iter();
    let mut next = || fields_left.next().ok_or_else(|| unexpected_reply(fields));
    Ok(Busy {
        now_ms: number(next()?)?,
        ahead: count(next()?)?,
        ticket: {
            let ticket = next()?;
            let is_given = some_text(ticket)?.is_some_and(|text| !text.is_empty());
            is_given.then(|| number(ticket)).transpose()?
        },
        polls: flag(next()?)?,
        left: milliseconds(next()?)?,
        holders: count(next()?)?,
        id: match next()? {
            Value::Nil => String::new(),
            id => scripts::id(id)?,
        },
        holder: entry(next()?, Holder::parse)?,
        frozen: entry(next()?, Frozen::parse)?,
        repaired: flag(next()?)?,
        is_behind_dead: flag(next()?)?,
        stopping: entry(next()?, Who::parse)?,
    })
}

/// Reads the client that did something; its entry may not be readable.
fn someone(by: &Value) -> Result<Box<Who>, Error> {
    Ok(Box::new(entry(by, Who::parse)?.unwrap_or_default()))
}

/// Reads the answer to [`super::Claim::release`].
pub fn released(answer: Value) -> Result<Released, Error> {
    match array(answer)?.as_slice() {
        [Value::Int(1)] => Ok(Released::Now),
        [Value::Int(3), rest, for_guards] => Ok(Released::Kept {
            left: left(rest)?,
            for_guards: flag(for_guards)?,
        }),
        [Value::Int(2)] => Ok(Released::Before),
        [Value::Int(0), by, holder] => Ok(Released::NotOurs(loss(by, holder)?)),
        other => Err(unexpected_reply(other)),
    }
}

/// Reads the answer to [`super::Claim::renew_all`].
pub fn renewed(answer: Value) -> Result<LeaseState, Error> {
    Ok(renewed_hold(&array(answer)?)?.0)
}

/// Reads the answer to a renewal; the hold is there if the lock is still ours.
pub(super) fn renewed_hold(fields: &[Value]) -> Result<(LeaseState, Option<Reentry>), Error> {
    match fields {
        [Value::Int(1), more, fence, limit, place, by] => {
            let hold = reentry(fence, limit, place)?;
            Ok((held(more, by)?, Some(hold)))
        }
        other => Ok((not_ours(other)?, None)),
    }
}

pub(super) fn reentry(fence: &Value, limit: &Value, place: &Value) -> Result<Reentry, Error> {
    Ok(Reentry {
        fence: number(fence)?,
        limit: Limit::of(count(limit)?),
        slot: slot(place)?,
    })
}

/// Reads what is left of a lease, and the newer run that wants this one to end. A notice that can't be read is ignored.
fn held(more: &Value, by: &Value) -> Result<LeaseState, Error> {
    Ok(LeaseState::Held {
        left: left(more)?,
        cancelled_by: entry(by, Who::parse)?.map(Box::new),
    })
}

/// Reads the answer to a renewal by the short script; `None`: the whole one is to be asked. The number is that which was
/// asked for, as no other script answers.
pub fn prolonged(answer: &Value, ttl: Duration) -> Result<Option<LeaseState>, Error> {
    match answer {
        Value::Int(0) => Ok(None),
        Value::Int(_) if milliseconds(answer)? == Some(ttl) => Ok(Some(LeaseState::Held {
            left: ttl,
            cancelled_by: None,
        })),
        other => Err(unexpected_reply(std::slice::from_ref(other))),
    }
}

/// Reads the answer to [`super::Claim::check_all`].
pub fn checked(answer: Value) -> Result<LeaseState, Error> {
    match array(answer)?.as_slice() {
        [Value::Int(1), more @ Value::Int(_), by] => held(more, by),
        other => not_ours(other),
    }
}

/// Reads the answer for a token that doesn't hold the lock.
pub(super) fn not_ours(fields: &[Value]) -> Result<LeaseState, Error> {
    match fields {
        [Value::Int(2)] => Ok(LeaseState::Released),
        [Value::Int(0), by, holder] => Ok(LeaseState::Lost(loss(by, holder)?)),
        other => Err(unexpected_reply(other)),
    }
}

fn loss(by: &Value, holder: &Value) -> Result<Loss, Error> {
    Ok(Loss {
        forced_by: entry(by, Who::parse)?,
        holder: entry(holder, Holder::parse)?,
    })
}

//! The answers to a claim's requests. Pure.

use std::time::Duration;

use redis::Value;

use super::scripts::{
    self, array, count, entry, flag, left, milliseconds, number, slot, some_text, unexpected_reply,
};
use super::who::{Frozen, Holder, Limit, Who};
use crate::server::error::Error;

/// The answer to [`super::Claim::acquire`].
#[derive(Clone, Debug)]
pub enum Acquired {
    /// This claim holds the lock.
    Held {
        fence: u64,
        slot: u32,
    },
    Busy(Busy),
    /// This newer run has superseded the claim's run.
    Superseded(Box<Who>),
    /// A run succeeded this long ago, which is recent enough.
    RecentSuccess(Duration),
    /// As many runs as `--max-queue` allows wait already.
    Crowded(u32),
    /// This client has removed the run from the queue, or has stopped it before the run knew of its grant.
    /// The run must release whatever it holds.
    Removed(Box<Who>),
}

/// Another holder has the lock.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// Number of waiters ahead of this one.
    pub ahead: u32,
    /// Number of this run's place, if it is in the queue.
    pub ticket: Option<u64>,
    /// No message reaches this waiter, so it must poll.
    pub polls: bool,
    /// Time until the first lease ends (`None`: never, because the key has no expiry).
    pub left: Option<Duration>,
    /// Number of holders.
    pub holders: u32,
    /// Id of the holder whose lease ends first; empty while the lock is handed over.
    pub id: String,
    /// Entry of that holder; `None` for another client's.
    pub holder: Option<Holder>,
    /// The freeze, during which no new holder is admitted.
    pub frozen: Option<Frozen>,
    /// The lock had no expiry, and this request gave it one.
    pub repaired: bool,
    /// Dead waiters are left ahead; the next request removes more of them.
    pub is_behind_dead: bool,
    /// The client that has asked the holder to end.
    pub stopping: Option<Who>,
}

impl Busy {
    /// Returns when the freeze began, or else when the holder was asked to end, in milliseconds since 1970 by
    /// the server's clock.
    pub fn blocked_since(&self) -> Option<u64> {
        let frozen = self.frozen.as_ref().map(|frozen| frozen.since_ms);
        let stopping = self.stopping.as_ref().and_then(|by| by.asked_at);
        frozen.or(stopping)
    }
}

/// The answer to [`super::Claim::renew_all`] and [`super::Claim::check_all`]. No answer at all is an
/// [`Error`] instead.
#[derive(Clone, Debug)]
pub enum LeaseState {
    /// The claim still holds the lock.
    Held {
        /// Rest of the lease, counted from when the request was sent.
        left: Duration,
        /// The newer run that wants this one to end.
        cancelled_by: Option<Box<Who>>,
    },
    /// The run's own job has released the lock.
    Released,
    /// The claim definitely doesn't hold the lock any more.
    Lost(Loss),
}

/// A hold of another run that this run uses, too.
#[derive(Clone, Copy, Debug)]
pub struct Reentry {
    pub fence: u64,
    pub limit: Limit,
    pub slot: u32,
}

/// Circumstances of a loss, as far as Redis knows them.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// The client that freed it with `release --force`.
    pub forced_by: Option<Who>,
    /// The present holder, if known.
    pub holder: Option<Holder>,
}

/// The answer to [`super::Claim::release`].
#[derive(Clone, Debug)]
pub enum Released {
    Now,
    /// The lock stays taken for this duration.
    Kept {
        left: Duration,
        /// `left` is a maximum, because the lock is free once its guards have ended.
        for_guards: bool,
    },
    /// The run's own job had released the lock.
    Before,
    /// The claim didn't hold the lock (any more).
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
        // The server's clock was set back.
        [Value::Int(3), Value::Int(..0)] => Acquired::RecentSuccess(Duration::ZERO),
        [Value::Int(3), ago] => Acquired::RecentSuccess(Duration::from_millis(number(ago)?)),
        [Value::Int(2), by] => Acquired::Superseded(someone(by)?),
        [Value::Int(5), waiting] => Acquired::Crowded(count(waiting)?),
        [Value::Int(4), by] => Acquired::Removed(someone(by)?),
        _ => return Err(unexpected_reply(&fields)),
    })
}

/// Reads a busy answer: the holder, and the place in the queue.
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

/// Reads the client that did something. If its entry can't be read, returns an empty one.
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

/// Reads the answer to a renewal. Returns the hold, too, if the claim still has the lock.
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

/// Reads the rest of a lease, and the newer run that wants this one to end. An unreadable notice is ignored.
fn held(more: &Value, by: &Value) -> Result<LeaseState, Error> {
    Ok(LeaseState::Held {
        left: left(more)?,
        cancelled_by: entry(by, Who::parse)?.map(Box::new),
    })
}

/// Reads the answer to the short renewal. Returns `None` if the whole script must run. Otherwise the answer
/// must be the requested TTL, because no other script answers that.
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

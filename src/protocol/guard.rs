//! Work elsewhere under a hold: on another host, in a container, wherever the hold's run can't stop it.
//!
//! A guard is admitted by the token of the hold. It has a lease of its own, which never ends after the hold's, and which it extends as the hold is renewed. It renews the hold itself only if its
//! work can't be killed. Once the hold's run is over, the lock is kept until the last guard has left, or its lease has ended.

use std::time::Duration;

use redis::Value;

use super::answer::{LeaseState, Reentry, not_ours, reentry};
use super::claim::Claim;
use super::client::Client;
use super::scripts::{self, GUARD, LEAVE, array, entry, left, unexpected_reply};
use super::token::random_bits;
use super::who::{Who, words};
use crate::redis::call::Call;
use crate::redis::error::{Error, ErrorKind};

/// A guard of a hold.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The hold, by its token.
    claim: Claim,
    /// By this an environment shows that it is of the guard's work.
    pub id: String,
    who: Vec<u8>,
    /// The work hasn't ended when it was killed: its hold must last, even if the hold's run is over.
    insists: bool,
}

/// What became of the wish to guard a hold.
#[derive(Debug)]
pub enum Admitted {
    Guards {
        hold: Reentry,
        /// Rest of the lease, from when the question was sent.
        left: Duration,
        /// The TTL that the hold's run asks for.
        ttl: Duration,
        /// The newer run that wants the hold's run to end.
        cancelled_by: Option<Box<Who>>,
    },
    /// The run is over, or its lock is lost.
    NotHeld(LeaseState),
    /// The lock has as many guards as it may have.
    TooMany,
}

impl Guard {
    /// Makes a guard of this hold, which the server doesn't know yet.
    pub fn new(claim: Claim, who: &Who) -> Result<Self, Error> {
        let mut id = format!("{:032x}", random_bits()?);
        id.truncate(12);
        Ok(Self {
            claim,
            id,
            who: who.to_json(),
            insists: false,
        })
    }

    /// Asks to guard the hold. Repeats a request whose answer was lost: that admits no second guard.
    pub fn admit(&self, client: &mut Client) -> Result<Admitted, Error> {
        let mut admission = client.call(self.extension(), admitted);
        if matches!(&admission, Err(error) if error.kind == ErrorKind::Unreachable) {
            admission = client.call(self.extension(), admitted);
        }
        if admission.is_err() {
            // It may have been admitted all the same.
            let _ = self.leave(client);
        }
        admission
    }

    /// A guard with this id.
    #[cfg(test)]
    pub fn of(claim: Claim, id: &str, who: &Who) -> Self {
        let id = id.to_owned();
        Self {
            id,
            ..Self::new(claim, who).expect("random numbers")
        }
    }

    /// The hold.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Extends the hold itself from now on, as the work hasn't ended when it was killed. Returns whether that is new.
    pub fn insist(&mut self) -> bool {
        !std::mem::replace(&mut self.insists, true)
    }

    /// Extends the leases of several guards to those of their holds, in one round trip; the server notifies us from
    /// then on when one of the locks changes, where it can.
    pub fn extend_all(guards: &[Self], client: &mut Client) -> Result<Vec<LeaseState>, Error> {
        client.with_connection(|connection, within| {
            let locks = guards.iter().map(|guard| guard.claim.lock());
            connection.track_keys(locks.map(|lock| lock.keys.lock.as_slice()))?;
            let calls = guards.iter().map(Self::extension);
            connection.pipeline(calls.collect(), within, extended)
        })
    }

    pub(super) fn extension(&self) -> Call {
        let token = self.claim.token().as_bytes().to_vec();
        let insists = u8::from(self.insists).to_string().into();
        let args = vec![token, self.id.clone().into(), self.who.clone(), insists];
        self.claim.lock().call(&GUARD, args)
    }

    /// The work is over. Safe to repeat; where it fails, the lease ends by itself.
    pub fn leave(&self, client: &mut Client) -> Result<(), Error> {
        client.open_to_release()?;
        client.call(self.leave_call(), |fields| match fields {
            [Value::Int(1)] => Ok(()),
            other => Err(unexpected_reply(other)),
        })
    }

    pub(super) fn leave_call(&self) -> Call {
        let args = self.claim.args([self.id.clone()]);
        self.claim.lock().call(&LEAVE, args)
    }
}

fn admitted(fields: &[Value]) -> Result<Admitted, Error> {
    match fields {
        [Value::Int(1), more, ttl, fence, limit, place, by] => Ok(Admitted::Guards {
            hold: reentry(fence, limit, place)?,
            left: left(more)?,
            ttl: left(ttl)?,
            cancelled_by: entry(by, Who::parse)?.map(Box::new),
        }),
        [Value::Int(3)] => Ok(Admitted::TooMany),
        other => not_ours(other).map(Admitted::NotHeld),
    }
}

/// Reads the answer to [`Guard::extend_all`].
pub(super) fn extended(answer: Value) -> Result<LeaseState, Error> {
    let fields = array(answer)?;
    match admitted(&fields)? {
        Admitted::Guards {
            left, cancelled_by, ..
        } => Ok(LeaseState::Held { left, cancelled_by }),
        Admitted::NotHeld(state) => Ok(state),
        Admitted::TooMany => Err(unexpected_reply(&fields)),
    }
}

/// A living guard, as others see it.
#[derive(Clone, Debug)]
pub struct GuardEntry {
    /// Since when, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    /// Until when it lives at the longest, by the same clock.
    pub until_ms: u64,
    pub who: Who,
}

impl GuardEntry {
    /// Reads `"<until> <id of the hold> <since> <who as JSON>"`; `None` for anything else.
    pub(super) fn parse(entry: &[u8]) -> Option<Self> {
        let ([until, id, since], who) = words(entry)?;
        scripts::is_id(id).then_some(())?;
        Some(Self {
            since_ms: since.parse().ok()?,
            until_ms: until.parse().ok()?,
            who,
        })
    }
}

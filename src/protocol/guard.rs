//! Guards: work elsewhere under a hold (on another host, in a container), where the hold's run can't stop it.
//!
//! The token of the hold admits a guard. A guard has a lease of its own, which never outlasts the hold's. The
//! guard extends that lease whenever the hold is renewed, and renews the hold itself only if its work can't
//! be killed. When the hold's run is over, the lock is kept until the last guard has left, or its lease has
//! ended.

use std::time::Duration;

use redis::Value;

use super::answer::{LeaseState, Reentry, not_ours, reentry};
use super::claim::Claim;
use super::client::Client;
use super::scripts::{self, GUARD, LEAVE, array, entry, left, unexpected_reply};
use super::token::random_bits;
use super::who::{Who, words};
use crate::server::call::Call;
use crate::server::error::{Error, ErrorKind};

/// A guard of a hold.
#[derive(Clone, Debug)]
pub struct Guard {
    /// The hold, by its token.
    claim: Claim,
    /// Public id of the guard: a process belongs to the guard's work if its environment contains this id.
    pub id: String,
    who: Vec<u8>,
    /// The work hasn't ended although it was killed, so the hold must last even if its run is over.
    insists: bool,
}

/// Answer to the request to guard a hold.
#[derive(Debug)]
pub enum Admission {
    Guards {
        hold: Reentry,
        /// Rest of the lease, counted from when the request was sent.
        left: Duration,
        /// The TTL that the hold's run asks for.
        ttl: Duration,
        /// The newer run that wants the hold's run to end.
        cancelled_by: Option<Box<Who>>,
    },
    /// The run is over, or its lock is lost.
    NotHeld(LeaseState),
    /// The lock has the maximum number of guards.
    TooMany,
}

impl Guard {
    /// Returns a new guard of this hold. The server learns of it by [`Self::admit`].
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

    /// Asks to guard the hold. Repeats a request whose answer was lost; the repetition admits no second
    /// guard.
    pub fn admit(&self, client: &mut Client) -> Result<Admission, Error> {
        let mut admission = client.call(self.extension(), admitted);
        if matches!(&admission, Err(error) if error.kind == ErrorKind::Unreachable) {
            admission = client.call(self.extension(), admitted);
        }
        if admission.is_err() {
            // The server may have admitted the guard although the answer was lost.
            let _ = self.leave(client);
        }
        admission
    }

    /// Returns the claim of the hold.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Extends the hold itself from now on, because the work hasn't ended although it was killed. Returns
    /// true the first time.
    pub fn insist(&mut self) -> bool {
        !std::mem::replace(&mut self.insists, true)
    }

    /// Extends the leases of several guards to those of their holds, in one round trip. From then on the
    /// server notifies redlock when one of the locks changes, if it can.
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

    /// Ends the guard, because its work is over. Safe to repeat; if it fails, the lease ends by itself.
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

fn admitted(fields: &[Value]) -> Result<Admission, Error> {
    match fields {
        [Value::Int(1), more, ttl, fence, limit, place, by] => Ok(Admission::Guards {
            hold: reentry(fence, limit, place)?,
            left: left(more)?,
            ttl: left(ttl)?,
            cancelled_by: entry(by, Who::parse)?.map(Box::new),
        }),
        [Value::Int(3)] => Ok(Admission::TooMany),
        other => not_ours(other).map(Admission::NotHeld),
    }
}

/// Reads the answer to [`Guard::extend_all`].
pub(super) fn extended(answer: Value) -> Result<LeaseState, Error> {
    let fields = array(answer)?;
    match admitted(&fields)? {
        Admission::Guards {
            left, cancelled_by, ..
        } => Ok(LeaseState::Held { left, cancelled_by }),
        Admission::NotHeld(state) => Ok(state),
        Admission::TooMany => Err(unexpected_reply(&fields)),
    }
}

/// A live guard, as others see it.
#[derive(Clone, Debug)]
pub struct GuardEntry {
    /// Start of the guard, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    /// End of the guard's lease, by the same clock.
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

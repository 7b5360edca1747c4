//! One attempt to hold a lock, known to the server by its own token: acquire, renew, check, release.
//!
//! How long a lease is, is never taken from what a server says beyond what was asked of it. An acquire
//! and a renewal give exactly the TTL that was asked for, and no number in their answers makes it
//! longer. That more is left, as the work itself can extend a lease, is believed of a check alone: its
//! answer has a shape that no other operation's has, and says at most a year, which is the longest
//! that anybody can ask for. So an answer that was doubled or shifted on its way is at worst a lease
//! that is known too late, and not one that nobody has.

use std::time::Duration;

use redis::Value;
use sha1_smol::Sha1;

use super::connection::{Call, Connection};
use super::scripts::{
    self, ACQUIRE, CHECK, RELEASE, RENEW, ago, array, count, flag, frozen, holder, left,
    lossy_text, milliseconds, number, slot, some_text, unexpected_reply,
};
use super::{Error, ErrorKind, Frozen, Holder, Limit, Lock, Outcome, Who};

/// One attempt to hold a lock.
#[derive(Clone, Debug)]
pub struct Claim {
    lock: Lock,
    token: Vec<u8>,
    request: Request,
    who: Vec<u8>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub ttl: Duration,
    pub limit: Limit,
    pub order: Order,
    /// A success of another run that is younger than this is enough.
    pub once_per: Duration,
    /// A lock without an expiry gets one.
    pub repair_ttl: bool,
}

/// How to wait in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Order {
    /// Goes before lower ones.
    pub priority: i32,
    /// The newest goes first.
    pub lifo: bool,
    pub supersede: Supersede,
    /// Its place in an order from outside: it goes neither before nor after a higher one.
    pub number: Option<u64>,
}

/// Whom a new waiter has give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supersede {
    #[default]
    Nobody,
    /// Those who have waited longer.
    Waiters,
    /// And those who hold the lock.
    HoldersToo,
}

/// A place in the queue, or the wish for one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The number that was given to us, which keeps our place when the entry is gone.
    pub ticket: Option<u64>,
    /// No message reaches us; we look by ourselves.
    pub polls: bool,
}

/// The answer to [`Claim::acquire`].
#[derive(Clone, Debug)]
pub enum Acquired {
    /// Ours.
    Held {
        fence: u64,
        slot: u32,
        /// How long ago a run succeeded under this name; `None`: never, or too long ago.
        success: Option<Duration>,
    },
    Busy(Busy),
    /// This newer run has told us to give up.
    Superseded(Box<Who>),
    /// A run succeeded so long ago, which is enough.
    Done(Duration),
}

/// Somebody else has the lock.
#[derive(Clone, Debug)]
pub struct Busy {
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// How many wait before us.
    pub ahead: u32,
    /// Our number, if we are in the queue.
    pub ticket: Option<u64>,
    /// No message reaches us.
    pub polls: bool,
    /// When a lease ends (`None`: never, the key has no expiry).
    pub left: Option<Duration>,
    /// How many hold it.
    pub holders: u32,
    /// The id of the holder whose lease ends first; empty when the lock is just being handed on.
    pub id: String,
    /// That holder; `None`: another client.
    pub holder: Option<Holder>,
    /// Nobody new is let in.
    pub frozen: Option<Frozen>,
    /// The lock had no expiry, and has got one.
    pub repaired: bool,
    /// It was granted, and isn't claimed yet: one that stands still may have it, so that all in the
    /// queue look when that short lease ends.
    pub granted: bool,
}

/// The answer to [`Claim::renew`] and [`Claim::check_all`]; that there was no answer is an
/// [`Error`], a third thing.
#[derive(Clone, Debug)]
pub enum LeaseState {
    /// Still ours.
    Held {
        /// For so long, from when the question was sent.
        left: Duration,
        /// Who wants the run to end.
        cancelled_by: Option<Box<Who>>,
    },
    /// Our own job has given it back.
    Released,
    /// Definitely not ours any more.
    Lost(Loss),
}

/// What [`Claim::reuse`] found.
#[derive(Clone, Copy, Debug)]
pub struct Reentry {
    pub fence: u64,
    pub limit: Limit,
    pub slot: u32,
}

/// How a lock was lost, as far as Redis knows.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// Who freed it with `release --force`.
    pub forced_by: Option<Who>,
    /// Who holds it now.
    pub holder: Option<Holder>,
}

/// How a lock, or a place in its queue, is given back.
#[derive(Clone, Debug)]
pub enum ReleaseMode {
    /// Nothing was done under it.
    Unused,
    /// By its own job; a run that watches over it is to know.
    ByJob,
    /// The run is over.
    Finished {
        outcome: Outcome,
        /// The lock stays ours for so long from when we got it.
        keep_for: Duration,
    },
}

/// The answer to [`Claim::release`].
#[derive(Clone, Debug)]
pub enum Release {
    Released,
    /// It stays ours for so long.
    Kept(Duration),
    /// Our own job had given it back before.
    Returned,
    /// It wasn't ours (any more).
    NotOurs(Loss),
}

/// After this time the answer to a release is slow: what a signal repeats comes within it, and has not
/// to be taken for another request to end.
const SOON: Duration = Duration::from_millis(500);

impl Claim {
    /// A claim with a fresh token: 128 random bits, then the host and process, so that
    /// `redis-cli GET` names the owner.
    pub fn new(lock: Lock, request: Request, who: &Who) -> Result<Self, Error> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            Error::new(ErrorKind::Internal, format!("no random numbers: {error}"))
        })?;
        let token = format!(
            "{:032x}:{}:{}",
            u128::from_be_bytes(random),
            who.host,
            who.pid
        );
        Ok(Self {
            lock,
            token: token.into(),
            request,
            who: who.to_json(),
        })
    }

    /// A claim that was made before, by its token; it can be renewed and released.
    pub fn resume(lock: Lock, token: Vec<u8>, ttl: Duration) -> Self {
        Self {
            lock,
            token,
            request: Request {
                ttl,
                limit: Limit::EXCLUSIVE,
                order: Order::default(),
                once_per: Duration::ZERO,
                repair_ttl: false,
            },
            who: Vec::new(),
        }
    }

    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The token; for the child's environment alone.
    pub fn token(&self) -> &[u8] {
        &self.token
    }

    pub fn ttl(&self) -> Duration {
        self.request.ttl
    }

    /// The name that others have for the token.
    pub fn id(&self) -> String {
        id(&self.token)
    }

    /// The channel on which this claim hears of its turn.
    pub fn channel(&self) -> Vec<u8> {
        self.lock.channel_of(&self.id())
    }

    /// The call that takes the lock, or waits for it in the queue. Its answer goes to
    /// [`Self::acquired`].
    pub fn acquire(&self, place: Option<&Place>) -> Call {
        let how = match place {
            None => "",
            Some(Place { polls: true, .. }) => "poll",
            Some(Place { polls: false, .. }) => "listen",
        };
        let ticket = place.and_then(|place| place.ticket);
        let Request {
            ttl,
            limit,
            order,
            once_per,
            repair_ttl,
        } = self.request;
        let or_empty = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
        let supersede = match order.supersede {
            Supersede::Nobody => "0",
            Supersede::Waiters => "1",
            Supersede::HoldersToo => "2",
        };
        let args = vec![
            self.token.clone(),
            ttl.as_millis().to_string().into(),
            limit.number().to_string().into(),
            self.who.clone(),
            how.into(),
            or_empty(ticket).into(),
            order.priority.to_string().into(),
            if order.lifo { "lifo" } else { "fifo" }.into(),
            supersede.into(),
            or_empty(order.number).into(),
            once_per.as_millis().to_string().into(),
            u8::from(repair_ttl).to_string().into(),
        ];
        self.lock.call(&ACQUIRE, args)
    }

    /// Reads the answer to [`Self::acquire`].
    pub fn acquired(answer: Value) -> Result<Acquired, Error> {
        let fields = array(answer)?;
        Ok(match fields.as_slice() {
            [Value::Int(1), fence, place, success] => Acquired::Held {
                fence: number(fence)?,
                slot: slot(place)?,
                success: ago(success)?,
            },
            [
                Value::Int(0),
                now_ms,
                ahead,
                ticket,
                polls,
                left,
                holders,
                id,
                entry,
                freeze,
                repaired,
                granted,
            ] => Acquired::Busy(Busy {
                now_ms: number(now_ms)?,
                ahead: count(ahead)?,
                ticket: match some_text(ticket)? {
                    None | Some(b"") => None,
                    Some(_) => Some(number(ticket)?),
                },
                polls: flag(polls)?,
                left: milliseconds(left)?,
                holders: count(holders)?,
                id: some_text(id)?.map_or(String::new(), |_| lossy_text(id)),
                holder: holder(entry)?,
                frozen: frozen(freeze)?,
                repaired: flag(repaired)?,
                granted: flag(granted)?,
            }),
            [Value::Int(3), since] => Acquired::Done(ago(since)?.unwrap_or_default()),
            [Value::Int(2), by] => {
                Acquired::Superseded(Box::new(scripts::who(by)?.unwrap_or_default()))
            }
            _ => return Err(unexpected_reply(&fields)),
        })
    }

    /// The call that lengthens the lease. Its answer goes to [`Self::standing`].
    pub fn renew(&self) -> Call {
        self.renewal(None, false)
    }

    /// `instance` is from now on the process whose end means that nobody uses the lock any more;
    /// `told`: whoever watches the lock is to look how long it lasts.
    fn renewal(&self, instance: Option<&str>, told: bool) -> Call {
        let instance = instance.map_or(String::new(), |instance| format!("={instance}"));
        let args = vec![
            self.token.clone(),
            self.request.ttl.as_millis().to_string().into(),
            instance.into(),
            u8::from(told).to_string().into(),
        ];
        self.lock.call(&RENEW, args)
    }

    /// Reads the answer to [`Self::renew`].
    pub fn standing(answer: Value) -> Result<LeaseState, Error> {
        let fields = array(answer)?;
        match fields.as_slice() {
            [Value::Int(1), more, fence, limit, place] => {
                number(fence)?;
                count(limit)?;
                slot(place)?;
                Ok(LeaseState::Held {
                    left: left(more)?,
                    cancelled_by: None,
                })
            }
            other => not_ours(other),
        }
    }

    /// Reads the answer to a check.
    fn checked(answer: Value) -> Result<LeaseState, Error> {
        let fields = array(answer)?;
        match fields.as_slice() {
            // A word that can't be read is none.
            [Value::Int(1), more @ Value::Int(_)] => Ok(LeaseState::Held {
                left: left(more)?,
                cancelled_by: None,
            }),
            [Value::Int(1), more @ Value::Int(_), by] => Ok(LeaseState::Held {
                left: left(more)?,
                cancelled_by: scripts::who(by)?.map(Box::new),
            }),
            other => not_ours(other),
        }
    }

    /// Lengthens the leases of several claims in one round trip; waits at most `within` for all
    /// answers.
    pub fn renew_all(
        claims: &[Self],
        link: &mut Connection,
        within: Duration,
    ) -> Result<Vec<LeaseState>, Error> {
        let calls = claims.iter().map(Self::renew).collect();
        link.pipeline(calls, within, Self::standing)
    }

    /// The same on behalf of those who hold them, who are to hear of it.
    pub fn extend_all(
        claims: &[Self],
        link: &mut Connection,
        within: Duration,
    ) -> Result<Vec<LeaseState>, Error> {
        let calls = claims.iter().map(|claim| claim.renewal(None, true));
        link.pipeline(calls.collect(), within, Self::standing)
    }

    /// Says which processes use the lock from now on, and renews it.
    pub fn hand_to(
        &self,
        instance: &str,
        link: &mut Connection,
        within: Duration,
    ) -> Result<LeaseState, Error> {
        Self::standing(link.call(self.renewal(Some(instance), false), within)?)
    }

    /// Renews what another run took, to use it as well; `None` when it isn't held (any more).
    pub fn reuse(&self, link: &mut Connection, within: Duration) -> Result<Option<Reentry>, Error> {
        let fields = array(link.call(self.renewal(Some(""), false), within)?)?;
        if let [Value::Int(1), more, fence, limit, place] = fields.as_slice() {
            left(more)?;
            return Ok(Some(Reentry {
                fence: number(fence)?,
                limit: Limit::of(count(limit)?),
                slot: slot(place)?,
            }));
        }
        not_ours(&fields).map(|_| None)
    }

    /// Whether several claims are still ours, in one round trip; changes nothing. From then on the
    /// server tells of changes, where it can.
    pub fn check_all(
        claims: &[Self],
        link: &mut Connection,
        within: Duration,
    ) -> Result<Vec<LeaseState>, Error> {
        link.track_keys(claims.iter().map(|claim| claim.lock.keys.lock.as_slice()))?;
        let call = |claim: &Self| {
            let ttl = claim.request.ttl.as_millis().to_string();
            let args = vec![claim.token.clone(), ttl.into()];
            claim.lock.call(&CHECK, args)
        };
        link.pipeline(claims.iter().map(call).collect(), within, Self::checked)
    }

    /// Gives the lock, or the place in the queue, back; waits at most `within` for the answer, and calls
    /// `is_slow` when that takes longer than a moment. Safe to repeat.
    pub fn release(
        &self,
        link: &mut Connection,
        mode: &ReleaseMode,
        is_slow: impl FnOnce(),
        within: Duration,
    ) -> Result<Release, Error> {
        let (early, how, keep) = match mode {
            ReleaseMode::Unused => ("0", String::new(), Duration::ZERO),
            ReleaseMode::ByJob => ("1", Outcome::Released.to_text(), Duration::ZERO),
            ReleaseMode::Finished { outcome, keep_for } => ("0", outcome.to_text(), *keep_for),
        };
        let args = vec![
            self.token.clone(),
            early.into(),
            how.into(),
            keep.as_millis().to_string().into(),
        ];
        let call = self.lock.call(&RELEASE, args);
        let fields = array(link.call_with_notice(call, SOON, is_slow, within)?)?;
        Ok(match fields.as_slice() {
            [Value::Int(1)] => Release::Released,
            [Value::Int(3), more] => Release::Kept(left(more)?),
            [Value::Int(2)] => Release::Returned,
            [Value::Int(0), by, entry] => Release::NotOurs(loss(by, entry)?),
            _ => return Err(unexpected_reply(&fields)),
        })
    }
}

/// The longest token of anybody's; ours have about a hundred bytes.
const LONGEST_TOKEN: usize = 1024;

/// What others call a token: the start of its SHA-1, which doesn't give it away. One that is longer
/// than any is nobody's, and has no name.
pub fn id(token: &[u8]) -> String {
    if token.len() > LONGEST_TOKEN {
        return String::new();
    }
    let mut digits = Sha1::from(token).digest().to_string();
    digits.truncate(12);
    digits
}

/// Reads what is said of a token that doesn't hold the lock.
fn not_ours(fields: &[Value]) -> Result<LeaseState, Error> {
    match fields {
        [Value::Int(2)] => Ok(LeaseState::Released),
        [Value::Int(0), by, entry] => Ok(LeaseState::Lost(loss(by, entry)?)),
        other => Err(unexpected_reply(other)),
    }
}

fn loss(by: &Value, entry: &Value) -> Result<Loss, Error> {
    Ok(Loss {
        forced_by: scripts::who(by)?,
        holder: scripts::holder(entry)?,
    })
}

//! One attempt to hold a lock, known to the server by its own token: acquire, renew, check, release.
//!
//! A server's answer never makes a lease longer than what was asked for. An acquire and a renewal give
//! exactly the requested TTL, whatever numbers their answers contain. The work itself can extend a lease,
//! but that more is left is believed of a check alone: its answer has a shape that no other operation's
//! has, and is limited to a year, the longest TTL that can be requested. So if an answer is doubled or
//! shifted on its way, we learn of a lease too late, but never believe in one that the server doesn't have.

use std::iter;
use std::thread;
use std::time::{Duration, Instant};

use super::answer::{LeaseState, Reentry, Released};
use super::answer::{checked, prolonged, released, renewed, renewed_hold};
use super::client::{Client, Looked};
use super::history::HoldOutcome;
use super::lock::Lock;
use super::scripts::{ACQUIRE, CHECK, FREE, KEEP, PROLONG, RELEASE, RENEW, SHARED_VALUES, TAKE};
use super::token::Token;
use super::who::{Limit, Who};
use crate::redis::call::Call;
use crate::redis::connection::Connection;
use crate::redis::error::{Error, ErrorKind};

/// One attempt to hold a lock.
#[derive(Clone, Debug)]
pub struct Claim {
    lock: Lock,
    token: Token,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The client that asks, as others see it.
    pub who: Who,
    pub ttl: Duration,
    pub limit: Limit,
    pub queue: QueueOptions,
    /// A success of another run that is younger than this is enough.
    pub once_per: Duration,
    /// One with this key is enough.
    pub once_key: Option<String>,
    /// A lock without an expiry gets one.
    pub repair_ttl: bool,
}

/// How to wait in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    pub supersede: Supersede,
    /// Its place in an order from outside: it goes neither before nor after a higher one.
    pub number: Option<u64>,
    /// It waits behind fewer waiters than these, or not at all.
    pub most_waiting: Option<u32>,
}

/// Which other runs a new waiter makes give up; the script takes the number of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supersede {
    #[default]
    Nobody = 0,
    /// The waiters that came before.
    Waiters = 1,
    /// And the holders.
    HoldersToo = 2,
}

/// A place in the queue, or the wish for one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The number that was given to us, which keeps our place when the entry is gone.
    pub ticket: Option<u64>,
    /// No message reaches us, so we poll.
    pub polls: bool,
}

/// What a request needs of the server besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// A waiter listens to a channel of the keys' hash slot.
    pub sharded: bool,
    /// Replicas have to have the grant before it counts: the first renewal confirms it.
    pub replicated: bool,
}

/// How a lock, or a place in its queue, is released.
#[derive(Clone, Debug)]
pub enum ReleaseMode {
    /// Nothing was done under it.
    Unused {
        /// A request for it may still arrive, because it had no answer.
        is_pending: bool,
    },
    /// By its own job; a run that watches over it is to know.
    ByJob,
    /// The run is over.
    Finished {
        outcome: HoldOutcome,
        /// The lock stays ours for this duration from when we got it.
        keep_for: Duration,
    },
}

impl ReleaseMode {
    /// Nothing was done under a lock, which the server may be asked for again.
    pub const UNUSED: Self = Self::Unused { is_pending: true };
}

/// After this time the answer to a release is slow: what a signal repeats comes within it, and has not
/// to be taken for another request to end.
const SLOW_ANSWER: Duration = Duration::from_millis(500);

/// How long the server remembers a holder whose lease has ended (`RETENTION` in `lib/lock.lua`).
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// A renewal after this time looks at everything again, and refreshes what the server keeps for days.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// For a lease that is longer, the short scripts don't do: the index of the names is to be kept up to date as well.
const LONGEST_PROLONGED: Duration = Duration::from_secs(24 * 3600);

/// Usual time for another server to take over: sentinels take 3 to 4 s with a `down-after-milliseconds` of 2 s.
pub const FAILOVER: Duration = Duration::from_secs(5);

/// The pause before the next try to release a lock.
const AGAIN: Duration = Duration::from_millis(50);

/// Each pause is twice as long as the one before, up to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

impl Claim {
    /// A claim with a fresh token for a process.
    pub fn new(lock: Lock, who: &Who) -> Result<Self, Error> {
        let token = Token::new(who)?;
        Ok(Self { lock, token })
    }

    /// A claim that was made before, by its token.
    pub fn resume(lock: Lock, token: Token) -> Self {
        Self { lock, token }
    }

    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The name that others have for the token.
    pub fn id(&self) -> String {
        self.token.id()
    }

    /// Subscribes to the channel on which this claim is notified of its turn, with the next
    /// [`Self::acquire`]: so no message can fall between that one's answer and the subscription.
    pub fn subscribe(&self, client: &mut Client) -> Result<(), Error> {
        let channel = self.lock.keys.of(&self.id());
        client.with_connection(|connection, _| connection.subscribe(&channel))
    }

    /// Asks for the lock, or for a place in its queue. The answer comes in as
    /// [`super::Incoming::Acquired`]; how long that may take.
    pub fn acquire(
        &self,
        client: &mut Client,
        request: &Request,
        place: Option<&Place>,
    ) -> Result<Duration, Error> {
        let needs = Needs {
            sharded: client.is_sharded(),
            replicated: client.deployment.replication().is_some(),
        };
        let call = self.acquire_call(request, place, needs);
        if takes(request, place, needs) {
            let short = call.of(&TAKE);
            client.whole = Some(call);
            return client.send(short);
        }
        client.send(call)
    }

    pub(super) fn acquire_call(
        &self,
        request: &Request,
        place: Option<&Place>,
        needs: Needs,
    ) -> Call {
        let how = match place {
            None => "",
            Some(Place { polls: true, .. }) => "poll",
            Some(_) if needs.sharded => "shard",
            Some(Place { polls: false, .. }) => "listen",
        };
        let ticket = place.and_then(|place| place.ticket);
        let queue = &request.queue;
        let once = request.once_key.as_ref().map(|key| format!("={key}"));
        let or_empty = |number: Option<u64>| number.map_or(String::new(), |n| n.to_string());
        let mut args = vec![
            self.token.as_bytes().to_vec(),
            ms(request.ttl).into(),
            request.limit.number().to_string().into(),
            request.who.to_json(),
            how.into(),
            or_empty(ticket).into(),
            (queue.supersede as u8).to_string().into(),
            or_empty(queue.number).into(),
            once.unwrap_or_else(|| ms(request.once_per)).into(),
            u8::from(request.repair_ttl).to_string().into(),
            if needs.replicated { "1" } else { "" }.into(),
            or_empty(queue.most_waiting.map(u64::from)).into(),
        ];
        // Arguments that this run doesn't need are left out at the end.
        while args.pop_if(|text| text.is_empty()).is_some() {}
        self.lock.call(&ACQUIRE, args)
    }

    /// Arguments of a call: the token and these.
    pub(super) fn args<const N: usize>(&self, more: [String; N]) -> Vec<Vec<u8>> {
        let token = self.token.as_bytes().to_vec();
        let more = more.map(String::into_bytes);
        iter::once(token).chain(more).collect()
    }

    /// With `notify`, the run that renews the lock checks how long it lasts.
    pub(super) fn renewal(&self, ttl: Duration, notify: bool) -> Call {
        let notify = u8::from(notify).to_string();
        self.lock.call(&RENEW, self.args([ms(ttl), notify]))
    }

    /// Extends the leases of several claims to `ttl` from now. Also says whether the server notifies us
    /// from now on when another client changes one of the locks; [`Self::check_all`] asks for that. A
    /// single one usually takes one round trip, for both.
    pub fn renew_all(
        claims: &[Self],
        client: &mut Client,
        ttl: Duration,
    ) -> Result<(Vec<LeaseState>, bool), Error> {
        let mut looked = client.looked.take();
        let renewed = client.with_connection(|connection, within| {
            let renewed = if let [claim] = claims {
                let renewed = claim.renew_alone(connection, &mut looked, ttl, within);
                renewed.map(|(state, tracked)| (vec![state], tracked))
            } else {
                let calls = claims.iter().map(|claim| claim.renewal(ttl, false));
                let states = connection.pipeline(calls.collect(), within, renewed);
                states.map(|states| (states, false))
            };
            match renewed {
                // Nothing that the replicas would confirm is known of the node that the keys go to.
                Err(error) if error.is_migration() && !connection.is_replicated() => {
                    for claim in claims {
                        if !connection.keep(claim.keeping(ttl), within)? {
                            return Err(error);
                        }
                    }
                    // All else that a renewal or a check finds can't be asked until that is over.
                    let kept = LeaseState::Held {
                        left: ttl,
                        cancelled_by: None,
                    };
                    Ok((vec![kept; claims.len()], true))
                }
                renewed => renewed,
            }
        })?;
        client.looked = looked;
        Ok(renewed)
    }

    /// Extends the lease of this claim. [`RENEW`] looks at everything: first over each connection, then once an hour, and
    /// whenever [`PROLONG`] finds that more may be to do. Where replicas confirm, each renewal is one that they count.
    fn renew_alone(
        &self,
        connection: &mut Connection,
        looked: &mut Option<Looked>,
        ttl: Duration,
        within: Duration,
    ) -> Result<(LeaseState, bool), Error> {
        let (key, now) = (&self.lock.keys.lock, Instant::now());
        let mut values = vec![self.token.as_bytes().to_vec()];
        values.extend(SHARED_VALUES.map(<[u8]>::to_vec));
        let may_prolong = ttl <= LONGEST_PROLONGED && !connection.is_replicated();
        let mut last = looked.take().filter(|last| {
            may_prolong && last.token == self.token && now.duration_since(last.at) < LOOK_AGAIN
        });
        if let Some(plain) = last.as_mut().filter(|last| last.is_plain) {
            let call = self.prolonging(ttl);
            let (answer, tracked) = connection.call_tracked(call, key, values.clone(), within)?;
            if let Some(state) = prolonged(&answer, ttl)? {
                *looked = last;
                return Ok((state, tracked));
            }
            (plain.is_plain, plain.at) = (false, now);
        }
        let call = self.renewal(ttl, false);
        let (answer, tracked) = connection.call_tracked(call, key, values, within)?;
        let first = || Looked {
            token: self.token.clone(),
            at: now,
            is_plain: true,
        };
        *looked = last.or_else(|| may_prolong.then(first));
        Ok((renewed(answer)?, tracked))
    }

    /// A renewal that extends the lease where that is all there is to do.
    pub(super) fn prolonging(&self, ttl: Duration) -> Call {
        let keys = &self.lock.keys;
        Call {
            script: &PROLONG,
            keys: vec![
                keys.lock.clone(),
                keys.of("meta"),
                self.lock.notice("cancelled", &self.id()),
            ],
            args: self.args([ms(ttl), ms(ttl + REMEMBERED)]),
        }
    }

    /// A renewal that needs the lock's key alone.
    fn keeping(&self, ttl: Duration) -> Call {
        Call {
            args: self.args([ms(ttl)]),
            ..self.lock.call(&KEEP, Vec::new())
        }
    }

    /// Extends the leases of several claims on behalf of the runs that hold them, which are notified.
    pub fn extend_all(
        claims: &[Self],
        client: &mut Client,
        ttl: Duration,
    ) -> Result<Vec<LeaseState>, Error> {
        client.follow_locks();
        let calls = claims.iter().map(|claim| claim.renewal(ttl, true));
        client.with_connection(|connection, within| {
            connection.pipeline(calls.collect(), within, renewed)
        })
    }

    /// Renews what another run took, to use it as well; `None` when it isn't held (any more).
    pub fn reenter(&self, client: &mut Client, ttl: Duration) -> Result<Option<Reentry>, Error> {
        client.follow_locks();
        let (_, hold) = client.call(self.renewal(ttl, false), renewed_hold)?;
        Ok(hold)
    }

    /// Whether several claims, whose leases are `ttl` long by each renewal, are still ours, in one
    /// round trip; changes nothing. From then on the server notifies us of changes, where it can.
    pub fn check_all(
        claims: &[Self],
        client: &mut Client,
        ttl: Duration,
    ) -> Result<Vec<LeaseState>, Error> {
        let call = |claim: &Self| claim.check_call(ttl);
        client.with_connection(|connection, within| {
            connection.track_keys(claims.iter().map(|claim| claim.lock.keys.lock.as_slice()))?;
            connection.pipeline(claims.iter().map(call).collect(), within, checked)
        })
    }

    pub(super) fn check_call(&self, ttl: Duration) -> Call {
        self.lock.call(&CHECK, self.args([ms(ttl)]))
    }

    /// Releases the lock, or the place in the queue; calls `is_slow` when the answer takes longer
    /// than a moment. Safe to repeat.
    pub fn release(
        &self,
        client: &mut Client,
        mode: &ReleaseMode,
        is_slow: impl FnOnce(),
    ) -> Result<Released, Error> {
        client.open_to_release()?;
        client.with_connection(|connection, within| {
            self.release_over(connection, mode, true, is_slow, within)
        })
    }

    /// Releases the lock. Unless that is hurried, the short script is tried first.
    fn release_over(
        &self,
        connection: &mut Connection,
        mode: &ReleaseMode,
        is_hurried: bool,
        is_slow: impl FnOnce(),
        within: Duration,
    ) -> Result<Released, Error> {
        let call = self.release_call(mode);
        let short = (!is_hurried && self.frees(mode)).then(|| call.of(&FREE));
        released(connection.release(short, call, SLOW_ANSWER, is_slow, within)?)
    }

    pub(super) fn release_call(&self, mode: &ReleaseMode) -> Call {
        let (by_job, outcome, keep_for) = match mode {
            ReleaseMode::Unused { .. } => ("0", String::new(), Duration::ZERO),
            ReleaseMode::ByJob => ("1", HoldOutcome::Released.to_text(), Duration::ZERO),
            ReleaseMode::Finished { outcome, keep_for } => ("0", outcome.to_text(), *keep_for),
        };
        let mut args = self.args([by_job.into(), outcome, ms(keep_for)]);
        if let ReleaseMode::Unused { is_pending: false } = mode {
            args.push(b"1".to_vec());
        }
        self.lock.call(&RELEASE, args)
    }

    /// Returns true if [`FREE`] may do for a release: a run is over that has ended by itself, and doesn't keep its lock.
    pub(super) fn frees(&self, mode: &ReleaseMode) -> bool {
        let ReleaseMode::Finished { outcome, keep_for } = mode else {
            return false;
        };
        matches!(outcome, HoldOutcome::Status(_)) && keep_for.is_zero() && self.lock.history > 0
    }

    /// The same, and once more over a fresh connection where that fails over the one that there was,
    /// which may be broken; `is_slow` is also called before that, as connecting takes its time.
    ///
    /// If another server may take over, it is repeated at whichever has the locks: for the time of `patience` while none can
    /// be reached, and for no longer than [`FAILOVER`] until all replicas have it. Also says whether they have: otherwise a
    /// replica that doesn't know of it may become the primary, or be that already.
    ///
    /// All of it takes no longer than `within`, where that is given: what was sent frees the lock also when the answer
    /// isn't waited for.
    pub fn release_or_retry(
        &self,
        client: &mut Client,
        mode: &ReleaseMode,
        patience: Duration,
        within: Option<Duration>,
        is_slow: impl Fn(),
    ) -> Result<(Released, bool), Error> {
        let patience = within.map_or(patience, |within| patience.min(within));
        // A connection that there is may be broken: then half of the time is for another one.
        let (began, mut may_be_broken) = (Instant::now(), client.is_open());
        let mut share = if may_be_broken { 2 } else { 1 };
        let (mut pause, mut is_repeated, mut acknowledged) = (AGAIN, false, None);
        let released = loop {
            if let Some(all) = within {
                client.limit_to(all / share);
            }
            let mut tried = self.try_release(client, mode, within.is_some(), &is_slow);
            // An earlier call without an answer did it.
            if let (true, ReleaseMode::ByJob, Ok((released @ Released::Before, _))) =
                (is_repeated, mode, &mut tried)
            {
                *released = Released::Now;
            }
            // Of what is left half is for connecting, and half for the answer.
            (is_repeated, share) = (true, 4);
            let (answer, patience) = match tried {
                Ok((released, true)) => break Ok((acknowledged.unwrap_or(released), true)),
                Ok((released, false)) => {
                    // The next primary may not know the hold.
                    if !matches!(released, Released::NotOurs(_)) {
                        acknowledged.get_or_insert(released.clone());
                    }
                    (Ok(released), patience.min(FAILOVER))
                }
                Err(_) if std::mem::take(&mut may_be_broken) => {
                    is_slow();
                    continue;
                }
                // Usually that is over in less time than a waiter would need to find the lock free.
                Err(error) if error.kind == ErrorKind::Moving => {
                    (Err(error), patience.max(client.longest(1)))
                }
                Err(error) if client.deployment.may_fail_over() && error.kind.may_pass() => {
                    (Err(error), patience)
                }
                Err(error) => (Err(error), Duration::ZERO),
            };
            if began.elapsed() >= patience {
                let released = acknowledged.map_or(answer, Ok);
                break released.map(|released| (released, false));
            }
            is_slow();
            thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 2);
            client.follow_locks();
        };
        client.lift_limit();
        released
    }

    /// Releases the lock once. Returns also whether all replicas that must have that have it.
    fn try_release(
        &self,
        client: &mut Client,
        mode: &ReleaseMode,
        is_hurried: bool,
        is_slow: impl FnOnce(),
    ) -> Result<(Released, bool), Error> {
        client.open_to_release()?;
        client.with_connection(|connection, within| {
            let released = self.release_over(connection, mode, is_hurried, is_slow, within)?;
            Ok((released, connection.is_followed(within)))
        })
    }
}

/// Returns true if [`TAKE`] may do for a first request: it wants nothing but the lock, for no longer than a day.
pub(super) fn takes(request: &Request, place: Option<&Place>, needs: Needs) -> bool {
    let Request { limit, queue, .. } = request;
    place.is_none()
        && !needs.replicated
        && (*limit, queue.supersede, queue.number) == (Limit::EXCLUSIVE, Supersede::Nobody, None)
        && request.once_key.is_none()
        && request.once_per.is_zero()
        && request.ttl <= LONGEST_PROLONGED
}

/// A duration as an argument.
fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}

#[cfg(test)]
mod tests;

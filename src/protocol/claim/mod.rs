//! An attempt to hold a lock, which the server knows by its token: acquire, renew, check, release.
//!
//! A server's answer never makes a lease longer than requested. An acquire and a renewal give exactly the
//! requested TTL, whatever numbers their answers contain. The work itself can extend a lease, but redlock
//! trusts only a check that more is left. A check's answer has a shape of its own, and is limited to a year,
//! the longest TTL that can be requested. So if an answer is doubled or shifted on its way, redlock may learn
//! of a lease too late, but never trusts one that the server doesn't have.

use std::iter;
use std::thread;
use std::time::{Duration, Instant};

use super::answer::{LeaseState, Reentry, Released};
use super::answer::{checked, prolonged, released, renewed, renewed_hold};
use super::client::{Client, LastRenewal};
use super::history::HoldOutcome;
use super::lock::Lock;
use super::scripts::{ACQUIRE, CHECK, FREE, KEEP, PROLONG, RELEASE, RENEW, SHARED_VALUES, TAKE};
use super::token::Token;
use super::who::{Limit, Who};
use crate::server::call::Call;
use crate::server::connection::Connection;
use crate::server::error::{Error, ErrorKind};

/// An attempt to hold a lock.
#[derive(Clone, Debug)]
pub struct Claim {
    lock: Lock,
    token: Token,
}

/// A request for a lock.
#[derive(Clone, Debug)]
pub struct Request {
    /// The requesting client, as others see it.
    pub who: Who,
    pub ttl: Duration,
    pub limit: Limit,
    pub queue: QueueOptions,
    /// Maximum age of another run's success that makes this run needless; zero for none.
    pub once_per: Duration,
    /// Key of `--once`: any success with this key makes this run needless.
    pub once_key: Option<String>,
    /// Gives a lock without an expiry one.
    pub repair_ttl: bool,
}

/// Behaviour of a run in the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions {
    pub supersede: Supersede,
    /// Number in an outside order (`--seq`): the run gives up if a higher number has been there.
    pub number: Option<u64>,
    /// Number of live waiters at which the run gives up instead of joining the queue.
    pub most_waiting: Option<u32>,
}

/// Runs that a new waiter makes give up; the scripts get the number of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supersede {
    #[default]
    Nobody = 0,
    /// The waiters that came before.
    Waiters = 1,
    /// The waiters that came before, and the holders.
    HoldersToo = 2,
}

/// A place in the queue, or the wish for one.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueuePlace {
    /// Number of the place, which keeps it even if the server has dropped the entry.
    pub ticket: Option<u64>,
    /// No message reaches this waiter, so it polls.
    pub polls: bool,
}

/// Properties of the server that change a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerTraits {
    /// A waiter listens to a channel of the keys' hash slot.
    pub sharded: bool,
    /// A grant is valid only when replicas have it: the first renewal confirms it.
    pub replicated: bool,
}

/// Way in which a lock, or a place in its queue, is released.
#[derive(Clone, Debug)]
pub enum ReleaseMode {
    /// The run never started its command.
    Unused {
        /// A request for the lock may still arrive, because it had no answer.
        is_pending: bool,
    },
    /// Released by the job itself; a supervising run must learn of it.
    ByJob,
    /// The run is over.
    Finished {
        outcome: HoldOutcome,
        /// The run keeps the lock for this duration, counted from its grant.
        keep_for: Duration,
    },
}

impl ReleaseMode {
    /// Releases a lock without any use, although a request for it may still arrive.
    pub const UNUSED: Self = Self::Unused { is_pending: true };
}

/// Time after which the answer to a release is slow. A signal is often sent twice, within this time, and the
/// second one must not pass for another request to end.
const SLOW_ANSWER: Duration = Duration::from_millis(500);

/// Time for which the server remembers a holder whose lease has ended (`RETENTION` in `lib/lock.lua`).
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Time after which a renewal checks everything again, and refreshes the keys that the server keeps for days.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// Longest lease for the short scripts, because they don't keep the index of the names up to date.
const LONGEST_PROLONGED: Duration = Duration::from_secs(24 * 3600);

/// Usual time for another server to take over: sentinels take 3 to 4 s with a `down-after-milliseconds` of 2 s.
pub const FAILOVER: Duration = Duration::from_secs(5);

/// Pause before the next try to release a lock.
const AGAIN: Duration = Duration::from_millis(50);

/// Longest pause between tries; each is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

impl Claim {
    /// Returns a claim with a fresh token.
    pub fn new(lock: Lock, who: &Who) -> Result<Self, Error> {
        let token = Token::new(who)?;
        Ok(Self { lock, token })
    }

    /// Returns an earlier claim, by its token.
    pub fn resume(lock: Lock, token: Token) -> Self {
        Self { lock, token }
    }

    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Returns the public id of the token.
    pub fn id(&self) -> String {
        self.token.id()
    }

    /// Subscribes, with the next [`Self::acquire`], to the channel that notifies this claim of its turn. So
    /// no message can be lost between that answer and the subscription.
    pub fn subscribe(&self, client: &mut Client) -> Result<(), Error> {
        let channel = self.lock.keys.of(&self.id());
        client.with_connection(|connection, _| connection.subscribe(&channel))
    }

    /// Asks for the lock, or for a place in its queue. The answer comes in as [`super::Incoming::Acquired`].
    /// Returns how long it may take.
    pub fn acquire(
        &self,
        client: &mut Client,
        request: &Request,
        place: Option<&QueuePlace>,
    ) -> Result<Duration, Error> {
        let needs = ServerTraits {
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
        place: Option<&QueuePlace>,
        needs: ServerTraits,
    ) -> Call {
        let how = match place {
            None => "",
            Some(QueuePlace { polls: true, .. }) => "poll",
            Some(_) if needs.sharded => "shard",
            Some(QueuePlace { polls: false, .. }) => "listen",
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
        // Omits the empty arguments at the end.
        while args.pop_if(|text| text.is_empty()).is_some() {}
        self.lock.call(&ACQUIRE, args)
    }

    /// Returns the arguments of a call: the token, then `more`.
    pub(super) fn args<const N: usize>(&self, more: [String; N]) -> Vec<Vec<u8>> {
        let token = self.token.as_bytes().to_vec();
        let more = more.map(String::into_bytes);
        iter::once(token).chain(more).collect()
    }

    /// Returns the call that renews the lock. `notify`: the run that holds the lock must check how long it
    /// lasts.
    pub(super) fn renewal(&self, ttl: Duration, notify: bool) -> Call {
        let notify = u8::from(notify).to_string();
        self.lock.call(&RENEW, self.args([ms(ttl), notify]))
    }

    /// Extends the leases of several claims to `ttl` from now. A single lease usually takes one round trip.
    /// Also returns whether the server notifies redlock from now on when another client changes one of the
    /// locks; if not, [`Self::check_all`] asks for that.
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
                // Not with replicas, because nothing is known of those of the node that gets the keys.
                Err(error) if error.is_migration() && !connection.is_replicated() => {
                    for claim in claims {
                        if !connection.keep(claim.keeping(ttl), within)? {
                            return Err(error);
                        }
                    }
                    // Everything else that a renewal checks can't be read until the migration is over.
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

    /// Extends the lease of this claim. [`RENEW`] checks everything: first over each connection, then once an
    /// hour, and whenever [`PROLONG`] changes nothing. If replicas must confirm, every renewal is a
    /// [`RENEW`], which they confirm.
    fn renew_alone(
        &self,
        connection: &mut Connection,
        looked: &mut Option<LastRenewal>,
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
        let first = || LastRenewal {
            token: self.token.clone(),
            at: now,
            is_plain: true,
        };
        *looked = last.or_else(|| may_prolong.then(first));
        Ok((renewed(answer)?, tracked))
    }

    /// Returns the short renewal, for a lease that needs nothing else.
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

    /// Returns a renewal that needs only the lock's key.
    fn keeping(&self, ttl: Duration) -> Call {
        Call {
            args: self.args([ms(ttl)]),
            ..self.lock.call(&KEEP, Vec::new())
        }
    }

    /// Extends the leases of several claims on behalf of the runs that hold them, and notifies these runs.
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

    /// Renews a lock of another run, to use it as well. Returns `None` if it isn't held any more.
    pub fn reenter(&self, client: &mut Client, ttl: Duration) -> Result<Option<Reentry>, Error> {
        client.follow_locks();
        let (_, hold) = client.call(self.renewal(ttl, false), renewed_hold)?;
        Ok(hold)
    }

    /// Checks in one round trip, without a change, whether these claims still hold their locks; each renewal
    /// gives them `ttl`. From then on the server notifies redlock of changes, if it can.
    pub fn check_all(
        claims: &[Self],
        client: &mut Client,
        ttl: Duration,
    ) -> Result<Vec<LeaseState>, Error> {
        let calls = claims.iter().map(|claim| claim.check_call(ttl));
        client.with_connection(|connection, within| {
            connection.track_keys(claims.iter().map(|claim| claim.lock.keys.lock.as_slice()))?;
            connection.pipeline(calls.collect(), within, checked)
        })
    }

    pub(super) fn check_call(&self, ttl: Duration) -> Call {
        self.lock.call(&CHECK, self.args([ms(ttl)]))
    }

    /// Releases the lock, or the place in the queue. Calls `is_slow` if the answer takes longer than a
    /// moment. Safe to repeat.
    pub fn release(
        &self,
        client: &mut Client,
        mode: &ReleaseMode,
        is_slow: impl FnOnce(),
    ) -> Result<Released, Error> {
        client.open_to_release()?;
        client.with_connection(|connection, within| {
            let call = self.release_call(mode);
            released(connection.release(None, call, SLOW_ANSWER, is_slow, within)?)
        })
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

    /// Returns true if [`FREE`] suffices for a release: the run ended by itself, and doesn't keep its lock.
    pub(super) fn frees(&self, mode: &ReleaseMode) -> bool {
        let ReleaseMode::Finished { outcome, keep_for } = mode else {
            return false;
        };
        matches!(outcome, HoldOutcome::Status(_)) && keep_for.is_zero() && self.lock.history > 0
    }

    /// Like [`Self::release`], but tries again over a fresh connection if the existing one is broken. Calls
    /// `is_slow` before that, too, because connecting takes time.
    ///
    /// If another server may take over, the release is repeated at whichever server has the locks. The
    /// retries last up to `patience` while no server can be reached, and up to [`FAILOVER`] until all
    /// replicas have the release. At a single server they last as long as one request may take. Returns also whether they have it: otherwise a replica without it may
    /// become the primary, or be one already.
    ///
    /// Takes no longer than `within`, if given: a release that was sent frees the lock even if nobody waits
    /// for the answer.
    pub fn release_or_retry(
        &self,
        client: &mut Client,
        mode: &ReleaseMode,
        patience: Duration,
        within: Option<Duration>,
        is_slow: impl Fn(),
    ) -> Result<(Released, bool), Error> {
        let patience = within.map_or(patience, |within| patience.min(within));
        // An existing connection may be broken, so half of the time is kept for a fresh one.
        let (began, mut may_be_broken) = (Instant::now(), client.is_open());
        let mut share = if may_be_broken { 2 } else { 1 };
        let (mut pause, mut is_repeated, mut acknowledged) = (AGAIN, false, None);
        let released = loop {
            if let Some(all) = within {
                client.limit_to(all / share);
            }
            let mut tried = self.try_release(client, mode, within.is_some(), &is_slow);
            // An earlier call, whose answer was lost, released the lock.
            if let (true, ReleaseMode::ByJob, Ok((released @ Released::Before, _))) =
                (is_repeated, mode, &mut tried)
            {
                *released = Released::Now;
            }
            // Half of the rest is for connecting, and half for the answer.
            (is_repeated, share) = (true, 4);
            let (answer, patience) = match tried {
                Ok((released, true)) => break Ok((acknowledged.unwrap_or(released), true)),
                Ok((released, false)) => {
                    // A server that has taken over may not know the hold, so the earlier answer is kept.
                    if !matches!(released, Released::NotOurs(_)) {
                        acknowledged.get_or_insert(released.clone());
                    }
                    (Ok(released), patience.min(FAILOVER))
                }
                Err(_) if std::mem::take(&mut may_be_broken) => {
                    is_slow();
                    continue;
                }
                // A migration usually ends sooner than a waiter would notice that the lock is free.
                Err(error) if error.kind == ErrorKind::Moving => {
                    (Err(error), patience.max(client.timeout()))
                }
                // So does a restart, or another client's script.
                Err(error) if error.kind.may_pass() && !client.deployment.may_fail_over() => {
                    (Err(error), patience.min(client.timeout()))
                }
                Err(error) if error.kind.may_pass() => (Err(error), patience),
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

    /// Releases the lock once, with the short script unless `is_hurried`. Returns also whether all replicas that must
    /// confirm the release have it.
    fn try_release(
        &self,
        client: &mut Client,
        mode: &ReleaseMode,
        is_hurried: bool,
        is_slow: impl FnOnce(),
    ) -> Result<(Released, bool), Error> {
        client.open_to_release()?;
        client.with_connection(|connection, within| {
            let call = self.release_call(mode);
            let short = (!is_hurried && self.frees(mode)).then(|| call.of(&FREE));
            let answer = connection.release(short, call, SLOW_ANSWER, is_slow, within)?;
            Ok((released(answer)?, connection.is_followed(within)))
        })
    }
}

/// Returns true if [`TAKE`] suffices for a first request: an exclusive lock, for at most a day, without
/// further wishes.
pub(super) fn takes(request: &Request, place: Option<&QueuePlace>, needs: ServerTraits) -> bool {
    let Request { limit, queue, .. } = request;
    place.is_none()
        && !needs.replicated
        && (*limit, queue.supersede, queue.number) == (Limit::EXCLUSIVE, Supersede::Nobody, None)
        && request.once_key.is_none()
        && request.once_per.is_zero()
        && request.ttl <= LONGEST_PROLONGED
}

/// Returns a duration in milliseconds, as an argument.
fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}

#[cfg(test)]
pub mod tests;

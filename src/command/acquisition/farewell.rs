//! Releases what a run or a wait has taken, and waits for guards.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::Acquisition;
use crate::clock::{Moment, now};
use crate::protocol::{
    Claim, Client, Error, FAILOVER, LeaseState, Locks, Name, ReleaseMode, Released,
};
use crate::report::{self, lost};
use crate::signal::Signals;
use crate::supervise::HeldLocks;
use crate::sys::poll::{self, PollFd};

/// Wait before a message says that the lock is kept for guards.
const GUARDS_LOOKED_FOR: Duration = Duration::from_secs(1);

/// Longest pause between checks of the guards if the server can't notify redlock.
const GUARDS_LOOKED_FOR_AGAIN: Duration = Duration::from_secs(5);

/// Pause before the guards of a lock are checked again after a failed try.
const RELEASE_AGAIN: Duration = Duration::from_millis(500);

/// Time for all releases of a process that was asked to end: the server reads what was sent when it answers again.
const FAREWELL: Duration = Duration::from_secs(1);

/// Factor of the round trip: that time for a distant server. It is enough for three round trips over the connection that there is, which may be broken, and
/// then for connecting and one answer over another one. A service manager waits for much longer than the longest of them.
const FAR: u32 = 6;
const LONGEST_FAREWELL: Duration = Duration::from_secs(3);

/// Least time for one release after that: enough to send it to a server that isn't distant.
pub const TO_SEND: Duration = Duration::from_millis(50);

/// A release, and whether a failover can't undo it.
type Answer = Result<(Released, bool), Error>;

/// Locks that are kept for their guards, at most until that moment.
type Guarded = Vec<(Claim, Moment)>;

/// The release of what an acquisition has taken, in one way.
pub struct Farewell<'a> {
    pub(super) acquisition: &'a Acquisition<'a>,
    pub(super) mode: &'a ReleaseMode,
    /// Signals, which end the process at once while a server is slow.
    pub(super) signals: Option<&'a Signals>,
}

impl Farewell<'_> {
    /// Releases all locks, the last first. A failure is a line on stderr and nothing else: the lock expires after its TTL.
    pub fn release_all(&self, mut holds: HeldLocks) {
        let guarded = self.release_each(&mut holds);
        let mut is_failing = false;
        for (claim, over_by) in &guarded {
            if !self.await_guards(claim, *over_by, &mut holds.client, &mut is_failing) {
                break;
            }
        }
    }

    /// Releases each lock, with retries if another server may take over. Returns the locks that are kept for their guards. An
    /// unresponsive server may make that slow; then another signal ends the process at once.
    fn release_each(&self, holds: &mut HeldLocks) -> Guarded {
        holds.reclaim_client(self.within().map(|all| all / 4), || self.let_through());
        let is_over = matches!(self.mode, ReleaseMode::Finished { .. });
        let patience = if is_over {
            FAILOVER.max(self.acquisition.terms.kill_after)
        } else {
            Duration::ZERO
        };
        let until = now() + patience;
        let end = holds.lease().map(|lease| lease.deadline());
        let until = end.map_or(until, |end| until.min(end));
        let mut guarded = Guarded::new();
        while let Some(hold) = holds.all.pop() {
            if hold.reentrant {
                continue;
            }
            let claim = hold.claim;
            let asked_at = now();
            let released = self.release(&claim, &mut holds.client, until);
            self.report(claim.lock().name(), &released);
            if let Ok((
                Released::Kept {
                    left,
                    for_guards: true,
                },
                _,
            )) = released
            {
                guarded.push((claim, asked_at + left));
            }
        }
        self.collect_again();
        guarded
    }

    /// Reports a release, and for how long the lock may be held after one that failed.
    fn report(&self, name: &Name, released: &Answer) {
        let verbosity = self.acquisition.settings.verbosity;
        let ttl = report::format_duration(self.acquisition.terms.ttl);
        if let Ok((_, false)) = released {
            verbosity.info(format_args!(
                "some replicas haven't confirmed the release of lock \"{name}\"; if one of these is promoted, the lock counts as held again until it expires, within {ttl}"
            ));
        }
        match released.as_ref().map(|(released, _)| released) {
            Ok(Released::Now) => {
                verbosity.verbose(format_args!("lock \"{name}\" released"));
            }
            // A message comes if that lasts.
            Ok(Released::Kept {
                for_guards: true, ..
            }) => {}
            Ok(Released::Kept { left, .. }) => verbosity.verbose(format_args!(
                "lock \"{name}\" is kept for another {}",
                report::format_duration(*left)
            )),
            Ok(Released::Before) => verbosity.verbose(format_args!(
                "the command had already released lock \"{name}\""
            )),
            Ok(Released::NotOurs(loss)) => report::error(format_args!(
                "{}; redlock noticed that only at the release",
                lost(name, loss)
            )),
            Err(error) => report::error(format_args!(
                "can't release lock \"{name}\"; it expires within {ttl}: {error}"
            )),
        }
    }

    /// Releases a lock, or a place in its queue; over a fresh connection where the old one is broken.
    pub fn release(&self, claim: &Claim, client: &mut Client, until: Moment) -> Answer {
        let (patience, within) = (until.since(now()), self.within());
        let is_slow = || self.let_through();
        let released = claim.release_or_retry(client, self.mode, patience, within, is_slow);
        self.collect_again();
        released
    }

    /// Waits until the work elsewhere that guards a lock has ended, or may live no longer: until `over_by`, as long as
    /// nothing else is known. Returns false if a signal ended that. `is_failing` says whether the last question had no
    /// answer.
    fn await_guards(
        &self,
        claim: &Claim,
        mut over_by: Moment,
        client: &mut Client,
        is_failing: &mut bool,
    ) -> bool {
        let mut is_said = false;
        let began = now();
        loop {
            let pause = match (&is_failing, is_said) {
                (true, _) => RELEASE_AGAIN,
                (false, true) => GUARDS_LOOKED_FOR_AGAIN,
                (false, false) => GUARDS_LOOKED_FOR,
            };
            let until = over_by.min(now() + pause);
            if !self.await_change(claim, client, until, *is_failing) {
                return false;
            }
            let asked_at = now();
            if *is_failing {
                // None of them outlives its lease.
                if asked_at >= over_by {
                    return true;
                }
                // A server that doesn't answer keeps no signal waiting.
                self.let_through();
            }
            client.limit_to(over_by.since(asked_at).max(TO_SEND));
            let mut came = false;
            let asked = claim.release(client, self.mode, || {
                came = self.is_to_end();
                self.let_through();
            });
            self.collect_again();
            *is_failing = match &asked {
                Ok(Released::Kept {
                    left,
                    for_guards: true,
                }) => {
                    over_by = asked_at + *left;
                    false
                }
                Err(error) if error.kind.may_pass() => true,
                Ok(_) | Err(_) => return true,
            };
            if came {
                return false;
            }
            if !is_said && now().since(began) >= GUARDS_LOOKED_FOR && !*is_failing {
                is_said = true;
                self.acquisition.settings.verbosity.info(format_args!(
                    "lock \"{}\" is kept until its guards have ended, for at most {}; interrupt redlock to leave the lock to them",
                    claim.lock().name(),
                    report::format_duration(over_by.since(asked_at))
                ));
            }
        }
    }

    /// Waits until this moment, or until a lock that is kept for its guards is free, as far as the server notifies us.
    /// Returns false if a signal ended that.
    fn await_change(
        &self,
        claim: &Claim,
        client: &mut Client,
        until: Moment,
        is_failing: bool,
    ) -> bool {
        let ttl = self.acquisition.terms.ttl;
        loop {
            // It only reads: a release would wake the guards, and they us. No signal waits for it for long.
            client.limit_to(longest_farewell(&self.acquisition.settings.locks));
            let states =
                (!is_failing).then(|| Claim::check_all(std::slice::from_ref(claim), client, ttl));
            if let Some(Ok(states)) = &states
                && matches!(states[..], [LeaseState::Lost(_)])
            {
                return true;
            }
            let fds = client.fds().chain(self.signals.map(AsFd::as_fd));
            let mut fds: Vec<PollFd> = fds.map(poll::readable).collect();
            let slept = poll::wait(&mut fds, Some(until.since(now())));
            if slept.is_err() || self.is_to_end() {
                return false;
            }
            let skipped = client.skip_incoming();
            if now() >= until || skipped.is_err() || !matches!(states, Some(Ok(_))) {
                return true;
            }
        }
    }

    /// Returns true if a signal has come that asks us to end.
    fn is_to_end(&self) -> bool {
        self.signals
            .is_some_and(|signals| !matches!(signals.next_ending(), Ok(None)))
    }

    /// Returns how long releases may take, if a signal has asked us to end, or a wait was in vain.
    pub fn within(&self) -> Option<Duration> {
        let by_signal = self.signals.and_then(|signals| {
            let locks = &self.acquisition.settings.locks;
            left_to_end(locks, signals)
        });
        let by_wait = self.acquisition.ends_by.get().map(|by| by.since(now()));
        let left = by_signal.into_iter().chain(by_wait).min()?;
        Some(left.max(TO_SEND))
    }

    /// From now on a signal ends us at once.
    fn let_through(&self) {
        self.note(self.signals.map(Signals::let_through));
    }

    /// Handles signals in the main loop again.
    fn collect_again(&self) {
        self.note(self.signals.map(Signals::collect_again));
    }

    fn note(&self, changed: Option<io::Result<()>>) {
        if let Some(Err(error)) = changed {
            self.acquisition.settings.verbosity.verbose(error);
        }
    }
}

/// Returns how much of the time for all releases is left, if a signal has arrived.
pub fn left_to_end(locks: &Locks, signals: &Signals) -> Option<Duration> {
    let left = signals.left_to_end(longest_farewell(locks))?;
    Some(left.max(TO_SEND))
}

/// Returns the time for all releases.
fn longest_farewell(locks: &Locks) -> Duration {
    (locks.server().round_trip() * FAR).clamp(FAREWELL, LONGEST_FAREWELL)
}

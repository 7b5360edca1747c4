//! Releases the locks of a run or a wait, and waits for their guards.

use std::time::Duration;

use super::{Acquisition, sleep_until};
use crate::clock::{Moment, now};
use crate::decide::exit::Exit;
use crate::protocol::{
    Claim, Client, Error, FAILOVER, HoldOutcome, Locks, Name, ReleaseMode, Released,
};
use crate::report::{self, lost};
use crate::signal::Signals;
use crate::supervise::HeldLocks;

/// Pause between checks of the guards for which a lock is kept, and before the message about them.
const GUARDS_LOOKED_FOR: Duration = Duration::from_secs(1);

/// Time for all releases of a process that was asked to end. A
/// server that is silent for longer reads the requests later.
const FAREWELL: Duration = Duration::from_secs(1);

/// Time for all releases at a distant server, in round trips: enough for three of them on
/// the existing connection, which may be broken, and then for connecting again and an answer.
const FAR: u32 = 6;
/// Longest such time, much shorter than a service manager's patience.
const LONGEST_FAREWELL: Duration = Duration::from_secs(3);

/// Least time for a release when that time is used up: enough to send the request to a server that isn't distant.
pub const TO_SEND: Duration = Duration::from_millis(50);

/// Result of a release, and whether a failover can't undo it.
type ReleaseResult = Result<(Released, bool), Error>;

/// Returns the mode for releasing a lock after work with this exit.
/// `keep_for` is the least time for which the run keeps its lock.
pub fn mode_after(exit: Exit, keep_for: Duration) -> ReleaseMode {
    let outcome = match exit {
        Exit::Signal(signal) | Exit::Interrupted(signal) => HoldOutcome::Signal(signal),
        Exit::Timeout => HoldOutcome::Timeout,
        Exit::Lost => HoldOutcome::Lost,
        Exit::Cancelled => HoldOutcome::Cancelled,
        other => HoldOutcome::Status(other.code()),
    };
    // Whoever cancels a run wants the lock to be free. After the other two, COMMAND never started.
    let is_kept = !matches!(exit, Exit::Cancelled | Exit::NotFound | Exit::CannotExecute);
    ReleaseMode::Finished {
        outcome,
        keep_for: if is_kept { keep_for } else { Duration::ZERO },
    }
}

/// Returns the exit of a process that has released its locks after work with this exit: a signal that has come
/// meanwhile ends the process, as without redlock.
pub fn exit_after(exit: Exit, signals: &Signals) -> Exit {
    match (exit, signals.late()) {
        (Exit::Command(_) | Exit::Signal(_), Some(signal)) => Exit::Interrupted(signal),
        _ => exit,
    }
}

impl Acquisition<'_> {
    /// Releases all locks in reverse order, and retries if another server may take over; then
    /// waits for their guards. A failure is only reported, because the lock expires after its
    /// TTL. If an unresponsive server makes this slow, another signal ends the process at once.
    pub fn release_all(&self, mode: &ReleaseMode, signals: &Signals, mut holds: HeldLocks) {
        let within = self.within(signals).map(|all| all / 4);
        holds.reclaim_client(within, || drop(signals.let_through()));
        let patience = match mode {
            ReleaseMode::Finished { .. } => FAILOVER.max(self.terms.kill_after),
            ReleaseMode::Unused { .. } | ReleaseMode::ByJob => Duration::ZERO,
        };
        let until = now() + patience;
        let end = holds.lease().map(|lease| lease.deadline());
        let until = end.map_or(until, |end| until.min(end));
        let mut guarded = Vec::new();
        while let Some(hold) = holds.all.pop() {
            if hold.reentrant {
                continue;
            }
            let sent = now();
            let released = self.release(mode, signals, &hold.claim, &mut holds.client, until);
            self.report_release(hold.claim.lock().name(), &released);
            if let Ok((released, _)) = released
                && let Some(left) = left_to_guards(&released)
            {
                guarded.push((hold.claim, sent + left));
            }
        }
        drop(signals.collect_again());
        for (claim, over_by) in &guarded {
            if !self.await_guards(mode, signals, claim, *over_by, &mut holds.client) {
                break;
            }
        }
    }

    /// Reports a release, and for how long the lock may stay held if it failed.
    fn report_release(&self, name: &Name, released: &ReleaseResult) {
        let verbosity = self.settings.verbosity;
        let ttl = report::format_duration(self.terms.ttl);
        if let Ok((_, false)) = released {
            verbosity.info(format_args!(
                "some replicas haven't confirmed the release of lock \"{name}\"; if one of these is promoted, the lock counts as held again until it expires, within {ttl}"
            ));
        }
        match released.as_ref().map(|(released, _)| released) {
            Ok(Released::Now) => {
                verbosity.verbose(format_args!("lock \"{name}\" released"));
            }
            // `await_guards` reports this if it lasts.
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

    /// Releases a lock, or a place in its queue. Uses a new connection if the old one is broken.
    pub(super) fn release(
        &self,
        mode: &ReleaseMode,
        signals: &Signals,
        claim: &Claim,
        client: &mut Client,
        until: Moment,
    ) -> ReleaseResult {
        let (patience, within) = (until.since(now()), self.within(signals));
        let is_slow = || drop(signals.let_through());
        let released = claim.release_or_retry(client, mode, patience, within, is_slow);
        drop(signals.collect_again());
        released
    }

    /// Waits until the guards of a lock have ended, at most until `over_by`, when the last of them
    /// must be dead. Each answer of the server may move that time. Returns false if a signal interrupted the wait.
    fn await_guards(
        &self,
        mode: &ReleaseMode,
        signals: &Signals,
        claim: &Claim,
        mut over_by: Moment,
        client: &mut Client,
    ) -> bool {
        let mut is_reported = false;
        // No guard outlives its lease, even if the server doesn't answer any more.
        while now() < over_by {
            let look_at = over_by.min(now() + GUARDS_LOOKED_FOR);
            if !matches!(sleep_until(look_at, signals), Ok(None)) {
                return false;
            }
            let sent = now();
            // A signal must not wait for this answer for long.
            client.limit_to(farewell_time(&self.settings.locks));
            match claim.release(client, mode, || {}) {
                Ok(released) => match left_to_guards(&released) {
                    Some(left) => over_by = sent + left,
                    None => return true,
                },
                Err(error) if error.kind.may_pass() => continue,
                Err(_) => return true,
            }
            if !std::mem::replace(&mut is_reported, true) {
                self.settings.verbosity.info(format_args!(
                    "lock \"{}\" is kept until its guards have ended, for at most {}; interrupt redlock to leave the lock to them",
                    claim.lock().name(),
                    report::format_duration(over_by.since(sent))
                ));
            }
        }
        true
    }

    /// Returns the time limit for releases, if a signal has asked redlock
    /// to end, or if a wait failed because the server was silent.
    pub(super) fn within(&self, signals: &Signals) -> Option<Duration> {
        let by_signal = left_to_end(&self.settings.locks, signals);
        let by_wait = self.ends_by.get();
        let by_wait = by_wait.map(|by| by.since(now()).max(TO_SEND));
        by_signal.into_iter().chain(by_wait).min()
    }
}

/// Returns the longest time for which a lock is kept for its guards, if it is.
fn left_to_guards(released: &Released) -> Option<Duration> {
    match released {
        Released::Kept {
            left,
            for_guards: true,
        } => Some(*left),
        _ => None,
    }
}

/// Returns the rest of the time for all releases, if a signal has arrived.
pub fn left_to_end(locks: &Locks, signals: &Signals) -> Option<Duration> {
    let left = signals.left_to_end(farewell_time(locks))?;
    Some(left.max(TO_SEND))
}

/// Returns the time for all releases, or for an answer for which a signal must wait.
pub(super) fn farewell_time(locks: &Locks) -> Duration {
    (locks.server().round_trip() * FAR).clamp(FAREWELL, LONGEST_FAREWELL)
}

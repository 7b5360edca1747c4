//! Acquiring locks: from the names that were typed to holding them all, and releasing them.
//!
//! `attempt` is the wait for one lock (decided by [`crate::decide::wait`]), `deadlock` what others read of it.

mod attempt;
mod deadlock;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, anyhow};
use nix::sys::eventfd::{EfdFlags, EventFd};

use self::attempt::Attempt;
use super::usage::BadUsage;
use crate::cli;
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::{Lease, Terms, shortest_for};
use crate::duration::exact;
use crate::protocol::{
    self, Claim, Client, ErrorKind, KILL_AFTER, LeaseState, Limit, Lock, Locks, Name, QueueOptions,
    Reentry, ReleaseMode, Released, Request, SkipReason, Supersede, Token, Who,
};
use crate::report::{self, Verbosity, lost};
use crate::signal::{Signals, is_passed_up};
use crate::supervise::environment::{self, Environment, JobLock};
use crate::supervise::process::ProcessFd;
use crate::supervise::tree::RELEASER;
use crate::supervise::{HeldLock, HeldLocks};
use crate::sys;
use crate::sys::poll::{self, PollFd, sleep};

/// How many inherited locks are believed to be held without a look.
const MANY_INHERITED: usize = 32;

/// Locks of which something is left to do after their release.
#[derive(Default)]
pub struct Unreleased {
    /// Released, and a waiter that got the lock may not have confirmed that.
    unconfirmed: Vec<Claim>,
    /// Of a run that is over: a server that takes over may not know that.
    unsure: Vec<Claim>,
    /// Kept for their guards, at most until that moment.
    guarded: Vec<(Claim, Moment)>,
}

/// The acquisition of locks, and what is known of it from the start.
pub struct Acquisition<'a> {
    pub settings: &'a Settings,
    /// In the order in which they were typed, each once.
    pub names: Vec<Name>,
    pub wait_options: &'a cli::WaitOptions,
    pub request: Request,
    /// The time between SIGTERM and SIGKILL for the protected process.
    pub kill_after: Duration,
    /// What the clocks of the Redis hosts may differ.
    pub clock_skew: Duration,
    /// The work may start on a grant that isn't confirmed yet.
    pub starts_on_grant: bool,
    /// How long a server that was reached may be silent, if the work starts without the lock then.
    pub silence: Option<Duration>,
    /// The locks that outer runs hold: names and tokens.
    pub inherited: Vec<(Name, Token)>,
    /// By when all is to be over, after a wait that has ended as the server is silent.
    ends_by: Cell<Option<Moment>>,
}

/// What the locks are for, where that isn't this process: when it is gone, nothing has to wait any more.
#[derive(Clone, Copy, Default)]
pub struct Requester<'a> {
    /// The process that needs the lock, with its pid.
    pub process: Option<(i32, &'a ProcessFd)>,
    /// Where the token will be written: a pipe tells that its reader is gone.
    pub output: Option<BorrowedFd<'a>>,
}

impl Requester<'_> {
    /// Why the locks aren't needed any more, if that is so.
    pub fn gone(&self) -> Option<anyhow::Error> {
        if let Some((pid, process)) = self.process
            && process.has_ended()
        {
            let line =
                format!("--while-pid {pid}: that process ended before the lock was acquired");
            return Some(BadUsage(line).into());
        }
        let is_broken = poll::is_ready(poll::broken(self.output?), Duration::ZERO);
        is_broken.then(|| anyhow!("nobody reads standard output any more"))
    }
}

/// How the acquisition of one lock, or of all, ended.
pub enum Outcome {
    Acquired,
    NotAcquired(Reason),
}

/// Why a lock was not acquired.
pub enum Reason {
    /// It stayed busy, or another run made us give up; the message, and by whom, where that is known and somebody is told.
    Busy(String, Option<String>),
    /// A run has succeeded, recently enough; the message.
    Skipped(String),
    /// Another lock that we held was lost meanwhile; the message.
    Lost(String),
    Interrupted(i32),
}

impl Reason {
    /// Who has the lock, or made us give up, as far as is known; `None` where it was for another reason.
    pub fn busy_by(&self) -> Option<&Option<String>> {
        match self {
            Self::Busy(_, by) => Some(by),
            Self::Skipped(_) | Self::Lost(_) | Self::Interrupted(_) => None,
        }
    }
}

impl<'a> Acquisition<'a> {
    /// From the options common to run and acquire.
    ///
    /// # Errors
    /// [`BadUsage`] for a TTL that is too short for the clock skew.
    pub fn new(
        settings: &'a Settings,
        names: Vec<Name>,
        who: Who,
        options: &'a cli::AcquireOptions,
        kill_after: Option<Duration>,
    ) -> Result<Self> {
        let clock_skew = settings.locks.clock_skew();
        let ttl = options.ttl.unwrap_or(settings.ttl);
        let least = shortest_for(clock_skew);
        if ttl < least {
            let [ttl, least] = [ttl, least].map(exact);
            return Err(BadUsage(format!(
                "--ttl {ttl} is too short if a replica may be promoted; use --ttl {least} or more"
            ))
            .into());
        }
        let kill_after = usable_kill_after(
            kill_after.or(settings.kill_after),
            ttl,
            clock_skew,
            ("--ttl", settings.verbosity),
        );
        let request = Request {
            who: Who {
                ttl: u64::try_from(ttl.as_millis()).ok(),
                skew: u64::try_from(clock_skew.as_millis())
                    .ok()
                    .filter(|ms| *ms > 0),
                kill_after: Who::unusual_grace(kill_after),
                ignores_freeze: options.ignore_freeze,
                ..who
            },
            ttl,
            limit: match (options.shared, options.slots) {
                (true, _) => Limit::SHARED,
                (false, Some(slots)) => Limit::slots(slots),
                (false, None) => Limit::EXCLUSIVE,
            },
            queue: QueueOptions {
                supersede: match (options.supersede, options.seq, options.cancel_in_progress) {
                    (_, _, true) => Supersede::HoldersToo,
                    (false, None, false) => Supersede::Nobody,
                    _ => Supersede::Waiters,
                },
                number: options.seq,
                most_waiting: options.max_queue,
            },
            once_per: Duration::ZERO,
            once_key: None,
            repair_ttl: settings.repair_ttl,
        };
        Ok(Self {
            settings,
            names,
            wait_options: &options.wait,
            request,
            kill_after,
            clock_skew,
            starts_on_grant: false,
            silence: None,
            inherited: environment::inherited(),
            ends_by: Cell::new(None),
        })
    }

    /// The start of an acquisition: nothing is held yet.
    pub fn nothing_held(&self) -> HeldLocks {
        HeldLocks::none(self.settings.locks.client(), self.request.ttl)
    }

    /// Returns true if the user has said how long to wait: this covers a server that isn't up yet, unless the job then runs
    /// without a lock.
    fn awaits_server(&self) -> bool {
        let wait = self.wait_options.wait;
        wait.is_some_and(|wait| !wait.is_zero()) && self.silence.is_none()
    }

    /// Returns the error of a first connection, unless the wait for the lock covers it, as it does for a server that says
    /// that it will be ready.
    pub fn first_failure(&self, error: protocol::Error) -> Result<(), protocol::Error> {
        let kind = error.kind;
        if kind.is_worth_waiting() || (self.awaits_server() && kind.may_pass()) {
            return Ok(());
        }
        let options = self.wait_options;
        // A server of this host alone is started by whoever needs it, so that a wait doesn't help.
        let is_local = self.settings.locks.are_local();
        let may_wait = options.wait.is_none() && !options.no_wait && self.silence.is_none();
        let may_wait = may_wait && !is_local;
        Err(match kind {
            ErrorKind::Unreachable if may_wait => error.with_next("`--wait 30s` would wait for it"),
            _ => error,
        })
    }

    /// What each lease is asked for with.
    pub fn terms(&self) -> Terms {
        Terms {
            ttl: self.request.ttl,
            kill_after: self.kill_after,
            clock_skew: self.clock_skew,
        }
    }

    pub fn verbosity(&self) -> Verbosity {
        self.settings.verbosity
    }

    /// Acquires one lock after the other, in an order that is the same for all jobs. `started` is
    /// when the wait began.
    pub fn acquire_all(
        &self,
        started: Moment,
        holds: &mut HeldLocks,
        requester: Requester<'_>,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<Outcome> {
        let mut sorted: Vec<&Name> = self.names.iter().collect();
        sorted.sort();
        for name in sorted {
            let lock = self.settings.locks.lock(name.clone());
            if self.reenter(&lock, holds)? {
                continue;
            }
            let claim = Claim::new(lock, &self.request.who)?;
            match Attempt::new(self, claim, holds, started, requester, signals, timer).run()? {
                Outcome::Acquired => {}
                not_acquired @ Outcome::NotAcquired(_) => return Ok(not_acquired),
            }
        }
        Ok(Outcome::Acquired)
    }

    /// Reports why no lock was acquired, where that is worth a line; returns the status for it.
    pub fn not_acquired(&self, reason: Reason) -> Exit {
        let status = self.wait_options.conflict_exit_code;
        match reason {
            Reason::Busy(line, _) => {
                self.verbosity().info(line);
                Exit::Busy(status.unwrap_or(cli::BUSY))
            }
            Reason::Skipped(line) => {
                self.verbosity().info(line);
                Exit::Busy(status.unwrap_or(0))
            }
            Reason::Lost(line) => {
                report::error(line);
                Exit::Lost
            }
            Reason::Interrupted(signal) => ended_by(signal),
        }
    }

    /// Notes for the history that this run ends without the lock; the host whose success made it needless, if
    /// there is one. Nothing depends on it.
    pub fn record_skip(
        &self,
        lock: &Lock,
        client: &mut Client,
        skipped: (SkipReason, Duration, Option<&Who>),
    ) -> Result<Option<String>, protocol::Error> {
        let noted = lock.record_skip(client, skipped, &self.request.who);
        if let Err(error) = &noted {
            self.verbosity().verbose(format_args!(
                "lock \"{}\": can't record in the history that this run was skipped: {error}",
                lock.name()
            ));
        }
        noted
    }

    /// Forgets inherited locks that are over, once they are many: a shell that acquires and releases hands on all
    /// that it has ever held, and the kernel starts no program with an endless environment.
    pub fn forget_released(&mut self) -> Result<(), protocol::Error> {
        if self.inherited.len() < MANY_INHERITED {
            return Ok(());
        }
        let mut client = self.settings.locks.open()?;
        let mut kept = Vec::new();
        for (name, token) in &self.inherited {
            let claim = Claim::resume(self.settings.locks.lock(name.clone()), token.clone());
            let states = Claim::check_all(&[claim], &mut client, Duration::ZERO)?;
            if matches!(states[..], [LeaseState::Held { .. }]) {
                kept.push((name.clone(), token.clone()));
            }
        }
        self.inherited = kept;
        Ok(())
    }

    /// Uses what a run around this one holds, if that is so; false when it isn't.
    fn reenter(&self, lock: &Lock, holds: &mut HeldLocks) -> Result<bool> {
        // The innermost comes last.
        let known = self.inherited.iter().rev();
        let Some((name, token)) = known.into_iter().find(|(name, _)| name == lock.name()) else {
            return Ok(false);
        };
        let Request { ttl, limit, .. } = self.request;
        let claim = Claim::resume(lock.clone(), token.clone());
        holds.client.open()?;
        let sent = now();
        let reentry = claim.reenter(&mut holds.client, ttl)?;
        holds.answered = true;
        // Where it isn't held (any more), that was another server, or a job that has ended.
        let Some(Reentry {
            fence,
            limit: theirs,
            slot,
        }) = reentry
        else {
            return Ok(false);
        };
        if theirs > limit {
            return Err(BadUsage(format!(
                "this job already holds lock \"{name}\" {}, so it can't also acquire it {1}; have the outer run acquire it {1}, or use another name",
                theirs.adverb(), limit.adverb()
            ))
            .into());
        }
        self.verbosity()
            .verbose(format_args!("lock \"{name}\" is already held by this job"));
        let hold = HeldLock {
            claim,
            fence,
            // The only holder has the first of however many slots.
            slot: slot.max(1),
            reentrant: true,
            guard: None,
            waited: Duration::ZERO,
        };
        holds.add(hold, Lease::new(sent, self.terms()));
        Ok(true)
    }

    /// What the work under the locks finds in its environment.
    pub fn environment(&self, holds: &HeldLocks, slots: bool) -> Environment {
        let who = &self.request.who;
        let locks: Vec<JobLock> = holds.all.iter().map(|hold| hold.as_job_lock(who)).collect();
        let waited_ms = holds.waited_ms();
        environment::of_job(&self.names, &locks, &self.inherited, waited_ms, slots)
    }

    /// Releases all locks, the last first, at the end of a process. A failure is a line on stderr and
    /// nothing else: the lock expires after its TTL.
    pub fn release_at_end(
        &self,
        holds: &mut HeldLocks,
        mode: &ReleaseMode,
        signals: Option<&Signals>,
    ) {
        // The server answers this process before it notifies the next holder. Nothing is urgent here any more.
        sys::yield_cpu();
        let Unreleased {
            unconfirmed,
            unsure,
            guarded,
        } = self.release_all(holds, mode, signals);
        wake_others(&unconfirmed, &mut holds.client, mode, signals);
        let mut is_failing = false;
        for (claim, over_by) in &guarded {
            let of = (claim, *over_by);
            if !self.await_guards(of, holds, mode, signals, &mut is_failing) {
                break;
            }
        }
        holds.client.lift_limit();
        if !unsure.is_empty() {
            self.leave_releaser(&unsure, holds, mode);
        }
    }

    /// Waits until the work elsewhere that guards a lock has ended, or may live no longer: until `over_by`, as long as
    /// nothing else is known. Another one of these signals ends that; whether none has. `is_failing` says whether the
    /// last question had no answer.
    fn await_guards(
        &self,
        (claim, mut over_by): (&Claim, Moment),
        holds: &mut HeldLocks,
        mode: &ReleaseMode,
        signals: Option<&Signals>,
        is_failing: &mut bool,
    ) -> bool {
        let client = &mut holds.client;
        let mut is_said = false;
        let began = now();
        loop {
            let pause = match (&is_failing, is_said) {
                (true, _) => RELEASE_AGAIN,
                (false, true) => GUARDS_LOOKED_FOR_AGAIN,
                (false, false) => GUARDS_LOOKED_FOR,
            };
            let until = over_by.min(now() + pause);
            if !self.await_change(claim, client, until, signals, *is_failing) {
                return false;
            }
            let asked_at = now();
            if *is_failing {
                // None of them outlives its lease.
                if asked_at >= over_by {
                    return true;
                }
                // A server that doesn't answer keeps no signal waiting.
                self.let_through(signals);
            }
            client.limit_to(over_by.since(asked_at).max(TO_SEND));
            let mut came = false;
            let asked = claim.release(client, mode, || {
                came = signals.is_some_and(|signals| !matches!(signals.next_ending(), Ok(None)));
                self.let_through(signals);
            });
            self.collect_again(signals);
            *is_failing = match &asked {
                Ok(Released::Kept {
                    left,
                    for_guards: true,
                }) => {
                    over_by = asked_at + *left;
                    false
                }
                Err(error) if error.kind.may_pass() => true,
                Ok(Released::HandedOn) => {
                    wake_others(std::slice::from_ref(claim), client, mode, signals);
                    return true;
                }
                Ok(_) | Err(_) => return true,
            };
            if came {
                return false;
            }
            if !is_said && now().since(began) >= GUARDS_LOOKED_FOR && !*is_failing {
                is_said = true;
                self.verbosity().info(format_args!(
                    "lock \"{}\" is kept until its guards have ended, for at most {}; interrupt redlock to leave the lock to them",
                    claim.lock().name(),
                    report::format_duration(over_by.since(asked_at))
                ));
            }
        }
    }

    /// Waits until this moment, or until a lock that is kept for its guards is free, as far as the server notifies us.
    /// One of these signals ends that; whether none has.
    fn await_change(
        &self,
        claim: &Claim,
        client: &mut Client,
        until: Moment,
        signals: Option<&Signals>,
        is_failing: bool,
    ) -> bool {
        loop {
            // It only reads: a release would wake the guards, and they us. No signal waits for it for long.
            client.limit_to(longest_farewell(&self.settings.locks));
            let states = (!is_failing)
                .then(|| Claim::check_all(std::slice::from_ref(claim), client, self.request.ttl));
            if let Some(Ok(states)) = &states
                && matches!(states[..], [LeaseState::Lost(_)])
            {
                return true;
            }
            let fds = client.fds().chain(signals.map(AsFd::as_fd));
            let mut fds: Vec<PollFd> = fds.map(poll::readable).collect();
            let slept = poll::wait(&mut fds, Some(until.since(now())));
            let ended = signals.map_or(Ok(None), Signals::next_ending);
            if slept.is_err() || !matches!(ended, Ok(None)) {
                return false;
            }
            let skipped = client.skip_incoming();
            if now() >= until || skipped.is_err() || !matches!(states, Some(Ok(_))) {
                return true;
            }
        }
    }

    /// Leaves a process behind that goes on releasing locks, until the servers that may take over know of it, or
    /// their leases are over.
    fn leave_releaser(&self, left: &[Claim], holds: &mut HeldLocks, mode: &ReleaseMode) {
        // Its descriptor would be another file's in the new process.
        holds.client.disconnect();
        let until = holds.dead_by.unwrap_or(now() + self.request.ttl);
        // Where none can be made, the locks end with their leases.
        let _ = sys::fork_for(RELEASER, until.since(now()), || {
            let client = &mut holds.client;
            let mut left: Vec<&Claim> = left.iter().collect();
            while !left.is_empty() && now() < until {
                // Each of them in each round: one that no replica confirms keeps no other one.
                left.retain(|claim| {
                    let within = until.since(now());
                    let tried = claim.release_or_retry(client, mode, within, None, || {});
                    match &tried {
                        Ok((_, is_known)) => !is_known,
                        Err(error) => error.kind.may_pass(),
                    }
                });
                if !left.is_empty() {
                    client.follow_locks();
                    std::thread::sleep(RELEASE_AGAIN);
                }
            }
        });
    }

    /// Releases all locks, the last first, and returns those that may not be free yet. An unresponsive server may make that
    /// slow; then another of these signals ends us at once.
    pub fn release_all(
        &self,
        holds: &mut HeldLocks,
        mode: &ReleaseMode,
        signals: Option<&Signals>,
    ) -> Unreleased {
        let within = self.farewell(signals).map(|all| all / 4);
        holds.reclaim_client(within, || self.let_through(signals));
        let until = self.release_until(holds, mode);
        let mut unreleased = Unreleased::default();
        while let Some(hold) = holds.all.pop() {
            if hold.reentrant {
                continue;
            }
            let name = hold.claim.lock().name();
            let client = &mut holds.client;
            let asked_at = now();
            let released = self.release(&hold.claim, mode, until, client, signals);
            let ttl = report::format_duration(self.request.ttl);
            let is_over = matches!(mode, ReleaseMode::Finished { .. });
            let may_be_repeated = is_over && self.settings.locks.may_fail_over();
            let is_repeated = may_be_repeated
                && match &released {
                    Ok((_, is_known)) => !is_known,
                    Err(error) => error.kind.may_pass(),
                };
            let goes_on = if is_repeated {
                "; a background process keeps trying"
            } else {
                ""
            };
            if let Ok((_, false)) = released {
                self.verbosity().info(format_args!(
                    "some replicas haven't confirmed the release of lock \"{name}\"; if one of these is promoted, the lock counts as held again until it expires, within {ttl}{goes_on}"
                ));
            }
            match released.map(|(released, _)| released) {
                Ok(Released::Kept {
                    left,
                    for_guards: true,
                }) => unreleased
                    .guarded
                    .push((hold.claim.clone(), asked_at + left)),
                Ok(released @ (Released::Now | Released::HandedOn)) => {
                    self.verbosity()
                        .verbose(format_args!("lock \"{name}\" released"));
                    if matches!(released, Released::HandedOn) {
                        unreleased.unconfirmed.push(hold.claim.clone());
                    }
                }
                Ok(Released::Kept { left, .. }) => self.verbosity().verbose(format_args!(
                    "lock \"{name}\" is kept for another {}",
                    report::format_duration(left)
                )),
                Ok(Released::Before) => self.verbosity().verbose(format_args!(
                    "the command had already released lock \"{name}\""
                )),
                Ok(Released::NotOurs(loss)) => report::error(format_args!(
                    "{}; redlock noticed that only at the release",
                    lost(name, &loss)
                )),
                Err(error) => report::error(format_args!(
                    "can't release lock \"{name}\"; it expires within {ttl}{goes_on}: {error}"
                )),
            }
            if is_repeated {
                unreleased.unsure.push(hold.claim);
            }
        }
        self.collect_again(signals);
        unreleased
    }

    /// Until when the release of locks is repeated that were used, where another server may take over: for as long as
    /// a command that is stopped may take to end, but not beyond their leases.
    fn release_until(&self, holds: &HeldLocks, mode: &ReleaseMode) -> Moment {
        let now = now();
        match mode {
            ReleaseMode::Finished { .. } => {
                let until = now + self.kill_after;
                holds.dead_by.map_or(until, |end| until.min(end))
            }
            ReleaseMode::Unused { .. } | ReleaseMode::ByJob => now,
        }
    }

    /// Releases a lock, or a place in its queue; over a fresh connection where the old one is
    /// broken. Also says whether a failover can't undo that.
    fn release(
        &self,
        claim: &Claim,
        mode: &ReleaseMode,
        until: Moment,
        client: &mut Client,
        signals: Option<&Signals>,
    ) -> Result<(Released, bool), protocol::Error> {
        let (patience, within) = (until.since(now()), self.farewell(signals));
        let is_slow = || self.let_through(signals);
        let released = claim.release_or_retry(client, mode, patience, within, is_slow);
        self.collect_again(signals);
        released
    }

    /// How long releases may take, where one of these signals has asked us to end, or a wait is over in vain.
    fn farewell(&self, signals: Option<&Signals>) -> Option<Duration> {
        let by_signal = signals.and_then(|signals| left_to_end(&self.settings.locks, signals));
        let by_wait = self.ends_by.get().map(|by| by.since(now()));
        let left = by_signal.into_iter().chain(by_wait).min()?;
        Some(left.max(TO_SEND))
    }

    /// From now on a signal ends us at once.
    fn let_through(&self, signals: Option<&Signals>) {
        if let Some(Err(error)) = signals.map(Signals::let_through) {
            self.verbosity().verbose(error);
        }
    }

    /// Ends that.
    fn collect_again(&self, signals: Option<&Signals>) {
        if let Some(Err(error)) = signals.map(Signals::collect_again) {
            self.verbosity().verbose(error);
        }
    }
}

/// A waiter that got a lock and hasn't confirmed that by now may be suspended, and others with it: those behind it are
/// woken. A signal ends us sooner; then each of them notices that by its heartbeats.
fn wake_others(
    unconfirmed: &[Claim],
    client: &mut Client,
    mode: &ReleaseMode,
    signals: Option<&Signals>,
) {
    if unconfirmed.is_empty() || !may_pause(TO_CONFIRM, signals) {
        return;
    }
    client.limit_to(TO_SEND);
    for claim in unconfirmed {
        if !client.is_open() || !claim.wake_others(client, mode) {
            break;
        }
    }
    client.lift_limit();
}

/// Lets this time pass; false where a signal ends that.
fn may_pause(pause: Duration, signals: Option<&Signals>) -> bool {
    let until = now() + pause;
    loop {
        let fds = signals.iter().map(|signals| signals.as_fd());
        let mut fds: Vec<PollFd> = fds.map(poll::readable).collect();
        let slept = poll::wait(&mut fds, Some(until.since(now())));
        let ended = signals.map_or(Ok(None), Signals::next_ending);
        if slept.is_err() || !matches!(ended, Ok(None)) {
            return false;
        }
        if now() >= until {
            return true;
        }
    }
}

/// How much is left of the time that the end of all is worth a wait, where one of these signals has asked us to end.
pub fn left_to_end(locks: &Locks, signals: &Signals) -> Option<Duration> {
    let left = signals.left_to_end(longest_farewell(locks))?;
    Some(left.max(TO_SEND))
}

/// How long the end of all is worth a wait.
fn longest_farewell(locks: &Locks) -> Duration {
    (locks.server().round_trip() * FAR).clamp(FAREWELL, LONGEST_FAREWELL)
}

/// The end by a signal before any work was started.
pub fn ended_by(signal: i32) -> Exit {
    if is_passed_up(signal) {
        Exit::Interrupted(signal)
    } else {
        Exit::Signal(signal)
    }
}

/// Returns the time between SIGTERM and SIGKILL, and says so if the lease allows less than `--kill-after` asks for.
pub fn usable_kill_after(
    given: Option<Duration>,
    ttl: Duration,
    clock_skew: Duration,
    (option, verbosity): (&str, Verbosity),
) -> Duration {
    let longest = ttl.saturating_sub(clock_skew) / 2;
    if let Some(given) = given.filter(|given| *given > longest) {
        let long_enough = exact(given * 2 + clock_skew);
        let [given, longest] = [given, longest].map(exact);
        verbosity.info(format_args!(
            "--kill-after {given} is more than half of the TTL: SIGKILL comes {longest} after SIGTERM; {option} {long_enough} allows {given}"
        ));
    }
    given.unwrap_or(KILL_AFTER)
}

/// How the history calls the end of what was done under a lock.
pub fn outcome_of(exit: Exit) -> protocol::HoldOutcome {
    match exit {
        Exit::Signal(signal) | Exit::Interrupted(signal) => protocol::HoldOutcome::Signal(signal),
        Exit::Timeout => protocol::HoldOutcome::Timeout,
        Exit::Lost => protocol::HoldOutcome::Lost,
        Exit::Cancelled => protocol::HoldOutcome::Cancelled,
        Exit::Success
        | Exit::Command(_)
        | Exit::StaleFence
        | Exit::Unfit
        | Exit::NeverUsed
        | Exit::Late
        | Exit::Older
        | Exit::Usage
        | Exit::Unreachable
        | Exit::Busy(_)
        | Exit::Refused
        | Exit::Config
        | Exit::Internal
        | Exit::CannotExecute
        | Exit::NotFound => protocol::HoldOutcome::Status(exit.code()),
    }
}

/// After this time it is said that guards are waited for.
const GUARDS_LOOKED_FOR: Duration = Duration::from_secs(1);

/// How often it is looked for them after that, where the server doesn't notify us.
const GUARDS_LOOKED_FOR_AGAIN: Duration = Duration::from_secs(5);

/// How long the next holder has to confirm its grant, before others are woken.
const TO_CONFIRM: Duration = Duration::from_millis(5);

/// The pause before a process in the background tries to release a lock again.
const RELEASE_AGAIN: Duration = Duration::from_millis(500);

/// How long all releases together are worth a wait for a process that was asked to end: the server reads what was sent
/// when it answers again.
const FAREWELL: Duration = Duration::from_secs(1);

/// The same where it is far away: time for three round trips over the connection that there is, which may be broken, and
/// then for connecting and one answer over another one. A service manager waits for much longer than the longest of them.
const FAR: u32 = 6;
const LONGEST_FAREWELL: Duration = Duration::from_secs(3);

/// How long each may take after that: enough to send it to a server that isn't far away.
pub const TO_SEND: Duration = Duration::from_millis(50);

/// Most servers let us in sooner than this. Where one takes longer, signals have to be heeded.
const SLOW_TO_OPEN: Duration = Duration::from_millis(250);

/// Opens a connection, for a process whose signals are collected: a signal that ends us, if one comes
/// before the server lets us in.
pub fn open(client: &mut Client, signals: &Signals) -> Result<Option<i32>, protocol::Error> {
    let Some(opening) = client.open_soon(SLOW_TO_OPEN)? else {
        return Ok(None);
    };
    match in_background(signals, opening)? {
        Ok(opened) => *client = opened?,
        Err(signal) => return Ok(Some(signal)),
    }
    Ok(None)
}

/// Has another thread do what may have to wait for a server: its result, or a signal that ends us, if one comes before.
/// Where no thread can be made, signals have to wait, too.
fn in_background<T: Send + 'static>(
    signals: &Signals,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Result<T, i32>, protocol::Error> {
    wait_in_background(signals, work).map_err(|error| {
        let line = format!("can't wait for Redis: {error}");
        protocol::Error::new(ErrorKind::Internal, line)
    })
}

fn wait_in_background<T: Send + 'static>(
    signals: &Signals,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<T, i32>> {
    let done = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
    let (answer, answered) = channel();
    let waker = Arc::clone(&done);
    let work = Arc::new(Mutex::new(Some(work)));
    let of_thread = Arc::clone(&work);
    let take = |work: &Mutex<Option<_>>| work.lock().ok().and_then(|mut work| work.take());
    let started = sys::start_thread("background", sys::USUAL_STACK, move || {
        if let Some(work) = take(&of_thread) {
            let _ = answer.send(work());
        }
        let _ = waker.write(1);
    });
    if let Err(error) = started {
        let work = take(&work).ok_or(error)?;
        return Ok(Ok(work()));
    }
    loop {
        sleep([Some(signals.as_fd()), Some(done.as_fd())], None)?;
        if let Some(signal) = signals.next_ending()? {
            return Ok(Err(signal));
        }
        if let Ok(found) = answered.try_recv() {
            return Ok(Ok(found));
        }
    }
}

/// A number in 0..1.
pub fn random_fraction() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

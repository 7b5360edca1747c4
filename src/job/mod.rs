//! Parts of a run that several commands share. `run` and `acquire` acquire locks here, from the names on the command line to
//! holding them all, and release them. This module connects to Redis, and starts a thread while a waiter reconnects.
//!
//! `attempt` waits for a single lock, as [`crate::decide::wait`] decides. `deadlock` publishes that wait for other runs,
//! and `farewell` releases everything. `identity` describes this process to others, and `privacy` masks its
//! arguments. `surrounding` finds the locks of the job that this process belongs to.

mod attempt;
mod background;
mod deadlock;
mod farewell;
pub mod identity;
pub mod privacy;
pub mod surrounding;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Result, bail};

use self::attempt::Attempt;
use self::background::Background;
pub use self::farewell::{TO_SEND, exit_after, left_to_end, mode_after};
use crate::cli;
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::{Lease, Terms, shortest_for};
use crate::duration::{exact, milliseconds};
use crate::protocol::{
    Claim, Client, Error, ErrorKind, KILL_AFTER, LeaseState, Limit, Lock, Name, QueueOptions,
    Reentry, Request, Supersede, Who,
};
use crate::signal::{Signals, asks_to_end};
use crate::supervise::environment::{self, Environment, JobHold};
use crate::supervise::hook::News;
use crate::supervise::process::ProcessFd;
use crate::supervise::{HeldLock, HeldLocks};
use crate::sys::poll;
use crate::usage::refuse;

/// With at least this many inherited locks, redlock checks which of them are still held.
const MANY_INHERITED: usize = 32;

/// An acquisition of locks, with all that is known at its start.
pub struct Acquisition<'a> {
    pub settings: &'a Settings,
    /// Names in the order of the command line, each once.
    pub names: Vec<Name>,
    pub wait_options: &'a cli::AcquireOptions,
    pub request: Request,
    /// Terms of each lease.
    pub terms: Terms,
    /// The work may start on a grant that isn't confirmed yet.
    pub starts_on_grant: bool,
    /// Time for which a server that has answered may then be unreachable, before the work
    /// starts without the lock; `None` if the work never does.
    pub silence: Option<Duration>,
    /// Locks that outer runs hold.
    pub inherited: Vec<JobHold>,
    /// News for the hook, if the lock stayed busy or another run made this one give up.
    pub busy: Cell<Option<News>>,
    /// Time limit for the cleanup after a wait that ended because the server was silent.
    ends_by: Cell<Option<Moment>>,
}

/// The user of the locks, if that isn't this process: when it is gone, waiting is pointless.
#[derive(Clone, Copy, Default)]
pub struct Requester<'a> {
    /// Process that needs the lock, with its pid.
    pub process: Option<(i32, &'a ProcessFd)>,
    /// Descriptor to which the token will be written: a pipe shows that its reader is gone.
    pub output: Option<BorrowedFd<'a>>,
}

impl Requester<'_> {
    /// Fails if nobody needs the locks any more.
    pub fn check(&self) -> Result<()> {
        if let Some((pid, process)) = self.process
            && process.has_ended()
        {
            let line =
                format!("--while-pid {pid}: that process ended before the lock was acquired");
            return refuse(Exit::Usage, line);
        }
        let is_broken = |output| poll::is_ready(poll::broken(output), Duration::ZERO);
        if self.output.is_some_and(is_broken) {
            bail!("nobody reads standard output any more");
        }
        Ok(())
    }
}

impl<'a> Acquisition<'a> {
    /// Creates an acquisition from the options that run and acquire share.
    ///
    /// # Errors
    /// A [`Refusal`] for a TTL that is too short for the clock skew.
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
            let line = format!(
                "--ttl {ttl} is too short if a replica may be promoted; use --ttl {least} or more"
            );
            return refuse(Exit::Usage, line);
        }
        let kill_after = kill_after.or(settings.kill_after);
        let longest = ttl.saturating_sub(clock_skew) / 2;
        if let Some(given) = kill_after.filter(|given| *given > longest) {
            let long_enough = exact(given * 2 + clock_skew);
            let [given, longest] = [given, longest].map(exact);
            settings.verbosity.info(format_args!(
                "--kill-after {given} is more than half of the TTL: SIGKILL comes {longest} after SIGTERM; --ttl {long_enough} allows {given}"
            ));
        }
        let terms = Terms {
            ttl,
            kill_after: kill_after.unwrap_or(KILL_AFTER),
            clock_skew,
        };
        let request = Request {
            who: Who {
                ttl: Some(milliseconds(ttl)),
                skew: Some(milliseconds(clock_skew)).filter(|ms| *ms > 0),
                kill_after: Who::unusual_grace(terms.kill_after),
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
            wait_options: options,
            request,
            terms,
            starts_on_grant: false,
            silence: None,
            inherited: environment::inherited(),
            busy: Cell::new(None),
            ends_by: Cell::new(None),
        })
    }

    /// Returns true if the wait also covers a server that isn't up yet: the user has
    /// set a time to wait, and the job never runs without the lock.
    fn awaits_server(&self) -> bool {
        let wait = self.wait_options.wait;
        wait.is_some_and(|wait| !wait.is_zero()) && self.silence.is_none()
    }

    /// Returns the error of the first connection, unless the wait for the lock
    /// covers it. A server that announces to be ready soon is always covered.
    fn first_failure(&self, error: Error) -> Result<(), Error> {
        let kind = error.kind;
        if kind.is_worth_waiting() || (self.awaits_server() && kind.may_pass()) {
            return Ok(());
        }
        let options = self.wait_options;
        let may_wait = options.wait.is_none() && !options.no_wait && self.silence.is_none();
        // redlock itself starts a local server, so waiting for one doesn't help.
        let may_wait = may_wait && !self.settings.locks.are_local();
        Err(match kind {
            ErrorKind::Unreachable if may_wait => error.with_next("`--wait 30s` would wait for it"),
            _ => error,
        })
    }

    /// Acquires the locks one after the other, in an order that is the same for all
    /// jobs. `started` is the start of the wait, which includes the connection. `opened` is the
    /// result of [`open`].
    ///
    /// # Errors
    /// A [`Refusal`] if this run doesn't get all locks; its
    /// message is empty if a signal ended the wait. Or a failure.
    pub fn acquire_all(
        &self,
        started: Moment,
        opened: Result<Option<i32>, Error>,
        holds: &mut HeldLocks,
        requester: Requester<'_>,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<()> {
        fail_on(opened.or_else(|error| self.first_failure(error).map(|()| None))?)?;
        let mut sorted: Vec<&Name> = self.names.iter().collect();
        sorted.sort();
        for name in sorted {
            let lock = self.settings.locks.lock(name.clone());
            if !self.reenter(&lock, holds)? {
                let claim = Claim::new(lock, &self.request.who)?;
                Attempt::new(self, claim, holds, started, requester, signals, timer).run()?;
            }
        }
        fail_on(signals.next_ending()?)
    }

    /// Forgets inherited locks that were released, once there are many. A shell that acquires and
    /// releases passes on all that it has ever held, and the kernel limits the size of the environment.
    pub fn forget_released(&mut self) -> Result<(), Error> {
        if self.inherited.len() < MANY_INHERITED {
            return Ok(());
        }
        let locks = &self.settings.locks;
        let claim =
            |hold: &JobHold| Claim::resume(locks.lock(hold.name.clone()), hold.token.clone());
        let claims: Vec<Claim> = self.inherited.iter().map(claim).collect();
        let states = Claim::check_all(&claims, &mut locks.client(), Duration::ZERO)?;
        let mut states = states.iter();
        let is_held = |_: &_| matches!(states.next(), Some(LeaseState::Held { .. }));
        self.inherited.retain(is_held);
        Ok(())
    }

    /// Reenters a lock that a surrounding run holds. Returns false if none does.
    fn reenter(&self, lock: &Lock, holds: &mut HeldLocks) -> Result<bool> {
        // Searches backwards, because the innermost hold is the last.
        let mut outer = self.inherited.iter().rev();
        let Some(JobHold { name, token, .. }) = outer.find(|hold| &hold.name == lock.name()) else {
            return Ok(false);
        };
        let Request { ttl, limit, .. } = self.request;
        let claim = Claim::resume(lock.clone(), token.clone());
        holds.client.open()?;
        let sent = now();
        let reentry = claim.reenter(&mut holds.client, ttl)?;
        holds.answered = true;
        // If the lock isn't held (any more), the entry belongs to another server or to a job that has ended.
        let Some(Reentry {
            fence,
            limit: theirs,
            slot,
        }) = reentry
        else {
            return Ok(false);
        };
        if theirs > limit {
            let line = format!(
                "this job already holds lock \"{name}\" {}, so it can't also acquire it {1}; have the outer run acquire it {1}, or use another name",
                theirs.adverb(),
                limit.adverb()
            );
            return refuse(Exit::Usage, line);
        }
        let line = format_args!("lock \"{name}\" is already held by this job");
        self.settings.verbosity.verbose(line);
        let hold = HeldLock {
            claim,
            fence,
            // An exclusive holder occupies the first slot.
            slot: slot.max(1),
            reentrant: true,
            guard: None,
            waited: Duration::ZERO,
        };
        holds.add(hold, Lease::new(sent, self.terms));
        Ok(true)
    }

    /// Returns the variables for the work under the locks.
    pub fn environment(&self, holds: &HeldLocks, slots: bool) -> Environment {
        holds.environment(&self.names, &self.inherited, &self.request.who, slots)
    }
}

/// Fails if there is a signal, with the exit for a process that hasn't started its work.
pub fn fail_on(signal: Option<i32>) -> Result<()> {
    match signal {
        None => Ok(()),
        Some(signal) if asks_to_end(signal) => refuse(Exit::Interrupted(signal), String::new()),
        Some(signal) => refuse(Exit::Signal(signal), String::new()),
    }
}

/// Opens a connection in a process that collects its signals. Returns a signal
/// that ends this process, if one arrives before the connection is open.
pub fn open(client: &mut Client, signals: &Signals) -> Result<Option<i32>, Error> {
    if client.is_open() {
        return Ok(None);
    }
    in_background(client, signals, Client::open, |own| poll::sleep(own, None)).map(Result::err)
}

/// Does `work` with the connection in a thread. `sleep` waits for these descriptors, and may attend to others. Returns
/// a signal that ends this process if the signal comes before the work is done; the connection is lost then.
fn in_background<T: Send + 'static>(
    client: &mut Client,
    signals: &Signals,
    work: impl FnOnce(&mut Client) -> Result<T, Error> + Send + 'static,
    mut sleep: impl FnMut([Option<BorrowedFd<'_>>; 2]) -> io::Result<()>,
) -> Result<Result<T, i32>, Error> {
    let failed = |error| {
        let line = format!("can't wait for Redis: {error}");
        Error::new(ErrorKind::Internal, line)
    };
    let mut other = client.hand_over();
    let work = move || (work(&mut other), other);
    let running = Background::start(work).map_err(failed)?;
    loop {
        sleep([Some(signals.as_fd()), Some(running.as_fd())]).map_err(failed)?;
        if let Some((result, other)) = running.finished() {
            *client = other;
            client.lift_limit();
            return result.map(Ok);
        }
        if let Some(signal) = signals.next_ending().map_err(failed)? {
            return Ok(Err(signal));
        }
    }
}

/// Sleeps until `moment`. Returns the signal that interrupted the sleep, if any.
pub fn sleep_until(moment: Moment, signals: &Signals) -> Result<Option<i32>> {
    while now() < moment {
        let mut fds = [poll::readable(signals.as_fd())];
        poll::wait(&mut fds, Some(moment.since(now())))?;
        if let Some(signal) = signals.next_ending()? {
            return Ok(Some(signal));
        }
    }
    Ok(None)
}

/// Returns a random number from 0 to 1.
pub fn random_fraction() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

//! The time while COMMAND runs: events go to the session, and its decisions are carried out here.
//!
//! The only way out is to stop COMMAND, reap it, and release the locks, in this order. What is decided is
//! done first and reported after that.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::Pid;

use super::{EventSources, Job, Run, cannot_run, survivors};
use crate::child::{Child, Conditions, Reaped, Refused};
use crate::cli::OnLost;
use crate::clock::{Moment, Timer, now};
use crate::command::acquisition::{HeldLocks, LockTrouble, cancelled, lost, sleep};
use crate::decide::exit::Exit;
use crate::decide::job_control::{JobControl, Seen, Step};
use crate::decide::renewals::Report;
use crate::decide::session::{self, Session, StopReason};
use crate::duration;
use crate::process;
use crate::protocol;
use crate::report;
use crate::signal::{SIGCHLD, SIGCONT, SIGTSTP, Signals, ends_waiting};
use crate::sys;
use crate::systemd;
use crate::tree::{self, Stat};

/// How long COMMAND has to run before the processes are started that tell a signal to the whole job from one to redlock
/// alone: a short run never has them. Until then what a process sends to the job reaches COMMAND twice.
const WATCH_GROUP_AFTER: Duration = Duration::from_millis(50);

/// How many signals, and how many ended children, are taken in before the next look at the clock.
const AT_ONCE: usize = 64;

/// To look for all that works under the locks may take this part of the time until it has to be stopped.
const LOOKS_FOR: u32 = 8;

/// How long to wait for a COMMAND that was killed because we can't go on.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(1);

impl Run<'_> {
    /// Starts a job and does what the session decides until it has ended. A job that can't be reaped
    /// may still be at work: its locks are left to their leases.
    pub(super) fn supervise(
        &self,
        job: &Job,
        holds: &mut HeldLocks,
        senses: &mut EventSources,
    ) -> JobResult {
        let EventSources { signals, timer } = senses;
        let conditions = Conditions {
            own_group: !self.on_terminal,
            sigchld_ignored: signals.sigchld_ignored,
            not_after: holds.lease().map(|lease| lease.deadline()),
            is_marked: holds.is_marked(),
        };
        let child = match Child::spawn(&job.prepared, &job.environment, &conditions) {
            Ok(child) => child,
            Err(error) => {
                let exit = cannot_run(&job.words, &error);
                return JobResult { exit, signal: None };
            }
        };
        if job.is_service {
            let what = report::describe_job(&self.acquisition.request.who);
            systemd::ready(&format!("running {what}"));
        }
        let policy = session::Policy {
            on_terminal: self.on_terminal,
            leads_session: nix::unistd::getsid(None) == Ok(nix::unistd::getpid()),
            only_warn: self.options.on_lost == OnLost::Warn,
            wait_tree: self.options.wait_tree,
            kill_after: self.options.kill_after,
            timeout_at: job.timeout.map(|timeout| now() + timeout),
        };
        let mut supervision = Supervision {
            run: self,
            job,
            session: Session::new(policy),
            child,
            holds,
            trouble: None,
            said_not_replicated: false,
            refused: Vec::new(),
            survivors_named: false,
            killed: false,
            tree_ended: false,
            more_to_reap: false,
            job_control: JobControl::new(self.on_terminal),
            has_overslept: false,
            signal: None,
            watch_group_at: self.on_terminal.then(|| now() + WATCH_GROUP_AFTER),
            signals,
            timer,
        };
        let exit = match supervision.watch() {
            Ok(exit) => exit,
            Err(error) => supervision.give_up(&error),
        };
        supervision.end(exit)
    }
}

/// How a job ended.
pub(super) struct JobResult {
    pub(super) exit: Exit,
    /// The first signal that came from outside and asked us to end.
    pub(super) signal: Option<i32>,
}

/// A COMMAND that runs.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
struct Supervision<'a> {
    run: &'a Run<'a>,
    job: &'a Job,
    session: Session,
    child: Child,
    holds: &'a mut HeldLocks,
    /// What went wrong with the locks last.
    trouble: Option<LockTrouble>,
    /// It was said that renewals aren't replicated, and so don't count.
    said_not_replicated: bool,
    /// Processes that we may not signal; said once.
    refused: Refused,
    /// It was said what can't be killed.
    survivors_named: bool,
    killed: bool,
    /// COMMAND has ended, and the kernel says that nothing of its tree is left.
    tree_ended: bool,
    /// More children may have ended than were taken in at once.
    more_to_reap: bool,
    job_control: JobControl,
    /// We should have woken before COMMAND had to be stopped, and woke later.
    has_overslept: bool,
    signal: Option<i32>,
    /// `None` once that is done, and where COMMAND leads a group of its own from the start.
    watch_group_at: Option<Moment>,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

impl Supervision<'_> {
    /// Waits for whatever comes next, until the session says that the run is over.
    fn watch(&mut self) -> Result<Exit> {
        loop {
            if let Some(exit) = self.apply(session::Event::Tick)? {
                return Ok(exit);
            }
            if self.holds.renewal_is_due() {
                self.renew();
            }
            if let Some(exit) = self.reap()? {
                return Ok(exit);
            }
            if let Some(exit) = self.notice_stop()? {
                return Ok(exit);
            }
            if self.watch_group_at.is_some_and(|at| now() >= at) {
                self.watch_group_at = None;
                self.signals.watch_group();
            }
            let stopped = self.job_control.due();
            let due = self.session.due(self.holds.lease()).into_iter();
            let due = due.chain(self.holds.due());
            let more = self.more_to_reap.then(now);
            let due = due.chain(stopped).chain(more).chain(self.watch_group_at);
            let due = due.min();
            self.timer.set(due)?;
            let own = [Some(self.signals.as_fd()), Some(self.timer.as_fd())];
            sleep(own.into_iter().chain(self.holds.poll_fds()), None)?;
            // Where we were late, a renewal may have succeeded meanwhile.
            let stop = self.next_stop();
            self.has_overslept |= stop.is_some_and(|stop| was_suspended(due, stop, now()));
            if stop.is_some_and(|stop| now() >= stop)
                && let Some(exit) = self.take_reports()?
            {
                return Ok(exit);
            }
            if let Some(exit) = self.take_signals()? {
                return Ok(exit);
            }
            // Another run may wait for what we hold; all else has time.
            if let Some(exit) = self.reap()? {
                return Ok(exit);
            }
            if let Some(exit) = self.take_reports()? {
                return Ok(exit);
            }
        }
    }

    /// Takes in the signals that have come.
    fn take_signals(&mut self) -> Result<Option<Exit>> {
        for _ in 0..AT_ONCE {
            let Some(received) = self.signals.next()? else {
                break;
            };
            if received.signal == SIGCHLD {
                // What ended is seen by reaping.
                self.look_whether_stopped();
                continue;
            }
            if ends_waiting(received.signal) {
                self.signal.get_or_insert(received.signal);
            }
            if let Some(exit) = self.apply(session::Event::Signal(received))? {
                return Ok(Some(exit));
            }
        }
        Ok(None)
    }

    /// Takes in what became of renewals.
    fn take_reports(&mut self) -> Result<Option<Exit>> {
        for report in self.holds.reports() {
            let event = self.event_of(report);
            if let Some(exit) = self.apply(event)? {
                return Ok(Some(exit));
            }
        }
        Ok(None)
    }

    /// Takes ended children in.
    fn reap(&mut self) -> Result<Option<Exit>> {
        self.more_to_reap = false;
        // What was killed ends all at once, and to look for what is left takes longer the more of it is there.
        let at_once = if self.killed { usize::MAX } else { AT_ONCE };
        for _ in 0..at_once {
            let Some(reaped) = self.child.reap()? else {
                return Ok(None);
            };
            let exit = match reaped {
                Reaped::Child(status) => {
                    self.holds.tell_watchdog_reaped();
                    // One for the whole job has come before COMMAND could end by it.
                    if let Some(exit) = self.take_signals()? {
                        return Ok(Some(exit));
                    }
                    self.apply(session::Event::Ended(status))?
                }
                Reaped::Other => None,
                Reaped::Tree => {
                    self.tree_ended = true;
                    return self.apply(session::Event::TreeEnded);
                }
            };
            if exit.is_some() {
                return Ok(exit);
            }
        }
        self.more_to_reap = true;
        Ok(None)
    }

    fn look_whether_stopped(&mut self) {
        self.job_control.look(|| self.child.is_stopped(), now());
    }

    /// Stops ourselves until we are continued, or something of COMMAND's tree works on; continues the job then, if that is
    /// meant.
    fn suspend(&mut self) -> Result<Refused> {
        let stop = self.next_stop();
        let patience = self
            .job_control
            .stopping(stop.map(|stop| stop.since(now())));
        let (continued, works) = self.stop_ourselves(patience)?;
        self.has_overslept |= stop.is_some_and(|stop| now() >= stop);
        let is_meant = self.job_control.resumed(continued, works);
        // Where COMMAND is stopped, and what it has started is not yet, we stop again later.
        self.look_whether_stopped();
        // The job may be stopped again by now.
        let is_meant = is_meant && self.child.is_stopped() && !sys::is_pending(SIGTSTP);
        Ok(if is_meant {
            self.child.continue_job()
        } else {
            Refused::new()
        })
    }

    /// Whether somebody else has continued us, and whether we were woken for what works on.
    fn stop_ourselves(&mut self, patience: Duration) -> Result<(bool, bool)> {
        if !self.run.on_terminal {
            return Ok((self.signals.suspend()?, false));
        }
        let command = self.child.pid();
        let child = &self.child;
        let is_stopped = |pid| Stat::read(pid).is_some_and(|stat| stat.is_stopped);
        let goes_on = || !is_stopped(command) || !child.has_tree_stopped();
        let own = Pid::this();
        // COMMAND may be continued alone, and what it has started need not stop with it; neither may work without
        // us. Where no process can be made for that, we stop all the same: the terminal waits for it.
        let waker = sys::Waker::start(patience, goes_on, || is_stopped(own)).ok();
        let continued = self.signals.suspend()?;
        if !continued && self.child.is_outside() {
            // No shell could continue us, nor COMMAND.
            let refused = self.child.forward(SIGCONT);
            self.note_refused(refused);
        }
        Ok((continued, waker.is_some_and(|waker| waker.has_woken())))
    }

    /// Stops with a COMMAND that has been stopped for long enough, or continues the job.
    fn notice_stop(&mut self) -> Result<Option<Exit>> {
        if self.job_control.due().is_none_or(|due| now() < due) {
            return Ok(None);
        }
        let command_is_stopped = self.child.is_stopped();
        let step = self.job_control.on_stopped(Seen {
            command_is_stopped,
            tree_is_stopped: command_is_stopped && self.child.has_tree_stopped(),
            in_foreground: sys::is_in_foreground(),
        });
        let exit = match step {
            Some(Step::Stop) => self.apply(session::Event::Stopped)?,
            Some(Step::Continue) => {
                let refused = self.child.continue_job();
                self.note_refused(refused);
                None
            }
            None => None,
        };
        // It may be stopped still, and what it has started may be stopped later.
        self.look_whether_stopped();
        Ok(exit)
    }

    /// What the renewer reports as an event; what only matters for messages is kept.
    fn event_of(&mut self, report: Report) -> session::Event {
        let is_renewal = matches!(report, Report::Renewed(_));
        let (event, trouble) = self.holds.record(report);
        let verbosity = self.run.verbosity();
        match trouble {
            Some(LockTrouble::Unreachable(error)) => self.note_failure(error),
            Some(LockTrouble::Released(name)) => {
                verbosity.verbose(format_args!("the command released lock \"{name}\""));
            }
            Some(trouble @ (LockTrouble::Lost(..) | LockTrouble::Cancelled(..))) => {
                self.trouble = Some(trouble);
            }
            None => {}
        }
        if is_renewal {
            self.has_overslept = false;
            if std::mem::take(&mut self.said_not_replicated) {
                verbosity.info("renewals count again");
            } else {
                verbosity.verbose("lease renewed");
            }
            // What was lost, or is wanted, stays so.
            if let Some(LockTrouble::Unreachable(_)) = self.trouble {
                self.trouble = None;
            }
        }
        event.map_or(session::Event::Tick, session::Event::Lease)
    }

    fn note_failure(&mut self, error: protocol::Error) {
        let verbosity = self.run.verbosity();
        let is_replicated = error.kind != protocol::ErrorKind::NotReplicated;
        if is_replicated || std::mem::replace(&mut self.said_not_replicated, true) {
            verbosity.verbose(format_args!("renewal failed: {error}"));
        } else {
            verbosity.info(format_args!(
                "a renewal doesn't count, and if no later one does, the command is stopped before its lease ends: {error}"
            ));
        }
        self.trouble = Some(LockTrouble::Unreachable(error));
    }

    /// Lets the session decide about an event, carries that out, and goes on with the events that follow from it.
    fn apply(&mut self, event: session::Event) -> Result<Option<Exit>> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let lease = self.holds.lease();
            let actions = self.session.on_event(event, lease, now());
            // Before COMMAND is told, which may stop us.
            let (dead_by, by_renewal) =
                (self.session.dead_by(lease), self.session.by_renewal(lease));
            self.holds.tell_watchdog(dead_by, by_renewal);
            for action in actions {
                match action {
                    session::Action::Finish(exit) => return Ok(Some(exit)),
                    other => events.extend(self.perform(other)?),
                }
            }
        }
        Ok(None)
    }

    /// Does what the session has decided; returns the results.
    fn perform(&mut self, action: session::Action) -> Result<Vec<session::Event>> {
        let mut events = Vec::new();
        let refused = match action {
            session::Action::Forward(signal) => {
                self.job_control.passed_on(signal);
                self.child.forward(signal)
            }
            session::Action::ForwardOutside(signal) => self.child.forward_outside(signal),
            session::Action::Suspend => self.suspend()?,
            session::Action::Warn => {
                self.holds.stop_renewing();
                let loss = self.loss_message();
                report::error(format_args!(
                    "{loss}; the command continues without the lock"
                ));
                Refused::new()
            }
            session::Action::Terminate(reason) => {
                let (refused, walk) = self.child.terminate(self.next_stop(), false);
                self.session.walked(walk);
                self.announce(reason, "stopping the command");
                refused
            }
            session::Action::TerminateOutside => {
                let (refused, walk) = self.child.terminate(self.next_stop(), true);
                self.session.walked(walk);
                self.announce(StopReason::Signal, "stopping the command");
                refused
            }
            session::Action::TerminateOthers => self.child.terminate_others(),
            session::Action::Kill(reason) => {
                let refused = self.child.kill();
                self.killed = true;
                self.announce(reason, "killing the command");
                refused
            }
            session::Action::KillRest => self.child.kill(),
            session::Action::NameSurvivors => {
                self.name_survivors();
                Refused::new()
            }
            session::Action::Finish(_) => Refused::new(),
        };
        events.extend(self.note_refused(refused));
        Ok(events)
    }

    /// Reports what can't be killed, and why, and that the lock is kept for it.
    fn name_survivors(&mut self) {
        let left = self.child.left();
        let what = if self.holds.all.is_empty() {
            "redlock waits for it"
        } else {
            "the lock is kept until it has ended"
        };
        report::error(format_args!(
            "{}; {what}; interrupt redlock again to leave it",
            survivors::described(&left)
        ));
        self.survivors_named = true;
    }

    /// Renews the lease. With the first renewal comes all that a short run never has.
    fn renew(&mut self) {
        let noted = now();
        let dead_by = self.session.dead_by(self.holds.lease());
        self.holds.start_watchdog(&self.child, dead_by);
        self.holds.renew();
        self.leave_marks(noted);
    }

    /// When COMMAND has to be asked to stop, or killed.
    fn next_stop(&self) -> Option<Moment> {
        self.session.next_stop(self.holds.lease())
    }

    /// Notes down what works under the locks. What was found in too little time is less than there is, so that the
    /// earlier note says more.
    fn leave_marks(&mut self, noted: Moment) {
        // The renewal is under way meanwhile, and its answer has to be heard in time.
        let left = self.next_stop().map(|stop| stop.since(noted));
        let until = left.map(|left| noted + left / LOOKS_FOR);
        self.session.walked(self.child.look(until));
        // What had moved or was hidden by one that ended, while we looked, is found the second time.
        if self.child.found().len() <= process::MEMBERS {
            self.child.look_again(until);
        }
        if until.is_none_or(|until| now() < until) {
            let ancestors = tree::ancestors(Pid::this());
            let members = self.child.found();
            self.holds.leave_marks(noted, members, ancestors.as_deref());
        }
    }

    /// Reports which processes we may not signal, once.
    fn note_refused(&mut self, refused: Refused) -> Option<session::Event> {
        if refused.is_empty() || !self.refused.is_empty() {
            return None;
        }
        report::error(format_args!(
            "not permitted to signal {}, which the command has become or started",
            survivors::numbers(refused.iter().copied())
        ));
        self.refused = refused;
        Some(session::Event::Refused)
    }

    /// Something that supervising needs has failed: what can't be watched over is killed.
    fn give_up(&mut self, error: &anyhow::Error) -> Exit {
        self.killed = true;
        let until = now() + GIVE_UP_WITHIN;
        let mut exit = Exit::Internal;
        loop {
            let _ = self.child.kill();
            match self.child.reap() {
                Ok(Some(Reaped::Tree)) => {
                    self.tree_ended = true;
                    break;
                }
                Ok(Some(Reaped::Other)) => {}
                Ok(Some(Reaped::Child(status))) => {
                    // A COMMAND that was killed has no exit status.
                    if status.code().is_some() {
                        let lease = self.holds.lease();
                        self.session
                            .on_event(session::Event::Ended(status), lease, now());
                        exit = self.session.exit();
                    }
                }
                Ok(None) | Err(_) if now() >= until => break,
                Ok(None) | Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let killed = match exit {
            Exit::Internal => ", so it was killed",
            _ => "",
        };
        report::error(format_args!(
            "can't watch over the command any more{killed}: {error:#}"
        ));
        exit
    }

    /// The run is over: reports what is left of it, and keeps what must not be released. Only the kernel's word that
    /// nothing is left counts.
    fn end(self, exit: Exit) -> JobResult {
        self.holds.dismiss_watchdog();
        let is_over = self.tree_ended || (self.child.is_reaped() && !self.killed);
        if !is_over {
            let left = self.child.left();
            let what = if self.survivors_named && !left.is_empty() {
                let left = left.iter().map(|left| left.pid);
                format!("left {} running", survivors::numbers(left))
            } else {
                survivors::described(&left)
            };
            let lock = if self.holds.all.is_empty() {
                ""
            } else {
                "; the lock is not released and expires with its lease"
            };
            report::error(format_args!("{what}{lock}"));
            self.holds.leave_to_expire();
        }
        JobResult {
            exit,
            signal: self.signal,
        }
    }

    fn announce(&self, reason: StopReason, what: &str) {
        match reason {
            StopReason::Lost | StopReason::Cancelled => {
                report::error(format_args!("{}; {what}", self.loss_message()));
            }
            StopReason::Timeout => {
                let timeout = self.job.timeout.unwrap_or_default();
                let limits = &self.run.options.acquire.wait;
                // A user of flock may have meant the wait.
                let hint = if limits.wait.is_none() && !limits.no_wait {
                    " (--wait limits the wait for the lock)"
                } else {
                    ""
                };
                report::error(format_args!(
                    "ran longer than --timeout {}{hint}; {what}",
                    duration::exact(timeout)
                ));
            }
            StopReason::Signal => self.run.verbosity().verbose(what),
            StopReason::Leftovers => {
                if !self.child.left().is_empty() {
                    let line = "the command was killed; stopping what it has started";
                    self.run.verbosity().verbose(line);
                }
            }
        }
    }

    /// What happened to the lock, in words.
    fn loss_message(&self) -> String {
        let what = match self.run.acquisition.names.as_slice() {
            [name] => format!("lock \"{name}\" was"),
            _ => "the locks were".into(),
        };
        match &self.trouble {
            Some(LockTrouble::Lost(name, loss)) => lost(name, loss),
            Some(LockTrouble::Cancelled(name, by)) => cancelled(name, by),
            Some(LockTrouble::Unreachable(error)) => {
                format!("{what} not renewed in time: {error}")
            }
            Some(LockTrouble::Released(_)) | None if self.holds.is_asking() => {
                let locks = &self.run.acquisition.settings.locks;
                format!("{what} not renewed in time: no answer from Redis at {locks}")
            }
            Some(LockTrouble::Released(_)) | None if self.has_overslept => {
                format!("{what} not renewed in time: redlock or this machine was suspended")
            }
            Some(LockTrouble::Released(_)) | None => {
                format!("{what} not renewed in time: Redis answered too late")
            }
        }
    }
}

/// Whether redlock or this machine stood still: it was to wake before COMMAND had to be stopped, and woke after that.
/// Where nothing was due before, waking then is no sign of it.
fn was_suspended(due: Option<Moment>, stop: Moment, woke: Moment) -> bool {
    due.is_some_and(|due| due < stop) && woke >= stop
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_was_suspended_only_where_it_woke_too_late_for_what_was_due_before_its_stop() {
        let at = |ms| Moment::at(Duration::from_millis(ms));
        let stop = at(1000);
        for (due, woke, expected) in [
            (Some(at(999)), at(1000), true),
            (Some(at(500)), at(9000), true),
            // In time, though late.
            (Some(at(500)), at(999), false),
            // What it was to wake for was the stop itself, or later.
            (Some(stop), at(1000), false),
            (Some(stop), at(9000), false),
            (Some(at(1001)), at(9000), false),
            (None, at(9000), false),
        ] {
            assert_eq!(was_suspended(due, stop, woke), expected, "{due:?} {woke:?}");
        }
    }
}

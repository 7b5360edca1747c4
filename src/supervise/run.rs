//! Supervision while COMMAND is running: passes events to the session, and performs its actions.
//!
//! The loop ends only after it has stopped COMMAND, reaped it, and released
//! the locks, in this order. redlock acts first and reports second.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::getpgrp;

pub use super::messages::SupervisionTerms;
use super::messages::{self, Messages};
use super::{HeldLocks, LoopStep, Supervision, needed, procfs, survivors};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::job_control::JobControl;
use crate::decide::renewals::LockNews;
use crate::decide::session::{self, Action, Session, StopReason};
use crate::duration;
use crate::report::{self, describe_job};
use crate::signal::{
    SIGCHLD, SIGCONT, SIGTERM, SIGTSTP, SIGURG, Signals, asks_to_end, ends_waiting,
};
use crate::supervise::child::Child;
pub use crate::supervise::child::Work;
use crate::supervise::procfs::Stat;
use crate::supervise::script::KeptScript;
use crate::supervise::watchdog::Watchdog;
use crate::sys::{self, Reach, ReceivedSignal, SpawnError, TerminalModes, poll};
use crate::systemd;

/// Longest delay between redlock and the watchdog in receiving a signal for the whole
/// job. Only signals that ask the job to end are worth this wait; others come often.
const REACHES_ALL_WITHIN: Duration = Duration::from_millis(50);

/// Number of signals to handle before checking the clock again.
const AT_ONCE: usize = 64;

/// Part of the time until the work must stop that a search for its processes may take.
const LOOKS_FOR: u32 = 8;

/// Longest wait for a COMMAND that was killed because redlock can't go on.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(1);

/// Sources of a run's signals and timeouts.
pub struct EventSources {
    pub signals: Signals,
    pub timer: Timer,
}

impl EventSources {
    pub fn new(on_terminal: bool) -> Result<Self> {
        Ok(Self {
            signals: Signals::take(on_terminal).context("can't take signals")?,
            timer: Timer::new().context("can't make a timer")?,
        })
    }
}

/// Starts the work and supervises it until it ends. If something couldn't be
/// reaped it may still be working, so its locks are left to their leases.
pub fn supervise(
    terms: &SupervisionTerms,
    work: &Work,
    holds: &mut HeldLocks,
    sources: &mut EventSources,
) -> Result<WorkResult, SpawnError> {
    let EventSources { signals, timer } = sources;
    let on_terminal = terms.policy.on_terminal;
    let modes = on_terminal.then(TerminalModes::read).flatten();
    let not_after = holds.lease().map(|lease| lease.deadline().since_boot());
    let child = Child::spawn(work, !on_terminal, signals, not_after, holds.ids())?;
    systemd::ready(&format!("running {}", describe_job(terms.who, "", true)));
    let mut supervision = Supervision::new(terms, child, holds, signals);
    supervision.modes = modes;
    // A job that runs without locks has acquired nothing.
    if !supervision.holds.all.is_empty() {
        supervision.messages.tell("acquired", None);
    }
    let exit = supervision.run(timer);
    Ok(supervision.end(exit))
}

/// Result of a supervised job.
pub struct WorkResult {
    pub exit: Exit,
    /// Time that the work took.
    pub ran: Duration,
    /// Client that has taken the lock or stopped the work, if it is known and there is a hook.
    pub by: Option<String>,
}

/// Time before the end of a lease from which killed work that is still alive keeps its lock.
const INSIST_BEFORE: Duration = Duration::from_millis(100);

/// Returns true if timeout(1) has sent a signal to the whole process group. timeout ignores that
/// signal, and continues the group after it. Any other sender in the group, such as a script's
/// `kill $!`, may have meant redlock alone. So COMMAND rather gets the signal twice than never.
fn was_sent_to_group(received: &ReceivedSignal) -> bool {
    let is_relay = |sender: Stat| {
        let is_in_group = sender.group == getpgrp().as_raw();
        sender.is_timeout && is_in_group && sender.ignores(received.signal)
    };
    let sender = received.sender.and_then(Stat::read);
    sender.is_some_and(is_relay) && sys::is_pending(SIGCONT)
}

impl<'a> Supervision<'a> {
    pub(super) fn new(
        terms: &'a SupervisionTerms<'a>,
        child: Child,
        holds: &'a mut HeldLocks,
        signals: &'a Signals,
    ) -> Self {
        let began = now();
        Self {
            terms,
            messages: Messages::new(terms),
            child,
            session: Session::new(terms.policy, began),
            holds,
            signals,
            survivors_named: false,
            job_control: JobControl::new(terms.policy.on_terminal),
            stood_still: false,
            signal: None,
            modes: None,
            began,
        }
    }

    /// Handles the signals that have arrived.
    fn take_signals(&mut self) -> LoopStep {
        for _ in 0..AT_ONCE {
            let Some(received) = needed(self.signals.next())? else {
                break;
            };
            if received.signal == SIGCHLD {
                // `reap` finds the processes that have ended.
                self.look_whether_stopped();
                continue;
            }
            // A keeper heeds only SIGTERM, which it forwards. Once it has killed
            // the script, SIGTERM means that nobody should wait for the rest.
            if self.child.script.is_some() {
                if received.signal != SIGTERM {
                    continue;
                }
                if !self.session.has_killed() {
                    self.child.forward(SIGTERM);
                    continue;
                }
            }
            if ends_waiting(received.signal) {
                self.signal.get_or_insert(received.signal);
            }
            let reach = self.reach_of(&received);
            let received = ReceivedSignal { reach, ..received };
            self.apply(session::Event::Signal(received))?;
        }
        ControlFlow::Continue(())
    }

    /// Returns which processes, besides redlock, have got a signal. The session judges signals from the terminal.
    fn reach_of(&mut self, received: &ReceivedSignal) -> Reach {
        if received.from_kernel {
            Reach::Unknown
        } else if self.has_reached_all(received) {
            Reach::All
        } else if self.terms.policy.on_terminal && was_sent_to_group(received) {
            Reach::Group
        } else {
            Reach::Unknown
        }
    }

    /// Returns true if every process of the job has got a signal, because the
    /// watchdog has got it from the same sender. (`pkill -P` signals redlock's
    /// children, and with them the watchdog, but another process signals redlock.)
    fn has_reached_all(&mut self, received: &ReceivedSignal) -> bool {
        let within = if asks_to_end(received.signal) {
            REACHES_ALL_WITHIN
        } else {
            Duration::ZERO
        };
        let stop = self.next_stop();
        let within = stop.map_or(within, |stop| within.min(stop.since(now())));
        let watchdog = self.holds.watchdog.as_mut();
        watchdog.is_some_and(|watchdog| watchdog.has_got(received, within))
    }

    /// Waits until redlock also gets the signal that ended COMMAND, if COMMAND has left processes. A signal for
    /// the whole job may reach redlock last: Jenkins begins with the children. They then need no second signal.
    fn await_own(&self, signal: Option<i32>) {
        let Some(signal) = signal.filter(|&signal| asks_to_end(signal)) else {
            return;
        };
        if self.child.tree.left().is_empty() {
            return;
        }
        let until = now() + REACHES_ALL_WITHIN;
        let until = self.next_stop().map_or(until, |stop| stop.min(until));
        while !sys::is_pending(signal) && now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn look_whether_stopped(&mut self) {
        self.job_control.look(|| self.child.stopped_by(), now());
    }

    /// Suspends redlock until another process continues it, and then continues the job
    /// if that was meant. The watchdog kills the work if the lease ends meanwhile.
    fn suspend(&mut self) -> io::Result<()> {
        let stop = self.next_stop();
        let is_continued = self.signals.suspend()?;
        self.stood_still |= stop.is_some_and(|stop| now() >= stop);
        // COMMAND may have been continued and stopped again.
        self.job_control.forget();
        self.look_whether_stopped();
        if !self.terms.policy.on_terminal {
            return Ok(());
        }
        if is_continued && self.child.stopped_by().is_some() && !sys::is_pending(SIGTSTP) {
            // Another process has continued only redlock, and means the whole job.
            self.child.continue_job();
        } else if !is_continued && self.child.is_outside() {
            // redlock couldn't be suspended, because no shell would continue it, so it continues COMMAND.
            self.child.forward(SIGCONT);
        }
        Ok(())
    }

    /// Suspends redlock too when COMMAND and all that it started have been
    /// stopped for long enough. A process that is still working needs the lock.
    fn notice_stop(&mut self) -> LoopStep {
        if self.job_control.due().is_none_or(|due| now() < due) {
            return ControlFlow::Continue(());
        }
        self.job_control.forget();
        if self.child.stopped_by().is_some() && self.child.tree.is_stopped() {
            self.apply(session::Event::Stopped)?;
        }
        // COMMAND may still be stopped, and its children may be stopped later.
        self.look_whether_stopped();
        ControlFlow::Continue(())
    }

    /// Searches for all processes of the work, because children are harder to find after their parents have ended.
    fn look_at_work(&mut self) {
        // The search must be short, because the answer to the current renewal must be handled in time.
        let began = now();
        let left = self.next_stop().map(|stop| stop.since(began));
        let until = left.map(|left| began + left / LOOKS_FOR);
        self.child.look(until);
        self.session.walked(self.child.walk);
    }

    /// Reports once which processes redlock may not signal.
    fn note_refused(&mut self) {
        let mut refused = std::mem::take(&mut self.child.refused);
        if refused.is_empty() || self.session.was_refused() {
            return;
        }
        refused.sort();
        refused.dedup();
        report::error(format_args!(
            "redlock isn't permitted to signal {} (the command itself, or started by it)",
            survivors::list(&refused, survivors::number)
        ));
    }

    /// Kills the work, because a call that supervising needs has failed. A keeper that only warns sends its warning.
    fn give_up(&mut self, error: &anyhow::Error) -> Exit {
        if self.child.script.is_some() && self.terms.policy.only_warn {
            self.child.forward(SIGURG);
            return Exit::Lost;
        }
        self.session.give_up(now());
        let until = now() + GIVE_UP_WITHIN;
        while now() < until && !self.session.is_over() {
            self.child.kill();
            match self.child.reap() {
                Ok(Some(event)) => drop(self.decide(event)),
                Ok(None) | Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        report::error(format_args!(
            "can't supervise the command any more, so it was killed: {error:#}"
        ));
        Exit::Internal
    }

    /// Ends the run: reports processes that are left, and keeps locks that
    /// must not be released. Only the kernel can confirm that nothing is left.
    pub(super) fn end(mut self, exit: Result<Exit>) -> WorkResult {
        let exit = exit.unwrap_or_else(|error| self.give_up(&error));
        self.signals.forget_late();
        // Not if nothing is left: a watchdog that is woken now delays the next holder, by a tenth of a hand-over.
        if let Some(watchdog) = &self.holds.watchdog
            && !matches!(self.child.reap(), Ok(Some(session::Event::TreeEnded)))
        {
            watchdog.dismiss();
        }
        if !self.session.is_over() {
            let left = self.child.tree.left();
            let what = if self.survivors_named && !left.is_empty() {
                let left = survivors::list(&left, survivors::number);
                format!("left {left} running")
            } else {
                survivors::described(&left)
            };
            let lock = if self.holds.all.is_empty() {
                ""
            } else {
                "; the lock is not released and expires with its lease"
            };
            report::error(format_args!("{what}{lock}"));
            self.holds.leave();
        }
        // Processes that redlock can't see may still be working.
        let may_leave_work = self.terms.policy.with_children || !matches!(exit, Exit::Command(_));
        if self.child.script.is_some() && may_leave_work && !procfs::sees_all() {
            self.holds.leave();
        }
        if let (Some(modes), false) = (&self.modes, matches!(exit, Exit::Command(_))) {
            modes.restore();
        }
        if let Exit::Signal(number) = exit
            && Some(number) != self.signal
            && !(self.session.has_killed() && number == sys::SIGKILL)
        {
            messages::report_foreign_kill(number);
        }
        WorkResult {
            exit,
            ran: now().since(self.began),
            by: self.terms.hook.and_then(|_| self.messages.by()),
        }
    }

    fn announce(&self, reason: StopReason, what: &str) {
        match reason {
            StopReason::Lost | StopReason::Cancelled => {
                report::error(format_args!("{}; {what}", self.loss()));
            }
            StopReason::Timeout => {
                let max_runtime = duration::exact(self.terms.policy.timeout.unwrap_or_default());
                report::error(format_args!(
                    "ran longer than --max-runtime {max_runtime}; {what}"
                ));
            }
            StopReason::Signal => self.terms.verbosity.verbose(what),
            StopReason::Leftovers => {
                if !self.child.tree.left().is_empty() {
                    let line = "the command was killed; stopping the processes it started";
                    self.terms.verbosity.verbose(line);
                }
            }
        }
    }

    /// Returns the reason for the loss of the lock, in words.
    fn loss(&self) -> String {
        // Checked first, because a renewal is under way after a suspend as well.
        let silence = if self.stood_still {
            "redlock or this machine was suspended".into()
        } else if self.holds.renewals.is_under_way() {
            format!("no answer from Redis at {}", self.terms.locks.server())
        } else {
            "Redis answered too late".into()
        };
        self.messages.loss(&silence)
    }

    /// Performs `action`, or ends the loop.
    pub(super) fn perform(&mut self, action: Action) -> LoopStep {
        match action {
            Action::Forward(signal) => {
                self.job_control.forwarded(signal);
                self.child.forward(signal);
            }
            Action::ForwardOutside(signal) => self.child.forward_outside(signal),
            Action::Suspend => needed(self.suspend())?,
            Action::Warn if self.child.script.is_some() => {
                self.child.forward(SIGURG);
                return ControlFlow::Break(Ok(Exit::Lost));
            }
            Action::Warn => {
                if !self.messages.has_lost_one() {
                    self.holds.renewals.give_up();
                }
                report::error(format_args!(
                    "{}; the command continues without the lock",
                    self.loss()
                ));
            }
            Action::Terminate(reason, reach) => {
                self.child.terminate(self.next_stop(), reach);
                self.session.walked(self.child.walk);
                self.announce(reason, "stopping the command");
            }
            Action::TerminateOthers => self.child.terminate_others(),
            Action::Kill(reason) => {
                self.child.kill();
                self.announce(reason, "killing the command");
            }
            Action::KillRest => {
                self.child.kill();
                // A large process takes a moment to end, so the guards
                // only insist if the lease would end before that.
                let lease = self.holds.lease();
                let is_late = lease.is_some_and(|lease| lease.deadline() <= now() + INSIST_BEFORE);
                if is_late || !self.child.refused.is_empty() {
                    self.holds.insist();
                }
            }
            Action::NameSurvivors => {
                self.holds.insist();
                let waits = if self.holds.all.is_empty() {
                    "redlock waits"
                } else {
                    "the lock is kept"
                };
                let left = survivors::described(&self.child.tree.left());
                report::error(format_args!(
                    "{left}; {waits} until that has ended; interrupt redlock again to leave it running"
                ));
                self.survivors_named = true;
            }
            Action::ReportSilence { lasting, stop_in } => {
                self.messages.report_silence(lasting, stop_in);
            }
            Action::ReportAnswer => self.messages.report_answer(),
            Action::TellLost => self.messages.tell("lost", Some(now().since(self.began))),
            Action::Finish(exit) => return ControlFlow::Break(Ok(exit)),
        }
        self.note_refused();
        ControlFlow::Continue(())
    }

    /// Renews the locks. The first renewal also starts the watchdog, which a short run doesn't need.
    pub(super) fn renew(&mut self) {
        if self.child.script.is_none() {
            self.holds.start_watchdog(&self.child);
            self.tell_watchdog();
        }
        self.holds.renew_if_due();
        self.look_at_work();
    }

    /// Handles processes that have ended.
    pub(super) fn reap(&mut self) -> LoopStep {
        while let Some(event) = needed(self.child.reap())? {
            if let session::Event::Ended(status) = event {
                self.await_own(status.signal());
                self.take_signals()?;
            }
            self.apply(event)?;
            // COMMAND has left processes.
            self.holds.watchdog.iter().for_each(Watchdog::tell_reaped);
        }
        ControlFlow::Continue(())
    }

    /// Sleeps until an event, or until `due`. Handles all that has come, except news of the renewer.
    pub(super) fn sleep(&mut self, due: Option<Moment>, timer: &mut Timer) -> LoopStep {
        let script = self.child.script.as_ref();
        let look_at = script.and_then(KeptScript::look_at);
        let due = due.into_iter().chain(self.job_control.due()).chain(look_at);
        needed(timer.set(due.min()))?;
        let sources = [
            Some(self.signals.as_fd()),
            Some(timer.as_fd()),
            script.and_then(KeptScript::end),
        ];
        let sources = sources.into_iter().chain(self.holds.poll_fds());
        needed(poll::sleep(sources, None))?;
        let woke = now();
        if let Some(stop) = self.next_stop().filter(|&stop| woke >= stop) {
            self.stood_still |= woke >= stop + STOOD_STILL;
            // A renewal may have succeeded meanwhile, which moves the time to stop.
            self.take_news()?;
        }
        self.take_signals()?;
        // Reaps early, because another run may be waiting for the lock.
        self.reap()?;
        self.notice_stop()
    }

    /// Handles a piece of news about the locks. Records it for later messages first.
    pub(super) fn on_news(&mut self, news: &LockNews) -> LoopStep {
        if let LockNews::Held {
            is_renewed: true, ..
        } = news
        {
            // After a renewal, an earlier suspend doesn't explain a loss any more, unless this answer came too late as well.
            self.stood_still &= self.next_stop().is_some_and(|stop| now() >= stop);
        }
        self.messages.note(news, self.stood_still);
        match news {
            // A keeper has exactly one lock.
            LockNews::Released(_) if self.child.script.is_some() => {
                ControlFlow::Break(Ok(Exit::Command(0)))
            }
            LockNews::Cancelled(..)
                if self.child.script.is_some() && self.terms.policy.only_warn =>
            {
                self.child.forward(SIGURG);
                self.apply(session::Event::Tick)
            }
            news => self.apply(session::Event::News(news)),
        }
    }
}

/// Delay after the time to stop COMMAND that proves a suspend of
/// redlock or the machine: even a busy machine wakes a process sooner.
const STOOD_STILL: Duration = Duration::from_secs(1);

//! The keeper: a process that stays behind to renew a lock for as long as another process lives.
//!
//! To the [`Session`] that process is what COMMAND is to a run. It isn't our child, so its end is seen
//! by its pidfd, and its status stays unknown.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::Pid;

use super::{Executor, HeldLocks, Step, Watch, needed};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::renewals::LockNews;
use crate::decide::session::{self, Action, Policy, Session};
use crate::signal::{SIGTERM, SIGURG, Signals};
use crate::stderr;
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{self, Execution, Process};
use crate::supervise::tree::Tree;
use crate::sys;

/// The process for which a lock is kept, and what it starts from then on.
pub struct Target {
    pid: i32,
    process: ProcessFd,
    /// Its identity, by which its descendants recognize it.
    pub instance: String,
    /// Ancestors that had started it.
    ancestors: Vec<Process>,
    tree: Tree,
    execution: Option<Execution>,
    /// Descendants that were found, parents first: later on they may be hard to find.
    descendants: Vec<Process>,
    /// Descendants that were asked to terminate.
    asked: HashSet<Process>,
    /// Descendants that may not be looked at: their parents tell of them.
    hidden: HashSet<i32>,
    /// There were hidden ones: nobody tells what they have started.
    had_hidden: bool,
    /// A process that may be of its work, and may be another job's as well: it is waited for, and never signalled.
    suspect: Option<Process>,
}

/// Time between two looks of a keeper at what it can't open, or couldn't look at.
const LOOK_AT_REST_EVERY: Duration = Duration::from_millis(100);

impl Target {
    /// The process with this pid.
    ///
    /// # Errors
    /// `NotFound`, or that we may not signal it, unless it is only to be `warned`.
    pub fn new(pid: i32, warned: bool) -> io::Result<Self> {
        let process = ProcessFd::of(pid)?.ok_or(io::ErrorKind::NotFound)?;
        if !warned {
            process.signal(0)?;
        }
        let instance = process.instance(pid).unwrap_or_default();
        Ok(Self {
            pid,
            process,
            instance,
            ancestors: procfs::ancestors(Pid::from_raw(pid))
                .map(|stat| stat.process())
                .collect(),
            tree: Tree::below(Pid::from_raw(pid)),
            execution: Execution::of(Pid::from_raw(pid)),
            descendants: Vec::new(),
            asked: HashSet::new(),
            hidden: HashSet::new(),
            had_hidden: false,
            suspect: None,
        })
    }

    /// Its pid, and itself.
    pub fn process(&self) -> (i32, &ProcessFd) {
        (self.pid, &self.process)
    }

    /// Remembers what descends from it and from what it has started, as far as that is found until then: when it
    /// has ended, that may be hard to find.
    fn remember(&mut self, until: Option<Moment>) {
        // The number of what has ended may be another process's.
        self.forget_ended();
        let script = (!self.process.has_ended()).then_some(self.pid);
        let others = self.descendants.iter().map(|process| process.pid);
        let roots = script.into_iter().chain(others).map(Pid::from_raw);
        let roots: Vec<Pid> = roots.collect();
        self.tree
            .visit_below(&roots, until, |pid| match Process::read(pid) {
                Some(process) if self.descendants.contains(&process) => {}
                Some(process) => self.descendants.push(process),
                None if procfs::is_there(pid) => drop(self.hidden.insert(pid.as_raw())),
                None => {}
            });
        self.had_hidden |= !self.hidden.is_empty();
    }

    /// Finds what it has started: its descendants, what has the lock's token in its environment, and what it has forked just
    /// before it ended, as far as that can be done in time. Returns whether all could be looked at.
    fn find_marked(&mut self, until: Option<Moment>) -> bool {
        self.remember(until);
        let scanned = self.tree.scan(None, self.execution, until);
        let (marked, is_whole) = scanned.unwrap_or_default();
        for process in marked {
            if process.pid != self.pid && !self.descendants.contains(&process) {
                self.descendants.push(process);
            }
        }
        is_whole
    }

    /// Signals it and what was found of its tree.
    fn signal_all(&self, signal: i32) {
        let _ = self.process.signal(signal);
        for descendant in &self.descendants {
            descendant.signal(signal);
        }
    }

    /// Asks it and its tree to terminate. To look at all processes may take longer on a busy machine than there
    /// is time until they have to be killed.
    fn terminate(&mut self, kill_at: Option<Moment>) {
        // Its children have no parent when it has ended.
        self.remember(kill_at);
        // A stopped process takes its SIGTERM only when it goes on.
        for signal in [sys::SIGTERM, sys::SIGCONT] {
            let _ = self.process.signal(signal);
        }
        self.ask_descendants();
        self.find_marked(kill_at);
        // What that has started in turn may have lost the token.
        self.remember(kill_at);
        self.ask_descendants();
    }

    /// Asks those descendants to terminate that weren't asked before.
    fn ask_descendants(&mut self) {
        for descendant in &self.descendants {
            if self.asked.insert(*descendant) {
                descendant.signal(sys::SIGTERM);
                descendant.signal(sys::SIGCONT);
            }
        }
    }

    /// Kills it and its tree. What is known of it is stopped first: it works no more, starts nothing, and what it has
    /// started keeps its parent until it is found. Whether all could be looked at.
    fn kill(&mut self) -> bool {
        self.signal_all(sys::SIGSTOP);
        self.remember(None);
        self.signal_all(sys::SIGKILL);
        let is_whole = self.find_marked(None);
        self.signal_all(sys::SIGKILL);
        is_whole
    }

    /// Returns true if it has ended, and all that was or may be of its tree.
    fn has_wholly_ended(&mut self) -> bool {
        self.forget_ended();
        self.process.has_ended() && self.hidden.is_empty() && self.others().next().is_none()
    }

    fn forget_ended(&mut self) {
        let has_ended = |pid| ProcessFd::of(pid).is_ok_and(|process| process.is_none());
        self.descendants.retain(Process::is_alive);
        self.hidden.retain(|&pid| !has_ended(pid));
        self.suspect = self.suspect.filter(Process::is_alive);
    }

    /// Returns all besides itself that is waited for, and may be looked at.
    fn others(&self) -> impl Iterator<Item = &Process> {
        self.descendants.iter().chain(&self.suspect)
    }
}

/// Leaves a keeper behind: returns in this process at once, and in the keeper when all is over, with how it ended: as
/// a command that has a status where that is known to nobody.
pub fn leave_behind(
    target: Target,
    policy: Policy,
    holds: &mut HeldLocks,
    signals: &Signals,
) -> Result<Option<Exit>> {
    holds.reclaim_client(None, || {});
    let own = [target.process.as_fd(), signals.as_fd()];
    let kept = holds.client.fds().chain(own);
    let kept: Vec<BorrowedFd> = kept.collect();
    stderr::flush(stderr::LINGER);
    sys::await_other_threads();
    let words = format!("redlock\0acquire\0--while-pid\0{}", target.pid);
    let forked = sys::fork_daemon(sys::KEEPER, &words, &kept);
    let forked =
        forked.context("can't start the keeper, the background process that renews the lock")?;
    if forked.is_some() {
        // Everything is the keeper's now.
        holds.leave();
        return Ok(None);
    }
    stderr::silence();
    let mut target = target;
    // What an outer job holds has its token, and that job works under it as well.
    target.tree.ids = holds.ids();
    let mut keeper = Keeper {
        target,
        policy,
        has_stopped: false,
        has_ended: false,
        has_looked: true,
        watch: Watch {
            session: Session::new(policy),
            holds,
            signals,
        },
    };
    let timer = Timer::new().ok();
    let exit = timer.and_then(|mut timer| keeper.run(&mut timer).ok());
    let exit = exit.unwrap_or_else(|| keeper.give_up());
    // What can't be killed may still be at work: then the lock ends with its lease.
    let withstands = keeper.watch.session.has_killed()
        && !(keeper.has_looked && keeper.target.has_wholly_ended());
    // And so may what could not be looked at, and what that has started.
    let had_to_end = keeper.has_stopped || policy.with_children;
    let are_hidden = keeper.target.had_hidden || !procfs::sees_all();
    if withstands || (had_to_end && are_hidden) {
        keeper.watch.holds.leave();
    }
    Ok(Some(exit))
}

struct Keeper<'a> {
    target: Target,
    policy: Policy,
    /// The script and its tree were asked to end, or killed.
    has_stopped: bool,
    /// The session knows that the target has ended.
    has_ended: bool,
    /// The last look at what it has started, or may have left, was at all of that.
    has_looked: bool,
    watch: Watch<'a>,
}

/// How long to wait for what was killed because we can't go on.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(1);

impl Keeper<'_> {
    /// Something that watching needs has failed: the work must not go on without it.
    fn give_up(&mut self) -> Exit {
        if self.policy.only_warn {
            let _ = self.target.process.signal(SIGURG);
            self.watch.holds.leave();
            return Exit::Lost;
        }
        self.watch.session.give_up(now());
        let until = now() + GIVE_UP_WITHIN;
        loop {
            self.has_looked = self.target.kill();
            let is_over = self.has_looked && self.target.has_wholly_ended();
            if is_over || now() >= until {
                return Exit::Lost;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl<'a> Executor<'a> for Keeper<'a> {
    fn watch(&mut self) -> &mut Watch<'a> {
        &mut self.watch
    }

    fn perform(&mut self, action: Action) -> Step {
        match action {
            Action::Forward(signal) => {
                let _ = self.target.process.signal(signal);
            }
            Action::Warn => {
                let _ = self.target.process.signal(SIGURG);
                return ControlFlow::Break(Ok(Exit::Lost));
            }
            Action::Terminate(_) => {
                self.has_stopped = true;
                self.target.terminate(self.watch.next_stop());
            }
            Action::Kill(_) | Action::KillRest => {
                self.has_stopped = true;
                self.has_looked = self.target.kill();
            }
            Action::Finish(exit) => return ControlFlow::Break(Ok(exit)),
            // A keeper gets no signals for its script from a terminal, and has nothing to say.
            Action::ForwardOutside(_)
            | Action::Suspend
            | Action::TerminateOthersThan(_)
            | Action::TerminateOthers
            | Action::NameSurvivors
            | Action::ReportSilence { .. }
            | Action::ReportAnswer
            | Action::TellLost => {}
        }
        ControlFlow::Continue(())
    }

    /// Also looks for what works under the lock.
    fn renew(&mut self) {
        self.watch.holds.renew();
        let until = self.watch.next_stop();
        self.target.remember(until);
    }

    fn reap(&mut self) -> Step {
        if !self.target.process.has_ended() {
            return ControlFlow::Continue(());
        }
        if !std::mem::replace(&mut self.has_ended, true) {
            let status = self.target.process.exit_status(self.target.pid);
            // If the kernel doesn't say how it ended, it is taken to have ended well.
            self.apply(session::Event::Ended(status.unwrap_or_default()))?;
        }
        // What ends may have started something else before.
        if self.target.has_wholly_ended() {
            self.has_looked = self.target.find_marked(None);
            // A process that has lost its parent and the lock's token since. In an interactive session it may be another job's.
            if self.policy.with_children {
                self.target.suspect = self.target.tree.orphan_of_script(&self.target.ancestors);
            }
        }
        if self.has_looked && self.target.has_wholly_ended() {
            return self.apply(session::Event::TreeEnded);
        }
        ControlFlow::Continue(())
    }

    fn sleep(&mut self, due: Option<Moment>, timer: &mut Timer) -> Step {
        let open_other = || self.target.others().copied().find_map(ProcessFd::open);
        let other = self.has_ended.then(open_other);
        // First the end of the script, then that of each process that is left.
        let ends = match &other {
            None => Some(&self.target.process),
            Some(opened) => opened.as_ref(),
        };
        let looks = !self.has_looked || ends.is_none();
        let looks_at = looks.then(|| now() + LOOK_AT_REST_EVERY);
        let due = due.into_iter().chain(looks_at).min();
        needed(self.watch.sleep(due, timer, ends.map(AsFd::as_fd)))?;
        while let Some(received) = needed(self.watch.signals.next())? {
            // All else is for a process that has a terminal, or a child.
            if received.signal != SIGTERM {
                continue;
            }
            if self.watch.session.has_killed() {
                // A person doesn't want the lock to be kept for what can't be killed.
                self.apply(session::Event::Signal(received))?;
            } else {
                let _ = self.target.process.signal(SIGTERM);
            }
        }
        ControlFlow::Continue(())
    }

    fn on_news(&mut self, news: &LockNews) -> Step {
        match news {
            // A keeper has one lock.
            LockNews::Released(_) => ControlFlow::Break(Ok(Exit::Command(0))),
            LockNews::Cancelled(..) if self.policy.only_warn => {
                let _ = self.target.process.signal(SIGURG);
                self.apply(session::Event::Tick)
            }
            news => self.apply(session::Event::News(news)),
        }
    }
}

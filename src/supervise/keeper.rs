//! The keeper: a process that stays behind to renew a lock for as long as another process lives.
//!
//! To the [`Session`] that process is what COMMAND is to a run. It isn't our child, so its end is seen
//! by its pidfd, and its status stays unknown.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
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
    /// The processes that had started it.
    ancestors: Vec<Process>,
    tree: Tree,
    execution: Option<Execution>,
    /// What it has started and was found: later on it may be hard to find.
    descendants: Vec<Descendant>,
    /// What may be of its work, and may be another job's as well: it is waited for, and never signalled.
    suspects: Vec<Descendant>,
    /// How many of both may have a descriptor, so that some are left for all else.
    descriptors: usize,
    /// Among them was one that may not be looked at: nobody tells what it has started.
    had_hidden: bool,
}

/// A process that was found to descend from another one.
struct Descendant {
    pid: i32,
    /// `None` where it may not be looked at: its parent tells of it.
    process: Option<Process>,
    /// `None` where there is none left for it: then it is looked up by its pid.
    descriptor: Option<ProcessFd>,
    /// SIGTERM was sent.
    is_asked: bool,
}

impl Descendant {
    fn has_ended(&self) -> bool {
        match (&self.descriptor, &self.process) {
            (Some(descriptor), _) => descriptor.has_ended(),
            (None, Some(process)) => !process.is_alive(),
            (None, None) => !procfs::is_there(Pid::from_raw(self.pid)),
        }
    }

    fn signal(&self, signal: i32) {
        match (&self.descriptor, &self.process) {
            (Some(descriptor), _) => drop(descriptor.signal(signal)),
            (None, Some(process)) if process.is_alive() => drop(sys::kill(self.pid, signal)),
            // Its number may be another process's by now.
            (None, _) => {}
        }
    }
}

/// Descriptors that a keeper needs besides: its own, for a connection, and to look into /proc.
const OWN_DESCRIPTORS: usize = 64;

/// How often a keeper looks at what it has no descriptor for, or couldn't look at.
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
            suspects: Vec::new(),
            descriptors: usize::MAX,
            had_hidden: false,
        })
    }

    /// Its pid, and itself.
    pub fn process(&self) -> (i32, &ProcessFd) {
        (self.pid, &self.process)
    }

    /// Remembers what descends from it and from what it has started, as far as that is found until then: when it
    /// has ended, that may be hard to find.
    fn remember(&mut self, until: Option<Moment>) {
        self.descendants
            .retain(|descendant| !descendant.has_ended());
        let script = (!self.process.has_ended()).then_some(self.pid);
        let others = self.descendants.iter().map(|descendant| descendant.pid);
        // The number of what has ended may be another process's.
        let roots: Vec<Pid> = script
            .into_iter()
            .chain(others)
            .map(Pid::from_raw)
            .collect();
        let mut found = Vec::new();
        let add = |pid: Pid| match Process::read(pid) {
            Some(process) => found.push((pid.as_raw(), Some(process))),
            None if procfs::is_there(pid) => found.push((pid.as_raw(), None)),
            None => {}
        };
        self.tree.visit_below(&roots, until, add);
        self.add(found, until);
    }

    /// Finds what it has started: its descendants, what has the lock's token in its environment, and what it has forked just
    /// before it ended, as far as that can be done in time. Returns whether all could be looked at.
    fn find_marked(&mut self, until: Option<Moment>) -> bool {
        self.remember(until);
        let scanned = self.tree.scan(None, self.execution, until);
        let (marked, is_whole) = scanned.unwrap_or_default();
        let marked = marked.into_iter();
        let marked = marked.map(|process| (process.pid, Some(process))).collect();
        self.add(marked, until);
        is_whole
    }

    /// Takes in what was found: pids, and what identifies them where they may be looked at.
    fn add(&mut self, found: Vec<(i32, Option<Process>)>, until: Option<Moment>) {
        let earlier = self.descendants.iter().map(|one| (one.pid, one.process));
        let earlier: HashSet<(i32, Option<Process>)> = earlier.collect();
        for (pid, process) in found {
            if until.is_some_and(|until| now() >= until) {
                return;
            }
            if pid != self.pid && !earlier.contains(&(pid, process)) {
                self.had_hidden |= process.is_none();
                let descendant = self.descendant(pid, process);
                self.descendants.push(descendant);
            }
        }
    }

    fn descendant(&self, pid: i32, process: Option<Process>) -> Descendant {
        let may_have_descriptor = self.descendants.len() + self.suspects.len() < self.descriptors;
        let descriptor = may_have_descriptor.then(|| ProcessFd::of(pid).ok().flatten());
        // Its number may be another process's by now.
        let is_same = |_: &ProcessFd| {
            let now = Process::read(Pid::from_raw(pid));
            now.is_none_or(|now| Some(now) == process)
        };
        let descriptor = descriptor.flatten().filter(is_same);
        Descendant {
            pid,
            process,
            descriptor,
            is_asked: false,
        }
    }

    /// Finds a process that it has started, that has lost its parent and the lock's token since. It is only
    /// waited for, as in an interactive session it may be another job's.
    fn find_orphan(&mut self) {
        if let Some(process) = self.tree.orphan_of_script(&self.ancestors) {
            let suspect = self.descendant(process.pid, Some(process));
            self.suspects.push(suspect);
        }
    }

    /// Signals it and what was found of its tree.
    fn signal_all(&self, signal: i32) {
        let _ = self.process.signal(signal);
        let descendants = self.descendants.iter();
        descendants.for_each(|descendant| descendant.signal(signal));
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
        for descendant in self.descendants.iter_mut().filter(|one| !one.is_asked) {
            descendant.signal(sys::SIGTERM);
            descendant.signal(sys::SIGCONT);
            descendant.is_asked = true;
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

    /// How it ended. Where the kernel doesn't say, it is taken to have ended well.
    fn exit_status(&self) -> ExitStatus {
        let status = self.process.exit_status(self.pid);
        status.unwrap_or_else(|| ExitStatus::from_raw(0))
    }

    /// Whether it has ended, and all that was or may be of its tree.
    fn has_wholly_ended(&self) -> bool {
        self.process.has_ended() && self.others().all(Descendant::has_ended)
    }

    /// All but itself that is waited for.
    fn others(&self) -> impl Iterator<Item = &Descendant> {
        self.descendants.iter().chain(&self.suspects)
    }

    /// Descriptors that become readable with its end, and with that of what was found of its tree.
    fn ends(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        let first = (!self.process.has_ended()).then_some(&self.process);
        let others = self.others().filter_map(|other| other.descriptor.as_ref());
        let others = others.filter(|process| !process.has_ended());
        first
            .into_iter()
            .chain(others)
            .map(|process| Some(process.as_fd()))
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
    target.descriptors = sys::raise_file_limit().saturating_sub(OWN_DESCRIPTORS);
    // What an outer job holds has its token, and that job works under it as well.
    target.tree.evidence.ids = holds.ids();
    let mut keeper = Keeper {
        target,
        policy,
        has_asked: false,
        killed: None,
        has_ended: false,
        has_looked: true,
        watch: Watch {
            session: Session::new(policy),
            holds,
            signals,
        },
    };
    let mut timer = Timer::new();
    let exit = match &mut timer {
        Ok(timer) => keeper.run(timer).ok(),
        Err(_) => None,
    };
    let exit = exit.unwrap_or_else(|| keeper.give_up());
    // What can't be killed may still be at work: then the lock ends with its lease.
    let is_left = |looked: bool| !looked || !keeper.target.has_wholly_ended();
    // And so may what could not be looked at, and what that has started.
    let had_to_end = keeper.has_asked || keeper.killed.is_some() || policy.with_children;
    let are_hidden = keeper.target.had_hidden || !procfs::sees_all();
    if keeper.killed.is_some_and(is_left) || (had_to_end && are_hidden) {
        keeper.watch.holds.leave();
    }
    Ok(Some(exit))
}

struct Keeper<'a> {
    target: Target,
    policy: Policy,
    /// The script and its tree were asked to end.
    has_asked: bool,
    /// Whether all processes could be looked at when they were killed, if they were.
    killed: Option<bool>,
    /// The session knows that the target has ended.
    has_ended: bool,
    /// All that it may have left could be looked at.
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
        let until = now() + GIVE_UP_WITHIN;
        while now() < until {
            if self.target.kill() && self.target.has_wholly_ended() {
                return Exit::Lost;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.watch.holds.leave();
        Exit::Lost
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
                let kill_at = self.watch.next_stop();
                self.has_asked = true;
                self.target.terminate(kill_at);
            }
            Action::Kill(_) | Action::KillRest => {
                self.killed = Some(self.target.kill());
            }
            Action::Finish(exit) => return ControlFlow::Break(Ok(exit)),
            // For a process that gets signals from outside, and may say something.
            _ => {}
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
            let status = self.target.exit_status();
            self.apply(session::Event::Ended(status))?;
        }
        // What ends may have started something else before.
        if self.target.has_wholly_ended() {
            self.has_looked = self.target.find_marked(None);
            if self.policy.with_children {
                self.target.find_orphan();
            }
        }
        if self.has_looked && self.target.has_wholly_ended() {
            return self.apply(session::Event::TreeEnded);
        }
        ControlFlow::Continue(())
    }

    fn sleep(&mut self, due: Option<Moment>, timer: &mut Timer) -> Step {
        // No descriptor tells the end of some.
        let has_none = |other: &Descendant| other.descriptor.is_none();
        let looks = !self.has_looked || self.target.others().any(has_none);
        let looks_at = looks.then(|| now() + LOOK_AT_REST_EVERY);
        let due = due.into_iter().chain(looks_at).min();
        needed(self.watch.sleep(due, timer, self.target.ends()))?;
        while let Some(received) = needed(self.watch.signals.next())? {
            // All else is for a process that has a terminal, or a child.
            if received.signal != SIGTERM {
                continue;
            }
            if self.killed.is_none() {
                let _ = self.target.process.signal(SIGTERM);
            } else {
                // A person doesn't want the lock to be kept for what can't be killed.
                self.apply(session::Event::Signal(received))?;
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

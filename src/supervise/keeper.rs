//! The keeper: a process that stays behind to renew a lock for as long as another process lives.
//!
//! To the [`Session`] that process is what COMMAND is to a run. It isn't our child, so its end is seen
//! by its pidfd, and its status stays unknown.

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
use crate::signal::{SIGCONT, SIGSTOP, SIGTERM, SIGURG, Signals};
use crate::stderr;
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{self, Execution, Process};
use crate::supervise::tree::Tree;
use crate::sys;

/// The process for which a lock is kept, and what it starts from then on.
pub struct Target {
    pid: Pid,
    process: ProcessFd,
    /// Its identity, by which its descendants recognize it.
    pub instance: String,
    /// The processes that had started it.
    ancestors: Vec<Process>,
    tree: Tree,
    execution: Option<Execution>,
    /// A process that may be of its work, and may be another job's as well: it is waited for, and never signalled.
    suspect: Option<Process>,
}

/// How often a keeper checks whether the processes that a script has left have ended: they aren't its children.
const LOOK_AT_REST_EVERY: Duration = Duration::from_millis(50);

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
        let pid = Pid::from_raw(pid);
        Ok(Self {
            pid,
            process,
            instance,
            ancestors: procfs::ancestors(pid).map(|stat| stat.process()).collect(),
            tree: Tree::below(pid),
            execution: Execution::of(pid),
            suspect: None,
        })
    }

    /// Its pid, and itself.
    pub fn process(&self) -> (i32, &ProcessFd) {
        (self.pid.as_raw(), &self.process)
    }

    /// Notes what it has started: its descendants, what has the lock's token in its environment, and what it has forked just
    /// before it ended, as far as that can be done in time. Returns whether all could be looked at.
    fn find_marked(&mut self, until: Option<Moment>) -> bool {
        self.tree.note(until);
        let scanned = self.tree.scan(None, self.execution, until);
        scanned.unwrap_or_default()
    }

    /// Signals it, and what was noted of its tree.
    fn signal_all(&self, signal: i32) {
        let _ = self.process.signal(signal);
        for process in &self.tree.found {
            process.signal(signal);
        }
    }

    /// Asks it and its tree to terminate. To look at all processes may take longer on a busy machine than there
    /// is time until they have to be killed.
    fn terminate(&mut self, kill_at: Option<Moment>) {
        // Its children have no parent when it has ended.
        self.tree.note(kill_at);
        // A stopped process takes its SIGTERM only when it goes on.
        for signal in [SIGTERM, SIGCONT] {
            self.signal_all(signal);
        }
        let asked = self.tree.found.clone();
        self.find_marked(kill_at);
        // What that has started in turn may have lost the token.
        self.tree.note(kill_at);
        let all = self.tree.found.iter();
        for process in all.filter(|process| !asked.contains(process)) {
            process.signal(SIGTERM);
            process.signal(SIGCONT);
        }
    }

    /// Kills it and its tree. What is known of it is stopped first: it works no more, starts nothing, and what it has
    /// started keeps its parent until it is found.
    fn kill(&mut self) {
        self.signal_all(SIGSTOP);
        self.tree.note(None);
        self.signal_all(sys::SIGKILL);
        self.find_marked(None);
        self.signal_all(sys::SIGKILL);
    }

    /// How it ended. Where the kernel doesn't say, it is taken to have ended well.
    fn exit_status(&self) -> ExitStatus {
        let status = self.process.exit_status(self.pid.as_raw());
        status.unwrap_or_else(|| ExitStatus::from_raw(0))
    }

    /// Returns true if the process has ended, and all that was noted of its tree.
    fn has_ended(&self) -> bool {
        let mut rest = self.tree.found.iter().chain(&self.suspect);
        self.process.has_ended() && !rest.any(Process::is_alive)
    }

    /// Returns true if the process has ended, and all that was or may be of its tree. A process that has lost its parent and the
    /// lock's token may be another job's in an interactive session.
    fn has_wholly_ended(&mut self, with_orphans: bool) -> bool {
        // What ends may have started something else before.
        if !self.has_ended() || !self.find_marked(None) {
            return false;
        }
        if with_orphans && self.has_ended() {
            self.suspect = self.tree.orphan_of_script(&self.ancestors);
        }
        self.has_ended()
    }
}

/// Leaves a keeper behind: returns in this process at once, and in the keeper when all is over, with how it ended: as
/// a command that has a status where that is known to nobody.
pub fn leave_behind(
    mut target: Target,
    policy: Policy,
    holds: &mut HeldLocks,
    signals: &Signals,
) -> Result<Option<Exit>> {
    holds.reclaim_client(None, || {});
    let own = [target.process.as_fd(), signals.as_fd()];
    let kept: Vec<BorrowedFd> = holds.client.fds().chain(own).collect();
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
    // What an outer job holds has its token, and that job works under it as well.
    target.tree.evidence.ids = holds.ids();
    let mut keeper = Keeper {
        target,
        policy,
        may_leave_work: policy.with_children,
        has_ended: false,
        watch: Watch {
            session: Session::new(policy),
            holds,
            signals,
        },
    };
    let exit = match &mut Timer::new() {
        Ok(timer) => keeper.run(timer).ok(),
        Err(_) => None,
    };
    let exit = exit.unwrap_or_else(|| keeper.give_up());
    // What can't be killed may still be at work, and so may what could not be looked at: then the lock ends with its lease.
    let is_left = keeper.watch.session.has_killed() && !keeper.target.has_ended();
    if is_left || (keeper.may_leave_work && !procfs::sees_all()) {
        keeper.watch.holds.leave();
    }
    Ok(Some(exit))
}

struct Keeper<'a> {
    target: Target,
    policy: Policy,
    /// The lock is released only when nothing of the script's tree is left.
    may_leave_work: bool,
    /// The session knows that the target has ended.
    has_ended: bool,
    watch: Watch<'a>,
}

/// How long to wait for what was killed because we can't go on.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(1);

impl Keeper<'_> {
    /// Something that watching needs has failed: the work must not go on without it.
    fn give_up(&mut self) -> Exit {
        let until = now() + GIVE_UP_WITHIN;
        if self.policy.only_warn {
            let _ = self.target.process.signal(SIGURG);
        } else {
            while !self.target.has_ended() && now() < until {
                self.target.kill();
                std::thread::sleep(Duration::from_millis(1));
            }
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
                self.may_leave_work = true;
                self.target.terminate(self.watch.next_stop());
            }
            Action::Kill(_) | Action::KillRest => {
                self.may_leave_work = true;
                self.target.kill();
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
        self.target.tree.note(self.watch.next_stop());
    }

    fn reap(&mut self) -> Step {
        if !self.target.process.has_ended() {
            return ControlFlow::Continue(());
        }
        if !std::mem::replace(&mut self.has_ended, true) {
            self.target.tree.forget(self.target.pid);
            let status = self.target.exit_status();
            self.apply(session::Event::Ended(status))?;
        }
        if self.target.has_wholly_ended(self.policy.with_children) {
            return self.apply(session::Event::TreeEnded);
        }
        ControlFlow::Continue(())
    }

    fn sleep(&mut self, due: Option<Moment>, timer: &mut Timer) -> Step {
        let look_at = self.has_ended.then(|| now() + LOOK_AT_REST_EVERY);
        let due = due.into_iter().chain(look_at).min();
        let end = (!self.has_ended).then(|| self.target.process.as_fd());
        needed(self.watch.sleep(due, timer, std::iter::once(end)))?;
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

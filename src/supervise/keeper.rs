//! The keeper: a process that stays behind to renew a lock for as long as another process lives.
//!
//! To a [`Supervision`] that process is what COMMAND is to a run. It isn't our child, so its end is seen
//! by its pidfd, and its status stays unknown.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::Pid;

use super::child::{Child, Reaped};
use super::messages::Terms;
use super::{HeldLocks, Supervision};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::signal::{SIGCONT, SIGSTOP, SIGTERM, Signals};
use crate::stderr;
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{self, Execution, Process};
use crate::supervise::tree::Tree;
use crate::sys;

/// The process for which a lock is kept, and what it starts from then on.
pub struct Target {
    pid: Pid,
    tree: Tree,
    script: Script,
    /// Its identity, by which its descendants recognize it.
    pub instance: String,
}

/// The facts of a script that a keeper needs.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) process: Arc<ProcessFd>,
    /// The processes that had started it.
    ancestors: Vec<Process>,
    execution: Option<Execution>,
    /// Orphans of its session are waited for.
    with_orphans: bool,
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
    pub fn new(pid: i32, warned: bool, with_children: bool) -> io::Result<Self> {
        let process = ProcessFd::of(pid)?.ok_or(io::ErrorKind::NotFound)?;
        if !warned {
            process.signal(0)?;
        }
        let instance = process.instance(pid).unwrap_or_default();
        let pid = Pid::from_raw(pid);
        let script = Script {
            process: Arc::new(process),
            ancestors: procfs::ancestors(pid).map(|stat| stat.process()).collect(),
            execution: Execution::of(pid),
            with_orphans: with_children,
            suspect: None,
        };
        Ok(Self {
            pid,
            tree: Tree::below(pid),
            script,
            instance,
        })
    }

    /// Its pid, and itself.
    pub fn process(&self) -> (i32, &ProcessFd) {
        (self.pid.as_raw(), &self.script.process)
    }
}

impl Script {
    /// Notices its end, as for a child that is reaped. If the kernel doesn't say how the script ended, it ended well.
    pub(super) fn reap(&mut self, pid: Pid, reaped: &mut bool, tree: &mut Tree) -> Option<Reaped> {
        if !self.process.has_ended() {
            return None;
        }
        if !std::mem::replace(reaped, true) {
            tree.forget(pid);
            let status = self.process.exit_status(pid.as_raw());
            let status = status.unwrap_or_else(|| ExitStatus::from_raw(0));
            return Some(Reaped::Child(status));
        }
        self.has_wholly_ended(tree).then_some(Reaped::Tree)
    }

    /// Becomes readable with its end.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        (!self.process.has_ended()).then(|| self.process.as_fd())
    }

    /// When to check whether what it has left has ended.
    pub(super) fn look_at(&self) -> Option<Moment> {
        self.process.has_ended().then(|| now() + LOOK_AT_REST_EVERY)
    }

    /// Signals it, and what was noted of its tree.
    fn signal_all(&self, tree: &Tree, signal: i32) {
        let _ = self.process.signal(signal);
        for process in &tree.found {
            process.signal(signal);
        }
    }

    /// Notes what it has started: its descendants, what has the lock's token in its environment, and what it has forked just
    /// before it ended, as far as that can be done in time. Returns whether all could be looked at.
    fn find_marked(&self, tree: &mut Tree, until: Option<Moment>) -> bool {
        tree.note(until);
        let scanned = tree.scan(None, self.execution, until);
        scanned.unwrap_or_default()
    }

    /// Asks it and its tree to terminate. To look at all processes may take longer on a busy machine than there
    /// is time until they have to be killed.
    pub(super) fn terminate(&self, tree: &mut Tree, kill_at: Option<Moment>) {
        // Its children have no parent when it has ended.
        tree.note(kill_at);
        // A stopped process takes its SIGTERM only when it goes on.
        for signal in [SIGTERM, SIGCONT] {
            self.signal_all(tree, signal);
        }
        let asked = tree.found.clone();
        self.find_marked(tree, kill_at);
        // What that has started in turn may have lost the token.
        tree.note(kill_at);
        let all = tree.found.iter();
        for process in all.filter(|process| !asked.contains(process)) {
            process.signal(SIGTERM);
            process.signal(SIGCONT);
        }
    }

    /// Kills it and its tree. What is known of it is stopped first: it works no more, starts nothing, and what it has
    /// started keeps its parent until it is found.
    pub(super) fn kill(&self, tree: &mut Tree) {
        self.signal_all(tree, SIGSTOP);
        tree.note(None);
        self.signal_all(tree, sys::SIGKILL);
        self.find_marked(tree, None);
        self.signal_all(tree, sys::SIGKILL);
    }

    /// Returns true if the process has ended, and all that was noted of its tree.
    fn has_ended(&self, tree: &Tree) -> bool {
        let mut rest = tree.found.iter().chain(&self.suspect);
        self.process.has_ended() && !rest.any(Process::is_alive)
    }

    /// Returns true if the process has ended, and all that was or may be of its tree. A process that has lost its parent and the
    /// lock's token may be another job's in an interactive session.
    fn has_wholly_ended(&mut self, tree: &mut Tree) -> bool {
        // What ends may have started something else before.
        if !self.has_ended(tree) || !self.find_marked(tree, None) {
            return false;
        }
        if self.with_orphans && self.has_ended(tree) {
            self.suspect = tree.orphan_of_script(&self.ancestors);
        }
        self.has_ended(tree)
    }
}

/// Leaves a keeper behind: returns in this process at once, and in the keeper when all is over, with how it ended: as
/// a command that has a status where that is known to nobody.
pub fn leave_behind(
    target: Target,
    terms: &Terms,
    holds: &mut HeldLocks,
    signals: &Signals,
) -> Result<Option<Exit>> {
    holds.reclaim_client(None, || {});
    let own = [target.script.process.as_fd(), signals.as_fd()];
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
    let mut child = Child {
        pid: target.pid,
        own_group: false,
        reaped: false,
        tree: target.tree,
        walk: Duration::ZERO,
        script: Some(target.script),
    };
    // What an outer job holds has its token, and that job works under it as well.
    child.tree.evidence.ids = holds.ids();
    let mut supervision = Supervision::new(terms, child, holds, signals);
    let timer = Timer::new().map_err(Into::into);
    let exit = timer.and_then(|mut timer| supervision.run(&mut timer));
    Ok(Some(supervision.end(exit).exit))
}

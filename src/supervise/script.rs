//! The script for which a keeper keeps a lock. It isn't redlock's child, so a pidfd tells its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::Pid;

use crate::clock::{Moment, now};
use crate::signal::{SIGCONT, SIGSTOP, SIGTERM};
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{Execution, Process};
use crate::supervise::tree::Tree;
use crate::sys;

/// The facts of a script that a keeper needs.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) process: Arc<ProcessFd>,
    /// The processes that had started it.
    pub(super) ancestors: Vec<Process>,
    pub(super) execution: Option<Execution>,
    /// Orphans of its session are waited for.
    pub(super) with_orphans: bool,
    /// A process that may be of its work, and may be another job's as well: it is waited for, and never signalled.
    pub(super) suspect: Option<Process>,
}

/// How often a keeper checks whether the processes that a script has left have ended: they aren't its children.
const LOOK_AT_REST_EVERY: Duration = Duration::from_millis(50);

/// Result of reaping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// The child itself ended.
    Child(ExitStatus),
    /// It has ended before, and the kernel says that nothing of its tree is left.
    Tree,
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

//! The script of a keeper. The script isn't redlock's child, so a pidfd tells its end.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Moment, now};
use crate::decide::session::Event;
use crate::signal::{SIGCONT, SIGSTOP, SIGTERM};
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{Execution, Process};
use crate::supervise::tree::Tree;
use crate::sys;

/// Facts about a script that the keeper needs.
#[derive(Clone)]
pub(super) struct KeptScript {
    pub(super) process: Arc<ProcessFd>,
    /// Ancestors of the script.
    pub(super) ancestors: Vec<Process>,
    pub(super) execution: Option<Execution>,
    /// The keeper waits for orphans in the script's session.
    pub(super) with_orphans: bool,
    /// A process that may be the script's, or another job's: the keeper waits for it, and never signals it.
    pub(super) suspect: Option<Process>,
}

/// Interval at which a keeper checks whether the script's other processes have ended: they aren't its children.
const LOOK_AT_REST_EVERY: Duration = Duration::from_millis(50);

impl KeptScript {
    /// Returns the script's end, as reaping would for a child. An unknown status counts as success.
    pub(super) fn reap(&mut self, reaped: &mut bool, tree: &mut Tree) -> Option<Event<'static>> {
        if !self.process.has_ended() {
            return None;
        }
        if !std::mem::replace(reaped, true) {
            tree.forget(tree.root);
            let status = self.process.exit_status(tree.root.as_raw());
            let status = status.unwrap_or_else(|| ExitStatus::from_raw(0));
            return Some(Event::Ended(status));
        }
        self.has_wholly_ended(tree).then_some(Event::TreeEnded)
    }

    /// Returns the descriptor that becomes readable when the script ends.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        (!self.process.has_ended()).then(|| self.process.as_fd())
    }

    /// Returns when to check whether the script's other processes have ended.
    pub(super) fn look_at(&self) -> Option<Moment> {
        self.process.has_ended().then(|| now() + LOOK_AT_REST_EVERY)
    }

    /// Signals the script and the recorded processes of its tree.
    fn signal_all(&self, tree: &Tree, signal: i32) {
        let _ = self.process.signal(signal);
        tree.signal_found(signal);
    }

    /// Records the processes that the script has started, as far as there is time: its
    /// descendants, those with the lock's token in their environments, and those that
    /// it forked just before it ended. Returns true if all processes could be examined.
    fn find_marked(&self, tree: &mut Tree, until: Option<Moment>) -> bool {
        tree.note(until);
        let scanned = tree.scan(None, self.execution, until);
        scanned.unwrap_or_default()
    }

    /// Sends SIGTERM to the script and its tree. On a busy machine, examining
    /// all processes may take longer than there is time until `kill_at`.
    pub(super) fn terminate(&self, tree: &mut Tree, kill_at: Option<Moment>) {
        // Recorded now, because the children lose their parent when the script ends.
        tree.note(kill_at);
        // A stopped process handles SIGTERM only when it continues.
        for signal in [SIGTERM, SIGCONT] {
            self.signal_all(tree, signal);
        }
        let signalled = tree.members.clone();
        self.find_marked(tree, kill_at);
        // Their children may have lost the token.
        tree.note(kill_at);
        let all = tree.members.iter();
        for process in all.filter(|process| !signalled.contains(process)) {
            process.signal(SIGTERM);
            process.signal(SIGCONT);
        }
    }

    /// Kills the script and its tree. The recorded processes are stopped first: then
    /// they start nothing, and their children keep their parent until they are found.
    pub(super) fn kill(&self, tree: &mut Tree) {
        self.signal_all(tree, SIGSTOP);
        tree.note(None);
        self.signal_all(tree, sys::SIGKILL);
        self.find_marked(tree, None);
        self.signal_all(tree, sys::SIGKILL);
    }

    /// Returns true if the script and all recorded processes of its tree have ended.
    fn has_ended(&self, tree: &Tree) -> bool {
        let mut rest = tree.members.iter().chain(&self.suspect);
        self.process.has_ended() && !rest.any(Process::is_alive)
    }

    /// Returns true if the script has ended, and every process that was or may be part of its
    /// tree. In an interactive session, a process without parent and token may be another job's.
    fn has_wholly_ended(&mut self, tree: &mut Tree) -> bool {
        // A process may have started another one before it ended.
        if !self.has_ended(tree) || !self.find_marked(tree, None) {
            return false;
        }
        if self.with_orphans && self.has_ended(tree) {
            self.suspect = tree.orphan_of_script(&self.ancestors);
        }
        self.has_ended(tree)
    }
}

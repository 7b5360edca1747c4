//! The keeper: a background process that renews a lock while another process, the script, is alive.
//!
//! For a [`Supervision`] the script takes COMMAND's place. The script isn't the
//! keeper's child: a pidfd shows its end, and its exit status may stay unknown.

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

/// The script for which a lock is kept, and the processes it starts from now on.
pub struct Target {
    pid: Pid,
    tree: Tree,
    script: Script,
    /// Identity of the script, by which its descendants recognize it.
    pub instance: String,
}

/// Facts about a script that the keeper needs.
#[derive(Clone)]
pub(super) struct Script {
    pub(super) process: Arc<ProcessFd>,
    /// Ancestors of the script.
    ancestors: Vec<Process>,
    execution: Option<Execution>,
    /// The keeper waits for orphans in the script's session.
    with_orphans: bool,
    /// A process that may be the script's, or another job's: the keeper waits for it, and never signals it.
    suspect: Option<Process>,
}

/// Interval at which a keeper checks whether the script's other processes have ended: they aren't its children.
const LOOK_AT_REST_EVERY: Duration = Duration::from_millis(50);

impl Target {
    /// Opens the process with this pid. Set `warned` if redlock will only warn it, and never stop it.
    ///
    /// # Errors
    /// `NotFound`, or an error if redlock may not signal the process and `warned` is false.
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

    /// Returns the script's pid, and the process itself.
    pub fn process(&self) -> (i32, &ProcessFd) {
        (self.pid.as_raw(), &self.script.process)
    }
}

impl Script {
    /// Returns the script's end, as reaping would for a child. An unknown status counts as success.
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
        for process in &tree.found {
            process.signal(signal);
        }
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
        let signalled = tree.found.clone();
        self.find_marked(tree, kill_at);
        // Their children may have lost the token.
        tree.note(kill_at);
        let all = tree.found.iter();
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
        let mut rest = tree.found.iter().chain(&self.suspect);
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

/// Forks a keeper. Returns `None` in this process at once. Returns the exit status in
/// the keeper when it has finished; an unknown status of the script counts as success.
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
        // The keeper owns the locks from now on.
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
    // Ids of reentered locks are left out, because the outer job's other work has them as well.
    child.tree.evidence.ids = holds.ids();
    let mut supervision = Supervision::new(terms, child, holds, signals);
    let timer = Timer::new().map_err(Into::into);
    let exit = timer.and_then(|mut timer| supervision.run(&mut timer));
    Ok(Some(supervision.end(exit).exit))
}

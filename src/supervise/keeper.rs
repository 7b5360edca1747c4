//! The keeper: a background process that renews a lock while another process, the script, is alive.
//!
//! For a [`Supervision`] the script takes COMMAND's place. The script isn't the
//! keeper's child: a pidfd shows its end, and its exit status may stay unknown.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::Pid;

use super::child::Child;
use super::messages::SupervisionTerms;
use super::{HeldLocks, Supervision};
use crate::clock::Timer;
use crate::decide::exit::Exit;
use crate::signal::Signals;
use crate::stderr;
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{self, Execution};
use crate::supervise::script::KeptScript;
use crate::supervise::tree::Tree;
use crate::sys;

/// The script for which a lock is kept, and the processes it starts from now on.
pub struct Target {
    child: Child,
    process: Arc<ProcessFd>,
    /// Identity of the script, by which its descendants recognize it.
    pub instance: String,
}

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
        let (pid, process) = (Pid::from_raw(pid), Arc::new(process));
        let script = KeptScript {
            process: Arc::clone(&process),
            ancestors: procfs::ancestors(pid).map(|stat| stat.process()).collect(),
            execution: Execution::of(pid),
            with_orphans: with_children,
            suspect: None,
        };
        let child = Child {
            pid,
            own_group: false,
            reaped: false,
            tree: Tree::below(pid),
            walk: Duration::ZERO,
            refused: Vec::new(),
            script: Some(script),
        };
        Ok(Self {
            child,
            process,
            instance,
        })
    }

    /// Returns the script's pid, and the process itself.
    pub fn process(&self) -> (i32, &ProcessFd) {
        (self.child.pid.as_raw(), &self.process)
    }
}

/// Forks a keeper. Returns `None` in this process at once. Returns the exit status in
/// the keeper when it has finished; an unknown status of the script counts as success.
pub fn leave_behind(
    mut target: Target,
    terms: &SupervisionTerms,
    holds: &mut HeldLocks,
    signals: &Signals,
) -> Result<Option<Exit>> {
    holds.reclaim_client(None, || {});
    let own = [target.process.as_fd(), signals.as_fd()];
    let kept: Vec<BorrowedFd> = holds.client.fds().chain(own).collect();
    stderr::flush(stderr::LINGER);
    sys::await_other_threads();
    let words = format!("redlock\0acquire\0--while-pid\0{}", target.child.pid);
    let forked = sys::fork_daemon(sys::KEEPER, &words, &kept);
    let forked =
        forked.context("can't start the keeper, the background process that renews the lock")?;
    if forked.is_some() {
        // The keeper owns the locks from now on.
        holds.leave();
        return Ok(None);
    }
    stderr::silence();
    signals.become_keeper();
    // Reading /proc takes descriptors. Without them a live process would look dead.
    sys::lift_limits();
    // Ids of reentered locks are left out, because the outer job's other work has them as well.
    target.child.tree.ids = holds.ids();
    let mut supervision = Supervision::new(terms, target.child, holds, signals);
    let timer = Timer::new().map_err(Into::into);
    let exit = timer.and_then(|mut timer| supervision.run(&mut timer));
    Ok(Some(supervision.end(exit).exit))
}

//! The keeper: a process that stays behind to renew a lock for as long as another process lives.
//!
//! To a [`Supervision`] that process is what COMMAND is to a run. It isn't our child, so its end is seen
//! by its pidfd, and its status stays unknown.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::Pid;

use super::child::Child;
use super::messages::Terms;
use super::{HeldLocks, Supervision};
use crate::clock::Timer;
use crate::decide::exit::Exit;
use crate::signal::Signals;
use crate::stderr;
use crate::supervise::process::ProcessFd;
use crate::supervise::procfs::{self, Execution};
use crate::supervise::script::Script;
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

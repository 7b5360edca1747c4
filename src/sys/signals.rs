//! Signals: sent, received, and as the end of a process.

use std::ffi::c_int;
use std::io;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::Pid;

use super::{checked, set_default};

/// A set of signals, all that the kernel has among them.
#[derive(Clone, Copy)]
pub struct SignalSet(pub(super) u64);

impl SignalSet {
    /// All signals there are.
    pub(super) const ALL: Self = Self(u64::MAX);

    /// The set of these signals, numbers from 1 to `LAST_SIGNAL`.
    pub const fn of(signals: &[i32]) -> Self {
        let mut set = 0;
        let mut next = 0;
        while next < signals.len() {
            set |= 1 << (signals[next] - 1);
            next += 1;
        }
        Self(set)
    }

    /// Blocks these signals too in this thread.
    pub fn block(self) -> io::Result<()> {
        self.change_mask(libc::SIG_BLOCK).map(drop)
    }

    /// Lets these signals through to this thread: any that came meanwhile takes effect now.
    pub fn unblock(self) -> io::Result<()> {
        self.change_mask(libc::SIG_UNBLOCK).map(drop)
    }
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    pub signal: i32,
    /// The kernel sent it (a key on the terminal, a hang-up) rather than a process.
    pub from_kernel: bool,
    /// The process that sent it with kill(2), which may have sent it to a group.
    pub sender: Option<Pid>,
    pub reach: Reach,
}

/// Which processes a signal was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To us alone or to the whole group: both look the same.
    Unknown,
    /// To the whole group.
    Group,
    /// To every process of the job, in whatever group or session.
    All,
}

/// Sends a signal to a process, or with a negative number to a process group. (nix can't send real-time signals.)
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory of ours.
    let result = unsafe { libc::kill(pid, signal) };
    checked(result.into()).map(drop)
}

/// Has a signal end this process with the status 128+N. (A handler is unsafe in nix, too.)
pub fn exit_at(signal: i32) {
    extern "C" fn exit(signal: c_int) {
        // SAFETY: the call may be made in a signal handler, and nothing follows.
        unsafe { libc::_exit(128 + signal) }
    }
    // SAFETY: the handler makes one system call.
    unsafe {
        libc::signal(signal, exit as *const () as libc::sighandler_t);
    }
}

/// Ends this process by a signal, as if nothing had been done about it; a signal that this process
/// ignored or handled before has its default action again. Returns where the kernel doesn't do that:
/// the first process of a system has no default actions.
pub fn die_by(signal: i32) {
    // Only core files are concerned.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    set_default(signal);
    let _ = kill(Pid::this().as_raw(), signal);
    let _ = SignalSet::of(&[signal]).unblock();
}

/// Stops this process by a signal with its default action, until it is continued. The same signal
/// once more, between the continuation and the return from here, stops it again and isn't heard of.
pub fn stop_by(signal: i32) -> io::Result<()> {
    kill(Pid::this().as_raw(), signal)?;
    let set = SignalSet::of(&[signal]);
    set.unblock()?;
    set.block()
}

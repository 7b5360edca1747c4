//! Signals: sending, receiving, and ending a process with one.

use std::ffi::c_int;
use std::io;

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

/// Returns a set of signals. (nix accepts no numbers, and real-time signals have no names.)
pub fn signal_set(signals: &[i32]) -> SigSet {
    let mut set = *SigSet::empty().as_ref();
    // SAFETY: the set is valid before and after each call.
    unsafe {
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        SigSet::from_sigset_t_unchecked(set)
    }
}

/// Returns a non-blocking descriptor for reading these signals, which must be blocked. Closed on exec.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<SignalFd> {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&signal_set(signals), flags)?)
}

/// Reads a signal from such a descriptor, if there is one.
pub fn next_signal(descriptor: &SignalFd) -> io::Result<Option<ReceivedSignal>> {
    let info = descriptor.read_signal()?;
    Ok(info.map(|info| ReceivedSignal {
        signal: info.ssi_signo.cast_signed(),
        from_kernel: info.ssi_code == libc::SI_KERNEL,
        sender: (info.ssi_code == libc::SI_USER).then(|| Pid::from_raw(info.ssi_pid.cast_signed())),
        reach: Reach::Unknown,
    }))
}

/// Returns true if a blocked signal is pending. (nix has no call for that.)
pub fn is_pending(signal: i32) -> bool {
    let mut pending = *SigSet::empty().as_ref();
    // SAFETY: the set is valid.
    unsafe {
        libc::sigpending(&raw mut pending) == 0
            && libc::sigismember(&raw const pending, signal) == 1
    }
}

/// Gives a signal its default action.
pub fn set_default(signal: i32) {
    // SAFETY: no handler is set.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Ignores a signal.
pub fn ignore(signal: i32) {
    // SAFETY: no handler is set.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    pub signal: i32,
    /// True if the kernel sent it (a key on the terminal, a hang-up), not a process.
    pub from_kernel: bool,
    /// The process that sent it with kill(2), possibly to a group.
    pub sender: Option<Pid>,
    pub reach: Reach,
}

/// The set of processes to which a signal was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// This process or its whole group: both look alike.
    Unknown,
    /// The whole group.
    Group,
    /// Every process of the job, in any group or session.
    All,
}

/// Sends a signal to a process, or with a negative number to a process group. (nix can't send real-time signals.)
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory of this process.
    let result = unsafe { libc::kill(pid, signal) };
    Ok(Errno::result(result).map(drop)?)
}

/// Makes a signal end this process with the status 128+N. (A handler is unsafe in nix, too.)
pub fn exit_at(signal: i32) {
    extern "C" fn exit(signal: c_int) {
        // SAFETY: a signal handler may make this call, and nothing follows.
        unsafe { libc::_exit(128 + signal) }
    }
    // SAFETY: the handler makes only one system call.
    unsafe {
        libc::signal(signal, exit as *const () as libc::sighandler_t);
    }
}

/// Ends this process by a signal with its default action, even if this process ignored or handled the signal before. Returns
/// if the kernel refuses: the first process of a system has no default actions.
pub fn die_by(signal: i32) {
    // The limit prevents a core file. If it can't be set, only that is lost.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    set_default(signal);
    let _ = kill(Pid::this().as_raw(), signal);
    let _ = signal_set(&[signal]).thread_unblock();
}

/// Stops this process by a signal with its default action, until the process is continued. If the same signal comes again
/// between the continuation and the return from here, it stops the process again, unreported.
pub fn stop_by(signal: i32) -> io::Result<()> {
    kill(Pid::this().as_raw(), signal)?;
    let set = signal_set(&[signal]);
    set.thread_unblock()?;
    Ok(set.thread_block()?)
}

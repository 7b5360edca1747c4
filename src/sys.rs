//! The only unsafe code: what neither the standard library nor nix has a safe call for.
//!
//! Signals are plain numbers here, because nix's `Signal` has no real-time signals and redlock
//! passes those on as well.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::Pid;

pub use libc::{SIGCONT, SIGKILL, SIGTERM};

/// Whether SIGPIPE was ignored when we were started. Rust's runtime ignores it before `main`, so
/// it has to be asked earlier.
static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: the section holds pointers to functions that the C library calls before `main`, with
// arguments that this one doesn't look at; it calls nothing but sigaction.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK_AT_SIGPIPE: extern "C" fn() = {
    extern "C" fn look() {
        SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    }
    look
};

/// Whether a signal is ignored by this process.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer changes nothing; the kernel fills in the old action, and where it
    // refuses (no such signal) the zeroes stay, which mean the default action.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Gives a signal its default action.
pub fn set_default(signal: i32) {
    // SAFETY: no handler of ours is involved.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
}

/// A set of signals.
#[derive(Clone, Copy)]
pub struct SignalSet(libc::sigset_t);

impl SignalSet {
    /// The set of these signals.
    pub fn of(signals: impl IntoIterator<Item = i32>) -> Self {
        let mut set = MaybeUninit::uninit();
        // SAFETY: sigemptyset initializes the set; sigaddset refuses numbers that are no signals.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            Self(set.assume_init())
        }
    }

    /// Blocks these signals too in this thread; returns the mask from before.
    pub fn block(&self) -> io::Result<Self> {
        let mut before = MaybeUninit::uninit();
        // SAFETY: both pointers are valid sets; the second is filled in on success.
        unsafe {
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const self.0, before.as_mut_ptr()) {
                0 => Ok(Self(before.assume_init())),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// A non-blocking descriptor from which these signals can be read, closed on exec.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: -1 asks for a new descriptor, which nobody else owns.
        unsafe {
            match libc::signalfd(
                -1,
                &raw const self.0,
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            ) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(OwnedFd::from_raw_fd(fd)),
            }
        }
    }
}

/// A signal that arrived: its number, and whether the kernel sent it (a key on the terminal, a
/// hang-up) rather than a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub signal: i32,
    pub from_kernel: bool,
}

/// Reads one signal from a descriptor made by [`SignalSet::descriptor`], if there is one.
pub fn next_signal(fd: &OwnedFd) -> io::Result<Option<Arrived>> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the kernel writes whole records only, and only into the size that is named.
    unsafe {
        let read = libc::read(fd.as_raw_fd(), info.as_mut_ptr().cast(), size);
        if usize::try_from(read) == Ok(size) {
            let info = info.assume_init();
            return Ok(Some(Arrived {
                signal: i32::try_from(info.ssi_signo).unwrap_or(0),
                from_kernel: info.ssi_code == libc::SI_KERNEL,
            }));
        }
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        error => Err(error),
    }
}

/// Sends a signal to a process, or with a negative number to a process group.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory of ours.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps any one child that has ended: its pid and status; `None` while all are alive.
///
/// # Errors
/// `ECHILD` when there are no children at all.
pub fn reap() -> io::Result<Option<(i32, ExitStatus)>> {
    let mut status = 0;
    // SAFETY: the status is ours to write to. nix's waitpid can't tell real-time signals.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some((pid, ExitStatus::from_raw(status)))),
    }
}

/// The highest real-time signal.
pub fn last_signal() -> i32 {
    libc::SIGRTMAX()
}

/// The lowest real-time signal that the C library leaves to programs.
pub fn first_realtime_signal() -> i32 {
    libc::SIGRTMIN()
}

/// How a child finds its signals.
#[derive(Clone, Copy)]
pub struct Inherited {
    /// The signal mask.
    pub mask: SignalSet,
    /// Whether SIGCHLD was ignored when we were started.
    pub sigchld_ignored: bool,
}

/// Prepares a command whose child gets the signals as we got them (the standard library would
/// reset SIGPIPE and the mask), and is killed when the thread that spawns it ends, so when redlock
/// dies: it must be the main thread.
pub fn prepare(command: &mut Command, inherited: Inherited) {
    let parent = Pid::this();
    let sigpipe_ignored = SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed);
    let setup = move || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
        if Pid::parent() != parent {
            // redlock died before the line above.
            return Err(io::ErrorKind::Interrupted.into());
        }
        // SAFETY: plain system calls on valid arguments, allowed between fork and exec.
        unsafe {
            if sigpipe_ignored {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            if inherited.sigchld_ignored {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const inherited.mask.0,
                ptr::null_mut(),
            );
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor takes locks.
    unsafe {
        command.pre_exec(setup);
    }
}

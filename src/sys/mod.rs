//! The only unsafe code: what neither the standard library nor nix has a safe call for.
//!
//! Signals are plain numbers here, because nix's `Signal` has no real-time signals and redlock
//! passes those on as well.

#![allow(unsafe_code)]

mod arena;

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use nix::unistd::Pid;

pub use libc::{SIGCONT, SIGKILL, SIGTERM};

/// How we were started, looked at before Rust's runtime ignores SIGPIPE and opens the standard
/// streams that are closed, and before the C library unblocks signals of its own.
static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static MASK_AT_START: AtomicU64 = AtomicU64::new(0);
static STREAM_WAS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

// SAFETY: the section holds pointers to functions that the C library calls before `main`, with
// arguments that this one doesn't look at; it makes system calls only.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn before_main() {
        arena::prepare();
        SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
        let mut mask = 0_u64;
        // SAFETY: without a new mask nothing is changed, and the kernel's mask has 8 bytes.
        unsafe {
            let none = ptr::null::<c_void>();
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_BLOCK,
                none,
                &raw mut mask,
                8,
            );
        }
        MASK_AT_START.store(mask, Ordering::Relaxed);
        for (stream, was_closed) in (0..).zip(&STREAM_WAS_CLOSED) {
            // SAFETY: asking for flags touches no memory.
            let is_closed = unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1;
            was_closed.store(is_closed, Ordering::Relaxed);
        }
    }
    before_main
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

    /// Blocks these signals too in this thread.
    pub fn block(&self) -> io::Result<()> {
        // SAFETY: the set is valid, and nobody asks for the mask from before.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const self.0, ptr::null_mut()) }
        {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
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

/// A descriptor of a process, closed on exec; `None` when there is no such process.
pub fn pidfd(pid: i32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: the call touches no memory; the descriptor is new, and nobody else owns it.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if let Ok(fd) = i32::try_from(fd)
        && fd >= 0
    {
        // SAFETY: as above.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        error => Err(error),
    }
}

/// Sends a signal to the process of a descriptor.
pub fn signal(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let info = ptr::null::<libc::siginfo_t>();
    // SAFETY: without further information the kernel makes its own, as for kill(2).
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            signal,
            info,
            0,
        )
    };
    if sent == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Goes on twice: in this process (false), and in a new one (true) of a session of its own, with
/// nothing open but these descriptors and `/dev/null` for the standard streams, in the root
/// directory. No other thread may be running.
///
/// # Errors
/// In this process only: no new one could be made.
pub fn split_off(kept: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let mut kept: Vec<u32> = kept
        .iter()
        .filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok())
        .collect();
    kept.sort_unstable();
    // SAFETY: with a single thread the child's memory is as consistent as ours; descriptors that it
    // closes are named by nobody but those who opened them, and none of these is used any more.
    unsafe {
        match libc::fork() {
            -1 => return Err(io::Error::last_os_error()),
            0 => {}
            _ => return Ok(false),
        }
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for stream in 0..3 {
            libc::dup2(null, stream);
        }
        let mut first = 3;
        for fd in kept.into_iter().filter(|&fd| fd >= 3) {
            if fd > first {
                libc::syscall(libc::SYS_close_range, first, fd - 1, 0);
            }
            first = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, first, u32::MAX, 0);
    }
    Ok(true)
}

/// The inode of our pid namespace, which tells it from others; `None` before Linux 6.11.
pub fn pid_namespace() -> Option<u64> {
    const PIDFD_GET_PID_NAMESPACE: libc::Ioctl = 0xff05;
    let pidfd = pidfd(Pid::this().as_raw()).ok()??;
    // SAFETY: the request takes no argument and answers with a new descriptor, which nobody else
    // owns.
    let namespace = unsafe {
        match libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_PID_NAMESPACE, 0) {
            -1 => return None,
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    nix::sys::stat::fstat(namespace)
        .ok()
        .map(|stat| stat.st_ino)
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

/// Lets others go first from now on: waking us doesn't take the processor from whoever has it.
pub fn yield_to_others() {
    // SAFETY: the structure is valid, and zero is the only priority that this policy has.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            libc::SCHED_BATCH,
            &raw const parameters,
        );
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

/// What to execute, and how.
pub struct Execution<'a> {
    /// Paths of the program, tried in order as execvp(3) does.
    pub candidates: &'a [CString],
    pub arguments: &'a [CString],
    /// `NAME=value` texts.
    pub environment: &'a [CString],
    /// Whether the child leads a process group of its own.
    pub own_group: bool,
    /// Whether SIGCHLD was ignored when we were started.
    pub sigchld_ignored: bool,
}

/// What the child of [`spawn`] works with, in the memory that it shares with its parent.
struct Borrowed<'a> {
    candidates: &'a [*const c_char],
    arguments: &'a [*const c_char],
    environment: &'a [*const c_char],
    own_group: bool,
    sigchld_ignored: bool,
    parent: i32,
    /// Why nothing could be executed.
    error: AtomicI32,
}

/// Starts a program in a child that gets signals and standard streams as we got them (the standard
/// library would reset SIGPIPE and the mask), and that the kernel kills when the thread that calls
/// this ends, so when redlock dies: it must be the main thread.
///
/// The child shares our memory until it executes (as with vfork(2), and in glibc's and musl's
/// `posix_spawn`), because copying the page tables for a fork costs a tenth of a short run; and
/// `posix_spawn` itself has no way to ask for the kill.
///
/// # Errors
/// The error of the last `execve`, by the rules of execvp(3): `EACCES` is remembered over `ENOENT`.
pub fn spawn(execution: &Execution) -> io::Result<i32> {
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        texts
            .iter()
            .map(|text| text.as_ptr())
            .chain([ptr::null()])
            .collect()
    };
    let (candidates, arguments, environment) = (
        pointers(execution.candidates),
        pointers(execution.arguments),
        pointers(execution.environment),
    );
    let borrowed = Borrowed {
        candidates: &candidates,
        arguments: &arguments,
        environment: &environment,
        own_group: execution.own_group,
        sigchld_ignored: execution.sigchld_ignored,
        parent: Pid::this().as_raw(),
        error: AtomicI32::new(0),
    };
    // Far more than a few system calls need; only what is touched takes memory.
    let mut stack = vec![MaybeUninit::<u128>::uninit(); 32 * 1024 / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child runs on the other end of its own stack, and this thread stands still until
    // it has executed or ended, so all it borrows outlives it. It makes system calls only. No
    // signal handler of ours can run in it: we have none but for faults.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(
            execute,
            top.cast(),
            flags,
            (&raw const borrowed).cast_mut().cast(),
        )
    };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    match borrowed.error.load(Ordering::Relaxed) {
        0 => Ok(pid),
        error => {
            // SAFETY: the child has ended and is ours to reap.
            unsafe {
                libc::waitpid(pid, ptr::null_mut(), 0);
            }
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// The child's side of [`spawn`]: ends only when nothing could be executed.
extern "C" fn execute(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes this, and stands still while we look at it; all pointers in it are to
    // texts that end with a zero byte, and the lists end with a null pointer. Plain system calls.
    unsafe {
        let borrowed = &*argument.cast::<Borrowed>();
        if borrowed.own_group {
            libc::setpgid(0, 0);
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != borrowed.parent {
            // redlock died before the line above.
            libc::_exit(127);
        }
        let sigpipe = if SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed) {
            libc::SIG_IGN
        } else {
            libc::SIG_DFL
        };
        libc::signal(libc::SIGPIPE, sigpipe);
        if borrowed.sigchld_ignored {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        }
        for (stream, was_closed) in (0..).zip(&STREAM_WAS_CLOSED) {
            if was_closed.load(Ordering::Relaxed) {
                libc::close(stream);
            }
        }
        // The C library would leave its own two signals out of the mask.
        let mask = MASK_AT_START.load(Ordering::Relaxed);
        let none = ptr::null_mut::<c_void>();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            none,
            8,
        );
        let mut error = libc::ENOENT;
        for &path in borrowed.candidates {
            if path.is_null() {
                break;
            }
            libc::execve(
                path,
                borrowed.arguments.as_ptr(),
                borrowed.environment.as_ptr(),
            );
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => error = libc::EACCES,
                other => {
                    error = other;
                    break;
                }
            }
        }
        borrowed.error.store(error, Ordering::Relaxed);
        libc::_exit(127)
    }
}

//! The only unsafe code: calls that neither the standard library nor nix nor rustix offers safely. Each raw call names the
//! reason.
//!
//! Signals are plain numbers here, because nix's `Signal` has no real-time signals. redlock forwards those, too, except
//! 32 to 34, which the C library reserves for itself.
//!
//! Processor-specific code is here, and has a test: the start of a child that shares memory with redlock (`spawn`). `spawn`
//! calls the C library's clone, because the order of the system call's arguments and the direction of the stack differ between
//! processors. Numbers of system calls are libc's.

#![allow(unsafe_code)]

mod arena;
mod daemon;
mod environment;
mod local;
mod lookup;
pub mod poll;
mod signals;
mod spawn;
mod terminal;
mod thread;

use std::ffi::CStr;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{ForkResult, Pid};
use rustix::process::{PidfdFlags, pidfd_open};

pub use libc::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};

pub use self::daemon::{become_program, peer_user};
pub use self::environment::{all_variables, name_and_value, variables};
pub use self::local::local_time;
pub use self::lookup::look_up;
pub use self::signals::{
    Reach, ReceivedSignal, die_by, exit_at, ignore, is_pending, kill, next_signal, set_default,
    signal_descriptor, signal_set, stop_by,
};
pub use self::spawn::{SpawnError, SpawnSpec, spawn};
pub use self::terminal::TerminalModes;
pub use self::thread::{USUAL_STACK, start_thread};

/// State at the start of redlock. Recorded before Rust's runtime ignores SIGPIPE and opens closed standard
/// streams, and before the C library unblocks its own signals.
static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
static MASK_AT_START: AtomicU64 = AtomicU64::new(0);
static STREAM_WAS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

// SAFETY: the section holds pointers to functions that the C library calls before `main`. This function ignores their
// arguments, and makes only system calls.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = {
    extern "C" fn before_main() {
        SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
        let (call, size) = (libc::SYS_rt_sigprocmask, size_of::<u64>());
        let (mask, none) = (MASK_AT_START.as_ptr(), ptr::null::<u64>());
        // SAFETY: the kernel writes a set of this size. (The C library's call would leave out its own signals.)
        unsafe { libc::syscall(call, libc::SIG_BLOCK, none, mask, size) };
        for (stream, was_closed) in (0..).zip(&STREAM_WAS_CLOSED) {
            // SAFETY: a request for flags touches no memory. (nix accepts only open descriptors.)
            let is_closed = unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1;
            was_closed.store(is_closed, Ordering::Relaxed);
        }
    }
    before_main
};

/// The highest signal number.
pub const LAST_SIGNAL: i32 = 64;

/// Returns true if this process ignores a signal. (nix can't ask without changing the action.)
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: zeroes are a valid action, which remains if there is no such signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, ptr::null(), &raw mut action);
        action.sa_sigaction == libc::SIG_IGN
    }
}

/// Returns true if SIGPIPE was ignored at the start of redlock. Rust's runtime has ignored it since then.
pub fn sigpipe_was_ignored() -> bool {
    SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed)
}

/// Returns true if a standard stream, by its number, was closed at the start of redlock.
pub fn stream_was_closed(stream: usize) -> bool {
    STREAM_WAS_CLOSED[stream].load(Ordering::Relaxed)
}

/// Waits briefly until no other thread is left, before a fork whose child starts threads. A thread that begins or ends
/// during the fork may hold a lock of the standard library, which would stay locked forever in the child.
pub fn await_other_threads() {
    const LONGEST: Duration = Duration::from_millis(50);
    let until = Instant::now() + LONGEST;
    let are_others = || fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() > 1);
    while are_others() && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Opens a descriptor of a process, which is closed on exec. Returns `None` if there is no such process.
pub fn pidfd(pid: i32) -> io::Result<Option<OwnedFd>> {
    let pid = rustix::process::Pid::from_raw(pid.max(0));
    match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        None | Some(Err(rustix::io::Errno::SRCH)) => Ok(None),
        Some(process) => Ok(Some(process?)),
    }
}

/// Sends a signal to the process of a descriptor. (rustix can't send 0, which only checks the permission.)
pub fn signal(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let (process, info) = (process.as_raw_fd(), ptr::null::<libc::siginfo_t>());
    // SAFETY: without further information the kernel provides its own, as for kill(2).
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process, signal, info, 0) };
    Ok(Errno::result(sent).map(drop)?)
}

/// Runs `start`, which starts a child, with a lower soft limit of file locks, and restores the limit afterwards. All
/// descendants of the child inherit the limit, which no kernel has enforced since Linux 2.4. Returns this process's own limit
/// as well, or `None` if it can't be lowered.
pub fn with_lower_limit<T>(start: impl FnOnce() -> T) -> (T, Option<u64>) {
    let resource = Resource::RLIMIT_LOCKS;
    let lowered = getrlimit(resource).ok().filter(|&(own, hard)| {
        // "No limit" is the highest number.
        let lower = own.min(1 << 62).saturating_sub(1);
        lower < own && setrlimit(resource, lower, hard).is_ok()
    });
    let started = start();
    if let Some((own, hard)) = lowered {
        let _ = setrlimit(resource, own, hard);
    }
    (started, lowered.map(|(own, _)| own))
}

/// Lifts this process's limits of size, time and descriptors, as far as permitted: they were meant for a job.
pub fn lift_limits() {
    for resource in [
        Resource::RLIMIT_CPU,
        Resource::RLIMIT_FSIZE,
        Resource::RLIMIT_DATA,
        Resource::RLIMIT_AS,
        Resource::RLIMIT_NOFILE,
    ] {
        if setrlimit(resource, RLIM_INFINITY, RLIM_INFINITY).is_err()
            && let Ok((_, hard)) = getrlimit(resource)
        {
            let _ = setrlimit(resource, hard, hard);
        }
    }
}

/// Forks a process that calls `work` with a descriptor and then exits. The process has a new session, this name, and the
/// caller's signal mask. All other descriptors are closed, except `/dev/null` for the standard streams.
pub fn fork_apart<F: AsFd>(name: &CStr, kept: F, work: impl FnOnce(F)) -> io::Result<Pid> {
    if let Some(pid) = fork_daemon(name, &name.to_string_lossy(), &[kept.as_fd()])? {
        return Ok(pid);
    }
    work(kept);
    // SAFETY: nothing follows, and the kernel closes the open descriptors.
    unsafe { libc::_exit(0) }
}

/// Kills a child of any thread, and reaps it.
pub fn kill_and_reap(child: Pid) {
    let _ = kill(child.as_raw(), SIGKILL);
    let _ = waitpid(child, None);
}

/// Forks. Returns the child's pid in this process, and `None` in the child. The child has a new session, is in the root
/// directory, has this name, and shows these words in process lists. All other descriptors are closed, except `/dev/null` for
/// the standard streams. No other thread may hold a lock that the child uses.
///
/// # Errors
/// In this process only: the fork failed.
pub fn fork_daemon(name: &CStr, words: &str, kept: &[BorrowedFd<'_>]) -> io::Result<Option<Pid>> {
    let mut kept: Vec<u32> = kept
        .iter()
        .filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok())
        .collect();
    kept.sort_unstable();
    // Set before the fork, so that the process never appears without its name.
    let own_name = prctl::get_name()?;
    prctl::set_name(name)?;
    // SAFETY: with a single thread the child's memory is as consistent as its parent's. The code that opened the closed
    // descriptors doesn't run any more, and nothing else knows them.
    unsafe {
        let forked = nix::unistd::fork();
        if !matches!(forked, Ok(ForkResult::Child)) {
            let _ = prctl::set_name(&own_name);
        }
        if let ForkResult::Parent { child } = forked? {
            return Ok(Some(child));
        }
        let _ = nix::unistd::setsid();
        show_words(words);
        let _ = nix::unistd::chdir(c"/");
        // Raw calls by number: if a standard stream is closed, this descriptor takes its place.
        let mut null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        if null == -1 {
            // A container may have no /dev. The streams must be replaced, because a reader of redlock's output waits for its
            // end.
            null = libc::open(c"/".as_ptr(), libc::O_PATH);
        }
        for stream in 0..3 {
            libc::dup2(null, stream);
        }
        let mut first = 3;
        for fd in kept.into_iter().filter(|&fd| fd >= 3) {
            if fd > first {
                close_range(first, fd - 1);
            }
            first = fd + 1;
        }
        close_range(first, u32::MAX);
    }
    Ok(None)
}

/// Closes these descriptors, even if the kernel lacks the call, or a sandbox refuses it. (Neither nix nor musl has the call.)
///
/// # Safety
/// The caller must not use any of them afterwards.
unsafe fn close_range(first: u32, last: u32) {
    // SAFETY: the calls touch no memory.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) == 0 {
            return;
        }
        let limit = u32::try_from(libc::sysconf(libc::_SC_OPEN_MAX)).unwrap_or(1024);
        for fd in first..=last.min(limit) {
            libc::close(fd.cast_signed());
        }
    }
}

/// Replaces the words of this process in process lists, because the original ones may contain a password.
///
/// # Safety
/// Nothing may read the arguments of the process afterwards.
unsafe fn show_words(words: &str) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    // The fields 48 and 49. The state, which is the first here, is field 3.
    let mut left = fields.split_ascii_whitespace().skip(48 - 3);
    let mut address = || left.next()?.parse::<usize>().ok().filter(|&at| at != 0);
    let (Some(first), Some(last)) = (address(), address()) else {
        return;
    };
    let room = last.saturating_sub(first);
    let length = words.len().min(room.saturating_sub(1));
    // SAFETY: according to the kernel the arguments are there, in memory of this process that nothing else uses.
    unsafe {
        ptr::write_bytes(first as *mut u8, 0, room);
        ptr::copy_nonoverlapping(words.as_ptr(), first as *mut u8, length);
    }
}

/// Name of a watchdog. Doesn't contain "redlock", so that people who kill by that name don't kill the watchdog, too.
pub const WATCHDOG: &CStr = c"rl-watchdog";

/// Name of a keeper.
pub const KEEPER: &CStr = c"redlock-keeper";

/// Name of a process that runs a hook, and is the ancestor of all its processes.
pub const HOOK: &CStr = c"rl-hook";

/// Name of a process that starts the server for `local:`.
pub const LOCAL_SERVER: &CStr = c"rl-local";

/// Reaps any child of this thread that has ended. Returns its pid and status, or `None` while all are alive.
/// (Orphans that redlock adopts are children of the main thread.)
///
/// # Errors
/// `ECHILD` if there are no children.
pub fn reap() -> io::Result<Option<(i32, ExitStatus)>> {
    let mut status = 0;
    let options = libc::WNOHANG | libc::__WNOTHREAD;
    // SAFETY: this function owns the status. nix's waitpid can't report real-time signals.
    match unsafe { libc::waitpid(-1, &raw mut status, options) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some((pid, ExitStatus::from_raw(status)))),
    }
}

/// Returns true if this thread has a child, alive or not yet reaped.
pub fn has_children() -> bool {
    let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, options | WaitPidFlag::__WNOTHREAD) != Err(Errno::ECHILD)
}

/// Returns the signal that has stopped a child, if it is stopped.
pub fn stop_signal(child: Pid) -> Option<Signal> {
    // WNOWAIT: the child isn't reaped.
    let options = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(child), options) {
        Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
        _ => None,
    }
}

/// Makes this process the new parent of orphans among its descendants, instead of the system's first process.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Returns the exit status of the process of a descriptor. Returns `None` if the kernel doesn't know it, because the process
/// hasn't been reaped yet, or on Linux before 6.15. (Neither nix nor rustix has the request.)
pub fn exit_status(process: BorrowedFd<'_>) -> Option<ExitStatus> {
    let asks_for = u64::from(libc::PIDFD_INFO_EXIT);
    // SAFETY: zero is a valid value of the structure, which this function owns, and the request contains its size.
    unsafe {
        let mut info: libc::pidfd_info = std::mem::zeroed();
        info.mask = asks_for;
        let result = libc::ioctl(process.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info);
        let has_status = result == 0 && info.mask & asks_for != 0;
        has_status.then(|| ExitStatus::from_raw(info.exit_code))
    }
}

/// Switches to the policy `SCHED_BATCH`, so that this process doesn't preempt another one when an answer wakes it. COMMAND
/// must not inherit the policy. (nix has no call for that, and musl's always fails.)
pub fn yield_cpu() {
    // SAFETY: the structure is valid, and zero is the only priority of this policy.
    unsafe {
        let priority: libc::sched_param = std::mem::zeroed();
        let (call, policy) = (libc::SYS_sched_setscheduler, libc::SCHED_BATCH);
        libc::syscall(call, 0, policy, &raw const priority);
    }
}

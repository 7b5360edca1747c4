//! The functions of `sys` for a Unix that isn't Linux, as far as the commands need them that supervise nothing: none of
//! these starts, finds or kills the processes of a job. Signals and timers are waited for at queues of kqueue(2).

#![allow(unsafe_code)]

mod environment;
mod local;
mod lookup;
pub mod poll;
mod signals;
mod thread;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

pub use libc::SIGKILL;

pub use self::environment::{all_variables, name_and_value, variables};
pub use self::local::{CivilTime, local_time, midnight_utc, utc_time};
pub use self::lookup::look_up;
pub use self::signals::{
    KeptStatus, Reach, ReceivedSignal, SignalSet, die_by, exit_at, kill, stop_by, stop_job_by,
};
pub use self::thread::start_thread;

/// The last signal there is.
pub const LAST_SIGNAL: i32 = 31;

/// Whether a signal is ignored by this process.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing is changed; all zeroes are a valid action, which stays where the call fails.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Whether SIGPIPE was ignored when we were started: only a job would have to know.
pub fn sigpipe_was_ignored() -> bool {
    false
}

/// Whether a standard stream was closed when we were started: Rust's runtime has opened it since.
pub fn stream_was_closed(_stream: usize) -> bool {
    false
}

/// Gives a signal its default action.
pub fn set_default(signal: i32) {
    // SAFETY: the default action runs no code of ours.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
}

/// Has a signal ignored.
pub fn ignore(signal: i32) {
    // SAFETY: no code of ours runs.
    unsafe {
        libc::signal(signal, libc::SIG_IGN);
    }
}

impl SignalSet {
    /// Changes the mask of this thread; what it was before.
    fn change_mask(self, how: i32) -> io::Result<Self> {
        let set = self.to_system();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: both sets are valid, all zeroes too.
        unsafe {
            match libc::pthread_sigmask(how, &raw const set, before.as_mut_ptr()) {
                0 => Ok(Self::from_system(before.assume_init())),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// A descriptor that is readable when one of these signals has come, and closed on exec.
    pub fn descriptor(self) -> io::Result<OwnedFd> {
        let queue = queue()?;
        let each = (1..=LAST_SIGNAL).filter(|&signal| self.0 & Self::of(&[signal]).0 != 0);
        let each = each.map(|signal| {
            let ident = usize::try_from(signal).unwrap_or_default();
            event(ident, EventFilter::EVFILT_SIGNAL, EvFlags::EV_ADD, 0)
        });
        queue.kevent(&each.collect::<Vec<_>>(), &mut [], None)?;
        Ok(queue.into())
    }

    fn to_system(self) -> libc::sigset_t {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set is ours to write to, and valid once it is emptied.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in 1..=LAST_SIGNAL {
                if self.0 & Self::of(&[signal]).0 != 0 {
                    libc::sigaddset(set.as_mut_ptr(), signal);
                }
            }
            set.assume_init()
        }
    }

    fn from_system(set: libc::sigset_t) -> Self {
        // SAFETY: the set is valid.
        let has = |signal: &i32| unsafe { libc::sigismember(&raw const set, *signal) == 1 };
        let found: Vec<i32> = (1..=LAST_SIGNAL).filter(has).collect();
        Self::of(&found)
    }

    /// The blocked signals that have come and were not taken yet.
    fn pending() -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set is ours to write to; all zeroes are a valid one.
        unsafe {
            libc::sigpending(set.as_mut_ptr());
            Self::from_system(set.assume_init())
        }
    }
}

/// A new queue of events. What is started here inherits none.
fn queue() -> nix::Result<Kqueue> {
    let queue = Kqueue::new()?;
    fcntl(&queue, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(queue)
}

fn event(ident: usize, filter: EventFilter, flags: EvFlags, data: isize) -> KEvent {
    KEvent::new(ident, filter, flags, FilterFlag::NOTE_NSECONDS, data, 0)
}

/// The blocked signals that are read from no descriptor.
const NOT_READ: SignalSet = SignalSet::of(&[libc::SIGTTIN, libc::SIGTTOU]);

/// Takes one of the signals for which [`SignalSet::descriptor`] is, if one has come.
pub fn next_signal(fd: &OwnedFd) -> io::Result<Option<ReceivedSignal>> {
    drain(fd.as_fd())?;
    let pending = SignalSet(SignalSet::pending().0 & !NOT_READ.0);
    if pending.0 == 0 {
        return Ok(None);
    }
    let (set, mut signal) = (pending.to_system(), 0);
    // SAFETY: the set is valid, and the number ours to write to. One of them has come, so that it doesn't wait.
    match unsafe { libc::sigwait(&raw const set, &raw mut signal) } {
        0 => Ok(Some(ReceivedSignal {
            signal,
            from_kernel: false,
            from_ourselves: false,
            reach: Reach::Unknown,
        })),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Has a queue forget what has come.
fn drain(queue: BorrowedFd<'_>) -> io::Result<()> {
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut events = [const { MaybeUninit::<libc::kevent>::zeroed() }; 32];
    // SAFETY: there is room for as many events as are named.
    let found = unsafe {
        libc::kevent(
            queue.as_raw_fd(),
            ptr::null(),
            0,
            events.as_mut_ptr().cast(),
            32,
            &raw const none,
        )
    };
    match found {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether a blocked signal has arrived and was not taken yet.
pub fn is_pending(signal: i32) -> bool {
    SignalSet::pending().0 & SignalSet::of(&[signal]).0 != 0
}

/// What tells a signal to a group from one to us alone, for a run: there is none.
pub enum Witness {}

impl Witness {
    pub fn start(_in_own_group: bool) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn has(&self, _signal: i32, _patience: Duration) -> Option<bool> {
        match *self {}
    }
}

/// The time since a moment in the past. On macOS this clock goes on while the machine sleeps (`CLOCK_UPTIME_RAW` doesn't).
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("any Unix has CLOCK_MONOTONIC");
    time.into()
}

/// A descriptor that becomes readable at a moment; later than that where the machine sleeps meanwhile.
#[derive(Debug)]
pub struct ClockTimer(Kqueue);

impl ClockTimer {
    /// A timer that isn't set.
    pub fn new() -> nix::Result<Self> {
        queue().map(Self)
    }

    /// Makes it go off when [`since_boot`] is this, or never.
    pub fn set(&mut self, at: Option<Duration>) -> nix::Result<()> {
        let timer = |flags, left| event(1, EventFilter::EVFILT_TIMER, flags, left);
        // There may be none.
        let _ = self
            .0
            .kevent(&[timer(EvFlags::EV_DELETE, 0)], &mut [], None);
        let Some(at) = at else {
            return Ok(());
        };
        let left = at.saturating_sub(since_boot()).as_nanos();
        // A time of zero may count as none.
        let left = isize::try_from(left).unwrap_or(isize::MAX).max(1);
        let flags = EvFlags::EV_ADD | EvFlags::EV_ONESHOT;
        self.0.kevent(&[timer(flags, left)], &mut [], None)?;
        Ok(())
    }
}

impl AsFd for ClockTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that another thread makes readable.
#[derive(Debug)]
pub struct Wakeup {
    read: UnixStream,
    written: UnixStream,
}

impl Wakeup {
    pub fn new() -> io::Result<Self> {
        let (read, written) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        written.set_nonblocking(true)?;
        Ok(Self { read, written })
    }

    /// Makes it readable.
    pub fn wake(&self) -> io::Result<()> {
        match (&self.written).write(&[1]) {
            // It is readable already.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            written => written.map(drop),
        }
    }

    /// Makes it unreadable again.
    pub fn clear(&self) {
        while (&self.read).read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

/// A descriptor of a process: there is none.
pub fn pidfd(_pid: i32) -> io::Result<Option<OwnedFd>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether a child has ended. It isn't reaped.
pub fn has_ended(child: Pid) -> io::Result<bool> {
    let mut found = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    let id = libc::id_t::from(child.as_raw().unsigned_abs());
    // SAFETY: the structure is ours to write to, and all zeroes are a valid one.
    unsafe {
        match libc::waitid(libc::P_PID, id, found.as_mut_ptr(), options) {
            0 => Ok(found.assume_init().si_pid != 0),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Has what a command starts get the signals that a program gets by default. Descriptors of ours are closed on exec.
pub fn isolate(command: &mut Command) {
    // SAFETY: it makes a system call only.
    unsafe {
        command.pre_exec(|| SignalSet(0).change_mask(libc::SIG_SETMASK).map(drop));
    }
}

/// What standard output is, to be opened once more; empty where it isn't a terminal.
pub fn standard_output() -> PathBuf {
    nix::unistd::ttyname(io::stdout()).unwrap_or_default()
}

/// The file of the program that runs; empty where that isn't known.
pub fn own_program() -> PathBuf {
    std::env::current_exe().unwrap_or_default()
}

/// A file without a name.
pub fn memory_file() -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("redlock-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true);
    let file = options.mode(0o600).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// Has what was written to a file outlive a crash of the machine; no call here does that for a whole file system.
pub fn sync_file_system(file: &File) -> io::Result<()> {
    file.sync_all()
}

/// Here memory is mapped as it is used.
pub fn map_more() {}

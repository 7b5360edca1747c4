//! Signals to redlock as events for the main loop, each of them once.
//!
//! redlock blocks the signals and reads them from a descriptor, so there is no handler and no thread, except
//! handlers of the first process of a system while it releases. A signal that was
//! ignored at the start of redlock (`nohup`) stays ignored, for redlock and its child. ctrlc neither reports which signal came
//! nor leaves ignored ones alone, so only commands without a child use it.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

use crate::clock::{Moment, now};
use crate::sys::{self, ReceivedSignal, signal_set};

pub use libc::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGURG, SIGWINCH,
};

/// Signals that ask a process to end.
const ENDING_SIGNALS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// The signals of a run, from its first request for the lock.
pub struct Signals {
    fd: SignalFd,
    taken: SigSet,
    on_terminal: bool,
    /// True if the next SIGCONT is the one that has continued redlock itself.
    continued: Cell<bool>,
    /// Bit set of the signals that have asked redlock to end.
    asked_to_end: Cell<u32>,
    /// Last such signal that COMMAND can't have got, because it hasn't started or has ended.
    late: Cell<Option<i32>>,
    /// True in a keeper, whose release of its locks no signal ends.
    is_keeper: Cell<bool>,
    /// Deadline for the end of redlock, set by the first call of [`Self::left_to_end`] after such a signal.
    ends_by: Cell<Option<Moment>>,
    /// True if SIGCHLD was ignored at the start of redlock, so that the child must inherit that.
    pub sigchld_ignored: bool,
}

impl Signals {
    /// Blocks and collects all signals that can be forwarded.
    pub fn take(on_terminal: bool) -> io::Result<Self> {
        let sigchld_ignored = sys::is_ignored(SIGCHLD);
        // The parent may have left SIGCHLD ignored. Then the kernel would discard the child's status.
        sys::set_default(SIGCHLD);
        let signals = [forwarded(), vec![SIGCHLD]].concat();
        let taken = signal_set(&signals);
        taken.thread_block()?;
        Ok(Self {
            fd: sys::signal_descriptor(&signals)?,
            taken,
            on_terminal,
            continued: Cell::new(false),
            asked_to_end: Cell::new(0),
            late: Cell::new(None),
            is_keeper: Cell::new(false),
            ends_by: Cell::new(None),
            sigchld_ignored,
        })
    }

    /// Returns the next signal that has arrived. Skips signals that were ignored at the start of redlock: they arrive, too,
    /// because they are blocked.
    pub fn next(&self) -> io::Result<Option<ReceivedSignal>> {
        while let Some(received) = sys::next_signal(&self.fd)? {
            let is_skipped = match received.signal {
                // The kernel's answer to an action of this process: a write into a closed pipe, or of a file that is too large.
                _ if received.sender == Some(Pid::this()) => true,
                // Rust's runtime ignores SIGPIPE, so the state at the start decides.
                libc::SIGPIPE => sys::sigpipe_was_ignored(),
                signal if sys::is_ignored(signal) => true,
                SIGCONT => self.continued.replace(false),
                _ => false,
            };
            if !is_skipped {
                if asks_to_end(received.signal) && !self.is_keeper.get() {
                    let (asked, signal) = (self.asked_to_end.get(), 1 << received.signal);
                    // A shell or timeout(1) passes on a signal that the whole job has got, but no key.
                    if received.from_kernel || asked & signal == 0 {
                        self.late.set(Some(received.signal));
                    }
                    self.asked_to_end.set(asked | signal);
                }
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    /// Returns the rest of `within`, which begins at the first call after a signal that asks redlock to end. Returns
    /// `None` before such a signal.
    pub fn left_to_end(&self, within: Duration) -> Option<Duration> {
        if self.asked_to_end.get() == 0 {
            return None;
        }
        let by = self.ends_by.get().unwrap_or_else(|| now() + within);
        self.ends_by.set(Some(by));
        Some(by.since(now()))
    }

    /// Makes this process a keeper, which no signal asks to end.
    pub fn become_keeper(&self) {
        self.is_keeper.set(true);
    }

    /// Returns the next signal that ends a redlock whose COMMAND hasn't started. SIGTSTP only stops redlock for a while.
    pub fn next_ending(&self) -> io::Result<Option<i32>> {
        while let Some(received) = self.next()? {
            if ends_waiting(received.signal) && !self.is_keeper.get() {
                return Ok(Some(received.signal));
            }
            if received.signal == SIGTSTP {
                self.suspend()?;
            }
        }
        Ok(None)
    }

    /// Stops this process until it is continued. Returns true if it was stopped. On a terminal redlock stops like a job, by
    /// SIGTSTP, which the kernel ignores if no shell could continue the process. The SIGCONT that continues redlock continues
    /// the whole job, so redlock doesn't forward it.
    pub fn suspend(&self) -> io::Result<bool> {
        if !self.on_terminal {
            sys::stop_by(SIGSTOP)?;
            return Ok(true);
        }
        sys::stop_by(SIGTSTP)?;
        self.continued.set(sys::is_pending(SIGCONT));
        Ok(self.continued.get())
    }

    /// Forgets the late signals so far, because COMMAND has got them.
    pub fn forget_late(&self) {
        self.late.set(None);
    }

    /// Returns a signal that has asked redlock to end while no COMMAND was running. A repetition of a
    /// signal that COMMAND may have got doesn't count.
    pub fn late(&self) -> Option<i32> {
        while let Ok(Some(_)) = self.next() {}
        self.late.get()
    }

    /// Lets a signal that asks redlock to end do so at once, for a slow release after COMMAND has ended: the lock then
    /// expires by itself. Signals that came before have to wait for the end of the release.
    pub fn let_through(&self) -> io::Result<()> {
        if self.is_keeper.get() {
            return Ok(());
        }
        self.late();
        // For the first process of a system, the kernel ignores the default actions of signals.
        if std::process::id() == 1 {
            for signal in ENDING_SIGNALS {
                sys::exit_at(signal);
            }
        }
        Ok(signal_set(&ENDING_SIGNALS).thread_unblock()?)
    }

    /// Undoes [`Self::let_through`].
    pub fn collect_again(&self) -> io::Result<()> {
        self.taken.thread_block()?;
        if std::process::id() == 1 {
            ENDING_SIGNALS.into_iter().for_each(sys::set_default);
        }
        Ok(())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Calls `notify` in a thread at each interrupt (SIGINT), unless that was ignored at the start of redlock.
pub fn on_interrupt(notify: impl Fn() + Send + 'static) -> Result<(), ctrlc::Error> {
    if !sys::is_ignored(SIGINT) {
        ctrlc::set_handler(notify)?;
    }
    Ok(())
}

/// Returns the signals that redlock forwards to the child.
pub fn forwarded() -> Vec<i32> {
    let all = 1..=sys::LAST_SIGNAL;
    all.filter(|&signal| is_forwarded(signal)).collect()
}

/// Returns true if redlock collects a signal and forwards it to the child.
fn is_forwarded(signal: i32) -> bool {
    !matches!(
        signal,
        // Signals that can't be caught, and the one about children.
        libc::SIGKILL | libc::SIGSTOP | libc::SIGCHLD
        // Reports of a fault in this process.
        | libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP
        | libc::SIGABRT | libc::SIGSYS
        // Signals to a process that uses the terminal from the background.
        | libc::SIGTTIN | libc::SIGTTOU
    )
}

/// Returns true if a signal ends a redlock that is still waiting for the lock: all signals except those that do nothing by
/// default, and SIGTSTP.
pub fn ends_waiting(signal: i32) -> bool {
    !matches!(
        signal,
        libc::SIGCHLD | libc::SIGCONT | libc::SIGWINCH | libc::SIGURG | libc::SIGTSTP
    )
}

/// Returns true if a signal asks redlock to end. redlock then ends by the same signal as the work. A shell that waits
/// for redlock expects that: a script must end at Ctrl-C instead of continuing with its next line.
pub fn asks_to_end(signal: i32) -> bool {
    ENDING_SIGNALS.contains(&signal)
}

/// Returns true if there is a controlling terminal: the shell's job control then sees redlock and COMMAND as one job.
pub fn on_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

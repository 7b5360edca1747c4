//! Signals that redlock gets, as events to read in the main loop: each as itself, once.
//!
//! They are blocked and read from a descriptor, so there is no handler and no thread. A signal
//! that was ignored when redlock was started (`nohup`) is left alone, for redlock and its child.
//! ctrlc can't do that, because it neither says which signal came nor leaves ignored ones alone; commands without a
//! child use it.

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

/// The signals of a run, from when it first asks for the lock.
pub struct Signals {
    fd: SignalFd,
    taken: SigSet,
    on_terminal: bool,
    /// The next SIGCONT is the one that has continued us.
    continued: Cell<bool>,
    /// A signal has asked us to end.
    asked_to_end: Cell<bool>,
    /// By when we are to have ended after that, once that was asked.
    ends_by: Cell<Option<Moment>>,
    /// Whether SIGCHLD was ignored when we were started; the child shall find it so.
    pub sigchld_ignored: bool,
}

impl Signals {
    /// Blocks and collects all signals that can be passed on.
    pub fn take(on_terminal: bool) -> io::Result<Self> {
        let sigchld_ignored = sys::is_ignored(SIGCHLD);
        // A parent may have left it ignored; then the kernel would throw our child's status away.
        sys::set_default(SIGCHLD);
        let signals = [passed_on(), vec![SIGCHLD]].concat();
        let taken = signal_set(&signals);
        taken.thread_block()?;
        Ok(Self {
            fd: sys::signal_descriptor(&signals)?,
            taken,
            on_terminal,
            continued: Cell::new(false),
            asked_to_end: Cell::new(false),
            ends_by: Cell::new(None),
            sigchld_ignored,
        })
    }

    /// Returns the next signal that has arrived. Skips signals that were ignored when redlock was started: they come as
    /// well, because they are blocked.
    pub fn next(&self) -> io::Result<Option<ReceivedSignal>> {
        while let Some(received) = sys::next_signal(&self.fd)? {
            let is_skipped = match received.signal {
                // The kernel's answer to something that we have done: a write into a closed pipe, or
                // of a file that is too large.
                _ if received.sender == Some(Pid::this()) => true,
                // Since we were started it is ignored.
                libc::SIGPIPE => sys::sigpipe_was_ignored(),
                signal if sys::is_ignored(signal) => true,
                SIGCONT => self.continued.replace(false),
                _ => false,
            };
            if !is_skipped {
                if is_passed_up(received.signal) {
                    self.asked_to_end.set(true);
                }
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    /// How much is left of this time, which begins when that is first asked after a signal that asks a process to end;
    /// `None` before such a signal.
    pub fn left_to_end(&self, within: Duration) -> Option<Duration> {
        if !self.asked_to_end.get() {
            return None;
        }
        let by = self.ends_by.get().unwrap_or_else(|| now() + within);
        self.ends_by.set(Some(by));
        Some(by.since(now()))
    }

    /// The next signal that ends what waits, where there is no COMMAND. One that stops a job stops us meanwhile.
    pub fn next_ending(&self) -> io::Result<Option<i32>> {
        while let Some(received) = self.next()? {
            if ends_waiting(received.signal) {
                return Ok(Some(received.signal));
            }
            if received.signal == SIGTSTP {
                self.suspend()?;
            }
        }
        Ok(None)
    }

    /// Stops ourselves, until we are continued. On a terminal we stop as a job does, by TSTP: the kernel
    /// ignores that where no shell could continue us; and what continues us continues the job, so
    /// that it isn't passed on. Whether we were stopped at all.
    pub fn suspend(&self) -> io::Result<bool> {
        if !self.on_terminal {
            sys::stop_by(SIGSTOP)?;
            return Ok(true);
        }
        sys::stop_by(SIGTSTP)?;
        self.continued.set(sys::is_pending(SIGCONT));
        Ok(self.continued.get())
    }

    /// From now on a signal that asks us to end does so at once, by its default action: nothing is left to do
    /// that would be worth a wait. Signals that came until now are discarded.
    pub fn let_through(&self) -> io::Result<()> {
        while self.next()?.is_some() {}
        // The kernel spares the first process of a system what signals do by default.
        if std::process::id() == 1 {
            for signal in ENDING_SIGNALS {
                sys::exit_at(signal);
            }
        }
        Ok(signal_set(&ENDING_SIGNALS).thread_unblock()?)
    }

    /// Ends what [`Self::let_through`] has begun.
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

/// Does this at an interrupt, in a thread; one that was ignored when we were started stays ignored.
pub fn on_interrupt(notify: impl Fn() + Send + 'static) -> Result<(), ctrlc::Error> {
    if !sys::is_ignored(SIGINT) {
        ctrlc::set_handler(notify)?;
    }
    Ok(())
}

/// Returns the signals that are passed on to the child.
pub fn passed_on() -> Vec<i32> {
    let all = 1..=sys::LAST_SIGNAL;
    all.filter(|&signal| is_passed_on(signal)).collect()
}

/// Whether a signal is collected and passed on to the child.
fn is_passed_on(signal: i32) -> bool {
    !matches!(
        signal,
        // They can't be caught, or report on our children.
        libc::SIGKILL | libc::SIGSTOP | libc::SIGCHLD
        // They report a fault of this very process.
        | libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP
        | libc::SIGABRT | libc::SIGSYS
        // They stop a process that uses a terminal from the background.
        | libc::SIGTTIN | libc::SIGTTOU
    )
}

/// Whether a signal ends a redlock that still waits for the lock. All would by default, but for
/// those that by default do nothing.
pub fn ends_waiting(signal: i32) -> bool {
    !matches!(
        signal,
        libc::SIGCHLD | libc::SIGCONT | libc::SIGWINCH | libc::SIGURG | libc::SIGTSTP
    )
}

/// Whether redlock ends by this signal when the work has ended by it, as a shell expects that waits
/// for us: a script is to end at Ctrl-C, and not to go on with its next line.
pub fn is_passed_up(signal: i32) -> bool {
    ENDING_SIGNALS.contains(&signal)
}

/// Whether we have a terminal: then the shell's job control sees us and COMMAND as one job.
pub fn on_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

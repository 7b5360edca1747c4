//! Signals that redlock gets, as events to read in the main loop: each as itself, once.
//!
//! They are blocked and read from a descriptor, so there is no handler and no thread. A signal
//! that was ignored when redlock was started (`nohup`) is left alone, for redlock and its child.
//! ctrlc can't do that, as it neither says which signal came nor leaves ignored ones alone; it
//! serves where an interrupt only has to end a loop (`status --watch`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::sys::{self, Arrived, SignalSet};

pub use libc::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGURG, SIGWINCH};

/// The signals of a run, from when it first asks for the lock.
pub struct Signals {
    fd: OwnedFd,
    /// Whether SIGCHLD was ignored when we were started; the child shall find it so.
    pub sigchld_ignored: bool,
}

impl Signals {
    /// Blocks and collects all signals that can be passed on. With `on_terminal` the keys that
    /// stop a job are left to the kernel: it stops us and our child alike.
    pub fn take(on_terminal: bool) -> io::Result<Self> {
        let sigchld_ignored = sys::is_ignored(SIGCHLD);
        // A parent may have left it ignored; then the kernel would throw our child's status away.
        sys::set_default(SIGCHLD);
        let taken = (1..32)
            .chain(sys::first_realtime_signal()..=sys::last_signal())
            .filter(|&signal| signal == SIGCHLD || is_passed_on(signal, on_terminal));
        let set = SignalSet::of(taken);
        set.block()?;
        Ok(Self {
            fd: set.descriptor()?,
            sigchld_ignored,
        })
    }

    /// The next signal that has arrived, if any. What was ignored when we were started comes as
    /// well, as it is blocked; it is passed over here, where it costs only who sends it.
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        loop {
            match sys::next_signal(&self.fd)? {
                Some(arrived) if sys::is_ignored(arrived.signal) => {}
                other => return Ok(other),
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where a loop that an interrupt only has to end hears of it. An interrupt that was ignored when
/// we were started (a background job of a script) stays ignored.
pub fn interrupted() -> Result<Receiver<()>, ctrlc::Error> {
    static LISTENER: OnceLock<Sender<()>> = OnceLock::new();
    let (interrupt, interrupted) = channel();
    let interrupt = LISTENER.get_or_init(|| interrupt);
    if !sys::is_ignored(SIGINT) {
        ctrlc::set_handler(|| {
            // A second one finds nobody listening any more.
            let _ = interrupt.send(());
        })?;
    }
    Ok(interrupted)
}

/// Whether a signal is collected and passed on to the child.
fn is_passed_on(signal: i32, on_terminal: bool) -> bool {
    // On a terminal the kernel stops the whole job.
    let stops_the_job = on_terminal && signal == libc::SIGTSTP;
    let is_ours = matches!(
        signal,
        // They can't be caught, or tell of our own children.
        libc::SIGKILL | libc::SIGSTOP | libc::SIGCHLD
        // They report a fault of this very process. (A write to a closed pipe is an error in Rust.)
        | libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP
        | libc::SIGABRT | libc::SIGSYS | libc::SIGPIPE
        // They stop whoever uses a terminal from the background.
        | libc::SIGTTIN | libc::SIGTTOU
    );
    !stops_the_job && !is_ours
}

/// Whether a signal ends a redlock that still waits for the lock. All would by default, but for
/// those that by default do nothing.
pub fn ends_waiting(signal: i32) -> bool {
    !matches!(
        signal,
        libc::SIGCHLD | libc::SIGCONT | libc::SIGWINCH | libc::SIGURG | libc::SIGTSTP
    )
}

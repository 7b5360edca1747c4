//! Work that may wait for a server, done in a thread so that signals and leases needn't wait.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SendError, channel};
use std::time::Duration;

use crate::sys::{self, USUAL_STACK};

/// Work that any thread can do.
type Work = Box<dyn FnOnce() + Send>;

/// Running work. Its descriptor becomes readable when the work is done.
pub(super) struct Background<T> {
    done: PipeReader,
    result: Receiver<T>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts the work in a thread. If no thread can be started, does the work here, and everything else waits.
    pub(super) fn start(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (done, running) = io::pipe()?;
        let (sender, result) = channel();
        let work = move || {
            let _ = sender.send(work());
            // Closing this end tells the main thread that the work is done.
            drop(running);
        };
        let (hand, handed) = channel();
        let thread = move || handed.recv().into_iter().for_each(|work: Work| work());
        let _ = sys::start_thread("background", USUAL_STACK, thread);
        if let Err(SendError(work)) = hand.send(Box::new(work)) {
            work();
        }
        Ok(Self { done, result })
    }

    /// Returns the result if the work is done.
    pub(super) fn finished(&self) -> Option<T> {
        self.result.try_recv().ok()
    }

    /// Returns the result if the work ends within this time.
    pub(super) fn end(&self, within: Duration) -> Option<T> {
        self.result.recv_timeout(within).ok()
    }
}

impl<T> AsFd for Background<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

//! Runs work that may wait for a server in a thread, so that signals and leases don't wait for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, channel};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::protocol::{Error, ErrorKind};
use crate::signal::Signals;
use crate::sys::poll::sleep;
use crate::sys::{self, USUAL_STACK};

/// Work that is under way. Its descriptor becomes readable when the work is done.
pub(super) struct Background<T> {
    done: Arc<EventFd>,
    result: Receiver<T>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts the work, which is prepared if there is a descriptor for its end. If no thread can be made, does it here, so
    /// that all else waits.
    pub(super) fn start<W>(prepare: impl FnOnce() -> W) -> io::Result<Self>
    where
        W: FnOnce() -> T + Send + 'static,
    {
        let done = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        let work = prepare();
        let (sender, result) = channel();
        let (hand, handed) = channel::<W>();
        let waker = Arc::clone(&done);
        let finish = move |work: W| {
            let _ = sender.send(work());
            let _ = waker.write(1);
        };
        let finish_there = finish.clone();
        let _ = sys::start_thread("background", USUAL_STACK, move || {
            if let Ok(work) = handed.recv() {
                finish_there(work);
            }
        });
        if let Err(SendError(work)) = hand.send(work) {
            finish(work);
        }
        Ok(Self { done, result })
    }

    /// Returns the result, once the work is done.
    pub(super) fn finished(&self) -> Option<T> {
        self.result.try_recv().ok()
    }

    /// Returns the result, if the work is done within this time.
    pub(super) fn end(&self, within: Duration) -> Option<T> {
        self.result.recv_timeout(within).ok()
    }

    /// Waits for the result. Returns a signal that ends this process instead, if one comes before.
    fn wait(&self, signals: &Signals) -> io::Result<Result<T, i32>> {
        loop {
            sleep([Some(signals.as_fd()), Some(self.as_fd())], None)?;
            if let Some(signal) = signals.next_ending()? {
                return Ok(Err(signal));
            }
            if let Some(result) = self.finished() {
                return Ok(Ok(result));
            }
        }
    }
}

impl<T> AsFd for Background<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

/// Does the work in the background. Returns its result, or a signal that ends this process, if one comes before.
pub(super) fn in_background<T: Send + 'static>(
    signals: &Signals,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Result<T, i32>, Error> {
    let done = Background::start(|| work).and_then(|background| background.wait(signals));
    done.map_err(|error| {
        let line = format!("can't wait for Redis: {error}");
        Error::new(ErrorKind::Internal, line)
    })
}

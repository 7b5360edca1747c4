//! Waiting until something can be done with descriptors: the one call of poll(2).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout, poll};

pub use nix::poll::PollFd;

/// Waits for something to read; an end of file counts.
pub fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

/// Waits until something can be written.
pub fn writable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLOUT)
}

/// Waits only for errors, as a pipe has without a reader.
pub fn broken(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::empty())
}

/// Waits until one of them is ready, within this time if there is one; whether one is. A signal may end that early.
pub fn wait(fds: &mut [PollFd], within: Option<Duration>) -> io::Result<bool> {
    // Rounded up: a wait of 0.4 ms must not become a busy loop.
    let round_up = |within: Duration| within.saturating_add(Duration::from_micros(999));
    let timeout = within.map_or(PollTimeout::NONE, |within| {
        PollTimeout::try_from(round_up(within)).unwrap_or(PollTimeout::MAX)
    });
    match poll(fds, timeout) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Waits for one of them for all of this time.
pub fn wait_for(mut fd: PollFd, within: Duration) -> io::Result<bool> {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if wait(std::slice::from_mut(&mut fd), Some(left))? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
    }
}

/// Whether it is ready, or gets so within this time.
pub fn is_ready(mut fd: PollFd, within: Duration) -> bool {
    wait(std::slice::from_mut(&mut fd), Some(within)).unwrap_or(false)
}

/// Whether a wait has found it ready.
pub fn was_ready(fd: &PollFd) -> bool {
    fd.any() == Some(true)
}

/// Sleeps until one of the descriptors has something to read, or the reader of the output is gone.
pub fn sleep<'a>(
    fds: impl IntoIterator<Item = Option<BorrowedFd<'a>>>,
    output: Option<BorrowedFd<'a>>,
) -> io::Result<()> {
    let fds = fds.into_iter().flatten().map(readable);
    let mut fds: Vec<PollFd> = fds.chain(output.map(broken)).collect();
    wait(&mut fds, None).map(drop)
}

//! Waiting for descriptors: the only call of poll(2).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFlags, PollTimeout, poll};

pub use nix::poll::PollFd;

/// Returns a descriptor to wait for until it is readable or at its end.
pub fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

/// Returns a descriptor to wait for until it is writable.
pub fn writable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLOUT)
}

/// Returns a descriptor to wait for until it has an error, such as a pipe without a reader.
pub fn broken(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::empty())
}

/// Waits until a descriptor is ready, at most `within` if that is given. Returns true if one is ready. A signal may interrupt
/// the wait.
pub fn wait(fds: &mut [PollFd], within: Option<Duration>) -> io::Result<bool> {
    // Rounded up, because a wait of 0.4 ms must not become a busy loop.
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

/// Waits until the descriptor is ready, for the whole time despite signals. Returns true if it is ready.
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

/// Returns true if the descriptor is ready, or becomes ready within this time.
pub fn is_ready(mut fd: PollFd, within: Duration) -> bool {
    wait(std::slice::from_mut(&mut fd), Some(within)).unwrap_or(false)
}

/// Returns true if the last wait reported the descriptor as ready.
pub fn was_ready(fd: &PollFd) -> bool {
    fd.any() == Some(true)
}

/// Sleeps until a descriptor is readable, or the reader of the output is gone.
pub fn sleep<'a>(
    fds: impl IntoIterator<Item = Option<BorrowedFd<'a>>>,
    output: Option<BorrowedFd<'a>>,
) -> io::Result<()> {
    let fds = fds.into_iter().flatten().map(readable);
    let mut fds: Vec<PollFd> = fds.chain(output.map(broken)).collect();
    wait(&mut fds, None).map(drop)
}

//! Waiting for one descriptor for a limited time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Waits until something can be read (an end of file counts); false when the time ran out.
pub fn to_read(fd: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    wait(fd, PollFlags::POLLIN, within)
}

/// Waits until something can be written; false when the time ran out.
pub(super) fn to_write(fd: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    wait(fd, PollFlags::POLLOUT, within)
}

fn wait(fd: BorrowedFd<'_>, flags: PollFlags, within: Duration) -> io::Result<bool> {
    let until = Instant::now() + within;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up: a wait of 0.4 ms must not become a busy loop.
        let timeout =
            PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(fd, flags)], timeout) {
            Ok(0) if Instant::now() >= until => return Ok(false),
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

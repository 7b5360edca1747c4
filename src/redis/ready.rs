//! Waiting for one descriptor for a limited time.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys::poll;

/// Waits until something can be read (an end of file counts); false when the time ran out.
pub fn to_read(fd: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    poll::wait_for(poll::readable(fd), within)
}

/// Waits until something can be written; false when the time ran out.
pub(super) fn to_write(fd: BorrowedFd<'_>, within: Duration) -> io::Result<bool> {
    poll::wait_for(poll::writable(fd), within)
}

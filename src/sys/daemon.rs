//! Background programs: their start, their users, and a file lock that lasts as long as they live.

use std::ffi::{CStr, CString};
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, execve};

use super::{LAST_SIGNAL, SignalSet, set_default};

/// Locks an open file as flock(2) does, unless it is locked; whether it was. The lock ends when the last copy of this
/// descriptor is closed, in whichever process, and not before.
pub fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Becomes a program that knows nothing of redlock: with these words, variables, input and output, default signals, and the
/// usual priority. Returns only if that fails.
pub fn become_program(
    path: &CStr,
    words: &[CString],
    variables: &[CString],
    input: &File,
    output: &File,
) -> io::Error {
    for signal in 1..=LAST_SIGNAL {
        set_default(signal);
    }
    let _ = SignalSet::ALL.unblock();
    // SAFETY: the call touches no memory. nix has none for it.
    unsafe {
        // Whoever needs it first may be in less of a hurry than others.
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
    }
    let _ = dup2_stdin(input);
    let _ = dup2_stdout(output);
    let _ = dup2_stderr(output);
    let Err(error) = execve(path, words, variables);
    error.into()
}

/// The user of the process at the other end of a socket file. (nix has this call only together with all others of sockets.)
pub fn peer_user(socket: impl AsFd) -> io::Result<u32> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
    // SAFETY: the structure is ours to write to, and of this size.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    match asked {
        0 => Ok(found.uid),
        _ => Err(io::Error::last_os_error()),
    }
}

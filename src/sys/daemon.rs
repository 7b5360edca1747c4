//! Background programs: their start, their users, and a file lock that lasts as long as they live.

use std::ffi::{CStr, CString, c_char};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use super::{LAST_SIGNAL, SignalSet, set_default};

/// Locks an open file as flock(2) does, unless it is locked; whether it was. The lock ends when the last copy of this
/// descriptor is closed, in whichever process, and not before.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the call touches no memory.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            error => Err(error),
        },
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
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        let texts = texts.iter().map(|text| text.as_ptr());
        texts.chain([ptr::null()]).collect()
    };
    let (words, variables) = (pointers(words), pointers(variables));
    for signal in 1..=LAST_SIGNAL {
        set_default(signal);
    }
    let _ = SignalSet::ALL.unblock();
    // SAFETY: descriptors of ours; the texts end with a zero byte, and the lists with a null pointer.
    unsafe {
        // Whoever needs it first may be in less of a hurry than others.
        libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        libc::dup2(input.as_raw_fd(), 0);
        for stream in [1, 2] {
            libc::dup2(output.as_raw_fd(), stream);
        }
        libc::execve(path.as_ptr(), words.as_ptr(), variables.as_ptr());
    }
    io::Error::last_os_error()
}

/// The user of the process at the other end of a socket file.
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

//! Background programs: their start, and their users.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::sys::signal::SigSet;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, execve};
use rustix::process::setpriority_process;

use super::{LAST_SIGNAL, set_default};

/// Replaces this process by a program without any state of redlock: with these arguments, variables, input and output, default
/// signals, and the usual priority. Returns only if that fails.
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
    let _ = SigSet::all().thread_unblock();
    // The process that needs the program first may have a low priority, unlike later ones.
    let _ = setpriority_process(None, 0);
    let _ = dup2_stdin(input);
    let _ = dup2_stdout(output);
    let _ = dup2_stderr(output);
    let Err(error) = execve(path, words, variables);
    error.into()
}

/// Returns the user of the process at the other end of a socket. (nix has this call only together with all other calls for
/// sockets, and a peer in another pid namespace has pid 0, which rustix can't return.)
pub fn peer_user(socket: impl AsFd) -> io::Result<u32> {
    let socket = socket.as_fd().as_raw_fd();
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: zero is a valid value of the structure, which this function owns, and which has this size.
    unsafe {
        let mut peer: libc::ucred = std::mem::zeroed();
        let place = (&raw mut peer).cast();
        let result = libc::getsockopt(socket, level, option, place, &raw mut size);
        Ok(Errno::result(result).map(|_| peer.uid)?)
    }
}

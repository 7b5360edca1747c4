//! The processes that have the lock of a server for good: the server and its keeper. Nothing else is ever signalled.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sys;

/// A process that has the lock, by its descriptor: its number may become another's.
pub struct Holder {
    process: OwnedFd,
}

impl Holder {
    pub fn signal(&self, signal: i32) {
        // It may have ended.
        let _ = sys::signal(self.process.as_fd(), signal);
    }
}

/// All that have the lock of this file, as far as we may look.
pub fn holders(lock: &Path) -> io::Result<Vec<Holder>> {
    let file = fs::metadata(lock)?;
    let file = (file.dev(), file.ino());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if !has_lock(&entry.path(), file) {
            continue;
        }
        // What it is by now, as the number may have become another's in between.
        if let Ok(Some(process)) = sys::pidfd(pid)
            && has_lock(&entry.path(), file)
        {
            found.push(Holder { process });
        }
    }
    Ok(found)
}

/// Whether a process is a server that has this file locked, or its keeper: one that waits for the lock has the file open
/// only, and one that is about to start a server, or looks for one, has the lock for a moment.
fn has_lock(process: &Path, file: (u64, u64)) -> bool {
    let Ok(open) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    open.flatten().any(|entry| {
        let info = fs::read_to_string(process.join("fdinfo").join(entry.file_name()));
        let is_held =
            info.is_ok_and(|info| is_kept(&info) && (is_inherited(&info) || is_keeper(process)));
        // That may wait for a file system which doesn't answer.
        let target = || fs::metadata(entry.path());
        is_held && target().is_ok_and(|target| (target.dev(), target.ino()) == file)
    })
}

/// Whether an open file is locked, by what the kernel says of it.
fn is_kept(info: &str) -> bool {
    let mut lines = info.lines();
    lines.any(|line| line.starts_with("lock:") && line.contains("FLOCK"))
}

/// Whether a program that is executed keeps it: a server does, and no redlock.
fn is_inherited(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_CLOEXEC == 0)
}

/// Whether it looks after a server: by its name, and as it leads a session.
fn is_keeper(process: &Path) -> bool {
    let line = fs::read(process.join("stat")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let Some((start, rest)) = line.rsplit_once(')') else {
        return false;
    };
    let (number, name) = start.split_once(" (").unwrap_or_default();
    // State, parent, group, session.
    name.as_bytes() == sys::SERVER_KEEPER.to_bytes()
        && rest.split_ascii_whitespace().nth(3) == Some(number)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::fcntl::{FcntlArg, FdFlag, fcntl};

    use super::*;

    #[test]
    fn a_process_that_takes_the_lock_for_a_moment_is_no_server() {
        let file = tempfile::tempfile().unwrap();
        let found = file.metadata().unwrap();
        let has_lock = || has_lock(Path::new("/proc/self"), (found.dev(), found.ino()));
        let inherit = |flags| fcntl(file.as_fd(), FcntlArg::F_SETFD(flags)).unwrap();
        inherit(FdFlag::empty());
        assert!(!has_lock(), "it isn't locked");
        assert!(sys::try_lock(&file).unwrap());
        assert!(has_lock());
        inherit(FdFlag::FD_CLOEXEC);
        assert!(!has_lock());
    }
}

//! A password in a file, which redlock reads again for each new connection, because it may change while a lock is held.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{Cause, Error, ErrorKind};
use super::lock;
use crate::file;
use crate::reason::reason;

/// A password that is read again for each connection: the first line of a file.
pub struct FreshPassword {
    pub(super) path: PathBuf,
    /// The last password that was read.
    latest: Mutex<Option<String>>,
    /// The server has accepted a password before, so a later failure may be temporary.
    accepted: AtomicBool,
}

impl FreshPassword {
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            latest: Mutex::default(),
            accepted: AtomicBool::new(false),
        }
    }

    /// Returns the password that was read last.
    pub(super) fn password(&self) -> Option<String> {
        lock(&self.latest).clone()
    }

    /// Reads the current password. If that fails, keeps the previous one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], or [`ErrorKind::NotNow`] after the server has accepted a password.
    pub(super) fn read(&self) -> Result<(), Error> {
        let has_password = lock(&self.latest).is_some();
        // A pipe gives its text only once, and a file may be empty for a moment while it is written.
        if has_password && !self.path.metadata().is_ok_and(|it| it.is_file()) {
            return Ok(());
        }
        match first_line(&self.path) {
            Ok(line) => *lock(&self.latest) = Some(line),
            Err(_) if has_password => {}
            Err(why) => {
                let error = Error::new(self.kind(ErrorKind::Config), why);
                return Err(error.because(Cause::File));
            }
        }
        Ok(())
    }

    /// Notes that the server has accepted the password.
    pub(super) fn note_accepted(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// Returns the kind of an error about the password: `at_start` until the server has accepted one. Later the next password
    /// may be right.
    pub(super) fn kind(&self, at_start: ErrorKind) -> ErrorKind {
        if self.accepted.load(Ordering::Relaxed) {
            ErrorKind::NotNow
        } else {
            at_start
        }
    }
}

/// Returns the password that a file holds: its first line.
fn first_line(path: &Path) -> Result<String, String> {
    let text = file::read_text(path).map_err(|error| {
        let (path, why) = (path.display(), reason(&error));
        format!("can't read the password file {path}: {why}")
    })?;
    match text.lines().next() {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(format!("the password file {} is empty", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_gives_no_password_any_more_leaves_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let password = FreshPassword::new(path.clone());
        let read = || {
            password.read().unwrap();
            password.password().unwrap()
        };
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(read(), "one");
        std::fs::write(&path, "").unwrap();
        assert_eq!(read(), "one");
        std::fs::write(&path, "two\n").unwrap();
        assert_eq!(read(), "two");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read(), "two");
        // Nobody writes to this pipe, so opening it would block forever.
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(), "two");
    }
}

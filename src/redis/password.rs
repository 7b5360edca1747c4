//! A password that is read for each new connection, as it may change while a lock is held: from a file, or from what a
//! command prints, such as a short-lived token.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Error, ErrorKind};
use crate::file;
use crate::output::{self, Failure};
use crate::reason::reason;

/// Where a password is read that takes the place of the URL's.
pub enum PasswordSource {
    /// The first line of a file.
    File(PathBuf),
    Command(PasswordCommand),
}

/// A command that prints the password. Neither the command nor its output is ever shown.
pub struct PasswordCommand {
    script: String,
    /// Where it was given.
    origin: String,
    /// Variables that it doesn't get.
    without: &'static [&'static str],
}

impl PasswordCommand {
    pub fn new(script: String, origin: String, without: &'static [&'static str]) -> Self {
        Self {
            script,
            origin,
            without,
        }
    }

    /// Runs it, and returns the password; why there is none otherwise.
    fn read(&self, until: Instant) -> Result<String, String> {
        let began = Instant::now();
        let output = output::of(&self.script, self.without, until);
        let bytes = output.map_err(|failure| match failure {
            Failure::NotStarted(error) => format!("can't be started: {}", reason(&error)),
            Failure::Failed(status) => {
                format!("{}; run it by hand to see why", report_of(status))
            }
            Failure::Late => {
                let limit = until.saturating_duration_since(began).as_secs_f32();
                format!(
                    "didn't end within {limit:.1}s and was killed; --connect-timeout gives it more time (while a lock is held: at most 3s or a fifth of --ttl, whichever is shorter)"
                )
            }
            Failure::TooLong => format!(
                "printed more than {} KiB; it must print the password and nothing else",
                output::LIMIT >> 10
            ),
        })?;
        Ok(password_in(bytes)?)
    }
}

/// A password that is read again for each connection.
pub struct FreshPassword {
    source: PasswordSource,
    /// The last one that was read.
    latest: Mutex<Option<String>>,
    /// The server has accepted one, so a failure from then on may pass.
    accepted: AtomicBool,
}

impl FreshPassword {
    pub fn new(source: PasswordSource) -> Self {
        Self {
            source,
            latest: Mutex::default(),
            accepted: AtomicBool::new(false),
        }
    }

    /// Returns true for a command, whose password may expire while a connection lasts.
    pub(super) fn is_command(&self) -> bool {
        matches!(self.source, PasswordSource::Command(_))
    }

    /// Says where the password was given, in a sentence.
    pub(super) fn origin(&self) -> String {
        match &self.source {
            PasswordSource::File(_) => "in the password file".into(),
            PasswordSource::Command(command) => {
                format!("by the password command ({})", command.origin)
            }
        }
    }

    /// Names the password as one that the server refuses.
    pub(super) fn described(&self) -> String {
        match &self.source {
            PasswordSource::File(path) => {
                format!("the password in the file {}", path.display())
            }
            PasswordSource::Command(command) => format!(
                "the password that the password command ({}) printed",
                command.origin
            ),
        }
    }

    fn latest(&self) -> MutexGuard<'_, Option<String>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the password as it was read last.
    pub(super) fn password(&self) -> Option<String> {
        self.latest().clone()
    }

    /// Reads the password as it is now.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], and once the server has accepted one: [`ErrorKind::NotNow`].
    pub(super) fn read(&self, until: Instant) -> Result<(), Error> {
        let text = match &self.source {
            PasswordSource::File(path) => match next_line_of(path, self.latest().is_some()) {
                Some(line) => line,
                None => return Ok(()),
            },
            PasswordSource::Command(command) => command
                .read(until)
                .map_err(|why| format!("the password command ({}) {why}", command.origin)),
        };
        let text = text.map_err(|why| Error::new(self.kind(ErrorKind::Config), why))?;
        *self.latest() = Some(text);
        Ok(())
    }

    /// Notes that the server has accepted the password.
    pub(super) fn note_accepted(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// Returns the kind of an error about the password: this one at the start; later on the next password may be right.
    pub(super) fn kind(&self, at_start: ErrorKind) -> ErrorKind {
        if self.accepted.load(Ordering::Relaxed) {
            ErrorKind::NotNow
        } else {
            at_start
        }
    }
}

/// Returns the first line of a file, or `None` if the password of before is kept: a pipe gives its text once, and a file
/// may be empty for a moment while it is written.
fn next_line_of(path: &Path, has_password: bool) -> Option<Result<String, String>> {
    if !has_password {
        return Some(first_line(path));
    }
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    is_file.then(|| first_line(path).ok()).flatten().map(Ok)
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

/// The password that was printed: all but for the newline at its end.
pub fn password_in(printed: Vec<u8>) -> Result<String, &'static str> {
    let mut text = String::from_utf8(printed).map_err(|_| "printed text that isn't UTF-8")?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() {
        return Err("printed nothing; it must print the password");
    }
    Ok(text)
}

/// How it ended, in words.
fn report_of(status: std::process::ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "failed".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn password(script: &str) -> Result<String, Error> {
        let command = PasswordCommand::new(script.into(), "$X".into(), &[]);
        let password = FreshPassword::new(PasswordSource::Command(command));
        password.read(Instant::now() + Duration::from_secs(10))?;
        Ok(password.password().unwrap())
    }

    #[test]
    fn a_password_is_what_is_printed_but_for_the_newline_at_its_end() {
        for (printed, password) in [
            ("x", "x"),
            ("x\\n", "x"),
            ("x\\r\\n", "x"),
            (" x y \\n\\n", " x y \n"),
            ("a\\nb", "a\nb"),
        ] {
            let read = super::tests::password(&format!("printf '{printed}'"));
            assert_eq!(read.unwrap(), password, "{printed}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_command_is_said_without_what_it_is_or_prints() {
        for (script, says) in [
            ("exit 3; hunter2", "ended with status 3"),
            ("echo hunter2; kill -9 $$", "was killed by signal 9"),
            ("true hunter2", "printed nothing"),
            ("echo", "printed nothing"),
            ("printf '\\377hunter2'", "isn't UTF-8"),
        ] {
            let error = password(script).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Config);
            let said = error.to_string();
            assert!(said.starts_with("the password command ($X) "), "{said}");
            assert!(said.contains(says) && !said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn once_a_password_was_taken_a_failure_may_pass() {
        let command = PasswordCommand::new("exit 1".into(), "$X".into(), &[]);
        let file = PasswordSource::File("/no/such/file".into());
        for source in [file, PasswordSource::Command(command)] {
            let password = FreshPassword::new(source);
            let kind = || {
                let until = Instant::now() + Duration::from_secs(10);
                password.read(until).unwrap_err().kind
            };
            assert_eq!(kind(), ErrorKind::Config);
            password.note_accepted();
            assert_eq!(kind(), ErrorKind::NotNow);
        }
    }

    #[test]
    fn a_file_that_gives_no_password_any_more_leaves_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("password");
        let password = FreshPassword::new(PasswordSource::File(path.clone()));
        let read = || {
            password.read(Instant::now()).unwrap();
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
        // Nobody writes: to open it would wait for ever.
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(), "two");
    }
}

//! A password that a command prints for each new connection, such as a short-lived token.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Error, ErrorKind};
use crate::output::{self, Failure};
use crate::reason::reason;

/// Where a password is from that counts in place of the URL's.
pub enum PasswordSource {
    File(String),
    Command(PasswordCommand),
}

/// A command that prints the password. Neither the command nor what it prints is ever shown.
pub struct PasswordCommand {
    script: String,
    /// Where it was given.
    origin: String,
    /// Variables that it doesn't get.
    without: &'static [&'static str],
    /// What it printed last.
    printed: Mutex<Option<String>>,
    /// The server has taken a password of it, so what fails now may pass.
    accepted: AtomicBool,
}

impl PasswordCommand {
    pub fn new(script: String, origin: String, without: &'static [&'static str]) -> Self {
        Self {
            script,
            origin,
            without,
            printed: Mutex::default(),
            accepted: AtomicBool::new(false),
        }
    }

    pub(super) fn origin(&self) -> &str {
        &self.origin
    }

    fn printed(&self) -> MutexGuard<'_, Option<String>> {
        self.printed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it printed last.
    pub(super) fn password(&self) -> Option<String> {
        self.printed().clone()
    }

    /// Has it print the password as it is now.
    ///
    /// # Errors
    /// [`ErrorKind::Config`], and once the server has taken one: [`ErrorKind::NotNow`].
    pub(super) fn run(&self, until: Instant) -> Result<(), Error> {
        let began = Instant::now();
        let output = output::of(&self.script, self.without, until);
        let text = output.map_err(|failure| match failure {
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
        });
        let text = text.and_then(|bytes| password_in(bytes).map_err(str::to_owned));
        let text = text.map_err(|why: String| {
            let message = format!("the password command ({}) {why}", self.origin);
            Error::new(self.kind(ErrorKind::Config), message)
        })?;
        *self.printed() = Some(text);
        Ok(())
    }

    /// The server has taken a password of it.
    pub(super) fn note_accepted(&self) {
        self.accepted.store(true, Ordering::Relaxed);
    }

    /// What an error about the password is, of this kind at the start: later on the next one may be right.
    pub(super) fn kind(&self, at_start: ErrorKind) -> ErrorKind {
        if self.accepted.load(Ordering::Relaxed) {
            ErrorKind::NotNow
        } else {
            at_start
        }
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
        command.run(Instant::now() + Duration::from_secs(10))?;
        Ok(command.password().unwrap())
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
        let kind = || {
            let until = Instant::now() + Duration::from_secs(10);
            command.run(until).unwrap_err().kind
        };
        assert_eq!(kind(), ErrorKind::Config);
        command.note_accepted();
        assert_eq!(kind(), ErrorKind::NotNow);
    }
}

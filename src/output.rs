//! The output of a command that works for redlock itself: run by a shell, limited in size and time.
//!
//! It may run beside COMMAND and is no part of it: the thread that starts it reaps it (the main thread reaps
//! only its own children), its process group is separate, and by a mark in their environment the processes
//! that it leaves behind are told from those of COMMAND, whose orphans become our children, too.

use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::Pid;

use crate::sys;
use crate::sys::poll::{self, readable};

/// The variable by which what such a command starts is known.
pub const HELPER_VARIABLE: &str = "REDLOCK_IN_PASSWORD_COMMAND";

/// What it may print. A token of a cloud has a few kilobytes.
pub const LIMIT: usize = 64 * 1024;

/// How often its end is looked for where no descriptor tells.
const POLL_EVERY: Duration = Duration::from_millis(10);

/// How long the kernel is given to end what was killed.
const KILL_TIMEOUT: Duration = Duration::from_millis(200);

/// Whether one was ever started.
static WAS_USED: AtomicBool = AtomicBool::new(false);

/// The process group of the last one that was started, while it runs; else 0. Locked while one starts, as it may
/// have begun to work before its number is known.
static RUNNING: Mutex<i32> = Mutex::new(0);

/// Why there is no output.
#[derive(Debug)]
pub enum Failure {
    NotStarted(io::Error),
    /// It ended otherwise than with status 0.
    Failed(ExitStatus),
    /// It has not ended in time, and was killed.
    Late,
    /// It printed more than [`LIMIT`], and was killed.
    TooLong,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::NotStarted(error)
    }
}

/// Runs a script with `sh -c`, without these variables, and returns its standard output, which nothing of
/// what it leaves behind can keep open. Its standard input is empty, its standard error ours.
pub fn of(script: &str, without: &[&str], until: Instant) -> Result<Vec<u8>, Failure> {
    WAS_USED.store(true, Ordering::Relaxed);
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .env(HELPER_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    for name in without {
        command.env_remove(name);
    }
    sys::isolate(&mut command);
    // The kernel would throw its status away.
    let _kept = sys::KeptStatus::start();
    let mut child = {
        let mut running = running();
        let child = command.spawn()?;
        *running = child.id().cast_signed();
        child
    };
    let group = child.id().cast_signed();
    let output = match child.stdout.take() {
        Some(mut stdout) => collect(Pid::from_raw(group), &mut stdout, until),
        None => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
    };
    if output.is_err() {
        let _ = sys::kill(-group, sys::SIGKILL);
    }
    {
        let mut running = running();
        if *running == group {
            *running = 0;
        }
    }
    let status = reap(&mut child);
    match (output, status) {
        (Ok(output), Some(status)) if status.success() => Ok(output),
        (Ok(_), Some(status)) => Err(Failure::Failed(status)),
        (Ok(_), None) => Err(Failure::Late),
        (Err(failure), _) => Err(failure),
    }
}

/// Reads until it has ended, and doesn't reap it.
fn collect(pid: Pid, stdout: &mut ChildStdout, until: Instant) -> Result<Vec<u8>, Failure> {
    fcntl(stdout.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(io::Error::from)?;
    let process = sys::pidfd(pid.as_raw()).ok().flatten();
    let mut bytes = Vec::new();
    let mut is_open = true;
    loop {
        // Before the look at what it has printed, so that this is all of it.
        let has_ended = sys::has_ended(pid)?;
        if is_open {
            is_open = take_in(stdout, &mut bytes)?;
        }
        if has_ended {
            return Ok(bytes);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::Late);
        }
        let mut fds = Vec::new();
        fds.extend(is_open.then(|| readable(stdout.as_fd())));
        let ends = process.as_ref();
        fds.extend(ends.map(|process| readable(process.as_fd())));
        let pause = if ends.is_some() {
            left
        } else {
            left.min(POLL_EVERY)
        };
        let _ = poll::wait(&mut fds, Some(pause));
    }
}

/// Takes in what there is; whether there may be more.
fn take_in(stdout: &mut ChildStdout, bytes: &mut Vec<u8>) -> Result<bool, Failure> {
    let mut part = [0; 4096];
    loop {
        match stdout.read(&mut part) {
            Ok(0) => return Ok(false),
            Ok(read) => bytes.extend_from_slice(&part[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if bytes.len() > LIMIT {
            return Err(Failure::TooLong);
        }
    }
}

/// Reaps what has ended, or is about to; `None` where it can't end, because it is in uninterruptible sleep.
fn reap(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + KILL_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Becomes a program that reads this text from its standard input; comes back only where that fails.
pub fn replace_by(words: &[&str], text: &str) {
    let Ok(mut file) = sys::memory_file() else {
        return;
    };
    if file.write_all(text.as_bytes()).is_ok() && file.rewind().is_ok() {
        sys::set_default(libc::SIGPIPE);
        let _ = Command::new(words[0]).args(&words[1..]).stdin(file).exec();
    }
}

fn running() -> MutexGuard<'static, i32> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills one that still runs, or is about to, as nothing waits for it any more.
pub fn stop() {
    if !was_used() {
        return;
    }
    let until = Instant::now() + KILL_TIMEOUT;
    let mut running = loop {
        match RUNNING.try_lock() {
            Ok(running) => break running,
            Err(TryLockError::Poisoned(running)) => break running.into_inner(),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return,
        }
    };
    let group = std::mem::take(&mut *running);
    if group != 0 {
        let _ = sys::kill(-group, sys::SIGKILL);
    }
}

/// Whether there may be processes with the mark.
pub fn was_used() -> bool {
    WAS_USED.load(Ordering::Relaxed)
}

/// Whether an environment, as `NAME=value` texts that end with a zero byte, has the mark.
pub fn is_marked(environment: &[u8]) -> bool {
    let mut variables = environment.split(|&byte| byte == 0);
    variables.any(|variable| {
        let value = variable.strip_prefix(HELPER_VARIABLE.as_bytes());
        value.is_some_and(|value| value.starts_with(b"="))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(script: &str) -> Result<Vec<u8>, Failure> {
        of(script, &["HOME"], Instant::now() + Duration::from_secs(10))
    }

    #[test]
    fn all_that_is_printed_comes_back_without_what_the_command_may_not_know() {
        let script = format!("printf '%s\\n' \"${HELPER_VARIABLE}\" \"$HOME\"; cat");
        assert_eq!(output(&script).unwrap(), b"1\n\n");
        let full = format!("head -c {LIMIT} /dev/zero");
        assert_eq!(output(&full).unwrap().len(), LIMIT);
        let more = format!("head -c {} /dev/zero; sleep 60", LIMIT + 1);
        assert!(matches!(output(&more), Err(Failure::TooLong)));
        // What it leaves behind holds the pipe open.
        assert_eq!(output("sleep 3 & echo x").unwrap(), b"x\n");
    }

    #[test]
    fn a_command_that_fails_or_hangs_is_an_error() {
        let failed = output("echo x; exit 3").unwrap_err();
        assert!(matches!(failed, Failure::Failed(status) if status.code() == Some(3)));
        let until = Instant::now() + Duration::from_millis(50);
        let late = of("sleep 60; true", &[], until).unwrap_err();
        assert!(matches!(late, Failure::Late), "{late:?}");
    }
}

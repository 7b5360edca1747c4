//! `redlock acquire`: acquire a lock and return, for scripts; prints what later steps need.
//!
//! The output is made for `eval`, so that a script that fails to get the lock ends there: whatever
//! goes wrong, the last line says so to the shell.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::unistd::Pid;
use serde_json::json;

use super::acquisition::{self, Acquisition, Outcome, Reason, Requester, outcome_of};
use super::identity::own_job;
use super::usage::{BadUsage, parse_names};
use crate::cli::{self, Format};
use crate::clock::{Timer, now};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::{Terms, try_timeout};
use crate::protocol::{Claim, HoldOutcome, ReleaseMode, Who};
use crate::report::{mask_in_github, print};
use crate::shell::literal;
use crate::signal::Signals;
use crate::signal::on_terminal;
use crate::stderr;
use crate::supervise::HeldLocks;
use crate::supervise::environment::Environment;
use crate::supervise::keeper::{self, Target};
use crate::supervise::process;
use crate::supervise::tree::{self, Stat};
use crate::sys::{self, poll};

/// Takes a lock and leaves it held.
pub fn acquire(options: &cli::Acquire, settings: &Settings) -> Result<Exit> {
    let names = parse_names(std::slice::from_ref(&options.name))?;
    if sys::stream_was_closed(1) {
        return Err(
            BadUsage("standard output is closed: nobody could read the token".into()).into(),
        );
    }
    let target = options
        .while_pid
        .map(|pid| target(pid, options, settings))
        .transpose()?;
    // Records the caller: our own process exits at once.
    let pid = match options.while_pid {
        Some(pid) => pid,
        None => nix::unistd::getppid().as_raw(),
    };
    let words = || process::command_line(pid).into_iter().map(Into::into);
    let who = Who {
        pid: pid.unsigned_abs(),
        instance: target.as_ref().map(Target::instance),
        ..own_job(&options.acquire, settings, words)
    };
    let settings = &settings.replicated()?;
    let mut acquisition =
        Acquisition::new(settings, names, who, &options.acquire, options.kill_after)?;
    let mut holds = acquisition.nothing_held();
    // Before all else: if this process is terminated here, the shell still has to learn of it.
    let signals = Signals::take(on_terminal()).context("can't take signals")?;
    let guard = stderr::Guard::new();
    // Where that can't be found out, they are handed on, as they were handed to us.
    let _ = acquisition.forget_released();
    let stdout = std::io::stdout();
    let requester = Requester {
        process: target.as_ref().map(Target::process),
        output: Some(stdout.as_fd()),
    };
    if let Err(reason) = acquire_lock(&acquisition, &mut holds, requester, &signals)? {
        acquisition.release_at_end(&mut holds, &ReleaseMode::UNUSED, Some(&signals));
        drop(guard);
        return Ok(acquisition.not_acquired(reason));
    }
    let slots = options.acquire.slots.is_some();
    let environment = acquisition.environment(&holds, slots);
    let text = text(options, &environment, &holds, acquisition.terms());
    let waited = wait_for_reader(requester, &signals, &holds);
    if !matches!(waited, Ok(None)) {
        acquisition.release_at_end(&mut holds, &ReleaseMode::UNUSED, Some(&signals));
    }
    if let Some(why) = waited? {
        drop(guard);
        return Ok(acquisition.not_acquired(why));
    }
    if options.format == Format::Github {
        for hold in &holds.all {
            let token = String::from_utf8_lossy(hold.claim.token().as_bytes());
            mask_in_github(&token);
        }
    }
    let printed = print(&text).map_err(anyhow::Error::from);
    let kept = match target {
        _ if printed.is_err() => printed.map(drop),
        _ if matches!(printed, Ok(false)) => {
            Err(anyhow::anyhow!("nobody reads standard output any more"))
        }
        Some(target) => {
            if !tree::sees_all() {
                settings.verbosity.info(HIDDEN);
            }
            let (only_warn, kill_after) = (settings.only_warn, acquisition.kill_after);
            let policy = keeper::policy(only_warn, options.with_children, kill_after);
            keeper::leave_behind(target, policy, &mut holds, &signals).map(|kept| {
                if let Some(exit) = kept {
                    release_kept(&acquisition, &mut holds, exit);
                }
            })
        }
        None => Ok(()),
    };
    if kept.is_err() {
        acquisition.release_at_end(&mut holds, &ReleaseMode::UNUSED, Some(&signals));
    }
    kept.map(|()| Exit::Success)
}

/// Said of a keeper that may not find all that its script has started.
const HIDDEN: &str = "/proc hides the processes of other users (hidepid): if the script is stopped or killed, or with --with-children, the lock isn't released, and expires with its lease";

/// Releases, in a keeper, what it has kept.
fn release_kept(acquisition: &Acquisition, holds: &mut HeldLocks, exit: Exit) {
    let outcome = match exit {
        Exit::Command(_) => HoldOutcome::Released,
        exit => outcome_of(exit),
    };
    let keep_for = Duration::ZERO;
    acquisition.release_at_end(holds, &ReleaseMode::Finished { outcome, keep_for }, None);
}

/// The process to keep the lock for.
fn target(pid: i32, options: &cli::Acquire, settings: &Settings) -> Result<Target> {
    if pid == 1 && nix::unistd::getppid().as_raw() != pid {
        return Err(BadUsage(
            "--while-pid 1: process 1 never ends; give the pid of the process that needs the lock, such as $$"
                .into(),
        )
        .into());
    }
    if !tree::has_own_proc() {
        return Err(BadUsage(format!("--while-pid: {}", tree::FOREIGN_PROC)).into());
    }
    if pid == nix::unistd::getpid().as_raw() || is_substitution(pid, options.format) {
        return Err(BadUsage(format!(
            "--while-pid {pid}: $BASHPID inside $(...) is the subshell, which ends when the $(...) does; store $BASHPID in a variable before the $(...), and give that variable"
        ))
        .into());
    }
    let target = Target::new(pid, settings.only_warn);
    target.map_err(|error| match error.kind() {
        ErrorKind::NotFound => BadUsage(format!("--while-pid {pid}: no such process")).into(),
        ErrorKind::PermissionDenied => BadUsage(format!(
            "--while-pid {pid}: redlock isn't permitted to stop that process if the lock is lost ({error}); REDLOCK_ON_LOST=warn leaves it running"
        ))
        .into(),
        _ => anyhow::Error::new(error).context(format!("can't watch process {pid}")),
    })
}

/// Whether this is the shell of a `$(...)` that has started us, and hands our output on to be evaluated.
fn is_substitution(pid: i32, format: cli::Format) -> bool {
    let output = |process: &str| std::fs::read_link(format!("/proc/{process}/fd/1")).ok();
    let ours = output("self").filter(|path| path.to_string_lossy().starts_with("pipe:"));
    format == cli::Format::Env
        && pid == nix::unistd::getppid().as_raw()
        && Stat::read(Pid::from_raw(pid)).is_some_and(|stat| stat.is_fork)
        && ours.is_some()
        && ours == output(&pid.to_string())
}

/// Acquires the lock, reacting to signals meanwhile; the reason, if it isn't ours.
fn acquire_lock(
    acquisition: &Acquisition,
    holds: &mut HeldLocks,
    requester: Requester<'_>,
    signals: &Signals,
) -> Result<Result<(), Reason>> {
    let started = now();
    let mut timer = Timer::new().context("can't make a timer")?;
    match acquisition::open(&mut holds.client, signals) {
        Ok(None) => {}
        Ok(Some(signal)) => return Ok(Err(Reason::Interrupted(signal))),
        Err(error) => acquisition.first_failure(error)?,
    }
    let outcome = acquisition.acquire_all(started, holds, requester, signals, &mut timer);
    if let Outcome::NotAcquired(why) = outcome.inspect_err(|_| {
        acquisition.release_all(holds, &ReleaseMode::UNUSED, Some(signals));
    })? {
        return Ok(Err(why));
    }
    if let Some(signal) = signals.next_ending()? {
        return Ok(Err(Reason::Interrupted(signal)));
    }
    // A keeper's first renewal does that.
    if requester.process.is_none() && holds.client.is_replicated() {
        show_as_held(holds, acquisition.request.ttl);
    }
    Ok(Ok(()))
}

/// Has `status` show us as a holder: the replicas have the grant by now. Where that fails, it shows a grant that isn't
/// confirmed.
fn show_as_held(holds: &mut HeldLocks, ttl: Duration) {
    let claims: Vec<Claim> = holds.all.iter().map(|hold| hold.claim.clone()).collect();
    holds.client.limit_to(try_timeout(ttl));
    let _ = Claim::renew_all(&claims, &mut holds.client, ttl);
    holds.client.lift_limit();
}

/// Waits until standard output accepts the little that is to be printed; the reason to give up, if a
/// signal comes or the lease ends before that. An error, if nobody needs the lock any more.
fn wait_for_reader(
    requester: Requester<'_>,
    signals: &Signals,
    holds: &HeldLocks,
) -> Result<Option<Reason>> {
    let stdout = std::io::stdout();
    loop {
        if let Some(gone) = requester.gone() {
            return Err(gone);
        }
        let left = holds.lease().map(|lease| lease.deadline().since(now()));
        if left.is_some_and(|left| left.is_zero()) {
            let line = "the lock expired before anybody read its token from standard output";
            return Ok(Some(Reason::Lost(line.into())));
        }
        let process = requester.process.map(|(_, process)| process.as_fd());
        let mut fds = vec![
            poll::writable(stdout.as_fd()),
            poll::readable(signals.as_fd()),
        ];
        fds.extend(process.map(poll::readable));
        poll::wait(&mut fds, left).context("can't wait for standard output")?;
        if let Some(signal) = signals.next_ending()? {
            return Ok(Some(Reason::Interrupted(signal)));
        }
        if poll::was_ready(&fds[0]) {
            return Ok(None);
        }
    }
}

/// What is printed when the lock is ours.
fn text(
    options: &cli::Acquire,
    environment: &Environment,
    holds: &HeldLocks,
    terms: Terms,
) -> String {
    let mut text = String::new();
    match options.format {
        Format::Env => {
            for (name, value) in environment {
                let value = literal(&value.to_string_lossy());
                let _ = writeln!(text, "export {name}={value}");
            }
        }
        Format::Github => {
            for (name, value) in environment {
                let _ = writeln!(text, "{name}={}", value.to_string_lossy());
            }
        }
        Format::Token => {
            for hold in &holds.all {
                let _ = writeln!(
                    text,
                    "{}",
                    String::from_utf8_lossy(hold.claim.token().as_bytes())
                );
            }
        }
        Format::Json => {
            for hold in &holds.all {
                let ttl = terms.ttl.saturating_sub(terms.clock_skew);
                let object = json!({
                    "name": hold.claim.lock().name().as_str(),
                    "token": String::from_utf8_lossy(hold.claim.token().as_bytes()),
                    "fence": hold.fence,
                    "slot": options.acquire.slots.map(|_| hold.slot),
                    "waited_ms": u64::try_from(holds.waited_ms()).ok(),
                    "ttl_ms": u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
                });
                let _ = writeln!(text, "{object}");
            }
        }
    }
    text
}

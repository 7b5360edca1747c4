//! `redlock acquire`: acquires a lock for a script and returns, after printing the variables for later steps.
//!
//! The output is made for `eval`, so a script ends if it doesn't get
//! the lock: after any failure, the last line tells the shell to exit.

use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal as _};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::unistd::{Pid, getpid, getppid};
use serde_json::json;

use crate::cli::{self, Format};
use crate::clock::{Timer, now};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::try_timeout;
use crate::decide::session::Policy;
use crate::duration::milliseconds;
use crate::job::identity::own_job;
use crate::job::{self, Acquisition, Requester, fail_on, mode_after};
use crate::protocol::{Claim, HoldOutcome, ReleaseMode, Who};
use crate::report::{mask_in_github, print};
use crate::shell::literal;
use crate::signal::{Signals, on_terminal};
use crate::stderr;
use crate::supervise::keeper::{self, Target};
use crate::supervise::process;
use crate::supervise::procfs::{self, Stat};
use crate::supervise::run::SupervisionTerms;
use crate::supervise::{HeldLock, HeldLocks};
use crate::sys::{self, poll};
use crate::usage::{Refusal, parse_names, refuse};

/// Acquires a lock and leaves it held.
pub fn acquire(options: &cli::Acquire, settings: &Settings) -> Result<Exit> {
    let names = parse_names(std::slice::from_ref(&options.name))?;
    if sys::stream_was_closed(1) {
        let line = "standard output is closed: nobody could read the token";
        return refuse(Exit::Usage, line.into());
    }
    let target = options.while_pid.map(|pid| target(pid, options, settings));
    let target = target.transpose()?;
    // Records the caller as the holder, because this process exits at once.
    let pid = options.while_pid.unwrap_or_else(|| getppid().as_raw());
    let words = || process::command_line(pid).into_iter().map(Into::into);
    let who = Who {
        pid: pid.unsigned_abs(),
        instance: target.as_ref().map(|target| target.instance.clone()),
        ..own_job(&options.acquire, settings, words)
    };
    settings.replicate()?;
    let mut acquisition =
        Acquisition::new(settings, names, who, &options.acquire, options.kill_after)?;
    let mut holds = HeldLocks::none(settings.locks.client());
    // Signals are collected before all else, because the shell must learn if one terminates this process.
    let signals = Signals::take(on_terminal()).context("can't take signals")?;
    let _unread = stderr::ImmediateMessages::new();
    // If this fails, released locks stay in the list that this process has inherited.
    let _ = acquisition.forget_released();
    let end = acquire_and_print(&acquisition, &mut holds, options, target, &signals);
    let mode = match &end {
        Ok(None) => {
            holds.leave();
            return Ok(Exit::Success);
        }
        // The exit status of a script is unknown.
        Ok(Some(Exit::Command(_))) => ReleaseMode::Finished {
            outcome: HoldOutcome::Released,
            keep_for: Duration::ZERO,
        },
        Ok(Some(exit)) => mode_after(*exit, Duration::ZERO),
        Err(_) => ReleaseMode::UNUSED,
    };
    acquisition.release_all(&mode, &signals, holds);
    end.map(|_| Exit::Success)
}

/// Acquires the lock, prints the variables for later steps, and leaves a keeper behind if
/// there is a target. The keeper returns from here as well, with the reason for its end.
///
/// # Errors
/// A [`Refusal`], or a failure.
fn acquire_and_print(
    acquisition: &Acquisition,
    holds: &mut HeldLocks,
    options: &cli::Acquire,
    target: Option<Target>,
    signals: &Signals,
) -> Result<Option<Exit>> {
    let stdout = std::io::stdout();
    let requester = Requester {
        process: target.as_ref().map(Target::process),
        output: Some(stdout.as_fd()),
    };
    let started = now();
    let opened = job::open(&mut holds.client, signals);
    // The keeper has no descriptor for this timer.
    let mut timer = Timer::new().context("can't make a timer")?;
    acquisition.acquire_all(started, opened, holds, requester, signals, &mut timer)?;
    drop(timer);
    // A keeper's first renewal does this.
    if target.is_none() && holds.client.deployment.replication().is_some() {
        show_as_held(holds, acquisition.request.ttl);
    }
    let text = text(options, acquisition, holds);
    wait_for_reader(requester, signals, holds)?;
    if options.format == Format::Github {
        let tokens = holds.all.iter().map(token);
        tokens.for_each(|token| mask_in_github(&token));
    }
    if !print(&text)? {
        bail!("nobody reads standard output any more");
    }
    let Some(target) = target else {
        return Ok(None);
    };
    let settings = acquisition.settings;
    if !procfs::sees_all() {
        settings.verbosity.info(HIDDEN);
    }
    let policy = Policy {
        leads_session: true,
        only_warn: settings.only_warn,
        with_children: options.with_children,
        kill_after: acquisition.terms.kill_after,
        ..Policy::default()
    };
    let terms = SupervisionTerms {
        policy,
        names: &acquisition.names,
        locks: &settings.locks,
        who: &acquisition.request.who,
        verbosity: settings.verbosity,
        hook: None,
    };
    keeper::leave_behind(target, &terms, holds, signals)
}

/// Warning for a keeper that may not find all processes of its script.
const HIDDEN: &str = "/proc hides the processes of other users (hidepid): if the script is stopped or killed, or with --with-children, the lock isn't released, and expires with its lease";

/// Opens the process for which the lock is kept.
fn target(pid: i32, options: &cli::Acquire, settings: &Settings) -> Result<Target> {
    let unfit = |why: &str| Refusal(Exit::Usage, format!("--while-pid {pid}: {why}")).into();
    if pid == 1 && getppid().as_raw() != pid {
        return Err(unfit(
            "process 1 never ends; give the pid of the process that needs the lock, such as $$",
        ));
    }
    if !procfs::has_own_proc() {
        let line = format!("--while-pid: {}", procfs::FOREIGN_PROC);
        return refuse(Exit::Usage, line);
    }
    if pid == getpid().as_raw() || is_substitution(pid, options.format) {
        return Err(unfit(
            "$BASHPID inside $(...) is the subshell, which ends when the $(...) does; store $BASHPID in a variable before the $(...), and give that variable",
        ));
    }
    Target::new(pid, settings.only_warn, options.with_children).map_err(|error| match error.kind() {
        ErrorKind::NotFound => unfit("no such process"),
        ErrorKind::PermissionDenied => unfit(&format!(
            "redlock isn't permitted to stop that process if the lock is lost ({error}); REDLOCK_ON_LOST=warn leaves it running"
        )),
        _ => anyhow::Error::new(error).context(format!("can't watch process {pid}")),
    })
}

/// Returns true if the process is the shell of a `$(...)` that has started this one and passes its output to `eval`.
fn is_substitution(pid: i32, format: cli::Format) -> bool {
    let output = |process: &str| std::fs::read_link(format!("/proc/{process}/fd/1")).ok();
    let ours = output("self").filter(|path| path.to_string_lossy().starts_with("pipe:"));
    format == cli::Format::Env
        && pid == getppid().as_raw()
        && Stat::read(Pid::from_raw(pid)).is_some_and(|stat| stat.is_fork)
        && ours.is_some()
        && ours == output(&pid.to_string())
}

/// Renews the lock so that `status` shows it as held, because the replicas
/// have the grant by now. If this fails, `status` shows an unconfirmed grant.
fn show_as_held(holds: &mut HeldLocks, ttl: Duration) {
    let claims: Vec<Claim> = holds.all.iter().map(|hold| hold.claim.clone()).collect();
    holds.client.limit_to(try_timeout(ttl));
    let _ = Claim::renew_all(&claims, &mut holds.client, ttl);
    holds.client.lift_limit();
}

/// Waits until standard output accepts the short text.
///
/// # Errors
/// A [`Refusal`] if a signal arrives, if the lease ends first, or if nobody needs the lock any more.
fn wait_for_reader(requester: Requester<'_>, signals: &Signals, holds: &HeldLocks) -> Result<()> {
    let stdout = std::io::stdout();
    loop {
        requester.check()?;
        let left = holds.lease().map(|lease| lease.deadline().since(now()));
        if left.is_some_and(|left| left.is_zero()) {
            let line = "the lock expired before anybody read its token from standard output";
            return refuse(Exit::Lost, line.into());
        }
        let process = requester.process.map(|(_, process)| process.as_fd());
        let others = [Some(signals.as_fd()), process].into_iter().flatten();
        let mut fds = vec![poll::writable(stdout.as_fd())];
        fds.extend(others.map(poll::readable));
        poll::wait(&mut fds, left).context("can't wait for standard output")?;
        fail_on(signals.next_ending()?)?;
        if poll::was_ready(&fds[0]) {
            return Ok(());
        }
    }
}

/// Returns the output for a lock that was acquired.
fn text(options: &cli::Acquire, acquisition: &Acquisition, holds: &HeldLocks) -> String {
    let has_slots = options.acquire.slots.is_some();
    let variables = || acquisition.environment(holds, has_slots).into_iter();
    let locks = holds.all.iter();
    let lines: Vec<String> = match options.format {
        Format::Env => variables()
            .map(|(name, value)| format!("export {name}={}", literal(&value.to_string_lossy())))
            .collect(),
        Format::Github => variables()
            .map(|(name, value)| format!("{name}={}", value.to_string_lossy()))
            .collect(),
        Format::Token => locks.map(token).map(Cow::into_owned).collect(),
        Format::Json => {
            let terms = acquisition.terms;
            let lease = terms.ttl.saturating_sub(terms.clock_skew);
            let object = |hold: &HeldLock| {
                json!({
                    "name": hold.claim.lock().name().as_str(),
                    "token": token(hold),
                    "fence": hold.fence,
                    "slot": has_slots.then_some(hold.slot),
                    "waited_ms": u64::try_from(holds.waited_ms()).ok(),
                    "ttl_ms": milliseconds(lease),
                })
            };
            locks.map(|hold| object(hold).to_string()).collect()
        }
    };
    lines.into_iter().map(|line| line + "\n").collect()
}

fn token(hold: &HeldLock) -> Cow<'_, str> {
    String::from_utf8_lossy(hold.claim.token().as_bytes())
}

/// Longest wait for a reader after a failed acquire.
const READER_WITHIN: Duration = Duration::from_secs(1);

/// Makes the shell that evaluates redlock's output exit with the status of this failure. For a
/// busy lock, the user may have chosen the status 0. An interactive shell only gets the status.
pub fn fail_eval(exit: Exit) {
    let status = exit.code();
    let stdout = std::io::stdout();
    if matches!(exit, Exit::Success) || stdout.is_terminal() {
        return;
    }
    let line = format!("case $- in *i*) (exit {status});; *) exit {status};; esac\n");
    // Without a reader, nobody evaluates the line.
    if poll::is_ready(poll::writable(stdout.as_fd()), READER_WITHIN) {
        let _ = print(&line);
    }
}

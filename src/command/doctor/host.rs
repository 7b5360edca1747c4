//! Checks of this host: its kernel, settings, secrets, and the hook.

use std::borrow::Cow;
use std::io;
use std::time::Instant;

use super::super::privacy::masked;
use super::finding::{Check, Finding, Group, command};
use crate::config::{Exposure, Settings};
use crate::reason::reason;
use crate::report::THIS_HOST_ONLY;
use crate::shell::quote;
use crate::supervise::hook::HookTest;
use crate::supervise::tree;
use crate::sys;

/// Checks all of it. `hook` is a test that was started before.
pub fn examine(
    settings: &Settings,
    hook: Option<io::Result<HookTest>>,
    until: Instant,
) -> Vec<Finding> {
    vec![
        pidfd(),
        proc(),
        url(settings),
        check_settings(settings),
        secrets(&settings.exposed),
        judge_hook(hook, settings.hook.as_deref().unwrap_or_default(), until),
    ]
}

fn pidfd() -> Finding {
    let check = Check("pidfd", Group::Host);
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let Err(error) = sys::pidfd(own) else {
        return check.ok("redlock watches and signals processes by descriptor");
    };
    let why = reason(&error);
    check.warn(
        format!("pidfd_open fails ({why}): redlock acquire --while-pid can't watch its process"),
        "use Linux 5.3 or later, without a filter for pidfd_open",
    )
}

fn proc() -> Finding {
    let check = Check("proc", Group::Host);
    if !tree::has_own_proc() {
        check.warn(
            "/proc belongs to another pid namespace: redlock can stop only a command's process group",
            command(
                "mount -t proc proc /proc",
                &[Some("in redlock's mount namespace; unshare --mount-proc does that")],
            ),
        )
    } else if tree::read("/proc/1/stat").is_none() {
        check.warn(
            "/proc hides the processes of other users (hidepid): redlock can't see what such a process (sudo) starts, so it keeps the lock until that process has ended",
            command(
                "mount -o remount,hidepid=0 /proc",
                &[Some("as root; or run redlock as root, or in the group that gid= names")],
            ),
        )
    } else {
        check.ok("/proc shows the processes that a command starts")
    }
}

fn url(settings: &Settings) -> Finding {
    let check = Check("url", Group::Host);
    match settings.locks.local_socket() {
        Some(socket) => check.ok(format!(
            "{THIS_HOST_ONLY}; to stop this server: redis-cli -s {} shutdown (the next command starts it again)",
            quote(&socket)
        )),
        None if settings.locks.have_no_url() => check.warn(
            "no URL set: this host's own Redis; other hosts with another server are not excluded",
            "put the same REDLOCK_URL=redis://HOST into /etc/redlock.env on every host",
        ),
        None => check.moot("a URL is set"),
    }
}

fn check_settings(settings: &Settings) -> Finding {
    let check = Check("settings", Group::Host);
    if !settings.refused.is_empty() {
        return check.fail(problems(&settings.refused), cure(&settings.refused));
    }
    let lines: Vec<&str> = settings
        .without_effect
        .iter()
        .flatten()
        .map(String::as_str)
        .collect();
    match lines[..] {
        [] => check.moot("all are known, and no other user can write the configuration files"),
        _ => check.warn(lines.join("; "), "remove or correct them"),
    }
}

fn secrets(exposed: &[Exposure]) -> Finding {
    let check = Check("secrets", Group::Host);
    match exposed {
        [] => check.moot("no other user can read the passwords and private keys that redlock uses"),
        _ => check.warn(problems(exposed), cure(exposed)),
    }
}

fn problems(all: &[Exposure]) -> String {
    let parts: Vec<&str> = all.iter().map(|it| it.what.as_str()).collect();
    parts.join("; ")
}

/// Returns the commands that end these problems, or words if no command does.
fn cure(all: &[Exposure]) -> String {
    let commands: Vec<&str> = all.iter().filter_map(|it| it.command.as_deref()).collect();
    let words = all.iter().filter_map(|it| it.otherwise.as_deref());
    if commands.is_empty() {
        return words.collect::<Vec<_>>().join("; ");
    }
    let notes: Vec<String> = words.map(|words| format!("or {words}")).collect();
    let notes: Vec<Option<&str>> = notes.iter().map(|note| Some(note.as_str())).collect();
    command(&commands.join(" && "), &notes)
}

/// Returns how to run a hook that fails by hand. A script with a secret isn't repeated.
fn by_hand(script: &str) -> String {
    let Cow::Borrowed(script) = masked(script) else {
        return "run it by hand, with REDLOCK_EVENT=test".into();
    };
    format!("run it by hand: REDLOCK_EVENT=test sh -c {}", quote(script))
}

fn judge_hook(test: Option<io::Result<HookTest>>, script: &str, until: Instant) -> Finding {
    let check = Check("hook", Group::Host);
    let Some(test) = test else {
        return check.moot("no REDLOCK_HOOK is set");
    };
    let (message, fix) = match test.and_then(|test| test.status(until)) {
        Ok(Some(0)) => return check.ok("REDLOCK_HOOK ended with status 0 (REDLOCK_EVENT=test)"),
        Ok(Some(status)) => (format!("ended with status {status}"), by_hand(script)),
        Ok(None) => ("hasn't ended in time".into(), "give it a time-out".into()),
        Err(error) => (
            format!("can't be started: {}", reason(&error)),
            by_hand(script),
        ),
    };
    check.warn(format!("REDLOCK_HOOK {message} (REDLOCK_EVENT=test)"), fix)
}

//! Checks of this host: its kernel, settings, secrets, and the hook.

use std::io;
use std::time::Instant;

use super::finding::{Finding, NO_SETTINGS, fail, moot, named, ok, unknown, warn};
use crate::config::{Exposure, Settings};
use crate::job::privacy::masked;
use crate::reason::reason;
use crate::report::THIS_HOST_ONLY;
use crate::shell::quote;
use crate::supervise::hook::HookTest;
use crate::supervise::procfs;
use crate::sys;

/// Checks all of it. `hook` is a test that was started before.
pub fn examine(
    settings: &Settings,
    hook: Option<io::Result<HookTest>>,
    until: Instant,
) -> impl Iterator<Item = Finding> {
    let findings = [
        pidfd(),
        proc(),
        url(settings),
        check_settings(settings),
        secrets(&settings.exposed),
        hook.map_or(moot("no REDLOCK_HOOK is set"), |test| {
            judge(test, settings.hook.as_deref().unwrap_or_default(), until)
        }),
    ];
    named("pidfd proc url settings secrets hook", findings)
}

fn pidfd() -> Finding {
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let Err(error) = sys::pidfd(own) else {
        return ok("redlock watches and signals processes by descriptor");
    };
    let why = reason(&error);
    warn(
        format!("pidfd_open fails ({why}): redlock acquire --while-pid can't watch its process"),
        "use Linux 5.3 or later, without a filter for pidfd_open",
    )
}

fn proc() -> Finding {
    if !procfs::has_own_proc() {
        warn(
            "/proc belongs to another pid namespace: redlock can stop only a command's process group",
            "mount -t proc proc /proc  # in redlock's mount namespace; unshare --mount-proc does that",
        )
    } else if procfs::read("/proc/1/stat").is_none() {
        warn(
            "/proc hides the processes of other users (hidepid): redlock can't see what such a process (sudo) starts, so it keeps the lock until that process has ended",
            "mount -o remount,hidepid=0 /proc  # as root; or run redlock as root, or in the group that gid= names",
        )
    } else {
        ok("/proc shows the processes that a command starts")
    }
}

fn url(settings: &Settings) -> Finding {
    match settings.locks.deployment.local_socket() {
        Some(socket) => ok(format!(
            "{THIS_HOST_ONLY}; to stop this server: redis-cli -s {} shutdown (the next command starts it again)",
            quote(&socket)
        )),
        None if settings.may_lack_the_url() => unknown(NO_SETTINGS),
        None if settings.locks.have_no_url() => warn(
            "no URL set: this host's own Redis; other hosts with another server are not excluded",
            "put the same REDLOCK_URL=redis://HOST into /etc/redlock.env on every host",
        ),
        None => moot("a URL is set"),
    }
}

fn check_settings(settings: &Settings) -> Finding {
    let lines = settings.without_effect.iter().flatten();
    let lines: Vec<&str> = lines.map(String::as_str).collect();
    match (&settings.refused[..], &lines[..]) {
        ([], []) => moot("all are known, and no other user can write the configuration files"),
        ([], _) => warn(lines.join("; "), "remove or correct them"),
        ([exposure, ..], _) => fail(exposure.what.clone(), exposure.command.clone()),
    }
}

fn secrets(exposed: &[Exposure]) -> Finding {
    let safe = || moot("no other user can read the passwords and private keys that redlock uses");
    // The next one is shown when this is repaired.
    let warning = |exposure: &Exposure| warn(exposure.what.clone(), exposure.command.clone());
    exposed.first().map_or_else(safe, warning)
}

fn judge(hook: io::Result<HookTest>, script: &str, until: Instant) -> Finding {
    // A script with a secret isn't repeated.
    let by_hand = if masked(script) == script {
        format!("run it by hand: REDLOCK_EVENT=test sh -c {}", quote(script))
    } else {
        "run it by hand, with REDLOCK_EVENT=test".into()
    };
    let (message, fix) = match hook.and_then(|test| test.status(until)) {
        Ok(Some(0)) => return ok("REDLOCK_HOOK ended with status 0 (REDLOCK_EVENT=test)"),
        Ok(Some(status)) => (format!("ended with status {status}"), by_hand),
        Ok(None) => ("hasn't ended in time".into(), "give it a time-out".into()),
        Err(error) => (format!("can't be started: {}", reason(&error)), by_hand),
    };
    warn(format!("REDLOCK_HOOK {message} (REDLOCK_EVENT=test)"), fix)
}

//! This host. Pure.

use std::time::Duration;

use super::super::finding::{Check, Finding, Group};
use super::super::fix::{Fix, Repair};
use super::super::host::{Host, Kernel, Proc};
use super::with_notes;
use crate::config::Exposure;
use crate::report::{THIS_HOST_ONLY, format_duration};
use crate::shell::quote;

pub(super) fn this_host(host: &Host) -> Vec<Finding> {
    let mut findings = Vec::from(linux(&host.kernel));
    findings.extend([
        settings(&host.refused),
        secrets(&host.exposed),
        one_server(host),
        one_program(&host.namesakes),
    ]);
    findings
}

fn linux(kernel: &Kernel) -> [Finding; 5] {
    let judge = |check, ok: &str, result: &Result<(), String>, without: &str, fix: &str| {
        let check = Check(check, Group::Host);
        match result {
            Ok(()) => check.ok(ok),
            Err(why) => check.warn(format!("{why}: {without}"), fix),
        }
    };
    let clock = Check("boottime", Group::Host);
    let clock = match &kernel.boot_clock {
        Ok(Duration::ZERO) => {
            clock.ok("the clock that times leases keeps running during a suspend")
        }
        Ok(suspended) => clock.ok(format!(
            "the clock that times leases keeps running during a suspend (suspended for {} since boot)",
            format_duration(*suspended)
        )),
        Err(why) => clock.fail(
            format!("{why}: after a suspend, redlock would take expired leases for valid ones"),
            "use Linux 3.15 or later, without a filter for timerfd_create and CLOCK_BOOTTIME",
        ),
    };
    let proc = Check("proc", Group::Host);
    let filter = "permit that system call, which a seccomp filter usually blocks";
    [
        clock,
        judge(
            "pdeathsig",
            "the kernel kills a command whose redlock was killed",
            &kernel.pdeathsig,
            "a command outlives a redlock that was killed",
            filter,
        ),
        judge(
            "pidfd",
            "redlock watches and signals processes by descriptor",
            &kernel.pidfd,
            "redlock acquire --while-pid can't watch its process",
            "use Linux 5.3 or later, without a filter for pidfd_open",
        ),
        judge(
            "subreaper",
            "redlock adopts orphaned processes",
            &kernel.subreaper,
            "orphaned processes may escape redlock",
            filter,
        ),
        match kernel.proc {
            Proc::All => proc.ok("/proc shows the processes that a command starts"),
            Proc::OwnUsers => proc.warn(
                "/proc hides the processes of other users (hidepid): redlock can't see what such a process (sudo) starts, so it keeps the lock until that process has ended",
                Repair::ShowProc.by(
                    "mount -o remount,hidepid=0 /proc  # as root; or run redlock as root, or in the group that gid= names",
                ),
            ),
            Proc::Foreign => proc.warn(
                "/proc belongs to another pid namespace: redlock can stop only a command's process group",
                Repair::OwnProc.by(
                    "mount -t proc proc /proc  # in redlock's mount namespace; unshare --mount-proc does that",
                ),
            ),
        },
    ]
}

fn settings(refused: &[Exposure]) -> Finding {
    let check = Check("settings", Group::Host);
    match refused {
        [] => check.moot("no other user can write the configuration files"),
        _ => check.fail(what(refused), end(refused, Repair::OwnSettings)),
    }
}

fn one_server(host: &Host) -> Finding {
    let check = Check("url", Group::Host);
    match &host.local_socket {
        None if host.has_no_url => check.warn(
            "no URL set: this host's own Redis; other hosts with another server are not excluded",
            "put the same REDLOCK_URL=redis://HOST into /etc/redlock.env on every host",
        ),
        None => check.moot("a URL is set"),
        Some(socket) => check.ok(format!(
            "{THIS_HOST_ONLY}; to stop this server: redis-cli -s {} shutdown (the next command starts it again)",
            quote(socket)
        )),
    }
}

fn one_program(namesakes: &[String]) -> Finding {
    let check = Check("program", Group::Host);
    match namesakes {
        [] => check.moot("no other program called redlock is on the PATH"),
        _ => check.warn(
            format!(
                "another program called redlock is on the PATH: {}",
                namesakes.join(", ")
            ),
            "remove it, or have jobs call redlock by its path",
        ),
    }
}

fn secrets(exposed: &[Exposure]) -> Finding {
    let check = Check("secrets", Group::Host);
    match exposed {
        [] => check.moot("no other user can read the passwords and private keys that redlock uses"),
        _ => check.warn(what(exposed), end(exposed, Repair::HideSecrets)),
    }
}

fn what(all: &[Exposure]) -> String {
    let parts: Vec<&str> = all.iter().map(|it| it.what.as_str()).collect();
    parts.join("; ")
}

/// The commands that end these; words, where none does.
fn end(all: &[Exposure], repair: Repair) -> Fix {
    let commands: Vec<&str> = all.iter().filter_map(|it| it.command.as_deref()).collect();
    let words: Vec<&str> = all
        .iter()
        .filter_map(|it| it.otherwise.as_deref())
        .collect();
    if commands.is_empty() {
        return words.join("; ").into();
    }
    // What can only be done by hand is left, and is found again.
    let words: Vec<String> = words.iter().map(|words| format!("or {words}")).collect();
    let notes: Vec<&str> = words.iter().map(String::as_str).collect();
    repair.by(with_notes(&commands.join(" && "), &notes))
}

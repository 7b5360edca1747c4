//! Processes that can't be killed, in words: which process, whose, and why.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::unistd::{Pid, Uid, User};

use crate::supervise::procfs::{self, Stat};
use crate::sys;

/// How many are described.
const DESCRIBED: usize = 3;

/// How many are named by their numbers.
const NAMED: usize = 5;

/// What is left of a tree that was killed: `can't kill process 12 (cp, root's): not permitted`.
pub(super) fn described(left: &[Pid]) -> String {
    if left.is_empty() {
        return "processes of the command may still be running, and redlock can't see them".into();
    }
    let each = left.iter().take(DESCRIBED).copied().map(describe);
    let each: Vec<String> = each.collect();
    let more = match left.len() {
        0..=DESCRIBED => String::new(),
        many => format!(" (and {} more)", many - DESCRIBED),
    };
    format!("can't kill {}{more}", each.join(", "))
}

fn describe(pid: Pid) -> String {
    let about = about(pid).map_or(String::new(), |about| format!(" ({about})"));
    format!("process {pid}{about}: {}", why(pid))
}

/// Its program and its user, where they may be known.
fn about(pid: Pid) -> Option<String> {
    let program = procfs::read(&format!("/proc/{pid}/comm"))?;
    let uid = Uid::from_raw(fs::metadata(format!("/proc/{pid}")).ok()?.uid());
    let user = User::from_uid(uid).ok().flatten();
    let user = user.map_or_else(|| format!("user {uid}"), |user| user.name);
    Some(format!("{} of {user}", program.trim_end()))
}

fn why(pid: Pid) -> &'static str {
    let asked = sys::kill(pid.as_raw(), 0);
    let is_refused = asked.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM));
    let stat = Stat::read(pid);
    if is_refused {
        "not permitted"
    } else if stat.is_some_and(|stat| stat.waits_for_device) {
        "it waits for a disk or a network file system"
    } else {
        "it hasn't ended yet"
    }
}

/// Processes in a sentence: `process 12`, `processes 12, 13 and 4 more`.
pub(super) fn numbers(pids: impl ExactSizeIterator<Item = Pid>) -> String {
    let count = pids.len();
    let shown: Vec<String> = pids.take(NAMED).map(|pid| pid.to_string()).collect();
    let shown = shown.join(", ");
    match count {
        0 | 1 => format!("process {shown}"),
        2..=NAMED => format!("processes {shown}"),
        many => format!("processes {shown} and {} more", many - NAMED),
    }
}

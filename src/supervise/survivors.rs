//! Descriptions of processes that can't be killed: which, whose, and why not.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

use nix::unistd::{Pid, Uid, User};

use crate::supervise::procfs::{self, Stat};
use crate::sys;

/// Most processes that a message lists.
const MOST: usize = 3;

/// Returns a list of processes: `process 12, process 13 (and 4 more)`.
pub(super) fn list(pids: &[Pid], name: impl Fn(Pid) -> String) -> String {
    let shown = pids.iter().take(MOST).map(|&pid| name(pid));
    let shown: Vec<String> = shown.collect();
    let more = match pids.len() {
        0..=MOST => String::new(),
        many => format!(" (and {} more)", many - MOST),
    };
    format!("{}{more}", shown.join(", "))
}

/// Returns the name of a process by its pid.
pub(super) fn number(pid: Pid) -> String {
    format!("process {pid}")
}

/// Describes the rest of a tree that was killed: `can't kill process 12 (cp of root): not permitted`.
pub(super) fn described(left: &[Pid]) -> String {
    if left.is_empty() {
        return "processes of the command may still be running, and redlock can't see them".into();
    }
    format!("can't kill {}", list(left, describe))
}

fn describe(pid: Pid) -> String {
    let about = about(pid).map_or(String::new(), |about| format!(" ({about})"));
    format!("process {pid}{about}: {}", why(pid))
}

/// Returns a process's program and user, if they can be read.
fn about(pid: Pid) -> Option<String> {
    let program = procfs::read(&format!("/proc/{pid}/comm"))?;
    let uid = Uid::from_raw(fs::metadata(format!("/proc/{pid}")).ok()?.uid());
    let user = User::from_uid(uid).ok().flatten();
    let user = user.map_or_else(|| format!("user {uid}"), |user| user.name);
    Some(format!("{} of {user}", program.trim_end()))
}

fn why(pid: Pid) -> &'static str {
    let permission = sys::kill(pid.as_raw(), 0);
    let stat = Stat::read(pid);
    if permission.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        "not permitted"
    } else if stat.is_some_and(|stat| stat.waits_for_device) {
        "it waits for a disk or a network file system"
    } else {
        "it hasn't ended yet"
    }
}

//! Processes of this host: descriptors of them, and the identity by which a holder recognizes itself among the ancestors
//! of a waiter.
//!
//! A process is identified by the boot it lives in, its pid namespace, its pid, and a moment at which it was
//! alive: a process that has the pid but started later is another one. (Its own start
//! time would say the same, but /proc/self takes a twentieth of a short run to come into being.)

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{self, ExitStatus};
use std::time::Duration;

use nix::unistd::Pid;

use crate::clock::{Moment, now};
use crate::supervise::procfs::{self, Stat, read};
use crate::sys::{self, poll};

/// Returns this process's identity, as `<boot>:<pid namespace>:<pid>:<ms since boot>`; `None` if the kernel
/// doesn't tell the first two.
pub fn instance() -> Option<String> {
    identity(process::id())
}

/// Returns the identity of a process that is alive.
fn identity(pid: impl fmt::Display) -> Option<String> {
    let alive = now().since_boot().as_millis();
    Some(format!("{}:{pid}:{alive}", scope()?))
}

/// The command line of a process; empty where it can't be known.
pub fn command_line(pid: i32) -> Vec<String> {
    if !procfs::has_own_proc() {
        return Vec::new();
    }
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    let texts = words.split(|&byte| byte == 0);
    texts
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Returns this boot and this pid namespace, in which a pid means the same process.
fn scope() -> Option<String> {
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    let pids = sys::pid_namespace().or_else(|| {
        let link = fs::read_link("/proc/self/ns/pid").ok()?;
        let inode = link.to_str()?.split_once(":[")?.1.strip_suffix(']')?;
        inode.parse().ok()
    })?;
    Some(format!("{}:{pids}", boot.trim()))
}

/// A process that lives, or has lived: it can't be mistaken for another one.
pub struct ProcessFd(OwnedFd);

impl ProcessFd {
    /// The process that has this pid now; `None` when there is none.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        let process = sys::pidfd(pid)?.map(Self);
        Ok(process.filter(|process| !process.has_ended()))
    }

    /// Returns the process's identity; `pid` is its own.
    pub fn instance(&self, pid: i32) -> Option<String> {
        let identity = identity(pid)?;
        // It had that pid all the while.
        (!self.has_ended()).then_some(identity)
    }

    /// Sends it a signal; 0 only asks whether we may.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        sys::signal(self.0.as_fd(), signal)
    }

    /// Whether the process has ended (it may still have to be reaped).
    pub fn has_ended(&self) -> bool {
        poll::is_ready(poll::readable(self.0.as_fd()), Duration::ZERO)
    }

    /// How it ended, if it has and the kernel says so; `pid` is its own.
    pub fn exit_status(&self, pid: i32) -> Option<ExitStatus> {
        // Until it is reaped the pid is its own, and the one way; after that the other is.
        let unreaped = Stat::read(Pid::from_raw(pid)).map_or(0, |stat| stat.exit_code);
        match sys::exit_status(self.0.as_fd()) {
            Some(status) => Some(status),
            None if unreaped != 0 => Some(ExitStatus::from_raw(unreaped)),
            None => None,
        }
    }
}

impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the pid of the process with this identity if that process has started this one.
pub fn ancestor(instance: &str) -> Option<i32> {
    let Identity { pid, alive } = Identity::parse_in(&scope()?, instance)?;
    let pid = Pid::from_raw(pid);
    // A later process with the same pid is another one.
    let is_same = || Stat::read(pid).is_some_and(|stat| stat.started <= alive.since_boot());
    (procfs::is_ancestor(pid) && is_same()).then_some(pid.as_raw())
}

/// A process of this host.
struct Identity {
    pid: i32,
    /// A moment at which the process was alive.
    alive: Moment,
}

impl Identity {
    /// Reads an identity; `None` for a process of another host, boot or namespace than this scope.
    fn parse_in(scope: &str, instance: &str) -> Option<Self> {
        let of_pids = instance.strip_prefix(scope)?.strip_prefix(':')?;
        let (pid, alive) = of_pids.split_once(':')?;
        Some(Self {
            pid: pid.parse().ok().filter(|&pid| pid > 0)?,
            alive: Moment::at(Duration::from_millis(alive.parse().ok()?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_process_counts_as_an_ancestor() {
        let parent = nix::unistd::Pid::parent().as_raw();
        let of_parent = identity(parent).unwrap();
        assert_eq!(ancestor(&of_parent), Some(parent));
        let parts: Vec<&str> = of_parent.split(':').collect();
        let [boot, namespace, pid, alive] = parts[..] else {
            panic!("{of_parent}");
        };
        let inode = fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(inode.to_str(), Some(&*format!("pid:[{namespace}]")));
        let with = |boot: &str, pid: &str, alive: &str| format!("{boot}:{namespace}:{pid}:{alive}");
        for unknown in [
            // A process that had that pid before.
            &with(boot, pid, "1"),
            &with("elsewhere", pid, alive),
            &format!("{boot}:1:{pid}:{alive}"),
            // This process, and one that no Linux has.
            &instance().unwrap(),
            &with(boot, &i32::MAX.to_string(), alive),
            &with(boot, "0", alive),
            &with(boot, "-1", alive),
            "",
            &format!("{boot}:{namespace}:{pid}"),
            &format!("{of_parent}:1"),
        ] {
            assert_eq!(ancestor(unknown), None, "{unknown}");
        }
    }
}

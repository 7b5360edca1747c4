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

use crate::clock::now;
use crate::supervise::procfs::{self, Stat, ancestors, read};
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
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let (_, pids) = link.to_str()?.split_once(":[")?;
    let pids = pids.strip_suffix(']')?;
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
        let unreaped = Stat::read(Pid::from_raw(pid)).map(|stat| stat.exit_code);
        let unreaped = unreaped.filter(|&code| code != 0);
        sys::exit_status(self.0.as_fd()).or(unreaped.map(ExitStatus::from_raw))
    }
}

impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the pid of the process with this identity if that process has started this one. (No process of another host, boot
/// or namespace has.)
pub fn ancestor(instance: &str) -> Option<i32> {
    let identity = instance.strip_prefix(&scope()?)?.strip_prefix(':')?;
    let (pid, alive) = identity.split_once(':')?;
    let (pid, alive) = (pid.parse().ok()?, alive.parse().ok()?);
    // A later process with the same pid is another one.
    let is_same =
        |stat: &Stat| stat.pid.as_raw() == pid && stat.started <= Duration::from_millis(alive);
    ancestors(Pid::this())
        .any(|ancestor| is_same(&ancestor))
        .then_some(pid)
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

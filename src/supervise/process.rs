//! Processes of this host: their descriptors, and the identity
//! by which a waiter recognizes a holder among its ancestors.
//!
//! The identity of a process consists of the boot, the pid namespace, the pid, and a time at
//! which the process was alive. A process with this pid that started later is a different one.
//! (The start time would do as well, but opening /proc/self takes a twentieth of a short run.)

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

/// Returns this process's identity, as `<boot>:<pid namespace>:<pid>:<ms since boot>`.
/// Returns `None` if the kernel doesn't provide the first two.
pub fn instance() -> Option<String> {
    identity(process::id())
}

/// Returns the identity of a running process.
fn identity(pid: impl fmt::Display) -> Option<String> {
    let alive = now().since_boot().as_millis();
    Some(format!("{}:{pid}:{alive}", scope()?))
}

/// Returns the command line of a process; empty if it can't be read.
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

/// Returns this boot and this pid namespace: within both, a pid identifies one process at a time.
fn scope() -> Option<String> {
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    let link = fs::read_link("/proc/self/ns/pid").ok()?;
    let (_, pids) = link.to_str()?.split_once(":[")?;
    let pids = pids.strip_suffix(']')?;
    Some(format!("{}:{pids}", boot.trim()))
}

/// A process that is alive or has ended, and can't be confused with a later process of the same pid.
pub struct ProcessFd(OwnedFd);

impl ProcessFd {
    /// Opens the process that has this pid now. Returns `None` if there is none.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        let process = sys::pidfd(pid)?.map(Self);
        Ok(process.filter(|process| !process.has_ended()))
    }

    /// Returns the process's identity; `pid` must be its pid.
    pub fn instance(&self, pid: i32) -> Option<String> {
        let identity = identity(pid)?;
        // The process was alive until now, so it had this pid all the time.
        (!self.has_ended()).then_some(identity)
    }

    /// Sends the process a signal; 0 only checks the permission.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        sys::signal(self.0.as_fd(), signal)
    }

    /// Returns true if the process has ended, even if it isn't reaped yet.
    pub fn has_ended(&self) -> bool {
        poll::is_ready(poll::readable(self.0.as_fd()), Duration::ZERO)
    }

    /// Returns the exit status, if the process has ended and the kernel provides the status; `pid` must be its pid.
    pub fn exit_status(&self, pid: i32) -> Option<ExitStatus> {
        // /proc has the status until the process is reaped, and the pidfd has it after that.
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

/// Returns the pid of the process with this identity if it is an ancestor of
/// this process. A process of another host, boot or pid namespace is not.
pub fn ancestor(instance: &str) -> Option<i32> {
    let identity = instance.strip_prefix(&scope()?)?.strip_prefix(':')?;
    let (pid, alive) = identity.split_once(':')?;
    let (pid, alive) = (pid.parse().ok()?, alive.parse().ok()?);
    // A process with the same pid that started later is a different one.
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
            // The identity of an earlier process with that pid.
            &with(boot, pid, "1"),
            &with("elsewhere", pid, alive),
            &format!("{boot}:1:{pid}:{alive}"),
            // This process itself, and pids that no Linux process has.
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

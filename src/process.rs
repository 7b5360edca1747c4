//! Which process it is that holds a lock, so that others on the same host can see that it is dead.
//!
//! A process is known by the boot it lives in, its pid namespace, its pid, and a moment at which it
//! was alive: a process that has the pid but started later is another one. (Its own start time
//! would say the same, but /proc/self takes a twentieth of a short run to come into being.) Only
//! one that the kernel itself declares dead counts as such: the namespace has no such pid, or the
//! very process has ended. All else may still live.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::clock::now;
use crate::sys;

/// Our own identity, as `<boot>:<pid namespace>:<pid>:<ms since boot>`; `None` where the kernel
/// doesn't say.
pub fn instance() -> Option<String> {
    let alive = now().since_boot().as_millis();
    Some(format!("{}:{}:{alive}", home()?, process::id()))
}

/// Where pids mean the same: this boot, this pid namespace.
fn home() -> Option<String> {
    let boot = read("/proc/sys/kernel/random/boot_id")?;
    let namespace = sys::pid_namespace().or_else(|| {
        let link = fs::read_link("/proc/self/ns/pid").ok()?;
        let inode = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
        inode.parse().ok()
    })?;
    Some(format!("{}:{namespace}", boot.trim()))
}

/// When a process started, since boot: the 22nd field of its stat, in ticks of 10 ms, rounded down.
fn start(pid: i32) -> Option<Duration> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

/// A short file of the kernel's.
fn read(path: &str) -> Option<String> {
    let mut text = [0; 1024];
    let length = File::open(path).ok()?.read(&mut text).ok()?;
    std::str::from_utf8(&text[..length]).ok().map(str::to_owned)
}

/// What can be known of another process.
pub enum Fate {
    /// It has ended.
    Dead,
    /// It lives; its descriptor becomes readable when it ends.
    Alive(Pulse),
    /// It lives elsewhere, or it can't be known.
    Unknown,
}

/// A process that lives.
pub struct Pulse(OwnedFd);

impl Pulse {
    /// Whether the process has ended (it may still have to be reaped).
    pub fn has_stopped(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO) == Ok(1)
    }
}

impl AsFd for Pulse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What has become of a process with this identity, as far as this host can know.
pub fn fate(instance: &str) -> Fate {
    let known = || {
        let (rest, alive) = instance.rsplit_once(':')?;
        let (place, pid) = rest.rsplit_once(':')?;
        let alive = Duration::from_millis(alive.parse().ok()?);
        (place == home()?).then_some((pid.parse::<i32>().ok()?, alive))
    };
    let Some((pid, alive)) = known() else {
        return Fate::Unknown;
    };
    match sys::pidfd(pid) {
        Ok(None) => Fate::Dead,
        // The descriptor stays with the process that had the pid when it was opened.
        Ok(Some(fd)) if start(pid).is_some_and(|start| start <= alive) => {
            let pulse = Pulse(fd);
            if pulse.has_stopped() {
                Fate::Dead
            } else {
                Fate::Alive(pulse)
            }
        }
        Ok(Some(_)) | Err(_) => Fate::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn nothing_less_than_the_very_process_counts() {
        let us = instance().unwrap();
        assert!(matches!(fate(&us), Fate::Alive(_)));
        let (place, alive) = us.rsplit_once(':').unwrap();
        let place = place.rsplit_once(':').unwrap().0;
        // Our pid, but at a time when we had not started: it was used again.
        let reused = format!("{place}:{}:{}", process::id(), 1);
        // A pid that no Linux gives out.
        let gone = format!("{place}:{}:{alive}", i32::MAX);
        let elsewhere = format!("elsewhere:1:{}:{alive}", i32::MAX);
        assert!(matches!(fate(&reused), Fate::Unknown));
        assert!(matches!(fate(&gone), Fate::Dead));
        assert!(matches!(fate(&elsewhere), Fate::Unknown));
        assert!(matches!(fate(""), Fate::Unknown));
        assert!(us.contains(&format!(
            ":{}:",
            fs::metadata("/proc/self/ns/pid").unwrap().ino()
        )));
    }
}

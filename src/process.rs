//! Which process it is that holds a lock, so that others on the same host can see that it is dead.
//!
//! A process is known by the boot it lives in, its pid namespace, its pid, and a moment at which it
//! was alive: a process that has the pid but started later is another one. (Its own start time
//! would say the same, but /proc/self takes a twentieth of a short run to come into being.) Only
//! one that the kernel itself declares dead counts as such: the namespace has no such pid, or the
//! very process has ended. All else may still live.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use crate::clock::now;
use crate::sys;

/// Our own identity, as `<boot>:<pid namespace>:<pid>:<ms since boot>`; `None` where the kernel
/// doesn't say.
pub fn instance() -> Option<String> {
    identity(process::id())
}

/// The same for another process, which is alive.
fn identity(pid: impl fmt::Display) -> Option<String> {
    let alive = now().since_boot().as_millis();
    Some(format!("{}:{pid}:{alive}", home()?))
}

/// The command line of a process; empty where it can't be known.
pub fn command_line(pid: i32) -> Vec<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    let texts = words.split(|&byte| byte == 0);
    texts
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// All descendants of a process, parents before children. Each was alive when it was listed. None of
/// our own can be mistaken for another process, as only we reap our children, and a parent that
/// reaps its own in between does so within the microseconds until the signal is sent.
pub fn descendants(of: Pid) -> Vec<Pid> {
    let mut found = children(of);
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        for child in children(pid) {
            if !found.contains(&child) {
                found.push(child);
            }
        }
    }
    found
}

/// The children of a process, of all its threads.
fn children(pid: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|pid| pid.parse().ok().map(Pid::from_raw))
                .collect::<Vec<_>>()
        })
        .collect()
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

/// A process that lives, or has lived: it can't be mistaken for another one.
pub struct Pulse(OwnedFd);

impl Pulse {
    /// The process that has this pid now; `None` when there is none.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        let pulse = sys::pidfd(pid)?.map(Self);
        Ok(pulse.filter(|pulse| !pulse.has_stopped()))
    }

    /// Which process it is, for others; `pid` is its own.
    pub fn instance(&self, pid: i32) -> Option<String> {
        let identity = identity(pid)?;
        // It had that pid all the while.
        (!self.has_stopped()).then_some(identity)
    }

    /// Sends it a signal; 0 only asks whether we may.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        sys::signal(self.0.as_fd(), signal)
    }

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

/// What has become of the processes with these identities (with commas between), as far as this host
/// can know: they are dead when all are.
pub fn fate(instances: &str) -> Fate {
    let fates = instances.split(',').map(fate_of);
    let mut unknown = false;
    for fate in fates {
        match fate {
            Fate::Dead => {}
            Fate::Alive(pulse) => return Fate::Alive(pulse),
            Fate::Unknown => unknown = true,
        }
    }
    if unknown { Fate::Unknown } else { Fate::Dead }
}

fn fate_of(instance: &str) -> Fate {
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
        assert!(matches!(fate(&format!("{gone},{us}")), Fate::Alive(_)));
        assert!(matches!(
            fate(&format!("{gone},{elsewhere}")),
            Fate::Unknown
        ));
        assert!(matches!(fate(&format!("{gone},{gone}")), Fate::Dead));
        assert!(us.contains(&format!(
            ":{}:",
            fs::metadata("/proc/self/ns/pid").unwrap().ino()
        )));
    }
}

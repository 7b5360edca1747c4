//! The abilities of this host's kernel on which redlock relies, and the rights of other users to its settings.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;
use std::{env, fs, io};

use nix::sys::prctl;
use nix::time::{ClockId, clock_gettime};

use crate::clock::Timer;
use crate::config::{Exposure, Settings};
use crate::reason::reason;
use crate::supervise::tree;
use crate::sys;

/// What it can do; what it said otherwise.
#[derive(Debug)]
pub struct Host {
    /// How long it was suspended since it was started, on a clock that runs meanwhile.
    pub boot_clock: Result<Duration, String>,
    /// A process can be killed when its parent ends.
    pub pdeathsig: Result<(), String>,
    /// A process can be watched by a descriptor.
    pub pidfd: Result<(), String>,
    /// Orphans can be adopted.
    pub subreaper: Result<(), String>,
    /// What /proc shows.
    pub proc: Proc,
    /// Configuration files that aren't used, because others may have written them.
    pub refused: Vec<Exposure>,
    /// Secrets that every user of this host can read.
    pub exposed: Vec<Exposure>,
    /// Other files on the PATH that are called redlock.
    pub namesakes: Vec<String>,
    /// How jobs of this host exclude each other only in part.
    pub split: Option<String>,
}

/// What /proc shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proc {
    /// All processes that we see.
    All,
    /// Not those of other users: it is mounted with `hidepid`.
    OwnUsers,
    /// Those of another pid namespace.
    Foreign,
}

impl Host {
    /// Tries all of it on this process, which stays as it is.
    pub fn examine(settings: &Settings) -> Self {
        Self {
            boot_clock: boot_clock().map_err(|error| said("CLOCK_BOOTTIME", error)),
            pdeathsig: prctl::get_pdeathsig()
                .and_then(prctl::set_pdeathsig)
                .map_err(|error| said("PR_SET_PDEATHSIG", error)),
            pidfd: pidfd(),
            subreaper: prctl::get_child_subreaper()
                .and_then(prctl::set_child_subreaper)
                .map_err(|error| said("PR_SET_CHILD_SUBREAPER", error)),
            proc: proc(),
            refused: settings.refused.clone(),
            exposed: settings.exposed.clone(),
            namesakes: namesakes().unwrap_or_default(),
            split: settings.split.clone(),
        }
    }
}

/// A job may run one of them in place of this program. Links to this one are none.
fn namesakes() -> Option<Vec<String>> {
    let path = env::var_os("PATH")?;
    let own = fs::metadata(sys::own_program()).ok()?;
    let mut seen = vec![(own.dev(), own.ino())];
    let mut found = Vec::new();
    for file in env::split_paths(&path).map(|directory| directory.join("redlock")) {
        let Ok(it) = fs::metadata(&file) else {
            continue;
        };
        let identity = (it.dev(), it.ino());
        if it.is_file() && it.mode() & 0o111 != 0 && !seen.contains(&identity) {
            seen.push(identity);
            found.push(file.display().to_string());
        }
    }
    Some(found)
}

fn proc() -> Proc {
    if !tree::has_own_proc() {
        Proc::Foreign
    } else if tree::read("/proc/1/stat").is_none() {
        Proc::OwnUsers
    } else {
        Proc::All
    }
}

fn said(what: &str, error: nix::Error) -> String {
    format!("{what} fails ({})", reason(&error.into()))
}

fn boot_clock() -> nix::Result<Duration> {
    let awake: Duration = clock_gettime(ClockId::CLOCK_MONOTONIC)?.into();
    let all: Duration = clock_gettime(ClockId::CLOCK_BOOTTIME)?.into();
    Timer::new()?;
    // In a container both may have been moved.
    let suspended = all.saturating_sub(awake);
    Ok(Duration::from_secs(suspended.as_secs()))
}

fn pidfd() -> Result<(), String> {
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    let failed = |error: &io::Error| format!("pidfd_open fails ({})", reason(error));
    match sys::pidfd(own) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err("pidfd_open doesn't find this process".into()),
        Err(error) => Err(failed(&error)),
    }
}

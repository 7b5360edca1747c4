//! What Linux can do for a run, tried on this process, which stays as it is.

use std::io;
use std::time::Duration;

use nix::sys::prctl;
use nix::time::{ClockId, clock_gettime};

use super::host::{Kernel, Proc};
use crate::clock::Timer;
use crate::reason::reason;
use crate::supervise::tree;
use crate::sys;

/// Tries all of it.
pub fn examine() -> Kernel {
    Kernel {
        boot_clock: boot_clock().map_err(|error| said("CLOCK_BOOTTIME", error)),
        pdeathsig: prctl::get_pdeathsig()
            .and_then(prctl::set_pdeathsig)
            .map_err(|error| said("PR_SET_PDEATHSIG", error)),
        pidfd: pidfd(),
        subreaper: prctl::get_child_subreaper()
            .and_then(prctl::set_child_subreaper)
            .map_err(|error| said("PR_SET_CHILD_SUBREAPER", error)),
        proc: proc(),
    }
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

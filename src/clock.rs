//! The clock that leases are counted on, which runs while the machine is suspended (`std::time::Instant` does not), and
//! a timer on the same clock.

use std::ops::Add;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::sys::{self, ClockTimer};

/// A point in time on this machine: the time since boot, suspended time included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// A moment at a given time since boot.
    pub const fn at(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// How long from `earlier` to this moment; zero when it isn't earlier.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time since boot.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// This moment moved back by `by`, not before boot.
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(by))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

/// What the clock says now.
pub fn now() -> Moment {
    Moment(sys::since_boot())
}

/// A descriptor that becomes readable at a moment, also when that moment passed in suspend.
#[derive(Debug)]
pub struct Timer {
    fd: ClockTimer,
    set_to: Option<Moment>,
}

impl Timer {
    /// A timer that isn't set.
    pub fn new() -> nix::Result<Self> {
        Ok(Self {
            fd: ClockTimer::new()?,
            set_to: None,
        })
    }

    /// Makes the timer go off at `at`, or never.
    pub fn set(&mut self, at: Option<Moment>) -> nix::Result<()> {
        if self.set_to == at {
            return Ok(());
        }
        self.fd.set(at.map(Moment::since_boot))?;
        self.set_to = at;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

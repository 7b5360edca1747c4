//! The clock for leases, which includes the time that the machine is suspended (`std::time::Instant` does not), and
//! a timer on the same clock.

use std::ops::Add;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{
    ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags,
};
use nix::time::{ClockId, clock_gettime};

/// A point in time on this machine: the time since boot, including suspended time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the moment at a given time since boot.
    pub const fn at(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time since boot.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns this moment moved back by `by`, but not before boot.
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

/// Returns the present moment.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME");
    Moment(time.into())
}

/// A descriptor that becomes readable at a moment, even if that moment passes while the machine is suspended.
#[derive(Debug)]
pub struct Timer {
    fd: TimerFd,
    set_to: Option<Moment>,
}

impl Timer {
    /// Returns a timer that isn't set.
    pub fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let fd = TimerFd::new(TimerClock::CLOCK_BOOTTIME, flags)?;
        Ok(Self { fd, set_to: None })
    }

    /// Sets the timer to `at`, or disarms it.
    pub fn set(&mut self, at: Option<Moment>) -> nix::Result<()> {
        if self.set_to == at {
            return Ok(());
        }
        match at {
            // An expiration of zero would disarm the timer.
            Some(Moment(at)) => self.fd.set(
                Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
            None => self.fd.unset()?,
        }
        self.set_to = at;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

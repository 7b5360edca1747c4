//! The clock that leases are counted on, which runs while the machine is suspended (`std::time::Instant` does not), and
//! a timer on the same clock.

use std::ops::Add;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{
    ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags,
};
use nix::time::{ClockId, clock_gettime};

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

/// Returns the present moment.
pub fn now() -> Moment {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME");
    Moment(time.into())
}

/// A descriptor that becomes readable at a moment, also when that moment passed in suspend.
#[derive(Debug)]
pub struct Timer {
    fd: TimerFd,
    set_to: Option<Moment>,
}

impl Timer {
    /// A timer that isn't set.
    pub fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let fd = TimerFd::new(TimerClock::CLOCK_BOOTTIME, flags)?;
        Ok(Self { fd, set_to: None })
    }

    /// Makes the timer go off at `at`, or never.
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

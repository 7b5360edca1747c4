//! The clock that leases are counted on, which runs while the machine is suspended; and a timer on it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{
    ClockId as TimerClock, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags,
};
use nix::time::{ClockId, clock_gettime};

/// The time since boot, suspended time included.
pub fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME");
    time.into()
}

/// A descriptor that becomes readable at a moment, also when that moment passed in suspend.
#[derive(Debug)]
pub struct ClockTimer(TimerFd);

impl ClockTimer {
    /// A timer that isn't set.
    pub fn new() -> nix::Result<Self> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        TimerFd::new(TimerClock::CLOCK_BOOTTIME, flags).map(Self)
    }

    /// Makes it go off at this time since boot, or never.
    pub fn set(&mut self, at: Option<Duration>) -> nix::Result<()> {
        match at {
            // An expiration of zero would disarm it.
            Some(at) => self.0.set(
                Expiration::OneShot(TimeSpec::from_duration(at.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            ),
            None => self.0.unset(),
        }
    }
}

impl AsFd for ClockTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

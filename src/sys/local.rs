//! Civil time, as the C library counts it: local time by the system's zones, UTC, and the way back from UTC.

use std::ffi::CStr;
use std::mem::MaybeUninit;

/// A moment in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CivilTime {
    pub year: i64,
    pub month: u32,
    pub day: u32,
    pub hour: u32,
    pub minute: u32,
    pub second: u32,
    /// How far the zone's clock is ahead of UTC, in seconds.
    pub ahead: i64,
    /// The zone's name at that moment: `CET`, `UTC`, `+0530`.
    pub zone: String,
}

/// The local time at a moment, in seconds since 1970, by $TZ or the system's zone.
pub fn local_time(seconds: i64) -> Option<CivilTime> {
    civil(seconds, libc::localtime_r)
}

/// The same in UTC.
pub fn utc_time(seconds: i64) -> Option<CivilTime> {
    let time = civil(seconds, libc::gmtime_r)?;
    // Some libraries call it GMT.
    let zone = "UTC".into();
    Some(CivilTime { zone, ..time })
}

fn civil(
    seconds: i64,
    convert: unsafe extern "C" fn(*const i64, *mut libc::tm) -> *mut libc::tm,
) -> Option<CivilTime> {
    let mut time = MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both structures are valid. The environment, which the call may read, is never changed.
    let time = unsafe {
        if convert(&raw const seconds, time.as_mut_ptr()).is_null() {
            return None;
        }
        time.assume_init()
    };
    let zone = if time.tm_zone.is_null() {
        String::new()
    } else {
        // SAFETY: the zone's name lives for as long as the process.
        let zone = unsafe { CStr::from_ptr(time.tm_zone) };
        zone.to_string_lossy().into_owned()
    };
    let part = |number: i32| u32::try_from(number).ok();
    Some(CivilTime {
        year: i64::from(time.tm_year) + 1900,
        month: part(time.tm_mon + 1)?,
        day: part(time.tm_mday)?,
        hour: part(time.tm_hour)?,
        minute: part(time.tm_min)?,
        second: part(time.tm_sec)?,
        // As wide as the platform's long.
        #[allow(clippy::useless_conversion)]
        ahead: i64::from(time.tm_gmtoff),
        zone,
    })
}

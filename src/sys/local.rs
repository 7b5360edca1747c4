//! Civil time, as the C library shows it: local time by the system's zones, and UTC.

use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Returns the local time at a moment, in seconds since 1970, by $TZ or the system's zone: `2026-11-22 08:15:02 CET`.
pub fn local_time(seconds: i64) -> Option<String> {
    civil(seconds, libc::localtime_r, c"%Y-%m-%d %H:%M:%S %Z")
}

/// Returns a moment in UTC.
pub fn utc_time(seconds: i64) -> Option<String> {
    // Some libraries call it GMT.
    civil(seconds, libc::gmtime_r, c"%Y-%m-%d %H:%M:%S UTC")
}

fn civil(
    seconds: i64,
    convert: unsafe extern "C" fn(*const i64, *mut libc::tm) -> *mut libc::tm,
    format: &CStr,
) -> Option<String> {
    let mut time = MaybeUninit::<libc::tm>::zeroed();
    let mut text = [0; 64];
    // SAFETY: all structures are valid, and the text has the length that is given. The environment, which the call may
    // read, is never changed.
    let length = unsafe {
        if convert(&raw const seconds, time.as_mut_ptr()).is_null() {
            return None;
        }
        libc::strftime(
            text.as_mut_ptr().cast(),
            text.len(),
            format.as_ptr(),
            time.as_ptr(),
        )
    };
    let text: &[u8] = &text[..length];
    let text = String::from_utf8_lossy(text).into_owned();
    (!text.is_empty()).then_some(text)
}

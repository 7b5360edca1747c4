//! Local time from the C library, in the system's time zone.

use std::mem::MaybeUninit;

/// Returns the local time of a moment, in seconds since 1970, in the zone of $TZ or the system: `2026-11-22 08:15:02 CET`.
pub fn local_time(seconds: i64) -> Option<String> {
    let mut time = MaybeUninit::<libc::tm>::zeroed();
    let mut text = [0; 64];
    // SAFETY: all structures are valid, and the text has the given length. The environment, which the call may
    // read, is never changed.
    let length = unsafe {
        if libc::localtime_r(&raw const seconds, time.as_mut_ptr()).is_null() {
            return None;
        }
        libc::strftime(
            text.as_mut_ptr().cast(),
            text.len(),
            c"%Y-%m-%d %H:%M:%S %Z".as_ptr(),
            time.as_ptr(),
        )
    };
    let text: &[u8] = &text[..length];
    let text = String::from_utf8_lossy(text).into_owned();
    (!text.is_empty()).then_some(text)
}

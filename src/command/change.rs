//! Changes in Redis whose answer may get lost: the user then learns that the change may have been made.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use crate::protocol::{Error, Name};
use crate::{report, signal, stderr, sys};

/// Message to print if the user interrupts redlock.
static LAST_WORDS: Mutex<Option<String>> = Mutex::new(None);

/// Makes a change to a lock over an open connection. `may` is the
/// possible result, for the warning: `lock "a" may have been frozen`.
///
/// # Errors
/// Returns the error of the call, with a warning if only the answer is missing.
/// An interrupt before the answer prints the same warning and ends the process.
pub fn change<T>(
    name: &Name,
    may: impl std::fmt::Display,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<T> {
    let look = report::typed(&["status"], name);
    let warning = format!("{may}; to find out: {look}");
    let last_words = format!("interrupted before Redis answered: {warning}");
    with_last_words(last_words, make).map_err(|error| {
        if error.kind.is_unreachable() {
            anyhow::Error::from(error).context(warning)
        } else {
            error.into()
        }
    })
}

/// Runs `work`. An interrupt meanwhile prints `words` and ends the process.
pub fn with_last_words<T>(words: String, work: impl FnOnce() -> T) -> T {
    set_last_words(Some(words));
    // Only the first call has an effect. If it fails, an interrupt ends the process without a message.
    let _ = signal::on_interrupt(end);
    let result = work();
    set_last_words(None);
    result
}

/// Handles an interrupt, once `with_last_words` has been called.
fn end() {
    if let Some(words) = set_last_words(None) {
        report::status_line(None);
        report::error(words);
        stderr::flush(stderr::LINGER);
    }
    sys::die_by(libc::SIGINT);
}

fn set_last_words(words: Option<String>) -> Option<String> {
    let mut last_words = LAST_WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut last_words, words)
}

//! A change in Redis whose answer may get lost or never come: the user is then warned that it may have been made.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

use crate::protocol::{Error, Name};
use crate::{report, signal, stderr, sys};

/// The warning of the change that was asked for and isn't answered yet.
static UNANSWERED: Mutex<Option<String>> = Mutex::new(None);

/// Makes a change over a connection that is open. `may` says what may have come of it: `lock "a" may have been frozen`.
///
/// # Errors
/// That of the call, after the warning where only the answer is missing. An interrupt before the answer ends the process
/// with the same warning.
pub fn change<T>(
    names: &[Name],
    may: impl std::fmt::Display,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<T> {
    let look = report::typed_for(&["status"], names);
    let warning = format!("{may}; to find out: {look}");
    set_unanswered(Some(warning.clone()));
    signal::on_interrupt(end_with_warning).context("can't watch for Ctrl-C")?;
    let result = make();
    signal::forget_interrupts();
    set_unanswered(None);
    result.map_err(|error| {
        if error.kind.is_unreachable() {
            anyhow::Error::from(error).context(warning)
        } else {
            error.into()
        }
    })
}

/// What an interrupt does before the answer.
fn end_with_warning() {
    if let Some(warning) = set_unanswered(None) {
        report::error(format_args!("interrupted before Redis answered: {warning}"));
        stderr::flush(stderr::LINGER);
    }
    sys::die_by(libc::SIGINT);
}

fn set_unanswered(warning: Option<String>) -> Option<String> {
    let mut unanswered = UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut unanswered, warning)
}

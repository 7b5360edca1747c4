//! Parsers of options' values, each with the sentence that describes a valid one.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// Parses a number from `least` to `most`.
pub fn number<N>(
    least: N,
    most: N,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let read = text.parse().ok().filter(|n| (least..=most).contains(n));
        read.ok_or_else(|| format!("must be a number from {least} to {most}"))
    }
}

/// Message for an invalid duration.
const DURATIONS: &str = "must be a duration such as 500ms, 30s, 1h30m, or a number of seconds";

/// Longest duration. A longer one is a mistake, and would overflow the server's arithmetic.
pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Parses a duration such as `30s`, `500ms` or `1h30m`. A number alone is in seconds, as for flock(1) and timeout(1).
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("a duration can't be negative".into());
    }
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let duration = if !text.is_empty() && text.chars().all(is_number) {
        let seconds = text.parse().map_err(|_| DURATIONS)?;
        Duration::try_from_secs_f64(seconds).map_err(|_| "must be at most 365d")?
    } else {
        let mut units = text.split(|c: char| !c.is_alphabetic());
        if let Some(unit) = units.find(|unit| WITHOUT_LENGTH.contains(unit)) {
            return Err(format!(
                "{unit} has no fixed length: write days as 30d, or minutes as 1m"
            ));
        }
        // sleep(1) accepts a leading dot, too.
        let without_zero = text.starts_with('.').then(|| format!("0{text}"));
        humantime::parse_duration(without_zero.as_deref().unwrap_or(text)).map_err(|_| DURATIONS)?
    };
    if duration > LONGEST {
        return Err("must be at most 365d".into());
    }
    Ok(duration)
}

/// Units of months and years, which differ in length. A user may easily type `M` for the `m` of a minute.
const WITHOUT_LENGTH: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];

/// Parses a duration greater than zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be greater than 0".into()),
        duration => Ok(duration),
    }
}

/// Parses a waiting time. Returns [`Duration::MAX`] for `forever`.
pub(super) fn wait_duration(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(Duration::MAX),
        _ => duration(text),
    }
}

/// Longest time for which Redis remembers anything on request.
pub const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Parses a duration for which Redis must remember something.
pub(super) fn remembered(text: &str) -> Result<Duration, String> {
    match positive_duration(text)? {
        duration if duration > REMEMBERED => Err("must be at most 30d".into()),
        duration => Ok(duration),
    }
}

/// Parses the number of latest entries to show.
pub(super) fn last(text: &str) -> Result<usize, String> {
    if text == "all" {
        return Ok(usize::MAX);
    }
    let read = text.parse();
    read.map_err(|_| "must be a whole number, or all".into())
}

/// Parses a script. Refuses an empty one, which would succeed, and probably comes from an unset variable.
pub(super) fn script() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|text| {
        if text.as_bytes().trim_ascii().is_empty() {
            return Err("must not be empty");
        }
        Ok(text)
    })
}

pub fn not_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("must not be empty".into());
    }
    Ok(text.to_owned())
}

/// Parses the key of a job, such as a date: a word without characters that need escapes.
pub(super) fn once_key(text: &str) -> Result<String, String> {
    let is_plain = |c: char| !(c.is_whitespace() || c.is_control() || c == '"' || c == '\\');
    if text.is_empty() || text.len() > 200 || !text.chars().all(is_plain) {
        return Err("must be 1 to 200 bytes without spaces, quotes or backslashes".into());
    }
    Ok(text.to_owned())
}

/// Parses an id, or enough of its beginning that a typo doesn't match another id.
pub(super) fn id(text: &str) -> Result<String, String> {
    if text.len() < 4 {
        return Err("must have at least 4 characters".into());
    }
    Ok(text.to_lowercase())
}

pub fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl < Duration::from_secs(1) {
        return Err("must be at least 1s: a shorter lease can't be renewed in time".into());
    }
    Ok(ttl)
}

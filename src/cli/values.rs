//! Readers of options' values, each with the sentence that says what a wrong one should have been.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};

/// Reads a number from one to another.
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

/// What a duration has to be.
const DURATIONS: &str = "must be a duration such as 500ms, 30s, 1h30m, or a number of seconds";

/// A longer duration is a mistake, and would overflow the server's arithmetic.
pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads a duration as `30s`, `500ms` or `1h30m`; a number alone counts seconds, as for flock(1) and
/// timeout(1).
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
        // As sleep(1) takes it.
        let without_zero = text.starts_with('.').then(|| format!("0{text}"));
        humantime::parse_duration(without_zero.as_deref().unwrap_or(text)).map_err(|_| DURATIONS)?
    };
    if duration > LONGEST {
        return Err("must be at most 365d".into());
    }
    Ok(duration)
}

/// Units of months and years, which differ in length. `M` is easily typed for the `m` of a minute.
const WITHOUT_LENGTH: [&str; 8] = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];

/// Reads a duration that isn't zero.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be greater than 0".into()),
        duration => Ok(duration),
    }
}

/// Reads how long to wait; what has no end is [`Duration::MAX`].
pub(super) fn wait_duration(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(Duration::MAX),
        _ => duration(text),
    }
}

/// The longest time for which Redis remembers anything on request.
pub const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// Reads a duration for which Redis has to remember something.
pub(super) fn remembered(text: &str) -> Result<Duration, String> {
    match positive_duration(text)? {
        duration if duration > REMEMBERED => Err("must be at most 30d".into()),
        duration => Ok(duration),
    }
}

/// Reads how many of the last to show.
pub(super) fn last(text: &str) -> Result<usize, String> {
    if text == "all" {
        return Ok(usize::MAX);
    }
    let read = text.parse();
    read.map_err(|_| "must be a whole number, or all".into())
}

/// Reads a script. An empty one would succeed, and is a variable that isn't set.
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

/// Reads what stands for a job, such as a date: one word that needs no escapes.
pub(super) fn once_key(text: &str) -> Result<String, String> {
    let is_plain = |c: char| !(c.is_whitespace() || c.is_control() || c == '"' || c == '\\');
    if text.is_empty() || text.len() > 200 || !text.chars().all(is_plain) {
        return Err("must be 1 to 200 bytes without spaces, quotes or backslashes".into());
    }
    Ok(text.to_owned())
}

/// Reads an id, or enough of its beginning that it isn't hit upon by chance.
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

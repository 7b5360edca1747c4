//! Text that is safe and fits: escaped, cut, in columns; times and command lines for people.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io;
use std::time::{Duration, UNIX_EPOCH};

/// The text, cut to a width in characters.
pub fn truncate(text: &str, width: usize) -> Cow<'_, str> {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// The text with control characters, direction marks and line separators written out: what comes from
/// Redis can't drive the terminal, nor what else shows it.
pub fn escaped(text: &str) -> Cow<'_, str> {
    escape_with(text, |safe, c| write!(safe, "{}", c.escape_default()))
}

/// The same for text that is JSON already, in which such characters stand within strings only.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    escape_with(json, |safe, c| write!(safe, "\\u{:04x}", u32::from(c)))
}

fn escape_with(text: &str, escape: impl Fn(&mut String, char) -> fmt::Result) -> Cow<'_, str> {
    let drives = |c: char| {
        c.is_control()
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(drives) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if drives(c) {
            let _ = escape(&mut safe, c);
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// A duration for people, with one or two units: `350ms`, `24s`, `3m 20s`, `2h 5m`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let rounded = match seconds {
        0 if duration.subsec_millis() > 0 => Duration::from_millis(duration.subsec_millis().into()),
        0..3600 => Duration::from_secs(seconds),
        3600..86400 => Duration::from_secs(seconds / 60 * 60),
        _ => Duration::from_secs(seconds / 3600 * 3600),
    };
    match rounded.as_secs() {
        0..86400 => humantime::format_duration(rounded).to_string(),
        // Months would differ in length.
        seconds => match (seconds / 86400, seconds % 86400 / 3600) {
            (days, 0) => format!("{days}d"),
            (days, hours) => format!("{days}d {hours}h"),
        },
    }
}

/// RFC 3339 with milliseconds; `None` for a time that no calendar has.
pub fn timestamp(ms: u64) -> Option<String> {
    let last = 253_402_300_799_000; // the end of the year 9999
    (ms <= last).then(|| {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
    })
}

/// How many columns a terminal at standard output has; `None` without one.
pub fn width() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
}

/// A table: columns as wide as they need to be, but for the last; what doesn't fit is cut off. What
/// could drive the terminal is written out.
pub fn table<R: AsRef<[String]>>(rows: &[R], width: Option<usize>) -> String {
    let mut widths = Vec::new();
    for row in rows {
        for (column, cell) in row.as_ref().iter().enumerate() {
            if column == widths.len() {
                widths.push(0);
            }
            widths[column] = escaped(cell).chars().count().max(widths[column]);
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.as_ref().iter().zip(&widths) {
            let _ = write!(line, "{:<width$}  ", escaped(cell));
        }
        text += &truncate(line.trim_end(), width.unwrap_or(usize::MAX));
        text.push('\n');
    }
    text
}

/// A command line for people: quoted where a shell would need it.
pub fn command_line(command: &[String]) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%^".contains(c);
    let words = command.iter().map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_redis_cannot_drive_the_terminal() {
        assert_eq!(
            escaped("a\u{1b}[2Jb\nc\u{202e}"),
            "a\\u{1b}[2Jb\\nc\\u{202e}"
        );
        assert_eq!(escaped("\u{9b}31m"), "\\u{9b}31m");
        assert_eq!(escaped("\u{61c}a\u{2028}"), "\\u{61c}a\\u{2028}");
        assert_eq!(
            table(&[["\u{202e}a".into(), "b".into()]], None),
            "\\u{202e}a  b\n"
        );
        assert!(matches!(escaped("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn durations_are_short() {
        let ms = Duration::from_millis;
        assert_eq!(format_duration(ms(350)), "350ms");
        assert_eq!(format_duration(ms(24_400)), "24s");
        assert_eq!(format_duration(ms(200_900)), "3m 20s");
        assert_eq!(format_duration(ms(7_509_000)), "2h 5m");
        assert_eq!(format_duration(ms(0)), "0s");
        assert_eq!(format_duration(ms(86_400_000)), "1d");
        assert_eq!(format_duration(ms(5_142_999_000)), "59d 12h");
    }

    #[test]
    fn a_command_line_is_quoted_where_a_shell_needs_it() {
        let words = ["sh", "-c", "echo it's", ""].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'echo it'\''s' ''");
    }
}

//! Text that is safe and fits: escaped, cut and measured in columns; and times for people.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use crate::duration;
use unicode_width::UnicodeWidthStr;

/// Returns the number of terminal columns of a text: two for a wide character, none for a combining one.
pub fn columns(text: &str) -> usize {
    // A fast path, because most text is ASCII, and a table measures all of it.
    if text.is_ascii() {
        return text.len();
    }
    text.width()
}

/// Returns the text, cut to this many columns.
pub fn truncate(text: &str, width: usize) -> Cow<'_, str> {
    if text.len() <= width || columns(text) <= width {
        return text.into();
    }
    let mut cut = start_of(text, width.saturating_sub(1)).to_owned();
    cut.push('…');
    cut.into()
}

/// Splits a text into parts that fit into `room` columns, between words. A longer word is a part of its own.
pub fn wrapped(text: &str, room: Option<usize>) -> Vec<&str> {
    let (mut parts, mut start, mut end) = (Vec::new(), 0, 0);
    for word in text.split_inclusive(' ') {
        let next = end + word.len();
        let taken = columns(text[start..next].trim_end());
        if end > start && room.is_some_and(|room| taken > room) {
            parts.push(text[start..end].trim_end());
            start = end;
        }
        end = next;
    }
    parts.push(&text[start..]);
    parts
}

/// Returns the longest start of a text that fits into this many columns. Measures whole starts, because some characters
/// together take more or fewer columns than one by one.
fn start_of(text: &str, width: usize) -> &str {
    let ends = text.char_indices().map(|(at, _)| at);
    let fitting = ends.take_while(|end| columns(&text[..*end]) <= width);
    // A joiner at the end has nothing to join.
    text[..fitting.last().unwrap_or(0)].trim_end_matches('\u{200d}')
}

/// Returns the text with control characters, direction marks and line separators escaped, and commands to CI agents broken.
/// So text from Redis can't drive the terminal, or other programs that show or log it.
pub fn escaped(text: &str) -> Cow<'_, str> {
    let mut safe = escape_with(text, |c| c.escape_default().to_string());
    // The backslash is visible, so that people notice the change. A character without width is no alternative, because agents
    // that compare by culture ignore it.
    for at in commands_in(&safe).into_iter().rev() {
        safe.to_mut().insert(at, '\\');
    }
    safe
}

/// Returns true if `escaped` doesn't change the text.
pub fn is_safe(text: &str) -> bool {
    matches!(escaped(text), Cow::Borrowed(_))
}

/// Returns the position inside each prefix that a CI agent recognizes as a command in a step's log: `##vso[` (Azure Pipelines),
/// `##[` (both it and GitHub Actions) and `##teamcity[` anywhere, and GitHub's `::` at the start of a word. GitHub obeys that
/// only at the start of a line, but a table or a line break may move a word there.
fn commands_in(text: &str) -> Vec<usize> {
    let pairs = text.as_bytes().windows(2).enumerate();
    let commands = pairs.filter(|(at, pair)| match *pair {
        b"##" => {
            let name = |c: char| c.is_ascii_alphabetic();
            text[at + 2..].trim_start_matches(name).starts_with('[')
        }
        b"::" => text[..*at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace),
        _ => false,
    });
    commands.map(|(at, _)| at + 1).collect()
}

/// Makes JSON as safe as [`escaped`] does, without a change for a parser. The characters to escape are only within JSON
/// strings. A line of JSON never begins with `::`.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    let safe = escape_with(json, |c| format!("\\u{:04x}", u32::from(c)));
    if safe.contains("##") {
        return safe.replace("##", "#\\u0023").into();
    }
    safe
}

fn escape_with(text: &str, escape: impl Fn(char) -> String) -> Cow<'_, str> {
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
            safe += &escape(c);
        } else {
            safe.push(c);
        }
    }
    Cow::Owned(safe)
}

/// Returns a time in RFC 3339 with milliseconds, or `None` after the year 9999.
pub fn timestamp(ms: u64) -> Option<String> {
    let last = 253_402_300_799_000; // the end of the year 9999
    (ms <= last).then(|| {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
    })
}

/// Returns the width of the terminal at standard output, if there is one, in columns.
pub fn width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(width.0.into())
}

/// Returns a place in line: `2nd`.
pub fn ordinal(number: u32) -> String {
    let ending = match (number % 100, number % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

/// Returns `1 warning`, `2 warnings`.
pub fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// Returns ` (and 3 more)`, or nothing.
pub fn and_more(count: usize) -> String {
    match count {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    }
}

/// Returns a duration in whole seconds.
pub fn whole_seconds(duration: Duration) -> String {
    duration::brief(Duration::from_secs(duration.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_redis_cannot_drive_the_terminal() {
        let shown = r"a\u{1b}[2Jb\nc\u{202e}";
        assert_eq!(escaped("a\u{1b}[2Jb\nc\u{202e}"), shown);
        assert_eq!(escaped("\u{9b}31m"), "\\u{9b}31m");
        assert_eq!(escaped("\u{61c}a\u{2028}"), "\\u{61c}a\\u{2028}");
        assert!(matches!(escaped("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn text_from_redis_is_no_command_to_a_ci_agent() {
        for (text, shown) in [
            ("a ##vso[x]", r"a #\#vso[x]"),
            ("##[x]###[y]", r"#\#[x]##\#[y]"),
            ("##teamcity[x]", r"#\#teamcity[x]"),
            ("::x::y", r":\:x::y"),
            (" \u{a0}::x é ::y", " \u{a0}:\\:x é :\\:y"),
            (":::x", r":\::x"),
        ] {
            assert_eq!(escaped(text), shown);
            assert_eq!(escaped(shown), shown);
        }
        for text in ["## [x]", "${0##*/}", "h::mod [::1]:80", "#[x]", "##é["] {
            assert!(is_safe(text), "{text}");
        }
    }

    #[test]
    fn json_is_no_command_to_a_ci_agent_and_the_same_to_a_parser() {
        for text in ["##vso[x]", "####[x]", "###[x]\u{202e}", r"\##[x]", "#[x]"] {
            let json = serde_json::json!(text).to_string();
            let safe = escaped_json(&json);
            assert!(!safe.contains("##"), "{safe}");
            assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        }
    }

    #[test]
    fn wide_characters_take_two_columns_and_combining_ones_none() {
        assert_eq!(["東京", "e\u{301}", "🚀", "ab"].map(columns), [4, 1, 2, 2]);
        assert_eq!(truncate("東京都", 6), "東京都");
        assert_eq!(truncate("東京都", 5), "東京…");
        assert_eq!(truncate("東京都", 4), "東…");
        assert_eq!(truncate("👩\u{200d}🚀👩\u{200d}🚀", 3), "👩\u{200d}🚀…");
        // A joiner never makes a name disappear.
        assert_eq!(truncate("a\u{200d}b\u{200d}c\u{200d}d", 3), "a\u{200d}b…");
        assert_eq!(truncate("e\u{301}e\u{301}e\u{301}", 2), "e\u{301}…");
        assert_eq!(truncate("ab", 0), "…");
        // A digit and a selector that makes it an emoji.
        let pictures = "5\u{fe0f}".repeat(9);
        assert_eq!(truncate(&pictures, 5), "5\u{fe0f}5\u{fe0f}…");
        for width in 1..40 {
            for text in ["東京東京東京東京@東京東京e\u{301}e\u{301}", &pictures] {
                assert!(columns(&truncate(text, width)) <= width);
            }
        }
    }

    #[test]
    fn a_place_has_its_ending() {
        let places = [1, 2, 3, 4, 11, 12, 13, 21, 22, 101, 111].map(ordinal);
        let places = places.join(" ");
        let expected = "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 101st 111th";
        assert_eq!(places, expected);
    }
}

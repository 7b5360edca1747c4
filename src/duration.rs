//! Durations for people. Each is one word that a shell and an option accept unchanged. Pure.

use std::time::Duration;

const DAY: u64 = 24 * 3600;

/// Formats a whole duration as an option accepts it: `1m30s`. The largest unit is days, because months differ in length.
pub fn exact(duration: Duration) -> String {
    let days = duration.as_secs() / DAY;
    let rest = duration.saturating_sub(Duration::from_secs(days * DAY));
    let text = humantime::format_duration(rest)
        .to_string()
        .replace(' ', "");
    match days {
        0 => text,
        days if rest.is_zero() => format!("{days}d"),
        days => format!("{days}d{text}"),
    }
}

/// Formats a duration with one or two units: `350ms`, `24s`, `3m20s`, `2h5m`.
pub fn brief(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let rounded = match seconds {
        0 => Duration::from_millis(duration.subsec_millis().into()),
        1..3600 => Duration::from_secs(seconds),
        3600..DAY => Duration::from_secs(seconds / 60 * 60),
        _ => Duration::from_secs(seconds / 3600 * 3600),
    };
    exact(rounded)
}

/// Returns a duration in whole milliseconds.
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_duration_is_one_word_that_an_option_takes() {
        for ms in [
            0,
            1,
            350,
            999,
            1_500,
            24_000,
            90_000,
            200_900,
            5_400_000,
            7_509_001,
            86_400_000,
            5_142_999_000,
            31_536_000_000,
        ] {
            let duration = Duration::from_millis(ms);
            let typed = exact(duration);
            assert_eq!(crate::cli::duration(&typed), Ok(duration), "{typed}");
            for text in [typed, brief(duration)] {
                assert!(!text.contains(char::is_whitespace), "{text}");
                assert!(crate::cli::duration(&text).is_ok(), "{text}");
            }
        }
    }

    #[test]
    fn a_brief_duration_has_two_units_at_most() {
        for (ms, text) in [
            (0, "0s"),
            (350, "350ms"),
            (24_400, "24s"),
            (200_900, "3m20s"),
            (7_509_000, "2h5m"),
            (86_400_000, "1d"),
            (5_142_999_000, "59d12h"),
        ] {
            assert_eq!(brief(Duration::from_millis(ms)), text);
        }
    }
}

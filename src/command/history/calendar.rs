//! Moments as a calendar shows them, in the local time zone or in UTC; and the round ones among them. Pure:
//! the local calendar is a function that is passed in.

use crate::sys::{CivilTime, utc_time};

/// A calendar: shows a moment, in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Calendar(pub fn(i64) -> CivilTime);

/// The end of the year 9999, in milliseconds since 1970: no calendar here goes further.
const LAST: u64 = 253_402_300_799_000;

const NAMES: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Distances of ticks, in seconds: up to two days, then whole weeks.
const STEPS: [i64; 19] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400,
    172_800,
];
const DAY: i64 = 86_400;
const WEEK: i64 = 7 * DAY;

/// Monday before 1970-01-01, which was a Thursday: steps are counted from there.
const MONDAY: i64 = -3 * DAY;

/// Returns a moment in UTC.
pub fn utc(seconds: i64) -> CivilTime {
    utc_time(seconds).expect("the calendar has the moments up to the year 9999")
}

impl Calendar {
    #[cfg(test)]
    pub const UTC: Self = Self(utc);

    /// Shows a moment in milliseconds; `-` if it is past the calendar's end.
    fn show(self, ms: u64, text: impl FnOnce(&CivilTime) -> String) -> String {
        match i64::try_from(ms / 1000) {
            Ok(seconds) if ms <= LAST => text(&(self.0)(seconds)),
            _ => "-".into(),
        }
    }

    /// Returns a moment in full: `2026-11-22 08:15:02 CET`.
    pub fn moment(self, ms: u64) -> String {
        self.show(ms, |civil| {
            format!("{:04}-{} {}", civil.year, clock(civil), civil.zone)
        })
    }

    /// Returns `11-22 08:15:02`, with the zone only if it isn't this one.
    pub fn brief(self, ms: u64, zone: &str) -> String {
        self.show(ms, |civil| {
            let clock = clock(civil);
            if civil.zone == zone {
                clock
            } else {
                format!("{clock} {}", civil.zone)
            }
        })
    }

    /// Returns `08:15`, with the date unless it is that of `now_ms`: `11-22 08:15`.
    pub fn minute(self, ms: u64, now_ms: u64) -> String {
        let (moment, now) = (self.moment(ms), self.moment(now_ms));
        let is_today = moment.split(' ').next() == now.split(' ').next();
        self.show(ms, |civil| {
            let text = clock(civil);
            let start = if is_today { "11-22 ".len() } else { 0 };
            text[start..text.len() - ":00".len()].to_owned()
        })
    }

    /// Returns the name of the zone at a moment.
    pub fn zone(self, ms: u64) -> String {
        self.show(ms, |civil| civil.zone.clone())
    }

    /// Returns the local round moments from one moment to another, in milliseconds, and their labels: at most `most` or
    /// one more. If the clock is set back they are further apart, if it is set forward closer together.
    pub fn ticks(self, from_ms: u64, to_ms: u64, most: u64) -> Vec<(u64, String)> {
        let from = from_ms.min(LAST).div_ceil(1000).cast_signed();
        let to = (to_ms.min(LAST) / 1000).cast_signed();
        let (span, most) = (to - from, most.cast_signed());
        let weeks = WEEK * (span / most / WEEK + 1);
        let step = STEPS.into_iter().find(|step| span / step < most);
        let step = step.unwrap_or(weeks);
        let number_at =
            |seconds: i64| (seconds + (self.0)(seconds).ahead - MONDAY).div_euclid(step);
        let numbers = number_at(from)..=number_at(to) + 1;
        let moments = numbers.filter_map(|number| self.moment_of(number * step + MONDAY));
        let mut moments: Vec<i64> = moments.filter(|it| (from..=to).contains(it)).collect();
        moments.dedup_by(|next, last| next <= last);
        let tick = |seconds: i64| (seconds.cast_unsigned() * 1000, self.label(seconds, step));
        moments.into_iter().map(tick).collect()
    }

    /// Returns when the local clock shows this, in seconds; `None` if it leaves that out.
    fn moment_of(self, local: i64) -> Option<i64> {
        let ahead = |seconds: i64| (self.0)(seconds).ahead;
        let seconds = (0..3).fold(local, |seconds, _| local - ahead(seconds));
        (seconds + ahead(seconds) == local).then_some(seconds)
    }

    fn label(self, seconds: i64, step: i64) -> String {
        let civil = (self.0)(seconds);
        let (hour, minute, day) = (civil.hour, civil.minute, civil.day);
        let month = NAMES[civil.month as usize - 1];
        match step {
            ..60 => format!("{hour:02}:{minute:02}:{:02}", civil.second),
            // At midnight another day begins.
            60..DAY if (hour, minute) != (0, 0) => format!("{hour:02}:{minute:02}"),
            60..=WEEK => format!("{day} {month}"),
            _ => format!("{day} {month} {}", civil.year),
        }
    }
}

/// Returns `11-22 08:15:02`.
fn clock(civil: &CivilTime) -> String {
    format!(
        "{:02}-{:02} {:02}:{:02}:{:02}",
        civil.month, civil.day, civil.hour, civil.minute, civil.second
    )
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Central Europe, as far as 2026 goes: summer time ends on 25 October at 01:00 UTC, and begins on 29
    /// March.
    pub fn berlin(seconds: i64) -> CivilTime {
        let is_summer = (1_774_746_000..1_792_890_000).contains(&seconds);
        let ahead = if is_summer { 7200 } else { 3600 };
        CivilTime {
            ahead,
            zone: if is_summer { "CEST" } else { "CET" }.into(),
            ..utc(seconds + ahead)
        }
    }

    const BERLIN: Calendar = Calendar(berlin);

    /// The milliseconds of a moment in UTC.
    fn ms(text: &str) -> u64 {
        let moment = humantime::parse_rfc3339(text).unwrap();
        let since = moment.duration_since(std::time::UNIX_EPOCH).unwrap();
        since.as_secs() * 1000
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for seconds in [0, 951_782_400, 1_709_210_096, 1_792_890_000, 4_107_542_399] {
            let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            let expected = humantime::format_rfc3339_seconds(at).to_string();
            let shown = Calendar::UTC.moment(seconds * 1000);
            let expected = expected.replace('T', " ").replace('Z', " UTC");
            assert_eq!(shown, expected);
        }
        assert_eq!(Calendar::UTC.moment(u64::MAX), "-");
    }

    #[test]
    fn the_zone_is_named_and_left_out_where_a_heading_names_it() {
        let (summer, winter) = (ms("2026-10-25T00:59:59Z"), ms("2026-10-25T01:00:00Z"));
        assert_eq!(BERLIN.moment(summer), "2026-10-25 02:59:59 CEST");
        assert_eq!(BERLIN.moment(winter), "2026-10-25 02:00:00 CET");
        assert_eq!(BERLIN.brief(winter, "CET"), "10-25 02:00:00");
        assert_eq!(BERLIN.brief(summer, "CET"), "10-25 02:59:59 CEST");
        assert_eq!(BERLIN.minute(summer, winter), "02:59");
        let midnight = ms("2026-10-25T23:00:00Z");
        assert_eq!(BERLIN.minute(summer, midnight), "10-25 02:59");
    }

    #[test]
    fn ticks_are_round_in_local_time_at_any_span() {
        for row in [
            "2026-11-22T08:15:01Z 2026-11-22T08:15:19Z 09:15:05, 09:15:10, 09:15:15",
            "2026-11-21T20:00:00Z 2026-11-22T20:00:00Z 22 Nov, 06:00, 12:00, 18:00",
            "2026-11-21T12:00:00Z 2026-11-24T12:00:00Z 22 Nov, 12:00, 23 Nov, 12:00, 24 Nov, 12:00",
            // Over the end of summer time: midnight stays midnight.
            "2026-10-22T12:00:00Z 2026-10-28T12:00:00Z 23 Oct, 24 Oct, 25 Oct, 26 Oct, 27 Oct, 28 Oct",
            // Mondays.
            "2026-10-26T12:00:00Z 2026-11-26T12:00:00Z 2 Nov, 9 Nov, 16 Nov, 23 Nov",
            // Whole weeks, with their year.
            "2026-06-10T12:00:00Z 2026-11-26T12:00:00Z 29 Jun 2026, 27 Jul 2026, …",
        ] {
            let [from, to, expected] = row.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                panic!("{row}");
            };
            let ticks = BERLIN.ticks(ms(from), ms(to), 8).into_iter();
            let labels: Vec<String> = ticks.map(|(_, label)| label).collect();
            let labels = labels.join(", ");
            match expected.strip_suffix('…') {
                Some(begin) => assert!(labels.starts_with(begin), "{labels}"),
                None => assert_eq!(labels, expected),
            }
        }
    }

    #[test]
    fn an_hour_that_the_clock_shows_twice_has_one_tick() {
        let ticks = BERLIN.ticks(ms("2026-10-24T23:30:00Z"), ms("2026-10-25T03:30:00Z"), 8);
        let (times, labels): (Vec<u64>, Vec<String>) = ticks.into_iter().unzip();
        assert!(times.is_sorted(), "{labels:?}");
        assert!(labels.contains(&"03:00".into()), "{labels:?}");
        // In spring it leaves an hour out.
        let ticks = BERLIN.ticks(ms("2026-03-29T00:30:00Z"), ms("2026-03-29T02:30:00Z"), 5);
        let labels: Vec<String> = ticks.into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["01:30", "03:00", "03:30", "04:00", "04:30"]);
    }

    #[test]
    fn however_long_the_time_is_there_are_few_ticks() {
        for to in [1, 999, 200_000, 1 << 40, LAST, u64::MAX] {
            for most in [1, 2, 8, 20] {
                let ticks = Calendar::UTC.ticks(0, to, most);
                assert!(ticks.len() as u64 <= most + 1, "{to} {most}: {ticks:?}");
            }
        }
    }
}

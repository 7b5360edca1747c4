//! Moments as a calendar shows them, in the local time zone or in UTC; and the round ones among them. Pure:
//! the local calendar is a function that is passed in.

use crate::sys::{CivilTime, midnight_utc, utc_time};

/// How a moment, in seconds since 1970, is called.
#[derive(Clone, Copy, Debug)]
pub struct Calendar(pub fn(i64) -> CivilTime);

/// The end of the year 9999, in milliseconds since 1970: no calendar here goes further.
const LAST: u64 = 253_402_300_799_000;

const DAY: i64 = 86_400;

const NAMES: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The distances that ticks may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Seconds(i64),
    /// Counted from a Monday.
    Days(i64),
    Months(i64),
}

const SECONDS: [i64; 17] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200,
];
const DAYS: [i64; 3] = [1, 2, 7];
const MONTHS: [i64; 6] = [1, 2, 3, 6, 12, 24];

impl Step {
    /// All, but for those of decades.
    fn all() -> impl Iterator<Item = Self> {
        let days = SECONDS
            .map(Self::Seconds)
            .into_iter()
            .chain(DAYS.map(Self::Days));
        days.chain(MONTHS.map(Self::Months))
    }

    /// Its length in seconds, or a little less.
    fn length(self) -> i64 {
        match self {
            Self::Seconds(seconds) => seconds,
            Self::Days(days) => days * DAY,
            Self::Months(months) => months * 30 * DAY,
        }
    }

    /// The number of the last step that begins at or before a local moment, and the moment at which
    /// the step of a number begins.
    fn number_at(self, local: i64) -> i64 {
        match self {
            Self::Seconds(seconds) => local.div_euclid(seconds),
            // 1970-01-01 was a Thursday.
            Self::Days(days) => (local.div_euclid(DAY) + 3).div_euclid(days),
            Self::Months(months) => {
                let civil = utc(local);
                (civil.year * 12 + i64::from(civil.month) - 1).div_euclid(months)
            }
        }
    }

    fn start_of(self, number: i64) -> Option<i64> {
        match self {
            Self::Seconds(seconds) => Some(number * seconds),
            Self::Days(days) => Some((number * days - 3) * DAY),
            Self::Months(months) => midnight_utc(0, number * months, 1),
        }
    }
}

/// A moment in UTC.
pub fn utc(seconds: i64) -> CivilTime {
    utc_time(seconds).expect("the calendar has the moments up to the year 9999")
}

impl Calendar {
    #[cfg(test)]
    pub const UTC: Self = Self(utc);

    fn civil(self, ms: u64) -> Option<CivilTime> {
        let seconds = i64::try_from(ms / 1000).ok()?;
        (ms <= LAST).then(|| (self.0)(seconds))
    }

    /// `2026-11-22 08:15:02 CET`.
    pub fn moment(self, ms: u64) -> String {
        self.civil(ms).map_or("-".into(), |civil| {
            format!("{:04}-{} {}", civil.year, clock(&civil), civil.zone)
        })
    }

    /// `11-22 08:15:02`, with the zone only where that isn't this one.
    pub fn brief(self, ms: u64, zone: &str) -> String {
        self.civil(ms).map_or("-".into(), |civil| {
            let clock = clock(&civil);
            if civil.zone == zone {
                clock
            } else {
                format!("{clock} {}", civil.zone)
            }
        })
    }

    /// `08:15`, with the date unless it is that of `now_ms`: `11-22 08:15`.
    pub fn minute(self, ms: u64, now_ms: u64) -> String {
        self.civil(ms).map_or("-".into(), |civil| {
            let day = |civil: &CivilTime| (civil.year, civil.month, civil.day);
            let text = clock(&civil);
            let text = &text[..text.len() - ":00".len()];
            match self.civil(now_ms) {
                Some(now) if day(&now) == day(&civil) => text["11-22 ".len()..].to_owned(),
                _ => text.to_owned(),
            }
        })
    }

    /// The name of the zone at a moment.
    pub fn zone(self, ms: u64) -> String {
        self.civil(ms).map_or("-".into(), |civil| civil.zone)
    }

    /// The local round moments from one moment to another, in milliseconds, and their labels: at most `most` or
    /// one more. Where the clock is set back they are further apart, where it is set forward closer together.
    pub fn ticks(self, from_ms: u64, to_ms: u64, most: u64) -> Vec<(u64, String)> {
        let (from_ms, to_ms) = (from_ms.min(LAST), to_ms.min(LAST));
        let seconds = |ms: u64| i64::try_from(ms / 1000).unwrap_or_default();
        let span = seconds(to_ms.saturating_sub(from_ms));
        let most = i64::try_from(most).unwrap_or(i64::MAX).max(1);
        // Whole decades, as many as it takes: a server's clock may say anything.
        let decades = || Step::Months(120 * (span / most / (119 * 30 * DAY) + 1));
        let fits = |step: &Step| span / step.length() < most;
        let step = Step::all().find(fits).unwrap_or_else(decades);
        let local = |ms: u64| seconds(ms) + (self.0)(seconds(ms)).ahead;
        let numbers = step.number_at(local(from_ms)) - 1..=step.number_at(local(to_ms)) + 1;
        let mut ticks: Vec<(u64, String)> = Vec::new();
        for number in numbers {
            let Some(ms) = step
                .start_of(number)
                .and_then(|start| self.moment_of(start))
            else {
                continue;
            };
            if (from_ms..=to_ms).contains(&ms) && ticks.last().is_none_or(|(last, _)| *last < ms) {
                ticks.push((ms, self.label(ms, step)));
            }
        }
        ticks
    }

    /// When the local clock shows this, in milliseconds; `None` where it leaves that out.
    fn moment_of(self, local: i64) -> Option<u64> {
        let mut seconds = local;
        for _ in 0..3 {
            seconds = local - (self.0)(seconds).ahead;
        }
        let shows = seconds + (self.0)(seconds).ahead;
        let ms = u64::try_from(seconds).ok()?.checked_mul(1000)?;
        (shows == local).then_some(ms)
    }

    fn label(self, ms: u64, step: Step) -> String {
        let Some(civil) = self.civil(ms) else {
            return String::new();
        };
        let CivilTime {
            year,
            month,
            day,
            hour,
            minute,
            second,
            ..
        } = civil;
        let name = NAMES.get(month as usize - 1).copied().unwrap_or("?");
        match step {
            Step::Seconds(..60) => format!("{hour:02}:{minute:02}:{second:02}"),
            // At midnight another day begins.
            Step::Seconds(_) if (hour, minute) != (0, 0) => format!("{hour:02}:{minute:02}"),
            Step::Seconds(_) | Step::Days(_) => format!("{day} {name}"),
            Step::Months(..12) => format!("{name} {year}"),
            Step::Months(_) => format!("{year}"),
        }
    }
}

/// `11-22 08:15:02`.
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
        for day in (0..80_000).chain([2_932_896]) {
            let civil = utc(day * DAY);
            let (month, date) = (i64::from(civil.month) - 1, i64::from(civil.day));
            let expected = Some(day * DAY);
            assert_eq!(midnight_utc(civil.year, month, date), expected);
            assert_eq!(midnight_utc(0, civil.year * 12 + month, date), expected);
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
        assert_eq!(
            BERLIN.minute(summer, ms("2026-10-25T23:00:00Z")),
            "10-25 02:59"
        );
    }

    #[test]
    fn ticks_are_round_in_local_time_at_any_span() {
        let labels = |from: &str, to: &str| -> Vec<String> {
            let ticks = BERLIN.ticks(ms(from), ms(to), 8);
            ticks.into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(
            labels("2026-11-22T08:15:01Z", "2026-11-22T08:15:19Z"),
            ["09:15:05", "09:15:10", "09:15:15"]
        );
        assert_eq!(
            labels("2026-11-21T20:00:00Z", "2026-11-22T20:00:00Z"),
            ["22 Nov", "06:00", "12:00", "18:00"]
        );
        assert_eq!(
            labels("2026-11-21T12:00:00Z", "2026-11-24T12:00:00Z"),
            ["22 Nov", "12:00", "23 Nov", "12:00", "24 Nov", "12:00"]
        );
        // Over the end of summer time: midnight stays midnight.
        assert_eq!(
            labels("2026-10-22T12:00:00Z", "2026-10-28T12:00:00Z"),
            ["23 Oct", "24 Oct", "25 Oct", "26 Oct", "27 Oct", "28 Oct"]
        );
        // Mondays.
        assert_eq!(
            labels("2026-10-26T12:00:00Z", "2026-11-26T12:00:00Z"),
            ["2 Nov", "9 Nov", "16 Nov", "23 Nov"]
        );
        assert_eq!(
            labels("2026-06-10T12:00:00Z", "2026-11-26T12:00:00Z"),
            ["Jul 2026", "Aug 2026", "Sep 2026", "Oct 2026", "Nov 2026"]
        );
        assert_eq!(
            labels("1970-01-01T00:00:00Z", "2026-11-26T12:00:00Z").len(),
            5
        );
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

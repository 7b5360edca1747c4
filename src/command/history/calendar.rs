//! Times as a calendar shows them, in the local time zone or in UTC. Pure, because the calendar is a parameter.

/// A calendar: shows a time, in seconds since 1970, as `2026-11-22 08:15:02 CET`.
#[derive(Clone, Copy, Debug)]
pub struct Calendar(pub fn(i64) -> Option<String>);

/// End of the year 9999, in milliseconds since 1970: no calendar here goes further.
const LAST: u64 = 253_402_300_799_000;

impl Calendar {
    #[cfg(test)]
    pub const UTC: Self = Self(tests::utc_time);

    /// Returns the full text of a time in milliseconds since 1970, or `-` if it is past the calendar's end.
    pub fn moment(self, ms: u64) -> String {
        let seconds = i64::try_from(ms / 1000).ok().filter(|_| ms <= LAST);
        seconds.and_then(self.0).unwrap_or("-".into())
    }

    /// Returns `11-22 08:15:02`, followed by the time zone unless it is `zone`.
    pub fn brief(self, ms: u64, zone: &str) -> String {
        let moment = self.moment(ms);
        let brief = moment.get("2026-".len()..).unwrap_or(&moment);
        let zone = format!(" {zone}");
        brief.strip_suffix(&zone).unwrap_or(brief).to_owned()
    }

    /// Returns `08:15`, preceded by the date unless it is the date of `now_ms`: `11-22 08:15`.
    pub fn minute(self, ms: u64, now_ms: u64) -> String {
        let (moment, now) = (self.moment(ms), self.moment(now_ms));
        let is_today = moment.split(' ').next() == now.split(' ').next();
        let start = if is_today { "2026-11-22 " } else { "2026-" }.len();
        let minute = moment.get(start.."2026-11-22 08:15".len());
        minute.unwrap_or(&moment).to_owned()
    }

    /// Returns the name of the time zone at a time.
    pub fn zone(self, ms: u64) -> String {
        let moment = self.moment(ms);
        moment.rsplit(' ').next().unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of a time in UTC.
    pub(super) fn utc_time(seconds: i64) -> Option<String> {
        let since = std::time::Duration::from_secs(seconds.try_into().ok()?);
        let moment = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since);
        Some(moment.to_string().replace('T', " ").replace('Z', " UTC"))
    }

    /// Central Europe in 2026: summer time begins on 29 March and ends on 25 October, at 01:00 UTC.
    fn berlin(seconds: i64) -> Option<String> {
        let is_summer = (1_774_746_000..1_792_890_000).contains(&seconds);
        let (ahead, zone) = if is_summer {
            (7200, "CEST")
        } else {
            (3600, "CET")
        };
        Some(utc_time(seconds + ahead)?.replace("UTC", zone))
    }

    const BERLIN: Calendar = Calendar(berlin);

    /// Returns the milliseconds of a time in UTC.
    fn ms(text: &str) -> u64 {
        let moment = humantime::parse_rfc3339(text).unwrap();
        let since = moment.duration_since(std::time::UNIX_EPOCH).unwrap();
        since.as_secs() * 1000
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
        assert_eq!(BERLIN.moment(u64::MAX), "-");
    }
}

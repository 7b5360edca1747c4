//! Round trips to the server: the latency, and the difference between the clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::finding::{Finding, fail, ok, short, warn};
use crate::decide::lease::renewal_interval;
use crate::report::format_duration;

/// Largest number of round trips to measure, and the time for them.
const MOST: usize = 40;
const WITHIN: Duration = Duration::from_millis(250);

/// Part of the renewal interval that a renewal should not exceed.
const SLOW: u32 = 10;

/// Difference of clocks from which users can't compare times.
const CLOCKS_APART: Duration = Duration::from_secs(10);

/// Requests the time repeatedly, and judges the latency and the clocks.
pub fn examine<E>(
    ttl: Duration,
    until: Instant,
    mut ask: impl FnMut() -> Result<Vec<String>, E>,
) -> Result<[Finding; 2], E> {
    let end = until.min(Instant::now() + WITHIN);
    let mut trips = Vec::new();
    while trips.len() < MOST && (trips.is_empty() || Instant::now() < end) {
        let (began, now) = (Instant::now(), SystemTime::now());
        match ask() {
            Ok(time) => trips.push((began.elapsed(), now, time)),
            Err(error) if trips.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    // The shortest round trip gives the most exact time.
    trips.sort_by_key(|(took, ..)| *took);
    let (took, now, time) = &trips[0];
    let times: Vec<Duration> = trips.iter().map(|(took, ..)| *took).collect();
    Ok([latency(&times, ttl), clock(*took, *now, time)])
}

/// Judges round trips, which are sorted. Their maximum is also their 99th percentile, because they are so few.
fn latency(times: &[Duration], ttl: Duration) -> Finding {
    let (p50, max) = (times[(times.len() - 1) / 2], times[times.len() - 1]);
    let renewal = renewal_interval(ttl);
    let interval = format_duration(renewal);
    let [median, slowest] = [p50, max].map(short);
    let message = format!("p50 {median}, max {slowest}; one renewal every {interval}");
    let longer = Duration::from_secs((max * 3 * SLOW).as_secs() + 1);
    let fix = format!("a longer TTL: --ttl {}", format_duration(longer));
    let finding = match max {
        _ if max >= renewal => fail(message, fix),
        _ if max >= renewal / SLOW => warn(message, fix),
        _ => ok(message),
    };
    let [p50, max] = [p50, max].map(|it| it.as_micros());
    finding.with(json!({"p50_us": p50, "p99_us": max, "max_us": max}))
}

/// Judges the server's clock by its reply to a TIME that was sent at `now`.
fn clock(took: Duration, now: SystemTime, time: &[String]) -> Finding {
    let part = |at: usize| time.get(at)?.parse::<i64>().ok();
    let theirs = part(0).unwrap_or(0).saturating_mul(1_000_000);
    let theirs = theirs.saturating_add(part(1).unwrap_or(0));
    let ours = now.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
    let ours = i64::try_from(ours.as_micros()).unwrap_or(i64::MAX);
    let ahead = theirs.saturating_sub(ours);
    let apart = Duration::from_micros(ahead.unsigned_abs());
    let difference = format_duration(apart);
    let message = format!("{difference} between the server's clock and this host's");
    let finding = if apart >= CLOCKS_APART {
        let message = format!("{message}; status and history show the server's time");
        warn(message, "synchronise the hosts' clocks (NTP)")
    } else {
        ok(message)
    };
    finding.with(json!({"server_ahead_us": ahead}))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn latency_and_clocks_are_judged_by_their_round_trips() {
        let ms = Duration::from_millis;
        for (slowest, level) in [(99, Level::Ok), (100, Level::Warn), (1000, Level::Fail)] {
            let times = [ms(1), ms(slowest)];
            assert_eq!(latency(&times, ms(3000)).level, level, "{slowest}");
        }
        let now = UNIX_EPOCH + ms(1_000_000);
        for (seconds, level) in [
            ("1000", Level::Ok),
            ("1010", Level::Warn),
            ("989", Level::Warn),
        ] {
            let time = [seconds.to_owned(), "1000".to_owned()];
            assert_eq!(clock(ms(2), now, &time).level, level, "{seconds}");
        }
    }
}

//! Locks as metrics, in the text format of Prometheus. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use crate::protocol::{Hold, Inspected, RESULTS};

/// A metric that has one value a lock: its name, its meaning and the value, if it is known.
type Metric = (&'static str, &'static str, fn(&Inspected) -> Option<f64>);

const METRICS: [Metric; 8] = [
    ("redlock_held", "How many holders the lock has.", |lock| {
        Some(count(lock.holders().count()))
    }),
    (
        "redlock_held_seconds",
        "For how long the oldest holder has held the lock; 0 if it is free.",
        |lock| {
            let is_held = lock.holders().next().is_some();
            lock.held_for()
                .or((!is_held).then_some(Duration::ZERO))
                .map(seconds)
        },
    ),
    (
        "redlock_waiting",
        "How many runs wait for the lock.",
        |lock| Some(count(lock.waiters.len() + lock.grants().count())),
    ),
    (
        "redlock_oldest_wait_seconds",
        "For how long the oldest waiter has waited for the lock; 0 if nobody waits.",
        |lock| Some(seconds(lock.waited_for().unwrap_or_default())),
    ),
    (
        "redlock_frozen",
        "1 if the lock is frozen, so that it admits no new holder; else 0.",
        |lock| Some(f64::from(u8::from(lock.frozen.is_some()))),
    ),
    (
        "redlock_guards",
        "How many guards work elsewhere under the lock.",
        |lock| {
            Some(count(
                lock.holds().iter().map(|hold| hold.guards.len()).sum(),
            ))
        },
    ),
    (
        "redlock_last_renewal_seconds",
        "How long ago the lease was renewed; of several leases, the one renewed least recently.",
        |lock| {
            lock.holders()
                .filter_map(Hold::renewed_ago)
                .max()
                .map(seconds)
        },
    ),
    (
        "redlock_last_success_timestamp_seconds",
        "When a run last succeeded, in seconds since 1970.",
        |lock| lock.record.succeeded_ms.map(timestamp),
    ),
];

/// Returns the metrics of locks that were read at this moment, in milliseconds since 1970.
pub fn text(locks: &[&Inspected], now_ms: u64) -> String {
    let mut text = up(true);
    let name = "redlock_last_scrape_timestamp_seconds";
    let help = "When redlock read the locks, in seconds since 1970.";
    let line = format!("{name} {}\n", timestamp(now_ms));
    add(&mut text, (name, "gauge", help), &line);
    let names = || locks.iter().map(|lock| (*lock, quoted(lock.name.as_str())));
    for (metric, help, value) in METRICS {
        let mut lines = String::new();
        for (lock, name) in names() {
            if let Some(value) = value(lock) {
                let _ = writeln!(lines, "{metric}{{lock={name}}} {value}");
            }
        }
        add(&mut text, (metric, "gauge", help), &lines);
    }
    let name = "redlock_runs_total";
    let help = "How many holds ended, by result; skipped: runs that ended without the lock.";
    let mut lines = String::new();
    for (lock, of) in names() {
        for (result, count) in RESULTS.iter().zip(lock.record.ended) {
            let _ = writeln!(lines, "{name}{{lock={of},result=\"{result}\"}} {count}");
        }
    }
    add(&mut text, (name, "counter", help), &lines);
    text
}

/// Returns the only metric if Redis didn't answer.
pub fn down() -> String {
    up(false)
}

fn up(is_up: bool) -> String {
    let mut text = String::new();
    let name = "redlock_up";
    let line = format!("{name} {}\n", u8::from(is_up));
    add(
        &mut text,
        (name, "gauge", "1 if Redis answered, else 0."),
        &line,
    );
    text
}

/// Adds the lines of a metric, if there are any, below its name, its type and what it means.
fn add(text: &mut String, (name, kind, help): (&str, &str, &str), lines: &str) {
    if !lines.is_empty() {
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    }
}

/// The value of a label.
fn quoted(value: &str) -> String {
    let value = value.replace('\\', r"\\");
    let value = value.replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{value}\"")
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn timestamp(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

fn count(number: usize) -> f64 {
    u32::try_from(number).unwrap_or(u32::MAX).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::protocol::golden::{NOW, locks};

    /// Returns the name and the labels in front of a value.
    fn series(line: &str) -> (&str, &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        series.split_at(series.find('{').unwrap_or(series.len()))
    }

    #[test]
    fn values_stand_together_below_their_meaning_and_no_series_is_there_twice() {
        let locks = locks();
        let text = text(&locks.iter().collect::<Vec<_>>(), NOW);
        assert_eq!(down().lines().last(), Some("redlock_up 0"));
        let (mut metrics, mut all) = (BTreeSet::new(), BTreeSet::new());
        // `lines` would accept a carriage return.
        let mut lines = text.strip_suffix('\n').unwrap().split('\n').peekable();
        while let Some(help) = lines.next() {
            let help = help.strip_prefix("# HELP ").unwrap();
            let metric = help.split(' ').next().unwrap();
            assert!(metrics.insert(metric), "{metric} again");
            let is_total = metric.ends_with("_total");
            let kind = if is_total { "counter" } else { "gauge" };
            let kind = format!("# TYPE {metric} {kind}");
            assert_eq!(lines.next(), Some(kind.as_str()));
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                assert_eq!(series(line).0, metric);
                assert!(all.insert(series(line)), "{line} again");
            }
        }
        assert_eq!(metrics.len(), METRICS.len() + 3);
    }

    #[test]
    fn a_label_is_quoted() {
        assert_eq!(quoted("a\"b\\c\nd=é"), r#""a\"b\\c\nd=é""#);
    }
}

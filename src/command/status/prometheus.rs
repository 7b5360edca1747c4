//! Locks as metrics, in the text format of Prometheus. Pure.

use std::time::Duration;

use crate::protocol::{Hold, Inspected, RESULTS};

/// Metrics with one value per lock, each with its description, in the order of [`values`].
const METRICS: &str = "\
redlock_held How many holders the lock has.
redlock_held_seconds For how long the oldest holder has held the lock; 0 if it is free.
redlock_waiting How many runs wait for the lock.
redlock_oldest_wait_seconds For how long the oldest waiter has waited for the lock; 0 if nobody waits.
redlock_frozen 1 if the lock is frozen, so that it admits no new holder; else 0.
redlock_guards How many guards work elsewhere under the lock.
redlock_last_renewal_seconds How long ago the lease was renewed; of several leases, the one renewed least recently.
redlock_last_success_timestamp_seconds When a run last succeeded, in seconds since 1970.";

/// Returns the values of a lock, as far as they are known.
fn values(lock: &Inspected) -> [Option<f64>; 8] {
    let is_free = lock.holders().next().is_none();
    let held_for = lock.held_for().or(is_free.then_some(Duration::ZERO));
    let guards = lock.holds().iter().map(|hold| hold.guards.len());
    let renewed_ago = lock.holders().filter_map(Hold::renewed_ago).max();
    [
        Some(count(lock.holders().count())),
        held_for.map(|it| it.as_secs_f64()),
        Some(count(lock.waiters.len() + lock.grants().count())),
        Some(lock.waited_for().unwrap_or_default().as_secs_f64()),
        Some(count(usize::from(lock.frozen.is_some()))),
        Some(count(guards.sum())),
        renewed_ago.map(|it| it.as_secs_f64()),
        lock.record.succeeded_ms.map(timestamp),
    ]
}

/// Returns the metrics of locks that were read at `now_ms`, in milliseconds since 1970.
pub fn text(locks: &[&Inspected], now_ms: u64) -> String {
    let names = locks.iter().map(|lock| quoted(lock.name.as_str()));
    let names: Vec<String> = names.collect();
    let locks = || names.iter().zip(locks);
    let mut text = up(true);
    let name = "redlock_last_scrape_timestamp_seconds";
    let help = "When redlock read the locks, in seconds since 1970.";
    let now = format!(" {}", timestamp(now_ms));
    text += &metric([name, "gauge", help], [now]);
    for (number, line) in METRICS.lines().enumerate() {
        let (name, help) = line.split_once(' ').unwrap_or_default();
        let values = locks().filter_map(|(name, lock)| Some((name, values(lock)[number]?)));
        let series = values.map(|(name, value)| format!("{{lock={name}}} {value}"));
        text += &metric([name, "gauge", help], series);
    }
    let help = "How many holds ended, by result; skipped: runs that ended without the lock.";
    let series = locks().flat_map(|(name, lock)| {
        let counts = RESULTS.into_iter().zip(lock.record.ended);
        counts.map(move |(result, count)| format!("{{lock={name},result=\"{result}\"}} {count}"))
    });
    text + &metric(["redlock_runs_total", "counter", help], series)
}

/// Returns the metric that says whether Redis answered. If not, it is the only metric.
pub fn up(is_up: bool) -> String {
    let up = ["redlock_up", "gauge", "1 if Redis answered, else 0."];
    metric(up, [format!(" {}", u8::from(is_up))])
}

/// Returns the series of a metric, if there are any, below its name,
/// type and description. Each series consists of labels and a value.
fn metric([name, kind, help]: [&str; 3], series: impl IntoIterator<Item = String>) -> String {
    let mut lines = String::new();
    for labelled in series {
        lines.extend([name, &labelled, "\n"]);
    }
    if lines.is_empty() {
        return lines;
    }
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}")
}

/// Returns the value of a label, quoted.
fn quoted(value: &str) -> String {
    let value = value.replace('\\', r"\\");
    let value = value.replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{value}\"")
}

fn timestamp(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

fn count(number: usize) -> f64 {
    u32::try_from(number).unwrap_or(u32::MAX).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_quoted() {
        assert_eq!(quoted("a\"b\\c\nd=é"), r#""a\"b\\c\nd=é""#);
    }
}

//! The history line by line, for people and for programs, and its totals. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::lock::{HistoryEntry, HoldOutcome, Limit, Name, Who};
use crate::report::{self, describe_job, escaped, escaped_json, format_duration, timestamp};

/// How long a hold lasted; one that still does, until now.
pub fn ran(entry: &HistoryEntry, now_ms: u64) -> Duration {
    let until = entry.ended_ms.unwrap_or(now_ms);
    Duration::from_millis(until.saturating_sub(entry.since_ms))
}

/// Whether it is over, and not as it should be.
pub fn failed(entry: &HistoryEntry) -> bool {
    !matches!(
        entry.outcome,
        HoldOutcome::Running | HoldOutcome::Status(0) | HoldOutcome::Released
    )
}

/// How it ended, in words.
pub fn ended(outcome: &HoldOutcome) -> String {
    let by = |what: &str, by: &Option<Who>| match by {
        Some(by) => format!("{what} by {}", report::user_at_host(by)),
        None => what.into(),
    };
    match outcome {
        HoldOutcome::Running => "running".into(),
        HoldOutcome::Status(0) => "ok".into(),
        HoldOutcome::Status(status) => format!("status {status}"),
        HoldOutcome::Signal(signal) => match Signal::try_from(*signal) {
            Ok(signal) => signal.as_str().into(),
            Err(_) => format!("signal {signal}"),
        },
        HoldOutcome::Timeout => "timed out".into(),
        HoldOutcome::Lost => "lost".into(),
        HoldOutcome::Cancelled(who) => by("cancelled", who),
        HoldOutcome::Forced(who) => by("forced", who),
        HoldOutcome::Expired => "expired".into(),
        HoldOutcome::Released => "released".into(),
    }
}

const COLUMNS: [&str; 8] = [
    "NAME", "STARTED", "WAITED", "RAN", "END", "WHO", "PID", "COMMAND",
];

/// A table with a line for each hold; where all are of one lock, without its name.
pub fn table(holds: &[HistoryEntry], now_ms: u64, width: Option<usize>) -> String {
    let one = holds.windows(2).all(|two| two[0].name == two[1].name);
    let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
    rows.extend(holds.iter().map(|entry| row(entry, now_ms)));
    for row in &mut rows {
        row.drain(..usize::from(one));
    }
    report::table(&rows, width)
}

fn row(entry: &HistoryEntry, now_ms: u64) -> Vec<String> {
    let started = timestamp(entry.since_ms).unwrap_or_default();
    // To the second, as people write it.
    let started = started.get(..19).unwrap_or_default().replace('T', " ");
    let who = format!("{}@{}", entry.who.user, entry.who.host);
    vec![
        entry.name.to_string(),
        started,
        format_duration(entry.waited),
        format_duration(ran(entry, now_ms)),
        escaped(&ended(&entry.outcome)).into_owned(),
        escaped(&who).into_owned(),
        entry.who.pid.to_string(),
        describe_job(&entry.who),
    ]
}

/// What is printed one after the other.
pub struct Lines {
    json: bool,
    one: bool,
    header: bool,
}

impl Lines {
    /// As JSON or for people; `one`: all are of one lock.
    pub fn new(json: bool, one: bool) -> Self {
        Self {
            json,
            one,
            header: !json,
        }
    }

    /// The line for a hold that has ended, after a header where it is the first.
    pub fn next(&mut self, entry: &HistoryEntry, now_ms: u64) -> Result<String> {
        if self.json {
            let json = serde_json::to_string(&HoldJson::new(entry, now_ms))?;
            return Ok(escaped_json(&json).into_owned() + "\n");
        }
        let mut rows = vec![row(entry, now_ms)];
        if std::mem::take(&mut self.header) {
            rows.insert(0, COLUMNS.map(str::to_owned).to_vec());
        }
        // Those to come should stand below each other, as far as that can be known.
        let widths = [12, 19, 7, 7, 9, 14, 7];
        for row in &mut rows {
            for (cell, width) in row.iter_mut().zip(widths) {
                *cell = format!("{cell:<width$}");
            }
            row.drain(..usize::from(self.one));
        }
        Ok(report::table(&rows, None))
    }
}

/// A line for each lock: how many, how long, how much of the time.
pub fn summary(holds: &[HistoryEntry], now_ms: u64) -> String {
    let mut locks: BTreeMap<&Name, Vec<&HistoryEntry>> = BTreeMap::new();
    for entry in holds {
        locks.entry(&entry.name).or_default().push(entry);
    }
    let mut text = String::new();
    for (name, holds) in locks {
        let runs = match holds.len() {
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs"),
        };
        let failed = holds.iter().filter(|entry| failed(entry)).count();
        let waited = percentiles(holds.iter().map(|entry| entry.waited).collect());
        let over = holds.iter().filter(|entry| entry.ended_ms.is_some());
        let lasted = percentiles(over.map(|entry| ran(entry, now_ms)).collect());
        let first = holds.iter().map(|entry| entry.since_ms).min();
        let span = now_ms.saturating_sub(first.unwrap_or(now_ms));
        let held = held_ms(&holds, now_ms);
        let share = (held * 100).checked_div(span).unwrap_or(0);
        let span = format_duration(Duration::from_millis(span));
        let _ = writeln!(
            text,
            "{}: {runs}, {failed} failed; waited {waited}; ran {lasted}; held {share} % of the last {span}",
            escaped(name.as_str())
        );
    }
    text
}

/// The median and the 95th percentile, by nearest rank.
fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let rank = |percent: usize| {
        let at = (times.len() * percent).div_ceil(100).max(1) - 1;
        times.get(at).copied().unwrap_or_default()
    };
    if times.is_empty() {
        return "-".into();
    }
    format!(
        "p50 {}, p95 {}",
        format_duration(rank(50)),
        format_duration(rank(95))
    )
}

/// How long it was held. Holds of a group overlap, and count once.
fn held_ms(holds: &[&HistoryEntry], now_ms: u64) -> u64 {
    let (mut held, mut until) = (0, 0);
    for entry in holds {
        let end = entry.ended_ms.unwrap_or(now_ms);
        held += end.saturating_sub(entry.since_ms.max(until));
        until = until.max(end);
    }
    held
}

/// A hold as JSON; the shape is part of the contract.
#[derive(Serialize)]
struct HoldJson<'a> {
    name: &'a str,
    id: &'a str,
    fence: u64,
    host: &'a str,
    user: &'a str,
    pid: u32,
    command: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    reason: Option<&'a str>,
    url: Option<&'a str>,
    mode: &'static str,
    slot: Option<u32>,
    since: Option<String>,
    ended: Option<String>,
    waited_ms: u64,
    ran_ms: u64,
    end: &'static str,
    status: Option<u8>,
    signal: Option<i32>,
    by: Option<By<'a>>,
}

#[derive(Serialize)]
struct By<'a> {
    host: &'a str,
    user: &'a str,
    pid: u32,
    reason: Option<&'a str>,
    url: Option<&'a str>,
}

impl<'a> HoldJson<'a> {
    fn new(entry: &'a HistoryEntry, now_ms: u64) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let HistoryEntry { who, outcome, .. } = entry;
        Self {
            name: entry.name.as_str(),
            id: &entry.id,
            fence: entry.fence,
            host: &who.host,
            user: &who.user,
            pid: who.pid,
            command: &who.command,
            label: who.label.as_deref(),
            reason: who.reason.as_deref(),
            url: who.url.as_deref(),
            mode: Limit::mode(entry.limit),
            slot: entry.limit.as_slots().map(|_| entry.slot),
            since: timestamp(entry.since_ms),
            ended: entry.ended_ms.and_then(timestamp),
            waited_ms: ms(entry.waited),
            ran_ms: ms(ran(entry, now_ms)),
            end: outcome.kind(),
            status: match outcome {
                HoldOutcome::Status(status) => Some(*status),
                _ => None,
            },
            signal: match outcome {
                HoldOutcome::Signal(signal) => Some(*signal),
                _ => None,
            },
            by: match outcome {
                HoldOutcome::Cancelled(by) | HoldOutcome::Forced(by) => by.as_ref().map(|by| By {
                    host: &by.host,
                    user: &by.user,
                    pid: by.pid,
                    reason: by.reason.as_deref(),
                    url: by.url.as_deref(),
                }),
                _ => None,
            },
        }
    }
}

/// All as an array.
pub fn json(holds: &[HistoryEntry], now_ms: u64) -> Result<String> {
    let entries: Vec<HoldJson> = holds
        .iter()
        .map(|entry| HoldJson::new(entry, now_ms))
        .collect();
    let json = serde_json::to_string(&entries)?;
    Ok(escaped_json(&json).into_owned() + "\n")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A hold of "a" by a host, from and to, in seconds.
    pub fn hold(host: &str, since: u64, until: Option<u64>, outcome: HoldOutcome) -> HistoryEntry {
        HistoryEntry {
            name: "a".parse().unwrap(),
            id: format!("{host}{since}"),
            fence: since,
            who: Who {
                host: host.into(),
                user: "u".into(),
                pid: 7,
                command: vec!["x".into(), "<&\">\u{1b}".into()],
                ..Who::default()
            },
            limit: Limit::EXCLUSIVE,
            slot: 1,
            since_ms: since * 1000,
            waited: Duration::from_secs(2),
            ended_ms: until.map(|until| until * 1000),
            outcome,
        }
    }

    #[test]
    fn a_summary_counts_what_overlaps_once() {
        let holds = [
            hold("h", 100, Some(110), HoldOutcome::Status(0)),
            hold("h", 105, Some(120), HoldOutcome::Lost),
            hold("i", 180, None, HoldOutcome::Running),
        ];
        assert_eq!(
            summary(&holds, 200_000),
            "a: 3 runs, 1 failed; waited p50 2s, p95 2s; ran p50 10s, p95 15s; held 40 % of the last 1m 40s\n"
        );
        assert_eq!(summary(&[], 5), "");
        let now = [hold("h", 5, None, HoldOutcome::Running)];
        assert!(summary(&now, 5000).contains("held 0 % of the last 0s"));
    }

    #[test]
    fn ranks_are_nearest_ranks() {
        let seconds =
            |all: &[u64]| percentiles(all.iter().map(|&s| Duration::from_secs(s)).collect());
        let hundred: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(seconds(&hundred), "p50 50s, p95 1m 35s");
        assert_eq!(seconds(&[3]), "p50 3s, p95 3s");
        assert_eq!(seconds(&[]), "-");
    }

    #[test]
    fn a_table_cannot_drive_the_terminal_and_fits_its_width() {
        let holds = [hold("h", 100, Some(110), HoldOutcome::Signal(15))];
        let text = table(&holds, 0, Some(60));
        assert!(
            text.lines().all(|line| line.chars().count() <= 60),
            "{text}"
        );
        let text = table(&holds, 0, None);
        assert!(
            text.starts_with("STARTED") && text.contains("SIGTERM"),
            "{text}"
        );
        assert!(text.contains("1970-01-01 00:01:40") && !text.contains('\u{1b}'));
    }
}

//! The history summed up, by lock or by lock and host. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::listing::{Item, failed, milliseconds, ran};
use crate::pattern::natural_cmp;
use crate::protocol::{HoldOutcome, Name};
use crate::report::{
    Cell, Column, Step, Style, Table, escaped, escaped_json, format_duration, timestamp, truncate,
};

/// What is known of the runs of a lock, or of those on one host.
#[derive(Debug, Default)]
struct Total {
    runs: usize,
    succeeded: usize,
    failed: usize,
    lost: usize,
    skipped: usize,
    /// There may have been more.
    runs_cut: bool,
    skips_cut: bool,
    /// Of those that are over.
    ran: Ranks,
    waited: Ranks,
    last_success_ms: Option<u64>,
}

/// How long it took.
#[derive(Debug, Default)]
struct Ranks {
    median: Option<Duration>,
    p95: Option<Duration>,
    longest: Option<Duration>,
}

impl Ranks {
    fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self {
            median: rank(&all, 50),
            p95: rank(&all, 95),
            longest: rank(&all, 100),
        }
    }
}

/// The totals, in the order of the names and hosts.
#[derive(Debug)]
pub struct Summary {
    by_host: bool,
    totals: Vec<((Name, String), Total)>,
}

/// The value at a percentage, by nearest rank.
fn rank(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}

impl Summary {
    pub fn new(by_host: bool) -> Self {
        Self {
            by_host,
            totals: Vec::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.totals.is_empty()
    }

    /// Sums up all that is known of some locks, whose names come after those before; `cut` says whether older
    /// holds, and skipped runs, may have been forgotten.
    pub fn add(&mut self, items: &[Item], cut: (bool, bool)) {
        let mut those: BTreeMap<(&Name, &str), Vec<&Item>> = BTreeMap::new();
        for item in items {
            let host = if self.by_host { &item.who().host } else { "" };
            those.entry((item.name(), host)).or_default().push(item);
        }
        let mut those: Vec<_> = those.into_iter().collect();
        those.sort_by(|((a, host), _), ((b, other), _)| {
            let names = natural_cmp(a.as_str(), b.as_str());
            names.then_with(|| natural_cmp(host, other))
        });
        let totals = those.into_iter().map(|((name, host), items)| {
            let total = Total::of(&items, cut);
            ((name.clone(), host.to_owned()), total)
        });
        self.totals.extend(totals);
    }

    /// A table; on a terminal that is too narrow for it, a narrower one, or a block for each lock.
    pub fn text(&self, now_ms: u64, width: Option<usize>) -> String {
        let figures = FIGURES.map(|(full, brief, _)| Column::of(full, brief).right());
        let labels = [Column::new("NAME").whole(), Column::new("HOST").middle()];
        let columns = labels.into_iter().chain(figures).collect();
        let mut table = Table::new(columns, &self.totals, |of, column, brief| {
            cell(of, now_ms, column, brief)
        });
        let mut needless = Vec::new();
        needless.extend((!self.by_host).then_some(Step::Hide(HOST)));
        needless.extend((!self.names_are_needed()).then_some(Step::Hide(NAME)));
        let stages = [
            &needless[..],
            &[Step::Cut(HOST, 8, usize::MAX)],
            &[Step::Dense],
            &[Step::Hide(WAITED_P95)],
            &[Step::Hide(LONGEST)],
            &[Step::Hide(WAITED)],
        ];
        if !table.fit(width, &stages) {
            return self.blocks(now_ms, width.unwrap_or(usize::MAX));
        }
        let rows = self
            .totals
            .iter()
            .map(|of| table.line(|column, brief| cell(of, now_ms, column, brief)));
        let lines = std::iter::once(table.heading()).chain(rows);
        lines
            .map(|line| line.painted(false, false) + "\n")
            .collect()
    }

    /// Whether the name says nothing new.
    fn names_are_needed(&self) -> bool {
        let mut pairs = self.totals.windows(2);
        !self.by_host || !pairs.all(|two| two[0].0.0 == two[1].0.0)
    }

    fn blocks(&self, now_ms: u64, width: usize) -> String {
        let mut text = String::new();
        for of in &self.totals {
            let mut add = |line: &str| text.extend([line, "\n"]);
            let cell = |column| cell(of, now_ms, column, false).1;
            // The terminal breaks a name.
            add(&if self.by_host {
                format!("{} on {}", cell(NAME), cell(HOST)).into()
            } else {
                cell(NAME)
            });
            for (column, (_, _, label)) in (FIRST_FIGURE..).zip(FIGURES) {
                add(&truncate(&format!("  {label:<13} {}", cell(column)), width));
            }
        }
        text
    }

    /// An array with an object for each line; the shape is part of the contract.
    pub fn json(&self) -> Result<String> {
        let totals = self.totals.iter().map(|((name, host), total)| TotalJson {
            name: name.as_str(),
            host: self.by_host.then_some(host.as_str()),
            runs: total.runs,
            succeeded: total.succeeded,
            failed: total.failed,
            lost: total.lost,
            skipped: total.skipped,
            ran_median_ms: total.ran.median.map(milliseconds),
            ran_p95_ms: total.ran.p95.map(milliseconds),
            longest_ms: total.ran.longest.map(milliseconds),
            waited_median_ms: total.waited.median.map(milliseconds),
            waited_p95_ms: total.waited.p95.map(milliseconds),
            last_success: total.last_success_ms.and_then(timestamp),
        });
        let json = serde_json::to_string(&totals.collect::<Vec<_>>())?;
        Ok(escaped_json(&json).into_owned() + "\n")
    }
}

const NAME: usize = 0;
const HOST: usize = 1;
/// The first of the figures.
const FIRST_FIGURE: usize = 2;
const LONGEST: usize = 9;
const WAITED: usize = 10;
const WAITED_P95: usize = 11;

/// What the figures are called: in the heading, in a brief one, and in a line.
const FIGURES: [(&str, &str, &str); 11] = [
    ("RUNS", "RUNS", "runs"),
    ("OK", "OK", "ok"),
    ("FAILED", "FAIL", "failed"),
    ("LOST", "LOST", "lost"),
    ("SKIPPED", "SKIP", "skipped"),
    ("RAN 50%", "RAN", "ran 50%"),
    ("95%", "95%", "ran 95%"),
    ("LONGEST", "MAX", "longest"),
    ("WAITED 50%", "WAIT", "waited 50%"),
    ("95%", "95%", "waited 95%"),
    ("LAST SUCCESS", "LAST OK", "last success"),
];

impl Total {
    fn of(items: &[&Item], (runs_cut, skips_cut): (bool, bool)) -> Self {
        let mut total = Self {
            runs_cut,
            skips_cut,
            ..Self::default()
        };
        let (mut ended, mut waited) = (Vec::new(), Vec::new());
        for item in items {
            let entry = match item {
                Item::Hold(entry) => entry,
                Item::Skip(_) => {
                    total.skipped += 1;
                    continue;
                }
            };
            total.runs += 1;
            waited.push(entry.waited);
            ended.extend(entry.ended_ms.map(|ended| ran(entry, ended)));
            match entry.outcome {
                HoldOutcome::Status(0) => {
                    total.succeeded += 1;
                    total.last_success_ms = total.last_success_ms.max(entry.ended_ms);
                }
                HoldOutcome::Lost | HoldOutcome::Forced(_) | HoldOutcome::Expired => {
                    total.lost += 1;
                }
                _ if failed(entry) => total.failed += 1,
                _ => {}
            }
        }
        total.ran = Ranks::of(ended);
        total.waited = Ranks::of(waited);
        total
    }
}

/// A cell, safe for a terminal.
fn cell(
    ((name, host), total): &((Name, String), Total),
    now_ms: u64,
    column: usize,
    brief: bool,
) -> Cell<'_> {
    let duration = |duration: Option<Duration>| duration.map_or("-".into(), format_duration);
    let count = |count: usize, cut: bool| format!("{count}{}", if cut { "+" } else { "" });
    let success = |ms: u64| {
        let mut ago = format_duration(Duration::from_millis(now_ms.saturating_sub(ms)));
        // One unit is enough.
        let unit = ago.find(char::is_alphabetic).unwrap_or_default();
        let smaller = ago[unit..].find(|c: char| c.is_ascii_digit());
        ago.truncate(smaller.map_or(ago.len(), |at| unit + at));
        if brief { ago } else { ago + " ago" }
    };
    let text = match column {
        NAME => escaped(name.as_str()),
        HOST => escaped(host),
        2 => count(total.runs, total.runs_cut).into(),
        3 => total.succeeded.to_string().into(),
        4 => total.failed.to_string().into(),
        5 => total.lost.to_string().into(),
        6 => count(total.skipped, total.skips_cut).into(),
        7 => duration(total.ran.median).into(),
        8 => duration(total.ran.p95).into(),
        LONGEST => duration(total.ran.longest).into(),
        WAITED => duration(total.waited.median).into(),
        WAITED_P95 => duration(total.waited.p95).into(),
        _ => total.last_success_ms.map_or("-".into(), success).into(),
    };
    (Style::Plain, text)
}

#[derive(Serialize)]
struct TotalJson<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    runs: usize,
    succeeded: usize,
    failed: usize,
    lost: usize,
    skipped: usize,
    ran_median_ms: Option<u64>,
    ran_p95_ms: Option<u64>,
    longest_ms: Option<u64>,
    waited_median_ms: Option<u64>,
    waited_p95_ms: Option<u64>,
    last_success: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::history::listing::tests::{hold, skip};
    use crate::protocol::SkipReason;

    #[test]
    fn ranks_are_nearest_ranks() {
        let seconds = |all: &[u64]| {
            let all: Vec<Duration> = all.iter().map(|&s| Duration::from_secs(s)).collect();
            [50, 95, 100].map(|percent| rank(&all, percent).map(|rank| rank.as_secs()))
        };
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(seconds(&hundred), [Some(50), Some(95), Some(100)]);
        assert_eq!(seconds(&[3]), [Some(3); 3]);
        assert_eq!(seconds(&[]), [None; 3]);
    }

    /// The cells of a table, by line.
    fn cells(text: &str) -> Vec<Vec<&str>> {
        let line = |line: &'static str| line.split("  ").map(str::trim).collect::<Vec<_>>();
        let text: &'static str = text.to_owned().leak();
        text.lines()
            .map(|l| {
                line(l)
                    .into_iter()
                    .filter(|cell| !cell.is_empty())
                    .collect()
            })
            .collect()
    }

    #[test]
    fn a_summary_has_a_line_a_lock_and_dashes_where_nothing_is_known() {
        let holds = [
            hold("h", 100, Some(110), HoldOutcome::Status(0)),
            hold("h", 105, Some(120), HoldOutcome::Lost),
            hold("i", 130, Some(230), HoldOutcome::Status(3)),
            hold("i", 180, None, HoldOutcome::Running),
        ];
        let mut other = hold("i", 180, None, HoldOutcome::Running);
        other.name = "b".parse().unwrap();
        let skipped = skip("h", 150, SkipReason::Recent);
        let mut items: Vec<Item> = holds.iter().map(Item::Hold).collect();
        items.push(Item::Hold(&other));
        items.push(Item::Skip(&skipped));
        let mut summary = Summary::new(false);
        summary.add(&items, (false, false));
        let text = summary.text(200_000, None);
        assert_eq!(
            cells(&text)[1..],
            [
                vec![
                    "a", "4", "1", "1", "1", "1", "15s", "1m40s", "1m40s", "2s", "2s", "1m ago"
                ],
                vec!["b", "1", "0", "0", "0", "0", "-", "-", "-", "2s", "2s", "-"],
            ],
            "{text}"
        );
        let mut by_host = Summary::new(true);
        by_host.add(&items[..4], (true, true));
        let by_host = by_host.text(200_000, None);
        let hosts: Vec<String> = cells(&by_host)[1..]
            .iter()
            .map(|row| row[..4].join(" "))
            .collect();
        assert_eq!(hosts, ["h 2+ 1 0", "i 2+ 0 1"], "{by_host}");
        let long = "deploy-production-eu-west-1";
        let mut long_one = hold("i", 180, Some(200), HoldOutcome::Status(0));
        long_one.name = long.parse().unwrap();
        let mut summed = Summary::new(false);
        summed.add(&[Item::Hold(&long_one)], (false, false));
        for width in [20, 60, 80, 100] {
            let text = summed.text(200_000, Some(width));
            assert!(text.contains(long), "{width}: {text}");
            assert_eq!(text.contains("NAME"), width >= 80, "{width}: {text}");
        }
        for width in [25, 40, 60, 80, 100, 200] {
            let text = summary.text(200_000, Some(width));
            let most = text.lines().map(|line| line.chars().count()).max();
            assert!(most.unwrap() <= width, "{width}: {text}");
            assert!(text.contains("1m40s"), "{text}");
        }
    }
}

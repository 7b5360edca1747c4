//! Outcome of a scenario: the commands that ran under each lock, and the ends of the runs. The checker of the chaos tests
//! judges whether two commands ran at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use super::lab::Run;
use crate::machines::chaos::checker::Verdict;
use crate::machines::chaos::history::{History, Nanos};

/// Observations of one lock.
pub struct Report {
    lock: String,
    /// Overlaps, and fencing tokens that don't grow.
    broken: Vec<String>,
    /// Start and client of each hold.
    pub starts: Vec<(Nanos, usize)>,
    /// Runs by exit status, except those that the lab ended.
    statuses: BTreeMap<i32, usize>,
    /// Messages of the runs, except those about waiting.
    said: BTreeSet<String>,
    from: Nanos,
    until: Nanos,
}

impl Report {
    pub fn of(runs: &[Run], lock: &str, from: Nanos, until: Nanos) -> Self {
        let runs = || runs.iter().filter(|run| run.job.wants(lock));
        let history = History {
            jobs: runs().map(|run| run.job.clone()).collect(),
            ..History::default()
        };
        let broken = Verdict::of_exclusion(&history).broken.into_iter();
        let starts = runs().flat_map(|run| {
            let processes = run.job.processes.iter();
            processes.map(|process| (process.periods[0].from, run.client))
        });
        let mut starts: Vec<(Nanos, usize)> = starts.collect();
        starts.sort_unstable();
        let mut statuses = BTreeMap::new();
        for status in runs().filter_map(|run| run.job.status) {
            *statuses.entry(status).or_default() += 1;
        }
        let lines = runs().flat_map(|run| run.job.said.lines());
        let lines = lines.filter(|line| !line.contains(": waiting for "));
        Self {
            lock: lock.to_owned(),
            broken: broken.map(|broken| broken.detail).collect(),
            starts,
            statuses,
            said: lines.map(str::to_owned).collect(),
            from,
            until,
        }
    }

    fn count(&self, status: i32) -> usize {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// Returns the longest time without a start since `from`, in seconds.
    pub fn longest_since(&self, from: Nanos) -> f64 {
        let starts = self.starts.iter().map(|(start, _)| *start);
        let starts = starts.filter(|start| *start > from);
        let moments: Vec<Nanos> = [from]
            .into_iter()
            .chain(starts)
            .chain([self.until])
            .collect();
        let longest = moments.windows(2).map(|pair| pair[1] - pair[0]).max();
        Duration::from_nanos(longest.unwrap_or(0).unsigned_abs()).as_secs_f64()
    }

    /// Returns the number of a client's holds that began after this time.
    pub fn starts_by(&self, client: usize, after: Nanos) -> usize {
        let is_later = |(start, by): &&(Nanos, usize)| *start > after && *by == client;
        self.starts.iter().filter(is_later).count()
    }
}

/// Result of a scenario, line by line.
#[derive(Default)]
pub struct Finding {
    lines: Vec<String>,
    pub broken: usize,
}

impl Finding {
    pub fn of(reports: &[Report]) -> Self {
        let mut finding = Self::default();
        for report in reports {
            let (holds, statuses, said) = (report.starts.len(), &report.statuses, &report.said);
            let lock = &report.lock;
            let line = format!("{lock}: {holds} holds, runs by status: {statuses:?}");
            finding.lines.push(line);
            let said_lines = said.iter().map(|line| format!("  said: {line}"));
            finding.lines.extend(said_lines);
            if said.iter().any(|line| line.contains("was suspended")) {
                finding.expect(false, "nothing was suspended, and nobody says so");
            }
        }
        finding
    }

    /// Returns the finding of a scenario that panicked.
    pub fn unplayed() -> Self {
        let mut finding = Self::default();
        finding.expect(false, "the scenario comes to its end");
        finding
    }

    /// Records whether an expectation holds, with the measurement.
    pub fn expect(&mut self, holds: bool, what: impl Into<String>) {
        self.broken += usize::from(!holds);
        let sign = if holds { "ok   " } else { "FAILS" };
        self.lines.push(format!("{sign} {}", what.into()));
    }

    /// Expects that no two commands ran at once, and that each has a larger fencing token than all before.
    pub fn expect_exclusion(&mut self, Report { lock, broken, .. }: &Report) {
        let what = format!("{lock}: no two commands at once, fences grow: {broken:?}");
        self.expect(broken.is_empty(), what);
    }

    /// Expects that no healthy job was stopped, and that no run failed to start.
    pub fn expect_unharmed(&mut self, report: &Report) {
        let (stopped, failed) = (report.count(79), report.count(69));
        let what = format!(
            "{}: none stopped (79), none fails to start (69): {stopped} and {failed}",
            report.lock
        );
        self.expect(stopped == 0 && failed == 0, what);
    }

    /// Expects both for each of these locks.
    pub fn expect_well(&mut self, reports: &[&Report]) {
        for report in reports {
            self.expect_exclusion(report);
            self.expect_unharmed(report);
        }
    }

    /// Expects that there was never a longer time than `within` without a start, in seconds.
    pub fn expect_starts(&mut self, report: &Report, within: f64) {
        let (lock, longest) = (&report.lock, report.longest_since(report.from));
        let what = format!("{lock}: {longest:.1} s without a start, of at most {within:.1}");
        self.expect(longest <= within, what);
    }

    pub fn in_words(&self, name: &str) -> String {
        let mut text = format!("{name}\n");
        for line in &self.lines {
            let _ = writeln!(text, "    {line}");
        }
        text
    }
}

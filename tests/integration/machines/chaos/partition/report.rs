//! What the witnesses of a lock have seen: the commands that ran under it, each of which beat every millisecond.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::lab::Run;
use crate::machines::chaos::history::{MS, Nanos, Process, SECOND, Span, beats_of};

/// What was seen of one lock.
#[derive(Default)]
pub struct Report {
    lock: String,
    /// How many pairs of commands ran at once, and for how long the longest of them did.
    pub overlaps: usize,
    overlapped: Nanos,
    /// How many commands had no larger fence than one that had begun before.
    pub backwards: usize,
    /// When each hold began, and by which client.
    pub starts: Vec<(Nanos, usize)>,
    /// How many runs ended with each status; those that the lab ended aren't counted.
    pub statuses: BTreeMap<i32, usize>,
    /// What runs without success have said, and how many of them.
    said: BTreeMap<String, usize>,
    /// The lines of others, but for those that they wait.
    lines: BTreeMap<String, usize>,
    from: Nanos,
    until: Nanos,
}

impl Report {
    pub fn of(dir: &Path, runs: &[Run], lock: &str, from: Nanos, until: Nanos) -> Self {
        let mut report = Self {
            lock: lock.to_owned(),
            from,
            until,
            ..Self::default()
        };
        let mut all: Vec<Process> = Vec::new();
        for run in runs.iter().filter(|run| run.lock == lock) {
            for process in beats_of(dir, run.number) {
                report.starts.push((process.periods[0].from, run.client));
                all.push(process);
            }
            let said = fs::read_to_string(dir.join("said").join(run.number.to_string()));
            let said = said.unwrap_or_default();
            match run.status {
                Some(status) if status != 0 => {
                    let said = without_numbers(&format!("{status}: {}", said.trim_end()));
                    *report.said.entry(said).or_default() += 1;
                }
                _ => {
                    let lines = said.lines();
                    for line in lines.filter(|line| !line.contains(": waiting for ")) {
                        *report.lines.entry(without_numbers(line)).or_default() += 1;
                    }
                }
            }
            if let Some(status) = run.status {
                *report.statuses.entry(status).or_default() += 1;
            }
        }
        report.judge(all);
        report
    }

    fn judge(&mut self, mut all: Vec<Process>) {
        all.sort_by_key(|process| process.periods[0].from);
        for (at, one) in all.iter().enumerate() {
            for other in &all[..at] {
                let together = together(other, one);
                self.overlaps += usize::from(together > 0);
                self.overlapped = self.overlapped.max(together);
            }
            let before = all[..at].iter().flat_map(|other| &other.fences).max();
            self.backwards += usize::from(before >= one.fences.first());
        }
    }

    pub fn count(&self, status: i32) -> usize {
        self.statuses.get(&status).copied().unwrap_or(0)
    }

    /// Whether a run has said this, however it ended.
    pub fn says(&self, text: &str) -> bool {
        let all = self.said.keys().chain(self.lines.keys());
        all.into_iter().any(|said| said.contains(text))
    }

    /// The longest time without a start since this moment, in seconds.
    pub fn longest_since(&self, from: Nanos) -> f64 {
        let mut last = from;
        let mut longest = 0;
        let starts = self.starts.iter().map(|(start, _)| *start);
        for start in starts.filter(|start| *start > from).chain([self.until]) {
            longest = longest.max(start - last);
            last = start;
        }
        seconds(longest)
    }

    pub fn longest(&self) -> f64 {
        self.longest_since(self.from)
    }

    /// How many holds of a client began after this moment.
    pub fn starts_by(&self, client: usize, after: Nanos) -> usize {
        let is_later = |(start, by): &&(Nanos, usize)| *start > after && *by == client;
        self.starts.iter().filter(is_later).count()
    }

    fn row(&self) -> String {
        let others = self.statuses.iter();
        let others = others.filter(|(status, _)| ![0, 69, 79].contains(*status));
        let others = others.map(|(status, count)| format!("{count} x {status}"));
        format!(
            "{:<8} {:>8} {:>6} {:>7} {:>6} {:>6} {:>9.1}  {}",
            self.lock,
            self.overlaps,
            self.overlapped / MS,
            self.starts.len(),
            self.count(79),
            self.count(69),
            self.longest(),
            others.collect::<Vec<_>>().join(", ")
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "it is a matter of minutes")]
fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / SECOND as f64
}

/// For how long two processes have beaten at once.
fn together(one: &Process, other: &Process) -> Nanos {
    let mut longest = 0;
    for a in &one.periods {
        for b in &other.periods {
            longest = longest.max(a.until.min(b.until) - a.from.max(b.from));
        }
    }
    longest
}

/// A message with `#` in place of large numbers, so that those that say the same are one; addresses stay.
fn without_numbers(text: &str) -> String {
    let mut short = String::new();
    for word in text.split_inclusive([' ', '\n']) {
        let digits = word.chars().filter(char::is_ascii_digit).count();
        if digits < 3 || word.contains('.') {
            short += word;
            continue;
        }
        for letter in word.chars() {
            match letter {
                '0'..='9' if short.ends_with('#') => {}
                '0'..='9' => short.push('#'),
                _ => short.push(letter),
            }
        }
    }
    short
}

/// What came of a scenario.
#[derive(Default)]
pub struct Finding {
    rows: Vec<String>,
    said: Vec<String>,
    expected: Vec<String>,
    starved: Nanos,
    pub broken: usize,
}

impl Finding {
    /// `starved` is when the machine gave nobody the processor.
    pub fn of(reports: &[Report], starved: &[Span]) -> Self {
        let mut finding = Self::default();
        let longest = starved.iter().map(|span| span.until - span.from).max();
        finding.starved = longest.unwrap_or(0);
        for report in reports {
            finding.rows.push(report.row());
            for (text, count) in &report.said {
                let text = text.replace('\n', "\n        ");
                finding.said.push(format!("{count} x {text}"));
            }
            for (text, count) in &report.lines {
                finding.said.push(format!("{count} others: {text}"));
            }
            if report.says("was suspended") {
                finding.expect(false, "nothing was suspended, and nobody says so");
            }
        }
        finding
    }

    /// That of a scenario that came to no end, and has said why.
    pub fn unplayed() -> Self {
        let mut finding = Self::default();
        finding.expect(false, "the scenario comes to its end");
        finding
    }

    /// States something that has to be so, with what was measured.
    pub fn expect(&mut self, holds: bool, what: impl Into<String>) {
        self.broken += usize::from(!holds);
        let sign = if holds { "ok   " } else { "FAILS" };
        self.expected.push(format!("{sign} {}", what.into()));
    }

    /// No two commands ran at once, and each has a larger fence than all before.
    pub fn expect_exclusion(&mut self, report: &Report) {
        let (overlaps, backwards) = (report.overlaps, report.backwards);
        let what = format!(
            "{}: no two commands at once, fences grow: {overlaps} overlaps, at most {} ms; {backwards} fences out of order",
            report.lock,
            report.overlapped / MS
        );
        self.expect(overlaps == 0 && backwards == 0, what);
    }

    /// No healthy job was stopped, and no run failed to start.
    pub fn expect_unharmed(&mut self, report: &Report) {
        let (stopped, failed) = (report.count(79), report.count(69));
        let what = format!(
            "{}: none stopped (79), none fails to start (69): {stopped} and {failed}",
            report.lock
        );
        self.expect(stopped == 0 && failed == 0, what);
    }

    /// Both for each of these.
    pub fn expect_well(&mut self, reports: &[&Report]) {
        for report in reports {
            self.expect_exclusion(report);
            self.expect_unharmed(report);
        }
    }

    /// A start within so many seconds, always.
    pub fn expect_starts(&mut self, report: &Report, within: f64) {
        let (lock, longest) = (&report.lock, report.longest());
        let what = format!("{lock}: {longest:.1} s without a start, of at most {within:.1}");
        self.expect(longest <= within, what);
    }

    pub fn in_words(&self, name: &str) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let _ = writeln!(text, "{name:<22} {row}");
        }
        for line in &self.expected {
            let _ = writeln!(text, "    {line}");
        }
        if self.starved > 100 * MS {
            let ms = self.starved / MS;
            let _ = writeln!(text, "    the machine was busy: no processor for {ms} ms");
        }
        for line in &self.said {
            let _ = writeln!(text, "    said by {line}");
        }
        text
    }
}

pub const HEADER: &str =
    "scenario               lock     overlaps  of ms   holds     79     69  no start  others";

#[test]
fn commands_that_run_at_once_and_fences_out_of_order_are_found() {
    let process = |from: Nanos, until: Nanos, fence: u64| Process {
        is_descendant: false,
        names: vec!["a".into()],
        fences: vec![fence],
        limit: 1,
        ends: until,
        periods: vec![Span::new(from, from), Span::new(from + MS, until)],
    };
    let judged = |all: [Process; 3]| {
        let mut report = Report::default();
        report.judge(all.to_vec());
        (report.overlaps, report.overlapped, report.backwards)
    };
    let first = process(0, 10 * MS, 1);
    let last = process(30 * MS, 40 * MS, 3);
    let whole = judged([first.clone(), process(11 * MS, 29 * MS, 2), last.clone()]);
    assert_eq!(whole, (0, 0, 0));
    let broken = judged([last, process(7 * MS, 35 * MS, 4), first]);
    assert_eq!(broken, (2, 4 * MS, 1));
}

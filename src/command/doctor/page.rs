//! The findings for people: a line each, in groups, with the fix below it. Pure.

use std::time::Duration;

use super::checks::{Verdict, counted, not_known, short, verdict};
use super::evidence::{Evidence, Unknown};
use super::finding::{Finding, Group, Level};
use super::fix::Fix;
use crate::report::{Line, Style, THIS_HOST_ONLY, columns, escaped, format_duration, padded};

/// What is drawn, and for how wide a terminal; `None` without one, where no line is broken.
pub struct Page<'a> {
    pub evidence: &'a Evidence,
    pub findings: &'a [Finding],
    pub ttl: Duration,
    pub took: Duration,
    pub width: Option<usize>,
    /// Also what doesn't matter here.
    pub shows_all: bool,
    /// Only what warns or fails.
    pub is_quiet: bool,
}

/// Before the level, and between the columns.
const GAP: usize = 2;
const LEVEL: usize = 4;
const NAME: usize = 13;

/// In narrower terminals than this one a finding begins in the line below its name.
const NARROW: usize = 64;

impl Page<'_> {
    /// All of it, as it is printed.
    pub fn painted(&self, colors: bool) -> String {
        let lines = self.lines();
        let lines = lines.iter().map(|line| line.painted(colors) + "\n");
        lines.collect()
    }

    fn lines(&self) -> Vec<Line> {
        if self.is_quiet {
            let mut lines = Vec::new();
            let bad = |it: &&Finding| matches!(it.level, Level::Warn | Level::Fail);
            for finding in self.findings.iter().filter(bad) {
                self.add(finding, &mut lines);
            }
            if let Verdict::NotKnown(_) = verdict(self.findings) {
                lines.push(self.sum());
            }
            return lines;
        }
        let Evidence { place, prefix, .. } = self.evidence;
        let only = if self.evidence.is_local {
            format!("{THIS_HOST_ONLY}: ")
        } else {
            String::new()
        };
        let heading = format!("{only}Redis at {place}");
        let rest = format!(", keys {prefix}*, TTL {}", format_duration(self.ttl));
        let mut lines =
            vec![Line::of(Style::Bold, escaped(&heading)).and(Style::Plain, &escaped(&rest))];
        let is_shown = |finding: &&Finding| {
            finding.level != Level::Unknown && (self.shows_all || !finding.is_moot)
        };
        for group in Group::ALL {
            let findings = self.findings.iter().filter(|it| it.group == group);
            let mut findings = findings.filter(is_shown).peekable();
            if findings.peek().is_some() {
                lines.extend([Line::default(), Line::of(Style::Dim, group.heading())]);
            }
            for finding in findings {
                self.add(finding, &mut lines);
            }
        }
        let unknown = not_known(self.findings);
        if !unknown.is_empty() {
            lines.extend([Line::default(), Line::of(Style::Dim, "Not checked")]);
        }
        for (why, checks) in unknown {
            let text = match (&why, &self.evidence.connected) {
                (Unknown::NotAsked, Err(_)) => "all else, which needs a connection".to_owned(),
                _ => format!("{}: {why}", checks.join(", ")),
            };
            self.add_text(&text, GAP, false, Line::default(), &mut lines);
        }
        lines.extend([Line::default(), self.sum()]);
        lines
    }

    fn add(&self, finding: &Finding, lines: &mut Vec<Line>) {
        let (word, style) = match finding.level {
            Level::Ok => ("ok", Style::Plain),
            Level::Warn => ("warn", Style::Yellow),
            Level::Fail => ("fail", Style::Red),
            Level::Unknown => ("", Style::Plain),
        };
        let start = Line::default()
            .and_spaces(GAP)
            .and(style, word)
            .and_spaces(LEVEL - word.len() + GAP);
        let is_narrow = self.width.is_some_and(|width| width < NARROW);
        let indent = if is_narrow {
            lines.push(start.and(Style::Bold, finding.check));
            GAP + LEVEL + GAP
        } else {
            let name = padded(finding.check, NAME);
            // A longer name moves its text only.
            let start = start.and(Style::Plain, &name);
            let is_long = columns(finding.check) >= NAME;
            let start = start.and_spaces(usize::from(is_long));
            let indent = GAP + LEVEL + GAP + NAME;
            self.add_text(&finding.message, indent, true, start, lines);
            self.add_finding_fix(finding, indent, lines);
            return;
        };
        self.add_text(&finding.message, indent, false, Line::default(), lines);
        self.add_finding_fix(finding, indent, lines);
    }

    fn add_finding_fix(&self, finding: &Finding, indent: usize, lines: &mut Vec<Line>) {
        // Where the URL is from belongs to the finding: behind an arrow it would read as something to do.
        if let Some(note) = &finding.note {
            self.add_text(note, indent, false, Line::default(), lines);
        }
        if let Some(fix) = &finding.fix {
            self.add_fix(fix, indent, lines);
        }
    }

    /// A text, broken where the terminal ends. With `follows`, its first part stands behind `start`.
    fn add_text(
        &self,
        text: &str,
        indent: usize,
        follows: bool,
        start: Line,
        lines: &mut Vec<Line>,
    ) {
        let text = escaped(text);
        let taken = if follows { start.columns() } else { indent };
        let room = |taken: usize| {
            self.width
                .map_or(usize::MAX, |width| width.saturating_sub(taken))
        };
        let mut parts = broken(&text, room(taken), room(indent)).into_iter();
        let first = parts.next().unwrap_or_default();
        lines.push(if follows {
            start.and(Style::Plain, &first)
        } else {
            Line::default().and_spaces(indent).and(Style::Plain, &first)
        });
        lines.extend(parts.map(|part| Line::default().and_spaces(indent).and(Style::Plain, &part)));
    }

    /// What to do; a command stays in one line, so that it can be copied.
    fn add_fix(&self, fix: &Fix, indent: usize, lines: &mut Vec<Line>) {
        let arrow = Line::default().and_spaces(indent).and(Style::Dim, "→ ");
        match fix {
            Fix::Command(_, line) => lines.push(arrow.and(Style::Plain, &escaped(line))),
            Fix::Words(text) => self.add_text(text, indent + GAP, true, arrow, lines),
        }
    }

    /// The last line: whether this will do.
    fn sum(&self) -> Line {
        let many = |level| self.findings.iter().filter(|it| it.level == level).count();
        let (failures, warnings) = (many(Level::Fail), many(Level::Warn));
        let warned = match warnings {
            0 => String::new(),
            _ => format!(", {}", counted(warnings, "warning")),
        };
        let took = format!(" ({})", short(self.took));
        let line = match verdict(self.findings) {
            Verdict::Fit if self.findings.iter().any(|it| it.level == Level::Unknown) => {
                Line::of(Style::Bold, "fit to hold locks, as far as could be checked")
            }
            Verdict::Fit => Line::of(Style::Bold, "fit to hold locks"),
            Verdict::NotKnown(checks) => {
                Line::of(Style::Red, "not known to be fit to hold locks: ")
                    .and(Style::Red, &checks.join(", "))
                    .and(Style::Red, " not checked")
            }
            Verdict::Unfit => Line::of(Style::Red, "not fit to hold locks: ")
                .and(Style::Red, &counted(failures, "failure")),
        };
        line.and(Style::Plain, &warned).and(Style::Dim, &took)
    }
}

/// A text in lines, the first of which may have another width; broken at spaces, where there are any.
fn broken(text: &str, first: usize, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let room = if lines.is_empty() { first } else { width };
        if !line.is_empty() && columns(&line) + 1 + columns(word) > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_quiet_only_what_is_not_well_is_printed() {
        use super::super::finding::Check;
        let evidence = super::super::checks::healthy();
        let check = Check("role", Group::Server);
        let page = |findings: &[Finding]| {
            let page = Page {
                evidence: &evidence,
                findings,
                ttl: Duration::from_secs(30),
                took: Duration::ZERO,
                width: None,
                shows_all: false,
                is_quiet: true,
            };
            page.painted(false)
        };
        let unknown = |check: Check| check.unknown(&Unknown::NoAnswer);
        let moment = unknown(Check("latency", Group::Network));
        assert_eq!(page(&[check.ok("primary"), moment]), "");
        let undecided = "not known to be fit to hold locks: role not checked (0.00 ms)\n";
        assert_eq!(page(&[unknown(check)]), undecided);
        let warned = [check.ok("primary"), check.warn("slow", "hurry")];
        let expected = "  warn  role         slow\n                     → hurry\n";
        assert_eq!(page(&warned), expected);
    }

    #[test]
    fn a_text_is_broken_at_spaces() {
        assert_eq!(
            broken("a bb ccc dddddddd e", 4, 5),
            ["a bb", "ccc", "dddddddd", "e"]
        );
        assert_eq!(broken("a b", usize::MAX, 1), ["a b"]);
        assert_eq!(broken("", 4, 4), [""]);
    }
}

//! The report for people: a line per finding, in groups, with the fix below it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::finding::{
    Finding, Group, Level, NOT_CHECKED, SKIPPED, count, is_command, is_fit, undecided,
};
use super::server::{counted, short};
use crate::report::{Line, Style, columns, escaped, format_duration, padded};

/// A report.
pub struct Page<'a> {
    /// Server and prefix.
    pub heading: &'a str,
    pub findings: &'a [Finding],
    pub ttl: Duration,
    pub took: Duration,
    /// Width of the terminal; without one no line is broken.
    pub width: Option<usize>,
    /// Shows also checks that don't apply.
    pub shows_all: bool,
    /// Shows only warnings and failures.
    pub is_quiet: bool,
}

/// Groups of checks in their order, with their headings.
const GROUPS: [(Group, &str); 4] = [
    (Group::Network, "The network"),
    (Group::Server, "The server"),
    (Group::Locks, "Locks on it"),
    (Group::Host, "This host"),
];

/// Columns before the level, and between the parts of a line.
const GAP: usize = 2;
const LEVEL: usize = 4;
const NAME: usize = 13;

/// In a narrower terminal a finding begins in the line below its name.
const NARROW: usize = 64;

impl Page<'_> {
    /// Returns the text to print.
    pub fn painted(&self, colors: bool) -> String {
        let lines = self.lines();
        let lines = lines.iter().map(|line| line.painted(colors) + "\n");
        lines.collect()
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        if self.is_quiet {
            let is_bad = |it: &&Finding| matches!(it.level, Level::Warn | Level::Fail);
            for finding in self.findings.iter().filter(is_bad) {
                self.add(finding, &mut lines);
            }
            if !undecided(self.findings).is_empty() {
                lines.push(self.sum());
            }
            return lines;
        }
        let ttl = format!(", TTL {}", format_duration(self.ttl));
        lines.push(Line::of(Style::Bold, escaped(self.heading)).and(Style::Plain, &ttl));
        for (group, heading) in GROUPS {
            let is_shown = |it: &&Finding| match it.level {
                Level::Unknown => false,
                Level::Moot if !self.shows_all => false,
                _ => it.group == group,
            };
            let mut findings = self.findings.iter().filter(is_shown).peekable();
            if findings.peek().is_some() {
                lines.extend([Line::default(), Line::of(Style::Dim, heading)]);
            }
            for finding in findings {
                self.add(finding, &mut lines);
            }
        }
        self.add_unknown(&mut lines);
        lines.extend([Line::default(), self.sum()]);
        lines
    }

    /// Adds the checks that couldn't be done, by their reasons.
    fn add_unknown(&self, lines: &mut Vec<Line>) {
        let is_unknown = |it: &&Finding| it.level == Level::Unknown;
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for finding in self.findings.iter().filter(is_unknown) {
            reasons
                .entry(&finding.message)
                .or_default()
                .push(finding.check);
        }
        if !reasons.is_empty() {
            lines.extend([Line::default(), Line::of(Style::Dim, "Not checked")]);
        }
        let is_connected = |it: &Finding| it.check == "connection" && it.level == Level::Ok;
        let is_connected = self.findings.iter().any(is_connected);
        for (why, checks) in reasons {
            let why = why.trim_start_matches(NOT_CHECKED);
            let text = match why {
                SKIPPED if !is_connected => "all else, which needs a connection".to_owned(),
                _ => format!("{}: {why}", checks.join(", ")),
            };
            self.add_text(&text, GAP, Line::default().and_spaces(GAP), lines);
        }
    }

    fn add(&self, finding: &Finding, lines: &mut Vec<Line>) {
        let (word, style) = match finding.level {
            Level::Ok | Level::Moot => ("ok", Style::Plain),
            Level::Warn => ("warn", Style::Yellow),
            Level::Fail => ("fail", Style::Red),
            Level::Unknown => ("", Style::Plain),
        };
        let start = Line::default().and_spaces(GAP).and(style, word);
        let start = start.and_spaces(LEVEL - word.len() + GAP);
        let is_narrow = self.width.is_some_and(|width| width < NARROW);
        let (indent, start) = if is_narrow {
            lines.push(start.and(Style::Bold, finding.check));
            let indent = GAP + LEVEL + GAP;
            (indent, Line::default().and_spaces(indent))
        } else {
            let name = padded(finding.check, NAME);
            (GAP + LEVEL + GAP + NAME, start.and(Style::Plain, &name))
        };
        self.add_text(&finding.message, indent, start, lines);
        let start = Line::default().and_spaces(indent);
        // The origin of the URL belongs to the finding: after an arrow it would read as a step to take.
        let origin = finding.facts.get("origin");
        if let Some(origin) = origin.and_then(|origin| origin.as_str()) {
            self.add_text(origin, indent, start.clone(), lines);
        }
        let arrow = start.and(Style::Dim, "→ ");
        match &finding.fix {
            // A command stays on one line, so that it can be copied.
            Some(line) if is_command(line) => lines.push(arrow.and(Style::Plain, &escaped(line))),
            Some(text) => self.add_text(text, indent + GAP, arrow, lines),
            None => {}
        }
    }

    /// Adds a text after `start`, broken at the end of the terminal.
    fn add_text(&self, text: &str, indent: usize, start: Line, lines: &mut Vec<Line>) {
        let room = self.width.unwrap_or(usize::MAX).saturating_sub(indent);
        let mut start = Some(start);
        for part in broken(&escaped(text), room) {
            let line = start.take();
            let line = line.unwrap_or_else(|| Line::default().and_spaces(indent));
            lines.push(line.and(Style::Plain, &part));
        }
    }

    /// Returns the last line: whether the server is fit.
    fn sum(&self) -> Line {
        let warnings = match count(self.findings, Level::Warn) {
            0 => String::new(),
            many => format!(", {}", counted(many, "warning")),
        };
        let failures = count(self.findings, Level::Fail);
        let undecided = undecided(self.findings).join(", ");
        let unknown = count(self.findings, Level::Unknown);
        let text = match (failures, undecided.as_str(), unknown) {
            (0, "", 0) => "fit to hold locks".to_owned(),
            (0, "", _) => "fit to hold locks, as far as could be checked".to_owned(),
            (0, ..) => format!("not known to be fit to hold locks: {undecided} not checked"),
            _ => format!("not fit to hold locks: {}", counted(failures, "failure")),
        };
        let is_fit = is_fit(self.findings);
        let style = if is_fit { Style::Bold } else { Style::Red };
        let took = format!(" ({})", short(self.took));
        let line = Line::of(style, text).and(Style::Plain, &warnings);
        line.and(Style::Dim, &took)
    }
}

/// Breaks a text at spaces into lines of this width, if it has spaces.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::super::finding::Check;
    use super::*;

    fn page(findings: &[Finding], width: Option<usize>, is_quiet: bool) -> String {
        let page = Page {
            heading: "Redis at h",
            findings,
            ttl: Duration::from_secs(30),
            took: Duration::ZERO,
            width,
            shows_all: false,
            is_quiet,
        };
        page.painted(false)
    }

    #[test]
    fn quiet_prints_only_problems() {
        let check = Check("role", Group::Server);
        let latency = Check("latency", Group::Network);
        let quiet = |findings: &[Finding]| page(findings, None, true);
        assert_eq!(quiet(&[check.ok("primary"), latency.unknown("x")]), "");
        let undecided = "not known to be fit to hold locks: role not checked (0.00 ms)\n";
        assert_eq!(quiet(&[check.unknown("x")]), undecided);
        let warned = [check.ok("primary"), check.warn("slow", "hurry")];
        let expected = "  warn  role         slow\n                     → hurry\n";
        assert_eq!(quiet(&warned), expected);
    }

    #[test]
    fn a_report_names_what_was_not_checked_and_breaks_words_but_no_command() {
        let check = Check("role", Group::Server);
        let findings = [
            check.moot("hidden"),
            check.warn("a long text", "redis-cli CONFIG SET a b  # note"),
            check.skipped(),
        ];
        let expected = "Redis at h, TTL 30s\n\nThe server\n  warn  role\n        a long\n        text\n        \
            → redis-cli CONFIG SET a b  # note\n\nNot checked\n  all else,\n  which needs a\n  connection\n\n\
            not known to be fit to hold locks: role not checked, 1 warning (0.00 ms)\n";
        assert_eq!(page(&findings, Some(15), false), expected);
    }
}

//! The report for users: a line per finding, in groups, with the fix below. Pure.

use std::time::Duration;

use super::finding::{Finding, GROUPS, Level, count, is_command, is_fit, short, undecided};
use super::server::NO_CONNECTION;
use crate::report::{Style, Verbosity, counted, escaped, line_columns, wrapped};

/// Contents and format of a report.
pub struct ReportPage<'a> {
    /// Server, prefix and TTL.
    pub heading: &'a str,
    pub findings: &'a [Finding],
    pub took: Duration,
    /// Width of the terminal; if there is none, lines aren't wrapped.
    pub width: Option<usize>,
    pub verbosity: Verbosity,
}

/// Columns before the level, of the level, and of a check's name.
const GAP: usize = 2;
const LEVEL: usize = 6;
const NAME: usize = 13;

impl ReportPage<'_> {
    /// Returns the lines to print.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let is_quiet = self.verbosity == Verbosity::Quiet;
        if !is_quiet {
            lines.push(Style::Bold.paint(&escaped(self.heading)));
        }
        for (group, heading, _) in GROUPS {
            let is_shown = |it: &&Finding| it.group == group && self.shows(it.level);
            let findings: Vec<&Finding> = self.findings.iter().filter(is_shown).collect();
            if !is_quiet && !findings.is_empty() {
                lines.extend([String::new(), Style::Dim.paint(heading)]);
            }
            for finding in findings {
                self.add(finding, &mut lines);
            }
        }
        if !is_quiet {
            self.add_unknown(&mut lines);
            lines.push(String::new());
        }
        if !is_quiet || !undecided(self.findings).is_empty() {
            lines.push(self.sum());
        }
        lines
    }

    /// Returns true if findings of this level are shown in their groups.
    fn shows(&self, level: Level) -> bool {
        match level {
            Level::Unknown => false,
            Level::Moot => self.verbosity >= Verbosity::Verbose,
            Level::Ok => self.verbosity >= Verbosity::Normal,
            Level::Warn | Level::Fail => true,
        }
    }

    /// Adds the checks that couldn't be done, grouped by their reasons.
    fn add_unknown(&self, lines: &mut Vec<String>) {
        let is_unknown = |it: &&Finding| it.level == Level::Unknown;
        let unknown: Vec<&Finding> = self.findings.iter().filter(is_unknown).collect();
        if !unknown.is_empty() {
            lines.extend([String::new(), Style::Dim.paint("Not checked")]);
        }
        for findings in unknown.chunk_by(|one, other| one.message == other.message) {
            let checks: Vec<&str> = findings.iter().map(|it| it.check).collect();
            let text = match findings[0].message.as_str() {
                NO_CONNECTION => "all else, which needs a connection".to_owned(),
                why => format!("{}: {why}", checks.join(", ")),
            };
            self.add_text(&text, " ".repeat(GAP), lines);
        }
    }

    fn add(&self, finding: &Finding, lines: &mut Vec<String>) {
        let (level, style) = match finding.level {
            Level::Warn => ("warn", Style::Yellow),
            Level::Fail => ("fail", Style::Red),
            _ => ("ok", Style::Plain),
        };
        let level = style.paint(&format!("{level:LEVEL$}"));
        let start = format!("{:GAP$}{level}{:NAME$}", "", finding.check);
        self.add_text(&finding.message, start, lines);
        let indent = " ".repeat(GAP + LEVEL + NAME);
        // The origin of the URL belongs to the finding: after an arrow it would look like a fix.
        if let Some(origin) = finding.facts.get("origin").and_then(|it| it.as_str()) {
            self.add_text(origin, indent.clone(), lines);
        }
        let arrow = indent + &Style::Dim.paint("→ ");
        match &finding.fix {
            // A command stays on one line, so that users can copy it.
            Some(line) if is_command(line) => lines.push(arrow + &escaped(line)),
            Some(text) => self.add_text(text, arrow, lines),
            None => {}
        }
    }

    /// Adds a text after `start`, wrapped at the terminal's width.
    fn add_text(&self, text: &str, mut start: String, lines: &mut Vec<String>) {
        let indent = line_columns(&start);
        let room = self.width.map(|width| width.saturating_sub(indent));
        for part in wrapped(&escaped(text), room) {
            lines.push(start + part);
            start = " ".repeat(indent);
        }
    }

    /// Returns the last line, which says whether the server is fit.
    fn sum(&self) -> String {
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
        let warnings = match count(self.findings, Level::Warn) {
            0 => String::new(),
            many => format!(", {}", counted(many, "warning")),
        };
        let took = format!(" ({})", short(self.took));
        style.paint(&text) + &warnings + &Style::Dim.paint(&took)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::{moot, named, ok, unknown, warn};
    use super::*;
    use crate::report::painted;

    fn page(findings: &[Finding], width: Option<usize>, verbosity: Verbosity) -> String {
        let page = ReportPage {
            heading: "Redis at h, TTL 30s",
            findings,
            took: Duration::ZERO,
            width,
            verbosity,
        };
        painted(&page.lines(), false)
    }

    #[test]
    fn quiet_prints_only_problems() {
        let quiet = |checks: &'static str, findings: &[Finding]| {
            let findings: Vec<Finding> = named(checks, findings.to_vec()).collect();
            page(&findings, None, Verbosity::Quiet)
        };
        let fit = quiet("role latency", &[ok("primary"), unknown("x")]);
        assert_eq!(fit, "");
        let undecided = "not known to be fit to hold locks: role not checked (0.00 ms)\n";
        assert_eq!(quiet("role", &[unknown("x")]), undecided);
        let warned = quiet("server role", &[ok("Redis"), warn("slow", "hurry")]);
        let expected = "  warn  role         slow\n                     → hurry\n";
        assert_eq!(warned, expected);
    }

    #[test]
    fn a_report_names_what_was_not_checked_and_breaks_words_but_no_command() {
        let findings = [
            moot("hidden"),
            warn("a long text", "redis-cli CONFIG SET a b  # note"),
            unknown(NO_CONNECTION),
        ];
        let findings: Vec<Finding> = named("server role eviction", findings).collect();
        let expected = "Redis at h, TTL 30s\n\nThe server\n  warn  role         a long\n                     text\n                     \
            → redis-cli CONFIG SET a b  # note\n\nNot checked\n  all else, which needs a\n  connection\n\n\
            not known to be fit to hold locks: eviction not checked, 1 warning (0.00 ms)\n";
        assert_eq!(page(&findings, Some(28), Verbosity::Normal), expected);
    }
}

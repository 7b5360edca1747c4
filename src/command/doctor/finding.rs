//! Results of checks: a level, the evidence, and the fix of a problem. Pure.

use serde::Serialize;
use serde_json::{Map, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// The check doesn't apply here, so people are shown it only with `-v`.
    #[serde(rename = "ok")]
    Moot,
    /// The check couldn't be done.
    Unknown,
    /// Locks are safe, but something is slower than it could be, or will fail one day.
    Warn,
    /// Locks can't be acquired, or two clients may hold the same one.
    Fail,
}

/// Subject of a check, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Network,
    Server,
    Locks,
    Host,
}

/// Result of a check; the shape is part of the contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub group: Group,
    pub level: Level,
    pub message: String,
    /// Words, or a line for a shell, with notes for the reader after a `#`.
    pub fix: Option<String>,
    /// Numbers for programs.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub facts: Map<String, Value>,
}

/// Programs with which the fixes begin that are lines for a shell. A test pastes these.
const PROGRAMS: &str = "redis-cli redlock mount chmod chown";

/// Returns true for a fix that is a line for a shell.
pub fn is_command(fix: &str) -> bool {
    let first = fix.split(' ').next();
    PROGRAMS.split(' ').any(|program| first == Some(program))
}

/// Returns a line for a shell, with notes.
pub fn command(line: &str, notes: &[Option<&str>]) -> String {
    let notes: Vec<&str> = notes.iter().copied().flatten().collect();
    match notes[..] {
        [] => line.to_owned(),
        _ => format!("{line}  # {}", notes.join(", ")),
    }
}

/// Name and group of a check.
#[derive(Clone, Copy, Debug)]
pub struct Check(pub &'static str, pub Group);

/// Start of the message of an unknown finding.
pub const NOT_CHECKED: &str = "not checked: ";

/// Reason for a check that another one's failure prevents.
pub const SKIPPED: &str = "something above failed";

impl Check {
    fn finding(self, level: Level, message: impl Into<String>, fix: Option<String>) -> Finding {
        Finding {
            check: self.0,
            group: self.1,
            level,
            message: message.into(),
            fix,
            facts: Map::new(),
        }
    }

    pub fn ok(self, message: impl Into<String>) -> Finding {
        self.finding(Level::Ok, message, None)
    }

    pub fn moot(self, message: impl Into<String>) -> Finding {
        self.finding(Level::Moot, message, None)
    }

    pub fn warn(self, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.finding(Level::Warn, message, Some(fix.into()))
    }

    pub fn fail(self, message: impl Into<String>, fix: impl Into<String>) -> Finding {
        self.finding(Level::Fail, message, Some(fix.into()))
    }

    pub fn unknown(self, why: &str) -> Finding {
        self.finding(Level::Unknown, format!("{NOT_CHECKED}{why}"), None)
    }

    /// Returns the finding of a check that another one's failure prevents.
    pub fn skipped(self) -> Finding {
        self.unknown(SKIPPED)
    }
}

impl Finding {
    pub fn with(mut self, name: &str, fact: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), fact.into());
        self
    }
}

pub fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|it| it.level == level).count()
}

/// Checks without which nobody knows whether locks are safe, or can be acquired.
const DECIDING: &str = "connection server role cluster eviction writes scripts name";

/// Returns the deciding checks that couldn't be done.
pub fn undecided(findings: &[Finding]) -> Vec<&'static str> {
    let unknown = findings.iter().filter(|it| it.level == Level::Unknown);
    let decides = |check: &&str| DECIDING.split(' ').any(|it| it == *check);
    unknown
        .map(|finding| finding.check)
        .filter(decides)
        .collect()
}

/// Returns true if no check failed, and all deciding ones could be done.
pub fn is_fit(findings: &[Finding]) -> bool {
    count(findings, Level::Fail) == 0 && undecided(findings).is_empty()
}

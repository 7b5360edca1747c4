//! Results of checks: a level, the evidence, and a problem's fix. Pure.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value as Json;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    #[default]
    Ok,
    /// The check doesn't apply here, so users see it only with `-v`.
    #[serde(rename = "ok")]
    Moot,
    /// The check couldn't be done.
    Unknown,
    /// Locks are safe, but something is slower than it could be, or will fail one day.
    Warn,
    /// Locks can't be acquired, or two clients may hold the same lock.
    Fail,
}

/// Groups of checks in the order of the report: name, heading and checks.
pub const GROUPS: [(&str, &str, &str); 4] = [
    (
        "network",
        "The network",
        "connection tls sentinels latency clocks",
    ),
    (
        "server",
        "The server",
        "server role replicas cluster eviction persistence writes",
    ),
    ("locks", "Locks on it", "scripts messages name"),
    ("host", "This host", "pidfd proc url settings secrets hook"),
];

/// Checks without which nobody knows whether locks are safe and can be acquired.
const DECIDING: &str = "connection server role cluster eviction writes scripts name";

/// Result of a check; the shape is part of the contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub group: &'static str,
    pub level: Level,
    pub message: String,
    /// Fix in words, or a shell command with notes for the reader after a `#`.
    pub fix: Option<String>,
    /// Numbers for programs.
    #[serde(skip_serializing_if = "Json::is_null")]
    pub facts: Json,
}

pub fn ok(message: impl Into<String>) -> Finding {
    Finding::new(Level::Ok, message, None)
}

pub fn moot(message: impl Into<String>) -> Finding {
    Finding::new(Level::Moot, message, None)
}

pub fn unknown(why: impl Into<String>) -> Finding {
    Finding::new(Level::Unknown, why, None)
}

pub fn warn(message: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding::new(Level::Warn, message, Some(fix.into()))
}

pub fn fail(message: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding::new(Level::Fail, message, Some(fix.into()))
}

impl Finding {
    fn new(level: Level, message: impl Into<String>, fix: Option<String>) -> Self {
        Self {
            level,
            message: message.into(),
            fix,
            ..Self::default()
        }
    }

    pub fn with(self, facts: Json) -> Self {
        Self { facts, ..self }
    }
}

/// Returns true if `word` is one of these words.
fn has(words: &str, word: &str) -> bool {
    words.split(' ').any(|it| it == word)
}

/// Reason for a check that needs the URL, if a refused file may contain it.
pub const NO_SETTINGS: &str = "a settings file that isn't used may name the server";

/// Returns the findings with the names and groups of these checks, in the same order.
pub fn named(
    checks: &'static str,
    findings: impl IntoIterator<Item = Finding>,
) -> impl Iterator<Item = Finding> {
    let all = checks.split(' ').zip(findings);
    all.map(|(check, mut finding)| {
        let group = GROUPS.iter().find(|(.., checks)| has(checks, check));
        finding.group = group.map_or("", |(group, ..)| group);
        finding.check = check;
        finding
    })
}

/// Programs with which the shell commands among the fixes begin. A test pastes these.
const PROGRAMS: &str = "redis-cli redlock mount chmod chown";

/// Returns true if a fix is a shell command.
pub fn is_command(fix: &str) -> bool {
    fix.split(' ').next().is_some_and(|it| has(PROGRAMS, it))
}

pub fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|it| it.level == level).count()
}

/// Returns the deciding checks that couldn't be done.
pub fn undecided(findings: &[Finding]) -> Vec<&'static str> {
    let unknown = findings.iter().filter(|it| it.level == Level::Unknown);
    let checks = unknown.map(|finding| finding.check);
    checks.filter(|check| has(DECIDING, check)).collect()
}

/// Returns true if no check failed, and all deciding ones could be done.
pub fn is_fit(findings: &[Finding]) -> bool {
    count(findings, Level::Fail) == 0 && undecided(findings).is_empty()
}

/// Returns the time of a round trip in milliseconds.
pub fn short(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1000.0)
}

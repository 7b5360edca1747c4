//! Checks: each is a function from the evidence to a finding. Pure.

/// What is known; where it isn't, that is what the check says.
macro_rules! known {
    ($check:expr, $thing:expr) => {
        match $thing {
            Ok(thing) => thing,
            Err(why) => return $check.unknown(why),
        }
    };
}

mod failover;
mod host;
mod locks;
mod network;
mod replicas;
mod restart;
mod server;

use std::time::Duration;

use self::failover::{cluster_failover, failover, sentinels};
use self::host::this_host;
use self::locks::{commands, messages, name, permissions, scripts, tracking};
use self::network::{client_certificate, clocks, connection, latency, packets, timeouts, tls};
use self::replicas::{replicas, sync};
use self::restart::{persistence, uptime};
use self::server::{clients, cluster, eviction, role, server, writes};
use super::evidence::{Evidence, Unknown};
use super::finding::{Finding, Level};
use super::fix::{Fix, Repair};
use super::host::Host;
use crate::decide::lease::renewal_interval;
use crate::protocol::{Error, ErrorKind};

/// What the findings are judged by.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// The lease of the locks.
    pub ttl: Duration,
    /// Now, in seconds since 1970.
    pub now: i64,
}

impl Measure {
    /// A run renews its lease this often.
    fn renewal(self) -> Duration {
        renewal_interval(self.ttl)
    }
}

/// All findings, in the order in which they are shown.
pub fn all(evidence: &Evidence, host: &Host, measure: Measure) -> Vec<Finding> {
    let mut findings = vec![connection(evidence), tls(evidence, measure)];
    findings.extend(client_certificate(evidence, measure));
    if let Some(found) = &evidence.sentinels {
        findings.extend([sentinels(evidence, found), failover(found, measure)]);
    }
    findings.extend(cluster_failover(evidence, measure));
    findings.extend([
        latency(evidence, measure),
        packets(evidence),
        timeouts(evidence, measure),
        clocks(evidence, measure),
        server(evidence),
        role(evidence),
        replicas(evidence),
        sync(evidence),
        cluster(evidence),
        eviction(evidence),
        clients(evidence),
        writes(evidence),
        persistence(evidence, measure),
        uptime(evidence, measure),
        commands(evidence),
        permissions(evidence),
        scripts(evidence),
        messages(evidence),
        tracking(evidence, measure),
    ]);
    findings.extend(name(evidence));
    findings.extend(this_host(host));
    findings
}

/// The checks that decide: while one of them couldn't be done, it isn't known whether locks are safe there, or
/// can be acquired at all.
const DECIDING: [&str; 10] = [
    "connection",
    "server",
    "role",
    "cluster",
    "eviction",
    "writes",
    "commands",
    "permissions",
    "scripts",
    "name",
];

/// Whether a server is fit to hold locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fit,
    /// These checks decide, and couldn't be done.
    NotKnown(Vec<&'static str>),
    Unfit,
}

pub fn verdict(findings: &[Finding]) -> Verdict {
    if findings.iter().any(|it| it.level == Level::Fail) {
        return Verdict::Unfit;
    }
    let unknown = findings.iter().filter(|it| it.level == Level::Unknown);
    let undecided: Vec<_> = unknown
        .map(|finding| finding.check)
        .filter(|check| DECIDING.contains(check))
        .collect();
    if undecided.is_empty() {
        Verdict::Fit
    } else {
        Verdict::NotKnown(undecided)
    }
}

/// A line and what a reader is to know of it, in a comment.
fn with_notes(line: &str, notes: &[&str]) -> String {
    match notes {
        [] => line.to_owned(),
        _ => format!("{line}  # {}", notes.join(", ")),
    }
}

/// The command that changes a setting of the server, now and for its next start.
fn config_set(evidence: &Evidence, repair: Repair, name: &str, value: &str) -> Fix {
    let cli = &evidence.redis_cli;
    let set = cli.admin_line(&["CONFIG", "SET", name, value]);
    let mut notes: Vec<&str> = cli.note().into_iter().collect();
    let has_file = matches!(&evidence.info, Ok(info) if info.text("config_file").is_some());
    repair.by(if has_file {
        let rewrite = cli.admin_line(&["CONFIG", "REWRITE"]);
        with_notes(&format!("{set} && {rewrite}"), &notes)
    } else {
        // It can't write down what it was given on its command line.
        notes.push("and in redis.conf");
        with_notes(&set, &notes)
    })
}

/// A message of an error in two parts: what is so, and what to do. Which server it is stands above.
fn in_parts(evidence: &Evidence, error: &Error) -> (String, Option<String>) {
    let message = error.message();
    let whose = format!("Redis at {} ", evidence.place);
    let message = message.strip_prefix(&whose).unwrap_or(message);
    let message = message.strip_prefix("is not ready: ").unwrap_or(message);
    match message.split_once("; ") {
        Some((message, fix)) => (message.to_owned(), Some(fix.to_owned())),
        None => (message.to_owned(), None),
    }
}

/// A time as short as a table has it: `0.02 ms`, `0.3 ms`, `12 ms`, `1.4 s`.
pub fn short(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    match ms {
        ..0.1 => format!("{ms:.2} ms"),
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1000.0),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A size in the unit that fits: `900 bytes`, `15 kB`, `1.5 MB`.
fn size(bytes: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // One digit is shown.
    let bytes_f = bytes as f64;
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..1_000_000 => format!("{:.0} kB", bytes_f / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes_f / 1e6),
        _ => format!("{:.1} GB", bytes_f / 1e9),
    }
}

/// `1 replica`, `2 replicas`.
pub fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn rounded_up(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + 1)
}

/// Whether an error says that the server can't be written to, and not that something is wrong with us.
fn refuses_writes(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NotNow | ErrorKind::Replica)
}

/// The reasons why checks couldn't be done, each with the checks.
pub fn not_known(findings: &[Finding]) -> Vec<(Unknown, Vec<&'static str>)> {
    let mut reasons: Vec<(Unknown, Vec<&'static str>)> = Vec::new();
    for finding in findings {
        let Some(why) = &finding.unknown else {
            continue;
        };
        match reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, checks)) => checks.push(finding.check),
            None => reasons.push((why.clone(), vec![finding.check])),
        }
    }
    reasons
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use self::tests::healthy;

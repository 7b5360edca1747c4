//! What is made of the evidence: each check is a function from what was found to a finding. Pure.

mod host;
mod locks;
mod network;
mod server;

use std::time::Duration;

use self::host::this_host;
use self::locks::{commands, messages, name, permissions, scripts, tracking};
use self::network::{
    client_certificate, clocks, connection, failover, latency, sentinels, timeouts, tls,
};
use self::server::{
    clients, cluster, eviction, persistence, replicas, role, server, sync, uptime, writes,
};
use super::finding::{Check, Finding};
use super::host::Host;
use crate::lock::doctor::{Evidence, Info, Unknown};
use crate::lock::{Error, ErrorKind};
use crate::report::command_line;

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
        self.ttl / 3
    }
}

/// All findings, in the order in which they are shown.
pub fn all(evidence: &Evidence, host: &Host, measure: Measure) -> Vec<Finding> {
    let mut findings = vec![connection(evidence), tls(evidence, measure)];
    findings.extend(client_certificate(evidence, measure));
    if let Some(found) = &evidence.sentinels {
        findings.extend([sentinels(evidence, found), failover(found, measure)]);
    }
    findings.extend([
        latency(evidence, measure),
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

/// A command for the server, as it is typed.
fn redis_cli(evidence: &Evidence, words: &[&str]) -> String {
    let words = words.iter().map(|&word| word.to_owned());
    let all: Vec<String> = evidence.redis_cli.iter().cloned().chain(words).collect();
    command_line(&all)
}

/// The command that changes a setting of the server, now and for its next start.
fn config_set(evidence: &Evidence, name: &str, value: &str) -> String {
    let set = redis_cli(evidence, &["CONFIG", "SET", name, value]);
    let has_file = matches!(&evidence.info, Ok(info) if info.text("config_file").is_some());
    if has_file {
        let rewrite = redis_cli(evidence, &["CONFIG", "REWRITE"]);
        format!("{set} && {rewrite}")
    } else {
        // It can't write down what it was given on its command line.
        format!("{set}  # and in redis.conf")
    }
}

/// A message of an error in two parts: what is so, and what to do. Which server it is stands above.
fn in_parts(evidence: &Evidence, error: &Error) -> (String, Option<String>) {
    let message = error.to_string();
    let whose = format!("Redis at {} ", evidence.place);
    let message = message.strip_prefix(&whose).unwrap_or(&message);
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

/// The finding of a check that reads INFO.
fn by_info(evidence: &Evidence, check: Check, judge: impl FnOnce(&Info) -> Finding) -> Finding {
    match &evidence.info {
        Ok(info) => judge(info),
        Err(why) => check.unknown(why),
    }
}

/// Whether an error says that the server can't be written to, and not that something is wrong with us.
fn refuses_writes(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NotNow | ErrorKind::Replica)
}

/// The reasons why checks couldn't be done, each with the checks; and the rule that would permit it.
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

/// What would make a check possible.
pub fn permit(evidence: &Evidence, why: &Unknown) -> Option<String> {
    let Unknown::Denied(command) = why else {
        return None;
    };
    let rule = match *command {
        "CONFIG" => "+config|get".to_owned(),
        command => format!("+{}", command.to_lowercase()),
    };
    let user = evidence.user.as_deref().unwrap_or("default");
    Some(redis_cli(evidence, &["ACL", "SETUSER", user, &rule]))
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use self::tests::healthy;

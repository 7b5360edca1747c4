//! A question to one sentinel, and its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::super::connection::Connection;
use super::super::nodes::{KnownReplica, PRIORITY};
use super::super::replication::address;
use super::super::reply::{field, lossy_text};
use super::super::server::Server;
use super::super::url::Address;
use super::super::{Error, ErrorKind};
use super::heard::{Answer, Heard};

/// What a sentinel is asked.
#[derive(Clone)]
pub(super) struct Question {
    /// The name of the primary.
    pub(super) primary: String,
    pub(super) with_replicas: bool,
    /// Its own state is part of the question, after its replicas.
    pub(super) for_report: bool,
    /// Where the answer is noted.
    pub(super) heard: Arc<Heard>,
}

/// Asks a sentinel, all `within` a time.
pub(super) fn ask(
    sentinel: &Arc<Server>,
    question: &Question,
    within: Duration,
) -> Result<Answer, Error> {
    let about = |what: &str| {
        let mut command = cmd("SENTINEL");
        command.arg(what).arg(&question.primary);
        command
    };
    let mut own_id = cmd("SENTINEL");
    own_id.arg("MYID");
    let mut questions = vec![about("MASTER"), about("GET-MASTER-ADDR-BY-NAME"), own_id];
    if question.with_replicas {
        questions.push(about("REPLICAS"));
    }
    if question.for_report {
        questions.push(cmd("INFO").arg("sentinel").clone());
    }
    let began = Instant::now();
    let (_, answers) = Connection::open(sentinel, within, within, &questions)?;
    let by = sentinel.to_string();
    let lacks = |what: &str| {
        let message = format!("the sentinel at {by} gave an answer without {what}");
        Error::new(ErrorKind::Unreachable, message)
    };
    let said = |name| answers.first().and_then(|answer| field(answer, name));
    // A sentinel that replaces the primary calls the next one so only here.
    let (host, port) = match answers.get(1) {
        Some(Value::Array(place)) if place.len() == 2 => {
            (Some(lossy_text(&place[0])), Some(lossy_text(&place[1])))
        }
        _ => (said("ip"), said("port")),
    };
    let host = host.filter(|host| !host.is_empty());
    let port = port.and_then(|port| port.parse().ok());
    let (Some(host), Some(port)) = (host, port) else {
        return Err(lacks("an address"));
    };
    let replicas = match answers.get(3) {
        Some(Value::Array(replicas)) => replicas.iter().map(known_replica).collect(),
        // No list is not an empty one.
        _ if question.with_replicas => return Err(lacks("the replicas")),
        _ => Vec::new(),
    };
    let tls = matches!(sentinel.address(), Address::Tcp { tls: true, .. });
    let number = |name| said(name).and_then(|number| number.parse().ok());
    let report = answers.get(4).map(lossy_text).unwrap_or_default();
    let answer = Answer {
        id: match answers.get(2) {
            Some(Value::BulkString(_)) => lossy_text(&answers[2]),
            _ => by.clone(),
        },
        by,
        address: Address::Tcp { host, port, tls },
        sentinels: number("num-other-sentinels").map_or(1, |others| {
            usize::try_from(others).map_or(usize::MAX, |others| others.saturating_add(1))
        }),
        quorum: said("quorum").and_then(|number| number.parse().ok()),
        is_tilted: report.contains("sentinel_tilt:1"),
        down_after: number("down-after-milliseconds").map(Duration::from_millis),
        replicas,
    };
    question.heard.note(&answer, began.elapsed());
    Ok(answer)
}

pub fn known_replica(value: &Value) -> KnownReplica {
    let text = |name| field(value, name).unwrap_or_default();
    let (flags, host) = (text("flags"), text("master-host"));
    let is_primary = text("role-reported") == "master";
    KnownReplica {
        address: address(&text("ip"), &text("port")),
        priority: text("slave-priority").parse().unwrap_or(PRIORITY),
        // This sentinel has had no INFO of a replica without a primary (`info-refresh` 0) since it lists that, as of a former
        // primary that is dead. Such a replica is promoted only after the sentinel has heard of it.
        is_down: !is_primary && host == "?"
            || flags
                .split(',')
                .any(|flag| flag == "s_down" || flag == "o_down"),
        // It has followed no primary since this sentinel lists it. A replica that is just being promoted calls itself a
        // primary, too: that one is the last to do without.
        is_former: is_primary && matches!(&*host, "" | "?"),
    }
}

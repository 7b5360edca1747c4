//! A question to one sentinel, and its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::super::connection::Connection;
use super::super::reply::{field, lossy_text};
use super::super::server::Server;
use super::super::url::{Address, with_port};
use super::super::{Error, ErrorKind};
use super::heard::{Answer, Heard};
use super::replicas::KnownReplica;

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
    let about = |what: &str| cmd("SENTINEL").arg(what).arg(&question.primary).clone();
    let mut questions = vec![
        about("MASTER"),
        about("GET-MASTER-ADDR-BY-NAME"),
        cmd("SENTINEL").arg("MYID").clone(),
    ];
    if question.with_replicas {
        questions.push(about("REPLICAS"));
    }
    if question.for_report {
        questions.push(cmd("INFO").arg("sentinel").clone());
    }
    let began = Instant::now();
    let (_, answers) = Connection::open(sentinel, within, &questions)?;
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
    let port = port.and_then(|port| port.parse::<u16>().ok());
    let (Some(host), Some(port)) = (host, port) else {
        return Err(lacks("an address"));
    };
    let replicas = match answers.get(3) {
        Some(Value::Array(replicas)) => {
            let replaced = KnownReplica::replaced(&answers[0], &with_port(&host, port.to_string()));
            let listed = replicas.iter().map(KnownReplica::parse);
            listed.chain(replaced).collect()
        }
        // No list is not an empty one.
        _ if question.with_replicas => return Err(lacks("the replicas")),
        _ => Vec::new(),
    };
    let tls = sentinel.address.has_tls();
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

//! A question to one sentinel, and its answer.

use std::sync::Arc;
use std::time::Duration;

use redis::{Value, cmd};

use super::super::connection::Connection;
use super::super::endpoint::Server;
use super::super::reply::{field, lossy_text};
use super::super::url::{Address, with_port};
use super::super::{Error, ErrorKind};
use super::replicas::KnownReplica;

/// A sentinel's answer.
#[derive(Clone, Debug)]
pub struct SentinelAnswer {
    /// The sentinel, as the URL names it.
    pub by: String,
    /// ID of the sentinel, or its name in the URL if it has none (Redis 6.0).
    pub(super) id: String,
    /// Address of the primary.
    pub address: Address,
    /// Number of sentinels that this one knows, itself included.
    pub sentinels: usize,
    /// Number of sentinels that must call the primary dead before they replace it.
    pub quorum: Option<usize>,
    /// True if its clock has jumped, so that it calls no server dead. Known only from a report.
    pub is_tilted: bool,
    /// Time after which the sentinel calls a silent primary dead, if it says that.
    pub(super) down_after: Option<Duration>,
    /// All replicas that the sentinel lists. Empty unless the question was about replicas or for a report.
    pub replicas: Vec<KnownReplica>,
}

/// Subject of a question to a sentinel. Each includes the ones before it.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Subject {
    Primary,
    Replicas,
    /// The state of the sentinel itself.
    Report,
}

/// Asks a sentinel about the primary of this name, all `within` a time.
pub(super) fn ask(
    sentinel: &Arc<Server>,
    primary: &str,
    about: Subject,
    within: Duration,
) -> Result<SentinelAnswer, Error> {
    let of_primary = |what: &str| cmd("SENTINEL").arg(what).arg(primary).clone();
    let mut questions = vec![
        of_primary("MASTER"),
        of_primary("GET-MASTER-ADDR-BY-NAME"),
        cmd("SENTINEL").arg("MYID").clone(),
        of_primary("REPLICAS"),
        cmd("INFO").arg("sentinel").clone(),
    ];
    questions.truncate(3 + about as usize);
    let (_, answers) = Connection::open(sentinel, within, &questions)?;
    let by = sentinel.to_string();
    let lacks = |what: &str| {
        let message = format!("the sentinel at {by} gave an answer without {what}");
        Error::new(ErrorKind::Unreachable, message)
    };
    let reported = |name| answers.first().and_then(|answer| field(answer, name));
    // A sentinel that is replacing the primary names the next one only in this answer.
    let place: Vec<String> = match answers.get(1) {
        Some(Value::Array(place)) => place.iter().map(lossy_text).collect(),
        _ => ["ip", "port"].into_iter().filter_map(reported).collect(),
    };
    let (host, port) = match &place[..] {
        [host, port] if !host.is_empty() => (host.clone(), port.parse::<u16>().ok()),
        _ => return Err(lacks("an address")),
    };
    let port = port.ok_or_else(|| lacks("an address"))?;
    let replicas = match answers.get(3) {
        Some(Value::Array(replicas)) => {
            let replaced = KnownReplica::replaced(&answers[0], &with_port(&host, port.to_string()));
            let listed = replicas.iter().map(KnownReplica::parse);
            listed.chain(replaced).collect()
        }
        // A missing list differs from an empty one.
        _ if about >= Subject::Replicas => return Err(lacks("the replicas")),
        _ => Vec::new(),
    };
    let tls = sentinel.address.has_tls();
    let number = |name| reported(name).and_then(|number| number.parse::<usize>().ok());
    let report = answers.get(4).map(lossy_text).unwrap_or_default();
    Ok(SentinelAnswer {
        id: match answers.get(2) {
            Some(Value::BulkString(_)) => lossy_text(&answers[2]),
            _ => by.clone(),
        },
        by,
        address: Address::Tcp { host, port, tls },
        sentinels: number("num-other-sentinels").map_or(1, |others| others.saturating_add(1)),
        quorum: number("quorum"),
        is_tilted: report.contains("sentinel_tilt:1"),
        down_after: reported("down-after-milliseconds")
            .and_then(|ms| ms.parse().ok())
            .map(Duration::from_millis),
        replicas,
    })
}

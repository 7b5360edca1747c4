//! What each sentinel says of the primary.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::super::connection::Connection;
use super::super::replication::address;
use super::super::scripts::lossy_text;
use super::super::sentinel::{Fields, Sentinels, known_replica};
use super::super::server::Server;
use super::evidence::{Sentinel, SentinelAnswer, SentinelEvidence, Unknown};
use super::{left, text};

/// How long a sentinel is waited for.
const WITHIN: Duration = Duration::from_secs(1);

/// Sentinels that are being asked.
pub(super) struct Questioned {
    primary: String,
    origin: Option<String>,
    sentinels: Vec<(Arc<Server>, Option<Answering>)>,
}

/// The answer, and whether our user is an administrator there.
type Answering = JoinHandle<Result<(SentinelAnswer, bool), Unknown>>;

/// Starts to ask all of them at once.
pub(super) fn ask_all(sentinels: &Sentinels, until: Instant) -> Questioned {
    let until = until.min(Instant::now() + WITHIN);
    let primary = sentinels.primary().to_owned();
    let ask_one = |node: &Arc<Server>| {
        let (server, name) = (Arc::clone(node), primary.clone());
        let asking = thread::Builder::new()
            .name("sentinel".into())
            .spawn(move || ask(&server, &name, until));
        (Arc::clone(node), asking.ok())
    };
    Questioned {
        origin: sentinels.nodes().first().and_then(|it| it.url_origin()),
        sentinels: sentinels.nodes().iter().map(ask_one).collect(),
        primary,
    }
}

impl Questioned {
    pub(super) fn finish(self) -> SentinelEvidence {
        let finish = |answering: Option<Answering>| {
            let answer = answering.and_then(|thread| thread.join().ok());
            answer.unwrap_or_else(|| Err(Unknown::Failed("it could not be asked".into())))
        };
        let answers = self.sentinels.into_iter();
        let known = |(server, answering): (Arc<Server>, _)| {
            let (answer, redis_cli) = match finish(answering) {
                Ok((answer, is_admin)) => (Ok(answer), server.redis_cli().of_admin(is_admin)),
                Err(why) => (Err(why), server.redis_cli()),
            };
            let place = server.to_string();
            (Sentinel { place, redis_cli }, answer)
        };
        SentinelEvidence {
            primary: self.primary,
            origin: self.origin,
            answers: answers.map(known).collect(),
        }
    }
}

fn ask(
    server: &Arc<Server>,
    primary: &str,
    until: Instant,
) -> Result<(SentinelAnswer, bool), Unknown> {
    let within = left(until);
    let mut question = cmd("SENTINEL");
    question.arg("MASTER").arg(primary);
    let (mut connection, answers) = Connection::open_asking(server, within, within, &[question])
        .map_err(|error| Unknown::Failed(error.message().to_owned()))?;
    let fields = answers.first().map(Fields::new).unwrap_or_default();
    let number = |name| -> Option<u64> { fields.get(name)?.parse().ok() };
    let millis = |name| number(name).map(Duration::from_millis);
    let about = |what: &str| cmd("SENTINEL").arg(what).arg(primary).clone();
    // Where these aren't permitted, the rest is known.
    let users = cmd("ACL").arg("USERS").clone();
    let own_id = cmd("SENTINEL").arg("MYID").clone();
    let questions = [about("REPLICAS"), about("CKQUORUM"), users, own_id];
    let began = Instant::now();
    let more = connection.query_each(&questions, left(until));
    let took = began.elapsed();
    let more = more.unwrap_or_default();
    let replicas = match more.first() {
        Some(Value::Array(list)) => Ok(list.iter().map(known_replica).collect()),
        other => Err(text("SENTINEL REPLICAS", other.cloned())
            .err()
            .unwrap_or(Unknown::NoAnswer)),
    };
    let no_quorum = match more.get(1) {
        Some(Value::ServerError(error)) if error.code() == "NOQUORUM" => {
            Some(error.details().unwrap_or_default().to_owned())
        }
        _ => None,
    };
    let id = match more.get(3) {
        Some(Value::BulkString(_)) => lossy_text(&more[3]),
        _ => server.to_string(),
    };
    let is_admin = server.username.is_none() || matches!(more.get(2), Some(Value::Array(_)));
    let (host, port) = (fields.get("ip"), fields.get("port"));
    let answer = SentinelAnswer {
        id,
        took,
        primary: host
            .zip(port)
            .map(|(host, port)| address(&host, &port))
            .unwrap_or_default(),
        flags: fields.get("flags").unwrap_or_default(),
        quorum: number("quorum").unwrap_or(0),
        sentinels: number("num-other-sentinels").map_or(0, |others| others + 1),
        replicas,
        no_quorum,
        down_after: millis("down-after-milliseconds").unwrap_or_default(),
        failover_timeout: millis("failover-timeout").unwrap_or_default(),
    };
    Ok((answer, is_admin))
}

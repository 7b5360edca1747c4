//! The answer of each sentinel about the primary.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::answers::{question, why_not};
use super::facts::{Known, Sentinel, SentinelAnswer, SentinelEvidence, Unknown};
use super::info::address;
use crate::protocol::{Answer, Endpoint};

/// How long a sentinel is waited for.
const WITHIN: Duration = Duration::from_secs(1);

/// Sentinels that are being asked.
pub(super) struct Questioned {
    primary: String,
    origin: Option<String>,
    sentinels: Vec<(Endpoint, Option<Answering>)>,
}

/// The answer, and whether our user is an administrator there.
type Answering = JoinHandle<Known<(SentinelAnswer, bool)>>;

/// Starts to ask all of them at once.
pub(super) fn ask_all(primary: String, nodes: Vec<Endpoint>, until: Instant) -> Questioned {
    let until = until.min(Instant::now() + WITHIN);
    let origin = nodes.first().and_then(|node| node.about().origin);
    let ask_one = |node: Endpoint| {
        let (server, name) = (node.clone(), primary.clone());
        let asking = thread::Builder::new()
            .name("sentinel".into())
            .spawn(move || ask(&server, &name, until));
        (node, asking.ok())
    };
    Questioned {
        origin,
        sentinels: nodes.into_iter().map(ask_one).collect(),
        primary,
    }
}

impl Questioned {
    pub(super) fn finish(self) -> SentinelEvidence {
        let finish = |(server, answering): (Endpoint, Option<Answering>)| {
            let answer = answering.and_then(|thread| thread.join().ok());
            let failed = || Err(Unknown::Failed("the connection to it failed".into()));
            let redis_cli = server.about().redis_cli;
            let (answer, redis_cli) = match answer.unwrap_or_else(failed) {
                Ok((answer, is_admin)) => (Ok(answer), redis_cli.of_admin(is_admin)),
                Err(why) => (Err(why), redis_cli),
            };
            let place = server.to_string();
            (Sentinel { place, redis_cli }, answer)
        };
        SentinelEvidence {
            primary: self.primary,
            origin: self.origin,
            answers: self.sentinels.into_iter().map(finish).collect(),
        }
    }
}

fn ask(server: &Endpoint, primary: &str, until: Instant) -> Known<(SentinelAnswer, bool)> {
    let about = |what: &str| question(&["SENTINEL", what, primary]);
    let (mut connection, answers) = server
        .open(&[about("MASTER")], until)
        .map_err(|error| Unknown::Failed(error.message().to_owned()))?;
    let field = |name| answers.first().and_then(|fields| fields.field(name));
    let number = |name| -> Option<u64> { field(name)?.parse().ok() };
    let millis = |name| Duration::from_millis(number(name).unwrap_or_default());
    // Where these aren't permitted, the rest is known.
    let (users, own_id) = (question(&["ACL", "USERS"]), question(&["SENTINEL", "MYID"]));
    let questions = [about("REPLICAS"), about("CKQUORUM"), users, own_id];
    let began = Instant::now();
    let more = connection.ask(&questions, until);
    let took = began.elapsed();
    let mut more = more.unwrap_or_default().into_iter();
    let [replicas, quorum, users, own_id] = std::array::from_fn(|_| more.next());
    let replicas = match replicas.as_ref().and_then(Answer::list) {
        Some(list) => Ok(list.iter().map(Answer::replica).collect()),
        None => Err(why_not("SENTINEL REPLICAS", replicas)),
    };
    let no_quorum = quorum.as_ref().and_then(Answer::refusal);
    let no_quorum = no_quorum.filter(|refusal| refusal.code() == "NOQUORUM");
    let id = own_id.map(|id| id.text()).filter(|id| !id.is_empty());
    let place = field("ip").zip(field("port"));
    let answer = SentinelAnswer {
        id: id.unwrap_or_else(|| server.to_string()),
        took,
        primary: place.map_or_else(String::new, |(host, port)| address(&host, &port)),
        flags: field("flags").unwrap_or_default(),
        quorum: number("quorum").unwrap_or(0),
        sentinels: number("num-other-sentinels").map_or(0, |others| others + 1),
        replicas,
        no_quorum: no_quorum.map(|refusal| refusal.details().to_owned()),
        down_after: millis("down-after-milliseconds"),
        failover_timeout: millis("failover-timeout"),
    };
    let is_admin = !server.has_user() || users.as_ref().and_then(Answer::list).is_some();
    Ok((answer, is_admin))
}

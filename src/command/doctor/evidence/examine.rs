//! Asks a server everything that matters to locks. Nothing is judged here.
//!
//! All questions end at one moment at the latest, also those to other servers. What needs several questions
//! asks them at once: over a slow line there is time for a few round trips only. Where a question fails, those
//! that don't depend on it are still asked, over a fresh connection.

use std::collections::BTreeMap;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::answers::{is_denied, is_unknown, question, text, why_not};
use super::certificate::Validity;
use super::facts::{
    Evidence, Known, NamedLock, Probe, Replica, RoundTrip, SentinelEvidence, Stranger, Subject,
    Unknown, Verdict,
};
use super::info::{Info, ReplicaEntry, other_primaries};
use super::probe::{Attempt, listening, more_questions, not_tried, questions, selecting, verdicts};
use super::replicas::{Questioned, ask_time};
use super::sentinels;
use crate::protocol::{
    About, Answer, Client, Endpoint, Error, KeyNames, Locks, Messages, Name, Question, Refusal,
    Rehearsal, Trial, Who, left,
};

/// The parts of a server's configuration that are of interest and that INFO doesn't show.
const CONFIG: [&str; 3] = ["save", "appendfsync", "timeout"];

/// The same of a node of a cluster, in milliseconds.
const NODE_TIMEOUT: &str = "cluster-node-timeout";

/// How often a question is asked for its round trip, and for how long at most.
const ROUND_TRIPS: usize = 40;
const ROUND_TRIPS_WITHIN: Duration = Duration::from_millis(250);

/// How many replicas are asked themselves, and for how long.
const REPLICAS: usize = 8;
const REPLICA_WITHIN: Duration = Duration::from_secs(1);

/// The bytes of an answer that doesn't fit in one packet, and the least time that it has.
const LONG: u32 = 4096;
const LONG_WITHIN: Duration = Duration::from_millis(300);

/// How long a replica may take to have what was written: less than `--sync-timeout`, which is a second without it.
const ACKNOWLEDGED_WITHIN_MS: &str = "500";

/// How much time is kept to remove a lock of our own after a request that failed.
const REMOVED_WITHIN: Duration = Duration::from_millis(200);

/// Asks the server everything that matters to locks, and what there is at the keys of a name, until this
/// moment. `who` is shown as the holder of a lock of our own, if anyone looks at that moment.
pub fn examine(locks: &Locks, name: Option<&Name>, who: &Who, until: Instant) -> Evidence {
    let sentinels = locks.sentinels();
    let sentinels = sentinels.map(|(primary, nodes)| sentinels::ask_all(primary, nodes, until));
    let mut evidence = examine_server(locks, name, who, until);
    evidence.sentinels = sentinels.map(sentinels::Questioned::finish);
    match (&evidence.connected, &evidence.sentinels) {
        (Ok(_), Some(found)) => {
            evidence.others = ask_others(&locks.endpoint(), found, &evidence, until);
        }
        (Err(_), Some(found)) => {
            let told = found.answered().next();
            let places = found.answers.iter().map(|(one, _)| one.place.as_str());
            let places: Vec<&str> = places.collect();
            evidence.place = told.map_or_else(
                || format!("redis-sentinel://{}/{}", places.join(","), found.primary),
                |(_, answer)| answer.primary.clone(),
            );
        }
        (_, None) => {}
    }
    evidence
}

/// Asks the servers that sentinels name and the primary doesn't. The password goes only to those that most of the
/// sentinels name.
fn ask_others(
    primary: &Endpoint,
    found: &SentinelEvidence,
    evidence: &Evidence,
    until: Instant,
) -> Vec<Replica> {
    let until = until.min(Instant::now() + REPLICA_WITHIN);
    let is_known = |place: &&str| {
        let mut replicas = evidence.replicas.iter();
        evidence.place == **place || replicas.any(|replica| replica.entry.place() == **place)
    };
    let ask = |place: &str| {
        let entry = ReplicaEntry::at(place)?;
        let server = if found.naming(place) > found.asked() / 2 {
            primary.neighbour(&entry.host, entry.port)
        } else {
            primary.neighbour_without_login(&entry.host, entry.port)
        };
        Some(Questioned::start(server, entry, until))
    };
    let others = found.servers().into_iter().filter(|it| !is_known(it));
    let asked: Vec<_> = others.filter_map(ask).take(REPLICAS).collect();
    asked.into_iter().map(Questioned::finish).collect()
}

fn examine_server(locks: &Locks, name: Option<&Name>, who: &Who, until: Instant) -> Evidence {
    let mut evidence = nothing_known(locks);
    let Ok(own_name) = format!("redlock-doctor-{:016x}", random()).parse::<Name>() else {
        return evidence;
    };
    let mut examiner = Examiner {
        locks,
        client: locks.client(),
        keys: KeyNames::new(locks.prefix(), &own_name),
        until,
    };
    let began = Instant::now();
    match examiner.connect() {
        Ok(()) => {
            // With Sentinel it is known only now which one it is.
            evidence = nothing_known(locks);
            evidence.connected = Ok(began.elapsed());
        }
        Err(error) => {
            if error.is_about_rules() {
                evidence.probes = examiner.probes_beside();
            }
            evidence.connected = Err(error);
            return evidence;
        }
    }
    let long_answer = examiner.ask_for_a_long_answer(began.elapsed());
    evidence.certificate = examiner
        .client
        .certificate()
        .as_deref()
        .and_then(Validity::of);
    (evidence.info, evidence.config) = examiner.facts();
    let info = evidence.info.as_ref().ok();
    let replicas = examiner.ask_replicas(info.map(Info::replicas).unwrap_or_default());
    let nodes = if info.is_some_and(|info| info.is_on("cluster_enabled")) {
        examiner.other_primaries()
    } else {
        Vec::new()
    };
    evidence.round_trips = examiner.round_trips();
    evidence.probes = examiner.probes();
    if let Ok(probes) = &mut evidence.probes
        && probes.iter().all(is_no_obstacle)
    {
        let more;
        (evidence.messages, evidence.scripts, more) = examiner.try_scripts(&own_name, who);
        if let Some(more) = more {
            probes.retain(|probe| probe.subject != more.subject);
            probes.push(more);
        }
        if let Some(info) = info {
            let replicas = info.number("connected_slaves").unwrap_or(0);
            evidence.acknowledged = examiner.acknowledged(replicas);
        }
    }
    evidence.named = name.map(|name| examiner.look_at(name));
    evidence.redis_cli = evidence.redis_cli.of_admin(examiner.is_admin());
    evidence.replicas = replicas.into_iter().map(Questioned::finish).collect();
    evidence.nodes = nodes.into_iter().map(Questioned::finish).collect();
    evidence.long_answer = long_answer
        .and_then(|asking| asking.join().ok())
        .unwrap_or(Err(Unknown::NotAsked));
    evidence
}

fn nothing_known(locks: &Locks) -> Evidence {
    let server = locks.endpoint();
    let about = server.about();
    let slot = locks.hash_slot();
    Evidence {
        place: server.to_string(),
        is_local: locks.are_local(),
        redis_cli: about.redis_cli,
        is_typed: about.is_typed,
        prefix: locks.prefix().to_owned(),
        prefix_has_tag: slot.is_some(),
        user: about.user,
        transport: about.transport,
        timeout: about.timeout,
        connected: Err(server.silent_error()),
        certificate: None,
        own_certificate: about.certificate.as_deref().and_then(Validity::of),
        info: Err(Unknown::NotAsked),
        config: BTreeMap::new(),
        round_trips: Err(Unknown::NotAsked),
        replicas: Vec::new(),
        nodes: Vec::new(),
        others: Vec::new(),
        long_answer: Err(Unknown::NotAsked),
        slot,
        knows_replicas: locks.may_fail_over(),
        probes: Err(Unknown::NotAsked),
        scripts: Err(Unknown::NotAsked),
        messages: Err(Unknown::NotAsked),
        named: None,
        sentinels: None,
        acknowledged: Err(Unknown::NotAsked),
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without them another doctor may have the same name, and both try the scripts at once.
    let _ = getrandom::fill(&mut bytes);
    u64::from_be_bytes(bytes)
}

/// Asks all of it over one connection after the other.
struct Examiner<'a> {
    locks: &'a Locks,
    client: Client,
    /// Those of a lock of our own.
    keys: KeyNames,
    until: Instant,
}

impl Examiner<'_> {
    /// Connects; and asks something, as a server lets everyone connect.
    fn connect(&mut self) -> Result<(), Error> {
        let exists = question(&["EXISTS", &self.keys.lock]);
        let answers = self.client.ask(&[exists], self.until)?;
        match answers.first().and_then(Answer::refusal) {
            Some(refusal) if keeps_out(refusal) => Err(self.server().error(refusal)),
            _ => Ok(()),
        }
    }

    /// Asks at once, where an error means that it isn't known. Some proxies close the connection at `what` they don't
    /// know.
    fn ask(&mut self, what: &'static str, questions: &[Question]) -> Known<Vec<Answer>> {
        let answers = self.client.ask(questions, self.until);
        answers.map_err(|error| failure(what, &error, self.until))
    }

    /// INFO, and parts of the configuration.
    fn facts(&mut self) -> (Known<Info>, BTreeMap<&'static str, Known<String>>) {
        // A node of a cluster says how soon it takes another one for dead, too.
        let of_node = self.about().is_node.then_some(NODE_TIMEOUT);
        let names: Vec<&str> = CONFIG.into_iter().chain(of_node).collect();
        let mut asked = vec![question(&["INFO"])];
        asked.extend(names.iter().map(|name| question(&["CONFIG", "GET", name])));
        let answers = match self.ask("INFO", &asked) {
            Ok(answers) => answers,
            Err(why) => {
                let all = names.into_iter().map(|name| (name, Err(why.clone())));
                return (Err(why.clone()), all.collect());
            }
        };
        let mut answers = answers.into_iter();
        let info = text("INFO", answers.next()).map(|text| Info::parse(&text));
        let config = names.into_iter().zip(answers).map(|(name, answer)| {
            let value = match answer.list() {
                Some(pair) => Ok(pair.get(1).map(Answer::text).unwrap_or_default()),
                None => text("CONFIG", Some(answer)),
            };
            (name, value)
        });
        (info, config.collect())
    }

    /// Whether our user is an administrator, by a question that only they are permitted; as a user that isn't named,
    /// it counts as one.
    fn is_admin(&mut self) -> bool {
        let asked = [question(&["ACL", "USERS"])];
        !self.server().has_user()
            || self
                .client
                .ask(&asked, self.until)
                .is_ok_and(|answers| answers.first().and_then(Answer::list).is_some())
    }

    /// Starts to ask for an answer that is longer than a packet; `took` is how long it took to connect.
    fn ask_for_a_long_answer(&self, took: Duration) -> Option<JoinHandle<Known<()>>> {
        let server = self.server();
        let until = self.until.min(Instant::now() + (took * 2).max(LONG_WITHIN));
        let end = self.until;
        let asking = thread::Builder::new().name("long".into());
        let asking = asking.spawn(move || ask_for_a_long_answer(&server, until, end));
        asking.ok()
    }

    /// Starts to ask the replicas, all at once.
    fn ask_replicas(&self, entries: Vec<ReplicaEntry>) -> Vec<Questioned> {
        let until = self.until.min(Instant::now() + REPLICA_WITHIN);
        let server = self.server();
        let ask = |entry: ReplicaEntry| {
            let server = server.neighbour(&entry.host, entry.port);
            Questioned::start(server, entry, until)
        };
        entries.into_iter().take(REPLICAS).map(ask).collect()
    }

    /// Starts to ask the other primaries of a cluster.
    fn other_primaries(&mut self) -> Vec<Questioned> {
        let answers = self.ask("CLUSTER", &[question(&["CLUSTER", "NODES"])]);
        let nodes = text("CLUSTER", answers.unwrap_or_default().into_iter().next());
        self.ask_replicas(other_primaries(&nodes.unwrap_or_default()))
    }

    /// Asks for the time again and again; that it isn't permitted is an answer, too.
    fn round_trips(&mut self) -> Known<Vec<RoundTrip>> {
        let end = self.until.min(Instant::now() + ROUND_TRIPS_WITHIN);
        let mut found = Vec::new();
        while found.len() < ROUND_TRIPS && (found.is_empty() || Instant::now() < end) {
            match ask_time(|question| self.client.ask(question, self.until)) {
                Ok((took, clock)) => found.push(RoundTrip {
                    took,
                    clock: clock.ok(),
                }),
                Err(_) if !found.is_empty() => break,
                Err(_) => return Err(Unknown::NoAnswer),
            }
        }
        Ok(found)
    }

    /// What this user may do.
    fn probes(&mut self) -> Known<Vec<Probe>> {
        let about = self.about();
        let keys = self.keys.clone();
        probes(&keys, &about, |questions, is_last| {
            if is_last {
                self.ask_plainly(questions)
            } else {
                self.ask("", questions)
            }
        })
    }

    /// The same where a connection doesn't come to the first question, as a rule for that is missing. By sentinels
    /// no server is known then.
    fn probes_beside(&self) -> Known<Vec<Probe>> {
        let about = self.about();
        if about.is_named {
            return Err(Unknown::NotAsked);
        }
        probes(&self.keys, &about, |questions, _| {
            self.ask_plainly(questions)
        })
    }

    /// Asks over a connection of its own, which is in RESP2 and has no database.
    fn ask_plainly(&self, questions: &[Question]) -> Known<Vec<Answer>> {
        ask_once(&self.server().plain(), questions, self.until)
            .map_err(|error| Unknown::Failed(error.to_string()))
    }

    /// Acquires, waits, hands on and all else, as holders and waiters do; what a waiter gets to know of it, and
    /// the rule that it would need.
    fn try_scripts(
        &mut self,
        name: &Name,
        who: &Who,
    ) -> (Known<Messages>, Known<Trial>, Option<Probe>) {
        let mut rehearsal = match Rehearsal::start(self.locks, name, who, self.until) {
            Ok(rehearsal) => rehearsal,
            Err(error) => {
                let why = Unknown::Failed(error.to_string());
                return (Err(why.clone()), Err(why), None);
            }
        };
        let missing = self.why_unheard(&mut rehearsal);
        let until = self.until.checked_sub(REMOVED_WITHIN).unwrap_or(self.until);
        let trial = rehearsal.call_all(&mut self.client, until);
        let trial = trial.map_err(|error| {
            let why = failure("", &error, until);
            // The end of the request may have got lost as well.
            rehearsal.remove(&mut self.client, self.until);
            why
        });
        if matches!(&trial, Ok(trial) if trial.failure.is_none()) {
            rehearsal.listen();
            (Ok(rehearsal.heard), trial, missing)
        } else {
            (Err(Unknown::NotAsked), trial, missing)
        }
    }

    /// Why the waiter hears nothing: the rule that is missing for it, or else what was refused.
    fn why_unheard(&self, rehearsal: &mut Rehearsal) -> Option<Probe> {
        let channel = rehearsal.channel();
        let heard = &mut rehearsal.heard;
        // In RESP2 a subscription has an answer like any other command.
        let (asked, subject) = match (heard.resp3, heard.is_sharded) {
            _ if heard.is_subscribed => return None,
            (true, true) => (question(&["SSUBSCRIBE", &channel]), "ssubscribe"),
            (true, false) => (question(&["SUBSCRIBE", &channel]), "subscribe"),
            (false, _) => (question(&["HELLO", "3"]), "hello"),
        };
        let answers = self.locks.client().ask(&[asked], self.until);
        let said = match &answers {
            Ok(answers) => answers.first().and_then(Answer::refusal),
            Err(error) if is_closed(error) => {
                heard.refused = Some("it closes the connection when asked".into());
                None
            }
            Err(error) => {
                heard.refused = Some(error.to_string());
                None
            }
        };
        let refusal = said?;
        if !refusal.is_by_rule() {
            heard.refused = Some(refusal.to_string());
            return None;
        }
        let subject = if is_denied(refusal) {
            Subject::Optional(subject)
        } else {
            Subject::Channels(self.keys.starts.1.clone())
        };
        let verdict = Verdict::Denied;
        Some(Probe { subject, verdict })
    }

    /// How many of the replicas have what has been written so far.
    fn acknowledged(&mut self, replicas: u64) -> Known<u64> {
        if replicas == 0 {
            return Ok(0);
        }
        let wait = question(&["WAIT", &replicas.to_string(), ACKNOWLEDGED_WITHIN_MS]);
        let answer = self.ask("WAIT", &[wait])?.into_iter().next();
        match answer.as_ref().and_then(Answer::number) {
            Some(many) => Ok(many),
            None => Err(why_not("WAIT", answer)),
        }
    }

    fn server(&self) -> Endpoint {
        self.locks.endpoint()
    }

    fn about(&self) -> About {
        self.server().about()
    }

    /// What is at the keys of a name.
    fn look_at(&mut self, name: &Name) -> Known<NamedLock> {
        let look = self.locks.look_at(&mut self.client, name, self.until);
        let look = look.map_err(|error| failure("TYPE", &error, self.until))?;
        let mut strangers = Vec::new();
        for (key, expected, answer) in look.types {
            let found = text("TYPE", Some(answer))?;
            if found != "none" && found != expected {
                strangers.push(Stranger {
                    key,
                    found,
                    expected,
                });
            }
        }
        let found = match look.found {
            Err(error) if strangers.is_empty() => return Err(Unknown::Failed(error.to_string())),
            found => found.ok().flatten(),
        };
        let key = KeyNames::new(self.locks.prefix(), name).lock;
        Ok(NamedLock {
            key,
            strangers,
            found,
        })
    }
}

/// Whether a server that answers so answers nothing else.
fn keeps_out(refusal: Refusal<'_>) -> bool {
    let details = refusal.details();
    matches!(refusal.code(), "NOAUTH" | "DENIED" | "LOADING" | "BUSY")
        || details.contains("max number of clients")
        || details.contains("unauthenticated")
}

fn is_closed(error: &Error) -> bool {
    error.to_string().contains("the connection was closed")
}

/// Why `what` isn't known, by this error of a question that had until then.
fn failure(what: &'static str, error: &Error, until: Instant) -> Unknown {
    match left(until) {
        Duration::ZERO => Unknown::NoAnswer,
        _ if !what.is_empty() && is_closed(error) => Unknown::Unsupported(what),
        _ => Unknown::Failed(error.to_string()),
    }
}

/// Asks what a user may do; `ask` is told which question is the last one, after which a connection is good for no
/// other.
fn probes(
    keys: &KeyNames,
    about: &About,
    mut ask: impl FnMut(&[Question], bool) -> Known<Vec<Answer>>,
) -> Known<Vec<Probe>> {
    let mut asked = questions(keys, about.is_node);
    if about.database != 0 {
        asked.push(selecting(about.database));
    }
    let words =
        |asked: &[Attempt]| -> Vec<Question> { asked.iter().map(|it| it.words.clone()).collect() };
    let mut answers = ask(&words(&asked), false)?;
    // Where it was refused for another reason than a missing rule, so are the others; and where the keys aren't
    // permitted, no other command creates one.
    let first = answers.first().and_then(Answer::refusal);
    let is_there = !first.is_some_and(|refusal| is_denied(refusal) || is_unknown(refusal));
    let more = more_questions(keys, is_there);
    answers.extend(ask(&words(&more), false)?);
    asked.extend(more);
    if !verdicts(&asked, &answers).iter().all(is_no_obstacle) {
        // No waiter will try it.
        let listening = listening(keys, about.is_node);
        if let Ok(answer) = ask(std::slice::from_ref(&listening.words), true) {
            answers.extend(answer);
            asked.push(listening);
        }
    }
    let mut found = verdicts(&asked, &answers);
    if !is_there {
        found.extend(not_tried());
    }
    Ok(found)
}

/// Whether the scripts can be tried in spite of this.
fn is_no_obstacle(probe: &Probe) -> bool {
    !probe.subject.is_needed() || probe.verdict == Verdict::Permitted
}

/// Asks over a connection of its own.
fn ask_once(
    server: &Endpoint,
    questions: &[Question],
    until: Instant,
) -> Result<Vec<Answer>, Error> {
    let (mut connection, _) = server.open(&[], until)?;
    connection.ask(questions, until)
}

/// Asks for an answer of several packets until a moment, and whether short ones arrive if it doesn't, until the `end`.
fn ask_for_a_long_answer(server: &Endpoint, until: Instant, end: Instant) -> Known<()> {
    let ask = |bytes: u32, until| {
        let script = "return string.rep('x', tonumber(ARGV[1]))";
        ask_once(
            server,
            &[question(&["EVAL", script, "0", &bytes.to_string()])],
            until,
        )
    };
    match ask(LONG, until) {
        Ok(answers) => text("EVAL", answers.into_iter().next()).map(drop),
        Err(error) if is_closed(&error) => Err(Unknown::Unsupported("EVAL")),
        Err(_) => {
            let began = Instant::now();
            ask(1, end).map_err(|error| Unknown::Failed(error.to_string()))?;
            if left(end) < (began.elapsed() * 2).max(LONG_WITHIN) {
                return Err(Unknown::Failed("there was no time left for it".into()));
            }
            // A busy host may have needed longer.
            ask(LONG, end).map_or(Err(Unknown::NoAnswer), |_| Ok(()))
        }
    }
}

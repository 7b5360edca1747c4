//! What `redlock doctor` asks a server, and the answers. Nothing is judged here.
//!
//! All questions end at one moment at the latest, also those to other servers. What needs several questions
//! asks them at once: over a slow line there is time for a few round trips only. Where a question fails, those
//! that don't depend on it are still asked, over a fresh connection.
//!
//! The scripts are tried on a name of our own, whose keys are removed by the end of the same request that
//! creates them: so nothing is left either where the answers don't come in time. Where that request may have
//! got lost on its way, they are removed over a fresh connection.

mod certificate;
mod evidence;
mod probe;
mod sentinels;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::{Cmd, ServerError, ServerErrorKind, Value, cmd};

pub use self::certificate::Validity;
pub use self::evidence::*;
use self::probe::{
    Question, is_denied, is_unknown, listening, more_questions, not_tried, questions, selecting,
    verdicts,
};
use super::claim::{acquired, checked, released, renewed};
use super::connection::{Call, Connection};
use super::error::{key_starts, quoted};
use super::inspect::{Page, inspected};
use super::name::{hash_slot, hash_tag};
use super::scripts::{
    FORCE, FREEZE, HISTORY, SKIP, STOP, THAW, array, count, lossy_text, number, unexpected_reply,
};
use super::server::{Part, Server};
use super::{
    Acquired, Claim, Client, Error, Incoming, LeaseState, Limit, Lock, Locks, Name, Place,
    QueueOptions, ReleaseMode, Released, Request, Who, ready,
};

/// The parts of a server's configuration that are of interest and that INFO doesn't show.
const CONFIG: [&str; 3] = ["save", "appendfsync", "timeout"];

/// The same of a node of a cluster, in milliseconds.
const NODE_TIMEOUT: &str = "cluster-node-timeout";

/// How often a question is asked for its round trip, and for how long at most.
const ROUND_TRIPS: usize = 40;
const ROUND_TRIPS_WITHIN: Duration = Duration::from_millis(250);

/// How many replicas are asked themselves, how often for their clock, and for how long.
const REPLICAS: usize = 8;
const CLOCK_QUESTIONS: usize = 3;
const REPLICA_WITHIN: Duration = Duration::from_secs(1);

/// The bytes of an answer that doesn't fit in one packet, and the least time that it has.
const LONG: u32 = 4096;
const LONG_WITHIN: Duration = Duration::from_millis(300);

/// How long a message that has been sent may take.
const MESSAGE_WITHIN: Duration = Duration::from_millis(250);

/// How long a replica may take to have what was written: less than `--sync-timeout`, which is a second without it.
const ACKNOWLEDGED_WITHIN_MS: u32 = 500;

/// How much time is kept to remove a lock of our own after a request that failed.
const REMOVED_WITHIN: Duration = Duration::from_millis(200);

/// The lease of a lock of our own, which is over with the request that acquires it.
const TTL: Duration = Duration::from_secs(5);

impl Locks {
    /// Asks the server everything that matters to locks, and what there is at the keys of a name, until this
    /// moment. `who` is shown as the holder of a lock of our own, if anyone looks at that moment.
    pub fn examine(&self, name: Option<&Name>, who: &Who, until: Instant) -> Evidence {
        let sentinels = self.deployment.sentinels();
        let sentinels = sentinels.map(|them| sentinels::ask_all(them, until));
        let mut evidence = self.examine_server(name, who, until);
        evidence.sentinels = sentinels.map(sentinels::Questioned::finish);
        if let (Ok(_), Some(found)) = (&evidence.connected, &evidence.sentinels) {
            evidence.others = self.ask_others(found, &evidence, until);
        }
        if let (Err(_), Some(found)) = (&evidence.connected, &evidence.sentinels) {
            let mut answers = found.answers.iter();
            let told = answers.find_map(|(_, answer)| answer.as_ref().ok());
            let places = found.answers.iter().map(|(one, _)| one.place.as_str());
            let places: Vec<&str> = places.collect();
            evidence.place = told.map_or_else(
                || format!("redis-sentinel://{}/{}", places.join(","), found.primary),
                |answer| answer.primary.clone(),
            );
        }
        evidence
    }

    /// Asks the servers that sentinels name and the primary doesn't. The password goes only to those that most of the
    /// sentinels name.
    fn ask_others(
        &self,
        found: &SentinelEvidence,
        evidence: &Evidence,
        until: Instant,
    ) -> Vec<Replica> {
        let until = until.min(Instant::now() + REPLICA_WITHIN);
        let primary = self.deployment.server();
        let is_known = |place: &&str| {
            let mut replicas = evidence.replicas.iter();
            evidence.place == *place || replicas.any(|replica| replica.entry.place() == *place)
        };
        let others = found.servers().into_iter().filter(|it| !is_known(it));
        let ask = |place: &str| {
            let entry = ReplicaEntry::at(place)?;
            let server = primary.neighbour(&entry.host, entry.port);
            let is_agreed = found.naming(place) > found.asked() / 2;
            let server = if is_agreed {
                server
            } else {
                server.without_login()
            };
            Some(Questioned::start(server, entry, until))
        };
        let asked: Vec<_> = others.filter_map(ask).take(REPLICAS).collect();
        asked.into_iter().map(Questioned::finish).collect()
    }

    fn examine_server(&self, name: Option<&Name>, who: &Who, until: Instant) -> Evidence {
        let mut evidence = self.nothing_known();
        let mut examiner = Examiner {
            locks: self,
            client: self.client(),
            until,
        };
        let own_name = format!("redlock-doctor-{:016x}", random());
        let Ok(own_name) = own_name.parse() else {
            return evidence;
        };
        let lock = self.lock(own_name);
        let began = Instant::now();
        match examiner.connect(&lock) {
            Ok(()) => {
                // With Sentinel it is known only now which one it is.
                evidence = self.nothing_known();
                evidence.connected = Ok(began.elapsed());
            }
            Err(error) => {
                if error.is_about_rules() {
                    evidence.probes = examiner.probes_beside(&lock);
                }
                evidence.connected = Err(error);
                return evidence;
            }
        }
        let long_answer = examiner.ask_for_a_long_answer(began.elapsed());
        evidence.certificate = examiner.certificate();
        (evidence.info, evidence.config) = examiner.facts();
        let entries = evidence.info.as_ref().map(Info::replicas);
        let replicas = examiner.ask_replicas(entries.unwrap_or_default());
        let is_cluster = matches!(&evidence.info, Ok(info) if info.is_on("cluster_enabled"));
        let nodes = if is_cluster {
            examiner.other_primaries()
        } else {
            Vec::new()
        };
        evidence.round_trips = examiner.round_trips();
        evidence.probes = examiner.probes(&lock);
        if let Ok(probes) = &mut evidence.probes
            && probes.iter().all(is_no_obstacle)
        {
            let (messages, scripts, more) = examiner.try_scripts(&lock, who);
            evidence.messages = messages;
            evidence.scripts = scripts;
            probes.retain(|probe| more.iter().all(|it| it.subject != probe.subject));
            probes.extend(more);
            if let Ok(info) = &evidence.info {
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

    fn nothing_known(&self) -> Evidence {
        let server = self.deployment.server();
        Evidence {
            place: server.to_string(),
            redis_cli: server.redis_cli(),
            is_typed: server.has_typed_url(),
            prefix: self.prefix.clone(),
            prefix_has_tag: hash_tag(&self.prefix).is_some(),
            user: server.shown_user().map(str::to_owned),
            transport: server.transport(),
            timeout: server.timeout,
            connected: Err(server.unreachable_error(&std::io::ErrorKind::TimedOut.into())),
            certificate: None,
            own_certificate: server.own_certificate().and_then(|der| Validity::of(&der)),
            info: Err(Unknown::NotAsked),
            config: BTreeMap::new(),
            round_trips: Err(Unknown::NotAsked),
            replicas: Vec::new(),
            nodes: Vec::new(),
            others: Vec::new(),
            long_answer: Err(Unknown::NotAsked),
            slot: hash_tag(&self.prefix).map(|tag| hash_slot(tag.as_bytes())),
            knows_replicas: self.deployment.may_fail_over(),
            probes: Err(Unknown::NotAsked),
            scripts: Err(Unknown::NotAsked),
            messages: Err(Unknown::NotAsked),
            named: None,
            sentinels: None,
            acknowledged: Err(Unknown::NotAsked),
        }
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without them another doctor may have the same name, and both try the scripts at once.
    let _ = getrandom::fill(&mut bytes);
    u64::from_be_bytes(bytes)
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Asks all of it over one connection after the other.
struct Examiner<'a> {
    locks: &'a Locks,
    client: Client,
    until: Instant,
}

impl Examiner<'_> {
    /// Connects; and asks something, as a server lets everyone connect.
    fn connect(&mut self, lock: &Lock) -> Result<(), Error> {
        let mut exists = cmd("EXISTS");
        exists.arg(&lock.keys.lock);
        let answers = self.ask(&[exists])?;
        match answers.first() {
            Some(Value::ServerError(error)) if keeps_out(error) => {
                Err(Error::from_server(error, &self.server(), None, None))
            }
            _ => Ok(()),
        }
    }

    /// Asks at once; errors are among the answers.
    fn ask(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, Error> {
        let until = self.until;
        ask_over(&mut self.client, commands, until)
    }

    /// The same where an error means that it isn't known.
    fn ask_known(&mut self, what: &'static str, commands: &[Cmd]) -> Known<Vec<Value>> {
        let until = self.until;
        self.ask(commands).map_err(|error| match left(until) {
            Duration::ZERO => Unknown::NoAnswer,
            // Some proxies close the connection at what they don't know.
            _ if !what.is_empty() && is_closed(&error) => Unknown::Unsupported(what),
            _ => Unknown::Failed(error.to_string()),
        })
    }

    fn certificate(&mut self) -> Option<Validity> {
        let read = |der: Option<&[u8]>| der.and_then(Validity::of);
        let found = self
            .client
            .with_connection(|connection, _| Ok(read(connection.certificate())));
        found.ok().flatten()
    }

    /// INFO, and parts of the configuration.
    fn facts(&mut self) -> (Known<Info>, BTreeMap<&'static str, Known<String>>) {
        // A node of a cluster says how soon it takes another one for dead, too.
        let names = CONFIG
            .into_iter()
            .chain((self.server().part() == Part::Node).then_some(NODE_TIMEOUT));
        let names: Vec<&str> = names.collect();
        let config = names.iter();
        let config: Vec<Cmd> = config
            .map(|name| cmd("CONFIG").arg("GET").arg(*name).clone())
            .collect();
        let asked = [&[cmd("INFO")][..], &config].concat();
        let answers = match self.ask_known("INFO", &asked) {
            Ok(answers) => answers,
            Err(why) => {
                let all = names.into_iter().map(|name| (name, Err(why.clone())));
                return (Err(why.clone()), all.collect());
            }
        };
        let mut answers = answers.into_iter();
        let info = text("INFO", answers.next()).map(|text| Info::parse(&text));
        let config = names.into_iter().zip(answers).map(|(name, answer)| {
            let value = match answer {
                Value::Array(pair) => Ok(pair.get(1).map(lossy_text).unwrap_or_default()),
                other => text("CONFIG", Some(other)),
            };
            (name, value)
        });
        (info, config.collect())
    }

    /// Whether our user is an administrator, by a question that only they are permitted; as a user that isn't named,
    /// it counts as one.
    fn is_admin(&mut self) -> bool {
        if self.server().username.is_none() {
            return true;
        }
        let answers = self.ask(&[cmd("ACL").arg("USERS").clone()]);
        matches!(answers.unwrap_or_default().first(), Some(Value::Array(_)))
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
        let question = cmd("CLUSTER").arg("NODES").clone();
        let answers = self.ask_known("CLUSTER", &[question]).unwrap_or_default();
        let nodes = text("CLUSTER", answers.into_iter().next()).unwrap_or_default();
        self.ask_replicas(other_primaries(&nodes))
    }

    /// Asks for the time again and again; that it isn't permitted is an answer, too.
    fn round_trips(&mut self) -> Known<Vec<RoundTrip>> {
        let question = [cmd("TIME")];
        let end = self.until.min(Instant::now() + ROUND_TRIPS_WITHIN);
        let mut found = Vec::new();
        while found.len() < ROUND_TRIPS && (found.is_empty() || Instant::now() < end) {
            match round_trip(|| self.ask(&question)) {
                Ok(Ok(trip)) => found.push(trip),
                Ok(Err((took, _))) => found.push(RoundTrip { took, clock: None }),
                Err(_) if !found.is_empty() => break,
                Err(_) => return Err(Unknown::NoAnswer),
            }
        }
        Ok(found)
    }

    /// What this user may do.
    fn probes(&mut self, lock: &Lock) -> Known<Vec<Probe>> {
        let server = self.server();
        probes(lock, &self.locks.prefix, &server, |commands, is_last| {
            if is_last {
                self.ask_plainly(&server, commands)
            } else {
                self.ask_known("", commands)
            }
        })
    }

    /// The same where a connection doesn't come to the first question, as a rule for that is missing. By sentinels
    /// no server is known then.
    fn probes_beside(&self, lock: &Lock) -> Known<Vec<Probe>> {
        let server = self.server();
        if server.part() == Part::Primary {
            return Err(Unknown::NotAsked);
        }
        probes(lock, &self.locks.prefix, &server, |commands, _| {
            self.ask_plainly(&server, commands)
        })
    }

    /// Asks over a connection of its own, which is in RESP2 and has no database.
    fn ask_plainly(&self, server: &Server, commands: &[Cmd]) -> Known<Vec<Value>> {
        let plain = Arc::new(server.plain());
        let within = left(self.until);
        let opened = Connection::open_asking(&plain, within, within, &[]);
        opened
            .and_then(|(mut connection, _)| connection.query_each(commands, left(self.until)))
            .map_err(|error| Unknown::Failed(error.to_string()))
    }

    /// Acquires, waits, hands on and all else, as holders and waiters do; what a waiter gets to know of it, and
    /// the rules that it would need.
    fn try_scripts(
        &mut self,
        lock: &Lock,
        who: &Who,
    ) -> (Known<Messages>, Known<Trial>, Vec<Probe>) {
        let claims = Claim::new(lock.clone(), who)
            .and_then(|holder| Ok((holder, Claim::new(lock.clone(), who)?)));
        let (holder, waiter) = match claims {
            Ok(claims) => claims,
            Err(error) => {
                let why = Unknown::Failed(error.to_string());
                return (Err(why.clone()), Err(why), Vec::new());
            }
        };
        let mut listener = Listener {
            client: self.client.another(),
            until: self.until,
            prefix: self.locks.prefix.clone(),
            heard: Messages::default(),
        };
        let more = listener.start(lock, &waiter);
        let polls = !listener.heard.is_subscribed;
        let sharded = listener.heard.is_sharded;
        let trial = self.trial(&steps(lock, &holder, &waiter, who, polls, sharded), lock);
        if matches!(&trial, Ok(trial) if trial.failure.is_none()) {
            listener.listen();
            (Ok(listener.heard), trial, more)
        } else {
            (Err(Unknown::NotAsked), trial, more)
        }
    }

    fn trial(&mut self, steps: &[Step], lock: &Lock) -> Known<Trial> {
        let mut remove = cmd("UNLINK");
        let keys = &lock.keys;
        remove
            .arg(&keys.lock)
            .arg(&keys.state)
            .arg(&keys.meta)
            .arg(&keys.holders)
            .arg(&keys.queue)
            .arg(&keys.waiters)
            .arg(&keys.slots)
            .arg(&keys.history)
            .arg(&keys.skips)
            .arg(&keys.notices);
        let mut forget = cmd("ZREM");
        forget.arg(&keys.index).arg(lock.name.as_str());
        let mut had_to_load = false;
        loop {
            let by_hash = !had_to_load;
            let mut asked: Vec<Cmd> = steps.iter().map(|it| it.call.command(by_hash)).collect();
            asked.extend([remove.clone(), forget.clone()]);
            let began = Instant::now();
            let all_of_it = self.until;
            self.until = all_of_it.checked_sub(REMOVED_WITHIN).unwrap_or(all_of_it);
            let answers = self.ask_known("", &asked);
            self.until = all_of_it;
            let took = began.elapsed();
            if answers.is_err() {
                // The end of the request may have got lost as well.
                let _ = self.ask(&[remove.clone(), forget.clone()]);
            }
            let answers = answers?;
            let is_unknown = |answer: &Value| {
                matches!(answer, Value::ServerError(error)
                    if error.kind() == Some(ServerErrorKind::NoScript))
            };
            if by_hash && answers.iter().any(is_unknown) {
                had_to_load = true;
                continue;
            }
            let mut trial = Trial {
                done: 0,
                took,
                failure: None,
            };
            for (step, answer) in steps.iter().zip(answers) {
                let key = Some(keys.lock.as_slice());
                let read = match answer {
                    Value::ServerError(error) => {
                        let script = Some(step.call.script.source);
                        Err(Error::from_server(&error, &self.server(), key, script))
                    }
                    answer => (step.read)(answer),
                };
                match read {
                    Ok(()) => trial.done += 1,
                    Err(error) => {
                        trial.failure = Some((step.name, error));
                        break;
                    }
                }
            }
            return Ok(trial);
        }
    }

    /// How many of the replicas have what has been written so far.
    fn acknowledged(&mut self, replicas: u64) -> Known<u64> {
        if replicas == 0 {
            return Ok(0);
        }
        let mut wait = cmd("WAIT");
        wait.arg(replicas).arg(ACKNOWLEDGED_WITHIN_MS);
        match self.ask_known("WAIT", &[wait])?.into_iter().next() {
            Some(Value::Int(many)) => Ok(u64::try_from(many).unwrap_or(0)),
            answer => Err(text("WAIT", answer).err().unwrap_or(Unknown::NoAnswer)),
        }
    }

    fn server(&self) -> Arc<Server> {
        self.locks.deployment.server()
    }

    /// What is at the keys of a name.
    fn look_at(&mut self, name: &Name) -> Known<NamedLock> {
        let lock = self.locks.lock(name.clone());
        let keys = &lock.keys;
        let all = [
            (&keys.lock, "string"),
            (&keys.state, "hash"),
            (&keys.meta, "hash"),
            (&keys.holders, "zset"),
            (&keys.queue, "zset"),
            (&keys.waiters, "hash"),
            (&keys.slots, "zset"),
            (&keys.history, "list"),
            (&keys.skips, "list"),
            (&keys.notices, "hash"),
            (&keys.index, "zset"),
        ];
        let mut asked: Vec<Cmd> = all
            .iter()
            .map(|(key, _)| cmd("TYPE").arg(key).clone())
            .collect();
        asked.push(
            self.locks
                .inspect_call(name, 0, &Page::first())
                .command(false),
        );
        let mut answers = self.ask_known("TYPE", &asked)?;
        let inspected_as = answers.pop().unwrap_or(Value::Nil);
        let mut strangers = Vec::new();
        for ((key, expected), answer) in all.into_iter().zip(answers) {
            let found = text("TYPE", Some(answer))?;
            if found != "none" && found != expected {
                strangers.push(Stranger {
                    key: String::from_utf8_lossy(key).into_owned(),
                    found,
                    expected,
                });
            }
        }
        let found = match inspected_as {
            Value::ServerError(error) if strangers.is_empty() => {
                let error = Error::from_server(&error, &self.server(), None, None);
                return Err(Unknown::Failed(error.to_string()));
            }
            Value::ServerError(_) => None,
            answer => inspected(name.clone(), answer).ok().map(|(lock, _)| lock),
        };
        Ok(NamedLock {
            key: String::from_utf8_lossy(&keys.lock).into_owned(),
            strangers,
            found,
        })
    }
}

/// Whether a server that answers so answers nothing else.
fn keeps_out(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    matches!(error.code(), "NOAUTH" | "DENIED" | "LOADING" | "BUSY")
        || details.contains("max number of clients")
        || details.contains("unauthenticated")
}

fn is_closed(error: &Error) -> bool {
    error.to_string().contains("the connection was closed")
}

fn commands(asked: &[Question]) -> Vec<Cmd> {
    asked.iter().map(|it| it.command.clone()).collect()
}

fn ask_over(client: &mut Client, commands: &[Cmd], until: Instant) -> Result<Vec<Value>, Error> {
    client.limit_to(left(until));
    client.with_connection(|connection, within| {
        connection.query_each(commands, within.min(left(until)))
    })
}

/// A text, or why there is none.
fn text(command: &'static str, answer: Option<Value>) -> Known<String> {
    match answer {
        Some(Value::ServerError(error)) if is_denied(&error) => Err(Unknown::Denied(command)),
        Some(Value::ServerError(error)) if is_unknown(&error) => Err(Unknown::Unsupported(command)),
        Some(Value::ServerError(error)) => Err(Unknown::Failed(said(&error))),
        Some(Value::VerbatimString { text, .. }) => Ok(text),
        Some(answer) => Ok(lossy_text(&answer)),
        None => Err(Unknown::NoAnswer),
    }
}

/// What a server said, word for word.
fn said(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    quoted(&format!("{} {details}", error.code())).into_owned()
}

/// Asks what a user may do; `ask` is told which question is the last one, after which a connection is good for no
/// other.
fn probes(
    lock: &Lock,
    prefix: &str,
    server: &Server,
    mut ask: impl FnMut(&[Cmd], bool) -> Known<Vec<Value>>,
) -> Known<Vec<Probe>> {
    let is_node = server.part() == Part::Node;
    let mut asked = questions(prefix, &lock.keys, is_node);
    if server.database != 0 {
        asked.push(selecting(server.database));
    }
    let mut answers = ask(&commands(&asked), false)?;
    // Where it was refused for another reason than a missing rule, so are the others; and where the keys aren't
    // permitted, no other command creates one.
    let is_there = !matches!(
        answers.first(),
        Some(Value::ServerError(error)) if is_denied(error) || is_unknown(error)
    );
    let more = more_questions(&lock.keys, is_there);
    answers.extend(ask(&commands(&more), false)?);
    asked.extend(more);
    if !verdicts(&asked, &answers).iter().all(is_no_obstacle) {
        // No waiter will try it.
        let listening = listening(prefix, &lock.keys, is_node);
        if let Ok(answer) = ask(std::slice::from_ref(&listening.command), true) {
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

/// Asks once, perhaps for the time; the inner error is the server's, with the time that it took.
fn round_trip(
    ask: impl FnOnce() -> Result<Vec<Value>, Error>,
) -> Result<Result<RoundTrip, (Duration, ServerError)>, Error> {
    let (began, at) = (Instant::now(), now_us());
    let answers = ask()?;
    let took = began.elapsed();
    let half = u64::try_from(took.as_micros() / 2).unwrap_or(u64::MAX);
    match answers.into_iter().next() {
        Some(Value::ServerError(error)) => Ok(Err((took, error))),
        Some(Value::Array(fields)) => {
            let clock = match fields.as_slice() {
                [seconds, micros] => {
                    let time = number(seconds)?.saturating_mul(1_000_000) + number(micros)?;
                    let ours = at.saturating_add(half);
                    Some(ClockOffset {
                        ahead_us: i64::try_from(i128::from(time) - i128::from(ours))
                            .unwrap_or(i64::MAX),
                        error_us: half,
                    })
                }
                _ => None,
            };
            Ok(Ok(RoundTrip { took, clock }))
        }
        _ => Ok(Ok(RoundTrip { took, clock: None })),
    }
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// Asks for an answer of several packets until a moment, and whether short ones arrive if it doesn't, until the `end`.
fn ask_for_a_long_answer(server: &Arc<Server>, until: Instant, end: Instant) -> Known<()> {
    let repeated = |times: u32| {
        let script = "return string.rep('x', tonumber(ARGV[1]))";
        cmd("EVAL").arg(script).arg(0).arg(times).clone()
    };
    let ask = |times, until| {
        let within = left(until);
        let opened = Connection::open_asking(server, within, within, &[]);
        opened
            .and_then(|(mut connection, _)| connection.query_each(&[repeated(times)], left(until)))
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

/// A replica that is being asked.
struct Questioned {
    entry: ReplicaEntry,
    answers: Option<JoinHandle<(Known<ClockOffset>, Known<Info>)>>,
}

impl Questioned {
    fn start(server: Server, entry: ReplicaEntry, until: Instant) -> Self {
        let server = Arc::new(server);
        let thread = thread::Builder::new()
            .name("replica".into())
            .spawn(move || ask_replica(&server, until));
        Self {
            entry,
            answers: thread.ok(),
        }
    }

    fn finish(self) -> Replica {
        let failed = || Unknown::Failed("it could not be asked".into());
        let answers = self.answers.and_then(|thread| thread.join().ok());
        let (clock, info) = answers.unwrap_or_else(|| (Err(failed()), Err(failed())));
        Replica {
            entry: self.entry,
            clock,
            info,
        }
    }
}

/// Asks a replica for its time and for what it says of itself.
fn ask_replica(server: &Arc<Server>, until: Instant) -> (Known<ClockOffset>, Known<Info>) {
    let failed = |error: &Error| Unknown::Failed(error.to_string());
    let within = left(until);
    let mut connection = match Connection::open_asking(server, within, within, &[]) {
        Ok((connection, _)) => connection,
        Err(error) => return (Err(failed(&error)), Err(failed(&error))),
    };
    let mut ask = |question: Cmd| connection.query_each(&[question], left(until));
    let mut trips = Vec::new();
    for _ in 0..CLOCK_QUESTIONS {
        match round_trip(|| ask(cmd("TIME"))) {
            Ok(Ok(trip)) => trips.push(trip),
            Ok(Err((_, error))) => {
                let why = text("TIME", Some(Value::ServerError(error)));
                let why = why.err().unwrap_or(Unknown::NoAnswer);
                return (Err(why.clone()), Err(why));
            }
            Err(error) => return (Err(failed(&error)), Err(failed(&error))),
        }
    }
    let answer = ask(cmd("INFO"))
        .ok()
        .and_then(|answers| answers.into_iter().next());
    let info = text("INFO", answer).map(|text| Info::parse(&text));
    (best_clock(&trips).ok_or(Unknown::NoAnswer), info)
}

/// Listens as a waiter does for its turn, and as a holder does for changes of its lock.
struct Listener {
    client: Client,
    until: Instant,
    /// What the keys of all locks begin with.
    prefix: String,
    heard: Messages,
}

impl Listener {
    /// Subscribes to the channel of a waiter, and tracks the lock; the rules that are missing for that.
    fn start(&mut self, lock: &Lock, waiter: &Claim) -> Vec<Probe> {
        self.client.limit_to(left(self.until));
        let until = self.until;
        let mut exists = cmd("EXISTS");
        exists.arg(&lock.keys.lock);
        let started = waiter.subscribe(&mut self.client).and_then(|()| {
            self.client.with_connection(|connection, within| {
                connection.track_keys([lock.keys.lock.as_slice()].into_iter())?;
                connection.query_each(&[exists], within.min(left(until)))?;
                Ok(connection.speaks_resp3())
            })
        });
        let mut is_denied = started.is_err();
        self.heard.resp3 = started.unwrap_or(false);
        while let Ok(Some(incoming)) = self.client.receive() {
            is_denied |= matches!(incoming, Incoming::SubscribeDenied);
        }
        self.heard.is_subscribed = self.heard.resp3 && !is_denied;
        self.heard.is_sharded = self.client.is_sharded();
        if self.heard.is_subscribed {
            return Vec::new();
        }
        // In RESP2 a subscription has an answer like any other command.
        let (question, subject) = if self.heard.resp3 {
            let channel = lock.channel_of(&waiter.id());
            if self.heard.is_sharded {
                (cmd("SSUBSCRIBE").arg(channel).clone(), "ssubscribe")
            } else {
                (cmd("SUBSCRIBE").arg(channel).clone(), "subscribe")
            }
        } else {
            (cmd("HELLO").arg(3).clone(), "hello")
        };
        let answers = ask_over(&mut self.client.another(), &[question], until);
        match answers.map(|answers| answers.into_iter().next()) {
            Ok(Some(Value::ServerError(error)))
                if error.kind() == Some(ServerErrorKind::NoPerm) =>
            {
                let (_, beside) = key_starts(&self.prefix);
                let subject = if probe::is_denied(&error) {
                    Subject::Optional(subject)
                } else {
                    Subject::Channels(beside)
                };
                return vec![Probe {
                    subject,
                    verdict: Verdict::Denied,
                }];
            }
            Ok(Some(Value::ServerError(error))) => self.heard.refused = Some(said(&error)),
            Ok(_) => {}
            Err(error) if is_closed(&error) => {
                self.heard.refused = Some("it closes the connection when asked".into());
            }
            Err(error) => self.heard.refused = Some(error.to_string()),
        }
        Vec::new()
    }

    /// Takes in what has been sent by now, or is about to arrive.
    fn listen(&mut self) {
        let end = self.until.min(Instant::now() + MESSAGE_WITHIN);
        loop {
            match self.client.receive() {
                Ok(Some(Incoming::Granted(_) | Incoming::Message)) => self.heard.was_granted = true,
                Ok(Some(Incoming::KeyChanged)) => self.heard.was_invalidated = true,
                Ok(Some(_)) => {}
                Ok(None) => {
                    let is_over = self.heard.was_granted && self.heard.was_invalidated;
                    let within = left(end);
                    let Some(fd) = self.client.fds().next() else {
                        return;
                    };
                    if is_over || within.is_zero() || !ready::to_read(fd, within).unwrap_or(false) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }
}

/// One call of a script, and how its answer is read.
struct Step {
    name: &'static str,
    call: Call,
    read: fn(Value) -> Result<(), Error>,
}

/// All scripts, as they are called by a holder, by a waiter that comes after it, and by a person.
/// `sharded`: the waiter listens to a channel of the keys' hash slot.
fn steps(
    lock: &Lock,
    holder: &Claim,
    waiter: &Claim,
    who: &Who,
    polls: bool,
    sharded: bool,
) -> Vec<Step> {
    let request = Request {
        who: who.clone(),
        ttl: TTL,
        limit: Limit::EXCLUSIVE,
        queue: QueueOptions::default(),
        once_per: Duration::ZERO,
        restart_grace: Duration::ZERO,
        repair_ttl: false,
    };
    let place = Place {
        ticket: None,
        polls,
    };
    let who = who.to_json();
    let ttl = TTL.as_millis().to_string();
    let step = |name, call, read| Step { name, call, read };
    let mut skip = lock.call(
        &SKIP,
        vec!["busy".into(), "0".into(), who.clone(), Vec::new()],
    );
    skip.keys.push(lock.keys.skips.clone());
    vec![
        step(
            "acquire",
            holder.acquire_call(&request, None, false),
            is_held,
        ),
        step(
            "acquire",
            waiter.acquire_call(&request, Some(&place), sharded),
            is_queued,
        ),
        step("renew", holder.renewal(TTL, None, false), |answer| {
            is_ours(renewed(answer)?)
        }),
        step("check", holder.check_call(TTL), |answer| {
            is_ours(checked(answer)?)
        }),
        step(
            "stop",
            lock.call(&STOP, vec![holder.id().into(), who.clone()]),
            |answer| is_answer(answer, 1),
        ),
        step(
            "freeze",
            lock.call(&FREEZE, vec![ttl.into(), who]),
            |answer| is_answer(answer, 3),
        ),
        step("thaw", lock.call(&THAW, Vec::new()), |answer| {
            is_answer(answer, 2)
        }),
        step(
            "release",
            holder.release_call(&ReleaseMode::Unused),
            |answer| match released(answer)? {
                Released::Now => Ok(()),
                other => Err(otherwise(&format!("{other:?}"))),
            },
        ),
        step(
            "acquire",
            waiter.acquire_call(&request, Some(&place), sharded),
            is_held,
        ),
        step(
            "force",
            lock.call(&FORCE, vec![Vec::new(), Vec::new()]),
            |answer| is_answer(answer, 3),
        ),
        step("skip", skip, |answer| is_answer(answer, 1)),
        step("history", lock.call(&HISTORY, Vec::new()), |answer| {
            is_answer(answer, 3)
        }),
    ]
}

fn is_held(answer: Value) -> Result<(), Error> {
    match acquired(answer)? {
        Acquired::Held { .. } => Ok(()),
        other => Err(otherwise(&format!("{other:?}"))),
    }
}

fn is_queued(answer: Value) -> Result<(), Error> {
    match acquired(answer)? {
        Acquired::Busy(busy) if busy.ticket.is_some() => Ok(()),
        other => Err(otherwise(&format!("{other:?}"))),
    }
}

fn is_ours(state: LeaseState) -> Result<(), Error> {
    match state {
        LeaseState::Held { .. } => Ok(()),
        other => Err(otherwise(&format!("{other:?}"))),
    }
}

/// It has at least this many fields.
fn is_answer(answer: Value, least: usize) -> Result<(), Error> {
    let fields = array(answer)?;
    match fields.first() {
        Some(first) if fields.len() >= least => count(first).or(number(first).map(|_| 0)).map(drop),
        _ => Err(unexpected_reply(&fields)),
    }
}

/// The error for a script that did something else than it should.
fn otherwise(what: &str) -> Error {
    Error::new(
        super::ErrorKind::Internal,
        format!("it answered otherwise than it should: {}", quoted(what)),
    )
}

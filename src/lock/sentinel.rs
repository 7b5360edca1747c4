//! The primary as sentinels know it.
//!
//! A sentinel that is cut off, or a server that was demoted, answers as if nothing had happened. So the
//! first answer counts that the server itself agrees with, by `ROLE`; an answer from before a failover
//! that most have said (its configuration epoch is smaller) comes last; and while a lock is held, one
//! sentinel after the other is asked whether the primary is still the same, and all when one says that it isn't.
//!
//! That a server says so is known only once it has our password. So unless a CA of our own vouches for it, no answer
//! counts but that of most sentinels: a [`Poll`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::connection::Connection;
use super::replication::{Quorum, Replicas, Replication, Role, address};
use super::scripts::lossy_text;
use super::server::Server;
use super::url::Address;
use super::{Error, ErrorKind};

/// How long the first sentinel has, before all are asked.
const FIRST: Duration = Duration::from_millis(250);

/// When sentinels that disagree are asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// The sentinels of a URL, and the name under which they know the primary.
pub(super) struct Sentinels {
    nodes: Vec<Arc<Server>>,
    primary: String,
    /// The one to ask next.
    turn: AtomicUsize,
    /// A connection was opened, or couldn't be.
    was_opened: AtomicBool,
    /// Where the primary is now, by a sentinel that was asked while we were connected elsewhere.
    told: Mutex<Option<Answer>>,
    epochs: Arc<Epochs>,
    replicas: Arc<Replicas>,
}

/// The configuration epoch that each sentinel said last.
#[derive(Default)]
struct Epochs(Mutex<BTreeMap<String, u64>>);

impl Epochs {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, answer: &Answer) {
        self.all().insert(answer.by.clone(), answer.epoch);
    }
}

/// What a sentinel says.
#[derive(Clone)]
struct Answer {
    /// The sentinel.
    by: String,
    address: Address,
    /// It grows with each failover.
    epoch: u64,
    /// How many sentinels there are, itself included.
    sentinels: usize,
    /// All that it has heard of; empty where that wasn't asked.
    replicas: Vec<KnownReplica>,
}

/// A replica, as a sentinel, or a node of a cluster, knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownReplica {
    pub(super) address: String,
    /// It isn't to follow the primary, ever.
    pub(super) has_no_priority: bool,
    pub(super) is_down: bool,
}

impl Sentinels {
    pub(super) fn new(nodes: Vec<Arc<Server>>, primary: String) -> Self {
        Self {
            nodes,
            primary,
            turn: AtomicUsize::new(0),
            was_opened: AtomicBool::new(false),
            told: Mutex::default(),
            epochs: Arc::default(),
            replicas: Arc::default(),
        }
    }

    fn told(&self) -> MutexGuard<'_, Option<Answer>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn nodes(&self) -> &[Arc<Server>] {
        &self.nodes
    }

    /// The name under which they know the primary.
    pub(super) fn primary(&self) -> &str {
        &self.primary
    }

    /// The replicas that count, as they were listed last.
    pub(super) fn replicas(&self) -> Arc<Replicas> {
        Arc::clone(&self.replicas)
    }

    /// Connects to the primary; `like` has the credentials for it.
    pub(super) fn open(
        &self,
        like: &Server,
        timeout: Duration,
        within: Duration,
        replication: Option<Replication>,
    ) -> Result<Connection, Error> {
        let until = Instant::now() + within;
        let told = self.told().take();
        if let Some(answer) = told {
            return self.connect(&answer, like, timeout, until);
        }
        if self.must_agree(like) {
            return self.open_agreed(like, timeout, until, names_each(replication));
        }
        let mut search = Search::default();
        // What has been well until now gets away with one question.
        if !self.was_opened.swap(true, Ordering::Relaxed) {
            let question = self.question(names_each(replication));
            let answer = ask(&self.nodes[0], &question, FIRST.min(within / 4));
            if let Some(answer) = search.take(answer, self.epoch()) {
                match self.connect(&answer, like, timeout, until) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => search.failure = Some(error),
                }
            }
        }
        let answers = self.ask_all(names_each(replication), left(until));
        while let Ok(answer) = answers.recv_timeout(left(until)) {
            if let Some(answer) = search.take(answer, self.epoch()) {
                match self.connect(&answer, like, timeout, until) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => search.failure = Some(error),
                }
            }
        }
        for answer in std::mem::take(&mut search.outdated) {
            if let Some(answer) = search.take(Ok(answer), 0) {
                match self.connect(&answer, like, timeout, until) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => search.failure = Some(error),
                }
            }
        }
        Err(search.into_error(&self.nodes))
    }

    /// The last failover that most sentinels have said: none of several raises it alone.
    fn epoch(&self) -> u64 {
        reached(self.epochs.all().values().copied(), self.nodes.len())
    }

    /// Whether it takes most sentinels to name the primary. One that is alone is believed.
    fn must_agree(&self, like: &Server) -> bool {
        self.nodes.len() > 1 && like.shows_password()
    }

    /// Connects to what most sentinels take for the primary. In a failover they hear of the new one one after the
    /// other, so while they disagree they are asked again.
    fn open_agreed(
        &self,
        like: &Server,
        timeout: Duration,
        until: Instant,
        with_replicas: bool,
    ) -> Result<Connection, Error> {
        loop {
            let mut poll = self.poll(like, with_replicas, left(until));
            let error = match poll.agreed() {
                Some(answer) => match self.connect(&answer, like, timeout, until) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => error,
                },
                None => poll.error(self),
            };
            let may_change = error.kind == ErrorKind::NoPrimary && poll.is_disputed();
            if !may_change || left(until) < AGAIN {
                return Err(error);
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Asks all sentinels at once what most of them say; `like` has the credentials for the primary.
    fn poll(&self, like: &Server, with_replicas: bool, within: Duration) -> Poll {
        // Half of the time is for the primary.
        let (required, patience) = if self.must_agree(like) {
            (required(self.nodes.len()), like.timeout / 2)
        } else {
            (1, within)
        };
        let now = Instant::now();
        Poll {
            // One that is asked for a shorter time would seem to be down when it is late.
            coming: self.ask_all(with_replicas, patience),
            until: now + within.min(patience),
            late: now + patience,
            asked: self.nodes.len(),
            required,
            answers: Vec::new(),
            silent: Vec::new(),
        }
    }

    fn question(&self, with_replicas: bool) -> Question {
        Question {
            primary: self.primary.clone(),
            with_replicas,
            epochs: Arc::clone(&self.epochs),
        }
    }

    /// Asks all sentinels at once. The answers come as they are given, until the last one has failed.
    fn ask_all(&self, with_replicas: bool, within: Duration) -> Receiver<Result<Answer, Error>> {
        let (answers, receiver) = channel();
        for node in &self.nodes {
            let (node, question) = (Arc::clone(node), self.question(with_replicas));
            let answers = answers.clone();
            // One that can't be started is a sentinel that doesn't answer.
            let _ = std::thread::Builder::new().spawn(move || {
                let _ = answers.send(ask(&node, &question, within));
            });
        }
        receiver
    }

    /// Connects to what a sentinel takes for the primary, if it agrees.
    fn connect(
        &self,
        answer: &Answer,
        like: &Server,
        timeout: Duration,
        until: Instant,
    ) -> Result<Connection, Error> {
        let Answer { by, address, .. } = answer;
        let name = &self.primary;
        let server = Arc::new(like.at(address.clone()));
        // Another answer may be a better one.
        let within = left(until) / 2;
        let opened = Connection::open_asking(&server, timeout, within, &[cmd("ROLE")]);
        let (connection, role) = opened.map_err(|error| {
            let kind = match error.kind {
                ErrorKind::Unreachable => ErrorKind::NoPrimary,
                other => other,
            };
            // Elsewhere it may be an address that only its own network has.
            let hint = if kind == ErrorKind::NoPrimary && !by.starts_with(&host_of(address)) {
                "; where this host can't reach that address, set replica-announce-ip there"
            } else {
                ""
            };
            let message = format!("the primary \"{name}\", by the sentinel at {by}: {error}{hint}");
            Error::new(kind, message)
        })?;
        if role.first().and_then(Role::parse).is_none() {
            return Err(Error::new(
                ErrorKind::NoPrimary,
                format!(
                    "the sentinel at {by} says that the primary \"{name}\" is at {address}, but that says that it is a replica; try again when the failover is over"
                ),
            ));
        }
        self.replicas.replace(self.those_that_count(answer));
        Ok(connection)
    }

    /// The replicas that count, by a sentinel that knows the primary, and by the others where that one takes
    /// some for down: it may be the one that is cut off.
    fn those_that_count(&self, answer: &Answer) -> Vec<String> {
        let mut lists = vec![answer.replicas.clone()];
        if answer.replicas.iter().any(|replica| replica.is_down) {
            let until = Instant::now() + FIRST;
            let answers = self.ask_all(true, FIRST);
            while let Ok(other) = answers.recv_timeout(left(until)) {
                let same = |other: &Answer| {
                    other.by != answer.by
                        && other.address == answer.address
                        && other.epoch >= answer.epoch
                };
                lists.extend(other.ok().filter(same).map(|other| other.replicas));
            }
        }
        let lists: Vec<&[KnownReplica]> = lists.iter().map(Vec::as_slice).collect();
        those_that_count(&lists, answer.sentinels.max(self.nodes.len()))
    }

    /// Whether one sentinel, another one each time, knows a newer primary than this server, and most say so. The
    /// next connection goes there, and nowhere else.
    pub(super) fn have_another(
        &self,
        than: &Server,
        within: Duration,
        replication: Option<Replication>,
    ) -> bool {
        let within = FIRST.min(within / 4);
        let with_replicas = names_each(replication);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len();
        let mut asked = ask(&self.nodes[turn], &self.question(with_replicas), within).ok();
        if asked.is_none() && with_replicas {
            // Which replicas there are has to be known; that the primary is another one is found out by a
            // later look, too.
            let until = Instant::now() + within;
            let answers = self.ask_all(true, within);
            while let (None, Ok(answer)) = (&asked, answers.recv_timeout(left(until))) {
                asked = answer.ok();
            }
        }
        let Some(mut answer) = asked else {
            return false;
        };
        if answer.address != *than.address() && self.nodes.len() > 1 {
            match self.poll(than, with_replicas, within).agreed() {
                Some(agreed) => answer = agreed,
                None => return false,
            }
        }
        if answer.epoch < self.epoch() {
            return false;
        }
        let is_another = answer.address != *than.address();
        if is_another {
            *self.told() = Some(answer);
        } else if with_replicas {
            self.replicas.replace(self.those_that_count(&answer));
        }
        is_another
    }
}

/// How many answers have to name an address before a password is sent there: one of two may be down.
fn required(asked: usize) -> usize {
    asked.saturating_sub(1).clamp(1, 2)
}

/// What most sentinels say, of those that answer in time.
struct Poll {
    coming: Receiver<Result<Answer, Error>>,
    /// How long answers are waited for.
    until: Instant,
    /// Sentinels that haven't answered count until then: a liar is no majority because it is quick.
    late: Instant,
    /// How many sentinels were asked.
    asked: usize,
    /// How many at least have to agree.
    required: usize,
    answers: Vec<Answer>,
    /// Why sentinels didn't answer.
    silent: Vec<Error>,
}

impl Poll {
    /// Waits for one more; whether there was one in time.
    fn take(&mut self) -> bool {
        match self.coming.recv_timeout(left(self.until)) {
            Ok(Ok(answer)) => self.answers.push(answer),
            Ok(Err(error)) => self.silent.push(error),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => {
                // None is outstanding.
                self.late = self.late.min(Instant::now());
                return false;
            }
        }
        true
    }

    /// An answer with the address that most have named, of an epoch that most of those have reached; it is there as
    /// soon as no other could change the address.
    fn agreed(&mut self) -> Option<Answer> {
        while majority(&self.answers, self.asked).is_none() && self.take() {}
        let among = if Instant::now() < self.late {
            self.asked
        } else {
            self.answers.len()
        };
        let address = majority(&self.answers, among)?;
        let agree = self.answers.iter().filter(|it| it.address == *address);
        let agree: Vec<&Answer> = agree.collect();
        let is_enough = agree.len() >= self.required;
        let epoch = reached(agree.iter().map(|answer| answer.epoch), agree.len());
        let answer = agree.into_iter().find(|answer| answer.epoch == epoch);
        answer.filter(|_| is_enough).cloned()
    }

    /// Whether they name different addresses, all that answer in time.
    fn is_disputed(&mut self) -> bool {
        // Those that are late or down don't hold up the others for long.
        self.until = self.until.min(Instant::now() + FIRST);
        while self.take() {}
        let mut answers = self.answers.iter();
        let first = answers.next();
        first.is_some_and(|first| answers.any(|other| other.address != first.address))
    }

    /// Why there is no such address.
    fn error(&self, of: &Sentinels) -> Error {
        let said = |answer: &Answer| format!("{} says {}", answer.by, answer.address);
        let said: Vec<String> = self.answers.iter().map(said).collect();
        let failure = (!said.is_empty()).then(|| {
            let (primary, said) = (&of.primary, said.join(", "));
            let message = if self.answers.len() < self.required {
                format!(
                    "only one of {} sentinels says in time where the primary \"{primary}\" is ({said}), and a password isn't sent to where one alone points; start or reach another one",
                    self.asked
                )
            } else {
                format!(
                    "the sentinels don't agree where the primary \"{primary}\" is ({said}), and a password isn't sent to where only some of them point; try again when the failover is over"
                )
            };
            Error::new(ErrorKind::NoPrimary, message)
        });
        let search = Search {
            failure,
            silent: self.silent.clone(),
            ..Search::default()
        };
        search.into_error(&of.nodes)
    }
}

/// The address that more than half of this many have named.
fn majority(answers: &[Answer], of: usize) -> Option<&Address> {
    let count = |address: &Address| answers.iter().filter(|it| it.address == *address).count();
    let mut addresses = answers.iter().map(|answer| &answer.address);
    addresses.find(|address| count(address) * 2 > of)
}

/// The largest epoch that more than half of this many have reached.
fn reached(epochs: impl Iterator<Item = u64>, of: usize) -> u64 {
    let mut epochs: Vec<u64> = epochs.collect();
    epochs.sort_unstable_by(|one, other| other.cmp(one));
    epochs.get(of / 2).copied().unwrap_or(0)
}

/// What came of the answers so far.
#[derive(Default)]
struct Search {
    tried: Vec<Address>,
    /// From before the last failover that we know of.
    outdated: Vec<Answer>,
    /// Why the last candidate wasn't the primary.
    failure: Option<Error>,
    /// Why sentinels didn't answer.
    silent: Vec<Error>,
}

impl Search {
    /// A candidate that wasn't tried yet.
    fn take(&mut self, answer: Result<Answer, Error>, epoch: u64) -> Option<Answer> {
        match answer {
            Err(error) => {
                self.silent.push(error);
                None
            }
            Ok(answer) if answer.epoch < epoch => {
                self.outdated.push(answer);
                None
            }
            Ok(answer) if self.tried.contains(&answer.address) => None,
            Ok(answer) => {
                self.tried.push(answer.address.clone());
                Some(answer)
            }
        }
    }

    fn into_error(self, nodes: &[Arc<Server>]) -> Error {
        if let Some(error) = self.failure {
            return error;
        }
        // A wrong name or password is the same everywhere, and says more than silence.
        let says_more = |error: &&Error| error.kind != ErrorKind::Unreachable;
        let known = self.silent.iter().find(says_more).or(self.silent.first());
        match known {
            Some(error) if error.kind != ErrorKind::Unreachable || nodes.len() == 1 => {
                error.clone()
            }
            Some(error) => {
                let message = format!("{error}; none of the {} sentinels answers", nodes.len());
                Error::new(error.kind, message)
            }
            None => nodes[0].unreachable_error(&std::io::ErrorKind::TimedOut.into()),
        }
    }
}

/// Whether it matters which replicas there are.
fn names_each(replication: Option<Replication>) -> bool {
    replication.is_some_and(|replication| replication.quorum == Quorum::All)
}

/// What a sentinel is asked.
struct Question {
    /// The name of the primary.
    primary: String,
    with_replicas: bool,
    /// Where the answer's is noted.
    epochs: Arc<Epochs>,
}

fn ask(sentinel: &Arc<Server>, question: &Question, within: Duration) -> Result<Answer, Error> {
    let about = |what: &str| {
        let mut command = cmd("SENTINEL");
        command.arg(what).arg(&question.primary);
        command
    };
    let mut questions = vec![about("MASTER")];
    if question.with_replicas {
        questions.push(about("REPLICAS"));
    }
    let (_, answers) = Connection::open_asking(sentinel, within, within, &questions)?;
    let fields = answers.first().map(Fields::new).unwrap_or_default();
    let host = fields.get("ip").filter(|host| !host.is_empty());
    let port = fields.get("port").and_then(|port| port.parse().ok());
    let (Some(host), Some(port)) = (host, port) else {
        let message = format!("the sentinel at {sentinel} gave an answer without an address");
        return Err(Error::new(ErrorKind::Unreachable, message));
    };
    let replicas = match answers.get(1) {
        Some(Value::Array(replicas)) => replicas.iter().map(known_replica).collect(),
        _ => Vec::new(),
    };
    let tls = matches!(sentinel.address(), Address::Tcp { tls: true, .. });
    let answer = Answer {
        by: sentinel.to_string(),
        address: Address::Tcp { host, port, tls },
        epoch: fields
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok())
            .unwrap_or(0),
        sentinels: fields
            .get("num-other-sentinels")
            .and_then(|others| others.parse().ok())
            .map_or(1, |others: usize| others.saturating_add(1)),
        replicas,
    };
    question.epochs.note(&answer);
    Ok(answer)
}

pub(super) fn known_replica(value: &Value) -> KnownReplica {
    let fields = Fields::new(value);
    let text = |name| fields.get(name).unwrap_or_default();
    let flags = text("flags");
    KnownReplica {
        address: address(&text("ip"), &text("port")),
        has_no_priority: text("slave-priority") == "0",
        is_down: flags
            .split(',')
            .any(|flag| flag == "s_down" || flag == "o_down"),
    }
}

/// The replicas that count, by the lists of several sentinels: all but those that are never to follow the
/// primary, and those that a majority of all sentinels takes for down, so that no sentinel can make it the
/// primary.
pub(super) fn those_that_count(lists: &[&[KnownReplica]], sentinels: usize) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for replica in lists.iter().copied().flatten() {
        // What only reads the stream has no port.
        let is_server = !replica.address.ends_with(":0");
        let said = lists.iter().copied().flatten();
        let is_same = |other: &&KnownReplica| other.address == replica.address && other.is_down;
        let is_down = said.filter(is_same).count() * 2 > sentinels;
        let is_known = found.contains(&replica.address);
        if is_server && !is_known && !replica.has_no_priority && !is_down {
            found.push(replica.address.clone());
        }
    }
    found
}

/// Names and values in turn.
#[derive(Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(super) fn new(value: &Value) -> Self {
        let Value::Array(fields) = value else {
            return Self::default();
        };
        let pairs = fields.chunks_exact(2);
        Self(
            pairs
                .map(|pair| (lossy_text(&pair[0]), lossy_text(&pair[1])))
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    }
}

/// How the addresses on a host begin.
fn host_of(address: &Address) -> String {
    let address = address.to_string();
    let end = address.rfind(':').map_or(address.len(), |colon| colon + 1);
    address[..end].to_owned()
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::net::TcpListener;

    use super::*;
    use crate::lock::server::Part;
    use crate::lock::url::Login;
    use crate::lock::{TlsFiles, UrlOrigin};

    fn poll(asked: usize, said: &[(u16, u64)]) -> Poll {
        let (_, coming) = channel();
        let answer = |&(port, epoch): &(u16, u64)| Answer {
            by: "s".into(),
            address: Address::Tcp {
                host: "h".into(),
                port,
                tls: false,
            },
            epoch,
            sentinels: asked,
            replicas: Vec::new(),
        };
        Poll {
            coming,
            until: Instant::now(),
            late: Instant::now() + FIRST,
            asked,
            required: required(asked),
            answers: said.iter().map(answer).collect(),
            silent: Vec::new(),
        }
    }

    #[test]
    fn most_of_the_sentinels_that_answer_name_the_primary() {
        for (asked, said, agreed) in [
            (3, &[(1, 5), (1, 5), (1, 5)][..], Some((1, 5))),
            (3, &[(9, 99), (1, 5), (1, 6)], Some((1, 5))),
            (3, &[(1, 5), (1, 4)], Some((1, 4))),
            (3, &[(1, u64::MAX), (1, 5), (1, 5)], Some((1, 5))),
            (3, &[(1, 4), (1, 5), (1, 5)], Some((1, 5))),
            (3, &[(9, 99), (1, 5)], None),
            (3, &[(1, 5)], None),
            (2, &[(1, 5)], Some((1, 5))),
            (2, &[(9, 99), (1, 5)], None),
            (5, &[(1, 5), (1, 5)], Some((1, 5))),
            (5, &[(1, 5)], None),
            (4, &[(1, 5), (1, 5), (9, 5), (9, 5)], None),
            (4, &[(1, 5), (1, 5), (9, 5)], Some((1, 5))),
            (5, &[(1, 5), (1, 5), (8, 5), (9, 5)], None),
            (2, &[], None),
        ] {
            let found = poll(asked, said).agreed().map(|answer| {
                let Address::Tcp { port, .. } = answer.address else {
                    unreachable!()
                };
                (port, answer.epoch)
            });
            assert_eq!(found, agreed, "{asked} {said:?}");
        }
        assert!(poll(3, &[(1, 5), (9, 5)]).is_disputed());
        assert!(!poll(3, &[(1, 5), (1, 6)]).is_disputed());
    }

    /// The sentinel that listens there.
    fn sentinel(listener: &TcpListener) -> Arc<Server> {
        let address = Address::Tcp {
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
            tls: false,
        };
        Arc::new(Server::new(
            (address, Part::Sentinel),
            (Login::default(), 0),
            UrlOrigin::default(),
            TlsFiles::default(),
            Duration::from_secs(20),
            "",
        ))
    }

    /// One of three sentinels, which answers nothing but where the primary is: at this port, since that failover. The two
    /// others are down, and said before that there has been a failover of the epoch 5.
    fn left_alone(says: (u16, u64)) -> (Sentinels, std::thread::JoinHandle<()>) {
        use std::io::{Read, Write};
        let listeners: Vec<TcpListener> = (0..3)
            .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
            .collect();
        let sentinels = Sentinels::new(listeners.iter().map(sentinel).collect(), "main".into());
        for node in &sentinels.nodes {
            sentinels.epochs.all().insert(node.to_string(), 5);
        }
        let answering = listeners.into_iter().next().unwrap();
        let (port, epoch) = (says.0.to_string(), says.1.to_string());
        let thread = std::thread::spawn(move || {
            let fields = ["ip", "h", "port", &port, "config-epoch", &epoch];
            let mut answer = format!("*{}\r\n", fields.len());
            for field in fields {
                let _ = write!(answer, "${}\r\n{field}\r\n", field.len());
            }
            // It is asked for itself, and once more together with the others.
            for mut client in answering.incoming().flatten().take(2) {
                while !matches!(client.read(&mut [0; 1024]), Ok(0) | Err(_)) {
                    let _ = client.write_all(answer.as_bytes());
                }
            }
        });
        (sentinels, thread)
    }

    #[test]
    fn a_sentinel_that_missed_a_failover_that_most_have_said_names_no_other_primary() {
        for (epoch, is_believed) in [(4, false), (5, true), (6, true)] {
            let (sentinels, thread) = left_alone((1, epoch));
            let address = |port| Address::Tcp {
                host: "h".into(),
                port,
                tls: false,
            };
            let connected = sentinels.nodes[0].at(address(2));
            let within = Duration::from_secs(2);
            let is_another = sentinels.have_another(&connected, within, None);
            assert_eq!(is_another, is_believed, "{epoch}");
            let told = sentinels.told().take().map(|answer| answer.address);
            assert_eq!(told, is_believed.then(|| address(1)), "{epoch}");
            thread.join().unwrap();
        }
    }

    /// A server that gives this answer to whatever it is asked, over one connection.
    fn answering(answer: &'static str) -> (Arc<Server>, std::thread::JoinHandle<()>) {
        use std::io::{Read, Write};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = sentinel(&listener);
        let thread = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            while !matches!(client.read(&mut [0; 1024]), Ok(0) | Err(_)) {
                let _ = client.write_all(answer.as_bytes());
            }
        });
        (server, thread)
    }

    #[test]
    fn a_server_that_says_that_it_is_a_replica_is_not_the_primary_whatever_a_sentinel_says() {
        for (role, is_primary) in [
            ("*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n", true),
            ("*3\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n", false),
        ] {
            let (server, thread) = answering(role);
            let sentinels = Sentinels::new(vec![Arc::clone(&server)], "main".into());
            let mut answer = poll(1, &[(1, 5)]).answers.remove(0);
            answer.address = server.address().clone();
            let (long, until) = (server.timeout, Instant::now() + server.timeout);
            let connected = sentinels.connect(&answer, &server, long, until);
            let kind = connected.map(drop).map_err(|error| error.kind);
            let expected = if is_primary {
                Ok(())
            } else {
                Err(ErrorKind::NoPrimary)
            };
            assert_eq!(kind, expected);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_look_for_another_primary_finds_the_replicas_that_were_added() {
        let (server, thread) = answering(concat!(
            "*4\r\n$2\r\nip\r\n$1\r\nh\r\n$4\r\nport\r\n$1\r\n1\r\n",
            "*1\r\n*4\r\n$2\r\nip\r\n$1\r\nr\r\n$4\r\nport\r\n$1\r\n2\r\n"
        ));
        let sentinels = Sentinels::new(vec![Arc::clone(&server)], "main".into());
        let connected = server.at(Address::Tcp {
            host: "h".into(),
            port: 1,
            tls: false,
        });
        let replication = Replication {
            quorum: Quorum::All,
            timeout: server.timeout,
        };
        assert!(!sentinels.have_another(&connected, server.timeout, Some(replication)));
        assert_eq!(*sentinels.replicas().list(), ["r:2"]);
        thread.join().unwrap();
    }

    #[test]
    fn an_answer_from_before_a_known_failover_is_kept_for_last() {
        let answers = poll(3, &[(1, 4), (2, 5), (3, 6), (2, 6)]).answers;
        let mut search = Search::default();
        let tried = answers.into_iter().filter_map(|it| search.take(Ok(it), 5));
        let tried: Vec<u64> = tried.map(|answer| answer.epoch).collect();
        assert_eq!(tried, [5, 6]);
        let last: Vec<u64> = search.outdated.iter().map(|it| it.epoch).collect();
        assert_eq!(last, [4]);
    }

    #[test]
    fn an_epoch_is_known_when_most_sentinels_have_reached_it() {
        for (of, said, known) in [
            (1, &[7][..], 7),
            (2, &[7], 0),
            (2, &[7, 5], 5),
            (3, &[u64::MAX], 0),
            (3, &[5, u64::MAX, 5], 5),
            (3, &[5, u64::MAX], 5),
            (3, &[6, 5, 6], 6),
            (4, &[6, 6, 5], 5),
            (5, &[6, 6], 0),
        ] {
            assert_eq!(reached(said.iter().copied(), of), known, "{of} {said:?}");
        }
    }

    #[test]
    fn a_sentinel_that_is_quick_isnt_a_majority_while_others_are_outstanding() {
        for asked in [2, 3, 5] {
            let (sender, coming) = channel();
            let mut quick = poll(asked, &[(9, 99)]);
            quick.coming = coming;
            quick.late = Instant::now() + Duration::from_secs(60);
            assert!(quick.agreed().is_none(), "{asked}");
            drop(sender);
            assert_eq!(quick.agreed().is_some(), asked == 2, "{asked}");
        }
    }

    #[test]
    fn a_replica_counts_unless_most_sentinels_take_it_for_down() {
        let known = |address: &str, has_no_priority, is_down| KnownReplica {
            address: address.into(),
            has_no_priority,
            is_down,
        };
        let first = [
            known("up:1", false, false),
            known("backup:1", true, false),
            known("down:1", false, true),
            known("reader:0", false, false),
        ];
        let second = [known("down:1", false, true), known("new:1", false, false)];
        let third = [known("down:1", false, false)];
        assert_eq!(those_that_count(&[&first], 1), ["up:1"]);
        assert_eq!(those_that_count(&[&first], 3), ["up:1", "down:1"]);
        let both = those_that_count(&[&first, &second], 3);
        assert_eq!(both, ["up:1", "new:1"]);
        let half = those_that_count(&[&first, &third], 3);
        assert_eq!(half, ["up:1", "down:1"]);
        assert_eq!(
            those_that_count(&[&first, &second], 4),
            ["up:1", "down:1", "new:1"]
        );
    }
}

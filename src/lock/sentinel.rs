//! The primary as sentinels know it.
//!
//! A sentinel that is cut off, or a server that was demoted, answers as if nothing had happened. So the
//! first answer counts that the server itself agrees with, by `ROLE`; an answer from before a failover
//! that we have heard of (its configuration epoch is smaller) comes last; and while a lock is held, one
//! sentinel after the other is asked whether the primary is still the same.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::connection::Connection;
use super::scripts::lossy_text;
use super::server::Server;
use super::url::Address;
use super::{Error, ErrorKind};

/// How long the first sentinel has, before all are asked.
const FIRST: Duration = Duration::from_millis(250);

/// The sentinels of a URL, and the name under which they know the primary.
pub(super) struct Sentinels {
    nodes: Vec<Arc<Server>>,
    primary: String,
    /// The one to ask next.
    turn: AtomicUsize,
    /// A connection was opened, or couldn't be.
    was_opened: AtomicBool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The largest configuration epoch that a sentinel has said.
    epoch: u64,
    /// Where the primary is now, by a sentinel that was asked while we were connected elsewhere.
    told: Option<Answer>,
}

/// What a sentinel says.
#[derive(Clone)]
struct Answer {
    /// The sentinel.
    by: String,
    address: Address,
    /// It grows with each failover.
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(nodes: Vec<Arc<Server>>, primary: String) -> Self {
        Self {
            nodes,
            primary,
            turn: AtomicUsize::new(0),
            was_opened: AtomicBool::new(false),
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the primary; `like` has the credentials for it.
    pub(super) fn open(
        &self,
        like: &Server,
        timeout: Duration,
        within: Duration,
    ) -> Result<Connection, Error> {
        let until = Instant::now() + within;
        let told = self.known().told.take();
        if let Some(answer) = told {
            return self.connect(&answer, like, timeout, until);
        }
        let mut search = Search::default();
        // What has been well until now gets away with one question.
        if !self.was_opened.swap(true, Ordering::Relaxed) {
            let answer = ask(&self.nodes[0], &self.primary, FIRST.min(within / 4));
            if let Some(answer) = search.take(answer, self.epoch()) {
                match self.connect(&answer, like, timeout, until) {
                    Ok(connection) => return Ok(connection),
                    Err(error) => search.failure = Some(error),
                }
            }
        }
        let answers = self.ask_all(left(until));
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

    fn epoch(&self) -> u64 {
        self.known().epoch
    }

    /// Asks all sentinels at once. The answers come as they are given, until the last one has failed.
    fn ask_all(&self, within: Duration) -> Receiver<Result<Answer, Error>> {
        let (answers, receiver) = channel();
        for node in &self.nodes {
            let (node, primary) = (Arc::clone(node), self.primary.clone());
            let answers = answers.clone();
            // One that can't be started is a sentinel that doesn't answer.
            let _ = std::thread::Builder::new().spawn(move || {
                let _ = answers.send(ask(&node, &primary, within));
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
            let message =
                format!("{error}, which is the primary \"{name}\" by the sentinel at {by}");
            Error::new(error.kind, message)
        })?;
        let role = role.first().map(role_of).unwrap_or_default();
        if role != "master" {
            return Err(Error::new(
                ErrorKind::NotNow,
                format!(
                    "the sentinel at {by} says that the primary \"{name}\" is at {address}, but that says that it is a replica; try again when the failover is over"
                ),
            ));
        }
        let mut known = self.known();
        known.epoch = known.epoch.max(answer.epoch);
        Ok(connection)
    }

    /// Whether one sentinel, another one each time, knows a newer primary than this server. The next
    /// connection goes there, and nowhere else.
    pub(super) fn have_another(&self, than: &Server, within: Duration) -> bool {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.nodes.len();
        let Ok(answer) = ask(&self.nodes[turn], &self.primary, FIRST.min(within / 4)) else {
            return false;
        };
        let mut known = self.known();
        let is_another = answer.address != *than.address() && answer.epoch >= known.epoch;
        if is_another {
            known.told = Some(answer);
        }
        is_another
    }
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

/// Asks a sentinel for the primary of this name.
fn ask(sentinel: &Arc<Server>, primary: &str, within: Duration) -> Result<Answer, Error> {
    let mut question = cmd("SENTINEL");
    question.arg("MASTER").arg(primary);
    let (_, answers) = Connection::open_asking(sentinel, within, within, &[question])?;
    let fields = answers.first().map(Fields::new).unwrap_or_default();
    let host = fields.get("ip").filter(|host| !host.is_empty());
    let port = fields.get("port").and_then(|port| port.parse().ok());
    let (Some(host), Some(port)) = (host, port) else {
        let message = format!("the sentinel at {sentinel} gave an answer without an address");
        return Err(Error::new(ErrorKind::Unreachable, message));
    };
    let tls = matches!(sentinel.address(), Address::Tcp { tls: true, .. });
    Ok(Answer {
        by: sentinel.to_string(),
        address: Address::Tcp { host, port, tls },
        epoch: fields
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok())
            .unwrap_or(0),
    })
}

/// Names and values in turn.
#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Fields {
    fn new(value: &Value) -> Self {
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

    fn get(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.clone())
    }
}

/// The first word of the answer to `ROLE`.
fn role_of(answer: &Value) -> String {
    match answer {
        Value::Array(fields) => fields.first().map(lossy_text).unwrap_or_default(),
        _ => String::new(),
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

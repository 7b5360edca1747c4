//! Plain questions to servers, with their answers as they are, for `redlock doctor`.
//!
//! Nothing here asks twice, judges an answer, or changes a lock.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerError, ServerErrorKind, Value};

use super::client::Client;
use super::inspect::{Inspected, Page, inspected};
use super::lock::Lock;
use super::locks::Locks;
use super::name::{Keys, Name};
use super::scripts::{lossy_text, number};
use crate::redis::connection::Connection;
use crate::redis::error::{Error, quoted};
use crate::redis::nodes::{self, KnownReplica};
use crate::redis::redis_cli::RedisCli;
use crate::redis::refusal::from_server;
use crate::redis::sentinel::{Fields, known_replica};
use crate::redis::server::{Part, Server};
use crate::redis::slot::{hash_slot, hash_tag, key_starts};
use crate::redis::transport::Transport;

/// A command and its arguments.
pub type Question = Vec<String>;

/// The answer to one question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(Value);

impl From<Value> for Answer {
    fn from(value: Value) -> Self {
        Self(value)
    }
}

impl Answer {
    /// The error, if it is one.
    pub fn refusal(&self) -> Option<Refusal<'_>> {
        match &self.0 {
            Value::ServerError(error) => Some(Refusal(error)),
            _ => None,
        }
    }

    /// Its text; empty where it has none.
    pub fn text(&self) -> String {
        match &self.0 {
            Value::VerbatimString { text, .. } => text.clone(),
            other => lossy_text(other),
        }
    }

    /// A whole number.
    pub fn number(&self) -> Option<u64> {
        number(&self.0).ok()
    }

    pub fn list(&self) -> Option<Vec<Self>> {
        match &self.0 {
            Value::Array(parts) => Some(parts.iter().cloned().map(Self).collect()),
            _ => None,
        }
    }

    /// The value behind this name, in a list of names and values in turn.
    pub fn field(&self, name: &str) -> Option<String> {
        Fields::new(&self.0).get(name)
    }

    /// A replica, as a sentinel describes it.
    pub fn replica(&self) -> KnownReplica {
        known_replica(&self.0)
    }
}

/// An error that a server answers with.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a>(&'a ServerError);

impl<'a> Refusal<'a> {
    pub fn code(self) -> &'a str {
        self.0.code()
    }

    pub fn details(self) -> &'a str {
        self.0.details().unwrap_or_default()
    }

    /// Whether a rule of the access list is missing.
    pub fn is_by_rule(self) -> bool {
        self.0.kind() == Some(ServerErrorKind::NoPerm)
    }
}

/// What was said, word for word.
impl fmt::Display for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quoted(&format!("{} {}", self.code(), self.details())))
    }
}

/// The rest of the time until a moment.
pub fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn commands(questions: &[Question]) -> Vec<Cmd> {
    let command = |words: &Question| {
        let mut command = Cmd::new();
        command.arg(words);
        command
    };
    questions.iter().map(command).collect()
}

fn answers(values: Vec<Value>) -> Vec<Answer> {
    values.into_iter().map(Answer).collect()
}

/// A server that can be asked. Its `Display` is its address.
#[derive(Clone, Debug)]
pub struct Endpoint(Arc<Server>);

/// What the settings say of a server.
#[derive(Debug)]
pub struct About {
    pub redis_cli: RedisCli,
    /// The URL was typed, so that a command without it goes elsewhere.
    pub is_typed: bool,
    /// The user of the server's access list, where one was given; hidden where it may be the password.
    pub user: Option<String>,
    pub transport: Transport,
    /// The longest that connecting, and each answer, may take.
    pub timeout: Duration,
    /// Where the address is from, as a sentence.
    pub origin: Option<String>,
    /// Our certificate for it, in DER.
    pub certificate: Option<Vec<u8>>,
    pub database: i64,
    pub is_node: bool,
    /// Sentinels name it.
    pub is_named: bool,
}

impl Endpoint {
    pub fn about(&self) -> About {
        let Self(server) = self;
        About {
            redis_cli: server.redis_cli(),
            is_typed: server.has_typed_url(),
            user: server.shown_user().map(str::to_owned),
            transport: server.transport(),
            timeout: server.timeout,
            origin: server.url_origin(),
            certificate: server.own_certificate(),
            database: server.database,
            is_node: server.part() == Part::Node,
            is_named: server.part() == Part::Primary,
        }
    }

    /// Whether the settings name a user; without one we are the default user.
    pub fn has_user(&self) -> bool {
        self.0.username.is_some()
    }

    /// Another server, reached in the same way with the same credentials.
    pub fn neighbour(&self, host: &str, port: u16) -> Self {
        Self(Arc::new(self.0.neighbour(host, port)))
    }

    /// Another server, reached in the same way without our credentials.
    pub fn neighbour_without_login(&self, host: &str, port: u16) -> Self {
        Self(Arc::new(self.0.neighbour(host, port).without_login()))
    }

    /// The same by itself, and without a database.
    pub fn plain(&self) -> Self {
        Self(Arc::new(self.0.plain()))
    }

    /// Opens a connection, which speaks RESP2, and asks these in the same round trip. Where one of those is refused,
    /// that is the error.
    pub fn open(
        &self,
        questions: &[Question],
        until: Instant,
    ) -> Result<(Questioning, Vec<Answer>), Error> {
        let (within, questions) = (left(until), commands(questions));
        let (connection, values) = Connection::open_asking(&self.0, within, within, &questions)?;
        Ok((Questioning(connection), answers(values)))
    }

    /// What its refusal means to a user.
    pub fn error(&self, refusal: Refusal<'_>) -> Error {
        from_server(refusal.0, &self.0, None, None)
    }

    /// The error for a server that wasn't reached in time.
    pub fn silent_error(&self) -> Error {
        self.0
            .unreachable_error(&std::io::ErrorKind::TimedOut.into())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection for questions.
pub struct Questioning(Connection);

impl Questioning {
    /// Asks at once; errors are among the answers.
    pub fn ask(&mut self, questions: &[Question], until: Instant) -> Result<Vec<Answer>, Error> {
        let values = self.0.query_each(&commands(questions), left(until))?;
        Ok(answers(values))
    }
}

impl Client {
    /// The same over the connection that there is, or a fresh one.
    pub fn ask(&mut self, questions: &[Question], until: Instant) -> Result<Vec<Answer>, Error> {
        self.query_each(&commands(questions), until).map(answers)
    }

    /// Sends these at once; errors are among the answers.
    pub(super) fn query_each(
        &mut self,
        commands: &[Cmd],
        until: Instant,
    ) -> Result<Vec<Value>, Error> {
        self.limit_to(left(until));
        self.with_connection(|connection, within| {
            connection.query_each(commands, within.min(left(until)))
        })
    }

    /// The certificate that the server has shown, in DER.
    pub fn certificate(&mut self) -> Option<Vec<u8>> {
        let found =
            self.with_connection(|connection, _| Ok(connection.certificate().map(<[u8]>::to_vec)));
        found.ok().flatten()
    }
}

/// The keys that questions are about, and what all keys begin with.
#[derive(Clone, Debug)]
pub struct KeyNames {
    pub lock: String,
    pub state: String,
    pub index: String,
    /// What the channel of each waiter begins with.
    pub channels: String,
    /// What the keys of all locks begin with, and all others, and channels.
    pub starts: (String, String),
}

impl KeyNames {
    pub fn new(prefix: &str, name: &Name) -> Self {
        let keys = Keys::new(prefix, name);
        let [lock, state, index, channels] =
            [&keys.lock, &keys.state, &keys.index, &keys.channels].map(|key| shown(key));
        let starts = key_starts(prefix);
        Self {
            lock,
            state,
            index,
            channels,
            starts,
        }
    }
}

fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

impl Lock {
    /// Its keys and the index, each with the type that it has.
    pub(super) fn typed_keys(&self) -> [(&[u8], &'static str); 13] {
        let keys = &self.keys;
        [
            (&keys.lock, "string"),
            (&keys.state, "hash"),
            (&keys.meta, "hash"),
            (&keys.holders, "zset"),
            (&keys.queue, "zset"),
            (&keys.waiters, "hash"),
            (&keys.exempt, "zset"),
            (&keys.slots, "zset"),
            (&keys.history, "list"),
            (&keys.skips, "list"),
            (&keys.notices, "hash"),
            (&keys.guards, "hash"),
            (&keys.index, "zset"),
        ]
        .map(|(key, kind)| (key.as_slice(), kind))
    }
}

/// The replicas that `--sync all` waits for, by the lists of several sentinels, of so many in all.
pub fn promotable_replicas(lists: &[&[KnownReplica]], sentinels: usize) -> Vec<String> {
    nodes::promotable_replicas(lists, sentinels)
}

/// What is at the keys of a lock.
pub struct Look {
    /// Each key, the type that it should have, and the answer to TYPE.
    pub types: Vec<(String, &'static str, Answer)>,
    /// `None` where it can't be read.
    pub found: Result<Option<Inspected>, Error>,
}

impl Locks {
    /// The server that was used last, or is tried first.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint(self.deployment.server())
    }

    /// The sentinels that are asked for the primary, and its name there.
    pub fn sentinels(&self) -> Option<(String, Vec<Endpoint>)> {
        let sentinels = self.deployment.sentinels()?;
        let nodes = sentinels.nodes().iter().cloned().map(Endpoint).collect();
        Some((sentinels.primary().to_owned(), nodes))
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The hash slot of the prefix, where it has a tag.
    pub fn hash_slot(&self) -> Option<u16> {
        hash_tag(&self.prefix).map(|tag| hash_slot(tag.as_bytes()))
    }

    /// Looks at the keys of a lock, in one round trip.
    pub fn look_at(&self, client: &mut Client, name: &Name, until: Instant) -> Result<Look, Error> {
        let lock = self.lock(name.clone());
        let keys = lock.typed_keys();
        let mut asked: Vec<Cmd> = Vec::new();
        asked.extend(keys.map(|(key, _)| redis::cmd("TYPE").arg(key).clone()));
        asked.push(self.inspect_call(name, 0, &Page::first()).command(false));
        let mut answers = client.query_each(&asked, until)?;
        let found = match answers.pop().unwrap_or(Value::Nil) {
            Value::ServerError(error) => Err(self.endpoint().error(Refusal(&error))),
            answer => Ok(inspected(name.clone(), answer).ok().map(|(lock, _)| lock)),
        };
        let types = keys.into_iter().zip(answers);
        let types = types.map(|((key, kind), answer)| (shown(key), kind, Answer(answer)));
        Ok(Look {
            types: types.collect(),
            found,
        })
    }
}

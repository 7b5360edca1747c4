//! A connection to one server: calls go out, answers and notifications come in.
//!
//! Nothing here blocks unless asked to: a caller that also has signals and timers to watch sends,
//! waits for the descriptor, and takes what came; one that has nothing else to do uses
//! [`Connection::call`].
//!
//! What the other side sends is believed as far as the protocol goes, and no further:
//!
//! - A reply has a limit of its size and depth, and a listing one for all of its replies together.
//! - However much comes in, a caller is back at its clock after [`TURN`] bytes, and what waits for an
//!   answer waits until its deadline and no longer, also when bytes keep coming.
//! - After a reply without a request, an answer to another question, or bytes that aren't the protocol at
//!   all, no answer can be matched to its request any more. The connection is given up, and the state of
//!   what was asked is *unknown*: neither granted nor lost.
//! - A channel is subscribed to only where the server speaks RESP3. With RESP2 a subscription changes
//!   what the connection may be used for, and its messages look like answers.
//! - A connection that is given up with a request unanswered is reset, so that what is still under way
//!   doesn't arrive later and take a lock that is not wanted any more. A release is wanted also when it
//!   comes late, so where one was the last word the connection is closed in order.

mod replicas;

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, PushKind, ServerError, ServerErrorKind, Value, cmd};

use self::replicas::Pending;
use super::call::{Call, Script};
use super::nodes::Nodes;
use super::refusal::from_server;
use super::replication::{Goal, Quorum, Replicas, Replication, Role};
use super::reply::{field, lossy_text};
use super::resp::{Broken, Replies};
use super::server::{Part, Server};
use super::stream::Stream;
use super::{Error, ErrorKind, ready};

/// What one reply may weigh where nothing large is expected: the longest of ours holds the entry of
/// one holder and a word about another, so a few kilobytes.
const USUAL: usize = 1 << 20;

/// What all replies of a listing together may weigh.
const LISTING: usize = 16 << 20;

/// How much is read before the caller is back at its clock.
const TURN: usize = 64 * 1024;

/// How long an answer is looked for again and again before its reader sleeps. A server on this host
/// answers within that time, and to sleep and be woken takes as long once more.
const SOON: Duration = Duration::from_micros(100);

/// How long a server that closes the connection at once is asked whether it expects TLS.
const PROBE: Duration = Duration::from_millis(500);

/// A connection whose password a command has printed is replaced when it is older than this: some services end
/// connections together with the token, and none of those known has tokens of less than 15 minutes.
const NEW_PASSWORD: Duration = Duration::from_secs(10 * 60);

/// How long the nodes of a cluster are taken to be what they were.
const NODES_LAST: Duration = Duration::from_secs(60);

/// The version of Redis from which on channels can belong to hash slots.
const SHARDED_SINCE: u32 = 7;

/// The number of a request on its connection, by which its answer is known.
type RequestId = u64;

/// What an answer that is still to come belongs to.
enum Expected {
    /// A call by hash, kept in case the server doesn't know the script.
    Call(RequestId, Call),
    /// A call that is not sent again, about the lock with this key.
    Sent(RequestId, &'static Script, Vec<u8>),
    /// A command whose answer is wanted as it is.
    Plain(RequestId),
    /// The same, also where the answer is an error.
    Any(RequestId),
    /// The change to RESP3.
    Hello,
    /// What we can do without: tracking.
    Optional,
    /// Whether the server is a replica, if we may know it.
    Role,
    /// How many replicas have what was written before.
    Acknowledged,
    /// How many replicas have a release.
    Followed,
    /// How far the primary was after the call that waits for its replicas.
    Written,
    /// How far each of them is.
    Positions,
    /// Which of them copy the data, if we may know it.
    Copying,
    /// The beginning of a key, which should contain one of these values.
    Value(Vec<Vec<u8>>),
    /// A subscription.
    Subscribed,
    /// The nodes of the cluster, if we may know them.
    Nodes,
}

/// Whether the server speaks RESP3, in which messages differ from answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Resp3 {
    /// It wasn't asked.
    Unasked,
    /// It was asked.
    Asked,
    Spoken,
    Unknown,
}

/// What came in.
pub enum Received {
    /// The answer to a request.
    Answer {
        number: RequestId,
        /// The script that was called, if it was one.
        script: Option<&'static Script>,
        value: Value,
    },
    /// What the server pushes.
    Push(Push),
}

/// What the server pushes, or what is known without a word from it.
#[derive(Debug)]
pub enum Push {
    /// The subscription is confirmed.
    Subscribed,
    /// The server doesn't let us subscribe.
    SubscribeDenied,
    /// A message on the channel that we listen to.
    Message(String),
    /// The same, which came while an answer was waited for: what it said can be asked.
    MessageMissed,
    /// A key that was read over this connection may have changed.
    KeyChanged,
}

/// The message by which another program looks whether anybody listens.
pub const PRESENCE_CHECK: &str = "hello";

/// What the next reply may weigh.
#[derive(Clone, Copy)]
enum ReplyLimit {
    Usual,
    /// It is one of a listing, which may weigh this much more.
    Listing(usize),
}

/// A connection to one server.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Connection {
    stream: Stream,
    replies: Replies,
    /// How much was read since [`Self::receive`] last returned nothing.
    turn: usize,
    reply_limit: ReplyLimit,
    expected: VecDeque<Expected>,
    sent: RequestId,
    /// When something was last written.
    written: Instant,
    resp3: Resp3,
    /// Whether it is a node of a cluster, as far as it says that.
    is_node: Option<bool>,
    /// Channels belong to hash slots here, and a message stays on the slot's node.
    sharded: bool,
    /// When the nodes of the cluster were asked for.
    asked_nodes: Option<Instant>,
    /// Something that was asked was answered.
    has_answered: bool,
    /// A script was answered: we were permitted to call it.
    is_proven: bool,
    opened: Instant,
    /// The channel to listen to, once it is known that the server speaks RESP3.
    channel: Option<Vec<u8>>,
    /// The channel that was last asked for.
    subscribed: Option<Vec<u8>>,
    /// What is to be sent after the subscription.
    held_back: Vec<u8>,
    /// A subscription isn't possible, which the caller hasn't been notified of yet.
    denied: bool,
    /// An invalidation came while an answer was waited for.
    key_changed: bool,
    /// A message came while an answer was waited for: what it said can be asked.
    message_passed: bool,
    /// The server was asked to notify us of keys that change.
    tracking: bool,
    /// What has to be replicated before it counts.
    replication: Option<(Replication, Arc<Replicas>)>,
    /// What the last call waits for that does so.
    goal: Option<Goal>,
    /// How long the replicas may take for it.
    replicas_may_take: Duration,
    /// Until when that call is to be answered.
    answer_until: Instant,
    /// An answer that counts when it is.
    pending: Option<Pending>,
    /// How many replicas the server had when it was connected to, where that was asked.
    followers: u32,
    /// They are asked whether they have what is called.
    asks_followers: bool,
    /// How many replicas have the last release, as far as they may be asked.
    followed_by: u32,
    /// Answers can't be matched to requests any more.
    broken: Option<Error>,
    server: Arc<Server>,
    /// How long writing, and each answer of a listing, may take.
    timeout: Duration,
}

impl Connection {
    /// Connects and authenticates, all `within` a time.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Refused`] or [`ErrorKind::Config`].
    pub(super) fn open(
        server: &Arc<Server>,
        timeout: Duration,
        within: Duration,
    ) -> Result<Self, Error> {
        Self::open_asking(server, timeout, within, &[]).map(|(connection, _)| connection)
    }

    /// The same; also asks these questions, in the same round trip. Their answers, in order.
    pub fn open_asking(
        server: &Arc<Server>,
        timeout: Duration,
        within: Duration,
        questions: &[Cmd],
    ) -> Result<(Self, Vec<Value>), Error> {
        let opened = Instant::now();
        let until = opened + within;
        let mut connection = Self {
            stream: server.open(until)?,
            replies: Replies::default(),
            turn: 0,
            reply_limit: ReplyLimit::Usual,
            expected: VecDeque::new(),
            sent: 0,
            written: Instant::now(),
            resp3: Resp3::Unasked,
            is_node: None,
            sharded: false,
            asked_nodes: None,
            has_answered: false,
            is_proven: false,
            opened,
            channel: None,
            subscribed: None,
            held_back: Vec::new(),
            denied: false,
            key_changed: false,
            message_passed: false,
            tracking: false,
            replication: None,
            goal: None,
            replicas_may_take: Duration::ZERO,
            answer_until: Instant::now(),
            pending: None,
            followers: 0,
            asks_followers: false,
            followed_by: 0,
            broken: None,
            server: Arc::clone(server),
            timeout,
        };
        let answers = connection.introduce(questions, until);
        let answers = answers.map_err(|error| connection.judged(error))?;
        for answer in &answers {
            connection.note_followers(answer);
        }
        if let Some(command) = &server.password_command {
            command.note_accepted();
        }
        Ok((connection, answers))
    }

    /// Whether its password, which a command has printed, may soon be over.
    pub fn wants_new_password(&self) -> bool {
        self.server.password_command.is_some() && self.opened.elapsed() > NEW_PASSWORD
    }

    /// The error for what a server answers to a request.
    fn call_error(&self, expected: Option<&Expected>, error: &ServerError) -> Error {
        let (script, key) = match expected {
            Some(Expected::Call(_, call)) => (Some(call.script), call.keys.first()),
            Some(Expected::Sent(_, script, key)) => (Some(*script), Some(key)),
            _ => (None, None),
        };
        let key = key.map(Vec::as_slice);
        let script = script.map(|script| script.source);
        let error = from_server(error, &self.server, key, script);
        // What the first call on a connection isn't permitted, the user isn't.
        if self.is_proven {
            self.judged(error)
        } else {
            error
        }
    }

    /// What is refused because a password is over, the next one may permit.
    fn judged(&self, mut error: Error) -> Error {
        if error.kind == ErrorKind::Refused
            && let Some(command) = &self.server.password_command
        {
            error.kind = command.kind(error.kind);
        }
        error
    }

    /// The server at the other end.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Whether a grant and a renewal count only when replicas have them.
    pub fn is_replicated(&self) -> bool {
        self.replication.is_some()
    }

    /// Logs in, chooses the database and asks what is to be known first, in one round trip, and in none
    /// where nothing is needed.
    fn introduce(&mut self, questions: &[Cmd], until: Instant) -> Result<Vec<Value>, Error> {
        let mut bytes = Vec::new();
        let mut steps = 0;
        let (username, password) = (&self.server.username, self.server.password());
        // There are users without a password.
        if username.is_some() || password.is_some() {
            let mut auth = cmd("AUTH");
            auth.arg(username.as_slice());
            auth.arg(password.as_deref().unwrap_or_default());
            auth.write_packed_command(&mut bytes);
            steps += 1;
        }
        if self.server.database != 0 {
            cmd("SELECT")
                .arg(self.server.database)
                .write_packed_command(&mut bytes);
            steps += 1;
        }
        let mut numbers: Vec<RequestId> = (0..steps).map(|_| self.expect_plain()).collect();
        if self.server.part() == Part::Node {
            // What it is, and what it can do for waiters.
            cmd("HELLO").arg(3).write_packed_command(&mut bytes);
            self.resp3 = Resp3::Asked;
            self.expected.push_back(Expected::Hello);
            cmd("ROLE").write_packed_command(&mut bytes);
            self.expected.push_back(Expected::Role);
        }
        for question in questions {
            question.write_packed_command(&mut bytes);
            numbers.push(self.expect_plain());
        }
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        self.write(&bytes, until)?;
        let mut found = Vec::new();
        for number in numbers {
            // All that a sentinel is asked behind the first question may be unknown to it (Redis 6.0), or not permitted.
            let is_optional = self.server.part() == Part::Sentinel && found.len() > steps;
            found.push(match self.answer(number, until) {
                // Keys that it has moved already: until it has moved all of them it is the one to ask.
                Err(error) if error.is_migration() => Value::Nil,
                Err(error) if is_optional && !error.kind.is_unreachable() => Value::Nil,
                answer => answer?,
            });
        }
        Ok(found.split_off(steps))
    }

    /// Whether the server is a node of a cluster, as far as it has said.
    pub(super) fn is_node(&self) -> Option<bool> {
        self.is_node
    }

    /// Whether a waiter's channel is one of its hash slot.
    pub fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// Sends a call; its answer comes in later.
    pub fn send(&mut self, call: Call) -> Result<(), Error> {
        let until = self.until() + self.replicas_timeout();
        self.request(call, until).map(drop)
    }

    fn request(&mut self, call: Call, until: Instant) -> Result<RequestId, Error> {
        self.nothing_is_left()?;
        let mut bytes = call.command(true).get_packed_command();
        let script = call.script;
        self.sent += 1;
        self.expected.push_back(Expected::Call(self.sent, call));
        self.await_replicas(script, &mut bytes, until);
        self.write(&bytes, until)?;
        Ok(self.sent)
    }

    /// Calls a script again that the server doesn't know. Nothing was done. Where something else was sent
    /// meanwhile, it must stay so: now it would be done after that, a lock taken that was just released.
    fn call_with_text(&mut self, number: RequestId, call: Call) -> Result<(), Error> {
        let is_about_it = |expected: &Expected| {
            matches!(
                expected,
                Expected::Optional
                    | Expected::Value(_)
                    | Expected::Nodes
                    | Expected::Written
                    | Expected::Acknowledged
                    | Expected::Followed
                    | Expected::Positions
                    | Expected::Copying
            )
        };
        if !self.expected.iter().all(is_about_it) {
            return Ok(());
        }
        // What is tracked was asked for before that.
        self.tracking = false;
        let until = self.until();
        let answer_until = self.answer_until.max(Instant::now());
        let mut bytes = call.command(false).get_packed_command();
        let key = call.keys.into_iter().next().unwrap_or_default();
        let sent = Expected::Sent(number, call.script, key);
        self.expected.push_back(sent);
        self.await_replicas(call.script, &mut bytes, answer_until);
        self.write(&bytes, until)
    }

    /// Notes down that an answer will come that is wanted as it is.
    fn expect_plain(&mut self) -> RequestId {
        self.sent += 1;
        self.expected.push_back(Expected::Plain(self.sent));
        self.sent
    }

    /// Before something is asked: whatever came in meanwhile, an answer isn't among it, as it would
    /// pass for the next one.
    fn nothing_is_left(&mut self) -> Result<(), Error> {
        if self.sent == 0 || !self.expected.is_empty() {
            return Ok(());
        }
        while let Some(received) = self.next_incoming()? {
            self.pass_over(&received);
        }
        Ok(())
    }

    /// Listens to a channel, on this same connection (RESP3, Redis 6 or later), from what is sent
    /// next on: that waits here until it is known that the server can.
    /// Where that was asked before, it is not asked again.
    pub fn subscribe(&mut self, channel: &[u8]) -> Result<(), Error> {
        if self.subscribed.as_deref() == Some(channel) {
            return Ok(());
        }
        self.ask_to_subscribe(channel)?;
        self.subscribed = Some(channel.to_vec());
        if self.server.part() == Part::Node {
            self.ask_nodes()?;
        }
        Ok(())
    }

    /// Whether a subscription was asked for and the server hasn't answered yet.
    pub fn is_subscribing(&self) -> bool {
        let subscribed = |expected: &Expected| matches!(expected, Expected::Subscribed);
        self.expected.iter().any(subscribed)
    }

    fn ask_to_subscribe(&mut self, channel: &[u8]) -> Result<(), Error> {
        let until = self.until();
        match self.resp3 {
            Resp3::Spoken => {
                self.expected.push_back(Expected::Subscribed);
                self.write(&self.subscribe_command(channel), until)
            }
            Resp3::Unasked if !self.server.closes_on_hello() => {
                self.nothing_is_left()?;
                self.say_hello(&mut Vec::new(), until)?;
                self.subscribe_later(channel);
                Ok(())
            }
            Resp3::Asked => {
                self.subscribe_later(channel);
                Ok(())
            }
            Resp3::Unasked | Resp3::Unknown => {
                self.denied = true;
                Ok(())
            }
        }
    }

    /// Holds back what is sent from now on, until it is known whether the server speaks RESP3.
    fn subscribe_later(&mut self, channel: &[u8]) {
        if self.channel.replace(channel.to_vec()).is_none() {
            self.expected.push_back(Expected::Subscribed);
        }
    }

    /// Asks for RESP3, and sends what is to follow at once.
    fn say_hello(&mut self, followed_by: &mut Vec<u8>, until: Instant) -> Result<(), Error> {
        let mut bytes = Vec::new();
        cmd("HELLO").arg(3).write_packed_command(&mut bytes);
        bytes.append(followed_by);
        self.resp3 = Resp3::Asked;
        self.expected.push_back(Expected::Hello);
        self.write(&bytes, until)
    }

    /// What comes of it that RESP3 was asked for.
    fn hello(&mut self, answer: &Value) -> Result<(), Error> {
        // In RESP2 there are no maps.
        let spoken = matches!(answer, Value::Map(_));
        if self.server.part() == Part::Node {
            let said = |name| field(answer, name);
            self.is_node = said("mode").map(|mode| mode == "cluster");
            let version = said("version").unwrap_or_default();
            let major = version
                .split('.')
                .next()
                .and_then(|major| major.parse().ok());
            self.sharded = spoken && major.is_some_and(|major: u32| major >= SHARDED_SINCE);
        }
        self.resp3 = if spoken {
            Resp3::Spoken
        } else {
            Resp3::Unknown
        };
        let Some(channel) = self.channel.take() else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        if spoken {
            bytes = self.subscribe_command(&channel);
        } else {
            self.denied = true;
            let subscribed = |expected: &Expected| matches!(expected, Expected::Subscribed);
            if let Some(at) = self.expected.iter().position(subscribed) {
                self.expected.remove(at);
            }
        }
        bytes.append(&mut self.held_back);
        let until = self.until();
        self.write(&bytes, until)
    }

    /// Has the server notify us when another client changes one of these keys for the next time (client
    /// tracking, RESP3). A server without tracking sends no notification. Only keys that are read here are
    /// tracked: most of a script's keys are written all the time. The key's value isn't requested, as it
    /// may be anything.
    pub fn track_keys<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        let until = self.until();
        let asks = match self.resp3 {
            Resp3::Spoken | Resp3::Asked => false,
            Resp3::Unasked if !self.server.closes_on_hello() => true,
            Resp3::Unasked | Resp3::Unknown => return Ok(()),
        };
        self.nothing_is_left()?;
        let mut bytes = Vec::new();
        let mut optional = 0;
        let mut add = |command: &Cmd| {
            command.write_packed_command(&mut bytes);
            optional += 1;
        };
        if !std::mem::replace(&mut self.tracking, true) {
            add(cmd("CLIENT")
                .arg("TRACKING")
                .arg("ON")
                .arg("OPTIN")
                .arg("NOLOOP"));
        }
        for key in keys {
            add(cmd("CLIENT").arg("CACHING").arg("YES"));
            add(cmd("EXISTS").arg(key));
        }
        if asks {
            self.say_hello(&mut bytes, until)?;
        } else {
            self.write(&bytes, until)?;
        }
        let optional = (0..optional).map(|_| Expected::Optional);
        self.expected.extend(optional);
        Ok(())
    }

    /// Calls a script that changes this key and leaves one of these values in it, and in the same write asks to be notified
    /// of the changes of the key from then on; its answer, and whether that is so. It isn't where tracking has not begun
    /// (by [`Self::track_keys`]), or the server doesn't know the script.
    pub fn call_tracked(
        &mut self,
        call: Call,
        key: &[u8],
        values: Vec<Vec<u8>>,
        within: Duration,
    ) -> Result<(Value, bool), Error> {
        let until = Instant::now() + within;
        if !self.tracking || self.resp3 != Resp3::Spoken {
            return Ok((self.call(call, within)?, false));
        }
        self.nothing_is_left()?;
        let mut bytes = call.command(true).get_packed_command();
        let script = call.script;
        self.sent += 1;
        let number = self.sent;
        cmd("CLIENT")
            .arg("CACHING")
            .arg("YES")
            .write_packed_command(&mut bytes);
        // Not all of it: it may be anything by now.
        let end = values.iter().map(Vec::len).max().unwrap_or_default();
        cmd("GETRANGE")
            .arg(key)
            .arg(0)
            .arg(end)
            .write_packed_command(&mut bytes);
        self.expected.extend([
            Expected::Call(number, call),
            Expected::Optional,
            Expected::Value(values),
        ]);
        self.await_replicas(script, &mut bytes, until);
        self.write(&bytes, until)?;
        let answer = self.answer(number, until)?;
        Ok((answer, self.tracking))
    }

    /// When what is sent now has to be through.
    fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// What came in, if anything has. Never blocks. Call until `None` before waiting for the
    /// descriptor: bytes may have been read ahead. However much comes, there is `None` after
    /// [`TURN`] bytes, and the descriptor says that there is more.
    pub fn receive(&mut self) -> Result<Option<Received>, Error> {
        if std::mem::take(&mut self.key_changed) {
            return Ok(Some(Received::Push(Push::KeyChanged)));
        }
        if std::mem::take(&mut self.denied) {
            return Ok(Some(Received::Push(Push::SubscribeDenied)));
        }
        if std::mem::take(&mut self.message_passed) {
            return Ok(Some(Received::Push(Push::MessageMissed)));
        }
        self.next_incoming()
    }

    /// What came in, if anything has.
    fn next_incoming(&mut self) -> Result<Option<Received>, Error> {
        let event = |push| Ok(Some(Received::Push(push)));
        loop {
            let Some(value) = self.next_reply()? else {
                return Ok(None);
            };
            let value = match value {
                Value::Push { kind, data } => match self.pushed(&kind, &data)? {
                    Some(push) => return event(push),
                    None => continue,
                },
                value => value,
            };
            match (self.expected.pop_front(), value) {
                (Some(Expected::Call(number, call)), Value::ServerError(error))
                    if error.kind() == Some(ServerErrorKind::NoScript) =>
                {
                    self.call_with_text(number, call)?;
                }
                (
                    Some(Expected::Role | Expected::Written | Expected::Nodes),
                    Value::ServerError(_),
                )
                | (Some(Expected::Optional), _) => {}
                (Some(Expected::Followed), answer) => self.followed(&answer),
                (Some(Expected::Written), answer) => self.written(&answer),
                (Some(Expected::Positions), answer) => {
                    let role = Role::parse(&answer);
                    if let Some(received) = self.positions(role.as_ref())? {
                        return Ok(Some(received));
                    }
                }
                (Some(Expected::Copying), answer) => {
                    if let Some(received) = self.copying(&answer)? {
                        return Ok(Some(received));
                    }
                }
                (Some(Expected::Nodes), answer) => self.nodes(&answer),
                // It was moved to another node, so it isn't tracked. The renewal says more.
                (Some(Expected::Value(_)), Value::ServerError(_))
                    if self.server.part() == Part::Node =>
                {
                    self.tracking = false;
                }
                // Another client has changed it between the renewal and this.
                (Some(Expected::Value(values)), value) => {
                    if !matches!(value, Value::BulkString(value) if values.contains(&value)) {
                        return event(Push::KeyChanged);
                    }
                }
                (Some(Expected::Hello), answer) => {
                    self.hello(&answer)?;
                    if std::mem::take(&mut self.denied) {
                        return event(Push::SubscribeDenied);
                    }
                }
                (Some(Expected::Subscribed), Value::ServerError(error)) => {
                    let error = from_server(&error, &self.server, None, None);
                    // On the node that the slot was moved to, it can.
                    if error.kind == ErrorKind::Moving {
                        return Err(error);
                    }
                    return event(Push::SubscribeDenied);
                }
                (Some(Expected::Subscribed), _) => {
                    return Err(self.out_of_step("did not answer a subscription"));
                }
                (Some(Expected::Any(number)), value) => {
                    return Ok(Some(self.answered(number, None, value)));
                }
                // Also unasked, such as "max number of clients reached".
                (expected, Value::ServerError(error)) => {
                    return Err(self.call_error(expected.as_ref(), &error));
                }
                (Some(Expected::Role), answer) => self.role(&answer),
                (
                    Some(
                        Expected::Call(number, Call { script, .. })
                        | Expected::Sent(number, script, _),
                    ),
                    value,
                ) => {
                    if let Some(received) = self.answered_call(number, script, value)? {
                        return Ok(Some(received));
                    }
                }
                (Some(Expected::Acknowledged), answer) => {
                    if let Some(received) = self.acknowledged(&answer)? {
                        return Ok(Some(received));
                    }
                }
                (Some(Expected::Plain(number)), value) => {
                    return Ok(Some(self.answered(number, None, value)));
                }
                (None, _) => return Err(self.out_of_step("sent a reply that was not asked for")),
            }
        }
    }

    /// What the server pushes, if it is of interest.
    fn pushed(&mut self, kind: &PushKind, data: &[Value]) -> Result<Option<Push>, Error> {
        Ok(match kind {
            PushKind::Message | PushKind::SMessage => {
                let message = data.last().map(lossy_text).unwrap_or_default();
                (message != PRESENCE_CHECK).then_some(Push::Message(message))
            }
            PushKind::Invalidate => Some(Push::KeyChanged),
            PushKind::Subscribe | PushKind::SSubscribe => {
                let expected = self.expected.pop_front();
                if !matches!(expected, Some(Expected::Subscribed)) {
                    return Err(self.out_of_step("confirmed what was not asked for"));
                }
                Some(Push::Subscribed)
            }
            // No message comes any more: the slot was moved to another node.
            PushKind::SUnsubscribe => {
                let message = format!(
                    "these keys were moved from {} to another node of the cluster",
                    self.server
                );
                let error = Error::new(ErrorKind::Moving, message);
                self.broken = Some(error.clone());
                return Err(error);
            }
            _ => None,
        })
    }

    fn answered(
        &mut self,
        number: RequestId,
        script: Option<&'static Script>,
        value: Value,
    ) -> Received {
        self.has_answered = true;
        self.is_proven |= script.is_some();
        Received::Answer {
            number,
            script,
            value,
        }
    }

    /// What came doesn't belong to what was asked: from here on no answer can be trusted.
    fn out_of_step(&mut self, what: &str) -> Error {
        let error = self.gives_up(&format!("it {what}"));
        self.broken = Some(error.clone());
        error
    }

    pub fn gives_up(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::Unreachable,
            format!("gave up the connection to Redis at {}: {why}", self.server),
        )
    }

    /// The error for what isn't a reply of ours.
    fn broken(&self, broken: &Broken) -> Error {
        match broken {
            // If it has never said anything else, it isn't a Redis server.
            Broken::Noise(_) if !self.server.was_reached() && self.begins_as_tls() => {
                self.server.speaks_tls()
            }
            Broken::Noise(noise) if self.replies.last_weight() == 0 => {
                self.server.is_no_redis(noise)
            }
            Broken::Noise(noise) => {
                self.gives_up(&format!("it does not speak the Redis protocol: {noise:?}"))
            }
            Broken::TooLarge => match self.reply_limit {
                ReplyLimit::Usual => {
                    self.gives_up(&format!("an answer was larger than {} MiB", USUAL >> 20))
                }
                ReplyLimit::Listing(_) => self.gives_up(&format!(
                    "what it holds for these locks is more than {} MiB; name fewer of them",
                    LISTING >> 20
                )),
            },
            Broken::TooDeep => self.gives_up("an answer was nested too deep"),
        }
    }

    /// The next reply of whatever kind, if it is complete.
    fn next_reply(&mut self) -> Result<Option<Value>, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        loop {
            let limit = match self.reply_limit {
                ReplyLimit::Usual => USUAL,
                ReplyLimit::Listing(left) => left,
            };
            let reply = self.replies.next(limit);
            if let Some(reply) = reply.map_err(|broken| self.broken(&broken))? {
                self.server.note_answer();
                return Ok(Some(reply));
            }
            let mut bytes = [0; 4096];
            let read = if self.turn < TURN {
                self.stream.read(&mut bytes)
            } else {
                // What TLS has read already, the descriptor doesn't tell of.
                self.stream.read_ahead(&mut bytes)
            };
            match read {
                Ok(0) => {
                    return Err(self.closed(&io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(read) => {
                    self.turn += read;
                    self.replies.add(&bytes[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let is_due = !self.expected.is_empty() && self.turn < TURN;
                    if is_due && self.written.elapsed() < SOON {
                        thread::yield_now();
                        continue;
                    }
                    self.turn = 0;
                    return Ok(None);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.closed(&error)),
            }
        }
    }

    /// The other side has closed the connection.
    fn closed(&self, error: &io::Error) -> Error {
        // A server that went away did so for another reason.
        if self.resp3 == Resp3::Asked && self.has_answered {
            self.server.note_that_it_closes_on_hello();
        }
        if !self.server.was_reached() && (self.begins_as_tls() || self.server.expects_tls(PROBE)) {
            return self.server.speaks_tls();
        }
        self.server.closed_error(error)
    }

    /// Whether what came first is an alert of TLS: it doesn't understand us.
    fn begins_as_tls(&self) -> bool {
        matches!(self.replies.unread(), [0x15, 3, ..])
    }

    /// Asks the server whether it is a replica, with what is sent next.
    pub fn ask_role(&mut self) -> Result<(), Error> {
        let until = self.until();
        self.nothing_is_left()?;
        self.expected.push_back(Expected::Role);
        self.write(&cmd("ROLE").get_packed_command(), until)
    }

    /// Asks for the nodes of the cluster, unless that was done a short time ago. The answer comes in before
    /// that to what is asked next, and nothing waits for it.
    pub(super) fn ask_nodes(&mut self) -> Result<(), Error> {
        let is_fresh = |at: Instant| at.elapsed() < NODES_LAST;
        // All that can follow the primary: that changes with each replica that is added.
        let needs_all = matches!(&self.replication, Some((of, _)) if of.quorum == Quorum::All);
        if !needs_all && self.asked_nodes.is_some_and(is_fresh) {
            return Ok(());
        }
        let until = self.until();
        self.nothing_is_left()?;
        self.asked_nodes = Some(Instant::now());
        self.expected.push_back(Expected::Nodes);
        let mut nodes = cmd("CLUSTER");
        self.write(&nodes.arg("NODES").get_packed_command(), until)
    }

    fn nodes(&self, answer: &Value) {
        let nodes = Nodes::parse(&lossy_text(answer), self.server.address());
        if let Some((_, replicas)) = &self.replication {
            let listed = nodes.replicas();
            if !listed.is_empty() {
                replicas.replace(listed);
            }
        }
        self.server.note_nodes(nodes.others);
    }

    fn role(&mut self, answer: &Value) {
        self.note_followers(answer);
        if let Value::Array(fields) = answer
            && let Some(role) = fields.first()
        {
            self.server.note_replica(lossy_text(role) == "slave");
        }
    }

    /// Sends a call and waits for its answer, at most `within`. Answers to earlier calls that
    /// were not read are passed over.
    pub fn call(&mut self, call: Call, within: Duration) -> Result<Value, Error> {
        let until = Instant::now() + within;
        let number = self.request(call, until)?;
        self.answer(number, until)
    }

    /// Calls the release; `is_slow` is called when the answer takes longer than `soon`. Whether the replicas have it is
    /// known by [`Self::is_followed`].
    pub fn release(
        &mut self,
        call: Call,
        soon: Duration,
        is_slow: impl FnOnce(),
        within: Duration,
    ) -> Result<Value, Error> {
        let start = Instant::now();
        self.asks_followers = true;
        let number = self.request(call, start + within)?;
        let answer = match self.answer(number, start + soon.min(within)) {
            Err(error) if error.kind == ErrorKind::Unreachable && soon < within => {
                is_slow();
                self.answer(number, start + within)
            }
            other => other,
        };
        self.asks_followers = false;
        answer
    }

    /// Sends many calls of one script at once and reads all answers, which may take `within` together.
    pub fn pipeline<T>(
        &mut self,
        calls: Vec<Call>,
        within: Duration,
        mut read: impl FnMut(Value) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let until = Instant::now() + within;
        self.call_each(calls, || until, |_, value| read(value))
    }

    /// The same for answers that may be long: each may take the server's timeout, and all together
    /// may weigh as much as a listing. What was read of one is kept, not the answer.
    pub fn list<T>(
        &mut self,
        calls: Vec<Call>,
        mut read: impl FnMut(Value) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let within = self.timeout;
        let mut left = LISTING;
        self.reply_limit = ReplyLimit::Listing(left);
        let found = self.call_each(
            calls,
            || Instant::now() + within,
            |connection, value| {
                left = left.saturating_sub(connection.replies.last_weight());
                connection.reply_limit = ReplyLimit::Listing(left);
                read(value)
            },
        );
        self.reply_limit = ReplyLimit::Usual;
        found
    }

    /// The same where nothing of an answer has to be kept, however many there are: each alone may weigh as
    /// much as a listing.
    pub fn stream(
        &mut self,
        calls: Vec<Call>,
        mut read: impl FnMut(Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let within = self.timeout;
        self.reply_limit = ReplyLimit::Listing(LISTING);
        let read = |_: &mut Self, value| read(value);
        let found = self.call_each(calls, || Instant::now() + within, read);
        self.reply_limit = ReplyLimit::Usual;
        found.map(drop)
    }

    fn call_each<T>(
        &mut self,
        calls: Vec<Call>,
        until: impl Fn() -> Instant,
        mut read: impl FnMut(&mut Self, Value) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut calls = calls.into_iter();
        let Some(first) = calls.next() else {
            return Ok(Vec::new());
        };
        // The first one is sent alone, to make sure that the server knows the script.
        let end = until();
        let number = self.request(first, end)?;
        let value = self.answer(number, end)?;
        let mut found = vec![read(self, value)?];
        let rest: Vec<Call> = calls.collect();
        if rest.iter().any(|call| self.goal_of(call.script).is_some()) {
            for call in rest {
                let end = until();
                let number = self.request(call, end)?;
                let value = self.answer(number, end)?;
                found.push(read(self, value)?);
            }
            return Ok(found);
        }
        // In parts, so that neither side's buffers fill while both write.
        for part in rest.chunks(100) {
            let mut bytes = Vec::new();
            let mut numbers = Vec::new();
            for call in part {
                call.command(true).write_packed_command(&mut bytes);
                self.sent += 1;
                numbers.push(self.sent);
                let key = call.keys.first().cloned().unwrap_or_default();
                self.expected
                    .push_back(Expected::Sent(self.sent, call.script, key));
            }
            self.write(&bytes, until())?;
            for number in numbers {
                let value = self.answer(number, until())?;
                found.push(read(self, value)?);
            }
        }
        Ok(found)
    }

    /// Extends the lease of a lock with its key alone, while a cluster moves the others to another node and so
    /// answers no script that names them all; whether that was done.
    pub fn keep(&mut self, call: &Call, within: Duration) -> Result<bool, Error> {
        let until = Instant::now() + within;
        // Each node knows the script only once it was sent, and it is short.
        let command = call.command(false);
        let answer = match self.query_until(&command, until) {
            Err(error) => match error.redirect().filter(|_| error.is_migration()) {
                Some(redirect) => {
                    let there = redirect.address(self.server.address());
                    let server = Arc::new(self.server.at(there));
                    let left = until.saturating_duration_since(Instant::now());
                    let questions = [cmd("ASKING"), command];
                    let (_, mut answers) =
                        Self::open_asking(&server, self.timeout, left, &questions)?;
                    answers.pop().unwrap_or(Value::Nil)
                }
                None => return Err(error),
            },
            answer => answer?,
        };
        Ok(answer == Value::Int(1))
    }

    /// Sends a plain command and waits for its answer.
    pub fn query(&mut self, command: &Cmd) -> Result<Value, Error> {
        self.query_until(command, self.until())
    }

    fn query_until(&mut self, command: &Cmd, until: Instant) -> Result<Value, Error> {
        self.nothing_is_left()?;
        let number = self.expect_plain();
        self.write(&command.get_packed_command(), until)?;
        self.answer(number, until)
    }

    /// The same for an answer that may be long.
    pub fn query_list(&mut self, command: &Cmd) -> Result<Value, Error> {
        self.reply_limit = ReplyLimit::Listing(LISTING);
        let answer = self.query(command);
        self.reply_limit = ReplyLimit::Usual;
        answer
    }

    /// Sends plain commands at once and waits for all answers, in which an error is an answer, too.
    pub fn query_each(&mut self, commands: &[Cmd], within: Duration) -> Result<Vec<Value>, Error> {
        let until = Instant::now() + within;
        self.nothing_is_left()?;
        let mut bytes = Vec::new();
        let mut numbers = Vec::new();
        for command in commands {
            command.write_packed_command(&mut bytes);
            self.sent += 1;
            self.expected.push_back(Expected::Any(self.sent));
            numbers.push(self.sent);
        }
        self.write(&bytes, until)?;
        let answers = numbers.into_iter();
        answers.map(|number| self.answer(number, until)).collect()
    }

    /// Whether messages differ from answers here, so that it can be subscribed to a channel.
    pub fn speaks_resp3(&self) -> bool {
        self.resp3 == Resp3::Spoken
    }

    /// The certificate that the server has shown.
    pub fn certificate(&self) -> Option<&[u8]> {
        self.stream.certificate()
    }

    /// Waits for the answer to a request, passing over all else.
    fn answer(&mut self, number: RequestId, until: Instant) -> Result<Value, Error> {
        loop {
            match self.next_incoming()? {
                Some(Received::Answer {
                    number: answered,
                    value,
                    ..
                }) if answered == number => {
                    return Ok(value);
                }
                Some(received) => self.pass_over(&received),
                None => self.wait_for_more(until)?,
            }
        }
    }

    fn wait_for_more(&self, until: Instant) -> Result<(), Error> {
        // Also where there is always something to read.
        let left = until.saturating_duration_since(Instant::now());
        let readable = !left.is_zero()
            && ready::to_read(self.as_fd(), left)
                .map_err(|error| self.server.unreachable_error(&error))?;
        if readable {
            return Ok(());
        }
        Err(self.server.silent_error())
    }

    /// What came in while an answer was waited for.
    fn pass_over(&mut self, received: &Received) {
        match received {
            Received::Push(Push::KeyChanged) => self.key_changed = true,
            Received::Push(Push::SubscribeDenied) => self.denied = true,
            Received::Push(Push::Message(_) | Push::MessageMissed) => self.message_passed = true,
            Received::Push(Push::Subscribed) | Received::Answer { .. } => {}
        }
    }

    fn subscribe_command(&self, channel: &[u8]) -> Vec<u8> {
        let name = if self.sharded {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        cmd(name).arg(channel).get_packed_command()
    }

    fn write(&mut self, bytes: &[u8], until: Instant) -> Result<(), Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.channel.is_some() {
            self.held_back.extend_from_slice(bytes);
            return Ok(());
        }
        let sent = self.stream.send(bytes, until);
        self.written = Instant::now();
        sent.map_err(|error| self.last_word().unwrap_or_else(|| self.closed(&error)))
    }

    /// What a server said before it closed the connection, that has let in nothing of ours: that it is
    /// in protected mode, say.
    fn last_word(&mut self) -> Option<Error> {
        if self.has_answered {
            return None;
        }
        match self.next_reply() {
            Ok(Some(Value::ServerError(error))) => {
                Some(from_server(&error, &self.server, None, None))
            }
            _ => None,
        }
    }

    /// Whether something was asked that has no answer yet, and that must not come late.
    fn owes_an_answer(&self) -> bool {
        let last = self.expected.iter().rev().find_map(|expected| {
            let script = match expected {
                Expected::Call(_, call) => Some(call.script),
                Expected::Sent(_, script, _) => Some(*script),
                Expected::Plain(_) => None,
                // Where such a question writes anything, its last part removes that.
                Expected::Any(_)
                | Expected::Hello
                | Expected::Optional
                | Expected::Role
                | Expected::Acknowledged
                | Expected::Followed
                | Expected::Written
                | Expected::Positions
                | Expected::Copying
                | Expected::Value(_)
                | Expected::Nodes
                | Expected::Subscribed => return None,
            };
            Some(script.is_none_or(|script| !script.may_arrive_late))
        });
        last == Some(true)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.owes_an_answer() {
            self.stream.reset_when_closed();
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

//! A connection to one server: calls go out, answers and notifications come in.
//!
//! Nothing here blocks unless asked to: a caller that also has signals and timers to watch sends,
//! waits for the descriptor, and takes what came; one that has nothing else to do uses
//! [`Connection::call`].
//!
//! It has three parts, each with what it alone knows: the [`Wire`], whose head says how far the other side is believed;
//! [`Pushes`], what comes without a request; and [`Confirming`], what replicas have. Here the answers are given to whom
//! they are for.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerErrorKind, Value, cmd};

use super::call::Call;
use super::confirming::{Confirming, FOLLOWED, POLL_EVERY, wait};
use super::error::{Error, ErrorKind};
use super::left;
use super::nodes::{Nodes, cluster_nodes};
use super::pushes::{Pushes, Resp3};
use super::refusal::{from_server, is_turned_away};
use super::replication::{Replicas, Replication, Role};
use super::reply::lossy_text;
use super::server::{Part, Server};
use super::wire::{Expected, LISTING, Push, Received, ReplyLimit, RequestId, Wire};

/// How many calls of a list are sent at once; as many more may be under way.
const PART: usize = 50;

/// How long the nodes of a cluster are taken to be what they were.
const NODES_LAST: Duration = Duration::from_secs(60);

/// A connection to one server.
pub struct Connection {
    wire: Wire,
    confirming: Confirming,
    pushes: Pushes,
    pub opened: Instant,
    /// When the nodes of the cluster were asked for.
    asked_nodes: Option<Instant>,
}

impl Connection {
    /// Connects, authenticates and asks these questions in the same round trip, all `within` a time. Returns the answers,
    /// too, in order.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Refused`] or [`ErrorKind::Config`].
    pub(super) fn open(
        server: &Arc<Server>,
        timeout: Duration,
        within: Duration,
        questions: &[Cmd],
    ) -> Result<(Self, Vec<Value>), Error> {
        let opened = Instant::now();
        let until = opened + within;
        server.read_password()?;
        let mut connection = Self {
            wire: Wire::open(server, timeout, until)?,
            confirming: Confirming::default(),
            pushes: Pushes::default(),
            opened,
            asked_nodes: None,
        };
        let answers = connection.log_in(questions, until);
        let answers = answers.map_err(|error| connection.wire.softened_by_fresh_password(error))?;
        if let Some(password) = &server.fresh_password {
            password.note_accepted();
        }
        Ok((connection, answers))
    }

    /// From now on writing, and each answer for which nothing else is said, may take this long.
    pub fn limit_to(&mut self, timeout: Duration) {
        self.wire.timeout = timeout;
    }

    /// The server at the other end.
    pub fn server(&self) -> &Arc<Server> {
        &self.wire.server
    }

    /// The error with which this connection is given up.
    pub fn abandoned_error(&self, why: &str) -> Error {
        self.wire.abandoned_error(why)
    }

    /// Whether a grant and a renewal count only when replicas have them.
    pub fn is_replicated(&self) -> bool {
        self.confirming.replication.is_some()
    }

    /// Logs in, chooses the database and asks what is to be known first, in one round trip, and in none
    /// where nothing is needed.
    fn log_in(&mut self, questions: &[Cmd], until: Instant) -> Result<Vec<Value>, Error> {
        let mut bytes = Vec::new();
        let login = self.wire.server.login();
        let steps = login.len();
        let mut numbers = Vec::new();
        for command in &login {
            let number = self.wire.add_request(&mut bytes, command, Expected::Plain);
            numbers.push(number);
        }
        if self.wire.server.part() == Part::Node {
            // What it is, and what it can do for waiters.
            self.pushes.say_hello(&mut self.wire, &mut bytes);
            self.wire.add(&mut bytes, &cmd("ROLE"), Expected::Role);
        }
        for question in questions {
            let number = self.wire.add_request(&mut bytes, question, Expected::Plain);
            numbers.push(number);
        }
        if bytes.is_empty() {
            return Ok(Vec::new());
        }
        self.wire.write(&bytes, until)?;
        let mut found = Vec::new();
        for number in numbers {
            // All that a sentinel is asked behind the first question may be unknown to it (Redis 6.0), or not permitted.
            let is_optional = self.wire.server.part() == Part::Sentinel && found.len() > steps;
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
        self.pushes.is_node
    }

    /// Whether a waiter's channel is one of its hash slot.
    pub fn is_sharded(&self) -> bool {
        self.pushes.sharded
    }

    /// Sends a call; its answer comes in later.
    pub fn send(&mut self, call: Call) -> Result<(), Error> {
        let until = self.wire.until() + self.confirming.replicas_timeout();
        self.request(call, until, None, true).map(drop)
    }

    /// Sends a call; `tracked` is a key that it changes, and the values that the key may have then.
    fn request(
        &mut self,
        call: Call,
        until: Instant,
        tracked: Option<(&[u8], Vec<Vec<u8>>)>,
        by_hash: bool,
    ) -> Result<RequestId, Error> {
        self.drain_stale()?;
        let mut bytes = Vec::new();
        let (command, script) = (call.command(by_hash), call.script);
        let expected = |number| Expected::Call(number, call, by_hash);
        let number = self.wire.add_request(&mut bytes, &command, expected);
        if let Some((key, values)) = tracked {
            Pushes::track_changed(&mut self.wire, &mut bytes, key, values);
        }
        self.confirming
            .await_replicas(&mut self.wire, script, &mut bytes, until);
        self.wire.write(&bytes, until)?;
        self.wire.note_call();
        Ok(number)
    }

    /// Calls a script again that the server doesn't know. Nothing was done. Where something else was sent
    /// meanwhile, it must stay so: now it would be done after that, a lock taken that was just released.
    fn call_with_text(&mut self, number: RequestId, call: Call) -> Result<(), Error> {
        let is_about_it = |expected: &Expected| {
            matches!(
                expected,
                Expected::Optional | Expected::Value(_) | Expected::Nodes | Expected::Replicas(_)
            )
        };
        if !self.wire.expected.iter().all(is_about_it) {
            return Ok(());
        }
        self.wire.forget_call();
        // What is tracked was asked for before that.
        self.pushes.tracking = false;
        let mut bytes = Vec::new();
        let (command, script) = (call.command(false), call.script);
        let expected = Expected::Call(number, call, false);
        self.wire.add(&mut bytes, &command, expected);
        let answer_until = self.confirming.answer_until();
        self.confirming
            .await_replicas(&mut self.wire, script, &mut bytes, answer_until);
        self.wire.write(&bytes, self.wire.until())
    }

    /// Before something is asked: whatever came in meanwhile, an answer isn't among it, as it would
    /// pass for the next one.
    fn drain_stale(&mut self) -> Result<(), Error> {
        if self.wire.sent == 0 || !self.wire.expected.is_empty() {
            return Ok(());
        }
        while let Some(received) = self.next_incoming()? {
            self.pushes.remember_push(&received);
        }
        Ok(())
    }

    /// Listens to a channel, on this same connection (RESP3, Redis 6 or later), from what is sent
    /// next on: that waits here until it is known that the server can.
    /// Where that was asked before, it is not asked again.
    pub fn subscribe(&mut self, channel: &[u8]) -> Result<(), Error> {
        if self.pushes.subscribed.as_deref() == Some(channel) {
            return Ok(());
        }
        if self.pushes.is_to_say_hello(&self.wire.server) {
            self.drain_stale()?;
        }
        self.pushes.ask_to_subscribe(&mut self.wire, channel)?;
        self.pushes.subscribed = Some(channel.to_vec());
        if self.wire.server.part() == Part::Node {
            self.ask_nodes(self.wire.timeout)?;
        }
        Ok(())
    }

    /// Whether a subscription was asked for and the server hasn't answered yet.
    pub fn is_subscribing(&self) -> bool {
        self.wire
            .expects(|expected| matches!(expected, Expected::Subscribed))
    }

    /// Has the server notify us of other clients' changes of these keys; see [`Pushes::track_keys`].
    pub fn track_keys<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        self.drain_stale()?;
        self.pushes.track_keys(&mut self.wire, keys)
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
        if !self.pushes.tracking || !self.speaks_resp3() {
            return Ok((self.call(call, within)?, false));
        }
        let number = self.request(call, until, Some((key, values)), true)?;
        let answer = self.answer(number, until)?;
        Ok((answer, self.pushes.tracking))
    }

    /// What came in, if anything has. Never blocks. Call until `None` before waiting for the
    /// descriptor: bytes may have been read ahead. However much comes, there is `None` after
    /// a bounded number of bytes, and the descriptor says that there is more.
    pub fn receive(&mut self) -> Result<Option<Received>, Error> {
        if let Some(push) = self.pushes.take_remembered() {
            return Ok(Some(Received::Push(push)));
        }
        self.next_incoming()
    }

    /// What came in, if anything has.
    fn next_incoming(&mut self) -> Result<Option<Received>, Error> {
        loop {
            let Some(value) = self.wire.next_reply()? else {
                return Ok(None);
            };
            let received = if let Value::Push { kind, data } = value {
                Pushes::pushed(&mut self.wire, &kind, &data)?.map(Received::Push)
            } else {
                // It is about nothing that was asked, and the connection is closed behind it.
                if let Value::ServerError(error) = &value
                    && is_turned_away(error)
                {
                    return Err(self.wire.call_error(None, error));
                }
                let expected = self.wire.expected.pop_front();
                self.take_answer(expected, value)?
            };
            if received.is_some() {
                return Ok(received);
            }
        }
    }

    /// Takes in an answer; what of it is for who asked.
    fn take_answer(
        &mut self,
        expected: Option<Expected>,
        value: Value,
    ) -> Result<Option<Received>, Error> {
        Ok(match (expected, value) {
            (Some(Expected::Call(number, call, true)), Value::ServerError(error))
                if error.kind() == Some(ServerErrorKind::NoScript) =>
            {
                self.call_with_text(number, call)?;
                None
            }
            (Some(Expected::Role | Expected::Nodes), Value::ServerError(_))
            | (Some(Expected::Optional), _) => None,
            (Some(Expected::Replicas(about)), answer) => {
                let wire = &mut self.wire;
                self.confirming.take_answer(wire, &about, &answer)?
            }
            (Some(Expected::Nodes), answer) => {
                self.nodes(&answer);
                None
            }
            // It was moved to another node, so it isn't tracked. The renewal says more.
            (Some(Expected::Value(_)), Value::ServerError(_))
                if self.wire.server.part() == Part::Node =>
            {
                self.pushes.tracking = false;
                None
            }
            // Another client has changed it between the renewal and this.
            (Some(Expected::Value(values)), value) => {
                let is_same = matches!(value, Value::BulkString(value) if values.contains(&value));
                (!is_same).then_some(Received::Push(Push::KeyChanged))
            }
            (Some(Expected::Hello), answer) => {
                self.pushes.hello(&mut self.wire, &answer)?;
                self.pushes.take_remembered().map(Received::Push)
            }
            (Some(Expected::Subscribed), Value::ServerError(error)) => {
                let error = from_server(&error, &self.wire.server, None, None);
                // On the node that the slot was moved to, it can.
                if error.kind == ErrorKind::Moving {
                    return Err(error);
                }
                Some(Received::Push(Push::SubscribeDenied))
            }
            (Some(Expected::Subscribed), _) => {
                return Err(self.wire.out_of_step("did not answer a subscription"));
            }
            (Some(Expected::Any(number)), value) => Some(self.wire.answered(number, None, value)),
            // Also unasked.
            (expected, Value::ServerError(error)) => {
                return Err(self.wire.call_error(expected.as_ref(), &error));
            }
            (Some(Expected::Role), answer) => {
                self.role(&answer);
                None
            }
            (Some(Expected::Call(number, call, _)), value) => {
                self.wire.note_round_trip(number);
                let wire = &mut self.wire;
                self.confirming
                    .answered_call(wire, number, call.script, value)?
            }
            (Some(Expected::Plain(number)), value) => Some(self.wire.answered(number, None, value)),
            (None, _) => {
                return Err(self.wire.out_of_step("sent a reply without a request"));
            }
        })
    }

    /// Asks the server whether it is a replica, with what is sent next.
    pub fn ask_role(&mut self) -> Result<(), Error> {
        self.drain_stale()?;
        self.wire.ask(&cmd("ROLE"), Expected::Role)
    }

    /// Asks for the nodes of the cluster, unless that was done a short time ago. The answer comes in before
    /// that to what is asked next, and nothing waits for it.
    pub(super) fn ask_nodes(&mut self, within: Duration) -> Result<(), Error> {
        let is_fresh = |at: Instant| at.elapsed() < NODES_LAST;
        // All that can follow the primary: that changes with each replica that is added.
        let needs_all = self.confirming.needs_all();
        if !needs_all && self.asked_nodes.is_some_and(is_fresh) {
            return Ok(());
        }
        let until = Instant::now() + within.min(self.wire.timeout);
        self.drain_stale()?;
        self.asked_nodes = Some(Instant::now());
        let mut bytes = Vec::new();
        self.wire.add(&mut bytes, &cluster_nodes(), Expected::Nodes);
        self.wire.write(&bytes, until)
    }

    fn nodes(&self, answer: &Value) {
        let nodes = Nodes::parse(&lossy_text(answer), self.wire.server.address());
        if let Some((_, replicas)) = &self.confirming.replication {
            let listed = nodes.replicas();
            if !listed.is_empty() {
                replicas.replace(listed, nodes.shard);
            }
        }
        self.wire.server.note_nodes(nodes.others);
    }

    fn role(&self, answer: &Value) {
        if let Value::Array(fields) = answer
            && let Some(role) = fields.first()
        {
            self.wire.server.note_replica(lossy_text(role) == "slave");
        }
    }

    /// Sends a call and waits for its answer, at most `within`. Answers to earlier calls that
    /// were not read are passed over.
    pub fn call(&mut self, call: Call, within: Duration) -> Result<Value, Error> {
        self.call_until(call, Instant::now() + within)
    }

    fn call_until(&mut self, call: Call, until: Instant) -> Result<Value, Error> {
        let number = self.request(call, until, None, true)?;
        self.answer(number, until)
    }

    /// Calls the release: the short script first, if it may do; `is_slow` is called when an answer takes longer than `soon`. By
    /// then, or at once without the short script, the whole one is sent with its text: so what was sent frees the lock also if
    /// nobody waits for the answer. Whether the replicas have it is known by [`Self::is_followed`].
    pub fn release(
        &mut self,
        short: Option<Call>,
        whole: Call,
        soon: Duration,
        is_slow: impl FnOnce(),
        within: Duration,
    ) -> Result<Value, Error> {
        let start = Instant::now();
        let (soon, until) = (start + soon.min(within), start + within);
        let is_late = |error: &Error| error.kind == ErrorKind::Unreachable && soon < until;
        let (first, mut whole) = match short {
            Some(short) => (short, Some(whole)),
            None => (whole, None),
        };
        let number = self.request(first, until, None, whole.is_some())?;
        let mut answer = self.answer(number, soon);
        let mut second = None;
        if answer.as_ref().is_err_and(is_late) {
            let whole = whole.take();
            second = whole.map(|whole| self.request(whole, until, None, false));
            is_slow();
            answer = self.answer(number, until);
        }
        match (answer?, second.transpose()?, whole) {
            (Value::Int(0), Some(second), _) => self.answer(second, until),
            (Value::Int(0), None, Some(whole)) => self.call_until(whole, until),
            (answer, ..) => Ok(answer),
        }
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

    /// The same for answers that may be long: each may take the server's timeout, and what is read of all of them together
    /// may weigh as much as a listing: that is kept, not the answers.
    pub fn list<T>(
        &mut self,
        calls: Vec<Call>,
        mut read: impl FnMut(Value) -> Result<T, Error>,
        weigh: impl Fn(&T) -> usize,
    ) -> Result<Vec<T>, Error> {
        let within = self.wire.timeout;
        let mut left = LISTING;
        self.wire.reply_limit = ReplyLimit::Listing(left);
        let items = self.call_each(
            calls,
            || Instant::now() + within,
            |wire, value| {
                let item = read(value)?;
                left = left.saturating_sub(weigh(&item));
                wire.reply_limit = ReplyLimit::Listing(left);
                Ok(item)
            },
        );
        self.wire.reply_limit = ReplyLimit::Usual;
        items
    }

    /// Sends calls of one script, and reads all answers.
    fn call_each<T>(
        &mut self,
        calls: Vec<Call>,
        until: impl Fn() -> Instant,
        mut read: impl FnMut(&mut Wire, Value) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut results = Vec::new();
        let mut calls = calls.into_iter();
        // The first call is sent alone, to make sure that the server knows the script. Replicas confirm one call at a time.
        for call in calls.by_ref() {
            let waits = self.confirming.replication_of(call.script).is_some();
            let value = self.call_until(call, until())?;
            results.push(read(&mut self.wire, value)?);
            if !waits {
                break;
            }
        }
        // In parts, so that neither side's buffers fill while both write; the server works on one while the answers to the
        // one before are read.
        let mut before = Vec::new();
        loop {
            let mut bytes = Vec::new();
            let mut numbers = Vec::new();
            for call in calls.by_ref().take(PART) {
                // Not sent again if the server doesn't know the script.
                let command = call.command(true);
                let expected = |number| Expected::Call(number, call, false);
                numbers.push(self.wire.add_request(&mut bytes, &command, expected));
            }
            if !bytes.is_empty() {
                self.wire.write(&bytes, until())?;
            }
            for number in std::mem::replace(&mut before, numbers) {
                let value = self.answer(number, until())?;
                results.push(read(&mut self.wire, value)?);
            }
            if before.is_empty() {
                return Ok(results);
            }
        }
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
                    let there = redirect.address(self.wire.server.address());
                    let server = Arc::new(self.wire.server.at(there));
                    let left = left(until);
                    let questions = [cmd("ASKING"), command];
                    let (_, mut answers) =
                        Self::open(&server, self.wire.timeout, left, &questions)?;
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
        self.query_until(command, self.wire.until())
    }

    pub(super) fn query_until(&mut self, command: &Cmd, until: Instant) -> Result<Value, Error> {
        self.drain_stale()?;
        let mut bytes = Vec::new();
        let number = self.wire.add_request(&mut bytes, command, Expected::Plain);
        self.wire.write(&bytes, until)?;
        self.answer(number, until)
    }

    /// The same for an answer that may be long.
    pub fn query_list(&mut self, command: &Cmd) -> Result<Value, Error> {
        self.wire.reply_limit = ReplyLimit::Listing(LISTING);
        let answer = self.query(command);
        self.wire.reply_limit = ReplyLimit::Usual;
        answer
    }

    /// Sends plain commands at once and waits for all answers, in which an error is an answer, too.
    pub fn query_each(&mut self, commands: &[Cmd], within: Duration) -> Result<Vec<Value>, Error> {
        let until = Instant::now() + within;
        self.drain_stale()?;
        let mut bytes = Vec::new();
        let mut numbers = Vec::new();
        for command in commands {
            numbers.push(self.wire.add_request(&mut bytes, command, Expected::Any));
        }
        self.wire.write(&bytes, until)?;
        let answers = numbers.into_iter();
        answers.map(|number| self.answer(number, until)).collect()
    }

    /// Whether messages differ from answers here, so that it can be subscribed to a channel.
    pub fn speaks_resp3(&self) -> bool {
        self.pushes.resp3 == Resp3::Spoken
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
                Some(received) => self.pushes.remember_push(&received),
                None => self.wire.wait_for_more(until)?,
            }
        }
    }

    /// From now on a grant and a renewal count only when these replicas have them.
    pub fn replicate(&mut self, replication: Replication, replicas: Arc<Replicas>) {
        self.confirming.replication = Some((replication, replicas));
    }

    /// How long replicas may take, if they have to have something.
    pub fn replicas_timeout(&self) -> Duration {
        self.confirming.replicas_timeout()
    }

    /// Returns true if the release that was answered last outlives a failover, as far as `REDLOCK_SYNC=all` says that it
    /// must: each replica that could follow the primary has it.
    pub fn is_followed(&mut self, within: Duration) -> bool {
        let Some(goal) = self.confirming.goal_of_release(self.server().address()) else {
            return true;
        };
        let until = Instant::now() + within.min(FOLLOWED);
        let (mut offset, mut waits) = (None, wait(goal.number(), FOLLOWED));
        loop {
            let questions = [cmd("ROLE"), waits, cmd("ROLE")];
            let answers = self.query_each(&questions, within).unwrap_or_default();
            let role = |at: usize| Role::parse(answers.get(at)?);
            let (Some(before), Some(after)) = (role(0), role(2)) else {
                return false;
            };
            if goal.is_reached(*offset.get_or_insert(before.offset), &after) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            // Asked for more than there are, they all tell how far they are.
            waits = wait(u32::MAX, POLL_EVERY);
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.as_fd()
    }
}

//! A connection to one server, which sends calls and receives answers and notifications.
//!
//! The methods for sending and receiving don't wait for answers: a caller that also handles signals and timers sends, waits
//! for the descriptor, and calls [`Connection::receive`]. A caller without anything else to do uses [`Connection::call`].
//!
//! A connection has three parts, each with its own knowledge: the [`Wire`], whose header says how far redlock trusts the
//! server; [`Pushes`], the messages without a request; and [`Confirming`], the state of the replicas. This module hands each
//! answer to its recipient.

use std::os::fd::{AsFd, BorrowedFd};
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerErrorKind, Value, cmd};

use super::call::Call;
use super::confirming::{Confirming, FOLLOWED, Pending};
use super::endpoint::{Part, Server};
use super::error::{Error, ErrorKind};
use super::left;
use super::pushes::{Pushes, Resp3};
use super::refusal::is_turned_away;
use super::wire::{Expected, LISTING, Push, Received, RequestId, SentCall, Wire};

/// Number of a list's calls that are sent at once. Twice as many may be in flight.
const PART: usize = 50;

/// A connection to one server.
pub struct Connection {
    pub(super) wire: Wire,
    pub(super) confirming: Confirming,
    pub(super) pushes: Pushes,
    /// Time of the last request for the cluster's nodes.
    pub(super) asked_nodes: Option<Instant>,
}

impl Connection {
    /// Connects, authenticates and asks these questions in the same round trip, all `within` a time. Returns the connection and
    /// the answers, in order.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`], [`ErrorKind::Refused`] or [`ErrorKind::Config`].
    pub(super) fn open(
        server: &Arc<Server>,
        within: Duration,
        questions: &[Cmd],
    ) -> Result<(Self, Vec<Value>), Error> {
        let until = Instant::now() + within;
        server.fresh_password.iter().try_for_each(|it| it.read())?;
        let stream = server.open(until)?;
        let mut connection = Self {
            wire: Wire::new(stream, server, within),
            confirming: Confirming::default(),
            pushes: Pushes::default(),
            asked_nodes: None,
        };
        let answers = connection.log_in(questions, until);
        let answers = answers.map_err(|error| connection.wire.softened_by_fresh_password(error))?;
        if let Some(password) = &server.fresh_password {
            password.note_accepted();
        }
        Ok((connection, answers))
    }

    /// Sets the timeout for writing, and for each answer without a limit of its own.
    pub fn limit_to(&mut self, timeout: Duration) {
        self.wire.timeout = timeout;
    }

    /// Returns the server at the other end.
    pub fn server(&self) -> &Arc<Server> {
        &self.wire.server
    }

    /// Returns the error with which redlock gives this connection up.
    pub fn abandoned_error(&self, why: &str) -> Error {
        self.wire.abandoned_error(why)
    }

    /// Returns true if a grant or renewal is valid only when replicas have confirmed it.
    pub fn is_replicated(&self) -> bool {
        self.confirming.replication.is_some()
    }

    /// Logs in, selects the database and asks these questions, in one round trip, or in none if there is nothing to send.
    fn log_in(&mut self, questions: &[Cmd], until: Instant) -> Result<Vec<Value>, Error> {
        let (login, wire) = (self.wire.server.login(), &mut self.wire);
        let steps = login.len();
        let mut numbers = Vec::new();
        numbers.extend(login.iter().map(|it| wire.ask(it)));
        if wire.server.part == Part::Node {
            // Asks for the server's kind, and for its support of waiters.
            self.pushes.say_hello(wire);
        }
        numbers.extend(questions.iter().map(|it| wire.ask(it)));
        wire.send(until)?;
        let mut answers = Vec::new();
        for number in numbers {
            // All questions to a sentinel except the first may be unknown to it (Redis 6.0), or forbidden.
            let is_optional = self.wire.server.part == Part::Sentinel && answers.len() > steps;
            let answer = self.answer(number, until)?;
            answers.push(match self.wire.unless_refused(answer) {
                // The node has already moved these keys. Until it has moved all of them, redlock must ask this node.
                Err(error) if error.is_migration() => Value::Nil,
                Err(error) if is_optional && !error.kind.is_unreachable() => Value::Nil,
                answer => answer?,
            });
        }
        Ok(answers.split_off(steps))
    }

    /// Returns true if a waiter's channel belongs to its hash slot (`SSUBSCRIBE`).
    pub fn is_sharded(&self) -> bool {
        self.pushes.sharded
    }

    /// Sends a call without waiting (see [`Self::receive`]). Returns how long the answer may take.
    pub fn send(&mut self, call: Call) -> Result<Duration, Error> {
        let replicas = self.confirming.replication.map(|of| of.timeout);
        let replicas = replicas.unwrap_or_default();
        self.request(call, self.wire.until() + replicas, None, true)?;
        Ok(self.wire.timeout + replicas)
    }

    /// Sends a call. `tracked` is a key that the call changes, with the values that the key may have afterwards.
    pub(super) fn request(
        &mut self,
        call: Call,
        until: Instant,
        tracked: Option<(&[u8], Vec<Vec<u8>>)>,
        by_hash: bool,
    ) -> Result<RequestId, Error> {
        self.drain_stale()?;
        let number = self.wire.next_request();
        self.add_call(number, call, by_hash, until);
        if let Some((key, values)) = tracked {
            Pushes::track_changed(&mut self.wire, key, values);
        }
        self.wire.send(until)?;
        Ok(number)
    }

    /// Adds a call to the next bytes to send, with the request for the replicas' confirmation, if that matters.
    fn add_call(&mut self, number: RequestId, call: Call, by_hash: bool, until: Instant) {
        let command = call.command(by_hash);
        let goal = self.confirming.goal_of(call.script);
        let sent = SentCall {
            number,
            call,
            by_hash: by_hash.then(Instant::now),
            goal: goal.clone(),
        };
        self.wire.add(&command, Expected::Call(sent));
        if let (Some(goal), Some(of)) = (goal, self.confirming.replication) {
            self.confirming
                .ask(&mut self.wire, &goal, of.timeout, until);
        }
    }

    /// Calls a script again, with its text, because the server doesn't know it. The first call has done nothing. Does nothing
    /// if another call was sent meanwhile: this one would now run after it, and take a lock that was just released.
    fn call_with_text(&mut self, sent: SentCall) -> Result<(), Error> {
        let is_call = |expected: &Expected| matches!(expected, Expected::Call(_));
        if self.wire.expected.iter().any(is_call) {
            return Ok(());
        }
        // The tracking was requested before this call.
        self.pushes.tracking = false;
        // The replicas get as much time as before.
        let again = Instant::now() + self.confirming.replicas_may_take * 4 / 3;
        let until = self.wire.until().max(again);
        self.add_call(sent.number, sent.call, false, until);
        self.wire.send(until)
    }

    /// Reads the notifications that have come in, before a new request is sent. A stray answer among them is an error, because
    /// it would be taken for the answer to that request.
    pub(super) fn drain_stale(&mut self) -> Result<(), Error> {
        if self.wire.sent == 0 || !self.wire.expected.is_empty() {
            return Ok(());
        }
        while let Some(received) = self.next_incoming()? {
            self.pushes.remember(received);
        }
        Ok(())
    }

    /// Subscribes to a channel on this connection (RESP3, Redis 6 or later), from the next request on. Waits until redlock
    /// knows whether the server speaks RESP3. Does nothing if the channel is already subscribed to.
    pub fn subscribe(&mut self, channel: &[u8]) -> Result<(), Error> {
        if self.pushes.channel.as_deref() == Some(channel) {
            return Ok(());
        }
        self.learn_protocol()?;
        self.pushes.channel = Some(channel.to_vec());
        self.pushes.subscribe(&mut self.wire);
        if self.wire.server.part == Part::Node {
            self.ask_nodes(self.wire.timeout)?;
        }
        self.wire.send(self.wire.until())
    }

    /// Returns true if redlock knows whether the server pushes messages over this connection.
    pub fn knows_protocol(&self) -> bool {
        !matches!(self.pushes.resp3, Resp3::Unasked | Resp3::Asked(_))
    }

    /// Waits until redlock knows whether the server pushes messages over this connection.
    pub fn learn_protocol(&mut self) -> Result<(), Error> {
        self.drain_stale()?;
        self.pushes.say_hello(&mut self.wire);
        let until = self.wire.until();
        self.wire.send(until)?;
        if let Resp3::Asked(number) = self.pushes.resp3 {
            self.answer(number, until)?;
        }
        Ok(())
    }

    /// Has the server notify this client when another client changes one of these keys for the next time (client tracking,
    /// RESP3). A server without tracking sends no notification. Only keys that are read here are tracked, because scripts
    /// write most of their keys all the time. The request is EXISTS, because the key's value may be anything.
    pub fn track_keys<'a>(&mut self, keys: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        self.drain_stale()?;
        let wire = &mut self.wire;
        self.pushes.say_hello(wire);
        if self.pushes.resp3 == Resp3::Unknown {
            return Ok(());
        }
        if !std::mem::replace(&mut self.pushes.tracking, true) {
            let words = ["TRACKING", "ON", "OPTIN", "NOLOOP"];
            wire.ask(cmd("CLIENT").arg(&words));
        }
        for key in keys {
            wire.ask(cmd("CLIENT").arg("CACHING").arg("YES"));
            wire.ask(cmd("EXISTS").arg(key));
        }
        wire.send(wire.until())
    }

    /// Calls a script that changes this key and leaves one of these values in it. Asks, in the same write, for notifications of
    /// later changes of the key. Returns the answer, and whether the key is tracked: not if tracking has not begun (by
    /// [`Self::track_keys`]), or if the server doesn't know the script.
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

    /// Returns the next answer or notification, if one has come in. Never blocks. Call until `None` before waiting for the
    /// descriptor, because bytes may have been read ahead. Returns `None` after a bounded number of bytes, even if more have
    /// come; the descriptor is readable then.
    pub fn receive(&mut self) -> Result<Option<Received>, Error> {
        match self.pushes.passed.pop() {
            Some(push) => Ok(Some(Received::Push(push))),
            None => self.next_incoming(),
        }
    }

    /// Returns the next answer or notification that has come in, if any.
    fn next_incoming(&mut self) -> Result<Option<Received>, Error> {
        loop {
            let Some(value) = self.wire.next_reply()? else {
                return Ok(None);
            };
            let received = if let Value::Push { kind, data } = value {
                Pushes::pushed(&mut self.wire, &kind, &data)?.map(Received::Push)
            } else {
                // The server sends this error without a request, and closes the connection.
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

    /// Handles an answer. Returns the part of it that is for the caller.
    fn take_answer(
        &mut self,
        expected: Option<Expected>,
        value: Value,
    ) -> Result<Option<Received>, Error> {
        let Some(expected) = expected else {
            self.wire.unless_refused(value)?;
            return Err(self.wire.out_of_step("sent a reply without a request"));
        };
        let wire = &mut self.wire;
        Ok(match (expected, value) {
            (Expected::Call(sent), value) => self.take_call_answer(sent, value)?,
            (Expected::Command(number), value) => Some(wire.answered(number, None, value)),
            (Expected::Nodes, Value::ServerError(_)) => None,
            (Expected::Role, answer) => {
                wire.server.note_role(&answer);
                None
            }
            (Expected::Nodes, answer) => {
                self.note_nodes(&answer, Vec::new());
                None
            }
            (Expected::Replicas(about), answer) => {
                self.confirming.take_answer(wire, &about, &answer)?
            }
            (Expected::Value(values), value) => self.value_push(&values, &value),
            (Expected::Hello(number), answer) => {
                self.pushes.hello(wire.server.part, &answer);
                Some(wire.answered(number, None, Value::Nil))
            }
            (Expected::Subscribed, Value::ServerError(error)) => {
                let error = wire.call_error(None, &error);
                // The node to which the slot was moved permits it.
                if error.kind == ErrorKind::Moving {
                    return Err(error);
                }
                Some(Received::Push(Push::SubscribeDenied))
            }
            (Expected::Subscribed, _) => {
                return Err(wire.out_of_step("did not answer a subscription"));
            }
        })
    }

    fn take_call_answer(
        &mut self,
        sent: SentCall,
        value: Value,
    ) -> Result<Option<Received>, Error> {
        let wire = &mut self.wire;
        match value {
            Value::ServerError(error)
                if sent.by_hash.is_some() && error.kind() == Some(ServerErrorKind::NoScript) =>
            {
                self.call_with_text(sent).map(|()| None)
            }
            Value::ServerError(error) => Err(wire.call_error(Some(&sent.call), &error)),
            value => {
                if let Some(at) = sent.by_hash {
                    wire.server.note_round_trip(at.elapsed());
                }
                self.confirming.answered_call(wire, sent, value)
            }
        }
    }

    /// Handles the value of a tracked key. Returns a notification if another client has changed the key.
    fn value_push(&mut self, values: &[Vec<u8>], value: &Value) -> Option<Received> {
        // The key was moved to another node, so it isn't tracked. The answer to the renewal explains more.
        if matches!(value, Value::ServerError(_)) && self.wire.server.part == Part::Node {
            self.pushes.tracking = false;
            return None;
        }
        // If the value differs, another client has changed the key between the renewal and this.
        let is_same = matches!(value, Value::BulkString(value) if values.contains(value));
        (!is_same).then_some(Received::Push(Push::KeyChanged))
    }

    /// Asks the server whether it is a replica. The answer comes in before the answer to the next question.
    pub fn ask_role(&mut self) -> Result<(), Error> {
        self.drain_stale()?;
        self.wire.add(&cmd("ROLE"), Expected::Role);
        self.wire.send(self.wire.until())
    }

    /// Sends a call and waits for its answer, at most `within`. Ignores answers to earlier calls that were not read.
    pub fn call(&mut self, call: Call, within: Duration) -> Result<Value, Error> {
        let until = Instant::now() + within;
        let number = self.request(call, until, None, true)?;
        self.answer(number, until)
    }

    /// Calls the release: the short script first, if the caller passes it. Calls `is_slow` if the answer takes longer than
    /// `soon`. By then, or at once without the short script, sends the whole script with its text: the lock becomes free even
    /// if nobody waits for the answer. [`Self::is_followed`] checks the replicas.
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
        let (first, mut second) = match short {
            Some(short) => (short, Some(whole)),
            None => (whole, None),
        };
        let first = self.request(first, until, None, second.is_some())?;
        let mut sent = None;
        let answer = match self.answer(first, soon) {
            Err(error) if error.kind == ErrorKind::Unreachable && soon < until => {
                if let Some(second) = second.take() {
                    sent = Some(self.request(second, until, None, false)?);
                }
                is_slow();
                // A server that lacks the short script answers only the whole one, which was sent after it.
                let (number, answer) = self.answer_to(&[Some(first), sent], until)?;
                if number != first {
                    return Ok(answer);
                }
                answer
            }
            answer => answer?,
        };
        match (answer, second, sent) {
            (Value::Int(0), Some(second), _) => self.call(second, left(until)),
            (Value::Int(0), _, Some(sent)) => self.answer(sent, until),
            (answer, ..) => Ok(answer),
        }
    }

    /// Sends many calls of one script at once and reads all answers, which may take `within` together.
    pub fn pipeline<T>(
        &mut self,
        calls: Vec<Call>,
        within: Duration,
        read: impl FnMut(Value) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let until = Instant::now() + within;
        self.call_each(calls, || until, read, |_| 0)
    }

    /// Like [`Self::pipeline`], for answers that may be long. Each answer may take the server's timeout. All items together may
    /// weigh as much as a listing: redlock keeps the items, not the answers.
    pub fn list<T>(
        &mut self,
        calls: Vec<Call>,
        read: impl FnMut(Value) -> Result<T, Error>,
        weigh: impl Fn(&T) -> usize,
    ) -> Result<Vec<T>, Error> {
        let within = self.wire.timeout;
        self.wire.listing = Some(LISTING);
        let items = self.call_each(calls, || Instant::now() + within, read, weigh);
        self.wire.listing = None;
        items
    }

    /// Sends calls of one script, and reads all answers.
    fn call_each<T>(
        &mut self,
        calls: Vec<Call>,
        until: impl Fn() -> Instant,
        mut read: impl FnMut(Value) -> Result<T, Error>,
        weigh: impl Fn(&T) -> usize,
    ) -> Result<Vec<T>, Error> {
        let mut calls = calls.into_iter();
        let mut items = Vec::new();
        // The first call is sent alone, so that the server knows the script. Replicas confirm one call at a time.
        for call in calls.by_ref() {
            let is_alone = self.confirming.goal_of(call.script).is_some();
            let answer = self.call(call, left(until()))?;
            items.push(self.weighed(read(answer)?, &weigh));
            if !is_alone {
                break;
            }
        }
        // In parts, so that neither side's buffers fill while both write. The server works on one part while redlock reads the
        // answers to the part before.
        let mut before = Vec::new();
        loop {
            let mut numbers = Vec::new();
            for call in calls.by_ref().take(PART) {
                let number = self.wire.next_request();
                // Not sent again if the server doesn't know the script.
                let command = call.command(true);
                let sent = SentCall {
                    number,
                    call,
                    by_hash: None,
                    goal: None,
                };
                self.wire.add(&command, Expected::Call(sent));
                numbers.push(number);
            }
            self.wire.send(until())?;
            for number in std::mem::replace(&mut before, numbers) {
                let answer = self.answer(number, until())?;
                items.push(self.weighed(read(answer)?, &weigh));
            }
            if before.is_empty() {
                return Ok(items);
            }
        }
    }

    /// Returns an item of a listing, and subtracts its weight from the rest of the listing's limit.
    fn weighed<T>(&mut self, item: T, weigh: impl Fn(&T) -> usize) -> T {
        if let Some(left) = &mut self.wire.listing {
            *left = left.saturating_sub(weigh(&item));
        }
        item
    }

    /// Sends a plain command and waits for its answer.
    pub fn query(&mut self, command: &Cmd) -> Result<Value, Error> {
        self.query_until(command, self.wire.until())
    }

    pub(super) fn query_until(&mut self, command: &Cmd, until: Instant) -> Result<Value, Error> {
        let answers = self.query_each(slice::from_ref(command), left(until))?;
        let answer = answers.into_iter().next();
        self.wire.unless_refused(answer.unwrap_or(Value::Nil))
    }

    /// Like [`Self::query`], for an answer that may be long.
    pub fn query_list(&mut self, command: &Cmd) -> Result<Value, Error> {
        self.wire.listing = Some(LISTING);
        let answer = self.query(command);
        self.wire.listing = None;
        answer
    }

    /// Sends plain commands at once and waits for all answers. An error counts as an answer.
    pub fn query_each(&mut self, commands: &[Cmd], within: Duration) -> Result<Vec<Value>, Error> {
        let until = Instant::now() + within;
        self.drain_stale()?;
        let (wire, commands) = (&mut self.wire, commands.iter());
        let numbers: Vec<RequestId> = commands.map(|it| wire.ask(it)).collect();
        wire.send(until)?;
        let answers = numbers.into_iter();
        answers.map(|number| self.answer(number, until)).collect()
    }

    /// Returns true if the server sends messages apart from answers, so that this connection can subscribe to a channel.
    pub fn speaks_resp3(&self) -> bool {
        self.pushes.resp3 == Resp3::Spoken
    }

    /// Waits for the answer to a request. Keeps notifications for [`Self::receive`], and drops other answers.
    pub(super) fn answer(&mut self, number: RequestId, until: Instant) -> Result<Value, Error> {
        let (_, value) = self.answer_to(&[Some(number)], until)?;
        Ok(value)
    }

    /// Waits for the first answer to any of these requests.
    fn answer_to(
        &mut self,
        requests: &[Option<RequestId>],
        until: Instant,
    ) -> Result<(RequestId, Value), Error> {
        loop {
            match self.next_incoming()? {
                Some(Received::Answer { number, value, .. })
                    if requests.contains(&Some(number)) =>
                {
                    return Ok((number, value));
                }
                Some(received) => self.pushes.remember(received),
                None => self.wire.wait_for_more(until)?,
            }
        }
    }

    /// Returns true if the last answered release outlives a failover, as `REDLOCK_SYNC=all` demands: each replica that could
    /// follow the primary has it.
    pub fn is_followed(&mut self, within: Duration) -> bool {
        if !self.confirming.needs_all() {
            return true;
        }
        let goal = self.confirming.listed.last.clone();
        let until = Instant::now() + within;
        if goal.number() == 0 || self.drain_stale().is_err() {
            return false;
        }
        let number = self.wire.next_request();
        self.confirming.ask(&mut self.wire, &goal, FOLLOWED, until);
        let answer = self.wire.answered(number, None, Value::Okay);
        self.confirming.pending = Some(Pending::new(answer, goal));
        let sent = self.wire.send(until);
        let answer = sent.and_then(|()| self.answer(number, until));
        self.confirming.pending = None;
        answer.is_ok()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.stream.as_fd()
    }
}

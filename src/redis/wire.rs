//! The wire to one server: what is written, which answers are still to come, and what came in.
//!
//! What the other side sends is believed as far as the protocol goes, and no further:
//!
//! - A reply has a limit of its size and depth, and a listing one for all of its replies together.
//! - However much comes in, a caller is back at its clock after [`TURN`] bytes, and what waits for an
//!   answer waits until its deadline and no longer, also when bytes keep coming.
//! - After a reply without a request, an answer to another question, or bytes that aren't the protocol at
//!   all, no answer can be matched to its request any more. The connection is given up, and the state of
//!   what was asked is *unknown*: neither granted nor lost.
//! - A connection that is given up with a request unanswered is reset, so that what is still under way
//!   doesn't arrive later and take a lock that is not wanted any more. A release is wanted also when it
//!   comes late, so where one was the last word the connection is closed in order.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerError, Value};

use super::call::{Call, Script};
use super::error::{Error, ErrorKind};
use super::left;
use super::refusal::from_server;
use super::replication::Goal;
use super::resp::{Broken, Replies};
use super::server::Server;
use super::stream::Stream;
use crate::sys::poll;

/// What one reply may weigh where nothing large is expected: the longest of ours holds the entry of
/// one holder and a word about another, so a few kilobytes.
const USUAL: usize = 1 << 20;

/// What all replies of a listing together may weigh.
pub(super) const LISTING: usize = 16 << 20;

/// How much is read before the caller is back at its clock.
const TURN: usize = 64 * 1024;

/// The number of a request on its connection, by which its answer is known.
pub type RequestId = u64;

/// The questions about replicas whose answers are still to come.
pub(super) enum AboutReplicas {
    /// How many replicas have what was written before.
    Acknowledged,
    /// How far the primary was after the call that waits for its replicas.
    Written,
    /// How far each of them is.
    Positions,
    /// Which of them copy the data, if we may know it.
    Copying,
}

/// A call that was sent.
pub(super) struct SentCall {
    pub(super) number: RequestId,
    pub(super) call: Call,
    /// Time of sending, if the call is sent again, with its text, should the server not know the script.
    pub(super) by_hash: Option<Instant>,
    /// Goal that replicas must reach before the answer is valid.
    pub(super) goal: Option<Goal>,
}

/// An answer that is still to come, by what it answers.
pub(super) enum Expected {
    /// A call of a script.
    Call(SentCall),
    /// A plain command, which may arrive late: if it writes anything, its last part removes that. Nobody may wait for the
    /// answer, as for those about tracking.
    Command(RequestId),
    /// The change to RESP3.
    Hello(RequestId),
    /// Role of the server, if the user may ask for it.
    Role,
    /// A question about replicas.
    Replicas(AboutReplicas),
    /// The beginning of a key, which should contain one of these values.
    Value(Vec<Vec<u8>>),
    /// A subscription.
    Subscribed,
    /// The nodes of the cluster, if we may know them.
    Nodes,
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
#[derive(Debug, PartialEq, Eq)]
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

/// The bytes to and from one server, and the answers that they are to bring.
pub(super) struct Wire {
    pub(super) stream: Stream,
    pub(super) replies: Replies,
    /// How much was read since the caller was last at its clock.
    bytes_this_turn: usize,
    /// Bytes that the replies of a listing may still weigh together; `None` for any other reply.
    pub(super) listing: Option<usize>,
    pub(super) expected: VecDeque<Expected>,
    /// Number of requests.
    pub(super) sent: RequestId,
    /// The bytes of requests that weren't sent yet.
    unsent: Vec<u8>,
    /// Something that was asked was answered.
    has_answered: bool,
    /// A script was answered: we were permitted to call it.
    is_proven: bool,
    /// Answers can't be matched to requests any more.
    pub(super) broken: Option<Error>,
    pub(super) server: Arc<Server>,
    /// How long writing, and each answer of a listing, may take.
    pub(super) timeout: Duration,
}

impl Wire {
    pub(super) fn new(stream: Stream, server: &Arc<Server>, timeout: Duration) -> Self {
        Self {
            stream,
            replies: Replies::default(),
            bytes_this_turn: 0,
            listing: None,
            expected: VecDeque::new(),
            sent: 0,
            unsent: Vec::new(),
            has_answered: false,
            is_proven: false,
            broken: None,
            server: Arc::clone(server),
            timeout,
        }
    }

    /// The error for what a server answers to a request.
    pub(super) fn call_error(&self, call: Option<&Call>, error: &ServerError) -> Error {
        let is_about_password = matches!(error.code(), "NOAUTH" | "WRONGPASS");
        let error = from_server(error, &self.server, call);
        // What the first call on a connection isn't permitted, the user isn't.
        if self.is_proven && is_about_password {
            self.softened_by_fresh_password(error)
        } else {
            error
        }
    }

    /// Returns the answer to a plain command, or the error that it is.
    pub(super) fn unless_refused(&self, answer: Value) -> Result<Value, Error> {
        match answer {
            Value::ServerError(error) => Err(self.call_error(None, &error)),
            answer => Ok(answer),
        }
    }

    /// What is refused because a password is over, the next one may permit.
    pub(super) fn softened_by_fresh_password(&self, mut error: Error) -> Error {
        if error.kind == ErrorKind::Refused
            && let Some(password) = &self.server.fresh_password
        {
            error.kind = password.kind(error.kind);
        }
        error
    }

    /// Returns the number of the next request.
    pub(super) fn next_request(&mut self) -> RequestId {
        self.sent += 1;
        self.sent
    }

    /// Adds a command to what is sent next, and the answer that it will bring to those that are to come.
    pub(super) fn add(&mut self, command: &Cmd, expected: Expected) {
        command.write_packed_command(&mut self.unsent);
        self.expected.push_back(expected);
    }

    /// Adds a plain command. Returns the number of its answer, which may be ignored.
    pub(super) fn ask(&mut self, command: &Cmd) -> RequestId {
        let number = self.next_request();
        self.add(command, Expected::Command(number));
        number
    }

    /// Sends what was added, in one write, until this moment at the latest.
    pub(super) fn send(&mut self, until: Instant) -> Result<(), Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if self.unsent.is_empty() {
            return Ok(());
        }
        let sent = self.stream.send(&self.unsent, until);
        self.unsent.clear();
        sent.map_err(|error| self.parting_error().unwrap_or_else(|| self.closed(&error)))
    }

    /// Returns the end of the time for what is sent now.
    pub(super) fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    pub(super) fn answered(
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
    pub(super) fn out_of_step(&mut self, what: &str) -> Error {
        let error = self.abandoned_error(&format!("it {what}"));
        self.broken = Some(error.clone());
        error
    }

    pub(super) fn abandoned_error(&self, why: &str) -> Error {
        let message = format!("closed the connection to Redis at {}: {why}", self.server);
        Error::new(ErrorKind::Unreachable, message)
    }

    /// The error for what isn't a reply of ours.
    fn broken_error(&self, broken: &Broken) -> Error {
        match broken {
            // If it has never said anything else, it isn't a Redis server.
            Broken::Noise(_) if !self.server.was_reached() && self.begins_as_tls() => {
                self.server.speaks_tls()
            }
            Broken::Noise(noise) if self.replies.last_weight() == 0 => {
                self.server.is_no_redis(noise)
            }
            Broken::Noise(noise) => {
                self.abandoned_error(&format!("it does not speak the Redis protocol: {noise:?}"))
            }
            Broken::TooLarge if self.listing.is_some() => self.abandoned_error(&format!(
                "the data of these locks is larger than {} MiB; name fewer locks",
                LISTING >> 20
            )),
            Broken::TooLarge | Broken::TooDeep => self.abandoned_error(&format!(
                "an answer was larger than {} MiB, or nested too deep",
                USUAL >> 20
            )),
        }
    }

    /// The next reply of whatever kind, if it is complete.
    pub(super) fn next_reply(&mut self) -> Result<Option<Value>, Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        loop {
            let reply = self.replies.next(self.listing.unwrap_or(USUAL));
            if let Some(reply) = reply.map_err(|broken| self.broken_error(&broken))? {
                self.server.note_answer();
                return Ok(Some(reply));
            }
            let mut bytes = [0; 4096];
            let read = if self.bytes_this_turn < TURN {
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
                    self.bytes_this_turn += read;
                    self.replies.add(&bytes[..read]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.bytes_this_turn = 0;
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
        let is_hello = |expected: &Expected| matches!(expected, Expected::Hello(_));
        let expects_hello = self.expected.iter().any(is_hello);
        if expects_hello && self.has_answered {
            let closes = &self.server.past.closes_on_hello;
            closes.store(true, Ordering::Relaxed);
        }
        if !self.server.was_reached() && (self.begins_as_tls() || self.server.expects_tls()) {
            return self.server.speaks_tls();
        }
        self.server.closed_error(error)
    }

    /// Whether what came first is an alert of TLS: it doesn't understand us.
    fn begins_as_tls(&self) -> bool {
        matches!(self.replies.unread(), [0x15, 3, ..])
    }

    pub(super) fn wait_for_more(&self, until: Instant) -> Result<(), Error> {
        // Even if there is always something to read.
        let left = left(until);
        match poll::wait_for(poll::readable(self.stream.as_fd()), left) {
            Ok(true) if !left.is_zero() => Ok(()),
            Ok(_) => Err(self.server.silent_error()),
            Err(error) => Err(self.server.unreachable_error(&error)),
        }
    }

    /// What a server said before it closed the connection, that has let in nothing of ours: that it is
    /// in protected mode, say.
    fn parting_error(&mut self) -> Option<Error> {
        if self.has_answered {
            return None;
        }
        match self.next_reply() {
            Ok(Some(Value::ServerError(error))) => Some(self.call_error(None, &error)),
            _ => None,
        }
    }

    /// Whether something was asked that has no answer yet, and that must not come late.
    fn must_reset(&self) -> bool {
        let must_not_come_late = |expected: &Expected| match expected {
            Expected::Call(sent) => Some(!sent.call.script.may_arrive_late),
            _ => None,
        };
        let last = self.expected.iter().rev().find_map(must_not_come_late);
        last == Some(true)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.must_reset() {
            self.stream.reset_when_closed();
        }
    }
}

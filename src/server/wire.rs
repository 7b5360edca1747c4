//! The wire to one server: it packs requests, knows the expected answers, and reads replies.
//!
//! redlock trusts the other side only as far as the protocol goes:
//!
//! - A reply has a limit of its size and depth, and a listing has one for all of its replies together.
//! - However much comes in, a caller gets control back after [`TURN`] bytes. A caller that waits for an answer waits until
//!   its deadline and no longer, even if bytes keep coming.
//! - After a reply without a request, an answer to another question, or bytes that aren't the protocol, no answer can be
//!   matched to its request. redlock gives the connection up, and the state of its requests is *unknown*: neither granted nor
//!   lost.
//! - redlock resets a connection that it gives up with an unanswered request. Otherwise the request might arrive later, and
//!   take a lock that nobody wants any more. A late release is welcome, so redlock closes the connection normally if a
//!   release was the last request.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, ServerError, Value};

use super::call::{Call, Script};
use super::endpoint::Server;
use super::error::{Error, ErrorKind};
use super::refusal::from_server;
use super::replication::Goal;
use super::resp::{Fault, Replies};
use super::stream::Stream;
use super::{left, lock};
use crate::sys::poll;

/// Limit of a usual reply, in bytes. redlock's longest reply holds the entry of one holder and a little about another: a few
/// kilobytes.
const USUAL: usize = 1 << 20;

/// Limit of all replies of a listing together, in bytes.
pub(super) const LISTING: usize = 16 << 20;

/// Number of bytes that are read before the caller gets control back.
const TURN: usize = 64 * 1024;

/// Number of a request on its connection, which identifies its answer.
pub type RequestId = u64;

/// A question about replicas whose answer is still to come.
pub(super) enum ReplicaQuery {
    /// Number of replicas that have the last write.
    Acknowledged,
    /// Offset of the primary after the call that waits for its replicas.
    Written,
    /// Offset of each replica.
    Positions,
    /// The replicas that are copying the data, if the user may ask for that.
    Copying,
}

/// A call that was sent.
pub(super) struct SentCall {
    pub(super) number: RequestId,
    pub(super) call: Call,
    /// Time of sending, if the call was sent by its hash: redlock sends it again, with its text, if the server doesn't know
    /// the script.
    pub(super) by_hash: Option<Instant>,
    /// The replicas that must confirm before the answer is valid.
    pub(super) goal: Option<Goal>,
}

/// An expected answer, by its request.
pub(super) enum Expected {
    /// A call of a script.
    Call(SentCall),
    /// A plain command, which may arrive late: if the command writes anything, its last part removes that. Possibly nobody
    /// waits for the answer, as with tracking.
    Command(RequestId),
    /// A switch to RESP3.
    Hello(RequestId),
    /// Role of the server, if the user may ask for it.
    Role,
    /// A question about replicas.
    Replicas(ReplicaQuery),
    /// The beginning of a key's value, which should be one of these.
    Value(Vec<Vec<u8>>),
    /// A subscription.
    Subscribed,
    /// The nodes of the cluster, if the user may ask for them.
    Nodes,
}

/// An answer or a notification.
pub enum Received {
    /// The answer to a request.
    Answer {
        number: RequestId,
        /// The script, if the request was a call of a script.
        script: Option<&'static Script>,
        value: Value,
    },
    /// A message that the server pushes.
    Push(Push),
}

/// A notification by the server, or a result that needs none.
#[derive(Debug, PartialEq, Eq)]
pub enum Push {
    /// The server doesn't permit or support the subscription.
    SubscribeDenied,
    /// A message on the subscribed channel.
    Message(String),
    /// A message that came while redlock waited for an answer. Its text is gone, and the caller can ask the server for the
    /// state.
    MessageMissed,
    /// A key that was read over this connection may have changed.
    KeyChanged,
}

/// The bytes to and from one server, and the answers that redlock expects.
pub(super) struct Wire {
    pub(super) stream: Stream,
    pub(super) replies: Replies,
    /// Number of bytes read since the caller last had control.
    bytes_this_turn: usize,
    /// Number of bytes that the replies of a listing may still weigh together. `None` for other replies.
    pub(super) listing: Option<usize>,
    pub(super) expected: VecDeque<Expected>,
    /// Number of requests so far.
    pub(super) sent: RequestId,
    /// Bytes of requests that weren't sent yet.
    unsent: Vec<u8>,
    /// True if a request was answered.
    has_answered: bool,
    /// True if a script was answered, so the user may call scripts.
    is_proven: bool,
    /// The error after which answers can't be matched to requests any more.
    pub(super) broken: Option<Error>,
    pub(super) server: Arc<Server>,
    /// Time limit for writing, and for each answer of a listing.
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

    /// Returns the error for a server's answer to a request.
    pub(super) fn call_error(&self, call: Option<&Call>, error: &ServerError) -> Error {
        let is_about_password = matches!(error.code(), "NOAUTH" | "WRONGPASS");
        let error = from_server(error, &self.server, call);
        // If the first call on a connection is refused, the user lacks the permission, and a later password won't help.
        if self.is_proven && is_about_password {
            self.softened_by_fresh_password(error)
        } else {
            error
        }
    }

    /// Returns the answer to a plain command, or its error.
    pub(super) fn unless_refused(&self, answer: Value) -> Result<Value, Error> {
        match answer {
            Value::ServerError(error) => Err(self.call_error(None, &error)),
            answer => Ok(answer),
        }
    }

    /// Makes a refusal temporary if a later password may be accepted.
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

    /// Adds a command to the next bytes to send, and its answer to the expected ones.
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

    /// Sends the added requests in one write, until this moment at the latest.
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

    /// Returns the deadline of a request that is sent now.
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

    /// Returns the error for a reply that matches no request. From here on no answer can be trusted.
    pub(super) fn out_of_step(&mut self, what: &str) -> Error {
        let error = self.abandoned_error(&format!("it {what}"));
        self.broken = Some(error.clone());
        error
    }

    pub(super) fn abandoned_error(&self, why: &str) -> Error {
        let message = format!("closed the connection to Redis at {}: {why}", self.server);
        Error::new(ErrorKind::Unreachable, message)
    }

    /// Returns the error for bytes that aren't a valid reply.
    fn broken_error(&self, broken: &Fault) -> Error {
        match broken {
            // A server that has never sent anything else doesn't speak the Redis protocol.
            Fault::Noise(_) if !self.server.was_reached() && self.begins_as_tls() => {
                self.server.speaks_tls()
            }
            Fault::Noise(noise) if self.replies.last_weight == 0 => self.server.is_no_redis(noise),
            Fault::Noise(noise) => {
                self.abandoned_error(&format!("it does not speak the Redis protocol: {noise:?}"))
            }
            Fault::TooLarge if self.listing.is_some() => self.abandoned_error(&format!(
                "the data of these locks is larger than {} MiB; name fewer locks",
                LISTING >> 20
            )),
            Fault::TooLarge | Fault::TooDeep => self.abandoned_error(&format!(
                "an answer was larger than {} MiB, or nested too deep",
                USUAL >> 20
            )),
        }
    }

    /// Returns the next reply of any kind, if it is complete.
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
                // The descriptor doesn't announce bytes that TLS has already read.
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

    /// Returns the error for a connection that the other side has closed.
    fn closed(&self, error: &io::Error) -> Error {
        // A server that has answered nothing on this connection closed it for another reason.
        let is_hello = |expected: &Expected| matches!(expected, Expected::Hello(_));
        let expects_hello = self.expected.iter().any(is_hello);
        if expects_hello && self.has_answered {
            lock(&self.server.past).closes_on_hello = true;
        }
        if !self.server.was_reached() && (self.begins_as_tls() || self.server.expects_tls()) {
            return self.server.speaks_tls();
        }
        self.server.closed_error(error)
    }

    /// Returns true if the first bytes are a TLS alert: the server doesn't understand plain text.
    fn begins_as_tls(&self) -> bool {
        matches!(self.replies.unread(), [0x15, 3, ..])
    }

    pub(super) fn wait_for_more(&self, until: Instant) -> Result<(), Error> {
        // The deadline holds even if there is always something to read.
        let left = left(until);
        match poll::wait_for(poll::readable(self.stream.as_fd()), left) {
            Ok(true) if !left.is_zero() => Ok(()),
            Ok(_) => Err(self.server.silent_error()),
            Err(error) => Err(self.server.unreachable_error(&error)),
        }
    }

    /// Returns the error that a server sent before it closed the connection without accepting any request, for example because
    /// it is in protected mode.
    fn parting_error(&mut self) -> Option<Error> {
        if self.has_answered {
            return None;
        }
        match self.next_reply() {
            Ok(Some(Value::ServerError(error))) => Some(self.call_error(None, &error)),
            _ => None,
        }
    }

    /// Returns true if the last unanswered call must not arrive late.
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

//! Messages that a server pushes: on a channel, or about a changed key. redlock uses them only with RESP3: with RESP2 a
//! subscription restricts the commands of the connection, and its messages look like answers.

use redis::{PushKind, Value, cmd};

use super::endpoint::Part;
use super::error::{Error, ErrorKind};
use super::lock;
use super::reply::{field, lossy_text};
use super::wire::{Expected, Push, Received, RequestId, Wire};

/// First version of Redis whose channels can belong to hash slots.
const SHARDED_SINCE: u32 = 7;

/// The message by which another program checks whether anybody listens. Waiters ignore it.
pub const PRESENCE_CHECK: &str = "hello";

/// State of the request for RESP3, in which messages differ from answers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Resp3 {
    /// redlock hasn't asked yet.
    #[default]
    Unasked,
    /// redlock has asked, with this request.
    Asked(RequestId),
    Spoken,
    Unknown,
}

/// The pushes that a server may send over a connection, and those that the caller hasn't read yet.
#[derive(Default)]
pub(super) struct Pushes {
    pub(super) resp3: Resp3,
    /// True for a node of a cluster, false for another server, `None` if the server doesn't say.
    pub(super) is_node: Option<bool>,
    /// True if channels belong to hash slots, so that a message stays on the slot's node.
    pub(super) sharded: bool,
    /// The channel that was requested last.
    pub(super) channel: Option<Vec<u8>>,
    /// Pushes that came while redlock waited for an answer, and that the caller hasn't read yet.
    pub(super) passed: Vec<Push>,
    /// True if redlock has asked the server for notifications of changed keys.
    pub(super) tracking: bool,
}

impl Pushes {
    /// Keeps a push that came while redlock waited for an answer. Drops the text of a message, because the caller can ask the
    /// server for it.
    pub(super) fn remember(&mut self, received: Received) {
        let push = match received {
            Received::Push(Push::Message(_)) => Push::MessageMissed,
            Received::Answer { .. } => return,
            Received::Push(other) => other,
        };
        if !self.passed.contains(&push) {
            self.passed.push(push);
        }
    }

    /// Handles the answer to the request for RESP3.
    pub(super) fn hello(&mut self, part: Part, answer: &Value) {
        // RESP2 has no maps.
        let spoken = matches!(answer, Value::Map(_));
        if part == Part::Node {
            let reported = |name| field(answer, name);
            self.is_node = reported("mode").map(|mode| mode == "cluster");
            let version = reported("version").unwrap_or_default();
            let major = version.split('.').next().unwrap_or_default().parse();
            self.sharded = spoken && major.is_ok_and(|major: u32| major >= SHARDED_SINCE);
        }
        self.resp3 = if spoken {
            Resp3::Spoken
        } else {
            Resp3::Unknown
        };
    }

    /// Returns a push that interests a caller, if this is one.
    pub(super) fn pushed(
        wire: &mut Wire,
        kind: &PushKind,
        data: &[Value],
    ) -> Result<Option<Push>, Error> {
        Ok(match kind {
            PushKind::Message | PushKind::SMessage => {
                let message = data.last().map(lossy_text).unwrap_or_default();
                (message != PRESENCE_CHECK).then_some(Push::Message(message))
            }
            PushKind::Invalidate => Some(Push::KeyChanged),
            PushKind::Subscribe | PushKind::SSubscribe => {
                let expected = wire.expected.pop_front();
                if !matches!(expected, Some(Expected::Subscribed)) {
                    return Err(wire.out_of_step("confirmed a subscription without a request"));
                }
                None
            }
            // The slot was moved to another node, so no more messages will come here.
            PushKind::SUnsubscribe => {
                let message = format!(
                    "these keys were moved from {} to another node of the cluster",
                    wire.server
                );
                let error = Error::new(ErrorKind::Moving, message);
                wire.broken = Some(error.clone());
                return Err(error);
            }
            _ => None,
        })
    }

    /// Adds a request for RESP3 to the next bytes to send, unless that was done, or the server is known to close the connection
    /// then.
    pub(super) fn say_hello(&mut self, wire: &mut Wire) {
        if self.resp3 == Resp3::Unasked && lock(&wire.server.past).closes_on_hello {
            self.resp3 = Resp3::Unknown;
        }
        if self.resp3 == Resp3::Unasked {
            let number = wire.next_request();
            wire.add(cmd("HELLO").arg(3), Expected::Hello(number));
            self.resp3 = Resp3::Asked(number);
        }
    }

    /// Adds the subscription to the channel, or a note that it was denied if the server doesn't speak RESP3.
    pub(super) fn subscribe(&mut self, wire: &mut Wire) {
        let name = if self.sharded {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        match self.resp3 {
            Resp3::Spoken => wire.add(cmd(name).arg(&self.channel), Expected::Subscribed),
            _ => self.remember(Received::Push(Push::SubscribeDenied)),
        }
    }

    /// Tracks a key that the previous command changes, and that has one of these values afterwards.
    pub(super) fn track_changed(wire: &mut Wire, key: &[u8], values: Vec<Vec<u8>>) {
        wire.ask(cmd("CLIENT").arg("CACHING").arg("YES"));
        // Only the beginning of the value, which may be anything by now.
        let end = values.iter().map(Vec::len).max().unwrap_or_default();
        let beginning = cmd("GETRANGE").arg(key).arg(0).arg(end).clone();
        wire.add(&beginning, Expected::Value(values));
    }
}

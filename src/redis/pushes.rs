//! What a server pushes: messages on a channel, and that a key has changed. It does so where it speaks RESP3; with RESP2 a
//! subscription changes what the connection may be used for, and its messages look like answers.

use redis::{Cmd, PushKind, Value, cmd};

use super::error::{Error, ErrorKind};
use super::reply::{field, lossy_text};
use super::server::{Part, Server};
use super::wire::{Expected, Push, Received, Wire};

/// The version of Redis from which on channels can belong to hash slots.
const SHARDED_SINCE: u32 = 7;

/// The message by which another program looks whether anybody listens.
pub const PRESENCE_CHECK: &str = "hello";

/// Whether the server speaks RESP3, in which messages differ from answers.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Resp3 {
    /// It wasn't asked.
    #[default]
    Unasked,
    /// It was asked.
    Asked,
    Spoken,
    Unknown,
}

/// What a server may push over a connection, and what it has pushed that the caller hasn't heard of.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
#[derive(Default)]
pub(super) struct Pushes {
    pub(super) resp3: Resp3,
    /// Whether it is a node of a cluster, as far as it says that.
    pub(super) is_node: Option<bool>,
    /// Channels belong to hash slots here, and a message stays on the slot's node.
    pub(super) sharded: bool,
    /// The channel to listen to, once it is known that the server speaks RESP3.
    channel: Option<Vec<u8>>,
    /// The channel that was last asked for.
    pub(super) subscribed: Option<Vec<u8>>,
    /// A subscription isn't possible, which the caller hasn't been notified of yet.
    denied: bool,
    /// An invalidation came while an answer was waited for.
    key_changed: bool,
    /// A message came while an answer was waited for: what it said can be asked.
    message_passed: bool,
    /// The server was asked to notify us of keys that change.
    pub(super) tracking: bool,
}

impl Pushes {
    /// What was pushed while an answer was waited for, one at a time.
    pub(super) fn take_remembered(&mut self) -> Option<Push> {
        if std::mem::take(&mut self.key_changed) {
            return Some(Push::KeyChanged);
        }
        if std::mem::take(&mut self.denied) {
            return Some(Push::SubscribeDenied);
        }
        std::mem::take(&mut self.message_passed).then_some(Push::MessageMissed)
    }

    /// Returns true if RESP3 must be asked for before anything is pushed.
    pub(super) fn is_to_say_hello(&self, server: &Server) -> bool {
        self.resp3 == Resp3::Unasked && !server.closes_on_hello()
    }

    /// Listens to a channel, as soon as it is known that the server speaks RESP3.
    pub(super) fn ask_to_subscribe(
        &mut self,
        wire: &mut Wire,
        channel: &[u8],
    ) -> Result<(), Error> {
        if self.is_to_say_hello(&wire.server) {
            let mut bytes = Vec::new();
            self.say_hello(wire, &mut bytes);
            wire.write(&bytes, wire.until())?;
        }
        match self.resp3 {
            Resp3::Spoken => {
                return wire.ask(&self.subscribe_command(channel), Expected::Subscribed);
            }
            // What is sent from now on is held back until the answer.
            Resp3::Asked => {
                wire.hold_back();
                if self.channel.replace(channel.to_vec()).is_none() {
                    wire.expected.push_back(Expected::Subscribed);
                }
            }
            Resp3::Unasked | Resp3::Unknown => self.denied = true,
        }
        Ok(())
    }

    /// What comes of it that RESP3 was asked for.
    pub(super) fn hello(&mut self, wire: &mut Wire, answer: &Value) -> Result<(), Error> {
        // In RESP2 there are no maps.
        let spoken = matches!(answer, Value::Map(_));
        if wire.server.part() == Part::Node {
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
            bytes = self.subscribe_command(&channel).get_packed_command();
        } else {
            self.denied = true;
            let subscribed = |expected: &Expected| matches!(expected, Expected::Subscribed);
            if let Some(at) = wire.expected.iter().position(subscribed) {
                wire.expected.remove(at);
            }
        }
        bytes.append(&mut wire.take_held_back());
        wire.write(&bytes, wire.until())
    }

    /// What the server pushes, if it is of interest.
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
                Some(Push::Subscribed)
            }
            // No message comes any more: the slot was moved to another node.
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

    /// Remembers what was pushed while an answer was waited for.
    pub(super) fn remember_push(&mut self, received: &Received) {
        match received {
            Received::Push(Push::KeyChanged) => self.key_changed = true,
            Received::Push(Push::SubscribeDenied) => self.denied = true,
            Received::Push(Push::Message(_) | Push::MessageMissed) => self.message_passed = true,
            Received::Push(Push::Subscribed) | Received::Answer { .. } => {}
        }
    }

    /// Asks for RESP3.
    pub(super) fn say_hello(&mut self, wire: &mut Wire, bytes: &mut Vec<u8>) {
        wire.add(bytes, cmd("HELLO").arg(3), Expected::Hello);
        self.resp3 = Resp3::Asked;
    }

    fn subscribe_command(&self, channel: &[u8]) -> Cmd {
        let name = if self.sharded {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        cmd(name).arg(channel).clone()
    }

    /// Has the server notify us when another client changes one of these keys for the next time (client
    /// tracking, RESP3). A server without tracking sends no notification. Only keys that are read here are
    /// tracked: most of a script's keys are written all the time. The key's value isn't requested, as it
    /// may be anything.
    pub(super) fn track_keys<'a>(
        &mut self,
        wire: &mut Wire,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Error> {
        let mut bytes = Vec::new();
        if self.is_to_say_hello(&wire.server) {
            self.say_hello(wire, &mut bytes);
        }
        if matches!(self.resp3, Resp3::Unasked | Resp3::Unknown) {
            return Ok(());
        }
        if !std::mem::replace(&mut self.tracking, true) {
            let words = ["TRACKING", "ON", "OPTIN", "NOLOOP"];
            wire.add(&mut bytes, cmd("CLIENT").arg(&words), Expected::Optional);
        }
        for key in keys {
            Self::track_next(wire, &mut bytes);
            wire.add(&mut bytes, cmd("EXISTS").arg(key), Expected::Optional);
        }
        wire.write(&bytes, wire.until())
    }

    /// Asks the server to notify redlock of the key that the next command reads.
    fn track_next(wire: &mut Wire, bytes: &mut Vec<u8>) {
        let caching = ["CACHING", "YES"];
        wire.add(bytes, cmd("CLIENT").arg(&caching), Expected::Optional);
    }

    /// Tracks a key that the command before changes, and that has one of these values then.
    pub(super) fn track_changed(
        wire: &mut Wire,
        bytes: &mut Vec<u8>,
        key: &[u8],
        values: Vec<Vec<u8>>,
    ) {
        Self::track_next(wire, bytes);
        // Not all of it: it may be anything by now.
        let end = values.iter().map(Vec::len).max().unwrap_or_default();
        let beginning = cmd("GETRANGE").arg(key).arg(0).arg(end).clone();
        wire.add(bytes, &beginning, Expected::Value(values));
    }
}

//! What a server pushes: messages on a channel, and that a key has changed. It does so where it speaks RESP3; with RESP2 a
//! subscription changes what the connection may be used for, and its messages look like answers.

use std::time::Instant;

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
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Resp3 {
    /// It wasn't asked.
    Unasked,
    /// It was asked.
    Asked,
    Spoken,
    Unknown,
}

/// What a server may push over a connection, and what it has pushed that the caller hasn't heard of.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
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
    pub(super) fn new() -> Self {
        Self {
            resp3: Resp3::Unasked,
            is_node: None,
            sharded: false,
            channel: None,
            subscribed: None,
            denied: false,
            key_changed: false,
            message_passed: false,
            tracking: false,
        }
    }

    /// What was pushed while an answer was waited for, one at a time.
    pub(super) fn take_remembered(&mut self) -> Option<Push> {
        if std::mem::take(&mut self.key_changed) {
            return Some(Push::KeyChanged);
        }
        if self.take_denied() {
            return Some(Push::SubscribeDenied);
        }
        std::mem::take(&mut self.message_passed).then_some(Push::MessageMissed)
    }

    /// Whether a subscription isn't possible, which the caller hasn't been notified of yet.
    pub(super) fn take_denied(&mut self) -> bool {
        std::mem::take(&mut self.denied)
    }

    /// Whether RESP3 is still to be asked for, before anything is pushed.
    pub(super) fn is_to_say_hello(&self, server: &Server) -> bool {
        self.resp3 == Resp3::Unasked && !server.closes_on_hello()
    }

    /// Listens to a channel, as soon as it is known that the server speaks RESP3.
    pub(super) fn ask_to_subscribe(
        &mut self,
        wire: &mut Wire,
        channel: &[u8],
    ) -> Result<(), Error> {
        let until = wire.until();
        match self.resp3 {
            Resp3::Spoken => {
                wire.expected.push_back(Expected::Subscribed);
                wire.write(&self.subscribe_command(channel), until)
            }
            Resp3::Unasked if !wire.server.closes_on_hello() => {
                self.say_hello(wire, &mut Vec::new(), until)?;
                self.subscribe_later(wire, channel);
                Ok(())
            }
            Resp3::Asked => {
                self.subscribe_later(wire, channel);
                Ok(())
            }
            Resp3::Unasked | Resp3::Unknown => {
                self.denied = true;
                Ok(())
            }
        }
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
            bytes = self.subscribe_command(&channel);
        } else {
            self.denied = true;
            let subscribed = |expected: &Expected| matches!(expected, Expected::Subscribed);
            if let Some(at) = wire.expected.iter().position(subscribed) {
                wire.expected.remove(at);
            }
        }
        bytes.append(&mut wire.take_held_back());
        let until = wire.until();
        wire.write(&bytes, until)
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

    /// Holds back what is sent from now on, until it is known whether the server speaks RESP3.
    fn subscribe_later(&mut self, wire: &mut Wire, channel: &[u8]) {
        wire.hold_back();
        if self.channel.replace(channel.to_vec()).is_none() {
            wire.expected.push_back(Expected::Subscribed);
        }
    }

    /// Asks for RESP3, and sends what is to follow at once.
    fn say_hello(
        &mut self,
        wire: &mut Wire,
        followed_by: &mut Vec<u8>,
        until: Instant,
    ) -> Result<(), Error> {
        let mut bytes = Vec::new();
        cmd("HELLO").arg(3).write_packed_command(&mut bytes);
        bytes.append(followed_by);
        self.resp3 = Resp3::Asked;
        wire.expected.push_back(Expected::Hello);
        wire.write(&bytes, until)
    }

    fn subscribe_command(&self, channel: &[u8]) -> Vec<u8> {
        let name = if self.sharded {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        cmd(name).arg(channel).get_packed_command()
    }

    /// Has the server notify us when another client changes one of these keys for the next time (client
    /// tracking, RESP3). A server without tracking sends no notification. Only keys that are read here are
    /// tracked: most of a script's keys are written all the time. The key's value isn't requested, as it
    /// may be anything.
    pub(super) fn track_keys<'a>(
        &mut self,
        wire: &mut Wire,
        keys: impl Iterator<Item = &'a [u8]>,
        until: Instant,
    ) -> Result<(), Error> {
        let asks = self.is_to_say_hello(&wire.server);
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
            self.say_hello(wire, &mut bytes, until)?;
        } else {
            wire.write(&bytes, until)?;
        }
        let optional = (0..optional).map(|_| Expected::Optional);
        wire.expected.extend(optional);
        Ok(())
    }
}

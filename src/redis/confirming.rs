//! Waiting for replicas: a grant or a renewal is valid only when they have it.
//!
//! The question whether they have it goes out together with the call, and the answer to the call is held
//! back until that one is answered. A release counts at once. Under `REDLOCK_SYNC=all` redlock asks afterwards whether it
//! outlives a failover: each replica that could follow the primary must have it.

use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::call::Script;
use super::error::{Error, ErrorKind};
use super::left;
use super::replication::{Goal, Listed, Quorum, Replication, Role};
use super::reply::{count, lossy_text};
use super::wire::{AboutReplicas, Expected, Received, RequestId, Wire};

/// The pause between two looks at how far each replica has come.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Time for replicas to confirm a release, before redlock looks for the locks again.
pub(super) const FOLLOWED: Duration = Duration::from_millis(250);

/// An answer that is held back until the replicas have what it is about.
pub(super) struct Pending {
    number: RequestId,
    script: Option<&'static Script>,
    value: Value,
    goal: Goal,
    /// Offset of the primary after the write.
    offset: Option<u64>,
    /// Number of replicas that have it.
    acknowledged: u32,
    /// Offsets of the replicas, while redlock asks why one isn't connected.
    role: Option<Role>,
    since: Instant,
}

/// What the replicas of a connection's server have to have, and have.
#[derive(Default)]
pub(super) struct Confirming {
    /// What has to be replicated before it counts.
    pub(super) replication: Option<Replication>,
    /// The replicas that could follow the primary.
    pub(super) listed: Listed,
    /// What the last call waits for that does so.
    goal: Option<Goal>,
    /// Time for the replicas to confirm it: three quarters of the time for the answer at most.
    pub(super) replicas_may_take: Duration,
    /// An answer that counts when it is.
    pub(super) pending: Option<Pending>,
}

impl Confirming {
    /// Adds to a call of a script the question whether the replicas have what it wrote, if that matters.
    pub(super) fn await_replicas(
        &mut self,
        wire: &mut Wire,
        script: &'static Script,
        until: Instant,
    ) {
        if let Some(Replication { quorum, timeout }) = self.replication_of(script) {
            let goal = self.listed.goal(quorum);
            self.goal = Some(goal.clone());
            self.ask(wire, &goal, timeout, until);
        }
    }

    /// Adds the question whether the replicas have what was written before, and how far each of them is.
    pub(super) fn ask(&mut self, wire: &mut Wire, goal: &Goal, timeout: Duration, until: Instant) {
        if let Goal::None(_) = goal {
            return;
        }
        // Some of the time is needed for saying what is wrong.
        self.replicas_may_take = timeout.min(left(until) * 3 / 4);
        wire.add(&cmd("ROLE"), Expected::Replicas(AboutReplicas::Written));
        Self::ask_again(wire, goal.number(), self.replicas_may_take);
    }

    fn ask_again(wire: &mut Wire, replicas: u32, within: Duration) {
        let milliseconds = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut wait = cmd("WAIT");
        wait.arg(replicas).arg(milliseconds.max(1));
        wire.add(&wait, Expected::Replicas(AboutReplicas::Acknowledged));
        wire.add(&cmd("ROLE"), Expected::Replicas(AboutReplicas::Positions));
    }

    /// Returns what replicas must have before the answer of a script is valid, if they must have anything.
    pub(super) fn replication_of(&self, script: &Script) -> Option<Replication> {
        self.replication.filter(|_| script.counts_when_replicated)
    }

    /// The answer to a call: that a lock is ours counts when the replicas have it.
    pub(super) fn answered_call(
        &mut self,
        wire: &mut Wire,
        number: RequestId,
        script: &'static Script,
        value: Value,
    ) -> Result<Option<Received>, Error> {
        let is_ours = match &value {
            Value::Array(fields) => fields.first() == Some(&Value::Int(1)),
            value => matches!(value, Value::Int(1..)),
        };
        let waits = is_ours && self.replication_of(script).is_some();
        // What it was sent with: others may be listed by now.
        match self.goal.clone().filter(|_| waits) {
            None => Ok(Some(wire.answered(number, Some(script), value))),
            Some(Goal::None(why)) => {
                let message = format!("replicas didn't confirm the lock at {}: {why}", wire.server);
                Err(Error::new(ErrorKind::NotReplicated, message))
            }
            Some(goal) => {
                self.hold_back(number, Some(script), value, goal);
                Ok(None)
            }
        }
    }

    /// Holds an answer back until the replicas have reached its goal.
    pub(super) fn hold_back(
        &mut self,
        number: RequestId,
        script: Option<&'static Script>,
        value: Value,
        goal: Goal,
    ) {
        self.pending = Some(Pending {
            number,
            script,
            value,
            goal,
            offset: None,
            acknowledged: 0,
            role: None,
            since: Instant::now(),
        });
    }

    /// Takes in an answer about replicas. Returns the answer that was held back, if they have it now.
    pub(super) fn take_answer(
        &mut self,
        wire: &mut Wire,
        about: &AboutReplicas,
        answer: &Value,
    ) -> Result<Option<Received>, Error> {
        match (about, answer) {
            (AboutReplicas::Written, answer) => {
                if let Some(pending) = &mut self.pending {
                    pending.offset = Role::parse(answer).map(|role| role.offset);
                }
            }
            (AboutReplicas::Copying, answer) => return self.copying(wire, answer),
            // This user may not ask where they are.
            (AboutReplicas::Positions, answer) => {
                return self.positions(wire, Role::parse(answer));
            }
            (_, Value::ServerError(error)) => return Err(wire.call_error(None, error)),
            (AboutReplicas::Acknowledged, answer) => return self.acknowledged(wire, answer),
        }
        Ok(None)
    }

    /// Takes in the number of replicas that have it; which those are matters only for [`Goal::Each`].
    fn acknowledged(&mut self, wire: &mut Wire, answer: &Value) -> Result<Option<Received>, Error> {
        let replicas = count(answer)?;
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        pending.acknowledged = replicas;
        let is_enough = !pending.goal.is_each() && replicas >= pending.goal.number();
        Ok(is_enough.then(|| self.deliver(wire)).flatten())
    }

    /// Returns the answer that was held back.
    fn deliver(&mut self, wire: &mut Wire) -> Option<Received> {
        let of = self.pending.take()?;
        Some(wire.answered(of.number, of.script, of.value))
    }

    /// How far each replica has come.
    fn positions(
        &mut self,
        wire: &mut Wire,
        role: Option<Role>,
    ) -> Result<Option<Received>, Error> {
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        let Some(role) = role else {
            return Err(self.not_replicated(wire, None));
        };
        if let Some(offset) = pending.offset {
            if pending.goal.is_reached(offset, &role) {
                return Ok(self.deliver(wire));
            }
            if pending.goal.is_each() && pending.since.elapsed() < self.replicas_may_take {
                // Asked for more than there are, they all tell how far they are.
                Self::ask_again(wire, u32::MAX, POLL_EVERY);
                return wire.send(wire.until()).map(|()| None);
            }
        }
        if !pending.goal.lacks_one(&role) {
            return Err(self.not_replicated(wire, Some(&role)));
        }
        pending.role = Some(role);
        let copying = Expected::Replicas(AboutReplicas::Copying);
        wire.add(cmd("INFO").arg("replication"), copying);
        wire.send(wire.until()).map(|()| None)
    }

    /// Why one of the replicas isn't connected, where the server lets us know: it may copy the data first.
    fn copying(&mut self, wire: &Wire, info: &Value) -> Result<Option<Received>, Error> {
        let pending = self.pending.as_mut();
        let Some(mut role) = pending.and_then(|pending| pending.role.take()) else {
            return Ok(None);
        };
        if let Value::BulkString(_) | Value::VerbatimString { .. } = info {
            role.note_copying(&lossy_text(info));
        }
        Err(self.not_replicated(wire, Some(&role)))
    }

    /// The error for a call that too few replicas have.
    fn not_replicated(&mut self, wire: &Wire, role: Option<&Role>) -> Error {
        let timeout = self.replicas_may_take;
        let why = self.pending.take().map_or_else(String::new, |pending| {
            let (acknowledged, offset) = (pending.acknowledged, pending.offset);
            pending.goal.in_words(acknowledged, timeout, role, offset)
        });
        let message = format!("Redis at {} hasn't replicated the lock: {why}", wire.server);
        Error::new(ErrorKind::NotReplicated, message)
    }

    /// Whether all replicas that could follow the primary have to have it.
    pub(super) fn needs_all(&self) -> bool {
        self.replication.is_some_and(|of| of.quorum == Quorum::All)
    }
}

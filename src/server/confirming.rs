//! Waiting for replicas: a grant or a renewal is valid only when they have it.
//!
//! redlock asks for the replicas' confirmation together with the call, and holds the answer to the call back until they have
//! confirmed. A release is valid at once. Under `REDLOCK_SYNC=all` redlock checks afterwards whether the release outlives a
//! failover: each replica that could follow the primary must have it.

use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::call::Script;
use super::error::{Error, ErrorKind};
use super::left;
use super::replication::{Goal, Quorum, ReplicaList, Replication, Role};
use super::reply::{count, lossy_text};
use super::wire::{Expected, Received, ReplicaQuery, SentCall, Wire};
use crate::duration::milliseconds;

/// Pause between two requests for the replicas' offsets.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Time for replicas to confirm a release, before redlock searches for the locks again.
pub(super) const FOLLOWED: Duration = Duration::from_millis(250);

/// An answer that is held back until the replicas have confirmed its write.
pub(super) struct Pending {
    answer: Received,
    goal: Goal,
    /// Offset of the primary after the write, in bytes.
    offset: Option<u64>,
    /// Number of replicas that have the write.
    acknowledged: u32,
    /// Offsets of the replicas, if this user may ask for them.
    role: Option<Role>,
    since: Instant,
}

impl Pending {
    pub(super) fn new(answer: Received, goal: Goal) -> Self {
        Self {
            answer,
            goal,
            offset: None,
            acknowledged: 0,
            role: None,
            since: Instant::now(),
        }
    }

    /// Returns true if the replicas have reached the goal.
    fn is_enough(&self) -> bool {
        if self.goal.is_each() {
            let positions = self.offset.zip(self.role.as_ref());
            positions.is_some_and(|(offset, role)| self.goal.is_reached(offset, role))
        } else {
            self.acknowledged >= self.goal.number()
        }
    }
}

/// Tracks which replicas must confirm a write, and which have.
#[derive(Default)]
pub(super) struct Confirming {
    /// The required number of replicas, and their time limit, if writes must be replicated.
    pub(super) replication: Option<Replication>,
    /// The replicas that could follow the primary.
    pub(super) listed: ReplicaList,
    /// Time for the replicas to confirm a write: at most three quarters of the time for the answer.
    pub(super) replicas_may_take: Duration,
    /// The answer that waits for the replicas.
    pub(super) pending: Option<Pending>,
}

impl Confirming {
    /// Returns the replicas that must have a script's write before its answer is valid, if any must.
    pub(super) fn goal_of(&self, script: &Script) -> Option<Goal> {
        let replication = self.replication.filter(|_| script.counts_when_replicated);
        replication.map(|replication| self.listed.goal(replication.quorum))
    }

    /// Adds requests for the replicas' confirmation of the last write, and for their offsets.
    pub(super) fn ask(&mut self, wire: &mut Wire, goal: &Goal, timeout: Duration, until: Instant) {
        if let Goal::Unreachable(_) = goal {
            return;
        }
        // Some of the time is needed for explaining a failure.
        self.replicas_may_take = timeout.min(left(until) * 3 / 4);
        wire.add(&cmd("ROLE"), Expected::Replicas(ReplicaQuery::Written));
        Self::ask_again(wire, goal.number(), self.replicas_may_take);
    }

    fn ask_again(wire: &mut Wire, replicas: u32, within: Duration) {
        let mut wait = cmd("WAIT");
        wait.arg(replicas).arg(milliseconds(within).max(1));
        wire.add(&wait, Expected::Replicas(ReplicaQuery::Acknowledged));
        wire.add(&cmd("ROLE"), Expected::Replicas(ReplicaQuery::Positions));
    }

    /// Handles the answer to a call. If the answer grants or renews a lock, it is valid when the replicas have reached the
    /// goal.
    pub(super) fn answered_call(
        &mut self,
        wire: &mut Wire,
        sent: SentCall,
        value: Value,
    ) -> Result<Option<Received>, Error> {
        let is_ours = match &value {
            Value::Array(fields) => fields.first() == Some(&Value::Int(1)),
            value => matches!(value, Value::Int(1..)),
        };
        let answer = wire.answered(sent.number, Some(sent.call.script), value);
        match sent.goal.filter(|_| is_ours) {
            None => Ok(Some(answer)),
            Some(Goal::Unreachable(why)) => {
                let message = format!("replicas didn't confirm the lock at {}: {why}", wire.server);
                Err(Error::new(ErrorKind::NotReplicated, message))
            }
            Some(goal) => {
                self.pending = Some(Pending::new(answer, goal));
                Ok(None)
            }
        }
    }

    /// Handles an answer about replicas. Returns the answer that was held back, if they have confirmed its write.
    pub(super) fn take_answer(
        &mut self,
        wire: &mut Wire,
        about: &ReplicaQuery,
        answer: &Value,
    ) -> Result<Option<Received>, Error> {
        if let (ReplicaQuery::Acknowledged, Value::ServerError(error)) = (about, answer) {
            return Err(wire.call_error(None, error));
        }
        let Some(mut pending) = self.pending.take() else {
            return Ok(None);
        };
        match about {
            ReplicaQuery::Written => {
                pending.offset = Role::parse(answer).map(|role| role.offset);
            }
            ReplicaQuery::Acknowledged => pending.acknowledged = count(answer)?,
            ReplicaQuery::Positions => {
                pending.role = Role::parse(answer);
                if pending.is_enough() {
                    return Ok(Some(pending.answer));
                }
                self.ask_on(wire, &pending)?;
            }
            ReplicaQuery::Copying => {
                if let Some(role) = &mut pending.role {
                    role.note_copying(&lossy_text(answer));
                }
                return Err(self.not_replicated(wire, &pending));
            }
        }
        self.pending = Some(pending);
        wire.send(wire.until()).map(|()| None)
    }

    /// Requests the positions again while there is time. Afterwards requests the reason for a missing replica: it may still be
    /// copying the data.
    fn ask_on(&self, wire: &mut Wire, pending: &Pending) -> Result<(), Error> {
        let role = pending.role.as_ref();
        let is_known = pending.goal.is_each() && pending.offset.and(role).is_some();
        if is_known && pending.since.elapsed() < self.replicas_may_take {
            // WAIT for more replicas than exist makes the primary request the offset of each.
            Self::ask_again(wire, u32::MAX, POLL_EVERY);
        } else if role.is_some_and(|role| pending.goal.lacks_one(role)) {
            let copying = Expected::Replicas(ReplicaQuery::Copying);
            wire.add(cmd("INFO").arg("replication"), copying);
        } else {
            return Err(self.not_replicated(wire, pending));
        }
        Ok(())
    }

    /// Returns the error for a call that too few replicas have confirmed.
    fn not_replicated(&self, wire: &Wire, pending: &Pending) -> Error {
        let (acknowledged, offset) = (pending.acknowledged, pending.offset);
        let (timeout, role) = (self.replicas_may_take, pending.role.as_ref());
        let why = pending.goal.in_words(acknowledged, timeout, role, offset);
        let message = format!("Redis at {} hasn't replicated the lock: {why}", wire.server);
        Error::new(ErrorKind::NotReplicated, message)
    }

    /// Returns true if all replicas that could follow the primary must confirm each write.
    pub(super) fn needs_all(&self) -> bool {
        self.replication.is_some_and(|of| of.quorum == Quorum::All)
    }
}

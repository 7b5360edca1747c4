//! Waiting for replicas: that a lock is ours counts when they have it.
//!
//! The question whether they have it goes out together with the call, and the answer to the call is held
//! back until that one is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::super::replication::{Goal, Replicas, Replication, Role};
use super::super::scripts::{ACQUIRE, RENEW, Script, count};
use super::super::{Error, ErrorKind};
use super::{Connection, Expected, Received, RequestId};

/// The pause between two looks at how far each replica has come.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The answer to a call that the replicas have to have, too.
pub(super) struct Pending {
    number: RequestId,
    script: &'static Script,
    value: Value,
    goal: Goal,
    /// How far the primary was after it.
    pub(super) offset: Option<u64>,
    since: Instant,
}

impl Connection {
    /// From now on a grant and a renewal count only when these replicas have them.
    pub(in super::super) fn replicate(
        &mut self,
        replication: Replication,
        replicas: Arc<Replicas>,
    ) {
        self.replication = Some((replication, replicas));
    }

    /// Adds to a call of a script the question whether the replicas have what it wrote, where that matters.
    pub(super) fn await_replicas(
        &mut self,
        script: &'static Script,
        bytes: &mut Vec<u8>,
        until: Instant,
    ) {
        let Some(goal) = self.goal_of(script) else {
            return;
        };
        if let Some((replication, _)) = &self.replication {
            // Some of the time is needed for saying what is wrong.
            let left = until.saturating_duration_since(Instant::now());
            self.replicas_may_take = replication.timeout.min(left * 3 / 4);
        }
        if goal.others {
            cmd("ROLE").write_packed_command(bytes);
            self.expected.push_back(Expected::Written);
        }
        self.ask_replicas(goal.number, self.replicas_may_take, bytes);
    }

    pub(super) fn ask_replicas(&mut self, number: u32, within: Duration, bytes: &mut Vec<u8>) {
        let milliseconds = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        cmd("WAIT")
            .arg(number)
            .arg(milliseconds.max(1))
            .write_packed_command(bytes);
        self.expected.push_back(Expected::Acknowledged);
    }

    /// The replicas that have to have what a script wrote, before its answer counts.
    pub(super) fn goal_of(&self, script: &'static Script) -> Option<Goal> {
        let (replication, replicas) = self.replication.as_ref()?;
        let counts = [ACQUIRE.hash, RENEW.hash].contains(&script.hash);
        counts.then(|| replicas.goal(replication.quorum))
    }

    /// The answer to a call: that a lock is ours counts when the replicas have it.
    pub(super) fn answered_call(
        &mut self,
        number: RequestId,
        script: &'static Script,
        value: Value,
    ) -> Option<Received> {
        let is_ours =
            matches!(&value, Value::Array(fields) if fields.first() == Some(&Value::Int(1)));
        match self.goal_of(script).filter(|_| is_ours) {
            None => Some(self.answered(number, Some(script), value)),
            Some(goal) => {
                self.pending = Some(Pending {
                    number,
                    script,
                    value,
                    goal,
                    offset: None,
                    since: Instant::now(),
                });
                None
            }
        }
    }

    /// So many replicas have it.
    pub(super) fn acknowledged(&mut self, answer: &Value) -> Result<Option<Received>, Error> {
        let Some(pending) = self.pending.take() else {
            return Ok(None);
        };
        let replicas = count(answer)?;
        if replicas >= pending.goal.number && !pending.goal.others {
            return Ok(Some(self.answered(
                pending.number,
                Some(pending.script),
                pending.value,
            )));
        }
        self.pending = Some(pending);
        self.expected.push_back(Expected::Positions(replicas));
        let until = self.until();
        self.write(&cmd("ROLE").get_packed_command(), until)?;
        Ok(None)
    }

    /// How far each replica has come, `acknowledged` of which have it.
    pub(super) fn positions(
        &mut self,
        acknowledged: u32,
        role: Option<&Role>,
    ) -> Result<Option<Received>, Error> {
        let Some(pending) = self.pending.take() else {
            return Ok(None);
        };
        let timeout = self.replicas_may_take;
        if let (Some(role), Some(offset)) = (role, pending.offset) {
            if pending.goal.missing(offset, role).is_empty() {
                return Ok(Some(self.answered(
                    pending.number,
                    Some(pending.script),
                    pending.value,
                )));
            }
            if pending.since.elapsed() < timeout {
                // Asked for more than there are, they all tell how far they are.
                let all = u32::try_from(role.replicas.len()).unwrap_or(u32::MAX);
                let mut bytes = Vec::new();
                self.ask_replicas(all.saturating_add(1), LOOK_AGAIN, &mut bytes);
                self.pending = Some(pending);
                let until = self.until();
                self.write(&bytes, until)?;
                return Ok(None);
            }
        }
        let why = pending
            .goal
            .in_words(acknowledged, timeout, role, pending.offset);
        let message = format!("Redis at {} hasn't replicated the lock: {why}", self.server);
        Err(Error::new(ErrorKind::NotReplicated, message))
    }
}

//! Waiting for replicas: that a lock is ours counts when they have it.
//!
//! The question whether they have it goes out together with the call, and the answer to the call is held
//! back until that one is answered. A release counts at once. Whether it outlives a failover is asked for as well: a
//! replica that followed when the connection was opened, and hasn't confirmed it, may be the primary already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::super::call::Script;
use super::super::replication::{Goal, Replicas, Replication, Role};
use super::super::reply::{count, lossy_text};
use super::super::server::Part;
use super::super::{Error, ErrorKind};
use super::{Connection, Expected, Received, RequestId};

/// The pause between two looks at how far each replica has come.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long replicas have to confirm a release, before it is looked whether the locks have moved.
const FOLLOWED: Duration = Duration::from_millis(250);

/// The answer to a call that the replicas have to have, too.
pub(super) struct Pending {
    number: RequestId,
    script: &'static Script,
    value: Value,
    goal: Goal,
    /// How far the primary was after it.
    offset: Option<u64>,
    /// How many replicas have it.
    acknowledged: u32,
    /// How far each of them is, where it is being asked why one isn't connected.
    role: Option<Role>,
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

    /// How long replicas may take, if they have to have something.
    pub fn replicas_timeout(&self) -> Duration {
        let timeout = |(of, _): &(Replication, _)| of.timeout;
        self.replication.as_ref().map(timeout).unwrap_or_default()
    }

    /// Adds to a call of a script the question whether the replicas have what it wrote, where that matters.
    pub(super) fn await_replicas(
        &mut self,
        script: &'static Script,
        bytes: &mut Vec<u8>,
        until: Instant,
    ) {
        let Some(goal) = self.goal_of(script) else {
            if self.asks_followers && self.followers > 0 {
                let milliseconds = FOLLOWED.as_millis().to_string();
                let mut wait = cmd("WAIT");
                wait.arg(self.followers).arg(milliseconds);
                wait.write_packed_command(bytes);
                self.expected.push_back(Expected::Followed);
            }
            return;
        };
        self.goal = Some(goal.clone());
        if let Goal::None(_) = goal {
            return;
        }
        if let Some((replication, _)) = &self.replication {
            // Some of the time is needed for saying what is wrong.
            let left = until.saturating_duration_since(Instant::now());
            self.answer_until = until;
            self.replicas_may_take = replication.timeout.min(left * 3 / 4);
        }
        if goal.is_each() {
            cmd("ROLE").write_packed_command(bytes);
            self.expected.push_back(Expected::Written);
        }
        self.ask_replicas(goal.number(), self.replicas_may_take, bytes);
        if goal.is_each() {
            self.ask_positions(bytes);
        }
    }

    fn ask_positions(&mut self, bytes: &mut Vec<u8>) {
        cmd("ROLE").write_packed_command(bytes);
        self.expected.push_back(Expected::Positions);
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
        script
            .counts_when_replicated
            .then(|| replicas.goal(replication.quorum, self.server.address()))
    }

    /// The answer to a call: that a lock is ours counts when the replicas have it.
    pub(super) fn answered_call(
        &mut self,
        number: RequestId,
        script: &'static Script,
        value: Value,
    ) -> Result<Option<Received>, Error> {
        let is_ours =
            matches!(&value, Value::Array(fields) if fields.first() == Some(&Value::Int(1)));
        // What it was sent with: others may be listed by now.
        let goal = self.goal_of(script).and_then(|_| self.goal.clone());
        match goal.filter(|_| is_ours) {
            None => Ok(Some(self.answered(number, Some(script), value))),
            Some(Goal::None(why)) => {
                let message = format!("the lock doesn't count at {}: {why}", self.server);
                Err(Error::new(ErrorKind::NotReplicated, message))
            }
            Some(goal) => {
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
                Ok(None)
            }
        }
    }

    /// Notes how many replicas follow that may take over, by the answer to `ROLE`.
    pub(super) fn note_followers(&mut self, answer: &Value) {
        if self.server.part() != Part::Only
            && let Some(role) = Role::parse(answer)
        {
            let followers = u32::try_from(role.addresses().len()).unwrap_or(u32::MAX);
            self.followers = self.server.note_followers(followers);
        }
    }

    /// So many replicas have the release.
    pub(super) fn followed(&mut self, answer: &Value) {
        self.followed_by = match answer {
            // It has become a replica meanwhile.
            Value::ServerError(error) if error.code() == "UNBLOCKED" => 0,
            // This user may not ask, or a proxy doesn't know the command.
            Value::ServerError(_) => u32::MAX,
            answer => count(answer).unwrap_or(0),
        };
    }

    /// Whether the release that was answered last outlives a failover, as far as that can be known: all replicas that
    /// there were have it.
    pub fn is_followed(&mut self, within: Duration) -> bool {
        if self.followers == 0 {
            return true;
        }
        let until = Instant::now() + within;
        loop {
            let received = self.next_incoming();
            let is_due = |expected: &Expected| matches!(expected, Expected::Followed);
            let waited = match received {
                Ok(Some(received)) => {
                    self.pass_over(&received);
                    continue;
                }
                Ok(None) if self.expected.iter().any(is_due) => self.wait_for_more(until),
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = waited {
                self.broken = Some(error);
                return false;
            }
        }
        self.followed_by >= self.followers
    }

    /// Notes how far the primary was after the call.
    pub(super) fn written(&mut self, answer: &Value) {
        if let Some(pending) = &mut self.pending {
            pending.offset = Role::parse(answer).map(|role| role.offset);
        }
    }

    /// So many replicas have it.
    pub(super) fn acknowledged(&mut self, answer: &Value) -> Result<Option<Received>, Error> {
        let replicas = count(answer)?;
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        pending.acknowledged = replicas;
        if pending.goal.is_each() {
            return Ok(None);
        }
        if replicas >= pending.goal.number() {
            return Ok(self.counts());
        }
        // To say which of them lag.
        let mut bytes = Vec::new();
        self.ask_positions(&mut bytes);
        let until = self.until();
        self.write(&bytes, until)?;
        Ok(None)
    }

    /// The answer that was held back.
    fn counts(&mut self) -> Option<Received> {
        let Pending {
            number,
            script,
            value,
            ..
        } = self.pending.take()?;
        Some(self.answered(number, Some(script), value))
    }

    /// How far each replica has come.
    pub(super) fn positions(&mut self, role: Option<&Role>) -> Result<Option<Received>, Error> {
        let Some(pending) = &self.pending else {
            return Ok(None);
        };
        let timeout = self.replicas_may_take;
        if let (Some(role), Some(offset)) = (role, pending.offset) {
            if pending.goal.is_reached(offset, role) {
                return Ok(self.counts());
            }
            if pending.goal.is_each() && pending.since.elapsed() < timeout {
                // Asked for more than there are, they all tell how far they are.
                let all = u32::try_from(role.replicas.len()).unwrap_or(u32::MAX);
                let mut bytes = Vec::new();
                self.ask_replicas(all.saturating_add(1), LOOK_AGAIN, &mut bytes);
                self.ask_positions(&mut bytes);
                let until = self.until();
                self.write(&bytes, until)?;
                return Ok(None);
            }
        }
        if let Some(role) = role
            && pending.goal.lacks_one(role)
            && let Some(pending) = &mut self.pending
        {
            pending.role = Some(role.clone());
            self.expected.push_back(Expected::Copying);
            let question = cmd("INFO").arg("replication").get_packed_command();
            let until = self.until();
            self.write(&question, until)?;
            return Ok(None);
        }
        Err(self.not_replicated(role))
    }

    /// Why one of the replicas isn't connected, where the server lets us know: it may copy the data first.
    pub(super) fn copying(&mut self, info: &Value) -> Result<Option<Received>, Error> {
        let pending = self.pending.as_mut();
        let Some(mut role) = pending.and_then(|pending| pending.role.take()) else {
            return Ok(None);
        };
        if let Value::BulkString(_) | Value::VerbatimString { .. } = info {
            role.note_copying(&lossy_text(info));
        }
        Err(self.not_replicated(Some(&role)))
    }

    /// The error for a call that too few replicas have.
    fn not_replicated(&mut self, role: Option<&Role>) -> Error {
        let timeout = self.replicas_may_take;
        let why = self.pending.take().map_or_else(String::new, |pending| {
            let (acknowledged, offset) = (pending.acknowledged, pending.offset);
            pending.goal.in_words(acknowledged, timeout, role, offset)
        });
        let message = format!("Redis at {} hasn't replicated the lock: {why}", self.server);
        Error::new(ErrorKind::NotReplicated, message)
    }
}

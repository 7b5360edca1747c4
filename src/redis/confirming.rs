//! Waiting for replicas: a grant or a renewal is valid only when they have it.
//!
//! The question whether they have it goes out together with the call, and the answer to the call is held
//! back until that one is answered. A release counts at once. Whether it outlives a failover is asked for as well: a
//! replica that followed when the connection was opened, and hasn't confirmed it, may be the primary already.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Value, cmd};

use super::call::Script;
use super::error::{Error, ErrorKind};
use super::left;
use super::replication::{Goal, Quorum, Replicas, Replication, Role};
use super::reply::{count, lossy_text};
use super::server::{Part, Server};
use super::wire::{AboutReplicas, Expected, Received, RequestId, Wire};

/// The pause between two looks at how far each replica has come.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// How long replicas have to confirm a release, before it is looked whether the locks have moved.
const FOLLOWED: Duration = Duration::from_millis(250);

/// The answer to a call that the replicas have to have, too.
struct Pending {
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

/// What the replicas of a connection's server have to have, and have.
#[derive(Default)]
pub(super) struct Confirming {
    /// What has to be replicated before it counts.
    pub(super) replication: Option<(Replication, Arc<Replicas>)>,
    /// What the last call waits for that does so.
    goal: Option<Goal>,
    /// How long the replicas may take for it.
    replicas_may_take: Duration,
    /// Until when that call is to be answered.
    answer_until: Option<Instant>,
    /// An answer that counts when it is.
    pending: Option<Pending>,
    /// How many replicas the server had when it was connected to, where that was asked.
    pub(super) followers: u32,
    /// How many of them are asked whether they have the last release: some may be gone for long.
    pub(super) asked_followers: u32,
    /// They are asked whether they have what is called.
    pub(super) asks_followers: bool,
    /// How many replicas have the last release, as far as they may be asked.
    pub(super) followed_by: u32,
}

impl Confirming {
    /// How long replicas may take, if they have to have something.
    pub(super) fn replicas_timeout(&self) -> Duration {
        let timeout = |(of, _): &(Replication, _)| of.timeout;
        self.replication.as_ref().map(timeout).unwrap_or_default()
    }

    /// Adds to a call of a script the question whether the replicas have what it wrote, where that matters.
    pub(super) fn await_replicas(
        &mut self,
        wire: &mut Wire,
        script: &'static Script,
        bytes: &mut Vec<u8>,
        until: Instant,
    ) {
        match self.replication_of(script) {
            None if self.asks_followers => {
                self.asked_followers = self.followers_to_ask(&wire.server);
                if self.asked_followers > 0 {
                    let about = AboutReplicas::Followed;
                    Self::ask_replicas(wire, self.asked_followers, FOLLOWED, about, bytes);
                }
            }
            None => {}
            Some((replication, replicas)) => {
                let timeout = replication.timeout;
                let goal = replicas.goal(replication.quorum, wire.server.address());
                self.goal = Some(goal.clone());
                if let Goal::None(_) = goal {
                    return;
                }
                // Some of the time is needed for saying what is wrong.
                let within = timeout.min(left(until) * 3 / 4);
                self.answer_until = Some(until);
                self.replicas_may_take = within;
                let (number, about) = (goal.number(), AboutReplicas::Acknowledged);
                if goal.is_each() {
                    Self::ask_role(wire, AboutReplicas::Written, bytes);
                    Self::ask_replicas(wire, number, within, about, bytes);
                    Self::ask_role(wire, AboutReplicas::Positions, bytes);
                } else {
                    Self::ask_replicas(wire, number, within, about, bytes);
                }
            }
        }
        // Some replicas are added to those that there were, and some are gone for good.
        if script.counts_when_replicated && wire.server.part() != Part::Only {
            Self::ask_role(wire, AboutReplicas::Followers, bytes);
        }
    }

    fn note_followers_lately(&mut self, server: &Server, answer: &Value) {
        if let Some(role) = Role::parse(answer) {
            server.note_followers_lately(role.followers(), Instant::now());
            self.followers = self.followers.max(role.followers());
        }
    }

    /// How many replicas are asked whether they have a release: all that there ever were but those that are gone for some
    /// time, and at least as many as may follow the primary where all of these have to have what counts.
    fn followers_to_ask(&self, server: &Server) -> u32 {
        let listed = match &self.replication {
            Some((of, replicas)) if of.quorum == Quorum::All => replicas.listed_number(),
            Some(_) | None => Some(0),
        };
        let settled = server.settled_followers().zip(listed);
        let settled = settled.map(|(settled, listed)| settled.max(listed));
        settled.map_or(self.followers, |settled| settled.min(self.followers))
    }

    fn ask_role(wire: &mut Wire, about: AboutReplicas, bytes: &mut Vec<u8>) {
        wire.add(bytes, &cmd("ROLE"), Expected::Replicas(about));
    }

    fn ask_replicas(
        wire: &mut Wire,
        number: u32,
        within: Duration,
        about: AboutReplicas,
        bytes: &mut Vec<u8>,
    ) {
        let milliseconds = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let mut wait = cmd("WAIT");
        wait.arg(number).arg(milliseconds.max(1));
        wire.add(bytes, &wait, Expected::Replicas(about));
    }

    /// Returns what replicas must have before the answer of a script is valid, if they must have anything.
    pub(super) fn replication_of(&self, script: &Script) -> Option<&(Replication, Arc<Replicas>)> {
        let replication = self.replication.as_ref();
        replication.filter(|_| script.counts_when_replicated)
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
    pub(super) fn note_followers(&mut self, server: &Server, answer: &Value) {
        if server.part() != Part::Only
            && let Some(role) = Role::parse(answer)
        {
            self.followers = server.note_followers(role.followers());
        }
    }

    /// Takes in an answer about replicas. Returns the answer that was held back, if they have it now.
    pub(super) fn take_answer(
        &mut self,
        wire: &mut Wire,
        about: &AboutReplicas,
        answer: &Value,
    ) -> Result<Option<Received>, Error> {
        match (about, answer) {
            (AboutReplicas::Followed, answer) => {
                self.followed_by = match answer {
                    // It has become a replica meanwhile.
                    Value::ServerError(error) if error.code() == "UNBLOCKED" => 0,
                    // This user may not ask, or a proxy doesn't know the command.
                    Value::ServerError(_) => u32::MAX,
                    answer => count(answer).unwrap_or(0),
                };
            }
            (AboutReplicas::Followers, answer) => {
                self.note_followers_lately(&wire.server, answer);
            }
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

    /// So many replicas have it.
    fn acknowledged(&mut self, wire: &mut Wire, answer: &Value) -> Result<Option<Received>, Error> {
        let replicas = count(answer)?;
        let Some(pending) = &mut self.pending else {
            return Ok(None);
        };
        pending.acknowledged = replicas;
        if pending.goal.is_each() {
            return Ok(None);
        }
        if replicas >= pending.goal.number() {
            return Ok(self.counts(wire));
        }
        // To say which of them lag.
        let positions = Expected::Replicas(AboutReplicas::Positions);
        wire.ask(&cmd("ROLE"), positions)?;
        Ok(None)
    }

    /// The answer that was held back.
    fn counts(&mut self, wire: &mut Wire) -> Option<Received> {
        let of = self.pending.take()?;
        Some(wire.answered(of.number, Some(of.script), of.value))
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
                return Ok(self.counts(wire));
            }
            if pending.goal.is_each() && pending.since.elapsed() < self.replicas_may_take {
                // Asked for more than there are, they all tell how far they are.
                let more = u32::try_from(role.replicas.len()).unwrap_or(u32::MAX);
                let (more, about) = (more.saturating_add(1), AboutReplicas::Acknowledged);
                let mut bytes = Vec::new();
                Self::ask_replicas(wire, more, POLL_EVERY, about, &mut bytes);
                Self::ask_role(wire, AboutReplicas::Positions, &mut bytes);
                wire.write(&bytes, wire.until())?;
                return Ok(None);
            }
        }
        if !pending.goal.lacks_one(&role) {
            return Err(self.not_replicated(wire, Some(&role)));
        }
        pending.role = Some(role);
        let copying = Expected::Replicas(AboutReplicas::Copying);
        wire.ask(cmd("INFO").arg("replication"), copying)?;
        Ok(None)
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

    /// Until when the call is to be answered that waits for replicas.
    pub(super) fn answer_until(&self) -> Instant {
        let now = Instant::now();
        self.answer_until.map_or(now, |until| until.max(now))
    }

    /// Whether all replicas that could follow the primary have to have it.
    pub(super) fn needs_all(&self) -> bool {
        matches!(&self.replication, Some((of, _)) if of.quorum == Quorum::All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many replicas are asked whether they have a release, of a server that had so many, in seconds before now.
    fn asked(had: &[(u64, u32)], quorum: Option<Quorum>, listed: &[&str]) -> u32 {
        let server = crate::protocol::fuzz::any_server(Part::Primary);
        let now = Instant::now();
        for (ago, followers) in had {
            let at = now.checked_sub(Duration::from_secs(*ago)).unwrap();
            server.note_followers_lately(*followers, at);
        }
        let replicas = Replicas::default();
        replicas.replace(listed.iter().map(ToString::to_string).collect());
        let timeout = Duration::from_secs(1);
        let replication = quorum.map(|quorum| Replication { quorum, timeout });
        let confirming = Confirming {
            replication: replication.map(|replication| (replication, Arc::new(replicas))),
            followers: 2,
            ..Confirming::default()
        };
        confirming.followers_to_ask(&server)
    }

    #[test]
    fn a_release_waits_for_a_replica_that_left_a_moment_ago_as_it_may_be_promoted() {
        let two = ["a:1", "b:1"];
        for quorum in [None, Some(Quorum::AtLeast(1)), Some(Quorum::All)] {
            assert_eq!(
                asked(&[(9, 2), (6, 2), (1, 1)], quorum, &two),
                2,
                "{quorum:?}"
            );
        }
    }

    #[test]
    fn a_release_waits_for_a_replica_that_left_long_ago_only_where_it_is_listed_for_sync_all() {
        let gone = [(20, 2), (6, 1), (1, 1)];
        for quorum in [None, Some(Quorum::AtLeast(1))] {
            assert_eq!(asked(&gone, quorum, &["a:1", "b:1"]), 1, "{quorum:?}");
        }
        assert_eq!(asked(&gone, Some(Quorum::All), &["a:1"]), 1);
        assert_eq!(asked(&gone, Some(Quorum::All), &["a:1", "b:1"]), 2);
    }
}

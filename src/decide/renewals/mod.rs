//! The lease of all held locks: when to renew or check it, and the meaning of the answers. Pure.
//!
//! Only this module changes the lease; all decisions about the work read it here. At most one task is under
//! way; whatever becomes due meanwhile follows it.

use std::time::Duration;

use crate::clock::Moment;
use crate::decide::lease::{Lease, confirm_timeout, try_timeout};
use crate::decide::wait::Pace;
use crate::protocol::{Error, LeaseState, Loss, Name, Who};

/// A request about the held locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Extend the leases.
    Renew,
    /// Check whether the run still holds the locks.
    Check,
    /// Extend the leases of guards to those of the holds that they guard.
    Follow,
}

/// The server's answer to a task.
#[derive(Clone, Debug)]
pub struct Answer {
    pub task: Task,
    /// Time at which the task was sent.
    pub sent: Moment,
    /// State of each lock that the task was for.
    pub states: Vec<(Name, LeaseState)>,
}

impl Answer {
    /// Returns the rest of the shortest lease among the locks that are still held.
    pub fn shortest(&self) -> Option<Duration> {
        let left = |(_, state): &(_, LeaseState)| match state {
            LeaseState::Held { left, .. } => Some(*left),
            LeaseState::Released | LeaseState::Lost(_) => None,
        };
        self.states.iter().filter_map(left).min()
    }

    /// Returns true if a lock is lost.
    pub fn has_lost(&self) -> bool {
        let mut states = self.states.iter();
        states.any(|(_, state)| matches!(state, LeaseState::Lost(_)))
    }
}

/// Consequence of an answer for the work.
#[derive(Clone, Debug)]
pub enum LockNews {
    /// The lease goes on.
    Held {
        /// Whether a renewal brought this, not only a check.
        is_renewed: bool,
        /// The lease before, if it was over when the task was sent.
        too_late: Option<Lease>,
    },
    /// The run doesn't hold this lock any more.
    Lost {
        name: Name,
        loss: Loss,
        /// The lease of all locks before the loss, unless the run had given up renewing.
        lease: Option<Lease>,
    },
    /// A newer run wants this one to end.
    Cancelled(Name, Box<Who>),
    /// The run whose hold is guarded is over.
    Over(Name),
    /// The job has released this lock.
    Released(Name),
    /// No answer, so the state is unknown.
    Failed(Error),
}

/// Progress of the last task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastTask {
    /// No task was ever started.
    #[default]
    None,
    UnderWay {
        /// A lock was added after the start, so the answer doesn't cover all locks.
        is_partial: bool,
    },
    Ended,
}

/// The lease of all locks of a run, and its next tasks.
#[derive(Clone, Debug, Default)]
pub struct Renewals {
    /// Names of the held locks.
    names: Vec<Name>,
    /// The shortest TTL among the locks.
    ttl: Duration,
    /// The lease, which ends when the first lock's lease does. `None`: no lock is held, or the run has given
    /// up renewing.
    lease: Option<Lease>,
    last_task: LastTask,
    /// Start of the first unanswered task, if the last task has had no answer.
    asks_since: Option<Moment>,
    /// Length of a grant, until the first renewal has confirmed it.
    grant: Option<Duration>,
    /// Time of the next check, because the server has pushed that a lock's key changed.
    check_due: Option<Moment>,
    /// Limit on the rate of checks, however often the keys change.
    checks: Pace,
    /// Another run wants this one to end.
    is_cancelled: bool,
}

impl Renewals {
    /// Returns renewals without a lock.
    pub fn new() -> Self {
        Self {
            ttl: Duration::MAX,
            ..Self::default()
        }
    }

    /// Returns the shortest TTL among the locks.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the lease of all held locks.
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// Returns true if this lock is held.
    pub fn holds(&self, name: &Name) -> bool {
        self.names.contains(name)
    }

    /// Returns true if a task was ever started: from then on the server may push messages.
    pub fn has_started(&self) -> bool {
        self.last_task != LastTask::None
    }

    /// Returns true if a task is under way.
    pub fn is_under_way(&self) -> bool {
        matches!(self.last_task, LastTask::UnderWay { .. })
    }

    /// Returns the time of the first unanswered request, if the server doesn't answer.
    pub fn asks_since(&self) -> Option<Moment> {
        self.asks_since
    }

    /// Adds a lock that is held from now on.
    pub fn add(&mut self, name: Name, lease: Lease) {
        if let LastTask::UnderWay { is_partial } = &mut self.last_task {
            *is_partial = true;
        }
        self.names.push(name);
        self.ttl = self.ttl.min(lease.ttl());
        self.lease = Some(self.lease.map_or(lease, |all| all.merged_with(lease)));
    }

    /// Records that the locks are held for this long, until the first renewal has confirmed the grant.
    pub fn add_grant(&mut self, lasting: Duration) {
        self.grant = Some(lasting);
    }

    /// Makes the next renewal due at this moment.
    pub fn renew_now(&mut self, now: Moment) {
        if let Some(lease) = &mut self.lease {
            lease.renew_now(now);
        }
    }

    /// Stops all renewals.
    pub fn give_up(&mut self) {
        self.lease = None;
    }

    /// Returns true if a renewal must start now. A task that is under way must end first.
    pub fn renewal_is_due(&self, now: Moment) -> bool {
        let renew_at = self.lease.map(|lease| lease.renew_at());
        !self.is_under_way() && renew_at.is_some_and(|at| now >= at)
    }

    /// Plans a check, because the server has pushed that a lock's key changed.
    pub fn on_key_changed(&mut self, now: Moment) {
        if self.check_due.is_none() {
            self.check_due = Some(self.checks.ask_at(now));
        }
    }

    /// Returns when the next task is due; `None` while one is under way.
    pub fn due(&self) -> Option<Moment> {
        let renew_at = self.lease.map(|lease| lease.renew_at());
        let due = renew_at.into_iter().chain(self.check_due).min();
        due.filter(|_| !self.is_under_way())
    }

    /// Returns true if a check is due, and takes it as started. A renewal comes first.
    pub fn take_check(&mut self, now: Moment) -> bool {
        let is_first = !self.is_under_way() && !self.renewal_is_due(now);
        is_first && self.check_due.take_if(|at| now >= *at).is_some()
    }

    /// Starts a task for all held locks. Returns how long each answer may take.
    pub fn start(&mut self, now: Moment) -> Duration {
        self.last_task = LastTask::UnderWay { is_partial: false };
        self.asks_since.get_or_insert(now);
        match self.grant {
            Some(grant) => confirm_timeout(grant, self.ttl),
            None => try_timeout(self.ttl),
        }
    }

    /// Ends a task with its answers. Returns their consequences, in the order in which they must be handled.
    pub fn end(&mut self, answers: Vec<Result<Answer, Error>>, now: Moment) -> Vec<LockNews> {
        let is_partial = self.last_task == LastTask::UnderWay { is_partial: true };
        self.last_task = LastTask::Ended;
        let mut news = Vec::new();
        for answer in answers {
            match answer {
                Ok(answer) => self.learn(answer, is_partial, now, &mut news),
                Err(error) => news.push(self.fail(error, now)),
            }
        }
        news
    }

    /// Records that the server, or the connection to it, has failed.
    pub fn fail(&mut self, error: Error, now: Moment) -> LockNews {
        if let Some(lease) = &mut self.lease {
            lease.renewal_failed(now);
        }
        LockNews::Failed(error)
    }

    fn learn(&mut self, answer: Answer, is_partial: bool, now: Moment, news: &mut Vec<LockNews>) {
        self.asks_since = None;
        let left = answer.shortest();
        let Answer { task, sent, states } = answer;
        let is_lost = |(_, state): &(_, LeaseState)| matches!(state, LeaseState::Lost(_));
        let (lost, others): (Vec<_>, Vec<_>) = states.into_iter().partition(is_lost);
        // A loss comes first, so that the answer about the other locks can't save a lease that was over
        // before. All other news comes after the lease, because it doesn't end a good lease.
        for lock in lost {
            news.extend(self.learn_of(lock, task, now));
        }
        let is_over = |(_, state): &(_, LeaseState)| matches!(state, LeaseState::Released);
        // Work that guards several holds ends with the first of them, so the others must not extend its
        // lease.
        let is_over = task == Task::Follow && others.iter().any(is_over);
        news.extend(
            left.filter(|_| !is_partial && !is_over)
                .and_then(|left| self.extend(task, sent, left)),
        );
        if is_partial && task == Task::Renew {
            self.renew_now(now);
        }
        for lock in others {
            news.extend(self.learn_of(lock, task, now));
        }
    }

    /// Extends the lease by an answer about all held locks.
    fn extend(&mut self, task: Task, sent: Moment, left: Duration) -> Option<LockNews> {
        let lease = self.lease.as_mut()?;
        let before = *lease;
        match task {
            // A renewal lasts for the TTL, whatever number the answer contains.
            Task::Renew => lease.renewed(sent),
            Task::Check => lease.confirmed(sent, left),
            Task::Follow => lease.followed(sent, left),
        }
        let is_renewed = task != Task::Check;
        if is_renewed {
            self.grant = None;
        }
        Some(LockNews::Held {
            is_renewed,
            too_late: (sent >= before.deadline()).then_some(before),
        })
    }

    fn learn_of(&mut self, lock: (Name, LeaseState), task: Task, now: Moment) -> Option<LockNews> {
        let (name, state) = lock;
        // The job may have released the lock before another client took it.
        if !self.holds(&name) {
            return None;
        }
        match state {
            LeaseState::Held { cancelled_by, .. } => {
                let by = cancelled_by?;
                // The renewal shows other clients that this run has seen the request.
                if !std::mem::replace(&mut self.is_cancelled, true) {
                    self.renew_now(now);
                }
                Some(LockNews::Cancelled(name, by))
            }
            // A guard gets this answer again until the work has ended.
            LeaseState::Released if task == Task::Follow => {
                if let Some(lease) = &mut self.lease {
                    lease.renewal_failed(now);
                }
                Some(LockNews::Over(name))
            }
            LeaseState::Released => {
                self.forget(&name);
                Some(LockNews::Released(name))
            }
            LeaseState::Lost(loss) => {
                let lease = self.lease;
                self.forget(&name);
                Some(LockNews::Lost { name, loss, lease })
            }
        }
    }

    fn forget(&mut self, name: &Name) {
        self.names.retain(|held| held != name);
        if self.names.is_empty() {
            self.lease = None;
        }
    }
}

#[cfg(test)]
mod tests;

//! The lease of all that a run holds, which renewals and checks are done for it when, and what their answers mean. Pure.
//!
//! This is the one owner of the lease: whoever decides about the work reads it here. One task is under way at a time; what
//! becomes due meanwhile follows it.

use std::time::Duration;

use crate::clock::Moment;
use crate::decide::lease::{Lease, confirm_timeout, try_timeout};
use crate::decide::wait::Pace;
use crate::protocol::{Error, LeaseState, Loss, Name, Who};

/// A question about locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Extend the leases.
    Renew,
    /// Check whether the locks are still ours.
    Check,
    /// Extend the leases of guards to those of the holds that they guard.
    Follow,
}

/// The server's answer to a task.
#[derive(Clone, Debug)]
pub struct Answer {
    pub task: Task,
    /// When the task was sent.
    pub sent: Moment,
    /// The state of each lock that the task was for.
    pub states: Vec<(Name, LeaseState)>,
}

impl Answer {
    /// Returns the end of the first lease among those that are still ours.
    pub fn shortest(&self) -> Option<Duration> {
        let left = |(_, state): &(_, LeaseState)| match state {
            LeaseState::Held { left, .. } => Some(*left),
            LeaseState::Released | LeaseState::Lost(_) => None,
        };
        self.states.iter().filter_map(left).min()
    }

    /// Whether one of the locks is lost.
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
        /// By a renewal, and not by a mere check.
        is_renewed: bool,
        /// The lease before, if it was over when the task was sent.
        too_late: Option<Lease>,
    },
    /// This lock is not ours any more.
    Lost {
        name: Name,
        loss: Loss,
        /// The lease of all that was held, unless it was given up before.
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

/// The last task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastTask {
    /// No task was ever started.
    #[default]
    None,
    UnderWay {
        /// A lock was added since the start: the answer isn't about all.
        is_partial: bool,
    },
    Ended,
}

/// The lease of all locks of a run, and what is to be done about it.
#[derive(Clone, Debug, Default)]
pub struct Renewals {
    /// Names of the locks that are held.
    names: Vec<Name>,
    /// The shortest length of a lease by a renewal.
    ttl: Duration,
    /// The lease, which ends when the first lock's lease does. `None`: no lock is held, or all are given up.
    lease: Option<Lease>,
    last_task: LastTask,
    /// When the first task was started that had no answer, if the last one hasn't had one.
    asks_since: Option<Moment>,
    /// How long a granted lock is ours, until the first renewal has confirmed it.
    grant: Option<Duration>,
    /// When to check whether all is still ours, as the server has pushed that one of our keys changed.
    check_due: Option<Moment>,
    /// The minimum time between two checks, however often the keys change.
    checks: Pace,
    /// Another run wants this one to end.
    is_cancelled: bool,
}

impl Renewals {
    /// Nothing is held yet.
    pub fn new() -> Self {
        Self {
            ttl: Duration::MAX,
            ..Self::default()
        }
    }

    /// The length of each lease by a renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The lease of all that is held.
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// Whether this lock is held.
    pub fn holds(&self, name: &Name) -> bool {
        self.names.contains(name)
    }

    /// Whether a task was ever started: from then on the server may push something.
    pub fn has_started(&self) -> bool {
        self.last_task != LastTask::None
    }

    /// Whether a task is under way.
    pub fn is_under_way(&self) -> bool {
        matches!(self.last_task, LastTask::UnderWay { .. })
    }

    /// Since when the server has been asked in vain, if that is so.
    pub fn asks_since(&self) -> Option<Moment> {
        self.asks_since
    }

    /// A lock is held from now on, too.
    pub fn add(&mut self, name: Name, lease: Lease) {
        if let LastTask::UnderWay { is_partial } = &mut self.last_task {
            *is_partial = true;
        }
        self.names.push(name);
        self.ttl = self.ttl.min(lease.ttl());
        self.lease = Some(self.lease.map_or(lease, |all| all.merged_with(lease)));
    }

    /// What is held is good for this long, until the first renewal has confirmed it.
    pub fn add_grant(&mut self, lasting: Duration) {
        self.grant = Some(lasting);
    }

    /// The next renewal is due at this moment.
    pub fn renew_now(&mut self, now: Moment) {
        if let Some(lease) = &mut self.lease {
            lease.renew_now(now);
        }
    }

    /// Nothing is renewed from now on.
    pub fn give_up(&mut self) {
        self.lease = None;
    }

    /// Whether a renewal is to be started now. It comes behind a task that is under way.
    pub fn renewal_is_due(&self, now: Moment) -> bool {
        let renew_at = self.lease.map(|lease| lease.renew_at());
        !self.is_under_way() && renew_at.is_some_and(|at| now >= at)
    }

    /// The server has pushed that one of our keys changed.
    pub fn on_key_changed(&mut self, now: Moment) {
        if self.check_due.is_none() {
            self.check_due = Some(self.checks.ask_at(now));
        }
    }

    /// When the next task is due; a task that is under way has to end first.
    pub fn due(&self) -> Option<Moment> {
        let renew_at = self.lease.map(|lease| lease.renew_at());
        let due = renew_at.into_iter().chain(self.check_due).min();
        due.filter(|_| !self.is_under_way())
    }

    /// Returns true if a check is due, which counts as started then. A renewal comes first.
    pub fn take_check(&mut self, now: Moment) -> bool {
        let is_first = !self.is_under_way() && !self.renewal_is_due(now);
        is_first && self.check_due.take_if(|at| now >= *at).is_some()
    }

    /// Starts a task for all that is held. Returns how long each answer may take.
    pub fn start(&mut self, now: Moment) -> Duration {
        self.last_task = LastTask::UnderWay { is_partial: false };
        self.asks_since.get_or_insert(now);
        match self.grant {
            Some(grant) => confirm_timeout(grant, self.ttl),
            None => try_timeout(self.ttl),
        }
    }

    /// Ends a task with its answers. Returns what they mean, in the order in which it is to be decided about.
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

    /// Takes in that the server, or the connection to it, has failed.
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
        // A loss comes first: the answer about the others makes no lease longer that was over before. All else comes behind
        // the lease: it doesn't end a lease that is good.
        for lock in lost {
            news.extend(self.learn_of(lock, task, now));
        }
        let is_over = |(_, state): &(_, LeaseState)| matches!(state, LeaseState::Released);
        // Work that guards several holds ends with the first of them, and the others make it live no longer.
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

    /// Extends the lease by an answer about all that is held.
    fn extend(&mut self, task: Task, sent: Moment, left: Duration) -> Option<LockNews> {
        let lease = self.lease.as_mut()?;
        let before = *lease;
        match task {
            // A renewal lasts for the TTL, whatever number came back.
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
        // The job may have released it before another client took it.
        if !self.holds(&name) {
            return None;
        }
        match state {
            LeaseState::Held { cancelled_by, .. } => {
                let by = cancelled_by?;
                // Others see by a renewal that this run has seen the request.
                if !std::mem::replace(&mut self.is_cancelled, true) {
                    self.renew_now(now);
                }
                Some(LockNews::Cancelled(name, by))
            }
            // A guard learns this each time until the work has ended.
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

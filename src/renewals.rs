//! Which renewals and checks of what is held are done when, and what their answers mean for the lease of all. Pure.
//!
//! One task is under way at a time; what becomes due meanwhile follows it.

use std::time::Duration;

use crate::clock::Moment;
use crate::lease::{LeaseEvent, confirm_timeout, try_timeout};
use crate::lock::{Claim, Error, LeaseState, Loss, Name, Who};
use crate::wait::Pace;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Extend the leases.
    Renew,
    /// Check whether the locks are still ours.
    Check,
    /// Replace the connection, as its password may soon be over, and check over the new one.
    Reconnect,
}

/// A result of a task.
#[derive(Debug)]
pub enum Report {
    /// The leases of all that are still ours are extended; the request was sent at this moment.
    Renewed(Moment),
    /// A renewal has ended, and lengthens the lease of all no further: it wasn't for what is held since then, or all
    /// that it was for has been released.
    RenewedInPart,
    /// By a check at this moment, all that are still ours are so for this much longer.
    Confirmed(Moment, Duration),
    /// A newer run wants this one to end.
    Cancelled(Name, Box<Who>),
    /// This lock is not ours any more.
    Lost(Name, Loss),
    /// Our job has released this lock.
    Released(Name),
    /// No answer, so the state is unknown.
    Failed(Error),
}

impl Report {
    /// What it means for the lease of all.
    pub fn lease_event(&self) -> LeaseEvent {
        match self {
            Self::Renewed(sent) => LeaseEvent::Renewed(*sent),
            Self::RenewedInPart => LeaseEvent::RenewedInPart,
            Self::Confirmed(sent, left) => LeaseEvent::Confirmed(*sent, *left),
            Self::Cancelled(..) => LeaseEvent::Cancelled,
            Self::Lost(..) => LeaseEvent::Lost,
            Self::Released(_) => LeaseEvent::Released,
            Self::Failed(_) => LeaseEvent::RenewalFailed,
        }
    }

    /// What it says of all that is held, where the task wasn't for all of it.
    fn in_part(self) -> Option<Self> {
        match self {
            Self::Renewed(_) => Some(Self::RenewedInPart),
            Self::Confirmed(..) => None,
            of_one => Some(of_one),
        }
    }
}

/// What a renewal of these claims, sent at this moment, has found. It gives what was asked for, whatever number came
/// back; that the work has extended the lease beyond that is what a check finds.
pub fn of_renewal(claims: &[Claim], states: Vec<LeaseState>, sent: Moment) -> Vec<Report> {
    let renewed = shortest(&states).map(|_| Report::Renewed(sent));
    let all_released = states
        .iter()
        .all(|state| matches!(state, LeaseState::Released));
    let ended = all_released.then_some(Report::RenewedInPart);
    let found = in_order(renewed, of_each(claims, states));
    found.chain(ended).collect()
}

/// What a check of these claims, sent at this moment, has found.
pub fn of_check(claims: &[Claim], states: Vec<LeaseState>, sent: Moment) -> Vec<Report> {
    let confirmed = shortest(&states).map(|left| Report::Confirmed(sent, left));
    in_order(confirmed, of_each(claims, states)).collect()
}

/// The end of the first lease among those that are still ours.
pub fn shortest(states: &[LeaseState]) -> Option<Duration> {
    let left = |state: &LeaseState| match state {
        LeaseState::Held { left, .. } => Some(*left),
        LeaseState::Released | LeaseState::Lost(_) => None,
    };
    states.iter().filter_map(left).min()
}

/// What is lost comes first: what was learned of the others makes no lease longer that was over before. All else comes
/// behind that: it doesn't end a lease that is good.
fn in_order(lease: Option<Report>, each: Vec<Report>) -> impl Iterator<Item = Report> {
    let is_lost = |report: &Report| matches!(report, Report::Lost(..));
    let (lost, others): (Vec<_>, Vec<_>) = each.into_iter().partition(is_lost);
    lost.into_iter().chain(lease).chain(others)
}

/// What there is to report of each claim.
fn of_each(claims: &[Claim], states: Vec<LeaseState>) -> Vec<Report> {
    let each = claims.iter().zip(states);
    each.filter_map(|(claim, state)| {
        let name = claim.lock().name().clone();
        match state {
            LeaseState::Held { cancelled_by, .. } => Some(Report::Cancelled(name, cancelled_by?)),
            LeaseState::Released => Some(Report::Released(name)),
            LeaseState::Lost(loss) => Some(Report::Lost(name, loss)),
        }
    })
    .collect()
}

/// What is to be done about the leases of all locks of a run.
#[derive(Clone, Debug)]
pub struct Renewals {
    /// The length of each lease by a renewal.
    ttl: Duration,
    /// A lock was added since the task that is under way was started: what comes of that isn't about all.
    task_is_partial: bool,
    /// How long a granted lock is ours, until the first renewal has confirmed it.
    grant: Option<Duration>,
    /// When to check whether all is still ours, as the server has pushed that one of our keys changed.
    check_due: Option<Moment>,
    /// A renewal is due since before the task that is under way has ended.
    renewal_waits: bool,
    /// The connection's password may soon be over, and the lease was just renewed: there is time for it.
    reconnect_due: bool,
    /// The minimum time between two checks, however often the keys change.
    checks: Pace,
}

impl Renewals {
    /// Nothing is held yet; the leases will be of this length.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            task_is_partial: false,
            grant: None,
            check_due: None,
            renewal_waits: false,
            reconnect_due: false,
            checks: Pace::default(),
        }
    }

    /// A lock is held from now on, too.
    pub fn add(&mut self, is_busy: bool) {
        self.task_is_partial |= is_busy;
    }

    /// What is held is good for this long, until the first renewal has confirmed it.
    pub fn add_grant(&mut self, lasting: Duration) {
        self.grant = Some(lasting);
    }

    /// A renewal is due: whether to start it now. It comes behind a task that is under way: a renewal that was forgotten
    /// would be the last one.
    pub fn renew(&mut self, is_busy: bool) -> bool {
        self.renewal_waits = is_busy;
        !is_busy
    }

    /// The server has pushed that one of our keys changed.
    pub fn on_key_changed(&mut self, now: Moment) {
        if self.check_due.is_none() {
            self.check_due = Some(self.checks.ask_at(now));
        }
    }

    /// The server has closed the connection: whether to renew over another one at once, which isn't done again and again.
    pub fn may_ask_at_once(&mut self, now: Moment) -> bool {
        self.checks.ask_at(now) <= now
    }

    /// When the next task is due; a task that is under way has to end first.
    pub fn due(&self, is_busy: bool) -> Option<Moment> {
        self.check_due.filter(|_| !is_busy)
    }

    /// What to do next, while no task is under way.
    pub fn next_task(&mut self, now: Moment) -> Option<Task> {
        if std::mem::take(&mut self.renewal_waits) {
            Some(Task::Renew)
        } else if std::mem::take(&mut self.reconnect_due) {
            Some(Task::Reconnect)
        } else if self.check_due.is_some_and(|at| now >= at) {
            self.check_due = None;
            Some(Task::Check)
        } else {
            None
        }
    }

    /// A task is started, for all that is held; how long each answer may take.
    pub fn start(&mut self) -> Duration {
        self.task_is_partial = false;
        match self.grant {
            Some(grant) => confirm_timeout(grant, self.ttl),
            None => try_timeout(self.ttl),
        }
    }

    /// A task has ended: what it has found, of all that is held by now.
    pub fn end(&mut self, found: Vec<Report>, wants_new_password: bool) -> Vec<Report> {
        let is_renewal = |report: &Report| matches!(report, Report::Renewed(_));
        self.reconnect_due = wants_new_password && found.iter().any(is_renewal);
        let reports: Vec<Report> = if self.task_is_partial {
            found.into_iter().filter_map(Report::in_part).collect()
        } else {
            found
        };
        if reports.iter().any(is_renewal) {
            self.grant = None;
        }
        reports
    }
}

#[cfg(test)]
mod tests;

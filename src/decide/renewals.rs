//! The lease of all that a run holds, which renewals and checks are done for it when, and what their answers mean. Pure.
//!
//! This is the one owner of the lease: whoever decides about the work reads it here. One task is under way at a time; what
//! becomes due meanwhile follows it.

use std::time::Duration;

use crate::clock::Moment;
use crate::decide::lease::{Lease, LeaseEvent, confirm_timeout, try_timeout};
use crate::decide::wait::Pace;
use crate::protocol::{Claim, Error, Guard, LeaseState, Loss, Name, Who};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Extend the leases.
    Renew,
    /// Check whether the locks are still ours.
    Check,
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
    /// The holds that we guard last for this much longer, asked at this moment.
    Followed(Moment, Duration),
    /// The run whose hold we guard is over.
    Over(Name),
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
    /// What it says of all that is held, where the task wasn't for all of it.
    fn in_part(self) -> Option<Self> {
        match self {
            Self::Renewed(_) => Some(Self::RenewedInPart),
            Self::Confirmed(..) | Self::Followed(..) => None,
            of_one => Some(of_one),
        }
    }
}

/// What a renewal of these claims, sent at this moment, has found. It gives what was asked for, whatever number came
/// back; that the work has extended the lease beyond that is what a check finds.
pub fn reports_of_renewal(claims: &[Claim], states: Vec<LeaseState>, sent: Moment) -> Vec<Report> {
    let renewed = shortest(&states).map(|_| Report::Renewed(sent));
    let all_released = states
        .iter()
        .all(|state| matches!(state, LeaseState::Released));
    let ended = all_released.then_some(Report::RenewedInPart);
    let found = in_order(renewed, of_each(claims, states));
    found.chain(ended).collect()
}

/// What a check of these claims, sent at this moment, has found.
pub fn reports_of_check(claims: &[Claim], states: Vec<LeaseState>, sent: Moment) -> Vec<Report> {
    let confirmed = shortest(&states).map(|left| Report::Confirmed(sent, left));
    in_order(confirmed, of_each(claims, states)).collect()
}

/// What guards of these holds have found, asked at this moment.
pub fn reports_of_guards(guards: &[Guard], states: Vec<LeaseState>, sent: Moment) -> Vec<Report> {
    // What is over for one of them ends the work, which lives no longer by what the others say.
    let is_over = |state: &LeaseState| matches!(state, LeaseState::Released);
    let left = shortest(&states).filter(|_| !states.iter().any(is_over));
    let followed = left.map(|left| Report::Followed(sent, left));
    let claims: Vec<Claim> = guards.iter().map(|guard| guard.claim().clone()).collect();
    let each = of_each(&claims, states)
        .into_iter()
        .map(|report| match report {
            Report::Released(name) => Report::Over(name),
            report => report,
        });
    in_order(followed, each.collect()).collect()
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

/// The lease of all locks of a run, and what is to be done about it.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Renewals {
    /// The length of each lease by a renewal.
    ttl: Duration,
    /// It ends when the first lock's lease does. `None`: nothing is held, or what was held is lost.
    lease: Option<Lease>,
    /// A task was ever started: the server may push something from then on.
    has_started: bool,
    /// A task was started, and has not ended yet.
    is_under_way: bool,
    /// A lock was added since the task that is under way was started: what comes of that isn't about all.
    task_is_partial: bool,
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
    /// Nothing is held yet; the leases will be of this length.
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            lease: None,
            has_started: false,
            is_under_way: false,
            task_is_partial: false,
            grant: None,
            check_due: None,
            checks: Pace::default(),
            is_cancelled: false,
        }
    }

    /// The leases are of this length by each renewal.
    pub fn be_of(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    /// The lease of all that is held.
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// Whether a task was ever started.
    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// Whether a task is under way.
    pub fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// A lock is held from now on, too.
    pub fn add(&mut self, lease: Lease) {
        self.task_is_partial |= self.is_under_way;
        self.lease = Some(self.lease.map_or(lease, |all| all.merged_with(lease)));
    }

    /// What is held is good for this long, until the first renewal has confirmed it.
    pub fn add_grant(&mut self, lasting: Duration) {
        self.grant = Some(lasting);
    }

    /// A lock is lost, and others are still held: this is the lease of those.
    pub fn keep(&mut self, lease: Lease) {
        self.lease = Some(lease);
    }

    /// The next renewal is due at this moment.
    pub fn renew_now(&mut self, now: Moment) {
        if let Some(lease) = &mut self.lease {
            lease.renew_now(now);
        }
    }

    /// Nothing is renewed from now on.
    pub fn forget_lease(&mut self) {
        self.lease = None;
    }

    /// Takes in what a task has found; what there is to decide about it. `now` is when that is looked at.
    pub fn learn(&mut self, report: &Report, now: Moment) -> Option<LeaseEvent> {
        let before = self.lease;
        if let Some(lease) = &mut self.lease {
            match report {
                Report::Renewed(sent) => lease.renewed(*sent),
                Report::RenewedInPart => lease.renew_now(now),
                Report::Confirmed(sent, left) => lease.confirmed(*sent, *left),
                Report::Followed(sent, left) => lease.followed(*sent, *left),
                // That it is over is learned each time until the work has ended.
                Report::Failed(_) | Report::Over(_) => lease.renewal_failed(now),
                Report::Lost(..) => self.lease = None,
                // Others see by a renewal that this run has seen the request.
                Report::Cancelled(..) if !self.is_cancelled => {
                    self.is_cancelled = true;
                    lease.renew_now(now);
                }
                Report::Cancelled(..) | Report::Released(_) => {}
            }
        }
        match (report, before) {
            (
                Report::Renewed(sent) | Report::Confirmed(sent, _) | Report::Followed(sent, _),
                Some(lease),
            ) => (*sent >= lease.deadline()).then_some(LeaseEvent::TooLate(lease)),
            (Report::Lost(..), Some(lease)) => Some(LeaseEvent::Lost(lease)),
            (Report::Cancelled(..) | Report::Over(_), _) => Some(LeaseEvent::Cancelled),
            (Report::Released(_), _) => Some(LeaseEvent::Released),
            (
                Report::Renewed(_)
                | Report::Confirmed(..)
                | Report::Followed(..)
                | Report::Lost(..),
                None,
            )
            | (Report::RenewedInPart | Report::Failed(_), _) => None,
        }
    }

    /// Whether a renewal is to be started now. It comes behind a task that is under way.
    pub fn renewal_is_due(&self, now: Moment) -> bool {
        let renew_at = self.lease.map(|lease| lease.renew_at());
        !self.is_under_way && renew_at.is_some_and(|at| now >= at)
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
        due.filter(|_| !self.is_under_way)
    }

    /// Returns true if a check is due, which counts as started then. A renewal comes first.
    pub fn take_check(&mut self, now: Moment) -> bool {
        let is_first = !self.is_under_way && !self.renewal_is_due(now);
        is_first && self.check_due.take_if(|at| now >= *at).is_some()
    }

    /// A task is started, for all that is held; how long each answer may take.
    pub fn start(&mut self) -> Duration {
        self.has_started = true;
        self.is_under_way = true;
        self.task_is_partial = false;
        match self.grant {
            Some(grant) => confirm_timeout(grant, self.ttl),
            None => try_timeout(self.ttl),
        }
    }

    /// A task has ended: what it has found, of all that is held by now.
    pub fn end(&mut self, found: Vec<Report>) -> Vec<Report> {
        self.is_under_way = false;
        let renewal = |report: &Report| match report {
            Report::Renewed(sent) | Report::Followed(sent, _) => Some(*sent),
            _ => None,
        };
        let reports: Vec<Report> = if self.task_is_partial {
            found.into_iter().filter_map(Report::in_part).collect()
        } else {
            found
        };
        if reports.iter().find_map(renewal).is_some() {
            self.grant = None;
        }
        reports
    }
}

#[cfg(test)]
mod tests;

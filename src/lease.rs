//! Deadlines of a lock we hold. Pure: every moment comes in as an argument.
//!
//! A lease is counted from just *before* the request that got or renewed it was sent, so it ends
//! here before it can end at the server. What two clocks may drift apart within one TTL is taken
//! off (1 % of the TTL and 2 ms, as in the Redlock algorithm).

use std::time::Duration;

use crate::clock::Moment;

/// The time we may count on, and when to do what about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    ttl: Duration,
    grace: Duration,
    valid_from: Moment,
    renew_at: Moment,
    renewing: bool,
}

/// The first renewal comes soon: with it the server begins to tell us when the lock is taken away.
/// A job that is shorter than this doesn't pay for it, and who takes a lock away is noticed within
/// a tenth of a second in any case.
const FIRST_RENEWAL: Duration = Duration::from_millis(50);

impl Lease {
    /// A lease of `ttl` by a request sent at `sent`. `kill_after` is the time COMMAND has between
    /// SIGTERM and SIGKILL; never more than half the TTL is used of it.
    pub fn new(sent: Moment, ttl: Duration, kill_after: Duration) -> Self {
        Self {
            ttl,
            grace: kill_after.min(ttl / 2),
            valid_from: sent,
            renew_at: sent + (ttl / 3).min(FIRST_RENEWAL),
            renewing: false,
        }
    }

    /// From here on somebody else may hold the lock: COMMAND must be dead.
    pub fn deadline(&self) -> Moment {
        let drift = self.ttl / 100 + Duration::from_millis(2);
        self.valid_from + self.ttl.saturating_sub(drift)
    }

    /// When to ask COMMAND to stop, so that its grace ends at the deadline.
    pub fn stop_at(&self) -> Moment {
        self.deadline().before(self.grace)
    }

    /// When the next renewal is due; `None` while one is under way.
    pub fn renew_at(&self) -> Option<Moment> {
        (!self.renewing).then_some(self.renew_at)
    }

    /// Whether to renew now; if so, it is taken to be under way until its result is told.
    pub fn renew_now(&mut self, now: Moment) -> bool {
        let due = !self.renewing && now >= self.renew_at;
        self.renewing |= due;
        due
    }

    /// The time between SIGTERM and SIGKILL.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// A renewal sent at `sent` succeeded. The next is due a third of the TTL after this one was
    /// *due*, not after it was done: a slow server doesn't make the schedule drift.
    pub fn renewed(&mut self, sent: Moment) {
        self.renewing = false;
        self.valid_from = self.valid_from.max(sent);
        let step = self.ttl / 3;
        self.renew_at = (self.renew_at + step).max(sent);
        if self.renew_at > sent + step {
            self.renew_at = sent + step;
        }
    }

    /// A renewal failed at `now`: when to try again.
    pub fn retry(&mut self, now: Moment) {
        self.renewing = false;
        self.renew_at = now + retry_pause(self.ttl);
    }
}

/// The pause between two tries of a failing renewal: short against the TTL, at most a second.
fn retry_pause(ttl: Duration) -> Duration {
    (ttl / 20).min(Duration::from_secs(1))
}

/// How long one try of a renewal may take. At most three seconds, so that the end of a run never
/// waits longer than that for a renewer stuck in a dead connection.
pub fn try_timeout(ttl: Duration) -> Duration {
    (ttl / 10).min(Duration::from_secs(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Moment = Moment::at(Duration::from_secs(1000));

    fn lease(ttl: u64, kill_after: u64) -> Lease {
        Lease::new(
            START,
            SECOND * u32::try_from(ttl).unwrap(),
            SECOND * u32::try_from(kill_after).unwrap(),
        )
    }

    #[test]
    fn the_deadline_is_counted_from_before_sending_and_less_than_the_ttl() {
        let lease = lease(30, 5);
        assert_eq!(
            lease.deadline().since(START),
            Duration::from_millis(30_000 - 302)
        );
        assert_eq!(
            lease.stop_at().since(START),
            Duration::from_millis(25_000 - 302)
        );
        assert_eq!(lease.renew_at(), Some(START + FIRST_RENEWAL));
    }

    #[test]
    fn the_grace_is_never_more_than_half_the_ttl() {
        assert_eq!(lease(4, 5).grace(), Duration::from_secs(2));
        assert_eq!(lease(30, 5).grace(), Duration::from_secs(5));
    }

    #[test]
    fn renewals_keep_their_schedule_and_a_late_one_is_not_made_up_for() {
        let mut lease = lease(30, 5);
        let first = START + FIRST_RENEWAL;
        assert!(lease.renew_now(first));
        assert!(!lease.renew_now(first), "one is under way");
        assert_eq!(lease.renew_at(), None);
        lease.renewed(first + SECOND / 10);
        assert_eq!(lease.renew_at(), Some(first + SECOND * 10));
        lease.renewed(START + SECOND * 50);
        let next = lease.renew_at().unwrap();
        assert!(next >= START + SECOND * 50);
        assert!(next <= START + SECOND * 60);
    }

    #[test]
    fn an_answer_that_comes_late_never_shortens_the_lease() {
        let mut lease = lease(30, 5);
        lease.renewed(START + SECOND * 10);
        let deadline = lease.deadline();
        lease.renewed(START + SECOND * 5);
        assert_eq!(lease.deadline(), deadline);
    }

    #[test]
    fn a_failed_renewal_is_tried_again_within_a_twentieth_of_the_ttl() {
        let mut lease = lease(10, 5);
        lease.retry(START + SECOND * 4);
        assert_eq!(lease.renew_at(), Some(START + SECOND * 4 + SECOND / 2));
        assert_eq!(retry_pause(SECOND * 3600), SECOND);
        assert_eq!(try_timeout(SECOND * 3600), SECOND * 3);
    }
}

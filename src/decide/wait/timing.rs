//! The times of a wait: when to ask again, when the user has waited long enough, and when to show progress.
//! Pure.
//!
//! Requests have a minimum distance. However near the end of a lease is, and whatever messages come, each
//! waiter asks a server at most about twenty times a second ([`Pace`]).

use std::time::Duration;

use crate::clock::Moment;
use crate::protocol::ErrorKind;

/// Returns the heartbeat of a waiter, by how many are ahead (acquire.lua has the same rule). A heartbeat is
/// needed because a message may be lost with its connection, and a plain client deletes its key without
/// notifying any waiter. An entry in the queue lives for three heartbeats. Waiters far behind have time. But
/// all before them may have died together with the holder, on one host, and then nobody else asks.
pub fn heartbeat(ahead: u32) -> Duration {
    let far = Duration::from_secs(8) + Duration::from_millis(8).saturating_mul(ahead);
    scaled(Duration::from_secs(2), ahead, far).min(Duration::from_secs(30))
}

/// Returns the pause of a waiter that polls because no message can reach it: shorter than the time to confirm
/// a grant. `jitter` in 0..1 spreads waiters that poll at the same moment.
pub fn poll_interval(ahead: u32, jitter: f64) -> Duration {
    let usual = scaled(Duration::from_millis(250), ahead, Duration::from_secs(1));
    usual.mul_f64(0.75 + jitter / 2.0)
}

fn scaled(first: Duration, ahead: u32, last: Duration) -> Duration {
    (first + (first / 4).saturating_mul(ahead)).min(last)
}

/// Returns when to ask again for a lock that is busy for `left` more (`None`: for ever) while `ahead` others
/// come first: after `pause` and at `limit` at the latest. `None` if the user has waited long enough.
pub fn next(
    limit: Option<Moment>,
    pause: Duration,
    ahead: u32,
    left: Option<Duration>,
    now: Moment,
) -> Option<Moment> {
    // Only the first in the queue can act on an expired lease.
    let expiry = left.filter(|_| ahead == 0);
    let ask_at = now + expiry.map_or(pause, |left| pause.min(end_of(left)));
    let may_ask = limit.is_none_or(|end| now < end);
    may_ask.then(|| limit.map_or(ask_at, |end| ask_at.min(end)))
}

/// Returns the time until a lease with `left` to last has ended: one millisecond more, because Redis rounds
/// down. At least [`FLOOR`], because a lock can be held after a lease is over (by other members, or because
/// it is frozen), and asking must not become a busy loop.
pub(super) fn end_of(left: Duration) -> Duration {
    (left + Duration::from_millis(1)).max(FLOOR)
}

/// Longest pause between two tries to reach a server.
pub const RECONNECT: Duration = Duration::from_millis(500);

/// Longest pause while sentinels, or a cluster, replace the server. A try asks at least one sentinel, so a
/// thousand waiters ask less than a thousand times a second once an outage has lasted for ten seconds.
pub const FAILOVER: Duration = Duration::from_millis(2500);

/// Returns the pause before another try to reach a server that has failed for `lasting`. The pause is a
/// quarter of that time, so a run starts at most that much too late. `jitter` in 0..1 spreads the waiters.
pub fn reconnect(lasting: Duration, jitter: f64, longest: Duration) -> Duration {
    let pause = (lasting / 4).max(FLOOR * 2);
    pause.min(longest).mul_f64(0.5 + jitter / 2.0)
}

/// Returns true if a time is short enough for work to start on a grant. A request and its answer must be
/// short, because the confirmation must be answered long before the short lease ends. The grant's age must be
/// short, too: a suspended waiter must confirm its grant first, because somebody may have taken the lock from
/// it.
pub fn is_short(time: Duration) -> bool {
    time <= Duration::from_millis(100)
}

/// Least time between two requests, on average.
const FLOOR: Duration = Duration::from_millis(50);

/// Most requests that may follow each other at once: the first, the one for a place in the queue, and the
/// ones after a message.
const BURST: u32 = 4;

/// Limit on the rate of requests to a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Time until which the requests so far would last, at one per [`FLOOR`].
    spent: Option<Moment>,
}

impl Pace {
    /// Returns when the next request may be sent, and takes it as sent then.
    pub fn ask_at(&mut self, now: Moment) -> Moment {
        let spent = self.spent.map_or(now, |spent| spent.max(now));
        self.spent = Some(spent + FLOOR);
        now.max(spent.before(FLOOR * (BURST - 1)))
    }
}

/// A time without the server, and when to show the user that redlock tries again.
#[derive(Clone, Debug)]
pub struct Outage {
    /// The present error. A log shows each change of it.
    pub kind: ErrorKind,
    /// Time of the first request that failed.
    pub since: Moment,
    /// Progress is shown on a line that can be rewritten.
    single_line: bool,
    /// Time of the next message, if any.
    due: Option<Moment>,
    /// The error that the user knows of.
    shown: Option<ErrorKind>,
}

impl Outage {
    pub fn new(kind: ErrorKind, since: Moment, single_line: bool) -> Self {
        Self {
            kind,
            since,
            single_line,
            due: Some(since + QUIET_FOR),
            shown: None,
        }
    }

    pub fn due(&self) -> Option<Moment> {
        self.due
    }

    /// Returns the error and its duration if they must be shown now.
    pub fn shown(&mut self, now: Moment) -> Option<(ErrorKind, Duration)> {
        let is_due = self.due.is_some_and(|due| now >= due);
        let is_news = self.shown.is_some_and(|kind| kind != self.kind);
        (is_due || is_news).then(|| {
            self.shown = Some(self.kind);
            self.due = self.single_line.then(|| now + Duration::from_secs(1));
            (self.kind, now.since(self.since))
        })
    }

    /// Returns true if the user knows of the outage.
    pub fn was_shown(&self) -> bool {
        self.shown.is_some()
    }
}

/// Schedule of the messages about a wait.
#[derive(Clone, Debug)]
pub struct ProgressSchedule {
    /// Progress is shown on a line that can be rewritten.
    single_line: bool,
    due: Moment,
    /// The last message: the holder's id, and since when the lock is blocked (ms), if it is.
    last_shown: Option<(String, Option<u64>)>,
}

/// Longest wait, or outage, without a message.
const QUIET_FOR: Duration = Duration::from_secs(1);

impl ProgressSchedule {
    /// Returns the schedule of a wait that began at this moment.
    pub fn new(began: Moment, single_line: bool) -> Self {
        Self {
            single_line,
            due: began + QUIET_FOR,
            last_shown: None,
        }
    }

    /// Returns when the next message is due.
    pub fn due(&self) -> Moment {
        self.due
    }

    /// Returns when the first message is due, until it is shown.
    pub fn first(&self) -> Option<Moment> {
        self.last_shown.is_none().then_some(self.due)
    }

    /// Returns true if a message is due now, for this holder, and for a lock that is blocked since a time
    /// (ms).
    pub fn is_due_for(&mut self, holder: &str, frozen: Option<u64>, now: Moment) -> bool {
        let news = self.last_shown.as_ref().is_some_and(|(last, last_frozen)| {
            // There is no holder to report while the lock is handed over.
            *last_frozen != frozen || (last != holder && !holder.is_empty())
        });
        if now < self.due && !news {
            return false;
        }
        let pause = if self.single_line { 1 } else { 60 };
        self.due = now + Duration::from_secs(pause);
        self.last_shown = Some((holder.to_owned(), frozen));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::at(Duration::from_secs(100));
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_few_questions_may_follow_each_other_and_many_may_not() {
        // Moments at which a waiter wants to ask, and when it may.
        for (wanted, allowed) in [
            (&[0, 0, 0, 0][..], &[0, 0, 0, 0][..]),
            (&[0, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 50, 100]),
            (&[0, 1, 2, 3, 4, 50], &[0, 1, 2, 3, 50, 100]),
            (&[0, 0, 0, 0, 1_000, 1_000], &[0, 0, 0, 0, 1_000, 1_000]),
            (&[0, 50, 100, 150, 200, 250], &[0, 50, 100, 150, 200, 250]),
        ] {
            let mut pace = Pace::default();
            let at = wanted.iter().map(|&ms| pace.ask_at(START + MS * ms));
            let at: Vec<Moment> = at.collect();
            let expected: Vec<Moment> = allowed.iter().map(|&ms| START + MS * ms).collect();
            assert_eq!(at, expected, "{wanted:?}");
        }
    }

    #[test]
    fn a_server_that_fails_is_tried_again_after_a_quarter_of_the_time_that_it_has_failed() {
        for (lasting, usual, in_failover) in [
            (0, 100, 100),
            (400, 100, 100),
            (800, 200, 200),
            (4_000, 500, 1_000),
            (10_000, 500, 2_500),
            (u32::MAX, 500, 2_500),
        ] {
            for (longest, pause) in [(RECONNECT, usual), (FAILOVER, in_failover)] {
                let tries = |jitter| reconnect(MS * lasting, jitter, longest);
                assert_eq!(tries(0.0), MS * pause / 2, "{lasting}");
                assert_eq!(tries(1.0), MS * pause, "{lasting}");
            }
        }
    }

    #[test]
    fn waiters_far_behind_rarely_ask() {
        assert_eq!(heartbeat(u32::MAX), MS * 30_000);
        let each_second: f64 = (0..100)
            .map(|rank| 1.0 / heartbeat(rank).as_secs_f64())
            .sum();
        assert!(each_second < 14.0, "{each_second}");
    }

    #[test]
    fn waiters_that_poll_do_so_often_and_not_all_at_once() {
        assert_ne!(poll_interval(0, 0.0), poll_interval(0, 1.0));
        assert!(poll_interval(0, 1.0) < MS * 400);
    }

    #[test]
    fn a_log_gets_a_line_at_the_start_at_each_change_of_holder_and_each_minute() {
        let mut schedule = ProgressSchedule::new(START, false);
        assert!(!schedule.is_due_for("a", None, START + MS * 999));
        assert!(schedule.is_due_for("a", None, START + MS * 1_000));
        assert!(!schedule.is_due_for("a", None, START + MS * 3_000));
        assert!(!schedule.is_due_for("", None, START + MS * 3_100));
        assert!(schedule.is_due_for("b", None, START + MS * 3_200));
        assert!(!schedule.is_due_for("b", None, START + MS * 63_000));
        assert!(schedule.is_due_for("b", None, START + MS * 63_200));
        // A freeze and its end are news, even if the lock has no holder.
        assert!(schedule.is_due_for("", Some(7), START + MS * 63_300));
        assert!(!schedule.is_due_for("", Some(7), START + MS * 63_400));
        assert!(schedule.is_due_for("", None, START + MS * 63_500));
    }

    #[test]
    fn an_outage_is_shown_once_in_a_log_and_each_second_on_a_terminal() {
        use ErrorKind::{Loading, Unreachable};
        let mut log = Outage::new(Unreachable, START, false);
        assert_eq!(log.shown(START + MS * 999), None);
        assert!(!log.was_shown());
        assert_eq!(log.due(), Some(START + MS * 1_000));
        assert_eq!(
            log.shown(START + MS * 2_000),
            Some((Unreachable, MS * 2_000))
        );
        log.kind = Unreachable;
        assert_eq!(log.shown(START + MS * 9_000), None);
        assert_eq!(log.due(), None);
        log.kind = Loading;
        assert_eq!(log.shown(START + MS * 9_000), Some((Loading, MS * 9_000)));
        assert_eq!(log.shown(START + MS * 99_000), None);

        let mut terminal = Outage::new(Loading, START, true);
        assert!(terminal.shown(START + MS * 1_000).is_some());
        assert!(terminal.shown(START + MS * 1_999).is_none());
        assert!(terminal.shown(START + MS * 2_000).is_some());
    }
}

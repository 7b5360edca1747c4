//! Deadlines of a held lock. Pure: every moment comes in as an argument.
//!
//! A lease is counted from just *before* its request was sent, so it ends here before it can end at the
//! server. Two margins are subtracted. The first is the drift of two clocks within one TTL (1 % of the TTL
//! and 2 ms, as in the Redlock algorithm). The second is the time in which a busy machine kills a process (2
//! %, at most 200 ms).
//!
//! After a failover another host's clock decides when the lease ends, because its expiry is stored as a time
//! of day. So the largest difference between the Redis hosts' clocks (`clock_skew`) is subtracted, too.

use std::time::Duration;

use crate::clock::Moment;

/// Parameters of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Length of the lease after each renewal.
    pub ttl: Duration,
    /// Time that COMMAND has between SIGTERM and SIGKILL. At most half of the lease is used for it.
    pub kill_after: Duration,
    /// Largest difference between the clocks of Redis hosts that may take over from each other.
    pub clock_skew: Duration,
}

/// Shortest TTL, in clock skews: less would leave no time to renew and to stop COMMAND.
const LEAST_SKEWS: u32 = 3;

/// Returns the shortest lease for clocks that differ by this much.
pub fn shortest_for(clock_skew: Duration) -> Duration {
    clock_skew * LEAST_SKEWS
}

/// Time to elect and promote a replica, and to connect to it, after the primary was found dead.
const ELECTION: Duration = Duration::from_millis(2500);

/// Returns the shortest TTL, in whole seconds, whose lease outlives a failover that begins `down_after` the
/// primary's death. At that death the last renewal is up to a third of the TTL old, and 3 % are subtracted
/// for drift and killing, so five eighths are left. The replicas follow the next primary by the time that
/// most sentinels name it.
pub fn ttl_for_failover(
    down_after: Duration,
    kill_after: Duration,
    clock_skew: Duration,
) -> Duration {
    let until_renewed = down_after + ELECTION + clock_skew;
    // The grace of COMMAND is at most half of the lease.
    let ttl = (until_renewed + kill_after).saturating_mul(8) / 5;
    let ttl = ttl.min(until_renewed.saturating_mul(8));
    Duration::from_secs(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0))
}

/// A lease: how long redlock may count on it, and when to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    terms: Terms,
    /// Present length of the lease.
    length: Duration,
    /// The server granted the lease by itself, and the grant isn't confirmed yet.
    is_grant: bool,
    /// Another run renews the lease, and this run follows that.
    is_shared: bool,
    valid_from: Moment,
    renew_at: Moment,
}

/// Delay of the first renewal, with which the server begins to notify redlock when the lock is taken away. A
/// shorter job saves that request, and such a loss is still noticed within a tenth of a second.
const FIRST_RENEWAL: Duration = Duration::from_millis(50);

/// Longest normal silence of a server: pauses of this length happen now and then.
const SILENCE: Duration = Duration::from_secs(1);

/// Longest time between two renewals, whatever the TTL. A connection that a NAT or load balancer has
/// forgotten delivers no stop request, so a run must check its lock within a minute, even if one try fails.
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// Returns the usual time between two renewals of a lease.
pub fn renewal_interval(ttl: Duration) -> Duration {
    (ttl / 3).min(LONGEST_INTERVAL)
}

impl Lease {
    /// Returns the lease of a request sent at `sent`.
    pub fn new(sent: Moment, terms: Terms) -> Self {
        Self {
            terms,
            length: terms.ttl,
            is_grant: false,
            is_shared: false,
            valid_from: sent,
            renew_at: sent + (terms.ttl / 3).min(FIRST_RENEWAL),
        }
    }

    /// Returns the lease of a guarded hold of another run: `left` of it was left, by a request sent at
    /// `sent`.
    pub fn of_another(sent: Moment, left: Duration, terms: Terms) -> Self {
        Self {
            length: left,
            is_shared: true,
            ..Self::new(sent, terms)
        }
    }

    /// Returns a lease of this length, granted without a request, by a message that arrived at `received`
    /// after an unknown delay. `sent` is the time of the last request, and `later` is how much later the
    /// lease began, by the server's clock. So the lease began no earlier than that, and, whatever happened to
    /// that clock, before the message arrived.
    ///
    /// The first renewal confirms the lease, and comes as soon as that of any lease, so a shorter job saves
    /// it.
    pub fn granted(
        sent: Moment,
        later: Duration,
        received: Moment,
        length: Duration,
        terms: Terms,
    ) -> Self {
        let valid_from = (sent + later.saturating_sub(drift(later))).min(received);
        Self {
            // At most the TTL, because the confirmation sets the lease to that, even if its reply is lost.
            length: length.min(terms.ttl),
            is_grant: true,
            valid_from,
            renew_at: received + FIRST_RENEWAL,
            ..Self::new(sent, terms)
        }
    }

    /// Returns the moment from which another client may hold the lock: COMMAND must be dead by then.
    pub fn deadline(&self) -> Moment {
        self.valid_from + self.usable(self.length)
    }

    /// Returns the present length, by the server.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Returns the length after each renewal.
    pub fn ttl(&self) -> Duration {
        self.terms.ttl
    }

    /// Returns the length after a renewal by this run, and how much of that is usable. `None` if another run
    /// renews it.
    pub fn by_renewal(&self) -> Option<(Duration, Duration)> {
        (!self.is_shared).then(|| (self.terms.ttl, self.usable(self.terms.ttl)))
    }

    /// Returns when to ask COMMAND to stop, so that its grace ends at the deadline.
    pub fn stop_at(&self) -> Moment {
        self.deadline().before(self.grace())
    }

    /// Merges two leases that are renewed together: the earlier end, and the earlier renewal.
    pub fn merged_with(self, other: Self) -> Self {
        let renew_at = self.renew_at.min(other.renew_at);
        let first = if self.deadline() <= other.deadline() {
            self
        } else {
            other
        };
        Self { renew_at, ..first }
    }

    /// Returns the age of the last renewal.
    pub fn age(&self, now: Moment) -> Duration {
        now.since(self.valid_from)
    }

    /// Returns when to report that the server, asked at `sent`, doesn't answer; `None` if that isn't before
    /// COMMAND must stop at `stop_at`. The report comes after half of the lease, or after half of the time
    /// for tries if that is sooner, but never for a moment of silence.
    pub fn silent_at(&self, sent: Moment, stop_at: Moment) -> Option<Moment> {
        let half_of_lease = self.valid_from + self.length / 2;
        let half_of_tries = sent + stop_at.since(sent) / 2;
        let at = half_of_lease.min(half_of_tries).max(sent + SILENCE);
        (at < stop_at).then_some(at)
    }

    /// Returns when the next renewal is due.
    pub fn renew_at(&self) -> Moment {
        self.renew_at
    }

    /// Returns the time between SIGTERM and SIGKILL.
    pub fn grace(&self) -> Duration {
        // An unconfirmed grant leaves COMMAND less grace, because COMMAND is young, and the confirmation
        // needs most of the time.
        let share = if self.is_grant { 20 } else { 2 };
        let length = self.length.min(self.terms.ttl);
        self.terms
            .kill_after
            .min(length.saturating_sub(self.terms.clock_skew) / share)
    }

    /// Returns the time between two renewals: the usual one for this TTL, or half the time until COMMAND
    /// would be asked to stop if that is less. So a renewal may always be late by as much.
    fn renewal_interval(&self) -> Duration {
        let patience = self.stop_at().since(self.valid_from);
        renewal_interval(self.terms.ttl).min(patience / 2)
    }

    /// Records a successful renewal, sent at `sent`. The next one is due a step after this one was *due*, not
    /// after it was done, so a slow server doesn't make the schedule drift.
    pub fn renewed(&mut self, sent: Moment) {
        self.lengthen(sent, self.terms.ttl);
        self.is_grant = false;
        let step = self.renewal_interval();
        self.renew_at = (self.renew_at + step).clamp(sent, sent + step);
    }

    /// Makes the next renewal due now: because others wait for the first one, or because the last renewal
    /// covered only some of the locks and so didn't extend this lease.
    pub fn renew_now(&mut self, now: Moment) {
        self.renew_at = now;
    }

    /// Records a check, sent at `sent`, by which the lock is held for `left` more. Only a time beyond the TTL
    /// changes the lease, because the work itself can extend it. A shorter time adds nothing to this run's
    /// own renewals, which rely on its own clock alone.
    pub fn confirmed(&mut self, sent: Moment, left: Duration) {
        if left > self.terms.ttl {
            self.lengthen(sent, left);
        }
    }

    /// Records that the guarded hold lasts for `left` more, by a request sent at `sent`.
    pub fn followed(&mut self, sent: Moment, left: Duration) {
        // If its run hasn't renewed the hold, this is the same lease with less left, and COMMAND keeps its
        // grace.
        if sent + left > self.valid_from + self.length + drift(self.length) {
            self.lengthen(sent, left);
        }
        self.renew_at = sent + self.renewal_interval();
    }

    /// Makes the lease last for `left` from `sent`, unless it lasts longer already.
    fn lengthen(&mut self, sent: Moment, left: Duration) {
        if sent + self.usable(left) > self.deadline() {
            self.valid_from = sent;
            self.length = left;
        }
    }

    /// Returns the usable part of a lease of this length. COMMAND must be dead before another clock ends the
    /// lease, and a process takes a moment to die if all others want the processor, too.
    fn usable(&self, length: Duration) -> Duration {
        let to_die = (length / 50).min(Duration::from_millis(200));
        length.saturating_sub(self.terms.clock_skew + drift(length) + to_die)
    }

    /// Records that a renewal failed at `now`, and plans the next try.
    pub fn renewal_failed(&mut self, now: Moment) {
        // A grant is over sooner than a confirmed lease.
        let length = if self.is_grant {
            self.length
        } else {
            self.terms.ttl
        };
        self.renew_at = now + retry_pause(length);
    }
}

/// Returns how far two clocks may drift apart within this time.
fn drift(time: Duration) -> Duration {
    time / 100 + Duration::from_millis(2)
}

/// Returns the pause between two tries of a failing renewal: short compared with the lease, at most a second.
fn retry_pause(length: Duration) -> Duration {
    (length / 20).min(Duration::from_secs(1))
}

/// Returns how long one try of a renewal may take: enough for a server that is far away, but short enough for
/// another try. At most three seconds, because the end of a run must not wait longer for a renewer with a
/// dead connection.
pub fn try_timeout(ttl: Duration) -> Duration {
    (ttl / 5).min(Duration::from_secs(3))
}

/// Returns how long one try to confirm a grant of this length may take. Two tries fit into the grant, because
/// the answer of an abandoned try is lost.
pub fn confirm_timeout(grant: Duration, ttl: Duration) -> Duration {
    try_timeout(ttl).min(grant * 2 / 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const START: Moment = Moment::at(Duration::from_secs(1000));

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(milliseconds: u64) -> Moment {
        START + ms(milliseconds)
    }

    fn terms(ttl: u64, kill_after: u64) -> Terms {
        Terms {
            ttl: Duration::from_secs(ttl),
            kill_after: Duration::from_secs(kill_after),
            clock_skew: Duration::ZERO,
        }
    }

    fn lease(ttl: u64, kill_after: u64) -> Lease {
        Lease::new(START, terms(ttl, kill_after))
    }

    #[test]
    fn a_ttl_for_a_failover_is_at_least_what_was_measured() {
        let needed = |down_after, kill_after| {
            let [down_after, kill_after] = [down_after, kill_after].map(Duration::from_secs);
            ttl_for_failover(down_after, kill_after, ms(500)).as_secs()
        };
        // Measured: 15 and 18 s, with REDLOCK_SYNC=all 12 s with a down-after of 2 s.
        assert_eq!((needed(2, 5), needed(5, 5)), (16, 21));
        // Sentinel's default.
        assert_eq!(needed(30, 5), 61);
        // The grace is at most half of the lease.
        assert_eq!((needed(2, 60), needed(2, 0)), (40, 8));
        // Measured: with a down-after of 8 s a run started 9.4 s after the primary's death.
        assert!(needed(8, 0) * 5 / 8 >= 10);
    }

    #[test]
    fn a_lease_of_the_ttl_for_a_failover_is_renewed_in_time_whenever_the_primary_dies() {
        for (down_after, kill_after) in [(1, 5), (2, 5), (5, 5), (5, 0), (30, 5), (30, 600)] {
            let down_after = Duration::from_secs(down_after);
            let mut terms = terms(0, kill_after);
            terms.clock_skew = ms(500);
            terms.ttl = ttl_for_failover(down_after, terms.kill_after, ms(500));
            let mut lease = Lease::new(START, terms);
            lease.renewed(START + SECOND);
            // The primary dies just before the next renewal.
            let found_dead = lease.renew_at() + down_after;
            assert!(found_dead + ELECTION <= lease.stop_at(), "{terms:?}");
        }
    }

    #[test]
    fn the_deadline_is_counted_from_before_sending_and_less_than_the_ttl() {
        let lease = lease(30, 5);
        assert_eq!(lease.deadline(), at(30_000 - 502));
        assert_eq!(lease.stop_at(), at(25_000 - 502));
        assert_eq!(lease.renew_at(), START + FIRST_RENEWAL);
    }

    #[test]
    fn followed_work_keeps_its_grace_where_its_run_renews_no_more() {
        let length = 10 * SECOND;
        let mut lease = Lease::of_another(START, length, terms(10, 4));
        let stop_at = lease.stop_at();
        for _ in 0..100 {
            let sent = lease.renew_at();
            if sent >= stop_at {
                break;
            }
            lease.followed(sent, length.saturating_sub(sent.since(START)));
            assert!(lease.renew_at().since(sent) >= SECOND / 10);
        }
        assert_eq!(lease.stop_at(), stop_at);
        lease.followed(stop_at, length);
        assert_eq!(lease.stop_at().since(stop_at), stop_at.since(START));
    }

    #[test]
    fn the_grace_is_never_more_than_half_the_ttl_also_where_the_work_has_extended_the_lease() {
        assert_eq!(lease(30, 5).grace(), SECOND * 5);
        let mut lease = lease(4, 5);
        assert_eq!(lease.grace(), SECOND * 2);
        lease.confirmed(at(1_000), SECOND * 600);
        assert_eq!(lease.length(), SECOND * 600);
        assert_eq!(lease.grace(), SECOND * 2);
        assert_eq!(lease.stop_at(), lease.deadline().before(SECOND * 2));
    }

    #[test]
    fn renewals_keep_their_schedule_and_a_late_one_is_not_made_up_for() {
        let mut lease = lease(30, 5);
        let first = START + FIRST_RENEWAL;
        assert_eq!(lease.renew_at(), first);
        lease.renewed(first + SECOND / 10);
        assert_eq!(lease.renew_at(), first + SECOND * 10);
        lease.renewed(at(50_000));
        assert!((at(50_000)..=at(60_000)).contains(&lease.renew_at()));
    }

    #[test]
    fn however_long_the_ttl_is_two_renewals_are_due_a_minute() {
        let mut lease = lease(3600, 5);
        let first = lease.renew_at();
        lease.renewed(first);
        assert_eq!(lease.renew_at(), first + SECOND * 30);
    }

    #[test]
    fn a_long_grace_makes_renewals_come_sooner() {
        let mut lease = lease(6, 5);
        let first = START + FIRST_RENEWAL;
        lease.renewed(first);
        let next = lease.renew_at().since(first);
        assert_eq!(next, lease.stop_at().since(first) / 2);
        assert!(next < SECOND * 2);
    }

    #[test]
    fn the_lease_of_another_run_is_as_long_as_was_heard_and_grows_with_what_is_heard() {
        let left = SECOND * 9;
        let mut lease = Lease::of_another(START, left, terms(30, 5));
        let usable = |left: Duration| left.saturating_sub((left / 50).min(ms(200)) + drift(left));
        assert_eq!(lease.deadline(), START + usable(left));
        assert_eq!(lease.renew_at(), START + FIRST_RENEWAL);
        assert_eq!(lease.by_renewal(), None, "it is never renewed by us");
        let heard = at(1_000);
        lease.followed(heard, SECOND * 20);
        assert_eq!(lease.deadline(), heard + usable(SECOND * 20));
        assert!(lease.renew_at() > heard && lease.renew_at() <= heard + SECOND * 10);
        // An earlier answer already said that more is left.
        let until = lease.deadline();
        lease.followed(heard + SECOND, SECOND * 3);
        assert_eq!(lease.deadline(), until);
    }

    #[test]
    fn leases_that_are_kept_together_end_with_the_first_and_are_renewed_with_the_next() {
        let mut old = lease(30, 5);
        old.renewed(START + FIRST_RENEWAL);
        let new = Lease::new(at(9_000), terms(30, 5));
        for both in [old.merged_with(new), new.merged_with(old)] {
            assert_eq!(both.deadline(), old.deadline());
            assert_eq!(both.renew_at(), new.renew_at());
        }
    }

    #[test]
    fn a_renewal_of_one_of_two_leases_makes_them_no_longer_and_both_are_renewed_after_it() {
        let old = lease(30, 5);
        // The first of the new leases ends later than the old one, the second sooner.
        for new in [30, 6].map(|ttl| Lease::new(at(1_000), terms(ttl, 5))) {
            for mut both in [old.merged_with(new), new.merged_with(old)] {
                let deadline = old.deadline().min(new.deadline());
                let heard = at(2_000);
                both.renew_now(heard);
                assert_eq!((both.deadline(), both.renew_at()), (deadline, heard));
            }
        }
    }

    #[test]
    fn an_answer_that_comes_late_never_shortens_the_lease() {
        let mut lease = lease(30, 5);
        lease.renewed(at(10_000));
        let deadline = lease.deadline();
        lease.renewed(at(5_000));
        assert_eq!(lease.deadline(), deadline);
    }

    #[test]
    fn what_the_work_has_extended_is_not_shortened_by_a_renewal() {
        let mut lease = lease(30, 5);
        lease.confirmed(at(1_000), SECOND * 600);
        let deadline = at(1_000 + 600_000 - 6_202);
        assert_eq!(lease.deadline(), deadline);
        assert_eq!(lease.grace(), SECOND * 5);
        lease.renewed(at(10_000));
        assert_eq!(lease.deadline(), deadline);
        lease.confirmed(at(11_000), SECOND * 29);
        assert_eq!(lease.deadline(), deadline);
        lease.renewed(at(590_000));
        assert!(lease.deadline() > deadline);
    }

    #[test]
    fn a_granted_lease_counts_from_the_grant_however_late_the_message_comes() {
        let received = at(60_000);
        let mut lease = Lease::granted(START, SECOND * 10, received, SECOND * 2, terms(30, 5));
        assert_eq!(lease.deadline(), at(10_000 - 102 + 2_000 - 62));
        assert_eq!(lease.grace(), ms(100));
        assert_eq!(lease.renew_at(), received + FIRST_RENEWAL);
        lease.renewed(at(11_000));
        assert_eq!(lease.deadline(), at(11_000 + 30_000 - 502));
        assert_eq!(lease.grace(), SECOND * 5);
        assert_eq!(lease.renew_at(), at(21_000));
    }

    #[test]
    fn a_granted_lease_never_begins_after_its_receipt_whatever_the_servers_clock_says() {
        let granted = |later| Lease::granted(START, later, at(3_000), SECOND * 2, terms(30, 5));
        let latest = at(3_000 + 2_000 - 62);
        assert_eq!(granted(SECOND * 3600).deadline(), latest);
        assert!(granted(SECOND * 2).deadline() < latest);
    }

    #[test]
    fn a_grant_that_is_longer_than_the_ttl_counts_for_no_more_than_the_ttl() {
        let granted = |length| Lease::granted(START, SECOND, at(1_000), length, terms(3, 5));
        let longer = granted(SECOND * 5);
        assert_eq!(longer, granted(SECOND * 3));
        assert!(longer.deadline() < at(4_000));
    }

    #[test]
    fn what_the_server_confirms_gives_no_more_than_was_asked_for() {
        let mut lease = lease(30, 5);
        let deadline = lease.deadline();
        // With the renewal alone it would last until then.
        lease.confirmed(at(5_000), SECOND * 30);
        assert_eq!(lease.deadline(), deadline);
        lease.renewed(at(5_000));
        assert_eq!(lease.deadline(), deadline + SECOND * 5);
    }

    #[test]
    fn every_lease_ends_sooner_by_what_the_clocks_of_the_redis_hosts_may_differ() {
        let exact = terms(30, 5);
        let skewed = Terms {
            clock_skew: SECOND * 3,
            ..exact
        };
        let acquired = |terms| Lease::new(START, terms);
        let granted = |terms| Lease::granted(START, SECOND, at(2_000), SECOND * 5, terms);
        let renewed = |terms| {
            let mut lease = granted(terms);
            lease.renewed(at(3_000));
            lease
        };
        let extended = |terms| {
            let mut lease = acquired(terms);
            lease.confirmed(at(3_000), SECOND * 600);
            lease
        };
        let merged = |terms| extended(terms).merged_with(acquired(terms));
        let of: [&dyn Fn(Terms) -> Lease; 5] = [&acquired, &granted, &renewed, &extended, &merged];
        for lease in of {
            let (exact, skewed) = (lease(exact), lease(skewed));
            assert_eq!(skewed.deadline() + SECOND * 3, exact.deadline());
            assert!(skewed.stop_at() < skewed.deadline());
        }
    }

    #[test]
    fn the_shortest_lease_for_a_clock_skew_still_has_time_to_renew_and_to_stop() {
        let mut terms = terms(0, 5);
        terms.clock_skew = ms(500);
        terms.ttl = shortest_for(terms.clock_skew);
        let mut lease = Lease::new(START, terms);
        assert_eq!(lease.grace(), terms.clock_skew);
        lease.renewed(START);
        assert!(lease.stop_at() >= at(400));
        assert!(lease.renewal_interval() >= ms(200));
    }

    #[test]
    fn a_silent_server_is_worth_a_word_at_half_of_the_lease_and_before_the_work_is_stopped() {
        for (ttl, kill_after, sent, expected) in [
            (30, 5, 10_000, Some(15_000)),
            // After a suspend the server has a moment to answer.
            (30, 5, 20_000, Some(21_000)),
            (30, 5, 24_000, None),
            // Half of the time between the first try and the stop.
            (10, 5, 2_000, Some(3_349)),
            (60, 30, 14_000, Some(21_599)),
            // A lease that is too short for more than a moment of silence.
            (2, 1, 667, None),
        ] {
            let mut lease = lease(ttl, kill_after);
            lease.renewed(START);
            let silent_at = lease.silent_at(at(sent), lease.stop_at());
            assert_eq!(silent_at, expected.map(at), "{ttl} {kill_after} {sent}");
            assert!(silent_at.is_none_or(|at| at < lease.stop_at()));
        }
    }

    #[test]
    fn a_failed_renewal_is_tried_again_within_a_twentieth_of_the_ttl() {
        let mut usual = lease(10, 5);
        usual.renewal_failed(at(4_000));
        assert_eq!(usual.renew_at(), at(4_500));
        let mut granted = lease(60, 5);
        (granted.is_grant, granted.length) = (true, SECOND * 2);
        granted.renewal_failed(at(1_000));
        assert_eq!(granted.renew_at(), at(1_100));
        assert_eq!(retry_pause(SECOND * 3600), SECOND);
    }

    #[test]
    fn a_try_takes_a_fifth_of_the_ttl_and_two_fit_into_a_grant() {
        assert_eq!(try_timeout(SECOND * 10), SECOND * 2);
        assert_eq!(try_timeout(SECOND * 3600), SECOND * 3);
        assert_eq!(confirm_timeout(SECOND * 2, SECOND * 30), SECOND * 4 / 5);
        assert_eq!(confirm_timeout(SECOND * 5, SECOND * 5), SECOND);
    }
}

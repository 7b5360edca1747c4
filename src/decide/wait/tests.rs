//! The promises of a wait as tables: events with their times, and the resulting actions.

use super::*;
use crate::protocol::ErrorKind::{
    self, Config, Crowded, Loading, NoPrimary, NotNow, NotReplicated, Refused, Unreachable,
};
use crate::protocol::{Holder, Limit, Loss, Who};
use crate::signal::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

const START: Moment = Moment::at(Duration::from_secs(100));
const MS: Duration = Duration::from_millis(1);
const TERMS: Terms = Terms {
    ttl: Duration::from_secs(30),
    kill_after: Duration::from_secs(5),
    clock_skew: Duration::ZERO,
};

/// Time of each answer in the tests, in milliseconds.
const ROUND_TRIP: u64 = 1;

fn at(ms: u64) -> Moment {
    START + Duration::from_millis(ms)
}

/// Returns the usual policy with a change.
fn policy_with(change: impl FnOnce(&mut Policy)) -> Policy {
    let mut policy = policy();
    change(&mut policy);
    policy
}

fn policy() -> Policy {
    Policy {
        limit: None,
        terms: TERMS,
        starts_on_grant: true,
        holds_others: false,
        awaits_server: true,
        awaits_replicas: false,
        failover_may_take: Duration::ZERO,
        answer_may_take: MS * 2_000,
        silence: None,
        single_line: false,
        jitter: || 0.5,
    }
}

fn limited(ms: u64) -> Policy {
    policy_with(|it| it.limit = Some(at(ms)))
}

fn in_a_job() -> Policy {
    policy_with(|it| it.holds_others = true)
}

/// Returns a lock that is held for long, with so many waiters ahead. The server's clock is at 1000 s.
fn behind(ahead: u32) -> Busy {
    Busy {
        now_ms: 1_000_000,
        ahead,
        ticket: Some(7),
        polls: false,
        left: Some(MS * 30_000),
        holders: 1,
        id: "a".into(),
        holder: Some(holder()),
        frozen: None,
        repaired: false,
        is_behind_dead: false,
        stopping: None,
    }
}

fn busy() -> Busy {
    behind(0)
}

fn busy_with(change: impl FnOnce(&mut Busy)) -> Busy {
    let mut busy = busy();
    change(&mut busy);
    busy
}

fn holder() -> Holder {
    Holder {
        fence: 1,
        since_ms: 0,
        limit: Limit::EXCLUSIVE,
        slot: 1,
        waited: Duration::ZERO,
        kept: None,
        guards: 0,
        granted: false,
        who: Who {
            instance: Some("process".into()),
            ..Who::default()
        },
    }
}

fn held() -> Acquired {
    Acquired::Held { fence: 5, slot: 1 }
}

/// Returns a grant at a time by the server's clock that is this much later than in [`busy`].
fn grant(later: i64) -> Grant {
    Grant {
        fence: 5,
        slot: 1,
        at_ms: 1_000_000_u64.saturating_add_signed(later),
        lasting: MS * 1_000,
    }
}

fn grant_lasting(later: i64, ms: u32) -> Grant {
    Grant {
        lasting: MS * ms,
        ..grant(later)
    }
}

fn error(kind: ErrorKind) -> protocol::Error {
    protocol::Error::new(kind, String::new())
}

/// Returns the actions in words, an end by its name.
fn words(actions: &[Action]) -> String {
    let each = actions.iter().map(|action| match action {
        Action::Suspend => "suspend".into(),
        Action::SearchDeadlock(lasting) => format!("search, noted for {}s", lasting.as_secs()),
        Action::Ask(None) => "ask".into(),
        Action::Ask(Some(QueuePlace { polls: true, .. })) => "ask, polling".into(),
        Action::Ask(Some(QueuePlace { polls: false, .. })) => "ask, listening".into(),
        Action::TimeOut => "time out".into(),
        Action::Disconnect(_) => "disconnect".into(),
        Action::Show { busy, age } => format!("show {}, {}ms old", busy.id, age.as_millis()),
        Action::ShowOutage { kind, lasting } => {
            format!("show {kind:?} for {}ms", lasting.as_millis())
        }
        Action::ShowAnswer => "show answer".into(),
        Action::End(End::Interrupted(signal)) => format!("end: signal {signal}"),
        Action::End(End::Acquired(taken)) if taken.granted.is_some() => "end: Granted".into(),
        Action::End(End::Answered(Acquired::Held { .. })) => "end: TooSlow".into(),
        Action::End(End::HeldLockGone(None)) => "end: NotRenewed".into(),
        Action::End(end) => {
            let end = match end {
                End::Answered(answer) => format!("{answer:?}"),
                end => format!("{end:?}"),
            };
            format!("end: {}", end.split([' ', '(']).next().unwrap())
        }
    });
    each.collect::<Vec<String>>().join("; ")
}

/// A wait, and the lease of the locks that its job holds already.
struct Waiter(Wait, Option<Lease>);

impl Waiter {
    /// Returns a wait that begins at START, before any event.
    fn new(policy: Policy) -> Self {
        Self(Wait::new(policy, START), None)
    }

    /// Returns a waiter that has asked for the lock.
    fn asking(policy: Policy) -> Self {
        let mut waiter = Self::new(policy);
        assert_eq!(waiter.on(0, Event::Tick), "ask");
        waiter.sent(0);
        waiter
    }

    /// Returns a waiter that has just got a place in the queue.
    fn queued(policy: Policy, busy: &Busy) -> Self {
        Self::far(policy, busy, ROUND_TRIP)
    }

    /// Returns a waiter whose last request was answered after so long.
    fn far(policy: Policy, busy: &Busy, round_trip: u64) -> Self {
        let mut waiter = Self::asking(policy);
        let actions = waiter.answered_busy(0, busy);
        assert!(actions == "ask, listening" || actions == "ask, polling");
        waiter.sent(1);
        let answer = Event::Answered(Ok(Acquired::Busy(busy.clone())));
        assert_eq!(waiter.on(1 + round_trip, answer), "");
        waiter
    }

    /// Returns a waiter that has waited for a second and shown that.
    fn settled(policy: Policy, busy: &Busy) -> Self {
        let mut waiter = Self::queued(policy, busy);
        waiter.asks(1_000);
        let shown = waiter.answered_busy(1_000, busy);
        assert_eq!(shown, format!("show {}, 0ms old", busy.id));
        waiter
    }

    fn on(&mut self, ms: u64, event: Event) -> String {
        words(&self.0.on_event(event, self.1, at(ms)))
    }

    fn tick(&mut self, ms: u64) -> String {
        self.on(ms, Event::Tick)
    }

    fn sent(&mut self, ms: u64) {
        assert_eq!(self.on(ms, Event::Sent(at(ms), MS * 2_000)), "");
    }

    /// Asks again, because a message has come.
    fn asks(&mut self, ms: u64) {
        assert!(self.on(ms, Event::Message).starts_with("ask"));
        self.sent(ms);
    }

    /// Handles the answer to the request sent at this time.
    fn answered(&mut self, ms: u64, answer: Acquired) -> String {
        self.on(ms + ROUND_TRIP, Event::Answered(Ok(answer)))
    }

    fn answered_busy(&mut self, ms: u64, busy: &Busy) -> String {
        self.answered(ms, Acquired::Busy(busy.clone()))
    }

    fn fails(&mut self, ms: u64, kind: ErrorKind) -> String {
        self.on(ms, Event::Failed(error(kind)))
    }

    /// Starts on a grant. Returns the lease and the time of the wait.
    fn granted(&mut self, ms: u64, grant: Grant) -> (Lease, Duration) {
        let actions = self.0.on_event(Event::Granted(grant), None, at(ms));
        match actions.as_slice() {
            [Action::End(End::Acquired(taken))] if taken.granted.is_some() => {
                (taken.lease, taken.waited)
            }
            _ => panic!("{actions:?}"),
        }
    }

    /// Returns when the wait is due, in milliseconds from START.
    fn due(&self) -> u64 {
        let due = self.0.due().expect("it has a time to wake");
        // A look in the millisecond before would be too early.
        u64::try_from(due.since(START).as_nanos().div_ceil(1_000_000)).unwrap()
    }
}

#[test]
fn a_free_lock_takes_one_question() {
    let mut waiter = Waiter::asking(policy());
    assert_eq!(waiter.due(), 2_000);
    let actions = waiter.0.on_event(Event::Answered(Ok(held())), None, at(1));
    let [Action::End(End::Acquired(taken))] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!(taken.waited, Duration::ZERO);
    assert_eq!(taken.lease, Lease::new(START, TERMS));
    assert_eq!(taken.granted, None);
}

#[test]
fn a_short_question_that_did_nothing_is_an_answer_and_the_lease_counts_from_the_whole_one() {
    let first = policy_with(|it| it.awaits_server = false);
    let mut waiter = Waiter::asking(first);
    waiter.sent(700);
    assert_eq!(waiter.due(), 2_700);
    let answer = Event::Answered(Ok(held()));
    let actions = waiter.0.on_event(answer, None, at(1_400));
    let [Action::End(End::Acquired(taken))] = actions.as_slice() else {
        panic!("{actions:?}");
    };
    assert_eq!(taken.lease, Lease::new(at(700), TERMS));
    // A run waits for a server that has answered it.
    let mut waiter = Waiter::asking(first);
    waiter.sent(700);
    assert_eq!(waiter.fails(800, Unreachable), "disconnect");
}

#[test]
fn a_busy_lock_is_asked_for_at_once_with_a_place_and_then_with_each_heartbeat() {
    let left = |left: Option<u32>| busy_with(|it| it.left = left.map(|left| MS * left));
    let dead = Busy {
        is_behind_dead: true,
        ..behind(9)
    };
    let polls = busy_with(|it| it.polls = true);
    let polls_and_over = Busy {
        polls: true,
        ..left(Some(0))
    };
    let second = Busy {
        ahead: 1,
        ..left(Some(300))
    };
    for (what, busy, due, question) in [
        ("first", busy(), 2_000, "ask, listening"),
        ("no expiry", left(None), 2_000, "ask, listening"),
        ("it ends soon", left(Some(300)), 301, "ask, listening"),
        ("it is over", left(Some(0)), 50, "ask, listening"),
        ("it is nearly over", left(Some(48)), 50, "ask, listening"),
        ("it ends in a moment", left(Some(60)), 61, "ask, listening"),
        ("another is first", second, 2_500, "ask, listening"),
        ("fourth", behind(4), 4_000, "ask, listening"),
        ("far behind", behind(100), 8_800, "ask, listening"),
        ("behind dead waiters", dead, 50, "ask, listening"),
        ("no message reaches us", polls, 250, "ask, polling"),
        (
            "it is over, and we poll",
            polls_and_over,
            50,
            "ask, polling",
        ),
    ] {
        let mut waiter = Waiter::settled(policy(), &busy);
        let due = 1_001 + due;
        assert_eq!(waiter.due(), due, "{what}");
        assert_eq!(waiter.tick(due - 1), "", "{what}");
        assert_eq!(waiter.tick(due), question, "{what}");
    }
}

#[test]
fn the_ticket_that_was_given_is_shown_again() {
    let mut waiter = Waiter::asking(policy());
    for (answer, ticket) in [(None, None), (Some(7), None), (None, Some(7))] {
        assert_eq!(waiter.0.place.and_then(|place| place.ticket), ticket);
        waiter.answered_busy(0, &busy_with(|it| it.ticket = answer));
        waiter.on(1, Event::Message);
        waiter.sent(1);
    }
    assert_eq!(waiter.0.place.and_then(|place| place.ticket), Some(7));
}

#[test]
fn a_message_is_followed_by_a_question_and_one_that_crosses_a_question_is_not() {
    let mut waiter = Waiter::settled(policy(), &busy());
    assert_eq!(waiter.on(1_500, Event::Message), "ask, listening");
    assert_eq!(waiter.on(1_500, Event::Message), "");
    waiter.sent(1_500);
    assert_eq!(waiter.on(1_500, Event::Message), "");
    assert_eq!(waiter.on(1_500, Event::Granted(grant(1_500))), "");
    assert_eq!(waiter.answered(1_500, held()), "end: Acquired");
}

#[test]
fn a_waiter_that_may_not_subscribe_polls_from_then_on() {
    let mut queued = Waiter::settled(policy(), &busy());
    assert_eq!(queued.on(1_100, Event::SubscribeDenied), "ask, polling");
    queued.sent(1_100);
    assert_eq!(queued.answered_busy(1_100, &busy()), "");
    assert_eq!(queued.due(), 1_101 + 250);

    let mut asking = Waiter::settled(policy(), &busy());
    asking.asks(1_100);
    assert_eq!(asking.on(1_100, Event::SubscribeDenied), "");
    assert_eq!(asking.answered_busy(1_100, &busy()), "");
    assert_eq!(asking.tick(1_351), "ask, polling");
}

#[test]
fn however_many_messages_come_the_server_is_asked_about_twenty_times_a_second() {
    let mut waiter = Waiter::settled(policy(), &busy());
    let mut requests = 0;
    for ms in 2_000..12_000 {
        for event in [Event::Tick, Event::Message] {
            if waiter.on(ms, event).contains("ask") {
                requests += 1;
                waiter.sent(ms);
                waiter.on(ms, Event::Answered(Ok(Acquired::Busy(busy()))));
            }
        }
    }
    assert!((195..=205).contains(&requests), "{requests}");
}

#[test]
fn the_lock_stays_busy_when_the_time_to_wait_is_over_and_one_last_question_was_asked() {
    let mut waiter = Waiter::settled(limited(2_500), &behind(9));
    assert_eq!(waiter.due(), 2_500);
    assert_eq!(waiter.tick(2_500), "ask, listening");
    waiter.sent(2_500);
    assert_eq!(waiter.answered_busy(2_500, &busy()), "end: Busy");

    let mut waiter = Waiter::asking(limited(ROUND_TRIP));
    assert_eq!(waiter.answered_busy(0, &busy()), "end: Busy");
    assert!(!waiter.0.is_known());
}

#[test]
fn a_waiter_gives_up_after_three_grants_that_arrive_too_late() {
    let got = || Event::Answered(Ok(held()));
    let mut waiter = Waiter::asking(policy());
    // COMMAND would be stopped 24.498 s after the request.
    assert_eq!(waiter.on(24_498, got()), "ask");
    waiter.sent(30_000);
    assert_eq!(waiter.on(60_000, got()), "ask");
    waiter.sent(60_000);
    assert_eq!(waiter.on(90_000, got()), "end: TooSlow");
    assert!(waiter.0.is_known());

    let mut faster = Waiter::asking(policy());
    assert_eq!(faster.on(24_498, got()), "ask");
    faster.sent(24_498);
    assert_eq!(faster.on(24_498 + 24_497, got()), "end: Acquired");
}

#[test]
fn a_server_that_was_reached_and_fails_is_asked_again_after_growing_pauses() {
    let mut waiter = Waiter::new(policy());
    for (asked, pause) in [(0, 75), (400, 75), (800, 150), (4_000, 375)] {
        assert!(waiter.tick(asked).ends_with("ask"));
        waiter.sent(asked);
        assert!(waiter.fails(asked, Unreachable).starts_with("disconnect"));
        let due = asked + pause;
        assert_eq!(waiter.due(), due);
        assert_eq!(waiter.tick(due - 1), "");
        assert_eq!(waiter.on(due - 1, Event::Message), "");
    }
    assert_eq!(waiter.tick(4_375), "ask");
    // An answer ends the row of failures.
    waiter.sent(5_000);
    let answered = waiter.answered_busy(5_000, &busy());
    assert_eq!(answered, "show answer; ask, listening");
    assert_eq!(waiter.fails(5_001, Unreachable), "disconnect");
    assert_eq!(waiter.due(), 5_001 + 75);
}

#[test]
fn the_node_that_a_cluster_names_is_asked_at_once_and_after_a_pause_where_it_names_another() {
    let mut waiter = Waiter::new(policy());
    waiter.on(0, Event::Tick);
    for (asked, due) in [(0, 0), (1, 76), (76, 151)] {
        waiter.sent(asked);
        waiter.on(asked, Event::Failed(protocol::Error::moved()));
        assert_eq!(waiter.due(), due);
        waiter.tick(due.max(1));
    }
}

#[test]
fn a_server_that_was_never_reached_or_refuses_is_not_waited_for() {
    let usual = policy();
    let first = policy_with(|it| it.awaits_server = false);
    let all = policy_with(|it| it.awaits_replicas = true);
    for (what, policy, kind, expected) in [
        ("it may pass", usual, Unreachable, "disconnect"),
        ("it may pass", usual, NotNow, "disconnect"),
        ("refused", usual, Refused, "end: Failed"),
        ("bad URL", usual, Config, "end: Failed"),
        ("never reached", first, Unreachable, "end: Failed"),
        ("it is there and not ready", first, NotNow, "disconnect"),
        ("others know of it", first, NoPrimary, "disconnect"),
        ("too few replicas", usual, NotReplicated, "end: Failed"),
        ("not all replicas", all, NotReplicated, "disconnect"),
        ("no time to wait", limited(10), Unreachable, "end: Failed"),
    ] {
        let mut waiter = Waiter::asking(policy);
        assert_eq!(waiter.fails(10, kind), expected, "{what}");
    }

    // The list of the replicas settles only after a failover, and a waiter keeps its place.
    let mut after_failover = Waiter::asking(policy());
    after_failover.fails(1, Unreachable);
    let mut times = (1..10_000).step_by(50);
    let retry = times.find(|&ms| after_failover.tick(ms).contains("ask"));
    let retry = retry.expect("it asks again");
    after_failover.sent(retry);
    let mut queued = Waiter::asking(policy());
    queued.0.place = Some(QueuePlace::default());
    for mut waiter in [after_failover, queued] {
        let lacking = waiter.fails(retry + 1, NotReplicated);
        assert!(lacking.starts_with("disconnect"), "{lacking}");
    }

    // An error that is an answer comes from a server that was reached.
    let loading = Event::Answered(Err(error(NotNow)));
    assert_eq!(Waiter::asking(first).on(1, loading), "disconnect");
}

/// Returns when a waiter gives up if every request fails like this, within the first 100 s.
fn gives_up(policy: Policy, kind: ErrorKind) -> Option<u64> {
    let mut waiter = Waiter::asking(policy);
    let mut ms = 0;
    while waiter.fails(ms, kind).starts_with("disconnect") {
        while !waiter.tick(ms).contains("ask") {
            ms = waiter.due();
        }
        if ms > 100_000 {
            return None;
        }
        waiter.sent(ms);
    }
    Some(ms)
}

#[test]
fn a_server_that_was_reached_is_waited_for_as_long_as_a_busy_lock() {
    let no_wait = limited(0);
    for kind in [Unreachable, NoPrimary, Loading] {
        // For longer than a TTL.
        assert_eq!(gives_up(policy(), kind), None, "{kind:?}");
        assert_eq!(gives_up(limited(7_000), kind), Some(7_000), "{kind:?}");
        // A server that says that it isn't ready gets the time of an answer.
        let least = if kind == Loading { 2_000 } else { 0 };
        assert_eq!(gives_up(no_wait, kind), Some(least), "{kind:?}");
        // A failover gets the time of a connection.
        let failover = Policy {
            failover_may_take: MS * 2_000,
            ..no_wait
        };
        assert_eq!(gives_up(failover, kind), Some(2_000), "{kind:?}");
    }
    // If the command runs without the lock in the end, the wait for a silent server has that limit.
    let unlocked = policy_with(|it| it.silence = Some(TERMS.ttl));
    let end = gives_up(unlocked, Unreachable).unwrap();
    assert!((30_000..30_600).contains(&end), "{end}");
    assert_eq!(gives_up(unlocked, Loading), None);
    // In a failover no replica can confirm anything for a while.
    let mut all = policy_with(|it| it.awaits_replicas = true);
    assert_eq!(gives_up(all, NotReplicated), None);
    all.limit = Some(at(7_000));
    assert_eq!(gives_up(all, NotReplicated), Some(7_000));
}

#[test]
fn a_server_that_answers_short_questions_alone_fails_as_long_as_one_that_answers_none() {
    let unlocked = policy_with(|it| it.silence = Some(TERMS.ttl));
    let mut waiter = Waiter::new(unlocked);
    let mut failed = 0;
    for asked in [0, 1_000, 30_000] {
        assert!(waiter.tick(asked).contains("ask"));
        waiter.sent(asked);
        // The short script is answered, and the whole one is sent.
        waiter.sent(asked);
        failed += u64::from(waiter.fails(asked, Unreachable).contains("end"));
    }
    assert_eq!(failed, 1);
}

#[test]
fn a_failover_is_waited_for_with_longer_pauses_than_a_server_that_is_away() {
    for (kind, pause) in [
        (NoPrimary, 1_875),
        (Crowded, 1_875),
        (Unreachable, 375),
        (Loading, 375),
    ] {
        let mut waiter = Waiter::asking(policy());
        let (mut failed, mut asked) = (0, 0);
        while failed < 12_000 {
            failed = asked;
            assert!(waiter.fails(failed, kind).starts_with("disconnect"));
            while !waiter.tick(asked).contains("ask") {
                asked = waiter.due();
            }
            waiter.sent(asked);
        }
        assert_eq!(asked - failed, pause, "{kind:?}");
    }
}

#[test]
fn a_server_that_falls_silent_long_after_the_wait_began_has_as_long_as_one_that_does_so_at_once() {
    let unlocked = policy_with(|it| it.silence = Some(TERMS.ttl));
    let mut waiter = Waiter::queued(unlocked, &busy());
    let actions = waiter.fails(60_000, Unreachable);
    assert!(actions.contains("ask"), "{actions}");
    waiter.sent(60_000);
    let again = waiter.fails(60_001, Unreachable);
    assert!(again.starts_with("disconnect"), "{again}");
}

#[test]
fn a_server_that_will_be_ready_is_waited_for_as_long_as_a_busy_lock() {
    let mut first = policy_with(|it| it.awaits_server = false);
    // For longer than a TTL.
    assert_eq!(gives_up(first, Loading), None);
    first.limit = Some(at(0));
    for kind in [Loading, NotNow, Crowded] {
        assert_eq!(gives_up(first, kind), Some(2_000), "{kind:?}");
    }
}

#[test]
fn that_a_server_is_tried_again_is_shown_after_a_second_and_that_it_answers_when_it_does() {
    let mut waiter = Waiter::settled(policy(), &busy());
    assert_eq!(waiter.on(2_000, Event::Message), "ask, listening");
    waiter.sent(2_000);
    assert_eq!(waiter.tick(4_000), "time out");
    let tried = waiter.fails(4_000, Unreachable);
    assert_eq!(tried, "disconnect; show Unreachable for 2000ms");
    assert_eq!(waiter.tick(4_100), "ask, listening");
    waiter.sent(4_100);
    let back = waiter.answered_busy(4_200, &busy());
    assert!(back.starts_with("show answer"), "{back}");

    // Shorter outages aren't shown.
    let mut waiter = Waiter::settled(policy(), &busy());
    waiter.fails(1_500, Unreachable);
    waiter.sent(1_500);
    assert_eq!(waiter.fails(1_600, Unreachable), "disconnect");
    assert_eq!(waiter.tick(1_700), "ask, listening");
    waiter.sent(1_700);
    let back = waiter.answered_busy(1_800, &busy());
    assert!(!back.contains("answer"), "{back}");
}

#[test]
fn a_question_without_an_answer_times_out_and_one_that_was_not_sent_leaves_nothing_behind() {
    let mut waiter = Waiter::asking(policy());
    assert_eq!(waiter.tick(1_999), "");
    assert_eq!(waiter.tick(2_000), "time out");
    let failed = waiter.fails(2_000, Unreachable);
    assert_eq!(failed, "disconnect; show Unreachable for 2000ms");
    assert!(waiter.0.is_known());

    let mut waiter = Waiter::new(policy());
    waiter.on(0, Event::Tick);
    assert_eq!(waiter.fails(0, Unreachable), "disconnect");
    assert!(!waiter.0.is_known());
}

#[test]
fn a_connection_that_fails_in_the_queue_is_replaced_at_once() {
    let mut waiter = Waiter::settled(policy(), &busy());
    let failed = waiter.fails(1_100, Unreachable);
    assert_eq!(failed, "disconnect; ask, listening");
}

#[test]
fn a_job_that_holds_others_searches_for_a_deadlock_twice_and_then_ever_more_rarely() {
    let mut waiter = Waiter::queued(in_a_job(), &behind(4));
    let mut searches = Vec::new();
    for ms in (1_000..1_000_000).step_by(100) {
        let mut actions = waiter.tick(ms);
        if let Some(lasting) = actions.strip_prefix("search, noted for ") {
            let seconds: u64 = lasting.trim_end_matches('s').parse().unwrap();
            searches.push((ms, ms + seconds * 1000));
            actions = waiter.on(ms, Event::Searched(None));
        }
        if actions.ends_with("ask, listening") {
            waiter.sent(ms);
            waiter.on(ms, Event::Answered(Ok(Acquired::Busy(behind(4)))));
        }
    }
    let at: Vec<u64> = searches.iter().map(|(at, _)| *at).collect();
    assert_eq!(
        at,
        [
            1_000, 1_300, 2_600, 5_200, 10_400, 20_800, 41_600, 83_200, 166_400, 332_800, 632_800,
            932_800
        ]
    );
    // Until the next search at least, other runs find the note of the last one.
    assert!(searches.windows(2).all(|two| two[0].1 > two[1].0 + 2_000));
}

#[test]
fn a_wait_that_has_to_break_a_deadlock_ends() {
    let mut waiter = Waiter::queued(in_a_job(), &busy());
    assert_eq!(waiter.tick(1_000), "search, noted for 7s");
    let cycle = Event::Searched(Some(Vec::new()));
    assert_eq!(waiter.on(1_001, cycle), "end: Deadlock");
    assert!(waiter.0.is_known());
}

#[test]
fn a_search_for_a_deadlock_that_fails_is_repeated_later() {
    let mut waiter = Waiter::queued(in_a_job(), &busy());
    waiter.tick(1_000);
    // Others may have read its note.
    assert_eq!(waiter.fails(1_002, Unreachable), "disconnect");
    assert_eq!(waiter.0.search_after, SEARCH_AFTER[1]);
}

#[test]
fn a_look_for_a_deadlock_ends_when_the_last_question_has_to_be_answered() {
    let limited = Policy {
        limit: Some(at(1_100)),
        ..in_a_job()
    };
    let mut waiter = Waiter::queued(limited, &busy());
    assert_eq!(waiter.tick(1_000), "search, noted for 7s");
    assert_eq!((waiter.due(), waiter.tick(2_599)), (2_600, String::new()));
    assert_eq!(waiter.tick(2_600), "time out");
    let mut unlimited = Waiter::queued(in_a_job(), &busy());
    assert_eq!(unlimited.tick(1_000), "search, noted for 7s");
    assert_eq!(unlimited.tick(600_000), "");
}

#[test]
fn a_job_that_holds_nothing_looks_for_no_deadlock() {
    let mut waiter = Waiter::settled(policy(), &busy());
    assert_eq!(waiter.tick(60_000), "ask, listening");
}

/// Returns a lease of 30 s from START, renewed 50 ms later.
fn lease() -> Lease {
    let mut lease = Lease::new(START, TERMS);
    lease.renewed(at(50));
    lease
}

#[test]
fn the_end_of_what_is_held_already_ends_the_wait_unless_it_was_renewed_or_extended() {
    let mut renewed = lease();
    renewed.renewed(at(11_060));
    let mut extended = renewed;
    extended.confirmed(at(12_000), MS * 60_000);
    for (held, stop_at) in [(lease(), 24_548), (renewed, 35_558), (extended, 66_198)] {
        let mut waiter = Waiter::settled(policy(), &busy());
        waiter.1 = Some(held);
        assert!(!waiter.tick(stop_at - 1).contains("end"), "{held:?}");
        assert_eq!(waiter.tick(stop_at), "end: NotRenewed", "{held:?}");
    }
}

/// Name of a phase, and a function that returns a waiter in it.
type Start = (&'static str, fn() -> Waiter);

#[test]
fn whatever_a_waiter_is_about_it_gives_up_with_what_it_held_and_at_a_signal() {
    let phases: [Start; 6] = [
        ("sending", || {
            let mut waiter = Waiter::new(policy());
            waiter.on(0, Event::Tick);
            waiter
        }),
        ("asking", || Waiter::asking(policy())),
        ("queued", || Waiter::queued(policy(), &busy())),
        ("reconnecting", || {
            let mut waiter = Waiter::asking(policy());
            waiter.fails(0, Unreachable);
            waiter
        }),
        ("pausing", || {
            let mut waiter = Waiter::queued(policy(), &busy());
            while waiter.on(2, Event::Message).contains("ask") {
                waiter.sent(2);
                waiter.on(2, Event::Answered(Ok(Acquired::Busy(busy()))));
            }
            assert!(matches!(waiter.0.phase, Phase::Pausing { .. }));
            waiter
        }),
        ("searching", || {
            let mut waiter = Waiter::queued(in_a_job(), &busy());
            waiter.tick(1_000);
            waiter
        }),
    ];
    for (phase, new) in phases {
        let name = || "b".parse().unwrap();
        let lost = LockNews::Lost {
            name: name(),
            loss: Loss::default(),
            lease: Some(lease()),
        };
        let late = LockNews::Held {
            is_renewed: true,
            too_late: Some(lease()),
        };
        for (event, expected) in [
            (lost, "end: HeldLockGone"),
            (
                LockNews::Cancelled(name(), Box::default()),
                "end: HeldLockGone",
            ),
            (LockNews::Released(name()), "end: HeldLockGone"),
            (late, ""),
            (LockNews::Failed(error(Unreachable)), ""),
        ] {
            let mut waiter = new();
            waiter.1 = Some(lease());
            let ended = waiter.on(1_000, Event::News(event));
            assert_eq!(ended, expected, "{phase}");
        }
        for (signal, expected) in [
            (SIGTERM, "end: signal 15"),
            (SIGINT, "end: signal 2"),
            (SIGHUP, "end: signal 1"),
            (SIGTSTP, "suspend"),
            (SIGWINCH, ""),
        ] {
            let ended = new().on(1_000, Event::Signal(signal));
            assert_eq!(ended, expected, "{phase} {signal}");
        }
        let mut waiter = new();
        waiter.1 = Some(lease());
        assert_eq!(waiter.tick(24_748), "end: NotRenewed", "{phase}");
        assert_eq!(waiter.on(24_749, Event::Signal(SIGTERM)), "", "{phase}");
    }
}

#[test]
fn work_starts_on_a_grant_that_is_near_and_young_and_else_after_a_question() {
    const STARTS: &str = "end: Granted";
    const ASKS: &str = "ask, listening";
    let usual = policy();
    let skewed = |ms| policy_with(|it| it.terms.clock_skew = MS * ms);
    let careful = policy_with(|it| it.starts_on_grant = false);
    // This grant ends before the command could be asked to stop.
    let brief = grant_lasting(400, 115);
    for (what, policy, round_trip, grant, expected) in [
        ("near", usual, 1, grant(500), STARTS),
        ("just near enough", usual, 100, grant(500), STARTS),
        ("far", usual, 101, grant(500), ASKS),
        ("a third is clock skew", skewed(300), 1, grant(500), STARTS),
        ("exact", skewed(400), 1, grant_lasting(500, 1_200), STARTS),
        ("more is clock skew", skewed(400), 1, grant(500), ASKS),
        ("the clock went back", usual, 1, grant(-1), ASKS),
        ("the clock went ahead", usual, 1, grant(600), ASKS),
        ("about now, as clocks go", usual, 1, grant(520), STARTS),
        ("as good as over", usual, 1, grant_lasting(400, 100), ASKS),
        ("brief", usual, 1, brief, ASKS),
        ("not allowed", careful, 1, grant(500), ASKS),
    ] {
        let mut waiter = Waiter::far(policy, &busy(), round_trip);
        assert_eq!(waiter.on(501, Event::Granted(grant)), expected, "{what}");
    }
}

#[test]
fn the_age_of_a_grant_is_judged_by_the_last_question_however_long_the_wait_has_been() {
    let mut waiter = Waiter::settled(policy(), &busy());
    let granted = waiter.on(1_501, Event::Granted(grant(600)));
    assert_eq!(granted, "ask, listening");
}

#[test]
fn work_starts_on_no_grant_where_others_may_have_read_that_its_job_waits() {
    // A published wait must be taken back first.
    let mut waiter = Waiter::queued(in_a_job(), &busy());
    waiter.tick(1_000);
    waiter.on(1_000, Event::Searched(None));
    waiter.sent(1_000);
    waiter.answered_busy(1_000, &busy());
    let granted = waiter.on(1_100, Event::Granted(grant(100)));
    assert_eq!(granted, "ask, listening");
}

#[test]
fn a_lease_by_a_grant_is_counted_from_the_last_question_and_not_from_its_answer() {
    let (lease, _) = Waiter::far(policy(), &busy(), 100).granted(601, grant(500));
    let counted = |from| Lease::granted(from, MS * 500, at(601), MS * 1_000, TERMS);
    assert_eq!(lease, counted(at(1)));
    // The server's clock was read at some time before its answer came.
    assert!(lease.deadline() < counted(at(101)).deadline());
}

#[test]
fn a_grant_that_is_looked_at_late_is_confirmed_before_work_starts() {
    for (looked, expected) in [(601, "end: Granted"), (603, "ask, listening")] {
        let mut waiter = Waiter::queued(policy(), &busy());
        assert_eq!(waiter.on(looked, Event::Granted(grant(500))), expected);
    }
}

#[test]
fn a_lock_that_was_busy_has_been_waited_for_from_the_beginning() {
    let (_, waited) = Waiter::queued(policy(), &busy()).granted(502, grant(500));
    assert_eq!(waited, MS * 502);
}

#[test]
fn progress_is_shown_after_a_second_from_what_is_fresh_then() {
    for (single_line, pause) in [(false, 60_000), (true, 1_000)] {
        let policy = policy_with(|it| it.single_line = single_line);
        let mut waiter = Waiter::queued(policy, &busy());
        assert_eq!(waiter.due(), 1_000);
        assert_eq!(waiter.tick(1_000), "ask, listening");
        waiter.sent(1_000);
        let shown = waiter.answered_busy(1_000, &behind(200));
        assert_eq!(shown, "show a, 0ms old");
        assert_eq!(waiter.0.progress.due(), at(1_001 + pause));
        if single_line {
            assert_eq!(waiter.tick(2_001), "show a, 1000ms old");
        }
        // Another holder is news.
        waiter.asks(2_500);
        let other = Busy {
            id: "b".into(),
            ..behind(200)
        };
        assert_eq!(waiter.answered_busy(2_500, &other), "show b, 0ms old");
    }
}

#[test]
fn an_answer_may_end_the_wait_and_says_whether_anything_of_us_is_left() {
    let superseded = Acquired::Superseded(Box::default());
    for (answer, expected, is_known) in [
        (Acquired::RecentSuccess(MS), "end: RecentSuccess", true),
        (superseded, "end: Superseded", false),
        (held(), "end: Acquired", true),
    ] {
        let mut waiter = Waiter::settled(policy(), &busy());
        assert!(waiter.0.is_known());
        waiter.asks(1_100);
        assert!(waiter.0.has_pending_request());
        assert_eq!(waiter.answered(1_100, answer), expected);
        assert_eq!(waiter.0.is_known(), is_known, "{expected}");
        assert!(!waiter.0.has_pending_request(), "{expected}");
    }
}

#[test]
fn what_was_never_answered_may_still_arrive_and_is_to_be_withdrawn_whatever_the_next_answer_is() {
    for answer in [
        Acquired::RecentSuccess(MS),
        Acquired::Superseded(Box::default()),
        Acquired::Busy(busy()),
        Acquired::Crowded(1),
    ] {
        // Number of tries that fail before anything is sent.
        for fails in [None, Some(0), Some(1)] {
            let mut waiter = Waiter::asking(limited(0));
            if let Some(fails) = fails {
                waiter = Waiter::asking(policy());
                waiter.fails(10, Unreachable);
                for _ in 0..fails {
                    waiter.tick(5_000);
                    waiter.fails(5_000, Unreachable);
                }
                waiter.tick(10_000);
                waiter.sent(10_000);
            }
            waiter.answered(10_000, answer.clone());
            let is_known = waiter.0.is_known();
            assert_eq!(is_known, fails.is_some(), "{fails:?}: {answer:?}");
            let is_pending = waiter.0.has_pending_request();
            assert_eq!(is_pending, fails.is_some(), "{fails:?}: {answer:?}");
        }
    }
}

/// Returns the possible events after an action.
fn reply(action: &Action, now: Moment) -> Vec<Event> {
    match action {
        Action::SearchDeadlock(_) => vec![Event::Searched(None)],
        Action::Ask(_) => vec![
            Event::Sent(now, MS * 2_000),
            Event::Answered(Ok(Acquired::Busy(behind(3)))),
        ],
        Action::Show { .. } | Action::ShowOutage { .. } | Action::ShowAnswer => Vec::new(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_time_stays_due_after_it_was_looked_at() {
    for policy in [policy(), in_a_job()] {
        let mut waiter = Waiter::new(policy);
        let mut now = START;
        let mut event = Event::Tick;
        for _ in 0..200 {
            let mut events = vec![event];
            while !events.is_empty() {
                for action in waiter.0.on_event(events.remove(0), None, now) {
                    events.extend(reply(&action, now));
                }
            }
            let due = waiter.0.due().unwrap();
            assert!(due > now, "{:?} is due again", waiter.0);
            now = due;
            event = Event::Tick;
        }
    }
}

#[test]
fn a_wait_with_a_limit_is_over_one_answer_after_it_and_asks_last_a_quarter_before() {
    let ends = |policy| {
        let wait = Wait::new(policy, START);
        (wait.ends_by(), wait.last_answer())
    };
    assert_eq!(ends(limited(1)), (Some(at(2_001)), Some(at(1_501))));
    // A wait that is over at once has no time to leave for an answer.
    assert_eq!(ends(limited(0)), (None, None));
    assert_eq!(ends(policy()), (None, None));
}

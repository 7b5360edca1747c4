use proptest::prelude::*;

use super::*;
use crate::decide::lease::{Lease, Terms};
use crate::protocol::{Access, ErrorKind, Locks, Token};

const MS: Duration = Duration::from_millis(1);
const START: Moment = Moment::at(Duration::from_secs(1000));
const TERMS: Terms = Terms {
    ttl: Duration::from_secs(3),
    kill_after: Duration::from_millis(500),
    clock_skew: Duration::ZERO,
};

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn claim(number: usize) -> Claim {
    let access = Access {
        url: "redis://h",
        ..Access::default()
    };
    let locks = Locks::new(access, None, 0).expect("a URL");
    let token = Token::read("t:h:1".into()).expect("a token");
    Claim::resume(locks.lock(name(&format!("lock-{number}"))), token)
}

fn held(left: Duration) -> LeaseState {
    LeaseState::Held {
        left,
        cancelled_by: None,
    }
}

#[test]
fn what_is_lost_is_reported_before_the_lease_of_the_others_and_all_else_after_it() {
    let each = vec![
        Report::Released(name("a")),
        Report::Lost(name("b"), Loss::default()),
        Report::Failed(Error::new(ErrorKind::Unreachable, String::new())),
    ];
    let reports: Vec<Report> = in_order(Some(Report::RenewedInPart), each).collect();
    assert!(
        matches!(
            &reports[..],
            [
                Report::Lost(..),
                Report::RenewedInPart,
                Report::Released(_),
                Report::Failed(_)
            ]
        ),
        "{reports:?}"
    );
}

#[test]
fn a_guard_ends_with_the_run_and_asks_no_more_often_for_that_than_after_a_failure() {
    let mut renewals = Renewals::new(TERMS.ttl);
    renewals.add(Lease::of_another(START, TERMS.ttl, TERMS));
    let now = START + 100 * MS;
    assert!(renewals.renewal_is_due(now));
    let before = renewals.lease();
    let event = renewals.learn(&Report::Over(name("a")), now);
    assert!(matches!(event, Some(LeaseEvent::Cancelled)), "{event:?}");
    assert!(!renewals.renewal_is_due(now));
    let deadline = |lease: Option<Lease>| lease.map(|lease| lease.deadline());
    assert_eq!(deadline(renewals.lease()), deadline(before));
}

#[test]
fn work_that_guards_a_hold_that_is_over_lives_no_longer_by_another_one() {
    let who = Who {
        host: "h".into(),
        ..Who::default()
    };
    let guards = [0, 1].map(|number| Guard::of(claim(number), "aaaaaaaaaaaa", &who));
    let found = |states| reports_of_guards(&guards, states, START);
    let [short, long] = [MS * 100, MS * 200];
    assert!(matches!(
        found(vec![held(long), held(short)])[..],
        [Report::Followed(START, left)] if left == short
    ));
    assert!(matches!(
        found(vec![LeaseState::Released, held(long)])[..],
        [Report::Over(_)]
    ));
}

#[test]
fn a_renewal_lasts_as_long_as_was_asked_for_and_a_check_as_long_as_the_first_of_all() {
    let claims = [claim(0), claim(1), claim(2)];
    let states = || vec![held(MS * 700), LeaseState::Released, held(MS * 500)];
    assert!(matches!(
        reports_of_renewal(&claims, states(), START)[..],
        [Report::Renewed(START), Report::Released(_)]
    ));
    let found = reports_of_check(&claims, states(), START);
    assert!(matches!(
        found[..],
        [Report::Confirmed(START, left), Report::Released(_)] if left == MS * 500
    ));
    let gone = || vec![LeaseState::Released];
    assert!(matches!(
        reports_of_renewal(&claims, gone(), START)[..],
        [Report::Released(_), Report::RenewedInPart]
    ));
    assert!(matches!(
        reports_of_check(&claims, gone(), START)[..],
        [Report::Released(_)]
    ));
}

/// The renewals of one lock that was got at START.
fn of_one_lock() -> Renewals {
    let mut renewals = Renewals::new(TERMS.ttl);
    renewals.add(Lease::new(START, TERMS));
    renewals
}

#[test]
fn a_renewal_is_due_once_and_again_after_its_answer() {
    let mut renewals = of_one_lock();
    let first = renewals.due().unwrap();
    assert!(!renewals.renewal_is_due(first.before(MS)) && renewals.renewal_is_due(first));
    renewals.start();
    assert!(!renewals.renewal_is_due(first + MS * 500));
    assert_eq!(renewals.due(), None);
    renewals.end(Vec::new());
    renewals.learn(&Report::Renewed(first), first + MS * 500);
    assert_eq!(renewals.due(), Some(first + TERMS.ttl / 3));
    let failed = Report::Failed(Error::new(ErrorKind::Unreachable, String::new()));
    renewals.learn(&failed, first + MS * 900);
    assert_eq!(renewals.due(), Some(first + MS * 900 + TERMS.ttl / 20));
    renewals.forget_lease();
    assert_eq!(renewals.due(), None);
}

#[test]
fn the_first_task_is_remembered_and_the_one_under_way_until_it_ends() {
    let mut renewals = of_one_lock();
    let state = |renewals: &Renewals| (renewals.has_started(), renewals.is_under_way());
    assert_eq!(state(&renewals), (false, false));
    renewals.start();
    assert_eq!(state(&renewals), (true, true));
    renewals.end(Vec::new());
    assert_eq!(state(&renewals), (true, false));
}

#[test]
fn leases_are_renewed_for_the_length_that_is_set_and_at_the_moment_that_is_named() {
    let mut renewals = of_one_lock();
    renewals.be_of(TERMS.ttl * 2);
    assert_eq!(renewals.start(), try_timeout(TERMS.ttl * 2));
    renewals.end(Vec::new());
    renewals.renew_now(START + MS);
    assert_eq!(renewals.due(), Some(START + MS));
    let others = Lease::new(START + MS * 7, TERMS);
    renewals.keep(others);
    assert_eq!(renewals.lease(), Some(others));
}

#[test]
fn a_renewal_of_a_part_of_the_locks_is_followed_by_one_of_all() {
    let mut renewals = of_one_lock();
    renewals.start();
    renewals.add(Lease::new(START, TERMS));
    let before = renewals.lease().unwrap().deadline();
    // Before the first renewal of the lock that was added is due.
    let heard = START + MS * 20;
    for report in renewals.end(vec![Report::Renewed(START + MS * 10)]) {
        assert_eq!(renewals.learn(&report, heard), None);
    }
    assert_eq!(renewals.lease().unwrap().deadline(), before);
    assert!(renewals.renewal_is_due(heard));
}

#[test]
fn an_answer_to_what_was_sent_after_the_end_of_the_lease_comes_with_that_lease() {
    let ended = of_one_lock().lease().unwrap();
    for late in [
        Report::Renewed(ended.deadline()),
        Report::Confirmed(ended.deadline(), TERMS.ttl * 2),
    ] {
        let mut renewals = of_one_lock();
        let heard = ended.deadline() + MS;
        assert_eq!(
            renewals.learn(&late, heard),
            Some(LeaseEvent::TooLate(ended))
        );
        assert!(
            renewals.lease().unwrap().deadline() > heard,
            "it is ours still"
        );
    }
    let mut renewals = of_one_lock();
    let in_time = Report::Renewed(ended.deadline().before(MS));
    assert_eq!(renewals.learn(&in_time, ended.deadline() + MS * 500), None);
}

#[test]
fn a_lock_that_is_lost_is_renewed_no_more_and_one_that_is_wanted_is() {
    let mut renewals = of_one_lock();
    let before = renewals.lease().unwrap();
    let cancelled = Report::Cancelled(name("a"), Box::default());
    // Once at once, which shows others that this run has seen it.
    for (at, is_due) in [(START, true), (START + MS, false)] {
        assert_eq!(renewals.learn(&cancelled, at), Some(LeaseEvent::Cancelled));
        assert_eq!(renewals.renewal_is_due(at), is_due);
        renewals.learn(&Report::Renewed(at), at);
    }
    let lease = renewals.lease().unwrap();
    assert!(lease.deadline() >= before.deadline());
    let lost = Report::Lost(name("a"), Loss::default());
    assert_eq!(renewals.learn(&lost, START), Some(LeaseEvent::Lost(lease)));
    assert_eq!((renewals.lease(), renewals.due()), (None, None));
    assert_eq!(renewals.learn(&lost, START), None);
}

#[test]
fn what_is_due_while_a_task_is_under_way_follows_it_and_a_renewal_comes_first() {
    let mut renewals = of_one_lock();
    let first = renewals.due().unwrap();
    renewals.on_key_changed(START);
    assert_eq!(renewals.due(), Some(START));
    assert!(renewals.take_check(START));
    renewals.start();
    renewals.on_key_changed(first);
    assert_eq!((renewals.take_check(first), renewals.due()), (false, None));
    renewals.end(Vec::new());
    assert!(!renewals.take_check(first));
    assert!(renewals.renewal_is_due(first));
    renewals.start();
    renewals.end(Vec::new());
    renewals.learn(&Report::Renewed(first), first);
    assert!(renewals.take_check(first));
    assert!(!renewals.take_check(first));
}

#[test]
fn however_often_keys_change_few_questions_are_asked() {
    let mut renewals = Renewals::new(TERMS.ttl);
    let mut asked = 0;
    for passed in 0..1000 {
        let now = START + MS * passed;
        renewals.on_key_changed(now);
        asked += u32::from(renewals.take_check(now));
    }
    assert!((20..=24).contains(&asked), "{asked}");
}

#[test]
fn until_a_grant_is_confirmed_an_answer_has_less_time() {
    let mut renewals = Renewals::new(TERMS.ttl);
    let usual = renewals.start();
    assert_eq!(usual, try_timeout(TERMS.ttl));
    renewals.add_grant(MS * 800);
    let first = renewals.start();
    assert_eq!(first, confirm_timeout(MS * 800, TERMS.ttl));
    assert!(first < usual);
    renewals.end(vec![Report::Confirmed(START, TERMS.ttl)]);
    assert_eq!(renewals.start(), first);
    renewals.end(vec![Report::Renewed(START)]);
    assert_eq!(renewals.start(), usual);
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// So many milliseconds pass.
    Pass(u32),
    /// The answer comes that another lock is ours, to a request of so many milliseconds ago.
    Acquire(u32),
    /// The server does what it was asked.
    Execute,
    /// Its answer comes, or the connection breaks.
    Hear(bool),
    /// The server pushes that a key changed.
    KeyChanged,
    /// The work has one of the locks last for so many seconds.
    Extend(usize, u32),
    /// The work releases one of the locks.
    Release(usize),
    /// Another client takes one of the locks away.
    TakeAway(usize),
}

/// A lock as the server has it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Hold {
    Until(Moment),
    Released,
    TakenAway,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_u32..600).prop_map(Step::Pass),
        2 => (0_u32..300).prop_map(Step::Acquire),
        4 => Just(Step::Execute),
        4 => prop_oneof![9 => Just(true), 1 => Just(false)].prop_map(Step::Hear),
        1 => Just(Step::KeyChanged),
        1 => (0_usize..4, 1_u32..20).prop_map(|(lock, seconds)| Step::Extend(lock, seconds)),
        1 => (0_usize..4).prop_map(Step::Release),
        1 => (0_usize..4).prop_map(Step::TakeAway),
    ];
    prop::collection::vec(step, 1..60)
}

/// A task that is under way.
struct Asked {
    task: Task,
    sent: Moment,
    /// The numbers of the locks that it is for.
    locks: Vec<usize>,
    found: Option<Vec<LeaseState>>,
}

/// A run that acquires one lock after the other, and the server that has them.
struct World {
    now: Moment,
    locks: Vec<Hold>,
    /// The numbers of those that the run knows to be its.
    held: Vec<usize>,
    renewals: Renewals,
    asked: Option<Asked>,
    is_over: bool,
}

impl World {
    /// The first lock was free.
    fn new() -> Self {
        Self {
            now: START,
            locks: vec![Hold::Until(START + TERMS.ttl)],
            held: vec![0],
            renewals: of_one_lock(),
            asked: None,
            is_over: false,
        }
    }

    fn perform(&mut self, step: &Step) {
        match *step {
            Step::Pass(ms) => self.now = self.now + MS * ms,
            Step::Acquire(ago) if self.locks.len() < 4 => {
                let sent = self.now.before(MS * ago);
                let granted = self.now.before(MS * (ago / 2));
                self.held.push(self.locks.len());
                self.locks.push(Hold::Until(granted + TERMS.ttl));
                self.renewals.add(Lease::new(sent, TERMS));
            }
            Step::Execute => self.execute(),
            Step::Hear(is_answer) => self.hear(is_answer),
            Step::KeyChanged => self.renewals.on_key_changed(self.now),
            Step::Extend(lock, seconds) => {
                let longer = self.now + MS * 1000 * seconds;
                if let Some(Hold::Until(until)) = self.locks.get_mut(lock)
                    && *until > self.now
                {
                    *until = (*until).max(longer);
                }
            }
            Step::Release(lock) => self.end(lock, Hold::Released),
            Step::TakeAway(lock) => self.end(lock, Hold::TakenAway),
            Step::Acquire(_) => {}
        }
        self.look();
    }

    /// As the loops of `redlock run` do: the renewal that the lease wants, and what follows an answer.
    fn look(&mut self) {
        if self.renewals.renewal_is_due(self.now) {
            self.ask(Task::Renew);
        } else if self.renewals.take_check(self.now) {
            self.ask(Task::Check);
        }
    }

    fn end(&mut self, lock: usize, end: Hold) {
        if let Some(hold @ Hold::Until(_)) = self.locks.get_mut(lock) {
            *hold = end;
        }
    }

    fn ask(&mut self, task: Task) {
        self.renewals.start();
        self.asked = Some(Asked {
            task,
            sent: self.now,
            locks: self.held.clone(),
            found: None,
        });
    }

    fn execute(&mut self) {
        let (now, locks) = (self.now, &mut self.locks);
        let Some(asked) = self.asked.as_mut().filter(|asked| asked.found.is_none()) else {
            return;
        };
        let mut state = |lock: &usize| match &mut locks[*lock] {
            Hold::Until(until) if *until > now => {
                if asked.task == Task::Renew {
                    *until = (*until).max(now + TERMS.ttl);
                }
                held(until.since(now))
            }
            Hold::Released => LeaseState::Released,
            Hold::Until(_) | Hold::TakenAway => LeaseState::Lost(Loss::default()),
        };
        asked.found = Some(asked.locks.iter().map(&mut state).collect());
    }

    fn hear(&mut self, is_answer: bool) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        let found = match (asked.found, is_answer) {
            (Some(states), true) => {
                let claims: Vec<Claim> = asked.locks.iter().copied().map(claim).collect();
                if asked.task == Task::Renew {
                    reports_of_renewal(&claims, states, asked.sent)
                } else {
                    reports_of_check(&claims, states, asked.sent)
                }
            }
            (None, true) => {
                self.asked = Some(Asked {
                    found: None,
                    ..asked
                });
                return;
            }
            (_, false) => vec![Report::Failed(Error::new(
                ErrorKind::Unreachable,
                String::new(),
            ))],
        };
        for report in self.renewals.end(found) {
            if let Report::Released(name) = &report {
                self.held.retain(|lock| claim(*lock).lock().name() != name);
            }
            // The command is stopped then, whatever comes after that.
            let event = self.renewals.learn(&report, self.now);
            self.is_over |= matches!(event, Some(LeaseEvent::Lost(_) | LeaseEvent::Cancelled));
        }
    }

    /// Whether the server has each lock for us for as long as we count on all; but for those that the work has released
    /// or another client has taken away.
    fn is_covered(&self) -> bool {
        let deadline = self.renewals.lease().map(|lease| lease.deadline());
        self.locks.iter().all(|hold| match hold {
            Hold::Until(until) => deadline.is_none_or(|deadline| *until >= deadline),
            Hold::Released | Hold::TakenAway => true,
        })
    }

    /// Whether another renewal will come.
    fn goes_on(&self) -> bool {
        self.asked.is_some() || self.renewals.due().is_some()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_lease_of_several_locks_outlasts_one_of_them_and_they_are_renewed_to_the_end(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.perform(step);
            if world.is_over || world.held.is_empty() {
                break;
            }
            prop_assert!(world.is_covered(), "{step:?} at {:?}: {:?}, {:?}", world.now, world.locks, world.renewals);
            prop_assert!(world.goes_on(), "{step:?} at {:?}: {:?}, {:?}", world.now, world.locks, world.renewals);
        }
    }
}

use proptest::prelude::*;

use super::*;
use crate::lease::{Lease, Terms};
use crate::lock::{Access, ErrorKind, Locks, Token};

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
        is_grant: false,
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
fn a_renewal_lasts_as_long_as_was_asked_for_and_a_check_as_long_as_the_first_of_all() {
    let claims = [claim(0), claim(1), claim(2)];
    let states = || vec![held(MS * 700), LeaseState::Released, held(MS * 500)];
    assert!(matches!(
        of_renewal(&claims, states(), START)[..],
        [Report::Renewed(START), Report::Released(_)]
    ));
    let found = of_check(&claims, states(), START);
    assert!(matches!(
        found[..],
        [Report::Confirmed(START, left), Report::Released(_)] if left == MS * 500
    ));
    let gone = || vec![LeaseState::Released];
    assert!(matches!(
        of_renewal(&claims, gone(), START)[..],
        [Report::Released(_), Report::RenewedInPart]
    ));
    assert!(matches!(
        of_check(&claims, gone(), START)[..],
        [Report::Released(_)]
    ));
}

#[test]
fn what_is_due_while_a_task_is_under_way_follows_it() {
    let mut renewals = Renewals::new(TERMS.ttl);
    assert!(renewals.renew(false));
    assert_eq!(renewals.next_task(START), None, "it was started");
    assert!(!renewals.renew(true));
    renewals.on_key_changed(START);
    assert_eq!(
        (renewals.due(true), renewals.due(false)),
        (None, Some(START))
    );
    assert_eq!(renewals.next_task(START), Some(Task::Renew));
    assert_eq!(renewals.next_task(START), Some(Task::Check));
    assert_eq!(renewals.next_task(START), None);
}

#[test]
fn however_often_keys_change_and_connections_are_closed_few_questions_are_asked() {
    let mut renewals = Renewals::new(TERMS.ttl);
    let mut asked = 0;
    for passed in 0..1000 {
        let now = START + MS * passed;
        renewals.on_key_changed(now);
        asked += u32::from(renewals.next_task(now).is_some());
    }
    assert!((20..=24).contains(&asked), "{asked}");
    assert!(!renewals.may_ask_at_once(START + MS * 1000));
    assert!(renewals.may_ask_at_once(START + MS * 60_000));
}

#[test]
fn a_password_that_ends_soon_is_replaced_after_a_renewal_and_after_nothing_else() {
    let mut renewals = Renewals::new(TERMS.ttl);
    renewals.end(vec![Report::Confirmed(START, TERMS.ttl)], true);
    assert_eq!(renewals.next_task(START), None);
    renewals.end(vec![Report::Renewed(START)], false);
    assert_eq!(renewals.next_task(START), None);
    renewals.end(vec![Report::Renewed(START)], true);
    assert_eq!(renewals.next_task(START), Some(Task::Reconnect));
    assert_eq!(renewals.next_task(START), None);
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
    renewals.end(vec![Report::Confirmed(START, TERMS.ttl)], false);
    assert_eq!(renewals.start(), first);
    renewals.end(vec![Report::Renewed(START)], false);
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
    lease: Lease,
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
            lease: Lease::new(START, TERMS),
            renewals: Renewals::new(TERMS.ttl),
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
                let new = Lease::new(sent, TERMS);
                self.renewals.add(self.asked.is_some());
                self.lease = self.lease.merged_with(new);
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
        let (now, is_busy) = (self.now, self.asked.is_some());
        if self.lease.start_renewal_if_due(now) && self.renewals.renew(is_busy) {
            self.ask(Task::Renew);
        }
        if self.asked.is_none()
            && let Some(task) = self.renewals.next_task(now)
        {
            self.ask(task);
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
                    of_renewal(&claims, states, asked.sent)
                } else {
                    of_check(&claims, states, asked.sent)
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
        for report in self.renewals.end(found, false) {
            if let Report::Released(name) = &report {
                self.held.retain(|lock| claim(*lock).lock().name() != name);
            }
            let lease = &mut self.lease;
            match report.lease_event() {
                LeaseEvent::Renewed(sent) => lease.renewed(sent),
                LeaseEvent::RenewedInPart => lease.renewed_in_part(self.now),
                LeaseEvent::Confirmed(sent, left) => lease.confirmed(sent, left),
                LeaseEvent::RenewalFailed => lease.renewal_failed(self.now),
                LeaseEvent::Released => {}
                // The command is stopped, whatever comes after that.
                LeaseEvent::Lost | LeaseEvent::Cancelled => self.is_over = true,
            }
        }
    }

    /// Whether the server has each lock for us for as long as we count on all; but for those that the work has released
    /// or another client has taken away.
    fn is_covered(&self) -> bool {
        self.locks.iter().all(|hold| match hold {
            Hold::Until(until) => *until >= self.lease.deadline(),
            Hold::Released | Hold::TakenAway => true,
        })
    }

    /// Whether another renewal will come.
    fn goes_on(&self) -> bool {
        self.asked.is_some() || self.lease.renew_at().is_some()
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
            prop_assert!(world.is_covered(), "{step:?} at {:?}: {:?}, {:?}", world.now, world.locks, world.lease);
            prop_assert!(world.goes_on(), "{step:?} at {:?}: {:?}, {:?}", world.now, world.locks, world.lease);
        }
    }
}

use proptest::prelude::*;

use super::*;
use crate::decide::lease::{Lease, Terms};
use crate::protocol::ErrorKind;

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

/// Returns the name of the lock with this number.
fn lock(number: usize) -> Name {
    name(&format!("lock-{number}"))
}

fn held(left: Duration) -> LeaseState {
    LeaseState::Held {
        left,
        cancelled_by: None,
    }
}

fn lost() -> LeaseState {
    LeaseState::Lost(Loss::default())
}

fn failed() -> Error {
    Error::new(ErrorKind::Unreachable, String::new())
}

/// Returns an answer about the locks from 0 on.
fn answer(task: Task, sent: Moment, states: Vec<LeaseState>) -> Answer {
    let locks = (0..).map(lock);
    Answer {
        task,
        sent,
        states: locks.zip(states).collect(),
    }
}

fn renewed(sent: Moment) -> Answer {
    answer(Task::Renew, sent, vec![held(TERMS.ttl)])
}

/// Ends a task of these renewals, at this moment. Returns the news in short. `H` is a renewal and `h` a
/// check, with a `!` if it was too late. `L`, `C`, `O` and `R` have the number of the lock. `F` is a failure.
fn end(renewals: &mut Renewals, answer: Result<Answer, Error>, now: Moment) -> String {
    let short = |news: LockNews| match news {
        LockNews::Held {
            is_renewed,
            too_late,
        } => {
            let held = if is_renewed { "H" } else { "h" };
            held.to_owned() + too_late.map_or("", |_| "!")
        }
        LockNews::Lost { name, .. } => name.as_str().replace("lock-", "L"),
        LockNews::Cancelled(name, _) => name.as_str().replace("lock-", "C"),
        LockNews::Over(name) => name.as_str().replace("lock-", "O"),
        LockNews::Released(name) => name.as_str().replace("lock-", "R"),
        LockNews::Failed(_) => "F".into(),
    };
    let news = renewals.end(vec![answer], now).into_iter().map(short);
    news.collect::<Vec<_>>().join(" ")
}

/// Returns renewals of so many locks, each acquired at START.
fn of_locks(many: usize) -> Renewals {
    of_leases(many, Lease::new(START, TERMS))
}

/// Returns renewals of guards of so many holds, each admitted at START.
fn of_guards(many: usize) -> Renewals {
    of_leases(many, Lease::of_another(START, TERMS.ttl, TERMS))
}

fn of_leases(many: usize, lease: Lease) -> Renewals {
    let mut renewals = Renewals::new();
    (0..many).for_each(|number| renewals.add(lock(number), lease));
    renewals
}

fn deadline(renewals: &Renewals) -> Option<Moment> {
    renewals.lease().map(|lease| lease.deadline())
}

#[test]
fn a_loss_comes_before_the_lease_of_the_others_and_all_else_after_it() {
    let cancelled = LeaseState::Held {
        left: TERMS.ttl,
        cancelled_by: Some(Box::default()),
    };
    let states = vec![LeaseState::Released, lost(), cancelled];
    let answer = answer(Task::Renew, START, states);
    assert_eq!(end(&mut of_locks(3), Ok(answer), START), "L1 H R0 C2");
}

#[test]
fn a_guard_ends_with_the_run_and_asks_no_more_often_for_that_than_after_a_failure() {
    let mut renewals = of_guards(1);
    let now = START + 100 * MS;
    assert!(renewals.renewal_is_due(now));
    let before = deadline(&renewals);
    let over = answer(Task::Follow, now, vec![LeaseState::Released]);
    for _ in ["first", "second"] {
        assert_eq!(end(&mut renewals, Ok(over.clone()), now), "O0");
        assert!(!renewals.renewal_is_due(now));
    }
    assert_eq!(deadline(&renewals), before);
}

#[test]
fn work_that_guards_a_hold_that_is_over_lives_no_longer_by_another_one() {
    let sent = START + MS * 1000;
    let [short, long] = [TERMS.ttl, TERMS.ttl * 2];
    let mut renewals = of_guards(2);
    let states = vec![held(long), held(short)];
    let followed = answer(Task::Follow, sent, states);
    assert_eq!(end(&mut renewals, Ok(followed), sent), "H");
    let expected = Lease::of_another(sent, short, TERMS).deadline();
    assert_eq!(deadline(&renewals), Some(expected));
    let states = vec![LeaseState::Released, held(long)];
    let over = answer(Task::Follow, sent + MS, states);
    assert_eq!(end(&mut renewals, Ok(over), sent + MS), "O0");
    assert_eq!(deadline(&renewals), Some(expected));
}

#[test]
fn a_renewal_lasts_as_long_as_was_asked_for_and_a_check_as_long_as_the_first_of_all() {
    let [short, long] = [TERMS.ttl * 2, TERMS.ttl * 3];
    let states = || vec![held(long), LeaseState::Released, held(short)];
    for (task, news, length) in [
        (Task::Renew, "H R1", TERMS.ttl),
        (Task::Check, "h R1", short),
    ] {
        let mut renewals = of_locks(3);
        let sent = START + MS;
        let answer = answer(task, sent, states());
        assert_eq!(end(&mut renewals, Ok(answer), sent), news);
        assert_eq!(renewals.lease().unwrap().length(), length, "{task:?}");
        let gone = self::answer(task, sent, vec![LeaseState::Released]);
        assert_eq!(end(&mut of_locks(1), Ok(gone), sent), "R0");
    }
}

#[test]
fn a_lock_that_was_released_is_neither_released_nor_lost_again() {
    let mut renewals = of_locks(2);
    let states = |first| answer(Task::Check, START, vec![first, held(TERMS.ttl)]);
    let released = states(LeaseState::Released);
    assert_eq!(end(&mut renewals, Ok(released.clone()), START), "h R0");
    assert_eq!(end(&mut renewals, Ok(released), START), "h");
    assert_eq!(end(&mut renewals, Ok(states(lost())), START), "h");
}

#[test]
fn a_renewal_is_due_once_and_again_after_its_answer() {
    let mut renewals = of_locks(1);
    let first = renewals.due().unwrap();
    assert!(!renewals.renewal_is_due(first.before(MS)) && renewals.renewal_is_due(first));
    renewals.start(first);
    assert!(!renewals.renewal_is_due(first + MS * 500));
    assert_eq!(renewals.due(), None);
    end(&mut renewals, Ok(renewed(first)), first + MS * 500);
    assert_eq!(renewals.due(), Some(first + TERMS.ttl / 3));
    end(&mut renewals, Err(failed()), first + MS * 900);
    assert_eq!(renewals.due(), Some(first + MS * 900 + TERMS.ttl / 20));
    renewals.give_up();
    assert_eq!(renewals.due(), None);
}

#[test]
fn the_first_task_is_remembered_and_the_one_under_way_until_it_ends() {
    let mut renewals = of_locks(1);
    let state = |renewals: &Renewals| (renewals.has_started(), renewals.is_under_way());
    assert_eq!(state(&renewals), (false, false));
    renewals.start(START);
    assert_eq!(state(&renewals), (true, true));
    renewals.end(Vec::new(), START);
    assert_eq!(state(&renewals), (true, false));
}

#[test]
fn the_server_is_asked_in_vain_since_the_first_question_without_an_answer() {
    let mut renewals = of_locks(1);
    assert_eq!(renewals.asks_since(), None);
    for at in [START, START + MS] {
        renewals.start(at);
        assert_eq!(renewals.asks_since(), Some(START));
        end(&mut renewals, Err(failed()), at);
    }
    end(&mut renewals, Ok(renewed(START)), START);
    assert_eq!(renewals.asks_since(), None);
    // A connection that breaks in between is no request.
    renewals.fail(failed(), START);
    assert_eq!(renewals.asks_since(), None);
}

#[test]
fn leases_are_renewed_for_the_shortest_length_and_at_the_moment_that_is_named() {
    let mut renewals = of_locks(1);
    let terms = |ttl| Terms { ttl, ..TERMS };
    for (ttl, shortest) in [(TERMS.ttl * 2, TERMS.ttl), (TERMS.ttl / 2, TERMS.ttl / 2)] {
        renewals.add(lock(1), Lease::new(START, terms(ttl)));
        assert_eq!(renewals.ttl(), shortest);
        assert_eq!(renewals.start(START), try_timeout(shortest));
        renewals.end(Vec::new(), START);
    }
    renewals.renew_now(START + MS);
    assert_eq!(renewals.due(), Some(START + MS));
}

#[test]
fn a_renewal_of_a_part_of_the_locks_is_followed_by_one_of_all() {
    let renewals = of_locks(1);
    let before = deadline(&renewals);
    // Before the first renewal of the added lock is due.
    let heard = START + MS * 20;
    for (task, state, news) in [
        (Task::Renew, held(TERMS.ttl), ""),
        (Task::Check, held(TERMS.ttl * 2), ""),
        (Task::Renew, LeaseState::Released, "R0"),
    ] {
        let mut renewals = renewals.clone();
        renewals.start(START);
        renewals.add(lock(1), Lease::new(START, TERMS));
        let answer = answer(task, START + MS * 10, vec![state]);
        assert_eq!(end(&mut renewals, Ok(answer), heard), news);
        assert_eq!(deadline(&renewals), before);
        assert_eq!(renewals.renewal_is_due(heard), task == Task::Renew);
    }
}

#[test]
fn an_answer_to_what_was_sent_after_the_end_of_the_lease_comes_with_that_lease() {
    let ended = of_locks(1).lease().unwrap();
    for (task, news) in [(Task::Renew, "H!"), (Task::Check, "h!")] {
        let mut renewals = of_locks(1);
        let heard = ended.deadline() + MS;
        let late = || answer(task, ended.deadline(), vec![held(TERMS.ttl * 2)]);
        assert_eq!(end(&mut renewals, Ok(late()), heard), news);
        assert!(deadline(&renewals) > Some(heard), "it is ours still");
        assert!(matches!(
            of_locks(1).end(vec![Ok(late())], heard)[..],
            [LockNews::Held { too_late, .. }] if too_late == Some(ended)
        ));
    }
    let mut renewals = of_locks(1);
    let in_time = renewed(ended.deadline().before(MS));
    let heard = ended.deadline() + MS * 500;
    assert_eq!(end(&mut renewals, Ok(in_time), heard), "H");
}

#[test]
fn a_lock_that_is_lost_is_renewed_no_more_and_one_that_is_wanted_is() {
    let mut renewals = of_locks(1);
    let before = deadline(&renewals);
    let cancelled = LeaseState::Held {
        left: TERMS.ttl,
        cancelled_by: Some(Box::default()),
    };
    // A single renewal at once, which shows others that this run has seen the request.
    for (at, is_due) in [(START, true), (START + MS, false)] {
        let cancelled = answer(Task::Renew, at, vec![cancelled.clone()]);
        assert_eq!(end(&mut renewals, Ok(cancelled), at), "H C0");
        assert_eq!(renewals.renewal_is_due(at), is_due);
    }
    assert!(deadline(&renewals) >= before);
    let lease = renewals.lease();
    let gone = || answer(Task::Renew, START, vec![lost()]);
    assert!(matches!(
        &renewals.clone().end(vec![Ok(gone())], START)[..],
        [LockNews::Lost { lease: of_all, .. }] if *of_all == lease
    ));
    assert_eq!(end(&mut renewals, Ok(gone()), START), "L0");
    assert_eq!((renewals.lease(), renewals.due()), (None, None));
    assert_eq!(end(&mut renewals, Ok(gone()), START), "");
}

#[test]
fn an_answer_has_lost_a_lock_if_any_of_its_locks_is_lost() {
    let states = [
        (vec![held(MS), held(MS)], false),
        (vec![held(MS), LeaseState::Released], false),
        (vec![held(MS), lost()], true),
    ];
    for (states, has_lost) in states {
        let answer = answer(Task::Renew, START, states);
        assert_eq!(answer.has_lost(), has_lost, "{answer:?}");
    }
}

#[test]
fn what_is_lost_of_several_locks_leaves_the_lease_of_the_others() {
    let mut renewals = of_locks(2);
    let first = answer(Task::Check, START, vec![lost()]);
    assert_eq!(end(&mut renewals, Ok(first), START), "L0");
    assert!(renewals.lease().is_some() && !renewals.holds(&lock(0)));
    let second = answer(Task::Check, START, vec![lost(), lost()]);
    assert_eq!(end(&mut renewals, Ok(second), START), "L1");
    assert_eq!(renewals.lease(), None);
}

#[test]
fn what_is_due_while_a_task_is_under_way_follows_it_and_a_renewal_comes_first() {
    let mut renewals = of_locks(1);
    let first = renewals.due().unwrap();
    renewals.on_key_changed(START);
    assert_eq!(renewals.due(), Some(START));
    assert!(renewals.take_check(START));
    renewals.start(START);
    renewals.on_key_changed(first);
    assert_eq!((renewals.take_check(first), renewals.due()), (false, None));
    renewals.end(Vec::new(), first);
    assert!(!renewals.take_check(first));
    assert!(renewals.renewal_is_due(first));
    renewals.start(first);
    end(&mut renewals, Ok(renewed(first)), first);
    assert!(renewals.take_check(first));
    assert!(!renewals.take_check(first));
}

#[test]
fn however_often_keys_change_few_questions_are_asked() {
    let mut renewals = Renewals::new();
    let mut checks = 0;
    for passed in 0..1000 {
        let now = START + MS * passed;
        renewals.on_key_changed(now);
        checks += u32::from(renewals.take_check(now));
    }
    assert!((20..=24).contains(&checks), "{checks}");
}

#[test]
fn until_a_grant_is_confirmed_an_answer_has_less_time() {
    let mut renewals = of_locks(1);
    let usual = renewals.start(START);
    assert_eq!(usual, try_timeout(TERMS.ttl));
    renewals.add_grant(MS * 800);
    let first = renewals.start(START);
    assert_eq!(first, confirm_timeout(MS * 800, TERMS.ttl));
    assert!(first < usual);
    let checked = answer(Task::Check, START, vec![held(TERMS.ttl)]);
    end(&mut renewals, Ok(checked), START);
    assert_eq!(renewals.start(START), first);
    end(&mut renewals, Ok(renewed(START)), START);
    assert_eq!(renewals.start(START), usual);
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    /// So many milliseconds pass.
    Pass(u32),
    /// Another lock is acquired, by an answer to a request sent so many milliseconds ago.
    Acquire(u32),
    /// The server executes the task.
    Execute,
    /// The answer comes, or the connection breaks.
    Hear(bool),
    /// The server pushes that a key changed.
    KeyChanged,
    /// The work extends a lock to so many seconds.
    Extend(usize, u32),
    /// The work releases a lock.
    Release(usize),
    /// Another client takes a lock away.
    TakeAway(usize),
}

/// State of a lock on the server.
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
    /// Numbers of the locks that the task is for.
    locks: Vec<usize>,
    found: Option<Vec<LeaseState>>,
}

/// A run that acquires one lock after the other, and the server that has them.
struct World {
    now: Moment,
    locks: Vec<Hold>,
    /// Numbers of the locks that the run takes for held.
    held: Vec<usize>,
    renewals: Renewals,
    asked: Option<Asked>,
    is_over: bool,
}

impl World {
    /// Returns a world in which the first lock was free.
    fn new() -> Self {
        Self {
            now: START,
            locks: vec![Hold::Until(START + TERMS.ttl)],
            held: vec![0],
            renewals: of_locks(1),
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
                let number = self.locks.len() - 1;
                self.renewals.add(lock(number), Lease::new(sent, TERMS));
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

    /// Starts the next task as the loops of `redlock run` do: a due renewal first, then a check.
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
        self.renewals.start(self.now);
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
            Hold::Until(_) | Hold::TakenAway => lost(),
        };
        asked.found = Some(asked.locks.iter().map(&mut state).collect());
    }

    fn hear(&mut self, is_answer: bool) {
        let Some(asked) = self.asked.take() else {
            return;
        };
        let answer = match (asked.found, is_answer) {
            (Some(states), true) => Ok(Answer {
                task: asked.task,
                sent: asked.sent,
                states: asked.locks.into_iter().map(lock).zip(states).collect(),
            }),
            (None, true) => {
                self.asked = Some(Asked {
                    found: None,
                    ..asked
                });
                return;
            }
            (_, false) => Err(failed()),
        };
        let news = self.renewals.end(vec![answer], self.now);
        self.held
            .retain(|&number| self.renewals.holds(&lock(number)));
        // Later news doesn't matter, because the command is stopped.
        let is_end =
            |news: &LockNews| matches!(news, LockNews::Lost { .. } | LockNews::Cancelled(..));
        self.is_over |= news.iter().any(is_end);
    }

    /// Returns true if the server has every lock for this run at least until the run's deadline, except locks
    /// that the work has released or another client has taken away.
    fn is_covered(&self) -> bool {
        let deadline = self.renewals.lease().map(|lease| lease.deadline());
        self.locks.iter().all(|hold| match hold {
            Hold::Until(until) => deadline.is_none_or(|deadline| *until >= deadline),
            Hold::Released | Hold::TakenAway => true,
        })
    }

    /// Returns true if another renewal will come.
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

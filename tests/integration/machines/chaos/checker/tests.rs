//! Histories written by hand: each kind of violation is found, and what the manual allows passes.

use super::super::history::{
    Forgets, History, Hit, Job, JobKind, MS, Nanos, OperatorAction, OperatorCommand, Process,
    ProcessFault, Role, SECOND, SHARED, SiteFault, Span, Task, read_back, write_down,
};
use super::{Chances, Class, Verdict};

/// A run whose command beats from the one millisecond to the other, under an exclusive lock "a" of two seconds. Its fence is
/// when it began.
fn run(id: u32, from: Nanos, until: Nanos) -> Job {
    let span = Span::new(from * MS, until * MS);
    let process = Process {
        pid: i32::try_from(id).unwrap(),
        is_descendant: false,
        names: vec!["a".into()],
        fences: vec![u64::try_from(from * 1000).unwrap()],
        limit: 1,
        ends: span.until,
        periods: vec![span],
    };
    Job {
        id,
        kind: JobKind::Run,
        words: "redlock run".into(),
        names: vec!["a".into()],
        limit: 1,
        ttl: 2 * SECOND,
        kill_after: 100 * MS,
        extends: 0,
        patience: 10 * SECOND,
        once_per: None,
        supersedes: false,
        started: span.from - 10 * MS,
        ended: Some(span.until + 10 * MS),
        status: Some(0),
        said: String::new(),
        processes: vec![process],
        hits: Vec::new(),
        tasks: Vec::new(),
    }
}

impl Job {
    fn limited(mut self, limit: u32) -> Self {
        self.limit = limit;
        self.processes[0].limit = limit;
        self
    }

    fn with_fence(mut self, fence: u64) -> Self {
        self.processes[0].fences = vec![fence];
        self
    }

    fn of_kind(mut self, kind: JobKind) -> Self {
        self.kind = kind;
        if kind == JobKind::Plain {
            self.processes[0].fences.clear();
        }
        self
    }

    /// Come at this millisecond.
    fn come(mut self, at: Nanos) -> Self {
        self.started = at * MS;
        self
    }

    fn hit(mut self, role: Role, fault: ProcessFault, from: Nanos, until: Nanos) -> Self {
        let span = Span::new(from * MS, until * MS);
        self.hits.push(Hit {
            pid: 1,
            role,
            fault,
            span,
            aim: "at random".into(),
        });
        self
    }

    fn wrote(mut self, fence: u64, from: Nanos, until: Nanos, status: i32) -> Self {
        self.tasks.push(Task {
            label: "fence".into(),
            span: Span::new(from * MS, until * MS),
            status,
            name: "a".into(),
            fence: Some(fence),
        });
        self
    }

    /// COMMAND ends then, and a descendant goes on.
    fn survived_from(mut self, at: Nanos) -> Self {
        let mut descendant = self.processes[0].clone();
        descendant.is_descendant = true;
        self.processes[0].periods[0].until = at * MS;
        self.processes.push(descendant);
        self
    }
}

fn history(jobs: Vec<Job>) -> History {
    History {
        jobs,
        healed: 100 * SECOND,
        ended: 100 * SECOND,
        ..History::default()
    }
}

fn fault(from: Nanos, until: Nanos) -> SiteFault {
    SiteFault {
        what: "something".into(),
        span: Span::new(from * MS, until * MS),
        name: None,
        forgets: Forgets::Nothing,
        promotes: false,
        sets_clock: false,
    }
}

fn command(what: OperatorAction, from: Nanos, until: Nanos) -> OperatorCommand {
    OperatorCommand {
        what,
        name: "a".into(),
        span: Span::new(from * MS, until * MS),
        status: Some(0),
    }
}

fn classes(history: &History) -> Vec<Class> {
    Verdict::of(history)
        .overlaps
        .iter()
        .map(|overlap| overlap.class)
        .collect()
}

/// The promises that are broken, by their first words.
fn broken(history: &History) -> Vec<String> {
    let broken = Verdict::of(history).broken;
    broken
        .iter()
        .map(|broken| broken.promise.split(':').next().unwrap().to_owned())
        .collect()
}

#[test]
fn turns_without_a_gap_are_fine() {
    let calm = history(vec![run(1, 1000, 2000), run(2, 2001, 2500).come(1500)]);
    assert_eq!(classes(&calm), []);
    assert_eq!(broken(&calm), [""; 0]);
    assert_eq!(Verdict::of(&calm).hand_offs, 1);
}

#[test]
fn two_at_a_time_are_forbidden_also_within_a_gap_of_the_first() {
    let two = history(vec![run(1, 1000, 2000), run(2, 1999, 2500)]);
    assert_eq!(classes(&two), [Class::Forbidden]);
    assert_eq!(broken(&two), ["P1"]);
    let mut first = run(1, 1000, 5000);
    let span = |from, until| Span::new(from * MS, until * MS);
    first.processes[0].periods = vec![span(1000, 2000), span(4000, 5000)];
    assert_eq!(
        classes(&history(vec![first, run(2, 2500, 3000)])),
        [Class::Forbidden]
    );
}

#[test]
fn groups_are_held_to_the_smallest_limit() {
    let shared = |id, from, until| run(id, from, until).limited(SHARED);
    let slots = |id, from, until| run(id, from, until).limited(2);
    assert_eq!(
        classes(&history(vec![
            shared(1, 1, 90),
            shared(2, 2, 90),
            shared(3, 3, 90)
        ])),
        []
    );
    assert_eq!(
        classes(&history(vec![slots(1, 1, 90), slots(2, 2, 90)])),
        []
    );
    assert_eq!(
        classes(&history(vec![slots(1, 1, 90), shared(2, 2, 90)])),
        []
    );
    let three = history(vec![slots(1, 1, 90), slots(2, 2, 90), slots(3, 3, 90)]);
    assert_eq!(classes(&three), [Class::Forbidden; 2]);
    assert_eq!(
        classes(&history(vec![shared(1, 1, 90), run(2, 2, 90)])),
        [Class::Forbidden]
    );
    assert_eq!(
        classes(&history(vec![run(1, 1, 90), shared(2, 2, 90)])),
        [Class::Forbidden]
    );
    // One of two that was stopped leaves one too many out.
    let stopped = slots(1, 1, 9000).hit(Role::Supervisor, ProcessFault::Stopped, 100, 8900);
    let two = history(vec![stopped, slots(2, 2, 9000), slots(3, 5000, 8000)]);
    assert_eq!(classes(&two), [Class::Stopped]);
}

#[test]
fn a_suspended_run_may_be_late_until_it_is_resumed_and_no_longer() {
    let of = |resumed, role| run(1, 1000, 6000).hit(role, ProcessFault::Stopped, 1500, resumed);
    let later = || run(2, 4000, 8000);
    assert_eq!(
        classes(&history(vec![of(5900, Role::Supervisor), later()])),
        [Class::Stopped]
    );
    assert_eq!(
        classes(&history(vec![of(5000, Role::Supervisor), later()])),
        [Class::Forbidden]
    );
    // A keeper that is killed while it is stopped does nothing any more.
    let dead = of(5000, Role::Supervisor).of_kind(JobKind::Kept).hit(
        Role::Supervisor,
        ProcessFault::Killed,
        4500,
        4500,
    );
    assert_eq!(classes(&history(vec![dead, later()])), [Class::Stopped]);
    // A supervisor that runs kills a command that is stopped.
    assert_eq!(
        classes(&history(vec![of(5900, Role::Worker), later()])),
        [Class::Forbidden]
    );
    let alone = of(5900, Role::Worker).of_kind(JobKind::Unkept);
    assert_eq!(classes(&history(vec![alone, later()])), [Class::Stopped]);
}

#[test]
fn a_command_that_was_stopped_before_its_start_never_starts_under_an_ended_lease() {
    let with = |from, kind| {
        let late = run(2, from, 5890)
            .come(900)
            .of_kind(kind)
            .with_fence(1_400_000)
            .hit(Role::Supervisor, ProcessFault::Stopped, 1500, 5400);
        classes(&history(vec![run(1, 4000, 9000), late]))
    };
    assert_eq!(with(5400, JobKind::Run), [Class::Forbidden]);
    assert_eq!(with(5400, JobKind::Kept), [Class::Forbidden]);
    // What had been started when it was stopped isn't up to it.
    assert_eq!(with(5390, JobKind::Run), [Class::Stopped]);
}

#[test]
fn a_lease_lasts_also_while_its_supervisor_is_stopped_or_dead() {
    let stopped = run(1, 1000, 6000).hit(Role::Supervisor, ProcessFault::Stopped, 2500, 5900);
    assert_eq!(
        classes(&history(vec![stopped, run(2, 3000, 4000)])),
        [Class::Forbidden]
    );
    // One that was cut off before may not have renewed it.
    let stopped = run(1, 1000, 6000).hit(Role::Supervisor, ProcessFault::Stopped, 2500, 5900);
    let stopped = stopped.hit(Role::Line, ProcessFault::CutOff, 1500, 5900);
    assert_eq!(
        classes(&history(vec![stopped, run(2, 3000, 4000)])),
        [Class::Stopped]
    );
    let killed = || run(1, 1000, 6000).hit(Role::Supervisor, ProcessFault::Killed, 2500, 2500);
    let orphan = || killed().survived_from(2501);
    assert_eq!(
        classes(&history(vec![orphan(), run(2, 3000, 4000)])),
        [Class::Forbidden]
    );
    assert_eq!(
        classes(&history(vec![orphan(), run(2, 4600, 5000)])),
        [Class::Orphaned]
    );
    // The kernel kills COMMAND itself.
    assert_eq!(
        classes(&history(vec![killed(), run(2, 4600, 5000)])),
        [Class::Forbidden]
    );
    let script = killed().of_kind(JobKind::Kept);
    assert_eq!(
        classes(&history(vec![script, run(2, 4600, 5000)])),
        [Class::Orphaned]
    );
}

#[test]
fn force_allows_two_until_the_first_has_noticed() {
    let with = |until| {
        let mut history = history(vec![run(1, 1000, until), run(2, 2010, 5000)]);
        history
            .commands
            .push(command(OperatorAction::Force, 2000, 2020));
        classes(&history)
    };
    assert_eq!(with(2200), [Class::Forced]);
    assert_eq!(with(3500), [Class::Forbidden]);
}

#[test]
fn force_allows_two_where_the_first_has_learnt_late_that_it_has_the_lock() {
    let with = |until| {
        let first = run(1, 2030, 2060).with_fence(1_900_000).come(900);
        let second = run(2, 2020, 5000);
        let mut history = history(vec![first, second]);
        history
            .commands
            .push(command(OperatorAction::Force, 1000, until));
        classes(&history)
    };
    assert_eq!(with(2010), [Class::Forced]);
    // It got the lock when the force was over.
    assert_eq!(with(1300), [Class::Forbidden]);
}

#[test]
fn force_allows_two_until_the_lease_ends_of_a_first_that_cannot_be_told() {
    let with = |until| {
        let first = run(1, 1000, until).hit(Role::Line, ProcessFault::CutOff, 1900, 9000);
        let mut history = history(vec![first, run(2, 2010, 9000)]);
        history
            .commands
            .push(command(OperatorAction::Force, 2000, 2020));
        classes(&history)
    };
    assert_eq!(with(3500), [Class::Forced]);
    assert_eq!(with(4500), [Class::Forbidden]);
}

#[test]
fn force_excuses_no_hold_that_began_when_it_was_over() {
    let with = |kind, forced: Nanos| {
        let first = run(1, 4000, 5500).of_kind(kind);
        let mut history = history(vec![first, run(2, 5000, 9000)]);
        history
            .commands
            .push(command(OperatorAction::Force, forced, forced + 10));
        classes(&history)
    };
    for kind in [JobKind::Plain, JobKind::Unkept] {
        assert_eq!(with(kind, 4900), [Class::Forced], "{kind:?}");
        // Granted before, and begun after it.
        assert_eq!(with(kind, 3985), [Class::Forced], "{kind:?}");
        assert_eq!(with(kind, 3500), [Class::Forbidden], "{kind:?}");
    }
    // Who isn't told goes on for no longer than its lease.
    let mut long = history(vec![
        run(1, 1000, 5000).of_kind(JobKind::Plain),
        run(2, 2000, 9000),
    ]);
    long.commands
        .push(command(OperatorAction::Force, 1900, 1910));
    assert_eq!(classes(&long), [Class::Forbidden]);
}

#[test]
fn lost_data_and_clocks_excuse_what_comes_soon_after_and_of_the_same_lock() {
    let with = |fault: SiteFault| {
        let mut history = history(vec![run(1, 1000, 4000), run(2, 3000, 5000)]);
        history.faults.push(fault);
        classes(&history)
    };
    let loses = |from, name: Option<&str>| SiteFault {
        forgets: Forgets::Holds,
        name: name.map(str::to_owned),
        ..fault(from, from)
    };
    assert_eq!(with(loses(2900, None)), [Class::DataLost]);
    assert_eq!(with(loses(2900, Some("a"))), [Class::DataLost]);
    assert_eq!(with(loses(2900, Some("b"))), [Class::Forbidden]);
    assert_eq!(with(loses(1000, None)), [Class::Forbidden]);
    assert_eq!(with(loses(3100, None)), [Class::Forbidden]);
    // What wasn't there yet can't have been lost.
    let after = |came| {
        let mut history = history(vec![run(1, 2500, 3500).come(came), run(2, 3000, 5000)]);
        history.faults.push(loses(1800, None));
        classes(&history)
    };
    assert_eq!(after(2400), [Class::Forbidden]);
    assert_eq!(after(1700), [Class::Forbidden]);
    assert_eq!(
        with(SiteFault {
            sets_clock: true,
            ..fault(2900, 2900)
        }),
        [Class::ClockSet]
    );
    // A failover loses nothing that was confirmed, nor does a restart that holds back what it doesn't know.
    assert_eq!(
        with(SiteFault {
            promotes: true,
            ..fault(2900, 2950)
        }),
        [Class::Forbidden]
    );
    let plain = |fault| {
        let mut history = history(vec![
            run(1, 1000, 4000).of_kind(JobKind::Plain),
            run(2, 3000, 5000),
        ]);
        history.faults.push(fault);
        classes(&history)
    };
    assert_eq!(
        plain(SiteFault {
            promotes: true,
            ..fault(2900, 2950)
        }),
        [Class::Unconfirmed]
    );
}

#[test]
fn a_plain_client_may_lose_what_it_got_before_all_servers_agree_again() {
    let with = |kind, from: Nanos, promotes, troubled: Nanos| {
        let first = run(1, from, from + 1500).of_kind(kind);
        let mut history = history(vec![first, run(2, from + 1000, 9000)]);
        history.faults.push(SiteFault {
            promotes,
            ..fault(1000, 1200)
        });
        history.troubled.push(Span::new(1100 * MS, troubled * MS));
        classes(&history)
    };
    let plain = JobKind::Plain;
    assert_eq!(with(plain, 4000, true, 4200), [Class::Unconfirmed]);
    assert_eq!(with(plain, 4000, true, 3900), [Class::Forbidden]);
    assert_eq!(with(plain, 4000, false, 4200), [Class::Forbidden]);
    assert_eq!(with(JobKind::Run, 4000, true, 4200), [Class::Forbidden]);
    // Nor does the other one have to be the plain client that comes first.
    let mut later = history(vec![run(1, 3000, 4500), run(2, 4000, 5000).of_kind(plain)]);
    later.faults.push(SiteFault {
        promotes: true,
        ..fault(1000, 1200)
    });
    later.troubled.push(Span::new(1100 * MS, 4100 * MS));
    assert_eq!(classes(&later), [Class::Unconfirmed]);
    later.troubled[0].until = 3900 * MS;
    assert_eq!(classes(&later), [Class::Forbidden]);
}

#[test]
fn a_machine_without_a_processor_excuses_as_much_as_it_was_away() {
    let with = |starved: Nanos| {
        let mut history = history(vec![run(1, 1000, 3050), run(2, 3000, 5000)]);
        history
            .starved
            .push(Span::new(2990 * MS, (2990 + starved) * MS));
        classes(&history)
    };
    assert_eq!(with(60), [Class::Starved]);
    assert_eq!(with(40), [Class::Forbidden]);
}

#[test]
fn a_fence_that_doesnt_grow_is_found() {
    let with = |fence| {
        broken(&history(vec![
            run(1, 1000, 2000),
            run(2, 2100, 2500).with_fence(fence),
        ]))
    };
    assert_eq!(with(2_000_000), [""; 0]);
    assert_eq!(with(1_000_000), ["P3"]);
    assert_eq!(with(999_999), ["P3"]);
    let late = run(2, 2100, 2500).with_fence(999_999).hit(
        Role::Supervisor,
        ProcessFault::Stopped,
        2000,
        2099,
    );
    assert_eq!(broken(&history(vec![run(1, 1000, 2000), late])), [""; 0]);
    let mut forced = history(vec![
        run(1, 1000, 2000),
        run(2, 2100, 2500).with_fence(999_999).come(900),
    ]);
    forced
        .commands
        .push(command(OperatorAction::Force, 950, 960));
    assert_eq!(broken(&forced), [""; 0]);
    // Without the state, and by a clock that was set back.
    let mut lost = history(vec![
        run(1, 1000, 2000),
        run(2, 2100, 2500).with_fence(999_999),
    ]);
    lost.faults.push(SiteFault {
        forgets: Forgets::Holds,
        ..fault(2000, 2010)
    });
    assert_eq!(broken(&lost), ["P3"]);
    lost.faults.push(SiteFault {
        sets_clock: true,
        ..fault(2000, 2010)
    });
    assert_eq!(broken(&lost), [""; 0]);
}

#[test]
fn a_resource_that_checks_the_fence_never_goes_back() {
    let with = |from, status| {
        let writes = run(1, 1000, 2000)
            .wrote(7, 1500, 1510, 0)
            .wrote(6, from, 1530, status);
        broken(&history(vec![writes]))
    };
    assert_eq!(with(1520, 1), [""; 0]);
    assert_eq!(with(1520, 0), ["P2"]);
    // The one that began while the other was under way may have been first.
    assert_eq!(with(1505, 0), [""; 0]);
}

#[test]
fn a_freeze_keeps_new_holders_out_until_it_is_thawed_or_over() {
    let with = |from, frozen: Nanos, thawed: Option<Nanos>| {
        let mut history = history(vec![run(1, from, from + 10)]);
        history
            .commands
            .push(command(OperatorAction::Freeze(frozen * MS), 1000, 1010));
        history
            .commands
            .extend(thawed.map(|at| command(OperatorAction::Thaw, at, at + 10)));
        broken(&history)
    };
    assert_eq!(with(2000, 5000, None), ["P4"]);
    assert_eq!(with(1020, 5000, None), [""; 0]);
    assert_eq!(with(2000, 900, None), [""; 0]);
    assert_eq!(with(2000, 5000, Some(1500)), [""; 0]);
    assert_eq!(with(2000, 5000, Some(2500)), ["P4"]);
    let mut lost = history(vec![run(1, 2000, 2010)]);
    lost.commands
        .push(command(OperatorAction::Freeze(5 * SECOND), 1000, 1010));
    lost.faults.push(SiteFault {
        forgets: Forgets::Holds,
        ..fault(1500, 1500)
    });
    assert_eq!(broken(&lost), [""; 0]);
}

#[test]
fn a_success_counts_and_a_failure_doesnt() {
    let once = |id, from: Nanos| Job {
        once_per: Some(SECOND),
        ..run(id, from, from + 10)
    };
    assert_eq!(broken(&history(vec![once(1, 1000), once(2, 1500)])), ["P4"]);
    assert_eq!(
        broken(&history(vec![once(1, 1000), once(2, 2100)])),
        [""; 0]
    );
    assert_eq!(
        broken(&history(vec![once(1, 1000), run(2, 1500, 1510)])),
        [""; 0]
    );
    let unknown = Job {
        said: "redlock: can't release lock \"a\"; it expires within 2s".into(),
        ..once(1, 1000)
    };
    assert_eq!(broken(&history(vec![unknown, once(2, 1500)])), [""; 0]);
    // By the clock of a server, which is ahead, it was granted the lock after the success.
    let before = run(1, 900, 990).with_fence(1_300_000);
    let before = Job {
        once_per: Some(SECOND),
        ..before
    };
    let success = once(2, 1000).with_fence(1_400_000);
    assert_eq!(broken(&history(vec![before, success])), [""; 0]);
    let failed = Job {
        status: Some(3),
        ..once(1, 1000)
    };
    assert_eq!(broken(&history(vec![failed, once(2, 1500)])), [""; 0]);
}

#[test]
fn a_newer_run_makes_the_older_ones_give_up() {
    let newer = Job {
        supersedes: true,
        ..run(1, 5000, 5010).come(4000)
    };
    let older = |came| run(2, 5100, 5110).come(came);
    assert_eq!(
        broken(&history(vec![newer.clone(), older(1000)])),
        ["P7", "P4"]
    );
    assert_eq!(broken(&history(vec![newer.clone(), older(3500)])), [""; 0]);
    assert_eq!(broken(&history(vec![newer, older(4500)])), [""; 0]);
}

#[test]
fn waiters_are_served_in_order_while_nothing_fails() {
    let late = || run(1, 5000, 5010).come(3000);
    let early = || run(2, 5100, 5110).come(1000);
    assert_eq!(broken(&history(vec![late(), early()])), ["P7"]);
    let stopped = early().hit(Role::Supervisor, ProcessFault::Stopped, 2000, 2100);
    assert_eq!(broken(&history(vec![late(), stopped])), [""; 0]);
    let mut troubled = history(vec![late(), early()]);
    troubled.troubled.push(Span::new(2000 * MS, 2100 * MS));
    assert_eq!(broken(&troubled), [""; 0]);
}

#[test]
fn a_lock_that_could_be_had_is_granted_soon() {
    let first = || run(1, 1000, 2000);
    let second = || run(2, 9000, 9100).come(1500);
    assert_eq!(broken(&history(vec![first(), second()])), ["P5"]);
    // Its lease has to run out first.
    let killed = Job {
        ttl: 5 * SECOND,
        ..first()
    }
    .hit(Role::Supervisor, ProcessFault::Killed, 1990, 1990);
    assert_eq!(broken(&history(vec![killed, second()])), [""; 0]);
    let mut troubled = history(vec![first(), second()]);
    troubled.troubled.push(Span::new(2000 * MS, 8900 * MS));
    assert_eq!(broken(&troubled), [""; 0]);
    let mut frozen = history(vec![first(), second()]);
    frozen
        .commands
        .push(command(OperatorAction::Freeze(20 * SECOND), 1500, 1510));
    frozen
        .commands
        .push(command(OperatorAction::Thaw, 8900, 8990));
    assert_eq!(broken(&frozen), [""; 0]);
    // One that gives up without it counts as well.
    let none = Job {
        processes: Vec::new(),
        status: Some(75),
        ended: Some(12 * SECOND),
        ..second()
    };
    assert_eq!(broken(&history(vec![first(), none])), ["P5"]);
}

#[test]
fn only_what_can_have_kept_a_lock_from_a_waiter_excuses_its_wait() {
    let first = || run(1, 1000, 2000);
    let second = || run(2, 9000, 9100).come(1500);
    let with = |name: &str| {
        let mut history = history(vec![first(), second()]);
        history.faults.push(SiteFault {
            name: Some(name.into()),
            ..fault(2500, 8900)
        });
        broken(&history)
    };
    assert_eq!(with("a"), [""; 0]);
    assert_eq!(with("b"), ["P5"]);
    // The lease of one that is killed ends, whatever it leaves and however late another begins.
    let killed = |at| {
        let left = run(1, 1000, 8000).hit(Role::Supervisor, ProcessFault::Killed, at, at);
        broken(&history(vec![
            left.survived_from(at),
            run(2, 12_000, 12_010).come(1500),
        ]))
    };
    assert_eq!(killed(3000), [""; 0]);
    assert_eq!(killed(1900), ["P5"]);
    // One that may have had it unseen didn't any more when another began.
    let unseen = |with_another: bool| {
        let lost = Job {
            processes: Vec::new(),
            status: Some(69),
            ttl: 9 * SECOND,
            said: "redlock: can't reach Redis".into(),
            ..run(1, 1000, 2000)
        };
        let mut jobs = vec![lost, run(3, 9000, 9010).come(1800)];
        jobs.extend(with_another.then(|| run(2, 2100, 2200)));
        broken(&history(jobs))
    };
    assert_eq!(unseen(false), [""; 0]);
    assert_eq!(unseen(true), ["P5"]);
    // One that is stopped has it until its lease ends.
    let stopped = |from| {
        let first = Job {
            ttl: 7 * SECOND,
            ..first()
        };
        let first = first.hit(Role::Supervisor, ProcessFault::Stopped, 1900, 30_000);
        broken(&history(vec![first, run(2, from, from + 10).come(1500)]))
    };
    assert_eq!(stopped(12_000), [""; 0]);
    assert_eq!(stopped(18_000), ["P5"]);
    // Who can have it together with others waits for nobody but those that came before and can't.
    let together = |before: Option<Job>| {
        let one = run(1, 1000, 20_000).limited(SHARED);
        let other = run(2, 9000, 9100).limited(SHARED).come(1500);
        broken(&history([one, other].into_iter().chain(before).collect()))
    };
    let writer = Job {
        processes: Vec::new(),
        status: Some(75),
        ended: Some(8 * SECOND),
        ..run(3, 1200, 2000)
    };
    assert_eq!(together(None), ["P5"]);
    assert_eq!(together(Some(writer)), [""; 0]);
    // One that goes on is no reason, unless it was away for as long.
    let goes_on = |cut_off, cut_off_until| {
        let other = Job {
            processes: Vec::new(),
            status: Some(69),
            ended: Some(12 * SECOND),
            ttl: 20 * SECOND,
            said: "redlock: can't reach Redis".into(),
            ..run(3, 1800, 1900)
        };
        let other = other.hit(Role::Line, ProcessFault::CutOff, cut_off, cut_off_until);
        broken(&history(vec![
            first(),
            run(2, 11_000, 11_010).come(1500),
            other,
        ]))
    };
    assert_eq!(goes_on(1850, 8000), [""; 0]);
    assert_eq!(goes_on(1850, 2500), ["P5"]);
    assert_eq!(goes_on(11_500, 12_000), ["P5"]);
    // What was given back to a server that isn't the primary any more is had until its lease ends.
    let given_back = |promotes| {
        let first = Job {
            ttl: 7 * SECOND,
            ..first()
        };
        let mut history = history(vec![first, second()]);
        history.faults.push(SiteFault {
            promotes,
            ..fault(1900, 2100)
        });
        broken(&history)
    };
    assert_eq!(given_back(true), [""; 0]);
    assert_eq!(given_back(false), ["P5"]);
}

#[test]
fn a_wait_that_is_excused_isnt_counted_as_a_short_one() {
    let with = |troubled: &[(Nanos, Nanos)]| {
        let mut history = history(vec![run(1, 1000, 2000), run(2, 9000, 9100).come(1500)]);
        let spans = troubled.iter();
        history.troubled = spans
            .map(|&(from, until)| Span::new(from * MS, until * MS))
            .collect();
        let waits = Verdict::of(&history).waits;
        (waits.calm, waits.in_part, waits.excused.values().sum())
    };
    // What the first one waited.
    let own = || vec![10 * MS];
    assert_eq!(with(&[(2000, 8000)]), (own(), vec![SECOND], 0));
    assert_eq!(with(&[(2000, 9000)]), (own(), vec![], 1));
    // What is soon enough needs no excuse.
    let mut soon = history(vec![run(1, 1000, 2000), run(2, 2700, 2800).come(1500)]);
    soon.troubled.push(Span::new(1000 * MS, 3000 * MS));
    let waits = Verdict::of(&soon).waits;
    assert_eq!(waits.calm, [10 * MS, 700 * MS]);
    // Who gives up early shows nothing.
    let left = Job {
        processes: Vec::new(),
        status: Some(75),
        patience: SECOND,
        ..run(2, 1500, 3000)
    };
    let waits = Verdict::of(&history(vec![run(1, 1000, 2000), left])).waits;
    assert_eq!((waits.calm, waits.given_up), (own(), vec![1010 * MS]));
    // Nobody waits for a lock that another has.
    let none = Job {
        processes: Vec::new(),
        status: Some(75),
        patience: SECOND,
        ..run(2, 1500, 3000)
    };
    let had = history(vec![run(1, 1000, 9000), none]);
    assert_eq!(Verdict::of(&had).waits.calm, own());
}

#[test]
fn a_process_that_never_ends_or_ends_oddly_is_found() {
    let hangs = Job {
        ended: None,
        status: None,
        ..run(1, 1000, 2000)
    };
    assert_eq!(
        broken(&history(vec![hangs])),
        ["each process ends when all faults are over"]
    );
    let crashed = Job {
        status: Some(101),
        ..run(1, 1000, 2000)
    };
    assert_eq!(
        broken(&history(vec![crashed])),
        ["each process ends with a status that the manual names"]
    );
}

#[test]
fn a_history_that_was_written_down_is_judged_the_same_when_it_is_read() {
    let stopped = run(1, 1000, 6000)
        .hit(Role::Supervisor, ProcessFault::Stopped, 1500, 5900)
        .wrote(7, 1500, 1510, 0)
        .wrote(6, 1520, 1530, 0);
    let mut history = history(vec![stopped, run(2, 4000, 8000), run(3, 7000, 9000)]);
    history.epoch = 5 * SECOND;
    history.faults.push(fault(100, 200));
    history
        .commands
        .push(command(OperatorAction::Freeze(5 * SECOND), 5000, 5010));
    history.troubled.push(Span::new(100 * MS, 210 * MS));
    history.starved.push(Span::new(300 * MS, 320 * MS));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.jsonl");
    write_down(&history, &path);
    let again = read_back(&path);
    assert_eq!(format!("{again:?}"), format!("{history:?}"));
    let judged = |history| format!("{:?}", Verdict::of(history));
    assert_eq!(judged(&again), judged(&history));
}

#[test]
fn the_checker_counts_excused_and_unexcused_chances_to_break_a_promise() {
    let count = |history: &History, what: &str| {
        let chances = Verdict::of(history).chances;
        let found = chances.iter().filter(|(promise, _)| promise.contains(what));
        let found = found.map(|(_, Chances { judged, excused })| (*judged, *excused));
        found.collect::<Vec<_>>()
    };
    let forgets = |name: Option<&str>, from| SiteFault {
        forgets: Forgets::AllButHolds,
        name: name.map(str::to_owned),
        ..fault(from, from + 10)
    };
    // Each is judged, but not where what it is about may have been forgotten; another lock's fault is no excuse.
    let each = |history: &History, what, at| {
        assert_eq!(count(history, what), [(1, 0)], "{what}");
        let mut other = history.clone();
        other.faults.push(forgets(Some("b"), at));
        assert_eq!(count(&other, what), [(1, 0)], "{what}");
        other.faults.push(forgets(Some("a"), at));
        assert_eq!(count(&other, what), [(0, 1)], "{what}");
    };
    let mut frozen = history(vec![run(1, 9000, 9010)]);
    let freeze = |from, length| command(OperatorAction::Freeze(length * MS), from, from + 10);
    frozen.commands.push(freeze(1000, 5000));
    each(&frozen, "freezes", 1500);
    frozen.commands.push(freeze(10_000, 600));
    assert_eq!(count(&frozen, "freezes"), [(1, 1)]);
    let once = |id, from: Nanos| Job {
        once_per: Some(3 * SECOND),
        ..run(id, from, from + 10)
    };
    let skips = Job {
        processes: Vec::new(),
        said: "redlock: skipped: a run of \"a\" succeeded 1s ago".into(),
        ..once(2, 2000)
    };
    each(&history(vec![once(1, 1000), skips]), "once-per", 1500);
    assert_eq!(
        count(&history(vec![once(1, 1000), once(2, 9000)]), "once-per"),
        []
    );
    let newer = Job {
        supersedes: true,
        ..run(1, 5000, 5010).come(4000)
    };
    let older = Job {
        processes: Vec::new(),
        status: Some(75),
        ended: Some(4500 * MS),
        ..run(2, 1000, 2000)
    };
    each(
        &history(vec![newer.clone(), older.clone()]),
        "supersedes",
        4200,
    );
    let stopped = older.hit(Role::Supervisor, ProcessFault::Stopped, 2000, 2100);
    let excused = history(vec![newer, stopped]);
    assert_eq!(count(&excused, "supersedes"), [(0, 1)]);
    let turns = history(vec![
        run(1, 5000, 5010).come(1000),
        run(2, 5100, 5110).come(3000),
    ]);
    each(&turns, "P7", 4000);
}

#[test]
fn the_checker_adds_up_how_long_faults_would_have_excused_two_holders() {
    let loses = |name: Option<&str>, from| SiteFault {
        forgets: Forgets::Holds,
        name: name.map(str::to_owned),
        ..fault(from, from)
    };
    let with = |faults: &[SiteFault]| {
        let plain = run(2, 21_000, 29_000).of_kind(JobKind::Plain);
        let mut history = history(vec![run(1, 1000, 21_000), plain]);
        history.faults = faults.to_vec();
        let verdict = Verdict::of(&history);
        assert_eq!(verdict.held, 20 * SECOND);
        verdict.excusable[&Class::DataLost] / MS
    };
    // Two seconds of lease and 400 ms.
    assert_eq!(with(&[loses(None, 2000)]), 2400);
    assert_eq!(with(&[loses(None, 2000), loses(Some("a"), 3000)]), 3400);
    assert_eq!(with(&[loses(Some("b"), 2000)]), 0);
    assert_eq!(with(&[loses(None, 500)]), 0);
    assert_eq!(with(&[loses(None, 20_000)]), 1000);
}

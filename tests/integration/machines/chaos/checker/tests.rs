//! Tests the checker with histories written by hand: it finds each kind of broken promise, and accepts everything that the
//! manual allows.

use super::super::history::{Process, SHARED};
use super::*;

/// Returns a span, given in milliseconds.
fn span(from: Nanos, until: Nanos) -> Span {
    Span::new(from * MS, until * MS)
}

/// Returns a run whose command beats between two times in milliseconds, under an exclusive lock "a" with a TTL of two seconds.
/// Its fencing token is the time of its start.
fn run(id: u32, from: Nanos, until: Nanos) -> Job {
    let span = span(from, until);
    let process = Process {
        is_descendant: false,
        names: vec!["a".into()],
        fences: vec![u64::try_from(from * 1000).unwrap()],
        limit: 1,
        ends: span.until,
        periods: vec![span],
    };
    Job {
        id,
        names: vec!["a".into()],
        limit: 1,
        ttl: 2 * SECOND,
        kill_after: 100 * MS,
        started: span.from - 10 * MS,
        ended: Some(span.until + 10 * MS),
        status: Some(0),
        processes: vec![process],
        ..Job::default()
    }
}

impl Job {
    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn limited(mut self, limit: u32) -> Self {
        self.limit = limit;
        self.processes[0].limit = limit;
        self
    }

    fn with_fence(self, fence: u64) -> Self {
        self.with(|job| job.processes[0].fences = vec![fence])
    }

    fn kept(self) -> Self {
        self.with(|job| job.is_kept = true)
    }

    /// Sets the start, in milliseconds.
    fn come(self, at: Nanos) -> Self {
        self.with(|job| job.started = at * MS)
    }

    fn suspended(self, from: Nanos, until: Nanos) -> Self {
        self.hit(Role::Supervisor, ProcessFault::Suspended, from, until)
    }

    fn killed(self, at: Nanos) -> Self {
        self.hit(Role::Supervisor, ProcessFault::Killed, at, at)
    }

    fn hit(mut self, role: Role, fault: ProcessFault, from: Nanos, until: Nanos) -> Self {
        self.hits.push(Hit {
            pid: 1,
            role,
            fault,
            span: span(from, until),
        });
        self
    }

    fn wrote(mut self, fence: u64, from: Nanos, until: Nanos, status: i32) -> Self {
        self.tasks.push(Task {
            label: "fence".into(),
            span: span(from, until),
            status,
            name: "a".into(),
            fence: Some(fence),
        });
        self
    }

    /// Ends COMMAND at this time, while a descendant goes on.
    fn survived_from(mut self, at: Nanos) -> Self {
        let mut descendant = self.processes[0].clone();
        descendant.is_descendant = true;
        self.processes[0].periods[0].until = at * MS;
        self.processes.push(descendant);
        self
    }
}

fn history(jobs: &[Job]) -> History {
    History {
        jobs: jobs.to_vec(),
        healed: 100 * SECOND,
        ended: 100 * SECOND,
        ..History::default()
    }
}

impl History {
    fn fault(mut self, from: Nanos, change: impl Fn(&mut SiteFault)) -> Self {
        let mut fault = SiteFault::new("fault", std::time::Duration::ZERO);
        fault.span = span(from, from);
        change(&mut fault);
        self.faults.push(fault);
        self
    }

    fn loss(self, from: Nanos) -> Self {
        self.fault(from, |fault| fault.forgets = Forgets::Holds)
    }
}

fn classes(history: &History) -> Vec<Class> {
    Verdict::of(history).overlaps.into_keys().collect()
}

/// Returns the broken promises.
fn broken(history: &History) -> Vec<&'static str> {
    let broken = Verdict::of(history).broken;
    broken.iter().map(|broken| broken.promise).collect()
}

#[track_caller]
fn assert_kept(history: &History) {
    assert_eq!(broken(history), [""; 0]);
}

#[test]
fn two_that_exclude_each_other_may_not_overlap() {
    assert_kept(&history(&[run(1, 1000, 2000), run(2, 2001, 2500)]));
    let two = history(&[run(1, 1000, 2000), run(2, 1999, 2500)]);
    assert_eq!(classes(&two), [Class::Forbidden]);
    assert_eq!(broken(&two), [P1]);
    let shared = |id, from| run(id, from, 90).limited(SHARED);
    let slots = |id, from| run(id, from, 90).limited(2);
    for (jobs, forbidden) in [
        (vec![shared(1, 1), shared(2, 2), shared(3, 3)], 0),
        (vec![slots(1, 1), shared(2, 2)], 0),
        (vec![slots(1, 1), slots(2, 2), slots(3, 3)], 2),
        (vec![shared(1, 1), run(2, 2, 90)], 1),
        (vec![run(1, 1, 90), shared(2, 2)], 1),
    ] {
        assert_eq!(broken(&history(&jobs)).len(), forbidden, "{jobs:#?}");
    }
}

#[test]
fn a_suspended_or_killed_supervisor_excuses_overlaps_after_its_lease_only() {
    let first = || run(1, 1000, 6000);
    let worker = first().hit(Role::Worker, ProcessFault::Suspended, 1500, 5900);
    let dead = first().kept().suspended(1500, 5000).killed(4500);
    let left = || first().killed(2500).survived_from(2501);
    for (first, from, class) in [
        (first().suspended(1500, 5900), 4000, Class::Suspended),
        // A resumed supervisor stops its command.
        (first().suspended(1500, 5000), 4000, Class::Forbidden),
        (worker, 4000, Class::Forbidden),
        // A keeper that is killed while suspended can't stop anything.
        (dead, 4000, Class::Suspended),
        // The lease of the first had not ended yet.
        (first().suspended(2500, 5900), 3000, Class::Forbidden),
        (left(), 3000, Class::Forbidden),
        (left(), 4600, Class::Orphaned),
        (first().kept().killed(2500), 4600, Class::Orphaned),
        // The kernel kills COMMAND together with its redlock.
        (first().killed(2500), 4600, Class::Forbidden),
    ] {
        let jobs = [first, run(2, from, 8000)];
        assert_eq!(classes(&history(&jobs)), [class], "{jobs:#?}");
    }
    // A waiter that was suspended before the start of its command must not start it.
    let late = |from| {
        let late = run(2, from, 5890).come(900).suspended(1500, 5400);
        late.with_fence(1_400_000)
    };
    let pair = |from| classes(&history(&[run(1, 4000, 9000), late(from)]));
    assert_eq!(pair(5400), [Class::Forbidden]);
    assert_eq!(pair(5390), [Class::Suspended]);
}

#[test]
fn lost_data_clocks_and_processors_excuse_overlaps_soon_after() {
    let two = || history(&[run(1, 1000, 4000), run(2, 3000, 5000)]);
    assert_eq!(classes(&two().loss(2900)), [Class::DataLost]);
    assert_eq!(classes(&two().loss(1000)), [Class::Forbidden]);
    assert_eq!(classes(&two().loss(3100)), [Class::Forbidden]);
    let of = |change: fn(&mut SiteFault)| classes(&two().fault(2900, change));
    assert_eq!(of(|fault| fault.sets_clock = true), [Class::ClockSet]);
    // A failover loses no confirmed lease.
    assert_eq!(of(|fault| fault.promotes = true), [Class::Forbidden]);
    let other = |fault: &mut SiteFault| {
        fault.forgets = Forgets::Holds;
        fault.name = Some("b".into());
    };
    assert_eq!(of(other), [Class::Forbidden]);
    // A hold that began after the loss can't have been lost in it.
    let after = history(&[run(1, 2500, 3500).come(2400), run(2, 3000, 5000)]);
    assert_eq!(classes(&after.loss(1800)), [Class::Forbidden]);
    let starved = |ms: Nanos| {
        let mut two = history(&[run(1, 1000, 3050), run(2, 3000, 5000)]);
        two.starved.push(span(2990, 2990 + ms));
        classes(&two)
    };
    assert_eq!(starved(60), [Class::Starved]);
    assert_eq!(starved(40), [Class::Forbidden]);
}

#[test]
fn fencing_tokens_grow() {
    let next = |fence| run(2, 2100, 2500).with_fence(fence);
    let with = |next| history(&[run(1, 1000, 2000), next]);
    assert_kept(&with(next(2_000_000)));
    assert_eq!(broken(&with(next(1_000_000))), [P3]);
    assert_eq!(broken(&with(next(999_999))), [P3]);
    assert_kept(&with(next(999_999).suspended(2000, 2099)));
    // A token without the lock's state comes from the clock, which was set back here.
    let lost = with(next(999_999)).loss(2000);
    assert_eq!(broken(&lost), [P3]);
    assert_kept(&lost.fault(2000, |fault| fault.sets_clock = true));
}

#[test]
fn a_resource_that_checks_the_token_never_goes_back() {
    let with = |from, status| {
        let writes = run(1, 1000, 2000).wrote(7, 1500, 1510, 0);
        broken(&history(&[writes.wrote(6, from, 1530, status)]))
    };
    assert_eq!(with(1520, 1), [""; 0]);
    assert_eq!(with(1520, 0), [P2]);
    // The write may have been first.
    assert_eq!(with(1505, 0), [""; 0]);
}

#[test]
fn a_process_that_never_ends_or_ends_oddly_is_found() {
    let mut job = run(1, 1000, 2000);
    job.status = Some(101);
    assert_eq!(broken(&history(&[job.clone()])), [STATUS]);
    (job.ended, job.status) = (None, None);
    assert_eq!(broken(&history(&[job])), [ENDS]);
}

//! How often the promises of `orders` could have been broken, and how often something would have excused it.

use super::super::history::{History, Job, JobKind, Nanos, Span};
use super::orders::{
    CLOCKS, QUEUED, freezes, has_succeeded, is_quiet, is_starved, may_have_forgotten,
};
use super::{Hold, Verdict};

pub fn count(history: &History, name: &str, holds: &[Hold], verdict: &mut Verdict) {
    for freeze in freezes(history, name) {
        verdict.chance("P4, freezes", freeze.is_judged);
    }
    let jobs = history.jobs.iter();
    let jobs: Vec<&Job> = jobs
        .filter(|job| job.kind != JobKind::Plain && job.names.iter().any(|own| own == name))
        .collect();
    for success in holds.iter().filter(|hold| has_succeeded(hold.job)) {
        for other in &jobs {
            once(history, holds, success, other, verdict);
        }
    }
    for newer in holds.iter().filter(|hold| hold.job.supersedes) {
        for older in &jobs {
            superseded(history, holds, newer, older, verdict);
        }
    }
    for first in holds {
        for second in holds {
            in_turn(history, first, second, verdict);
        }
    }
}

fn began(holds: &[Hold], job: &Job) -> Option<Nanos> {
    let own = holds.iter().filter(|hold| hold.job.id == job.id);
    own.map(|hold| hold.span.from).min()
}

/// One with `--once-per` that ran or skipped while a success counted.
fn once(history: &History, holds: &[Hold], success: &Hold, other: &Job, verdict: &mut Verdict) {
    let (Some(known), Some(once_per)) = (success.job.ended, other.once_per) else {
        return;
    };
    let skipped = other.ended.filter(|_| other.said.contains("skipped"));
    let Some(decided) = began(holds, other).or(skipped) else {
        return;
    };
    let counts_until = success.span.until + once_per - CLOCKS;
    if other.id != success.job.id && known < other.started && decided < counts_until {
        let past = Span::new(success.span.from, decided);
        let is_judged = !may_have_forgotten(history, success.name, past);
        verdict.chance("P4, runs with --once-per after a success", is_judged);
    }
}

/// One that waited when a newer run came that got the lock before it.
fn superseded(history: &History, holds: &[Hold], newer: &Hold, older: &Job, verdict: &mut Verdict) {
    let is_first = began(holds, older).is_none_or(|began| began > newer.span.from);
    let waited_then = older.started + QUEUED < newer.job.started
        && older.ended.is_none_or(|ended| ended > newer.job.started);
    if older.names.len() == 1 && waited_then && is_first {
        let waited = Span::new(older.started, newer.span.from);
        let is_judged = older.is_undisturbed()
            && newer.job.is_undisturbed()
            && is_quiet(history, newer.name, waited)
            && !is_starved(history, waited);
        verdict.chance("P4, waiters that a newer run supersedes", is_judged);
    }
}

/// Two that waited at the same time, one of which had come clearly before the other, and both got the lock.
fn in_turn(history: &History, first: &Hold, second: &Hold, verdict: &mut Verdict) {
    let is_usual = |hold: &Hold| {
        let job = hold.job;
        job.kind != JobKind::Plain && job.priority == 0 && job.names.len() == 1
    };
    let came_before = first.job.started + QUEUED < second.job.started;
    let waited_together = second.job.started < first.span.from;
    if is_usual(first) && is_usual(second) && came_before && waited_together {
        let waited = Span::new(first.job.started, first.span.from);
        let is_judged = first.job.is_undisturbed()
            && second.job.is_undisturbed()
            && is_quiet(history, first.name, waited)
            && !is_starved(history, waited);
        verdict.chance("P7, pairs that waited together", is_judged);
    }
}

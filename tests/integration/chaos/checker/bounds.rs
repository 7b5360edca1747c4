//! Promises about how long something takes: until a lock that could be had is had, and until all have ended.

use super::super::history::{
    Blow, Forgets, History, Job, Kind, MS, Nanos, Role, SECOND, Span, What,
};
use super::{Broken, Hold, Verdict};

/// From when a lock could be had until a waiter has it. Where processes of the name are stopped or killed meanwhile, a
/// grant may lie with one that doesn't take it, and the next one asks again with its heartbeat.
const CALM: Nanos = 4 * SECOND;
const DISTURBED: Nanos = 15 * SECOND;
/// A grant that isn't taken is noticed within that.
const CLAIM: Nanos = 6 * SECOND;
/// The longest lease, and the longest grace after a restart.
const LONGEST: Nanos = 10 * SECOND;
/// A process that can do so ends within this when all faults are over and nobody works any more.
const END: Nanos = 60 * SECOND;

/// How long waiters waited for locks that they could have had, each sorted.
#[derive(Debug, Default)]
pub struct Waits {
    pub calm: Vec<Nanos>,
    pub disturbed: Vec<Nanos>,
}

impl Waits {
    pub fn in_words(&self) -> String {
        let line = |mut waits: Vec<Nanos>| {
            waits.sort_unstable();
            let of = |part: usize| {
                waits.get((waits.len() * part / 1000).min(waits.len().saturating_sub(1)))
            };
            let ms = |part| of(part).copied().unwrap_or(0) / MS;
            format!(
                "{} waits, ms: median {}, 99 % {}, longest {}",
                waits.len(),
                ms(500),
                ms(990),
                ms(1000)
            )
        };
        format!(
            "a lock that could be had until a waiter had it, undisturbed: {} (limit {}); with stopped or killed processes: {} (limit {})",
            line(self.calm.clone()),
            CALM / MS,
            line(self.disturbed.clone()),
            DISTURBED / MS
        )
    }
}

pub fn waits(history: &History, name: &str, holds: &[Hold], verdict: &mut Verdict) {
    for hold in holds {
        look_at(history, holds, hold.job, name, hold.span.from, verdict);
    }
    for job in history.jobs.iter().filter(|job| gave_up(job)) {
        if !holds.iter().any(|hold| hold.job.id == job.id) {
            look_at(
                history,
                holds,
                job,
                name,
                job.ended.unwrap_or(history.ended),
                verdict,
            );
        }
    }
}

/// It waited as long as it wanted to, and got nothing; not superseded by another, nor removed by a person.
fn gave_up(job: &Job) -> bool {
    let waited = job.ended.map_or(0, |ended| ended - job.started);
    job.status == Some(75) && job.patience > 0 && waited >= job.patience
}

/// A wait that has ended, in one way or the other.
fn look_at(
    history: &History,
    holds: &[Hold],
    job: &Job,
    name: &str,
    until: Nanos,
    verdict: &mut Verdict,
) {
    let waits_alone = job.kind != Kind::Plain && job.names.len() == 1 && job.names[0] == name;
    if !waits_alone || !job.is_undisturbed() {
        return;
    }
    let since = could_be_had(history, holds, job, name, until);
    let wait = until - since;
    let around = Span::new(since - CLAIM, until);
    let is_disturbed = history.jobs.iter().any(|other| {
        other.names.iter().any(|own| own == name)
            && other.hits.iter().any(|hit| hit.span.meets(around))
    });
    let (waits, limit) = if is_disturbed {
        (&mut verdict.waits.disturbed, DISTURBED)
    } else {
        (&mut verdict.waits.calm, CALM)
    };
    waits.push(wait.max(0));
    if wait > limit {
        verdict.broken.push(Broken {
            promise: "P5: a lock that can be had is granted within a bound",
            detail: format!("#{} waited {} ms", job.id, wait / MS),
            name: name.to_owned(),
            span: Span::new(since, until),
            jobs: vec![job.id],
        });
    }
}

/// The latest of all that may have kept a lock from a waiter until its wait ended.
fn could_be_had(history: &History, holds: &[Hold], job: &Job, name: &str, until: Nanos) -> Nanos {
    let mut latest = job.started;
    let mut note = |moment: Nanos| latest = latest.max(moment.min(until));
    let others = holds
        .iter()
        .filter(|other| other.job.id != job.id && other.span.from < until);
    for other in others {
        note(given_back(other));
    }
    let wants = |other: &&Job| {
        let is_other = other.id != job.id && other.started < until;
        is_other && other.names.iter().any(|own| own == name)
    };
    for other in history.jobs.iter().filter(wants) {
        note(unseen_until(other, until));
    }
    for trouble in history.troubled.iter().filter(|span| span.from < until) {
        note(trouble.until);
    }
    let faults = history
        .faults
        .iter()
        .filter(|fault| fault.span.from < until);
    for fault in faults {
        // Holds go on by other clocks, or held back until those that were forgotten are over.
        let after = if fault.sets_clock || fault.forgets == Forgets::GracedHolds {
            LONGEST
        } else {
            0
        };
        note(fault.span.until + after);
    }
    for starved in history.starved.iter().filter(|span| span.from < until) {
        note(starved.until);
    }
    let freezes = history
        .deeds
        .iter()
        .filter(|deed| deed.name == name && deed.span.from < until);
    for deed in freezes {
        if let What::Freeze(length) = deed.what {
            note(frozen_until(history, name, deed.span, length));
        }
    }
    latest
}

/// A job may have a lock without a sign of life: while it waits for its second one, when its redlock was killed, or
/// when it lost the server before it knew what it had.
fn unseen_until(job: &Job, until: Nanos) -> Nanos {
    let ended = job.ended.unwrap_or(until);
    let is_clean =
        matches!(job.status, Some(0 | 3)) && job.said.is_empty() || job.status == Some(75);
    if is_orphaned(job) || !is_clean || job.kind == Kind::Plain {
        ended + job.lease()
    } else if job.names.len() > 1 {
        ended
    } else {
        job.started
    }
}

fn frozen_until(history: &History, name: &str, freeze: Span, length: Nanos) -> Nanos {
    let deeds = history.deeds.iter().filter(|deed| deed.name == name);
    let thaws = deeds.filter(|deed| {
        deed.what == What::Thaw && deed.status == Some(0) && deed.span.from > freeze.until
    });
    let thawed = thaws.map(|deed| deed.span.until).min();
    thawed.unwrap_or(Nanos::MAX).min(freeze.until + length)
}

/// A redlock of it was killed, so that its lease has to run out.
fn is_orphaned(job: &Job) -> bool {
    let is_kill = |role, blow| blow == Blow::Killed && role == Role::Supervisor;
    job.hits.iter().any(|hit| is_kill(hit.role, hit.blow))
}

/// When the lock of a hold is free again, at the latest.
fn given_back(hold: &Hold) -> Nanos {
    let job = hold.job;
    let ended = match job.kind {
        Kind::Run => job.ended.unwrap_or(Nanos::MAX),
        Kind::Kept | Kind::Unkept | Kind::Plain => hold.span.until,
    };
    // A release that fails leaves the lock to its lease; so does one who dies or is stopped.
    let last = hold.span.until.max(ended.min(hold.span.until + SECOND));
    let is_clean = job.kind == Kind::Run
        && job.is_undisturbed()
        && job.status == Some(0)
        && job.said.is_empty();
    if is_clean { last } else { last + job.lease() }
}

/// Statuses that say that redlock itself, or its use here, is wrong.
const WRONG: [i32; 8] = [64, 77, 78, 101, 125, 126, 127, 134];

pub fn ends(history: &History) -> Vec<Broken> {
    let mut found = Vec::new();
    for job in &history.jobs {
        let mut note = |promise, detail| {
            found.push(Broken {
                promise,
                detail,
                name: job.names.first().cloned().unwrap_or_default(),
                span: Span::new(history.healed, job.ended.unwrap_or(history.ended)),
                jobs: vec![job.id],
            });
        };
        match (job.ended, job.status) {
            (None, _) => note(
                "each process ends when all faults are over",
                format!("#{} never did: {}", job.id, job.words),
            ),
            (Some(ended), _) if ended > history.healed + END => {
                note(
                    "each process ends when all faults are over",
                    format!("#{} took {} ms", job.id, (ended - history.healed) / MS),
                );
            }
            (_, Some(status)) if WRONG.contains(&status) || job.said.contains("panicked") => {
                note(
                    "each process ends with a status that the manual names",
                    format!("#{} {}: status {status}: {}", job.id, job.words, job.said),
                );
            }
            _ => {}
        }
    }
    found
}

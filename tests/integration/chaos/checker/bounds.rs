//! Promises about how long something takes: until a lock that could be had is had, and until all have ended.

use super::super::history::{Blow, History, Job, Kind, MS, Nanos, Role, SECOND, Span, What};
use super::{Broken, Hold, Verdict};

/// From when a lock could be had until a waiter has it. Where processes of the name are stopped or killed meanwhile, a
/// grant may lie with one that doesn't take it, and the next one asks again with its heartbeat.
const CALM: Nanos = 4 * SECOND;
const DISTURBED: Nanos = 15 * SECOND;
/// A grant that isn't taken is noticed within that.
const CLAIM: Nanos = 6 * SECOND;
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

pub fn waits(history: &History, holds: &[Hold], verdict: &mut Verdict) {
    for hold in holds {
        let job = hold.job;
        let waits_alone =
            job.kind != Kind::Plain && job.names.len() == 1 && job.names[0] == hold.name;
        if !waits_alone || !job.is_undisturbed() {
            continue;
        }
        let since = could_be_had(history, holds, hold);
        let wait = hold.span.from - since;
        let around = Span::new(since - CLAIM, hold.span.from);
        let is_disturbed = history.jobs.iter().any(|other| {
            other.names.iter().any(|name| name == hold.name)
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
                name: hold.name.to_owned(),
                span: Span::new(since, hold.span.from),
                jobs: vec![job.id],
            });
        }
    }
}

/// The latest of all that may have kept a lock from a waiter until it got it.
fn could_be_had(history: &History, holds: &[Hold], hold: &Hold) -> Nanos {
    let until = hold.span.from;
    let before = |moment: Nanos| moment.min(until);
    let mut latest = hold.job.started;
    let mut note = |moment: Nanos| latest = latest.max(before(moment));
    for other in holds
        .iter()
        .filter(|other| other.job.id != hold.job.id && other.span.from < until)
    {
        note(given_back(other));
    }
    // While it waits for its second lock, a job shows no sign of the first.
    for job in history
        .jobs
        .iter()
        .filter(|job| job.id != hold.job.id && job.started < until)
    {
        if job.names.iter().any(|name| name == hold.name)
            && (job.names.len() > 1 || is_orphaned(job))
        {
            note(job.ended.unwrap_or(until) + if is_orphaned(job) { job.lease() } else { 0 });
        }
    }
    for trouble in history.troubled.iter().filter(|span| span.from < until) {
        note(trouble.until);
    }
    for fault in history
        .faults
        .iter()
        .filter(|fault| fault.span.from < until)
    {
        note(fault.span.until);
    }
    for starved in history.starved.iter().filter(|span| span.from < until) {
        note(starved.until);
    }
    for deed in history
        .deeds
        .iter()
        .filter(|deed| deed.name == hold.name && deed.span.from < until)
    {
        match deed.what {
            What::Freeze(length) => note(frozen_until(history, hold.name, deed.span, length)),
            What::Thaw | What::Force | What::Stop | What::Status => {}
        }
    }
    latest
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

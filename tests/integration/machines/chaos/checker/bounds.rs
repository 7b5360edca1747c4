//! Promises about how long something takes: until a lock that could be had is had, and until all have ended.

use std::collections::BTreeMap;

use super::super::history::{
    Forgets, History, Job, JobKind, MS, Nanos, OperatorAction, ProcessFault, Role, SECOND,
    SiteFault, Span,
};
use super::overlaps::agreed;
use super::{Broken, Hold, Verdict};

/// From when a lock could be had until a waiter has it. Where processes of the name are stopped or killed meanwhile, a
/// grant may lie with one that doesn't take it, and the next one asks again with its heartbeat.
const CALM: Nanos = 4 * SECOND;
const DISTURBED: Nanos = 8 * SECOND;
/// A grant that isn't taken is noticed within that.
const CLAIM: Nanos = 6 * SECOND;
/// The longest lease.
const LONGEST: Nanos = 10 * SECOND;
/// A process that can do so ends within this when all faults are over and nobody works any more.
const END: Nanos = 60 * SECOND;

/// How long waiters waited for locks that they could have had.
#[derive(Debug, Default)]
pub struct Waits {
    /// Those that were within their bound whatever else went on, or broke it.
    pub calm: Vec<Nanos>,
    pub disturbed: Vec<Nanos>,
    /// Longer ones: how long they were from when what excuses the first part of them was over.
    pub in_part: Vec<Nanos>,
    /// Those who gave up before the bound, although the lock seemed to be free: what they waited.
    pub given_up: Vec<Nanos>,
    /// Those that were excused until they ended, by what.
    pub excused: BTreeMap<&'static str, usize>,
}

impl Waits {
    pub fn in_words(&self) -> String {
        let line = |waits: &[Nanos]| {
            let mut waits = waits.to_vec();
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
        let excused: Vec<String> = self
            .excused
            .iter()
            .map(|(why, count)| format!("{why} {count}"))
            .collect();
        format!(
            "a lock that could be had until a waiter had it, judged in full: undisturbed {} (limit {}); with stopped or killed processes {} (limit {})\n\
             longer, and judged in part, from when what excuses it was over: {}; excused to the end: {} waits{}{}\n\
             given up before the bound was over: {}",
            line(&self.calm),
            CALM / MS,
            line(&self.disturbed),
            DISTURBED / MS,
            line(&self.in_part),
            self.excused.values().sum::<usize>(),
            if excused.is_empty() { "" } else { ": " },
            excused.join(", "),
            line(&self.given_up)
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
    let waits_alone = job.kind != JobKind::Plain && job.names.len() == 1 && job.names[0] == name;
    if !waits_alone || !job.is_undisturbed() {
        return;
    }
    let wait = Wait {
        history,
        holds,
        job,
        name,
        until,
    };
    let since = wait.free_since();
    let has_it = holds.iter().any(|hold| hold.job.id == job.id);
    if !has_it && since >= until {
        // Others had it for as long as it wanted it.
        return;
    }
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
    let waited = (until - since).max(0);
    if waited <= limit {
        let waits = if has_it {
            waits
        } else {
            &mut verdict.waits.given_up
        };
        waits.push(waited);
        return;
    }
    let (why, excused) = wait.excused_until();
    let rest = until - excused.max(since);
    if rest > limit {
        waits.push(rest);
        verdict.broken.push(Broken {
            promise: "P5: a lock that can be had is granted within a bound",
            detail: format!("#{} waited {} ms", job.id, rest / MS),
            name: name.to_owned(),
            span: Span::new(until - rest, until),
            jobs: vec![job.id],
        });
    } else if rest > 0 {
        verdict.waits.in_part.push(rest);
    } else {
        *verdict.waits.excused.entry(why).or_default() += 1;
    }
}

/// One that waits for a lock, until it has it or gives up.
struct Wait<'a> {
    history: &'a History,
    holds: &'a [Hold<'a>],
    job: &'a Job,
    name: &'a str,
    until: Nanos,
}

impl Wait<'_> {
    /// Since when nobody was seen to have the lock, or to be entitled to it before this one, and it wasn't frozen.
    fn free_since(&self) -> Nanos {
        let held = self.others().map(|other| match death(other.job) {
            Some(death) => self.over_by(death, death + other.job.lease()),
            None => let_go(other),
        });
        let queued = self.rivals().filter(|rival| {
            rival.kind != JobKind::Plain && rival.limit < self.job.limit && !self.holds_of(rival)
        });
        let queued = queued.map(|rival| rival.ended.unwrap_or(self.until));
        let frozen = self.history.commands.iter().filter_map(|command| {
            let OperatorAction::Freeze(length) = command.what else {
                return None;
            };
            let is_before = command.name == self.name && command.span.from < self.until;
            is_before.then(|| frozen_until(self.history, self.name, command.span, length))
        });
        let all = held.chain(queued).chain(frozen);
        all.fold(self.job.started, Nanos::max).min(self.until)
    }

    /// Until when somebody may have had it unseen, or couldn't be given it, and why.
    fn excused_until(&self) -> (&'static str, Nanos) {
        let is_lost = |other: &&Hold| {
            let is_kept = !is_clean(other.job) || is_release_forgotten(self.history, other);
            is_kept && death(other.job).is_none()
        };
        let lost = self.others().filter(is_lost);
        let lost = lost.map(|other| {
            let over = other.span.until;
            let until = self.over_by(over, over + other.job.lease());
            ("a lease that wasn't given back", until)
        });
        let unseen = self.rivals().filter(|rival| !self.holds_of(rival));
        let unseen = unseen.filter_map(|rival| self.unseen(rival));
        let faults = self
            .history
            .faults
            .iter()
            .filter(|fault| fault.span.from < self.until && fault.is_about(self.name));
        let faults = faults.map(|fault| {
            // Holds go on by other clocks.
            let after = if fault.sets_clock { LONGEST } else { 0 };
            let over = fault.span.until;
            ("a fault of the servers", self.over_by(over, over + after))
        });
        let before = |span: &&Span| span.from < self.until;
        let troubles = self.history.troubled.iter().filter(before);
        let troubles = troubles.map(|span| ("servers that aren't well", span.until));
        let starved = self.history.starved.iter().filter(before);
        let starved = starved.map(|span| ("no processor", span.until));
        let all = lost.chain(unseen).chain(faults).chain(troubles);
        let latest = all.chain(starved).max_by_key(|(_, until)| *until);
        latest.unwrap_or(("nothing", self.job.started))
    }

    /// The holds that it may have waited for.
    fn others(&self) -> impl Iterator<Item = &Hold<'_>> {
        let go_on_together =
            |other: &Hold| self.job.limit.min(other.limit) > 1 && other.span.until >= self.until;
        self.holds.iter().filter(move |other| {
            other.job.id != self.job.id && other.span.from < self.until && !go_on_together(other)
        })
    }

    /// The others that want the lock.
    fn rivals(&self) -> impl Iterator<Item = &Job> {
        self.history.jobs.iter().filter(|other| {
            let is_other = other.id != self.job.id && other.started < self.until;
            is_other && other.names.iter().any(|own| own == self.name)
        })
    }

    fn holds_of(&self, job: &Job) -> bool {
        self.holds.iter().any(|hold| hold.job.id == job.id)
    }

    /// A job may have the lock without a sign of life: while it waits for its second one, when its redlock was killed, or
    /// when it lost the server before it knew what it had.
    fn unseen(&self, job: &Job) -> Option<(&'static str, Nanos)> {
        let ended = job.ended.unwrap_or(self.until);
        if job.kind == JobKind::Plain || !is_clean(job) {
            let last = death(job).unwrap_or(ended);
            let until = if last < self.until {
                Some(self.over_by(last, last + job.lease()))
            } else {
                // It goes on, and knows by then what it has unless it is stopped or cut off.
                let hits = job
                    .hits
                    .iter()
                    .filter(|hit| hit.fault != ProcessFault::Killed && hit.span.from < self.until);
                let away = hits.map(|hit| hit.span.until.min(hit.span.from + job.lease()));
                away.max()
            };
            until.map(|until| ("one that may have had it unseen", until))
        } else if job.names.len() > 1 {
            Some(("one that wants several", ended))
        } else {
            None
        }
    }

    /// The moment until which something lasts at most, or when another was seen to begin with the lock after it.
    fn over_by(&self, since: Nanos, latest: Nanos) -> Nanos {
        let later = self.holds.iter().filter(|hold| {
            hold.limit == 1 && hold.job.kind != JobKind::Plain && hold.span.from > since
        });
        let shown = later.map(|hold| hold.span.from).min();
        shown.map_or(latest, |shown| shown.min(latest))
    }
}

/// Its redlock was killed then, so that its lease has to run out.
fn death(job: &Job) -> Option<Nanos> {
    let kills = job.hits.iter().filter(|hit| {
        let is_of_redlock = hit.role == Role::Supervisor && job.kind != JobKind::Unkept;
        hit.fault == ProcessFault::Killed && is_of_redlock
    });
    kills.map(|hit| hit.span.from).min()
}

/// It gave back what it had, as far as it says.
fn is_clean(job: &Job) -> bool {
    let is_harmless = |line: &str| {
        let harmless = [
            "asked to stop",
            "cancelled by",
            "ran longer",
            "skipped",
            "waiting for",
        ];
        harmless.iter().any(|words| line.contains(words))
    };
    death(job).is_none() && job.kind != JobKind::Plain && job.said.lines().all(is_harmless)
}

/// Whether the servers may have forgotten that it was given back.
fn is_release_forgotten(history: &History, hold: &Hold) -> bool {
    let release = Span::new(hold.span.until, hold.span.until + SECOND);
    let of_name = history
        .faults
        .iter()
        .filter(|fault| fault.is_about(hold.name));
    let forgets = |fault: &&SiteFault| fault.promotes || fault.forgets == Forgets::Holds;
    of_name.filter(forgets).any(|fault| {
        let until = agreed(history, fault.span);
        Span::new(fault.span.from - SECOND, until).meets(release)
    })
}

/// When the lock of a hold is given back, unless that fails: a redlock that is stopped does it late, or its lease ends.
fn let_go(hold: &Hold) -> Nanos {
    let last = hold.span.until;
    let stops = hold.job.hits.iter().filter(|hit| {
        hit.fault == ProcessFault::Stopped
            && hit.role == Role::Supervisor
            && hit.span.meets(Span::new(last, last))
    });
    let resumed = stops.map(|hit| hit.span.until.min(hit.span.from + hold.job.lease()));
    resumed.fold(last, Nanos::max)
}

fn frozen_until(history: &History, name: &str, freeze: Span, length: Nanos) -> Nanos {
    let commands = history
        .commands
        .iter()
        .filter(|command| command.name == name);
    let thaws = commands.filter(|command| {
        command.what == OperatorAction::Thaw
            && command.status == Some(0)
            && command.span.from > freeze.until
    });
    let thawed = thaws.map(|command| command.span.until).min();
    thawed.unwrap_or(Nanos::MAX).min(freeze.until + length)
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

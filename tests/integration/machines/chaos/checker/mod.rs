//! Decides which promises a history keeps. Pure: takes a history, returns the broken promises.
//!
//! | promise (`docs/guarantees.md`) | rule |
//! | --- | --- |
//! | P1 | two exclusive holds never beat at the same time, except in a window that the manual names (`Class`) |
//! | P2 | fencing tokens that `redlock fence` accepts never decrease |
//! | P3 | fencing tokens grow in the order in which exclusive holders begin to beat |
//! | ends | each process ends soon after the last fault, with a status that the manual names |
//!
//! Faults excuse a lot: the summary counts the overlaps of each class. The model checks freezes, successes, waits and the order
//! of turns (P4, P5, P7) in each order of events. Other tests check them with the binary.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write;

use super::history::{
    Forgets, History, Hit, Job, MS, Nanos, ProcessFault, Role, SECOND, SiteFault, Span, Task,
};

/// Time for a resumed process to react, and for the kernel to end a killed one.
const RESUMING: Nanos = 500 * MS;
const DYING: Nanos = 100 * MS;
const SLACK: Nanos = 400 * MS;
/// Longest delay that a busy machine excuses.
const STARVING: Nanos = 150 * MS;
/// Longest time between a grant and the start of its waiter.
const CLAIM: Nanos = 6 * SECOND;
/// Difference between the clocks of servers.
const CLOCKS: Nanos = 460 * MS;
const END: Nanos = 60 * SECOND;
/// Statuses of a redlock that is broken or misused.
const WRONG: [i32; 8] = [64, 77, 78, 101, 125, 126, 127, 134];

const P1: &str = "P1: two that exclude each other never run at the same time";
const P2: &str = "P2: a resource that checks the fencing token never goes back";
const P3: &str = "P3: the fencing token grows with each grant";
const ENDS: &str = "each process ends after the last fault";
const STATUS: &str = "each process ends with a status that the manual names";

/// Reasons why two commands may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Forbidden,
    /// Its fencing token keeps it from doing harm.
    Suspended,
    /// A killed supervisor left descendants, or a script without a keeper.
    Orphaned,
    /// Data loss is documented, as are clock changes.
    DataLost,
    ClockSet,
    /// The machine gave the supervisor no processor.
    Starved,
}

#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: &'static str,
    pub detail: String,
}

/// Everything that a job does under one lock, from its first beat to its last.
#[derive(Clone, Debug)]
pub struct Hold<'a> {
    job: &'a Job,
    fence: Option<u64>,
    limit: u32,
    span: Span,
    /// Last beat of COMMAND itself.
    command_until: Nanos,
}

#[derive(Debug, Default)]
pub struct Verdict {
    pub broken: Vec<Broken>,
    holds: usize,
    /// Writes that `redlock fence` accepted.
    accepted: usize,
    refused: usize,
    pub overlaps: BTreeMap<Class, (usize, Nanos)>,
}

impl Verdict {
    pub fn of(history: &History) -> Self {
        let mut verdict = Self::of_exclusion(history);
        judge_writes(history, &mut verdict);
        judge_ends(history, &mut verdict);
        verdict
    }

    /// Judges only P1 and P3.
    pub fn of_exclusion(history: &History) -> Self {
        let mut verdict = Self::default();
        for (name, holds) in holds(history) {
            verdict.holds += holds.len();
            let holds = &holds;
            let lock = Lock {
                history,
                name,
                holds,
            };
            lock.judge_overlaps(&mut verdict);
            lock.judge_growth(&mut verdict);
        }
        verdict
    }

    fn break_promise(&mut self, promise: &'static str, name: &str, span: Span, mut detail: String) {
        detail.insert_str(0, &format!("{name} in {span:?}: "));
        self.broken.push(Broken { promise, detail });
    }

    pub fn in_words(&self) -> String {
        let mut text = format!(
            "{} holds; fenced writes: {} accepted, {} refused\n",
            self.holds, self.accepted, self.refused
        );
        for (class, (count, longest)) in &self.overlaps {
            let ms = longest / MS;
            let _ = writeln!(text, "overlaps, {class:?}: {count}, the longest {ms} ms");
        }
        for broken in &self.broken {
            let _ = writeln!(text, "BROKEN: {}: {}", broken.promise, broken.detail);
        }
        text
    }
}

/// Returns the holds of each name, in the order of their first beats.
fn holds(history: &History) -> BTreeMap<&str, Vec<Hold<'_>>> {
    let mut all: BTreeMap<(&str, u32, Option<u64>), Hold> = BTreeMap::new();
    for job in &history.jobs {
        for process in &job.processes {
            let ends = (process.periods.first(), process.periods.last());
            let (Some(first), Some(last)) = ends else {
                continue;
            };
            for (n, name) in process.names.iter().enumerate() {
                let fence = process.fences.get(n).copied();
                let hold = all.entry((name, job.id, fence)).or_insert_with(|| Hold {
                    job,
                    fence,
                    limit: process.limit,
                    span: Span::new(first.from, last.until),
                    command_until: first.from,
                });
                hold.span.from = hold.span.from.min(first.from);
                hold.span.until = hold.span.until.max(last.until);
                if !process.is_descendant {
                    hold.command_until = hold.command_until.max(last.until);
                }
            }
        }
    }
    let mut by_name: BTreeMap<&str, Vec<Hold>> = BTreeMap::new();
    for ((name, ..), hold) in all {
        by_name.entry(name).or_default().push(hold);
    }
    for holds in by_name.values_mut() {
        holds.sort_by_key(|hold| hold.span.from);
    }
    by_name
}

/// A lock and its holds.
struct Lock<'a> {
    history: &'a History,
    name: &'a str,
    holds: &'a [Hold<'a>],
}

// P1.
impl Lock<'_> {
    /// Judges each hold at its start, against the holds that are still going on.
    fn judge_overlaps(&self, verdict: &mut Verdict) {
        for (n, later) in self.holds.iter().enumerate() {
            let goes_on = |earlier: &&Hold| {
                earlier.span.until > later.span.from && earlier.job.id != later.job.id
            };
            let going_on: Vec<&Hold> = self.holds[..n].iter().filter(goes_on).collect();
            if is_admitted(&going_on, later) {
                continue;
            }
            let classes = going_on.iter().map(|one| (*one, self.excuse(one, later)));
            let classes: Vec<(&Hold, Option<Class>)> = classes.collect();
            let unexcused = classes.iter().filter(|(_, class)| class.is_none());
            let unexcused: Vec<&Hold> = unexcused.map(|(one, _)| *one).collect();
            let is_forbidden = !is_admitted(&unexcused, later);
            for (earlier, class) in classes {
                let class = class.or(is_forbidden.then_some(Class::Forbidden));
                let Some(class) = class else {
                    continue;
                };
                let span = shared(earlier, later);
                let (count, longest) = verdict.overlaps.entry(class).or_default();
                *count += 1;
                *longest = (*longest).max(span.length());
                if class == Class::Forbidden {
                    let detail = format!(
                        "#{} (token {:?}) and #{} (token {:?}) for {} ms",
                        earlier.job.id,
                        earlier.fence,
                        later.job.id,
                        later.fence,
                        span.length() / MS
                    );
                    verdict.break_promise(P1, self.name, span, detail);
                }
            }
        }
    }

    /// Returns the reason by which the manual allows an overlap, if there is one.
    fn excuse(&self, earlier: &Hold, later: &Hold) -> Option<Class> {
        let span = shared(earlier, later);
        if self.is_early(earlier, later, span) {
            return None;
        }
        // A resumed redlock checks its lease before it starts COMMAND.
        let mut hits = later.job.hits.iter();
        let started_suspended =
            hits.any(|hit| covers(hit, later, span) && hit.span.until > later.span.from);
        let mut hits = earlier.job.hits.iter();
        if started_suspended || hits.any(|hit| covers(hit, earlier, span)) {
            return Some(Class::Suspended);
        }
        let mut hits = earlier.job.hits.iter();
        if hits.any(|hit| orphans(hit, earlier, span)) {
            return Some(Class::Orphaned);
        }
        let lease = earlier.job.lease().max(later.job.lease());
        // A fault before the grant can't have lost this hold.
        let excuses = |fault: &&SiteFault| {
            fault.span.from <= span.from
                && span.until <= fault.span.until + lease + SLACK
                && may_be_granted_by(self.history, earlier, fault.span.until)
        };
        let faults = || self.faults().filter(excuses);
        if faults().any(|fault| fault.forgets == Forgets::Holds) {
            return Some(Class::DataLost);
        }
        if faults().any(|fault| fault.sets_clock) {
            return Some(Class::ClockSet);
        }
        // A supervisor without a processor can't stop COMMAND in time.
        let around = Span::new(span.from - STARVING, span.until);
        let starved = self.history.starved.iter().filter(|one| one.meets(around));
        let starved: Nanos = starved.map(Span::length).sum();
        (span.length() <= starved.min(STARVING)).then_some(Class::Starved)
    }

    /// Returns true if the lease of a suspended or dead supervisor can't have ended yet. Two thirds of the lease were left
    /// after its last renewal, and nothing else was disturbed.
    fn is_early(&self, earlier: &Hold, later: &Hold, span: Span) -> bool {
        let hits = earlier.job.hits.iter().filter(|hit| {
            hit.span.from <= span.from && (is_fatal(hit) || covers(hit, earlier, span))
        });
        let Some(from) = hits.map(|hit| hit.span.from).min() else {
            return false;
        };
        let around = Span::new(from - 2 * earlier.job.lease(), later.span.from);
        // Before its first renewal the hold may be a mere grant. A suspended waiter may begin late on its own.
        self.is_quiet(around)
            && !self.history.starved.iter().any(|span| span.meets(around))
            && earlier.span.from + SLACK < from
            && later.job.hits.is_empty()
            && later.span.from < from + earlier.job.ttl / 2
    }

    fn faults(&self) -> impl Iterator<Item = &SiteFault> {
        let faults = self.history.faults.iter();
        faults.filter(|fault| fault.concerns(self.name))
    }

    /// Returns true if no fault of the servers was going on.
    fn is_quiet(&self, span: Span) -> bool {
        !self
            .history
            .troubled
            .iter()
            .any(|trouble| trouble.meets(span))
            && !self.faults().any(|fault| fault.span.meets(span))
    }
}

/// Applies the lock's rule: at most as many holders as the smallest of their limits.
fn is_admitted(going_on: &[&Hold], later: &Hold) -> bool {
    let limits = going_on.iter().map(|hold| hold.limit);
    let smallest = limits.fold(later.limit, u32::min);
    u32::try_from(going_on.len() + 1).unwrap() <= smallest
}

fn shared(earlier: &Hold, later: &Hold) -> Span {
    Span::new(later.span.from, earlier.span.until.min(later.span.until))
}

fn is_fatal(hit: &Hit) -> bool {
    hit.fault == ProcessFault::Killed && hit.role == Role::Supervisor
}

fn is_suspension(hit: &Hit) -> bool {
    hit.fault == ProcessFault::Suspended && hit.role == Role::Supervisor
}

/// Returns true if the supervisor was suspended until the end of the span, or killed before it was resumed.
fn covers(hit: &Hit, hold: &Hold, span: Span) -> bool {
    let hits = hold.job.hits.iter();
    let mut deaths = hits.filter(|other| is_fatal(other) && other.pid == hit.pid);
    let dies = hold.job.is_kept && deaths.any(|death| hit.span.meets(death.span));
    let ends = span.until <= hit.span.until.saturating_add(RESUMING);
    is_suspension(hit) && hit.span.from <= span.from && (dies || ends)
}

/// Returns true if the supervisor was killed and left processes: the kernel kills COMMAND of a run, but no descendants and no
/// script.
fn orphans(hit: &Hit, hold: &Hold, span: Span) -> bool {
    let are_left = hold.job.is_kept || hold.command_until <= hit.span.from + DYING;
    are_left && is_fatal(hit) && hit.span.from <= span.from
}

/// Returns the time of the grant: the fencing token is the server's time in microseconds, unless its clock is changed.
fn granted(history: &History, hold: &Hold) -> Option<Nanos> {
    let moment = Nanos::try_from(hold.fence?).ok()? * 1000 - history.epoch;
    let around = Span::new(hold.span.from - 20 * SECOND, hold.span.from);
    let mut sets = history.faults.iter().filter(|fault| fault.sets_clock);
    let before = hold.span.from - moment;
    let is_plausible = (-CLOCKS..CLAIM).contains(&before);
    (is_plausible && !sets.any(|fault| fault.span.meets(around))).then_some(moment)
}

fn may_be_granted_by(history: &History, hold: &Hold, moment: Nanos) -> bool {
    let earliest = match granted(history, hold) {
        Some(granted) => granted - CLOCKS,
        None => hold.span.from - CLAIM,
    };
    earliest.max(hold.job.started) <= moment
}

// P3.
impl Lock<'_> {
    fn judge_growth(&self, verdict: &mut Verdict) {
        let is_exclusive = |hold: &&Hold| hold.limit == 1 && hold.fence.is_some();
        let exclusive: Vec<&Hold> = self.holds.iter().filter(is_exclusive).collect();
        for pair in exclusive.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            if one.fence < next.fence || self.may_go_back(one, next) {
                continue;
            }
            let detail = format!(
                "#{} began with {:?}, and after it #{} with {:?}",
                one.job.id, one.fence, next.job.id, next.fence
            );
            let span = Span::new(one.span.from, next.span.from);
            verdict.break_promise(P3, self.name, span, detail);
        }
    }

    /// Returns true if `next` may begin late on an earlier grant because it was suspended. Tokens of a lock without state grow
    /// only with the clock, which may be changed, or be another host's.
    fn may_go_back(&self, one: &Hold, next: &Hold) -> bool {
        let begins = next.span.from;
        let mut hits = next.job.hits.iter();
        let was_suspended = hits.any(|hit| is_suspension(hit) && hit.span.from <= begins);
        let since = |from| {
            let past = Span::new(from, begins);
            self.faults().filter(move |fault| fault.span.meets(past))
        };
        let is_lost = since(one.span.from - SECOND).any(|fault| fault.forgets != Forgets::Nothing)
            && since(self.history.began).any(|fault| fault.sets_clock || fault.promotes);
        is_lost || one.fence != next.fence && was_suspended
    }
}

/// Judges P2: no accepted write begins after one with a larger token has ended.
fn judge_writes(history: &History, verdict: &mut Verdict) {
    let tasks = history.jobs.iter().flat_map(|job| &job.tasks);
    let writes = tasks.filter(|task| task.label == "fence" && task.fence.is_some());
    let mut files: BTreeMap<&str, Vec<&Task>> = BTreeMap::new();
    for write in writes {
        match write.status {
            0 => files.entry(&write.name).or_default().push(write),
            1 => verdict.refused += 1,
            _ => {}
        }
    }
    for (name, mut writes) in files {
        verdict.accepted += writes.len();
        writes.sort_by_key(|write| write.span.from);
        let mut ended = writes.clone();
        ended.sort_by_key(|write| write.span.until);
        let mut ended = ended.into_iter().peekable();
        let mut largest = None;
        for write in writes {
            while let Some(before) = ended.next_if(|one| one.span.until < write.span.from) {
                largest = largest.max(before.fence);
            }
            if largest > write.fence {
                let detail = format!("{:?} after {largest:?}", write.fence);
                verdict.break_promise(P2, name, write.span, detail);
            }
        }
    }
}

fn judge_ends(history: &History, verdict: &mut Verdict) {
    for job in &history.jobs {
        let is_late = job.ended.is_none_or(|ended| ended > history.healed + END);
        let is_wrong = job.status.is_some_and(|status| WRONG.contains(&status));
        let promise = match (is_late, is_wrong || job.said.contains("panicked")) {
            (true, _) => ENDS,
            (_, true) => STATUS,
            _ => continue,
        };
        let span = Span::new(job.started, job.ended.unwrap_or(history.ended));
        let detail = format!("#{} {}: {:?}: {}", job.id, job.words, job.status, job.said);
        verdict.break_promise(promise, &job.names[0], span, detail);
    }
}

//! Which promises a history keeps. Pure: a history comes in, and what was broken comes out, with the jobs and the
//! time that matter.
//!
//! | promise (`docs/guarantees.md`) | how it is decided |
//! | --- | --- |
//! | P1 | no two that exclude each other beat at a time, but in a window that the manual names (`Class`) |
//! | P2 | what `redlock fence` accepts never goes back |
//! | P3 | fences grow in the order in which exclusive holders begin to beat |
//! | P4 | a freeze keeps new holders out, a success those of `--once-per`, a newer run the older ones in the queue |
//! | P5 | from when a lock could be had until a waiter has it: within a bound |
//! | P7 | waiters to whom nothing was done get it in the order in which they came |
//! | ends | each process ends soon after all faults are over, and with a status that the manual names |
//!
//! What befalls processes and servers excuses a lot. How much, is in the summary: each class of overlaps, for how long faults
//! would have excused two redlocks, and how often each of the other promises was judged and how often not.

mod bounds;
mod orders;
mod overlaps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::history::{History, Job, MS, Nanos, Span};

pub use self::bounds::Waits;
pub use self::overlaps::{Class, Overlap};

/// A promise that wasn't kept.
#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: &'static str,
    pub detail: String,
    pub name: String,
    pub span: Span,
    pub jobs: Vec<u32>,
}

#[derive(Debug, Default)]
pub struct Verdict {
    pub holds: usize,
    pub hand_offs: usize,
    pub overlaps: Vec<Overlap>,
    pub broken: Vec<Broken>,
    pub fences_accepted: usize,
    pub fences_refused: usize,
    pub waits: Waits,
    pub chances: BTreeMap<&'static str, Chances>,
    /// How long redlocks had their locks, and for how much of that an overlap would have been excused, by what.
    pub held: Nanos,
    pub excusable: BTreeMap<Class, Nanos>,
}

/// How often a promise could have been broken: where that would have been found, and where it would have been excused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chances {
    pub judged: usize,
    pub excused: usize,
}

/// All that a job does under one lock, from its first beat to its last.
#[derive(Clone, Debug)]
pub struct Hold<'a> {
    pub job: &'a Job,
    pub name: &'a str,
    pub fence: Option<u64>,
    pub limit: u32,
    pub span: Span,
    /// The last beat of COMMAND itself.
    pub command_until: Nanos,
}

/// How much later than the waiter before it one may begin for it to count as a hand-off.
const HAND_OFF: Nanos = 100 * MS;

impl Verdict {
    pub fn of(history: &History) -> Self {
        let mut verdict = Self::default();
        for (name, holds) in holds(history) {
            verdict.holds += holds.len();
            verdict.hand_offs += count_hand_offs(&holds);
            verdict.overlaps.extend(overlaps::in_turn(history, &holds));
            verdict.broken.extend(orders::fences_grow(history, &holds));
            orders::first_come(history, &holds, &mut verdict);
            orders::frozen(history, name, &holds, &mut verdict);
            verdict.broken.extend(orders::once(history, &holds));
            orders::count_once(history, &holds, &mut verdict);
            orders::superseded(history, &holds, &mut verdict);
            overlaps::excusable(history, &holds, &mut verdict);
            bounds::waits(history, name, &holds, &mut verdict);
        }
        let forbidden = verdict
            .overlaps
            .iter()
            .filter(|found| found.class == Class::Forbidden);
        verdict.broken.extend(forbidden.map(overlaps::described));
        orders::accepted_fences(history, &mut verdict);
        verdict.broken.extend(bounds::ends(history));
        verdict
    }

    /// How many overlaps there were of each class, and the longest.
    pub fn overlaps_by_class(&self) -> BTreeMap<Class, (usize, Nanos)> {
        let mut classes: BTreeMap<Class, (usize, Nanos)> = BTreeMap::new();
        for overlap in &self.overlaps {
            let (count, longest) = classes.entry(overlap.class).or_default();
            *count += 1;
            *longest = (*longest).max(overlap.span.until - overlap.span.from);
        }
        classes
    }

    /// Notes that a promise could have been broken.
    fn chance(&mut self, what: &'static str, is_judged: bool) {
        let chances = self.chances.entry(what).or_default();
        if is_judged {
            chances.judged += 1;
        } else {
            chances.excused += 1;
        }
    }

    pub fn in_words(&self) -> String {
        let mut text = format!(
            "{} holds, {} hand-offs; fence files: {} writes accepted, {} rejected\n",
            self.holds, self.hand_offs, self.fences_accepted, self.fences_refused
        );
        for (class, (count, longest)) in self.overlaps_by_class() {
            let _ = writeln!(
                text,
                "overlaps, {}: {count}, the longest {} ms",
                class.in_words(),
                longest / MS
            );
        }
        if self.overlaps.is_empty() {
            text += "overlaps: none\n";
        }
        for (class, excusable) in &self.excusable {
            let _ = writeln!(
                text,
                "of the time that redlocks had a lock, two of them would have been excused for {} %: {}",
                excusable * 100 / self.held.max(1),
                class.in_words()
            );
        }
        let _ = writeln!(text, "{}", self.waits.in_words());
        for (what, chances) in &self.chances {
            let Chances { judged, excused } = chances;
            let _ = writeln!(text, "{what}: {judged} judged, {excused} excused");
        }
        let promises: BTreeSet<&str> = self.broken.iter().map(|broken| broken.promise).collect();
        for promise in promises {
            let count = self
                .broken
                .iter()
                .filter(|broken| broken.promise == promise)
                .count();
            let _ = writeln!(text, "BROKEN, {count} times: {promise}");
        }
        if self.broken.is_empty() {
            text += "nothing was broken\n";
        }
        text
    }
}

/// The holds of each name, in the order of their first beats.
pub fn holds(history: &History) -> BTreeMap<&str, Vec<Hold<'_>>> {
    let mut all: BTreeMap<(&str, u32, Option<u64>), Hold> = BTreeMap::new();
    for job in &history.jobs {
        for process in &job.processes {
            let (Some(first), Some(last)) = (process.periods.first(), process.periods.last())
            else {
                continue;
            };
            let span = Span::new(first.from, last.until);
            for (n, name) in process.names.iter().enumerate() {
                let fence = process.fences.get(n).copied();
                let hold = all.entry((name, job.id, fence)).or_insert_with(|| Hold {
                    job,
                    name,
                    fence,
                    limit: process.limit,
                    span,
                    command_until: first.from,
                });
                hold.span = Span::new(
                    hold.span.from.min(span.from),
                    hold.span.until.max(span.until),
                );
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

fn count_hand_offs(holds: &[Hold]) -> usize {
    let pairs = holds.windows(2);
    pairs
        .filter(|pair| {
            let gap = pair[1].span.from - pair[0].span.until;
            (0..HAND_OFF).contains(&gap) && pair[1].job.started < pair[0].span.until
        })
        .count()
}

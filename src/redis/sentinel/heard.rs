//! The answers of a URL's sentinels up to now.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::super::lock;
use super::super::url::Address;
use super::replicas::KnownReplica;

/// A sentinel's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The sentinel, as the URL names it.
    pub by: String,
    /// ID of the sentinel, or its name in the URL if it has none (Redis 6.0).
    pub(super) id: String,
    /// Where the primary is.
    pub address: Address,
    /// Number of sentinels that it knows, itself included.
    pub sentinels: usize,
    /// Number of these that must call the primary dead before one replaces it.
    pub quorum: Option<usize>,
    /// Its clock has jumped, so it calls no server dead; false unless it was asked for a report.
    pub is_tilted: bool,
    /// Time after which it takes a silent primary for dead, if it says that.
    pub(super) down_after: Option<Duration>,
    /// All replicas that it lists; none if the question was another one.
    pub replicas: Vec<KnownReplica>,
}

/// The least that a sentinel has for its answer, connecting included.
pub(super) const LEAST: Duration = Duration::from_millis(250);

/// How many times what its last answer took: for connecting and asking, that is as many round trips as twice that.
const TIMES: u32 = 2;

/// The last answer of each.
#[derive(Default)]
pub(super) struct Heard(Mutex<All>);

#[derive(Default)]
struct All {
    /// Time after which each takes a silent primary for dead, and that of its answer, by its name in the URL.
    last: BTreeMap<String, (Option<Duration>, Duration)>,
    /// The most sentinels that one of them has known, itself included: one that is reset forgets the others.
    sentinels: usize,
}

impl Heard {
    fn all(&self) -> MutexGuard<'_, All> {
        lock(&self.0)
    }

    /// Notes the answer of a sentinel, and how long connecting and asking took.
    pub(super) fn note(&self, answer: &Answer, took: Duration) {
        let mut all = self.all();
        all.sentinels = all.sentinels.max(answer.sentinels);
        let last = (answer.down_after, took);
        all.last.insert(answer.by.clone(), last);
    }

    /// The most sentinels that one of them has known.
    pub(super) fn sentinels(&self) -> usize {
        self.all().sentinels
    }

    /// The longest that one of them waits for a silent primary.
    pub(super) fn down_after(&self) -> Option<Duration> {
        let all = self.all();
        all.last.values().filter_map(|(after, _)| *after).max()
    }

    /// Longest time for any of them.
    pub(super) fn patience(&self) -> Duration {
        let all = self.all();
        let longest = all.last.values().map(|(_, took)| *took * TIMES).max();
        longest.unwrap_or_default().max(LEAST)
    }
}

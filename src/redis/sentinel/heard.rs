//! The answers of a URL's sentinels up to now.

use std::collections::BTreeMap;
use std::sync::Mutex;
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

/// The last answer of each sentinel, by its name in the URL.
#[derive(Default)]
pub(super) struct Heard(Mutex<BTreeMap<String, Last>>);

#[derive(Default)]
struct Last {
    down_after: Option<Duration>,
    /// The time of the answer.
    took: Duration,
    /// The most sentinels that it has known, itself included: one that is reset forgets the others.
    sentinels: usize,
}

impl Heard {
    /// Notes the answer of a sentinel, and how long connecting and asking took.
    pub(super) fn note(&self, answer: &Answer, took: Duration) {
        let mut all = lock(&self.0);
        let last = all.entry(answer.by.clone()).or_default();
        (last.down_after, last.took) = (answer.down_after, took);
        last.sentinels = last.sentinels.max(answer.sentinels);
    }

    /// Returns the most sentinels that one of them has known.
    pub(super) fn sentinels(&self) -> usize {
        self.most(|last| Some(last.sentinels)).unwrap_or(0)
    }

    /// Returns the longest that one of them waits for a silent primary.
    pub(super) fn down_after(&self) -> Option<Duration> {
        self.most(|last| last.down_after)
    }

    /// Returns the longest time for an answer of any of them.
    pub(super) fn patience(&self) -> Duration {
        let longest = self.most(|last| Some(last.took * TIMES));
        longest.unwrap_or_default().max(LEAST)
    }

    fn most<T: Ord>(&self, of: impl Fn(&Last) -> Option<T>) -> Option<T> {
        lock(&self.0).values().filter_map(of).max()
    }
}

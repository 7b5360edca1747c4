//! The answers of a URL's sentinels up to now.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::super::lock;
use super::super::nodes::KnownReplica;
use super::super::url::Address;

/// A sentinel's answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The sentinel, as the URL names it.
    pub by: String,
    /// The sentinel, whatever the URL calls it; its name there where it doesn't say (Redis 6.0).
    pub(super) id: String,
    /// Where the primary is.
    pub address: Address,
    /// It grows with each failover.
    pub(super) epoch: u64,
    /// How many sentinels it knows of, itself included.
    pub(super) sentinels: usize,
    /// How long it waits for a silent primary, where it says that.
    pub(super) down_after: Option<Duration>,
    /// All that it has heard of; empty where that wasn't asked.
    pub(super) replicas: Vec<KnownReplica>,
}

/// The least that a sentinel has for its answer, connecting included.
pub(super) const LEAST: Duration = Duration::from_millis(250);

/// How many times what its last answer took: for connecting and asking, that is as many round trips as twice that.
const TIMES: u32 = 2;

/// What each has said last.
#[derive(Default)]
pub(super) struct Heard(Mutex<All>);

#[derive(Default)]
struct All {
    /// The last answer of each, by its name in the URL, and how long that took.
    last: BTreeMap<String, (Answer, Duration)>,
    /// The primary that is used, and the epochs of those that have named it since then.
    in_use: Option<Address>,
    epochs: BTreeMap<String, u64>,
    /// The most sentinels that one of them has known, itself included: one that is reset forgets the others.
    sentinels: usize,
}

impl Heard {
    fn all(&self) -> MutexGuard<'_, All> {
        lock(&self.0)
    }

    /// One that took this long to be reached and to answer has said this.
    pub(super) fn note(&self, answer: &Answer, took: Duration) {
        let mut all = self.all();
        if all.in_use.as_ref() == Some(&answer.address) {
            all.epochs.insert(answer.by.clone(), answer.epoch);
        }
        all.sentinels = all.sentinels.max(answer.sentinels);
        all.last.insert(answer.by.clone(), (answer.clone(), took));
    }

    /// The primary at this address is used from now on.
    pub(super) fn use_primary(&self, address: &Address) {
        let mut all = self.all();
        if all.in_use.as_ref() != Some(address) {
            let answers = all.last.values().map(|(answer, _)| answer);
            let agree = answers.filter(|answer| answer.address == *address);
            all.epochs = agree.map(|it| (it.by.clone(), it.epoch)).collect();
            all.in_use = Some(address.clone());
        }
    }

    /// The last failover that most of those have said who name the primary that is used: a sentinel that boasts of
    /// failovers is one of them. Zero where none is used.
    pub(super) fn epoch_in_use(&self) -> u64 {
        let epochs = &self.all().epochs;
        reached(epochs.values().copied(), epochs.len())
    }

    /// The last failover that most of this many sentinels have said: none of several raises it alone.
    pub(super) fn epoch(&self, of: usize) -> u64 {
        reached(self.all().last.values().map(|(it, _)| it.epoch), of)
    }

    /// The most sentinels that one of them has known.
    pub(super) fn sentinels(&self) -> usize {
        self.all().sentinels
    }

    /// The longest that one of them waits for a silent primary.
    pub(super) fn down_after(&self) -> Option<Duration> {
        let all = self.all();
        all.last.values().filter_map(|(it, _)| it.down_after).max()
    }

    /// Longest time for any of them.
    pub(super) fn patience(&self) -> Duration {
        let all = self.all();
        let longest = all.last.values().map(|(_, took)| *took * TIMES).max();
        longest.unwrap_or_default().max(LEAST)
    }
}

/// The largest epoch that more than half of this many have reached.
pub(super) fn reached(epochs: impl Iterator<Item = u64>, of: usize) -> u64 {
    let mut epochs: Vec<u64> = epochs.collect();
    epochs.sort_unstable_by(|one, other| other.cmp(one));
    epochs.get(of / 2).copied().unwrap_or(0)
}

//! The sentinels of a URL, and their answers so far.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::endpoint::Server;
use super::super::url::Address;
use super::super::{Error, in_thread, lock};
use super::answer::{SentinelAnswer, Subject, ask};

/// Answers that are still coming in.
pub type Answers = Receiver<Result<SentinelAnswer, Error>>;

/// Shortest time limit for a sentinel's answer, including the connection.
pub(super) const LEAST: Duration = Duration::from_millis(250);

/// Factor from the duration of the last answer to the next time limit. Both include connecting.
const TIMES: u32 = 2;

/// The sentinels of a URL, and the name under which they know the primary.
pub struct Sentinels {
    pub nodes: Vec<Arc<Server>>,
    pub primary: String,
    /// The last answer of each sentinel, by its name in the URL.
    last: Mutex<BTreeMap<String, LastAnswer>>,
    /// Number of the sentinel to ask next.
    pub(super) turn: AtomicUsize,
    /// Address of the primary, if the last attempt to reach it failed.
    pub(super) failed: Mutex<Option<Address>>,
}

#[derive(Default)]
struct LastAnswer {
    down_after: Option<Duration>,
    /// Duration of the last answer, including the connection.
    took: Duration,
    /// Largest number of sentinels that this one has known, itself included. A reset makes a sentinel forget the others.
    sentinels: usize,
}

impl Sentinels {
    pub fn new(nodes: Vec<Arc<Server>>, primary: String) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            primary,
            last: Mutex::default(),
            turn: AtomicUsize::new(0),
            failed: Mutex::default(),
        })
    }

    /// Asks a sentinel, and stores its answer.
    pub(super) fn ask(
        &self,
        node: &Arc<Server>,
        about: Subject,
        within: Duration,
    ) -> Result<SentinelAnswer, Error> {
        let began = Instant::now();
        let answer = ask(node, &self.primary, about, within)?;
        let mut all = lock(&self.last);
        let last = all.entry(answer.by.clone()).or_default();
        (last.down_after, last.took) = (answer.down_after, began.elapsed());
        last.sentinels = last.sentinels.max(answer.sentinels);
        Ok(answer)
    }

    /// Asks all sentinels at once. The channel delivers answers as they come, and closes after the last one.
    pub(super) fn ask_all(self: &Arc<Self>, about: Subject, within: Duration) -> Answers {
        let (answers, coming) = channel();
        for node in &self.nodes {
            let (node, all) = (Arc::clone(node), Arc::clone(self));
            // If a thread can't be started, that sentinel gives no answer.
            let _ = in_thread(&answers, move || all.ask(&node, about, within));
        }
        coming
    }

    /// Returns the largest number of sentinels that any of them has known.
    pub(super) fn sentinels(&self) -> usize {
        self.most(|last| Some(last.sentinels)).unwrap_or(0)
    }

    /// Returns the longest time that any of them waits for a silent primary.
    pub fn down_after(&self) -> Option<Duration> {
        self.most(|last| last.down_after)
    }

    /// Returns the time limit for a sentinel's answer, from the slowest one of the last answers.
    pub(super) fn patience(&self) -> Duration {
        let longest = self.most(|last| Some(last.took * TIMES));
        longest.unwrap_or_default().max(LEAST)
    }

    fn most<T: Ord>(&self, of: impl Fn(&LastAnswer) -> Option<T>) -> Option<T> {
        lock(&self.last).values().filter_map(of).max()
    }
}

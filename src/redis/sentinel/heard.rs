//! The sentinels of a URL, and their answers up to now.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::super::server::Server;
use super::super::{Error, in_thread, lock};
use super::answer::{About, Answer, ask};

/// Answers that are still coming in.
pub type Answers = Receiver<Result<Answer, Error>>;

/// The least that a sentinel has for its answer, connecting included.
pub(super) const LEAST: Duration = Duration::from_millis(250);

/// How many times what its last answer took: for connecting and asking, that is as many round trips as twice that.
const TIMES: u32 = 2;

/// The sentinels of a URL.
pub(super) struct Heard {
    pub(super) nodes: Vec<Arc<Server>>,
    /// Name of the primary, as they know it.
    pub(super) primary: String,
    /// The last answer of each, by its name in the URL.
    last: Mutex<BTreeMap<String, Last>>,
}

#[derive(Default)]
struct Last {
    down_after: Option<Duration>,
    /// The time of the answer.
    took: Duration,
    /// The most sentinels that it has known, itself included: one that is reset forgets the others.
    sentinels: usize,
}

impl Heard {
    pub(super) fn new(nodes: Vec<Arc<Server>>, primary: String) -> Arc<Self> {
        let last = Mutex::default();
        Arc::new(Self {
            nodes,
            primary,
            last,
        })
    }

    /// Asks one of the sentinels, and notes its answer.
    pub(super) fn ask(
        &self,
        node: &Arc<Server>,
        about: About,
        within: Duration,
    ) -> Result<Answer, Error> {
        let began = Instant::now();
        let answer = ask(node, &self.primary, about, within)?;
        let mut all = lock(&self.last);
        let last = all.entry(answer.by.clone()).or_default();
        (last.down_after, last.took) = (answer.down_after, began.elapsed());
        last.sentinels = last.sentinels.max(answer.sentinels);
        Ok(answer)
    }

    /// Asks all sentinels at once. The answers come as they are given, until the last one has failed.
    pub(super) fn ask_all(self: &Arc<Self>, about: About, within: Duration) -> Answers {
        let (answers, coming) = channel();
        for node in &self.nodes {
            let (node, heard) = (Arc::clone(node), Arc::clone(self));
            // A thread that can't be started is a sentinel that doesn't answer.
            let _ = in_thread(&answers, move || heard.ask(&node, about, within));
        }
        coming
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
        lock(&self.last).values().filter_map(of).max()
    }
}

//! A poll of all sentinels of a URL, and the answer of the majority.

use std::time::Instant;

use super::super::error::{Error, ErrorKind};
use super::super::left;
use super::super::url::Address;
use super::answer::SentinelAnswer;
use super::replicas::promotable_replicas;
use super::sentinels::Answers;

/// The answer of the majority of sentinels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Majority {
    /// A sentinel of the majority, for messages.
    pub(super) by: String,
    pub(super) address: Address,
    /// The promotable replicas, according to the lists of the majority.
    pub(super) replicas: Vec<String>,
}

/// A poll whose answers are still coming in.
pub(super) struct Poll {
    /// True if replicas must confirm. Then the answer needs a majority of all sentinels, including those that the URL doesn't
    /// name. A failover needs such a majority, too, so at least one sentinel of this poll knows of a failover that has begun.
    pub(super) names_each: bool,
    pub(super) coming: Answers,
    /// End of the time for answers.
    pub(super) until: Instant,
    /// Number of sentinels according to their earlier answers.
    pub(super) expected: usize,
    /// Number of sentinels in the URL, without known duplicates.
    pub(super) nodes: usize,
    /// The answers, at most one of each sentinel for each primary.
    pub(super) answers: Vec<SentinelAnswer>,
    /// Errors of the sentinels that gave no usable answer.
    pub(super) errors: Vec<Error>,
}

impl Poll {
    /// Waits until the majority names the same primary, or the time is over.
    pub(super) fn wait(&mut self) -> Option<Majority> {
        loop {
            if let Some(agreed) = self.agreed() {
                return Some(agreed);
            }
            let answer = self.coming.recv_timeout(left(self.until));
            self.count(answer.ok()?);
        }
    }

    /// Counts the answer or the error of a sentinel.
    pub(super) fn count(&mut self, answer: Result<SentinelAnswer, Error>) {
        let is_same = |one: &SentinelAnswer, other: &SentinelAnswer| {
            (&one.id, &one.address) == (&other.id, &other.address)
        };
        match answer {
            // If the URL names a sentinel twice, by its name and by its address, it has one vote.
            Ok(answer) if self.answers.iter().any(|other| is_same(other, &answer)) => {
                self.nodes = self.nodes.saturating_sub(1);
            }
            Ok(answer) => self.answers.push(answer),
            Err(error) => self.errors.push(error),
        }
    }

    /// Returns the primary that the majority names so far.
    fn agreed(&self) -> Option<Majority> {
        let mut addresses = self.answers.iter().map(|answer| &answer.address);
        let address = addresses.find(|address| self.named(address).count() >= self.most())?;
        let lists: Vec<_> = self.named(address).map(|it| &*it.replicas).collect();
        let mut replicas = promotable_replicas(&lists, self.sentinels());
        // A sentinel that is replacing the primary still lists the next one as a replica.
        replicas.retain(|replica| *replica != address.to_string());
        Some(Majority {
            by: self.named(address).next()?.by.clone(),
            address: address.clone(),
            replicas,
        })
    }

    fn named<'a>(&'a self, address: &'a Address) -> impl Iterator<Item = &'a SentinelAnswer> {
        self.answers.iter().filter(move |it| it.address == *address)
    }

    /// Returns the number of sentinels, according to the one that knows most of them: a sentinel that was reset knows no
    /// others.
    fn sentinels(&self) -> usize {
        let largest = self.answers.iter().map(|answer| answer.sentinels).max();
        largest.unwrap_or(0).max(self.expected).max(self.nodes)
    }

    /// Returns the number of sentinels of which a majority is needed.
    fn all(&self) -> usize {
        if self.names_each {
            self.sentinels()
        } else {
            self.nodes
        }
    }

    /// Returns the number of sentinels that must name the primary.
    fn most(&self) -> usize {
        self.all() / 2 + 1
    }

    /// Returns the reason why there is no majority. `name` is the primary's.
    pub(super) fn error(&self, name: &str) -> Error {
        let Some(first) = self.answers.first() else {
            return self.silence();
        };
        let is_other = |answer: &SentinelAnswer| answer.address != first.address;
        let in_words = |answer: &SentinelAnswer| format!("{} says {}", answer.by, answer.address);
        let each: Vec<String> = self.answers.iter().map(in_words).collect();
        let each = each.join(", ");
        let (listed, all, most) = (self.nodes, self.all(), self.most());
        if listed < most {
            let message = format!(
                "REDLOCK_SYNC=all needs most of the {all} sentinels to name the primary \"{name}\", but the URL names only {listed} of them; add the others to the URL"
            );
            return Error::new(ErrorKind::Config, message);
        }
        let subject = if self.names_each {
            "REDLOCK_SYNC=all"
        } else {
            "redlock"
        };
        let message = if self.answers.iter().any(is_other) {
            format!(
                "the sentinels don't agree where the primary \"{name}\" is ({each}), and {subject} needs {most} of {all}; try again when the failover is over"
            )
        } else {
            let answers = self.answers.len();
            format!(
                "only {answers} of {all} sentinels named the primary \"{name}\" in time ({each}), but {subject} needs {most}; start the others, or make them reachable"
            )
        };
        Error::new(ErrorKind::NoPrimary, message)
    }

    /// Returns the error if no sentinel gave a usable answer.
    fn silence(&self) -> Error {
        // A wrong name or password is wrong for all sentinels, and explains more than silence.
        let says_more = |error: &&Error| error.kind != ErrorKind::Unreachable;
        let error = self.errors.iter().find(says_more).or(self.errors.first());
        match error {
            Some(error) if error.kind != ErrorKind::Unreachable || self.nodes == 1 => error.clone(),
            Some(error) => {
                let message = format!("{error}; none of the {} sentinels answers", self.nodes);
                Error::new(error.kind, message)
            }
            None => Error::new(
                ErrorKind::Unreachable,
                format!("none of the {} sentinels answers in time", self.nodes),
            ),
        }
    }
}

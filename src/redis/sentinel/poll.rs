//! A poll of all sentinels of a URL, and the answer of most of them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

use super::super::nodes::promotable_replicas;
use super::super::url::Address;
use super::super::{Error, ErrorKind, left};
use super::heard::{Answer, LEAST, reached};

/// How many sentinels have to name the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Most of all that there are, also of those that the URL doesn't name. Two of their majorities share a sentinel, and
    /// so do one of them and that which elects the sentinel that replaces the primary: so it isn't replaced yet, as far as
    /// that one knows.
    MostOfAll,
    /// Most of the URL's.
    MostOfUrl,
    /// Most of the URL's or, once the others have had their time, of those that answer, and at least this many of them. Two
    /// that disagree are no majority: a password may go there.
    MostThatAnswer(usize),
    /// The same, at least one of them; where none is most of them, the address since the last failover.
    Newest,
}

/// What most sentinels say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// One of them, for messages.
    pub(super) by: String,
    pub(super) address: Address,
    /// The last failover that most of them have reached.
    pub(super) epoch: u64,
    /// The replicas that count, by the lists of all of them.
    pub(super) replicas: Vec<String>,
}

impl From<Answer> for Agreed {
    /// One alone is believed.
    fn from(answer: Answer) -> Self {
        Self {
            by: answer.by,
            address: answer.address,
            epoch: answer.epoch,
            replicas: Vec::new(),
        }
    }
}

/// Answers that are still coming in.
pub(super) struct Poll {
    pub(super) need: Need,
    pub(super) coming: Receiver<Result<Answer, Error>>,
    /// How long answers are waited for.
    pub(super) until: Instant,
    /// Sentinels that haven't answered count until then: a liar is no majority because it is quick.
    pub(super) late: Instant,
    /// What is from before this failover counts from `outdated` on, unless most sentinels say it: others may still know
    /// better. Sentinels that were made anew begin at zero.
    pub(super) since: u64,
    pub(super) outdated: Instant,
    /// How many sentinels there were, by what any of them has said before.
    pub(super) known: usize,
    /// How many sentinels the URL names, as far as is known each once.
    pub(super) asked: usize,
    /// One answer of each sentinel.
    pub(super) answers: Vec<Answer>,
    /// Why sentinels didn't answer.
    pub(super) silent: Vec<Error>,
}

impl Poll {
    /// Waits until it is known what most of them say, or the time is over.
    pub(super) fn wait(&mut self) -> Option<Agreed> {
        loop {
            let now = Instant::now();
            let (is_late, is_over) = (now >= self.late, now >= self.until);
            let is_last = is_over || now >= self.outdated;
            if let Some(agreed) = self.agreed(is_late)
                && (is_last || agreed.epoch >= self.since || self.is_most_of_url(&agreed.address))
            {
                return Some(agreed);
            }
            if is_over {
                return None;
            }
            let later = [self.late, self.outdated, self.until].into_iter();
            self.take(later.filter(|at| *at > now).min().unwrap_or(now));
        }
    }

    /// Waits for one more answer, at most until then.
    fn take(&mut self, until: Instant) {
        match self.coming.recv_timeout(left(until)) {
            Ok(answer) => self.count(answer),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                // None is outstanding.
                let now = Instant::now();
                (self.until, self.late) = (self.until.min(now), self.late.min(now));
            }
        }
    }

    /// Counts what a sentinel has answered, or that it has failed.
    pub(super) fn count(&mut self, answer: Result<Answer, Error>) {
        match answer {
            // A sentinel that the URL names twice, by its name and by its address, has one vote.
            Ok(answer) if self.answers.iter().any(|other| other.id == answer.id) => {
                self.asked = self.asked.saturating_sub(1);
            }
            Ok(answer) => self.answers.push(answer),
            Err(error) => self.silent.push(error),
        }
    }

    /// What most of them say by now.
    fn agreed(&self, is_late: bool) -> Option<Agreed> {
        let most_of = |of: usize| {
            let mut named = self.answers.iter().map(|answer| &answer.address);
            named.find(|address| self.votes(address) > of / 2)
        };
        let most = || {
            most_of(if is_late {
                self.answers.len()
            } else {
                self.asked
            })
        };
        let address = match self.need {
            Need::MostOfAll => most_of(self.known()),
            Need::MostOfUrl => most_of(self.asked),
            Need::MostThatAnswer(least) => most().filter(|address| self.votes(address) >= least),
            Need::Newest => most().or_else(|| self.newest().filter(|_| is_late)),
        }?;
        let agree: Vec<&Answer> = self.named(address).collect();
        let lists: Vec<_> = agree.iter().map(|it| it.replicas.as_slice()).collect();
        let mut replicas = promotable_replicas(&lists, self.known());
        // A sentinel that is replacing the primary still lists the next one as a replica.
        replicas.retain(|replica| *replica != address.to_string());
        Some(Agreed {
            by: agree.first()?.by.clone(),
            address: address.clone(),
            epoch: reached(agree.iter().map(|answer| answer.epoch), agree.len()),
            replicas,
        })
    }

    fn named<'a>(&'a self, address: &'a Address) -> impl Iterator<Item = &'a Answer> {
        self.answers.iter().filter(move |it| it.address == *address)
    }

    fn votes(&self, address: &Address) -> usize {
        self.named(address).count()
    }

    fn is_most_of_url(&self, address: &Address) -> bool {
        self.votes(address) > self.asked / 2
    }

    /// How many sentinels there are, by the one that knows most of them: one that was reset, or made anew, knows of no
    /// others.
    fn known(&self) -> usize {
        let known = self.answers.iter().map(|answer| answer.sentinels).max();
        known.unwrap_or(0).max(self.known).max(self.asked)
    }

    /// The address since the last failover, where only one is.
    fn newest(&self) -> Option<&Address> {
        let last = self.answers.iter().map(|answer| answer.epoch).max()?;
        let mut newest = self.answers.iter().filter(|it| it.epoch == last);
        let address = &newest.next()?.address;
        newest
            .all(|other| other.address == *address)
            .then_some(address)
    }

    /// Whether they name different addresses, all that answer in time.
    pub(super) fn is_disputed(&mut self) -> bool {
        // Those that are late or down don't hold up the others for long.
        let until = Instant::now() + LEAST;
        self.until = self.until.min(until);
        while Instant::now() < self.until {
            self.take(self.until);
        }
        self.names_several()
    }

    /// Returns true if the answers up to now name different addresses.
    fn names_several(&self) -> bool {
        let mut answers = self.answers.iter();
        answers.any(|answer| answer.address != self.answers[0].address)
    }

    /// Why there is no such address; `name` is that of the primary.
    pub(super) fn error(&self, name: &str) -> Error {
        if self.answers.is_empty() {
            return self.silence();
        }
        let said = |answer: &Answer| format!("{} says {}", answer.by, answer.address);
        let said: Vec<String> = self.answers.iter().map(said).collect();
        let said = said.join(", ");
        let (asked, known) = (self.asked, self.known());
        let most = known / 2 + 1;
        let disagree =
            format!("the sentinels don't agree where the primary \"{name}\" is ({said})");
        let again = "try again when the failover is over";
        if self.need == Need::MostOfAll && asked < most {
            let message = format!(
                "REDLOCK_SYNC=all needs most of the {known} sentinels to name the primary \"{name}\", but the URL names only {asked} of them; add the others to the URL"
            );
            return Error::new(ErrorKind::Config, message);
        }
        let message = match self.need {
            Need::MostOfAll if self.names_several() => {
                format!("{disagree}, and REDLOCK_SYNC=all needs {most} of {known}; {again}")
            }
            Need::MostOfAll => format!(
                "only {} of {known} sentinels named the primary \"{name}\" in time ({said}), but REDLOCK_SYNC=all needs {most}; start the others, or make them reachable",
                self.answers.len()
            ),
            Need::MostThatAnswer(least) if self.answers.len() < least => format!(
                "only one of {asked} sentinels named the primary \"{name}\" in time ({said}), and redlock sends a password only to a server that at least two sentinels name; start another one, or make it reachable"
            ),
            Need::MostThatAnswer(_) => format!(
                "{disagree}, and redlock sends a password only to a server that all sentinels name; {again}"
            ),
            Need::MostOfUrl | Need::Newest => format!("{disagree}; {again}"),
        };
        Error::new(ErrorKind::NoPrimary, message)
    }

    /// None has answered.
    fn silence(&self) -> Error {
        // A wrong name or password is the same everywhere, and says more than silence.
        let says_more = |error: &&Error| error.kind != ErrorKind::Unreachable;
        let known = self.silent.iter().find(says_more).or(self.silent.first());
        match known {
            Some(error) if error.kind != ErrorKind::Unreachable || self.asked == 1 => error.clone(),
            Some(error) => {
                let message = format!("{error}; none of the {} sentinels answers", self.asked);
                Error::new(error.kind, message)
            }
            None => Error::new(
                ErrorKind::Unreachable,
                format!("none of the {} sentinels answers in time", self.asked),
            ),
        }
    }
}

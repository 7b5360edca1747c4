//! What `redlock doctor` has found out about a server, before anything is judged. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::certificate::Validity;
use super::info::{Info, ReplicaEntry};
use crate::protocol::{
    Error, Inspected, KnownReplica, Messages, RedisCli, Transport, Trial, promotable_replicas,
};

/// What is known of one thing, or why it isn't.
pub type Known<T> = Result<T, Unknown>;

/// Why something isn't known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// This command isn't permitted.
    Denied(&'static str),
    /// The server doesn't have this command, or closes the connection at it.
    Unsupported(&'static str),
    /// There was no answer in time.
    NoAnswer,
    /// It wasn't asked, as something that comes before it failed.
    NotAsked,
    /// Something else was answered.
    Failed(String),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(command) => write!(f, "{command} is not permitted"),
            Self::Unsupported(command) => write!(f, "the server has no {command}"),
            Self::NoAnswer => f.write_str("there was no answer in time"),
            Self::NotAsked => f.write_str("something above failed"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// Everything that was found out.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
#[derive(Debug)]
pub struct Evidence {
    /// The server, as messages name it.
    pub place: String,
    /// Its locks exclude nobody on another host.
    pub is_local: bool,
    /// How redis-cli reaches that server.
    pub redis_cli: RedisCli,
    /// The URL was typed, so that a command without it goes elsewhere.
    pub is_typed: bool,
    pub prefix: String,
    pub prefix_has_tag: bool,
    /// The user of the server's access list, where one was given.
    pub user: Option<String>,
    pub transport: Transport,
    /// The longest that connecting, and each answer, may take.
    pub timeout: Duration,
    /// How long it took to connect and to log in.
    pub connected: Result<Duration, Error>,
    /// Of the server, and of ours for it.
    pub certificate: Option<Validity>,
    pub own_certificate: Option<Validity>,
    pub info: Known<Info>,
    pub config: BTreeMap<&'static str, Known<String>>,
    pub round_trips: Known<Vec<RoundTrip>>,
    pub replicas: Vec<Replica>,
    /// The other primaries of a cluster.
    pub nodes: Vec<Replica>,
    /// The other servers that sentinels name.
    pub others: Vec<Replica>,
    /// Whether an answer of several packets arrives.
    pub long_answer: Known<()>,
    /// The hash slot of the prefix, where it has a tag.
    pub slot: Option<u16>,
    /// It is known which replicas could follow the primary.
    pub knows_replicas: bool,
    pub probes: Known<Vec<Probe>>,
    pub scripts: Known<Trial>,
    pub messages: Known<Messages>,
    /// What is at the keys of the name that was asked about.
    pub named: Option<Known<NamedLock>>,
    /// Where the primary is found by sentinels.
    pub sentinels: Option<SentinelEvidence>,
    /// How many replicas have confirmed what was written.
    pub acknowledged: Known<u64>,
}

/// What the sentinels of a URL say.
#[derive(Clone, Debug)]
pub struct SentinelEvidence {
    /// The name under which they know the primary.
    pub primary: String,
    /// Where their addresses are from, as a sentence.
    pub origin: Option<String>,
    /// Of each sentinel, by its address.
    pub answers: Vec<(Sentinel, Known<SentinelAnswer>)>,
}

impl SentinelEvidence {
    /// Those that have answered.
    pub fn answered(&self) -> impl Iterator<Item = (&Sentinel, &SentinelAnswer)> {
        let answers = self.answers.iter();
        answers.filter_map(|(one, answer)| answer.as_ref().ok().map(|answer| (one, answer)))
    }

    /// How many of the URL's there are, each once.
    pub fn asked(&self) -> usize {
        let ids = self.answered().map(|(_, answer)| answer.id.as_str());
        let once = ids.collect::<BTreeSet<_>>().len();
        self.answers.len() - (self.answered().count() - once)
    }

    /// How many there are, with those that the URL doesn't name.
    pub fn all(&self) -> usize {
        let known = self.answered().map(|(_, answer)| answer.sentinels).max();
        let known = usize::try_from(known.unwrap_or(0)).unwrap_or(usize::MAX);
        known.max(self.asked())
    }

    /// The replicas that `--sync all` waits for.
    pub fn replicas(&self) -> Known<Vec<String>> {
        let lists = self.answered().map(|(_, answer)| answer.replicas.as_ref());
        let lists: Vec<_> = lists.collect();
        let known: Vec<&[KnownReplica]> = lists
            .iter()
            .filter_map(|list| list.ok().map(Vec::as_slice))
            .collect();
        match lists.iter().find_map(|list| list.err()) {
            Some(why) if known.is_empty() => Err(why.clone()),
            _ => Ok(promotable_replicas(&known, self.all())),
        }
    }

    /// How many sentinels name this server, as the primary or a replica of it.
    pub fn naming(&self, place: &str) -> usize {
        let names = |answer: &SentinelAnswer| {
            let mut replicas = answer.replicas.iter().flatten();
            answer.primary == place || replicas.any(|replica| replica.address == place)
        };
        self.answered().filter(|(_, answer)| names(answer)).count()
    }

    /// All servers that they name, each once.
    pub fn servers(&self) -> BTreeSet<&str> {
        let replicas = self.answered();
        let replicas = replicas.flat_map(|(_, answer)| answer.replicas.iter().flatten());
        let replicas = replicas.map(|replica| replica.address.as_str());
        let primaries = self.answered().map(|(_, answer)| answer.primary.as_str());
        replicas.chain(primaries).collect()
    }
}

/// A sentinel of the URL.
#[derive(Clone, Debug)]
pub struct Sentinel {
    /// Its address, as messages name it.
    pub place: String,
    pub redis_cli: RedisCli,
}

/// What a sentinel says of a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelAnswer {
    /// Whatever the URL calls it.
    pub id: String,
    /// How long a question took.
    pub took: Duration,
    /// Its address.
    pub primary: String,
    pub flags: String,
    /// How many sentinels have to take it for dead.
    pub quorum: u64,
    /// How many it knows, itself included.
    pub sentinels: u64,
    /// All replicas that it has heard of.
    pub replicas: Known<Vec<KnownReplica>>,
    /// Why a failover would not be agreed on, as far as it knows.
    pub no_quorum: Option<String>,
    pub down_after: Duration,
    pub failover_timeout: Duration,
}

/// A replica, as its primary knows it and as it answers itself.
#[derive(Clone, Debug)]
pub struct Replica {
    pub entry: ReplicaEntry,
    /// How far its clock is ahead of ours; and what it says of itself.
    pub clock: Known<ClockOffset>,
    pub info: Known<Info>,
}

/// The time that one question took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    pub took: Duration,
    pub clock: Option<ClockOffset>,
}

/// How far another clock is ahead of ours, give or take, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    pub ahead_us: i64,
    pub error_us: u64,
}

/// The answer that took the least time knows best.
pub fn best_clock(round_trips: &[RoundTrip]) -> Option<ClockOffset> {
    let clocks = round_trips.iter().filter_map(|it| it.clock);
    clocks.min_by_key(|clock| clock.error_us)
}

/// What became of a command that redlock uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub subject: Subject,
    pub verdict: Verdict,
}

/// What a rule of the access list is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Without it nothing works.
    Command(&'static str),
    /// Without it something is slower.
    Optional(&'static str),
    /// Keys that begin so.
    Keys(String),
    /// Channels that begin so.
    Channels(String),
}

impl Subject {
    /// The rule that permits it.
    pub fn rule(&self) -> String {
        match self {
            Self::Command(name) | Self::Optional(name) => format!("+{name}"),
            Self::Keys(start) => format!("~{start}*"),
            Self::Channels(start) => format!("&{start}*"),
        }
    }

    /// Whether nothing works without it.
    pub fn is_needed(&self) -> bool {
        matches!(self, Self::Command(_) | Self::Keys(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Permitted,
    Denied,
    /// The server has no such command: it is another one, or the command was renamed or disabled.
    Missing,
    /// Another rule that is missing hides it.
    Unclear,
}

/// What is at the keys of a lock.
#[derive(Clone, Debug)]
pub struct NamedLock {
    pub key: String,
    /// The keys of another type than ours have, each with its type and with the one that it should have.
    pub strangers: Vec<Stranger>,
    /// `None` where the scripts can't read it for those.
    pub found: Option<Inspected>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    pub key: String,
    pub found: String,
    pub expected: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_known_best_by_the_shortest_round_trip() {
        let trip = |ahead_us, error_us| RoundTrip {
            took: Duration::from_micros(2 * error_us),
            clock: Some(ClockOffset { ahead_us, error_us }),
        };
        let best = best_clock(&[trip(900, 1000), trip(5, 40), trip(70, 80)]);
        assert_eq!(best.unwrap().ahead_us, 5);
        assert_eq!(best_clock(&[]), None);
    }
}

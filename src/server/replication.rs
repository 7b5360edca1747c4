//! Replicas that must confirm a grant or a renewal before it is valid. A primary that fails loses the writes that it hasn't
//! sent to a replica, and the replica that is promoted doesn't know them. Pure.
//!
//! `WAIT` returns the number of replicas that have the write, but not their names. If the names matter, `ROLE` before and after
//! `WAIT` gives the primary's offset and each replica's.

use std::time::{Duration, Instant};

use redis::Value;

use super::reply::lossy_text;
use super::url::with_port;
use crate::duration;

/// The replicas that must confirm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// All that could be promoted, and at least one.
    All,
    /// This many of any replicas.
    AtLeast(u32),
}

/// The required replicas, and their time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replication {
    pub quorum: Quorum,
    pub timeout: Duration,
}

/// Lifetime of a list that redlock requests for each grant and each renewal: enough for connecting and the calls that follow. A
/// replica that is added later could be promoted without the writes that were confirmed by that list.
const ROUND: Duration = Duration::from_secs(5);

/// The replicas that could be promoted instead of a connection's primary, as they were listed last.
#[derive(Debug)]
pub struct ReplicaList {
    /// Goal of the last list, however old the list is.
    pub(super) last: Goal,
    /// End of the list's lifetime. `None` if the list lasts until the next one.
    until: Option<Instant>,
}

impl Default for ReplicaList {
    fn default() -> Self {
        let (last, until) = (Goal::Each(Vec::new()), None);
        Self { last, until }
    }
}

impl ReplicaList {
    /// Returns the list of a shard's replicas that are up. `shard` is the number of its nodes, up or down.
    pub fn in_shard(replicas: Vec<String>, shard: usize) -> Self {
        // If a shard is split into two parts with a primary each, at most one part has more than half of the nodes.
        let last = if !replicas.is_empty() && replicas.len() < shard / 2 {
            Goal::Unreachable(format!(
                "only {} of the {shard} nodes that could have its hash slot are up, and more than half of them must have the lock; start the others, or remove those that are gone for good (CLUSTER FORGET)",
                replicas.len() + 1
            ))
        } else {
            Goal::Each(replicas)
        };
        Self { last, until: None }
    }

    /// Returns a list with this goal, for the calls of one [`ROUND`].
    pub(super) fn for_a_round(last: Goal) -> Self {
        let until = Some(Instant::now() + ROUND);
        Self { last, until }
    }

    /// Returns the goal of a call that is sent now.
    pub fn goal(&self, quorum: Quorum) -> Goal {
        match quorum {
            Quorum::AtLeast(number) => Goal::Number(number),
            Quorum::All if self.until.is_some_and(|until| Instant::now() >= until) => {
                Goal::Unreachable("it didn't list its replicas in time".into())
            }
            Quorum::All => self.last.clone(),
        }
    }
}

/// The replicas to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// This many of any replicas.
    Number(u32),
    /// Each of these, and at least one. A count isn't enough, because other replicas may be connected.
    Each(Vec<String>),
    /// Out of reach, for this reason, so no write is valid.
    Unreachable(String),
}

impl Goal {
    /// Returns the number of replicas.
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Number(number) => *number,
            Self::Each(each) => u32::try_from(each.len()).unwrap_or(u32::MAX),
            Self::Unreachable(_) => 0,
        }
    }

    /// Returns true if particular replicas must confirm.
    pub(super) fn is_each(&self) -> bool {
        matches!(self, Self::Each(_))
    }

    /// Returns true if each of the listed replicas has the data up to the primary's `offset`, according to a later answer to
    /// `ROLE`; false for any other goal.
    pub fn is_reached(&self, offset: u64, role: &Role) -> bool {
        let is_each = matches!(self, Self::Each(each) if !each.is_empty());
        is_each && self.missing(offset, role).is_empty()
    }

    /// Returns true if one of the listed replicas isn't connected, according to the primary; false for any other goal.
    pub(super) fn lacks_one(&self, role: &Role) -> bool {
        let is_missing = |address: &String| role.position(address).is_none();
        matches!(self, Self::Each(each) if each.iter().any(is_missing))
    }

    /// Describes the replicas that don't have all data up to `offset`, and how far they are behind. The one that is furthest
    /// behind comes first.
    fn missing(&self, offset: u64, role: &Role) -> Vec<String> {
        let addresses: Vec<&String> = match self {
            Self::Number(_) => role.replicas.iter().map(|(address, _)| address).collect(),
            Self::Each(each) => each.iter().collect(),
            Self::Unreachable(_) => Vec::new(),
        };
        let mut behind: Vec<(Option<u64>, &String)> = addresses
            .into_iter()
            .map(|address| (role.position(address), address))
            .filter(|(position, _)| position.is_none_or(|at| at < offset))
            .collect();
        behind.sort();
        let in_words = |(position, address): (Option<u64>, &String)| match position {
            None if role.is_copying(address) => {
                format!(
                    "replica {address} is still copying the primary's data; REDLOCK_SYNC=N would wait for any N replicas"
                )
            }
            None => format!("{address} isn't connected to the primary"),
            Some(at) => format!("{address} is {} bytes behind", offset - at),
        };
        behind.into_iter().map(in_words).collect()
    }

    /// Returns the reason why too few replicas have the write, as the end of a sentence about the server. `offset` is the
    /// primary's after the write, if that is known.
    pub fn in_words(
        &self,
        acknowledged: u32,
        within: Duration,
        role: Option<&Role>,
        offset: Option<u64>,
    ) -> String {
        if let Self::Unreachable(why) = self {
            return why.clone();
        }
        let Some(role) = role else {
            return format!(
                "too few of its replicas have confirmed it: {acknowledged} of {}",
                self.number()
            );
        };
        if role.replicas.is_empty() && role.copying.is_empty() {
            return "no replica is connected".into();
        }
        let (number, connected) = (self.number() as usize, role.replicas.len());
        if number == 0 {
            return "no promotable replica is up".into();
        }
        if !self.is_each() && connected < number {
            return format!("only {connected} of {number} replicas are connected");
        }
        let missing = self.missing(offset.unwrap_or(role.offset), role);
        let confirmed = if self.is_each() {
            number - missing.len()
        } else {
            // The primary may have written more since, which the confirmed replicas don't have yet.
            (acknowledged as usize).min(number - 1)
        };
        let which: Vec<String> = missing.into_iter().take(number - confirmed).collect();
        let which = match &which[..] {
            [] => String::new(),
            which => format!(": {}{}", which.join(", "), self.unlisted(role)),
        };
        let within = duration::exact(Duration::from_millis(duration::milliseconds(within)));
        format!(
            "{confirmed} of {number} replicas confirmed it within {within} (REDLOCK_SYNC_TIMEOUT){which}"
        )
    }

    /// Returns a hint at a connected replica that isn't listed, if a listed one isn't connected: it may be the same replica
    /// under another address.
    fn unlisted(&self, role: &Role) -> String {
        let Self::Each(each) = self else {
            return String::new();
        };
        let is_gone =
            |address: &String| role.position(address).is_none() && !role.is_copying(address);
        let mut connected = role.replicas.iter().map(|(address, _)| address);
        match connected.find(|address| !each.contains(address)) {
            Some(address) if each.iter().any(is_gone) => {
                format!(" ({address} is connected but not listed: see `redlock doctor`)")
            }
            _ => String::new(),
        }
    }
}

/// The answer of a primary to `ROLE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    pub offset: u64,
    /// Each connected replica, with the offset that it has confirmed. A replica that has connected again may be listed
    /// twice, because the primary doesn't know yet that the old connection is gone.
    pub(super) replicas: Vec<(String, u64)>,
    /// Replicas that are still copying the data, if redlock has asked for them.
    pub(super) copying: Vec<String>,
}

impl Role {
    /// Returns the addresses of the connected replicas. A client that only reads the stream has port 0, and is left out.
    pub fn addresses(&self) -> Vec<String> {
        let addresses = self.replicas.iter().map(|(address, _)| address);
        let is_server = |address: &&String| !address.ends_with(":0");
        addresses.filter(is_server).cloned().collect()
    }

    /// Returns the offset that a replica has confirmed, or `None` if it isn't connected.
    fn position(&self, address: &str) -> Option<u64> {
        let positions = self.replicas.iter().filter(|(of, _)| of == address);
        positions.map(|(_, position)| *position).max()
    }

    fn is_copying(&self, address: &String) -> bool {
        self.position(address).is_none() && self.copying.contains(address)
    }

    /// Adds the replicas that are copying the data, from the section "replication" of `INFO`.
    pub(super) fn note_copying(&mut self, info: &str) {
        for line in info.lines().filter(|line| line.starts_with("slave")) {
            let fields = line.split_once(':').map_or("", |(_, fields)| fields).trim();
            let field = |name: &str| {
                let mut pairs = fields.split(',').filter_map(|pair| pair.split_once('='));
                pairs.find(|(of, _)| *of == name).map(|(_, value)| value)
            };
            if let (Some(host), Some(port), Some(state)) =
                (field("ip"), field("port"), field("state"))
                && state != "online"
            {
                self.copying.push(with_port(host, port));
            }
        }
    }

    /// Parses the answer. Returns `None` for a server that isn't a primary.
    pub fn parse(answer: &Value) -> Option<Self> {
        let [role, Value::Int(offset), Value::Array(replicas), ..] = answer.as_sequence()? else {
            return None;
        };
        if lossy_text(role) != "master" {
            return None;
        }
        let replica = |value: &Value| {
            let [host, port, offset] = value.as_sequence()? else {
                return None;
            };
            let address = with_port(&lossy_text(host), lossy_text(port));
            Some((address, lossy_text(offset).parse().ok()?))
        };
        Some(Self {
            offset: u64::try_from(*offset).ok()?,
            replicas: replicas.iter().filter_map(replica).collect(),
            copying: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the role of a primary with these connected replicas: `a:1=7` has the first seven bytes.
    fn role(offset: u64, replicas: &str) -> Role {
        let each = replicas.split_whitespace().map(|word| {
            let (address, at) = word.split_once('=').unwrap();
            (address.to_owned(), at.parse().unwrap())
        });
        Role {
            offset,
            replicas: each.collect(),
            ..Role::default()
        }
    }

    fn each(addresses: &str) -> Goal {
        let addresses = addresses.split_whitespace();
        Goal::Each(addresses.map(str::to_owned).collect())
    }

    #[test]
    fn the_confirmation_of_one_replica_does_not_count_for_another() {
        for (goal, replicas, is_reached) in [
            // Another replica is connected, and has the data.
            ("a:1 c:1", "a:1=7 b:1=10 c:1=10", false),
            ("a:1 c:1", "b:1=10 c:1=10", false),
            ("a:1 c:1", "a:1=10 b:1=7 c:1=11", true),
            // A replica that has connected again is as far as its new connection says.
            ("a:1 c:1", "a:1=3 c:1=10 a:1=10", true),
            // No replica isn't enough.
            ("", "a:1=10", false),
        ] {
            let reached = each(goal).is_reached(10, &role(12, replicas));
            assert_eq!(reached, is_reached, "{goal:?} {replicas:?}");
        }
    }

    #[test]
    fn the_replica_that_lags_is_named() {
        // The goal, how many have confirmed it, the offset, the connected replicas, and the message. In the last row but two a
        // replica only lags, and isn't taken for one under another address.
        let rows = "2; 1; -; a:1=9 b:1=7; 1 of 2 LATE b:1 is 3 bytes behind
            3; 2; -; a:1=9 b:1=7; only 2 of 3 replicas are connected
            2; 0; -; -; too few of its replicas have confirmed it: 0 of 2
            a:1 b:1; 2; 9; a:1=9 b:1=7; 1 of 2 LATE b:1 is 2 bytes behind
            c:1; 2; 9; a:1=9 b:1=7; 0 of 1 LATE c:1 isn't connected to the primary (a:1 ELSEWHERE)
            c:1; 0; 9; 10.0.0.1:1=9; 0 of 1 LATE c:1 isn't connected to the primary (10.0.0.1:1 ELSEWHERE)
            a:1; 1; 10; a:1=7 b:1=10; 0 of 1 LATE a:1 is 3 bytes behind
            ; 2; 9; a:1=9 b:1=7; no promotable replica is up
            c:1; 0; 9; ; no replica is connected";
        let late = "replicas confirmed it within 1s (REDLOCK_SYNC_TIMEOUT):";
        let elsewhere = "is connected but not listed: see `redlock doctor`";
        for row in rows.lines().map(str::trim) {
            let [goal, acknowledged, offset, replicas, words] =
                row.split("; ").collect::<Vec<_>>()[..]
            else {
                panic!("{row}");
            };
            let goal = goal.parse().map_or_else(|_| each(goal), Goal::Number);
            let acknowledged = acknowledged.parse().unwrap();
            let role = (replicas != "-").then(|| role(10, replicas));
            let second = Duration::from_secs(1);
            let message = goal.in_words(acknowledged, second, role.as_ref(), offset.parse().ok());
            let words = words.replace("LATE", late);
            assert_eq!(message, words.replace("ELSEWHERE", elsewhere));
        }
    }

    #[test]
    fn all_means_the_replicas_that_were_listed_last() {
        assert_eq!(ReplicaList::default().goal(Quorum::All), each(""));
        let two = || vec!["a:1".into(), "b:1".into()];
        for shard in [4, 6] {
            let listed = ReplicaList::in_shard(two(), shard);
            let is_half = matches!(listed.goal(Quorum::All), Goal::Unreachable(_));
            assert_eq!(is_half, shard > 5, "{shard}");
            assert_eq!(listed.goal(Quorum::AtLeast(1)), Goal::Number(1));
        }
        let listed = ReplicaList::in_shard(two(), 3);
        let all = listed.goal(Quorum::All);
        assert_eq!(all, each("a:1 b:1"));
        assert_eq!((all.number(), all.is_each()), (2, true));
        let one = listed.goal(Quorum::AtLeast(1));
        assert_eq!(one, Goal::Number(1));
        assert_eq!((one.number(), one.is_each()), (1, false));
        // A list from sentinels expires.
        let mut listed = ReplicaList::for_a_round(each("a:1"));
        assert_eq!(listed.goal(Quorum::All), each("a:1"));
        listed.until = Some(Instant::now());
        assert!(matches!(listed.goal(Quorum::All), Goal::Unreachable(_)));
        assert_eq!(listed.last, each("a:1"));
        let listed = ReplicaList::for_a_round(Goal::Unreachable("nobody knows".into()));
        let none = listed.goal(Quorum::All);
        assert!(!none.is_reached(10, &role(10, "a:1=10")));
        let words = none.in_words(0, Duration::ZERO, Some(&role(10, "")), Some(10));
        assert_eq!(words, "nobody knows");
    }

    #[test]
    fn a_replica_that_copies_its_data_is_named_with_what_to_do() {
        let mut lacks = role(10, "a:1=10");
        let goal = each("a:1 c:1");
        assert!(goal.lacks_one(&lacks) && !each("a:1").lacks_one(&lacks));
        lacks.note_copying(
            "# Replication\r\nrole:master\r\nslave0:ip=a,port=1,state=online,offset=10,lag=0\r\nslave1:ip=c,port=1,state=wait_bgsave,offset=0,lag=0\r\nslave2:x\r\n",
        );
        let words = goal.in_words(1, Duration::from_secs(1), Some(&lacks), Some(10));
        let expected = "1 of 2 replicas confirmed it within 1s (REDLOCK_SYNC_TIMEOUT): replica c:1 is still copying the primary's data; REDLOCK_SYNC=N would wait for any N replicas";
        assert_eq!(words, expected);
    }

    #[test]
    fn what_only_reads_the_stream_is_no_replica() {
        let connected = role(10, "a:1=7 b:0=10 [::1]:6379=10");
        assert_eq!(connected.addresses(), ["a:1", "[::1]:6379"]);
    }

    #[test]
    fn only_a_primary_has_a_role_for_us() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let of = |fields: &[&str]| Value::Array(fields.iter().map(|field| text(field)).collect());
        let answer = Value::Array(vec![
            text("master"),
            Value::Int(10),
            Value::Array(vec![of(&["::1", "7", "8"]), of(&["h", "7", "10"])]),
        ]);
        let parsed = Role::parse(&answer).unwrap();
        assert_eq!(parsed, role(10, "[::1]:7=8 h:7=10"));
        let replica = Value::Array(vec![
            text("slave"),
            text("h"),
            Value::Int(7),
            text("connected"),
        ]);
        assert_eq!(Role::parse(&replica), None);
    }
}

//! All that a server has of the lock, as the promises look at it.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::model::redis::data::{Entries, Entry, Fields, Members};
use crate::protocol::model::redis::{Bytes, Data};
use crate::protocol::model::support::lua::KEYS;

/// The keys of a lock, in the order of KEYS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Lock,
    State,
    Meta,
    Holders,
    Queue,
    Waiters,
    History,
    Index,
    Slots,
    Exempt,
    Guards,
}

impl Key {
    pub const ALL: [Self; 11] = [
        Self::Lock,
        Self::State,
        Self::Meta,
        Self::Holders,
        Self::Queue,
        Self::Waiters,
        Self::History,
        Self::Index,
        Self::Slots,
        Self::Exempt,
        Self::Guards,
    ];

    pub fn name(self) -> &'static str {
        KEYS[self as usize]
    }
}

pub fn is_group(mark: &str) -> bool {
    mark == "redlock:shared" || mark == "redlock:slots"
}

/// What a hold's entry in `meta` says.
pub struct Hold {
    pub fence: i64,
    pub phase: String,
}

/// `<fence> <since> <limit> <slot> <waited> <phase> <who>`, none of the numbers negative.
pub fn hold(entry: &str) -> Option<Hold> {
    let mut words = entry.splitn(7, ' ');
    let fence = words.next()?.parse::<u64>().ok()?;
    for _ in 0..4 {
        words.next()?.parse::<u64>().ok()?;
    }
    let (phase, _ticket) = words
        .next()
        .map(|phase| phase.split_once(':').unwrap_or((phase, "")))?;
    let phase = phase.to_owned();
    let known = ["granted", "held", "guarded", "kept"].contains(&phase.as_str());
    let fence = i64::try_from(fence).ok()?;
    (known && words.next()?.starts_with('{')).then_some(Hold { fence, phase })
}

/// `<id> <ended> <how> <length of by> <by><entry>`: whose hold it was, its fence, and when it ended.
pub fn record(record: &str) -> Option<(String, i64, i64)> {
    let mut words = record.splitn(5, ' ');
    let id = words.next()?.to_owned();
    let ended = words.next()?.parse().ok()?;
    let _how = words.next()?;
    let length: usize = words.next()?.parse().ok()?;
    let fence = hold(words.next()?.get(length..)?)?.fence;
    Some((id, fence, ended))
}

/// The number of a waiter by its score in the queue.
pub fn ticket(score: i64) -> i64 {
    let round = 1 << 42;
    ((score + round / 2).rem_euclid(round) - round / 2).abs()
}

/// All that the server knows of the lock, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The server's clock, in milliseconds.
    pub now: i64,
    /// The keys that exist, and for how many more milliseconds (-1: for ever).
    pub keys: BTreeMap<Key, i64>,
    /// What stands in the lock.
    pub mark: Option<String>,
    pub state: BTreeMap<String, String>,
    pub meta: BTreeMap<String, String>,
    /// Members of a group, and when their leases end.
    pub holders: BTreeMap<String, i64>,
    /// Who waits, in the order of their turns, with their scores.
    pub queue: Vec<(String, i64)>,
    pub history: Vec<String>,
    pub notices: BTreeSet<String>,
}

impl View {
    /// What is stored, at a moment of the server's clock.
    pub fn of(data: &Data, now: i64) -> Self {
        let entry = |key: Key| data.get(now, key.name().as_bytes());
        let left = |entry: &Entry| entry.expires.map_or(-1, |expires| expires - now);
        let hash = |key: Key| {
            let fields = data.kind::<Fields>(now, key.name().as_bytes());
            let fields = fields.into_iter().flatten();
            fields.map(|(a, b)| (text(a), text(b))).collect()
        };
        #[allow(clippy::cast_possible_truncation)] // Scores are whole, and below 2^53.
        let sorted = |key: Key| -> Vec<(String, i64)> {
            let members = data.kind::<Members>(now, key.name().as_bytes());
            let members = members.into_iter().flatten();
            members
                .map(|(score, member)| (text(member), score.get() as i64))
                .collect()
        };
        let keys = Key::ALL.into_iter();
        Self {
            now,
            keys: keys
                .filter_map(|key| Some((key, left(entry(key)?))))
                .collect(),
            mark: data
                .kind::<Bytes>(now, Key::Lock.name().as_bytes())
                .map(|mark| text(mark)),
            state: hash(Key::State),
            meta: hash(Key::Meta),
            holders: sorted(Key::Holders).into_iter().collect(),
            queue: sorted(Key::Queue),
            notices: data
                .entries()
                .map(|(key, _)| text(key))
                .filter(|key| key.starts_with("{redlock:a}:cancelled:"))
                .collect(),
            history: {
                let entries = data.kind::<Entries>(now, Key::History.name().as_bytes());
                entries
                    .into_iter()
                    .flatten()
                    .map(|entry| text(entry))
                    .collect()
            },
        }
    }

    /// Who holds the lock, and when the lease of each ends by the server's clock.
    pub fn held(&self) -> BTreeMap<String, i64> {
        let Some(mark) = &self.mark else {
            return BTreeMap::new();
        };
        let left = self.keys.get(&Key::Lock).copied().unwrap_or(-1);
        // A key is there until its last millisecond is over.
        let end = if left < 0 {
            i64::MAX
        } else {
            self.now + left + 1
        };
        if is_group(mark) {
            self.holders
                .iter()
                .filter(|&(_, &member)| member > self.now)
                .map(|(token, &member)| (token.clone(), member.min(end)))
                .collect()
        } else if mark == "redlock:frozen" {
            BTreeMap::new()
        } else {
            BTreeMap::from([(mark.clone(), end)])
        }
    }

    /// What `meta` says of a hold, where it can be read.
    pub fn hold(&self, token: &str) -> Option<Hold> {
        hold(self.meta.get(token)?)
    }

    /// Whether no new client is admitted.
    pub fn is_frozen(&self) -> bool {
        let until = self.state.get("frozen").and_then(|entry| {
            let first = entry.split(' ').next()?;
            first.parse::<i64>().ok()
        });
        until.is_some_and(|until| until > self.now)
    }

    pub fn waits(&self, token: &str) -> bool {
        self.queue.iter().any(|(waiter, _)| waiter == token)
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

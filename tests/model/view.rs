//! The lock according to a server, for promises about single calls.

use std::collections::BTreeMap;

use super::redis::Data;
use super::redis::data::{Bytes, Fields, Members};
use crate::protocol::name::Keys;

/// Hold of a token, from its entry in `meta`.
pub struct Hold {
    pub fence: i64,
    pub phase: String,
}

impl Hold {
    /// Parses `<fence> <since> <limit> <slot> <waited> <phase> <who>`, whose numbers must not be negative.
    pub fn parse(entry: &str) -> Option<Self> {
        let words: Vec<&str> = entry.splitn(7, ' ').collect();
        let [numbers @ .., phase, who] = words.as_slice() else {
            return None;
        };
        let (phase, _ticket) = phase.split_once(':').unwrap_or((phase, ""));
        let is_valid = numbers.len() == 5
            && numbers.iter().all(|number| number.parse::<u64>().is_ok())
            && ["granted", "held", "guarded", "kept"].contains(&phase)
            && who.starts_with('{');
        Some(Self {
            fence: numbers.first().filter(|_| is_valid)?.parse().ok()?,
            phase: phase.to_owned(),
        })
    }
}

/// Parses `<id> <ended> <how> <length of by> <by><entry>`. Returns id, fencing token and end of the hold.
pub fn record(record: &str) -> Option<(String, i64, i64)> {
    let mut words = record.splitn(5, ' ');
    let id = words.next()?.to_owned();
    let ended = words.next()?.parse().ok()?;
    let _how = words.next()?;
    let length: usize = words.next()?.parse().ok()?;
    let fence = Hold::parse(words.next()?.get(length..)?)?.fence;
    Some((id, fence, ended))
}

/// Returns true for the key of a notice: no other key of a lock has a second colon.
pub fn is_notice(key: &[u8], keys: &Keys) -> bool {
    let rest = key.strip_prefix(&keys.of("")[..]);
    rest.is_some_and(|rest| rest.contains(&b':'))
}

/// State of a lock at one time.
pub struct StatusCommand {
    /// Holders, and the ends of their leases by the server's clock.
    pub held: BTreeMap<String, i64>,
    pub meta: BTreeMap<String, String>,
    /// Waiters in the order of their turns, with their tickets.
    pub queue: Vec<(String, i64)>,
    /// True if no new client is admitted.
    pub is_frozen: bool,
}

impl StatusCommand {
    pub fn of(data: &Data, keys: &Keys, now: i64) -> Self {
        let hash = |key: &Bytes| -> BTreeMap<String, String> {
            let fields = data.kind::<Fields>(now, key).into_iter().flatten();
            fields.map(|(a, b)| (text(a), text(b))).collect()
        };
        let sorted = |key: &Bytes| -> Vec<(String, i64)> {
            let members = data.kind::<Members>(now, key).into_iter().flatten();
            let pairs = members.map(|(score, member)| (text(member), *score));
            pairs.collect()
        };
        let mark = data.kind::<Bytes>(now, &keys.lock).map(|mark| text(mark));
        let expiry = data.get(now, &keys.lock).and_then(|entry| entry.expires);
        // A key exists until the end of its last millisecond.
        let end = expiry.map_or(i64::MAX, |expiry| expiry + 1);
        let held = match mark.as_deref() {
            None | Some("redlock:frozen") => BTreeMap::new(),
            Some("redlock:shared" | "redlock:slots") => {
                let members = sorted(&keys.of("holders")).into_iter();
                let members = members.filter(|(_, member)| *member > now);
                members
                    .map(|(token, member)| (token, member.min(end)))
                    .collect()
            }
            Some(token) => BTreeMap::from([(token.to_owned(), end)]),
        };
        let freeze = data.kind::<Fields>(now, &keys.of("state"));
        let freeze = freeze.and_then(|state| state.get(&b"frozen"[..]));
        let frozen_until = freeze.and_then(|entry| text(entry).split(' ').next()?.parse().ok());
        Self {
            held,
            meta: hash(&keys.of("meta")),
            queue: sorted(&keys.of("queue")),
            is_frozen: frozen_until.is_some_and(|until: i64| until > now),
        }
    }

    pub fn hold(&self, token: &str) -> Option<Hold> {
        Hold::parse(self.meta.get(token)?)
    }

    pub fn phase(&self, token: &str) -> String {
        self.hold(token).map_or(String::new(), |hold| hold.phase)
    }

    pub fn waits(&self, token: &str) -> bool {
        self.queue.iter().any(|(waiter, _)| waiter == token)
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

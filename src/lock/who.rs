//! Those who hold a lock or wait for it, as others see them. Pure.
//!
//! All of it is read from Redis, so it may come from another client: whoever shows it escapes it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Who holds a lock, waits for it or acts on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    pub host: String,
    pub user: String,
    pub pid: u32,
    /// COMMAND and its arguments; shortened when it is very long.
    pub command: Vec<String>,
    pub reason: Option<String>,
    /// A link to the job.
    pub url: Option<String>,
    /// Which process of which boot it is, or which several, as far as others can find out whether they
    /// still live. That there is one also says that somebody watches over the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
}

/// With whom a request can share the lock, in one number: at most so many holders at a time. A
/// request is admitted if the holders and itself exceed neither its limit nor any holder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit(u32);

impl Limit {
    /// The only holder.
    pub const EXCLUSIVE: Self = Self(1);
    /// Any number of holders that think the same.
    pub const SHARED: Self = Self(1_000_000_000);

    /// At most so many holders.
    pub fn slots(count: u32) -> Self {
        Self(count.clamp(1, Self::SHARED.0 - 1))
    }

    /// As a number, as the scripts have it.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Its name in `status`.
    pub fn mode(self) -> &'static str {
        match self {
            Self::EXCLUSIVE => "exclusive",
            Self::SHARED => "shared",
            Self(_) => "slots",
        }
    }

    /// The number of slots, where it is one.
    pub fn as_slots(self) -> Option<u32> {
        (self > Self::EXCLUSIVE && self < Self::SHARED).then_some(self.0)
    }

    /// How a lock is held with it.
    pub fn adverb(self) -> String {
        match self {
            Self::EXCLUSIVE => "exclusively".into(),
            Self::SHARED => "shared".into(),
            Self(slots) => format!("with {slots} slots"),
        }
    }

    /// Reads it from an entry.
    fn parse(text: &str) -> Option<Self> {
        Some(Self(text.parse().ok()?))
    }

    /// The limit of this number.
    pub(super) fn of(number: u32) -> Self {
        Self(number)
    }
}

/// An entry in `meta`: a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub fence: u64,
    /// When it got the lock, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    pub limit: Limit,
    /// Its number among those that hold the lock; 0 for shared ones.
    pub slot: u32,
    /// How long it had waited for the lock.
    pub waited: Duration,
    /// Its run is over; the lock is only kept for a while.
    pub kept: bool,
    pub who: Who,
}

impl Holder {
    /// Reads `"<fence> <since> <limit> <slot> <waited> <phase> <who as JSON>"`; `None` for anything
    /// else.
    pub(super) fn parse(entry: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(entry).ok()?.splitn(7, ' ');
        Some(Self {
            fence: parts.next()?.parse().ok()?,
            since_ms: parts.next()?.parse().ok()?,
            limit: Limit::parse(parts.next()?)?,
            slot: parts.next()?.parse().ok()?,
            waited: Duration::from_millis(parts.next()?.parse().ok()?),
            kept: parts.next()? == "kept",
            who: serde_json::from_str(parts.next()?).ok()?,
        })
    }
}

/// An entry in `waiters`: somebody in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub limit: Limit,
    /// Since when it waits, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    pub priority: i32,
    /// A message reaches it; else it looks by itself.
    pub hears: bool,
    pub who: Who,
}

impl Waiter {
    /// Reads `"<dies at> <limit> <since> <priority> <hears> <who as JSON>"`; `None` for anything
    /// else.
    pub(super) fn parse(entry: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(entry).ok()?.splitn(6, ' ').skip(1);
        Some(Self {
            limit: Limit::parse(parts.next()?)?,
            since_ms: parts.next()?.parse().ok()?,
            priority: parts.next()?.parse().ok()?,
            hears: parts.next()? == "1",
            who: serde_json::from_str(parts.next()?).ok()?,
        })
    }
}

/// Why nobody is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// Until when, in milliseconds since 1970 by the server's clock.
    pub till_ms: u64,
    pub since_ms: u64,
    /// Who froze it, and the reason.
    pub who: Who,
}

impl Frozen {
    /// Reads `"<till> <since> <who as JSON>"`; `None` for anything else.
    pub(super) fn parse(entry: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(entry).ok()?.splitn(3, ' ');
        Some(Self {
            till_ms: parts.next()?.parse().ok()?,
            since_ms: parts.next()?.parse().ok()?,
            who: serde_json::from_str(parts.next()?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_entry_is_nobody() {
        assert_eq!(Holder::parse(b"\xff\xfe"), None);
        assert_eq!(Holder::parse(b"1 2"), None);
        assert_eq!(Waiter::parse(b"1 2 3"), None);
        let holder =
            Holder::parse(br#"7 8 3 2 40 kept {"host":"h","pid":3,"later":true}"#).unwrap();
        assert_eq!((holder.fence, holder.since_ms, holder.who.pid), (7, 8, 3));
        assert_eq!((holder.limit.mode(), holder.slot), ("slots", 2));
        assert_eq!((holder.waited.as_millis(), holder.kept), (40, true));
        let waiter = Waiter::parse(br#"9 1000000000 8 -5 1 {"host":"h h"}"#).unwrap();
        assert_eq!((waiter.limit, waiter.priority), (Limit::SHARED, -5));
        assert_eq!((waiter.hears, waiter.who.host.as_str()), (true, "h h"));
    }
}

//! The replicas that could follow a primary, by the lists of its sentinels. Pure.

use redis::Value;

use super::super::reply::field;
use super::super::url::with_port;

/// A replica, as a sentinel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownReplica {
    /// `host:port`.
    pub address: String,
    /// Sentinels promote one with a smaller number first, and one with 0 never.
    pub priority: u32,
    /// Down for this sentinel, or never heard of.
    pub is_down: bool,
    /// A former primary that has come back, and isn't demoted yet.
    pub is_former: bool,
}

/// The priority of a replica that says nothing else.
pub(super) const PRIORITY: u32 = 100;

impl KnownReplica {
    /// Reads an entry of the answer to `SENTINEL REPLICAS`.
    pub fn parse(value: &Value) -> Self {
        let text = |name| field(value, name).unwrap_or_default();
        let (flags, host) = (text("flags"), text("master-host"));
        let is_primary = text("role-reported") == "master";
        Self {
            address: with_port(&text("ip"), text("port")),
            priority: text("slave-priority").parse().unwrap_or(PRIORITY),
            // This sentinel has had no INFO of a replica without a primary (`info-refresh` 0) since it lists that, as of a former
            // primary that is dead. Such a replica is promoted only after the sentinel has heard of it.
            is_down: !is_primary && host == "?"
                || flags
                    .split(',')
                    .any(|flag| flag == "s_down" || flag == "o_down"),
            // The replica has followed no primary since this sentinel lists it. A replica that is just being promoted calls itself a
            // primary, too: that one is the last to do without.
            is_former: is_primary && matches!(&*host, "" | "?"),
        }
    }

    /// Returns the primary in the answer to `SENTINEL MASTER` if the sentinel is replacing it by `next`: it lists the
    /// former primary as a replica only afterwards.
    pub fn replaced(primary: &Value, next: &str) -> Option<Self> {
        let is_former = false;
        let primary = field(primary, "ip").map(|_| Self::parse(primary))?;
        (primary.address != next).then_some(Self {
            is_former,
            ..primary
        })
    }
}

/// The replicas that count, by the lists of several sentinels: all but those that are never to follow the primary, and
/// those that a majority of all sentinels sees down, or has never heard of, or just back as the primary that they were. No
/// sentinel promotes one that is down, nor one of the latter before others.
pub(super) fn promotable_replicas(lists: &[&[KnownReplica]], sentinels: usize) -> Vec<String> {
    let mut promotable: Vec<String> = Vec::new();
    for replica in lists.iter().copied().flatten() {
        // A client that only reads the stream has no port.
        let is_server = !replica.address.ends_with(":0");
        let is_out = |other: &KnownReplica| {
            let is_last = || {
                let mut others = lists.iter().copied().flatten();
                others.any(|before| is_before(before, other))
            };
            other.address == replica.address && (other.is_down || other.is_former && is_last())
        };
        let out = lists.iter().filter(|list| list.iter().any(is_out)).count();
        let is_known = promotable.contains(&replica.address);
        if is_server && !is_known && replica.priority > 0 && out <= sentinels / 2 {
            promotable.push(replica.address.clone());
        }
    }
    promotable
}

/// Whether sentinels promote this one before the other, which was the primary and has none of its data.
fn is_before(one: &KnownReplica, former: &KnownReplica) -> bool {
    let may_be_promoted = !one.is_down && !one.is_former && one.priority > 0;
    one.address != former.address && may_be_promoted && one.priority <= former.priority
}

//! The replicas that could follow a primary, according to its sentinels' lists. Pure.

use redis::Value;

use super::super::reply::field;
use super::super::url::with_port;

/// A replica, as a sentinel knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownReplica {
    /// `host:port`.
    pub address: String,
    /// Promotion priority. Sentinels promote the smallest number first, and 0 never.
    pub priority: u32,
    /// True if this sentinel sees the replica down, or has never heard of it.
    pub is_down: bool,
    /// True for a former primary that has come back, and isn't demoted yet.
    pub is_former: bool,
}

/// Priority of a replica that doesn't report one.
pub(super) const PRIORITY: u32 = 100;

impl KnownReplica {
    /// Parses an entry of the answer to `SENTINEL REPLICAS`.
    pub fn parse(value: &Value) -> Self {
        let text = |name| field(value, name).unwrap_or_default();
        let (flags, host) = (text("flags"), text("master-host"));
        let is_primary = text("role-reported") == "master";
        Self {
            address: with_port(&text("ip"), text("port")),
            priority: text("slave-priority").parse().unwrap_or(PRIORITY),
            // The sentinel has received no INFO of a replica without a primary's host since it lists that replica, for example
            // a dead former primary. Sentinels promote such a replica only after they have heard of it.
            is_down: !is_primary && host == "?"
                || flags
                    .split(',')
                    .any(|flag| flag == "s_down" || flag == "o_down"),
            // The replica has followed no primary since this sentinel lists it. A replica that is just being promoted also
            // reports itself primary, but has followed one, so it has a primary's host.
            is_former: is_primary && matches!(&*host, "" | "?"),
        }
    }

    /// Returns the primary in the answer to `SENTINEL MASTER`, if the sentinel is replacing it by `next`. The sentinel lists
    /// the former primary as a replica only afterwards.
    pub fn replaced(primary: &Value, next: &str) -> Option<Self> {
        let is_former = false;
        let primary = field(primary, "ip").map(|_| Self::parse(primary))?;
        (primary.address != next).then_some(Self {
            is_former,
            ..primary
        })
    }
}

/// Returns the replicas that could be promoted, according to several sentinels' lists. Leaves out replicas with priority 0.
/// Also leaves out those that a majority of all sentinels sees down, has never heard of, or sees as a former primary that has
/// just come back. Sentinels promote no replica that is down, and a former primary only after others.
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

/// Returns true if sentinels promote `one` before `former`, which was the primary and has none of its data.
fn is_before(one: &KnownReplica, former: &KnownReplica) -> bool {
    let may_be_promoted = !one.is_down && !one.is_former && one.priority > 0;
    one.address != former.address && may_be_promoted && one.priority <= former.priority
}

//! Locks as JSON, for programs. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::protocol::{
    Frozen, Hold, Holder, Inspected, Key, Limit, RESULTS, Renewal, Waiting, Who,
};
use crate::report::timestamp;

/// A lock as JSON; the shape is part of the contract.
#[derive(Serialize)]
pub struct LockJson<'a> {
    name: &'a str,
    frozen: Option<FrozenEntry<'a>>,
    mode: Option<&'static str>,
    held: bool,
    ttl_ms: Option<u64>,
    fence: Option<u64>,
    slots: Option<u32>,
    /// How long a hold usually lasts.
    usual_ms: Option<u64>,
    /// The type of a key that isn't a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_a_lock: Option<&'a str>,
    /// When a run succeeded last.
    last_success: Option<String>,
    /// How many runs ended in each way, as far as that is remembered.
    ended: BTreeMap<&'static str, u64>,
    holders: Vec<HolderEntry<'a>>,
    waiters: Vec<WaiterEntry<'a>>,
}

#[derive(Serialize)]
struct FrozenEntry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'a str>,
    host: &'a str,
    user: &'a str,
    pid: u32,
    reason: Option<&'a str>,
    url: Option<&'a str>,
    since: Option<String>,
    until: Option<String>,
}

impl<'a> FrozenEntry<'a> {
    fn new(frozen: &'a Frozen) -> Self {
        let who = &frozen.who;
        Self {
            who: who.known_as.as_deref(),
            host: &who.host,
            user: &who.user,
            pid: who.pid,
            reason: who.reason.as_deref(),
            url: who.url.as_deref(),
            since: timestamp(frozen.since_ms),
            until: timestamp(frozen.until_ms),
        }
    }
}

#[derive(Serialize)]
struct HolderEntry<'a> {
    id: &'a str,
    #[serde(flatten)]
    who: WhoEntry<'a>,
    since: Option<String>,
    /// When its lease was last renewed, as far as it is renewed and that is known.
    renewed_at: Option<String>,
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    /// Its run is over (`--hold-at-least`, or its guards aren't).
    kept: bool,
    guards: Vec<GuardJson<'a>>,
    /// Who has asked it to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopping: Option<StoppingJson<'a>>,
    foreign: bool,
}

/// A request to end.
#[derive(Serialize)]
struct StoppingJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'a str>,
    host: &'a str,
    user: &'a str,
    pid: u32,
    reason: Option<&'a str>,
    since: Option<String>,
    /// In how many milliseconds COMMAND gets SIGKILL; 0 when that is due.
    kill_in_ms: Option<u64>,
}

impl<'a> StoppingJson<'a> {
    fn new(by: &'a Who, whom: &Who, now_ms: u64) -> Self {
        let kill_at = by
            .asked
            .map(|asked| asked.saturating_add(milliseconds(whom.grace())));
        Self {
            who: by.known_as.as_deref(),
            host: &by.host,
            user: &by.user,
            pid: by.pid,
            reason: by.reason.as_deref(),
            since: by.asked.and_then(timestamp),
            kill_in_ms: kill_at.map(|at| at.saturating_sub(now_ms)),
        }
    }
}

/// Work elsewhere under a hold.
#[derive(Serialize)]
struct GuardJson<'a> {
    #[serde(flatten)]
    who: WhoEntry<'a>,
    since: Option<String>,
    ttl_ms: u64,
}

#[derive(Serialize)]
struct WaiterEntry<'a> {
    id: &'a str,
    #[serde(flatten)]
    who: WhoEntry<'a>,
    since: Option<String>,
    /// 0: the lock was granted to it.
    position: usize,
    mode: &'static str,
    slots: Option<u32>,
    /// The lock was granted to it, which isn't confirmed yet.
    granted: bool,
}

#[derive(Serialize)]
struct WhoEntry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'a str>,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    command: Option<&'a [String]>,
    reason: Option<&'a str>,
    url: Option<&'a str>,
}

impl<'a> WhoEntry<'a> {
    fn new(who: Option<&'a Who>) -> Self {
        Self {
            who: who.and_then(|who| who.known_as.as_deref()),
            host: who.map(|who| who.host.as_str()),
            user: who.map(|who| who.user.as_str()),
            pid: who.map(|who| who.pid),
            command: who.map(|who| who.command.as_slice()),
            reason: who.and_then(|who| who.reason.as_deref()),
            url: who.and_then(|who| who.url.as_deref()),
        }
    }
}

impl<'a> LockJson<'a> {
    pub fn new(lock: &'a Inspected) -> Self {
        let limit = lock.limit();
        let last = lock.holds().iter().filter_map(|hold| hold.left).max();
        Self {
            name: lock.name.as_str(),
            frozen: lock.frozen.as_ref().map(FrozenEntry::new),
            mode: limit.map(Limit::mode),
            held: limit.is_some(),
            ttl_ms: last.map(milliseconds),
            fence: lock.fence,
            slots: limit.and_then(Limit::as_slots),
            usual_ms: lock.usual.map(milliseconds),
            not_a_lock: match &lock.key {
                Key::NotALock(kind) => Some(kind),
                Key::Free | Key::Held(_) => None,
            },
            last_success: lock.record.succeeded_ms.and_then(timestamp),
            ended: RESULTS.into_iter().zip(lock.record.ended).collect(),
            holders: lock
                .holders()
                .map(|hold| HolderEntry::new(hold, lock.now_ms))
                .collect(),
            waiters: {
                let granted = lock.grants();
                let granted = granted.map(|(hold, holder)| WaiterEntry::granted(hold, holder));
                let queue = (1..).zip(&lock.waiters);
                granted
                    .chain(queue.map(|(position, waiting)| WaiterEntry::new(position, waiting)))
                    .collect()
            },
        }
    }
}

impl<'a> HolderEntry<'a> {
    fn new(hold: &'a Hold, now_ms: u64) -> Self {
        let holder = hold.holder.as_ref();
        let renewed = match hold.renewal() {
            Renewal::Ago(ago) | Renewal::Overdue(ago) => Some(milliseconds(ago)),
            Renewal::Unknown | Renewal::None => None,
        };
        // Not before it was held, as the server rounds the times that are left.
        let earliest = holder.map_or(0, |holder| holder.since_ms.min(now_ms));
        let renewed_at = |ago| timestamp(now_ms.saturating_sub(ago).max(earliest));
        Self {
            id: &hold.id,
            who: WhoEntry::new(holder.map(|holder| &holder.who)),
            since: holder.and_then(|holder| timestamp(holder.since_ms)),
            renewed_at: renewed.and_then(renewed_at),
            ttl_ms: hold.left.map(milliseconds),
            slot: holder
                .filter(|holder| holder.limit.as_slots().is_some())
                .map(|holder| holder.slot),
            kept: holder.is_some_and(|holder| holder.kept.is_some()),
            guards: hold
                .guards
                .iter()
                .map(|guard| GuardJson {
                    who: WhoEntry::new(Some(&guard.who)),
                    since: timestamp(guard.since_ms),
                    ttl_ms: guard.until_ms.saturating_sub(now_ms),
                })
                .collect(),
            stopping: holder
                .zip(hold.stopping.as_ref())
                .map(|(holder, by)| StoppingJson::new(by, &holder.who, now_ms)),
            foreign: holder.is_none(),
        }
    }
}

impl<'a> WaiterEntry<'a> {
    fn new(position: usize, waiting: &'a Waiting) -> Self {
        let waiter = &waiting.waiter;
        Self {
            id: &waiting.id,
            who: WhoEntry::new(Some(&waiter.who)),
            since: timestamp(waiter.since_ms),
            position,
            mode: waiter.limit.mode(),
            slots: waiter.limit.as_slots(),
            granted: false,
        }
    }

    fn granted(hold: &'a Hold, holder: &'a Holder) -> Self {
        Self {
            id: &hold.id,
            who: WhoEntry::new(Some(&holder.who)),
            since: timestamp(holder.waiting_since_ms()),
            position: 0,
            mode: holder.limit.mode(),
            slots: holder.limit.as_slots(),
            granted: true,
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

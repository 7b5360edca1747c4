//! A lock as JSON for programs; the shape is part of the contract. Pure.

use std::collections::BTreeMap;

use super::super::json::Object;
use crate::duration::milliseconds;
use crate::protocol::{Frozen, Hold, Inspected, Key, Limit, RESULTS, Waiting, Who};
use crate::report::timestamp;

/// Returns a lock as an object.
pub fn lock_object(lock: &Inspected) -> Object {
    let mut json = Object::default();
    let limit = lock.limit();
    let ended: BTreeMap<_, _> = RESULTS.into_iter().zip(lock.record.ended).collect();
    json.field("name", lock.name.as_str());
    json.object("frozen", lock.frozen.as_ref().map(freeze));
    json.field("mode", limit.map(Limit::mode));
    json.field("held", limit.is_some());
    let left = lock.holds().iter().filter_map(|hold| hold.left);
    json.field("ttl_ms", left.max().map(milliseconds));
    json.field("fence", lock.fence);
    json.field("slots", limit.and_then(Limit::as_slots));
    json.field("usual_ms", lock.usual.map(milliseconds));
    if let Key::NotALock(kind) = &lock.key {
        json.field("not_a_lock", kind);
    }
    json.field("last_success", lock.record.succeeded_ms.and_then(timestamp));
    json.field("ended", ended);
    json.list("holders", lock.holders().map(|it| holder(lock, it)));
    // The position is 0 until a grant is confirmed.
    let granted = lock.grants().map(|(hold, holder)| {
        let since_ms = holder.waiting_since_ms();
        waiter(0, &hold.id, &holder.who, since_ms, holder.limit)
    });
    let waiting = (1..).zip(&lock.waiters).map(|(position, waiting)| {
        let Waiting { id, waiter: it } = waiting;
        waiter(position, id, &it.who, it.since_ms, it.limit)
    });
    json.list("waiters", granted.chain(waiting));
    json
}

fn freeze(frozen: &Frozen) -> Object {
    let mut json = Object::of(&frozen.who, true);
    json.field("since", timestamp(frozen.since_ms));
    json.field("until", timestamp(frozen.until_ms));
    json
}

fn waiter(position: u64, id: &str, who: &Who, since_ms: u64, limit: Limit) -> Object {
    let mut json = Object::default();
    json.field("id", id);
    json.client(Some(who), true, true);
    json.field("since", timestamp(since_ms));
    json.field("position", position);
    json.field("mode", limit.mode());
    json.field("slots", limit.as_slots());
    json.field("granted", position == 0);
    json
}

fn holder(lock: &Inspected, hold: &Hold) -> Object {
    let mut json = Object::default();
    let holder = hold.holder.as_ref();
    let since_ms = holder.map(|holder| holder.since_ms);
    // Never before the start of the hold, although the server rounds remaining times.
    let earliest = since_ms.unwrap_or(0).min(lock.now_ms);
    let ago = hold.renewed_ago().map(milliseconds);
    let renewed_at = ago.map(|ago| lock.now_ms.saturating_sub(ago).max(earliest));
    json.field("id", &hold.id);
    json.client(holder.map(|holder| &holder.who), true, true);
    json.field("since", since_ms.and_then(timestamp));
    json.field("renewed_at", renewed_at.and_then(timestamp));
    json.field("ttl_ms", hold.left.map(milliseconds));
    if let Some(holder) = holder.filter(|holder| holder.limit.as_slots().is_some()) {
        json.field("slot", holder.slot);
    }
    json.field("kept", holder.is_some_and(|holder| holder.kept.is_some()));
    let guards = hold.guards.iter().map(|guard| {
        let mut json = Object::default();
        json.client(Some(&guard.who), true, true);
        json.field("since", timestamp(guard.since_ms));
        json.field("ttl_ms", guard.until_ms.saturating_sub(lock.now_ms));
        json
    });
    json.list("guards", guards);
    if let Some((holder, by)) = holder.zip(hold.stopping.as_ref()) {
        let stop = stop(by, &holder.who, lock.now_ms);
        json.object("stopping", Some(stop));
    }
    json.field("foreign", holder.is_none());
    json
}

/// Returns a request to stop, and the milliseconds until COMMAND gets SIGKILL: 0 if that is due.
fn stop(by: &Who, whom: &Who, now_ms: u64) -> Object {
    let mut json = Object::of(by, false);
    json.field("since", by.asked_at.and_then(timestamp));
    let grace = milliseconds(whom.grace());
    let kill_at = by.asked_at.map(|at| at.saturating_add(grace));
    json.field("kill_in_ms", kill_at.map(|at| at.saturating_sub(now_ms)));
    json
}

//! A lock as JSON, for programs; the shape is part of the contract. Pure.

use std::collections::BTreeMap;

use super::super::json::Object;
use crate::duration::milliseconds;
use crate::protocol::{Hold, Inspected, Key, Limit, RESULTS, Waiting, Who};

/// Writes a lock.
pub fn write_lock(json: &mut Object, lock: &Inspected) {
    let limit = lock.limit();
    let ended: BTreeMap<_, _> = RESULTS.into_iter().zip(lock.record.ended).collect();
    json.field("name", lock.name.as_str());
    match &lock.frozen {
        None => json.field("frozen", ()),
        Some(frozen) => json.object("frozen", |json| {
            json.client(Some(&frozen.who), false, true);
            json.time("since", Some(frozen.since_ms));
            json.time("until", Some(frozen.until_ms));
        }),
    }
    json.field("mode", limit.map(Limit::mode));
    json.field("held", limit.is_some());
    let left = lock.holds().iter().filter_map(|hold| hold.left);
    json.duration("ttl_ms", left.max());
    json.field("fence", lock.fence);
    json.field("slots", limit.and_then(Limit::as_slots));
    json.duration("usual_ms", lock.usual);
    if let Key::NotALock(kind) = &lock.key {
        json.field("not_a_lock", kind);
    }
    json.time("last_success", lock.record.succeeded_ms);
    json.field("ended", ended);
    json.list("holders", lock.holders(), |json, hold| {
        write_hold(json, lock, hold);
    });
    let granted = lock.grants().map(|(hold, holder)| {
        let since_ms = holder.waiting_since_ms();
        (0, &hold.id, &holder.who, since_ms, holder.limit)
    });
    let waiting = (1..).zip(&lock.waiters).map(|(position, waiting)| {
        let Waiting { id, waiter } = waiting;
        (position, id, &waiter.who, waiter.since_ms, waiter.limit)
    });
    json.list("waiters", granted.chain(waiting), |json, waiter| {
        // The position is 0 until a grant is confirmed.
        let (position, id, who, since_ms, limit) = waiter;
        json.field("id", id);
        json.client(Some(who), true, true);
        json.time("since", Some(since_ms));
        json.field("position", position);
        json.field("mode", limit.mode());
        json.field("slots", limit.as_slots());
        json.field("granted", position == 0);
    });
}

fn write_hold(json: &mut Object, lock: &Inspected, hold: &Hold) {
    let holder = hold.holder.as_ref();
    let since_ms = holder.map(|holder| holder.since_ms);
    // Not before it was held, as the server rounds the times that are left.
    let earliest = since_ms.unwrap_or(0).min(lock.now_ms);
    let renewed_at = hold
        .renewed_ago()
        .map(|ago| lock.now_ms.saturating_sub(milliseconds(ago)).max(earliest));
    json.field("id", &hold.id);
    json.client(holder.map(|holder| &holder.who), true, true);
    json.time("since", since_ms);
    json.time("renewed_at", renewed_at);
    json.duration("ttl_ms", hold.left);
    let with_slots = holder.filter(|holder| holder.limit.as_slots().is_some());
    json.optional("slot", with_slots.map(|holder| holder.slot));
    json.field("kept", holder.is_some_and(|holder| holder.kept.is_some()));
    json.list("guards", &hold.guards, |json, guard| {
        json.client(Some(&guard.who), true, true);
        json.time("since", Some(guard.since_ms));
        json.field("ttl_ms", guard.until_ms.saturating_sub(lock.now_ms));
    });
    if let Some((holder, by)) = holder.zip(hold.stopping.as_ref()) {
        json.object("stopping", |json| {
            write_stop(json, by, &holder.who, lock.now_ms);
        });
    }
    json.field("foreign", holder.is_none());
}

/// Writes a request to end, and in how many milliseconds COMMAND gets SIGKILL: 0 if that is due.
fn write_stop(json: &mut Object, by: &Who, whom: &Who, now_ms: u64) {
    json.client(Some(by), false, false);
    json.time("since", by.asked);
    let grace = milliseconds(whom.grace());
    let kill_at = by.asked.map(|asked| asked.saturating_add(grace));
    json.field("kill_in_ms", kill_at.map(|at| at.saturating_sub(now_ms)));
}

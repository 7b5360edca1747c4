//! What happened to a lock lately, as one paragraph. Pure.

use std::time::Duration;

use super::calendar::Calendar;
use super::listing::{Item, ended, failed, ran, skipped};
use crate::protocol::{HistoryEntry, Inspected, Key, LockHistory, Skip, Who};
use crate::report::{
    self, client_and_reason, client_in_words, command_and_reason, escaped, expectation, in_seconds,
};

/// How many events are told.
const TOLD: usize = 6;

/// What was, what is, and when a run succeeded last: `02:12:00 ci@web-1 got it …; 03:00:02 ci@web-3 gave up: held by …`.
pub fn told(lock: &Inspected, history: &LockHistory, calendar: Calendar) -> String {
    let now_ms = lock.now_ms;
    if lock.fence.is_none() && lock.is_idle() && items_of(history).is_empty() {
        return format!("{}: no run has ever used it", lock.name);
    }
    let today = day(calendar, now_ms);
    let at = |ms: u64| {
        let text = calendar.brief(ms, &calendar.zone(now_ms));
        match text.split_once(' ') {
            Some((date, clock)) if Some(date) == today.as_deref() => clock.to_owned(),
            _ => text,
        }
    };
    let mut events = Vec::new();
    let items = items_of(history);
    for alike in items.chunk_by(|one, next| are_alike(one, next)) {
        let is_hold = matches!(alike, [Item::Hold(_), ..]);
        let told = match alike {
            [Item::Hold(hold)] if failed(hold) => of_failure(hold, now_ms, &at),
            [Item::Skip(skip)] => of_skip(skip, history, &at),
            [Item::Hold(first), .., Item::Hold(last)] => successes((first, last), alike.len(), &at),
            [Item::Hold(hold)] => success(hold, &at),
            [Item::Skip(first), .., Item::Skip(last)] => {
                let (from, to) = (at(first.ended_ms), at(last.ended_ms));
                let count = alike.len();
                format!("{count} runs from {from} to {to}: {}", skipped(last, false))
            }
            _ => continue,
        };
        events.push((is_hold, told));
    }
    let mut parts = latest(events);
    parts.extend(present(lock, &at));
    parts.push(match lock.record.succeeded_ms {
        Some(success) => format!("last success {} ago", lasting(lock, success)),
        None => "no run has succeeded".into(),
    });
    let zone = calendar.zone(now_ms);
    let text = format!("{} (times in {zone}): {}", lock.name, parts.join("; "));
    escaped(&text).into_owned()
}

/// The latest events, and the latest hold in any case: however many have given up since, it says what they met.
fn latest(mut events: Vec<(bool, String)>) -> Vec<String> {
    let from = events.len().saturating_sub(TOLD);
    let is_hold = |(is_hold, _): &(bool, String)| *is_hold;
    let hold = events[..from].iter().rposition(is_hold);
    match hold.filter(|_| !events[from..].iter().any(is_hold)) {
        Some(hold) => {
            events.swap(hold, from);
            events.drain(..from);
        }
        None => {
            events.drain(..from);
        }
    }
    events.into_iter().map(|(_, told)| told).collect()
}

/// What is over, in the order in which it began.
fn items_of(history: &LockHistory) -> Vec<Item<'_>> {
    let over = history.holds.iter().filter(|hold| hold.ended_ms.is_some());
    let mut items: Vec<Item> = over.map(Item::Hold).collect();
    items.extend(history.skips.iter().map(Item::Skip));
    items.sort_by_key(|item| match item {
        Item::Hold(hold) => hold.since_ms,
        Item::Skip(skip) => skip.ended_ms,
    });
    items
}

/// Whether two that follow each other are told as one: successes, and runs that gave up for the same reason.
fn are_alike(one: &Item, next: &Item) -> bool {
    match (one, next) {
        (Item::Hold(one), Item::Hold(next)) => !failed(one) && !failed(next),
        (Item::Skip(one), Item::Skip(next)) => one.reason == next.reason && one.by == next.by,
        _ => false,
    }
}

fn success(hold: &HistoryEntry, at: &impl Fn(u64) -> String) -> String {
    let (took, who) = (in_seconds(ran(hold, 0)), who(&hold.who));
    format!("{} {who} ran it in {took}", at(hold.since_ms))
}

/// Runs that succeeded one after the other.
fn successes(
    (first, last): (&HistoryEntry, &HistoryEntry),
    count: usize,
    at: &impl Fn(u64) -> String,
) -> String {
    let (took, who) = (in_seconds(ran(last, 0)), who(&last.who));
    format!(
        "{count} runs succeeded from {} on, the last at {} by {who} in {took}",
        at(first.since_ms),
        at(last.since_ms)
    )
}

/// A hold that ended otherwise: `02:12:00 ci@web-1 ran it for 1h28m, until 03:40:00: stopped by root@ops-1 (pid 9): hung`.
fn of_failure(hold: &HistoryEntry, now_ms: u64, at: &impl Fn(u64) -> String) -> String {
    let end = hold.ended_ms.unwrap_or(now_ms);
    format!(
        "{} {} ran it for {}, until {}: {}",
        at(hold.since_ms),
        who(&hold.who),
        in_seconds(ran(hold, now_ms)),
        at(end),
        ended(&hold.outcome, false)
    )
}

/// A run that ended without the lock, and since when the run had it that stood in the way.
fn of_skip(skip: &Skip, history: &LockHistory, at: &impl Fn(u64) -> String) -> String {
    let blocker = history.holds.iter().find(|hold| {
        let is_other = skip
            .by
            .as_ref()
            .is_some_and(|by| by.host == hold.who.host && by.pid == hold.who.pid);
        let ended = hold.ended_ms.unwrap_or(u64::MAX);
        is_other && hold.since_ms <= skip.ended_ms && skip.ended_ms <= ended
    });
    let since = blocker.map(|hold| format!(" since {}", at(hold.since_ms)));
    format!(
        "{} {} {}{}",
        at(skip.ended_ms),
        who(&skip.who),
        skipped(skip, false),
        since.unwrap_or_default()
    )
}

/// How the lock is now.
fn present(lock: &Inspected, at: &impl Fn(u64) -> String) -> Vec<String> {
    let mut parts = Vec::new();
    if let Key::NotALock(kind) = &lock.key {
        parts.push(format!(
            "its key is a {kind}, which belongs to another program"
        ));
    }
    for hold in lock.holders() {
        let Some(holder) = &hold.holder else {
            parts.push("another client holds it now".into());
            continue;
        };
        if holder.kept.is_some() {
            let whom = client_in_words(&holder.who);
            parts.push(format!("kept after {whom} has ended"));
            continue;
        }
        let running = Duration::from_millis(lock.now_ms.saturating_sub(holder.since_ms));
        let usual = lock
            .usual
            .map(|usual| format!(" ({})", expectation(usual, running)));
        let mut part = vec![format!(
            "{} has held it since {}{}: {}",
            client_in_words(&holder.who),
            at(holder.since_ms),
            usual.unwrap_or_default(),
            command_and_reason(&holder.who)
        )];
        let stopping = hold.stopping.as_ref();
        part.extend(stopping.map(|by| report::stopping(by, &holder.who, lock.now_ms)));
        part.extend(report::not_renewed(hold));
        parts.push(part.join(", "));
    }
    if let Some(first) = lock.waiters.iter().map(|one| one.waiter.since_ms).min() {
        let waiting = lasting(lock, first);
        parts.push(match lock.waiters.len() {
            1 => format!("1 run has waited for {waiting}"),
            more => format!("{more} runs wait, one for {waiting}"),
        });
    }
    if let Some(frozen) = &lock.frozen {
        let (by, since) = (client_and_reason(&frozen.who), at(frozen.since_ms));
        parts.push(format!("frozen since {since} by {by}"));
    }
    if parts.is_empty() {
        parts.push("it is free".into());
    }
    parts
}

fn who(who: &Who) -> String {
    report::client_name(who)
}

fn lasting(lock: &Inspected, since_ms: u64) -> String {
    in_seconds(Duration::from_millis(lock.now_ms.saturating_sub(since_ms)))
}

/// The date of a moment, as the calendar writes it briefly.
fn day(calendar: Calendar, ms: u64) -> Option<String> {
    let text = calendar.brief(ms, &calendar.zone(ms));
    text.split_once(' ').map(|(date, _)| date.to_owned())
}

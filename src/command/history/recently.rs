//! The last events of a lock, a line for each. Pure.

use std::time::Duration;

use super::calendar::Calendar;
use super::listing::{ended, ran, skipped};
use crate::protocol::{HistoryEntry, HoldOutcome, Inspected, LockHistory, Name, Skip};
use crate::report::{client_name, escaped, format_duration, reason_of};

/// Most events that are shown.
const MOST: usize = 5;

/// The last events of a lock as far as its history has them: when each was, and what.
pub struct Past {
    pub name: Name,
    events: Vec<(u64, String)>,
}

impl Past {
    pub fn of(history: &LockHistory) -> Self {
        let holds = history.holds.iter();
        let ends = holds.filter_map(|hold| Some((hold.ended_ms?, end(hold))));
        let is_same = |one: &Skip, next: &Skip| one.reason == next.reason && one.by == next.by;
        let skips = history.skips.chunk_by(is_same);
        let skips = skips.filter_map(|alike| Some((alike.last()?.ended_ms, without_lock(alike)?)));
        Self {
            name: history.name.clone(),
            events: last(ends.chain(skips)),
        }
    }

    /// Returns the last events, newest first: `03:40  ann@ops-1 stopped root@web-1 after 1h28m: hung`.
    pub fn lines(&self, lock: &Inspected, calendar: Calendar) -> Vec<String> {
        let freezes = lock.record.freezes.iter();
        let freezes = freezes.map(|&(since, until)| (since, freeze(lock, since, until)));
        let events = last(self.events.iter().cloned().chain(freezes));
        let lines = events.iter().rev();
        let lines =
            lines.map(|(at, what)| format!("{}  {what}", calendar.minute(*at, lock.now_ms)));
        lines.map(|line| escaped(&line).into_owned()).collect()
    }
}

fn last(events: impl Iterator<Item = (u64, String)>) -> Vec<(u64, String)> {
    let mut events: Vec<(u64, String)> = events.collect();
    events.sort_by_key(|(at, _)| *at);
    events.drain(..events.len().saturating_sub(MOST));
    events
}

/// Tells how a hold ended, and who ended it.
fn end(hold: &HistoryEntry) -> String {
    let (who, after) = (client_name(&hold.who), format_duration(ran(hold, 0)));
    match &hold.outcome {
        HoldOutcome::Cancelled(Some(by)) => {
            format!(
                "{} stopped {who} after {after}{}",
                client_name(by),
                reason_of(by)
            )
        }
        HoldOutcome::Forced(Some(by)) => {
            format!(
                "{} took it from {who} after {after}{}",
                client_name(by),
                reason_of(by)
            )
        }
        outcome => format!("{who} ended after {after}: {}", ended(outcome, true)),
    }
}

/// Tells why runs ended without the lock, by the last of them; all have the same cause.
fn without_lock(alike: &[Skip]) -> Option<String> {
    let (last, others) = alike.split_last()?;
    let others = match others.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!(
        "{} {}{others}",
        client_name(&last.who),
        skipped(last, false)
    ))
}

/// Tells of a freeze, and who made it, if it isn't over.
fn freeze(lock: &Inspected, since_ms: u64, until_ms: u64) -> String {
    match &lock.frozen {
        Some(now) if now.since_ms == since_ms => {
            format!("{} froze it{}", client_name(&now.who), reason_of(&now.who))
        }
        _ => {
            let lasted = Duration::from_millis(until_ms.saturating_sub(since_ms));
            format!("it was frozen for {}", format_duration(lasted))
        }
    }
}

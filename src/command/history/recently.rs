//! The last events of a lock, a line for each. Pure.

use std::time::Duration;

use super::calendar::Calendar;
use super::listing::ended;
use crate::protocol::{HistoryEntry, HoldOutcome, Inspected, LockHistory, Name};
use crate::report::{and_more, client_name, escaped, format_duration, reason_of};

/// Largest number of events to show.
const MOST: usize = 5;

/// Last events in a lock's history, with their times.
pub struct RecentEvents {
    pub name: Name,
    events: Vec<(u64, String)>,
}

impl RecentEvents {
    pub fn of(history: &LockHistory) -> Self {
        let is_same = |one: &HistoryEntry, next: &HistoryEntry| {
            next.hold.is_none() && (one.outcome, &one.by) == (next.outcome, &next.by)
        };
        let events = history.entries.chunk_by(is_same);
        let events = events.filter_map(|alike| Some((alike.last()?.ended_ms?, end(alike)?)));
        Self {
            name: history.name.clone(),
            events: last(events),
        }
    }

    /// Returns the last events, newest first: `03:40  ann@ops-1 stopped root@web-1 after 1h28m: hung`.
    pub fn lines(&self, lock: &Inspected, calendar: Calendar) -> Vec<String> {
        let freezes = lock.record.freezes.iter();
        let freezes = freezes.map(|&(since, until)| (since, freeze(lock, since, until)));
        let events = last(self.events.iter().cloned().chain(freezes));
        let line = |(ms, what)| format!("{}  {what}", calendar.minute(ms, lock.now_ms));
        let lines = events.into_iter().rev().map(line);
        lines.map(|line| escaped(&line).into_owned()).collect()
    }
}

fn last(events: impl Iterator<Item = (u64, String)>) -> Vec<(u64, String)> {
    let mut events: Vec<(u64, String)> = events.collect();
    events.sort_by_key(|(ms, _)| *ms);
    events.drain(..events.len().saturating_sub(MOST));
    events
}

/// Describes the end of a hold, and who ended it. For runs that ended without the lock, describes the last of them.
fn end(alike: &[HistoryEntry]) -> Option<String> {
    let (last, others) = alike.split_last()?;
    let (who, after) = (client_name(&last.who), format_duration(last.ran(0)));
    Some(match (last.outcome, &last.by) {
        (HoldOutcome::Skipped(_), _) => {
            let others = and_more(others.len());
            format!("{who} {}{others}", ended(last, false))
        }
        (outcome, Some(by)) => {
            let what = match outcome {
                HoldOutcome::Forced => "took it from",
                _ => "stopped",
            };
            let (by, reason) = (client_name(by), reason_of(by));
            format!("{by} {what} {who} after {after}{reason}")
        }
        _ => format!("{who} ended after {after}: {}", ended(last, true)),
    })
}

/// Describes a freeze; if it is still in force, also who froze the lock.
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

//! The history as a chart: time from left to right, rows for each host. Pure.

mod svg;

use super::calendar::Calendar;
use crate::duration::milliseconds;
use crate::pattern::natural_cmp;
use crate::protocol::{HistoryEntry, Name};

/// The times when a lock was frozen: from when until when, in milliseconds since 1970.
pub type Freezes<'a> = (&'a Name, &'a [(u64, u64)]);

/// A chart of holds, and of runs that wait now: those are entries without a hold.
pub struct Chart<'a> {
    /// Begin and end, in milliseconds since 1970; never the same.
    from_ms: u64,
    to_ms: u64,
    calendar: Calendar,
    locks: Vec<LockRows<'a>>,
    /// Number of other runs that wait.
    not_drawn: usize,
}

/// The part of a lock.
struct LockRows<'a> {
    name: &'a Name,
    rows: Vec<Row<'a>>,
    freezes: &'a [(u64, u64)],
}

/// A host, with lanes for runs that overlap.
struct Row<'a> {
    host: &'a str,
    lanes: Vec<Vec<&'a HistoryEntry>>,
}

/// Returns when a run began to wait.
fn queued_at(entry: &HistoryEntry) -> u64 {
    let waited = entry
        .hold
        .as_ref()
        .map_or(0, |_| milliseconds(entry.waited));
    entry.since_ms.saturating_sub(waited)
}

/// Returns the item with this key, which is added if there is none.
fn find_or_add<T>(
    items: &mut Vec<T>,
    is_it: impl Fn(&T) -> bool,
    new: impl FnOnce() -> T,
) -> &mut T {
    let at = items.iter().position(is_it).unwrap_or_else(|| {
        items.push(new());
        items.len() - 1
    });
    &mut items[at]
}

impl<'a> Chart<'a> {
    /// Returns the chart of some runs up to now.
    pub fn of(
        entries: &'a [HistoryEntry],
        freezes: &[Freezes<'a>],
        not_drawn: usize,
        now_ms: u64,
        calendar: Calendar,
    ) -> Self {
        let mut entries: Vec<&HistoryEntry> = entries.iter().collect();
        entries.sort_by_key(|entry| queued_at(entry));
        let from_ms = entries.first().map_or(now_ms, |entry| queued_at(entry));
        let to_ms = now_ms.max(from_ms + 1);
        let mut locks: Vec<LockRows> = Vec::new();
        for entry in entries {
            let name = &entry.name;
            let lock = find_or_add(
                &mut locks,
                |lock| lock.name == name,
                || {
                    let own = freezes.iter().find(|(of, _)| *of == name);
                    let freezes = own.map_or(&[][..], |(_, freezes)| freezes);
                    LockRows {
                        name,
                        rows: Vec::new(),
                        freezes,
                    }
                },
            );
            let host = entry.who.host.as_str();
            let row = find_or_add(
                &mut lock.rows,
                |row| row.host == host,
                || {
                    let lanes = Vec::new();
                    Row { host, lanes }
                },
            );
            let is_free = |lane: &Vec<&HistoryEntry>| {
                let until = lane.last().map(|last| last.ended_ms.unwrap_or(u64::MAX));
                until <= Some(queued_at(entry))
            };
            find_or_add(&mut row.lanes, is_free, Vec::new).push(entry);
        }
        locks.sort_by(|a, b| natural_cmp(a.name.as_str(), b.name.as_str()));
        for lock in &mut locks {
            lock.rows.sort_by(|a, b| natural_cmp(a.host, b.host));
        }
        Self {
            from_ms,
            to_ms,
            calendar,
            locks,
            not_drawn,
        }
    }

    /// How far a moment is from the beginning, on an axis of this length.
    fn at(&self, ms: u64, length: f64) -> f64 {
        let span = self.to_ms - self.from_ms;
        let passed = ms.clamp(self.from_ms, self.to_ms) - self.from_ms;
        // Spans of a hundred years have no digits too many.
        #[allow(clippy::cast_precision_loss)]
        let share = passed as f64 / span as f64;
        share * length
    }

    /// Where a hold ends. By the server's clock it may have ended before it began, as that can be set.
    fn end_of(&self, entry: &HistoryEntry) -> u64 {
        entry.ended_ms.unwrap_or(self.to_ms).max(entry.since_ms)
    }

    /// Round moments within the chart, at most `most` or one more, and their labels.
    fn ticks(&self, most: u64) -> Vec<(u64, String)> {
        self.calendar.ticks(self.from_ms, self.to_ms, most)
    }

    /// The zone of the times, or both of them: `CEST/CET`.
    fn zone(&self) -> String {
        let first = self.calendar.zone(self.from_ms);
        let last = self.calendar.zone(self.to_ms);
        if first == last {
            first
        } else {
            format!("{first}/{last}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::history::listing::tests::hold;
    use crate::protocol::HoldOutcome;

    #[test]
    fn what_overlaps_is_on_separate_lanes_and_what_follows_is_not() {
        let ok = HoldOutcome::Status(0);
        let holds = [
            hold("h", 100, Some(150), ok),
            hold("h", 120, Some(160), ok),
            hold("h", 170, Some(200), ok),
            hold("i", 120, Some(200), ok),
        ];
        let chart = Chart::of(&holds, &[], 0, 300_000, Calendar::UTC);
        let lanes: Vec<(&str, Vec<usize>)> = chart.locks[0]
            .rows
            .iter()
            .map(|row| (row.host, row.lanes.iter().map(Vec::len).collect()))
            .collect();
        assert_eq!(lanes, [("h", vec![2, 1]), ("i", vec![1])]);
    }
}

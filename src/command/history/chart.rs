//! The history as a chart: time from left to right, rows for each host. Pure.

mod svg;

use super::calendar::Calendar;
use crate::duration::milliseconds;
use crate::pattern::natural_cmp;
use crate::protocol::{HistoryEntry, Name, Waiter};

/// What is drawn.
pub struct Chart<'a> {
    /// Where it begins and ends, in milliseconds since 1970; never the same.
    from_ms: u64,
    to_ms: u64,
    calendar: Calendar,
    locks: Vec<LockRows<'a>>,
    /// So many more wait.
    not_drawn: usize,
}

/// The part of a lock.
struct LockRows<'a> {
    name: &'a Name,
    rows: Vec<Row<'a>>,
    /// From when until when it was frozen, each time.
    freezes: &'a [(u64, u64)],
}

/// What is drawn beside the holds.
#[derive(Clone, Copy, Default)]
pub struct Beside<'a> {
    pub waiters: &'a [(&'a Name, &'a Waiter)],
    /// So many more wait.
    pub not_drawn: usize,
    pub freezes: &'a [(&'a Name, &'a [(u64, u64)])],
}

/// A host. What overlaps is on lanes of its own.
struct Row<'a> {
    host: &'a str,
    lanes: Vec<Vec<Bar<'a>>>,
}

/// What is drawn as one.
#[derive(Clone, Copy)]
enum Bar<'a> {
    Hold(&'a HistoryEntry),
    /// A run that waits now.
    Waiting(&'a Waiter),
}

impl Bar<'_> {
    fn queued_at(self) -> u64 {
        match self {
            Self::Hold(entry) => entry.since_ms.saturating_sub(milliseconds(entry.waited)),
            Self::Waiting(waiter) => waiter.since_ms,
        }
    }

    /// When it got the lock.
    fn since_ms(self) -> Option<u64> {
        match self {
            Self::Hold(entry) => Some(entry.since_ms),
            Self::Waiting(_) => None,
        }
    }

    fn ended_ms(self) -> Option<u64> {
        match self {
            Self::Hold(entry) => entry.ended_ms,
            Self::Waiting(_) => None,
        }
    }
}

impl<'a> Chart<'a> {
    /// The chart of some holds, and of what is beside them, up to now.
    pub fn of(
        holds: &'a [HistoryEntry],
        beside: Beside<'a>,
        now_ms: u64,
        calendar: Calendar,
    ) -> Self {
        let held = holds.iter().map(|entry| (&entry.name, Bar::Hold(entry)));
        let Beside {
            waiters,
            not_drawn,
            freezes,
        } = beside;
        let waiting = waiters
            .iter()
            .map(|&(name, waiter)| (name, Bar::Waiting(waiter)));
        let mut bars: Vec<(&Name, Bar)> = held.chain(waiting).collect();
        bars.sort_by_key(|(_, bar)| bar.queued_at());
        let from_ms = bars.first().map_or(now_ms, |(_, bar)| bar.queued_at());
        let to_ms = now_ms.max(from_ms + 1);
        let mut locks: Vec<LockRows> = Vec::new();
        for (name, bar) in bars {
            let host = match bar {
                Bar::Hold(entry) => entry.who.host.as_str(),
                Bar::Waiting(waiter) => waiter.who.host.as_str(),
            };
            let at = locks.iter().position(|lock| lock.name == name);
            let at = at.unwrap_or_else(|| {
                let own = freezes.iter().find(|(of, _)| *of == name);
                locks.push(LockRows {
                    name,
                    rows: Vec::new(),
                    freezes: own.map_or(&[], |(_, freezes)| freezes),
                });
                locks.len() - 1
            });
            let rows = &mut locks[at].rows;
            let at = rows.iter().position(|row| row.host == host);
            let at = at.unwrap_or_else(|| {
                let lanes = Vec::new();
                rows.push(Row { host, lanes });
                rows.len() - 1
            });
            let lanes = &mut rows[at].lanes;
            let is_free = |lane: &&mut Vec<Bar>| {
                let until = |last: &Bar| last.ended_ms().unwrap_or(u64::MAX);
                lane.last().map(until) <= Some(bar.queued_at())
            };
            match lanes.iter_mut().find(is_free) {
                Some(lane) => lane.push(bar),
                None => lanes.push(vec![bar]),
            }
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
        let entry = ms.clamp(self.from_ms, self.to_ms) - self.from_ms;
        // Spans of a hundred years have no digits too many.
        #[allow(clippy::cast_precision_loss)]
        let share = entry as f64 / span as f64;
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
            hold("h", 100, Some(150), ok.clone()),
            hold("h", 120, Some(160), ok.clone()),
            hold("h", 170, Some(200), ok.clone()),
            hold("i", 120, Some(200), ok),
        ];
        let chart = Chart::of(&holds, Beside::default(), 300_000, Calendar::UTC);
        let lanes: Vec<(&str, Vec<usize>)> = chart.locks[0]
            .rows
            .iter()
            .map(|row| (row.host, row.lanes.iter().map(Vec::len).collect()))
            .collect();
        assert_eq!(lanes, [("h", vec![2, 1]), ("i", vec![1])]);
    }
}

//! The history as a chart: time from left to right, a row for each host. Pure.

mod svg;
mod text;

use crate::lock::{HistoryEntry, Name};
use crate::report::timestamp;

/// What is drawn.
pub struct Chart<'a> {
    /// Where it begins and ends, in milliseconds since 1970; never the same.
    from_ms: u64,
    to_ms: u64,
    locks: Vec<OfLock<'a>>,
}

/// The part of a lock.
struct OfLock<'a> {
    name: &'a Name,
    rows: Vec<Row<'a>>,
}

/// The holds of a host.
struct Row<'a> {
    host: &'a str,
    holds: Vec<&'a HistoryEntry>,
}

/// The distances that ticks of the axis may have, in seconds.
const TICK_STEPS: [u64; 19] = [
    1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800,
    604_800, 2_592_000,
];

/// Twelve months as the axis has them, in seconds.
const YEAR: u64 = 2_592_000 * 12;

impl<'a> Chart<'a> {
    /// The chart of some holds, up to now.
    pub fn of(holds: &'a [HistoryEntry], now_ms: u64) -> Self {
        let mut locks: Vec<OfLock> = Vec::new();
        for entry in holds {
            let host = entry.who.host.as_str();
            let at = locks.iter().position(|lock| *lock.name == entry.name);
            let at = at.unwrap_or_else(|| {
                locks.push(OfLock {
                    name: &entry.name,
                    rows: Vec::new(),
                });
                locks.len() - 1
            });
            let rows = &mut locks[at].rows;
            match rows.iter_mut().find(|row| row.host == host) {
                Some(row) => row.holds.push(entry),
                None => rows.push(Row {
                    host,
                    holds: vec![entry],
                }),
            }
        }
        for lock in &mut locks {
            lock.rows.sort_by_key(|row| row.host);
        }
        let from_ms = holds.iter().map(queued_at).min().unwrap_or(now_ms);
        Self {
            from_ms,
            to_ms: now_ms.max(from_ms + 1),
            locks,
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

    /// Round moments within the chart, at most `most`, and their labels.
    fn ticks(&self, most: u64) -> Vec<(u64, String)> {
        let span = self.to_ms - self.from_ms;
        let fits = |step: &u64| span / (step * 1000) < most.max(1);
        // Whole years, as many as it takes: a server's clock may say anything.
        let years = || YEAR * (span / 1000 / YEAR / most.max(1) + 1);
        let step = TICK_STEPS.into_iter().find(fits).unwrap_or_else(years) * 1000;
        let first = self.from_ms.div_ceil(step) * step;
        let moments = (first..=self.to_ms).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        moments.map(|ms| (ms, label(ms, step))).collect()
    }
}

/// When it began to wait.
fn queued_at(entry: &HistoryEntry) -> u64 {
    let waited = u64::try_from(entry.waited.as_millis()).unwrap_or(u64::MAX);
    entry.since_ms.saturating_sub(waited)
}

/// A moment as an axis shows it whose ticks are this far apart: `04:39`, `04:39:10`, `11-21`.
fn label(ms: u64, step: u64) -> String {
    let text = timestamp(ms).unwrap_or_default();
    let part = match step / 1000 {
        0..60 => 11..19,
        60..86_400 => 11..16,
        _ => 5..10,
    };
    text.get(part).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::history::listing::tests::hold;
    use crate::lock::HoldOutcome;

    #[test]
    fn however_long_the_time_is_there_are_few_ticks() {
        for now_ms in [200_000, 1 << 40, 1 << 53] {
            let holds = [hold("h", 100, Some(110), HoldOutcome::Status(0))];
            let ticks = Chart::of(&holds, now_ms).ticks(8);
            assert!((1..=9).contains(&ticks.len()), "{now_ms}: {}", ticks.len());
        }
    }
}

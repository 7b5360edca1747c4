//! The chart in characters.

use std::fmt::Write as _;

use super::{Bar, Chart};
use crate::command::history::listing::failed;
use crate::report::{columns, escaped, padded, truncate};

/// What is drawn with: nothing, waiting, running, the end of a run that failed.
struct Ink {
    blank: char,
    waiting: char,
    running: char,
    failed: char,
}

const UNICODE: Ink = Ink {
    blank: '·',
    waiting: '░',
    running: '█',
    failed: '✗',
};
const ASCII: Ink = Ink {
    blank: '.',
    waiting: '-',
    running: '#',
    failed: 'x',
};

impl Chart<'_> {
    /// The chart for a terminal of this width.
    pub fn timeline(&self, width: usize, unicode: bool) -> String {
        let ink = if unicode { UNICODE } else { ASCII };
        let hosts = self.locks.iter().flat_map(|lock| &lock.rows);
        let hosts = hosts.map(|row| columns(&escaped(row.host)));
        let label = hosts.max().unwrap_or(0).min(width / 3);
        let length = width.saturating_sub(label + 2).max(1);
        let mut text = String::new();
        for lock in &self.locks {
            if self.locks.len() > 1 {
                let _ = writeln!(text, "{}", truncate(&escaped(lock.name.as_str()), width));
            }
            for row in &lock.rows {
                let mut host = escaped(row.host).into_owned();
                for lane in &row.lanes {
                    let bar: String = self.bars(lane, length, &ink).into_iter().collect();
                    let start = padded(&truncate(&host, label), label);
                    let _ = writeln!(text, "{start}  {bar}");
                    host.clear();
                }
            }
        }
        let _ = writeln!(text, "{:label$}  {}", "", self.axis(length));
        let legend = format!(
            "{} waiting  {} running  {} ended badly  ({})",
            ink.waiting,
            ink.running,
            ink.failed,
            self.zone()
        );
        text += &truncate(&legend, width);
        text.push('\n');
        if self.not_drawn > 0 {
            let more = format!("{} more wait", self.not_drawn);
            let _ = writeln!(text, "{}", truncate(&more, width));
        }
        text
    }

    fn bars(&self, lane: &[Bar], length: usize, ink: &Ink) -> Vec<char> {
        let mut bar = vec![ink.blank; length];
        // Waiting first, as running counts more where both are in one cell; ends count most.
        for one in lane {
            let got = one.since_ms().unwrap_or(self.to_ms);
            if got > one.queued_at() {
                bar[self.cell(one.queued_at(), length)..=self.cell(got, length)].fill(ink.waiting);
            }
        }
        let holds = || {
            lane.iter().filter_map(|bar| match bar {
                Bar::Hold(entry) => Some(*entry),
                Bar::Waiting(_) => None,
            })
        };
        for entry in holds() {
            let end = self.cell(self.end_of(entry), length);
            bar[self.cell(entry.since_ms, length)..=end].fill(ink.running);
        }
        for entry in holds().filter(|entry| failed(entry)) {
            bar[self.cell(self.end_of(entry), length)] = ink.failed;
        }
        bar
    }

    fn cell(&self, ms: u64, length: usize) -> usize {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss
        )]
        let cell = self.at(ms, length as f64) as usize;
        cell.min(length - 1)
    }

    /// The times, as many as have room.
    fn axis(&self, length: usize) -> String {
        let mut axis = String::new();
        for (ms, label) in self.ticks((length / 12).try_into().unwrap_or(u64::MAX)) {
            let at = self.cell(ms, length);
            let used = axis.chars().count();
            if (used == 0 || at > used) && at + label.len() <= length {
                axis += &" ".repeat(at - used);
                axis += &label;
            }
        }
        axis
    }
}

#[cfg(test)]
mod tests {
    use crate::command::history::calendar::Calendar;
    use crate::command::history::chart::{Beside, Chart};
    use crate::command::history::listing::tests::hold;
    use crate::protocol::{HistoryEntry, HoldOutcome};

    #[test]
    fn waiting_running_and_bad_ends_are_told_apart() {
        let holds = [
            hold("alpha", 102, Some(150), HoldOutcome::Status(0)),
            hold("beta", 160, Some(170), HoldOutcome::Lost),
            hold("alpha", 198, None, HoldOutcome::Running),
        ];
        let text = Chart::of(
            &holds.iter().collect::<Vec<_>>(),
            Beside::default(),
            200_000,
            Calendar::UTC,
        )
        .timeline(107, false);
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[0].starts_with("alpha  --####"), "{text}");
        assert!(rows[0].ends_with("--##"), "{text}");
        assert!(rows[1].starts_with("beta   ....") && rows[1].contains("--##########x."));
        assert!(
            rows[2].contains("00:02:00") && rows[2].contains("00:02:30"),
            "{text}"
        );
        assert!(rows[3].starts_with("- waiting  # running  x ended badly"));
    }

    #[test]
    fn a_hold_that_ended_before_it_began_is_drawn_where_it_began() {
        // Between its begin and its end, the server's clock was set back.
        let holds = [
            hold("alpha", 100, Some(110), HoldOutcome::Status(0)),
            hold("beta", 190, Some(120), HoldOutcome::Lost),
        ];
        let holds: Vec<&HistoryEntry> = holds.iter().collect();
        let chart = Chart::of(&holds, Beside::default(), 200_000, Calendar::UTC);
        let text = chart.timeline(57, false);
        let beta = text.lines().nth(1).unwrap();
        assert!(beta.starts_with("beta") && beta.contains("-x."), "{text}");
        assert!(!chart.svg().contains("width=\"-"));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let long = "h".repeat(90);
        let wide = [
            hold(&long, 100, Some(100), HoldOutcome::Status(1)),
            hold("\u{1b}[2J", 100, None, HoldOutcome::Running),
        ];
        let wide: Vec<&HistoryEntry> = wide.iter().collect();
        for holds in [&wide[..], &wide[..1], &[]] {
            for width in [1, 2, 5, 20, 79, 200] {
                for now in [0, 100_000, 9_000_000_000] {
                    for unicode in [true, false] {
                        let text = Chart::of(holds, Beside::default(), now, Calendar::UTC)
                            .timeline(width, unicode);
                        let most = text.lines().map(|line| line.chars().count()).max();
                        assert!(most.unwrap_or(0) <= width.max(4), "{width}: {text}");
                        assert!(!text.contains('\u{1b}'));
                    }
                }
            }
        }
    }
}

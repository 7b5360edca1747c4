//! The chart as a picture.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Chart, Row, queued_at};
use crate::command::history::listing::ended;
use crate::protocol::{HistoryEntry, HoldOutcome, Who};
use crate::report::{
    client_in_words, command_line, describe_job, escaped, format_duration, truncate,
};

/// What a freeze is drawn with: stripes, as not all readers see the colours.
const ICE: &str = "<defs><pattern id=\"ice\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\" \
patternTransform=\"rotate(45)\"><rect width=\"8\" height=\"8\" fill=\"#ddf4ff\"/><rect width=\"3\" height=\"8\" \
fill=\"#80ccff\"/></pattern></defs>\n";

/// Sizes in the picture's own units.
const WIDTH: f64 = 1000.0;
const LABEL: f64 = 190.0;
const LANE: f64 = 22.0;
const BAR: f64 = 18.0;
const HEADING: f64 = 28.0;
const MARGIN: f64 = 20.0;
const TOP: f64 = 72.0;

/// The most times on the axis, or one less: their labels must not touch.
const TICKS: u64 = 10;

/// The widths of a character, roughly: they may come from any font.
const CHARACTER: f64 = 7.6;
const SMALL_CHARACTER: f64 = 6.6;

/// The mark of what ended badly: not all readers see the colours.
const FAILED: char = '\u{2717}';

/// On a background of its own, so that it is readable wherever it is shown.
const STYLE: &str = "\
text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#1f2328}\
.dim{fill:#59636e}.title{font-size:17px;font-weight:600}.lock{font-weight:600}\
.bar{font-size:11px;fill:#fff}.bar-waiting{font-size:11px;fill:#3d2e00}\
.tick{font-size:12px;fill:#59636e;text-anchor:middle}\
line{stroke:#d1d9e0}.row{fill:#f6f8fa}\
.waiting,.ok,.running,.failed{stroke:#fff;stroke-width:.7}\
.frozen{fill:url(#ice)}\
.waiting{fill:#eac54f}.ok{fill:#1a7f37}.running{fill:#0969da}.failed{fill:#cf222e}";

impl Chart<'_> {
    /// The chart as an SVG file.
    pub fn svg(&self) -> String {
        let several = self.locks.len() > 1;
        let mut bottom = TOP;
        for lock in &self.locks {
            bottom += if several { HEADING } else { 0.0 };
            bottom += lock.rows.iter().map(height).sum::<f64>();
        }
        let full = bottom + 66.0;
        let title = match self.locks.as_slice() {
            [lock] => format!("Lock {}", lock.name),
            locks => format!("{} locks", locks.len()),
        };
        let mut picture = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {full}\" width=\"{WIDTH}\" height=\"{full}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n{ICE}\
             <rect width=\"{WIDTH}\" height=\"{full}\" fill=\"#fff\"/>\n",
            safe(&title)
        );
        text(&mut picture, MARGIN, 32.0, "title", &truncate(&title, 90));
        let span = format_duration(Duration::from_millis(self.to_ms - self.from_ms));
        let [from, to] = [self.from_ms, self.to_ms].map(|ms| self.calendar.moment(ms));
        let more = match self.not_drawn {
            0 => String::new(),
            more => format!("; {more} more wait"),
        };
        let line = format!("{from} to {to} ({span}){more}");
        text(&mut picture, MARGIN, 54.0, "dim", &line);
        self.rows(&mut picture, several, bottom);
        self.time_axis(&mut picture, bottom);
        legend(&mut picture, bottom + 40.0);
        picture + "</svg>\n"
    }

    /// The bands behind the hosts, the lines of the ticks over these, and the bars over all.
    fn rows(&self, picture: &mut String, several: bool, bottom: f64) {
        let (mut bars, mut ice) = (String::new(), String::new());
        let mut y = TOP;
        for lock in &self.locks {
            if several {
                let name = truncate(lock.name.as_str(), 110);
                text(&mut bars, MARGIN, y + 18.0, "lock", &name);
                y += HEADING;
            }
            ice += &self.frozen(lock.freezes, y, lock.rows.iter().map(height).sum());
            for (at, row) in lock.rows.iter().enumerate() {
                let height = height(row);
                if at % 2 == 0 {
                    let width = WIDTH - MARGIN;
                    let x = MARGIN / 2.0;
                    let _ = writeln!(
                        picture,
                        "<rect class=\"row\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
                    );
                }
                let most = whole((LABEL - MARGIN - 8.0) / CHARACTER);
                let host = truncate(row.host, most);
                text(&mut bars, MARGIN, y + 18.0, "host", &host);
                for (lane, all) in row.lanes.iter().enumerate() {
                    #[allow(clippy::cast_precision_loss)]
                    let y = y + 4.0 + lane as f64 * LANE;
                    for entry in all {
                        self.bar(&mut bars, entry, y);
                    }
                }
                y += height;
            }
        }
        *picture += &ice;
        for (ms, _) in self.ticks(TICKS) {
            let x = self.x(ms);
            let _ = writeln!(
                picture,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>"
            );
        }
        *picture += &bars;
    }

    /// The freezes of a lock, as far as the picture shows their time.
    fn frozen(&self, freezes: &[(u64, u64)], y: f64, height: f64) -> String {
        let mut drawn = String::new();
        for &(since, until) in freezes {
            if until <= self.from_ms || since >= self.to_ms {
                continue;
            }
            let (x, end) = (self.x(since), self.x(until));
            let width = (end - x).max(2.0);
            let (from, to) = (self.calendar.moment(since), self.calendar.moment(until));
            let _ = writeln!(
                drawn,
                "<g><title>frozen from {from} to {to}</title><rect class=\"frozen\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\"/></g>"
            );
        }
        drawn
    }

    fn time_axis(&self, picture: &mut String, bottom: f64) {
        for (ms, label) in self.ticks(TICKS) {
            let x = self.x(ms);
            text(picture, x, bottom + 18.0, "tick", &label);
        }
        let zone = format!("times in {}", self.zone());
        text(picture, MARGIN, bottom + 18.0, "dim", &zone);
    }

    fn x(&self, ms: u64) -> f64 {
        LABEL + self.at(ms, WIDTH - LABEL - MARGIN)
    }

    /// A run: how long it waited, and how long it ran.
    fn bar(&self, picture: &mut String, entry: &HistoryEntry, y: f64) {
        let (who, calendar) = (&entry.who, self.calendar);
        let since = calendar.moment(entry.since_ms);
        let ran = format_duration(entry.ran(self.to_ms));
        let about = match &entry.hold {
            Some(hold) => format!(
                "fence {}, from {since}\nwaited {}, ran {ran}: {}",
                hold.fence,
                format_duration(entry.waited),
                ended(entry, false)
            ),
            None => format!("waiting since {since}, for {ran}"),
        };
        let job = describe_job(who);
        let about = format!("{}: {job}\n{about}", client_in_words(who));
        let link = who.url.as_ref().filter(|url| {
            let url = url.to_ascii_lowercase();
            url.starts_with("https://") || url.starts_with("http://")
        });
        if let Some(url) = link {
            let _ = write!(picture, "<a href=\"{}\">", safe(url));
        }
        let _ = write!(picture, "<g><title>{}</title>", safe(&about));
        let label = label_of(who);
        if entry.hold.is_none() {
            let label = format!("{label}, waiting {ran}");
            self.part(picture, "waiting", (entry.since_ms, self.to_ms), y, &label);
        } else {
            let queued = (queued_at(entry), entry.since_ms);
            if queued.0 < queued.1 {
                self.part(picture, "waiting", queued, y, "");
            }
            let label = format!("{label}, {ran}");
            let (class, label) = match entry.ended_ms {
                None => ("running", label),
                Some(_) if failed(entry) => ("failed", format!("{FAILED} {label}")),
                Some(_) => ("ok", label),
            };
            let until = self.end_of(entry);
            self.part(picture, class, (entry.since_ms, until), y, &label);
        }
        *picture += "</g>";
        *picture += if link.is_some() { "</a>\n" } else { "\n" };
    }

    /// A part of a bar, with a label if that has room.
    fn part(&self, picture: &mut String, class: &str, time: (u64, u64), y: f64, label: &str) {
        let (x, end) = (self.x(time.0), self.x(time.1));
        // However short, it is to be seen.
        let width = (end - x).max(2.0);
        let round = if width < 6.0 { 0 } else { 2 };
        let _ = write!(
            picture,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"{round}\"/>"
        );
        let room = whole((width - 10.0) / SMALL_CHARACTER);
        let label = escaped(label);
        let label = match label.chars().next() {
            // A few letters say nothing, but the mark does.
            Some(FAILED) if (1..6).contains(&room) => FAILED.to_string().into(),
            _ => label,
        };
        if room >= label.chars().count().min(6) && !label.is_empty() {
            let style = if class == "waiting" {
                "bar-waiting"
            } else {
                "bar"
            };
            text(picture, x + 5.0, y + 13.0, style, &truncate(&label, room));
        }
    }
}

/// Returns true if a hold is over, and ended badly.
fn failed(entry: &HistoryEntry) -> bool {
    use HoldOutcome::{Released, Running, Status};
    !matches!(entry.outcome, Running | Status(0) | Released)
}

/// Returns the height of a host.
fn height(row: &Row) -> f64 {
    #[allow(clippy::cast_precision_loss)]
    let lanes = row.lanes.len() as f64;
    lanes * LANE + 4.0
}

/// As many whole ones as fit.
fn whole(count: f64) -> usize {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = count.max(0.0) as usize;
    whole
}

/// What a job is called in a bar: its reason, or its command.
fn label_of(who: &Who) -> String {
    let what = who.reason.clone();
    let what = what.unwrap_or_else(|| command_line(&who.command));
    // A bar is never that wide.
    truncate(&what, 200).into_owned()
}

fn legend(picture: &mut String, y: f64) {
    let mut x = LABEL;
    for (class, label) in [
        ("waiting", "waiting"),
        ("running", "running"),
        ("ok", "ended well"),
        ("failed", "\u{2717} ended badly"),
        ("frozen", "frozen"),
    ] {
        let _ = writeln!(
            picture,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" rx=\"2\"/>"
        );
        text(picture, x + 18.0, y + 11.0, "dim", label);
        x += 120.0;
    }
}

fn text(picture: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let text = safe(text);
    let _ = writeln!(
        picture,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y}\">{text}</text>"
    );
}

/// Returns the text as XML has it. What XML can't have, and what turns the direction of what stands beside it, is written
/// out.
fn safe(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let line = escaped(line).replace('&', "&amp;").replace('<', "&lt;");
        let line = line.replace('>', "&gt;").replace('"', "&quot;");
        line.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use crate::command::history::calendar::Calendar;
    use crate::command::history::chart::Chart;
    use crate::command::history::listing::tests::hold;
    use crate::protocol::{HistoryEntry, HoldOutcome};

    #[test]
    fn a_hold_that_ended_before_it_began_is_drawn_where_it_began() {
        // Between its begin and its end, the server's clock was set back.
        let holds = [
            hold("alpha", 100, Some(110), HoldOutcome::Status(0)),
            hold("beta", 190, Some(120), HoldOutcome::Lost),
        ];
        let chart = Chart::of(&holds, &[], 0, 200_000, Calendar::UTC);
        assert!(!chart.svg().contains("width=\"-"));
    }

    #[test]
    fn a_picture_is_well_formed_whatever_the_names() {
        let host = "<h&\">\u{1b}\u{0}\u{202e}";
        let mut holds = [
            hold(host, 100, Some(110), HoldOutcome::Status(0)),
            hold("i", 150, Some(150), HoldOutcome::Forced),
            hold("j", 199, None, HoldOutcome::Running),
        ];
        holds[0].who.url = Some("https://ci/1?a=\"<b>&c".into());
        let waiting = HistoryEntry {
            hold: None,
            since_ms: 120_000,
            ended_ms: None,
            ..holds[0].clone()
        };
        let mut all = holds.to_vec();
        all.push(waiting);
        let name = holds[0].name.clone();
        let freezes = [(&name, &[(120_000, 130_000)][..])];
        for entries in [&all[..], &all[3..]] {
            let picture = Chart::of(entries, &freezes, 9, 200_000, Calendar::UTC).svg();
            let mut open = Vec::new();
            for tag in picture.split('<').skip(1) {
                let (tag, rest) = tag.split_once('>').expect("a tag ends");
                let is_safe = !rest.contains(['>', '\u{1b}', '\u{0}', '\u{202e}']);
                assert!(is_safe, "{rest}");
                let name = tag.split(' ').next().unwrap();
                match (tag.strip_prefix('/'), tag.ends_with('/')) {
                    (Some(closed), _) => assert_eq!(open.pop(), Some(closed)),
                    (None, true) => {}
                    (None, false) => open.push(name),
                }
            }
            assert_eq!(open, [""; 0]);
        }
        let picture = Chart::of(&all, &freezes, 9, 200_000, Calendar::UTC).svg();
        for part in [
            "waiting since 1970-01-01 00:02:00 UTC, for 1m20s",
            "times in UTC",
            "; 9 more wait",
            "fill=\"#fff\"",
            "&lt;h&amp;&quot;&gt;",
            "class=\"failed\"",
            "class=\"running\"",
            "forced",
            "frozen from 1970-01-01 00:02:00 UTC to 1970-01-01 00:02:10 UTC",
        ] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}

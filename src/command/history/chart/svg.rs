//! The chart as a picture.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Chart, queued_at};
use crate::command::history::listing::{ended, failed, ran};
use crate::lock::HistoryEntry;
use crate::report::{describe_job, escaped, format_duration, timestamp, truncate, user_at_host};

/// Sizes in the picture's own units.
const WIDTH: f64 = 1000.0;
const LABEL: f64 = 180.0;
const ROW: f64 = 26.0;
const BAR: f64 = 16.0;
const MARGIN: f64 = 20.0;

/// Readable on light and on dark; a reader who doesn't see colours has the tooltips.
const STYLE: &str = "\
svg{background:#fff;color:#1f2328;font:13px system-ui,sans-serif}\
text{fill:currentColor}.dim{opacity:.65}.title{font-size:16px;font-weight:600}\
line{stroke:currentColor;opacity:.15}\
.waiting{fill:#d4a72c;opacity:.55}.ok{fill:#2da44e}.running{fill:#0969da}.failed{fill:#cf222e}\
@media(prefers-color-scheme:dark){svg{background:#0d1117;color:#e6edf3}}";

impl Chart<'_> {
    /// The chart as an SVG file.
    pub fn svg(&self) -> String {
        let rows: usize = self.locks.iter().map(|lock| lock.rows.len() + 1).sum();
        #[allow(clippy::cast_precision_loss)]
        let bottom = 70.0 + rows as f64 * ROW;
        let height = bottom + 60.0;
        let names: Vec<&str> = self.locks.iter().map(|lock| lock.name.as_str()).collect();
        let title = match names.as_slice() {
            [name] => format!("Lock {name}"),
            names => format!("{} locks", names.len()),
        };
        let moment = |ms| timestamp(ms).unwrap_or_default();
        let span = format_duration(Duration::from_millis(self.to_ms - self.from_ms));
        let mut picture = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n",
            safe(&title)
        );
        text(&mut picture, MARGIN, 32.0, "title", &title);
        let line = format!(
            "{} to {} ({span})",
            moment(self.from_ms),
            moment(self.to_ms)
        );
        text(&mut picture, MARGIN, 52.0, "dim", &line);
        for (ms, label) in self.ticks(8) {
            let x = self.x(ms);
            let _ = writeln!(
                picture,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"66\" y2=\"{bottom}\"/>"
            );
            text(&mut picture, x - 14.0, bottom + 16.0, "dim", &label);
        }
        let mut y = 70.0;
        for lock in &self.locks {
            text(&mut picture, MARGIN, y + 17.0, "dim", lock.name.as_str());
            y += ROW;
            for row in &lock.rows {
                let host = truncate(row.host, 22);
                text(&mut picture, MARGIN, y + 13.0, "host", &host);
                for entry in &row.holds {
                    self.bars(&mut picture, entry, y);
                }
                y += ROW;
            }
        }
        let mut x = LABEL;
        for (class, label) in [
            ("waiting", "waiting"),
            ("running", "running"),
            ("ok", "ended well"),
            ("failed", "ended badly"),
        ] {
            let y = bottom + 32.0;
            let _ = writeln!(
                picture,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" rx=\"2\"/>"
            );
            text(&mut picture, x + 18.0, y + 11.0, "dim", label);
            x += 120.0;
        }
        picture + "</svg>\n"
    }

    fn x(&self, ms: u64) -> f64 {
        LABEL + self.at(ms, WIDTH - LABEL - MARGIN)
    }

    /// A hold: how long it waited, and how long it ran.
    fn bars(&self, picture: &mut String, entry: &HistoryEntry, y: f64) {
        let class = match entry.ended_ms {
            None => "running",
            Some(_) if failed(entry) => "failed",
            Some(_) => "ok",
        };
        let link = entry.who.url.as_ref().filter(|url| url.starts_with("http"));
        let about = format!(
            "{}: {}\nfence {}, from {}\nwaited {}, ran {}: {}",
            user_at_host(&entry.who),
            describe_job(&entry.who),
            entry.fence,
            timestamp(entry.since_ms).unwrap_or_default(),
            format_duration(entry.waited),
            format_duration(ran(entry, self.to_ms)),
            ended(&entry.outcome)
        );
        if let Some(url) = link {
            let _ = write!(picture, "<a href=\"{}\">", safe(url));
        }
        let _ = write!(picture, "<g><title>{}</title>", safe(&about));
        let until = entry.ended_ms.unwrap_or(self.to_ms);
        let bars = [
            ("waiting", queued_at(entry), entry.since_ms),
            (class, entry.since_ms, until),
        ];
        for (class, from, to) in bars {
            if class == "waiting" && entry.waited.is_zero() {
                continue;
            }
            let (x, end) = (self.x(from), self.x(to));
            // However short, it is to be seen.
            let width = (end - x).max(2.0);
            let _ = write!(
                picture,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>"
            );
        }
        *picture += "</g>";
        *picture += if link.is_some() { "</a>\n" } else { "\n" };
    }
}

fn text(picture: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let text = safe(text);
    let _ = writeln!(
        picture,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y}\">{text}</text>"
    );
}

/// The text as XML has it; what XML can't have, and what turns the direction of what stands beside
/// it, is written out.
fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for (line, part) in text.split('\n').enumerate() {
        if line > 0 {
            safe.push('\n');
        }
        write_line(&mut safe, &escaped(part));
    }
    safe
}

fn write_line(safe: &mut String, line: &str) {
    for c in line.chars() {
        match c {
            '&' => *safe += "&amp;",
            '<' => *safe += "&lt;",
            '>' => *safe += "&gt;",
            '"' => *safe += "&quot;",
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::command::history::chart::Chart;
    use crate::command::history::listing::tests::hold;
    use crate::lock::HoldOutcome;

    #[test]
    fn a_picture_is_well_formed_whatever_the_names() {
        let mut holds = [
            hold(
                "<h&\">\u{1b}\u{0}\u{202e}",
                100,
                Some(110),
                HoldOutcome::Status(0),
            ),
            hold("i", 150, Some(150), HoldOutcome::Forced(None)),
            hold("j", 199, None, HoldOutcome::Running),
        ];
        holds[0].who.url = Some("https://ci/1?a=\"<b>&c".into());
        for holds in [&holds[..], &[]] {
            let picture = Chart::of(holds, 200_000).svg();
            let mut open = Vec::new();
            for tag in picture.split('<').skip(1) {
                let (tag, rest) = tag.split_once('>').expect("a tag ends");
                assert!(
                    !rest.contains(['>', '\u{1b}', '\u{0}', '\u{202e}']),
                    "{rest}"
                );
                let name = tag.split(' ').next().unwrap();
                match (tag.strip_prefix('/'), tag.ends_with('/')) {
                    (Some(closed), _) => assert_eq!(open.pop(), Some(closed)),
                    (None, true) => {}
                    (None, false) => open.push(name),
                }
            }
            assert_eq!(open, [""; 0]);
        }
        let picture = Chart::of(&holds, 200_000).svg();
        for part in [
            "&lt;h&amp;&quot;&gt;",
            "class=\"failed\"",
            "class=\"running\"",
            "forced",
        ] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}

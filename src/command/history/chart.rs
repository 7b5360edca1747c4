//! The history as a picture (SVG): time from left to right, rows for each host. Pure.

use std::time::Duration;

use super::calendar::Calendar;
use super::listing::ended;
use crate::duration::milliseconds;
use crate::pattern::natural_cmp;
use crate::protocol::{HistoryEntry, HoldOutcome, Name};
use crate::report::{
    client_in_words, command_line, describe_job, escaped, format_duration, truncate,
};

/// A lock and the times when it was frozen: from when until when, in milliseconds since 1970.
pub type Freezes<'a> = (&'a Name, &'a [(u64, u64)]);

/// Stripes of a freeze, as not all readers see the colours.
const ICE: &str = "<defs><pattern id=\"ice\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\" \
patternTransform=\"rotate(45)\"><rect width=\"8\" height=\"8\" fill=\"#ddf4ff\"/><rect width=\"3\" height=\"8\" \
fill=\"#80ccff\"/></pattern></defs>";

/// Sizes in the picture's own units.
const WIDTH: f64 = 1000.0;
const LABEL: f64 = 190.0;
const LANE: f64 = 22.0;
const BAR: f64 = 18.0;
const HEADING: f64 = 28.0;
const MARGIN: f64 = 20.0;
const TOP: f64 = 72.0;

/// Most times on the axis, or one less: their labels must not touch.
const TICKS: u64 = 10;

/// Most characters of a host's name, and the width of one in a bar, roughly: they may come from any font.
const HOST: usize = 21;
const CHARACTER: f64 = 6.6;

/// Mark of what ended badly: not all readers see the colours.
const FAILED: char = '\u{2717}';

/// Style with a background of its own, so that the picture is readable wherever it is shown.
const STYLE: &str = "\
text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#1f2328}\
.dim{fill:#59636e}.title{font-size:17px;font-weight:600}.lock{font-weight:600}\
.bar{font-size:11px;fill:#fff}.waiting+.bar{fill:#3d2e00}\
.tick{font-size:12px;fill:#59636e;text-anchor:middle}\
line{stroke:#d1d9e0}.row{fill:#f6f8fa}\
.waiting,.ok,.running,.failed{stroke:#fff;stroke-width:.7}\
.frozen{fill:url(#ice)}\
.waiting{fill:#eac54f}.ok{fill:#1a7f37}.running{fill:#0969da}.failed{fill:#cf222e}";

/// A picture that is being drawn. The layers lie above each other in this order.
struct Chart {
    /// Begin and end, in milliseconds since 1970; never the same.
    from_ms: u64,
    to_ms: u64,
    calendar: Calendar,
    /// Bands behind the hosts.
    bands: String,
    ice: String,
    bars: String,
    /// Lower end of the rows.
    bottom: f64,
}

/// Draws holds, and runs that wait now, which are entries without a hold, up to now. `not_drawn`: the number of other
/// runs that wait.
pub fn svg(
    entries: &[HistoryEntry],
    freezes: &[Freezes],
    not_drawn: usize,
    now_ms: u64,
    calendar: Calendar,
) -> String {
    let mut entries: Vec<&HistoryEntry> = entries.iter().collect();
    entries.sort_by(|a, b| {
        let names = natural_cmp(a.name.as_str(), b.name.as_str());
        let hosts = || natural_cmp(&a.who.host, &b.who.host);
        names.then_with(hosts).then(queued_at(a).cmp(&queued_at(b)))
    });
    let from_ms = entries.iter().map(|entry| queued_at(entry)).min();
    let from_ms = from_ms.unwrap_or(now_ms);
    let mut chart = Chart {
        from_ms,
        to_ms: now_ms.max(from_ms + 1),
        calendar,
        bands: String::new(),
        ice: String::new(),
        bars: String::new(),
        bottom: TOP,
    };
    let locks: Vec<_> = entries.chunk_by(|a, b| a.name == b.name).collect();
    for lock in &locks {
        let name = &lock[0].name;
        if locks.len() > 1 {
            let heading = truncate(name.as_str(), 110);
            chart.bars += &text("lock", MARGIN, chart.bottom + 18.0, &heading);
            chart.bottom += HEADING;
        }
        let top = chart.bottom;
        for (number, host) in lock.chunk_by(|a, b| a.who.host == b.who.host).enumerate() {
            chart.host(host, number % 2 == 0);
        }
        for (_, own) in freezes.iter().filter(|(other, _)| *other == name) {
            chart.frozen(own, top);
        }
    }
    let title = match locks[..] {
        [lock] => format!("Lock {}", lock[0].name),
        _ => format!("{} locks", locks.len()),
    };
    chart.picture(&title, not_drawn)
}

/// Returns when a run began to wait.
fn queued_at(entry: &HistoryEntry) -> u64 {
    let waited = entry.hold.as_ref().map(|_| milliseconds(entry.waited));
    entry.since_ms.saturating_sub(waited.unwrap_or(0))
}

/// Returns the runs of a host, in the order in which they began to wait, in as few lanes as they need so that none overlap.
fn lanes<'a>(host: &[&'a HistoryEntry]) -> Vec<Vec<&'a HistoryEntry>> {
    let mut lanes: Vec<Vec<&HistoryEntry>> = Vec::new();
    for entry in host {
        let is_over = |last: &&HistoryEntry| last.ended_ms.is_some_and(|ms| ms <= queued_at(entry));
        let mut all = lanes.iter_mut();
        match all.find(|lane| lane.last().is_some_and(is_over)) {
            Some(lane) => lane.push(entry),
            None => lanes.push(vec![entry]),
        }
    }
    lanes
}

impl Chart {
    /// Adds the rows of a host. `has_band`: every second one, to tell them apart.
    fn host(&mut self, host: &[&HistoryEntry], has_band: bool) {
        let top = self.bottom;
        let name = truncate(&host[0].who.host, HOST);
        self.bars += &text("host", MARGIN, top + 18.0, &name);
        for lane in lanes(host) {
            for entry in lane {
                self.bars += &self.bar(entry, self.bottom + 4.0);
            }
            self.bottom += LANE;
        }
        self.bottom += 4.0;
        if has_band {
            let place = [MARGIN / 2.0, top, WIDTH - MARGIN, self.bottom - top];
            self.bands += &(rect("row", place, 0) + "\n");
        }
    }

    /// Adds the freezes of a lock whose rows begin at `top`, as far as the picture shows their time.
    fn frozen(&mut self, freezes: &[(u64, u64)], top: f64) {
        for &(since, until) in freezes {
            if until > self.from_ms && since < self.to_ms {
                let [from, to] = [since, until].map(|ms| self.calendar.moment(ms));
                let (x, width) = self.span(since, until);
                let ice = rect("frozen", [x, top, width, self.bottom - top], 0);
                let title = format!("<title>frozen from {from} to {to}</title>");
                self.ice.extend(["<g>", &title, &ice, "</g>\n"]);
            }
        }
    }

    /// Returns a run: how long it waited, and how long it ran.
    fn bar(&self, entry: &HistoryEntry, y: f64) -> String {
        let who = &entry.who;
        let since = self.calendar.moment(entry.since_ms);
        let ran = format_duration(entry.ran(self.to_ms));
        let job = who.reason.clone();
        let job = job.unwrap_or_else(|| command_line(&who.command));
        let (class, label, about) = if let Some(hold) = &entry.hold {
            let (class, mark) = match entry.outcome {
                HoldOutcome::Running => ("running", String::new()),
                outcome if outcome.is_success() => ("ok", String::new()),
                _ => ("failed", format!("{FAILED} ")),
            };
            let (fence, waited) = (hold.fence, format_duration(entry.waited));
            let end = ended(entry, false);
            let about = format!("fence {fence}, from {since}\nwaited {waited}, ran {ran}: {end}");
            (class, format!("{mark}{job}, {ran}"), about)
        } else {
            let about = format!("waiting since {since}, for {ran}");
            ("waiting", format!("{job}, waiting {ran}"), about)
        };
        let about = format!("{}: {}\n{about}", client_in_words(who), describe_job(who));
        let mut bar = format!("<g><title>{}</title>", safe(&about));
        let queued_at = queued_at(entry);
        if queued_at < entry.since_ms {
            bar += &self.part("waiting", (queued_at, entry.since_ms), y, "");
        }
        // By the server's clock it may have ended before it began, as that can be set.
        let until = entry.ended_ms.unwrap_or(self.to_ms).max(entry.since_ms);
        bar += &(self.part(class, (entry.since_ms, until), y, &label) + "</g>");
        let is_link = |url: &&String| {
            let url = url.to_ascii_lowercase();
            url.starts_with("https://") || url.starts_with("http://")
        };
        match who.url.as_ref().filter(is_link) {
            Some(url) => format!("<a href=\"{}\">{bar}</a>\n", safe(url)),
            None => bar + "\n",
        }
    }

    /// Returns a part of a bar, with a label if that has room.
    fn part(&self, class: &str, (from, to): (u64, u64), y: f64, label: &str) -> String {
        let (x, width) = self.span(from, to);
        let radius = if width < 6.0 { 0 } else { 2 };
        let part = rect(class, [x, y, width, BAR], radius);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let room = ((width - 10.0) / CHARACTER).max(0.0) as usize;
        let mut label = escaped(label);
        // A few letters say nothing, but the mark does.
        if room < 6 && label.starts_with(FAILED) {
            label = FAILED.to_string().into();
        }
        if label.is_empty() || room < label.chars().count().min(6) {
            return part;
        }
        part + &text("bar", x + 5.0, y + 13.0, &truncate(&label, room))
    }

    /// Returns the place of a moment on the time axis.
    fn x(&self, ms: u64) -> f64 {
        let passed = ms.clamp(self.from_ms, self.to_ms) - self.from_ms;
        // Spans of a hundred years have no digits too many.
        #[allow(clippy::cast_precision_loss)]
        let share = passed as f64 / (self.to_ms - self.from_ms) as f64;
        LABEL + share * (WIDTH - LABEL - MARGIN)
    }

    /// Returns the place and the width of a time, which is visible however short it is.
    fn span(&self, from_ms: u64, to_ms: u64) -> (f64, f64) {
        let x = self.x(from_ms);
        (x, (self.x(to_ms) - x).max(2.0))
    }

    /// Returns the whole picture.
    fn picture(self, title: &str, not_drawn: usize) -> String {
        let bottom = self.bottom;
        let height = bottom + 66.0;
        let span = format_duration(Duration::from_millis(self.to_ms - self.from_ms));
        let ends = [self.from_ms, self.to_ms];
        let [from, to] = ends.map(|ms| self.calendar.moment(ms));
        let mut zones = ends.map(|ms| self.calendar.zone(ms)).to_vec();
        zones.dedup();
        let more = match not_drawn {
            0 => String::new(),
            more => format!("; {more} more wait"),
        };
        let time = format!("{from} to {to} ({span}){more}");
        let (mut lines, mut labels) = (String::new(), String::new());
        for (ms, label) in self.calendar.ticks(self.from_ms, self.to_ms, TICKS) {
            let x = self.x(ms);
            let line = format!("<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>");
            lines += &(line + "\n");
            labels += &text("tick", x, bottom + 18.0, &label);
        }
        let zone = format!("times in {}", zones.join("/"));
        [
            format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
                 <title>{}</title>\n<style>{STYLE}</style>\n{ICE}\n\
                 <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n",
                safe(title)
            ),
            text("title", MARGIN, 32.0, &truncate(title, 90)),
            text("dim", MARGIN, 54.0, &time),
            self.bands,
            self.ice,
            lines,
            self.bars,
            labels,
            text("dim", MARGIN, bottom + 18.0, &zone),
            legend(bottom + 40.0),
            "</svg>\n".into(),
        ]
        .concat()
    }
}

fn legend(y: f64) -> String {
    let mut x = LABEL;
    let mut legend = String::new();
    for (class, label) in [
        ("waiting", "waiting"),
        ("running", "running"),
        ("ok", "ended well"),
        ("failed", "\u{2717} ended badly"),
        ("frozen", "frozen"),
    ] {
        legend += &(rect(class, [x, y, 12.0, 12.0], 2) + "\n");
        legend += &text("dim", x + 18.0, y + 11.0, label);
        x += 120.0;
    }
    legend
}

/// Returns a rectangle with corners of this radius.
fn rect(class: &str, [x, y, width, height]: [f64; 4], radius: u8) -> String {
    format!(
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" rx=\"{radius}\"/>"
    )
}

fn text(class: &str, x: f64, y: f64, text: &str) -> String {
    let text = safe(text);
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y}\">{text}</text>\n")
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
    use super::*;
    use crate::command::history::listing::tests::hold;

    #[test]
    fn what_overlaps_is_on_separate_lanes_and_what_follows_is_not() {
        let ok = HoldOutcome::Status(0);
        let holds = [
            hold("h", 100, Some(150), ok),
            hold("h", 120, Some(160), ok),
            hold("h", 170, Some(200), ok),
        ];
        let holds: Vec<&HistoryEntry> = holds.iter().collect();
        let counts: Vec<usize> = lanes(&holds).iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 1]);
    }

    #[test]
    fn a_hold_that_ended_before_it_began_is_drawn_where_it_began() {
        // Between its begin and its end, the server's clock was set back.
        let holds = [
            hold("alpha", 100, Some(110), HoldOutcome::Status(0)),
            hold("beta", 190, Some(120), HoldOutcome::Lost),
        ];
        let picture = svg(&holds, &[], 0, 200_000, Calendar::UTC);
        assert!(!picture.contains("width=\"-"));
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
            let picture = svg(entries, &freezes, 9, 200_000, Calendar::UTC);
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
        let picture = svg(&all, &freezes, 9, 200_000, Calendar::UTC);
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

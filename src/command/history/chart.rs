//! The history as a picture (SVG): time runs from left to right, with rows for each lock and host. Pure.

use std::time::Duration;

use super::calendar::Calendar;
use super::listing::ended;
use crate::duration::milliseconds;
use crate::pattern::natural_cmp;
use crate::protocol::{HistoryEntry, HoldOutcome};
use crate::report::{client_in_words, describe_job, escaped, format_duration, truncate};

/// Sizes in the picture's own units.
const WIDTH: f64 = 1000.0;
const LABEL: f64 = 190.0;
const ROW: f64 = 22.0;
const MARGIN: f64 = 20.0;
const TOP: f64 = 50.0;

/// Sections of the time axis, each labelled with its beginning.
const PARTS: u64 = 5;

/// Largest number of characters in a name, and in the text of a bar, which the bar's end may cut.
const NAME: usize = 24;
const TEXT: usize = 150;

/// Style with its own background, so that the picture is readable everywhere.
const STYLE: &str = "\
text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#1f2328}\
.lock,.title{font-weight:600}.dim{font-size:12px;fill:#59636e}line{stroke:#d1d9e0}\
svg svg text{font-size:11px;fill:#fff}svg .waiting text{fill:#3d2e00}\
.waiting{fill:#eac54f}.ok{fill:#1a7f37}.running{fill:#0969da}.failed{fill:#cf222e}";

/// Legend below the picture. A mark helps readers who don't see the colours.
const LEGEND: &str = "\
<text class=\"waiting\" x=\"190\">\u{25a0}</text><text class=\"dim\" x=\"206\">waiting</text>
<text class=\"running\" x=\"310\">\u{25a0}</text><text class=\"dim\" x=\"326\">running</text>
<text class=\"ok\" x=\"430\">\u{25a0}</text><text class=\"dim\" x=\"446\">ended well</text>
<text class=\"failed\" x=\"550\">\u{25a0}</text><text class=\"dim\" x=\"566\">\u{2717} ended badly</text>";

/// A picture under construction.
struct Chart {
    /// Start and end in milliseconds since 1970; never equal.
    from_ms: u64,
    to_ms: u64,
    calendar: Calendar,
    rows: String,
    /// Lower end of the rows.
    bottom: f64,
}

/// Draws holds, and the waits before them, up to now.
pub fn svg(entries: &[HistoryEntry], now_ms: u64, calendar: Calendar) -> String {
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
        rows: String::new(),
        bottom: TOP,
    };
    for lock in entries.chunk_by(|a, b| a.name == b.name) {
        chart.label("lock", lock[0].name.as_str());
        chart.bottom += ROW;
        for host in lock.chunk_by(|a, b| a.who.host == b.who.host) {
            chart.label("host", &host[0].who.host);
            for lane in lanes(host) {
                for entry in lane {
                    chart.run(entry);
                }
                chart.bottom += ROW;
            }
        }
    }
    chart.picture()
}

/// Returns when a run began to wait.
fn queued_at(entry: &HistoryEntry) -> u64 {
    entry.since_ms.saturating_sub(milliseconds(entry.waited))
}

/// Distributes a host's runs, sorted by the start of their waits,
/// over as few lanes as possible. Runs in a lane don't overlap.
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
    /// Adds the name of the next row.
    fn label(&mut self, class: &str, name: &str) {
        self.rows += &text(class, MARGIN, self.bottom + 15.0, &truncate(name, NAME));
    }

    /// Adds a run: its wait, and its time with the lock.
    fn run(&mut self, entry: &HistoryEntry) {
        let who = &entry.who;
        let since = self.calendar.moment(entry.since_ms);
        let ran = format_duration(entry.ran(self.to_ms));
        let (class, mark) = match entry.outcome {
            HoldOutcome::Running => ("running", ""),
            outcome if outcome.is_success() => ("ok", ""),
            _ => ("failed", "\u{2717} "),
        };
        let (client, job) = (client_in_words(who), describe_job(who, "", true));
        let (waited, end) = (format_duration(entry.waited), ended(entry, false));
        let fence = entry.hold.as_ref().map_or(0, |hold| hold.fence);
        let about = format!(
            "{client}: {job}\nfence {fence}, from {since}\nwaited {waited}, ran {ran}: {end}"
        );
        let queued_at = queued_at(entry);
        let mut bars = String::new();
        if queued_at < entry.since_ms {
            bars = self.bar("waiting", (queued_at, entry.since_ms), "");
        }
        // The server's clock may have been set back, so the hold may have ended before it began.
        let until = entry.ended_ms.unwrap_or(self.to_ms).max(entry.since_ms);
        let label = format!("{mark}{job}, {ran}");
        bars += &self.bar(class, (entry.since_ms, until), &label);
        self.rows += &group(&about, &bars, who.url.as_deref());
    }

    /// Returns a bar of a visible length with its text. The bar is a nested picture, so it cuts the text.
    fn bar(&self, class: &str, (from, to): (u64, u64), label: &str) -> String {
        let (x, y) = (self.x(from), self.bottom + 1.0);
        let width = (self.x(to) - x).max(2.0);
        let label = text("bar", 5.0, 14.0, &truncate(label, TEXT));
        format!(
            "<svg class=\"{class}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"20\">\
             <rect width=\"100%\" height=\"100%\"/>{label}</svg>"
        )
    }

    /// Returns the position of a time on the time axis.
    fn x(&self, ms: u64) -> f64 {
        let passed = ms.clamp(self.from_ms, self.to_ms) - self.from_ms;
        // Even a span of a hundred years has few enough digits.
        #[allow(clippy::cast_precision_loss)]
        let share = passed as f64 / (self.to_ms - self.from_ms) as f64;
        LABEL + share * (WIDTH - LABEL - MARGIN)
    }

    /// Returns the whole picture.
    fn picture(self) -> String {
        let (bottom, height) = (self.bottom, self.bottom + 56.0);
        let length = self.to_ms - self.from_ms;
        let [from, to] = [self.from_ms, self.to_ms].map(|ms| self.calendar.moment(ms));
        let span = format_duration(Duration::from_millis(length));
        let title = format!("{from} to {to} ({span})");
        let zone = self.calendar.zone(self.to_ms);
        let mut axis = text("dim", MARGIN, bottom + 16.0, &format!("times in {zone}"));
        for part in 0..PARTS {
            let ms = self.from_ms + length / PARTS * part;
            let (x, moment) = (self.x(ms), self.calendar.brief(ms, &zone));
            let line =
                format!("<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n");
            axis.extend([line, text("dim", x, bottom + 16.0, &moment)]);
        }
        let legend = bottom + 42.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
             <title>redlock history</title>\n<style>{STYLE}</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n{}{axis}{}\
             <g transform=\"translate(0 {legend})\">{LEGEND}</g></svg>\n",
            text("title", MARGIN, 32.0, &title),
            self.rows,
        )
    }
}

/// Returns bars with their tooltip, and with the link to their job.
fn group(about: &str, bars: &str, url: Option<&str>) -> String {
    let group = format!("<g><title>{}</title>{bars}</g>", safe(about));
    let is_link = |url: &&str| {
        let url = url.to_ascii_lowercase();
        url.starts_with("https://") || url.starts_with("http://")
    };
    match url.filter(is_link) {
        Some(url) => format!("<a href=\"{}\">{group}</a>\n", safe(url)),
        None => group + "\n",
    }
}

fn text(class: &str, x: f64, y: f64, text: &str) -> String {
    let text = safe(text);
    format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y}\">{text}</text>\n")
}

/// Escapes a text for XML. Spells out characters that XML
/// forbids, or that change the direction of the text beside them.
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
    fn a_picture_is_safe_whatever_the_names_and_times() {
        let host = "<h&\">\u{1b}\u{0}\u{202e}";
        let mut holds = [
            hold(host, 100, Some(110), HoldOutcome::Status(0)),
            hold("i", 150, Some(150), HoldOutcome::Forced),
            hold("j", 199, None, HoldOutcome::Running),
            // The server's clock was set back between the start and the end.
            hold("k", 190, Some(120), HoldOutcome::Lost),
        ];
        holds[0].who.url = Some("https://ci/1?a=\"<b>&c".into());
        let picture = svg(&holds, 200_000, Calendar::UTC);
        let is_unsafe = picture.contains(['\u{1b}', '\u{0}', '\u{202e}']);
        assert!(!is_unsafe && !picture.contains("width=\"-"), "{picture}");
        for part in [
            "fence 150, from 1970-01-01 00:02:30 UTC",
            "times in UTC",
            "fill=\"#fff\"",
            "&lt;h&amp;&quot;&gt;",
            "a=&quot;&lt;b&gt;&amp;c",
            "class=\"failed\"",
            "class=\"running\"",
            "forced",
            "class=\"waiting\"",
        ] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}

//! The history as lines, for users and for programs. Pure.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::super::json::Object;
use super::calendar::Calendar;
use crate::duration::milliseconds;
use crate::protocol::{HistoryEntry, HoldOutcome, Limit, SkipReason, Who};
use crate::report::{
    Narrowing, Style, Table, client_and_reason, client_in_words, client_name, counted,
    describe_job, escaped, format_duration, painted, timestamp,
};

/// Returns the end of a run in words, and in one or two words if `brief`.
pub fn ended(entry: &HistoryEntry, brief: bool) -> String {
    use HoldOutcome::Skipped;
    let with = |what: &str, how: &str, words: fn(&Who) -> String| match &entry.by {
        Some(by) if !brief => format!("{what}{how}{}", words(by)),
        _ => what.into(),
    };
    match entry.outcome {
        HoldOutcome::Status(0) => "ok".into(),
        HoldOutcome::Status(status) => format!("status {status}"),
        HoldOutcome::Signal(signal) => match Signal::try_from(signal) {
            Ok(signal) => signal.as_str().into(),
            Err(_) => format!("signal {signal}"),
        },
        HoldOutcome::Timeout => "timed out".into(),
        HoldOutcome::Cancelled => with("stopped", " by ", client_and_reason),
        HoldOutcome::Forced => with("forced", " by ", client_and_reason),
        outcome @ (HoldOutcome::Running
        | HoldOutcome::Lost
        | HoldOutcome::Expired
        | HoldOutcome::Released) => outcome.kind().into(),
        Skipped(SkipReason::Recent) if brief => "skipped".into(),
        Skipped(SkipReason::Recent) => {
            let ago = format_duration(entry.success_ago.unwrap_or_default());
            let key = entry.who.once.as_ref();
            let key = key.map_or(String::new(), |key| format!(" with --once {key}"));
            let what = format!("skipped: succeeded {ago} ago");
            with(&what, " on ", |by| by.host.clone()) + &key
        }
        Skipped(SkipReason::Busy) => with("gave up", ": held by ", client_in_words),
        Skipped(SkipReason::Timeout) => with("gave up", " waiting: held by ", client_in_words),
        Skipped(SkipReason::Crowded) => "gave up: others waited already".into(),
        Skipped(SkipReason::Frozen) => with("gave up", ": frozen by ", client_in_words),
        Skipped(SkipReason::Removed) => with("removed", " by ", client_in_words),
        Skipped(SkipReason::Deadlock) if brief => "deadlock".into(),
        Skipped(SkipReason::Deadlock) => "gave up: deadlock".into(),
        Skipped(SkipReason::Superseded) => with("superseded", " by ", client_in_words),
    }
}

/// Width from which a terminal shows times, ends and clients in full.
const WIDE: usize = 100;

/// Returns the cells of a row. `zone` makes them brief: it is the time zone in the heading.
fn row(entry: &HistoryEntry, now_ms: u64, calendar: Calendar, zone: Option<&str>) -> [String; 8] {
    let who = &entry.who;
    let ran = entry.hold.as_ref().map(|_| entry.ran(now_ms));
    let (started, end, client) = if let Some(zone) = zone {
        let started = calendar.brief(entry.since_ms, zone);
        let client = who.known_as.as_ref().unwrap_or(&who.host);
        (started, ended(entry, true), client.clone())
    } else {
        let guards = match entry.hold.as_ref().map_or(0, |hold| hold.guards) {
            0 => String::new(),
            many => format!(", {}", counted(many as usize, "guard")),
        };
        let end = ended(entry, false) + &guards;
        (calendar.moment(entry.since_ms), end, client_name(who))
    };
    let cells = [
        entry.name.to_string(),
        started,
        format_duration(entry.waited),
        ran.map_or("-".into(), format_duration),
        end,
        client,
        who.pid.to_string(),
        describe_job(who, "", true),
    ];
    cells.map(|cell| escaped(&cell).into_owned())
}

/// Returns a table with a line per entry, for a terminal of this width
/// or a file. `is_of_one` hides the name, because the user has given it.
pub fn table(
    entries: &[HistoryEntry],
    now_ms: u64,
    calendar: Calendar,
    width: Option<usize>,
    is_of_one: bool,
) -> String {
    let last = entries.last().map_or(now_ms, |entry| entry.since_ms);
    let zone = width.filter(|it| *it < WIDE).map(|_| calendar.zone(last));
    let cells = |entry| row(entry, now_ms, calendar, zone.as_deref());
    let rows: Vec<[String; 8]> = entries.iter().map(cells).collect();
    let brief = zone.map(|zone| (format!("STARTED ({zone})"), "HOST"));
    let (started, who) = brief.unwrap_or(("STARTED".into(), "WHO"));
    let headings = [
        "NAME", &started, "WAITED", "RAN", "END", who, "PID", "COMMAND",
    ];
    let mut table = Table::new(&headings, rows.iter().map(|row| &row[..]));
    if is_of_one {
        table.hide("NAME");
    }
    let command = width.map_or(20, |width| 20.min(width / 4));
    // The least useful column goes first, and the name last, because the user types it in the next command.
    let steps = [
        Narrowing::Cut("COMMAND", command, usize::MAX),
        Narrowing::Hide("PID"),
        Narrowing::Cut(who, 16, usize::MAX),
        Narrowing::Hide("WAITED"),
        Narrowing::Cut(who, 8, 16),
        Narrowing::Cut("END", 8, usize::MAX),
        Narrowing::Hide(who),
        Narrowing::Hide("RAN"),
        Narrowing::Cut("COMMAND", 8.min(command), usize::MAX),
        Narrowing::Cut("NAME", 8, usize::MAX),
    ];
    table.fit(width, &steps);
    let lines = rows.iter().map(|row| table.line(row, |_| Style::Plain));
    let lines: Vec<String> = std::iter::once(table.heading()).chain(lines).collect();
    painted(&lines, false)
}

/// Returns an entry as JSON; the shape is part of the contract.
pub fn entry_object(entry: &HistoryEntry, now_ms: u64) -> Object {
    let mut json = Object::default();
    let hold = entry.hold.as_ref();
    let ran = hold.map_or(Duration::ZERO, |_| entry.ran(now_ms));
    let (status, signal, reason) = match entry.outcome {
        HoldOutcome::Status(status) => (Some(status), None, None),
        HoldOutcome::Signal(signal) => (None, Some(signal), None),
        HoldOutcome::Skipped(reason) => (None, None, Some(reason)),
        _ => (None, None, None),
    };
    json.field("name", entry.name.as_str());
    json.field("id", hold.map(|hold| &hold.id));
    json.field("fence", hold.map(|hold| hold.fence));
    json.client(Some(&entry.who), true, true);
    json.field("mode", hold.map(|hold| Limit::mode(hold.limit)));
    let slot = hold.filter(|hold| hold.limit.as_slots().is_some());
    json.field("slot", slot.map(|hold| hold.slot));
    json.field("since", timestamp(entry.since_ms));
    json.field("ended", entry.ended_ms.and_then(timestamp));
    json.field("waited_ms", milliseconds(entry.waited));
    json.field("ran_ms", milliseconds(ran));
    json.field("end", entry.outcome.kind());
    json.field("status", status);
    json.field("signal", signal);
    json.object("by", entry.by.as_ref().map(|by| Object::of(by, true)));
    json.field("guards", hold.map_or(0, |hold| hold.guards));
    json.field("why", reason);
    json.field("success_ago_ms", entry.success_ago.map(milliseconds));
    json
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::golden::histories;

    /// Returns a hold of "a" by a host, from `since` to `until`, in seconds.
    pub fn hold(host: &str, since: u64, until: Option<u64>, outcome: HoldOutcome) -> HistoryEntry {
        let mut hold = histories()[0].entries[0].hold.clone();
        let past = hold.as_mut().unwrap();
        (past.id, past.fence) = (format!("{host}{since}"), since);
        (past.limit, past.slot, past.guards) = (Limit::EXCLUSIVE, 1, 0);
        let command = ["x", "<&\">\u{1b}"];
        let who = json!({"host": host, "user": "u", "pid": 7, "command": command});
        HistoryEntry {
            name: "a".parse().unwrap(),
            hold,
            who: serde_json::from_value(who).unwrap(),
            since_ms: since * 1000,
            waited: Duration::from_secs(2),
            ended_ms: until.map(|until| until * 1000),
            outcome,
            by: None,
            success_ago: None,
        }
    }

    /// Returns a run on a host that ended without "a" at `ended`, after four seconds.
    pub fn skip(host: &str, ended: u64, reason: SkipReason) -> HistoryEntry {
        HistoryEntry {
            hold: None,
            by: Some(hold("other", 1, None, HoldOutcome::Running).who),
            success_ago: Some(Duration::from_secs(4)),
            ..hold(host, ended - 4, Some(ended), HoldOutcome::Skipped(reason))
        }
    }

    fn with(entries: &[HistoryEntry], width: Option<usize>) -> String {
        let is_of_one = entries.windows(2).all(|two| two[0].name == two[1].name);
        table(entries, 0, Calendar::UTC, width, is_of_one)
    }

    #[test]
    fn a_table_cannot_drive_the_terminal_and_fits_its_width() {
        let mut entry = hold("h", 100, Some(110), HoldOutcome::Signal(15));
        entry.who.user = "\u{202e}".into();
        let items = [entry];
        for width in [1, 20, 40, 60, 80, 120] {
            let text = with(&items, Some(width));
            let fits = text.lines().all(|line| line.chars().count() <= width);
            assert!(fits, "{text}");
            assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        }
        let text = with(&items, None);
        assert!(text.starts_with("STARTED"), "{text}");
        assert!(text.contains("SIGTERM"), "{text}");
        assert!(text.contains("1970-01-01 00:01:40 UTC") && !text.contains('\u{1b}'));
    }

    #[test]
    fn a_name_is_whole_until_the_command_has_eight_columns_and_that_has_20_of_80() {
        let ok = HoldOutcome::Status(0);
        let mut long = hold("build-agent-17.example", 100, Some(4110), ok);
        long.name = "deploy-production-eu-west-1".parse().unwrap();
        long.who.user = "gitlab-runner".into();
        long.who.command = vec!["./deploy-everything.sh".into(), "--now".into()];
        let two = [long.clone(), hold("h", 100, Some(110), ok)];
        let skipped = skip("build-agent-17.example", 90, SkipReason::Timeout);
        assert_eq!(ended(&skipped, true), "gave up");
        let mut several = [long.clone(), two[1].clone(), skipped];
        several[0].outcome = HoldOutcome::Forced;
        several[0].by = Some(long.who.clone());
        for items in [&several[..1], &several] {
            let text = with(items, Some(80));
            assert!(text.find("COMMAND").unwrap() <= 60, "{text}");
            assert!(text.contains("./deploy-everything"), "{text}");
        }
        for width in [58, 60, 80, 100] {
            let text = with(&two, Some(width));
            assert!(text.contains(long.name.as_str()), "{width}: {text}");
        }
        let text = with(&two, Some(40));
        assert!(text.contains("deploy") && text.contains('…'), "{text}");
    }
}

//! The history line by line, for people and for programs. Pure.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use serde::Serialize;

use super::calendar::Calendar;
use crate::protocol::{HistoryEntry, HoldOutcome, Limit, Name, Skip, SkipReason, Who};
use crate::report::{
    Cell, Column, Step, Style, Table, client_and_reason, client_in_words, client_name,
    describe_job, escaped, escaped_json, format_duration, timestamp,
};

/// What is listed.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    Hold(&'a HistoryEntry),
    /// A run that ended without the lock.
    Skip(&'a Skip),
}

impl Item<'_> {
    pub fn name(&self) -> &Name {
        match self {
            Self::Hold(entry) => &entry.name,
            Self::Skip(skip) => &skip.name,
        }
    }

    pub fn who(&self) -> &Who {
        match self {
            Self::Hold(entry) => &entry.who,
            Self::Skip(skip) => &skip.who,
        }
    }

    /// When it got the lock; of a run that didn't, when it began to wait.
    pub fn started_ms(&self) -> u64 {
        match self {
            Self::Hold(entry) => entry.since_ms,
            Self::Skip(skip) => {
                let waited = u64::try_from(waited(skip).as_millis()).unwrap_or(u64::MAX);
                skip.ended_ms.saturating_sub(waited)
            }
        }
    }

    /// When it ended; `None` while it lasts.
    pub fn ended_ms(&self) -> Option<u64> {
        match self {
            Self::Hold(entry) => entry.ended_ms,
            Self::Skip(skip) => Some(skip.ended_ms),
        }
    }

    /// What it takes up, in bytes.
    pub fn weight(&self) -> usize {
        size_of::<HistoryEntry>() + self.who().weight()
    }
}

/// How long a run that ended without the lock had waited for it.
fn waited(skip: &Skip) -> Duration {
    match skip.reason {
        // There the time is that since the success.
        SkipReason::Recent => Duration::ZERO,
        _ => skip.after,
    }
}

/// How long a hold lasted; one that still does, until now.
pub fn ran(entry: &HistoryEntry, now_ms: u64) -> Duration {
    let until = entry.ended_ms.unwrap_or(now_ms);
    Duration::from_millis(until.saturating_sub(entry.since_ms))
}

/// Whether it is over, and not as it should be.
pub fn failed(entry: &HistoryEntry) -> bool {
    !matches!(
        entry.outcome,
        HoldOutcome::Running | HoldOutcome::Status(0) | HoldOutcome::Released
    )
}

/// How it ended, in words; `brief`: without the run that ended it.
pub fn ended(outcome: &HoldOutcome, brief: bool) -> String {
    let by = |what: &str, by: &Option<Who>| match by {
        Some(by) if !brief => format!("{what} by {}", client_and_reason(by)),
        _ => what.into(),
    };
    match outcome {
        HoldOutcome::Running => "running".into(),
        HoldOutcome::Status(0) => "ok".into(),
        HoldOutcome::Status(status) => format!("status {status}"),
        HoldOutcome::Signal(signal) => match Signal::try_from(*signal) {
            Ok(signal) => signal.as_str().into(),
            Err(_) => format!("signal {signal}"),
        },
        HoldOutcome::Timeout => "timed out".into(),
        HoldOutcome::Lost => "lost".into(),
        HoldOutcome::Cancelled(who) => by("stopped", who),
        HoldOutcome::Forced(who) => by("forced", who),
        HoldOutcome::Expired => "expired".into(),
        HoldOutcome::Released => "released".into(),
    }
}

/// How many guards a hold has had, where it has had any; `brief`: not said.
fn guards(count: u32, brief: bool) -> String {
    match count {
        count if brief || count == 0 => String::new(),
        1 => ", 1 guard".into(),
        more => format!(", {more} guards"),
    }
}

/// Why a run ended without the lock, in words; `brief`: in one or two.
pub fn skipped(skip: &Skip, brief: bool) -> String {
    let with = |what: &str, how: &str| match &skip.by {
        Some(by) if !brief => format!("{what}{how}{}", client_in_words(by)),
        _ => what.into(),
    };
    match skip.reason {
        SkipReason::Recent if brief => "skipped".into(),
        SkipReason::Recent => {
            let on = skip.by.as_ref();
            let on = on.map_or(String::new(), |by| format!(" on {}", by.host));
            let key = skip.who.once.as_ref();
            let key = key.map_or(String::new(), |key| format!(" with --once {key}"));
            format!(
                "skipped: succeeded {} ago{on}{key}",
                format_duration(skip.after)
            )
        }
        SkipReason::Busy => with("gave up", ": held by "),
        SkipReason::Timeout => with("gave up", " waiting: held by "),
        SkipReason::Crowded => "gave up: others waited already".into(),
        SkipReason::Frozen => with("gave up", ": frozen by "),
        SkipReason::Removed => with("removed", " by "),
        SkipReason::Deadlock if brief => "deadlock".into(),
        SkipReason::Deadlock => "gave up: deadlock".into(),
        SkipReason::Superseded => with("superseded", " by "),
    }
}

const NAME: usize = 0;
const STARTED: usize = 1;
const WAITED: usize = 2;
const RAN: usize = 3;
const END: usize = 4;
const WHO: usize = 5;
const PID: usize = 6;
const COMMAND: usize = 7;

/// The way in which cells are written.
#[derive(Debug)]
struct Form {
    calendar: Calendar,
    /// The zone that the heading of brief times names.
    zone: String,
}

impl Form {
    /// A cell, safe for a terminal.
    fn cell(&self, item: &Item, now_ms: u64, column: usize, brief: bool) -> Cell<'static> {
        let who = item.who();
        let text = match (column, item) {
            (NAME, item) => item.name().to_string(),
            (STARTED, item) if brief => self.calendar.brief(item.started_ms(), &self.zone),
            (STARTED, item) => self.calendar.moment(item.started_ms()),
            (WAITED, Item::Hold(entry)) => format_duration(entry.waited),
            (WAITED, Item::Skip(skip)) => format_duration(waited(skip)),
            (RAN, Item::Hold(entry)) => format_duration(ran(entry, now_ms)),
            (RAN, Item::Skip(_)) => "-".into(),
            (END, Item::Hold(entry)) => ended(&entry.outcome, brief) + &guards(entry.guards, brief),
            (END, Item::Skip(skip)) => skipped(skip, brief),
            (WHO, _) if brief && who.known_as.is_none() => who.host.clone(),
            (WHO, _) => client_name(who),
            (PID, _) => who.pid.to_string(),
            _ => describe_job(who),
        };
        (Style::Plain, escaped(&text).into_owned().into())
    }
}

/// A table with a line for each item, for a terminal of this width or somewhere else; if one lock was asked for, without its
/// name.
pub fn table(
    items: &[Item],
    now_ms: u64,
    calendar: Calendar,
    width: Option<usize>,
    is_of_one: bool,
) -> String {
    let last = items.last().map_or(now_ms, Item::started_ms);
    let zone = calendar.zone(last);
    let form = Form { calendar, zone };
    let columns = [
        Column::new("NAME").middle(),
        Column::of("STARTED", format!("STARTED ({})", form.zone)),
        Column::new("WAITED"),
        Column::new("RAN"),
        Column::new("END"),
        Column::of("WHO", "HOST").middle(),
        Column::new("PID"),
        Column::new("COMMAND"),
    ];
    let mut table = Table::new(columns.into(), items, |item, column, brief| {
        form.cell(item, now_ms, column, brief)
    });
    let command = width.map_or(20, |width| 20.min(width / 4));
    // What is least missed goes first, and the name, which is typed next, last.
    table.fit(
        width,
        &[
            if is_of_one { &[Step::Hide(NAME)] } else { &[] },
            &[Step::Cut(COMMAND, command, usize::MAX)],
            &[Step::Hide(PID)],
            &[Step::Brief(STARTED), Step::Brief(END)],
            &[Step::Cut(WHO, 16, 16)],
            &[Step::Brief(WHO)],
            &[Step::Hide(WAITED)],
            &[Step::Cut(WHO, 8, 16), Step::Cut(END, 8, usize::MAX)],
            &[Step::Hide(WHO)],
            &[Step::Hide(RAN)],
            &[Step::Cut(COMMAND, 8.min(command), usize::MAX)],
            &[Step::Cut(NAME, 8, usize::MAX)],
        ],
    );
    let mut text = table.heading().painted(false) + "\n";
    for item in items {
        let line = table.line(|column, brief| form.cell(item, now_ms, column, brief));
        text += &(line.painted(false) + "\n");
    }
    text
}

/// A hold, or a run that ended without the lock, as JSON; the shape is part of the contract.
#[derive(Serialize)]
struct ItemJson<'a> {
    name: &'a str,
    id: Option<&'a str>,
    fence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'a str>,
    host: &'a str,
    user: &'a str,
    pid: u32,
    command: &'a [String],
    reason: Option<&'a str>,
    url: Option<&'a str>,
    mode: Option<&'static str>,
    slot: Option<u32>,
    since: Option<String>,
    ended: Option<String>,
    waited_ms: u64,
    ran_ms: u64,
    end: &'static str,
    status: Option<u8>,
    signal: Option<i32>,
    by: Option<By<'a>>,
    /// How many guards it has had.
    guards: u32,
    /// Why it ended without the lock.
    why: Option<&'static str>,
    /// How long ago the success was that was recent enough.
    success_ago_ms: Option<u64>,
}

#[derive(Serialize)]
struct By<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    who: Option<&'a str>,
    host: &'a str,
    user: &'a str,
    pid: u32,
    reason: Option<&'a str>,
    url: Option<&'a str>,
}

/// A duration in milliseconds.
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl<'a> ItemJson<'a> {
    fn new(item: Item<'a>, now_ms: u64) -> Self {
        let (who, by) = match item {
            Item::Hold(HistoryEntry { who, outcome, .. }) => match outcome {
                HoldOutcome::Cancelled(by) | HoldOutcome::Forced(by) => (who, by.as_ref()),
                _ => (who, None),
            },
            Item::Skip(Skip { who, by, .. }) => (who, by.as_ref()),
        };
        let json = Self {
            name: "",
            id: None,
            fence: None,
            who: who.known_as.as_deref(),
            host: &who.host,
            user: &who.user,
            pid: who.pid,
            command: &who.command,
            reason: who.reason.as_deref(),
            url: who.url.as_deref(),
            mode: None,
            slot: None,
            since: timestamp(item.started_ms()),
            ended: item.ended_ms().and_then(timestamp),
            waited_ms: 0,
            ran_ms: 0,
            end: "skipped",
            guards: 0,
            why: None,
            success_ago_ms: None,
            status: None,
            signal: None,
            by: by.map(|by| By {
                who: by.known_as.as_deref(),
                host: &by.host,
                user: &by.user,
                pid: by.pid,
                reason: by.reason.as_deref(),
                url: by.url.as_deref(),
            }),
        };
        match item {
            Item::Hold(entry) => Self {
                name: entry.name.as_str(),
                id: Some(&entry.id),
                fence: Some(entry.fence),
                mode: Some(Limit::mode(entry.limit)),
                slot: entry.limit.as_slots().map(|_| entry.slot),
                waited_ms: milliseconds(entry.waited),
                ran_ms: milliseconds(ran(entry, now_ms)),
                end: entry.outcome.kind(),
                guards: entry.guards,
                status: match entry.outcome {
                    HoldOutcome::Status(status) => Some(status),
                    _ => None,
                },
                signal: match entry.outcome {
                    HoldOutcome::Signal(signal) => Some(signal),
                    _ => None,
                },
                ..json
            },
            Item::Skip(skip) => Self {
                name: skip.name.as_str(),
                waited_ms: milliseconds(waited(skip)),
                why: Some(skip.reason.kind()),
                success_ago_ms: (skip.reason == SkipReason::Recent)
                    .then_some(milliseconds(skip.after)),
                ..json
            },
        }
    }
}

/// A part of an array: its first or further values, at least one, without what ends it.
pub fn json_part(items: &[Item], now_ms: u64, first: bool) -> Result<String> {
    let entries: Vec<ItemJson> = items
        .iter()
        .map(|&item| ItemJson::new(item, now_ms))
        .collect();
    let json = serde_json::to_string(&entries)?;
    let json = escaped_json(&json);
    let inside = &json[1..json.len() - 1];
    Ok(format!("{}{inside}", if first { "[" } else { "," }))
}

/// What ends that array.
pub const JSON_END: &str = "]\n";

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A hold of "a" by a host, from and to, in seconds.
    pub fn hold(host: &str, since: u64, until: Option<u64>, outcome: HoldOutcome) -> HistoryEntry {
        HistoryEntry {
            name: "a".parse().unwrap(),
            id: format!("{host}{since}"),
            fence: since,
            who: Who {
                host: host.into(),
                user: "u".into(),
                pid: 7,
                command: vec!["x".into(), "<&\">\u{1b}".into()],
                ..Who::default()
            },
            limit: Limit::EXCLUSIVE,
            slot: 1,
            since_ms: since * 1000,
            waited: Duration::from_secs(2),
            ended_ms: until.map(|until| until * 1000),
            guards: 0,
            outcome,
        }
    }

    /// A run on a host that ended without "a" at a moment, after four seconds.
    pub fn skip(host: &str, ended: u64, reason: SkipReason) -> Skip {
        Skip {
            name: "a".parse().unwrap(),
            ended_ms: ended * 1000,
            reason,
            after: Duration::from_secs(4),
            by: Some(hold("other", 1, None, HoldOutcome::Running).who),
            who: hold(host, 1, None, HoldOutcome::Running).who,
        }
    }

    fn with(items: &[Item], width: Option<usize>) -> String {
        let is_of_one = items.windows(2).all(|two| two[0].name() == two[1].name());
        table(items, 0, Calendar::UTC, width, is_of_one)
    }

    #[test]
    fn a_table_cannot_drive_the_terminal_and_fits_its_width() {
        let mut entry = hold("h", 100, Some(110), HoldOutcome::Signal(15));
        entry.who.user = "\u{202e}".into();
        let items = [Item::Hold(&entry)];
        for width in [1, 20, 40, 60, 80, 120] {
            let text = with(&items, Some(width));
            assert!(
                text.lines().all(|line| line.chars().count() <= width),
                "{text}"
            );
            assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
        }
        let text = with(&items, None);
        assert!(
            text.starts_with("STARTED") && text.contains("SIGTERM"),
            "{text}"
        );
        assert!(text.contains("1970-01-01 00:01:40 UTC") && !text.contains('\u{1b}'));
    }

    #[test]
    fn at_80_columns_the_command_has_20_of_them() {
        let mut first = hold(
            "build-agent-17.example",
            100,
            Some(4110),
            HoldOutcome::Status(0),
        );
        first.name = "deploy-production-eu-west-1".parse().unwrap();
        first.who.user = "gitlab-runner".into();
        first.who.command = vec!["./deploy-everything.sh".into(), "--now".into()];
        first.outcome = HoldOutcome::Forced(Some(first.who.clone()));
        let second = hold("h", 100, Some(110), HoldOutcome::Status(0));
        let skipped = skip("build-agent-17.example", 90, SkipReason::Timeout);
        for items in [
            &[Item::Hold(&first)][..],
            &[
                Item::Hold(&first),
                Item::Hold(&second),
                Item::Skip(&skipped),
            ],
        ] {
            let text = with(items, Some(80));
            let at = text.find("COMMAND").unwrap();
            assert!(at <= 60, "{text}");
            assert!(text.contains("./deploy-everything"), "{text}");
        }
    }

    #[test]
    fn a_name_is_whole_until_the_command_has_eight_columns() {
        let mut long = hold("build-agent-17", 100, Some(110), HoldOutcome::Status(0));
        long.name = "deploy-production-eu-west-1".parse().unwrap();
        long.who.command = vec!["./deploy-everything.sh".into()];
        let short = hold("h", 100, Some(110), HoldOutcome::Status(0));
        let items = [Item::Hold(&long), Item::Hold(&short)];
        for width in [58, 60, 80, 100] {
            let text = with(&items, Some(width));
            assert!(text.contains(long.name.as_str()), "{width}: {text}");
        }
        let text = with(&items, Some(40));
        assert!(text.contains("deploy") && text.contains('…'), "{text}");
    }

    #[test]
    fn each_reason_to_end_without_the_lock_has_its_words() {
        let words = |reason| skipped(&skip("h", 10, reason), false);
        assert_eq!(
            words(SkipReason::Recent),
            "skipped: succeeded 4s ago on other"
        );
        assert_eq!(words(SkipReason::Busy), "gave up: held by u@other (pid 7)");
        assert_eq!(
            words(SkipReason::Timeout),
            "gave up waiting: held by u@other (pid 7)"
        );
        assert_eq!(
            words(SkipReason::Superseded),
            "superseded by u@other (pid 7)"
        );
        let brief = skipped(&skip("h", 10, SkipReason::Timeout), true);
        assert_eq!(brief, "gave up");
    }
}

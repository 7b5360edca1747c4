//! `redlock status`: who holds which lock and who waits, for people and (as JSON) for programs.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{BadUsage, name};
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Hold, Inspected, Key, Limit, Link, Name, Waiting, Who, inspect, names};
use crate::report::{command_line, cut, escaped, escaped_json, product, rough};
use crate::signal;

/// Shows locks, once or again and again.
pub fn status(options: &cli::Status, settings: &Settings) -> Result<Exit> {
    let (watch, name_after_it) = interval(options)?;
    let texts = options
        .names
        .iter()
        .map(String::as_str)
        .chain(name_after_it);
    let asked = texts.map(name).collect::<Result<Vec<_>>>()?;
    let mut link = Link::open(&settings.server)?;
    let Some(interval) = watch else {
        product(&view(&mut link, &asked, options, settings)?)?;
        return Ok(Exit::Success);
    };
    let interrupted = signal::interrupted().context("can't watch for Ctrl-C")?;
    let on_terminal = std::io::stdout().is_terminal();
    loop {
        let text = view(&mut link, &asked, options, settings)?;
        // Home, the new picture, and what is left of the old one erased: nothing flickers.
        let picture = if on_terminal && !options.json {
            format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))
        } else {
            text
        };
        let read = product(&picture)?;
        if !read || interrupted.recv_timeout(interval) != Err(mpsc::RecvTimeoutError::Timeout) {
            return Ok(Exit::Success);
        }
    }
}

/// How often to show it, and the name that stands where the duration might: `--watch deploy`.
fn interval(options: &cli::Status) -> Result<(Option<Duration>, Option<&str>)> {
    let Some(text) = options.watch.as_deref() else {
        return Ok((None, None));
    };
    match cli::positive_duration(text) {
        Ok(interval) => Ok((Some(interval), None)),
        Err(why) if text.starts_with(|c: char| c.is_ascii_digit()) => {
            Err(BadUsage(format!("--watch {text}: {why}")).into())
        }
        Err(_) => Ok((Some(Duration::from_secs(1)), Some(text))),
    }
}

fn view(
    link: &mut Link,
    asked: &[Name],
    options: &cli::Status,
    settings: &Settings,
) -> Result<String> {
    let locks = if asked.is_empty() {
        in_use(link, settings)?
    } else {
        inspect(link, &settings.prefix, asked)?
    };
    if options.names_only {
        return Ok(locks
            .iter()
            .fold(String::new(), |text, lock| text + lock.name.as_str() + "\n"));
    }
    if options.json {
        let entries: Vec<Entry> = locks.iter().map(Entry::new).collect();
        let json = serde_json::to_string(&entries)?;
        return Ok(escaped_json(&json).into_owned() + "\n");
    }
    let width = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| width.0.into());
    Ok(table(&locks, width))
}

/// All locks that are held or waited for.
fn in_use(link: &mut Link, settings: &Settings) -> Result<Vec<Inspected>> {
    let all = names(link, &settings.prefix)?;
    let mut found = inspect(link, &settings.prefix, &all)?;
    found.retain(|lock| !lock.is_idle());
    Ok(found)
}

/// A lock as JSON; the shape is part of the contract.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    frozen: Option<()>,
    mode: Option<&'static str>,
    held: bool,
    ttl_ms: Option<u64>,
    fence: Option<u64>,
    slots: Option<u32>,
    /// The type of a key that isn't a lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_a_lock: Option<&'a str>,
    holders: Vec<HolderEntry<'a>>,
    waiters: Vec<WaiterEntry<'a>>,
}

#[derive(Serialize)]
struct HolderEntry<'a> {
    id: &'a str,
    #[serde(flatten)]
    who: WhoEntry<'a>,
    since: Option<String>,
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u32>,
    foreign: bool,
}

#[derive(Serialize)]
struct WaiterEntry<'a> {
    id: &'a str,
    #[serde(flatten)]
    who: WhoEntry<'a>,
    since: Option<String>,
    position: usize,
    priority: i32,
    mode: &'static str,
    slots: Option<u32>,
}

#[derive(Serialize)]
struct WhoEntry<'a> {
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    command: Option<&'a [String]>,
    reason: Option<&'a str>,
    url: Option<&'a str>,
}

impl<'a> WhoEntry<'a> {
    fn new(who: Option<&'a Who>) -> Self {
        Self {
            host: who.map(|who| who.host.as_str()),
            user: who.map(|who| who.user.as_str()),
            pid: who.map(|who| who.pid),
            command: who.map(|who| who.command.as_slice()),
            reason: who.and_then(|who| who.reason.as_deref()),
            url: who.and_then(|who| who.url.as_deref()),
        }
    }
}

impl<'a> Entry<'a> {
    fn new(lock: &'a Inspected) -> Self {
        let limit = lock.limit();
        let last = lock.holds().iter().filter_map(|hold| hold.left).max();
        Self {
            name: lock.name.as_str(),
            frozen: None,
            mode: limit.map(Limit::mode),
            held: limit.is_some(),
            ttl_ms: last.map(milliseconds),
            fence: lock.fence,
            slots: limit.and_then(Limit::as_slots),
            not_a_lock: match &lock.key {
                Key::NotALock(kind) => Some(kind),
                Key::Free | Key::Held(_) => None,
            },
            holders: lock.holds().iter().map(HolderEntry::new).collect(),
            waiters: (1..)
                .zip(&lock.waiters)
                .map(|(position, waiting)| WaiterEntry::new(position, waiting))
                .collect(),
        }
    }
}

impl<'a> HolderEntry<'a> {
    fn new(hold: &'a Hold) -> Self {
        let holder = hold.holder.as_ref();
        Self {
            id: &hold.id,
            who: WhoEntry::new(holder.map(|holder| &holder.who)),
            since: holder.and_then(|holder| timestamp(holder.since_ms)),
            ttl_ms: hold.left.map(milliseconds),
            slot: holder
                .filter(|holder| holder.limit.as_slots().is_some())
                .map(|holder| holder.slot),
            foreign: holder.is_none(),
        }
    }
}

impl<'a> WaiterEntry<'a> {
    fn new(position: usize, waiting: &'a Waiting) -> Self {
        let waiter = &waiting.waiter;
        Self {
            id: &waiting.id,
            who: WhoEntry::new(Some(&waiter.who)),
            since: timestamp(waiter.since_ms),
            position,
            priority: waiter.priority,
            mode: waiter.limit.mode(),
            slots: waiter.limit.as_slots(),
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 3339 with milliseconds; `None` for a time that no calendar has.
fn timestamp(ms: u64) -> Option<String> {
    let last = 253_402_300_799_000; // the end of the year 9999
    (ms <= last).then(|| {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
    })
}

/// The columns of the table but the last, which is the command and its reason.
const COLUMNS: [&str; 7] = ["NAME", "MODE", "WHO", "PID", "FOR", "TTL LEFT", "ID"];

type Row = ([String; 7], String);

/// A table for people: a line for each holder and each waiter, columns as wide as they need to be;
/// on a terminal what doesn't fit is cut off.
fn table(locks: &[Inspected], width: Option<usize>) -> String {
    if locks.is_empty() {
        return "no lock is held\n".into();
    }
    let mut rows = vec![(COLUMNS.map(str::to_owned), "COMMAND".to_owned())];
    rows.extend(locks.iter().flat_map(rows_of));
    let mut widths = [0; COLUMNS.len()];
    for (cells, _) in &rows {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for (cells, last) in &rows {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        line += last;
        text += &cut(line.trim_end(), width.unwrap_or(usize::MAX));
        text.push('\n');
    }
    text
}

/// The lines of one lock: its holders, then its waiters.
fn rows_of(lock: &Inspected) -> Vec<Row> {
    let mut rows: Vec<Row> = match &lock.key {
        Key::Free => vec![single(lock, "-", "free")],
        Key::NotALock(kind) => vec![single(lock, "-", &format!("not a lock: a {kind}"))],
        Key::Held(holds) => holds.iter().map(|hold| holding(lock, hold)).collect(),
    };
    let waiting = (1..).zip(&lock.waiters);
    rows.extend(waiting.map(|(position, waiting)| self::waiting(lock, position, waiting)));
    rows
}

/// A line that tells of nobody.
fn single(lock: &Inspected, mode: &str, what: &str) -> Row {
    let dash = || "-".to_owned();
    let name = lock.name.as_str().to_owned();
    (
        [
            name,
            mode.into(),
            what.into(),
            dash(),
            dash(),
            dash(),
            dash(),
        ],
        String::new(),
    )
}

fn holding(lock: &Inspected, hold: &Hold) -> Row {
    let left = hold.left.map_or("never ends".into(), rough);
    let Some(holder) = &hold.holder else {
        let (mut cells, last) = single(lock, "exclusive", "another client");
        cells[5] = left;
        cells[6].clone_from(&hold.id);
        return (cells, last);
    };
    let mode = match holder.limit.as_slots() {
        Some(slots) => format!("slot {}/{slots}", holder.slot),
        None => holder.limit.mode().into(),
    };
    let cells = [
        lock.name.as_str().to_owned(),
        mode,
        user_at_host(&holder.who),
        holder.who.pid.to_string(),
        ago(lock, holder.since_ms),
        left,
        hold.id.clone(),
    ];
    (cells, what(&holder.who))
}

fn waiting(lock: &Inspected, position: usize, waiting: &Waiting) -> Row {
    let waiter = &waiting.waiter;
    let cells = [
        lock.name.as_str().to_owned(),
        format!("waits #{position}"),
        user_at_host(&waiter.who),
        waiter.who.pid.to_string(),
        ago(lock, waiter.since_ms),
        "-".into(),
        waiting.id.clone(),
    ];
    (cells, what(&waiter.who))
}

fn user_at_host(who: &Who) -> String {
    escaped(&format!("{}@{}", who.user, who.host)).into_owned()
}

/// How long it is since a moment of the server's clock.
fn ago(lock: &Inspected, since_ms: u64) -> String {
    rough(Duration::from_millis(lock.now_ms.saturating_sub(since_ms)))
}

/// The command, and its reason in parentheses.
fn what(who: &Who) -> String {
    let mut what = escaped(&command_line(&who.command)).into_owned();
    if let Some(reason) = &who.reason {
        let _ = write!(what, "  ({})", escaped(reason));
    }
    what
}

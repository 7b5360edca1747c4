//! `redlock status`: who holds which lock and who waits, for people and (as JSON) for programs.

use std::io::IsTerminal;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::usage::{BadUsage, name};
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Client, Frozen, Hold, Inspected, Key, Limit, Name, Waiting, Which, Who};
use crate::report::{
    self, describe_job, escaped, escaped_json, format_duration, print, timestamp, width,
};
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
    let mut client = settings.locks.open()?;
    let Some(interval) = watch else {
        print(&view(&mut client, &asked, options, settings)?)?;
        return Ok(Exit::Success);
    };
    let interrupted = signal::interrupted().context("can't watch for Ctrl-C")?;
    let on_terminal = std::io::stdout().is_terminal();
    loop {
        let text = view(&mut client, &asked, options, settings)?;
        // Home, the new picture, and what is left of the old one erased: nothing flickers.
        let picture = if on_terminal && !options.json {
            format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))
        } else {
            text
        };
        let read = print(&picture)?;
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
    client: &mut Client,
    asked: &[Name],
    options: &cli::Status,
    settings: &Settings,
) -> Result<String> {
    let locks = if asked.is_empty() {
        in_use(client, settings)?
    } else {
        settings.locks.inspect(client, asked)?
    };
    if options.names_only {
        return Ok(locks
            .iter()
            .fold(String::new(), |text, lock| text + lock.name.as_str() + "\n"));
    }
    if options.json {
        let entries: Vec<LockJson> = locks.iter().map(LockJson::new).collect();
        let json = serde_json::to_string(&entries)?;
        return Ok(escaped_json(&json).into_owned() + "\n");
    }
    Ok(table(&locks, width()))
}

/// All locks that are held or waited for.
fn in_use(client: &mut Client, settings: &Settings) -> Result<Vec<Inspected>> {
    let all = settings.locks.names(client, Which::InUse)?;
    let mut found = settings.locks.inspect(client, &all)?;
    found.retain(|lock| !lock.is_idle());
    Ok(found)
}

/// A lock as JSON; the shape is part of the contract.
#[derive(Serialize)]
struct LockJson<'a> {
    name: &'a str,
    frozen: Option<FrozenEntry<'a>>,
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
struct FrozenEntry<'a> {
    host: &'a str,
    user: &'a str,
    pid: u32,
    reason: Option<&'a str>,
    url: Option<&'a str>,
    since: Option<String>,
    until: Option<String>,
}

impl<'a> FrozenEntry<'a> {
    fn new(frozen: &'a Frozen) -> Self {
        let who = &frozen.who;
        Self {
            host: &who.host,
            user: &who.user,
            pid: who.pid,
            reason: who.reason.as_deref(),
            url: who.url.as_deref(),
            since: timestamp(frozen.since_ms),
            until: timestamp(frozen.until_ms),
        }
    }
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
    /// Its run is over (`--hold-at-least`).
    kept: bool,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
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
            label: who.and_then(|who| who.label.as_deref()),
            reason: who.and_then(|who| who.reason.as_deref()),
            url: who.and_then(|who| who.url.as_deref()),
        }
    }
}

impl<'a> LockJson<'a> {
    fn new(lock: &'a Inspected) -> Self {
        let limit = lock.limit();
        let last = lock.holds().iter().filter_map(|hold| hold.left).max();
        Self {
            name: lock.name.as_str(),
            frozen: lock.frozen.as_ref().map(FrozenEntry::new),
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
            kept: holder.is_some_and(|holder| holder.kept),
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

const COLUMNS: [&str; 8] = [
    "NAME", "MODE", "WHO", "PID", "FOR", "TTL LEFT", "ID", "COMMAND",
];

/// A line of the table: what is in each column.
type Row = [String; 8];

/// A table for people: a line for each holder and each waiter.
fn table(locks: &[Inspected], width: Option<usize>) -> String {
    if locks.is_empty() {
        return "no lock is held\n".into();
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(locks.iter().flat_map(rows_of));
    report::table(&rows, width)
}

/// The lines of one lock: its holders, then its waiters.
fn rows_of(lock: &Inspected) -> Vec<Row> {
    let mut rows: Vec<Row> = lock.frozen.iter().map(|by| frozen(lock, by)).collect();
    match &lock.key {
        Key::Free if lock.frozen.is_some() => {}
        Key::Free => rows.push(single(lock, "-", "free")),
        Key::NotALock(kind) => rows.push(single(lock, "-", &format!("not a lock: a {kind}"))),
        Key::Held(holds) => rows.extend(holds.iter().map(|hold| holding(lock, hold))),
    }
    let waiting = (1..).zip(&lock.waiters);
    rows.extend(waiting.map(|(position, waiting)| self::waiting(lock, position, waiting)));
    rows
}

/// A line without a holder or waiter.
fn single(lock: &Inspected, mode: &str, what: &str) -> Row {
    let dash = || "-".to_owned();
    let name = lock.name.as_str().to_owned();
    let nothing = String::new();
    [
        name,
        mode.into(),
        what.into(),
        dash(),
        dash(),
        dash(),
        dash(),
        nothing,
    ]
}

/// A line with the client that froze the lock, until when, and why.
fn frozen(lock: &Inspected, by: &Frozen) -> Row {
    let left = Duration::from_millis(by.until_ms.saturating_sub(lock.now_ms));
    [
        lock.name.as_str().to_owned(),
        "frozen".into(),
        user_at_host(&by.who),
        by.who.pid.to_string(),
        ago(lock, by.since_ms),
        format_duration(left),
        "-".into(),
        describe_job(&by.who),
    ]
}

fn holding(lock: &Inspected, hold: &Hold) -> Row {
    let left = hold.left.map_or("no expiry".into(), format_duration);
    let Some(holder) = &hold.holder else {
        let mut cells = single(lock, "exclusive", "another client");
        cells[5] = left;
        cells[6].clone_from(&hold.id);
        if hold.left.is_none() {
            cells[7] = "(no expiry; `redlock run --repair-ttl` gives it one)".into();
        }
        return cells;
    };
    let mode = match holder.limit.as_slots() {
        _ if holder.kept => "kept".into(),
        Some(slots) => format!("slot {}/{slots}", holder.slot),
        None => holder.limit.mode().into(),
    };
    [
        lock.name.as_str().to_owned(),
        mode,
        user_at_host(&holder.who),
        holder.who.pid.to_string(),
        ago(lock, holder.since_ms),
        left,
        hold.id.clone(),
        describe_job(&holder.who),
    ]
}

fn waiting(lock: &Inspected, position: usize, waiting: &Waiting) -> Row {
    let waiter = &waiting.waiter;
    [
        lock.name.as_str().to_owned(),
        format!("waiting #{position}"),
        user_at_host(&waiter.who),
        waiter.who.pid.to_string(),
        ago(lock, waiter.since_ms),
        "-".into(),
        waiting.id.clone(),
        describe_job(&waiter.who),
    ]
}

fn user_at_host(who: &Who) -> String {
    escaped(&format!("{}@{}", who.user, who.host)).into_owned()
}

/// How long it is since a moment of the server's clock.
fn ago(lock: &Inspected, since_ms: u64) -> String {
    format_duration(Duration::from_millis(lock.now_ms.saturating_sub(since_ms)))
}

//! `redlock status`: who holds which lock, for people and (as JSON) for programs.

use std::borrow::Cow;
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
use crate::lock::{Inspected, Key, Link, Name, forget, inspect, names};
use crate::report::{command_line, escaped, escaped_json, product, rough};
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

/// All locks that are in use; names whose holder died without releasing leave the index.
fn in_use(link: &mut Link, settings: &Settings) -> Result<Vec<Inspected>> {
    let all = names(link, &settings.prefix)?;
    let (held, free): (Vec<_>, Vec<_>) = inspect(link, &settings.prefix, &all)?
        .into_iter()
        .partition(|lock| !matches!(lock.key, Key::Free));
    if !free.is_empty() {
        let free: Vec<Name> = free.into_iter().map(|lock| lock.name).collect();
        // Somebody who may only read can look all the same.
        if let Err(error) = forget(link, &settings.prefix, &free) {
            settings.voice.detail(error);
        }
    }
    Ok(held)
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
    waiters: [(); 0],
}

#[derive(Serialize)]
struct HolderEntry<'a> {
    id: &'a str,
    host: Option<&'a str>,
    user: Option<&'a str>,
    pid: Option<u32>,
    command: Option<&'a [String]>,
    since: Option<String>,
    ttl_ms: Option<u64>,
    reason: Option<&'a str>,
    url: Option<&'a str>,
    foreign: bool,
}

impl<'a> Entry<'a> {
    fn new(lock: &'a Inspected) -> Self {
        let mut entry = Self {
            name: lock.name.as_str(),
            frozen: None,
            mode: None,
            held: false,
            ttl_ms: None,
            fence: lock.fence,
            slots: None,
            not_a_lock: None,
            holders: Vec::new(),
            waiters: [],
        };
        match &lock.key {
            Key::Free => {}
            Key::NotALock(kind) => entry.not_a_lock = Some(kind),
            Key::Held { id, left, holder } => {
                let ttl_ms = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
                let who = holder.as_ref().map(|holder| &holder.who);
                entry.mode = Some("exclusive");
                entry.held = true;
                entry.ttl_ms = ttl_ms;
                entry.holders.push(HolderEntry {
                    id,
                    host: who.map(|who| who.host.as_str()),
                    user: who.map(|who| who.user.as_str()),
                    pid: who.map(|who| who.pid),
                    command: who.map(|who| who.command.as_slice()),
                    since: holder
                        .as_ref()
                        .and_then(|holder| timestamp(holder.since_ms)),
                    ttl_ms,
                    reason: who.and_then(|who| who.reason.as_deref()),
                    url: who.and_then(|who| who.url.as_deref()),
                    foreign: holder.is_none(),
                });
            }
        }
        entry
    }
}

/// RFC 3339 with milliseconds; `None` for a time that no calendar has.
fn timestamp(ms: u64) -> Option<String> {
    let last = 253_402_300_799_000; // the end of the year 9999
    (ms <= last).then(|| {
        humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
    })
}

/// A table for people: one line a lock, columns as wide as they need to be; on a terminal what
/// doesn't fit is cut off.
fn table(locks: &[Inspected], width: Option<usize>) -> String {
    if locks.is_empty() {
        return "no lock is held\n".into();
    }
    let mut rows = vec![
        [
            "NAME", "HOLDER", "PID", "HELD FOR", "TTL LEFT", "ID", "COMMAND",
        ]
        .map(str::to_owned),
    ];
    rows.extend(locks.iter().map(row));
    let widths: Vec<usize> = (0..rows[0].len() - 1)
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        line += &row[row.len() - 1];
        text += &cut(line.trim_end(), width.unwrap_or(usize::MAX));
        text.push('\n');
    }
    text
}

fn row(lock: &Inspected) -> [String; 7] {
    let name = lock.name.as_str().to_owned();
    let dash = || "-".to_owned();
    match &lock.key {
        Key::Free => [
            name,
            "free".into(),
            dash(),
            dash(),
            dash(),
            dash(),
            String::new(),
        ],
        Key::NotALock(kind) => [
            name,
            format!("not a lock: a {kind}"),
            dash(),
            dash(),
            dash(),
            dash(),
            String::new(),
        ],
        Key::Held { id, left, holder } => {
            let left = left.map_or("never ends".into(), rough);
            let Some(holder) = holder else {
                return [
                    name,
                    "another client".into(),
                    dash(),
                    dash(),
                    left,
                    id.clone(),
                    String::new(),
                ];
            };
            let who = &holder.who;
            let held_for = rough(Duration::from_millis(
                lock.now_ms.saturating_sub(holder.since_ms),
            ));
            let mut what = escaped(&command_line(&who.command)).into_owned();
            if let Some(reason) = &who.reason {
                let _ = write!(what, "  ({})", escaped(reason));
            }
            [
                name,
                escaped(&format!("{}@{}", who.user, who.host)).into_owned(),
                who.pid.to_string(),
                held_for,
                left,
                id.clone(),
                what,
            ]
        }
    }
}

/// The text, cut to a width in characters.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

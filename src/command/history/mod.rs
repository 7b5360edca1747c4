//! `redlock history`: who held a lock, how long they waited and ran, and how it ended; and which runs ended
//! without it.
//!
//! This file fetches and selects; `listing` shows it line by line, `summary` sums it up, `chart` draws it,
//! and `calendar` knows the times.

mod calendar;
mod chart;
mod listing;
mod summary;

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Context, Result};

use self::calendar::{Calendar, utc};
use self::chart::Chart;
use self::listing::{Item, Layout};
use self::summary::Summary;
use super::usage::{BadUsage, parse_names, refuse_url};
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{self, Client, HistoryEntry, LockHistory, Locks, Name, Waiter, Which};
use crate::pattern::{is_pattern, matches, natural_cmp};
use crate::report::{format_duration, lines_of, print, width};
use crate::signal;
use crate::sys::{CivilTime, local_time};

/// How often --follow looks.
const LOOK: Duration = Duration::from_secs(1);

/// How many lines the table has, and --follow begins with, unless more are asked for.
const LINES: usize = 20;
const FOLLOWED: usize = 10;

/// How many waiters of each lock are drawn: each takes a row.
const WAITERS: usize = 50;

/// How many names a line lists.
const NAMES: usize = 5;

/// Shows what is remembered of locks.
pub fn history(options: &cli::History, settings: &Settings) -> Result<Exit> {
    let query = Query {
        asked: Asked::parse(&options.names)?,
        options,
        locks: &settings.locks,
        calendar: if options.utc {
            Calendar::UTC
        } else {
            Calendar(local)
        },
    };
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    if options.names_only {
        let names = query.asked.look_up(&mut client, query.locks)?;
        let names = names.iter().map(Name::as_str);
        print(&lines_of(names, settings.verbosity))?;
        return Ok(Exit::Success);
    }
    let found = query.find(&mut client)?;
    settings.warn_of_replica(&client);
    if options.follow {
        return query.follow(&found, client);
    }
    if options.timeline || options.svg.is_some() {
        return query.draw(&found, &mut client);
    }
    let text = if options.summary {
        query.sum_up(&found, &mut client)?
    } else if options.json {
        let items = found.items(options.skipped);
        let (_, items) = last(&items, options.last.unwrap_or(usize::MAX));
        listing::json(items, found.now_ms)?
    } else {
        query.list(&found, &mut client)?
    };
    print(&text)?;
    Ok(Exit::Success)
}

/// A moment by the zones of this system.
fn local(seconds: i64) -> CivilTime {
    local_time(seconds).unwrap_or_else(|| utc(seconds))
}

/// The last ones, and how many there are before them.
fn last<T>(all: &[T], most: usize) -> (usize, &[T]) {
    let before = all.len().saturating_sub(most);
    (before, &all[before..])
}

/// Which locks were asked for; none of either: all.
struct Asked {
    names: Vec<Name>,
    patterns: Vec<String>,
}

impl Asked {
    fn parse(texts: &[String]) -> Result<Self> {
        texts.iter().try_for_each(|text| refuse_url(text))?;
        let (patterns, names): (Vec<String>, Vec<String>) =
            texts.iter().cloned().partition(|text| is_pattern(text));
        let names = parse_names(&names)?;
        Ok(Self { names, patterns })
    }

    /// Whether it is one lock.
    fn is_one(&self) -> bool {
        self.names.len() == 1 && self.patterns.is_empty()
    }

    fn is_all(&self) -> bool {
        self.names.is_empty() && self.patterns.is_empty()
    }

    /// The names, looked up where they have to be.
    fn look_up(&self, client: &mut Client, locks: &Locks) -> Result<Vec<Name>, lock::Error> {
        let mut names = self.names.clone();
        if names.is_empty() || !self.patterns.is_empty() {
            let known = locks.names(client, Which::All)?;
            names.extend(known.into_iter().filter(|name| {
                let text = name.as_str();
                let any = self.patterns.iter().any(|pattern| matches(pattern, text));
                any || self.is_all()
            }));
        }
        names.sort_by(|a, b| natural_cmp(a.as_str(), b.as_str()));
        names.dedup();
        Ok(names)
    }
}

/// What is remembered, as far as it was asked for.
struct Found {
    /// The server's clock, in milliseconds since 1970.
    now_ms: u64,
    locks: Vec<LockHistory>,
    /// When the last hold ended of those that are too old.
    last_before_ms: Option<u64>,
}

impl Found {
    /// In the order in which they began.
    fn items(&self, skipped: bool) -> Vec<Item<'_>> {
        let mut items: Vec<Item> = Vec::new();
        for lock in &self.locks {
            items.extend(lock.holds.iter().map(Item::Hold));
            let skips = lock.skips.iter().filter(|_| skipped);
            items.extend(skips.map(Item::Skip));
        }
        // Those of one lock are in the order of their fences, which stays.
        items.sort_by_key(Item::started_ms);
        items
    }

    fn holds(&self) -> Vec<&HistoryEntry> {
        let holds = self.locks.iter().flat_map(|lock| &lock.holds);
        let mut holds: Vec<&HistoryEntry> = holds.collect();
        holds.sort_by_key(|entry| entry.since_ms);
        holds
    }

    fn skips(&self) -> usize {
        self.locks.iter().map(|lock| lock.skips.len()).sum()
    }

    fn is_empty(&self) -> bool {
        self.locks.iter().all(is_empty)
    }
}

fn is_empty(lock: &LockHistory) -> bool {
    lock.holds.is_empty() && lock.skips.is_empty()
}

/// All that is shown of what was found, without colours.
#[cfg(any(test, fuzzing))]
pub fn drawn(found: &[LockHistory], width: Option<usize>) -> Vec<String> {
    let holds: Vec<&HistoryEntry> = found.iter().flat_map(|lock| &lock.holds).collect();
    let items: Vec<Item> = holds.iter().map(|&hold| Item::Hold(hold)).collect();
    let skips = found.iter().flat_map(|lock| &lock.skips).map(Item::Skip);
    let items: Vec<Item> = items.into_iter().chain(skips).collect();
    let now_ms = found.iter().map(|lock| lock.now_ms).max().unwrap_or(0);
    let calendar = Calendar::UTC;
    let written = "it can be written";
    let mut all = vec![
        listing::table(&items, now_ms, calendar, width),
        listing::json(&items, now_ms).expect(written),
    ];
    for by_host in [false, true] {
        let summary = Summary::of(&items, now_ms, by_host, |_| (true, false));
        all.extend([summary.text(width), summary.json().expect(written)]);
    }
    if !holds.is_empty() {
        let chart = Chart::of(&holds, (&[], 3), now_ms, calendar);
        for unicode in [false, true] {
            all.push(chart.timeline(width.unwrap_or(80), unicode));
        }
        all.push(chart.svg());
    }
    all
}

/// What was asked.
struct Query<'a> {
    asked: Asked,
    options: &'a cli::History,
    locks: &'a Locks,
    calendar: Calendar,
}

impl Query<'_> {
    fn find(&self, client: &mut Client) -> Result<Found> {
        let names = self.asked.look_up(client, self.locks)?;
        let mut locks = self.locks.history(client, &names, true)?;
        let mut last_before_ms = None;
        for lock in &mut locks {
            let first = self.options.since.map_or(0, |since| {
                let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
                lock.now_ms.saturating_sub(since)
            });
            lock.holds.retain(|entry| {
                let recent = entry.ended_ms.is_none_or(|ended| ended >= first);
                if !recent {
                    last_before_ms = last_before_ms.max(entry.ended_ms);
                }
                recent
            });
            lock.skips.retain(|skip| skip.ended_ms >= first);
        }
        Ok(Found {
            now_ms: locks.iter().map(|lock| lock.now_ms).max().unwrap_or(0),
            locks,
            last_before_ms,
        })
    }

    /// The table, and what it leaves out.
    fn list(&self, found: &Found, client: &mut Client) -> Result<String> {
        let options = self.options;
        let items = found.items(options.skipped);
        let (before, shown) = last(&items, options.last.unwrap_or(LINES));
        let mut notes = Vec::new();
        if before > 0 {
            let plural = if before == 1 { "" } else { "s" };
            notes.push(format!("{before} earlier line{plural}; -n all shows all"));
        }
        if found.skips() > 0 && !options.skipped {
            let (runs, them) = match found.skips() {
                1 => ("1 run".into(), "it"),
                runs => (format!("{runs} runs"), "them"),
            };
            notes.push(format!(
                "{runs} ended without the lock; --skipped shows {them}"
            ));
        }
        notes.extend(self.missing(found, client)?);
        let mut text = String::new();
        if !shown.is_empty() {
            text = listing::table(shown, found.now_ms, self.calendar, width());
            text += if notes.is_empty() { "" } else { "\n" };
        }
        for note in notes {
            text += &note;
            text.push('\n');
        }
        Ok(text)
    }

    fn sum_up(&self, found: &Found, client: &mut Client) -> Result<String> {
        // A summary also says how many there were without the lock.
        let items = found.items(true);
        let (_, items) = last(&items, self.options.last.unwrap_or(usize::MAX));
        let is_full = |name: &Name| {
            let lock = found.locks.iter().find(|lock| lock.name == *name);
            let all = self.options.since.is_none() && self.options.last.is_none();
            lock.filter(|_| all)
                .map_or((false, false), |lock| (lock.holds_cut, lock.skips_cut))
        };
        let summary = Summary::of(items, found.now_ms, self.options.by_host, is_full);
        if self.options.json {
            return summary.json();
        }
        let mut text = if items.is_empty() {
            String::new()
        } else {
            summary.text(width())
        };
        let mut notes = Vec::new();
        // What is counted is the last of each kind, so how often that is depends on when it began.
        if let [lock] = found.locks.as_slice() {
            let holds = lock.holds.iter().map(|entry| entry.since_ms).min();
            let skips = lock.skips.iter().map(|skip| skip.ended_ms).min();
            let since = |what: &str, first: Option<u64>| {
                first.map(|first| format!("{what} since {}", self.calendar.moment(first)))
            };
            let parts = [since("runs", holds), since("skipped", skips)];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            notes.extend((!parts.is_empty()).then(|| parts.join(", ")));
        }
        notes.extend(self.missing(found, client)?);
        text += if notes.is_empty() || text.is_empty() {
            ""
        } else {
            "\n"
        };
        for note in notes {
            text += &note;
            text.push('\n');
        }
        Ok(text)
    }

    /// A line for each name or pattern that has no history, or none in the time that was asked for.
    fn missing(&self, found: &Found, client: &mut Client) -> Result<Vec<String>> {
        if let (Some(since), Some(last)) = (self.options.since, found.last_before_ms)
            && found.is_empty()
        {
            return Ok(vec![format!(
                "no hold within {}; the last one ended at {}",
                format_duration(since),
                self.calendar.moment(last)
            )]);
        }
        let mut missing = Vec::new();
        for name in &self.asked.names {
            let known = found.locks.iter().find(|lock| lock.name == *name);
            if known.is_none_or(is_empty) {
                missing.push(name.as_str());
            }
        }
        for pattern in &self.asked.patterns {
            let mut locks = found.locks.iter();
            if !locks.any(|lock| matches(pattern, lock.name.as_str()) && !is_empty(lock)) {
                missing.push(pattern);
            }
        }
        let all = self.asked.is_all() && found.is_empty();
        if missing.is_empty() && !all {
            return Ok(Vec::new());
        }
        let days = cli::REMEMBERED.as_secs() / 86_400;
        if all {
            return Ok(vec![format!(
                "no lock has a history (kept for {days} days)"
            )]);
        }
        let others = self.others(client)?;
        Ok(missing
            .into_iter()
            .map(|name| format!("no history of \"{name}\" (kept for {days} days; {others})"))
            .collect())
    }

    /// Which names have a history, in words.
    fn others(&self, client: &mut Client) -> Result<String> {
        let mut names = self.locks.names(client, Which::All)?;
        names.sort_by(|a, b| natural_cmp(a.as_str(), b.as_str()));
        // Some may only be in use.
        names.truncate(4 * NAMES);
        let all = self.locks.history(client, &names, true)?;
        let all = all.iter().filter(|lock| !is_empty(lock));
        let all: Vec<&str> = all.map(|lock| lock.name.as_str()).collect();
        if all.is_empty() {
            return Ok("no lock has one".into());
        }
        let more = if all.len() > NAMES { ", …" } else { "" };
        let first = all[..all.len().min(NAMES)].join(", ");
        Ok(format!("names with a history: {first}{more}"))
    }

    /// The chart, in the terminal or as a file.
    fn draw(&self, found: &Found, client: &mut Client) -> Result<Exit> {
        let holds = found.holds();
        let (_, holds) = last(&holds, self.options.last.unwrap_or(usize::MAX));
        let names: Vec<Name> = found.locks.iter().map(|lock| lock.name.clone()).collect();
        let inspected = self.locks.inspect(client, &names)?;
        let mut waiters: Vec<(&Name, &Waiter)> = Vec::new();
        let mut not_drawn = 0;
        for lock in &inspected {
            let waiting = lock.waiters.iter().map(|waiting| &waiting.waiter);
            let drawn = waiting.take(WAITERS);
            waiters.extend(drawn.map(|waiter| (&lock.name, waiter)));
            not_drawn += lock.waiters.len().saturating_sub(WAITERS);
        }
        if holds.is_empty() && waiters.is_empty() {
            let why = self.missing(found, client)?;
            let why = why.into_iter().next();
            let why = why.unwrap_or("no run has held the lock".into());
            return Err(BadUsage(format!("nothing to draw: {why}")).into());
        }
        let chart = Chart::of(holds, (&waiters, not_drawn), found.now_ms, self.calendar);
        match &self.options.svg {
            None => drop(print(&chart.timeline(width().unwrap_or(80), utf8()))?),
            Some(path) if path == Path::new("-") => drop(print(&chart.svg())?),
            Some(path) => std::fs::write(path, chart.svg())
                .with_context(|| format!("can't write {}", path.display()))?,
        }
        Ok(Exit::Success)
    }

    /// Shows the last that are over, and then each that ends, until interrupted.
    fn follow(&self, first: &Found, mut client: Client) -> Result<Exit> {
        let interrupted = signal::interrupted().context("can't watch for Ctrl-C")?;
        let options = self.options;
        let mut seen = HashSet::new();
        let over = |found: &Found, seen: &mut HashSet<String>| -> Vec<usize> {
            let items = found.items(options.skipped);
            let mut fresh: Vec<usize> = (0..items.len())
                .filter(|&at| items[at].ended_ms().is_some() && seen.insert(items[at].key()))
                .collect();
            fresh.sort_by_key(|&at| items[at].ended_ms());
            fresh
        };
        let all = over(first, &mut seen);
        let items = first.items(options.skipped);
        let (_, all) = last(&all, options.last.unwrap_or(FOLLOWED));
        let items: Vec<Item> = all.iter().map(|&at| items[at]).collect();
        let form = (self.asked.is_one(), true);
        let layout = Layout::new(&items, first.now_ms, self.calendar, width(), form);
        let line = |item: Item, now_ms: u64| {
            if options.json {
                listing::json_line(item, now_ms)
            } else {
                Ok(layout.row(&item, now_ms))
            }
        };
        let mut text = if options.json {
            String::new()
        } else {
            layout.header()
        };
        for item in items {
            text += &line(item, first.now_ms)?;
        }
        loop {
            if !print(&text)? || interrupted.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                return Ok(Exit::Success);
            }
            let mut found = self.find(&mut client);
            if found.is_err() {
                // Once more over a fresh connection: it was good before.
                found = self.find(&mut client);
            }
            let found = found?;
            let fresh = over(&found, &mut seen);
            let items = found.items(options.skipped);
            text.clear();
            for at in fresh {
                text += &line(items[at], found.now_ms)?;
            }
        }
    }
}

/// Whether standard output takes more than ASCII.
fn utf8() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let says = locale.is_some_and(|locale| locale.to_lowercase().replace('-', "").contains("utf8"));
    says || !std::io::stdout().is_terminal()
}

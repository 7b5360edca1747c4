//! `redlock history`: who held a lock, how long they waited and ran, and how it ended.
//!
//! This file fetches and selects; `listing` shows it line by line and sums it up, `chart` draws it.

mod chart;
mod listing;

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use anyhow::{Context, Result};

use self::chart::Chart;
use super::usage::parse_names;
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{self, Client, HistoryEntry, Locks, Name, Which};
use crate::pattern::{is_pattern, matches, natural_cmp};
use crate::report::{print, width};
use crate::signal;

/// How often --follow looks.
const LOOK: Duration = Duration::from_secs(1);

/// Shows what is remembered of locks.
pub fn history(options: &cli::History, settings: &Settings) -> Result<Exit> {
    let asked = Asked::parse(&options.names)?;
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let found = find(&mut client, &asked, options, settings)?;
    settings.warn_of_replica(&client);
    if options.follow {
        return follow(found, &asked, options, settings, client);
    }
    let Found { now_ms, holds } = found;
    if let Some(path) = &options.svg {
        let picture = Chart::of(&holds, now_ms).svg();
        if path == Path::new("-") {
            print(&picture)?;
        } else {
            std::fs::write(path, picture)
                .with_context(|| format!("can't write {}", path.display()))?;
        }
        return Ok(Exit::Success);
    }
    let text = if options.json {
        listing::json(&holds, now_ms)?
    } else if holds.is_empty() {
        "nothing is remembered\n".into()
    } else if options.timeline {
        let width = width().unwrap_or(80);
        Chart::of(&holds, now_ms).timeline(width, utf8()) + "\n" + &listing::summary(&holds, now_ms)
    } else {
        listing::table(&holds, now_ms, width()) + "\n" + &listing::summary(&holds, now_ms)
    };
    print(&text)?;
    Ok(Exit::Success)
}

/// Which locks were asked for; none of either: all.
struct Asked {
    names: Vec<Name>,
    patterns: Vec<String>,
}

impl Asked {
    fn parse(texts: &[String]) -> Result<Self> {
        let (patterns, names): (Vec<String>, Vec<String>) =
            texts.iter().cloned().partition(|text| is_pattern(text));
        let names = parse_names(&names)?;
        Ok(Self { names, patterns })
    }

    /// Whether it is one lock.
    fn is_one(&self) -> bool {
        self.names.len() == 1 && self.patterns.is_empty()
    }

    /// The names, looked up where they have to be.
    fn look_up(&self, client: &mut Client, locks: &Locks) -> Result<Vec<Name>, lock::Error> {
        let mut names = self.names.clone();
        if names.is_empty() || !self.patterns.is_empty() {
            let known = locks.names(client, Which::All)?.into_iter();
            names.extend(known.filter(|name| {
                let text = name.as_str();
                let any = self.patterns.iter().any(|pattern| matches(pattern, text));
                any || self.names.is_empty() && self.patterns.is_empty()
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
    /// In the order in which they began.
    holds: Vec<HistoryEntry>,
}

fn find(
    client: &mut Client,
    asked: &Asked,
    options: &cli::History,
    settings: &Settings,
) -> Result<Found> {
    let names = asked.look_up(client, &settings.locks)?;
    let mut now_ms = 0;
    let mut holds = Vec::new();
    for history in settings.locks.history(client, &names)? {
        now_ms = now_ms.max(history.now_ms);
        let first = options.since.map_or(0, |since| {
            let since = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
            history.now_ms.saturating_sub(since)
        });
        let recent = |entry: &HistoryEntry| entry.ended_ms.is_none_or(|ended| ended >= first);
        let mut of_lock: Vec<HistoryEntry> = history.holds.into_iter().filter(recent).collect();
        let surplus = of_lock
            .len()
            .saturating_sub(options.last.unwrap_or(usize::MAX));
        holds.extend(of_lock.drain(surplus..));
    }
    holds.sort_by_key(|entry| (entry.since_ms, entry.fence));
    Ok(Found { now_ms, holds })
}

/// Shows those that are over, and then each that ends, until interrupted.
fn follow(
    first: Found,
    asked: &Asked,
    options: &cli::History,
    settings: &Settings,
    mut client: Client,
) -> Result<Exit> {
    let interrupted = signal::interrupted().context("can't watch for Ctrl-C")?;
    let over = |found: Found| -> (u64, Vec<HistoryEntry>) {
        let ended = found
            .holds
            .into_iter()
            .filter(|entry| entry.ended_ms.is_some());
        (found.now_ms, ended.collect())
    };
    let mut shown = HashSet::new();
    let mut lines = listing::Lines::new(options.json, asked.is_one());
    let (mut now_ms, mut holds) = over(first);
    loop {
        holds.retain(|entry| shown.insert(entry.id.clone()));
        holds.sort_by_key(|entry| entry.ended_ms);
        let mut text = String::new();
        for entry in &holds {
            text += &lines.next(entry, now_ms)?;
        }
        if !print(&text)? || interrupted.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
            return Ok(Exit::Success);
        }
        let mut found = find(&mut client, asked, options, settings);
        if found.is_err() {
            // Once more over a fresh connection: it was good before.
            found = find(&mut client, asked, options, settings);
        }
        (now_ms, holds) = over(found?);
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

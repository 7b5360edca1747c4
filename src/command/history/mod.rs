//! `redlock history`: who held a lock, how long they waited and ran, and how it ended; and which runs ended
//! without it.
//!
//! This file fetches and selects; `listing` shows it line by line, `chart` draws it, and `calendar` knows the times.
//! `recently` is what `redlock status NAME` shows of it.

pub(super) mod calendar;
mod chart;
mod listing;
mod recently;

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use anyhow::{Context, Result};

use self::calendar::{Calendar, utc};
use self::listing::write_entry;
pub(super) use self::recently::Past;
use super::asked::Asked;
use super::json::Array;
use super::never_used::{known_names, similar};
use super::usage::BadUsage;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::milliseconds;
use crate::file;
#[cfg(test)]
use crate::protocol::LockHistory;
use crate::protocol::{Client, HistoryEntry, Name, Which};
use crate::report::{self, format_duration, lines_of, print, width};
use crate::sys::{CivilTime, local_time};

/// Lines of the table, unless more are asked for.
const LINES: usize = 20;

/// Most waiters of each lock that are drawn, each in a row of its own.
const WAITERS: usize = 50;

/// Number of locks that are inspected together for their waiters.
const INSPECTED: usize = 1000;

/// Most memory of the entries that are kept, in bytes; and how many more than are wanted may be kept for a while.
const MAX_WEIGHT: usize = 64 << 20;
const SLACK: usize = 1000;

/// Size of the parts in which a long array is printed, in bytes.
const PART: usize = 24 << 20;

/// Shows what is remembered of locks.
pub fn history(options: &cli::History, settings: &Settings) -> Result<Exit> {
    let mut asked = Asked::parse(options.names.iter().map(String::as_str))?;
    let mut met = BTreeSet::new();
    asked.names.retain(|name| met.insert(name.clone()));
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let names = asked.look_up(&mut client, &settings.locks, Which::All)?;
    if options.names_only {
        let names = names.iter().map(Name::as_str);
        print(&lines_of(names, settings.verbosity))?;
        return Ok(Exit::Success);
    }
    let mut history = History {
        asked,
        options,
        settings,
        client,
        entries: Vec::new(),
        most: match options.last {
            None if options.json || options.svg.is_some() => usize::MAX,
            last => last.unwrap_or(LINES),
        },
        before: 0,
        now_ms: 0,
        last_before_ms: None,
        skips: 0,
        met: HashSet::new(),
        is_empty: true,
    };
    match &options.svg {
        Some(path) => history.draw(path, &names)?,
        None if options.json => history.list_json(&names)?,
        None => history.list(&names)?,
    }
    // Of one lock nothing was asked before.
    settings.warn_of_replica(&history.client);
    Ok(Exit::Success)
}

/// The calendar of this system's zone.
pub(super) const LOCAL: Calendar = Calendar(local);

fn local(seconds: i64) -> CivilTime {
    local_time(seconds).unwrap_or_else(|| utc(seconds))
}

/// The entries that were read, and what else there was.
struct History<'a> {
    asked: Asked,
    options: &'a cli::History,
    settings: &'a Settings,
    client: Client,
    /// The entries that are kept: the last that began, and no more than `most` once they are in order.
    entries: Vec<HistoryEntry>,
    most: usize,
    /// Number of entries that began before these.
    before: usize,
    /// The server's clock, in milliseconds since 1970.
    now_ms: u64,
    /// End of the last hold that is too old.
    last_before_ms: Option<u64>,
    /// Number of runs that ended without the lock.
    skips: usize,
    /// The names and patterns with a history.
    met: HashSet<String>,
    is_empty: bool,
}

impl History<'_> {
    /// Reads the entries that were asked for. `after`: called after each lock with the memory that the entries take; stops
    /// the reading by returning false.
    fn read(
        &mut self,
        names: &[Name],
        with_skips: bool,
        mut after: impl FnMut(&mut Self, usize) -> Result<bool>,
    ) -> Result<()> {
        let locks = &self.settings.locks;
        let mut client = self.client.hand_over();
        let mut weight = 0;
        let read = locks.each_history(&mut client, names, |lock| -> Result<bool> {
            let since = self.options.since.map(milliseconds);
            let first = since.map_or(0, |since| lock.now_ms.saturating_sub(since));
            self.now_ms = self.now_ms.max(lock.now_ms);
            let mut is_empty = true;
            for entry in lock.entries {
                if entry.ended_ms.is_some_and(|ended| ended < first) {
                    if entry.hold.is_some() {
                        self.last_before_ms = self.last_before_ms.max(entry.ended_ms);
                    }
                    continue;
                }
                is_empty = false;
                self.skips += usize::from(entry.hold.is_none());
                if with_skips || entry.hold.is_some() {
                    weight += weight_of(&entry);
                    self.entries.push(entry);
                }
                if self.entries.len() > self.most.saturating_add(SLACK) {
                    weight -= self.settle();
                }
            }
            if !is_empty {
                self.is_empty = false;
                let meant = self.asked.that_mean(lock.name.as_str());
                self.met.extend(meant.map(str::to_owned));
            }
            let goes_on = after(self, weight);
            if self.entries.is_empty() {
                weight = 0;
            }
            goes_on
        });
        self.client = client;
        read?;
        self.settle();
        Ok(())
    }

    /// Puts the entries in order, and drops all except the last. Returns the memory that is free now. Entries of one moment
    /// stay in the order of their names and fences.
    fn settle(&mut self) -> usize {
        self.entries.sort_by_key(|entry| entry.since_ms);
        let surplus = self.entries.len().saturating_sub(self.most);
        self.before += surplus;
        let dropped = self.entries.drain(..surplus);
        dropped.map(|entry| weight_of(&entry)).sum()
    }

    /// Prints the table, and what it leaves out.
    fn list(&mut self, names: &[Name]) -> Result<()> {
        let with_skips = self.options.skipped;
        self.read(names, with_skips, |_, weight| refuse_many(weight))?;
        let mut text = String::new();
        if !self.entries.is_empty() {
            let is_of_one = self.asked.names.len() == 1 && self.asked.patterns.is_empty();
            text = listing::table(&self.entries, self.now_ms, LOCAL, width(), is_of_one);
        }
        let mut notes = Vec::new();
        if self.before > 0 {
            let plural = if self.before == 1 { "" } else { "s" };
            let before = self.before;
            notes.push(format!("{before} earlier line{plural}; -n all shows all"));
        }
        if self.skips > 0 && !with_skips {
            let (runs, them) = match self.skips {
                1 => ("1 run".into(), "it"),
                runs => (format!("{runs} runs"), "them"),
            };
            notes.push(format!(
                "{runs} ended without the lock; --skipped shows {them}"
            ));
        }
        notes.extend(self.missing()?);
        if !text.is_empty() && !notes.is_empty() {
            text.push('\n');
        }
        print(
            &notes
                .into_iter()
                .fold(text, |text, note| text + &note + "\n"),
        )?;
        Ok(())
    }

    /// Prints the array as it is read: in the order in which the runs began, unless there are too many to keep them all.
    fn list_json(&mut self, names: &[Name]) -> Result<()> {
        let mut array = Array::default();
        let mut print = |history: &mut Self| {
            let (entries, now_ms) = (std::mem::take(&mut history.entries), history.now_ms);
            array.print(&entries, |json, entry| write_entry(json, entry, now_ms))
        };
        let mut is_read = true;
        self.read(names, self.options.skipped, |history, weight| {
            if weight > PART && history.most == usize::MAX {
                history.settle();
                is_read = print(history)?;
                return Ok(is_read);
            }
            refuse_many(weight)
        })?;
        if is_read && print(self)? {
            array.end()?;
        }
        Ok(())
    }

    /// Returns a line for each name or pattern that has no history, or none in the time that was asked for.
    fn missing(&mut self) -> Result<Vec<String>> {
        if let (Some(since), Some(last)) = (self.options.since, self.last_before_ms)
            && self.is_empty
        {
            let (since, last) = (format_duration(since), LOCAL.moment(last));
            return Ok(vec![format!(
                "no hold within {since}; the last one ended at {last}"
            )]);
        }
        let days = cli::REMEMBERED.as_secs() / 86_400;
        if self.asked.is_all() && self.is_empty {
            return Ok(vec![format!(
                "no lock has a history (kept for {days} days)"
            )]);
        }
        let texts = self.asked.names.iter().map(Name::as_str);
        let texts = texts.chain(self.asked.patterns.iter().map(String::as_str));
        let missing: Vec<&str> = texts.filter(|text| !self.met.contains(*text)).collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let known = known_names(&mut self.client, &self.settings.locks)?;
        let at = report::at_server(&self.settings.locks);
        let line = |name: &str| {
            let meant = similar(name, &known).into_iter().next();
            let meant = meant.map(|meant| format!("; did you mean {}?", report::quote(meant)));
            let meant = meant.unwrap_or_default();
            format!("no history of \"{name}\"{at} (kept for {days} days{meant})")
        };
        Ok(missing.into_iter().map(line).collect())
    }

    /// Writes the chart to a file, or to standard output.
    fn draw(&mut self, path: &Path, names: &[Name]) -> Result<()> {
        self.read(names, false, |_, weight| refuse_many(weight))?;
        let mut inspected = Vec::new();
        for few in names.chunks(INSPECTED) {
            inspected.extend(self.settings.locks.inspect(&mut self.client, few)?);
            inspected.retain(|lock| !(lock.waiters.is_empty() && lock.record.freezes.is_empty()));
        }
        let mut not_drawn = 0;
        for lock in &inspected {
            let waiters = lock.waiters.iter().take(WAITERS).map(|it| &it.waiter);
            self.entries.extend(waiters.map(|waiter| {
                let (who, since_ms) = (waiter.who.clone(), waiter.since_ms);
                HistoryEntry::waiting(&lock.name, who, since_ms, lock.since(since_ms))
            }));
            not_drawn += lock.waiters.len().saturating_sub(WAITERS);
        }
        if self.entries.is_empty() {
            let why = self.missing()?.into_iter().next();
            let why = why.unwrap_or("no run has held the lock".into());
            return Err(BadUsage(format!("nothing to draw: {why}")).into());
        }
        let freezes = inspected.iter();
        let freezes: Vec<_> = freezes
            .map(|lock| (&lock.name, &lock.record.freezes[..]))
            .collect();
        let picture = chart::svg(&self.entries, &freezes, not_drawn, self.now_ms, LOCAL);
        if path == Path::new("-") {
            print(&picture)?;
            return Ok(());
        }
        file::replace(path, &picture).with_context(|| format!("can't write {}", path.display()))
    }
}

/// Refuses more entries than can be kept.
fn refuse_many(weight: usize) -> Result<bool> {
    if weight > MAX_WEIGHT {
        let most = MAX_WEIGHT >> 20;
        let why = format!("this history is larger than {most} MiB");
        return Err(BadUsage(format!("{why}; name fewer locks, or give -n or --since")).into());
    }
    Ok(true)
}

/// Returns the memory that an entry takes, in bytes.
fn weight_of(entry: &HistoryEntry) -> usize {
    size_of::<HistoryEntry>() + entry.who.weight()
}

/// Returns all that is shown of what was found, without colours.
#[cfg(test)]
pub fn drawn(found: &[LockHistory], width: Option<usize>) -> Vec<String> {
    let entries: Vec<_> = found.iter().flat_map(|lock| lock.entries.clone()).collect();
    let now_ms = found.iter().map(|lock| lock.now_ms).max().unwrap_or(0);
    let holds = entries.iter().filter(|entry| entry.hold.is_some());
    let holds: Vec<HistoryEntry> = holds.cloned().collect();
    vec![
        listing::table(&entries, now_ms, Calendar::UTC, width, false),
        Array::text(&entries, |json, entry| write_entry(json, entry, now_ms)),
        chart::svg(&holds, &[], 3, now_ms, Calendar::UTC),
    ]
}

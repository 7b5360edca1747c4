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

use self::calendar::Calendar;
use self::listing::write_entry;
pub(super) use self::recently::Past;
use super::asked::Asked;
use super::json::Array;
use super::never_used::{known_names, similar};
use super::usage::refuse;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::milliseconds;
use crate::file;
use crate::protocol::{Client, HistoryEntry, LockHistory, Name, Which};
use crate::report::{self, counted, format_duration, lines_of, print, width};
use crate::sys::local_time;

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

/// The calendar of this system's zone.
pub(super) const LOCAL: Calendar = Calendar(local_time);

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
        names,
        most: match options.last {
            None if options.json || options.svg.is_some() => usize::MAX,
            last => last.unwrap_or(LINES),
        },
    };
    match &options.svg {
        Some(path) => history.draw(path)?,
        None if options.json => history.list_json()?,
        None => history.list()?,
    }
    // Of one lock nothing was asked before.
    settings.warn_of_replica(&history.client);
    Ok(Exit::Success)
}

/// A history that is asked for.
struct History<'a> {
    asked: Asked,
    options: &'a cli::History,
    settings: &'a Settings,
    client: Client,
    names: Vec<Name>,
    /// Most entries that are shown: the last that began.
    most: usize,
}

/// The entries that were read, and what else there was.
#[derive(Default)]
struct Found {
    /// Entries that are kept: the last that began, and no more than wanted once they are settled.
    entries: Vec<HistoryEntry>,
    /// Memory of the entries, in bytes.
    weight: usize,
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
}

impl Found {
    /// Adds the entries of a lock that are wanted. Returns true if the lock has any.
    fn add(&mut self, lock: LockHistory, options: &cli::History, most: usize) -> bool {
        let since = options.since.map(milliseconds);
        let first = since.map_or(0, |since| lock.now_ms.saturating_sub(since));
        let with_skips = options.skipped && options.svg.is_none();
        self.now_ms = self.now_ms.max(lock.now_ms);
        let mut has_any = false;
        for entry in lock.entries {
            let is_hold = entry.hold.is_some();
            if entry.ended_ms.is_some_and(|ended| ended < first) {
                self.last_before_ms = self.last_before_ms.max(entry.ended_ms.filter(|_| is_hold));
                continue;
            }
            has_any = true;
            self.skips += usize::from(!is_hold);
            if with_skips || is_hold {
                self.weight += weight_of(&entry);
                self.entries.push(entry);
            }
            if self.entries.len() > most.saturating_add(SLACK) {
                self.settle(most);
            }
        }
        has_any
    }

    /// Puts the entries in order, and drops all except the last. Entries of one moment stay in the order of their names and
    /// fences.
    fn settle(&mut self, most: usize) {
        self.entries.sort_by_key(|entry| entry.since_ms);
        let surplus = self.entries.len().saturating_sub(most);
        self.before += surplus;
        let dropped = self.entries.drain(..surplus);
        self.weight -= dropped.map(|entry| weight_of(&entry)).sum::<usize>();
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.before == 0 && self.skips == 0
    }
}

impl History<'_> {
    /// Reads the entries that were asked for. `make_room`: called when they take much memory; stops the reading by returning
    /// false.
    fn read(&mut self, mut make_room: impl FnMut(&mut Found) -> Result<bool>) -> Result<Found> {
        let mut found = Found::default();
        let add = |lock: LockHistory| {
            let name = lock.name.clone();
            if found.add(lock, self.options, self.most) {
                let meant = self.asked.that_mean(name.as_str());
                found.met.extend(meant.map(str::to_owned));
            }
            if found.weight > PART {
                return make_room(&mut found);
            }
            Ok(true)
        };
        let locks = &self.settings.locks;
        locks.each_history(&mut self.client, &self.names, add)?;
        found.settle(self.most);
        Ok(found)
    }

    /// Prints the table, and what it leaves out.
    fn list(&mut self) -> Result<()> {
        let found = self.read(refuse_larger)?;
        let mut text = String::new();
        if !found.entries.is_empty() {
            let is_of_one = self.asked.names.len() == 1 && self.asked.patterns.is_empty();
            text = listing::table(&found.entries, found.now_ms, LOCAL, width(), is_of_one);
        }
        let mut notes = Vec::new();
        let (before, skips) = (found.before, found.skips);
        if before > 0 {
            let lines = counted(before, "earlier line");
            notes.push(format!("{lines}; -n all shows all"));
        }
        if skips > 0 && !self.options.skipped {
            let (runs, them) = (
                counted(skips, "run"),
                if skips == 1 { "it" } else { "them" },
            );
            notes.push(format!(
                "{runs} ended without the lock; --skipped shows {them}"
            ));
        }
        notes.extend(self.missing(&found)?);
        if !text.is_empty() && !notes.is_empty() {
            text.push('\n');
        }
        text.extend(notes.into_iter().map(|note| note + "\n"));
        print(&text)?;
        Ok(())
    }

    /// Prints the array as it is read: in the order in which the runs began, unless there are too many to keep them all.
    fn list_json(&mut self) -> Result<()> {
        let mut array = Array::default();
        let mut print = |found: &mut Found| {
            let (entries, now_ms) = (std::mem::take(&mut found.entries), found.now_ms);
            found.weight = 0;
            array.print(&entries, |json, entry| write_entry(json, entry, now_ms))
        };
        let has_parts = self.most == usize::MAX;
        let mut found = self.read(|found| {
            if !has_parts {
                return refuse_larger(found);
            }
            found.settle(usize::MAX);
            Ok(print(found)?)
        })?;
        if print(&mut found)? {
            array.end()?;
        }
        Ok(())
    }

    /// Returns a line for each name or pattern that has no history, or none in the time that was asked for.
    fn missing(&mut self, found: &Found) -> Result<Vec<String>> {
        if let (Some(since), Some(last), true) =
            (self.options.since, found.last_before_ms, found.is_empty())
        {
            let (since, last) = (format_duration(since), LOCAL.moment(last));
            let line = format!("no hold within {since}; the last one ended at {last}");
            return Ok(vec![line]);
        }
        let days = cli::REMEMBERED.as_secs() / 86_400;
        if self.asked.is_all() && found.is_empty() {
            let line = format!("no lock has a history (kept for {days} days)");
            return Ok(vec![line]);
        }
        let texts = self.asked.names.iter().map(Name::as_str);
        let texts = texts.chain(self.asked.patterns.iter().map(String::as_str));
        let missing: Vec<&str> = texts.filter(|text| !found.met.contains(*text)).collect();
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
    fn draw(&mut self, path: &Path) -> Result<()> {
        let is_output = path == Path::new("-");
        // A name of a lock, perhaps: a file of this name would be replaced.
        let is_picture = path.extension().is_some_and(|end| end == "svg");
        if !(is_output || is_picture || path.starts_with("/dev")) {
            let path = path.display();
            let line = "the name of its FILE has to end in .svg, as in --svg";
            return refuse(Exit::Usage, format!("--svg {path}: {line} {path}.svg"));
        }
        let mut found = self.read(refuse_larger)?;
        let mut inspected = Vec::new();
        for few in self.names.chunks(INSPECTED) {
            inspected.extend(self.settings.locks.inspect(&mut self.client, few)?);
            inspected.retain(|lock| !(lock.waiters.is_empty() && lock.record.freezes.is_empty()));
        }
        let mut not_drawn = 0;
        for lock in &inspected {
            let waiters = lock.waiters.iter().take(WAITERS).map(|it| &it.waiter);
            found.entries.extend(waiters.map(|waiter| {
                let (who, since_ms) = (waiter.who.clone(), waiter.since_ms);
                HistoryEntry::waiting(&lock.name, who, since_ms, lock.since(since_ms))
            }));
            not_drawn += lock.waiters.len().saturating_sub(WAITERS);
        }
        if found.entries.is_empty() {
            let why = self.missing(&found)?.into_iter().next();
            let why = why.unwrap_or("no run has held the lock".into());
            return refuse(Exit::Usage, format!("nothing to draw: {why}"));
        }
        let freezes = inspected.iter();
        let freezes = freezes.map(|lock| (&lock.name, &lock.record.freezes[..]));
        let freezes: Vec<_> = freezes.collect();
        let picture = chart::svg(&found.entries, &freezes, not_drawn, found.now_ms, LOCAL);
        if is_output {
            print(&picture)?;
            return Ok(());
        }
        file::replace(path, &picture).with_context(|| format!("can't write {}", path.display()))
    }
}

/// Refuses more entries than can be kept.
fn refuse_larger(found: &mut Found) -> Result<bool> {
    if found.weight <= MAX_WEIGHT {
        return Ok(true);
    }
    let most = MAX_WEIGHT >> 20;
    let why = format!("this history is larger than {most} MiB");
    refuse(
        Exit::Usage,
        format!("{why}; name fewer locks, or give -n or --since"),
    )
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

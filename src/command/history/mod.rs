//! `redlock history`: who held a lock, how long they waited and ran,
//! and how it ended; also the runs that ended without the lock.
//!
//! This file reads and selects the entries. `listing` prints them as lines, `chart` draws them,
//! and `calendar` formats times. `recently` is the part that `redlock status NAME` shows.

pub(super) mod calendar;
mod chart;
mod listing;
mod recently;

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use anyhow::Result;

use self::calendar::Calendar;
pub(super) use self::listing::entry_object;
pub(super) use self::recently::RecentEvents;
use super::json::print_array;
use super::never_used::{known_names, similar};
use super::requested::RequestedNames;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::milliseconds;
use crate::protocol::{Client, HistoryEntry, LockHistory, Name, Names};
use crate::report::{self, counted, format_duration, lines_of, print, print_to, quote, width};
use crate::sys::local_time;
use crate::usage::refuse;

/// Lines of the table, unless `-n` sets another number.
const LINES: usize = 20;

/// Largest memory of the selected entries, in bytes, and the number of surplus entries before they are dropped.
const MAX_WEIGHT: usize = 64 << 20;
const SLACK: usize = 1000;

/// Calendar in this system's time zone.
pub(super) const LOCAL: Calendar = Calendar(local_time);

/// Shows the history of locks.
pub fn history(options: &cli::History, settings: &Settings) -> Result<Exit> {
    let mut filter = RequestedNames::parse(options.names.iter().map(String::as_str))?;
    let mut met = BTreeSet::new();
    filter.names.retain(|name| met.insert(name.clone()));
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let names = filter.look_up(&mut client, &settings.locks, Names::All)?;
    if options.names_only {
        let names = names.iter().map(Name::as_str);
        print(&lines_of(names, settings.verbosity))?;
        return Ok(Exit::Success);
    }
    let mut history = HistoryCommand {
        asked: filter,
        options,
        settings,
        client,
        names,
    };
    if let Some(path) = &options.svg {
        history.draw(path)?;
    } else {
        let selection = history.read()?;
        if options.json {
            print_array(&selection.entries, |it| entry_object(it, selection.now_ms))?;
        } else {
            print(&history.table(&selection)?)?;
        }
    }
    // With a single name, this is the first request whose answer shows the server's role.
    settings.warn_of_replica(&history.client);
    Ok(Exit::Success)
}

/// A call of `history`: the names, the options and the connection.
struct HistoryCommand<'a> {
    asked: RequestedNames,
    options: &'a cli::History,
    settings: &'a Settings,
    client: Client,
    names: Vec<Name>,
}

/// Selected entries, and facts about the others.
#[derive(Default)]
struct SelectedEntries {
    /// Entries that began last; `settle` sorts them and drops the surplus.
    entries: Vec<HistoryEntry>,
    /// Memory of the entries, in bytes.
    weight: usize,
    /// Number of dropped entries, which began before these.
    before: usize,
    /// Time of the server's clock, in milliseconds since 1970.
    now_ms: u64,
    /// End of the last hold that is too old.
    last_before_ms: Option<u64>,
    /// Number of runs that ended without the lock.
    skips: usize,
    /// Given names and patterns that have a history.
    met: HashSet<String>,
}

impl SelectedEntries {
    /// Adds the selected entries of a lock. Returns true if it has any.
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

    /// Sorts the entries and drops all except the last. Entries with the
    /// same start stay in the order of their names and fencing tokens.
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

impl HistoryCommand<'_> {
    /// Reads the selected entries. Refuses to read more than fit into the memory limit.
    fn read(&mut self) -> Result<SelectedEntries> {
        let is_table = !self.options.json && self.options.svg.is_none();
        let usual = if is_table { LINES } else { usize::MAX };
        let most = self.options.last.unwrap_or(usual);
        let mut selection = SelectedEntries::default();
        let add = |lock: LockHistory| {
            let name = lock.name.clone();
            if selection.add(lock, self.options, most) {
                let meant = self.asked.that_mean(name.as_str());
                selection.met.extend(meant.map(str::to_owned));
            }
            if selection.weight > MAX_WEIGHT {
                let size = MAX_WEIGHT >> 20;
                let line = "name fewer locks, or give -n or --since";
                let line = format!("this history is larger than {size} MiB; {line}");
                return refuse(Exit::Usage, line);
            }
            Ok(true)
        };
        let locks = &self.settings.locks;
        locks.each_history(&mut self.client, &self.names, add)?;
        selection.settle(most);
        Ok(selection)
    }

    /// Returns the table, and notes about the omitted entries.
    fn table(&mut self, selection: &SelectedEntries) -> Result<String> {
        let mut text = String::new();
        if !selection.entries.is_empty() {
            let is_of_one = self.asked.names.len() == 1 && self.asked.patterns.is_empty();
            let entries = &selection.entries;
            text = listing::table(entries, selection.now_ms, LOCAL, width(), is_of_one);
        }
        let mut notes = Vec::new();
        if selection.before > 0 {
            let lines = counted(selection.before, "earlier line");
            notes.push(format!("{lines}; -n all shows all"));
        }
        if selection.skips > 0 && !self.options.skipped {
            let runs = counted(selection.skips, "run");
            let them = if selection.skips == 1 { "it" } else { "them" };
            let note = format!("{runs} ended without the lock; --skipped shows {them}");
            notes.push(note);
        }
        notes.extend(self.missing(selection)?);
        if !text.is_empty() && !notes.is_empty() {
            text.push('\n');
        }
        text.extend(notes.into_iter().map(|note| note + "\n"));
        Ok(text)
    }

    /// Returns a line for each name or pattern without a history, or without one in the selected time.
    fn missing(&mut self, selection: &SelectedEntries) -> Result<Vec<String>> {
        if selection.is_empty()
            && let (Some(since), Some(last)) = (self.options.since, selection.last_before_ms)
        {
            let (since, last) = (format_duration(since), LOCAL.moment(last));
            let line = format!("no hold within {since}; the last one ended at {last}");
            return Ok(vec![line]);
        }
        let days = cli::REMEMBERED.as_secs() / 86_400;
        if self.asked.is_all() && selection.is_empty() {
            let line = format!("no lock has a history (kept for {days} days)");
            return Ok(vec![line]);
        }
        let mut missing: Vec<&str> = self.asked.texts().collect();
        missing.retain(|text| !selection.met.contains(*text));
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let names = known_names(&mut self.client, &self.settings.locks)?;
        let at = report::at_server(&self.settings.locks);
        let line = |name: &str| {
            let meant = similar(name, &names).into_iter().next();
            let meant = meant.map_or(String::new(), |it| format!("; did you mean {}?", quote(it)));
            format!("no history of \"{name}\"{at} (kept for {days} days{meant})")
        };
        Ok(missing.into_iter().map(line).collect())
    }

    /// Writes the chart to a file, or to standard output.
    fn draw(&mut self, path: &Path) -> Result<()> {
        // The name may be that of a lock, and a file of this name would be replaced.
        let is_picture = path.extension().is_some_and(|end| end == "svg");
        if !(path == Path::new("-") || is_picture || path.starts_with("/dev")) {
            let path = path.display();
            let line = "the name of its FILE has to end in .svg, as in --svg";
            return refuse(Exit::Usage, format!("--svg {path}: {line} {path}.svg"));
        }
        let selection = self.read()?;
        if selection.entries.is_empty() {
            let why = self.missing(&selection)?.into_iter().next();
            let why = why.unwrap_or("no run has held the lock".into());
            return refuse(Exit::Usage, format!("nothing to draw: {why}"));
        }
        let picture = chart::svg(&selection.entries, selection.now_ms, LOCAL);
        print_to(path, &picture)?;
        Ok(())
    }
}

/// Returns the memory of an entry, in bytes.
fn weight_of(entry: &HistoryEntry) -> usize {
    size_of::<HistoryEntry>() + entry.who.weight()
}

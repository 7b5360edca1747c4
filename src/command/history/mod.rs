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
use self::chart::{Beside, Chart};
use self::listing::{Item, milliseconds};
pub(super) use self::recently::Past;
use super::asked::Asked;
use super::never_used::meant;
use super::usage::BadUsage;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::file;
use crate::pattern::natural_cmp;
use crate::protocol::{self, Client, HistoryEntry, LockHistory, Locks, Name, Skip, Waiter, Which};
use crate::report::{self, format_duration, lines_of, print, width};
use crate::sys::{CivilTime, local_time};

/// Lines of the table, unless more are asked for.
const LINES: usize = 20;

/// How many waiters of each lock are drawn: each takes a row.
const WAITERS: usize = 50;

/// How many locks are looked at together for their waiters.
const INSPECTED: usize = 1000;

/// How many names a line lists.
const NAMES: usize = 5;

/// Shows what is remembered of locks.
pub fn history(options: &cli::History, settings: &Settings) -> Result<Exit> {
    let mut asked = Asked::parse(options.names.iter().map(String::as_str))?;
    let mut met = BTreeSet::new();
    asked.names.retain(|name| met.insert(name.clone()));
    let query = Query {
        asked,
        options,
        locks: &settings.locks,
        calendar: LOCAL,
    };
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    if options.names_only {
        let names = query.names(&mut client)?;
        let names = names.iter().map(Name::as_str);
        print(&lines_of(names, settings.verbosity))?;
        return Ok(Exit::Success);
    }
    let names = query.names(&mut client)?;
    if let Some(path) = &options.svg {
        return query.draw(path, &names, &mut client);
    }
    if options.json {
        query.list_json(&names, &mut client)?;
    } else {
        print(&query.list(&names, &mut client)?)?;
    }
    // Of one lock nothing was asked before.
    settings.warn_of_replica(&client);
    Ok(Exit::Success)
}

/// The calendar of this system's zone.
pub(super) const LOCAL: Calendar = Calendar(local);

fn local(seconds: i64) -> CivilTime {
    local_time(seconds).unwrap_or_else(|| utc(seconds))
}

/// A line that is shown.
enum Row {
    Hold(HistoryEntry),
    Skip(Skip),
}

impl Row {
    fn item(&self) -> Item<'_> {
        match self {
            Self::Hold(entry) => Item::Hold(entry),
            Self::Skip(skip) => Item::Skip(skip),
        }
    }
}

/// The rows that are kept of those that were read: the last that began.
struct Rows {
    most: usize,
    kept: Vec<Row>,
    /// So many came before these.
    before: usize,
    /// What those that are kept take up, in bytes.
    weight: usize,
}

impl Rows {
    fn last(most: usize) -> Self {
        Self {
            most,
            kept: Vec::new(),
            before: 0,
            weight: 0,
        }
    }

    /// Those of the locks come in the order of the names. None is kept where there are too many.
    fn add(&mut self, row: Row) {
        if self.are_too_many() {
            return;
        }
        self.weight += row.item().weight();
        self.kept.push(row);
        if self.kept.len() > self.most.saturating_add(SLACK) {
            self.settle();
        }
    }

    fn add_all(&mut self, lock: LockHistory, with_skips: bool) {
        // Those of one lock are in the order of their fences, which stays where they began at once.
        let holds = lock.holds.into_iter().map(Row::Hold);
        let skips = lock.skips.into_iter().filter(|_| with_skips);
        for row in holds.chain(skips.map(Row::Skip)) {
            self.add(row);
        }
    }

    fn are_too_many(&self) -> bool {
        self.weight > MAX_WEIGHT
    }

    /// The error where there were too many to be kept.
    fn expect_all(&self) -> Result<()> {
        if self.are_too_many() {
            let most = MAX_WEIGHT >> 20;
            let why = format!("this history is larger than {most} MiB");
            return Err(BadUsage(format!("{why}; name fewer locks, or give -n or --since")).into());
        }
        Ok(())
    }

    /// Orders them, and drops all except the last. Rows of one moment stay in the order of the names and fences.
    fn settle(&mut self) {
        self.kept.sort_by_key(|row| row.item().started_ms());
        let surplus = self.kept.len().saturating_sub(self.most);
        self.before += surplus;
        let dropped = self.kept.drain(..surplus);
        self.weight -= dropped.map(|row| row.item().weight()).sum::<usize>();
    }

    /// In their order.
    fn items(&mut self) -> Vec<Item<'_>> {
        self.settle();
        self.kept.iter().map(Row::item).collect()
    }

    fn holds(&mut self) -> Vec<&HistoryEntry> {
        self.settle();
        let holds = self.kept.iter().filter_map(|row| match row {
            Row::Hold(entry) => Some(entry),
            Row::Skip(_) => None,
        });
        holds.collect()
    }
}

/// What the rows that are kept may take up, in bytes; and of how many more than are wanted the first are dropped.
const MAX_WEIGHT: usize = 64 << 20;
const SLACK: usize = 1000;

/// How many values of an array are written at once.
const PRINTED: usize = 1000;

/// A part of an array is printed when it takes up so many bytes.
const PART: usize = 24 << 20;

/// What was found beside the rows.
#[derive(Default)]
struct Found {
    /// The server's clock, in milliseconds since 1970.
    now_ms: u64,
    /// When the last hold ended of those that are too old.
    last_before_ms: Option<u64>,
    /// How many runs ended without the lock.
    skips: usize,
    /// The names and patterns of which there is something.
    met: HashSet<String>,
    is_empty: bool,
}

fn is_empty(lock: &LockHistory) -> bool {
    lock.holds.is_empty() && lock.skips.is_empty()
}

/// All that is shown of what was found, without colours.
/// What was asked.
struct Query<'a> {
    asked: Asked,
    options: &'a cli::History,
    locks: &'a Locks,
    calendar: Calendar,
}

impl Query<'_> {
    fn names(&self, client: &mut Client) -> Result<Vec<Name>, protocol::Error> {
        self.asked.look_up(client, self.locks, Which::All)
    }

    /// Whether one lock was asked for.
    fn is_of_one(&self) -> bool {
        self.asked.names.len() == 1 && self.asked.patterns.is_empty()
    }

    /// Reads what is remembered of these locks, as far as it was asked for. `take` gets that of one after the other,
    /// and `after` each few what there is so far: whether to go on.
    fn read<T>(
        &self,
        names: &[Name],
        client: &mut Client,
        into: &mut T,
        take: impl Fn(&mut T, LockHistory),
        after: impl Fn(&mut T) -> Result<bool>,
    ) -> Result<Found> {
        let since = self.options.since.map(milliseconds);
        let mut state = (
            into,
            Found {
                is_empty: true,
                ..Found::default()
            },
        );
        let each = |(into, found): &mut (&mut T, Found), mut lock: LockHistory| {
            let first = since.map_or(0, |since| lock.now_ms.saturating_sub(since));
            lock.holds.retain(|entry| {
                let recent = entry.ended_ms.is_none_or(|ended| ended >= first);
                if !recent {
                    found.last_before_ms = found.last_before_ms.max(entry.ended_ms);
                }
                recent
            });
            lock.skips.retain(|skip| skip.ended_ms >= first);
            found.now_ms = found.now_ms.max(lock.now_ms);
            found.skips += lock.skips.len();
            if !is_empty(&lock) {
                found.is_empty = false;
                let text = lock.name.as_str();
                found
                    .met
                    .extend(self.asked.that_mean(text).map(str::to_owned));
            }
            take(into, lock);
        };
        let after = |(into, _): &mut (&mut T, Found)| after(into);
        self.locks
            .each_history(client, names, &mut state, each, after)?;
        Ok(state.1)
    }

    /// The same, of which rows are kept.
    fn read_rows(
        &self,
        names: &[Name],
        client: &mut Client,
        rows: &mut Rows,
        take: impl Fn(&mut Rows, LockHistory),
    ) -> Result<Found> {
        let after = |rows: &mut Rows| rows.expect_all().map(|()| true);
        self.read(names, client, rows, take, after)
    }

    /// The table, and what it leaves out.
    fn list(&self, names: &[Name], client: &mut Client) -> Result<String> {
        let options = self.options;
        let mut rows = Rows::last(options.last.unwrap_or(LINES));
        let found = self.read_rows(names, client, &mut rows, |rows, lock| {
            rows.add_all(lock, options.skipped);
        })?;
        let shown = rows.items();
        let mut text = String::new();
        if !shown.is_empty() {
            let is_of_one = self.is_of_one();
            text = listing::table(&shown, found.now_ms, self.calendar, width(), is_of_one);
        }
        let before = rows.before;
        let mut notes = Vec::new();
        if before > 0 {
            let plural = if before == 1 { "" } else { "s" };
            notes.push(format!("{before} earlier line{plural}; -n all shows all"));
        }
        if found.skips > 0 && !options.skipped {
            let (runs, them) = match found.skips {
                1 => ("1 run".into(), "it"),
                runs => (format!("{runs} runs"), "them"),
            };
            notes.push(format!(
                "{runs} ended without the lock; --skipped shows {them}"
            ));
        }
        notes.extend(self.missing(&found, client)?);
        Ok(with_notes(text, &notes))
    }

    /// The array, printed as it is read: in the order in which the runs began, unless there are too many to keep
    /// them all.
    fn list_json(&self, names: &[Name], client: &mut Client) -> Result<()> {
        struct Array {
            rows: Rows,
            is_begun: bool,
            /// Whether there is still a reader.
            is_read: Result<bool>,
        }
        impl Array {
            fn print(&mut self, now_ms: u64) -> Result<bool> {
                self.rows.expect_all()?;
                let rest = Rows::last(self.rows.most);
                let mut rows = std::mem::replace(&mut self.rows, rest);
                for items in rows.items().chunks(PRINTED) {
                    if !print(&listing::json_part(items, now_ms, !self.is_begun)?)? {
                        return Ok(false);
                    }
                    self.is_begun = true;
                }
                Ok(true)
            }
        }
        let options = self.options;
        let mut array = Array {
            rows: Rows::last(options.last.unwrap_or(usize::MAX)),
            is_begun: false,
            is_read: Ok(true),
        };
        let take = |array: &mut Array, lock: LockHistory| {
            let now_ms = lock.now_ms;
            if matches!(array.is_read, Ok(true)) {
                array.rows.add_all(lock, options.skipped);
                if array.rows.weight > PART && options.last.is_none() {
                    array.is_read = array.print(now_ms);
                }
            }
        };
        let after = |array: &mut Array| Ok(matches!(array.is_read, Ok(true)));
        let found = self.read(names, client, &mut array, take, after)?;
        let is_read = std::mem::replace(&mut array.is_read, Ok(true))?;
        if is_read && array.print(found.now_ms)? {
            let begin = if array.is_begun { "" } else { "[" };
            print(&format!("{begin}{}", listing::JSON_END))?;
        }
        Ok(())
    }

    /// A line for each name or pattern that has no history, or none in the time that was asked for.
    fn missing(&self, found: &Found, client: &mut Client) -> Result<Vec<String>> {
        if let (Some(since), Some(last)) = (self.options.since, found.last_before_ms)
            && found.is_empty
        {
            return Ok(vec![format!(
                "no hold within {}; the last one ended at {}",
                format_duration(since),
                self.calendar.moment(last)
            )]);
        }
        let texts = self.asked.names.iter().map(Name::as_str);
        let texts = texts.chain(self.asked.patterns.iter().map(String::as_str));
        let missing: Vec<&str> = texts.filter(|text| !found.met.contains(*text)).collect();
        let all = self.asked.is_all() && found.is_empty;
        if missing.is_empty() && !all {
            return Ok(Vec::new());
        }
        let days = cli::REMEMBERED.as_secs() / 86_400;
        if all {
            return Ok(vec![format!(
                "no lock has a history (kept for {days} days)"
            )]);
        }
        let others = self.others(&missing, client)?;
        Ok(missing
            .into_iter()
            .map(|name| format!("no history of \"{name}\" (kept for {days} days; {others})"))
            .collect())
    }

    /// Which names have a history, in words; in place of one that has none, the one that was probably meant.
    fn others(&self, missing: &[&str], client: &mut Client) -> Result<String> {
        let mut names = self.locks.names(client, Which::All)?;
        if let [name] = missing
            && let Some(meant) = meant(name, names.iter().map(Name::as_str))
        {
            return Ok(format!("did you mean {}?", report::quote(meant)));
        }
        names.sort_by(|a, b| natural_cmp(a.as_str(), b.as_str()));
        // Some may only be in use.
        names.truncate(4 * NAMES);
        let mut all: Vec<Name> = Vec::new();
        let each = |all: &mut Vec<Name>, lock: LockHistory| {
            all.extend((!is_empty(&lock)).then_some(lock.name));
        };
        let enough = |all: &mut Vec<Name>| Ok::<_, protocol::Error>(all.len() <= NAMES);
        self.locks
            .each_history(client, &names, &mut all, each, enough)?;
        if all.is_empty() {
            return Ok("no lock has a history".into());
        }
        let more = if all.len() > NAMES { ", …" } else { "" };
        let first: Vec<&str> = all.iter().take(NAMES).map(Name::as_str).collect();
        let first = first.join(", ");
        Ok(format!("names with a history: {first}{more}"))
    }

    /// Writes the chart to a file, or to standard output.
    fn draw(&self, path: &Path, names: &[Name], client: &mut Client) -> Result<Exit> {
        let mut rows = Rows::last(self.options.last.unwrap_or(usize::MAX));
        let found = self.read_rows(names, client, &mut rows, |rows, lock| {
            rows.add_all(lock, false);
        })?;
        let mut inspected = Vec::new();
        for few in names.chunks(INSPECTED) {
            inspected.extend(self.locks.inspect(client, few)?);
            inspected.retain(|lock| !(lock.waiters.is_empty() && lock.record.freezes.is_empty()));
        }
        let mut waiters: Vec<(&Name, &Waiter)> = Vec::new();
        let mut not_drawn = 0;
        for lock in &inspected {
            let waiting = lock.waiters.iter().map(|waiting| &waiting.waiter);
            let drawn = waiting.take(WAITERS);
            waiters.extend(drawn.map(|waiter| (&lock.name, waiter)));
            not_drawn += lock.waiters.len().saturating_sub(WAITERS);
        }
        let holds = rows.holds();
        if holds.is_empty() && waiters.is_empty() {
            let why = self.missing(&found, client)?;
            let why = why.into_iter().next();
            let why = why.unwrap_or("no run has held the lock".into());
            return Err(BadUsage(format!("nothing to draw: {why}")).into());
        }
        let freezes = inspected.iter();
        let freezes: Vec<_> = freezes
            .map(|lock| (&lock.name, &lock.record.freezes[..]))
            .collect();
        let beside = Beside {
            waiters: &waiters,
            not_drawn,
            freezes: &freezes,
        };
        let chart = Chart::of(&holds, beside, found.now_ms, self.calendar);
        if path == Path::new("-") {
            print(&chart.svg())?;
        } else {
            file::replace(path, &chart.svg())
                .with_context(|| format!("can't write {}", path.display()))?;
        }
        Ok(Exit::Success)
    }
}

/// A text, and notes on it below.
fn with_notes(mut text: String, notes: &[String]) -> String {
    if !text.is_empty() && !notes.is_empty() {
        text.push('\n');
    }
    for note in notes {
        text += note;
        text.push('\n');
    }
    text
}

//! `redlock status`: who holds which lock and who waits, for users and (as JSON) for programs.
//!
//! `table` and `detail` draw for users, `json` and `prometheus` write for programs.

mod detail;
#[cfg(test)]
#[path = "../../../tests/golden/mod.rs"]
mod golden;
mod json;
mod prometheus;
mod table;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use self::json::lock_object;
use super::history::{LOCAL, RecentEvents};
use super::json::print_array;
use super::never_used::{is_unused, known_names, mistaken};
use super::requested::RequestedNames;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::{exact, milliseconds};
use crate::protocol::{Client, Error, Inspected, Name, Names};
use crate::report::{
    self, Style, escaped, format_duration, is_safe, lines_of, painted, print, print_to,
};
use crate::usage::refuse;

/// Shows locks, once or repeatedly.
pub fn status(options: &cli::Status, settings: &Settings) -> Result<Exit> {
    let filter = RequestedNames::parse(options.names.iter().map(String::as_str))?;
    let mut view = StatusCommand {
        asked: filter,
        options,
        settings,
        client: settings.locks.client(),
    };
    match (&options.prometheus, options.no_success_for, options.watch) {
        (Some(file), _, _) => view.export(file),
        (_, Some(most), _) => view.check_success(most),
        (_, _, Some(interval)) => view.repeat(interval),
        (None, None, None) => view.show_once(),
    }
}

/// A call of `status`: the names, the options and the connection.
struct StatusCommand<'a> {
    asked: RequestedNames,
    options: &'a cli::Status,
    settings: &'a Settings,
    client: Client,
}

/// Locks. If they are shown in detail, also their recent events, and all used names if a lock was never used.
#[derive(Default)]
struct ShownLocks {
    locks: Vec<Inspected>,
    pasts: Vec<RecentEvents>,
    known: Vec<Name>,
}

/// Escape sequence that clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

impl StatusCommand<'_> {
    fn show_once(&mut self) -> Result<Exit> {
        let mut shown = self.read()?;
        self.settings.warn_of_replica(&self.client);
        if shown.pasts.is_empty() {
            self.hint(&shown.locks)?;
        }
        let mut exit = Exit::Success;
        if let Some(age) = self.options.older_than {
            let oldest = |lock: &Inspected| lock.held_for().max(lock.waited_for());
            shown.locks.retain(|lock| oldest(lock) > Some(age));
            if !shown.locks.is_empty() {
                exit = Exit::Older;
            }
        }
        self.show(&shown)?;
        Ok(exit)
    }

    /// Prints locks repeatedly until a signal ends this process. Clears a terminal each time.
    fn repeat(&mut self, interval: Duration) -> Result<Exit> {
        // Without the =, the time would be a lock's name.
        let mut names = self.options.names.iter();
        if let Some(name) = names.find(|name| cli::duration(name).is_ok()) {
            return refuse(Exit::Usage, format!("put --watch={name}"));
        }
        let clears = io::stdout().is_terminal() && !report::is_dumb();
        self.client.open()?;
        let mut is_first = true;
        loop {
            let shown = self.read();
            if clears {
                print(CLEAR)?;
            }
            if std::mem::take(&mut is_first) {
                self.settings.warn_of_replica(&self.client);
            }
            match shown {
                Ok(shown) if self.show(&shown)? => {}
                Ok(_) => return Ok(Exit::Success),
                Err(error) => report::error(error),
            }
            thread::sleep(interval);
        }
    }

    /// Prints the locks that have had no success for this long.
    fn check_success(&mut self, most: Duration) -> Result<Exit> {
        if let Some(pattern) = self.asked.patterns.first() {
            let line =
                format!("--no-success-for needs whole names, and \"{pattern}\" is a pattern");
            return refuse(Exit::Usage, line);
        }
        let locks = self.look_at(Names::InUse)?;
        self.settings.warn_of_replica(&self.client);
        let mut exit = Exit::Success;
        for lock in &locks {
            if let Some(line) = late_line(lock, most) {
                print(&line)?;
                exit = Exit::Late;
            }
        }
        self.hint(&locks)?;
        Ok(exit)
    }

    /// Writes metrics of the locks in use and of those with a history; or the metric that Redis doesn't answer.
    fn export(&mut self, file: &Path) -> Result<Exit> {
        let read = self.look_at(Names::All);
        let text = match &read {
            Ok(locks) => {
                let mut locks: Vec<&Inspected> = locks.iter().collect();
                // A name in a file can't affect a terminal or log, and must be exact.
                if file == Path::new("-") {
                    locks.retain(|lock| self.is_safe(lock));
                }
                let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
                prometheus::text(&locks, milliseconds(since_1970.unwrap_or_default()))
            }
            Err(_) => prometheus::up(false),
        };
        print_to(file, &text)?;
        let locks = read?;
        self.settings.warn_of_replica(&self.client);
        self.hint(&locks)?;
        Ok(Exit::Success)
    }

    /// Returns true if a lock's name is safe in a log. Reports any other name.
    fn is_safe(&self, lock: &Inspected) -> bool {
        let is_safe = is_safe(lock.name.as_str());
        if !is_safe {
            self.settings.verbosity.info(format_args!(
                "name \"{}\" is left out, because it isn't safe in a log; a FILE has it",
                lock.name
            ));
        }
        is_safe
    }

    /// Returns true if the user gave only names: then each lock is shown in detail.
    fn is_detailed(&self) -> bool {
        !self.asked.is_all() && self.asked.patterns.is_empty()
    }

    /// Inspects the selected locks.
    fn look_at(&mut self, which: Names) -> Result<Vec<Inspected>, Error> {
        let locks = &self.settings.locks;
        if !self.client.is_open() {
            self.client.ask_role()?;
        }
        if self.is_detailed() {
            return locks.inspect(&mut self.client, &self.asked.names);
        }
        let names = self.asked.look_up(&mut self.client, locks, which)?;
        locks.inspect(&mut self.client, &names)
    }

    /// Reads the locks for users, and the recent events of those that are shown in detail.
    fn read(&mut self) -> Result<ShownLocks, Error> {
        let mut shown = ShownLocks {
            locks: self.look_at(Names::InUse)?,
            ..ShownLocks::default()
        };
        let (asked, locks) = (&self.asked, &self.settings.locks);
        if !self.is_detailed() {
            // The index may still contain locks that have become free.
            let is_shown = |lock: &Inspected| asked.names.contains(&lock.name) || !lock.is_idle();
            shown.locks.retain(is_shown);
        } else if !self.options.json && !self.options.names_only {
            let read = locks.each_history(&mut self.client, &asked.names, |history| {
                shown.pasts.push(RecentEvents::of(&history));
                Ok::<_, Error>(true)
            });
            // A user who may not read the history can still see the locks.
            if let Err(error) = read
                && error.kind.may_pass()
            {
                return Err(error);
            }
        }
        if !shown.pasts.is_empty() && shown.locks.iter().any(is_unused) {
            shown.known = known_names(&mut self.client, locks)?;
        }
        Ok(shown)
    }

    /// Reports the name that the user probably meant, for output without a place for it.
    fn hint(&mut self, locks: &[Inspected]) -> Result<()> {
        let is_named = |lock: &&Inspected| self.asked.names.contains(&lock.name);
        let named = locks.iter().filter(is_named);
        let hint = mistaken(named, &mut self.client, &self.settings.locks)?;
        hint.into_iter().for_each(report::error);
        Ok(())
    }

    /// Prints locks once. Returns false if the reader has gone away.
    fn show(&self, shown: &ShownLocks) -> Result<bool> {
        let locks = &shown.locks;
        if self.options.json {
            return Ok(print_array(locks, lock_object)?);
        }
        let text = match self.options.older_than {
            _ if self.options.names_only => {
                let names = locks.iter().map(|lock| lock.name.as_str());
                lines_of(names, self.settings.verbosity)
            }
            Some(age) if locks.is_empty() && io::stdout().is_terminal() => {
                format!("no holder or waiter is older than {}\n", exact(age))
            }
            // Prints nothing, because cron mails all output.
            Some(_) if locks.is_empty() => String::new(),
            _ => painted(&self.draw(shown), report::has_colors()),
        };
        Ok(print(&text)?)
    }

    /// Draws locks for users.
    fn draw(&self, shown: &ShownLocks) -> Vec<String> {
        let (locks, width) = (&shown.locks, report::width());
        let at = report::at_server(&self.settings.locks);
        let place = report::this_host_only(&self.settings.locks);
        let place = place.map(|place| Style::Bold.paint(place));
        let mut lines: Vec<String> = place.into_iter().collect();
        if self.is_detailed() {
            let names = (shown.known.as_slice(), at.as_str());
            lines.extend(detail::lines(locks, &shown.pasts, names, LOCAL, width));
        } else if !locks.is_empty() {
            lines.extend(table::lines(locks, width));
        } else {
            lines.push(self.none(&at));
        }
        lines
    }

    /// Returns the message that no selected lock is in use.
    fn none(&self, at: &str) -> String {
        let patterns = self.asked.patterns.iter();
        let patterns: Vec<String> = patterns.map(|it| format!("\"{}\"", escaped(it))).collect();
        match patterns.join(" or ").as_str() {
            "" => format!("no lock is held{at}"),
            patterns => format!("no lock in use{at} matches {patterns}"),
        }
    }
}

/// Returns a line about a lock whose last success is too long ago: `nightly: no success for 27h, since ...`.
fn late_line(lock: &Inspected, most: Duration) -> Option<String> {
    let name = escaped(lock.name.as_str());
    let Some(at) = lock.record.succeeded_ms else {
        return Some(format!("{name}: no success is known\n"));
    };
    let (ago, since) = (lock.since(at), LOCAL.moment(at));
    let shown = format_duration(ago);
    (ago > most).then(|| format!("{name}: no success for {shown}, since {since}\n"))
}

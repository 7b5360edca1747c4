//! `redlock status`: who holds which lock and who waits, for people and (as JSON) for programs.
//!
//! `table` and `detail` draw for people, `json` and `prometheus` for programs.

mod age;
mod detail;
#[cfg(test)]
#[path = "../../../tests/golden/mod.rs"]
mod golden;
mod json;
mod prometheus;
mod table;

use std::io::{self, ErrorKind, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};

use self::json::LockJson;
use self::prometheus::Sample;
use super::asked::Asked;
use super::history::{LOCAL, Past};
use super::never_used::mistaken;
use super::usage::BadUsage;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::exact;
use crate::file;
use crate::protocol::{Client, Error, Inspected, LockHistory, Locks, Which};
use crate::reason::reason;
use crate::report::{
    self, Line, Style, escaped, escaped_json, format_duration, is_safe, lines_of, print,
};

/// Shows locks, once or again and again.
pub fn status(options: &cli::Status, settings: &Settings) -> Result<Exit> {
    let asked = Asked::parse(options.names.iter().map(String::as_str))?;
    if let Some(file) = &options.prometheus {
        return export(&asked, file, options, settings);
    }
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    if let Some(most) = options.no_success_for {
        return check_success(client, &asked, most, options, settings);
    }
    if let Some(interval) = options.watch {
        return repeat(client, &asked, interval, options, settings);
    }
    let pasts = read_pasts(&asked, &mut client, options, settings)?;
    let mut found = find(&asked, &mut client, &settings.locks)?;
    settings.warn_of_replica(&client);
    settings.warn_of_lone_primary(&client);
    let mistaken = find_mistaken(&asked, &found, &mut client, options, settings)?;
    let mut exit = Exit::Success;
    if let Some(age) = options.older_than {
        found.retain(|lock| age::is_older(lock, age));
        if !found.is_empty() {
            exit = Exit::Older;
        }
    }
    show(found, &pasts, &asked, options, settings)?;
    Ok(mistaken.map_or(exit, say_mistaken))
}

/// Clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Prints locks again and again until a signal ends that. Clears a terminal each time.
fn repeat(
    mut client: Client,
    asked: &Asked,
    interval: Duration,
    options: &cli::Status,
    settings: &Settings,
) -> Result<Exit> {
    // Without the =, the time would be the name of a lock.
    if let Some(name) = options
        .names
        .iter()
        .find(|name| cli::duration(name).is_ok())
    {
        return Err(BadUsage(format!("put --watch={name}")).into());
    }
    let clears = io::stdout().is_terminal() && !report::is_dumb();
    let mut is_first = true;
    loop {
        let pasts = read_pasts(asked, &mut client, options, settings);
        let locks = pasts.and_then(|pasts| {
            let locks = find(asked, &mut client, &settings.locks)?;
            Ok((locks, pasts))
        });
        if clears {
            print(CLEAR)?;
        }
        if std::mem::take(&mut is_first) {
            settings.warn_of_replica(&client);
            settings.warn_of_lone_primary(&client);
        }
        match locks {
            Ok((locks, pasts)) => {
                if !show(locks, &pasts, asked, options, settings)? {
                    return Ok(Exit::Success);
                }
            }
            Err(error) => report::error(error),
        }
        thread::sleep(interval);
    }
}

/// Prints the locks that have had no success for this long.
fn check_success(
    mut client: Client,
    asked: &Asked,
    most: Duration,
    options: &cli::Status,
    settings: &Settings,
) -> Result<Exit> {
    if let Some(pattern) = asked.patterns.first() {
        let line = format!("--no-success-for needs whole names, and \"{pattern}\" is a pattern");
        return Err(BadUsage(line).into());
    }
    let locks = settings.locks.inspect(&mut client, &asked.names)?;
    settings.warn_of_replica(&client);
    settings.warn_of_lone_primary(&client);
    let lines: String = locks
        .iter()
        .filter_map(|lock| late_line(lock, most))
        .collect();
    print(&lines)?;
    let mistaken = find_mistaken(asked, &locks, &mut client, options, settings)?;
    let exit = if lines.is_empty() {
        Exit::Success
    } else {
        Exit::Late
    };
    Ok(mistaken.map_or(exit, say_mistaken))
}

/// Returns a line about a lock whose last success is too long ago: `nightly: no success for 27h, since ...`.
fn late_line(lock: &Inspected, most: Duration) -> Option<String> {
    let name = escaped(lock.name.as_str());
    let ago = age::since_success(lock);
    let since = lock.record.succeeded_ms.map(|at| LOCAL.moment(at));
    match ago.zip(since) {
        Some((ago, _)) if ago <= most => None,
        Some((ago, since)) => Some(format!(
            "{name}: no success for {}, since {since}\n",
            format_duration(ago)
        )),
        None => Some(format!("{name}: no success is known\n")),
    }
}

/// What is wrong with the names that were typed: the message.
fn find_mistaken(
    asked: &Asked,
    found: &[Inspected],
    client: &mut Client,
    options: &cli::Status,
    settings: &Settings,
) -> Result<Option<String>> {
    if options.new {
        return Ok(None);
    }
    let named = found.iter().filter(|lock| asked.names.contains(&lock.name));
    mistaken(named, client, &settings.locks)
}

fn say_mistaken(line: String) -> Exit {
    report::error(line);
    Exit::NeverUsed
}

/// Writes metrics: of the locks in use, and of those that have a history. Where Redis doesn't answer they say so.
fn export(asked: &Asked, file: &Path, options: &cli::Status, settings: &Settings) -> Result<Exit> {
    let read = || -> Result<_, Error> {
        let mut client = settings.locks.open()?;
        client.ask_role()?;
        let names = asked.look_up(&mut client, &settings.locks, Which::All)?;
        let found = settings.locks.inspect(&mut client, &names)?;
        Ok((client, found))
    };
    let read = read();
    let is_printed = file == Path::new("-");
    let text = match &read {
        Ok((_, found)) => {
            // In a file a name drives nothing, and has to be as it is.
            let (shown, unsafe_ones): (Vec<&Inspected>, Vec<_>) = found
                .iter()
                .partition(|lock| !is_printed || is_safe(lock.name.as_str()));
            for lock in unsafe_ones {
                settings.verbosity.info(format_args!(
                    "name \"{}\" is left out, because it isn't safe in a log; a FILE has it",
                    lock.name
                ));
            }
            let samples: Vec<Sample> = shown.into_iter().map(Sample::new).collect();
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
            let ms = since_1970.map_or(0, |time| time.as_millis());
            prometheus::text(&samples, u64::try_from(ms).unwrap_or(u64::MAX))
        }
        Err(_) => prometheus::down(),
    };
    if is_printed {
        print(&text)?;
    } else {
        file::replace(file, &text).map_err(|error| unwritten(file, &error))?;
    }
    let (mut client, found) = read?;
    settings.warn_of_replica(&client);
    settings.warn_of_lone_primary(&client);
    let mistaken = find_mistaken(asked, &found, &mut client, options, settings)?;
    Ok(mistaken.map_or(Exit::Success, say_mistaken))
}

/// Why a file can't be written.
fn unwritten(file: &Path, error: &io::Error) -> anyhow::Error {
    let path = file.display();
    match error.kind() {
        ErrorKind::NotFound => anyhow!("can't write {path}: there is no such directory"),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => anyhow!(
            "can't write {path}: {}; its directory has to be writable, as a new file replaces it",
            reason(error)
        ),
        _ => anyhow!("can't write {path}: {}", reason(error)),
    }
}

/// Whether the locks are shown in detail: where only names were given.
fn is_detailed(asked: &Asked) -> bool {
    !asked.names.is_empty() && asked.patterns.is_empty()
}

/// Looks at the locks that were asked for.
fn find(asked: &Asked, client: &mut Client, locks: &Locks) -> Result<Vec<Inspected>, Error> {
    if is_detailed(asked) {
        return locks.inspect_with_usual(client, &asked.names);
    }
    let names = asked.look_up(client, locks, Which::InUse)?;
    let mut found = locks.inspect_with_usual(client, &names)?;
    // The index also has names of locks that have ended meanwhile.
    found.retain(|lock| asked.names.contains(&lock.name) || !lock.is_idle());
    Ok(found)
}

/// Reads what happened to the locks that people see in detail.
fn read_pasts(
    asked: &Asked,
    client: &mut Client,
    options: &cli::Status,
    settings: &Settings,
) -> Result<Vec<Past>, Error> {
    let mut pasts = Vec::new();
    if !is_detailed(asked) || options.json || options.names_only {
        return Ok(pasts);
    }
    let each = |pasts: &mut Vec<Past>, history: LockHistory| pasts.push(Past::of(&history));
    let all = settings
        .locks
        .each_history(client, &asked.names, &mut pasts, each, |_| {
            Ok::<_, Error>(true)
        });
    match all {
        // A user who may not read the history still sees the locks.
        Err(error) if error.kind.may_pass() => Err(error),
        _ => Ok(pasts),
    }
}

/// Draws locks for people. `width`: that of the terminal, if there is one.
fn drawing(
    asked: &Asked,
    found: &[Inspected],
    pasts: &[Past],
    width: Option<usize>,
    locks: &Locks,
) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(place) = report::this_host_only(locks) {
        lines.push(Line::of(Style::Bold, place));
    }
    if is_detailed(asked) {
        lines.extend(detail::lines(found, pasts, LOCAL, width));
    } else if !found.is_empty() {
        lines.extend(table::lines(found, width));
    } else {
        lines.push(Line::of(Style::Plain, none_of(asked, locks)));
    }
    lines
}

/// Says that none of the locks is in use that were asked for.
fn none_of(asked: &Asked, locks: &Locks) -> String {
    let patterns = asked.patterns.iter();
    let patterns: Vec<String> = patterns.map(|it| format!("\"{}\"", escaped(it))).collect();
    match patterns.join(" or ").as_str() {
        "" => match locks.remote_address() {
            Some(address) => format!("no lock is held at {}", escaped(&address)),
            None => "no lock is held".into(),
        },
        patterns => format!("no lock in use matches {patterns}"),
    }
}

/// Paints lines, in parts: together they may be long.
fn texts(lines: &[Line], colors: bool) -> impl Iterator<Item = String> {
    lines.chunks(100).map(move |lines| {
        lines.iter().fold(String::new(), |text, line| {
            text + &line.painted(colors) + "\n"
        })
    })
}

/// Prints them once; false if the reader has gone away.
fn show(
    found: Vec<Inspected>,
    pasts: &[Past],
    asked: &Asked,
    options: &cli::Status,
    settings: &Settings,
) -> Result<bool> {
    if options.names_only {
        let names = found.iter().map(|lock| lock.name.as_str());
        return Ok(print(&lines_of(names, settings.verbosity))?);
    }
    if options.json {
        let entries: Vec<LockJson> = found.iter().map(LockJson::new).collect();
        let json = serde_json::to_string(&entries)?;
        // Many locks take much memory, also as a text.
        drop(entries);
        drop(found);
        return Ok(print(&(escaped_json(&json) + "\n"))?);
    }
    if let Some(age) = options.older_than
        && found.is_empty()
    {
        // cron mails what is printed.
        if io::stdout().is_terminal() {
            let line = format!("no holder or waiter is older than {}\n", exact(age));
            return Ok(print(&line)?);
        }
        return Ok(true);
    }
    let lines = drawing(asked, &found, pasts, report::width(), &settings.locks);
    drop(found);
    for text in texts(&lines, report::has_colors()) {
        if !print(&text)? {
            return Ok(false);
        }
    }
    Ok(true)
}

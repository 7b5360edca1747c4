//! `redlock status`: who holds which lock and who waits, for people and (as JSON) for programs.
//!
//! `table` and `detail` draw for people, `json` and `prometheus` for programs; `watch` keeps the picture on a
//! terminal, whose `screen` comes back; the `questioner` asks meanwhile.

mod age;
mod detail;
mod json;
mod picture;
mod prometheus;
mod questioner;
mod screen;
mod table;
mod watch;

use std::io::{self, ErrorKind, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};

use self::json::LockJson;
use self::picture::{Entry, Kind, Picture};
use self::prometheus::Sample;
use self::questioner::{Answer, Questioner};
use super::asked::Asked;
use super::never_used::mistaken;
use super::usage::BadUsage;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::exact;
use crate::file;
use crate::protocol::{Client, Error, Inspected, Locks, Which};
use crate::reason::reason;
use crate::report::{self, Line, Style, escaped, escaped_json, is_safe, lines_of, print};
use crate::signal;

/// Shows locks, once or again and again.
pub fn status(options: &cli::Status, settings: &Settings) -> Result<Exit> {
    let (watch, name_after_it) = interval(options)?;
    let texts = options
        .names
        .iter()
        .map(String::as_str)
        .chain(name_after_it);
    let asked = Asked::parse(texts)?;
    if let Some(file) = &options.prometheus {
        return export(&asked, file, options, settings);
    }
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let Some(interval) = watch else {
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
        show(found, &asked, options, settings)?;
        return Ok(mistaken.map_or(exit, say_mistaken));
    };
    let on_screen = io::stdout().is_terminal() && !report::is_dumb();
    if on_screen && !options.json && !options.names_only {
        return watch::watch(client, asked, interval, settings);
    }
    repeat(client, asked, interval, options, settings)
}

/// Prints locks again and again, until an interrupt ends that.
fn repeat(
    mut client: Client,
    asked: Asked,
    interval: Duration,
    options: &cli::Status,
    settings: &Settings,
) -> Result<Exit> {
    enum Event {
        Interrupted,
        Answer(Answer),
    }
    let asked = Arc::new(asked);
    let (events, received) = mpsc::channel();
    let interrupt = events.clone();
    signal::on_interrupt(move || {
        let _ = interrupt.send(Event::Interrupted);
    })
    .context("can't watch for Ctrl-C")?;
    let locks = settings.locks.clone();
    let questions = Arc::clone(&asked);
    let questioner =
        Questioner::start(client.hand_over(), questions, locks, false, move |answer| {
            events.send(Event::Answer(answer)).is_ok()
        })
        .context("can't start a thread")?;
    let mut first = true;
    loop {
        questioner.ask();
        let Event::Answer(answer) = received.recv()? else {
            return Ok(Exit::Success);
        };
        let found = answer?;
        if std::mem::take(&mut first) {
            settings.warn_of_replica(&client);
            settings.warn_of_lone_primary(&client);
        }
        let read = show(found, &asked, options, settings)?;
        if !read || received.recv_timeout(interval).err() != Some(RecvTimeoutError::Timeout) {
            return Ok(Exit::Success);
        }
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

/// How people see them. `width`: that of the terminal, if there is one.
fn shown(asked: &Asked, found: &[Inspected], width: Option<usize>, locks: &Locks) -> Picture {
    let mut picture = drawing(asked, found, width, locks);
    if let Some(place) = report::this_host_only(locks) {
        let lines = vec![Line::of(Style::Bold, place)];
        let kind = Kind::Heading;
        picture.entries.insert(0, Entry { lines, kind });
    }
    picture
}

fn drawing(asked: &Asked, found: &[Inspected], width: Option<usize>, locks: &Locks) -> Picture {
    if is_detailed(asked) {
        return detail::picture(found, width);
    }
    if !found.is_empty() {
        return table::picture(found, width);
    }
    let patterns = asked.patterns.iter();
    let patterns: Vec<String> = patterns.map(|it| format!("\"{}\"", escaped(it))).collect();
    Picture::of(&match patterns.join(" or ").as_str() {
        "" => match locks.remote_address() {
            Some(address) => format!("no lock is held at {}", escaped(&address)),
            None => "no lock is held".into(),
        },
        patterns => format!("no lock in use matches {patterns}"),
    })
}

/// All that is shown of some locks, without colours.
#[cfg(any(test, fuzzing))]
pub fn drawn(found: &[Inspected], width: Option<usize>) -> Vec<String> {
    let entries: Vec<LockJson> = found.iter().map(LockJson::new).collect();
    let json = serde_json::to_string(&entries).expect("it can be written");
    let mut all = vec![escaped_json(&json).into_owned()];
    for picture in [table::picture(found, width), detail::picture(found, width)] {
        all.extend(picture.texts(false));
    }
    all
}

/// Prints them once; false if the reader has gone away.
fn show(
    found: Vec<Inspected>,
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
    let picture = shown(asked, &found, report::width(), &settings.locks);
    drop(found);
    for text in picture.texts(report::has_colors()) {
        if !print(&text)? {
            return Ok(false);
        }
    }
    Ok(true)
}

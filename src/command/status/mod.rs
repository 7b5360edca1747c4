//! `redlock status`: who holds which lock and who waits, for people and (as JSON) for programs.
//!
//! `table` and `detail` draw for people, `json` for programs; `watch` keeps the picture on a
//! terminal, whose `screen` comes back; the `questioner` asks meanwhile.

mod detail;
mod json;
mod pattern;
mod picture;
mod questioner;
mod screen;
mod table;
mod watch;

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result};

use self::json::LockJson;
use self::pattern::Pattern;
use self::picture::Picture;
use self::questioner::{Answer, Questioner};
use super::usage::{BadUsage, name};
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Client, Error, Inspected, Locks, Name, Which};
use crate::pattern::natural_cmp;
use crate::report::{self, Verbosity, escaped, escaped_json, lines_of, print};
use crate::signal;

/// Shows locks, once or again and again.
pub fn status(options: &cli::Status, settings: &Settings) -> Result<Exit> {
    let (watch, name_after_it) = interval(options)?;
    let texts = options
        .names
        .iter()
        .map(String::as_str)
        .chain(name_after_it);
    let asked = Asked::read(texts)?;
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let Some(interval) = watch else {
        let found = asked.find(&mut client, &settings.locks)?;
        settings.warn_of_replica(&client);
        settings.warn_of_lone_primary(&client);
        show(found, &asked, options, settings.verbosity)?;
        return Ok(Exit::Success);
    };
    let on_screen = std::io::stdout().is_terminal() && !report::is_dumb();
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
        let read = show(found, &asked, options, settings.verbosity)?;
        if !read || received.recv_timeout(interval).err() != Some(RecvTimeoutError::Timeout) {
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

/// Which locks are to be shown.
enum Asked {
    /// All that are in use.
    All,
    /// These, in detail.
    Names(Vec<Name>),
    /// Those in use that match a pattern, and these.
    Matching(Vec<Pattern>, Vec<Name>),
}

impl Asked {
    fn read<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Self> {
        let (mut patterns, mut names) = (Vec::new(), Vec::new());
        for text in texts {
            match Pattern::of(name(text)?) {
                Ok(pattern) => patterns.push(pattern),
                Err(name) => names.push(name),
            }
        }
        Ok(match (patterns.is_empty(), names.is_empty()) {
            (true, true) => Self::All,
            (true, false) => Self::Names(names),
            (false, _) => Self::Matching(patterns, names),
        })
    }

    /// Looks at them.
    fn find(&self, client: &mut Client, locks: &Locks) -> Result<Vec<Inspected>, Error> {
        let (patterns, exact) = match self {
            Self::All => (&[][..], &[][..]),
            Self::Names(names) => return locks.inspect_with_usual(client, names),
            Self::Matching(patterns, names) => (&patterns[..], &names[..]),
        };
        let mut names = locks.names(client, Which::InUse)?;
        names.retain(|name| {
            let matches = patterns.is_empty() || patterns.iter().any(|it| it.matches(name));
            matches || exact.contains(name)
        });
        names.extend(
            exact
                .iter()
                .filter(|name| !names.contains(name))
                .cloned()
                .collect::<Vec<_>>(),
        );
        names.sort_by(|one, other| natural_cmp(one.as_str(), other.as_str()));
        let mut found = locks.inspect_with_usual(client, &names)?;
        // The index also has names of locks that have ended meanwhile.
        found.retain(|lock| exact.contains(&lock.name) || !lock.is_idle());
        Ok(found)
    }

    /// What to say when nothing was found.
    fn nothing(&self) -> String {
        match self {
            Self::Matching(patterns, _) => {
                let patterns: Vec<String> = patterns
                    .iter()
                    .map(|pattern| format!("\"{}\"", escaped(pattern.as_str())))
                    .collect();
                format!("no lock in use matches {}", patterns.join(" or "))
            }
            Self::All | Self::Names(_) => "no lock is held".into(),
        }
    }

    /// How people see them. `width`: that of the terminal, if there is one.
    fn picture(&self, found: &[Inspected], width: Option<usize>) -> Picture {
        match (self, found) {
            (Self::Names(_), _) => detail::picture(found, width),
            (_, []) => Picture::of(&self.nothing()),
            _ => table::picture(found, width),
        }
    }
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
    verbosity: Verbosity,
) -> Result<bool> {
    if options.names_only {
        let names = found.iter().map(|lock| lock.name.as_str());
        return Ok(print(&lines_of(names, verbosity))?);
    }
    if options.json {
        let entries: Vec<LockJson> = found.iter().map(LockJson::new).collect();
        let json = serde_json::to_string(&entries)?;
        return Ok(print(&(escaped_json(&json).into_owned() + "\n"))?);
    }
    let picture = asked.picture(&found, report::width());
    drop(found);
    for text in picture.texts(report::has_colors()) {
        if !print(&text)? {
            return Ok(false);
        }
    }
    Ok(true)
}

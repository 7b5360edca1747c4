//! `redlock freeze` and `redlock thaw`: let the holder finish, and admit no other run.

use std::time::Duration;

use anyhow::Result;

use super::change::{change, with_last_words};
use super::identity::{masked, own_identity};
use super::never_used::{mistaken, refuse_mistaken};
use super::usage::{BadUsage, parse_names};
use super::wait::until_free;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration;
use crate::protocol::{Error, FreezeReply, Inspected, Name, Who};
use crate::report;

/// Admits no new holder.
pub fn freeze(options: &cli::Freeze, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    refuse_duration(options)?;
    let who = Who {
        reason: masked(Some(&options.reason)),
        ..own_identity(settings)
    };
    let mut client = settings.locks.open()?;
    if !options.new {
        let found = settings.locks.inspect(&mut client, &names)?;
        if let Some(line) = mistaken(&found, &mut client, &settings.locks)? {
            report::error(format_args!("{line} (nothing is frozen; --new freezes it)"));
            return Ok(Exit::NeverUsed);
        }
    }
    let long = options.lasting.unwrap_or(cli::REMEMBERED);
    let frozen = change_each(&names, "frozen", |name| {
        let lock = settings.locks.lock(name.clone());
        lock.freeze(&mut client, long, &who)
    })?;
    for (name, found) in names.iter().zip(&frozen) {
        settings
            .verbosity
            .info(frozen_line(name, options.lasting, found));
    }
    drop(client);
    if options.wait {
        let patience = cli::WaitOptions::default();
        let thaw = report::typed_for(&["thaw"], &names);
        let last_words =
            format!("gave up waiting for the holder, and leaves all frozen until `{thaw}`");
        return with_last_words(last_words, || {
            until_free(&names, true, &patience, settings, |lock| ended(lock, &who))
        })?;
    }
    Ok(Exit::Success)
}

/// As `run -w 5s` waits for 5 s at most, a duration after -w of `freeze` is hardly the name of a lock.
fn refuse_duration(options: &cli::Freeze) -> Result<()> {
    let is_duration = |name: &&String| {
        cli::duration(name).is_ok() && name.ends_with(|c: char| c.is_ascii_lowercase())
    };
    match options.names.iter().find(is_duration) {
        Some(name) if options.wait && !options.new => {
            let name = report::quote(name);
            let line = format!(
                "-w of freeze takes no duration, so {name} would be a lock: put timeout {name} before redlock to wait no longer (--new freezes it)"
            );
            Err(BadUsage(line).into())
        }
        _ => Ok(()),
    }
}

/// That a lock isn't frozen any more as it was by this process.
fn ended(lock: &Inspected, by: &Who) -> Option<String> {
    let name = &lock.name;
    match &lock.frozen {
        Some(frozen) if frozen.who.pid == by.pid && frozen.who.host == by.host => None,
        Some(frozen) => Some(format!(
            "{} has frozen lock \"{name}\" anew, so this freeze of it is over",
            report::client_and_reason(&frozen.who)
        )),
        None => Some(format!(
            "lock \"{name}\" isn't frozen any more: `{}` was called, or the freeze has run out (--for)",
            report::typed(&["thaw"], name)
        )),
    }
}

/// Makes the same change to each of these locks; what came of each.
fn change_each<T>(
    names: &[Name],
    changed: &str,
    mut make: impl FnMut(&Name) -> Result<T, Error>,
) -> Result<Vec<T>> {
    let all: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let locks = if names.len() == 1 { "lock" } else { "locks" };
    let may = format_args!("{locks} {} may have been {changed}", all.join(", "));
    let mut done = Vec::new();
    let outcome = change(names, may, || {
        for name in names {
            done.push(make(name)?);
        }
        Ok(())
    });
    if outcome.is_err() && !done.is_empty() {
        let before = all[..done.len()].join(", ");
        report::error(format_args!("{changed}: {before}"));
    }
    outcome?;
    Ok(done)
}

/// That a lock is frozen, for how long, and who may still hold it.
fn frozen_line(name: &Name, lasting: Option<Duration>, found: &FreezeReply) -> String {
    let until = match lasting {
        Some(long) => format!("for {}", duration::exact(long)),
        None => format!(
            "until `{}`, at most for 30d",
            report::typed(&["thaw"], name)
        ),
    };
    let held = match found.holders {
        0 => "it has no holder".to_owned(),
        holders => format!(
            "{} may finish",
            report::holder_and_others(found.holder.as_ref(), holders)
        ),
    };
    let before = found.before.as_ref().map_or(String::new(), |before| {
        format!(
            "; previously frozen by {}",
            report::client_and_reason(before)
        )
    });
    format!("lock \"{name}\" is frozen {until}; {held}{before}")
}

/// Lets others in again.
pub fn thaw(options: &cli::Thaw, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let thawed = change_each(&names, "thawed", |name| {
        settings.locks.lock(name.clone()).thaw(&mut client)
    })?;
    client.refuse_replica()?;
    let mut others = Vec::new();
    for (name, thawed) in names.iter().zip(thawed) {
        if let Some(by) = thawed {
            settings.verbosity.info(format_args!(
                "lock \"{name}\" is thawed; it was frozen by {}",
                report::client_and_reason(&by)
            ));
        } else {
            let line = format_args!("lock \"{name}\" was not frozen");
            settings.verbosity.info(line);
            others.push(name.clone());
        }
    }
    if !others.is_empty() {
        let found = settings.locks.inspect(&mut client, &others)?;
        if let Some(exit) = refuse_mistaken(&found, &mut client, &settings.locks)? {
            return Ok(exit);
        }
    }
    Ok(Exit::Success)
}

//! `redlock freeze` and `redlock thaw`: freezing lets the holder finish, and admits no other run.

use std::time::Duration;

use anyhow::Result;

use super::change::{change, with_last_words};
use super::inspections::Inspections;
use super::never_used::mistaken;
use crate::cli;
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration;
use crate::job::identity::own_request;
use crate::protocol::{Client, FreezeReply, Inspected, Name, Who};
use crate::report;
use crate::usage::{parse_names, refuse};

/// Freezes locks, so that they get no new holder.
pub fn freeze(options: &cli::Freeze, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    let who = own_request(settings, Some(&options.reason));
    let mut client = settings.locks.open()?;
    if !options.new {
        let inspected = settings.locks.inspect(&mut client, &names)?;
        if let Some(line) = mistaken(&inspected, &mut client, &settings.locks)? {
            let line = format!("{line} (nothing is frozen; --new freezes it)");
            return refuse(Exit::NeverUsed, line);
        }
    }
    let long = options.lasting.unwrap_or(cli::REMEMBERED);
    for name in &names {
        let lock = settings.locks.lock(name.clone());
        let may = format_args!("lock \"{name}\" may have been frozen");
        let reply = change(name, may, || lock.freeze(&mut client, long, &who))?;
        let line = frozen_line(name, settings, long, &reply);
        settings.verbosity.info(line);
    }
    if options.drain {
        let thaw = report::typed_for(&["thaw"], &names);
        let last_words =
            format!("gave up waiting for the holder, and leaves all frozen until `{thaw}`");
        return with_last_words(last_words, || drain(&names, &who, client, settings));
    }
    Ok(Exit::Success)
}

/// Waits until no lock has a holder. Fails if this freeze by `who` ends first.
fn drain(names: &[Name], who: &Who, client: Client, settings: &Settings) -> Result<Exit> {
    let mut looks = Inspections::new(client, settings, names, now());
    loop {
        // Waits through an outage, because the server was reachable before.
        let answer = looks.ask(Duration::MAX)?;
        let is_ours = |by: &Who| by.pid == who.pid && by.host == who.host;
        let goes_on = |lock: &&Inspected| lock.frozen.as_ref().is_some_and(|it| is_ours(&it.who));
        if let Some(Inspected { name, .. }) = answer.iter().find(|lock| !goes_on(lock)) {
            let line = format!(
                "this freeze of lock \"{name}\" is over: it was thawed or replaced by another one, or has run out (--for)"
            );
            return refuse(Exit::Lost, line);
        }
        let mut held = answer.iter().filter_map(|lock| Some((lock, lock.busy()?)));
        let Some((lock, busy)) = held.next() else {
            report::status_line(None);
            return Ok(Exit::Success);
        };
        let outlook = report::Outlook {
            width: report::line_width(),
            at: report::at_server(&settings.locks),
            this_host_only: report::this_host_only(&settings.locks),
            usual: lock.usual,
            queues: false,
        };
        let line = || report::waiting_line(&lock.name, &busy, Duration::ZERO, &outlook);
        looks.pause(&busy.id, busy.blocked_since(), line);
    }
}

/// Returns the message about a frozen lock: for how long, and who may still hold it.
fn frozen_line(name: &Name, settings: &Settings, lasting: Duration, reply: &FreezeReply) -> String {
    let at = report::at_server(&settings.locks);
    let thaw = report::typed(&["thaw"], name);
    let long = duration::exact(lasting);
    let held = match reply.holders {
        0 => "it has no holder".to_owned(),
        holders => report::holder_and_others(reply.holder.as_ref(), holders) + " may finish",
    };
    let before = reply.before.as_ref().map(report::client_and_reason);
    let before = before.map_or(String::new(), |by| format!("; previously frozen by {by}"));
    format!("lock \"{name}\"{at} is frozen until `{thaw}`, at most for {long}; {held}{before}")
}

/// Ends the freeze of locks.
pub fn thaw(options: &cli::Thaw, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let at = report::at_server(&settings.locks);
    let mut others = Vec::new();
    for name in names {
        let lock = settings.locks.lock(name.clone());
        let may = format_args!("lock \"{name}\" may have been thawed");
        let thawed = change(&name, may, || lock.thaw(&mut client))?;
        client.refuse_replica()?;
        if let Some(by) = thawed {
            let by = report::client_and_reason(&by);
            let line = format!("lock \"{name}\"{at} is thawed; it was frozen by {by}");
            settings.verbosity.info(line);
        } else {
            let line = format!("lock \"{name}\"{at} was not frozen");
            settings.verbosity.info(line);
            others.push(name);
        }
    }
    if !others.is_empty() {
        let inspected = settings.locks.inspect(&mut client, &others)?;
        if let Some(line) = mistaken(&inspected, &mut client, &settings.locks)? {
            return refuse(Exit::NeverUsed, line);
        }
    }
    Ok(Exit::Success)
}

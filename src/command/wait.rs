//! `redlock wait`: return when locks are free, without taking them.

use anyhow::Result;

use super::looks::{LOOK_EVERY, Look, Looks};
use super::never_used::mistaken;
use super::usage::{BadUsage, parse_names};
use crate::cli;
use crate::clock::{Moment, now};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::wait::{WaitLimit, end_of};
use crate::protocol::{Busy, Client, Error, ErrorKind, Inspected, Key, Name};
use crate::report;

/// Waits until none of the locks has a holder.
pub fn wait(options: &cli::Wait, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    if !options.command.is_empty() {
        let line = "wait runs no command; put: redlock wait NAME && COMMAND";
        return Err(BadUsage(line.into()).into());
    }
    until_free(&names, options.new, &options.wait, settings, |_| None)
}

/// The same. `are_meant`: also names that were never used, though nearly the same ones were. `is_pointless` says of a lock
/// why it isn't waited for any longer.
pub(super) fn until_free(
    names: &[Name],
    are_meant: bool,
    options: &cli::WaitOptions,
    settings: &Settings,
    is_pointless: impl Fn(&Inspected) -> Option<String>,
) -> Result<Exit> {
    let began = now();
    let limit = WaitLimit::since(began, options.no_wait, options.wait);
    let mut looks = Looks::new(settings.locks.client(), settings, names, began);
    let not_ready_until = if options.no_wait {
        WaitLimit::Until(began + settings.locks.answer_may_take())
    } else {
        limit
    };
    if let WaitLimit::Until(last) = not_ready_until {
        looks.tries_until = Some(last);
    }
    // One that was reached before may come back, one that says so will be ready, and the user may want to wait for it.
    let gives_up = |client: &Client, error: &Error, _: Moment, at: Moment| {
        let is_coming = error.kind.will_pass();
        let limit = if is_coming { not_ready_until } else { limit };
        let is_awaited = client.was_reached() || is_coming || options.wait.is_some();
        !is_awaited || limit.is_over(at)
    };
    let conflict = Exit::Busy(options.conflict_exit_code.unwrap_or(cli::BUSY));
    let mut is_first = true;
    loop {
        let Look { at: looked, found } = match looks.ask(gives_up) {
            Ok(look) => look,
            Err(error) if is_crowded(&error) => {
                let line = format_args!("gave up waiting: {error}");
                settings.verbosity.info(line);
                return Ok(conflict);
            }
            Err(error) => return Err(error),
        };
        if std::mem::take(&mut is_first) {
            settings.warn_of_replica(&looks.client);
            if !are_meant && let Some(line) = mistaken(&found, &mut looks.client, &settings.locks)?
            {
                report::status_line(None);
                report::error(format_args!("{line} (--new accepts it)"));
                return Ok(Exit::NeverUsed);
            }
        }
        for lock in &found {
            if let Key::NotALock(kind) = &lock.key {
                report::status_line(None);
                report::error(format_args!(
                    "\"{}\" is not a lock: its key is a {kind}, so it belongs to another program; choose another name or --prefix",
                    lock.name
                ));
                return Ok(Exit::Config);
            }
        }
        if let Some(why) = found.iter().find_map(&is_pointless) {
            report::status_line(None);
            report::error(why);
            return Ok(Exit::Lost);
        }
        let held = |lock: &Inspected| Some((lock.name.clone(), lock.busy()?, lock.usual));
        let Some((held, busy, usual)) = found.iter().find_map(held) else {
            report::status_line(None);
            return Ok(Exit::Success);
        };
        // That it is frozen, too, is nothing to wait for.
        let busy = Busy {
            frozen: None,
            restarted: None,
            ..busy
        };
        let expiry = busy.left.map_or(LOOK_EVERY, end_of);
        let mut look_at = looked + LOOK_EVERY.min(expiry);
        if let WaitLimit::Until(end) = limit {
            if looked >= end {
                report::status_line(None);
                let line = report::busy_line(&held, &busy);
                let place = report::after_refusal(&settings.locks);
                settings.verbosity.info(format_args!("{line}{place}"));
                return Ok(conflict);
            }
            look_at = look_at.min(end);
        }
        let outlook = report::Outlook {
            this_host_only: report::this_host_only(&settings.locks),
            usual,
            queues: false,
        };
        let line = |at: Moment| report::waiting_line(&held, &busy, at.since(looked), outlook);
        looks.wait_until(look_at, (&busy.id, busy.blocked_since()), line)?;
    }
}

/// Whether the server admitted no more clients.
fn is_crowded(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|error| error.kind == ErrorKind::Crowded)
}

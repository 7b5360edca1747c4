//! `redlock wait`: return when locks are free, without taking them.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::usage::{BadUsage, parse_names};
use crate::cli;
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Busy, Client, Error, Inspected, Key, Name};
use crate::report;
use crate::wait::{Outage, Pace, ProgressSchedule, WaitLimit, end_of};

/// How often to look where the server doesn't say when something changes, or said it over a
/// connection that broke.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// Waits until none of the locks has a holder.
pub fn wait(options: &cli::Wait, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    if !options.command.is_empty() {
        let line = "wait runs no command; put: redlock wait NAME && COMMAND";
        return Err(BadUsage(line.into()).into());
    }
    let began = now();
    let limit = WaitLimit::since(began, options.wait.no_wait, options.wait.wait);
    let mut progress = ProgressSchedule::new(began, report::has_terminal());
    let mut client = settings.locks.client();
    let mut pace = Pace::default();
    let mut outage: Option<Outage> = None;
    let mut is_first = true;
    loop {
        let asked = now();
        let look_at = pace.ask_at(asked);
        if look_at > asked {
            sleep(None, look_at)?;
        }
        let looked = now();
        let found = match look(&mut client, settings, &names) {
            Ok(found) => found,
            // One that was reached before may come back, and one that says so will be ready.
            Err(error)
                if error.kind.may_pass()
                    && (client.was_reached() || error.kind.will_pass())
                    && !limit.is_over(looked) =>
            {
                let (kind, at) = (error.kind, now());
                settings.verbosity.verbose(error);
                let new = || Outage::new(kind, looked, report::has_terminal());
                let outage = outage.get_or_insert_with(new);
                outage.becomes(kind, at);
                if let Some((kind, lasting)) = outage.shown(at) {
                    let line = report::outage_line(kind, "", lasting);
                    settings.verbosity.progress(&line);
                }
                sleep(None, looked + LOOK / 4)?;
                continue;
            }
            Err(error) => {
                report::status_line(None);
                return Err(error.into());
            }
        };
        if outage.take().is_some_and(|outage| outage.was_shown()) {
            settings.verbosity.answers_again();
        }
        if std::mem::take(&mut is_first) {
            settings.warn_of_replica(&client);
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
        let held = |lock: &Inspected| Some((lock.name.clone(), lock.busy()?, lock.usual));
        let Some((held, busy, usual)) = found.iter().find_map(held) else {
            report::status_line(None);
            return Ok(Exit::Success);
        };
        let expiry = busy.left.map_or(LOOK, end_of);
        let mut look_at = looked + LOOK.min(expiry);
        if let WaitLimit::Until(end) = limit {
            if looked >= end {
                report::status_line(None);
                // That it is frozen, too, is nothing to wait for.
                let busy = Busy {
                    frozen: None,
                    restarted: None,
                    ..busy
                };
                settings.verbosity.info(report::busy_line(&held, &busy));
                return Ok(Exit::Busy(
                    options.wait.conflict_exit_code.unwrap_or(cli::BUSY),
                ));
            }
            look_at = look_at.min(end);
        }
        loop {
            let at = now();
            // What came in with an answer isn't seen at the descriptor.
            if at >= look_at || !matches!(client.receive(), Ok(None)) {
                break;
            }
            let frozen = busy.blocked_since();
            if progress.is_due_for(&busy.id, frozen, at) {
                let outlook = report::Outlook {
                    usual,
                    queues: false,
                };
                let view = report::waiting_line(&held, &busy, at.since(looked), outlook);
                settings.verbosity.progress(&view);
            }
            if sleep(Some(&client), look_at.min(progress.due()))? {
                break;
            }
        }
    }
}

/// What the locks are now.
fn look(client: &mut Client, settings: &Settings, names: &[Name]) -> Result<Vec<Inspected>, Error> {
    // What was said before this look is answered by it.
    client.skip_incoming()?;
    if !client.is_open() {
        client.ask_role()?;
    }
    settings.locks.track(client, names)?;
    settings.locks.inspect_with_usual(client, names)
}

/// Sleeps until a moment; true when the server has said something before.
pub(super) fn sleep(client: Option<&Client>, until: Moment) -> Result<bool> {
    let mut timer = Timer::new()?;
    timer.set(Some(until))?;
    let connection = client.into_iter().flat_map(Client::fds);
    let mut fds: Vec<PollFd> = std::iter::once(timer.as_fd())
        .chain(connection)
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    poll(&mut fds, PollTimeout::NONE).context("can't wait")?;
    let said = |fd: &PollFd| fd.any() == Some(true);
    Ok(fds.iter().skip(1).any(said))
}

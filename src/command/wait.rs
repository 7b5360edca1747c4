//! `redlock wait`: return when locks are free, without taking them.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::distinct;
use crate::cli;
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Busy, Connection, Inspected, Name, inspect, watch};
use crate::report;
use crate::wait::{Pace, Patience, Telling, end_of};

/// How often to look where the server doesn't say when something changes, or said it over a
/// connection that broke.
const LOOK: Duration = Duration::from_secs(2);

/// Waits until nobody holds any of the locks.
pub fn wait(options: &cli::Wait, settings: &Settings) -> Result<Exit> {
    let names = distinct(&options.names)?;
    let began = now();
    let patience = Patience::since(began, options.patience.no_wait, options.patience.wait);
    let mut telling = Telling::new(began, report::has_terminal());
    let mut link = Some(Connection::open(&settings.server)?);
    let mut pace = Pace::default();
    loop {
        let asked = now();
        let look_at = pace.ask_at(asked);
        if look_at > asked {
            sleep(None, look_at)?;
        }
        let looked = now();
        let found = match look(&mut link, settings, &names) {
            Ok(found) => found,
            // It was reached before: it may come back.
            Err(error) if error.kind.may_pass() && !patience.is_over(looked) => {
                settings.voice.detail(error);
                sleep(None, looked + LOOK / 4)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Some((held, busy)) = found else {
            report::transient(None);
            return Ok(Exit::Success);
        };
        let expiry = busy.left.map_or(LOOK, end_of);
        let mut look_at = looked + LOOK.min(expiry);
        if let Patience::Until(end) = patience {
            if looked >= end {
                report::transient(None);
                settings.voice.note(report::held(&held, &busy));
                return Ok(Exit::Busy(
                    options.patience.conflict_exit_code.unwrap_or(cli::BUSY),
                ));
            }
            look_at = look_at.min(end);
        }
        loop {
            let at = now();
            if at >= look_at {
                break;
            }
            if telling.tell(&busy.id, at) {
                let view = report::waiting(&held, &busy, at.since(looked));
                settings.voice.progress(&view);
            }
            if sleep(link.as_ref(), look_at.min(telling.due()))? {
                break;
            }
        }
    }
}

/// The first of the locks that is held, and by whom; `None` when all are free.
fn look(
    link: &mut Option<Connection>,
    settings: &Settings,
    names: &[Name],
) -> Result<Option<(Name, Busy)>, crate::lock::Error> {
    let mut open = match link.take() {
        Some(open) => open,
        None => Connection::open(&settings.server)?,
    };
    // What was said before this look is answered by it.
    while open.receive()?.is_some() {}
    watch(&mut open, &settings.namespace, names)?;
    let found = inspect(&mut open, &settings.namespace, names)?;
    *link = Some(open);
    Ok(found
        .into_iter()
        .find_map(|lock| Some((lock.name.clone(), busy(&lock)?))))
}

/// A held lock as one who waits for it sees it.
fn busy(lock: &Inspected) -> Option<Busy> {
    let first = lock.holds().first()?;
    Some(Busy {
        now_ms: lock.now_ms,
        ahead: u32::try_from(lock.waiters.len()).unwrap_or(u32::MAX),
        ticket: None,
        polls: false,
        left: first.left,
        holders: u32::try_from(lock.holds().len()).unwrap_or(u32::MAX),
        id: first.id.clone(),
        holder: first.holder.clone(),
        frozen: lock.frozen.clone(),
        repaired: false,
        granted: false,
    })
}

/// Sleeps until a moment; true when the server has said something before.
fn sleep(link: Option<&Connection>, until: Moment) -> Result<bool> {
    let mut timer = Timer::new()?;
    timer.set(Some(until))?;
    let mut fds = vec![PollFd::new(timer.as_fd(), PollFlags::POLLIN)];
    if let Some(link) = link {
        fds.push(PollFd::new(link.as_fd(), PollFlags::POLLIN));
    }
    poll(&mut fds, PollTimeout::NONE).context("can't wait")?;
    let said = |fd: &PollFd| fd.any() == Some(true);
    Ok(fds.get(1).is_some_and(said))
}

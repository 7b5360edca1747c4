//! Repeated looks at locks, for `redlock freeze --drain` and `redlock stop`: when the server notifies of a change, otherwise
//! from time to time, and through an outage of a server that was reached before.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock::{Moment, now};
use crate::config::Settings;
use crate::decide::wait::{Outage, Pace, ProgressSchedule};
use crate::protocol::{Client, Error, Inspected, Name};
use crate::report;
use crate::sys::poll::{self, PollFd};

/// How often to look where the server doesn't say when something changes, or said it over a connection that broke.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The looks of one command.
pub struct Looks<'a> {
    pub client: Client,
    settings: &'a Settings,
    names: &'a [Name],
    pace: Pace,
    progress: ProgressSchedule,
    /// Since when the server fails.
    outage: Option<(Moment, Outage)>,
}

impl<'a> Looks<'a> {
    pub fn new(client: Client, settings: &'a Settings, names: &'a [Name], began: Moment) -> Self {
        Self {
            client,
            settings,
            names,
            pace: Pace::default(),
            progress: ProgressSchedule::new(began, report::has_terminal()),
            outage: None,
        }
    }

    /// Returns the next answer, after the time of its question. Keeps asking a server that may come back, until it has failed for as long as `patience`.
    pub fn ask(&mut self, patience: Duration) -> Result<(Moment, Vec<Inspected>)> {
        loop {
            thread::sleep(self.pace.ask_at(now()).since(now()));
            let at = now();
            let error = match self.look() {
                Ok(found) => {
                    let outage = self.outage.take();
                    if outage.is_some_and(|(_, outage)| outage.was_shown()) {
                        self.settings.verbosity.answers_again();
                    }
                    return Ok((at, found));
                }
                Err(error) => error,
            };
            let since = self.outage.as_ref().map_or(at, |(since, _)| *since);
            if !error.kind.may_pass() || at.since(since) >= patience {
                report::status_line(None);
                return Err(error.into());
            }
            let kind = error.kind;
            self.settings.verbosity.verbose(error);
            let new = || (at, Outage::new(kind, at, report::has_terminal()));
            let (_, outage) = self.outage.get_or_insert_with(new);
            outage.becomes(kind, now());
            if let Some((kind, lasting)) = outage.shown(now()) {
                let line = report::outage_line(kind, "", lasting);
                self.settings.verbosity.progress(&line);
            }
            thread::sleep((at + LOOK_EVERY / 4).since(now()));
        }
    }

    fn look(&mut self) -> Result<Vec<Inspected>, Error> {
        let (client, locks) = (&mut self.client, &self.settings.locks);
        // What was said before this look is answered by it.
        client.skip_incoming()?;
        if !client.is_open() {
            client.ask_role()?;
        }
        locks.track(client, self.names)?;
        locks.inspect(client, self.names)
    }

    /// Waits until the next look, at this moment at the latest. Meanwhile shows a line when one is due for this holder, of
    /// a lock that is blocked since then, if it is.
    pub fn wait_until(
        &mut self,
        look_at: Moment,
        (holder, blocked): (&str, Option<u64>),
        line: impl Fn(Moment) -> String,
    ) -> Result<()> {
        loop {
            let at = now();
            // What came in with an answer isn't seen at the descriptor.
            if at >= look_at || !matches!(self.client.receive(), Ok(None)) {
                return Ok(());
            }
            if self.progress.is_due_for(holder, blocked, at) {
                self.settings.verbosity.progress(&line(at));
            }
            let within = look_at.min(self.progress.due()).since(at);
            let mut fds: Vec<PollFd> = self.client.fds().map(poll::readable).collect();
            if poll::wait(&mut fds, Some(within)).context("can't wait")? {
                return Ok(());
            }
        }
    }
}

//! Repeated looks at locks, for `redlock freeze --drain` and `redlock stop`: when the server notifies of a change, otherwise
//! from time to time, and through an outage of a server that was reached before.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::clock::{Moment, Timer, now};
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

/// A look that was answered.
pub struct Look {
    /// When it was sent.
    pub at: Moment,
    pub found: Vec<Inspected>,
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

    /// The next answer. `gives_up` says whether an error that may pass isn't waited for, which the server has answered
    /// with since the first of these moments, at the second.
    ///
    /// # Errors
    /// That of a server that isn't asked again.
    pub fn ask(&mut self, gives_up: impl Fn(Moment, Moment) -> bool) -> Result<Look> {
        loop {
            let ask_at = self.pace.ask_at(now());
            if ask_at > now() {
                self.sleep(ask_at, false)?;
            }
            let at = now();
            let error = match self.look() {
                Ok(found) => {
                    let outage = self.outage.take();
                    if outage.is_some_and(|(_, outage)| outage.was_shown()) {
                        self.settings.verbosity.answers_again();
                    }
                    return Ok(Look { at, found });
                }
                Err(error) => error,
            };
            let since = self.outage.as_ref().map_or(at, |(since, _)| *since);
            if !error.kind.may_pass() || gives_up(since, at) {
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
            self.sleep(at + LOOK_EVERY / 4, false)?;
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
            if self.sleep(look_at.min(self.progress.due()), true)? {
                return Ok(());
            }
        }
    }

    /// Sleeps until a moment, or until the server says something where we listen to it; whether it has.
    fn sleep(&self, until: Moment, listens: bool) -> Result<bool> {
        let mut timer = Timer::new()?;
        timer.set(Some(until))?;
        let connection = self.client.fds().filter(|_| listens);
        let fds = std::iter::once(timer.as_fd()).chain(connection);
        let mut fds: Vec<PollFd> = fds.map(poll::readable).collect();
        poll::wait(&mut fds, None).context("can't wait")?;
        Ok(fds.iter().skip(1).any(poll::was_ready))
    }
}

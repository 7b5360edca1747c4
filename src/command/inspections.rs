//! Repeated inspection of locks, for `redlock freeze --drain` and `redlock stop`.
//! Continues through an outage if the server was reachable before.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::clock::{Moment, now};
use crate::config::Settings;
use crate::decide::wait::{Outage, ProgressSchedule};
use crate::protocol::{Client, Error, Inspected, Name};
use crate::report;

/// Longest pause between inspections. Short because a person is waiting, and
/// because Redis doesn't report that one of several holders has left.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The inspections of a command.
pub struct Inspections<'a> {
    pub client: Client,
    pub settings: &'a Settings,
    pub names: &'a [Name],
    pub began: Moment,
    progress: ProgressSchedule,
    outage: Option<Outage>,
}

impl<'a> Inspections<'a> {
    pub fn new(client: Client, settings: &'a Settings, names: &'a [Name], began: Moment) -> Self {
        Self {
            client,
            settings,
            names,
            began,
            progress: ProgressSchedule::new(began, report::has_terminal()),
            outage: None,
        }
    }

    /// Returns the state of the locks. During an outage, asks again until the outage has lasted for `patience`.
    pub fn ask(&mut self, patience: Duration) -> Result<Vec<Inspected>> {
        loop {
            let at = now();
            let error = match self.look() {
                Ok(locks) => {
                    if self.outage.take().is_some_and(|it| it.was_shown()) {
                        self.settings.verbosity.answers_again();
                    }
                    return Ok(locks);
                }
                Err(error) => error,
            };
            let kind = error.kind;
            let new = || Outage::new(kind, at, report::has_terminal());
            let outage = self.outage.get_or_insert_with(new);
            if !kind.may_pass() || at.since(outage.since) >= patience {
                report::status_line(None);
                return Err(error.into());
            }
            self.settings.verbosity.verbose(error);
            outage.kind = kind;
            if let Some((kind, lasting)) = outage.shown(now()) {
                let line = report::outage_line(kind, "", lasting);
                self.settings.verbosity.progress(&line);
            }
            thread::sleep((at + LOOK_EVERY * 2).since(now()));
        }
    }

    fn look(&mut self) -> Result<Vec<Inspected>, Error> {
        if !self.client.is_open() {
            self.client.ask_role()?;
        }
        self.settings.locks.inspect(&mut self.client, self.names)
    }

    /// Waits until the next inspection. Before that, shows a line if one is due
    /// for this holder; `blocked` is the time since which the lock is blocked.
    pub fn pause(&mut self, holder: &str, blocked: Option<u64>, line: impl FnOnce() -> String) {
        let at = now();
        if self.progress.is_due_for(holder, blocked, at) {
            self.settings.verbosity.progress(&line());
        }
        // First, looks often, because the printed time includes the last pause.
        let pause = (at.since(self.began) / 4).clamp(Duration::from_millis(2), LOOK_EVERY);
        thread::sleep((at + pause).since(now()));
    }
}

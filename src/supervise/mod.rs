//! Work under its locks, until both are over: the work of a run, which is its child, and that of a keeper, which is another
//! process. One loop watches both, by the decisions of a [`Session`], which `run` carries out.

pub mod child;
pub mod environment;
mod holds;
pub mod hook;
pub mod keeper;
mod messages;
pub mod process;
pub mod procfs;
mod renewer;
pub mod run;
mod script;
mod survivors;
pub mod tree;
mod watchdog;

use std::io;
use std::ops::ControlFlow;

use anyhow::Result;

use self::child::Child;
pub use self::holds::{HeldLock, HeldLocks};
use self::messages::{Messages, Terms};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::job_control::JobControl;
use crate::decide::session::{Action, Event, Session};
use crate::signal::Signals;
use crate::sys::TerminalModes;

/// Work under its locks.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
struct Supervision<'a> {
    terms: &'a Terms<'a>,
    messages: Messages<'a>,
    child: Child,
    session: Session,
    holds: &'a mut HeldLocks,
    signals: &'a Signals,
    /// The user knows that there are processes which redlock may not signal.
    refused_named: bool,
    /// The user knows what can't be killed.
    survivors_named: bool,
    job_control: JobControl,
    /// redlock woke long after COMMAND had to be stopped.
    stood_still: bool,
    /// The first signal to redlock that may end COMMAND.
    signal: Option<i32>,
    /// Modes of the terminal before COMMAND changed them, if there is a terminal.
    modes: Option<TerminalModes>,
    /// When COMMAND was started.
    began: Moment,
}

/// A part of the way to the end, which is an exit, or an error of something that watching needs.
type Step<T = ()> = ControlFlow<Result<Exit>, T>;

/// What watching needs.
fn needed<T>(result: Result<T, impl Into<io::Error>>) -> Step<T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(Err(error.into().into())),
    }
}

impl Supervision<'_> {
    /// When the work has to be asked to stop, or killed.
    fn next_stop(&self) -> Option<Moment> {
        self.session.next_stop(&self.holds.renewals)
    }

    /// Has the session decide about an event.
    fn decide(&mut self, event: Event) -> Vec<Action> {
        self.session.on_event(event, &self.holds.renewals, now())
    }

    /// Waits for whatever comes next, until the session says that all is over.
    fn run(&mut self, timer: &mut Timer) -> Result<Exit> {
        loop {
            if let ControlFlow::Break(end) = self.turn(timer) {
                return end;
            }
        }
    }

    /// Does what is due, and takes in what comes then.
    fn turn(&mut self, timer: &mut Timer) -> Step {
        self.apply(Event::Tick)?;
        if self.holds.renewals.renewal_is_due(now()) {
            self.renew();
        }
        self.reap()?;
        let due = self.session.due(&self.holds.renewals).into_iter();
        let due = due.chain(self.holds.due()).min();
        self.sleep(due, timer)?;
        self.take_news()
    }

    /// Takes in what became of renewals.
    fn take_news(&mut self) -> Step {
        let news = self.holds.news();
        news.iter().try_for_each(|news| self.on_news(news))
    }

    /// Has the session decide about an event, and carries that out. The watchdog gets the deadline first, as COMMAND may stop us.
    fn apply(&mut self, event: Event) -> Step {
        let actions = self.decide(event);
        self.tell_watchdog();
        actions
            .into_iter()
            .try_for_each(|action| self.perform(action))
    }

    /// Tells the watchdog by when COMMAND has to be dead.
    fn tell_watchdog(&mut self) {
        let renewals = &self.holds.renewals;
        if let Some(watchdog) = &mut self.holds.watchdog {
            let by_renewal = self.session.by_renewal(renewals);
            watchdog.tell(self.session.dead_by(renewals), by_renewal);
        }
    }
}

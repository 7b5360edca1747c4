//! Supervises work until it ends and its locks are released. The work is the child of a run, or the process
//! that a keeper watches. Both use the same event loop: a [`Session`] decides, and `run` performs its actions.

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
use self::messages::{Messages, SupervisionTerms};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::job_control::JobControl;
use crate::decide::session::{Action, Event, Session};
use crate::signal::Signals;
use crate::sys::TerminalModes;

/// Work, its locks, and everything that the event loop needs.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
struct Supervision<'a> {
    terms: &'a SupervisionTerms<'a>,
    messages: Messages<'a>,
    child: Child,
    session: Session,
    holds: &'a mut HeldLocks,
    signals: &'a Signals,
    /// The user has been told which processes can't be killed.
    survivors_named: bool,
    job_control: JobControl,
    /// redlock woke long after COMMAND should have been stopped, as after a suspend.
    stood_still: bool,
    /// The first signal to redlock that may end COMMAND.
    signal: Option<i32>,
    /// Modes of the terminal before COMMAND changed them, if there is a terminal.
    modes: Option<TerminalModes>,
    /// Start of COMMAND.
    began: Moment,
}

/// A step of the loop: continue, or break with the exit status, or with an error of a call that supervising needs.
type LoopStep<T = ()> = ControlFlow<Result<Exit>, T>;

/// Turns an error of a call that supervising needs into the end of the loop.
fn needed<T>(result: Result<T, impl Into<io::Error>>) -> LoopStep<T> {
    match result {
        Ok(value) => ControlFlow::Continue(value),
        Err(error) => ControlFlow::Break(Err(error.into().into())),
    }
}

impl Supervision<'_> {
    /// Returns when the work must be asked to stop, or killed.
    fn next_stop(&self) -> Option<Moment> {
        self.session.next_stop(&self.holds.renewals)
    }

    /// Returns the session's actions for `event`.
    fn decide(&mut self, event: Event) -> Vec<Action> {
        self.session.on_event(event, &self.holds.renewals, now())
    }

    /// Runs the loop until the session finishes or supervising fails.
    fn run(&mut self, timer: &mut Timer) -> Result<Exit> {
        loop {
            if let ControlFlow::Break(end) = self.turn(timer) {
                return end;
            }
        }
    }

    /// Runs one turn of the loop: does what is due, sleeps, and handles the events that have come.
    fn turn(&mut self, timer: &mut Timer) -> LoopStep {
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

    /// Handles the results of renewals and checks.
    fn take_news(&mut self) -> LoopStep {
        let news = self.holds.news();
        news.iter().try_for_each(|news| self.on_news(news))
    }

    /// Performs the session's actions for `event`. The watchdog gets
    /// the deadline first, because COMMAND may suspend redlock.
    fn apply(&mut self, event: Event) -> LoopStep {
        let actions = self.decide(event);
        self.tell_watchdog();
        actions
            .into_iter()
            .try_for_each(|action| self.perform(action))
    }

    /// Tells the watchdog the moment when COMMAND must be dead.
    fn tell_watchdog(&mut self) {
        let renewals = &self.holds.renewals;
        if let Some(watchdog) = &mut self.holds.watchdog {
            let by_renewal = self.session.by_renewal(renewals);
            watchdog.tell(self.session.dead_by(renewals), by_renewal);
        }
    }
}

//! Work under its locks, until both are over: the work of a run, which is its child, and that of a keeper, which is another
//! process. Both are watched in one loop, by the same [`Session`]; `run` and `keeper` are what carries its decisions out.

pub mod child;
pub mod environment;
mod holds;
pub mod hook;
pub mod keeper;
pub mod process;
mod renewer;
pub mod run;
mod survivors;
pub mod tree;
mod watchdog;

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;

pub use self::holds::{HeldLock, HeldLocks, LockTrouble};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::renewals::Report;
use crate::decide::session::{Action, Event, Session};
use crate::signal::Signals;
use crate::sys::poll::sleep;

/// What decides about work, and what that is told.
struct Watch<'a> {
    session: Session,
    holds: &'a mut HeldLocks,
    signals: &'a Signals,
}

impl Watch<'_> {
    /// When the work has to be asked to stop, or killed.
    fn next_stop(&self) -> Option<Moment> {
        self.session.next_stop(self.holds.lease())
    }

    /// Sleeps until something comes, or one of these has ended.
    fn sleep<'b>(
        &'b self,
        timer: &'b Timer,
        ends: impl Iterator<Item = Option<BorrowedFd<'b>>>,
    ) -> io::Result<()> {
        let own = [Some(self.signals.as_fd()), Some(timer.as_fd())];
        let own = own.into_iter().chain(self.holds.poll_fds());
        sleep(own.chain(ends), None)
    }
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

/// Carries out what is decided about work.
trait Executor<'a> {
    fn watch(&mut self) -> &mut Watch<'a>;

    /// Does this; the end of all, or what follows from it.
    fn perform(&mut self, action: Action) -> Step<Option<Event>>;

    /// Before anything of what was decided is done.
    fn prepare(&mut self) {}

    /// Renews the locks.
    fn renew(&mut self);

    /// Takes in what has ended.
    fn reap(&mut self) -> Step;

    /// Does what is due beside all that.
    fn settle(&mut self) -> Step {
        ControlFlow::Continue(())
    }

    /// When something is due beside all that is known to the session and the locks.
    fn due(&self) -> Option<Moment>;

    /// Sleeps until something comes.
    fn sleep(&mut self, timer: &Timer) -> io::Result<()>;

    /// Takes in what has come at a wake-up that was `due`, but for reports.
    fn woke(&mut self, due: Option<Moment>) -> Step;

    /// Takes in what became of a renewal.
    fn on_report(&mut self, report: Report) -> Step;

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
        if self.watch().holds.renewal_is_due() {
            self.renew();
        }
        self.reap()?;
        self.settle()?;
        let Watch { session, holds, .. } = self.watch();
        session.asks_since(holds.unanswered());
        let due = session.due(holds.lease()).into_iter().chain(holds.due());
        let due = due.chain(self.due()).min();
        needed(timer.set(due))?;
        needed(self.sleep(timer))?;
        self.woke(due)?;
        self.take_reports()
    }

    /// Takes in what became of renewals.
    fn take_reports(&mut self) -> Step {
        let mut reports = self.watch().holds.reports().into_iter();
        reports.try_for_each(|report| self.on_report(report))
    }

    /// Lets the session decide about an event, carries that out, and goes on with the events that follow from it.
    fn apply(&mut self, event: Event) -> Step {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Watch { session, holds, .. } = self.watch();
            session.asks_since(holds.unanswered());
            let actions = session.on_event(event, holds.lease(), now());
            self.prepare();
            for action in actions {
                events.extend(self.perform(action)?);
            }
        }
        ControlFlow::Continue(())
    }
}

//! Work under its locks, until both are over: the work of a run, which is its child, and that of a keeper, which is another
//! process. Both are watched in one loop, by the same [`Session`]; `run` and `keeper` are what carries its decisions out.

pub mod environment;
mod holds;
pub mod keeper;
pub mod run;
mod survivors;

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

/// Carries out what is decided about work. `Some` ends that.
trait Executor<'a> {
    fn watch(&mut self) -> &mut Watch<'a>;

    /// Does this; the end of all, or what follows from it.
    fn perform(&mut self, action: Action) -> Result<ControlFlow<Exit, Option<Event>>>;

    /// Before anything of what was decided is done.
    fn prepare(&mut self) {}

    /// Renews the locks.
    fn renew(&mut self);

    /// Takes in what has ended.
    fn reap(&mut self) -> Result<Option<Exit>>;

    /// Does what is due beside all that.
    fn settle(&mut self) -> Result<Option<Exit>> {
        Ok(None)
    }

    /// When something is due beside all that is known to the session and the locks.
    fn due(&self) -> Option<Moment>;

    /// Sleeps until something comes.
    fn sleep(&mut self, timer: &Timer) -> io::Result<()>;

    /// Takes in what has come at a wake-up that was `due`, but for reports.
    fn woke(&mut self, due: Option<Moment>) -> Result<Option<Exit>>;

    /// Takes in what became of a renewal.
    fn on_report(&mut self, report: Report) -> Result<Option<Exit>>;

    /// Waits for whatever comes next, until the session says that all is over.
    fn run(&mut self, timer: &mut Timer) -> Result<Exit> {
        loop {
            if let Some(exit) = self.apply(Event::Tick)? {
                return Ok(exit);
            }
            if self.watch().holds.renewal_is_due() {
                self.renew();
            }
            if let Some(exit) = self.reap()? {
                return Ok(exit);
            }
            if let Some(exit) = self.settle()? {
                return Ok(exit);
            }
            let Watch { session, holds, .. } = self.watch();
            let due = session.due(holds.lease()).into_iter().chain(holds.due());
            let due = due.chain(self.due()).min();
            timer.set(due)?;
            self.sleep(timer)?;
            if let Some(exit) = self.woke(due)? {
                return Ok(exit);
            }
            if let Some(exit) = self.take_reports()? {
                return Ok(exit);
            }
        }
    }

    /// Takes in what became of renewals.
    fn take_reports(&mut self) -> Result<Option<Exit>> {
        for report in self.watch().holds.reports() {
            if let Some(exit) = self.on_report(report)? {
                return Ok(Some(exit));
            }
        }
        Ok(None)
    }

    /// Lets the session decide about an event, carries that out, and goes on with the events that follow from it.
    fn apply(&mut self, event: Event) -> Result<Option<Exit>> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Watch { session, holds, .. } = self.watch();
            let actions = session.on_event(event, holds.lease(), now());
            self.prepare();
            for action in actions {
                match self.perform(action)? {
                    ControlFlow::Break(exit) => return Ok(Some(exit)),
                    ControlFlow::Continue(event) => events.extend(event),
                }
            }
        }
        Ok(None)
    }
}

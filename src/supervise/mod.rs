//! Work under its locks, until both are over: the work of a run, which is its child, and that of a keeper, which is another
//! process. Both are watched in one loop, by the same [`Session`]; `run` and `keeper` are what carries its decisions out.

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
mod survivors;
pub mod tree;
mod watchdog;

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;

pub use self::holds::{HeldLock, HeldLocks};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::renewals::LockNews;
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
        self.session.next_stop(&self.holds.renewals)
    }

    /// Has the session decide about an event.
    fn decide(&mut self, event: Event) -> Vec<Action> {
        self.session.on_event(event, &self.holds.renewals, now())
    }

    /// Sleeps until this moment, until something comes, or until one of these has ended.
    fn sleep<'b>(
        &'b self,
        due: Option<Moment>,
        timer: &'b mut Timer,
        ends: impl Iterator<Item = Option<BorrowedFd<'b>>>,
    ) -> io::Result<()> {
        timer.set(due)?;
        let timer: &'b Timer = timer;
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

    /// Performs `action`, or ends the loop.
    fn perform(&mut self, action: Action) -> Step;

    /// Renews the locks.
    fn renew(&mut self);

    /// Takes in what has ended.
    fn reap(&mut self) -> Step;

    /// Sleeps until something comes, or until it is `due` for the session or the locks; takes in what has come, except news.
    fn sleep(&mut self, due: Option<Moment>, timer: &mut Timer) -> Step;

    /// Takes in a consequence of an answer.
    fn on_news(&mut self, news: &LockNews) -> Step;

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
        if self.watch().holds.renewals.renewal_is_due(now()) {
            self.renew();
        }
        self.reap()?;
        let Watch { session, holds, .. } = self.watch();
        let due = session.due(&holds.renewals).into_iter();
        let due = due.chain(holds.due()).min();
        self.sleep(due, timer)?;
        self.take_news()
    }

    /// Takes in what became of renewals.
    fn take_news(&mut self) -> Step {
        let news = self.watch().holds.news();
        news.iter().try_for_each(|news| self.on_news(news))
    }

    /// Has the session decide about an event, and carries that out. The watchdog gets the deadline first, as COMMAND may stop us.
    fn apply(&mut self, event: Event) -> Step {
        let watch = self.watch();
        let actions = watch.decide(event);
        let Watch { session, holds, .. } = watch;
        if let Some(watchdog) = &mut holds.watchdog {
            let by_renewal = session.by_renewal(&holds.renewals);
            watchdog.tell(session.dead_by(&holds.renewals), by_renewal);
        }
        actions
            .into_iter()
            .try_for_each(|action| self.perform(action))
    }
}

//! The time while COMMAND runs: what happens is put to the session, and what it decides is done.

use std::os::fd::AsFd;

use anyhow::Result;

use super::{Job, Run, Senses, cannot_run};
use crate::child::{Child, Reaped};
use crate::cli::OnLost;
use crate::clock::{Timer, now};
use crate::command::take::{Holds, cancelled, lost, sleep, suspend};
use crate::exit::Exit;
use crate::lock::{self, Loss, Name, Who};
use crate::renewer::News;
use crate::report;
use crate::session::{Action, Event, Session, Terms, Why};
use crate::signal::{SIGCHLD, SIGINT, SIGTERM, Signals, ends_waiting};

impl Run<'_> {
    /// Starts a job and does what the session decides until it has ended.
    pub(super) fn supervise(
        &self,
        job: &Job,
        holds: &mut Holds,
        senses: &mut Senses,
    ) -> Result<Ended> {
        let Senses { signals, timer } = senses;
        let (own_group, ignored) = (!self.on_terminal, signals.sigchld_ignored);
        let child = match Child::spawn(&job.prepared, &job.environment, own_group, ignored) {
            Ok(child) => child,
            Err(error) => {
                let exit = cannot_run(&job.words, &error);
                return Ok(Ended { exit, signal: None });
            }
        };
        holds.claim();
        let terms = Terms {
            on_terminal: self.on_terminal,
            leads_session: nix::unistd::getsid(None) == Ok(nix::unistd::getpid()),
            only_warn: self.options.on_lost == OnLost::Warn,
            kill_after: self.options.kill_after,
            timeout_at: job.timeout.map(|timeout| now() + timeout),
        };
        let supervision = Supervision {
            run: self,
            job,
            session: Session::new(terms, holds.lease.take()),
            child,
            holds,
            trouble: Trouble::None,
            signal: None,
            signals,
            timer,
        };
        supervision.until_the_end()
    }
}

/// How a job ended.
pub(super) struct Ended {
    pub(super) exit: Exit,
    /// The first signal that came from outside and asked us to end.
    pub(super) signal: Option<i32>,
}

/// What is known of a lock's trouble, for the messages.
enum Trouble {
    None,
    Unreachable(lock::Error),
    Lost(Name, Loss),
    Cancelled(Name, Box<Who>),
}

/// A COMMAND that runs.
struct Supervision<'a> {
    run: &'a Run<'a>,
    job: &'a Job,
    session: Session,
    child: Child,
    holds: &'a mut Holds,
    trouble: Trouble,
    signal: Option<i32>,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

impl Supervision<'_> {
    fn until_the_end(mut self) -> Result<Ended> {
        let exit = self.watch()?;
        let signal = self.signal;
        Ok(Ended { exit, signal })
    }

    fn watch(&mut self) -> Result<Exit> {
        loop {
            if let Some(exit) = self.happened(Event::Tick)? {
                return Ok(exit);
            }
            if let Some(exit) = self.reap()? {
                return Ok(exit);
            }
            let due = self.session.due().into_iter().chain(self.holds.due());
            self.timer.set(due.min())?;
            let [renewer, link] = self.holds.wakes();
            sleep([
                Some(self.signals.as_fd()),
                Some(self.timer.as_fd()),
                renewer,
                link,
            ])?;
            let mut ended = false;
            while let Some(arrived) = self.signals.next()? {
                // It only wakes us: what ended is seen by reaping.
                ended |= arrived.signal == SIGCHLD;
                if ends_waiting(arrived.signal) {
                    self.signal.get_or_insert(arrived.signal);
                }
                if arrived.signal != SIGCHLD
                    && let Some(exit) = self.happened(Event::Signal(arrived))?
                {
                    return Ok(exit);
                }
            }
            // Somebody may wait for what we hold; all else has time.
            if ended {
                continue;
            }
            for news in self.holds.news()? {
                let event = self.told(news);
                if let Some(exit) = self.happened(event)? {
                    return Ok(exit);
                }
            }
        }
    }

    /// Takes the ended children in.
    fn reap(&mut self) -> Result<Option<Exit>> {
        while let Some(reaped) = self.child.reap()? {
            let exit = match reaped {
                Reaped::Child(status) => self.happened(Event::Ended(status))?,
                Reaped::Tree => return self.happened(Event::TreeEnded),
            };
            if exit.is_some() {
                return Ok(exit);
            }
        }
        Ok(None)
    }

    /// The renewer's news as an event; what only matters for messages is kept.
    fn told(&mut self, news: News) -> Event {
        match news {
            News::Renewed(sent) => {
                self.run.voice().detail("lease renewed");
                self.trouble = Trouble::None;
                Event::Renewed(sent)
            }
            News::Failed(error) => {
                self.run
                    .voice()
                    .detail(format_args!("renewal failed: {error}"));
                self.trouble = Trouble::Unreachable(error);
                Event::RenewalFailed
            }
            News::Confirmed(sent, left) => Event::Confirmed(sent, left),
            News::Cancelled(name, by) => {
                self.trouble = Trouble::Cancelled(name, by);
                Event::Cancelled
            }
            News::Lost(name, loss) => {
                self.holds.forget(&name);
                self.trouble = Trouble::Lost(name, loss);
                Event::Lost
            }
            News::Returned(name) => {
                self.run.voice().detail(format_args!(
                    "lock \"{name}\" was given back by the command"
                ));
                self.holds.forget(&name);
                if self.holds.all.is_empty() {
                    Event::Returned
                } else {
                    Event::Tick
                }
            }
        }
    }

    /// Lets the session decide about an event, and does it.
    fn happened(&mut self, event: Event) -> Result<Option<Exit>> {
        for action in self.session.on_event(event, now()) {
            match action {
                Action::Forward(signal) => {
                    if matches!(signal, SIGINT | SIGTERM) {
                        Child::adopt_orphans();
                    }
                    self.child.forward(signal);
                }
                Action::Suspend => suspend()?,
                Action::Renew => self.holds.renew()?,
                Action::Warn => self.run.voice().note(format_args!(
                    "{}; the command goes on without it",
                    self.loss()
                )),
                Action::Stop(why) => {
                    self.say_why(why, "stopping the command");
                    Child::adopt_orphans();
                    self.child.stop();
                }
                Action::Kill(why) => {
                    self.say_why(why, "killing the command");
                    Child::adopt_orphans();
                    self.child.kill();
                }
                Action::Finish(exit) => return Ok(Some(exit)),
            }
        }
        Ok(None)
    }

    fn say_why(&self, why: Why, what: &str) {
        match why {
            Why::Lost | Why::Cancelled => report::error(format_args!("{}; {what}", self.loss())),
            Why::Timeout => {
                let timeout = self.job.timeout.unwrap_or_default();
                self.run.voice().note(format_args!(
                    "timed out after {}; {what}",
                    humantime::format_duration(timeout)
                ));
            }
            Why::Signal => self.run.voice().detail(what),
        }
    }

    /// What happened to the lock, in words.
    fn loss(&self) -> String {
        let what = match self.run.taker.names.as_slice() {
            [name] => format!("lock \"{name}\" was"),
            _ => "the locks were".into(),
        };
        match &self.trouble {
            Trouble::Lost(name, loss) => lost(name, loss),
            Trouble::Cancelled(name, by) => cancelled(name, by),
            Trouble::Unreachable(error) => {
                format!("{what} not renewed in time: {error}")
            }
            Trouble::None => {
                format!("{what} not renewed in time: redlock or this machine stood still")
            }
        }
    }
}

//! The keeper: what stays behind to renew a lock for as long as another process lives.
//!
//! To the [`Session`] that process is what COMMAND is to a run. It isn't our child, so its end is seen
//! by its pidfd, and nobody tells its status.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::{Context, Result};
use nix::unistd::Pid;

use crate::cli::{self, OnLoss};
use crate::clock::{Timer, now};
use crate::command::take::{Holds, Taker, end, sleep};
use crate::exit::Exit;
use crate::lease::try_timeout;
use crate::lock::{End, Parting};
use crate::process::{self, Pulse, descendants};
use crate::renewer::News;
use crate::session::{Action, Event, Session, Terms};
use crate::signal::{SIGTERM, SIGURG, Signals};
use crate::sys;

/// The process for which a lock is kept, and what has come from it.
pub(super) struct Target {
    pid: i32,
    pulse: Pulse,
    instance: String,
    /// Its descendants, from when it was asked to stop: without it they are hard to find.
    rest: Vec<Pulse>,
}

impl Target {
    /// The process with this pid.
    ///
    /// # Errors
    /// `NotFound`, or that we may not signal it, unless it is only to be `warned`.
    pub(super) fn new(pid: i32, warned: bool) -> io::Result<Self> {
        let pulse = Pulse::of(pid)?.ok_or(io::ErrorKind::NotFound)?;
        if !warned {
            pulse.signal(0)?;
        }
        let instance = pulse.instance(pid).unwrap_or_default();
        Ok(Self {
            pid,
            pulse,
            instance,
            rest: Vec::new(),
        })
    }

    /// Which process it is, for those who find it dead.
    pub(super) fn instance(&self) -> String {
        self.instance.clone()
    }

    /// Signals it and all that came from it.
    fn signal_all(&mut self, signals: &[i32]) {
        let found = descendants(Pid::from_raw(self.pid)).into_iter();
        // In a container it may be the one that adopts orphans, and we are one.
        let others = found.filter(|&pid| pid != Pid::this());
        self.rest
            .extend(others.filter_map(|pid| Pulse::of(pid.as_raw()).ok()?));
        self.rest.retain(|pulse| !pulse.has_stopped());
        for pulse in std::iter::once(&self.pulse).chain(&self.rest) {
            for &signal in signals {
                let _ = pulse.signal(signal);
            }
        }
    }

    /// Descriptors that become readable with its end, and with that of what came from it.
    fn ends(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        let first = (!self.pulse.has_stopped()).then_some(&self.pulse);
        let rest = self.rest.iter().filter(|pulse| !pulse.has_stopped());
        first
            .into_iter()
            .chain(rest)
            .map(|pulse| Some(pulse.as_fd()))
    }
}

/// Leaves a keeper behind: returns in this process at once, and in the keeper when all is over.
pub(super) fn leave_behind(
    target: Target,
    options: &cli::Acquire,
    taker: &Taker,
    holds: &mut Holds,
) -> Result<()> {
    holds.rest();
    let link = holds.link.as_ref().map(AsFd::as_fd);
    let kept: Vec<BorrowedFd> = link.into_iter().chain([target.pulse.as_fd()]).collect();
    if !sys::split_off(&kept).context("can't leave a keeper behind")? {
        // Everything is the keeper's now.
        holds.all.clear();
        return Ok(());
    }
    let terms = Terms {
        on_terminal: false,
        leads_session: true,
        only_warn: options.on_lost == OnLoss::Warn,
        kill_after: options.kill_after,
        timeout_at: None,
    };
    // As long as one of the two lives, somebody may still be at work under the lock.
    let both = [Some(target.instance()), process::instance()];
    let both: Vec<String> = both.into_iter().flatten().collect();
    if let (Some(link), Some(hold)) = (&mut holds.link, holds.all.first())
        && hold
            .claim
            .hand_to(&both.join(","), link, try_timeout(hold.claim.ttl()))
            .is_err()
    {
        holds.link = None;
    }
    let session = Session::new(terms, holds.lease.take());
    let keeper = Keeper {
        target,
        session,
        only_warn: terms.only_warn,
        holds,
    };
    let end = keeper.until_the_end()?;
    let keep = std::time::Duration::ZERO;
    taker.release_all(holds, &Parting::Over { end, keep });
    Ok(())
}

struct Keeper<'a> {
    target: Target,
    session: Session,
    only_warn: bool,
    holds: &'a mut Holds,
}

impl Keeper<'_> {
    /// Renews until the target has ended, or the lock isn't ours any more; how that ended.
    fn until_the_end(mut self) -> Result<End> {
        let signals = Signals::take(false)?;
        let mut timer = Timer::new()?;
        let mut ended = false;
        loop {
            if let Some(end) = self.happened(Event::Tick) {
                return Ok(end);
            }
            if self.target.pulse.has_stopped() {
                if !std::mem::replace(&mut ended, true)
                    && let Some(end) = self.happened(Event::Ended(ExitStatus::from_raw(0)))
                {
                    return Ok(end);
                }
                if self.target.ends().next().is_none()
                    && let Some(end) = self.happened(Event::TreeEnded)
                {
                    return Ok(end);
                }
            }
            let due = self.session.due().into_iter().chain(self.holds.due());
            timer.set(due.min())?;
            let fixed = [Some(signals.as_fd()), Some(timer.as_fd())];
            sleep(
                fixed
                    .into_iter()
                    .chain(self.holds.wakes())
                    .chain(self.target.ends()),
            )?;
            while let Some(arrived) = signals.next()? {
                // All else is for those who have a terminal, or a child.
                if arrived.signal == SIGTERM
                    && let Some(end) = self.happened(Event::Signal(arrived))
                {
                    return Ok(end);
                }
            }
            for news in self.holds.news()? {
                let event = self.told(news);
                if self.holds.all.is_empty() && !matches!(event, Event::Lost) {
                    return Ok(End::Released);
                }
                if let Some(end) = self.happened(event) {
                    return Ok(end);
                }
            }
        }
    }

    /// The renewer's news as an event.
    fn told(&mut self, news: News) -> Event {
        match news {
            News::Renewed(sent) => Event::Renewed(sent),
            News::Confirmed(sent, left) => Event::Confirmed(sent, left),
            News::Failed(_) => Event::RenewalFailed,
            News::Cancelled(..) if self.only_warn => {
                let _ = self.target.pulse.signal(SIGURG);
                Event::Tick
            }
            News::Cancelled(..) => Event::Cancelled,
            News::Lost(name, _) => {
                self.holds.forget(&name);
                Event::Lost
            }
            News::Returned(name) => {
                self.holds.forget(&name);
                Event::Returned
            }
        }
    }

    /// Lets the session decide about an event, and does it.
    fn happened(&mut self, event: Event) -> Option<End> {
        for action in self.session.on_event(event, now()) {
            match action {
                Action::Forward(signal) => {
                    let _ = self.target.pulse.signal(signal);
                }
                Action::Suspend => {}
                // A thread that can't be made renews nothing, and the deadline takes care of that.
                Action::Renew => drop(self.holds.renew()),
                Action::Warn => {
                    let _ = self.target.pulse.signal(SIGURG);
                    return Some(End::Lost);
                }
                // A stopped process takes its SIGTERM only when it goes on.
                Action::Stop(_) => self.target.signal_all(&[sys::SIGTERM, sys::SIGCONT]),
                Action::Kill(_) => self.target.signal_all(&[sys::SIGKILL]),
                Action::Finish(Exit::Command(_)) => return Some(End::Released),
                Action::Finish(exit) => return Some(end(exit)),
            }
        }
        None
    }
}

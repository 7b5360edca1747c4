//! The end of a wait: its message, its exit status, and its entry in the history.

use std::time::Duration;

use anyhow::Result;

use super::super::{deadlock, fail_on};
use super::Attempt;
use crate::cli;
use crate::clock::now;
use crate::decide::exit::Exit;
use crate::decide::renewals::LockNews;
use crate::decide::wait::{AcquiredLock, End};
use crate::duration;
use crate::protocol::{Acquired, Busy, Error, ErrorKind, Name, SkipReason, Who};
use crate::report::{self, cancelled, client_in_words, lost};
use crate::supervise::HeldLock;
use crate::supervise::hook::News;
use crate::usage::refuse;
use crate::variables::HELD;

/// Shortest wait whose end is reported on a terminal, where the wait was visible.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

impl Attempt<'_> {
    /// Adds an acquired lock to the held ones. Fails with the reason if it wasn't acquired.
    pub(super) fn conclude(&mut self, end: End) -> Result<()> {
        let locks = &self.acquisition.settings.locks;
        let (name, at) = (self.claim.lock().name(), report::at_server(locks));
        let (reason, line, by) = match end {
            End::Acquired(taken) => {
                self.hold(taken);
                return Ok(());
            }
            End::Answered(Acquired::Busy(busy)) => self.stayed_busy(&busy, &at),
            End::Answered(Acquired::Crowded(waiting)) => {
                let line = format!(
                    "lock \"{name}\"{at} has as many waiters as --max-queue permits: {waiting}"
                );
                (SkipReason::Crowded, line, None)
            }
            End::Answered(Acquired::Superseded(by)) => {
                let line = report::superseded(name, &by, self.acquisition.request.queue.number);
                (SkipReason::Superseded, line, Some(*by))
            }
            End::Answered(Acquired::Removed(by)) => {
                let (who, why) = (client_in_words(&by), report::reason_of(&by));
                let line = format!("{who} removed this run from the queue of lock \"{name}\"{why}");
                (SkipReason::Removed, line, Some(*by))
            }
            End::Deadlock(cycle) => {
                let line = deadlock::in_words(name, &cycle);
                (SkipReason::Deadlock, line, None)
            }
            End::Failed(error) if error.kind == ErrorKind::Crowded => {
                let line = format!("gave up waiting for lock \"{name}\": {error}");
                (SkipReason::Timeout, line, None)
            }
            End::Failed(error) if error.kind == ErrorKind::NotReplicated => {
                let line = format!("gave lock \"{name}\" back: {error}");
                return Err(Error::new(error.kind, line).into());
            }
            End::Failed(error) => return Err(error.into()),
            End::Answered(Acquired::RecentSuccess(ago)) => {
                let line = self.skipped_line(ago);
                self.skipped = Some((SkipReason::Recent, ago, None));
                return refuse(self.busy_exit(0), line);
            }
            End::HeldLockGone(news) => return lost_meanwhile(name, news.as_ref()),
            End::Interrupted(signal) => return fail_on(Some(signal)),
            End::Answered(Acquired::Held { .. }) => {
                let ttl = duration::exact(self.acquisition.terms.ttl);
                let line = format!("{} is too slow for --ttl {ttl}", locks.server());
                return Err(Error::new(ErrorKind::Unreachable, line).into());
            }
        };
        let line = self.own_holder.map_or(line, |pid| {
            format!("lock \"{name}\" is held by this job itself (pid {pid}); its {HELD} was dropped on the way, by sudo for example: keep it with sudo --preserve-env={HELD}")
        });
        let exit = self.busy_exit(cli::BUSY);
        self.acquisition.busy.set(Some(News {
            event: "busy",
            exit: Some(exit),
            by: by.as_ref().map(client_in_words),
            ..News::default()
        }));
        self.skipped = Some((reason, now().since(self.started), by));
        refuse(exit, line)
    }

    /// Returns the exit for a lock that wasn't acquired. `status` is the default.
    fn busy_exit(&self, status: u8) -> Exit {
        let chosen = self.acquisition.wait_options.conflict_exit_code;
        Exit::Busy(chosen.unwrap_or(status))
    }

    /// Adds an acquired lock to the held ones.
    fn hold(&mut self, taken: AcquiredLock) {
        let (name, fence) = (self.claim.lock().name(), taken.fence);
        let (verbosity, waited) = (self.verbosity(), report::format_duration(taken.waited));
        let line = format_args!("got \"{name}\" after {waited}");
        if taken.waited >= SHOWN_AFTER && report::has_terminal() {
            verbosity.info(line);
        } else if !taken.waited.is_zero() {
            verbosity.verbose(line);
        }
        let how = taken.granted.map_or("acquired", |_| "handed over");
        verbosity.verbose(format_args!("lock \"{name}\" {how}, fencing token {fence}"));
        let hold = HeldLock {
            claim: self.claim.clone(),
            fence,
            slot: taken.slot,
            reentrant: false,
            guard: None,
            waited: taken.waited,
        };
        self.held.add(hold, taken.lease);
        if let Some(lasting) = taken.granted {
            let lasting = lasting.saturating_sub(self.acquisition.terms.clock_skew);
            self.held.renewals.add_grant(lasting);
        }
    }

    /// Returns the reason for the history, the message, and the blocking client, for a lock that stayed busy.
    fn stayed_busy(&self, busy: &Busy, at: &str) -> (SkipReason, String, Option<Who>) {
        let line = report::busy_line(self.claim.lock().name(), at, busy);
        let place = report::after_refusal(&self.acquisition.settings.locks);
        let no_wait = self.acquisition.wait_options.no_wait;
        let line = if no_wait {
            format!("{line}; drop --no-wait to queue{place}")
        } else {
            format!("gave up waiting: {line}{place}")
        };
        let frozen_by = busy.frozen.as_ref().map(|frozen| &frozen.who);
        let holder = busy.holder.as_ref().map(|holder| &holder.who);
        let reason = match frozen_by {
            Some(_) => SkipReason::Frozen,
            None if no_wait => SkipReason::Busy,
            None => SkipReason::Timeout,
        };
        (reason, line, frozen_by.or(holder).cloned())
    }

    /// Returns the message that COMMAND is skipped, because another run succeeded `ago`.
    fn skipped_line(&self, ago: Duration) -> String {
        let name = self.claim.lock().name();
        let key = self.acquisition.request.once_key.as_ref();
        let with = key.map_or(String::new(), |key| format!(" with --once {key}"));
        let ago = report::format_duration(ago);
        format!("skipped: a run of \"{name}\"{with} succeeded {ago} ago")
    }
}

/// Ends a wait because this run has lost another lock meanwhile.
fn lost_meanwhile(name: &Name, news: Option<&LockNews>) -> Result<()> {
    let what = match news {
        Some(LockNews::Lost { name, loss, .. }) => lost(name, loss),
        Some(LockNews::Cancelled(name, by)) => cancelled(name, by),
        Some(LockNews::Released(name)) => format!("lock \"{name}\" was released"),
        _ => "the locks that this run already held were not renewed in time".into(),
    };
    let line = format!("{what}, while waiting for lock \"{name}\"");
    refuse(Exit::Lost, line)
}

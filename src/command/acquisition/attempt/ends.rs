//! The end of a wait: what it means for the run, in words and as an exit status, and for the history.

use std::time::Duration;

use anyhow::{Result, bail};

use super::super::super::usage::Refusal;
use super::super::{deadlock, expect_no};
use super::Attempt;
use crate::cli;
use crate::clock::now;
use crate::decide::exit::Exit;
use crate::decide::renewals::LockNews;
use crate::decide::wait;
use crate::duration;
use crate::protocol::{self, Busy, ErrorKind, Name, SkipReason, Who};
use crate::report::{self, cancelled, client_in_words, lost};
use crate::supervise::HeldLock;
use crate::supervise::hook::News;
use crate::variables::HELD;

impl Attempt<'_> {
    /// Takes a lock that is ours into what is held, or fails with the reason why it isn't ours.
    pub(super) fn conclude(&mut self, end: wait::End) -> Result<()> {
        let name = self.claim.lock().name();
        Err(match end {
            wait::End::Acquired(taken) => {
                self.hold(taken);
                return Ok(());
            }
            wait::End::Busy(busy) => self.give_up_busy(&busy),
            wait::End::Crowded(waiting) => {
                self.give_up(SkipReason::Crowded, self.crowded(waiting), None)
            }
            wait::End::Superseded(by) => {
                let line = report::superseded(name, &by, self.acquisition.request.queue.number);
                self.give_up(SkipReason::Superseded, line, Some(*by))
            }
            wait::End::Removed(by) => {
                let (who, why) = (client_in_words(&by), report::reason_of(&by));
                let line = format!("{who} removed this run from the queue of lock \"{name}\"{why}");
                self.give_up(SkipReason::Removed, line, Some(*by))
            }
            wait::End::Deadlock(cycle) => {
                let line = deadlock::in_words(name, &cycle);
                self.give_up(SkipReason::Deadlock, line, None)
            }
            wait::End::RecentSuccess(ago) => {
                self.skipped = Some((SkipReason::Recent, ago, None));
                Refusal(self.busy_exit(0), self.skipped_line(ago))
            }
            wait::End::HeldLockGone(news) => self.lost_meanwhile(Some(&news)),
            wait::End::NotRenewed => self.lost_meanwhile(None),
            wait::End::Interrupted(signal) => return expect_no(Some(signal)),
            wait::End::Abandoned => {
                self.requester.check()?;
                bail!("this run doesn't need the lock any more");
            }
            wait::End::TooSlow => {
                let ttl = duration::exact(self.acquisition.terms.ttl);
                let locks = &self.acquisition.settings.locks;
                let line = format!("{locks} is too slow for --ttl {ttl}");
                return Err(protocol::Error::new(ErrorKind::Unreachable, line).into());
            }
            wait::End::Failed(error) if error.kind == ErrorKind::Crowded => {
                let line = format!("gave up waiting for lock \"{name}\": {error}");
                self.stayed_busy(line, None)
            }
            wait::End::Failed(error) if error.kind == ErrorKind::NotReplicated => {
                let line = format!("gave lock \"{name}\" back: {error}");
                return Err(protocol::Error::new(error.kind, line).into());
            }
            wait::End::Failed(error) => return Err(error.into()),
        }
        .into())
    }

    /// Returns the exit for a lock that wasn't acquired, with this status by default.
    fn busy_exit(&self, status: u8) -> Exit {
        let chosen = self.acquisition.wait_options.conflict_exit_code;
        Exit::Busy(chosen.unwrap_or(status))
    }

    /// Takes in a lock that is ours.
    fn hold(&mut self, taken: wait::Taken) {
        let (name, fence) = (self.claim.lock().name(), taken.fence);
        self.report_wait(taken.waited);
        let how = taken.granted.map_or("acquired", |_| "handed over");
        self.verbosity()
            .verbose(format_args!("lock \"{name}\" {how}, fencing token {fence}"));
        let hold = HeldLock {
            claim: self.claim.clone(),
            fence,
            slot: taken.slot,
            reentrant: false,
            guard: None,
            waited: taken.waited,
        };
        match taken.granted {
            Some(lasting) => {
                let lasting = lasting.saturating_sub(self.acquisition.terms.clock_skew);
                let client = self.client.hand_over();
                self.held.add_grant(hold, taken.lease, lasting, client);
            }
            None => self.held.add(hold, taken.lease),
        }
    }

    /// Notes for the history why this run ends without the lock, and because of which run.
    fn give_up(&mut self, reason: SkipReason, line: String, by: Option<Who>) -> Refusal {
        let in_the_way = by.as_ref().map(client_in_words);
        self.skipped = Some((reason, now().since(self.started), by));
        self.stayed_busy(line, in_the_way)
    }

    /// Returns the end of a run whose lock stayed busy, and notes for a hook who is in the way.
    fn stayed_busy(&self, line: String, in_the_way: Option<String>) -> Refusal {
        let exit = self.busy_exit(cli::BUSY);
        let by_itself = |pid| (held_by_itself(self.claim.lock().name(), pid), None);
        let (line, by) = self.own_holder.map_or((line, in_the_way), by_itself);
        self.acquisition.busy.set(Some(News {
            event: "busy",
            exit: Some(exit),
            by,
            ..News::default()
        }));
        Refusal(exit, line)
    }

    /// Gives up after a wait that has lasted long enough.
    fn give_up_busy(&mut self, busy: &Busy) -> Refusal {
        let locks = &self.acquisition.settings.locks;
        let at = report::at_server(locks);
        let line = report::busy_line(self.claim.lock().name(), &at, busy);
        let place = report::after_refusal(locks);
        let is_refused = self.acquisition.wait_options.no_wait;
        let line = if is_refused {
            format!("{line}; drop --no-wait to queue{place}")
        } else {
            format!("gave up waiting: {line}{place}")
        };
        let frozen_by = busy.frozen.as_ref().map(|frozen| &frozen.who);
        let reason = match frozen_by {
            Some(_) => SkipReason::Frozen,
            None if is_refused => SkipReason::Busy,
            None => SkipReason::Timeout,
        };
        let holder = busy.holder.as_ref().map(|holder| &holder.who);
        let by = frozen_by.or(holder).cloned();
        self.skipped = Some((reason, now().since(self.started), by));
        self.stayed_busy(line, Some(report::busy_with(busy)))
    }

    /// Returns the message that COMMAND isn't run, as another run succeeded `ago`.
    fn skipped_line(&self, ago: Duration) -> String {
        let name = self.claim.lock().name();
        let key = self.acquisition.request.once_key.as_ref();
        let with = key.map_or(String::new(), |key| format!(" with --once {key}"));
        let ago = report::format_duration(ago);
        format!("skipped: a run of \"{name}\"{with} succeeded {ago} ago")
    }

    /// Returns the message for a run that doesn't queue because so many others do.
    fn crowded(&self, waiting: u32) -> String {
        let name = self.claim.lock().name();
        let at = report::at_server(&self.acquisition.settings.locks);
        let runs = match waiting {
            1 => "a run waits".to_owned(),
            more => format!("{more} runs wait"),
        };
        format!("{runs} for lock \"{name}\"{at} already (--max-queue)")
    }

    /// The end of a wait during which something that we held was lost.
    fn lost_meanwhile(&self, news: Option<&LockNews>) -> Refusal {
        let what = match news {
            Some(LockNews::Lost { name, loss, .. }) => lost(name, loss),
            Some(LockNews::Cancelled(name, by)) => cancelled(name, by),
            Some(LockNews::Released(name)) => format!("lock \"{name}\" was released"),
            _ => "the locks that this run already held were not renewed in time".into(),
        };
        let name = self.claim.lock().name();
        Refusal(
            Exit::Lost,
            format!("{what}, while waiting for lock \"{name}\""),
        )
    }
}

/// The message for a run that would wait for its own job.
fn held_by_itself(name: &Name, pid: i32) -> String {
    format!(
        "lock \"{name}\" is held by this job itself (pid {pid}); its {HELD} was dropped on the way, by sudo for example: keep it with sudo --preserve-env={HELD}"
    )
}

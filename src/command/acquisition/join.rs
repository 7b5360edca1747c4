//! Joining: waiting for a run that is going on, and ending as it does.

use std::time::Duration;

use anyhow::Result;

use super::Reason;
use super::driver::{Asked, Attempt, Idle};
use crate::clock::{Moment, now};
use crate::exit::Exit;
use crate::lock::{self, Busy, HistoryEntry, Outcome};
use crate::wait::{self, WaitLimit};

/// How often one who has joined a run looks where the server says nothing.
const JOINED: Duration = Duration::from_secs(2);

impl Attempt<'_> {
    /// Waits for the run that holds the lock, without a place in the queue; why to give up, with
    /// its status in place of ours; `None` when there is none to be had, and it is for us to run.
    /// What is known of that run was `heard` at this moment.
    pub(super) fn join(
        &mut self,
        busy: &Busy,
        heard: Moment,
        patience: WaitLimit,
    ) -> Result<Option<Reason>> {
        let mut died = false;
        loop {
            let asked = match self.pace()? {
                Ok(asked) => asked,
                Err(why) => return Ok(Some(why)),
            };
            let (pause, known) = match self.look_at(busy) {
                // Its process has ended without a word.
                Ok(Some(entry)) if entry.outcome == Outcome::Running && died => return Ok(None),
                Ok(Some(entry)) if entry.outcome == Outcome::Running => (JOINED, true),
                Ok(Some(entry)) => return Ok(status(&entry.outcome).map(Reason::Joined)),
                // Another client's, or it is only just being handed on.
                Ok(None) => {
                    let end = busy.left.map_or(JOINED, wait::end_of);
                    (end.min(JOINED), false)
                }
                Err(error) => {
                    return Ok(match self.no_answer(error, asked, patience)? {
                        Asked::NotAcquired(why) => Some(why),
                        Asked::Held { .. } | Asked::Busy(_) | Asked::Nothing => None,
                    });
                }
            };
            self.has_answered(now());
            let until = match patience {
                WaitLimit::Until(end) if asked >= end => {
                    return Ok(Some(Reason::Busy(self.patience_is_over(busy))));
                }
                WaitLimit::Until(end) => end.min(asked + pause),
                WaitLimit::Forever => asked + pause,
            };
            let watched = self.pulse.is_some();
            match self.idle(busy, heard, until)? {
                Idle::NotAcquired(why) => return Ok(Some(why)),
                // Whoever holds it now may be another one.
                Idle::Ask | Idle::Granted(_) if !known => return Ok(None),
                Idle::Ask | Idle::Granted(_) => died = watched && self.pulse.is_none(),
            }
        }
    }

    /// What has become of the hold that kept us waiting. From now on the server tells when the lock
    /// changes, where it can.
    fn look_at(&mut self, busy: &Busy) -> Result<Option<HistoryEntry>, lock::Error> {
        let locks = &self.acquisition.settings.locks;
        let names = std::slice::from_ref(self.claim.lock().name());
        locks.track(&mut self.client, names)?;
        let mut found = locks.history(&mut self.client, names)?;
        let holds = found.pop().map(|history| history.holds);
        let mut holds = holds.into_iter().flatten();
        Ok(holds.find(|entry| entry.id == busy.id))
    }
}

/// The status of a run that has ended, where it left one.
fn status(end: &Outcome) -> Option<Exit> {
    match end {
        Outcome::Status(status) => Some(Exit::Command(*status)),
        Outcome::Signal(signal) => Some(Exit::Signal(*signal)),
        Outcome::Timeout => Some(Exit::Timeout),
        Outcome::Lost | Outcome::Cancelled(_) | Outcome::Forced(_) => Some(Exit::Lost),
        Outcome::Running | Outcome::Expired | Outcome::Released => None,
    }
}

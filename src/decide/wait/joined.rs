//! A run in progress that this run has joined.

use std::time::Duration;

use super::timing::{WaitLimit, end_of};
use super::{Action, End, Phase, Question, Wait};
use crate::clock::Moment;
use crate::decide::exit::Exit;
use crate::protocol::HoldOutcome;

/// How often a joined run is looked at where the server pushes nothing.
const LOOK_AT_RUN: Duration = Duration::from_secs(2);

impl Wait {
    /// The run that we joined has ended, with its status in place of ours; or goes on; or it is for us
    /// to run.
    pub(super) fn on_run(
        &mut self,
        outcome: Option<HoldOutcome>,
        now: Moment,
        actions: &mut Vec<Action>,
    ) {
        let Phase::LookingAtRun { found, asked } = &self.phase else {
            return;
        };
        let (found, asked) = (found.clone(), *asked);
        let (pause, is_known) = match outcome {
            Some(HoldOutcome::Running) => (LOOK_AT_RUN, true),
            Some(outcome) => {
                return match status(&outcome) {
                    Some(exit) => self.end(End::Joined(exit), actions),
                    None => self.ask(Question::Lock, now, actions),
                };
            }
            // Another client's, or it is only just being handed on.
            None => {
                let end = found.busy.left.map_or(LOOK_AT_RUN, end_of);
                (end.min(LOOK_AT_RUN), false)
            }
        };
        let until = match self.policy.limit {
            WaitLimit::Until(end) if asked >= end => {
                return self.end(End::Busy(found.busy), actions);
            }
            WaitLimit::Until(end) => end.min(asked + pause),
            WaitLimit::Forever => asked + pause,
        };
        self.phase = Phase::Joined {
            found,
            is_known,
            until,
        };
        self.show(now, actions);
    }
}

/// The status of a run that has ended, where it left one.
fn status(end: &HoldOutcome) -> Option<Exit> {
    match end {
        HoldOutcome::Status(status) => Some(Exit::Command(*status)),
        HoldOutcome::Signal(signal) => Some(Exit::Signal(*signal)),
        HoldOutcome::Timeout => Some(Exit::Timeout),
        HoldOutcome::Lost | HoldOutcome::Cancelled(_) | HoldOutcome::Forced(_) => Some(Exit::Lost),
        HoldOutcome::Running | HoldOutcome::Expired | HoldOutcome::Released => None,
    }
}

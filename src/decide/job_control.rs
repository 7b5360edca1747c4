//! The decision when redlock is suspended together with COMMAND, as a job on a terminal is. Pure.

use std::time::Duration;

use crate::clock::Moment;
use crate::signal::{SIGCONT, SIGTSTP};

/// Time for which COMMAND must be stopped before redlock stops, too. When a shell continues the job, COMMAND
/// may continue a moment later than redlock.
const STOPPED_FOR: Duration = Duration::from_millis(50);

/// Origin of the signal that has stopped COMMAND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedBy {
    /// Job-control signals: the shell takes its terminal back until it continues the job.
    JobControl,
    /// SIGSTOP for COMMAND alone, from somebody who will continue COMMAND alone.
    Other,
}

/// Progress of redlock and COMMAND in stopping together.
#[derive(Clone, Copy, Debug)]
pub struct JobControl {
    on_terminal: bool,
    /// A stop signal was passed on to COMMAND: once COMMAND is stopped, redlock stops, too.
    stop_passed_on: bool,
    /// Time at which COMMAND was seen stopped.
    stopped: Option<Moment>,
}

impl JobControl {
    pub fn new(on_terminal: bool) -> Self {
        Self {
            on_terminal,
            stop_passed_on: false,
            stopped: None,
        }
    }

    /// Records that a signal was passed on to COMMAND.
    pub fn forwarded(&mut self, signal: i32) {
        match signal {
            SIGTSTP => self.stop_passed_on = true,
            SIGCONT => self.stop_passed_on = false,
            _ => {}
        }
    }

    /// Records whether COMMAND is stopped, which `stopped_by` finds out. On a terminal, a COMMAND that stops
    /// itself stops the whole job, so that the shell comes back.
    pub fn look(&mut self, stopped_by: impl FnOnce() -> Option<StoppedBy>, now: Moment) {
        let counts = |by| self.stop_passed_on || by == StoppedBy::JobControl;
        if (self.on_terminal || self.stop_passed_on) && stopped_by().is_some_and(counts) {
            self.stopped.get_or_insert(now);
        } else {
            self.stopped = None;
        }
    }

    /// Forgets that COMMAND is stopped, because it may have been continued.
    pub fn forget(&mut self) {
        self.stopped = None;
    }

    /// Returns when COMMAND will have been stopped for long enough, unless it is continued before.
    pub fn due(&self) -> Option<Moment> {
        self.stopped.map(|since| since + STOPPED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::at(Duration::from_secs(100));
    const JOB: Option<StoppedBy> = Some(StoppedBy::JobControl);

    #[test]
    fn a_command_that_stops_itself_stops_a_job_on_a_terminal_after_a_moment() {
        let mut job = JobControl::new(true);
        job.look(|| JOB, START);
        job.look(|| JOB, START + STOPPED_FOR);
        assert_eq!(job.due(), Some(START + STOPPED_FOR));
        job.forget();
        assert_eq!(job.due(), None);
    }

    #[test]
    fn a_command_that_is_continued_in_time_keeps_us_from_stopping() {
        let mut job = JobControl::new(true);
        job.look(|| JOB, START);
        job.look(|| None, START);
        assert_eq!(job.due(), None);
    }

    #[test]
    fn without_a_terminal_only_a_stop_that_was_passed_on_counts() {
        let mut job = JobControl::new(false);
        let not_asked = || -> Option<StoppedBy> { panic!("it costs a system call") };
        job.look(not_asked, START);
        job.forwarded(SIGTSTP);
        job.look(|| JOB, START);
        assert_eq!(job.due(), Some(START + STOPPED_FOR));
        job.forwarded(SIGCONT);
        job.look(not_asked, START);
        assert_eq!(job.due(), None);
    }

    #[test]
    fn a_command_that_another_process_has_stopped_stops_nothing_else() {
        let mut job = JobControl::new(true);
        job.look(|| Some(StoppedBy::Other), START);
        assert_eq!(job.due(), None);
        // Some programs answer that signal with SIGSTOP.
        job.forwarded(SIGTSTP);
        job.look(|| Some(StoppedBy::Other), START);
        assert_eq!(job.due(), Some(START + STOPPED_FOR));
    }
}

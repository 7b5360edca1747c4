//! When redlock is suspended together with COMMAND, as a job on a terminal is, and when it continues the job. Pure.

use std::time::Duration;

use crate::clock::Moment;
use crate::signal::{SIGCONT, SIGTSTP};

/// For how long COMMAND has to be stopped before we stop, too: when a shell continues the job, it may
/// be a moment later than we are.
const STOPPED_FOR: Duration = Duration::from_millis(50);

/// How long what a terminal stops may take to be stopped.
const STOPPING: Duration = Duration::from_secs(1);

/// How far redlock, COMMAND, and what that has started are stopped together.
#[derive(Clone, Copy, Debug)]
pub struct JobControl {
    on_terminal: bool,
    /// A signal to stop was passed on to COMMAND: once it is stopped, so are we.
    stop_passed_on: bool,
    /// Since when COMMAND is known to be stopped.
    stopped: Option<Moment>,
    /// The terminal has stopped COMMAND, and we go on for what it has started.
    stopped_without_us: bool,
}

/// What is seen of a job whose COMMAND may have been stopped for long enough.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub command_is_stopped: bool,
    /// All that COMMAND has started is stopped.
    pub tree_is_stopped: bool,
    /// The terminal takes it for a job that runs.
    pub in_foreground: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Stop ourselves.
    Stop,
    /// Continue all of the job.
    Continue,
}

impl JobControl {
    pub fn new(on_terminal: bool) -> Self {
        Self {
            on_terminal,
            stop_passed_on: false,
            stopped: None,
            stopped_without_us: false,
        }
    }

    /// A signal was passed on to COMMAND.
    pub fn passed_on(&mut self, signal: i32) {
        match signal {
            SIGTSTP => self.stop_passed_on = true,
            SIGCONT => self.stop_passed_on = false,
            _ => {}
        }
    }

    /// COMMAND may have been stopped or continued, which `is_stopped` finds out. On a terminal a COMMAND that stops itself
    /// stops the job, so that the shell comes back.
    pub fn look(&mut self, is_stopped: impl FnOnce() -> bool, now: Moment) {
        if (self.on_terminal || self.stop_passed_on) && is_stopped() {
            self.stopped.get_or_insert(now);
        } else {
            self.stopped = None;
        }
    }

    /// When COMMAND has been stopped for long enough, unless it is continued before.
    pub fn due(&self) -> Option<Moment> {
        self.stopped.map(|since| since + STOPPED_FOR)
    }

    /// What to do about a COMMAND that has been stopped for long enough: we stop together with all that it has started,
    /// as what works needs its lock.
    pub fn on_stopped(&mut self, seen: Seen) -> Option<Step> {
        self.stopped = None;
        if !seen.command_is_stopped {
            None
        } else if self.stopped_without_us && seen.in_foreground {
            // The shell takes the job for one that runs, and has continued none of it.
            self.stopped_without_us = false;
            Some(Step::Continue)
        } else {
            seen.tree_is_stopped.then_some(Step::Stop)
        }
    }

    /// We are about to stop. How long to wait for all else to be stopped, where COMMAND has to be stopped or killed after
    /// this time: by then there is still time to renew.
    pub fn stopping(&mut self, left: Option<Duration>) -> Duration {
        self.stopped_without_us = false;
        left.map_or(STOPPING, |left| STOPPING.min(left / 4))
    }

    /// We go on after a stop: somebody else has `continued` us, or we were woken for what `works` on without us. What was
    /// seen before says nothing about COMMAND now. Whether the job is to be continued if it is stopped still: what has
    /// continued us alone means all of it.
    pub fn resumed(&mut self, continued: bool, works: bool) -> bool {
        self.stopped = None;
        self.stopped_without_us = works;
        self.on_terminal && continued && !works
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::at(Duration::from_secs(100));

    const STOPPED: Seen = Seen {
        command_is_stopped: true,
        tree_is_stopped: true,
        in_foreground: false,
    };

    fn stopped(mut job: JobControl) -> JobControl {
        job.look(|| true, START);
        job
    }

    #[test]
    fn a_command_that_stops_itself_stops_a_job_on_a_terminal_after_a_moment() {
        let mut job = stopped(JobControl::new(true));
        job.look(|| true, START + STOPPED_FOR);
        assert_eq!(job.due(), Some(START + STOPPED_FOR));
        assert_eq!(job.on_stopped(STOPPED), Some(Step::Stop));
        assert_eq!(job.due(), None);
    }

    #[test]
    fn a_command_that_is_continued_in_time_and_what_works_on_keep_us_from_stopping() {
        let mut job = stopped(JobControl::new(true));
        job.look(|| false, START);
        assert_eq!(job.due(), None);
        for (command_is_stopped, tree_is_stopped) in [(false, true), (true, false)] {
            let seen = Seen {
                command_is_stopped,
                tree_is_stopped,
                ..STOPPED
            };
            assert_eq!(stopped(JobControl::new(true)).on_stopped(seen), None);
        }
    }

    #[test]
    fn without_a_terminal_only_a_stop_that_was_passed_on_counts() {
        let mut job = JobControl::new(false);
        let not_asked = || -> bool { panic!("it costs a system call") };
        job.look(not_asked, START);
        job.passed_on(SIGTSTP);
        assert_eq!(stopped(job).due(), Some(START + STOPPED_FOR));
        job.passed_on(SIGCONT);
        job.look(not_asked, START);
        assert_eq!(job.due(), None);
    }

    #[test]
    fn a_job_whose_command_alone_is_stopped_is_continued_when_it_comes_to_the_foreground() {
        let in_foreground = Seen {
            in_foreground: true,
            ..STOPPED
        };
        // One that was stopped as a whole is just being stopped.
        let mut job = stopped(JobControl::new(true));
        assert_eq!(job.on_stopped(in_foreground), Some(Step::Stop));
        assert!(!job.resumed(true, true), "it was woken for what works");
        assert_eq!(job.on_stopped(STOPPED), Some(Step::Stop));
        assert_eq!(job.on_stopped(in_foreground), Some(Step::Continue));
        assert_eq!(job.on_stopped(in_foreground), Some(Step::Stop));
    }

    #[test]
    fn what_continues_us_alone_continues_the_job() {
        let mut job = stopped(JobControl::new(true));
        assert!(job.resumed(true, false));
        assert_eq!(job.due(), None);
        assert!(!job.resumed(false, false), "nobody has continued us");
        assert!(!JobControl::new(false).resumed(true, false), "no shell");
    }

    #[test]
    fn the_wait_for_all_to_stop_leaves_time_to_renew() {
        let mut job = JobControl::new(true);
        let second = Duration::from_secs(1);
        assert_eq!(job.stopping(None), second);
        assert_eq!(job.stopping(Some(second * 30)), second);
        assert_eq!(job.stopping(Some(second * 2)), second / 2);
    }
}

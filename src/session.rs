//! One run as a state machine: what happened goes in, what to do comes out. Pure.
//!
//! The deadline is looked at before anything else, whatever the event: a redlock that was stopped,
//! or whose machine was suspended, must not first answer a question that came in meanwhile.

use std::process::ExitStatus;
use std::time::Duration;

use crate::clock::Moment;
use crate::exit::Exit;
use crate::lease::Lease;
use crate::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use crate::sys::Arrived;

/// What a run was asked to do.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The child shares a terminal's foreground group with us.
    pub on_terminal: bool,
    /// We lead the session, so the kernel tells us alone when the terminal hangs up.
    pub leads_session: bool,
    /// Go on when the lock is lost.
    pub only_warn: bool,
    /// The time between SIGTERM and SIGKILL.
    pub kill_after: Duration,
    /// When to stop COMMAND.
    pub timeout_at: Option<Moment>,
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The time that [`Session::due`] named has come, or just a look at the clock.
    Tick,
    Signal(Arrived),
    /// The renewal that was asked for succeeded; it was sent at this moment.
    Renewed(Moment),
    /// The server said, asked at this moment, that the lock is ours for so much more.
    Confirmed(Moment, Duration),
    /// It failed, and nobody knows whether the lock is still ours.
    RenewalFailed,
    /// The lock is definitely not ours any more.
    Lost,
    /// A newer run wants this one to end.
    Cancelled,
    /// The job has given the lock back by itself.
    Returned,
    /// COMMAND ended.
    Ended(ExitStatus),
    /// COMMAND and all its descendants ended.
    TreeEnded,
}

/// What to do about it, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pass a signal on to the child.
    Forward(i32),
    /// Stop ourselves, as the child was.
    Suspend,
    /// Renew the lock, in the background.
    Renew,
    /// Say that the lock is lost and COMMAND goes on without.
    Warn,
    /// Ask COMMAND and all its descendants to stop.
    Stop(Why),
    /// Kill COMMAND and all its descendants.
    Kill(Why),
    /// The run is over.
    Finish(Exit),
}

/// Why COMMAND is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The lock is lost, or is about to be.
    Lost,
    /// A newer run wants the lock.
    Cancelled,
    /// `--timeout` is over.
    Timeout,
    /// Somebody sent a signal.
    Signal,
}

/// What protects COMMAND.
#[derive(Clone, Copy, Debug)]
enum Guard {
    Held(Lease),
    Lost,
    /// Nothing, and the user wanted it so: Redis couldn't be reached, or the job has given the lock
    /// back.
    Without,
}

/// How far the run has come.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Running,
    /// COMMAND got an INT, which it may take for more than a request to end. Another INT or TERM
    /// before this moment (none: whenever) is meant seriously.
    Interrupted {
        until: Option<Moment>,
    },
    /// COMMAND was asked to stop.
    Stopping {
        why: Why,
        kill_at: Moment,
    },
    /// COMMAND was killed; what can't be killed isn't waited for longer than this.
    Killed {
        why: Why,
        until: Moment,
    },
}

/// How long descendants may take to vanish after SIGKILL.
const DYING: Duration = Duration::from_secs(1);

/// The state of one run.
#[derive(Debug)]
pub struct Session {
    terms: Terms,
    guard: Guard,
    phase: Phase,
    ended: Option<ExitStatus>,
}

impl Session {
    /// COMMAND has been started; under a lease, or without a lock.
    pub fn new(terms: Terms, lease: Option<Lease>) -> Self {
        Self {
            terms,
            guard: lease.map_or(Guard::Without, Guard::Held),
            phase: Phase::Running,
            ended: None,
        }
    }

    /// When to look at the clock again.
    pub fn due(&self) -> Option<Moment> {
        let guard = match (self.guard, self.phase) {
            (Guard::Held(lease), Phase::Running | Phase::Interrupted { .. }) => [
                Some(self.end_of_patience(&lease)),
                lease.renew_at(),
                self.terms.timeout_at,
            ],
            (Guard::Held(lease), Phase::Stopping { .. }) => {
                [Some(lease.deadline()), lease.renew_at(), None]
            }
            (Guard::Held(lease), Phase::Killed { .. }) => [lease.renew_at(), None, None],
            (Guard::Lost | Guard::Without, Phase::Running | Phase::Interrupted { .. }) => {
                [self.terms.timeout_at, None, None]
            }
            (Guard::Lost | Guard::Without, Phase::Stopping { .. } | Phase::Killed { .. }) => {
                [None; 3]
            }
        };
        let phase = match self.phase {
            Phase::Running | Phase::Interrupted { .. } => None,
            Phase::Stopping { kill_at, .. } => Some(kill_at),
            Phase::Killed { until, .. } => self.ended.map(|_| until),
        };
        guard.into_iter().flatten().chain(phase).min()
    }

    /// Takes an event in, and says what to do.
    pub fn on_event(&mut self, event: Event, now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        self.look_at_the_clock(now, &mut actions);
        match event {
            Event::Tick => {}
            Event::Signal(arrived) => self.signalled(arrived, now, &mut actions),
            Event::Renewed(sent) => {
                if let Guard::Held(lease) = &mut self.guard {
                    lease.renewed(sent);
                }
            }
            Event::RenewalFailed => {
                if let Guard::Held(lease) = &mut self.guard {
                    lease.retry(now);
                }
            }
            Event::Confirmed(sent, left) => {
                if let Guard::Held(lease) = &mut self.guard {
                    lease.confirmed(sent, left);
                }
            }
            Event::Cancelled => self.stop(Why::Cancelled, now + self.grace(), &mut actions),
            Event::Lost => self.lost(now, &mut actions),
            Event::Returned => {
                if let Guard::Held(_) = self.guard {
                    self.guard = Guard::Without;
                }
            }
            Event::Ended(status) => {
                self.ended = Some(status);
                match self.phase {
                    Phase::Running => actions.push(Action::Finish(self.exit())),
                    Phase::Interrupted { until } if until.is_some_and(|until| now > until) => {
                        actions.push(Action::Finish(self.exit()));
                    }
                    // Its descendants have the same grace as if they had been asked by a TERM.
                    Phase::Interrupted { .. } => {
                        self.phase = Phase::Stopping {
                            why: Why::Signal,
                            kill_at: now + self.grace(),
                        };
                    }
                    Phase::Stopping { .. } | Phase::Killed { .. } => {}
                }
            }
            Event::TreeEnded => actions.push(Action::Finish(self.exit())),
        }
        actions
    }

    fn look_at_the_clock(&mut self, now: Moment, actions: &mut Vec<Action>) {
        if let Guard::Held(lease) = self.guard {
            if now >= lease.deadline() && !self.terms.only_warn {
                self.kill(Why::Lost, now, actions);
            } else if now >= self.end_of_patience(&lease) {
                if self.terms.only_warn {
                    self.lost(now, actions);
                } else {
                    self.stop(Why::Lost, lease.deadline(), actions);
                }
            }
        }
        // A COMMAND that is being stopped still needs its lock, so that goes on.
        if let Guard::Held(lease) = &mut self.guard
            && lease.renew_now(now)
        {
            actions.push(Action::Renew);
        }
        if self.terms.timeout_at.is_some_and(|at| now >= at) {
            self.stop(Why::Timeout, now + self.grace(), actions);
        }
        match self.phase {
            Phase::Stopping { why, kill_at } if now >= kill_at => self.kill(why, now, actions),
            Phase::Killed { until, .. } if now >= until && self.ended.is_some() => {
                actions.push(Action::Finish(self.exit()));
            }
            Phase::Running
            | Phase::Interrupted { .. }
            | Phase::Stopping { .. }
            | Phase::Killed { .. } => {}
        }
    }

    /// Until when a renewal may fail without consequence.
    fn end_of_patience(&self, lease: &Lease) -> Moment {
        if self.terms.only_warn {
            lease.deadline()
        } else {
            lease.stop_at()
        }
    }

    fn signalled(&mut self, arrived: Arrived, now: Moment, actions: &mut Vec<Action>) {
        let typed = self.is_known_to_child(arrived);
        if !typed {
            actions.push(Action::Forward(arrived.signal));
        }
        match arrived.signal {
            SIGTSTP => actions.push(Action::Suspend),
            SIGINT | SIGTERM => match self.phase {
                Phase::Interrupted { until } if until.is_none_or(|until| now <= until) => {
                    self.kill(Why::Signal, now, actions);
                }
                Phase::Running | Phase::Interrupted { .. } if arrived.signal == SIGINT => {
                    // On a terminal a Ctrl-C may be an everyday key of an interactive COMMAND.
                    self.phase = Phase::Interrupted {
                        until: typed.then(|| now + self.grace()),
                    };
                }
                Phase::Running | Phase::Interrupted { .. } => {
                    self.phase = Phase::Stopping {
                        why: Why::Signal,
                        kill_at: now + self.grace(),
                    };
                }
                Phase::Stopping { why, .. } => self.kill(why, now, actions),
                Phase::Killed { .. } => {}
            },
            _ => {}
        }
    }

    /// Whether the terminal's driver sent it: then the whole foreground group has it.
    fn is_known_to_child(&self, arrived: Arrived) -> bool {
        let to_the_group = match arrived.signal {
            SIGINT | SIGQUIT | SIGWINCH => true,
            SIGHUP => !self.terms.leads_session,
            // A timer, say, that was set before redlock was executed.
            _ => false,
        };
        self.terms.on_terminal && arrived.from_kernel && to_the_group
    }

    fn lost(&mut self, now: Moment, actions: &mut Vec<Action>) {
        let Guard::Held(lease) = self.guard else {
            return;
        };
        self.guard = Guard::Lost;
        if self.terms.only_warn {
            actions.push(Action::Warn);
        } else {
            self.stop(
                Why::Lost,
                lease.deadline().min(now + lease.grace()),
                actions,
            );
        }
    }

    fn stop(&mut self, why: Why, kill_at: Moment, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Running | Phase::Interrupted { .. } => {
                self.phase = Phase::Stopping { why, kill_at };
                actions.push(Action::Stop(why));
            }
            // Being stopped already; the earlier end counts, and a lost lock is the graver reason.
            Phase::Stopping {
                why: before,
                kill_at: earlier,
            } => {
                let why = if why == Why::Lost { why } else { before };
                self.phase = Phase::Stopping {
                    why,
                    kill_at: earlier.min(kill_at),
                };
            }
            Phase::Killed { .. } => {}
        }
    }

    fn kill(&mut self, why: Why, now: Moment, actions: &mut Vec<Action>) {
        if !matches!(self.phase, Phase::Killed { .. }) {
            self.phase = Phase::Killed {
                why,
                until: now + DYING,
            };
            actions.push(Action::Kill(why));
        }
    }

    /// The time between SIGTERM and SIGKILL.
    fn grace(&self) -> Duration {
        match self.guard {
            Guard::Held(lease) => lease.grace(),
            Guard::Lost | Guard::Without => self.terms.kill_after,
        }
    }

    fn exit(&self) -> Exit {
        let why = match self.phase {
            Phase::Running | Phase::Interrupted { .. } => Why::Signal,
            Phase::Stopping { why, .. } | Phase::Killed { why, .. } => why,
        };
        match (self.guard, why) {
            (Guard::Lost, _) | (_, Why::Lost) => Exit::Lost,
            (_, Why::Cancelled) => Exit::Cancelled,
            (_, Why::Timeout) => Exit::Timeout,
            (_, Why::Signal) => self.ended.map_or(Exit::Internal, Exit::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use libc::{SIGALRM, SIGCONT};

    const START: Moment = Moment::at(Duration::from_secs(100));

    fn at(ms: u64) -> Moment {
        START + Duration::from_millis(ms)
    }

    fn terms() -> Terms {
        Terms {
            on_terminal: false,
            leads_session: false,
            only_warn: false,
            kill_after: Duration::from_secs(5),
            timeout_at: None,
        }
    }

    /// A session that was renewed at START for the first time.
    fn session(terms: Terms) -> Session {
        let acquired = START.before(Duration::from_millis(50));
        let lease = Lease::new(acquired, Duration::from_secs(30), terms.kill_after);
        let mut session = Session::new(terms, Some(lease));
        assert_eq!(session.on_event(Event::Tick, START), [Action::Renew]);
        session.on_event(Event::Renewed(START), START);
        session
    }

    fn sent(signal: i32) -> Event {
        Event::Signal(Arrived {
            signal,
            from_kernel: false,
        })
    }

    fn typed(signal: i32) -> Event {
        Event::Signal(Arrived {
            signal,
            from_kernel: true,
        })
    }

    fn ended(code: i32) -> Event {
        Event::Ended(ExitStatus::from_raw(code << 8))
    }

    #[test]
    fn a_renewal_is_asked_for_once_and_again_after_its_answer() {
        let mut session = session(terms());
        assert_eq!(session.due(), Some(at(10_000)));
        assert_eq!(session.on_event(Event::Tick, at(10_000)), [Action::Renew]);
        assert_eq!(session.on_event(Event::Tick, at(11_000)), []);
        session.on_event(Event::Renewed(at(10_001)), at(11_000));
        assert_eq!(session.due(), Some(at(20_000)));
        assert_eq!(session.on_event(Event::Tick, at(20_000)), [Action::Renew]);
        session.on_event(Event::RenewalFailed, at(23_000));
        assert_eq!(session.due(), Some(at(24_000)));
    }

    #[test]
    fn a_cancelled_run_is_stopped_while_its_lock_is_kept_alive() {
        let mut session = session(terms());
        let stop = [Action::Stop(Why::Cancelled)];
        assert_eq!(session.on_event(Event::Cancelled, at(1_000)), stop);
        assert_eq!(session.on_event(Event::Cancelled, at(2_000)), []);
        let kill = [Action::Kill(Why::Cancelled)];
        assert_eq!(session.on_event(Event::Tick, at(6_000)), kill);
        session.on_event(Event::Ended(ExitStatus::from_raw(9)), at(6_001));
        assert_eq!(session.due(), Some(at(7_000)));
        assert_eq!(
            session.on_event(Event::TreeEnded, at(6_002)),
            [Action::Finish(Exit::Cancelled)]
        );
    }

    #[test]
    fn a_lock_that_the_job_gave_back_is_neither_renewed_nor_missed() {
        let mut session = session(terms());
        assert_eq!(session.on_event(Event::Returned, at(100)), []);
        assert_eq!(session.due(), None);
        assert_eq!(session.on_event(Event::Lost, at(200)), []);
        assert_eq!(
            session.on_event(ended(7), at(60_000)),
            [Action::Finish(Exit::Command(7))]
        );
    }

    #[test]
    fn an_expiring_lease_stops_the_child_and_kills_it_at_the_deadline() {
        let mut session = session(terms());
        session.on_event(Event::Tick, at(10_000));
        assert_eq!(session.due(), Some(at(24_698)));
        assert_eq!(
            session.on_event(Event::Tick, at(24_698)),
            [Action::Stop(Why::Lost)]
        );
        assert_eq!(session.due(), Some(at(29_698)));
        assert_eq!(
            session.on_event(Event::Tick, at(29_698)),
            [Action::Kill(Why::Lost)]
        );
        session.on_event(ended(0), at(29_699));
        assert_eq!(
            session.on_event(Event::TreeEnded, at(29_699)),
            [Action::Finish(Exit::Lost)]
        );
    }

    #[test]
    fn no_moment_stays_due_after_it_was_looked_at() {
        let mut session = session(Terms {
            timeout_at: Some(at(3_000)),
            ..terms()
        });
        let mut last = START;
        for _ in 0..100 {
            let Some(due) = session.due() else { break };
            assert!(due > last, "{session:?} is due again at {due:?}");
            last = due;
            let actions = session.on_event(Event::Tick, due);
            if actions.contains(&Action::Renew) {
                session.on_event(Event::RenewalFailed, due);
            }
        }
    }

    #[test]
    fn whatever_wakes_a_sleeper_past_the_deadline_the_child_is_killed_first() {
        for event in [
            Event::Tick,
            sent(SIGCONT),
            Event::Renewed(at(40_000)),
            sent(SIGHUP),
        ] {
            let mut session = session(terms());
            assert_eq!(
                session.on_event(event, at(40_000)).first(),
                Some(&Action::Kill(Why::Lost))
            );
        }
    }

    #[test]
    fn a_lock_that_is_definitely_lost_stops_the_child_now() {
        let mut session = session(terms());
        assert_eq!(
            session.on_event(Event::Lost, at(1_000)),
            [Action::Stop(Why::Lost)]
        );
        assert_eq!(session.due(), Some(at(6_000)));
        session.on_event(ended(0), at(1_500));
        assert_eq!(
            session.on_event(Event::TreeEnded, at(1_500)),
            [Action::Finish(Exit::Lost)]
        );
    }

    #[test]
    fn with_on_lost_warn_the_child_goes_on_and_the_status_says_it() {
        let mut session = session(Terms {
            only_warn: true,
            ..terms()
        });
        assert_eq!(session.on_event(Event::Lost, at(1_000)), [Action::Warn]);
        assert_eq!(session.on_event(Event::Lost, at(2_000)), []);
        assert_eq!(session.due(), None);
        assert_eq!(
            session.on_event(ended(0), at(90_000)),
            [Action::Finish(Exit::Lost)]
        );
    }

    #[test]
    fn a_term_is_passed_on_and_followed_by_a_kill_after_the_grace() {
        let mut session = session(terms());
        assert_eq!(
            session.on_event(sent(SIGTERM), at(0)),
            [Action::Forward(SIGTERM)]
        );
        assert_eq!(
            session.on_event(Event::Tick, at(5_000)),
            [Action::Kill(Why::Signal)]
        );
    }

    #[test]
    fn a_second_int_or_term_kills_at_once() {
        for (first, second) in [
            (SIGINT, SIGINT),
            (SIGINT, SIGTERM),
            (SIGTERM, SIGINT),
            (SIGTERM, SIGTERM),
        ] {
            let mut session = session(terms());
            session.on_event(sent(first), at(0));
            let actions = session.on_event(sent(second), at(9_000).before(Duration::from_secs(8)));
            assert_eq!(
                actions,
                [Action::Forward(second), Action::Kill(Why::Signal)]
            );
        }
    }

    #[test]
    fn an_int_alone_never_kills_and_typed_ones_far_apart_do_not_either() {
        let mut session = session(Terms {
            on_terminal: true,
            ..terms()
        });
        assert_eq!(session.on_event(typed(SIGINT), at(0)), []);
        assert_eq!(session.on_event(Event::Tick, at(6_000)), []);
        assert_eq!(session.on_event(typed(SIGINT), at(7_000)), []);
        assert_eq!(
            session.on_event(typed(SIGINT), at(8_000)),
            [Action::Kill(Why::Signal)]
        );
    }

    #[test]
    fn what_the_terminal_told_the_whole_group_is_not_passed_on_again() {
        let terms = Terms {
            on_terminal: true,
            ..terms()
        };
        for (terms, event, expected) in [
            (terms, typed(SIGHUP), vec![]),
            (terms, typed(SIGWINCH), vec![]),
            (terms, typed(SIGALRM), vec![Action::Forward(SIGALRM)]),
            (terms, sent(SIGHUP), vec![Action::Forward(SIGHUP)]),
            (
                Terms {
                    leads_session: true,
                    ..terms
                },
                typed(SIGHUP),
                vec![Action::Forward(SIGHUP)],
            ),
        ] {
            assert_eq!(session(terms).on_event(event, at(0)), expected, "{event:?}");
        }
    }

    #[test]
    fn the_timeout_stops_then_kills_and_is_the_status() {
        let mut session = session(Terms {
            timeout_at: Some(at(2_000)),
            ..terms()
        });
        assert_eq!(session.due(), Some(at(2_000)));
        assert_eq!(
            session.on_event(Event::Tick, at(2_000)),
            [Action::Stop(Why::Timeout)]
        );
        assert_eq!(session.due(), Some(at(7_000)));
        session.on_event(ended(0), at(2_100));
        assert_eq!(
            session.on_event(Event::TreeEnded, at(2_100)),
            [Action::Finish(Exit::Timeout)]
        );
    }

    #[test]
    fn descendants_of_an_interrupted_command_have_the_grace_to_end() {
        let mut session = session(terms());
        session.on_event(sent(SIGINT), at(0));
        assert_eq!(session.on_event(ended(130), at(10)), []);
        assert_eq!(
            session.on_event(Event::TreeEnded, at(20)),
            [Action::Finish(Exit::Command(130))]
        );
    }

    #[test]
    fn what_cannot_be_killed_is_not_waited_for_for_ever() {
        let mut session = session(terms());
        session.on_event(sent(SIGTERM), at(0));
        session.on_event(sent(SIGTERM), at(1));
        session.on_event(ended(1), at(2));
        assert_eq!(session.due(), Some(at(1_001)));
        assert_eq!(
            session.on_event(Event::Tick, at(1_001)),
            [Action::Finish(Exit::Command(1))]
        );
    }

    #[test]
    fn without_a_lock_only_signals_and_the_timeout_count() {
        let mut session = Session::new(terms(), None);
        assert_eq!(session.due(), None);
        assert_eq!(
            session.on_event(ended(3), at(99_000)),
            [Action::Finish(Exit::Command(3))]
        );
    }
}

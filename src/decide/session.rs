//! A run as a state machine: events go in, actions come out. Pure.
//!
//! The lease is read from [`Renewals`], its single owner; a session never keeps or changes it. Every event
//! checks the deadline first: after a suspend of redlock or its machine, nothing that came in meanwhile may
//! be handled before the deadline.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::clock::Moment;
use crate::decide::exit::Exit;
use crate::decide::lease::Lease;
use crate::decide::renewals::{LockNews, Renewals};
use crate::signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH, asks_to_end};
use crate::sys::{Reach, ReceivedSignal};

/// Options and circumstances of a run.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // Each is one option, or one fact.
pub struct Policy {
    /// redlock is a job on a terminal, and the child shares its process group unless it has left the group.
    pub on_terminal: bool,
    /// redlock leads the session, so the kernel tells redlock alone when the terminal hangs up.
    pub leads_session: bool,
    /// Continue when the lock is lost.
    pub only_warn: bool,
    /// The run lasts until all of COMMAND's tree has ended.
    pub with_children: bool,
    /// Time between SIGTERM and SIGKILL.
    pub kill_after: Duration,
    /// Longest time that COMMAND may take.
    pub timeout: Option<Duration>,
    /// A hook must learn of events.
    pub has_hook: bool,
}

/// An input of the session.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The time from [`Session::due`] has come, or it is just a look at the clock.
    Tick,
    Signal(ReceivedSignal),
    /// Consequence of an answer about the locks.
    News(&'a LockNews),
    /// A signal stopped COMMAND, but not redlock.
    Stopped,
    /// COMMAND ended.
    Ended(ExitStatus),
    /// COMMAND has ended, and so has all of its tree.
    TreeEnded,
}

/// An output of the session, to be performed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pass a signal on to the child.
    Forward(i32),
    /// Pass on a signal that redlock's whole process group has got: to the child only if it has left the
    /// group.
    ForwardOutside(i32),
    /// Stop redlock itself, as the child was.
    Suspend,
    /// Warn that the lock is lost and COMMAND continues without it.
    Warn,
    /// Ask COMMAND and all its tree to terminate, except the processes that a TERM has reached already.
    Terminate(StopReason, Reach),
    /// Ask the processes of its tree to terminate that didn't get the INT after which COMMAND ended.
    TerminateOthers,
    /// Kill COMMAND and all its tree.
    Kill(StopReason),
    /// Kill processes that have escaped, or were forked meanwhile.
    KillRest,
    /// Report the processes that can't be killed, for which the lock is kept.
    NameSurvivors,
    /// Report how long Redis hasn't answered, and when COMMAND must stop if that goes on.
    ReportSilence {
        lasting: Duration,
        stop_in: Duration,
    },
    /// Report that Redis answers again.
    ReportAnswer,
    /// Tell the hook that the lock is lost.
    TellLost,
    /// The run is over.
    Finish(Exit),
}

/// Reason to stop COMMAND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The lock is lost, or is about to be.
    Lost,
    /// A newer run wants the lock.
    Cancelled,
    /// `--max-runtime` is over.
    Timeout,
    /// redlock got a signal.
    Signal,
    /// COMMAND was ended by a signal, and its descendants are still there.
    Leftovers,
}

/// Progress of the run.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// COMMAND is at work. COMMAND may use an INT for more than a request to end. An end before `ends_by_int`
    /// is due to the INT, and a signal after that moment is a new request.
    Running { ends_by_int: Option<Moment> },
    /// COMMAND was asked to terminate.
    Terminating { reason: StopReason, kill_at: Moment },
    /// COMMAND was killed. The rest of its tree is killed again up to a moment, because new processes may
    /// have been forked.
    Killed(Kill),
}

/// Progress of killing the rest.
#[derive(Clone, Copy, Debug)]
struct Kill {
    reason: StopReason,
    again: Moment,
    until: Moment,
    /// Some process can't be killed: redlock tries again, less often, and keeps the lease for it.
    is_stuck: bool,
    /// A person wants redlock to end, whatever is left.
    leaves: bool,
}

impl Default for Phase {
    fn default() -> Self {
        Self::Running { ends_by_int: None }
    }
}

/// Longest time of the tree to end after SIGKILL; a process that takes longer can't be killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time to kill a large tree, in units of the time to find it. Killed processes compete for the processors in
/// order to end (measured: 5,000 processes on two cores, idle and busy).
const WALKS_TO_KILL: u32 = 4;

/// Pause between two searches for processes that have escaped SIGKILL: long compared with a fork, short for
/// people.
const KILL_PAUSE: Duration = Duration::from_millis(10);

/// Time within which a repeated signal is the same request, and a different signal no escalation. `timeout`,
/// a shell or an outer redlock passes a signal on within milliseconds, and nobody types it faster.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// Delay of a wake-up after which an answer may be waiting, and the time in which to read it first.
const OVERSLEPT: Duration = Duration::from_millis(200);

/// The state of one run.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Session {
    policy: Policy,
    /// Time at which to stop COMMAND.
    timeout_at: Option<Moment>,
    /// The lock is lost: the lease no longer protects COMMAND.
    is_lost: bool,
    phase: Phase,
    /// Time of the first INT or TERM to redlock.
    first_signal_at: Option<Moment>,
    /// Signals that ask to end, and when each came last, without repetitions.
    received: Vec<(i32, Moment)>,
    /// Some process may not be signalled.
    refused: bool,
    /// Time of the last search for all of COMMAND's tree.
    walk: Duration,
    ended: Option<ExitStatus>,
    /// Nothing of COMMAND's tree is left.
    tree_ended: bool,
    /// Signal that asked the rest of the tree to end after COMMAND itself had ended.
    rest_ended_by: Option<i32>,
    /// The session woke up much later than planned: it reads waiting answers until then.
    catches_up_until: Option<Moment>,
    /// The user knows that Redis doesn't answer.
    is_silent: bool,
    /// The hook knows that the lock is lost.
    loss_told: bool,
    /// Consequences of the present event.
    actions: Vec<Action>,
}

impl Session {
    /// Returns the session of a COMMAND that started at this moment.
    pub fn new(policy: Policy, began: Moment) -> Self {
        Self {
            policy,
            timeout_at: policy.timeout.map(|timeout| began + timeout),
            ..Self::default()
        }
    }

    /// Returns the lease of the held locks if it protects COMMAND. A run may also have no such lease, because
    /// Redis couldn't be reached or the job has released the lock.
    fn protection(&self, lease: Option<Lease>) -> Option<Lease> {
        lease.filter(|_| !self.is_lost)
    }

    /// Records how long the search for all of COMMAND's tree took.
    pub fn walked(&mut self, walk: Duration) {
        self.walk = walk;
    }

    /// Records that some process of COMMAND's tree may not be signalled. Returns true if that was known.
    pub fn was_refused(&mut self) -> bool {
        std::mem::replace(&mut self.refused, true)
    }

    /// Returns when to look at the clock again.
    pub fn due(&self, renewals: &Renewals) -> Option<Moment> {
        let again = match self.phase {
            Phase::Running { .. } | Phase::Terminating { .. } => None,
            Phase::Killed(killed) => Some(killed.again),
        };
        let due = self.next_stop(renewals).into_iter().chain(again);
        due.chain(self.silent_at(renewals)).min()
    }

    /// Returns true if COMMAND is at work, and isn't being stopped.
    fn is_left_alone(&self) -> bool {
        matches!(self.phase, Phase::Running { .. }) && self.ended.is_none()
    }

    /// Returns when to report that Redis doesn't answer, unless the user knows. Later news may change that.
    fn silent_at(&self, renewals: &Renewals) -> Option<Moment> {
        let lease = self.protection(renewals.lease());
        let lease = lease.filter(|_| self.is_left_alone() && !self.is_silent)?;
        let at = lease.silent_at(renewals.asks_since()?, self.renewal_deadline(&lease))?;
        Some(self.catches_up_until.map_or(at, |until| at.max(until)))
    }

    /// Reports once that Redis doesn't answer, and once that it answers again.
    fn report_silence(&mut self, renewals: &Renewals, now: Moment) {
        if self.is_silent && renewals.asks_since().is_none() {
            self.is_silent = false;
            if self.is_left_alone() {
                self.actions.push(Action::ReportAnswer);
            }
            return;
        }
        let (Some(lease), Some(at)) = (renewals.lease(), self.silent_at(renewals)) else {
            return;
        };
        if now < at {
            return;
        }
        if now.since(at) >= OVERSLEPT {
            self.catches_up_until = Some(now + OVERSLEPT);
        } else {
            self.is_silent = true;
            self.actions.push(Action::ReportSilence {
                lasting: lease.age(now),
                stop_in: self.renewal_deadline(&lease).since(now),
            });
        }
    }

    /// Returns when COMMAND must be asked to stop, or, if it was asked, killed: nothing may delay that.
    pub fn next_stop(&self, renewals: &Renewals) -> Option<Moment> {
        let lease = self.protection(renewals.lease());
        let (by_lease, other) = match self.phase {
            Phase::Running { .. } => (
                lease.map(|lease| self.renewal_deadline(&lease)),
                self.timeout_at,
            ),
            Phase::Terminating { kill_at, .. } => {
                (lease.map(|lease| self.kill_by(&lease)), Some(kill_at))
            }
            Phase::Killed(_) => return None,
        };
        by_lease.into_iter().chain(other).min()
    }

    /// Handles an event. Returns the actions.
    pub fn on_event(&mut self, event: Event, renewals: &Renewals, now: Moment) -> Vec<Action> {
        let was_lost = self.is_lost;
        // This may run late, for an answer as well as for a tick.
        let lease = match event {
            Event::News(&LockNews::Held {
                too_late: Some(before),
                ..
            }) => {
                self.check_deadlines(Some(before), now);
                renewals.lease()
            }
            Event::News(&LockNews::Lost { lease, .. }) => lease,
            _ => renewals.lease(),
        };
        self.check_deadlines(lease, now);
        let protection = self.protection(lease);
        match event {
            Event::Signal(received) => self.on_signal(received, protection, now),
            Event::News(LockNews::Cancelled(..) | LockNews::Over(_)) => {
                let kill_at = now + self.grace(protection);
                self.terminate(StopReason::Cancelled, kill_at);
            }
            Event::News(LockNews::Lost { .. }) => match lease {
                // Another one of several locks is lost.
                Some(_) if was_lost && self.policy.only_warn => self.actions.push(Action::Warn),
                Some(before) => self.on_lost(before, now),
                None => {}
            },
            // The lease shows the rest.
            Event::Tick
            | Event::News(LockNews::Held { .. } | LockNews::Released(_) | LockNews::Failed(_)) => {}
            Event::Stopped => self.actions.push(Action::Suspend),
            Event::Ended(status) => self.on_end(status, protection, now),
            Event::TreeEnded => {
                self.tree_ended = true;
                self.actions.push(Action::Finish(self.exit()));
            }
        }
        self.report_silence(renewals, now);
        if self.policy.has_hook && !self.loss_told && self.exit() == Exit::Lost {
            self.loss_told = true;
            // No action follows the end.
            let is_end = |action: &Action| matches!(action, Action::Finish(_));
            let at = self
                .actions
                .iter()
                .position(is_end)
                .unwrap_or(self.actions.len());
            self.actions.insert(at, Action::TellLost);
        }
        std::mem::take(&mut self.actions)
    }

    fn check_deadlines(&mut self, lease: Option<Lease>, now: Moment) {
        if let Some(lease) = self.protection(lease) {
            if now >= self.kill_by(&lease) && !self.policy.only_warn {
                self.kill(StopReason::Lost, now);
            } else if now >= self.renewal_deadline(&lease) {
                if self.policy.only_warn {
                    self.on_lost(lease, now);
                } else {
                    self.terminate(StopReason::Lost, self.kill_by(&lease));
                }
            }
        }
        let protection = self.protection(lease);
        if self.timeout_at.is_some_and(|at| now >= at) {
            let kill_at = now + self.grace(protection);
            self.terminate(StopReason::Timeout, kill_at);
        }
        self.check_kill(protection, now);
    }

    /// Kills COMMAND when its grace is over, and kills the rest of its tree again and again.
    fn check_kill(&mut self, protection: Option<Lease>, now: Moment) {
        if let Phase::Terminating { reason, kill_at } = self.phase
            && now >= kill_at
        {
            self.kill(reason, now);
        }
        let may_leave = self.has_nothing_to_keep(protection, now);
        let Phase::Killed(killed) = &mut self.phase else {
            return;
        };
        let is_late = now >= killed.until;
        if is_late && (killed.leaves || may_leave) {
            return self.actions.push(Action::Finish(self.exit()));
        }
        let is_news = is_late && !std::mem::replace(&mut killed.is_stuck, is_late);
        if is_news || now >= killed.again {
            // A search in a large tree takes time from processes that are about to end.
            let walk = KILL_PAUSE.max(self.walk);
            killed.again = now + if is_late { KILL_TIMEOUT } else { walk };
            self.actions.push(Action::KillRest);
        }
        self.actions
            .extend(is_news.then_some(Action::NameSurvivors));
    }

    /// Returns true if no lease is left that could be kept for a process that can't be killed. redlock still
    /// waits for COMMAND itself if COMMAND could be sent SIGKILL.
    fn has_nothing_to_keep(&self, protection: Option<Lease>, now: Moment) -> bool {
        let is_kept = protection.is_some_and(|lease| now < lease.deadline());
        !is_kept && (self.ended.is_some() || self.refused)
    }

    /// Returns when COMMAND and all its tree must be killed.
    fn kill_by(&self, lease: &Lease) -> Moment {
        lease.deadline().before(self.killing_time(lease.length()))
    }

    /// Returns the time to reserve for killing a large tree, but at most a third of the length, so that there
    /// is time for renewals.
    fn killing_time(&self, length: Duration) -> Duration {
        (self.walk * WALKS_TO_KILL).min(length / 3)
    }

    /// Returns by when COMMAND must be dead, for the watchdog.
    pub fn dead_by(&self, renewals: &Renewals) -> Option<Moment> {
        match (self.protection(renewals.lease()), self.phase) {
            _ if self.policy.only_warn => None,
            (Some(lease), _) => Some(self.kill_by(&lease)),
            (None, Phase::Terminating { kill_at, .. }) if self.is_lost => Some(kill_at),
            (None, _) => None,
        }
    }

    /// Returns how long COMMAND may live after a successful renewal is sent; `None` if no renewal matters.
    pub fn by_renewal(&self, renewals: &Renewals) -> Option<Duration> {
        let (ttl, usable) = self.protection(renewals.lease())?.by_renewal()?;
        Some(usable.saturating_sub(self.killing_time(ttl)))
    }

    /// Returns until when a renewal may fail without consequence.
    fn renewal_deadline(&self, lease: &Lease) -> Moment {
        if self.policy.only_warn {
            lease.deadline()
        } else {
            lease.stop_at().min(self.kill_by(lease))
        }
    }

    fn on_signal(&mut self, received: ReceivedSignal, protection: Option<Lease>, now: Moment) {
        let signal = received.signal;
        let typed = self.is_typed(received);
        let reach = if typed { Reach::Group } else { received.reach };
        let has_group_got_it = matches!(reach, Reach::Group | Reach::All);
        let forward = match reach {
            // Not again, because some programs abort at a second TERM.
            Reach::All => None,
            Reach::Group => Some(Action::ForwardOutside(signal)),
            Reach::Unknown => Some(Action::Forward(signal)),
        };
        if asks_to_end(signal) {
            // A hang-up may be a routine request to reload a configuration.
            let is_repeated = |&(of, at): &(i32, Moment)| {
                of == signal && signal != SIGHUP && now.since(at) < SAME_REQUEST
            };
            if !typed && self.received.iter().any(is_repeated) {
                return;
            }
            self.received.retain(|&(of, _)| of != signal);
            self.received.push((signal, now));
            if let Phase::Killed(killed) = &mut self.phase {
                killed.leaves = true;
                if killed.is_stuck {
                    return self.actions.push(Action::Finish(self.exit()));
                }
            }
        }
        if let Phase::Running { ends_by_int } = &mut self.phase
            && ends_by_int.take_if(|until| now > *until).is_some()
        {
            // COMMAND has survived the INT.
            self.first_signal_at = None;
        }
        let kill_at = now + self.grace(protection);
        let by_term = if signal == SIGTERM {
            reach
        } else {
            Reach::Unknown
        };
        match signal {
            // Nobody is left who could take the signal for anything else.
            SIGINT | SIGTERM if self.awaits_rest() => {
                self.first_signal_at = Some(now);
                self.rest_ended_by = Some(signal);
                self.terminate_unreached(StopReason::Signal, by_term, kill_at);
            }
            SIGINT | SIGTERM => {
                // A typed INT is a routine key of an interactive COMMAND.
                let first = if typed {
                    now
                } else {
                    *self.first_signal_at.get_or_insert(now)
                };
                if now.since(first) >= SAME_REQUEST {
                    self.kill(self.reason(), now);
                } else if signal == SIGTERM {
                    self.terminate_unreached(StopReason::Signal, by_term, kill_at);
                } else {
                    self.actions.extend(forward);
                    if let Phase::Running { ends_by_int } = &mut self.phase {
                        *ends_by_int = Some(kill_at);
                    }
                }
            }
            SIGTSTP if has_group_got_it => {
                self.actions
                    .extend(forward.into_iter().chain([Action::Suspend]));
            }
            _ => self.actions.extend(forward),
        }
    }

    /// Returns true if COMMAND has ended, and redlock waits for its descendants.
    fn awaits_rest(&self) -> bool {
        matches!(self.phase, Phase::Running { .. }) && self.ended.is_some()
    }

    /// Returns true if the terminal's driver sent the signal: then the whole foreground group has it,
    /// including redlock's.
    fn is_typed(&self, received: ReceivedSignal) -> bool {
        let to_the_group = match received.signal {
            SIGINT | SIGQUIT | SIGTSTP | SIGWINCH => true,
            SIGHUP => !self.policy.leads_session,
            // For example, a timer that was set before redlock was executed.
            _ => false,
        };
        self.policy.on_terminal && received.from_kernel && to_the_group
    }

    fn on_end(&mut self, status: ExitStatus, protection: Option<Lease>, now: Moment) {
        self.ended = Some(status);
        let kill_at = now + self.grace(protection);
        match self.phase {
            // Its descendants have the grace to end, too.
            Phase::Running {
                ends_by_int: Some(until),
            } if now <= until => {
                let reason = StopReason::Signal;
                self.phase = Phase::Terminating { reason, kill_at };
                self.actions.push(Action::TerminateOthers);
            }
            Phase::Running { .. } => {
                let was_killed = status.signal().is_some();
                if was_killed && protection.is_some() {
                    self.terminate(StopReason::Leftovers, kill_at);
                } else if !self.policy.with_children {
                    self.actions.push(Action::Finish(self.exit()));
                }
            }
            Phase::Terminating { .. } | Phase::Killed(_) => {}
        }
    }

    /// Handles the loss of the lock, whose lease this was.
    fn on_lost(&mut self, lease: Lease, now: Moment) {
        if std::mem::replace(&mut self.is_lost, true) {
            return;
        }
        if self.policy.only_warn {
            self.actions.push(Action::Warn);
        } else {
            let kill_at = self.kill_by(&lease).min(now + lease.grace());
            self.terminate(StopReason::Lost, kill_at);
        }
    }

    fn terminate(&mut self, reason: StopReason, kill_at: Moment) {
        self.terminate_unreached(reason, Reach::Unknown, kill_at);
    }

    /// Terminates the processes that a TERM with this `reach` hasn't reached.
    fn terminate_unreached(&mut self, reason: StopReason, reach: Reach, kill_at: Moment) {
        match &mut self.phase {
            Phase::Running { .. } => {
                self.phase = Phase::Terminating { reason, kill_at };
                self.actions.push(Action::Terminate(reason, reach));
            }
            // Already being stopped: the earlier kill stays, and a lost lock is the graver reason.
            Phase::Terminating {
                reason: before,
                kill_at: earlier,
            } => {
                if reason == StopReason::Lost {
                    *before = reason;
                }
                *earlier = kill_at.min(*earlier);
            }
            Phase::Killed(_) => {}
        }
    }

    /// Returns true if COMMAND was killed.
    pub fn has_killed(&self) -> bool {
        matches!(self.phase, Phase::Killed(_))
    }

    /// Returns true if no work under the locks is left. After a kill, only the end of the whole tree shows
    /// that.
    pub fn is_over(&self) -> bool {
        self.tree_ended || (self.ended.is_some() && !self.has_killed())
    }

    /// Kills COMMAND, because it can't be supervised any more.
    pub fn give_up(&mut self, now: Moment) {
        self.kill(self.reason(), now);
        // Nobody performs further actions.
        self.actions.clear();
    }

    fn kill(&mut self, reason: StopReason, now: Moment) {
        if !self.has_killed() {
            self.phase = Phase::Killed(Kill {
                reason,
                again: now + KILL_PAUSE,
                until: now + KILL_TIMEOUT,
                is_stuck: false,
                leaves: false,
            });
            self.actions.push(Action::Kill(reason));
        }
    }

    /// Returns the time between SIGTERM and SIGKILL.
    fn grace(&self, protection: Option<Lease>) -> Duration {
        protection.map_or(self.policy.kill_after, |lease| lease.grace())
    }

    /// Returns the reason for which COMMAND is stopped, or a signal's if it isn't.
    fn reason(&self) -> StopReason {
        match self.phase {
            Phase::Running { .. } => StopReason::Signal,
            Phase::Terminating { reason, .. } | Phase::Killed(Kill { reason, .. }) => reason,
        }
    }

    /// Returns the end of the run, as far as it is known by now.
    pub fn exit(&self) -> Exit {
        match self.reason() {
            _ if self.is_lost => Exit::Lost,
            StopReason::Lost => Exit::Lost,
            StopReason::Cancelled => Exit::Cancelled,
            StopReason::Timeout => Exit::Timeout,
            StopReason::Signal | StopReason::Leftovers => {
                let ended = self.ended.map(|status| self.own_exit(status));
                ended.unwrap_or(Exit::Internal)
            }
        }
    }

    /// Returns redlock's exit for the end of COMMAND: by the same signal if redlock got it, too, or by the
    /// signal that ended the rest of its work.
    fn own_exit(&self, status: ExitStatus) -> Exit {
        match (status.signal(), self.rest_ended_by) {
            (Some(signal), _) if self.received.iter().any(|&(of, _)| of == signal) => {
                Exit::Interrupted(signal)
            }
            (None, Some(signal)) if status.success() => Exit::Interrupted(signal),
            _ => Exit::from(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::lease::Terms;
    use crate::decide::renewals::{Answer, Task};
    use crate::protocol::{Error, ErrorKind, LeaseState, Loss, Name, Who};
    use libc::{SIGALRM, SIGCONT};

    const START: Moment = Moment::at(Duration::from_secs(100));

    fn at(ms: u64) -> Moment {
        START + Duration::from_millis(ms)
    }

    fn policy() -> Policy {
        Policy {
            kill_after: Duration::from_secs(5),
            ..Policy::default()
        }
    }

    /// Returns the usual policy with a change.
    fn with(change: impl FnOnce(&mut Policy)) -> Policy {
        let mut policy = policy();
        change(&mut policy);
        policy
    }

    fn on_terminal() -> Policy {
        with(|it| it.on_terminal = true)
    }

    fn only_warn() -> Policy {
        with(|it| it.only_warn = true)
    }

    fn terms(ttl: u64) -> Terms {
        Terms {
            ttl: Duration::from_secs(ttl),
            kill_after: policy().kill_after,
            clock_skew: Duration::ZERO,
        }
    }

    /// A session and the lease that it reads. Events have their times in milliseconds from START; actions are
    /// texts, as `Debug` shows them.
    #[derive(Debug)]
    struct Run {
        session: Session,
        renewals: Renewals,
    }

    impl Run {
        fn without_lock(policy: Policy) -> Self {
            Self {
                session: Session::new(policy, START),
                renewals: Renewals::new(),
            }
        }

        /// Returns a run that was renewed at START for the first time.
        fn new(policy: Policy) -> Self {
            let mut run = Self::without_lock(policy);
            let sent = START.before(Duration::from_millis(50));
            run.renewals.add(name(), Lease::new(sent, terms(30)));
            assert_eq!(run.is_renewed(0, START), "");
            run
        }

        /// Returns a run that got a TERM at START, and whose COMMAND was killed 5 s later, in vain.
        fn killed_in_vain() -> Self {
            let mut run = Self::new(policy());
            run.on(0, sent(SIGTERM));
            run.session.was_refused();
            run.tick(5_000);
            run
        }

        fn on(&mut self, ms: u64, event: Event) -> String {
            let actions = self.session.on_event(event, &self.renewals, at(ms));
            let each = actions.iter().map(|action| format!("{action:?}"));
            each.collect::<Vec<_>>().join("; ")
        }

        fn tick(&mut self, ms: u64) -> String {
            self.on(ms, Event::Tick)
        }

        fn tree_ends(&mut self, ms: u64) -> String {
            self.on(ms, Event::TreeEnded)
        }

        /// Ends a task with this answer.
        fn learn(&mut self, ms: u64, answer: Result<Answer, Error>) -> String {
            let news = self.renewals.end(vec![answer], at(ms)).into_iter();
            let actions = news.map(|news| self.on(ms, Event::News(&news)));
            let actions: Vec<String> = actions.filter(|actions| !actions.is_empty()).collect();
            actions.join("; ")
        }

        fn learn_state(&mut self, ms: u64, state: LeaseState) -> String {
            self.learn(ms, Ok(answer(Task::Renew, at(ms), state)))
        }

        fn is_renewed(&mut self, ms: u64, sent: Moment) -> String {
            self.learn(ms, Ok(answer(Task::Renew, sent, held())))
        }

        fn fails(&mut self, ms: u64) -> String {
            self.learn(ms, Err(Error::new(ErrorKind::Unreachable, String::new())))
        }

        fn is_lost(&mut self, ms: u64) -> String {
            self.learn_state(ms, LeaseState::Lost(Loss::default()))
        }

        fn is_cancelled(&mut self, ms: u64) -> String {
            self.learn_state(
                ms,
                LeaseState::Held {
                    left: Duration::from_secs(30),
                    cancelled_by: Some(Box::new(Who::default())),
                },
            )
        }

        /// Has the job release its only lock.
        fn is_released(&mut self, ms: u64) -> String {
            self.learn_state(ms, LeaseState::Released)
        }

        fn due(&self) -> Option<Moment> {
            self.session.due(&self.renewals)
        }

        fn next_stop(&self) -> Option<Moment> {
            self.session.next_stop(&self.renewals)
        }

        fn dead_by(&self) -> Option<Moment> {
            self.session.dead_by(&self.renewals)
        }

        fn by_renewal(&self) -> Option<Duration> {
            self.session.by_renewal(&self.renewals)
        }
    }

    fn answer(task: Task, sent: Moment, state: LeaseState) -> Answer {
        Answer {
            task,
            sent,
            states: vec![(name(), state)],
        }
    }

    fn lost(lease: Option<Lease>) -> LockNews {
        LockNews::Lost {
            name: name(),
            loss: Loss::default(),
            lease,
        }
    }

    fn held() -> LeaseState {
        held_for(Duration::from_secs(30))
    }

    fn held_for(left: Duration) -> LeaseState {
        LeaseState::Held {
            left,
            cancelled_by: None,
        }
    }

    fn name() -> Name {
        "a".parse().unwrap()
    }

    fn received(signal: i32, from_kernel: bool, reach: Reach) -> Event<'static> {
        Event::Signal(ReceivedSignal {
            signal,
            from_kernel,
            sender: None,
            reach,
        })
    }

    fn sent(signal: i32) -> Event<'static> {
        received(signal, false, Reach::Unknown)
    }

    fn to_group(signal: i32) -> Event<'static> {
        received(signal, false, Reach::Group)
    }

    fn typed(signal: i32) -> Event<'static> {
        received(signal, true, Reach::Unknown)
    }

    fn ended(code: i32) -> Event<'static> {
        Event::Ended(ExitStatus::from_raw(code << 8))
    }

    fn killed_by(signal: i32) -> Event<'static> {
        Event::Ended(ExitStatus::from_raw(signal))
    }

    #[test]
    fn a_cancelled_run_is_stopped_while_its_lock_is_kept_alive() {
        let mut run = Run::new(policy());
        assert_eq!(run.is_cancelled(1_000), "Terminate(Cancelled, Unknown)");
        assert_eq!(run.is_cancelled(2_000), "");
        assert_eq!(run.tick(6_000), "Kill(Cancelled)");
        run.on(6_001, killed_by(9));
        assert_eq!(run.tree_ends(6_002), "Finish(Cancelled)");
    }

    #[test]
    fn a_lock_that_the_job_released_is_neither_renewed_nor_missed() {
        let mut run = Run::new(policy());
        assert_eq!(run.is_released(100), "");
        assert_eq!(run.due(), None);
        assert_eq!(run.is_lost(200), "");
        assert_eq!(run.on(60_000, ended(7)), "Finish(Command(7))");
        // However late the answer is read.
        assert_eq!(Run::new(policy()).is_released(40_000), "");
    }

    #[test]
    fn an_expiring_lease_stops_the_child_and_kills_it_at_the_deadline() {
        let mut run = Run::new(policy());
        run.tick(10_000);
        assert_eq!(run.due(), Some(at(24_498)));
        assert_eq!(run.tick(24_498), "Terminate(Lost, Unknown)");
        assert_eq!(run.due(), Some(at(29_498)));
        assert_eq!(run.tick(29_498), "Kill(Lost)");
        run.on(29_699, ended(0));
        assert_eq!(run.tree_ends(29_699), "Finish(Lost)");
    }

    #[test]
    fn no_moment_stays_due_after_it_was_looked_at() {
        let mut run = Run::new(with(|it| it.timeout = Some(Duration::from_secs(3))));
        let mut last = START;
        for _ in 0..100 {
            let Some(due) = run.due() else { break };
            assert!(due > last, "{run:?} is due again at {due:?}");
            last = due;
            run.session.on_event(Event::Tick, &run.renewals, due);
        }
    }

    #[test]
    fn whatever_wakes_a_sleeper_past_the_deadline_the_child_is_killed_first() {
        for event in [Event::Tick, sent(SIGCONT), sent(SIGHUP)] {
            let actions = Run::new(policy()).on(40_000, event);
            assert!(actions.starts_with("Kill(Lost)"), "{event:?}: {actions}");
        }
        let deadline = at(29_498);
        let minute = Duration::from_secs(60);
        for task in [Task::Renew, Task::Check] {
            let late = answer(task, deadline, held_for(minute));
            let actions = Run::new(policy()).learn(40_000, Ok(late));
            assert!(actions.starts_with("Kill(Lost)"), "{task:?}: {actions}");
        }
    }

    #[test]
    fn a_renewal_in_time_counts_however_late_its_answer_is_looked_at() {
        for looked in [25_000, 29_600, 33_000] {
            let mut run = Run::new(policy());
            assert_eq!(run.is_renewed(looked, at(10_001)), "");
            assert_eq!(run.next_stop(), Some(at(34_499)));
        }
        let mut run = Run::new(policy());
        let extended = answer(Task::Check, at(29_497), held_for(Duration::from_secs(60)));
        assert_eq!(run.learn(33_000, Ok(extended)), "");
        assert!(run.next_stop() > Some(at(80_000)));
    }

    #[test]
    fn a_lock_that_is_definitely_lost_stops_the_child_now() {
        let mut run = Run::new(policy());
        assert_eq!(run.is_lost(1_000), "Terminate(Lost, Unknown)");
        assert_eq!(run.due(), Some(at(6_000)));
        run.on(1_500, ended(0));
        assert_eq!(run.tree_ends(1_500), "Finish(Lost)");
    }

    #[test]
    fn with_on_lost_warn_the_child_goes_on_and_the_status_says_it() {
        let mut run = Run::new(only_warn());
        assert_eq!(run.is_lost(1_000), "Warn");
        assert_eq!(run.is_lost(2_000), "");
        assert_eq!(run.due(), None);
        assert_eq!(run.on(90_000, ended(0)), "Finish(Lost)");
    }

    #[test]
    fn with_on_lost_warn_each_of_several_locks_that_is_lost_is_said_once() {
        // Even if the lease was over by then.
        for ms in [1_000, 40_000] {
            let mut run = Run::new(only_warn());
            let lost = lost(run.renewals.lease());
            for _ in ["a", "b"] {
                assert_eq!(run.on(ms, Event::News(&lost)), "Warn");
            }
            assert_eq!(run.tick(ms), "");
        }
    }

    #[test]
    fn with_on_lost_warn_nothing_is_said_before_the_lease_is_over() {
        let mut run = Run::new(only_warn());
        // Otherwise COMMAND would be stopped from 24.498 s on.
        assert_eq!(run.due(), Some(at(29_498)));
        assert_eq!(run.next_stop(), Some(at(29_498)));
        assert_eq!(run.tick(29_497), "");
        assert_eq!(run.tick(29_498), "Warn");
        assert_eq!(run.session.exit(), Exit::Lost);
    }

    /// Returns an event by its name: a signal that was sent (`INT`), typed (`INT:typed`) or sent to the group
    /// (`INT:group`), or an end by a status (`ended:3`) or a signal (`killed:9`).
    fn event(name: &str) -> Event<'static> {
        let (name, how) = name.split_once(':').unwrap_or((name, ""));
        let number = || how.parse().expect("a number");
        let signal = match name {
            "tick" => return Event::Tick,
            "tree" => return Event::TreeEnded,
            "ended" => return ended(number()),
            "killed" => return killed_by(number()),
            "HUP" => SIGHUP,
            "INT" => SIGINT,
            "QUIT" => SIGQUIT,
            "TERM" => SIGTERM,
            other => panic!("{other}"),
        };
        match how {
            "typed" => typed(signal),
            "group" => to_group(signal),
            _ => sent(signal),
        }
    }

    /// Checks rows: a run, and events with their times, each with the actions or `…` for any. `due` is followed
    /// by the next time to look at the clock, or `-`.
    #[track_caller]
    fn assert_rows(rows: &str) {
        for row in rows.lines().map(str::trim).filter(|row| !row.is_empty()) {
            let mut steps = row.split(" | ");
            let children = Policy {
                with_children: true,
                ..on_terminal()
            };
            let mut run = match steps.next().unwrap() {
                "usual" => Run::new(policy()),
                "terminal" => Run::new(on_terminal()),
                "children" => Run::new(children),
                "timeout of 2 s" => Run::new(with(|it| it.timeout = Some(Duration::from_secs(2)))),
                "no lock" => Run::without_lock(policy()),
                other => panic!("{other}"),
            };
            for step in steps {
                if let Some(due) = step.strip_prefix("due ") {
                    let due = due.parse().ok().map(at);
                    assert_eq!(run.due(), due, "{step} in {row}");
                    continue;
                }
                let (when, expected) = step.split_once(" =").expect("an event");
                let (ms, name) = when.split_once(' ').expect("a time");
                let actions = run.on(ms.parse().expect("a time"), event(name));
                let is_expected = expected.trim() == "…" || actions == expected.trim();
                assert!(is_expected, "{step} in {row}: {actions}");
            }
        }
    }

    #[test]
    fn a_signal_is_passed_on_once_and_a_later_request_to_end_kills() {
        assert_rows(
            "usual | 0 TERM = Terminate(Signal, Unknown) | 5000 tick = Kill(Signal)
            usual | 0 INT = … | 500 INT = Kill(Signal)
            usual | 0 INT = … | 500 TERM = Kill(Signal)
            usual | 0 TERM = … | 500 INT = Kill(Signal)
            usual | 0 TERM = … | 500 TERM = Kill(Signal)
            usual | 0 INT = Forward(2) | 1 INT = | 499 INT =
            usual | 0 TERM = Terminate(Signal, Unknown) | 1 TERM = | 499 TERM =
            usual | 0 QUIT = Forward(3) | 1 QUIT = | 499 QUIT =
            usual | 0 INT = Forward(2) | 100 TERM = Terminate(Signal, Unknown)
            usual | 0 INT = … | 6000 INT = Forward(2) | 12000 ended:0 = Finish(Command(0))
            usual | 0 HUP = Forward(1) | 1 HUP = Forward(1) | 300 HUP = Forward(1)",
        );
    }

    #[test]
    fn a_key_is_passed_on_outside_of_the_group_and_never_kills() {
        assert_rows(
            "terminal | 0 INT:typed = ForwardOutside(2) | 100 INT:typed = ForwardOutside(2) \
                | 700 INT:typed = ForwardOutside(2) | 6000 INT:typed = ForwardOutside(2) \
                | 6001 INT:typed = ForwardOutside(2) | 9000 INT:typed = ForwardOutside(2) \
                | 9800 INT = Forward(2)
            terminal | 0 INT:typed = ForwardOutside(2) | 1 INT = | 2 INT =
            terminal | 0 INT:group = … | 600 INT:typed = ForwardOutside(2)
            terminal | 0 INT:group = … | 600 INT:group = Kill(Signal)",
        );
    }

    #[test]
    fn redlock_ends_by_the_signal_that_it_got_and_that_ended_command() {
        assert_rows(
            "usual | 0 INT = … | 10 killed:2 = … | 10 tree = Finish(Interrupted(2))
            usual | 0 TERM = … | 10 killed:15 = … | 10 tree = Finish(Interrupted(15))
            usual | 0 TERM = … | 10 killed:1 = … | 10 tree = Finish(Signal(1))
            usual | 0 INT = … | 10 TERM = … | 20 killed:2 = … | 20 tree = Finish(Interrupted(2))
            usual | 0 INT = … | 10 TERM = … | 20 killed:15 = … | 20 tree = Finish(Interrupted(15))
            usual | 10 killed:15 = … | 10 tree = Finish(Signal(15))
            usual | 0 INT = … | 10 ended:130 = … | 10 tree = Finish(Command(130))",
        );
    }

    #[test]
    fn what_command_has_started_is_stopped_with_it_or_waited_for() {
        assert_rows(
            "usual | 100 killed:9 = Terminate(Leftovers, Unknown) | due 5100 | 200 tree = Finish(Signal(9))
            usual | 0 INT = … | 10 ended:130 = TerminateOthers | due 5010 | 20 tree = Finish(Command(130))
            children | 100 ended:3 = | 10000 tick = | 11000 tree = Finish(Command(3))
            children | 100 ended:0 = | 1000 TERM = Terminate(Signal, Unknown) | 1100 tree = Finish(Interrupted(15))
            children | 100 ended:0 = | 1000 INT = Terminate(Signal, Unknown) | 1100 tree = Finish(Interrupted(2))
            children | 100 ended:0 = | 1000 INT:typed = Terminate(Signal, Unknown) | 1100 tree = Finish(Interrupted(2))
            children | 100 ended:3 = | 1000 TERM = Terminate(Signal, Unknown) | 1100 tree = Finish(Command(3))
            children | 100 ended:3 = | 1000 INT = Terminate(Signal, Unknown) | 1100 tree = Finish(Command(3))
            children | 100 ended:3 = | 1000 INT:typed = Terminate(Signal, Unknown) | 1100 tree = Finish(Command(3))",
        );
    }

    #[test]
    fn the_timeout_stops_then_kills_and_what_withstands_a_kill_is_killed_once_a_second() {
        assert_rows(
            "timeout of 2 s | due 2000 | 2000 tick = Terminate(Timeout, Unknown) | due 7000 \
                | 2100 ended:0 = … | 2100 tree = Finish(Timeout)
            usual | 0 TERM = … | 5000 tick = … | 6000 tick = KillRest; NameSurvivors \
                | due 7000 | 7000 tick = KillRest | due 8000 | 8000 tick = KillRest",
        );
    }

    #[test]
    fn without_a_lock_only_signals_and_the_timeout_count() {
        assert_rows(
            "no lock | due - | 99000 ended:3 = Finish(Command(3))
            no lock | 0 TERM = … | 600 TERM = … | 602 ended:1 = … | due 610 | 1600 tick = Finish(Command(1))",
        );
        // Nobody else kills a COMMAND that is being stopped.
        let mut run = Run::without_lock(with(|it| it.timeout = Some(Duration::from_secs(1))));
        assert_eq!(run.tick(1_000), "Terminate(Timeout, Unknown)");
        assert_eq!(run.dead_by(), None);
    }

    #[test]
    fn what_escapes_a_kill_is_killed_again() {
        let mut run = Run::new(policy());
        run.on(0, sent(SIGTERM));
        assert_eq!(run.tick(5_000), "Kill(Signal)");
        for again in [5_010, 5_020, 5_030] {
            assert_eq!(run.due(), Some(at(again)));
            assert_eq!(run.tick(again), "KillRest");
        }
    }

    const STUCK: &str = "KillRest; NameSurvivors";

    #[test]
    fn a_lost_lock_is_the_graver_reason_and_the_earlier_end_counts() {
        let mut first = Run::new(with(|it| it.timeout = Some(Duration::from_secs(1))));
        first.on(0, sent(SIGTERM));
        assert_eq!(first.tick(1_000), "");
        assert_eq!(first.tick(5_000), "Kill(Signal)");
        // Another lock, whose renewal isn't answered.
        let mut second = Run::new(policy());
        second.tick(10_000);
        second.on(24_000, sent(SIGTERM));
        assert_eq!(second.tick(24_498), "");
        assert_eq!(second.tick(29_000), "Kill(Lost)");
        assert_eq!(second.session.exit(), Exit::Lost);
    }

    #[test]
    fn the_lease_is_kept_and_the_kill_repeated_for_work_that_can_not_be_killed() {
        let mut run = Run::killed_in_vain();
        assert_eq!(run.tick(6_000), STUCK);
        for second in 7..100 {
            let ms = second * 1_000;
            let actions = run.tick(ms);
            assert!(actions.contains("KillRest"), "{second}: {actions}");
            run.is_renewed(ms, at(ms));
        }
        assert_eq!(run.on(99_001, ended(1)), "");
        assert_eq!(run.tree_ends(99_001), "Finish(Command(1))");
    }

    #[test]
    fn work_that_can_not_be_killed_is_left_when_its_lease_is_over_or_lost() {
        let mut unreachable = Run::killed_in_vain();
        assert_eq!(unreachable.tick(6_000), STUCK);
        assert_eq!(unreachable.tick(29_400), "KillRest");
        assert_eq!(unreachable.tick(29_498), "Finish(Internal)");
        let mut lost = Run::killed_in_vain();
        lost.is_lost(5_500);
        assert_eq!(lost.tick(6_000), "Finish(Lost)");
    }

    #[test]
    fn a_second_signal_leaves_work_that_can_not_be_killed() {
        let mut at_once = Run::killed_in_vain();
        assert_eq!(at_once.tick(6_000), STUCK);
        assert_eq!(at_once.on(6_900, sent(SIGTERM)), "Finish(Internal)");
        // The processes have a second to end after the kill, whenever the signal comes.
        let mut early = Run::killed_in_vain();
        assert_eq!(early.on(5_005, sent(SIGINT)), "");
        assert_eq!(early.tick(6_000), "Finish(Internal)");
    }

    #[test]
    fn the_time_that_it_takes_to_find_a_large_tree_is_taken_off_its_lease() {
        let mut run = Run::new(policy());
        run.session.walked(Duration::from_millis(100));
        run.tick(10_000);
        assert_eq!(run.dead_by(), Some(at(29_098)));
        assert_eq!(run.tick(24_498), "Terminate(Lost, Unknown)");
        assert_eq!(run.due(), Some(at(29_098)));
        // Never by more than a third, so that renewals come before.
        run.session.walked(Duration::from_secs(60));
        assert_eq!(run.dead_by(), Some(at(19_498)));
    }

    #[test]
    fn nothing_makes_the_work_outlive_the_time_that_it_takes_to_kill_a_large_tree() {
        let walking = || {
            let mut run = Run::new(policy());
            run.session.walked(Duration::from_secs(60));
            run
        };
        let (mut terminated, mut lost) = (walking(), walking());
        assert_eq!(
            terminated.on(16_000, sent(SIGTERM)),
            "Terminate(Signal, Unknown)"
        );
        assert_eq!(lost.is_lost(16_000), "Terminate(Lost, Unknown)");
        for run in [terminated, lost] {
            // The grace alone would last until 21 s.
            assert_eq!(run.next_stop(), Some(at(19_498)), "{run:?}");
            assert_eq!(run.dead_by(), Some(at(19_498)), "{run:?}");
        }
    }

    #[test]
    fn a_watchdog_has_the_moments_of_the_session_and_none_where_a_loss_is_only_warned_of() {
        let moments = |run: &Run| (run.dead_by(), run.by_renewal());
        let both = |ms| (Some(at(ms)), Some(Duration::from_millis(ms)));
        let mut lost = Run::new(policy());
        assert_eq!(moments(&lost), both(29_498));
        lost.session.walked(Duration::from_millis(100));
        assert_eq!(moments(&lost), both(29_098));
        lost.is_lost(1_000);
        assert_eq!(moments(&lost), (Some(at(6_000)), None));
        let mut released = Run::new(policy());
        released.is_released(1_000);
        assert_eq!(moments(&released), (None, None));
        let mut warned = Run::new(only_warn());
        assert_eq!(warned.dead_by(), None);
        warned.is_lost(1_000);
        assert_eq!(moments(&warned), (None, None));
    }

    #[test]
    fn whoever_wants_command_to_stop_it_has_no_longer_than_half_the_ttl_for_it() {
        let mut renewals = Renewals::new();
        renewals.add(name(), Lease::new(START, terms(4)));
        let cancelled = LockNews::Cancelled(name(), Box::default());
        let lost = lost(renewals.lease());
        let timeout = with(|it| it.timeout = Some(Duration::ZERO));
        for (policy, event) in [
            (policy(), sent(SIGTERM)),
            (policy(), Event::News(&cancelled)),
            (policy(), Event::News(&lost)),
            (policy(), killed_by(9)),
            (timeout, Event::Tick),
        ] {
            let mut session = Session::new(policy, START);
            session.on_event(event, &renewals, START);
            assert_eq!(session.next_stop(&renewals), Some(at(2_000)), "{event:?}");
        }
    }

    #[test]
    fn what_the_whole_group_has_got_is_passed_on_outside_of_it_only() {
        let job = on_terminal();
        let leader = Policy {
            leads_session: true,
            ..job
        };
        let outside = |signal: i32| format!("ForwardOutside({signal})");
        let alone = |signal: i32| format!("Forward({signal})");
        let others = "Terminate(Signal, Group)".to_owned();
        for (policy, event, expected) in [
            (job, typed(SIGHUP), outside(SIGHUP)),
            (job, typed(SIGWINCH), outside(SIGWINCH)),
            (job, typed(SIGTSTP), outside(SIGTSTP) + "; Suspend"),
            (job, typed(SIGALRM), alone(SIGALRM)),
            (job, sent(SIGHUP), alone(SIGHUP)),
            // COMMAND may ignore it and work on; if it stops, redlock stops with it.
            (job, sent(SIGTSTP), alone(SIGTSTP)),
            (leader, typed(SIGHUP), alone(SIGHUP)),
            (job, to_group(SIGHUP), outside(SIGHUP)),
            (job, to_group(SIGINT), outside(SIGINT)),
            (job, to_group(SIGTERM), others),
            (job, to_group(SIGCONT), outside(SIGCONT)),
            (job, to_group(SIGTSTP), outside(SIGTSTP) + "; Suspend"),
            (job, to_group(40), outside(40)),
        ] {
            assert_eq!(Run::new(policy).on(0, event), expected, "{event:?}");
        }
    }

    #[test]
    fn a_redis_that_does_not_answer_is_reported_once_an_outage_and_so_is_its_next_answer() {
        let mut run = Run::new(policy());
        for start in [0, 16_500] {
            run.is_renewed(start, at(start));
            run.renewals.start(at(start + 10_000));
            assert_eq!(run.due(), Some(at(start + 15_000)));
            assert_eq!(run.tick(start + 14_999), "");
            let silence = "ReportSilence { lasting: 15s, stop_in: 9.498s }";
            assert_eq!(run.tick(start + 15_000), silence);
            assert_eq!(run.due(), Some(at(start + 24_498)));
            // A failed try is no answer.
            assert_eq!(run.fails(start + 15_500), "");
            let answer = run.is_renewed(start + 16_500, at(start + 16_000));
            assert_eq!(answer, "ReportAnswer");
            assert_eq!(run.tick(start + 16_500), "");
        }
        // An answer may have come while redlock was suspended.
        let mut suspended = Run::new(policy());
        suspended.renewals.start(at(10_000));
        assert_eq!(suspended.tick(15_700), "");
        assert_eq!(suspended.due(), Some(at(15_700) + OVERSLEPT));
        let silence = "ReportSilence { lasting: 15.9s, stop_in: 8.598s }";
        assert_eq!(suspended.tick(15_900), silence);
        // A COMMAND that is being stopped isn't threatened with a stop.
        let mut stopping = Run::new(policy());
        stopping.renewals.start(at(10_000));
        stopping.on(14_000, sent(SIGTERM));
        assert_eq!(stopping.tick(15_000), "");
    }

    #[test]
    fn a_hook_is_told_once_that_the_lock_is_lost_after_what_is_done_about_it() {
        let policy = with(|it| it.has_hook = true);
        let mut taken = Run::new(policy);
        assert_eq!(taken.is_lost(0), "Terminate(Lost, Unknown); TellLost");
        assert_eq!(taken.is_lost(1), "");
        let not_renewed = Run::new(policy).tick(24_498);
        assert_eq!(not_renewed, "Terminate(Lost, Unknown); TellLost");
        // Even if it is being stopped for another reason already.
        let mut stopping = Run::new(policy);
        stopping.on(0, sent(SIGTERM));
        assert_eq!(stopping.is_lost(1), "TellLost");
        let mut warned = Run::new(Policy {
            only_warn: true,
            ..policy
        });
        assert_eq!(warned.is_lost(0), "Warn; TellLost");
        // At the very end.
        let mut over = Run::new(policy);
        over.on(0, sent(SIGTERM));
        over.on(1, ended(1));
        let actions = over.tree_ends(65_000);
        assert!(actions.ends_with("TellLost; Finish(Lost)"), "{actions}");
        // A run that a newer one stops has lost nothing.
        let cancelled = Run::new(policy).is_cancelled(0);
        assert_eq!(cancelled, "Terminate(Cancelled, Unknown)");
    }

    #[test]
    fn without_a_lock_what_a_killed_command_has_started_is_left() {
        let mut without = Run::without_lock(policy());
        assert_eq!(without.on(100, killed_by(9)), "Finish(Signal(9))");
        let mut released = Run::new(policy());
        released.is_released(50);
        assert_eq!(released.on(100, killed_by(9)), "Finish(Signal(9))");
    }

    #[test]
    fn work_is_over_with_command_and_after_a_kill_with_all_that_it_has_started() {
        let mut run = Run::new(policy());
        assert!(!run.session.is_over());
        run.on(10, ended(0));
        assert!(run.session.is_over());
        let mut killed = Run::new(policy());
        killed.session.give_up(at(0));
        assert!(killed.session.has_killed() && !killed.session.is_over());
        killed.on(10, killed_by(9));
        assert!(!killed.session.is_over());
        killed.tree_ends(20);
        assert!(killed.session.is_over());
        let mut left = Run::new(policy());
        left.tree_ends(20);
        assert!(left.session.is_over());
    }
}

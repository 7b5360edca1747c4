//! A single `redlock run` as a process, over a simulated network and clock. The wait, the lease, its renewals and the session
//! are the shipped code. The code that carries out their decisions (`job/attempt/mod.rs`, `supervise/run.rs`,
//! `supervise/renewer.rs`) is imitated in short.

use std::collections::VecDeque;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::Duration;

use redis::Value;

use super::digest::{Cached, digest_of_debug};
use super::network::{Asked, Incoming, Network, Request};

use crate::clock::Moment;
use crate::decide::exit::Exit;
use crate::decide::lease::{Lease, Terms};
use crate::decide::renewals::{self, Answer, LockNews, Renewals};
use crate::decide::session::{self, Session};
use crate::decide::wait::{self, Wait};
use crate::protocol::answer::{acquired, checked, prolonged, released, renewed};
use crate::protocol::claim::{ServerTraits, takes};
use crate::protocol::grant::Grant;
use crate::protocol::guard::extended;
use crate::protocol::scripts::{ACQUIRE, FREE, TAKE};
use crate::protocol::{
    self, Claim, Error, ErrorKind, Guard, HoldOutcome, LeaseState, ReleaseMode, Request as Wish,
};
use crate::signal::SIGTERM;
use crate::sys::ReceivedSignal;

/// Longest time for an answer (`REDLOCK_REDIS_TIMEOUT`).
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Deliberate defects of the code that carries out decisions, to test that the model finds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defects {
    /// Leases start when the answer arrives.
    pub deadline_from_reply: bool,
    /// The time of a request is taken when its answer arrives, if that takes the usual time.
    pub is_asked_with_the_answer: bool,
    /// The command continues after its lease ends, like that of some other clients.
    pub is_never_stopped: bool,
}

/// Options of a run.
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Setup {
    pub claim: Claim,
    pub wish: Wish,
    pub terms: Terms,
    /// Time until which it waits, if not for ever.
    pub limit: Option<Moment>,
    /// True if its command may start on an unconfirmed grant, as with one lock without `--once-per`, `--seq` and
    /// `REDLOCK_SYNC`.
    pub starts_on_grant: bool,
    /// True if a grant is valid only after replicas have it.
    pub is_replicated: bool,
    /// True if it waits for replicas that don't confirm.
    pub awaits_replicas: bool,
    /// True if the server doesn't let it subscribe, so that it polls.
    pub polls: bool,
    /// Delay of everything that the server sends to it.
    pub answers_take: Duration,
    /// Time until a killed command is dead.
    pub kills_take: Duration,
    /// The hold of another run that it guards.
    pub guards: Option<Guarding>,
    /// True for `acquire --while-pid`: the work under the lock is a script that outlives its keeper.
    pub is_keeper: bool,
    /// Wait status of its command, in the kernel's encoding.
    pub ends_with: i32,
    /// Shortest time for which it keeps the lock.
    pub keep_for: Duration,
    pub host: &'static str,
    pub defects: Defects,
}

/// A guard, and the number of the run whose hold it guards.
#[derive(Clone)]
pub struct Guarding {
    pub run: usize,
    pub guard: Guard,
}

/// Omits the contents, which never change during a run, from `Debug`.
impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Setup")
    }
}

/// Stage of a run.
#[derive(Clone, Debug)]
pub enum Stage {
    New,
    /// A guard requests its admission.
    Joining,
    Waiting(Wait),
    /// Its command has started.
    Running(Session),
    /// The run releases its locks, over another connection if the first one fails.
    Releasing {
        mode: ReleaseMode,
        is_second_try: bool,
    },
    Over,
    /// Killed together with its command.
    Dead,
}

/// Task of the renewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Join,
    Renew,
    /// A renewal by the short script.
    Prolong,
    Check,
    Release,
}

/// A request without an answer so far.
#[derive(Clone, Copy, Debug)]
struct Pending {
    task: Task,
    sent: Moment,
    until: Moment,
}

#[derive(Clone, Debug)]
pub struct Client {
    pub number: usize,
    pub setup: Rc<Setup>,
    pub stage: Stage,
    /// True if a signal has stopped all of it except its command.
    pub is_stopped: bool,
    pub has_command: bool,
    /// The lease according to the session, or according to the ended session.
    pub lease: Option<Lease>,
    /// Fencing token of the hold that its command has run under.
    pub fence: u64,
    pub slot: u32,
    /// Time at which its killed command is dead.
    dies_at: Option<Moment>,
    pending: Option<Pending>,
    renewals: Renewals,
    /// True if the short script is enough; `None` before a renewal over this connection has an answer.
    is_plain: Option<bool>,
    digest: Cached,
}

impl Client {
    pub fn new(number: usize, setup: Setup) -> Self {
        Self {
            number,
            renewals: Renewals::new(),
            setup: Rc::new(setup),
            stage: Stage::New,
            is_stopped: false,
            has_command: false,
            lease: None,
            fence: 0,
            slot: 0,
            dies_at: None,
            pending: None,
            is_plain: None,
            digest: Cached::default(),
        }
    }

    /// Returns it for a change, which invalidates its digest.
    pub fn changed(self: &mut Rc<Self>) -> &mut Self {
        let client = Rc::make_mut(self);
        client.digest.forget();
        client
    }

    /// Returns a digest of everything that its future depends on.
    pub fn digest(&self) -> u128 {
        self.digest.get_or(|| match &self.stage {
            _ if self.has_command => self.exact_digest(),
            Stage::Over | Stage::Dead => 0,
            Stage::Releasing { .. } => {
                digest_of_debug(&(&self.stage, self.is_stopped, self.pending))
            }
            _ => self.exact_digest(),
        })
    }

    /// Returns a digest of its whole state.
    pub fn exact_digest(&self) -> u128 {
        digest_of_debug(self)
    }

    /// Returns true if it never does anything any more.
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over | Stage::Dead) && !self.has_command
    }

    /// Returns the channel on which it is notified.
    pub fn channel(&self) -> Vec<u8> {
        let claim = &self.setup.claim;
        claim.lock().keys.of(&claim.id())
    }

    /// Returns true if it does something on its own, now or later.
    pub fn is_active(&self) -> bool {
        !self.is_stopped && self.is_alive()
    }

    /// Returns true if there is a process, stopped or not.
    pub fn is_alive(&self) -> bool {
        !matches!(self.stage, Stage::New | Stage::Over | Stage::Dead)
    }

    pub fn waits(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_))
    }

    /// Returns the time at which it checks the clock again.
    pub fn due(&self) -> Option<Moment> {
        if !self.is_active() {
            return None;
        }
        let own = match &self.stage {
            Stage::Waiting(wait) => wait.due(),
            Stage::Running(session) => {
                let due = session.due(&self.renewals).into_iter();
                due.chain(self.renewals.due()).min()
            }
            _ => None,
        };
        let pending = self.pending.map(|pending| pending.until);
        own.into_iter().chain(pending).chain(self.dies_at).min()
    }

    /// Returns the time at which its command is dead in any case, unless its redlock is stopped.
    pub fn dead_by(&self) -> Option<Moment> {
        Some(self.lease?.deadline() + self.setup.kills_take)
    }

    /// Returns the number of the run whose lock its command works under.
    pub fn unit(&self) -> usize {
        let guards = self.setup.guards.as_ref();
        guards.map_or(self.number, |guarding| guarding.run)
    }

    /// Starts `redlock run` or `redlock guard`.
    pub fn start(&mut self, now: Moment, network: &mut Network) {
        let setup = Rc::clone(&self.setup);
        if setup.guards.is_some() {
            self.stage = Stage::Joining;
            return self.ask(Task::Join, now, network);
        }
        let policy = wait::Policy {
            limit: setup.limit,
            terms: setup.terms,
            starts_on_grant: setup.starts_on_grant,
            holds_others: false,
            awaits_server: false,
            awaits_replicas: setup.awaits_replicas,
            failover_may_take: Duration::ZERO,
            answer_may_take: ANSWER_WITHIN,
            silence: None,
            single_line: false,
            jitter: || 0.5,
        };
        self.stage = Stage::Waiting(Wait::new(policy, now));
        self.on_wait(wait::Event::Tick, now, network);
    }

    /// Checks the clock.
    pub fn tick(&mut self, now: Moment, network: &mut Network) {
        match self.stage {
            Stage::Waiting(_) => self.on_wait(wait::Event::Tick, now, network),
            Stage::Running(_) => self.on_session(session::Event::Tick, now, network),
            _ => {}
        }
        if self.dies_at.is_some_and(|at| now >= at) {
            self.dies_at = None;
            self.has_command = false;
            self.notice_end(ExitStatus::from_raw(9), now, network);
        }
        self.look_at_task(now, network);
    }

    /// Lets a user end it.
    pub fn interrupt(&mut self, now: Moment, network: &mut Network) {
        match self.stage {
            Stage::Waiting(_) => self.on_wait(wait::Event::Signal(SIGTERM), now, network),
            Stage::Running(_) => {
                let signal = ReceivedSignal {
                    signal: SIGTERM,
                    from_kernel: false,
                    sender: None,
                    reach: crate::sys::Reach::Unknown,
                };
                self.on_session(session::Event::Signal(signal), now, network);
            }
            _ => {}
        }
    }

    /// Ends its command.
    pub fn command_ends(&mut self, now: Moment, network: &mut Network) {
        self.has_command = false;
        self.dies_at = None;
        if !self.is_stopped {
            self.notice_end(ExitStatus::from_raw(self.setup.ends_with), now, network);
        }
    }

    /// Resumes it after a stop; it first checks the clock.
    pub fn resume(&mut self, now: Moment, network: &mut Network) {
        self.is_stopped = false;
        self.tick(now, network);
        if let Stage::Running(_) = self.stage
            && !self.has_command
        {
            self.notice_end(ExitStatus::from_raw(self.setup.ends_with), now, network);
        }
    }

    /// Kills it. The kernel kills its command with it, but not a keeper's script.
    pub fn die(&mut self) {
        self.stage = Stage::Dead;
        self.has_command &= self.setup.is_keeper;
        self.dies_at = None;
        self.is_stopped = false;
        self.pending = None;
    }

    fn notice_end(&mut self, status: ExitStatus, now: Moment, network: &mut Network) {
        self.on_session(session::Event::Ended(status), now, network);
        if let Stage::Running(_) = self.stage {
            self.on_session(session::Event::TreeEnded, now, network);
        }
    }

    /// Handles something that arrives over its connection.
    pub fn receive(&mut self, incoming: Incoming, now: Moment, network: &mut Network) {
        if let Incoming::Closed = incoming {
            network.close(self.number);
        }
        if let Incoming::Again(asked) = incoming {
            let is_waiting = matches!(self.stage, Stage::Waiting(_));
            // Otherwise the run has sent something meanwhile that revokes the request.
            if is_waiting == (asked.call.script.hash == ACQUIRE.hash) {
                let request = Request {
                    asked,
                    subscribes: false,
                    tracks: false,
                };
                network.send(self.number, request);
            }
            if is_waiting {
                self.on_wait(wait::Event::Sent(now, ANSWER_WITHIN), now, network);
            }
            return;
        }
        match &self.stage {
            Stage::Waiting(_) => {
                let event = match incoming {
                    Incoming::Answer(value) => {
                        wait::Event::Answered(answer(value).and_then(acquired))
                    }
                    Incoming::NotReplicated => {
                        wait::Event::Answered(Err(failure(ErrorKind::NotReplicated)))
                    }
                    Incoming::Message(text) => {
                        let text = String::from_utf8_lossy(&text);
                        Grant::parse(&text).map_or(wait::Event::Message, wait::Event::Granted)
                    }
                    Incoming::KeyChanged | Incoming::Again(_) => return,
                    Incoming::Closed => wait::Event::Failed(failure(ErrorKind::Unreachable)),
                };
                self.on_wait(event, now, network);
            }
            Stage::Joining => self.receive_joining(incoming, now, network),
            Stage::Running(_) => self.receive_running(incoming, now, network),
            Stage::Releasing { is_second_try, .. } => {
                let is_second_try = *is_second_try;
                self.receive_releasing(incoming, is_second_try, now, network);
            }
            Stage::New | Stage::Over | Stage::Dead => {}
        }
    }

    fn receive_releasing(
        &mut self,
        incoming: Incoming,
        is_second_try: bool,
        now: Moment,
        network: &mut Network,
    ) {
        let task = self.pending.map(|pending| pending.task);
        let is_renewal = !matches!(task, None | Some(Task::Release));
        match incoming {
            Incoming::Answer(_) | Incoming::NotReplicated if is_renewal => {
                self.ask(Task::Release, now, network);
            }
            Incoming::Answer(value) => match answer(value).and_then(released) {
                Err(_) if !is_second_try => self.release_again(now, network),
                Ok(_) | Err(_) => self.end(network),
            },
            Incoming::Closed if is_second_try && !is_renewal => self.end(network),
            Incoming::Closed => self.release_again(now, network),
            _ => {}
        }
    }

    /// Handles the answer to a guard's admission. Starts its command if it is admitted.
    fn receive_joining(&mut self, incoming: Incoming, now: Moment, network: &mut Network) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        match incoming {
            Incoming::Answer(value) => match answer(value).and_then(extended) {
                Ok(LeaseState::Held { left, .. }) => {
                    let lease = Lease::of_another(pending.sent, left, self.setup.terms);
                    self.run(lease, (0, 0), now, network);
                }
                Ok(LeaseState::Released | LeaseState::Lost(_)) | Err(_) => self.end(network),
            },
            Incoming::NotReplicated | Incoming::Closed => {
                self.release(ReleaseMode::UNUSED, now, network);
            }
            Incoming::Again(_) | Incoming::Message(_) | Incoming::KeyChanged => {
                self.pending = Some(pending);
            }
        }
    }

    fn receive_running(&mut self, incoming: Incoming, now: Moment, network: &mut Network) {
        match (incoming, self.pending) {
            (Incoming::Answer(value), Some(pending)) => {
                self.pending = None;
                let state = match pending.task {
                    _ if self.setup.guards.is_some() => answer(value).and_then(extended),
                    Task::Prolong => {
                        let ttl = self.setup.terms.ttl;
                        match answer(value).and_then(|value| prolonged(&value, ttl)) {
                            Ok(None) => {
                                self.is_plain = Some(false);
                                return self.ask_since(Task::Renew, pending.sent, now, network);
                            }
                            Ok(Some(state)) => Ok(state),
                            Err(error) => Err(error),
                        }
                    }
                    Task::Renew => answer(value).and_then(renewed),
                    Task::Check => answer(value).and_then(checked),
                    Task::Join | Task::Release => return,
                };
                self.on_state(pending, state, now, network);
            }
            (Incoming::NotReplicated, Some(pending)) => {
                self.pending = None;
                let failed = Err(failure(ErrorKind::NotReplicated));
                network.close(self.number);
                self.on_state(pending, failed, now, network);
            }
            (Incoming::Closed, _) => self.fail_task(now, network),
            (Incoming::KeyChanged, _) => {
                self.renewals.on_key_changed(now);
                self.go_on_with_tasks(now, network);
            }
            (Incoming::Answer(_) | Incoming::NotReplicated, None)
            | (Incoming::Message(_) | Incoming::Again(_), _) => {}
        }
    }

    /// Handles the result of a renewal or a check.
    fn on_state(
        &mut self,
        pending: Pending,
        state: Result<LeaseState, Error>,
        now: Moment,
        network: &mut Network,
    ) {
        let defects = self.setup.defects;
        let sent = if defects.deadline_from_reply || defects.is_asked_with_the_answer {
            now
        } else {
            pending.sent
        };
        let Ok(state) = state else {
            network.close(self.number);
            return self.fail_task(now, network);
        };
        let task = match (&self.setup.guards, pending.task) {
            (Some(_), _) => renewals::Task::Follow,
            (None, Task::Renew | Task::Prolong) => {
                if !self.setup.is_replicated {
                    self.is_plain.get_or_insert(true);
                }
                renewals::Task::Renew
            }
            (None, Task::Check | Task::Join | Task::Release) => renewals::Task::Check,
        };
        let answer = Answer {
            task,
            sent,
            states: vec![(self.setup.claim.lock().name().clone(), state)],
        };
        self.end_task(Ok(answer), now, network);
    }

    fn fail_task(&mut self, now: Moment, network: &mut Network) {
        self.pending = None;
        self.end_task(Err(failure(ErrorKind::Unreachable)), now, network);
    }

    fn end_task(&mut self, answer: Result<Answer, Error>, now: Moment, network: &mut Network) {
        for news in self.renewals.end(vec![answer], now) {
            // Its job has released the lock, so the command goes on without it.
            if let LockNews::Released(_) = news {
                self.lease = None;
            }
            self.on_session(session::Event::News(&news), now, network);
        }
        self.go_on_with_tasks(now, network);
    }

    fn go_on_with_tasks(&mut self, now: Moment, network: &mut Network) {
        if !matches!(self.stage, Stage::Running(_)) || self.pending.is_some() {
            return;
        }
        if self.renewals.renewal_is_due(now) {
            self.ask(Task::Renew, now, network);
        } else if self.renewals.take_check(now) {
            self.ask(Task::Check, now, network);
        }
    }

    /// Gives up a request without an answer in time, together with its connection.
    fn look_at_task(&mut self, now: Moment, network: &mut Network) {
        if let Some(pending) = self.pending
            && now >= pending.until
        {
            self.pending = None;
            network.close(self.number);
            match (&self.stage, pending.task) {
                (
                    Stage::Releasing {
                        is_second_try: true,
                        ..
                    },
                    Task::Release,
                ) => self.end(network),
                (Stage::Releasing { .. }, _) => self.release_again(now, network),
                (Stage::Joining, _) => self.release(ReleaseMode::UNUSED, now, network),
                (_, Task::Renew | Task::Prolong | Task::Check) => self.fail_task(now, network),
                (_, Task::Join | Task::Release) => {}
            }
        }
        self.go_on_with_tasks(now, network);
    }

    fn ask(&mut self, task: Task, now: Moment, network: &mut Network) {
        if !network.is_open(self.number) {
            self.is_plain = None;
        }
        let task = match task {
            Task::Renew if self.is_plain == Some(true) => Task::Prolong,
            task => task,
        };
        self.ask_since(task, now, now, network);
    }

    /// Like `ask`, as part of an operation that began at `sent`.
    fn ask_since(&mut self, task: Task, sent: Moment, now: Moment, network: &mut Network) {
        let (claim, ttl) = (&self.setup.claim, self.setup.terms.ttl);
        let mut limit = || self.renewals.start(sent).min(ANSWER_WITHIN);
        let guard = self.setup.guards.as_ref().map(|guarding| &guarding.guard);
        let mut short = None;
        let (call, within) = match (task, guard) {
            (Task::Release, Some(guard)) => (guard.leave_call(), ANSWER_WITHIN),
            (Task::Join, Some(guard)) => (guard.extension(), ANSWER_WITHIN),
            (Task::Renew | Task::Prolong | Task::Check, Some(guard)) => {
                (guard.extension(), limit())
            }
            (Task::Join, None) => return,
            (Task::Renew, None) => (claim.renewal(ttl, false), limit()),
            (Task::Prolong, None) => (claim.prolonging(ttl), limit()),
            (Task::Check, None) => (claim.check_call(ttl), limit()),
            (Task::Release, None) => {
                let Stage::Releasing { mode, .. } = &self.stage else {
                    return;
                };
                short = claim.frees(mode).then_some(&FREE);
                (claim.release_call(mode), ANSWER_WITHIN)
            }
        };
        self.pending = Some(Pending {
            task,
            sent,
            until: now + within,
        });
        network.send(
            self.number,
            Request {
                asked: Asked::shortly(call, short),
                subscribes: false,
                tracks: !matches!(task, Task::Join | Task::Release),
            },
        );
    }

    fn on_session(&mut self, event: session::Event, now: Moment, network: &mut Network) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Stage::Running(session) = &mut self.stage else {
                return;
            };
            self.lease = self.renewals.lease().or(self.lease);
            for action in session.on_event(event, &self.renewals, now) {
                match action {
                    session::Action::Kill(_) | session::Action::KillRest => {
                        let takes = self.setup.kills_take;
                        if !self.has_command || self.setup.defects.is_never_stopped {
                            continue;
                        }
                        if takes > Duration::ZERO {
                            self.dies_at.get_or_insert(now + takes);
                        } else {
                            self.has_command = false;
                            events.push_back(session::Event::Ended(ExitStatus::from_raw(9)));
                            events.push_back(session::Event::TreeEnded);
                        }
                    }
                    session::Action::Finish(exit) => {
                        let mode = ReleaseMode::Finished {
                            outcome: match exit {
                                Exit::Command(status) => HoldOutcome::Status(status),
                                Exit::Lost => HoldOutcome::Lost,
                                _ => HoldOutcome::Signal(SIGTERM),
                            },
                            keep_for: self.setup.keep_for,
                        };
                        return self.release(mode, now, network);
                    }
                    // A command may ignore SIGTERM; the step that ends it models one that doesn't.
                    _ => {}
                }
            }
        }
    }

    fn release(&mut self, mode: ReleaseMode, now: Moment, network: &mut Network) {
        self.stage = Stage::Releasing {
            mode,
            is_second_try: !network.is_open(self.number),
        };
        // The renewer returns the connection when it is done.
        if self.pending.is_none() {
            self.ask(Task::Release, now, network);
        }
    }

    fn release_again(&mut self, now: Moment, network: &mut Network) {
        network.close(self.number);
        if let Stage::Releasing { is_second_try, .. } = &mut self.stage {
            *is_second_try = true;
        }
        self.ask(Task::Release, now, network);
    }

    fn end(&mut self, network: &mut Network) {
        self.pending = None;
        network.close(self.number);
        self.stage = Stage::Over;
    }

    fn on_wait(&mut self, event: wait::Event, now: Moment, network: &mut Network) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let Stage::Waiting(wait) = &mut self.stage else {
                return;
            };
            for action in wait.on_event(event, None, now) {
                match action {
                    wait::Action::Ask(place) => {
                        let setup = &self.setup;
                        let needs = ServerTraits {
                            sharded: false,
                            replicated: setup.is_replicated,
                        };
                        let place_of = place.as_ref();
                        let call = setup.claim.acquire_call(&setup.wish, place_of, needs);
                        let short = takes(&setup.wish, place_of, needs).then_some(&TAKE);
                        network.send(
                            self.number,
                            Request {
                                asked: Asked::shortly(call, short),
                                subscribes: !setup.polls && place.is_some_and(|place| !place.polls),
                                tracks: false,
                            },
                        );
                        let sent = if setup.defects.is_asked_with_the_answer {
                            now + setup.answers_take
                        } else {
                            now
                        };
                        events.push_back(wait::Event::Sent(sent, ANSWER_WITHIN));
                    }
                    wait::Action::TimeOut => {
                        events.push_back(wait::Event::Failed(failure(ErrorKind::Unreachable)));
                    }
                    wait::Action::Disconnect(_) => network.close(self.number),
                    wait::Action::SearchDeadlock(_) => {
                        events.push_back(wait::Event::Searched(None));
                    }
                    wait::Action::End(end) => return self.on_wait_end(&end, now, network),
                    _ => {}
                }
            }
        }
    }

    fn on_wait_end(&mut self, end: &wait::End, now: Moment, network: &mut Network) {
        let Stage::Waiting(wait) = &self.stage else {
            return;
        };
        match end {
            wait::End::Acquired(taken) => {
                if let Some(lasting) = taken.granted {
                    let lasting = lasting.saturating_sub(self.setup.terms.clock_skew);
                    self.renewals.add_grant(lasting);
                }
                self.run(taken.lease, (taken.fence, taken.slot), now, network);
            }
            _ if wait.is_known() => {
                let is_pending = wait.has_pending_request();
                self.release(ReleaseMode::Unused { is_pending }, now, network);
            }
            _ => self.end(network),
        }
    }

    /// Starts its command, unless the lease has ended by now.
    fn run(&mut self, lease: Lease, (fence, slot): (u64, u32), now: Moment, network: &mut Network) {
        let lease = if self.setup.defects.deadline_from_reply {
            Lease::new(now, self.setup.terms)
        } else {
            lease
        };
        let policy = session::Policy {
            kill_after: self.setup.terms.kill_after,
            ..session::Policy::default()
        };
        self.lease = Some(lease);
        self.fence = fence;
        self.slot = slot;
        self.has_command = true;
        let name = self.setup.claim.lock().name().clone();
        self.renewals.add(name, lease);
        self.stage = Stage::Running(Session::new(policy, now));
        self.on_session(session::Event::Tick, now, network);
        self.go_on_with_tasks(now, network);
    }
}

/// Returns an answer, or the error by which the server refused the request.
fn answer(value: Value) -> Result<Value, Error> {
    match value {
        Value::ServerError(_) => Err(failure(ErrorKind::NotNow)),
        value => Ok(value),
    }
}

fn failure(kind: ErrorKind) -> protocol::Error {
    Error::new(kind, "simulated".into())
}

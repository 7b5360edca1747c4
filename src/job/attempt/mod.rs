//! The wait for a single lock: passes events to [`Wait`] and performs its decisions.
//!
//! Nothing here decides, and nothing in [`Wait`] blocks. A request whose answer may take long
//! is only sent: its answer arrives among signals, results of the renewer, and timeouts.

mod ends;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::background::Background;
use super::{Acquisition, Requester, deadlock, in_background, random_fraction};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::renewals::LockNews;
use crate::decide::wait::{self, Wait};
use crate::protocol::{
    Acquired, Busy, Cause, Claim, Client, Error, ErrorKind, Incoming, Limit, Push, QueuePlace,
    ReleaseMode, SkipReason, WaitEdge, Who,
};
use crate::report::{self, Outlook, Verbosity};
use crate::signal::Signals;
use crate::supervise::HeldLocks;
use crate::supervise::process;
use crate::sys::poll;
use crate::sys::poll::sleep;
use crate::systemd;
use crate::usage::Refusal;

/// Time to take back a request after the server didn't answer: on the
/// same connection, or on a new one if only the connection is dead.
const SILENT: Duration = Duration::from_millis(500);

/// Shortest limit for a request at the end of a wait, or for a search that is still running then.
const LEAST_TIME: Duration = Duration::from_millis(250);

/// A wait for one lock.
pub struct Attempt<'a> {
    acquisition: &'a Acquisition<'a>,
    wait: Wait,
    /// Events that follow from performed actions.
    events: VecDeque<wait::Event>,
    claim: Claim,
    held: &'a mut HeldLocks,
    client: Client,
    /// This wait as other runs read it, if it was published.
    edge: Option<WaitEdge>,
    /// Running search for a deadlock, which has the connection.
    search: Option<deadlock::DeadlockSearch>,
    /// Pid of the holder if it is an ancestor of this process: it waits for this run, so waiting is hopeless.
    own_holder: Option<i32>,
    /// Error because of which the wait tries again.
    failure: String,
    /// Time at which replicas first failed to confirm the grant.
    unconfirmed_since: Option<Moment>,
    /// Usual duration of a hold, if the history has one, and whether the server was asked for it.
    usual: Option<Duration>,
    asked_usual: bool,
    /// Start of the acquisition.
    started: Moment,
    /// Reason why the run ends without the lock, the time of its wait
    /// or since the other's success, and the client that caused it.
    skipped: Option<(SkipReason, Duration, Option<Who>)>,
    requester: Requester<'a>,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

/// A step of the wait: continue, or end with a result or an error of a call that waiting needs.
type WaitStep<T = ()> = ControlFlow<Result<wait::End>, T>;

/// Turns an error of a call that waiting needs into the end of the wait.
fn needed<T>(result: Result<T, impl Into<anyhow::Error>>) -> WaitStep<T> {
    match result.map_err(Into::into).context("can't wait") {
        Ok(value) => Continue(value),
        Err(error) => Break(Err(error)),
    }
}

impl<'a> Attempt<'a> {
    /// Creates the wait. `started` is the start of the acquisition, which may include waits for other locks.
    pub(super) fn new(
        acquisition: &'a Acquisition<'a>,
        claim: Claim,
        held: &'a mut HeldLocks,
        started: Moment,
        requester: Requester<'a>,
        signals: &'a Signals,
        timer: &'a mut Timer,
    ) -> Self {
        let options = acquisition.wait_options;
        let locks = &acquisition.settings.locks;
        let fails_over = locks.deployment.may_fail_over();
        let is_known = fails_over && held.client.server().was_reached();
        let wait = if options.no_wait {
            Some(Duration::ZERO)
        } else {
            options.wait
        };
        let policy = wait::Policy {
            limit: wait
                .filter(|wait| *wait < Duration::MAX)
                .map(|wait| started + wait),
            terms: acquisition.terms,
            starts_on_grant: acquisition.starts_on_grant,
            holds_others: !(acquisition.inherited.is_empty() && held.all.is_empty()),
            awaits_server: acquisition.awaits_server() || held.answered || is_known,
            awaits_replicas: fails_over,
            failover_may_take: if fails_over {
                held.client.timeout()
            } else {
                Duration::ZERO
            },
            answer_may_take: locks.answer_may_take(),
            silence: acquisition.silence,
            single_line: report::has_terminal(),
            jitter: random_fraction,
        };
        Self {
            acquisition,
            wait: Wait::new(policy, now()),
            events: VecDeque::new(),
            claim,
            client: held.client.hand_over(),
            held,
            edge: None,
            search: None,
            own_holder: None,
            failure: String::new(),
            unconfirmed_since: None,
            usual: None,
            asked_usual: false,
            started,
            skipped: None,
            requester,
            signals,
            timer,
        }
    }

    /// Waits until this run holds the lock.
    ///
    /// # Errors
    /// A [`Refusal`], or a failure.
    pub(super) fn run(mut self) -> Result<()> {
        let Break(end) = self.run_loop();
        let verbosity = self.verbosity();
        // A connection that was closed says nothing about the next one.
        let is_silent = |it: &Error| it.kind.is_unreachable() && !it.has_cause(Cause::Closed);
        if matches!(&end, Ok(wait::End::Failed(error)) if is_silent(error)) {
            self.acquisition.ends_by.set(Some(now() + SILENT));
        }
        let outcome = end.and_then(|end| self.conclude(end));
        report::status_line(None);
        self.take_back(outcome.is_ok());
        let host = self.record_skip();
        if self.client.is_open() {
            self.held.client = self.client;
        }
        outcome.map_err(|mut error| {
            if let Some(Refusal(Exit::Busy(_), line)) = error.downcast_mut() {
                *line += &host.map_or(String::new(), |host| {
                    format!(" on {}", report::quoted(&host))
                });
                // With --quiet, only errors are printed.
                if verbosity < Verbosity::Normal {
                    line.clear();
                }
            }
            error
        })
    }

    /// Withdraws this wait from the server, and releases the lock unless it `is_ours`.
    fn take_back(&mut self, is_ours: bool) {
        let is_pending = self.wait.has_pending_request();
        let mode = ReleaseMode::Unused { is_pending };
        let (acquisition, signals) = (self.acquisition, self.signals);
        let within = acquisition.within(signals).map(|all| all / 4);
        if let Some(search) = self.search.take()
            && let Some((client, _)) = search.end(within.unwrap_or(LEAST_TIME))
        {
            self.client = client;
            self.client.lift_limit();
        }
        if let Some(edge) = self.edge.take().filter(|_| self.client.is_open()) {
            self.client.limit_to(within.unwrap_or(LEAST_TIME));
            // If this fails, the queue still shows other clients that this run isn't waiting any more.
            let _ = edge.forget(&mut self.client);
            self.client.lift_limit();
        }
        // However the wait ended, its place in the queue must be removed, and so must a lock whose grant
        // wasn't read. On the same connection, if it works, the server keeps the order of the requests.
        if self.wait.is_known()
            && !is_ours
            && let Err(error) =
                acquisition.release(&mode, signals, &self.claim, &mut self.client, now())
        {
            self.verbosity().verbose(error);
        }
    }

    /// Records in the history that this run ends without the lock, if it does. Returns the
    /// host whose success made this run unnecessary, if there is one. A failure is harmless.
    fn record_skip(&mut self) -> Option<String> {
        let (reason, after, by) = self.skipped.take().filter(|_| self.client.is_open())?;
        let (lock, who) = (self.claim.lock(), &self.acquisition.request.who);
        let recorded = lock.record_skip(&mut self.client, (reason, after, by.as_ref()), who);
        recorded.ok().flatten()
    }

    /// Runs the loop until the wait is over.
    fn run_loop(&mut self) -> WaitStep<Infallible> {
        self.apply(wait::Event::Tick)?;
        loop {
            self.take_in()?;
        }
    }

    /// Handles a message from the connection. If there is none, checks everything else.
    fn take_in(&mut self) -> WaitStep {
        let before = now();
        let incoming = match self.client.receive() {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return self.look_around(),
            Err(error) => return self.apply(wait::Event::Failed(error)).map_continue(drop),
        };
        self.held.answered |= matches!(incoming, Incoming::AskedAgain(_) | Incoming::Acquired(_));
        let event = match incoming {
            Incoming::AskedAgain(within) => wait::Event::Sent(before, within),
            Incoming::Acquired(answer) => {
                if let Ok(Acquired::Busy(busy)) = &answer {
                    self.note_busy(busy);
                }
                wait::Event::Answered(answer)
            }
            Incoming::Granted(grant) => wait::Event::Granted(grant),
            Incoming::Push(Push::Message(_) | Push::MessageMissed) => wait::Event::Message,
            Incoming::Push(Push::SubscribeDenied) => wait::Event::SubscribeDenied,
            Incoming::Push(Push::KeyChanged) => return Continue(()),
        };
        self.apply(event)?;
        match self.own_holder {
            Some(_) => Break(Ok(wait::End::Deadlock(Vec::new()))),
            None => Continue(()),
        }
    }

    /// Records whether the holder is an ancestor of this process while no
    /// other holder could make way. Reports an expiry that was repaired.
    fn note_busy(&mut self, busy: &Busy) {
        let is_alone = busy.holders == 1 || self.acquisition.request.limit == Limit::EXCLUSIVE;
        let holder = busy.holder.as_ref().filter(|_| is_alone);
        let instance = holder.and_then(|holder| holder.who.instance.as_ref());
        self.own_holder = instance.and_then(|instance| process::ancestor(instance));
        if busy.repaired {
            let ttl = report::format_duration(self.acquisition.request.ttl);
            let name = self.claim.lock().name();
            self.verbosity().info(format_args!(
                "lock \"{name}\" of another client had no expiry; it now expires in {ttl}"
            ));
        }
    }

    /// Handles everything except the connection: signals, locks that
    /// are already held, timeouts. Sleeps if nothing has happened.
    fn look_around(&mut self) -> WaitStep {
        while let Some(received) = needed(self.signals.next())? {
            self.apply(wait::Event::Signal(received.signal))?;
        }
        if let Err(error) = self.requester.check() {
            return Break(Err(error));
        }
        for news in self.held.news() {
            if let LockNews::Failed(error) = &news {
                self.verbosity().verbose(error);
            }
            self.apply(wait::Event::News(news))?;
        }
        let finished = self.search.as_ref().and_then(Background::finished);
        let event = finished.map_or(wait::Event::Tick, |(client, cycle)| {
            (self.search, self.client) = (None, client);
            self.client.lift_limit();
            cycle.map_or_else(wait::Event::Failed, wait::Event::Searched)
        });
        if self.apply(event)? {
            return Continue(());
        }
        self.held.renew_if_due();
        let stop = self.held.lease().map(|lease| lease.stop_at());
        let due = self.wait.due().into_iter().chain(self.held.due());
        needed(self.timer.set(due.chain(stop).min()))?;
        let own = [
            Some(self.signals.as_fd()),
            Some(self.timer.as_fd()),
            self.requester.process.map(|(_, process)| process.as_fd()),
            self.search.as_ref().map(AsFd::as_fd),
        ];
        let client = self.client.fds().map(Some);
        let fds = own.into_iter().chain(client).chain(self.held.poll_fds());
        needed(sleep(fds, self.requester.output))
    }

    /// Performs the decisions about an event, and about the events
    /// that follow from it. Returns true if there were any decisions.
    fn apply(&mut self, event: wait::Event) -> WaitStep<bool> {
        let mut was_idle = true;
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            for action in self.wait.on_event(event, self.held.lease(), now()) {
                was_idle = false;
                let failed = self.perform(action)?.err();
                self.events.extend(failed.map(wait::Event::Failed));
            }
        }
        Continue(!was_idle)
    }

    /// Performs an action; its results are added to the events.
    fn perform(&mut self, action: wait::Action) -> WaitStep<Result<(), Error>> {
        match action {
            wait::Action::SearchDeadlock(lasting) => self.search_deadlock(lasting),
            wait::Action::Ask(place) => return Continue(self.ask(place)),
            wait::Action::TimeOut => {
                // Abandons a running search, and with it the connection.
                self.search = None;
                return Continue(Err(self.client.server().silent_error()));
            }
            wait::Action::Disconnect(error) => {
                self.failure = error.to_string();
                if error.kind == ErrorKind::NotReplicated {
                    self.give_back_unconfirmed();
                }
                self.verbosity().verbose(error);
                self.client.disconnect();
            }
            wait::Action::ShowOutage { kind, lasting } => {
                // A server that has never answered may have another address, so the message includes the error.
                let says_enough =
                    kind == ErrorKind::Unreachable && self.client.server().was_reached();
                let why = if says_enough { "" } else { &self.failure };
                let line = report::outage_line(kind, why, lasting);
                self.verbosity().progress(&line);
            }
            wait::Action::ShowAnswer => self.verbosity().answers_again(),
            wait::Action::Show { busy, age } => return Continue(self.show(&busy, age)),
            wait::Action::Suspend => drop(needed(self.signals.suspend())?),
            wait::Action::End(end) => return Break(Ok(end)),
        }
        Continue(Ok(()))
    }

    /// Releases the grant if replicas haven't confirmed it for a TTL. Another server may have
    /// granted the lock meanwhile, with a larger fencing token, so this run needs a new one.
    fn give_back_unconfirmed(&mut self) {
        let since = *self.unconfirmed_since.get_or_insert_with(now);
        if now().since(since) >= self.acquisition.terms.ttl {
            let mode = ReleaseMode::Unused { is_pending: false };
            let released = self
                .by_last_answer(|attempt| attempt.claim.release(&mut attempt.client, &mode, || {}));
            self.unconfirmed_since = released.is_err().then_some(since);
        }
    }

    /// Shows the reason for the wait, and its usual duration if the user sees messages.
    fn show(&mut self, busy: &Busy, age: Duration) -> Result<(), Error> {
        let (locks, verbosity) = (&self.acquisition.settings.locks, self.verbosity());
        let mut answer = Ok(());
        // Locks that are already held need this thread more.
        let is_free = self.held.all.is_empty() && self.client.is_open();
        if is_free && verbosity >= Verbosity::Normal && !self.asked_usual {
            self.asked_usual = true;
            let (locks, name) = (locks.clone(), self.claim.lock().name().clone());
            let usual = self.by_last_answer(|attempt| {
                let ask = move |client: &mut Client| locks.usual(client, &name);
                attempt.in_background(ask)
            });
            answer = usual.map(|usual| match usual {
                Ok(usual) => self.usual = usual,
                Err(signal) => self.events.push_back(wait::Event::Signal(signal)),
            });
        }
        let outlook = Outlook {
            width: report::line_width(),
            at: report::at_server(locks),
            this_host_only: report::this_host_only(locks),
            usual: self.usual,
            queues: true,
        };
        let line = report::waiting_line(self.claim.lock().name(), busy, age, &outlook);
        systemd::status(&line);
        verbosity.progress(&line);
        answer
    }

    /// Starts a search for a deadlock, if there is a connection for it.
    fn search_deadlock(&mut self, lasting: Duration) {
        if self.client.is_open() {
            let new = || deadlock::edge(self.acquisition, self.held, &self.claim);
            let edge = self.edge.get_or_insert_with(new).clone();
            // If no thread can be started, this thread searches itself, and must end in time.
            let mut client = self.by_last_answer(|attempt| attempt.client.hand_over());
            let search = Background::start(move || {
                let published = edge.publish(&mut client, lasting);
                let cycle = published.and_then(|()| edge.look(&mut client));
                (client, cycle)
            });
            self.search = search.ok();
        }
        if self.search.is_none() {
            self.events.push_back(wait::Event::Searched(None));
        }
    }

    /// Runs `ask` with a limit, so that its answer comes hardly later than the wait's last answer may.
    fn by_last_answer<T>(&mut self, ask: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(last) = self.wait.last_answer() {
            self.client.limit_to(last.since(now()).max(LEAST_TIME));
        }
        let answer = ask(self);
        self.client.lift_limit();
        answer
    }

    /// Does `work` as [`in_background`] does. Meanwhile renews the locks that are already held.
    fn in_background<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Client) -> Result<T, Error> + Send + 'static,
    ) -> Result<Result<T, i32>, Error> {
        in_background(&mut self.client, self.signals, work, |own| {
            self.timer.set(self.held.due())?;
            let own = own.into_iter().chain([Some(self.timer.as_fd())]);
            poll::sleep(own.chain(self.held.poll_fds()), None)?;
            let news = self.held.news().into_iter().map(wait::Event::News);
            self.events.extend(news);
            self.held.renew_if_due();
            Ok(())
        })
    }

    /// Sends the request for the lock.
    fn ask(&mut self, place: Option<QueuePlace>) -> Result<(), Error> {
        let opened = self.by_last_answer(|attempt| {
            // Another server may have become the primary during the wait. If
            // all replicas must confirm, each request needs their current list.
            if place.is_some() || attempt.client.deployment.needs_all_replicas() {
                attempt.client.follow_locks();
            }
            // Only a server that pushes messages over this connection can notify a waiter.
            if place.is_some_and(|place| !place.polls) && !attempt.client.knows_protocol() {
                return attempt
                    .in_background(Client::learn_protocol)
                    .map(Result::err);
            }
            if attempt.client.is_open() {
                return Ok(None);
            }
            attempt.in_background(Client::open).map(Result::err)
        });
        if let Some(signal) = opened? {
            self.events.push_back(wait::Event::Signal(signal));
            return Ok(());
        }
        // Subscribes in the same write, so that the subscription exists before
        // the server handles the request. No message can be missed in between.
        if let Some(QueuePlace { polls: false, .. }) = place {
            self.claim.subscribe(&mut self.client)?;
        }
        let (request, sent) = (&self.acquisition.request, now());
        let outcome = self
            .claim
            .acquire(&mut self.client, request, place.as_ref());
        // A request that failed may have been sent partly.
        let within = outcome.as_ref().copied().unwrap_or_default();
        // Before news that came in the background: they may end the wait, which must then withdraw this request.
        self.events.push_front(wait::Event::Sent(sent, within));
        outcome.map(drop)
    }

    fn verbosity(&self) -> Verbosity {
        self.acquisition.settings.verbosity
    }
}

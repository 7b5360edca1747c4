//! The wait for one lock: it feeds events to [`Wait`] and carries out its decisions.
//!
//! Nothing here decides anything, and nothing in [`Wait`] waits: a request whose answer may take long is
//! sent, and its answer comes in between signals, reports of the renewer and the clock.

mod ends;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::super::usage::Refusal;
use super::background::Background;
use super::farewell::longest_farewell;
use super::{Acquisition, Requester, deadlock, open, random_fraction};
use crate::clock::{Moment, Timer, now};
use crate::decide::exit::Exit;
use crate::decide::renewals::LockNews;
use crate::decide::wait::{self, Wait, WaitLimit};
use crate::protocol::{
    Acquired, Busy, Claim, Client, Error, ErrorKind, Incoming, Limit, Place, Push, ReleaseMode,
    SkipReason, WaitEdge, Who,
};
use crate::report::{self, Outlook, Verbosity};
use crate::signal::Signals;
use crate::supervise::HeldLocks;
use crate::supervise::process;
use crate::sys::poll::sleep;
use crate::systemd;

/// Time for a server that didn't answer, to take back what it was asked: over the same connection, and if that is dead and the
/// server is not, over another one.
const SILENT: Duration = Duration::from_millis(500);

/// Least time for a question at the end of a wait, and for a search that is under way.
const LEAST_TIME: Duration = Duration::from_millis(250);

/// One wait for one lock.
pub struct Attempt<'a> {
    acquisition: &'a Acquisition<'a>,
    wait: Wait,
    /// Events that follow from what was done.
    events: VecDeque<wait::Event>,
    claim: Claim,
    held: &'a mut HeldLocks,
    client: Client,
    /// This wait as others read it, once it was published.
    edge: Option<WaitEdge>,
    /// The look for a deadlock that is under way, with the connection.
    search: Option<deadlock::Search>,
    /// The pid of the holder, if the holder has started this process: it waits for this run.
    own_holder: Option<i32>,
    /// Why it is tried again.
    failure: String,
    /// Time of the first failure of replicas to confirm the grant.
    unconfirmed_since: Option<Moment>,
    /// How long a hold of this lock usually lasts, where the history has said so; and whether it was asked.
    usual: Option<Duration>,
    asked_usual: bool,
    /// When the acquisition began.
    started: Moment,
    /// Why the run ends without the lock, with what others are to know of it.
    skipped: Option<(SkipReason, Duration, Option<Who>)>,
    requester: Requester<'a>,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

/// Step of the wait: continue, or end, also because something fails that waiting needs.
type Step<T = ()> = ControlFlow<Result<wait::End>, T>;

/// Ends the wait without something that waiting needs.
fn needed<T>(result: Result<T, impl Into<anyhow::Error>>) -> Step<T> {
    match result.map_err(Into::into).context("can't wait") {
        Ok(value) => Continue(value),
        Err(error) => Break(Err(error)),
    }
}

impl<'a> Attempt<'a> {
    /// `started` is when the acquisition began to wait for whatever lock.
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
        let policy = wait::Policy {
            limit: WaitLimit::since(started, options.no_wait, options.wait),
            terms: acquisition.terms,
            starts_on_grant: acquisition.starts_on_grant,
            holds_others: !(acquisition.inherited.is_empty() && held.all.is_empty()),
            awaits_server: acquisition.awaits_server() || held.answered || is_known,
            awaits_replicas: fails_over,
            failover_may_take: if fails_over {
                held.client.longest(1)
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

    /// Waits until the lock is ours.
    ///
    /// # Errors
    /// A [`Refusal`], or a failure.
    pub(super) fn run(mut self) -> Result<()> {
        let Break(end) = self.run_loop();
        let verbosity = self.verbosity();
        let is_silent = |error: &Error| error.kind.is_unreachable();
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

    /// Takes back what others see of this wait, and also the lock itself unless it `is_ours`.
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
            self.client.limit_to(within.unwrap_or(Duration::MAX));
            // Where that fails, other clients see from the queue that it doesn't wait any more.
            let _ = edge.forget(&mut self.client);
            self.client.lift_limit();
        }
        // Whatever else ended the wait: our place must be removed, and so must a lock that was taken by a
        // request whose answer wasn't read. The same connection, where it is good, keeps the order.
        if self.wait.is_known()
            && !is_ours
            && let Err(error) =
                acquisition.release(&mode, signals, &self.claim, &mut self.client, now())
        {
            self.verbosity().verbose(error);
        }
    }

    /// Notes for the history that this run ends without the lock, if it does. Returns the host whose success made it
    /// needless, if there is one. Nothing depends on it.
    fn record_skip(&mut self) -> Option<String> {
        let (reason, after, by) = self.skipped.take().filter(|_| self.client.is_open())?;
        let (lock, who) = (self.claim.lock(), &self.acquisition.request.who);
        let recorded = lock.record_skip(&mut self.client, (reason, after, by.as_ref()), who);
        recorded.ok().flatten()
    }

    /// Waits for whatever comes next, until the wait is over.
    fn run_loop(&mut self) -> Step<Infallible> {
        self.apply(wait::Event::Tick)?;
        loop {
            self.take_in()?;
        }
    }

    /// Takes in what came over the connection, or else looks around.
    fn take_in(&mut self) -> Step {
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
            Incoming::Push(Push::Subscribed | Push::KeyChanged) => return Continue(()),
        };
        self.apply(event)?;
        match self.own_holder {
            Some(_) => Break(Ok(wait::End::Deadlock(Vec::new()))),
            None => Continue(()),
        }
    }

    /// Notes if the holder has started this process, and no end of another holder could help. Reports the repair of an expiry.
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

    /// Looks at all but the connection: signals, what is held already, the clock. Sleeps if nothing has
    /// happened.
    fn look_around(&mut self) -> Step {
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
        if self.held.renewals.renewal_is_due(now()) {
            self.held.renew();
        }
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

    /// Lets the wait decide about an event, carries that out, and goes on with the events that follow from it. Returns
    /// true if there was anything to do.
    fn apply(&mut self, event: wait::Event) -> Step<bool> {
        let mut was_idle = true;
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            for action in self.wait.on_event(event, self.held.lease(), now()) {
                was_idle = false;
                match action {
                    wait::Action::End(end) => return Break(Ok(end)),
                    wait::Action::Suspend => drop(needed(self.signals.suspend())?),
                    action => {
                        let failed = self.perform(action).err();
                        self.events.extend(failed.map(wait::Event::Failed));
                    }
                }
            }
        }
        Continue(!was_idle)
    }

    /// Does what the wait has decided; the results are added to the events.
    fn perform(&mut self, action: wait::Action) -> Result<(), Error> {
        match action {
            wait::Action::SearchDeadlock(lasting) => self.search_deadlock(lasting),
            wait::Action::Ask(place) => return self.ask(place),
            wait::Action::TimeOut => {
                // What is under way there is left alone, and so is its connection.
                self.search = None;
                return Err(self.client.server().silent_error());
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
                // A server that has never answered may have another address.
                let says_enough =
                    kind == ErrorKind::Unreachable && self.client.server().was_reached();
                let why = if says_enough { "" } else { &self.failure };
                let line = report::outage_line(kind, why, lasting);
                self.verbosity().progress(&line);
            }
            wait::Action::ShowAnswer => self.verbosity().answers_again(),
            wait::Action::Show { busy, age } => return self.show(&busy, age),
            wait::Action::Suspend | wait::Action::End(_) => {}
        }
        Ok(())
    }

    /// Gives the grant back if replicas have failed to confirm it for a TTL: another server may have granted the lock since
    /// then, with a larger fencing token. The next request gets a new one.
    fn give_back_unconfirmed(&mut self) {
        let since = *self.unconfirmed_since.get_or_insert_with(now);
        if now().since(since) >= self.acquisition.terms.ttl {
            let mode = ReleaseMode::Unused { is_pending: false };
            let released = self
                .by_last_answer(|attempt| attempt.claim.release(&mut attempt.client, &mode, || {}));
            self.unconfirmed_since = released.is_err().then_some(since);
        }
    }

    /// Shows what we wait for, and what to expect to a user who sees that.
    fn show(&mut self, busy: &Busy, age: Duration) -> Result<(), Error> {
        let (locks, verbosity) = (&self.acquisition.settings.locks, self.verbosity());
        let name = self.claim.lock().name();
        let mut answer = Ok(());
        // What is held already needs this thread more.
        let is_free = self.held.all.is_empty() && self.client.is_open();
        if is_free && verbosity >= Verbosity::Normal && !self.asked_usual {
            self.asked_usual = true;
            // A signal waits for the answer.
            self.client.limit_to(longest_farewell(locks));
            let usual = locks.usual(&mut self.client, name);
            self.client.lift_limit();
            answer = usual.map(|usual| self.usual = usual);
        }
        let outlook = Outlook {
            at: report::at_server(locks),
            this_host_only: report::this_host_only(locks),
            usual: self.usual,
            queues: true,
        };
        let line = report::waiting_line(name, busy, age, &outlook);
        systemd::status(&line);
        verbosity.progress(&line);
        answer
    }

    /// Begins to look for a deadlock, if there is a connection for that.
    fn search_deadlock(&mut self, lasting: Duration) {
        if self.client.is_open() {
            let new = || deadlock::edge(self.acquisition, self.held, &self.claim);
            let edge = self.edge.get_or_insert_with(new).clone();
            // If no thread can be made, this one waits for it, and must end in time.
            let mut client = self.by_last_answer(|attempt| attempt.client.hand_over());
            let search = Background::start(move || {
                let published = edge.publish(&mut client, lasting);
                let cycle = published.and_then(|()| edge.look(&mut client));
                (client, cycle)
            });
            self.search = search.ok();
        }
        if self.search.is_none() {
            self.events.push_back(wait::Event::NotSearched);
        }
    }

    /// Asks something of which no answer takes much longer than until the last question is to be answered.
    fn by_last_answer<T>(&mut self, ask: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(last) = self.wait.last_answer() {
            self.client.limit_to(last.since(now()).max(LEAST_TIME));
        }
        let answer = ask(self);
        self.client.lift_limit();
        answer
    }

    /// Sends the question for the lock.
    fn ask(&mut self, place: Option<Place>) -> Result<(), Error> {
        let opened = self.by_last_answer(|attempt| {
            // While we waited, another server may have become the primary. And what a grant needs to count is asked for each.
            if place.is_some() || attempt.client.deployment.needs_all_replicas() {
                attempt.client.follow_locks();
            }
            open(&mut attempt.client, attempt.signals)
        });
        if let Some(signal) = opened? {
            self.events.push_back(wait::Event::Signal(signal));
            return Ok(());
        }
        // Together with the question: the subscription exists before the server looks at it, so no
        // message can fall in between.
        if let Some(Place { polls: false, .. }) = place {
            self.claim.subscribe(&mut self.client)?;
        }
        let (request, sent) = (&self.acquisition.request, now());
        let asked = self
            .claim
            .acquire(&mut self.client, request, place.as_ref());
        // A request that failed may have been sent in part.
        let within = asked.as_ref().copied().unwrap_or_default();
        self.events.push_back(wait::Event::Sent(sent, within));
        asked.map(drop)
    }

    fn verbosity(&self) -> Verbosity {
        self.acquisition.settings.verbosity
    }
}

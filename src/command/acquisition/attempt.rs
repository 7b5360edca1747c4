//! The wait for one lock: it feeds events to [`Wait`] and carries out its decisions.
//!
//! Nothing here decides anything, and nothing in [`Wait`] waits: a request whose answer may take long is
//! sent, and its answer comes in between signals, reports of the renewer and the clock.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::background::{Background, in_background};
use super::farewell::Farewell;
use super::{Acquisition, Reason, Requester, SLOW_TO_OPEN, deadlock, open, random_fraction};
use crate::clock::{Moment, Timer, now};
use crate::decide::renewals::LockNews;
use crate::decide::wait::{self, Wait, WaitLimit};
use crate::duration;
use crate::protocol::{
    self, Acquired, Busy, Claim, Client, ErrorKind, Incoming, Limit, Name, Place, ReleaseMode,
    SkipReason, Unconfirmed, WaitEdge, Who,
};
use crate::report::{self, Outlook, Verbosity, cancelled, client_in_words, lost};
use crate::signal::Signals;
use crate::supervise::process;
use crate::supervise::{HeldLock, HeldLocks};
use crate::sys::poll::sleep;
use crate::systemd;
use crate::variables::HELD;

/// Time for a server that has never answered, to take back what it was asked: over the same
/// connection, and if that is dead and the server is not, over another one.
const UNHEARD: Duration = Duration::from_millis(250);

/// One wait for one lock.
pub struct Attempt<'a> {
    acquisition: &'a Acquisition<'a>,
    wait: Wait,
    claim: Claim,
    held: &'a mut HeldLocks,
    client: Client,
    /// This wait as others read it, once it was published.
    edge: Option<WaitEdge>,
    /// The look for a deadlock that is under way, with the connection.
    search: Option<deadlock::Search>,
    /// The pid of the holder, if the holder has started this process: it waits for this run.
    own_holder: Option<i32>,
    /// The last question had no answer in time.
    timed_out: bool,
    /// Why it is tried again.
    failure: String,
    unconfirmed: Unconfirmed,
    /// How long a hold of this lock usually lasts, where the history has said so; and whether it was asked.
    usual: Option<Duration>,
    asked_usual: bool,
    /// What we wait for was shown on a terminal.
    was_shown: bool,
    /// When the acquisition began.
    started: Moment,
    /// Why the run ends without the lock, with what others are to know of it.
    skipped: Option<(SkipReason, Duration, Option<Who>)>,
    requester: Requester<'a>,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

/// Step of the wait: continue, or end.
type Step<T = ()> = ControlFlow<wait::End, T>;

/// Ends the wait without something that waiting needs.
fn needed<T>(result: Result<T, impl Into<io::Error>>) -> Step<T> {
    match result.map_err(Into::into) {
        Ok(value) => Continue(value),
        Err(error) => {
            let line = format!("can't wait: {error}");
            let error = protocol::Error::new(ErrorKind::Internal, line);
            Break(wait::End::Failed(error))
        }
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
        let policy = wait::Policy {
            limit: WaitLimit::since(started, options.no_wait, options.wait),
            terms: acquisition.terms,
            starts_on_grant: acquisition.starts_on_grant,
            holds_others: !(acquisition.inherited.is_empty() && held.all.is_empty()),
            awaits_server: acquisition.awaits_server() || held.answered || held.client.was_found(),
            awaits_replicas: locks.may_fail_over(),
            failover_may_take: if locks.may_fail_over() {
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
            claim,
            client: held.client.hand_over(),
            held,
            edge: None,
            search: None,
            own_holder: None,
            timed_out: false,
            failure: String::new(),
            unconfirmed: Unconfirmed::default(),
            usual: None,
            asked_usual: false,
            was_shown: false,
            started,
            skipped: None,
            requester,
            signals,
            timer,
        }
    }

    /// Waits until the lock is ours. Returns the reason to give up, if there is one.
    pub(super) fn run(mut self) -> Result<Option<Reason>> {
        let end = self.run_loop();
        let was_reached = self.client.server().was_reached();
        self.acquisition.ends_by.set(match &end {
            _ if self.timed_out && !was_reached => Some(now() + UNHEARD),
            wait::End::Failed(error) if error.kind.is_unreachable() && was_reached => {
                self.wait.ends_by()
            }
            _ => None,
        });
        let mut outcome = self.conclude(end);
        report::status_line(None);
        self.take_back(matches!(outcome, Ok(None)));
        if let Some((reason, after, by)) = self.skipped.take()
            && self.client.is_open()
        {
            let host = self.record_skip((reason, after, by.as_ref()));
            if let (Some(host), Ok(Some(Reason::Skipped(line)))) = (host, &mut outcome) {
                line.push_str(" on ");
                line.push_str(&report::quoted(&host));
            }
        }
        if self.client.is_open() {
            self.held.client = self.client;
        }
        outcome
    }

    /// Takes back what others see of this wait, and also the lock itself unless it `is_ours`.
    fn take_back(&mut self, is_ours: bool) {
        let is_pending = self.wait.has_pending_request();
        let farewell = Farewell {
            acquisition: self.acquisition,
            mode: &ReleaseMode::Unused { is_pending },
            signals: Some(self.signals),
        };
        let within = farewell.within().map(|all| all / 4);
        if let Some(search) = self.search.take()
            && let Some((client, _)) = search.end(within.unwrap_or(SLOW_TO_OPEN))
        {
            self.client = client;
            self.client.lift_limit();
        }
        if let Some(edge) = self.edge.take().filter(|_| self.client.is_open()) {
            if let Some(within) = within {
                self.client.limit_to(within);
            }
            // Where that fails, other clients see from the queue that it doesn't wait any more.
            let _ = edge.forget(&mut self.client);
            self.client.lift_limit();
        }
        // Whatever else ended the wait: our place must be removed, and so must a lock that was taken by a
        // request whose answer wasn't read. The same connection, where it is good, keeps the order.
        if self.wait.is_known() && !is_ours {
            let released = if self.timed_out && !self.client.server().was_reached() {
                self.release_unheard(farewell.mode)
            } else {
                farewell
                    .release(&self.claim, &mut self.client, now())
                    .map(drop)
            };
            if let Err(error) = released {
                self.acquisition.settings.verbosity.verbose(error);
            }
        }
    }

    /// Takes back what a server that never answered was asked: over the same connection, whether it answers or not, and if
    /// that is dead and the server is not, over another one.
    fn release_unheard(&mut self, mode: &ReleaseMode) -> Result<(), protocol::Error> {
        let client = &mut self.client;
        client.limit_to(Duration::from_millis(1));
        let mut released = self.claim.release(client, mode, || {});
        if released.is_err() {
            client.limit_to(UNHEARD);
            released = self.claim.release(client, mode, || {});
        }
        client.lift_limit();
        released.map(drop)
    }

    /// Notes for the history that this run ends without the lock. Returns the host whose success made it needless, if there
    /// is one. Nothing depends on it.
    fn record_skip(&mut self, skipped: (SkipReason, Duration, Option<&Who>)) -> Option<String> {
        let (lock, who) = (self.claim.lock(), &self.acquisition.request.who);
        let noted = lock.record_skip(&mut self.client, skipped, who);
        noted.unwrap_or_else(|error| {
            self.acquisition.settings.verbosity.verbose(format_args!(
                "lock \"{}\": can't record in the history that this run was skipped: {error}",
                lock.name()
            ));
            None
        })
    }

    /// Waits for whatever comes next, until the wait is over.
    fn run_loop(&mut self) -> wait::End {
        let mut step = self.apply(wait::Event::Tick);
        loop {
            match step {
                Continue(_) => step = self.take_in(),
                Break(end) => return end,
            }
        }
    }

    /// Takes in what came over the connection, or else looks around. Returns true if anything was done about it.
    fn take_in(&mut self) -> Step<bool> {
        let before = now();
        match self.client.receive() {
            Ok(Some(incoming)) => {
                let event = self.event_of(incoming, before);
                let applied = event.map_or(Continue(false), |event| self.apply(event))?;
                if self.own_holder.is_some() {
                    return Break(wait::End::Deadlock(Vec::new()));
                }
                Continue(applied)
            }
            Ok(None) => self.look_around(),
            Err(error) => self.apply(wait::Event::Failed(error)),
        }
    }

    /// Looks at all but the connection: signals, what is held already, the clock. Sleeps if nothing has
    /// happened.
    fn look_around(&mut self) -> Step<bool> {
        while let Some(received) = needed(self.signals.next())? {
            self.apply(wait::Event::Signal(received.signal))?;
        }
        if self.requester.gone().is_some() {
            return self.apply(wait::Event::Abandoned);
        }
        for news in self.held.news() {
            if let LockNews::Failed(error) = &news {
                self.acquisition.settings.verbosity.verbose(error);
            }
            self.apply(wait::Event::News(news))?;
        }
        if let Some((client, found)) = self.search.as_ref().and_then(Background::finished) {
            (self.search, self.client) = (None, client);
            self.client.lift_limit();
            let event = found.map_or_else(wait::Event::Failed, wait::Event::Searched);
            return self.apply(event);
        }
        if self.apply(wait::Event::Tick)? {
            return Continue(true);
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
        needed(sleep(fds, self.requester.output))?;
        Continue(false)
    }

    /// Returns what came in since `before` as an event, if it is one for a waiter.
    fn event_of(&mut self, incoming: Incoming, before: Moment) -> Option<wait::Event> {
        match incoming {
            Incoming::AskedAgain(within) => {
                self.held.answered = true;
                Some(wait::Event::Sent(before, within))
            }
            Incoming::Acquired(answer) => {
                self.held.answered = true;
                if let Ok(Acquired::Busy(Busy { repaired: true, .. })) = answer {
                    let ttl = report::format_duration(self.acquisition.request.ttl);
                    let name = self.claim.lock().name();
                    self.acquisition.settings.verbosity.info(format_args!(
                        "lock \"{name}\" of another client had no expiry; it now expires in {ttl}"
                    ));
                }
                if let Ok(Acquired::Busy(busy)) = &answer {
                    self.own_holder = self.own_holder(busy);
                }
                Some(wait::Event::Answered(answer))
            }
            Incoming::Granted(grant) => Some(wait::Event::Granted(grant)),
            Incoming::Message => Some(wait::Event::Message),
            Incoming::SubscribeDenied => Some(wait::Event::SubscribeDenied),
            Incoming::Subscribed | Incoming::KeyChanged => None,
        }
    }

    /// Lets the wait decide about an event, carries that out, and goes on with the events that follow from it. Returns
    /// true if there was anything to do.
    fn apply(&mut self, event: wait::Event) -> Step<bool> {
        let mut was_idle = true;
        let mut events = VecDeque::new();
        let mut next = Some(event);
        while let Some(event) = next {
            for action in self.wait.on_event(event, self.held.lease(), now()) {
                self.perform(action, &mut events)?;
                was_idle = false;
            }
            next = events.pop_front();
        }
        Continue(!was_idle)
    }

    /// Does what the wait has decided; the results are added to the events.
    fn perform(&mut self, action: wait::Action, events: &mut VecDeque<wait::Event>) -> Step {
        match action {
            wait::Action::Suspend => drop(needed(self.signals.suspend())?),
            wait::Action::SearchDeadlock(lasting) => events.extend(self.search_deadlock(lasting)),
            wait::Action::Ask(place) => {
                let asked = self.ask(place, events);
                events.extend(asked.err().map(wait::Event::Failed));
            }
            wait::Action::TimeOut => {
                self.timed_out = true;
                // What is under way there is left alone, and so is its connection.
                self.search = None;
                let error = self.client.server().silent_error();
                events.push_back(wait::Event::Failed(error));
            }
            wait::Action::Disconnect(error) => {
                self.failure = error.to_string();
                self.by_last_answer(|attempt| {
                    let (grant, ttl) = (&mut attempt.unconfirmed, attempt.acquisition.terms.ttl);
                    grant.on_failure(&error, &attempt.claim, &mut attempt.client, ttl);
                });
                self.acquisition.settings.verbosity.verbose(error);
                self.client.disconnect();
            }
            wait::Action::ShowOutage { kind, lasting } => {
                // A server that has never answered may have another address.
                let says_enough =
                    kind == ErrorKind::Unreachable && self.client.server().was_reached();
                let why = if says_enough { "" } else { &self.failure };
                let line = report::outage_line(kind, why, lasting);
                self.acquisition.settings.verbosity.progress(&line);
            }
            wait::Action::ShowAnswer => self.acquisition.settings.verbosity.answers_again(),
            wait::Action::Show { busy, age } => self.show(&busy, age, events),
            wait::Action::End(end) => return Break(end),
        }
        Continue(())
    }

    /// Shows what we wait for, and what to expect to a user who sees that.
    fn show(&mut self, busy: &Busy, age: Duration, events: &mut VecDeque<wait::Event>) {
        let is_silent = self.acquisition.settings.verbosity < Verbosity::Normal;
        self.was_shown = !is_silent && report::has_terminal();
        // What is held already needs this thread more.
        let is_free = self.held.all.is_empty() && self.client.is_open();
        if !is_silent && !self.asked_usual && is_free {
            self.asked_usual = true;
            // A log gets a line a minute, which is to say all; a terminal need not wait for the rest.
            if self.was_shown {
                self.show_line(busy, age);
            }
            match self.ask_usual() {
                Ok(signal) => events.extend(signal.map(wait::Event::Signal)),
                Err(error) => events.push_back(wait::Event::Failed(error)),
            }
        }
        self.show_line(busy, age);
    }

    fn show_line(&self, busy: &Busy, age: Duration) {
        let outlook = Outlook {
            at: report::at_server(&self.acquisition.settings.locks),
            this_host_only: report::this_host_only(&self.acquisition.settings.locks),
            usual: self.usual,
            queues: true,
        };
        let line = report::waiting_line(self.claim.lock().name(), busy, age, &outlook);
        systemd::status(&line);
        self.acquisition.settings.verbosity.progress(&line);
    }

    /// After a wait that was shown, or that is to be reported: how long it was.
    fn report_wait(&self, waited: Duration) {
        let name = self.claim.lock().name();
        let verbosity = self.acquisition.settings.verbosity;
        let line = || format!("got \"{name}\" after {}", report::format_wait(waited));
        if self.was_shown {
            verbosity.info(line());
        } else if !waited.is_zero() && verbosity >= Verbosity::Verbose {
            verbosity.verbose(line());
        }
    }

    /// Asks the server how long a hold of the lock usually lasts. Returns a signal that ends us, if one comes before.
    fn ask_usual(&mut self) -> Result<Option<i32>, protocol::Error> {
        let locks = self.acquisition.settings.locks.clone();
        let name = self.claim.lock().name().clone();
        let asked = self.by_last_answer(|attempt| {
            let mut client = attempt.client.hand_over();
            in_background(attempt.signals, move || {
                let usual = locks.usual(&mut client, &name);
                (client, usual)
            })
        });
        match asked? {
            Ok((client, usual)) => {
                self.client = client;
                self.client.lift_limit();
                self.usual = usual?;
                Ok(None)
            }
            Err(signal) => Ok(Some(signal)),
        }
    }

    /// Begins to look for a deadlock. Returns an event if the search can't be started.
    fn search_deadlock(&mut self, lasting: Duration) -> Option<wait::Event> {
        if self.client.is_open() {
            let new = || deadlock::edge(self.acquisition, self.held, &self.claim);
            let edge = self.edge.get_or_insert_with(new).clone();
            let search = Background::start(|| {
                // If no thread can be made, this one waits for it, and has to end in time.
                let mut client = self.by_last_answer(|attempt| attempt.client.hand_over());
                move || {
                    let found = deadlock::look(&edge, &mut client, lasting);
                    (client, found)
                }
            });
            self.search = search.ok();
        }
        self.search.is_none().then_some(wait::Event::NotSearched)
    }

    /// Asks something of which no answer takes much longer than until the last question is to be answered.
    fn by_last_answer<T>(&mut self, ask: impl FnOnce(&mut Self) -> T) -> T {
        if let Some(last) = self.wait.last_answer() {
            self.client.limit_to(last.since(now()).max(SLOW_TO_OPEN));
        }
        let answer = ask(self);
        self.client.lift_limit();
        answer
    }

    /// Sends the question for the lock.
    fn ask(
        &mut self,
        place: Option<Place>,
        events: &mut VecDeque<wait::Event>,
    ) -> Result<(), protocol::Error> {
        let opened = self.by_last_answer(|attempt| {
            // While we waited, another server may have become the primary. And what a grant needs to count is asked for each.
            if place.is_some() || attempt.client.needs_all_replicas() {
                attempt.client.follow_locks();
            }
            open(&mut attempt.client, attempt.signals)
        });
        if let Some(signal) = opened? {
            events.push_back(wait::Event::Signal(signal));
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
        // It may have been sent in part.
        let within = asked.as_ref().copied().unwrap_or_default();
        events.push_back(wait::Event::Sent(sent, within));
        asked.map(drop)
    }

    /// Returns the pid of the holder if the holder has started this process, and no end of another holder could help.
    fn own_holder(&self, busy: &Busy) -> Option<i32> {
        let is_alone = busy.holders == 1 || self.acquisition.request.limit == Limit::EXCLUSIVE;
        let who = &busy.holder.as_ref().filter(|_| is_alone)?.who;
        process::ancestor(who.instance.as_ref()?)
    }

    /// Takes a lock that is ours into what is held. Returns the reason if it isn't ours.
    fn conclude(&mut self, end: wait::End) -> Result<Option<Reason>> {
        let name = self.claim.lock().name();
        Ok(Some(match end {
            wait::End::Acquired(taken) => {
                self.hold(taken);
                return Ok(None);
            }
            wait::End::Busy(busy) => self.give_up_busy(&busy),
            wait::End::Crowded(waiting) => {
                self.give_up(SkipReason::Crowded, self.crowded(waiting), None, None)
            }
            wait::End::Superseded(by) => {
                let line = report::superseded(name, &by, self.acquisition.request.queue.number);
                let in_the_way = client_in_words(&by);
                self.give_up(SkipReason::Superseded, line, Some(in_the_way), Some(*by))
            }
            wait::End::Removed(by) => {
                let in_the_way = client_in_words(&by);
                let why = report::reason_of(&by);
                let line =
                    format!("{in_the_way} removed this run from the queue of lock \"{name}\"{why}");
                self.give_up(SkipReason::Removed, line, Some(in_the_way), Some(*by))
            }
            wait::End::Deadlock(cycle) => {
                let line = deadlock::in_words(name, &cycle);
                self.give_up(SkipReason::Deadlock, line, None, None)
            }
            wait::End::RecentSuccess(ago) => {
                self.skipped = Some((SkipReason::Recent, ago, None));
                Reason::Skipped(self.skipped_line(ago))
            }
            wait::End::HeldLockGone(news) => Reason::Lost(self.lost_meanwhile(Some(&news))),
            wait::End::NotRenewed => Reason::Lost(self.lost_meanwhile(None)),
            wait::End::Interrupted(signal) => Reason::Interrupted(signal),
            wait::End::Abandoned => {
                let unneeded = || anyhow!("this run doesn't need the lock any more");
                return Err(self.requester.gone().unwrap_or_else(unneeded));
            }
            wait::End::TooSlow => {
                let ttl = duration::exact(self.acquisition.terms.ttl);
                let locks = &self.acquisition.settings.locks;
                let line = format!("{locks} is too slow for --ttl {ttl}");
                return Err(protocol::Error::new(ErrorKind::Unreachable, line).into());
            }
            wait::End::Failed(error) if error.kind == ErrorKind::Crowded => {
                let line = format!("gave up waiting for lock \"{name}\": {error}");
                Reason::Busy(line, None)
            }
            wait::End::Failed(error) if error.kind == ErrorKind::NotReplicated => {
                let line = format!("gave lock \"{name}\" back: {error}");
                return Err(protocol::Error::new(error.kind, line).into());
            }
            wait::End::Failed(error) => return Err(error.into()),
        }))
    }

    /// Takes in a lock that is ours.
    fn hold(&mut self, taken: wait::Taken) {
        let (name, fence) = (self.claim.lock().name(), taken.fence);
        self.report_wait(taken.waited);
        let how = taken.granted.map_or("acquired", |_| "handed over");
        self.acquisition
            .settings
            .verbosity
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

    /// Notes why this run ends without the lock, and because of which run, for the history. Returns the message, and who is
    /// in the way, for a hook.
    fn give_up(
        &mut self,
        reason: SkipReason,
        line: String,
        in_the_way: Option<String>,
        by: Option<Who>,
    ) -> Reason {
        self.skipped = Some((reason, now().since(self.started), by));
        match self.own_holder {
            Some(pid) => Reason::Busy(held_by_itself(self.claim.lock().name(), pid), None),
            None => Reason::Busy(line, in_the_way),
        }
    }

    /// Gives up after a wait that has lasted long enough.
    fn give_up_busy(&mut self, busy: &Busy) -> Reason {
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
        let by = frozen_by.or(holder);
        let in_the_way = report::busy_with(busy);
        self.give_up(reason, line, Some(in_the_way), by.cloned())
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

    /// The message for a wait during which something that we held was lost.
    fn lost_meanwhile(&self, news: Option<&LockNews>) -> String {
        let what = match news {
            Some(LockNews::Lost { name, loss, .. }) => lost(name, loss),
            Some(LockNews::Cancelled(name, by)) => cancelled(name, by),
            Some(LockNews::Released(name)) => format!("lock \"{name}\" was released"),
            _ => "the locks that this run already held were not renewed in time".into(),
        };
        let name = self.claim.lock().name();
        format!("{what}, while waiting for lock \"{name}\"")
    }
}

/// The message for a run that would wait for its own job.
fn held_by_itself(name: &Name, pid: i32) -> String {
    format!(
        "lock \"{name}\" is held by this job itself (pid {pid}); its {HELD} was dropped on the way, by sudo for example: keep it with sudo --preserve-env={HELD}"
    )
}

//! The wait for one lock: it feeds events to [`Wait`] and carries out its decisions.
//!
//! Nothing here decides anything, and nothing in [`Wait`] waits: a request whose answer may take long is
//! sent, and its answer comes in between signals, reports of the renewer and the clock.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::deadlock;
use super::{
    Acquisition, Outcome, Reason, Requester, SLOW_TO_OPEN, in_background, open, random_fraction,
};
use crate::clock::{Moment, Timer, now};
use crate::decide::wait::{self, Wait, WaitLimit};
use crate::duration;
use crate::protocol::{
    self, Acquired, Busy, Claim, Client, ErrorKind, Incoming, Limit, Locks, Name, Place,
    ReleaseMode, SkipReason, WaitEdge, Who,
};
use crate::report::{self, Outlook, Verbosity, cancelled, lost};
use crate::signal::Signals;
use crate::supervise::process;
use crate::supervise::{HeldLock, HeldLocks, LockTrouble};
use crate::sys::poll::sleep;
use crate::systemd;
use crate::variables::HELD;

/// How long a server that has never answered is waited for once more, to take back what it was asked.
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
    /// What went wrong last with what is held already.
    trouble: Option<LockTrouble>,
    /// The last question had no answer in time.
    timed_out: bool,
    /// Why it is tried again.
    failure: String,
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

/// The effect of an event.
enum Applied {
    Nothing,
    Something,
    End(wait::End),
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
        let policy = wait::Policy {
            limit: WaitLimit::since(started, options.no_wait, options.wait),
            terms: acquisition.terms(),
            starts_on_grant: acquisition.starts_on_grant,
            holds_others: !(acquisition.inherited.is_empty() && held.all.is_empty()),
            awaits_server: acquisition.awaits_server() || held.answered || held.client.was_found(),
            awaits_replicas: held.client.needs_all_replicas(),
            failover_may_take: if acquisition.settings.locks.may_fail_over() {
                held.client.longest(1)
            } else {
                Duration::ZERO
            },
            answer_may_take: acquisition.settings.locks.answer_may_take(),
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
            trouble: None,
            timed_out: false,
            failure: String::new(),
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

    /// Waits until the lock is ours, or there is a reason to give up.
    pub(super) fn run(mut self) -> Result<Outcome> {
        let mut outcome = match self.run_loop() {
            Ok(end) => {
                if let wait::End::Failed(error) = &end
                    && error.kind.is_unreachable()
                    && self.client.server().was_reached()
                {
                    self.acquisition.ends_by.set(self.wait.ends_by());
                }
                self.outcome_of(end)
            }
            Err(error) => {
                let line = format!("can't wait: {error}");
                Err(protocol::Error::new(ErrorKind::Internal, line).into())
            }
        };
        report::status_line(None);
        let within = self.acquisition.farewell(Some(self.signals));
        if let Some(search) = self.search.take()
            && let Some(client) = search.end(within.map_or(SLOW_TO_OPEN, |within| within / 4))
        {
            self.client = client;
        }
        if let Some(edge) = self.edge.take().filter(|_| self.client.is_open()) {
            if let Some(within) = within {
                self.client.limit_to(within / 4);
            }
            // Where that fails, other clients see from the queue that it doesn't wait any more.
            let _ = edge.forget(&mut self.client);
            self.client.lift_limit();
        }
        // Whatever else ended the wait: our place must be removed, and so must a lock that was taken by a
        // request whose answer wasn't read. The same connection, where it is good, keeps the order.
        if self.wait.is_known() && !matches!(outcome, Ok(Outcome::Acquired)) {
            let signals = Some(self.signals);
            let is_pending = self.wait.has_pending_request();
            let (mode, client) = (&ReleaseMode::Unused { is_pending }, &mut self.client);
            let released = if self.timed_out && !client.server().was_reached() {
                // What it was asked is taken back: over the same connection, whether it answers or not, and
                // where that is dead and the server is not, over another one.
                client.limit_to(Duration::from_millis(1));
                let mut released = self.claim.release(client, mode, || {});
                if released.is_err() {
                    client.limit_to(UNHEARD);
                    released = self.claim.release(client, mode, || {});
                }
                client.lift_limit();
                released.map(drop)
            } else {
                let until = now();
                let released = self
                    .acquisition
                    .release(&self.claim, mode, until, client, signals);
                released.map(drop)
            };
            if let Err(error) = released {
                self.acquisition.verbosity().verbose(error);
            }
        }
        if let Some((reason, after, by)) = self.skipped.take()
            && self.client.is_open()
        {
            let skipped = (reason, after, by.as_ref());
            let (lock, client) = (self.claim.lock(), &mut self.client);
            let noted = self.acquisition.record_skip(lock, client, skipped);
            if let (Ok(Some(host)), Ok(Outcome::NotAcquired(Reason::Skipped(line)))) =
                (noted, &mut outcome)
            {
                line.push_str(" on ");
                line.push_str(&report::quoted(&host));
            }
        }
        if self.client.is_open() {
            self.held.client = self.client;
        }
        outcome
    }

    /// Waits for whatever comes next, until the wait is over.
    fn run_loop(&mut self) -> io::Result<wait::End> {
        let mut applied = self.apply(wait::Event::Tick)?;
        loop {
            if let Applied::End(end) = applied {
                return Ok(end);
            }
            applied = match self.client.receive() {
                Ok(Some(incoming)) => match self.event_of(incoming) {
                    Some(event) => match self.apply(event)? {
                        Applied::End(end) => Applied::End(end),
                        _ if self.own_holder.is_some() => {
                            Applied::End(wait::End::Deadlock(Vec::new()))
                        }
                        applied => applied,
                    },
                    None => Applied::Nothing,
                },
                Ok(None) => self.look_around()?,
                Err(error) => self.apply(wait::Event::Failed(error))?,
            };
        }
    }

    /// Looks at all but the connection: signals, what is held already, the clock. Sleeps if nothing has
    /// happened.
    fn look_around(&mut self) -> io::Result<Applied> {
        while let Some(received) = self.signals.next()? {
            let applied = self.apply(wait::Event::Signal(received.signal))?;
            if let Applied::End(_) = applied {
                return Ok(applied);
            }
        }
        if self.requester.gone().is_some() {
            return self.apply(wait::Event::Abandoned);
        }
        for report in self.held.reports() {
            let (event, trouble) = self.held.record(report);
            if let Some(LockTrouble::Unreachable(error)) = &trouble {
                self.acquisition.verbosity().verbose(error);
            }
            self.trouble = trouble;
            if let Some(event) = event
                && let applied @ Applied::End(_) = self.apply(wait::Event::Lease(event))?
            {
                return Ok(applied);
            }
        }
        if let Some((client, found)) = self.search.as_ref().and_then(deadlock::Search::finished) {
            (self.search, self.client) = (None, client);
            return self.apply(searched(found));
        }
        let applied = self.apply(wait::Event::Tick)?;
        if let Applied::Something | Applied::End(_) = applied {
            return Ok(applied);
        }
        if self.held.renewal_is_due() {
            self.held.renew();
        }
        let stop = self.held.lease().map(|lease| lease.stop_at());
        let due = self.wait.due().into_iter().chain(self.held.due());
        self.timer.set(due.chain(stop).min())?;
        let own = [
            Some(self.signals.as_fd()),
            Some(self.timer.as_fd()),
            self.requester.process.map(|(_, process)| process.as_fd()),
            self.search.as_ref().map(AsFd::as_fd),
        ];
        let client = self.client.fds().map(Some);
        let fds = own.into_iter().chain(client).chain(self.held.poll_fds());
        sleep(fds, self.requester.output)?;
        Ok(Applied::Nothing)
    }

    /// What came in, as an event, if it is one for a waiter.
    fn event_of(&mut self, incoming: Incoming) -> Option<wait::Event> {
        match incoming {
            Incoming::Acquired(answer) => {
                self.held.answered = true;
                if let Ok(Acquired::Busy(Busy { repaired: true, .. })) = answer {
                    let ttl = report::format_duration(self.acquisition.request.ttl);
                    let name = self.claim.lock().name();
                    self.acquisition.verbosity().info(format_args!(
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

    /// Lets the wait decide about an event, carries that out, and goes on with the events that follow from it.
    fn apply(&mut self, event: wait::Event) -> io::Result<Applied> {
        let mut applied = Applied::Nothing;
        let mut events = VecDeque::new();
        let mut next = Some(event);
        while let Some(event) = next {
            for action in self.wait.on_event(event, self.held.lease(), now()) {
                if let wait::Action::End(end) = action {
                    return Ok(Applied::End(end));
                }
                self.perform(action, &mut events)?;
                applied = Applied::Something;
            }
            next = events.pop_front();
        }
        Ok(applied)
    }

    /// Does what the wait has decided; the results are added to the events.
    fn perform(
        &mut self,
        action: wait::Action,
        events: &mut VecDeque<wait::Event>,
    ) -> io::Result<()> {
        match action {
            wait::Action::Suspend => {
                self.signals.suspend()?;
            }
            wait::Action::SearchDeadlock(lasting) => {
                events.extend(self.search_deadlock(lasting));
            }
            wait::Action::Ask(place) => self.ask(place, events),
            wait::Action::TimeOut => {
                self.timed_out = true;
                // What is under way there is left alone, and so is its connection.
                self.search = None;
                let error = self.client.server().silent_error();
                events.push_back(wait::Event::Failed(error));
            }
            wait::Action::Disconnect(error) => {
                self.failure = error.to_string();
                self.acquisition.verbosity().verbose(error);
                self.client.disconnect();
            }
            wait::Action::ShowOutage { kind, lasting } => {
                // A server that has never answered may have another address.
                let says_enough =
                    kind == ErrorKind::Unreachable && self.client.server().was_reached();
                let why = if says_enough { "" } else { &self.failure };
                let line = report::outage_line(kind, why, lasting);
                self.acquisition.verbosity().progress(&line);
            }
            wait::Action::ShowAnswer => self.acquisition.verbosity().answers_again(),
            wait::Action::Show { busy, age } => self.show(&busy, age, events),
            wait::Action::End(_) => {}
        }
        Ok(())
    }

    /// Shows what we wait for, and what to expect to a user who sees that.
    fn show(&mut self, busy: &Busy, age: Duration, events: &mut VecDeque<wait::Event>) {
        let is_silent = self.acquisition.verbosity() < Verbosity::Normal;
        self.was_shown = !is_silent && report::has_terminal();
        // What is held already needs this thread more.
        let is_free = self.held.all.is_empty() && self.client.is_open();
        if !is_silent && !self.asked_usual && is_free {
            self.asked_usual = true;
            // A log gets a line a minute, which is to say all; a terminal need not wait for the rest.
            if self.was_shown {
                self.show_line(busy, age);
            }
            match self.look_up(Locks::usual) {
                Ok(Ok(usual)) => self.usual = usual,
                Ok(Err(signal)) => events.push_back(wait::Event::Signal(signal)),
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
        self.acquisition.verbosity().progress(&line);
    }

    /// After a wait that was shown, or that is to be reported: how long it was.
    fn report_wait(&self, waited: Duration) {
        let (name, verbosity) = (self.claim.lock().name(), self.acquisition.verbosity());
        let line = || format!("got \"{name}\" after {}", report::format_wait(waited));
        if self.was_shown {
            verbosity.info(line());
        } else if !waited.is_zero() && verbosity >= Verbosity::Verbose {
            verbosity.verbose(line());
        }
    }

    /// Asks the server about the lock: its answer, or a signal that ends us, if one comes before.
    fn look_up<T: Send + 'static>(
        &mut self,
        ask: impl FnOnce(&Locks, &mut Client, &Name) -> Result<T, protocol::Error> + Send + 'static,
    ) -> Result<Result<T, i32>, protocol::Error> {
        let locks = self.acquisition.settings.locks.clone();
        let name = self.claim.lock().name().clone();
        let looked_up = self.by_last_answer(|attempt| {
            let mut client = attempt.client.hand_over();
            in_background(attempt.signals, move || {
                let found = ask(&locks, &mut client, &name);
                (client, found)
            })
        });
        match looked_up? {
            Ok((client, found)) => {
                self.client = client;
                self.client.lift_limit();
                found.map(Ok)
            }
            Err(signal) => Ok(Err(signal)),
        }
    }

    /// Begins to look for a deadlock. What comes of it, where that is known at once: there is no connection for it, or no
    /// thread, so that all else waits for the answers.
    fn search_deadlock(&mut self, lasting: Duration) -> Option<wait::Event> {
        if !self.client.is_open() {
            return Some(wait::Event::NotSearched);
        }
        let new = || deadlock::edge(self.acquisition, self.held, &self.claim);
        let edge = self.edge.get_or_insert_with(new).clone();
        if let Ok(search) = deadlock::Search::start(edge.clone(), &mut self.client, lasting) {
            self.search = Some(search);
            return None;
        }
        let look = |attempt: &mut Self| deadlock::look(&edge, &mut attempt.client, lasting);
        Some(searched(self.by_last_answer(look)))
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

    /// Opens a connection to where the locks are, unless that is done; a signal that ends us, if one comes before.
    fn open(&mut self, place: Option<Place>) -> Result<Option<i32>, protocol::Error> {
        // While we waited, another server may have become the primary. And what a grant needs to count is asked for each.
        if place.is_some() || self.client.needs_all_replicas() {
            self.client.follow_locks();
        }
        open(&mut self.client, self.signals)
    }

    /// Sends the question for the lock.
    fn ask(&mut self, place: Option<Place>, events: &mut VecDeque<wait::Event>) {
        let opened = self.by_last_answer(|attempt| attempt.open(place));
        match opened {
            Ok(None) => {}
            Ok(Some(signal)) => return events.push_back(wait::Event::Signal(signal)),
            Err(error) => return events.push_back(wait::Event::Failed(error)),
        }
        // Together with the question: the subscription exists before the server looks at it, so no
        // message can fall in between.
        if let Some(Place { polls: false, .. }) = place
            && let Err(error) = self.claim.subscribe(&mut self.client)
        {
            return events.push_back(wait::Event::Failed(error));
        }
        let sent = now();
        let request = &self.acquisition.request;
        match self
            .claim
            .acquire(&mut self.client, request, place.as_ref())
        {
            Ok(within) => events.push_back(wait::Event::Sent(sent, within)),
            Err(error) => {
                events.push_back(wait::Event::Sent(sent, Duration::ZERO));
                events.push_back(wait::Event::Failed(error));
            }
        }
    }

    /// Returns the pid of the holder if the holder has started this process, and no end of another holder could help.
    fn own_holder(&self, busy: &Busy) -> Option<i32> {
        let is_alone = busy.holders == 1 || self.acquisition.request.limit == Limit::EXCLUSIVE;
        let who = &busy.holder.as_ref().filter(|_| is_alone)?.who;
        process::ancestor(who.instance.as_ref()?)
    }

    /// How the wait ended, for the whole acquisition: a lock that is ours is held from now on.
    fn outcome_of(&mut self, end: wait::End) -> Result<Outcome> {
        self.skipped = self.skipped_by(&end);
        let name = self.claim.lock().name();
        let verbosity = self.acquisition.verbosity();
        let is_busy = matches!(end, wait::End::Busy(_) | wait::End::Deadlock(_));
        if let Some(pid) = self.own_holder.filter(|_| is_busy) {
            let reason = Reason::Busy(held_by_itself(name, pid), None);
            return Ok(Outcome::NotAcquired(reason));
        }
        let reason = match end {
            wait::End::Acquired(wait::Taken {
                lease,
                fence,
                slot,
                waited,
                granted: None,
            }) => {
                self.report_wait(waited);
                verbosity.verbose(format_args!(
                    "lock \"{name}\" acquired, fencing token {fence}"
                ));
                let hold = HeldLock {
                    claim: self.claim.clone(),
                    fence,
                    slot,
                    reentrant: false,
                    guard: None,
                    waited,
                };
                self.held.add(hold, lease);
                return Ok(Outcome::Acquired);
            }
            wait::End::Acquired(wait::Taken {
                lease,
                fence,
                slot,
                waited,
                granted: Some(lasting),
            }) => {
                self.report_wait(waited);
                verbosity.verbose(format_args!(
                    "lock \"{name}\" handed over, fencing token {fence}"
                ));
                let hold = HeldLock {
                    claim: self.claim.clone(),
                    fence,
                    slot,
                    reentrant: false,
                    guard: None,
                    waited,
                };
                let client = self.client.hand_over();
                let lasting = lasting.saturating_sub(self.acquisition.clock_skew);
                self.held.add_grant(hold, lease, lasting, client);
                return Ok(Outcome::Acquired);
            }
            wait::End::Busy(busy) => {
                let by = self.told(|| report::busy_with(&busy));
                Reason::Busy(self.busy_message(&busy), by)
            }
            wait::End::Crowded(waiting) => Reason::Busy(self.crowded(waiting), None),
            wait::End::Superseded(by) => Reason::Busy(
                report::superseded(name, &by, self.acquisition.request.queue.number),
                self.told(|| report::client_in_words(&by)),
            ),
            wait::End::Removed(by) => {
                let line = format!(
                    "{} removed this run from the queue of lock \"{name}\"{}",
                    report::client_in_words(&by),
                    report::reason_of(&by)
                );
                Reason::Busy(line, self.told(|| report::client_in_words(&by)))
            }
            wait::End::Deadlock(cycle) => Reason::Busy(deadlock::in_words(name, &cycle), None),
            wait::End::RecentSuccess(ago) => Reason::Skipped(self.skipped_line(ago)),
            wait::End::HeldLockGone => Reason::Lost(self.lost_meanwhile(self.trouble.as_ref())),
            wait::End::NotRenewed => Reason::Lost(self.lost_meanwhile(None)),
            wait::End::Interrupted(signal) => Reason::Interrupted(signal),
            wait::End::Abandoned => {
                let unneeded = || anyhow!("this run doesn't need the lock any more");
                return Err(self.requester.gone().unwrap_or_else(unneeded));
            }
            wait::End::TooSlow => {
                let ttl = duration::exact(self.acquisition.request.ttl);
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
        };
        Ok(Outcome::NotAcquired(reason))
    }

    /// That COMMAND isn't run, as another run succeeded `ago`.
    fn skipped_line(&self, ago: Duration) -> String {
        let name = self.claim.lock().name();
        let key = self.acquisition.request.once_key.as_ref();
        let with = key.map_or(String::new(), |key| format!(" with --once {key}"));
        let ago = report::format_duration(ago);
        format!("skipped: a run of \"{name}\"{with} succeeded {ago} ago")
    }

    /// A name that a hook is told, if there is one.
    fn told(&self, name: impl FnOnce() -> String) -> Option<String> {
        self.acquisition.settings.hook.is_some().then(name)
    }

    /// Why the run ends without the lock, after how long a wait, and because of which run; `None` where it
    /// doesn't, or was interrupted, or has failed.
    fn skipped_by(&self, end: &wait::End) -> Option<(SkipReason, Duration, Option<Who>)> {
        let waited = now().since(self.started);
        let (reason, by) = match end {
            wait::End::RecentSuccess(ago) => return Some((SkipReason::Recent, *ago, None)),
            wait::End::Busy(busy) => {
                let holder = busy.holder.as_ref().map(|holder| holder.who.clone());
                match &busy.frozen {
                    Some(frozen) => (SkipReason::Frozen, Some(frozen.who.clone())),
                    None if self.acquisition.wait_options.no_wait => (SkipReason::Busy, holder),
                    None => (SkipReason::Timeout, holder),
                }
            }
            wait::End::Crowded(_) => (SkipReason::Crowded, None),
            wait::End::Superseded(by) => (SkipReason::Superseded, Some((**by).clone())),
            wait::End::Removed(by) => (SkipReason::Removed, Some((**by).clone())),
            wait::End::Deadlock(_) => (SkipReason::Deadlock, None),
            wait::End::Acquired(_)
            | wait::End::HeldLockGone
            | wait::End::NotRenewed
            | wait::End::Interrupted(_)
            | wait::End::Abandoned
            | wait::End::TooSlow
            | wait::End::Failed(_) => return None,
        };
        Some((reason, waited, by))
    }

    /// The message for a wait that has lasted long enough.
    fn busy_message(&self, busy: &Busy) -> String {
        let at = report::at_server(&self.acquisition.settings.locks);
        let line = report::busy_line(self.claim.lock().name(), &at, busy);
        let place = report::after_refusal(&self.acquisition.settings.locks);
        if self.acquisition.wait_options.no_wait {
            format!("{line}; drop --no-wait to queue{place}")
        } else {
            format!("gave up waiting: {line}{place}")
        }
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
    fn lost_meanwhile(&self, trouble: Option<&LockTrouble>) -> String {
        let what = match trouble {
            Some(LockTrouble::Lost(name, loss)) => lost(name, loss),
            Some(LockTrouble::Cancelled(name, by)) => cancelled(name, by),
            Some(LockTrouble::Released(name) | LockTrouble::Over(name)) => {
                format!("lock \"{name}\" was released")
            }
            Some(LockTrouble::Unreachable(_)) | None => {
                "the locks that this run already held were not renewed in time".into()
            }
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

/// What was found by a look for a deadlock, as an event.
fn searched(found: deadlock::Found) -> wait::Event {
    match found {
        Ok(cycle) => wait::Event::Searched(cycle),
        Err(error) => wait::Event::Failed(error),
    }
}

//! The wait for a lock: from the first question to its being ours.
//!
//! Who finds a lock busy takes a place in its queue and sleeps until a message says that it has the
//! lock; the heartbeats in between keep the place, and find out what no message says. Meanwhile the
//! leases of locks that are held already are kept alive, a dead holder on this host is noticed, and
//! so are jobs that wait for each other.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Result;

use super::deadlock::Deadlock;
use super::{
    Acquisition, HeldLock, HeldLocks, Outcome, Reason, Trouble, cancelled, lost, open,
    random_fraction, sleep,
};
use crate::cli;
use crate::clock::{Moment, Timer, now};
use crate::command::environment::origin_of;
use crate::lease::{Lease, LeaseEvent};
use crate::lock::{
    self, Acquired, Busy, Claim, Client, ErrorKind, Grant, Incoming, Place, ReleaseMode,
};
use crate::process::{self, Liveness, ProcessFd};
use crate::report;
use crate::signal::{SIGTSTP, Signals, ends_waiting};
use crate::wait::{self, Next, Pace, ProgressSchedule, WaitLimit, WakeBy};

/// One wait for one lock.
pub struct Attempt<'a> {
    pub(super) acquisition: &'a Acquisition<'a>,
    pub(super) claim: Claim,
    holds: &'a mut HeldLocks,
    pub(super) client: Client,
    began: Moment,
    /// The server may know the claim: as a holder, or in its queue.
    known: bool,
    /// Our place in the queue; none before the lock was found to be busy.
    place: Option<Place>,
    /// When the server was last heard of; it may go away for a while once it has answered.
    pub(super) heard: Option<Moment>,
    /// How often it was asked in vain since then, and when for the first time.
    failures: u32,
    failing_since: Moment,
    pace: Pace,
    /// How long the last answer took.
    round_trip: Duration,
    /// When we asked last and were told to wait, and what the server's clock said then.
    asked: Option<(Moment, u64)>,
    /// How often the lock came so late that its lease was as good as over.
    too_late: u32,
    /// A holder on this host, by its id, whose end we would see.
    pub(super) pulse: Option<(String, ProcessFd)>,
    telling: ProgressSchedule,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

/// By how much two times that a server gives in milliseconds may be off.
const ROUNDING: Duration = Duration::from_millis(20);

/// What a waiter woke up for.
enum Woken {
    /// Something came in on the connection.
    Incoming(Incoming),
    /// The moment it waited for.
    Time,
    /// The holder that it watches has ended.
    HolderDied,
    /// There is no point in waiting any more.
    NotAcquired(Reason),
}

/// What asking for the lock brought.
pub(super) enum Asked {
    Held {
        lease: Lease,
        hold: HeldLock,
    },
    Busy(Busy),
    NotAcquired(Reason),
    /// Nothing; it is worth asking again.
    Nothing,
}

/// What ended an idle time.
pub(super) enum Idle {
    Ask,
    Granted(Grant),
    NotAcquired(Reason),
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        acquisition: &'a Acquisition<'a>,
        claim: Claim,
        holds: &'a mut HeldLocks,
        signals: &'a Signals,
        timer: &'a mut Timer,
    ) -> Self {
        let began = now();
        Self {
            acquisition,
            claim,
            client: holds.client.hand_over(),
            holds,
            began,
            known: false,
            place: None,
            heard: None,
            failures: 0,
            failing_since: began,
            pace: Pace::default(),
            round_trip: Duration::MAX,
            asked: None,
            too_late: 0,
            pulse: None,
            telling: ProgressSchedule::new(began, report::has_terminal()),
            signals,
            timer,
        }
    }

    /// Asks for the lock until it is ours, the patience is over, or a signal comes. `started` is
    /// when the run began to wait for whatever lock.
    pub(super) fn wait(mut self, started: Moment) -> Result<Outcome> {
        let cli::Patience { wait, no_wait, .. } = *self.acquisition.patience;
        let patience = WaitLimit::since(started, no_wait, wait);
        let mut deadlock = Deadlock::new(self.acquisition, self.holds, &self.claim, now());
        let taking = self.until_it_is_ours(patience, &mut deadlock);
        report::transient(None);
        deadlock.forget(&mut self.client);
        // Whatever else ended the wait: our place must go, and a lock that a request has taken
        // whose answer nobody read. The same connection, where it is good, keeps the order.
        if self.known && !matches!(taking, Ok(Outcome::Acquired)) {
            let signals = Some(self.signals);
            let (mode, client) = (&ReleaseMode::Unused, &mut self.client);
            let released = self.acquisition.release(&self.claim, mode, client, signals);
            if let Err(error) = released {
                self.acquisition.voice().detail(error);
            }
        }
        if self.client.is_open() {
            self.holds.client = self.client;
        }
        taking
    }

    fn until_it_is_ours(
        &mut self,
        patience: WaitLimit,
        deadlock: &mut Deadlock,
    ) -> Result<Outcome> {
        deadlock.lasting = wait::heartbeat(0) * 3;
        loop {
            let asked = match self.pace()? {
                Ok(asked) => asked,
                Err(why) => return Ok(Outcome::NotAcquired(why)),
            };
            let answer = match deadlock.look(&mut self.client, asked) {
                Ok(Some(cycle)) => return Ok(Outcome::NotAcquired(Reason::Busy(cycle))),
                Ok(None) => self.ask(),
                Err(error) => Err(error),
            };
            let busy = match answer.or_else(|error| self.no_answer(error, asked, patience))? {
                Asked::Held { lease, hold } => match self.held(lease, hold)? {
                    Some(done) => return Ok(done),
                    None => continue,
                },
                Asked::Busy(busy) => busy,
                Asked::NotAcquired(why) => return Ok(Outcome::NotAcquired(why)),
                Asked::Nothing => continue,
            };
            let heard = now();
            self.has_answered(heard);
            if self.take_over_from_the_dead(&busy) {
                continue;
            }
            if self.acquisition.joins {
                match self.join(&busy, heard, patience)? {
                    Some(why) => return Ok(Outcome::NotAcquired(why)),
                    None => continue,
                }
            }
            let was_queued = self.place.is_some();
            let place = self.queue_up(&busy);
            let ear = if place.polls {
                WakeBy::Polling
            } else {
                WakeBy::Message
            };
            // All of us look when a grant ends that isn't claimed.
            let ahead = if busy.granted { 0 } else { busy.ahead };
            match wait::next(patience, ear, ahead, busy.left, heard, random_fraction()) {
                Next::GiveUp => {
                    let line = self.patience_is_over(&busy);
                    return Ok(Outcome::NotAcquired(Reason::Busy(line)));
                }
                // At once, now with a place in the queue.
                Next::AskAt(_) if !was_queued => self.place = Some(place),
                Next::AskAt(at) => {
                    self.place = Some(place);
                    deadlock.lasting = wait::heartbeat(busy.ahead) * 3;
                    // What the user is told first is to be fresh.
                    let first = self.telling.first().filter(|&first| first > heard);
                    let looks = [deadlock.due(), first];
                    let at = looks.into_iter().flatten().fold(at, Moment::min);
                    match self.idle(&busy, heard, at)? {
                        Idle::Granted(grant) if !deadlock.noted() && self.start_under(grant) => {
                            return Ok(Outcome::Acquired);
                        }
                        Idle::Ask | Idle::Granted(_) => {}
                        Idle::NotAcquired(why) => return Ok(Outcome::NotAcquired(why)),
                    }
                }
            }
        }
    }

    /// How long we have waited, if the lock was busy.
    fn waited(&self) -> Duration {
        let busy = self.heard.is_some();
        let waited = now().since(self.began);
        if busy { waited } else { Duration::ZERO }
    }

    /// The lock is ours; `None` when so little is left of its lease that it has to be lengthened
    /// first, if the server has become faster.
    fn held(&mut self, lease: Lease, hold: HeldLock) -> Result<Option<Outcome>> {
        if now() < lease.stop_at() {
            self.acquisition.voice().detail(format_args!(
                "lock \"{}\" acquired, fence {}",
                self.claim.lock().name(),
                hold.fence
            ));
            self.holds.add(hold, lease);
            return Ok(Some(Outcome::Acquired));
        }
        self.too_late += 1;
        if self.too_late < 3 {
            return Ok(None);
        }
        let ttl = humantime::format_duration(self.acquisition.request.ttl);
        let line = format!(
            "{} answers too slowly for --ttl {ttl}",
            self.acquisition.settings.locks
        );
        Err(lock::Error::new(ErrorKind::Unreachable, line).into())
    }

    /// The server has answered at this moment.
    pub(super) fn has_answered(&mut self, heard: Moment) {
        self.heard = Some(heard);
        self.failures = 0;
    }

    /// The server was asked and didn't answer: whether to try again, after a pause. One that has never
    /// answered isn't waited for; one that has is, for a TTL.
    pub(super) fn no_answer(
        &mut self,
        error: lock::Error,
        asked: Moment,
        patience: WaitLimit,
    ) -> Result<Asked> {
        if self.failures == 0 {
            self.failing_since = asked;
        }
        self.failures += 1;
        let lasting = asked.since(self.failing_since) > self.acquisition.request.ttl;
        if lasting || !self.holds.answered || !error.kind.may_pass() || patience.is_over(now()) {
            return Err(error.into());
        }
        self.acquisition.voice().detail(&error);
        self.client.disconnect();
        let why = self.pause(asked + wait::reconnect(self.failures, random_fraction()))?;
        Ok(why.map_or(Asked::Nothing, Asked::NotAcquired))
    }

    /// Waits until the server may be asked again: this moment, or why to give up.
    pub(super) fn pace(&mut self) -> Result<Result<Moment, Reason>> {
        let at = now();
        let ask_at = self.pace.ask_at(at);
        if ask_at <= at {
            return Ok(Ok(at));
        }
        Ok(self.pause(ask_at)?.map_or_else(|| Ok(now()), Err))
    }

    /// Waits until a moment, after which the server is asked in any case; why to give up, if there is
    /// reason to.
    fn pause(&mut self, until: Moment) -> Result<Option<Reason>> {
        loop {
            match self.next(until) {
                Ok(Woken::NotAcquired(why)) => return Ok(Some(why)),
                Ok(Woken::Time) => return Ok(None),
                Ok(Woken::Incoming(Incoming::SubscribeDenied)) => self.poll_from_now_on(),
                // What is said meanwhile is found out by asking.
                Ok(
                    Woken::Incoming(
                        Incoming::Acquired(_)
                        | Incoming::LeaseState(_)
                        | Incoming::Subscribed
                        | Incoming::Granted(_)
                        | Incoming::Message
                        | Incoming::KeyChanged,
                    )
                    | Woken::HolderDied,
                ) => {}
                // Without the connection there is nothing to fail any more, but for ourselves.
                Err(error) if self.client.is_open() => {
                    self.acquisition.voice().detail(&error);
                    self.client.disconnect();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Our place in the queue, as the server has it.
    fn queue_up(&self, busy: &Busy) -> Place {
        let place = self.place.unwrap_or_default();
        Place {
            ticket: busy.ticket.or(place.ticket),
            polls: place.polls || busy.polls,
        }
    }

    /// Waits until it is time to ask again: the moment has come, or there is a message. Meanwhile
    /// the user is told what is known since `heard`.
    pub(super) fn idle(&mut self, busy: &Busy, heard: Moment, until: Moment) -> Result<Idle> {
        loop {
            let at = now();
            if self.telling.is_due_for(&busy.id, at) {
                let name = self.claim.lock().name();
                let line = report::waiting(name, busy, at.since(heard));
                self.acquisition.voice().progress(&line);
            }
            match self.next(until.min(self.telling.due())) {
                Ok(Woken::Time) if now() < until => {}
                Ok(Woken::Incoming(Incoming::SubscribeDenied)) => {
                    self.poll_from_now_on();
                    return Ok(Idle::Ask);
                }
                Ok(Woken::Incoming(Incoming::Granted(grant))) => return Ok(Idle::Granted(grant)),
                // What we watch (the lock that we joined) has changed.
                Ok(
                    Woken::Incoming(Incoming::Message | Incoming::KeyChanged)
                    | Woken::Time
                    | Woken::HolderDied,
                ) => return Ok(Idle::Ask),
                Ok(Woken::Incoming(
                    Incoming::Subscribed | Incoming::Acquired(_) | Incoming::LeaseState(_),
                )) => {}
                Ok(Woken::NotAcquired(why)) => return Ok(Idle::NotAcquired(why)),
                Err(error) => {
                    self.acquisition.voice().detail(&error);
                    self.client.disconnect();
                    return Ok(Idle::Ask);
                }
            }
        }
    }

    /// Starts COMMAND on the server's word that the lock is ours, with the claim still under way, if
    /// it can be known that enough is left of that short lease.
    fn start_under(&mut self, grant: Grant) -> bool {
        // Far away the claim comes first: its answer might come when the grant is over.
        let starts = self.acquisition.starts_on_grant && wait::is_near(self.round_trip);
        let Some((asked, server_ms)) = self.asked.filter(|_| starts) else {
            return false;
        };
        let at = now();
        // A server whose clock went back says nothing about how long ago that was.
        let Some(later) = grant.at_ms.checked_sub(server_ms) else {
            return false;
        };
        let later = Duration::from_millis(later);
        // By our own clock it can't be that long: the server's was set, and the grant may be long over.
        if later > at.since(asked).mul_f64(1.01) + ROUNDING {
            return false;
        }
        let (ttl, kill_after) = (self.acquisition.request.ttl, self.acquisition.kill_after);
        let lease = Lease::granted(asked, later, at, grant.lasting, ttl, kill_after);
        if at >= lease.stop_at() {
            return false;
        }
        if !self.client.is_open() {
            return false;
        }
        let hold = HeldLock {
            claim: self.claim.clone(),
            fence: grant.fence,
            slot: grant.slot,
            reentrant: false,
            waited: self.waited(),
            success: None,
        };
        self.acquisition.voice().detail(format_args!(
            "lock \"{}\" handed over, fence {}",
            self.claim.lock().name(),
            grant.fence
        ));
        self.holds
            .add_unconfirmed(hold, lease, self.client.hand_over());
        true
    }

    /// The subscription isn't permitted.
    fn poll_from_now_on(&mut self) {
        if let Some(place) = &mut self.place {
            place.polls = true;
        }
    }

    /// Sends an acquire and waits for its answer.
    fn ask(&mut self) -> Result<Asked, lock::Error> {
        if let Some(gave_up) = open(&mut self.client, self.signals)? {
            return Ok(Asked::NotAcquired(gave_up));
        }
        // In one go with the question: the subscription stands before the server looks at it, so no
        // message can fall in between.
        if let Some(Place { polls: false, .. }) = self.place {
            self.claim.subscribe(&mut self.client)?;
        }
        let sent = now();
        self.known = true;
        let request = &self.acquisition.request;
        let place = self.place.as_ref();
        let within = self.claim.acquire(&mut self.client, request, place)?;
        loop {
            match self.next(sent + within)? {
                Woken::Incoming(Incoming::Acquired(answer)) => {
                    self.holds.answered = true;
                    self.round_trip = now().since(sent);
                    return Ok(match answer? {
                        Acquired::Held {
                            fence,
                            slot,
                            success,
                        } => Asked::Held {
                            lease: Lease::new(
                                sent,
                                self.acquisition.request.ttl,
                                self.acquisition.kill_after,
                            ),
                            hold: HeldLock {
                                claim: self.claim.clone(),
                                fence,
                                slot,
                                reentrant: false,
                                waited: self.waited(),
                                success: success.map(|ago| now().before(ago)),
                            },
                        },
                        Acquired::Done(ago) => Asked::NotAcquired(Reason::RecentSuccess(ago)),
                        Acquired::Busy(busy) => {
                            if busy.repaired {
                                let ttl = report::rough(self.acquisition.request.ttl);
                                let name = self.claim.lock().name();
                                self.acquisition.voice().note(format_args!(
                                    "lock \"{name}\" of another client had no expiry; it ends in {ttl} now"
                                ));
                            }
                            self.asked = Some((sent, busy.now_ms));
                            self.known = self.place.is_some();
                            Asked::Busy(busy)
                        }
                        Acquired::Superseded(by) => {
                            self.known = false;
                            let why = format!("superseded by {}", report::by(&by));
                            Asked::NotAcquired(Reason::Busy(why))
                        }
                    });
                }
                Woken::Incoming(Incoming::SubscribeDenied) => self.poll_from_now_on(),
                // A message that crosses the question is answered by it.
                Woken::Incoming(
                    Incoming::Subscribed
                    | Incoming::Message
                    | Incoming::Granted(_)
                    | Incoming::KeyChanged
                    | Incoming::LeaseState(_),
                )
                | Woken::HolderDied => {}
                Woken::NotAcquired(why) => return Ok(Asked::NotAcquired(why)),
                Woken::Time => {
                    return Err(self.client.unreachable_error(io::ErrorKind::TimedOut));
                }
            }
        }
    }

    /// Frees the lock if its holder is a process of this host that is dead, and nothing of its work is
    /// left; else keeps an eye on what lives of it. True when it was freed.
    fn take_over_from_the_dead(&mut self, busy: &Busy) -> bool {
        if self
            .pulse
            .as_ref()
            .is_some_and(|(id, _)| *id == busy.id && busy.ahead == 0)
        {
            return false;
        }
        self.pulse = None;
        let Some(holder) = &busy.holder else {
            return false;
        };
        let Some(instance) = &holder.who.instance else {
            return false;
        };
        if holder.who.host != self.acquisition.request.who.host {
            return false;
        }
        let origin = |environment: &[u8]| origin_of(environment, &busy.id);
        match process::liveness(instance, &busy.id, origin) {
            Liveness::Unknown => false,
            // The others would only get in each other's way.
            Liveness::Alive(pulse) => {
                if busy.ahead == 0 && (self.place.is_some() || self.acquisition.joins) {
                    self.pulse = Some((busy.id.clone(), pulse));
                }
                false
            }
            Liveness::Dead => {
                if !self.client.is_open() {
                    return false;
                }
                self.acquisition.voice().detail(format_args!(
                    "lock \"{}\" was held by {}, which is dead",
                    self.claim.lock().name(),
                    report::by(&holder.who)
                ));
                let lock = self.claim.lock();
                match lock.force(&mut self.client, Some(&busy.id), None) {
                    Ok(_) => {
                        process::remove_mark(&busy.id);
                        true
                    }
                    Err(error) => {
                        self.acquisition.voice().detail(error);
                        false
                    }
                }
            }
        }
    }

    /// Why we give up, when the user's patience is over.
    pub(super) fn patience_is_over(&self, busy: &Busy) -> String {
        let line = report::held(self.claim.lock().name(), busy);
        if self.acquisition.patience.no_wait {
            format!("{line}; --wait queues for it")
        } else {
            format!("gave up waiting: {line}")
        }
    }

    /// The next thing that happens, at the latest the moment. What we hold is kept alive meanwhile.
    fn next(&mut self, until: Moment) -> Result<Woken, lock::Error> {
        let internal = |error: anyhow::Error| {
            lock::Error::new(ErrorKind::Internal, format!("can't wait: {error}"))
        };
        loop {
            if let Some(incoming) = self.client.receive()? {
                return Ok(Woken::Incoming(incoming));
            }
            if let Some(why) = self.meanwhile().map_err(internal)? {
                return Ok(Woken::NotAcquired(why));
            }
            if now() >= until {
                return Ok(Woken::Time);
            }
            if self
                .pulse
                .as_ref()
                .is_some_and(|(_, pulse)| pulse.has_ended())
            {
                self.pulse = None;
                return Ok(Woken::HolderDied);
            }
            let renewal = self.holds.lease.and_then(|lease| lease.renew_at());
            let due = renewal.into_iter().chain(self.holds.due());
            let wake_at = due.fold(until, Moment::min);
            let set = self.timer.set(Some(wake_at)).map_err(io::Error::from);
            set.and_then(|()| {
                let own = [
                    Some(self.signals.as_fd()),
                    Some(self.timer.as_fd()),
                    self.pulse.as_ref().map(|(_, pulse)| pulse.as_fd()),
                ];
                let client = self.client.fds().map(Some);
                sleep(own.into_iter().chain(client).chain(self.holds.poll_fds()))
            })
            .map_err(|error| internal(error.into()))?;
        }
    }

    /// Looks after signals and what we hold.
    fn meanwhile(&mut self) -> Result<Option<Reason>> {
        while let Some(arrived) = self.signals.next()? {
            if ends_waiting(arrived.signal) {
                return Ok(Some(Reason::Interrupted(arrived.signal)));
            }
            if arrived.signal == SIGTSTP {
                self.signals.suspend()?;
            }
        }
        for report in self.holds.reports() {
            let (event, trouble) = self.holds.record(report);
            let lost = match trouble {
                Some(Trouble::Unreachable(error)) => {
                    self.acquisition.voice().detail(error);
                    None
                }
                Some(Trouble::Lost(name, loss)) => Some(lost(&name, &loss)),
                Some(Trouble::Cancelled(name, by)) => Some(cancelled(&name, &by)),
                Some(Trouble::Released(name)) => Some(format!("lock \"{name}\" was given back")),
                None => None,
            };
            if let Some(line) = lost {
                return Ok(Some(self.without(&line)));
            }
            if let Some(lease) = &mut self.holds.lease {
                match event {
                    LeaseEvent::Renewed(sent) => lease.renewed(sent),
                    LeaseEvent::Confirmed(sent, left) => lease.confirmed(sent, left),
                    LeaseEvent::RenewalFailed => lease.retry(now()),
                    LeaseEvent::Lost | LeaseEvent::Cancelled | LeaseEvent::Released => {}
                }
            }
        }
        let at = now();
        if let Some(lease) = &mut self.holds.lease {
            if at >= lease.stop_at() {
                return Ok(Some(
                    self.without("the locks held so far were not renewed in time"),
                ));
            }
            if lease.renew_now(at)
                && let Err(error) = self.holds.renew()
            {
                self.acquisition.voice().detail(error);
                if let Some(lease) = &mut self.holds.lease {
                    lease.retry(at);
                }
            }
        }
        Ok(None)
    }

    /// Giving up, because something that we held is gone.
    fn without(&self, what: &str) -> Reason {
        let name = self.claim.lock().name();
        Reason::Lost(format!("{what}, while waiting for lock \"{name}\""))
    }
}

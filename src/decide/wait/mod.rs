//! A wait for one lock as a state machine: events go in, actions come out. Pure.
//!
//! A waiter that finds a lock busy takes a place in its queue. The waiter sleeps until a message says that it
//! has the lock. Heartbeats in between keep the place, and find changes that no message announces. Meanwhile
//! redlock renews the lease of the locks that are held already, and detects deadlocks.
//!
//! Each request to the server has a phase of its own, so an answer in another phase changes nothing.
//! `failing` is about a server that fails, `timing` has the times.

mod failing;
mod timing;

use std::rc::Rc;
use std::time::Duration;

pub use self::timing::{Outage, Pace, ProgressSchedule};
use self::timing::{heartbeat, is_short, next, poll_interval};
use crate::clock::Moment;
use crate::decide::lease::{Lease, Terms, shortest_for};
use crate::decide::renewals::LockNews;
use crate::protocol::{self, Acquired, Busy, CycleMember, ErrorKind, Grant, QueuePlace};
use crate::signal::{SIGTSTP, ends_waiting};

/// Options and circumstances of a wait.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one option, or one fact.
pub struct Policy {
    /// Time until which the user wants to wait, if not for ever; a past moment means not at all.
    pub limit: Option<Moment>,
    /// Parameters of the lease to request.
    pub terms: Terms,
    /// The work may start on an unconfirmed grant.
    pub starts_on_grant: bool,
    /// The job holds other locks, so another client may wait for it.
    pub holds_others: bool,
    /// The server has answered this process before, or the user has set a time to wait, which applies to the
    /// server, too.
    pub awaits_server: bool,
    /// The run waits for missing replicas as for a busy lock. After a failover they need a moment until they
    /// follow the next primary, and can't confirm anything before that.
    pub awaits_replicas: bool,
    /// Time for a failover, in which a run that doesn't wait for a busy lock still tries to reach a server.
    pub failover_may_take: Duration,
    /// Longest time until an answer, including the wait for replicas if they must confirm.
    pub answer_may_take: Duration,
    /// Longest silence of a server, if the run continues without a lock after that.
    pub silence: Option<Duration>,
    /// Progress is shown on a line that can be rewritten.
    pub single_line: bool,
    /// Returns a number in 0..1, which spreads waiters that would act at the same moment. A function, because
    /// each number costs a system call, and a free lock needs none.
    pub jitter: fn() -> f64,
}

/// An input of the wait.
#[derive(Debug)]
pub enum Event {
    /// The time from [`Wait::due`] has come, as it has at the start, or it is just a look at the clock.
    Tick,
    Signal(i32),
    /// Consequence of an answer about the locks that are held already.
    News(LockNews),
    /// A request failed, or the connection did between requests.
    Failed(protocol::Error),
    /// The server permits no subscription.
    SubscribeDenied,
    /// The server pushed that something has changed.
    Message,
    /// The server pushed that the waiter has the lock, for a short time.
    Granted(Grant),
    /// The search for a deadlock is done, with the cycle that this wait must break, if any; or there was no
    /// connection for it.
    Searched(Option<Vec<CycleMember>>),
    /// The request for the lock was sent at this moment, perhaps only in part, and its answer may take this
    /// long. A second such event follows if the short script changed nothing and the whole one was sent.
    Sent(Moment, Duration),
    /// The answer to the request; the server may also have answered with an error.
    Answered(Result<Acquired, protocol::Error>),
}

/// An output of the wait, to be performed in this order.
#[derive(Clone, Debug)]
pub enum Action {
    /// Stop redlock itself, as the terminal wants.
    Suspend,
    /// Publish, for this long, that the job waits, and search for a deadlock.
    SearchDeadlock(Duration),
    /// Ask for the lock, with this place in its queue, if any.
    Ask(Option<QueuePlace>),
    /// Report as a failure that no answer came in time.
    TimeOut,
    /// Close a connection after this failure.
    Disconnect(protocol::Error),
    /// Show the holder of the lock, as known this long ago.
    Show { busy: Rc<Busy>, age: Duration },
    /// Show the server's problem and its duration, because redlock tries again.
    ShowOutage { kind: ErrorKind, lasting: Duration },
    /// Show that the server answers again.
    ShowAnswer,
    /// The wait is over.
    End(End),
}

/// End of a wait.
#[derive(Clone, Debug)]
pub enum End {
    /// The lock is acquired.
    Acquired(AcquiredLock),
    /// The server's answer ends the wait. `Held`: the lock came several times so late that its lease was almost
    /// over.
    Answered(Acquired),
    /// This run must break this cycle.
    Deadlock(Vec<CycleMember>),
    /// A lock that was held already is lost, or another run wants it. `None`: the locks that were held already
    /// couldn't be renewed in time.
    HeldLockGone(Option<LockNews>),
    Interrupted(i32),
    Failed(protocol::Error),
}

/// An acquired lock.
#[derive(Clone, Copy, Debug)]
pub struct AcquiredLock {
    pub lease: Lease,
    pub fence: u64,
    pub slot: u32,
    pub waited: Duration,
    /// Length of an unconfirmed grant; there is time to start the work before its confirmation.
    pub granted: Option<Duration>,
}

/// Progress of the wait. `due` is the time at which the pace allowed the current request.
#[derive(Clone, Debug)]
enum Phase {
    /// The next request would come too soon after the others.
    Pausing {
        until: Moment,
    },
    /// No request was sent yet, or the server has failed and gets another one later.
    Connecting {
        until: Moment,
    },
    /// A search for a deadlock is under way.
    Searching {
        due: Moment,
    },
    /// The request for the lock is being sent, over a fresh connection if necessary.
    Sending {
        due: Moment,
    },
    /// The answer is awaited.
    Asking {
        due: Moment,
        sent: Moment,
        until: Moment,
    },
    /// The waiter is in the queue, by the answer to the request sent at `sent`.
    Queued {
        busy: Rc<Busy>,
        sent: Moment,
        heard: Moment,
        until: Moment,
    },
    Over,
}

/// Delays of the first two searches for a deadlock. The second one is for waiters that began to wait at the same
/// moment, and hadn't published that yet.
const SEARCH_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(1300)];

/// Longest time between two searches; until then each wait doubles before the next one. A cycle is complete when its
/// last wait begins, so further searches only find what a server has forgotten, and each reads the whole queue.
const LONGEST_BETWEEN: Duration = Duration::from_secs(300);

/// Number of leases that came too late after which the wait ends, because the server is too slow.
const MOST_TOO_LATE: u32 = 3;

/// Largest error of the difference of two server times in milliseconds.
const ROUNDING: Duration = Duration::from_millis(20);

/// Lifetime, in heartbeats, of an entry in the queue, and of the note that a job waits.
const HEARTBEATS: u32 = 3;

/// The state of one wait.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Wait {
    policy: Policy,
    began: Moment,
    phase: Phase,
    /// The server has answered.
    is_reached: bool,
    pace: Pace,
    /// The place in the queue; none before the lock was first busy.
    place: Option<QueuePlace>,
    /// The server may know the token, as a holder's or in the queue.
    is_known: bool,
    /// A request was sent and not answered, so it may still arrive.
    unanswered: bool,
    /// Number of times that the lock came when its lease was almost over.
    too_late: u32,
    /// Delay of the next search for a deadlock.
    search_after: Duration,
    /// Time for which the note says that the job waits.
    waiting_for: Duration,
    progress: ProgressSchedule,
    /// The failure of the server, while redlock tries again.
    outage: Option<Outage>,
    /// Consequences of the present event.
    actions: Vec<Action>,
}

impl Wait {
    /// Returns a wait that begins at this moment.
    pub fn new(policy: Policy, began: Moment) -> Self {
        Self {
            policy,
            began,
            phase: Phase::Connecting { until: began },
            is_reached: policy.awaits_server,
            pace: Pace::default(),
            place: None,
            is_known: false,
            unanswered: false,
            too_late: 0,
            search_after: SEARCH_AFTER[0],
            waiting_for: heartbeat(0) * HEARTBEATS,
            progress: ProgressSchedule::new(began, policy.single_line),
            outage: None,
            actions: Vec::new(),
        }
    }

    /// Returns true if the server may know the token, as a holder's or in the queue.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns true if the server may still receive a request of this wait, because one had no answer.
    pub fn has_pending_request(&self) -> bool {
        self.unanswered || matches!(self.phase, Phase::Sending { .. } | Phase::Asking { .. })
    }

    /// Returns the latest end with a silent server: the time to wait plus that of one answer.
    pub fn ends_by(&self) -> Option<Moment> {
        let end = self.policy.limit.filter(|end| *end > self.began)?;
        Some(end + self.policy.answer_may_take)
    }

    /// Returns the time limit for the last answer. The rest is for taking back whatever the request did.
    pub fn last_answer(&self) -> Option<Moment> {
        let by = self.ends_by()?;
        Some(by.before(self.policy.answer_may_take / 4))
    }

    /// Returns when to look at the clock again.
    pub fn due(&self) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::Pausing { until }
            | Phase::Connecting { until }
            | Phase::Asking { until, .. } => Some(*until),
            Phase::Queued { until, .. } => Some(self.progress.due().min(*until)),
            Phase::Searching { .. } => self.last_answer(),
            Phase::Sending { .. } | Phase::Over => None,
        };
        let outage = self.outage.as_ref().and_then(Outage::due);
        phase.into_iter().chain(outage).min()
    }

    /// Handles an event. Returns the actions. `held` is the lease of the locks that are held already.
    pub fn on_event(&mut self, event: Event, held: Option<Lease>, now: Moment) -> Vec<Action> {
        if let Phase::Over = self.phase {
            return Vec::new();
        }
        match event {
            Event::Tick => self.on_tick(held, now),
            Event::Signal(signal) if ends_waiting(signal) => {
                self.end(End::Interrupted(signal));
            }
            Event::Signal(SIGTSTP) => self.actions.push(Action::Suspend),
            // No work runs under a lease yet.
            Event::Signal(_) | Event::News(LockNews::Held { .. } | LockNews::Failed(_)) => {}
            // Without the locks that are held already, the awaited lock is useless.
            Event::News(news) => self.end(End::HeldLockGone(Some(news))),
            Event::Failed(error) => self.on_failure(error, now),
            Event::SubscribeDenied => {
                if let Some(place) = &mut self.place {
                    place.polls = true;
                }
                self.ask_again(now);
            }
            Event::Message => self.ask_again(now),
            Event::Granted(grant) => match self.start_on_grant(grant, now) {
                Some(taken) => self.end(End::Acquired(taken)),
                None => self.ask_again(now),
            },
            Event::Searched(cycle) => {
                if let Phase::Searching { due } = self.phase {
                    self.plan_search(due);
                    match cycle {
                        Some(cycle) => self.end(End::Deadlock(cycle)),
                        None => self.send(due),
                    }
                }
            }
            Event::Sent(sent, within) => {
                // The short script was answered, but the outage goes on, because the whole script may never
                // be.
                self.is_reached |= matches!(self.phase, Phase::Asking { .. });
                if let Phase::Sending { due } | Phase::Asking { due, .. } = self.phase {
                    self.is_known = true;
                    let until = sent + within;
                    self.phase = Phase::Asking {
                        due,
                        sent,
                        until: self.last_answer().map_or(until, |last| until.min(last)),
                    };
                }
            }
            Event::Answered(answer) => self.on_answer(answer, now),
        }
        std::mem::take(&mut self.actions)
    }

    fn end(&mut self, end: End) {
        self.unanswered = self.has_pending_request();
        self.phase = Phase::Over;
        self.actions.push(Action::End(end));
    }

    /// Looks at the clock: first whether the locks that are held already are safe.
    fn on_tick(&mut self, held: Option<Lease>, now: Moment) {
        if held.is_some_and(|lease| now >= lease.stop_at()) {
            return self.end(End::HeldLockGone(None));
        }
        self.show_outage(now);
        match &self.phase {
            Phase::Pausing { until } if now >= *until => self.dispatch(now),
            Phase::Connecting { until } if now >= *until => self.ask(now),
            Phase::Asking { until, .. } if now >= *until => self.actions.push(Action::TimeOut),
            Phase::Searching { .. } if self.last_answer().is_some_and(|last| now >= last) => {
                self.actions.push(Action::TimeOut);
            }
            Phase::Queued { until, .. } if now >= *until => {
                self.ask_again(now);
            }
            Phase::Queued { .. } => self.show(now),
            _ => {}
        }
    }

    /// Asks for the lock, as soon as the pace allows it.
    fn ask(&mut self, now: Moment) {
        let until = self.pace.ask_at(now);
        if until > now {
            self.phase = Phase::Pausing { until };
        } else {
            self.dispatch(now);
        }
    }

    fn dispatch(&mut self, due: Moment) {
        // If the job holds nothing, no other client waits for it.
        if self.policy.holds_others && due >= self.began + self.search_after {
            self.phase = Phase::Searching { due };
            let lasting = self.waiting_for + due.since(self.began).min(LONGEST_BETWEEN);
            self.actions.push(Action::SearchDeadlock(lasting));
        } else {
            self.send(due);
        }
    }

    fn send(&mut self, due: Moment) {
        self.phase = Phase::Sending { due };
        self.actions.push(Action::Ask(self.place));
    }

    /// Plans the search after the one at this moment.
    fn plan_search(&mut self, at: Moment) {
        let waited = at.since(self.began);
        let next = SEARCH_AFTER.into_iter().find(|after| *after > waited);
        self.search_after = next.unwrap_or(waited + waited.min(LONGEST_BETWEEN));
    }

    /// Asks again, because something may have changed.
    fn ask_again(&mut self, now: Moment) {
        // In other phases the current or the next request finds the change.
        if let Phase::Queued { .. } = self.phase {
            self.ask(now);
        }
    }

    fn on_answer(&mut self, answer: Result<Acquired, protocol::Error>, now: Moment) {
        let Phase::Asking { due, sent, .. } = self.phase else {
            return;
        };
        self.is_reached = true;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.retry_or_fail(error, due, now),
        };
        self.phase = Phase::Over;
        let outage = self.outage.take();
        if outage.is_some_and(|outage| outage.was_shown()) {
            self.actions.push(Action::ShowAnswer);
        }
        self.is_known = match &answer {
            // A run that was removed may have been granted the lock before, and must release it.
            Acquired::Held { .. } | Acquired::Removed(_) => true,
            Acquired::Crowded(_) | Acquired::Superseded(_) => self.unanswered,
            // Without a place the server keeps nothing of this run.
            Acquired::RecentSuccess(_) | Acquired::Busy(_) => {
                self.place.is_some() || self.unanswered
            }
        };
        match answer {
            Acquired::Held { fence, slot } => {
                let lease = Lease::new(sent, self.policy.terms);
                if now < lease.stop_at() {
                    let taken = self.taken(lease, fence, slot, now);
                    return self.end(End::Acquired(taken));
                }
                // The next request lengthens the lease, if the server has become faster.
                self.too_late += 1;
                if self.too_late < MOST_TOO_LATE {
                    self.ask(now);
                } else {
                    self.end(End::Answered(answer));
                }
            }
            Acquired::Busy(busy) => self.remain_queued(busy, sent, now),
            Acquired::RecentSuccess(_)
            | Acquired::Crowded(_)
            | Acquired::Superseded(_)
            | Acquired::Removed(_) => self.end(End::Answered(answer)),
        }
    }

    /// Returns the acquired lock, with the time of the wait if the lock was busy.
    fn taken(&self, lease: Lease, fence: u64, slot: u32, now: Moment) -> AcquiredLock {
        let waited = self.place.map(|_| now.since(self.began));
        AcquiredLock {
            lease,
            fence,
            slot,
            waited: waited.unwrap_or_default(),
            granted: None,
        }
    }

    /// Waits for a busy lock in its queue.
    fn remain_queued(&mut self, busy: Busy, sent: Moment, now: Moment) {
        let before = self.place.unwrap_or_default();
        let place = QueuePlace {
            ticket: busy.ticket.or(before.ticket),
            polls: before.polls || busy.polls,
        };
        // Each call removes some of the dead waiters.
        let (ahead, left) = if busy.is_behind_dead {
            (0, Some(Duration::ZERO))
        } else {
            (busy.ahead, busy.left)
        };
        let pause = if place.polls {
            poll_interval(ahead, (self.policy.jitter)())
        } else {
            heartbeat(ahead)
        };
        let Some(at) = next(self.policy.limit, pause, ahead, left, now) else {
            return self.end(End::Answered(Acquired::Busy(busy)));
        };
        let was_queued = self.place.replace(place).is_some();
        if !was_queued {
            // Asks at once, now with a place in the queue.
            return self.ask(now);
        }
        self.waiting_for = heartbeat(busy.ahead) * HEARTBEATS;
        // The first progress message must be fresh.
        let first = self.progress.first().filter(|first| *first > now);
        let search = self.began + self.search_after;
        let looks = [Some(search).filter(|_| self.policy.holds_others), first];
        self.phase = Phase::Queued {
            busy: Rc::new(busy),
            sent,
            heard: now,
            until: looks.into_iter().flatten().fold(at, Moment::min),
        };
        self.show(now);
    }

    fn show(&mut self, now: Moment) {
        if let Phase::Queued { busy, heard, .. } = &self.phase
            && let frozen = busy.blocked_since()
            && self.progress.is_due_for(&busy.id, frozen, now)
        {
            self.actions.push(Action::Show {
                busy: Rc::clone(busy),
                age: now.since(*heard),
            });
        }
    }

    /// Starts the work on a grant that is confirmed later, if enough of that short lease is certainly left.
    fn start_on_grant(&self, grant: Grant, now: Moment) -> Option<AcquiredLock> {
        let Phase::Queued {
            busy, sent, heard, ..
        } = &self.phase
        else {
            return None;
        };
        // With a slow connection the confirmation comes first, because its answer might come when the grant
        // is over. After a published wait, too, because the note must be taken back.
        let is_allowed = self.policy.starts_on_grant && self.search_after == SEARCH_AFTER[0];
        if !is_allowed || !is_short(heard.since(*sent)) {
            return None;
        }
        // If the server's clock went back, the age of the grant is unknown.
        let later = Duration::from_millis(grant.at_ms.checked_sub(busy.now_ms)?);
        // By the local clock it can't be that long: the server's clock was set, so the grant may be over.
        if later > now.since(*sent).mul_f64(1.01) + ROUNDING {
            return None;
        }
        if !is_short(now.since(*sent + later)) {
            return None;
        }
        let terms = self.policy.terms;
        // A lease that is mostly clock skew isn't worth starting on.
        if grant.lasting < shortest_for(terms.clock_skew) {
            return None;
        }
        let lease = Lease::granted(*sent, later, now, grant.lasting, terms);
        (now < lease.stop_at()).then(|| AcquiredLock {
            granted: Some(grant.lasting),
            ..self.taken(lease, grant.fence, grant.slot, now)
        })
    }
}

#[cfg(test)]
mod tests;

//! One wait for one lock as a state machine: what happened goes in, what to do comes out. Pure.
//!
//! A waiter that finds a lock busy takes a place in its queue and sleeps until a message says that it
//! has the lock; heartbeats in between keep the place, and find out what no message says. Meanwhile
//! the lease of what is held already is kept alive, and jobs that wait for each other are noticed.
//!
//! What is asked of the server one after the other is a phase each, so an answer that belongs to
//! none of them changes nothing. `failing` is about a server that fails, `timing` has the times.

mod failing;
mod timing;

use std::rc::Rc;
use std::time::Duration;

pub use self::timing::{Outage, Pace, ProgressSchedule, WaitLimit};
use self::timing::{heartbeat, is_short, next, poll_interval};
use crate::clock::Moment;
use crate::decide::lease::{Lease, Terms, shortest_for};
use crate::decide::renewals::LockNews;
use crate::protocol::{self, Acquired, Busy, CycleMember, ErrorKind, Grant, Place, Who};
use crate::signal::{SIGTSTP, ends_waiting};

/// What a wait knows from its start.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one option, or one fact.
pub struct Policy {
    pub limit: WaitLimit,
    /// The lease that is asked for.
    pub terms: Terms,
    /// The work may start on a grant that isn't confirmed yet.
    pub starts_on_grant: bool,
    /// The job holds other locks, so another client may wait for it.
    pub holds_others: bool,
    /// The server has answered this process before, or the user has set a time to wait, which is for the server, too.
    pub awaits_server: bool,
    /// Replicas that are missing are waited for as a busy lock is: after a failover they need a moment until they follow the
    /// next primary, and can't confirm anything before that.
    pub awaits_replicas: bool,
    /// How long it is tried to reach a server that another one may follow, where a busy lock isn't waited for.
    pub failover_may_take: Duration,
    /// How long one answer may take, also where replicas have to have something before that.
    pub answer_may_take: Duration,
    /// How long a server may be silent, if the run goes on without a lock then.
    pub silence: Option<Duration>,
    /// Progress is shown in a line that can be rewritten.
    pub single_line: bool,
    /// Gives a number in 0..1, which spreads waiters that would act at the same moment. A function, as
    /// a lock that is free needs none, and each costs a system call.
    pub jitter: fn() -> f64,
}

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The time that [`Wait::due`] named has come, as it has at the start, or just a look at the clock.
    Tick,
    Signal(i32),
    /// Consequence of an answer about the locks that are held already.
    News(LockNews),
    /// A request failed, or the connection did while nothing was asked.
    Failed(protocol::Error),
    /// The server doesn't let us subscribe.
    SubscribeDenied,
    /// The server pushed that something has changed.
    Message,
    /// The server pushed that the lock is ours, for a short time.
    Granted(Grant),
    /// The look for a deadlock is done: the cycle that this wait has to break, if there is one.
    Searched(Option<Vec<CycleMember>>),
    /// There was no connection to look for a deadlock over.
    NotSearched,
    /// The question for the lock was sent at this moment, or may have been in part, and its answer may
    /// take this long. Once more: a short question was answered, and the whole one was sent.
    Sent(Moment, Duration),
    /// The answer to it; the server may also have answered with an error.
    Answered(Result<Acquired, protocol::Error>),
}

/// What to do about it, in this order.
#[derive(Clone, Debug)]
pub enum Action {
    /// Stop ourselves, as the terminal wants it.
    Suspend,
    /// Publish that we wait, for this long, and look for a deadlock.
    SearchDeadlock(Duration),
    /// Ask for the lock, with this place in its queue, if any.
    Ask(Option<Place>),
    /// Nothing came in time: report that as a failure.
    TimeOut,
    /// Give a connection up that has failed like this.
    Disconnect(protocol::Error),
    /// Show what we wait for, as it was known this long ago.
    Show { busy: Rc<Busy>, age: Duration },
    /// Show that the server is tried again: what is wrong with it, and for how long.
    ShowOutage { kind: ErrorKind, lasting: Duration },
    /// Show that this is over.
    ShowAnswer,
    /// The wait is over.
    End(End),
}

/// How a wait ends.
#[derive(Clone, Debug)]
pub enum End {
    /// The lock is ours.
    Acquired(Taken),
    /// The lock stayed busy.
    Busy(Rc<Busy>),
    /// So many wait for it already, which is enough.
    Crowded(u32),
    /// This newer run wants us to give up.
    Superseded(Box<Who>),
    /// This person has removed us from the queue.
    Removed(Box<Who>),
    /// This cycle has to be broken by us.
    Deadlock(Vec<CycleMember>),
    /// A run succeeded this long ago, which is enough.
    RecentSuccess(Duration),
    /// A lock that was held already is gone, or another run wants it.
    HeldLockGone(LockNews),
    /// What was held already could not be renewed in time.
    NotRenewed,
    Interrupted(i32),
    /// The lock came so late, several times, that its lease was almost over.
    TooSlow,
    Failed(protocol::Error),
}

/// A lock that is ours.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub lease: Lease,
    pub fence: u64,
    pub slot: u32,
    pub waited: Duration,
    /// The length of a grant that has to be confirmed; there is time to start work before that.
    pub granted: Option<Duration>,
}

/// How far the wait has come. `asked` is when the current question was allowed.
#[derive(Clone, Debug)]
enum Phase {
    /// The next question would come too soon after the others.
    Pausing {
        until: Moment,
    },
    /// Nothing was asked yet, or the server has failed and is asked again later.
    Connecting {
        until: Moment,
    },
    /// Whether this wait is part of a deadlock is being found out.
    Searching {
        asked: Moment,
    },
    /// The question for the lock is being sent, over a fresh connection where that is needed.
    Sending {
        asked: Moment,
    },
    /// Its answer is awaited.
    Asking {
        asked: Moment,
        sent: Moment,
        until: Moment,
    },
    /// We are in the queue, by the answer to the question that was sent then.
    Queued {
        busy: Rc<Busy>,
        sent: Moment,
        heard: Moment,
        until: Moment,
    },
    Over,
}

/// Whether the server can be reached.
#[derive(Clone, Copy, Debug)]
enum Contact {
    /// It has never answered.
    Unreached,
    Answers,
    /// The server has answered before, or others know of it, and it fails since this moment.
    Fails {
        since: Moment,
    },
}

/// After how long a waiter looks whether it is part of a deadlock. The second time is for those that
/// began to wait at the same moment, and hadn't published it yet. Later on each heartbeat looks.
const SEARCH_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(1300)];

/// After this many leases that came too late the server counts as too slow.
const MOST_TOO_LATE: u32 = 3;

/// By how much two times that a server gives in milliseconds may be off.
const ROUNDING: Duration = Duration::from_millis(20);

/// An entry in the queue, and the note that a job waits, live for this many heartbeats.
const HEARTBEATS: u32 = 3;

/// The state of one wait.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Wait {
    policy: Policy,
    began: Moment,
    phase: Phase,
    contact: Contact,
    pace: Pace,
    /// Our place in the queue; none before the lock was found to be busy.
    place: Option<Place>,
    /// The server may know our token: as a holder's, or in its queue.
    is_known: bool,
    /// A question was sent and not answered, so that it may still arrive.
    unanswered: bool,
    /// The lock was found to be busy.
    was_busy: bool,
    /// How often the lock came so late that its lease was almost over.
    too_late: u32,
    /// How many of the first looks for a deadlock are behind us.
    searches: usize,
    /// For how long others may believe that we wait.
    waiting_for: Duration,
    progress: ProgressSchedule,
    /// The server is being tried again.
    outage: Option<Outage>,
    /// Consequences of the event that is being taken in.
    actions: Vec<Action>,
}

impl Wait {
    /// A wait that begins at this moment.
    pub fn new(policy: Policy, began: Moment) -> Self {
        Self {
            policy,
            began,
            phase: Phase::Connecting { until: began },
            contact: if policy.awaits_server {
                Contact::Answers
            } else {
                Contact::Unreached
            },
            pace: Pace::default(),
            place: None,
            is_known: false,
            unanswered: false,
            was_busy: false,
            too_late: 0,
            searches: 0,
            waiting_for: heartbeat(0) * HEARTBEATS,
            progress: ProgressSchedule::new(began, policy.single_line),
            outage: None,
            actions: Vec::new(),
        }
    }

    /// Whether the server may know our token, as a holder's or in its queue.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns whether the server may still receive a request of this wait, because one had no answer.
    pub fn has_pending_request(&self) -> bool {
        self.unanswered || matches!(self.phase, Phase::Sending { .. } | Phase::Asking { .. })
    }

    /// By when all is over where the server is silent: the time to wait, and that of one answer.
    pub fn ends_by(&self) -> Option<Moment> {
        match self.policy.limit {
            WaitLimit::Until(end) if end > self.began => Some(end + self.policy.answer_may_take),
            WaitLimit::Until(_) | WaitLimit::Forever => None,
        }
    }

    /// Until when the last question is answered, at the latest: what it may have done has to be taken back after that.
    pub fn last_answer(&self) -> Option<Moment> {
        let by = self.ends_by()?;
        Some(by.before(self.policy.answer_may_take / 4))
    }

    /// When to look at the clock again.
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

    /// Takes an event in, and says what to do. `held` is the lease of what is held already.
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
            // Nothing works under a lease yet.
            Event::Signal(_) | Event::News(LockNews::Held { .. } | LockNews::Failed(_)) => {}
            // Without what is held already, the lock that is waited for is of no use.
            Event::News(news) => self.end(End::HeldLockGone(news)),
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
                if let Phase::Searching { asked } = self.phase {
                    self.count_searches(asked);
                    match cycle {
                        Some(cycle) => self.end(End::Deadlock(cycle)),
                        None => self.send(asked),
                    }
                }
            }
            Event::NotSearched => {
                if let Phase::Searching { asked } = self.phase {
                    self.send(asked);
                }
            }
            Event::Sent(sent, within) => {
                // A short question was answered: this ends no outage, as the whole one may never be.
                if let (Phase::Asking { .. }, Contact::Unreached) = (&self.phase, self.contact) {
                    self.contact = Contact::Answers;
                }
                if let Phase::Sending { asked } | Phase::Asking { asked, .. } = self.phase {
                    self.is_known = true;
                    let until = sent + within;
                    self.phase = Phase::Asking {
                        asked,
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

    /// Looks at the clock: first whether what is held already is safe.
    fn on_tick(&mut self, held: Option<Lease>, now: Moment) {
        if held.is_some_and(|lease| now >= lease.stop_at()) {
            return self.end(End::NotRenewed);
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

    fn dispatch(&mut self, asked: Moment) {
        // If the job holds nothing, no other client waits for it.
        if self.policy.holds_others && asked >= self.began + SEARCH_AFTER[0] {
            self.phase = Phase::Searching { asked };
            self.actions.push(Action::SearchDeadlock(self.waiting_for));
        } else {
            self.send(asked);
        }
    }

    fn send(&mut self, asked: Moment) {
        self.phase = Phase::Sending { asked };
        self.actions.push(Action::Ask(self.place));
    }

    fn count_searches(&mut self, at: Moment) {
        let is_over = |after: &&Duration| at >= self.began + **after;
        self.searches = SEARCH_AFTER.iter().filter(is_over).count();
    }

    /// Asks again, as something may have changed.
    fn ask_again(&mut self, now: Moment) {
        // What comes at another time is found out by the next question, or by this one.
        if let Phase::Queued { .. } = self.phase {
            self.ask(now);
        }
    }

    fn on_answer(&mut self, answer: Result<Acquired, protocol::Error>, now: Moment) {
        let Phase::Asking { asked, sent, .. } = self.phase else {
            return;
        };
        if let Contact::Unreached = self.contact {
            self.contact = Contact::Answers;
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return self.retry_or_fail(error, asked, now),
        };
        self.phase = Phase::Over;
        let outage = self.outage.take();
        if outage.is_some_and(|outage| outage.was_shown()) {
            self.actions.push(Action::ShowAnswer);
        }
        self.is_known = match &answer {
            Acquired::Held { .. } | Acquired::Removed(_) => true,
            Acquired::Crowded(_) | Acquired::Superseded(_) => self.unanswered,
            // Without a place nothing of us is left there.
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
                // Asked again it is lengthened, if the server has become faster.
                self.too_late += 1;
                if self.too_late < MOST_TOO_LATE {
                    self.ask(now);
                } else {
                    self.end(End::TooSlow);
                }
            }
            Acquired::RecentSuccess(ago) => self.end(End::RecentSuccess(ago)),
            Acquired::Crowded(waiting) => self.end(End::Crowded(waiting)),
            Acquired::Superseded(by) => self.end(End::Superseded(by)),
            // The lock may be granted to us, for somebody to get it from us at once.
            Acquired::Removed(by) => self.end(End::Removed(by)),
            Acquired::Busy(busy) => {
                self.contact = Contact::Answers;
                self.was_busy = true;
                self.remain_queued(Rc::new(busy), sent, now);
            }
        }
    }

    /// Returns a lock that is ours, and how long we have waited for it, if it was busy.
    fn taken(&self, lease: Lease, fence: u64, slot: u32, now: Moment) -> Taken {
        let waited = self.was_busy.then(|| now.since(self.began));
        Taken {
            lease,
            fence,
            slot,
            waited: waited.unwrap_or_default(),
            granted: None,
        }
    }

    /// Waits for a busy lock in its queue.
    fn remain_queued(&mut self, busy: Rc<Busy>, sent: Moment, now: Moment) {
        let before = self.place.unwrap_or_default();
        let place = Place {
            ticket: busy.ticket.or(before.ticket),
            polls: before.polls || busy.polls,
        };
        // Each call clears some of them away.
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
            return self.end(End::Busy(busy));
        };
        let was_queued = self.place.replace(place).is_some();
        if !was_queued {
            // At once, now with a place in the queue.
            return self.ask(now);
        }
        self.waiting_for = heartbeat(busy.ahead) * HEARTBEATS;
        // What the user is shown first is to be fresh.
        let first = self.progress.first().filter(|first| *first > now);
        let search = SEARCH_AFTER.get(self.searches);
        let search = search.filter(|_| self.policy.holds_others);
        let looks = [search.map(|after| self.began + *after), first];
        self.phase = Phase::Queued {
            busy,
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

    /// The work may start on a grant that is confirmed later, if it can be known that
    /// enough is left of that short lease.
    fn start_on_grant(&self, grant: Grant, now: Moment) -> Option<Taken> {
        let Phase::Queued {
            busy, sent, heard, ..
        } = &self.phase
        else {
            return None;
        };
        // Far away the confirmation comes first: its answer might come when the grant is over. And
        // what others may have read of our wait has to be taken back.
        let is_allowed = self.policy.starts_on_grant && self.searches == 0;
        if !is_allowed || !is_short(heard.since(*sent)) {
            return None;
        }
        // A server whose clock went back says nothing about how long ago that was.
        let later = Duration::from_millis(grant.at_ms.checked_sub(busy.now_ms)?);
        // By our own clock it can't be that long: the server's was set, and the grant may be long over.
        if later > now.since(*sent).mul_f64(1.01) + ROUNDING {
            return None;
        }
        if !is_short(now.since(*sent + later)) {
            return None;
        }
        let terms = self.policy.terms;
        // Nor is that lease worth starting on where most of it is what clocks may differ.
        if grant.lasting < shortest_for(terms.clock_skew) {
            return None;
        }
        let lease = Lease::granted(*sent, later, now, grant.lasting, terms);
        (now < lease.stop_at()).then(|| Taken {
            granted: Some(grant.lasting),
            ..self.taken(lease, grant.fence, grant.slot, now)
        })
    }
}

#[cfg(test)]
mod tests;

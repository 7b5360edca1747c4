//! What is promised (P1 to P7 in `docs/guarantees.md`, and what holds besides), looked at after each step: from what
//! was before, what was done, and what is then.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Plan, SHARED, Wish, ms};
use super::run::{Known, Phase};
use super::scripts::{self, Answer};
use super::view::{self, Key, View};
use crate::protocol::model::network::Asked;
use crate::protocol::model::support::lua::id;
use crate::protocol::{Acquired, LeaseState, Released, Supersede};

const SECOND: i64 = 1_000_000;

/// Who did what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `queues`: with the wish for a place in the queue.
    Acquire {
        client: usize,
        queues: bool,
    },
    Renew(usize),
    Check(usize),
    /// A guard is admitted, or stays for longer; or it has ended.
    Guard(usize),
    Leave(usize),
    /// `keeps`: the lock is to stay for a while.
    Release {
        client: usize,
        keeps: bool,
    },
    PlainAcquire(usize),
    PlainRelease(usize),
    /// From all holders, or from this client's hold alone.
    Force(Option<usize>),
    /// This client is asked to end.
    Stop(usize),
    Skip,
    Freeze,
    Thaw,
    Delete(Key),
    SetClock(i64),
    Look,
    /// Somebody comes when all is over.
    Visit,
}

impl Act {
    /// The client that has asked for it.
    fn client(self) -> Option<usize> {
        match self {
            Self::Acquire { client, .. } | Self::Release { client, .. } => Some(client),
            Self::Renew(n)
            | Self::Check(n)
            | Self::Guard(n)
            | Self::Leave(n)
            | Self::PlainAcquire(n)
            | Self::PlainRelease(n) => Some(n),
            _ => None,
        }
    }
}

/// What the server has just done.
pub struct Step<'a> {
    /// The number of the step, and when it was.
    pub number: u64,
    pub now: i64,
    pub act: Act,
    pub asked: &'a Asked,
    pub answer: &'a Answer,
    pub before: &'a View,
    pub after: &'a View,
    /// Who held the lock before, and who holds it now, as in `View::held`.
    pub old: BTreeMap<String, i64>,
    pub new: BTreeMap<String, i64>,
    pub all: &'a [Known],
}

impl<'a> Step<'a> {
    /// Whether somebody held the lock until now.
    fn was_held(&self, token: &str) -> bool {
        self.old.get(token).is_some_and(|&end| end > self.after.now)
    }

    fn wish(&self, n: usize) -> &'a Wish {
        &self.all[n].plan.wish
    }
}

/// A promise that wasn't kept.
pub struct Broken {
    pub promise: &'static str,
    pub detail: String,
}

impl Broken {
    pub fn new(promise: &'static str, detail: String) -> Self {
        Self { promise, detail }
    }
}

/// Fails with the promise and a detail unless the condition holds.
macro_rules! promise {
    ($condition:expr, $promise:literal, $($detail:tt)*) => {
        if !$condition {
            return Err(Broken::new($promise, format!($($detail)*)));
        }
    };
}

/// What a client has been through, as the server could know.
#[derive(Clone, Debug, Default)]
struct Past {
    /// The step at which it was first in the queue.
    queued: Option<u64>,
    /// The step at which it first asked for a place there, which may have led to the lock at once.
    asked: Option<u64>,
    ticket: Option<i64>,
    /// The step at which the state was deleted while it wasn't in the queue.
    missed: Option<u64>,
    /// When it was last seen in the queue, and the step.
    seen: i64,
    /// The step of its last heartbeat that was served, and when that was.
    refreshed: u64,
    heard: i64,
    /// When it came into the queue.
    began: i64,
    /// The pause between two of its heartbeats; 0 before it has been told how many are ahead.
    beat: i64,
    /// The step at which it got the lock at once, and made the older ones give up.
    told: Option<u64>,
    /// The step that made it a holder, and its fence.
    held: Option<u64>,
    fence: Option<i64>,
    /// How long its lease was at first, in milliseconds.
    granted: i64,
    ever_held: bool,
    /// It held it for more than an unconfirmed grant.
    confirmed: Option<u64>,
    /// It released its lock, and got the answer.
    released: bool,
    /// It left the queue.
    cancelled: bool,
    /// The step at which the guard left.
    left: Option<u64>,
    /// The step at which it withdrew its request, which may still be under way.
    withdrawn: Option<u64>,
    /// The step that took its grant away before it was confirmed.
    removed: Option<u64>,
    last: Option<(u128, Answer, u64)>,
}

impl Past {
    /// It has got a ticket; whether it makes the older ones give up, if it is to. One that got the lock at once has done
    /// so then, and has its place from then, unless the state has been lost.
    fn gets(&mut self, ticket: i64, step: u64, state_deleted: u64) -> bool {
        let told = self.told.take().filter(|told| *told > state_deleted);
        self.ticket = Some(ticket);
        self.queued = told.or(Some(step));
        told.is_none()
    }

    /// Whether its place in the queue may be any, once it has come back: others may have got tickets meanwhile from a
    /// counter that had begun anew.
    fn may_be_anywhere(&self, state_deleted: u64) -> bool {
        let left = self.ever_held.then_some(state_deleted);
        self.queued.is_some() && self.queued < self.missed.max(left)
    }
}

/// How often a waiter asks, at the least.
fn beat(ahead: i64, polls: bool) -> i64 {
    if polls {
        return (SECOND / 4 + SECOND / 16 * ahead).min(SECOND);
    }
    let far = 8 * SECOND + SECOND / 125 * ahead;
    (2 * SECOND + SECOND / 2 * ahead).min(far).min(30 * SECOND)
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Promises {
    tokens: BTreeMap<String, usize>,
    pasts: Vec<Past>,
    sets_clock: bool,
    /// The last fence that anybody has seen.
    fence: i64,
    /// The server has forgotten the last fence, so that a later grant may have an earlier one's.
    fences_repeat: bool,
    /// The step at which a run last made the older ones give up.
    superseded: u64,
    /// The same of one that ignores freezes: no run that a freeze keeps out makes it give up.
    superseded_exempt: u64,
    /// The highest number in an outside order that has held the lock.
    number: u64,
    /// When a run last released what it held and said that it had succeeded, in the server's milliseconds.
    success: Option<i64>,
    /// And with each key.
    successes: BTreeMap<&'static str, i64>,
    /// The step at which the queue was last disturbed as a whole, and when the keys of it were last
    /// deleted.
    disturbed: u64,
    forgotten: i64,
    /// Entries in `meta` were deleted at this step.
    meta_deleted: u64,
    /// The state, or the notices, were deleted at this step.
    state_deleted: u64,
    /// Since when a live waiter could have the lock and no client gets it.
    stalled: Option<i64>,
    /// The clients that don't answer and were granted the lock since then.
    in_vain: BTreeSet<usize>,
    granted: bool,
    /// With the state it was forgotten which waiters have replied.
    replies_lost: bool,
    /// Nobody held the lock when it was frozen.
    frozen_free: bool,
    /// The clients that a person has asked to end.
    stopped: BTreeSet<usize>,
    /// The latest that the server's clock has ever been.
    latest: i64,
}

impl Promises {
    pub fn new(plan: &Plan) -> Self {
        let tokens = plan.clients.iter().enumerate();
        Self {
            tokens: tokens
                .map(|(n, client)| (client.wish.token.clone(), n))
                .collect(),
            pasts: vec![Past::default(); plan.clients.len()],
            sets_clock: plan.sets_clock,
            forgotten: i64::MIN,
            ..Self::default()
        }
    }

    /// Whose leases mean nothing any more by what was just done: the manual excludes it, or they are
    /// to be told.
    pub fn tainted(&self, step: &Step) -> Vec<usize> {
        let runs = self.tainted_runs(step);
        let is_forgotten = matches!(step.act, Act::Delete(Key::Guards | Key::Meta));
        let is_tainted = |&n: &usize| {
            let guards = step.all[n].plan.guards.as_ref();
            let of_run = guards.and_then(|token| self.tokens.get(token));
            runs.contains(&n)
                || guards.is_some() && is_forgotten
                || of_run.is_some_and(|run| runs.contains(run))
        };
        (0..step.all.len()).filter(is_tainted).collect()
    }

    fn tainted_runs(&self, step: &Step) -> Vec<usize> {
        let mark = step.before.mark.as_deref();
        match step.act {
            Act::Delete(Key::Lock) => (0..step.all.len()).collect(),
            Act::Delete(Key::Holders) if mark.is_some_and(view::is_group) => {
                (0..step.all.len()).collect()
            }
            Act::SetClock(by) if by > 0 => (0..step.all.len()).collect(),
            Act::Force(_) => {
                let lost = step
                    .old
                    .keys()
                    .filter(|token| !step.new.contains_key(*token));
                lost.filter_map(|token| self.tokens.get(token).copied())
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// After each event: a client that believes to hold the lock holds it, no two clients hold it together
    /// that must not, and a free lock is granted to waiters.
    pub fn believed(
        &mut self,
        now: i64,
        view: &View,
        is_frozen: bool,
        all: &[Known],
    ) -> Result<(), Broken> {
        let mut limit = SHARED;
        let mut slots = BTreeSet::new();
        let mut names = Vec::new();
        let held = view.held();
        for client in all {
            let Some(belief) = client.belief.filter(|belief| now < belief.until) else {
                continue;
            };
            if belief.since <= client.tainted {
                continue;
            }
            let token = client.token();
            promise!(
                held.contains_key(client.hold()),
                "P1: a lease that has not run out is held",
                "{token} counts on its lease for {} µs more",
                belief.until - now
            );
            // It works under the hold of another one.
            if client.plan.guards.is_some() {
                continue;
            }
            names.push(token);
            limit = limit.min(client.plan.wish.limit);
            // One that lost its lock, which its own late request took again, knows of the first slot.
            let knows_slot = client.tainted < 0 || client.plan.manners.late == 0;
            promise!(
                belief.slot == 0 || !knows_slot || slots.insert(belief.slot),
                "P1: each holder has a slot of its own",
                "{names:?} have slot {}",
                belief.slot
            );
        }
        let count = i64::try_from(names.len()).unwrap();
        promise!(
            count <= limit,
            "P1: no two hold it that must not",
            "{names:?} believe in it, limit {limit}"
        );
        self.progress(now, view, is_frozen, all)
    }

    /// A lock that could be given to a live waiter is given to one within a bound.
    fn progress(
        &mut self,
        now: i64,
        view: &View,
        is_frozen: bool,
        all: &[Known],
    ) -> Result<(), Broken> {
        if self.sets_clock {
            return Ok(());
        }
        let is_live = |n: &usize| {
            let client = &all[*n];
            client.plan.manners.are_perfect() && client.phase == Phase::Waits
        };
        let index = |token: &String| self.tokens.get(token).copied();
        let mut room = SHARED;
        let mut count = 0;
        let mut in_vain = Vec::new();
        for token in view.held().keys() {
            let Some(n) = index(token) else { continue };
            let entry = view.hold(token);
            // A grant to a client that doesn't answer belongs to none.
            let answers = all[n].plan.manners.are_perfect();
            if entry.is_none_or(|entry| entry.phase != "granted") || answers {
                count += 1;
                room = room.min(all[n].plan.wish.limit);
            } else {
                in_vain.push(n);
            }
        }
        let waiting: Vec<usize> = view
            .queue
            .iter()
            .filter_map(|(token, _)| index(token))
            .collect();
        let limits = waiting.iter().map(|&n| all[n].plan.wish.limit);
        room = limits.fold(room, i64::min);
        // One that has just come doesn't know yet when to look.
        // A member without an entry keeps all others out, because nobody knows its limit.
        let is_unknown = view.held().keys().any(|token| view.hold(token).is_none());
        let goes_on = std::mem::take(&mut self.granted) || is_frozen || is_unknown || count >= room;
        let live = waiting.iter().copied().filter(is_live);
        let mut live = live.filter(|&n| self.pasts[n].beat > 0).peekable();
        if goes_on || live.peek().is_none() {
            self.stalled = None;
            self.in_vain.clear();
            return Ok(());
        }
        self.in_vain.extend(in_vain);
        let since = *self.stalled.get_or_insert(now);
        // One that came later has waited since then.
        let from = |n: usize| since.max(self.pasts[n].began) + self.pasts[n].beat;
        let from = live.map(from).min().unwrap_or(now);
        // A grant in vain lasts for 5 s, and each one after it for 2 s.
        let more = i64::try_from(self.in_vain.len()).unwrap_or(0).max(1) - 1;
        promise!(
            now - from <= (5 + 2 * more) * SECOND + SECOND / 2,
            "P5: a free lock is granted to waiters",
            "for {} ms no client got it, with {waiting:?} in the queue",
            (now - since) / 1_000
        );
        Ok(())
    }

    /// What the server knew of those who aren't in the queue is forgotten.
    fn miss(&mut self, step: &Step) {
        let absent = self.tokens.iter();
        let absent = absent.filter(|(token, _)| !step.after.waits(token));
        absent.for_each(|(_, &n)| self.pasts[n].missed = Some(step.number));
    }

    /// After each step.
    pub fn observe(&mut self, step: &Step) -> Result<(), Broken> {
        let after = step.after;
        if let Act::Delete(key) = step.act {
            self.forget(key, step.number, step.now, after.now);
            if let Key::State = key {
                self.miss(step);
            }
        }
        if let Act::SetClock(by) = step.act {
            self.disturbed = step.number;
            if by > 0 {
                // The notices may be over.
                self.state_deleted = step.number;
                self.miss(step);
            }
            // A freeze that was over counts again then, and no key keeps plain clients out.
            self.frozen_free = false;
            // What expires meanwhile is forgotten as well.
            self.forgotten = step.now;
            // The fence is in the state and in the clock; without both nothing is left of it.
            if !step.before.state.contains_key("fence") {
                self.forget_fences();
            }
        }
        if let Act::Leave(n) = step.act {
            self.pasts[n].left = Some(step.number);
        }
        if let Act::Stop(n) = step.act {
            self.stopped.insert(n);
        }
        self.latest = self.latest.max(after.now);
        self.keys(step)?;
        self.holds(step)?;
        self.queue(step)?;
        self.newly_held(step)?;
        self.answer(step)?;
        self.repetition(step)?;
        self.records(after)?;
        for (token, &n) in &self.tokens {
            if !step.new.contains_key(token) {
                self.pasts[n].held = None;
                self.pasts[n].fence = None;
            }
        }
        Ok(())
    }

    fn forget_fences(&mut self) {
        self.fence = 0;
        self.fences_repeat = true;
    }

    /// A key was deleted: what can't be known any more is not checked.
    fn forget(&mut self, key: Key, step: u64, now: i64, server: i64) {
        match key {
            Key::Queue | Key::Waiters | Key::Exempt => {
                self.disturbed = step;
                self.forgotten = now;
            }
            Key::State => {
                (self.superseded, self.superseded_exempt) = (0, 0);
                self.number = 0;
                self.state_deleted = step;
                self.success = None;
                self.successes.clear();
                self.forgotten = now;
                self.replies_lost = true;
                if self.sets_clock && server <= self.latest {
                    self.forget_fences();
                }
            }
            Key::Meta => self.meta_deleted = step,
            Key::History => {
                // That key has how a hold ended.
                for past in &mut self.pasts {
                    past.released = false;
                }
            }
            Key::Lock | Key::Holders | Key::Index | Key::Slots | Key::Guards => {}
        }
    }

    fn keys(&mut self, step: &Step) -> Result<(), Broken> {
        let (act, before, after) = (step.act, step.before, step.after);
        for (key, &left) in &after.keys {
            promise!(
                left != -1,
                "each key has an expiry",
                "{} has none",
                key.name()
            );
        }
        for (token, entry) in &after.meta {
            promise!(
                view::hold(entry).is_some(),
                "entries can be read",
                "the hold of {token} is {entry:?}"
            );
        }
        if act == Act::Freeze {
            self.frozen_free = step.new.is_empty();
        } else if matches!(act, Act::Delete(_)) || !step.new.is_empty() {
            // Nor is the key there when the lease of a run that ignores the freeze has ended.
            self.frozen_free = false;
        }
        // A plain client looks at the key alone; it gets in when another one has removed it.
        // And with a clock that is set back those are holders again that no script has removed.
        let may = matches!(act, Act::PlainAcquire(_)) && !self.frozen_free
            || matches!(act, Act::SetClock(_));
        let frozen = before.is_frozen() && after.is_frozen() && !may;
        let ignores_freeze = |token: &String| {
            let client = self.tokens.get(token);
            client.is_some_and(|&client| step.wish(client).ignores_freeze)
        };
        let mut new = step.new.keys();
        let new = new.find(|token| !step.old.contains_key(*token) && !ignores_freeze(token));
        promise!(
            new.is_none() || !frozen,
            "P4: no client gets a frozen lock",
            "{new:?} got in by {act:?}"
        );
        if matches!(act, Act::Look | Act::Check(_)) || matches!(step.answer, Answer::Unsure) {
            promise!(
                before.state == after.state
                    && before.history == after.history
                    && before.queue.len() >= after.queue.len(),
                "a client that only reads, or is told that nothing was done, changes nothing",
                "before: {before:?}"
            );
        }
        Ok(())
    }

    /// Nobody becomes a holder, or stops being one, but in the ways there are.
    fn holds(&mut self, step: &Step) -> Result<(), Broken> {
        let (act, before, after, all) = (step.act, step.before, step.after, step.all);
        if matches!(act, Act::SetClock(_)) {
            return Ok(());
        }
        let actor = act.client().map(|n| all[n].token());
        for (token, &end) in &step.old {
            let is_actor = actor == Some(token);
            let entry = before.hold(token);
            let leaves = matches!(act, Act::Leave(n) if all[n].hold() == token);
            let is_granted = entry.as_ref().is_some_and(|entry| entry.phase == "granted");
            let Some(&until) = step.new.get(token) else {
                let is_gone = match act {
                    _ if end <= after.now => true,
                    Act::Release { .. } | Act::PlainRelease(_) => is_actor,
                    Act::Leave(_) => leaves,
                    Act::Force(None) | Act::Visit => true,
                    Act::Force(Some(victim)) => self.tokens.get(token) == Some(&victim),
                    Act::Delete(key) => matches!(key, Key::Lock | Key::Holders),
                    _ => false,
                };
                promise!(
                    is_gone,
                    "P6: a hold ends in no other way",
                    "{token} lost its hold by {act:?}"
                );
                if let (Act::Force(_), true, Some(&n)) = (act, is_granted, self.tokens.get(token)) {
                    self.pasts[n].removed = Some(step.number);
                }
                continue;
            };
            // What is granted may be longer than what is then asked for.
            let confirms = is_granted || entry.is_none();
            // Or it is kept for guards, whose leases are shorter.
            let phase = entry.map(|entry| entry.phase);
            let has_guards = matches!(phase.as_deref(), Some("guarded" | "kept"));
            let keeps = match act {
                Act::Release { keeps, .. } => keeps || has_guards,
                _ => false,
            };
            // What a clock that was set back has made longer is cut to what was asked for, and so is a grant that a guard
            // has confirmed.
            let asked = self.tokens.get(token).map(|&n| all[n].plan.wish.ttl);
            let cuts = (self.sets_clock || has_guards)
                && asked.is_some_and(|ttl| until - after.now >= ttl - 1);
            let may_shorten = leaves || is_actor && (confirms || keeps || cuts);
            promise!(
                until >= end - 1 || may_shorten,
                "P1: no lease is shortened",
                "that of {token} ended in {} ms, and by {act:?} in {} ms",
                end - after.now,
                until - after.now
            );
        }
        let mut limit = SHARED;
        for token in step.new.keys() {
            let Some(&n) = self.tokens.get(token) else {
                continue;
            };
            limit = limit.min(step.wish(n).limit);
            let asks = matches!(act, Act::Acquire { .. } | Act::PlainAcquire(_));
            // If another client has deleted the queue, it still stands among those that ignore freezes.
            let is_exempt = step.wish(n).ignores_freeze && self.pasts[n].refreshed < self.disturbed;
            let waits = before.waits(token) || is_exempt;
            promise!(
                step.was_held(token) || asks && actor == Some(token) || waits,
                "P6: a client that has lost a lock gets it again only by a request for it",
                "{token} holds it by {act:?}"
            );
        }
        promise!(
            i64::try_from(step.new.len()).unwrap() <= limit,
            "P1: the server gives it to no two that must not hold it",
            "{:?}, limit {limit}",
            step.new
        );
        Ok(())
    }

    /// Whether a client does all that a waiter has to do, by what the server could know.
    fn is_heard(&self, n: usize, client: &Known) -> bool {
        let (past, manners) = (&self.pasts[n], &client.plan.manners);
        // One that no message reaches is told so by its first request, which may come once more after others.
        let is_deaf = manners.polls && manners.twice > 0;
        manners.are_perfect() && !is_deaf && past.refreshed > self.disturbed
    }

    /// The queue: tickets grow, no waiter falls out of it, waiters that come back have their old place.
    fn queue(&mut self, step: &Step) -> Result<(), Broken> {
        let (now, act, before, after, all) =
            (step.now, step.act, step.before, step.after, step.all);
        for (token, _) in &before.queue {
            let Some(&n) = self.tokens.get(token) else {
                continue;
            };
            self.pasts[n].seen = now;
            if after.waits(token) || step.new.contains_key(token) {
                continue;
            }
            let is_perfect = self.is_heard(n, &all[n]);
            match act {
                // A run that had the lock at once leaves it to the next request to clear those away that it made give up.
                _ if self.pasts[n]
                    .queued
                    .is_some_and(|at| at < self.superseded_at(n, step)) => {}
                Act::Acquire { client, .. }
                    if client != n && all[client].plan.wish.supersedes() =>
                {
                    let older = self.pasts[n].queued < self.pasts[client].queued;
                    let is_new = self.pasts[client].queued.is_none();
                    // With the state it is forgotten that a newer one had superseded it.
                    let is_anywhere = self.pasts[client].may_be_anywhere(self.state_deleted);
                    promise!(
                        older || is_new || is_anywhere || !is_perfect,
                        "P4: only older ones give up for it",
                        "{token} came after {}",
                        all[client].token()
                    );
                }
                Act::Acquire { client, .. } if client == n => {}
                Act::Release { client, .. } if client == n => self.pasts[n].cancelled = true,
                Act::Delete(Key::Queue | Key::Waiters) | Act::SetClock(_) | Act::Visit => {}
                _ => promise!(
                    !is_perfect,
                    "P7: a live waiter keeps its place",
                    "{token} fell out of the queue by {act:?}"
                ),
            }
        }
        let ticket = |token: &String, score: i64| {
            let n = self.tokens.get(token)?;
            Some((*n, view::ticket(score)))
        };
        let tickets = after.queue.iter();
        let tickets = tickets.filter_map(|(token, score)| ticket(token, *score));
        let tickets: Vec<(usize, i64)> = tickets.collect();
        for &(n, ticket) in &tickets {
            let past = &mut self.pasts[n];
            let token = all[n].token();
            let is_new = !before.waits(token);
            past.began = if is_new { now } else { past.began };
            let is_another = match past.ticket {
                None => {
                    let last = tickets
                        .iter()
                        .filter(|(other, _)| *other != n)
                        .map(|(_, t)| *t)
                        .max();
                    promise!(
                        // A client that got the lock at once has a ticket that no other saw.
                        past.ever_held || last.is_none_or(|last| ticket > last),
                        "P7: no ticket is below those in the queue",
                        "{token} got {ticket}, and others have {tickets:?}"
                    );
                    true
                }
                Some(mine) if is_new && mine != ticket => {
                    let waited_on = !past.ever_held && !past.cancelled;
                    // A first request that comes late, without the ticket that it led to, is as one of another.
                    let late = all[n].plan.manners.late > 0;
                    let knows = waited_on
                        && !late
                        && now - past.seen < 30 * SECOND
                        && self.forgotten < past.seen;
                    promise!(
                        !knows,
                        "P4: a waiter that comes back has its old place",
                        "{token} had ticket {mine} and has {ticket}"
                    );
                    true
                }
                Some(_) => false,
            };
            if is_another
                && past.gets(ticket, step.number, self.state_deleted)
                && all[n].plan.wish.supersedes()
            {
                self.supersede(n, step);
            }
            if let Act::Acquire { client, .. } = act
                && client == n
            {
                self.pasts[n].refreshed = step.number;
                self.pasts[n].heard = now;
            }
        }
        Ok(())
    }

    /// Grants: in the order of the waiters' turns, with a growing fence.
    fn newly_held(&mut self, step: &Step) -> Result<(), Broken> {
        let (act, after, all) = (step.act, step.after, step.all);
        let mut new = Vec::new();
        for token in step.new.keys().filter(|token| !step.was_held(token)) {
            let Some(&n) = self.tokens.get(token) else {
                continue;
            };
            if !all[n].plan.plain && !matches!(act, Act::SetClock(_)) {
                new.push((after.hold(token).map(|entry| entry.fence), n));
            }
        }
        // In the order in which they got it.
        new.sort_unstable();
        let mut tells = None;
        for (fence, n) in new {
            let token = all[n].token();
            if let Some(fence) = fence {
                promise!(
                    fence > self.fence,
                    "P3: the fence grows with each grant",
                    "{token} got {fence}, and {} was there before",
                    self.fence
                );
                self.fence = fence;
            }
            self.may_have_it(n, step)?;
            // A waiter that was suspended after its last answer can't be distinguished from a live one: it has
            // its full time to confirm.
            let since = self.stalled.unwrap_or(i64::MAX);
            // Likewise for one that gave its grant up after a while, and once when it was forgotten who hasn't replied to
            // a grant before this one.
            self.granted |= all[n].plan.manners.are_perfect()
                || self.pasts[n].heard > since
                || matches!(step.act, Act::Release { .. })
                || std::mem::take(&mut self.replies_lost);
            let past = &mut self.pasts[n];
            past.held = Some(step.number);
            past.fence = fence;
            // A grant may be longer than what is asked for.
            past.granted = step.new[token] - after.now;
            past.ever_held = true;
            past.released = false;
            // It came when the queue was empty; it makes the older ones give up all the same.
            let told = past.told.is_some_and(|told| told > self.state_deleted);
            if all[n].plan.wish.supersedes() && past.queued.is_none() && !told {
                tells = Some(n);
                past.told = Some(step.number);
                // From then on it is known when it came.
                past.asked.get_or_insert(step.number);
            }
        }
        if let Some(n) = tells {
            self.supersede(n, step);
        }
        // One that never confirmed its grant hasn't been there.
        let counts = |view: &View, token: &str| {
            view.hold(token)
                .is_some_and(|entry| entry.phase != "granted")
        };
        for token in step.new.keys() {
            let is_first = counts(after, token) && !counts(step.before, token);
            let Some(&n) = self.tokens.get(token).filter(|_| is_first) else {
                continue;
            };
            self.pasts[n].confirmed = Some(step.number);
            // What one said when it began to wait went with the state.
            let asked = self.pasts[n].asked;
            if asked.is_none_or(|asked| asked > self.state_deleted) {
                self.number = self.number.max(step.wish(n).queue.number.unwrap_or(0));
            }
        }
        Ok(())
    }

    /// A run makes the older ones give up, except those that ignore the freeze that keeps it out.
    fn supersede(&mut self, n: usize, step: &Step) {
        self.superseded = step.number;
        if !step.after.is_frozen() || step.wish(n).ignores_freeze {
            self.superseded_exempt = step.number;
        }
    }

    /// Returns the step at which a run last made this one give up, if it came before that.
    fn superseded_at(&self, n: usize, step: &Step) -> u64 {
        if step.wish(n).ignores_freeze {
            self.superseded_exempt
        } else {
            self.superseded
        }
    }

    /// A client has got the lock: no other was before it, and no newer run has made it give up.
    fn may_have_it(&self, n: usize, step: &Step) -> Result<(), Broken> {
        let (act, all) = (step.act, step.all);
        let (token, past) = (all[n].token(), &self.pasts[n]);
        let superseded = self.superseded_at(n, step);
        // A first request that was held up, when its run has had the lock by another one and has released it, or has given
        // up: it gets a lease, under which nothing works.
        let asks = matches!(act, Act::Acquire { client, .. } if client == n);
        let is_over = past.ever_held || matches!(all[n].phase, Phase::Leaves | Phase::Gone);
        let is_late = asks && is_over && all[n].plan.manners.late > 0;
        // Its ticket was lost with an answer, and what the server knew of it has been deleted, or has expired when the
        // clock was set: it is as one that comes.
        let is_forgotten =
            asks && !scripts::tells_ticket(&step.asked.call) && self.forgotten >= past.seen;
        promise!(
            // A ticket from before the state was deleted says nothing about those that came after.
            is_late
                || is_forgotten
                // One that has had the lock, and whose lease has run out without its knowing, is as one that comes.
                || past.confirmed.is_some()
                || past
                    .queued
                    .is_none_or(|queued| queued >= superseded || queued < self.state_deleted),
            "P4: a run that was asked to give up never gets the lock",
            "{token} was superseded at step {superseded}"
        );
        if let Some(number) = all[n].plan.wish.queue.number {
            promise!(
                number >= self.number,
                "P4: an older number never follows a newer one",
                "{token} has number {number}, and {} has held the lock",
                self.number
            );
        }
        let mine = past.queued.unwrap_or(step.number);
        for (other, _) in &step.before.queue {
            let Some(&o) = self.tokens.get(other) else {
                continue;
            };
            let theirs = &self.pasts[o];
            let is_undisturbed = all[o].plan.manners.are_perfect()
                && all[o].phase == Phase::Waits
                && theirs.refreshed > self.disturbed
                && theirs.queued.is_some_and(|queued| queued > self.disturbed);
            let is_anywhere = past.may_be_anywhere(self.state_deleted)
                || theirs.may_be_anywhere(self.state_deleted);
            // One that ignores a freeze goes ahead of those that the freeze keeps out.
            let overtakes = (step.before.is_frozen() || step.after.is_frozen())
                && all[n].plan.wish.ignores_freeze
                && !all[o].plan.wish.ignores_freeze;
            if o == n || overtakes || !is_undisturbed || is_anywhere || !step.after.waits(other) {
                continue;
            }
            promise!(
                theirs.queued.is_some_and(|queued| mine < queued),
                "P7: first in, first out",
                "{token} got the lock by {act:?} before {other}"
            );
        }
        Ok(())
    }

    /// What is answered is true.
    fn answer(&mut self, step: &Step) -> Result<(), Broken> {
        match (step.act, step.answer) {
            (Act::Acquire { client, queues }, Answer::Acquired(answer)) => {
                self.comes_in_time(client, step)?;
                self.acquired(client, queues, answer, step)
            }
            (Act::Renew(client) | Act::Check(client), Answer::Lease(state)) => {
                self.renewed(client, state, step)
            }
            (Act::Guard(client), Answer::Lease(state)) => self.guards(client, state, step),
            (Act::Release { client, .. }, Answer::Released(answer)) => {
                self.released(client, answer, step)
            }
            _ => Ok(()),
        }
    }

    /// What was withdrawn comes to nothing, however late it arrives; that was noted in the state.
    fn comes_in_time(&self, n: usize, step: &Step) -> Result<(), Broken> {
        let token = step.all[n].token();
        let withdrawn = self.pasts[n].withdrawn;
        promise!(
            withdrawn.is_none_or(|at| at < self.state_deleted)
                || !step.new.contains_key(token) && !step.after.waits(token),
            "P4: a request that was withdrawn comes to nothing",
            "that of {token} arrived late and was answered {:?}",
            step.answer
        );
        Ok(())
    }

    /// Returns how many waiters are ahead of a client, if it is in the queue: no waiter that a freeze keeps out is ahead of
    /// a run that ignores the freeze.
    fn place(&self, n: usize, step: &Step) -> Option<usize> {
        let (after, token) = (step.after, step.all[n].token());
        let ignores_freeze = |other: &String| {
            let client = self.tokens.get(other);
            client.is_some_and(|&client| step.wish(client).ignores_freeze)
        };
        let mut queue = after.queue.iter().map(|(waiter, _)| waiter);
        if after.is_frozen() && step.wish(n).ignores_freeze {
            let before = queue.take_while(|waiter| *waiter != token);
            let before = before.filter(|waiter| ignores_freeze(waiter)).count();
            after.waits(token).then_some(before)
        } else {
            queue.position(|waiter| waiter == token)
        }
    }

    fn acquired(
        &mut self,
        n: usize,
        queues: bool,
        answer: &Acquired,
        step: &Step,
    ) -> Result<(), Broken> {
        let all = step.all;
        let token = all[n].token();
        let is_held = step.new.contains_key(token);
        if queues {
            self.pasts[n].asked.get_or_insert(step.number);
        }
        self.knows_success(n, answer, step)?;
        match answer {
            Acquired::Held { fence, .. } => {
                let fence = i64::try_from(*fence).unwrap();
                promise!(
                    is_held,
                    "P1: a client that gets the answer \"held\" holds the lock",
                    "{token} doesn't"
                );
                let past = &mut self.pasts[n];
                let known = past.fence.filter(|_| past.held > Some(self.meta_deleted));
                promise!(
                    known.is_none_or(|known| known == fence),
                    "P3: a hold has one fence",
                    "{token} got {known:?} and the answer {fence}"
                );
                promise!(
                    known.is_some() || fence >= self.fence,
                    "P3: the fence grows with each grant",
                    "{token} got {fence}, and {} was there before",
                    self.fence
                );
                past.fence = Some(fence);
                // Of one that was there before, a state that is lost by now may know nothing.
                self.fence = self.fence.max(known.map_or(fence, |_| 0));
            }
            Acquired::Busy(busy) => {
                if queues {
                    self.pasts[n].beat = beat(busy.ahead.into(), busy.polls);
                }
                // An old request that comes after a newer one has an answer that isn't read.
                promise!(
                    !is_held || all[n].plan.manners.late > 0,
                    "P1: a holder gets the answer \"held\"",
                    "{token} got the answer \"busy\""
                );
                promise!(
                    !self.is_admitted(n, step),
                    "P5: who is admitted gets the lock at once",
                    "{token} got the answer \"busy\", with {:?} as holders and no waiter",
                    step.old
                );
                let at = self.place(n, step);
                // Since another client has deleted the queue, the dead may stand among those that ignore freezes.
                let is_unsure =
                    step.after.is_frozen() && step.wish(n).ignores_freeze && self.disturbed > 0;
                let mine = self.pasts[n].ticket.map(i64::unsigned_abs);
                promise!(
                    !queues || busy.ticket == mine,
                    "P7: a waiter knows its ticket",
                    "{token} has {mine:?} and got {:?}",
                    busy.ticket
                );
                promise!(
                    !queues
                        || is_unsure
                        || at.and_then(|at| u32::try_from(at).ok()) == Some(busy.ahead),
                    "P7: a waiter knows its place",
                    "{token} is number {at:?} and the answer is that {} are ahead",
                    busy.ahead
                );
            }
            Acquired::Superseded(_) | Acquired::Removed(_) | Acquired::Crowded(_) => {
                promise!(
                    self.has_a_reason(n, answer, step),
                    "P4: no run gives up without a reason",
                    "{token} was answered {answer:?}, with {:?} in the queue",
                    step.before.queue
                );
            }
            // Looked at already.
            Acquired::RecentSuccess(_) => {}
        }
        Ok(())
    }

    /// Returns true if a run that gives up by this answer must.
    fn has_a_reason(&self, n: usize, answer: &Acquired, step: &Step) -> bool {
        let (past, client) = (&self.pasts[n], &step.all[n].plan);
        let queue = client.wish.queue;
        match answer {
            Acquired::Superseded(_) => {
                let newer = self.tokens.values().any(|&o| {
                    let other = &self.pasts[o];
                    let counts = other.ever_held || other.queued.is_some() && !other.cancelled;
                    counts && step.wish(o).queue.number > queue.number
                });
                let superseded = past
                    .asked
                    .is_some_and(|first| first < self.superseded_at(n, step));
                // An old request that comes after a newer one may be superseded by that.
                queue.number.is_some() && newer || superseded || client.manners.late > 0
            }
            // Somebody has taken its grant away.
            Acquired::Removed(_) => {
                past.removed.is_some() || past.withdrawn.is_some() || self.is_asked_to_end(n, step)
            }
            Acquired::Crowded(waiting) => {
                queue.most_waiting.is_some_and(|most| *waiting >= most)
                    && step.before.queue.len() >= usize::try_from(*waiting).unwrap()
            }
            _ => true,
        }
    }

    /// A run is skipped after a success that is recent enough for it, and only then, and is told when that was.
    fn knows_success(&self, n: usize, answer: &Acquired, step: &Step) -> Result<(), Broken> {
        let token = step.all[n].token();
        let wish = step.wish(n);
        let last = self.success.map(|success| ms(step.after.now - success));
        let with_key = wish.key.and_then(|key| self.successes.get(key));
        let with_key = with_key.map(|success| ms(step.after.now - success));
        let is_enough =
            with_key.is_some() || wish.key.is_none() && last.is_some_and(|ago| ago < ms(wish.once));
        let ago = match answer {
            Acquired::RecentSuccess(_) if wish.key.is_some() => with_key,
            _ => last,
        };
        let told = match answer {
            Acquired::Held { .. } => {
                promise!(
                    !is_enough,
                    "P4: a success is enough for as long as it is to be",
                    "{token} has the lock, and the last success was {ago:?} ago"
                );
                return Ok(());
            }
            Acquired::RecentSuccess(ago) => {
                promise!(
                    is_enough,
                    "P4: no run is skipped without a success",
                    "{token} is, and the last success was {ago:?} ago"
                );
                *ago
            }
            _ => return Ok(()),
        };
        promise!(
            Some(told) == ago,
            "P4: a success is when its run ended",
            "{token} is told that it was {told:?} ago, and it was {ago:?}"
        );
        Ok(())
    }

    /// Whether a newer run wants this one to end, which may not have confirmed its grant.
    fn is_asked_to_end(&self, n: usize, step: &Step) -> bool {
        let notice = format!("{{redlock:a}}:cancelled:{}", id(step.all[n].token()));
        let asks = |&o: &usize| {
            let past = &self.pasts[o];
            // It may have got the lock by the request that makes the others end.
            let has_come = past.queued.is_some() || past.ever_held;
            o != n && step.wish(o).queue.supersede == Supersede::HoldersToo && has_come
        };
        // One that was meant for all members of a group stands in the state.
        let is_told =
            step.before.notices.contains(&notice) || step.before.state.contains_key("cancelled");
        is_told && (self.stopped.contains(&n) || self.tokens.values().any(asks))
    }

    /// Whether nobody waits, and there is room for one more holder with the limit of this client.
    fn is_admitted(&self, n: usize, step: &Step) -> bool {
        let (before, old) = (step.before, &step.old);
        let limit = |token| {
            // Without its entry it isn't known which slot it has.
            let is_known = before.meta.contains_key(token);
            let holder = self.tokens.get(token).filter(|_| is_known);
            holder.map_or(0, |&holder| step.wish(holder).limit)
        };
        let room = old.keys().map(limit).fold(step.wish(n).limit, i64::min);
        let wish = step.wish(n);
        let is_first = if before.is_frozen() {
            let keeps_out = |(token, _): &(String, i64)| {
                let client = self.tokens.get(token);
                client.is_some_and(|&client| !step.wish(client).ignores_freeze)
            };
            let supersedes = wish.queue.supersede != Supersede::Nobody;
            // The freeze may have run out before the request came.
            let is_frozen = step.after.is_frozen();
            is_frozen && wish.ignores_freeze && !supersedes && before.queue.iter().all(keeps_out)
        } else {
            before.queue.is_empty()
        };
        is_first && old.len() < room.try_into().unwrap()
    }

    /// Work is guarded under a hold alone whose run goes on, for no longer than that lasts, and until it has left.
    fn guards(&self, n: usize, state: &LeaseState, step: &Step) -> Result<(), Broken> {
        let (token, hold) = (step.all[n].token(), step.all[n].hold());
        let LeaseState::Held { left, .. } = state else {
            return Ok(());
        };
        let entry = step.before.hold(hold);
        promise!(
            step.was_held(hold) && entry.is_some_and(|entry| entry.phase != "kept"),
            "P1: a guard is admitted while its run goes on",
            "{token} was, and {hold} is over"
        );
        let ends = step.old[hold] - step.after.now;
        promise!(
            *left <= ms(ends),
            "P1: the lease of a guard ends with that of its run",
            "that of {token} lasts for {left:?}, and that of {hold} for {ends} ms"
        );
        let has_left = self.pasts[n].left;
        promise!(
            has_left.is_none_or(|at| at <= self.state_deleted),
            "P5: a guard that has left isn't admitted again",
            "{token} was, by a request that came late"
        );
        Ok(())
    }

    fn renewed(&mut self, n: usize, state: &LeaseState, step: &Step) -> Result<(), Broken> {
        let token = step.all[n].token();
        let entry = step.before.hold(token);
        let is_kept = entry.is_some_and(|entry| entry.phase == "kept");
        // Its run is over, and the lock is kept for its guards.
        if is_kept && matches!(state, LeaseState::Released) {
            return Ok(());
        }
        let was_held = step.was_held(token);
        if let LeaseState::Held { left, .. } = state {
            promise!(
                was_held,
                "P6: a lost lock isn't renewed",
                "that of {token} was"
            );
            let most = step.all[n].asked_most.max(self.pasts[n].granted);
            promise!(
                *left <= ms(most) || self.sets_clock,
                "P5: no lease is longer than asked for",
                "{token} asked for {most} ms and got {left:?}"
            );
        } else {
            promise!(
                !was_held,
                "P6: a held lock isn't called lost",
                "{token} got {state:?}"
            );
        }
        Ok(())
    }

    fn released(&mut self, n: usize, answer: &Released, step: &Step) -> Result<(), Broken> {
        let token = step.all[n].token();
        let (was_held, is_held) = (step.was_held(token), step.new.contains_key(token));
        let how = scripts::outcome(&step.asked.call);
        let past = &mut self.pasts[n];
        if how == Some(b"") {
            past.withdrawn = Some(step.number);
        }
        match answer {
            Released::Now | Released::Kept { .. } => {
                promise!(
                    is_held == matches!(answer, Released::Kept { .. }),
                    "P6: what is released is free, and what is kept is held",
                    "{token} got {answer:?}"
                );
                // Of a hold whose entry was deleted nothing is known when it is over.
                let entry = step.before.hold(token).filter(|_| was_held);
                // Or it says so itself, by its own clock.
                past.released |= entry.is_some() && how != Some(b"lost");
                // What is kept was released before.
                let ends = entry.is_some_and(|entry| entry.phase != "kept");
                if ends && how == Some(b"status:0") {
                    self.success = Some(step.after.now);
                    if let Some(key) = step.wish(n).key {
                        self.successes.insert(key, step.after.now);
                    }
                }
            }
            Released::Before | Released::NotOurs(_) => {
                promise!(
                    !was_held,
                    "P6: a held lock isn't called lost",
                    "{token} got {answer:?}"
                );
                promise!(
                    matches!(answer, Released::Before) || !past.released,
                    "P6: what was released wasn't lost",
                    "{token} has released it itself and got the answer that it lost it"
                );
            }
        }
        Ok(())
    }

    /// The same request again, before anything else has happened: it has the same outcome.
    fn repetition(&mut self, step: &Step) -> Result<(), Broken> {
        let (act, answer, digest) = (step.act, step.answer, step.asked.digest);
        let is_shipped = !matches!(answer, Answer::Other);
        let Some(n) = act.client().filter(|_| is_shipped) else {
            return Ok(());
        };
        let entry = step.before.hold(step.all[n].hold());
        let is_kept = entry.is_some_and(|entry| entry.phase == "kept");
        let past = &mut self.pasts[n];
        let last = past.last.replace((digest, answer.clone(), step.number));
        let is_next = |last: &(u128, Answer, u64)| last.0 == digest && last.2 + 1 == step.number;
        let Some((_, first, _)) = last.filter(is_next) else {
            return Ok(());
        };
        let same = match (&first, answer) {
            (Answer::Acquired(first), Answer::Acquired(answer)) => match first {
                // A fence that went back, with the state and the clock, is below that of those who were asked to end.
                Acquired::Held { .. } if self.sets_clock && self.state_deleted > 0 => {
                    matches!(answer, Acquired::Held { .. } | Acquired::Removed(_))
                }
                Acquired::Held { .. } => matches!(answer, Acquired::Held { .. }),
                Acquired::Busy(_) => matches!(answer, Acquired::Busy(_) | Acquired::Held { .. }),
                Acquired::Superseded(_) => matches!(answer, Acquired::Superseded(_)),
                // Or its hold has run out meanwhile.
                Acquired::Removed(_) => {
                    matches!(answer, Acquired::Removed(_) | Acquired::Superseded(_))
                }
                // Once the success is too old, or those that waited are dead, it is as if there were none.
                Acquired::RecentSuccess(_) | Acquired::Crowded(_) => {
                    !matches!(answer, Acquired::Removed(_))
                }
            },
            (Answer::Lease(first), Answer::Lease(answer)) => match first {
                LeaseState::Held { .. } => !matches!(answer, LeaseState::Released),
                // What was kept for guards may be over meanwhile.
                LeaseState::Released => {
                    matches!(answer, LeaseState::Released)
                        || is_kept && matches!(answer, LeaseState::Lost(_))
                }
                LeaseState::Lost(_) => matches!(answer, LeaseState::Lost(_)),
            },
            // It is answered for an extension alone, and what kept it from one may be over, or have come, meanwhile.
            (Answer::Lease(state), Answer::Unsure) | (Answer::Unsure, Answer::Lease(state)) => {
                matches!(state, LeaseState::Held { .. })
            }
            (Answer::Unsure, _) | (_, Answer::Unsure) => true,
            (Answer::Released(first), Answer::Released(answer)) => match (first, answer) {
                (Released::NotOurs(_), Released::NotOurs(_)) => true,
                (Released::Kept { .. }, answer) => !matches!(answer, Released::NotOurs(_)),
                // Of a hold whose entry was deleted nothing is known when it is over.
                (Released::Now | Released::Before, Released::NotOurs(_)) => !past.released,
                (Released::Now | Released::Before, answer) => {
                    !matches!(answer, Released::Kept { .. })
                }
                (Released::NotOurs(_), _) => false,
            },
            _ => false,
        };
        promise!(
            same,
            "a repetition has the same outcome",
            "{act:?} is answered {first:?}, and then {answer:?}"
        );
        Ok(())
    }

    /// The history has each hold once, and nothing that is still to come.
    fn records(&mut self, after: &View) -> Result<(), Broken> {
        let mut seen = BTreeSet::new();
        for text in &after.history {
            let Some((id, fence, ended)) = view::record(text) else {
                return Err(Broken::new(
                    "entries can be read",
                    format!("the history has {text:?}"),
                ));
            };
            promise!(
                ended <= after.now || self.sets_clock,
                "the history tells what is over",
                "{text:?} ends in {} ms",
                ended - after.now
            );
            promise!(
                seen.insert((id, fence)) || self.fences_repeat,
                "the history has each hold once",
                "{text:?} stands there twice"
            );
        }
        Ok(())
    }
}

//! Promises about a single call: judged by the data before and after it, its answer, and the past of each run. The simulation
//! has a judge; the model, which merges states, has none.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use redis::Value;

use super::super::client::{Client, Setup};
use super::super::fake::name_of;
use super::super::redis::data::{Bytes, Entries, Fields};
use super::super::redis::{Data, Moment};
use super::super::support::lua::id;
use super::super::view::{Hold, StatusCommand, record, text};
use super::super::world::BOOT;
use super::{Broken, Promise};
use crate::protocol::answer::{acquired, checked, prolonged, renewed};
use crate::protocol::guard::extended;
use crate::protocol::name::Keys;
use crate::protocol::{Acquired, Busy, Error, LeaseState, Supersede};
use crate::server::call::Call;

/// A call with its results.
pub struct Seen<'a> {
    pub moment: &'a Moment,
    pub call: &'a Call,
    pub before: &'a Data,
    pub after: &'a Data,
    pub answer: &'a Value,
    /// Messages that somebody received, with their channels.
    pub heard: Vec<&'a (Bytes, Bytes)>,
}

impl Seen<'_> {
    pub fn told(&self) -> String {
        let name = name_of(self.call.script).unwrap_or("command");
        let words: Vec<String> = self.call.args.iter().map(|word| text(word)).collect();
        format!("{name} {words:?} = {:?}", self.answer)
    }
}

/// Observes each call.
pub trait Witness {
    fn sees(&mut self, seen: &Seen) -> Result<(), Broken>;
}

/// The past of a run or a guard, as far as the server could know it.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
struct Past {
    setup: Rc<Setup>,
    id: String,
    /// Token of its own hold, or of the guarded one.
    hold: String,
    /// True if a fault has hit it, so that nobody can rely on its heartbeats.
    is_hit: bool,
    /// True if its requests may arrive late.
    is_late: bool,
    /// True if its process waits.
    waits: bool,
    /// True if a person took its hold away, or its own job released it.
    is_excused: bool,
    is_stopped: bool,
    /// Step at which it first was in the queue, and step at which it first requested a place there.
    queued: Option<u64>,
    asked: Option<u64>,
    ticket: Option<i64>,
    last_queued: i64,
    /// Step at which it got the lock at once and superseded the older ones.
    has_superseded: Option<u64>,
    fence: Option<i64>,
    /// Longest lease that it requested or got, in milliseconds.
    longest: i64,
    has_held: bool,
    is_confirmed: bool,
    has_released: bool,
    has_withdrawn: bool,
    has_left: bool,
}

/// Name of a short script that has left everything to the whole one.
const NOTHING: &str = "nothing";

/// A call to judge.
struct Step<'a> {
    seen: &'a Seen<'a>,
    /// Name of the script (for a short script, that of the whole one); `None` for a command of another program.
    name: Option<&'static str>,
    /// Its own arguments, after the common ones of all scripts.
    words: Vec<String>,
    /// Run or guard that makes the call.
    actor: Option<String>,
    now: i64,
    before: StatusCommand,
    after: StatusCommand,
}

impl Step<'_> {
    fn is(&self, name: &str, token: &str) -> bool {
        self.name == Some(name) && self.actor.as_deref() == Some(token)
    }

    /// Returns true for a request for a place in the queue.
    fn queues(&self) -> bool {
        !self.word(4).is_empty()
    }

    fn mentions(&self, token: &str) -> bool {
        let mut words = self.seen.call.args.iter();
        words.any(|word| word == token.as_bytes())
    }

    fn word(&self, n: usize) -> &str {
        self.words.get(n).map_or("", String::as_str)
    }

    /// Returns true if a person acts against this run.
    fn is_against(&self, name: &str, token: &str) -> bool {
        self.name == Some(name) && self.word(0) == id(token)
    }

    fn was_held(&self, token: &str) -> bool {
        self.before.held.contains_key(token)
    }
}

/// Number of arguments that most scripts have in common.
const HEAD: usize = 3;
/// Index of the size of the history.
const HISTORY_SIZE: usize = 2;

pub struct Judge {
    keys: Keys,
    pasts: BTreeMap<String, Past>,
    /// Number of the call.
    number: u64,
    /// True if keys were deleted or the clock was changed: fewer promises hold from then on.
    pub is_lost: bool,
    /// Largest fencing token that anybody has seen.
    fence: i64,
    /// Steps at which a run last superseded the older ones, and at which one did that no freeze keeps out.
    superseded: u64,
    superseded_exempt: u64,
    /// Largest sequence number that has held the lock.
    order: u64,
    /// Time of the last success, and of the last one with each key, by the server's clock.
    success: Option<i64>,
    successes: BTreeMap<String, i64>,
    /// True if nobody has held the lock since it was frozen.
    is_frozen_free: bool,
    /// The last call, its answer, and the end of its hold.
    last: Option<(&'static str, Vec<String>, Value, Option<i64>)>,
}

/// Fails with the promise and a detail unless the condition holds.
fn keep(promise: Promise, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds {
        return Ok(());
    }
    Err(Broken::new(promise, detail()))
}

fn ms(number: i64) -> Duration {
    Duration::from_millis(number.max(0).unsigned_abs())
}

/// Returns the first number of an answer.
fn code(answer: &Value) -> Option<i64> {
    match answer {
        Value::Array(fields) => code(fields.first()?),
        Value::Int(code) => Some(*code),
        _ => None,
    }
}

impl Judge {
    pub fn new(keys: Keys) -> Self {
        Self {
            keys,
            pasts: BTreeMap::new(),
            number: 0,
            is_lost: false,
            fence: 0,
            superseded: 0,
            superseded_exempt: 0,
            order: 0,
            success: None,
            successes: BTreeMap::new(),
            is_frozen_free: false,
            last: None,
        }
    }

    /// Returns the key of a run or a guard in `pasts`.
    fn name(setup: &Setup) -> String {
        match &setup.guards {
            Some(guarding) => guarding.guard.id.clone(),
            None => text(setup.claim.token().as_bytes()),
        }
    }

    /// Registers another run or guard.
    pub fn comes(&mut self, setup: &Rc<Setup>) {
        let (name, hold) = (Self::name(setup), text(setup.claim.token().as_bytes()));
        let past = Past {
            id: id(&hold),
            hold,
            is_hit: false,
            is_late: false,
            waits: false,
            is_excused: false,
            is_stopped: false,
            queued: None,
            asked: None,
            ticket: None,
            last_queued: 0,
            has_superseded: None,
            fence: None,
            longest: i64::try_from(setup.wish.ttl.as_millis()).expect("a TTL"),
            has_held: false,
            is_confirmed: false,
            has_released: false,
            has_withdrawn: false,
            has_left: false,
            setup: Rc::clone(setup),
        };
        self.pasts.insert(name, past);
    }

    /// Records that a fault has hit this client.
    pub fn hit(&mut self, client: &Client, is_late: bool) {
        if let Some(past) = self.pasts.get_mut(&Self::name(&client.setup)) {
            past.is_hit = true;
            past.is_late |= is_late;
        }
    }

    /// Records what a client does. Returns true if its lease is meaningless from now on.
    pub fn follow(&mut self, client: &Client) -> bool {
        let past = self.pasts.get_mut(&Self::name(&client.setup));
        past.is_some_and(|past| {
            past.waits = client.waits();
            past.is_excused
        })
    }

    /// Checks that the server knows the holds under whose leases commands run.
    pub fn check_leases(
        &self,
        clients: &[Rc<Client>],
        data: &Data,
        (now, now_ms): (Duration, i64),
    ) -> Result<(), Broken> {
        let is_valid = |client: &&Rc<Client>| {
            let end = client.dead_by().filter(|_| client.has_command);
            end.is_some_and(|end| BOOT + now < end.since_boot())
        };
        let mut running = clients.iter().filter(is_valid).peekable();
        if self.is_lost || running.peek().is_none() {
            return Ok(());
        }
        let view = StatusCommand::of(data, &self.keys, now_ms);
        for client in running {
            let hold = text(client.setup.claim.token().as_bytes());
            let is_excused = self.pasts.get(&hold).is_some_and(|past| past.is_excused);
            keep(
                Promise::LeaseIsHeld,
                is_excused || view.held.contains_key(&hold),
                || format!("{hold} counts on its lease"),
            )?;
        }
        Ok(())
    }

    fn ignores_freeze(&self, token: &str) -> bool {
        let past = self.pasts.get(token);
        past.is_some_and(|past| past.setup.wish.who.ignores_freeze)
    }

    fn judge(&mut self, step: &Step) -> Result<(), Broken> {
        if matches!(step.name, Some("stop" | "force")) {
            let victims = self.pasts.values_mut();
            for victim in victims.filter(|past| past.id == step.word(0)) {
                victim.is_stopped = true;
            }
        }
        self.holds(step)?;
        self.stored(step)?;
        if !self.is_lost {
            self.places(step)?;
            self.tickets(step)?;
        }
        self.grants(step)?;
        self.answer(step)?;
        self.repetition(step)?;
        for (token, past) in &mut self.pasts {
            past.fence = past.fence.filter(|_| step.after.held.contains_key(token));
        }
        Ok(())
    }

    fn limit(&self, token: &str) -> usize {
        let past = self.pasts.get(token);
        past.map_or(1, |past| past.setup.wish.limit.number() as usize)
    }

    /// Returns true if a lock is free for the first in the queue.
    pub fn has_room(&self, data: &Data, now_ms: i64) -> bool {
        let view = StatusCommand::of(data, &self.keys, now_ms);
        let all = view
            .held
            .keys()
            .chain(view.queue.iter().map(|(token, _)| token));
        let room = all.map(|token| self.limit(token)).min();
        let is_wanted = !view.queue.is_empty() && !view.is_frozen;
        is_wanted && room.is_some_and(|room| view.held.len() < room)
    }

    /// Checks the stored data, whoever made the call.
    fn stored(&mut self, step: &Step) -> Result<(), Broken> {
        let Step { seen, now, .. } = step;
        let is_failure = matches!(seen.answer, Value::ServerError(_));
        keep(Promise::AnswersAreRead, !is_failure, || {
            "a script fails".into()
        })?;
        for (key, entry) in seen.after.entries() {
            let key = text(key);
            keep(Promise::NothingIsLeft, entry.expires.is_some(), || {
                format!("{key} never expires")
            })?;
        }
        for (token, entry) in &step.after.meta {
            let is_read = Hold::parse(entry).is_some();
            keep(Promise::AnswersAreRead, is_read, || {
                format!("the hold of {token} is {entry:?}")
            })?;
        }
        if matches!(step.name, Some("check" | "inspect" | "history" | NOTHING)) {
            let state = |data: &Data| data.kind::<Fields>(*now, &self.keys.of("state")).cloned();
            let history = |data: &Data| {
                data.kind::<Entries>(*now, &self.keys.of("history"))
                    .cloned()
            };
            let is_same = state(seen.before) == state(seen.after)
                && history(seen.before) == history(seen.after)
                && step.before.queue.len() >= step.after.queue.len();
            keep(Promise::ReadersChangeNothing, is_same, || {
                "what only reads has written".into()
            })?;
        }
        if step.name == Some("freeze") {
            self.is_frozen_free = step.after.held.is_empty();
        }
        self.is_frozen_free &= step.after.held.is_empty() && !self.is_lost;
        let mut new = step.after.held.keys();
        let new = new.find(|token| !step.was_held(token) && !self.ignores_freeze(token));
        let is_frozen = step.before.is_frozen && step.after.is_frozen;
        // A plain client gets in after another one has removed the key.
        let may = step.name.is_none() && !self.is_frozen_free;
        keep(
            Promise::FreezeHolds,
            new.is_none() || !is_frozen || may,
            || format!("{new:?} gets in"),
        )?;
        self.records(step)
    }

    /// Checks that the history has each hold once, and none of the future.
    fn records(&self, step: &Step) -> Result<(), Broken> {
        let history = |data| Data::kind::<Entries>(data, step.now, &self.keys.of("history"));
        let (before, after) = (history(step.seen.before), history(step.seen.after));
        if before == after || self.is_lost {
            return Ok(());
        }
        let mut all = BTreeSet::new();
        for entry in after.into_iter().flatten() {
            let entry = text(entry);
            let read = record(&entry);
            keep(Promise::AnswersAreRead, read.is_some(), || {
                format!("the history has {entry:?}")
            })?;
            let is_right =
                read.is_some_and(|(id, fence, ended)| ended <= step.now && all.insert((id, fence)));
            keep(Promise::NothingIsLeft, is_right, || {
                format!("the history has {entry:?} twice, or early")
            })?;
        }
        Ok(())
    }

    /// Checks that nobody becomes a holder, or stops being one, except in the documented ways.
    fn holds(&mut self, step: &Step) -> Result<(), Broken> {
        let (before, after) = (&step.before, &step.after);
        self.is_lost |= step.name.is_none() && matches!(step.word(0), "DEL" | "FLUSHALL");
        for (token, &end) in &before.held {
            match after.held.get(token) {
                Some(&until) => self.lasts(token, (end, until), step)?,
                None => self.ends(token, step)?,
            }
        }
        let limit = after.held.keys().map(|token| self.limit(token)).min();
        let is_right = limit.is_none_or(|limit| after.held.len() <= limit);
        keep(Promise::OneHolder, is_right, || {
            format!("{:?} hold it, limit {limit:?}", after.held)
        })?;
        let mut new = after.held.keys().filter(|token| !step.was_held(token));
        let asks = |token: &str| {
            let others = ["renew", "prolong", "check", "release", "guard", "leave"];
            step.mentions(token) && step.name.is_none_or(|name| !others.contains(&name))
        };
        let stray = new.find(|token| !asks(token) && !before.waits(token));
        let is_right = stray.is_none() || self.is_lost;
        keep(Promise::HoldsLast, is_right, || {
            format!("{stray:?} gets a lock again that it lost")
        })
    }

    /// Checks that this call may end a hold.
    fn ends(&mut self, token: &str, step: &Step) -> Result<(), Broken> {
        let is_forced = step.name == Some("force");
        let is_victim = step.word(0).is_empty() || step.is_against("force", token);
        if let Some(past) = self.pasts.get_mut(token) {
            past.is_excused |= is_forced;
        }
        let gives = !matches!(step.name, Some("acquire" | "renew" | "prolong" | "guard"));
        let is_own = gives && step.mentions(token);
        let is_gone = self.is_lost || is_own || is_forced && is_victim;
        keep(Promise::HoldsLast, is_gone, || {
            format!("{token} lost its hold by {:?}", step.name)
        })
    }

    /// Checks that a lease isn't shortened.
    fn lasts(&self, token: &str, (end, until): (i64, i64), step: &Step) -> Result<(), Broken> {
        let (phase, past) = (step.before.phase(token), self.pasts.get(token));
        let is_own = step.mentions(token);
        // A grant may be longer than the request after it, and a hold that is kept for guards is shorter.
        let confirms = matches!(&*phase, "granted" | "");
        let has_guards = matches!(&*phase, "guarded" | "kept");
        let keeps = step.name == Some("release")
            && (has_guards || past.is_none_or(|past| !past.setup.keep_for.is_zero()));
        let ttl = past.map_or(0, |past| past.setup.wish.ttl.as_millis());
        let cuts = has_guards && until - step.now >= i64::try_from(ttl).expect("a TTL") - 1;
        let leaves = step.name == Some("leave");
        let may_shorten = is_own && (leaves || confirms || keeps || cuts) || self.is_lost;
        let is_right = until >= end - 1 || may_shorten;
        let sooner = end - until;
        keep(Promise::HoldsLast, is_right, || {
            format!("the lease of {token} ends {sooner} ms sooner")
        })
    }

    /// Returns the step at which a run last superseded this one.
    fn superseded_at(&self, token: &str) -> u64 {
        if self.ignores_freeze(token) {
            self.superseded_exempt
        } else {
            self.superseded
        }
    }

    /// Records that a run supersedes the older ones, except those that ignore the freeze that keeps it out.
    fn supersede(&mut self, token: &str, step: &Step) {
        self.superseded = self.number;
        if !step.after.is_frozen || self.ignores_freeze(token) {
            self.superseded_exempt = self.number;
        }
    }

    fn supersedes(&self, token: &str) -> bool {
        let past = self.pasts.get(token);
        past.is_some_and(|past| past.setup.wish.queue.supersede != Supersede::Nobody)
    }

    /// Checks that no waiter falls out of the queue.
    fn places(&mut self, step: &Step) -> Result<(), Broken> {
        let actor = step.actor.as_deref().filter(|_| step.name.is_some());
        for (token, _) in &step.before.queue {
            let superseded = self.superseded_at(token);
            let by = actor.and_then(|actor| self.pasts.get(actor)?.queued);
            let Some(past) = self.pasts.get_mut(token) else {
                continue;
            };
            past.last_queued = step.now;
            if step.after.waits(token) || step.after.held.contains_key(token) {
                continue;
            }
            let (queued, is_hit) = (past.queued, past.is_hit);
            let is_superseded = queued.is_some_and(|queued| queued < superseded);
            past.has_left |= step.is("release", token);
            let is_removed = step.is_against("force", token) || step.is_against("stop", token);
            if is_superseded || is_removed || actor == Some(token) {
                continue;
            }
            let is_newer = step.name == Some("acquire")
                && actor.is_some_and(|actor| self.supersedes(actor))
                && (by.is_none() || queued < by);
            keep(Promise::InTurn, is_newer || is_hit, || {
                format!("{token} fell out of the queue by {:?}", step.name)
            })?;
        }
        Ok(())
    }

    /// Checks that tickets grow, and that returning waiters keep their old ones.
    fn tickets(&mut self, step: &Step) -> Result<(), Broken> {
        for (token, ticket) in &step.after.queue {
            let (is_new, supersedes) = (!step.before.waits(token), self.supersedes(token));
            let Some(past) = self.pasts.get_mut(token) else {
                continue;
            };
            let mut others = step.after.queue.iter().filter(|(other, _)| other != token);
            let is_last = past.has_held || others.all(|(_, other)| other < ticket);
            match past.ticket {
                None => keep(Promise::InTurn, is_last, || {
                    format!("{token} has ticket {ticket}, as its first one")
                })?,
                Some(own) if is_new && own != *ticket => {
                    let is_excused = past.has_held || past.has_left || past.is_late;
                    let is_forgotten = step.now - past.last_queued >= 30_000;
                    keep(Promise::InTurn, is_excused || is_forgotten, || {
                        format!("{token} had ticket {own}, now {ticket}")
                    })?;
                }
                Some(_) => continue,
            }
            past.ticket = Some(*ticket);
            // This waiter has its place since the step at which it superseded the older ones.
            let earlier = past.has_superseded.take();
            past.queued = earlier.or(Some(self.number));
            if earlier.is_none() && supersedes {
                self.supersede(token, step);
            }
        }
        Ok(())
    }

    /// Checks the new holders: in the order of the waiters' turns, with growing fencing tokens.
    fn grants(&mut self, step: &Step) -> Result<(), Broken> {
        let after = &step.after;
        let new = after.held.iter().filter(|(token, _)| !step.was_held(token));
        let fence = |token: &String| after.hold(token).map(|hold| hold.fence);
        let mut new: Vec<_> = new
            .map(|(token, end)| (fence(token), token, *end))
            .collect();
        // In the order of their grants.
        new.sort_unstable();
        for (fence, token, end) in new {
            if let Some(fence) = fence {
                keep(
                    Promise::FenceGrows,
                    fence > self.fence || self.is_lost,
                    || format!("{token} got {fence} after {}", self.fence),
                )?;
                self.fence = fence;
            }
            self.may_have_it(token, step)?;
            let supersedes = self.supersedes(token);
            let (number, Some(past)) = (self.number, self.pasts.get_mut(token)) else {
                continue;
            };
            past.fence = fence;
            past.longest = past.longest.max(end - step.now);
            (past.has_held, past.has_released) = (true, false);
            // This run came to an empty queue, and still supersedes the older ones.
            if supersedes && past.queued.is_none() && past.has_superseded.is_none() {
                past.has_superseded = Some(number);
                past.asked.get_or_insert(number);
                self.supersede(token, step);
            }
        }
        for token in after.held.keys() {
            let counts =
                |view: &StatusCommand| view.hold(token).is_some_and(|hold| hold.phase != "granted");
            if let Some(past) = self.pasts.get_mut(token)
                && counts(after)
                && !counts(&step.before)
            {
                past.is_confirmed = true;
                self.order = self.order.max(past.setup.wish.queue.number.unwrap_or(0));
            }
        }
        Ok(())
    }

    /// Checks that no other waiter came before this one, and that no newer run has superseded it.
    fn may_have_it(&self, token: &str, step: &Step) -> Result<(), Broken> {
        let Some(past) = self.pasts.get(token).filter(|_| !self.is_lost) else {
            return Ok(());
        };
        // A late request leads to a lease under which nothing works.
        let is_late = past.is_late && step.is("acquire", token);
        let is_newer = past
            .queued
            .is_none_or(|queued| queued >= self.superseded_at(token));
        keep(
            Promise::SupersedeHolds,
            is_late || past.is_confirmed || is_newer,
            || format!("{token} was superseded"),
        )?;
        let number = past.setup.wish.queue.number;
        let is_next = number.is_none_or(|number| number >= self.order);
        keep(Promise::OrderHolds, is_next, || {
            format!("{token} has {number:?}, after {}", self.order)
        })?;
        let own = past.queued.unwrap_or(self.number);
        let is_frozen = step.before.is_frozen || step.after.is_frozen;
        for (other, _) in &step.before.queue {
            let Some(theirs) = self
                .pasts
                .get(other)
                .filter(|past| past.waits && !past.is_hit)
            else {
                continue;
            };
            let overtakes = is_frozen && self.ignores_freeze(token) && !self.ignores_freeze(other);
            let is_later = theirs.queued.is_none_or(|queued| own < queued);
            let is_right = other == token || overtakes || is_later || !step.after.waits(other);
            keep(Promise::InTurn, is_right, || {
                format!("{token} gets the lock before {other}")
            })?;
        }
        Ok(())
    }

    /// Checks that the answer is true.
    fn answer(&mut self, step: &Step) -> Result<(), Broken> {
        let Some(token) = step.actor.clone() else {
            return Ok(());
        };
        let answer = step.seen.answer.clone();
        let read = |state: Result<LeaseState, Error>| {
            state.map_err(|odd| Broken::new(Promise::AnswersAreRead, format!("{odd:?}")))
        };
        match step.name {
            Some("acquire") => self.acquired(&token, step),
            Some("renew") => self.renewed(&token, &read(renewed(answer))?, step),
            Some("check") => self.renewed(&token, &read(checked(answer))?, step),
            Some("guard") => self.guards(&token, &read(extended(answer))?, step),
            Some("prolong") => {
                let ttl = ms(step.word(1).parse().expect("a TTL"));
                match prolonged(&answer, ttl).transpose() {
                    Some(state) => self.renewed(&token, &read(state)?, step),
                    None => Ok(()),
                }
            }
            Some("release") => self.released(&token, step),
            Some("leave") => {
                if let Some(past) = self.pasts.get_mut(&token) {
                    past.has_left = true;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn acquired(&mut self, token: &str, step: &Step) -> Result<(), Broken> {
        let answer = acquired(step.seen.answer.clone());
        let answer =
            answer.map_err(|odd| Broken::new(Promise::AnswersAreRead, format!("{odd:?}")))?;
        let is_held = step.after.held.contains_key(token);
        let Some(past) = self.pasts.get_mut(token) else {
            return Ok(());
        };
        if step.queues() {
            past.asked.get_or_insert(self.number);
        }
        if self.is_lost {
            let is_wrong = matches!(answer, Acquired::Held { .. }) && !is_held;
            return keep(Promise::AnswersAreTrue, !is_wrong, || {
                format!("{token} doesn't hold it, and is answered so")
            });
        }
        let comes_to_nothing = !is_held && !step.after.waits(token);
        keep(
            Promise::WithdrawalsLast,
            !past.has_withdrawn || comes_to_nothing,
            || format!("the late request of {token} was answered {answer:?}"),
        )?;
        self.knows_success(token, &answer, step)?;
        match &answer {
            Acquired::Held { fence, .. } => {
                let fence = i64::try_from(*fence).expect("a fence");
                keep(Promise::AnswersAreTrue, is_held, || {
                    format!("{token} doesn't hold it")
                })?;
                let past = self.pasts.get_mut(token).expect("a run");
                let is_same = past.fence.is_none_or(|own| own == fence);
                keep(Promise::FenceGrows, is_same, || {
                    format!("{token} has {:?}, not {fence}", past.fence)
                })?;
                past.fence = Some(fence);
                self.fence = self.fence.max(fence);
            }
            Acquired::Busy(busy) => self.busy(token, busy, step)?,
            Acquired::RecentSuccess(_) => {}
            _ => {
                let has_reason = self.has_reason(token, &answer, step);
                keep(Promise::GivesUpRightly, has_reason, || {
                    format!("{token} gives up by {answer:?}")
                })?;
            }
        }
        Ok(())
    }

    fn busy(&self, token: &str, busy: &Busy, step: &Step) -> Result<(), Broken> {
        let past = &self.pasts[token];
        let is_held = step.after.held.contains_key(token);
        keep(Promise::AnswersAreTrue, !is_held || past.is_late, || {
            format!("{token} holds it, and isn't told")
        })?;
        let is_admitted = self.is_admitted(token, step);
        keep(Promise::AdmittedAtOnce, !is_admitted, || {
            format!("{token} has to wait")
        })?;
        let (ticket, ahead) = (past.ticket.map(i64::unsigned_abs), self.ahead(token, step));
        let is_true = busy.ticket == ticket && ahead == Some(busy.ahead as usize);
        let is_right = !step.queues() || is_true;
        keep(Promise::InTurn, is_right, || {
            format!("{token} has {ticket:?} behind {ahead:?}, not {busy:?}")
        })
    }

    /// Returns the number of waiters ahead of one; for a waiter that ignores the freeze, only those that ignore it too.
    fn ahead(&self, token: &str, step: &Step) -> Option<usize> {
        let overtakes = step.after.is_frozen && self.ignores_freeze(token);
        let queue = step.after.queue.iter().map(|(waiter, _)| waiter);
        let mut queue = queue.filter(|waiter| !overtakes || self.ignores_freeze(waiter));
        queue.position(|waiter| waiter == token)
    }

    /// Returns true if nobody waits, and one more holder is possible.
    fn is_admitted(&self, token: &str, step: &Step) -> bool {
        let before = &step.before;
        // The slot of a holder without an entry is unknown.
        let limit = |token: &String| {
            let is_read = before.meta.contains_key(token);
            if is_read { self.limit(token) } else { 0 }
        };
        let room = before
            .held
            .keys()
            .map(limit)
            .fold(self.limit(token), usize::min);
        let is_first = if before.is_frozen {
            let is_kept_out = |(other, _): &(String, i64)| !self.ignores_freeze(other);
            let overtakes = self.ignores_freeze(token) && !self.supersedes(token);
            step.after.is_frozen && overtakes && before.queue.iter().all(is_kept_out)
        } else {
            before.queue.is_empty()
        };
        is_first && before.held.len() < room
    }

    /// Returns true if a run with this answer must give up.
    fn has_reason(&self, token: &str, answer: &Acquired, step: &Step) -> bool {
        let past = &self.pasts[token];
        let queue = past.setup.wish.queue;
        match answer {
            Acquired::Superseded(_) => {
                let is_newer = |other: &Past| {
                    let counts = other.has_held || other.queued.is_some() && !other.has_left;
                    counts && other.setup.wish.queue.number > queue.number
                };
                let superseded = self.superseded_at(token);
                queue.number.is_some() && self.pasts.values().any(is_newer)
                    || past.asked.is_some_and(|asked| asked < superseded)
                    || past.is_late
            }
            Acquired::Removed(_) => {
                let ends_others = |(name, other): (&String, &Past)| {
                    let ends = other.setup.wish.queue.supersede == Supersede::HoldersToo;
                    name != token && ends && (other.queued.is_some() || other.has_held)
                };
                let is_stopped = past.is_stopped || self.pasts.iter().any(ends_others);
                past.is_excused || past.has_withdrawn || is_stopped
            }
            Acquired::Crowded(waiting) => {
                let is_full = queue.most_waiting.is_some_and(|most| *waiting >= most);
                is_full && step.before.queue.len() >= *waiting as usize
            }
            _ => true,
        }
    }

    /// Checks that a run is skipped after a sufficient success, and only then.
    fn knows_success(&self, token: &str, answer: &Acquired, step: &Step) -> Result<(), Broken> {
        let wish = &self.pasts[token].setup.wish;
        let key = wish.once_key.as_ref();
        let success = match key {
            Some(key) => self.successes.get(key).copied(),
            None => self.success,
        };
        let ago = success.map(|success| ms(step.now - success));
        let is_enough = ago.is_some_and(|ago| key.is_some() || ago < wish.once_per);
        match answer {
            Acquired::Held { .. } => {
                keep(Promise::OnceHolds, !is_enough, || {
                    format!("{token} runs, {ago:?} after a success")
                })?;
            }
            Acquired::RecentSuccess(age) => {
                let is_true = is_enough && ago == Some(*age);
                keep(Promise::OnceHolds, is_true, || {
                    format!("{token} is skipped {age:?} after a success, in fact {ago:?}")
                })?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that a guard works only under a hold whose run goes on, for no longer, and until it has left.
    fn guards(&self, guard: &str, state: &LeaseState, step: &Step) -> Result<(), Broken> {
        let past = &self.pasts[guard];
        let LeaseState::Held { left, .. } = state else {
            return Ok(());
        };
        let end = step
            .before
            .held
            .get(&past.hold)
            .map(|end| ms(end - step.now));
        let goes_on =
            end.is_some_and(|end| *left <= end) && step.before.phase(&past.hold) != "kept";
        keep(Promise::GuardsHold, goes_on || self.is_lost, || {
            format!("{guard} is admitted for {left:?}, and its hold lasts {end:?}")
        })?;
        keep(Promise::GuardsHold, !past.has_left || self.is_lost, || {
            format!("{guard} is admitted, and has left")
        })
    }

    fn renewed(&mut self, token: &str, state: &LeaseState, step: &Step) -> Result<(), Broken> {
        let past = self.pasts.get_mut(token).expect("a run");
        if step.name == Some("renew") {
            past.longest = past.longest.max(step.word(1).parse().expect("a TTL"));
        }
        let was_held = step.was_held(token);
        match state {
            LeaseState::Held { left, .. } => {
                keep(Promise::HoldsLast, was_held, || {
                    format!("{token} renews a lock that it lost")
                })?;
                let is_right = *left <= ms(past.longest) || self.is_lost;
                keep(Promise::AnswersAreTrue, is_right, || {
                    format!("{token} got {left:?}, for {} ms", past.longest)
                })?;
            }
            // The run has ended, and the lock is kept for its guards.
            LeaseState::Released if step.before.phase(token) == "kept" => {}
            _ => keep(Promise::AnswersAreTrue, !was_held, || {
                format!("{token} holds it, and is answered {state:?}")
            })?,
        }
        Ok(())
    }

    fn released(&mut self, token: &str, step: &Step) -> Result<(), Broken> {
        let (answer, outcome) = (code(step.seen.answer), step.word(2));
        let (was_held, is_held) = (step.was_held(token), step.after.held.contains_key(token));
        let phase = step
            .before
            .hold(token)
            .filter(|_| was_held)
            .map(|hold| hold.phase);
        let past = self.pasts.get_mut(token).expect("a run");
        past.has_withdrawn |= outcome.is_empty();
        past.is_excused |= step.word(1) == "1";
        if self.is_lost {
            return Ok(());
        }
        if matches!(answer, Some(0 | 2)) {
            let history =
                Data::kind::<Entries>(step.seen.before, step.now, &self.keys.of("history"));
            // The history may have dropped the hold of a delayed release.
            let is_dropped = history.is_some_and(|history| {
                let is_own = |entry: &Bytes| text(entry).starts_with(&past.id);
                let kept = text(&step.seen.call.args[HISTORY_SIZE]).parse();
                kept.is_ok_and(|kept: usize| history.len() >= kept) && !history.iter().any(is_own)
            });
            let may_deny = answer == Some(2) || !past.has_released || is_dropped;
            let is_true = !was_held && may_deny;
            return keep(Promise::AnswersAreTrue, is_true, || {
                format!("{token} held or released it, and is answered {answer:?}")
            });
        }
        keep(
            Promise::AnswersAreTrue,
            is_held == (answer == Some(3)),
            || format!("{token} is answered {answer:?}"),
        )?;
        past.has_released |= phase.is_some() && outcome != "lost";
        // A kept lock was released before.
        if outcome == "status:0" && phase.is_some_and(|phase| phase != "kept") {
            self.success = Some(step.now);
            if let Some(key) = &past.setup.wish.once_key {
                self.successes.insert(key.clone(), step.now);
            }
        }
        Ok(())
    }

    /// Checks that a repeated request has the same outcome, in the numbers of the answers.
    fn repetition(&mut self, step: &Step) -> Result<(), Broken> {
        let (call, answer) = (step.seen.call, step.seen.answer);
        if step.name == Some(NOTHING) {
            return Ok(());
        }
        let past = step.actor.as_ref().map(|actor| &self.pasts[actor]);
        let end = past.and_then(|past| step.after.held.get(&past.hold));
        let words = step.words.clone();
        let last = self
            .last
            .replace((call.script.hash, words, answer.clone(), end.copied()));
        let is_same = |(hash, words, ..): &(_, Vec<String>, _, _)| {
            *hash == call.script.hash && *words == step.words
        };
        let Some((_, _, first, end)) = last.filter(is_same).filter(|_| step.name.is_some()) else {
            return Ok(());
        };
        let has_expired = end.is_some_and(|end| end <= step.now);
        let is_kept = past.is_some_and(|past| step.before.phase(&past.hold) == "kept");
        let has_released = past.is_some_and(|past| past.has_released);
        let (first, second) = (code(&first), code(answer));
        let is_same = match (step.name, first, second) {
            _ if first == second || self.is_lost => true,
            (Some("acquire"), Some(0), Some(1)) | (Some("acquire"), Some(4), Some(2)) => true,
            // After the success is too old, or the waiters are dead, nothing keeps it from the lock.
            (Some("acquire"), Some(3 | 5), second) => second != Some(4),
            (Some("release"), Some(3), second) => second != Some(0),
            (Some("release"), Some(1 | 2 | 4 | 5), Some(0)) => !has_released,
            (Some("release"), Some(1 | 2 | 4 | 5), second) => second != Some(3),
            (Some("renew" | "check" | "guard"), Some(2), Some(0)) => is_kept,
            (Some("renew" | "check" | "guard"), Some(1), Some(0)) => has_expired,
            (Some("acquire" | "release" | "renew" | "check" | "guard"), ..) => false,
            _ => true,
        };
        keep(Promise::RepetitionsAgree, is_same, || {
            format!("{first:?}, and then {second:?}")
        })
    }
}

impl Witness for Judge {
    fn sees(&mut self, seen: &Seen) -> Result<(), Broken> {
        self.number += 1;
        let now = seen.moment.now_ms();
        let script = name_of(seen.call.script);
        let name = match script {
            Some("take" | "free" | "prolong") if *seen.answer == Value::Int(0) => Some(NOTHING),
            Some("take") => Some("acquire"),
            Some("free") => Some("release"),
            other => other,
        };
        let mut words: Vec<String> = seen.call.args.iter().map(|word| text(word)).collect();
        let mut last = words.iter().rev();
        let actor = last.find(|word| self.pasts.contains_key(*word)).cloned();
        if script.is_some_and(|name| !["prolong", "keep"].contains(&name)) {
            words.drain(..words.len().min(HEAD));
        }
        let step = Step {
            seen,
            name,
            actor,
            now,
            before: StatusCommand::of(seen.before, &self.keys, now),
            after: StatusCommand::of(seen.after, &self.keys, now),
            words,
        };
        let judged = self.judge(&step);
        judged.map_err(|broken| Broken {
            what: format!("{}: {}", broken.what, seen.told()),
            ..broken
        })
    }
}

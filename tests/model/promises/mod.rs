//! The promises (P1 to P7 in `docs/guarantees.md`), and whether a state keeps them.

pub mod calls;

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use super::client::Client;
use super::redis::Data;
use super::redis::data::{Bytes, Fields, Members};
use super::world::{BOOT, Plain, Rules};
use crate::protocol::Supersede;
use crate::protocol::name::Keys;
use crate::protocol::scripts::{ACQUIRE, FREE, FREEZE, RELEASE, THAW};
use crate::server::call::Call;

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// P1: no two commands run under leases that haven't ended.
    OneLease,
    /// P1 without a fault that excuses it: no two commands run.
    OneCommand,
    /// P1: a command is dead when its lease ends, unless its redlock is stopped, or its keeper was killed.
    EndsWithLease,
    /// P3: of two started commands, the one with the later grant has the larger fencing token.
    FenceGrows,
    /// P4: nobody gets a frozen lock.
    FreezeHolds,
    /// P4: a superseded waiter doesn't run.
    SupersedeHolds,
    /// P4: no command starts after one with a larger sequence number.
    OrderHolds,
    /// P1: commands that run together have different slots.
    OwnSlot,
    /// P4: after a success, no run starts whose `--once-per` covers it.
    OnceHolds,
    /// P5: a free lock with waiters is granted within this time.
    Served(Duration),
    // The other promises are judged call by call.
    /// No script fails, and each answer and entry can be parsed.
    AnswersAreRead,
    /// P1, P6: an answer is true.
    AnswersAreTrue,
    /// P1: the server never gives the lock to two holders that exclude each other.
    OneHolder,
    /// P1: while a command relies on its lease, the server knows the hold.
    LeaseIsHeld,
    /// P1: a guard works only while its run does, and never again after it has left.
    GuardsHold,
    /// P4: no run gives up without a reason.
    GivesUpRightly,
    /// P4: a withdrawn request has no effect, even if it arrives late.
    WithdrawalsLast,
    /// P5: a run gets the lock at once if nobody waits or keeps it out.
    AdmittedAtOnce,
    /// P6: a hold ends only in the documented ways, is never shortened, and doesn't return.
    HoldsLast,
    /// P7: a waiter keeps its place, and gets the lock in its turn.
    InTurn,
    /// A repeated request has the same outcome.
    RepetitionsAgree,
    /// A client that only reads changes nothing.
    ReadersChangeNothing,
    /// Each key expires, and the history has each hold once.
    NothingIsLeft,
}

/// A promise that a step has broken.
#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: Promise,
    pub what: String,
    /// True if the command that must not run any more has the smaller fencing token, so that a resource rejects it.
    pub is_fenced: bool,
}

impl Broken {
    pub fn new(promise: Promise, what: impl Into<String>) -> Self {
        Self {
            promise,
            what: what.into(),
            is_fenced: false,
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.what)
    }
}

/// A fencing token, and the only run that got the lock with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Granted {
    pub fence: u64,
    to: Option<usize>,
}

/// The past, as far as promises depend on it.
#[derive(Clone, Debug, Default, Hash)]
pub struct Facts {
    pub lost_data: bool,
    /// All grants, in order.
    pub granted: Vec<Granted>,
    /// Runs whose commands have started, in order.
    started: Vec<usize>,
    /// Fencing tokens of these runs.
    fences: Vec<u64>,
    superseded: Vec<bool>,
    /// Clients that have superseded others: each does so once, when it first enters the queue.
    has_superseded: Vec<bool>,
    /// Time of the last success of a run that held the lock, by the server's clock.
    succeeded_at: Option<i64>,
    /// Largest sequence number of a started command.
    newest: Option<u64>,
    frozen_until: Option<i64>,
    /// Runs whose locks were taken by a person, or released by their own jobs.
    pub excused: Vec<bool>,
    /// Time since which no command runs although somebody waits.
    idle_since: Option<Duration>,
}

/// Number of grants that are remembered when runs come again and again.
const REMEMBERED: usize = 50;

impl Facts {
    pub fn new(clients: usize) -> Self {
        Self {
            superseded: vec![false; clients],
            has_superseded: vec![false; clients],
            excused: vec![false; clients],
            ..Self::default()
        }
    }

    /// Returns true if the command of this run has ever started.
    pub fn has_started(&self, c: usize) -> bool {
        self.started.contains(&c)
    }

    /// Replaces an ended run by another one.
    pub fn begins_again(&mut self, c: usize) {
        self.started.retain(|started| *started != c);
        self.superseded[c] = false;
        self.has_superseded[c] = false;
        self.excused[c] = false;
        // Forgets old grants, which no promise depends on any more.
        let old = self.granted.len().saturating_sub(REMEMBERED);
        self.granted.drain(..old);
        for granted in &mut self.granted {
            granted.to = granted.to.filter(|to| *to != c);
        }
        let granted = &self.granted;
        self.fences
            .retain(|fence| granted.iter().any(|granted| granted.fence == *fence));
    }

    /// Records the execution of a script.
    pub fn executed(
        &mut self,
        call: &Call,
        rules: &Rules,
        clients: &[Rc<Client>],
        (before, after): (&Data, &Data),
        now_ms: i64,
    ) -> Result<(), Broken> {
        let keys = &rules.lock.keys;
        let fence = |data| field(data, &keys.of("state"), b"fence");
        // The requested value, not the server's record of it.
        let argument = |n: usize| call.args.get(n).map_or(&b""[..], Vec::as_slice);
        let held = after.kind::<Bytes>(now_ms, &keys.lock);
        let has_it = |client: &Rc<Client>| {
            held.is_some_and(|held| held == client.setup.claim.token().as_bytes())
        };
        for promise in &rules.promises {
            match promise {
                Promise::FenceGrows => {
                    let granted = fence(after);
                    if granted != fence(before)
                        && let Ok(fence) = granted.parse()
                    {
                        let to = clients.iter().position(has_it);
                        self.granted.push(Granted { fence, to });
                    }
                }
                Promise::FreezeHolds => {
                    let mut exempt = clients
                        .iter()
                        .filter(|client| client.setup.wish.who.ignores_freeze);
                    if self.is_frozen(now_ms)
                        && call.script.hash != THAW.hash
                        && fence(before) != fence(after)
                        && !exempt.any(has_it)
                    {
                        return Err(Broken::new(*promise, "a grant while the lock is frozen"));
                    }
                }
                Promise::SupersedeHolds => {
                    let asks = |client: &&Rc<Client>| {
                        client.setup.wish.queue.supersede != Supersede::Nobody
                            && argument(3) == client.setup.claim.token().as_bytes()
                    };
                    let by = clients.iter().find(asks);
                    let Some(by) = by.filter(|_| call.script.hash == ACQUIRE.hash) else {
                        continue;
                    };
                    let waits = |data: &Data, client: &Client| is_queued(data, keys, client);
                    if waits(after, by) && !self.has_superseded[by.number] {
                        self.has_superseded[by.number] = true;
                        // A run that a freeze keeps out supersedes only runs that the freeze keeps out too.
                        let is_kept_out =
                            self.is_frozen(now_ms) && !by.setup.wish.who.ignores_freeze;
                        for client in clients {
                            let is_spared = is_kept_out && client.setup.wish.who.ignores_freeze;
                            self.superseded[client.number] |= !is_spared && waits(before, client);
                        }
                    }
                }
                Promise::OnceHolds => {
                    let releases = [FREE.hash, RELEASE.hash].contains(&call.script.hash);
                    let succeeds = releases && argument(5) == b"status:0";
                    let held = before.kind::<Bytes>(now_ms, &keys.lock);
                    if succeeds && held.is_some_and(|held| held == argument(3)) {
                        self.succeeded_at = Some(now_ms);
                    }
                }
                _ => {}
            }
        }
        if call.script.hash == FREEZE.hash {
            let lasts: i64 = String::from_utf8_lossy(argument(3)).parse().unwrap_or(0);
            self.frozen_until = Some(now_ms + lasts);
        } else if call.script.hash == THAW.hash {
            self.frozen_until = None;
        }
        Ok(())
    }

    /// Records that a late request was executed. A renewal after the end of its run holds the lock for another TTL, so the idle
    /// time starts again.
    pub fn a_late_request_was_done(&mut self) {
        self.idle_since = None;
    }

    /// Returns the number of grants before the one with this fencing token.
    pub fn place(&self, fence: u64) -> Option<usize> {
        self.granted
            .iter()
            .rposition(|granted| granted.fence == fence)
    }

    /// Returns true if nothing may be granted, by the server's clock.
    pub fn is_frozen(&self, now_ms: i64) -> bool {
        self.frozen_until.is_some_and(|until| until > now_ms)
    }

    /// Hashes everything that the promises still depend on. New fencing tokens are at least `next_fence`, unless they are
    /// wrong.
    pub fn hash_relevant(
        &self,
        hasher: &mut impl Hasher,
        clients: &[Rc<Client>],
        next_fence: u64,
        now_ms: i64,
        promises: &[Promise],
    ) {
        let is_over = |c: usize| clients[c].is_over();
        let lives = |granted: &&Granted| !granted.to.is_some_and(is_over);
        if promises.contains(&Promise::FenceGrows) {
            let is_used = |fence: &u64| self.fences.contains(fence);
            // Tokens that no run can start with any more.
            let past = || {
                let past = self.granted.iter().enumerate();
                past.filter(|(_, granted)| !lives(granted) && is_used(&granted.fence))
            };
            let live = self.granted.iter().enumerate();
            for (place, granted) in live.filter(|(_, granted)| lives(granted)) {
                let contradicts = |(past, other): (usize, &Granted)| {
                    (past < place) != (other.fence < granted.fence)
                };
                let is_out_of_order = past().any(contradicts);
                (granted, is_used(&granted.fence), is_out_of_order).hash(hasher);
            }
            let largest = past().map(|(_, granted)| granted.fence).max();
            largest.unwrap_or(0).max(next_fence - 1).hash(hasher);
            for fence in &self.fences {
                self.place(*fence).is_none().then_some(fence).hash(hasher);
            }
        }
        let frozen_until = self.frozen_until.filter(|until| *until > now_ms);
        (self.lost_data, self.succeeded_at, frozen_until).hash(hasher);
        self.newest.hash(hasher);
        self.idle_since.hash(hasher);
        let is_guarded = |c: usize| {
            let mut guards = clients.iter().filter(|client| client.number != c);
            guards.any(|client| client.unit() == c)
        };
        for c in (0..clients.len()).filter(|c| !is_over(*c) || is_guarded(*c)) {
            self.started.contains(&c).hash(hasher);
            (self.superseded[c], self.has_superseded[c]).hash(hasher);
        }
    }

    /// Judges a state, at a time of the clients' clock and one of the server's.
    pub fn look(
        &mut self,
        clients: &[Rc<Client>],
        plain: Plain,
        someone_waits: bool,
        (now, now_ms): (Duration, i64),
        promises: &[Promise],
    ) -> Result<(), Broken> {
        let binds = |promise: Promise| promises.contains(&promise);
        for client in clients {
            let c = client.number;
            let is_run = client.unit() == c;
            if is_run && client.has_command && !self.started.contains(&c) {
                let own = self.place(client.fence);
                // If several runs are granted at once, only the last is known.
                let is_out_of_order = |&other: &u64| {
                    let places = self.place(other).zip(own);
                    places.is_some_and(|(of_other, own)| (of_other < own) != (other < client.fence))
                };
                let to = own.and_then(|own| self.granted[own].to);
                let is_wrong = to.is_some_and(|to| to != c)
                    || self.fences.contains(&client.fence)
                    || self.fences.iter().any(is_out_of_order);
                let since = self.succeeded_at.map(|at| u64::try_from(now_ms - at));
                let (once, key) = (client.setup.wish.once_per, &client.setup.wish.once_key);
                // All runs with a key have the same key.
                let is_covered = since.is_some_and(|since| {
                    key.is_some() || since.is_ok_and(|ms| Duration::from_millis(ms) < once)
                });
                let number = client.setup.wish.queue.number;
                let is_older = number.is_some() && number < self.newest;
                let all = [
                    (Promise::FenceGrows, is_wrong),
                    (Promise::SupersedeHolds, self.superseded[c]),
                    (Promise::OnceHolds, is_covered),
                    (Promise::OrderHolds, is_older),
                ];
                let mut all = all.into_iter();
                if let Some((promise, _)) = all.find(|(promise, breaks)| *breaks && binds(*promise))
                {
                    let (fence, fences) = (client.fence, &self.fences);
                    let what = format!("run {c} starts with the fence {fence}, after {fences:?}");
                    return Err(Broken::new(promise, what));
                }
                self.newest = self.newest.max(number);
                self.started.push(c);
                self.fences.push(client.fence);
            }
            let ends = client.dead_by();
            let is_late = ends.is_some_and(|end| BOOT + now > end.since_boot());
            if client.has_command && is_late && client.is_active() && binds(Promise::EndsWithLease)
            {
                return Err(Broken::new(
                    Promise::EndsWithLease,
                    format!("the command of run {c} outlives its lease"),
                ));
            }
        }
        self.look_for_two(clients, plain, now, promises)?;
        let is_frozen = self.is_frozen(now_ms);
        self.look_whether_served(clients, plain, someone_waits && !is_frozen, now, promises)
    }

    fn look_for_two(
        &self,
        clients: &[Rc<Client>],
        plain: Plain,
        now: Duration,
        promises: &[Promise],
    ) -> Result<(), Broken> {
        for promise in promises {
            let counts = |client: &&Rc<Client>| match promise {
                Promise::OneLease | Promise::OwnSlot => client
                    .dead_by()
                    .is_some_and(|end| BOOT + now < end.since_boot()),
                Promise::OneCommand => true,
                _ => false,
            };
            let running: Vec<&Rc<Client>> = clients
                .iter()
                .filter(|client| client.has_command && !self.excused[client.unit()])
                .filter(counts)
                .collect();
            let own = running
                .iter()
                .filter(|client| client.unit() == client.number);
            let slots: Vec<u32> = own.map(|client| client.slot).collect();
            let twice = (1..slots.len()).find(|&n| slots[n] > 0 && slots[..n].contains(&slots[n]));
            if let (Promise::OwnSlot, Some(n)) = (promise, twice) {
                let what = format!("two commands in slot {}", slots[n]);
                return Err(Broken::new(*promise, what));
            }
            if *promise == Promise::OwnSlot {
                continue;
            }
            let limits = running
                .iter()
                .map(|client| client.setup.wish.limit.number());
            // Guarded work elsewhere belongs to the hold.
            let units: BTreeSet<usize> = running.iter().map(|client| client.unit()).collect();
            let conflict = limits
                .min()
                .is_some_and(|limit| units.len() > limit as usize);
            if conflict {
                let names: Vec<String> = running.iter().map(|c| c.number.to_string()).collect();
                // The run that started last has the largest fencing token.
                let last = self.started.last().and_then(|c| clients.get(*c));
                let is_fenced = last.is_some_and(|last| {
                    running
                        .iter()
                        .all(|other| other.number == last.number || other.fence < last.fence)
                });
                let what = format!("the commands of the runs {} at once", names.join(" and "));
                return Err(Broken {
                    is_fenced,
                    ..Broken::new(*promise, what)
                });
            }
            if let (Plain::Holds(until), false) = (plain, running.is_empty())
                && now < Duration::from_millis(until)
            {
                return Err(Broken::new(
                    *promise,
                    format!(
                        "the command of run {} and the plain client at once",
                        running[0].number
                    ),
                ));
            }
        }
        Ok(())
    }

    fn look_whether_served(
        &mut self,
        clients: &[Rc<Client>],
        plain: Plain,
        someone_waits: bool,
        now: Duration,
        promises: &[Promise],
    ) -> Result<(), Broken> {
        let bound = promises.iter().find_map(|promise| match promise {
            Promise::Served(bound) => Some(*bound),
            _ => None,
        });
        let Some(bound) = bound else {
            return Ok(());
        };
        let is_used =
            clients.iter().any(|client| client.has_command) || matches!(plain, Plain::Holds(_));
        if is_used || !someone_waits {
            self.idle_since = None;
            return Ok(());
        }
        let since = *self.idle_since.get_or_insert(now);
        if now.saturating_sub(since) > bound {
            return Err(Broken::new(
                Promise::Served(bound),
                format!("nobody has the lock since {since:?}, and somebody waits"),
            ));
        }
        Ok(())
    }
}

/// Returns true if a client has a place in the queue, whenever that expires.
pub fn is_queued(data: &Data, keys: &Keys, client: &Client) -> bool {
    let token = client.setup.claim.token().as_bytes();
    let queue = data.kind::<Members>(0, &keys.of("queue"));
    queue.is_some_and(|queue| queue.iter().any(|(_, own)| own == token))
}

/// Returns a field of a hash; empty if there is none. Reads as of time 0, so that no key counts as expired.
pub fn field(data: &Data, key: &[u8], field: &[u8]) -> String {
    let value = data
        .kind::<Fields>(0, key)
        .and_then(|fields| fields.get(field));
    value.map_or(String::new(), |value| {
        String::from_utf8_lossy(value).into_owned()
    })
}

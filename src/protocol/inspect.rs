//! Inspection of locks, which changes nothing.

use std::collections::BTreeSet;
use std::slice;
use std::time::Duration;

use redis::{FromRedisValue, Value};

use super::answer::Busy;
use super::client::Client;
use super::guard::GuardEntry;
use super::history::usual_of;
use super::locks::Locks;
use super::name::{Name, index_key};
use super::scripts::{
    self, INSPECT, array, cursor, entry, in_parts, lossy_text, milliseconds, number, some_text,
    unexpected_reply,
};
use super::who::{Frozen, Holder, Limit, Waiter, Who};
use crate::server::connection::Connection;
use crate::server::error::{Error, quoted};

/// Snapshot of a lock.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub name: Name,
    /// The last fence that was granted.
    pub fence: Option<u64>,
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    pub key: Key,
    /// The freeze, during which no new holder is admitted.
    pub frozen: Option<Frozen>,
    /// The waiters, in the order of their turns.
    pub waiters: Vec<Waiting>,
    /// Usual length of a hold, if the caller asked for it and the history has enough.
    pub usual: Option<Duration>,
    pub record: Record,
    /// Cursors of the lists of holders and waiters, if these are only their beginnings.
    pub rest: Option<ListCursors>,
}

/// The content of a lock's key.
#[derive(Clone, Debug)]
pub enum Key {
    /// The lock is free.
    Free,
    /// The holders, ordered by the end of their leases; at least one.
    Held(Vec<Hold>),
    /// A key of this type, so not a lock.
    NotALock(String),
}

/// A hold of a lock.
#[derive(Clone, Debug)]
pub struct Hold {
    /// Public id: the start of its token's SHA-1, which doesn't reveal the token.
    pub id: String,
    /// Rest of the lease; `None` if the key has no expiry.
    pub left: Option<Duration>,
    /// Entry of the holder; `None` for another client's.
    pub holder: Option<Holder>,
    /// Its live guards, the oldest first.
    pub guards: Vec<GuardEntry>,
    /// The client that has asked it to end.
    pub stopping: Option<Who>,
}

/// Summary of a lock's runs, including those that the history has forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Time of the last success, in milliseconds since 1970 by the server's clock.
    pub succeeded_ms: Option<u64>,
    /// Number of holds (for `skipped`, of runs) that ended in each way, in the order of [`RESULTS`], since
    /// the server last forgot the name.
    pub ended: [u64; RESULTS.len()],
    /// Start and end of the last freezes, in milliseconds since 1970 by the server's clock; an end may be in
    /// the future.
    pub freezes: Vec<(u64, u64)>,
}

/// Ends of holds that are counted; `skipped` is a run that ended without the lock.
pub const RESULTS: [&str; 7] = [
    "success", "failure", "lost", "forced", "stopped", "released", "skipped",
];

/// A place in the queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub id: String,
    pub waiter: Waiter,
}

impl Hold {
    /// Returns true if the hold was granted, but its run hasn't confirmed the grant.
    pub fn is_unconfirmed(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.granted)
    }

    /// Returns the holder, unless the lock is being handed over to it or kept after its run.
    pub fn running(&self) -> Option<&Holder> {
        let holder = self.holder.as_ref();
        holder.filter(|holder| holder.kept.is_none() && !holder.granted)
    }

    /// Returns true if no process renews its lease: a script has acquired the lock.
    pub fn is_of_script(&self) -> bool {
        let holder = self.running();
        holder.is_some_and(|holder| holder.who.instance.is_none())
    }

    /// Returns how long ago its run got or renewed the lease; `None` if that isn't known, because its job has
    /// extended the lease.
    pub fn renewed_ago(&self) -> Option<Duration> {
        let who = &self.running()?.who;
        let ttl = who.ttl.filter(|_| who.instance.is_some())?;
        Duration::from_millis(ttl).checked_sub(self.left?)
    }

    /// Returns by how much the renewal of its lease is overdue, if it is. A run renews after each third of
    /// the TTL, so a renewal older than half of it shows a problem.
    pub fn overdue(&self) -> Option<Duration> {
        let ago = self.renewed_ago()?;
        let ttl = self.holder.as_ref()?.who.ttl?;
        let is_late = ago > Duration::from_millis(ttl / 2);
        is_late.then(|| ago.saturating_sub(Duration::from_millis(ttl / 3)))
    }
}

impl Inspected {
    /// Returns all holds, including unconfirmed grants.
    pub fn holds(&self) -> &[Hold] {
        match &self.key {
            Key::Held(holds) => holds,
            Key::Free | Key::NotALock(_) => &[],
        }
    }

    /// Returns the confirmed holds: their runs know of them, and so do the replicas that must confirm them.
    pub fn holders(&self) -> impl Iterator<Item = &Hold> {
        self.holds().iter().filter(|hold| !hold.is_unconfirmed())
    }

    /// Returns the holds with unconfirmed grants, and their clients.
    pub fn grants(&self) -> impl Iterator<Item = (&Hold, &Holder)> {
        let unconfirmed = self.holds().iter().filter(|hold| hold.is_unconfirmed());
        unconfirmed.filter_map(|hold| Some((hold, hold.holder.as_ref()?)))
    }

    /// Returns how many holders it admits: the smallest of their limits. `None` if it is free.
    pub fn limit(&self) -> Option<Limit> {
        let limit = |hold: &Hold| {
            let holder = hold.holder.as_ref();
            holder.map_or(Limit::EXCLUSIVE, |holder| holder.limit)
        };
        self.holds().iter().map(limit).min()
    }

    /// Returns the lock as a waiter sees it, without its freeze; `None` if it has no holder.
    pub fn busy(&self) -> Option<Busy> {
        let first = self.holds().first()?;
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        Some(Busy {
            now_ms: self.now_ms,
            ahead: count(self.waiters.len()),
            left: first.left,
            holders: count(self.holds().len()),
            id: first.id.clone(),
            holder: first.holder.clone(),
            stopping: first.stopping.clone(),
            ..Busy::default()
        })
    }

    /// Returns the time since a moment of the server's clock.
    pub fn since(&self, ms: u64) -> Duration {
        Duration::from_millis(self.now_ms.saturating_sub(ms))
    }

    /// Returns how long the oldest known holder has had the lock; `None` without one.
    pub fn held_for(&self) -> Option<Duration> {
        let holders = self.holders().filter_map(|hold| hold.holder.as_ref());
        let since = holders.map(|holder| holder.since_ms).min();
        since.map(|ms| self.since(ms))
    }

    /// Returns how long the oldest waiter has waited.
    pub fn waited_for(&self) -> Option<Duration> {
        let granted = self.grants().map(|(_, holder)| holder.waiting_since_ms());
        let waiting = self.waiters.iter().map(|waiting| waiting.waiter.since_ms);
        let since = granted.chain(waiting).min();
        since.map(|ms| self.since(ms))
    }

    /// Returns true if the lock has neither a holder nor a waiter, and isn't frozen.
    pub fn is_idle(&self) -> bool {
        matches!(self.key, Key::Free) && self.waiters.is_empty() && self.frozen.is_none()
    }

    /// Returns the size in memory, in bytes.
    fn weight(&self) -> usize {
        let of_hold = |hold: &Hold| {
            let guards = hold.guards.iter();
            let guards = guards.map(|guard| size_of::<GuardEntry>() + guard.who.weight());
            let clients = hold.holder.iter().map(|holder| &holder.who);
            let clients = clients.chain(&hold.stopping).map(Who::weight);
            size_of::<Hold>() + LONGEST_ID + guards.chain(clients).sum::<usize>()
        };
        let of_waiter = |it: &Waiting| size_of::<Waiting>() + LONGEST_ID + it.waiter.who.weight();
        let holds = self.holds().iter().map(of_hold);
        let waiters = self.waiters.iter().map(of_waiter);
        let frozen = self.frozen.iter().map(|frozen| frozen.who.weight());
        let lists: usize = holds.chain(waiters).chain(frozen).sum();
        size_of::<Self>() + self.name.as_str().len() + lists
    }
}

/// Longest id, in bytes.
const LONGEST_ID: usize = 40;

impl Locks {
    /// Inspects locks, including how long a hold of each usually lasts. Needs one round trip per hundred
    /// names.
    pub fn inspect(&self, client: &mut Client, names: &[Name]) -> Result<Vec<Inspected>, Error> {
        client.with_connection(|connection, _| {
            let mut locks = self.pages(connection, names, FIRST_PAGE)?;
            let partial = locks.iter_mut().filter(|lock| lock.rest.is_some());
            for lock in partial {
                self.add_rest(connection, lock)?;
            }
            Ok(locks)
        })
    }

    /// Like [`Self::inspect`], for one lock.
    pub fn inspect_one(&self, client: &mut Client, name: &Name) -> Result<Inspected, Error> {
        let mut all = self.inspect(client, slice::from_ref(name))?;
        all.pop().ok_or_else(|| unexpected_reply(&[]))
    }

    /// Returns the usual length of a hold of this lock, if the history has enough. Sends one short request.
    pub fn usual(&self, client: &mut Client, name: &Name) -> Result<Option<Duration>, Error> {
        client.with_connection(|connection, _| {
            match self.pages(connection, slice::from_ref(name), [b"", b""]) {
                // Without permission for that, nothing is known to be usual; the wait must go on all the
                // same.
                Err(error) if !error.kind.may_pass() => Ok(None),
                locks => Ok(locks?.pop().and_then(|lock| lock.usual)),
            }
        })
    }

    /// Reads one page of each of these locks.
    fn pages(
        &self,
        connection: &mut Connection,
        names: &[Name],
        page: [&[u8]; 2],
    ) -> Result<Vec<Inspected>, Error> {
        let locks = names.iter().map(|name| self.lock(name.clone()));
        let calls = locks.map(|lock| lock.call(&INSPECT, page.map(<[u8]>::to_vec).to_vec()));
        let mut names = names.iter().cloned();
        connection.list(
            calls.collect(),
            |answer| inspected(names.next().ok_or_else(|| unexpected_reply(&[]))?, answer),
            Inspected::weight,
        )
    }

    /// Adds the holders and waiters that didn't fit into the first answer.
    fn add_rest(&self, connection: &mut Connection, lock: &mut Inspected) -> Result<(), Error> {
        in_parts(|| {
            let Some(page) = lock.rest.take() else {
                return Ok(Some(()));
            };
            let page = page.each_ref().map(Vec::as_slice);
            for more in self.pages(connection, slice::from_ref(&lock.name), page)? {
                if let (Key::Held(holds), Key::Held(others)) = (&mut lock.key, more.key) {
                    holds.extend(others);
                }
                lock.waiters.extend(more.waiters);
                lock.rest = more.rest;
            }
            Ok(None)
        })?;
        // A client that moved in its list meanwhile may be on several pages.
        let (mut holders, mut waiters) = (BTreeSet::new(), BTreeSet::new());
        if let Key::Held(holds) = &mut lock.key {
            holds.retain(|hold| holders.insert(hold.id.clone()));
            holds.sort_by_key(|hold| hold.left.unwrap_or(Duration::MAX));
        }
        let is_new = |waiting: &Waiting| waiters.insert(waiting.id.clone());
        lock.waiters.retain(is_new);
        Ok(())
    }

    /// Returns the names of locks, sorted.
    pub fn names(&self, client: &mut Client, which: Names) -> Result<Vec<Name>, Error> {
        client.with_connection(|connection, _| {
            let mut since = "-inf".to_owned();
            if which == Names::InUse {
                let [seconds, _] = fields(connection.query(&redis::cmd("TIME"))?)?;
                since = number(&seconds)?.saturating_mul(1000).to_string();
            }
            let mut names = BTreeSet::new();
            // The next page begins with the last score, and includes the entries of this score that are known: names
            // that are used meanwhile move up in the order.
            let (mut all, mut same) = (0, 0);
            while all <= MOST_NAMES {
                let mut command = redis::cmd("ZRANGEBYSCORE");
                command.arg(index_key(&self.prefix)).arg(&since);
                command
                    .arg(&["+inf", "WITHSCORES", "LIMIT", "0"])
                    .arg(same + PAGE);
                let page = array(connection.query_list(&command)?)?;
                let pairs = <(Vec<u8>, String)>::from_redis_value_refs(&page);
                let pairs = pairs.map_err(|_| unexpected_reply(&page))?;
                let is_last = pairs.len() < same + PAGE;
                all += PAGE;
                for (name, score) in pairs {
                    same = if score == since { same + 1 } else { 1 };
                    since = score;
                    names.extend(String::from_utf8_lossy(&name).parse::<Name>().ok());
                }
                if is_last {
                    return Ok(names.into_iter().collect());
                }
            }
            Err(connection.abandoned_error(&format!("it has more than {MOST_NAMES} names")))
        })
    }
}

/// Number of names per request: the server takes less than a millisecond for them.
const PAGE: usize = 1000;

/// Most names in an index; a longer list isn't one of locks.
const MOST_NAMES: usize = 1_000_000;

/// Reads the live guards of a hold, the oldest first.
fn living(guards: Value) -> Result<Vec<GuardEntry>, Error> {
    let mut living = all(guards, |guard| entry(&guard, GuardEntry::parse))?;
    living.sort_by_key(|guard| guard.since_ms);
    Ok(living)
}

/// Cursors at which the lists of holders and waiters go on; empty for a complete list.
type ListCursors = [Vec<u8>; 2];

const FIRST_PAGE: [&[u8]; 2] = [b"0", b"-inf"];

/// Reads a lock from one answer.
pub(super) fn inspected(name: Name, answer: Value) -> Result<Inspected, Error> {
    let [kind, fence, now_ms, lists @ ..]: [Value; 9] = fields(answer)?;
    let [held, waiting, freeze, lasted, rest, remembered] = lists;
    let [holders, waiters] = fields(rest)?;
    let rest = [cursor(&holders)?, cursor(&waiters)?];
    let key = match lossy_text(&kind).as_str() {
        "none" => Key::Free,
        "string" => Key::Held(all(held, |hold| {
            let [id, left, holder, guards, stopping] = fields(hold)?;
            Ok(Some(Hold {
                id: scripts::id(&id)?,
                left: milliseconds(&left)?,
                holder: entry(&holder, Holder::parse)?,
                guards: living(guards)?,
                stopping: entry(&stopping, Who::parse)?,
            }))
        })?),
        other => Key::NotALock(quoted(other).into_owned()),
    };
    let waiters = all(waiting, |waiting| {
        let [id, waiter] = fields(waiting)?;
        let id = scripts::id(&id)?;
        Ok(entry(&waiter, Waiter::parse)?.map(|waiter| Waiting { id, waiter }))
    })?;
    let lasted = all(lasted, |ms| Ok(Some(Duration::from_millis(number(&ms)?))))?;
    Ok(Inspected {
        name,
        fence: known_number(&fence)?,
        now_ms: number(&now_ms)?,
        key,
        frozen: entry(&freeze, Frozen::parse)?,
        waiters,
        usual: usual_of(lasted),
        record: record(remembered)?,
        rest: rest.iter().any(|list| !list.is_empty()).then_some(rest),
    })
}

/// Reads a number that a script of redlock has written; `None` if another client has replaced it by anything
/// else.
fn known_number(value: &Value) -> Result<Option<u64>, Error> {
    Ok(some_text(value)?.and_then(|_| number(value).ok()))
}

fn record(remembered: Value) -> Result<Record, Error> {
    let fields: [Value; RESULTS.len() + 2] = fields(remembered)?;
    let [succeeded, counters @ .., freezes] = &fields;
    let mut ended = [0; RESULTS.len()];
    for (count, counter) in ended.iter_mut().zip(counters) {
        *count = known_number(counter)?.unwrap_or_default();
    }
    let freezes = some_text(freezes)?.unwrap_or_default();
    let freezes = std::str::from_utf8(freezes).unwrap_or_default().split(' ');
    let lasting = |freeze: &str| {
        let (since, until) = freeze.split_once('-')?;
        Some((since.parse().ok()?, until.parse().ok()?))
    };
    Ok(Record {
        succeeded_ms: known_number(succeeded)?,
        ended,
        freezes: freezes.take(MOST_FREEZES).filter_map(lasting).collect(),
    })
}

/// Most freezes that are read of a lock.
const MOST_FREEZES: usize = 100;

/// Reads a list, without the items for which `read` returns `None`.
fn all<T>(list: Value, read: impl Fn(Value) -> Result<Option<T>, Error>) -> Result<Vec<T>, Error> {
    let items = array(list)?.into_iter();
    items.filter_map(|item| read(item).transpose()).collect()
}

/// Returns the fields of a list of this length.
fn fields<const N: usize>(list: Value) -> Result<[Value; N], Error> {
    let fields = array(list)?.try_into();
    fields.map_err(|fields: Vec<Value>| unexpected_reply(&fields))
}

/// Selection of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Names of locks in use; some may have ended since.
    InUse,
    /// Also names of locks that have a history.
    All,
}

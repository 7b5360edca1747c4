//! Looking at locks without changing them.

use std::collections::BTreeSet;
use std::slice;
use std::time::Duration;

use redis::Value;

use super::answer::Busy;
use super::client::Client;
use super::guard::GuardEntry;
use super::history::{NEWEST, NEWEST_OF_MANY, usual_of};
use super::lock::Lock;
use super::locks::Locks;
use super::name::{Name, index_key};
use super::scripts::{
    self, INSPECT, MOST_PARTS, array, cursor, endless, frozen, holder, lossy_text, milliseconds,
    number, some_text, unexpected_reply, waiter,
};
use super::who::{Frozen, Holder, Limit, Waiter, Who};
use crate::redis::call::Call;
use crate::redis::connection::Connection;
use crate::redis::error::{Error, quoted};

/// A lock as it was found.
#[derive(Clone, Debug)]
pub struct Inspected {
    pub name: Name,
    /// The last fence that was granted.
    pub fence: Option<u64>,
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    pub key: Key,
    /// No new holder is admitted.
    pub frozen: Option<Frozen>,
    /// The waiters, in the order of their turns.
    pub waiters: Vec<Waiting>,
    /// How long a hold usually lasts, where that was asked and the history knows it.
    pub usual: Option<Duration>,
    pub record: Record,
}

/// The content of a lock's key.
#[derive(Clone, Debug)]
pub enum Key {
    /// Nothing: the lock is free.
    Free,
    /// The holders, those first whose leases end first; at least one.
    Held(Vec<Hold>),
    /// Another type of key, so not a lock; its type.
    NotALock(String),
}

/// A hold of a lock.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The start of its token's SHA-1, which names this hold without giving it away.
    pub id: String,
    /// `None`: the key has no expiry.
    pub left: Option<Duration>,
    /// `None`: another client's lock.
    pub holder: Option<Holder>,
    /// Its guards that live, the oldest first.
    pub guards: Vec<GuardEntry>,
    /// The client that has asked it to end.
    pub stopping: Option<Who>,
}

/// What is remembered of the runs of a lock, also of those that the history has forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When a run succeeded last, in milliseconds since 1970 by the server's clock.
    pub succeeded_ms: Option<u64>,
    /// How many of its holds, or with `skipped` of its runs, ended in each way, in the order of [`RESULTS`]; of those since
    /// the name was forgotten for the last time.
    pub ended: [u64; RESULTS.len()],
    /// The last freezes: from when until when each lasted, or is to last, in milliseconds since 1970 by the server's clock.
    pub freezes: Vec<(u64, u64)>,
}

/// How holds end, as they are counted; with `skipped` a run without the lock.
pub const RESULTS: [&str; 7] = [
    "success", "failure", "lost", "forced", "stopped", "released", "skipped",
];

/// A place in the queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub id: String,
    pub waiter: Waiter,
}

/// What is known of the renewal of a hold's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Another client's lock, one that is being handed over or kept after its run, or one that its job
    /// has extended.
    Unknown,
    /// No process renews it: a script has acquired it.
    None,
    /// It was acquired, or renewed for the last time, this long ago.
    Ago(Duration),
    /// The same, and it should have been renewed again by now.
    Overdue(Duration),
}

impl Hold {
    /// It was granted, and its run hasn't said yet that it uses it.
    pub fn is_unconfirmed(&self) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.granted)
    }

    /// Returns how long ago its lease was renewed, if that is known.
    pub fn renewed_ago(&self) -> Option<Duration> {
        match self.renewal() {
            Renewal::Ago(ago) | Renewal::Overdue(ago) => Some(ago),
            Renewal::Unknown | Renewal::None => None,
        }
    }

    /// Returns by how long the renewal of its lease is overdue, if it is.
    pub fn overdue(&self) -> Option<Duration> {
        let ttl = self.holder.as_ref().and_then(|holder| holder.who.ttl);
        match self.renewal() {
            Renewal::Overdue(ago) => Some(ago.saturating_sub(Duration::from_millis(ttl? / 3))),
            Renewal::Unknown | Renewal::None | Renewal::Ago(_) => None,
        }
    }

    /// When its lease was renewed. A run renews after each third of the TTL: after a half of it
    /// something is wrong.
    pub fn renewal(&self) -> Renewal {
        let Some(holder) = self
            .holder
            .as_ref()
            .filter(|it| it.kept.is_none() && !it.granted)
        else {
            return Renewal::Unknown;
        };
        if holder.who.instance.is_none() {
            return Renewal::None;
        }
        let ttl = holder.who.ttl.map(Duration::from_millis);
        match ttl
            .zip(self.left)
            .and_then(|(ttl, left)| ttl.checked_sub(left).zip(Some(ttl)))
        {
            Some((ago, ttl)) if ago > ttl / 2 => Renewal::Overdue(ago),
            Some((ago, _)) => Renewal::Ago(ago),
            None => Renewal::Unknown,
        }
    }
}

impl Inspected {
    /// All that it was granted to.
    pub fn holds(&self) -> &[Hold] {
        match &self.key {
            Key::Held(holds) => holds,
            Key::Free | Key::NotALock(_) => &[],
        }
    }

    /// Those of its holds that count: each has a run that knows of it, and the replicas that have to have it.
    pub fn holders(&self) -> impl Iterator<Item = &Hold> {
        self.holds().iter().filter(|hold| !hold.is_unconfirmed())
    }

    /// The clients that it was granted to, and that may not know or count on it yet.
    pub fn grants(&self) -> impl Iterator<Item = (&Hold, &Holder)> {
        let unconfirmed = self.holds().iter().filter(|hold| hold.is_unconfirmed());
        unconfirmed.filter_map(|hold| Some((hold, hold.holder.as_ref()?)))
    }

    /// How many holders it admits: the smallest of their limits. `None` when it is free.
    pub fn limit(&self) -> Option<Limit> {
        let limit = |hold: &Hold| {
            let holder = hold.holder.as_ref();
            holder.map_or(Limit::EXCLUSIVE, |holder| holder.limit)
        };
        self.holds().iter().map(limit).min()
    }

    /// As a waiter sees it; `None` when it has no holder.
    pub fn busy(&self) -> Option<Busy> {
        let first = self.holds().first()?;
        let count = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        Some(Busy {
            now_ms: self.now_ms,
            ahead: count(self.waiters.len()),
            ticket: None,
            polls: false,
            left: first.left,
            holders: count(self.holds().len()),
            id: first.id.clone(),
            holder: first.holder.clone(),
            frozen: self.frozen.clone(),
            repaired: false,
            granted: false,
            stopping: first.stopping.clone(),
        })
    }

    /// Returns the time since a moment of the server's clock.
    pub fn since(&self, ms: u64) -> Duration {
        Duration::from_millis(self.now_ms.saturating_sub(ms))
    }

    /// Returns how long the oldest holder has had the lock; `None` without a holder, or if only another client knows.
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

    /// It has no holder and no waiter, and would be granted.
    pub fn is_idle(&self) -> bool {
        matches!(self.key, Key::Free) && self.waiters.is_empty() && self.frozen.is_none()
    }

    /// What it takes up in memory, in bytes.
    fn weight(&self) -> usize {
        let guards = |hold: &Hold| {
            let each = hold.guards.iter();
            each.map(|guard| size_of::<GuardEntry>() + guard.who.weight())
                .sum::<usize>()
        };
        let hold = |hold: &Hold| {
            let who = hold.holder.as_ref().map_or(0, |holder| holder.who.weight());
            let by = hold.stopping.as_ref().map_or(0, Who::weight);
            size_of::<Hold>() + hold.id.len() + who + guards(hold) + by
        };
        let waiting = |waiting: &Waiting| {
            size_of::<Waiting>() + waiting.id.len() + waiting.waiter.who.weight()
        };
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.who.weight());
        size_of::<Self>()
            + self.name.as_str().len()
            + frozen
            + self.holds().iter().map(hold).sum::<usize>()
            + self.waiters.iter().map(waiting).sum::<usize>()
    }
}

/// How many locks are many.
const MANY: usize = 100;

impl Locks {
    /// Looks at locks, and at how long a hold of each usually lasts. One round trip for a hundred names.
    pub fn inspect(&self, client: &mut Client, names: &[Name]) -> Result<Vec<Inspected>, Error> {
        let is_many = names.len() > MANY;
        let newest = if is_many { NEWEST_OF_MANY } else { NEWEST };
        client.with_connection(|connection, _| self.inspect_over(connection, names, newest))
    }

    /// Like [`Self::inspect`], for one lock.
    pub fn inspect_one(&self, client: &mut Client, name: &Name) -> Result<Inspected, Error> {
        let mut all = self.inspect(client, slice::from_ref(name))?;
        all.pop().ok_or_else(|| unexpected_reply(&[]))
    }

    pub(super) fn inspect_over(
        &self,
        connection: &mut Connection,
        names: &[Name],
        newest: usize,
    ) -> Result<Vec<Inspected>, Error> {
        let calls: Vec<Call> = names
            .iter()
            .map(|name| self.inspect_call(name, newest, &Page::first()))
            .collect();
        let mut names = names.iter();
        let found = connection.list(
            calls,
            |answer| {
                let name = names.next().cloned();
                name.map(|name| inspected(name, answer)).transpose()
            },
            |found| found.as_ref().map_or(0, |(lock, _)| lock.weight()),
        )?;
        let locks = found.into_iter().flatten();
        let locks = locks.map(|(lock, next)| self.with_other_pages(connection, lock, next));
        locks.collect()
    }

    /// Adds the holders and waiters that didn't fit into the first answer.
    fn with_other_pages(
        &self,
        connection: &mut Connection,
        mut lock: Inspected,
        mut next: Page,
    ) -> Result<Inspected, Error> {
        let is_in_parts = !next.is_none();
        let mut parts = 0;
        while !next.is_none() {
            parts += 1;
            if parts > MOST_PARTS {
                return Err(endless());
            }
            let call = self.inspect_call(&lock.name, 0, &next);
            let more;
            (more, next) = match connection.list(
                vec![call],
                |answer| inspected(lock.name.clone(), answer),
                |_| 0,
            )? {
                mut answers if answers.len() == 1 => answers.remove(0),
                _ => return Ok(lock),
            };
            if let (Key::Held(holds), Key::Held(others)) = (&mut lock.key, more.key) {
                holds.extend(others);
            }
            lock.waiters.extend(more.waiters);
        }
        if is_in_parts {
            let mut known = BTreeSet::new();
            lock.waiters
                .retain(|waiting| known.insert(waiting.id.clone()));
            known.clear();
            if let Key::Held(holds) = &mut lock.key {
                holds.retain(|hold| known.insert(hold.id.clone()));
            }
        }
        if let Key::Held(holds) = &mut lock.key {
            holds.sort_by_key(|hold| hold.left.unwrap_or(Duration::MAX));
        }
        Ok(lock)
    }

    /// The call that looks at a page of a lock, and at how long this many of its newest holds lasted.
    pub(super) fn inspect_call(&self, name: &Name, newest: usize, page: &Page) -> Call {
        let lock = self.lock(name.clone());
        let mut call = lock.call_with_guards(&INSPECT, Vec::new());
        call.args = vec![
            newest.to_string().into(),
            page.holders.clone(),
            page.waiters.clone(),
        ];
        call
    }

    /// Has the server notify us when one of these locks changes for the next time, where it can.
    pub fn track(&self, client: &mut Client, names: &[Name]) -> Result<(), Error> {
        let locks: Vec<Lock> = names.iter().map(|name| self.lock(name.clone())).collect();
        client.with_connection(|connection, _| {
            connection.track_keys(locks.iter().map(|lock| lock.keys.lock.as_slice()))
        })
    }

    /// The names of locks, sorted.
    pub fn names(&self, client: &mut Client, which: Which) -> Result<Vec<Name>, Error> {
        let mut names = client.with_connection(|connection, _| {
            let since = match which {
                Which::InUse => {
                    let time = array(connection.query(&redis::cmd("TIME"))?)?;
                    let seconds = number(time.first().unwrap_or(&Value::Nil))?;
                    seconds.saturating_mul(1000).to_string()
                }
                Which::All => "-inf".to_owned(),
            };
            self.names_since(connection, since)
        })?;
        names.sort();
        // Those that were used meanwhile may be there twice.
        names.dedup();
        Ok(names)
    }

    /// The names in the index from a score on, a page at a time. A page begins at the last score of the one
    /// before, so that a name that gets a higher score meanwhile moves no other one out of it.
    fn names_since(
        &self,
        connection: &mut Connection,
        mut since: String,
    ) -> Result<Vec<Name>, Error> {
        let mut names: Vec<Name> = Vec::new();
        // How many are known, and how many of this score.
        let (mut all, mut known) = (0, 0);
        loop {
            let mut command = redis::cmd("ZRANGEBYSCORE");
            command.arg(index_key(&self.prefix)).arg(&since).arg("+inf");
            command.arg("WITHSCORES");
            command.arg("LIMIT").arg(known).arg(PAGE);
            let page = flat(array(connection.query_list(&command)?)?);
            let (pairs, []) = page.as_chunks::<2>() else {
                return Err(unexpected_reply(&page));
            };
            all += pairs.len();
            for [name, score] in pairs {
                let score = match score {
                    Value::Double(score) => score.to_string(),
                    other => lossy_text(other),
                };
                known = if score == since { known + 1 } else { 1 };
                since = score;
                names.extend(lossy_text(name).parse::<Name>().ok());
            }
            if pairs.len() < PAGE {
                return Ok(names);
            }
            if all > MOST_NAMES {
                return Err(
                    connection.abandoned_error(&format!("it has more than {MOST_NAMES} names"))
                );
            }
        }
    }
}

/// How many names are asked for at once: the server takes less than a millisecond.
const PAGE: usize = 1000;

/// More names than this are no list of locks.
const MOST_NAMES: usize = 1_000_000;

/// The guards of a hold, the oldest first.
fn living(guards: &Value) -> Result<Vec<GuardEntry>, Error> {
    let entries = array(guards.clone())?;
    let mut guards = Vec::new();
    for entry in &entries {
        guards.extend(some_text(entry)?.and_then(GuardEntry::parse));
    }
    guards.sort_by_key(|guard| guard.since_ms);
    Ok(guards)
}

/// Pairs, as RESP3 has them, one after the other.
fn flat(values: Vec<Value>) -> Vec<Value> {
    let each = values.into_iter().flat_map(|value| match value {
        Value::Array(pair) => pair,
        other => vec![other],
    });
    each.collect()
}

/// From where on the holders and the waiters of a lock are listed; empty: all are known.
pub(super) struct Page {
    holders: Vec<u8>,
    waiters: Vec<u8>,
}

impl Page {
    pub(super) fn first() -> Self {
        Self {
            holders: b"0".to_vec(),
            waiters: b"-inf".to_vec(),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }
}

/// A lock as one answer shows it, and where the next one goes on.
pub(super) fn inspected(name: Name, answer: Value) -> Result<(Inspected, Page), Error> {
    let fields: [Value; 9] = array(answer)?
        .try_into()
        .map_err(|fields: Vec<Value>| unexpected_reply(&fields))?;
    let [
        kind,
        fence,
        now_ms,
        held,
        waiting,
        freeze,
        lasted,
        next,
        remembered,
    ] = fields;
    let [holders, waiters_from] = array(next)?
        .try_into()
        .map_err(|fields: Vec<Value>| unexpected_reply(&fields))?;
    let next = Page {
        holders: cursor(&holders)?,
        waiters: cursor(&waiters_from)?,
    };
    let key = match lossy_text(&kind).as_str() {
        "none" => Key::Free,
        "string" => Key::Held(all(held, |fields| match fields {
            [id, left, entry, guards, stopping] => Ok(Some(Hold {
                id: scripts::id(id)?,
                left: milliseconds(left)?,
                holder: holder(entry)?,
                guards: living(guards)?,
                stopping: scripts::who(stopping)?,
            })),
            _ => Err(unexpected_reply(fields)),
        })?),
        other => Key::NotALock(quoted(other).into_owned()),
    };
    let waiters = all(waiting, |fields| match fields {
        [id, entry] => {
            let id = scripts::id(id)?;
            Ok(waiter(entry)?.map(|waiter| Waiting { id, waiter }))
        }
        _ => Err(unexpected_reply(fields)),
    })?;
    let lock = Inspected {
        name,
        // What another client has written there doesn't count as a fence.
        fence: some_text(&fence)?.and_then(|_| number(&fence).ok()),
        now_ms: number(&now_ms)?,
        key,
        frozen: frozen(&freeze)?,
        waiters,
        usual: usual_of(
            array(lasted)?
                .iter()
                .map(|ms| number(ms).map(Duration::from_millis))
                .collect::<Result<_, _>>()?,
        ),
        record: record(remembered)?,
    };
    Ok((lock, next))
}

/// What another client has written there is no number of ours.
fn record(remembered: Value) -> Result<Record, Error> {
    let fields: [Value; RESULTS.len() + 2] = array(remembered)?
        .try_into()
        .map_err(|fields: Vec<Value>| unexpected_reply(&fields))?;
    let number_of = |field: &Value| {
        let is_there = some_text(field)?.is_some();
        Ok::<_, Error>(is_there.then(|| number(field).ok()).flatten())
    };
    let [succeeded, counters @ .., freezes] = &fields;
    let mut ended = [0; RESULTS.len()];
    for (count, counter) in ended.iter_mut().zip(counters) {
        *count = number_of(counter)?.unwrap_or_default();
    }
    let freezes = some_text(freezes)?.unwrap_or_default();
    let freezes = std::str::from_utf8(freezes).unwrap_or_default().split(' ');
    let lasting = |freeze: &str| {
        let (since, until) = freeze.split_once('-')?;
        Some((since.parse().ok()?, until.parse().ok()?))
    };
    Ok(Record {
        succeeded_ms: number_of(succeeded)?,
        ended,
        freezes: freezes.take(MOST_FREEZES).filter_map(lasting).collect(),
    })
}

/// How many freezes are read of a lock.
const MOST_FREEZES: usize = 100;

/// Reads a list of lists, of which nothing else is kept.
fn all<T>(
    list: Value,
    read: impl Fn(&[Value]) -> Result<Option<T>, Error>,
) -> Result<Vec<T>, Error> {
    let mut found = Vec::new();
    for item in array(list)? {
        found.extend(read(&array(item)?)?);
    }
    Ok(found)
}

/// Which names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those of locks in use; some may have ended since.
    InUse,
    /// Also those of locks that have a history.
    All,
}

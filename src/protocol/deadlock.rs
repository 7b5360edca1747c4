//! Deadlocks between jobs: finding a cycle across hosts.
//!
//! A job that holds a lock and has waited for another publishes that in a note, under the id of each of its
//! holds. A waiter starts at the holders of the lock it wants, and follows their notes. Each note leads to
//! the lock that the holder waits for, and so to the next holders. If every path leads back to a lock of the
//! waiter's own job, no job on the paths can go on.
//!
//! A note is only a hint; the lock's own queue must contain that waiter. Ids are never used twice, so a wait
//! or a hold that two searches find has lasted from the first to the second. So all parts of a cycle existed
//! at the same time between the two.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::client::Client;
use super::inspect::{Hold, Inspected, Waiting};
use super::locks::Locks;
use super::name::{Name, blocked_key};
use super::scripts::lossy_text;
use super::who::{Limit, Who};
use crate::duration::milliseconds;
use crate::server::error::Error;
use crate::server::pushes::PRESENCE_CHECK;

/// A waiter of a job that holds something: an edge of the wait-for graph.
#[derive(Clone, Debug)]
pub struct WaitEdge {
    pub locks: Locks,
    /// Ids of the job's holds.
    pub holds: Vec<String>,
    /// The lock it waits for.
    pub wants: Name,
    /// Its id in that queue.
    pub id: String,
}

/// A member of a cycle: it holds a lock and waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleMember {
    pub holds: Name,
    pub wants: Name,
    pub who: Who,
    began: WaitStart,
}

/// Start of a member's wait, by the server's clock, and its id: no two are equal.
type WaitStart = (u64, String);

/// Start of a stuck waiter's wait, and the members of the cycle between the waiter and the searching job.
type Stuck = (WaitStart, Vec<CycleMember>);

/// The members of a cycle between a client and the searching job; `None` if the client can go on.
type Members = Option<Vec<CycleMember>>;

/// Longest chain that is followed.
const MAX_CHAIN: usize = 100;

impl WaitEdge {
    /// Publishes that the job waits; the note expires after `lasting`.
    pub fn publish(&self, client: &mut Client, lasting: Duration) -> Result<(), Error> {
        let mut sets = Vec::new();
        for hold in &self.holds {
            let mut set = redis::cmd("SET");
            set.arg(blocked_key(&self.locks.prefix, hold));
            set.arg(format!("{} {}", self.id, self.wants));
            sets.push(set.arg("PX").arg(milliseconds(lasting)).clone());
        }
        // A full server refuses the notes, and the wait goes on without them.
        ask(client, &sets).map(drop)
    }

    /// Removes the note.
    pub fn forget(&self, client: &mut Client) -> Result<(), Error> {
        let mut unlink = redis::cmd("UNLINK");
        for hold in &self.holds {
            unlink.arg(blocked_key(&self.locks.prefix, hold));
        }
        client.query(&unlink).map(drop)
    }

    /// Returns the cycle that this job must break, if there is one: the job that began to wait last breaks
    /// it. The members follow each other: the first holds the lock that this job wants.
    pub fn look(&self, client: &mut Client) -> Result<Option<Vec<CycleMember>>, Error> {
        let Some(first) = self.search(client)? else {
            return Ok(None);
        };
        let (me, members) = &first;
        let is_youngest = members.iter().all(|other| other.began < *me);
        let is_lasting = is_youngest && self.search(client)?.as_ref() == Some(&first);
        Ok(is_lasting.then_some(first.1))
    }

    /// Returns all members of a cycle through this job, except itself, and when it began to wait.
    fn search(&self, client: &mut Client) -> Result<Option<Stuck>, Error> {
        let mut search = CycleSearch {
            locks: &self.locks,
            own_holds: &self.holds,
            client,
            waiters: HashMap::from([(self.id.clone(), None)]),
        };
        search.follow_waiter(&self.wants, &self.id)
    }
}

/// Sends commands at once. Returns all answers; a refusal, or a key of another type, is no note.
fn ask(client: &mut Client, commands: &[Cmd]) -> Result<Vec<Value>, Error> {
    client.query_each(commands, Instant::now() + client.timeout())
}

struct CycleSearch<'a> {
    locks: &'a Locks,
    /// The holds of the searching job.
    own_holds: &'a [String],
    client: &'a mut Client,
    /// The waiters so far, by their ids, because several paths may lead to one. `None`: it can go on, or is
    /// being followed.
    waiters: HashMap<String, Option<Stuck>>,
}

impl CycleSearch<'_> {
    /// Follows a waiter if it really is in the queue of this lock, and alive.
    fn follow_waiter(&mut self, name: &Name, id: &str) -> Result<Option<Stuck>, Error> {
        let lock = self.locks.inspect_one(self.client, name)?;
        let Some(me) = lock.waiters.iter().find(|other| other.id == id) else {
            return Ok(None);
        };
        if me.waiter.listens {
            let sharded = me.waiter.is_sharded;
            let mut publish = redis::cmd(if sharded { "SPUBLISH" } else { "PUBLISH" });
            let channel = self.locks.lock(name.clone()).keys.of(id);
            publish.arg(channel).arg(PRESENCE_CHECK);
            if self.client.query(&publish)? == Value::Int(0) {
                return Ok(None);
            }
        }
        let members = self.follow_lock(&lock, me)?;
        let began = (me.waiter.since_ms, me.id.clone());
        Ok(members.map(|members| (began, members)))
    }

    /// Follows the holders that a waiter must wait for.
    fn follow_lock(&mut self, lock: &Inspected, me: &Waiting) -> Result<Members, Error> {
        // A run that ignores a freeze isn't behind the waiters that the freeze keeps out.
        let goes_ahead = lock.frozen.is_some() && me.waiter.who.ignores_freeze;
        let before = lock.waiters.iter().take_while(|other| other.id != me.id);
        let before = before.filter(|other| !goes_ahead || other.waiter.who.ignores_freeze);
        let limits = before.chain([me]).map(|other| other.waiter.limit);
        // An exclusive request, or any behind one, needs all holders to leave, so a single stuck holder is
        // enough. A request for a slot needs any holder to leave, even if the holders share the lock.
        let needs_all = limits.min() == Some(Limit::EXCLUSIVE);
        let mut members = Vec::new();
        // All at once, because the waiter must return to its queue soon.
        let holds = lock.holds().iter();
        let keys = holds.map(|hold| blocked_key(&self.locks.prefix, &hold.id));
        let gets: Vec<Cmd> = keys.map(|key| redis::cmd("GET").arg(key).clone()).collect();
        let notes = ask(self.client, &gets)?;
        for (hold, note) in lock.holds().iter().zip(&notes) {
            let stuck = if self.own_holds.contains(&hold.id) {
                Some(Vec::new())
            } else {
                self.follow_holder(&lock.name, hold, note)?
            };
            match stuck {
                Some(stuck) if needs_all => return Ok(Some(stuck)),
                // Each member once, behind the members that lead to it.
                Some(stuck) => {
                    let is_new = |member: &CycleMember| {
                        stuck.iter().all(|other| other.began != member.began)
                    };
                    members.retain(is_new);
                    members.extend(stuck);
                }
                None if needs_all => {}
                None => return Ok(None),
            }
        }
        Ok((!needs_all && !lock.holds().is_empty()).then_some(members))
    }

    /// Follows a holder, and the jobs that it waits for, from its note, if there is one.
    fn follow_holder(&mut self, holds: &Name, hold: &Hold, note: &Value) -> Result<Members, Error> {
        let note = lossy_text(note);
        let wanted = note
            .split_once(' ')
            .and_then(|(id, wants)| Some((id, wants.parse::<Name>().ok()?)));
        let Some((id, wants)) = wanted else {
            return Ok(None);
        };
        if !self.waiters.contains_key(id) && self.waiters.len() <= MAX_CHAIN {
            self.waiters.insert(id.to_owned(), None);
            let stuck = self.follow_waiter(&wants, id)?;
            self.waiters.insert(id.to_owned(), stuck);
        }
        let stuck = self.waiters.get(id).cloned().flatten();
        Ok(stuck.map(|(began, rest)| {
            let holder = hold.holder.as_ref();
            let first = CycleMember {
                holds: holds.clone(),
                wants,
                who: holder.map_or(Who::default(), |holder| holder.who.clone()),
                began,
            };
            [vec![first], rest].concat()
        }))
    }
}

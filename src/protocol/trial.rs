//! A trial of all scripts on a name that nobody else has: as a holder, a waiter and a person call them. It never
//! touches a name that may be in use, and leaves nothing behind.
//!
//! The keys are removed by the end of the same request that creates them: so nothing is left either where the answers
//! don't come in time. Where that request may have got lost on its way, the caller has them removed once more.

use std::time::{Duration, Instant};

use redis::{Cmd, ServerErrorKind, Value, cmd};

use super::answer::{Acquired, LeaseState, Released};
use super::answer::{acquired, checked, prolonged, released, renewed};
use super::ask::left;
use super::claim::{Claim, Needs, Place, QueueOptions, ReleaseMode, Request};
use super::client::{Client, Incoming};
use super::lock::Lock;
use super::locks::Locks;
use super::name::Name;
use super::scripts::{
    FORCE, FREEZE, HISTORY, SKIP, STOP, THAW, array, count, number, unexpected_reply,
};
use super::who::{Limit, Who};
use crate::redis::call::Call;
use crate::redis::error::{Error, ErrorKind, quoted};
use crate::redis::ready;
use crate::redis::refusal::from_server;

/// The lease of a lock of our own, which is over with the request that acquires it.
const TTL: Duration = Duration::from_secs(5);

/// Longest time to connect and send the removal of the keys, if no other time is left.
const REMOVAL_SENT_WITHIN: Duration = Duration::from_millis(100);

/// How long a message that has been sent may take.
const MESSAGE_WITHIN: Duration = Duration::from_millis(250);

/// What became of the scripts.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How many did what they should.
    pub done: u32,
    pub took: Duration,
    /// The first that didn't, and why.
    pub failure: Option<(&'static str, Error)>,
}

/// How a run is notified.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    pub resp3: bool,
    /// Why RESP3 isn't spoken, or the channel can't be subscribed to.
    pub refused: Option<String>,
    pub is_subscribed: bool,
    /// Its channel is one of the keys' hash slot, as on a cluster.
    pub is_sharded: bool,
    /// A waiter got the message that the lock is its own.
    pub was_granted: bool,
    /// The change of a lock was pushed.
    pub was_invalidated: bool,
}

/// A lock of our own, its holder, and its waiter, which listens over a connection of its own.
pub struct Rehearsal {
    locks: Locks,
    lock: Lock,
    who: Who,
    holder: Claim,
    waiter: Claim,
    listener: Client,
    until: Instant,
    /// What the waiter has heard.
    pub heard: Messages,
}

impl Rehearsal {
    /// Subscribes to the channel of the waiter, as it does for its turn, and tracks the lock, as a holder does.
    pub fn start(locks: &Locks, name: &Name, who: &Who, until: Instant) -> Result<Self, Error> {
        let lock = locks.lock(name.clone());
        let mut own = Self {
            holder: Claim::new(lock.clone(), who)?,
            waiter: Claim::new(lock.clone(), who)?,
            locks: locks.clone(),
            listener: locks.client(),
            who: who.clone(),
            lock,
            until,
            heard: Messages::default(),
        };
        own.subscribe();
        Ok(own)
    }

    fn subscribe(&mut self) {
        let (client, key, until) = (&mut self.listener, &self.lock.keys.lock, self.until);
        client.limit_to(left(until));
        let mut exists = cmd("EXISTS");
        exists.arg(key);
        let started = self.waiter.subscribe(client).and_then(|()| {
            client.with_connection(|connection, within| {
                connection.track_keys([key.as_slice()].into_iter())?;
                connection.query_each(&[exists], within.min(left(until)))?;
                Ok(connection.speaks_resp3())
            })
        });
        let mut is_denied = started.is_err();
        while let Ok(Some(incoming)) = client.receive() {
            is_denied |= matches!(incoming, Incoming::SubscribeDenied);
        }
        let resp3 = started.unwrap_or(false);
        self.heard = Messages {
            resp3,
            is_subscribed: resp3 && !is_denied,
            is_sharded: client.is_sharded(),
            ..Messages::default()
        };
    }

    /// The waiter's channel.
    pub fn channel(&self) -> String {
        String::from_utf8_lossy(&self.lock.channel_of(&self.waiter.id())).into_owned()
    }

    /// Acquires, waits, hands on and all else, all in one request.
    pub fn call_all(&self, client: &mut Client, until: Instant) -> Result<Trial, Error> {
        let steps = self.steps();
        let mut by_hash = true;
        loop {
            let mut asked: Vec<Cmd> = steps.iter().map(|it| it.call.command(by_hash)).collect();
            asked.extend(self.removal());
            let began = Instant::now();
            let answers = client.query_each(&asked, until)?;
            let took = began.elapsed();
            let is_unknown = |answer: &Value| {
                matches!(answer, Value::ServerError(error)
                    if error.kind() == Some(ServerErrorKind::NoScript))
            };
            if by_hash && answers.iter().any(is_unknown) {
                by_hash = false;
                continue;
            }
            let read = |(step, answer): (&Step, Value)| {
                let read = match answer {
                    Value::ServerError(error) => {
                        let server = self.locks.deployment.server();
                        let key = Some(self.lock.keys.lock.as_slice());
                        let script = step.call.script.source;
                        Err(from_server(&error, &server, key, Some(script)))
                    }
                    answer => (step.read)(answer),
                };
                read.map_err(|error| (step.name, error))
            };
            let mut results = steps.iter().zip(answers).map(read);
            let mut done = 0;
            let failure = results.find_map(|result| {
                done += u32::from(result.is_ok());
                result.err()
            });
            return Ok(Trial {
                done,
                took,
                failure,
            });
        }
    }

    /// Removes the keys that may be left after a request that failed. A server that is late carries out a part of the
    /// request alone if its connection is closed meanwhile, so the removal doesn't wait for its replies at first.
    pub fn remove(&self, client: &mut Client, until: Instant) {
        let server = self.locks.deployment.server();
        let sent_until = until.max(Instant::now() + REMOVAL_SENT_WITHIN);
        let _ = server.send_without_reply(&self.removal(), sent_until);
        let _ = client.query_each(&self.removal(), until);
    }

    fn removal(&self) -> [Cmd; 2] {
        let mut remove = cmd("UNLINK");
        let (index, keys) = (&self.lock.keys.index, self.lock.typed_keys());
        let own = keys.iter().map(|(key, _)| *key);
        remove.arg(own.filter(|key| key != index).collect::<Vec<_>>());
        let mut forget = cmd("ZREM");
        forget.arg(index).arg(self.lock.name.as_str());
        [remove, forget]
    }

    /// Takes in what has been sent to the waiter by now, or is about to arrive.
    pub fn listen(&mut self) {
        let end = self.until.min(Instant::now() + MESSAGE_WITHIN);
        let (client, heard) = (&mut self.listener, &mut self.heard);
        loop {
            match client.receive() {
                Ok(Some(Incoming::Granted(_) | Incoming::Message)) => heard.was_granted = true,
                Ok(Some(Incoming::KeyChanged)) => heard.was_invalidated = true,
                Ok(Some(_)) => {}
                Ok(None) => {
                    let is_over = heard.was_granted && heard.was_invalidated;
                    let within = left(end);
                    let Some(fd) = client.fds().next() else {
                        return;
                    };
                    if is_over || within.is_zero() || !ready::to_read(fd, within).unwrap_or(false) {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn steps(&self) -> Vec<Step> {
        let (lock, holder, waiter) = (&self.lock, &self.holder, &self.waiter);
        let request = Request {
            who: self.who.clone(),
            ttl: TTL,
            limit: Limit::EXCLUSIVE,
            queue: QueueOptions::default(),
            once_per: Duration::ZERO,
            once_key: None,
            repair_ttl: false,
        };
        let place = Place {
            ticket: None,
            polls: !self.heard.is_subscribed,
        };
        let needs = Needs {
            sharded: self.heard.is_sharded,
            replicated: false,
        };
        let wait = || waiter.acquire_call(&request, Some(&place), needs);
        let who = self.who.to_json();
        let ttl = TTL.as_millis().to_string();
        let mut skip = lock.call_with_guards(
            &SKIP,
            vec!["busy".into(), "0".into(), who.clone(), Vec::new()],
        );
        skip.keys.push(lock.keys.skips.clone());
        let stop = lock.call(&STOP, vec![holder.id().into(), who.clone()]);
        let freeze = lock.call(&FREEZE, vec![ttl.into(), who.clone()]);
        let release = holder.release_call(&ReleaseMode::UNUSED);
        let force = lock.call(&FORCE, vec![Vec::new(), who]);
        let one = |name, call, read| Step { name, call, read };
        vec![
            one(
                "acquire",
                holder.acquire_call(&request, None, Needs::default()),
                is_held,
            ),
            one("acquire", wait(), is_queued),
            one("renew", holder.renewal(TTL, false), |it| {
                is_ours(renewed(it)?)
            }),
            one("prolong", holder.prolonging(TTL), |it| is_prolonged(&it)),
            one("check", holder.check_call(TTL), |it| is_ours(checked(it)?)),
            one("stop", stop, has_fields::<1>),
            one("freeze", freeze, has_fields::<3>),
            one("thaw", lock.call(&THAW, Vec::new()), has_fields::<2>),
            one("release", release, is_released),
            one("acquire", wait(), is_held),
            one("force", force, has_fields::<3>),
            one("skip", skip, has_fields::<1>),
            one("history", lock.call(&HISTORY, Vec::new()), has_fields::<3>),
        ]
    }
}

/// One call of a script, and how its answer is read.
struct Step {
    name: &'static str,
    call: Call,
    read: fn(Value) -> Result<(), Error>,
}

fn is_held(answer: Value) -> Result<(), Error> {
    match acquired(answer)? {
        Acquired::Held { .. } => Ok(()),
        other => Err(otherwise(&other)),
    }
}

fn is_queued(answer: Value) -> Result<(), Error> {
    match acquired(answer)? {
        Acquired::Busy(busy) if busy.ticket.is_some() => Ok(()),
        other => Err(otherwise(&other)),
    }
}

fn is_ours(state: LeaseState) -> Result<(), Error> {
    match state {
        LeaseState::Held { .. } => Ok(()),
        other => Err(otherwise(&other)),
    }
}

fn is_prolonged(answer: &Value) -> Result<(), Error> {
    let state = prolonged(answer, TTL)?;
    state.map_or_else(|| Err(otherwise(answer)), is_ours)
}

fn is_released(answer: Value) -> Result<(), Error> {
    match released(answer)? {
        Released::Now => Ok(()),
        other => Err(otherwise(&other)),
    }
}

/// It has at least this many fields, of which the first is a number.
fn has_fields<const LEAST: usize>(answer: Value) -> Result<(), Error> {
    let fields = array(answer)?;
    match fields.first() {
        Some(first) if fields.len() >= LEAST => count(first).or(number(first).map(|_| 0)).map(drop),
        _ => Err(unexpected_reply(&fields)),
    }
}

/// The error for a script that did something else than it should.
fn otherwise(what: &impl std::fmt::Debug) -> Error {
    let what = format!("{what:?}");
    let what = quoted(&what);
    let message = format!("it gave a wrong answer: {what}");
    Error::new(ErrorKind::Internal, message)
}

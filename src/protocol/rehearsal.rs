//! A rehearsal of all scripts, for `redlock doctor`: on a name that nobody else has, as a holder, a waiter and a person
//! call them.
//!
//! One request creates, uses and removes all keys, so nothing is left behind even if its replies are late. If that
//! request may have got lost, the keys are removed once more.

use std::time::{Duration, Instant};

use redis::{Cmd, ServerErrorKind, Value, cmd};

use super::answer::{Acquired, LeaseState, Released};
use super::answer::{acquired, checked, prolonged, released, renewed};
use super::claim::{Claim, Needs, Place, QueueOptions, ReleaseMode, Request};
use super::client::{Client, Incoming, left};
use super::lock::Lock;
use super::locks::Locks;
use super::name::Name;
use super::scripts::{FORCE, FREEZE, HISTORY, SKIP, STOP, THAW, array, number};
use super::who::{Limit, Who};
use crate::redis::call::Call;
use crate::redis::error::{Error, ErrorKind};
use crate::redis::ready;

/// TTL of the rehearsal's lock.
const TTL: Duration = Duration::from_secs(5);

/// Time kept to remove the keys after a request that failed.
const REMOVED_WITHIN: Duration = Duration::from_millis(200);

/// Longest time to connect and send the removal of the keys, if no other time is left.
const REMOVAL_SENT_WITHIN: Duration = Duration::from_millis(100);

/// Longest delay of a message that has been sent.
const MESSAGE_WITHIN: Duration = Duration::from_millis(250);

/// Result of a rehearsal.
pub struct Rehearsed {
    pub calls: usize,
    pub took: Duration,
    /// Error of the first call that failed.
    pub failure: Option<Error>,
    /// Reason why the waiter got no message that it holds the lock.
    pub silence: Option<Error>,
}

/// A lock of its own, with a holder and a waiter.
struct Rehearsal<'a> {
    lock: Lock,
    who: &'a Who,
    holder: Claim,
    waiter: Claim,
    is_subscribed: bool,
    is_sharded: bool,
}

impl Locks {
    /// Acquires, waits, hands over, releases and more, on the connection of this client. `who` is shown as the holder.
    ///
    /// # Errors
    /// If the server doesn't answer until then.
    pub fn rehearse(
        &self,
        client: &mut Client,
        who: &Who,
        until: Instant,
    ) -> Result<Rehearsed, Error> {
        let mut bytes = [0; 8];
        // Without random bytes two rehearsals at once could disturb each other.
        let _ = getrandom::fill(&mut bytes);
        let name = format!("redlock-doctor-{:016x}", u64::from_be_bytes(bytes));
        let name: Name = name.parse().map_err(|_| failed(&name))?;
        let lock = self.lock(name);
        let mut rehearsal = Rehearsal {
            holder: Claim::new(lock.clone(), who)?,
            waiter: Claim::new(lock.clone(), who)?,
            lock,
            who,
            is_subscribed: false,
            is_sharded: false,
        };
        let (speaks_resp3, refusal) = rehearsal.subscribe(client, until)?;
        let calls_until = until.checked_sub(REMOVED_WITHIN).unwrap_or(until);
        let steps = rehearsal.steps();
        let (failure, took) = match refusal {
            Some(error) => (Some(error), Duration::ZERO),
            None => rehearsal
                .call(&steps, client, calls_until)
                .inspect_err(|_| {
                    rehearsal.remove(client, until);
                })?,
        };
        let silence = match &failure {
            None if rehearsal.is_subscribed => hear(client, until).err(),
            None => rehearsal.why_deaf(&mut client.another(), speaks_resp3, until),
            Some(_) => None,
        };
        Ok(Rehearsed {
            calls: steps.len(),
            took,
            failure,
            silence,
        })
    }
}

impl Rehearsal<'_> {
    /// Subscribes as a waiter does; returns whether the server speaks RESP3. Before any key is created, makes sure that
    /// this user may remove them; otherwise returns the refusal.
    fn subscribe(
        &mut self,
        client: &mut Client,
        until: Instant,
    ) -> Result<(bool, Option<Error>), Error> {
        client.limit_to(left(until));
        let subscribed = self.waiter.subscribe(client);
        let answers = match subscribed.and_then(|()| client.query_each(&self.removal(), until)) {
            Ok(answers) => answers,
            // Some proxies close the connection at HELLO.
            Err(_) => client.query_each(&self.removal(), until)?,
        };
        let mut is_denied = false;
        while let Some(incoming) = client.receive()? {
            is_denied |= matches!(incoming, Incoming::SubscribeDenied);
        }
        let speaks_resp3 = client.with_connection(|it, _| Ok(it.speaks_resp3()))?;
        self.is_sharded = client.is_sharded();
        self.is_subscribed = speaks_resp3 && !is_denied;
        let refusal = answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) => Some(client.refusal(error, None)),
            _ => None,
        });
        Ok((speaks_resp3, refusal))
    }

    /// Returns why a waiter can't subscribe, by asking once more for the answer.
    fn why_deaf(&self, client: &mut Client, speaks_resp3: bool, until: Instant) -> Option<Error> {
        let channel = self.lock.channel_of(&self.waiter.id());
        let channel = String::from_utf8_lossy(&channel);
        let question: &[&str] = match (speaks_resp3, self.is_sharded) {
            (true, true) => &["SSUBSCRIBE", &channel],
            (true, false) => &["SUBSCRIBE", &channel],
            (false, _) => &["HELLO", "3"],
        };
        let replies = client.ask(&[question], until);
        let error = replies.map_or_else(Some, |mut replies| replies.pop()?.err());
        let denied = "it can't subscribe; use Redis 6 or later, without a proxy";
        error.or_else(|| Some(failed(denied)))
    }

    /// Sends all calls in one request; returns the first error among the answers, and how long they took.
    fn call(
        &self,
        steps: &[Step],
        client: &mut Client,
        until: Instant,
    ) -> Result<(Option<Error>, Duration), Error> {
        let mut send = |by_hash| {
            let calls = steps.iter().map(|step| step.call.command(by_hash));
            let requests: Vec<Cmd> = calls.chain(self.removal()).collect();
            let began = Instant::now();
            let answers = client.query_each(&requests, until)?;
            Ok::<_, Error>((answers, began.elapsed()))
        };
        let is_unknown = |answer: &Value| {
            matches!(answer, Value::ServerError(error)
                if error.kind() == Some(ServerErrorKind::NoScript))
        };
        let (mut answers, mut took) = send(true)?;
        if answers.iter().any(is_unknown) {
            (answers, took) = send(false)?;
        }
        let mut results = steps
            .iter()
            .zip(answers)
            .map(|(step, answer)| match answer {
                Value::ServerError(error) => Err(client.refusal(&error, Some(&step.call))),
                answer => match (step.is_right)(answer) {
                    Some(true) => Ok(()),
                    _ => Err(failed(&format!("{}.lua gave a wrong answer", step.name))),
                },
            });
        Ok((results.find_map(Result::err), took))
    }

    /// Removes the keys after a request that failed. A server that is late carries out a part of a request even if its
    /// connection is closed meanwhile, so the first removal doesn't wait for replies.
    fn remove(&self, client: &mut Client, until: Instant) {
        let sent_until = until.max(Instant::now() + REMOVAL_SENT_WITHIN);
        client.send_without_reply(&self.removal(), sent_until);
        let _ = client.query_each(&self.removal(), until);
    }

    fn removal(&self) -> [Cmd; 2] {
        let keys = &self.lock.keys;
        let mut remove = cmd("UNLINK");
        remove.arg(&[
            &keys.lock,
            &keys.state,
            &keys.meta,
            &keys.holders,
            &keys.queue,
            &keys.waiters,
            &keys.slots,
            &keys.history,
            &keys.skips,
            &keys.notices,
            &keys.guards,
        ]);
        let mut forget = cmd("ZREM");
        forget.arg(&keys.index).arg(self.lock.name.as_str());
        [remove, forget]
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
            polls: !self.is_subscribed,
        };
        let needs = Needs {
            sharded: self.is_sharded,
            replicated: false,
        };
        let wait = || waiter.acquire_call(&request, Some(&place), needs);
        let take = holder.acquire_call(&request, None, Needs::default());
        let who = self.who.to_json();
        let ttl = TTL.as_millis().to_string();
        let skip = vec!["busy".into(), "0".into(), who.clone(), Vec::new()];
        let mut skip = lock.call_with_guards(&SKIP, skip);
        skip.keys.push(lock.keys.skips.clone());
        let stop = lock.call(&STOP, vec![holder.id().into(), who.clone()]);
        let freeze = lock.call(&FREEZE, vec![ttl.into(), who.clone()]);
        let release = holder.release_call(&ReleaseMode::UNUSED);
        let force = lock.call(&FORCE, vec![Vec::new(), who]);
        let history = lock.call(&HISTORY, Vec::new());
        let thaw = lock.call(&THAW, Vec::new());
        let called = |name, call, is_right| Step {
            name,
            call,
            is_right,
        };
        vec![
            called("acquire", take, is_held),
            called("acquire", wait(), is_queued),
            called("renew", holder.renewal(TTL, false), |it| {
                is_kept(renewed(it))
            }),
            called("prolong", holder.prolonging(TTL), |it| {
                is_kept(prolonged(&it, TTL).ok()?.ok_or(()))
            }),
            called("check", holder.check_call(TTL), |it| is_kept(checked(it))),
            called("stop", stop, has_fields::<1>),
            called("freeze", freeze, has_fields::<3>),
            called("thaw", thaw, has_fields::<2>),
            called("release", release, |it| {
                Some(matches!(released(it).ok()?, Released::Now))
            }),
            called("acquire", wait(), is_held),
            called("force", force, has_fields::<3>),
            called("skip", skip, has_fields::<1>),
            called("history", history, has_fields::<3>),
        ]
    }
}

/// Waits for the message that the waiter has got the lock.
fn hear(client: &mut Client, until: Instant) -> Result<(), Error> {
    let end = until.min(Instant::now() + MESSAGE_WITHIN);
    loop {
        match client.receive()? {
            Some(Incoming::Granted(_) | Incoming::Message) => return Ok(()),
            Some(_) => continue,
            None => {}
        }
        let within = left(end);
        let arrives = |fd| ready::to_read(fd, within).unwrap_or(false);
        if within.is_zero() || !client.fds().next().is_some_and(arrives) {
            return Err(failed(
                "no message arrived; permit +publish, or use a server that delivers messages",
            ));
        }
    }
}

/// A call of a script, and a check of its answer: `Some(true)` for the right one.
struct Step {
    name: &'static str,
    call: Call,
    is_right: fn(Value) -> Option<bool>,
}

fn is_held(answer: Value) -> Option<bool> {
    Some(matches!(acquired(answer).ok()?, Acquired::Held { .. }))
}

fn is_queued(answer: Value) -> Option<bool> {
    match acquired(answer).ok()? {
        Acquired::Busy(busy) => Some(busy.ticket.is_some()),
        _ => Some(false),
    }
}

fn is_kept<E>(state: Result<LeaseState, E>) -> Option<bool> {
    Some(matches!(state.ok()?, LeaseState::Held { .. }))
}

/// Expects at least this many fields, the first of them a number.
fn has_fields<const LEAST: usize>(answer: Value) -> Option<bool> {
    let fields = array(answer).ok()?;
    Some(fields.len() >= LEAST && number(fields.first()?).is_ok())
}

fn failed(message: &str) -> Error {
    Error::new(ErrorKind::Internal, message.to_owned())
}

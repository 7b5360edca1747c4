//! A rehearsal of all scripts, for `redlock doctor`. On a name that nobody else has, the scripts are called
//! as a holder, a waiter and a person do.
//!
//! A single request creates, uses and removes all keys, so nothing is left behind even if its replies are
//! late. If that request may be lost, the keys are removed again.

use std::time::{Duration, Instant};

use redis::{Cmd, ServerErrorKind, Value, cmd};

use super::claim::{Claim, QueueOptions, QueuePlace, ReleaseMode, Request, ServerTraits};
use super::client::{Client, Incoming, Push, left};
use super::history::HoldOutcome;
use super::lock::Lock;
use super::locks::Locks;
use super::scripts::{FORCE, FREE, FREEZE, HISTORY, SKIP, STOP, TAKE, THAW, number};
use super::token::random_bits;
use super::who::{Limit, Who};
use crate::server::call::Call;
use crate::server::error::{Error, ErrorKind};

/// TTL of the rehearsal's lock.
const TTL: Duration = Duration::from_secs(5);

/// Time kept to remove the keys after a request that failed.
const REMOVED_WITHIN: Duration = Duration::from_millis(200);

/// Longest time to connect and send the removal of the keys, if no other time is left.
const REMOVAL_SENT_WITHIN: Duration = Duration::from_millis(100);

/// Result of a rehearsal.
pub struct RehearsalResult {
    pub calls: usize,
    pub took: Duration,
    /// Error of the first call that failed.
    pub failure: Option<Error>,
    /// Reason why the waiter got no message that it holds the lock.
    pub silence: Option<Error>,
}

/// A lock of its own, with a holder, a waiter, and a last claim.
struct Rehearsal<'a> {
    lock: Lock,
    who: &'a Who,
    holder: Claim,
    waiter: Claim,
    last: Claim,
    speaks_resp3: bool,
    is_subscribed: bool,
    needs: ServerTraits,
}

impl Locks {
    /// Acquires, waits, hands over, releases and more, on the connection of this client. `who` is shown as
    /// the holder.
    ///
    /// # Errors
    /// If the server doesn't answer before `until`.
    pub fn rehearse(
        &self,
        client: &mut Client,
        who: &Who,
        until: Instant,
    ) -> Result<RehearsalResult, Error> {
        let name = format!("redlock-doctor-{:032x}", random_bits()?);
        let lock = self.lock(name.parse().map_err(|_| failed(&name))?);
        let claim = || Claim::new(lock.clone(), who);
        let mut rehearsal = Rehearsal {
            holder: claim()?,
            waiter: claim()?,
            last: claim()?,
            lock,
            who,
            speaks_resp3: false,
            is_subscribed: false,
            needs: ServerTraits::default(),
        };
        let refusal = rehearsal.subscribe(client, until)?;
        let calls_until = until.checked_sub(REMOVED_WITHIN).unwrap_or(until);
        let (failure, took) = if let Some(error) = refusal {
            (Some(error), Duration::ZERO)
        } else {
            let called = rehearsal.call(client, calls_until);
            called.inspect_err(|_| rehearsal.remove(client, until))?
        };
        let silence = match &failure {
            None if rehearsal.is_subscribed => hear(client).err(),
            None => rehearsal.why_deaf(&mut client.another(), until),
            Some(_) => None,
        };
        Ok(RehearsalResult {
            calls: rehearsal.steps().len(),
            took,
            failure,
            silence,
        })
    }
}

impl Rehearsal<'_> {
    /// Subscribes as a waiter does. Checks first, before any key is created, that this user may remove the
    /// keys. Otherwise returns the refusal.
    fn subscribe(&mut self, client: &mut Client, until: Instant) -> Result<Option<Error>, Error> {
        client.limit_to(left(until));
        let subscribed = self.waiter.subscribe(client);
        let answers = subscribed.and_then(|()| client.query_each(&self.removal(), until));
        // Some proxies close the connection at HELLO.
        let answers = answers.or_else(|_| client.query_each(&self.removal(), until))?;
        let mut is_denied = false;
        while let Some(incoming) = client.receive()? {
            is_denied |= matches!(incoming, Incoming::Push(Push::SubscribeDenied));
        }
        self.speaks_resp3 = client.with_connection(|it, _| Ok(it.speaks_resp3()))?;
        self.needs.sharded = client.is_sharded();
        self.is_subscribed = self.speaks_resp3 && !is_denied;
        Ok(answers.iter().find_map(|answer| match answer {
            Value::ServerError(error) => Some(client.refusal(error, None)),
            _ => None,
        }))
    }

    /// Returns the reason why a waiter can't subscribe, by asking again.
    fn why_deaf(&self, client: &mut Client, until: Instant) -> Option<Error> {
        let channel = self.lock.keys.of(&self.waiter.id());
        let channel = String::from_utf8_lossy(&channel);
        let question: &[&str] = match (self.speaks_resp3, self.needs.sharded) {
            (true, true) => &["SSUBSCRIBE", &channel],
            (true, false) => &["SUBSCRIBE", &channel],
            (false, _) => &["HELLO", "3"],
        };
        let replies = client.ask(&[question], until);
        let error = replies.map_or_else(Some, |mut replies| replies.pop()?.err());
        let denied = "it can't subscribe; use Redis 6 or later, without a proxy";
        error.or_else(|| Some(failed(denied)))
    }

    /// Sends all calls in one request. Returns the first error among the answers, and how long they took.
    fn call(
        &self,
        client: &mut Client,
        until: Instant,
    ) -> Result<(Option<Error>, Duration), Error> {
        let steps = self.steps();
        let mut send = |by_hash| {
            let calls = steps.iter().map(|(_, call, _)| call.command(by_hash));
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
        let mut results = steps.iter().zip(answers);
        let failure = results.find_map(|((name, call, expected), answer)| match answer {
            Value::ServerError(error) => Some(client.refusal(&error, Some(call))),
            answer => {
                let number = first_number(&answer);
                let is_right = number.is_some_and(|it| expected.is_none_or(|other| it == other));
                (!is_right).then(|| failed(&format!("{name}.lua gave a wrong answer")))
            }
        });
        Ok((failure, took))
    }

    /// Removes the keys after a failed request. A slow server carries out a part of a request even if its
    /// connection is closed meanwhile, so the first removal doesn't wait for replies.
    fn remove(&self, client: &mut Client, until: Instant) {
        let sent_until = until.max(Instant::now() + REMOVAL_SENT_WITHIN);
        let server = client.server();
        let _ = server.send_without_reply(&self.removal(), sent_until);
        let _ = client.query_each(&self.removal(), until);
    }

    /// Returns the commands that remove all keys of the lock. In the index, which all locks share, only its
    /// name.
    fn removal(&self) -> [Cmd; 2] {
        let index = &self.lock.keys.index;
        let mut keys = self.lock.call(&SKIP, Vec::new()).keys;
        keys.retain(|key| key != index);
        for claim in [&self.holder, &self.waiter] {
            let notices = ["cancelled", "removed", "forced", "left"];
            keys.extend(notices.map(|kind| self.lock.notice(kind, &claim.id())));
        }
        let (mut remove, mut forget) = (cmd("UNLINK"), cmd("ZREM"));
        remove.arg(keys);
        forget.arg(index).arg(self.lock.name.as_str());
        [remove, forget]
    }

    fn steps(&self) -> [RehearsalStep; 15] {
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
        let place = QueuePlace {
            ticket: None,
            polls: !self.is_subscribed,
        };
        let wait = || waiter.acquire_call(&request, Some(&place), self.needs);
        let acquire = |claim: &Claim| claim.acquire_call(&request, None, ServerTraits::default());
        let finished = ReleaseMode::Finished {
            outcome: HoldOutcome::Status(0),
            keep_for: Duration::ZERO,
        };
        let who = self.who.to_json();
        let ttl = TTL.as_millis().to_string();
        let skip = vec!["busy".into(), "0".into(), who.clone(), Vec::new()];
        let stop = vec![holder.id().into(), who.clone()];
        let freeze = vec![ttl.into(), who.clone()];
        let release = holder.release_call(&ReleaseMode::UNUSED);
        [
            ("acquire", acquire(holder), Some(1)),
            ("acquire", wait(), Some(0)),
            ("renew", holder.renewal(TTL, false), Some(1)),
            ("prolong", holder.prolonging(TTL), Some(5000)),
            ("check", holder.check_call(TTL), Some(1)),
            ("stop", lock.call(&STOP, stop), None),
            ("freeze", lock.call(&FREEZE, freeze), Some(1)),
            ("thaw", lock.call(&THAW, Vec::new()), Some(1)),
            ("release", release, Some(1)),
            ("acquire", wait(), Some(1)),
            ("force", lock.call(&FORCE, vec![Vec::new(), who]), Some(1)),
            ("take", acquire(&self.last).of(&TAKE), Some(1)),
            ("free", self.last.release_call(&finished).of(&FREE), Some(1)),
            ("skip", lock.call(&SKIP, skip), Some(1)),
            ("history", lock.call(&HISTORY, Vec::new()), None),
        ]
    }
}

/// Reads the message that the waiter has the lock, which comes before the last answers.
fn hear(client: &mut Client) -> Result<(), Error> {
    while let Some(incoming) = client.receive()? {
        if let Incoming::Granted(_) | Incoming::Push(Push::Message(_) | Push::MessageMissed) =
            incoming
        {
            return Ok(());
        }
    }
    Err(failed(
        "no message arrived; permit +publish, or use a server that delivers messages",
    ))
}

/// Name of a script, a call of the script, and the number that its answer is or begins with (`None`: any).
type RehearsalStep = (&'static str, Call, Option<u64>);

fn first_number(answer: &Value) -> Option<u64> {
    let first = match answer {
        Value::Array(fields) => fields.first()?,
        other => other,
    };
    number(first).ok()
}

fn failed(message: &str) -> Error {
    Error::new(ErrorKind::Internal, message.to_owned())
}

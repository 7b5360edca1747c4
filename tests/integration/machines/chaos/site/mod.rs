//! Servers of a run of chaos and their faults: processes that die, hang and return with or without their data, full memory,
//! changed clocks, slow or cut connections, failovers.
//!
//! A fault begins with [`Topology::inject`], and ends at the first [`Topology::tick`] after its time is over.

pub mod sentinel;
pub mod single;

use std::time::{Duration, Instant};

use redis::Value;

use super::history::{Forgets, SiteFault};
use super::workers::lock_of;
use crate::support::{Dice, Redis, ask_within};

/// Longest time until all servers are well after the last fault.
const HEALING: Duration = Duration::from_secs(60);

/// Time until the next attempt to give a server a command.
const AGAIN: Duration = Duration::from_millis(50);

/// Longest wait for a reply while a fault begins.
const PATIENCE: Duration = Duration::from_millis(40);

/// Servers of a run; gone when dropped.
pub trait Topology {
    fn described(&self) -> String;
    fn environment(&self) -> Vec<(&'static str, String)>;
    /// Returns the range of sensible TTLs, in milliseconds.
    fn ttls(&self) -> (i64, i64);
    /// Returns the server that has the keys now. Tests use its Unix socket, which no fault of a line affects.
    fn observer(&self) -> Option<&Redis>;
    /// Returns the names of all faults, separated by commas; more frequent ones occur more often.
    fn faults(&self) -> &'static str;
    /// Begins a fault, if the servers are in a state that allows it. Takes 50 ms at most.
    fn inject(&mut self, fault: &str, dice: &mut Dice) -> Option<SiteFault>;
    /// Returns the faults that happened without being injected: on a busy machine a server may seem dead to the others.
    fn noticed(&mut self) -> Vec<SiteFault> {
        Vec::new()
    }
    /// Returns how long all must be well before another server can no longer take over because of an earlier fault.
    fn settles_in(&self) -> Duration {
        Duration::ZERO
    }
    fn later(&mut self) -> &mut Later;
    fn carry_out(&mut self, then: Then);
    /// Does the recurring work.
    fn look_after(&mut self) {}
    /// Returns the reason if not all servers are well.
    fn lacking(&mut self) -> Option<String>;

    /// Ends the faults whose time is over. Must be called about every 20 ms.
    fn tick(&mut self) {
        let now = Instant::now();
        while let Some(then) = self.later().due(now) {
            self.carry_out(then);
        }
        self.look_after();
    }

    fn is_whole(&mut self) -> bool {
        self.later().0.is_empty() && self.lacking().is_none()
    }

    /// Ends all faults. Returns when all servers are well again, or after a minute the reason why they aren't.
    fn heal(&mut self) -> Result<(), String> {
        for (_, then) in std::mem::take(&mut self.later().0) {
            self.carry_out(then);
        }
        let end = Instant::now() + HEALING;
        let mut well_since: Option<Instant> = None;
        loop {
            self.tick();
            match self.lacking() {
                Some(reason) if Instant::now() >= end => return Err(reason),
                Some(_) => well_since = None,
                None => {
                    let since = *well_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.settles_in() {
                        return Ok(());
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Suspended,
    Dead,
}

/// Step that ends a fault. Servers are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    Resume(usize),
    Launch(usize),
    /// Like `Launch`, even if the primary has lost its data.
    Restart(usize),
    /// Gives memory back to a full server.
    Free(usize),
    EndLineFault,
    /// Changes the clock of a server by this many milliseconds.
    SetClock(i64),
    ResumeSentinel(usize),
    LaunchSentinel(usize),
}

/// Steps for later.
#[derive(Default)]
pub struct Later(Vec<(Instant, Then)>);

impl Later {
    fn after(&mut self, time: Duration, then: Then) {
        self.0.push((Instant::now() + time, then));
    }

    fn due(&mut self, now: Instant) -> Option<Then> {
        let at = self.0.iter().position(|(at, _)| *at <= now)?;
        Some(self.0.remove(at).1)
    }
}

/// Draws whether servers keep their data when they die. Returns that and their options.
fn draw_options(dice: &mut Dice) -> (bool, Vec<&'static str>) {
    let keeps_data = dice.chance(50);
    let mut options = words!("--enable-debug-command local").to_vec();
    if keeps_data {
        options.extend(words!("--appendonly yes --appendfsync always"));
    }
    (keeps_data, options)
}

/// Draws a duration in milliseconds, excluding the end.
fn ms(dice: &mut Dice, from: i64, to: i64) -> Duration {
    Duration::from_millis(dice.between(from, to).unsigned_abs())
}

/// Returns the server's reply, if it comes at once.
fn tell(redis: &Redis, command: &[&str]) -> Option<Value> {
    ask_within(PATIENCE, &redis.socket(), command)
}

/// Returns true if the server executes commands: it has loaded its data and is neither suspended nor paused.
fn answers(redis: &Redis) -> bool {
    matches!(tell(redis, &["PING"]), Some(Value::SimpleString(_)))
}

/// Begins a fault of a single server, in its memory, its clients or its keys.
fn disturb(redis: &Redis, fault: &str, dice: &mut Dice) -> Option<SiteFault> {
    if !answers(redis) {
        return None;
    }
    let mut lasts = Duration::ZERO;
    let mut forgets = Forgets::Nothing;
    match fault {
        "clients reset" => {
            tell(redis, words!("CLIENT KILL TYPE normal"));
            tell(redis, words!("CLIENT KILL TYPE pubsub"));
        }
        "writes paused" | "all paused" => {
            lasts = ms(dice, 100, 2000);
            let kind = if fault == "all paused" {
                "ALL"
            } else {
                "WRITE"
            };
            let time = lasts.as_millis().to_string();
            tell(redis, &["CLIENT", "PAUSE", &time, kind]);
        }
        "scripts flushed" => {
            tell(redis, &["SCRIPT", "FLUSH"]);
        }
        "slow command" => {
            lasts = ms(dice, 100, 500);
            let time = lasts.as_secs_f64().to_string();
            // The reply would come only at the end of the sleep.
            let moment = Duration::from_millis(1);
            ask_within(moment, &redis.socket(), &["DEBUG", "SLEEP", &time]);
        }
        "all keys deleted" => {
            tell(redis, &["FLUSHALL"]);
            forgets = Forgets::Holds;
        }
        "a key deleted" => return delete_one(redis, dice),
        _ => unreachable!("no such fault: {fault}"),
    }
    Some(SiteFault::new("", lasts).forgetting(forgets))
}

/// Deletes the key of a lock, or a key beside it.
fn delete_one(redis: &Redis, dice: &mut Dice) -> Option<SiteFault> {
    let keys: Vec<String> = redis::from_redis_value(tell(redis, &["KEYS", "*"])?).ok()?;
    let of_locks = keys.iter().filter_map(|key| Some((key, lock_of(key)?)));
    let mut of_locks: Vec<(&String, &str)> = of_locks.collect();
    // Sorted, so that only the dice decide.
    of_locks.sort_unstable();
    if of_locks.is_empty() {
        return None;
    }
    let (key, name) = dice.pick(&of_locks);
    tell(redis, &["DEL", key]);
    let forgets = match key.rsplit(':').next() {
        Some("history" | "skips" | "index") => Forgets::Nothing,
        Some("state" | "queue" | "waiters") => Forgets::AllButHolds,
        _ => Forgets::Holds,
    };
    let fault = SiteFault::new(format!("DEL {key}"), Duration::ZERO).forgetting(forgets);
    Some(SiteFault {
        name: Some(name.to_owned()),
        ..fault
    })
}

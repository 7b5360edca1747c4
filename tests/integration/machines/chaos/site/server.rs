//! What can befall one server, whatever it is to others: its process, its memory, its clients, its keys.

use std::time::Duration;

use redis::Value;

use super::{Injected, Loss, ms};
use crate::support::{Dice, Redis, ask_within};

/// How long a question to a server may take while a fault begins.
const PATIENCE: Duration = Duration::from_millis(40);

/// What a server answers at once, if it does.
pub fn tell(redis: &Redis, command: &[&str]) -> Option<Value> {
    ask_within(PATIENCE, &redis.socket(), command)
}

/// Whether it executes commands: it has loaded its data, isn't stopped, and hasn't paused its clients.
pub fn answers(redis: &Redis) -> bool {
    matches!(tell(redis, &["PING"]), Some(Value::SimpleString(_)))
}

/// A fault of the server's own.
pub fn disturb(redis: &Redis, fault: &str, dice: &mut Dice) -> Injected {
    if !answers(redis) {
        return Injected::nothing("the server doesn't answer");
    }
    match fault {
        "clients reset" => {
            tell(redis, &["CLIENT", "KILL", "TYPE", "normal"]);
            tell(redis, &["CLIENT", "KILL", "TYPE", "pubsub"]);
            Injected::at_once("all clients killed")
        }
        "a client reset" => reset_one(redis, dice),
        "writes paused" | "all paused" => {
            let time = ms(dice, 100, 2000);
            let kind = if fault == "all paused" {
                "ALL"
            } else {
                "WRITE"
            };
            tell(
                redis,
                &["CLIENT", "PAUSE", &time.as_millis().to_string(), kind],
            );
            Injected::new(format!("CLIENT PAUSE {kind}"), time)
        }
        "scripts flushed" => {
            tell(redis, &["SCRIPT", "FLUSH"]);
            Injected::at_once("SCRIPT FLUSH")
        }
        "slow command" => {
            let time = ms(dice, 100, 500);
            // The answer would come when it is over.
            ask_within(
                Duration::from_millis(1),
                &redis.socket(),
                &["DEBUG", "SLEEP", &time.as_secs_f64().to_string()],
            );
            Injected::new("DEBUG SLEEP", time)
        }
        "all keys deleted" => {
            tell(redis, &["FLUSHALL"]);
            Injected::at_once("FLUSHALL").losing(Loss::Everything)
        }
        "a lock deleted" | "a key deleted" => delete_one(redis, fault == "a lock deleted", dice),
        _ => unreachable!("no such fault: {fault}"),
    }
}

fn reset_one(redis: &Redis, dice: &mut Dice) -> Injected {
    let list = text(tell(redis, &["CLIENT", "LIST", "TYPE", "normal"]));
    let ids = list.lines().filter_map(|line| line.split(' ').next());
    let ids: Vec<&str> = ids.filter_map(|id| id.strip_prefix("id=")).collect();
    // The last one is ours.
    let [others @ .., _] = &ids[..] else {
        return Injected::nothing("no client");
    };
    if others.is_empty() {
        return Injected::nothing("no client");
    }
    tell(redis, &["CLIENT", "KILL", "ID", dice.pick(others)]);
    Injected::at_once("one client killed")
}

/// What stands beside a lock ([`Loss::Sibling`]).
const SIBLINGS: [&str; 9] = [
    "state", "meta", "holders", "slots", "queue", "waiters", "history", "skips", "index",
];

fn delete_one(redis: &Redis, is_lock: bool, dice: &mut Dice) -> Injected {
    let keys = tell(redis, &["KEYS", "*"]);
    let keys: Vec<String> = keys.map_or_else(Vec::new, |keys| {
        redis::from_redis_value(keys).unwrap_or_default()
    });
    let kind = |key: &str| {
        SIBLINGS
            .into_iter()
            .find(|kind| key.ends_with(&format!(":{kind}")))
    };
    let mut keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.retain(|key| kind(key).is_none() == is_lock);
    // So that the dice decide alone.
    keys.sort_unstable();
    if keys.is_empty() {
        return Injected::nothing("no such key");
    }
    let key = dice.pick(&keys);
    tell(redis, &["DEL", key]);
    let loss = match kind(key) {
        Some(kind) => Loss::Sibling(key.to_owned(), kind),
        None => Loss::Lock(key.to_owned()),
    };
    Injected::at_once(format!("DEL {key}")).losing(loss)
}

/// An answer as text; empty where there is none.
pub fn text(value: Option<Value>) -> String {
    value.map_or_else(String::new, |value| {
        redis::from_redis_value(value).unwrap_or_default()
    })
}

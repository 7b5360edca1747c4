//! Properties of the scripts on a real server: the work of one call, requests in parts, and keys that other programs replaced.
//! The examples in `tests/model/examples` state everything else, and the simulation (`tests/model/simulate.rs`) tries it in any
//! order.

use std::collections::BTreeSet;

use crate::support::lua::{KEYS, SHARED, WHO, call, id};
use crate::support::prelude::*;

const META: &str = KEYS[2];
const HOLDERS: &str = KEYS[3];
const QUEUE: &str = KEYS[4];
const WAITERS: &str = KEYS[5];

/// Requests the lock. Returns the answer. `place` is "" for a client that doesn't queue; the server sends no messages to a
/// polling waiter, and assumes that it lives.
fn acquire(redis: &Redis, token: &str, limit: &str, place: &str) -> Vec<String> {
    let rest = ["", "0", "", "0", "0"];
    let args = [&[token, "30000", limit, WHO, place], &rest[..]].concat();
    call(redis, "acquire", &args)
}

/// Takes the lock. Asserts that it was free.
#[track_caller]
fn take(redis: &Redis, token: &str, limit: &str) {
    let answer = acquire(redis, token, limit, "");
    assert_eq!(answer[0], "1", "{answer:?} {}", redis.describe_key("a"));
}

/// Returns the number of commands that the server executes during `call`, including those of scripts.
fn work(redis: &Redis, call: impl FnOnce()) -> u64 {
    let commands = || {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let calls = stats.lines().filter_map(|line| line.split_once("calls="));
        let calls = calls.filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok());
        calls.sum::<u64>()
    };
    let before = commands();
    call();
    commands() - before
}

/// Puts many waiters into the queue at once, which poll and want a slot.
fn crowd(redis: &Redis, count: u32, limit: &str) {
    let script = format!(
        "for n = 1, {count} do
           redis.call('ZADD', KEYS[1], n, 'token' .. n)
           redis.call('HSET', KEYS[2], 'token' .. n, ARGV[1] .. ' {limit} 1 0 ' .. ARGV[2])
         end
         redis.call('HSET', KEYS[3], 'ticket', {count})
         for n = 1, 3 do redis.call('PEXPIRE', KEYS[n], 600000) end"
    );
    // The waiter expires in an hour, has just sent a heartbeat, and knows its ticket.
    let now = now().as_millis();
    let life = format!("{}:2000", now + 3_600_000);
    let keys = [QUEUE, WAITERS, KEYS[1]];
    let values = [life.as_str(), r#"{"host":"h"}"#];
    redis.cli(&[&["EVAL", &script, "3"], &keys[..], &values].concat());
}

/// Creates this many members of a group (token1 and so on). Each has the slot of its number, unless the lock is shared.
fn members(redis: &Redis, count: u32, limit: &str) {
    let code = "
local value = ARGV[1] == '1000000000' and 'redlock:shared' or 'redlock:slots'
redis.call('SET', KEYS[1], value, 'PX', 60000)
local ends = redis.call('TIME')[1] * 1000 + 60000
for n = 1, tonumber(ARGV[2]) do
  local slot = value == 'redlock:slots' and n or 0
  redis.call('ZADD', KEYS[4], ends, 'token' .. n)
  redis.call('HSET', KEYS[3], 'token' .. n, table.concat({n, ends - 60000, ARGV[1], slot, 0, 'held', ARGV[3]}, ' '))
  if slot > 0 then
    redis.call('ZADD', KEYS[9], slot, 'slot token' .. n, string.format('%.0f', 2 ^ 40 + ARGV[1]), 'limit token' .. n)
  end
end";
    let count = count.to_string();
    let words = [&["EVAL", code, "11"], &KEYS[..], &[limit, &count, WHO]].concat();
    redis.cli(&words);
}

#[test]
fn a_renewal_leaves_the_lock_of_another_as_it_is_though_our_entry_is_still_there() {
    for notify in ["0", "1"] {
        let redis = Redis::start();
        take(&redis, "ours", "1");
        redis.cli(&["SET", "redlock:a", "theirs", "PX", "300000"]);
        let answer = call(&redis, "renew", &["ours", "600000", notify]);
        assert_eq!(answer[0], "0");
        assert_eq!(redis.cli(&["GET", "redlock:a"]), "theirs");
        let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        assert!(left <= 300_000, "{left}");
    }
}

#[test]
fn a_live_waiter_behind_4500_dead_ones_retries_until_it_has_the_lock() {
    let redis = Redis::start();
    take(&redis, "holder", "1");
    crowd(&redis, 4500, "1");
    assert_eq!(acquire(&redis, "live", "1", "poll")[0], "0");
    // The other waiters have a channel, but no process listens. The holder has died too, so nobody releases the lock.
    let script = "for _, token in ipairs(redis.call('ZRANGE', KEYS[1], 0, 4499)) do
        redis.call('HSET', KEYS[2], token, (string.gsub(redis.call('HGET', KEYS[2], token), ' 0 {', ' 1 {')))
    end
    redis.call('DEL', KEYS[3])";
    redis.cli(&["EVAL", script, "3", QUEUE, WAITERS, KEYS[0]]);
    let mut calls = 1;
    loop {
        let answer = acquire(&redis, "live", "1", "poll");
        if answer[0] == "1" {
            break;
        }
        assert_eq!((answer[5].as_str(), answer[11].as_str()), ("0", "1"));
        calls += 1;
        assert!(calls < 30);
    }
}

#[test]
fn a_thaw_lets_3000_in_by_parts_and_gives_each_a_slot_of_its_own() {
    let redis = Redis::start();
    call(&redis, "freeze", &["600000", WHO]);
    crowd(&redis, 3000, "3000");
    let thawed = work(&redis, || assert_eq!(call(&redis, "thaw", &[])[0], "1"));
    assert!(thawed < 5_000, "one call of thaw sent {thawed} commands");
    // Extends all grants, so that none expires however long this takes. Returns an unconfirmed one.
    let granted = "local token = ''
        for _, one in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
            redis.call('ZADD', KEYS[2], ARGV[1], one)
            if string.find(redis.call('HGET', KEYS[3], one), ' granted[: ]') then token = one end
        end
        redis.call('PEXPIREAT', KEYS[1], ARGV[1])
        return token";
    let later = (now().as_millis() + 3_600_000).to_string();
    while redis.cli(&["ZCARD", QUEUE]) != "0" {
        let token = redis.cli(&["EVAL", granted, "3", KEYS[0], HOLDERS, META, &later]);
        assert_ne!(token, "", "no waiter is admitted any more");
        let renew = || assert_eq!(call(&redis, "renew", &[&token, "30000", "0"])[0], "1");
        let sent = work(&redis, renew);
        assert!(sent < 5_000, "one confirmation sent {sent} commands");
    }
    let entries = redis.cli(&["HVALS", META]);
    let slot = |entry: &str| entry.split(' ').nth(3)?.parse::<u32>().ok();
    let slots: BTreeSet<u32> = entries.lines().filter_map(slot).collect();
    assert_eq!(slots, (1..=3000).collect());
    // A member leaves, and another comes.
    let sent = work(&redis, || {
        call(&redis, "release", &["token1700", "0", "status:0", "0"]);
        let answer = acquire(&redis, "new", "3000", "");
        assert_eq!((answer[0].as_str(), answer[2].as_str()), ("1", "1700"));
        assert_eq!(acquire(&redis, "late", "3000", "poll")[0], "0");
    });
    assert!(sent < 200, "{sent} commands");
}

#[test]
fn a_member_and_a_waiter_among_2500_each_are_found_by_their_ids() {
    let redis = Redis::start();
    members(&redis, 2_500, SHARED);
    assert_eq!(acquire(&redis, "live", "1", "poll")[0], "0");
    let code = "for n = 1, 2500 do
        redis.call('ZADD', KEYS[1], n, 'waiter' .. n)
        redis.call('HSET', KEYS[2], 'waiter' .. n, '99999999999999:2000 1 1 0 {}')
    end";
    redis.cli(&["EVAL", code, "2", QUEUE, WAITERS]);
    let force = |id: &str| {
        outcome(&mut redis.redlock(words!("release --force --id {} a", id))).assert_code(0);
    };
    // In any order that the server has, some of these members are beyond the first 2,000.
    for number in (1..=2_500).step_by(250) {
        let token = format!("token{number}");
        outcome(&mut redis.redlock(words!("stop -n --id {} a", &id(&token)))).assert_code(0);
        force(&id(&token));
        assert_eq!(call(&redis, "check", &[&token, "30000"])[0], "0");
    }
    // However long that has taken, a silent waiter is still considered alive.
    assert_eq!(acquire(&redis, "live", "1", "poll")[0], "0");
    force(&id("live"));
    assert_eq!(redis.cli(&["ZSCORE", QUEUE, "live"]), "");
    let compared = work(&redis, || {
        let answer = call(&redis, "stop", &["ffffffffffff", WHO, "0"]);
        assert_eq!(answer[0], "4", "{answer:?}");
    });
    assert!(compared < 100, "{compared}");
}

#[test]
fn a_status_in_parts_shows_all_of_1200_members_and_1200_waiters_once() {
    let redis = Redis::start();
    members(&redis, 1_200, SHARED);
    crowd(&redis, 1_200, "1");
    let locks = json(&redis, "status --json a");
    for list in ["holders", "waiters"] {
        let all = locks[0][list].as_array().unwrap();
        let ids: BTreeSet<String> = all.iter().map(|entry| entry["id"].to_string()).collect();
        assert_eq!((ids.len(), all.len()), (1_200, 1_200), "{list}");
    }
}

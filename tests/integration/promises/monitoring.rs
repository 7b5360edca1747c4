//! What watches over locks without a person: `status --older-than`, for cron.

use serde_json::{Value, json};

use crate::support::pty::Terminal;
use crate::support::{Gated, Outcome, Redis, outcome, redlock};

/// What `redlock status` prints, and its status.
fn status(redis: &Redis, words: &[&str]) -> Outcome {
    let end = outcome(&mut redis.redlock(&[&["status"], words].concat()));
    end.assert_silent();
    end
}

/// A hold, or a wait, that began this long ago by the server's clock; of a client that isn't there.
fn plant(redis: &Redis, key: &str, minutes: u64) {
    let time = redis.cli(&["TIME"]);
    let now: u64 = time.lines().next().unwrap().parse().unwrap();
    let since = (now - 60 * minutes) * 1000;
    let later = (now + 3600) * 1000;
    let who = r#"{"host":"h","user":"u","pid":1,"command":["secret-command"],"ttl":3600000,"instance":"i"}"#;
    if let Some(name) = key.strip_prefix("held ") {
        let lock = format!("redlock:{name}");
        redis.cli(&["SET", &lock, "secret-token", "PX", "3600000"]);
        let entry = format!("1 {since} 1 1 0 held {who}");
        redis.cli(&["HSET", &format!("{{{lock}}}:meta"), "secret-token", &entry]);
    } else {
        let lock = format!("redlock:{}", key.strip_prefix("wanted ").unwrap());
        let entry = format!("{later} 1 {since} 0 1 {who}");
        redis.cli(&["ZADD", &format!("{{{lock}}}:queue"), "1", "secret-waiter"]);
        redis.cli(&[
            "HSET",
            &format!("{{{lock}}}:waiters"),
            "secret-waiter",
            &entry,
        ]);
    }
    let name = key.split(' ').next_back().unwrap();
    redis.cli(&["ZADD", "{redlock:}:index", &later.to_string(), name]);
}

#[test]
fn a_lock_that_was_held_or_waited_for_for_too_long_is_shown_with_status_1() {
    let redis = Redis::start();
    let _young = Gated::start(&redis, &["young"]).ready();
    redis.cli(&["SET", "redlock:foreign", "token", "PX", "60000"]);
    for words in [
        &["--older-than", "1h"][..],
        &["--older-than", "1h", "young", "unused", "foreign"],
        &["--older-than", "1h", "*"],
        &["--older-than", "1h", "--names-only"],
    ] {
        // cron mails nothing.
        assert_eq!(status(&redis, words).assert_code(0).stdout, "", "{words:?}");
    }
    let json = status(&redis, &["--older-than", "1h", "--json", "young"]);
    assert_eq!(json.assert_code(0).stdout, "[]\n");

    plant(&redis, "held a-held", 61);
    plant(&redis, "wanted b-wanted", 62);
    for (words, shown) in [
        (&["--older-than", "1h"][..], &["a-held", "b-wanted"][..]),
        (&["--older-than", "61m30s"], &["b-wanted"]),
        (&["--older-than", "1h", "young", "a-held"], &["a-held"]),
        (&["--older-than", "1h", "y*", "b-*"], &["b-wanted"]),
        (&["--older-than", "0", "young"], &["young"]),
    ] {
        let end = status(&redis, words);
        end.assert_code(1);
        for name in ["young", "unused", "foreign", "a-held", "b-wanted"] {
            assert_eq!(end.stdout.contains(name), shown.contains(&name), "{end:?}");
        }
        let json = status(&redis, &[&["--json"], words].concat());
        let locks: Vec<Value> = serde_json::from_str(&json.assert_code(1).stdout).unwrap();
        let found: Vec<&Value> = locks.iter().map(|lock| &lock["name"]).collect();
        assert_eq!(json!(found), json!(shown), "{words:?}");
    }
}

#[test]
fn a_person_is_told_that_no_lock_is_that_old() {
    let redis = Redis::start();
    let command = redis.redlock(&["status", "--older-than", "90m"]);
    let mut terminal = Terminal::start(command);
    terminal.line("no holder or waiter is older than 1h30m");
}

#[test]
fn an_age_is_not_watched() {
    let end = outcome(&mut redlock(words!("status --older-than 1h --watch")));
    end.assert_code(64).assert_says("cannot be used with");
}

//! Locks that other clients have left without an expiry: they are named, and repaired when asked for.

use std::time::Instant;

use serde_json::Value;

use crate::support::{Gated, Outcome, Redis, Running, assert_nothing_left, outcome, queued};

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

/// A server with a lock that a client has left for ever.
fn left_behind() -> Redis {
    let redis = Redis::start();
    assert_eq!(redis.cli(&["SET", "redlock:a", "crashed"]), "OK");
    redis
}

fn pttl(redis: &Redis) -> i64 {
    redis.cli(&["PTTL", "redlock:a"]).parse().unwrap()
}

const REPAIR: [&str; 6] = ["run", "--ttl", "6s", "-k", "100ms", "REDLOCK_REPAIR_TTL=1"];

#[test]
fn status_says_that_it_never_ends_and_what_helps() {
    let redis = left_behind();
    let table = redlock(&redis, &["status", "a"]).stdout;
    assert!(
        table.contains("no expiry") && table.contains("REDLOCK_REPAIR_TTL=1"),
        "{table}"
    );
    let json = redlock(&redis, &["status", "--json", "a"]).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let holder = &json[0]["holders"][0];
    assert_eq!(
        (&holder["foreign"], &holder["ttl_ms"], &json[0]["ttl_ms"]),
        (&true.into(), &Value::Null, &Value::Null)
    );
    // One that does end isn't called so.
    redis.cli(&["PEXPIRE", "redlock:a", "60000"]);
    let table = redlock(&redis, &["status", "a"]).stdout;
    assert!(!table.contains("no expiry"), "{table}");
}

#[test]
fn without_repair_ttl_it_is_waited_for_and_never_touched() {
    let redis = left_behind();
    redlock(&redis, &["run", "-n", "a", "--", "true"])
        .assert_code(75)
        .assert_says("has no expiry");
    redlock(&redis, &["run", "-w", "1200ms", "a", "--", "true"])
        .assert_code(75)
        .assert_says("REDLOCK_REPAIR_TTL=1");
    redlock(&redis, &["acquire", "-n", "a"]).assert_code(75);
    redlock(&redis, &["run", "-ns", "a", "--", "true"]).assert_code(75);
    assert_eq!(pttl(&redis), -1);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "crashed");
}

#[test]
fn with_repair_ttl_it_ends_after_our_ttl_and_a_line_says_so_once() {
    std::thread::scope(|scope| {
        for mode in [&[][..], &["--shared"], &["--slots", "2"]] {
            scope.spawn(move || {
                let redis = left_behind();
                let began = Instant::now();
                let end = redlock(&redis, &[&REPAIR[..], mode, &["a", "--", "true"]].concat());
                let took = began.elapsed();
                end.assert_code(0).assert_says("it now expires in 6s");
                assert_eq!(end.stderr.matches("had no expiry").count(), 1, "{end:?}");
                // By the usual TTL it would be half a minute.
                assert!((5950..25_000).contains(&took.as_millis()), "{took:?}");
                assert_nothing_left(&redis);
            });
        }
    });
}

#[test]
fn acquire_sets_a_ttl_on_a_lock_without_an_expiry() {
    let redis = left_behind();
    redlock(
        &redis,
        &["acquire", "a", "--ttl", "6s", "REDLOCK_REPAIR_TTL=1"],
    )
    .assert_code(0);
    assert_ne!(redis.cli(&["GET", "redlock:a"]), "crashed");
}

#[test]
fn a_run_that_does_not_wait_repairs_it_and_gives_up() {
    let redis = left_behind();
    let repair = words!("run -n --ttl 6s REDLOCK_REPAIR_TTL=1 a -- true");
    redlock(&redis, repair)
        .assert_code(75)
        .assert_says("expires in 6s");
    assert!(
        (1..=6000).contains(&pttl(&redis)),
        "{}",
        redis.describe_key("a")
    );
    // Which also helps runs without REDLOCK_REPAIR_TTL.
    redlock(&redis, &["run", "-q", "-w", "50s", "a", "--", "true"]).assert_code(0);
}

#[test]
fn waiters_that_were_there_before_get_it_in_their_order() {
    let redis = left_behind();
    let script = r#"echo first >>"$HOME/order""#;
    let first = queued(&redis, &["run", "-q", "a", "-c", script]);
    let script = r#"echo second >>"$HOME/order""#;
    let mut second = redis.redlock(&[&REPAIR[..], &["-q", "a", "-c", script]].concat());
    let second = Running::start(&mut second);
    first.finish().assert_code(0);
    second.finish().assert_code(0);
    let order = std::fs::read_to_string(redis.dir.path().join("order")).unwrap();
    assert_eq!(order, "first\nsecond\n");
    assert_nothing_left(&redis);
}

#[test]
fn a_client_that_lives_after_all_keeps_it_by_renewing() {
    let redis = left_behind();
    let waiter = queued(
        &redis,
        &[&REPAIR[..], &["-w", "7s", "a", "--", "true"]].concat(),
    );
    assert!(pttl(&redis) > 0, "{}", redis.describe_key("a"));
    redis.cli(&["PEXPIRE", "redlock:a", "60000"]);
    waiter.finish().assert_code(75);
    assert!(pttl(&redis) > 50_000, "{}", redis.describe_key("a"));
}

#[test]
fn a_lock_with_an_expiry_is_left_alone_whoever_holds_it() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "alive", "PX", "60000"]);
    let no_wait = [&REPAIR[..], &["-n", "a", "--", "true"]].concat();
    let end = redlock(&redis, &no_wait);
    assert!(!end.assert_code(75).stderr.contains("no expiry"), "{end:?}");
    assert!(pttl(&redis) > 50_000);
    redis.cli(&["DEL", "redlock:a"]);
    for mode in [&[][..], &["--shared"]] {
        let holder = Gated::start(&redis, &[mode, &["--ttl", "1m", "a"]].concat()).ready();
        redlock(&redis, &no_wait).assert_code(75);
        assert!(pttl(&redis) > 50_000, "{}", redis.describe_key("a"));
        holder.end();
    }
    redlock(&redis, &["freeze", "a", "--reason", "x"]).assert_code(0);
    redlock(&redis, &no_wait)
        .assert_code(75)
        .assert_says("is frozen");
    assert!(pttl(&redis) > 60_000);
    // Nor is what isn't a lock.
    redis.cli(&["HSET", "redlock:b", "field", "theirs"]);
    redlock(&redis, &[&REPAIR[..], &["-n", "b", "--", "true"]].concat()).assert_code(78);
    assert_eq!(redis.cli(&["PTTL", "redlock:b"]), "-1");
}

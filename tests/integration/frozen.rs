//! Freezing: the holder finishes, nobody new gets in, and all see why.

use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Gated, Outcome, Redis, Running, assert_nothing_left, outcome, queued, wait_until,
};

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

fn freeze(redis: &Redis, options: &[&str]) -> Outcome {
    redlock(
        redis,
        &[&["freeze", "a", "--reason", "release night"], options].concat(),
    )
}

#[test]
fn the_holder_of_a_frozen_lock_finishes_and_nobody_else_gets_in_until_it_is_thawed() {
    for mode in [&[][..], &["--shared"], &["--slots", "3"]] {
        let redis = Redis::start();
        let holder = Gated::start(&redis, &[mode, &["a"]].concat()).ready();
        freeze(&redis, &[]).assert_code(0).assert_says("may finish");
        let refused = redlock(
            &redis,
            &[&["run", "-n"], mode, &["a", "--", "true"]].concat(),
        );
        refused
            .assert_code(75)
            .assert_says("is frozen")
            .assert_says("release night");
        let waiter = queued(
            &redis,
            &[&["run", "-q"], mode, &["a", "--", "echo", "in"]].concat(),
        );
        holder.end();
        // It has been looked at after the release, and is still frozen.
        redlock(&redis, &["run", "-n", "a", "--", "true"]).assert_code(75);
        redlock(&redis, &["acquire", "-n", "a"]).assert_code(75);
        assert_eq!(
            redis.cli(&["SET", "redlock:a", "plain", "NX", "PX", "1000"]),
            ""
        );
        redlock(&redis, &["thaw", "a"])
            .assert_code(0)
            .assert_silent();
        assert_eq!(waiter.finish().assert_code(0).stdout, "in\n");
        assert_nothing_left(&redis);
    }
}

#[test]
fn who_waits_is_told_who_froze_it_and_why() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiter = queued(&redis, &["run", "-w", "4s", "a", "--", "true"]);
    freeze(&redis, &[]).assert_code(0);
    let end = waiter.finish();
    end.assert_code(75)
        .assert_says("still held by")
        .assert_says(": release night");
    holder.end();
}

#[test]
fn status_shows_a_frozen_lock() {
    let redis = Redis::start();
    freeze(&redis, &["--for", "1h"])
        .assert_code(0)
        .assert_says("for 1h")
        .assert_says("nobody holds it");
    let table = redlock(&redis, &["status"]).stdout;
    assert!(
        table.contains("frozen") && table.contains("(release night)"),
        "{table}"
    );
    assert!(table.contains("59m"), "{table}");
    let json: Value = serde_json::from_str(&redlock(&redis, &["status", "--json"]).stdout).unwrap();
    let lock = &json[0];
    assert_eq!(
        (&lock["held"], &lock["mode"]),
        (&false.into(), &Value::Null)
    );
    let frozen = &lock["frozen"];
    assert_eq!(frozen["reason"], "release night");
    assert!(frozen["pid"].is_u64() && frozen["host"].is_string() && frozen["user"].is_string());
    assert!(frozen["since"].as_str() < frozen["until"].as_str());
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    assert_eq!(redlock(&redis, &["status"]).stdout, "no lock is held\n");
    assert_nothing_left(&redis);
}

#[test]
fn a_freeze_ends_by_itself_and_who_waits_gets_in_then() {
    let redis = Redis::start();
    freeze(&redis, &["--for", "700ms"]).assert_code(0);
    redlock(&redis, &["run", "-w", "5s", "a", "--", "true"]).assert_code(0);
    // Behind a holder, and with somebody who comes late.
    let holder = Gated::start(&redis, &["a"]).ready();
    freeze(&redis, &["--for", "700ms"]).assert_code(0);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    holder.end();
    waiter.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_lock_stays_frozen_when_its_holder_dies_or_is_forced_out() {
    let redis = Redis::start();
    let mut holder = Gated::start(&redis, &["--ttl", "1s", "a"]).ready();
    freeze(&redis, &[]).assert_code(0);
    holder.run.kill();
    wait_until("the lease is over", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    redlock(&redis, &["run", "-n", "a", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
    assert_eq!(
        redis.cli(&["SET", "redlock:a", "plain", "NX", "PX", "1000"]),
        ""
    );
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    let forced = Gated::start(&redis, &["a"]).ready();
    freeze(&redis, &[]).assert_code(0);
    redlock(&redis, &["release", "--force", "-q", "a"]).assert_code(0);
    forced.run.finish().assert_code(79);
    redlock(&redis, &["run", "-n", "a", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
    redlock(&redis, &["release", "--force", "a"])
        .assert_code(79)
        .assert_says("not held");
}

#[test]
fn a_job_that_holds_it_may_use_it_in_nested_runs() {
    let redis = Redis::start();
    let script = "redlock freeze -q a --reason x && redlock run a -- echo inner";
    let end = redlock(&redis, &["run", "a", "-c", script]);
    assert_eq!(end.assert_code(0).stdout, "inner\n");
}

#[test]
fn wait_returns_when_the_last_holder_is_gone_frozen_or_not() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    freeze(&redis, &[]).assert_code(0);
    let wait = Running::start(&mut redis.redlock(&["wait", "-w", "10s", "a"]));
    holder.end();
    wait.finish().assert_code(0);
    redlock(&redis, &["wait", "-n", "a"]).assert_code(0);
}

#[test]
fn freezing_again_changes_the_reason_and_the_end_and_thawing_twice_is_fine() {
    let redis = Redis::start();
    freeze(&redis, &[])
        .assert_code(0)
        .assert_says("at most for 30 days");
    let again = ["freeze", "a", "--reason", "other", "--for", "1m"];
    redlock(&redis, &again)
        .assert_code(0)
        .assert_says("before, it was frozen by")
        .assert_says("release night");
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left <= 60_000);
    redlock(&redis, &["thaw", "a"])
        .assert_code(0)
        .assert_silent();
    redlock(&redis, &["thaw", "a"])
        .assert_code(0)
        .assert_says("was not frozen");
    redlock(&redis, &["freeze", "a"]).assert_code(64);
    redlock(&redis, &["freeze", "a", "--reason", "x", "--for", "31d"]).assert_code(64);
    assert_nothing_left(&redis);
}

#[test]
fn a_lock_without_an_expiry_is_named_and_repaired_only_when_that_is_asked_for() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "crashed"]);
    let table = redlock(&redis, &["status", "a"]).stdout;
    assert!(
        table.contains("never ends") && table.contains("--repair-ttl"),
        "{table}"
    );
    let json: Value =
        serde_json::from_str(&redlock(&redis, &["status", "--json", "a"]).stdout).unwrap();
    assert_eq!(json[0]["holders"][0]["ttl_ms"], Value::Null);
    redlock(&redis, &["run", "-w", "1200ms", "a", "--", "true"])
        .assert_code(75)
        .assert_says("--repair-ttl");
    assert_eq!(redis.cli(&["PTTL", "redlock:a"]), "-1");
    let repair = [
        "run",
        "--ttl",
        "1s",
        "--repair-ttl",
        "-w",
        "5s",
        "a",
        "--",
        "true",
    ];
    redlock(&redis, &repair)
        .assert_code(0)
        .assert_says("it ends in 1s now");
    // One that has an expiry keeps it.
    redis.cli(&["SET", "redlock:a", "alive", "PX", "60000"]);
    let repair = [
        "run",
        "--ttl",
        "1s",
        "--repair-ttl",
        "-n",
        "a",
        "--",
        "true",
    ];
    redlock(&redis, &repair).assert_code(75);
    let left = Duration::from_millis(redis.cli(&["PTTL", "redlock:a"]).parse().unwrap());
    assert!(left > Duration::from_secs(50));
}

//! `why` tells what happened.

use crate::support::{Gated, Outcome, Redis, Running, outcome, wait_until};

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

/// A run that ends with this status.
fn run(redis: &Redis, name: &str, status: &str) {
    let script = format!("exit {status}");
    redlock(redis, &["run", "-q", name, "-c", &script]);
}

#[test]
fn why_tells_in_one_paragraph_who_held_it_who_gave_up_who_stopped_it_and_the_last_success() {
    let redis = Redis::start();
    run(&redis, "nightly", "0");
    run(&redis, "nightly", "0");
    let holder = Gated::start(&redis, &["nightly"]).ready();
    redlock(&redis, &["run", "-n", "nightly", "--", "true"]).assert_code(75);
    let text = redlock(&redis, &["why", "nightly"]).stdout;
    assert_eq!(text.lines().count(), 1, "{text}");
    for part in [
        "nightly (times in UTC): 2 runs succeeded from ",
        "gave up: held by ",
        " since ",
        "has held it since",
        "last success ",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    wait_until("it tracks its lock", || redis.trackers() > 0);
    let stopped = redlock(&redis, &["stop", "nightly", "--reason", "hung"]);
    stopped.assert_code(0);
    drop(holder);
    let text = redlock(&redis, &["why", "--utc", "nightly"]).stdout;
    for part in ["stopped by ", ": hung; ", "it is free; last success "] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    redlock(&redis, &["freeze", "nightly", "--reason", "audit"]).assert_code(0);
    let waiter = Running::start(&mut redis.redlock(&["run", "-q", "nightly", "--", "true"]));
    wait_until("it waits", || {
        redis.cli(&["ZCARD", "{redlock:nightly}:queue"]) == "1"
    });
    let text = redlock(&redis, &["why", "nightly"]).stdout;
    for part in ["1 run has waited for ", "frozen since ", ": audit"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    redlock(&redis, &["thaw", "nightly"]).assert_code(0);
    waiter.finish().assert_code(0);
    redlock(&redis, &["why", "nightl"])
        .assert_code(1)
        .assert_says("did you mean nightly?");
}

#[test]
fn why_tells_of_the_last_hold_however_many_runs_have_given_up_since_it_began() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    // Of different kinds, which are told one by one.
    for options in [&["-n"][..], &["-w", "1ms"]].iter().cycle().take(8) {
        let words = [&["run"], *options, &["a", "--", "true"]].concat();
        redlock(&redis, &words).assert_code(75);
    }
    wait_until("it tracks its lock", || redis.trackers() > 0);
    redlock(&redis, &["stop", "a", "--reason", "hung"]).assert_code(0);
    drop(holder);
    let text = redlock(&redis, &["why", "a"]).stdout;
    for part in [" ran it for ", "stopped by ", ": hung; ", "gave up waiting"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn why_says_that_a_lock_is_kept_whose_run_has_ended() {
    let redis = Redis::start();
    let words = ["run", "a", "--hold-at-least", "60s", "--", "true"];
    redlock(&redis, &words).assert_code(0);
    let text = redlock(&redis, &["why", "a"]).stdout;
    assert!(text.contains("; kept after "), "{text}");
    assert!(!text.contains("has held it"), "{text}");
}

#[test]
fn why_does_not_call_the_key_of_another_program_a_free_lock() {
    let redis = Redis::start();
    redis.cli(&["LPUSH", "redlock:a", "x"]);
    let text = redlock(&redis, &["why", "a"]).stdout;
    let says = "its key is a list, which belongs to another program";
    assert!(text.contains(says), "{text}");
    assert!(!text.contains("it is free"), "{text}");
}

#[test]
fn a_name_that_nobody_has_used_is_answered_with_the_one_that_was_meant() {
    let redis = Redis::start();
    run(&redis, "deploy", "0");
    let meant = "lock \"deploi\" was never used; did you mean deploy?";
    for words in [
        &["freeze", "deploi", "--reason", "x"][..],
        &["stop", "deploi"],
        &["status", "deploi"],
        &["release", "deploi"],
        &["release", "--force", "deploi"],
    ] {
        redlock(&redis, words).assert_code(1).assert_says(meant);
    }
    // Nothing was frozen, and a new name is one's right.
    assert_eq!(redis.cli(&["KEYS", "*deploi*"]), "");
    redlock(&redis, &["status", "--new", "deploi"])
        .assert_code(0)
        .assert_silent();
    redlock(&redis, &["freeze", "--new", "deploi", "--reason", "x"]).assert_code(0);
    // It is known from now on.
    redlock(&redis, &["status", "deploi"]).assert_code(0);
}

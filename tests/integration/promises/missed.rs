//! Jobs that didn't run: `expect` says so in time, and `why` tells what happened.

use std::time::Duration;

use crate::support::{Gated, Outcome, Redis, Running, outcome, wait_until};

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

/// A run that ends with this status.
fn run(redis: &Redis, name: &str, status: &str) {
    let script = format!("exit {status}");
    redlock(redis, &["run", "-q", name, "-c", &script]);
}

/// Sets the time of the last success of a lock back.
fn succeeded_ago(redis: &Redis, name: &str, ago: Duration) {
    let seconds: u64 = redis
        .cli(&["TIME"])
        .lines()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let at = (seconds * 1000 - u64::try_from(ago.as_millis()).unwrap()).to_string();
    let state = format!("{{redlock:{name}}}:state");
    redis.cli(&["HSET", &state, "succeeded", &at]);
    // And what was seen of it.
    let expected = redis.cli(&["HGET", "{redlock:}:expected", name]);
    if let [every, within, _] = expected.split(' ').collect::<Vec<_>>()[..] {
        let expected = format!("{every} {within} {at}");
        redis.cli(&["HSET", "{redlock:}:expected", name, &expected]);
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_success_in_time_is_silent_and_one_that_is_missing_is_a_line_and_status_1() {
    let redis = Redis::start();
    let late = redlock(&redis, &["expect", "nightly", "--every", "26h"]);
    late.assert_code(1);
    assert!(
        late.stdout
            .contains("nightly: late: no run has ever succeeded"),
        "{late:?}"
    );
    run(&redis, "nightly", "0");
    let in_time = redlock(&redis, &["expect", "nightly", "--every", "26h"]);
    in_time.assert_code(0).assert_silent();
    assert_eq!(in_time.stdout, "");
    succeeded_ago(&redis, "nightly", HOUR * 27);
    for (within, status) in [("59m", 1), ("2h", 0)] {
        let words = ["expect", "nightly", "--every", "26h", "--within", within];
        redlock(&redis, &words).assert_code(status);
    }
}

#[test]
fn what_is_expected_is_kept_and_all_of_it_is_checked_in_one_look() {
    let redis = Redis::start();
    // Whose check that is sees all as well when nobody has told it what to expect.
    let none = redlock(&redis, &["expect"]);
    none.assert_code(1).assert_says("nothing is expected");
    redlock(&redis, &["expect", "hourly"])
        .assert_code(64)
        .assert_says("--every");
    run(&redis, "hourly", "0");
    redlock(&redis, &["expect", "hourly", "--every", "1h"]).assert_code(0);
    redlock(&redis, &["expect", "nightly", "--every", "26h"]).assert_code(1);
    // Without the interval it is that of before.
    succeeded_ago(&redis, "hourly", HOUR * 2);
    redlock(&redis, &["expect", "hourly"]).assert_code(1);
    run(&redis, "hourly", "0");
    let all = redlock(&redis, &["expect"]);
    all.assert_code(1);
    let lines: Vec<&str> = all.stdout.lines().collect();
    // Those that are late come first.
    assert!(lines[0].starts_with("nightly: late: "), "{lines:?}");
    assert!(lines[1].starts_with("hourly: ok, succeeded "), "{lines:?}");
    let quiet = redlock(&redis, &["-q", "expect"]);
    assert_eq!(quiet.assert_code(1).stdout.lines().count(), 1);
    redlock(&redis, &["expect", "nightly", "--forget"]).assert_code(0);
    redlock(&redis, &["expect"]).assert_code(0);
    // A name with a slip would never be late.
    let slip = redlock(&redis, &["expect", "hourl", "--every", "1h"]);
    slip.assert_code(1).assert_says("did you mean hourly?");
    for more in [&[][..], &["--forget"]] {
        redlock(&redis, &[&["expect", "hourl"], more].concat())
            .assert_code(1)
            .assert_says("did you mean hourly?");
    }
    redlock(&redis, &["expect", "hourl", "--every", "1h", "--new"])
        .assert_code(1)
        .assert_says("\"hourl\" is expected every 1h from now on");
}

#[test]
fn a_success_is_remembered_longer_than_the_history_and_than_the_lock() {
    let redis = Redis::start();
    redlock(
        &redis,
        &["--history-size", "0", "run", "-q", "a", "--", "true"],
    )
    .assert_code(0);
    redlock(&redis, &["expect", "a", "--every", "1h"]).assert_code(0);
    for _ in 0..3 {
        run(&redis, "a", "1");
    }
    redlock(&redis, &["expect", "a"]).assert_code(0);
    // As after 60 days without a run.
    redis.cli(&["DEL", "{redlock:a}:state", "{redlock:a}:history"]);
    redlock(&redis, &["expect", "a"]).assert_code(0);
}

#[test]
fn a_late_line_says_what_failed_where_it_never_ran_and_who_holds_it_now() {
    let redis = Redis::start();
    let on = |host: &str, status: &str| {
        let entry = format!(
            r#"00 {at} {status} 0 1 {at} 1 1 0 held {{"host":"{host}","user":"u","pid":1,"command":["c"]}}"#,
            at = 1_577_836_800_000_u64
        );
        redis.cli(&["LPUSH", "{redlock:nightly}:history", &entry]);
    };
    on("web-1", "status:0");
    run(&redis, "nightly", "0");
    succeeded_ago(&redis, "nightly", HOUR * 24 * 9000);
    on("web-2", "status:4");
    let holder = Gated::start(&redis, &["nightly"]).ready();
    let late = redlock(&redis, &["expect", "nightly", "--every", "26h"]);
    late.assert_code(1);
    for part in [
        "nightly: late: last success ",
        "(expected every 1d2h)",
        "1 failure since with status 4 on web-2",
        "no success on web-2",
        "held by ",
    ] {
        assert!(late.stdout.contains(part), "no {part:?} in {late:?}");
    }
    holder.end();
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

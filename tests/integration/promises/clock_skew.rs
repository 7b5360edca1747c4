//! `--clock-skew`: what is done under a lock ends sooner by what the clocks of the Redis hosts may differ.

use std::time::Duration;

use serde_json::Value;

use crate::support::proxy::Proxy;
use crate::support::{Outcome, Redis, Running, moment, now, outcome, redlock, wait_until};

fn run(redis: &Redis, options: &[&str], script: &str) -> Outcome {
    let words = [&["run"], options, &["a", "--", "sh", "-c", script]].concat();
    outcome(&mut redis.redlock(&words))
}

/// How long the lock lasts at the server after the last sign of life of the work under it, in ms, with Redis out of
/// reach. `words` start that; it prints the pid of what is to die, which writes down the time all the while.
fn left_at_death(redis: &Redis, proxy: &Proxy, words: &[&str]) -> i64 {
    let mut work = Running::start(redis.redlock(words).env("REDLOCK_URL", proxy.url()));
    let pid = work.line();
    let lease = || -> i64 { redis.cli(&["PTTL", "redlock:a"]).parse().unwrap() };
    let mut last = lease();
    wait_until("it is renewed", || {
        let before = std::mem::replace(&mut last, lease());
        last > before
    });
    proxy.vanish();
    let expiry = now() + Duration::from_millis(lease().try_into().unwrap());
    let process = format!("/proc/{}", pid.trim());
    wait_until("it is dead", || {
        let stat = std::fs::read_to_string(format!("{process}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    });
    let life = std::fs::read_to_string(redis.dir.path().join("life")).unwrap();
    let last = moment(life.lines().last().unwrap());
    i64::try_from(expiry.as_millis()).unwrap() - i64::try_from(last.as_millis()).unwrap()
}

#[test]
fn a_command_that_cannot_be_renewed_is_dead_sooner_by_the_clock_skew() {
    let keeper = "redlock acquire a --ttl 6s -k 100ms --clock-skew 2s --while-pid $$ >/dev/null || exit; echo $$; while :; do date +%s%N >>~/life; sleep 0.02; done";
    let command = "trap '' TERM; echo $$; while :; do date +%s%N >>~/life; sleep 0.02; done";
    let options = words!("run --ttl 6s -k 100ms --clock-skew 2s a");
    let by_run = [options, &["--", "sh", "-c", command]].concat();
    // A run without a lock of interest gives the script its place.
    for words in [&by_run[..], words!("run other -- sh -c", keeper)] {
        let redis = Redis::start();
        let proxy = Proxy::new(&redis);
        let left = left_at_death(&redis, &proxy, words);
        // Without it, less than 200 ms would be left.
        assert!(left > 500, "{left} ms, {words:?}");
    }
}

#[test]
fn extend_counts_as_the_run_does() {
    let redis = Redis::start();
    let options = ["--ttl", "10m", "--clock-skew", "3m"];
    // What was extended lasts for that long also where a server whose clock is ahead takes over.
    let extends = "redlock extend --for 20m && redis-cli -s \"$1\" PTTL redlock:a";
    let script = extends.replace("\"$1\"", redis.socket().to_str().unwrap());
    let end = run(&redis, &options, &script);
    let left: u64 = end.assert_code(0).stdout.trim().parse().unwrap();
    assert!((1_320_000..=1_440_000).contains(&left), "{left}");
    run(&redis, &options, "redlock extend --for 365d").assert_code(0);
}

#[test]
fn a_script_is_told_how_long_it_may_count_on_its_lock() {
    let redis = Redis::start();
    let end =
        outcome(&mut redis.redlock(words!("acquire a --ttl 10m --clock-skew 3m --format json")));
    let json: Value = serde_json::from_str(&end.assert_code(0).stdout).unwrap();
    assert_eq!(json["ttl_ms"], 420_000);
    let token = redis.dir.path().join("token");
    std::fs::write(&token, json["token"].as_str().unwrap()).unwrap();
    let token = token.to_str().unwrap();
    outcome(&mut redis.redlock(words!("extend a --token-file", token))).assert_code(0);
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left > 540_000, "{left}");
}

#[test]
fn a_ttl_that_is_too_short_for_the_clock_skew_is_refused_with_what_to_type() {
    let said = |words: &[&str]| {
        let end = outcome(&mut redlock(words));
        end.assert_code(64);
        end.stderr
    };
    let run = words!("run --ttl 1s a --clock-skew 500ms -- true");
    for words in [run, words!("acquire --ttl 1s a --clock-skew 0.5")] {
        let said = said(words);
        let expected = "--ttl 1s is less than three times --clock-skew 500ms; use --ttl 1500ms or more, or --clock-skew 333ms or less";
        assert!(said.contains(expected), "{said}");
    }
    let sentinels = ["-u", "redis-sentinel://127.0.0.1:1,127.0.0.1:2/mymaster"];
    let short = [&sentinels[..], &["run", "--ttl", "1s", "a", "--", "true"]].concat();
    let said = said(&short);
    let expected = "--ttl 1s is less than three times --clock-skew 500ms (the default if a replica may be promoted); use --ttl 1500ms or more";
    assert!(said.contains(expected), "{said}");
    // Zero and what is just long enough are taken; no sentinel answers.
    for options in [
        ["--ttl", "1s", "--clock-skew", "0"],
        ["--ttl", "1500ms", "--on-lost", "stop"],
    ] {
        let words = [&sentinels[..], &["run"], &options, &["a", "--", "true"]].concat();
        outcome(&mut redlock(&words)).assert_code(69);
    }
}

//! If a replica may be promoted, work under a lock ends sooner, because the clocks of the Redis hosts may differ.

use crate::promises::sentinel::Proxied;
use crate::support::prelude::*;

/// Returns how long the lock lasts at the server after the last sign of life of the work under it, in ms, with Redis
/// unreachable. `words` start the work, print its pid, and record the time all the while.
fn left_at_death(words: &[&str]) -> i64 {
    let all = Replicated::start();
    let proxied = Proxied::new(&all);
    let mut run = all.redlock(words);
    let mut work = Running::start(run.env("REDLOCK_URL", proxied.url(&all)));
    let pid = work.pid_after("");
    all.servers[0].await_renewals("a", 1);
    for proxy in &proxied.proxies {
        proxy.vanish();
    }
    let lease = all.servers[0].cli(&["PTTL", "redlock:a"]);
    let expiry = now() + Duration::from_millis(lease.parse().unwrap());
    wait_until("it is dead", || !is_alive(pid));
    let last = last_sign_of_life(all.home.path());
    i64::try_from(expiry.as_millis()).unwrap() - i64::try_from(last.as_millis()).unwrap()
}

#[test]
fn a_command_that_cannot_be_renewed_is_dead_sooner_by_the_clock_skew() {
    let keeper = "redlock acquire a --ttl 6s -k 100ms --while-pid $$ >/dev/null || exit; echo $$; while :; do date +%s%N >>~/life; sleep 0.02; done";
    let command = "trap '' TERM; echo $$; while :; do date +%s%N >>~/life; sleep 0.02; done";
    let by_run = words!("run --ttl 6s -k 100ms a -- sh -c", command);
    // The run in the second row only gives the script its environment; the lock under test is the script's.
    for words in [by_run, words!("run other -- sh -c", keeper)] {
        // Without the clock skew, less than 200 ms would be left each time. A busy machine sometimes kills late.
        let is_sooner = (0..5).any(|_| left_at_death(words) > 500);
        assert!(is_sooner, "{words:?}");
    }
}

#[test]
fn a_script_is_told_how_long_it_may_count_on_its_lock() {
    let all = Replicated::start();
    let end = outcome(&mut all.redlock(words!("acquire a --ttl 10m --format json")));
    let json: Value = serde_json::from_str(&end.assert_code(0).stdout).unwrap();
    assert_eq!(json["ttl_ms"], 599_500);
}

#[test]
fn a_ttl_that_is_too_short_for_the_clock_skew_is_refused_with_what_to_type() {
    let url = "redis-sentinel://127.0.0.1:1,127.0.0.1:2/mymaster";
    let refused = "--ttl 1s is too short if a replica may be promoted; use --ttl 1s500ms or more";
    for (line, code, says) in [
        ("-u {} run --ttl 1s a -- true", 64, refused),
        ("-u {} acquire --ttl 1s a", 64, refused),
        // This TTL is just long enough, so redlock goes on and finds no sentinel.
        ("-u {} run --ttl 1500ms a -- true", 69, ""),
    ] {
        outcome(&mut redlock(&words(line, &[url]))).assert_said(code, says);
    }
}

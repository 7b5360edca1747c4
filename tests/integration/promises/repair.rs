//! Locks that other clients have left without an expiry: redlock names them, and repairs them on request.

use crate::support::prelude::*;

/// Starts a server with a lock that a client has left for ever.
fn left_behind() -> Redis {
    let redis = Redis::start();
    assert_eq!(redis.cli(&["SET", "redlock:a", "crashed"]), "OK");
    redis
}

fn pttl(redis: &Redis) -> i64 {
    redis.cli(&["PTTL", "redlock:a"]).parse().unwrap()
}

/// Options of a run that repairs a lock.
const REPAIR: &str = "--ttl 6s REDLOCK_REPAIR_TTL=1";

#[test]
fn without_repair_ttl_it_is_waited_for_and_never_touched() {
    let redis = left_behind();
    for (line, says) in [
        ("run -n a -- true", "by another client; it has no expiry"),
        ("run -w 1200ms a -- true", "REDLOCK_REPAIR_TTL=1"),
        ("acquire -n a", ""),
        ("run -ns a -- true", ""),
    ] {
        ends(&redis, line).assert_said(75, says);
    }
    assert_eq!(pttl(&redis), -1);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "crashed");
}

#[test]
fn with_repair_ttl_it_ends_after_our_ttl_and_a_line_says_so_once() {
    let lines = [
        "acquire",
        "run -c true",
        "run --shared -c true",
        "run --slots 2 -c true",
    ];
    side_by_side(lines, |line| {
        let redis = left_behind();
        let began = Instant::now();
        let (command, options) = line.split_once(' ').unwrap_or((line, ""));
        let end = ends(&redis, &format!("{command} {REPAIR} a {options}"));
        let took = began.elapsed();
        end.assert_said(0, "it now expires in 6s");
        assert_eq!(end.stderr.matches("had no expiry").count(), 1, "{end:?}");
        // The usual TTL would take half a minute.
        assert!((5950..25_000).contains(&took.as_millis()), "{took:?}");
        if command == "run" {
            assert_nothing_left(&redis);
        }
    });
}

#[test]
fn a_run_that_does_not_wait_repairs_it_and_gives_up() {
    let redis = left_behind();
    ends(&redis, &format!("run -n {REPAIR} a -- true")).assert_said(75, "expires in 6s");
    let left = pttl(&redis);
    assert!((1..=6000).contains(&left), "{left}");
    // The repair also helps runs without REDLOCK_REPAIR_TTL.
    ends(&redis, "run -q -w 50s a -- true").assert_code(0);
}

#[test]
fn a_client_that_lives_after_all_keeps_it_by_renewing() {
    let redis = left_behind();
    let mut waiter = Running::start(&mut redis.run(&format!("{REPAIR} -w 7s a"), "true"));
    waiter.wait_until_queued(&redis);
    assert!(pttl(&redis) > 0, "{}", redis.describe_key("a"));
    redis.cli(&["PEXPIRE", "redlock:a", "60000"]);
    waiter.finish().assert_code(75);
    assert!(pttl(&redis) > 50_000, "{}", redis.describe_key("a"));
}

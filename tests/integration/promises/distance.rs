//! Servers that are far away, suspended for a moment or not ready: whether COMMAND starts, and how often redlock asks.

use std::sync::mpsc::channel;

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

const MS: Duration = Duration::from_millis(1);

/// Returns true if the lock "a" has its whole lease, so its confirmation has arrived.
fn is_confirmed(redis: &Redis) -> bool {
    let left = redis.cli(&["PTTL", "redlock:a"]).parse::<i64>();
    left.is_ok_and(|left| left >= 10_000)
}

/// Takes the lock "a" as if on another host, because no process here sees its holder end. Returns the token.
fn take(redis: &Redis) -> String {
    let end = ends(redis, "acquire --ttl 60s --format token a");
    end.assert_code(0).stdout.trim().to_owned()
}

fn release(redis: &Redis, token: &str) {
    let words = words!("REDLOCK_TOKEN={} release a", token);
    outcome(&mut redis.redlock(words)).assert_code(0);
}

#[test]
fn a_lock_is_handed_over_on_slow_lines_and_if_a_request_of_its_waiter_is_lost_or_three_seconds_late()
 {
    use Action::{Cut, LoseReply, LoseRequest, Pass, Reset, ResetReply, Stall, StallReply};
    let lines = [50, 200, 400, 800, 1_500].map(|round_trip| (round_trip, "renew", Pass));
    // The confirmation of the grant.
    let losses = [LoseRequest, LoseReply, Reset, ResetReply, Cut(5)];
    let losses = losses.map(|action| (0, "renew", action));
    let steps = "acquire enqueue HELLO SUBSCRIBE heartbeat renew check".split(' ');
    let stalls = [Stall(MS * 3_000), StallReply(MS * 3_000)];
    let late = steps.flat_map(|step| stalls.map(|stall| (0, step, stall)));
    let rows = lines.into_iter().chain(losses).chain(late);
    side_by_side(rows, |(round_trip, step, action)| {
        let redis = Redis::left_empty();
        load_scripts(&redis);
        let (arrivals, arrived) = channel();
        let proxy = Proxy::with(&redis, move |request| {
            if request.operation != step || request.before > 0 {
                return Pass;
            }
            let _ = arrivals.send(Instant::now());
            action
        });
        proxy.set_round_trip(MS * round_trip);
        let holder = take(&redis);
        let is_patient = step == "acquire" || action == Pass;
        let timeout = if is_patient { "30s" } else { "2s" };
        let url = proxy.url();
        let options = "-q --ttl 30s --url {} REDLOCK_REDIS_TIMEOUT={} a";
        let mut waiter = Gated::start(&redis, &words(options, &[&url, timeout]));
        let arrival = || arrived.recv_timeout(TIMEOUT).unwrap();
        // Only a holder sends these, after the hand-over.
        let is_of_holder = ["renew", "check"].contains(&step);
        let began = (!is_of_holder).then(arrival);
        if is_of_holder {
            waiter.run.wait_until_queued(&redis);
            wait_until("it knows its place", || proxy.answered("enqueue") > 0);
        }
        release(&redis, &holder);
        waiter.run.expect_line("ready");
        let began = began.unwrap_or_else(arrival);
        let what = || format!("{round_trip} ms, {action:?} of {step}: {proxy:?}");
        wait_until(&what(), || {
            let is_over = !stalls.contains(&action) || began.elapsed() > MS * 3_500;
            // A renewal ends by checking whether the lock is still there.
            let is_kept = is_confirmed(&redis) && proxy.answered("check") > 0;
            (is_over && is_kept) || waiter.run.has_ended()
        });
        waiter.open();
        let end = waiter.run.finish();
        assert_eq!(end.code(), Some(0), "{}; {end:?}", what());
        assert!(stalls.contains(&action) || end.stderr.is_empty(), "{end:?}");
        wait_until(&what(), || redis.holder("a").is_none());
        assert_eq!(redis.queue("a"), [0; 0], "{}", what());
    });
}

#[test]
fn a_lock_whose_grant_is_lost_with_its_connection_is_released_over_a_slow_line() {
    side_by_side([20, 200, 400], |round_trip| {
        let redis = Redis::with(&["--user", "far", "on", ">pw", "~*", "&*", "+@all"]);
        load_scripts(&redis);
        ends(&redis, "run a -- true").assert_code(0);
        let proxy = Proxy::with(&redis, |request| {
            match (&*request.operation, request.before) {
                ("take", 0) => Action::Cut(0),
                // The first release is sent over the connection that is closed.
                ("release", 0) => Action::LoseRequest,
                _ => Action::Pass,
            }
        });
        proxy.set_round_trip(MS * round_trip);
        let url = proxy.url().replace("redis://", "redis://far:pw@");
        let run = words!("run --no-wait --ttl 1m --url {} a -- true", &url);
        outcome(&mut redis.redlock(run)).assert_code(69);
        assert!(!redis.is_held("a"), "{round_trip} ms: {proxy:?}");
    });
}

#[test]
fn command_waits_for_the_confirmation_if_the_grant_is_not_enough() {
    // Others must know of the start, the reply decides about it, or the run has another lock before this one.
    for options in ["--supersede --seq 5", "--once-per 1h", "1st --ttl 60s"] {
        let redis = Redis::left_empty();
        load_scripts(&redis);
        let holder = take(&redis);
        let proxy = Proxy::new(&redis);
        let run = format!("-q --url {} {options} a", proxy.url());
        let mut waiter = Gated::queued(&redis, &words(&run, &[]));
        wait_until("it has a place in the queue", || {
            proxy.answered("enqueue") > 0
        });
        if options.starts_with("1st") {
            wait_until("the first is renewed", || proxy.answered("check") > 0);
        }
        // Holds back each confirmation until COMMAND has started.
        let (confirmations, confirmed) = channel();
        let (pass, passed) = channel::<()>();
        proxy.set_hook(move |request| {
            if ["heartbeat", "renew"].contains(&&*request.operation) {
                let _ = confirmations.send(request.operation.clone());
                let _ = passed.recv_timeout(TIMEOUT);
            }
            Action::Pass
        });
        release(&redis, &holder);
        // A renewal would come from a command that has already started.
        let operation = confirmed.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(operation, "heartbeat", "{options:?}");
        drop(pass);
        waiter.run.expect_line("ready");
        assert!(is_confirmed(&redis), "{}", redis.describe_key("a"));
        waiter.open();
        waiter.run.finish().assert_code(0);
    }
}

#[test]
fn a_run_that_a_signal_ends_has_time_for_its_release_far_away_even_if_it_has_to_log_in_again() {
    // After a renewal without a reply, or after the first renewal and its check.
    let rows = [(0, true), (700, false), (1_200, false)];
    side_by_side(rows, |(round_trip, has_to_log_in)| {
        let redis = Redis::with(&["--user", "far", "on", ">pw", "~*", "+@all"]);
        load_scripts(&redis);
        let proxy = Proxy::with(&redis, move |request| match &*request.operation {
            "renew" if has_to_log_in => Action::LoseReply,
            "AUTH" if has_to_log_in && request.before > 0 => Action::StallReply(MS * 300),
            _ => Action::Pass,
        });
        proxy.set_round_trip(MS * round_trip);
        let url = proxy.url().replace("redis://", "redis://far:pw@");
        let ttl = if has_to_log_in { "20s" } else { "1h" };
        let words = words!("--url {} run --ttl {} a -- sleep 600", &url, ttl);
        let run = Running::start(&mut redis.redlock(words));
        wait_until("it renews", || {
            let is_renewing = has_to_log_in && proxy.count("renew") > 0;
            is_renewing || proxy.answered("check") > 0
        });
        std::thread::sleep(MS * 2 * round_trip);
        send(run.pid(), libc::SIGINT);
        let end = run.finish();
        end.assert_killed_by(libc::SIGINT);
        assert!(has_to_log_in || end.stderr.is_empty(), "{end:?}");
        assert_eq!(redis.holder("a"), None, "{round_trip} ms");
    });
}

#[test]
fn a_command_never_runs_without_a_lock_once_the_server_has_answered() {
    let redis = Redis::start();
    load_scripts(&redis);
    // Long enough for a first reply: without any, COMMAND would run.
    let run = "REDLOCK_REDIS_TIMEOUT=5s redlock run";
    let inner = "--on-unreachable run --ttl 6s --url";
    let holder = Gated::start(&redis, &["a"]).ready();
    // The server answers first, and vanishes during the wait.
    let proxy = Proxy::new(&redis);
    let line = format!("exec env {run} {inner} {} a -- echo ran", proxy.url());
    let mut waiter = Running::start(&mut sh(&redis, &line));
    waiter.wait_until_queued(&redis);
    proxy.vanish();
    waiter.finish().assert_printed(69, "");
    // The run takes or reenters the first of two locks, and the server vanishes before the second.
    for (before, run) in [(1, run), (0, &format!("{run} c -- redlock run"))] {
        let proxy = Proxy::new(&redis);
        let vanish = proxy.vanishing();
        proxy.set_hook(move |request| {
            if request.operation != "acquire" || request.before < before {
                return Action::Pass;
            }
            vanish();
            Action::LoseRequest
        });
        let line = format!("{run} {inner} {} c b -- echo ran", proxy.url());
        let end = outcome(&mut sh(&redis, &line));
        // The run loses its first lock if that takes longer than the lease.
        assert!(matches!(end.code(), Some(69 | 79)), "{end:?}");
        assert_eq!(end.stdout, "", "{line}");
    }
    holder.end();
}

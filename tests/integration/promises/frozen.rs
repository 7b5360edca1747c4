//! Freezing: the holder finishes, no new holder is admitted, and everybody sees the reason.

use crate::support::prelude::*;

fn freeze(redis: &Redis, options: &str) -> Outcome {
    ends(redis, &format!("freeze a --reason release-night {options}"))
}

/// Thaws "a", which must be frozen.
#[track_caller]
fn thaw(redis: &Redis) {
    let end = ends(redis, "thaw a");
    let says = "is thawed; it was frozen by";
    end.assert_said(0, says);
}

/// Asserts that a run that doesn't wait for "a" is refused, with the reason.
#[track_caller]
fn assert_frozen(redis: &Redis) {
    let end = ends(redis, "run -n a -- true");
    end.assert_said(75, "is frozen");
    end.assert_says("release-night");
}

/// Starts a run of "a" with these options, which end with a space. Returns when its COMMAND runs.
fn holding(redis: &Redis, options: &str) -> Gated {
    Gated::start(redis, &words(&format!("{options}a"), &[])).ready()
}

#[test]
fn the_holder_of_a_frozen_lock_finishes_and_no_other_gets_in_until_the_freeze_is_undone_or_expires()
{
    for (mode, time) in [
        ("", ""),
        ("--shared ", ""),
        ("--slots 3 ", ""),
        ("", "--for 3s"),
    ] {
        let redis = Redis::left_empty();
        let holder = holding(&redis, mode);
        freeze(&redis, time).assert_said(0, "may finish");
        let waiter = format!("run -q {mode}a -- echo in");
        let waiter = queued(&redis, &words(&waiter, &[]));
        let both = queued(&redis, words!("run -q b a -- true"));
        holder.end();
        if time.is_empty() {
            assert_frozen(&redis);
            ends(&redis, "acquire -n a").assert_code(75);
            ends(&redis, "run -n c -- true").assert_code(0);
            assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
            thaw(&redis);
        }
        waiter.finish().assert_printed(0, "in\n");
        both.finish().assert_code(0);
    }
}

#[test]
fn a_lock_stays_frozen_when_its_holder_dies_is_forced_out_or_is_stopped() {
    let redis = Redis::start();
    for (end, says) in [
        ("redis-cli -s ~/redis.sock PEXPIRE redlock:a 1", ""),
        ("redlock release --force a", "; it stays frozen"),
        ("redlock stop -n a", "to stop; \"a\" is released after that"),
        ("redlock stop a", ", and stays frozen"),
    ] {
        let mut holder = holding(&redis, "");
        freeze(&redis, "").assert_code(0);
        let waiter = queued(&redis, words!("run -q a -- true"));
        if end.contains("PEXPIRE") {
            holder.run.kill();
        }
        outcome(&mut sh(&redis, end)).assert_said(0, says);
        wait_until("the run has ended", || holder.run.has_ended());
        wait_until("it has no holder", || redis.holder("a").is_none());
        assert_frozen(&redis);
        assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
        ends(&redis, "release --force a").assert_said(79, "not held");
        thaw(&redis);
        waiter.finish().assert_code(0);
    }
}

#[test]
fn freezing_again_changes_the_reason_and_the_end_and_thawing_twice_is_fine() {
    let redis = Redis::left_empty();
    freeze(&redis, "")
        .assert_said(0, "at most for 30d")
        .assert_says("it has no holder");
    let end = ends(&redis, "freeze a --reason other --for 1m");
    end.assert_said(0, "previously frozen by")
        .assert_says("for 1m");
    end.assert_says("release-night");
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left <= 60_000);
    thaw(&redis);
    ends(&redis, "thaw a").assert_said(0, "was not frozen");
    ends(&redis, "freeze a").assert_code(64);
    ends(&redis, "freeze a --reason x --for 31d").assert_code(64);
}

#[test]
fn the_holder_goes_on_under_a_freeze_for_longer_than_its_ttl_and_may_extend_check_and_reenter_it() {
    side_by_side(["", "--shared"], |mode| {
        let redis = Redis::start();
        let script = format!(
            "redlock freeze -q a --reason x; redlock extend && redlock extend --for 7s && echo ready
            sleep 7.5; redlock extend --for 1s && redlock run {mode} a -- echo inner"
        );
        let end = outcome(&mut redis.run(&format!("--ttl 6s {mode} a"), &script));
        end.assert_silent().assert_printed(0, "ready\ninner\n");
        ends(&redis, "run -n a -- true").assert_code(75);
    });
}

#[test]
fn runs_that_ignore_a_freeze_go_in_one_at_a_time_ahead_of_all_that_it_keeps_out() {
    let redis = Redis::left_empty();
    let ignoring = |words: &str| ends(&redis, &format!("run --ignore-freeze -n a {words}"));
    let holder = holding(&redis, "");
    let other = queued(&redis, &["run", "-q", "a", "--", "echo", "other"]);
    freeze(&redis, "").assert_code(0);
    // Like all runs, this one waits for the holder.
    let first = Gated::queued(&redis, &["--ignore-freeze", "-q", "a"]);
    holder.end();
    let first = first.ready();
    ignoring("-- true").assert_code(75);
    first.end();
    let acquired = ends(&redis, "acquire -n --ignore-freeze --format token a");
    let token = acquired.assert_code(0).stdout.trim();
    ends(&redis, &format!("REDLOCK_TOKEN={token} release a")).assert_code(0);
    // A run's children don't inherit --ignore-freeze, and no variable sets it.
    ends(&redis, "freeze b --new --reason x").assert_code(0);
    ignoring("-- redlock run -n b -- true").assert_code(75);
    ends(&redis, "REDLOCK_IGNORE_FREEZE=1 run -n a -- true").assert_said(75, "is frozen");
    thaw(&redis);
    other.finish().assert_printed(0, "other\n");
    // Without a freeze the option changes nothing.
    ignoring("-- true").assert_code(0);
    ends(&redis, "thaw b").assert_code(0);
}

#[test]
fn a_drain_fails_if_its_freeze_ends_before_the_holder() {
    for (long, end) in [
        ("1h", "redlock thaw a"),
        ("1h", "redlock freeze a --reason other"),
        (
            "1h",
            "redis-cli -s ~/redis.sock HDEL {redlock:a}:state frozen",
        ),
        ("300ms", "true"),
    ] {
        let redis = Redis::start();
        let holder = holding(&redis, "");
        let words = words!("freeze a --drain --reason dump --for {}", long);
        let freezing = Running::start(&mut redis.redlock(words));
        wait_until("it is frozen", || {
            redis.cli(&["HEXISTS", "{redlock:a}:state", "freezes"]) == "1"
        });
        outcome(&mut sh(&redis, end)).assert_code(0);
        freezing.finish_saying(79, "this freeze of lock \"a\" is over");
        holder.end();
    }
}

#[test]
fn a_freeze_that_is_interrupted_while_it_waits_says_that_it_goes_on() {
    let redis = Redis::start();
    let holder = holding(&redis, "");
    let words = words!("freeze a b --drain --reason dump");
    let scripts = redis.scripts();
    let freezing = Running::start(&mut redis.redlock(words));
    // `freeze` looks at the locks again and again.
    wait_until("it waits for the holder", || redis.scripts() > scripts + 16);
    freezing.signal(Signal::SIGINT);
    let end = freezing.finish();
    end.assert_killed_by(libc::SIGINT);
    end.assert_says("leaves all frozen until `redlock thaw a b`");
    holder.end();
    ends(&redis, "run -n a -- true").assert_code(75);
}

//! Freezing: the holder finishes, no new holder is admitted, and everybody sees the reason.

use crate::support::prelude::*;

/// Splits a line into words.
fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

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

/// Starts a run of "a" with these options. Returns when its COMMAND runs.
fn holding(redis: &Redis, options: &str) -> Gated {
    Gated::start(redis, &split(&format!("{options} a"))).ready()
}

#[test]
fn the_holder_of_a_frozen_lock_finishes_and_no_other_gets_in_until_it_is_thawed() {
    for mode in ["", "--shared", "--slots 3"] {
        let redis = Redis::left_empty();
        let holder = holding(&redis, mode);
        freeze(&redis, "").assert_said(0, "may finish");
        let refused = ends(&redis, &format!("run -n {mode} a -- true"));
        refused.assert_said(75, "is frozen");
        refused.assert_says("release-night");
        let waiter = queued(&redis, &split(&format!("run -q {mode} a -- echo in")));
        holder.end();
        // The waiter has checked the lock after the release, and it is still frozen.
        assert_frozen(&redis);
        ends(&redis, "acquire -n a").assert_code(75);
        assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
        thaw(&redis);
        waiter.finish().assert_printed(0, "in\n");
    }
}

#[test]
fn a_freeze_expires_and_a_waiter_gets_in_then() {
    let redis = Redis::left_empty();
    freeze(&redis, "--for 700ms").assert_code(0);
    ends(&redis, "run -w 60s a -- true").assert_code(0);
    // Behind a holder, and with a late waiter.
    let holder = holding(&redis, "");
    freeze(&redis, "--for 700ms").assert_code(0);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    holder.end();
    waiter.finish().assert_code(0);
}

#[test]
fn a_lock_stays_frozen_when_its_holder_dies_is_forced_out_or_is_stopped() {
    let redis = Redis::start();
    let mut holder = holding(&redis, "");
    freeze(&redis, "").assert_code(0);
    holder.run.kill();
    redis.cli(&["PEXPIRE", "redlock:a", "1"]);
    redis.await_free("a");
    assert_frozen(&redis);
    assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
    thaw(&redis);
    let forced = holding(&redis, "");
    freeze(&redis, "").assert_code(0);
    ends(&redis, "release --force -q a").assert_code(0);
    forced.run.finish().assert_code(79);
    assert_frozen(&redis);
    ends(&redis, "release --force a").assert_said(79, "not held");
    thaw(&redis);
    for (stop, parts) in [
        ("stop -n a", &["to stop; \"a\" is released after that"][..]),
        ("stop a", &["\"a\" is free after ", ", and stays frozen"]),
    ] {
        let stopped = holding(&redis, "");
        freeze(&redis, "").assert_code(0);
        let waiter = queued(&redis, words!("run -q a -- true"));
        let end = ends(&redis, stop);
        assert_has(&end.assert_code(0).stderr, parts);
        stopped.run.finish().assert_exited(79);
        assert_frozen(&redis);
        thaw(&redis);
        waiter.finish().assert_code(0);
    }
}

#[test]
fn freezing_again_changes_the_reason_and_the_end_and_thawing_twice_is_fine() {
    let redis = Redis::left_empty();
    let end = freeze(&redis, "");
    end.assert_said(0, "at most for 30d");
    end.assert_says("it has no holder");
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
fn freezing_one_lock_leaves_others_alone_and_several_are_taken_when_all_are_thawed() {
    let redis = Redis::left_empty();
    freeze(&redis, "-q").assert_code(0);
    ends(&redis, "run -n b -- true").assert_code(0);
    let both = queued(&redis, &["run", "-q", "a", "b", "--", "true"]);
    thaw(&redis);
    both.finish().assert_code(0);
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
    // The freeze stops all other runs, even children of a run that ignores it, and runs with an environment variable.
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
fn a_freeze_that_ends_before_the_holder_is_no_success_of_the_command_that_waits_for_that() {
    type End = fn(&Redis);
    let ends: [(&str, End); 4] = [
        ("1h", thaw),
        ("1h", |redis| {
            freeze(redis, "").assert_code(0);
        }),
        ("1h", |redis| {
            redis.cli(&["HDEL", "{redlock:a}:state", "frozen"]);
        }),
        ("300ms", |_| {}),
    ];
    for (long, end) in ends {
        let redis = Redis::start();
        let holder = holding(&redis, "");
        let words = words!("freeze a --drain --reason dump --for {}", long);
        let freezing = Running::start(&mut redis.redlock(words));
        wait_until("it is frozen", || {
            redis.cli(&["HEXISTS", "{redlock:a}:state", "freezes"]) == "1"
        });
        end(&redis);
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

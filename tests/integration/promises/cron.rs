//! Jobs that run once: --hold-at-least, --once-per, `REDLOCK_JITTER`, and silence.

use crate::support::prelude::*;

/// Starts a run whose COMMAND appends a line to the file "ran".
fn job(redis: &Redis, options: &str) -> Running {
    let script = r#"echo ran >>"$HOME/ran""#;
    Running::start(&mut redis.run(&format!("{options} a"), script))
}

/// Returns how often COMMAND has run.
fn ran(redis: &Redis) -> usize {
    home_file(redis, "ran").lines().count()
}

#[test]
fn a_lock_is_kept_after_a_failure_too_but_not_when_nothing_ran_or_it_took_longer() {
    let redis = Redis::left_empty();
    for (options, command, code, next) in [
        ("--hold-at-least 1ms", "sleep 0.01", 0, 0),
        ("--hold-at-least 1m", "no-such-job", 127, 0),
        ("--hold-at-least 1m", "/no/such/job", 127, 0),
        ("--hold-at-least 1m", "false", 1, 75),
    ] {
        ends(&redis, &format!("run {options} a -- {command}")).assert_code(code);
        let end = ends(&redis, "run -n a -- true");
        assert_eq!(end.code(), Some(next), "{options} {command}: {end:?}");
    }
    ends(&redis, "release --force -q a").assert_code(0);
}

#[test]
fn one_of_twenty_concurrent_jobs_runs_per_hour_and_per_key() {
    let redis = Redis::start();
    let options = ["--once-per 1h", "--once 2026-11-25", "--once 2026-11-26"];
    for (before, options) in options.into_iter().enumerate() {
        let all = [(); 20].map(|()| job(&redis, options));
        let all = all.map(Running::finish);
        let skipped = all.iter().filter(|end| {
            end.assert_code(0);
            !end.stderr.is_empty()
        });
        let (skipped, ran) = (skipped.count(), ran(&redis) - before);
        assert_eq!((ran, skipped), (1, 19), "{options}");
        assert_nothing_left(&redis);
    }
    job(&redis, "--once-per 1h -E 9").finish().assert_code(9);
    job(&redis, "--once-per 1ms").finish().assert_code(0);
    assert_eq!(ran(&redis), 4);
    ends(&redis, "run --once-per 1h a b -- true").assert_code(64);
    outcome(&mut redis.redlock(words!("run --once {} a -- true", "a key"))).assert_code(64);
    // redlock doesn't remember failures; -E sets the status of a skipped run.
    ends(&redis, "run -q --once k a -- false").assert_code(1);
    ends(&redis, "run -q --once k a -- true").assert_code(0);
    let says = "skipped: a run of \"a\" with --once k succeeded";
    ends(&redis, "run -E 9 --once k a -- false").assert_said(9, says);
}

#[test]
fn a_job_that_is_stopped_keeps_its_lock_too_and_a_person_can_end_that() {
    let redis = Redis::left_empty();
    let run = Running::ready(&mut redis.run("--hold-at-least 1m a b", IDLE));
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(128 + 15);
    for name in ["a", "b"] {
        let run = format!("run -n {name} -- true");
        ends(&redis, &run).assert_code(75);
        ends(&redis, &format!("release --force -q {name}")).assert_code(0);
        ends(&redis, &run).assert_code(0);
    }
}

#[test]
fn waiters_for_a_kept_lock_get_it_within_a_second_of_its_end_one_after_the_other() {
    let turn = |waiter: Running| moment(&waiter.finish().assert_code(0).stdout);
    let rounds = [&[][..], &["--slots", "1"], &["--shared"]].map(|mode| {
        let redis = Redis::left_empty();
        let began = now();
        let options = [mode, words!("--hold-at-least 6s a")].concat();
        let holder = Gated::start(&redis, &options).ready();
        let waiters = [(); 2].map(|()| queued(&redis, words!("run -q a -- date +%s%N")));
        holder.end();
        let kept: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        (redis, began, now() + Duration::from_millis(kept), waiters)
    });
    let delays = rounds.map(|(_redis, began, free, waiters)| {
        let [first, second] = waiters.map(turn);
        assert!(first.saturating_sub(began) > Duration::from_millis(5950));
        assert!(first < second);
        [first.saturating_sub(free), second.saturating_sub(first)]
    });
    assert_within(Duration::from_secs(1), delays.concat());
}

#[test]
fn a_run_that_is_skipped_says_so_in_one_line_and_nothing_with_quiet() {
    let redis = Redis::start();
    job(&redis, "").finish().assert_code(0).assert_silent();
    let after = |options: &str| job(&redis, options).finish().assert_code(0).stderr.clone();
    let line = after("--once-per 1h");
    let start = "redlock: skipped: a run of \"a\" succeeded ";
    let end = format!("s ago on {}\n", host());
    assert!(line.starts_with(start) && line.ends_with(&end), "{line:?}");
    assert_eq!(line.lines().count(), 1);
    // Neither a later failure nor a missing history changes anything.
    outcome(&mut redis.run("a", "exit 3")).assert_code(3);
    assert!(after("--once-per 1h").ends_with(&end));
    redis.cli(&["DEL", "{redlock:a}:history"]);
    assert!(after("--once-per 1h").ends_with("s ago\n"));
    assert_eq!(after("-q --once-per 1h"), "");
    assert_eq!(ran(&redis), 1);
    redis.play(
        "0 redlock run --supersede --reason hotfix --seq 7 b -- true
        75 redlock run --supersede --seq 6 b -- true → lock \"b\": build 6 is older than build 7 of … (hotfix)",
    );
}

#[test]
fn a_failure_is_not_remembered_nor_is_a_run_that_lost_its_lock_whatever_it_ended_with() {
    let redis = Redis::start();
    let forced = "redlock release --force -q a";
    // redlock doesn't remember a run that was killed or stopped in time, either.
    let late = "trap 'exit 0' TERM; while :; do sleep 0.01; done";
    for (words, script, code) in [
        ("a", "exit 1", Some(1)),
        ("a", forced, None),
        ("-q REDLOCK_ON_LOST=warn a", forced, None),
        ("-q a", "kill -9 $$", Some(137)),
        ("-q -t 50ms a", late, Some(124)),
    ] {
        let end = outcome(&mut redis.run(words, script));
        assert!(code.is_none() || end.code() == code, "{words}: {end:?}");
    }
    job(&redis, "--once-per 1h").finish().assert_code(0);
    assert_eq!(ran(&redis), 1);
}

#[test]
fn jitter_sleeps_before_all_else_no_longer_than_was_said_and_each_signal_ends_it() {
    let redis = Redis::start();
    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM] {
        let words = words!("run REDLOCK_JITTER=10h a -- echo ran");
        let run = Running::start(&mut redis.redlock(words));
        wait_until("it sleeps", || proc(run.pid(), "wchan").contains("poll"));
        run.signal(signal);
        let end = run.finish();
        end.assert_printed(128 + signal as i32, "").assert_silent();
        assert_eq!(redis.scripts(), 0);
    }
    let began = Instant::now();
    let words = (0..10).map(|number| format!("-q REDLOCK_JITTER=2s a{number}"));
    let all = words.map(|words| Running::start(&mut redis.run(&words, "true")));
    all_end(all.collect::<Vec<_>>(), 0);
    assert_took_less(began, Duration::from_secs(22));
}

#[test]
fn a_run_that_loses_the_race_is_silent_for_whatever_reason_but_not_when_something_is_wrong() {
    let redis = Redis::start();
    let quiet = |options: &str| ends(&redis, &format!("run -q -n -E 0 {options} a -- echo ran"));
    let lost = |options: &str| {
        quiet(options).assert_silent().assert_printed(0, "");
    };
    let holder = Gated::start(&redis, &["a"]).ready();
    for options in ["", "-s", "--slots 2", "--hold-at-least 1m"] {
        lost(options);
    }
    holder.end();
    lost("--once-per 1h");
    redis.cli(&["SET", "redlock:a", "theirs"]);
    lost("");
    redis.cli(&["DEL", "redlock:a"]);
    ends(&redis, "freeze -q a --reason x").assert_silent();
    lost("");
    ends(&redis, "thaw -q a").assert_silent();
    quiet("-u redis://127.0.0.1:1").assert_said(69, "redlock: ");
    quiet("--ttl 1ms").assert_code(64);
}

#[test]
fn a_run_that_waits_behind_another_one_is_skipped_when_that_succeeds_and_runs_when_it_fails() {
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let failing = "echo ready; read go <\"$HOME/gate\"; exit 1";
    for (options, says) in [
        ("--once-per 1h a", "skipped: a run of \"a\" succeeded "),
        (
            "--once k a",
            "skipped: a run of \"a\" with --once k succeeded",
        ),
    ] {
        let first = Running::ready(&mut redis.run(options, failing));
        let [second, third] = [(); 2].map(|()| Gated::queued(&redis, &words(options, &[])));
        gate.open();
        first.finish().assert_code(1);
        second.ready().end();
        third.run.finish().assert_printed(0, "").assert_says(says);
        redis.cli(&["FLUSHALL"]);
    }
}

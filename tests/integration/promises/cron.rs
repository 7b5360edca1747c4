//! Doing it once: --hold-at-least, --once-per, `REDLOCK_JITTER`, and silence.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    Gate, Gated, Outcome, Redis, Running, assert_nothing_left, assert_within, host, moment, now,
    outcome, queued, wait_until,
};

/// A run of a `COMMAND` that leaves a line in the file "ran".
fn job(redis: &Redis, options: &[&str]) -> Running {
    let ran = redis.dir.path().join("ran");
    let script = format!("echo ran >>{}", ran.display());
    Running::start(&mut redis.redlock(&[&["run"], options, &["a", "-c", &script]].concat()))
}

/// How often it has run.
fn ran(redis: &Redis) -> usize {
    let ran = fs::read_to_string(redis.dir.path().join("ran"));
    ran.unwrap_or_default().lines().count()
}

#[test]
fn of_two_hosts_that_start_the_same_minute_one_runs() {
    let redis = Redis::start();
    let options = words!("-q -n -E 0 --hold-at-least 1m");
    job(&redis, options).finish().assert_code(0).assert_silent();
    let late = job(&redis, options).finish();
    late.assert_code(0).assert_silent();
    assert_eq!((late.stdout.as_str(), ran(&redis)), ("", 1));
    let status = outcome(&mut redis.redlock(&["status"]));
    assert!(status.stdout.contains(" kept "), "{status:?}");
    let json = outcome(&mut redis.redlock(&["status", "--json"])).stdout;
    assert!(json.contains("\"kept\":true"), "{json}");
    // Nobody takes it for dead, on this host or another; but a person can free it.
    outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_kept_lock_is_free_when_its_time_is_over_and_a_waiter_gets_it_then() {
    let kept = [&[][..], &["--slots", "1"], &["--shared"]].map(|mode| {
        let redis = Redis::start();
        let began = Instant::now();
        let options = [mode, &["--hold-at-least", "6s", "a"]].concat();
        let holder = Gated::start(&redis, &options).ready();
        let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
        holder.end();
        assert!(!redis.cli(&["GET", "redlock:a"]).is_empty());
        (mode, redis, began, waiter)
    });
    for (mode, redis, began, waiter) in kept {
        waiter.finish().assert_code(0);
        let elapsed = began.elapsed();
        assert!(
            elapsed > Duration::from_millis(5950),
            "{mode:?}: {elapsed:?}"
        );
        assert!(elapsed < Duration::from_secs(26), "{mode:?}: {elapsed:?}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_lock_is_kept_after_a_failure_too_but_not_when_nothing_ran_or_it_took_longer() {
    let redis = Redis::start();
    let run = |options: &[&str], script: &str| {
        let arguments = [&["run"], options, &["a", "-c", script]].concat();
        outcome(&mut redis.redlock(&arguments))
    };
    run(&["--hold-at-least", "1ms"], "sleep 0.01").assert_code(0);
    run(&["-n"], "true").assert_code(0);
    run(&["--hold-at-least", "1m"], "exit 3").assert_code(3);
    run(&["-n"], "true").assert_code(75);
}

#[test]
fn of_twenty_that_start_at_once_one_runs_once_per_hour() {
    let redis = Redis::start();
    let all: Vec<Running> = (0..20)
        .map(|_| job(&redis, &["--once-per", "1h"]))
        .collect();
    let ends: Vec<Outcome> = all.into_iter().map(Running::finish).collect();
    let skipped = ends.iter().filter(|end| {
        end.assert_code(0);
        !end.stderr.is_empty()
    });
    assert_eq!((ran(&redis), skipped.count()), (1, 19));
    assert_nothing_left(&redis);
    job(&redis, &["--once-per", "1h", "-E", "9"])
        .finish()
        .assert_code(9);
    job(&redis, &["--once-per", "1ms"]).finish().assert_code(0);
    assert_eq!(ran(&redis), 2);
    outcome(&mut redis.redlock(words!("run --once-per 1h a b -- true"))).assert_code(64);
}

#[test]
fn a_failure_is_not_remembered_nor_is_a_run_that_lost_its_lock() {
    let redis = Redis::start();
    outcome(&mut redis.redlock(&["run", "a", "--", "false"])).assert_code(1);
    outcome(&mut redis.run("a", "redlock release --force -q a"));
    job(&redis, &["--once-per", "1h"]).finish().assert_code(0);
    assert_eq!(ran(&redis), 1);
}

#[test]
fn a_run_that_waits_when_another_one_succeeds_does_not_run_again() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let ran_file = redis.dir.path().join("ran");
    let script = format!("echo ran >>{}", ran_file.display());
    let waiter = queued(&redis, words!("run -q --once-per 1h a -c", &script));
    let failed = Gated::queued(&redis, &["a"]);
    holder.end();
    waiter.finish().assert_code(0);
    assert_eq!(ran(&redis), 0);
    failed.ready().end();
    assert_nothing_left(&redis);
}

#[test]
fn jitter_sleeps_before_all_else_and_a_signal_ends_it() {
    let redis = Redis::start();
    let run = Running::start(&mut redis.redlock(&["run", "REDLOCK_JITTER=10h", "a", "--", "true"]));
    let pid = run.pid();
    wait_until("it sleeps", || {
        let syscall = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        syscall.contains("poll")
    });
    assert_eq!(redis.calls("evalsha") + redis.calls("eval"), 0);
    run.signal(Signal::SIGINT);
    run.finish().assert_code(128 + 2).assert_silent();
    assert_eq!(redis.cli(&["DBSIZE"]), "0");
    job(&redis, &["REDLOCK_JITTER=5ms"])
        .finish()
        .assert_code(0)
        .assert_silent();
}

#[test]
fn the_output_of_a_failing_job_is_left_as_it_is() {
    let redis = Redis::start();
    let script = r"printf 'out\0\377'; printf 'err\n\033[1m' >&2; exit 3";
    let output = redis
        .run("-qn -E 0 --hold-at-least 1s a", script)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"out\0\xff");
    assert_eq!(output.stderr, b"err\n\x1b[1m");
}

#[test]
fn a_job_that_is_stopped_keeps_its_lock_too_and_a_person_can_end_that() {
    let redis = Redis::start();
    let script = "echo ready; exec sleep 60";
    let mut run = Running::start(&mut redis.run("--hold-at-least 1m a b", script));
    run.expect_line("ready");
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(128 + 15);
    for name in ["a", "b"] {
        outcome(&mut redis.redlock(&["run", "-n", name, "--", "true"])).assert_code(75);
        outcome(&mut redis.redlock(&["release", "--force", "-q", name])).assert_code(0);
        outcome(&mut redis.redlock(&["run", "-n", name, "--", "true"])).assert_code(0);
    }
    assert_nothing_left(&redis);
}

#[test]
fn hold_at_least_keeps_no_lock_if_the_command_is_missing() {
    let redis = Redis::start();
    for missing in ["no-such-job", "/no/such/job"] {
        let run = ["run", "--hold-at-least", "1m", "a", "--", missing];
        outcome(&mut redis.redlock(&run)).assert_code(127);
        outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(0);
    }
    assert_nothing_left(&redis);
}

#[test]
fn waiters_for_a_kept_lock_get_it_within_a_second_of_its_end_one_after_the_other() {
    let turn = |waiter: Running| {
        let end = waiter.finish();
        end.assert_code(0);
        moment(&end.stdout)
    };
    let rounds = [(); 3].map(|()| {
        let redis = Redis::start();
        let began = now();
        let holder = Gated::start(&redis, &["--hold-at-least", "6s", "a"]).ready();
        let first = queued(&redis, &["run", "-q", "a", "--", "date", "+%s%N"]);
        let second = queued(&redis, &["run", "-q", "a", "--", "date", "+%s%N"]);
        holder.end();
        let kept: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        let free = now() + Duration::from_millis(kept);
        (redis, began, free, first, second)
    });
    let delays = rounds.map(|(redis, began, free, first, second)| {
        let (first, second) = (turn(first), turn(second));
        assert!(first.saturating_sub(began) > Duration::from_millis(5950));
        assert!(first < second);
        assert_nothing_left(&redis);
        [first.saturating_sub(free), second.saturating_sub(first)]
    });
    assert_within(Duration::from_secs(1), delays.concat());
}

#[test]
fn a_run_that_is_skipped_says_so_in_one_line_and_nothing_with_quiet() {
    let redis = Redis::start();
    job(&redis, &[]).finish().assert_code(0).assert_silent();
    let after = |options: &[&str]| job(&redis, options).finish().assert_code(0).stderr.clone();
    let said = after(&["--once-per", "1h"]);
    let (start, end) = ("redlock: skipped: a run of \"a\" succeeded ", "s ago on ");
    let host = host();
    assert!(
        said.starts_with(start) && said.ends_with(&format!("{end}{host}\n")),
        "{said:?}"
    );
    assert_eq!(said.lines().count(), 1);
    // A failure since then, and a history that isn't there, change nothing.
    outcome(&mut redis.run("a", "exit 3")).assert_code(3);
    assert!(after(&["--once-per", "1h"]).contains(end));
    redis.cli(&["DEL", "{redlock:a}:history"]);
    assert!(after(&["--once-per", "1h"]).ends_with("s ago\n"));
    assert_eq!(after(&["-q", "--once-per", "1h"]), "");
    let numbered = |number| {
        let supersede = words!("run --supersede --reason hotfix --seq", number);
        outcome(&mut redis.redlock(&[supersede, &["b", "--", "true"]].concat()))
    };
    numbered("7").assert_code(0).assert_silent();
    let old = numbered("6");
    old.assert_code(75)
        .assert_says("redlock: lock \"b\": build 6 is older than build 7 of ")
        .assert_says("(hotfix)");
    assert_eq!(old.stderr.lines().count(), 1);
    assert_eq!(ran(&redis), 1);
}

#[test]
fn a_failed_once_per_job_runs_again_until_it_has_succeeded_once() {
    let redis = Redis::start();
    // The third one succeeds.
    let script = r#"echo run >>"$HOME/ran"; test "$(wc -l <"$HOME/ran")" -ge 3"#;
    let all: Vec<Running> = (0..8)
        .map(|_| Running::start(&mut redis.run("-q --once-per 1h -E 9 a", script)))
        .collect();
    let mut codes: Vec<Option<i32>> = all.into_iter().map(|run| run.finish().code()).collect();
    codes.sort();
    let expected = [0, 1, 1, 9, 9, 9, 9, 9].map(Some);
    assert_eq!((ran(&redis), codes.as_slice()), (3, &expected[..]));
    assert_nothing_left(&redis);
}

#[test]
fn a_run_that_lost_its_lock_was_no_success_whatever_it_ended_with() {
    let redis = Redis::start();
    let script = "redlock release --force -q a";
    outcome(&mut redis.run("-q REDLOCK_ON_LOST=warn a", script));
    // Nor is one that was killed, or stopped in time.
    outcome(&mut redis.run("-q a", "kill -9 $$")).assert_code(137);
    let script = "trap 'exit 0' TERM; while :; do sleep 0.01; done";
    outcome(&mut redis.run("-q -t 50ms a", script)).assert_code(124);
    job(&redis, &["--once-per", "1h"]).finish().assert_code(0);
    assert_eq!(ran(&redis), 1);
}

#[test]
fn a_success_long_ago_or_of_another_lock_does_not_count() {
    let redis = Redis::start();
    outcome(&mut redis.redlock(&["run", "b", "--", "true"])).assert_code(0);
    job(&redis, &["--once-per", "1h"]).finish().assert_code(0);
    let succeeded = redis.cli(&["HGET", "{redlock:a}:state", "succeeded"]);
    let before: u64 = succeeded.parse::<u64>().unwrap() - 2 * 3_600_000;
    redis.cli(words!(
        "HSET {redlock:a}:state succeeded",
        &before.to_string()
    ));
    job(&redis, &["--once-per", "1h"]).finish().assert_code(0);
    job(&redis, &["--once-per", "1h"]).finish().assert_code(0);
    assert_eq!(ran(&redis), 2);
}

#[test]
fn jitter_is_never_more_than_was_said_and_each_signal_ends_it() {
    let redis = Redis::start();
    for (signal, number) in [(Signal::SIGHUP, 1), (Signal::SIGTERM, 15)] {
        let run =
            Running::start(&mut redis.redlock(words!("run REDLOCK_JITTER=10h a -- echo ran")));
        let pid = run.pid();
        wait_until("it sleeps", || {
            let wchan = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            wchan.contains("poll")
        });
        run.signal(signal);
        let end = run.finish();
        end.assert_code(128 + number).assert_silent();
        assert_eq!(end.stdout, "");
    }
    assert_eq!(redis.cli(&["DBSIZE"]), "0");
    let began = Instant::now();
    let all: Vec<Running> = (0..10)
        .map(|number| {
            let name = format!("a{number}");
            Running::start(&mut redis.redlock(words!("run REDLOCK_JITTER=2s {} -- true", &name)))
        })
        .collect();
    for run in all {
        run.finish().assert_code(0).assert_silent();
    }
    assert!(began.elapsed() < Duration::from_secs(22));
}

#[test]
fn a_run_that_loses_the_race_is_silent_for_whatever_reason_but_not_when_something_is_wrong() {
    let redis = Redis::start();
    let quiet = |options: &[&str]| {
        let arguments = [
            &["run", "-q", "-n", "-E", "0"],
            options,
            &["a", "--", "echo", "ran"],
        ];
        outcome(&mut redis.redlock(&arguments.concat()))
    };
    let lost = |options: &[&str]| {
        let end = quiet(options);
        end.assert_code(0).assert_silent();
        assert_eq!(end.stdout, "", "{options:?}");
    };
    let holder = Gated::start(&redis, &["a"]).ready();
    for options in [
        &[][..],
        &["-s"],
        &["--slots", "2"],
        &["--hold-at-least", "1m"],
    ] {
        lost(options);
    }
    holder.end();
    lost(&["--once-per", "1h"]);
    redis.cli(&["SET", "redlock:a", "theirs"]);
    lost(&[]);
    redis.cli(&["DEL", "redlock:a"]);
    outcome(&mut redis.redlock(&["freeze", "-q", "a", "--reason", "x"])).assert_silent();
    lost(&[]);
    outcome(&mut redis.redlock(&["thaw", "-q", "a"])).assert_silent();
    quiet(&["-u", "redis://127.0.0.1:1"])
        .assert_code(69)
        .assert_says("redlock: ");
    quiet(&["--ttl", "1ms"]).assert_code(64);
}

#[test]
fn of_twenty_that_race_with_one_key_one_runs_and_each_key_has_its_run() {
    let redis = Redis::start();
    for key in ["2026-11-25", "2026-11-26"] {
        let start = || {
            Running::start(
                &mut redis.redlock(&["run", "-q", "--once", key, "a", "--", "echo", "ran"]),
            )
        };
        let all: Vec<Running> = (0..20).map(|_| start()).collect();
        let ran = all.into_iter().map(Running::finish);
        let ran: Vec<String> = ran.map(|end| end.assert_code(0).stdout.clone()).collect();
        assert_eq!(ran.concat(), "ran\n", "{ran:?}");
    }
    // A failure isn't remembered, and -E says which status a skipped run has.
    outcome(&mut redis.redlock(&["run", "-q", "--once", "k", "a", "--", "false"])).assert_code(1);
    outcome(&mut redis.redlock(&["run", "-q", "--once", "k", "a", "--", "true"])).assert_code(0);
    outcome(&mut redis.redlock(&["run", "-E", "9", "--once", "k", "a", "--", "false"]))
        .assert_code(9)
        .assert_says("skipped: a run of \"a\" with --once k succeeded");
    outcome(&mut redis.redlock(&["run", "--once", "a key", "a", "--", "true"])).assert_code(64);
}

#[test]
fn a_run_that_waits_behind_one_with_its_key_is_skipped_when_that_succeeds() {
    let redis = Redis::start();
    let options = ["--once", "k", "a"];
    let first = Gated::start(&redis, &options).ready();
    let second = Gated::queued(&redis, &options);
    first.end();
    let end = second.run.finish();
    end.assert_code(0)
        .assert_says("skipped: a run of \"a\" with --once k succeeded");
    assert_eq!(end.stdout, "");
    // After a failure the next one runs.
    let failing = [
        "run",
        "--once",
        "j",
        "a",
        "-c",
        "read go <\"$HOME/gate\"; exit 1",
    ];
    let mut gate = Gate::new(&redis);
    let first = Running::start(&mut redis.redlock(&failing));
    wait_until("it holds the lock", || {
        redis.holder("a") == Some(first.pid())
    });
    let second = Gated::queued(&redis, &["--once", "j", "a"]);
    gate.open();
    first.finish().assert_code(1);
    second.ready().end();
    assert_nothing_left(&redis);
}

//! Doing it once: --hold-at-least, --once-per, --unless, --jitter, and silence.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{
    Gated, Redis, Running, assert_nothing_left, is_alive, outcome, queued, wait_until,
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
    let options = ["-q", "-n", "-E", "0", "--hold-at-least", "1m"];
    job(&redis, &options)
        .finish()
        .assert_code(0)
        .assert_silent();
    let late = job(&redis, &options).finish();
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
fn a_kept_lock_is_free_when_its_time_is_over_and_who_waits_gets_it_then() {
    for mode in [&[][..], &["--slots", "1"], &["--shared"]] {
        let redis = Redis::start();
        let began = Instant::now();
        let holder = Gated::start(
            &redis,
            &[mode, &["--hold-at-least", "1500ms", "a"]].concat(),
        )
        .ready();
        let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
        holder.end();
        assert!(!redis.cli(&["GET", "redlock:a"]).is_empty());
        waiter.finish().assert_code(0);
        let elapsed = began.elapsed();
        assert!(
            elapsed > Duration::from_millis(1450),
            "{mode:?}: {elapsed:?}"
        );
        assert!(elapsed < Duration::from_secs(4), "{mode:?}: {elapsed:?}");
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
    for run in all {
        run.finish().assert_code(0).assert_silent();
    }
    assert_eq!(ran(&redis), 1);
    assert_nothing_left(&redis);
    job(&redis, &["--once-per", "1h", "-E", "9"])
        .finish()
        .assert_code(9);
    job(&redis, &["--once-per", "1ms"]).finish().assert_code(0);
    assert_eq!(ran(&redis), 2);
    outcome(&mut redis.redlock(&["run", "--once-per", "1h", "a", "b", "--", "true"]))
        .assert_code(64);
}

#[test]
fn a_failure_is_not_remembered_nor_is_a_run_that_lost_its_lock() {
    let redis = Redis::start();
    outcome(&mut redis.redlock(&["run", "a", "--", "false"])).assert_code(1);
    let forced = ["run", "a", "-c", "redlock release --force -q a"];
    outcome(&mut redis.redlock(&forced));
    job(&redis, &["--once-per", "1h"]).finish().assert_code(0);
    assert_eq!(ran(&redis), 1);
}

#[test]
fn who_waits_when_another_run_succeeds_does_not_run_again() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let ran_file = redis.dir.path().join("ran");
    let script = format!("echo ran >>{}", ran_file.display());
    let waiter = queued(
        &redis,
        &["run", "-q", "--once-per", "1h", "a", "-c", &script],
    );
    let failed = Gated::queued(&redis, &["a"]);
    holder.end();
    waiter.finish().assert_code(0);
    assert_eq!(ran(&redis), 0);
    failed.ready().end();
    assert_nothing_left(&redis);
}

/// A script for --unless that counts how often it is asked, and succeeds once a file is there.
fn unless(redis: &Redis) -> String {
    let dir = redis.dir.path().display();
    format!("echo asked >>{dir}/asked; test -e {dir}/filled")
}

fn asked(redis: &Redis) -> usize {
    let asked = fs::read_to_string(redis.dir.path().join("asked"));
    asked.unwrap_or_default().lines().count()
}

#[test]
fn unless_is_asked_once_where_nobody_was_in_the_way() {
    let redis = Redis::start();
    let unless = unless(&redis);
    job(&redis, &["--unless", &unless]).finish().assert_code(0);
    assert_eq!((ran(&redis), asked(&redis)), (1, 1));
    fs::write(redis.dir.path().join("filled"), "").unwrap();
    let scripts = redis.calls("evalsha");
    job(&redis, &["--unless", &unless])
        .finish()
        .assert_code(0)
        .assert_silent();
    assert_eq!((ran(&redis), asked(&redis)), (1, 2));
    assert_eq!(redis.calls("evalsha"), scripts, "the lock was asked for");
}

#[test]
fn unless_is_asked_again_after_having_waited() {
    let redis = Redis::start();
    let unless = unless(&redis);
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiter = queued(
        &redis,
        &[
            "run", "-q", "--unless", &unless, "a", "--", "echo", "filling",
        ],
    );
    fs::write(redis.dir.path().join("filled"), "").unwrap();
    holder.end();
    let end = waiter.finish();
    end.assert_code(0);
    assert_eq!((end.stdout.as_str(), asked(&redis)), ("", 2));

    fs::remove_file(redis.dir.path().join("filled")).unwrap();
    let holder = Gated::start(&redis, &["a"]).ready();
    let command = ["a", "--", "sh", "-c", "echo $0 $*; exit 7", "x", "y z"];
    let waiter = queued(
        &redis,
        &[&["run", "-q", "--unless", &unless], &command[..]].concat(),
    );
    holder.end();
    let end = waiter.finish();
    assert_eq!(
        (end.assert_code(7).stdout.as_str(), asked(&redis)),
        ("x y z\n", 4)
    );
}

#[test]
fn unless_is_asked_again_when_another_run_has_succeeded_in_between() {
    let redis = Redis::start();
    // The first time it is asked, somebody else fills the cache before the answer is known.
    let dir = redis.dir.path().display();
    let script =
        format!("test -e {dir}/filled || {{ redlock run a -- touch {dir}/filled; false; }}");
    let run = job(&redis, &["--unless", &script]).finish();
    run.assert_code(0);
    assert_eq!(ran(&redis), 0);
}

#[test]
fn a_signal_ends_what_unless_asks() {
    let redis = Redis::start();
    let script = "echo $$; exec sleep 60";
    let mut run =
        Running::start(&mut redis.redlock(&["run", "--unless", script, "a", "--", "true"]));
    let asking: i32 = run.line().parse().unwrap();
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(128 + 15);
    assert!(!is_alive(asking));
    assert_nothing_left(&redis);
}

#[test]
fn jitter_sleeps_before_all_else_and_a_signal_ends_it() {
    let redis = Redis::start();
    let run = Running::start(&mut redis.redlock(&["run", "--jitter", "10h", "a", "--", "true"]));
    let pid = run.pid();
    wait_until("it sleeps", || {
        let syscall = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        syscall.contains("poll")
    });
    assert_eq!(redis.calls("evalsha") + redis.calls("eval"), 0);
    run.signal(Signal::SIGINT);
    run.finish().assert_code(128 + 2).assert_silent();
    assert_eq!(redis.cli(&["DBSIZE"]), "0");
    job(&redis, &["--jitter", "5ms"])
        .finish()
        .assert_code(0)
        .assert_silent();
}

#[test]
fn what_a_failing_job_says_is_left_as_it_is() {
    let redis = Redis::start();
    let script = r"printf 'out\0\377'; printf 'err\n\033[1m' >&2; exit 3";
    let output = redis
        .redlock(&[
            "run",
            "-qn",
            "-E",
            "0",
            "--hold-at-least",
            "1s",
            "a",
            "-c",
            script,
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stdout, b"out\0\xff");
    assert_eq!(output.stderr, b"err\n\x1b[1m");
}

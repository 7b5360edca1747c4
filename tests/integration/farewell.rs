//! Leaving while Redis stands still, and starting nothing under a lease that is over.

use std::path::Path;
use std::time::Duration;

use crate::supervision::{directly, is_gone, send, with_default_signals};
use crate::support::{
    Gated, REDLOCK, Redis, Running, assert_nothing_left, queued, script, wait_until,
};

/// Longer than the time within which a signal counts as the one before.
const LATER: Duration = Duration::from_millis(600);

/// Ways to wait for the lock "a", each with this limit for the server's answers.
fn waits(limit: &'static str) -> [Vec<&'static str>; 3] {
    let limit = ["--connect-timeout", limit];
    [
        [&["run"], &limit[..], &["a", "--", "echo", "ran"]].concat(),
        [&["acquire", "-w", "60s"], &limit[..], &["a"]].concat(),
        // The first is taken, and has to be given back.
        [&["run"], &limit[..], &["0", "a", "--", "echo", "ran"]].concat(),
    ]
}

#[test]
fn one_signal_ends_a_wait_in_a_bounded_time_while_redis_stands_still() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "600000"]);
    for arguments in waits("2s") {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let waiter = queued(&redis, &arguments);
            redis.stall();
            send(waiter.pid(), signal);
            let end = waiter.finish();
            redis.resume();
            end.assert_code(128 + signal);
            assert!(!end.stdout.contains("ran"), "{end:?}");
        }
    }
}

#[test]
fn a_second_signal_ends_a_farewell_that_redis_does_not_answer() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "600000"]);
    for arguments in waits("1h") {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let mut waiter = queued(&redis, &arguments);
            redis.stall();
            send(waiter.pid(), signal);
            std::thread::sleep(LATER);
            if !waiter.has_ended() {
                send(waiter.pid(), signal);
            }
            let end = waiter.finish();
            redis.resume();
            end.assert_killed_by(signal);
            assert!(!end.stdout.contains("ran"), "{end:?}");
        }
    }
}

#[test]
fn a_second_signal_ends_a_run_whose_first_question_is_not_answered() {
    let redis = Redis::start();
    redis.stall();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let [run, ..] = waits("1h");
        let mut run = Running::start(&mut with_default_signals(redis.redlock(&run)));
        let socket = format!("{}", redis.socket().display());
        wait_until("it has connected", || {
            let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
            // The listening one, and one a connection that waits to be accepted.
            sockets.matches(&socket).count() > 1 || run.has_ended()
        });
        send(run.pid(), signal);
        std::thread::sleep(LATER);
        if !run.has_ended() {
            send(run.pid(), signal);
        }
        let end = run.finish();
        end.assert_killed_by(signal);
        assert_eq!(end.stdout, "");
    }
    redis.resume();
}

#[test]
fn a_second_signal_ends_a_release_that_redis_does_not_answer() {
    let redis = Redis::start();
    let command = ["run", "--connect-timeout", "1h", "--ttl", "1h", "a", "-c"];
    let command = [&command[..], &["echo $$; exec sleep 60"]].concat();
    let mut run = Running::start(&mut with_default_signals(redis.redlock(&command)));
    let child: i32 = run.line().parse().unwrap();
    redis.stall();
    send(run.pid(), libc::SIGTERM);
    wait_until("COMMAND has ended", || is_gone(child));
    std::thread::sleep(LATER);
    if !run.has_ended() {
        send(run.pid(), libc::SIGTERM);
    }
    run.finish().assert_killed_by(libc::SIGTERM);
    redis.resume();
}

/// A run for which these system calls of redlock and COMMAND take five seconds, with a lease of
/// one second; COMMAND is the script `command` in the home directory. Only calls that name this
/// path are slow where `path_only` says so.
fn slow(redis: &Redis, calls: &str, path_only: bool) -> Running {
    let home = redis.dir.path();
    let text = "#!/bin/sh\n>\"$HOME/ran\"\necho ran\n";
    let command = script(home, "command", text);
    let command = command.to_str().unwrap();
    let log = home.join("strace.log");
    let (trace, inject) = (
        format!("trace={calls}"),
        format!("inject={calls}:delay_enter=5000000"),
    );
    let mut words = vec!["strace", "-f", "-qq", "-o", log.to_str().unwrap()];
    words.extend(["-e", &trace, "-e", &inject]);
    if path_only {
        words.extend(["-P", command]);
    }
    words.extend([REDLOCK, "run", "--ttl", "1s", "-k", "100ms", "a", "--"]);
    words.push(command);
    Running::start(&mut with_default_signals(directly(redis, &words)))
}

/// The first loses its lock before COMMAND has started, and somebody else has it when COMMAND
/// would start.
#[track_caller]
fn assert_starts_nothing_under_the_next_lock(redis: &Redis, first: Running) {
    wait_until("the first has the lock", || redis.holder("a").is_some());
    redis.cli(&["DEL", "redlock:a"]);
    let next = Gated::start(redis, &["-q", "a"]).ready();
    let end = first.finish();
    let ran = Path::new(&redis.dir.path().join("ran")).exists();
    assert!(!ran, "COMMAND ran under the next holder's lock: {end:?}");
    end.assert_code(79);
    next.end();
    assert_nothing_left(redis);
}

#[test]
fn a_command_whose_exec_takes_longer_than_the_lease_never_starts() {
    let redis = Redis::start();
    let first = slow(&redis, "execve", true);
    assert_starts_nothing_under_the_next_lock(&redis, first);
}

#[test]
fn a_command_whose_process_is_made_when_the_lease_is_over_never_starts() {
    let redis = Redis::start();
    let first = slow(&redis, "clone,clone3,fork,vfork", false);
    assert_starts_nothing_under_the_next_lock(&redis, first);
}

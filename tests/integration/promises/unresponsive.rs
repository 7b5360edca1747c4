//! Ending while Redis doesn't respond, and starting nothing under an expired lease.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Starts redlock with a line, followed by these words.
fn start(redis: &Redis, line: &str, more: &[&str]) -> Running {
    Running::start(&mut redis.redlock(&words(line, more)))
}

/// Lines that wait for the lock "a". With several locks the first one is taken, and must be released.
const WAITS: [&str; 3] = [
    "REDLOCK_REDIS_TIMEOUT=1h run a -- echo ran",
    "REDLOCK_REDIS_TIMEOUT=1h acquire -w 60s a",
    "REDLOCK_REDIS_TIMEOUT=1h run 0 a -- echo ran",
];

/// Starts a run that waits for the lock "a" of another client. Returns when it is in the queue.
fn waiter(redis: &Redis, line: &str) -> Running {
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "600000"]);
    let mut waiter = start(redis, line, &[]);
    wait_until("it is in the queue", || {
        assert!(!waiter.has_ended(), "it has ended");
        !redis.queue("a").is_empty()
    });
    waiter
}

/// Starts a run that may wait an hour for the server. Returns when its COMMAND runs.
fn patient(redis: &Redis, names: &str) -> Running {
    // Loads the scripts: without them the server would request their text.
    outcome(&mut redis.run(names, "true")).assert_code(0);
    let line = format!("REDLOCK_REDIS_TIMEOUT=1h run --ttl 1h {names} -c");
    start(redis, &line, &["echo ready; exec sleep 60"]).at_ready()
}

/// Starts a run under a lease of three seconds whose COMMAND is late, because these system calls take five seconds each. The
/// trace is in the home directory.
fn slow(redis: &Redis, trace: &[&str]) -> Running {
    let home = redis.dir.path();
    let command = script(home, "command", "#!/bin/sh\n>\"$HOME/ran\"\n");
    let command = command.to_str().unwrap();
    let log = home.join("trace");
    let strace = ["strace", "-f", "-qq", "-o", log.to_str().unwrap()];
    let run = [REDLOCK, "run", "--ttl", "3s", "-k", "100ms", "a", "--"];
    let words = [&strace, trace, &run, &[command]].concat();
    Running::start(&mut directly(redis, &words))
}

/// Asserts that a run that loses its lock before COMMAND has started never executes COMMAND. Another run holds the lock by
/// then.
#[track_caller]
fn assert_executes_nothing(redis: &Redis, first: Running) {
    wait_until("the first has the lock", || redis.holder("a").is_some());
    redis.cli(&["DEL", "redlock:a"]);
    let next = Gated::start(redis, &["-q", "a"]).ready();
    let end = first.finish();
    let trace = fs::read_to_string(redis.dir.path().join("trace")).unwrap();
    let own = format!("execve(\"{REDLOCK}\"");
    let executed = trace
        .lines()
        .filter(|line| line.contains("execve") && line.contains("= 0") && !line.contains(&own));
    let ran = redis.dir.path().join("ran").exists();
    assert!(
        executed.count() == 0 && !ran,
        "COMMAND was executed under the next lock: {end:?}\n{trace}"
    );
    end.assert_code(79);
    next.end();
    assert_nothing_left(redis);
}

#[test]
fn a_command_whose_process_or_exec_comes_when_the_lease_is_over_never_starts() {
    // Only calls of execve that name COMMAND; the first new process is for COMMAND.
    let exec = "-e trace=execve -e inject=execve:delay_enter=5000000 -P {}";
    let process = "-e trace=execve,clone,clone3,fork,vfork \
                   -e inject=clone,clone3,fork,vfork:delay_enter=5000000:when=1";
    for trace in [exec, process] {
        let redis = Redis::start();
        let command = redis.dir.path().join("command");
        let command = command.to_str().unwrap();
        let values = [command];
        let values = if trace == exec { &values[..] } else { &[] };
        let first = slow(&redis, &words(trace, values));
        assert_executes_nothing(&redis, first);
    }
}

#[test]
fn one_signal_ends_a_command_without_a_reply_and_prints_what_may_have_changed() {
    for (line, done) in [
        ("run a -- true", ""),
        ("run -n a -- true", ""),
        ("acquire a", ""),
        ("status", ""),
        ("freeze a --new --reason repair", "frozen"),
        ("thaw a", "thawed"),
    ] {
        for (signal, limit) in [(libc::SIGINT, "1h"), (libc::SIGTERM, "1h"), (0, "1s")] {
            // This server accepts clients and never answers.
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("redis://{}", server.local_addr().unwrap());
            let line = format!("-u {url} REDLOCK_REDIS_TIMEOUT={limit} {line}");
            let client = Running::start(&mut redlock(&words(&line, &[])));
            let request = BufReader::new(server.accept().unwrap().0).lines();
            let mut lines = request.map(Result::unwrap);
            let is_question = |line: &String| done.is_empty() || line == "EVALSHA";
            lines.find(is_question).expect("a question");
            if signal > 0 {
                send(client.pid(), signal);
            }
            let end = client.finish();
            if signal > 0 {
                end.assert_killed_by(signal);
            } else {
                end.assert_said(69, "gives no answer in time");
            }
            // Only an interrupt, which a person types, gets the message.
            if !done.is_empty() && signal != libc::SIGTERM {
                let status = format!("redlock status -u {url} a");
                let says = format!("lock \"a\" may have been {done}; to find out: {status}");
                end.assert_says(&says);
            }
        }
    }
}

#[test]
fn one_signal_ends_a_wait_and_a_run_of_one_lock_or_many_whose_release_is_not_answered() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        for line in WAITS {
            let redis = Redis::start();
            let waiter = waiter(&redis, line);
            redis.stall();
            send(waiter.pid(), signal);
            let end = waiter.finish();
            end.assert_killed_by(signal);
            assert!(!end.stdout.contains("ran"), "{end:?}");
        }
        let many = (0..20).map(|number| format!("lock-{number}"));
        let many: Vec<String> = many.collect();
        for names in ["a", &many.join(" ")] {
            let redis = Redis::start();
            let run = patient(&redis, names);
            redis.stall();
            let began = Instant::now();
            send(run.pid(), signal);
            run.finish().assert_killed_by(signal);
            // If released one after the other, many locks would take a second each.
            assert_took_less(began, Duration::from_secs(15));
            // The server reads all requests when it goes on.
            redis.resume();
            redis.await_free(names);
        }
    }
}

#[test]
fn while_a_waiter_reconnects_to_a_silent_server_held_locks_are_renewed_and_one_signal_ends_it() {
    let redis = Redis::start();
    load_scripts(&redis);
    redis.cli(&["SET", "redlock:b", "theirs", "PX", "600000"]);
    let (asks, asked) = std::sync::mpsc::channel();
    let (mut renews, mut is_cut) = (false, false);
    // The connection that renews works. The waiter's own ends, and its next one has no answer.
    let proxy = Proxy::with(&redis, move |request| {
        renews |= request.operation == "check";
        match &*request.operation {
            "heartbeat" if renews => {
                is_cut = true;
                Action::Reset
            }
            "HELLO" if is_cut => {
                let _ = asks.send(());
                Action::LoseRequest
            }
            _ => Action::Pass,
        }
    });
    let line = "REDLOCK_REDIS_TIMEOUT=1h run -u {} --ttl 12s a b -- true";
    let mut waiter = start(&redis, line, &[&proxy.url()]);
    asked.recv_timeout(TIMEOUT).unwrap();
    let renewals = || proxy.answered("renew") + proxy.answered("prolong");
    let before = renewals();
    wait_until("the held lock is renewed", || renewals() > before + 1);
    assert!(!waiter.has_ended());
    let began = Instant::now();
    send(waiter.pid(), libc::SIGTERM);
    waiter.finish().assert_killed_by(libc::SIGTERM);
    assert_took_less(began, Duration::from_secs(15));
}

#[test]
fn a_waiter_that_loses_its_first_lock_while_it_connects_takes_no_second_one() {
    let redis = Redis::start();
    load_scripts(&redis);
    redis.cli(&["SET", "redlock:b", "theirs", "PX", "600000"]);
    // The waiter learns the protocol before it asks for a place.
    let proxy = Proxy::once(&redis, "HELLO", 0, Action::Stall(Duration::from_secs(3)));
    let line = "REDLOCK_REDIS_TIMEOUT=9s run -u {} --ttl 20s a b -- true";
    let waiter = start(&redis, line, &[&proxy.url()]);
    wait_until("the first lock is checked", || proxy.answered("check") > 0);
    redis.cli(&["DEL", "redlock:b"]);
    redis.cli(&["DEL", "redlock:a"]);
    waiter.finish_saying(79, "lock \"a\" was lost");
    assert!(!redis.is_held("b"), "{proxy:?}");
}

#[test]
fn one_signal_ends_a_wait_whose_look_for_a_deadlock_redis_does_not_answer() {
    let redis = Redis::start();
    load_scripts(&redis);
    redis.cli(&["SET", "redlock:z", "theirs", "PX", "600000"]);
    let (pid, (looks, looked)) = (redis.pid(), std::sync::mpsc::channel());
    // The note that the run waits is the first key that it writes for others.
    let proxy = Proxy::with(&redis, move |request| {
        if request.operation == "SET" {
            send(pid, libc::SIGSTOP);
            let _ = looks.send(());
        }
        Action::Pass
    });
    let line = "REDLOCK_REDIS_TIMEOUT=1h run -u {} --ttl 1h a b z -- true";
    let waiter = start(&redis, line, &[&proxy.url()]);
    looked.recv_timeout(TIMEOUT).unwrap();
    let began = Instant::now();
    send(waiter.pid(), libc::SIGINT);
    waiter.finish().assert_killed_by(libc::SIGINT);
    // All requests share one second, and there might be three of them.
    assert_took_less(began, Duration::from_secs(20));
    // redlock has released both locks anyway, and left the queue.
    redis.resume();
    redis.await_free("a b");
    wait_until("the queue is empty", || redis.queue("z").is_empty());
}

#[test]
fn a_wait_for_a_server_that_falls_silent_ends_when_it_is_over_and_an_answer_would_have_come() {
    let redis = Redis::start();
    load_scripts(&redis);
    redis.cli(&["SET", "redlock:z", "theirs", "PX", "600000"]);
    let waits = [
        "run -w 5s z -- true",
        "acquire -w 5s z",
        // The other locks are taken, and must be released; and the run checks for a deadlock.
        "run -w 5s a b z -- true",
    ];
    let waiters = waits.map(|line| {
        let mut waiter = redis.redlock(&words(line, &[]));
        waiter.env("REDLOCK_REDIS_TIMEOUT", "5s");
        (line, Instant::now(), Running::start(&mut waiter))
    });
    wait_until("they are in the queue", || redis.queue("z").len() == 3);
    redis.stall();
    for (line, began, waiter) in waiters {
        let end = waiter.finish();
        let took = began.elapsed();
        end.assert_said(69, "gives no answer in time");
        // Another reply would take another five seconds.
        let (least, most) = (Duration::from_secs(5), Duration::from_secs(14));
        assert!(took >= least && took < most, "{line}: {took:?}");
    }
    redis.resume();
    redis.await_free("a b");
    wait_until("the queue is empty", || redis.queue("z").is_empty());
}

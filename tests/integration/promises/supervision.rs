//! Signals, process groups and streams: what COMMAND finds, and what becomes of it.
//!
//! Not tested here: a machine that was suspended, which a stopped redlock stands for.

#![allow(unsafe_code)]

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::proxy::{Action, Proxy};
use crate::support::{
    COUNTER, Gate, REDLOCK, Redis, Running, assert_nothing_left, attach_strace,
    await_and_kill_watchdog, directly, is_alive, is_gone, outcome, send, state, wait_until,
    with_default_signals, with_signals,
};

/// The signals that [`COUNTER`] is asked for, as Perl and the kernel have them.
const SIGNALS: [(&str, i32); 10] = [
    ("HUP", libc::SIGHUP),
    ("INT", libc::SIGINT),
    ("QUIT", libc::SIGQUIT),
    ("TERM", libc::SIGTERM),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("WINCH", libc::SIGWINCH),
    ("CONT", libc::SIGCONT),
    ("ALRM", libc::SIGALRM),
    ("PIPE", libc::SIGPIPE),
];

/// redlock, with default signals.
fn run(redis: &Redis, arguments: &[&str]) -> Command {
    with_default_signals(redis.redlock(arguments))
}

/// The pid in a line such as `child ready 4711`.
fn pid_in(line: &str) -> i32 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn each_signal_reaches_the_child_once_and_as_itself() {
    let redis = Redis::start();
    let names = SIGNALS.map(|(name, _)| name);
    let command = ["run", "--ttl", "120s", "-k", "60s", "a", "--", "perl", "-e"];
    for (name, signal) in SIGNALS {
        let arguments = [&command[..], &[COUNTER, "child"], &names].concat();
        let mut running = Running::start(&mut run(&redis, &arguments));
        let child = pid_in(&running.line());
        send(running.pid(), signal);
        running.expect_line(&format!("child {name}"));
        send(running.pid(), libc::SIGRTMAX());
        let end = running.finish();
        end.assert_code(0).assert_silent();
        assert_eq!(
            end.stdout,
            format!("child ready {child}\nchild {name}\nchild end\n")
        );
    }
}

#[test]
fn real_time_signals_reach_the_child_as_often_as_they_were_sent() {
    let redis = Redis::start();
    // The kernel queues these, and the child takes one at a time, so that none is missed.
    let program = r#"
        use POSIX ();
        $| = 1;
        my ($number, $end) = ($ARGV[0], 0);
        my @names = split " ", do { require Config; $Config::Config{sig_name} };
        $SIG{$names[$number]} = sub { print "came\n" };
        $SIG{RTMAX} = sub { $end = 1 };
        POSIX::sigprocmask(POSIX::SIG_BLOCK, POSIX::SigSet->new($number, POSIX::SIGRTMAX));
        print "ready\n";
        my $none = POSIX::SigSet->new;
        POSIX::sigsuspend($none) until $end;
        print "end\n";
    "#;
    for signal in [libc::SIGRTMIN(), 40, libc::SIGRTMAX() - 1] {
        let number = signal.to_string();
        let arguments = ["run", "a", "--", "perl", "-e", program, &number];
        let mut running = Running::start(&mut run(&redis, &arguments));
        running.expect_line("ready");
        for _ in 0..3 {
            send(running.pid(), signal);
        }
        for _ in 0..3 {
            running.expect_line("came");
        }
        send(running.pid(), libc::SIGRTMAX());
        let end = running.finish();
        end.assert_code(0).assert_silent();
        assert_eq!(end.stdout, "ready\ncame\ncame\ncame\nend\n", "{signal}");
    }
}

/// The binaries to try: that of the tests and, where `REDLOCK_BIN` names one, another, which may be
/// linked with another C library.
pub fn binaries() -> Vec<String> {
    let other = std::env::var("REDLOCK_BIN").ok();
    [REDLOCK.to_owned()].into_iter().chain(other).collect()
}

/// The signals that C libraries keep for themselves: 32 and 33, and musl 34 as well.
const OF_THE_C_LIBRARY: [i32; 3] = [32, 33, 34];

#[test]
fn the_signals_of_the_c_library_reach_the_child() {
    let redis = Redis::start();
    // Without a lock there is nothing to renew, so that no thread is started just when the signal comes: to that one the
    // C library lets it through.
    let unlocked = words!("run -q --on-unreachable run a -c");
    for binary in binaries() {
        for signal in OF_THE_C_LIBRARY {
            // No program can catch them all, so what they do is end it.
            let script = "echo $$; exec sleep 60";
            let mut command = directly(&redis, &[&[binary.as_str()], unlocked, &[script]].concat());
            command.env("REDLOCK_URL", "redis://127.0.0.1:1");
            let mut running = Running::start(&mut with_default_signals(command));
            let child: i32 = running.line().parse().unwrap();
            send(running.pid(), signal);
            // COMMAND was killed by it, and redlock was not.
            running.finish().assert_exited(128 + signal).assert_silent();
            assert!(is_gone(child));
        }
    }
}

#[test]
fn the_signals_of_the_c_library_reach_the_child_of_a_redlock_with_threads_too() {
    let redis = Redis::start();
    for binary in binaries() {
        for signal in OF_THE_C_LIBRARY {
            let script = "echo $$; exec sleep 60";
            let run = ["run", "-v", "-k", "100ms", "a", "-c", script];
            let command = directly(&redis, &[&[binary.as_str()], &run[..]].concat());
            wait_until("the one before is gone", || redis.trackers() == 0);
            let mut running = Running::start(&mut with_default_signals(command));
            let child: i32 = running.line().parse().unwrap();
            // A C library may let them through to each thread that it makes. The one that renews listens.
            wait_until("it renews", || redis.trackers() > 0);
            send(running.pid(), signal);
            running.finish().assert_exited(128 + signal);
            assert!(is_gone(child));
            assert_eq!(redis.keys(), ["{redlock:a}:state"], "{binary} {signal}");
        }
    }
}

#[test]
fn the_signals_of_the_c_library_end_a_wait_that_leaves_the_queue() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    for binary in binaries() {
        for signal in OF_THE_C_LIBRARY {
            let command = directly(&redis, &[&binary, "run", "a", "--", "echo", "ran"]);
            let mut waiter = Running::start(&mut with_default_signals(command));
            waiter.wait_until_queued(&redis);
            send(waiter.pid(), signal);
            let end = waiter.finish();
            end.assert_exited(128 + signal);
            assert_eq!(end.stdout, "");
            assert_eq!(redis.queue("a"), [0; 0], "{binary} {signal}");
        }
    }
}

#[test]
fn a_signal_that_the_child_does_not_handle_ends_it_and_the_lock_is_free() {
    let redis = Redis::start();
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGRTMIN(),
    ] {
        let script = "ulimit -c 0; exec perl -e '$| = 1; print qq(ready\n); sleep 60'";
        let mut running = Running::start(&mut run(&redis, &["run", "a", "-c", script]));
        running.expect_line("ready");
        send(running.pid(), signal);
        running.finish().assert_code(128 + signal).assert_silent();
        assert_eq!(redis.keys(), ["{redlock:a}:state"]);
    }
}

#[test]
fn a_child_that_ends_by_itself_after_a_signal_has_its_own_status() {
    let redis = Redis::start();
    let script = "$SIG{TERM} = sub { exit 7 }; $| = 1; print qq(ready\n); sleep 1 for 1 .. 60";
    let mut running = Running::start(&mut run(&redis, &["run", "a", "--", "perl", "-e", script]));
    running.expect_line("ready");
    running.signal(Signal::SIGTERM);
    running.finish().assert_code(7).assert_silent();
}

#[test]
fn without_a_terminal_the_child_leads_its_own_group() {
    let redis = Redis::start();
    let script = "print getpgrp() == $$ ? 1 : 0, getpgrp(getppid()) == getpgrp() ? 1 : 0, qq(\n)";
    let end = outcome(&mut run(&redis, &["run", "a", "--", "perl", "-e", script]));
    assert_eq!(end.stdout, "10\n");
}

#[test]
fn without_a_terminal_grandchildren_get_each_signal_once_too() {
    let redis = Redis::start();
    let names = SIGNALS.map(|(name, _)| name);
    // The child becomes a counter itself after it has started another.
    let script = r#"program=$1; shift; perl -e "$program" grandchild "$@" & exec perl -e "$program" child "$@""#;
    let command = ["run", "--ttl", "120s", "-k", "60s", "a", "--", "sh", "-c"];
    let arguments = [&command[..], &[script, "sh", COUNTER], &names].concat();
    for (name, signal) in SIGNALS {
        let mut running = Running::start(&mut run(&redis, &arguments));
        running.line();
        running.line();
        send(running.pid(), signal);
        let mut both = [running.line(), running.line()];
        both.sort();
        assert_eq!(
            both,
            [format!("child {name}"), format!("grandchild {name}")]
        );
        send(running.pid(), libc::SIGRTMAX());
        let end = running.finish();
        end.assert_code(0).assert_silent();
        let mut lines: Vec<&str> = end.stdout.lines().collect();
        lines[4..].sort_unstable();
        assert_eq!(lines[4..], ["child end", "grandchild end"]);
    }
}

#[test]
fn a_grandchild_that_ignores_term_is_killed_by_the_end_of_kill_after() {
    let redis = Redis::start();
    let stubborn = "$SIG{TERM} = q(IGNORE); $| = 1; print qq(grandchild $$\n); sleep 60";
    let script = r#"perl -e "$1" & exec sleep 60"#;
    let mut running = Running::start(&mut run(
        &redis,
        words!("run -k 300ms a -- sh -c", script, "sh", stubborn),
    ));
    let grandchild = pid_in(&running.line());
    running.signal(Signal::SIGTERM);
    running.finish().assert_code(143).assert_silent();
    assert!(is_gone(grandchild), "it was killed and reaped");
    assert_eq!(redis.keys(), ["{redlock:a}:state"]);
}

#[test]
fn the_grace_is_never_more_than_half_the_ttl() {
    let redis = Redis::start();
    let arguments = words!("run --ttl 6s -k 1h a -- perl -e", COUNTER, "child", "TERM");
    let mut running = Running::start(&mut run(&redis, arguments));
    running.line();
    running.signal(Signal::SIGTERM);
    running.expect_line("child TERM");
    running.finish().assert_code(137);
}

#[test]
fn the_lock_is_held_until_the_last_of_the_group_has_ended_after_a_stop() {
    let redis = Redis::start();
    let slow = r#"$SIG{TERM} = sub { print "asked\n" }; $| = 1; print "ready $$\n";
        my $limit = time + 60; select(undef, undef, undef, 0.01) until -e $ARGV[0] || time > $limit"#;
    let script = r#"perl -e "$1" "$2" & exec sleep 60"#;
    let file = redis.dir.path().join("go");
    let mut running = Running::start(&mut run(
        &redis,
        words!(
            "run --ttl 120s -k 60s a -- sh -c {} sh",
            script,
            slow,
            file.to_str().unwrap()
        ),
    ));
    let grandchild = pid_in(&running.line());
    running.signal(Signal::SIGTERM);
    running.expect_line("asked");
    assert!(redis.keys().contains(&"redlock:a".into()));
    assert!(is_alive(grandchild));
    fs::write(&file, "").unwrap();
    wait_until("the lock is free", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    assert!(is_gone(grandchild));
    running.finish().assert_code(143);
}

#[test]
fn the_lock_is_released_only_after_the_child_was_reaped() {
    let redis = Redis::start();
    let slow = r#"$SIG{TERM} = sub { print "asked\n" }; $| = 1; print "ready $$\n";
        my $limit = time + 60; select(undef, undef, undef, 0.01) until -e $ARGV[0] || time > $limit"#;
    let file = redis.dir.path().join("go");
    let mut running = Running::start(&mut run(
        &redis,
        words!(
            "run --ttl 120s -k 60s a -- perl -e",
            slow,
            file.to_str().unwrap()
        ),
    ));
    let child = pid_in(&running.line());
    running.signal(Signal::SIGTERM);
    running.expect_line("asked");
    assert_eq!(redis.cli(&["EXISTS", "redlock:a"]), "1");
    fs::write(&file, "").unwrap();
    wait_until("the lock is free", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    assert!(is_gone(child), "free, but its child is {:?}", state(child));
    running.finish().assert_code(0).assert_silent();
}

#[test]
fn under_nohup_a_hang_up_changes_nothing_for_both() {
    let redis = Redis::start();
    let script = "trap '' HUP; exec redlock run a -- perl -e \"$1\" child USR1";
    let mut nohup = with_default_signals(directly(&redis, &["sh", "-c", script, "sh", COUNTER]));
    let mut running = Running::start(&mut nohup);
    let child = pid_in(&running.line());
    running.signal(Signal::SIGHUP);
    // Not even when it comes to the child itself.
    send(child, libc::SIGHUP);
    running.signal(Signal::SIGUSR1);
    running.expect_line("child USR1");
    send(running.pid(), libc::SIGRTMAX());
    running.expect_line("child end");
    running.finish().assert_code(0).assert_silent();
}

#[test]
fn a_signal_ignored_at_the_start_does_not_end_the_wait_either() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let waiter = redis.redlock(&["run", "a", "--", "echo", "ran"]);
    let mut waiter = Running::start(&mut with_signals(
        waiter,
        |signal| signal == libc::SIGHUP,
        0,
    ));
    wait_until("it waits", || {
        !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    waiter.signal(Signal::SIGHUP);
    wait_until("it has read the signal", || {
        let status = fs::read_to_string(format!("/proc/{}/status", waiter.pid())).unwrap();
        status.contains("\nShdPnd:\t0000000000000000\n")
    });
    redis.cli(&["DEL", "redlock:a"]);
    redis.cli(&["PUBLISH", &redis.cli(&["PUBSUB", "CHANNELS"]), "free"]);
    waiter.expect_line("ran");
    waiter.finish().assert_code(0);
}

/// The lines of a proc status that tell of signals: pending, blocked, ignored, caught.
fn signal_lines(status: &str) -> String {
    let signals = |line: &&str| {
        (line.starts_with("Sig") || line.starts_with("ShdPnd")) && !line.starts_with("SigQ")
    };
    status
        .lines()
        .filter(signals)
        .collect::<Vec<_>>()
        .join("\n")
}

/// A child under redlock finds its signals as one without redlock does.
#[track_caller]
fn assert_signals_pass_through(ignored: fn(i32) -> bool, mask: u64) {
    let redis = Redis::start();
    let command = ["cat", "/proc/self/status"];
    let direct = with_signals(directly(&redis, &command), ignored, mask);
    let under = redis.redlock(&[&["run", "a", "--"], &command[..]].concat());
    let under = with_signals(under, ignored, mask);
    let [direct, under] = [direct, under].map(|mut command| {
        let end = outcome(&mut command);
        end.assert_code(0).assert_silent();
        signal_lines(&end.stdout)
    });
    assert_eq!(direct.lines().count(), 5, "{direct}");
    assert_eq!(under, direct);
}

#[test]
fn default_signals_are_default_in_the_child() {
    assert_signals_pass_through(|_| false, 0);
}

#[test]
fn an_ignored_sigpipe_stays_ignored_in_the_child() {
    assert_signals_pass_through(|signal| signal == libc::SIGPIPE, 0);
}

#[test]
fn an_ignored_sigchld_stays_ignored_in_the_child_whose_status_still_counts() {
    assert_signals_pass_through(|signal| signal == libc::SIGCHLD, 0);
    let redis = Redis::start();
    let child = redis.run("a", "exit 7");
    outcome(&mut with_signals(
        child,
        |signal| signal == libc::SIGCHLD,
        0,
    ))
    .assert_code(7);
}

#[test]
fn all_ignored_signals_stay_ignored_in_the_child() {
    assert_signals_pass_through(|_| true, 0);
}

#[test]
fn the_signals_of_the_c_library_stay_ignored_in_the_child() {
    assert_signals_pass_through(|signal| matches!(signal, 32 | 33), 0);
}

/// A mask of these signals.
fn mask(signals: &[i32]) -> u64 {
    signals.iter().map(|signal| 1 << (signal - 1)).sum()
}

#[test]
fn blocked_signals_stay_blocked_in_the_child() {
    let blocked = [libc::SIGUSR1, libc::SIGTERM, libc::SIGCHLD, libc::SIGPIPE];
    assert_signals_pass_through(|_| false, mask(&blocked));
    assert_signals_pass_through(
        |signal| signal == libc::SIGHUP,
        mask(&[libc::SIGHUP, 40, 64]),
    );
}

#[test]
fn blocked_signals_of_the_c_library_stay_blocked_in_the_child() {
    assert_signals_pass_through(|_| false, mask(&[32, 33]));
}

/// What a child finds as its descriptors: number and, but for pipes, file of each.
const DESCRIPTORS: &str = r#"
    for my $number (0 .. 255) {
        my $file = readlink "/proc/self/fd/$number" or next;
        next if $file =~ m{^/proc/};
        $file =~ s/^(pipe|socket):.*/$1/;
        print "$number $file\n";
    }
"#;

#[test]
fn the_child_inherits_the_descriptors_that_we_were_given_and_none_of_ours() {
    let redis = Redis::start();
    let descriptors = ["perl", "-e", DESCRIPTORS];
    for redirections in ["", "7</dev/null", "3</dev/null 200>/dev/zero"] {
        let exec = |redlock: &str| {
            let script = format!("exec {redlock} \"$@\" {redirections}");
            let shell = ["bash", "-c", &script, "bash"];
            outcome(&mut directly(&redis, &[&shell, &descriptors[..]].concat()))
        };
        let direct = exec("");
        let under = exec("redlock run a --");
        under.assert_code(0).assert_silent();
        assert!(direct.stdout.starts_with("0 /dev/null\n1 pipe\n2 pipe\n"));
        assert_eq!(under.stdout, direct.stdout, "{redirections}");
    }
}

#[test]
fn a_child_started_after_a_wait_inherits_none_of_our_descriptors() {
    let redis = Redis::start();
    let direct = outcome(&mut directly(&redis, &["perl", "-e", DESCRIPTORS]));
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let mut waiter = redis.redlock(&["run", "a", "--", "perl", "-e", DESCRIPTORS]);
    let waiter = Running::start(waiter.env("REDLOCK_URL", redis.tcp_url()));
    wait_until("it waits", || {
        !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    redis.cli(&["DEL", "redlock:a"]);
    redis.cli(&["PUBLISH", &redis.cli(&["PUBSUB", "CHANNELS"]), "free"]);
    let end = waiter.finish();
    end.assert_code(0);
    assert_eq!(end.stdout, direct.stdout);
}

#[test]
fn closed_standard_streams_stay_closed_in_the_child() {
    let redis = Redis::start();
    for (closed, open) in [
        ("0<&-", " 1 2"),
        ("0<&- 1>&-", " 2"),
        ("0<&- 1>&- 2>&-", ""),
    ] {
        let found = ["direct", "under"].map(|way| {
            let file = redis.dir.path().join(way);
            let redlock = match way {
                "under" => "redlock run a --",
                _ => "",
            };
            // What it finds goes to a file that it opens after having looked.
            let look = r#"
                found=
                for n in 0 1 2; do [ -h /proc/$$/fd/$n ] && found="$found $n"; done
                echo "open:$found" >"$1"
            "#;
            let script = format!("exec {redlock} sh -c \"$1\" sh \"$2\" {closed}");
            let arguments = ["bash", "-c", &script, "bash", look, file.to_str().unwrap()];
            outcome(&mut directly(&redis, &arguments)).assert_code(0);
            fs::read_to_string(&file).unwrap()
        });
        assert_eq!(found[0], format!("open:{open}\n"), "{closed}");
        assert_eq!(found[1], found[0], "{closed}");
    }
}

#[test]
fn streams_pass_through_byte_by_byte() {
    let redis = Redis::start();
    // More than any buffer holds, with all values and without a newline at the end.
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut running = run(&redis, &["run", "a", "-c", "tee /dev/stderr"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = running.stdin.take().unwrap();
    let mut stdout = running.stdout.take().unwrap();
    let mut stderr = running.stderr.take().unwrap();
    let (out, err) = std::thread::scope(|scope| {
        scope.spawn(|| {
            stdin.write_all(&bytes).unwrap();
            drop(stdin);
        });
        let err = scope.spawn(move || {
            let mut err = Vec::new();
            stderr.read_to_end(&mut err).unwrap();
            err
        });
        let mut out = Vec::new();
        stdout.read_to_end(&mut out).unwrap();
        (out, err.join().unwrap())
    });
    assert!(running.wait().unwrap().success());
    assert!(out == bytes, "stdout differs: {} bytes", out.len());
    assert!(err == bytes, "stderr differs: {} bytes", err.len());
}

#[test]
fn input_that_the_child_leaves_unread_is_left_to_the_next_reader() {
    let redis = Redis::start();
    let script = "redlock run a -c 'read line; echo \"child $line\"'; cat";
    let mut shell = directly(&redis, &["sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    shell
        .stdin
        .take()
        .unwrap()
        .write_all(b"one\ntwo\n")
        .unwrap();
    let mut out = String::new();
    shell
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    shell.wait().unwrap();
    assert_eq!(out, "child one\ntwo\n");
}

#[test]
fn when_redlock_is_killed_the_child_dies_and_the_lock_within_its_ttl() {
    let redis = Redis::start();
    let mut running = Running::start(&mut run(
        &redis,
        words!("run --ttl 4s -k 100ms a -c", "echo $$; exec sleep 60"),
    ));
    let child: i32 = running.line().parse().unwrap();
    running.signal(Signal::SIGKILL);
    wait_until("the child is dead", || !is_alive(child));
    let left: i64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left <= 4000, "{}", redis.describe_key("a"));
    wait_until("the lock is free", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
}

#[test]
fn a_signal_while_waiting_ends_redlock_at_once_and_leaves_nothing_behind() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    for signal in [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGPIPE,
        libc::SIGALRM,
        libc::SIGRTMIN(),
    ] {
        let waiter = Running::start(&mut run(&redis, &["run", "a", "--", "echo", "ran"]));
        wait_until("it waits", || {
            !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
        });
        send(waiter.pid(), signal);
        let end = waiter.finish();
        end.assert_code(128 + signal);
        assert_eq!(end.stdout, "", "COMMAND was not started");
        wait_until("its connection is closed", || {
            redis.cli(&["CLIENT", "LIST"]).lines().count() == 1
        });
    }
    assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "somebody");
}

#[test]
fn signals_that_mean_nothing_to_a_waiter_leave_it_waiting() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let mut waiter = Running::start(&mut run(&redis, &["run", "a", "--", "echo", "ran"]));
    wait_until("it waits", || {
        !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    for signal in [libc::SIGWINCH, libc::SIGCONT, libc::SIGURG, libc::SIGCHLD] {
        send(waiter.pid(), signal);
    }
    redis.cli(&["DEL", "redlock:a"]);
    redis.cli(&["PUBLISH", &redis.cli(&["PUBSUB", "CHANNELS"]), "free"]);
    waiter.expect_line("ran");
    waiter.finish().assert_code(0);
}

#[test]
fn a_signal_before_the_answer_starts_nothing_and_gives_the_lock_back() {
    let redis = Redis::start();
    // The server learns the scripts, so that one request is enough to take the lock.
    outcome(&mut run(&redis, &["run", "a", "--", "true"])).assert_code(0);
    redis.cli(&["CONFIG", "RESETSTAT"]);
    redis.stall();
    let command = ["run", "REDLOCK_REDIS_TIMEOUT=60s", "a", "--", "echo", "ran"];
    let running = Running::start(&mut run(&redis, &command));
    let blocked = format!("/proc/{}/status", running.pid());
    wait_until("it takes signals", || {
        let status = fs::read_to_string(&blocked).unwrap();
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:\t"));
        u64::from_str_radix(mask.unwrap(), 16).unwrap() & self::mask(&[libc::SIGTERM]) != 0
    });
    running.signal(Signal::SIGTERM);
    redis.resume();
    let end = running.finish();
    end.assert_code(143).assert_silent();
    assert_eq!(end.stdout, "", "COMMAND was not started");
    assert_nothing_left(&redis);
}

#[test]
fn after_standing_still_past_the_deadline_the_child_is_killed_before_anything_is_asked() {
    let redis = Redis::start();
    let arguments = [
        "run", "--ttl", "6s", "-k", "100ms", "a", "--", "perl", "-e", COUNTER, "child", "TERM",
        "CONT",
    ];
    let proxy = Proxy::new(&redis);
    let mut stopped = run(&redis, &arguments);
    let mut running = Running::start(stopped.env("REDLOCK_URL", proxy.url()));
    let child = pid_in(&running.line());
    // After its first renewal it looks once more, and then asks nothing for two seconds.
    wait_until("it has looked", || proxy.answered("check") > 0);
    await_and_kill_watchdog(running.pid());
    wait_until("it sleeps", || state(running.pid()) == Some('S'));
    running.signal(Signal::SIGSTOP);
    wait_until("the lock has run out", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    assert!(is_alive(child), "it doesn't know yet");
    // From here on no question is answered.
    redis.stall();
    running.signal(Signal::SIGCONT);
    wait_until("the child is dead", || !is_alive(child));
    redis.resume();
    let end = running.finish();
    end.assert_code(79).assert_says("was suspended");
    assert_eq!(end.stdout, format!("child ready {child}\n"));
}

#[test]
fn an_answer_that_came_while_redlock_stood_still_past_its_lease_is_not_blamed_on_redis() {
    let redis = Redis::start();
    let proxy = Proxy::with(&redis, |request| match &*request.operation {
        "renew" if request.before == 0 => Action::StallReply(Duration::from_secs(1)),
        _ => Action::Pass,
    });
    let script = "echo ready $$; exec sleep 60";
    let mut stopped = run(&redis, words!("run --ttl 6s -k 100ms a -c", script));
    let mut running = Running::start(stopped.env("REDLOCK_URL", proxy.url()));
    let child = pid_in(&running.line());
    await_and_kill_watchdog(running.pid());
    wait_until("a renewal is under way", || proxy.count("renew") > 0);
    wait_until("it sleeps", || state(running.pid()) == Some('S'));
    running.signal(Signal::SIGSTOP);
    wait_until("the lock has run out", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    redis.stall();
    running.signal(Signal::SIGCONT);
    wait_until("the child is dead", || !is_alive(child));
    redis.resume();
    running
        .finish()
        .assert_code(79)
        .assert_says("was suspended");
}

/// A busy machine may let the thread that decides wait, and the one that renews not.
fn assert_late_news_counts(meanwhile: Option<Signal>) {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    let script = r#"trap '' USR1; echo ready; read go <"$HOME/gate""#;
    let mut running = Running::start(&mut run(&redis, words!("run --ttl 8s -k 0s a -c", script)));
    running.expect_line("ready");
    let renewals = redis.calls("pexpire");
    wait_until("it is renewed", || redis.calls("pexpire") > renewals);
    // Twice that is more than a lease, and with a third of a lease before the first, it is less.
    let late = words!("-e inject=poll,ppoll:delay_exit=4100000 -o /dev/null");
    let mut strace = attach_strace(running.pid(), late);
    for _ in 0..3 {
        let renewals = redis.calls("pexpire");
        wait_until("it is renewed late", || {
            assert!(!running.has_ended(), "{}", redis.describe_key("a"));
            redis.calls("pexpire") > renewals
        });
        if let Some(signal) = meanwhile {
            running.signal(signal);
        }
    }
    strace.kill().unwrap();
    strace.wait().unwrap();
    gate.open();
    running.finish().assert_code(0);
}

#[test]
fn a_renewal_in_time_counts_though_redlock_is_late_to_hear_of_it() {
    assert_late_news_counts(None);
}

#[test]
fn a_renewal_in_time_counts_though_redlock_hears_of_it_together_with_a_signal() {
    assert_late_news_counts(Some(Signal::SIGUSR1));
}

#[test]
fn after_standing_still_past_the_deadline_another_holders_lock_is_left_alone() {
    let redis = Redis::start();
    let mut running = Running::start(&mut run(
        &redis,
        words!("run --ttl 4s -k 100ms a -c", "echo ready; exec sleep 60"),
    ));
    running.expect_line("ready");
    running.signal(Signal::SIGSTOP);
    // Waits for the lock to run out, and takes it.
    let mut next = Running::start(&mut run(
        &redis,
        &["run", "a", "-c", "echo $REDLOCK_TOKEN; exec sleep 60"],
    ));
    let token = next.line();
    running.signal(Signal::SIGCONT);
    running.finish().assert_code(79);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), token);
    next.signal(Signal::SIGTERM);
    next.finish().assert_code(143);
}

#[test]
fn a_command_that_ignores_tstp_works_on_under_its_lock_as_redlock_does() {
    let redis = Redis::start();
    let script = r#"trap '' TSTP; echo ready; read go <"$HOME/gate""#;
    let mut gate = Gate::new(&redis);
    let mut running = Running::start(&mut run(&redis, words!("run --ttl 6s a -c", script)));
    running.expect_line("ready");
    running.signal(Signal::SIGTSTP);
    let renewals = redis.calls("evalsha");
    wait_until("it is renewed for longer than a lease", || {
        redis.calls("evalsha") > renewals + 3
    });
    gate.open();
    running.finish().assert_code(0).assert_silent();
}

#[test]
fn tstp_stops_both_and_cont_continues_both() {
    let redis = Redis::start();
    let arguments = words!("run --ttl 120s a -- perl -e", COUNTER, "child", "CONT");
    let mut running = Running::start(&mut run(&redis, arguments));
    let child = pid_in(&running.line());
    for _ in 0..2 {
        running.signal(Signal::SIGTSTP);
        wait_until("both are stopped", || {
            state(child) == Some('T') && state(running.pid()) == Some('T')
        });
        running.signal(Signal::SIGCONT);
        running.expect_line("child CONT");
        assert_ne!(state(running.pid()), Some('T'));
    }
    send(running.pid(), libc::SIGRTMAX());
    running.expect_line("child end");
    running.finish().assert_code(0).assert_silent();
}

#[test]
fn a_stopped_child_is_stopped_for_good_all_the_same() {
    let redis = Redis::start();
    // It can take its TERM only when it goes on.
    let mut running = Running::start(&mut run(
        &redis,
        words!("run -t 5s -k 30s --ttl 60s a -- perl -e", COUNTER, "child"),
    ));
    let child = pid_in(&running.line());
    send(child, libc::SIGSTOP);
    wait_until("it is stopped", || state(child) == Some('T'));
    running.finish().assert_code(124);
    assert!(is_gone(child));
}

#[test]
fn a_background_process_that_outlives_command_does_not_keep_redlock() {
    let redis = Redis::start();
    let script = "sleep 60 >/dev/null 2>&1 & echo $!; exit 3";
    let mut running = Running::start(&mut run(&redis, &["run", "a", "-c", script]));
    let daemon: i32 = running.line().parse().unwrap();
    let end = running.finish();
    let lives = is_alive(daemon);
    if lives {
        send(daemon, libc::SIGKILL);
    }
    end.assert_code(3).assert_silent();
    assert!(lives);
    assert_eq!(redis.keys(), ["{redlock:a}:state"]);
}

#[test]
fn a_client_of_a_daemon_is_said_not_to_be_all_of_the_work_unless_that_is_guarded() {
    let redis = Redis::start();
    let programs = redis.dir.path().join("programs");
    fs::create_dir(&programs).unwrap();
    for program in ["ssh", "docker", "podman", "kubectl", "systemd-run"] {
        let path = crate::support::script(&programs, program, "#!/bin/sh\n");
        let path = path.to_str().unwrap();
        for (options, command, is_said) in [
            (&["-v"][..], &[path, "x"][..], true),
            (&[], &[path, "x"], false),
            (&["-v"], &["echo", program], false),
            (&["-v"], &[path, "x", "redlock", "guard", "--", "y"], false),
            (&["-v"], &[path, "x", "redlock guard -- y"], false),
        ] {
            let words = [&["run"], options, &["a", "--"], command].concat();
            let end = outcome(&mut redis.redlock(&words));
            end.assert_code(0);
            let line =
                format!("stopping this run doesn't stop the work that {program} starts elsewhere");
            assert_eq!(end.stderr.contains(&line), is_said, "{end:?}");
        }
    }
}

//! Signals, process groups and streams: COMMAND's environment, and its fate.
//!
//! Not tested here: a suspended machine. A stopped redlock takes its place.

use crate::promises::signals::{JOB, NoTerminal, play};
use crate::promises::terminal::{hand_on, pid_in};
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy};

#[test]
fn real_time_signals_reach_the_child_as_often_as_they_were_sent() {
    play(
        NoTerminal,
        "
        ONE ~/taker 34 → (34@redlock)x3 (~RTMIN)x3 64@redlock
        ONE ~/taker NAME → (NAME@redlock)x3 (~NUMNAME)x3 64@redlock for 40 63
        ",
    );
    // A sixth would come before the end.
    let five = "ONE ~/taker 40 60 → (40@redlock)x5 (~NUM40)x4 =NUM40";
    play(JOB, five);
}

/// Returns the binaries to test: that of the tests and, if set, that of `REDLOCK_BIN`, which may be linked with another C
/// library.
pub fn binaries() -> Vec<String> {
    let other = std::env::var("REDLOCK_BIN").ok();
    [REDLOCK.to_owned()].into_iter().chain(other).collect()
}

#[test]
fn signals_that_mean_nothing_to_a_waiter_or_were_ignored_at_its_start_leave_it_waiting() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let waiter = redis.redlock(words!("run a -- echo ran"));
    let waiter = &mut with_signals(waiter, |signal| signal == libc::SIGHUP, 0);
    let mut waiter = Running::start(waiter);
    waiter.wait_until_queued(&redis);
    for name in "HUP WINCH CONT URG CHLD".split(' ') {
        waiter.signal(signal(name));
    }
    waiter.await_signals_read();
    hand_on(&redis);
    waiter.expect_line("ran");
    waiter.finish().assert_code(0);
}

/// Returns a mask of these signals.
fn mask(signals: &[i32]) -> u64 {
    signals.iter().map(|signal| 1 << (signal - 1)).sum()
}

#[test]
fn signals_that_are_default_ignored_or_blocked_are_so_in_the_child_too() {
    type IsIgnored = fn(i32) -> bool;
    let redis = Redis::start();
    let several = mask(&[libc::SIGUSR1, libc::SIGTERM, libc::SIGCHLD, libc::SIGPIPE]);
    let rows: [(&str, IsIgnored, u64); 8] = [
        ("none", |_| false, 0),
        ("PIPE", |signal| signal == libc::SIGPIPE, 0),
        ("CHLD", |signal| signal == libc::SIGCHLD, 0),
        ("all", |_| true, 0),
        ("of the C library", |signal| matches!(signal, 32 | 33), 0),
        ("none", |_| false, several),
        (
            "HUP",
            |signal| signal == libc::SIGHUP,
            mask(&[libc::SIGHUP, 40, 64]),
        ),
        ("none", |_| false, mask(&[32, 33])),
    ];
    for (ignored, is_ignored, blocked) in rows {
        let direct = directly(&redis, words!("cat /proc/self/status"));
        let under = redis.redlock(words!("run a -- cat /proc/self/status"));
        let [direct, under] = [direct, under].map(|command| {
            let end = outcome(&mut with_signals(command, is_ignored, blocked));
            end.assert_code(0).assert_silent();
            // Pending, blocked, ignored, caught.
            let lines = end.stdout.lines().map(str::to_owned);
            let is_set = |line: &String| line.starts_with("Sig") || line.starts_with("ShdPnd");
            let lines = lines.filter(|line| is_set(line) && !line.starts_with("SigQ"));
            lines.collect::<Vec<_>>()
        });
        assert_eq!(direct.len(), 5, "{direct:?}");
        assert_eq!(under, direct, "ignored: {ignored}, blocked: {blocked:x}");
    }
    // redlock passes COMMAND's status on even if CHLD is ignored.
    let child = redis.run("a", "exit 7");
    let mut child = with_signals(child, |signal| signal == libc::SIGCHLD, 0);
    outcome(&mut child).assert_code(7);
}

#[test]
fn closed_standard_streams_stay_closed_in_the_child() {
    let redis = Redis::start();
    // The script opens a file for its result only after checking the streams.
    let look = r#"
        found=
        for n in 0 1 2; do [ -h /proc/$$/fd/$n ] && found="$found $n"; done
        echo "open:$found" >"$HOME/found"
    "#;
    for (closed, open) in [
        ("0<&-", " 1 2"),
        ("0<&- 1>&-", " 2"),
        ("0<&- 1>&- 2>&-", ""),
    ] {
        for way in ["", "redlock run a --"] {
            let script = format!("exec {way} sh -c \"$1\" {closed}");
            let words = words!("bash -c {} bash", &script, look);
            outcome(&mut directly(&redis, words)).assert_code(0);
            let streams = home_file(&redis, "found");
            assert_eq!(streams, format!("open:{open}\n"), "{way} {closed}");
        }
    }
}

#[test]
fn streams_pass_through_byte_by_byte() {
    let redis = Redis::start();
    // More than any buffer holds, with all byte values and without a final newline.
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    fs::write(redis.dir.path().join("all"), bytes).unwrap();
    let script = "cd; cat all | redlock run a -c 'tee /dev/stderr' 2>err | cat >out; cmp all out && cmp all err";
    let end = outcome(&mut sh(&redis, script));
    end.assert_silent().assert_printed(0, "");
}

#[test]
fn input_that_the_child_leaves_unread_is_left_to_the_next_reader() {
    let redis = Redis::start();
    let reads = r#"redlock run a -c 'read line; echo "child $line"'; cat"#;
    let script = format!(r"printf 'one\ntwo\n' | ({reads})");
    outcome(&mut sh(&redis, &script)).assert_printed(0, "child one\ntwo\n");
}

#[test]
fn when_redlock_is_killed_the_child_dies_and_the_lock_within_its_ttl() {
    let redis = Redis::start();
    let mut running = Running::start(&mut redis.redlock(words!(
        "run --ttl 4s -k 100ms a -c",
        "echo $$; exec sleep 600"
    )));
    let child: i32 = running.line().parse().unwrap();
    // The kernel kills the child even without a watchdog, and a suspended redlock starts no other one.
    running.suspend();
    if let Some(watchdog) = forked_watchdog(running.pid()) {
        send(watchdog, libc::SIGKILL);
        wait_until("its watchdog is dead", || !is_alive(watchdog));
    }
    running.signal(Signal::SIGKILL);
    wait_until("the child is dead", || !is_alive(child));
    let left: i64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left <= 4000, "{}", redis.describe_key("a"));
    redis.await_free("a");
}

#[test]
fn a_redlock_suspended_past_its_deadline_kills_the_child_before_any_request() {
    // redlock was stopped either while idle, after a renewal and another check, or during a renewal. The reply arrives
    // meanwhile, so redlock doesn't blame Redis.
    side_by_side([false, true], |is_renewing| {
        let redis = Redis::start();
        let proxy = Proxy::with(&redis, move |request| match &*request.operation {
            "renew" if is_renewing && request.before == 0 => {
                Action::StallReply(Duration::from_secs(1))
            }
            _ => Action::Pass,
        });
        let words = words!(
            "run --ttl 6s -k 100ms a -- perl -e {} child TERM CONT",
            COUNTER
        );
        let mut stopped = redis.redlock(words);
        let mut running = Running::start(stopped.env("REDLOCK_URL", proxy.url()));
        let child = pid_in(&running.line());
        wait_until("it has looked, or a renewal is under way", || {
            proxy.answered("check") > 0 || is_renewing && proxy.count("renew") > 0
        });
        await_watchdog(running.pid());
        wait_until("it sleeps", || state(running.pid()) == Some('S'));
        running.suspend();
        // Killed only now, because a renewal might have started another watchdog before.
        send(forked_watchdog(running.pid()).unwrap(), libc::SIGKILL);
        redis.await_free("a");
        assert!(is_alive(child), "it doesn't know yet");
        // Longer than a busy machine keeps a process from waking.
        std::thread::sleep(Duration::from_secs(2));
        // From here on Redis answers nothing.
        redis.stall();
        running.signal(Signal::SIGCONT);
        wait_until("the child is dead", || !is_alive(child));
        redis.resume();
        let end = running.finish_saying(79, "was suspended");
        assert_eq!(end.stdout, format!("child ready {child}\n"));
    });
}

#[test]
fn a_renewal_in_time_counts_though_redlock_hears_of_it_late_or_together_with_a_signal() {
    // A busy machine may delay the thread that decides, but not the one that renews.
    side_by_side([None, Some(Signal::SIGUSR1)], |meanwhile| {
        let redis = Redis::start();
        let mut gate = Gate::new(&redis);
        let script = r#"trap '' USR1; echo ready; read go <"$HOME/gate""#;
        let words = words!("run --ttl 8s -k 0s a -c", script);
        let mut running = Running::ready(&mut redis.redlock(words));
        redis.await_calls("pexpire", 1);
        // Twice this delay is more than a lease; once, with a third of a lease before it, is less.
        let late = words!("-e inject=poll,ppoll:delay_exit=4100000 -o /dev/null");
        let mut strace = attach_strace(running.pid(), late);
        for _ in 0..3 {
            running.await_renewals(&redis, 1);
            if let Some(signal) = meanwhile {
                running.signal(signal);
            }
        }
        strace.kill().unwrap();
        strace.wait().unwrap();
        gate.open();
        running.finish().assert_code(0);
    });
}

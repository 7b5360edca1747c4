//! Exit statuses of the manual's table, each reached the way a user reaches it. Other files test the longer stories: 69, 77,
//! 78, 126 and 127 in `trouble`, 79 in `loss`, signals that end a wait in `by_signal`.
//!
//! Not tested here: 125 for a kernel that is out of descriptors.

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Asserts that every line of redlock begins with its name.
#[track_caller]
fn assert_prefixed(stderr: &str) {
    assert!(!stderr.is_empty(), "nothing was said");
    for line in stderr.lines() {
        assert!(line.starts_with("redlock: "), "unprefixed: {line:?}");
    }
}

#[test]
fn command_status_is_passed_through_silently_even_if_it_collides_with_ours() {
    let redis = Redis::start();
    // The usual line, and a line that clap reads.
    for options in ["a -- sh", "-t 60s a"] {
        for status in "0 1 2 3 64 69 75 77 78 79 124 125 126 127 128 130 137 200 255".split(' ') {
            let end = outcome(&mut redis.run(options, &format!("exit {status}")));
            end.assert_code(status.parse().unwrap()).assert_silent();
        }
    }
    assert_eq!(redis.keys(), ["{redlock:a}:state"]);
}

#[test]
fn a_command_killed_by_signal_n_is_128_plus_n_and_reported_as_a_shell_would() {
    let redis = Redis::left_empty();
    let hint = "SIGKILL; redlock didn't send it: see dmesg if memory may have run out";
    let names = "1 SIGHUP|2 |3 SIGQUIT|6 SIGABRT|11 SIGSEGV|13 |14 SIGALRM|15 SIGTERM|34 signal 34|64 signal 64";
    for row in names.split('|').chain([format!("9 {hint}").as_str()]) {
        let (signal, name) = row.split_once(' ').unwrap();
        let says = match name {
            "" => String::new(),
            _ => format!("redlock: the command was killed by {name}\n"),
        };
        // Perl, because some shells always ignore QUIT.
        let script = format!("ulimit -c 0; exec perl -e 'kill {signal}, $$; sleep 60'");
        // Even with -q: cron mails only printed text.
        for options in ["a", "-q a"] {
            let end = outcome(&mut redis.run(options, &script));
            end.assert_exited(128 + signal.parse::<i32>().unwrap());
            assert_eq!(end.stderr, says, "signal {signal}");
        }
    }
}

#[test]
fn wrong_usage_is_64_and_asks_no_server() {
    let redis = Redis::start();
    let long = "x".repeat(201);
    let lines = "|walk|run|run a --|run a true|run a --ttl 999ms -- true|run a --ttl -1s -- true\
        |run a --ttl 2years -- true|run a --ttl -- true|run a -E 256 -- true|run a -E -1 -- true\
        |run a -q -v -- true|run a -c true -- true|run {a -- true|run --slots 0 a -- true\
        |run --slots=-1 a -- true|run --slots many a -- true|run --shared --slots 2 a -- true\
        |run --slots 2 -s a -- true|status --older-than 1h --watch|status --prometheus - --json\
        |status --prometheus - --watch=1s|status --prometheus - --older-than 1h\
        |status --prometheus - --names-only|release a --id x|status --json --names-only";
    let too_long = format!("run {long} -- true");
    for line in lines.split('|').chain([&*too_long]) {
        let end = ends(&redis, line);
        end.assert_printed(64, "");
        assert_prefixed(&end.stderr);
    }
    assert_eq!(redis.scripts(), 0);
    outcome(&mut redis.redlock(&["run", &long[1..], "--", "true"])).assert_code(0);
}

#[test]
fn a_busy_lock_is_75_or_what_the_user_chose() {
    let redis = Redis::start();
    redis.play(
        "SET redlock:a somebody PX 600000
        75 redlock run -n a -- echo ran → lock \"a\" is held by another client
        75 redlock run -w 100ms a -- echo ran → lock \"a\" is held by another client
        75 redlock run -w 0s a -- echo ran → lock \"a\" is held by another client
        0 redlock run -n -E 0 a -- echo ran >~/ran → lock \"a\" is held by another client
        75 ! [ -s ~/ran ] && redlock -q run -n a -- true
        200 redlock run -w 100ms --conflict-exit-code 200 a -- echo ran → held by another client",
    );
}

#[test]
fn a_timeout_is_124_however_command_ends_and_is_reported_also_with_quiet() {
    let redis = Redis::left_empty();
    for (options, trap, prints, says) in [
        ("-t 500ms a", "-", "", ""),
        ("-q -t 500ms a", "-", "", ""),
        ("-t 500ms a", "'echo asked; exit 0'", "asked\n", ""),
        ("-t 500ms -k 200ms a", "''", "", "killing the command"),
    ] {
        let script = format!("trap {trap} TERM; echo $$; while :; do sleep 0.01; done");
        // Repeats the run if the timeout stopped COMMAND before it had set its trap and printed a word.
        let end = await_some("the script prints something in time", || {
            let end = outcome(&mut redis.run(options, &script));
            (!end.stdout.is_empty()).then_some(end)
        });
        end.assert_said(124, "ran longer than --max-runtime 500ms")
            .assert_says(says);
        // The shell reports the end of its sleep.
        assert_prefixed(&end.stderr.replace("Terminated\n", ""));
        let (pid, rest) = end.stdout.split_once('\n').unwrap();
        assert_eq!(rest, prints, "{trap}");
        assert!(is_gone(pid.parse().unwrap()));
    }
}

#[test]
fn commands_status_survives_a_release_that_fails_or_is_not_answered() {
    // --quiet doesn't hide the message, because it is an error.
    for (options, is_killed, says) in [
        ("--quiet a", true, "; it expires within 30s: "),
        ("a", false, ""),
    ] {
        let mut redis = Redis::start();
        let mut gate = Gate::new(&redis);
        let script = r#"echo ready; read go <"$HOME/gate"; exit 5"#;
        let run = Running::ready(&mut redis.run(options, script));
        if is_killed {
            redis.kill();
        } else {
            redis.stall();
        }
        gate.open();
        let end = run.finish_saying(5, &format!("redlock: can't release lock \"a\"{says}"));
        assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
    }
}

#[test]
fn a_release_is_repeated_while_the_server_is_busy_or_restarts() {
    let redis = Redis::start();
    load_scripts(&redis);
    for refusal in [
        Action::Lie(b"-BUSY Redis is busy running a script.\r\n"),
        Action::Lie(b"-LOADING Redis is loading the dataset in memory\r\n"),
        Action::Reset,
    ] {
        let proxy = Proxy::with(&redis, move |request| {
            let is_refused = request.operation == "release" && request.before < 3;
            [Action::Pass, refusal][usize::from(is_refused)]
        });
        let mut run = redis.run("--ttl 10m a", "exit 5");
        outcome(run.env("REDLOCK_URL", proxy.url()))
            .assert_printed(5, "")
            .assert_silent();
        assert!(redis.holder("a").is_none());
    }
}

#[test]
fn a_late_release_succeeds_on_a_server_that_lost_its_scripts() {
    let redis = Redis::start();
    load_scripts(&redis);
    let late = Action::StallReply(Duration::from_millis(1500));
    let proxy = Proxy::once(&redis, "release", 0, late);
    let mut gate = Gate::new(&redis);
    let script = r#"echo ready; read go <"$HOME/gate"; exit 5"#;
    let mut run = redis.run("-v a", script);
    run.env("REDLOCK_URL", proxy.url());
    let run = Running::ready(run.env("REDLOCK_REDIS_TIMEOUT", "20s"));
    // The server forgets the short script, and reports so long after the whole script was sent.
    redis.cli(&["SCRIPT", "FLUSH"]);
    gate.open();
    run.finish_saying(5, "lock \"a\" released");
    assert_eq!(proxy.count("release"), 2, "{proxy:?}");
}

#[test]
fn with_on_unreachable_run_command_runs_without_a_lock_and_has_its_own_status() {
    // An unreachable server differs from one that refuses.
    let redis = Redis::with(&["--requirepass", "secret"]);
    let script =
        r#"echo "$REDLOCK_NAME ${REDLOCK_TOKEN-none} ${REDLOCK_HELD-none}" >~/said; exit 3"#;
    redis.play(&format!(
        "3 redlock -u redis://127.0.0.1:{} run --on-unreachable run a -c '{script}' → running without a lock
        0 [ \"$(cat ~/said)\" = 'a none none' ]
        77 redlock run a --on-unreachable run -- echo ran → requires a password",
        free_port()
    ));
}

//! Every exit status of the manual's table, each reached the way a user reaches it.
//!
//! Not tested here: 125 for a kernel that is out of descriptors.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::promises::config::set_mode;
use crate::support::{
    Outcome, Redis, Running, directly, free_port, outcome, redlock, script, setting, wait_until,
    with_default_signals,
};

/// A shell script that waits until the file `$1` exists.
const WAIT_FOR_FILE: &str = r#"while [ ! -e "$1" ]; do sleep 0.01; done"#;

/// Every line that redlock says begins with its name.
#[track_caller]
fn assert_prefixed(stderr: &str) {
    assert!(!stderr.is_empty(), "nothing was said");
    for line in stderr.lines() {
        assert!(line.starts_with("redlock: "), "unprefixed: {line:?}");
    }
}

/// What went wrong is said in one line: a lock that was never taken isn't spoken of as if it were.
#[track_caller]
fn assert_one_line(end: &Outcome) {
    assert_prefixed(&end.stderr);
    assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn commands_own_status_is_ours_even_where_it_looks_like_one_of_ours() {
    let redis = Redis::start();
    for status in [
        2, 64, 69, 77, 78, 79, 124, 125, 126, 127, 128, 130, 137, 200,
    ] {
        let script = format!("exit {status}");
        outcome(&mut redis.run("a", &script))
            .assert_code(status)
            .assert_silent();
    }
}

#[test]
fn a_command_killed_by_signal_n_is_128_plus_n() {
    let redis = Redis::start();
    for signal in [1, 2, 3, 6, 9, 11, 14, 15, 34, 64] {
        // Perl, as some shells ignore QUIT in all cases.
        let perl = format!("kill {signal}, $$; sleep 60");
        let script = format!("ulimit -c 0; exec perl -e '{perl}'");
        let end = outcome(&mut with_default_signals(redis.run("a", &script)));
        let is_reported = end.stderr.contains("the command was killed by ");
        assert_eq!(is_reported, signal != 2, "{end:?}");
        end.assert_code(128 + signal);
        assert_eq!(redis.keys(), ["{redlock:a}:state"], "signal {signal}");
    }
}

#[test]
fn a_redlock_stopped_by_signal_n_while_it_waits_is_128_plus_n() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    for (signal, status) in [
        (Signal::SIGHUP, 129),
        (Signal::SIGINT, 130),
        (Signal::SIGTERM, 143),
    ] {
        let waiter = Running::start(&mut redis.redlock(&["run", "a", "--", "echo", "ran"]));
        wait_until("it waits", || {
            !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
        });
        waiter.signal(signal);
        let end = waiter.finish();
        end.assert_code(status);
        assert_eq!(end.stdout, "", "COMMAND was not started");
        wait_until("it has left", || {
            redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
        });
    }
    assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "somebody");
}

#[test]
fn wrong_usage_is_64_and_asks_no_server() {
    let redis = Redis::start();
    let long = "x".repeat(201);
    let wrong: &[&[&str]] = &[
        &[],
        &["walk"],
        &["run"],
        &["run", "a"],
        &["run", "a", "--"],
        &["run", "--", "true"],
        &["run", "a", "true"],
        &["run", "a", "--fast", "--", "true"],
        &["run", "a", "--ttl", "999ms", "--", "true"],
        &["run", "a", "--ttl", "1M", "--", "true"],
        &["run", "a", "--ttl", "soon", "--", "true"],
        &["run", "a", "--ttl", "-1s", "--", "true"],
        &["run", "a", "--ttl", "2years", "--", "true"],
        &["run", "a", "--ttl", "--", "true"],
        &["run", "a", "--wait", "1s", "--no-wait", "--", "true"],
        &["run", "a", "-E", "256", "--", "true"],
        &["run", "a", "-E", "-1", "--", "true"],
        &["run", "a", "--on-unreachable", "cry", "--", "true"],
        &["run", "a", "-q", "-v", "--", "true"],
        &["run", "a", "-c", "true", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "two words", "--", "true"],
        &["run", "tab\t", "--", "true"],
        &["run", "bell\u{7}", "--", "true"],
        &["run", "{a", "--", "true"],
        &["run", "a}", "--", "true"],
        &["run", &long, "--", "true"],
        &["--connect-timeout", "5s", "run", "a", "--", "true"],
        &["release", "a", "--id", "x"],
        &["status", "--json", "--names-only"],
    ];
    for arguments in wrong {
        let end = outcome(&mut redis.redlock(arguments));
        assert_eq!(end.code(), Some(64), "{arguments:?}: {end:?}");
        assert_eq!(end.stdout, "", "{arguments:?}");
        assert_prefixed(&end.stderr);
    }
    assert_eq!(redis.calls("evalsha") + redis.calls("eval"), 0);
    outcome(&mut redis.redlock(&["run", &long[1..], "--", "true"])).assert_code(0);
}

#[test]
fn redis_out_of_reach_is_69_however_it_is_out_of_reach() {
    let redis = Redis::start();
    let missing = format!("unix://{}/missing.sock", redis.dir.path().display());
    let refused = format!("redis://127.0.0.1:{}", free_port());
    for url in [missing.as_str(), &refused, "redis://no-such-host.invalid"] {
        let end = outcome(&mut redlock(&["-u", url, "run", "a", "--", "echo", "ran"]));
        end.assert_code(69)
            .assert_says("redlock: can't reach Redis at ");
        assert_eq!(end.stdout, "");
    }
    redis.stall();
    for url in [redis.url(), redis.tcp_url()] {
        let command = words!("run a REDLOCK_REDIS_TIMEOUT=300ms -- echo ran");
        let end = outcome(redis.redlock(command).env("REDLOCK_URL", url));
        end.assert_code(69).assert_says("no answer in time");
        assert_eq!(end.stdout, "");
    }
    redis.resume();
}

#[test]
fn a_request_given_up_on_leaves_no_lock_behind() {
    let redis = Redis::start();
    // The server learns the scripts, so that one request is enough to take the lock.
    outcome(&mut redis.redlock(&["run", "a", "--", "true"])).assert_code(0);
    redis.cli(&["CONFIG", "RESETSTAT"]);
    redis.stall();
    outcome(&mut redis.redlock(words!("run a REDLOCK_REDIS_TIMEOUT=300ms -- true")))
        .assert_code(69);
    redis.resume();
    // The server reads both requests that were sent to it, the one that takes and the one that
    // releases, and then this one.
    wait_until("the requests are done", || redis.calls("evalsha") >= 2);
    wait_until("the lock is free", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(0);
}

#[test]
fn a_busy_lock_is_75_or_what_the_user_chose() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let choices: [(&[&str], i32); 5] = [
        (&["-n"], 75),
        (&["-w", "100ms"], 75),
        (&["-w", "0s"], 75),
        (&["-n", "-E", "0"], 0),
        (&["-w", "100ms", "--conflict-exit-code", "200"], 200),
    ];
    for (options, status) in choices {
        let arguments = [&["run"], options, &["a", "--", "echo", "ran"]].concat();
        let end = outcome(&mut redis.redlock(&arguments));
        end.assert_code(status)
            .assert_says("lock \"a\" is held by another client");
        assert_one_line(&end);
        assert_eq!(end.stdout, "");
    }
    outcome(&mut redis.redlock(&["-q", "run", "-n", "a", "--", "true"]))
        .assert_code(75)
        .assert_silent();
}

#[test]
fn a_password_that_is_missing_or_wrong_is_77_and_not_repeated() {
    let redis = Redis::with(&["--requirepass", "secret"]);
    let wrong = redis.dir.path().join("wrong");
    fs::write(&wrong, "hunter2\n").unwrap();
    let right = redis.dir.path().join("right");
    fs::write(&right, "secret\n").unwrap();
    for file in [&wrong, &right] {
        set_mode(file, 0o600);
    }

    let end = outcome(&mut redis.redlock(&["run", "a", "--", "true"]));
    end.assert_code(77).assert_says("requires a password");
    assert_one_line(&end);
    let file = [
        "run",
        "a",
        setting("REDLOCK_PASSWORD_FILE", text(&wrong)),
        "--",
        "true",
    ];
    let url = format!("redis://:hunter2@127.0.0.1:{}", redis.port);
    for arguments in [&file[..], words!("-u {} run a -- true", &url)] {
        let end = outcome(&mut redis.redlock(arguments));
        end.assert_code(77)
            .assert_says("refused the default user: the password in ");
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
    }
    outcome(&mut redis.redlock(words!(
        "run a REDLOCK_PASSWORD_FILE={}",
        text(&right),
        "--",
        "true"
    )))
    .assert_code(0)
    .assert_silent();
    // Not reachable and not permitted are different things.
    outcome(&mut redis.redlock(words!("run a --on-unreachable run -- true"))).assert_code(77);
}

#[test]
fn a_user_without_the_permissions_is_77() {
    let redis = Redis::start();
    let users: [(&str, &[&str]); 3] = [
        ("commandless", &["~*", "&*", "+ping"]),
        ("keyless", &["~elsewhere:*", "&*", "+@all"]),
        // May run scripts, but not what is in them.
        ("scriptless", &["~*", "&*", "+eval", "+evalsha", "+get"]),
    ];
    for (user, rules) in users {
        let setuser = [&["ACL", "SETUSER", user, "on", ">secret"], rules].concat();
        assert_eq!(redis.cli(&setuser), "OK");
        let url = format!("redis://{user}:secret@127.0.0.1:{}", redis.port);
        let end = outcome(&mut redis.redlock(&["-u", &url, "run", "a", "--", "echo", "ran"]));
        assert_eq!(end.code(), Some(77), "{user}: {end:?}");
        end.assert_says(&format!("user \"{user}\" isn't permitted to "));
        assert_one_line(&end);
        assert_eq!(end.stdout, "");
    }
    assert_eq!(redis.keys(), [""; 0]);
}

#[test]
fn bad_configuration_is_78_and_says_where() {
    let redis = Redis::start();
    let dir = redis.dir.path();
    let missing = dir.join("missing");
    let empty = dir.join("empty");
    fs::write(&empty, "\n").unwrap();
    let encrypted = format!("rediss://127.0.0.1:{}", redis.port);
    let no_database = format!("redis://127.0.0.1:{}/99", redis.port);
    let wrong: [(&[&str], &str); 7] = [
        (&["-u", "http://127.0.0.1"], "unknown scheme http://"),
        (&["-u", "127.0.0.1:6379"], "bad Redis URL in --url"),
        (&["-u", "redis://h:port"], "the port must be a number"),
        (&["-u", &no_database], "doesn't have the URL's database"),
        (
            &[setting("REDLOCK_PASSWORD_FILE", text(&missing))],
            text(&missing),
        ),
        (
            &[setting("REDLOCK_PASSWORD_FILE", text(&empty))],
            text(&empty),
        ),
        (
            &["-u", &encrypted, setting("REDLOCK_TLS_CA", text(&missing))],
            text(&missing),
        ),
    ];
    for (options, what) in wrong {
        let arguments = [options, &["run", "a", "--", "echo", "ran"]].concat();
        let end = outcome(&mut redis.redlock(&arguments));
        assert_eq!(end.code(), Some(78), "{options:?}: {end:?}");
        end.assert_says(what);
        assert_prefixed(&end.stderr);
        assert_eq!(end.stdout, "");
    }
    for (variable, value) in [
        ("REDLOCK_URL", "ftp://h"),
        ("REDLOCK_QUIET", "perhaps"),
        ("REDLOCK_REDIS_TIMEOUT", "0"),
        ("REDLOCK_ON_LOST", "cry"),
        ("REDLOCK_SYNC", "1001"),
    ] {
        let mut run = redis.redlock(&["run", "a", "--", "true"]);
        let end = outcome(run.env(variable, value));
        assert_eq!(end.code(), Some(78), "{variable}: {end:?}");
        assert_prefixed(&end.stderr);
    }
    fs::create_dir(dir.join(".config")).unwrap();
    let file = dir.join(".config/redlock.env");
    fs::write(&file, "# ours\nREDLOCK_TLT=30s\n").unwrap();
    outcome(&mut redis.redlock(&["run", "a", "--", "true"]))
        .assert_code(78)
        .assert_says(&format!(
            "{}:2: unknown setting REDLOCK_TLT; did you mean REDLOCK_TTL?",
            text(&file)
        ));
}

#[test]
fn a_key_of_another_kind_is_78_and_left_alone() {
    let redis = Redis::start();
    redis.cli(&["HSET", "redlock:a", "field", "value"]);
    let end = outcome(&mut redis.redlock(&["run", "a", "--", "echo", "ran"]));
    end.assert_code(78)
        .assert_says("belongs to another program");
    assert_one_line(&end);
    assert_eq!(end.stdout, "");
    assert_eq!(redis.cli(&["HGET", "redlock:a", "field"]), "value");
    assert_eq!(redis.cli(&["PTTL", "redlock:a"]), "-1");
}

#[test]
fn a_lock_lost_while_command_ran_is_79() {
    let redis = Redis::start();
    let mut run = Running::start(&mut redis.run("-k 100ms a", "echo ready; exec sleep 60"));
    run.expect_line("ready");
    redis.cli(&["DEL", "redlock:a"]);
    let end = run.finish();
    end.assert_code(79).assert_says("lock \"a\" was lost");
    assert_prefixed(&end.stderr);
    assert_eq!(redis.cli(&["EXISTS", "redlock:a"]), "0");
}

#[test]
fn a_lost_lock_is_79_also_when_command_ends_well_or_must_be_killed() {
    let redis = Redis::start();
    for (name, script) in [
        (
            "polite",
            "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done",
        ),
        (
            "stubborn",
            "trap '' TERM; echo ready; while :; do sleep 0.01; done",
        ),
    ] {
        let mut run =
            Running::start(&mut redis.redlock(&["run", "-k", "200ms", name, "-c", script]));
        run.expect_line("ready");
        // Somebody else has it now, whose lock stays.
        redis.cli(&["SET", &format!("redlock:{name}"), "thief", "PX", "600000"]);
        run.finish().assert_code(79);
        assert_eq!(redis.cli(&["GET", &format!("redlock:{name}")]), "thief");
    }
}

#[test]
fn with_on_lost_warn_command_goes_on_and_the_status_is_79_all_the_same() {
    let redis = Redis::start();
    let file = redis.dir.path().join("go");
    let said = redis.dir.path().join("said");
    let wait = format!("echo ready; {WAIT_FOR_FILE}; echo done");
    let run = r#"REDLOCK_ON_LOST=warn exec redlock run --quiet a -- sh -c "$1" sh "$2" 2>"$3""#;
    let mut run = Running::start(&mut directly(
        &redis,
        &["sh", "-c", run, "sh", &wait, text(&file), text(&said)],
    ));
    run.expect_line("ready");
    redis.cli(&["SET", "redlock:a", "thief", "PX", "600000"]);
    wait_until("it is notified", || {
        fs::read_to_string(&said)
            .unwrap()
            .contains("the command continues without the lock")
    });
    fs::write(&file, "").unwrap();
    run.expect_line("done");
    run.finish().assert_code(79);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "thief");
}

#[test]
fn timeout_stops_command_with_124() {
    let redis = Redis::start();
    let end = outcome(&mut redis.redlock(&["run", "-t", "200ms", "a", "--", "sleep", "60"]));
    end.assert_code(124)
        .assert_says("ran longer than --max-runtime 200ms");
    assert_prefixed(&end.stderr);
    assert_eq!(redis.keys(), ["{redlock:a}:state"]);
}

#[test]
fn a_job_that_timeout_stopped_is_reported_also_with_quiet() {
    let redis = Redis::start();
    outcome(&mut redis.redlock(words!("run -q -t 200ms a -- sleep 60")))
        .assert_code(124)
        .assert_says("ran longer than --max-runtime 200ms");
}

/// Runs a script, again if the timeout stopped it before it had its trap and printed a word.
fn timed_out(redis: &Redis, options: &str, script: &str) -> Outcome {
    let run = || outcome(&mut redis.run(options, script));
    let mut end = run();
    wait_until("the script prints something in time", || {
        if end.stdout.is_empty() {
            end = run();
        }
        !end.stdout.is_empty()
    });
    end
}

#[test]
fn timeout_is_124_also_for_a_command_that_then_ends_well() {
    let redis = Redis::start();
    let polite = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let end = timed_out(&redis, "-t 500ms a", polite);
    end.assert_code(124);
    assert_eq!(end.stdout, "ready\nasked\n");
}

#[test]
fn a_command_that_ignores_term_is_killed_after_kill_after_and_still_124() {
    let redis = Redis::start();
    let stubborn = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
    let end = timed_out(&redis, "-t 500ms -k 200ms a", stubborn);
    end.assert_code(124).assert_says("killing the command");
    let pid = end.stdout.trim();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(redis.keys(), ["{redlock:a}:state"]);
}

#[test]
fn a_command_that_ends_in_time_has_its_own_status() {
    let redis = Redis::start();
    outcome(&mut redis.run("-t 60s a", "exit 3"))
        .assert_code(3)
        .assert_silent();
}

#[test]
fn a_server_that_does_not_speak_redis_is_status_78() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        // The answer to the request, and to the attempt to release what it may have taken.
        for connection in listener.incoming().take(2) {
            let mut connection = connection.unwrap();
            let mut request = [0; 1024];
            let _ = connection.read(&mut request);
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let end = outcome(&mut redlock(&["-u", &url, "run", "a", "--", "echo", "ran"]));
    end.assert_code(78)
        .assert_says("does not speak the Redis protocol");
    assert_eq!(end.stdout, "");
    drop(std::net::TcpStream::connect(
        url.trim_start_matches("redis://"),
    ));
    server.join().unwrap();
}

#[test]
fn a_script_without_an_interpreter_line_is_the_shells_and_has_its_own_status() {
    let redis = Redis::start();
    let path = script(redis.dir.path(), "plain", "echo \"$0 $1\"\nexit 4\n");
    let end = outcome(&mut redis.redlock(&["run", "a", "--", text(&path), "x"]));
    end.assert_code(4).assert_silent();
    assert_eq!(end.stdout, format!("{} x\n", path.display()));
}

#[test]
fn a_command_that_cannot_be_executed_is_126_and_the_lock_is_free_again() {
    let redis = Redis::start();
    let plain = redis.dir.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    for command in [redis.dir.path(), &plain] {
        let end = outcome(&mut redis.redlock(&["run", "a", "--", text(command)]));
        assert_eq!(end.code(), Some(126), "{}: {end:?}", command.display());
        end.assert_says(&format!("redlock: can't run {}: ", command.display()));
        assert_eq!(redis.keys(), ["{redlock:a}:state"]);
    }
    // The shell finds the one that isn't executable as well, and says the same.
    let on_path = outcome(
        redis
            .redlock(&["run", "a", "--", "plain"])
            .env("PATH", redis.dir.path()),
    );
    on_path.assert_code(126);
}

#[test]
fn a_command_that_was_not_found_is_127_and_the_lock_is_free_again() {
    let redis = Redis::start();
    for command in [
        "no-such-command",
        "./no-such-command",
        "/no/such/command",
        "",
    ] {
        let end = outcome(&mut redis.redlock(&["run", "a", "--", command]));
        assert_eq!(end.code(), Some(127), "{command:?}: {end:?}");
        end.assert_says(&format!("redlock: can't run {command}: "));
        assert_eq!(redis.keys(), ["{redlock:a}:state"]);
    }
}

#[test]
fn commands_status_survives_a_release_that_fails() {
    let mut redis = Redis::start();
    let file = redis.dir.path().join("go");
    let script = format!("echo ready; {WAIT_FOR_FILE}; exit 5");
    // It is an error, so that --quiet doesn't hide it.
    let mut run = Running::start(&mut redis.redlock(words!(
        "run --quiet a -- sh -c {} sh",
        &script,
        text(&file)
    )));
    run.expect_line("ready");
    redis.kill();
    fs::write(&file, "").unwrap();
    let end = run.finish();
    end.assert_code(5)
        .assert_says("redlock: can't release lock \"a\"; it expires within 30s: ");
    assert_one_line(&end);
}

#[test]
fn commands_status_survives_a_release_that_is_not_answered() {
    let redis = Redis::start();
    let file = redis.dir.path().join("go");
    let script = format!("echo ready; {WAIT_FOR_FILE}; exit 5");
    let mut run =
        Running::start(&mut redis.redlock(words!("run a -- sh -c {} sh", &script, text(&file))));
    run.expect_line("ready");
    redis.stall();
    fs::write(&file, "").unwrap();
    let end = run.finish();
    redis.resume();
    end.assert_code(5)
        .assert_says("redlock: can't release lock \"a\"");
    assert_one_line(&end);
}

#[test]
fn with_on_unreachable_run_command_runs_without_a_lock_and_has_its_own_status() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let script = "echo \"$REDLOCK_NAME ${REDLOCK_TOKEN-none} ${REDLOCK_HELD-none}\"; exit 3";
    let end = outcome(&mut redlock(words!(
        "-u {} run --on-unreachable run a -c",
        &url,
        script
    )));
    end.assert_code(3).assert_says("running without a lock");
    assert_eq!(end.stdout, "a none none\n");
    assert_one_line(&end);
}

#[test]
fn a_signal_that_redlock_did_not_send_is_reported_as_a_shell_would() {
    let redis = Redis::start();
    for (signal, status, says) in [
        (
            "KILL",
            137,
            "redlock: the command was killed by SIGKILL; redlock didn't send it: see dmesg if memory may have run out\n",
        ),
        ("SEGV", 139, "redlock: the command was killed by SIGSEGV\n"),
        ("TERM", 143, "redlock: the command was killed by SIGTERM\n"),
        ("INT", 130, ""),
        ("PIPE", 141, ""),
    ] {
        // With -q as well: cron mails only what is printed.
        for quiet in ["", "-q "] {
            let script = format!("ulimit -c 0; kill -{signal} $$");
            let end = outcome(&mut redis.run(&format!("{quiet}a"), &script));
            assert_eq!(end.assert_code(status).stderr, says, "{signal}");
        }
    }
}

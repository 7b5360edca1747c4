//! Locks of scripts that aren't wrapped: acquire, extend, check, release, fence.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use crate::support::{
    Gated, Outcome, Redis, Running, assert_nothing_left, outcome, path, pipe, redlock, script,
    wait_until, without_terminal,
};

/// A shell that runs a script with the binary under test on its search path.
fn shell(redis: &Redis, shell: &str, text: &str) -> Command {
    let mut command = Command::new(shell);
    command
        .args(["-c", text])
        .env_clear()
        .env("PATH", path())
        .env("HOME", redis.dir.path())
        .env("REDLOCK_URL", redis.url())
        .current_dir(redis.dir.path());
    without_terminal(&mut command);
    command
}

fn sh(redis: &Redis, text: &str) -> Outcome {
    outcome(&mut shell(redis, "sh", text))
}

/// How long a lock lasts, in milliseconds.
fn left(redis: &Redis, name: &str) -> i64 {
    redis
        .cli(&["PTTL", &format!("redlock:{name}")])
        .parse()
        .unwrap()
}

#[test]
fn what_acquire_prints_is_what_later_steps_need_in_every_shell() {
    for program in ["sh", "bash", "dash"] {
        let redis = Redis::start();
        let end = outcome(&mut shell(
            &redis,
            program,
            r#"eval "$(redlock acquire "it's-\$(x)" --ttl 1m)" && redlock check --for 50s &&
               echo "$REDLOCK_NAME $REDLOCK_WAITED_MS ${REDLOCK_FENCE:+fence}" && redlock release"#,
        ));
        end.assert_code(0).assert_silent();
        assert_eq!(end.stdout, "it's-$(x) 0 fence\n");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_lock_that_is_acquired_ends_with_its_ttl() {
    let redis = Redis::start();
    sh(&redis, "redlock acquire a --ttl 1s --format token").assert_code(0);
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(75);
    outcome(&mut redis.redlock(&["run", "-w", "5s", "a", "--", "true"])).assert_code(0);
}

#[test]
fn acquire_prints_json_a_token_or_lines_for_github() {
    let redis = Redis::start();
    let of = |options: &str| sh(&redis, &format!("redlock acquire {options}")).stdout;
    let json: serde_json::Value = serde_json::from_str(&of("a --slots 2 --format json")).unwrap();
    let token = redis.cli(&["HKEYS", "{redlock:a}:meta"]);
    assert_eq!(json["name"], "a");
    assert_eq!(json["token"], token.as_str());
    assert_eq!(
        (&json["slot"], &json["ttl_ms"]),
        (&1.into(), &30_000.into())
    );
    let fence = redis.cli(&["HGET", "{redlock:a}:state", "fence"]);
    assert_eq!(json["fence"].to_string(), fence);
    assert_eq!(
        of("b --format token").trim(),
        redis.cli(&["GET", "redlock:b"])
    );
    let lines = of("c --format github");
    let names: Vec<&str> = lines
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    assert_eq!(
        names,
        [
            "REDLOCK_NAME",
            "REDLOCK_TOKEN",
            "REDLOCK_FENCE",
            "REDLOCK_WAITED_MS",
            "REDLOCK_HELD"
        ]
    );
}

#[test]
fn a_script_that_does_not_get_its_lock_ends_there_with_redlocks_status() {
    let redis = Redis::start();
    let _holder = Gated::start(&redis, &["a"]).ready();
    for (acquire, status) in [
        ("acquire -n a", 75),
        ("acquire -n -E 3 a", 3),
        ("acquire a --no-such-option", 64),
        ("acquire", 64),
        ("acquire 'a b'", 64),
        ("-u redis://127.0.0.1:1 acquire a", 69),
        ("-u nonsense acquire a", 78),
        ("acquire b --while-pid 2147483646", 64),
    ] {
        let end = sh(
            &redis,
            &format!(r#"eval "$(redlock {acquire})"; echo unguarded"#),
        );
        end.assert_code(status).assert_says("redlock: ");
        assert_eq!(end.stdout, "", "{acquire}");
    }
    // What others read is not a shell's.
    let end = sh(&redis, "redlock acquire -n a --format json");
    assert_eq!(end.assert_code(75).stdout, "");
    // Who types it keeps the shell.
    let mut bash = shell(&redis, "bash", "");
    bash = {
        let mut interactive = Command::new("bash");
        interactive
            .args([
                "--norc",
                "-ic",
                r#"eval "$(redlock acquire -n a)"; echo "here $?""#,
            ])
            .envs(
                bash.get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            );
        without_terminal(&mut interactive);
        interactive
    };
    assert_eq!(outcome(&mut bash).stdout, "here 75\n");
}

#[test]
fn acquire_shows_the_script_as_the_holder() {
    let redis = Redis::start();
    let path = script(
        redis.dir.path(),
        "deploy.sh",
        "#!/bin/sh\neval \"$(redlock acquire a --reason 'release 7')\"\necho $$\nredlock status --json\n",
    );
    let end = sh(&redis, &format!("exec {}", path.display()));
    let (pid, json) = end.stdout.split_once('\n').unwrap();
    let json: serde_json::Value = serde_json::from_str(json).unwrap();
    let holder = &json[0]["holders"][0];
    assert_eq!(holder["pid"].to_string(), pid);
    assert!(
        holder["command"][1]
            .as_str()
            .unwrap()
            .ends_with("deploy.sh"),
        "{holder}"
    );
    assert_eq!(holder["reason"], "release 7");
}

#[test]
fn extend_makes_it_last_longer_and_never_shorter() {
    let redis = Redis::start();
    let script = r#"eval "$(redlock acquire a)" && redlock extend 5m && redlock extend a 1m"#;
    sh(&redis, script).assert_code(0).assert_silent();
    assert!(
        (290_000..=300_000).contains(&left(&redis, "a")),
        "{}",
        redis.view("a")
    );
}

#[test]
fn what_is_not_ours_any_more_is_not_extended() {
    let redis = Redis::start();
    let script = r#"eval "$(redlock acquire a)" && redlock release --force a
        redlock extend 1m; echo $?
        redlock run a -- true; redlock extend 1m; echo $?; redlock check; echo $?"#;
    let end = sh(&redis, script);
    end.assert_says("lock \"a\" was lost");
    assert_eq!(end.stdout, "79\n79\n79\n");
    assert_eq!(redis.cli(&["EXISTS", "redlock:a"]), "0");
    let end = outcome(&mut redis.redlock(&["extend", "a", "1m"]));
    end.assert_code(79).assert_says("no token");
    outcome(&mut redis.redlock(&["extend", "1m"])).assert_code(64);
    outcome(&mut redis.redlock(&["extend", "a", "soon"])).assert_code(64);
}

#[test]
fn a_renewal_in_the_background_does_not_shorten_what_was_extended() {
    for mode in [&[][..], &["--shared"]] {
        let redis = Redis::start();
        let script = "redlock extend 1m && echo ready; exec sleep 60";
        let arguments = [&["run", "--ttl", "1s", "a"], mode, &["-c", script]].concat();
        let mut run = Running::start(&mut redis.redlock(&arguments));
        run.expect_line("ready");
        let renewals = redis.calls("time");
        wait_until("it is renewed several times", || {
            redis.calls("time") > renewals + 8
        });
        assert!(left(&redis, "a") > 50_000, "{}", redis.view("a"));
        run.signal(nix::sys::signal::Signal::SIGTERM);
        run.finish();
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_run_that_was_extended_survives_a_redis_that_stands_still_for_longer_than_its_ttl() {
    let redis = Redis::start();
    let path = redis.dir.path().join("gate");
    let mut gate = pipe(&path);
    let script = r#"redlock extend 1m && echo ready; read go <"$0"; redlock check && echo ours"#;
    let options = [
        "run", "--ttl", "1s", "-k", "100ms", "a", "--", "sh", "-c", script,
    ];
    let mut run =
        Running::start(&mut redis.redlock(&[&options[..], &[path.to_str().unwrap()]].concat()));
    run.expect_line("ready");
    // The run hears of it by itself.
    let checks = redis.calls("hget");
    wait_until("it has looked", || redis.calls("hget") > checks);
    redis.stall();
    std::thread::sleep(Duration::from_millis(1500));
    redis.resume();
    gate.write_all(b"go\n").unwrap();
    run.finish().assert_code(0);
}

#[test]
fn check_says_whether_it_is_ours_for_long_enough() {
    let redis = Redis::start();
    let script = r"redlock check; echo $?; redlock check a --for 3s; echo $?
        redlock check --for 10m; echo $?; redlock check b; echo $?";
    let end = outcome(&mut redis.redlock(&["run", "--ttl", "9s", "a", "-c", script]));
    end.assert_says("is ours for only")
        .assert_says("no token for lock \"b\"");
    assert_eq!(end.stdout, "0\n0\n79\n79\n");
}

#[test]
fn inside_of_runs_each_lock_is_known_by_its_name() {
    let redis = Redis::start();
    let inner = r"redlock check && redlock check outer && redlock check two && echo all
        redlock extend outer 10m && redlock release two && redlock check two; echo $?
        redlock check; echo $?";
    let end = outcome(&mut redis.redlock(&[
        "run", "outer", "--", "redlock", "run", "two", "one", "-c", inner,
    ]));
    end.assert_says("lock \"two\" was given back");
    assert_eq!(end.stdout, "all\n79\n79\n");
    end.assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_token_in_a_file_does_for_all_three() {
    let redis = Redis::start();
    let script = "redlock acquire a --format token >t && redlock check a --token-file t &&
        redlock extend a 2m --token-file t && redlock release a --token-file - <t";
    sh(&redis, script).assert_code(0).assert_silent();
    assert_nothing_left(&redis);
    let end = sh(&redis, "redlock check a --token-file t");
    end.assert_code(79);
}

#[test]
fn no_token_is_ever_on_a_command_line() {
    let redis = Redis::start();
    let script = r#"eval "$(redlock acquire a --while-pid $$)"; redlock extend 1m
        echo "$REDLOCK_TOKEN" >token
        cat /proc/[0-9]*/cmdline 2>&- | tr '\0' ' ' | grep -cFf token"#;
    assert_eq!(sh(&redis, script).stdout, "0\n");
}

#[test]
fn a_fence_file_keeps_the_largest_number_and_refuses_smaller_ones() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fence");
    let fence = |number: &str| {
        let mut command = redlock(&["fence", file.to_str().unwrap(), number]);
        outcome(&mut command)
    };
    for (number, status) in [("5", 0), ("5", 0), ("4", 1), ("17", 0), ("5", 1), ("17", 0)] {
        assert_eq!(fence(number).code(), Some(status), "{number}");
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "17\n");
    fence("16").assert_code(1).assert_says("fence 17");
    fence("x").assert_code(64);
    let file = file.to_str().unwrap();
    outcome(&mut redlock(&["fence", file])).assert_code(64);
    outcome(redlock(&["fence", file]).env("REDLOCK_FENCE", "18"))
        .assert_code(0)
        .assert_silent();
    outcome(redlock(&["fence", file]).env("REDLOCK_FENCE", "19 20")).assert_code(64);
    fs::write(file, "my diary\n").unwrap();
    outcome(&mut redlock(&["fence", file, "99"]))
        .assert_code(78)
        .assert_says("left alone");
    assert_eq!(fs::read_to_string(file).unwrap(), "my diary\n");
    outcome(&mut redlock(&["fence", "/no/such/dir/f", "1"])).assert_code(125);
}

#[test]
fn of_fifty_writers_at_once_the_largest_fence_stays() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fence");
    let writers: Vec<Running> = (1..=50)
        .map(|number: u64| {
            let number = (1_000 + number * 7 % 50).to_string();
            Running::start(&mut redlock(&["fence", file.to_str().unwrap(), &number]))
        })
        .collect();
    for writer in writers {
        assert!(matches!(writer.finish().code(), Some(0 | 1)));
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "1049\n");
}

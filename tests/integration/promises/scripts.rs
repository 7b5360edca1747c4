//! Locks of scripts without a wrapper: acquire, extend, check, release.

use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::support::prelude::*;
use crate::support::proxy::{Proxy, load_scripts};

/// Returns a shell that runs a script, with the binary under test in its search path.
fn shell(redis: &Redis, shell: &str, text: &str) -> Command {
    let mut command = directly(redis, &[shell, "-c", text]);
    command.current_dir(redis.dir.path());
    command
}

fn sh(redis: &Redis, text: &str) -> Outcome {
    outcome(&mut shell(redis, "sh", text))
}

#[test]
fn the_output_of_acquire_serves_later_steps_in_every_shell_and_is_quoted_for_every_value() {
    let name = r#"a'b"c`touch${IFS}hacked`$(touch${IFS}hacked)\"#;
    let held = r"x='$(touch${IFS}hacked)';touch${IFS}hacked";
    for program in ["sh", "bash", "dash"] {
        let redis = Redis::start();
        let text = r#"eval "$(redlock acquire "$NAME" --ttl 1m)" && redlock extend --for 50s &&
            printf '%s\n%s\n' "$REDLOCK_NAME" "$REDLOCK_HELD" &&
            echo "$REDLOCK_WAITED_MS ${REDLOCK_FENCE:+fence}" &&
            redlock extend && redlock release && redlock run -n "$NAME" -- true"#;
        let mut script = shell(&redis, program, text);
        let end = outcome(script.env("NAME", name).env("REDLOCK_HELD", held));
        end.assert_code(0).assert_silent();
        let lines: Vec<&str> = end.stdout.lines().collect();
        assert_eq!([lines[0], lines[2]], [name, "0 fence"], "{program}");
        let ours = format!("{held} {name}");
        assert!(lines[1].starts_with(&ours), "{program}: {lines:?}");
        let is_hacked = redis.dir.path().join("hacked").exists();
        assert!(!is_hacked, "{program} has run something");
        // A name with braces is its own hash tag.
        let is_kept = |key: &String| key.ends_with(":state") || key.ends_with(":history");
        assert!(redis.keys().iter().all(is_kept), "{:?}", redis.keys());
    }
}

#[test]
fn acquire_prints_json_a_token_or_lines_for_github() {
    let redis = Redis::start();
    let of = |options: &str| sh(&redis, &format!("redlock acquire {options}")).stdout;
    let json: Value = serde_json::from_str(&of("a --slots 2 --format json")).unwrap();
    let token = redis.cli(&["HKEYS", "{redlock:a}:meta"]);
    assert_eq!(json["name"], "a");
    assert_eq!(json["token"], token.as_str());
    assert_eq!(json["slot"], 1);
    assert_eq!(json["ttl_ms"], 30_000);
    let fence = redis.cli(&["HGET", "{redlock:a}:state", "fence"]);
    assert_eq!(json["fence"].to_string(), fence);
    let token = of("b --format token");
    assert_eq!(token.trim(), redis.cli(&["GET", "redlock:b"]));
    let lines = of("c --format github");
    let names = lines.lines().filter_map(|line| line.split('=').next());
    let names: Vec<&str> = names.collect();
    let all = "REDLOCK_NAME REDLOCK_TOKEN REDLOCK_FENCE REDLOCK_WAITED_MS REDLOCK_HELD";
    assert_eq!(names.join(" "), all);
}

#[test]
fn a_script_that_does_not_get_its_lock_ends_there_with_redlocks_status() {
    let redis = Redis::start();
    let _holder = Gated::start(&redis, &["a"]).ready();
    for (acquire, status, text) in [
        ("acquire -n a", 75, "is held by"),
        ("acquire -n -E 3 a", 3, "is held by"),
        // Even with a status that is no failure.
        ("acquire -n -E 0 a", 0, "is held by"),
        ("acquire a --no-such-option", 64, "redlock: "),
        ("acquire", 64, "redlock: "),
        ("acquire 'a b'", 64, "redlock: "),
        ("-u redis://127.0.0.1:1 acquire a", 69, "redlock: "),
        ("-u nonsense acquire a", 78, "redlock: "),
        ("acquire b --while-pid 2147483646", 64, "redlock: "),
        // In any order of the words.
        ("-q acquire -n a", 75, ""),
        ("acquire -n a -q", 75, ""),
        ("acquire -n a --reason json", 75, "is held by"),
        ("acquire -n a --reason=--format=json", 75, "is held by"),
        ("acquire -n --format env a", 75, "is held by"),
    ] {
        let end = sh(
            &redis,
            &format!(r#"eval "$(redlock {acquire})"; echo unguarded"#),
        );
        end.assert_said(status, text);
        assert_eq!(end.stdout, "", "{acquire}");
    }
    // Other formats aren't read by a shell.
    sh(&redis, "redlock acquire -n a --format json").assert_printed(75, "");
    // An interactive shell survives.
    let typed = r#"eval "$(redlock acquire -n a)"; echo "here $?""#;
    let mut bash = directly(&redis, &["bash", "--norc", "-ic", typed]);
    assert_eq!(outcome(&mut bash).stdout, "here 75\n");
}

#[test]
fn acquire_shows_the_script_as_the_holder() {
    let redis = Redis::start();
    let text = "#!/bin/sh\neval \"$(redlock acquire a --reason 'release 7')\"\necho $$\nredlock status --json\n";
    let path = script(redis.dir.path(), "deploy.sh", text);
    let path = path.to_str().unwrap();
    let end = sh(&redis, &format!("exec {path}"));
    let (pid, json) = end.stdout.split_once('\n').unwrap();
    let json: Value = serde_json::from_str(json).unwrap();
    let holder = &json[0]["holders"][0];
    assert_eq!(holder["pid"].to_string(), pid);
    assert_eq!(holder["command"][1], path);
    assert_eq!(holder["reason"], "release 7");
}

#[test]
fn an_extension_over_a_slow_line_lasts_as_long_as_requested() {
    let redis = Redis::start();
    load_scripts(&redis);
    // A longer line allows a later check.
    let proxy = Proxy::with_round_trip(&redis, Duration::from_secs(2));
    let extend = format!("redlock -u {} extend --for 5m", proxy.url());
    let script = format!(r#"eval "$(redlock acquire a)" && REDLOCK_REDIS_TIMEOUT=50s {extend}"#);
    sh(&redis, &script).assert_code(0).assert_silent();
    let left: i64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!((300_000..=310_000).contains(&left), "{left}");
}

#[test]
fn an_extension_by_a_year_over_a_slow_line_keeps_the_lock() {
    let redis = Redis::start();
    let proxy = Proxy::with_round_trip(&redis, Duration::from_millis(200));
    let script = format!(
        r#"REDLOCK_REDIS_TIMEOUT=50s redlock -u {} extend --for 365d && echo extended; read go <"$HOME/gate"; redlock extend && echo ours"#,
        proxy.url()
    );
    let mut gate = Gate::new(&redis);
    let mut run = Running::start(&mut redis.run("--ttl 6s -k 100ms -v a", &script));
    run.expect_line("extended");
    redis.await_calls("evalsha", 3);
    gate.open();
    run.expect_line("ours");
    run.finish().assert_code(0);
}

/// Script that prints `ready` after an extension, and `ours` if the lock is still held after the gate has opened.
const EXTENDED: &str =
    r#"redlock extend --for 1m && echo ready; read go <"$HOME/gate"; redlock extend && echo ours"#;

#[test]
fn an_extended_lock_survives_a_stall_longer_than_the_ttl() {
    let options = "--ttl 6s -k 100ms a";
    let nested = format!("exec redlock run {options} -c '{EXTENDED}'");
    let kept = format!(r#"eval "$(redlock acquire {options} --while-pid $$)"; {EXTENDED}"#);
    let each = |kind| {
        let redis = Redis::start();
        let mut command = match kind {
            0 => redis.run(options, EXTENDED),
            1 => redis.run(&format!("--shared {options}"), EXTENDED),
            2 => redis.run(options, &nested),
            _ => shell(&redis, "sh", &kept),
        };
        let mut gate = Gate::new(&redis);
        let mut job = Running::ready(&mut command);
        // If a renewing process sends three scripts, the second follows the reply to the first, and one of both reads the
        // lease. If two such processes send eight, each has sent three, or one is dead.
        let scripts = || redis.scripts();
        let enough = scripts() + if kind == 2 { 8 } else { 3 };
        wait_until("it has been looked at", || scripts() >= enough);
        redis.stall();
        std::thread::sleep(Duration::from_millis(6500));
        redis.resume();
        assert!(!job.has_ended(), "{kind}: {:?}", job.finish());
        gate.open();
        let end = job.finish();
        assert_eq!(end.assert_code(0).stdout, "ready\nours\n", "{kind}");
    };
    side_by_side(0..4, each);
}

#[test]
fn extend_says_whether_it_is_ours_and_changes_nothing_without_for() {
    let redis = Redis::start();
    let script = r#"ttl() { redis-cli -s "$SOCKET" PTTL redlock:a; }
        eval "$(redlock acquire a --ttl 1h)"; before=$(ttl); redlock extend; echo $?; redlock extend a; echo $?
        [ "$(ttl)" -le "$before" ]; echo $?; redlock extend b; echo $?"#;
    let mut command = shell(&redis, "sh", script);
    let end = outcome(command.env("SOCKET", redis.socket()));
    end.assert_says("no token for lock \"b\"");
    assert_eq!(end.stdout, "0\n0\n0\n79\n");
    for (line, status, says) in [
        ("extend 1h", 79, "no token for lock \"1h\""),
        ("extend a --for 1m", 79, "no token"),
        ("extend a 1h30m", 64, "unexpected argument '1h30m'"),
        ("extend --for 1m", 64, ""),
        ("extend a --for soon", 64, ""),
    ] {
        ends(&redis, line).assert_said(status, says);
    }
}

#[test]
fn inside_of_runs_each_lock_is_known_by_its_name() {
    let redis = Redis::left_empty();
    let inner = r"redlock extend && redlock extend outer && redlock extend two && echo all
        redlock extend outer --for 10m && redlock release two && redlock extend two; echo $?
        redlock extend; echo $?";
    let end = outcome(&mut redis.run("outer -- redlock run two one", inner));
    end.assert_says("lock \"two\" was released");
    assert_eq!(end.stdout, "all\n79\n79\n");
    end.assert_code(0);
}

#[test]
fn extend_and_release_read_the_token_from_a_file() {
    let redis = Redis::start();
    let script = "redlock acquire a --format token >t && redlock extend a --token-file t &&
        redlock extend a --for 2m --token-file t && redlock release a --token-file - <t";
    sh(&redis, script).assert_code(0).assert_silent();
    assert_nothing_left(&redis);
    sh(&redis, "redlock extend a --token-file t").assert_code(79);
}

#[test]
fn no_token_is_ever_on_a_command_line() {
    let redis = Redis::start();
    let script = r#"eval "$(redlock acquire a --while-pid $$)"; redlock extend --for 1m
        echo "$REDLOCK_TOKEN" >token
        cat /proc/[0-9]*/cmdline 2>&- | tr '\0' ' ' | grep -cFf token"#;
    assert_eq!(sh(&redis, script).stdout, "0\n");
}

/// Waits for a redlock with these words on its command line. Returns its pid.
fn process(words: &str) -> Pid {
    let is_it = |pid: &i32| {
        let line = proc(*pid, "cmdline").replace('\0', " ");
        line.starts_with("redlock ") && line.contains(words)
    };
    Pid::from_raw(await_some("the process is there", || pids().find(is_it)))
}

#[test]
fn a_script_whose_acquire_is_killed_while_it_connects_or_waits_ends_there() {
    let (redis, silent) = (Redis::start(), Redis::start());
    let _holder = Gated::start(&redis, &["a"]).ready();
    silent.stall();
    let deaf = UnresponsiveServer::new();
    for (url, signal) in [
        (redis.url(), Signal::SIGHUP),
        (redis.url(), Signal::SIGINT),
        (redis.url(), Signal::SIGTERM),
        // A server that doesn't answer, and a server that doesn't even accept.
        (silent.url(), Signal::SIGTERM),
        (deaf.url(), Signal::SIGTERM),
    ] {
        let text =
            r#"eval "$(REDLOCK_REDIS_TIMEOUT=10m redlock -u "$URL" acquire a)"; echo unguarded"#;
        let script = Running::start(shell(&redis, "bash", text).env("URL", &url));
        let acquire = process(&url);
        wait_until("it waits", || {
            let rests = proc(acquire.as_raw(), "wchan").contains("poll");
            rests && (url != redis.url() || !redis.queue("a").is_empty())
        });
        kill(acquire, signal).unwrap();
        let end = script.finish();
        end.assert_printed(128 + signal as i32, "");
        assert_eq!(redis.queue("a"), [0; 0], "{url}");
    }
    silent.resume();
}

#[test]
fn a_lock_whose_token_was_not_read_is_released() {
    let redis = Redis::start();
    for format in ["env", "json", "token", "github"] {
        let acquire = ["acquire", "a", "--format", format];
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let (_, pipe) = std::os::unix::net::UnixStream::pair().unwrap();
        for stdout in [full.into(), std::os::fd::OwnedFd::from(pipe)] {
            let status = redis.redlock(&acquire).stdout(stdout).status().unwrap();
            assert!(!status.success());
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_script_may_take_one_lock_after_the_other_and_share_them() {
    let redis = Redis::start();
    let text = r#"eval "$(redlock acquire a)"; eval "$(redlock acquire b --slots 2)"
        echo "$REDLOCK_NAME $REDLOCK_SLOT"
        redlock extend a && redlock extend b && redlock extend a --for 1h && redlock run --slots 2 a b -- echo both
        redlock release a && redlock extend b && redlock release b"#;
    let end = sh(&redis, text);
    end.assert_silent().assert_printed(0, "b 1\nboth\n");
    assert_nothing_left(&redis);
    let slots = "for n in 1 2; do redlock acquire c --slots 2 --format json; done
        redlock acquire c -n --slots 2; redlock acquire d -s --format token; redlock run -ns d -- true";
    let end = sh(&redis, slots);
    end.assert_said(0, "lock \"c\" is held");
    let slots = ["\"slot\":1", "\"slot\":2"].map(|slot| end.stdout.matches(slot).count());
    assert_eq!(slots, [1, 1], "{end:?}");
}

#[test]
fn an_acquire_inside_of_a_run_uses_its_lock_and_leaves_it_to_the_run() {
    for options in ["", "--while-pid $$"] {
        let redis = Redis::left_empty();
        let script = format!(
            r#"sh -c 'eval "$(redlock acquire -n a {options})"; redlock extend && echo inner'
            sleep 0.1; redlock extend && echo outer"#
        );
        let end = outcome(&mut redis.run("a", &script));
        end.assert_code(0).assert_silent();
        assert_eq!(end.stdout, "inner\nouter\n", "{options}");
    }
}

#[test]
fn a_release_gives_back_what_its_own_process_has_acquired_and_not_what_an_outer_one_holds() {
    let helper = r#"eval "$(redlock acquire -n a)"; redlock release; redlock release; echo "released $?"; redlock extend; echo "ours $?""#;
    for outer in [
        "redlock run a -- ./helper",
        "eval \"$(redlock acquire a)\"; ./helper; redlock extend && echo held && redlock release",
        "eval \"$(redlock acquire a --while-pid $$)\"; (. ./helper); redlock extend && echo held && redlock release",
        "redlock run a -- redlock run a -- redlock release; echo released 0; echo ours 0",
    ] {
        let redis = Redis::left_empty();
        let text = format!("#!/bin/sh\n{helper}\n");
        script(redis.dir.path(), "helper", &text);
        let end = sh(&redis, outer);
        end.assert_code(0).assert_silent();
        let held = if outer.contains("held") { "held\n" } else { "" };
        assert_eq!(end.stdout, format!("released 0\nours 0\n{held}"), "{outer}");
    }
    // A single release frees the lock that one shell has acquired twice.
    let redis = Redis::left_empty();
    let twice = r#"eval "$(redlock acquire a)"; eval "$(redlock acquire a)"; redlock release"#;
    sh(&redis, twice).assert_code(0).assert_silent();
}

#[test]
fn a_shell_that_acquires_again_and_again_hands_on_no_locks_that_are_over() {
    let redis = Redis::start();
    let text = r#"eval "$(redlock acquire kept)"
        for n in $(seq 40); do
            eval "$(redlock acquire same)"; redlock release
            eval "$(redlock acquire "item-$n")"; redlock release
        done
        echo "$REDLOCK_HELD" | wc -w
        echo "$REDLOCK_HELD" | grep -c "^kept="
        redlock run -n kept -- echo reentered"#;
    let end = sh(&redis, text);
    end.assert_code(0).assert_silent();
    let lines: Vec<&str> = end.stdout.lines().collect();
    let [pairs, "1", "reentered"] = lines[..] else {
        panic!("{end:?}");
    };
    let pairs: usize = pairs.trim().parse().unwrap();
    assert!(pairs <= 33, "{end:?}");
}

#[test]
fn extend_and_release_mean_all_locks_of_a_run_and_what_is_wrong_with_one_counts() {
    let redis = Redis::left_empty();
    for [lost, other] in [["a", "b"], ["b", "a"]] {
        let script = format!(
            r#"redlock extend --for 1m && redlock extend && echo all
            redlock release --force -q {lost}; sleep 0.2; redlock extend; echo $?; redlock extend --for 2m; echo $?
            [ "$(redis-cli -s "$SOCKET" PTTL redlock:{other})" -gt 100000 ] && echo extended"#
        );
        let mut run = redis.run("REDLOCK_ON_LOST=warn a b", &script);
        let end = outcome(run.env("SOCKET", redis.socket()));
        // redlock extended the other lock anyway.
        end.assert_printed(79, "all\n79\n79\nextended\n");
        let says = format!("lock \"{lost}\" is not held with this token; it was forced free by");
        end.assert_says(&says);
    }
    let script = "redlock release && redlock extend; echo $?";
    let end = outcome(&mut redis.run("a b", script));
    end.assert_printed(0, "79\n");
    end.assert_says("lock \"a\" was released")
        .assert_says("lock \"b\" was released");
    // redlock released the other lock anyway.
    let script = "redlock release a; redlock release; echo $?; redlock run -n b -- echo free";
    let end = outcome(&mut redis.run("a b", script));
    end.assert_printed(0, "79\nfree\n");
    end.assert_says("lock \"a\" was already released");
}

#[test]
fn a_lock_that_this_job_lost_is_not_extended_and_its_present_holder_is_named_if_there_is_one() {
    let redis = Redis::start();
    let text = r#"export REDLOCK_ON_LOST=warn; eval "$(redlock acquire a --while-pid $$)"; redlock release --force -q --reason stuck a
        redlock extend; echo $?; redlock extend --for 1m; echo $?; redlock release; echo $?"#;
    let end = sh(&redis, text);
    end.assert_says("lock \"a\" is not held with this token; it was forced free by ");
    assert_eq!(end.stdout, "79\n79\n79\n");
    assert_eq!(end.stderr.matches("): stuck\n").count(), 3, "{end:?}");
    assert!(
        !end.stderr.contains("lost") && !redis.is_held("a"),
        "{end:?}"
    );
    // A lock that ended with its TTL.
    let text = r"redlock acquire a --ttl 2s --format token >t; redlock run -w 50s a -c '
        REDLOCK_HELD= REDLOCK_NAME= redlock extend a --token-file t; echo $?'
        redlock extend --for 1m a --token-file t; echo $?";
    let end = sh(&redis, text);
    assert_eq!(end.stdout, "79\n79\n", "{end:?}");
    end.assert_says("holds it now")
        .assert_says("it is free, or another client holds it");
    assert!(!redis.is_held("a"));
}

//! Stepping in: stopping a holder, forcing a lock free, removing a waiter.

use std::os::unix::process::ExitStatusExt;

use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// Runs a line. Asserts its status and a part of its messages.
#[track_caller]
fn answers(redis: &Redis, line: &str, code: i32, text: &str) -> Outcome {
    let end = ends(redis, line);
    end.assert_said(code, text);
    end
}

/// Returns the holders or the waiters of "a", from `status --json`.
fn shown(redis: &Redis, whose: &str) -> Vec<Value> {
    let locks = json(redis, "status --json a");
    locks[0][whose].as_array().unwrap().clone()
}

fn id(of: &Value) -> String {
    of["id"].as_str().unwrap().to_owned()
}

/// Returns the ids of the holders or the waiters of "a".
fn ids(redis: &Redis, whose: &str) -> Vec<String> {
    shown(redis, whose).iter().map(id).collect()
}

/// Returns the id of this holder of "a".
fn id_of(redis: &Redis, holder: &Running) -> String {
    let holders = shown(redis, "holders");
    let hold = holders.iter().find(|hold| hold["pid"] == holder.pid());
    id(hold.expect("it is a holder"))
}

#[test]
fn stop_ends_the_command_and_passes_the_lock_on_when_it_is_dead_and_all_sides_say_so() {
    let redis = Redis::left_empty();
    let script = "trap 'sleep 0.3; echo cleaned; exit 3' TERM; echo ready; sleep 60 & wait";
    let mut run = Running::ready(&mut redis.run("--ttl 10m a", script));
    // The request arrives after the first renewal.
    wait_until("it tracks its lock", || redis.trackers() > 0);
    let waiter = Gated::queued(&redis, &["-q", "a"]);
    let whom = format!("(pid {}) to stop; \"a\" was handed over after ", run.pid());
    let stop = words!("stop --reason {} a", "hotfix first");
    let stop = outcome(&mut redis.redlock(stop));
    stop.assert_said(0, "asked ").assert_says(&whom);
    // The command has ended by then.
    run.expect_line("cleaned");
    run.finish_saying(79, " asked this run to stop")
        .assert_says(": hotfix first; stopping the command");
    waiter.end();
    let history = json(&redis, "history --json a");
    assert_eq!(history[0]["end"], "cancelled");
    assert_eq!(history[0]["by"]["reason"], "hotfix first");
    // People can read who stopped it, and why.
    let history = ends(&redis, "history a").stdout;
    let row = history.lines().nth(1).expect("a row");
    assert!(row.contains("stopped by "), "{history}");
    assert!(row.contains(": hotfix first"), "{history}");
}

#[test]
fn a_command_that_goes_on_after_sigterm_is_killed_before_the_lock_is_free() {
    let redis = Redis::left_empty();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let mut run = Running::start(&mut redis.run("-k 200ms --ttl 1m a", script));
    let command: i32 = run.line().parse().unwrap();
    answers(&redis, "stop a", 0, "\"a\" is free after ");
    assert!(!is_alive(command));
    run.finish().assert_exited(79);
}

#[test]
fn stop_without_a_supervisor_changes_nothing_and_prints_the_command_to_type() {
    let redis = Redis::start();
    let refused = |text: &str| {
        let before = redis.cli(&["GET", "redlock:a"]);
        let line = format!("release --force --id {} a", ids(&redis, "holders")[0]);
        answers(&redis, "stop a", 79, text).assert_says(&format!("redlock {line}"));
        assert_eq!(redis.cli(&["GET", "redlock:a"]), before);
        ends(&redis, &line).assert_code(0);
    };
    ends(&redis, "acquire a").assert_code(0);
    refused("no redlock process supervises ");
    redis.cli(words!("SET redlock:a theirs PX 60000"));
    refused("no redlock process supervises another client");
    ends(&redis, "run --hold-at-least 1m a -- true").assert_code(0);
    refused("nothing runs under lock \"a\": it is kept for ");
}

#[test]
fn stop_selects_one_of_several_holders_by_id_prefix_or_all() {
    let redis = Redis::left_empty();
    let runs = [(); 3].map(|()| Gated::start(&redis, &["--slots", "3", "a"]).ready());
    let text = "lock \"a\" has 3 holders; nothing was changed";
    for line in ["stop a", "release --force a"] {
        let refused = answers(&redis, line, 64, text);
        refused.assert_says("--all");
        for (run, id) in runs.iter().zip(ids(&redis, "holders")) {
            let whose = format!("(pid {})", run.run.pid());
            refused.assert_says(&id).assert_says(&whose);
        }
        assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:holders"]), "3");
    }
    let [first, second, third] = runs;
    let one = id_of(&redis, &second.run);
    ends(&redis, &format!("stop a --id {}", &one[..3])).assert_code(64);
    answers(&redis, "stop a --id ffffffff", 79, "nothing was changed");
    let whom = format!("(pid {}) to stop; \"a\" was handed over", second.run.pid());
    let line = format!("stop a --id {}", one[..6].to_uppercase());
    answers(&redis, &line, 0, &whom);
    second.run.finish().assert_exited(79);
    assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:holders"]), "2");
    let text = " and another to stop; \"a\" is free after";
    answers(&redis, "stop --all a", 0, text);
    first.run.finish().assert_exited(79);
    third.run.finish().assert_exited(79);
}

#[test]
fn with_no_wait_stop_returns_while_the_command_still_ends() {
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let script =
        r#"trap 'echo asked; read go <"$HOME/gate"; exit 0' TERM; echo ready; sleep 60 & wait"#;
    let mut run = Running::ready(&mut redis.run("-k 60s --ttl 3m a", script));
    let text = "to stop; \"a\" is released after that";
    answers(&redis, "stop -n a", 0, text);
    run.expect_line("asked");
    assert!(redis.is_held("a"));
    // Once more, until the caller stops waiting.
    let scripts = redis.scripts();
    let again = Running::start(&mut redis.redlock(&["stop", "a"]));
    // `stop` looks at the lock again and again.
    wait_until("it waits for the end", || redis.scripts() > scripts + 12);
    again.signal(Signal::SIGINT);
    again.finish().assert_killed_by(libc::SIGINT);
    assert!(redis.is_held("a"));
    gate.open();
    run.finish().assert_exited(79);
}

#[test]
fn a_lock_that_nobody_holds_can_neither_be_stopped_nor_released() {
    let redis = Redis::start();
    redis.play(
        "0 redlock run a -- true
        79 redlock stop a → lock \"a\" is not held
        79 redlock release --force a → lock \"a\" is not held
        79 redlock release a → lock \"a\" is not held
        79 REDLOCK_TOKEN=mine redlock release a → lock \"a\" is not held
        64 redlock release → no lock NAME given
        HSET redlock:a field theirs
        79 redlock stop a → is not a lock",
    );
}

#[test]
fn a_run_that_is_forced_free_prints_by_whom_and_why_and_release_prints_the_fate_of_its_command() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    let fate =
        "; commands that redlock supervises are being stopped, except with REDLOCK_ON_LOST=warn\n";
    answers(&redis, "release --force --reason stuck a", 0, fate)
        .assert_says("forced free; it was held by ");
    run.run
        .finish_saying(79, "lock \"a\" was forced free by ")
        .assert_says(": stuck; stopping the command");
    ends(&redis, "acquire a").assert_code(0);
    let fate =
        "; no redlock process supervised this hold, so a job that relied on it keeps running";
    answers(&redis, "release --force a", 0, fate);
    let several = [(); 2].map(|()| Gated::start(&redis, &["-s", "a"]).ready());
    let fate = " and another; commands that redlock supervises are being stopped";
    answers(&redis, "release --force --all a", 0, fate);
    for run in several {
        run.run.finish().assert_exited(79);
    }
    ends(&redis, "release --reason x a").assert_code(64);
}

/// Starts redlock with the words of this line on a terminal.
fn on_terminal(redis: &Redis, line: &str) -> Terminal {
    Terminal::start(redis.redlock(&words(line, &[])))
}

/// Starts `release --force a` on a terminal. Returns at its question.
#[track_caller]
fn asking(redis: &Redis) -> Terminal {
    let mut terminal = on_terminal(redis, "release --force a");
    terminal.wait_until("the question", |shown| {
        shown.ends_with("all the same? [y/N] ")
    });
    terminal
}

#[test]
fn on_a_terminal_force_shows_the_holder_and_asks_and_only_a_yes_frees_also_over_a_new_connection() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    let whose = format!("(pid {}), running for ", run.run.pid());
    for (answer, code, text) in [
        ("\n", 79, "nothing was changed"),
        ("n\n", 79, "nothing was changed"),
        ("\x04", 79, "nothing was changed"),
        ("Yes\n", 0, "forced free"),
    ] {
        let mut terminal = asking(&redis);
        assert_has(&terminal.shown, &[&whose, "s ago; `redlock stop a` waits"]);
        assert!(redis.is_held("a"));
        redis.cli(words!("CLIENT KILL TYPE normal SKIPME yes"));
        terminal.type_in(answer);
        assert_eq!(terminal.finish().code(), Some(code), "{answer:?}");
        assert_has(&terminal.shown, &[text]);
        assert_eq!(redis.is_held("a"), code != 0, "{answer:?}");
    }
    run.run.finish().assert_exited(79);
}

#[test]
fn a_yes_frees_only_the_holder_that_was_shown_and_with_yes_or_an_id_there_is_no_question() {
    let redis = Redis::start();
    let start = || Gated::start(&redis, &["a"]).ready();
    let first = start();
    let mut terminal = asking(&redis);
    first.end();
    let mut holder = start();
    terminal.type_in("y\n");
    assert_eq!(terminal.finish().code(), Some(79));
    assert!(redis.is_held("a"));
    let by_id = format!("--id {}", &ids(&redis, "holders")[0][..4]);
    for option in [&by_id, "--yes"] {
        let mut terminal = on_terminal(&redis, &format!("release --force {option} a"));
        assert_eq!(terminal.finish().code(), Some(0));
        assert_has(&terminal.shown, &["forced free"]);
        assert!(!terminal.shown.contains("[y/N]"), "{}", terminal.shown);
        assert!(!redis.is_held("a"));
        std::mem::replace(&mut holder, start())
            .run
            .finish()
            .assert_exited(79);
    }
    answers(&redis, "release -y a", 64, "--force");
}

#[test]
fn a_waiter_is_removed_by_its_id_and_gives_up_with_who_did_it_and_why() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    let removed = queued(&redis, words!("run a -- true"));
    let other = queued(&redis, words!("run -q a -- true"));
    let id = ids(&redis, "waiters").remove(0);
    let stop = format!("stop --id {id} a");
    answers(&redis, &stop, 79, "only waits for lock \"a\"")
        .assert_says(&format!("redlock release --force --id {id} a"));
    let whom = format!("(pid {}) from the queue of lock \"a\"", removed.pid());
    let force = words!(
        "release --force --reason {} a --id",
        "wrong branch",
        &id[..8]
    );
    outcome(&mut redis.redlock(force))
        .assert_said(0, "removed ")
        .assert_says(&whom);
    removed
        .finish_saying(75, " removed this run from the queue of lock \"a\"")
        .assert_says(": wrong branch");
    assert_eq!(redis.queue("a"), [other.pid()]);
    holder.end();
    other.finish().assert_code(0);
}

#[test]
fn a_suspended_waiter_whose_grant_was_forced_away_or_stopped_gives_up_when_it_goes_on() {
    for (options, way, is_over) in [
        (&[][..], "release --force", true),
        (&[], "stop -n", true),
        (&["--slots", "1"], "stop -n", true),
        // A waiter that polls sends a request before it starts its command.
        (&[], "stop -n", false),
    ] {
        let redis = Redis::start();
        if !is_over {
            redis.cli(&["ACL", "SETUSER", "default", "-subscribe"]);
        }
        let holder = Gated::start(&redis, &[options, &["a"]].concat()).ready();
        let run = [&["run"], options, words!("a -c", r#">"$HOME/ran""#)].concat();
        let waiter = queued(&redis, &run);
        let id = ids(&redis, "waiters").remove(0);
        waiter.suspend();
        holder.end();
        if options.is_empty() {
            // The grant would end in a moment, too soon for a busy machine.
            redis.cli(&["PEXPIRE", "redlock:a", "60000"]);
        }
        // The lock isn't free, but nobody holds it before the grant is confirmed.
        let lock = &json(&redis, "status --json a")[0];
        assert!(lock["held"] == true && lock["holders"][0].is_null());
        let granted = &lock["waiters"][0];
        assert!(granted["id"] == *id && granted["granted"] == true);
        // Its command might start on a younger grant.
        let until = now() + Duration::from_millis(150);
        ends(&redis, &format!("{way} --id {id} --reason old a")).assert_code(0);
        if way == "release --force" {
            assert!(!redis.is_held("a"));
        } else if options.is_empty() && is_over {
            redis.cli(&["PEXPIRE", "redlock:a", "1"]);
        }
        wait_until("the grant is over", || {
            !is_over || !redis.is_held("a") && now() > until
        });
        waiter.resume();
        waiter
            .finish_saying(75, " removed this run from the queue of lock \"a\"")
            .assert_says(": old");
        assert!(!redis.dir.path().join("ran").exists());
        assert!(!redis.is_held("a"));
        let history = ends(&redis, "history --json a").stdout;
        for end in ["forced", "cancelled"] {
            assert!(!history.contains(&format!(r#""end":"{end}""#)), "{history}");
        }
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_run_that_was_asked_to_stop_says_so_at_its_kill_even_if_redis_has_failed_meanwhile() {
    let mut redis = Redis::start();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = Running::ready(&mut redis.run("-v --kill-after 3s --ttl 9s a", script));
    answers(&redis, "stop -n -m hung a", 0, "to stop");
    run.expect_line("asked");
    redis.kill();
    let end = run.finish_saying(79, "asked this run to stop: hung; killing the command");
    end.assert_says("renewal failed");
}

#[test]
fn stop_announces_the_kill_only_of_a_run_that_has_seen_the_request() {
    let redis = Redis::start();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = Running::ready(&mut redis.run("-q --kill-after 40s --ttl 90s a", script));
    wait_until("it tracks its lock", || redis.trackers() > 0);
    run.suspend();
    let mut terminal = on_terminal(&redis, "stop a");
    terminal.resize(24, 160);
    terminal.wait_until("the line", |shown| shown.contains("waited 2s so far for "));
    assert!(!terminal.shown.contains("SIGKILL"), "{}", terminal.shown);
    run.resume();
    run.expect_line("asked");
    terminal.wait_until("the kill", |shown| shown.contains(", SIGKILL in "));
    ends(&redis, "release --force --yes a").assert_code(0);
    run.kill();
    terminal.finish();
}

#[test]
fn stop_of_a_suspended_holder_says_how_long_it_has_not_renewed_and_what_frees_the_lock() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["--ttl", "14s", "b"]).ready();
    run.run.suspend();
    let status = || ends(&redis, "status b").stdout;
    wait_until("its renewal is overdue", || {
        status().contains("s overdue: ")
    });
    let text = "to stop; \"b\" is released";
    let stderr = answers(&redis, "stop -n b", 0, text).stderr;
    let prefix = "to free lock \"b\" now: redlock ";
    let (_, line) = stderr.split_once(prefix).unwrap();
    let text = "its lease has not been renewed for ";
    answers(&redis, line.lines().next().unwrap(), 0, text)
        .assert_says("make sure that its command is dead");
}

#[test]
fn stop_reports_a_silent_holder_whose_kill_is_overdue_and_an_interrupt_leaves_the_request() {
    let redis = Redis::start();
    let run = Gated::start(&redis, words!("--ttl 10m -k 1s a")).ready();
    run.run.suspend();
    let mut terminal = on_terminal(&redis, "stop a");
    terminal.wait_until("the line", |shown| shown.contains("no sign of life from "));
    let line = "; to free lock \"a\" now: redlock release --force --id ";
    assert_has(&terminal.shown, &[line]);
    terminal.type_in("\x03");
    let status = terminal.finish();
    assert_eq!(status.signal(), Some(libc::SIGINT));
    assert_has(&terminal.shown, &["interrupted, but the request stands: "]);
    run.run.resume();
    run.run.finish().assert_exited(79);
}

#[test]
fn stop_says_when_any_holder_lost_its_lock_before_its_command_had_ended() {
    side_by_side([(1, 0), (2, 0), (2, 1)], |(count, lost)| {
        let redis = Redis::start();
        let options = format!("--slots {count} --ttl 6s -k 1s a");
        let run = || Running::ready(&mut redis.run(&options, IDLE));
        let holders: Vec<Running> = (0..count).map(|_| run()).collect();
        holders[lost].suspend();
        let line = if count > 1 { "stop --all a" } else { "stop a" };
        let text = "its lease expired before its command had ended; the command may still run";
        answers(&redis, line, 79, text).assert_says("no sign of life from ");
        holders[lost].resume();
        all_end(holders, 79);
    });
}

#[test]
fn stop_of_several_holders_asks_none_of_them_where_no_process_watches_over_one() {
    let redis = Redis::start();
    let acquire = || {
        ends(&redis, "acquire --slots 2 a").assert_code(0);
    };
    for is_first in [true, false] {
        if is_first {
            acquire();
        }
        let run = Gated::start(&redis, words!("--slots 2 a")).ready();
        if !is_first {
            acquire();
        }
        let text = "no redlock process supervises ";
        answers(&redis, "stop --all --no-wait a", 79, text);
        run.end();
        ends(&redis, "release -q --force a").assert_code(0);
    }
}

#[test]
fn stop_gives_up_when_redis_has_been_away_for_as_long_as_the_lease() {
    let redis = Redis::start();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let holder = Running::ready(&mut redis.run("--ttl 8s -k 4s a", script));
    let stop = words!("stop REDLOCK_REDIS_TIMEOUT=2s a");
    let stop = Running::start(&mut redis.redlock(stop));
    wait_until("it has asked", || {
        redis.keys().iter().any(|key| key.contains("}:cancelled:"))
    });
    redis.stall();
    stop.finish_saying(69, "couldn't confirm that it did");
    redis.resume();
    holder.finish().assert_code(79);
}

#[test]
fn stop_of_several_holders_waits_for_redis_for_as_long_as_the_longest_lease() {
    let redis = Redis::left_empty();
    let script = r#"trap '' TERM; echo ready; while [ ! -e "$HOME/end" ]; do sleep 0.05; done"#;
    let start = |ttl: &str| {
        let options = format!("--shared --ttl {ttl} -k 90s a");
        Running::ready(&mut redis.run(&options, script))
    };
    let (long, short) = (start("3m"), start("6s"));
    let stop = "REDLOCK_REDIS_TIMEOUT=1s exec redlock stop -v --all a 2>&1";
    let mut stop = Running::start(&mut sh(&redis, stop));
    short.finish().assert_code(79);
    redis.stall();
    // This many failures take longer than the shorter lease.
    let mut in_vain = 0;
    while in_vain < 7 {
        in_vain += usize::from(stop.line().contains("no answer in time"));
    }
    redis.resume();
    fs::write(redis.dir.path().join("end"), "").unwrap();
    stop.finish().assert_code(0);
    long.finish().assert_code(79);
}

#[test]
fn stop_soon_notices_the_end_of_one_of_several_slots() {
    let redis = Redis::start();
    let start = || Running::ready(&mut redis.run("--slots 2 a", "echo ready; exec sleep 60"));
    let mut other = start();
    // At the usual pace, each check would come after two seconds. A busy machine is sometimes late.
    let is_soon = (0..10).any(|_| {
        let run = start();
        let line = format!("stop a --id {}", id_of(&redis, &run));
        let stop = answers(&redis, &line, 0, "was handed over after ").stderr;
        run.finish().assert_code(79);
        stop.contains("ms") || stop.contains("after 1.")
    });
    assert!(is_soon && !other.has_ended());
}

#[test]
fn a_stop_request_is_visible_to_all_until_the_holder_has_ended() {
    let redis = Redis::start();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = Running::ready(&mut redis.run("--kill-after 20s --ttl 60s a", script));
    wait_until("it tracks its lock", || redis.trackers() > 0);
    let script = "exec redlock run a -- true 2>&1";
    let mut waiter = Running::start(&mut sh(&redis, script));
    waiter.wait_until_queued(&redis);
    ends(&redis, "stop --no-wait --reason hung a").assert_code(0);
    run.expect_line("asked");
    let stopping = &shown(&redis, "holders")[0]["stopping"];
    assert_eq!(stopping["reason"], "hung", "{stopping}");
    let kill_in = stopping["kill_in_ms"].as_u64().unwrap();
    assert!((10_000..20_000).contains(&kill_in), "{stopping}");
    let status = ends(&redis, "status a").stdout;
    assert_has(&status, &["stopping, SIGKILL in ", "(asked by ", ": hung)"]);
    answers(&redis, "run -n a -- true", 75, "stopping, SIGKILL in ").assert_says("(asked by ");
    // The waiter is notified at once.
    while !waiter.line().contains("stopping, SIGKILL in ") {}
    ends(&redis, "release --force --yes a").assert_code(0);
    run.signal(Signal::SIGKILL);
    waiter.finish().assert_code(0);
}

#[test]
fn under_sudo_others_see_who_called_it_unless_a_name_is_given() {
    let redis = Redis::start();
    let by_anna = |line: &str| {
        let mut command = redis.redlock(&words(line, &[]));
        command.env("USER", "root").env("SUDO_USER", "anna");
        command
    };
    let anna = format!("anna (root)@{}", host());
    let start = || {
        let mut run = by_anna("run -q a -- sh -c");
        Running::ready(run.arg("echo ready; exec sleep 60"))
    };
    let assert_on_screen = |line: &str, text: &str| {
        let screen = ends(&redis, line).stdout;
        assert!(screen.contains(text), "no {text:?} in {screen}");
    };
    let run = start();
    assert_on_screen("status", &format!("  {anna}  "));
    outcome(&mut by_anna("stop a")).assert_code(0);
    run.finish().assert_says(&format!("{anna} (pid "));
    let run = start();
    outcome(&mut by_anna("release --force --yes a")).assert_code(0);
    run.finish()
        .assert_says(&format!("forced free by {anna} (pid "));
    let root = format!("root@{} (pid ", host());
    for (variable, value, shown) in [
        ("SUDO_USER", "anna", &*format!("{anna} (pid ")),
        ("REDLOCK_WHO", "ops", "ops, 29d"),
        // Root who calls sudo is just root.
        ("SUDO_USER", "root", &root),
    ] {
        let freeze = &mut by_anna("freeze a --reason x");
        outcome(freeze.env(variable, value)).assert_code(0);
        assert_on_screen("status a", &format!(" by {shown}"));
    }
}

//! Stepping in: stopping a holder, forcing a lock free, removing a waiter.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::lua::{SHARED, WHO, call};
use crate::support::pty::Terminal;
use crate::support::{
    Gated, REDLOCK, Redis, Running, assert_nothing_left, directly, host, is_alive, now, outcome,
    path, queued, wait_until, with_default_signals,
};

/// The locks as `status --json` shows them.
fn locks(redis: &Redis, name: &str) -> serde_json::Value {
    let end = outcome(&mut redis.redlock(&["status", "--json", name]));
    serde_json::from_str(&end.stdout).unwrap()
}

/// The ids of the holders, or of the waiters, of "a".
fn ids(redis: &Redis, whose: &str) -> Vec<String> {
    let locks = locks(redis, "a");
    let all = locks[0][whose].as_array().unwrap();
    let ids = all.iter().map(|one| one["id"].as_str().unwrap().to_owned());
    ids.collect()
}

/// Those that the lock was granted to, and that haven't confirmed it.
fn granted_ids(redis: &Redis) -> Vec<String> {
    let waiters = locks(redis, "a")[0]["waiters"].clone();
    let waiters = waiters.as_array().unwrap().iter();
    let granted = waiters.filter(|waiter| waiter["granted"] == true);
    granted
        .map(|waiter| waiter["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Who asked for something, as it was sent: without the time, which the server adds.
fn without_time(by: &str) -> String {
    match by
        .strip_prefix(r#"{"asked":"#)
        .and_then(|rest| rest.split_once(','))
    {
        Some((_, rest)) => format!("{{{rest}"),
        None => by.to_owned(),
    }
}

fn is_held(redis: &Redis) -> bool {
    redis.cli(&["EXISTS", "redlock:a"]) == "1"
}

/// A run of "a" whose COMMAND takes its time to end when it is asked to, and says so.
fn slow_to_end(redis: &Redis, options: &str) -> Running {
    let script = "trap 'sleep 0.3; echo cleaned; exit 3' TERM; echo ready; sleep 60 & wait";
    let mut run = Running::start(&mut redis.run(&format!("{options} a"), script));
    run.expect_line("ready");
    // What is asked of it comes in later than its first renewal.
    wait_until("it tracks its lock", || redis.trackers() > 0);
    run
}

#[test]
fn stop_ends_the_command_and_passes_the_lock_on_when_it_is_dead_and_all_sides_say_so() {
    let redis = Redis::start();
    let mut run = slow_to_end(&redis, "--ttl 10m");
    let mut waiter = Gated::queued(&redis, &["-q", "a"]);
    let whom = format!("(pid {}) to stop; \"a\" was handed over after ", run.pid());
    let stop = outcome(&mut redis.redlock(&["stop", "--reason", "hotfix first", "a"]));
    stop.assert_code(0).assert_says("asked ").assert_says(&whom);
    // Its command had ended by then.
    run.expect_line("cleaned");
    run.finish()
        .assert_exited(79)
        .assert_says(" asked this run to stop")
        .assert_says(": hotfix first; stopping the command");
    waiter.open();
    waiter.end();
    let history = outcome(&mut redis.redlock(&["history", "--json", "a"])).stdout;
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    assert_eq!(history[0]["end"], "cancelled");
    assert_eq!(history[0]["by"]["reason"], "hotfix first");
    // People read who stopped it, and why.
    let history = outcome(&mut redis.redlock(&["history", "a"])).stdout;
    let row = history.lines().nth(1).expect("a row");
    assert!(
        row.contains("stopped by ") && row.contains(": hotfix first"),
        "{history}"
    );
    assert_nothing_left(&redis);
}

#[test]
fn a_command_that_goes_on_after_sigterm_is_killed_before_the_lock_is_free() {
    let redis = Redis::start();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.05; done";
    let mut run = Running::start(&mut redis.run("-k 200ms --ttl 1m a", script));
    let command: i32 = run.line().parse().unwrap();
    outcome(&mut redis.redlock(&["stop", "a"]))
        .assert_code(0)
        .assert_says("\"a\" is free after ");
    assert!(!is_alive(command));
    run.finish().assert_exited(79);
    assert_nothing_left(&redis);
}

#[test]
fn stop_of_a_lock_that_a_keeper_keeps_stops_its_script() {
    let redis = Redis::start();
    let script = "eval \"$(redlock acquire --while-pid $$ a)\"; echo ready; sleep 60; echo on";
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .env("PATH", path())
        .env("HOME", redis.dir.path())
        .env("REDLOCK_URL", redis.url());
    let mut script = Running::start(&mut command);
    script.expect_line("ready");
    wait_until("the keeper watches", || {
        redis
            .cli(&["HVALS", "{redlock:a}:meta"])
            .contains("instance")
    });
    outcome(&mut redis.redlock(&["stop", "a"]))
        .assert_code(0)
        .assert_says("\"a\" is free after ");
    let end = script.finish();
    assert_eq!(
        (end.code(), end.stdout.as_str()),
        (Some(128 + 15), "ready\n")
    );
    assert_nothing_left(&redis);
}

#[test]
fn without_a_process_that_watches_nothing_is_changed_and_the_line_to_type_is_shown() {
    let redis = Redis::start();
    let refused = || {
        let before = redis.cli(&["GET", "redlock:a"]);
        let id = ids(&redis, "holders").remove(0);
        let stop = outcome(&mut redis.redlock(&["stop", "a"]));
        let line = format!("redlock release --force --id {id} a");
        stop.assert_code(79).assert_says(&line);
        assert_eq!(redis.cli(&["GET", "redlock:a"]), before);
        let force: Vec<&str> = line.split(' ').skip(1).collect();
        outcome(&mut redis.redlock(&force)).assert_code(0);
        stop.stderr
    };
    outcome(&mut redis.redlock(&["acquire", "a"])).assert_code(0);
    assert!(refused().contains("no redlock process supervises "));
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "60000"]);
    assert!(refused().contains("no redlock process supervises another client"));
    outcome(&mut redis.run("--hold-at-least 1m a", "true")).assert_code(0);
    assert!(refused().contains("nothing runs under lock \"a\": it is kept for "));
}

#[test]
fn of_several_holders_one_is_named_by_a_part_of_its_id_or_all_are() {
    let redis = Redis::start();
    let start = || Gated::start(&redis, &["--slots", "3", "a"]).ready();
    let (first, second, third) = (start(), start(), start());
    for command in [&["stop", "a"][..], &["release", "--force", "a"]] {
        let refused = outcome(&mut redis.redlock(command));
        refused
            .assert_code(64)
            .assert_says("lock \"a\" has 3 holders; nothing was changed")
            .assert_says("--all");
        for (run, id) in [&first, &second, &third]
            .into_iter()
            .zip(ids(&redis, "holders"))
        {
            refused
                .assert_says(&id)
                .assert_says(&format!("(pid {})", run.run.pid()));
        }
        assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:holders"]), "3");
    }
    let one = locks(&redis, "a")[0]["holders"]
        .as_array()
        .unwrap()
        .iter()
        .find(|holder| holder["pid"] == second.run.pid())
        .map(|holder| holder["id"].as_str().unwrap().to_owned())
        .unwrap();
    outcome(&mut redis.redlock(&["stop", "a", "--id", &one[..3]])).assert_code(64);
    outcome(&mut redis.redlock(&["stop", "a", "--id", "ffffffff"]))
        .assert_code(79)
        .assert_says("nothing was changed");
    let whom = format!("(pid {}) to stop; \"a\" was handed over", second.run.pid());
    outcome(&mut redis.redlock(&["stop", "a", "--id", &one[..6].to_uppercase()]))
        .assert_code(0)
        .assert_says(&whom);
    second.run.finish().assert_exited(79);
    assert_eq!(redis.cli(&["ZCARD", "{redlock:a}:holders"]), "2");
    outcome(&mut redis.redlock(&["stop", "--all", "a"]))
        .assert_code(0)
        .assert_says(" and another to stop; \"a\" is free after");
    first.run.finish().assert_exited(79);
    third.run.finish().assert_exited(79);
    assert_nothing_left(&redis);
}

#[test]
fn a_frozen_lock_stays_frozen_when_its_holder_is_stopped() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    outcome(&mut redis.redlock(&["freeze", "--reason", "night", "a"])).assert_code(0);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    outcome(&mut redis.redlock(&["stop", "a"]))
        .assert_code(0)
        .assert_says("\"a\" is free after ")
        .assert_says(", and stays frozen");
    run.run.finish().assert_exited(79);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "redlock:frozen");
    outcome(&mut redis.redlock(&["thaw", "-q", "a"])).assert_code(0);
    waiter.finish().assert_code(0);
}

#[test]
fn with_no_wait_stop_returns_while_the_command_still_ends() {
    let redis = Redis::start();
    let script = "trap 'echo asked; read go <gate; exit 0' TERM; echo ready; sleep 60 & wait";
    nix::unistd::mkfifo(
        &redis.dir.path().join("gate"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let mut command = redis.run("-k 60s --ttl 3m a", script);
    let mut run = Running::start(command.current_dir(redis.dir.path()));
    run.expect_line("ready");
    outcome(&mut redis.redlock(&["stop", "-n", "a"]))
        .assert_code(0)
        .assert_says("to stop; \"a\" is handed over after that");
    run.expect_line("asked");
    assert!(is_held(&redis));
    // The same once more, until somebody doesn't want to wait for it any longer.
    let again = Running::start(&mut with_default_signals(redis.redlock(&["stop", "a"])));
    wait_until("it looks at the lock", || redis.trackers() >= 2);
    again.signal(Signal::SIGINT);
    again.finish().assert_killed_by(libc::SIGINT);
    assert!(is_held(&redis));
    std::fs::write(redis.dir.path().join("gate"), "go\n").unwrap();
    run.finish().assert_exited(79);
    assert_nothing_left(&redis);
}

#[test]
fn what_was_asked_and_lost_can_be_asked_again_and_only_the_one_that_was_seen_is_asked() {
    let redis = Redis::start();
    let take = |token, limit| {
        let rest = ["", "", "0", "", "0", "0"];
        let args = [&[token, "30000", limit, WHO], &rest[..]].concat();
        assert_eq!(call(&redis, "acquire", &args)[0], "1");
    };
    let id = |n: usize| ids(&redis, "holders").remove(n);
    let cancelled = |token| {
        let answer = call(&redis, "check", &[token, "30000"]);
        answer.get(2).is_some_and(|by| without_time(by) == WHO)
    };
    take("one", SHARED);
    take("two", SHARED);
    let (first, second) = (id(0), id(1));
    for _ in 0..2 {
        assert_eq!(call(&redis, "stop", &[&first, WHO, "0"]), ["1"]);
        assert_eq!((cancelled("one"), cancelled("two")), (true, false));
    }
    redis.cli(&["DEL", "{redlock:a}:notices"]);
    assert!(!cancelled("one"));
    assert_eq!(call(&redis, "stop", &[&first, WHO, "0"]), ["1"]);
    assert!(cancelled("one"));
    assert_eq!(call(&redis, "stop", &["ffffffffffff", WHO, "0"]), ["0"]);
    assert_ne!(first, second);
    let left: u64 = redis.cli(&["TTL", "{redlock:a}:notices"]).parse().unwrap();
    assert!((86_340..=86_400).contains(&left), "{left}");
}

#[test]
fn on_a_full_server_a_holder_can_be_stopped() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(redis.cli(&["SET", "x", "y"]).contains("OOM"));
    outcome(&mut redis.redlock(&["stop", "a"])).assert_code(0);
    run.run.finish().assert_exited(79);
    assert!(!is_held(&redis));
}

#[test]
fn a_lock_that_nobody_holds_can_neither_be_stopped_nor_forced_free() {
    let redis = Redis::start();
    for command in [&["stop", "a"][..], &["release", "--force", "a"]] {
        outcome(&mut redis.redlock(command))
            .assert_code(79)
            .assert_says("lock \"a\" is not held");
    }
    redis.cli(&["HSET", "redlock:a", "field", "theirs"]);
    outcome(&mut redis.redlock(&["stop", "a"]))
        .assert_code(79)
        .assert_says("is not a lock");
}

#[test]
fn a_run_that_is_forced_free_prints_by_whom_and_why_and_release_prints_the_fate_of_its_command() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    let force = ["release", "--force", "--reason", "stuck since noon", "a"];
    outcome(&mut redis.redlock(&force))
        .assert_code(0)
        .assert_says("forced free; it was held by ")
        .assert_says("; its command is being stopped, unless it runs with REDLOCK_ON_LOST=warn\n");
    run.run
        .finish()
        .assert_exited(79)
        .assert_says("lock \"a\" was forced free by ")
        .assert_says(": stuck since noon; stopping the command");
    outcome(&mut redis.redlock(&["acquire", "a"])).assert_code(0);
    outcome(&mut redis.redlock(&["release", "--force", "a"]))
        .assert_code(0)
        .assert_says(
            "; no redlock process supervised this hold, so a job that relied on it keeps running",
        );
    let several: Vec<Gated> = (0..2)
        .map(|_| Gated::start(&redis, &["-s", "a"]).ready())
        .collect();
    outcome(&mut redis.redlock(&["release", "--force", "--all", "a"]))
        .assert_code(0)
        .assert_says(
            " and 1 more; their commands are being stopped, except with REDLOCK_ON_LOST=warn\n",
        );
    for run in several {
        run.run.finish().assert_exited(79);
    }
    outcome(&mut redis.redlock(&["release", "--reason", "x", "a"])).assert_code(64);
}

#[test]
fn a_script_whose_lock_was_forced_free_learns_why_when_it_releases() {
    let redis = Redis::start();
    let script = "trap '' TERM; echo ready; read go <gate; redlock release; true";
    nix::unistd::mkfifo(
        &redis.dir.path().join("gate"),
        nix::sys::stat::Mode::S_IRWXU,
    )
    .unwrap();
    let mut command = redis.run("-q REDLOCK_ON_LOST=warn --ttl 3m a", script);
    let mut run = Running::start(command.current_dir(redis.dir.path()));
    run.expect_line("ready");
    outcome(&mut redis.redlock(words!("release --force --reason stuck a"))).assert_code(0);
    std::fs::write(redis.dir.path().join("gate"), "go\n").unwrap();
    run.finish()
        .assert_says("it was forced free by ")
        .assert_says("): stuck\n");
}

#[test]
fn a_release_without_a_token_offers_stop_before_force() {
    let redis = Redis::start();
    let _run = Gated::start(&redis, &["a"]).ready();
    let refused = outcome(&mut redis.redlock(&["release", "a"]));
    let said = &refused.assert_code(79).stderr;
    let (stop, force) = (
        said.find("redlock stop a").unwrap(),
        said.find("--force").unwrap(),
    );
    assert!(stop < force, "{said}");
    redis.cli(&["SET", "redlock:b", "theirs"]);
    let said = outcome(&mut redis.redlock(&["release", "b"])).stderr;
    assert!(
        !said.contains("redlock stop") && said.contains("--force"),
        "{said}"
    );
}

/// A command on a terminal.
fn on_terminal(redis: &Redis, words: &[&str]) -> Terminal {
    let mut command = Command::new(REDLOCK);
    command
        .args(words)
        .env_clear()
        .env("PATH", path())
        .env("REDLOCK_URL", redis.url())
        .env("HOME", redis.dir.path());
    Terminal::start(with_default_signals(command))
}

#[test]
fn on_a_terminal_force_shows_the_holder_and_asks_and_only_a_yes_frees() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    let whose = format!("(pid {}), running for ", run.run.pid());
    for (answer, frees) in [
        ("\n", false),
        ("n\n", false),
        ("\x04", false),
        ("Yes\n", true),
    ] {
        let mut terminal = on_terminal(&redis, &["release", "--force", "a"]);
        terminal.wait_until("the question", |shown| {
            shown.ends_with("all the same? [y/N] ")
        });
        assert!(terminal.shown.contains(&whose), "{}", terminal.shown);
        assert!(
            terminal.shown.contains("s ago; `redlock stop a` waits"),
            "{}",
            terminal.shown
        );
        assert!(is_held(&redis));
        terminal.type_in(answer);
        let status = terminal.finish();
        assert_eq!(
            status.code(),
            Some(if frees { 0 } else { 79 }),
            "{answer:?}"
        );
        let said = if frees {
            "forced free"
        } else {
            "nothing was changed"
        };
        assert!(terminal.shown.contains(said), "{}", terminal.shown);
        assert_eq!(is_held(&redis), !frees);
    }
    run.run.finish().assert_exited(79);
}

#[test]
fn release_force_yes_asks_nothing_in_a_script_or_on_a_terminal() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    let mut terminal = on_terminal(&redis, &["release", "--force", "--yes", "a"]);
    assert_eq!(terminal.finish().code(), Some(0));
    let shown = &terminal.shown;
    assert!(shown.contains("forced free"), "{shown}");
    assert!(!shown.contains("[y/N]"), "{shown}");
    assert!(!is_held(&redis));
    run.run.finish().assert_exited(79);
    let run = Gated::start(&redis, &["a"]).ready();
    outcome(&mut redis.redlock(&["release", "--force", "-y", "a"])).assert_code(0);
    run.run.finish().assert_exited(79);
    outcome(&mut redis.redlock(&["release", "-y", "a"]))
        .assert_code(64)
        .assert_says("--force");
}

#[test]
fn a_yes_frees_only_the_holder_that_was_shown_and_an_id_needs_no_question() {
    let redis = Redis::start();
    let first = Gated::start(&redis, &["a"]).ready();
    let mut terminal = on_terminal(&redis, &["release", "--force", "a"]);
    terminal.wait_until("the question", |shown| shown.ends_with("[y/N] "));
    first.end();
    let second = Gated::start(&redis, &["a"]).ready();
    terminal.type_in("y\n");
    assert_eq!(terminal.finish().code(), Some(79));
    assert!(is_held(&redis));
    let id = ids(&redis, "holders").remove(0);
    let mut terminal = on_terminal(&redis, &["release", "--force", "--id", &id[..4], "a"]);
    assert_eq!(terminal.finish().code(), Some(0));
    assert!(!terminal.shown.contains("[y/N]"));
    second.run.finish().assert_exited(79);
}

#[test]
fn a_waiter_is_removed_by_its_id_and_gives_up_with_who_did_it_and_why() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let removed = queued(&redis, &["run", "a", "--", "true"]);
    let other = queued(&redis, &["run", "-q", "a", "--", "true"]);
    let id = ids(&redis, "waiters").remove(0);
    outcome(&mut redis.redlock(&["stop", "--id", &id, "a"]))
        .assert_code(79)
        .assert_says("only waits for lock \"a\"")
        .assert_says(&format!("redlock release --force --id {id} a"));
    outcome(&mut redis.redlock(words!(
        "release --force --reason {} a --id",
        "wrong branch",
        &id[..8]
    )))
    .assert_code(0)
    .assert_says("removed ")
    .assert_says(&format!(
        "(pid {}) from the queue of lock \"a\"",
        removed.pid()
    ));
    removed
        .finish()
        .assert_exited(75)
        .assert_says(" removed this run from the queue of lock \"a\"")
        .assert_says(": wrong branch");
    assert_eq!(redis.queue("a"), [other.pid()]);
    holder.end();
    other.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_waiter_that_no_message_reaches_is_removed_for_good_and_those_behind_it_may_go() {
    let redis = Redis::start();
    let ask = |token, limit, ticket| {
        let rest = ["0", "", "0", "0"];
        let args = [&[token, "30000", limit, WHO, "poll", ticket], &rest[..]].concat();
        call(&redis, "acquire", &args)
    };
    assert_eq!(ask("reader", SHARED, "")[0], "1");
    assert_eq!(ask("writer", "1", "")[0], "0");
    assert_eq!(ask("behind", SHARED, "")[0], "0");
    let writer = ids(&redis, "waiters").remove(0);
    assert_eq!(call(&redis, "force", &[&writer, WHO, "0", "0"])[0], "3");
    for ticket in ["", "1"] {
        assert_eq!(ask("writer", "1", ticket), ["4", WHO]);
    }
    assert_eq!(ask("behind", SHARED, "2")[0], "1");
    // Its place is found, and what another client has made of the queue does no harm.
    redis.cli(&["SET", "{redlock:a}:queue", "x"]);
    assert_eq!(call(&redis, "force", &[&writer, WHO, "0", "0"])[0], "2");
}

/// A waiter for "a" that was suspended before its predecessor ended, so that it has the lock without
/// knowing of it; its command leaves a file. With its id.
fn granted(redis: &Redis, options: &[&str]) -> (Running, String) {
    let holder = Gated::start(redis, &[options, &["a"]].concat()).ready();
    let mut waiter = redis.redlock(&[&["run"], options, words!("a -c", "touch ran")].concat());
    let mut waiter = Running::start(waiter.current_dir(redis.dir.path()));
    waiter.wait_until_queued(redis);
    let id = ids(redis, "waiters").remove(0);
    waiter.suspend();
    holder.end();
    if options.is_empty() {
        // The grant is over in a moment, and a busy machine takes longer.
        redis.cli(&["PEXPIRE", "redlock:a", "60000"]);
    }
    assert_eq!(granted_ids(redis), std::slice::from_ref(&id));
    (waiter, id)
}

/// It goes on, and gives up because of what a person has said meanwhile.
#[track_caller]
fn goes_on_and_gives_up(redis: &Redis, waiter: Running, reason: &str) {
    waiter.resume();
    waiter
        .finish()
        .assert_exited(75)
        .assert_says(" removed this run from the queue of lock \"a\"")
        .assert_says(&format!(": {reason}"));
    assert!(!redis.dir.path().join("ran").exists());
    assert!(!is_held(redis));
    let history = outcome(&mut redis.redlock(&["history", "--json", "a"])).stdout;
    let history: Vec<serde_json::Value> = serde_json::from_str(&history).unwrap();
    let ends: Vec<_> = history.iter().map(|one| one["end"].as_str()).collect();
    assert!(
        !ends.contains(&Some("forced")) && !ends.contains(&Some("cancelled")),
        "{ends:?}"
    );
    assert_nothing_left(redis);
}

#[test]
fn a_suspended_waiter_that_loses_its_grant_by_force_gives_up_when_it_goes_on() {
    let redis = Redis::start();
    let (waiter, id) = granted(&redis, &[]);
    // Its command might start on a grant that is younger.
    let until = now() + Duration::from_millis(150);
    let force = ["release", "--force", "--id", &id, "--reason", "old", "a"];
    outcome(&mut redis.redlock(&force)).assert_code(0);
    assert!(!is_held(&redis));
    wait_until("the grant is old", || now() > until);
    goes_on_and_gives_up(&redis, waiter, "old");
}

#[test]
fn a_suspended_waiter_whose_grant_was_stopped_gives_up_when_it_goes_on() {
    for options in [&[][..], &["--slots", "1"]] {
        let redis = Redis::start();
        let (waiter, id) = granted(&redis, options);
        // Its command might start on a grant that is younger.
        let until = now() + Duration::from_millis(150);
        outcome(&mut redis.redlock(words!("stop -n --id {} --reason old a", &id))).assert_code(0);
        if options.is_empty() {
            redis.cli(&["PEXPIRE", "redlock:a", "1"]);
        }
        wait_until("the grant is over", || !is_held(&redis) && now() > until);
        goes_on_and_gives_up(&redis, waiter, "old");
    }
}

#[test]
fn a_waiter_that_finds_itself_stopped_while_its_grant_lasts_frees_the_lock_at_once() {
    let redis = Redis::start();
    // It polls, so that it asks before it starts its command.
    redis.cli(&["ACL", "SETUSER", "default", "-subscribe"]);
    let (waiter, id) = granted(&redis, &[]);
    outcome(&mut redis.redlock(words!("stop -n --id", &id, "--reason", "old", "a"))).assert_code(0);
    goes_on_and_gives_up(&redis, waiter, "old");
}

#[test]
fn a_waiter_that_was_stopped_before_it_confirmed_its_grant_is_told_so_each_time_and_frees_the_lock()
{
    for limit in ["1", "2", SHARED] {
        let redis = Redis::start();
        let ask = |token, limit, place, ticket| {
            let rest = ["0", "", "0", "0"];
            let args = [&[token, "30000", limit, WHO, place, ticket], &rest[..]].concat();
            call(&redis, "acquire", &args)
        };
        let release = |token| call(&redis, "release", &[token, "0", "", "0"]);
        assert_eq!(ask("holder", "1", "", "")[0], "1");
        assert_eq!(ask("waiter", limit, "poll", "")[0], "0");
        assert_eq!(ask("behind", "1", "poll", "")[0], "0");
        assert_eq!(release("holder"), ["1"]);
        let id = granted_ids(&redis).remove(0);
        assert_eq!(call(&redis, "stop", &[&id, WHO, "0"]), ["1"]);
        // The server gives it the lock, and a run that has started on it keeps it until it has ended.
        for (place, ticket) in [("poll", "1"), ("poll", ""), ("", "")] {
            let answer = ask("waiter", limit, place, ticket);
            assert_eq!((&*answer[0], &*without_time(&answer[1])), ("4", WHO));
            assert_eq!(granted_ids(&redis), std::slice::from_ref(&id));
        }
        let by = &call(&redis, "check", &["waiter", "30000"])[2];
        assert_eq!(without_time(by), WHO);
        assert_eq!(release("waiter"), ["1"]);
        assert!(!granted_ids(&redis).contains(&id));
        for (place, ticket) in [("poll", "1"), ("poll", ""), ("", "")] {
            let answer = ask("waiter", limit, place, ticket);
            assert_eq!((&*answer[0], &*without_time(&answer[1])), ("4", WHO));
        }
        assert_eq!(ask("behind", "1", "poll", "2")[0], "1");
    }
}

#[test]
fn while_stop_waits_it_shows_for_whom() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["--ttl", "5m", "a"]).ready();
    // It can't do what it is asked to.
    run.run.suspend();
    let mut terminal = on_terminal(&redis, &["stop", "a"]);
    terminal.wait_until("the line", |shown| shown.contains("s so far for "));
    run.run.resume();
    assert_eq!(terminal.finish().code(), Some(0));
    assert!(
        terminal.shown.contains("\"a\" is free after "),
        "{}",
        terminal.shown
    );
    run.run.finish().assert_exited(79);
}

#[test]
fn stop_announces_the_kill_only_of_a_run_that_has_seen_the_request() {
    let redis = Redis::start();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = Running::start(&mut redis.run("-q --kill-after 40s --ttl 90s a", script));
    run.expect_line("ready");
    wait_until("it tracks its lock", || redis.trackers() > 0);
    run.suspend();
    let mut terminal = on_terminal(&redis, &["stop", "a"]);
    terminal.resize(24, 160);
    terminal.wait_until("the line", |shown| shown.contains("waited 2s so far for "));
    assert!(!terminal.shown.contains("SIGKILL"), "{}", terminal.shown);
    run.resume();
    run.expect_line("asked");
    terminal.wait_until("the kill", |shown| shown.contains(", SIGKILL in "));
    outcome(&mut redis.redlock(&["release", "--force", "--yes", "a"])).assert_code(0);
    run.kill();
    terminal.finish();
}

#[test]
fn stop_of_a_suspended_holder_says_how_long_it_has_not_renewed_and_what_frees_the_lock() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["--ttl", "6s", "a"]).ready();
    run.run.suspend();
    let stop = outcome(&mut redis.redlock(&["stop", "a"]));
    let said = "no sign of life from ";
    stop.assert_code(79).assert_says(said);

    let run = Gated::start(&redis, &["--ttl", "14s", "b"]).ready();
    run.run.suspend();
    wait_until("its renewal is overdue", || {
        outcome(&mut redis.redlock(&["status", "b"]))
            .stdout
            .contains("s overdue: ")
    });
    let asked = outcome(&mut redis.redlock(&["stop", "-n", "b"]));
    asked
        .assert_code(0)
        .assert_says("to stop; \"b\" is handed over");
    let (_, typed) = asked
        .stderr
        .split_once("to free lock \"b\" now: redlock ")
        .unwrap();
    let words: Vec<&str> = typed.lines().next().unwrap().split(' ').collect();
    outcome(&mut redis.redlock(&words))
        .assert_code(0)
        .assert_says("its lease has not been renewed for ")
        .assert_says("make sure that its command is dead");
}

#[test]
fn stop_reports_a_silent_holder_whose_kill_is_overdue_and_an_interrupt_leaves_the_request() {
    let redis = Redis::start();
    let run = Gated::start(&redis, words!("--ttl 10m -k 1s a")).ready();
    run.run.suspend();
    let mut terminal = on_terminal(&redis, &["stop", "a"]);
    terminal.wait_until("the line", |shown| shown.contains("no sign of life from "));
    assert!(
        terminal
            .shown
            .contains("; to free lock \"a\" now: redlock release --force --id "),
        "{}",
        terminal.shown
    );
    terminal.type_in("\x03");
    let status = terminal.finish();
    assert_eq!(status.signal(), Some(libc::SIGINT));
    assert!(
        terminal
            .shown
            .contains("interrupted, but the request stands: "),
        "{}",
        terminal.shown
    );
    run.run.resume();
    run.run.finish().assert_exited(79);
}

#[test]
fn stop_says_when_the_holder_lost_its_lock_before_its_command_had_ended() {
    let redis = Redis::start();
    let mut holder =
        Running::start(&mut redis.run("--ttl 6s -k 1s a", "echo ready; exec sleep 60"));
    holder.expect_line("ready");
    holder.suspend();
    outcome(&mut redis.redlock(&["stop", "a"]))
        .assert_code(79)
        .assert_says("its lease expired before its command had ended; the command may still run");
    holder.resume();
    holder.finish().assert_code(79);
}

#[test]
fn stop_of_several_holders_says_when_any_of_them_lost_its_lock_before_its_command_had_ended() {
    let each = |lost: usize| {
        let redis = Redis::start();
        let options = "--slots 2 --ttl 6s -k 1s a";
        let holders = [0, 1].map(|_| {
            let mut holder = Running::start(&mut redis.run(options, "echo ready; exec sleep 60"));
            holder.expect_line("ready");
            holder
        });
        holders[lost].suspend();
        outcome(&mut redis.redlock(&["stop", "--all", "a"]))
            .assert_code(79)
            .assert_says(
                "its lease expired before its command had ended; the command may still run",
            );
        holders[lost].resume();
        for holder in holders {
            holder.finish().assert_code(79);
        }
    };
    std::thread::scope(|scope| {
        for lost in [0, 1] {
            scope.spawn(move || each(lost));
        }
    });
}

#[test]
fn stop_of_several_holders_asks_none_of_them_where_no_process_watches_over_one() {
    let redis = Redis::start();
    let acquire = || {
        let acquired = outcome(&mut redis.redlock(words!("acquire --slots 2 a")));
        acquired.assert_code(0);
    };
    for is_first in [true, false] {
        if is_first {
            acquire();
        }
        let run = Gated::start(&redis, words!("--slots 2 a")).ready();
        if !is_first {
            acquire();
        }
        outcome(&mut redis.redlock(words!("stop --all --no-wait a")))
            .assert_code(79)
            .assert_says("no redlock process supervises ");
        run.end();
        outcome(&mut redis.redlock(words!("release -q --force a"))).assert_code(0);
    }
}

#[test]
fn stop_gives_up_when_redis_has_been_away_for_as_long_as_the_lease() {
    let redis = Redis::start();
    let mut holder = Running::start(&mut redis.run(
        "--ttl 8s -k 4s a",
        "trap '' TERM; echo ready; while :; do sleep 0.1; done",
    ));
    holder.expect_line("ready");
    let stop = Running::start(&mut redis.redlock(&["stop", "REDLOCK_REDIS_TIMEOUT=2s", "a"]));
    wait_until("it has asked", || {
        redis.keys().iter().any(|key| {
            key.ends_with(":notices") && redis.cli(&["HKEYS", key]).contains("cancelled")
        })
    });
    redis.stall();
    stop.finish()
        .assert_code(69)
        .assert_says("couldn't confirm that it did");
    redis.resume();
    holder.finish().assert_code(79);
}

#[test]
fn stop_of_several_holders_waits_for_redis_for_as_long_as_the_longest_lease() {
    let redis = Redis::start();
    let script = r#"trap '' TERM; echo ready; while [ ! -e "$HOME/end" ]; do sleep 0.05; done"#;
    let start = |ttl: &str| {
        let options = format!("--shared --ttl {ttl} -k 90s a");
        let mut holder = Running::start(&mut redis.run(&options, script));
        holder.expect_line("ready");
        holder
    };
    let (long, short) = (start("3m"), start("6s"));
    let stop = "REDLOCK_REDIS_TIMEOUT=1s exec redlock stop -v --all a 2>&1";
    let mut stop = Running::start(&mut directly(&redis, &["sh", "-c", stop]));
    short.finish().assert_code(79);
    redis.stall();
    // So many take longer than the shorter lease.
    let mut in_vain = 0;
    while in_vain < 7 {
        in_vain += usize::from(stop.line().contains("no answer in time"));
    }
    redis.resume();
    fs::write(redis.dir.path().join("end"), "").unwrap();
    stop.finish().assert_code(0);
    long.finish().assert_code(79);
    assert_nothing_left(&redis);
}

#[test]
fn of_several_slots_one_that_ends_is_seen_soon() {
    let redis = Redis::start();
    let start = || {
        let mut holder = Running::start(&mut redis.run("--slots 2 a", "echo ready; exec sleep 60"));
        holder.expect_line("ready");
        holder
    };
    let mut other = start();
    // Looks at the usual pace would see it after two seconds each time; a busy machine is late now and then.
    let is_soon = (0..10).any(|_| {
        let run = start();
        let holders = locks(&redis, "a")[0]["holders"].clone();
        let mut holders = holders.as_array().unwrap().iter();
        let hold = holders.find(|holder| holder["pid"] == run.pid()).unwrap();
        let stop = ["stop", "a", "--id", hold["id"].as_str().unwrap()];
        let stop = outcome(&mut redis.redlock(&stop));
        stop.assert_code(0).assert_says("was handed over after ");
        run.finish().assert_code(79);
        stop.stderr.contains("after 0.") || stop.stderr.contains("after 1.")
    });
    assert!(is_soon && !other.has_ended());
}

#[test]
fn a_yes_counts_also_when_the_connection_was_closed_meanwhile() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    let mut terminal = on_terminal(&redis, &["release", "--force", "a"]);
    terminal.wait_until("the question", |shown| shown.ends_with("[y/N] "));
    redis.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    terminal.type_in("y\n");
    assert_eq!(terminal.finish().code(), Some(0), "{}", terminal.shown);
    run.run.finish().assert_exited(79);
}

#[test]
fn what_was_asked_of_a_holder_is_seen_by_all_until_it_has_ended() {
    let redis = Redis::start();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.01; done";
    let mut run = Running::start(&mut redis.run("--kill-after 20s --ttl 60s a", script));
    run.expect_line("ready");
    wait_until("it tracks its lock", || redis.trackers() > 0);
    let script = "exec redlock run a -- true 2>&1";
    let mut waiter = Running::start(&mut directly(&redis, &["sh", "-c", script]));
    waiter.wait_until_queued(&redis);
    let stop = ["stop", "--no-wait", "--reason", "hung", "a"];
    outcome(&mut redis.redlock(&stop)).assert_code(0);
    run.expect_line("asked");
    let hold = locks(&redis, "a")[0]["holders"][0].clone();
    let stopping = &hold["stopping"];
    assert_eq!(stopping["reason"], "hung", "{hold}");
    assert!(
        (10_000..20_000).contains(&stopping["kill_in_ms"].as_u64().unwrap()),
        "{hold}"
    );
    assert!(
        stopping["since"].is_string() && stopping["pid"].is_u64(),
        "{hold}"
    );
    let shown = outcome(&mut redis.redlock(&["status", "a"])).stdout;
    for part in ["stopping, SIGKILL in ", "(asked by ", ": hung)"] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let table = outcome(&mut redis.redlock(&["status"])).stdout;
    assert!(table.contains("stopping"), "{table}");
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"]))
        .assert_code(75)
        .assert_says("stopping, SIGKILL in ")
        .assert_says("(asked by ");
    // The waiter is told at once.
    while !waiter.line().contains("stopping, SIGKILL in ") {}
    outcome(&mut redis.redlock(&["release", "--force", "--yes", "a"])).assert_code(0);
    run.signal(Signal::SIGKILL);
    waiter.finish().assert_code(0);
}

#[test]
fn under_sudo_others_see_who_called_it_unless_a_name_is_given() {
    let redis = Redis::start();
    let by_anna = |words: &[&str]| {
        let mut command = redis.redlock(words);
        command.env("USER", "root").env("SUDO_USER", "anna");
        command
    };
    let anna = format!("anna (root)@{}", host());
    let start = |command: &mut Command| {
        let mut run = Running::start(command);
        run.expect_line("ready");
        run
    };
    let words = words!("run -q a -- sh -c", "echo ready; exec sleep 60");
    let run = start(&mut by_anna(words));
    let table = outcome(&mut redis.redlock(&["status"])).stdout;
    assert!(table.contains(&format!("  {anna}  ")), "{table}");
    outcome(&mut by_anna(words!("stop a"))).assert_code(0);
    run.finish().assert_says(&format!("{anna} (pid "));
    let run = start(&mut by_anna(words));
    outcome(&mut by_anna(words!("release --force --yes a"))).assert_code(0);
    run.finish()
        .assert_says(&format!("forced free by {anna} (pid "));
    outcome(&mut by_anna(words!("freeze a --reason x"))).assert_code(0);
    let screen = outcome(&mut redis.redlock(&["status", "a"])).stdout;
    assert!(screen.contains(&format!(" by {anna} (pid ")), "{screen}");
    let mut named = by_anna(words!("freeze a --reason y"));
    outcome(named.env("REDLOCK_WHO", "ops")).assert_code(0);
    let screen = outcome(&mut redis.redlock(&["status", "a"])).stdout;
    assert!(screen.contains(" by ops, 29d"), "{screen}");
    // Root who calls sudo is just root.
    let mut plain = by_anna(words!("freeze a --reason z"));
    outcome(plain.env("SUDO_USER", "root")).assert_code(0);
    let screen = outcome(&mut redis.redlock(&["status", "a"])).stdout;
    assert!(
        screen.contains(&format!(" by root@{} (pid ", host())),
        "{screen}"
    );
}

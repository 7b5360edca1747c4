//! Freezing: the holder finishes, no new holder is admitted, and all see why.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{
    Gate, Gated, Outcome, Redis, Running, assert_nothing_left, now, outcome, queued, wait_until,
};

fn redlock(redis: &Redis, arguments: &[&str]) -> Outcome {
    outcome(&mut redis.redlock(arguments))
}

fn freeze(redis: &Redis, options: &[&str]) -> Outcome {
    redlock(
        redis,
        &[&["freeze", "a", "--reason", "release night"], options].concat(),
    )
}

/// The arguments of a run that ignores the freeze.
fn ignoring<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--ignore-freeze"], options].concat()
}

#[test]
fn the_holder_of_a_frozen_lock_finishes_and_no_other_gets_in_until_it_is_thawed() {
    for mode in [&[][..], &["--shared"], &["--slots", "3"]] {
        let redis = Redis::start();
        let holder = Gated::start(&redis, &[mode, &["a"]].concat()).ready();
        freeze(&redis, &[]).assert_code(0).assert_says("may finish");
        let refused = redlock(
            &redis,
            &[&["run", "-n"], mode, &["a", "--", "true"]].concat(),
        );
        refused
            .assert_code(75)
            .assert_says("is frozen")
            .assert_says("release night");
        let waiter = queued(
            &redis,
            &[&["run", "-q"], mode, &["a", "--", "echo", "in"]].concat(),
        );
        holder.end();
        // It has been looked at after the release, and is still frozen.
        redlock(&redis, &["run", "-n", "a", "--", "true"]).assert_code(75);
        redlock(&redis, &["acquire", "-n", "a"]).assert_code(75);
        assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
        redlock(&redis, &["thaw", "a"])
            .assert_code(0)
            .assert_says("is thawed; it was frozen by");
        assert_eq!(waiter.finish().assert_code(0).stdout, "in\n");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_waiter_sees_who_froze_it_and_why() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiter = queued(&redis, &["run", "-w", "8s", "a", "--", "true"]);
    freeze(&redis, &[]).assert_code(0);
    let end = waiter.finish();
    end.assert_code(75)
        .assert_says("still held by")
        .assert_says(": release night");
    holder.end();
}

#[test]
fn status_shows_a_frozen_lock() {
    let redis = Redis::start();
    freeze(&redis, &["--for", "1h"])
        .assert_code(0)
        .assert_says("for 1h")
        .assert_says("it has no holder");
    let table = redlock(&redis, &["status"]).stdout;
    assert!(
        table.contains("frozen") && table.contains("(release night)"),
        "{table}"
    );
    assert!(table.contains("59m"), "{table}");
    let json: Value = serde_json::from_str(&redlock(&redis, &["status", "--json"]).stdout).unwrap();
    let lock = &json[0];
    assert_eq!(
        (&lock["held"], &lock["mode"]),
        (&false.into(), &Value::Null)
    );
    let frozen = &lock["frozen"];
    assert_eq!(frozen["reason"], "release night");
    assert!(frozen["pid"].is_u64() && frozen["host"].is_string() && frozen["user"].is_string());
    assert!(frozen["since"].as_str() < frozen["until"].as_str());
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    assert_eq!(redlock(&redis, &["status"]).stdout, "no lock is held\n");
    assert_nothing_left(&redis);
}

#[test]
fn a_freeze_expires_and_a_waiter_gets_in_then() {
    let redis = Redis::start();
    freeze(&redis, &["--for", "700ms"]).assert_code(0);
    redlock(&redis, &["run", "-w", "60s", "a", "--", "true"]).assert_code(0);
    // Behind a holder, and with a waiter that comes late.
    let holder = Gated::start(&redis, &["a"]).ready();
    freeze(&redis, &["--for", "700ms"]).assert_code(0);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    holder.end();
    waiter.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_lock_stays_frozen_when_its_holder_dies_or_is_forced_out() {
    let redis = Redis::start();
    let mut holder = Gated::start(&redis, &["a"]).ready();
    freeze(&redis, &[]).assert_code(0);
    holder.run.kill();
    redis.cli(&["PEXPIRE", "redlock:a", "1"]);
    wait_until("the lease is over", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    redlock(&redis, &["run", "-n", "a", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
    assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    let forced = Gated::start(&redis, &["a"]).ready();
    freeze(&redis, &[]).assert_code(0);
    redlock(&redis, &["release", "--force", "-q", "a"]).assert_code(0);
    forced.run.finish().assert_code(79);
    redlock(&redis, &["run", "-n", "a", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
    redlock(&redis, &["release", "--force", "a"])
        .assert_code(79)
        .assert_says("not held");
}

#[test]
fn a_job_that_holds_it_may_use_it_in_nested_runs() {
    let redis = Redis::start();
    let script = "redlock freeze -q a --reason x && redlock run a -- echo inner";
    let end = redlock(&redis, &["run", "a", "-c", script]);
    assert_eq!(end.assert_code(0).stdout, "inner\n");
}

#[test]
fn freezing_again_changes_the_reason_and_the_end_and_thawing_twice_is_fine() {
    let redis = Redis::start();
    freeze(&redis, &[])
        .assert_code(0)
        .assert_says("at most for 30d");
    redlock(&redis, words!("freeze a --reason other --for 1m"))
        .assert_code(0)
        .assert_says("previously frozen by")
        .assert_says("release night");
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left <= 60_000);
    redlock(&redis, &["thaw", "a"])
        .assert_code(0)
        .assert_says("is thawed; it was frozen by");
    redlock(&redis, &["thaw", "a"])
        .assert_code(0)
        .assert_says("was not frozen");
    redlock(&redis, &["freeze", "a"]).assert_code(64);
    redlock(&redis, &["freeze", "a", "--reason", "x", "--for", "31d"]).assert_code(64);
    assert_nothing_left(&redis);
}

#[test]
fn status_shows_the_holder_and_the_waiters_of_a_frozen_lock_and_who_froze_it() {
    let redis = Redis::start();
    for mode in [&[][..], &["--shared"]] {
        let holder = Gated::start(&redis, &[mode, &["a"]].concat()).ready();
        freeze(&redis, &[]).assert_code(0);
        let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
        let json = redlock(&redis, &["status", "--json"]).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        let lock = &json[0];
        assert_eq!(lock["held"], true);
        assert_eq!(lock["holders"][0]["pid"], holder.run.pid());
        assert_eq!(lock["waiters"][0]["pid"], waiter.pid());
        assert_eq!(lock["frozen"]["reason"], "release night");
        let table = redlock(&redis, &["status"]).stdout;
        for text in ["frozen", "(release night)", "waiting #1"] {
            assert!(table.contains(text), "{text}: {table}");
        }
        redlock(&redis, &["thaw", "a"])
            .assert_code(0)
            .assert_says("is thawed; it was frozen by");
        holder.end();
        waiter.finish().assert_code(0);
        let json = redlock(&redis, &["status", "--json", "a"]).stdout;
        assert!(json.contains("\"frozen\":null"), "{json}");
    }
}

#[test]
fn thawing_hands_the_lock_on_at_once_and_in_order() {
    let redis = Redis::start();
    freeze(&redis, &["-q"]).assert_code(0);
    let waiters = [(); 3].map(|()| Gated::queued(&redis, &["-q", "a"]));
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    // The first has it before it asks again, and so have the next ones.
    for waiter in waiters {
        assert_eq!(redis.holder("a"), Some(waiter.run.pid()));
        waiter.ready().end();
    }
    assert_nothing_left(&redis);
}

#[test]
fn a_group_waits_for_the_thaw_and_comes_in_together() {
    for mode in [&["--shared"][..], &["--slots", "3"]] {
        let redis = Redis::start();
        freeze(&redis, &["-q"]).assert_code(0);
        let mut all: Vec<Gated> = (0..3)
            .map(|_| Gated::queued(&redis, &[mode, &["-q", "a"]].concat()))
            .collect();
        // Its end is set once all of them wait, however long that has taken.
        let began = now();
        freeze(&redis, &["-q", "--for", "600ms"]).assert_code(0);
        // All three at a time.
        for gated in &mut all {
            gated.run.expect_line("ready");
        }
        assert!(now().saturating_sub(began) > Duration::from_millis(400));
        for gated in all {
            gated.end();
        }
        assert_nothing_left(&redis);
    }
}

#[test]
fn the_holder_goes_on_under_a_freeze_for_longer_than_its_ttl_and_may_extend_and_check() {
    let goes_on = |mode: &[&str]| {
        let redis = Redis::start();
        let script =
            "redlock freeze -q a --reason x; redlock extend && redlock extend --for 7s && echo ready
            sleep 7.5; redlock extend --for 1s && echo ours";
        let hold = [&["run", "--ttl", "6s"], mode, &["a", "-c", script]].concat();
        let end = redlock(&redis, &hold);
        end.assert_code(0).assert_silent();
        assert_eq!(end.stdout, "ready\nours\n");
        redlock(&redis, &["run", "-n", "a", "--", "true"]).assert_code(75);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| goes_on(&[]));
        scope.spawn(|| goes_on(&["--shared"]));
    });
}

#[test]
fn a_killed_holder_leaves_a_frozen_lock() {
    for mode in [&[][..], &["--shared"]] {
        let redis = Redis::start();
        let mut holder = Gated::start(&redis, &[mode, &["--ttl", "2s", "a"]].concat()).ready();
        let waiter = queued(&redis, &["run", "-q", "a", "--", "echo", "in"]);
        freeze(&redis, &["-q"]).assert_code(0);
        holder.run.kill();
        wait_until("a waiter has seen the end of the lease", || {
            redis.cli(&["GET", "redlock:a"]) == "redlock:frozen"
        });
        redlock(&redis, &["thaw", "a"]).assert_code(0);
        assert_eq!(waiter.finish().assert_code(0).stdout, "in\n");
        assert_nothing_left(&redis);
    }
}

#[test]
fn another_clients_lock_may_be_frozen_and_a_kept_one() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "60000"]);
    freeze(&redis, &[]).assert_code(0).assert_says("may finish");
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "theirs");
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    redis.cli(&["PEXPIRE", "redlock:a", "1"]);
    wait_until("the waiter has seen that it is gone", || {
        redis.cli(&["GET", "redlock:a"]) == "redlock:frozen"
    });
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    waiter.finish().assert_code(0);
    redlock(&redis, words!("run --hold-at-least 1h a -- true")).assert_code(0);
    freeze(&redis, &[]).assert_code(0);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    redis.cli(&["PEXPIRE", "redlock:a", "1"]);
    wait_until("the waiter has seen that it is gone", || {
        redis.cli(&["GET", "redlock:a"]) == "redlock:frozen"
    });
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    waiter.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn freezing_one_lock_leaves_others_alone_and_several_are_taken_when_all_are_thawed() {
    let redis = Redis::start();
    freeze(&redis, &["-q"]).assert_code(0);
    redlock(&redis, &["run", "-n", "b", "--", "true"]).assert_code(0);
    let both = queued(&redis, &["run", "-q", "a", "b", "--", "true"]);
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    both.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn patience_ends_while_a_lock_is_frozen_and_so_does_a_signal() {
    let redis = Redis::start();
    freeze(&redis, &["-q"]).assert_code(0);
    redlock(&redis, &["run", "-w", "200ms", "a", "--", "true"])
        .assert_code(75)
        .assert_says("release night");
    redlock(&redis, &["run", "-n", "-E", "0", "-q", "a", "--", "true"])
        .assert_code(0)
        .assert_silent();
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    waiter.signal(nix::sys::signal::Signal::SIGINT);
    waiter.finish().assert_code(130);
    assert_eq!(redis.queue("a"), [0; 0]);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "redlock:frozen");
}

#[test]
fn waiters_for_a_frozen_lock_whose_member_is_dead_do_not_ask_again_and_again() {
    for mode in [&["--shared"][..], &["--slots", "3"]] {
        let redis = Redis::start();
        // It isn't known whether it lives, and its lease ends before the key does.
        let acquire = [&["acquire", "--ttl", "60s"], mode, &["a"]].concat();
        redlock(&redis, &acquire).assert_code(0);
        freeze(&redis, &[]).assert_code(0);
        let holders = "{redlock:a}:holders";
        let member = redis.cli(&["ZRANGE", holders, "0", "0"]);
        let over = (now().as_millis() - 1).to_string();
        assert_eq!(
            redis.cli(&["ZADD", holders, "XX", "CH", &over, &member]),
            "1"
        );
        let run = ["run", "-q", "a", "--", "echo", "ran"];
        let scripts = || redis.calls("evalsha") + redis.calls("eval");
        let unasked = scripts();
        let waiter = Running::start(&mut redis.redlock(&run));
        wait_until("it has asked", || scripts() > unasked);
        let before = scripts();
        std::thread::sleep(Duration::from_millis(500));
        let sent = scripts() - before;
        assert!(sent < 20, "{mode:?}: {sent} scripts in 0.5 s");
        redlock(&redis, &["thaw", "a"]).assert_code(0);
        waiter.finish().assert_code(0);
    }
}

#[test]
fn runs_that_ignore_a_freeze_go_in_one_at_a_time_ahead_of_all_that_it_keeps_out() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let other = queued(&redis, &["run", "-q", "a", "--", "echo", "other"]);
    freeze(&redis, &[]).assert_code(0);
    // It waits for the holder, as all do.
    redlock(&redis, &ignoring(&["-n", "a", "--", "true"])).assert_code(75);
    let mut gate = Gate::new(&redis);
    let script = "echo in; read -r go <~/gate";
    let mut first = Running::start(&mut redis.redlock(&ignoring(&["-q", "a", "-c", script])));
    first.wait_until_queued(&redis);
    holder.end();
    first.expect_line("in");
    redlock(&redis, &ignoring(&["-n", "a", "--", "true"])).assert_code(75);
    gate.open();
    first.finish().assert_code(0);
    // Twice, and in a script.
    redlock(&redis, &ignoring(&["-n", "a", "--", "true"])).assert_code(0);
    let acquired = redlock(
        &redis,
        words!("acquire -n --ignore-freeze --format token a"),
    );
    let token = acquired.assert_code(0).stdout.trim().to_owned();
    let mut release = redis.redlock(&["release", "a"]);
    outcome(release.env("REDLOCK_TOKEN", token).env("REDLOCK_NAME", "a")).assert_code(0);
    // All others are out, even if a run that ignores the freeze starts them, or the host has a variable for it.
    let nested = ["a", "--", "redlock", "run", "-n", "b", "--", "true"];
    redlock(&redis, words!("freeze b --new --reason x")).assert_code(0);
    redlock(&redis, &ignoring(&nested)).assert_code(75);
    let mut by_variable = redis.redlock(&["run", "-n", "a", "--", "true"]);
    outcome(by_variable.env("REDLOCK_IGNORE_FREEZE", "1"))
        .assert_code(75)
        .assert_says("is frozen");
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    assert_eq!(other.finish().assert_code(0).stdout, "other\n");
    // Once nothing is frozen, it is a run as any other.
    redlock(&redis, &ignoring(&["-n", "a", "--", "true"])).assert_code(0);
    redlock(&redis, &["thaw", "b"]).assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_run_that_is_kept_out_does_not_end_a_holder() {
    // One that ignores the freeze, and one that was there before it.
    for (mode, ignores) in [
        (&[][..], true),
        (&["--slots", "2"], true),
        (&[], false),
        (&["--slots", "2"], false),
    ] {
        let redis = Redis::start();
        let mut gate = Gate::new(&redis);
        // What it has extended is its own as well.
        let script = "redlock extend -q --for 1m; echo in; read -r go <~/gate";
        let words = [mode, &["-q", "a", "-c", script]].concat();
        let mut holder = if ignores {
            freeze(&redis, &["--new"]).assert_code(0);
            Running::start(&mut redis.redlock(&ignoring(&words)))
        } else {
            Running::start(&mut redis.redlock(&[&["run"], &words[..]].concat()))
        };
        holder.expect_line("in");
        if !ignores {
            freeze(&redis, &[]).assert_code(0);
        }
        let others = [
            &["--supersede"][..],
            &["--supersede", "--cancel-in-progress"],
        ]
        .map(|options| {
            let words = [&["run", "-q"], options, mode, &["a", "--", "true"]].concat();
            let other = Running::start(&mut redis.redlock(&words));
            wait_until("the last one waits", || {
                redis
                    .cli(&["HGET", "{redlock:a}:state", "superseded_by"])
                    .contains(&format!("\"pid\":{},", other.pid()))
            });
            other
        });
        let shown = redlock(&redis, &["status", "a"]).stdout;
        assert!(!shown.contains("stopping, "), "{shown}");
        gate.open();
        holder.finish().assert_code(0);
        redlock(&redis, &["thaw", "a"]).assert_code(0);
        let [first, last] = others;
        first.finish().assert_code(75);
        last.finish().assert_code(0);
    }
}

#[test]
fn a_run_that_ignores_a_freeze_gets_a_free_lock_at_once_though_it_makes_others_give_up() {
    let redis = Redis::start();
    freeze(&redis, &["--new"]).assert_code(0);
    let other = queued(&redis, &["run", "-q", "a", "--", "true"]);
    let words = ignoring(&["-n", "--supersede", "a", "--", "true"]);
    redlock(&redis, &words).assert_code(0);
    other.finish().assert_code(75);
    let words = ignoring(&["-n", "--seq", "7", "a", "--", "true"]);
    redlock(&redis, &words).assert_code(0);
    redlock(&redis, &["thaw", "a"]).assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_freeze_of_two_locks_is_said_of_each_and_waits_for_the_holders_of_both() {
    for [kept, over] in [["a", "b"], ["b", "a"]] {
        let redis = Redis::start();
        let holders = [kept, over].map(|name| Gated::start(&redis, &[name]).ready());
        let freezing = Running::start(
            &mut redis.redlock(&["freeze", "a", "b", "--drain", "--reason", "both"]),
        );
        wait_until("both are frozen", || {
            ["a", "b"].iter().all(|name| {
                let state = format!("{{redlock:{name}}}:state");
                redis.cli(&["HEXISTS", &state, "frozen"]) == "1"
            })
        });
        let [holder, ended] = holders;
        ended.end();
        redlock(&redis, &["thaw", kept]).assert_code(0);
        freezing
            .finish()
            .assert_code(79)
            .assert_says("lock \"a\" is frozen until")
            .assert_says("lock \"b\" is frozen until")
            .assert_says(&format!("lock \"{kept}\" isn't frozen any more"));
        holder.end();
    }
}

#[test]
fn a_freeze_that_ends_before_the_holder_is_no_success_of_the_command_that_waits_for_that() {
    type End = fn(&Redis);
    let ends: [(&str, &str, End); 4] = [
        ("1h", "isn't frozen any more", |redis| {
            redlock(redis, &["thaw", "a"]).assert_code(0);
        }),
        ("1h", "has frozen lock \"a\" anew", |redis| {
            freeze(redis, &[]).assert_code(0);
        }),
        ("1h", "isn't frozen any more", |redis| {
            redis.cli(&["HDEL", "{redlock:a}:state", "frozen"]);
        }),
        ("300ms", "isn't frozen any more", |_| {}),
    ];
    for (long, says, end) in ends {
        let redis = Redis::start();
        let holder = Gated::start(&redis, &["a"]).ready();
        let options = ["freeze", "a", "--drain", "--reason", "dump", "--for", long];
        let freezing = Running::start(&mut redis.redlock(&options));
        wait_until("it is frozen", || {
            redis.cli(&["HEXISTS", "{redlock:a}:state", "freezes"]) == "1"
        });
        end(&redis);
        freezing.finish().assert_code(79).assert_says(says);
        holder.end();
    }
}

#[test]
fn a_freeze_that_is_interrupted_while_it_waits_says_that_it_goes_on() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let options = ["freeze", "a", "b", "--drain", "--reason", "dump"];
    let freezing = Running::start(&mut redis.redlock(&options));
    wait_until("it looks at the lock, beside its holder", || {
        redis.trackers() >= 2
    });
    freezing.signal(Signal::SIGINT);
    let end = freezing.finish();
    end.assert_killed_by(libc::SIGINT);
    end.assert_says("leaves all frozen until `redlock thaw a b`");
    holder.end();
    redlock(&redis, &["run", "-n", "a", "--", "true"]).assert_code(75);
}

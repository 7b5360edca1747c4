//! Freezing: the holder finishes, no new holder is admitted, and all see why.

use crate::support::prelude::*;

/// Returns the words of a line.
fn split(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn freeze(redis: &Redis, options: &str) -> Outcome {
    ends(redis, &format!("freeze a --reason release-night {options}"))
}

/// Thaws "a", which is frozen.
#[track_caller]
fn thaw(redis: &Redis) {
    let end = ends(redis, "thaw a");
    let says = "is thawed; it was frozen by";
    end.assert_said(0, says);
}

/// A run that doesn't wait for "a" is refused, and says why.
#[track_caller]
fn assert_frozen(redis: &Redis) {
    let end = ends(redis, "run -n a -- true");
    end.assert_said(75, "is frozen");
    end.assert_says("release-night");
}

/// Starts a run of "a" with these options, whose COMMAND runs.
fn holding(redis: &Redis, options: &str) -> Gated {
    Gated::start(redis, &split(&format!("{options} a"))).ready()
}

/// Waits until a waiter has seen the end of the lease.
#[track_caller]
fn wait_for_the_end(redis: &Redis) {
    wait_until("a waiter has seen the end of the lease", || {
        redis.cli(&["GET", "redlock:a"]) == "redlock:frozen"
    });
}

#[test]
fn the_holder_of_a_frozen_lock_finishes_and_no_other_gets_in_until_it_is_thawed() {
    for mode in ["", "--shared", "--slots 3"] {
        let redis = Redis::left_empty();
        let holder = holding(&redis, mode);
        freeze(&redis, "").assert_said(0, "may finish");
        let refused = ends(&redis, &format!("run -n {mode} a -- true"));
        refused.assert_said(75, "is frozen");
        refused.assert_says("release-night");
        let waiter = queued(&redis, &split(&format!("run -q {mode} a -- echo in")));
        holder.end();
        // It has been looked at after the release, and is still frozen.
        assert_frozen(&redis);
        ends(&redis, "acquire -n a").assert_code(75);
        assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
        thaw(&redis);
        waiter.finish().assert_printed(0, "in\n");
    }
}

#[test]
fn a_waiter_sees_who_froze_it_and_why() {
    let redis = Redis::start();
    let holder = holding(&redis, "");
    let waiter = queued(&redis, &["run", "-w", "8s", "a", "--", "true"]);
    freeze(&redis, "").assert_code(0);
    let end = waiter.finish_saying(75, "still held by");
    end.assert_says(": release-night");
    holder.end();
}

#[test]
fn status_shows_who_froze_a_lock_until_when_and_beside_that_its_holder_and_its_waiters() {
    let redis = Redis::start();
    let shown = || -> Value {
        let json = ends(&redis, "status --json a").stdout;
        serde_json::from_str::<Value>(&json).unwrap()[0].take()
    };
    let end = freeze(&redis, "--for 1h");
    end.assert_said(0, "for 1h");
    end.assert_says("it has no holder");
    let table = ends(&redis, "status").stdout;
    assert!(table.contains("59m"), "{table}");
    let frozen = shown()["frozen"].take();
    assert!(frozen["pid"].is_u64() && frozen["host"].is_string() && frozen["user"].is_string());
    assert!(frozen["since"].as_str() < frozen["until"].as_str());
    thaw(&redis);
    assert_eq!(ends(&redis, "status").stdout, "no lock is held\n");
    assert_nothing_left(&redis);
    for mode in ["", "--shared"] {
        let holder = holding(&redis, mode);
        freeze(&redis, "").assert_code(0);
        let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
        let lock = shown();
        assert_eq!(lock["held"], true);
        assert_eq!(lock["holders"][0]["pid"], holder.run.pid());
        assert_eq!(lock["waiters"][0]["pid"], waiter.pid());
        assert_eq!(lock["frozen"]["reason"], "release-night");
        let table = ends(&redis, "status").stdout;
        assert_has(&table, &["frozen", "(release-night)", "waiting #1"]);
        thaw(&redis);
        holder.end();
        waiter.finish().assert_code(0);
        assert_eq!(shown()["frozen"], Value::Null);
    }
}

#[test]
fn a_freeze_expires_and_a_waiter_gets_in_then() {
    let redis = Redis::left_empty();
    freeze(&redis, "--for 700ms").assert_code(0);
    ends(&redis, "run -w 60s a -- true").assert_code(0);
    // Behind a holder, and with a waiter that comes late.
    let holder = holding(&redis, "");
    freeze(&redis, "--for 700ms").assert_code(0);
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    holder.end();
    waiter.finish().assert_code(0);
}

#[test]
fn a_lock_stays_frozen_when_its_holder_dies_is_forced_out_or_is_stopped() {
    let redis = Redis::start();
    let mut holder = holding(&redis, "");
    freeze(&redis, "").assert_code(0);
    holder.run.kill();
    redis.cli(&["PEXPIRE", "redlock:a", "1"]);
    redis.await_free("a");
    assert_frozen(&redis);
    assert_eq!(redis.cli(words!("SET redlock:a plain NX PX 1000")), "");
    thaw(&redis);
    let forced = holding(&redis, "");
    freeze(&redis, "").assert_code(0);
    ends(&redis, "release --force -q a").assert_code(0);
    forced.run.finish().assert_code(79);
    assert_frozen(&redis);
    ends(&redis, "release --force a").assert_said(79, "not held");
    thaw(&redis);
    let stopped = holding(&redis, "");
    freeze(&redis, "").assert_code(0);
    let waiter = queued(&redis, words!("run -q a -- true"));
    ends(&redis, "stop -n a").assert_said(0, "to stop; \"a\" stays frozen after that");
    ends(&redis, "stop a")
        .assert_said(0, "\"a\" is free after ")
        .assert_says(", and stays frozen");
    stopped.run.finish().assert_exited(79);
    assert_frozen(&redis);
    thaw(&redis);
    waiter.finish().assert_code(0);
}

#[test]
fn a_job_that_holds_it_may_use_it_in_nested_runs() {
    let redis = Redis::start();
    let script = "redlock freeze -q a --reason x && redlock run a -- echo inner";
    outcome(&mut redis.run("a", script)).assert_printed(0, "inner\n");
}

#[test]
fn freezing_again_changes_the_reason_and_the_end_and_thawing_twice_is_fine() {
    let redis = Redis::left_empty();
    let end = freeze(&redis, "");
    end.assert_said(0, "at most for 30d");
    let end = ends(&redis, "freeze a --reason other --for 1m");
    end.assert_said(0, "previously frozen by");
    end.assert_says("release-night");
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!(left <= 60_000);
    thaw(&redis);
    ends(&redis, "thaw a").assert_said(0, "was not frozen");
    ends(&redis, "freeze a").assert_code(64);
    ends(&redis, "freeze a --reason x --for 31d").assert_code(64);
}

#[test]
fn thawing_hands_the_lock_on_at_once_and_in_order() {
    let redis = Redis::left_empty();
    freeze(&redis, "-q").assert_code(0);
    let waiters = [(); 3].map(|()| Gated::queued(&redis, &["-q", "a"]));
    thaw(&redis);
    // The first has it before it asks again, and so have the next ones.
    for waiter in waiters {
        assert_eq!(redis.holder("a"), Some(waiter.run.pid()));
        waiter.ready().end();
    }
}

#[test]
fn a_group_waits_for_the_thaw_and_comes_in_together() {
    for mode in ["--shared", "--slots 3"] {
        let redis = Redis::left_empty();
        freeze(&redis, "-q").assert_code(0);
        let words = format!("{mode} -q a");
        let all = [(); 3].map(|()| Gated::queued(&redis, &split(&words)));
        // Its end is set once all of them wait, however long that has taken.
        let began = now();
        freeze(&redis, "-q --for 600ms").assert_code(0);
        // All three at a time.
        let all = all.map(Gated::ready);
        assert!(now().saturating_sub(began) > Duration::from_millis(400));
        for gated in all {
            gated.end();
        }
    }
}

#[test]
fn the_holder_goes_on_under_a_freeze_for_longer_than_its_ttl_and_may_extend_and_check() {
    let goes_on = |mode: &str| {
        let redis = Redis::start();
        let script =
            "redlock freeze -q a --reason x; redlock extend && redlock extend --for 7s && echo ready
            sleep 7.5; redlock extend --for 1s && echo ours";
        let end = outcome(&mut redis.run(&format!("--ttl 6s {mode} a"), script));
        end.assert_silent().assert_printed(0, "ready\nours\n");
        ends(&redis, "run -n a -- true").assert_code(75);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| goes_on(""));
        scope.spawn(|| goes_on("--shared"));
    });
}

#[test]
fn a_killed_holder_leaves_a_frozen_lock() {
    for mode in ["", "--shared"] {
        let redis = Redis::left_empty();
        let mut holder = holding(&redis, &format!("{mode} --ttl 2s"));
        let waiter = queued(&redis, &["run", "-q", "a", "--", "echo", "in"]);
        freeze(&redis, "-q").assert_code(0);
        holder.run.kill();
        wait_for_the_end(&redis);
        thaw(&redis);
        waiter.finish().assert_printed(0, "in\n");
    }
}

#[test]
fn another_clients_lock_may_be_frozen_and_a_kept_one() {
    let redis = Redis::left_empty();
    let outlive_and_thaw = || {
        let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
        redis.cli(&["PEXPIRE", "redlock:a", "1"]);
        wait_for_the_end(&redis);
        thaw(&redis);
        waiter.finish().assert_code(0);
    };
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "60000"]);
    freeze(&redis, "").assert_said(0, "may finish");
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "theirs");
    outlive_and_thaw();
    ends(&redis, "run --hold-at-least 1h a -- true").assert_code(0);
    freeze(&redis, "").assert_code(0);
    outlive_and_thaw();
}

#[test]
fn freezing_one_lock_leaves_others_alone_and_several_are_taken_when_all_are_thawed() {
    let redis = Redis::left_empty();
    freeze(&redis, "-q").assert_code(0);
    ends(&redis, "run -n b -- true").assert_code(0);
    let both = queued(&redis, &["run", "-q", "a", "b", "--", "true"]);
    thaw(&redis);
    both.finish().assert_code(0);
}

#[test]
fn patience_ends_while_a_lock_is_frozen_and_so_does_a_signal() {
    let redis = Redis::start();
    freeze(&redis, "-q").assert_code(0);
    ends(&redis, "run -w 200ms a -- true").assert_said(75, "release-night");
    let end = ends(&redis, "run -n -E 0 -q a -- true");
    end.assert_code(0).assert_silent();
    let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
    waiter.signal(Signal::SIGINT);
    waiter.finish().assert_code(130);
    assert_eq!(redis.queue("a"), [0; 0]);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "redlock:frozen");
}

#[test]
fn waiters_for_a_frozen_lock_whose_member_is_dead_do_not_ask_again_and_again() {
    for (mode, waits) in [
        ("--shared", "run -q a -- true"),
        ("--shared", "run -q --shared a -- true"),
        ("--slots 3", "run -q a -- true"),
        ("--slots 3", "acquire -q a"),
    ] {
        let redis = Redis::start();
        // It isn't known whether it lives, and its lease ends before the key does.
        ends(&redis, &format!("acquire --ttl 60s {mode} a")).assert_code(0);
        freeze(&redis, "").assert_code(0);
        let holders = "{redlock:a}:holders";
        let member = redis.cli(&["ZRANGE", holders, "0", "0"]);
        let over = (now().as_millis() - 1).to_string();
        let changed = redis.cli(&["ZADD", holders, "XX", "CH", &over, &member]);
        assert_eq!(changed, "1");
        let scripts = || redis.scripts();
        let unasked = scripts();
        let waiter = Running::start(&mut redis.redlock(&split(waits)));
        wait_until("it has asked", || scripts() > unasked);
        let before = scripts();
        std::thread::sleep(Duration::from_millis(500));
        let sent = scripts() - before;
        assert!(sent < 20, "{mode}, {waits}: {sent} scripts in 0.5 s");
        thaw(&redis);
        waiter.finish().assert_code(0);
    }
}

#[test]
fn runs_that_ignore_a_freeze_go_in_one_at_a_time_ahead_of_all_that_it_keeps_out() {
    let redis = Redis::left_empty();
    let ignoring = |words: &str| ends(&redis, &format!("run --ignore-freeze -n a {words}"));
    let holder = holding(&redis, "");
    let other = queued(&redis, &["run", "-q", "a", "--", "echo", "other"]);
    freeze(&redis, "").assert_code(0);
    // It waits for the holder, as all do.
    ignoring("-- true").assert_code(75);
    let mut gate = Gate::new(&redis);
    let script = "echo in; read -r go <~/gate";
    let mut first = Running::start(&mut redis.run("--ignore-freeze -q a", script));
    first.wait_until_queued(&redis);
    holder.end();
    first.expect_line("in");
    ignoring("-- true").assert_code(75);
    gate.open();
    first.finish().assert_code(0);
    // Twice, and in a script.
    ignoring("-- true").assert_code(0);
    let acquired = ends(&redis, "acquire -n --ignore-freeze --format token a");
    let token = acquired.assert_code(0).stdout.trim();
    let mut release = redis.redlock(&["release", "a"]);
    outcome(release.env("REDLOCK_TOKEN", token).env("REDLOCK_NAME", "a")).assert_code(0);
    // All others are out, even if a run that ignores the freeze starts them, or the host has a variable for it.
    ends(&redis, "freeze b --new --reason x").assert_code(0);
    ends(&redis, "run --ignore-freeze a -- redlock run -n b -- true").assert_code(75);
    ends(&redis, "REDLOCK_IGNORE_FREEZE=1 run -n a -- true").assert_said(75, "is frozen");
    thaw(&redis);
    other.finish().assert_printed(0, "other\n");
    // Once nothing is frozen, it is a run as any other.
    ignoring("-- true").assert_code(0);
    ends(&redis, "thaw b").assert_code(0);
}

#[test]
fn a_run_that_is_kept_out_does_not_end_a_holder() {
    // One that ignores the freeze, and one that was there before it.
    for options in [
        "--ignore-freeze ",
        "--ignore-freeze --slots 2",
        "",
        "--slots 2",
    ] {
        let redis = Redis::start();
        let mut gate = Gate::new(&redis);
        let mode = options.trim_start_matches("--ignore-freeze");
        let ignores = mode != options;
        if ignores {
            freeze(&redis, "--new").assert_code(0);
        }
        // What it has extended is its own as well.
        let script = "redlock extend -q --for 1m; echo in; read -r go <~/gate";
        let mut holder = Running::start(&mut redis.run(&format!("{options} -q a"), script));
        holder.expect_line("in");
        if !ignores {
            freeze(&redis, "").assert_code(0);
        }
        let others = ["", "--cancel-in-progress"].map(|option| {
            let line = format!("run -q --supersede {option} {mode} a -- true");
            let other = Running::start(&mut redis.redlock(&split(&line)));
            let pid = format!("\"pid\":{},", other.pid());
            wait_until("the last one waits", || {
                let last = redis.cli(words!("HGET {redlock:a}:state superseded_by"));
                last.contains(&pid)
            });
            other
        });
        let shown = ends(&redis, "status a").stdout;
        assert!(!shown.contains("stopping, "), "{shown}");
        gate.open();
        holder.finish().assert_code(0);
        thaw(&redis);
        let [first, last] = others;
        first.finish().assert_code(75);
        last.finish().assert_code(0);
    }
}

#[test]
fn a_run_that_ignores_a_freeze_gets_a_free_lock_at_once_though_it_makes_others_give_up() {
    let redis = Redis::left_empty();
    freeze(&redis, "--new").assert_code(0);
    let other = queued(&redis, &["run", "-q", "a", "--", "true"]);
    ends(&redis, "run --ignore-freeze -n --supersede a -- true").assert_code(0);
    other.finish().assert_code(75);
    ends(&redis, "run --ignore-freeze -n --seq 7 a -- true").assert_code(0);
    thaw(&redis);
}

#[test]
fn a_freeze_of_two_locks_is_said_of_each_and_waits_for_the_holders_of_both() {
    for [kept, over] in [["a", "b"], ["b", "a"]] {
        let redis = Redis::start();
        let holders = [kept, over].map(|name| Gated::start(&redis, &[name]).ready());
        let words = words!("freeze a b --drain --reason both");
        let freezing = Running::start(&mut redis.redlock(words));
        wait_until("both are frozen", || {
            ["a", "b"].iter().all(|name| {
                let state = format!("{{redlock:{name}}}:state");
                redis.cli(&["HEXISTS", &state, "frozen"]) == "1"
            })
        });
        let [holder, ended] = holders;
        ended.end();
        ends(&redis, &format!("thaw {kept}")).assert_code(0);
        let end = freezing.finish();
        end.assert_code(79);
        end.assert_says("lock \"a\" is frozen until");
        end.assert_says("lock \"b\" is frozen until");
        end.assert_says(&format!("lock \"{kept}\" isn't frozen any more"));
        holder.end();
    }
}

#[test]
fn a_freeze_that_ends_before_the_holder_is_no_success_of_the_command_that_waits_for_that() {
    type End = fn(&Redis);
    let ends: [(&str, &str, End); 4] = [
        ("1h", "isn't frozen any more", thaw),
        ("1h", "has frozen lock \"a\" anew", |redis| {
            freeze(redis, "").assert_code(0);
        }),
        ("1h", "isn't frozen any more", |redis| {
            redis.cli(&["HDEL", "{redlock:a}:state", "frozen"]);
        }),
        ("300ms", "isn't frozen any more", |_| {}),
    ];
    for (long, says, end) in ends {
        let redis = Redis::start();
        let holder = holding(&redis, "");
        let words = words!("freeze a --drain --reason dump --for {}", long);
        let freezing = Running::start(&mut redis.redlock(words));
        wait_until("it is frozen", || {
            redis.cli(&["HEXISTS", "{redlock:a}:state", "freezes"]) == "1"
        });
        end(&redis);
        freezing.finish_saying(79, says);
        holder.end();
    }
}

#[test]
fn a_freeze_that_is_interrupted_while_it_waits_says_that_it_goes_on() {
    let redis = Redis::start();
    let holder = holding(&redis, "");
    let words = words!("freeze a b --drain --reason dump");
    let freezing = Running::start(&mut redis.redlock(words));
    wait_until("it looks at the lock, beside its holder", || {
        redis.trackers() >= 2
    });
    freezing.signal(Signal::SIGINT);
    let end = freezing.finish();
    end.assert_killed_by(libc::SIGINT);
    end.assert_says("leaves all frozen until `redlock thaw a b`");
    holder.end();
    ends(&redis, "run -n a -- true").assert_code(75);
}

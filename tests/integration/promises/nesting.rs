//! Several names, runs within runs, and jobs that wait for each other.

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, Request, load_scripts};

/// A job of a shell script that calls redlock.
fn job(redis: &Redis, script: &str) -> Running {
    Running::start(&mut sh(redis, script))
}

/// Asks Redis, from within a job.
const CLI: &str = r#"cli() { redis-cli -s "$HOME/redis.sock" "$@"; }"#;

#[test]
fn a_job_that_would_wait_for_itself_ends_at_once() {
    let redis = Redis::left_empty();
    let clean = r#"env -i PATH="$PATH" HOME="$HOME" REDLOCK_URL="$REDLOCK_URL""#;
    for options in ["", "-n", "-w 1h", "--shared"] {
        let inner = format!("{clean} redlock run {options} a -- echo never; echo status $?");
        let script = format!(r#"eval "$(redlock acquire --while-pid $$ a)"; {inner}"#);
        for mut outer in [redis.run("a", &inner), sh(&redis, &script)] {
            let run = Running::start(&mut outer);
            let says = format!("lock \"a\" is held by this job itself (pid {})", run.pid());
            let end = run.finish();
            assert_eq!(end.stdout, "status 75\n", "{options}");
            assert!(end.stderr.contains(&says), "{options}: {end:?}");
            wait_until("the lock is free", || redis.holder("a").is_none());
        }
    }
}

#[test]
fn several_names_are_all_held_once_and_in_the_environment_as_they_were_typed() {
    let redis = Redis::left_empty();
    let script = format!(
        r#"{CLI}
        echo "$REDLOCK_NAME"
        echo "$REDLOCK_TOKEN"
        echo "$(cli GET redlock:b) $(cli GET redlock:c) $(cli GET redlock:a)"
        echo "$REDLOCK_FENCE"
        echo "$(cli HGET '{{redlock:b}}:state' fence) $(cli HGET '{{redlock:c}}:state' fence) $(cli HGET '{{redlock:a}}:state' fence)"
        for held in $REDLOCK_HELD; do [ "$(cli GET "redlock:${{held%%=*}}")" = "${{held#*=}}" ] && echo "${{held%%=*}}"; done | sort
        "#
    );
    // One is given twice.
    let end = outcome(&mut redis.run("b c a b", &script));
    end.assert_code(0).assert_silent();
    let lines: Vec<&str> = end.stdout.lines().collect();
    assert_eq!(lines[0], "b c a");
    assert_eq!(lines[1].split(' ').count(), 3, "{end:?}");
    assert_eq!(lines[1], lines[2]);
    assert_eq!(lines[3].split(' ').count(), 3, "{end:?}");
    assert_eq!(lines[3], lines[4]);
    assert_eq!(lines[5..], ["a", "b", "c"]);
}

#[test]
fn several_names_with_slots_have_a_slot_each() {
    let redis = Redis::left_empty();
    let other = Gated::start(&redis, &["--slots", "2", "b"]).ready();
    let script = "echo $REDLOCK_SLOT";
    let end = outcome(&mut redis.run("--slots 2 b a", script));
    end.assert_silent().assert_printed(0, "2 1\n");
    other.end();
}

#[test]
fn names_in_any_order_never_wait_for_each_other() {
    let redis = Redis::left_empty();
    let orders = ["a b", "b a", "c a b", "b c"];
    let jobs = orders.map(|names| {
        let run = format!(r#"redlock run -q {names} -- true || echo "failed $?""#);
        job(&redis, &format!("for round in $(seq 25); do {run}; done"))
    });
    for job in jobs {
        job.finish().assert_silent().assert_printed(0, "");
    }
}

#[test]
fn held_locks_are_renewed_while_the_run_waits_for_the_next_one() {
    let redis = Redis::left_empty();
    redis.cli(&["SET", "redlock:b", "theirs", "PX", "600000"]);
    let script = format!(
        r#"{CLI}
        [ "$(cli GET redlock:a)" = "${{REDLOCK_TOKEN% *}}" ] && echo "ours since ${{REDLOCK_FENCE% *}}"
        [ "$REDLOCK_WAITED_MS" -ge 3000 ] && echo waited
        "#
    );
    let run = Running::start(&mut redis.run("-q --ttl 6s -k 200ms a b", &script));
    wait_until("it waits for b", || redis.queue("b") == [run.pid()]);
    assert_eq!(redis.holder("a"), Some(run.pid()));
    // It is never granted again, which would give it another fence.
    let fence = redis.cli(&["HGET", "{redlock:a}:state", "fence"]);
    // For longer than a lease lasts.
    redis.await_renewals("a", 4);
    redis.cli(&["DEL", "redlock:b"]);
    let end = run.finish();
    end.assert_printed(0, &format!("ours since {fence}\nwaited\n"));
}

#[test]
fn a_run_that_has_its_first_lock_asks_again_for_the_second_where_the_connection_breaks() {
    let redis = Redis::left_empty();
    load_scripts(&redis);
    let proxy = Proxy::once(&redis, "acquire", 1, Action::Reset);
    let url = proxy.url();
    let words = words!("-u {} run a b -- true", &url);
    outcome(&mut redis.redlock(words)).assert_code(0);
}

#[test]
fn a_run_that_waits_for_its_second_lock_after_the_first_hears_of_both_turns() {
    let redis = Redis::left_empty();
    let holders = ["a", "b"].map(|name| Gated::start(&redis, &[name]).ready());
    let run = queued(&redis, &["run", "-q", "a", "b", "--", "true"]);
    for (name, holder) in ["a", "b"].into_iter().zip(holders) {
        let channels = format!("{{redlock:{name}}}:*");
        wait_until(&format!("it listens for {name}"), || {
            !redis.cli(&["PUBSUB", "CHANNELS", &channels]).is_empty()
        });
        holder.end();
    }
    run.finish().assert_code(0);
}

#[test]
fn a_lock_that_is_lost_while_the_next_is_waited_for_ends_the_wait() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:b", "theirs", "PX", "600000"]);
    let run = Running::start(&mut redis.redlock(words!("run --ttl 9s -k 200ms a b -- echo")));
    wait_until("it waits for b", || redis.queue("b") == [run.pid()]);
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "600000"]);
    let end = run.finish_saying(79, "lock \"a\"");
    assert_eq!(end.stdout, "", "COMMAND was not started");
    assert_eq!(redis.queue("b"), [0; 0]);
}

#[test]
fn a_run_that_gives_up_on_one_name_releases_the_others() {
    let redis = Redis::left_empty();
    redis.cli(&["SET", "redlock:b", "theirs", "PX", "600000"]);
    for how in ["-n", "-w 200ms"] {
        let end = outcome(&mut redis.run(&format!("{how} a b"), "true"));
        end.assert_said(75, "lock \"b\" is held by another client");
    }
    redis.cli(&["DEL", "redlock:b"]);
}

#[test]
fn an_inner_run_reenters_a_lock_of_the_job_and_does_not_release_it() {
    let redis = Redis::left_empty();
    let script = format!(
        r#"{CLI}
        echo "$REDLOCK_TOKEN $REDLOCK_FENCE"
        redlock run -n a -c 'echo "$REDLOCK_TOKEN $REDLOCK_FENCE"; redlock run -n a -c "exit 5"; echo "inner $?"'
        echo "after $?"
        echo "$(cli GET redlock:a) $REDLOCK_FENCE"
        "#
    );
    let end = outcome(&mut redis.run("a", &script));
    end.assert_code(0).assert_silent();
    let lines: Vec<&str> = end.stdout.lines().collect();
    let [outer, inner, "inner 5", "after 0", held] = lines[..] else {
        panic!("{end:?}");
    };
    assert_eq!([inner, held], [outer; 2]);
}

#[test]
fn an_inner_run_takes_only_what_is_not_held_yet_and_releases_only_what_it_took() {
    let redis = Redis::start();
    let (reentered, released) = ("a~\nb=\nc=\nb a c\n1\n", "0\n1\n");
    let later =
        "redlock run -n a b c -- true; cli EXISTS redlock:a redlock:c; cli EXISTS redlock:b";
    for (outer, script, printed) in [
        (
            "a",
            r#"redlock run -n b a c -c 'for held in $REDLOCK_HELD; do echo "${held%%[0-9a-f][0-9a-f]*}"; done; echo "$REDLOCK_NAME"'
            cli EXISTS redlock:a redlock:b redlock:c"#,
            reentered,
        ),
        ("b", later, released),
        (
            "a",
            r#"redlock run -n --shared a -c 'echo "shared ${REDLOCK_SLOT-none}"'
            redlock run -n --slots 3 a -c 'echo "slot $REDLOCK_SLOT"'"#,
            "shared none\nslot 1\n",
        ),
    ] {
        let end = outcome(&mut redis.run(outer, &format!("{CLI}\n{script}")));
        end.assert_silent().assert_printed(0, printed);
        assert_nothing_left(&redis);
    }
}

#[test]
fn an_inner_run_keeps_what_it_reuses_alive_and_sees_its_loss() {
    let redis = Redis::start();
    // The outer one takes no notice of its loss, so that the inner one's can be seen.
    let script = r#"REDLOCK_ON_LOST=stop redlock run --ttl 9s -k 200ms a -c 'echo ready; exec sleep 60'; echo inner $?
        until [ -e "$HOME/go" ]; do sleep 0.02; done"#;
    let mut run = redis.run("--ttl 9s REDLOCK_ON_LOST=warn a", script);
    let mut run = Running::ready(run.env("REDLOCK_HOOK", NOTES_LOSSES));
    await_watchdog(run.pid());
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "600000"]);
    run.expect_line("inner 79");
    // Which of the two hears of it first is open.
    wait_until("the outer one knows it, too", || losses(&redis) == 2);
    fs::write(redis.dir.path().join("go"), "").unwrap();
    run.finish().assert_code(79);
}

#[test]
fn slots_within_an_exclusive_lock_whose_entry_is_gone_have_the_first() {
    let redis = Redis::start();
    let script = format!(
        r#"{CLI}
        cli DEL {{redlock:a}}:meta >/dev/null
        redlock run -n --slots 3 a -c 'echo "slot $REDLOCK_SLOT"'"#
    );
    outcome(&mut redis.run("a", &script)).assert_printed(0, "slot 1\n");
}

#[test]
fn reentering_with_a_stricter_mode_is_refused() {
    let redis = Redis::start();
    for (outer, inner, word) in [
        ("--shared", "", "shared"),
        ("--shared", "--slots 2", "shared"),
        ("--slots 3", "", "slots"),
        ("--slots 3", "--slots 2", "slots"),
    ] {
        let script = format!("redlock run {outer} a -c 'redlock run {inner} a -- echo ran'");
        let end = job(&redis, &script).finish();
        end.assert_said(64, word).assert_says("\"a\"");
        assert_eq!(end.stdout, "", "{outer}, {inner}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_held_lock_that_is_over_or_was_never_one_is_ignored() {
    let redis = Redis::start();
    for held in ["a=0123:host:1", "a=", "a", "=", "nonsense a=\u{fc} =b", " "] {
        let script = r#"echo "$REDLOCK_TOKEN"; redis-cli -s "$HOME/redis.sock" GET redlock:a"#;
        let mut run = redis.run("-n a", script);
        let end = outcome(run.env("REDLOCK_HELD", held));
        end.assert_code(0).assert_silent();
        let lines: Vec<&str> = end.stdout.lines().collect();
        assert_eq!(lines[0], lines[1], "{held:?}");
        assert_eq!(lines[0].len() > 32, lines[0] != "0123:host:1", "{held:?}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_job_that_inherits_what_another_holds_now_waits_like_everybody() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    ends(&redis, "REDLOCK_HELD=a=0123:host:1 run -n a -- true").assert_code(75);
    holder.end();
}

#[test]
fn readers_around_an_exclusive_inner_lock_run_together_and_never_with_the_writer() {
    let redis = Redis::left_empty();
    // As in the manual: verify.sh for two tokens at once, never two for one, never beside prune.sh.
    let verify = |token: &str| {
        let script = format!(
            r#"redlock run --shared prune -- redlock run verify.{token} -c '
                mkdir "$HOME/{token}" || echo OVERLAP; [ ! -e "$HOME/prune" ] || echo PRUNED
                echo "verifies {token}"
                until [ -e "$HOME/go" ]; do sleep 0.02; done
                rmdir "$HOME/{token}"'"#
        );
        job(&redis, &script)
    };
    let (mut first, mut second) = (verify("1"), verify("2"));
    first.expect_line("verifies 1");
    second.expect_line("verifies 2");
    let mut again = verify("1");
    wait_until("it waits for its inner lock", || {
        redis.queue("verify.1").len() == 1
    });
    let script = r#"redlock run -q prune -c '
        mkdir "$HOME/prune"; ls -d "$HOME"/[12] 2>/dev/null; echo pruned; rmdir "$HOME/prune"'"#;
    let prune = job(&redis, script);
    wait_until("the writer waits", || redis.queue("prune").len() == 1);
    fs::write(redis.dir.path().join("go"), "").unwrap();
    again.expect_line("verifies 1");
    for verify in [first, second, again] {
        let end = verify.finish();
        end.assert_code(0);
        assert!(!end.stdout.contains("OVERLAP") && !end.stdout.contains("PRUNED"));
    }
    prune.finish().assert_printed(0, "pruned\n");
}

/// Several circles at once of this many jobs, each of which holds one lock and then wants the next
/// one's: in each exactly one gives up and the others finish.
fn assert_circles_are_broken(members: usize) {
    let redis = Redis::left_empty();
    let name = |circle: usize, member: usize| format!("lock-{circle}-{}", member % members);
    let mut circles: Vec<Vec<Running>> = (0..3)
        .map(|circle| {
            let job_of = |member| {
                let (own, next) = (name(circle, member), name(circle, member + 1));
                let script = format!(
                    r#"redlock run {own} -c '
                        echo ready
                        until [ -e "$HOME/go" ]; do sleep 0.01; done
                        date +%s%N
                        redlock run {next} -- true; status=$?
                        date +%s%N
                        exit $status'"#
                );
                job(&redis, &script)
            };
            (0..members).map(job_of).collect()
        })
        .collect();
    for job in circles.iter_mut().flatten() {
        job.expect_line("ready");
    }
    fs::write(redis.dir.path().join("go"), "").unwrap();
    for (circle, jobs) in circles.into_iter().enumerate() {
        let ends: Vec<_> = jobs.into_iter().map(Running::finish).collect();
        let (victims, others): (Vec<_>, Vec<_>) =
            ends.iter().partition(|end| end.code() != Some(0));
        assert_eq!((victims.len(), others.len()), (1, members - 1), "{ends:?}");
        let victim = victims[0];
        victim.assert_said(75, "deadlock").assert_says(&host());
        for member in 0..members {
            victim.assert_says(&format!("\"{}\"", name(circle, member)));
        }
        for end in others {
            assert!(!end.stderr.contains("deadlock"), "{end:?}");
        }
        // From the moment when the last began to wait, at the latest, to the victim's end.
        let stamps = |line: usize| {
            ends.iter()
                .map(move |end| moment(end.stdout.lines().nth(line).unwrap()))
        };
        let (closed, broken) = (stamps(1).max().unwrap(), stamps(2).min().unwrap());
        let took = broken.saturating_sub(closed);
        assert!(took < Duration::from_secs(15), "{took:?}: {ends:?}");
    }
}

#[test]
fn two_or_three_jobs_that_wait_for_each_other_in_a_circle_are_a_deadlock_and_one_gives_up() {
    side_by_side([2, 3], assert_circles_are_broken);
}

#[test]
fn readers_that_both_want_to_write_are_a_deadlock_too() {
    let redis = Redis::left_empty();
    // The inner lock is another one, which each wants alone while the other shares it.
    let jobs = [("a", "b"), ("b", "a")];
    let jobs = jobs.map(|(own, next)| link(&redis, &format!("--shared {own}"), next, "go"));
    fs::write(redis.dir.path().join("go"), "").unwrap();
    let mut codes = jobs.map(|job| job.finish().code());
    codes.sort();
    assert_eq!(codes, [Some(0), Some(75)]);
}

/// A job that holds `own`, says so, and then wants `next`.
fn link(redis: &Redis, own: &str, next: &str, go: &str) -> Running {
    let script = format!(
        r#"redlock run {own} -c '
            echo ready
            until [ -e "$HOME/{go}" ]; do sleep 0.01; done
            REDLOCK_REDIS_TIMEOUT=10s redlock run {next} -- true'"#
    );
    job(redis, &script).at_ready()
}

/// Has the jobs that wait for this file go on, and waits until so many are in the queue of a lock.
fn go(redis: &Redis, go: &str, name: &str, waiters: usize) {
    fs::write(redis.dir.path().join(go), "").unwrap();
    wait_until("they wait", || redis.queue(name).len() == waiters);
}

#[test]
fn a_deadlock_in_which_two_paths_lead_to_one_job_is_found_by_the_last_one() {
    let redis = Redis::left_empty();
    let crossing = link(&redis, "l", "x", "first");
    let slots = [(); 2].map(|()| link(&redis, "--slots 2 s", "l", "second"));
    let last = link(&redis, "x", "--slots 2 s", "third");
    go(&redis, "first", "x", 1);
    go(&redis, "second", "l", 2);
    go(&redis, "third", "s", 1);
    let end = last.finish_saying(75, "this job holds \"x\" and waits for \"s\"");
    let named = end.stderr.matches("holds \"l\" and waits for \"x\"");
    assert_eq!(named.count(), 1, "{end:?}");
    all_end([crossing].into_iter().chain(slots), 0);
}

#[test]
fn of_jobs_that_wait_for_each_other_the_one_that_began_to_wait_last_gives_up() {
    let redis = Redis::left_empty();
    // The others know that it waits, and look several times before it does.
    let proxy = Proxy::once(
        &redis,
        "inspect",
        0,
        Action::Stall(Duration::from_millis(2500)),
    );
    let slowly = format!("-u {} a", proxy.url());
    let first = link(&redis, "a", "b", "first");
    let second = link(&redis, "b", "c", "second");
    let third = link(&redis, "c", &slowly, "third");
    go(&redis, "first", "b", 1);
    go(&redis, "second", "c", 1);
    go(&redis, "third", "a", 1);
    third.finish().assert_code(75);
    all_end([first, second], 0);
}

#[test]
fn a_wait_for_a_slot_of_a_frozen_lock_without_holders_is_no_deadlock() {
    let redis = Redis::left_empty();
    ends(&redis, "freeze -q --reason x b").assert_code(0);
    let nested = "redlock run a -- redlock run -q --slots 2 b -- echo ran";
    let mut nested = job(&redis, nested);
    // It notes that it waits with each look for a deadlock.
    let is_noted = || redis.keys().iter().any(|key| key.contains("blocked:"));
    wait_until("it looks", || nested.has_ended() || is_noted());
    let notes = redis.calls("set");
    wait_until("it looks once more", || {
        nested.has_ended() || redis.calls("set") > notes
    });
    ends(&redis, "thaw -q b").assert_code(0);
    nested.finish().assert_silent().assert_printed(0, "ran\n");
}

#[test]
fn a_run_of_several_names_is_part_of_a_deadlock_by_each_that_it_holds() {
    for outer in ["", "redlock run z -- "] {
        let redis = Redis::left_empty();
        let other = link(&redis, "b", "a", "go");
        let several = job(&redis, &format!("{outer}redlock run a b -- true"));
        wait_until("it waits", || redis.queue("b").len() == 1);
        go(&redis, "go", "a", 1);
        other.finish_saying(75, "deadlock");
        all_end([several], 0);
    }
}

#[test]
fn a_request_for_a_slot_behind_one_for_the_lock_alone_waits_for_each_holder() {
    let redis = Redis::left_empty();
    let stuck = link(&redis, "--slots 3 s", "x", "first");
    let works = link(&redis, "--slots 3 s", "free", "end");
    let last = link(&redis, "x", "--slots 3 s", "last");
    let alone = job(&redis, "redlock run s -- true");
    wait_until("it waits", || redis.queue("s").len() == 1);
    go(&redis, "first", "x", 1);
    go(&redis, "last", "s", 2);
    last.finish_saying(75, "deadlock");
    stuck.finish().assert_code(0);
    go(&redis, "end", "free", 0);
    all_end([works, alone], 0);
}

/// Waits until a job that waits for "s" has looked for a deadlock, or has left the queue to so many others.
fn await_second_look(redis: &Redis, others: usize) {
    // With its second look it publishes once more that it waits, so that the first look is over.
    let mut before = i64::MAX;
    wait_until("it has looked for a deadlock", || {
        let keys = redis.keys();
        let notes = keys.iter().filter(|key| key.contains(":blocked:"));
        let mut its = notes.filter(|key| redis.cli(&["GET", key]).ends_with(" s"));
        let left = its.next().map(|key| redis.cli(&["PTTL", key]));
        let ended = redis.queue("s").len() == others;
        let left = left.and_then(|left| left.parse().ok()).unwrap_or(i64::MAX);
        ended || left > std::mem::replace(&mut before, left)
    });
}

#[test]
fn a_run_that_ignores_a_freeze_does_not_wait_for_those_that_the_freeze_keeps_out() {
    let redis = Redis::left_empty();
    let stuck = link(&redis, "--slots 2 s", "x", "first");
    let works = link(&redis, "--slots 2 s", "free", "end");
    let kept_out = job(&redis, "redlock run -q s -- true");
    wait_until("it waits", || redis.queue("s").len() == 1);
    ends(&redis, "freeze -q --reason x s").assert_code(0);
    let last = link(&redis, "x", "--slots 2 --ignore-freeze s", "last");
    go(&redis, "first", "x", 1);
    go(&redis, "last", "s", 2);
    await_second_look(&redis, 1);
    go(&redis, "end", "free", 0);
    last.finish().assert_code(0);
    ends(&redis, "thaw -q s").assert_code(0);
    all_end([stuck, works, kept_out], 0);
}

#[test]
fn a_slot_that_one_of_several_readers_may_free_is_no_deadlock() {
    let redis = Redis::left_empty();
    let stuck = link(&redis, "--shared s", "x", "first");
    let works = link(&redis, "--shared s", "free", "end");
    let last = link(&redis, "x", "--slots 2 s", "last");
    go(&redis, "first", "x", 1);
    go(&redis, "last", "s", 1);
    await_second_look(&redis, 0);
    go(&redis, "end", "free", 0);
    all_end([last, stuck, works], 0);
}

#[test]
fn the_wait_for_several_names_is_limited_as_a_whole() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "4500"]);
    redis.cli(&["SET", "redlock:b", "theirs", "PX", "60000"]);
    let began = Instant::now();
    let mut run = redis.redlock(&["run", "--wait", "6s", "a", "b", "--", "true"]);
    outcome(&mut run).assert_said(75, "\"b\"");
    // It began to wait for b after 4.5 s, so that a wait of its own would end after 10.5 s.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_job_that_only_waits_behind_a_deadlock_is_not_part_of_it() {
    let redis = Redis::left_empty();
    let jobs = [("a", "b"), ("b", "a")].map(|(own, next)| link(&redis, own, next, "go"));
    // It holds something that no job wants.
    let third = link(&redis, "c", "a", "go");
    // And one that holds nothing.
    let fourth = queued(&redis, &["run", "a", "--", "true"]);
    fs::write(redis.dir.path().join("go"), "").unwrap();
    let mut codes = jobs.map(|job| job.finish().code());
    codes.sort();
    assert_eq!(codes, [Some(0), Some(75)]);
    all_end([third, fourth], 0);
}

#[test]
fn no_deadlock_is_reported_in_a_thousand_nested_runs_without_a_circle() {
    let redis = Redis::left_empty();
    let mut random = 42_u32;
    let mut dice = move |sides: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % sides
    };
    // Names are taken in alphabetical order only, alone or shared, so nothing can be a circle. Many
    // hold an outer one while they wait for seconds for one of the three inner ones.
    let mut jobs: Vec<Running> = (0..84)
        .map(|_| {
            let rounds = (0..4).map(|_| {
                let outer = format!("a{}", dice(60));
                let (second, third) = [("b", "c"), ("b", "d"), ("c", "d")][dice(3) as usize];
                let mode = ["", "", "", "--shared "][dice(4) as usize];
                format!(
                    "redlock run -q {outer} -- redlock run -q {mode}{second} -- redlock run -q {third} -- sleep 0.0{}5 || echo \"failed $?\"\n",
                    dice(5)
                )
            });
            job(&redis, &rounds.collect::<String>())
        })
        .collect();
    let mut looked = 0;
    while !jobs.iter_mut().all(Running::has_ended) {
        let keys = redis.keys();
        looked += keys.iter().filter(|key| key.contains(":blocked:")).count();
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(looked > 0, "no job has looked for deadlocks");
    for job in jobs {
        job.finish().assert_silent().assert_printed(0, "");
    }
}

/// Says what becomes of a request.
type Hook = fn(&Request) -> Action;

/// Shell commands that say when they were alive last, whatever they are asked.
const DEAF: &str = "trap '' TERM; while :; do date +%s%N; sleep 0.01; done";

#[test]
fn a_late_answer_gives_a_lock_no_more_time_than_its_own_request() {
    // The answer to the request for b comes when the second renewal of a alone is under way, whose answer comes
    // after it; or that to a question for a lock that no run around renews comes late. Then nothing comes any more.
    let meanwhile = |request: &Request| match (request.operation.as_str(), request.before) {
        ("acquire", 1) => Action::StallReply(Duration::from_millis(2100)),
        ("renew", 1) => Action::StallReply(Duration::from_millis(700)),
        ("renew", 2..) => Action::LoseRequest,
        _ => Action::Pass,
    };
    let reused = |request: &Request| match (request.operation.as_str(), request.before) {
        ("renew", 0) => Action::StallReply(Duration::from_millis(900)),
        ("renew", 1..) => Action::LoseRequest,
        _ => Action::Pass,
    };
    let hooks: [(&str, &str, &str, Hook); 2] = [
        ("b", "", "--ttl 5s a b", meanwhile),
        (
            "a",
            r#"eval "$(redlock acquire --ttl 4s a)""#,
            "--ttl 4s a",
            reused,
        ),
    ];
    side_by_side(hooks, |(name, before, options, hook)| {
        let redis = Redis::start();
        load_scripts(&redis);
        let proxy = Proxy::with(&redis, hook);
        let url = proxy.url();
        let run = format!(r#"exec redlock -u {url} run -q -k 100ms {options} -c "$0""#);
        let script = format!("{before}\nexport REDLOCK_REDIS_TIMEOUT=10s; {run}");
        let first = Running::start(&mut directly(&redis, &["sh", "-c", &script, DEAF]));
        wait_until("it is held", || redis.is_held(name));
        let second = outcome(&mut redis.redlock(words!("run -q {} -c", name, "date +%s%N")));
        let first = first.finish();
        first.assert_exited(79);
        let alive = moment(first.stdout.lines().last().unwrap());
        assert!(alive < moment(&second.stdout), "{name}: {proxy:?}");
    });
}

#[test]
fn a_renewal_that_finds_its_only_lock_released_is_followed_by_one_of_the_others() {
    let redis = Redis::start();
    load_scripts(&redis);
    // The answer to the request for b comes when a renewal of a alone is under way, which comes to the server when the
    // job has released a.
    let proxy = Proxy::with(&redis, |request| {
        match (request.operation.as_str(), request.before) {
            ("acquire", 1) => Action::StallReply(Duration::from_millis(300)),
            ("renew", 0) => Action::Stall(Duration::from_millis(1200)),
            _ => Action::Pass,
        }
    });
    let url = proxy.url();
    let mut gate = Gate::new(&redis);
    let script = r#"redlock release -q a; echo released; read go <"$HOME/gate""#;
    let words = words!("-u {} run --ttl 10s a b -c", &url, script);
    let mut run = Running::start(&mut redis.redlock(words));
    run.expect_line("released");
    redis.await_renewals("b", 1);
    gate.open();
    run.finish().assert_exited(0).assert_silent();
}

#[test]
fn with_on_lost_warn_the_loss_of_one_of_several_locks_leaves_the_others_held() {
    let redis = Redis::start();
    let mut run = Gated::start(&redis, words!("REDLOCK_ON_LOST=warn --ttl 6s a b c")).ready();
    for lost in ["b", "a"] {
        outcome(&mut redis.redlock(&["release", "-q", "--force", lost])).assert_code(0);
        // The second renewal begins after the loss.
        redis.await_renewals("c", 2);
    }
    ends(&redis, "run -n c -- true").assert_code(75);
    run.open();
    run.run
        .finish_saying(79, "lock \"b\" was forced free")
        .assert_says("lock \"a\" was forced free");
    assert!(!redis.is_held("c"));
}

#[test]
fn a_command_that_is_killed_for_one_lost_lock_of_two_is_said_to_be_so_after_renewals_of_the_other()
{
    let redis = Redis::start();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.05; done";
    // The other lock is renewed between the two signals.
    let run = Running::ready(&mut redis.run("--ttl 9s -k 4s a b", script));
    wait_until("it is told of changes", || redis.trackers() > 0);
    redis.cli(&["DEL", "redlock:a"]);
    let end = run.finish();
    end.assert_code(79);
    for what in ["stopping the command", "killing the command"] {
        let line = end.stderr.lines().find(|line| line.ends_with(what));
        let line = line.unwrap_or_else(|| panic!("{what}: {end:?}"));
        assert!(line.contains("lock \"a\" "), "{end:?}");
    }
}

#[test]
fn of_several_locks_the_loss_of_any_is_noticed_from_their_start_over_a_long_line_and_long_after_it()
{
    for (lost, is_early) in [("b", true), ("a", false), ("b", false)] {
        let redis = Redis::start();
        load_scripts(&redis);
        let round_trip = Duration::from_millis(if is_early { 100 } else { 0 });
        let proxy = Proxy::with_round_trip(&redis, round_trip);
        let run = Gated::start(&redis, words!("-u {} --ttl 1h a b", &proxy.url())).ready();
        // Behind the first renewal, which is followed by none for twenty minutes.
        wait_until("both are watched", || {
            is_early || proxy.answered("check") >= 2
        });
        ends(&redis, &format!("release -q --force {lost}")).assert_code(0);
        let says = format!("lock \"{lost}\" was forced free");
        run.run.finish_saying(79, &says);
    }
}

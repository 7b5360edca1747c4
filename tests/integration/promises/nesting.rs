//! Several names, nested runs, and jobs that wait for each other.

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Starts a job: a shell script that calls redlock.
fn job(redis: &Redis, script: &str) -> Running {
    Running::start(&mut sh(redis, script))
}

/// Shell function that sends a command to Redis from within a job.
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
        tokens="$(cli GET redlock:b) $(cli GET redlock:c) $(cli GET redlock:a)"
        fence() {{ cli HGET "{{redlock:$1}}:state" fence; }}
        fences="$(fence b) $(fence c) $(fence a)"
        [ "$REDLOCK_TOKEN $REDLOCK_FENCE" = "$tokens $fences" ] && set -- $tokens $fences && echo $#
        for held in $REDLOCK_HELD; do [ "$(cli GET "redlock:${{held%%=*}}")" = "${{held#*=}}" ] && echo "${{held%%=*}}"; done | sort
        "#
    );
    // The line has the name b twice.
    let end = outcome(&mut redis.run("b c a b", &script));
    end.assert_silent().assert_printed(0, "b c a\n6\na\nb\nc\n");
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
    // redlock never acquires the lock again, which would give it another fencing token.
    let fence = redis.cli(&["HGET", "{redlock:a}:state", "fence"]);
    // For longer than a lease.
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
fn an_inner_run_reenters_what_the_job_holds_unless_that_is_less_and_releases_only_what_it_took() {
    for (outer, script, printed) in [
        (
            "a",
            r#"held="$(cli GET redlock:a)"; export outer="$held $REDLOCK_FENCE"
            redlock run -n a -c '[ "$REDLOCK_TOKEN $REDLOCK_FENCE" = "$outer" ] && redlock run -n a -c "exit 5"; echo "inner $?"'
            [ "$(cli GET redlock:a)" = "$held" ] && echo "after $?""#,
            "inner 5\nafter 0\n",
        ),
        (
            "a",
            r#"redlock run -n b a c -c 'for held in $REDLOCK_HELD; do echo "${held%%[0-9a-f][0-9a-f]*}"; done; echo "$REDLOCK_NAME"'
            cli EXISTS redlock:a redlock:b redlock:c"#,
            "a~\nb=\nc=\nb a c\n1\n",
        ),
        (
            "b",
            "redlock run -n a b c -- true; cli EXISTS redlock:a redlock:c; cli EXISTS redlock:b",
            "0\n1\n",
        ),
        (
            "a",
            r#"redlock run -n --shared a -c 'echo "shared ${REDLOCK_SLOT-none}"'
            redlock run -n --slots 3 a -c 'echo "slot $REDLOCK_SLOT"'"#,
            "shared none\nslot 1\n",
        ),
        // The entry of the outer run's hold is gone.
        (
            "a",
            r#"cli DEL {redlock:a}:meta >/dev/null
            redlock run -n --slots 3 a -c 'echo "slot $REDLOCK_SLOT"'"#,
            "slot 1\n",
        ),
    ] {
        let redis = Redis::left_empty();
        let end = outcome(&mut redis.run(outer, &format!("{CLI}\n{script}")));
        end.assert_silent().assert_printed(0, printed);
    }
    // The job holds less than the inner run wants.
    for outer in ["shared", "slots=3"] {
        for inner in ["", "--slots=2"] {
            let redis = Redis::left_empty();
            let inner = format!("redlock run {inner} a -- echo ran");
            let end = outcome(&mut redis.run(&format!("--{outer} a"), &inner));
            end.assert_printed(64, "")
                .assert_says(&outer[..5])
                .assert_says("\"a\"");
        }
    }
}

#[test]
fn an_inner_run_keeps_what_it_reuses_alive_and_sees_its_loss() {
    let redis = Redis::start();
    // The outer run ignores its loss, so that only the inner run's loss stops a command.
    let script = r#"REDLOCK_ON_LOST=stop redlock run --ttl 9s -k 200ms a -c 'echo ready; exec sleep 60'; echo inner $?
        until [ -e "$HOME/go" ]; do sleep 0.02; done"#;
    let mut run = redis.run("--ttl 9s REDLOCK_ON_LOST=warn a", script);
    let mut run = Running::ready(run.env("REDLOCK_HOOK", NOTES_LOSSES));
    await_watchdog(run.pid());
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "600000"]);
    run.expect_line("inner 79");
    // Either run may notice first.
    wait_until("the outer one knows it, too", || losses(&redis) == 2);
    fs::write(redis.dir.path().join("go"), "").unwrap();
    run.finish().assert_code(79);
}

#[test]
fn a_stale_or_invalid_redlock_held_is_ignored() {
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
    // Another client holds the lock now.
    let _holder = Gated::start(&redis, &["a"]).ready();
    ends(&redis, "REDLOCK_HELD=a=0123:host:1 run -n a -- true").assert_code(75);
}

/// Starts a job with this number that holds `own`, prints "ready", and wants `next` once its file exists.
fn link(redis: &Redis, own: &str, next: &str, number: usize) -> Running {
    let script = format!(
        r#"redlock run {own} -c '
            echo ready
            until [ -e "$HOME/go-{number}" ]; do sleep 0.01; done
            REDLOCK_REDIS_TIMEOUT=10s redlock run {next} -- true'"#
    );
    job(redis, &script).at_ready()
}

/// Lets jobs wait for each other: `a > b` holds a and then wants b, and `a` only wants a. Steps: `2` lets that job go on, `s=1`
/// waits for that many waiters, and `2.` for the end of a job. In each circle exactly one job gives up, and all others finish.
/// Returns the ends of the jobs.
fn await_ends(redis: &Redis, jobs: &str, steps: &str, circles: &str) -> Vec<Outcome> {
    let jobs = jobs.split(", ").map(|job| match job.split_once(" > ") {
        Some((own, next)) => (own, Some(next)),
        None => (job, None),
    });
    let jobs: Vec<(&str, Option<&str>)> = jobs.collect();
    let start = |(number, (own, next)): (usize, &(&str, Option<&str>))| {
        next.map(|next| link(redis, own, next, number))
    };
    let mut runs: Vec<Option<Running>> = jobs.iter().enumerate().map(start).collect();
    for step in steps.split(' ') {
        if let Some((name, count)) = step.split_once('=') {
            let count: usize = count.parse().unwrap();
            wait_until(step, || redis.queue(name).len() == count);
        } else if let Some(number) = step.strip_suffix('.') {
            let run = runs[number.parse::<usize>().unwrap()].as_mut().unwrap();
            wait_until(step, || run.has_ended());
        } else if let Some(others) = step.strip_prefix("looks:") {
            await_second_look(redis, others.parse().unwrap());
        } else if let Ok(number) = step.parse::<usize>() {
            let plain = || job(redis, &format!("redlock run -q {} -- true", jobs[number].0));
            runs[number].get_or_insert_with(plain);
            fs::write(redis.dir.path().join(format!("go-{number}")), "").unwrap();
        } else {
            ends(redis, &step.replace('_', " ")).assert_code(0);
        }
    }
    let began = Instant::now();
    let ends = runs.into_iter().map(|run| run.unwrap().finish());
    let ends: Vec<Outcome> = ends.collect();
    assert_took_less(began, Duration::from_secs(15));
    let mut victims = Vec::new();
    for circle in circles.split_terminator(", ") {
        let members = circle.split(' ').map(|member| member.parse().unwrap());
        let members: Vec<usize> = members.collect();
        let gave_up = |member: &usize| ends[*member].code() != Some(0);
        let all: Vec<usize> = members.iter().copied().filter(gave_up).collect();
        assert_eq!(all.len(), 1, "{circle}: {ends:?}");
        let end = &ends[all[0]];
        end.assert_said(75, "deadlock").assert_says(&host());
        for member in members {
            let name = jobs[member].0.rsplit(' ').next().unwrap();
            end.assert_says(&format!("\"{name}\""));
        }
        victims.extend(all);
    }
    for (number, end) in ends.iter().enumerate() {
        if !victims.contains(&number) {
            assert!(!end.assert_code(0).stderr.contains("deadlock"), "{end:?}");
        }
    }
    ends
}

/// Lets jobs wait for each other as each row says: `jobs; steps; circles` (see [`await_ends`]).
fn play(rows: &str) {
    let rows = rows.lines().map(str::trim).filter(|row| !row.is_empty());
    side_by_side(rows, |row| {
        let mut parts = row.split("; ");
        let mut part = || parts.next().unwrap_or("");
        await_ends(&Redis::left_empty(), part(), part(), part());
    });
}

#[test]
fn jobs_that_wait_for_each_other_in_a_circle_are_a_deadlock_in_which_exactly_one_gives_up() {
    // In the third row each job wants the inner lock exclusively while the other shares it. In the fourth one the third job
    // holds a lock that no job wants, and the last one holds nothing. The last row is behind a request for the exclusive lock.
    play(
        "
        a > b, b > a, c > d, d > c, e > f, f > e; 0 1 2 3 4 5; 0 1, 2 3, 4 5
        a > b, b > c, c > a, d > e, e > f, f > d; 0 1 2 3 4 5; 0 1 2, 3 4 5
        --shared a > b, --shared b > a; 0 1; 0 1
        a > b, b > a, c > a, a; 3 a=1 0 1 2; 0 1
        b > a, a b; 1 b=1 0; 0
        b > a, z -- redlock run -q a b; 1 b=1 0; 0
        --slots 3 s > x, --slots 3 s > y, x > --slots 3 s, s; 3 s=1 0 x=1 2 2. 0. 1; 2
        ",
    );
}

#[test]
fn jobs_whose_wait_another_job_may_end_are_no_deadlock() {
    // A freeze keeps one job out, but the job behind it ignores the freeze. The frozen lock of the last row has no holders.
    play(
        "
        --slots 2 s > x, --slots 2 s > y, s, x > --slots 2 --ignore-freeze s; 2 s=1 freeze_-q_--reason_x_s 0 x=1 3 s=2 looks:1 1 3. thaw_-q_s
        --shared s > x, --shared s > y, x > --slots 2 s; 0 x=1 2 s=1 looks:0 1
        a > --slots 2 s; freeze_-q_--reason_x_s 0 s=1 looks:0 thaw_-q_s
        ",
    );
}

#[test]
fn a_deadlock_in_which_two_paths_lead_to_one_job_is_found_by_the_last_one() {
    let redis = Redis::left_empty();
    let jobs = "l > x, --slots 2 s > l, --slots 2 s > l, x > --slots 2 s";
    let ends = await_ends(&redis, jobs, "0 x=1 1 2 l=2 3", "3");
    ends[3].assert_says("this job holds \"x\" and waits for \"s\"");
    let named = ends[3].stderr.matches("holds \"l\" and waits for \"x\"");
    assert_eq!(named.count(), 1, "{ends:?}");
}

#[test]
fn the_latest_waiter_of_a_deadlock_gives_up() {
    let redis = Redis::left_empty();
    // The others know that the last job waits, and check several times before that job does.
    let stall = Action::Stall(Duration::from_millis(2500));
    let proxy = Proxy::once(&redis, "inspect", 0, stall);
    let jobs = format!("a > b, b > c, c > -u {} a", proxy.url());
    await_ends(&redis, &jobs, "0 b=1 1 c=1 2", "2");
}

/// Waits until a job that waits for "s" has checked for a deadlock, or has left the queue to this many others.
fn await_second_look(redis: &Redis, others: usize) {
    // A job publishes again that it waits with its second check, so the first one is over.
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
fn the_wait_for_several_names_is_limited_as_a_whole() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "4500"]);
    redis.cli(&["SET", "redlock:b", "theirs", "PX", "60000"]);
    let began = Instant::now();
    let mut run = redis.redlock(&["run", "--wait", "6s", "a", "b", "--", "true"]);
    outcome(&mut run).assert_said(75, "\"b\"");
    // The run began to wait for b after 4.5 s, so a separate limit would end after 10.5 s.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn no_deadlock_is_reported_in_hundreds_of_nested_runs_without_a_circle() {
    let redis = Redis::left_empty();
    let mut random = 42_u32;
    let mut dice = move |sides: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % sides
    };
    // All names are taken in alphabetical order, exclusive or shared, so there is no circle. Many jobs hold an outer lock while
    // they wait for seconds for one of the three inner ones.
    let mut jobs: Vec<Running> = (0..84)
        .map(|_| {
            let rounds = (0..2).map(|_| {
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
fn the_loss_of_any_of_several_locks_is_noticed_early_and_late() {
    for (lost, is_early) in [("b", true), ("a", false), ("b", false)] {
        let redis = Redis::start();
        load_scripts(&redis);
        let round_trip = Duration::from_millis(if is_early { 100 } else { 0 });
        let proxy = Proxy::with_round_trip(&redis, round_trip);
        let run = Gated::start(&redis, words!("-u {} --ttl 1h a b", &proxy.url())).ready();
        // After the first renewal, because the next one comes only after twenty minutes.
        wait_until("both are watched", || {
            is_early || proxy.answered("check") >= 2
        });
        ends(&redis, &format!("release -q --force {lost}")).assert_code(0);
        let says = format!("lock \"{lost}\" was forced free");
        run.run.finish_saying(79, &says);
    }
}

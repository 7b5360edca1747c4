//! Pipelines: links to jobs, the newest deploy, joining a run, and cancelled jobs.

use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::promises::watchdog::processes_of;
use crate::support::prelude::*;

#[test]
fn the_link_to_a_ci_job_and_the_reason_show_to_others() {
    let redis = Redis::start();
    // Tests in src/ci.rs cover the variables of each system.
    let url = "https://github.com/o/r/actions/runs/7";
    let mut run = redis.run("--reason release-7 a", IDLE);
    run.envs([("GITHUB_ACTIONS", "true"), ("GITHUB_RUN_ID", "7")]);
    run.env("GITHUB_SERVER_URL", "https://github.com");
    let _holder = Running::ready(run.env("GITHUB_REPOSITORY", "o/r"));
    assert_eq!(json(&redis, "status --json")[0]["holders"][0]["url"], url);
    assert_has(
        &ends(&redis, "status").stdout,
        &[&format!("(release-7)  {url}")],
    );
    // The waiter names the holder after a second, and when it gives up.
    let waiter = ends(&redis, "run -w 6s a -- true");
    let says = format!("(release-7, {url})");
    let times = waiter.assert_code(75).stderr.matches(&says).count();
    assert_eq!(times, 2, "{waiter:?}");
}

#[test]
fn redlock_who_or_the_ci_job_shows_in_place_of_user_and_host() {
    let job = "acme/shop deploy #1234";
    let secret = "agent of redis://me:hunter2@h";
    for (who, in_file, shown) in [
        ("", "", job),
        ("agent 7", "REDLOCK_WHO=agent 8\n", "agent 7"),
        ("", "REDLOCK_WHO=agent 8\n", "agent 8"),
        ("  ", "", job),
        ("\u{1b}[1m", "", "\\u{1b}[1m"),
        (secret, "", "agent of redis://"),
    ] {
        let redis = Redis::start();
        fs::write(redis.dir.path().join("redlock.env"), in_file).unwrap();
        let mut holder = redis.run("a", IDLE);
        holder.env("XDG_CONFIG_HOME", redis.dir.path());
        holder.envs([("GITHUB_ACTIONS", "true"), ("GITHUB_JOB", "deploy")]);
        holder.envs([
            ("GITHUB_REPOSITORY", "acme/shop"),
            ("GITHUB_RUN_NUMBER", "1234"),
        ]);
        holder.envs((!who.is_empty()).then_some(("REDLOCK_WHO", who)));
        let holder = Running::ready(&mut holder);
        for line in "status;status a;run -n a -- true;stop a;history a".split(';') {
            let end = ends(&redis, line);
            let text = end.stdout + &end.stderr;
            assert!(text.contains(shown), "{line}: {text}");
            assert!(!text.contains("hunter2"), "{line}: {text}");
        }
        holder.finish();
        assert_has(
            &ends(&redis, "history --json a").stdout,
            &["\"who\"", "\"host\""],
        );
    }
}

#[test]
fn the_runner_of_github_is_told_to_mask_the_token() {
    let redis = Redis::start();
    // The runner reads standard error too, because standard output may go to the file for variables. Commands must be at the
    // start of a line.
    let end = ends(&redis, "-q acquire a --format github");
    let token = redis.cli(&["GET", "redlock:a"]);
    assert_eq!(end.stderr, format!("::add-mask::{token}\n"));
    assert_has(&end.stdout, &[&format!("\nREDLOCK_TOKEN={token}\n")]);
    assert!(!end.stdout.contains("add-mask"), "{end:?}");
    let refused = ends(&redis, "-q acquire a --format github -n");
    refused.assert_code(75).assert_silent();
    let end = ends(&redis, "-q acquire b --format token");
    end.assert_code(0).assert_silent();
}

#[test]
fn a_cancelled_run_keeps_its_lock_until_it_is_dead() {
    let redis = Redis::left_empty();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
    let mut holder = Running::start(&mut redis.run("-k 500ms --hold-at-least 1m a", script));
    let deaf = holder.line();
    let newest = format!("! kill -0 {deaf}");
    let newest = words!("run -q --supersede --cancel-in-progress a -c", &newest);
    let newest = Running::start(&mut redis.redlock(newest));
    holder.finish().assert_code(79);
    newest.finish().assert_code(0);
}

/// Pause between the signals of a cancelled job, in ms, long enough that each signal is a request of its own.
const SLOWLY: u64 = 600;

/// Sends the signals of a runner that cancels a job, with shorter pauses (in ms).
fn cancel(run: &mut Running, pause: u64) {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        std::thread::sleep(Duration::from_millis(pause));
        if !run.has_ended() {
            let _ = kill(Pid::from_raw(run.pid()), signal);
        }
    }
}

#[test]
fn a_job_that_is_cancelled_while_it_releases_leaves_nothing() {
    let redis = Redis::start();
    let mut run = Gated::start(&redis, &["--ttl", "6s", "REDLOCK_REDIS_TIMEOUT=10s", "a"]).ready();
    redis.stall();
    run.open();
    assert_ne!(run.run.line(), "");
    cancel(&mut run.run, SLOWLY);
    redis.resume();
    run.run.finish();
    // Both place and lock are gone after a TTL at the latest.
    redis.await_free("a");
    assert_eq!(redis.queue("a"), [0; 0]);
    ends(&redis, "run -n a -- true").assert_code(0);
    assert_nothing_left(&redis);
}

/// Starts a deploy that records its number when it runs.
fn deploy(redis: &Redis, order: u32, options: &str) -> Running {
    let words = format!("--supersede --seq {order} {options} a");
    let script = format!(r#"echo {order} >>"$HOME/order""#);
    Running::start(&mut redis.run(&words, &script))
}

#[test]
fn an_old_run_gives_up_at_whatever_stage_a_newer_one_is_and_an_equal_one_takes_its_place() {
    let redis = Redis::left_empty();
    let late = |says: &str| {
        for wait in ["-w1m", "-n", "--cancel-in-progress"] {
            let end = deploy(&redis, 6, wait).finish();
            end.assert_said(75, "build 6 is older than build 7 of ");
            end.assert_says(says);
        }
    };
    let numbered = |order: &'static str| ["-q", "--supersede", "--seq", order, "a"];
    // Stage: queued behind an older build that runs.
    let running = Gated::start(&redis, &numbered("5")).ready();
    let waiting = Gated::queued(&redis, &numbered("7"));
    late(&format!("(pid {})", waiting.run.pid()));
    assert_eq!(redis.queue("a"), [waiting.run.pid()]);
    // Another run with this number replaces the first one.
    let again = Gated::queued(&redis, &numbered("7"));
    waiting.run.finish().assert_code(75);
    running.end();
    // Stage: running. A run with an equal number waits for it.
    let again = again.ready();
    late("to run an older build (a rollback), leave out --seq, or give a number above 7");
    let mut equal = deploy(&redis, 7, "");
    equal.wait_until_queued(&redis);
    late("");
    again.end();
    // Stage: done.
    equal.finish().assert_code(0);
    late("");
    deploy(&redis, 7, "-n").finish().assert_code(0);
    ends(&redis, "run a -- true").assert_code(0);
    // -E applies here too, and the number alone is enough.
    deploy(&redis, 1, "-E 5").finish().assert_code(5);
    ends(&redis, "run --seq 1 a -- true").assert_code(75);
}

#[test]
fn concurrent_deploys_run_in_order_and_the_newest_runs_last() {
    for options in ["-q", "-q --cancel-in-progress"] {
        let redis = Redis::left_empty();
        let all = (0..12).map(|number| deploy(&redis, 1 + number * 5 % 12, options));
        for run in all.collect::<Vec<_>>() {
            let end = run.finish();
            assert!(matches!(end.code(), Some(0 | 75 | 79)), "{end:?}");
        }
        let ran = home_file(&redis, "order");
        let ran: Vec<u32> = ran.lines().map(|line| line.parse().unwrap()).collect();
        assert!(ran.is_sorted() && ran.last() == Some(&12), "{ran:?}");
    }
}

#[test]
fn all_holders_are_stopped_and_say_by_whom_and_the_lock_goes_to_the_newest() {
    let script = r#"trap 'echo term; until [ -e "$HOME/go" ]; do sleep 0.02; done; exit 0' TERM
        echo ready; while :; do sleep 0.02; done"#;
    for modes in [
        &["a"][..],
        &["--slots 2 a"],
        &["-s a", "-s a", "-s REDLOCK_ON_LOST=warn a"],
    ] {
        let redis = Redis::left_empty();
        let start = |words: &&str| Running::ready(&mut redis.run(words, script));
        let holders: Vec<Running> = modes.iter().map(start).collect();
        let newer = |name: &str| {
            let command = words!("run --supersede --cancel-in-progress a -- echo", name);
            queued(&redis, command)
        };
        let first = newer("first");
        let newest = newer("newest");
        fs::write(redis.dir.path().join("go"), "").unwrap();
        let by = [&first, &newest].map(|run| format!("(pid {})", run.pid()));
        first.finish_saying(75, "superseded by");
        for holder in holders {
            let end = holder.finish_saying(79, "stopped by");
            assert!(by.iter().any(|by| end.stderr.contains(by)), "{end:?}");
            assert_eq!(end.stdout, "ready\nterm\n");
        }
        newest.finish().assert_printed(0, "newest\n");
        let history = ends(&redis, "history a").stdout;
        assert!(history.contains("stopped by"), "{history}");
    }
}

#[test]
fn a_cancelled_run_releases_all_that_it_holds_and_a_waiting_one_does_too() {
    let redis = Redis::left_empty();
    let cancel = |name: &str| {
        let words = words!("run -q --supersede --cancel-in-progress {} -- true", name);
        outcome(&mut redis.redlock(words)).assert_code(0);
    };
    let mut several = redis.run("a b", "echo ready; exec sleep 60");
    let several = Running::ready(&mut several);
    cancel("b");
    several.finish_saying(79, "stopped by");
    assert_nothing_left(&redis);
    // The run holds a and waits for b: no work has begun that would need a.
    redis.cli(&["SET", "redlock:b", "theirs"]);
    let waiting = Running::start(&mut redis.redlock(&["run", "a", "b", "--", "true"]));
    wait_until("it waits", || redis.queue("b").len() == 1);
    cancel("a");
    waiting.finish_saying(79, "stopped by");
    redis.cli(&["DEL", "redlock:b"]);
}

#[test]
fn a_job_that_is_cancelled_and_killed_at_any_moment_leaves_nothing() {
    let quickly = (0..12).map(|pause| ("1s", pause));
    for (ttl, pause) in quickly.chain([("6s", SLOWLY)]) {
        let redis = Redis::left_empty();
        // The processes of the job have the test's home in their environment.
        let script = "trap '' INT TERM; sleep 60 & sleep 60; sleep 60";
        let mut run = Running::start(&mut redis.run(&format!("-q --ttl {ttl} a"), script));
        cancel(&mut run, pause);
        wait_until("it has ended", || run.has_ended());
        // The waiter gets the lock after this TTL, not the usual one. By then only what COMMAND has started may be left, which
        // the kernel doesn't kill.
        ends(&redis, "run -q -w 20s a -- true").assert_code(0);
        let left = processes_of(redis.dir.path());
        assert!(left.iter().all(|name| name == "sleep"), "{pause}: {left:?}");
    }
}

#[test]
fn a_numbered_run_whose_redlock_is_killed_as_soon_as_it_begins_still_keeps_older_ones_out() {
    for ttl in ["30s", "3s"] {
        let redis = Redis::start();
        let holder = Gated::start(&redis, words!("--supersede --seq 1 a")).ready();
        let options = format!("--ttl {ttl} --supersede --seq 5 a");
        let mut newer = Running::start(&mut redis.run(&options, "kill -9 $PPID"));
        newer.wait_until_queued(&redis);
        holder.end();
        newer.finish();
        // Older runs stay out even after the lease has ended.
        let is_over = || !redis.is_held("a");
        wait_until("the older one comes", || ttl == "30s" || is_over());
        ends(&redis, "run --supersede --seq 3 a -- true").assert_code(75);
    }
}

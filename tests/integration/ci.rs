//! Pipelines: links to jobs, the newest deploy, joining a run, and cancelled jobs.

use std::io::Write;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Gated, Redis, Running, assert_nothing_left, is_alive, outcome, pipe, queued, wait_until,
};

#[test]
fn the_link_to_a_ci_job_and_the_reason_show_to_others() {
    let github = [
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_SERVER_URL", "https://github.com"),
        ("GITHUB_REPOSITORY", "o/r"),
        ("GITHUB_RUN_ID", "7"),
    ];
    for (variables, url) in [
        (&github[..], "https://github.com/o/r/actions/runs/7"),
        (
            &[("CI_JOB_URL", "https://gitlab/j/1")],
            "https://gitlab/j/1",
        ),
        (
            &[("JENKINS_URL", "x"), ("BUILD_URL", "https://j/1/")],
            "https://j/1/",
        ),
        (&[("BUILDKITE_BUILD_URL", "https://b/1")], "https://b/1"),
        (&[("CIRCLE_BUILD_URL", "https://c/1")], "https://c/1"),
    ] {
        let redis = Redis::start();
        let command = ["a", "-c", "echo ready; exec sleep 60"];
        let mut run = redis.redlock(&[&["run", "--reason", "release 7"], &command[..]].concat());
        let mut holder = Running::start(run.envs(variables.iter().copied()));
        holder.expect_line("ready");
        let json = outcome(&mut redis.redlock(&["status", "--json"])).stdout;
        assert!(json.contains(&format!("\"url\":\"{url}\"")), "{json}");
        let table = outcome(&mut redis.redlock(&["status"])).stdout;
        assert!(table.contains(&format!("(release 7)  {url}")), "{table}");
        let waiter = outcome(&mut redis.redlock(&["run", "-w", "1200ms", "a", "--", "true"]));
        let said = format!("(release 7, {url})");
        waiter.assert_code(75).assert_says(&said);
        assert_eq!(waiter.stderr.matches(&said).count(), 2, "{waiter:?}");
    }
}

#[test]
fn a_late_old_run_neither_displaces_nor_follows_a_newer_one() {
    let redis = Redis::start();
    let deploy = |order: &'static str| ["-q", "--supersede", "--order", order, "a"];
    let late = |order: &'static str| {
        let arguments = [
            &["run", "--supersede", "--order", order, "a"],
            &["--", "true"][..],
        ]
        .concat();
        outcome(&mut redis.redlock(&arguments))
    };
    let running = Gated::start(&redis, &deploy("5")).ready();
    // Newer than the one that runs: it waits. Older: it gives up.
    let waiting = Gated::queued(&redis, &deploy("8"));
    late("4").assert_code(75).assert_says("superseded by");
    late("7")
        .assert_code(75)
        .assert_says(&format!("(pid {})", waiting.run.pid()));
    assert_eq!(redis.queue("a"), [waiting.run.pid()]);
    // The same again takes the place of the one before, and a newer one too.
    let again = Gated::queued(&redis, &deploy("8"));
    waiting.run.finish().assert_code(75);
    let newest = Gated::queued(&redis, &deploy("9"));
    again.run.finish().assert_code(75);
    running.end();
    newest.ready().end();
    // Long done.
    late("8").assert_code(75).assert_says("superseded by");
    late("9").assert_code(0);
    outcome(&mut redis.redlock(&["run", "a", "--", "true"])).assert_code(0);
    assert_nothing_left(&redis);
    outcome(&mut redis.redlock(&["run", "--order", "1", "a", "--", "true"])).assert_code(64);
}

#[test]
fn a_run_that_is_to_be_cancelled_is_stopped_and_says_by_whom() {
    for mode in [&[][..], &["--shared"], &["--slots", "2"]] {
        let redis = Redis::start();
        let script = "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
        let hold = [&["run"], mode, &["a", "-c", script]].concat();
        let mut holder = Running::start(&mut redis.redlock(&hold));
        holder.expect_line("ready");
        let newest = [
            "run",
            "--supersede",
            "--cancel-running",
            "a",
            "--",
            "echo",
            "newest",
        ];
        let newest = Running::start(&mut redis.redlock(&newest));
        let by = format!("(pid {})", newest.pid());
        holder.expect_line("term");
        holder
            .finish()
            .assert_code(79)
            .assert_says("cancelled by")
            .assert_says(&by);
        let end = newest.finish();
        assert_eq!(end.assert_code(0).stdout, "newest\n");
        let history = outcome(&mut redis.redlock(&["history", "a"])).stdout;
        assert!(
            history.contains("cancelled by") && history.contains(&by),
            "{history}"
        );
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_cancelled_run_keeps_its_lock_until_it_is_dead() {
    let redis = Redis::start();
    let script = "trap '' TERM; echo ready; while :; do sleep 0.01; done";
    let mut holder = Running::start(&mut redis.redlock(&["run", "-k", "500ms", "a", "-c", script]));
    holder.expect_line("ready");
    let token = redis.cli(&["GET", "redlock:a"]);
    let newest = [
        "run",
        "-q",
        "--supersede",
        "--cancel-running",
        "a",
        "--",
        "true",
    ];
    let newest = queued(&redis, &newest);
    wait_until("the word is there", || {
        redis
            .cli(&["HKEYS", "{redlock:a}:state"])
            .contains("cancelled:")
    });
    assert_eq!(redis.cli(&["GET", "redlock:a"]), token);
    holder.finish().assert_code(79);
    newest.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn those_who_join_end_as_the_run_does_that_is_going_on() {
    for (script, status) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("sleep 60", 124),
        ("redlock release --force -q a; sleep 60", 79),
    ] {
        let redis = Redis::start();
        let gate = format!(
            "echo ready; read go <{}/gate; {script}",
            redis.dir.path().display()
        );
        let mut fifo = pipe(&redis.dir.path().join("gate"));
        let hold = ["run", "-q", "-t", "1500ms", "a", "-c", &gate];
        let mut holder = Running::start(&mut redis.redlock(&hold));
        holder.expect_line("ready");
        let join = ["run", "-q", "--join", "a", "--", "echo", "ran"];
        let joined: Vec<Running> = (0..3)
            .map(|_| Running::start(&mut redis.redlock(&join)))
            .collect();
        // They listen to what becomes of it, over a connection each.
        wait_until("they have looked", || {
            let clients = redis.cli(&["CLIENT", "LIST"]);
            clients
                .lines()
                .filter(|line| line.contains("flags=t") || line.contains("resp=3"))
                .count()
                >= 3
        });
        fifo.write_all(b"go\n").unwrap();
        holder.finish().assert_code(status);
        for run in joined {
            let end = run.finish();
            assert_eq!(
                (end.code(), end.stdout.as_str()),
                (Some(status), ""),
                "{script}"
            );
        }
        assert_nothing_left(&redis);
    }
}

#[test]
fn when_the_run_that_was_joined_dies_one_of_those_who_joined_runs() {
    let redis = Redis::start();
    let mut holder = Gated::start(&redis, &["-q", "a"]).ready();
    let script = "echo ran; exit 4";
    let join = ["run", "-q", "--join", "a", "-c", script];
    let joined: Vec<Running> = (0..4)
        .map(|_| Running::start(&mut redis.redlock(&join)))
        .collect();
    wait_until("they have looked", || redis.calls("lrange") >= 4);
    holder.run.kill();
    let ends: Vec<_> = joined.into_iter().map(Running::finish).collect();
    let ran = ends.iter().filter(|end| end.stdout == "ran\n").count();
    assert!(ends.iter().all(|end| end.code() == Some(4)), "{ends:?}");
    // One that comes when it is over runs itself, as anybody would.
    assert!(ran >= 1, "{ends:?}");
    let history = outcome(&mut redis.redlock(&["history", "--json", "a"])).stdout;
    assert_eq!(history.matches("\"expired\"").count(), 1, "{history}");
    assert_nothing_left(&redis);
}

#[test]
fn joining_what_leaves_no_status_is_waiting_for_it() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "foreign", "PX", "600"]);
    let join = ["run", "-q", "--join", "a", "--", "echo", "ran"];
    assert_eq!(
        outcome(&mut redis.redlock(&join)).assert_code(0).stdout,
        "ran\n"
    );
    outcome(&mut redis.redlock(&["acquire", "a", "--ttl", "1s"])).assert_code(0);
    assert_eq!(
        outcome(&mut redis.redlock(&join)).assert_code(0).stdout,
        "ran\n"
    );
    redis.cli(&["SET", "redlock:a", "foreign"]);
    let join = ["run", "-w", "100ms", "--join", "a", "--", "true"];
    outcome(&mut redis.redlock(&join))
        .assert_code(75)
        .assert_says("another client");
    outcome(&mut redis.redlock(&["run", "--join", "a", "b", "--", "true"])).assert_code(64);
}

/// What runners do to a job that is cancelled, quicker.
fn cancel(run: &mut Running) {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        if run.has_ended() {
            return;
        }
        let _ = kill(Pid::from_raw(run.pid()), signal);
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Neither child nor place nor lock is left, at the latest after a TTL.
fn assert_gone(redis: &Redis, child: Option<i32>) {
    wait_until("its child is gone", || {
        child.is_none_or(|child| !is_alive(child))
    });
    wait_until("its lock is free", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    assert_eq!(redis.queue("a"), [0; 0]);
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(0);
    assert_nothing_left(redis);
}

#[test]
fn a_job_that_is_cancelled_while_it_waits_leaves_nothing() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let mut waiter = queued(&redis, &["run", "a", "--", "true"]);
    cancel(&mut waiter);
    assert_eq!(redis.queue("a"), [0; 0]);
    waiter.finish().assert_code(128 + 2);
    holder.end();
    assert_gone(&redis, None);
}

#[test]
fn a_job_that_is_cancelled_while_it_starts_leaves_nothing() {
    let redis = Redis::start();
    for _ in 0..10 {
        let script = "trap '' INT TERM; while :; do sleep 0.01; done";
        let mut run =
            Running::start(&mut redis.redlock(&["run", "--ttl", "1s", "a", "-c", script]));
        wait_until("it has asked for the lock", || {
            run.has_ended() || redis.cli(&["EXISTS", "redlock:a"]) == "1"
        });
        // The moment before, while or after its child is made.
        let _ = kill(Pid::from_raw(run.pid()), Signal::SIGINT);
        let _ = kill(Pid::from_raw(run.pid()), Signal::SIGTERM);
        run.finish();
        assert_gone(&redis, None);
    }
}

#[test]
fn a_job_that_is_cancelled_while_it_runs_leaves_nothing_even_if_it_ignores_all() {
    let redis = Redis::start();
    let script = "trap '' INT TERM; sleep 60 & echo $!; while :; do sleep 0.01; done";
    let mut run = Running::start(&mut redis.redlock(&["run", "--ttl", "1s", "a", "-c", script]));
    let child = run.line().parse().unwrap();
    cancel(&mut run);
    run.finish();
    assert_gone(&redis, Some(child));
}

#[test]
fn a_job_that_is_cancelled_while_it_releases_leaves_nothing() {
    let redis = Redis::start();
    let mut run = Gated::start(&redis, &["--ttl", "1s", "--connect-timeout", "10s", "a"]).ready();
    redis.stall();
    run.open();
    let moment = run.run.line();
    assert!(!moment.is_empty());
    cancel(&mut run.run);
    redis.resume();
    run.run.finish();
    assert_gone(&redis, None);
}

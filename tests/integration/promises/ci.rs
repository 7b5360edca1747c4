//! Pipelines: links to jobs, the newest deploy, joining a run, and cancelled jobs.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Gated, Redis, Running, assert_nothing_left, is_alive, outcome, queued, wait_until,
};

#[test]
fn the_link_to_a_ci_job_and_the_reason_show_to_others() {
    let github = [
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_SERVER_URL", "https://github.com"),
        ("GITHUB_REPOSITORY", "o/r"),
        ("GITHUB_RUN_ID", "7"),
    ];
    let waiting = [
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
    ]
    .map(|(variables, url)| {
        let redis = Redis::start();
        let command = ["a", "-c", "echo ready; exec sleep 60"];
        let mut run = redis.redlock(&[&["run", "--reason", "release 7"], &command[..]].concat());
        let mut holder = Running::start(run.envs(variables.iter().copied()));
        holder.expect_line("ready");
        let json = outcome(&mut redis.redlock(&["status", "--json"])).stdout;
        assert!(json.contains(&format!("\"url\":\"{url}\"")), "{json}");
        let table = outcome(&mut redis.redlock(&["status"])).stdout;
        assert!(table.contains(&format!("(release 7)  {url}")), "{table}");
        let waiter = Running::start(&mut redis.redlock(&["run", "-w", "6s", "a", "--", "true"]));
        (redis, holder, waiter, url)
    });
    // It names the holder after a second, and when it gives up.
    for (_redis, _holder, waiter, url) in waiting {
        let said = format!("(release 7, {url})");
        let waiter = waiter.finish();
        waiter.assert_code(75).assert_says(&said);
        assert_eq!(waiter.stderr.matches(&said).count(), 2, "{waiter:?}");
    }
}

#[test]
fn redlock_who_or_the_ci_job_shows_in_place_of_user_and_host() {
    let github = [
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_REPOSITORY", "acme/shop"),
        ("GITHUB_JOB", "deploy"),
        ("GITHUB_RUN_NUMBER", "1234"),
    ];
    for (who, in_file, shown) in [
        (None, "", "acme/shop deploy #1234"),
        (Some("agent 7"), "REDLOCK_WHO=agent 8\n", "agent 7"),
        (None, "REDLOCK_WHO=agent 8\n", "agent 8"),
        (Some("  "), "", "acme/shop deploy #1234"),
        (Some("\u{1b}[1m"), "", "\\u{1b}[1m"),
        (
            Some("agent of redis://me:hunter2@h"),
            "",
            "agent of redis://",
        ),
    ] {
        let redis = Redis::start();
        fs::write(redis.dir.path().join("redlock.env"), in_file).unwrap();
        let mut holder = redis.run("a", "echo ready; exec sleep 60");
        holder
            .envs(github)
            .env("XDG_CONFIG_HOME", redis.dir.path())
            .envs(who.map(|who| ("REDLOCK_WHO", who)));
        let mut holder = Running::start(&mut holder);
        holder.expect_line("ready");
        for words in [
            &["status"][..],
            &["status", "a"],
            &["run", "-n", "a", "--", "true"],
            &["stop", "a"],
            &["history", "a"],
        ] {
            let said = outcome(&mut redis.redlock(words));
            let text = said.stdout.clone() + &said.stderr;
            assert!(text.contains(shown), "{words:?}: {text}");
            assert!(!text.contains("hunter2"), "{words:?}: {text}");
        }
        holder.finish();
        let json = outcome(&mut redis.redlock(&["history", "--json", "a"])).stdout;
        assert!(
            json.contains("\"who\"") && json.contains("\"host\""),
            "{json}"
        );
    }
}

#[test]
fn the_runner_of_github_is_told_to_mask_the_token() {
    let redis = Redis::start();
    let acquire = |options: &[&str]| {
        outcome(&mut redis.redlock(&[&["-q", "acquire", "a", "--format"], options].concat()))
    };
    // It reads standard error, too, where standard output goes to the file for variables. A command stands at the
    // start of its line.
    let end = acquire(&["github"]);
    let token = redis.cli(&["GET", "redlock:a"]);
    assert_eq!(end.stderr, format!("::add-mask::{token}\n"));
    let variable = format!("\nREDLOCK_TOKEN={token}\n");
    assert!(end.stdout.contains(&variable), "{end:?}");
    assert!(!end.stdout.contains("add-mask"), "{end:?}");
    outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
    acquire(&["token"]).assert_code(0).assert_silent();
    let refused = acquire(&["github", "-n"]);
    assert!(
        !refused.assert_code(75).stderr.contains("add-mask"),
        "{refused:?}"
    );
}

#[test]
fn a_late_old_run_neither_displaces_nor_follows_a_newer_one() {
    let redis = Redis::start();
    let deploy = |order: &'static str| ["-q", "--supersede", "--seq", order, "a"];
    let late = |order: &'static str| {
        let arguments = [
            &["run", "--supersede", "--seq", order, "a"],
            &["--", "true"][..],
        ]
        .concat();
        outcome(&mut redis.redlock(&arguments))
    };
    let running = Gated::start(&redis, &deploy("5")).ready();
    // Newer than the one that runs: it waits. Older: it gives up.
    let waiting = Gated::queued(&redis, &deploy("8"));
    late("4")
        .assert_code(75)
        .assert_says("build 4 is older than build 5 of ")
        .assert_says(
            "to run an older build (a rollback), leave out --seq, or give a number above 5",
        );
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
    late("8")
        .assert_code(75)
        .assert_says("build 8 is older than build 9 of ");
    late("9").assert_code(0);
    outcome(&mut redis.redlock(&["run", "a", "--", "true"])).assert_code(0);
    assert_nothing_left(&redis);
    // The number alone is enough.
    outcome(&mut redis.redlock(&["run", "--seq", "1", "a", "--", "true"])).assert_code(75);
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
            "--cancel-in-progress",
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
            .assert_says("stopped by")
            .assert_says(&by);
        let end = newest.finish();
        assert_eq!(end.assert_code(0).stdout, "newest\n");
        let history = outcome(&mut redis.redlock(&["history", "a"])).stdout;
        assert!(
            history.contains("stopped by") && history.contains(&by),
            "{history}"
        );
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_cancelled_run_keeps_its_lock_until_it_is_dead() {
    let redis = Redis::start();
    let script = "trap '' TERM; echo $$; while :; do sleep 0.01; done";
    let mut holder = Running::start(&mut redis.run("-k 500ms --hold-at-least 1m a", script));
    let deaf = holder.line();
    let newest = format!("! kill -0 {deaf}");
    let newest = words!("run -q --supersede --cancel-in-progress a -c", &newest);
    let newest = Running::start(&mut redis.redlock(newest));
    holder.finish().assert_code(79);
    newest.finish().assert_code(0);
    assert_nothing_left(&redis);
}

/// What runners do to a job that is cancelled, quicker, but slowly enough for each signal to be a
/// request of its own.
fn cancel(run: &mut Running) {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        if run.has_ended() {
            return;
        }
        let _ = kill(Pid::from_raw(run.pid()), signal);
        std::thread::sleep(Duration::from_millis(600));
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
    let waiter = queued(&redis, &["run", "a", "--", "true"]);
    // The first signal is enough.
    waiter.signal(Signal::SIGINT);
    waiter.finish().assert_code(128 + 2);
    assert_eq!(redis.queue("a"), [0; 0]);
    holder.end();
    assert_gone(&redis, None);
}

#[test]
fn a_job_that_is_cancelled_while_it_starts_leaves_nothing() {
    let redis = Redis::start();
    for _ in 0..10 {
        let script = "trap '' INT TERM; while :; do sleep 0.01; done";
        let mut run = Running::start(&mut redis.run("--ttl 1s a", script));
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
    let mut run = Running::start(&mut redis.run("--ttl 1s a", script));
    let child = run.line().parse().unwrap();
    cancel(&mut run);
    run.finish();
    assert_gone(&redis, Some(child));
}

#[test]
fn a_job_that_is_cancelled_while_it_releases_leaves_nothing() {
    let redis = Redis::start();
    let mut run = Gated::start(&redis, &["--ttl", "6s", "REDLOCK_REDIS_TIMEOUT=10s", "a"]).ready();
    redis.stall();
    run.open();
    let moment = run.run.line();
    assert!(!moment.is_empty());
    cancel(&mut run.run);
    redis.resume();
    run.run.finish();
    assert_gone(&redis, None);
}

#[test]
fn a_link_that_the_environment_says_cannot_drive_the_terminal() {
    let redis = Redis::start();
    let mut holder = redis.run("a", "echo ready; exec sleep 60");
    let mut holder = Running::start(holder.env("CI_JOB_URL", "https://x/\x1b[2J\n1"));
    holder.expect_line("ready");
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["history", "a"],
        &["run", "-n", "a", "--", "true"],
    ] {
        let end = outcome(&mut redis.redlock(arguments));
        assert!(
            !(end.stdout + &end.stderr).contains('\x1b'),
            "{arguments:?}"
        );
    }
}

/// A deploy with a number that says so when it runs.
fn deploy(redis: &Redis, order: u32, options: &[&str]) -> Running {
    let order = order.to_string();
    let script = format!(r#"echo {order} >>"$HOME/order""#);
    let arguments = [
        &["run", "--supersede", "--seq", &order],
        options,
        &["a", "-c", &script],
    ];
    Running::start(&mut redis.redlock(&arguments.concat()))
}

#[test]
fn an_old_run_gives_up_at_whatever_stage_a_newer_one_is_and_an_equal_one_does_not() {
    let redis = Redis::start();
    let late = || {
        for wait in ["-w1m", "-n"] {
            let end = deploy(&redis, 6, &[wait]).finish();
            end.assert_code(75)
                .assert_says("build 6 is older than build 7 of ");
        }
    };
    // Queued, behind a holder without a number.
    let holder = Gated::start(&redis, &["a"]).ready();
    let newer = ["-q", "--supersede", "--seq", "7", "a"];
    let newer = Gated::queued(&redis, &newer);
    late();
    assert_eq!(redis.queue("a"), [newer.run.pid()]);
    holder.end();
    // Running.
    let newer = newer.ready();
    late();
    // One with an equal number waits for it.
    let mut equal = deploy(&redis, 7, &[]);
    equal.wait_until_queued(&redis);
    late();
    newer.end();
    // Done.
    equal.finish().assert_code(0);
    late();
    deploy(&redis, 7, &["-n"]).finish().assert_code(0);
    // -E counts here, too.
    deploy(&redis, 1, &["-E", "5"]).finish().assert_code(5);
    assert_nothing_left(&redis);
}

#[test]
fn of_many_deploys_at_once_those_that_run_run_in_their_order_and_the_newest_is_the_last() {
    for options in [&[][..], &["--cancel-in-progress"]] {
        let redis = Redis::start();
        let all: Vec<Running> = (0..12)
            .map(|number| deploy(&redis, 1 + number * 5 % 12, &[&["-q"], options].concat()))
            .collect();
        for run in all {
            let end = run.finish();
            assert!(matches!(end.code(), Some(0 | 75 | 79)), "{end:?}");
        }
        let ran = std::fs::read_to_string(redis.dir.path().join("order")).unwrap();
        let ran: Vec<u32> = ran.lines().map(|line| line.parse().unwrap()).collect();
        assert!(ran.is_sorted() && ran.last() == Some(&12), "{ran:?}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_late_old_run_stops_no_other() {
    let redis = Redis::start();
    let newer = Gated::start(&redis, &["-q", "--supersede", "--seq", "7", "a"]).ready();
    deploy(&redis, 6, &["--cancel-in-progress"])
        .finish()
        .assert_code(75);
    newer.end();
}

#[test]
fn all_holders_are_stopped_and_the_lock_goes_to_the_newest() {
    let redis = Redis::start();
    let script =
        "trap 'echo term; sleep 0.3; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let holders: Vec<Running> = [&["-s"][..], &["-s"], &["-s", "REDLOCK_ON_LOST=warn"]]
        .into_iter()
        .map(|mode| {
            let hold = [&["run"], mode, &["a", "-c", script]].concat();
            let mut holder = Running::start(&mut redis.redlock(&hold));
            holder.expect_line("ready");
            holder
        })
        .collect();
    let newer = |name: &str| {
        let command = words!("run --supersede --cancel-in-progress a -- echo", name);
        queued(&redis, command)
    };
    let first = newer("first");
    let by = format!("(pid {})", first.pid());
    let newest = newer("newest");
    first.finish().assert_code(75).assert_says("superseded by");
    for holder in holders {
        let end = holder.finish();
        end.assert_code(79).assert_says("stopped by");
        let by_newest = format!("(pid {})", newest.pid());
        assert!(
            end.stderr.contains(&by) || end.stderr.contains(&by_newest),
            "{end:?}"
        );
        assert_eq!(end.stdout, "ready\nterm\n");
    }
    assert_eq!(newest.finish().assert_code(0).stdout, "newest\n");
    assert_nothing_left(&redis);
}

#[test]
fn a_cancelled_run_releases_all_that_it_holds_and_a_waiting_one_does_too() {
    let redis = Redis::start();
    let cancel = |name: &'static str| {
        outcome(&mut redis.redlock(words!(
            "run -q --supersede --cancel-in-progress {} -- true",
            name
        )))
        .assert_code(0);
    };
    let mut several = redis.run("a b", "echo ready; exec sleep 60");
    let mut several = Running::start(&mut several);
    several.expect_line("ready");
    cancel("b");
    several.finish().assert_code(79).assert_says("stopped by");
    assert_nothing_left(&redis);
    // It holds a and waits for b: nothing runs yet that would need a.
    redis.cli(&["SET", "redlock:b", "theirs"]);
    let waiting = Running::start(&mut redis.redlock(&["run", "a", "b", "--", "true"]));
    wait_until("it waits", || redis.queue("b").len() == 1);
    cancel("a");
    waiting.finish().assert_code(79).assert_says("stopped by");
    redis.cli(&["DEL", "redlock:b"]);
    assert_nothing_left(&redis);
}

#[test]
fn a_job_that_is_cancelled_and_killed_at_any_moment_leaves_nothing() {
    // The processes of each are known by the length of their sleep.
    for step in 0..12_u32 {
        let redis = Redis::start();
        let mark = format!("{}.{step}", 500_000 + std::process::id());
        let script = format!("trap '' INT TERM; sleep {mark} & sleep {mark}; sleep {mark}");
        let run = ["run", "-q", "--ttl", "1s", "a", "-c", &script];
        let mut run = Running::start(&mut redis.redlock(&run));
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
            std::thread::sleep(Duration::from_millis(u64::from(step)));
            if !run.has_ended() {
                let _ = kill(Pid::from_raw(run.pid()), signal);
            }
        }
        wait_until("it has ended", || run.has_ended());
        // The waiter has it after a TTL, not after the usual one, and by then nothing of the job is left.
        outcome(&mut redis.redlock(&["run", "-q", "-w", "20s", "a", "--", "true"])).assert_code(0);
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let left = processes.filter_map(|entry| {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            line.contains(&mark).then_some((pid, line))
        });
        for (pid, line) in left.collect::<Vec<_>>() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            // What the child has started is not the kernel's to kill.
            assert!(line.starts_with("sleep"), "{step}: {line}");
        }
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_numbered_run_whose_redlock_is_killed_as_soon_as_it_begins_still_keeps_older_ones_out() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["--supersede", "--seq", "1", "a"]).ready();
    let newer = [
        "run",
        "--supersede",
        "--seq",
        "5",
        "a",
        "-c",
        "kill -9 $PPID",
    ];
    let newer = queued(&redis, &newer);
    holder.end();
    newer.finish();
    outcome(&mut redis.redlock(words!("run --supersede --seq 3 a -- true"))).assert_code(75);
}

#[test]
fn a_numbered_run_that_is_killed_as_soon_as_it_begins_keeps_older_ones_out_when_its_lease_is_over()
{
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let options = ["run", "--ttl", "3s", "--supersede", "--seq", "5", "a"];
    let newer = queued(&redis, &[&options[..], &["-c", "kill -9 $PPID"]].concat());
    holder.end();
    newer.finish();
    wait_until("its lease is over", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
    outcome(&mut redis.redlock(words!("run --supersede --seq 3 a -- true"))).assert_code(75);
}

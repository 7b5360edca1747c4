//! Work that can't be killed or seen keeps its lock. redlock renews the lock until the kernel reports the end of the work, or a
//! person gives it up.
//!
//! All tests need root, and a temporary directory that permits setuid programs; otherwise they check nothing.

use crate::promises::keeper::keeper;
use crate::support::prelude::*;

/// Program of root that prints `ready` with its pid, and ends when the gate opens.
const ROOTS: &str = "./become sh -c 'echo ready $$; exec head -n 1 gate'";

/// Starts a command of this user below a /proc with this hidepid: 2 and 4 hide the processes of other users.
fn start(user: &OtherUser, redis: &Redis, hidepid: u8, words: &[&str]) -> Running {
    let mount = format!(r#"mount -t proc -o hidepid={hidepid} proc /proc && exec "$@""#);
    let mut command = match hidepid {
        0 => user.command(words),
        _ => user.command_below(&["unshare", "-m", "sh", "-c", &mount, "sh"], words),
    };
    Running::start(command.env("REDLOCK_URL", redis.tcp_url()))
}

/// Starts a run of this script under the lock "a", with stderr joined with stdout.
fn run(user: &OtherUser, redis: &Redis, hidepid: u8, script: &str) -> Running {
    let shell = r#"exec ./redlock run --ttl 9s -k 300ms a -c "$0" 2>&1"#;
    start(user, redis, hidepid, &["sh", "-c", shell, script])
}

/// Reads lines up to one that contains this text.
#[track_caller]
fn line_with(text: &str, run: &mut Running) -> String {
    loop {
        let line = run.line();
        if line.contains(text) {
            return line;
        }
    }
}

/// Asserts that the lock "a" is renewed twice, the first time perhaps by an earlier request, and that nobody else gets it.
#[track_caller]
fn assert_kept(redis: &Redis) {
    redis.await_calls("pexpire", 4);
    ends(redis, "run -n a -- echo beside").assert_code(75);
}

#[track_caller]
fn assert_free(redis: &Redis) {
    ends(redis, "run -n a -- true").assert_code(0);
}

#[test]
fn work_that_may_not_be_killed_or_seen_keeps_its_lock_until_it_ends() {
    let beside = format!("{ROOTS} & exec sleep 50");
    let in_its_place = format!("exec {ROOTS}");
    // The work becomes redlock's child when its parent has ended.
    let orphan = format!("({ROOTS} & exit 0); exec sleep 50");
    let rows = [
        (0, &beside),
        (0, &in_its_place),
        (2, &beside),
        (2, &orphan),
        (4, &beside),
        (4, &orphan),
    ];
    side_by_side(rows, |(hidepid, script)| {
        let mut user = some_or_return!(OtherUser::new());
        let redis = Redis::start();
        let mut run = run(&user, &redis, hidepid, script);
        let roots = run.pid_after("ready");
        run.signal(Signal::SIGTERM);
        let line = line_with("can't kill", &mut run);
        let says = match hidepid {
            0 => format!("process {roots} (head of root): not permitted; the lock is kept"),
            _ => format!("can't kill process {roots}: not permitted"),
        };
        assert!(line.contains(&says), "hidepid={hidepid}, {script}: {line}");
        let mut stop = Running::start(&mut redis.redlock(&["stop", "a"]));
        assert_kept(&redis);
        assert!(is_alive(roots) && !run.has_ended() && !stop.has_ended());
        user.open_gate();
        let end = run.finish();
        stop.finish().assert_code(0);
        assert!(!is_alive(roots), "{end:?}");
        assert_free(&redis);
    });
}

#[test]
fn a_second_signal_leaves_work_that_may_not_be_killed_and_its_lock() {
    let mut user = some_or_return!(OtherUser::new());
    let redis = Redis::start();
    let mut run = run(&user, &redis, 0, &format!("{ROOTS} & exec sleep 50"));
    let roots = run.pid_after("ready");
    run.signal(Signal::SIGTERM);
    line_with("interrupt redlock again to leave it running", &mut run);
    run.signal(Signal::SIGINT);
    let left = format!("left process {roots} running; the lock is not released");
    line_with(&left, &mut run);
    wait_until("redlock ends", || run.has_ended());
    assert!(is_alive(roots));
    assert!(redis.is_held("a"));
    user.open_gate();
    run.finish().assert_code(143);
}

#[test]
fn a_keeper_keeps_the_lock_of_a_killed_script_for_work_that_may_not_be_killed() {
    let script = format!(
        r#"eval "$(./redlock acquire a --ttl 9s -k 300ms --while-pid $$)"
        {ROOTS} &
        wait"#
    );
    side_by_side([0, 2], |hidepid| {
        let mut user = some_or_return!(OtherUser::new());
        let redis = Redis::start();
        let mut script = start(&user, &redis, hidepid, &["sh", "-c", &script]);
        let roots = script.pid_after("ready");
        let keeper = keeper(&script);
        // By then the keeper has found the work of root.
        redis.await_calls("pexpire", 3);
        script.signal(Signal::SIGKILL);
        assert_kept(&redis);
        assert!(is_alive(roots) && is_alive(keeper));
        user.open_gate();
        wait_until("the keeper ends", || !is_alive(keeper));
        assert!(!is_alive(roots));
        let is_free = !redis.is_held("a");
        // The keeper may be unable to see the children of root's work: then the lock ends with its lease.
        assert_eq!(is_free, hidepid == 0);
        script.finish();
    });
}

#[test]
fn a_guard_whose_work_may_not_be_killed_keeps_the_lock_after_the_end_of_its_run() {
    side_by_side(["itself", "stop", "lease"], |ends_by| {
        let mut user = some_or_return!(OtherUser::new());
        let redis = Redis::start();
        let script = r#"echo "$REDLOCK_HELD"; exec sleep 50"#;
        let acquires = r#"eval "$(redlock acquire --ttl 8s a)"; eval "$0""#;
        let mut run = Running::start(&mut match ends_by {
            "lease" => directly(&redis, &["sh", "-c", acquires, script]),
            _ => redis.redlock(words!("run --ttl 8s -k 300ms a -c", script)),
        });
        let held = run.line();
        let guard = r#"exec ./redlock guard -k 300ms -c "$0" 2>&1"#;
        let mut guard = user.command(&["sh", "-c", guard, &format!("exec {ROOTS}")]);
        guard.env("REDLOCK_URL", redis.tcp_url());
        let mut guard = Running::start(guard.env("REDLOCK_HELD", held));
        let roots = guard.pid_after("ready");
        let mut stop =
            (ends_by == "stop").then(|| Running::start(&mut redis.redlock(&["stop", "a"])));
        if ends_by == "itself" {
            run.signal(Signal::SIGTERM);
        }
        let lease_ends = Instant::now() + Duration::from_secs(8);
        let who = format!("process {roots} (head of root): not permitted; the lock is kept");
        line_with(&who, &mut guard);
        wait_until("the run's lease is over", || Instant::now() > lease_ends);
        let other = ["run", "-n", "a", "--", "echo", "beside"];
        outcome(&mut redis.redlock(&other)).assert_code(75);
        assert!(is_alive(roots) && !guard.has_ended());
        assert!(stop.as_mut().is_none_or(|stop| !stop.has_ended()));
        user.open_gate();
        guard.finish();
        if let Some(stop) = stop {
            stop.finish().assert_code(0);
        }
        if ends_by != "lease" {
            assert_free(&redis);
        }
        run.kill();
    });
}

#[test]
fn a_keeper_that_may_not_see_all_says_so_at_once_and_lets_the_lease_of_a_stopped_script_end() {
    let mut user = some_or_return!(OtherUser::new());
    let redis = Redis::start();
    // Nothing shows `head`, which survives: it belonged to root from its start, and its parent has ended.
    let script = r#"exec 2>&1; eval "$(./redlock acquire a --ttl 60s -k 300ms --while-pid $$)"
        ./become sh -c 'setsid head -n 1 gate &'; echo ready $$; exec sleep 50"#;
    let mut script = start(&user, &redis, 2, &["sh", "-c", script]);
    assert!(script.line().contains("(hidepid)"));
    script.pid_after("ready");
    let keeper = keeper(&script);
    ends(&redis, "stop -n a").assert_code(0);
    wait_until("the keeper ends", || !is_alive(keeper));
    assert!(redis.is_held("a"));
    user.open_gate();
    script.kill();
}

#[test]
fn a_setuid_command_that_proc_hides_dies_with_its_redlock() {
    let user = some_or_return!(OtherUser::new());
    for hidepid in [0, 2, 4] {
        let redis = Redis::start();
        // A setuid program keeps its user's real id, so redlock may kill it. But the kernel doesn't kill it any more when
        // redlock dies.
        let mut run = run(
            &user,
            &redis,
            hidepid,
            "echo ready $$; exec ./head -n 1 gate",
        );
        let command = run.pid_after("ready");
        await_watchdog(run.pid());
        run.signal(Signal::SIGKILL);
        wait_until("COMMAND is dead", || !is_alive(command));
        run.finish();
    }
}

#[test]
fn work_that_is_not_there_any_more_is_not_waited_for_where_proc_is_hidden() {
    let user = some_or_return!(OtherUser::new());
    let redis = Redis::start();
    let script = "./become true; setsid sleep 50 & echo ready $!; exec sleep 50";
    let mut run = run(&user, &redis, 2, script);
    let sleeper = run.pid_after("ready");
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(143);
    assert!(is_gone(sleeper));
    assert_free(&redis);
}

#[test]
fn doctor_warns_of_a_proc_that_hides_the_processes_of_others() {
    let user = some_or_return!(OtherUser::new());
    let redis = Redis::start();
    for (hidepid, mark) in [(0, "ok"), (1, "warn"), (2, "warn"), (4, "warn")] {
        let shown = start(&user, &redis, hidepid, &["./redlock", "doctor"])
            .finish()
            .stdout;
        let line = shown.lines().find(|line| line.contains(" proc "));
        let line = line.unwrap_or_else(|| panic!("{shown}")).trim();
        assert!(line.starts_with(mark), "hidepid={hidepid}: {line}");
        assert_eq!(line.contains("hidepid"), hidepid > 0, "{line}");
    }
}

#[test]
fn work_that_may_not_be_killed_and_forks_on_does_not_keep_redlock_from_its_renewals() {
    let user = some_or_return!(OtherUser::new());
    let redis = Redis::start();
    // The work starts one process after the other while the gate exists.
    let forks =
        "./become sh -c 'echo ready $$; while test -e gate; do /bin/true; done' & exec sleep 50";
    let mut run = run(&user, &redis, 0, forks);
    run.pid_after("ready");
    run.signal(Signal::SIGTERM);
    line_with("can't kill", &mut run);
    assert_kept(&redis);
    user.close_gate();
    run.finish().assert_code(143);
    assert_free(&redis);
}

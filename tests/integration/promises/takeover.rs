//! Taking over from a dead holder on this host, and what doesn't prove that it is dead.
//!
//! Where pid namespaces may not be made, the test that makes one checks nothing; another one writes
//! a namespace into what the holder left.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Gated, OtherUser, REDLOCK, Redis, Running, assert_nothing_left, assert_within, await_mark,
    await_watchdog, children, is_alive, is_permitted, moment, now, outcome, queued, wait_until,
};

const MS: Duration = Duration::from_millis(1);

/// A waiter that says when its turn came.
const STAMP: [&str; 4] = ["a", "--", "date", "+%s%N"];

/// A holder with its mark on this host, that is killed by and by. Until it has left the mark nobody
/// can know that it is dead.
fn holder(redis: &Redis, options: &[&str]) -> Running {
    let command = ["a", "--", "sh", "-c", "echo ready; exec sleep 60"];
    let mut run = Running::start(&mut redis.redlock(&[&["run"], options, &command].concat()));
    run.expect_line("ready");
    await_mark(redis, run.pid());
    run
}

/// Kills a holder, and sees COMMAND and the watchdog end: as long as they haven't, a run that doesn't wait is refused.
#[track_caller]
fn kill(holder: &mut Running) {
    let command = children(holder.pid());
    assert_eq!(command.len(), 1);
    let watchdog = await_watchdog(holder.pid());
    holder.kill();
    let all: Vec<i32> = command.into_iter().chain([watchdog]).collect();
    wait_until("all has ended", || !all.iter().any(|&pid| is_alive(pid)));
}

/// When the turn of a waiter came.
fn turn(waiter: Running) -> Duration {
    let end = waiter.finish();
    end.assert_code(0);
    moment(&end.stdout)
}

#[test]
fn the_lock_of_a_killed_holder_is_taken_over_within_100_ms() {
    crate::support::among_own_processes!();
    let mut times = Vec::new();
    for _ in 0..5 {
        let redis = Redis::start();
        let mut holder = holder(&redis, &["--ttl", "5m"]);
        let waiter = queued(&redis, &[&["run", "-q"], &STAMP[..]].concat());
        // A release at the same moment shows how long any hand-over takes on this machine now.
        let mut released = Gated::start(&redis, &["b"]).ready();
        let next = ["run", "-q", "b", "--", "date", "+%s%N"];
        let next = Running::start(&mut redis.redlock(&next));
        wait_until("it is queued", || !redis.queue("b").is_empty());
        released.open();
        holder.kill();
        times.push(turn(waiter).saturating_sub(turn(next)));
        released.run.finish().assert_code(0);
        assert_nothing_left(&redis);
    }
    assert_within(MS * 100, times);
}

#[test]
fn the_place_of_a_killed_member_of_a_group_is_taken_over() {
    crate::support::among_own_processes!();
    for mode in [&["--slots", "2"][..], &["--shared"]] {
        let redis = Redis::start();
        let mut killed = holder(&redis, &[mode, &["--ttl", "5m"]].concat());
        let stays = Gated::start(&redis, &[mode, &["--ttl", "5m", "a"]].concat()).ready();
        let slot = queued(&redis, &["run", "-q", "--slots", "2", "a", "--", "true"]);
        killed.kill();
        // Or this would be after minutes.
        slot.finish().assert_code(0);
        stays.end();
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_run_that_comes_after_the_holder_was_killed_gets_the_lock_at_once() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut holder = holder(&redis, &["--ttl", "5m"]);
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(75);
    kill(&mut holder);
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn each_lock_of_a_killed_holder_of_several_is_taken_over() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut holder = holder(&redis, &["--ttl", "5m", "b"]);
    kill(&mut holder);
    for name in ["a", "b"] {
        outcome(&mut redis.redlock(&["run", "-n", "-q", name, "--", "true"])).assert_code(0);
    }
    assert_nothing_left(&redis);
}

#[test]
fn the_queue_keeps_its_order_when_the_holder_is_killed() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut holder = holder(&redis, &["--ttl", "5m"]);
    let waiters: Vec<Running> = (0..5)
        .map(|label| {
            let script = format!(r#"echo {label} >>"$HOME/order""#);
            queued(&redis, &["run", "-q", "a", "-c", &script])
        })
        .collect();
    holder.kill();
    // Somebody without a place in the queue finds it dead, too.
    let late = Running::start(&mut redis.redlock(&["run", "-q", "a", "--", "true"]));
    for waiter in waiters.into_iter().chain([late]) {
        waiter.finish().assert_code(0).assert_silent();
    }
    let order = fs::read_to_string(redis.dir.path().join("order")).unwrap();
    assert_eq!(order, "0\n1\n2\n3\n4\n");
    assert_nothing_left(&redis);
}

#[test]
fn a_holder_that_is_stopped_is_not_dead() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let holder = holder(&redis, &["--ttl", "6s", "-k", "100ms"]);
    holder.suspend();
    assert_waits_for_the_expiry(&redis);
    // It notices without a message.
    holder.resume();
    holder.finish().assert_code(79);
}

#[test]
fn a_lock_that_an_inner_run_uses_outlives_the_outer_one_by_its_ttl() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    // The inner one lives in a session of its own, where the end of the outer one doesn't reach it.
    let script = "setsid redlock run --ttl 60s a -c 'echo ready; exec sleep 60' & wait";
    let mut outer = Running::start(&mut redis.run("--ttl 60s -k 100ms a", script));
    outer.expect_line("ready");
    outer.kill();
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(75);
    redis.cli(&["DEL", "redlock:a"]);
}

/// The lock is granted to no client before its lease is over, and then to the waiter.
#[track_caller]
fn assert_waits_for_the_expiry(redis: &Redis) {
    let asked = now();
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    assert!((200..=6000).contains(&left), "{}", redis.describe_key("a"));
    let end = outcome(&mut redis.redlock(&[&["run", "-q"], &STAMP[..]].concat()));
    end.assert_code(0);
    let waited = moment(&end.stdout).saturating_sub(asked);
    // Redis rounds what is left, by half a millisecond.
    assert!(
        waited + MS >= MS * u32::try_from(left).unwrap(),
        "{waited:?} of {left} ms"
    );
}

/// Rewrites what the holder said about itself: `change` gets the parts of its instance (boot,
/// namespace, pid, a time, session, user, two more namespaces) and its host.
fn disguise(redis: &Redis, change: impl Fn(&mut [String], &mut String)) {
    let token = redis.cli(&["GET", "redlock:a"]);
    let meta = "{redlock:a}:meta";
    let entry = redis.cli(&["HGET", meta, &token]);
    let start = entry.find('{').expect("an entry");
    let mut who: Value = serde_json::from_str(&entry[start..]).unwrap();
    let instance = who["instance"].as_str().expect("an instance");
    let mut parts: Vec<String> = instance.split(':').map(str::to_owned).collect();
    assert_eq!(parts.len(), 8, "{instance}");
    let mut host = who["host"].as_str().unwrap().to_owned();
    change(&mut parts, &mut host);
    who["instance"] = parts.join(":").into();
    who["host"] = host.into();
    let entry = format!("{}{who}", &entry[..start]);
    assert_eq!(redis.cli(&["HSET", meta, &token, &entry]), "0");
}

/// Nobody takes the lock of a killed holder over that looked like this.
#[track_caller]
fn assert_not_taken_over(change: impl Fn(&mut [String], &mut String)) {
    let redis = Redis::start();
    let mut holder = holder(&redis, &["--ttl", "6s", "-k", "100ms"]);
    disguise(&redis, change);
    holder.kill();
    assert_waits_for_the_expiry(&redis);
    assert_nothing_left(&redis);
}

#[test]
fn a_disguise_that_changes_nothing_is_no_obstacle() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut holder = holder(&redis, &["--ttl", "5m"]);
    disguise(&redis, |_, _| {});
    kill(&mut holder);
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn a_holder_of_another_boot_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    assert_not_taken_over(|parts, _| parts[0] = "01234567-89ab-cdef-0123-456789abcdef".into());
}

#[test]
fn a_holder_in_another_pid_namespace_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    assert_not_taken_over(|parts, _| parts[1] = "4026530000".into());
}

#[test]
fn a_holder_in_another_user_or_time_namespace_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    for part in [6, 7] {
        assert_not_taken_over(|parts, _| parts[part] = "4026530000".into());
    }
}

#[test]
fn a_holder_that_does_not_name_its_user_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    assert_not_taken_over(|parts, _| parts[5].clear());
}

#[test]
fn a_mark_that_another_user_has_planted_is_no_proof() {
    crate::support::among_own_processes!();
    let Some(user) = OtherUser::new() else {
        return;
    };
    let redis = Redis::start();
    let run = ["run", "--ttl", "6s", "-k", "100ms", "a", "--", "sh", "-c"];
    let command = ["echo ready; exec sleep 60"];
    let mut holder = Running::start(&mut user.redlock(&redis, &[&run[..], &command].concat()));
    holder.expect_line("ready");
    let mark = await_mark(&redis, holder.pid());
    // The same text in another file, which the holder may neither write to nor remove.
    holder.suspend();
    let planted = mark.with_extension("planted");
    fs::write(&planted, fs::read(&mark).unwrap()).unwrap();
    fs::rename(&planted, &mark).unwrap();
    let left = || redis.cli(&["PTTL", "redlock:a"]).parse::<u64>().unwrap();
    let before = left();
    holder.resume();
    wait_until("the lease is renewed", || left() > before);
    kill(&mut holder);
    assert_waits_for_the_expiry(&redis);
    assert_nothing_left(&redis);
    // It is nobody's who has held the lock.
    fs::remove_file(mark).unwrap();
}

#[test]
fn a_holder_on_another_host_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    assert_not_taken_over(|_, host| *host = "elsewhere".into());
}

#[test]
fn a_holder_whose_pid_is_another_process_now_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    // That of the tests, which started later than a moment after the boot.
    assert_not_taken_over(|parts, _| {
        parts[2] = std::process::id().to_string();
        parts[3] = "1".into();
    });
}

#[test]
fn a_holder_of_which_nothing_is_known_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    assert_not_taken_over(|parts, _| parts.iter_mut().for_each(String::clear));
    assert_not_taken_over(|parts, _| parts[2] = "-1".into());
    assert_not_taken_over(|parts, _| parts[2] = "0".into());
}

#[test]
fn a_holder_that_has_left_no_mark_here_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut holder = holder(&redis, &["--ttl", "6s", "-k", "100ms"]);
    fs::remove_file(await_mark(&redis, holder.pid())).unwrap();
    holder.kill();
    assert_waits_for_the_expiry(&redis);
    assert_nothing_left(&redis);
}

#[test]
fn a_holder_on_a_clone_of_this_machine_is_not_known_to_be_dead() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut holder = holder(&redis, &["--ttl", "6s", "-k", "100ms"]);
    let mark = await_mark(&redis, holder.pid());
    // The clone has all numbers of this machine, and only its token is another. The real one stands
    // still meanwhile, so that it doesn't miss its lock.
    holder.suspend();
    let meta = "{redlock:a}:meta";
    let token = redis.cli(&["GET", "redlock:a"]);
    let entry = redis.cli(&["HGET", meta, &token]);
    let of_the_clone = format!("0123456789abcdef0123456789abcdef{}", &token[32..]);
    redis.cli(&["SET", "redlock:a", &of_the_clone, "KEEPTTL"]);
    redis.cli(&["HDEL", meta, &token]);
    redis.cli(&["HSET", meta, &of_the_clone, &entry]);
    holder.kill();
    assert_waits_for_the_expiry(&redis);
    assert_nothing_left(&redis);
    // Nobody has taken this one for dead either.
    let _ = fs::remove_file(mark);
}

#[test]
fn a_lock_that_is_over_leaves_no_mark() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    // A release by the run itself.
    let gated = Gated::start(&redis, &["a"]).ready();
    let mark = await_mark(&redis, gated.run.pid());
    gated.end();
    assert!(!mark.exists(), "{}", mark.display());
    // A take-over.
    let mut killed = holder(&redis, &["--ttl", "5m"]);
    let mark = await_mark(&redis, killed.pid());
    kill(&mut killed);
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(0);
    assert!(!mark.exists(), "{}", mark.display());
    // A forced release, of one that lives and of one that is dead.
    for dead in [false, true] {
        let mut forced = holder(&redis, &["--ttl", "5m"]);
        let mark = await_mark(&redis, forced.pid());
        if dead {
            forced.kill();
        }
        outcome(&mut redis.redlock(&["release", "--force", "-q", "a"])).assert_code(0);
        if !dead {
            forced.finish().assert_code(79);
        }
        assert!(!mark.exists(), "dead: {dead}; {}", mark.display());
    }
    // A release by the job, after which it goes on for a while.
    let script = r#"echo ready; read go <"$HOME/gate"; exec redlock release -q"#;
    let mut gate = crate::support::Gate::new(&redis);
    let mut run = Running::start(&mut redis.run("a", script));
    run.expect_line("ready");
    let mark = await_mark(&redis, run.pid());
    gate.open();
    run.finish().assert_code(0);
    assert!(!mark.exists(), "{}", mark.display());
    assert_nothing_left(&redis);
}

/// A holder that is the first process of a pid namespace of its own, and its pid outside of that;
/// `None` where that isn't permitted.
fn holder_in_a_namespace(redis: &Redis) -> Option<(Running, i32)> {
    let unshare = ["--pid", "--fork", "--mount-proc"];
    if !is_permitted(&[&["unshare"], &unshare[..], &["true"]].concat()) {
        return None;
    }
    let run = ["run", "--ttl", "6s", "-k", "100ms", "a", "-c"];
    let script = "echo ready; exec sleep 60";
    let command = [&["unshare"], &unshare[..], &[REDLOCK], &run, &[script]].concat();
    let mut holder = Running::start(&mut crate::support::directly(redis, &command));
    holder.expect_line("ready");
    // It knows itself by its pid there.
    await_mark(redis, 1);
    let pid = holder.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Some((holder, children.trim().parse().unwrap()))
}

#[test]
fn a_holder_that_was_killed_in_its_own_pid_namespace_is_not_taken_over() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let Some((holder, pid)) = holder_in_a_namespace(&redis) else {
        return;
    };
    crate::support::send(pid, libc::SIGKILL);
    wait_until("it is dead", || !is_alive(pid));
    assert_waits_for_the_expiry(&redis);
    drop(holder);
    assert_nothing_left(&redis);
}

#[test]
fn a_holder_that_lives_in_its_own_pid_namespace_is_left_alone() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let Some((mut holder, pid)) = holder_in_a_namespace(&redis) else {
        return;
    };
    // Its pid there, 1, is alive here as well, and may be any process.
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(75);
    assert!(!holder.has_ended());
    crate::support::send(pid, libc::SIGTERM);
    holder.finish();
    assert_nothing_left(&redis);
}

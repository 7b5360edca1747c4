//! A redlock that was killed takes COMMAND with it, but not what COMMAND had started: as long as any
//! of that works on, no run on this host takes the lock over before its lease ends.
//!
//! The tests with another user need root, and a temporary directory where setuid programs count;
//! elsewhere they check nothing.

use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempPath;

use crate::promises::keeper::keeper;
use crate::support::{
    Gate, Gated, OtherUser, Redis, Running, assert_nothing_left, await_and_kill_watchdog,
    await_mark, children, directly, is_alive, is_permitted, moment, now, outcome, queued, send,
    wait_until,
};

/// What works on: it says its pid, and ends with a word at the gate, or with the test.
const SURVIVOR: &str = r#"echo $$; read go <"$HOME/gate""#;

/// A waiter that says when its turn came.
const STAMP: [&str; 6] = ["run", "-q", "a", "--", "date", "+%s%N"];

/// A holder that can be taken over when it is dead.
struct Holder {
    run: Running,
    /// COMMAND, which the kernel kills with redlock.
    command: i32,
    /// What COMMAND has started.
    survivor: i32,
}

impl Holder {
    /// Starts one; `work` is how COMMAND starts the survivor, whose script is in `$SURVIVOR`.
    fn start(redis: &Redis, options: &[&str], work: &str) -> Self {
        let script = format!("{work}\necho command $$; exec sleep 50");
        let arguments = [&["run"], options, &["a", "-c", &script]].concat();
        let mut run = redis.redlock(&arguments);
        Self::of(redis, run.env("SURVIVOR", SURVIVOR))
    }

    /// A run that says `command` with its pid, and the survivor's pid.
    fn of(redis: &Redis, run: &mut std::process::Command) -> Self {
        let mut run = Running::start(run);
        let (mut command, mut survivor) = (None, None);
        while command.is_none() || survivor.is_none() {
            let line = run.line();
            match line.strip_prefix("command ") {
                Some(pid) => command = Some(pid.parse().unwrap()),
                None => survivor = Some(line.parse().unwrap()),
            }
        }
        await_mark(redis, run.pid());
        Self {
            run,
            command: command.unwrap(),
            survivor: survivor.unwrap(),
        }
    }

    /// Kills redlock, with the watchdog that would kill the rest, and sees COMMAND die of it.
    #[track_caller]
    fn kill(&mut self) {
        await_and_kill_watchdog(self.run.pid());
        self.run.kill();
        let command = self.command;
        wait_until("COMMAND is dead, too", || !is_alive(command));
        assert!(is_alive(self.survivor));
    }
}

/// Nobody gets the lock now, however often it is asked for.
#[track_caller]
fn assert_busy(redis: &Redis, survivor: i32) {
    for _ in 0..3 {
        let end = outcome(&mut redis.redlock(&["run", "-n", "a", "--", "echo", "beside"]));
        assert!(is_alive(survivor), "the survivor has ended too early");
        assert_eq!(end.code(), Some(75), "{end:?} {}", redis.describe_key("a"));
    }
}

/// What COMMAND has started in this way keeps the lock until it has ended, and no longer.
#[track_caller]
fn assert_survives(work: &str) {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    let mut holder = Holder::start(&redis, &["--ttl", "5m"], work);
    let waiter = queued(&redis, &STAMP);
    holder.kill();
    assert_busy(&redis, holder.survivor);
    let over = now();
    gate.open();
    // Long before the lease ends, or the test has no patience any more.
    let end = waiter.finish();
    let turn = moment(&end.assert_code(0).stdout);
    assert!(turn >= over, "at {turn:?}, before the end at {over:?}");
    assert!(!is_alive(holder.survivor));
    assert_nothing_left(&redis);
}

#[test]
fn a_background_process_of_a_killed_holder_keeps_the_lock_until_it_has_ended() {
    crate::support::among_own_processes!();
    assert_survives(r#"sh -c "$SURVIVOR" &"#);
}

#[test]
fn a_survivor_in_its_own_session_keeps_the_lock() {
    crate::support::among_own_processes!();
    assert_survives(r#"setsid sh -c "$SURVIVOR" &"#);
}

#[test]
fn a_surviving_daemon_keeps_the_lock() {
    crate::support::among_own_processes!();
    assert_survives(r#"(cd / && setsid sh -c "$SURVIVOR" & exit 0)"#);
}

#[test]
fn a_survivor_without_an_environment_in_the_holders_session_keeps_the_lock() {
    crate::support::among_own_processes!();
    assert_survives(r#"env -i HOME="$HOME" sh -c "$SURVIVOR" &"#);
    // Its parent has ended before.
    assert_survives(r#"(env -i HOME="$HOME" sh -c "$SURVIVOR" & exit 0)"#);
}

#[test]
fn a_survivor_in_another_process_group_keeps_the_lock() {
    crate::support::among_own_processes!();
    let own_group = r#"exec perl -e 'setpgrp; exec @ARGV' env -i HOME="$HOME" sh -c "$SURVIVOR""#;
    assert_survives(&format!("({own_group}) &"));
}

/// Adopts the orphans of the program in its arguments, as a process supervisor does; prctl has another number on
/// each kind of machine.
const ADOPTER: &str = r#"
    my %prctl = (x86_64 => 157, aarch64 => 167, riscv64 => 167, ppc64le => 171, s390x => 172);
    chomp(my $machine = `uname -m`);
    syscall($prctl{$machine}, 36, 1, 0, 0, 0) == 0 or die "prctl: $!";
    fork // die or exec @ARGV;
    1 while wait != -1;
"#;

/// A COMMAND that starts a daemon without any environment when the gate is opened, and says its pid: after redlock has
/// left its mark, and before it notes down its tree anew.
const LATE_DAEMON: &str = r#"echo command $$; read go <"$HOME/gate"
    (setsid env -i HOME="$HOME" sh -c 'echo $$; read go <"$HOME/gate"' &); exec sleep 50"#;

#[test]
fn a_daemon_that_was_adopted_by_an_ancestor_of_the_holder_keeps_the_lock() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    let words = ["perl", "-e", ADOPTER, "redlock", "run", "--ttl", "5m", "a"];
    let words = [&words[..], &["-c", LATE_DAEMON]].concat();
    let mut adopter = Running::start(&mut directly(&redis, &words));
    let command = adopter.line();
    let command: i32 = command.strip_prefix("command ").unwrap().parse().unwrap();
    let redlock = redis.holder("a").unwrap();
    await_mark(&redis, redlock);
    gate.open();
    let daemon = adopter.line().parse().unwrap();
    await_and_kill_watchdog(redlock);
    send(redlock, libc::SIGKILL);
    wait_until("COMMAND is dead, too", || !is_alive(command));
    // Its parent may end later than COMMAND.
    let adopter_pid = adopter.pid();
    wait_until("it is adopted", || children(adopter_pid).contains(&daemon));
    assert_busy(&redis, daemon);
    gate.open();
    adopter.finish();
    // There is nothing left that anybody could mistake for its work.
    outcome(&mut redis.redlock(&["run", "-n", "a", "--", "true"])).assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn processes_of_an_inner_run_keep_the_lock_of_the_outer_run() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    let script = r#"sh -c "$SURVIVOR" & echo command $$; exec sleep 50"#;
    let inner = ["--", "redlock", "run", "--ttl", "5m", "b", "-c", script];
    let outer = [&["run", "--ttl", "5m", "a"], &inner[..]].concat();
    let mut run = redis.redlock(&outer);
    let mut holder = Holder::of(&redis, run.env("SURVIVOR", SURVIVOR));
    let waiter = queued(&redis, &STAMP);
    // The inner one is COMMAND of the outer one, and dies with it. Its watchdog may come later than that of the outer one.
    await_and_kill_watchdog(redis.holder("b").unwrap());
    holder.kill();
    assert_busy(&redis, holder.survivor);
    let over = now();
    gate.open();
    let end = waiter.finish();
    assert!(moment(&end.assert_code(0).stdout) >= over);
}

#[test]
fn the_place_of_a_killed_member_of_a_group_is_kept_for_its_survivors() {
    crate::support::among_own_processes!();
    for mode in [&["--slots", "2"][..], &["--shared"]] {
        let redis = Redis::start();
        let mut gate = Gate::new(&redis);
        let options = [mode, &["--ttl", "5m"]].concat();
        let work = r#"sh -c "$SURVIVOR" &"#;
        let mut killed = Holder::start(&redis, &options, work);
        let waiter = queued(&redis, &STAMP);
        killed.kill();
        assert_busy(&redis, killed.survivor);
        let over = now();
        gate.open();
        let end = waiter.finish();
        assert!(moment(&end.assert_code(0).stdout) >= over, "{mode:?}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn when_the_lease_ends_survivors_keep_nothing() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let _gate = Gate::new(&redis);
    let options = ["--ttl", "6s", "-k", "100ms"];
    let mut holder = Holder::start(&redis, &options, r#"sh -c "$SURVIVOR" &"#);
    holder.kill();
    let asked = now();
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    let end = outcome(&mut redis.redlock(&STAMP));
    let waited = moment(&end.assert_code(0).stdout).saturating_sub(asked);
    // Redis rounds what is left, by half a millisecond.
    assert!(
        waited + Duration::from_millis(1) >= Duration::from_millis(left),
        "{waited:?} of {left} ms"
    );
    assert!(is_alive(holder.survivor));
}

#[test]
fn a_waiter_of_the_same_session_is_no_survivor() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    // The shell lives on, and all that it started itself is not the holder's.
    let script = r#"redlock run --ttl 5m a -c 'echo command $$; exec sleep 50' &
        echo $!; read go <"$HOME/gate"; kill -KILL $!
        sh -c 'read end <"$HOME/gate"' & redlock run -q a -- echo next; exit"#;
    let mut gate = Gate::new(&redis);
    let mut shell = Running::start(&mut directly(&redis, &["sh", "-c", script]));
    let (one, other) = (shell.line(), shell.line());
    let holder = [one, other].iter().find_map(|line| line.parse().ok());
    await_mark(&redis, holder.unwrap());
    gate.open();
    shell.expect_line("next");
    drop(gate);
    shell.finish().assert_code(0);
    assert_nothing_left(&redis);
}

#[test]
fn what_a_script_has_started_keeps_its_lock_when_script_and_keeper_are_killed() {
    crate::support::among_own_processes!();
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    let script = r#"eval "$(redlock acquire a --ttl 5m --while-pid $$)"
        sh -c "$SURVIVOR" & wait"#;
    let mut command = directly(&redis, &["bash", "-c", script]);
    let mut script = Running::start(command.env("SURVIVOR", SURVIVOR));
    let survivor = script.line().parse().unwrap();
    await_mark(&redis, script.pid());
    let keeper = keeper(&script);
    let waiter = queued(&redis, &STAMP);
    // The keeper first, or it would stop what the killed script leaves behind.
    send(keeper, libc::SIGKILL);
    wait_until("the keeper is dead", || !is_alive(keeper));
    script.signal(Signal::SIGKILL);
    wait_until("the script is dead", || script.has_ended());
    assert_busy(&redis, survivor);
    let over = now();
    gate.open();
    let end = waiter.finish();
    assert!(moment(&end.assert_code(0).stdout) >= over);
    assert_nothing_left(&redis);
}

#[test]
fn a_survivor_that_the_waiter_may_not_inspect_keeps_the_lock_until_the_lease_ends() {
    crate::support::among_own_processes!();
    let Some(user) = OtherUser::new() else {
        return;
    };
    let redis = Redis::start();
    let _gate = Gate::new(&redis);
    let options = ["--ttl", "6s", "-k", "100ms"];
    let work = r#"setsid env -i HOME="$HOME" sh -c "$SURVIVOR" &"#;
    let mut holder = Holder::start(&redis, &options, work);
    holder.kill();
    let asked = now();
    let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
    let end = outcome(&mut user.redlock(&redis, &STAMP));
    let waited = moment(&end.assert_code(0).stdout).saturating_sub(asked);
    assert!(
        waited + Duration::from_millis(1) >= Duration::from_millis(left),
        "{waited:?} of {left} ms"
    );
    assert!(is_alive(holder.survivor));
}

#[test]
fn a_survivor_that_the_kernel_hides_from_the_waiter_keeps_the_lock() {
    for option in ["hidepid=1", "hidepid=2", "hidepid=4"] {
        let Some(mut user) = OtherUser::new() else {
            return;
        };
        let mount =
            format!("exec unshare --mount --pid --fork mount -t proc -o {option} proc /proc");
        if !is_permitted(&["sh", "-c", &mount]) {
            continue;
        }
        let redis = Redis::start();
        // The first process is the user's, so that it is seen where those of root are hidden.
        let inside = r#"./redlock run --ttl 5m a -- sh -c '
                echo $PPID; read go <gate; (./become setsid sh -c "echo; exec sleep 50" &); exec sleep 50' |
            { read redlock; read survivor; kill -KILL $redlock
              while kill -0 $redlock; do :; done >/dev/null 2>&1
              ./redlock run -n a -- true; echo status $?; }"#;
        let outside = format!(
            r#"id=$(id -u); exec ./become unshare --mount --pid --fork --kill-child sh -c '
                mount -t proc -o {option} proc /proc &&
                exec ./setpriv --reuid $0 --regid $0 --clear-groups sh -c "$1"' $id "$0""#
        );
        let mut command = user.command(&["sh", "-c", &outside, inside]);
        let mut run = Running::start(command.env("REDLOCK_URL", redis.tcp_url()));
        // The first renewal, with which a mark is left.
        wait_until("it is renewed, or has ended", || {
            redis.calls("evalsha") + redis.calls("eval") + redis.calls("fcall") > 2
                || run.has_ended()
        });
        user.open_gate();
        run.expect_line("status 75");
        run.finish();
    }
}

#[test]
fn a_setuid_command_that_outlives_its_redlock_keeps_the_lock() {
    crate::support::among_own_processes!();
    let Some(mut user) = OtherUser::new() else {
        return;
    };
    let redis = Redis::start();
    // Executing such a program cancels the order to be killed with redlock.
    let script = "echo command $$; exec ./head -n 1 gate";
    let run = ["run", "--ttl", "5m", "a", "--", "sh", "-c", script];
    let mut run = Running::start(&mut user.redlock(&redis, &run));
    let command = run.line();
    let command: i32 = command.strip_prefix("command ").unwrap().parse().unwrap();
    wait_until("it is the setuid program", || {
        let words = std::fs::read(format!("/proc/{command}/cmdline")).unwrap_or_default();
        words.starts_with(b"./head")
    });
    await_mark(&redis, run.pid());
    let waiter = queued(&redis, &STAMP);
    await_and_kill_watchdog(run.pid());
    run.kill();
    assert_busy(&redis, command);
    outcome(&mut user.redlock(&redis, words!("run -n a -- echo beside"))).assert_code(75);
    let over = now();
    user.open_gate();
    let end = waiter.finish();
    assert!(moment(&end.assert_code(0).stdout) >= over);
    assert!(!is_alive(command));
    assert_nothing_left(&redis);
}

#[test]
fn the_next_long_run_removes_marks_that_a_dead_redlock_left_an_hour_ago_and_no_others() {
    let redis = Redis::start();
    let mut run = Running::start(&mut redis.run("a", "exec sleep 50"));
    let old = await_mark(&redis, run.pid());
    run.kill();
    // Removed at the end of the test.
    let young = TempPath::try_from_path(old.with_extension("young")).unwrap();
    std::fs::copy(&old, &young).unwrap();
    for (mark, age) in [(&*old, "70 minutes ago"), (&young, "50 minutes ago")] {
        let aged = Command::new("touch").args(["-d", age]).arg(mark).status();
        assert!(aged.unwrap().success());
    }
    let holder = Gated::start(&redis, &["b"]).ready();
    wait_until("the old mark is removed", || !old.exists());
    assert!(young.exists());
    holder.end();
}

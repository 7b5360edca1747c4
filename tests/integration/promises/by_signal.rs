//! If redlock itself gets INT, QUIT, TERM or HUP, and COMMAND or the wait ends by it, redlock ends by the same signal. So a
//! script around redlock ends as it would without redlock. In all other cases redlock exits with a number.

use crate::promises::starting::inside;
use crate::promises::terminal::{CTRL_BACKSLASH, CTRL_C, on_terminal, pid_in};
use crate::support::prelude::*;

/// Signals by which redlock ends if they ended its work.
const FATAL: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Returns redlock with default signals, in a directory of the test, where the kernel would write a core file.
fn redlock(redis: &Redis, arguments: &[&str]) -> Command {
    let script = "ulimit -c unlimited 2>/dev/null; exec redlock \"$@\"";
    let mut command = directly(redis, &[&["sh", "-c", script, "sh"], arguments].concat());
    command.current_dir(redis.dir.path());
    command
}

/// Asserts that redlock ended by this signal, or with its number if redlock never ends by it, and that there is no core file.
#[track_caller]
fn assert_ended_by(redis: &Redis, end: &Outcome, signal: i32) {
    if FATAL.contains(&signal) {
        end.assert_killed_by(signal);
    } else {
        end.assert_exited(128 + signal);
    }
    let files = fs::read_dir(redis.dir.path()).unwrap().flatten();
    let names: Vec<_> = files.map(|file| file.file_name()).collect();
    let is_core = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with("core");
    assert_eq!(names.iter().find(is_core), None, "a core file: {end:?}");
}

/// Returns signals of both kinds that end a program without a handler.
fn deadly() -> impl Iterator<Item = i32> {
    let others = [libc::SIGUSR1, libc::SIGPIPE, libc::SIGALRM, 40];
    FATAL.into_iter().chain(others).chain([libc::SIGRTMIN()])
}

/// Script of a COMMAND that prints "ready" and its pid, and dies of any signal, like most perl programs.
const MORTAL: &str = "ulimit -c 0; exec perl -e '$| = 1; print qq(ready $$\\n); sleep 60'";

#[test]
fn a_signal_that_ends_command_ends_redlock_by_the_same_signal_when_all_is_over() {
    let redis = Redis::start();
    let nested = ["run", "a", "--", REDLOCK, "run", "b", "-c", MORTAL];
    for words in [&["run", "a", "-c", MORTAL][..], &nested] {
        for signal in deadly() {
            let mut run = Running::start(&mut redlock(&redis, words));
            let command = pid_in(&run.line());
            send(run.pid(), signal);
            let end = run.finish();
            assert_ended_by(&redis, &end, signal);
            end.assert_silent();
            assert!(is_gone(command));
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_signal_that_ends_a_wait_ends_redlock_by_the_same_signal_and_leaves_nothing_behind() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let run = words!("run -w 60s a -- echo ran");
    let acquire = words!("acquire -w 60s a");
    let rows = deadly().map(|signal| (run, signal));
    for (words, signal) in rows.chain(FATAL.map(|signal| (acquire, signal))) {
        let mut waiter = Running::start(&mut redlock(&redis, words));
        // Waiters of scripts are in the queue under the script's pid.
        waiter.wait_until("it stands in the queue", || !redis.queue("a").is_empty());
        send(waiter.pid(), signal);
        let end = waiter.finish();
        assert_ended_by(&redis, &end, signal);
        assert!(!end.stdout.contains("ran"), "{end:?}");
        assert_eq!(redis.queue("a"), [0; 0], "it has left the queue");
        wait_until("its connection is closed", || {
            redis.cli(&["CLIENT", "LIST"]).lines().count() == 1
        });
    }
    assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "somebody");
}

/// Returns true if a process has blocked this signal, so that it reads it.
pub fn blocks(pid: i32, signal: i32) -> bool {
    let mask = u64::from_str_radix(&status_of(pid, "SigBlk"), 16).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

#[test]
fn a_signal_before_the_answer_starts_nothing_and_gives_the_lock_back() {
    let redis = Redis::start();
    for signal in FATAL {
        // This run loads the scripts, so that the next one takes the lock with one request.
        outcome(&mut redlock(&redis, words!("run a -- true"))).assert_exited(0);
        redis.stall();
        let mut run = redlock(&redis, words!("run a -- echo ran"));
        let mut run = Running::start(run.env("REDLOCK_REDIS_TIMEOUT", "60s"));
        let pid = run.pid();
        run.wait_until("it takes signals", || blocks(pid, libc::SIGTERM));
        send(run.pid(), signal);
        redis.resume();
        let end = run.finish();
        assert_ended_by(&redis, &end, signal);
        assert_eq!(end.assert_silent().stdout, "");
        assert_nothing_left(&redis);
    }
}

#[test]
fn as_pid_1_which_no_signal_kills_redlock_ends_with_the_number() {
    let redis = Redis::start();
    let own = some_or_return!(in_own_pids());
    let words = [&own[..], &[REDLOCK, "run", "a", "-c", MORTAL]].concat();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut first = Running::start(&mut directly(&redis, &words));
        first.line();
        send(inside(&first), signal);
        first.finish().assert_exited(128 + signal);
        assert_nothing_left(&redis);
    }
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let first = Running::start(&mut directly(&redis, &words));
    wait_until("it waits", || redis.queue("a").len() == 1);
    send(inside(&first), libc::SIGTERM);
    first.finish().assert_exited(128 + libc::SIGTERM);
}

#[test]
fn a_typed_key_ends_the_script_around_a_run_or_a_wait_unless_command_goes_on_after_it() {
    let redis = Redis::start();
    let waits = "waiting for \"held\"";
    redis.cli(&["SET", "redlock:held", "somebody", "PX", "600000"]);
    let nested = "run a -- redlock run b -c 'echo ready; exec sleep 60'";
    let simple = "run a -c 'echo ready; exec sleep 60'";
    let takes = "run a -c 'trap \"echo taken; exit 0\" INT; echo ready; sleep 60 & wait'";
    for (words, line, key, taken, published) in [
        (simple, "ready", CTRL_C, 0, 0),
        (nested, "ready", CTRL_C, 0, 0),
        // bash continues after SIGQUIT, whichever process died of it.
        (simple, "ready", CTRL_BACKSLASH, 0, 1),
        (takes, "ready", CTRL_C, 1, 1),
        // redlock erases the line about the wait instead of ending it.
        ("run held -- echo executed", waits, CTRL_C, 0, 0),
        ("acquire held", waits, CTRL_C, 0, 0),
        ("freeze held --drain --reason x", waits, CTRL_C, 0, 0),
    ] {
        let script = format!("ulimit -c 0; redlock -v {words}; echo published");
        let mut terminal = on_terminal(&redis, &["bash", "-c", &script]);
        terminal.wait_until("it works or waits", |shown| shown.contains(line));
        terminal.type_in(key);
        terminal.finish();
        let counts = ["taken", "published", "executed"].map(|word| terminal.count(word));
        assert_eq!(counts, [taken, published, 0], "{words}: {}", terminal.shown);
        assert!(!redis.is_held("a") && redis.queue("held").is_empty());
    }
}

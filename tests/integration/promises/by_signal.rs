//! If redlock itself gets INT, QUIT, TERM or HUP, and COMMAND or the wait ends by it, redlock ends by the same signal. So a
//! script around redlock ends as it would without redlock. So does redlock if the signal comes while it releases the lock. In
//! all other cases redlock exits with a number.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::promises::starting::inside;
use crate::promises::terminal::{CTRL_BACKSLASH, CTRL_C, on_terminal, pid_in};
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

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
    is_in_set("SigBlk", pid, signal)
}

/// Returns true if the process shows the signal in this set.
fn is_in_set(set: &str, pid: i32, signal: i32) -> bool {
    let mask = u64::from_str_radix(&status_of(pid, set), 16).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// A proxy that holds up one operation, which ends the use of a lock.
struct HeldUp {
    proxy: Proxy,
    asked: Receiver<()>,
    go: Sender<()>,
}

impl HeldUp {
    fn new(redis: &Redis, operation: &'static str) -> Self {
        load_scripts(redis);
        let ((asks, asked), (go, goes)) = (channel(), channel());
        let proxy = Proxy::with(redis, move |request| {
            if request.operation == operation {
                let _ = asks.send(());
                // Fails if the test is over.
                let _ = goes.recv();
            }
            Action::Pass
        });
        Self { proxy, asked, go }
    }

    fn redlock(&self, redis: &Redis, words: &[&str]) -> Command {
        let mut command = redlock(redis, words);
        command.env("REDLOCK_URL", self.proxy.url());
        command
    }

    /// Waits for the operation.
    #[track_caller]
    fn await_request(&self) {
        self.asked.recv_timeout(crate::support::TIMEOUT).unwrap();
    }

    /// Passes the operation on when this signal has arrived, or `is_slow` and redlock doesn't read signals any more.
    fn pass_after(&self, redlock: i32, signal: i32, is_slow: bool) {
        wait_until("the signal has arrived", || {
            let is_pending = !is_slow && is_in_set("ShdPnd", redlock, signal);
            is_pending || !blocks(redlock, signal)
        });
        self.go.send(()).unwrap();
    }
}

#[test]
fn a_signal_that_comes_while_redlock_releases_ends_redlock_after_that() {
    for is_slow in [false, true] {
        side_by_side(FATAL, |signal| {
            let redis = Redis::start();
            let held_up = HeldUp::new(&redis, "release");
            let words = words!("run a -c", "exit 3");
            let run = Running::start(&mut held_up.redlock(&redis, words));
            held_up.await_request();
            send(run.pid(), signal);
            held_up.pass_after(run.pid(), signal, is_slow);
            let end = run.finish();
            assert_ended_by(&redis, &end, signal);
            end.assert_silent();
            redis.await_free("a");
            let history = json(&redis, "history --json a");
            assert_eq!(history[0]["status"], 3, "{history}");
        });
    }
}

#[test]
fn ctrl_c_while_redlock_releases_or_leaves_the_queue_ends_the_script_around_it() {
    for words in ["run a -- true", "run -w 1s held -- true"] {
        let redis = Redis::start();
        redis.cli(&["SET", "redlock:held", "somebody", "PX", "600000"]);
        let held_up = HeldUp::new(&redis, "release");
        let (url, home) = (held_up.proxy.url(), redis.dir.path().display());
        let script = format!(
            "REDLOCK_URL={url} bash -c 'echo $$ >{home}/pid; exec redlock {words}'; echo published"
        );
        let mut terminal = on_terminal(&redis, &["bash", "-c", &script]);
        held_up.await_request();
        let pid = fs::read_to_string(redis.dir.path().join("pid")).unwrap();
        let pid = pid.trim().parse().unwrap();
        terminal.type_in(CTRL_C);
        held_up.pass_after(pid, libc::SIGINT, false);
        terminal.finish();
        assert_eq!(terminal.count("published"), 0, "{words}");
    }
}

#[test]
fn a_signal_that_comes_while_a_guard_leaves_its_lock_ends_the_guard_after_that() {
    let redis = Redis::start();
    let held_up = HeldUp::new(&redis, "leave");
    let script = r#"redlock guard -c 'echo guard $PPID; exit 3'; echo "ended $?""#;
    let mut run = Running::start(&mut held_up.redlock(&redis, words!("run a -c", script)));
    let guard = pid_in(&run.line());
    held_up.await_request();
    send(guard, libc::SIGTERM);
    held_up.pass_after(guard, libc::SIGTERM, false);
    while !run.line().starts_with("ended 143") {}
    run.finish().assert_exited(0);
}

#[test]
fn a_signal_that_command_has_handled_does_not_count_once_more_at_the_release() {
    let redis = Redis::start();
    let held_up = HeldUp::new(&redis, "release");
    let script = "trap 'exit 3' TERM; echo ready; sleep 60 & wait";
    let words = words!("run a -c", script);
    let run = Running::start(&mut held_up.redlock(&redis, words)).at_ready();
    let began = Instant::now();
    send(run.pid(), libc::SIGTERM);
    held_up.await_request();
    send(run.pid(), libc::SIGTERM);
    held_up.pass_after(run.pid(), libc::SIGTERM, false);
    let end = run.finish();
    // Another signal ends a release that takes long.
    let is_slow = began.elapsed() >= Duration::from_millis(500);
    assert!(is_slow || end.code() == Some(3), "{end:?}");
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

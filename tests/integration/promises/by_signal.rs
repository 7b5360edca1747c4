//! Where redlock itself got INT, QUIT, TERM or HUP and COMMAND, or the wait, ended by it, redlock
//! ends by that same signal, so that a script around it ends as it would without redlock. All else
//! is a number.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::pty::Terminal;
use crate::support::tmux::Tmux;
use crate::support::{
    Outcome, REDLOCK, Redis, Running, assert_nothing_left, directly, is_alive, outcome, path, send,
    wait_until, with_default_signals,
};

/// The signals by which redlock ends where they ended its work.
const FATAL: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// redlock with default signals, in a directory of the test, where a core file would be written.
fn redlock(redis: &Redis, arguments: &[&str]) -> Command {
    let script = "ulimit -c unlimited 2>/dev/null; exec env \"$@\"";
    let shell = ["sh", "-c", script, "sh"];
    let (settings, words): (Vec<&str>, Vec<&str>) = arguments
        .iter()
        .partition(|word| word.starts_with("REDLOCK_"));
    let words = [&shell[..], &settings, &["redlock"], &words].concat();
    let mut command = directly(redis, &words);
    command.current_dir(redis.dir.path());
    with_default_signals(command)
}

/// It was killed by this signal, and there is no core file.
#[track_caller]
fn assert_killed_by(redis: &Redis, end: &Outcome, signal: i32) {
    end.assert_killed_by(signal);
    let files = fs::read_dir(redis.dir.path()).unwrap().flatten();
    let names: Vec<_> = files.map(|file| file.file_name()).collect();
    let is_core = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with("core");
    assert_eq!(names.iter().find(is_core), None, "a core file: {end:?}");
}

/// A COMMAND that says ready and dies of any signal, as a perl does.
const MORTAL: &str = "ulimit -c 0; exec perl -e '$| = 1; print qq(ready\\n); sleep 60'";

#[test]
fn a_signal_that_ends_command_ends_redlock_by_the_same_signal() {
    let redis = Redis::start();
    for signal in FATAL {
        let mut run = Running::start(&mut redlock(&redis, &["run", "a", "-c", MORTAL]));
        run.expect_line("ready");
        send(run.pid(), signal);
        let end = run.finish();
        assert_killed_by(&redis, &end, signal);
        end.assert_silent();
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_signal_that_ends_command_ends_nested_runs_by_the_same_signal() {
    let redis = Redis::start();
    let nested = ["run", "a", "--", REDLOCK, "run", "b", "-c", MORTAL];
    for signal in FATAL {
        let mut run = Running::start(&mut redlock(&redis, &nested));
        run.expect_line("ready");
        send(run.pid(), signal);
        assert_killed_by(&redis, &run.finish(), signal);
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_command_that_catches_a_signal_and_exits_keeps_its_number() {
    let redis = Redis::start();
    for (signal, number) in [
        (libc::SIGHUP, 0),
        (libc::SIGINT, 7),
        (libc::SIGINT, 130),
        (libc::SIGTERM, 143),
    ] {
        let script =
            format!("$SIG{{INT}} = $SIG{{TERM}} = $SIG{{HUP}} = sub {{ exit {number} }}; $| = 1;");
        let script = script + "print qq(ready\n); sleep 1 for 1 .. 60";
        let mut run = Running::start(&mut redlock(&redis, words!("run a -- perl -e", &script)));
        run.expect_line("ready");
        send(run.pid(), signal);
        run.finish().assert_exited(number);
    }
}

#[test]
fn a_command_that_was_killed_by_another_signal_than_redlock_got_is_a_number() {
    let redis = Redis::start();
    // Nobody has sent redlock a thing.
    for signal in FATAL {
        let script = format!("ulimit -c 0; exec perl -e 'kill {signal}, $$; sleep 60'");
        outcome(&mut redlock(&redis, &["run", "a", "-c", &script])).assert_exited(128 + signal);
    }
    // It got one, and COMMAND died of another.
    let script =
        "$SIG{INT} = sub { kill TERM => $$ }; $| = 1; print qq(ready\n); sleep 1 for 1 .. 60";
    let mut run = Running::start(&mut redlock(&redis, words!("run a -- perl -e", script)));
    run.expect_line("ready");
    send(run.pid(), libc::SIGINT);
    run.finish().assert_exited(128 + libc::SIGTERM);
    // COMMAND outlived the first and was killed by redlock.
    let script = "$SIG{TERM} = 'IGNORE'; $| = 1; print qq(ready\n); sleep 60";
    let command = ["run", "-k", "100ms", "a", "--", "perl", "-e", script];
    let mut run = Running::start(&mut redlock(&redis, &command));
    run.expect_line("ready");
    send(run.pid(), libc::SIGTERM);
    run.finish().assert_exited(128 + libc::SIGKILL);
}

#[test]
fn a_signal_of_another_kind_that_ends_command_is_a_number() {
    let redis = Redis::start();
    for signal in [libc::SIGUSR1, libc::SIGALRM, 40] {
        let mut run = Running::start(&mut redlock(&redis, &["run", "a", "-c", MORTAL]));
        run.expect_line("ready");
        send(run.pid(), signal);
        run.finish().assert_exited(128 + signal);
    }
}

#[test]
fn a_timeout_is_a_number_though_its_term_ended_command() {
    let redis = Redis::start();
    let command = ["run", "--max-runtime", "100ms", "a", "--", "sleep", "60"];
    outcome(&mut redlock(&redis, &command)).assert_exited(124);
}

#[test]
fn a_signal_that_ends_a_wait_ends_redlock_by_the_same_signal() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let run = ["run", "-w", "60s", "a", "--", "echo", "ran"];
    let ways: [&[&str]; 2] = [&run, &["acquire", "-w", "60s", "a"]];
    for arguments in ways {
        for signal in FATAL {
            let mut waiter = Running::start(&mut redlock(&redis, arguments));
            // Those of scripts stand there with the pid of the script.
            wait_until("it stands in the queue", || {
                assert!(!waiter.has_ended(), "it has ended");
                !redis.queue("a").is_empty()
            });
            send(waiter.pid(), signal);
            let end = waiter.finish();
            assert_killed_by(&redis, &end, signal);
            assert!(!end.stdout.contains("ran"), "{end:?}");
            assert_eq!(redis.queue("a"), [0; 0], "it has left the queue");
        }
    }
    assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
}

/// Whether a process takes its signals itself: it has blocked TERM.
pub fn takes_signals(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:\t"));
    let mask = blocked.map_or(0, |mask| u64::from_str_radix(mask, 16).unwrap());
    mask & (1 << (libc::SIGTERM - 1)) != 0
}

#[test]
fn a_signal_during_the_random_pause_ends_redlock_by_the_same_signal() {
    let redis = Redis::start();
    for signal in FATAL {
        let command = ["run", "REDLOCK_JITTER=1h", "a", "--", "echo", "ran"];
        let mut run = Running::start(&mut redlock(&redis, &command));
        let pid = run.pid();
        wait_until("it pauses", || {
            assert!(!run.has_ended(), "it has ended");
            takes_signals(pid)
        });
        send(pid, signal);
        let end = run.finish();
        assert_killed_by(&redis, &end, signal);
        assert_eq!(end.stdout, "");
        assert_eq!(redis.keys(), [""; 0]);
    }
}

#[test]
fn a_signal_before_the_answer_ends_redlock_by_the_same_signal_and_gives_the_lock_back() {
    let redis = Redis::start();
    outcome(&mut redlock(&redis, &["run", "a", "--", "true"])).assert_exited(0);
    redis.stall();
    let command = ["run", "REDLOCK_REDIS_TIMEOUT=60s", "a", "--", "echo", "ran"];
    let mut run = Running::start(&mut redlock(&redis, &command));
    let pid = run.pid();
    wait_until("it takes signals", || {
        assert!(!run.has_ended(), "it has ended");
        takes_signals(pid)
    });
    send(pid, libc::SIGTERM);
    redis.resume();
    let end = run.finish();
    assert_killed_by(&redis, &end, libc::SIGTERM);
    assert_eq!(end.stdout, "");
    wait_until("the lock is free", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
}

#[test]
fn as_pid_1_which_no_signal_kills_redlock_ends_with_the_number() {
    let redis = Redis::start();
    let mut unshare = vec!["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !nix::unistd::geteuid().is_root() {
        unshare.extend(["--user", "--map-root-user"]);
    }
    let run = [REDLOCK, "run", "a", "-c", MORTAL];
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let command = directly(&redis, &[&unshare, &run[..]].concat());
        let mut first = Running::start(&mut with_default_signals(command));
        first.expect_line("ready");
        let pid = first.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let redlock: i32 = children.unwrap().trim().parse().unwrap();
        send(redlock, signal);
        first.finish().assert_exited(128 + signal);
        assert_nothing_left(&redis);
    }
    // The wait as well.
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let command = directly(&redis, &[&unshare, &run[..]].concat());
    let first = Running::start(&mut with_default_signals(command));
    wait_until("it stands in the queue", || {
        redis.cli(&["ZCARD", "{redlock:a}:queue"]) == "1"
    });
    let pid = first.pid();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    send(children.unwrap().trim().parse().unwrap(), libc::SIGTERM);
    first.finish().assert_exited(143);
}

/// A script that would publish after its build, on a terminal of its own.
fn publisher(redis: &Redis, build: &str) -> Terminal {
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("{build}; echo published")])
        .env_clear()
        .env("PATH", path())
        .env("REDLOCK_URL", redis.url())
        .env("HOME", redis.dir.path());
    Terminal::start(with_default_signals(bash))
}

#[test]
fn a_typed_ctrl_c_ends_the_script_around_redlock() {
    let redis = Redis::start();
    for (run, key) in [
        ("redlock run a -c 'echo ready; exec sleep 60'", "\x03"),
        (
            "redlock run a -- redlock run b -c 'echo ready; exec sleep 60'",
            "\x03",
        ),
        (
            "ulimit -c 0; redlock run a -c 'echo ready; exec sleep 60'",
            "\x1c",
        ),
    ] {
        let mut terminal = publisher(&redis, run);
        terminal.line("ready");
        terminal.type_in(key);
        terminal.finish();
        // bash goes on after QUIT, whichever process died of it.
        let published = terminal.count("published");
        let expected = usize::from(key == "\x1c");
        assert_eq!(published, expected, "{run}: {}", terminal.shown);
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_typed_ctrl_c_ends_the_script_around_a_wait() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    for waits in ["run a -- true", "acquire a", "freeze a --drain --reason x"] {
        let mut terminal = publisher(&redis, &format!("redlock -v {waits}"));
        terminal.wait_until("it waits", |shown| shown.contains("waiting for \"a\""));
        terminal.type_in("\x03");
        terminal.finish();
        // The line that tells of the wait is erased, and not ended.
        let published = terminal.shown.contains("published");
        assert!(!published, "{waits}: {}", terminal.shown);
    }
}

#[test]
fn a_command_that_takes_ctrl_c_as_a_key_lets_the_script_go_on() {
    let redis = Redis::start();
    let run = "redlock run a -c 'trap \"echo taken; exit 0\" INT; echo ready; sleep 60 & wait'";
    let mut terminal = publisher(&redis, run);
    terminal.line("ready");
    terminal.type_in("\x03");
    terminal.line("taken");
    terminal.line("published");
    terminal.finish();
}

#[test]
fn in_tmux_a_ctrl_c_ends_the_script_around_redlock() {
    let redis = Redis::start();
    let script = "redlock run a -c 'echo ready; exec sleep 60'; echo published\n";
    fs::write(redis.dir.path().join("deploy.sh"), script).unwrap();
    let tmux = Tmux::start(&redis);
    tmux.type_line("bash deploy.sh; echo status:$?");
    tmux.line("ready");
    tmux.press("C-c");
    // The shell gives up its own line, too, as it sees the script die of the key.
    tmux.wait_until("the prompt", |screen| screen.trim_end().ends_with("\n$"));
    let screen = tmux.screen();
    assert!(!screen.contains("published"), "{screen}");
    wait_until("the lock is free", || {
        redis.cli(&["EXISTS", "redlock:a"]) == "0"
    });
}

#[test]
fn the_process_that_ends_by_a_signal_has_reaped_and_released_before() {
    let redis = Redis::start();
    let script = "echo $$; exec sleep 60";
    let mut run = Running::start(&mut redlock(&redis, &["run", "a", "-c", script]));
    let child: i32 = run.line().parse().unwrap();
    send(run.pid(), libc::SIGINT);
    run.finish().assert_killed_by(libc::SIGINT);
    assert!(!Path::new(&format!("/proc/{child}")).exists());
    assert!(!is_alive(child));
    assert_nothing_left(&redis);
}

//! On a terminal redlock and COMMAND are one job: keys, job control and hang-up work as without.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::support::pty::Terminal;
use crate::support::tmux::Tmux;
use crate::support::{
    COUNTER, REDLOCK, Redis, children, is_alive, is_gone, outcome, path, seen_by_a_shell, send,
    state, wait_until, with_default_signals,
};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";

/// redlock at the head of a terminal's session, as in `ssh -t host redlock …`. A COMMAND finds the
/// counting program in `$COUNTER`.
fn redlock(redis: &Redis, arguments: &[&str]) -> Terminal {
    let mut command = redis.redlock(arguments);
    command.env("COUNTER", COUNTER);
    Terminal::start(with_default_signals(command))
}

/// An interactive shell with job control, in which redlock knows its server.
pub fn shell(redis: &Redis) -> Terminal {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "--noediting", "-i"])
        .env_clear()
        .env("PATH", path())
        .env("PS1", "")
        .env("REDLOCK_URL", redis.url())
        .env("HOME", redis.dir.path())
        .env("COUNTER", COUNTER);
    Terminal::start(with_default_signals(bash))
}

/// A run of the counting program that answers to these signals.
fn counter<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let command = words!("run --ttl 120s -k 60s a -- perl -e", COUNTER, "child");
    [command, names].concat()
}

/// The pid in a line such as `child ready 4711`.
pub fn pid_in(line: &str) -> i32 {
    line.rsplit([' ', ':']).next().unwrap().parse().unwrap()
}

fn parent(pid: i32) -> i32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.unwrap().trim().parse().unwrap()
}

/// Whether a redlock is at work again, so that a TSTP is an event for it and doesn't stop it alone.
fn reads_stops(redlock: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{redlock}/status")).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = u64::from_str_radix(blocked.unwrap().trim(), 16).unwrap();
    state(redlock) != Some('T') && blocked & 1 << (libc::SIGTSTP - 1) != 0
}

fn is_free(redis: &Redis) -> bool {
    redis.cli(&["EXISTS", "redlock:a"]) == "0"
}

#[test]
fn the_child_shares_the_foreground_group() {
    let redis = Redis::start();
    let script = "use POSIX; print tcgetpgrp(0) == getpgrp() ? 1 : 0, getpgrp(getppid()) == getpgrp() ? 1 : 0, qq(\n)";
    let mut terminal = redlock(&redis, &["run", "a", "--", "perl", "-e", script]);
    terminal.finish();
    assert_eq!(terminal.shown, "11\n");
}

#[test]
fn a_key_reaches_the_child_exactly_once() {
    let redis = Redis::start();
    for (key, name) in [(CTRL_C, "INT"), (CTRL_BACKSLASH, "QUIT")] {
        let mut terminal = redlock(&redis, &counter(&["INT", "QUIT"]));
        let child = pid_in(&terminal.line("child ready"));
        // Stands still until the child has had its signal, as two at once count as one.
        send(terminal.pid(), libc::SIGSTOP);
        terminal.type_in(key);
        terminal.line(&format!("child {name}"));
        send(terminal.pid(), libc::SIGCONT);
        send(terminal.pid(), libc::SIGRTMAX());
        assert_eq!(terminal.finish().code(), Some(0));
        assert_eq!(
            terminal.shown,
            format!("child ready {child}\nchild {name}\nchild end\n")
        );
    }
}

#[test]
fn a_new_window_size_reaches_the_child_exactly_once() {
    let redis = Redis::start();
    let mut terminal = redlock(&redis, &counter(&["WINCH"]));
    let child = pid_in(&terminal.line("child ready"));
    send(terminal.pid(), libc::SIGSTOP);
    terminal.resize(50, 100);
    terminal.line("child WINCH");
    send(terminal.pid(), libc::SIGCONT);
    send(terminal.pid(), libc::SIGRTMAX());
    assert_eq!(terminal.finish().code(), Some(0));
    assert_eq!(
        terminal.shown,
        format!("child ready {child}\nchild WINCH\nchild end\n")
    );
}

#[test]
fn a_signal_that_a_process_sends_reaches_the_child_exactly_once_too() {
    let redis = Redis::start();
    let signals = [
        ("HUP", libc::SIGHUP),
        ("INT", libc::SIGINT),
        ("QUIT", libc::SIGQUIT),
        ("TERM", libc::SIGTERM),
        ("USR1", libc::SIGUSR1),
        ("WINCH", libc::SIGWINCH),
        ("ALRM", libc::SIGALRM),
    ];
    for (name, signal) in signals {
        let mut terminal = redlock(&redis, &counter(&signals.map(|(name, _)| name)));
        let child = pid_in(&terminal.line("child ready"));
        send(terminal.pid(), signal);
        terminal.line(&format!("child {name}"));
        send(terminal.pid(), libc::SIGRTMAX());
        assert_eq!(terminal.finish().code(), Some(0));
        assert_eq!(
            terminal.shown,
            format!("child ready {child}\nchild {name}\nchild end\n")
        );
    }
}

#[test]
fn an_alarm_set_before_redlock_was_executed_reaches_the_child() {
    let redis = Redis::start();
    // The kernel sends this one too, but to redlock alone.
    let mut command = Command::new("perl");
    command
        .args(["-e", "alarm 4; exec @ARGV", REDLOCK])
        .args(counter(&["ALRM"]))
        .env_clear()
        .env("PATH", path())
        .env("REDLOCK_URL", redis.url());
    let mut terminal = Terminal::start(with_default_signals(command));
    terminal.line("child ready");
    terminal.line("child ALRM");
    send(terminal.pid(), libc::SIGRTMAX());
    assert_eq!(terminal.finish().code(), Some(0));
}

#[test]
fn a_key_that_the_child_does_not_handle_ends_it_and_the_lock_is_free() {
    let redis = Redis::start();
    for (key, status) in [(CTRL_C, 130), (CTRL_BACKSLASH, 131)] {
        let script = "ulimit -c 0; exec perl -e \"$COUNTER\" child";
        let mut terminal = redlock(&redis, &["run", "a", "-c", script]);
        let child = pid_in(&terminal.line("child ready"));
        terminal.type_in(key);
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(status));
        assert!(is_gone(child));
        assert_eq!(redis.keys(), ["{redlock:a}:state"]);
    }
}

#[test]
fn a_command_for_which_ctrl_c_is_an_everyday_key_goes_on() {
    let redis = Redis::start();
    let command = words!("run -k 1ms a -- perl -e", COUNTER, "child", "INT", "USR1");
    let mut terminal = redlock(&redis, command);
    terminal.line("child ready");
    for _ in 0..3 {
        terminal.type_in(CTRL_C);
        terminal.line("child INT");
        // When this one has been passed on, redlock has seen the key too.
        send(terminal.pid(), libc::SIGUSR1);
        terminal.line("child USR1");
        // Longer than kill-after.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    send(terminal.pid(), libc::SIGRTMAX());
    assert_eq!(terminal.finish().code(), Some(0));
}

#[test]
fn a_term_stops_grandchildren_too() {
    let redis = Redis::start();
    let script = "perl -e \"$COUNTER\" grandchild TERM & exec perl -e \"$COUNTER\" child TERM";
    let mut terminal = redlock(&redis, words!("run --ttl 1m -k 30s a -c", script));
    let pids = [(); 2].map(|()| {
        let line = terminal.line("");
        assert!(line.contains("ready"), "{line}");
        pid_in(&line)
    });
    send(terminal.pid(), libc::SIGTERM);
    let mut lines = [(); 2].map(|()| terminal.line(""));
    lines.sort();
    assert_eq!(lines, ["child TERM", "grandchild TERM"]);
    // Both have been asked and didn't want to: the second time, half a second later, is the last.
    std::thread::sleep(std::time::Duration::from_millis(550));
    send(terminal.pid(), libc::SIGTERM);
    assert_eq!(terminal.finish().code(), Some(137));
    assert!(pids.into_iter().all(is_gone));
}

#[test]
fn reading_from_the_terminal_works() {
    let redis = Redis::start();
    let mut terminal = redlock(&redis, &["run", "a", "-c", "read line; echo \"got $line\""]);
    terminal.type_in("hello\n");
    terminal.line("got hello");
    assert_eq!(terminal.finish().code(), Some(0));
}

#[test]
fn ctrl_c_under_a_shell_reaches_the_child_once_and_the_shell_goes_on() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run -k 60s a -- perl -e \"$COUNTER\" child INT; echo status:$?\n");
    let child = pid_in(&terminal.line("child ready"));
    terminal.type_in(CTRL_C);
    terminal.line("child INT");
    send(parent(child), libc::SIGRTMAX());
    terminal.line("child end");
    terminal.line("status:0");
    terminal.type_in("exit 0\n");
    terminal.finish();
    assert_eq!(terminal.count("child INT"), 1);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_goes_on() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal
        .type_in("redlock run --ttl 120s a -- perl -e \"$COUNTER\" child CONT; echo status:$?\n");
    let child = pid_in(&terminal.line("child ready"));
    let redlock = parent(child);
    for _ in 0..2 {
        terminal.type_in(CTRL_Z);
        terminal.line("status:148");
        wait_until("both are stopped", || {
            state(child) == Some('T') && state(redlock) == Some('T')
        });
        terminal.type_in("fg; echo status:$?\n");
        terminal.line("child CONT");
        wait_until("both go on", || {
            state(child) != Some('T') && reads_stops(redlock)
        });
        assert_eq!(terminal.foreground(), redlock, "the job's group");
    }
    send(redlock, libc::SIGRTMAX());
    terminal.line("status:0");
    terminal.type_in("exit 0\n");
    terminal.finish();
    assert_eq!(terminal.count("child CONT"), 2);
    assert!(is_free(&redis));
}

/// A COMMAND that says ready, stops itself by a signal, and says when it goes on.
fn stops_itself(signal: &str) -> String {
    format!("redlock run --ttl 120s a -c 'echo ready $$; kill -{signal} $$; echo went on'")
}

#[test]
fn a_command_that_stops_itself_gives_the_prompt_back_and_goes_on_with_fg() {
    let redis = Redis::start();
    for signal in ["STOP", "TSTP"] {
        let mut terminal = shell(&redis);
        let run = stops_itself(signal);
        terminal.type_in(&format!("{run}; echo status:$?\n"));
        let child = pid_in(&terminal.line("ready"));
        let redlock = parent(child);
        let status = terminal.line("status:");
        // As a shell names a job that was stopped by STOP or TSTP.
        assert!(["status:147", "status:148"].contains(&status.as_str()));
        assert_eq!((state(child), state(redlock)), (Some('T'), Some('T')));
        terminal.type_in("fg; echo status:$?\n");
        terminal.line("went on");
        terminal.line("status:0");
        terminal.type_in("exit 0\n");
        terminal.finish();
        assert!(is_free(&redis));
    }
}

#[test]
fn a_command_that_stops_itself_goes_on_when_the_job_is_continued() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    let run = stops_itself("STOP");
    terminal.type_in(&format!("{run}; echo status:$?\n"));
    let child = pid_in(&terminal.line("ready"));
    let redlock = parent(child);
    terminal.line("status:14");
    // What `bg`, or another process that knows the job, sends.
    send(-redlock, libc::SIGCONT);
    terminal.line("went on");
    wait_until("both have ended", || !is_alive(child) && !is_alive(redlock));
    wait_until("the lock is free", || is_free(&redis));
    terminal.type_in("exit 0\n");
    terminal.finish();
}

#[test]
fn a_child_of_command_that_is_stopped_stops_no_other_process() {
    let redis = Redis::start();
    // redlock's business is COMMAND; a shell within it may have its own jobs.
    let script =
        r#"perl -e "$COUNTER" grandchild & kill -STOP $!; exec perl -e "$COUNTER" child USR1"#;
    let mut terminal = redlock(&redis, &["run", "--ttl", "120s", "a", "-c", script]);
    terminal.line("child ready");
    send(terminal.pid(), libc::SIGUSR1);
    terminal.line("child USR1");
    assert_ne!(state(terminal.pid()), Some('T'));
    send(terminal.pid(), libc::SIGTERM);
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(143));
}

#[test]
fn tstp_that_is_sent_to_redlock_alone_stops_command_too_and_cont_continues_both() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal
        .type_in("redlock run --ttl 120s a -- perl -e \"$COUNTER\" child CONT; echo status:$?\n");
    let child = pid_in(&terminal.line("child ready"));
    let redlock = parent(child);
    for round in 0..3 {
        send(redlock, libc::SIGTSTP);
        wait_until("both are stopped", || {
            state(child) == Some('T') && state(redlock) == Some('T')
        });
        let status = terminal.line("status:");
        assert!(["status:147", "status:148"].contains(&status.as_str()));
        if round < 2 {
            terminal.type_in("fg; echo status:$?\n");
        } else {
            // No shell tells the whole job this time.
            send(redlock, libc::SIGCONT);
        }
        terminal.line("child CONT");
        wait_until("both go on", || {
            state(child) != Some('T') && reads_stops(redlock)
        });
    }
    send(redlock, libc::SIGRTMAX());
    terminal.line("child end");
    wait_until("both have ended", || !is_alive(child) && !is_alive(redlock));
    terminal.type_in("exit 0\n");
    terminal.finish();
    assert!(is_free(&redis));
}

#[test]
fn in_tmux_a_command_that_stops_itself_gives_the_prompt_back_and_goes_on_with_fg() {
    let redis = Redis::start();
    let tmux = Tmux::start(&redis);
    tmux.type_line("redlock run --ttl 120s a -c 'echo ready; kill -TSTP $$; echo went on'");
    tmux.line("ready");
    tmux.wait_until("the shell says so", |screen| screen.contains("Stopped"));
    tmux.type_line("echo here:$((1 + 1))");
    tmux.line("here:2");
    tmux.type_line("fg");
    tmux.line("went on");
    tmux.type_line("echo status:$?");
    // It may stand behind the prompt: what was typed came before the run has ended.
    tmux.wait_until("it succeeds", |screen| screen.contains("status:0"));
    assert!(is_free(&redis));
}

/// The terminal stops the foreground group alone.
#[test]
fn ctrl_z_keeps_the_lock_for_what_works_on_and_fg_continues_the_job() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal.type_in(concat!(
        "redlock run --ttl 9s -k 1s a -- sh -c 'setsid sleep 60 & ",
        "exec perl -e \"$COUNTER\" child CONT'; echo status:$?\n",
    ));
    let child = pid_in(&terminal.line("child ready"));
    let other = children(child)[0];
    let own = nix::unistd::Pid::from_raw(other);
    wait_until("it has a session of its own", || {
        nix::unistd::getsid(Some(own)) == Ok(own)
    });
    terminal.type_in(CTRL_Z);
    terminal.line("status:148");
    wait_until("the command is stopped", || state(child) == Some('T'));
    let renewals = redis.calls("pexpire");
    wait_until("it is renewed for longer than its TTL", || {
        redis.calls("pexpire") > renewals + 6
    });
    assert_eq!(state(child), Some('T'));
    terminal.type_in("fg; echo status:$?\n");
    terminal.line("child CONT");
    send(other, libc::SIGKILL);
    send(parent(child), libc::SIGRTMAX());
    terminal.line("status:0");
    terminal.type_in("exit 0\n");
    terminal.finish();
}

#[test]
fn fg_continues_all_of_a_job_where_something_works_on_and_ctrl_c_ends_it() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    // COMMAND waits for a child in its own group. The shell takes the job for running, as redlock goes on.
    terminal.type_in(concat!(
        "redlock run --ttl 60s a -- sh -c 'setsid sleep 60 & ",
        "perl -e \"$COUNTER\" child CONT; echo over'; echo status:$?\n",
    ));
    let child = pid_in(&terminal.line("child ready"));
    let command = parent(child);
    let others = children(command);
    let other = others.into_iter().find(|&pid| pid != child).unwrap();
    let own = nix::unistd::Pid::from_raw(other);
    wait_until("it has a session of its own", || {
        nix::unistd::getsid(Some(own)) == Ok(own)
    });
    terminal.type_in(CTRL_Z);
    terminal.line("status:148");
    wait_until("the job is stopped", || {
        state(child) == Some('T') && state(command) == Some('T')
    });
    wait_until("redlock goes on", || state(parent(command)) != Some('T'));
    terminal.type_in("fg\n");
    terminal.line("child CONT");
    terminal.type_in(CTRL_C);
    wait_until("all have ended", || is_gone(child) && is_gone(command));
    wait_until("the lock is free", || is_free(&redis));
    terminal.type_in("exit 0\n");
    terminal.finish();
}

#[test]
fn a_lease_that_ran_out_while_stopped_is_noticed_at_once_after_fg() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal.type_in(
        "redlock run --ttl 9s -k 100ms a -- perl -e \"$COUNTER\" child TERM; echo status:$?\n",
    );
    let child = pid_in(&terminal.line("child ready"));
    terminal.type_in(CTRL_Z);
    terminal.line("status:148");
    wait_until("the lock has run out", || is_free(&redis));
    // From here on no question is answered.
    redis.stall();
    terminal.type_in("fg; echo status:$?\n");
    wait_until("the child is dead", || !is_alive(child));
    redis.resume();
    // If the answer to a renewal comes while redlock is stopped, it says that Redis doesn't answer.
    terminal.line("redlock: lock \"a\" was not renewed in time: ");
    terminal.line("status:79");
    assert_eq!(terminal.count("child TERM"), 0, "{}", terminal.shown);
}

#[test]
fn a_background_job_that_reads_waits_for_fg() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run --ttl 120s a -c 'read line; echo \"got $line\"' & echo pid:$!\n");
    let redlock = pid_in(&terminal.line("pid:"));
    wait_until("it is stopped", || state(redlock) == Some('T'));
    // A shell that hasn't noticed the stop doesn't continue the job.
    let is_noticed = r#"until [ -n "$(jobs -s)" ]; do sleep 0.1; done"#;
    terminal.type_in(&format!("{is_noticed}; fg; echo status:$?\n"));
    wait_until("it is in the foreground", || {
        terminal.foreground() == redlock
    });
    terminal.type_in("hello\n");
    terminal.line("got hello");
    terminal.line("status:0");
}

#[test]
fn ctrl_c_ends_the_wait_for_the_lock() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let mut terminal = redlock(&redis, &["run", "a", "--", "echo", "ran"]);
    wait_until("it waits", || {
        !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    terminal.type_in(CTRL_C);
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(130));
    assert!(!terminal.shown.contains("ran"));
    assert_eq!(redis.keys(), ["redlock:a", "{redlock:a}:state"]);
}

#[test]
fn ctrl_z_stops_a_wait_and_after_fg_it_goes_on() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run a -- echo ran; echo status:$?\n");
    wait_until("it waits", || {
        !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    terminal.type_in(CTRL_Z);
    terminal.line("status:148");
    redis.cli(&["DEL", "redlock:a"]);
    redis.cli(&["PUBLISH", &redis.cli(&["PUBSUB", "CHANNELS"]), "free"]);
    assert!(is_free(&redis), "who is stopped takes nothing");
    terminal.type_in("fg; echo status:$?\n");
    terminal.line("ran");
    terminal.line("status:0");
}

#[test]
fn a_hang_up_ends_the_run_under_a_shell_and_frees_the_lock() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run --ttl 120s a -- perl -e \"$COUNTER\" child\n");
    let child = pid_in(&terminal.line("child ready"));
    let redlock = parent(child);
    terminal.hang_up();
    wait_until("both are gone", || !is_alive(child) && !is_alive(redlock));
    wait_until("the lock is free", || is_free(&redis));
}

#[test]
fn a_hang_up_ends_a_run_at_the_head_of_the_session_and_frees_the_lock() {
    let redis = Redis::start();
    let mut terminal = redlock(&redis, &counter(&[]));
    let child = pid_in(&terminal.line("child ready"));
    // The kernel tells the head of the session alone, which has to pass it on.
    terminal.hang_up();
    wait_until("the child is gone", || is_gone(child));
    let status = seen_by_a_shell(terminal.finish());
    assert_eq!(status, Some(128 + Signal::SIGHUP as i32));
    assert!(is_free(&redis));
}

#[test]
fn a_stopped_job_that_is_hung_up_ends_too() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run --ttl 120s a -- perl -e \"$COUNTER\" child; echo status:$?\n");
    let child = pid_in(&terminal.line("child ready"));
    let redlock = parent(child);
    terminal.type_in(CTRL_Z);
    terminal.line("status:148");
    terminal.hang_up();
    wait_until("both are gone", || !is_alive(child) && !is_alive(redlock));
    wait_until("the lock is free", || is_free(&redis));
}

#[test]
fn after_a_command_that_redlock_ended_the_terminal_has_its_modes_again() {
    let redis = Redis::start();
    let by_limit = "-t 1s";
    for (options, step_in) in [
        (by_limit, None),
        ("", Some("stop")),
        ("", Some("release --force -y")),
    ] {
        let script = format!(
            r#"echo "before $(stty -g)"; "{REDLOCK}" run -q {options} a -- sh -c 'stty raw -echo; echo ready; exec sleep 60'; echo "after $(stty -g)""#
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("REDLOCK_URL", redis.url());
        let mut terminal = Terminal::start(with_default_signals(shell));
        let before = terminal.line("before ");
        terminal.line("ready");
        if let Some(line) = step_in {
            let words: Vec<&str> = line.split(' ').chain(["-q", "a"]).collect();
            outcome(&mut redis.redlock(&words)).assert_code(0);
        }
        let after = terminal.line("after ");
        assert_eq!(
            after.replace("after", "before"),
            before,
            "{options} {step_in:?}"
        );
        terminal.finish();
    }
    // A COMMAND that ends by itself may have changed them on purpose.
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run -q a -- stty -echo; stty -a; exit\n");
    terminal.wait_until("the mode that COMMAND has set", |shown| {
        shown.contains("-echo ")
    });
    terminal.finish();
}

#[test]
fn beside_another_program_on_the_terminal_its_modes_are_left_alone() {
    let redis = Redis::start();
    // In the background of a script, and at the left of a pipeline, somebody else sets the modes meanwhile.
    for elsewhere in ["</dev/null", "| cat"] {
        let script = format!(
            r#"stty -echo; "{REDLOCK}" run -q -t 1s a -- sh -c 'stty echo </dev/tty; exec sleep 60' {elsewhere}; echo "after $(stty -a | grep -o -- '-*echo\b')""#
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("REDLOCK_URL", redis.url());
        let mut terminal = Terminal::start(with_default_signals(shell));
        assert_eq!(terminal.line("after "), "after echo", "{elsewhere}");
        terminal.finish();
    }
}

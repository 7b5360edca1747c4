//! Unusual jobs and surroundings: a COMMAND that is stopped or ignores signals, work without an
//! environment or of another user, files of other users, and limits. Each promise here was once broken.

use nix::sys::signal::killpg;
use nix::unistd::Pid;

use crate::promises::terminal::{is_stopped, on_terminal, pid_in, shell};
use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// COMMAND of a run with a short lease under a shell, and its redlock.
fn job(redis: &Redis, terminal: &mut Terminal, command: &str) -> (i32, i32) {
    script(redis.dir.path(), "command", command);
    terminal.type_in("redlock run --ttl 6s -k 1s a -- ~/command\n");
    let command = pid_in(&terminal.line("ready "));
    (command, redis.holder("a").unwrap())
}

/// Starts a command with default signals.
fn start(redis: &Redis, words: &[&str]) -> Running {
    Running::start(&mut directly(redis, words))
}

#[test]
fn under_a_limit_of_file_sizes_command_gets_no_signal_for_a_file_of_redlocks() {
    let redis = Redis::start();
    let limited = r#"ulimit -f 0; exec "$0" run a -c 'read go <"$HOME/gate"; exit 7'"#;
    let mut gate = Gate::new(&redis);
    let mut run = start(&redis, &["sh", "-c", limited, REDLOCK]);
    // With the first renewal it would write its mark.
    wait_until("it is renewed, or ends", || {
        redis.scripts() > 2 || run.has_ended()
    });
    gate.open();
    run.finish().assert_code(7);
}

#[test]
fn a_command_that_is_stopped_where_no_shell_can_continue_it_stays_stopped() {
    let redis = Redis::start();
    let script = "echo ready $$; read line";
    let mut terminal = on_terminal(&redis, words!("redlock run a -c", script));
    let command = pid_in(&terminal.line("ready "));
    send(command, libc::SIGSTOP);
    wait_until("it is stopped", || is_stopped(command));
    // Many times as long as COMMAND has to be stopped before redlock takes notice.
    for _ in 0..100 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(is_stopped(command), "somebody has continued it");
    }
    send(command, libc::SIGKILL);
    terminal.finish();
}

#[test]
fn a_command_that_is_stopped_and_continued_by_its_own_pid_works_under_the_lock() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    // One that reads from the terminal would be stopped again, as it is in the background now.
    let text = "#!/bin/sh\necho ready $$\nexec sleep 50\n";
    let (command, redlock) = job(&redis, &mut terminal, text);
    let is_at_work = || matches!(state(command), Some('R' | 'S' | 'D'));
    send(command, libc::SIGSTOP);
    wait_until("it is stopped", || !is_at_work());
    let renewals = redis.calls("evalsha");
    wait_until("redlock is stopped, or renews the lease", || {
        is_stopped(redlock) || redis.calls("evalsha") > renewals
    });
    send(command, libc::SIGCONT);
    // One renewal may have been under way. Where the machine is too slow for another one, the command is dead in
    // time, though nobody may have reaped it.
    let renewals = redis.calls("evalsha");
    wait_until("the lease is renewed, or the command is dead", || {
        let is_free = redis.holder("a").is_none();
        assert!(!(is_free && is_at_work()), "it works without the lock");
        is_free || redis.calls("evalsha") > renewals + 1
    });
    // With all of their group, unless they have ended.
    let _ = killpg(Pid::from_raw(redlock), Signal::SIGKILL);
}

#[test]
fn processes_of_a_suspended_command_work_under_the_lock() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    let text = "#!/bin/sh\n(while :; do date >>~/beats; sleep 0.1; done) &\necho ready $$\nwait\n";
    let (command, redlock) = job(&redis, &mut terminal, text);
    send(command, libc::SIGSTOP);
    wait_until("it is stopped", || is_stopped(command));
    let beside = r#"at=$(wc -l <"$HOME/beats"); sleep 1
        [ "$(wc -l <"$HOME/beats")" = "$at" ] || echo beside"#;
    let second = outcome(&mut redis.run("-w 8s a", beside));
    // With all of their group.
    send(-redlock, libc::SIGKILL);
    assert_eq!(second.stdout, "", "two are at work at once: {second:?}");
}

#[test]
fn a_command_that_ignores_sigint_gets_sigterm_before_sigkill() {
    let redis = Redis::start();
    // A shell's background job ignores INT. It is in COMMAND's group, which gets the INT.
    let text = r#"perl -e '$| = 1; $SIG{INT} = "IGNORE"; $SIG{TERM} = sub { print "cleaned\n"; exit };
        print "ready\n"; sleep 1 for 1 .. 50' & exec sleep 50"#;
    let run = Running::ready(&mut redis.run("-k 2s a", text));
    run.signal(Signal::SIGINT);
    // Otherwise it was killed unasked.
    assert_eq!(run.finish().stdout, "ready\ncleaned\n");
}

#[test]
fn a_command_that_lived_on_after_an_int_may_leave_a_daemon_behind_as_any_other() {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    // A signal that comes just before bash begins to read is heard when it has read.
    let text = r#"trap 'echo heard' INT; echo ready
        until read -t 0.1 go <"$HOME/gate"; do :; done
        setsid sh -c 'echo daemon $$; exec sleep 50 >/dev/null 2>&1' &
        until read -t 0.1 go <"$HOME/gate"; do :; done"#;
    let mut run = Running::ready(&mut redis.run("-k 500ms a -- bash", text));
    run.signal(Signal::SIGINT);
    run.expect_line("heard");
    // Longer than a COMMAND would have to end by that INT.
    std::thread::sleep(std::time::Duration::from_secs(1));
    gate.open();
    let daemon = run.pid_after("daemon ");
    gate.open();
    run.finish().assert_exited(0);
    assert!(is_alive(daemon), "the daemon was stopped");
    send(daemon, libc::SIGKILL);
}

#[test]
fn a_signal_ends_an_acquire_whose_output_is_not_read() {
    let redis = Redis::start();
    // A pipe that is full, and stays so.
    let full = r#"mkfifo ~/full; exec 3<>~/full; timeout 1 dd if=/dev/zero bs=4096 count=17 >&3
        exec "$0" acquire --ttl 60s a >&3"#;
    let mut run = start(&redis, &["bash", "-c", full, REDLOCK]);
    wait_until("the lock is held", || redis.is_held("a"));
    run.signal(Signal::SIGTERM);
    wait_until("it ends", || run.has_ended());
    run.finish();
}

//! redlock and COMMAND are one job on a terminal: keys, job control and hang-up work as without redlock.

use nix::sys::signal::killpg;
use nix::unistd::Pid;

use crate::promises::by_signal::blocks;
use crate::promises::signals::{Head, JOB, play};
use crate::support::prelude::*;
use crate::support::pty::Terminal;

pub const CTRL_C: &str = "\x03";
pub const CTRL_Z: &str = "\x1a";
pub const CTRL_BACKSLASH: &str = "\x1c";

/// Starts a command at the head of a session on a terminal, as in `ssh -t host …`. `$COUNTER` is the counting program.
pub fn on_terminal(redis: &Redis, words: &[&str]) -> Terminal {
    let mut command = directly(redis, words);
    command.env("PS1", "").env("COUNTER", COUNTER);
    Terminal::start(command)
}

/// Starts an interactive shell with job control, in which redlock knows its server.
pub fn shell(redis: &Redis) -> Terminal {
    on_terminal(redis, words!("bash --norc --noprofile --noediting -i"))
}

/// Returns the pid in a line such as `child ready 4711`.
pub fn pid_in(line: &str) -> i32 {
    line.rsplit([' ', ':']).next().unwrap().parse().unwrap()
}

/// Returns the parent of a process; 0 if the process has ended.
pub fn parent(pid: i32) -> i32 {
    stat(pid).get(1).map_or(0, |parent| parent.parse().unwrap())
}

/// Returns the process group of a process; 0 if the process has ended.
pub fn group(pid: i32) -> i32 {
    stat(pid).get(2).map_or(0, |group| group.parse().unwrap())
}

pub fn is_stopped(pid: i32) -> bool {
    state(pid) == Some('T')
}

/// Returns true if a redlock is at work again, so that it handles a TSTP instead of being stopped alone.
pub fn reads_stops(redlock: i32) -> bool {
    !is_stopped(redlock) && blocks(redlock, libc::SIGTSTP)
}

/// Frees the lock "a" of another client, and wakes its waiters.
pub fn hand_on(redis: &Redis) {
    redis.cli(&["DEL", "redlock:a"]);
    redis.cli(&["PUBLISH", &redis.cli(&["PUBSUB", "CHANNELS"]), "free"]);
}

#[test]
fn the_child_shares_the_foreground_group_and_without_a_terminal_leads_its_own() {
    let redis = Redis::start();
    let script = r#"use POSIX; my @groups = ($$, getpgrp getppid, tcgetpgrp 0);
        print map { $_ == getpgrp() ? 1 : 0 } @groups; print "\n""#;
    let words = words!("redlock run a -- perl -e", script);
    let mut terminal = on_terminal(&redis, words);
    terminal.finish();
    assert_eq!(terminal.shown, "011\n");
    assert_eq!(outcome(&mut directly(&redis, words)).stdout, "100\n");
}

#[test]
fn a_command_that_stops_itself_gives_the_prompt_back_and_goes_on_with_its_job() {
    let redis = Redis::start();
    let stops = "-c 'echo ready $$; kill -TSTP $$; echo went on'";
    // Like a shell that suspends itself, it leads a process group of its own.
    let suspends =
        r#"-- perl -e '$| = 1; setpgrp; print "ready $$\n"; kill STOP => $$; print "went on\n"'"#;
    for (command, is_by_fg) in [(stops, true), (stops, false), (suspends, true)] {
        let mut terminal = shell(&redis);
        terminal.type_in(&format!(
            "redlock run --ttl 120s a {command}; echo status:$?\n"
        ));
        let child = pid_in(&terminal.line("ready"));
        let redlock = parent(child);
        let status = terminal.line("status:");
        // The status that a shell reports for a job stopped by STOP or TSTP.
        assert!(["status:147", "status:148"].contains(&status.as_str()));
        assert!(is_stopped(child) && is_stopped(redlock));
        if is_by_fg {
            terminal.type_in("fg; echo status:$?\n");
        } else {
            // Sent by `bg`, or by another process that knows the job.
            send(-redlock, libc::SIGCONT);
        }
        terminal.line("went on");
        if is_by_fg {
            terminal.line("status:0");
        }
        wait_until("both have ended", || !is_alive(child) && !is_alive(redlock));
        assert!(!redis.is_held("a"));
    }
}

#[test]
fn a_command_that_another_process_stops_or_its_child_that_is_stopped_stops_no_other_process() {
    // redlock would have stopped within the pause.
    let row = "ONE COUNTS USR1 → STOP@command pause CONT@command USR1@redlock =USR1";
    play(JOB, row);
    // redlock watches only COMMAND, because a shell within it may have its own jobs.
    let row = "ONE sh -c '~/counter other & kill -STOP $!; exec COUNTS USR1' → USR1@redlock =USR1 TERM@redlock >143";
    play(Head, row);
}

#[test]
fn work_that_ignores_ctrl_z_is_dead_when_its_lease_ends() {
    // The terminal stops neither a process in another session nor a COMMAND that ignores the key.
    let scripts = [
        "setsid sh -c 'echo working $$; exec sleep 60' & wait",
        "trap '' TSTP; echo working $$; exec sleep 60",
    ];
    side_by_side(scripts, |text| {
        let redis = Redis::start();
        script(redis.dir.path(), "command", &format!("#!/bin/sh\n{text}\n"));
        let mut terminal = shell(&redis);
        terminal.type_in("redlock run --ttl 9s -k 1s a -- ~/command; echo status:$?\n");
        let worker = pid_in(&terminal.line("working "));
        let redlock = redis.holder("a").unwrap();
        await_watchdog(redlock);
        terminal.type_in(CTRL_Z);
        terminal.line("status:148");
        assert!(is_stopped(redlock) && is_alive(worker), "{text}");
        let next = Gated::start(&redis, &["-q", "a"]).ready();
        assert!(!is_alive(worker), "it works beside the next holder: {text}");
        terminal.type_in("fg; echo status:$?\n");
        terminal.line("redlock: lock \"a\" was not renewed in time: ");
        terminal.line("status:79");
        next.end();
        assert_nothing_left(&redis);
    });
}

#[test]
fn a_background_job_that_reads_waits_for_fg() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run --ttl 120s a -c 'read line; echo \"got $line\"' & echo pid:$!\n");
    let redlock = pid_in(&terminal.line("pid:"));
    wait_until("it is stopped", || is_stopped(redlock));
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
fn ctrl_z_stops_a_wait_and_after_fg_it_goes_on() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "somebody", "PX", "600000"]);
    let mut terminal = shell(&redis);
    terminal.type_in("redlock run a -- echo ran; echo status:$?\n");
    wait_until("it waits", || !redis.queue("a").is_empty());
    terminal.type_in(CTRL_Z);
    terminal.line("status:148");
    hand_on(&redis);
    assert!(!redis.is_held("a"), "who is stopped takes nothing");
    terminal.type_in("fg; echo status:$?\n");
    terminal.line("ran");
    terminal.line("status:0");
}

#[test]
fn after_a_command_that_redlock_ended_the_terminal_has_its_modes_again() {
    let redis = Redis::start();
    for (options, step_in) in [
        ("-t 5s", None),
        ("", Some("stop")),
        ("", Some("release --force -y")),
    ] {
        let script = format!(
            r#"echo "before $(stty -g)"; redlock run -q {options} a -- sh -c 'stty raw -echo; echo ready; exec sleep 60'; echo "after $(stty -g)""#
        );
        let mut terminal = on_terminal(&redis, &["sh", "-c", &script]);
        let before = terminal.line("before ");
        terminal.line("ready");
        if let Some(line) = step_in {
            ends(&redis, &format!("{line} -q a")).assert_code(0);
        }
        let after = terminal.line("after ").replace("after", "before");
        assert_eq!(after, before, "{options} {step_in:?}");
        terminal.finish();
    }
    // A COMMAND that ends by itself may have changed the modes on purpose.
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
    // In the background of a script, or at the left of a pipeline, another program sets the modes meanwhile.
    for elsewhere in ["</dev/null", "| cat"] {
        let script = format!(
            r#"stty -echo; redlock run -q a -- sh -c 'stty echo </dev/tty; echo ready; exec sleep 60' {elsewhere}; echo "after $(stty -a | grep -o -- '-*echo\b')""#
        );
        let mut terminal = on_terminal(&redis, &["sh", "-c", &script]);
        terminal.line("ready");
        ends(&redis, "stop -q a").assert_code(0);
        assert_eq!(terminal.line("after "), "after echo", "{elsewhere}");
        terminal.finish();
    }
}

/// Starts a run with a short lease in a shell. Returns the pids of COMMAND and its redlock.
fn job(redis: &Redis, terminal: &mut Terminal, command: &str) -> (i32, i32) {
    script(redis.dir.path(), "command", command);
    terminal.type_in("redlock run --ttl 6s -k 1s a -- ~/command\n");
    let command = pid_in(&terminal.line("ready "));
    (command, redis.holder("a").unwrap())
}

#[test]
fn a_command_that_is_stopped_and_continued_by_its_own_pid_works_under_the_lock() {
    let redis = Redis::start();
    let mut terminal = shell(&redis);
    // The kernel would stop a COMMAND that reads from the terminal again, because it is in the background now.
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
    // A renewal may have been under way. If the machine is too slow for another one, the command is dead in time, though
    // perhaps not reaped yet.
    let renewals = redis.calls("evalsha");
    wait_until("the lease is renewed, or the command is dead", || {
        let is_free = redis.holder("a").is_none();
        assert!(!(is_free && is_at_work()), "it works without the lock");
        is_free || redis.calls("evalsha") > renewals + 1
    });
    // Kills their whole group, unless all have ended.
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
    // Kills their whole group.
    send(-redlock, libc::SIGKILL);
    assert_eq!(second.stdout, "", "two are at work at once: {second:?}");
}

//! COMMAND's tree: COMMAND and its descendants in any process group or session, and nothing else. `--with-children` waits for
//! the tree, a stop signals all of it, and a kill leaves nothing of it.
//!
//! The tests of processes that redlock may not signal need root, and a temporary directory that permits setuid programs;
//! otherwise they check nothing. Since Linux 6.15 a keeper learns that its script was killed.

use nix::fcntl::{Flock, FlockArg};

use crate::promises::keeper::{after, keeper};
use crate::promises::terminal::{on_terminal, parent, pid_in};
use crate::support::prelude::*;
use crate::support::proxy::Proxy;

/// A Perl program that prints `ready` and its pid, and cleans up on SIGTERM, which it reports.
const CLEANER: &str = r#"
    $| = 1;
    $SIG{TERM} = sub { print "cleaned\n"; exit 0 };
    print "ready $$\n";
    sleep 1 for 1 .. 50;
"#;

/// A Perl program that prints `ready` and its pid, ignores TERM and HUP, and ends after a while.
const DEAF: &str = r#"
    $| = 1;
    $SIG{TERM} = $SIG{HUP} = "IGNORE";
    print "ready $$\n";
    sleep 50;
"#;

/// A Perl program that prints `ready` and its pid, prints `asked` on SIGTERM, and ends when the file in its argument exists.
const SLOW: &str = r#"
    $| = 1;
    $SIG{TERM} = sub { print "asked\n" };
    print "ready $$\n";
    my $limit = time + 50;
    select(undef, undef, undef, 0.01) until -e $ARGV[0] || time > $limit;
"#;

/// Starts a run with these options whose COMMAND is a script; `$1` is a program for it, and `$2` the path of a file.
fn script(redis: &Redis, options: &[&str], script: &str, program: &str) -> Running {
    let file = redis.dir.path().join("go");
    let words = ["sh", "-c", script, "sh", program, file.to_str().unwrap()];
    let arguments = [&["run"], options, &["a", "--"], &words].concat();
    Running::start(&mut redis.redlock(&arguments))
}

/// Reads the pids that COMMAND and one of its programs print in any order, after `command` and `ready`.
#[track_caller]
fn both(running: &mut Running) -> [i32; 2] {
    let mut lines = [running.line(), running.line()];
    lines.sort();
    let starts = ["command ", "ready "];
    assert!(
        lines
            .iter()
            .zip(starts)
            .all(|(line, start)| line.starts_with(start)),
        "{lines:?}"
    );
    lines.map(|line| pid_in(&line))
}

/// Options of a lock that is renewed every seven seconds, with renewals that may be 13 seconds late.
const RENEWED_OFTEN: &str = "--ttl 22s -k 2s --with-children";

/// Script of a shell that becomes redlock, while its logger reads COMMAND's output. The logger writes everything to the file
/// "log" at the end.
const LOGGED: &str = r#"exec redlock run --ttl 120s -k 60s OPTIONS > >(
    trap 'echo killed >>"$HOME/log"' TERM HUP INT
    while read -r line; do lines="$lines$line."; done; echo "$lines" >>"$HOME/log")"#;

#[test]
fn a_child_of_the_shell_before_is_neither_stopped_with_command_nor_waited_for() {
    for (options, code) in [
        (
            r#"a -- sh -c 'echo out; echo at work >"$HOME/out"; exec sleep 50'"#,
            143,
        ),
        ("-t 4s a -- sh -c 'echo out; exec sleep 50'", 124),
        ("--with-children a -- echo out", 0),
        ("--with-children a -c 'echo out; kill -9 $$'", 137),
    ] {
        let redis = Redis::left_empty();
        let script = LOGGED.replace("OPTIONS", options);
        let run = Running::start(&mut directly(&redis, &["bash", "-c", &script]));
        if code == 143 {
            wait_until("COMMAND is at work", || {
                home_file(&redis, "out") == "at work\n"
            });
            run.signal(Signal::SIGTERM);
        }
        // The end comes long before the minute of --kill-after is over, or this test would never end.
        run.finish().assert_code(code);
        let log = || home_file(&redis, "log");
        wait_until("the logger has got all", || log().ends_with(".\n"));
        assert_eq!(log(), "out.\n", "{options}");
    }
}

#[test]
fn a_process_from_before_or_one_that_an_earlier_daemon_starts_is_neither_killed_nor_waited_for() {
    // When the gate opens, a daemon starts a process in this way, and prints its pid.
    let daemon = r#"(read go <"$HOME/gate"; (WAY sleep 50 >/dev/null 2>&1 & echo bystander $!)) &"#;
    let [plain, setsid, bare] = ["", "setsid", "env -i"].map(|way| daemon.replace("WAY", way));
    // The process exists before, and its parent ends meanwhile.
    let before = r#"(sleep 50 >/dev/null 2>&1 & read go <"$HOME/gate"; echo bystander $!) &"#;
    // The kernel cuts this name within a character, so that it isn't UTF-8 any more.
    let named = r#"cp /bin/sleep "$HOME/nettoyage-données"; "$HOME/nettoyage-données" 50 >/dev/null 2>&1 &
        (read go <"$HOME/gate"; echo bystander $!) &"#;
    let rows = [
        (&*plain, "-k 100ms", 143),
        (&setsid, "-t 6s -k 100ms", 124),
        (&setsid, "--with-children", 137),
        (&bare, "-t 6s -k 100ms", 124),
        (&bare, "--with-children", 137),
        (before, "", 143),
        (named, "-t 300ms", 124),
    ];
    side_by_side(rows, |(starts, options, code)| {
        let redis = Redis::start();
        let mut gate = Gate::new(&redis);
        // The kernel reports the starts of processes in hundredths of a second.
        let script = format!(
            "{starts}\nsleep 0.05; exec redlock run {options} a -- sh -c 'echo command $$; exec sleep 50' 2>&1"
        );
        let mut run = Running::start(&mut sh(&redis, &script));
        let command = run.pid_after("command");
        gate.open();
        let bystander = run.pid_after("bystander");
        wait_until("it is redlock's child", || parent(bystander) == run.pid());
        match code {
            143 => run.signal(Signal::SIGTERM),
            137 => send(command, libc::SIGKILL),
            _ => {}
        }
        run.finish().assert_code(code);
        assert!(is_alive(bystander), "{starts} {options}");
        assert!(!redis.is_held("a"));
        send(bystander, libc::SIGKILL);
    });
}

#[test]
fn an_orphan_of_the_command_is_its_work_beside_an_earlier_daemon_whatever_it_drops() {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    // The orphan's parent ended before redlock could scan, so only a resource limit shows its origin.
    let script = r#"(read go <"$HOME/gate") & exec redlock run -k 60s --with-children a -- sh -c '
        (setsid env -i sh -c "echo ready \$\$; exec sleep 50" &); echo command $$'"#;
    let mut run = Running::start(&mut sh(&redis, script));
    let [_, orphan] = both(&mut run);
    wait_until("it is redlock's child", || parent(orphan) == run.pid());
    assert!(!run.has_ended());
    run.signal(Signal::SIGTERM);
    wait_until("redlock ends", || run.has_ended());
    assert!(!is_alive(orphan));
    gate.open();
    run.finish();
}

#[test]
fn after_a_stop_the_lock_is_held_until_the_last_of_the_tree_has_ended_and_was_reaped() {
    for (how, code) in [
        (r#"echo command $$; exec perl -e "$1" "$2""#, 0),
        (r#"perl -e "$1" "$2" & echo command $$; exec sleep 50"#, 143),
        // The shell prints its pid only after the parent of the program has ended.
        (
            r#"(perl -e "$1" "$2" & exit 0); echo command $$; exec sleep 50"#,
            143,
        ),
    ] {
        let redis = Redis::left_empty();
        let mut run = script(&redis, &["--ttl", "120s", "-k", "60s"], how, SLOW);
        let [_, last] = both(&mut run);
        run.signal(Signal::SIGTERM);
        run.expect_line("asked");
        assert!(redis.is_held("a") && is_alive(last), "{how}");
        fs::write(redis.dir.path().join("go"), "").unwrap();
        // Without a notification, redlock would notice only after a minute.
        redis.await_free("a");
        assert!(is_gone(last), "free, but it is {:?}", state(last));
        run.finish().assert_code(code).assert_silent();
    }
}

#[test]
fn the_number_of_commands_group_is_not_used_after_command_was_reaped() {
    let redis = Redis::start();
    // COMMAND ends at once; the other process of its group takes its time, and a signal arrives meanwhile.
    let command = r#"perl -e "$1" "$2" & echo command $$; exec sleep 50"#;
    let words = words!(
        "strace -f -e trace=kill,wait4,waitid,waitpid -o trace {} run --ttl 120s -k 60s a -- sh -c {} sh {} go",
        REDLOCK,
        command,
        SLOW
    );
    let mut run = directly(&redis, words);
    let mut run = Running::start(run.current_dir(redis.dir.path()));
    let [group, _] = both(&mut run);
    let redlock = redis.holder("a").unwrap();
    send(redlock, libc::SIGTERM);
    run.expect_line("asked");
    wait_until("COMMAND has ended", || !is_alive(group));
    await_signals_read(redlock);
    send(redlock, libc::SIGWINCH);
    await_signals_read(redlock);
    fs::write(redis.dir.path().join("go"), "").unwrap();
    run.finish();
    let (trace, own) = (home_file(&redis, "trace"), format!("{redlock} "));
    let ours = trace.lines().filter(|line| line.starts_with(&own));
    let ours: Vec<&str> = ours.collect();
    let (status, child) = (format!("= {group}"), format!("si_pid={group},"));
    let reaps = |line: &&str| {
        let by_waitid = line.contains(&child) && !line.contains("WNOWAIT");
        by_waitid && line.contains("waitid") || line.contains("wait4") && line.ends_with(&status)
    };
    let reaped = ours.iter().position(reaps);
    let reaped = reaped.unwrap_or_else(|| panic!("{group} was never reaped:\n{trace}"));
    let kills = [format!("kill(-{group},"), format!("kill({group},")];
    let is_late = |line: &&str| kills.iter().any(|kill| line.contains(kill));
    assert!(!ours[reaped..].iter().any(is_late), "{}", ours.join("\n"));
}

#[test]
fn a_tree_that_keeps_forking_is_dead_when_redlock_ends() {
    // Each process of the chain has a session of its own, and its parent has ended. All of them have the locked file open. The
    // chain ends after a while.
    let chain = r#"
        use POSIX ();
        use Fcntl ":flock";
        $SIG{$_} = "IGNORE" for qw(TERM HUP);
        open my $witness, ">", $ARGV[0] or die;
        flock $witness, LOCK_EX or die;
        my $limit = time + 15;
        $| = 1;
        print "ready $$\n";
        open STDOUT, ">", "/dev/null";
        open STDERR, ">", "/dev/null";
        while (time < $limit) {
            my $child = fork;
            exit if !defined $child || $child;
            POSIX::setsid();
        }
    "#;
    for round in 1..=4 {
        let redis = Redis::left_empty();
        let witness = redis.dir.path().join("go");
        let command = r#"perl -e "$1" "$2" & exec sleep 50"#;
        let mut run = script(&redis, &["-k", "50ms"], command, chain);
        run.pid_after("ready");
        run.signal(Signal::SIGTERM);
        wait_until("redlock ends", || run.has_ended());
        let witness = fs::File::open(witness).unwrap();
        let witness = Flock::lock(witness, FlockArg::LockExclusiveNonblock);
        assert!(witness.is_ok(), "a process has escaped, in round {round}");
        run.finish().assert_code(143);
    }
}

#[test]
fn without_a_terminal_a_descendant_in_its_own_session_gets_the_term_and_the_grace() {
    let redis = Redis::left_empty();
    let own_session = r#"setsid perl -e "$1" & exec sleep 50"#;
    let orphan = r#"(setsid perl -e "$1" & exit 0); exec sleep 50"#;
    // As the job control of a shell does.
    let own_group = r#"perl -e 'setpgrp; exec @ARGV' perl -e "$1" & exec sleep 50"#;
    for (detached, is_stopped, code) in [
        (own_session, false, 143),
        (orphan, false, 143),
        (own_group, false, 143),
        (own_session, true, 143),
        (own_session, false, 124),
        // The stopped process is COMMAND itself.
        (r#"exec perl -e "$1""#, true, 0),
    ] {
        let limit: &[&str] = if code == 124 { &["-t", "6s"] } else { &[] };
        let options = [words!("--ttl 120s -k 60s"), limit].concat();
        let mut run = script(&redis, &options, detached, CLEANER);
        let descendant = run.pid_after("ready");
        if is_stopped {
            send(descendant, libc::SIGSTOP);
            wait_until("it is stopped", || state(descendant) == Some('T'));
        }
        if limit.is_empty() {
            run.signal(Signal::SIGTERM);
        }
        run.expect_line("cleaned");
        let end = run.finish();
        end.assert_code(code);
        assert!(code == 124 || end.stderr.is_empty(), "{detached}: {end:?}");
        assert!(is_gone(descendant), "{detached} {is_stopped} {code}");
    }
}

#[test]
fn a_process_that_a_daemon_of_a_killed_script_starts_on_sigterm_is_stopped() {
    let redis = Redis::start();
    let daemon = r#"trap "env -i sleep 50 & echo \"started \$!\"; wait" TERM; echo "daemon $$"; while :; do sleep 1; done"#;
    let rest = format!("sh -c '{daemon}' & wait");
    let mut running = after("", &redis, "--ttl 12s -k 4s", &rest);
    let daemon = running.pid_after("daemon");
    // The keeper has scanned for the daemon with the first renewal.
    redis.await_renewals("a", 2);
    running.signal(Signal::SIGKILL);
    let started = running.pid_after("started");
    redis.await_free("a");
    assert!(!is_alive(daemon) && !is_alive(started));
    running.finish();
}

#[test]
fn a_process_that_a_script_starts_on_sigterm_is_killed_with_it() {
    let redis = Redis::start();
    let rest = r#"trap 'sleep 0.2; env -i sleep 50 & echo "started $!"' TERM
        echo trapped; while :; do sleep 50 & wait; done"#;
    let mut running = after("", &redis, "--ttl 60s -k 4s", rest);
    running.expect_line("trapped");
    let keeper = keeper(&running);
    ends(&redis, "release --force a").assert_code(0);
    let started = running.pid_after("started");
    wait_until("the keeper ends", || !is_alive(keeper));
    assert!(!is_alive(started));
    running.finish();
}

/// Script of a descendant that waits at the gate, without the standard streams.
const AT_THE_GATE: &str = r#"sh -c 'echo $$ >"$HOME/pid"; read go <"$HOME/gate"' >/dev/null 2>&1"#;

/// Waits for the descendant at the gate. Returns its pid, from this file.
#[track_caller]
fn at_the_gate(redis: &Redis, file: &str) -> i32 {
    await_some("it waits at the gate", || {
        let text = home_file(redis, file);
        text.ends_with('\n').then(|| text.trim().parse().unwrap())
    })
}

#[test]
fn with_children_the_lock_of_a_run_or_a_script_is_held_until_the_last_descendant_has_ended() {
    crate::support::among_own_processes!();
    let bare = format!("env -i HOME=\"$HOME\" {AT_THE_GATE} &");
    let background = format!("{AT_THE_GATE} &");
    // The parent of this process has ended long before COMMAND.
    let daemon = format!("(cd / && setsid {AT_THE_GATE} & exit 0)");
    let rows = [
        (false, &background),
        (false, &format!("setsid {AT_THE_GATE} &")),
        (false, &daemon),
        (false, &bare.replace("sh -c", "setsid sh -c")),
        (true, &background),
        (true, &daemon),
        (true, &bare),
    ];
    side_by_side(rows, |(is_script, how)| {
        let redis = Redis::left_empty();
        let mut gate = Gate::new(&redis);
        // A process that started before the lock was taken doesn't keep it.
        let _before = Gate::at(&redis.dir.path().join("before"));
        let first = "sh -c 'echo $$; read end <before' >&2 & disown";
        let command = format!("{how}\necho command $$; exit 3");
        let mut run = if is_script {
            after(first, &redis, RENEWED_OFTEN, &command)
        } else {
            Running::start(&mut redis.run(&format!("{RENEWED_OFTEN} a"), &command))
        };
        let command = run.pid_after("command");
        let descendant = at_the_gate(&redis, "pid");
        wait_until("COMMAND has ended", || !is_alive(command));
        redis.await_renewals("a", 2);
        ends(&redis, "run -n a -- true").assert_code(75);
        let has_ended = run.has_ended();
        assert!(is_alive(descendant) && has_ended == is_script, "{how}");
        gate.open();
        redis.await_free("a");
        assert!(!is_alive(descendant), "{how}");
        if !is_script {
            run.finish().assert_code(3).assert_silent();
            assert!(is_gone(descendant), "{how}");
        }
    });
}

/// Python program whose first thread ends, while another one waits for the gate.
const HEADLESS: &str = r#"
import ctypes, os, threading
threading.Thread(target=lambda: (open("gate").readline(), os._exit(0))).start()
ctypes.CDLL(None).pthread_exit(0)
"#;

#[test]
fn with_children_a_script_waits_for_a_process_whose_first_thread_has_ended() {
    let redis = Redis::left_empty();
    fs::write(redis.dir.path().join("headless"), HEADLESS).unwrap();
    let mut gate = Gate::new(&redis);
    let rest = "python3 headless >/dev/null 2>&1 & echo started $!";
    let mut script = after("", &redis, RENEWED_OFTEN, rest);
    let headless = script.pid_after("started");
    // A zombie looks the same after its end.
    wait_until("its first thread has ended", || {
        state(headless) == Some('Z')
    });
    wait_until("the script has ended", || script.has_ended());
    redis.await_renewals("a", 2);
    ends(&redis, "run -n a -- true").assert_code(75);
    gate.open();
    redis.await_free("a");
}

#[test]
fn a_large_tree_is_dead_when_the_lease_ends() {
    // Each process has a session of its own, so that the kill of COMMAND's group doesn't reach it; all have the locked file
    // open. They end after a while.
    let many = r#"
        use POSIX ();
        use Fcntl ":flock";
        $SIG{TERM} = "IGNORE";
        open my $witness, ">", $ARGV[0] or die;
        flock $witness, LOCK_EX or die;
        for (1..500) {
            next if fork;
            POSIX::setsid();
            sleep 60;
            exit;
        }
        $| = 1;
        print "ready $$\n";
        sleep 60;
    "#;
    let redis = Redis::start();
    let witness = redis.dir.path().join("go");
    let proxy = Proxy::new(&redis);
    let url = proxy.url();
    // A busy machine needs the margin of a longer lease to kill so many.
    let options = ["-u", &url, "--ttl", "20s", "-k", "100ms"];
    let mut run = script(&redis, &options, r#"exec perl -e "$1" "$2""#, many);
    run.pid_after("ready");
    // The relevant lease is that of a renewal while all of them run.
    redis.await_calls("pexpire", 1);
    proxy.vanish();
    // The next holder starts when the lease ends, and finds that no process has the file open.
    let next = ["run", "-q", "a", "--", "flock", "-n"];
    let next = [&next[..], &[witness.to_str().unwrap(), "true"]].concat();
    outcome(&mut redis.redlock(&next)).assert_exited(0);
    run.finish().assert_code(79);
}

#[test]
fn without_with_children_descendants_of_a_command_or_script_that_ended_by_itself_are_left_alone() {
    for (is_script, code) in [(false, 0), (false, 3), (true, 0)] {
        let redis = Redis::left_empty();
        let mut gate = Gate::new(&redis);
        let other = AT_THE_GATE.replace("/pid", "/other");
        let command = format!("setsid {AT_THE_GATE} & {other} & echo started; exit {code}");
        let run = if is_script {
            after("", &redis, "--ttl 60s", &command)
        } else {
            Running::start(&mut redis.run("a", &command))
        };
        run.finish().assert_code(code).assert_silent();
        redis.await_free("a");
        let descendants = ["pid", "other"].map(|file| at_the_gate(&redis, file));
        assert!(descendants.into_iter().all(is_alive));
        gate.open();
        gate.open();
        wait_until("both have exited", || {
            !descendants.into_iter().any(is_alive)
        });
    }
}

#[test]
fn survivors_get_sigterm_after_command_was_killed_or_a_run_with_children_ends() {
    let child = r#"perl -e "$1" & echo command $$; wait"#;
    let session = r#"setsid perl -e "$1" & echo command $$; wait"#;
    let orphan = r#"(setsid perl -e "$1" & exit 0); echo command $$; sleep 50"#;
    let ended = r#"(setsid perl -e "$1" & exit 0); echo command $$; exit 3"#;
    let succeeded = r#"(setsid perl -e "$1" & exit 0); echo command $$"#;
    for (how, cause, code) in [
        (child, "kill", 137),
        (session, "kill", 137),
        (orphan, "kill", 137),
        (ended, "term", 3),
        (succeeded, "term", 143),
        (ended, "loss", 79),
    ] {
        let redis = Redis::start();
        let mut options = words!("--ttl 60s -k 30s").to_vec();
        options.extend((cause != "kill").then_some("--with-children"));
        let mut run = script(&redis, &options, how, CLEANER);
        let [command, leftover] = both(&mut run);
        if cause == "kill" {
            send(command, libc::SIGKILL);
        }
        wait_until("COMMAND has ended", || !is_alive(command));
        match cause {
            "term" => {
                // A signal that arrives before redlock has noted the end is meant for COMMAND too.
                wait_until("COMMAND is reaped", || is_gone(command));
                wait_until("redlock sleeps", || state(run.pid()) == Some('S'));
                run.signal(Signal::SIGTERM);
            }
            "loss" => drop(redis.cli(&["DEL", "redlock:a"])),
            _ => {}
        }
        run.expect_line("cleaned");
        let end = run.finish();
        end.assert_code(code);
        assert!(is_gone(leftover), "{how} {cause}");
        if cause == "loss" {
            end.assert_says("lock \"a\" was lost");
        } else {
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_deaf_leftover_of_a_command_that_was_stopped_or_killed_is_killed_before_the_lock_is_free() {
    for (how, is_stopped) in [
        (r#"perl -e "$1" & echo command $$; exec sleep 50"#, true),
        (r#"setsid perl -e "$1" & echo command $$; wait"#, false),
    ] {
        let redis = Redis::left_empty();
        let mut run = script(&redis, &["--ttl", "60s", "-k", "300ms"], how, DEAF);
        let [command, leftover] = both(&mut run);
        let (pid, signal) = if is_stopped {
            (run.pid(), libc::SIGTERM)
        } else {
            (command, libc::SIGUSR1)
        };
        send(pid, signal);
        redis.await_free("a");
        assert!(is_gone(leftover), "{how}");
        run.finish().assert_code(128 + signal);
    }
}

/// Runs a script to its end as process 1 of a pid namespace whose /proc belongs to the outer namespace. The outer one is new as
/// well, so its pids are small. Returns `None` if namespaces aren't permitted.
fn below_foreign_proc(redis: &Redis, script: &str) -> Option<Outcome> {
    let own = in_own_pids()?;
    let outer = r#"unshare --pid --fork --kill-child sh -c "$1" & wait"#;
    let words = [&own[..], &["sh", "-c", outer, "sh", script]].concat();
    let mut command = directly(redis, &words);
    Some(outcome(command.current_dir(redis.dir.path())))
}

#[test]
fn with_a_foreign_proc_no_pid_is_signalled_invisible_work_keeps_its_lock_and_there_is_no_keeper() {
    // According to that /proc, redlock has the pid of the script itself, so all these processes seem to be its children.
    let others = r#"
        mkfifo fifo
        sleep 60 &
        redlock run -q a -- sh -c 'echo ready >fifo; exec sleep 60' &
        run=$!
        read ready <fifo
        for n in 1 2 3 4 5 6; do sleep 60 & others="$others $!"; done
        kill $run
        wait $run
        echo "ended with $?"
        kill -KILL $others
        for other in $others; do wait $other; echo $?; done
    "#;
    // redlock kills the group of COMMAND, but can't find the process in a session of its own.
    let unseen = r#"
        redlock run a -t 300ms -k 100ms --ttl 6s -- sh -c 'setsid sleep 60 & exec sleep 60' 2>said &
        run=$!
        until grep -q "may still be running" said; do sleep 0.1; done
        redlock run -q -w 7s a -- true
        echo $?
        kill $run
        wait $run
        echo $?
        redlock run -q -n a -- true
        echo $?
        cat said >&2
    "#;
    // A keeper couldn't find the script's descendants. The parent of the acquire has pid 1, which belongs to another process in
    // that /proc.
    let keeper = r#"
        redlock acquire a --while-pid $$ | grep -c REDLOCK_TOKEN=
        redlock run -q a -- echo free
        redlock acquire -q a >/dev/null
        redlock status --json a | grep -o 'unshare\|"name":"a"'
    "#;
    let killed = "ended with 143\n".to_owned() + &"137\n".repeat(6);
    for (script, expected, says) in [
        (others, &*killed, ""),
        (
            unseen,
            "75\n124\n75\n",
            "may still be running, and redlock can't see them",
        ),
        (
            keeper,
            "0\nfree\n\"name\":\"a\"\n",
            "/proc belongs to another pid namespace",
        ),
    ] {
        let redis = Redis::start();
        let end = some_or_return!(below_foreign_proc(&redis, script));
        assert_eq!(end.stdout, expected, "{}", end.stderr);
        end.assert_says(says);
    }
}

#[test]
fn an_inner_run_does_not_prolong_an_outer_one_that_waits_for_its_tree() {
    let redis = Redis::left_empty();
    let words = words!(
        "redlock run --with-children a -- redlock run b -- perl -e {} child",
        COUNTER
    );
    let mut terminal = on_terminal(&redis, words);
    let child = pid_in(&terminal.line("child ready"));
    await_watchdog(redis.holder("b").unwrap());
    send(child, libc::SIGRTMAX());
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
}

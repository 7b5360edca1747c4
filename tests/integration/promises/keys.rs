//! Keys of the terminal reach a COMMAND that has left the job's process group, and a signal to the whole job reaches
//! COMMAND once: as under flock and without any of them.
//!
//! Not tested: the first 50 ms of a run, in which a signal to the whole job still reaches COMMAND twice.

use std::fs;
use std::process::Command;
use std::time::Duration;

use crate::promises::terminal::{pid_in, shell};
use crate::support::pty::Terminal;
use crate::support::{
    COUNTER, REDLOCK, Redis, assert_nothing_left, children, is_alive, path, script,
    seen_by_a_shell, send, state, wait_until, with_default_signals,
};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";

/// Longer than the time within which another signal is the same request.
const ANOTHER: Duration = Duration::from_millis(600);

/// What is put before a COMMAND to run it in redlock, in flock, and in nothing.
const ALONE: &str = "env";
const UNDER_FLOCK: &str = "flock -o ~/file";
const UNDER_REDLOCK: &str = "redlock run -q --ttl 120s -k 60s a --";
const UNDER_TWO: &str =
    "redlock run -q --ttl 120s -k 60s a -- redlock run -q --ttl 120s -k 60s b --";

/// A server, and in the home directory `counter`, the counting program, and `apart`, which runs a command in a process
/// group of its own and passes nothing on to it.
fn start() -> Redis {
    let redis = Redis::start();
    let home = redis.dir.path();
    script(home, "counter", &format!("#!/usr/bin/env perl\n{COUNTER}"));
    script(home, "apart", "#!/usr/bin/env perl\nsetpgrp; exec @ARGV");
    redis
}

/// A shell line at the head of a session on a terminal, as of `ssh -t`.
fn at_the_head(redis: &Redis, line: &str) -> Terminal {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("exec {line}")])
        .env_clear()
        .env("PATH", path())
        .env("REDLOCK_URL", redis.url())
        .env("HOME", redis.dir.path());
    Terminal::start(with_default_signals(command))
}

/// The parent of a process and its group; 0 where it has ended.
fn stat(pid: i32) -> (i32, i32) {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut numbers = fields
        .split(' ')
        .skip(2)
        .map(|field| field.parse().unwrap());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// The processes by which a redlock tells a signal to the whole job from one to itself.
fn witnesses(redlock: i32) -> Vec<i32> {
    let mut children = children(redlock);
    children.retain(|&pid| name(pid) == "rl-witness");
    children
}

/// Waits until all redlocks above a process can tell signals apart; they, the innermost first.
fn redlocks_above(pid: i32) -> Vec<i32> {
    let above = std::iter::successors(Some(stat(pid).0), |&pid| Some(stat(pid).0));
    let found: Vec<i32> = above
        .take_while(|&pid| pid > 1)
        .filter(|&pid| name(pid) == "redlock")
        .collect();
    for &redlock in &found {
        wait_until("it has a witness in its group and one apart", || {
            let group = stat(redlock).1;
            let mut inside = witnesses(redlock);
            let all = inside.len();
            inside.retain(|&pid| stat(pid).1 == group);
            (all, inside.len()) == (2, 1)
        });
    }
    found
}

/// A signal of a high number, which is taken after others, and that the counting program names NUM60.
const LAST: i32 = 60;

/// Waits until each redlock above the counting program has done what is to be done about its signals: two of a kind that
/// come at once count as one.
fn settle(terminal: &mut Terminal, counter: i32) {
    for redlock in redlocks_above(counter) {
        send(redlock, LAST);
        terminal.line("child NUM60");
    }
}

/// Ends the counting program, once it has said all that it has got.
fn end(terminal: &mut Terminal, counter: i32) {
    send(counter, libc::SIGRTMAX());
    terminal.line("child end");
}

/// What the counting program says that is run in this way as a job of a shell, when something is done to its process
/// group.
fn said(redis: &Redis, line: &str, act: impl Fn(&mut Terminal, i32)) -> Vec<String> {
    let mut terminal = shell(redis);
    terminal.type_in(&format!("{line}\n"));
    let child = pid_in(&terminal.line("child ready"));
    let redlocks = redlocks_above(child);
    act(&mut terminal, child);
    end(&mut terminal, child);
    wait_until("they have ended", || {
        !redlocks.iter().any(|&pid| is_alive(pid))
    });
    let lines = terminal.shown.lines().map(str::trim_end);
    lines
        .filter(|line| {
            line.starts_with("child ") && !line.contains("ready") && !line.contains("NUM60")
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_key_reaches_a_command_that_has_left_the_group_exactly_once() {
    let redis = start();
    for (key, name) in [(CTRL_C, "INT"), (CTRL_BACKSLASH, "QUIT")] {
        let line = format!("{UNDER_REDLOCK} ~/apart ~/counter child INT QUIT");
        let mut terminal = at_the_head(&redis, &line);
        let child = pid_in(&terminal.line("child ready"));
        for _ in 0..3 {
            terminal.type_in(key);
            terminal.line(&format!("child {name}"));
            // A typed key is never the request that kills.
            std::thread::sleep(ANOTHER);
        }
        end(&mut terminal, child);
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
        assert_eq!(terminal.count(&format!("child {name}")), 3);
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_new_window_size_reaches_a_command_that_has_left_the_group() {
    let redis = start();
    let line = format!("{UNDER_REDLOCK} timeout 60 ~/counter child WINCH");
    let mut terminal = at_the_head(&redis, &line);
    let child = pid_in(&terminal.line("child ready"));
    terminal.resize(50, 100);
    terminal.line("child WINCH");
    end(&mut terminal, child);
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    assert_eq!(terminal.count("child WINCH"), 1);
}

#[test]
fn a_key_ends_a_command_under_timeout() {
    let redis = start();
    for (key, status) in [(CTRL_C, 130), (CTRL_BACKSLASH, 131)] {
        let line = format!("{UNDER_REDLOCK} timeout 60 ~/counter child");
        let mut terminal = at_the_head(&redis, &line);
        let child = pid_in(&terminal.line("child ready"));
        terminal.type_in(key);
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(status));
        assert!(!is_alive(child));
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_hang_up_ends_a_command_under_timeout() {
    let redis = start();
    let line = format!("{UNDER_REDLOCK} timeout 60 ~/counter child");
    let below_a_script = format!("sh -c '{line}; true'");
    let in_a_shell = || {
        let mut terminal = shell(&redis);
        terminal.type_in(&format!("{line}\n"));
        terminal
    };
    // The session is led by redlock, by a script that shares its group, or by a shell that passes it on.
    let ways: [&dyn Fn() -> Terminal; 3] = [
        &|| at_the_head(&redis, &line),
        &|| at_the_head(&redis, &below_a_script),
        &in_a_shell,
    ];
    for way in ways {
        let mut terminal = way();
        let child = pid_in(&terminal.line("child ready"));
        terminal.hang_up();
        wait_until("it has ended", || !is_alive(child));
        wait_until("the lock is free", || {
            redis.cli(&["EXISTS", "redlock:a"]) == "0"
        });
    }
}

#[test]
fn ctrl_z_stops_a_command_under_timeout_and_fg_continues_it() {
    let redis = start();
    let mut terminal = shell(&redis);
    let line = format!("{UNDER_REDLOCK} timeout 60 ~/counter child CONT");
    terminal.type_in(&format!("{line}; echo sta\"\"tus:$?\n"));
    let child = pid_in(&terminal.line("child ready"));
    let timeout = stat(child).0;
    let redlock = stat(timeout).0;
    for round in 1..=2 {
        terminal.type_in(CTRL_Z);
        terminal.line("status:148");
        for pid in [child, timeout, redlock] {
            wait_until("it is stopped", || state(pid) == Some('T'));
        }
        terminal.type_in("fg; echo sta\"\"tus:$?\n");
        terminal.line("child CONT");
        for pid in [child, timeout, redlock] {
            wait_until("it goes on", || state(pid) != Some('T'));
        }
        assert_eq!(terminal.count("child CONT"), round);
        redlocks_above(child);
    }
    end(&mut terminal, child);
    terminal.line("status:0");
    assert_nothing_left(&redis);
}

#[test]
fn ctrl_z_stops_nothing_where_no_shell_could_continue_it() {
    let redis = start();
    let line = format!("{UNDER_REDLOCK} timeout 60 ~/counter child WINCH");
    let mut terminal = at_the_head(&redis, &line);
    let child = pid_in(&terminal.line("child ready"));
    for size in [50, 60] {
        terminal.type_in(CTRL_Z);
        terminal.resize(size, 100);
        terminal.line("child WINCH");
    }
    end(&mut terminal, child);
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
}

#[test]
fn timeout_around_a_run_sends_its_command_one_term() {
    let redis = start();
    for line in [UNDER_REDLOCK, UNDER_TWO] {
        let line = format!("timeout 60 {line} ~/counter child TERM NUM60");
        let said = said(&redis, &line, |terminal, child| {
            let timeout = stat(*redlocks_above(child).last().unwrap()).0;
            // Its time is over.
            send(timeout, libc::SIGALRM);
            terminal.line("child TERM");
            wait_until("it has sent one to all of its group as well", || {
                state(timeout) == Some('S')
            });
            settle(terminal, child);
        });
        assert_eq!(said, ["child TERM", "child end"], "{line}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_signal_to_the_whole_job_reaches_command_as_often_as_without_redlock() {
    let redis = start();
    let names = "INT TERM HUP QUIT USR1 URG CONT NUM60";
    for (name, signal) in [
        ("INT", libc::SIGINT),
        ("TERM", libc::SIGTERM),
        ("HUP", libc::SIGHUP),
        ("QUIT", libc::SIGQUIT),
        ("USR1", libc::SIGUSR1),
        ("URG", libc::SIGURG),
        ("CONT", libc::SIGCONT),
    ] {
        let ways = [ALONE, UNDER_FLOCK, UNDER_REDLOCK, UNDER_TWO].map(|way| {
            said(
                &redis,
                &format!("{way} ~/counter child {names}"),
                |terminal, child| {
                    send(-stat(child).1, signal);
                    terminal.line(&format!("child {name}"));
                    settle(terminal, child);
                },
            )
        });
        for said in ways {
            assert_eq!(said, [format!("child {name}"), "child end".into()]);
        }
    }
}

#[test]
fn real_time_signals_to_the_job_and_to_redlock_reach_command_as_often_as_they_were_sent() {
    let redis = start();
    // The kernel queues these, and the program takes one at a time, so that none is missed.
    let program = r#"#!/usr/bin/env perl
        use POSIX ();
        $| = 1;
        my $end = 0;
        $SIG{NUM40} = sub { print "child came\n" };
        $SIG{NUM60} = sub { print "child NUM60\n" };
        $SIG{RTMAX} = sub { $end = 1 };
        POSIX::sigprocmask(POSIX::SIG_BLOCK, POSIX::SigSet->new(40, 60, POSIX::SIGRTMAX));
        print "child ready $$\n";
        my $none = POSIX::SigSet->new;
        POSIX::sigsuspend($none) until $end;
        print "child end\n";
    "#;
    script(redis.dir.path(), "taker", program);
    let said = said(
        &redis,
        &format!("{UNDER_REDLOCK} ~/taker"),
        |terminal, child| {
            let redlock = redlocks_above(child)[0];
            for _ in 0..5 {
                send(-redlock, 40);
                send(redlock, 40);
            }
            for _ in 0..10 {
                terminal.line("child came");
            }
            // One more than these would come first.
            settle(terminal, child);
        },
    );
    assert_eq!(said.len(), 11, "{said:?}");
}

#[test]
fn a_shells_kill_of_a_job_in_a_pipeline_reaches_command_once() {
    let redis = start();
    let mut terminal = shell(&redis);
    terminal.type_in(&format!(
        "{UNDER_REDLOCK} ~/counter child URG NUM60 | cat &\n"
    ));
    let child = pid_in(&terminal.line("child ready"));
    redlocks_above(child);
    for _ in 0..3 {
        terminal.type_in("kill -URG %1\n");
        terminal.line("child URG");
        settle(&mut terminal, child);
    }
    end(&mut terminal, child);
    assert_eq!(terminal.count("child URG"), 3, "{}", terminal.shown);
}

#[test]
fn a_signal_to_redlock_alone_reaches_command_once_after_one_to_the_job_as_well() {
    let redis = start();
    let names = "USR1 INT TERM HUP WINCH NUM60";
    for way in [UNDER_REDLOCK, UNDER_TWO] {
        let said = said(
            &redis,
            &format!("{way} ~/counter child {names}"),
            |terminal, child| {
                let outermost = *redlocks_above(child).last().unwrap();
                for _ in 0..2 {
                    send(-outermost, libc::SIGUSR1);
                    terminal.line("child USR1");
                    settle(terminal, child);
                    send(outermost, libc::SIGUSR1);
                    terminal.line("child USR1");
                    for columns in [100, 101] {
                        terminal.resize(50, columns);
                        terminal.line("child WINCH");
                        settle(terminal, child);
                    }
                    send(outermost, libc::SIGWINCH);
                    terminal.line("child WINCH");
                    settle(terminal, child);
                }
                for (name, signal) in [("HUP", libc::SIGHUP), ("INT", libc::SIGINT)] {
                    send(outermost, signal);
                    terminal.line(&format!("child {name}"));
                }
            },
        );
        let count = |name: &str| said.iter().filter(|line| line.ends_with(name)).count();
        assert_eq!(
            ["USR1", "WINCH", "HUP", "INT"].map(count),
            [4, 6, 1, 1],
            "{said:?}"
        );
    }
}

/// As `killall redlock` does, which on some systems goes by the program file of a process.
#[test]
fn a_signal_to_every_redlock_one_after_the_other_reaches_command() {
    let redis = start();
    let line = format!("{UNDER_REDLOCK} ~/counter child USR1 TERM");
    let said = said(&redis, &line, |terminal, child| {
        let redlock = redlocks_above(child)[0];
        for (name, signal) in [("USR1", libc::SIGUSR1), ("TERM", libc::SIGTERM)] {
            let mut all = [vec![redlock], witnesses(redlock)].concat();
            assert!(
                all.iter()
                    .all(|pid| fs::read_link(format!("/proc/{pid}/exe")).unwrap()
                        == fs::canonicalize(REDLOCK).unwrap())
            );
            all.sort_unstable();
            for pid in all {
                send(pid, signal);
            }
            terminal.line(&format!("child {name}"));
        }
    });
    assert_eq!(said, ["child USR1", "child TERM", "child end"]);
}

#[test]
fn witnesses_hold_no_descriptors_and_are_gone_when_redlock_is() {
    let redis = start();
    for kills in [false, true] {
        let line = format!("{UNDER_REDLOCK} ~/counter child");
        let mut terminal = at_the_head(&redis, &line);
        let child = pid_in(&terminal.line("child ready"));
        let witnesses = witnesses(redlocks_above(child)[0]);
        for &witness in &witnesses {
            wait_until("only its socket is open", || {
                let open = fs::read_dir(format!("/proc/{witness}/fd")).unwrap();
                open.count() == 1
            });
        }
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGTSTP,
            libc::SIGUSR1,
        ] {
            for &pid in &witnesses {
                send(pid, signal);
            }
        }
        wait_until("they wait on", || {
            witnesses.iter().all(|&pid| state(pid) == Some('S'))
        });
        if kills {
            send(terminal.pid(), libc::SIGKILL);
        } else {
            end(&mut terminal, child);
        }
        terminal.finish();
        wait_until("they are gone", || {
            !witnesses.iter().any(|&pid| is_alive(pid))
        });
        redis.cli(&["FLUSHALL"]);
    }
}

#[test]
fn a_job_that_is_stopped_and_continued_as_a_whole_still_tells_signals_apart() {
    let redis = start();
    let line = format!("{UNDER_TWO} ~/counter child USR1 NUM60");
    let said = said(&redis, &line, |terminal, child| {
        let redlocks = redlocks_above(child);
        let outermost = *redlocks.last().unwrap();
        send(-outermost, libc::SIGSTOP);
        for pid in [&redlocks[..], &[child]].concat() {
            wait_until("it is stopped", || state(pid) == Some('T'));
        }
        send(-outermost, libc::SIGUSR1);
        send(-outermost, libc::SIGCONT);
        terminal.line("child USR1");
        settle(terminal, child);
        send(-outermost, libc::SIGUSR1);
        terminal.line("child USR1");
        settle(terminal, child);
    });
    assert_eq!(said, ["child USR1", "child USR1", "child end"]);
}

#[test]
fn ctrl_z_suspends_nested_runs_with_their_witnesses() {
    let redis = start();
    let mut terminal = shell(&redis);
    terminal.type_in(&format!(
        "{UNDER_TWO} ~/counter child; echo sta\"\"tus:$?\n"
    ));
    let child = pid_in(&terminal.line("child ready"));
    let redlocks = redlocks_above(child);
    assert_eq!(redlocks.len(), 2);
    for _ in 0..2 {
        terminal.type_in(CTRL_Z);
        terminal.line("status:148");
        // Longer than a redlock that is stopped alone would be left so.
        std::thread::sleep(Duration::from_millis(1500));
        assert!(redlocks.iter().all(|&pid| state(pid) == Some('T')));
        terminal.type_in("fg; echo sta\"\"tus:$?\n");
        wait_until("all go on", || {
            let mut all = redlocks.iter().chain([&child]);
            all.all(|&pid| state(pid) != Some('T'))
        });
    }
    end(&mut terminal, child);
    terminal.line("status:0");
    assert_nothing_left(&redis);
}

#[test]
fn witnesses_of_an_inner_run_do_not_prolong_an_outer_one_that_waits_for_its_tree() {
    let redis = start();
    let line = "redlock run --with-children a -- redlock run b -- ~/counter child";
    let mut terminal = at_the_head(&redis, line);
    let child = pid_in(&terminal.line("child ready"));
    redlocks_above(child);
    end(&mut terminal, child);
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    assert_nothing_left(&redis);
}

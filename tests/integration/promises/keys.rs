//! Keys of the terminal reach a COMMAND that has left the job's process group, and each signal reaches COMMAND once,
//! except one that a process outside of the job sends to the whole job.

use crate::promises::supervision::TAKER;
use crate::promises::terminal::{
    CTRL_BACKSLASH, CTRL_C, CTRL_Z, is_stopped, on_terminal, parent, pid_in, reads_stops, shell,
};
use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// Longer than the time within which another signal is the same request.
const ANOTHER: Duration = Duration::from_millis(600);

/// Words before a COMMAND that run it in one redlock, and in two.
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

/// A shell line at the head of a session on a terminal.
fn at_the_head(redis: &Redis, line: &str) -> Terminal {
    let line = format!("ulimit -c 0; exec {line}");
    on_terminal(redis, &["sh", "-c", &line])
}

fn name(pid: i32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Returns all redlocks above a process, the innermost first.
fn redlocks_above(pid: i32) -> Vec<i32> {
    let above = std::iter::successors(Some(parent(pid)), |&pid| Some(parent(pid)));
    above
        .take_while(|&pid| pid > 1)
        .filter(|&pid| name(pid) == "redlock")
        .collect()
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

/// Ends the counting program, once it has printed all that it has got.
fn end(terminal: &mut Terminal, counter: i32) {
    send(counter, libc::SIGRTMAX());
    terminal.line("child end");
}

/// Returns what the counting program prints that is run in this way as a job of a shell, when something is done to its
/// process group.
fn lines_of(redis: &Redis, line: &str, act: impl Fn(&mut Terminal, i32)) -> Vec<String> {
    let mut terminal = shell(redis);
    terminal.type_in(&format!("{line}\n"));
    let child = pid_in(&terminal.line("child ready"));
    let redlocks = redlocks_above(child);
    act(&mut terminal, child);
    end(&mut terminal, child);
    wait_until("they have ended", || {
        !redlocks.iter().any(|&pid| is_alive(pid))
    });
    terminal.type_in("echo on:$((1 + 1))\n");
    terminal.line("on:2");
    let lines = terminal.shown.lines().map(str::trim_end);
    let lines = lines.filter(|line| line.starts_with("child ") && !line.starts_with("child ready"));
    let lines = lines.filter(|line| !line.contains("NUM60"));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_key_and_a_new_window_size_reach_a_command_exactly_once_also_when_it_has_left_the_group() {
    type Act = fn(&mut Terminal, u16);
    let redis = start();
    let acts: [(&str, Act); 3] = [
        ("INT", |terminal, _| terminal.type_in(CTRL_C)),
        ("QUIT", |terminal, _| terminal.type_in(CTRL_BACKSLASH)),
        ("WINCH", |terminal, round| terminal.resize(50, 100 + round)),
    ];
    for before in ["", "~/apart "] {
        for (name, act) in acts {
            let line = format!("{UNDER_REDLOCK} {before}~/counter child {name}");
            let mut terminal = at_the_head(&redis, &line);
            let (redlock, is_in_group) = (terminal.pid(), before.is_empty());
            terminal.line("child ready");
            for round in 0..3 {
                // Stands still until a child in its group has had the signal, as two at once count as one.
                if is_in_group {
                    send(redlock, libc::SIGSTOP);
                }
                act(&mut terminal, round);
                terminal.line(&format!("child {name}"));
                if is_in_group {
                    send(redlock, libc::SIGCONT);
                }
                // A typed key is never the request that kills.
                std::thread::sleep(ANOTHER);
            }
            send(redlock, libc::SIGRTMAX());
            assert_eq!(seen_by_a_shell(terminal.finish()), Some(0), "{line}");
            let count = terminal.count(&format!("child {name}"));
            assert_eq!(count, 3, "{line}: {}", terminal.shown);
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_key_that_command_does_not_handle_ends_it_and_the_lock_is_free() {
    let redis = start();
    for before in ["", "timeout 60 "] {
        for (key, status) in [(CTRL_C, 130), (CTRL_BACKSLASH, 131)] {
            let line = format!("{UNDER_REDLOCK} {before}~/counter child");
            let mut terminal = at_the_head(&redis, &line);
            let child = pid_in(&terminal.line("child ready"));
            terminal.type_in(key);
            assert_eq!(seen_by_a_shell(terminal.finish()), Some(status), "{line}");
            assert!(!is_alive(child));
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_hang_up_ends_command_and_frees_the_lock_whoever_leads_the_session() {
    let redis = start();
    for (leader, before) in [
        // The kernel tells the head of the session alone, which has to pass it on.
        ("redlock", ""),
        ("a shell", ""),
        ("the shell of a stopped job", ""),
        ("redlock", "timeout 60 "),
        ("a script that shares the group", "timeout 60 "),
        ("a shell", "timeout 60 "),
    ] {
        let line = format!("{UNDER_REDLOCK} {before}~/counter child");
        let mut terminal = match leader {
            "redlock" => at_the_head(&redis, &line),
            "a script that shares the group" => {
                at_the_head(&redis, &format!("sh -c '{line}; true'"))
            }
            _ => shell(&redis),
        };
        if leader.contains("shell") {
            terminal.type_in(&format!("{line}; echo sta\"\"tus:$?\n"));
        }
        let child = pid_in(&terminal.line("child ready"));
        let redlock = redlocks_above(child)[0];
        if leader.contains("stopped") {
            terminal.type_in(CTRL_Z);
            terminal.line("status:148");
        }
        terminal.hang_up();
        wait_until(&format!("both have ended: {leader}, {line}"), || {
            !is_alive(child) && !is_alive(redlock)
        });
        assert_nothing_left(&redis);
        if (leader, before) == ("redlock", "") {
            assert_eq!(seen_by_a_shell(terminal.finish()), Some(129));
        }
    }
}

/// Interactive shells with job control, that edit no lines and read no files.
const SHELLS: [&str; 4] = [
    "bash --norc --noprofile --noediting -i",
    "dash -i",
    "zsh -f -i +Z +o promptsp",
    "ksh -i",
];

#[test]
fn ctrl_z_stops_all_of_a_job_with_its_redlocks_and_fg_continues_it_in_each_shell() {
    let redis = start();
    let under_timeout = format!("{UNDER_REDLOCK} timeout 60");
    let ways = [UNDER_REDLOCK, &under_timeout, UNDER_TWO].map(|way| (SHELLS[0], way));
    let others = SHELLS[1..].iter().map(|line| (*line, UNDER_REDLOCK));
    for (line, way) in ways.into_iter().chain(others) {
        let shell = words(line, &[]);
        if !is_permitted(&[shell[0], "-c", "true"]) {
            continue;
        }
        let mut terminal = on_terminal(&redis, &shell);
        let shell = terminal.pid();
        terminal.type_in(&format!("{way} ~/counter child CONT INT\n"));
        let child = pid_in(&terminal.line("child ready"));
        let outermost = *redlocks_above(child).last().unwrap();
        let next = |&pid: &i32| (pid != outermost).then(|| parent(pid));
        let job: Vec<i32> = std::iter::successors(Some(child), next).collect();
        for round in 1..=2 {
            terminal.type_in(CTRL_Z);
            wait_until("all are stopped", || job.iter().all(|&pid| is_stopped(pid)));
            wait_until("the shell has the terminal", || {
                terminal.foreground() == shell
            });
            if round == 1 {
                // Longer than a redlock that is stopped alone would be left so.
                std::thread::sleep(Duration::from_millis(1500));
                assert!(job.iter().all(|&pid| is_stopped(pid)), "{way}");
            }
            terminal.type_in("fg\n");
            terminal.line("child CONT");
            wait_until("all go on", || !job.iter().any(|&pid| is_stopped(pid)));
            assert_eq!(terminal.foreground(), outermost, "the job's group");
            if way != UNDER_TWO {
                assert_eq!(terminal.count("child CONT"), round, "{line} {way}");
            }
            for redlock in redlocks_above(child) {
                wait_until("it reads stops", || reads_stops(redlock));
            }
        }
        if way == UNDER_REDLOCK {
            terminal.type_in(CTRL_C);
            terminal.line("child INT");
        }
        end(&mut terminal, child);
        let count = usize::from(way == UNDER_REDLOCK);
        assert_eq!(terminal.count("child INT"), count, "{line} {way}");
        wait_until("all have ended", || !job.iter().any(|&pid| is_alive(pid)));
        terminal.type_in("echo on:$((1 + 1))\n");
        terminal.line("on:2");
        assert_nothing_left(&redis);
    }
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
    for way in [UNDER_REDLOCK, UNDER_TWO] {
        let line = format!("timeout 60 {way} ~/counter child TERM NUM60");
        let lines = lines_of(&redis, &line, |terminal, child| {
            let redlocks = redlocks_above(child);
            // They read the signal late, as on a busy machine. timeout(1) continues them.
            for &redlock in &redlocks {
                send(redlock, libc::SIGSTOP);
                wait_until("it is stopped", || is_stopped(redlock));
            }
            // Its time is over.
            send(parent(*redlocks.last().unwrap()), libc::SIGALRM);
            terminal.line("child TERM");
            settle(terminal, child);
        });
        assert_eq!(lines, ["child TERM", "child end"], "{line}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn a_term_that_a_script_in_the_group_sends_to_redlock_alone_reaches_command() {
    let redis = start();
    // Like timeout(1), the script ignores the signal and then continues redlock, but COMMAND hasn't got the signal.
    let sends = "trap '' TERM; read line; kill -TERM $!; kill -CONT $!; wait $!";
    let script = format!("{UNDER_REDLOCK} ~/counter child TERM NUM60 & {sends}");
    let mut terminal = on_terminal(&redis, &["sh", "-c", &script]);
    let child = pid_in(&terminal.line("child ready"));
    let redlock = redlocks_above(child)[0];
    // Stopped, it takes both signals in at once.
    send(redlock, libc::SIGSTOP);
    wait_until("it is stopped", || is_stopped(redlock));
    terminal.type_in("\n");
    wait_until("it goes on", || !is_stopped(redlock));
    settle(&mut terminal, child);
    end(&mut terminal, child);
    assert_eq!(terminal.count("child TERM"), 1, "{}", terminal.shown);
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    assert_nothing_left(&redis);
}

/// Sender of a signal.
#[derive(Clone, Copy, Debug)]
enum Sender {
    /// Another process, to the outermost redlock alone.
    Other,
    /// Another process, to the whole job.
    OtherToJob,
    /// The terminal, for a key.
    Key(&'static str),
}

#[test]
fn a_signal_reaches_command_once_and_one_to_the_whole_job_at_least_once() {
    let redis = start();
    let names = "INT TERM HUP QUIT USR1 URG CONT WINCH ALRM NUM60";
    let reaches = |way: &str, name: &str, sender: Sender| {
        let number = signal(name) as i32;
        let line = format!("{way} ~/counter child {names}");
        let lines = lines_of(&redis, &line, |terminal, child| {
            let outermost = *redlocks_above(child).last().unwrap();
            match sender {
                Sender::Other => send(outermost, number),
                Sender::OtherToJob => send(-outermost, number),
                Sender::Key(key) => terminal.type_in(key),
            }
            terminal.line(&format!("child {name}"));
            settle(terminal, child);
        });
        let (last, before) = lines.split_last().unwrap();
        let is_to_job = matches!(sender, Sender::OtherToJob);
        let count = before.len();
        assert!(before.iter().all(|line| *line == format!("child {name}")));
        assert!(count == 1 || is_to_job, "{sender:?}, {line}: {lines:?}");
        assert_eq!(last, "child end");
    };
    for name in "INT TERM HUP QUIT USR1 URG CONT".split(' ') {
        reaches(UNDER_REDLOCK, name, Sender::OtherToJob);
    }
    reaches(UNDER_TWO, "USR1", Sender::OtherToJob);
    for name in "INT TERM HUP QUIT USR1 WINCH ALRM".split(' ') {
        reaches(UNDER_REDLOCK, name, Sender::Other);
    }
    for way in [UNDER_REDLOCK, UNDER_TWO] {
        reaches(way, "INT", Sender::Key(CTRL_C));
        reaches(way, "QUIT", Sender::Key(CTRL_BACKSLASH));
    }
}

#[test]
fn a_script_that_signals_its_redlock_alone_reaches_command_once() {
    let redis = start();
    // The script is in the job's group. It may ignore the signal itself, so that another one doesn't disturb its cleanup.
    for before in ["", "trap '' TERM HUP USR1"] {
        for name in ["TERM", "HUP", "USR1"] {
            let text = format!(
                "#!/bin/sh\n{UNDER_REDLOCK} ~/counter child {name} NUM60 &\nread go\n{before}\nkill -{name} $!\nwait $!\n"
            );
            script(redis.dir.path(), "script", &text);
            let lines = lines_of(&redis, "~/script", |terminal, child| {
                terminal.type_in("\n");
                terminal.line(&format!("child {name}"));
                settle(terminal, child);
            });
            assert_eq!(lines, [&*format!("child {name}"), "child end"], "{text}");
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_shells_kill_of_a_job_in_a_pipeline_reaches_command() {
    let redis = start();
    let line = format!("{UNDER_REDLOCK} ~/counter child URG NUM60 | cat &");
    let lines = lines_of(&redis, &line, |terminal, child| {
        terminal.type_in("kill -URG %1\n");
        terminal.line("child URG");
        settle(terminal, child);
    });
    // Both the shell and redlock send it.
    let (last, before) = lines.split_last().unwrap();
    assert!(before.iter().all(|line| line == "child URG"), "{lines:?}");
    assert_eq!(last, "child end");
}

#[test]
fn real_time_signals_to_redlock_reach_command_as_often_as_they_were_sent() {
    let redis = start();
    let text = format!("#!/usr/bin/env perl\n{TAKER}");
    script(redis.dir.path(), "taker", &text);
    let line = format!("{UNDER_REDLOCK} ~/taker 40 {LAST}");
    let lines = lines_of(&redis, &line, |terminal, child| {
        for _ in 0..5 {
            send(redlocks_above(child)[0], 40);
        }
        for _ in 0..5 {
            terminal.line("child NUM40");
        }
        // One more than these would come first.
        settle(terminal, child);
    });
    assert_eq!(lines.len(), 6, "{lines:?}");
}

#[test]
fn a_signal_to_redlock_alone_reaches_command_once_after_one_of_the_terminal_as_well() {
    type Act<'a> = &'a dyn Fn(&mut Terminal);
    let redis = start();
    for way in [UNDER_REDLOCK, UNDER_TWO] {
        let line = format!("{way} ~/counter child USR1 WINCH INT HUP NUM60");
        let lines = lines_of(&redis, &line, |terminal, child| {
            let outermost = *redlocks_above(child).last().unwrap();
            let acts: [(&str, Act); 4] = [
                ("USR1", &|_| send(outermost, libc::SIGUSR1)),
                ("WINCH", &|terminal| terminal.resize(50, 100)),
                ("WINCH", &|terminal| terminal.resize(50, 101)),
                ("WINCH", &|_| send(outermost, libc::SIGWINCH)),
            ];
            for (name, act) in acts.into_iter().chain(acts) {
                act(terminal);
                terminal.line(&format!("child {name}"));
                settle(terminal, child);
            }
            for (name, signal) in [("HUP", libc::SIGHUP), ("INT", libc::SIGINT)] {
                send(outermost, signal);
                terminal.line(&format!("child {name}"));
            }
        });
        let [usr1, winch] = ["child USR1", "child WINCH"];
        let round = [usr1, winch, winch, winch];
        let last = ["child HUP", "child INT", "child end"];
        assert_eq!(lines, [&round[..], &round, &last].concat(), "{line}");
    }
}

#[test]
fn a_signal_reaches_command_once_after_the_whole_job_was_stopped_and_continued() {
    let redis = start();
    let line = format!("{UNDER_TWO} ~/counter child USR1 NUM60");
    let lines = lines_of(&redis, &line, |terminal, child| {
        let redlocks = redlocks_above(child);
        let outermost = *redlocks.last().unwrap();
        send(-outermost, libc::SIGSTOP);
        for pid in [&redlocks[..], &[child]].concat() {
            wait_until("it is stopped", || is_stopped(pid));
        }
        // The first one finds the job stopped.
        send(outermost, libc::SIGUSR1);
        send(-outermost, libc::SIGCONT);
        for round in 0..2 {
            if round > 0 {
                send(outermost, libc::SIGUSR1);
            }
            terminal.line("child USR1");
            settle(terminal, child);
        }
    });
    assert_eq!(lines, ["child USR1", "child USR1", "child end"]);
}

#[test]
fn an_inner_run_does_not_prolong_an_outer_one_that_waits_for_its_tree() {
    let redis = start();
    let line = "redlock run --with-children a -- redlock run b -- ~/counter child";
    let mut terminal = at_the_head(&redis, line);
    let child = pid_in(&terminal.line("child ready"));
    await_watchdog(redlocks_above(child)[0]);
    end(&mut terminal, child);
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    assert_nothing_left(&redis);
}

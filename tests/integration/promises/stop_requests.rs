//! One request to end that arrives in many ways is one request: if a terminal, a supervisor and a shell
//! relay the same signal, COMMAND may clean up; only a second request kills it.

use std::fmt::Debug;

use nix::sys::signal::killpg;
use nix::unistd::Pid;

use crate::promises::terminal::{CTRL_C, on_terminal, pid_in, shell};
use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// How often each relay is tried: what decides is which of several signals comes first.
const ROUNDS: usize = 12;

/// The time within which another signal is the same request.
const SAME: Duration = Duration::from_millis(500);

/// A COMMAND that takes its time to clean up when it is asked to end, however often: longer than signals may be apart that
/// are one request, so that none of them comes only when redlock releases the lock.
const CLEANS_UP: &str = r#"
    $| = 1;
    my $asked = 0;
    $SIG{INT} = $SIG{TERM} = sub { $asked = 1 };
    print "ready\n";
    my $limit = time + 60;
    select(undef, undef, undef, 0.01) until $asked || time > $limit;
    select(undef, undef, undef, 0.05) for 1 .. 12;
    print "cleaned\n";
    exit 9;
"#;

/// Two runs, one in the other.
const NESTED: [&str; 13] = [
    REDLOCK, "run", "--ttl", "120s", "-k", "60s", "a", "--", REDLOCK, "run", "-q", "b", "--",
];

/// A run under a supervisor that passes on to all of its group what it gets itself.
const UNDER_TIMEOUT: [&str; 8] = ["timeout", "60", REDLOCK, "run", "-k", "60s", "a", "--"];

/// Ends the counting program at the head of a terminal, which was not killed.
fn end(terminal: &mut Terminal, redis: &Redis) {
    send(terminal.pid(), libc::SIGRTMAX());
    terminal.line("child end");
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    assert_nothing_left(redis);
}

#[test]
fn typed_ctrl_c_never_kills_a_command_that_goes_on_after_it_or_ignores_it_and_is_no_first_request()
{
    let redis = Redis::start();
    for (kill_after, trap, names) in [
        ("60s", "-", "INT TERM WINCH"),
        // Less than lies between the keys.
        ("1ms", "-", "INT WINCH"),
        ("60s", "''", "WINCH"),
    ] {
        let script = format!("trap {trap} INT; exec perl -e \"$COUNTER\" child {names}");
        let words = words!("redlock run --ttl 120s -k {} a -c", kill_after, &script);
        let mut terminal = on_terminal(&redis, words);
        terminal.line("child ready");
        for round in 0..8 {
            terminal.type_in(CTRL_C);
            if names.contains("INT") {
                terminal.line("child INT");
            }
            // When this one has been passed on, redlock has seen the key too, as the kernel gives the
            // lower number first.
            send(terminal.pid(), libc::SIGWINCH);
            terminal.line("child WINCH");
            if round == 4 {
                // Neither shortly after another nor long after it.
                std::thread::sleep(SAME + Duration::from_millis(100));
            }
        }
        if names.contains("TERM") {
            std::thread::sleep(SAME + Duration::from_millis(100));
            send(terminal.pid(), libc::SIGTERM);
            terminal.line("child TERM");
            send(terminal.pid(), libc::SIGWINCH);
            terminal.line("child WINCH");
        }
        end(&mut terminal, &redis);
    }
}

/// Starts the counting program; its pid.
fn counting(redis: &Redis) -> (Running, i32) {
    let words = words!(
        "run --ttl 120s -k 60s a -- perl -e {} child INT TERM WINCH",
        COUNTER
    );
    let mut run = Running::start(&mut redis.redlock(words));
    let line = run.line();
    (run, pid_in(&line))
}

#[test]
fn a_second_request_that_is_sent_half_a_second_after_the_first_kills() {
    let redis = Redis::start();
    let (term, int) = (Signal::SIGTERM, Signal::SIGINT);
    for (first, second) in [(term, term), (int, int), (term, int), (int, term)] {
        let (mut run, child) = counting(&redis);
        run.signal(first);
        run.expect_line(&format!("child {}", &first.as_str()[3..]));
        std::thread::sleep(SAME + Duration::from_millis(50));
        run.signal(second);
        // Long before its minute is over, or this would never end. It is a number, as another
        // signal ended COMMAND than the one that redlock got.
        run.finish().assert_exited(137);
        assert!(is_gone(child));
        assert_nothing_left(&redis);
    }
}

/// Sends two signals to a run within half a second, and then lets COMMAND end; what it prints after
/// the first. Where the machine was slower than that nothing is known, and it is done again.
fn lines_after(redis: &Redis, first: Signal, second: Signal) -> String {
    for _ in 0..50 {
        let (mut run, _) = counting(redis);
        let began = Instant::now();
        run.signal(first);
        run.expect_line(&format!("child {}", &first.as_str()[3..]));
        run.signal(second);
        // The kernel gives the lower number first, to redlock and to COMMAND: when this one has
        // arrived, so has all that comes of the others.
        send(run.pid(), libc::SIGWINCH);
        let mut lines = String::new();
        while !lines.ends_with("WINCH\n") {
            match run.next_line() {
                Some(line) => lines += line.strip_prefix("child ").unwrap_or(&line),
                None => break,
            }
        }
        let took = began.elapsed();
        let is_alive_then = lines.ends_with("WINCH\n");
        assert!(
            is_alive_then || took >= SAME,
            "killed within {took:?} by {first} and {second}; it said {lines:?}"
        );
        if is_alive_then {
            send(run.pid(), libc::SIGRTMAX());
            run.finish().assert_exited(0);
            if took < SAME {
                return lines;
            }
        }
    }
    panic!("this machine never did it within {SAME:?}");
}

#[test]
fn within_half_a_second_a_signal_is_the_same_request_and_only_another_one_is_passed_on() {
    let redis = Redis::start();
    let (term, int) = (Signal::SIGTERM, Signal::SIGINT);
    for (first, second, lines) in [
        (term, term, "WINCH\n"),
        (int, int, "WINCH\n"),
        (int, term, "TERM\nWINCH\n"),
        (term, int, "INT\nWINCH\n"),
    ] {
        assert_eq!(lines_after(&redis, first, second), lines, "{first}");
    }
}

/// Counts the rounds in which COMMAND cleaned up.
#[derive(Default)]
struct Rounds(usize);

impl Rounds {
    /// Fails if COMMAND didn't clean up, unless the machine took so long that a relay may have been a second request.
    #[track_caller]
    fn judge(&mut self, is_clean: bool, began: Instant, output: &dyn Debug) {
        let took = began.elapsed();
        assert!(is_clean || took >= SAME, "within {took:?}: {output:?}");
        self.0 += usize::from(is_clean);
    }

    #[track_caller]
    fn assert_some(&self) {
        assert!(self.0 > 0, "this machine never did it within {SAME:?}");
    }
}

#[test]
fn one_key_or_signal_to_all_on_a_terminal_lets_command_clean_up_and_all_end_with_its_status() {
    type Ask = fn(&mut Terminal);
    let key: Ask = |terminal| terminal.type_in(CTRL_C);
    let term: Ask = |terminal| killpg(Pid::from_raw(terminal.pid()), Signal::SIGTERM).unwrap();
    for (before, ask) in [(&UNDER_TIMEOUT[..], key), (&NESTED, key), (&NESTED, term)] {
        let redis = Redis::start();
        let words = [before, &["perl", "-e", CLEANS_UP]].concat();
        let mut rounds = Rounds::default();
        for _ in 0..ROUNDS {
            let mut terminal = on_terminal(&redis, &words);
            terminal.line("ready");
            let began = Instant::now();
            ask(&mut terminal);
            let status = seen_by_a_shell(terminal.finish());
            let is_clean = (status, terminal.count("cleaned")) == (Some(9), 1);
            rounds.judge(is_clean, began, &terminal.shown);
            redis.await_free("a b");
        }
        rounds.assert_some();
    }
}

#[test]
fn kill_of_a_shells_job_lets_command_clean_up() {
    let redis = Redis::left_empty();
    let text = format!("#!/usr/bin/env perl\n{CLEANS_UP}");
    script(redis.dir.path(), "command", &text);
    let mut terminal = shell(&redis);
    let mut rounds = Rounds::default();
    for _ in 0..ROUNDS {
        terminal.type_in("redlock run -k 60s a -- redlock run -k 60s b -- ~/command &\n");
        terminal.line("ready");
        let (began, before) = (Instant::now(), terminal.count("cleaned"));
        // In two parts, so that the line that is typed isn't taken for what it shows.
        terminal.type_in("kill %1; wait %1; echo sta\"\"tus:$?\n");
        let status = terminal.line("status:");
        let cleaned = terminal.count("cleaned") - before;
        let is_clean = (status.as_str(), cleaned) == ("status:9", 1);
        rounds.judge(is_clean, began, &terminal.shown);
    }
    rounds.assert_some();
}

#[test]
fn one_signal_to_the_group_of_runs_and_supervisors_lets_command_clean_up() {
    let inner = ["timeout", "60", REDLOCK, "run", "-k", "60s", "b", "--"];
    let both = [UNDER_TIMEOUT, inner].concat();
    for (before, signal) in [
        (&UNDER_TIMEOUT[..], Signal::SIGTERM),
        (&UNDER_TIMEOUT, Signal::SIGINT),
        (&both, Signal::SIGTERM),
    ] {
        let redis = Redis::left_empty();
        let words = [before, &["perl", "-e", CLEANS_UP]].concat();
        let mut rounds = Rounds::default();
        for _ in 0..ROUNDS {
            let run = Running::ready(&mut directly(&redis, &words));
            let began = Instant::now();
            killpg(Pid::from_raw(run.pid()), signal).unwrap();
            let end = run.finish();
            let is_clean = (end.code(), end.stdout.as_str()) == (Some(9), "ready\ncleaned\n");
            rounds.judge(is_clean, began, &end);
        }
        rounds.assert_some();
    }
}

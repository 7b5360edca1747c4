//! Output for people on a terminal: at 40, 80 and 120 columns, once and with `--watch`.

use crate::support::prelude::*;
use crate::support::pty::Terminal;
use crate::support::tmux::Tmux;

/// A typical user of a CI runner: with the host at least 40 columns.
const RUNNER: &str = "runner@fv-az1234-567.internal.cloudapp.net";
const LINK: &str = "https://ci.example.com/acme/shop/actions/runs/15912345678/job/4711";

/// Starts a run by a CI runner. Returns when it is ready.
fn by_runner(redis: &Redis, name: &str) -> Running {
    let script = "echo ready; exec sleep 60; : --region eu-west-1 --with-migrations";
    let mut command = redis.redlock(&["run", name, "-c", script]);
    command
        .env("USER", RUNNER)
        .env("JENKINS_URL", "x")
        .env("BUILD_URL", LINK);
    Running::ready(&mut command)
}

/// Returns the output of `redlock ARGUMENTS` in a window of this many columns.
fn shown(redis: &Redis, columns: u16, arguments: &str) -> Vec<String> {
    let tmux = Tmux::with_size(redis, columns, 50);
    tmux.type_line(&format!("clear; redlock {arguments}; echo 'en''d'"));
    tmux.line("end");
    let screen = tmux.screen();
    let lines = screen.lines().take_while(|line| *line != "end");
    lines.map(str::to_owned).collect()
}

/// Returns the columns of ASCII text and the cut mark.
fn width(line: &str) -> usize {
    line.chars().count()
}

#[test]
fn at_80_columns_the_table_shows_who_for_how_long_and_twenty_columns_of_the_command() {
    let redis = Redis::start();
    let _runs = ["deploy", "nightly"].map(|name| by_runner(&redis, name));
    let lines = shown(&redis, 80, "status");
    let heading: Vec<&str> = lines[0].split_whitespace().collect();
    let starts = heading.starts_with(&["NAME", "MODE", "WHO", "AGE"]);
    assert!(starts && heading.ends_with(&["COMMAND"]), "{lines:?}");
    let at = lines[0].find("COMMAND").unwrap();
    // The cut mark takes one column.
    assert!((at + 20..=80).contains(&width(&lines[1])), "{lines:?}");
    let is_cut = lines[1].contains("runner@fv-az123") && lines[1].contains('…');
    assert!(is_cut, "{lines:?}");
    let command: String = lines[1].chars().skip(at).collect();
    assert!(command.starts_with("sh -c 'echo ready; "), "{lines:?}");
    // The link is whole, on a line of its own.
    assert_eq!(lines[2], format!("  {LINK}"));
    assert_eq!(lines.len(), 5, "{lines:?}");
}

#[test]
fn the_id_is_the_first_column_to_go_and_the_pid_the_next_and_no_name_is_ever_cut() {
    let redis = Redis::start();
    let _run = Gated::start(&redis, &["a"]).ready();
    let all = ["NAME", "MODE", "WHO", "PID", "AGE", "ID", "COMMAND"];
    let mut missing = Vec::new();
    for columns in [120, 105, 90, 80, 70, 60, 50] {
        let lines = shown(&redis, columns, "status");
        let fits = lines.iter().all(|line| width(line) <= columns.into());
        assert!(fits, "{lines:?}");
        let heading: Vec<&str> = lines[0].split_whitespace().collect();
        if heading[0] != "NAME" {
            break;
        }
        let others = all.into_iter().filter(|name| !heading.contains(name));
        missing = others.collect();
        let allowed: [&[&str]; 3] = [&[], &["ID"], &["PID", "ID"]];
        assert!(allowed.contains(&&missing[..]), "{columns}: {missing:?}");
    }
    assert!(!missing.is_empty());
    let name = "deploy-production-eu-west-1-blue";
    let _long = by_runner(&redis, name);
    for columns in [120, 80, 60, 36] {
        let text = shown(&redis, columns, "status").join("\n");
        assert!(text.contains(name), "{columns}: {text}");
    }
}

#[test]
fn a_lock_with_more_waiters_than_are_shown_is_one_screen_with_the_lines_to_type() {
    let redis = Redis::start();
    let run = by_runner(&redis, "a");
    let waiters = (0..7).map(|_| queued(&redis, words!("run -q a -- true")));
    let _waiters: Vec<Running> = waiters.collect();
    for columns in [40, 80, 120] {
        let lines = shown(&redis, columns, "status a");
        let text = lines.concat().replace(' ', "");
        let pid = run.pid().to_string();
        for part in [
            "runner@fv-az",
            LINK,
            &pid,
            "waiting#5",
            "…2more(status--json)",
            "redlockrelease--force--id",
        ] {
            let is_left_out = columns < 80 && part == pid;
            assert!(
                text.contains(part) || is_left_out,
                "no {part:?} at {columns}: {lines:#?}"
            );
        }
        assert!(!text.contains("waiting#6"), "{lines:#?}");
        assert!(columns < 80 || lines.len() <= 24, "{lines:#?}");
    }
}

#[test]
fn colours_are_for_terminals_whose_user_wants_them() {
    let redis = Redis::start();
    let _holder = Gated::start(&redis, &["a"]).ready();
    let _waiter = queued(&redis, &["run", "a", "--", "true"]);
    let show = |variables: &[(&str, &str)]| {
        let mut command = redis.redlock(&["status"]);
        command.env("TERM", "xterm").envs(variables.iter().copied());
        let mut terminal = Terminal::start(command);
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
        terminal.shown.clone()
    };
    let text = show(&[]);
    assert!(text.contains("\x1b[0;2mNAME\x1b[0m"), "{text:?}");
    assert!(text.contains("\x1b[0;33mwaiting #1\x1b[0m"), "{text:?}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")] {
        let text = show(&[variable]);
        let is_plain = text.contains("waiting #1") && !text.contains('\x1b');
        assert!(is_plain, "{text:?}");
    }
    let piped = outcome(redis.redlock(&["status"]).env("TERM", "xterm"));
    assert!(!piped.stdout.contains('\x1b'), "{piped:?}");
}

#[test]
fn watching_clears_the_terminal_before_each_table_until_interrupted() {
    let redis = Redis::start();
    let _first = Gated::start(&redis, &["first"]).ready();
    let tmux = Tmux::with_size(&redis, 80, 12);
    tmux.type_line("REDLOCK_REDIS_TIMEOUT=300ms redlock status --watch=100ms");
    let has_rows = |screen: &str, rows: &[&str]| {
        let lines = screen.lines().filter(|line| !line.is_empty());
        let names = lines.map(|line| line.split(' ').next().unwrap());
        names.eq(["NAME"].iter().chain(rows).copied())
    };
    tmux.wait_until("the first row alone", |screen| has_rows(screen, &["first"]));
    let second = Gated::start(&redis, &["second"]).ready();
    tmux.wait_until("both rows", |screen| has_rows(screen, &["first", "second"]));
    second.end();
    tmux.wait_until("the first row alone", |screen| has_rows(screen, &["first"]));
    redis.stall();
    tmux.wait_until("why there is no table", |screen| {
        screen.starts_with("redlock: ")
    });
    redis.resume();
    tmux.wait_until("the first row alone", |screen| has_rows(screen, &["first"]));
    tmux.press("C-c");
    tmux.type_line("echo rc:$?");
    tmux.line("rc:130");
}

#[test]
fn a_waiter_on_a_terminal_says_what_to_expect_and_then_that_it_got_the_lock() {
    let redis = Redis::start();
    for _ in 0..3 {
        ends(&redis, "run a -- sleep 0.2").assert_code(0);
    }
    for columns in [40, 80, 120] {
        let holder = Gated::start(&redis, &["a"]).ready();
        let waiter = queued(&redis, &["run", "-q", "a", "--", "true"]);
        let tmux = Tmux::with_size(&redis, columns, 12);
        tmux.type_line("clear; redlock run a -- echo ran");
        tmux.wait_until("what to expect", |screen| {
            let expected = match columns {
                120 => "; over its usual ",
                _ => "; 2nd in line",
            };
            let line = screen.lines().next().unwrap_or_default();
            line.starts_with("redlock: waiting") && line.contains(expected)
        });
        holder.end();
        waiter.finish().assert_code(0);
        tmux.line("ran");
        let screen = tmux.screen();
        let line = screen.lines().next().unwrap_or_default();
        let time = line.strip_prefix("redlock: got \"a\" after ");
        assert!(time.is_some_and(|time| time.ends_with('s')), "{screen}");
    }
}

//! What people see of locks on a terminal: at 40, 80 and 120 columns, once and with `--watch`.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::support::pty::Terminal;
use crate::support::tmux::Tmux;
use crate::support::{
    Gated, Redis, Running, directly, is_alive, outcome, queued, seen_by_a_shell, send, state,
    wait_until, with_default_signals,
};

/// A user as CI runners have it: with the host at least 40 columns.
const RUNNER: &str = "runner@fv-az1234-567.internal.cloudapp.net";
const LINK: &str = "https://ci.example.com/acme/shop/actions/runs/15912345678/job/4711";

/// A run by a CI runner that says it is ready.
fn by_runner(redis: &Redis, name: &str) -> Running {
    let script = "echo ready; exec sleep 60; : --region eu-west-1 --with-migrations";
    let mut command = redis.redlock(&["run", name, "-c", script]);
    command
        .env("USER", RUNNER)
        .env("JENKINS_URL", "x")
        .env("BUILD_URL", LINK);
    let mut run = Running::start(&mut command);
    run.expect_line("ready");
    run
}

/// What `redlock ARGUMENTS` shows in a window of this many columns.
fn shown(redis: &Redis, columns: u16, arguments: &str) -> Vec<String> {
    let tmux = Tmux::with_size(redis, columns, 50);
    tmux.type_line(&format!("clear; redlock {arguments}; echo 'en''d'"));
    tmux.line("end");
    let screen = tmux.screen();
    screen
        .lines()
        .take_while(|line| *line != "end")
        .map(str::to_owned)
        .collect()
}

/// As many columns as ASCII and the sign for a cut take.
fn width(line: &str) -> usize {
    line.chars().count()
}

#[test]
fn at_80_columns_the_table_shows_who_for_how_long_and_twenty_columns_of_the_command() {
    let redis = Redis::start();
    let _runs = ["deploy", "nightly"].map(|name| by_runner(&redis, name));
    let lines = shown(&redis, 80, "status");
    let heading: Vec<&str> = lines[0].split_whitespace().collect();
    assert!(
        heading.starts_with(&["NAME", "MODE", "WHO", "AGE"]),
        "{lines:?}"
    );
    assert_eq!(heading.last(), Some(&"COMMAND"), "{lines:?}");
    let command = lines[0].find("COMMAND").unwrap();
    let row: Vec<char> = lines[1].chars().collect();
    assert!((command + 20..=80).contains(&row.len()), "{lines:?}");
    assert!(
        lines[1].contains("runner@fv-az123") && lines[1].contains("…"),
        "{lines:?}"
    );
    assert!(
        row[command..]
            .iter()
            .collect::<String>()
            .starts_with("sh -c 'echo ready; "),
        "{lines:?}"
    );
    // The link is whole, on a line of its own.
    assert_eq!(lines[2], format!("  {LINK}"));
    assert_eq!(lines.len(), 5, "{lines:?}");
}

#[test]
fn at_40_columns_each_row_is_a_few_short_lines() {
    let redis = Redis::start();
    let _run = by_runner(&redis, "deploy");
    let lines = shown(&redis, 40, "status");
    assert!(lines[0].starts_with("deploy  exclusive  "), "{lines:?}");
    assert!(lines[1].starts_with("  runner@fv-az1234-567"), "{lines:?}");
    assert!(lines[2].starts_with("  sh -c 'echo ready; "), "{lines:?}");
    // The terminal breaks it, so that it can be copied.
    assert_eq!(lines[3..].concat(), format!("  {LINK}"));
    assert!(lines.iter().all(|line| width(line) <= 40), "{lines:?}");
}

#[test]
fn the_table_never_cuts_the_name_of_a_lock() {
    let redis = Redis::start();
    let names = ["deploy-production-eu-west-1-blue", "nightly"];
    let _runs = names.map(|name| by_runner(&redis, name));
    for columns in [120, 80, 60, 36] {
        let text = shown(&redis, columns, "status").join("\n");
        for name in names {
            assert!(text.contains(name), "{columns}: {text}");
        }
    }
}

#[test]
fn the_id_is_the_first_column_to_go_and_the_pid_the_next() {
    let redis = Redis::start();
    let _run = Gated::start(&redis, &["a"]).ready();
    let all = [
        "NAME", "MODE", "WHO", "PID", "AGE", "LEASE", "ID", "COMMAND",
    ];
    let mut missing = Vec::new();
    for columns in [120, 105, 90, 80, 70, 60, 50] {
        let lines = shown(&redis, columns, "status");
        assert!(
            lines.iter().all(|line| width(line) <= columns.into()),
            "{lines:?}"
        );
        let heading: Vec<&str> = lines[0].split_whitespace().collect();
        if heading[0] != "NAME" {
            break;
        }
        missing = all
            .into_iter()
            .filter(|name| !heading.contains(name))
            .collect();
        let allowed: [&[&str]; 4] = [&[], &["ID"], &["PID", "ID"], &["PID", "LEASE", "ID"]];
        assert!(allowed.contains(&&missing[..]), "{columns}: {missing:?}");
    }
    assert!(!missing.is_empty());
}

#[test]
fn in_detail_nothing_is_cut_at_any_width() {
    let redis = Redis::start();
    let run = by_runner(&redis, "deploy");
    for columns in [40, 80, 120] {
        let text = shown(&redis, columns, "status deploy")
            .concat()
            .replace(' ', "");
        for part in [
            RUNNER,
            LINK,
            "--with-migrations'",
            &run.pid().to_string(),
            "redlockrelease--force--id",
        ] {
            assert!(text.contains(part), "no {part:?} at {columns}: {text}");
        }
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
        let mut terminal = Terminal::start(with_default_signals(command));
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
        terminal.shown.clone()
    };
    let text = show(&[]);
    assert!(text.contains("\x1b[0;2mNAME\x1b[0m"), "{text:?}");
    assert!(text.contains("\x1b[0;33mwaiting #1\x1b[0m"), "{text:?}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")] {
        let text = show(&[variable]);
        assert!(
            text.contains("waiting #1") && !text.contains('\x1b'),
            "{text:?}"
        );
    }
    let piped = outcome(redis.redlock(&["status"]).env("TERM", "xterm"));
    assert!(!piped.stdout.contains('\x1b'), "{piped:?}");
}

#[test]
fn watching_leaves_the_screen_as_it_was_however_it_ends() {
    let redis = Redis::start();
    let _holder = Gated::start(&redis, &["deploy"]).ready();
    let tmux = Tmux::with_size(&redis, 80, 12);
    for (number, (key, status)) in [("q", 0), ("C-c", 0), ("TERM", 143)]
        .into_iter()
        .enumerate()
    {
        tmux.type_line("clear");
        tmux.wait_until("the prompt", |screen| screen.trim_end() == "$");
        tmux.type_line(&format!(
            "echo before{number}; redlock status --watch; echo status:$?"
        ));
        tmux.wait_until("the table", |screen| screen.contains("\ndeploy  exclusive"));
        assert!(tmux.flag("alternate_on") && !tmux.flag("cursor_flag"));
        if key == "TERM" {
            send(tmux.child(), libc::SIGTERM);
        } else {
            tmux.press(key);
        }
        tmux.line(&format!("status:{status}"));
        assert!(!tmux.flag("alternate_on") && tmux.flag("cursor_flag"));
        tmux.line(&format!("before{number}"));
        // What is typed is seen again, and comes as a line.
        tmux.type_line("echo typed");
        tmux.line("typed");
    }
}

/// `redlock status --watch` on a terminal of its own, with its first picture shown.
fn watching(redis: &Redis) -> Terminal {
    let mut command = redis.redlock(&["status", "--watch", "20ms"]);
    command.env("TERM", "xterm");
    let mut terminal = Terminal::start(with_default_signals(command));
    terminal.wait_until("a picture", |shown| shown.contains("no lock is held"));
    terminal
}

/// It has left the screen as its last act.
#[track_caller]
fn assert_left(terminal: &Terminal) {
    let end = "\x1b[?25h\x1b[?1049l";
    assert!(terminal.shown.ends_with(end), "{:?}", terminal.shown);
}

#[test]
fn each_signal_that_ends_other_commands_ends_watching_too() {
    let redis = Redis::start();
    for signal in [
        libc::SIGHUP,
        libc::SIGTERM,
        libc::SIGUSR1,
        libc::SIGALRM,
        libc::SIGPIPE,
    ] {
        let mut terminal = watching(&redis);
        send(terminal.pid(), signal);
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(128 + signal));
        assert_left(&terminal);
    }
}

#[test]
fn a_key_ends_watching_however_much_was_typed_before_it() {
    let redis = Redis::start();
    let mut terminal = watching(&redis);
    terminal.type_in(&("x".repeat(100) + "q"));
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    let mut terminal = watching(&redis);
    terminal.type_in(&("x".repeat(3000) + "q"));
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
}

/// How often a list of locks was asked for.
fn questions(redis: &Redis) -> u64 {
    redis.calls("zrangebyscore")
}

#[test]
fn watching_ends_while_the_output_is_stopped_and_still_leaves_the_screen() {
    let redis = Redis::start();
    for (key, status) in [(Some("q"), 0), (None, 128 + libc::SIGTERM)] {
        let mut terminal = watching(&redis);
        terminal.stop_output();
        let asked = questions(&redis);
        // Pictures come that can't be written.
        wait_until("it asks again", || questions(&redis) > asked + 2);
        match key {
            Some(key) => terminal.type_in(key),
            None => send(terminal.pid(), libc::SIGTERM),
        }
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(status));
        assert_left(&terminal);
    }
}

#[test]
fn watching_goes_on_when_stopped_output_does() {
    let redis = Redis::start();
    let mut terminal = watching(&redis);
    terminal.stop_output();
    let _holder = Gated::start(&redis, &["deploy"]).ready();
    terminal.resume_output();
    terminal.wait_until("a new picture", |shown| shown.contains("deploy"));
    terminal.type_in("q");
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    assert_left(&terminal);
}

#[test]
fn a_terminal_that_nothing_reads_does_not_keep_watching_from_its_end() {
    let redis = Redis::start();
    let mut command = redis.redlock(&["status", "--watch", "1ms"]);
    command.env("TERM", "xterm");
    let mut terminal = Terminal::start(with_default_signals(command));
    terminal.wait_until("a picture", |shown| shown.contains("no lock is held"));
    let _holder = Gated::start(&redis, &["deploy"]).ready();
    let output = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(format!("/proc/{}/fd/1", terminal.pid()))
        .unwrap();
    // While a process writes, it takes nothing from others either.
    let mut refused = 0;
    wait_until("the terminal takes no more", || {
        let mut output = [PollFd::new(output.as_fd(), PollFlags::POLLOUT)];
        let takes_more = poll(&mut output, PollTimeout::ZERO) != Ok(0);
        refused = if takes_more { 0 } else { refused + 1 };
        refused == 100
    });
    drop(output);
    send(terminal.pid(), libc::SIGTERM);
    assert_eq!(
        seen_by_a_shell(terminal.finish()),
        Some(128 + libc::SIGTERM)
    );
}

#[test]
fn a_limit_of_time_ends_watching_in_the_foreground_and_in_the_background() {
    let redis = Redis::start();
    let watch = "redlock status --watch";
    // `timeout` puts it into a group of its own, which is in the background.
    for script in [
        format!("timeout 1 {watch}; echo rc:$?"),
        format!("timeout --foreground 1 {watch}; echo rc:$?"),
    ] {
        let mut shell = directly(&redis, &["sh", "-c", &script]);
        shell.env("TERM", "xterm");
        let mut terminal = Terminal::start(with_default_signals(shell));
        terminal.wait_until("its status", |shown| shown.contains("rc:124"));
        terminal.finish();
    }
    // In a shell that has jobs it is in the foreground.
    let tmux = Tmux::with_size(&redis, 80, 12);
    tmux.type_line(&format!("timeout 5 {watch}; echo rc:$?"));
    tmux.wait_until("a picture", |screen| screen.contains("no lock is held"));
    tmux.line("rc:124");
    assert!(!tmux.flag("alternate_on") && tmux.flag("cursor_flag"));
}

/// Waits until a job of the shell has ended and the shell knows: one that ends while it runs `kill` may be
/// unknown to bash until its next command.
fn wait_until_ended(tmux: &Tmux, pid: i32) {
    wait_until("it has ended", || !is_alive(pid));
    tmux.type_line("clear; echo en''ded");
    tmux.line("ended");
}

#[test]
fn watching_stopped_in_the_background_goes_on_by_fg_and_ends_by_kill() {
    let redis = Redis::start();
    let tmux = Tmux::with_size(&redis, 80, 12);
    let is_shown = |screen: &str| screen.contains("no lock is held");
    tmux.type_line("redlock status --watch 50ms");
    tmux.wait_until("a picture", is_shown);
    let pid = tmux.child();
    tmux.press("C-z");
    tmux.wait_until("the shell says so", |screen| screen.contains("Stopped"));
    assert!(!tmux.flag("alternate_on") && tmux.flag("cursor_flag"));
    // From the background it takes nothing from the shell.
    tmux.type_line("clear; bg; wait %1; jobs; echo go''es");
    tmux.line("goes");
    wait_until("it is stopped again", || state(pid) == Some('T'));
    assert!(!tmux.flag("alternate_on"));
    tmux.type_line("clear; fg");
    tmux.wait_until("a picture", is_shown);
    tmux.press("C-z");
    tmux.wait_until("the shell says so", |screen| screen.contains("Stopped"));
    tmux.type_line("clear; kill %1");
    wait_until_ended(&tmux, pid);
    // Started there.
    tmux.type_line("clear; redlock status --watch & wait %1; jobs; echo st''arted");
    tmux.line("started");
    let pid = tmux.child();
    wait_until("it is stopped", || state(pid) == Some('T'));
    assert!(!tmux.flag("alternate_on"));
    tmux.type_line("clear; kill -HUP $!; kill -CONT $!");
    wait_until_ended(&tmux, pid);
    // Stopped by what it can't see.
    tmux.type_line("clear; redlock status --watch 50ms");
    tmux.wait_until("a picture", is_shown);
    let pid = tmux.child();
    send(pid, libc::SIGSTOP);
    tmux.wait_until("the shell says so", |screen| screen.contains("Stopped"));
    tmux.type_line("clear; kill %1");
    wait_until_ended(&tmux, pid);
    tmux.type_line("clear; echo typed");
    tmux.line("typed");
}

/// Whether a process has a signal blocked.
fn blocks(pid: i32, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

#[test]
fn watching_that_waits_for_its_first_answer_ends_by_a_signal_at_once() {
    let redis = Redis::start();
    redis.stall();
    for (signal, status) in [
        (libc::SIGINT, 0),
        (libc::SIGTERM, 128 + libc::SIGTERM),
        (libc::SIGUSR1, 128 + libc::SIGUSR1),
    ] {
        let mut command = redis.redlock(&["status", "--watch", "--connect-timeout", "10m"]);
        command.env("TERM", "xterm");
        let mut terminal = Terminal::start(with_default_signals(command));
        let pid = terminal.pid();
        // Before, a signal ends it by its default action.
        wait_until("it has taken the signals", || blocks(pid, signal));
        send(pid, signal);
        assert_eq!(seen_by_a_shell(terminal.finish()), Some(status));
        assert!(!terminal.shown.contains('\x1b'), "{:?}", terminal.shown);
    }
    redis.resume();
}

#[test]
fn watching_shows_what_fits_and_how_many_more_there_are() {
    let redis = Redis::start();
    let names: Vec<String> = (1..=12).map(|number| format!("lock-{number}")).collect();
    let _holders: Vec<Gated> = names
        .iter()
        .map(|name| Gated::start(&redis, &[name.as_str()]).ready())
        .collect();
    let tmux = Tmux::with_size(&redis, 80, 8);
    tmux.type_line("redlock status --watch");
    tmux.wait_until("the rows that fit", |screen| {
        let lines: Vec<&str> = screen.lines().collect();
        lines.len() == 8 && lines[6].starts_with("lock-5 ") && lines[7] == "… 7 more"
    });
    let clock = |screen: &str| {
        let clock = screen.lines().next().unwrap_or_default().split(' ').next();
        clock.unwrap_or_default().to_owned()
    };
    let before = clock(&tmux.screen());
    assert!(
        before.len() == 8 && before.matches(':').count() == 2,
        "{before}"
    );
    tmux.wait_until("the clock goes on", |screen| clock(screen) != before);
    tmux.resize(40, 20);
    tmux.wait_until("fewer columns and more rows", |screen| {
        let lines: Vec<&str> = screen.lines().collect();
        lines.len() == 20
            && lines[1].starts_with("lock-1  exclusive  ")
            && lines[19].ends_with(" more")
    });
    tmux.resize(120, 20);
    tmux.wait_until("all of it", |screen| {
        screen.contains("\nlock-12 ") && !screen.contains(" more") && screen.contains(" ID ")
    });
    tmux.press("q");
}

#[test]
fn a_row_that_changes_stands_out_until_the_next_picture() {
    let redis = Redis::start();
    let _first = Gated::start(&redis, &["first"]).ready();
    let tmux = Tmux::with_size(&redis, 80, 12);
    tmux.type_line("redlock status --watch");
    tmux.wait_until("the first row", |screen| screen.contains("\nfirst "));
    assert!(!tmux.colored().contains("\x1b[7m"));
    let _second = Gated::start(&redis, &["second"]).ready();
    tmux.wait_until("the second row stands out", |_| {
        tmux.colored()
            .lines()
            .any(|line| line.contains("[7m") && line.contains("second"))
    });
    tmux.wait_until("it does no more", |screen| {
        screen.contains("\nsecond ") && !tmux.colored().contains("[7m")
    });
    tmux.press("q");
}

#[test]
fn watching_keeps_the_picture_while_redis_does_not_answer() {
    let redis = Redis::start();
    let _holder = Gated::start(&redis, &["--ttl", "2m", "deploy"]).ready();
    let tmux = Tmux::with_size(&redis, 80, 12);
    tmux.type_line("redlock status --watch 100ms --connect-timeout 2s");
    tmux.wait_until("the table", |screen| screen.contains("\ndeploy  exclusive"));
    redis.stall();
    tmux.wait_until("it says so", |screen| {
        screen.contains("Redis has not answered for ")
    });
    assert!(tmux.screen().contains("\ndeploy  exclusive"));
    redis.resume();
    tmux.wait_until("it goes on", |screen| screen.contains("1 held, 0 waiting"));
    redis.stall();
    tmux.wait_until("it says so", |screen| {
        screen.contains("Redis has not answered for ")
    });
    tmux.press("q");
    tmux.wait_until("the prompt", |screen| screen.trim_end().ends_with('$'));
    redis.resume();
}

#[test]
fn a_waiter_on_a_terminal_says_what_to_expect_and_then_that_it_got_the_lock() {
    let redis = Redis::start();
    for _ in 0..3 {
        outcome(&mut redis.redlock(&["run", "a", "--", "sleep", "0.2"])).assert_code(0);
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
            let is_it =
                |line: &str| line.starts_with("redlock: waiting") && line.contains(expected);
            screen.lines().next().is_some_and(is_it)
        });
        holder.end();
        waiter.finish().assert_code(0);
        tmux.line("ran");
        let screen = tmux.screen();
        let line = screen.lines().next().unwrap_or_default();
        assert!(
            line.starts_with("redlock: got \"a\" after ") && line.ends_with('s'),
            "{screen}"
        );
    }
}

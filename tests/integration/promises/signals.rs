//! Signals that reach COMMAND, and how often: tables over the place of a run, the relays around it, and the senders. Signals of
//! one request to end count once, however they arrive; a second request kills.

use crate::promises::terminal::{
    CTRL_BACKSLASH, CTRL_C, CTRL_Z, group, is_stopped, on_terminal, parent, pid_in, reads_stops,
};
use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// Time within which another signal belongs to the same request.
const SAME: Duration = Duration::from_millis(500);

/// Place of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// In a session without a terminal.
    NoTerminal,
    /// At the head of a session on a terminal, as in `ssh -t host …`.
    Head,
    /// As a job of this interactive shell.
    Job(&'static str),
}

use Place::Job;
pub use Place::{Head, NoTerminal};

/// Interactive shells with job control, without line editing or startup files.
const SHELLS: [&str; 4] = [
    "bash --norc --noprofile --noediting -i",
    "dash -i",
    "zsh -f -i +Z +o promptsp",
    "ksh -i",
];

pub const JOB: Place = Job(SHELLS[0]);

/// Perl programs in the home directory. `APART` runs its arguments in a process group of its own, and relays no signal.
/// `CLEANS_UP` is a COMMAND that cleans up once, however many requests arrive. The cleanup takes longer than the signals of one
/// request may be apart, so none of them arrives only during the release.
const APART: &str = "setpgrp; exec @ARGV";
const CLEANS_UP: &str = r#"
    $| = 1;
    my $asked = 0;
    $SIG{INT} = $SIG{TERM} = sub { $asked = 1 };
    print "child ready $$\n";
    my $limit = time + 60;
    select(undef, undef, undef, 0.01) until $asked || time > $limit;
    select(undef, undef, undef, 0.05) for 1 .. 12;
    print "child cleaned\n";
    exit 9;
"#;

/// A Perl program like [`COUNTER`] for the signals whose numbers are its arguments. The kernel queues real-time signals, and
/// this program takes one at a time, so it misses none.
const TAKER: &str = r#"
    use POSIX ();
    use Config;
    $| = 1;
    my $end = 0;
    my @names = split " ", $Config{sig_name};
    for my $name (@names[@ARGV]) { $SIG{$name} = sub { print "child $name\n" } }
    $SIG{RTMAX} = sub { $end = 1 };
    POSIX::sigprocmask(POSIX::SIG_BLOCK, POSIX::SigSet->new(@ARGV, POSIX::SIGRTMAX));
    print "child ready $$\n";
    my $none = POSIX::SigSet->new;
    POSIX::sigsuspend($none) until $end;
    print "child end\n";
"#;

/// Starts a server with these programs in the home directory.
fn start() -> Redis {
    let redis = Redis::start();
    for (name, text) in [
        ("counter", COUNTER),
        ("apart", APART),
        ("cleans-up", CLEANS_UP),
        ("taker", TAKER),
    ] {
        let text = format!("#!/usr/bin/env perl\n{text}");
        script(redis.dir.path(), name, &text);
    }
    redis
}

/// Expands a line: `ONE` is a run, `TWO` are two, and `COUNTS` is the counting program, which prints signal 60 too.
fn written_out(line: &str) -> String {
    let one = "redlock run --ttl 120s -k 60s a --";
    line.replace("TWO", &format!("{one} redlock run --ttl 120s -k 60s b --"))
        .replace("ONE", one)
        .replace("COUNTS", "~/counter child NUM60")
}

/// Signal with a high number, which is delivered after others.
const LAST: i32 = 60;

/// A run of a program that prints `child ready` with its pid, and perhaps of another program that prints `grandchild`.
struct Scene {
    place: Place,
    line: String,
    terminal: Terminal,
    labels: Vec<&'static str>,
    /// Pids of the programs, by their labels.
    programs: Vec<i32>,
    /// Pids of the redlocks, the innermost first.
    redlocks: Vec<i32>,
    /// All processes from the first program up to the outermost redlock.
    processes: Vec<i32>,
    settled: usize,
    columns: u16,
}

impl Scene {
    fn start(redis: &Redis, place: Place, line: &str) -> Self {
        let line = written_out(line);
        let before = if place == NoTerminal {
            "setsid -w "
        } else {
            ""
        };
        let at_head = format!("ulimit -c 0; exec {before}{line}");
        let mut terminal = match place {
            Job(shell) => on_terminal(redis, &words(shell, &[])),
            NoTerminal | Head => on_terminal(redis, &["sh", "-c", &at_head]),
        };
        if let Job(_) = place {
            terminal.type_in(&format!("{line}\n"));
        }
        let is_used = |label: &&str| *label == "child" || line.contains(*label);
        let labels: Vec<_> = ["child", "grandchild"]
            .into_iter()
            .filter(is_used)
            .collect();
        let programs: Vec<i32> = labels
            .iter()
            .map(|label| ready(&mut terminal, label))
            .collect();
        let above = std::iter::successors(Some(programs[0]), |&pid| Some(parent(pid)));
        let above: Vec<i32> = above.take_while(|&pid| pid > 1).collect();
        let is_redlock = |pid: &i32| proc(*pid, "comm") == "redlock";
        let redlocks: Vec<i32> = above.iter().copied().filter(is_redlock).collect();
        let outermost = redlocks.last();
        let mut parts = above.split_inclusive(|pid| Some(pid) == outermost);
        Self {
            place,
            line,
            terminal,
            labels,
            programs,
            processes: parts.next().unwrap().to_vec(),
            redlocks,
            settled: 0,
            columns: 100,
        }
    }

    fn outermost(&self) -> i32 {
        *self.redlocks.last().unwrap()
    }

    /// Waits until each program has printed this line so often.
    fn await_lines(&mut self, text: &str, count: usize) {
        for label in &self.labels {
            let line = format!("{label} {text}");
            let what = format!("{count} of {line:?} ({:?}: {})", self.place, self.line);
            let is_it = |shown: &&str| shown.trim_end() == line;
            let has_all = |shown: &str| shown.lines().filter(is_it).count() >= count;
            self.terminal.wait_until(&what, has_all);
        }
    }

    /// Waits until each redlock has handled its signals, because two pending signals of a kind merge into one.
    fn settle(&mut self) {
        for redlock in self.redlocks.clone() {
            send(redlock, LAST);
            self.settled += 1;
            self.await_lines("NUM60", self.settled);
        }
    }

    /// Sends a signal to the outermost redlock, to all redlocks, to the whole job, to COMMAND, to a timeout(1) around it, or to
    /// the watchdog. If the signal stops processes, waits until they are stopped.
    fn send(&self, name: &str, to: &str) {
        let number = name.parse().unwrap_or_else(|_| signal(name) as i32);
        let outermost = self.outermost();
        let targets = match to {
            "redlock" => vec![outermost],
            "redlocks" => self.redlocks.clone(),
            "job" => vec![-group(outermost)],
            "command" => vec![self.programs[0]],
            "timeout" => vec![parent(outermost)],
            "watchdog" => vec![await_watchdog(outermost)],
            _ => panic!("{to}"),
        };
        if name == "TSTP" {
            wait_until("it reads stops", || reads_stops(outermost));
        }
        for &target in &targets {
            send(target, number);
        }
        let stopped = match name {
            "TSTP" => &self.processes,
            "STOP" if to == "job" => &self.processes,
            "STOP" => &targets,
            _ => return,
        };
        wait_until("they are stopped", || {
            stopped.iter().all(|&pid| is_stopped(pid))
        });
    }

    /// Performs a step of a row, or waits for a state of the job. Steps are keys, a new `size` of the window, `kill:URG` (a
    /// shell's kill of its job), `go` (a line for a script) and `TERM@redlock` (a signal, see [`Self::send`]).
    fn act(&mut self, step: &str) {
        match step {
            "^C" => self.terminal.type_in(CTRL_C),
            "^\\" => self.terminal.type_in(CTRL_BACKSLASH),
            "^Z" => self.terminal.type_in(CTRL_Z),
            "go" => self.terminal.type_in("\n"),
            "fg" => self.terminal.type_in("fg\n"),
            "size" => {
                self.columns += 1;
                self.terminal.resize(50, self.columns);
            }
            "pause" => std::thread::sleep(SAME + Duration::from_millis(100)),
            "prompt" => {
                let shell = self.terminal.pid();
                let has_it = || self.terminal.foreground() == shell;
                wait_until("the shell has the terminal", has_it);
            }
            "stopped" => {
                let stopped = || self.processes.iter().all(|&pid| is_stopped(pid));
                wait_until("all are stopped", stopped);
                // Long enough that a redlock would have continued if it alone had been stopped.
                std::thread::sleep(Duration::from_millis(1500));
                assert!(stopped(), "{}", self.line);
            }
            "going" => {
                let go_on = || !self.processes.iter().any(|&pid| is_stopped(pid));
                wait_until("all go on", go_on);
                let outermost = self.outermost();
                assert_eq!(self.terminal.foreground(), outermost, "the job's group");
                let read_stops = || self.redlocks.iter().all(|&pid| reads_stops(pid));
                wait_until("they read stops", read_stops);
            }
            _ => match step.split_once(['@', ':']).unwrap() {
                ("kill", name) => {
                    // In two parts, so that the echo of the typed line doesn't look like its output.
                    let line = format!("kill -{name} %1; wait %1; echo sta\"\"tus:$?\n");
                    self.terminal.type_in(&line);
                }
                (name, to) => self.send(name, to),
            },
        }
    }

    /// Waits until all processes have ended. Returns the status of the run, except in a shell, whose next line must be read.
    fn finish(&mut self) -> Option<i32> {
        let all = [&self.processes[..], &self.programs].concat();
        wait_until("they have ended", || !all.iter().any(|&pid| is_alive(pid)));
        if let Job(_) = self.place {
            self.terminal.type_in("echo on:$((1 + 1))\n");
            self.terminal.line("on:2");
            return None;
        }
        seen_by_a_shell(self.terminal.finish())
    }
}

/// Waits until a program prints that it is ready. Returns its pid.
fn ready(terminal: &mut Terminal, label: &str) -> i32 {
    let beginning = format!("{label} ready ");
    let line = |shown: &str| {
        let mut lines = shown.split_inclusive('\n');
        let line = lines.find(|line| line.starts_with(&beginning) && line.ends_with('\n'));
        line.map(|line| pid_in(line.trim_end()))
    };
    terminal.wait_until(&beginning, |shown| line(shown).is_some());
    line(&terminal.shown).unwrap()
}

/// Performs the steps, and compares the output of the programs. Further steps: `=INT` waits for INT until all is settled,
/// `~INT` only waits for it, and with `+INT` it may come several times. `>137` is the status of a run whose COMMAND the step
/// before has ended; other COMMANDs end on request.
fn check(redis: &Redis, place: Place, line: &str, steps: &str) {
    let mut scene = Scene::start(redis, place, line);
    let (mut names, mut status) = (Vec::new(), 0);
    for step in steps.split_whitespace() {
        match step.split_at(1) {
            ("=" | "~" | "+", name) => {
                names.push(name);
                let count = names.iter().filter(|other| **other == name).count();
                scene.await_lines(name, count);
                if !step.starts_with('~') {
                    scene.settle();
                }
            }
            (">", code) => status = code.parse().unwrap(),
            _ => scene.act(step),
        }
    }
    if status == 0 {
        names.push("end");
        let programs = scene.programs.iter().filter(|_| !steps.contains("64@"));
        programs.for_each(|&program| send(program, libc::SIGRTMAX()));
        scene.await_lines("end", 1);
    }
    let row = format!("{place:?}: {line}: {steps}");
    let code = scene.finish().unwrap_or(status);
    let shown = &scene.terminal.shown;
    assert_eq!(code, status, "{row}: {shown}");
    let are_gone = scene.programs.iter().all(|&pid| is_gone(pid));
    assert!(status == 0 || are_gone, "{row}");
    assert!(status != 0 || !shown.contains("redlock:"), "{row}: {shown}");
    for label in &scene.labels {
        let lines = shown.lines().filter_map(|line| line.strip_prefix(*label));
        let mut lines: Vec<&str> = lines.map(str::trim).collect();
        lines.retain(|line| !line.starts_with("ready") && *line != "NUM60");
        if steps.contains('+') {
            lines.dedup();
            names.dedup();
        }
        assert_eq!(lines, names, "{row}: {shown}");
    }
    assert_nothing_left(redis);
}

/// Plays the rows of a table, each a line and its steps. `NAME` is each of the names after `for`, one after the other, `ALL` all
/// of them, and `EACH` all that a program counts. `(steps)x3` is played three times.
pub fn play(place: Place, table: &str) {
    let redis = start();
    let rows = table.lines().map(str::trim);
    for row in rows.filter(|row| !row.is_empty()) {
        let (line, steps) = row.split_once(" → ").expect(row);
        let (steps, names) = steps.split_once(" for ").unwrap_or((steps, ""));
        for name in names.split(' ') {
            let text = |text: &str| text.replace("NAME", name).replace("ALL", names);
            let line = text(line).replace("EACH", "INT TERM HUP QUIT USR1 URG CONT WINCH ALRM");
            check(&redis, place, &line, &repeated(&text(steps)));
        }
    }
}

/// Writes the steps in brackets as often as the digit after them says.
fn repeated(steps: &str) -> String {
    let Some((before, rest)) = steps.split_once('(') else {
        return steps.to_owned();
    };
    let (part, rest) = rest.split_once(")x").expect("a number of times");
    let (times, rest) = rest.split_at(1);
    let part = format!("{part} ").repeat(times.parse().unwrap());
    format!("{before}{part}{}", repeated(rest))
}

#[test]
fn without_a_terminal_command_and_its_children_get_each_signal_once_and_as_itself() {
    // Each hang-up may request a reload. The third row is the order of an aborted build: children first. Under nohup a hang-up
    // changes nothing for both, not even one of COMMAND itself.
    play(
        NoTerminal,
        r#"
        ONE sh -c '~/counter grandchild NUM60 ALL & exec COUNTS ALL' → NAME@redlock =NAME 64@redlock for HUP INT QUIT TERM USR1 USR2 WINCH CONT ALRM PIPE
        ONE COUNTS HUP → HUP@redlock =HUP HUP@redlock =HUP
        ONE COUNTS TERM → TERM@command TERM@watchdog TERM@redlock =TERM
        sh -c 'trap "" HUP; exec ONE COUNTS USR1' → HUP@redlock HUP@command USR1@redlock =USR1
        "#,
    );
}

#[test]
fn a_key_and_a_new_window_size_reach_a_command_exactly_once_also_when_it_has_left_the_group() {
    // redlock is suspended until a COMMAND in its group has had the signal, because two pending ones merge into one. A typed key
    // is never the second request.
    let table = "
        ONE COUNTS NAME → (STOP@redlock KEY ~NAME CONT@redlock pause)x3 64@redlock for SIGNAL
        ONE ~/apart COUNTS NAME → (KEY ~NAME pause)x3 64@redlock for SIGNAL";
    side_by_side(
        [("^C", "INT"), ("^\\", "QUIT"), ("size", "WINCH")],
        |(key, signal)| play(Head, &table.replace("KEY", key).replace("SIGNAL", signal)),
    );
}

#[test]
fn a_key_that_command_does_not_handle_ends_it_and_the_lock_is_free() {
    play(
        Head,
        r"
        ONE COUNTS → ^C >130
        ONE COUNTS → ^\ >131
        ONE timeout 60 COUNTS → ^C >130
        ONE timeout 60 COUNTS → ^\ >131
        ",
    );
}

#[test]
fn typed_ctrl_c_never_kills_a_command_that_goes_on_after_it_or_ignores_it_and_is_no_first_request()
{
    // Soon after another key, and long after it; also with a grace period shorter than the time between the keys.
    play(
        Head,
        r#"
        ONE COUNTS INT TERM → (^C =INT)x5 pause (^C =INT)x3 pause TERM@redlock =TERM
        redlock run --ttl 120s -k 1ms a -- COUNTS INT → (^C =INT)x5 pause (^C =INT)x3
        ONE sh -c "trap '' INT; exec COUNTS WINCH" → (^C WINCH@redlock =WINCH)x5 pause (^C WINCH@redlock =WINCH)x3
        "#,
    );
}

#[test]
fn a_hang_up_ends_command_and_frees_the_lock_whoever_leads_the_session() {
    let redis = start();
    for (place, line, is_stopped) in [
        // The kernel signals only the head of the session, which must relay it.
        (Head, "ONE COUNTS", false),
        (JOB, "ONE COUNTS", false),
        (JOB, "ONE COUNTS", true),
        (Head, "ONE timeout 60 COUNTS", false),
        (Head, "sh -c 'ONE timeout 60 COUNTS; true'", false),
        (JOB, "ONE timeout 60 COUNTS", false),
    ] {
        let mut scene = Scene::start(&redis, place, line);
        if is_stopped {
            scene.act("^Z");
            scene.act("prompt");
        }
        scene.terminal.hang_up();
        wait_until(&format!("all have ended: {place:?}, {line}"), || {
            !scene.processes.iter().any(|&pid| is_alive(pid))
        });
        assert_nothing_left(&redis);
        if (place, line) == (Head, "ONE COUNTS") {
            assert_eq!(scene.finish(), Some(129));
        }
    }
}

#[test]
fn ctrl_z_stops_all_of_a_job_with_its_redlocks_and_fg_continues_it_in_each_shell() {
    let stops = "(^Z stopped prompt fg ~CONT going)x2";
    let rows = SHELLS.map(|shell| (shell, format!("ONE COUNTS CONT INT → {stops} ^C ~INT")));
    let more = [
        format!("ONE timeout 60 COUNTS CONT INT → {stops}"),
        "TWO COUNTS CONT INT → (^Z stopped prompt fg +CONT going)x2".to_owned(),
    ];
    let more = more.map(|row| (SHELLS[0], row));
    side_by_side(rows.into_iter().chain(more), |(shell, row)| {
        if is_permitted(&[words(shell, &[])[0], "-c", "true"]) {
            play(Job(shell), &row);
        }
    });
}

#[test]
fn ctrl_z_stops_nothing_where_no_shell_could_continue_it() {
    // redlock doesn't continue a stopped COMMAND: somebody else must.
    play(
        Head,
        "
        ONE timeout 60 COUNTS WINCH → (^Z size ~WINCH)x2
        ONE COUNTS CONT → STOP@command pause CONT@command =CONT
        ",
    );
}

#[test]
fn tstp_that_is_sent_to_redlock_alone_stops_command_too_and_cont_continues_both() {
    // The last time, no shell signals the whole job.
    let row = "ONE COUNTS CONT → (TSTP@redlock prompt fg ~CONT)x2 TSTP@redlock CONT@redlock ~CONT";
    play(JOB, row);
    // A COMMAND that ignores the signal, which is 20, goes on, and so does redlock.
    play(
        NoTerminal,
        r#"
        ONE COUNTS CONT → (TSTP@redlock CONT@redlock =CONT)x2
        ONE sh -c "trap '' TSTP; exec COUNTS USR1" → 20@redlock pause USR1@redlock =USR1
        "#,
    );
}

#[test]
fn a_signal_reaches_command_once_and_one_to_the_whole_job_at_least_once() {
    // Other signals of the terminal change nothing, nor does a stop of the whole job. With timeout(1), which continues them, the
    // redlocks read the signal late, as on a busy machine. In the last row both the shell and redlock send the signal.
    play(
        JOB,
        r"
        ONE COUNTS EACH → NAME@job +NAME for INT TERM HUP QUIT USR1 URG CONT
        ONE COUNTS EACH → NAME@redlock =NAME for INT TERM HUP QUIT USR1 WINCH ALRM
        TWO COUNTS EACH → USR1@job +USR1
        NAME COUNTS EACH → ^C =INT for ONE TWO
        NAME COUNTS EACH → ^\ =QUIT for ONE TWO
        NAME COUNTS EACH → (USR1@redlock =USR1 size =WINCH size =WINCH WINCH@redlock =WINCH)x2 HUP@redlock =HUP INT@redlock =INT for ONE TWO
        TWO COUNTS USR1 → STOP@job USR1@redlock CONT@job =USR1 USR1@redlock =USR1
        timeout 60 NAME COUNTS TERM → STOP@redlocks ALRM@timeout =TERM for ONE TWO
        ONE COUNTS URG | cat & → kill:URG +URG
        ",
    );
    // The kernel sends this signal too, but only to redlock.
    let alarm = "perl -e 'alarm 4; exec @ARGV' ONE COUNTS ALRM → =ALRM";
    play(Head, alarm);
}

#[test]
fn a_script_that_signals_its_redlock_alone_reaches_command_once() {
    // The script is in the job's process group. The script may ignore the signal itself, so that another one doesn't disturb
    // its cleanup.
    play(
        JOB,
        r#"
        sh -c 'ONE COUNTS NAME & read go; kill -NAME $!; wait $!' → go =NAME for TERM HUP USR1
        sh -c 'ONE COUNTS NAME & read go; trap "" ALL; kill -NAME $!; wait $!' → go =NAME for TERM HUP USR1
        "#,
    );
    // Like timeout(1), the script ignores the signal and then continues redlock, but COMMAND hasn't had the signal. The stopped
    // redlock takes both signals at once.
    let row = r#"sh -c 'ONE COUNTS TERM & trap "" TERM; read line; kill -TERM $!; kill -CONT $!; wait $!' → STOP@redlock go =TERM"#;
    play(Head, row);
}

#[test]
fn a_second_request_that_is_sent_half_a_second_after_the_first_kills() {
    // The kill comes long before the minute of --kill-after is over, or this test would never end.
    play(
        NoTerminal,
        "
        ONE COUNTS INT TERM → TERM@redlock ~TERM pause NAME@redlock >137 for TERM INT
        ONE COUNTS INT TERM → INT@redlock ~INT pause NAME@redlock >137 for TERM INT
        ",
    );
    // On a terminal, COMMAND's children get both signals too.
    let both = "ONE sh -c '~/counter grandchild NUM60 TERM & exec COUNTS TERM' → TERM@redlock ~TERM pause TERM@redlock >137";
    play(Head, both);
}

/// Attempts for each relay, because the order of several signals varies.
const ROUNDS: usize = 12;

#[test]
fn one_key_or_signal_that_several_relay_lets_command_clean_up_and_all_end_with_its_status() {
    let supervised = "timeout 60 redlock run -k 60s a -- ~/cleans-up";
    let both = "timeout 60 redlock run -k 60s a -- timeout 60 redlock run -k 60s b -- ~/cleans-up";
    let rows = [
        (Head, supervised, "^C"),
        (Head, "TWO ~/cleans-up", "^C"),
        (Head, "TWO ~/cleans-up", "TERM@job"),
        (JOB, "TWO ~/cleans-up &", "kill:TERM"),
        (NoTerminal, supervised, "TERM@job"),
        (NoTerminal, supervised, "INT@job"),
        (NoTerminal, both, "TERM@job"),
    ];
    side_by_side(rows, |(place, line, ask)| {
        let redis = start();
        let mut clean = 0;
        for _ in 0..ROUNDS {
            let mut scene = Scene::start(&redis, place, line);
            let began = Instant::now();
            scene.act(ask);
            let status = scene.finish();
            let took = began.elapsed();
            let terminal = &scene.terminal;
            let is_status = status == Some(9) || terminal.count("status:9") == 1;
            let is_clean = is_status && terminal.count("child cleaned") == 1;
            // If the machine took this long, a relay may have been a second request.
            let shown = &terminal.shown;
            assert!(is_clean || took >= SAME, "within {took:?}: {line}: {shown}");
            clean += usize::from(is_clean);
            redis.await_free("a b");
        }
        assert!(clean > 0, "this machine never did it within {SAME:?}");
    });
}

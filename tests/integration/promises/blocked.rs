//! No message of redlock delays it: if stderr takes nothing, redlock loses lines, but never misses a deadline.
//!
//! A full, unread pipe stands for every reader that has stopped reading: `2>&1 | less` at its first page, a stopped log
//! collector. A terminal stops at Ctrl-S.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::support::prelude::*;
use crate::support::pty::Terminal;

/// Filling of the pipe.
const FILLING: char = '.';

/// Pipe for stderr that is completely full and unread.
struct Full {
    path: PathBuf,
    pipe: File,
    /// Everything read so far, except the filling.
    read: String,
}

impl Full {
    fn new(redis: &Redis) -> Self {
        let path = redis.dir.path().join("stderr");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Open for both, so that neither side waits for the other. O_NONBLOCK affects only this open file, not the run's.
        let pipe = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .unwrap();
        let filling = FILLING.to_string();
        while (&pipe).write(filling.repeat(4096).as_bytes()).is_ok() {}
        while (&pipe).write(filling.as_bytes()).is_ok() {}
        let read = String::new();
        Self { path, pipe, read }
    }

    /// Starts redlock with this pipe as its standard error.
    fn redlock(&self, redis: &Redis, arguments: &[&str]) -> Running {
        let script = "exec redlock \"$@\" 2>\"$0\"";
        let shell = ["sh", "-c", script, self.path.to_str().unwrap()];
        Running::start(&mut directly(redis, &[&shell, arguments].concat()))
    }

    /// Reads the current content. Returns everything read so far.
    fn drain(&mut self) -> &str {
        let mut bytes = vec![0; 65536];
        while let Ok(read) = self.pipe.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..read]);
            self.read += text.trim_start_matches(FILLING);
        }
        &self.read
    }
}

#[test]
fn a_redis_that_stalls_stops_command_though_its_messages_are_not_read() {
    let redis = Redis::start();
    let full = Full::new(&redis);
    let life = redis.dir.path().join("life");
    let words = words!(
        "run --ttl 12s -k 200ms a -- perl -e {}",
        STUBBORN,
        life.to_str().unwrap()
    );
    let mut run = full.redlock(&redis, words);
    let child = run.pid_after("ready");
    wait_until("the last renewal is a second old", || {
        let left = redis.cli(&["PTTL", "redlock:a"]);
        left.parse::<u64>().is_ok_and(|left| left < 11_000)
    });
    redis.stall();
    // redlock kills COMMAND a third of a second before the lease ends.
    let latest_expiry = now() + Duration::from_secs(12);
    wait_until("COMMAND is dead", || !is_alive(child));
    assert_dead_before(redis.dir.path(), latest_expiry);
    run.finish().assert_code(79);
    redis.resume();
}

/// Asserts that these are the whole lines of one verbose run with at least two renewals, in order.
#[track_caller]
fn assert_all_was_said(text: &str) {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let renewals = lines.len().saturating_sub(2);
    let acquired = "redlock: lock \"a\" acquired, fencing token ";
    assert!(renewals >= 2 && lines[0].starts_with(acquired), "{text:?}");
    let mut rest = vec!["redlock: lease renewed"; renewals];
    rest.push("redlock: lock \"a\" released");
    assert_eq!(lines[1..], rest);
    assert!(text.ends_with('\n'), "a line is not whole: {text:?}");
}

#[test]
fn a_reader_that_comes_back_finds_all_lines_whole_and_in_order() {
    let redis = Redis::left_empty();
    let mut full = Full::new(&redis);
    let mut gate = Gate::new(&redis);
    let mut run = full.redlock(&redis, words!("run -v --ttl 6s a -c", UNTIL_GATE));
    run.expect_line("ready");
    // Each renewal writes a line that nobody reads.
    redis.await_renewals("a", 3);
    wait_until("what was said meanwhile arrives", || {
        full.drain().matches("lease renewed").count() >= 2
    });
    gate.open();
    run.finish().assert_code(0);
    assert_all_was_said(full.drain());
}

#[test]
fn a_stopped_terminal_does_not_stop_the_renewal_and_shows_all_lines_when_it_goes_on() {
    let redis = Redis::left_empty();
    let mut gate = Gate::new(&redis);
    let script = r#"read go <"$HOME/gate""#;
    let command = redis.run("-v --ttl 6s a", script);
    let mut terminal = Terminal::start(command);
    terminal.line("redlock: lock \"a\" acquired");
    terminal.stop_output();
    redis.await_renewals("a", 3);
    terminal.resume_output();
    terminal.line("redlock: lease renewed");
    terminal.line("redlock: lease renewed");
    gate.open();
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    assert_all_was_said(&terminal.shown);
}

#[test]
fn a_waiter_whose_messages_are_not_read_gets_its_turn_and_signals_end_it_and_a_wait() {
    let redis = Redis::left_empty();
    let full = Full::new(&redis);
    let holder = Gated::start(&redis, &["a"]).ready();
    let queued = |script: &str| {
        let mut waiter = full.redlock(&redis, words!("run -v a -c", script));
        waiter.wait_until_queued(&redis);
        waiter
    };
    let mut waiter = queued("date +%s%N; exec sleep 60");
    let behind = queued("echo ran");
    // After a second the waiter names the holder.
    let waits = now();
    wait_until("it has something to say", || {
        now() > waits + Duration::from_millis(1500)
    });
    let ended = holder.end();
    let started = moment(&waiter.line());
    assert!(started > ended, "{started:?} {ended:?}");
    behind.signal(Signal::SIGTERM);
    behind.finish().assert_printed(143, "");
    waiter.signal(Signal::SIGTERM);
    waiter.finish().assert_code(143);
}

#[test]
fn a_reader_that_has_gone_away_stops_neither_command_nor_a_waiter() {
    let redis = Redis::left_empty();
    let mut full = Full::new(&redis);
    full.drain();
    let mut gate = Gate::new(&redis);
    let script = r#"echo ready; read go <"$HOME/gate"; echo done"#;
    let mut run = full.redlock(&redis, words!("run -v --ttl 6s a -c", script));
    run.expect_line("ready");
    let mut waiter = full.redlock(&redis, &["run", "-v", "a", "--", "echo", "ran"]);
    waiter.wait_until_queued(&redis);
    // From here on each message fails with EPIPE and raises SIGPIPE.
    drop(full);
    redis.await_renewals("a", 3);
    gate.open();
    run.expect_line("done");
    run.finish().assert_exited(0);
    waiter.expect_line("ran");
    waiter.finish().assert_exited(0);
}

#[test]
fn redlock_ends_with_its_status_though_the_reason_is_not_read() {
    let redis = Redis::start();
    let full = Full::new(&redis);
    redis.cli(&["SET", "redlock:busy", "theirs", "PX", "600000"]);
    let commands = [
        (words!("run -v a -- true"), 0),
        (words!("run -n busy -- true"), 75),
        (words!("run -w 1200ms busy -- true"), 75),
        (words!("run b -- /no/such/command"), 127),
        (
            words!("run -t 500ms -k 200ms d -c", "trap '' TERM; sleep 300"),
            124,
        ),
        (words!("-u unix:///no/such/socket run c -- true"), 69),
        (words!("acquire -n busy"), 75),
    ];
    let runs = commands.map(|(words, code)| (full.redlock(&redis, words), code));
    for (run, code) in runs {
        run.finish().assert_code(code);
    }
}

/// Script of a COMMAND that keeps checking its own descriptors, which it shares with redlock, until the gate opens.
const WATCHES_ITS_STREAMS: &str = r#"
    use Fcntl;
    $| = 1;
    open my $gate, "+<", "$ENV{HOME}/gate" or die;
    sub flags { join " ", map { fcntl($_, F_GETFL, 0) & O_NONBLOCK } \*STDIN, \*STDOUT, \*STDERR }
    my $before = flags();
    print "ready $before\n";
    my $watched = "";
    vec($watched, fileno $gate, 1) = 1;
    my $limit = time + 60;
    until (select(my $came = $watched, undef, undef, 0.001) || time > $limit) {
        my $flags = flags();
        print("changed to $flags\n"), last if $flags ne $before;
    }
    my $go = <$gate>;
"#;

#[test]
fn the_streams_that_command_shares_with_redlock_block_as_they_did() {
    let redis = Redis::start();
    let full = Full::new(&redis);
    let mut gate = Gate::new(&redis);
    let words = words!("run -v --ttl 6s a -- perl -e", WATCHES_ITS_STREAMS);
    let mut terminal = Terminal::start(redis.redlock(words));
    terminal.line("ready");
    terminal.line("redlock: lease renewed");
    terminal.line("redlock: lease renewed");
    gate.open();
    assert_eq!(seen_by_a_shell(terminal.finish()), Some(0));
    let shown = terminal.shown.lines().map(str::trim_end);
    let own = shown.filter(|line| !line.starts_with("redlock: "));
    assert_eq!(own.collect::<Vec<_>>(), ["ready 0 0 0"]);

    let mut blocked = full.redlock(&redis, words);
    blocked.expect_line("ready 0 0 0");
    redis.await_renewals("a", 2);
    gate.open();
    blocked.finish().assert_printed(0, "ready 0 0 0\n");
}

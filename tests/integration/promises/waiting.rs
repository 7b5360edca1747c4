//! Visibility of a wait, and waiting without taking.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::support::prelude::*;
use crate::support::proxy::load_scripts;
use crate::support::tmux::Tmux;

/// Starts redlock with the words of this line, with stderr joined with stdout.
fn heard(redis: &Redis, line: &str) -> Running {
    let script = format!("exec redlock {line} 2>&1");
    Running::start(&mut sh(redis, &script))
}

/// Ends a run from outside.
#[track_caller]
fn end(run: Running) -> Outcome {
    run.signal(Signal::SIGTERM);
    run.finish()
}

#[test]
fn after_a_second_the_holder_is_named_and_how_many_are_ahead() {
    let redis = Redis::left_empty();
    let words = words!("run --reason {} a -- sh -c {} deploy.sh", "release 7", IDLE);
    let holder = Running::ready(redis.redlock(words).env("USER", "ci"));
    let began = Instant::now();
    let mut first = heard(&redis, "run a -- true");
    first.wait_until_queued(&redis);
    let mut second = heard(&redis, "run a -- true");
    let line = first.line();
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(1), "too early: {line}");
    let whose = format!("ci@{} (pid {})", host(), holder.pid());
    let start = format!("redlock: waiting for \"a\", held by {whose} for ");
    let rest = "s: sh -c 'echo ready; exec sleep 60' deploy.sh (release 7)";
    for (line, end) in [(line, ""), (second.line(), "; 2nd in line")] {
        let since = line.strip_prefix(&start);
        let since = since.and_then(|line| line.strip_suffix(&format!("{rest}{end}")));
        let seconds: u32 = since.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        assert!((1..60).contains(&seconds), "{line}");
    }
    end(holder).assert_code(143);
    first.finish().assert_code(0);
    second.finish().assert_code(0);
}

#[test]
fn text_of_a_holder_cannot_drive_the_terminal_and_is_whole_in_json() {
    let redis = Redis::left_empty();
    let evil = "x\u{1b}[2J\u{7}\r\n\u{9b}31m\u{202e}";
    let words = words!("run --reason {} a -- sh -c {} {}", evil, IDLE, evil);
    let mut holder = redis.redlock(words);
    holder.arg(OsStr::from_bytes(b"not \xff UTF-8"));
    let holder = Running::ready(holder.env("USER", evil));
    let mut waiter = heard(&redis, "run a -- echo ran");
    let line = waiter.line();
    assert!(line.starts_with("redlock: waiting for \"a\""), "{line:?}");
    // In its user and reason; and in its command, quoted as for a shell.
    assert_eq!(line.matches("\\u{1b}[2J").count(), 2, "{line:?}");
    assert_eq!(line.matches("\\033[2J").count(), 1, "{line:?}");
    let [table, json] = ["status", "status --json"].map(|line| ends(&redis, line).stdout);
    let locks: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(locks[0]["holders"][0]["reason"], evil);
    // The heading, the holder and the waiter.
    assert_eq!(table.lines().count(), 3, "{table:?}");
    let busy = ends(&redis, "run -n a -- true").stderr;
    for text in [line, table, json, busy] {
        let drives = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(drives), "{text:?}");
    }
    end(holder).assert_code(143);
    waiter.expect_line("ran");
    waiter.finish().assert_code(0);
}

#[test]
fn on_a_terminal_the_line_is_erased_when_the_wait_ends_in_vain() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "theirs", "PX", "600000"]);
    let tmux = Tmux::with_size(&redis, 120, 12);
    let remove = || {
        let locks = json(&redis, "status --json a");
        let id = locks[0]["waiters"][0]["id"].as_str().unwrap();
        ends(&redis, &format!("release --force --id {id} a")).assert_code(0);
    };
    let terminate = || send(redis.queue("a")[0], libc::SIGTERM);
    let ways: [(&dyn Fn(), &str); 2] = [(&remove, "redlock: "), (&terminate, "Terminated")];
    for (end_wait, left) in ways {
        tmux.type_line("clear; redlock run a -- true");
        tmux.wait_until("the line", |screen| {
            screen.starts_with("redlock: waiting for")
        });
        end_wait();
        tmux.wait_until("the prompt", |screen| screen.trim_end().ends_with('$'));
        let screen = tmux.screen();
        assert!(screen.starts_with(left), "{screen}");
        assert!(!screen.contains("waiting for"), "{screen}");
    }
}

#[test]
fn a_freeze_that_drains_waits_for_each_holder_even_one_that_ignores_the_freeze() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let next = Gated::queued(&redis, &["-q", "--ignore-freeze", "a"]);
    let mut freeze = heard(&redis, "freeze a --drain --reason x");
    assert!(freeze.line().contains("is frozen until"));
    let line = freeze.line();
    let pid = format!("(pid {})", holder.run.pid());
    assert!(line.starts_with("redlock: waiting for \"a\", held by "));
    assert!(line.contains(&pid) && !line.contains("thaw"), "{line}");
    holder.end();
    let next = next.ready();
    let line = freeze.line();
    let pid = format!("(pid {})", next.run.pid());
    assert!(line.contains(&pid), "{line}");
    next.end();
    freeze.finish().assert_code(0);
}

#[test]
fn a_reader_listed_behind_hundreds_whose_leases_have_ended_holds_the_lock() {
    let redis = Redis::start();
    redis.cli(&["SET", "redlock:a", "redlock:shared", "PX", "600000"]);
    let holders = "{redlock:a}:holders";
    let fill = format!("for n = 1, 2000 do redis.call('ZADD', '{holders}', n, 'reader' .. n) end");
    redis.cli(&["EVAL", &fill, "0"]);
    // The members in the first page of the list.
    let page = redis.cli(&["ZSCAN", holders, "0", "COUNT", "500"]);
    let first: Vec<&str> = page.lines().collect();
    let name = |n: usize| format!("reader{n}");
    let behind = (1..=2000).map(name).find(|name| !first.contains(&&**name));
    let year_3000 = "32503680000000";
    redis.cli(&["ZADD", holders, year_3000, &behind.unwrap()]);
    let all = json(&redis, "status --json a");
    assert_eq!(all[0]["holders"].as_array().unwrap().len(), 1, "{all}");
}

#[test]
fn a_freeze_of_several_locks_drains_until_none_of_them_has_a_holder_at_one_moment() {
    let redis = Redis::start();
    // A single write then asks for the state of both locks.
    load_scripts(&redis);
    let hold = |name: &str| redis.cli(&["SET", &format!("redlock:{name}"), name]);
    hold("b");
    let mut freeze = heard(&redis, "freeze a b --drain --reason x");
    for name in ["a", "b"] {
        let says = format!("lock \"{name}\" is frozen until");
        assert!(freeze.line().contains(&says), "{name}");
    }
    // The first lock is in use again before the second is free.
    hold("a");
    let scripts = || redis.scripts();
    let before = scripts();
    redis.cli(&["DEL", "redlock:b"]);
    wait_until("it has looked again", || scripts() > before);
    assert!(!freeze.has_ended());
    redis.cli(&["DEL", "redlock:a"]);
    freeze.finish().assert_code(0);
}

#[test]
fn a_waiter_says_what_to_expect_if_it_may_read_the_history_and_how_long_it_took() {
    let redis = Redis::left_empty();
    let began = Instant::now();
    for _ in 0..3 {
        ends(&redis, "run a -- sleep 0.2").assert_code(0);
    }
    let usual = began.elapsed();
    let holder = Gated::start(&redis, &["a"]).ready();
    std::thread::sleep(usual);
    let questions = redis.calls("lrange");
    let [mut first, mut second, silent] = ["run -v a", "run a", "run -q a"].map(|run| {
        let mut waiter = heard(&redis, &format!("{run} -- true"));
        waiter.wait_until_queued(&redis);
        waiter
    });
    for (waiter, is_second) in [(&mut first, false), (&mut second, true)] {
        let line = waiter.line();
        assert!(line.contains("; over its usual "), "{line}");
        assert_eq!(line.ends_with("; 2nd in line"), is_second, "{line}");
    }
    // Each waiter that prints this reads the history once.
    assert_eq!(redis.calls("lrange"), questions + 2);
    holder.end();
    let line = first.line();
    let waited = line.strip_prefix("redlock: got \"a\" after ");
    let seconds = waited.and_then(|waited| waited.strip_suffix('s')?.parse::<f64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 1.0), "{line}");
    first.finish().assert_code(0);
    // redlock doesn't print this in a log.
    let end = second.finish();
    assert!(!end.assert_code(0).stdout.contains("got "), "{end:?}");
    silent.finish().assert_printed(0, "");
    // A waiter without the permission to read the history waits as well.
    let holder = Gated::start(&redis, &["a"]).ready();
    redis.cli(&["ACL", "SETUSER", "default", "-lrange"]);
    let mut third = heard(&redis, "run a -- true");
    let line = third.line();
    assert!(line.starts_with("redlock: waiting for \"a\""), "{line}");
    assert!(!line.contains("usual"), "{line}");
    redis.cli(&["ACL", "SETUSER", "default", "+lrange"]);
    holder.end();
    third.finish().assert_code(0);
}

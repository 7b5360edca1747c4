//! `redlock status`: the holders and waiters of each lock, for people and for programs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy};

/// Starts a run of an endless command, with these options and names.
fn held(redis: &Redis, words: &str) -> Running {
    let mut run = redis.run(words, "echo ready; exec sleep 60");
    Running::ready(run.env("USER", "ci"))
}

/// Returns the output of `redlock status` with these words.
fn status(redis: &Redis, words: &str) -> String {
    let end = ends(redis, &format!("status {words}"));
    end.assert_code(0).assert_silent();
    end.stdout
}

fn as_json(redis: &Redis, words: &str) -> Value {
    serde_json::from_str(&status(redis, &format!("--json {words}"))).unwrap()
}

#[test]
fn no_token_is_ever_shown() {
    let redis = Redis::start();
    let _run = held(&redis, "deploy");
    redis.cli(&["SET", "redlock:foreign", "secret-token", "PX", "60000"]);
    let token = redis.cli(&["GET", "redlock:deploy"]);
    let random = token.split(':').next().unwrap();
    for (line, code) in [
        ("status -v", 0),
        ("status --json deploy foreign", 0),
        ("status deploy foreign", 0),
        ("status --names-only", 0),
        ("release deploy", 79),
    ] {
        let shown = format!("{:?}", ends(&redis, line).assert_code(code));
        let is_secret = [random, "secret-token"].map(|token| shown.contains(token));
        assert_eq!(is_secret, [false; 2], "{shown}");
    }
}

#[test]
fn arguments_that_are_not_utf_8_reach_the_command_unchanged() {
    let redis = Redis::start();
    let mut command = redis.redlock(words!(
        "run a -- sh -c {} sh",
        r#"printf %s "$1" | od -An -tx1"#
    ));
    let end = outcome(command.arg(OsStr::from_bytes(b"\xff\xfe")));
    assert_eq!(end.stdout.trim(), "ff fe", "{end:?}");
}

#[test]
fn thousands_of_locks_are_listed_by_name_without_walking_the_keyspace() {
    let redis = Redis::start();
    let who = r#"{"host":"ci-7.example.com","user":"deploy","pid":27523,"command":["./deploy.sh","--to","production"],"ttl":600000,"instance":"5b0c2a3e-8d4f-4a6b-9c1d-2e3f4a5b6c7d:4026531836:27523:123456789:27000:0:4026531837:4026531834"}"#;
    let script = "
        local now = redis.call('TIME')[1] * 1000
        for n = 1, 2500 do
            local token = string.format('%032d:ci-7:27523', n)
            redis.call('SET', 'redlock:lock-' .. n, token, 'PX', 600000)
            redis.call('HSET', '{redlock:lock-' .. n .. '}:meta', token, n .. ' ' .. now .. ' 1 1 0 held ' .. ARGV[1])
            redis.call('ZADD', '{redlock:}:index', now + 600000, 'lock-' .. n)
        end";
    redis.cli(&["EVAL", script, "0", who]);
    let names = status(&redis, "--names-only");
    assert!((1..=2500).map(|n| format!("lock-{n}")).eq(names.lines()));
    assert_eq!(status(&redis, "").lines().count(), 2501);
    let list = as_json(&redis, "");
    let locks = list.as_array().unwrap();
    assert_eq!(locks.len(), 2500);
    assert!(locks.iter().all(|lock| lock["holders"][0]["pid"] == 27_523));
    assert_eq!(redis.calls("scan"), 0);
}

#[test]
fn watching_shows_it_again_until_a_signal_ends_it() {
    let redis = Redis::start();
    let mut watch = Running::start(&mut redis.redlock(words!("status --watch=20ms")));
    watch.expect_line("no lock is held");
    watch.expect_line("no lock is held");
    let _run = held(&redis, "deploy");
    wait_until("it shows the lock", || watch.line().starts_with("deploy"));
    watch.signal(Signal::SIGINT);
    let end = watch.finish();
    end.assert_killed_by(libc::SIGINT).assert_silent();
    ends(&redis, "status --watch 500ms").assert_said(64, "put --watch=500ms");
    // A reader that closes the pipe is no error.
    let end = outcome(&mut redis.run("a", "redlock status --watch=1ms | head -n 2"));
    end.assert_code(0).assert_silent();
}

/// Returns the last events in `status nightly`, without their times, and the line after them.
fn events(redis: &Redis) -> (Vec<String>, String) {
    let text = status(redis, "nightly");
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("recently ("));
    let mut lines = lines.skip(1).peekable();
    let mut events = Vec::new();
    while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
        let (at, what) = line.trim_start().split_once("  ").unwrap();
        assert_eq!(at.as_bytes()[at.len() - 3], b':', "{text}");
        events.push(what.to_owned());
    }
    (events, lines.next().unwrap_or_default().to_owned())
}

#[test]
fn a_lock_by_its_name_ends_with_its_last_five_events_and_the_last_success() {
    let redis = Redis::start();
    let redlock = |words: &[&str]| outcome(redis.redlock(words).env("USER", "ann"));
    for (script, code) in [("true", 0), ("true", 0), ("exit 3", 3)] {
        redlock(words!("run nightly -c", script)).assert_code(code);
    }
    let holder = held(&redis, "nightly");
    for _ in 0..2 {
        redlock(words!("run -n nightly -- true")).assert_code(75);
    }
    wait_until("it tracks its lock", || redis.trackers() > 0);
    redlock(words!("stop nightly --reason hung")).assert_code(0);
    drop(holder);
    redlock(words!("freeze nightly --reason audit")).assert_code(0);
    let host = host();
    let (shown, last) = events(&redis);
    let parts: [(&str, &str); 5] = [
        ("froze it: audit", ""),
        (&format!("stopped ci@{host} after "), ": hung"),
        (
            &format!("gave up: held by ci@{host} (pid "),
            ") (and 1 more)",
        ),
        ("ended after ", ": status 3"),
        ("ended after ", ": ok"),
    ];
    assert_eq!(shown.len(), parts.len(), "{shown:?}");
    for (event, (start, end)) in shown.iter().zip(parts) {
        let is_it = event.starts_with(&format!("ann@{host} {start}")) && event.ends_with(end);
        assert!(is_it, "{event} isn't {start}…{end}");
    }
    assert!(last.starts_with("last success: "), "{last}");
    redlock(words!("thaw nightly")).assert_code(0);
    let (shown, _) = events(&redis);
    assert!(shown[0].starts_with("it was frozen for "), "{shown:?}");
}

#[test]
fn a_pattern_shows_the_locks_in_use_that_match_sorted_as_people_count() {
    let redis = Redis::start();
    let _runs = ["deploy-10", "deploy-2", "nightly"].map(|name| held(&redis, name));
    ends(&redis, "run deploy-over -- true").assert_code(0);
    for (words, names) in [
        ("", "deploy-2\ndeploy-10\nnightly\n"),
        ("deploy-*", "deploy-2\ndeploy-10\n"),
        ("*-??", "deploy-10\n"),
        ("*-2 free", "deploy-2\nfree\n"),
    ] {
        let shown = status(&redis, &format!("--names-only {words}"));
        assert_eq!(shown, names, "{words}");
    }
    let table = status(&redis, "");
    let names = table.lines().map(|line| line.split(' ').next().unwrap());
    assert!(
        names.eq(["NAME", "deploy-2", "deploy-10", "nightly"]),
        "{table}"
    );
    assert!(status(&redis, "deploy-*").starts_with("NAME"));
    assert_eq!(as_json(&redis, "n*y")[0]["name"], "nightly");
    let none = status(&redis, "x* y?");
    assert_eq!(none, "no lock in use matches \"x*\" or \"y?\"\n");
    assert_eq!(status(&redis, "--json x*"), "[]\n");
}

#[test]
fn a_lock_by_its_name_is_shown_with_lines_to_type_and_in_a_pipe_nothing_is_cut() {
    let redis = Redis::start();
    let long = "x".repeat(300);
    let options = words!("run --reason {} --ttl 1m a -- sh -c", &long, IDLE, &long);
    let _run = Running::ready(redis.redlock(options).env("USER", "ci"));
    let lock = &as_json(&redis, "a")[0];
    let holder = &lock["holders"][0];
    for left in [&lock["ttl_ms"], &holder["ttl_ms"]] {
        let left = left.as_u64().unwrap();
        assert!((30_000..=60_000).contains(&left), "{lock}");
    }
    let fence = redis.cli(words!("HGET {redlock:a}:state fence"));
    assert_eq!(lock["fence"].to_string(), fence);
    assert_eq!([&holder["user"], &holder["reason"]], ["ci", &long]);
    // tests/golden has the screens of locks.
    let text = status(&redis, "a free");
    for line in [
        &format!("command:       sh -c 'echo ready; exec sleep 60' {long}  ({long})"),
        "free: never used, or not for 60 days",
    ] {
        let is_there = text.lines().any(|shown| shown == line);
        assert!(is_there, "no {line:?} in {text}");
    }
    // Its commands can be typed.
    let mut lines = text.lines();
    let free = lines.find_map(|line| line.strip_prefix("to free it:    redlock "));
    ends(&redis, free.unwrap()).assert_code(0);
}

#[test]
fn a_name_that_is_used_while_names_are_listed_hides_no_other_one() {
    let redis = Redis::start();
    // A page has 1,000 names.
    let fill = "for n = 0, 1009 do
            redis.call('SET', 'redlock:l' .. n, 'x', 'PX', 600000)
            redis.call('ZADD', '{redlock:}:index', 10 ^ 13 + n, 'l' .. n)
        end";
    redis.cli(&["EVAL", fill, "0"]);
    let socket = redis.socket();
    let proxy = Proxy::with(&redis, move |request| {
        // The last name of the first page moves up.
        if request.operation == "ZRANGEBYSCORE" && request.before == 1 {
            let words = words!("ZADD {redlock:}:index 10000000005000 l999");
            crate::support::ask(&socket, words);
        }
        Action::Pass
    });
    let mut status = redis.redlock(words!("status --json"));
    let listed = outcome(status.env("REDLOCK_URL", proxy.url()));
    let listed: Vec<Value> = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!((listed.len(), proxy.count("ZRANGEBYSCORE")), (1010, 2));
}

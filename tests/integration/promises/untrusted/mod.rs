//! Servers, proxies and data that lie. No bytes from the connection or from redlock's keys make redlock crash, hang, grow, or
//! believe that it holds a lock that it doesn't.
//!
//! A proxy between redlock and a real Redis inserts most of the lies, and passes everything else on.

mod replies;

use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixStream;

use crate::support::lua::KEYS;
use crate::support::prelude::*;
use crate::support::proxy::{Action, MESSAGE, Proxy, load_scripts};

/// Limit on redlock's memory, in KiB; 9 MiB of it are the code of the unoptimised binary under test.
const MOST: u64 = 44 * 1024;

/// Length of a reply that seems endless, in bytes.
const LONG: usize = 300_000_000;

/// Messages without an end.
const FLOOD: Action = Action::Endless(b"", MESSAGE, usize::MAX);

/// Every request of an operation.
const ALWAYS: Range<usize> = 0..usize::MAX;

/// Starts a proxy that lies about some requests of these operations, as in `renew|check`.
fn lying(redis: &Redis, operations: &'static str, times: Range<usize>, lie: Action) -> Proxy {
    load_scripts(redis);
    Proxy::with(redis, move |request| {
        let mut operations = operations.split('|');
        let is_meant = operations.any(|operation| operation == request.operation);
        if is_meant && times.contains(&request.before) {
            lie
        } else {
            Action::Pass
        }
    })
}

/// Returns a redlock behind a proxy, with the words of this line.
fn behind(redis: &Redis, proxy: &Proxy, line: &str) -> Command {
    let mut command = redis.redlock(&words(line, &[]));
    command.env("REDLOCK_URL", proxy.url());
    command
}

/// Starts a run behind a proxy with these options. Returns when its COMMAND runs.
#[track_caller]
fn run(redis: &Redis, proxy: &Proxy, options: &str, script: &str) -> Running {
    let mut command = redis.run(&format!("{options} a"), script);
    Running::ready(command.env("REDLOCK_URL", proxy.url()))
}

/// Starts a run behind a proxy that waits in the queue, and whose COMMAND prints "mine".
#[track_caller]
fn waiter(redis: &Redis, proxy: &Proxy, options: &str) -> Running {
    let line = format!("run {options}a -- echo mine");
    let mut waiter = Running::start(&mut behind(redis, proxy, &line));
    waiter.wait_until_queued(redis);
    waiter
}

/// Returns the peak memory of a process, in KiB; 0 if it has ended.
fn peak(pid: i32) -> u64 {
    let peak = status_of(pid, "VmHWM");
    peak.trim_end_matches(" kB").parse().unwrap_or(0)
}

/// Runs a command to its end. Returns its peak memory too.
fn weighed(command: &mut Command) -> (Outcome, u64) {
    let mut run = Running::start(command);
    let mut most = 0;
    wait_until("it ends", || {
        most = most.max(peak(run.pid()));
        run.has_ended()
    });
    (run.finish(), most)
}

#[test]
fn on_a_server_without_resp3_a_run_is_renewed_and_waiters_get_their_turns() {
    let renamed = Redis::with(&["--rename-command", "HELLO", ""]);
    let forbidden = Redis::start();
    forbidden.cli(&["ACL", "SETUSER", "default", "-hello"]);
    for redis in [renamed, forbidden] {
        let holder = Gated::start(&redis, words!("--ttl 6s -k 1s a")).ready();
        redis.await_calls("pexpire", 5);
        let waiter = Gated::queued(&redis, &["a"]);
        let next = Gated::queued(&redis, &["a"]);
        let ended = holder.end();
        assert!(waiter.ready().end() > ended);
        next.ready().end();
        assert_nothing_left(&redis);
    }
}

#[test]
fn an_error_of_a_proxy_that_can_not_reach_its_redis_is_69_and_none_is_a_command_to_a_ci_agent() {
    let redis = Redis::start();
    let of_proxies = [
        ("upstream failure", 69, ": upstream failure"),
        ("no upstream host", 69, ": no upstream host"),
        ("ERR Connection refused", 69, ": Connection refused"),
        ("ERR Connection timed out", 69, ": Connection timed out"),
    ];
    let commands = COMMANDS.map(|(command, shown)| (command, 125, shown));
    for (error, code, says) in of_proxies.into_iter().chain(commands) {
        let lie = Action::Lie(format!("-{error}\r\n").leak().as_bytes());
        let proxy = lying(&redis, "acquire", ALWAYS, lie);
        let end = outcome(&mut behind(&redis, &proxy, "run -n a -- echo started"));
        end.assert_printed(code, "").assert_says(says);
        assert_eq!(end.stderr.contains("the proxy at "), code == 69, "{end:?}");
        assert_obeyed_by_no_agent(&end);
    }
}

/// Operations, and commands that send them.
static QUESTIONS: [(&str, &str); 6] = [
    ("release", "release a"),
    ("take", "run a -- echo started"),
    ("acquire", "run --shared a -- echo started"),
    ("inspect", "status a"),
    ("history", "history a"),
    ("ZRANGEBYSCORE", "status"),
];

#[test]
fn a_reply_without_an_end_takes_no_memory_and_no_more_than_the_time_to_connect() {
    let redis = Redis::left_empty();
    let (deep, large, late) = (&QUESTIONS[..5], &QUESTIONS[1..], &QUESTIONS[..3]);
    let endless = |first: &'static str, again: &'static str| {
        Action::Endless(first.as_bytes(), again.as_bytes(), LONG)
    };
    let too_late = "no answer in time";
    for (what, questions, lie, says) in [
        ("a deep list", deep, endless("*1\r\n", "*1\r\n"), "too deep"),
        ("a text", large, endless("$300000000\r\n", "x"), ""),
        ("numbers", large, endless("*100000000\r\n", ":1\r\n"), ""),
        (
            "lists",
            large,
            endless("*6\r\n*80000\r\n", "*1\r\n_\r\n"),
            "",
        ),
        ("a line", large, endless("+", "x"), ""),
        ("bytes", late, Action::Drip(MESSAGE), too_late),
        ("messages", late, FLOOD, too_late),
    ] {
        let timeout = if says == too_late { "500ms" } else { "2s" };
        for &(operation, line) in questions {
            let proxy = lying(&redis, operation, ALWAYS, lie);
            let mut command = behind(&redis, &proxy, line);
            command.env("REDLOCK_REDIS_TIMEOUT", timeout);
            let (end, peak) = weighed(command.env("REDLOCK_TOKEN", "x"));
            assert_eq!(end.code(), Some(69), "{what} for {operation}: {end:?}");
            end.assert_says(says);
            assert!(end.stderr.len() < 1000, "{end:?}");
            assert!(end.stdout.is_empty(), "{end:?}");
            assert!(peak < MOST, "{what} for {operation}: {peak} KiB");
        }
    }
}

#[test]
fn a_renewal_whose_answer_has_no_end_takes_no_memory_and_is_made_again() {
    let redis = Redis::left_empty();
    let text = Action::Endless(b"$300000000\r\n", b"x", LONG);
    let proxy = lying(&redis, "renew", 1..2, text);
    let run = run(&redis, &proxy, "--ttl 9s -k 1s", IDLE);
    redis.await_calls("pexpire", 8);
    let peak = peak(run.pid());
    assert!(peak < MOST, "{peak} KiB");
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(143);
}

#[test]
fn whatever_a_server_answers_to_renewals_command_does_not_outlive_its_lease() {
    // The reply to an acquire.
    let held = Action::Lie(b"*4\r\n:1\r\n$16\r\n1700000000000000\r\n:1\r\n:-1\r\n");
    // Side by side, because each mostly waits.
    side_by_side(
        [
            ("acquire", 0..1, Action::Twice),
            ("renew", 1..2, Action::Twice),
            ("renew", 0..1, held),
            // The rest of a lease, in milliseconds.
            ("renew", ALWAYS, Action::Numbers("86400000")),
            ("renew|check", ALWAYS, Action::Numbers("1800000000000000")),
            ("renew", 0..1, FLOOD),
            ("check", 0..1, Action::ReplyAndFlood),
        ],
        |(operations, times, lie)| {
            let mut redis = Redis::start();
            let proxy = lying(&redis, operations, times, lie);
            let run = run(&redis, &proxy, "--ttl 6s -k 100ms", IDLE);
            // Redis vanishes in the middle of a flood or after some renewals.
            if matches!(lie, Action::Endless(..) | Action::ReplyAndFlood) {
                proxy.await_flood();
            } else {
                redis.await_calls("pexpire", 4);
            }
            redis.kill();
            let end = run.finish();
            assert_eq!(end.code(), Some(79), "{operations} {lie:?}: {end:?}");
            end.assert_says("was not renewed in time");
        },
    );
}

#[test]
fn a_waiter_keeps_its_place_and_gets_its_turn_whatever_a_proxy_answers() {
    // The last number is the expected number of requests.
    for (operation, times, lie, count) in [
        // The first HELLO closes its connection, and no other one comes.
        ("HELLO", 0..1, Action::Cut(0), 1),
        ("heartbeat", 0..2, Action::Lie(b"-upstream failure\r\n"), 3),
        ("enqueue", 0..1, Action::Twice, 1),
        ("heartbeat", 0..1, Action::Twice, 1),
        ("heartbeat", 1..2, Action::Twice, 2),
    ] {
        let redis = Redis::left_empty();
        let proxy = lying(&redis, operation, times, lie);
        let holder = Gated::start(&redis, &["a"]).ready();
        let waiter = waiter(&redis, &proxy, "");
        let next = queued(&redis, &["run", "a", "--", "true"]);
        wait_until("it has asked", || proxy.count(operation) >= count);
        holder.end();
        waiter.finish().assert_printed(0, "mine\n");
        next.finish().assert_code(0);
        if operation == "HELLO" {
            assert_eq!(proxy.count("HELLO"), 1, "{proxy:?}");
        }
    }
}

#[test]
fn a_flood_holds_up_neither_a_signal_nor_the_end_of_command() {
    let redis = Redis::start();
    let mut gate = Gate::new(&redis);
    // With the last action, every request gets a reply.
    for (operation, lie) in [
        ("renew", FLOOD),
        ("check", FLOOD),
        ("check", Action::ReplyAndFlood),
    ] {
        for code in [143, 0] {
            let proxy = lying(&redis, operation, 0..1, lie);
            let run = run(&redis, &proxy, "--ttl 30s", UNTIL_GATE);
            proxy.await_flood();
            if code == 143 {
                run.signal(Signal::SIGTERM);
            } else {
                gate.open();
            }
            run.finish().assert_code(code);
            assert_nothing_left(&redis);
        }
    }
}

#[test]
fn a_flood_does_not_keep_a_waiter_from_ending() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    for (operation, times) in [("SUBSCRIBE", 0..1), ("heartbeat", 1..2)] {
        let proxy = lying(&redis, operation, times.clone(), FLOOD);
        let mut waiter = Running::start(&mut behind(&redis, &proxy, "run a -- echo started"));
        proxy.await_flood();
        assert!(!waiter.has_ended());
        waiter.signal(Signal::SIGTERM);
        waiter.finish().assert_printed(143, "");
        let proxy = lying(&redis, operation, times, FLOOD);
        let end = outcome(&mut behind(&redis, &proxy, "run -w 1s a -- echo started"));
        assert!(matches!(end.code(), Some(69 | 75)), "{operation}: {end:?}");
        assert_eq!(end.stdout, "");
    }
    holder.end();
}

#[test]
fn no_server_can_keep_an_answer_in_parts_from_ending() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let part = Action::Lie(b"*3\r\n:4\r\n$1\r\n1\r\n$1\r\n1\r\n");
    let proxy = lying(&redis, "force", ALWAYS, part);
    let mut run = Running::start(&mut behind(&redis, &proxy, "release --force a"));
    // Requesting ten thousand parts takes its time on a busy machine.
    run.wait_until("it has asked for half", || proxy.count("force") >= 5_000);
    run.finish_saying(69, "had not ended after 10000 parts");
    holder.end();
}

#[test]
fn forcing_a_large_group_free_counts_members_that_ended_meanwhile() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    load_scripts(&redis);
    let proxy = Proxy::with(&redis, |request| {
        match (&*request.operation, request.before) {
            ("force", 0) => Action::Lie(b"*4\r\n:1\r\n$-1\r\n:250\r\n:3\r\n"),
            ("force", 1) => Action::Lie(b"*1\r\n:0\r\n"),
            _ => Action::Pass,
        }
    });
    let end = outcome(&mut behind(&redis, &proxy, "release --force a"));
    end.assert_said(0, "forced free")
        .assert_says("and 249 others");
    holder.end();
}

#[test]
fn a_request_that_is_given_up_is_reset_and_a_release_is_not() {
    let redis = Redis::left_empty();
    let holder = Gated::start(&redis, &["a"]).ready();
    // A heartbeat gets no reply.
    let proxy = lying(&redis, "heartbeat", 1..2, Action::LoseRequest);
    let waiter = waiter(&redis, &proxy, "REDLOCK_REDIS_TIMEOUT=2s ");
    assert_eq!(proxy.first_left(), ("heartbeat".into(), true));
    holder.end();
    waiter.finish().assert_code(0);

    let proxy = lying(&redis, "release", 0..1, Action::LoseRequest);
    let line = "REDLOCK_REDIS_TIMEOUT=2s run a -- true";
    outcome(&mut behind(&redis, &proxy, line)).assert_code(0);
    assert_eq!(proxy.first_left(), ("release".into(), false));
}

/// Returns true if a character controls a terminal, or changes the direction of a text.
fn drives(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Commands that read the keys of the lock "a"; a COMMAND that runs prints "started".
const READERS: &str = "status a;status;status --json a;history a;history;history --json a;history --svg - a;extend a;\
    run -n a -- echo started;run -w 50ms --slots 2 a -- echo started;release a;history --skipped a";

/// Runs one of these commands with the data described by `what`. Asserts that it needs little memory, and has a documented
/// status and a short, safe message. Returns true if COMMAND ran, which it does only with status 0.
#[track_caller]
fn read(redis: &Redis, reader: &str, what: &str) -> bool {
    let mut command = redis.redlock(&words(reader, &[]));
    command.env("REDLOCK_REDIS_TIMEOUT", "10s");
    let (end, peak) = weighed(command.env("REDLOCK_TOKEN", "x"));
    let code = end.code().unwrap_or(-1);
    let nothing_to_draw = code == 64 && end.stderr.starts_with("redlock: nothing to draw: ");
    let is_known = nothing_to_draw || [0, 69, 75, 78, 79].contains(&code);
    assert!(is_known && end.stderr.len() < 4000, "{what}: {end:?}");
    let started = end.stdout.contains("started");
    assert!(code == 0 || !started, "{what}: {end:?}");
    let seen = end.stdout.clone() + &end.stderr;
    assert!(!seen.contains(drives), "{what}: {end:?}");
    assert!(peak < MOST, "{what}, {reader}: {peak} KiB");
    started && reader.starts_with("run")
}

/// Runs all of these commands while the lock is held.
#[track_caller]
fn read_held(redis: &Redis, what: &str) {
    for reader in READERS.split(';') {
        assert!(!read(redis, reader, what), "{what}: it isn't free");
    }
}

#[test]
fn keys_of_another_type_are_left_alone_and_named() {
    let redis = Redis::start();
    // All keys except that of the lock itself.
    for key in KEYS[1..].iter().chain(&["{redlock:a}:skips"]) {
        for line in "SET {} x;RPUSH {} x;SADD {} x;ZADD {} 1 x;HSET {} x y".split(';') {
            for reader in READERS.split(';') {
                redis.cli(&["FLUSHALL"]);
                redis.cli(&words(line, &[key]));
                read(&redis, reader, &format!("{line} of {key}"));
            }
        }
    }
}

/// Returns descriptions of clients as they may be in an entry.
fn people(nasty: &str) -> Vec<Vec<u8>> {
    let json = nasty
        .replace('\u{1b}', "\\u001b")
        .replace('\u{7}', "\\u0007");
    let who = format!(
        r#"{{"host":"{json}","user":"{json}","pid":7,"command":["{json}","\n"],"reason":"{json}","url":"https://{json}"}}"#
    );
    vec![
        who.clone().into(),
        b"{}".into(),
        b"\xff\xfe\0".into(),
        nasty.into(),
        br#"{"host":7}"#.into(),
        br#"{"pid":-1}"#.into(),
        b"[".repeat(100_000),
        format!(r#"{{"command":[{}""]}}"#, r#""","#.repeat(40_000)).into(),
        format!(r#"{{"later":{who},"host":"h"}}"#).into(),
    ]
}

/// Fills all keys of a lock with the description of a client, the numbers of its hold, and the id of an ended run. Adds these
/// other names to the index too.
fn fill(redis: &Redis, name: &str, who: &[u8], numbers: &str, id: &str, others: &[&[u8]]) {
    let mut client = UnixStream::connect(redis.socket()).unwrap();
    let mut store = |line: &str, more: &[&[u8]]| {
        let mut command = redis::Cmd::new();
        let words = line.split(' ').map(|word| word.replace("NAME", name));
        command.arg(words.collect::<Vec<_>>()).arg(more);
        client.write_all(&command.get_packed_command()).unwrap();
        let answer = redis::Parser::new().parse_value(&mut client).unwrap();
        let is_error = matches!(answer, redis::Value::ServerError(_));
        assert!(!is_error, "{line}: {answer:?}");
    };
    let after = |text: &str| [text.as_bytes(), who].concat();
    let (hold, length) = (after(&format!("{numbers} ")), who.len());
    let over = [b"c0ffee 9000 lost 0 ", hold.as_slice()].concat();
    let forced = [after(&format!("{id} 9000 forced {length} ")), hold.clone()].concat();
    let skipped = [after(&format!("9000 busy 7 {length} ")), who.into()].concat();
    let waiting = after("99999999999999 1 8000 1 ");
    let frozen = after("99999999999999 8000 ");
    let history: [&[u8]; 5] = [&over, &forced, who, b"", &hold];
    store("SET redlock:NAME t PX 600000", &[]);
    store("HSET {redlock:NAME}:meta t", &[&hold, id.as_bytes(), &hold]);
    store("ZADD {redlock:NAME}:queue 1 w", &[]);
    store("HSET {redlock:NAME}:waiters w", &[&waiting]);
    store("HSET {redlock:NAME}:state frozen", &[&frozen]);
    store("RPUSH {redlock:NAME}:history", &history);
    store("RPUSH {redlock:NAME}:skips", &[&skipped, who, b""]);
    for name in others.iter().chain(&[name.as_bytes(), &hold]) {
        store("ZADD {redlock:}:index 99999999999999", &[name]);
    }
}

#[test]
fn whatever_our_keys_contain_is_shown_escaped_or_not_at_all() {
    let redis = Redis::start();
    let nasty = "\u{1b}]0;x\u{7}\u{1b}[2J\u{202e}\u{2066}\u{61c}\u{9b}31m\u{2028}";
    let others: [&[u8]; 2] = ["a\u{202e}b".as_bytes(), b"\xff"];
    let people = people(nasty);
    let usual = "7 8000 1 1 250 held";
    let strange = [
        "9007199254740993 8000 1 1 250 held",
        "7 99999999999999999999 1 1 250 held",
        "7 18446744073709551615 1 1 18446744073709551615 held",
        "7 0 4294967295 4294967295 0 kept",
        "-1 -1 -1 -1 -1 granted",
        "",
    ];
    // redlock reads the numbers before the person.
    let rows = people.iter().map(|who| (who, usual));
    for (who, number) in rows.chain(strange.map(|number| (&people[0], number))) {
        redis.cli(&["FLUSHALL"]);
        fill(&redis, "a", who, number, nasty, &others);
        let start = String::from_utf8_lossy(&who[..who.len().min(300)]);
        let what = format!("{number:?}, {start:?}");
        read_held(&redis, &what);
    }
}

/// Commands to CI agents, each of which may be the name of a lock, and their display for people.
const COMMANDS: [(&str, &str); 5] = [
    ("##vso[task.prependpath]/x", r"#\#vso[task.prependpath]/x"),
    ("##[add-path]/x", r"#\#[add-path]/x"),
    ("###[add-path]/x", r"##\#[add-path]/x"),
    ("##teamcity[x]", r"#\#teamcity[x]"),
    ("::stop-commands::x", r":\:stop-commands::x"),
];

/// Asserts that an agent obeys no line of an output: it finds `##vso[` and its kind anywhere, `::` at the start.
#[track_caller]
fn assert_obeyed_by_no_agent(end: &Outcome) {
    let is_command = |line: &str| {
        let mut anywhere = ["##vso[", "##[", "##teamcity["].iter();
        anywhere.any(|start| line.contains(start)) || line.trim_start().starts_with("::")
    };
    let mut lines = end.stdout.lines().chain(end.stderr.lines());
    assert!(!lines.any(is_command), "{end:?}");
}

/// Lines that show a lock, or a message about it; NAME stands for its name.
const SHOWS_A_NAME: &str = "status NAME;status;status --json;status --json NAME;history --json;\
    history --json NAME;history --json --skipped NAME;doctor --json NAME;status --names-only;history NAME;\
    history;history --names-only;history --skipped NAME;history --svg - NAME;doctor NAME;\
    -v run -n NAME -- true;-v run -w 50ms NAME -- true;stop NAME;release --force --reason NAME NAME;\
    freeze --reason NAME NAME;thaw NAME";

#[test]
fn text_of_other_clients_is_no_command_to_a_ci_agent() {
    let redis = Redis::start();
    for (command, shown) in COMMANDS {
        redis.cli(&["FLUSHALL"]);
        let who = format!(
            r#"{{"host":"{command}","user":"{command}","pid":7,"command":["{command}"],"reason":"{command}","url":"{command}"}}"#
        );
        let (name, numbers) = (command, "7 8000 1 1 250 held");
        fill(&redis, name, who.as_bytes(), numbers, "c0ffee", &[]);
        for line in SHOWS_A_NAME.split(';') {
            let end = outcome(&mut redis.redlock(&words(&line.replace("NAME", name), &[])));
            assert_obeyed_by_no_agent(&end);
            if line.contains("--json") {
                let values = serde_json::Deserializer::from_str(&end.stdout).into_iter();
                let values: Vec<serde_json::Value> = values.map(Result::unwrap).collect();
                let all = serde_json::json!(values).to_string();
                assert!(all.contains(command), "{line}: {end:?}");
            } else if line.contains("--names-only") {
                // Scripts type such names, so they can't be escaped.
                assert_eq!(end.stdout, "", "{end:?}");
                end.assert_says(" is not listed, because it isn't safe in a script");
            } else {
                let all = end.stdout.clone() + &end.stderr;
                assert!(all.contains(shown), "{line}: {end:?}");
            }
        }
    }
}

#[test]
fn names_that_are_unsafe_in_scripts_are_not_listed() {
    let redis = Redis::start();
    let mark = redis.dir.path().join("ran");
    let evil = format!("--shell=touch${{IFS}}{}", mark.display());
    // xargs removes quotes and backslashes.
    let quoted = [("\"", "\""), ("\\", ""), ("''", "")];
    let [double, escaped, single] = quoted.map(|(start, end)| format!("{start}{evil}{end}"));
    let options = [evil.as_str(), "-q", "-", &double, &escaped, &single];
    let changed = ["\"prod\"", "'", r"a\b", "a*", "a?", "[a]"];
    let safe = ["prod", "$(id)"];
    for name in options.iter().chain(&changed).chain(&safe) {
        plant(&redis, name);
    }
    for listing in "status;status *;history;history *".split(';') {
        let end = ends(&redis, &format!("{listing} --names-only"));
        end.assert_printed(0, "$(id)\nprod\n");
        // A name that looks like a pattern can't belong to a lock.
        for name in ["\"prod\"", "'", r"a\b", "[a]"] {
            end.assert_says(&format!("name \"{name}\" is not listed"));
        }
        let quiet = ends(&redis, &format!("{listing} --names-only -q"));
        quiet.assert_code(0).assert_silent();
    }
    let table = ends(&redis, "status").stdout;
    let is_meant = |line: &str| line.starts_with('-') || line.contains("--shell=");
    assert!(!table.lines().any(is_meant), "{table}");
    let names = "redlock status --names-only -q";
    let history = format!("{names} | xargs redlock history");
    outcome(&mut redis.run("other", &history)).assert_code(0);
    let force = format!("{names} | grep -vx prod | xargs -n1 redlock release --force");
    outcome(&mut redis.run("other", &force));
    assert!(redis.is_held("prod"));

    let keys = || redis.cli(&["KEYS", "*"]).lines().count();
    let before = keys();
    for name in options {
        for line in NAMES_A_LOCK.split(';') {
            let end = outcome(&mut redis.redlock(&words(line, &[name])));
            assert_eq!(end.code(), Some(64), "{line} {end:?}");
            assert_eq!(end.stderr.lines().count(), 1, "{line} {end:?}");
            if line.starts_with("status") {
                end.assert_says("a lock's name can't begin with -");
                end.assert_says("put another character first");
            }
        }
    }
    // A variable of a job can't name one either.
    ends(&redis, "REDLOCK_NAME=-q extend").assert_code(64);
    assert_eq!(keys(), before);
    assert!(!mark.exists());
}

#[test]
fn a_command_in_a_message_is_safe_to_paste_whatever_the_name_of_the_lock() {
    let redis = Redis::start();
    let (name, word) = ("$(id>PW)", "'$(id>PW)'");
    let says = |line: &str, command: &str| {
        let end = outcome(&mut redis.redlock(&words(line, &[name])));
        let all = end.stdout.clone() + &end.stderr;
        assert!(all.contains(command) && all.contains(word), "{end:?}");
        // The name appears nowhere else as a word.
        let rest = all.replace(word, "").replace(&format!("\"{name}\""), "");
        assert!(!rest.contains(&format!(" {name}")), "{end:?}");
    };
    let _holder = Running::ready(&mut redis.run(&format!("{name} --shared"), IDLE));
    let waiter = Running::start(&mut redis.redlock(words!("run {} -- true", name)));
    wait_until("it stands in the queue", || {
        redis.queue(name).contains(&waiter.pid())
    });
    let status = json(&redis, &format!("status --json {name}"));
    let id = status[0]["waiters"][0]["id"].as_str().unwrap();
    says("release {}", "redlock stop");
    says("release {}", "redlock release --force --id");
    let stop = format!("stop --id {id} {{}}");
    says(&stop, "redlock release --force --id");
    says("freeze --reason x {}", "redlock thaw");
    says("run -n {} -- true", "redlock thaw");
    says("doctor {}", "redlock thaw");
    redis.cli(&["FLUSHALL"]);
    plant(&redis, name);
    says("stop {}", "redlock release --force --id");
    redis.cli(&["PERSIST", &format!("redlock:{name}")]);
    says("doctor {}", "redlock release --force");
}

/// Writes a held lock, as another program could do.
pub fn plant(redis: &Redis, name: &str) {
    let index = ["ZADD", "{redlock:}:index", "99999999999999", name];
    assert_eq!(redis.cli(&index), "1");
    let key = format!("redlock:{name}");
    assert_eq!(redis.cli(&["SET", &key, "token", "PX", "600000"]), "OK");
}

/// Lines that name a lock which might be an option.
const NAMES_A_LOCK: &str = "run -- {} true;acquire -- {};extend -- {};release --force -- {};stop -- {};\
    status -- {};history -- {};freeze --reason x -- {};thaw -- {};doctor -- {}";

#[test]
fn large_values_in_our_keys_and_long_listings_take_no_memory() {
    let redis = Redis::start();
    // Texts and lists that are small in Redis, but large when read or shown.
    let listing = r#"
        local words = {}
        for n = 1, 40000 do words[n] = '""' end
        local who = '{"command":[' .. table.concat(words, ',') .. ']}'
        for n = 1, 60 do
            redis.call('RPUSH', history, 'c0ffee 9000 lost 0 ' .. n .. ' 8000 1 1 250 held ' .. who)
        end
        who = '{"reason":"' .. string.rep('\226\128\174', 660) .. '"}'
        for n = 1, 3000 do
            redis.call('ZADD', '{redlock:a}:queue', n, 'w' .. n)
            redis.call('HSET', '{redlock:a}:waiters', 'w' .. n, '99999999999999 1 8000 1 ' .. who)
        end"#;
    for script in [
        "redis.call('SET', 'redlock:a', x)",
        "redis.call('HSET', '{redlock:a}:meta', 't', x)",
        "redis.call('HSET', '{redlock:a}:state', 'frozen', '99999999999999 1 ' .. x)",
        "redis.call('RPUSH', history, x)",
        "redis.call('RPUSH', '{redlock:a}:skips', x)",
        "redis.call('ZADD', '{redlock:}:index', 99999999999999, x)",
        listing,
    ] {
        redis.cli(&["FLUSHALL"]);
        redis.cli(&["SET", "redlock:a", "t", "PX", "600000"]);
        redis.cli(&["ZADD", "{redlock:a}:queue", "1", "w"]);
        let values = "local x, history = string.rep('x', 45000000), '{redlock:a}:history'";
        let script = format!("{values} {script}");
        assert_eq!(redis.cli(&["EVAL", &script, "0"]), "");
        read_held(&redis, &script);
    }
}

#[test]
fn a_token_that_is_longer_than_any_of_ours_names_no_process() {
    let redis = Redis::start();
    let token = "x".repeat(100_000);
    redis.cli(&["SET", "redlock:a", "t", "PX", "60000"]);
    for line in ["release a", "extend a", "extend a --for 1m"] {
        let mut command = redis.redlock(&words(line, &[]));
        let end = outcome(command.env("REDLOCK_TOKEN", &token));
        assert_eq!(end.code(), Some(79), "{line}: {end:?}");
    }
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "t");
    let mut command = redis.redlock(words!("run -n a -- echo started"));
    outcome(command.env("REDLOCK_HELD", format!("a={token}"))).assert_code(75);
}

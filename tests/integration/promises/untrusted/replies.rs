//! A server that answers anything: sometimes the truth, more often something close to a reply. Still redlock always ends in
//! time and in order, needs little memory, and writes nothing that controls a terminal.
//!
//! The replies are the same in each run; `REPLIES_SECONDS` tries others for that long.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

use super::{MOST, behind, drives, weighed};
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Usual number of conversations.
const USUAL: u32 = 24;

/// Longest duration of a command: it has a second to wait, and 200 ms for each reply; the rest is for work.
const LONGEST: Duration = Duration::from_secs(20);

const COMMANDS: &str = "run -w 300ms a -- true;run -n --ttl 1s a -- sleep 0.5;run -w 300ms --shared a b -- true;\
    run -n --once-per 1h a -- true;status;status a;status --json a;history a;history --svg - a;history;\
    history --json --skipped a;doctor a;doctor --json;extend a;release --force a";

/// Texts of redlock's entries, of servers, and of attackers.
const TEXTS: [&str; 14] = [
    "",
    "OK",
    "none",
    "string",
    "c0ffee000001",
    "\u{1b}]0;x\u{7}\u{1b}[2J\u{202e}",
    "99999999999999 8000",
    "9007199254740993",
    r#"{"host":"h\u001b[2J","user":"u","pid":3,"command":["x\ny"],"reason":"\u202e"}"#,
    r#"99999999999999 1 8000 1 {"host":"h\u0007"}"#,
    r#"7 8000 1 1 250 held {"host":"h","instance":"b:1:2:3:4","url":"https://\u001b"}"#,
    r#"c0ffee 70 status:1 0 7 8000 1 1 250 held {"host":"\u009b"}"#,
    "role:master\r\nredis_version:7.0.0\r\nslave0:ip=\u{1b}[2J,port=1,state=online,offset=1,lag=0\r\n",
    "aa 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-16383\nbb \u{1b}:1@2 master - 0 0 1 connected",
];

/// Lines that are a whole reply.
const LINES: [&str; 12] = [
    "+OK\r\n",
    "$-1\r\n",
    "_\r\n",
    "#t\r\n",
    ",nan\r\n",
    "(123\r\n",
    "-NOSCRIPT x\r\n",
    "-NOPERM \u{1b}[2J has no permissions to run the '\u{1b}' command\r\n",
    "-MOVED 1 \u{1b}:1\r\n",
    "-ERR \u{202e}\u{9b}31m\r\n",
    ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$22\r\ngranted 7 1 8000 60000\r\n",
    ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
];

fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into()
}

/// Encodes a list, or a map with an even number of values.
fn list(kind: char, values: &[Vec<u8>]) -> Vec<u8> {
    let each = if kind == '%' { 2 } else { 1 };
    let count = values.len() / each;
    let start = format!("{kind}{count}\r\n").into_bytes();
    [start, values[..count * each].concat()].concat()
}

/// Generates a value, encoded as RESP.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let text = proptest::sample::select(&TEXTS[..]).prop_map(bulk);
    let line = proptest::sample::select(&LINES[..]).prop_map(|line| line.as_bytes().to_vec());
    let small = (-2..9000_i64).prop_map(|number| format!(":{number}\r\n").into_bytes());
    let any = any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes());
    let leaf = prop_oneof![4 => text, 1 => line, 3 => small, 1 => any];
    leaf.prop_recursive(3, 40, 8, |inner| {
        let kind = proptest::sample::select(&['*', '*', '*', '~', '%'][..]);
        (kind, vec(inner, 0..14)).prop_map(|(kind, values)| list(kind, &values))
    })
}

/// Returns an action with this reply, which lives for the rest of the test.
fn lie(answer: Vec<u8>) -> Action {
    Action::Lie(answer.leak())
}

/// Generates a whole or damaged value.
fn answer() -> impl Strategy<Value = Action> {
    let whole = vec(value(), 1..3).prop_map(|values| values.concat());
    let broken = (value(), any::<u16>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
        let at = usize::from(at) % bytes.len().max(1);
        if byte < 100 {
            bytes.truncate(at);
        } else if let Some(old) = bytes.get_mut(at) {
            *old = byte;
        }
        bytes
    });
    prop_oneof![
        8 => Just(Action::Pass),
        1 => Just(Action::Twice),
        1 => Just(Action::Cut(0)),
        6 => whole.prop_map(lie),
        3 => broken.prop_map(lie),
    ]
}

/// Runs a command against a server that gives these replies, and then the truth.
fn converse(redis: &Redis, line: &str, answers: Vec<Action>) -> Result<(), TestCaseError> {
    let mut left = answers.into_iter();
    let proxy = Proxy::with(redis, move |_| left.next().unwrap_or(Action::Pass));
    let mut command = behind(redis, &proxy, line);
    command.env("REDLOCK_REDIS_TIMEOUT", "200ms");
    let began = Instant::now();
    let (end, peak) = weighed(command.env("REDLOCK_TOKEN", "x"));
    prop_assert!(began.elapsed() < LONGEST, "{:?}: {end:?}", began.elapsed());
    let is_crash = end.code().is_none_or(|code| matches!(code, 70 | 101 | 134));
    prop_assert!(!is_crash && !end.stderr.contains("panicked"), "{end:?}");
    prop_assert!(peak < MOST, "{peak} KiB: {end:?}");
    let seen = end.stdout.clone() + &end.stderr;
    prop_assert!(!seen.contains(drives), "{end:?}");
    prop_assert!(end.stderr.len() < 20_000, "{end:?}");
    Ok(())
}

#[test]
fn whatever_a_server_answers_redlock_ends_in_order() {
    let seconds = asked("REPLIES_SECONDS");
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let redis = Redis::start();
    load_scripts(&redis);
    let commands: Vec<&str> = COMMANDS.split(';').collect();
    let conversation = (0..commands.len(), vec(answer(), 0..16));
    for seed in 1.. {
        let mut runner = TestRunner::new(Config {
            cases: USUAL,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            max_shrink_time: 60_000,
            ..Config::default()
        });
        let result = runner.run(&conversation, |(command, answers)| {
            redis.cli(&["FLUSHALL"]);
            converse(&redis, commands[command], answers)
        });
        assert!(result.is_ok(), "seed {seed}: {}", result.unwrap_err());
        if until.is_none_or(|until| Instant::now() > until) {
            break;
        }
    }
}

//! Input of the lock protocol from outside, as targets of [`crate::fuzz`]: URLs, names, replies, entries of redlock's keys.

use std::time::Duration;

use redis::Value;

use super::answer::{acquired, checked, released, renewed};
use super::history;
use super::inspect::inspected;
use super::name::Keys;
use super::scripts::{ACQUIRE, lossy_text};
use super::who::Waiter;
use super::{Access, Error, Frozen, Holder, Name, Token, Who};
use crate::fuzz::{Target, assert_safe_line, texts};
use crate::protocol::grant::Grant;
use crate::report::{escaped, escaped_json};
use crate::server::call::Call;
use crate::server::deployment::Deployment;
use crate::server::endpoint::{Part, Server};
use crate::server::nodes::{Nodes, Redirect};
use crate::server::refusal::from_server;
use crate::server::replication::Role;
use crate::server::reply::field;
use crate::server::resp::Replies;
use crate::server::sentinel::replicas::KnownReplica;
use crate::server::slot::{hash_slot, hash_tag};
use crate::server::url::{Address, Login, Url};

pub const TARGETS: [Target; 4] = [
    Target::new("url", url, urls),
    Target::new("names", names, name_examples),
    Target::new("resp", resp, replies),
    Target::new("entries", entries, entry_examples),
];

/// Size of the largest listing, in bytes.
const LISTING: usize = 16 << 20;

/// Size of the longest message about input, in bytes.
const SENTENCE: usize = 2500;

#[track_caller]
fn assert_short(line: &str) {
    assert!(line.len() <= SENTENCE, "{} bytes: {line}", line.len());
    assert_safe_line(&escaped(line));
}

// URLs

fn urls() -> Vec<Vec<u8>> {
    texts(&[
        "redis://h",
        "redis://me:secret@127.0.0.1:6380/3",
        "rediss://:p%40ss@[::1]:7/0?protocol=3",
        "unix:///run/redis.sock?db=2&user=me&pass=a+b",
        "redis-sentinel://a,b:7,[::1]/my%20one/3?sentinel_user=s&sentinel_password=p%40",
        "rediss-sentinel://me@a/m?sentinel_password_file=/dev/null",
        "redis-cluster://:pw@a,b:7/jobs",
        "redis://h/a/b",
        "http://h",
    ])
}

/// Password that no other part of a URL contains.
const PASSWORD: &str = "hunter2-\u{1f512}-hunter2";

fn url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    // The message quotes the scheme, however long it is.
    if let Err(why) = Url::parse(text) {
        assert!(why.len() <= SENTENCE.max(text.len() + 200), "{why}");
    }
    assert_safe_line(&escaped(&described(text)));
}

/// Returns all that redlock says about the servers of a URL.
fn described(text: &str) -> String {
    let access = Access {
        url: text,
        ..Access::default()
    };
    match Deployment::parse(&access, Some("{p}:")) {
        Ok(deployment) => format!("{} {deployment:?}", deployment.server()),
        Err(error) => error.to_string(),
    }
}

// Names

fn name_examples() -> Vec<Vec<u8>> {
    texts(&[
        "redlock:\ndeploy",
        "{p}:\na",
        "p\na{b}c",
        "x}\ny{",
        "a{}b\n{}{z}",
        "\n}{",
    ])
}

/// Checks that all keys of a lock are in its hash slot, whatever its prefix and its name are.
fn names(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (prefix, name) = text.split_once('\n').unwrap_or(("", &text));
    let Ok(name) = name.parse::<Name>() else {
        return;
    };
    assert!(name.as_str().len() <= 200);
    assert_eq!(name.as_str().parse(), Ok(name.clone()));
    let keys = Keys::new(prefix, &name);
    let slot = |key: &[u8]| {
        let key = std::str::from_utf8(key).expect("keys are texts");
        hash_slot(hash_tag(key).unwrap_or(key).as_bytes())
    };
    let kinds = ["", "state", "forced:c0ffee"];
    assert!(
        kinds
            .iter()
            .all(|kind| slot(&keys.of(kind)) == slot(&keys.lock)),
        "{prefix:?} {name:?}"
    );
}

// Replies

/// Encodes a text as a RESP bulk string.
fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

const WHO: &str = r#"{"host":"h é","user":"ci","pid":3,"command":["./deploy.sh","a b"],"reason":"r","url":"https://ci/7","ttl":30000,"instance":"b:4026531836:3:77:3"}"#;

fn held() -> String {
    format!("7 8000 3 2 250 held {WHO}")
}

fn waiting() -> String {
    format!("99999 1 8000 -5 2 {WHO}")
}

fn frozen() -> String {
    format!("99999 8000 {WHO}")
}

fn over() -> String {
    format!("c0ffee000001 9000 forced {} {WHO}{}", WHO.len(), held())
}

fn skipped() -> String {
    format!("9000 busy 250 {} {WHO}{WHO}", WHO.len())
}

/// Returns answers of scripts and servers, encoded as RESP.
fn replies() -> Vec<Vec<u8>> {
    let held = format!("*3\r\n$12\r\nc0ffee000001\r\n:20000\r\n{}", bulk(&held()));
    let inspected = [
        "*8\r\n$6\r\nstring\r\n$1\r\n7\r\n:9000\r\n*1\r\n".to_owned(),
        held.clone(),
        format!("*1\r\n*2\r\n$12\r\nc0ffee000003\r\n{}", bulk(&waiting())),
        bulk(&frozen()) + &bulk("99999 8000") + "*3\r\n:10\r\n:20\r\n:30\r\n",
    ];
    let history = [
        format!("*4\r\n:9000\r\n*1\r\n{}", bulk(&over())),
        format!(
            "*1\r\n*4\r\n$12\r\nc0ffee000001\r\n:1\r\n:0\r\n{}",
            bulk(&self::held())
        ),
        format!("*1\r\n{}", bulk(&skipped())),
    ];
    let busy = format!(
        "*13\r\n:0\r\n:9000\r\n:2\r\n$2\r\n17\r\n:1\r\n:20000\r\n:1\r\n$6\r\nc0ffee\r\n{}{}:0\r\n:1\r\n{}",
        bulk(&self::held()),
        bulk(&frozen()),
        bulk("99999 8000")
    );
    let mut all = texts(&[
        &inspected.concat(),
        &history.concat(),
        &busy,
        "*4\r\n:1\r\n$16\r\n1700000000000000\r\n:1\r\n:-1\r\n",
        "*4\r\n:1\r\n:20000\r\n_\r\n:0\r\n",
        "*2\r\n:3\r\n:5\r\n",
        "*3\r\n$6\r\nmaster\r\n:10\r\n*2\r\n*3\r\n$1\r\nh\r\n$1\r\n7\r\n$1\r\n8\r\n*3\r\n$3\r\n::1\r\n$1\r\n7\r\n$2\r\n10\r\n",
        "*1\r\n*8\r\n$2\r\nip\r\n$8\r\n10.0.0.7\r\n$4\r\nport\r\n$4\r\n6379\r\n$5\r\nflags\r\n$12\r\nslave,s_down\r\n$14\r\nslave-priority\r\n$1\r\n0\r\n",
        "%2\r\n$5\r\nproto\r\n:3\r\n$4\r\nmode\r\n$7\r\ncluster\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$47\r\ngranted 1700000000000000 2 1700000000000 2000    \r\n",
        "*2\r\n#t\r\n,1.5\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "!5\r\nERR x\r\n=7\r\ntxt:abc\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    ]);
    all.extend(texts(&[
        "-NOPERM User me has no permissions to run the 'evalsha' command\r\n",
        "-ERR Error running script (call to f_0123456789012345678901234567890123456789): @user_script:12: @user_script: 12: NOPERM this user has no permissions to access one of the keys\r\n",
        "-MOVED 3999 10.0.0.1:6381\r\n",
        "-ASK 3999 :6381\r\n",
        "-CLUSTERDOWN Hash slot not served\r\n",
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
        "!30\r\nERR Connection refused by host\r\n\r\n",
    ]));
    all
}

/// Returns all replies in a stream that arrives in pieces, and whether the stream is still valid.
fn read(stream: &[u8], piece: usize, limit: usize) -> (Vec<Value>, bool) {
    let mut replies = Replies::default();
    let mut values = Vec::new();
    for bytes in stream.chunks(piece.max(1)) {
        replies.add(bytes);
        loop {
            match replies.next(limit) {
                Ok(Some(value)) => {
                    assert!(replies.last_weight <= limit);
                    values.push(value);
                }
                Ok(None) => break,
                Err(_) => return (values, false),
            }
        }
    }
    (values, true)
}

fn depth(value: &Value) -> usize {
    let deepest =
        |values: &mut dyn Iterator<Item = &Value>| 1 + values.map(depth).max().unwrap_or(0);
    match value {
        Value::Array(values) | Value::Set(values) => deepest(&mut values.iter()),
        Value::Push { data, .. } => deepest(&mut data.iter()),
        Value::Map(pairs) => deepest(&mut pairs.iter().flat_map(|(key, value)| [key, value])),
        _ => 0,
    }
}

/// Checks that the replies don't depend on the pieces in which they arrive. Interprets each as every answer and every error.
fn resp(bytes: &[u8]) {
    let limit = 64 << (bytes.len() % 15);
    let piece = 1 + bytes.first().map_or(0, |&byte| usize::from(byte % 50));
    for limit in [limit, LISTING] {
        let whole = read(bytes, bytes.len(), limit);
        let pieces = read(bytes, piece, limit);
        assert_eq!(
            format!("{whole:?}"),
            format!("{pieces:?}"),
            "{piece} {limit}"
        );
        for value in &whole.0 {
            // A list without elements adds no level.
            assert!(depth(value) <= 9, "{value:?}");
            answer(value);
        }
    }
}

fn assert_explained<T>(answer: Result<T, Error>) {
    if let Err(error) = answer {
        assert_short(&error.to_string());
    }
}

fn answer(value: &Value) {
    assert_explained(acquired(value.clone()));
    assert_explained(released(value.clone()));
    assert_explained(renewed(value.clone()));
    assert_explained(checked(value.clone()));
    assert_explained(inspected(any_name(), value.clone()));
    assert_explained(history::parse(10, &any_name(), value.clone()));
    let _ = (field(value, "ip"), KnownReplica::parse(value));
    let _ = (field(value, "mode"), Role::parse(value));
    match value {
        Value::ServerError(error) => {
            for part in [Part::Only, Part::Primary, Part::Sentinel, Part::Node] {
                let server = any_server(part);
                let call = Call {
                    script: &ACQUIRE,
                    keys: vec![b"p:k\xff".to_vec()],
                    args: Vec::new(),
                };
                assert_short(&from_server(error, &server, None).to_string());
                let explained = from_server(error, &server, Some(&call));
                assert_short(&explained.to_string());
                if let Some(redirect) = explained.redirect() {
                    assert_safe_line(&redirect.address(&server.address).to_string());
                }
            }
        }
        Value::Push { data, .. } => {
            let message = data.last().map(lossy_text).unwrap_or_default();
            if let Some(grant) = Grant::parse(&message) {
                assert!(grant.lasting <= Duration::from_secs(60));
            }
        }
        _ => {}
    }
}

fn any_name() -> Name {
    "deploy".parse().expect("it is a name")
}

pub fn any_server(part: Part) -> Server {
    let address = Address::Tcp {
        host: "h".into(),
        port: 7,
        tls: false,
    };
    let login = (Login::default(), 0);
    Server::new((address, part), login, None, &Access::default(), "p:")
}

// Entries

fn entry_examples() -> Vec<Vec<u8>> {
    texts(&[
        WHO,
        &held(),
        &waiting(),
        &frozen(),
        "99999 8000",
        &over(),
        &skipped(),
        r#"c0ffee 9000 signal:9 0 7 8000 1 1 0 granted {"command":["a","b"],"later":[[{}]]}"#,
        "aa :7001@17001 myself,master - 0 0 1 connected 0-5460\nbb 10.0.0.2:7002@17002,redis-3,shard-id=1 slave,fail aa 0 0 2 connected\n",
        "3999 10.0.0.1:6381",
        "granted 1700000000000000 2 1700000000000 2000",
        r#"{"host":"","pid":4294967295,"url":null,"skew":500}"#,
    ])
}

fn entries(bytes: &[u8]) {
    if let Some(who) = Who::parse(bytes) {
        let written = who.to_json();
        assert!(written.len() <= 128 * 1024);
        // Parsing cuts long fields once: a second pass changes nothing.
        let again = Who::parse(&written).expect("what is written can be read");
        assert_eq!(Who::parse(&again.to_json()).as_ref(), Some(&again));
        assert!(who.host.len() <= 258 && who.user.len() <= 258);
        assert!(who.command.iter().map(String::len).sum::<usize>() <= 4003);
    }
    let in_bounds = |number: u64| number <= 1 << 53;
    if let Some(holder) = Holder::parse(bytes) {
        assert!(in_bounds(holder.fence) && in_bounds(holder.since_ms) && holder.slot <= 9999);
    }
    if let Some(waiter) = Waiter::parse(bytes) {
        assert!(in_bounds(waiter.since_ms));
    }
    let _ = Frozen::parse(bytes);
    let record = Value::BulkString(bytes.to_vec());
    let _ = (
        history::over(&any_name(), &record),
        history::skip(&any_name(), &record),
    );
    if let Some(token) = Token::read(bytes.to_vec()) {
        assert!(token.id().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
    let text = String::from_utf8_lossy(bytes);
    let safe = escaped(&text);
    assert_safe_line(&safe);
    assert_eq!(escaped(&safe), safe);
    let json = serde_json::to_string(&text).expect("text is JSON");
    let read: String = serde_json::from_str(&escaped_json(&json)).expect("it stays JSON");
    assert_eq!(read, text);
    // Addresses of other servers arrive in such texts too.
    let address = any_server(Part::Node).address.clone();
    let nodes = Nodes::parse(&text, &address);
    assert!(nodes.others.len() <= 16 && nodes.replicas.len() <= 1000);
    for address in &nodes.others {
        assert_safe_line(&address.to_string());
    }
    if let Some(redirect) = Redirect::parse(&text) {
        assert_safe_line(&redirect.address(&address).to_string());
    }
    let _ = Grant::parse(&text);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::tests::cases;

    /// Generates any text, including an attacker's.
    fn any_text(most: usize) -> impl Strategy<Value = String> {
        let letter = prop_oneof![
            4 => proptest::char::range(' ', '~'),
            1 => any::<char>(),
            1 => prop::sample::select(vec!['\u{1b}', '\u{202e}', '\0', '"', '\\', '\n', ' ', 'é']),
        ];
        prop::collection::vec(letter, 0..most).prop_map(String::from_iter)
    }

    fn who() -> impl Strategy<Value = Who> {
        let some = || prop::option::of(any_text(40));
        let number = || prop::option::of(any::<u64>());
        let command = prop::collection::vec(any_text(20), 0..6);
        let names = (any_text(40), any_text(40), any::<u32>(), command);
        let texts = (some(), some(), some());
        let numbers = (number(), number(), number());
        (names, texts, numbers, some()).prop_map(
            |((host, user, pid, command), (known_as, reason, url), numbers, instance)| {
                let (ttl, skew, kill_after) = numbers;
                Who {
                    host,
                    user,
                    pid,
                    known_as,
                    command,
                    reason,
                    url,
                    ttl,
                    skew,
                    instance,
                    kill_after,
                    ..Who::default()
                }
            },
        )
    }

    /// Generates a time as scripts write it.
    fn moment() -> impl Strategy<Value = u64> {
        prop_oneof![0..10_000_u64, 0..=1_u64 << 53]
    }

    proptest! {
        #![proptest_config(cases(60))]

        #[test]
        fn an_entry_is_read_as_it_was_written(
            who in who(), by in who(), fence in moment(), since in moment(), ended in moment(),
            limit in 1..=1_000_000_000_u32, slot in 0..=9999_u32,
        ) {
            let text = |who: &Who| String::from_utf8(who.to_json()).unwrap();
            prop_assert_eq!(Who::parse(&who.to_json()), Some(who.clone()));
            let entry = format!("{fence} {since} {limit} {slot} 250 held {}", text(&who));
            let holder = Holder::parse(entry.as_bytes()).unwrap();
            prop_assert_eq!((holder.fence, holder.since_ms, holder.slot), (fence, since, slot));
            prop_assert_eq!((holder.limit.number(), &holder.who), (limit, &who));
            let waiting = format!("9 {limit} {since} 1 {}", text(&who));
            let waiter = Waiter::parse(waiting.as_bytes()).unwrap();
            prop_assert_eq!((waiter.since_ms, waiter.who.clone()), (since, who.clone()));
            let frozen = Frozen::parse(format!("{ended} {since} {}", text(&who)).as_bytes());
            prop_assert_eq!(frozen.map(|it| (it.until_ms, it.who)), Some((ended, who.clone())));
            let (before, by_text) = (text(&by).len(), text(&by));
            let record = format!("c0ffee {ended} forced {before} {by_text}{entry}");
            let over = history::over(&any_name(), &Value::BulkString(record.into())).unwrap();
            prop_assert_eq!((over.ended_ms, over.hold.map(|hold| hold.fence), &over.who), (Some(ended), Some(fence), &who));
            prop_assert_eq!((over.outcome, over.by), (super::super::HoldOutcome::Forced, Some(by)));
        }

        #[test]
        fn no_message_about_a_url_has_its_password(
            parts in prop::collection::vec(prop::sample::select(vec![
                "redis://", "rediss://", "redis-sentinel://", "redis-cluster://", "unix://", "/", "@",
                ":", "h", "[::1]", "[", "]", ",", "?", "&", "db=", "pass=", "user=", "%", "%40", "#",
                "sentinel_password=", "7", "é", " ", "{", PASSWORD, "hunter2",
            ]), 0..12),
        ) {
            let text = parts.concat();
            if let Err(why) = Url::parse(&text) {
                prop_assert!(!why.contains("hunter2"), "{}: {}", text, why);
            }
        }

        #[test]
        fn a_password_is_shown_by_no_server(
            user in any_text(12), port in 1..=u16::MAX, tail in any_text(12),
            host in prop::sample::select(vec!["h", "[::1]", "redis-1.example"]),
            scheme in prop::sample::select(vec!["redis", "rediss", "redis-sentinel", "redis-cluster"]),
        ) {
            let encoded = |text: &str| text.bytes().fold(String::new(), |all, byte| all + &format!("%{byte:02X}"));
            let (user, password, tail) = (encoded(&user), encoded(PASSWORD), encoded(&tail));
            for text in [
                format!("{scheme}://{user}:{password}@{host}:{port}/3"),
                format!("{scheme}://{user}:{password}@{host}:{port}/{tail}"),
                format!("redis-sentinel://{host}:{port}/m?sentinel_user={user}&sentinel_password={password}"),
                format!("unix:///run/redis.sock?user={user}&pass={password}"),
            ] {
                let shown = described(&text);
                prop_assert!(!shown.contains("hunter2"), "{}: {}", text, shown);
                assert_safe_line(&escaped(&shown));
            }
        }
    }
}

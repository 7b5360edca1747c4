//! What the lock protocol reads from outside, as targets of [`crate::fuzz`]: URLs, replies, the answers in
//! them, the entries of our keys, what servers say of other servers, certificates, passwords.

use std::time::Duration;

use redis::Value;
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use super::answer::{acquired, checked, released, renewed};
use super::history;
use super::inspect::inspected;
use super::name::Keys;
use super::scripts::{ACQUIRE, lossy_text};
use super::{
    Error, Frozen, Holder, Inspected, LockHistory, Name, TlsFiles, Token, UrlOrigin, Waiter, Who,
};
use crate::fuzz::{Target, assert_safe_line, texts};
use crate::protocol::grant::Grant;
use crate::redis::deployment::Deployment;
use crate::redis::nodes::{Nodes, Redirect, promotable_replicas};
use crate::redis::refusal::from_server;
use crate::redis::replication::{Quorum, Replicas, Role};
use crate::redis::reply::field;
use crate::redis::resp::Replies;
use crate::redis::sentinel::answer::{Fields, known_replica};
use crate::redis::server::{Part, Server};
use crate::redis::slot::{hash_slot, hash_tag};
use crate::redis::tls::{certificates_in, may_sign, names};
use crate::redis::url::{Address, Login, Place, Url};
use crate::report::escaped;

pub const TARGETS: [Target; 8] = [
    Target {
        name: "url",
        check: url,
        examples: urls,
    },
    Target {
        name: "name",
        check: name,
        examples: name_examples,
    },
    Target {
        name: "resp",
        check: resp,
        examples: replies,
    },
    Target {
        name: "answers",
        check: answers,
        examples: replies,
    },
    Target {
        name: "errors",
        check: errors,
        examples: error_examples,
    },
    Target {
        name: "entries",
        check: entries,
        examples: entry_examples,
    },
    Target {
        name: "servers",
        check: servers,
        examples: server_examples,
    },
    Target {
        name: "certificate",
        check: certificate,
        examples: certificate_examples,
    },
];

/// What a listing may weigh.
const LISTING: usize = 16 << 20;

/// The longest that a sentence about something from outside may be, in bytes.
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

fn url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Url::parse(text) {
        // The scheme is quoted.
        Err(why) => assert!(why.len() <= SENTENCE.max(text.len() + 200), "{why}"),
        Ok(mut url) => {
            assert!(Url::parse(&printed(&url)).as_ref() == Ok(&url), "{text}");
            url.login.password = Some(PASSWORD.into());
            assert_hides_password(&url);
        }
    }
}

/// One that is part of nothing else.
const PASSWORD: &str = "hunter2-\u{1f512}-hunter2";

fn assert_hides_password(url: &Url) {
    if let Place::Sentinels {
        password_file: Some(_),
        ..
    } = url.place
    {
        return;
    }
    let (tls, timeout) = (TlsFiles::default(), Duration::from_secs(1));
    let text = printed(url);
    let said = match Deployment::parse(&text, &UrlOrigin::Option, &tls, timeout, Some("{p}:")) {
        Ok(deployment) => format!("{} {deployment:?}", deployment.server()),
        Err(error) => error.to_string(),
    };
    assert!(!said.contains("hunter2"), "{said}");
    assert_safe_line(&escaped(&said));
}

/// A URL as it may be written.
fn printed(url: &Url) -> String {
    let scheme = |name: &str, nodes: &[Address]| match nodes.first() {
        Some(Address::Tcp { tls: true, .. }) => name.replacen("redis", "rediss", 1),
        _ => name.to_owned(),
    };
    let hosts = |nodes: &[Address]| {
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        nodes.join(",")
    };
    let login = login(&url.login);
    let database = url.database;
    match &url.place {
        Place::Server(Address::Unix(path)) => {
            let path = encoded(&path.display().to_string());
            let part = |name: &str, value: &Option<String>| {
                let value = value.as_deref().map(encoded);
                value.map_or(String::new(), |value| format!("&{name}={value}"))
            };
            let (user, pass) = (&url.login.username, &url.login.password);
            let (user, pass) = (part("user", user), part("pass", pass));
            format!("unix://{path}?db={database}{user}{pass}")
        }
        Place::Local => "local:".to_owned(),
        Place::Server(address) => {
            let nodes = std::slice::from_ref(address);
            let scheme = scheme("redis", nodes);
            format!("{scheme}://{login}{address}/{database}")
        }
        Place::Sentinels {
            nodes,
            primary,
            login: theirs,
            password_file,
        } => {
            let part = |name: &str, value: Option<String>| {
                value.map_or(String::new(), |value| {
                    format!("&{name}={}", encoded(&value))
                })
            };
            let file = password_file
                .as_ref()
                .map(|path| path.display().to_string());
            format!(
                "{}://{login}{}/{}/{database}?{}{}{}",
                scheme("redis-sentinel", nodes),
                hosts(nodes),
                encoded(primary),
                part("sentinel_user", theirs.username.clone()),
                part("sentinel_password", theirs.password.clone()),
                part("sentinel_password_file", file),
            )
        }
        Place::Cluster { nodes, tag } => {
            let tag = tag.as_deref().map(encoded).unwrap_or_default();
            let scheme = scheme("redis-cluster", nodes);
            format!("{scheme}://{login}{}/{tag}", hosts(nodes))
        }
    }
}

fn login(login: &Login) -> String {
    match (&login.username, &login.password) {
        (None, None) => String::new(),
        (username, password) => {
            let username = username.as_deref().unwrap_or_default();
            let password = password.as_deref().unwrap_or_default();
            format!("{}:{}@", encoded(username), encoded(password))
        }
    }
}

fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'.');
    let letters = text.bytes().map(|byte| {
        // A / stands for itself in the path of a socket only, where it begins.
        if plain(&byte) && (byte != b'/' || text.starts_with('/')) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    letters.collect()
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

/// A prefix and a name: all keys of a lock are in its hash slot.
fn name(bytes: &[u8]) {
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
    for key in [
        &keys.state,
        &keys.meta,
        &keys.holders,
        &keys.queue,
        &keys.waiters,
        &keys.slots,
    ] {
        assert_eq!(slot(key), slot(&keys.lock), "{prefix:?} {name:?}");
    }
    for key in [&keys.history, &keys.skips, &keys.notices, &keys.channels] {
        assert_eq!(slot(key), slot(&keys.lock), "{prefix:?} {name:?}");
    }
}

// Replies

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

fn bulk(text: &str) -> Value {
    Value::BulkString(text.into())
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

fn words(words: &[&str]) -> Value {
    list(words.iter().map(|word| bulk(word)))
}

/// The answers of scripts; first those about locks, and about what is remembered of one.
fn script_answers() -> Vec<Value> {
    use Value::{Int, Nil};
    let held = || list([bulk("c0ffee000001"), Int(20_000), bulk(&held())]);
    let inspected = list([
        bulk("string"),
        bulk("7"),
        Int(9000),
        list([held(), list([bulk("c0ffee000002"), Int(-1), Nil])]),
        list([list([bulk("c0ffee000003"), bulk(&waiting())])]),
        bulk(&frozen()),
        bulk("99999 8000"),
        list([Int(10), Int(20), Int(30)]),
    ]);
    let history = list([
        Int(9000),
        list([
            bulk(&over()),
            bulk("c0ffee 9001 status:0 0 8 7000 1 1 0 held {}"),
        ]),
        list([list([
            bulk("c0ffee000001"),
            Int(1),
            Int(0),
            bulk("9 8500 1 1 0 held {}"),
        ])]),
        list([bulk(&skipped())]),
    ]);
    let busy = list([
        Int(0),
        Int(9000),
        Int(2),
        bulk("17"),
        Int(1),
        Int(20_000),
        Int(1),
        bulk("c0ffee"),
        bulk(&self::held()),
        bulk(&frozen()),
        Int(0),
        Int(1),
        bulk("99999 8000"),
    ]);
    let lost = list([Int(0), bulk(WHO), bulk(&self::held())]);
    let all = [
        inspected,
        history,
        busy,
        lost,
        list([Int(1), bulk("1700000000000000"), Int(1), Int(-1)]),
        list([Int(1), Int(20_000), bulk("7"), Int(1), Int(1), bulk(WHO)]),
        list([Int(1), Int(20_000), Nil, Int(0)]),
        list([Int(2), bulk(WHO)]),
        list([Int(3), Int(5)]),
        list([Int(4), Nil]),
        list([Int(2)]),
    ];
    all.into()
}

/// The answers of servers to other questions.
fn server_answers() -> Vec<Value> {
    use Value::{Int, Nil};
    let primary = words(&["name", "m", "ip", "::1", "port", "7", "config-epoch", "3"]);
    let replica = words(&[
        "ip",
        "10.0.0.7",
        "port",
        "6379",
        "flags",
        "slave,s_down",
        "slave-priority",
        "0",
    ]);
    let role = list([
        bulk("master"),
        Int(10),
        list([words(&["h", "7", "8"]), words(&["::1", "7", "10"])]),
    ]);
    let hello = Value::Map(vec![
        (bulk("proto"), Int(3)),
        (bulk("mode"), bulk("cluster")),
        (bulk("version"), bulk("7.2.0")),
    ]);
    let push = Value::Push {
        kind: redis::PushKind::Message,
        data: vec![
            bulk("c"),
            bulk("granted 1700000000000000 2 1700000000000 2000"),
        ],
    };
    let all = [
        primary,
        list([replica]),
        role,
        hello,
        push,
        Value::Set(vec![Int(1)]),
        Nil,
        Value::Okay,
        Value::SimpleString("PONG".into()),
    ];
    all.into()
}

/// What comes from servers.
fn replies() -> Vec<Vec<u8>> {
    let all = [script_answers(), server_answers()].concat();
    let mut all: Vec<Vec<u8>> = all.iter().filter_map(wire).collect();
    all.extend(texts(&[
        "*2\r\n#t\r\n,1.5\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "-MOVED 3999 10.0.0.1:6381\r\n:1\r\n",
        "!5\r\nERR x\r\n=7\r\ntxt:abc\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    ]));
    all
}

/// A value as it is sent, where it can be.
fn wire(value: &Value) -> Option<Vec<u8>> {
    let each = |head: String, values: &mut dyn Iterator<Item = &Value>| {
        let mut bytes = head.into_bytes();
        for value in values {
            bytes.extend(wire(value)?);
        }
        Some(bytes)
    };
    match value {
        Value::Nil => Some(b"_\r\n".to_vec()),
        Value::Okay => Some(b"+OK\r\n".to_vec()),
        Value::Int(number) => Some(format!(":{number}\r\n").into()),
        Value::BulkString(bytes) => {
            let head = format!("${}\r\n", bytes.len()).into_bytes();
            Some([&head, bytes.as_slice(), b"\r\n"].concat())
        }
        Value::SimpleString(text) if !text.contains(['\r', '\n']) && text != "OK" => {
            Some(format!("+{text}\r\n").into())
        }
        Value::Array(values) => each(format!("*{}\r\n", values.len()), &mut values.iter()),
        Value::Set(values) => each(format!("~{}\r\n", values.len()), &mut values.iter()),
        Value::Map(pairs) => {
            let mut flat = pairs.iter().flat_map(|(key, value)| [key, value]);
            each(format!("%{}\r\n", pairs.len()), &mut flat)
        }
        Value::Push {
            kind: redis::PushKind::Message,
            data,
        } => {
            let kind = bulk("message");
            let mut all = std::iter::once(&kind).chain(data);
            each(format!(">{}\r\n", data.len() + 1), &mut all)
        }
        _ => None,
    }
}

/// All replies in a stream that comes in pieces, and whether it can go on.
fn read(stream: &[u8], piece: usize, limit: usize) -> (Vec<Value>, bool) {
    let mut replies = Replies::default();
    let mut found = Vec::new();
    for bytes in stream.chunks(piece.max(1)) {
        replies.add(bytes);
        loop {
            match replies.next(limit) {
                Ok(Some(value)) => {
                    assert!(replies.last_weight() <= limit);
                    found.push(value);
                }
                Ok(None) => break,
                Err(_) => return (found, false),
            }
        }
    }
    (found, true)
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

/// The same replies whatever the pieces are in which they come; and each as it was sent.
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
            // A list that is empty opens no level.
            assert!(depth(value) <= 9, "{value:?}");
            if let Some(wire) = wire(value) {
                let again = read(&wire, piece, LISTING);
                assert_eq!(again.0.as_slice(), std::slice::from_ref(value));
            }
        }
    }
}

fn said<T>(answer: Result<T, Error>) -> Option<T> {
    answer
        .inspect_err(|error| assert_short(&error.to_string()))
        .ok()
}

/// Whatever is answered to whatever was asked.
fn answers(bytes: &[u8]) {
    let (values, _) = read(bytes, bytes.len(), LISTING);
    for value in values {
        answer(&value);
    }
}

fn answer(value: &Value) {
    said(acquired(value.clone()));
    said(released(value.clone()));
    said(renewed(value.clone()));
    said(checked(value.clone()));
    said(inspected(any_name(), value.clone()));
    said(history::parse(10, &any_name(), value.clone()));
    let _ = (
        Fields::new(value).get("ip"),
        known_replica(value),
        field(value, "mode"),
    );
    if let Value::Array(values) = value {
        let replicas: Vec<_> = values.iter().map(known_replica).collect();
        assert!(promotable_replicas(&[&replicas], 3).len() <= values.len());
    }
    if let Some(role) = Role::parse(value) {
        let replicas = Replicas::default();
        replicas.replace(role.addresses());
        for quorum in [Quorum::All, Quorum::AtLeast(2)] {
            let goal = replicas.goal(quorum, &Address::Unix("/".into()));
            let (reached, second) = (goal.is_reached(role.offset, &role), Duration::from_secs(1));
            let why = goal.in_words(1, second, Some(&role), Some(role.offset));
            assert!(reached || !why.is_empty());
        }
    }
    if let Value::Push { data, .. } = value {
        let message = data.last().map(lossy_text).unwrap_or_default();
        if let Some(grant) = Grant::parse(&message) {
            assert!(grant.lasting <= Duration::from_secs(60));
        }
    }
}

fn any_name() -> Name {
    "deploy".parse().expect("it is a name")
}

/// The locks, and the histories, that a stream of answers is taken for.
pub fn found(bytes: &[u8]) -> (Vec<Inspected>, Vec<LockHistory>) {
    let (values, _) = read(bytes, bytes.len(), LISTING);
    let locks = values
        .iter()
        .filter_map(|value| inspected(any_name(), value.clone()).ok())
        .map(|(lock, _)| lock);
    let histories = values.iter();
    let histories =
        histories.filter_map(|value| history::parse(1000, &any_name(), value.clone()).ok());
    (locks.collect(), histories.collect())
}

/// The answers to looking at locks, and at what is remembered of them.
pub fn listings() -> Vec<Vec<u8>> {
    replies().into_iter().take(2).collect()
}

// Errors

fn error_examples() -> Vec<Vec<u8>> {
    texts(&[
        "-ERR unknown command 'EVALSHA', with args beginning with: \r\n",
        "-NOPERM User me has no permissions to run the 'evalsha' command\r\n",
        "-ERR Error running script (call to f_0123456789012345678901234567890123456789): @user_script:12: @user_script: 12: NOPERM this user has no permissions to access one of the keys\r\n",
        "-ERR ACL failure in script: x script: f_01, on @user_script:12.\r\n",
        "-MOVED 3999 10.0.0.1:6381\r\n",
        "-ASK 3999 :6381\r\n",
        "-CLUSTERDOWN Hash slot not served\r\n",
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-upstream failure\r\n",
        "!30\r\nERR Connection refused by host\r\n\r\n",
        "-READONLY You can't write against a read only replica.\r\n",
    ])
}

fn errors(bytes: &[u8]) {
    let (values, _) = read(bytes, bytes.len(), LISTING);
    for part in [Part::Only, Part::Primary, Part::Sentinel, Part::Node] {
        let server = any_server(part);
        for value in &values {
            let Value::ServerError(error) = value else {
                continue;
            };
            let key: &[u8] = b"p:k\xff";
            assert_short(&from_server(error, &server, None, None).to_string());
            let known = from_server(error, &server, Some(key), Some(ACQUIRE.source));
            assert_short(&known.to_string());
            if let Some(redirect) = known.redirect() {
                assert_safe_line(&redirect.address(server.address()).to_string());
            }
        }
    }
}

pub fn any_server(part: Part) -> Server {
    let address = Address::Tcp {
        host: "h".into(),
        port: 7,
        tls: false,
    };
    let (login, origin) = (Login::default(), UrlOrigin::Option);
    let timeout = Duration::from_secs(1);
    Server::new(
        (address, part),
        (login, 0),
        origin,
        TlsFiles::default(),
        timeout,
        "p:",
    )
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
        r#"{"host":"","pid":4294967295,"url":null,"skew":500}"#,
    ])
}

fn entries(bytes: &[u8]) {
    if let Some(who) = Who::parse(bytes) {
        let written = who.to_json();
        assert!(written.len() <= 128 * 1024);
        // What was cut isn't cut again, and all else stays.
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
}

// What servers say of others

pub fn server_examples() -> Vec<Vec<u8>> {
    texts(&[
        "aa :7001@17001 myself,master - 0 0 1 connected 0-5460\nbb 10.0.0.2:7002@17002 master - 0 0 2 connected 5461-10922\ncc 10.0.0.3:7003@17003,redis-3,shard-id=1 slave aa 0 0 1 connected\ndd 10.0.0.4:7004@17004 slave,fail aa 0 0 1 connected\n",
        "# Replication\r\nrole:master\r\nredis_mode:cluster\r\nmaster_repl_offset:99\r\nslave0:ip=10.0.0.7,port=6379,state=online,offset=12,lag=0\r\nslave1:ip=::1,port=0,state=wait_bgsave,offset=99999,lag=-1\r\n",
        "3999 10.0.0.1:6381",
        "granted 1700000000000000 2 1700000000000 2000",
    ])
}

fn servers(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let at = Address::Tcp {
        host: "asked".into(),
        port: 1,
        tls: false,
    };
    let nodes = Nodes::parse(&text, &at);
    assert!(nodes.others.len() <= 16);
    for address in &nodes.others {
        assert_safe_line(&address.to_string());
    }
    assert!(nodes.replicas().len() <= 1000);
    if let Some(redirect) = Redirect::parse(&text) {
        assert_safe_line(&redirect.address(&at).to_string());
    }
    let _ = Grant::parse(&text);
}

// Certificates

/// A certificate as OpenSSL makes one, without its signature; and a file of it.
pub fn certificate_examples() -> Vec<Vec<u8>> {
    let der = |tag: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).unwrap_or(127);
        [&[tag, length], content].concat()
    };
    let validity = [der(0x17, b"700101000000Z"), der(0x18, b"20240229123456Z")].concat();
    let constraints = der(
        0x30,
        &[
            0x06, 0x03, 0x55, 0x1d, 0x13, 0x01, 0x01, 0xff, 0x04, 0x05, 0x30, 0x03, 0x01, 0x01,
            0xff,
        ],
    );
    let signed = [
        der(0xa0, &[2, 1, 2]),
        der(0x02, &[1]),
        der(0x30, &[]),
        der(0x30, &[]),
        der(0x30, &validity),
        der(0x30, &[]),
        der(0x30, &[]),
        der(0xa3, &der(0x30, &constraints)),
    ];
    let certificate = der(0x30, &der(0x30, &signed.concat()));
    let pem = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
    vec![
        certificate,
        pem.to_vec(),
        br#"DnsName("localhost")"#.to_vec(),
    ]
}

fn certificate(bytes: &[u8]) {
    let _ = (may_sign(bytes), PrivateKeyDer::from_pem_slice(bytes));
    for certificate in certificates_in(bytes).unwrap_or_default() {
        let _ = may_sign(&certificate);
        let _ = RootCertStore::empty().add(certificate);
    }
    let presented: Vec<String> = String::from_utf8_lossy(bytes)
        .lines()
        .map(str::to_owned)
        .collect();
    let _ = names(&presented);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::tests::cases;

    /// Any text, that of an attacker included.
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
                    once: None,
                    ttl,
                    skew,
                    instance,
                    ignores_freeze: false,
                    kill_after,
                    // Scripts write these, and nothing else does.
                    order: None,
                    asked: None,
                }
            },
        )
    }

    /// A number as scripts write it.
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
            let over = history::over(&any_name(), &bulk(&record)).unwrap();
            prop_assert_eq!((over.ended_ms, over.fence, &over.who), (Some(ended), fence, &who));
            prop_assert_eq!(over.outcome, super::super::HoldOutcome::Forced(Some(by)));
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
            user in any_text(12), password in any_text(20), port in 1..=u16::MAX, database: u32,
            host in prop::sample::select(vec!["h", "::1", "redis-1.example"]), tls: bool,
        ) {
            let address = Address::Tcp { host: host.into(), port, tls };
            let some = |text: String| (!text.is_empty()).then_some(text);
            let login = Login { username: some(user), password: some(password) };
            let mut url = Url { place: Place::Server(address), database: database.into(), login };
            prop_assert!(Url::parse(&printed(&url)).as_ref() == Ok(&url));
            url.login.password = Some(PASSWORD.into());
            assert_hides_password(&url);
        }
    }
}

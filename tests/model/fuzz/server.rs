//! A real redis-server whose clock is simulated: it stands still until it is set.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use redis::{Connection, Value};

use super::scripts::{self, Call, Hold, Key};
use crate::protocol::model::fake::deeds::keys_of;
use crate::protocol::model::support::lua::{KEYS, SCRIPTS};
use crate::protocol::model::support::{QUIET, SERVER, wait_until};

/// All that the server knows of the lock, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The server's clock, in milliseconds.
    pub now: i64,
    /// The keys that exist, and for how many more milliseconds (-1: for ever).
    pub keys: BTreeMap<Key, i64>,
    /// What stands in the lock.
    pub mark: Option<String>,
    pub state: BTreeMap<String, String>,
    pub meta: BTreeMap<String, String>,
    /// Members of a group, and when their leases end.
    pub holders: BTreeMap<String, i64>,
    /// Who waits, in the order of their turns, with their scores.
    pub queue: Vec<(String, i64)>,
    pub waiters: BTreeMap<String, String>,
    pub history: Vec<String>,
    pub notices: BTreeMap<String, String>,
}

impl View {
    /// Who holds the lock, and when the lease of each ends by the server's clock.
    pub fn held(&self) -> BTreeMap<String, i64> {
        let Some(mark) = &self.mark else {
            return BTreeMap::new();
        };
        let left = self.keys.get(&Key::Lock).copied().unwrap_or(-1);
        // A key is there until its last millisecond is over.
        let end = if left < 0 {
            i64::MAX
        } else {
            self.now + left + 1
        };
        if scripts::is_group(mark) {
            self.holders
                .iter()
                .filter(|&(_, &member)| member > self.now)
                .map(|(token, &member)| (token.clone(), member.min(end)))
                .collect()
        } else if scripts::is_frozen_mark(mark) {
            BTreeMap::new()
        } else {
            BTreeMap::from([(mark.clone(), end)])
        }
    }

    /// What `meta` says of a hold, where it can be read.
    pub fn hold(&self, token: &str) -> Option<Hold> {
        scripts::hold(self.meta.get(token)?)
    }

    /// Whether no new client is admitted.
    pub fn is_frozen(&self) -> bool {
        let until = self.state.get("frozen").and_then(|entry| {
            let first = entry.split(' ').next()?;
            first.parse::<i64>().ok()
        });
        until.is_some_and(|until| until > self.now)
    }

    pub fn waits(&self, token: &str) -> bool {
        self.queue.iter().any(|(waiter, _)| waiter == token)
    }
}

/// A server whose time is simulated.
pub trait Simulated {
    /// Sets the clock, in microseconds since 1970.
    fn set_clock(&mut self, to: i64);
    /// Forgets everything, subscriptions included.
    fn clear(&mut self);
    /// Runs a script or a command.
    fn call(&mut self, call: &Call) -> Called;
    /// The keys that there are.
    fn size(&mut self) -> Vec<String>;
    fn listen(&mut self, channel: &str);
    fn stop_listening(&mut self, channel: &str);
}

/// What a script or a command answers, what there is afterwards, and what was published meanwhile, with the
/// channels.
pub type Called = (Result<Value, String>, View, Vec<(String, String)>);

/// Reads the view in one go, and marks where the messages end that were published before.
const VIEW: &str = "
redis.call('PUBLISH', 'view', '')
local expiries = {}
for n, key in ipairs(KEYS) do expiries[n] = redis.call('PTTL', key) end
local time = redis.call('TIME')
return {string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), expiries,
    redis.call('GET', KEYS[1]), redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
    redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES'), redis.call('ZRANGE', KEYS[5], 0, -1, 'WITHSCORES'),
    redis.call('HGETALL', KEYS[6]), redis.call('LRANGE', KEYS[7], 0, -1), redis.call('HGETALL', KEYS[10])}";

/// The server, and two connections to it: one for all that is asked, one for all that is published.
pub struct Server {
    dir: tempfile::TempDir,
    _process: Process,
    clock: File,
    calls: Connection,
    ear: Connection,
    listens: BTreeSet<String>,
    hashes: BTreeMap<&'static str, String>,
    view: String,
}

impl Server {
    pub fn start() -> Self {
        Self::with("")
    }

    /// A server with this Lua code in front of each script.
    pub fn with(code: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let shim = dir.path().join("clock.so");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/model/fuzz/clock.c");
        let compiled = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(&shim)
            .arg(source)
            .output()
            .expect("a C compiler is installed");
        assert!(compiled.status.success(), "{compiled:?}");
        let path = dir.path().join("clock");
        fs::write(&path, START.to_ne_bytes()).unwrap();
        let clock = File::options().write(true).open(&path).unwrap();
        let socket = dir.path().join("redis.sock");
        let log = File::create(dir.path().join("redis.log")).unwrap();
        let process = SERVER
            .command()
            .args(QUIET)
            .args(["--port", "0"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(dir.path())
            // A key expires when a client looks at it, and not at a moment of the server's choice.
            .args(SERVER.known(&["--enable-debug-command".into(), "yes".into()]))
            .env("LD_PRELOAD", &shim)
            .env("SIMULATED_CLOCK", &path)
            // Lua compares texts by their bytes.
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("redis-server is installed");
        let mut process = Process(process);
        wait_until("redis-server accepts connections", || {
            let ended = process.0.try_wait().unwrap();
            let log = || fs::read_to_string(dir.path().join("redis.log")).unwrap_or_default();
            assert!(ended.is_none(), "redis-server ended: {}", log());
            UnixStream::connect(&socket).is_ok()
        });
        let client = redis::Client::open(format!("unix://{}", socket.display())).unwrap();
        let mut calls = client.get_connection().unwrap();
        let mut ear = client.get_connection().unwrap();
        // Tells of a call that isn't there in other versions by a failure of its own.
        ask(&mut calls, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]).unwrap();
        let mut load = |source: &str| match ask(&mut calls, &["SCRIPT", "LOAD", source]).unwrap() {
            Value::BulkString(hash) => String::from_utf8(hash).unwrap(),
            other => panic!("SCRIPT LOAD answers {other:?}"),
        };
        let hashes = SCRIPTS.map(|(name, source)| (name, load(&format!("{code}{source}"))));
        let view = load(VIEW);
        ask(&mut ear, &["SUBSCRIBE", "view"]).unwrap();
        let mut server = Self {
            dir,
            _process: process,
            clock,
            calls,
            ear,
            listens: BTreeSet::new(),
            hashes: hashes.into(),
            view,
        };
        server.assert_follows_its_clock();
        server
    }

    /// Expiry and TIME go with the simulated clock, forwards and backwards.
    fn assert_follows_its_clock(&mut self) {
        let mut left = |at: i64| {
            self.set_clock(START + at * 1_000);
            ask(&mut self.calls, &["PTTL", "clock"]).unwrap()
        };
        assert_eq!(left(0), Value::Int(-2));
        ask(&mut self.calls, &["SET", "clock", "", "PX", "1000"]).unwrap();
        let mut left = |at: i64| {
            self.set_clock(START + at * 1_000);
            ask(&mut self.calls, &["PTTL", "clock"]).unwrap()
        };
        assert_eq!(left(400), Value::Int(600));
        assert_eq!(left(-3_600_000), Value::Int(3_601_000));
        assert_eq!(left(1_001), Value::Int(-2));
    }

    /// One more connection.
    pub fn connect(&self) -> Connection {
        let socket = self.dir.path().join("redis.sock");
        let client = redis::Client::open(format!("unix://{}", socket.display())).unwrap();
        client.get_connection().unwrap()
    }

    /// Changes what is listened to, and waits until the server knows.
    fn tell_ear(&mut self, what: &str, channel: &str) {
        ask(&mut self.ear, &[what, channel]).unwrap();
    }

    fn messages(&mut self) -> Vec<(String, String)> {
        let mut messages = Vec::new();
        loop {
            let words = texts(&self.ear.recv_response().unwrap());
            match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["message", "view", _] => return messages,
                ["message", channel, text] => messages.push((channel.into(), text.into())),
                _ => panic!("the server says {words:?}"),
            }
        }
    }
}

impl Simulated for Server {
    fn clear(&mut self) {
        ask(&mut self.calls, &["FLUSHALL"]).unwrap();
        for channel in std::mem::take(&mut self.listens) {
            self.tell_ear("UNSUBSCRIBE", &channel);
        }
    }

    fn set_clock(&mut self, to: i64) {
        self.clock.write_all_at(&to.to_ne_bytes(), 0).unwrap();
    }

    fn call(&mut self, call: &Call) -> Called {
        let mut first = redis::Cmd::new();
        match call.script {
            Some(script) => {
                first.arg("EVALSHA").arg(&self.hashes[script]);
                let keys = keys_of(script, &KEYS);
                first.arg(keys.len()).arg(keys).arg(&call.args);
            }
            None => {
                first.arg(&call.args);
            }
        }
        let mut second = redis::cmd("EVALSHA");
        second.arg(&self.view);
        second.arg(KEYS.len()).arg(&KEYS[..]);
        let mut bytes = first.get_packed_command();
        bytes.extend(second.get_packed_command());
        self.calls.send_packed_command(&bytes).unwrap();
        let answer = answer(&mut self.calls);
        let view = self::answer(&mut self.calls).unwrap();
        (answer, read_view(&view), self.messages())
    }

    fn size(&mut self) -> Vec<String> {
        texts(&ask(&mut self.calls, &["KEYS", "*"]).unwrap())
    }

    fn listen(&mut self, channel: &str) {
        self.tell_ear("SUBSCRIBE", channel);
        self.listens.insert(channel.into());
    }

    fn stop_listening(&mut self, channel: &str) {
        self.tell_ear("UNSUBSCRIBE", channel);
        self.listens.remove(channel);
    }
}

/// A process that goes with the test, also when that ends before the server is ready.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// When every run begins: in the year 2020.
pub const START: i64 = 1_577_836_800_000_000;

fn ask(connection: &mut Connection, words: &[&str]) -> Result<Value, String> {
    let mut command = redis::Cmd::new();
    command.arg(words);
    connection
        .send_packed_command(&command.get_packed_command())
        .unwrap();
    answer(connection)
}

fn answer(connection: &mut Connection) -> Result<Value, String> {
    match connection.recv_response() {
        Ok(Value::ServerError(error)) => Err(format!("{error:?}")),
        Ok(value) => Ok(value),
        Err(error) => Err(error.to_string()),
    }
}

fn read_view(value: &Value) -> View {
    let Value::Array(fields) = value else {
        panic!("the view is {value:?}");
    };
    let [
        now,
        expiries,
        mark,
        state,
        meta,
        holders,
        queue,
        waiters,
        history,
        notices,
    ] = fields.as_slice()
    else {
        panic!("the view is {value:?}");
    };
    let keys = Key::ALL.into_iter().zip(numbers(expiries));
    let scores = |value| -> Vec<(String, i64)> {
        let pairs = pairs(value).into_iter();
        pairs
            .map(|(token, score)| (token, scripts::whole(&score)))
            .collect()
    };
    View {
        now: text(now).parse().unwrap(),
        keys: keys.filter(|&(_, left)| left != -2).collect(),
        mark: (*mark != Value::Nil).then(|| text(mark)),
        state: pairs(state).into_iter().collect(),
        meta: pairs(meta).into_iter().collect(),
        holders: scores(holders).into_iter().collect(),
        queue: scores(queue),
        waiters: pairs(waiters).into_iter().collect(),
        history: texts(history),
        notices: pairs(notices).into_iter().collect(),
    }
}

pub fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => String::new(),
    }
}

pub fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().map(text).collect(),
        _ => Vec::new(),
    }
}

fn numbers(value: &Value) -> Vec<i64> {
    let texts = texts(value);
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn pairs(value: &Value) -> Vec<(String, String)> {
    let texts = texts(value);
    let pairs = texts.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].clone(), pair[1].clone()))
        .collect()
}

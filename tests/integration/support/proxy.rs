//! A proxy in front of a server that fails exactly at the requests that a test chooses. A hook decides about each request and
//! its reply.
//!
//! Everything keeps its order. A delay applies to each direction, as on a long line: many requests may be under way at a time.
//! A network loses no bytes in the middle of a connection, so after a lost request or reply everything on that connection is
//! lost.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::lua::SCRIPTS;
use crate::support::{Redis, TIMEOUT, await_some, wait_until};

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its purpose: the name of a script, or the command in capitals. The script `acquire` is an `acquire` without a request
    /// for a place, an `enqueue` with one, and a `heartbeat` (or the confirmation of a grant) with a place. A release of a
    /// waiter is a release.
    pub operation: String,
    /// Number of earlier requests of this operation, over all connections.
    pub before: usize,
}

/// Treatment of a request and its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Pass,
    /// Loses the request and everything after it; the connection stays open.
    LoseRequest,
    /// Loses the reply and everything after it; the connection stays open. The server executes the request.
    LoseReply,
    /// Delays the request and everything after it.
    Stall(Duration),
    /// Delays the reply and everything after it. The server executes the request at once.
    StallReply(Duration),
    /// Closes the connection after this many bytes of the reply. The server executes the request.
    Cut(usize),
    /// Resets the connection instead of sending the request.
    Reset,
    /// Resets the connection instead of sending the reply. The server executes the request.
    ResetReply,
    /// Sends the reply twice.
    Twice,
    /// Replaces each number of three digits or more in the reply.
    Numbers(&'static str),
    /// Sends this reply instead of the request.
    Lie(&'static [u8]),
    /// Sends a reply instead of the request: first the first bytes, then the second ones over and over, up to this many in all.
    /// Passes nothing after that.
    Endless(&'static [u8], &'static [u8], usize),
    /// Sends messages without an end after the reply.
    ReplyAndFlood,
    /// Sends these bytes instead of the request, one after the other, over and over. Passes nothing after that.
    Drip(&'static [u8]),
}

/// A RESP3 message, which a server may send at any time.
pub const MESSAGE: &[u8] = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n";

/// Work of one thread of a connection.
type Work = Box<dyn FnOnce(&Shared, &Connection) + Send>;

/// Decides the treatment of a request.
type Hook = Box<dyn FnMut(&Request) -> Action + Send>;

/// Changes a reply.
type Rewrite = Box<dyn Fn(&mut Vec<u8>) + Send + Sync>;

/// A proxy in front of a server, gone when dropped.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    server: u16,
    hook: Mutex<Hook>,
    rewrite: Rewrite,
    seen: Mutex<Vec<String>>,
    /// Operations with a reply, and the lengths of the replies.
    answered: Mutex<Vec<(String, usize)>>,
    /// Last operations of the connections that clients have closed, and whether they closed with a reset.
    left: Mutex<Vec<(String, bool)>>,
    /// Bytes of an endless reply that were passed on.
    streamed: AtomicUsize,
    /// Delay of one direction, in milliseconds.
    delay: AtomicU64,
    gone: AtomicBool,
    ended: AtomicBool,
    connections: Mutex<Vec<Arc<Connection>>>,
}

/// Connection of a client, and the matching connection to the server.
struct Connection {
    near: TcpStream,
    far: TcpStream,
    /// True if nothing passes any more to the server, or to the client.
    up_is_dead: AtomicBool,
    down_is_dead: AtomicBool,
    /// Treatments of the outstanding replies.
    pending: Mutex<VecDeque<(Action, String)>>,
}

/// An item under way in one direction.
enum Passing {
    /// Bytes, with the operation that they answer, if any.
    Bytes(Vec<u8>, Option<String>),
    /// First bytes, then others over and over, up to this many in all.
    Endless(&'static [u8], &'static [u8], usize),
    /// These bytes one at a time, over and over.
    Drip(&'static [u8]),
    /// The end of the connection.
    Close,
    Reset,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Starts a proxy that lets everything pass.
    pub fn new(redis: &Redis) -> Self {
        Self::with(redis, |_| Action::Pass)
    }

    /// Starts a proxy with this hook for each request.
    pub fn with(redis: &Redis, hook: impl FnMut(&Request) -> Action + Send + 'static) -> Self {
        Self::rewriting(redis.port, hook, |_| ())
    }

    /// Like `with`, and changes the replies of the server at this port.
    pub fn rewriting(
        server: u16,
        hook: impl FnMut(&Request) -> Action + Send + 'static,
        rewrite: impl Fn(&mut Vec<u8>) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server,
            hook: Mutex::new(Box::new(hook)),
            rewrite: Box::new(rewrite),
            seen: Mutex::default(),
            answered: Mutex::default(),
            left: Mutex::default(),
            streamed: AtomicUsize::new(0),
            delay: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.accept(&listener))
        };
        Self {
            port,
            shared,
            accepting: Some(accepting),
        }
    }

    /// Starts a proxy with this treatment of one request: the one of this operation with `before` earlier ones.
    pub fn once(redis: &Redis, operation: &'static str, before: usize, action: Action) -> Self {
        Self::with(redis, move |request| {
            let is_it = request.operation == operation && request.before == before;
            if is_it { action } else { Action::Pass }
        })
    }

    /// Starts a proxy like a long line, with this time for a request and its reply together.
    pub fn with_round_trip(redis: &Redis, round_trip: Duration) -> Self {
        let proxy = Self::new(redis);
        proxy.set_round_trip(round_trip);
        proxy
    }

    /// Sets the time for a request and its reply together.
    pub fn set_round_trip(&self, round_trip: Duration) {
        let one_way = u64::try_from(round_trip.as_millis() / 2).unwrap();
        self.shared.delay.store(one_way, Ordering::Relaxed);
    }

    /// Replaces the hook.
    pub fn set_hook(&self, hook: impl FnMut(&Request) -> Action + Send + 'static) {
        *lock(&self.shared.hook) = Box::new(hook);
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects through the proxy.
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).unwrap()
    }

    /// Returns all operations so far, in order.
    pub fn seen(&self) -> Vec<String> {
        lock(&self.shared.seen).clone()
    }

    /// Returns the number of requests of an operation.
    pub fn count(&self, operation: &str) -> usize {
        lock(&self.shared.seen)
            .iter()
            .filter(|seen| *seen == operation)
            .count()
    }

    /// Returns the number of replies to an operation.
    pub fn answered(&self, operation: &str) -> usize {
        lock(&self.shared.answered)
            .iter()
            .filter(|(answered, _)| answered == operation)
            .count()
    }

    /// Returns the length of the longest reply to an operation, in bytes.
    pub fn longest_answer(&self, operation: &str) -> usize {
        let answered = lock(&self.shared.answered);
        let of = answered.iter().filter(|(of, _)| of == operation);
        of.map(|(_, length)| *length).max().unwrap_or(0)
    }

    /// Returns the last operation of the first connection that its client has closed, and whether it closed with a reset.
    #[track_caller]
    pub fn first_left(&self) -> (String, bool) {
        await_some("a client leaves", || {
            lock(&self.shared.left).first().cloned()
        })
    }

    /// Waits until a client has read much of an endless reply.
    #[track_caller]
    pub fn await_flood(&self) {
        wait_until("much of it was read", || {
            self.shared.streamed.load(Ordering::Relaxed) > 256 * 1024
        });
    }

    /// Resets all connections, and all new ones from now on, as if there were no server.
    pub fn vanish(&self) {
        self.shared.vanish();
    }

    /// Returns a function by which a hook can call `vanish`.
    pub fn vanishing(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.vanish()
    }

    /// Returns a function by which a hook can reset all new connections from now on.
    pub fn refusing(&self) -> impl Fn() + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.gone.store(true, Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for connection in lock(&self.shared.connections).drain(..) {
            connection.close();
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proxy that saw {}", self.seen().join(" "))
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for near in listener.incoming().flatten() {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let far = TcpStream::connect(("127.0.0.1", self.server));
            let (false, Ok(far)) = (self.gone.load(Ordering::Relaxed), far) else {
                reset(&near);
                continue;
            };
            let _ = near.set_nodelay(true);
            let _ = far.set_nodelay(true);
            let connection = Arc::new(Connection {
                near,
                far,
                up_is_dead: AtomicBool::new(false),
                down_is_dead: AtomicBool::new(false),
                pending: Mutex::default(),
            });
            let mut connections = lock(&self.connections);
            // Connections without a thread have ended.
            connections.retain(|connection| Arc::strong_count(connection) > 1);
            connections.push(Arc::clone(&connection));
            // The server may have vanished meanwhile.
            if self.gone.load(Ordering::Relaxed) {
                connection.reset();
            }
            drop(connections);
            self.serve(&connection);
        }
    }

    /// Starts the threads of a connection: a reader and a writer for each direction.
    fn serve(self: &Arc<Self>, connection: &Arc<Connection>) {
        let (up, to_server) = channel();
        let (down, to_client) = channel();
        let each: [Work; 4] = [
            {
                let down = down.clone();
                Box::new(move |shared, connection| {
                    shared.read_requests(connection, &up, &down);
                })
            },
            Box::new(move |shared, connection| {
                shared.pass_on(connection, &connection.far, to_server);
            }),
            Box::new(move |shared, connection| shared.read_replies(connection, &down)),
            Box::new(move |shared, connection| {
                shared.pass_on(connection, &connection.near, to_client);
            }),
        ];
        for work in each {
            let (shared, connection) = (Arc::clone(self), Arc::clone(connection));
            std::thread::spawn(move || work(&shared, &connection));
        }
    }

    fn vanish(&self) {
        self.gone.store(true, Ordering::Relaxed);
        for connection in lock(&self.connections).iter() {
            connection.reset();
        }
    }

    /// Returns the time at which an item that is here now arrives at the other side.
    fn arrival(&self) -> Instant {
        Instant::now() + self.one_way()
    }

    fn one_way(&self) -> Duration {
        Duration::from_millis(self.delay.load(Ordering::Relaxed))
    }

    fn read_requests(
        &self,
        connection: &Connection,
        up: &Sender<(Instant, Passing)>,
        down: &Sender<(Instant, Passing)>,
    ) {
        let mut unread = Vec::new();
        let mut behind = Instant::now();
        let mut last = String::new();
        let end = loop {
            match read_more(&connection.near, &mut unread) {
                Ok(true) => {}
                end => break end,
            }
            while let Some(length) = length(&unread) {
                let bytes: Vec<u8> = unread.drain(..length).collect();
                let request = self.request(&bytes);
                if connection.up_is_dead.load(Ordering::Relaxed) {
                    continue;
                }
                last.clone_from(&request.operation);
                let action = lock(&self.hook)(&request);
                let mut arrival = self.arrival();
                if let Some(lie) = lie(action) {
                    if !matches!(action, Action::Lie(_)) {
                        connection.die();
                    }
                    let _ = down.send((arrival + self.one_way(), lie));
                    continue;
                }
                match action {
                    Action::LoseRequest => {
                        connection.up_is_dead.store(true, Ordering::Relaxed);
                        // Earlier requests still get their replies.
                        let mut pending = lock(&connection.pending);
                        if pending.is_empty() {
                            connection.die();
                        }
                        pending.push_back((action, request.operation));
                        continue;
                    }
                    Action::Reset => {
                        connection.die();
                        // The reset takes one direction's time to reach the client.
                        let _ = down.send((arrival + self.one_way(), Passing::Reset));
                        continue;
                    }
                    Action::Stall(time) => arrival += time,
                    Action::LoseReply => {
                        connection.up_is_dead.store(true, Ordering::Relaxed);
                    }
                    _ => {}
                }
                behind = behind.max(arrival);
                lock(&connection.pending).push_back((action, request.operation));
                let _ = up.send((behind, Passing::Bytes(bytes, None)));
            }
        };
        lock(&self.left).push((last, end.is_err()));
        // The server doesn't notice the end of a silent connection.
        if connection.up_is_dead.load(Ordering::Relaxed) {
            return;
        }
        if end.is_err() {
            // A reset drops everything under way.
            connection.reset();
        }
        let _ = up.send((self.arrival().max(behind), Passing::Close));
    }

    fn read_replies(&self, connection: &Connection, down: &Sender<(Instant, Passing)>) {
        let mut unread = Vec::new();
        let mut behind = Instant::now();
        while matches!(read_more(&connection.far, &mut unread), Ok(true)) {
            while let Some(length) = length(&unread) {
                let mut bytes: Vec<u8> = unread.drain(..length).collect();
                let mut last = false;
                let (action, operation) = if is_message(&bytes) {
                    (Action::Pass, None)
                } else {
                    let mut pending = lock(&connection.pending);
                    let next = pending.pop_front();
                    let ends = |(action, _): &(Action, String)| *action == Action::LoseRequest;
                    last = pending.front().is_some_and(ends);
                    next.map_or((Action::Pass, None), |(action, of)| (action, Some(of)))
                };
                if connection.down_is_dead.load(Ordering::Relaxed) {
                    continue;
                }
                (self.rewrite)(&mut bytes);
                let mut arrival = self.arrival();
                let mut after = None;
                match action {
                    Action::StallReply(time) => arrival += time,
                    Action::Twice => bytes.extend_from_within(..),
                    Action::Numbers(other) => replace_numbers(&mut bytes, other),
                    Action::ReplyAndFlood => {
                        connection.die();
                        after = Some(Passing::Endless(b"", MESSAGE, usize::MAX));
                    }
                    Action::LoseReply => {
                        connection.die();
                        continue;
                    }
                    Action::Cut(at) => {
                        connection.die();
                        bytes.truncate(at);
                        after = Some(Passing::Close);
                    }
                    Action::ResetReply => {
                        connection.die();
                        bytes.clear();
                        after = Some(Passing::Reset);
                    }
                    _ => {}
                }
                if last {
                    connection.die();
                }
                behind = behind.max(arrival);
                let _ = down.send((behind, Passing::Bytes(bytes, operation)));
                if let Some(after) = after {
                    let _ = down.send((behind, after));
                }
            }
        }
        if !connection.down_is_dead.load(Ordering::Relaxed) {
            let _ = down.send((self.arrival().max(behind), Passing::Close));
        }
    }

    /// Writes each item under way when it arrives.
    fn pass_on(
        &self,
        connection: &Connection,
        mut to: &TcpStream,
        passing: Receiver<(Instant, Passing)>,
    ) {
        for (arrival, passing) in passing {
            std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
            match passing {
                Passing::Bytes(bytes, answers) => {
                    let written = to.write_all(&bytes);
                    let answers = answers.filter(|_| written.is_ok());
                    lock(&self.answered).extend(answers.map(|of| (of, bytes.len())));
                }
                Passing::Endless(first, again, most) => {
                    let many = again.repeat((64 * 1024 / again.len()).max(1));
                    let mut is_read = to.write_all(first).is_ok();
                    let mut written = 0;
                    while is_read && written < most {
                        is_read = to.write_all(&many).is_ok();
                        written += many.len();
                        self.streamed.store(written, Ordering::Relaxed);
                    }
                }
                Passing::Drip(bytes) => {
                    #[allow(clippy::maybe_infinite_iter)] // The connection ends it.
                    bytes.iter().cycle().all(|byte| {
                        std::thread::sleep(Duration::from_millis(20));
                        to.write_all(&[*byte]).is_ok()
                    });
                }
                Passing::Close => {
                    let _ = to.shutdown(Shutdown::Write);
                }
                Passing::Reset => connection.reset(),
            }
        }
    }

    fn request(&self, bytes: &[u8]) -> Request {
        let operation = operation(&words(bytes));
        let mut seen = lock(&self.seen);
        let before = seen.iter().filter(|seen| **seen == operation).count();
        seen.push(operation.clone());
        Request { operation, before }
    }
}

impl Connection {
    /// Stops passing anything.
    fn die(&self) {
        self.up_is_dead.store(true, Ordering::Relaxed);
        self.down_is_dead.store(true, Ordering::Relaxed);
    }

    fn reset(&self) {
        self.die();
        reset(&self.near);
        let _ = self.far.shutdown(Shutdown::Both);
    }

    fn close(&self) {
        let _ = self.near.shutdown(Shutdown::Both);
        let _ = self.far.shutdown(Shutdown::Both);
    }
}

/// Returns the forged reply to a request that never arrives.
fn lie(action: Action) -> Option<Passing> {
    match action {
        Action::Lie(answer) => Some(Passing::Bytes(answer.to_vec(), None)),
        Action::Endless(first, again, most) => Some(Passing::Endless(first, again, most)),
        Action::Drip(bytes) => Some(Passing::Drip(bytes)),
        _ => None,
    }
}

fn replace_numbers(answer: &mut Vec<u8>, other: &str) {
    let text = String::from_utf8_lossy(answer);
    let lines = text.split("\r\n").map(|line| match line.strip_prefix(':') {
        Some(number) if number.len() >= 3 => format!(":{other}"),
        _ => line.to_owned(),
    });
    *answer = lines.collect::<Vec<_>>().join("\r\n").into_bytes();
}

/// Ends a connection with a reset, even if another process has it open too.
pub fn reset(stream: &TcpStream) {
    // SAFETY: an address of no family is all zeros, connecting to it dissolves the connection, and the socket is open while
    // `stream` lives.
    unsafe {
        let mut nowhere: libc::sockaddr = std::mem::zeroed();
        nowhere.sa_family = 0;
        let length = u32::try_from(size_of::<libc::sockaddr>()).unwrap();
        libc::connect(stream.as_raw_fd(), &raw const nowhere, length);
    }
}

/// Reads more bytes. Returns false at the end.
fn read_more(mut from: &TcpStream, unread: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; 16384];
    let read = from.read(&mut bytes)?;
    unread.extend_from_slice(&bytes[..read]);
    Ok(read > 0)
}

/// Returns the length of the first value, if it is complete.
fn length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let after = end + 2;
    let number = std::str::from_utf8(&bytes[1..end]).ok()?.parse::<i64>();
    let count = number.ok().and_then(|number| usize::try_from(number).ok());
    let parts = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let whole = count.map_or(after, |count| after + count + 2);
            return (bytes.len() >= whole).then_some(whole);
        }
        b'*' | b'~' | b'>' => count.unwrap_or(0),
        b'%' => 2 * count.unwrap_or(0),
        _ => return Some(after),
    };
    (0..parts).try_fold(after, |at, _| Some(at + length(bytes.get(at..)?)?))
}

/// Returns true if this is a pushed message instead of a reply; the confirmation of a subscription is a reply.
fn is_message(reply: &[u8]) -> bool {
    let confirms = || reply.windows(11).any(|part| part == b"$9\r\nsubscri");
    reply[0] == b'>' && !confirms()
}

/// Returns the words of a request; a plain line is one word.
fn words(bytes: &[u8]) -> Vec<Vec<u8>> {
    if bytes[0] != b'*' {
        return vec![bytes.trim_ascii().to_vec()];
    }
    let request = redis::parse_redis_value(bytes).unwrap();
    redis::from_redis_value(request).unwrap()
}

/// Returns the names of the scripts by their hashes.
pub fn hashes() -> &'static HashMap<String, &'static str> {
    static HASHES: std::sync::OnceLock<HashMap<String, &'static str>> = std::sync::OnceLock::new();
    HASHES.get_or_init(|| {
        let hash = |source: &str| redis::Script::new(source).get_hash().to_owned();
        let each = SCRIPTS.into_iter();
        each.map(|(name, source)| (hash(source), name)).collect()
    })
}

/// Loads all scripts into the server, so that each operation is one request.
pub fn load_scripts(redis: &Redis) {
    for (name, source) in SCRIPTS {
        let hash = redis.cli(&["SCRIPT", "LOAD", source]);
        assert_eq!(hashes().get(&hash), Some(&name));
    }
}

/// Returns the purpose of a request.
fn operation(words: &[Vec<u8>]) -> String {
    let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
    let command = words.first().map(text).unwrap_or_default().to_uppercase();
    let source = words.get(1).map(text).unwrap_or_default();
    let script = match command.as_str() {
        "EVALSHA" => hashes().get(&source).copied(),
        "EVAL" => {
            let each = SCRIPTS.into_iter();
            let mut named = each.filter(|(_, whole)| *whole == source);
            named.next().map(|(name, _)| name)
        }
        _ => None,
    };
    let Some(script) = script else {
        return command;
    };
    if script != "acquire" {
        // A short script and the whole one have the same purpose. `take` differs: it does nothing before the first acquire of a
        // day.
        return match script {
            "prolong" => "renew",
            "free" => "release",
            other => other,
        }
        .to_owned();
    }
    // ARGV 8 requests a place, and ARGV 9 is the place's number (acquire.lua). The number of keys and the keys come before.
    let keys: usize = words.get(2).map(text).unwrap_or_default().parse().unwrap();
    let argument = |number: usize| words.get(2 + keys + number).map_or(0, Vec::len);
    match (argument(8), argument(9)) {
        (0, _) => "acquire",
        (_, 0) => "enqueue",
        _ => "heartbeat",
    }
    .to_owned()
}

#[test]
fn a_request_passes_late_cut_or_not_at_all_as_the_hook_says() {
    let redis = Redis::start();
    let answer = |action: Action, expected: usize, patience: Duration| {
        let proxy = Proxy::with(&redis, move |request| match request.before {
            0 => Action::Pass,
            _ => action,
        });
        proxy.set_round_trip(Duration::from_millis(100));
        let mut client = proxy.connect();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let began = Instant::now();
        client.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        client.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
        let mut all = Vec::new();
        let mut end = Ok(true);
        while all.len() < expected && matches!(end, Ok(true)) {
            end = read_more(&client, &mut all);
        }
        if end.is_ok() {
            client.set_read_timeout(Some(patience)).unwrap();
            end = client.read_to_end(&mut all).map(|_| false);
        }
        let end = end.map_err(|error| error.kind());
        wait_until("both were seen", || proxy.seen() == ["PING", "PING"]);
        assert_eq!(proxy.count("PING"), 2);
        let all = String::from_utf8(all).unwrap();
        (all, end.map(drop), began.elapsed())
    };
    let (pong, twice) = ("+PONG\r\n", "+PONG\r\n+PONG\r\n");
    let silent = Err(io::ErrorKind::WouldBlock);
    let was_reset = Err(io::ErrorKind::ConnectionReset);
    let long = Duration::from_secs(60);
    for (action, expected, end) in [
        (Action::Pass, twice, silent),
        (Action::LoseRequest, pong, silent),
        (Action::LoseReply, pong, silent),
        (Action::Stall(long), pong, silent),
        (Action::StallReply(long), pong, silent),
        (Action::Cut(3), "+PONG\r\n+PO", Ok(())),
        (Action::Reset, pong, was_reset),
        (Action::ResetReply, pong, was_reset),
    ] {
        let patience = if end == silent {
            Duration::from_millis(500)
        } else {
            TIMEOUT
        };
        let (all, ended, took) = answer(action, expected.len(), patience);
        // A reset may discard bytes that were already read.
        if end == was_reset {
            assert!(pong.starts_with(&all), "{action:?}: {all:?}");
        } else {
            assert_eq!(all, expected, "{action:?}");
        }
        assert_eq!(ended, end, "{action:?}");
        assert!(took >= Duration::from_millis(100), "{action:?}: {took:?}");
    }
}

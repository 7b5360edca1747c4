//! A private Redis, and a server that never answers.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{QUIET, SERVER, Scratch, redlock, wait_until};

/// Removes rules for channels from a command before Redis 6.2, when each user had all of them.
fn known_rules<'a>(command: &[&'a str]) -> Vec<&'a str> {
    let is_acl = command.starts_with(&["ACL", "SETUSER"]) && SERVER.is_before(6, 2);
    let words = command.iter().copied();
    words
        .filter(|word| !is_acl || !(word.starts_with('&') || *word == "resetchannels"))
        .collect()
}

/// A private Redis on a Unix socket and a loopback port, gone when dropped.
pub struct Redis {
    pub dir: Scratch,
    pub port: u16,
    before: Vec<String>,
    options: Vec<String>,
    process: Child,
    is_left_empty: bool,
}

impl Redis {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a Redis on which no lock may leave a key at the end of the test.
    pub fn left_empty() -> Self {
        let mut redis = Self::start();
        redis.is_left_empty = true;
        redis
    }

    /// Starts a Redis with more options, as on its command line: `["--requirepass", "secret"]`.
    pub fn with(options: &[&str]) -> Self {
        Self::under(&[], options)
    }

    /// Like `with`, started by a command that becomes the server: `["env", "LD_PRELOAD=x.so"]`.
    pub fn under(before: &[&str], options: &[&str]) -> Self {
        let is_old_node = options.contains(&"--cluster-enabled") && SERVER.is_before(7, 0);
        // Leaves room for the port of the bus.
        let below = if is_old_node { 10_000 } else { 0 };
        let before: Vec<String> = before.iter().map(ToString::to_string).collect();
        Self::at(|| free_port() - below, &before, options)
    }

    /// Like `under`, at a port that this function finds.
    pub fn at(port: impl Fn() -> u16, before: &[String], options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        loop {
            let dir = Scratch::new();
            let port = port();
            let process = launch(before, &dir, port, &options);
            let mut redis = Self {
                dir,
                port,
                before: before.to_vec(),
                options: options.clone(),
                process,
                is_left_empty: false,
            };
            if redis.comes_up() {
                return redis;
            }
            // Another server of a parallel test got the port first; anything else is an error.
            let log = fs::read_to_string(redis.dir.path().join("redis.log")).unwrap_or_default();
            assert!(
                log.contains("Address already in use"),
                "redis-server ended: {log}"
            );
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Returns the address at which it listens.
    pub fn host(&self) -> &str {
        let mut options = self.options.windows(2);
        let bind = options.find(|pair| pair[0] == "--bind");
        bind.map_or("127.0.0.1", |pair| &pair[1])
    }

    /// Returns the URL of the Unix socket.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn tcp_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn cli(&self, command: &[&str]) -> String {
        cli(&self.socket(), command)
    }

    /// Returns true if this many replicas receive new writes. The server includes a replica, and sends it anything, only some
    /// time after the replica itself has all the data.
    pub fn is_followed_by(&self, replicas: u32) -> bool {
        let publish = &["PUBLISH", "anything", ""][..];
        let wait = ["WAIT", &replicas.to_string(), "100"];
        let confirmed = exchange(&self.socket(), &[publish, &wait]);
        matches!(confirmed, Ok(redis::Value::Int(number)) if number >= replicas.into())
    }

    /// Lets a node of a cluster own these hash slots.
    pub fn add_slots(&self, slots: std::ops::Range<u32>) {
        let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
        let mut command = vec!["CLUSTER", "ADDSLOTS"];
        command.extend(slots.iter().map(String::as_str));
        assert_eq!(self.cli(&command), "OK");
    }

    /// Returns all keys, sorted, except those that outlive a lock: the history, the runs that ended without the lock, and the
    /// index of names.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self
            .cli(&["KEYS", "*"])
            .lines()
            .filter(|line| !line.is_empty())
            .filter(|key| {
                let kept = ["}:history", "}:skips", "}:index"];
                !kept.iter().any(|end| key.ends_with(end))
            })
            .map(str::to_owned)
            .collect();
        keys.sort();
        keys
    }

    /// Returns the pids of the waiters for a lock, in the order of their turns.
    pub fn queue(&self, name: &str) -> Vec<i32> {
        let key = format!("{{redlock:{name}}}:queue");
        let tokens = self.cli(&["ZRANGE", &key, "0", "-1"]);
        tokens.lines().filter_map(pid_of).collect()
    }

    /// Returns the pid of a lock's exclusive holder, from its token.
    pub fn holder(&self, name: &str) -> Option<i32> {
        pid_of(&self.cli(&["GET", &format!("redlock:{name}")]))
    }

    /// Returns the number of calls of a command, from `INFO commandstats`.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.info("commandstats", &format!("cmdstat_{command}"));
        let calls = stats.strip_prefix("calls=");
        let calls = calls.and_then(|rest| rest.split(',').next()?.parse().ok());
        calls.unwrap_or(0)
    }

    /// Waits for this many calls of a command from now on.
    #[track_caller]
    pub fn await_calls(&self, command: &str, count: u64) {
        let expected = self.calls(command) + count;
        wait_until(&format!("{command} is called {count} times more"), || {
            self.calls(command) >= expected
        });
    }

    /// Waits for `count` renewals of a lock, which increase the rest of its lease. The first one may have begun before.
    #[track_caller]
    pub fn await_renewals(&self, name: &str, count: u32) {
        let key = format!("redlock:{name}");
        for _ in 0..count {
            let mut before = i64::MAX;
            wait_until("it is renewed", || {
                // A server that is restarting doesn't answer.
                let left = self.cli(&["PTTL", &key]).parse().unwrap_or(before);
                left > std::mem::replace(&mut before, left)
            });
        }
    }

    /// Returns the number of calls of scripts.
    pub fn scripts(&self) -> u64 {
        self.calls("evalsha") + self.calls("eval")
    }

    /// Returns true if the key of a lock exists.
    pub fn is_held(&self, name: &str) -> bool {
        self.cli(&["EXISTS", &format!("redlock:{name}")]) == "1"
    }

    /// Waits until these locks are free; their names are in a line.
    #[track_caller]
    pub fn await_free(&self, names: &str) {
        wait_until(&format!("{names} are free"), || {
            !names.split(' ').any(|name| self.is_held(name))
        });
    }

    /// Returns the number of connections that are notified of changes of keys.
    pub fn trackers(&self) -> u64 {
        let trackers = self.info("clients", "tracking_clients");
        trackers.parse().unwrap_or(0)
    }

    /// Returns the reply to a command; `None` without one, or if the reply is an error.
    pub fn ask(&self, command: &[&str]) -> Option<redis::Value> {
        ask(&self.socket(), command)
    }

    /// Returns a field of a section of `INFO`; empty without a reply, or without such a field.
    pub fn info(&self, section: &str, field: &str) -> String {
        field_of(self.ask(&["INFO", section]), field)
    }

    /// Suspends its process, like a stalled server; `resume` lets it go on.
    pub fn stall(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("redis-server lives");
    }

    /// Returns its pid.
    pub fn pid(&self) -> i32 {
        self.process.id().try_into().unwrap()
    }

    /// Kills it; the data is lost.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again after `kill`, empty, on the same socket and port.
    pub fn start_again(&mut self) {
        self.launch_again();
        assert!(self.comes_up(), "redis-server doesn't start again");
        wait_until("redis-server has loaded its data", || {
            !self.cli(&["PING"]).contains("LOADING")
        });
    }

    /// Like `start_again`, without waiting until it accepts connections.
    pub fn launch_again(&mut self) {
        self.process = launch(&self.before, &self.dir, self.port, &self.options);
    }

    /// Sets its role after the next start: the replica of another server, or a primary. A server that writes its role to its
    /// configuration does the same.
    pub fn remember_role(&mut self, primary: Option<(&str, u16)>) {
        let options = &mut self.options;
        if let Some(at) = options.iter().position(|option| option == "--replicaof") {
            options.drain(at..at + 3);
        }
        if let Some((host, port)) = primary {
            let words = ["--replicaof".to_owned(), host.to_owned(), port.to_string()];
            options.extend(words);
        }
    }

    /// Returns true if its process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits until it accepts connections. Returns false if it ends instead.
    fn comes_up(&mut self) -> bool {
        let socket = self.socket();
        let mut ended = false;
        wait_until("redis-server accepts connections", || {
            ended = self.has_ended();
            ended || UnixStream::connect(&socket).is_ok()
        });
        !ended
    }

    /// Returns a redlock that knows this server, with nothing of the tests' environment: no terminal, no configuration files,
    /// no REDLOCK variables.
    pub fn redlock(&self, arguments: &[&str]) -> Command {
        redlock_at(&self.url(), self.dir.path(), arguments)
    }

    /// Returns a run of a script, with its options and names in one line: `redis.run("--ttl 1s a", "true")`.
    pub fn run(&self, words: &str, script: &str) -> Command {
        let words = words.split_whitespace();
        let arguments: Vec<&str> = ["run"]
            .into_iter()
            .chain(words)
            .chain(["-c", script])
            .collect();
        self.redlock(&arguments)
    }

    /// Describes a lock's key for the message of a failing test.
    pub fn describe_key(&self, name: &str) -> String {
        let key = format!("redlock:{name}");
        format!(
            "key {key}: type {}, value {:?}, pttl {}; keys {:?}",
            self.cli(&["TYPE", &key]),
            self.cli(&["GET", &key]),
            self.cli(&["PTTL", &key]),
            self.keys()
        )
    }
}

/// Returns the pid in a token: `<random>:<host>:<pid>`.
pub fn pid_of(token: &str) -> Option<i32> {
    token.rsplit_once(':')?.1.parse().ok()
}

/// Returns true for the key of a notice, which expires by itself.
pub fn is_notice(key: &str) -> bool {
    let kinds = ["left", "removed", "cancelled", "forced", "released", "over"];
    kinds
        .iter()
        .any(|kind| key.contains(&format!("}}:{kind}:")))
}

/// Asserts that locks have left no keys except their state (and those that [`Redis::keys`] leaves out).
#[track_caller]
pub fn assert_nothing_left(redis: &Redis) {
    let left = leftovers(redis);
    assert!(left.is_empty(), "keys are left: {left:?}");
}

/// Returns the keys that locks have left, with the contents of hashes.
fn leftovers(redis: &Redis) -> Vec<String> {
    let mut left = redis.keys();
    left.retain(|key| !key.ends_with("}:state") && !is_notice(key));
    let contents = |key: String| key.clone() + " " + &redis.cli(&["HGETALL", &key]);
    left.into_iter().map(contents).collect()
}

impl Drop for Redis {
    fn drop(&mut self) {
        let is_checked = self.is_left_empty && !std::thread::panicking();
        let left = if is_checked {
            leftovers(self)
        } else {
            Vec::new()
        };
        self.kill();
        assert!(left.is_empty(), "keys are left at the end: {left:?}");
    }
}

/// Returns what redis-cli would print for a command, without the final newline; empty without a reply. A process for each
/// command would be a quarter of the work of all tests.
pub fn cli(socket: &Path, command: &[&str]) -> String {
    // A test that polls in a loop leaves the processor to the process that it waits for.
    std::thread::sleep(Duration::from_millis(1));
    let answer = exchange(socket, &[&known_rules(command)]);
    answer.map_or_else(
        |_| String::new(),
        |answer| printed(&answer).trim_end().to_owned(),
    )
}

/// Sends commands over one connection. Returns the reply to the last one.
fn exchange(socket: &Path, commands: &[&[&str]]) -> redis::RedisResult<redis::Value> {
    let mut stream = UnixStream::connect(socket)?;
    let bytes: Vec<u8> = commands.iter().copied().flat_map(packed).collect();
    stream.write_all(&bytes)?;
    let mut parser = redis::Parser::new();
    let mut answers = commands.iter().map(|_| parser.parse_value(&mut stream));
    answers.try_fold(redis::Value::Nil, |_, answer| answer)
}

/// Returns a redlock that knows the server at this URL, with nothing of the tests' environment.
pub fn redlock_at(url: &str, home: &Path, arguments: &[&str]) -> Command {
    let mut command = redlock(arguments);
    command.env("REDLOCK_URL", url).env("HOME", home);
    command
}

/// Returns the server's program, started by the words of `before`.
pub fn server_under(before: &[String]) -> Command {
    let Some((first, more)) = before.split_first() else {
        return SERVER.command();
    };
    let mut command = Command::new(first);
    command.args(more).arg(&SERVER.path);
    command
}

fn launch(before: &[String], dir: &Scratch, port: u16, options: &[String]) -> Child {
    let log = fs::File::create(dir.path().join("redis.log")).unwrap();
    let is_bound = options.iter().any(|option| option == "--bind");
    let bind = ["--bind", "127.0.0.1"];
    let mut command = server_under(before);
    command
        .args(QUIET)
        .args(["--port", &port.to_string()])
        .args(bind.iter().filter(|_| !is_bound))
        .arg("--unixsocket")
        .arg(dir.path().join("redis.sock"))
        .arg("--dir")
        .arg(dir.path())
        .args(SERVER.known(options))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("redis-server is installed")
}

/// Returns the reply of the server at a socket; `None` without one, or if the reply is an error.
pub fn ask(socket: &Path, command: &[&str]) -> Option<redis::Value> {
    ask_within(Duration::from_millis(500), socket, command)
}

/// Like `ask`, with a time limit for the reply.
pub fn ask_within(limit: Duration, socket: &Path, command: &[&str]) -> Option<redis::Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.write_all(&packed(command)).ok()?;
    let answer = redis::Parser::new().parse_value(&mut stream).ok()?;
    (!matches!(answer, redis::Value::ServerError(_))).then_some(answer)
}

/// Returns a field of a reply with one line for each field; empty without such a reply or field.
pub fn field_of(answer: Option<redis::Value>, field: &str) -> String {
    let Some(redis::Value::BulkString(text)) = answer else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let entry = fields.find(|(name, _)| *name == field);
    entry.map_or_else(String::new, |(_, value)| value.to_owned())
}

/// Encodes a command.
fn packed(command: &[&str]) -> Vec<u8> {
    let mut packed = redis::cmd(command[0]);
    packed.arg(&command[1..]);
    packed.get_packed_command()
}

/// Formats a reply like redis-cli in a pipe: one line for each element of an array.
fn printed(answer: &redis::Value) -> String {
    match answer {
        redis::Value::Nil => String::new(),
        redis::Value::Int(number) => number.to_string(),
        redis::Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
        redis::Value::SimpleString(text) => text.clone(),
        redis::Value::Okay => "OK".into(),
        redis::Value::Array(all) => all.iter().map(printed).collect::<Vec<_>>().join("\n"),
        redis::Value::ServerError(error) => {
            format!("{} {}", error.code(), error.details().unwrap_or_default())
        }
        other => panic!("no answer of RESP2: {other:?}"),
    }
}

/// A server that is so busy that it doesn't even accept connections.
pub struct UnresponsiveServer {
    listener: TcpListener,
    _full: Vec<std::net::TcpStream>,
}

impl UnresponsiveServer {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        socket2::SockRef::from(&listener).listen(0).unwrap();
        let connect = || {
            let patience = Duration::from_millis(100);
            std::net::TcpStream::connect_timeout(&address, patience).ok()
        };
        let full = std::iter::from_fn(connect).collect();
        Self {
            listener,
            _full: full,
        }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.listener.local_addr().unwrap())
    }
}

/// Returns a loopback port that was just free, and that the kernel gives to no outgoing connection. The port 10000 above it, on
/// which a cluster node listens for the others, is free as well.
pub fn free_port() -> u16 {
    const COUNT: u32 = 10_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        // Other runs of the tests start at another port.
        let first = std::process::id().wrapping_mul(7919) % COUNT;
        let next = (first + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = 12_000 + u16::try_from(next).unwrap();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

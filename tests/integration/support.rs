//! What every test needs: a private Redis, redlock as a process, and patience with a limit.
//!
//! Nothing here sleeps for a guessed time: a test meets its processes at a `ready` line, at the
//! end of a stream, or at a condition that it waits for.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fmt::{self, Debug};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long anything may take before a test calls it a failure.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// The binary under test.
pub const REDLOCK: &str = env!("CARGO_BIN_EXE_redlock");

/// Waits until a condition holds; fails the test with `what` when it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A private Redis on a Unix socket and a loopback port, gone when dropped.
pub struct Redis {
    pub dir: tempfile::TempDir,
    pub port: u16,
    options: Vec<String>,
    process: Child,
}

impl Redis {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A Redis with more options, as on its command line: `["--requirepass", "secret"]`.
    pub fn with(options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        loop {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let port = free_port();
            let process = launch(&dir, port, &options);
            let mut redis = Self {
                dir,
                port,
                options: options.clone(),
                process,
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

    /// The URL of the Unix socket.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn tcp_url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What redis-cli prints for a command, without the newline at its end.
    pub fn cli(&self, command: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(command)
            .output()
            .expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    /// All keys, sorted, but those of what is remembered when a lock is long over: the history and
    /// the names that have one.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self
            .cli(&["KEYS", "*"])
            .lines()
            .filter(|line| !line.is_empty())
            .filter(|key| !key.ends_with("}:history") && !key.ends_with("}:index"))
            .map(str::to_owned)
            .collect();
        keys.sort();
        keys
    }

    /// The pids of those who wait for a lock, in the order of their turns.
    pub fn queue(&self, name: &str) -> Vec<i32> {
        let key = format!("{{redlock:{name}}}:queue");
        let tokens = self.cli(&["ZRANGE", &key, "0", "-1"]);
        tokens.lines().filter_map(pid_of).collect()
    }

    /// The pid of the redlock whose token stands in the lock: of its exclusive holder.
    pub fn holder(&self, name: &str) -> Option<i32> {
        pid_of(&self.cli(&["GET", &format!("redlock:{name}")]))
    }

    /// How often a command was called, by `INFO commandstats`.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        stats
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))
            .and_then(|rest| rest.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    /// Stops its process, as a stalled server; `resume` lets it go on.
    pub fn stall(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal)
            .expect("redis-server lives");
    }

    /// Kills it; the data is lost.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again after `kill`, empty, on the same socket and port.
    pub fn start_again(&mut self) {
        self.process = launch(&self.dir, self.port, &self.options);
        assert!(self.comes_up(), "redis-server doesn't start again");
    }

    /// Waits until it accepts connections; false when it ends instead.
    fn comes_up(&mut self) -> bool {
        let socket = self.socket();
        let mut ended = false;
        wait_until("redis-server accepts connections", || {
            ended = self.process.try_wait().unwrap().is_some();
            ended || UnixStream::connect(&socket).is_ok()
        });
        !ended
    }

    /// A redlock that knows this server, and nothing of the environment the tests run in: no
    /// terminal, no configuration files, no REDLOCK variables.
    pub fn redlock(&self, arguments: &[&str]) -> Command {
        let mut command = redlock(arguments);
        command
            .env("REDLOCK_URL", self.url())
            .env("HOME", self.dir.path());
        command
    }

    /// What a failing test wants to know of a lock's key.
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

/// The pid in a token: `<random>:<host>:<pid>`.
pub fn pid_of(token: &str) -> Option<i32> {
    token.rsplit_once(':')?.1.parse().ok()
}

/// Nothing is left of any lock but its state (and what [`Redis::keys`] leaves out).
#[track_caller]
pub fn assert_nothing_left(redis: &Redis) {
    let mut left = redis.keys();
    left.retain(|key| !key.ends_with("}:state"));
    assert_eq!(left, [""; 0], "keys are left");
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(dir: &tempfile::TempDir, port: u16, options: &[String]) -> Child {
    let log = fs::File::create(dir.path().join("redis.log")).unwrap();
    Command::new("redis-server")
        .args([
            "--save",
            "",
            "--appendonly",
            "no",
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
        ])
        .arg("--unixsocket")
        .arg(dir.path().join("redis.sock"))
        .arg("--dir")
        .arg(dir.path())
        .args(options)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("redis-server is installed")
}

/// A server that is so busy that it doesn't even accept connections.
pub struct UnresponsiveServer {
    listener: TcpListener,
    _full: Vec<std::net::TcpStream>,
}

impl UnresponsiveServer {
    pub fn new() -> Self {
        use std::os::fd::AsRawFd;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // SAFETY: a system call on a socket that is ours.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
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

/// A loopback port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A redlock without any server, and with nothing of the environment the tests run in.
pub fn redlock(arguments: &[&str]) -> Command {
    let mut command = Command::new(REDLOCK);
    command.args(arguments).env_clear().env("PATH", path());
    without_terminal(&mut command);
    command
}

/// The search path with the binary's own directory in front, so that scripts may call `redlock`.
pub fn path() -> String {
    let own = PathBuf::from(REDLOCK);
    format!(
        "{}:{}",
        own.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    )
}

/// Gives a command a session of its own, so that it has no controlling terminal, and the signals
/// back that whoever started the tests in the background had ignored.
pub fn without_terminal(command: &mut Command) {
    // SAFETY: setsid and signal are system calls, allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            for signal in [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP] {
                nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl)?;
            }
            Ok(())
        });
    }
}

/// The status as a shell sees it: 128+N where signal N killed the process.
pub fn seen_by_a_shell(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

/// How a command ended, with all it said.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The status as a shell sees it: 128+N also where signal N killed redlock itself.
    pub fn code(&self) -> Option<i32> {
        seen_by_a_shell(self.status)
    }

    /// It ended with this number of its own accord; no signal killed it.
    #[track_caller]
    pub fn assert_exited(&self, code: i32) -> &Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// It was killed by this signal, and left no core file behind.
    #[track_caller]
    pub fn assert_killed_by(&self, signal: i32) -> &Self {
        assert_eq!(self.status.signal(), Some(signal), "{self:?}");
        assert!(!self.status.core_dumped(), "it left a core file: {self:?}");
        self
    }

    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.code(), Some(code), "{self:?}");
        self
    }

    /// The standard error contains this text.
    #[track_caller]
    pub fn assert_says(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:?}");
        self
    }

    /// Not a byte on standard error.
    #[track_caller]
    pub fn assert_silent(&self) -> &Self {
        assert_eq!(self.stderr, "", "{self:?}");
        self
    }
}

impl Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "exit {:?}, signal {:?}",
            self.status.code(),
            self.status.signal()
        )?;
        writeln!(
            f,
            "--- stdout\n{}\n--- stderr\n{}",
            self.stdout, self.stderr
        )
    }
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a command to its end, with an empty standard input.
pub fn outcome(command: &mut Command) -> Outcome {
    Running::start(command).finish()
}

/// A process under way: its output is collected, and it is killed when the test ends.
pub struct Running {
    pub process: Child,
    lines: Receiver<String>,
    seen: String,
    stderr: Receiver<String>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("can't start {command:?}: {error}"));
        let stdout = process.stdout.take().unwrap();
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut buffer = Vec::new();
            while matches!(reader.read_until(b'\n', &mut buffer), Ok(read) if read > 0) {
                let _ = line.send(String::from_utf8_lossy(&buffer).into_owned());
                buffer.clear();
            }
        });
        let mut errors = process.stderr.take().unwrap();
        let (all, stderr) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.read_to_end(&mut text);
            let _ = all.send(String::from_utf8_lossy(&text).into_owned());
        });
        Self {
            process,
            lines,
            seen: String::new(),
            stderr,
        }
    }

    pub fn pid(&self) -> i32 {
        self.process.id().try_into().unwrap()
    }

    /// The next line of its standard output, without the newline: where a test meets it.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => {
                self.seen += &line;
                line.trim_end().to_owned()
            }
            Err(error) => {
                let _ = self.process.kill();
                let stderr = self.stderr.recv_timeout(Duration::from_secs(1));
                panic!(
                    "no line came ({error}); before: {:?}; stderr: {stderr:?}",
                    self.seen
                );
            }
        }
    }

    /// The next line of its standard output with its newline; `None` where none comes any more.
    pub fn next_line(&mut self) -> Option<String> {
        let line = self.lines.recv_timeout(TIMEOUT).ok()?;
        self.seen += &line;
        Some(line)
    }

    /// Waits for this line.
    #[track_caller]
    pub fn expect_line(&mut self, text: &str) {
        assert_eq!(self.line(), text);
    }

    /// Waits until it stands in the queue of the lock "a".
    #[track_caller]
    pub fn wait_until_queued(&mut self, redis: &Redis) {
        let pid = self.pid();
        wait_until("it stands in the queue", || {
            assert!(
                !self.has_ended(),
                "it has ended; {}",
                redis.describe_key("a")
            );
            redis.queue("a").contains(&pid)
        });
    }

    /// Stops it as Ctrl-Z would, and waits until it stands still.
    pub fn suspend(&self) {
        self.signal(Signal::SIGSTOP);
        let pid = self.pid();
        wait_until("it is stopped", || {
            crate::supervision::state(pid) == Some('T')
        });
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills it, and waits until it is gone with its connections.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends a signal to the process itself.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the process lives");
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end and all it said.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        let end = Instant::now() + TIMEOUT;
        let status = loop {
            match self.process.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                None => {
                    let _ = self.process.kill();
                    let stderr = self.stderr.recv_timeout(Duration::from_secs(1));
                    panic!(
                        "it never ended; stdout: {:?}; stderr: {stderr:?}",
                        self.seen
                    );
                }
            }
        };
        // A descendant that outlives it may hold the streams open; a test that expects the end of
        // file waits for it here.
        let stderr = self
            .stderr
            .recv_timeout(TIMEOUT)
            .unwrap_or_else(|_| "(stderr never ended)".into());
        while let Ok(line) = self.lines.recv_timeout(TIMEOUT) {
            self.seen += &line;
        }
        Outcome {
            status,
            stdout: std::mem::take(&mut self.seen),
            stderr,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // With what it has started, where it leads a group. While it isn't reaped, no other group
        // has its number.
        if matches!(self.process.try_wait(), Ok(None)) {
            let _ = nix::sys::signal::killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A run whose COMMAND says `ready` when it starts, and ends when it is told to.
pub struct Gated {
    pub run: Running,
    gate: fs::File,
}

impl Gated {
    /// Starts one; `arguments` are the options and names of the run.
    pub fn start(redis: &Redis, arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = redis.dir.path().join(format!("gate-{count}"));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Open for both, so that neither side waits for the other.
        let mut both = fs::OpenOptions::new();
        let gate = both.read(true).write(true).open(&path).unwrap();
        // Its last line says when it ended, by its own clock.
        let script = r#"echo ready; read go <"$0"; date +%s%N"#;
        let command = ["--", "sh", "-c", script, path.to_str().unwrap()];
        let arguments = [&["run"], arguments, &command].concat();
        let run = Running::start(&mut redis.redlock(&arguments));
        Self { run, gate }
    }

    /// Starts one that finds the lock "a" held, up to its place in the queue.
    #[track_caller]
    pub fn queued(redis: &Redis, arguments: &[&str]) -> Self {
        let mut gated = Self::start(redis, arguments);
        gated.run.wait_until_queued(redis);
        gated
    }

    /// Waits until COMMAND runs.
    #[track_caller]
    pub fn ready(mut self) -> Self {
        self.run.expect_line("ready");
        self
    }

    /// Tells COMMAND to end, whenever it is there.
    pub fn open(&mut self) {
        self.gate.write_all(b"go\n").unwrap();
    }

    /// Tells COMMAND to end, and waits for the end of the run; when COMMAND ended.
    #[track_caller]
    pub fn end(mut self) -> Duration {
        self.open();
        let end = self.run.finish();
        end.assert_code(0);
        moment(end.stdout.lines().last().unwrap_or_default())
    }
}

/// A pipe with the name "gate" in the home directory, where scripts wait for a word of the test. It is
/// open for both, so that neither side waits for the other to come.
pub struct Gate(fs::File);

impl Gate {
    pub fn new(redis: &Redis) -> Self {
        let path = redis.dir.path().join("gate");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut both = fs::OpenOptions::new();
        Self(both.read(true).write(true).open(&path).unwrap())
    }

    /// Lets a script go on, whenever it is there.
    pub fn open(&mut self) {
        self.0.write_all(b"go\n").unwrap();
    }
}

/// Starts a run, with all its arguments, that finds the lock "a" held, up to its place in the
/// queue.
#[track_caller]
pub fn queued(redis: &Redis, arguments: &[&str]) -> Running {
    let mut run = Running::start(&mut redis.redlock(arguments));
    run.wait_until_queued(redis);
    run
}

/// A moment by the clock of all processes, since 1970.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The moment that `date +%s%N` has printed.
#[track_caller]
pub fn moment(line: &str) -> Duration {
    let nanoseconds = line.trim().parse();
    Duration::from_nanos(nanoseconds.unwrap_or_else(|_| panic!("no moment: {line:?}")))
}

/// A promise about time was kept, in several independent rounds. The machine does other things as
/// well (its disk alone may hold a process up for seconds), so that one of the rounds may be late.
#[track_caller]
pub fn assert_within(limit: Duration, mut times: Vec<Duration>) {
    times.sort();
    let median = times[times.len() / 2];
    let most = *times.last().unwrap();
    assert!(
        median < limit && most < limit + Duration::from_secs(4),
        "more than {limit:?}: {times:?}"
    );
}

/// The name of this machine.
pub fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

/// Whether a process exists and isn't a zombie.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

/// An executable script in a directory.
pub fn script(dir: &std::path::Path, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::OpenOptionsExt;
    let path = dir.join(name);
    let mut file = fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o755)
        .open(&path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path
}

/// The mark that the holder of the lock "a" with this pid leaves on its host, if it is there: it says
/// that the process is to be looked for here, and not on another machine that looks the same.
pub fn mark(redis: &Redis, pid: i32) -> Option<PathBuf> {
    let json = outcome(&mut redis.redlock(&["status", "--json", "a"])).stdout;
    let locks: serde_json::Value = serde_json::from_str(&json).ok()?;
    let holders = locks[0]["holders"].as_array()?;
    let holder = holders.iter().find(|holder| holder["pid"] == pid)?;
    let path = PathBuf::from(format!("/dev/shm/redlock-{}", holder["id"].as_str()?));
    path.exists().then_some(path)
}

/// Waits for the mark of a holder of the lock "a"; from then on others may find out that it is dead.
#[track_caller]
pub fn await_mark(redis: &Redis, pid: i32) -> PathBuf {
    let mut found = None;
    wait_until("the holder has left its mark in /dev/shm", || {
        found = mark(redis, pid);
        found.is_some()
    });
    found.unwrap()
}

/// For the start of tests that leave processes behind which have lost their parents, or that want to see
/// that nothing of the kind is there: on one machine nobody can tell whose such a process is. Runs the
/// test in a pid namespace of its own; where that isn't permitted, one after the other.
macro_rules! among_own_processes {
    () => {
        if crate::support::has_run_among_own_processes() {
            return;
        }
    };
}
pub(crate) use among_own_processes;

/// Whether the test of this thread has run, in another process.
pub fn has_run_among_own_processes() -> bool {
    const MARK: &str = "REDLOCK_TEST_AMONG_OWN_PROCESSES";
    const UNSHARE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    static IS_PERMITTED: LazyLock<bool> =
        LazyLock::new(|| is_permitted(&[&UNSHARE[..], &["true"]].concat()));
    static ALONE: Mutex<()> = Mutex::new(());
    thread_local! {
        static UNTIL_THE_END: RefCell<Option<MutexGuard<'static, ()>>> = const { RefCell::new(None) };
    }
    if std::env::var_os(MARK).is_some() {
        return false;
    }
    if !*IS_PERMITTED {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        UNTIL_THE_END.set(Some(alone));
        return false;
    }
    let thread = std::thread::current();
    let name = thread.name().expect("a test has a thread with its name");
    let output = Command::new(UNSHARE[0])
        .args(&UNSHARE[1..])
        // The shell reaps the processes that have lost their parents. A session of outside has no number here.
        .args(["sh", "-c", "setsid -w \"$0\" \"$@\"; exit $?"])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--test-threads", "1", "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "{stdout}");
    true
}

/// Whether this command succeeds here: what it needs may not be permitted.
pub fn is_permitted(words: &[&str]) -> bool {
    let output = Command::new(words[0]).args(&words[1..]).output();
    output.is_ok_and(|output| output.status.success())
}

/// Another user, without any privilege, in a directory with all that this user needs: `redlock`,
/// `head` (setuid, root's), `become` (makes root of this user, as sudo does, and executes its
/// arguments) and `gate` (a pipe that is closed when this is dropped). Paths are relative, because
/// the directories above may be closed to others.
pub struct OtherUser {
    id: u32,
    dir: tempfile::TempDir,
    gate: fs::File,
}

impl OtherUser {
    /// `None` where the tests don't run as root, or setuid programs don't count.
    pub fn new() -> Option<Self> {
        Self::with_id(54321)
    }

    /// One of whom nobody else has a process: neither another test nor another run of the tests.
    pub fn alone() -> Option<Self> {
        Self::with_id(100_000 + std::process::id())
    }

    fn with_id(id: u32) -> Option<Self> {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let all = |mode| fs::Permissions::from_mode(mode);
        fs::set_permissions(dir.path(), all(0o755)).unwrap();
        // By another process: a file that this one has open to write would be busy for a moment in
        // each process that another test starts.
        let install = |mode: &str, from: &str, to: &str| {
            let to = dir.path().join(to);
            is_permitted(&["install", "-m", mode, from, to.to_str().unwrap()])
        };
        let found = |program: &str| {
            let mut places = ["/usr/bin", "/bin"].into_iter();
            let path = places.find_map(|place| {
                let path = format!("{place}/{program}");
                fs::exists(&path).unwrap().then_some(path)
            });
            path.unwrap_or_else(|| panic!("no {program}"))
        };
        if !nix::unistd::getuid().is_root()
            || !install("755", REDLOCK, "redlock")
            || !install("4755", &found("head"), "head")
            || !install("4755", &found("setpriv"), "setpriv")
        {
            return None;
        }
        script(
            dir.path(),
            "become",
            "#!/bin/sh\nexec ./setpriv --reuid 0 --regid 0 --clear-groups \"$@\"\n",
        );
        let gate = dir.path().join("gate");
        nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::set_permissions(&gate, all(0o666)).unwrap();
        let mut both = fs::OpenOptions::new();
        let gate = both.read(true).write(true).open(gate).unwrap();
        let user = Self { id, dir, gate };
        let probe = user.command(&["./become", "true"]).status();
        probe.is_ok_and(|status| status.success()).then_some(user)
    }

    /// A command of this user's.
    pub fn command(&self, words: &[&str]) -> Command {
        let id = self.id.to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .args(words)
            .env_clear()
            .env("PATH", path())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        without_terminal(&mut command);
        command
    }

    /// This user's redlock.
    pub fn redlock(&self, redis: &Redis, arguments: &[&str]) -> Command {
        let mut command = self.command(&[&["./redlock"], arguments].concat());
        command.env("REDLOCK_URL", redis.tcp_url());
        command
    }

    /// Lets one that reads a line of the gate go on.
    pub fn open_gate(&mut self) {
        self.gate.write_all(b"go\n").unwrap();
    }
}

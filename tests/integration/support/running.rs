//! redlock and other commands as processes: their output, and their ends.

#![allow(unsafe_code)]

use std::fmt::{self, Debug};
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{REDLOCK, Redis, TIMEOUT, await_signals_read, moment, set_signals, state, wait_until};

/// Returns a redlock without any server, and with nothing of the tests' environment. Words such as `REDLOCK_SYNC=all` before
/// COMMAND are variables of its environment.
pub fn redlock(arguments: &[&str]) -> Command {
    let ends = |word: &&str| ["-c", "--"].contains(word);
    let end = arguments.iter().position(ends).unwrap_or(arguments.len());
    let is_setting = |word: &&&str| word.starts_with("REDLOCK_") && word.contains('=');
    let (settings, options): (Vec<&str>, Vec<&str>) = arguments[..end].iter().partition(is_setting);
    let mut command = Command::new(REDLOCK);
    command
        .args(options)
        .args(&arguments[end..])
        .env_clear()
        .env("PATH", path());
    command.envs(
        settings
            .iter()
            .filter_map(|setting| setting.split_once('=')),
    );
    without_terminal(&mut command);
    command
}

/// Returns the search path with the binary's own directory first, so that scripts can call `redlock`.
pub fn path() -> String {
    let own = PathBuf::from(REDLOCK);
    format!(
        "{}:{}",
        own.parent().unwrap().display(),
        std::env::var("PATH").unwrap_or_default()
    )
}

/// Gives a command a new session, so that it has no controlling terminal. Resets all signals to their default, whatever the
/// tests were started with.
pub fn without_terminal(command: &mut Command) {
    // SAFETY: system calls only, which are allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            set_signals(|_| false, 0);
            Ok(())
        });
    }
}

/// Returns the status as a shell reports it: 128+N if signal N killed the process.
pub fn seen_by_a_shell(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

/// The end of a command, with its output.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Returns the status as a shell reports it: 128+N even if signal N killed redlock itself.
    pub fn code(&self) -> Option<i32> {
        seen_by_a_shell(self.status)
    }

    /// Asserts that the command exited with this number, not by a signal.
    #[track_caller]
    pub fn assert_exited(&self, code: i32) -> &Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// Asserts that this signal killed the command, without a core file.
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

    /// Asserts the status, as a shell reports it, and a part of standard error.
    #[track_caller]
    pub fn assert_said(&self, code: i32, text: &str) -> &Self {
        self.assert_code(code).assert_says(text)
    }

    /// Asserts the status, as a shell reports it, and the whole standard output.
    #[track_caller]
    pub fn assert_printed(&self, code: i32, stdout: &str) -> &Self {
        self.assert_code(code);
        assert_eq!(self.stdout, stdout, "{self:?}");
        self
    }

    /// Asserts that standard error contains this text.
    #[track_caller]
    pub fn assert_says(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "no {text:?} in {self:?}");
        self
    }

    /// Asserts that standard error is empty.
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

/// Runs redlock with the words of this line to its end.
#[track_caller]
pub fn ends(redis: &Redis, line: &str) -> Outcome {
    let words: Vec<&str> = line.split_whitespace().collect();
    outcome(&mut redis.redlock(&words))
}

/// Runs redlock with the words of this line to its end. Returns the JSON that it prints.
#[track_caller]
pub fn json(redis: &Redis, line: &str) -> Value {
    let end = ends(redis, line);
    let json = &end.assert_code(0).stdout;
    serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {end:?}"))
}

/// Asserts that a text has all of these parts.
#[track_caller]
pub fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Waits for the ends of all runs, and asserts their status.
#[track_caller]
pub fn all_end(runs: impl IntoIterator<Item = Running>, code: i32) {
    for run in runs {
        run.finish().assert_code(code);
    }
}

/// Attaches strace to a process. Returns once that is traced; its other threads go on.
pub fn attach_strace(pid: i32, options: &[&str]) -> Child {
    let mut strace = Command::new("strace")
        .args(options)
        .args(["-p", &pid.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut attached = String::new();
    let mut stderr = BufReader::new(strace.stderr.take().unwrap());
    stderr.read_line(&mut attached).unwrap();
    // Without a reader, strace's next message would end it.
    std::thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
    assert!(attached.contains("attached"), "{attached}");
    strace
}

/// A running process: its output is collected, and it is killed at the end of the test.
pub struct Running {
    pub process: Child,
    lines: Receiver<String>,
    seen: String,
    stderr: Receiver<String>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let command = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = loop {
            match command.spawn() {
                Ok(process) => break process,
                // A script that was just written may still be open in a process that another test is about to start.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("can't start {command:?}: {error}"),
            }
        };
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

    /// Starts a command and waits for its `ready` line.
    #[track_caller]
    pub fn ready(command: &mut Command) -> Self {
        Self::start(command).at_ready()
    }

    /// Waits for its `ready` line.
    #[track_caller]
    pub fn at_ready(mut self) -> Self {
        self.expect_line("ready");
        self
    }

    pub fn pid(&self) -> i32 {
        self.process.id().try_into().unwrap()
    }

    /// Returns the next line of its standard output, without the newline.
    #[track_caller]
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => {
                self.seen += &line;
                line.trim_end().to_owned()
            }
            Err(error) => self.fail(&format!("no line came ({error})")),
        }
    }

    /// Fails the test, with all output.
    #[track_caller]
    fn fail(&mut self, what: &str) -> ! {
        self.kill_group();
        let stderr = self.stderr.recv_timeout(Duration::from_secs(1));
        panic!("{what}; stdout: {:?}; stderr: {stderr:?}", self.seen);
    }

    /// Returns the pid in the next line, after this word.
    #[track_caller]
    pub fn pid_after(&mut self, word: &str) -> i32 {
        let line = self.line();
        let rest = line.strip_prefix(word);
        let pid = rest.and_then(|pid| pid.trim().parse().ok());
        pid.unwrap_or_else(|| panic!("no {word:?} with a pid: {line:?}"))
    }

    /// Asserts that the next line is this one.
    #[track_caller]
    pub fn expect_line(&mut self, text: &str) {
        assert_eq!(self.line(), text);
    }

    /// Waits until a condition holds, while this process works.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_until(what, || {
            if self.has_ended() {
                self.fail(&format!("it has ended before {what}"));
            }
            condition()
        });
    }

    /// Waits until it is in the queue of the lock "a".
    #[track_caller]
    pub fn wait_until_queued(&mut self, redis: &Redis) {
        let pid = self.pid();
        self.wait_until("it stands in the queue", || redis.queue("a").contains(&pid));
    }

    /// Waits for this many renewals of locks from now on, while this process works.
    #[track_caller]
    pub fn await_renewals(&mut self, redis: &Redis, count: u64) {
        let before = redis.calls("pexpire");
        self.wait_until("it is renewed", || redis.calls("pexpire") >= before + count);
    }

    /// Waits until it has read its signals, and sleeps.
    #[track_caller]
    pub fn await_signals_read(&self) {
        await_signals_read(self.pid());
    }

    /// Suspends it, and waits until it is suspended.
    pub fn suspend(&self) {
        self.signal(Signal::SIGSTOP);
        let pid = self.pid();
        wait_until("it is stopped", || state(pid) == Some('T'));
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

    /// Kills it together with its process group, if it leads one.
    fn kill_group(&mut self) {
        // No other group can have its number until it is reaped.
        if matches!(self.process.try_wait(), Ok(None)) {
            let _ = nix::sys::signal::killpg(Pid::from_raw(self.pid()), Signal::SIGKILL);
        }
        let _ = self.process.kill();
    }

    /// Sends a signal to the process itself.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the process lives");
    }

    /// Returns true if it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end, and asserts the status and a part of standard error.
    #[track_caller]
    pub fn finish_saying(self, code: i32, text: &str) -> Outcome {
        let end = self.finish();
        end.assert_said(code, text);
        end
    }

    /// Waits for its end. Returns it with all output.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        let end = Instant::now() + TIMEOUT;
        let status = loop {
            match self.process.try_wait().unwrap() {
                Some(status) => break status,
                None if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
                None => self.fail("it never ended"),
            }
        };
        // A surviving descendant may hold the streams open, so a test that expects the end of a stream waits for that
        // descendant here.
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
        self.kill_group();
        let _ = self.process.wait();
    }
}

/// A run whose COMMAND prints `ready` when it starts, and ends on request.
pub struct Gated {
    pub run: Running,
    gate: Gate,
}

impl Gated {
    /// Starts a run with these options and names.
    pub fn start(redis: &Redis, arguments: &[&str]) -> Self {
        let run = redis.redlock(&[&["run"], arguments].concat());
        Self::of(run, redis.dir.path(), "echo ready; ")
    }

    /// Starts a command given up to the names of its locks, with a gate in this directory. `enter` comes first in COMMAND's
    /// script.
    pub fn of(mut run: Command, dir: &Path, enter: &str) -> Self {
        let (gate, path) = Gate::another(dir);
        // The last line is the time of the end, by COMMAND's own clock.
        let script = format!("{enter}read go <\"$0\"; date +%s%N");
        run.args(["--", "sh", "-c", &script]).arg(path);
        let run = Running::start(&mut run);
        Self { run, gate }
    }

    /// Starts a run that finds the lock "a" held. Returns when it is in the queue.
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

    /// Lets COMMAND end, now or when it comes to the gate.
    pub fn open(&mut self) {
        self.gate.open();
    }

    /// Waits for the end of the run.
    #[track_caller]
    pub fn finish(self) -> Outcome {
        self.run.finish()
    }

    /// Lets COMMAND end, and waits for the end of the run. Returns the time when COMMAND ended.
    #[track_caller]
    pub fn end(mut self) -> Duration {
        self.open();
        let end = self.run.finish();
        end.assert_code(0);
        moment(end.stdout.lines().last().unwrap_or_default())
    }
}

/// A pipe with the name "gate" in the home directory, at which scripts wait for a word of the test. Opened for both reading and
/// writing, so that neither side waits for the other.
pub struct Gate(fs::File);

impl Gate {
    pub fn new(redis: &Redis) -> Self {
        Self::at(&redis.dir.path().join("gate"))
    }

    /// Creates another gate in this directory. Returns its path too.
    pub fn another(dir: &Path) -> (Self, PathBuf) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("gate-{number}"));
        (Self::at(&path), path)
    }

    pub fn at(path: &Path) -> Self {
        nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut both = fs::OpenOptions::new();
        Self(both.read(true).write(true).open(path).unwrap())
    }

    /// Lets a script go on, now or when it comes to the gate.
    pub fn open(&mut self) {
        self.say("go");
    }

    /// Lets a script go on, which reads this word.
    pub fn say(&mut self, word: &str) {
        self.0.write_all(format!("{word}\n").as_bytes()).unwrap();
    }
}

/// Script of a COMMAND that prints `ready`, and ends when the pipe "gate" in the home directory opens.
pub const UNTIL_GATE: &str = r#"echo ready; read go <"$HOME/gate""#;

/// Script of a COMMAND that prints `ready`, and then does nothing.
pub const IDLE: &str = "echo ready; exec sleep 60";

/// Starts a run, with all its arguments, that finds the lock "a" held. Returns when it is in the queue.
#[track_caller]
pub fn queued(redis: &Redis, arguments: &[&str]) -> Running {
    let mut run = Running::start(&mut redis.redlock(arguments));
    run.wait_until_queued(redis);
    run
}

/// Writes an executable script into a directory.
pub fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    let draft = dir.join(format!("{name}.draft"));
    fs::write(&draft, text).unwrap();
    // Installed by another process: children of other tests briefly inherit files that this process has open for writing, which
    // then can't be executed.
    let mut install = Command::new("install");
    outcome(install.args(["-m", "755"]).args([&draft, &path])).assert_code(0);
    fs::remove_file(draft).unwrap();
    path
}

//! The single-fault sweep: whatever one thing goes wrong between redlock and its server, at whatever
//! step, the promises hold.
//!
//! Each case is a real run (or `extend`, or `release --force`) by way of a [`Proxy`] on which exactly one
//! request or answer gets lost, late or cut, and after which the server is there as before, or can't be
//! reached any more. `make test` takes a few places to cut each answer at; `make faults` takes every
//! byte. `FAULTS=renew/Cut` sweeps only the cases whose names contain that.
//!
//! What is watched: COMMAND never runs while its token isn't in the lock, and never beside another
//! one; the lock is free soon after the run; no place in the queue is left; the exit status is the one
//! that the manual has; and what is said is true.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::proxy::{Action, Proxy, load_scripts};
use crate::support::{Redis, outcome, pid_of};

const MS: Duration = Duration::from_millis(1);

/// The leases of the runs that are watched, and the longest that an answer may take.
const TTL: &str = "3s";
const TIMEOUT: &str = "1s";
/// What comes late comes after this.
const LATE: Duration = Duration::from_millis(1_500);
/// How long a lock may last after its run: its lease, or that of a grant, and some time for a machine
/// that does other things as well.
const FREE_WITHIN: Duration = Duration::from_secs(8);
/// COMMAND's own status.
const OWN: i32 = 5;

/// At what step something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The first question for a free lock.
    Acquire,
    /// The one for a place in the queue.
    Enqueue,
    Subscribe,
    Heartbeat,
    /// The confirmation of a lock that was handed on, with COMMAND started already.
    Claim,
    /// The same where the server is so far away that the confirmation comes first.
    FarClaim,
    Renew,
    Check,
    Release,
    /// A place in the queue is given up.
    Cancel,
    Extend,
    Force,
}

const STEPS: [Step; 12] = [
    Step::Acquire,
    Step::Enqueue,
    Step::Subscribe,
    Step::Heartbeat,
    Step::Claim,
    Step::FarClaim,
    Step::Renew,
    Step::Check,
    Step::Release,
    Step::Cancel,
    Step::Extend,
    Step::Force,
];

impl Step {
    /// The operation that it is for the proxy.
    fn operation(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Enqueue => "enqueue",
            Self::Subscribe => "SUBSCRIBE",
            Self::Heartbeat | Self::FarClaim => "heartbeat",
            Self::Claim | Self::Renew | Self::Extend => "renew",
            Self::Check => "check",
            Self::Release | Self::Cancel => "release",
            Self::Force => "force",
        }
    }

    /// The run has to wait for another holder first.
    fn waits(self) -> bool {
        match self {
            Self::Enqueue
            | Self::Subscribe
            | Self::Heartbeat
            | Self::Claim
            | Self::FarClaim
            | Self::Cancel => true,
            Self::Acquire
            | Self::Renew
            | Self::Check
            | Self::Release
            | Self::Extend
            | Self::Force => false,
        }
    }
}

/// One case of the sweep.
#[derive(Clone, Copy, Debug)]
struct Case {
    step: Step,
    fault: Action,
    /// From then on no client reaches the server.
    gone: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = if self.gone { "gone" } else { "alive" };
        write!(f, "{:?}/{:?}/{after}", self.step, self.fault)
    }
}

/// All cases; with `whole` every byte of the answers is a place to cut them.
fn cases(whole: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for step in STEPS {
        let cuts = if whole {
            (0..=answer_length(step)).collect()
        } else {
            vec![0, 1, 5, 20]
        };
        let cuts = cuts.into_iter().map(Action::Cut);
        let faults = [
            Action::LoseRequest,
            Action::LoseReply,
            Action::Stall(LATE),
            Action::StallReply(LATE),
            Action::Reset,
            Action::ResetReply,
            Action::HalfOpen,
        ];
        for fault in faults.into_iter().chain(cuts) {
            cases.extend([false, true].map(|gone| Case { step, fault, gone }));
        }
    }
    cases
}

/// How long the answer at a step is when nothing goes wrong, or a little more.
fn answer_length(step: Step) -> usize {
    let redis = Redis::start();
    load_scripts(&redis);
    let case = Case {
        step,
        fault: Action::Pass,
        gone: false,
    };
    let lateness = Lateness(Mutex::default());
    let mut play = Play::new(&redis, &lateness, case, 0);
    let _ = play.through();
    play.proxy.longest_answer(step.operation())
}

/// What a COMMAND does: it takes a witness that only one can have, notes that it ran, and ends at a
/// word of the test.
const COMMAND: &str = r#"
    exec 9>>"$0.witness"
    flock -n 9 || echo "two commands run at once" >>"$0.wrong"
    echo ran >>"$0.ran"
    read go <"$0.go"
    exit 5
"#;

/// A case that is played.
struct Play<'a> {
    redis: &'a Redis,
    case: Case,
    name: String,
    proxy: Proxy,
    /// Its files begin with this.
    base: PathBuf,
    go: fs::File,
    fired: Receiver<Instant>,
    armed: Arc<AtomicBool>,
    lateness: &'a Lateness,
    began: Instant,
    wrong: Vec<String>,
    /// What was wrong and may come of the machine.
    excused: Vec<String>,
}

/// A redlock under way, with its output in files.
struct Started {
    process: Child,
    stderr: PathBuf,
}

impl Started {
    fn pid(&self) -> i32 {
        self.process.id().try_into().unwrap()
    }

    fn status(&mut self) -> Option<i32> {
        let status = self.process.try_wait().unwrap()?;
        Some(status.code().unwrap_or(-1))
    }

    /// Waits for its end; its status, if it ends at all, and what it said.
    fn end(&mut self) -> (Option<i32>, String) {
        let end = Instant::now() + FREE_WITHIN * 3;
        loop {
            let status = self.status();
            if status.is_some() || Instant::now() > end {
                return (status, self.said());
            }
            std::thread::sleep(MS * 5);
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A connection past the proxy, to look.
struct Eye(BufReader<UnixStream>);

/// How long a killed process may take to vanish where all processors are busy.
const DYING: Duration = Duration::from_millis(300);

impl Eye {
    fn new(redis: &Redis) -> Self {
        Self(BufReader::new(UnixStream::connect(redis.socket()).unwrap()))
    }

    /// The holder's pid: 0 without a holder, -1 for a token that names none.
    fn holder(&mut self, name: &str) -> i32 {
        let get = format!("GET redlock:{name}\r\n");
        self.0.get_mut().write_all(get.as_bytes()).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        if line == "$-1\r\n" {
            return 0;
        }
        line.clear();
        self.0.read_line(&mut line).unwrap();
        pid_of(line.trim_end()).unwrap_or(-1)
    }
}

/// Whether a process has this file locked.
fn is_locked(file: &Path) -> bool {
    let Ok(file) = fs::metadata(file) else {
        return false;
    };
    let inode = format!(":{} ", file.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks
        .lines()
        .any(|line| line.contains("FLOCK") && !line.contains("->") && line.contains(&inode))
}

impl<'a> Play<'a> {
    fn new(redis: &'a Redis, lateness: &'a Lateness, case: Case, number: usize) -> Self {
        let name = format!("case-{number}");
        let base = redis.dir.path().join(&name);
        let go = base.with_extension("go");
        nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let go = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(go)
            .unwrap();
        let proxy = Proxy::new(redis);
        let (firing, fired) = channel();
        let armed = Arc::new(AtomicBool::new(!case.step.waits()));
        let refuse = proxy.refusing();
        let is_armed = Arc::clone(&armed);
        let mut has_fired = false;
        proxy.set_hook(move |request| {
            if has_fired {
                return if case.gone {
                    Action::Reset
                } else {
                    Action::Pass
                };
            }
            let is_it = request.operation == case.step.operation();
            if !is_it || !is_armed.load(Ordering::Relaxed) {
                return Action::Pass;
            }
            has_fired = true;
            if case.gone {
                refuse();
            }
            let _ = firing.send(Instant::now());
            case.fault
        });
        if case.step == Step::FarClaim {
            proxy.set_round_trip(MS * 250);
        }
        Self {
            redis,
            case,
            name,
            proxy,
            base,
            go,
            fired,
            armed,
            lateness,
            began: Instant::now(),
            wrong: Vec::new(),
            excused: Vec::new(),
        }
    }

    /// Starts a redlock by way of the proxy, or past it.
    fn start(&self, what: &str, proxied: bool, arguments: &[&str], token: &str) -> Started {
        let mut command = self.redis.redlock(arguments);
        if proxied {
            command.env("REDLOCK_URL", self.proxy.url());
        }
        command.env("REDLOCK_CONNECT_TIMEOUT", TIMEOUT);
        if !token.is_empty() {
            command.env("REDLOCK_TOKEN", token);
        }
        let stderr = self.base.with_extension(format!("{what}.err"));
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Started { process, stderr }
    }

    /// Starts a run of COMMAND.
    fn run(&self, what: &str, proxied: bool, options: &[&str]) -> Started {
        let base = self.base.to_str().unwrap();
        let run = ["run", "-k", "200ms"];
        let command = [&self.name, "--", "sh", "-c", COMMAND, base];
        self.start(what, proxied, &[&run[..], options, &command].concat(), "")
    }

    fn has_run(&self) -> bool {
        self.base.with_extension("ran").exists()
    }

    fn let_command_end(&mut self) {
        self.go.write_all(b"go\n").unwrap();
    }

    fn is_wrong(&mut self, what: impl Into<String>) {
        self.wrong.push(what.into());
    }

    /// The same for what a machine that stands still for a moment may do to a run with a lease of a
    /// few seconds.
    fn is_late(&mut self, what: impl Into<String>) {
        let what = what.into();
        match self.lateness.since(self.began) {
            Duration::ZERO => self.wrong.push(what),
            late => self
                .excused
                .push(format!("{what} (an answer took {late:?})")),
        }
    }

    /// Plays the case; what was wrong.
    fn through(&mut self) -> Vec<String> {
        match self.case.step {
            Step::Extend | Step::Force => self.by_another(),
            step if step.waits() => self.waiting(),
            _ => self.holding(),
        }
        let wrong = fs::read_to_string(self.base.with_extension("wrong")).unwrap_or_default();
        self.wrong.extend(wrong.lines().map(str::to_owned));
        std::mem::take(&mut self.wrong)
    }

    /// A run that finds the lock free.
    fn holding(&mut self) {
        let mut run = self.run("run", true, &["--ttl", TTL]);
        if self.case.step == Step::Release {
            self.let_command_end();
        }
        self.watch(&mut run);
    }

    /// A run that waits for the lock, and gets it.
    fn waiting(&mut self) {
        let acquire = ["acquire", "--ttl", "60s", "--format", "token", &self.name];
        let end = outcome(&mut self.redis.redlock(&acquire));
        end.assert_code(0);
        let token = end.stdout.trim().to_owned();
        let step = self.case.step;
        let early = matches!(step, Step::Enqueue | Step::Subscribe);
        self.armed
            .store(early || step == Step::Heartbeat, Ordering::Relaxed);
        // A renewal may take a tenth of the lease, which has to be longer than the line is.
        let ttl = if step == Step::FarClaim { "6s" } else { TTL };
        let limit: &[&str] = match step {
            Step::Cancel => &["-w", "1500ms"],
            // A server that was reached is waited for without an end otherwise.
            _ if self.case.gone => &["-w", "10s"],
            _ => &[],
        };
        let mut run = self.run("run", true, &[&["--ttl", ttl], limit].concat());
        // Once it has a place in the queue, or what goes wrong before that has gone wrong.
        let end = Instant::now() + FREE_WITHIN;
        while self.proxy.answered("enqueue") == 0
            && !(early && self.proxy.count(step.operation()) > 0)
        {
            if Instant::now() > end || run.status().is_some() {
                self.is_late(format!("it never waited, and said {:?}", run.said()));
                return;
            }
            std::thread::sleep(MS * 2);
        }
        self.armed.store(true, Ordering::Relaxed);
        // A heartbeat is to come while it waits; one that gives up waits in vain.
        if matches!(step, Step::Heartbeat | Step::Cancel) {
            while self.proxy.count(step.operation()) == 0 && Instant::now() < end {
                std::thread::sleep(MS * 2);
            }
        }
        if step == Step::Cancel {
            self.watch(&mut run);
        }
        let release = ["release", &self.name];
        let mut release = self.start("release", false, &release, &token);
        assert!(release.process.wait().unwrap().success());
        if step != Step::Cancel {
            self.watch(&mut run);
        }
        self.assert_free(0);
    }

    /// A redlock that does something about the lock of a run that isn't disturbed.
    fn by_another(&mut self) {
        let mut run = self.run("run", false, &["--ttl", "20s"]);
        let end = Instant::now() + FREE_WITHIN;
        while !self.has_run() && Instant::now() < end {
            std::thread::sleep(MS * 2);
        }
        let token = self.redis.cli(&["GET", &format!("redlock:{}", self.name)]);
        let mut other = match self.case.step {
            Step::Extend => self.start(
                "other",
                true,
                &["extend", &self.name, "--for", "40s"],
                &token,
            ),
            _ => self.start("other", true, &["release", "--force", &self.name], ""),
        };
        let (status, said) = other.end();
        let is_forced = self.case.step == Step::Force;
        match status {
            Some(0) => {}
            Some(69) if said.contains("Redis at") => {}
            _ => self.is_wrong(format!("status {status:?}, said {said:?}")),
        }
        let eye = &mut Eye::new(self.redis);
        let held = eye.holder(&self.name) == run.pid();
        if is_forced && status == Some(0) && held {
            self.is_wrong("the lock isn't free though it was forced");
        }
        if !is_forced && !held {
            self.is_wrong("the lock is lost though it was only extended");
        }
        if !is_forced && status == Some(0) {
            let left = self.redis.cli(&["PTTL", &format!("redlock:{}", self.name)]);
            if left.parse::<i64>().unwrap_or(0) < 25_000 {
                self.is_wrong(format!("extended, and {left} ms are left"));
            }
        }
        if held {
            self.let_command_end();
        }
        let (status, said) = run.end();
        match (held, status) {
            (true, Some(OWN)) if said.is_empty() => {}
            (false, Some(79)) if said.contains("was forced free by") => {}
            _ => self.is_wrong(format!("the run ended with {status:?} and said {said:?}")),
        }
        self.assert_free(run.pid());
    }

    /// Watches the run that has something go wrong, and judges it.
    fn watch(&mut self, run: &mut Started) {
        let Case { step, gone, .. } = self.case;
        let mut eye = Eye::new(self.redis);
        let witness = self.base.with_extension("witness");
        let began = Instant::now();
        let mut told_to_end = step == Step::Release;
        let mut fired = None;
        let mut unheld = None;
        let status = loop {
            let before = eye.holder(&self.name);
            let runs = is_locked(&witness);
            let after = eye.holder(&self.name);
            // Where it has no holder yet, a busy machine may take a moment to end a process that was killed.
            let is_unheld = runs && before == 0 && after == 0;
            unheld = is_unheld.then(|| unheld.unwrap_or_else(Instant::now));
            let is_late = unheld.is_none_or(|since: Instant| since.elapsed() > DYING);
            if runs && before != run.pid() && after != run.pid() && is_late {
                self.is_wrong(format!(
                    "the command runs, and {before}, then {after} holds the lock, not {}",
                    run.pid()
                ));
                return;
            }
            if let Some(status) = run.status() {
                break Some(status);
            }
            if fired.is_none() {
                fired = self.fired.try_recv().ok();
            }
            // Where the server is gone, the lease has to end first. Else long enough for all that
            // comes late, and a renewal after that.
            let enough = if gone { FREE_WITHIN } else { LATE * 2 };
            let is_enough = fired.is_some_and(|fired| fired.elapsed() > enough);
            // Also where nothing goes wrong, or what should never does.
            let is_over = self.case.fault == Action::Pass || began.elapsed() > FREE_WITHIN * 2;
            let is_all = is_enough || is_over;
            if is_all && self.has_run() && !told_to_end {
                told_to_end = true;
                self.let_command_end();
            }
            if began.elapsed() > FREE_WITHIN * 3 {
                break None;
            }
            std::thread::sleep(MS * 20);
        };
        if fired.is_none() && self.fired.try_recv().is_err() && self.case.fault != Action::Pass {
            self.is_late("nothing went wrong: the step never came");
            return;
        }
        let said = run.said();
        let pid = run.pid();
        let ran = self.has_run();
        if let Err((what, late)) = self.judge(status, ran, &said) {
            let ran = if ran { "ran" } else { "didn't run" };
            let what = format!("{what}: status {status:?}, the command {ran}, said {said:?}");
            if late {
                self.is_late(what);
            } else {
                self.is_wrong(what);
            }
        }
        // What can be sent to the server is sent before the end.
        let at_once = eye.holder(&self.name) != pid;
        let excused = gone || said.contains("can't release");
        if !at_once && !excused {
            self.is_wrong("the run has ended, and its lock is left");
        }
        let queued = self.redis.queue(&self.name).contains(&pid);
        if queued && !gone {
            self.is_wrong("the run has ended, and its place in the queue is left");
        }
        if step != Step::Cancel {
            self.assert_free(pid);
        }
    }

    /// Whether a run may end like this; what is wrong, and whether that may come of a slow machine.
    fn judge(
        &self,
        status: Option<i32>,
        ran: bool,
        said: &str,
    ) -> Result<(), (&'static str, bool)> {
        let Case { step, gone, .. } = self.case;
        // That it waits, or tries again, is said after a second.
        let progress = [": waiting for ", "; still trying (", "Redis answers again"];
        let is_progress = |line: &&str| progress.iter().any(|text| line.contains(text));
        let lines = said.lines().filter(|line| !is_progress(line));
        let lines: Vec<&str> = lines.collect();
        let says = |text: &str| lines.iter().any(|line| line.contains(text));
        let is_told = says("Redis at");
        if lines.iter().any(|line| !line.starts_with("redlock: ")) {
            return Err(("says what isn't of redlock", false));
        }
        if says("panicked") || says("unexpected") {
            return Err(("is surprised", false));
        }
        if says("holds it now") || says("was lost") || says("forced free") {
            return Err(("reports a loss that was not caused", false));
        }
        match (status, step) {
            (None, _) => Err(("no expiry", false)),
            // COMMAND's own status.
            (Some(OWN), _) if !ran => Err(("has COMMAND's status without COMMAND", false)),
            (Some(OWN), Step::Release) if gone && says("can't release") => Ok(()),
            (Some(OWN), _) if gone && step != Step::Release && lines.is_empty() => {
                Err(("doesn't notice that the server is gone", false))
            }
            (Some(OWN), _) if !lines.is_empty() && !gone => {
                Err(("complains though all is well", true))
            }
            (Some(OWN), _) => Ok(()),
            // No lock was had.
            (Some(69), _) if ran => Err(("says that nothing was started", false)),
            (Some(69), _) if !is_told => Err(("doesn't say why", false)),
            (Some(69), Step::Acquire) => Ok(()),
            (Some(69), _) if gone => Ok(()),
            (Some(69), _) => Err(("gives up though the server is there", true)),
            (Some(75), Step::Cancel) if says("gave up waiting") => Ok(()),
            (Some(79), _) if !ran => Err(("loses what it never had", false)),
            (Some(79), _) if lines.is_empty() => Err(("is silent about a loss", false)),
            (Some(79), _) if gone => Ok(()),
            (Some(79), Step::Release) => Err(("COMMAND's status is lost", true)),
            (Some(79), _) => Err(("loses the lock though the server is there", true)),
            (Some(_), _) => Err(("has a status that the manual doesn't have", false)),
        }
    }

    /// The lock can be had again soon, and nothing is left of the process that was there.
    fn assert_free(&mut self, pid: i32) {
        let mut eye = Eye::new(self.redis);
        let began = Instant::now();
        while eye.holder(&self.name) != 0 {
            if began.elapsed() > FREE_WITHIN {
                let holder = eye.holder(&self.name);
                self.is_wrong(format!("{holder} still holds the lock"));
                return;
            }
            std::thread::sleep(MS * 20);
        }
        let next = ["run", "-q", "-w", "10s", &self.name, "--", "flock", "-n"];
        let witness = self.base.with_extension("witness");
        let witness = [witness.to_str().unwrap(), "true"];
        let next = outcome(&mut self.redis.redlock(&[&next[..], &witness].concat()));
        if next.code() != Some(0) {
            self.is_wrong(format!("the next one can't run: {next:?}"));
        }
        if self.redis.queue(&self.name).contains(&pid) {
            self.is_wrong("its place in the queue is left");
        }
    }
}

/// How long questions and answers took at most, by way of a proxy on which nothing goes wrong: on a
/// machine that does other things as well, that may be longer than a lease of a few seconds bears.
struct Lateness(Mutex<Vec<(Instant, Duration)>>);

impl Lateness {
    fn since(&self, began: Instant) -> Duration {
        let seen = self.0.lock().unwrap();
        let late = seen.iter().filter(|(at, _)| *at >= began);
        late.map(|(_, late)| *late).max().unwrap_or_default()
    }

    fn watch(&self, redis: &Redis, ended: &AtomicBool) {
        let proxy = Proxy::new(redis);
        while !ended.load(Ordering::Relaxed) {
            let began = Instant::now();
            std::thread::sleep(MS * 20);
            let mut asked = proxy.connect();
            asked.write_all(b"*1\r\n$4\r\nPING\r\n").unwrap();
            asked.read_exact(&mut [0; 7]).unwrap();
            let late = began.elapsed().saturating_sub(MS * 20);
            if late > LATENESS {
                self.0.lock().unwrap().push((Instant::now(), late));
            }
        }
    }
}

/// What takes longer than this is late: a renewal may take 300 ms.
const LATENESS: Duration = Duration::from_millis(75);

#[test]
fn whatever_single_thing_goes_wrong_the_promises_hold() {
    let wanted = std::env::var("FAULTS").unwrap_or_default();
    let whole = std::env::var("FAULTS_WHOLE").is_ok();
    let mut cases = cases(whole);
    cases.retain(|case| case.to_string().contains(&wanted));
    let redis = Redis::start();
    load_scripts(&redis);
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let excused = Mutex::new(Vec::new());
    let lateness = Lateness(Mutex::default());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| lateness.watch(&redis, &ended));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(&case) = cases.get(number) else {
                    return;
                };
                let began = Instant::now();
                let mut play = Play::new(&redis, &lateness, case, number);
                for what in play.through() {
                    let took = began.elapsed();
                    let seen = format!("{:?}", play.proxy);
                    let seen: String = seen.chars().take(300).collect();
                    let key = format!("redlock:{}", play.name);
                    let holds = redis.cli(&["GET", &key]);
                    let left = redis.cli(&["PTTL", &key]);
                    let view = format!("{key} holds {holds:?} for {left} ms more");
                    let all = format!("FAULTS={case}: {what}\n    after {took:?}: {seen}; {view}");
                    wrong.lock().unwrap().push(all);
                }
                let also = play.excused.drain(..);
                let also = also.map(|what| format!("FAULTS={case}: {what}"));
                excused.lock().unwrap().extend(also);
            }
        };
        let workers: Vec<_> = (0..32).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            let _ = worker.join();
        }
        ended.store(true, Ordering::Relaxed);
    });
    let wrong = wrong.into_inner().unwrap();
    let excused = excused.into_inner().unwrap();
    let all = cases.len();
    assert!(
        wrong.is_empty(),
        "{} violations in {all} cases; to repeat one: FAULTS=... cargo test --test integration faults\n{}\nperhaps of a slow machine:\n{}",
        wrong.len(),
        wrong.join("\n"),
        excused.join("\n"),
    );
    // A machine that is late once is late; one that is late all the time hides what is looked for.
    assert!(
        excused.len() <= all / 4 + 1,
        "the machine was too slow for these of {all} cases:\n{}",
        excused.join("\n")
    );
}

//! Each system call of a run, and of `acquire` with its keeper, fails once, or is the last one: SIGKILL comes right before it.
//!
//! strace lists the calls, and then makes one of them fail in each case. In every case COMMAND never works without the lock or
//! beside another one. No process remains, the lock is free within its TTL, and the manual names the exit status.
//!
//! Calls in a loop over processes or files are only sampled. `make test` always runs the same few cases. `make search
//! WHAT=sweep` runs all (`REDLOCK_SWEEP=all`), with the binary of `REDLOCK_BIN` if that is set. `REDLOCK_SWEEP=TEXT` runs the
//! cases whose line contains TEXT.
//!
//! Not tested: the n-th call of a name by the renewing thread, if the main thread made n such calls before, because strace
//! counts by thread. Nor the C library's calls before `main()`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Display};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::chaos::faults::{described, marked};
use crate::support::{REDLOCK, Redis, cores, on_threads, proc, script, state, without_terminal};

/// Longest time for a case, after which it counts as hung.
const LIMIT: Duration = Duration::from_secs(40);

/// Strace's report of the end of a watchdog.
const WATCHDOG_KILLED: &str = "<rl-watchdog> +++ killed by SIGKILL";

/// Number of cases in the short form.
const SOME: usize = 70;

/// Errors of a machine that has run out of something.
const ERRORS: [&str; 5] = ["ENOMEM", "EMFILE", "EAGAIN", "EIO", "ENOSPC"];

/// Calls that can't fail, or whose failure is ignored. A failed close still closes the descriptor, which strace doesn't
/// imitate; a futex that wakes no thread isn't a failure.
const NEVER_FAIL: &str = "arch_prctl close exit exit_group futex getegid geteuid getgid getpid getppid getrandom gettid \
    getuid munmap restart_syscall rseq rt_sigreturn sched_yield set_robust_list set_tid_address";

/// Longest lease: that of the holder before the tested run.
const LONGEST_MS: i64 = 5000;

/// Command line under strace.
struct Scene {
    name: &'static str,
    options: &'static str,
    /// Work of COMMAND.
    work: &'static str,
    /// Exit status without a fault.
    status: i32,
}

const fn scene(
    name: &'static str,
    options: &'static str,
    work: &'static str,
    status: i32,
) -> Scene {
    Scene {
        name,
        options,
        work,
        status,
    }
}

/// Scenes of a run that finds the lock free, and of a run that waits in the queue first. In Timeout and Lost, COMMAND and its
/// child ignore TERM until --max-runtime, or until the lock is taken away. In Family, COMMAND leaves a child. In Acquire, a
/// script takes a lock, with a keeper.
const SCENES: [Scene; 6] = [
    scene("Free", "--ttl 3s", "work", 7),
    scene("Queue", "--ttl 3s", "work", 7),
    scene("Timeout", "--ttl 3s -k 100ms -t 150ms", "deaf", 124),
    scene("Lost", "--ttl 3s -k 100ms", "lost", 79),
    scene("Family", "--ttl 3s -k 100ms", "family", 7),
    scene("Acquire", "--ttl 3s -k 100ms", "work", 7),
];

impl Scene {
    fn is_script(&self) -> bool {
        self.name == "Acquire"
    }

    /// Returns true if work that COMMAND has started may go on when redlock is killed.
    fn leaves_work(&self) -> bool {
        self.status != 7
    }
}

/// Fault of the n-th call of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    call: String,
    count: usize,
    /// Injected error; `None` for a SIGKILL before the call.
    error: Option<&'static str>,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, count, .. } = self;
        match self.error {
            Some(error) => write!(f, "inject={call}:error={error}:when={count}"),
            None => write!(f, "inject={call}:signal=KILL:when={count}"),
        }
    }
}

struct Case {
    scene: &'static Scene,
    fault: Option<Fault>,
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            Some(fault) => write!(f, "{} {fault}", self.scene.name),
            None => write!(f, "{} without a fault", self.scene.name),
        }
    }
}

/// Script of a COMMAND that records violations, holds a file lock that all COMMANDs of one lock share, and keeps asking Redis
/// whether its run holds the lock.
const COMMAND: &str = r#"#!/usr/bin/perl
use strict; use warnings; use Fcntl ":flock"; use POSIX "setsid";
use Time::HiRes qw(time sleep);
my ($work, $name) = @ARGV;
my ($dir, $token) = ($ENV{SWEEP_DIR}, $ENV{REDLOCK_TOKEN} // "");
open my $evidence, ">>", "$dir/$name.evidence" or die; $evidence->autoflush;
my $notes = 0;
sub note { syswrite $evidence, "$work $$: @_\n" if $notes++ < 5 || "@_" eq "done" }
open my $witness, ">>", "$dir/$name.witness" or die;
my $alone = flock $witness, LOCK_EX | LOCK_NB;
note $alone ? "began" : "VIOLATION: beside another COMMAND";
sub ask {
    socket my $redis, 1, 1, 0 or die; connect $redis, pack "S a108", 1, $ENV{SWEEP_REDIS} or die $!;
    syswrite $redis, "@_\r\n"; sysread $redis, my $answer, 4096; $answer
}
my $began = time;
my %lasts = (work => 0.45, holder => 0.4, family => 0.3, next => 0.02, deaf => 20, lost => 20);
my $child = 0;
if ($work =~ /deaf|lost|family/) {
    $SIG{TERM} = "IGNORE";
    if (!($child = fork)) { setsid; sleep 0.01 while time < $began + $lasts{$work}; exit }
}
my ($last, $told) = ($began, 0);
while ((my $now = time) < $began + $lasts{$work}) {
    if ($work eq "lost" && !$told && $now > $began + 0.8) { $told = 1; ask("DEL redlock:$name") }
    # A lease may have ended if this machine stood still; the witness is checked anyway.
    if (!$told && $now < $last + 0.2) {
        my $seen = ask("GET redlock:$name");
        # The machine may have stood still after the time was read.
        note "VIOLATION: no lock, but $seen" if $seen !~ /\Q$token\E\r/ && time < $now + 0.2;
    }
    $last = $now;
    sleep 0.01;
}
# redlock releases the lock when COMMAND ends, even if its child lives on, so the child must end first.
waitpid $child, 0 if $child;
note "done";
exit 7;
"#;

/// Script that takes a lock. strace lives as long as the keeper, in a session of its own.
const SCRIPT: &str = r#"name=$1; shift
strace -DDD -f "$@" "$SWEEP_BIN" acquire "$name" --while-pid $$ --ttl 3s -k 100ms >"$SWEEP_DIR/$name.env" || exit
. "$SWEEP_DIR/$name.env"
until [ -e "$SWEEP_DIR/$name.go" ]; do sleep 0.01; done
exec perl "$SWEEP_DIR/command" work "$name"
"#;

struct Sweep {
    redis: Redis,
    dir: PathBuf,
    binary: PathBuf,
    number: AtomicUsize,
}

/// Broken promises of a case, one line each.
type Broken = Vec<String>;

impl Sweep {
    fn new() -> Self {
        let redis = Redis::start();
        let dir = redis.dir.path().to_owned();
        script(&dir, "command", COMMAND);
        let binary = std::env::var_os("REDLOCK_BIN").map_or_else(|| REDLOCK.into(), PathBuf::from);
        Self {
            redis,
            dir,
            binary,
            number: AtomicUsize::new(0),
        }
    }

    /// Returns a command with the environment of a case, in a session of its own.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>, name: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &self.dir)
            .env("USER", "sweep")
            .env("REDLOCK_URL", self.redis.url())
            .env("SWEEP_REDIS", self.redis.socket())
            .env("SWEEP_DIR", &self.dir)
            .env("SWEEP_BIN", &self.binary)
            .env("SWEEP_CASE", self.mark(name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.file(name, "stderr"));
        without_terminal(&mut command);
        command
    }

    /// Returns the mark of a case, which its processes have in their environment.
    fn mark(&self, name: &str) -> String {
        format!("{}/{name}", self.dir.display())
    }

    fn path(&self, name: &str, what: &str) -> PathBuf {
        self.dir.join(format!("{name}.{what}"))
    }

    fn file(&self, name: &str, what: &str) -> fs::File {
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).append(true);
        file.open(self.path(name, what)).unwrap()
    }

    fn text(&self, name: &str, what: &str) -> String {
        fs::read_to_string(self.path(name, what)).unwrap_or_default()
    }

    /// Returns the arguments for a strace that injects a fault, or lists all calls.
    fn tracing(&self, name: &str, fault: Option<&Fault>) -> Vec<String> {
        let path = self.path(name, "trace").display().to_string();
        let mut words = vec!["-o".to_owned(), path];
        if let Some(fault) = fault {
            // -Y prints the name of each killed process.
            let inject = format!("-Y -e trace={} -e {fault}", fault.call);
            words.extend(inject.split(' ').map(str::to_owned));
        }
        words
    }

    /// Returns the command line of a run of COMMAND.
    fn run(&self, options: &str, name: &str, work: &str) -> Vec<String> {
        let command = self.dir.join("command").display().to_string();
        let binary = self.binary.display().to_string();
        let mut words = vec![binary, "run".into()];
        words.extend(options.split(' ').map(str::to_owned));
        words.extend([name, "--", "perl", &command, work, name].map(str::to_owned));
        words
    }

    /// Plays a scene. Returns its name and the broken promises.
    fn play(&self, scene: &Scene, fault: Option<&Fault>) -> (String, Broken) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let name = format!("n{number}");
        let mut broken = Broken::new();
        let end = Instant::now() + LIMIT;
        let mut holder = (scene.name == "Queue").then(|| {
            let words = self.run("-q --ttl 5s", &name, "holder");
            let mut command = self.command(&words[0], &name);
            let held = command.args(&words[1..]).spawn().unwrap();
            until(end, || self.text(&name, "evidence").contains("began"));
            held
        });
        let already = self.text(&name, "evidence").len();
        let began = || self.text(&name, "evidence")[already..].contains(": began");
        let mut tested = self.start(scene, &name, fault);
        fs::write(self.path(&name, "go"), "").unwrap();
        until(end, || tested.try_wait().unwrap().is_some() || began());
        // A waiter that starts as soon as the lock is free.
        let next = if scene.leaves_work() && fault.is_some_and(|fault| fault.error.is_none()) {
            None
        } else {
            Some(self.follow(&name))
        };
        let mut status = end_of(&mut tested, end);
        match status {
            Some(status) => broken.extend(self.judge(scene, fault, status, &name)),
            // Only strace could resume the watchdog.
            None if self.strace_forgot_the_watchdog(&name, &tested) => {
                let _ = tested.kill();
                status = tested.wait().ok();
            }
            None => broken.push(format!("it hangs:\n{}", self.processes_in_words(&name))),
        }
        let pttl = self.redis.cli(&["PTTL", &format!("redlock:{name}")]);
        let pttl: i64 = pttl.parse().unwrap();
        if pttl == -1 || pttl > LONGEST_MS {
            broken.push(format!("the lock has no end: pttl {pttl}"));
        }
        if status.is_none() {
            self.kill_all(&name);
            let _ = tested.wait();
        }
        if let Some(mut next) = next {
            let came = end_of(&mut next, Instant::now() + LIMIT);
            if came.and_then(|status| status.code()) != Some(7) {
                broken.push(format!("the next run doesn't get the lock: {came:?}"));
                let _ = next.kill();
            }
            let _ = next.wait();
        }
        if let Some(holder) = &mut holder {
            let _ = holder.wait();
        }
        // strace kills each process at its own n-th call, possibly the watchdog too. Without its watchdog redlock leaves
        // COMMAND's process tree behind, as docs/guarantees.md documents.
        let is_alone = fault.is_some() && self.text(&name, "trace").contains(WATCHDOG_KILLED);
        // Processes that the kernel kills vanish a moment later.
        let patience = match fault {
            Some(Fault { error: None, .. }) if scene.leaves_work() || is_alone => Duration::ZERO,
            Some(_) | None => Duration::from_secs(4),
        };
        let mut left = Vec::new();
        until(Instant::now() + patience, || {
            left = self.processes(&name);
            left.is_empty()
        });
        if !left.is_empty() && !patience.is_zero() {
            broken.push(format!("left behind:\n{}", self.processes_in_words(&name)));
        }
        self.kill_all(&name);
        let evidence = self.text(&name, "evidence");
        // Reports each kind once; a wrong reply of Redis is reported below.
        let violations = evidence
            .lines()
            .filter_map(|line| line.split_once("VIOLATION: ")?.1.split(", but").next());
        // Another client that finds the lock gone may take it before this run notices and stops COMMAND.
        let is_expected =
            |what: &&str| (scene.name == "Lost" || is_alone) && *what == "beside another COMMAND";
        let violations: BTreeSet<&str> = violations.filter(|what| !is_expected(what)).collect();
        broken.extend(violations.into_iter().map(str::to_owned));
        if !broken.is_empty() {
            let stderr = self.text(&name, "stderr");
            broken.push(format!("status: {status:?}, stderr: {stderr:?}"));
            broken.push(format!("what COMMAND wrote: {evidence:?}"));
        }
        (name, broken)
    }

    fn start(&self, scene: &Scene, name: &str, fault: Option<&Fault>) -> Child {
        if scene.is_script() {
            let mut command = self.command("sh", name);
            command.args(["-c", SCRIPT, "sh", name]);
            command.args(self.tracing(name, fault));
            return command.spawn().expect("sh runs");
        }
        let mut command = self.command("strace", name);
        command
            .args(["-f", "-b", "execve"])
            .args(self.tracing(name, fault))
            .args(self.run(scene.options, name, scene.work));
        command.spawn().expect("strace is installed")
    }

    /// Starts an undisturbed run.
    fn follow(&self, name: &str) -> Child {
        let words = self.run("-q --wait 20s --ttl 5s", name, "next");
        let mut command = self.command(&words[0], name);
        command.env_remove("SWEEP_CASE").args(&words[1..]);
        command.spawn().expect("redlock runs")
    }

    /// Judges the exit status.
    fn judge(
        &self,
        scene: &Scene,
        fault: Option<&Fault>,
        status: ExitStatus,
        name: &str,
    ) -> Broken {
        let mut broken = Broken::new();
        let stderr = self.text(name, "stderr");
        let evidence = self.text(name, "evidence");
        let mut lines = evidence.lines();
        let done = lines.any(|line| line.starts_with(scene.work) && line.ends_with("done"));
        let killed = fault.is_some_and(|fault| fault.error.is_none());
        let documented = match (status.code(), status.signal()) {
            (Some(7), _) => done,
            // The last two: strace, and so a shell around it, ends like the process that it traces.
            (Some(69 | 75 | 77 | 78 | 79 | 124 | 125 | 126 | 137 | 143), _) => true,
            (Some(127), _) => fault.is_some_and(|fault| fault.call == "execve"),
            (_, Some(libc::SIGKILL)) => killed || scene.is_script(),
            (_, Some(libc::SIGTERM)) => scene.is_script(),
            _ => false,
        };
        if !documented {
            broken.push("that status isn't in the manual, or means something else".into());
        }
        if stderr.contains("panicked") {
            broken.push("it panics".into());
        }
        // redlock may have been killed between its last line and its end.
        let was_killed = stderr.contains("can't supervise the command any more, so it was killed");
        let unknowable = killed
            || was_killed
            || fault.is_some_and(|fault| ["wait4", "waitid"].contains(&fault.call.as_str()));
        if done && status.code() != Some(7) && !unknowable {
            broken.push("COMMAND's own status, 7, is lost".into());
        }
        let expected = scene.status;
        if fault.is_none() && status.code() != Some(expected) {
            broken.push(format!("without any fault it should end with {expected}"));
        }
        broken
    }

    fn processes(&self, name: &str) -> Vec<i32> {
        marked(&format!("SWEEP_CASE={}\0", self.mark(name)))
    }

    /// Returns true if only strace and a watchdog that strace has stopped remain, while strace waits for something else, which
    /// happens once in some thousand cases.
    fn strace_forgot_the_watchdog(&self, name: &str, strace: &Child) -> bool {
        let mut processes = self.processes(name);
        processes.retain(|&pid| u32::try_from(pid) != Ok(strace.id()));
        let is_forgotten =
            |&pid: &i32| proc(pid, "comm") == "rl-watchdog" && state(pid) == Some('t');
        !processes.is_empty() && processes.iter().all(is_forgotten)
    }

    fn processes_in_words(&self, name: &str) -> String {
        let lines: Vec<String> = self.processes(name).into_iter().map(described).collect();
        lines.join("\n")
    }

    /// Kills processes until none remains.
    fn kill_all(&self, name: &str) {
        for _ in 0..100 {
            let left = self.processes(name);
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns all cases of a scene: one without a fault, and each call in `main()` with each error.
    fn cases(&self, scene: &'static Scene) -> Vec<Case> {
        let (name, _) = self.play(scene, None);
        let trace = self.text(&name, "trace");
        let counts = counts(&trace);
        assert!(!counts.is_empty(), "{}: no calls in {trace:?}", scene.name);
        let mut cases = vec![Case { scene, fault: None }];
        for (call, (first, last)) in counts {
            // Calls of a loop over processes or files are alike.
            let step_of = |most: usize| (last - first) / most + 1;
            let (kills, errors) = (step_of(60), step_of(20));
            for count in first..=last {
                let faults = [None].into_iter().chain(ERRORS.map(Some));
                cases.extend(faults.filter_map(|error| {
                    let step = if error.is_none() { kills } else { errors };
                    if (count - first) % step != 0 {
                        return None;
                    }
                    // In this scene only a killed redlock leaves a survivor.
                    let of_interest = error.is_none()
                        || scene.name != "Family"
                            && !NEVER_FAIL.split(' ').any(|name| name == call);
                    let call = call.clone();
                    let fault = Some(Fault { call, count, error });
                    of_interest.then_some(Case { scene, fault })
                }));
            }
        }
        cases
    }
}

/// Returns, for each name, its first call in `main()` and the last call of the thread that made it most often.
fn counts(trace: &str) -> BTreeMap<String, (usize, usize)> {
    let mut by_thread: HashMap<(&str, &str), usize> = HashMap::new();
    let mut before_main: HashMap<&str, usize> = HashMap::new();
    let mut in_main = false;
    for line in trace.lines() {
        let (thread, rest) = line.split_once(' ').unwrap_or_default();
        let Some((call, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if call.is_empty() || !call.bytes().all(is_name) {
            continue;
        }
        // `main()` begins by reading the configuration.
        in_main |= rest.contains("redlock.env");
        if !in_main {
            *before_main.entry(call).or_default() += 1;
        }
        *by_thread.entry((thread, call)).or_default() += 1;
    }
    let mut counts = BTreeMap::new();
    for ((_, call), count) in by_thread {
        let first = before_main.get(call).copied().unwrap_or(0) + 1;
        let (_, last) = counts.entry(call.to_owned()).or_insert((first, 0));
        *last = count.max(*last);
    }
    counts.retain(|_, (first, last)| first <= last);
    counts
}

/// Waits for a condition, until `end` at most.
fn until(end: Instant, mut condition: impl FnMut() -> bool) {
    while !condition() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for the end of a process, until `end` at most.
fn end_of(process: &mut Child, end: Instant) -> Option<ExitStatus> {
    until(end, || process.try_wait().unwrap().is_some());
    process.try_wait().unwrap()
}

/// Returns a fixed selection of the cases, in steps that cover all errors and scenes.
fn some(cases: Vec<Case>) -> Vec<Case> {
    let mut step = cases.len().div_ceil(SOME);
    while step.is_multiple_of(2) || step.is_multiple_of(3) {
        step += 1;
    }
    let cases = cases.into_iter().enumerate();
    let wanted = cases.filter(|(number, case)| case.fault.is_none() || number % step == 0);
    wanted.map(|(_, case)| case).collect()
}

#[test]
fn a_failed_or_last_system_call_leaves_no_command_without_the_lock_and_no_process() {
    let sweep = Sweep::new();
    let wanted = std::env::var("REDLOCK_SWEEP").unwrap_or_default();
    let is_named = |scene: &Scene| wanted.starts_with(&format!("{} ", scene.name));
    let any_named = SCENES.iter().any(is_named);
    let scenes = SCENES.iter().filter(|scene| is_named(scene) || !any_named);
    let mut cases: Vec<Case> = scenes.flat_map(|scene| sweep.cases(scene)).collect();
    let all = cases.len();
    match wanted.as_str() {
        "all" => {}
        "" => cases = some(cases),
        text => cases.retain(|case| case.to_string().contains(text)),
    }
    assert!(!cases.is_empty(), "no case is {wanted:?}");
    let began = Instant::now();
    // Twice as many threads as cores, because a case mostly waits.
    let broken = on_threads(2 * cores(), cases.len(), |number| {
        let case = &cases[number];
        let (_, what) = sweep.play(case.scene, case.fault.as_ref());
        let again = format!("again: REDLOCK_SWEEP='{case}'");
        let lines = what.join("\n    ");
        (!what.is_empty()).then(|| format!("{case}\n    {lines}\n    {again}"))
    });
    let broken: Vec<String> = broken.into_iter().flatten().collect();
    let (count, failed, time) = (cases.len(), broken.len(), began.elapsed());
    let summary = format!("{count} of {all} cases in {time:?}, {failed} broken\n");
    std::io::stdout().write_all(summary.as_bytes()).unwrap();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

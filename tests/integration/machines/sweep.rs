//! Each system call of a run, and of a keeper, fails once, or is the last: SIGKILL comes right before it.
//!
//! strace tells which calls there are, and then makes one of them fail in each case. What has to hold
//! however it ends: COMMAND never works without the lock or beside another one, nothing of the case is
//! left, the lock is free within its TTL, and the status is one of the manual.
//!
//! Of a call that is made in a loop over processes or files, some are hit. `make test` runs a few of the
//! cases, always the same; `make sweep` runs all (`REDLOCK_SWEEP=all`), with
//! the binary of `REDLOCK_BIN` where that is set. `REDLOCK_SWEEP=TEXT` runs those whose line contains it.
//!
//! What can't be tested this way: a call that the renewing thread makes for the n-th time, where the
//! main thread made one of that name n times before it (the count is each thread's own); what happens
//! before `main()`, in the C library.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Display};
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{REDLOCK, Redis, script, state, without_terminal};

/// How long a case may take before it counts as one that hangs.
const LIMIT: Duration = Duration::from_secs(40);

/// How strace reports the end of a watchdog.
const WATCHDOG_KILLED: &str = "<rl-watchdog> +++ killed by SIGKILL";

/// How many cases the short form has.
const SOME: usize = 70;

/// The errors of a machine that has run out of something.
const ERRORS: [&str; 5] = ["ENOMEM", "EMFILE", "EAGAIN", "EIO", "ENOSPC"];

/// Calls that can't fail, or whose failure is ignored. Where close fails, the descriptor is closed
/// all the same, which strace doesn't do; and a futex that wakes no thread isn't a failure.
const NEVER_FAIL: [&str; 20] = [
    "arch_prctl",
    "close",
    "exit",
    "exit_group",
    "futex",
    "getegid",
    "geteuid",
    "getgid",
    "getpid",
    "getppid",
    "getrandom",
    "gettid",
    "getuid",
    "munmap",
    "restart_syscall",
    "rseq",
    "rt_sigreturn",
    "sched_yield",
    "set_robust_list",
    "set_tid_address",
];

/// What a case does while strace looks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scene {
    /// A run that finds the lock free.
    Free,
    /// A run that waits in the queue first.
    Queue,
    /// A run whose COMMAND is deaf to TERM, and so is what it started, until --max-runtime.
    Timeout,
    /// The same, but its lock is taken away.
    Lost,
    /// A run whose COMMAND has started something that goes on after it is killed.
    Family,
    /// A script takes a lock, and a keeper stays behind.
    Acquire,
    /// The same, but only the keeper is hit.
    Keeper,
}

/// How long the lease of each is.
const TTL_MS: i64 = 3000;

impl Scene {
    const ALL: [Self; 7] = [
        Self::Free,
        Self::Queue,
        Self::Timeout,
        Self::Lost,
        Self::Family,
        Self::Acquire,
        Self::Keeper,
    ];

    /// The options of the run.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Free | Self::Queue => &["--ttl", "3s"],
            Self::Timeout => &["--ttl", "3s", "-k", "100ms", "-t", "150ms"],
            Self::Lost | Self::Family | Self::Acquire | Self::Keeper => {
                &["--ttl", "3s", "-k", "100ms"]
            }
        }
    }

    /// What COMMAND does.
    fn work(self) -> &'static str {
        match self {
            Self::Free | Self::Queue | Self::Acquire | Self::Keeper => "work",
            Self::Timeout => "deaf",
            Self::Lost => "lost",
            Self::Family => "family",
        }
    }

    fn is_script(self) -> bool {
        matches!(self, Self::Acquire | Self::Keeper)
    }

    /// Returns whether what COMMAND started may work on when redlock is killed.
    fn leaves_work(self) -> bool {
        matches!(self, Self::Timeout | Self::Lost)
    }
}

/// What happens to the n-th call of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    call: String,
    count: usize,
    /// `None`: SIGKILL comes before it.
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

#[derive(Clone, Debug)]
struct Case {
    scene: Scene,
    fault: Option<Fault>,
}

impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fault {
            Some(fault) => write!(f, "{:?} {fault}", self.scene),
            None => write!(f, "{:?} without a fault", self.scene),
        }
    }
}

/// COMMAND. It writes down what it sees, holds a witness that all COMMANDs of one lock share, and asks
/// Redis again and again whether the lock is ours.
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
    # Where this machine stood still, a lease may have ended; the witness still counts.
    if (!$told && $now < $last + 0.2) {
        my $seen = ask("GET redlock:$name");
        # Looked at again: all may have stood still since the time was taken.
        note "VIOLATION: no lock, but $seen" if $seen !~ /\Q$token\E\r/ && time < $now + 0.2;
    }
    $last = $now;
    sleep 0.01;
}
# The lock is released when COMMAND ends, even if its child lived on: so it ends first.
waitpid $child, 0 if $child;
note "done";
exit 7;
"#;

/// A script that takes a lock; the strace that looks on lives as long as the keeper, and is out of its
/// way.
const SCRIPT: &str = r#"name=$1; shift
strace -DDD -f "$@" "$SWEEP_BIN" acquire "$name" --while-pid $$ --ttl 3s -k 100ms >"$SWEEP_DIR/$name.env" || exit
. "$SWEEP_DIR/$name.env"
until [ -e "$SWEEP_DIR/$name.go" ]; do sleep 0.01; done
exec perl "$SWEEP_DIR/command" work "$name"
"#;

/// What all cases share.
struct Sweep {
    redis: Redis,
    dir: PathBuf,
    binary: PathBuf,
    number: AtomicUsize,
}

/// What became of a case: what broke, a line each.
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

    /// A command with the environment of a case, in a session of its own.
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

    /// What the processes of a case have in their environment.
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

    /// The arguments of a strace that lets a fault happen, or writes down what there is.
    fn tracing(&self, name: &str, fault: Option<&Fault>) -> Vec<String> {
        let words: Vec<String> = match fault {
            Some(fault) => vec![
                // With the name of each process that is killed.
                "-Y".into(),
                "-o".into(),
                self.path(name, "trace").to_str().unwrap().into(),
                "-e".into(),
                format!("trace={}", fault.call),
                "-e".into(),
                fault.to_string(),
            ],
            None => vec![
                "-o".into(),
                self.path(name, "trace").to_str().unwrap().into(),
            ],
        };
        words
    }

    /// A run of COMMAND, as words.
    fn run(&self, options: &[&str], name: &str, work: &str) -> Vec<String> {
        let command = self.dir.join("command");
        let mut words = vec![self.binary.to_str().unwrap().to_owned(), "run".into()];
        words.extend(options.iter().map(|&word| word.to_owned()));
        words
            .extend([name, "--", "perl", command.to_str().unwrap(), work, name].map(str::to_owned));
        words
    }

    /// The lines that repeat a case: by the test, and by hand.
    fn repeat(&self, case: &Case) -> String {
        let inject = case.fault.as_ref().map(|fault| format!(" -e {fault}"));
        let inject = inject.unwrap_or_default();
        let by_hand = match case.scene {
            Scene::Keeper => format!("strace -f{inject} -p KEEPER"),
            Scene::Acquire => format!(
                "strace -f{inject} {} acquire NAME --while-pid $$ --ttl 3s -k 100ms",
                self.binary.display()
            ),
            Scene::Free | Scene::Queue | Scene::Timeout | Scene::Lost | Scene::Family => format!(
                "strace -f -b execve{inject} {} run {} NAME -- COMMAND",
                self.binary.display(),
                case.scene.options().join(" ")
            ),
        };
        format!("REDLOCK_SWEEP='{case}' cargo test --test integration sweep::\n    as: {by_hand}")
    }

    /// Goes through a scene, and says what broke.
    fn play(&self, scene: Scene, fault: Option<&Fault>) -> (String, Broken) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let name = format!("n{number}");
        let mut broken = Broken::new();
        let end = Instant::now() + LIMIT;
        let mut holder = (scene == Scene::Queue).then(|| {
            let words = self.run(&["-q", "--ttl", "5s"], &name, "holder");
            let held = self
                .command(&words[0], &name)
                .args(&words[1..])
                .spawn()
                .unwrap();
            until(end, || self.text(&name, "evidence").contains("began"));
            held
        });
        let already = self.text(&name, "evidence").len();
        let began = || self.text(&name, "evidence")[already..].contains(": began");
        let mut tested = self.start(scene, &name, fault);
        if scene == Scene::Keeper {
            self.meet_keeper(&name, &mut tested, fault, end);
        }
        fs::write(self.path(&name, "go"), "").unwrap();
        let mut status = None;
        until(end, || {
            status = tested.try_wait().unwrap();
            status.is_some() || began()
        });
        // A waiter, which starts as soon as the lock is free.
        let next = if scene.leaves_work() && fault.is_some_and(|fault| fault.error.is_none()) {
            None
        } else {
            Some(self.follow(&name))
        };
        until(end, || {
            status = status.or_else(|| tested.try_wait().unwrap());
            status.is_some()
        });
        match status {
            Some(status) => broken.extend(self.judge(scene, fault, status, &name)),
            // Only strace can let it go on: without strace it has to end.
            None if self.strace_forgot_the_watchdog(&name, &tested) => {
                let _ = tested.kill();
                status = tested.wait().ok();
            }
            None => broken.push(format!("it hangs:\n{}", self.processes_in_words(&name))),
        }
        let pttl: i64 = self
            .redis
            .cli(&["PTTL", &format!("redlock:{name}")])
            .parse()
            .unwrap();
        if pttl == -1 || pttl > TTL_MS.max(5000) {
            broken.push(format!("the lock has no end: pttl {pttl}"));
        }
        if status.is_none() {
            self.kill_all(&name);
            let _ = tested.wait();
        }
        if let Some(mut next) = next {
            let mut came = None;
            until(Instant::now() + LIMIT, || {
                came = next.try_wait().unwrap();
                came.is_some()
            });
            if came.and_then(|status| status.code()) != Some(7) {
                broken.push(format!("the next run doesn't get the lock: {came:?}"));
                let _ = next.kill();
            }
            let _ = next.wait();
        }
        if let Some(holder) = &mut holder {
            let _ = holder.wait();
        }
        // The kill of the n-th call is for each process that makes so many of them. With its watchdog redlock leaves
        // COMMAND's tree behind, as docs/guarantees.md says.
        let is_alone = fault.is_some() && self.text(&name, "trace").contains(WATCHDOG_KILLED);
        // Processes that the kernel kills are gone a moment later.
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
        // Each kind once: what Redis answered instead of the token is reported below.
        let violations = evidence
            .lines()
            .filter_map(|line| line.split_once("VIOLATION: ")?.1.split(", but").next());
        // Who finds the lock gone may have it before its run has noticed that and has stopped COMMAND.
        let is_expected =
            |what: &&str| (scene == Scene::Lost || is_alone) && *what == "beside another COMMAND";
        let violations: BTreeSet<&str> = violations.filter(|what| !is_expected(what)).collect();
        broken.extend(violations.into_iter().map(str::to_owned));
        if !broken.is_empty() {
            broken.push(format!(
                "status: {status:?}, stderr: {:?}",
                self.text(&name, "stderr")
            ));
            broken.push(format!("what COMMAND wrote: {evidence:?}"));
        }
        (name, broken)
    }

    fn start(&self, scene: Scene, name: &str, fault: Option<&Fault>) -> Child {
        if scene.is_script() {
            let mut command = self.command("sh", name);
            command.args(["-c", SCRIPT, "sh", name]);
            if scene == Scene::Keeper {
                // With -I 2 it heeds TERM.
                command.args(["-I", "2", "-o", "/dev/null", "-e", "trace=setsid"]);
                command.args(["-e", "inject=setsid:signal=STOP"]);
            } else {
                command.args(self.tracing(name, fault));
            }
            return command.spawn().expect("sh runs");
        }
        let mut command = self.command("strace", name);
        command
            .args(["-f", "-b", "execve"])
            .args(self.tracing(name, fault))
            .args(self.run(scene.options(), name, scene.work()));
        command.spawn().expect("strace is installed")
    }

    /// Another strace takes over when the keeper begins, so that its calls are counted from there.
    fn meet_keeper(&self, name: &str, script: &mut Child, fault: Option<&Fault>, end: Instant) {
        let script_pid: i32 = script.id().try_into().unwrap();
        let mut keeper = None;
        until(end, || {
            // The suspended one; acquire itself has ended when its child is the keeper.
            keeper = self.processes(name).into_iter().find(|&pid| {
                let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let is_redlock = words.starts_with(self.binary.as_os_str().as_encoded_bytes());
                pid != script_pid
                    && is_redlock
                    && matches!(state(pid), Some('t' | 'T'))
                    && leads_session(pid)
            });
            keeper.is_some() || script.try_wait().unwrap().is_some()
        });
        let Some(keeper) = keeper else {
            return;
        };
        let tracer = || field(keeper, "TracerPid:").unwrap_or(0);
        if tracer() != 0 {
            let _ = kill(Pid::from_raw(tracer()), Signal::SIGTERM);
        }
        until(end, || tracer() == 0);
        // It may go on when the tracer leaves it.
        let _ = kill(Pid::from_raw(keeper), Signal::SIGSTOP);
        until(end, || state(keeper) == Some('T'));
        let mut second = self.command("strace", name);
        second
            .args(["-f", "-p", &keeper.to_string()])
            .args(self.tracing(name, fault));
        let mut second = second.stderr(Stdio::null()).spawn().unwrap();
        until(end, || {
            tracer() != 0 || second.try_wait().unwrap().is_some()
        });
        let _ = kill(Pid::from_raw(keeper), Signal::SIGCONT);
        // Reaped when the keeper has ended.
        std::thread::spawn(move || second.wait());
    }

    /// An undisturbed run.
    fn follow(&self, name: &str) -> Child {
        let words = self.run(&["-q", "--wait", "20s", "--ttl", "5s"], name, "next");
        let mut command = self.command(&words[0], name);
        command.env_remove("SWEEP_CASE").args(&words[1..]);
        command.spawn().expect("redlock runs")
    }

    /// What is wrong with how it ended.
    fn judge(&self, scene: Scene, fault: Option<&Fault>, status: ExitStatus, name: &str) -> Broken {
        let mut broken = Broken::new();
        let stderr = self.text(name, "stderr");
        let evidence = self.text(name, "evidence");
        let done = evidence
            .lines()
            .any(|line| line.starts_with(scene.work()) && line.ends_with("done"));
        let killed = fault.is_some_and(|fault| fault.error.is_none());
        let documented = match (status.code(), status.signal()) {
            (Some(7), _) => done,
            // The last two: strace, and so a shell around it, end as the process they look at.
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
        // It may have been killed between its last line and its end.
        let was_killed = stderr.contains("can't supervise the command any more, so it was killed");
        let unknowable = killed
            || was_killed
            || fault.is_some_and(|fault| ["wait4", "waitid"].contains(&fault.call.as_str()));
        if done && status.code() != Some(7) && !unknowable {
            broken.push("COMMAND's own status, 7, is lost".into());
        }
        if fault.is_none() {
            let expected = match scene {
                Scene::Timeout => 124,
                Scene::Lost => 79,
                Scene::Free | Scene::Queue | Scene::Family | Scene::Acquire | Scene::Keeper => 7,
            };
            if status.code() != Some(expected) {
                broken.push(format!("without any fault it should end with {expected}"));
            }
        }
        broken
    }

    /// The living processes of a case.
    fn processes(&self, name: &str) -> Vec<i32> {
        let mark = format!("SWEEP_CASE={}", self.mark(name)).into_bytes();
        marked(&mark)
    }

    /// Whether nothing is left but a watchdog that strace has stopped, and strace, which waits for something else to happen.
    /// That comes once in some thousand cases.
    fn strace_forgot_the_watchdog(&self, name: &str, strace: &Child) -> bool {
        let mut processes = self.processes(name);
        processes.retain(|&pid| u32::try_from(pid) != Ok(strace.id()));
        let is_forgotten = |&pid: &i32| {
            let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            program.trim() == "rl-watchdog" && state(pid) == Some('t')
        };
        !processes.is_empty() && processes.iter().all(is_forgotten)
    }

    fn processes_in_words(&self, name: &str) -> String {
        let in_words = |pid: i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            let channel = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            let words: String = words.chars().take(200).collect();
            format!("  {pid} {:?} {channel} {words}", state(pid))
        };
        let lines: Vec<String> = self.processes(name).into_iter().map(in_words).collect();
        lines.join("\n")
    }

    /// Until no process is left.
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

    /// All cases of a scene: none fails; each call after `main()` has begun, with each error.
    fn cases(&self, scene: Scene) -> Vec<Case> {
        // What breaks here breaks when it is its turn, too.
        let (name, _) = self.play(scene, None);
        let trace = self.text(&name, "trace");
        let counts = counts(&trace, scene != Scene::Keeper);
        assert!(!counts.is_empty(), "{scene:?}: no calls in {trace:?}");
        let mut cases = vec![Case { scene, fault: None }];
        for (call, (first, last)) in counts {
            // What is done with each process of a machine, or with each file of a directory, is done alike.
            let step_of = |most: usize| (last - first) / most + 1;
            let (kills, errors) = (step_of(60), step_of(20));
            for count in first..=last {
                let faults = [None].into_iter().chain(ERRORS.map(Some));
                cases.extend(faults.filter_map(|error| {
                    let step = if error.is_none() { kills } else { errors };
                    if (count - first) % step != 0 {
                        return None;
                    }
                    // Where something goes on after redlock is killed, that alone is of interest.
                    let of_interest = match error {
                        None => true,
                        Some(_) => scene != Scene::Family && !NEVER_FAIL.contains(&call.as_str()),
                    };
                    let call = call.clone();
                    let fault = Some(Fault { call, count, error });
                    of_interest.then_some(Case { scene, fault })
                }));
            }
        }
        cases
    }
}

/// How often each call was made, by the thread that made it most often; and where to begin counting,
/// as what comes before `main()` is the C library's.
fn counts(trace: &str, from_start: bool) -> BTreeMap<String, (usize, usize)> {
    let mut by_thread: HashMap<&str, HashMap<&str, usize>> = HashMap::new();
    let mut before_main: HashMap<&str, usize> = HashMap::new();
    let mut in_main = !from_start;
    for line in trace.lines() {
        // A trace of a single process has no numbers.
        let (thread, rest) = line.split_once(' ').unwrap_or_default();
        let Some((call, _)) = rest.trim_start().split_once('(') else {
            continue;
        };
        if call.is_empty()
            || !call
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            continue;
        }
        // The runtime's preparations end when the configuration is looked for.
        if !in_main && rest.contains("redlock.env") {
            in_main = true;
        }
        if !in_main {
            *before_main.entry(call).or_default() += 1;
        }
        *by_thread
            .entry(thread)
            .or_default()
            .entry(call)
            .or_default() += 1;
    }
    let mut counts = BTreeMap::new();
    for calls in by_thread.values() {
        for (&call, &count) in calls {
            let first = before_main.get(call).copied().unwrap_or(0) + 1;
            let (_, last) = counts.entry(call.to_owned()).or_insert((first, 0));
            *last = count.max(*last);
        }
    }
    counts.retain(|_, (first, last)| first <= last);
    counts
}

/// The living processes that have a text in their environment.
pub fn marked(mark: &[u8]) -> Vec<i32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|&byte| byte == 0)
            .any(|variable| variable == mark)
    })
    .collect()
}

/// Waits for a condition, at most until a moment.
fn until(end: Instant, mut condition: impl FnMut() -> bool) {
    while !condition() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn leads_session(pid: i32) -> bool {
    nix::unistd::getsid(Some(Pid::from_raw(pid))) == Ok(Pid::from_raw(pid))
}

fn field(pid: i32, name: &str) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Some of the cases, the same each time. In steps that go through all errors and scenes.
fn some(cases: Vec<Case>) -> Vec<Case> {
    let mut step = cases.len().div_ceil(SOME);
    while step.is_multiple_of(2) || step.is_multiple_of(3) {
        step += 1;
    }
    let cases = cases.into_iter().enumerate();
    let wanted = cases.filter(|(number, case)| case.fault.is_none() || number % step == 0);
    wanted.map(|(_, case)| case).collect()
}

/// Which case broke what, in short: a line for each scene, call and promises.
fn table(broken: &[(&Case, Broken)]) -> String {
    let mut lines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (case, what) in broken {
        let Case { scene, fault } = case;
        // The last two tell the circumstances.
        let promises: BTreeSet<&str> = what[..what.len().saturating_sub(2)]
            .iter()
            .filter_map(|what| what.lines().next()?.split(": ").next())
            .map(|what| what.trim_end_matches(':'))
            .collect();
        let promises: Vec<&str> = promises.into_iter().collect();
        let (call, which) = match fault {
            Some(Fault { call, count, error }) => (
                call.as_str(),
                format!("{}@{count}", error.unwrap_or("KILL")),
            ),
            None => ("-", "without a fault".to_owned()),
        };
        let line = format!("{scene:?} {call}: {}", promises.join("; "));
        lines.entry(line).or_default().push(which);
    }
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(line, faults)| format!("{line}\n    {}", faults.join(" ")))
        .collect();
    lines.join("\n")
}

#[test]
fn whichever_call_fails_or_is_the_last_no_command_runs_without_the_lock_and_nothing_is_left() {
    let sweep = Sweep::new();
    let wanted = std::env::var("REDLOCK_SWEEP").unwrap_or_default();
    let is_named = |scene: &Scene| wanted.starts_with(&format!("{scene:?} "));
    let any_named = Scene::ALL.iter().any(is_named);
    let mut cases: Vec<Case> = Scene::ALL
        .into_iter()
        .filter(|scene| is_named(scene) || !any_named)
        .flat_map(|scene| sweep.cases(scene))
        .collect();
    let all = cases.len();
    match wanted.as_str() {
        "all" => {}
        "" => cases = some(cases),
        text => cases.retain(|case| case.to_string().contains(text)),
    }
    assert!(!cases.is_empty(), "no case is {wanted:?}");
    let next = AtomicUsize::new(0);
    let broken = Mutex::new(Vec::new());
    // Most of the time a case waits.
    let workers = 2 * std::thread::available_parallelism().map_or(2, usize::from);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (_, what) = sweep.play(case.scene, case.fault.as_ref());
                    if !what.is_empty() {
                        broken.lock().unwrap().push((case, what));
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().unwrap();
    let summary = format!(
        "{} of {all} cases in {:?}, {} broken\n",
        cases.len(),
        began.elapsed(),
        broken.len()
    );
    // Also where all is well, if all cases were requested.
    std::io::stdout().write_all(summary.as_bytes()).unwrap();
    let in_full = broken.iter().map(|(case, what)| {
        let what = what.join("\n    ");
        format!("{case}\n    {what}\n    again: {}", sweep.repeat(case))
    });
    let in_full: Vec<String> = in_full.collect();
    assert!(
        broken.is_empty(),
        "{}\n\n{}",
        in_full.join("\n"),
        table(&broken)
    );
}

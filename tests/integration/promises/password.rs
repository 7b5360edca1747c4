//! A command that prints the password: run for each new connection, beside COMMAND and no part of it, and
//! what becomes of locks and waiters when a password is over.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{
    Gated, Redis, Running, TIMEOUT, is_alive, outcome, redlock, send, state, wait_until,
    with_signals,
};

/// What the user may do, as docs/servers.md prints it, and more.
const RULES: [&str; 6] = ["reset", "on", "~*", "&*", "+@all", ">one"];

/// A server with the user "jobs", whose password is in a file beside its socket, and a command that says
/// each of its runs in another file.
struct Tokens {
    redis: Redis,
    url: String,
    command: String,
}

impl Tokens {
    fn new() -> Self {
        Self::printing("cat token")
    }

    fn printing(script: &str) -> Self {
        let redis = Redis::start();
        redis.cli(&[&["ACL", "SETUSER", "jobs"], &RULES[..]].concat());
        let dir = redis.dir.path().display();
        let command = format!("cd {dir} || exit; echo $$ $PPID >>runs; {script}");
        let url = format!("redis://jobs@127.0.0.1:{}", redis.port);
        let tokens = Self {
            redis,
            url,
            command,
        };
        tokens.write("token", "one\n");
        tokens
    }

    fn file(&self, name: &str) -> PathBuf {
        self.redis.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// The pids of the commands that were started, and of those that have started them.
    fn started(&self) -> Vec<(i32, i32)> {
        let runs = self.read("runs");
        let pids = runs.lines().map(|line| line.split_once(' ').unwrap());
        pids.map(|(pid, by)| (pid.parse().unwrap(), by.parse().unwrap()))
            .collect()
    }

    /// The pids of the commands that were started.
    fn runs(&self) -> Vec<i32> {
        self.started().into_iter().map(|(pid, _)| pid).collect()
    }

    /// How many this redlock has started.
    fn runs_of(&self, redlock: &Running) -> usize {
        let is_its = |(_, by): &(i32, i32)| *by == redlock.pid();
        self.started().iter().filter(|run| is_its(run)).count()
    }

    fn redlock(&self, words: &[&str]) -> Command {
        let mut command = self.redis.redlock(words);
        command
            .env("REDLOCK_URL", &self.url)
            .env("REDLOCK_PASSWORD_COMMAND", &self.command);
        command
    }

    fn run(&self, words: &str, script: &str) -> Command {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.redlock(&[&["run"], &words[..], &["-c", script]].concat())
    }

    /// The old password is over, and so are all connections that it has opened.
    fn change(&self, password: &str) {
        let new = format!(">{password}");
        self.redis.cli(words!("ACL SETUSER jobs resetpass", &new));
        self.write("token", &format!("{password}\n"));
        self.kill_connections();
    }

    fn kill_connections(&self) {
        self.redis.cli(&["CLIENT", "KILL", "USER", "jobs"]);
    }

    /// Waits until the lock "a" was renewed over a connection that is new.
    fn wait_until_renewed_anew(&self, runs_before: usize) {
        wait_until("a fresh password is asked for", || {
            self.runs().len() > runs_before
        });
        let renewals = self.redis.calls("pexpire");
        wait_until("it is renewed", || self.redis.calls("pexpire") > renewals);
    }
}

#[test]
fn the_password_is_what_the_command_prints_for_each_connection_and_never_shown() {
    let tokens = Tokens::new();
    tokens.change("hunter2");
    let script =
        "tr '\\0' '\\n' </proc/$PPID/cmdline; env; redlock status --json; redlock -v status";
    let run = outcome(&mut tokens.run("-v a", script));
    run.assert_code(0);
    assert!(!format!("{run:?}").contains("hunter2"), "{run:?}");
    let history = outcome(&mut tokens.redlock(&["history", "--json"]));
    history.assert_code(0).assert_silent();
    assert!(!format!("{history:?}").contains("hunter2"), "{history:?}");
    // One for each command, as each needs one connection.
    assert_eq!(tokens.runs().len(), 4);
}

#[test]
fn the_error_of_a_password_command_is_printed_at_once() {
    let tokens = Tokens::new();
    let end = |command: &str| {
        let hangs = command.starts_with("sleep");
        let timeout = if hangs { "1s" } else { "60s" };
        let run = words!("run --connect-timeout {} a -- echo ran", timeout);
        let mut run = tokens.redlock(run);
        outcome(run.env("REDLOCK_PASSWORD_COMMAND", command))
    };
    for (command, status, says) in [
        (
            "echo oops >&2; exit 3",
            78,
            "ended with status 3; run it by hand",
        ),
        ("kill -9 $$", 78, "was killed by signal 9"),
        ("true", 78, "printed nothing; it must print the password"),
        ("head -c 65537 /dev/zero", 78, "printed more than 64 KiB"),
        (
            "sleep 60; true",
            78,
            "didn't end within 1.0s and was killed; --connect-timeout",
        ),
        ("redlock status; echo one", 78, "printed nothing"),
        (
            "echo two",
            77,
            "refused user \"jobs\": the password that the password command ($REDLOCK_PASSWORD_COMMAND) printed is wrong, or there is no such user",
        ),
    ] {
        let command = command.replace("echo one", "true");
        let end = end(&command);
        end.assert_code(status).assert_says(says);
        assert_eq!(end.stdout, "", "{command}");
    }
    // Its standard error is ours.
    end("echo oops >&2; exit 3").assert_says("oops\n");
    // A run that would start itself again and again.
    let mut again = tokens.redlock(&["status"]);
    outcome(again.env("REDLOCK_PASSWORD_COMMAND", "redlock status").env(
        "XDG_CONFIG_HOME",
        configured("REDLOCK_PASSWORD_COMMAND='echo one'\n").path(),
    ))
    .assert_code(78)
    .assert_says("the password command runs redlock, which would run the password command again");
    assert_eq!(tokens.redis.keys(), [""; 0]);
}

#[test]
fn a_command_that_hangs_is_killed_with_all_that_it_has_started() {
    let hang = "if [ -e hangs ]; then sleep 60 & echo $! >>children; wait; fi";
    let tokens = Tokens::printing(&format!("{hang}; cat token"));
    let _holder = Gated::start(&tokens.redis, &["a"]).ready();
    let mut waiter = tokens.redlock(&["--connect-timeout", "4s", "run", "a", "--", "true"]);
    let mut waiter = Running::start(&mut waiter);
    waiter.wait_until_queued(&tokens.redis);
    tokens.write("hangs", "");
    let mut status = tokens.redlock(&["--connect-timeout", "2s", "status"]);
    outcome(&mut status).assert_code(78);
    // A signal while it hangs: the next one is asked for a connection over which to leave the queue.
    let children = || {
        let children = tokens.read("children");
        let pids = children.lines().map(|pid| pid.parse().unwrap());
        pids.collect::<Vec<i32>>()
    };
    let before = children().len();
    tokens.kill_connections();
    wait_until("it hangs", || children().len() > before);
    waiter.signal(Signal::SIGTERM);
    waiter.finish().assert_code(143);
    let left = [tokens.runs(), children()].concat();
    wait_until("all are gone", || !left.iter().any(|&pid| is_alive(pid)));
}

/// A directory for `XDG_CONFIG_HOME` with this configuration file.
fn configured(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("redlock.env"), text).unwrap();
    directory
}

#[test]
fn of_a_password_file_and_a_command_the_one_counts_that_is_set_closer() {
    let redis = Redis::with(&["--requirepass", "one"]);
    let file = redis.dir.path().join("file");
    fs::write(&file, "one\n").unwrap();
    let file = file.to_str().unwrap();
    let (good, bad) = ("echo one", "echo two");
    let status = |options: &[&str], variables: &[(&str, &str)], settings: &str| {
        let config = configured(settings);
        let mut command = redlock(&[options, &["status"]].concat());
        command
            .env("REDLOCK_URL", redis.tcp_url())
            .env("XDG_CONFIG_HOME", config.path())
            .envs(variables.iter().copied());
        let end = outcome(&mut command);
        (end.code().unwrap(), end.stderr)
    };
    let is = |code: i32, (found, stderr): (i32, String)| assert_eq!(code, found, "{stderr}");
    is(0, status(&["--password-command", good], &[], ""));
    // An option before a variable.
    let no_file = [("REDLOCK_PASSWORD_FILE", "/nowhere")];
    let wrong = [("REDLOCK_PASSWORD_COMMAND", bad)];
    is(0, status(&["--password-command", good], &no_file, ""));
    is(0, status(&["--password-file", file], &wrong, ""));
    // A variable before a file; of that, nothing is used that stands beside a URL of less weight.
    let here = format!("REDLOCK_URL={}\n", redis.tcp_url());
    let set = |variables: &[(&str, &str)], settings: &str| {
        let config = configured(&format!("{here}{settings}"));
        let mut command = redlock(&["status"]);
        command
            .env("XDG_CONFIG_HOME", config.path())
            .envs(variables.iter().copied());
        let end = outcome(&mut command);
        (end.code().unwrap(), end.stderr)
    };
    is(0, set(&[], &format!("REDLOCK_PASSWORD_COMMAND={good}\n")));
    let file_variable = [("REDLOCK_PASSWORD_FILE", file)];
    is(
        0,
        set(&file_variable, &format!("REDLOCK_PASSWORD_COMMAND={bad}\n")),
    );
    let command_variable = [("REDLOCK_PASSWORD_COMMAND", good)];
    is(
        0,
        set(&command_variable, "REDLOCK_PASSWORD_FILE=/nowhere\n"),
    );
    let (code, said) = status(&[], &[], &format!("REDLOCK_PASSWORD_COMMAND={good}\n"));
    assert!(code == 77 && said.contains("requires a password"), "{said}");
    // Two in one place.
    let both = [file_variable, command_variable].concat();
    let (code, said) = status(&[], &both, "");
    let says = "REDLOCK_PASSWORD_COMMAND: REDLOCK_PASSWORD_FILE is set in the same place; remove one of the two";
    assert!(code == 78 && said.contains(says), "{said}");
    let lines = format!("REDLOCK_PASSWORD_FILE={file}\nREDLOCK_PASSWORD_COMMAND={good}\n");
    let (code, said) = set(&[], &lines);
    let line = format!("redlock.env:3: {says}");
    assert!(code == 78 && said.contains(&line), "{said}");
    // What stands closer decides.
    is(0, set(&file_variable, &lines));
    is(0, status(&["--password-command", good], &both, ""));
    let options = ["--password-file", file, "--password-command", good];
    is(64, status(&options, &[], ""));
}

#[test]
fn holders_keepers_and_waiters_outlive_their_password() {
    let tokens = Tokens::new();
    let mut holder =
        Running::start(&mut tokens.run("-v --ttl 15s -k 100ms a", "echo ready; read go <~/gate"));
    let mut gate = crate::support::Gate::new(&tokens.redis);
    holder.expect_line("ready");
    let keep =
        "eval \"$(redlock acquire --ttl 15s -k 100ms --while-pid $$ b)\"; echo kept; sleep 300";
    let script = tokens.redlock(&[]);
    let mut keeper = Command::new("sh");
    keeper.args(["-c", keep]).env_clear();
    keeper.envs(
        script
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let mut keeper = Running::start(&mut keeper);
    keeper.expect_line("kept");
    let fence = tokens.redis.cli(&["HGET", "{redlock:b}:state", "fence"]);
    let mut waiter = Running::start(&mut tokens.run("--ttl 15s a", "echo mine"));
    waiter.wait_until_queued(&tokens.redis);
    for round in 0..3 {
        wait_until("all of them are logged in", || {
            let clients = tokens.redis.cli(&["CLIENT", "LIST"]);
            clients.matches(" user=jobs ").count() == 3
        });
        let runs = tokens.runs().len();
        tokens.change(&format!("password-{round}"));
        // The holder, its waiter and the keeper.
        tokens.wait_until_renewed_anew(runs + 2);
        assert!(!holder.has_ended() && !waiter.has_ended() && !keeper.has_ended());
    }
    assert_eq!(tokens.redis.holder("a"), Some(holder.pid()));
    gate.open();
    let end = holder.finish();
    end.assert_code(0);
    waiter.expect_line("mine");
    waiter.finish().assert_code(0);
    // All the while the keeper's lock was kept, by the first hold of it.
    assert_eq!(
        tokens.redis.cli(&["HGET", "{redlock:b}:state", "fence"]),
        fence
    );
    assert_eq!(tokens.redis.cli(&["EXISTS", "redlock:b"]), "1");
}

#[test]
fn a_refusal_over_an_old_connection_is_answered_by_a_fresh_password_within_the_same_renewal() {
    // What the token permits is over with it: the command makes it valid again.
    let cli = "redis-cli -s redis.sock ACL SETUSER jobs +evalsha +eval >/dev/null";
    let tokens = Tokens::printing(&format!("{cli} && cat token"));
    let forbid = || {
        tokens.redis.cli(words!("ACL SETUSER jobs -evalsha -eval"));
    };
    let mut gate = crate::support::Gate::new(&tokens.redis);
    let script = "echo ready; read go <~/gate";
    let mut holder = Running::start(&mut tokens.run("-v --ttl 9s a", script));
    holder.expect_line("ready");
    // With each new connection the lock is looked at once it is tracked; later on that connection is an old one.
    let looked = |before: u64| {
        wait_until("the lock is looked at", || {
            tokens.redis.calls("hmget") > before
        });
    };
    looked(1);
    for _ in 0..2 {
        let (runs, looks) = (tokens.runs().len(), tokens.redis.calls("hmget"));
        forbid();
        tokens.wait_until_renewed_anew(runs);
        looked(looks);
    }
    gate.open();
    let end = holder.finish();
    end.assert_code(0).assert_says("lease renewed");
    assert!(!end.stderr.contains("renewal failed"), "{end:?}");
    // So is one of a waiter's.
    let holder = Gated::start(&tokens.redis, &["a"]).ready();
    let mut waiter = Running::start(&mut tokens.run("--ttl 9s a", "echo mine"));
    waiter.wait_until_queued(&tokens.redis);
    let runs = tokens.runs().len();
    forbid();
    wait_until("a fresh password is asked for", || {
        tokens.runs().len() > runs
    });
    holder.end();
    waiter.expect_line("mine");
    waiter.finish().assert_code(0);
}

#[test]
fn a_password_command_that_fails_for_a_moment_loses_no_lock() {
    let tokens = Tokens::printing("test ! -e hangs || sleep 60; cat token");
    let mut gate = crate::support::Gate::new(&tokens.redis);
    let mut holder =
        Running::start(&mut tokens.run("-v --ttl 15s -k 100ms a", "echo ready; read go <~/gate"));
    holder.expect_line("ready");
    let mut waiter = Running::start(&mut tokens.run("-v --ttl 15s -k 100ms a", "echo mine"));
    waiter.wait_until_queued(&tokens.redis);
    for trouble in ["broken", "hangs"] {
        if trouble == "broken" {
            // One that fails at once.
            tokens.write("token", "");
        } else {
            tokens.write(trouble, "");
        }
        let runs = || (tokens.runs_of(&holder), tokens.runs_of(&waiter));
        let before = runs();
        tokens.kill_connections();
        wait_until("both have tried again", || {
            let now = runs();
            now.0 > before.0 + 1 && now.1 > before.1 + 1
        });
        tokens.write("token", "one\n");
        let _ = fs::remove_file(tokens.file(trouble));
        let runs = tokens.runs().len();
        tokens.wait_until_renewed_anew(runs);
        assert!(!holder.has_ended() && !waiter.has_ended());
    }
    let tried = tokens.runs();
    wait_until("what hung is gone", || {
        !tried.iter().any(|&pid| is_alive(pid))
    });
    assert_eq!(tokens.redis.holder("a"), Some(holder.pid()));
    gate.open();
    holder.finish().assert_code(0).assert_says(
        "renewal failed: the password command ($REDLOCK_PASSWORD_COMMAND) printed nothing",
    );
    waiter.expect_line("mine");
    waiter.finish().assert_code(0);
}

#[test]
fn the_command_knows_nothing_of_the_locks_and_has_nothing_of_redlock() {
    let look = "env | grep ^REDLOCK_ | cut -d= -f1 | sort >names; ls -l /proc/self/fd >fds";
    let signals = "grep -E '^Sig(Blk|Ign)' /proc/self/status >>signals";
    let tokens = Tokens::printing(&format!("{look}; {signals}; cat >input; cat token"));
    // Within another run, with SIGPIPE and SIGCHLD ignored as some parents leave them.
    let script = "redlock run --ttl 10s -k 100ms b -c 'echo ready; read go <~/gate'";
    let mut gate = crate::support::Gate::new(&tokens.redis);
    let ignored = |signal| signal == libc::SIGPIPE || signal == libc::SIGCHLD;
    let run = tokens.run("--ttl 60s a", script);
    let mut run = Running::start(&mut with_signals(run, ignored, 0));
    run.expect_line("ready");
    // Once more from within the renewer.
    let runs = tokens.runs().len();
    tokens.kill_connections();
    tokens.wait_until_renewed_anew(runs);
    gate.open();
    run.finish().assert_code(0);
    let names = tokens.read("names");
    let names: Vec<&str> = names.lines().collect();
    assert_eq!(
        names,
        [
            "REDLOCK_IN_PASSWORD_COMMAND",
            "REDLOCK_PASSWORD_COMMAND",
            "REDLOCK_URL"
        ]
    );
    // Its own three, and the directory that is listed.
    let fds = tokens.read("fds");
    assert_eq!(
        fds.lines().filter(|line| line.contains("->")).count(),
        4,
        "{fds}"
    );
    assert!(
        !fds.contains("socket:") && !fds.contains("anon_inode"),
        "{fds}"
    );
    let signals = tokens.read("signals");
    let is_clear = |line: &str| line.ends_with("\t0000000000000000");
    assert!(
        signals.lines().count() >= 6 && signals.lines().all(is_clear),
        "{signals}"
    );
    assert_eq!(tokens.read("input"), "");
}

#[test]
fn orphans_of_the_password_command_are_no_part_of_the_job() {
    let daemon = "setsid sleep 300 >/dev/null 2>&1 & echo $! >>daemons";
    let tokens = Tokens::printing(&format!("{daemon}; cat token"));
    let mut gate = crate::support::Gate::new(&tokens.redis);
    let script = "echo ready; read go <~/gate";
    let mut run = Running::start(&mut tokens.run("--ttl 9s --wait-tree a", script));
    run.expect_line("ready");
    let runs = tokens.runs().len();
    tokens.kill_connections();
    tokens.wait_until_renewed_anew(runs);
    gate.open();
    run.finish().assert_code(0).assert_silent();
    // Nor is it killed with the job.
    let mut run = Running::start(&mut tokens.run("--ttl 9s a", "echo ready; sleep 300; true"));
    run.expect_line("ready");
    let runs = tokens.runs().len();
    tokens.kill_connections();
    tokens.wait_until_renewed_anew(runs);
    run.signal(Signal::SIGTERM);
    run.finish().assert_code(143);
    let daemons = tokens.read("daemons");
    let daemons: Vec<i32> = daemons.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(daemons.len() >= 4, "{daemons:?}");
    for &daemon in &daemons {
        assert!(is_alive(daemon), "{daemon} of {daemons:?}");
        send(daemon, libc::SIGKILL);
    }
}

#[test]
fn a_job_that_is_stopped_leaves_the_password_command_alone() {
    let tokens = Tokens::printing("test ! -e slow || read go <token-gate; cat token");
    let pipe = tokens.file("token-gate");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut both = fs::OpenOptions::new();
    let mut token_gate = both.read(true).write(true).open(&pipe).unwrap();
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done";
    let words = "--ttl 60s -k 20s a";
    let mut run = Running::start(
        tokens
            .run(words, script)
            .env("REDLOCK_CONNECT_TIMEOUT", "30s"),
    );
    run.expect_line("ready");
    // The renewal that follows the end of the connection hangs in its password command.
    let runs = tokens.runs().len();
    tokens.write("slow", "");
    wait_until("it was renewed", || tokens.redis.calls("pexpire") > 0);
    tokens.kill_connections();
    wait_until("a password is asked for", || tokens.runs().len() > runs);
    let asked = *tokens.runs().last().unwrap();
    run.signal(Signal::SIGTERM);
    run.expect_line("asked");
    let seen = std::time::Instant::now();
    while seen.elapsed() < Duration::from_millis(300) {
        assert!(is_alive(asked), "it was stopped with the job");
        std::thread::yield_now();
    }
    fs::remove_file(tokens.file("slow")).unwrap();
    token_gate.write_all(b"go\n").unwrap();
    wait_until("it ends well", || !is_alive(asked));
    run.signal(Signal::SIGTERM);
    // A second one kills, as it always does.
    run.finish().assert_code(137);
}

/// Lets the time from which connections count their age jump ahead once a file exists.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
  int result = (int)syscall(SYS_clock_gettime, id, now);
  const char *path = getenv("AHEAD");
  if (!result && id == CLOCK_MONOTONIC && path && !syscall(SYS_faccessat, -100, path, 0)) now->tv_sec += 11 * 60;
  return result;
}
"#;

fn library(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    fs::write(&source, CLOCK).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    outcome(&mut cc).assert_code(0);
    library
}

#[test]
fn a_connection_of_more_than_ten_minutes_is_replaced_and_the_lock_stays() {
    let tokens = Tokens::new();
    let shim = library(tokens.redis.dir.path());
    let ahead = tokens.file("ahead");
    let script = "echo ready; exec sleep 300";
    let mut run = tokens.run("-v --ttl 12s -k 100ms a", script);
    run.env("LD_PRELOAD", &shim).env("AHEAD", &ahead);
    let mut run = Running::start(&mut run);
    run.expect_line("ready");
    let connection = || {
        let clients = tokens.redis.cli(&["CLIENT", "LIST"]);
        let ours: Vec<String> = clients
            .lines()
            .filter(|line| line.contains(" user=jobs "))
            .map(str::to_owned)
            .collect();
        let id = |line: &String| line.split(' ').next().unwrap().to_owned();
        let tracks = |line: &String| line.contains(" flags=t ");
        (
            ours.iter().map(id).collect::<Vec<_>>(),
            ours.iter().any(tracks),
        )
    };
    wait_until("it is tracked", || connection().1);
    let before = connection().0;
    tokens.write("ahead", "");
    wait_until("another connection is tracked", || {
        let (now, tracks) = connection();
        now.len() == 1 && now != before && tracks
    });
    assert_eq!(tokens.runs().len(), 2);
    assert_eq!(tokens.redis.holder("a"), Some(run.pid()));
    // Over the new one the run is told of its loss long before the next renewal.
    outcome(&mut tokens.redlock(words!("release --force a"))).assert_code(0);
    let lost = std::time::Instant::now();
    let end = run.finish();
    end.assert_code(79).assert_says("forced free");
    assert!(!end.stderr.contains("renewal failed"), "{end:?}");
    assert!(lost.elapsed() < TIMEOUT);
}

#[test]
fn a_waiter_gets_its_turn_over_a_fresh_connection_too() {
    let tokens = Tokens::new();
    let holder = Gated::start(&tokens.redis, &["a"]).ready();
    let mut waiter = Running::start(&mut tokens.run("a", "echo mine"));
    waiter.wait_until_queued(&tokens.redis);
    tokens.change("two");
    let channels = || tokens.redis.cli(&["PUBSUB", "CHANNELS", "*"]);
    wait_until("it listens again", || {
        tokens.runs().len() == 2 && channels().starts_with("{redlock:a}:")
    });
    holder.end();
    waiter.expect_line("mine");
    waiter.finish().assert_code(0).assert_silent();
}

#[test]
fn the_command_gets_the_signals_that_redlock_got_whatever_shell_runs_it() {
    let tokens = Tokens::printing("grep SigBlk /proc/self/status >>masks; cat token");
    // Unlike others, this shell lets what it starts inherit its mask.
    let bin = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/bash", bin.path().join("sh")).unwrap();
    let path = format!("{}:{}", bin.path().display(), crate::support::path());
    let mut gate = crate::support::Gate::new(&tokens.redis);
    for mask in [0, 1 << (libc::SIGUSR1 - 1)] {
        tokens.write("masks", "");
        let with = |mut command: Command| {
            command.env("PATH", &path);
            with_signals(command, |_| false, mask)
        };
        let acquire = tokens.redlock(&["acquire", "--ttl", "60s", "b"]);
        outcome(&mut with(acquire)).assert_code(0);
        // Once more from within the renewer.
        let script = "echo ready; read go <~/gate";
        let mut run = Running::start(&mut with(tokens.run("--ttl 6s -k 100ms a", script)));
        run.expect_line("ready");
        let runs = tokens.runs().len();
        tokens.kill_connections();
        tokens.wait_until_renewed_anew(runs);
        gate.open();
        run.finish().assert_code(0);
        let expected = format!("SigBlk:\t{mask:016x}");
        let masks = tokens.read("masks");
        assert!(
            masks.lines().count() >= 3 && masks.lines().all(|line| line == expected),
            "{expected}: {masks}"
        );
        outcome(&mut tokens.redlock(&["release", "--force", "b"])).assert_code(0);
    }
}

#[test]
fn a_signal_during_the_first_connection_ends_the_password_command_with_all_it_has_started() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let tokens = Tokens::printing("sleep 77 & echo $! >>children; wait; echo x");
        let mut run =
            Running::start(&mut tokens.redlock(words!("run --connect-timeout 20s b -- true")));
        let children = || tokens.read("children");
        wait_until("it has started something", || children().ends_with('\n'));
        let child: i32 = children().trim().parse().unwrap();
        assert!(is_alive(child) && !run.has_ended());
        run.signal(signal);
        run.finish().assert_code(128 + signal as i32);
        let left = [tokens.runs()[0], child];
        wait_until("all are gone", || !left.iter().any(|&pid| is_alive(pid)));
    }
}

#[test]
fn a_stop_during_the_first_connection_suspends_redlock_until_it_is_continued() {
    let tokens = Tokens::printing("test ! -e slow || read go <token-gate; cat token");
    let pipe = tokens.file("token-gate");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut both = fs::OpenOptions::new();
    let mut token_gate = both.read(true).write(true).open(&pipe).unwrap();
    tokens.write("slow", "");
    let words = ["--connect-timeout", "60s", "run", "b", "--", "echo", "ran"];
    let mut run = Running::start(&mut tokens.redlock(&words));
    wait_until("a password is asked for", || tokens.runs().len() == 1);
    run.signal(Signal::SIGTSTP);
    wait_until("it is stopped", || state(run.pid()) == Some('T'));
    run.resume();
    token_gate.write_all(b"go\n").unwrap();
    run.expect_line("ran");
    run.finish().assert_code(0);
}

#[test]
fn a_password_file_is_read_for_each_connection_so_that_a_rotation_stops_nobody() {
    let redis = Redis::with(&["--user", "jobs", "on", ">old", "~*", "&*", "+@all"]);
    let file = redis.dir.path().join("password");
    fs::write(&file, "old\n").unwrap();
    let url = format!("redis://jobs@127.0.0.1:{}", redis.port);
    let with = |words: &[&str]| {
        let mut command = redis.redlock(words);
        command
            .env("REDLOCK_URL", &url)
            .env("REDLOCK_PASSWORD_FILE", &file);
        command
    };
    let script = r#"echo ready; until [ -e "$HOME/go" ]; do sleep 0.02; done"#;
    let mut holder = Running::start(&mut with(words!("run -q --ttl 15s a -c", script)));
    holder.expect_line("ready");
    let mut waiter = Running::start(&mut with(words!("run -q a -- echo mine")));
    waiter.wait_until_queued(&redis);
    let lease = || redis.cli(&["PTTL", "redlock:a"]).parse::<i64>().unwrap();

    // The server knows the new password before the file has it, so for a moment both jobs are refused.
    redis.cli(&["ACL", "SETUSER", "jobs", "resetpass", ">new"]);
    redis.cli(&["CLIENT", "KILL", "USER", "jobs"]);
    wait_until("a job was refused", || {
        redis.cli(&["ACL", "LOG"]).contains("jobs")
    });
    fs::write(&file, "new\n").unwrap();
    let before = lease();
    wait_until("the holder has renewed its lease", || lease() > before);
    outcome(&mut with(words!("run -n b -- true"))).assert_code(0);

    fs::write(redis.dir.path().join("go"), "").unwrap();
    holder.finish().assert_code(0);
    waiter.expect_line("mine");
    waiter.finish().assert_code(0);
}

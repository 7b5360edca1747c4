//! Password files: read for each new connection, and what becomes of locks and waiters when a password is over.

use std::path::PathBuf;

use crate::promises::config::{configured, set_mode};
use crate::support::prelude::*;

/// What the user may do, as docs/servers.md prints it, and more.
const RULES: [&str; 6] = ["reset", "on", "~*", "&*", "+@all", ">one"];

/// A server with the user "jobs", whose password is in a file beside its socket.
struct Tokens {
    redis: Redis,
    url: String,
}

impl Tokens {
    fn new() -> Self {
        let redis = Redis::start();
        redis.cli(&[&["ACL", "SETUSER", "jobs"], &RULES[..]].concat());
        let url = format!("redis://jobs@127.0.0.1:{}", redis.port);
        let tokens = Self { redis, url };
        tokens.write("one");
        tokens
    }

    fn file(&self) -> PathBuf {
        self.redis.dir.path().join("token")
    }

    fn write(&self, password: &str) {
        fs::write(self.file(), format!("{password}\n")).unwrap();
        // A password that others may read causes a warning.
        set_mode(&self.file(), 0o600);
    }

    fn redlock(&self, words: &[&str]) -> Command {
        let mut command = self.redis.redlock(words);
        command
            .env("REDLOCK_URL", &self.url)
            .env("REDLOCK_PASSWORD_FILE", self.file());
        command
    }

    fn run(&self, line: &str, script: &str) -> Command {
        self.redlock(&words(&format!("run {line} -c"), &[script]))
    }

    /// Ends the old password, and all connections that it has opened.
    fn change(&self, password: &str) {
        let new = format!(">{password}");
        self.redis.cli(words!("ACL SETUSER jobs resetpass", &new));
        self.write(password);
        self.kill_connections();
    }

    /// Ends all connections of the user.
    fn kill_connections(&self) {
        self.redis.cli(&["CLIENT", "KILL", "USER", "jobs"]);
    }

    /// Returns how many clients are logged in.
    fn connections(&self) -> usize {
        let clients = self.redis.cli(&["CLIENT", "LIST"]);
        clients.matches(" user=jobs ").count()
    }
}

/// A run that holds the lock "a", and one that waits for it.
struct Jobs {
    holder: Running,
    waiter: Running,
    gate: Gate,
}

impl Jobs {
    fn start(tokens: &Tokens) -> Self {
        let gate = Gate::new(&tokens.redis);
        let script = "echo ready; read go <~/gate";
        let holder = Running::ready(&mut tokens.run("-v --ttl 15s -k 100ms a", script));
        let mut waiter = Running::start(&mut tokens.run("--ttl 15s -k 100ms a", "echo mine"));
        waiter.wait_until_queued(&tokens.redis);
        Self {
            holder,
            waiter,
            gate,
        }
    }

    /// Each still has its place, and both succeed.
    #[track_caller]
    fn end(mut self, tokens: &Tokens) {
        assert!(!self.holder.has_ended() && !self.waiter.has_ended());
        assert_eq!(tokens.redis.holder("a"), Some(self.holder.pid()));
        self.gate.open();
        self.holder.finish().assert_code(0);
        self.waiter.expect_line("mine");
        self.waiter.finish().assert_code(0);
    }
}

#[test]
fn the_password_of_a_file_is_never_shown() {
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
    tokens.write("hunter3");
    let refused = outcome(&mut tokens.redlock(&["status"]));
    let file = tokens.file();
    let says = format!("the password in the file {} is wrong", file.display());
    refused.assert_said(77, &says);
    assert!(!refused.stderr.contains("hunter"), "{refused:?}");
}

#[test]
fn a_variable_overrides_a_configuration_file() {
    let redis = Redis::with(&["--requirepass", "one"]);
    let file = redis.dir.path().join("file");
    fs::write(&file, "one\n").unwrap();
    let (url, file) = (redis.tcp_url(), file.to_str().unwrap());
    let in_file = |path: &str| format!("REDLOCK_URL={url}\nREDLOCK_PASSWORD_FILE={path}\n");
    let (good, bad) = (in_file(file), in_file("/nowhere"));
    let (url, good, bad) = (url.as_str(), good.as_str(), bad.as_str());
    for (url, path, settings, code) in [
        (url, "/nowhere", "", 78),
        (url, file, "", 0),
        ("", "", good, 0),
        ("", file, bad, 0),
        // The password file of a configuration file isn't used for another server than that file's.
        (url, "", good, 77),
    ] {
        let config = configured(settings);
        let mut status = redlock(&["status"]);
        status.env("XDG_CONFIG_HOME", config.path());
        status.env("REDLOCK_URL", url);
        let end = outcome(status.env("REDLOCK_PASSWORD_FILE", path));
        assert_eq!(end.code(), Some(code), "{url} {path} {settings}: {end:?}");
        if code == 77 {
            end.assert_says("requires a password");
        }
    }
}

#[test]
fn holders_keepers_and_waiters_outlive_their_password() {
    let tokens = Tokens::new();
    let mut jobs = Jobs::start(&tokens);
    let keep =
        "eval \"$(redlock acquire --ttl 15s -k 100ms --while-pid $$ b)\"; echo kept; sleep 300";
    let mut keeper = sh(&tokens.redis, keep);
    keeper.env("REDLOCK_URL", &tokens.url);
    let mut keeper = Running::start(keeper.env("REDLOCK_PASSWORD_FILE", tokens.file()));
    keeper.expect_line("kept");
    let fence = || tokens.redis.cli(&["HGET", "{redlock:b}:state", "fence"]);
    let first = fence();
    for round in 0..3 {
        wait_until("all of them are logged in", || tokens.connections() == 3);
        let renewals = tokens.redis.calls("pexpire");
        tokens.change(&format!("password-{round}"));
        wait_until("both locks are renewed with the new password", || {
            tokens.connections() == 3 && tokens.redis.calls("pexpire") > renewals + 1
        });
        assert!(!jobs.holder.has_ended() && !jobs.waiter.has_ended() && !keeper.has_ended());
    }
    jobs.end(&tokens);
    // All the while the keeper's lock was kept, by the first hold of it.
    assert_eq!(fence(), first);
    assert!(tokens.redis.is_held("b"));
}

#[test]
fn a_password_file_that_is_gone_for_a_moment_loses_no_lock() {
    let tokens = Tokens::new();
    let jobs = Jobs::start(&tokens);
    for is_there in [true, false] {
        if is_there {
            fs::write(tokens.file(), "").unwrap();
        } else {
            fs::remove_file(tokens.file()).unwrap();
        }
        let renewals = tokens.redis.calls("pexpire");
        tokens.kill_connections();
        wait_until("both are back with the last password", || {
            tokens.connections() == 2 && tokens.redis.calls("pexpire") > renewals
        });
    }
    jobs.end(&tokens);
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
        tokens.connections() == 1 && channels().starts_with("{redlock:a}:")
    });
    holder.end();
    waiter.expect_line("mine");
    waiter.finish().assert_code(0).assert_silent();
}

#[test]
fn a_password_file_is_read_for_each_connection_so_that_a_rotation_stops_nobody() {
    let tokens = Tokens::new();
    let jobs = Jobs::start(&tokens);
    let left = || tokens.redis.cli(&["PTTL", "redlock:a"]);
    let lease = || left().parse::<i64>().unwrap();
    // The server knows the new password before the file has it, so for a moment both jobs are refused.
    let redis = &tokens.redis;
    redis.cli(words!("ACL SETUSER jobs resetpass >two"));
    tokens.kill_connections();
    wait_until("a job was refused", || {
        redis.cli(&["ACL", "LOG"]).contains("jobs")
    });
    tokens.write("two");
    let before = lease();
    wait_until("the holder has renewed its lease", || lease() > before);
    outcome(&mut tokens.redlock(words!("run -n b -- true"))).assert_code(0);
    jobs.end(&tokens);
}

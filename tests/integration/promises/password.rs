//! Password files: read for each new connection, and what becomes of locks and waiters when a password is over.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::promises::config::set_mode;
use crate::support::{Gate, Gated, Redis, Running, outcome, redlock, wait_until};

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

    fn run(&self, words: &str, script: &str) -> Command {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.redlock(&[&["run"], &words[..], &["-c", script]].concat())
    }

    /// Ends the old password, and all connections that it has opened.
    fn change(&self, password: &str) {
        let new = format!(">{password}");
        self.redis.cli(words!("ACL SETUSER jobs resetpass", &new));
        self.write(password);
        self.kill_connections();
    }

    fn kill_connections(&self) {
        self.redis.cli(&["CLIENT", "KILL", "USER", "jobs"]);
    }

    /// Returns how many clients are logged in.
    fn connections(&self) -> usize {
        let clients = self.redis.cli(&["CLIENT", "LIST"]);
        clients.matches(" user=jobs ").count()
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
    let says = format!(
        "the password in the file {} is wrong",
        tokens.file().display()
    );
    refused.assert_code(77).assert_says(&says);
    assert!(!refused.stderr.contains("hunter"), "{refused:?}");
}

/// A directory for `XDG_CONFIG_HOME` with this configuration file.
fn configured(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("redlock.env"), text).unwrap();
    directory
}

#[test]
fn a_variable_overrides_a_configuration_file() {
    let redis = Redis::with(&["--requirepass", "one"]);
    let file = redis.dir.path().join("file");
    fs::write(&file, "one\n").unwrap();
    let file = file.to_str().unwrap();
    let status = |variables: &[(&str, &str)], settings: &str| {
        let config = configured(settings);
        let mut command = redlock(&["status"]);
        command
            .env("XDG_CONFIG_HOME", config.path())
            .envs(variables.iter().copied());
        let end = outcome(&mut command);
        (end.code().unwrap(), end.stderr)
    };
    let is = |code: i32, (found, stderr): (i32, String)| assert_eq!(code, found, "{stderr}");
    let url = redis.tcp_url();
    let here = [("REDLOCK_URL", url.as_str())];
    let (good, bad) = (
        ("REDLOCK_PASSWORD_FILE", file),
        ("REDLOCK_PASSWORD_FILE", "/nowhere"),
    );
    is(78, status(&[here[0], bad], ""));
    is(0, status(&[here[0], good], ""));
    let in_file = |path: &str| format!("REDLOCK_URL={url}\nREDLOCK_PASSWORD_FILE={path}\n");
    is(0, status(&[], &in_file(file)));
    is(0, status(&[good], &in_file("/nowhere")));
    // The password file of a configuration file isn't used for another server than that file's.
    let (code, said) = status(&here, &in_file(file));
    assert!(code == 77 && said.contains("requires a password"), "{said}");
}

#[test]
fn holders_keepers_and_waiters_outlive_their_password() {
    let tokens = Tokens::new();
    let mut gate = Gate::new(&tokens.redis);
    let script = "echo ready; read go <~/gate";
    let mut holder = Running::start(&mut tokens.run("-v --ttl 15s -k 100ms a", script));
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
        wait_until("all of them are logged in", || tokens.connections() == 3);
        let renewals = tokens.redis.calls("pexpire");
        tokens.change(&format!("password-{round}"));
        wait_until("both locks are renewed with the new password", || {
            tokens.connections() == 3 && tokens.redis.calls("pexpire") > renewals + 1
        });
        assert!(!holder.has_ended() && !waiter.has_ended() && !keeper.has_ended());
    }
    assert_eq!(tokens.redis.holder("a"), Some(holder.pid()));
    gate.open();
    holder.finish().assert_code(0);
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
fn a_password_file_that_is_gone_for_a_moment_loses_no_lock() {
    let tokens = Tokens::new();
    let mut gate = Gate::new(&tokens.redis);
    let script = "echo ready; read go <~/gate";
    let mut holder = Running::start(&mut tokens.run("--ttl 15s -k 100ms a", script));
    holder.expect_line("ready");
    let mut waiter = Running::start(&mut tokens.run("--ttl 15s -k 100ms a", "echo mine"));
    waiter.wait_until_queued(&tokens.redis);
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
    assert_eq!(tokens.redis.holder("a"), Some(holder.pid()));
    gate.open();
    holder.finish().assert_code(0);
    waiter.expect_line("mine");
    waiter.finish().assert_code(0);
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

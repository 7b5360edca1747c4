//! Password files: redlock reads them for each new connection. Locks and waiters survive the end of their password.

use std::path::PathBuf;

use crate::promises::config::set_mode;
use crate::support::prelude::*;

/// Permissions of the user, as in docs/servers.md, and more.
const RULES: [&str; 6] = ["reset", "on", "~*", "&*", "+@all", ">one"];

/// A server with the user "jobs", whose password is in a file beside the socket.
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
        // A password that others can read causes a warning.
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

    /// Replaces the password.
    fn change(&self, password: &str) {
        let new = format!(">{password}");
        self.redis.cli(words!("ACL SETUSER jobs resetpass", &new));
        self.write(password);
    }

    /// Ends all connections of the user.
    fn kill_connections(&self) {
        self.redis.cli(&["CLIENT", "KILL", "USER", "jobs"]);
    }

    /// Returns the number of logged-in clients.
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
    let file = tokens.file();
    let says = format!("the password in the file {} is wrong", file.display());
    refused.assert_said(77, &says);
    assert!(!refused.stderr.contains("hunter"), "{refused:?}");
}

#[test]
fn holders_keepers_and_waiters_outlive_their_password_and_a_file_that_is_gone_or_late() {
    let tokens = Tokens::new();
    let redis = &tokens.redis;
    let mut gate = Gate::new(redis);
    let mut holder = Running::ready(&mut tokens.run("-v --ttl 15s -k 100ms a", UNTIL_GATE));
    let mut waiter = Running::start(&mut tokens.run("--ttl 15s -k 100ms a", "echo mine"));
    waiter.wait_until_queued(redis);
    let keep =
        "eval \"$(redlock acquire --ttl 15s -k 100ms --while-pid $$ b)\"; echo kept; sleep 300";
    let mut keeper = sh(redis, keep);
    keeper.env("REDLOCK_URL", &tokens.url);
    let mut keeper = Running::start(keeper.env("REDLOCK_PASSWORD_FILE", tokens.file()));
    keeper.expect_line("kept");
    let fence = || redis.cli(&["HGET", "{redlock:b}:state", "fence"]);
    let first = fence();
    wait_until("all of them are logged in", || tokens.connections() == 3);
    let changes: [&dyn Fn(); 6] = [
        &|| tokens.change("two"),
        &|| tokens.change("three"),
        &|| tokens.change("four"),
        &|| fs::write(tokens.file(), "").unwrap(),
        &|| fs::remove_file(tokens.file()).unwrap(),
        // The server knows the new password before the file has it, so it refuses all clients for a moment.
        &|| {
            redis.cli(words!("ACL SETUSER jobs resetpass >five"));
            tokens.kill_connections();
            wait_until("one was refused", || {
                redis.cli(&["ACL", "LOG"]).contains("jobs")
            });
            tokens.write("five");
        },
    ];
    for change in changes {
        let renewals = redis.calls("pexpire");
        change();
        tokens.kill_connections();
        wait_until("both locks are renewed over new connections", || {
            tokens.connections() == 3 && redis.calls("pexpire") > renewals + 1
        });
        assert!(!holder.has_ended() && !waiter.has_ended() && !keeper.has_ended());
    }
    outcome(&mut tokens.redlock(words!("run -n c -- true"))).assert_code(0);
    assert_eq!(redis.holder("a"), Some(holder.pid()));
    gate.open();
    holder.finish().assert_code(0);
    waiter.finish().assert_printed(0, "mine\n");
    // The keeper's first hold kept its lock all the while.
    assert_eq!(fence(), first);
    assert!(redis.is_held("b"));
}

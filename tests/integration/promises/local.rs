//! `local:`: a server of this host, started once by whoever needs it first. Each test has a host of its own, made of
//! namespaces, with an empty /run and /var/lib: where that isn't permitted, there is nothing to test it on.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{
    self, OtherUser, Outcome, Redis, Running, SERVER, Scratch, children, is_permitted, outcome,
    path, script, wait_until, with_signals, without_terminal,
};

/// The binary in the directory of a host. The checkout may be where the host has a file system of its own.
const REDLOCK: &str = "./redlock";

/// The variable that says after how many milliseconds a server ends that nobody uses.
const UNUSED_MS: &str = "RL_LOCAL_UNUSED_MS";

/// Where the server of root and the group is.
const SOCKET: &str = "/run/redlock/server.sock";

/// A host with a temporary directory, in which `home` and `runtime` are those of the user, and `bin` comes first in the
/// PATH. All that is started there ends with it.
struct Host {
    /// Its first process, as seen from here.
    init: i32,
    _process: Running,
    dir: Scratch,
}

impl Host {
    fn new() -> Option<Self> {
        Self::with("")
    }

    /// The same after a script, which runs in the temporary directory.
    fn with(setup: &str) -> Option<Self> {
        let unshare = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ];
        if !is_permitted(&[&unshare[..], &["mount", "-t", "tmpfs", "none", "/run"]].concat()) {
            return None;
        }
        let dir = Scratch::new();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["home", "runtime", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        if SERVER.path.is_absolute() {
            symlink(&SERVER.path, dir.path().join("bin/redis-server")).unwrap();
        }
        // Where the tests run in a container, what is used has to be mounted.
        let script = format!(
            "cd '{}' && touch redlock && mount --bind '{}' redlock
             mount -t tmpfs none /run && mount -t tmpfs none /var/lib
             for place in /run/redlock /var/lib/redlock /run/user/0 runtime home/.local/state/redlock/$(uname -n); do
                 mkdir -p $place && mount -t tmpfs -o mode=755 none $place
             done
             {{ true
             {setup}
             }} && echo ready && exec sleep 600",
            dir.path().display(),
            support::REDLOCK
        );
        let mut command = Command::new(unshare[0]);
        command
            .args(&unshare[1..])
            .args(["sh", "-e", "-c", &script]);
        without_terminal(&mut command);
        let mut process = Running::start(&mut command);
        process.expect_line("ready");
        let init = children(process.pid())[0];
        Some(Self {
            init,
            _process: process,
            dir,
        })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// A command there.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.init.to_string(), "-m", "-p"])
            // It has changed to the root directory.
            .args(["sh", "-c", "cd \"$0\" && exec \"$@\"", &self.path(".")])
            .args(words)
            .env_clear()
            .env("PATH", format!("{}:{}", self.path("bin"), path()))
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"));
        without_terminal(&mut command);
        command
    }

    fn sh(&self, text: &str) -> Command {
        self.command(&["sh", "-c", text])
    }

    /// What a script prints there.
    #[track_caller]
    fn shell(&self, text: &str) -> String {
        let end = outcome(&mut self.sh(text));
        end.assert_code(0);
        end.stdout.trim_end().to_owned()
    }

    /// A redlock of root's with the server of the host.
    fn redlock(&self, arguments: &[&str]) -> Command {
        self.command(&[&[REDLOCK, "-u", "local:"], arguments].concat())
    }

    fn end(&self, arguments: &[&str]) -> Outcome {
        outcome(&mut self.redlock(arguments))
    }

    /// A redlock of a user with that user's server.
    fn users(&self, arguments: &[&str]) -> Command {
        self.command(&[&[REDLOCK, "-u", "local:user"], arguments].concat())
    }

    /// The living processes of this name, by their numbers there.
    fn named(&self, name: &str) -> Vec<i32> {
        let script = "for process in /proc/[0-9]*; do
            read -r found <$process/comm && [ \"$found\" = \"$0\" ] || continue
            grep -q 'State:.[ZX]' $process/status || echo ${process#/proc/}
            done 2>/dev/null; true";
        let found = self.command(&["sh", "-c", script, name]).output().unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        found.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// The only server.
    #[track_caller]
    fn server(&self) -> i32 {
        let found = self.named("redis-server");
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    /// Sends a signal to processes there.
    fn signal(&self, signal: &str, processes: &[i32]) {
        for process in processes {
            self.shell(&format!("kill -{signal} {process}"));
        }
    }

    /// Puts a program in the place of the server that runs this line of sh, and then the server with more options.
    fn start_servers_with(&self, line: &str, options: &str) {
        let _ = fs::remove_file(self.path("bin/redis-server"));
        let directories = path();
        let real = std::env::split_paths(&directories)
            .map(|directory| directory.join(&SERVER.path))
            .find(|path| path.is_file())
            .expect("a server is installed");
        let text = format!(
            "#!/bin/sh\n{line}\nexec '{}' \"$@\" {options}\n",
            real.display()
        );
        script(self.dir.path(), "bin/redis-server", &text);
    }

    fn await_no_server(&self) {
        wait_until("no server is left", || {
            self.named("redis-server").is_empty() && self.named("rl-local").is_empty()
        });
    }

    /// A run of root's that holds the lock "a" until a line is written to the pipe `gate`.
    fn holder(&self, options: &[&str], of: fn(&Self, &[&str]) -> Command) -> Running {
        self.shell("[ -p gate ] || mkfifo -m 666 gate");
        let script = "echo ready; read line <gate; echo done";
        let words = [&["run"], options, &["a", "-c", script]].concat();
        let mut run = Running::start(&mut of(self, &words));
        run.expect_line("ready");
        run
    }

    fn open_gate(&self) {
        self.shell("echo go >gate");
    }
}

/// Runs a command that may be `doctor` until it has all its answers: it gives itself less than two seconds, which a busy
/// machine may take.
fn answered_in_time(command: impl Fn() -> Command) -> Outcome {
    let mut end = outcome(&mut command());
    wait_until("doctor has its answers in time", || {
        let is_late = end.stdout.contains("no answer in time");
        if is_late {
            end = outcome(&mut command());
        }
        !is_late
    });
    end
}

#[test]
fn the_first_command_starts_a_server_that_has_no_port_and_forgets_nothing() {
    let Some(host) = Host::new() else { return };
    let first = host.end(&["run", "a", "--", "echo", "hello"]);
    first.assert_code(0).assert_silent();
    assert_eq!(first.stdout, "hello\n");
    let server = host.server();
    host.end(&["run", "a", "--", "true"])
        .assert_code(0)
        .assert_silent();
    assert_eq!(host.server(), server);
    for (name, value) in [
        ("port", "0"),
        ("appendonly", "yes"),
        ("appendfsync", "no"),
        ("maxmemory-policy", "noeviction"),
        ("save", ""),
    ] {
        let found = host.shell(&format!("redis-cli -s {SOCKET} CONFIG GET {name}"));
        assert_eq!(found.lines().nth(1).unwrap_or_default(), value, "{name}");
    }
    let modes = host.shell(&format!(
        "stat -c %a:%U {SOCKET} /run/redlock /var/lib/redlock"
    ));
    assert_eq!(modes, "600:root\n700:root\n700:root");
}

#[test]
fn the_server_has_nothing_of_whoever_started_it() {
    let Some(host) = Host::new() else { return };
    // A descriptor, a mask for files, a variable, a priority; HUP, INT, QUIT and CHLD are ignored, and TERM is blocked.
    let line =
        format!("exec 9<bin; umask 0; export MINE=1; exec nice -n 5 {REDLOCK} -u local: status");
    let ignored = |signal| matches!(signal, 1 | 2 | 3 | 17);
    outcome(&mut with_signals(host.sh(&line), ignored, 1 << (15 - 1))).assert_code(0);
    let server = host.server();
    let proc = |what: &str| host.shell(&format!("cat /proc/{server}/{what} | tr '\\0' '\\n'"));
    let status = proc("status");
    let field = |name: &str| {
        let mut lines = status.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        found
            .unwrap_or_else(|| panic!("{name}: {status}"))
            .to_owned()
    };
    assert_eq!(field("SigBlk"), "0000000000000000");
    let ignored = u64::from_str_radix(&field("SigIgn"), 16).unwrap();
    assert_eq!(
        ignored & (1 << (17 - 1) | 1 << (3 - 1) | 1 << (2 - 1)),
        0,
        "{ignored:x}"
    );
    let stat = proc("stat");
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let number = server.to_string();
    assert_eq!(
        [fields[2], fields[3]],
        [&number, &number],
        "a session of its own"
    );
    assert_eq!(fields[16], "0", "the priority");
    assert!(!proc("environ").contains("MINE"));
    assert_eq!(
        host.shell(&format!("readlink /proc/{server}/cwd")),
        "/var/lib/redlock"
    );
    let open = host.shell(&format!("ls -l /proc/{server}/fd"));
    assert!(!open.contains(&host.path("bin")), "{open}");
    assert_eq!(host.shell("find /var/lib/redlock -perm /077"), "");
}

#[test]
fn of_many_who_come_first_one_starts_the_server_and_all_use_it() {
    let Some(host) = Host::new() else { return };
    for _ in 0..3 {
        let runs: Vec<Running> = (0..8)
            .map(|number| {
                let name = format!("a{number}");
                Running::start(&mut host.redlock(&["run", &name, "--", "true"]))
            })
            .collect();
        for run in runs {
            run.finish().assert_code(0).assert_silent();
        }
        host.server();
        host.end(&["local", "stop"]).assert_code(0);
        host.await_no_server();
    }
}

#[test]
fn a_killed_server_is_started_again_with_the_locks_that_were_held() {
    let Some(host) = Host::new() else { return };
    let run = host.holder(&["--ttl", "12s"], Host::redlock);
    for _ in 0..2 {
        let server = host.server();
        host.signal("KILL", &host.named("rl-local"));
        host.signal("KILL", &[server]);
        let busy = host.end(&["run", "-n", "a", "--", "echo", "never"]);
        busy.assert_code(75).assert_says("lock \"a\" is held by");
        assert_eq!(busy.stdout, "");
        assert_ne!(host.server(), server);
    }
    // Its renewals start the next one.
    host.signal("KILL", &host.named("rl-local"));
    host.signal("KILL", &[host.server()]);
    wait_until("a renewal starts the server", || {
        host.named("redis-server").len() == 1
    });
    host.open_gate();
    let end = run.finish();
    end.assert_code(0);
    assert!(end.stdout.ends_with("done\n"), "{end:?}");
    host.end(&["run", "-n", "a", "--", "true"]).assert_code(0);
}

#[test]
fn the_keeper_of_a_killed_server_starts_another_one() {
    let Some(host) = Host::new() else { return };
    let run = host.holder(&["--ttl", "30s"], Host::redlock);
    let (server, keeper) = (host.server(), host.named("rl-local"));
    // One that is killed as soon as it is ready is left to whoever needs it.
    let age = format!(
        "redis-cli -s {SOCKET} INFO server | grep -c 'uptime_in_seconds:\\([2-9]\\|[0-9][0-9]\\)'; true"
    );
    wait_until("it has lived for a while", || host.shell(&age) == "1");
    host.signal("KILL", &[server]);
    wait_until("another one is there", || {
        let found = host.named("redis-server");
        !found.is_empty() && found != [server]
    });
    assert_eq!(host.named("rl-local"), keeper);
    host.end(&["run", "-n", "a", "--", "true"]).assert_code(75);
    host.open_gate();
    run.finish().assert_code(0);
}

#[test]
fn a_server_that_takes_its_time_to_start_is_waited_for_by_runs() {
    let Some(host) = Host::new() else { return };
    host.shell("mkfifo gate");
    host.start_servers_with(&format!("read -r line <'{}'", host.path("gate")), "");
    // Whoever starts it, and whoever comes next.
    for _ in 0..2 {
        let end = host.end(&["--connect-timeout", "1s", "status"]);
        end.assert_code(69).assert_says("isn't ready yet");
    }
    let run = Running::start(&mut host.redlock(&["-v", "run", "a", "--", "echo", "hello"]));
    host.end(&["--connect-timeout", "1s", "status"])
        .assert_code(69);
    host.open_gate();
    let end = run.finish();
    end.assert_code(0);
    assert_eq!(end.stdout, "hello\n");
    host.server();
}

#[test]
fn a_server_is_there_for_others_only_once_it_has_loaded_its_data() {
    // It answers others while it loads, every so many bytes.
    if SERVER.is_before(7, 0) {
        return;
    }
    let Some(host) = Host::new() else { return };
    host.end(&["freeze", "x", "--reason", "release"])
        .assert_code(0);
    host.shell(&format!(
        "for n in 1 2 3 4 5 6 7 8; do
            head -c 3000 /dev/urandom | base64 | redis-cli -s {SOCKET} -x SET junk$n
        done; redis-cli -s {SOCKET} BGREWRITEAOF"
    ));
    let info =
        format!("redis-cli -s {SOCKET} INFO persistence | grep -c 'aof_rewrite_in_progress:0'");
    wait_until("it is written anew", || {
        host.shell(&format!("{info}; true")) == "1"
    });
    host.end(&["local", "stop"]).assert_code(0);
    // In microseconds for each key.
    let options = "--key-load-delay 20000 --loading-process-events-interval-bytes 1024";
    host.start_servers_with("true", options);
    let first = Running::start(&mut host.redlock(&["status"]));
    wait_until("it starts", || !host.named("redis-server").is_empty());
    for status in [first.finish(), host.end(&["status"])] {
        status.assert_code(0).assert_silent();
        assert!(status.stdout.contains("frozen"), "{status:?}");
    }
}

#[test]
fn a_removed_socket_is_said_and_stopping_the_server_mends_it() {
    let Some(host) = Host::new() else { return };
    host.end(&["freeze", "x", "--reason", "release"])
        .assert_code(0);
    let server = host.server();
    host.shell(&format!("rm {SOCKET}"));
    let lost = host.end(&["--connect-timeout", "1s", "run", "a", "--", "true"]);
    lost.assert_code(69).assert_says(
        "the server for `local:` runs, but its socket /run/redlock/server.sock is gone; `sudo redlock local stop` ends it",
    );
    host.end(&["local", "status"])
        .assert_code(69)
        .assert_says("its socket is gone");
    assert_eq!(host.server(), server);
    host.end(&["local", "stop"]).assert_code(0);
    host.await_no_server();
    host.end(&["run", "-n", "x", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
}

#[test]
fn stopping_signals_nothing_but_what_has_the_lock_of_the_server() {
    let Some(host) = Host::new() else { return };
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    // It has the files open, and isn't the server.
    let line = "exec 8<>/run/redlock/server.lock 9<>/var/lib/redlock/server.lock; echo ready; exec sleep 60";
    let mut other = Running::start(&mut host.sh(line));
    other.expect_line("ready");
    host.signal("STOP", &[host.server()]);
    host.shell(&format!("rm {SOCKET}"));
    host.end(&["local", "stop"])
        .assert_code(0)
        .assert_says("the server is stopped");
    host.await_no_server();
    assert!(!other.has_ended());
}

#[test]
fn stopping_refuses_while_a_lock_is_in_use_and_with_force_the_lock_comes_back() {
    let Some(host) = Host::new() else { return };
    let none = host.end(&["local", "stop"]);
    none.assert_code(0)
        .assert_says("this host only: no server was running");
    assert_eq!(
        host.named("redis-server"),
        [0; 0],
        "it isn't started to be stopped"
    );
    let run = host.holder(&["--ttl", "60s"], Host::redlock);
    let server = host.server();
    let refused = host.end(&["local", "stop"]);
    refused
        .assert_code(75)
        .assert_says("this host only: lock \"a\" is in use");
    assert_eq!(host.server(), server);
    host.end(&["local", "stop", "--force"]).assert_code(0);
    host.end(&["run", "-n", "a", "--", "true"]).assert_code(75);
    host.open_gate();
    run.finish().assert_code(0);
    host.end(&["local", "stop"]).assert_code(0);
    host.await_no_server();
}

#[test]
fn status_of_the_server_says_where_it_is_and_never_starts_one() {
    let Some(host) = Host::new() else { return };
    let stopped = host.end(&["local", "status"]);
    stopped.assert_code(69).assert_silent();
    assert_eq!(
        stopped.stdout,
        "this host only: no server runs at /run/redlock/server.sock; the next command with `-u local:` starts it\n"
    );
    assert_eq!(host.named("redis-server"), [0; 0]);
    host.end(&["status"]).assert_code(0);
    // Without a URL it is about that of the host for root.
    let running = outcome(&mut host.command(&[REDLOCK, "local", "status"]));
    running.assert_code(0).assert_silent();
    let server = host.server();
    let (start, end) = ("this host only: ", "; its data is in /var/lib/redlock\n");
    let said = &running.stdout;
    assert!(said.starts_with(start) && said.ends_with(end), "{said}");
    assert!(
        said.contains(&format!(" runs at {SOCKET} (pid {server}, up for ")),
        "{said}"
    );
    let elsewhere = host
        .command(&[REDLOCK, "-u", "redis://h", "local", "status"])
        .output();
    assert_eq!(elsewhere.unwrap().status.code(), Some(64));
}

#[test]
fn a_server_ends_when_nobody_uses_it_and_nothing_is_kept() {
    let Some(host) = Host::new() else { return };
    let start = |words: &[&str]| {
        let mut command = host.redlock(words);
        outcome(command.env(UNUSED_MS, "400")).assert_code(0);
    };
    start(&["run", "a", "--", "true"]);
    host.await_no_server();
    assert_eq!(host.shell("ls /run/redlock"), "server.lock");
    // What is only remembered comes back with the next one.
    start(&["run", "--once-per", "1h", "b", "--", "true"]);
    host.await_no_server();
    let again = host.end(&["run", "--once-per", "1h", "b", "--", "echo", "never"]);
    assert_eq!(again.assert_code(0).stdout, "");
    let past = host.end(&["history", "--names-only"]);
    assert_eq!(past.stdout, "a\nb\n");
}

#[test]
fn a_server_of_the_group_stays_as_a_member_could_not_start_it() {
    let Some(host) = with_group() else { return };
    let mut command = host.redlock(&["run", "a", "--", "true"]);
    outcome(command.env(UNUSED_MS, "100")).assert_code(0);
    let server = host.server();
    // One of a user, who can start it, shows when an unused one ends.
    let mut command = host.users(&["run", "a", "--", "true"]);
    outcome(command.env(UNUSED_MS, "600")).assert_code(0);
    wait_until("the user's server ends", || {
        host.named("redis-server").len() == 1
    });
    assert_eq!(host.server(), server);
    host.by_ann(&["-u", "local:", "run", "a", "--", "true"])
        .assert_code(0)
        .assert_silent();
}

#[test]
fn a_group_without_a_user_for_its_server_is_told_how_to_make_one() {
    let Some(host) = with_group() else { return };
    host.shell(
        "grep -v ^redlock: passwd.new >passwd.without && cat passwd.without >passwd.new; true",
    );
    let line = "sudo useradd -r -g redlock redlock";
    host.end(&["status"]).assert_code(78).assert_says(line);
    assert!(host.named("redis-server").is_empty());
}

#[test]
fn a_server_stays_while_a_lock_is_held_kept_or_frozen() {
    // Of each the lock lasts for far longer than a server stays unused.
    for (words, ends) in [
        (words!("freeze x --reason release"), words!("thaw x")),
        (words!("acquire --ttl 4s --format token x"), &[]),
        (words!("run --ttl 4s --hold-at-least 4s x -- true"), &[]),
    ] {
        let Some(host) = Host::new() else { return };
        let began = Instant::now();
        let mut start = host.redlock(words);
        outcome(start.env(UNUSED_MS, "300")).assert_code(0);
        if !ends.is_empty() {
            let server = host.server();
            // No connection counts as a use.
            while began.elapsed() < Duration::from_secs(2) {
                assert_eq!(host.named("redis-server"), [server], "{words:?}");
            }
            host.end(ends).assert_code(0);
        }
        host.await_no_server();
        assert!(began.elapsed() > Duration::from_secs(2), "{words:?}");
    }
}

#[test]
fn a_server_whose_keeper_was_killed_stays_until_it_is_stopped() {
    let Some(host) = Host::new() else { return };
    host.end(&["status"]).assert_code(0);
    host.signal("KILL", &host.named("rl-local"));
    let server = host.server();
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    assert_eq!(host.server(), server);
    host.end(&["local", "stop"]).assert_code(0);
    host.await_no_server();
    host.end(&["run", "a", "--", "true"])
        .assert_code(0)
        .assert_silent();
}

#[test]
fn every_account_of_such_locks_begins_with_this_host_only() {
    let Some(host) = Host::new() else { return };
    for words in [
        &["status"][..],
        &["status", "a"],
        &["status", "a*"],
        &["doctor"],
    ] {
        for redlock in [Host::redlock, Host::users] {
            let end = answered_in_time(|| redlock(&host, words));
            end.assert_code(0);
            assert!(
                end.stdout.starts_with("this host only"),
                "{words:?}: {end:?}"
            );
        }
    }
    let run = host.holder(&[], Host::redlock);
    let table = host.end(&["status"]).stdout;
    assert!(table.starts_with("this host only\nNAME "), "{table}");
    let json = host.end(&["status", "--json"]).stdout;
    assert!(json.starts_with("[{"), "{json}");
    assert_eq!(host.end(&["status", "--names-only"]).stdout, "a\n");
    let waiters = ["run a -- true", "wait a"].map(|words| {
        let file = words.split(' ').next().unwrap();
        let line = format!("exec {REDLOCK} -u local: {words} 2>said-{file}");
        Running::start(&mut host.sh(&line))
    });
    for file in ["said-run", "said-wait"] {
        let line = "redlock: this host only: waiting for \"a\", held by ";
        let said = || fs::read_to_string(host.dir.path().join(file)).unwrap_or_default();
        wait_until("it says what it waits for", || said().contains('\n'));
        assert!(said().starts_with(line), "{}", said());
    }
    host.open_gate();
    run.finish().assert_code(0);
    for waiter in waiters {
        waiter.finish().assert_code(0);
    }
}

/// In the setup of a host: a group `redlock`, of which the user 54321 ("ann") is a member, and another user ("bob").
const GROUP: &str = "cp /etc/group /etc/passwd . && chmod 644 group passwd &&
    { grep -v '^redlock:' group; echo 'redlock:x:54399:ann'; } >group.new &&
    { grep -v '^redlock:' passwd; echo 'redlock:x:54399:54399::/:/bin/sh'; echo 'ann:x:54321:54321::/:/bin/sh'; echo 'bob:x:54322:54322::/:/bin/sh'; } >passwd.new &&
    mount --bind group.new /etc/group && mount --bind passwd.new /etc/passwd";

/// A host with these.
fn with_group() -> Option<Host> {
    OtherUser::new()?;
    Host::with(GROUP)
}

impl Host {
    fn by(&self, user: u32, groups: &str, arguments: &[&str]) -> Outcome {
        let id = user.to_string();
        let before = ["setpriv", "--reuid", &id, "--regid", &id, groups, REDLOCK];
        outcome(&mut self.command(&[&before[..], arguments].concat()))
    }

    /// By a member of the group.
    fn by_ann(&self, arguments: &[&str]) -> Outcome {
        self.by(54321, "--groups=54399", arguments)
    }

    fn by_bob(&self, arguments: &[&str]) -> Outcome {
        self.by(54322, "--clear-groups", arguments)
    }
}

#[test]
fn members_of_the_group_use_the_server_of_the_host_which_isnt_roots_then() {
    let Some(host) = with_group() else { return };
    let early = host.by_ann(&["-u", "local:", "run", "a", "--", "true"]);
    early
        .assert_code(69)
        .assert_says("only root can start it: `sudo redlock -u local: status`");
    let run = host.holder(&[], Host::redlock);
    let server = host.server();
    let owner = host.shell(&format!("stat -c %U /proc/{server}"));
    assert_ne!(owner, "root");
    let modes = host.shell(&format!(
        "stat -c %a:%G {SOCKET} /run/redlock && stat -c %a /var/lib/redlock"
    ));
    assert_eq!(modes, "660:redlock\n750:redlock\n700");
    let busy = host.by_ann(&["-u", "local:", "run", "-n", "a", "--", "true"]);
    busy.assert_code(75)
        .assert_says("lock \"a\" is held by root@");
    host.by_ann(&["-u", "local:", "run", "b", "--", "true"])
        .assert_code(0)
        .assert_silent();
    host.by_ann(&["local", "status"])
        .assert_code(0)
        .assert_silent();
    host.open_gate();
    run.finish().assert_code(0);
    host.by_ann(&["local", "stop"]).assert_code(0);
    host.await_no_server();
    host.by_ann(&["local", "status"]).assert_code(69);
}

#[test]
fn a_user_outside_of_the_group_is_told_of_both_ways() {
    let Some(host) = with_group() else { return };
    let line = "use `-u local:user`, a server for this user alone, or run `sudo usermod -aG redlock bob` and log in again";
    let words = ["-u", "local:", "run", "a", "--", "true"];
    host.by_bob(&words).assert_code(78).assert_says(line);
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    host.by_bob(&words).assert_code(78).assert_says(line);
    host.shell("grep -v '^redlock:' group >group.without && cat group.without >group.new");
    let without = host.by_bob(&words);
    without
        .assert_code(78)
        .assert_says("`sudo useradd -rU redlock && sudo usermod -aG redlock bob`");
}

#[test]
fn a_server_that_was_roots_alone_is_the_groups_after_its_next_start() {
    let Some(host) = with_group() else { return };
    host.shell("cp group.new group.kept && grep -v '^redlock:' group.kept >group.new; true");
    host.end(&["freeze", "x", "--reason", "release"])
        .assert_code(0);
    host.shell("cat group.kept >group.new");
    let words = ["-u", "local:", "run", "-n", "x", "--", "true"];
    let closed = host.by_ann(&words);
    closed
        .assert_code(78)
        .assert_says("`sudo redlock local stop`");
    host.end(&["local", "stop"]).assert_code(0);
    host.end(&["status"]).assert_code(0);
    host.by_ann(&words).assert_code(75).assert_says("is frozen");
}

#[test]
fn a_user_has_a_server_below_the_runtime_directory() {
    let Some(host) = Host::new() else { return };
    outcome(&mut host.users(&["run", "a", "--", "true"]))
        .assert_code(0)
        .assert_silent();
    let socket = host.path("runtime/redlock/server.sock");
    assert_eq!(
        host.shell(&format!(
            "stat -c %a {socket} {}",
            host.path("runtime/redlock")
        )),
        "600\n700"
    );
    assert_eq!(host.shell("find home -name appendonlydir | wc -l"), "1");
    assert_eq!(
        host.shell("find home/.local/state/redlock/*/ -mindepth 1 -perm /077"),
        ""
    );
    // The other one is another server.
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    assert_eq!(host.named("redis-server").len(), 2);
}

#[test]
fn a_cron_job_without_a_runtime_directory_finds_the_server_of_the_login() {
    let Some(host) = Host::new() else { return };
    let run = host.holder(&[], Host::users);
    let mut cron = host.users(&["run", "-n", "a", "--", "true"]);
    outcome(cron.env_remove("XDG_RUNTIME_DIR")).assert_code(75);
    host.server();
    let mut status = host.users(&["local", "status"]);
    outcome(status.env_remove("XDG_RUNTIME_DIR")).assert_code(0);
    host.open_gate();
    run.finish().assert_code(0);
}

#[test]
fn a_job_that_outlives_the_logout_has_its_lock_back_from_a_new_server() {
    // There is another runtime directory, which the environment doesn't name: that of the next server.
    let Some(host) = Host::new() else {
        return;
    };
    let run = host.holder(&["--ttl", "12s"], Host::users);
    let processes = [host.named("rl-local"), host.named("redis-server")].concat();
    host.signal("KILL", &processes);
    host.shell("umount runtime && rmdir runtime");
    wait_until("a renewal starts the server", || {
        host.named("redis-server").len() == 1
    });
    let busy = outcome(&mut host.users(&["run", "-n", "a", "--", "true"]));
    busy.assert_code(75).assert_says("is held by");
    host.open_gate();
    run.finish().assert_code(0);
    host.shell("test -S /run/user/0/redlock/server.sock");
}

#[test]
fn a_run_whose_server_cant_come_back_stops_its_command_and_says_why() {
    let Some(host) = Host::new() else { return };
    let run = host.holder(&["--ttl", "6s"], Host::redlock);
    let program = host.path("bin/redis-server");
    let _ = fs::remove_file(&program);
    script(
        host.dir.path(),
        "bin/redis-server",
        "#!/bin/sh\necho not today >&2; exit 1\n",
    );
    let processes = [host.named("rl-local"), host.named("redis-server")].concat();
    host.signal("KILL", &processes);
    let end = run.finish();
    end.assert_code(79).assert_says("not today");
    assert!(!end.stdout.contains("done"), "{end:?}");
}

#[test]
fn a_full_disk_grants_nothing_and_says_so_until_there_is_room() {
    let setup = "mount -t tmpfs -o size=1m,mode=700 none /var/lib/redlock";
    let Some(host) = Host::with(setup) else {
        return;
    };
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    let fill = "cat /dev/zero >/var/lib/redlock/full 2>/dev/null; true";
    host.shell(fill);
    // The first write that isn't saved is noticed; none is granted after it. That may be a release: then its lock expires.
    let mut names = (0..).map(|number| format!("b{number}"));
    wait_until("nothing is granted", || {
        let name = names.next().unwrap();
        let quickly = ["--connect-timeout", "2s", "run", "-n", "--ttl", "1s"];
        let end = host.end(&[&quickly[..], &[&name, "--", "true"]].concat());
        end.code() == Some(69)
    });
    let refused = host.end(&["--connect-timeout", "2s", "run", "-n", "a", "--", "true"]);
    refused
        .assert_code(69)
        .assert_says("No space left on device");
    let waiting =
        Running::start(&mut host.redlock(&["run", "-w", "60s", "a", "--", "echo", "room"]));
    host.shell("rm /var/lib/redlock/full");
    let end = waiting.finish();
    end.assert_code(0);
    assert_eq!(end.stdout, "room\n");
    // Nor is one started there.
    wait_until("all locks are free", || {
        host.end(&["local", "stop"]).code() == Some(0)
    });
    host.shell(&format!("rm -r /var/lib/redlock/appendonlydir; {fill}"));
    let start = host.end(&["run", "a", "--", "true"]);
    start
        .assert_code(69)
        .assert_says("can't start a server for `local:` at /run/redlock/server.sock");
    host.await_no_server();
}

#[test]
fn where_no_server_is_installed_the_line_that_installs_one_is_said() {
    let Some(host) = Host::new() else { return };
    let programs = tempfile::tempdir().unwrap();
    let run = |url: &str| {
        let path = format!("PATH={}", programs.path().display());
        let words = [
            "env",
            &path,
            REDLOCK,
            "-u",
            url,
            "run",
            "a",
            "--",
            "/bin/true",
        ];
        outcome(&mut host.command(&words))
    };
    let why = "neither redis-server nor valkey-server is installed";
    run("local:").assert_code(69).assert_says(why);
    for (program, line) in [
        ("dnf", "; `sudo dnf install -y redis` installs it"),
        (
            "apt-get",
            "; `sudo apt-get install -y redis-server` installs it",
        ),
    ] {
        script(programs.path(), program, "");
        run("local:")
            .assert_code(69)
            .assert_says(&format!("{why}{line}"));
        run("local:user")
            .assert_code(69)
            .assert_says(&format!("{why}{line}"));
    }
}

#[test]
fn in_a_container_it_is_refused_unless_its_directory_is_mounted() {
    let unshare = [
        "unshare",
        "--mount",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ];
    if !is_permitted(&[&unshare[..], &["true"]].concat()) {
        return;
    }
    let dir = Scratch::new();
    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    let run = |mounts: &str, url: &str| {
        let line = format!(
            "touch redlock && mount --bind '{}' redlock && \
             mount -t tmpfs none /run && mount -t tmpfs none /var/lib && mkdir /run/redlock && {mounts} && \
             {REDLOCK} -u {url} run a -- true",
            support::REDLOCK
        );
        let mut command = Command::new(unshare[0]);
        command
            .args(&unshare[1..])
            .args(["env", "container=test", "sh", "-c", &line])
            .current_dir(dir.path())
            .env("XDG_RUNTIME_DIR", &home)
            .env("HOME", &home);
        outcome(&mut command)
    };
    let refused = run("true", "local:");
    refused.assert_code(78).assert_says(
        "this is a container: mount the host's /run/redlock at /run/redlock, or use the URL of a Redis",
    );
    run("true", "local:user")
        .assert_code(78)
        .assert_says("this is a container");
    run("mount -t tmpfs -o mode=700 none /run/redlock", "local:")
        .assert_code(0)
        .assert_silent();
    let mount = format!("mount -t tmpfs -o mode=700 none '{}'", home.display());
    run(&mount, "local:user").assert_code(0).assert_silent();
}

#[test]
fn a_directory_that_others_may_write_is_not_used() {
    let Some(host) = Host::new() else { return };
    for setup in [
        "mkdir runtime/redlock && chmod 777 runtime/redlock",
        "mkdir runtime/redlock && chown 54321 runtime/redlock",
        "mkdir runtime/other && ln -s other runtime/redlock",
    ] {
        host.shell(setup);
        let end = outcome(&mut host.users(&["run", "a", "--", "true"]));
        end.assert_code(78)
            .assert_says("runtime/redlock isn't used, as other users can write there");
        host.shell("rm -rf runtime/redlock");
    }
    host.shell("chown 54321 /run/redlock");
    host.end(&["run", "a", "--", "true"]).assert_code(78);
    assert_eq!(host.named("redis-server"), [0; 0]);
}

#[test]
fn a_directory_of_another_user_that_the_environment_names_is_passed_over() {
    // As after `sudo -E`, and after `su` by root.
    let Some(host) = with_group() else { return };
    host.shell("mkdir theirs && chown 54322 theirs && mkdir anns && chown 54321 anns");
    let theirs = host.path("theirs");
    for name in ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"] {
        let mut run = host.users(&["run", "a", "--", "true"]);
        outcome(run.env(name, &theirs)).assert_code(0);
        assert_eq!(host.shell("ls -A theirs"), "", "{name}");
    }
    let text = format!(
        "HOME='{}' XDG_RUNTIME_DIR=/run/user/0 exec setpriv --reuid 54321 --regid 54321 --clear-groups \
         ./redlock -u local:user run a -- true",
        host.path("anns")
    );
    let end = outcome(&mut host.sh(&text));
    assert!(!end.stderr.contains("/run/user/0"), "{end:?}");
    assert!(!end.stderr.contains("group redlock"), "{end:?}");
}

#[test]
fn a_directory_of_roots_that_others_may_write_is_not_handed_over() {
    let Some(host) = with_group() else { return };
    host.shell("chmod 777 /run/redlock && ln -s /etc/passwd /run/redlock/planted");
    host.end(&["run", "a", "--", "true"])
        .assert_code(78)
        .assert_says("/run/redlock isn't used, as other users can write there");
    assert_eq!(
        host.shell("stat -c %u /run/redlock /run/redlock/planted"),
        "0\n0"
    );
}

#[test]
fn whoever_finds_the_directories_of_an_earlier_user_of_the_server_is_told_what_to_type() {
    let Some(host) = with_group() else { return };
    host.end(&["freeze", "x", "--reason", "release"])
        .assert_code(0);
    host.end(&["local", "stop"]).assert_code(0);
    // The user was removed and made anew.
    host.shell(
        "sed s/^redlock:x:54399/redlock:x:54400/ passwd.new >passwd.other && cat passwd.other >passwd.new",
    );
    let line = "sudo chown -R redlock /run/redlock /var/lib/redlock";
    host.end(&["status"])
        .assert_code(78)
        .assert_says("/run/redlock belongs to the user 54399")
        .assert_says(&format!("has to run as redlock: `{line}`"));
    host.shell(line.trim_start_matches("sudo "));
    host.end(&["run", "-n", "x", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
}

#[test]
fn what_the_servers_user_puts_into_its_directories_neither_shows_roots_files_nor_stops_root() {
    let Some(host) = with_group() else { return };
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    host.end(&["local", "stop"]).assert_code(0);
    host.shell("cd /var/lib/redlock && rm socket && mkfifo socket && chown $(stat -c %u .) socket");
    host.end(&["local", "status"]).assert_code(69);
    host.shell("cd /var/lib/redlock && rm server.log && mkfifo server.log");
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    host.end(&["local", "stop"]).assert_code(0);
    // The server can't start, and the link is what is left of its log.
    host.shell("echo hunter2 >secret && chmod 600 secret");
    host.start_servers_with(
        "exec 1>&- 2>&-; cd /var/lib/redlock; rm server.log; ln -s \"${0%/bin/*}/secret\" server.log; exit 1",
        "",
    );
    let end = host.end(&["run", "a", "--", "true"]);
    end.assert_code(69);
    assert!(!end.stderr.contains("hunter2"), "{end:?}");
}

#[test]
fn the_limits_of_whoever_starts_the_server_are_not_its_own() {
    let Some(host) = Host::new() else { return };
    host.shell(&format!(
        "ulimit -S -f 8; ulimit -S -t 9; {REDLOCK} -u local: status"
    ));
    let limits = host.shell(&format!("cat /proc/{}/limits", host.server()));
    for name in ["Max cpu time", "Max file size"] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.contains("unlimited"), "{line}");
    }
}

#[test]
fn status_says_where_the_server_listens_that_another_environment_has_started() {
    let Some(host) = Host::new() else { return };
    outcome(&mut host.users(&["status"])).assert_code(0);
    let mut status = host.users(&["local", "status"]);
    let status = outcome(status.env_remove("XDG_RUNTIME_DIR"));
    status.assert_code(0);
    let socket = host.path("runtime/redlock/server.sock");
    assert!(
        status.stdout.contains(&format!("runs at {socket} ")),
        "{status:?}"
    );
}

#[test]
fn the_server_of_another_user_is_not_used_in_place_of_this_users() {
    let Some(host) = with_group() else { return };
    let socket = host.path("runtime/redlock/server.sock");
    let line = format!(
        "mkdir runtime/redlock && chmod 777 runtime/redlock && \
        exec setpriv --reuid 54322 --regid 54322 --clear-groups redis-server --port 0 --save '' \
        --unixsocket {socket} --unixsocketperm 777"
    );
    let _theirs = Running::start(&mut host.sh(&line));
    wait_until("it listens", || {
        host.sh(&format!("test -S {socket}"))
            .status()
            .unwrap()
            .success()
    });
    let end = outcome(&mut host.users(&["run", "a", "--", "true"]));
    end.assert_code(78).assert_says("belongs to another user");
}

#[test]
fn a_server_that_a_job_started_is_no_part_of_the_job() {
    let Some(host) = Host::new() else { return };
    let redis = Redis::start();
    let url = redis.url();
    let inner = format!("{REDLOCK} -u local: run b -- true");
    let words = ["run", "--wait-tree", "a", "-c", &inner];
    let outer = [&[REDLOCK, "-u", &url], &words[..]].concat();
    outcome(&mut host.command(&outer))
        .assert_code(0)
        .assert_silent();
    host.server();
    host.end(&["local", "stop"]).assert_code(0);
    host.await_no_server();
    // Nor is it stopped with that.
    let inner = format!("{inner}; echo ready; exec sleep 60");
    let words = ["run", "a", "-c", &inner];
    let outer = [&[REDLOCK, "-u", &url], &words[..]].concat();
    let mut job = Running::start(&mut host.command(&outer));
    job.expect_line("ready");
    outcome(&mut redis.redlock(&["stop", "-q", "a"])).assert_code(0);
    job.finish().assert_code(79);
    host.server();
    host.end(&["local", "status"]).assert_code(0);
}

#[test]
fn a_password_of_the_settings_is_not_sent_there() {
    let Some(host) = Host::new() else { return };
    let file = host.dir.path().join("password");
    fs::write(&file, "hunter2\n").unwrap();
    let mut run = host.redlock(&["run", "a", "--", "true"]);
    run.env("REDLOCK_PASSWORD_FILE", &file);
    outcome(&mut run).assert_code(0);
}

#[test]
fn doctor_fails_where_the_system_says_local_and_the_environment_another_url() {
    let setup =
        "cp -a /etc etc && echo REDLOCK_URL=local: >etc/redlock.env && mount --bind etc /etc";
    let Some(host) = Host::with(setup) else {
        return;
    };
    let redis = Redis::start();
    let doctor = |url: Option<&str>| {
        answered_in_time(|| {
            let mut doctor = host.command(&[REDLOCK, "doctor"]);
            doctor.envs(url.map(|url| ("REDLOCK_URL", url)));
            doctor
        })
    };
    let alone = doctor(None);
    alone.assert_code(0);
    assert!(
        alone
            .stdout
            .starts_with("this host only: Redis at /run/redlock/"),
        "{alone:?}"
    );
    let other = doctor(Some(&redis.url()));
    other.assert_code(1);
    let line = "/etc/redlock.env:1: REDLOCK_URL sets `local:`, and REDLOCK_URL sets another URL";
    assert!(
        other.stdout.contains("  fail  url ") && other.stdout.contains(line),
        "{other:?}"
    );
    doctor(Some("local:")).assert_code(0);
}

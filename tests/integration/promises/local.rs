//! `local:`: this user's server on this host, started once by whoever needs it first. Each test has a host of its own, made
//! of namespaces, with an empty /run: if that isn't permitted, there is nothing to test it on.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use crate::support::{
    self, OtherUser, Outcome, Redis, Running, SERVER, Scratch, children, is_permitted, outcome,
    path, script, wait_until, with_signals, without_terminal,
};

/// The binary in the directory of a host. The checkout may be in a directory over which the host mounts something.
const REDLOCK: &str = "./redlock";

/// The directory of root's server.
const ROOTS: &str = "/run/redlock";

/// The socket of root's server.
const SOCKET: &str = "/run/redlock/server.sock";

/// A host with a temporary directory, in which `home` is the user's, and `bin` comes first in the PATH. All that is
/// started there ends with it.
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

    /// Returns such a host after a script, which runs in the temporary directory.
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
        for name in ["home", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        if SERVER.path.is_absolute() {
            symlink(&SERVER.path, dir.path().join("bin/redis-server")).unwrap();
        }
        let script = format!(
            "cd '{}' && touch redlock && mount --bind '{}' redlock && chown 54321 home
             mount -t tmpfs none /run
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
            .env("HOME", self.path("home"));
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

    /// A redlock of root's.
    fn redlock(&self, arguments: &[&str]) -> Command {
        let is_setting = |word: &&&str| word.starts_with("REDLOCK_");
        let count = arguments.iter().take_while(is_setting).count();
        let (settings, words) = arguments.split_at(count);
        self.command(&[&["env"], settings, &[REDLOCK, "-u", "local:"], words].concat())
    }

    fn end(&self, arguments: &[&str]) -> Outcome {
        outcome(&mut self.redlock(arguments))
    }

    /// A redlock of the user 54321, whose home this is.
    fn users(&self, arguments: &[&str]) -> Command {
        self.by("54321", arguments)
    }

    fn by(&self, id: &str, arguments: &[&str]) -> Command {
        let user = ["setpriv", "--reuid", id, "--regid", id, "--clear-groups"];
        self.command(&[&user[..], &[REDLOCK, "-u", "local:"], arguments].concat())
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
            self.named("redis-server").is_empty()
        });
    }

    /// Stops root's server, as `doctor` says.
    fn shut_down(&self) {
        self.shell(&format!("redis-cli -s {SOCKET} shutdown"));
        self.await_no_server();
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
    let modes = host.shell(&format!("stat -c %a:%U {SOCKET} {ROOTS}"));
    assert_eq!(modes, "600:root\n700:root");
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
    assert_eq!(host.shell(&format!("readlink /proc/{server}/cwd")), ROOTS);
    let open = host.shell(&format!("ls -l /proc/{server}/fd"));
    assert!(!open.contains(&host.path("bin")), "{open}");
    assert_eq!(host.shell(&format!("find {ROOTS} -perm /077")), "");
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
        host.shut_down();
    }
}

#[test]
fn a_killed_server_is_started_again_with_the_locks_that_were_held() {
    let Some(host) = Host::new() else { return };
    let run = host.holder(&["--ttl", "12s"], Host::redlock);
    for _ in 0..2 {
        let server = host.server();
        host.signal("KILL", &[server]);
        let busy = host.end(&["run", "-n", "a", "--", "echo", "never"]);
        busy.assert_code(75).assert_says("lock \"a\" is held by");
        assert_eq!(busy.stdout, "");
        assert_ne!(host.server(), server);
    }
    // Its renewals start the next one.
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
fn a_server_that_was_shut_down_comes_back_with_all_that_it_knew() {
    let Some(host) = Host::new() else { return };
    host.end(words!("run --once-per 1h b -- true"))
        .assert_code(0);
    host.end(&["freeze", "x", "--reason", "release"])
        .assert_code(0);
    host.shut_down();
    let again = host.end(words!("run --once-per 1h b -- echo never"));
    assert_eq!(again.assert_code(0).stdout, "");
    host.end(&["run", "-n", "x", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
}

#[test]
fn a_server_that_takes_its_time_to_start_is_waited_for_by_runs() {
    let Some(host) = Host::new() else { return };
    host.shell("mkfifo gate");
    host.start_servers_with(&format!("read -r line <'{}'", host.path("gate")), "");
    // By the first command and by the next one.
    for _ in 0..2 {
        let end = host.end(&["REDLOCK_REDIS_TIMEOUT=1s", "status"]);
        end.assert_code(69)
            .assert_says("this host only: ")
            .assert_says("isn't ready yet");
    }
    let run = Running::start(&mut host.redlock(&["-v", "run", "a", "--", "echo", "hello"]));
    host.end(&["REDLOCK_REDIS_TIMEOUT=1s", "status"])
        .assert_code(69);
    host.open_gate();
    let end = run.finish();
    end.assert_code(0);
    assert_eq!(end.stdout, "hello\n");
    host.server();
}

/// Makes the start of the server older than a start can take.
const AGE: &str = "touch -d '-1 minute' /run/redlock/redlock-server.lock";

#[test]
fn a_server_without_its_socket_is_replaced_by_one_with_its_data() {
    let Some(host) = Host::new() else { return };
    host.end(&["freeze", "x", "--reason", "release"])
        .assert_code(0);
    let server = host.server();
    host.shell(&format!("rm {SOCKET}"));
    // It may have just started.
    let early = host.end(&["REDLOCK_REDIS_TIMEOUT=1s", "status"]);
    early.assert_code(69).assert_says("isn't ready yet");
    assert_eq!(host.server(), server);
    host.shell(AGE);
    host.end(&["run", "-n", "x", "--", "true"])
        .assert_code(75)
        .assert_says("is frozen");
    assert_ne!(host.server(), server);
}

#[test]
fn no_other_process_is_ended_in_place_of_a_server_and_two_never_share_their_data() {
    let Some(host) = Host::new() else { return };
    host.end(&["status"]).assert_code(0);
    let server = host.server();
    let mut other = Running::start(&mut host.sh("echo $$; exec sleep 600"));
    let pid = other.line();
    host.shell(&format!(
        "rm {SOCKET}; printf {pid} >{ROOTS}/redlock-server.lock; {AGE}"
    ));
    let refused = host.end(&["REDLOCK_REDIS_TIMEOUT=1s", "run", "a", "--", "true"]);
    refused.assert_code(69).assert_says(&format!(
        "this host only: the server for `local:` (pid {pid}) doesn't listen at {SOCKET}"
    ));
    assert!(!other.has_ended());
    assert_eq!(host.server(), server);
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
            let end = outcome(&mut redlock(&host, words));
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
    let waiters = ["run a -- true", "acquire a"].map(|words| {
        let file = words.split(' ').next().unwrap();
        let line = format!("exec {REDLOCK} -u local: {words} 2>said-{file}");
        Running::start(&mut host.sh(&line))
    });
    for file in ["said-run", "said-acquire"] {
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

#[test]
fn doctor_says_how_to_stop_the_server() {
    let Some(host) = Host::new() else { return };
    let doctor = host.end(&["doctor"]);
    doctor.assert_code(0);
    let line = format!("redis-cli -s {SOCKET} shutdown");
    assert!(doctor.stdout.contains(&line), "{doctor:?}");
    host.shell(&line);
    host.await_no_server();
}

#[test]
fn the_servers_of_two_users_are_apart() {
    if OtherUser::new().is_none() {
        return;
    }
    let Some(host) = Host::new() else { return };
    let run = host.holder(&[], Host::users);
    let machine = host.shell("cat /etc/machine-id 2>/dev/null || uname -n");
    let directory = host.path(&format!("home/.local/state/redlock/{machine}"));
    let modes = host.shell(&format!(
        "stat -c %a:%u {directory}/server.sock {directory}"
    ));
    assert_eq!(modes, "600:54321\n700:54321");
    assert_eq!(host.shell("find home/.local -perm /077"), "");
    // Root has another one, and so has another user, whose home can't be that one.
    host.end(&["run", "-n", "a", "--", "true"]).assert_code(0);
    assert_eq!(host.named("redis-server").len(), 2);
    host.shell("mkdir bobs && chown 54322 bobs");
    let mut bobs = host.by("54322", &["run", "-n", "a", "--", "true"]);
    outcome(bobs.env("HOME", host.path("bobs"))).assert_code(0);
    let mut bobs = host.by("54322", &["run", "-n", "a", "--", "true"]);
    outcome(&mut bobs)
        .assert_code(69)
        .assert_says("ermission denied");
    host.shell(&format!(
        "chmod 755 home home/.local home/.local/state home/.local/state/redlock {directory}"
    ));
    let mut bobs = host.by("54322", &["run", "-n", "a", "--", "true"]);
    outcome(&mut bobs)
        .assert_code(78)
        .assert_says("must be a directory of this user that nobody else can write");
    host.open_gate();
    run.finish().assert_code(0);
}

#[test]
fn a_job_keeps_its_lock_when_a_logout_ends_the_server_and_the_runtime_directory() {
    if OtherUser::new().is_none() {
        return;
    }
    let Some(host) = Host::new() else { return };
    host.shell("mkdir runtime && chown 54321 runtime");
    let run = host.holder(&["--ttl", "12s"], |host, words| {
        let mut command = host.users(words);
        command.env("XDG_RUNTIME_DIR", host.path("runtime"));
        command
    });
    host.shell("rm -rf runtime");
    host.signal("KILL", &host.named("redis-server"));
    wait_until("a renewal starts the server", || {
        host.named("redis-server").len() == 1
    });
    outcome(&mut host.users(&["run", "-n", "a", "--", "true"]))
        .assert_code(75)
        .assert_says("is held by");
    host.open_gate();
    run.finish().assert_code(0);
}

#[test]
fn without_a_usable_directory_the_setting_to_change_is_named() {
    if OtherUser::new().is_none() {
        return;
    }
    let Some(host) = Host::new() else { return };
    let refused = |home: &str, says: &str| {
        let mut run = host.users(&["run", "a", "--", "true"]);
        outcome(run.env("HOME", home))
            .assert_code(78)
            .assert_says("this host only: ")
            .assert_says(says);
    };
    for home in ["", "home", "/nowhere"] {
        refused(
            home,
            "`local:` needs a home directory: set HOME, or XDG_STATE_HOME",
        );
    }
    let long = format!("home/{}", "x".repeat(100));
    host.shell(&format!("mkdir {long} && chown 54321 {long}"));
    refused(
        &host.path(&long),
        "at most 107 are possible: set XDG_STATE_HOME",
    );
    let mut short = host.users(&["run", "a", "--", "true"]);
    short
        .env("HOME", host.path(&long))
        .env("XDG_STATE_HOME", host.path("home/s"));
    outcome(&mut short).assert_code(0).assert_silent();
}

#[test]
fn a_directory_that_others_may_write_is_not_used() {
    let Some(host) = Host::new() else { return };
    for setup in [
        "mkdir /run/redlock && chmod 777 /run/redlock",
        "mkdir /run/redlock && chown 54321 /run/redlock",
        "mkdir /run/other && ln -s other /run/redlock",
    ] {
        host.shell(setup);
        host.end(&["run", "a", "--", "true"])
            .assert_code(78)
            .assert_says(
                "/run/redlock must be a directory of this user that nobody else can write",
            );
        host.shell("rm -rf /run/redlock /run/other");
    }
    assert_eq!(host.named("redis-server"), [0; 0]);
}

#[test]
fn the_server_of_another_user_is_not_used_in_place_of_this_users() {
    if OtherUser::new().is_none() {
        return;
    }
    let Some(host) = Host::new() else { return };
    host.shell("mkdir -m 755 /run/redlock && mkdir -m 777 /run/redlock/x");
    let line = "exec setpriv --reuid 54322 --regid 54322 --clear-groups redis-server --port 0 \
        --save '' --unixsocket /run/redlock/x/sock --unixsocketperm 777";
    let _theirs = Running::start(&mut host.sh(line));
    let show = format!("test -S /run/redlock/x/sock && ln -sf x/sock {SOCKET}");
    wait_until("it listens", || host.sh(&show).status().unwrap().success());
    host.end(&["run", "a", "--", "true"])
        .assert_code(78)
        .assert_says("is another user's");
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
    host.signal("KILL", &host.named("redis-server"));
    let end = run.finish();
    end.assert_code(79).assert_says("not today");
    assert!(!end.stdout.contains("done"), "{end:?}");
}

#[test]
fn a_full_disk_grants_nothing_and_says_so_until_there_is_room() {
    let setup = "mkdir /run/redlock && mount -t tmpfs -o size=1m,mode=700 none /run/redlock";
    let Some(host) = Host::with(setup) else {
        return;
    };
    host.end(&["run", "a", "--", "true"]).assert_code(0);
    let fill = "cat /dev/zero >/run/redlock/full 2>/dev/null; true";
    host.shell(fill);
    // The first write that isn't saved is noticed; none is granted after it. That may be a release: then its lock expires.
    let mut names = (0..).map(|number| format!("b{number}"));
    wait_until("nothing is granted", || {
        let name = names.next().unwrap();
        let quickly = ["REDLOCK_REDIS_TIMEOUT=2s", "run", "-n", "--ttl", "1s"];
        let end = host.end(&[&quickly[..], &[&name, "--", "true"]].concat());
        end.code() == Some(69)
    });
    let refused = host.end(&["REDLOCK_REDIS_TIMEOUT=2s", "run", "-n", "a", "--", "true"]);
    refused
        .assert_code(69)
        .assert_says("No space left on device");
    let waiting =
        Running::start(&mut host.redlock(&["run", "-w", "60s", "a", "--", "echo", "room"]));
    host.shell("rm /run/redlock/full");
    let end = waiting.finish();
    end.assert_code(0);
    assert_eq!(end.stdout, "room\n");
    // Nor is one started there.
    host.shut_down();
    host.shell(&format!("rm -r /run/redlock/appendonlydir; {fill}"));
    let start = host.end(&["run", "a", "--", "true"]);
    start
        .assert_code(69)
        .assert_says("can't start a server for `local:`: it ended: ");
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
    }
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
fn a_server_that_a_job_started_is_no_part_of_the_job() {
    let Some(host) = Host::new() else { return };
    let redis = Redis::start();
    let url = redis.url();
    let inner = format!("{REDLOCK} -u local: run b -- true");
    let words = ["run", "--with-children", "a", "-c", &inner];
    let outer = [&[REDLOCK, "-u", &url], &words[..]].concat();
    outcome(&mut host.command(&outer))
        .assert_code(0)
        .assert_silent();
    host.server();
    host.shut_down();
    // Nor is it stopped with that.
    let inner = format!("{inner}; echo ready; exec sleep 60");
    let words = ["run", "a", "-c", &inner];
    let outer = [&[REDLOCK, "-u", &url], &words[..]].concat();
    let mut job = Running::start(&mut host.command(&outer));
    job.expect_line("ready");
    outcome(&mut redis.redlock(&["stop", "-q", "a"])).assert_code(0);
    job.finish().assert_code(79);
    host.server();
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

//! `local:`: this user's server on this host, started by the first command that needs it. Each test has a host of its own, made
//! of namespaces, with an empty /run. The tests do nothing if namespaces aren't permitted.

use std::os::unix::fs::symlink;

use crate::promises::config::set_mode;
use crate::promises::trouble::play_line;
use crate::support::prelude::*;

/// Directory of root's server.
const ROOTS: &str = "/run/redlock";

/// Socket of root's server.
const SOCKET: &str = "/run/redlock/server.sock";

/// Prefix that runs a command as the user whose home a host has.
const USER: &str = "setpriv --reuid 54321 --regid 54321 --clear-groups";

/// A host with a temporary directory, in which `home` is the user's, and `bin` comes first in the PATH. All processes started
/// there end with it.
struct Host {
    /// Its first process, by its pid outside.
    init: i32,
    _process: Running,
    dir: Scratch,
}

impl Host {
    fn new() -> Option<Self> {
        Self::with("")
    }

    /// Creates a host after a script that runs in the temporary directory. Returns `None` if namespaces aren't permitted.
    fn with(setup: &str) -> Option<Self> {
        let unshare = words!("unshare --mount --pid --fork --kill-child --mount-proc sh -e -c");
        let probe = format!("mount -t tmpfs none /run; {USER} true");
        if !is_permitted(&[unshare, &[probe.as_str()]].concat()) {
            return None;
        }
        let dir = Scratch::new();
        set_mode(dir.path(), 0o755);
        for name in ["home", "bin"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        if SERVER.path.is_absolute() {
            symlink(&SERVER.path, dir.path().join("bin/redis-server")).unwrap();
        }
        // The checkout may be in a directory that the mount below hides.
        let script = format!(
            "cd '{}' && touch redlock && mount --bind '{}' redlock && chown 54321 home
             mount -t tmpfs none /run
             {{ true
             {setup}
             }} && echo ready && exec sleep 600",
            dir.path().display(),
            REDLOCK
        );
        let mut command = Command::new(unshare[0]);
        command.args(&unshare[1..]).arg(&script);
        without_terminal(&mut command);
        let process = Running::ready(&mut command);
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

    /// Returns a line of root's shell there, in the temporary directory, with `local:` as redlock's URL.
    fn sh(&self, line: &str) -> Command {
        let (init, own) = (self.init.to_string(), self.path(""));
        let line = format!("cd '{own}'; {line}");
        let mut command = Command::new("nsenter");
        command.args(words!("-t {} -m -p sh -c", &init, &line));
        command.env_clear().env("REDLOCK_URL", "local:");
        command.env("PATH", format!("{}:{own}:{}", self.path("bin"), path()));
        command.env("HOME", self.path("home"));
        without_terminal(&mut command);
        command
    }

    #[track_caller]
    fn end(&self, line: &str) -> Outcome {
        outcome(&mut self.sh(line))
    }

    /// Returns the output of a line there.
    #[track_caller]
    fn shell(&self, line: &str) -> String {
        let end = self.end(line);
        end.assert_code(0);
        end.stdout.trim_end().to_owned()
    }

    /// Plays a table of lines for a shell, like [`Redis::play`].
    #[track_caller]
    fn play(&self, table: &str) {
        let lines = table.lines().map(str::trim);
        lines.for_each(|line| play_line(line, |command| self.end(command)));
    }

    /// Returns the pids of the living servers there.
    fn servers(&self) -> Vec<i32> {
        let script = r#"for process in /proc/[0-9]*; do
            read -r name <$process/comm && [ "$name" = redis-server ] || continue
            grep -q 'State:.[ZX]' $process/status || echo ${process#/proc/}
            done 2>/dev/null; true"#;
        let numbers = self.shell(script);
        numbers.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Returns the only server.
    #[track_caller]
    fn server(&self) -> i32 {
        let servers = self.servers();
        assert_eq!(servers.len(), 1, "{servers:?}");
        servers[0]
    }

    /// Kills the only server. Returns its pid.
    #[track_caller]
    fn kill_server(&self) -> i32 {
        let server = self.server();
        self.shell(&format!("kill -KILL {server}"));
        server
    }

    /// Replaces the server by a script.
    fn replace_server(&self, text: &str) {
        let _ = fs::remove_file(self.path("bin/redis-server"));
        let text = format!("#!/bin/sh\n{text}\n");
        script(self.dir.path(), "bin/redis-server", &text);
    }

    fn await_no_server(&self) {
        wait_until("no server is left", || self.servers().is_empty());
    }

    /// Stops root's server with the command that `doctor` prints.
    fn shut_down(&self) {
        self.shell(&format!("redis-cli -s {SOCKET} shutdown"));
        self.await_no_server();
    }

    /// Starts a run that holds the lock "a" until a line is written to the pipe `gate`. `who` runs it as a user.
    #[track_caller]
    fn holder(&self, who: &str, options: &str) -> Running {
        self.shell("[ -p gate ] || mkfifo -m 666 gate");
        let script = "echo ready; read line <gate; echo done";
        let line = format!("{who} redlock run {options} a -c '{script}'");
        Running::ready(&mut self.sh(&line))
    }

    fn open_gate(&self) {
        self.shell("echo go >gate");
    }
}

#[test]
fn the_first_command_starts_a_server_that_has_no_port_and_forgets_nothing() {
    let Some(host) = Host::new() else { return };
    host.play(r#"0 [ "$(redlock run a -- echo hello)" = hello ]"#);
    let server = host.server();
    // The settings' password isn't sent to this server.
    host.play(
        "0 echo hunter2 >password; REDLOCK_PASSWORD_FILE=$PWD/password redlock run a -- true 2>/dev/null
        0 redlock run a -- true
        0 redlock run --once-per 1h b -- true
        0 redlock freeze -q x --reason release",
    );
    assert_eq!(host.server(), server);
    let settings = host.shell(&format!(
        "for name in port appendonly appendfsync maxmemory-policy save; do
        redis-cli -s {SOCKET} CONFIG GET $name | tail -n 1; done"
    ));
    assert_eq!(settings, "0\nyes\nno\nnoeviction");
    let modes = host.shell(&format!("stat -c %a:%U {SOCKET} {ROOTS}"));
    assert_eq!(modes, "600:root\n700:root");
    let doctor = host.shell("redlock doctor");
    let line = format!("redis-cli -s {SOCKET} shutdown");
    assert!(doctor.contains(&line), "{doctor}");
    host.shut_down();
    host.play(
        "0 redlock run --once-per 1h b -- false → skipped
        75 redlock run -n x -- true → is frozen",
    );
}

#[test]
fn the_server_has_nothing_of_whoever_started_it() {
    let Some(host) = Host::new() else { return };
    // A descriptor, a umask, a variable, limits and a priority. HUP, INT, QUIT and CHLD are ignored, and TERM is blocked.
    let line = "exec 9<bin; umask 0; export MINE=1; ulimit -S -f 8; ulimit -S -t 9; exec nice -n 5 redlock status";
    let ignored = |signal| matches!(signal, 1 | 2 | 3 | 17);
    outcome(&mut with_signals(host.sh(line), ignored, 1 << (15 - 1))).assert_code(0);
    let server = host.server();
    let (proc, bin) = (format!("/proc/{server}"), host.path("bin"));
    // No signal is blocked, and INT, QUIT and CHLD aren't ignored. The server has a session of its own, and the usual priority.
    host.play(&format!(
        r#"0 grep -qx 'SigBlk:.0*' {proc}/status
        0 [ $((0x$(sed -n 's/^SigIgn:.//p' {proc}/status) & 0x10006)) = 0 ]
        0 set -- $(sed 's/.*) //' {proc}/stat); [ "$3 $4 ${{17}}" = '{server} {server} 0' ]
        0 ! grep -q MINE {proc}/environ
        0 [ "$(readlink {proc}/cwd)" = {ROOTS} ]
        0 ! ls -l {proc}/fd | grep -qF '{bin}'
        0 [ -z "$(find {ROOTS} -perm /077)" ]
        0 grep -Eq '^Max cpu time +unlimited' {proc}/limits
        0 grep -Eq '^Max file size +unlimited' {proc}/limits"#
    ));
}

#[test]
fn concurrent_first_commands_start_a_single_server() {
    let Some(host) = Host::new() else { return };
    for _ in 0..3 {
        let start = |number: i32| {
            let line = format!("redlock run a{number} -- true");
            Running::start(&mut host.sh(&line))
        };
        let runs: Vec<Running> = (0..8).map(start).collect();
        for run in runs {
            run.finish().assert_code(0).assert_silent();
        }
        host.server();
        host.shut_down();
    }
}

#[test]
fn a_killed_server_is_started_again_with_the_locks_that_were_held() {
    // A logout removes the user's runtime directory too.
    let user = format!("XDG_RUNTIME_DIR=$PWD/runtime {USER}");
    for who in ["", &user] {
        let Some(host) = Host::new() else { return };
        host.shell("mkdir runtime && chown 54321 runtime");
        let run = host.holder(who, "--ttl 12s");
        host.shell("rm -rf runtime");
        let busy = format!("75 {who} redlock run -n a -- true → lock \"a\" is held by");
        for _ in 0..2 {
            let server = host.kill_server();
            host.play(&busy);
            assert_ne!(host.server(), server);
        }
        // The renewals of the run start the next server.
        host.kill_server();
        wait_until("a renewal starts the server", || host.servers().len() == 1);
        host.play(&busy);
        host.open_gate();
        let end = run.finish();
        end.assert_code(0);
        assert!(end.stdout.ends_with("done\n"), "{end:?}");
        host.play(&format!("0 {who} redlock run -n a -- true"));
    }
}

#[test]
fn a_server_that_takes_its_time_to_start_is_waited_for_by_runs() {
    let Some(host) = Host::new() else { return };
    host.shell(
        r#"mkfifo gate; mkdir real
        ln -s "$(readlink -f "$(command -v redis-server)")" real/redis-server"#,
    );
    let (gate, real) = (host.path("gate"), host.path("real/redis-server"));
    host.replace_server(&format!("read -r line <'{gate}'; exec '{real}' \"$@\""));
    // Both the first command and the next one.
    host.play(
        "69 REDLOCK_REDIS_TIMEOUT=1s redlock status → this host only: … isn't ready yet
        69 REDLOCK_REDIS_TIMEOUT=1s redlock status → this host only: … isn't ready yet",
    );
    let run = Running::start(&mut host.sh("redlock -v run a -- echo hello"));
    host.play("69 REDLOCK_REDIS_TIMEOUT=1s redlock status → redlock: ");
    host.open_gate();
    run.finish().assert_printed(0, "hello\n");
    host.server();
}

#[test]
fn a_server_without_its_socket_is_replaced_and_no_other_process_is_ended_in_its_place() {
    let Some(host) = Host::new() else { return };
    host.play("0 redlock freeze -q x --reason release");
    let first = host.server();
    // The server may have just started.
    host.play(&format!(
        "0 rm {SOCKET}
        69 REDLOCK_REDIS_TIMEOUT=1s redlock status → isn't ready yet"
    ));
    assert_eq!(host.server(), first);
    // The start was longer ago than a start can take.
    let age = format!("touch -d '-1 minute' {ROOTS}/redlock-server.lock");
    host.play(&format!(
        "0 {age}
        75 redlock run -n x -- true → is frozen"
    ));
    let server = host.server();
    assert_ne!(server, first);
    // Two servers never share their data.
    let mut other = Running::start(&mut host.sh("echo $$; exec sleep 600"));
    let pid = other.line();
    host.play(&format!(
        "0 rm {SOCKET}; printf {pid} >{ROOTS}/redlock-server.lock; {age}
        69 REDLOCK_REDIS_TIMEOUT=1s redlock run a -- true → this host only: the server for `local:` (pid {pid}) doesn't listen at {SOCKET}"
    ));
    assert!(!other.has_ended());
    assert_eq!(host.server(), server);
}

#[test]
fn a_server_that_closes_one_connection_goes_on() {
    let host = some_or_return!(Host::new());
    host.play("0 redlock run a -- true");
    host.shell(&format!("touch -d '-1 minute' {ROOTS}/redlock-server.lock"));
    // Closes the first connection, and then gives the socket back to the server.
    let closing = format!(
        "import os, socket
os.rename('{SOCKET}', '{SOCKET}.own')
listener = socket.socket(socket.AF_UNIX)
listener.bind('{SOCKET}')
listener.listen()
print('ready', flush=True)
listener.accept()[0].close()
os.rename('{SOCKET}.own', '{SOCKET}')"
    );
    let closing = Running::ready(&mut host.sh(&format!("exec python3 -c \"{closing}\"")));
    host.play("0 redlock run a -- true");
    closing.finish().assert_code(0);
    let log = host.shell(&format!("cat {ROOTS}/server.log"));
    assert!(!log.contains("SIGTERM"), "{log}");
}

#[test]
fn every_account_of_such_locks_begins_with_this_host_only() {
    let Some(host) = Host::new() else { return };
    for words in ["status", "status a", "status 'a*'", "doctor"] {
        for who in ["", USER] {
            let text = host.shell(&format!("{who} redlock {words}"));
            assert!(text.starts_with("this host only"), "{words}: {text}");
        }
    }
    let run = host.holder("", "");
    let table = host.shell("redlock status");
    assert!(table.starts_with("this host only\nNAME "), "{table}");
    assert!(host.shell("redlock status --json").starts_with("[{"));
    assert_eq!(host.shell("redlock status --names-only"), "a");
    let lines = ["run a -- true", "acquire a"].map(|words| format!("redlock {words} 2>&1"));
    let mut waiters = lines.map(|line| Running::start(&mut host.sh(&line)));
    for waiter in &mut waiters {
        let line = waiter.line();
        let start = "redlock: this host only: waiting for \"a\", held by ";
        assert!(line.starts_with(start), "{line}");
    }
    host.open_gate();
    run.finish().assert_code(0);
    all_end(waiters, 0);
}

#[test]
fn the_servers_of_two_users_are_apart() {
    let Some(host) = Host::new() else { return };
    let run = host.holder(USER, "");
    let machine = host.shell("cat /etc/machine-id 2>/dev/null || uname -n");
    let directory = host.path(&format!("home/.local/state/redlock/{machine}"));
    let modes = format!("stat -c %a:%u {directory}/server.sock {directory}");
    assert_eq!(host.shell(&modes), "600:54321\n700:54321");
    assert_eq!(host.shell("find home/.local -perm /077"), "");
    // Root has another server, and so does another user, whose home can't be the same.
    host.play("0 redlock run -n a -- true");
    assert_eq!(host.servers().len(), 2);
    let bobs = USER.replace("54321", "54322") + " redlock run -n a -- true";
    host.play(&format!(
        "0 mkdir bobs && chown 54322 bobs
        0 HOME=$PWD/bobs {bobs}
        69 {bobs} → ermission denied
        0 chmod 755 home home/.local home/.local/state home/.local/state/redlock {directory}
        78 {bobs} → must be a directory of this user that nobody else can write"
    ));
    host.open_gate();
    run.finish().assert_code(0);
}

#[test]
fn a_directory_or_a_server_that_is_not_this_users_alone_is_not_used() {
    let Some(host) = Host::new() else { return };
    for setup in [
        "mkdir /run/redlock && chmod 777 /run/redlock",
        "mkdir /run/redlock && chown 54321 /run/redlock",
        "mkdir /run/other && ln -s other /run/redlock",
    ] {
        host.play(&format!(
            "0 {setup}
            78 redlock run a -- true → {ROOTS} must be a directory of this user that nobody else can write
            0 rm -rf /run/redlock /run/other"
        ));
    }
    let long = format!("home/{}", "x".repeat(100));
    let run = format!("{USER} redlock run a -- true");
    let needs = "this host only: … `local:` needs a home directory: set HOME, or XDG_STATE_HOME";
    host.play(&format!(
        "78 HOME= {run} → {needs}
        78 HOME=home {run} → {needs}
        78 HOME=/nowhere {run} → {needs}
        0 mkdir {long} && chown 54321 {long}
        78 HOME=$PWD/{long} {run} → this host only: … at most 107 are possible: set XDG_STATE_HOME"
    ));
    assert_eq!(host.servers(), [0; 0]);
    host.play(&format!(
        "0 HOME=$PWD/{long} XDG_STATE_HOME=$PWD/home/s {run}
        0 mkdir -m 755 /run/redlock && mkdir -m 777 /run/redlock/x"
    ));
    let options = "--port 0 --save '' --unixsocket /run/redlock/x/sock --unixsocketperm 777";
    let line = format!("exec {USER} redis-server {options}");
    let _theirs = Running::start(&mut host.sh(&line));
    let show = format!("test -S /run/redlock/x/sock && ln -sf x/sock {SOCKET}");
    wait_until("it listens", || host.end(&show).code() == Some(0));
    host.play("78 redlock run a -- true → is another user's");
}

#[test]
fn a_run_whose_server_cant_come_back_stops_its_command_and_says_why() {
    let Some(host) = Host::new() else { return };
    let run = host.holder("", "--ttl 6s");
    host.replace_server("echo not today >&2; exit 1");
    host.kill_server();
    let end = run.finish_saying(79, "not today");
    assert!(!end.stdout.contains("done"), "{end:?}");
}

#[test]
fn a_full_disk_grants_nothing_and_says_so_until_there_is_room() {
    let setup = "mkdir /run/redlock && mount -t tmpfs -o size=1m,mode=700 none /run/redlock";
    let host = some_or_return!(Host::with(setup));
    let fill = "cat /dev/zero >/run/redlock/full 2>/dev/null; true";
    host.play(&format!("0 redlock run a -- true\n0 {fill}"));
    // The server notices the first write that it can't save, and grants nothing after it. If that is a release, its lock
    // expires.
    let mut numbers = 0..;
    let quickly = "REDLOCK_REDIS_TIMEOUT=2s redlock run -n";
    wait_until("nothing is granted", || {
        let number = numbers.next().unwrap();
        let end = host.end(&format!("{quickly} --ttl 1s b{number} -- true"));
        end.code() == Some(69)
    });
    let refused = host.end(&format!("{quickly} a -- true"));
    refused.assert_said(69, "No space left on device");
    // Users can look at the locks, and doctor names the fault.
    assert!(host.shell("redlock status a").contains("a: free"));
    let doctor = host.end("redlock doctor");
    let row = "warn  persistence  the last write to the disk failed";
    assert!(doctor.stdout.contains(row), "{doctor:?}");
    let waiting = Running::start(&mut host.sh("redlock run -w 60s a -- echo room"));
    host.shell("rm /run/redlock/full");
    waiting.finish().assert_printed(0, "room\n");
    // A new server doesn't start there, either.
    host.shut_down();
    host.play(&format!(
        "0 rm -rf /run/redlock/appendonlydir; {fill}
        69 redlock run a -- true → can't start a server for `local:`: it ended:"
    ));
    host.await_no_server();
}

#[test]
fn without_a_server_program_redlock_prints_how_to_install_one() {
    let Some(host) = Host::new() else { return };
    fs::create_dir(host.path("none")).unwrap();
    let redlock = host.path("redlock");
    let run = format!("PATH=$PWD/none {redlock} -u local: run a -- /bin/true");
    let why = "neither redis-server nor valkey-server is installed";
    host.play(&format!("69 {run} → {why}"));
    for (program, line) in [
        ("dnf", "sudo dnf install -y redis"),
        ("apt-get", "sudo apt-get install -y redis-server"),
    ] {
        script(host.dir.path(), &format!("none/{program}"), "");
        host.play(&format!("69 {run} → {why}; `{line}` installs it"));
    }
}

#[test]
fn a_server_that_a_job_started_is_no_part_of_the_job() {
    let Some(host) = Host::new() else { return };
    let redis = Redis::start();
    let outer = format!("REDLOCK_URL={} redlock run", redis.url());
    let inner = "redlock -u local: run b -- true";
    host.play(&format!("0 {outer} --with-children a -c '{inner}'"));
    host.server();
    host.shut_down();
    // Stopping the job doesn't stop the server.
    let line = format!("{outer} a -c '{inner}; echo ready; exec sleep 60'");
    let job = Running::ready(&mut host.sh(&line));
    ends(&redis, "stop -q a").assert_code(0);
    job.finish().assert_code(79);
    host.server();
}

//! A service under systemd: the manager knows whether it waits or runs.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::promises::recipes::{GATE, Sandbox, blocks};
use crate::support::prelude::*;

/// A manager's socket.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(redis: &Redis, name: &str) -> Self {
        let path = redis.dir.path().join(name).display().to_string();
        Self::with(UnixDatagram::bind(&path).unwrap(), path)
    }

    fn with(socket: UnixDatagram, path: String) -> Self {
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, path }
    }

    /// Receives the next message.
    #[track_caller]
    fn message(&self) -> String {
        let mut bytes = [0; 1000];
        let length = self.socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

#[test]
fn a_service_is_ready_when_its_command_has_started_and_a_standby_shows_the_holder() {
    let sandbox = Sandbox::new().with("opt/importer", GATE);
    let unit = &blocks("A service with a hot standby")[0].1;
    let (_, exec) = unit.split_once("\nExecStart=").expect("a command");
    let exec = exec.lines().next().unwrap();
    let words: Vec<&str> = exec.split_whitespace().collect();
    let start = |manager: &Manager| {
        let variables = [("NOTIFY_SOCKET", &*manager.path), ("REDLOCK_TTL", "6s")];
        Running::start(&mut sandbox.command(&words, &variables))
    };
    let [one, two] = ["one", "two"].map(|name| Manager::new(&sandbox.redis, name));
    let mut active = start(&one).at_ready();
    let ready = one.message();
    let is_running = ready.starts_with("READY=1\nSTATUS=running ");
    assert!(is_running && ready.ends_with("/importer"), "{ready}");

    let mut standby = start(&two);
    let status = two.message();
    let holder = format!("(pid {})", active.pid());
    let is_waiting = status.starts_with("STATUS=waiting for \"importer\"");
    assert!(is_waiting && status.contains(&holder), "{status}");
    active.kill();
    standby.expect_line("ready");
    let ready = two.message();
    assert!(ready.starts_with("READY=1\n"), "{ready}");
    sandbox.open_the_gate();
    standby.finish().assert_code(0);
}

#[test]
fn a_manager_with_an_abstract_socket_reads_a_long_command_cut() {
    let redis = Redis::start();
    let name = format!("redlock-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let manager = Manager::with(socket, format!("@{name}"));
    let long = "x".repeat(10_000);
    let mut run = redis.redlock(words!("run a -- true", &long));
    outcome(run.env("NOTIFY_SOCKET", &manager.path)).assert_code(0);
    let ready = manager.message();
    assert!(ready.starts_with("READY=1\nSTATUS=running ") && ready.len() < 600);
}

#[test]
fn a_manager_that_reads_nothing_holds_nothing_up() {
    let redis = Redis::start();
    let manager = Manager::new(&redis, "manager");
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(b"STATUS=busy", &manager.path).is_ok() {}
    let mut run = redis.redlock(words!("run a -- true"));
    outcome(run.env("NOTIFY_SOCKET", &manager.path)).assert_code(0);
}

#[test]
fn variables_that_name_redlock_name_its_command_instead() {
    let redis = Redis::start();
    // A manager starts redlock, and knows its pid by then.
    let manager = "$ENV{WATCHDOG_PID} = $ENV{LISTEN_PID} = $$; exec @ARGV";
    let service = r#"echo "$((WATCHDOG_PID - $$)) $((LISTEN_PID - $$)) $WATCHDOG_USEC""#;
    for guard in [&[][..], &["redlock", "guard", "--"]] {
        let run = words!("perl -e {} {} run -q a --", manager, REDLOCK);
        let words = [run, guard, &["sh", "-c", service]].concat();
        let mut command = directly(&redis, &words);
        outcome(command.env("WATCHDOG_USEC", "30")).assert_printed(0, "0 0 30\n");
    }
    let mut run = redis.run("-q a", r#"echo "$WATCHDOG_PID""#);
    let end = outcome(run.env("WATCHDOG_PID", "1"));
    assert_eq!(end.stdout, "1\n", "another process is meant");
}

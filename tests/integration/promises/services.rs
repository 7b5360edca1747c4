//! A service under systemd: the manager knows whether it waits or runs.

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::promises::recipes::{GATE, Sandbox, blocks};
use crate::support::{Redis, Running, TIMEOUT, outcome};

/// A manager's socket.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(redis: &Redis, name: &str) -> Self {
        let path = redis.dir.path().join(name).display().to_string();
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Self { socket, path }
    }

    /// The next message.
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
    let exec = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="))
        .expect("a command");
    let words: Vec<&str> = exec.split_whitespace().collect();
    let start = |manager: &Manager| {
        Running::start(
            sandbox
                .command(&words, &[])
                .env("NOTIFY_SOCKET", &manager.path),
        )
    };
    let [one, two] = ["one", "two"].map(|name| Manager::new(&sandbox.redis, name));
    let mut active = start(&one);
    active.expect_line("ready");
    let ready = one.message();
    assert!(
        ready.starts_with("READY=1\nSTATUS=running ") && ready.ends_with("/importer"),
        "{ready}"
    );

    let mut standby = start(&two);
    let status = two.message();
    let holder = format!("(pid {})", active.pid());
    assert!(
        status.starts_with("STATUS=waiting for \"importer\"") && status.contains(&holder),
        "{status}"
    );
    active.kill();
    standby.expect_line("ready");
    let ready = two.message();
    assert!(ready.starts_with("READY=1\n"), "{ready}");
    sandbox.open_the_gate();
    standby.finish().assert_code(0);
}

#[test]
fn a_long_command_is_cut() {
    let redis = Redis::start();
    let manager = Manager::new(&redis, "manager");
    let mut run = redis.redlock(words!("run a -- true"));
    let long = "x".repeat(10_000);
    outcome(run.arg(long).env("NOTIFY_SOCKET", &manager.path)).assert_code(0);
    let told = manager.message();
    assert!(told.starts_with("READY=1\nSTATUS=running ") && told.len() < 600);
}

#[test]
fn a_manager_that_reads_nothing_holds_nothing_up() {
    let redis = Redis::start();
    let manager = Manager::new(&redis, "manager");
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(b"STATUS=busy", &manager.path).is_ok() {}
    let run = ["run", "a", "--", "true"];
    outcome(redis.redlock(&run).env("NOTIFY_SOCKET", &manager.path)).assert_code(0);
}

#[test]
fn a_manager_with_an_abstract_socket_is_found() {
    use std::os::linux::net::SocketAddrExt;
    let redis = Redis::start();
    let name = format!("redlock-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    let path = format!("@{name}");
    let run = ["run", "a", "--", "true"];
    outcome(redis.redlock(&run).env("NOTIFY_SOCKET", path)).assert_code(0);
    socket.set_nonblocking(true).unwrap();
    let mut bytes = [0; 100];
    let length = socket.recv(&mut bytes).expect("a message");
    assert!(bytes[..length].starts_with(b"READY=1\n"));
}

#[test]
fn variables_that_name_redlock_name_its_command_instead() {
    let redis = Redis::start();
    // A manager starts redlock, whose pid it knows by then.
    let manager = "$ENV{WATCHDOG_PID} = $ENV{LISTEN_PID} = $$; exec @ARGV";
    let service = r#"echo "$((WATCHDOG_PID - $$)) $((LISTEN_PID - $$)) $WATCHDOG_USEC""#;
    for guard in [&[][..], &["redlock", "guard", "--"]] {
        let run =
            redis.redlock(&[&["run", "-q", "a", "--"], guard, &["sh", "-c", service]].concat());
        let mut command = Command::new("perl");
        command
            .args(["-e", manager])
            .arg(run.get_program())
            .args(run.get_args());
        command.env_clear().envs(
            run.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let end = outcome(command.env("WATCHDOG_USEC", "30"));
        assert_eq!(end.assert_code(0).stdout, "0 0 30\n");
    }
    let mut run = redis.run("-q a", r#"echo "$WATCHDOG_PID""#);
    let end = outcome(run.env("WATCHDOG_PID", "1"));
    assert_eq!(end.stdout, "1\n", "another process is meant");
}

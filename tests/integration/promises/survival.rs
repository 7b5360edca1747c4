//! COMMAND doesn't notice failures that are over within the lease.

use crate::promises::trouble::{encrypted, self_signed};
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, load_scripts};

/// Script of a COMMAND that ends when a file appears in its home directory.
const UNTIL_GO: &str = r#"echo ready; until [ -e "$HOME/go" ]; do sleep 0.02; done"#;

/// Starts a run of the lock "a". Returns at its `ready` line.
fn run(redis: &Redis, options: &str) -> Running {
    Running::ready(&mut redis.run(&format!("{options} a"), UNTIL_GO))
}

/// Lets the commands end.
fn go(redis: &Redis) {
    std::fs::write(redis.dir.path().join("go"), "").unwrap();
}

/// Asserts that the run renews at least once more, still has its token, and ends well and silently.
#[track_caller]
fn assert_goes_on(redis: &Redis, run: Running, token: &str) {
    redis.await_renewals("a", 1);
    let left = redis.cli(&["GET", "redlock:a"]);
    assert_eq!(left, token, "{}", redis.describe_key("a"));
    go(redis);
    run.finish().assert_code(0).assert_silent();
    let left = redis.cli(&["EXISTS", "redlock:a"]);
    assert_eq!(left, "0", "{}", redis.describe_key("a"));
}

#[test]
fn a_redis_that_restarts_with_its_data_is_not_noticed() {
    let mut redis = Redis::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let run = run(&redis, "--ttl 20s -k 1s");
    let token = redis.cli(&["GET", "redlock:a"]);
    redis.kill();
    redis.start_again();
    assert_goes_on(&redis, run, &token);
}

/// Starts a run of the lock "a" with these options and stderr joined with stdout.
fn heard(redis: &Redis, settings: &str, options: &str) -> Running {
    let line = format!("{settings} exec redlock run {options} a -c \"$0\" 2>&1");
    Running::ready(&mut directly(redis, &["sh", "-c", &line, UNTIL_GO]))
}

#[test]
fn a_silent_redis_is_reported_once_an_outage_with_when_the_command_is_stopped() {
    let redis = Redis::start();
    let mut run = heard(&redis, "", "--ttl 10s -k 100ms");
    for _ in 0..2 {
        redis.await_renewals("a", 1);
        redis.stall();
        let line = run.line();
        assert_has(
            &line,
            &[
                "redlock: Redis hasn't answered for ",
                "s; if it doesn't within ",
            ],
        );
        assert!(line.ends_with("s, the command is stopped, as lock \"a\" may be lost"));
        redis.resume();
        run.expect_line("redlock: Redis answers again");
    }
    go(&redis);
    let end = run.finish();
    assert_eq!(end.assert_code(0).stdout.lines().count(), 5, "{end:?}");
}

#[test]
fn refused_renewals_are_reported_with_the_reason_unless_quiet() {
    let redis = Redis::start();
    let mut run = heard(&redis, "REDLOCK_ON_LOST=warn", "--ttl 10s");
    let mut silent = redis.run("-q --ttl 10s -k 100ms b", UNTIL_GO);
    let silent = Running::ready(&mut silent);
    redis.cli(&["ACL", "SETUSER", "default", "-@scripting"]);
    let line = run.line();
    let begins = line.starts_with("redlock: no renewal has succeeded for ");
    let says = line.contains("s, lock \"a\" may be lost: ") && line.contains("permitted to run");
    assert!(begins && says, "{line}");
    redis.cli(&["ACL", "SETUSER", "default", "+@scripting"]);
    run.expect_line("redlock: renewals succeed again");
    go(&redis);
    run.finish().assert_code(0);
    silent.finish().assert_code(0).assert_silent();
}

#[test]
fn dropped_connections_and_flushed_scripts_are_not_noticed() {
    let redis = Redis::start();
    let run = run(&redis, "--ttl 18s -k 200ms");
    let token = redis.cli(&["GET", "redlock:a"]);
    for _ in 0..3 {
        let before = redis.calls("eval");
        redis.cli(&["SCRIPT", "FLUSH"]);
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        wait_until("the script is sent again", || redis.calls("eval") > before);
    }
    assert_goes_on(&redis, run, &token);
}

#[test]
fn a_renewal_that_is_held_up_or_lost_is_not_noticed_however_long_the_connect_timeout_is() {
    // A run reports half a lease without a reply.
    for (action, options) in [
        (Action::Stall(Duration::from_secs(3)), ""),
        // The connection stays open.
        (Action::LoseRequest, "REDLOCK_REDIS_TIMEOUT=24s"),
    ] {
        let redis = Redis::start();
        load_scripts(&redis);
        let proxy = Proxy::once(&redis, "renew", 0, action);
        let options = format!("--url {} -q --ttl 12s -k 200ms {options}", proxy.url());
        let mut run = run(&redis, &options);
        let token = redis.cli(&["GET", "redlock:a"]);
        wait_until("it is renewed, or has ended", || {
            proxy.answered("renew") > 0 || run.has_ended()
        });
        assert_goes_on(&redis, run, &token);
    }
}

/// Returns true if a connection to this port has keepalive, with probes after at most 30 s of silence.
fn is_kept_alive(port: u16) -> bool {
    let connections = std::fs::read_to_string("/proc/net/tcp").unwrap();
    connections.lines().any(|line| {
        // Fields: number, both addresses, state, queues, and a timer in hundredths of a second.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_to_port = fields[2].ends_with(&format!(":{port:04X}")) && fields[3] == "01";
        let timer = fields[5].strip_prefix("02:");
        let left = timer.and_then(|left| u32::from_str_radix(left, 16).ok());
        is_to_port && left.is_some_and(|left| left <= 3_000)
    })
}

#[test]
fn idle_connections_are_kept_alive_with_tls_or_without() {
    let directory = tempfile::tempdir().unwrap();
    self_signed(directory.path(), "server", "2", "FALSE");
    let (redis, tls_port) = encrypted(directory.path(), "server");
    let ca = directory.path().join("server.crt");
    let ca = setting("REDLOCK_TLS_CA", ca.to_str().unwrap());
    let tls_url = format!("rediss://localhost:{tls_port}");
    for (url, port) in [(redis.tcp_url(), redis.port), (tls_url, tls_port)] {
        let run = run(&redis, &format!("{ca} -u {url}"));
        wait_until("its connection is kept alive", || is_kept_alive(port));
        run.signal(Signal::SIGTERM);
        run.finish();
    }
}

#[test]
fn a_run_that_redis_cannot_notify_sees_with_its_next_renewal_that_it_was_stopped() {
    let redis = Redis::start();
    redis.cli(&["ACL", "SETUSER", "default", "-client"]);
    let run = run(&redis, "--ttl 9s -k 1s");
    ends(&redis, "stop a").assert_said(0, "\"a\" is free after ");
    run.finish().assert_exited(79);
}

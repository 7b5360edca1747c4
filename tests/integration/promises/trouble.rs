//! Redis in trouble, or not where its URL says: one clear line that says what to do, and the right
//! status. Each state is that of a real server.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use crate::promises::config::{openssl, set_mode};
use crate::promises::supervision::binaries;
use crate::support::pty::Terminal;
use crate::support::{
    Gated, OtherUser, Outcome, REDLOCK, Redis, Running, SERVER, UnresponsiveServer, directly,
    free_port, is_permitted, outcome, redlock, script, setting, wait_until, with_default_signals,
};

/// A run of `echo ran`, which must not run, with these options.
fn run(url: &str, options: &[&str]) -> Command {
    let mut command =
        redlock(&[&["-u", url, "run"], options, &["a", "--", "echo", "ran"]].concat());
    command.env("HOME", "/nonexistent");
    command
}

/// It ended with this status and one line, which has no text of the system's or a script's.
#[track_caller]
fn assert_line(end: &Outcome, status: i32, parts: &[&str]) {
    end.assert_code(status);
    assert_eq!(end.stdout, "", "{end:?}");
    let line = end.stderr.trim_end();
    assert!(line.starts_with("redlock: "), "{end:?}");
    assert!(!line.contains('\n'), "{end:?}");
    for text in [
        "os error",
        "script:",
        "user_script",
        "?",
        "hunter2",
        "getaddrinfo",
    ] {
        assert!(!line.contains(text), "{text:?}: {end:?}");
    }
    for part in parts {
        assert!(line.contains(part), "{part:?} is not said: {end:?}");
    }
}

/// The same, where redlock may say after a second that it still tries.
#[track_caller]
fn assert_last_line(mut end: Outcome, status: i32, parts: &[&str]) {
    let lines = end.stderr.split_inclusive('\n');
    end.stderr = lines
        .filter(|line| !line.contains("; still trying ("))
        .collect();
    assert_line(&end, status, parts);
}

#[test]
fn protected_mode_is_77_and_says_what_to_do() {
    let redis = Redis::with(&["--bind", "0.0.0.0"]);
    let addresses = Command::new("hostname").arg("-I").output().unwrap().stdout;
    let addresses = String::from_utf8(addresses).unwrap();
    // A machine without a network has none.
    let Some(address) = addresses
        .split_whitespace()
        .find(|address| address.contains('.'))
    else {
        return;
    };
    let place = format!("{address}:{}", redis.port);
    for url in [
        format!("redis://{place}"),
        format!("redis://:hunter2@{place}/2"),
    ] {
        let end = outcome(&mut run(&url, &[]));
        assert_line(&end, 77, &["is in protected mode", "requirepass"]);
    }
}

/// A Redis that is a node of a cluster, which has no slot yet.
fn node() -> Redis {
    let bus = free_port().to_string();
    Redis::with(&["--cluster-enabled", "yes", "--cluster-port", &bus])
}

fn is_up(node: &Redis) -> bool {
    node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
}

#[test]
fn a_cluster_is_78_and_the_prefix_and_the_node_are_named_that_make_it_work() {
    let (first, second) = (node(), node());
    let tagged = ["REDLOCK_PREFIX={redlock}:"];
    let end = outcome(&mut run(&first.tcp_url(), &tagged));
    assert_line(&end, 78, &["is a Redis Cluster", "no node serves"]);

    first.add_slots(0..8192);
    second.add_slots(8192..16384);
    let bus = second.cli(&["CONFIG", "GET", "cluster-port"]);
    let port = second.port.to_string();
    let mut meet = vec!["CLUSTER", "MEET", "127.0.0.1", &port];
    meet.extend(bus.lines().nth(1));
    first.cli(&meet);
    wait_until("the cluster is up", || is_up(&first) && is_up(&second));

    let end = outcome(&mut run(&first.tcp_url(), &[]));
    assert_line(
        &end,
        78,
        &["is a Redis Cluster", "REDLOCK_PREFIX='{redlock}:'"],
    );
    let end = outcome(&mut run(&format!("{}/3", first.tcp_url()), &[]));
    // A cluster of Valkey 9 may have several databases.
    let database = if SERVER.is_before(9, 0) {
        ["is a Redis Cluster", "leave the database out"]
    } else {
        [
            "doesn't have the URL's database",
            "unless configured otherwise",
        ]
    };
    assert_line(&end, 78, &database);

    let slot = first.cli(&["CLUSTER", "KEYSLOT", "{redlock}:a"]);
    let is_first = slot.parse::<u32>().unwrap() < 8192;
    let (here, there) = if is_first {
        (&first, &second)
    } else {
        (&second, &first)
    };
    let named = format!("127.0.0.1:{} serves these keys", here.port);
    let end = outcome(&mut run(&there.tcp_url(), &tagged));
    assert_line(&end, 78, &["is a Redis Cluster", &named]);
    outcome(&mut run(&here.tcp_url(), &tagged))
        .assert_code(0)
        .assert_silent();
}

#[test]
fn a_replica_is_78_for_what_writes_and_what_reads_says_that_it_may_be_old() {
    let primary = Redis::start();
    let port = primary.port.to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    outcome(&mut primary.redlock(&["run", "a", "--", "true"])).assert_code(0);
    wait_until("the replica has it", || {
        replica.cli(&["EXISTS", "{redlock:a}:history"]) == "1"
    });
    for command in [
        &["run", "a", "--", "true"][..],
        &["run", "--slots", "2", "a", "--", "true"],
        &["freeze", "a", "--reason", "x"],
        &["thaw", "a"],
        &["release", "--force", "a"],
    ] {
        let end = outcome(&mut replica.redlock(command));
        assert_line(
            &end,
            78,
            &["is a read-only replica; use the URL of its primary"],
        );
    }
    for command in [&["status", "a"][..], &["history", "a"]] {
        let end = outcome(&mut replica.redlock(command));
        end.assert_code(0)
            .assert_says("is a replica, and may be behind its primary");
        assert_eq!(end.stderr.lines().count(), 1, "{end:?}");
        outcome(&mut primary.redlock(command))
            .assert_code(0)
            .assert_silent();
    }
    // One that has lost its primary, and doesn't show what it has.
    replica.cli(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    drop(primary);
    wait_until("it has noticed", || {
        replica.cli(&["GET", "x"]).starts_with("MASTERDOWN")
    });
    let end = outcome(&mut replica.redlock(&["run", "a", "--", "true"]));
    assert_line(
        &end,
        78,
        &["is a replica without a connection to its primary"],
    );
}

#[test]
fn a_server_that_can_not_write_is_69_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let redis = Redis::with(&["--dir", gone.to_str().unwrap()]);
    // Without a limit it would be waited for.
    let refused = |parts: &[&str]| {
        let options = ["-q", "-w", "2s"];
        assert_line(&outcome(&mut run(&redis.url(), &options)), 69, parts);
    };
    let set = |name: &str, value: &str| {
        assert_eq!(redis.cli(&["CONFIG", "SET", name, value]), "OK");
    };
    set("maxmemory", "1");
    refused(&["no memory left (maxmemory)", "raise maxmemory"]);
    set("maxmemory", "0");
    // Redis 6.0 doesn't apply it to scripts.
    if !SERVER.is_before(6, 2) {
        set("min-replicas-to-write", "1");
        refused(&["too few of its replicas", "min-replicas-to-write"]);
        set("min-replicas-to-write", "0");
    }
    // Its directory is gone, so it can't save.
    set("save", "1000 1000");
    fs::remove_dir_all(&gone).unwrap();
    redis.cli(&["BGSAVE"]);
    wait_until("it could not save", || {
        redis
            .cli(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
    });
    refused(&["can't save its data to disk", "stop-writes-on-bgsave-error"]);
}

#[test]
fn a_run_that_finds_redis_full_begins_when_there_is_room_and_says_why_it_waits() {
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let run = spoken(&redis, "", "-w 1m");
    wait_until("it says why it waits", || {
        let said = said(&redis);
        said.contains("no memory left (maxmemory)") && said.contains("still trying")
    });
    redis.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    run.finish().assert_code(0);
    assert!(said(&redis).contains("answers again"), "{}", said(&redis));
}

#[test]
fn of_more_runs_at_once_than_redis_admits_clients_each_has_its_turn() {
    let redis = Redis::start();
    let (clients, runs) = ("50", 300);
    redis.cli(&["CONFIG", "SET", "maxclients", clients]);
    let options = ["-q", "-w", "5m"];
    let start = |number: usize| {
        // Some wait for each other, too.
        let name = format!("lock-{}", number % 100);
        let words = [&["run"], &options[..], &[&name, "--", "sleep", "0.1"]].concat();
        Running::start(&mut redis.redlock(&words))
    };
    let running: Vec<Running> = (0..runs).map(start).collect();
    for run in running {
        run.finish().assert_code(0);
    }
}

#[test]
fn a_run_whose_time_is_over_while_redis_admits_no_client_is_75_and_says_why() {
    let redis = Redis::start();
    redis.cli(&["CONFIG", "SET", "maxclients", "1"]);
    let _only = UnixStream::connect(redis.socket()).unwrap();
    for options in [&["-w", "2s"][..], &["-n", "REDLOCK_REDIS_TIMEOUT=2s"]] {
        let end = outcome(&mut run(&redis.url(), options));
        assert_last_line(end, 75, &["too many clients (maxclients)", "gave up"]);
    }
}

#[test]
fn a_server_that_admits_no_more_clients_is_named_so_whatever_it_was_asked_first() {
    // What was sent is read before the connection is closed, as where the server is slower than we are.
    let port = stranger(b"", b"-ERR max number of clients reached\r\n");
    for (scheme, command, status) in [
        ("redis", &["run", "-n", "a", "--", "echo", "ran"][..], 75),
        (
            "redis-cluster",
            &["run", "-n", "a", "--", "echo", "ran"],
            75,
        ),
        ("redis", &["stop", "a"], 69),
        ("redis", &["status"], 69),
        ("redis", &["history"], 69),
        ("redis", &["freeze", "--reason", "test", "a"], 69),
    ] {
        let url = format!("{scheme}://127.0.0.1:{port}");
        let options = ["-u", &url, "REDLOCK_REDIS_TIMEOUT=1s"];
        let mut command = redlock(&[&options[..], command].concat());
        let end = outcome(command.env("HOME", "/nonexistent"));
        assert_last_line(end, status, &["too many clients (maxclients)"]);
    }
}

/// A run whose messages are in the file "said" as they come.
fn spoken(redis: &Redis, settings: &str, options: &str) -> Running {
    let line = format!(r#"{settings} exec "$0" run {options} a -- echo ran 2>"$HOME/said""#);
    let words = ["sh", "-c", &line, REDLOCK];
    Running::start(&mut with_default_signals(directly(redis, &words)))
}

fn said(redis: &Redis) -> String {
    fs::read_to_string(redis.dir.path().join("said")).unwrap_or_default()
}

#[test]
fn while_redis_loads_its_data_a_run_keeps_trying_and_says_so_once() {
    // It answers after so many bytes, which were always 2 MB before Redis 7.0.
    let (size, delay) = if SERVER.is_before(7, 0) {
        ("4000", "2000")
    } else {
        ("10", "3000")
    };
    let mut redis = Redis::with(words!(
        "--enable-debug-command yes --key-load-delay",
        delay,
        "--loading-process-events-interval-bytes",
        "1024",
        "--rdbcompression",
        "no"
    ));
    redis.cli(&["DEBUG", "POPULATE", "10000", "key", size]);
    assert_eq!(redis.cli(&["SAVE"]), "OK");
    redis.kill();
    redis.start_again();
    wait_until("it loads", || {
        redis.cli(&["GET", "x"]).starts_with("LOADING")
    });

    let at_once = ["-q", "-n", "REDLOCK_REDIS_TIMEOUT=1s"];
    let end = outcome(&mut run(&redis.url(), &at_once));
    assert_line(&end, 69, &["is loading its data"]);
    let end = outcome(&mut run(
        &format!("{}?db=3", redis.url()),
        &["-q", "-w", "1s"],
    ));
    assert_line(&end, 69, &["is loading its data"]);
    assert_line(
        &outcome(&mut redis.redlock(&["status"])),
        69,
        &["is loading its data"],
    );

    let waiting = spoken(&redis, "", "--ttl 3s");
    wait_until("it says that it waits", || {
        said(&redis).contains("still trying")
    });
    // For longer than the TTL.
    std::thread::sleep(Duration::from_millis(3_500));
    redis.cli(&["CONFIG", "SET", "key-load-delay", "0"]);
    let end = waiting.finish();
    end.assert_code(0);
    assert_eq!(end.stdout, "ran\n");
    let said = said(&redis);
    assert!(
        said.starts_with("redlock: Redis is loading its data; still trying ("),
        "{said}"
    );
    assert!(
        said.ends_with("s)\nredlock: Redis answers again\n"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn while_a_script_keeps_redis_busy_a_run_keeps_trying_and_says_so() {
    let redis = Redis::with(&["--lua-time-limit", "50"]);
    let mut endless = Command::new("redis-cli");
    endless.arg("-s").arg(redis.socket());
    let mut endless = endless
        .args(["EVAL", "while true do end", "0"])
        .spawn()
        .unwrap();
    wait_until("it is busy", || {
        redis.cli(&["GET", "x"]).starts_with("BUSY")
    });
    // The database is asked for before the lock.
    for url in [redis.url(), format!("{}?db=3", redis.url())] {
        let end = outcome(&mut run(&url, &["-q", "-n", "REDLOCK_REDIS_TIMEOUT=2s"]));
        assert_line(
            &end,
            69,
            &["is busy with another client's script", "SCRIPT KILL"],
        );
    }
    let waiting = spoken(&redis, "", "");
    wait_until("it says that it waits", || {
        said(&redis).contains("still trying")
    });
    redis.cli(&["SCRIPT", "KILL"]);
    let end = waiting.finish();
    endless.wait().unwrap();
    end.assert_code(0);
    let said = said(&redis);
    assert!(
        said.starts_with("redlock: Redis is busy with a script; still trying ("),
        "{said}"
    );
}

#[test]
fn a_waiter_says_once_that_redis_does_not_answer_and_once_that_it_does_again() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let waiting = spoken(&redis, "REDLOCK_REDIS_TIMEOUT=2s", "");
    wait_until("it waits", || redis.queue("a").len() == 1);
    redis.stall();
    wait_until("it says so", || {
        said(&redis).contains("Redis doesn't answer; still trying (")
    });
    redis.resume();
    wait_until("it says that, too", || {
        said(&redis).contains("Redis answers again")
    });
    holder.end();
    waiting.finish().assert_code(0);
    for line in ["doesn't answer", "answers again"] {
        assert_eq!(said(&redis).matches(line).count(), 1, "{}", said(&redis));
    }
}

#[test]
fn on_a_terminal_the_time_without_redis_grows_in_one_line() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let words = words!("run REDLOCK_REDIS_TIMEOUT=2s a -- echo ran");
    let mut terminal = Terminal::start(with_default_signals(redis.redlock(words)));
    terminal.resize(24, 40);
    wait_until("it waits", || redis.queue("a").len() == 1);
    redis.stall();
    terminal.wait_until("it is shown a third time", |shown| {
        shown.matches("\rredlock: Redis doesn't answer (").count() >= 3
    });
    let before = terminal.shown.len();
    redis.resume();
    terminal.wait_until("the lock is shown again", |shown| {
        shown[before..].contains("waiting for \"a\"")
    });
    assert!(!terminal.shown.contains('\n'), "{:?}", terminal.shown);
    holder.end();
    terminal.wait_until("it ran", |shown| shown.contains("ran"));
    terminal.finish();
}

/// Makes a certificate for localhost that is signed by nobody else: "NAME.crt" and "NAME.key".
pub fn self_signed(dir: &Path, name: &str, days: &str, is_ca: &str) {
    let names = format!("subjectAltName=DNS:localhost\nbasicConstraints=CA:{is_ca}\n");
    fs::write(dir.join("names"), names).unwrap();
    let request = format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key");
    openssl(dir, &format!("{request} -out {name}.csr"));
    let sign = format!("x509 -req -in {name}.csr -signkey {name}.key -days {days}");
    openssl(dir, &format!("{sign} -extfile names -out {name}.crt"));
}

/// A Redis with this certificate, and its TLS port.
pub fn encrypted(dir: &Path, name: &str) -> (Redis, u16) {
    let port = free_port();
    let file = |ending: &str| {
        dir.join(format!("{name}.{ending}"))
            .to_str()
            .unwrap()
            .to_owned()
    };
    let (cert, key, tls_port) = (file("crt"), file("key"), port.to_string());
    let redis = Redis::with(&[
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
    ]);
    (redis, port)
}

#[test]
fn a_self_signed_certificate_is_trusted_by_itself_and_its_name_and_time_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    for (name, days, is_ca) in [
        ("authority", "2", "TRUE"),
        ("leaf", "2", "FALSE"),
        ("over", "-1", "TRUE"),
        ("stranger", "2", "TRUE"),
    ] {
        self_signed(dir, name, days, is_ca);
    }
    // A certificate without its CA.
    openssl(
        dir,
        "x509 -req -in leaf.csr -CA stranger.crt -CAkey stranger.key -CAcreateserial -days 2 -extfile names -out signed.crt",
    );
    fs::copy(dir.join("leaf.key"), dir.join("signed.key")).unwrap();
    let end = |host: &str, port: u16, ca: &str| {
        let ca = dir.join(ca);
        let options = [setting("REDLOCK_TLS_CA", ca.to_str().unwrap())];
        outcome(&mut run(&format!("rediss://{host}:{port}"), &options))
    };
    for name in ["authority", "leaf", "signed"] {
        let (_redis, port) = encrypted(dir, name);
        end("localhost", port, &format!("{name}.crt"))
            .assert_code(0)
            .assert_silent();
        assert_line(
            &end("127.0.0.1", port, &format!("{name}.crt")),
            78,
            &["its certificate is not for 127.0.0.1, but for localhost"],
        );
        assert_line(
            &end("localhost", port, "over.crt"),
            78,
            &["name the CA that signed it"],
        );
    }
    // One that is trusted for itself, and isn't a CA, vouches for no other.
    openssl(
        dir,
        "x509 -req -in stranger.csr -CA leaf.crt -CAkey leaf.key -CAcreateserial -days 2 -extfile names -out forged.crt",
    );
    fs::copy(dir.join("stranger.key"), dir.join("forged.key")).unwrap();
    {
        let (_redis, port) = encrypted(dir, "forged");
        assert_line(
            &end("localhost", port, "leaf.crt"),
            78,
            &["isn't signed by a trusted CA"],
        );
    }
    let (_redis, port) = encrypted(dir, "over");
    assert_line(
        &end("localhost", port, "over.crt"),
        78,
        &["its certificate has expired"],
    );
}

/// Has a CA sign a certificate for localhost, with these extensions; without any it is one of X.509 version 1.
fn signed(dir: &Path, name: &str, extensions: &str, options: &str) {
    let request = format!("req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {name}.key");
    openssl(dir, &format!("{request} -out {name}.csr{options}"));
    let mut sign = format!("x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial");
    if options.contains("-addext") {
        sign += " -copy_extensions copy";
    } else if !extensions.is_empty() {
        fs::write(dir.join("extensions"), extensions).unwrap();
        sign += " -extfile extensions";
    }
    openssl(dir, &format!("{sign} -days 2 -out {name}.crt"));
}

#[test]
fn a_certificate_that_no_client_takes_is_said_in_plain_words_with_the_options_that_make_a_good_one()
{
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    openssl(
        dir,
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out ca.crt",
    );
    let ca = dir.join("ca.crt");
    let end = |port: u16, words: &[&str]| {
        let url = format!("rediss://localhost:{port}");
        let options = ["-u", &url, setting("REDLOCK_TLS_CA", ca.to_str().unwrap())];
        let mut command = redlock(&[&options, words].concat());
        outcome(command.env("HOME", "/nonexistent"))
    };
    let anew = "issue it anew with subjectAltName=DNS:localhost";
    for (name, extensions, why, next) in [
        (
            "old",
            "",
            "is of X.509 version 1, which has no subjectAltName",
            anew,
        ),
        (
            "nameless",
            "basicConstraints=CA:FALSE\n",
            "has no subjectAltName",
            anew,
        ),
        (
            "other",
            "subjectAltName=DNS:elsewhere\n",
            "is not for localhost, but for elsewhere",
            "use one of its names in the URL, or issue it anew with subjectAltName=DNS:localhost",
        ),
        (
            "clients",
            "subjectAltName=DNS:localhost\nextendedKeyUsage=clientAuth\n",
            "isn't one for servers",
            "extendedKeyUsage=serverAuth",
        ),
        (
            "critical",
            "subjectAltName=DNS:localhost\n1.2.3.4=critical,ASN1:UTF8String:x\n",
            "can't be used (unsupported critical extension)",
            "issue it anew without that",
        ),
    ] {
        signed(dir, name, extensions, "");
        let (_redis, port) = encrypted(dir, name);
        let run = end(port, &["run", "a", "--", "echo", "ran"]);
        assert_line(&run, 78, &[why, next]);
        let doctor = end(port, &["-q", "doctor"]);
        doctor.assert_code(1);
        for text in ["Context", "Other(", "Error("] {
            let said = run.stderr.clone() + &doctor.stdout;
            assert!(!said.contains(text), "{said}");
        }
        assert!(
            doctor.stdout.contains(why) && doctor.stdout.contains(next),
            "{doctor:?}"
        );
    }
    // As it says.
    signed(dir, "good", "", " -addext subjectAltName=DNS:localhost");
    let (_redis, port) = encrypted(dir, "good");
    end(port, &["run", "a", "--", "true"]).assert_code(0);
}

#[test]
fn a_client_certificate_is_required_only_where_the_server_asks_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    for name in ["leaf", "stranger"] {
        self_signed(dir, name, "2", "FALSE");
    }
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (file("leaf.crt"), file("stranger.crt"), file("stranger.key"));
    let (redis, port) = encrypted(dir, "leaf");
    let set = |name: &str, value: &str| {
        assert_eq!(redis.cli(&["CONFIG", "SET", name, value]), "OK");
    };
    let url = format!("rediss://localhost:{port}");
    let required =
        "the server requires a client certificate; set REDLOCK_TLS_CERT and REDLOCK_TLS_KEY";
    let in_common = "and redlock have no TLS version, cipher or kind of server key in common";
    for (protocols, ciphers, asks, ours, says) in [
        ("TLSv1.2 TLSv1.3", "DEFAULT", "yes", false, required),
        ("TLSv1.2", "DEFAULT", "yes", false, required),
        ("TLSv1.2", "AES256-SHA", "no", false, in_common),
        ("TLSv1.2", "AES256-SHA", "yes", false, in_common),
        ("TLSv1.2 TLSv1.3", "DEFAULT", "yes", true, "doesn't"),
    ] {
        set("tls-protocols", protocols);
        set("tls-ciphers", ciphers);
        set("tls-auth-clients", asks);
        let mut options = vec![setting("REDLOCK_TLS_CA", &ca)];
        if ours {
            options.extend([
                setting("REDLOCK_TLS_CERT", &cert),
                setting("REDLOCK_TLS_KEY", &key),
            ]);
        }
        assert_line(&outcome(&mut run(&url, &options)), 78, &[says]);
    }
}

#[test]
fn tls_on_a_plain_port_and_no_tls_on_one_of_tls_are_78_with_the_url_to_use() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    self_signed(dir, "leaf", "2", "FALSE");
    let (redis, port) = encrypted(dir, "leaf");
    for (credentials, database) in [("", ""), (":hunter2@", "/3")] {
        let end = outcome(&mut run(
            &format!("redis://{credentials}localhost:{port}{database}"),
            &[],
        ));
        let right = format!("uses TLS; use rediss://localhost:{port}{database}");
        assert_line(&end, 78, &[&right]);
        let plain = redis.port;
        let url = format!("rediss://{credentials}localhost:{plain}{database}");
        let ca = dir.join("leaf.crt");
        let end = outcome(&mut run(
            &url,
            &[setting("REDLOCK_TLS_CA", ca.to_str().unwrap())],
        ));
        let right =
            format!("doesn't use TLS on this port; use redis://localhost:{plain}{database}");
        assert_line(&end, 78, &[&right]);
    }
}

/// A server that greets, answers whatever is asked, and closes the connection.
fn stranger(greeting: &'static [u8], answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.write_all(greeting);
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(answer);
        }
    });
    port
}

#[test]
fn servers_of_other_protocols_are_78_also_where_tls_is_expected() {
    let http = stranger(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let ssh = stranger(b"SSH-2.0-OpenSSH_9.6\r\n", b"");
    let directory = tempfile::tempdir().unwrap();
    self_signed(directory.path(), "leaf", "2", "FALSE");
    let ca = directory.path().join("leaf.crt");
    for scheme in ["redis", "rediss"] {
        for (port, said) in [
            (http, "\"HTTP/1.1 400 Bad Request\""),
            (ssh, "\"SSH-2.0-OpenSSH_9.6\""),
        ] {
            let url = format!("{scheme}://127.0.0.1:{port}");
            let end = outcome(&mut run(
                &url,
                &[setting("REDLOCK_TLS_CA", ca.to_str().unwrap())],
            ));
            assert_line(&end, 78, &["does not speak the Redis protocol", said]);
        }
    }
}

#[test]
fn a_mistake_in_a_url_is_78_and_says_which_part_is_wrong_and_where_it_is_set() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    for (url, part) in [
        ("redis://u:hunter2@h/x", "the database must be a number"),
        ("redis://u:hunter2", "the port must be a number"),
        (
            "redis://u:hun@ter2@h",
            "an @ in the user name or password must be written %40",
        ),
        ("redis://h1,h2", "several hosts"),
    ] {
        assert_line(
            &outcome(&mut run(url, &[])),
            78,
            &["bad Redis URL in --url: ", part],
        );
        let mut status = redlock(&["status"]);
        let end = outcome(status.env("REDLOCK_URL", url));
        assert_line(&end, 78, &["bad Redis URL in $REDLOCK_URL: ", part]);
        fs::write(&file, format!("# ours\n\nREDLOCK_URL={url}\n")).unwrap();
        let mut status = redlock(&["status"]);
        let end = outcome(status.env("XDG_CONFIG_HOME", directory.path()));
        let place = format!("bad Redis URL in {}:3: ", file.display());
        assert_line(&end, 78, &[&place, part]);
    }
}

#[test]
fn where_nothing_listens_it_is_said_where_the_address_is_from() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let refused = format!("can't reach Redis at {}: connection refused", &url[8..]);
    let end = outcome(&mut run(&url, &[]));
    assert_line(&end, 69, &[&refused]);
    assert!(
        end.stderr
            .trim_end()
            .ends_with("refused; `--wait 30s` would wait for it (`redlock doctor` shows more)"),
        "{end:?}"
    );
    let end = outcome(redlock(&["status"]).env("REDLOCK_URL", &url));
    assert_line(&end, 69, &[&refused, "; the URL is from $REDLOCK_URL"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    fs::write(&file, format!("REDLOCK_URL={url}\n")).unwrap();
    let end = outcome(redlock(&["status"]).env("XDG_CONFIG_HOME", directory.path()));
    let from = format!("; the URL is from {}:1", file.display());
    assert_line(&end, 69, &[&refused, &from]);
    // In a network without any server, and without settings.
    let alone = ["unshare", "--net", REDLOCK];
    if is_permitted(&["unshare", "--net", "true"]) {
        let mut command = Command::new(alone[0]);
        command
            .args(&alone[1..])
            .arg("status")
            .env_clear()
            .env("HOME", "/nonexistent");
        let end = outcome(&mut command);
        // The loopback interface is down.
        end.assert_code(69).assert_says(
            "; no --url or REDLOCK_URL was given, so the default 127.0.0.1:6379 was tried",
        );
    }
}

#[test]
fn where_nothing_listens_and_no_url_was_given_the_line_that_starts_a_server_here_is_said() {
    let unshare = ["unshare", "--net", "sh", "-c"];
    if !is_permitted(&[&unshare[..], &["ip link set lo up"]].concat()) {
        return;
    }
    let programs = tempfile::tempdir().unwrap();
    let status = |options: &str| {
        let line = format!(r#"ip link set lo up; PATH="$1" exec "$0" {options} status"#);
        let words = [
            &unshare[1..],
            &[&line, REDLOCK, programs.path().to_str().unwrap()],
        ]
        .concat();
        let mut command = Command::new(unshare[0]);
        command
            .args(words)
            .env("HOME", "/nonexistent")
            .env_remove("REDLOCK_URL");
        outcome(&mut command)
    };
    let default = "the default 127.0.0.1:6379 was tried";
    let file = "; if other hosts use a Redis, put REDLOCK_URL=redis://HOST into /etc/redlock.env; `-u local:` uses";
    assert_line(&status(""), 69, &["connection refused", default, file]);
    for (program, line) in [
        (
            "podman",
            "`podman run -d -p 127.0.0.1:6379:6379 docker.io/redis`",
        ),
        ("apt-get", "`sudo apt-get install -y redis-server`"),
        ("redis-server", "`redis-server --daemonize yes`"),
    ] {
        script(programs.path(), program, "");
        let start = format!("; {line} starts Redis here");
        assert_line(&status(""), 69, &[default, file, &start]);
    }
    let given = status("-u redis://127.0.0.1:6379");
    assert_line(&given, 69, &["connection refused"]);
    assert!(!given.stderr.contains("/etc/redlock.env"), "{given:?}");
}

#[test]
fn without_a_url_redlock_says_that_the_locks_are_this_hosts_only() {
    let dir = tempfile::tempdir().unwrap();
    let unshare = ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh"];
    if !is_permitted(&[&unshare[..], &["-c", "ip link set lo up"]].concat()) {
        return;
    }
    let script = r#"
        ip link set lo up; cd "$0"; exec 9>&-
        "$2" --port 6379 --bind 127.0.0.1 --save '' --logfile log >/dev/null &
        until "$1" status >empty 2>/dev/null; do sleep 0.05; done
        mkfifo gate
        "$1" run a -- sh -c 'echo $$ >held; read line <gate' 2>quiet & holder=$!
        until [ -s held ]; do sleep 0.05; done
        "$1" status >status
        "$1" status --names-only >names
        "$1" run -n a -- true 2>no-wait
        "$1" run -w 1ms a -- true 2>gave-up
        "$1" doctor >doctor; echo $? >doctor-exit
        "$1" run a -- true 2>waiting & waiter=$!
        until [ -s waiting ]; do sleep 0.05; done
        echo >gate; wait $holder $waiter
        "$1" run -v b -- true 2>verbose
        "$1" -u redis://127.0.0.1 run -v b -- true 2>given
        "$1" -u redis://127.0.0.1 status >given-status"#;
    let mut command = Command::new(unshare[0]);
    command
        .args(&unshare[1..])
        .args(["-c", script])
        .args([dir.path(), Path::new(REDLOCK), &SERVER.path])
        .env("HOME", "/nonexistent")
        .env_remove("REDLOCK_URL");
    outcome(&mut command).assert_code(0);
    let text = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
    let why = "on this host only: no REDLOCK_URL is set";
    assert_eq!(text("empty"), format!("{why}\nno lock is held\n"));
    assert!(
        text("status").starts_with(&format!("{why}\nNAME ")),
        "{}",
        text("status")
    );
    assert_eq!(text("names"), "a\n");
    assert_eq!(text("quiet"), "");
    let waiting = format!("redlock: {why}; waiting for \"a\", held by ");
    assert!(text("waiting").starts_with(&waiting), "{}", text("waiting"));
    for file in ["no-wait", "gave-up"] {
        let refusal = text(file);
        assert!(
            refusal.ends_with(&format!("; {why}\n")),
            "{file}: {refusal}"
        );
    }
    let verbose = text("verbose");
    assert!(
        verbose
            .lines()
            .any(|line| line == format!("redlock: {why}")),
        "{verbose}"
    );
    let doctor = text("doctor");
    assert!(
        doctor.contains(
            "no URL set: this host's own Redis; other hosts with another server are not excluded"
        ),
        "{doctor}"
    );
    assert_eq!(text("doctor-exit"), "0\n", "{doctor}");
    assert!(!text("given").contains(why));
    assert_eq!(text("given-status"), "no lock is held\n");
}

#[test]
fn a_silent_server_is_given_up_after_the_time_to_connect_and_no_later() {
    let redis = Redis::start();
    redis.stall();
    let unresponsive = UnresponsiveServer::new();
    let urls = [redis.url(), redis.tcp_url(), unresponsive.url()];
    let began = Instant::now();
    // Side by side, as each waits all the time.
    let runs = urls.iter().flat_map(|url| {
        let one = ["REDLOCK_REDIS_TIMEOUT=5s"];
        let slots = ["REDLOCK_REDIS_TIMEOUT=5s", "--slots", "2"];
        [&one[..], &slots].map(|options| Running::start(&mut run(url, options)))
    });
    for run in runs.collect::<Vec<_>>() {
        assert_line(&run.finish(), 69, &["no answer in time"]);
    }
    // A second try would take as long again.
    let took = began.elapsed();
    assert!(took < Duration::from_millis(9_900), "{took:?}");
    redis.resume();
}

/// A command in a namespace of mounts in which this file has this text.
fn with_file(path: &str, text: &str, dir: &Path, words: &[&str]) -> Option<Command> {
    if !is_permitted(&["unshare", "--mount", "true"]) {
        return None;
    }
    let other = dir.join("other");
    fs::write(&other, text).unwrap();
    let script = format!("mount --bind {} {path} && exec \"$@\"", other.display());
    let mut command = Command::new("unshare");
    command.args(words!("--mount --propagation private sh -c", &script, "sh"));
    command.args(words).env("HOME", "/nonexistent");
    Some(command)
}

#[test]
fn a_host_that_does_not_exist_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let words = [REDLOCK, "-u", "redis://:hunter2@redsi.internal/3", "status"];
    let files = "hosts: files\n";
    let Some(mut command) = with_file("/etc/nsswitch.conf", files, directory.path(), &words) else {
        return;
    };
    let end = outcome(&mut command);
    assert_line(&end, 69, &["no such host \"redsi.internal\""]);
}

#[test]
fn a_name_server_that_is_silent_is_not_a_host_that_does_not_exist() {
    let directory = tempfile::tempdir().unwrap();
    let words = [REDLOCK, "-u", "redis://redis.internal", "status"];
    // Nothing listens at this port of the machine itself.
    let servers = "nameserver 127.0.0.77\noptions timeout:1 attempts:1\n";
    let Some(mut command) = with_file("/etc/resolv.conf", servers, directory.path(), &words) else {
        return;
    };
    let end = outcome(&mut command);
    assert_line(&end, 69, &["\"redis.internal\" can't be looked up now"]);
}

/// Response codes of a name server, and none at all.
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
const NOTIMP: u8 = 4;
const REFUSED: u8 = 5;
const SILENT: u8 = u8::MAX;

/// A name server at a loopback address of its own, for which each host is 127.0.0.1.
struct NameServer {
    /// Response codes to questions about IPv4 and IPv6.
    codes: Arc<[AtomicU8; 2]>,
    /// The line for `/etc/resolv.conf`. No lookup of both families ends in time if the answer about one is missing.
    settings: String,
}

impl NameServer {
    /// `None` if this user may not open the port.
    fn start(address: &str) -> Option<Self> {
        let socket = UdpSocket::bind((address, 53)).ok()?;
        let codes: Arc<[AtomicU8; 2]> = Arc::default();
        let of_server = Arc::clone(&codes);
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                let question = &query[12..length];
                let end = question.iter().position(|byte| *byte == 0).unwrap();
                let is_ipv6 = question[end + 2] == 28;
                let code = of_server[usize::from(is_ipv6)].load(Ordering::Relaxed);
                if code == SILENT {
                    continue;
                }
                let answers = u8::from(code == 0 && !is_ipv6);
                let mut reply = query[..2].to_vec();
                reply.extend([0x81, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0]);
                reply.extend(&question[..end + 5]);
                if answers > 0 {
                    reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 127, 0, 0, 1]);
                }
                let _ = socket.send_to(&reply, client);
            }
        });
        let settings = format!("nameserver {address}\noptions timeout:30 attempts:1\n");
        Some(Self { codes, settings })
    }

    fn answer_with(&self, ipv4: u8, ipv6: u8) {
        self.codes[0].store(ipv4, Ordering::Relaxed);
        self.codes[1].store(ipv6, Ordering::Relaxed);
    }
}

#[test]
fn a_host_is_found_whatever_its_name_server_answers_about_ipv6() {
    let Some(names) = NameServer::start("127.0.0.78") else {
        return;
    };
    let redis = Redis::start();
    let url = format!("redis://redis.internal:{}", redis.port);
    for binary in binaries() {
        for code in [SILENT, NXDOMAIN, SERVFAIL, REFUSED, NOTIMP, 0] {
            names.answer_with(0, code);
            let words = words!(
                "env REDLOCK_REDIS_TIMEOUT=8s {} -u {} run -n a -- true",
                &binary,
                &url
            );
            let dir = redis.dir.path();
            let Some(mut command) = with_file("/etc/resolv.conf", &names.settings, dir, words)
            else {
                return;
            };
            let end = outcome(&mut command);
            assert_eq!((code, end.code()), (code, Some(0)), "{binary}: {end:?}");
        }
    }
}

#[test]
fn a_host_in_etc_hosts_is_found_in_upper_or_lower_case() {
    let redis = Redis::start();
    for binary in binaries() {
        for host in ["redis-main", "REDIS-MAIN"] {
            let url = format!("redis://{host}:{}", redis.port);
            let words = words!("{} -u {} status", &binary, &url);
            let hosts = "127.0.0.1 other Redis-Main # ours\n";
            let Some(mut command) = with_file("/etc/hosts", hosts, redis.dir.path(), words) else {
                return;
            };
            outcome(&mut command).assert_code(0).assert_silent();
        }
    }
}

#[test]
fn a_job_whose_name_server_fails_goes_on_at_the_address_that_last_worked() {
    let Some(names) = NameServer::start("127.0.0.79") else {
        return;
    };
    let redis = Redis::start();
    let url = format!("redis://redis.internal:{}", redis.port);
    let gate = redis.dir.path().join("gate");
    let script = format!(
        "echo ready; until [ -e {} ]; do sleep 0.02; done",
        gate.display()
    );
    let words = words!("{} -u {} run --ttl 60s a -c {}", REDLOCK, &url, &script);
    let dir = redis.dir.path();
    let Some(mut command) = with_file("/etc/resolv.conf", &names.settings, dir, words) else {
        return;
    };
    let mut run = Running::start(&mut command);
    run.expect_line("ready");
    wait_until("it tracks its lock", || redis.trackers() > 0);
    for code in [SILENT, SERVFAIL, NXDOMAIN] {
        names.answer_with(code, code);
        redis.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        wait_until("it has renewed its lease again", || redis.trackers() > 0);
    }
    fs::write(gate, "").unwrap();
    run.finish().assert_code(0).assert_silent();
}

/// A command that waits, once it has said that it keeps trying to reach its server.
fn trying(command: &mut Command) -> Running {
    let mut run = Running::start(command);
    while !run.line().contains("still trying") {}
    run
}

#[test]
fn a_wait_that_was_set_covers_a_server_that_is_not_up_yet() {
    for words in ["run -w 60s a -- true", "acquire -w 60s a"] {
        let port = free_port();
        let line = format!("exec {REDLOCK} -u redis://127.0.0.1:{port} {words} 2>&1");
        let mut command = Command::new("sh");
        let run = trying(command.args(["-c", &line]).env("HOME", "/nonexistent"));
        let _redis = Redis::at(|| port, &[], &[]);
        run.finish().assert_code(0);
    }
}

#[test]
fn a_wait_that_was_set_covers_a_name_that_has_no_address_yet() {
    let redis = Redis::start();
    let url = format!("redis://redis.invalid:{}", redis.port);
    let line = format!("exec {REDLOCK} -u {url} run -w 60s a -- true 2>&1");
    let dir = redis.dir.path();
    let Some(mut command) = with_file("/etc/hosts", "", dir, &["sh", "-c", &line]) else {
        return;
    };
    let run = trying(&mut command);
    fs::write(dir.join("other"), "127.0.0.1 redis.invalid\n").unwrap();
    run.finish().assert_code(0);
}

#[test]
fn a_wait_that_was_set_covers_a_primary_that_is_still_a_replica() {
    let nobody = free_port().to_string();
    let redis = Redis::with(&["--replicaof", "127.0.0.1", &nobody]);
    let line = format!("exec {REDLOCK} run -w 60s a -- true 2>&1");
    let run = trying(&mut directly(&redis, &["sh", "-c", &line]));
    redis.cli(&["REPLICAOF", "NO", "ONE"]);
    run.finish().assert_code(0);
}

#[test]
fn of_a_host_with_several_addresses_each_is_tried_in_time() {
    let silent = UnresponsiveServer::new();
    let port = silent.url().rsplit(':').next().unwrap().to_owned();
    // At the same port of another address of this machine.
    let redis = Redis::with(&["--bind", "127.0.0.2", "--port", &port]);
    let hosts = "127.0.0.1 several\n127.0.0.2 several\n";
    let url = format!("redis://several:{port}");
    let words = [REDLOCK, "-u", &url, "status"];
    let Some(mut command) = with_file("/etc/hosts", hosts, redis.dir.path(), &words) else {
        return;
    };
    let end = outcome(&mut command);
    end.assert_code(0).assert_silent();
    assert_eq!(end.stdout, format!("no lock is held at several:{port}\n"));
}

#[test]
fn an_error_of_the_system_is_printed_without_its_number() {
    let redis = Redis::start();
    let dir = redis.dir.path();
    let here = dir.to_str().unwrap();
    let missing = format!("{here}/missing");
    let plain = format!("{here}/plain");
    fs::write(&plain, "not to be executed").unwrap();
    let orphan = script(dir, "orphan", "#!/no/such/interpreter\n");
    let orphan = orphan.to_str().unwrap();
    let dos = script(dir, "dos", "#!/bin/sh\r\necho hello\r\n");
    let dos = dos.to_str().unwrap();
    let encrypted = format!("rediss://127.0.0.1:{}", redis.port);
    let no_file = |what: &str| format!("can't {what} {missing}: no such file");
    for (arguments, status, says) in [
        (
            &[
                setting("REDLOCK_PASSWORD_FILE", &missing),
                "run",
                "a",
                "--",
                "true",
            ][..],
            78,
            no_file("read the password file"),
        ),
        (
            &[
                setting("REDLOCK_PASSWORD_FILE", here),
                "run",
                "a",
                "--",
                "true",
            ],
            78,
            "it is a directory".into(),
        ),
        (
            &[
                "-u",
                &encrypted,
                setting("REDLOCK_TLS_CA", &missing),
                "status",
            ],
            78,
            no_file("use"),
        ),
        (
            &["extend", "--token-file", &missing, "a"],
            64,
            no_file("read the token file"),
        ),
        (&["run", "a", "--", &missing], 127, no_file("run")),
        (
            &["run", "a", "--", "no-such-command"],
            127,
            "can't run no-such-command: not found in $PATH".into(),
        ),
        (
            &["run", "a", "--", "LANG=C", "sort"],
            127,
            "can't run LANG=C: it sets a variable; put env before it".into(),
        ),
        (
            &["run", "a", "--", &plain],
            126,
            format!("it isn't executable; run: chmod +x {plain}"),
        ),
        (
            &["run", "a", "--", orphan],
            127,
            format!("can't run {orphan}: its interpreter /no/such/interpreter does not exist"),
        ),
        (
            &["run", "a", "--", dos],
            127,
            format!(
                r"can't run {dos}: its interpreter /bin/sh\r does not exist; remove the DOS line endings: sed -i 's/\r$//' {dos}"
            ),
        ),
        (&["run", "a", "--", here], 126, "it is a directory".into()),
    ] {
        let end = outcome(&mut redis.redlock(arguments));
        assert_line(&end, status, &[&says]);
    }
}

#[test]
fn an_authentication_error_says_what_to_do() {
    let redis = Redis::start();
    let place = format!("127.0.0.1:{}", redis.port);
    let file = redis.dir.path().join("password");
    fs::write(&file, "hunter2\n").unwrap();
    set_mode(&file, 0o600);
    let file = [setting("REDLOCK_PASSWORD_FILE", file.to_str().unwrap())];
    let end = outcome(&mut run(&format!("redis://:hunter2@{place}"), &[]));
    assert_line(
        &end,
        77,
        &[
            "has no password set, but one was given in the URL",
            "leave it out",
        ],
    );
    redis.cli(words!("ACL SETUSER open on nopass ~* &* +@all"));
    outcome(&mut run(&format!("redis://open@{place}"), &[]))
        .assert_code(0)
        .assert_silent();
    redis.cli(words!("ACL SETUSER jobs on >secret ~* &* +@all"));
    redis.cli(&["CONFIG", "SET", "requirepass", "secret"]);
    for (user, options, says) in [
        (
            "",
            &[][..],
            "requires a password; use REDLOCK_PASSWORD_FILE or the URL",
        ),
        (
            ":hunter2@",
            &[],
            "refused the default user: the password in the URL",
        ),
        (
            "",
            &file,
            "refused the default user: the password in the file /",
        ),
        (
            "jobs:hunter2@",
            &[],
            "refused user \"jobs\": the password in the URL (--url) is wrong, or there is no such user",
        ),
        ("nobody@", &file, "is wrong, or there is no such user"),
        (
            "jobs@",
            &[],
            "refused the user in the URL, which has no password; use REDLOCK_PASSWORD_FILE, or :PASSWORD@HOST if the user name was meant as the password",
        ),
    ] {
        let end = outcome(&mut run(&format!("redis://{user}{place}"), options));
        assert_line(&end, 77, &[says]);
    }
}

#[test]
fn a_password_in_the_place_of_the_user_is_never_shown() {
    let redis = Redis::start();
    let url = format!("redis://hunter2@127.0.0.1:{}", redis.port);
    let socket = format!("{}?user=hunter2", redis.url());
    // There is no such user; one without a password who lacks a permission; and it is the password.
    for (setting, says) in [
        (&["PING"][..], "PASSWORD"),
        (
            &[
                "ACL", "SETUSER", "hunter2", "on", "nopass", "~*", "&*", "+@all", "-set",
            ],
            "user \"***\" isn't permitted to run SET; add +set",
        ),
        (&["CONFIG", "SET", "requirepass", "hunter2"], "PASSWORD"),
    ] {
        redis.cli(&["ACL", "DELUSER", "hunter2"]);
        redis.cli(setting);
        for url in [&url, &socket] {
            let end = outcome(&mut run(url, &["-v"]));
            end.assert_code(77).assert_says(says);
            assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
            for words in [
                &["status", "--json"][..],
                &["status", "a"],
                &["doctor"],
                &["doctor", "--json"],
            ] {
                let end = outcome(&mut redlock(&[&["-v", "-u", url], words].concat()));
                assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
            }
        }
    }
}

#[test]
fn a_password_that_a_server_repeats_is_not_shown() {
    let redis = Redis::with(&["--rename-command", "AUTH", ""]);
    for login in ["jobs:hunter2", ":hunter2", "hunter2"] {
        let end = outcome(&mut run(
            &format!("redis://{login}@127.0.0.1:{}", redis.port),
            &[],
        ));
        end.assert_says("doesn't have the command AUTH");
        assert!(!end.stderr.contains("hunter2"), "{end:?}");
    }
}

#[test]
fn a_missing_permission_is_named_with_the_rule_that_grants_it() {
    let redis = Redis::start();
    let place = format!("jobs:secret@127.0.0.1:{}", redis.port);
    let refused = |rules: &[&str], path: &str, says: &[&str]| {
        let setuser = ["ACL", "SETUSER", "jobs", "reset", "on", ">secret"];
        assert_eq!(redis.cli(&[&setuser, rules].concat()), "OK");
        let end = outcome(&mut run(&format!("redis://{place}{path}"), &[]));
        assert_line(&end, 77, &["user \"jobs\" isn't permitted to "]);
        assert_line(&end, 77, says);
    };
    refused(
        &["~*", "&*", "+ping"],
        "",
        &["isn't permitted to run EVAL", "; add +eval"],
    );
    refused(
        &["~*", "&*", "+eval", "+evalsha"],
        "/2",
        &["isn't permitted to run SELECT; add +select"],
    );
    let keys = [
        "isn't permitted to use the keys of redlock (prefix \"redlock:\"); add ~redlock:* ~{redlock:* to",
    ];
    refused(&["~else:*", "&*", "+@all"], "", &keys);
    refused(&["~redlock:*", "&*", "+@all"], "", &keys);
    let inside = ["isn't permitted to run TIME; add +time to"];
    refused(&["~*", "&*", "+eval", "+evalsha", "+get"], "", &inside);
}

#[test]
fn a_key_that_is_no_lock_is_named() {
    let redis = Redis::start();
    redis.cli(&["HSET", "redlock:h", "field", "value"]);
    redis.cli(&["SET", "{redlock:s}:state", "text"]);
    let end = |arguments: &[&str]| outcome(&mut redis.redlock(arguments));
    for command in [
        &["run", "--slots", "2", "h", "--", "true"][..],
        &["freeze", "h", "--reason", "x"],
    ] {
        assert_line(
            &end(command),
            78,
            &["key \"redlock:h\" isn't a string, so it is not a lock"],
        );
    }
    for command in [
        &["run", "s", "--", "true"][..],
        &["status", "s"],
        &["status", "a", "s"],
    ] {
        assert_line(
            &end(command),
            78,
            &["a key that accompanies \"redlock:s\" "],
        );
    }
}

#[test]
fn a_socket_that_is_missing_or_none_or_stale_is_said_to_be_so() {
    let mut redis = Redis::start();
    let url = |path: &Path| format!("unix://{}", path.display());
    let dir = redis.dir.path().to_owned();
    let end = |path: &Path| outcome(&mut run(&url(path), &[]));
    assert_line(&end(&dir.join("missing")), 69, &["there is no such socket"]);
    assert_line(
        &end(&dir.join("no/such/dir")),
        69,
        &["there is no such socket"],
    );
    assert_line(&end(&dir.join("redis.log")), 78, &["that is not a socket"]);
    assert_line(&end(&dir.join("redis.log/x")), 78, &["is not a directory"]);
    assert_line(&end(&dir.join("x".repeat(120))), 78, &["at most 107 bytes"]);
    redis.kill();
    assert_line(
        &end(&redis.socket()),
        69,
        &["no server listens at this socket any more"],
    );
}

#[test]
fn a_socket_of_another_user_is_77_and_says_what_is_needed() {
    let Some(user) = OtherUser::new() else {
        return;
    };
    let redis = Redis::start();
    fs::set_permissions(redis.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(redis.socket(), fs::Permissions::from_mode(0o700)).unwrap();
    let end = outcome(&mut user.command(words!("./redlock -u", &redis.url(), "status")));
    assert_line(
        &end,
        77,
        &["permission denied", "write access to the socket"],
    );
}

#[test]
fn a_command_that_the_server_does_not_have_is_78_and_named() {
    for name in ["EVALSHA", "EVAL", "TIME", "PTTL", "ZADD", "AUTH"] {
        let redis = Redis::with(&["--rename-command", name, ""]);
        // Some commands are needed only if the lock is held.
        redis.cli(&["SET", "redlock:a", "another client", "PX", "100000"]);
        let password = if name == "AUTH" { ":hunter2@" } else { "" };
        let url = format!("redis://{password}127.0.0.1:{}", redis.port);
        let end = outcome(&mut run(&url, &["-w", "5s"]));
        let says = format!("doesn't have the command {name}, which redlock needs");
        assert_line(&end, 78, &[&says]);
    }
}

#[test]
fn a_key_that_tls_cannot_use_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let curve = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -days 2 -subj /CN=x \
        -addext subjectAltName=DNS:localhost -keyout curve.key -out curve.crt";
    openssl(dir, curve);
    let (_redis, port) = encrypted(dir, "curve");
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let url = format!("rediss://localhost:{port}");
    let end = outcome(&mut run(
        &url,
        &[setting("REDLOCK_TLS_CA", &file("curve.crt"))],
    ));
    assert_line(&end, 78, &["kind of server key", "P-256, P-384 or Ed25519"]);

    self_signed(dir, "leaf", "2", "FALSE");
    let (_redis, port) = encrypted(dir, "leaf");
    let url = format!("rediss://localhost:{port}");
    for options in ["", " -traditional"] {
        openssl(
            dir,
            &format!("rsa -in leaf.key -aes128 -passout pass:x -out secret.key{options}"),
        );
        let (ca, key) = (file("leaf.crt"), file("secret.key"));
        let options = words!(
            "REDLOCK_TLS_CA={} REDLOCK_TLS_CERT={} REDLOCK_TLS_KEY={}",
            &ca,
            &ca,
            &key
        );
        let end = outcome(&mut run(&url, options));
        assert_line(
            &end,
            78,
            &["secret.key", "has a passphrase", "openssl pkey -in "],
        );
    }
}

#[test]
fn the_url_that_is_proposed_keeps_its_kind() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    self_signed(dir, "leaf", "2", "FALSE");
    let (redis, tls) = encrypted(dir, "leaf");
    let (ca, plain) = (dir.join("leaf.crt"), redis.port);
    for (url, says) in [
        (
            format!("rediss-sentinel://localhost:{plain}/m"),
            format!("use redis-sentinel://localhost:{plain}/NAME"),
        ),
        (
            format!("redis-sentinel://localhost:{tls}/m"),
            format!("use rediss-sentinel://localhost:{tls}/NAME"),
        ),
        (
            format!("rediss-cluster://localhost:{plain}"),
            format!("use redis-cluster://localhost:{plain}"),
        ),
        (
            format!("redis-cluster://localhost:{tls}"),
            format!("use rediss-cluster://localhost:{tls}"),
        ),
        (
            format!("\"redis://localhost:{plain}\""),
            "remove the quotes".into(),
        ),
    ] {
        let end = outcome(&mut run(
            &url,
            &[setting("REDLOCK_TLS_CA", ca.to_str().unwrap())],
        ));
        assert_line(&end, 78, &[&says]);
    }
}

//! Redis in trouble, or not at its URL: one clear line with a fix, and the right status. Each state is produced on a real
//! server. Most are lines of tables.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::promises::config::{openssl, set_mode};
use crate::promises::doctor::{Examined, assert_no_key, good, set};
use crate::promises::supervision::binaries;
use crate::support::prelude::*;
use crate::support::pty::Terminal;

impl Redis {
    /// Plays a table against a server. A line of the table is one of these:
    ///
    /// - `CONFIG SET maxmemory 1`: a command for the server, in capitals, which sets a state.
    /// - `69 redlock status → PART … PART`: a line for a shell that knows the server's URL, with its status and parts of its
    ///   standard error. Standard error has one line, or none without parts. `69 URL → PART` is a run with this URL. With `→ …
    ///   PART` it may report before that it still tries; `without PART` must not be in the line.
    /// - `role fail: PART → PART`: a finding of `redlock doctor`, as in [`Examined::says`], after its options:
    ///   `[REDLOCK_SYNC=1] replicas ok: in sync`. If the finding is ok, no check fails.
    #[track_caller]
    pub fn play(&self, table: &str) {
        let lines = table.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty()) {
            if line.starts_with(|first: char| first.is_ascii_digit()) {
                play_line(line, |command| outcome(&mut sh(self, command)));
            } else if line.starts_with(|first: char| first.is_ascii_uppercase()) {
                let answer = self.cli(&line.split(' ').collect::<Vec<_>>());
                assert!(["OK", "0", "1"].contains(&&*answer), "{line}: {answer}");
            } else {
                let options = line.strip_prefix('[').and_then(|it| it.split_once("] "));
                let (options, finding) = options.unwrap_or(("", line));
                let words = format!("doctor {options}");
                let words: Vec<&str> = words.split_whitespace().collect();
                let examined = Examined::new(&mut self.redlock(&words));
                examined.says(finding);
                if finding.contains(" ok: ") {
                    examined.only("fail", "");
                }
            }
        }
    }
}

/// Runs the shell line of a table's line, and checks its end.
#[track_caller]
pub fn play_line(line: &str, run: impl Fn(&str) -> Outcome) {
    let (status, row) = line.split_once(' ').unwrap();
    let (command, parts) = row.split_once(" → ").unwrap_or((row, ""));
    let (settings, url) = command.rsplit_once(' ').unwrap_or(("", command));
    let by_url = format!("{settings} redlock -u {url} run a -- echo ran");
    let is_url = url.contains("://");
    let end = run(if is_url { &by_url } else { command });
    assert_end(line, &end, status, parts);
}

/// Checks the end of a table's line. The output has no text of the system, a script or a library.
#[track_caller]
fn assert_end(line: &str, end: &Outcome, status: &str, parts: &str) {
    assert_eq!(end.code(), status.parse().ok(), "{line}: {end:?}");
    if parts.is_empty() {
        assert_eq!(end.stderr, "", "{line}: {end:?}");
        return;
    }
    let is_silent = status == "0" || end.stdout.is_empty();
    assert!(is_silent, "{line}: {end:?}");
    let tries = parts.starts_with("… ");
    let mut lines = end.stderr.lines();
    let last = lines.next_back().unwrap_or_default();
    let is_last = lines.all(|line| tries && line.contains("; still trying ("));
    assert!(is_last && last.starts_with("redlock: "), "{line}: {end:?}");
    let internal = "os error|script:|user_script|?|hunter2|getaddrinfo|Context|Other(|Error(";
    for text in internal.split('|') {
        assert!(!end.stderr.contains(text), "{line}: {text:?}: {end:?}");
    }
    for part in parts.trim_start_matches("… ").split(" … ") {
        let absent = part.strip_prefix("without ");
        let is_said = last.contains(absent.unwrap_or(part));
        assert_eq!(is_said, absent.is_none(), "{line}: {part:?}: {end:?}");
    }
}

#[test]
fn each_state_of_a_server_is_said_with_what_to_do_and_found_by_doctor() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let redis = Redis::with(&["--dir", gone.to_str().unwrap()]);
    redis.play("persistence warn: none: a restart forgets all locks → appendonly yes");
    set(&redis, "save", "1000 1000");
    let cli = format!("redis-cli -s {} CONFIG SET ", redis.socket().display());
    // Without a limit the run would wait for the server.
    let run = "69 redlock run -q -w 2s a -- echo ran";
    let mut replicas = format!("{run} → too few of its replicas … min-replicas-to-write");
    // Redis 6.0 doesn't apply this setting to scripts.
    if SERVER.is_before(6, 2) {
        replicas.clear();
    }
    redis.play(&format!(
        "persistence warn: snapshots at most → {cli}appendonly yes
        CONFIG SET maxmemory-policy allkeys-lru
        eviction warn: as soon as maxmemory is set → {cli}maxmemory-policy noeviction
        CONFIG SET maxmemory 100mb
        eviction fail: evicts locks → {cli}maxmemory-policy noeviction
        CONFIG SET maxmemory-policy noeviction
        eviction ok: % of maxmemory
        CONFIG SET maxmemory 1
        {run} → no memory left (maxmemory) … raise maxmemory … (`redlock doctor` shows more)
        69 redlock run -n --on-unreachable run a -- echo ran → … no memory left (maxmemory)
        69 redlock run -n a --shared -- echo ran → … no memory left (maxmemory)
        69 redlock run -n a --slots 2 -- echo ran → … no memory left (maxmemory)
        eviction warn: grants no new lock → raise maxmemory
        writes fail: no memory left (maxmemory) → raise maxmemory
        CONFIG SET maxmemory 0
        writes ok: accepted
        CONFIG SET min-replicas-to-write 1
        {replicas}
        writes fail: too few of its replicas → lower min-replicas
        CONFIG SET min-replicas-to-write 0
        writes ok: accepted"
    ));
    // The server can't save, because its directory is gone.
    fs::remove_dir_all(&gone).unwrap();
    redis.cli(&["BGSAVE"]);
    wait_until("it could not save", || {
        redis.info("persistence", "rdb_last_bgsave_status") == "err"
    });
    redis.play(&format!(
        "{run} → can't save its data to disk … stop-writes-on-bgsave-error
        writes fail: can't save its data to disk → its log says why
        persistence warn: the last write to the disk failed → the server's log"
    ));
    assert_nothing_left(&redis);
}

#[test]
fn protected_mode_is_77_and_says_what_to_do() {
    let redis = Redis::with(&["--bind", "0.0.0.0"]);
    let addresses = outcome(Command::new("hostname").arg("-I")).stdout;
    let mut addresses = addresses.split_whitespace();
    // A machine without a network has no such address.
    let address = some_or_return!(addresses.find(|it| it.contains('.')));
    let place = format!("{address}:{}", redis.port);
    redis.play(&format!(
        "77 redis://{place} → is in protected mode … requirepass
        77 redis://:hunter2@{place}/2 → is in protected mode … requirepass"
    ));
}

#[test]
fn a_cluster_is_78_and_the_prefix_and_the_node_are_named_that_make_it_work() {
    let alone = Redis::with(&["--cluster-enabled", "yes"]);
    let tagged = "REDLOCK_PREFIX={redlock}: redlock run a -- echo ran";
    let no_node = "is a Redis Cluster … no node serves";
    alone.play(&format!("78 {tagged} → {no_node}"));
    let cluster = Cluster::start(&[]);
    let examined = Examined::new(&mut cluster.redlock(&["doctor"]));
    examined.says("cluster ok: in slot");
    examined.says("messages ok: Redis notifies a waiter of its turn");
    examined.only("fail", "");
    let number = cluster.owner(&cluster.slot("{redlock}:a"));
    let (here, there) = (&cluster.nodes[number], &cluster.nodes[(number + 1) % 3]);
    there.play("cluster fail: redlock: has no hash tag → --url redis-cluster://HOST:PORT");
    for node in &cluster.nodes {
        assert_no_key(node);
    }
    // A cluster of Valkey 9 may have several databases.
    let database = if SERVER.is_before(9, 0) {
        "is a Redis Cluster … leave the database out"
    } else {
        "doesn't have the URL's database … unless configured otherwise"
    };
    let (url, port) = (there.tcp_url(), here.port);
    there.play(&format!(
        "78 {url} → is a Redis Cluster … REDLOCK_PREFIX='{{redlock}}:'
        78 {url}/3 → {database}
        78 {tagged} → is a Redis Cluster … 127.0.0.1:{port} serves these keys"
    ));
    let redlock = "REDLOCK_PREFIX={redlock}: redlock";
    here.play(&format!(
        "0 {tagged}
        0 {redlock} run -q --shared a -- redlock run -q b -- true
        0 {redlock} history a | grep -q 'echo ran'"
    ));
    let holder = Gated::start(here, words!("REDLOCK_PREFIX={redlock}: a")).ready();
    let words = words!("run -q REDLOCK_PREFIX={redlock}: a b -- true");
    let waiter = Running::start(&mut here.redlock(words));
    let queue = ["ZCARD", "{redlock}:{redlock}:a:queue"];
    wait_until("it waits", || here.cli(&queue) == "1");
    holder.end();
    waiter.finish().assert_code(0);
}

#[test]
fn a_replica_is_78_for_what_writes_and_what_reads_says_that_it_may_be_old() {
    let primary = good();
    let port = primary.port.to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    outcome(&mut primary.redlock(&["run", "a", "--", "true"])).assert_code(0);
    wait_until("the replica is in sync", || {
        let info = primary.cli(&["INFO", "replication"]);
        let has_history = replica.cli(&["EXISTS", "{redlock:a}:history"]) == "1";
        has_history && info.contains("state=online") && !info.contains(",offset=0,")
    });
    let read_only = "is a read-only replica; use the URL of its primary";
    replica.play(&format!(
        "78 redlock run a -- echo ran → {read_only} (`redlock doctor` shows more)
        78 redlock run --slots 2 a -- true → {read_only}
        78 redlock run -n --on-unreachable run a -- echo ran → {read_only}
        78 redlock freeze a --reason x → {read_only}
        78 redlock thaw a → {read_only}
        78 redlock release --force a → {read_only}
        0 redlock status a → is a replica, and may be behind its primary
        0 redlock history a → is a replica, and may be behind its primary
        role fail: a read-only replica of 127.0.0.1 → --url redis://127.0.0.1:{port}
        writes fail: read-only replica → primary
        CONFIG SET replica-read-only no
        role fail: both grant the same lock → make it read-only
        CONFIG SET replica-read-only yes"
    ));
    // No run starts with REDLOCK_SYNC=2 or all, so doctor calls this server unfit.
    primary.play(
        "0 redlock status a
        0 redlock history a
        role ok: primary of 1 replica
        replicas ok: 1 in sync
        [REDLOCK_SYNC=1] replicas ok: 1 in sync
        [REDLOCK_SYNC=2] replicas fail: REDLOCK_SYNC → lower REDLOCK_SYNC
        [REDLOCK_SYNC=all] replicas fail: REDLOCK_SYNC → REDLOCK_SYNC=1",
    );
    // A replica that waits for its first copy, which begins late, isn't in sync.
    set(&primary, "repl-diskless-sync-delay", "1000");
    let late = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    wait_until("it is connected", || {
        primary.info("replication", "connected_slaves") == "2"
    });
    primary.play("replicas warn: 1 of 2 in sync → that replica's log");
    // A replica that has lost its primary, and refuses to serve old data.
    set(&replica, "replica-serve-stale-data", "no");
    drop((late, primary));
    wait_until("it has noticed", || {
        replica.cli(&["GET", "x"]).starts_with("MASTERDOWN")
    });
    replica.play("78 redlock run a -- true → is a read-only replica; use the URL of its primary");
}

#[test]
fn more_runs_than_maxclients_all_get_their_turn() {
    let redis = Redis::start();
    set(&redis, "maxclients", "20");
    let start = |number: usize| {
        // Some of the runs wait for each other too.
        let options = format!("-q -w 5m lock-{}", number % 40);
        Running::start(&mut redis.run(&options, "exec sleep 0.1"))
    };
    let running: Vec<Running> = (0..120).map(start).collect();
    all_end(running, 0);
}

#[test]
fn a_server_that_admits_no_more_clients_is_named_so_whatever_it_was_asked_first() {
    let redis = Redis::start();
    set(&redis, "maxclients", "1");
    // The one that has set the limit may still be connected.
    let _only = await_some("the only client is admitted", || {
        let mut client = UnixStream::connect(redis.socket()).unwrap();
        client.write_all(b"PING\r\n").ok()?;
        let mut first = [0];
        client.read_exact(&mut first).ok()?;
        (first == *b"+").then_some(client)
    });
    // This server reads the request before it closes the connection, like a server slower than its client.
    let port = stranger(b"", b"-ERR max number of clients reached\r\n");
    let slow = format!("REDLOCK_REDIS_TIMEOUT=1s redlock -u redis://127.0.0.1:{port}");
    let cluster = slow.replace("redis://", "redis-cluster://");
    let says = "→ … too many clients (maxclients)";
    redis.play(&format!(
        "75 redlock run -w 2s a -- echo ran {says} … gave up
        75 REDLOCK_REDIS_TIMEOUT=2s redlock run -n a -- echo ran {says} … gave up
        75 {slow} run -n a -- echo ran {says}
        75 {cluster} run -n a -- echo ran {says}
        69 {slow} stop a {says}
        69 {slow} status {says}
        69 {slow} history {says}
        69 {slow} freeze --reason test a {says}"
    ));
}

/// Starts a line that must wait for its server, with stderr on stdout. Returns once it has reported this reason for waiting.
#[track_caller]
fn trying(redis: &Redis, line: &str, why: &str) -> Running {
    let line = format!("exec 2>&1; {line}");
    let mut run = Running::start(&mut sh(redis, &line));
    let mut line = run.line();
    while !line.contains("; still trying (") {
        line = run.line();
    }
    assert!(line.contains(why), "{line}");
    run
}

/// Asserts that a run that was trying goes on, and that it has reported once why it waited.
#[track_caller]
fn assert_goes_on(run: Running) {
    let end = run.finish();
    end.assert_code(0);
    let mut lines: Vec<&str> = end.stdout.lines().skip(1).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["ran", "redlock: Redis answers again"], "{end:?}");
}

#[test]
fn a_wait_that_was_set_covers_a_server_that_is_not_ready_or_not_there_yet() {
    let redis = Redis::start();
    for line in [
        "CONFIG SET maxmemory 1; no memory left (maxmemory); CONFIG SET maxmemory 0",
        "REPLICAOF 127.0.0.1 1; Redis is a read-only replica; REPLICAOF NO ONE",
    ] {
        let (begin, line) = line.split_once("; ").unwrap();
        let (why, end) = line.split_once("; ").unwrap();
        redis.play(begin);
        let run = trying(&redis, "redlock run -w 60s a -- echo ran", why);
        redis.play(end);
        assert_goes_on(run);
    }
    for words in ["run -w 60s a -- true", "acquire -w 60s a"] {
        let port = free_port();
        let line = format!("redlock -u redis://127.0.0.1:{port} {words}");
        let run = trying(&redis, &line, "");
        let _redis = Redis::at(|| port, &[], &[]);
        run.finish().assert_code(0);
    }
    if let Some(hosts) = with_file(&redis, "/etc/hosts", "") {
        let url = format!("redis://redis.invalid:{}", redis.port);
        let line = format!("{hosts} redlock -u {url} run -w 60s a -- true");
        let run = trying(&redis, &line, "");
        fs::write(redis.dir.path().join("other"), "127.0.0.1 redis.invalid\n").unwrap();
        run.finish().assert_code(0);
    }
}

/// Asserts that only runs that wait survive while a server answers with this code, and that a waiting run goes on afterwards.
#[track_caller]
fn assert_tries_while(code: &str, redis: &Redis, (says, why): (&str, &str), end: &str) {
    wait_until(code, || redis.cli(&["GET", "x"]).starts_with(code));
    // redlock selects the database before it requests the lock.
    redis.play(&format!(
        "69 REDLOCK_REDIS_TIMEOUT=2s redlock run -q -n a --on-unreachable run -- echo ran → {says}
        69 redlock -u {}?db=3 run -q -w 1s a -- echo ran → {says}
        69 redlock status → {says}",
        redis.url()
    ));
    let why = format!("redlock: {why}; still trying (");
    let run = trying(redis, "redlock run --ttl 3s a -- echo ran", &why);
    // For longer than the TTL.
    thread::sleep(Duration::from_millis(3_500));
    redis.play(end);
    assert_goes_on(run);
}

#[test]
fn while_redis_loads_its_data_or_is_busy_with_a_script_a_run_keeps_trying_and_says_so_once() {
    // Redis answers after this many bytes, which were always 2 MB before Redis 7.0.
    let (size, delay) = if SERVER.is_before(7, 0) {
        ("4000", "2000")
    } else {
        ("10", "3000")
    };
    let mut redis = Redis::with(words!(
        "--enable-debug-command yes --loading-process-events-interval-bytes 1024 \
         --rdbcompression no --lua-time-limit 50 --key-load-delay {}",
        delay
    ));
    // This command never returns.
    redis.ask(&["EVAL", "while true do end", "0"]);
    let busy = "is busy with another client's script … SCRIPT KILL";
    let says = (busy, "Redis is busy with a script");
    assert_tries_while("BUSY", &redis, says, "SCRIPT KILL");

    redis.cli(&["DEBUG", "POPULATE", "10000", "key", size]);
    assert_eq!(redis.cli(&["SAVE"]), "OK");
    redis.kill();
    redis.launch_again();
    let says = ("is loading its data", "Redis is loading its data");
    assert_tries_while("LOADING", &redis, says, "CONFIG SET key-load-delay 0");
}

#[test]
fn a_waiter_on_a_terminal_shows_in_one_line_for_how_long_redis_does_not_answer() {
    let redis = Redis::start();
    let holder = Gated::start(&redis, &["a"]).ready();
    let line = "exec env REDLOCK_REDIS_TIMEOUT=2s redlock run a -- echo ran";
    let mut terminal = Terminal::start(sh(&redis, line));
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

/// Creates a self-signed certificate for localhost: "NAME.crt" and "NAME.key".
pub fn self_signed(dir: &Path, name: &str, days: &str, is_ca: &str) {
    let names = format!("subjectAltName=DNS:localhost\nbasicConstraints=CA:{is_ca}\n");
    fs::write(dir.join("names"), names).unwrap();
    let request = format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key");
    openssl(dir, &format!("{request} -out {name}.csr"));
    let sign = format!("x509 -req -in {name}.csr -signkey {name}.key -days {days}");
    openssl(dir, &format!("{sign} -extfile names -out {name}.crt"));
}

/// Creates another certificate for a key that has a request, signed by a CA. Options begin with a space.
fn sign(dir: &Path, key: &str, ca: &str, options: &str, name: &str) {
    let sign = format!("x509 -req -in {key}.csr -CA {ca}.crt -CAkey {ca}.key -CAcreateserial");
    openssl(dir, &format!("{sign} -days 2 -out {name}.crt{options}"));
    let [from, to] = [key, name].map(|name| dir.join(format!("{name}.key")));
    fs::copy(from, to).unwrap();
}

/// Starts a Redis with this certificate. Returns its TLS port too.
pub fn encrypted(dir: &Path, name: &str) -> (Redis, u16) {
    let (port, file) = (free_port(), dir.join(name));
    let file = file.display();
    let options = format!(
        "--tls-port {port} --tls-cert-file {file}.crt --tls-key-file {file}.key \
         --tls-ca-cert-file {file}.crt --tls-auth-clients no"
    );
    let options: Vec<&str> = options.split(' ').collect();
    (Redis::with(&options), port)
}

#[test]
fn a_certificate_is_trusted_by_its_ca_or_for_itself_and_what_is_wrong_with_it_is_said() {
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
    // A certificate without its CA, and one signed by a trusted certificate that isn't a CA.
    sign(dir, "leaf", "stranger", " -extfile names", "signed");
    let names = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n";
    fs::write(dir.join("plain"), names).unwrap();
    sign(dir, "stranger", "leaf", " -extfile plain", "forged");
    // A certificate that is trusted itself must still meet its own constraints.
    let narrow = format!("{names}nameConstraints=permitted;DNS:example.com\n");
    fs::write(dir.join("narrow"), narrow).unwrap();
    sign(dir, "leaf", "leaf", " -extfile narrow", "narrow");
    let ca = format!("REDLOCK_TLS_CA={}/", dir.display());
    // The certificate of a server, and the end of a line there.
    let rows = "authority 0 CA=authority.crt rediss://localhost:PORT
        authority 78 CA=authority.crt rediss://127.0.0.1:PORT → not valid for name … 127.0.0.1 … localhost
        authority 78 CA=over.crt rediss://localhost:PORT → name the CA that signed it
        leaf 0 CA=leaf.crt rediss://localhost:PORT
        leaf 78 CA=leaf.crt rediss://127.0.0.1:PORT → not valid for name … 127.0.0.1 … localhost
        leaf 78 CA=over.crt rediss://localhost:PORT → name the CA that signed it
        signed 0 CA=signed.crt rediss://localhost:PORT
        signed 78 CA=signed.crt rediss://127.0.0.1:PORT → not valid for name … 127.0.0.1 … localhost
        signed 78 CA=over.crt rediss://localhost:PORT → name the CA that signed it
        forged 78 CA=leaf.crt rediss://localhost:PORT → isn't signed by a trusted CA
        narrow 78 CA=narrow.crt rediss://localhost:PORT → its certificate can't be used
        over 78 CA=over.crt rediss://localhost:PORT → its certificate has expired";
    for line in rows.lines() {
        let (name, row) = line.trim().split_once(' ').unwrap();
        let (redis, port) = encrypted(dir, name);
        let row = row.replace("CA=", &ca).replace("PORT", &port.to_string());
        redis.play(&row);
    }
    // Certificates that no client accepts because of their extensions: the fault, and how to create a good one.
    let make = |options: &str, extensions: &str| {
        let request = "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.key";
        openssl(dir, &format!("{request} -out key.csr{options}"));
        sign(dir, "key", "authority", extensions, "server");
        let (redis, port) = encrypted(dir, "server");
        let url = format!("rediss://localhost:{port}");
        (redis, url, format!("{ca}authority.crt"))
    };
    let again = "issue it again with subjectAltName=DNS:localhost";
    let states = format!(
        r#"; can't be used (UnsupportedCertVersion); issue it again
        basicConstraints=CA:FALSE; not valid for name; {again}
        subjectAltName=DNS:elsewhere; not valid for name; only valid for DnsName("elsewhere"); use one of its names in the URL, or {again}
        subjectAltName=DNS:localhost|extendedKeyUsage=clientAuth; can't be used (certificate does not allow extended key usage; issue it again
        subjectAltName=DNS:localhost|1.2.3.4=critical,ASN1:UTF8String:x; can't be used (UnsupportedCriticalExtension); issue it again without that"#
    );
    for line in states.lines() {
        let (extensions, line) = line.split_once("; ").unwrap();
        let (why, next) = line.split_once("; ").unwrap();
        fs::write(dir.join("extensions"), extensions.trim().replace('|', "\n")).unwrap();
        let is_old = extensions.is_empty();
        let (redis, url, ca) = make("", if is_old { "" } else { " -extfile extensions" });
        redis.play(&format!(
            "78 {ca} {url} → {why} … {next}
            [-u {url} {ca}] tls fail: {why} → {next}"
        ));
    }
    // As the message advises.
    let name = " -addext subjectAltName=DNS:localhost";
    let (redis, url, ca) = make(name, " -copy_extensions copy");
    redis.play(&format!(
        "0 {ca} {url}
        [-u {url} {ca}] tls ok: valid for localhost"
    ));
}

#[test]
fn a_client_certificate_is_required_only_where_the_server_asks_for_one_and_a_bad_key_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    for (name, is_ca) in [("leaf", "FALSE"), ("stranger", "FALSE"), ("client", "TRUE")] {
        self_signed(dir, name, "2", is_ca);
    }
    let (redis, port) = encrypted(dir, "leaf");
    let authority = dir.join("client.crt");
    set(&redis, "tls-ca-cert-file", authority.to_str().unwrap());
    let (files, url) = (dir.display(), format!("rediss://localhost:{port}"));
    let ca = format!("REDLOCK_TLS_CA={files}/leaf.crt");
    let own = format!("REDLOCK_TLS_CERT={files}/stranger.crt REDLOCK_TLS_KEY={files}");
    let theirs = format!("{own}/stranger.key");
    let over =
        "x509 -req -in stranger.csr -CA client.crt -CAkey client.key -CAcreateserial -days -1";
    openssl(dir, &format!("{over} -extfile names -out over.crt"));
    let over = theirs.replace("stranger.crt", "over.crt");
    let required =
        "the server requires a client certificate; set REDLOCK_TLS_CERT and REDLOCK_TLS_KEY";
    let in_common = "and redlock have no TLS version, cipher or kind of server key in common";
    let (both, any) = ("TLSv1.2 TLSv1.3", "DEFAULT");
    for (protocols, ciphers, requires, own, says) in [
        (both, any, "yes", "", required),
        ("TLSv1.2", any, "yes", "", required),
        ("TLSv1.2", "AES256-SHA", "no", "", in_common),
        ("TLSv1.2", "AES256-SHA", "yes", "", in_common),
        (both, any, "yes", &*theirs, "ended the handshake"),
        (both, any, "yes", &*over, "CertificateExpired"),
    ] {
        set(&redis, "tls-protocols", protocols);
        set(&redis, "tls-ciphers", ciphers);
        set(&redis, "tls-auth-clients", requires);
        redis.play(&format!("78 {ca} {own} {url} → {says}"));
    }
    let own_files =
        format!("{ca} REDLOCK_TLS_CERT={files}/client.crt REDLOCK_TLS_KEY={files}/client.key");
    redis.play(&format!(
        "78 {ca} REDLOCK_TLS_CERT={files}/client.crt {url} → belong together
        78 REDLOCK_TLS_CA={files}/none {url} → can't use {files}/none
        0 {own_files} {url}"
    ));
    let settings: Vec<&str> = own_files.split(' ').collect();
    let options = [&settings, words!("-u {} --ttl 6s a", &url)].concat();
    let holder = Gated::start(&redis, &options).ready();
    redis.await_renewals("a", 1);
    holder.end();
    let curve = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-521 -nodes -days 2 -subj /CN=x \
        -addext subjectAltName=DNS:localhost -keyout curve.key -out curve.crt";
    openssl(dir, curve);
    let (curve, port) = encrypted(dir, "curve");
    curve.play(&format!(
        "78 REDLOCK_TLS_CA={files}/curve.crt rediss://localhost:{port} → kind of server key … P-256, P-384 or Ed25519"
    ));
    for options in ["", " -traditional"] {
        let encrypt = "rsa -in leaf.key -aes128 -passout pass:x -out secret.key";
        openssl(dir, &format!("{encrypt}{options}"));
        redis.play(&format!(
            "78 {ca} {own}/secret.key {url} → secret.key … has a passphrase … openssl pkey -in"
        ));
    }
}

/// Starts a server that serves each client in a thread of its own. Returns its port.
fn serving(serve: impl Fn(TcpStream) + Copy + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve(client));
        }
    });
    port
}

/// Starts a server that greets, answers each request, and closes the connection. Until the client has closed the connection
/// too, all bytes are read, because closing with unread bytes is a reset, which may discard the answer.
pub fn stranger(greeting: &'static [u8], answer: &'static [u8]) -> u16 {
    serving(move |mut client| {
        let _ = client.write_all(greeting);
        let _ = client.read(&mut [0; 4096]);
        let _ = client.write_all(answer);
        let _ = client.shutdown(Shutdown::Write);
        while matches!(client.read(&mut [0; 4096]), Ok(1..)) {}
    })
}

#[test]
fn tls_on_a_plain_port_no_tls_on_one_of_tls_and_no_redis_are_78_with_the_url_to_use() {
    let http = stranger(b"", b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let ssh = stranger(b"SSH-2.0-OpenSSH_9.6\r\n", b"");
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    self_signed(dir, "leaf", "2", "FALSE");
    let (redis, tls) = encrypted(dir, "leaf");
    let plain = redis.port;
    // The right URL, or a description of the server.
    let rows = format!(
        r#"redis://localhost:{tls} → uses TLS; use rediss
        redis://:hunter2@localhost:{tls}/3 → uses TLS; use rediss
        rediss://localhost:{plain} → doesn't use TLS on this port; use redis instead of rediss
        rediss://:hunter2@localhost:{plain}/3 → doesn't use TLS on this port; use redis instead of rediss
        rediss-sentinel://localhost:{plain}/m → use redis instead of rediss
        redis-sentinel://localhost:{tls}/m → use rediss instead of redis
        rediss-cluster://localhost:{plain} → use redis instead of rediss
        redis-cluster://localhost:{plain} → isn't a node of a Redis Cluster; use redis://localhost:{plain}
        redis-cluster://localhost:{tls} → use rediss instead of redis
        '"redis://localhost:{plain}"' → remove the quotes
        redis://127.0.0.1:{http} → does not speak the Redis protocol … "HTTP/1.1 400 Bad Request"
        rediss://127.0.0.1:{http} → doesn't use TLS on this port
        redis://127.0.0.1:{ssh} → does not speak the Redis protocol … "SSH-2.0-OpenSSH_9.6"
        rediss://127.0.0.1:{ssh} → doesn't use TLS on this port"#
    );
    for row in rows.lines().map(str::trim) {
        let ca = format!("REDLOCK_TLS_CA={}/leaf.crt", dir.display());
        redis.play(&format!("78 {ca} {row}"));
    }
}

#[test]
fn a_url_that_is_wrong_or_leads_nowhere_is_named_with_the_place_where_it_is_set() {
    let redis = Redis::start();
    let file = redis.dir.path().join("redlock.env");
    let write = |text: &str| fs::write(&file, text).unwrap();
    let (dir, place) = (redis.dir.path().display(), file.display());
    let by_file = format!("env -u REDLOCK_URL XDG_CONFIG_HOME={dir} redlock status");
    write("# ours\n\nREDLOCK_URL=redis://u:hunter2@h/x\n");
    let mistake = "the database must be a number";
    redis.play(&format!(
        "78 redis://u:hunter2@h/x → bad Redis URL in --url: … {mistake} … without doctor
        78 REDLOCK_URL=redis://u:hunter2@h/x redlock status → bad Redis URL in $REDLOCK_URL: … {mistake}
        78 {by_file} → bad Redis URL in {place}:3: … {mistake}"
    ));
    let address = format!("127.0.0.1:{}", free_port());
    let url = format!("redis://{address}");
    let refused = format!("can't reach Redis at {address}: connection refused");
    write(&format!("REDLOCK_URL={url}\n"));
    redis.play(&format!(
        "69 {url} → {refused}; `--wait 30s` would wait for it (`redlock doctor` shows more)
        69 REDLOCK_URL={url} redlock status → {refused} … ; the URL is from $REDLOCK_URL
        69 {by_file} → {refused} … ; the URL is from {place}:1"
    ));
}

#[test]
fn without_a_url_and_a_server_redlock_prints_how_to_start_one() {
    return_unless!(is_permitted(words!("unshare --net ip link set lo up")));
    let redis = Redis::start();
    let programs = redis.dir.path().display();
    let unshare = "unshare --net env -u REDLOCK_URL";
    let up = format!("{unshare} sh -c 'ip link set lo up; PATH={programs} exec \"{REDLOCK}\"");
    let default = "no --url or REDLOCK_URL was given, so the default 127.0.0.1:6379 was tried";
    let next = "if other hosts use a Redis, put REDLOCK_URL=redis://HOST into /etc/redlock.env; `-u local:` uses";
    redis.play(&format!(
        "69 {unshare} '{REDLOCK}' status → ; {default}
        69 {up} status' → connection refused … ; {default} … ; {next}
        69 {up} -u redis://127.0.0.1:6379 status' → connection refused … without /etc/redlock.env"
    ));
    for line in [
        "docker; docker run -d -p 127.0.0.1:6379:6379 redis",
        "apt-get; sudo apt-get install -y redis-server",
        "redis-server; redis-server --daemonize yes",
    ] {
        let (program, start) = line.split_once("; ").unwrap();
        script(redis.dir.path(), program, "");
        redis.play(&format!(
            "69 {up} status' → {default} … ; {next} … ; `{start}` starts Redis here"
        ));
    }
}

#[test]
fn without_a_url_redlock_says_that_the_locks_are_this_hosts_only() {
    let dir = tempfile::tempdir().unwrap();
    let unshare = words!("unshare --net --pid --fork --kill-child sh -c");
    return_unless!(is_permitted(&[unshare, &["ip link set lo up"]].concat()));
    let script = r#"set -e -x; ip link set lo up; cd "$0"; exec 9>&-
        why='on this host only: no REDLOCK_URL is set'
        "$1" --port 6379 --bind 127.0.0.1 --save '' --logfile log >/dev/null &
        until redlock status >empty 2>/dev/null; do sleep 0.05; done
        printf '%s\n' "$why" 'no lock is held' | diff - empty
        mkfifo gate
        redlock run a -- sh -c 'echo $$ >held; read line <gate' 2>quiet & holder=$!
        until [ -s held ]; do sleep 0.05; done
        redlock status | head -n 2 | tr '\n' '|' | grep "^$why|NAME "
        [ "$(redlock status --names-only)" = a ]
        redlock run -n a -- true 2>&1 | grep "; $why\$"
        redlock run -w 1ms a -- true 2>&1 | grep "; $why\$"
        for command in stop 'release --force -y' "release --token-file held"; do
            redlock $command free 2>&1 | grep "^redlock: lock \"free\" .*; $why\$"
        done
        redlock doctor >doctor
        grep "no URL set: this host's own Redis; other hosts with another server are not excluded" doctor
        redlock run a -- true 2>waiting & waiter=$!
        until [ -s waiting ]; do sleep 0.05; done
        grep "^redlock: $why; waiting for \"a\", held by " waiting
        echo >gate; wait $holder; wait $waiter
        [ ! -s quiet ]
        redlock run -v b -- true 2>&1 | grep -x "redlock: $why"
        redlock -u redis://127.0.0.1 run -v b -- true 2>given
        [ -z "$(grep "$why" given)" ]
        [ "$(redlock -u redis://127.0.0.1 status)" = 'no lock is held' ]"#;
    let mut command = Command::new(unshare[0]);
    command.args(&unshare[1..]).arg(script);
    command.args([dir.path(), &SERVER.path]).env("PATH", path());
    command.env("HOME", "/nonexistent");
    outcome(command.env_remove("REDLOCK_URL")).assert_code(0);
}

/// Starts a server whose TLS handshakes go on for ever, byte by byte.
fn endless_handshakes() -> u16 {
    serving(|mut client| {
        // The beginning of a record with a length of 16 KiB.
        let _ = client.write_all(&[22, 3, 3, 64, 0]);
        while client.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    })
}

#[test]
fn a_silent_server_is_given_up_after_the_time_to_connect_and_no_later() {
    let redis = Redis::start();
    redis.stall();
    let unresponsive = UnresponsiveServer::new();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    // A socket whose backlog of one is taken by a client that is never accepted.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full");
    let full = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    full.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    full.listen(0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    self_signed(dir.path(), "ca", "2", "TRUE");
    let ca = format!("REDLOCK_TLS_CA={}/ca.crt", dir.path().display());
    let servers = format!(
        "redlock -u {} → no answer in time
        redlock -u {} → no answer in time
        redlock -u {} → no answer in time
        redlock -u redis://{} → accepts connections, but gives no answer in time … without can't reach
        redlock -u unix://{} → no answer in time
        {ca} redlock -u rediss://localhost:{} → no answer in time",
        redis.url(),
        redis.tcp_url(),
        unresponsive.url(),
        mute.local_addr().unwrap(),
        path.display(),
        endless_handshakes()
    );
    let lines = [
        "run a -- echo ran",
        "run --slots 2 a -- echo ran",
        "acquire a >/dev/null",
        "status",
    ];
    let rows = servers.lines().flat_map(|server| {
        let (redlock, says) = server.trim().split_once(" → ").unwrap();
        lines.map(|line| format!("69 REDLOCK_REDIS_TIMEOUT=5s {redlock} {line} → {says}"))
    });
    let began = Instant::now();
    // Side by side, because each waits all the time.
    side_by_side(rows, |row| redis.play(&row));
    // A second attempt would take as long again.
    assert_took_less(began, Duration::from_millis(9_900));
    redis.resume();
}

/// Returns the start of a line whose command sees this text in a system file, or `None` if mounting isn't permitted. The text
/// is in the file "other".
fn with_file(redis: &Redis, path: &str, text: &str) -> Option<String> {
    let other = redis.dir.path().join("other");
    fs::write(&other, text).unwrap();
    let mount = r#"mount --bind "$0" "$1" && shift && exec "$@""#;
    let unshare = "unshare --mount --propagation private sh -c";
    is_permitted(&["unshare", "--mount", "true"])
        .then(|| format!("{unshare} '{mount}' {} {path}", other.display()))
}

#[test]
fn a_host_is_looked_up_in_the_systems_files_and_named_if_it_is_not_found() {
    let unresponsive = UnresponsiveServer::new();
    let port = unresponsive.url().rsplit(':').next().unwrap().to_owned();
    // At the same port of another address of this machine. Nothing listens at the port of the name server.
    let redis = Redis::with(&["--bind", "127.0.0.2", "--port", &port]);
    let hosts = "/etc/hosts; 127.0.0.1 several|127.0.0.2 several other Redis-Main # ours; 0";
    let rows = format!(
        r#"/etc/nsswitch.conf; hosts: files; 69 redlock -u redis://:hunter2@redsi.internal/3 status → no such host "redsi.internal"
        /etc/resolv.conf; nameserver 127.0.0.77|options timeout:1 attempts:1; 69 redlock -u redis://redis.internal status → "redis.internal" can't be looked up now
        {hosts} redlock -u redis://several:{port} status | grep -x 'no lock is held at several:{port}'"#
    );
    let mut rows: Vec<String> = rows.lines().map(str::to_owned).collect();
    for binary in binaries() {
        for host in ["redis-main", "REDIS-MAIN"] {
            rows.push(format!(
                "{hosts} '{binary}' -u redis://{host}:{port} status"
            ));
        }
    }
    for row in &rows {
        let (file, row) = row.split_once("; ").unwrap();
        let (text, row) = row.split_once("; ").unwrap();
        let (status, line) = row.split_once(' ').unwrap();
        let text = text.replace('|', "\n") + "\n";
        if let Some(start) = with_file(&redis, file.trim(), &text) {
            redis.play(&format!("{status} {start} {line}"));
        }
    }
}

/// Response codes of a name server, and one for silence.
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
const NOTIMP: u8 = 4;
const REFUSED: u8 = 5;
const SILENT: u8 = u8::MAX;

/// A name server at its own loopback address, which resolves each host to 127.0.0.1.
struct NameServer {
    /// Response codes to queries for IPv4 and IPv6.
    codes: Arc<Mutex<[u8; 2]>>,
    /// Line for `/etc/resolv.conf`. No lookup of both families ends in time if the answer about one is missing.
    settings: String,
}

impl NameServer {
    /// Starts a name server. Returns `None` if this user may not open the port.
    fn start(address: &str) -> Option<Self> {
        let socket = UdpSocket::bind((address, 53)).ok()?;
        let codes: Arc<Mutex<[u8; 2]>> = Arc::default();
        let of_server = Arc::clone(&codes);
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                let question = &query[12..length];
                let end = question.iter().position(|byte| *byte == 0).unwrap();
                let is_ipv6 = question[end + 2] == 28;
                let code = of_server.lock().unwrap()[usize::from(is_ipv6)];
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
        *self.codes.lock().unwrap() = [ipv4, ipv6];
    }
}

#[test]
fn a_host_is_found_whatever_its_name_server_answers_about_ipv6_and_by_a_job_when_it_fails() {
    let names = some_or_return!(NameServer::start("127.0.0.78"));
    let redis = Redis::start();
    let start = some_or_return!(with_file(&redis, "/etc/resolv.conf", &names.settings));
    let url = format!("redis://redis.internal:{}", redis.port);
    for binary in binaries() {
        for code in [SILENT, NXDOMAIN, SERVFAIL, REFUSED, NOTIMP, 0] {
            names.answer_with(0, code);
            let run = format!("'{binary}' -u {url} run -q -n a -- true # code {code}");
            redis.play(&format!("0 REDLOCK_REDIS_TIMEOUT=8s {start} {run}"));
        }
    }
    // redlock goes on at the address that last worked.
    let mut gate = Gate::new(&redis);
    let script = r#"echo ready; read line <"$HOME/gate""#;
    let line = format!("{start} redlock -u {url} run --ttl 60s a -c '{script}'");
    let run = Running::ready(&mut sh(&redis, &line));
    wait_until("it tracks its lock", || redis.trackers() > 0);
    for code in [SILENT, SERVFAIL, NXDOMAIN] {
        names.answer_with(code, code);
        redis.cli(words!("CLIENT KILL TYPE normal SKIPME yes"));
        wait_until("it has renewed its lease again", || redis.trackers() > 0);
    }
    gate.open();
    run.finish().assert_code(0).assert_silent();
}

#[test]
fn a_file_or_a_socket_that_cannot_be_used_is_named_without_the_systems_number() {
    let mut redis = Redis::start();
    let home = redis.dir.path().to_owned();
    let (dir, port, long) = (home.display(), redis.port, "x".repeat(120));
    fs::write(home.join("plain"), "not to be executed").unwrap();
    fs::write(home.join("empty"), "\n").unwrap();
    set_mode(&home.join("empty"), 0o600);
    script(&home, "orphan", "#!/no/such/interpreter\n");
    script(&home, "dos", "#!/bin/sh\r\necho hello\r\n");
    let run = "redlock run a --";
    redis.play(&format!(
        r"78 REDLOCK_PASSWORD_FILE={dir}/missing {run} true → can't read the password file {dir}/missing: no such file
        78 REDLOCK_PASSWORD_FILE={dir} {run} true → it is a directory
        78 REDLOCK_PASSWORD_FILE={dir}/empty {run} true → {dir}/empty
        78 REDLOCK_REDIS_TIMEOUT=0 {run} true → must be greater than 0
        78 REDLOCK_SYNC=1001 {run} true → a number of replicas up to 1000
        78 redis://127.0.0.1:{port}/99 → doesn't have the URL's database
        78 REDLOCK_TLS_CA={dir}/missing redlock -u rediss://127.0.0.1:{port} status → can't use {dir}/missing: no such file
        64 redlock extend --token-file {dir}/missing a → can't read the token file {dir}/missing: no such file
        127 {run} {dir}/missing → can't run {dir}/missing: no such file
        127 {run} ./no-such-command → can't run ./no-such-command:
        127 {run} '' → can't run :
        127 {run} no-such-command → can't run no-such-command: not found in $PATH
        127 {run} LANG=C sort → can't run LANG=C: it sets a variable; put env before it
        126 {run} {dir}/plain → it isn't executable; run: chmod +x {dir}/plain
        127 {run} {dir}/orphan → can't run {dir}/orphan: its interpreter /no/such/interpreter does not exist
        127 {run} {dir}/dos → can't run {dir}/dos: its interpreter /bin/sh\r does not exist; remove the DOS line endings: sed -i 's/\r$//' {dir}/dos
        126 {run} {dir} → it is a directory
        69 unix://{dir}/missing → there is no such socket
        69 unix://{dir}/no/such/dir → there is no such socket
        69 unix://{dir}/redis.log → no server listens there
        78 unix://{dir}/redis.log/x → is not a directory
        78 unix://{dir}/{long} → at most 107 bytes"
    ));
    assert_nothing_left(&redis);
    if let Some(user) = OtherUser::new() {
        set_mode(&home, 0o755);
        set_mode(&redis.socket(), 0o700);
        let end = outcome(&mut user.command(words!("./redlock -u {} status", &redis.url())));
        let says = "permission denied … write access to the socket";
        assert_end("another user's", &end, "77", says);
    }
    redis.kill();
    redis.play("69 redlock run a -- echo ran → no server listens there");
}

#[test]
fn a_password_or_a_permission_that_is_missing_is_77_and_says_what_to_do() {
    let redis = Redis::start();
    let file = redis.dir.path().join("password");
    fs::write(&file, "hunter2\n").unwrap();
    set_mode(&file, 0o600);
    let file = format!("REDLOCK_PASSWORD_FILE={}", file.display());
    let place = format!("127.0.0.1:{}", redis.port);
    let jobs = "ACL SETUSER jobs reset on >secret";
    let user = format!("redis://jobs:secret@{place}");
    let keys = r#"use the keys of redlock (prefix "redlock:"); add ~redlock:* ~{redlock:* to"#;
    redis.play(&format!(
        r#"{jobs} ~* &* +ping
        77 {user} → user "jobs" isn't permitted to run EVAL … ; add +eval
        {jobs} ~* &* +eval +evalsha
        77 {user}/2 → user "jobs" isn't permitted to run SELECT; add +select
        {jobs} ~else:* &* +@all
        77 {user} → user "jobs" isn't permitted to {keys}
        {jobs} ~redlock:* &* +@all
        77 {user} → user "jobs" isn't permitted to {keys}
        {jobs} ~* &* +eval +evalsha +get
        77 {user} → user "jobs" isn't permitted to run EXISTS; add +exists to
        77 redis://:hunter2@{place} → has no password set, but one was given in the URL … leave it out
        ACL SETUSER open on nopass ~* &* +@all
        0 redis://open@{place}
        {jobs} ~* &* +@all
        CONFIG SET requirepass secret
        77 redis://{place} → requires a password; use REDLOCK_PASSWORD_FILE or the URL
        connection fail: requires a password → REDLOCK_PASSWORD_FILE
        77 redis://:hunter2@{place} → refused the default user: the password in the URL
        [-u redis://:hunter2@{place}] connection fail: is wrong
        77 {file} redis://{place} → refused the default user: the password in the file /
        77 redis://jobs:hunter2@{place} → refused user "jobs": the password in the URL (--url) is wrong, or there is no such user
        77 {file} redis://nobody@{place} → is wrong, or there is no such user
        77 redis://jobs@{place} → refused the user in the URL, which has no password; use REDLOCK_PASSWORD_FILE, or :PASSWORD@HOST if the user name was meant as the password"#
    ));
}

#[test]
fn a_password_in_the_place_of_the_user_is_never_shown() {
    let redis = Redis::start();
    let tcp = format!("redis://hunter2@127.0.0.1:{}", redis.port);
    let socket = format!("{}?user=hunter2", redis.url());
    // There is no such user; the user has no password and lacks a permission; or it is the password.
    let states = r#"PING; PASSWORD
        ACL SETUSER hunter2 on nopass ~* &* +@all -set; user "***" isn't permitted to run SET; add +set
        CONFIG SET requirepass hunter2; PASSWORD"#;
    for line in states.lines() {
        let (state, says) = line.trim().split_once("; ").unwrap();
        redis.cli(&["ACL", "DELUSER", "hunter2"]);
        redis.cli(&state.split(' ').collect::<Vec<_>>());
        for url in [&tcp, &socket] {
            for words in "run a -- echo ran;status --json;status a;doctor;doctor --json".split(';')
            {
                let line = format!("redlock -v -u '{url}' {words}");
                let end = outcome(&mut sh(&redis, &line));
                assert!(!format!("{end:?}").contains("hunter2"), "{end:?}");
                if words.starts_with("run") {
                    end.assert_said(77, says);
                }
            }
        }
    }
}

#[test]
fn a_command_that_the_server_does_not_have_is_78_and_named_without_the_password() {
    for name in ["EVALSHA", "EVAL", "TIME", "PTTL", "ZADD", "AUTH"] {
        let redis = Redis::with(&["--rename-command", name, ""]);
        let place = format!("127.0.0.1:{}", redis.port);
        let says = format!("doesn't have the command {name}, which redlock needs");
        // redlock needs some commands only if the lock is held.
        redis.play("SET redlock:a another_client PX 100000");
        let logins: &[&str] = match name {
            "AUTH" => &["jobs:hunter2@", ":hunter2@", "hunter2@"],
            _ => &[""],
        };
        for login in logins {
            let line = format!("redlock -u redis://{login}{place} run -w 5s a -- echo ran");
            redis.play(&format!("78 {line} → {says}"));
        }
    }
}

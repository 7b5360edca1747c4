//! `redlock doctor` finds what is wrong with a server or this host, says what to type, ends within two seconds, and leaves
//! nothing behind.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::generated::make_acl_users;
use crate::promises::trouble::{encrypted, self_signed};
use crate::support::proxy::{Action, Proxy, Request};
use crate::support::tmux::Tmux;
use crate::support::{
    Cluster, MASTER, Outcome, REDLOCK, Redis, Replicated, UnresponsiveServer, free_port, outcome,
    redlock, setting, wait_until,
};

/// Checks without which nobody knows whether a server is fit.
const DECIDING: &str = "connection server role cluster eviction writes scripts name";

/// A report as JSON.
pub struct Examined {
    pub end: Outcome,
    pub document: Value,
    pub checks: BTreeMap<String, Value>,
}

impl Examined {
    /// Examines a server that answers. Doctor has two seconds: if the machine is too busy for that, which doctor says,
    /// this asks again.
    #[track_caller]
    pub fn new(command: &mut Command) -> Self {
        let mut latest = Self::once(command.arg("--json"));
        wait_until("doctor has the time", || {
            let is_late = latest.end.stdout.contains("in time");
            if is_late {
                latest = Self::once(command);
            }
            !is_late
        });
        latest
    }

    /// Examines once. The command has `--json`.
    #[track_caller]
    pub fn once(command: &mut Command) -> Self {
        let end = outcome(command);
        assert_eq!(end.stderr, "", "{end:?}");
        assert_eq!(end.stdout.lines().count(), 1, "{end:?}");
        for secret in ["hunter", "correct-horse"] {
            assert!(!end.stdout.contains(secret), "{end:?}");
        }
        let document: Value = serde_json::from_str(&end.stdout).unwrap();
        let checks = document["checks"].as_array().unwrap().iter();
        let name = |check: &Value| check["check"].as_str().unwrap().to_owned();
        let checks: BTreeMap<String, Value> =
            checks.map(|check| (name(check), check.clone())).collect();
        let is_undecided = |name: &str| checks.get(name).is_some_and(|it| it["level"] == "unknown");
        let failed = checks.values().any(|check| check["level"] == "fail");
        let is_fit = !failed && !DECIDING.split(' ').any(is_undecided);
        end.assert_code(i32::from(!is_fit));
        assert_eq!(document["fit"], is_fit);
        for check in checks.values() {
            let is_bad = check["level"] == "warn" || check["level"] == "fail";
            assert_eq!(check["fix"].is_string(), is_bad, "{check}");
        }
        Self {
            end,
            document,
            checks,
        }
    }

    /// Expects these checks to have a level, and no others.
    #[track_caller]
    pub fn only(&self, level: &str, checks: &str) {
        assert_eq!(self.of(level).join(" "), checks, "{:?}", self.end);
    }

    /// Returns the names of the checks of a level.
    pub fn of(&self, level: &str) -> Vec<&str> {
        let checks = self.checks.iter();
        let checks = checks.filter(|(_, check)| check["level"] == level);
        checks.map(|(name, _)| name.as_str()).collect()
    }

    /// Expects a finding: `CHECK LEVEL: part of its message → part of its fix`.
    #[track_caller]
    pub fn says(&self, finding: &str) -> &Self {
        let (start, says) = finding.split_once(':').unwrap();
        let (says, fix) = says.split_once(" → ").unwrap_or((says, ""));
        let says = says.trim_start();
        let (check, level) = start.split_once(' ').unwrap();
        let check = &self.checks[check];
        assert_eq!(check["level"], level, "{check}");
        let contains = |part: &Value, text| part.as_str().unwrap_or_default().contains(text);
        assert!(contains(&check["message"], says), "{says:?}: {check}");
        assert!(contains(&check["fix"], fix), "{fix:?}: {check}");
        self
    }
}

/// A server that keeps its data, so that doctor finds nothing.
fn good() -> Redis {
    Redis::with(&["--appendonly", "yes"])
}

#[track_caller]
fn examine(redis: &Redis, arguments: &[&str]) -> Examined {
    Examined::new(&mut redis.redlock(&[&["doctor"], arguments].concat()))
}

/// Waits until an examination takes less than two seconds and is right: a busy machine may be late, but a doctor that
/// waits too long always is.
#[track_caller]
fn within_two_seconds(
    mut examine: impl FnMut() -> Examined,
    is_right: impl Fn(&Examined) -> bool,
) -> Examined {
    let mut latest = None;
    wait_until("doctor takes less than two seconds", || {
        let began = Instant::now();
        let examined = latest.insert(examine());
        began.elapsed() < Duration::from_secs(2) && is_right(examined)
    });
    latest.unwrap()
}

fn by_url(url: &str, options: &[&str]) -> Command {
    let mut command = redlock(&[&["-u", url], options, &["doctor"]].concat());
    command.env("HOME", "/nonexistent");
    command
}

#[track_caller]
fn set(redis: &Redis, name: &str, value: &str) {
    assert_eq!(redis.cli(&["CONFIG", "SET", name, value]), "OK");
}

#[track_caller]
fn assert_nothing_left(redis: &Redis) {
    wait_until("nothing is left", || redis.cli(&["KEYS", "*"]).is_empty());
}

#[test]
fn a_good_server_is_fit_and_doctor_leaves_nothing_there() {
    let redis = good();
    let examined = examine(&redis, &["deploy"]);
    let count = examined.checks.len();
    assert_eq!(examined.of("ok").len(), count, "{:?}", examined.end);
    let names: Vec<&str> = examined.checks.keys().map(String::as_str).collect();
    let expected = words!(
        "clocks cluster connection eviction hook latency messages name persistence pidfd proc replicas role \
         scripts secrets server settings tls url writes"
    );
    assert_eq!(names, expected);
    let document = &examined.document;
    assert_eq!(document["name"], "deploy");
    assert_eq!(document["ttl_ms"], 30_000);
    assert_eq!(
        (&document["failures"], &document["warnings"]),
        (&0.into(), &0.into())
    );
    let latency = &examined.checks["latency"]["facts"];
    assert!(latency["p50_us"].as_u64() <= latency["max_us"].as_u64());
    assert_nothing_left(&redis);

    let mut end = outcome(&mut redis.redlock(&["doctor", "deploy"]));
    wait_until("doctor has the time", || {
        let is_late = end.stdout.contains("Not checked");
        if is_late {
            end = outcome(&mut redis.redlock(&["doctor", "deploy"]));
        }
        !is_late
    });
    end.assert_code(0);
    for text in [
        "Redis at ",
        "\n  ok    eviction     noeviction",
        "\nfit to hold locks (",
    ] {
        assert!(end.stdout.contains(text), "{end:?}");
    }
    assert!(!end.stdout.contains('\x1b'), "{end:?}");
    // It is a new server, and doctor can't know whether it had locks before.
    assert!(!end.stdout.contains("restart"), "{end:?}");

    let end = outcome(&mut redis.redlock(&["-q", "doctor", "deploy"]));
    end.assert_code(0);
    assert_eq!(end.stdout, "", "{end:?}");
    for command in ["keys", "scan", "monitor"] {
        let own = u64::from(command == "keys");
        assert_eq!(redis.calls(command), own, "{command}");
    }
}

#[test]
fn doctor_finds_each_setting_of_a_server_with_the_line_that_repairs_it() {
    let directory = tempfile::tempdir().unwrap();
    let gone = directory.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let redis = Redis::with(&["--dir", gone.to_str().unwrap()]);
    let cli = format!("redis-cli -s {} CONFIG SET ", redis.socket().display());
    // Each state is set upon the one before: setting, then the finding.
    let states = format!(
        "save 1000; persistence warn: snapshots at most → {cli}appendonly yes
        maxmemory-policy allkeys-lru; eviction warn: as soon as maxmemory is set → {cli}maxmemory-policy noeviction
        maxmemory 100mb; eviction fail: evicts locks → {cli}maxmemory-policy noeviction
        maxmemory-policy noeviction; eviction ok: % of maxmemory
        maxmemory 1; eviction warn: grants no new lock → raise maxmemory
        maxmemory 1; writes fail: no memory left (maxmemory) → raise maxmemory
        maxmemory 0; writes ok: accepted
        min-replicas-to-write 1; writes fail: too few of its replicas → lower min-replicas
        min-replicas-to-write 0; writes ok: accepted"
    );
    let append = "persistence warn: none: a restart forgets all locks → appendonly yes";
    examine(&redis, &[]).says(append);
    for (setting, finding) in states.lines().filter_map(|line| line.split_once("; ")) {
        let (name, value) = setting.trim_start().split_once(' ').unwrap();
        set(&redis, name, &value.replace("1000", "1000 1000"));
        let examined = examine(&redis, &[]);
        examined.says(finding);
        if finding.contains(" ok: ") {
            examined.only("fail", "");
        }
    }
    // Its directory is gone, so it can't save.
    fs::remove_dir_all(&gone).unwrap();
    redis.cli(&["BGSAVE"]);
    wait_until("it could not save", || {
        redis
            .cli(&["INFO", "persistence"])
            .contains("rdb_last_bgsave_status:err")
    });
    let examined = examine(&redis, &[]);
    examined.says("writes fail: can't save its data to disk → its log says why");
    examined.says("persistence warn: the last snapshot failed → the server's log");
    assert_nothing_left(&redis);
}

/// Waits until a primary counts its replica as in sync.
#[track_caller]
fn await_sync(primary: &Redis) {
    wait_until("it is in sync", || {
        let info = primary.cli(&["INFO", "replication"]);
        info.contains("state=online") && !info.contains(",offset=0,")
    });
}

#[test]
fn a_replica_is_not_fit_and_doctor_names_its_primary() {
    let primary = good();
    let port = primary.port.to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    await_sync(&primary);
    let url = format!("--url redis://127.0.0.1:{port}");
    let examined = examine(&replica, &[]);
    examined.says(&format!(
        "role fail: a read-only replica of 127.0.0.1 → {url}"
    ));
    examined.says("writes fail: read-only replica → primary");
    // All other commands say so, too.
    outcome(&mut replica.redlock(&["run", "a", "--", "true"]))
        .assert_code(78)
        .assert_says("(`redlock doctor` shows more)");

    let examined = examine(&primary, &[]);
    examined.only("fail", "");
    examined.says("role ok: primary of 1 replica");
    examined.says("replicas ok: 1 in sync");
    // No run starts with these, so this server isn't fit.
    for (value, fix) in [("2", "lower REDLOCK_SYNC"), ("all", "REDLOCK_SYNC=1")] {
        let examined = examine(&primary, &[setting("REDLOCK_SYNC", value)]);
        examined.says(&format!("replicas fail: REDLOCK_SYNC → {fix}"));
    }
    examine(&primary, &[setting("REDLOCK_SYNC", "1")]).says("replicas ok: 1 in sync");
    // A writable replica is a second primary.
    set(&replica, "replica-read-only", "no");
    let both = "both grant the same lock";
    examine(&replica, &[]).says(&format!("role fail: {both} → make it read-only"));
    // A replica that waits for its first copy, which begins late, isn't in sync.
    set(&primary, "repl-diskless-sync-delay", "1000");
    let _late = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    wait_until("it is connected", || {
        primary
            .cli(&["INFO", "replication"])
            .contains("connected_slaves:2")
    });
    examine(&primary, &[]).says("replicas warn: 1 of 2 in sync → that replica's log");
}

/// The ACL rules of the manual, without those that a test of one database and of Redis 7 doesn't need.
const RULES: &str = "~redlock:* ~{redlock:* &{redlock:* +evalsha +eval +get +set +getrange +unlink +exists \
    +type +pttl +pexpire +time +hget +hmget +hset +hdel +hscan +zadd +zrem +zrange \
    +zrank +zscan +zscore +zcard +zrangebyscore +zremrangebyscore +lpush +ltrim +lrange +publish +subscribe \
    +client|tracking +client|caching +role +info +wait";

/// Rules without which waiters poll.
const OF_MESSAGES: &str = "&{redlock:* +publish +subscribe";

#[test]
fn doctor_names_each_missing_acl_rule_that_keeps_a_run_from_its_lock() {
    let redis = good();
    let url = format!("redis://jobs:hunter2@127.0.0.1:{}", redis.port);
    let all: Vec<&str> = RULES.split_whitespace().collect();
    let permit = |rules: &[&str]| {
        let user = words!("ACL SETUSER jobs reset on >hunter2 resetchannels");
        assert_eq!(redis.cli(&[user, rules].concat()), "OK");
        Examined::new(&mut by_url(&url, &[]))
    };
    // What the manual permits is enough.
    let examined = permit(&all);
    assert_eq!(examined.of("ok").len(), examined.checks.len());
    for missing in &all {
        let others: Vec<&str> = all.iter().copied().filter(|rule| rule != missing).collect();
        let examined = permit(&others);
        assert_nothing_left(&redis);
        let is_of_messages = OF_MESSAGES.split(' ').any(|rule| rule == *missing);
        if is_of_messages {
            examined.says(&format!("messages warn: waiters poll → {missing}"));
        }
        if *missing == "+info" {
            examined.says("eviction unknown: isn't permitted to run INFO");
        }
        let mut run = redlock(&["-u", &url, "run", "a", "--", "true"]);
        let end = outcome(run.env("HOME", "/nonexistent"));
        if end.code() == Some(0) {
            let warns = if is_of_messages { "messages" } else { "" };
            examined.only("warn", warns);
        } else {
            end.assert_code(77).assert_says("`redlock doctor`");
            examined.says("scripts fail: \"jobs\" isn't permitted to → ACL SETUSER jobs ");
            examined.says(&format!(
                "scripts fail:  → {}",
                missing.trim_end_matches('*')
            ));
        }
        redis.cli(&["FLUSHALL"]);
    }
    // A user that may only read isn't told to become another.
    make_acl_users(&redis);
    let url = format!("redis://viewer:secret@127.0.0.1:{}/1", redis.port);
    let examined = Examined::new(&mut by_url(&url, &[]));
    examined.says("scripts fail: isn't permitted → if it is to acquire locks");
    assert_nothing_left(&redis);
}

#[test]
fn a_server_without_a_command_is_found() {
    for disabled in ["EVAL", "HMGET"] {
        let redis = Redis::with(&["--rename-command", disabled, "other"]);
        let examined = examine(&redis, &[]);
        examined.says(&format!("scripts fail: {disabled} → rename-command"));
        examined.only("fail", "scripts");
        assert_nothing_left(&redis);
    }
    let redis = Redis::with(&["--rename-command", "HELLO", "other"]);
    let examined = examine(&redis, &[]);
    examined.says("messages warn: waiters poll → rename-command");
    examined.says("scripts ok: handed over");
    // A managed service that shows neither INFO nor its configuration.
    let redis = Redis::with(words!("--rename-command INFO i --rename-command CONFIG c"));
    let examined = examine(&redis, &[]);
    assert_eq!((examined.of("fail"), examined.of("warn")), (vec![], vec![]));
    examined.says("eviction unknown: doesn't have the command INFO");
    let undecided =
        "not known to be fit to hold locks: server, role, cluster, eviction not checked";
    let end = outcome(&mut redis.redlock(&["doctor"]));
    assert!(end.stdout.contains(undecided), "{end:?}");
    let end = outcome(&mut redis.redlock(&["-q", "doctor"]));
    end.assert_code(1);
    assert!(end.stdout.starts_with(undecided), "{end:?}");
}

#[test]
fn a_failed_connection_is_explained_with_the_origin_of_the_url() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    let (here, port) = (directory.path().display(), free_port());
    let states = format!(
        "redis://127.0.0.1:{port} connection start Redis there, or correct the address in the URL
        redis://nowhere.invalid connection correct the host in the URL
        unix://{here}/none connection start Redis, or correct the path in the URL
        redis-sentinel://127.0.0.1:{port}/main sentinels start Redis there, or correct the address"
    );
    for line in states.lines() {
        let (url, line) = line.trim_start().split_once(' ').unwrap();
        let (check, fix) = line.split_once(' ').unwrap();
        fs::write(&file, format!("REDLOCK_URL={url}\n")).unwrap();
        let doctor = || {
            let mut command = redlock(&["doctor"]);
            command.env("XDG_CONFIG_HOME", directory.path());
            command
        };
        let examined = Examined::new(&mut doctor());
        let message = examined.checks[check]["message"].as_str().unwrap();
        if message.contains("looked up") {
            // The machine has no name server that answers.
            continue;
        }
        examined.says(&format!("{check} fail:  → {fix}"));
        let origin = format!("the URL is from {}:1", file.display());
        assert_eq!(examined.checks[check]["facts"]["origin"], origin);
        assert!(!message.contains("the URL is from"), "{message}");
        let end = outcome(&mut doctor());
        let mut lines = end.stdout.lines().map(str::trim);
        assert!(lines.any(|line| line == origin), "{end:?}");
        let fix = format!("→ {fix}");
        assert!(lines.next().unwrap().starts_with(&fix), "{end:?}");
        let others = "all else, which needs a connection";
        assert!(end.stdout.contains(others), "{end:?}");
    }
    let redis = good();
    set(&redis, "requirepass", "hunter2");
    let examined = Examined::new(&mut by_url(&redis.tcp_url(), &[]));
    examined.says("connection fail: requires a password → REDLOCK_PASSWORD_FILE");
    let wrong = format!("redis://:hunter3@127.0.0.1:{}", redis.port);
    let examined = Examined::new(&mut by_url(&wrong, &[]));
    examined.says("connection fail: is wrong");
}

#[test]
fn doctor_ends_within_two_seconds_whatever_hangs() {
    let (redis, hook) = (good(), "sleep 9 & exec sleep 9");
    redis.stall();
    let silent = UnresponsiveServer::new();
    let hanging = |url: &str| {
        let mut command = by_url(url, &[setting("REDLOCK_REDIS_TIMEOUT", "10s")]);
        command.env("REDLOCK_HOOK", hook).arg("--json");
        command
    };
    let sentinel = silent.url().replace("redis://", "redis-sentinel://") + "/main";
    for (url, check) in [
        (redis.tcp_url(), "connection"),
        (redis.url(), "connection"),
        (silent.url(), "connection"),
        (sentinel, "sentinels"),
    ] {
        let examine = || Examined::once(&mut hanging(&url));
        let examined = within_two_seconds(examine, |_| true);
        examined.says(&format!("{check} fail: in time → firewall"));
        examined.says("hook warn: hasn't ended in time → time-out");
        examined.says("pidfd ok:");
    }
    redis.resume();
    // All else is checked meanwhile.
    let examine = || Examined::once(&mut hanging(&redis.tcp_url()));
    let examined = within_two_seconds(examine, |it| it.of("unknown").is_empty());
    examined.only("warn", "hook");
    // A sentinel that hangs beside others.
    let all = Replicated::start();
    all.sentinels[0].stall();
    let examine = || Examined::once(&mut hanging(&all.url()));
    let examined = within_two_seconds(examine, |it| it.of("unknown").is_empty());
    examined.says("sentinels warn: 2 of 3 agree on 127.0.0.1:");
    all.sentinels[0].resume();
}

#[test]
fn doctor_ends_in_time_and_leaves_nothing_if_the_connection_breaks() {
    // Side by side, as each waits most of the time.
    thread::scope(|scope| {
        for action in [Action::LoseReply, Action::Reset] {
            scope.spawn(move || ends_in_time_after(action));
        }
    });
}

/// Examines a server with this action on each operation in turn.
fn ends_in_time_after(action: Action) {
    let redis = good();
    let operations = "EXISTS INFO TIME HELLO acquire enqueue freeze release UNLINK";
    for operation in operations.split(' ') {
        let hook = move |request: &Request| {
            let is_it = request.operation == operation && request.before == 0;
            if is_it { action } else { Action::Pass }
        };
        let mut examined = None;
        // On a busy machine doctor may have no time for this operation.
        wait_until(operation, || {
            let proxy = Proxy::with(&redis, hook);
            let began = Instant::now();
            let mut command = by_url(&proxy.url(), &[setting("REDLOCK_REDIS_TIMEOUT", "500ms")]);
            examined = Some(Examined::once(command.arg("--json")));
            assert!(began.elapsed() < Duration::from_secs(20), "{operation}");
            proxy.count(operation) > 0
        });
        let examined = examined.unwrap();
        let is_whole = examined.of("unknown").is_empty() && examined.of("fail").is_empty();
        // Doctor asks these more than once.
        let is_repeated = ["TIME", "HELLO", "UNLINK"].contains(&operation);
        assert!(!is_whole || is_repeated, "{operation} {action:?}");
        assert_nothing_left(&redis);
    }
}

#[test]
fn on_a_slow_line_everything_is_checked_in_two_seconds() {
    let redis = good();
    let proxy = Proxy::with_round_trip(&redis, Duration::from_millis(50));
    let examine = || Examined::once(by_url(&proxy.url(), &[]).arg("--json"));
    let examined = within_two_seconds(examine, |it| it.of("unknown").is_empty());
    examined.says("messages ok:");
    let examined = Examined::new(by_url(&proxy.url(), &[]).args(["--ttl", "1s"]));
    examined.says("latency warn: p50  → --ttl ");
}

/// Returns the lines on a terminal of this many columns.
fn shown(redis: &Redis, columns: u16, arguments: &str) -> Vec<String> {
    let tmux = Tmux::with_size(redis, columns, 80);
    let (mut screen, mut tries) = (String::new(), 0);
    wait_until("doctor has the time", || {
        tries += 1;
        let command = format!("clear; redlock doctor {arguments}; echo 'en''d' {tries}");
        tmux.type_line(&command);
        tmux.line(&format!("end {tries}"));
        screen = tmux.screen();
        !screen.contains("Not checked")
    });
    let lines = screen.lines().take_while(|line| !line.starts_with("end "));
    lines.map(str::to_owned).collect()
}

#[test]
fn on_a_terminal_each_check_is_a_line_with_its_fix_below() {
    let redis = Redis::start();
    set(&redis, "maxmemory-policy", "allkeys-lru");
    let lines = shown(&redis, 80, "deploy");
    let at = |text: &str| {
        let line = lines.iter().position(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("{text:?}: {lines:#?}"))
    };
    let eviction = &lines[at("  eviction ")];
    assert!(eviction.starts_with("  warn  eviction     allkeys-lru"));
    assert!(lines[at("→ redis-cli")].starts_with(&" ".repeat(21)));
    assert!(at("The network") < at("The server") && at("The server") < at("This host"));
    at("fit to hold locks, 2 warnings");
    // On a narrow one the text stands below the name.
    let lines = shown(&redis, 40, "");
    let name = lines.iter().position(|line| line == "  ok    role");
    let name = name.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(lines[name + 1], "        primary of 0 replicas");
}

#[test]
fn a_message_about_which_doctor_knows_more_says_so() {
    let redis = Redis::start();
    set(&redis, "maxmemory", "1");
    let says = "(`redlock doctor` shows more)";
    let mut run = redis.redlock(&["run", "-w", "200ms", "a", "--", "true"]);
    outcome(&mut run).assert_code(69).assert_says(says);
    let mut run = redlock(&["-u", "nonsense", "run", "a", "--", "true"]);
    let end = outcome(run.env("HOME", "/nonexistent"));
    end.assert_code(78);
    assert!(!end.stderr.contains("doctor"), "{end:?}");
}

#[test]
fn doctor_checks_encryption() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    self_signed(dir, "ours", "20", "TRUE");
    let (redis, port) = encrypted(dir, "ours");
    let examine = |host: &str| {
        let ca = dir.join("ours.crt");
        let options = [setting("REDLOCK_TLS_CA", ca.to_str().unwrap())];
        Examined::new(&mut by_url(&format!("rediss://{host}:{port}"), &options))
    };
    examine("localhost").says("tls ok: valid for localhost");
    let examined = examine("127.0.0.1");
    let says = "not for 127.0.0.1, but for localhost";
    examined.says(&format!("tls fail: {says} → use one of its names"));
    examined.says("connection unknown:");
    examined.only("fail", "tls");
    // Without TLS a password is readable on the network. Nobody has this address.
    let password = dir.join("password");
    fs::write(&password, "hunter2\n").unwrap();
    let file = [setting("REDLOCK_PASSWORD_FILE", password.to_str().unwrap())];
    let sentinel = "redis-sentinel://192.0.2.1/m?sentinel_password=hunter2";
    let local = redis.tcp_url().replace("://", "://:hunter2@");
    for (url, options, level) in [
        ("redis://:hunter2@192.0.2.1", &[][..], "warn"),
        ("redis://192.0.2.1", &file, "warn"),
        (sentinel, &[], "warn"),
        ("redis://192.0.2.1", &[], "unknown"),
        ("rediss://:hunter2@192.0.2.1", &[], "unknown"),
        (&local, &file, "ok"),
    ] {
        let examined = Examined::once(by_url(url, options).arg("--json"));
        let fix = if level == "warn" { "rediss://" } else { "" };
        examined.says(&format!("tls {level}:  → {fix}"));
    }
}

#[test]
fn doctor_finds_a_key_of_another_program_at_a_locks_name() {
    let redis = good();
    redis.cli(&["HSET", "redlock:hash", "f", "v"]);
    redis.cli(&["SET", "redlock:forever", "x"]);
    redis.cli(&["SET", "redlock:foreign", "x", "PX", "60000"]);
    redis.cli(&["SET", "{redlock:beside}:queue", "x"]);
    outcome(&mut redis.redlock(&["freeze", "cold", "--reason", "x"])).assert_code(0);
    for (name, finding) in [
        (
            "hash",
            "fail: key redlock:hash is a hash → choose another name",
        ),
        ("beside", "fail: \"redlock:beside\" → choose another name"),
        (
            "forever",
            "fail: has no expiry → redlock release --force forever",
        ),
        ("foreign", "ok: held by another client; expires in 5"),
        ("free", "ok: \"free\" is free"),
        ("cold", "warn: frozen for → redlock thaw cold"),
    ] {
        let examined = examine(&redis, &[name]);
        examined.says(&format!("name {finding}"));
        let fails = finding.starts_with("fail").then_some("name");
        examined.only("fail", fails.unwrap_or_default());
    }
    // A name that no lock can have is a mistake.
    outcome(&mut redis.redlock(&["doctor", "a b"])).assert_code(64);
}

#[test]
fn on_a_cluster_a_prefix_without_a_hash_tag_fails_and_waiters_are_notified() {
    let cluster = Cluster::start(&[]);
    let examined = Examined::new(&mut cluster.redlock(&["doctor"]));
    examined.says("cluster ok: in slot");
    examined.says("messages ok: Redis notifies a waiter of its turn");
    examined.only("fail", "");
    let examined = examine(&cluster.nodes[0], &[]);
    let url = "--url redis-cluster://HOST:PORT";
    examined.says(&format!("cluster fail: redlock: has no hash tag → {url}"));
    for node in &cluster.nodes {
        assert_nothing_left(node);
    }
}

#[test]
fn sentinels_must_agree() {
    let all = Replicated::start();
    let primary = all.servers[all.primary()].port;
    let examined = Examined::new(&mut by_url(&all.url(), &[]));
    let agree = format!("3 of 3 agree on 127.0.0.1:{primary}");
    examined.says(&format!("sentinels ok: {agree}"));
    assert_eq!(examined.document["redis"], format!("127.0.0.1:{primary}"));
    let ports: Vec<u16> = all.sentinels.iter().map(|it| it.port).collect();
    let gone = free_port();
    let examined = Examined::new(&mut by_url(&all.url_at([ports[0], gone].into_iter()), &[]));
    let says = format!("1 of 2 agree on 127.0.0.1:{primary}: can't reach the sentinel at");
    examined.says(&format!("sentinels warn: {says} → start Redis there"));
    // A sentinel holds no locks.
    let examined = Examined::new(&mut by_url(&format!("redis://127.0.0.1:{}", ports[0]), &[]));
    let url = format!("--url redis-sentinel://127.0.0.1:{}/NAME", ports[0]);
    examined.says(&format!("server fail: holds none → {url}"));
    let nobody = all.url().replace(MASTER, "nobody");
    let examined = Examined::new(&mut by_url(&nobody, &[]));
    examined.says("sentinels fail: no primary with the name → SENTINEL MASTERS");
    // One that has missed a failover.
    let other = free_port().to_string();
    for words in [
        words!("SENTINEL REMOVE {}", MASTER),
        words!("SENTINEL MONITOR {} 127.0.0.1 {} 1", MASTER, &other),
    ] {
        assert_eq!(all.sentinels[1].cli(words), "OK");
    }
    let url = all.url_at(ports[..2].iter().copied());
    let examined = Examined::new(&mut by_url(&url, &[]));
    // Whichever answered first.
    examined.says(&format!("sentinels fail: 127.0.0.1:{other} → logs"));
}

#[test]
fn doctor_tests_the_hook_and_reports_its_status() {
    let redis = good();
    let file = redis.dir.path().join("told");
    let write = format!("env | grep ^REDLOCK >{}", file.display());
    let after = |hook: &str, event: &str| {
        let mut command = redis.redlock(&["doctor", "deploy"]);
        command.env("REDLOCK_HOOK", hook);
        Examined::new(command.env("REDLOCK_EVENT", event))
    };
    after(&write, "").says("hook ok: status 0");
    let told = fs::read_to_string(&file).unwrap();
    assert!(told.contains("REDLOCK_EVENT=test\n"), "{told}");
    assert!(told.contains("REDLOCK_NAME=deploy\n"), "{told}");
    assert!(!told.contains("REDLOCK_URL"), "{told}");
    after("exit 7", "").says("hook warn: ended with status 7 → by hand");
    after("kill -9 $$", "").says("hook warn: ended with status 137 → by hand");
    after("no-such-program", "").says("hook warn: ended with status 127 → by hand");
    // A hook that calls doctor doesn't call itself.
    after("exit 7", "ended").says("hook ok:");
}

#[test]
fn doctor_reports_unknown_and_removed_settings() {
    let redis = good();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    fs::write(&file, "REDLOCK_TTL=9s\nREDLOCK_NO_WAIT=1\n").unwrap();
    let mut command = redis.redlock(&["doctor"]);
    command.env("XDG_CONFIG_HOME", directory.path());
    let examined = Examined::new(&mut command);
    let removed = format!("{}:2: REDLOCK_NO_WAIT", file.display());
    examined.says(&format!("settings warn: {removed} → remove"));
    assert_eq!(examined.document["ttl_ms"], 9000);
    let mut command = redis.redlock(&["doctor"]);
    let examined = Examined::new(command.env("REDLOCK_TLT", "9s"));
    examined.says("settings warn: REDLOCK_TLT; did you mean REDLOCK_TTL? → correct");
}

#[test]
fn doctor_warns_of_a_kernel_without_pidfd_open() {
    let redis = good();
    let mut command = Command::new("strace");
    command.args(words!(
        "-f -o /dev/null -e inject=pidfd_open:error=ENOSYS {} doctor",
        REDLOCK
    ));
    command.env("REDLOCK_URL", redis.url());
    Examined::new(command.env("HOME", "/nonexistent")).says("pidfd warn: pidfd_open → Linux 5.3");
}

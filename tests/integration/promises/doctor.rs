//! `redlock doctor`: what is wrong with a server is found, with the evidence and what to type, in two
//! seconds; and of what it tries nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::generated::make_acl_users;
use crate::promises::config::openssl;
use crate::promises::trouble::{encrypted, self_signed};
use crate::support::proxy::{Action, Proxy, Request};
use crate::support::tmux::Tmux;
use crate::support::{
    Cluster, Outcome, Redis, Replicated, SERVER, UnresponsiveServer, free_port, outcome, redlock,
    wait_until,
};

/// The checks without which it isn't known whether a server is fit.
const DECIDING: [&str; 10] = [
    "connection",
    "server",
    "role",
    "cluster",
    "eviction",
    "writes",
    "commands",
    "permissions",
    "scripts",
    "name",
];

/// What the doctor says of each check.
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
        let mut found = Self::once(command.arg("--json"));
        wait_until("doctor has the time", || {
            let late = ["no answer in time", "there was no time left"];
            let is_late = late.iter().any(|it| found.end.stdout.contains(it));
            if is_late {
                found = Self::once(command);
            }
            !is_late
        });
        found
    }

    /// Examines once. The command has `--json`.
    #[track_caller]
    pub fn once(command: &mut Command) -> Self {
        let end = outcome(command);
        assert_eq!(end.stderr, "", "{end:?}");
        assert_eq!(end.stdout.lines().count(), 1, "{end:?}");
        let document: Value = serde_json::from_str(&end.stdout).unwrap();
        let checks = document["checks"].as_array().unwrap().iter();
        let name = |check: &Value| check["check"].as_str().unwrap().to_owned();
        let checks: BTreeMap<String, Value> =
            checks.map(|check| (name(check), check.clone())).collect();
        let failed = checks.values().any(|check| check["level"] == "fail");
        let is_undecided = |name: &&str| {
            let level = checks.get(*name).map(|check| &check["level"]);
            level.is_some_and(|level| level == "unknown")
        };
        let is_fit = !failed && !DECIDING.iter().any(is_undecided);
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

    /// The names of the checks of a level.
    pub fn of(&self, level: &str) -> Vec<&str> {
        let found = self.checks.iter();
        found
            .filter(|(_, check)| check["level"] == level)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    #[track_caller]
    pub fn assert(&self, check: &str, level: &str, says: &str, fix: &str) -> &Self {
        let found = &self.checks[check];
        assert_eq!(found["level"], level, "{found}");
        let contains = |part: &Value, text| part.as_str().unwrap_or_default().contains(text);
        assert!(contains(&found["message"], says), "{says:?}: {found}");
        assert!(contains(&found["fix"], fix), "{fix:?}: {found}");
        self
    }
}

/// A server that keeps what it has, so that nothing is to be said of it.
fn good() -> Redis {
    Redis::with(&["--appendonly", "yes"])
}

#[track_caller]
fn examine(redis: &Redis, arguments: &[&str]) -> Examined {
    Examined::new(&mut redis.redlock(&[&["doctor"], arguments].concat()))
}

/// What doctor prints for people, once it had the time.
#[track_caller]
fn page(command: impl Fn() -> Command) -> Outcome {
    let mut end = outcome(&mut command());
    wait_until("doctor has the time", || {
        let is_late = end.stdout.contains("Not checked");
        if is_late {
            end = outcome(&mut command());
        }
        !is_late
    });
    end
}

/// Waits until an examination takes less than two seconds and does so with this result: a busy machine may be late,
/// but a doctor that waits too long always is.
#[track_caller]
fn within_two_seconds(
    mut examine: impl FnMut() -> Examined,
    is_right: impl Fn(&Examined) -> bool,
) -> Examined {
    let mut found = None;
    wait_until("doctor takes less than two seconds", || {
        let began = Instant::now();
        let latest = examine();
        let is_in_time = began.elapsed() < Duration::from_secs(2) && is_right(&latest);
        found = Some(latest);
        is_in_time
    });
    found.unwrap()
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

/// All keys there are.
fn all_keys(redis: &Redis) -> String {
    redis.cli(&["KEYS", "*"])
}

#[test]
fn a_good_server_is_fit_all_checks_have_names_and_nothing_is_left_there() {
    let redis = good();
    let found = examine(&redis, &["deploy"]);
    assert_eq!(found.of("ok").len(), found.checks.len(), "{:?}", found.end);
    let names: Vec<&str> = found.checks.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "boottime",
            "clients",
            "clocks",
            "cluster",
            "commands",
            "connection",
            "eviction",
            "latency",
            "messages",
            "name",
            "packets",
            "pdeathsig",
            "permissions",
            "persistence",
            "pidfd",
            "proc",
            "program",
            "replicas",
            "role",
            "scripts",
            "secrets",
            "server",
            "settings",
            "subreaper",
            "sync",
            "timeouts",
            "tls",
            "tracking",
            "uptime",
            "url",
            "writes",
        ]
    );
    let document = &found.document;
    assert_eq!(document["name"], "deploy");
    assert_eq!(document["ttl_ms"], 30_000);
    assert_eq!(
        (&document["failures"], &document["warnings"]),
        (&0.into(), &0.into())
    );
    let latency = &found.checks["latency"]["facts"];
    assert!(latency["p50_us"].as_u64() <= latency["max_us"].as_u64());
    assert_eq!(all_keys(&redis), "");

    // For people the same, a line each.
    let end = page(|| redis.redlock(&["doctor", "deploy"]));
    end.assert_code(0);
    assert!(end.stdout.starts_with("Redis at "), "{end:?}");
    assert!(
        end.stdout.contains("\n  ok    eviction     noeviction"),
        "{end:?}"
    );
    assert!(end.stdout.contains("\nfit to hold locks ("), "{end:?}");
    assert!(!end.stdout.contains('\x1b'), "{end:?}");

    // And with -q nothing.
    let before = redis.calls("config|get");
    let end = outcome(&mut redis.redlock(&["-q", "doctor", "deploy"]));
    end.assert_code(0);
    assert_eq!(end.stdout, "", "{end:?}");

    // Neither is the server's work: it walks no keyspace, and asks for few parts of the configuration.
    for command in ["keys", "scan", "monitor", "config"] {
        let own = u64::from(command == "keys");
        assert_eq!(redis.calls(command), own, "{command}");
    }
    assert!(redis.calls("config|get") <= before + 3);
}

#[test]
fn doctor_finds_each_setting_of_a_server_with_the_line_that_mends_it() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    fs::create_dir(&gone).unwrap();
    let redis = Redis::with(&["--dir", gone.to_str().unwrap()]);
    let cli = format!("redis-cli -s {} CONFIG SET ", redis.socket().display());

    set(&redis, "maxmemory-policy", "allkeys-lru");
    let noeviction = format!("{cli}maxmemory-policy noeviction");
    examine(&redis, &[]).assert("eviction", "warn", "allkeys-lru", &noeviction);
    set(&redis, "maxmemory", "100mb");
    let found = examine(&redis, &[]);
    found.assert(
        "eviction",
        "fail",
        "a full server evicts locks",
        &noeviction,
    );
    assert_eq!(found.of("fail"), ["eviction"]);
    set(&redis, "maxmemory-policy", "noeviction");

    set(&redis, "maxmemory", "1");
    let found = examine(&redis, &[]);
    found.assert(
        "writes",
        "fail",
        "no memory left (maxmemory)",
        "raise maxmemory",
    );
    found.assert("eviction", "warn", "grants no new lock", "maxmemory");
    assert_eq!(found.of("unknown"), ["messages", "scripts", "tracking"]);
    set(&redis, "maxmemory", "0");

    set(&redis, "min-replicas-to-write", "1");
    examine(&redis, &[]).assert(
        "writes",
        "fail",
        "too few of its replicas",
        "lower min-replicas-to-write",
    );
    set(&redis, "min-replicas-to-write", "0");

    set(&redis, "timeout", "5");
    examine(&redis, &[]).assert(
        "timeouts",
        "warn",
        "idle for 5s",
        &format!("{cli}timeout 0"),
    );
    set(&redis, "timeout", "0");
    examine(&redis, &["--ttl", "3s"]).assert("timeouts", "warn", "--connect-timeout 2s", "1s");

    let append = format!("{cli}appendonly yes");
    // The server was started less than an hour ago, however slow the machine is.
    let found = examine(&redis, &["--ttl", "1h"]);
    found.assert(
        "persistence",
        "warn",
        "none: a restart forgets all locks",
        &append,
    );
    found.assert(
        "uptime",
        "warn",
        "the server may have forgotten locks",
        "wait ",
    );
    // Its directory is gone, so it can't save.
    set(&redis, "save", "1000 1000");
    examine(&redis, &[]).assert("persistence", "warn", "snapshots only", &append);
    fs::remove_dir_all(&gone).unwrap();
    redis.cli(&["BGSAVE"]);
    wait_until("it could not save", || {
        let info = redis.cli(&["INFO", "persistence"]);
        info.contains("rdb_last_bgsave_status:err")
    });
    let found = examine(&redis, &[]);
    found.assert(
        "writes",
        "fail",
        "can't save its data to disk",
        "its log says why",
    );
    found.assert(
        "persistence",
        "warn",
        "the last snapshot failed",
        "the server's log",
    );
    assert_eq!(all_keys(&redis), "");
}

/// Waits until a replica has what the primary has, and has said so: a new one does that each second only.
#[track_caller]
fn await_sync(primary: &Redis, replica: &Redis) {
    wait_until("it is in sync", || {
        let info = primary.cli(&["INFO", "replication"]);
        let confirms = info.contains("state=online") && !info.contains(",offset=0,");
        confirms && replica.cli(&["GET", "x"]).is_empty()
    });
}

#[test]
fn a_replica_is_no_place_for_locks_and_its_primary_is_named() {
    let primary = good();
    let port = primary.port.to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    await_sync(&primary, &replica);
    let found = examine(&replica, &[]);
    let url = format!("--url redis://127.0.0.1:{port}");
    found.assert("role", "fail", "a read-only replica of 127.0.0.1", &url);
    assert_eq!(found.of("fail"), ["role"]);
    // It says so to all who come by, too.
    outcome(&mut replica.redlock(&["run", "a", "--", "true"]))
        .assert_code(78)
        .assert_says("(`redlock doctor` shows more)");

    let found = examine(&primary, &[]);
    assert_eq!(found.of("fail"), [""; 0]);
    found.assert("role", "ok", "primary of 1 replica", "");
    found.assert("sync", "ok", "`--sync 1` is possible", "");
    found.assert("replicas", "ok", "1 in sync", "");
    found.assert(
        "clocks",
        "ok",
        "the clocks of the other servers agree within",
        "",
    );
    let place = format!("127.0.0.1:{}", replica.port);
    let keeps_none = format!("replica {place} keeps none");
    found.assert(
        "persistence",
        "warn",
        &keeps_none,
        "appendonly yes on that replica",
    );
    set(&replica, "maxmemory-policy", "allkeys-lru");
    let evicts = format!("replica {place} may evict locks");
    examine(&primary, &[]).assert("eviction", "warn", &evicts, "noeviction on that replica");
    // One that accepts writes is a second primary.
    set(&replica, "replica-read-only", "no");
    examine(&replica, &[]).assert(
        "role",
        "fail",
        "both grant the same lock",
        "make it read-only",
    );
    set(&replica, "replica-priority", "0");
    examine(&primary, &[]).assert(
        "replicas",
        "warn",
        "none can be promoted",
        "replica-priority 100",
    );
    // One that hangs is not waited for.
    replica.stall();
    let found = Examined::once(&mut primary.redlock(&["doctor", "--json"]));
    found.assert(
        "sync",
        "warn",
        "0 of 1 replica confirm",
        "why the others lag",
    );
    found.assert("clocks", "ok", "the clock of 127.0.0.1", "");
    replica.resume();
}

/// The rules of the manual.
const RULES: &str = "~redlock:* ~{redlock:* &{redlock:* +evalsha +eval +get +set +getrange +unlink +exists \
    +type +pttl +pexpire +time +hget +hmget +hset +hdel +hscan +zadd +zrem +zrange \
    +zrank +zscan +zscore +zcard +zrangebyscore +zremrangebyscore +lpush +ltrim +lrange +publish +subscribe \
    +client|tracking +client|caching +role +info +wait";

/// Those that redlock can do without.
const HELPFUL: [&str; 8] = [
    "&{redlock:*",
    "+publish",
    "+subscribe",
    "+client|tracking",
    "+client|caching",
    "+role",
    "+info",
    "+wait",
];

#[test]
fn each_rule_of_the_access_list_that_is_missing_is_named() {
    let redis = good();
    let url = format!("redis://jobs:hunter2@127.0.0.1:{}", redis.port);
    let all: Vec<&str> = RULES.split_whitespace().collect();
    let manual = fs::read_to_string("man/redlock-protocol.7").unwrap();
    for rule in &all {
        assert!(manual.contains(rule), "{rule}");
    }
    let permit = |rules: &[&str]| {
        let user = words!("ACL SETUSER jobs reset on >hunter2 resetchannels");
        assert_eq!(redis.cli(&[user, rules].concat()), "OK");
    };
    permit(&[&all[..], &["+config|get"]].concat());
    let found = Examined::new(&mut by_url(&url, &[]));
    assert_eq!(found.of("ok").len(), found.checks.len(), "{:?}", found.end);

    // What the manual permits is enough for locks, and for all that decides.
    permit(&all);
    let found = Examined::new(&mut by_url(&url, &[]));
    assert_eq!(
        (found.of("fail"), found.of("warn")),
        (vec![], vec![]),
        "{:?}",
        found.end
    );
    assert_eq!(found.of("unknown"), [""; 0], "{:?}", found.end);

    for missing in &all {
        let others: Vec<&str> = all.iter().copied().filter(|rule| rule != missing).collect();
        permit(&others);
        let found = Examined::new(&mut by_url(&url, &[]));
        let level = if HELPFUL.contains(missing) {
            "warn"
        } else {
            "fail"
        };
        let rule = missing.replace('\'', "");
        found.assert("permissions", level, &rule, "ACL SETUSER jobs ");
        let named = &found.checks["permissions"]["facts"]["missing"];
        assert_eq!(named, &Value::from(vec![*missing]), "{missing}");
        assert!(!found.end.stdout.contains("hunter2"));
        assert_eq!(all_keys(&redis), "", "{missing}");

        // A run either does without it, or says that doctor knows.
        let mut run = redlock(&["-u", &url, "run", "a", "--", "true"]);
        let end = outcome(run.env("HOME", "/nonexistent"));
        if end.code() != Some(0) {
            end.assert_code(77).assert_says("`redlock doctor`");
            assert_eq!(level, "fail", "{missing}");
        }
        redis.cli(&["FLUSHALL"]);
    }
    for (missing, slower) in [("+publish", "messages"), ("+client|caching", "tracking")] {
        let others: Vec<&str> = all
            .iter()
            .copied()
            .filter(|rule| *rule != missing)
            .collect();
        permit(&others);
        let found = Examined::new(&mut by_url(&url, &[]));
        found.assert(slower, "warn", "", "(permissions)");
        found.assert("permissions", "warn", missing, missing);
    }
}

#[test]
fn a_user_without_permissions_is_not_fit_and_asked_a_bounded_number_of_questions() {
    let redis = good();
    redis.cli(&["ACL", "SETUSER", "nobody", "reset", "on", ">secret"]);
    let url = format!("redis://nobody:secret@127.0.0.1:{}", redis.port);
    let refused = || -> u64 {
        let stats = redis.cli(&["INFO", "commandstats"]);
        let counts = stats.split("rejected_calls=").skip(1);
        let number = |rest: &str| rest.split(',').next()?.parse::<u64>().ok();
        counts.filter_map(number).sum()
    };
    let found = Examined::new(&mut by_url(&url, &[]));
    assert_eq!(found.document["fit"], false);
    found.assert(
        "permissions",
        "fail",
        "lacks +set",
        "ACL SETUSER nobody +set",
    );
    let before = refused();
    Examined::once(by_url(&url, &[]).arg("--json"));
    let questions = refused() - before;
    assert!(questions < 150, "{questions} questions");
    // Nor is one that is let in and told nothing.
    let redis = Redis::with(&["--rename-command", "INFO", "other"]);
    let found = examine(&redis, &[]);
    assert_eq!(found.document["fit"], false);
    assert_eq!(found.document["failures"], 0);
}

#[test]
fn a_user_that_may_only_look_is_told_so_and_not_how_to_become_another() {
    let redis = good();
    make_acl_users(&redis);
    let url = format!("redis://viewer:secret@127.0.0.1:{}/1", redis.port);
    let found = Examined::new(&mut by_url(&url, &[]));
    let says =
        "user \"viewer\" can read locks (status, history), but isn't permitted to acquire any";
    found.assert("permissions", "fail", says, "ignore this if it is intended");
    assert_eq!(found.of("fail"), ["permissions"]);
    assert!(!found.end.stdout.contains("SETUSER"), "{:?}", found.end);
    let url = format!("redis://jobs:secret@127.0.0.1:{}", redis.port);
    let found = Examined::new(&mut by_url(&url, &[]));
    assert_eq!(found.document["fit"], true, "{:?}", found.end);
}

#[test]
fn the_origin_of_an_unreachable_servers_url_is_a_line_of_the_finding_and_not_a_fix() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    let sentinels = format!("redis-sentinel://127.0.0.1:{}/main", free_port());
    for (url, check, fix) in [
        (
            format!("redis://127.0.0.1:{}", free_port()),
            "connection",
            "start Redis there, or correct the address in the URL",
        ),
        (
            "redis://nowhere.invalid".into(),
            "connection",
            "correct the host in the URL",
        ),
        (
            format!("unix://{}/none", directory.path().display()),
            "connection",
            "start Redis, or correct the path in the URL",
        ),
        (
            sentinels,
            "sentinels",
            "start them, or correct their addresses",
        ),
    ] {
        fs::write(&file, format!("REDLOCK_URL={url}\n")).unwrap();
        let doctor = || {
            let mut command = redlock(&["doctor"]);
            command.env("XDG_CONFIG_HOME", directory.path());
            command
        };
        let found = Examined::new(&mut doctor());
        if found.checks[check]["message"]
            .as_str()
            .unwrap()
            .contains("looked up")
        {
            // The machine has no name server that answers.
            continue;
        }
        found.assert(check, "fail", "", fix);
        let origin = format!("the URL is from {}:1", file.display());
        assert_eq!(found.checks[check]["facts"]["origin"], origin);
        let both = ["message", "fix"].map(|part| found.checks[check][part].to_string());
        assert!(!both.concat().contains("the URL is from"), "{both:?}");
        let end = outcome(&mut doctor());
        let lines: Vec<&str> = end.stdout.lines().collect();
        let at = |text: &str| {
            lines
                .iter()
                .position(|line| line.contains(text))
                .expect(text)
        };
        assert_eq!(at(&origin) + 1, at(&format!("→ {fix}")), "{end:?}");
        assert_eq!(lines[at(&origin)].trim(), origin);
    }
}

#[test]
fn commands_that_were_disabled_are_named() {
    for (disabled, named) in [("EVAL", "EVAL is missing"), ("HMGET", "HMGET is missing")] {
        let redis = Redis::with(&["--rename-command", disabled, "other"]);
        let found = examine(&redis, &[]);
        found.assert("commands", "fail", named, "rename-command");
        assert_eq!(found.of("fail"), ["commands"]);
    }
    // Without RESP3 waiters poll, and all else goes on.
    let redis = Redis::with(&["--rename-command", "HELLO", "other"]);
    let found = examine(&redis, &[]);
    found.assert("messages", "warn", "unknown command", "Redis 6 or later");
    found.assert("tracking", "warn", "every 10s", "Redis 6 or later");
    found.assert("scripts", "ok", "handed over", "");
    // A managed service that shows neither INFO nor its configuration.
    let redis = Redis::with(words!("--rename-command INFO i --rename-command CONFIG c"));
    let found = examine(&redis, &[]);
    assert_eq!(
        (found.of("fail"), found.of("warn")),
        (vec![], vec![]),
        "{:?}",
        found.end
    );
    found.assert("eviction", "unknown", "the server has no INFO", "");
    let end = outcome(&mut redis.redlock(&["doctor"]));
    let undecided =
        "not known to be fit to hold locks: server, role, cluster, eviction not checked";
    assert!(end.stdout.contains(undecided), "{end:?}");
    let end = outcome(&mut redis.redlock(&["-q", "doctor"]));
    end.assert_code(1);
    assert!(end.stdout.starts_with(undecided), "{end:?}");
}

#[test]
fn a_certificate_that_ends_soon_and_one_for_another_name_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    self_signed(dir, "fresh", "20", "TRUE");
    let (_redis, port) = encrypted(dir, "fresh");
    let examine = |host: &str, port: u16, name: &str| {
        let ca = dir.join(format!("{name}.crt"));
        let options = ["--tls-ca", ca.to_str().unwrap()];
        Examined::new(&mut by_url(&format!("rediss://{host}:{port}"), &options))
    };
    let found = examine("localhost", port, "fresh");
    found.assert(
        "tls",
        "ok",
        "the certificate for localhost is valid for ",
        "",
    );
    let found = examine("127.0.0.1", port, "fresh");
    found.assert(
        "tls",
        "fail",
        "not for 127.0.0.1, but for localhost",
        "use one of its names",
    );
    assert_eq!(found.of("fail"), ["tls"]);
    found.assert("connection", "unknown", "", "");

    for (name, from, until, level, says) in [
        ("soon", "-80 days", "+10 days", "warn", "expires in "),
        ("over", "-80 days", "-1 days", "fail", "has expired"),
    ] {
        signed_for(dir, name, from, until);
        let (_redis, port) = encrypted(dir, name);
        let found = examine("localhost", port, name);
        found.assert("tls", level, says, "renew");
    }
}

/// A certificate that signs itself, valid between these days.
fn signed_for(dir: &Path, name: &str, from: &str, until: &str) {
    let day = |when: &str| {
        let date = Command::new("date")
            .args(["-u", "-d", when, "+%Y%m%d%H%M%SZ"])
            .output();
        String::from_utf8(date.unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    };
    let config = "[ca]\ndefault_ca = own\n[own]\ndatabase = index\nserial = serial\nnew_certs_dir = .\n\
        default_md = sha256\npolicy = any\nx509_extensions = names\n[any]\ncommonName = supplied\n\
        [names]\nsubjectAltName = DNS:localhost\nbasicConstraints = CA:TRUE\n";
    fs::write(dir.join("ca.conf"), config).unwrap();
    fs::write(dir.join("index"), "").unwrap();
    fs::write(dir.join("serial"), "01\n").unwrap();
    openssl(
        dir,
        &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"),
    );
    let (from, until) = (day(from), day(until));
    openssl(
        dir,
        &format!(
            "ca -batch -notext -config ca.conf -selfsign -keyfile {name}.key -in {name}.csr -startdate {from} -enddate {until} -out {name}.crt"
        ),
    );
}

#[test]
fn doctor_finds_a_key_of_another_program_under_the_given_name() {
    let redis = good();
    redis.cli(&["HSET", "redlock:hash", "f", "v"]);
    redis.cli(&["LPUSH", "redlock:list", "v"]);
    redis.cli(&["SET", "redlock:forever", "x"]);
    redis.cli(&["SET", "redlock:foreign", "x", "PX", "60000"]);
    redis.cli(&["SET", "{redlock:beside}:queue", "x"]);
    for (name, level, says, fix) in [
        (
            "hash",
            "fail",
            "key redlock:hash is a hash of another program",
            "choose another name or --prefix",
        ),
        (
            "list",
            "fail",
            "is a list of another program",
            "choose another name or --prefix",
        ),
        (
            "beside",
            "fail",
            "key {redlock:beside}:queue is a string",
            "may still need",
        ),
        (
            "forever",
            "fail",
            "has no expiry",
            "redlock release --force forever",
        ),
        ("foreign", "ok", "held by another client; expires in 5", ""),
        ("free", "ok", "\"free\" is free", ""),
    ] {
        let found = examine(&redis, &[name]);
        found.assert("name", level, says, fix);
        assert_eq!(
            found.of("fail").len(),
            usize::from(level == "fail"),
            "{:?}",
            found.end
        );
    }
    outcome(&mut redis.redlock(&["freeze", "cold", "--reason", "x"])).assert_code(0);
    examine(&redis, &["cold"]).assert("name", "warn", "frozen for", "redlock thaw cold");
    // A name that no lock can have is a mistake.
    outcome(&mut redis.redlock(&["doctor", "a b"])).assert_code(64);
}

#[test]
fn on_a_cluster_a_prefix_without_a_hash_tag_fails() {
    let bus = free_port().to_string();
    let node = Redis::with(words!(
        "--cluster-enabled yes --cluster-port {} --appendonly yes",
        &bus
    ));
    node.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until("the cluster is up", || {
        node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    let found = examine(&node, &[]);
    found.assert(
        "cluster",
        "fail",
        "redlock: has no hash tag",
        "--url redis-cluster://HOST:PORT",
    );
    let found = examine(&node, &["--prefix", "{redlock}:"]);
    found.assert("cluster", "ok", "in one hash slot", "");
    assert_eq!(found.of("fail"), [""; 0], "{:?}", found.end);
    assert_eq!(all_keys(&node), "");
}

#[test]
fn on_a_cluster_a_waiter_is_notified_and_the_rules_for_that_are_tried() {
    let cluster = Cluster::start(&[]);
    let found = Examined::new(&mut cluster.redlock(&["doctor"]));
    found.assert("messages", "ok", "Redis notifies a waiter of its turn", "");
    assert_eq!(found.checks["messages"]["facts"]["polls"], false);
    assert_eq!(found.of("fail"), [""; 0], "{:?}", found.end);

    let rules = RULES.replace(
        "~redlock:* ~{redlock:* &{redlock:*",
        "~{redlock}:* &{redlock}:*",
    );
    let rules = rules + " +ssubscribe +spublish +cluster|nodes +asking";
    let url = cluster.url().replace("://", "://jobs:secret@");
    for missing in ["", "+ssubscribe", "+spublish", "+cluster|nodes", "+asking"] {
        for node in &cluster.nodes {
            let set = [
                "ACL",
                "SETUSER",
                "jobs",
                "reset",
                "on",
                ">secret",
                "resetchannels",
            ];
            let rules = rules.split_whitespace().filter(|rule| *rule != missing);
            let set: Vec<&str> = set.into_iter().chain(rules).collect();
            assert_eq!(node.cli(&set), "OK");
        }
        let found = Examined::new(&mut by_url(&url, &[]));
        let level = if missing.is_empty() { "ok" } else { "warn" };
        found.assert("permissions", level, missing, missing);
    }
}

#[test]
fn where_there_is_no_way_in_the_reason_is_said_and_two_seconds_are_enough() {
    let redis = good();
    redis.stall();
    let silent = UnresponsiveServer::new();
    for url in [redis.tcp_url(), redis.url(), silent.url()] {
        let examine = || Examined::once(by_url(&url, &[]).arg("--json"));
        let found = within_two_seconds(examine, |_| true);
        found.assert("connection", "fail", "no answer in time", "firewall");
        assert_eq!(found.of("fail"), ["connection"]);
        found.assert("pidfd", "ok", "", "");
    }
    redis.resume();
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let found = Examined::new(&mut by_url(&nowhere, &[]));
    found.assert("connection", "fail", "connection refused", "start Redis");
    outcome(&mut by_url(&nowhere, &[]))
        .assert_code(1)
        .assert_silent_on_stderr("all else, which needs a connection");
    set(&redis, "requirepass", "hunter2");
    let found = Examined::new(&mut by_url(&redis.tcp_url(), &[]));
    found.assert(
        "connection",
        "fail",
        "requires a password",
        "--password-file",
    );
    let wrong = format!("redis://:hunter3@127.0.0.1:{}", redis.port);
    let found = Examined::new(&mut by_url(&wrong, &[]));
    found.assert("connection", "fail", "is wrong", "");
    assert!(!found.end.stdout.contains("hunter"), "{:?}", found.end);
}

impl Outcome {
    /// It printed this text, and nothing on stderr.
    #[track_caller]
    fn assert_silent_on_stderr(&self, text: &str) {
        assert!(
            self.stderr.is_empty() && self.stdout.contains(text),
            "{self:?}"
        );
    }
}

#[test]
fn however_the_conversation_breaks_off_it_ends_in_time_and_nothing_is_left() {
    // Side by side, as each waits most of the time. With an answer that is lost, so is all that is asked over
    // the same connection after it.
    thread::scope(|scope| {
        for action in [Action::LoseReply, Action::Reset] {
            scope.spawn(move || ends_in_time_after(action));
        }
    });
}

/// Examines a server with this action on each operation in turn.
fn ends_in_time_after(action: Action) {
    let redis = good();
    for operation in [
        "EXISTS", "INFO", "TIME", "SET", "LPUSH", "HELLO", "acquire", "enqueue", "freeze",
        "release", "UNLINK", "TYPE",
    ] {
        let hook = move |request: &Request| {
            if request.operation == operation && request.before == 0 {
                action
            } else {
                Action::Pass
            }
        };
        let mut found = None;
        // On a busy machine doctor may have no time for this.
        wait_until(operation, || {
            let proxy = Proxy::with(&redis, hook);
            let began = Instant::now();
            let mut command = by_url(&proxy.url(), &["--connect-timeout", "500ms"]);
            found = Some(Examined::once(command.arg("--json")));
            let took = began.elapsed();
            assert!(took < Duration::from_secs(20), "{operation}: {took:?}");
            proxy.count(operation) > 0
        });
        let found = found.unwrap();
        let is_whole = found.of("unknown").is_empty() && found.of("fail").is_empty();
        // Of those there are others.
        let matters = !["TIME", "HELLO"].contains(&operation);
        assert!(
            !is_whole || !matters,
            "{operation} {action:?}: {:?}",
            found.end
        );
        wait_until("nothing is left", || all_keys(&redis).is_empty());
    }
}

#[test]
fn on_a_slow_line_all_is_checked_in_two_seconds() {
    let redis = good();
    let proxy = Proxy::with_round_trip(&redis, Duration::from_millis(50));
    let examine = || Examined::once(by_url(&proxy.url(), &[]).arg("--json"));
    let found = within_two_seconds(examine, |found| found.of("unknown").is_empty());
    found.assert("messages", "ok", "", "");
    found.assert("tracking", "ok", "", "");
    let found = Examined::new(by_url(&proxy.url(), &[]).args(["--ttl", "1s"]));
    found.assert("latency", "warn", "p50 ", "--ttl ");
}

/// What is seen on a terminal of this many columns.
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
fn on_a_terminal_each_check_is_a_line_and_the_fix_stands_below_it() {
    let redis = Redis::start();
    set(&redis, "maxmemory-policy", "allkeys-lru");
    let lines = shown(&redis, 80, "deploy");
    let at = |text: &str| {
        let found = lines.iter().position(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("{text:?}: {lines:#?}"))
    };
    assert!(
        lines[at("  eviction ")].starts_with("  warn  eviction     allkeys-lru"),
        "{lines:#?}"
    );
    assert!(
        lines[at("→ redis-cli")].starts_with(&" ".repeat(21)),
        "{lines:#?}"
    );
    assert!(at("The network") < at("The server") && at("The server") < at("This host"));
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("fit to hold locks, 3 warnings"))
    );
    // In a narrow one the text stands below the name.
    let lines = shown(&redis, 40, "");
    let name = lines.iter().position(|line| line == "  ok    role");
    let name = name.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(lines[name + 1], "        primary, without replicas");
}

#[test]
fn a_message_of_which_doctor_knows_more_says_so() {
    let redis = Redis::start();
    set(&redis, "maxmemory", "1");
    let says = "(`redlock doctor` shows more)";
    let mut run = redis.redlock(&["run", "-w", "200ms", "a", "--", "true"]);
    outcome(&mut run).assert_code(69).assert_says(says);
    let mut run = redlock(&["-u", "redis://127.0.0.1:1", "run", "a", "--", "true"]);
    outcome(run.env("HOME", "/nonexistent"))
        .assert_code(69)
        .assert_says(says);
    // What is wrong in what was typed, it doesn't.
    let mut run = redlock(&["-u", "nonsense", "run", "a", "--", "true"]);
    let end = outcome(run.env("HOME", "/nonexistent"));
    end.assert_code(78);
    assert!(!end.stderr.contains("doctor"), "{end:?}");
}

/// A way to a server on which all is lost from the first full packet of an answer on.
fn way_of_small_packets(redis: &Redis) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, server) = (listener.local_addr().unwrap().port(), redis.port);
    thread::spawn(move || {
        for mut near in listener.incoming().flatten() {
            let mut far = TcpStream::connect(("127.0.0.1", server)).unwrap();
            let (mut up, mut down) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut up, &mut far));
            thread::spawn(move || {
                let (mut bytes, mut is_lost) = ([0; 16384], false);
                while let Ok(read @ 1..) = down.read(&mut bytes) {
                    is_lost |= read > 1400;
                    if !is_lost && near.write_all(&bytes[..read]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn full_packets_that_are_lost_are_named_within_two_seconds() {
    let redis = good();
    let url = format!("redis://127.0.0.1:{}", way_of_small_packets(&redis));
    let ask = || Examined::once(by_url(&url, &[]).arg("--json"));
    let found = within_two_seconds(ask, |found| found.of("fail") == ["packets"]);
    found.assert("connection", "ok", "connected", "");
    found.assert("packets", "fail", "one of 4 kB doesn't", "MTU");
    assert_eq!(found.of("fail"), ["packets"], "{:?}", found.end);
    examine(&redis, &[]).assert("packets", "ok", "arrives", "");
}

#[test]
fn a_url_of_too_few_sentinels_for_sync_all_warns() {
    let all = Replicated::start();
    let first = all.sentinels[..1].iter().map(|sentinel| sentinel.port);
    let url = all.url_at(first);
    let found = Examined::new(&mut by_url(&url, &[]));
    let names = "the URL names 1 of the 3 sentinels";
    found.assert("sync", "warn", names, "add the others to the URL");
    outcome(&mut all.redlock(words!("--url {} run --sync all a -- true", &url))).assert_code(78);
    all.settle(0);
    let found = Examined::new(&mut by_url(&all.url(), &[]));
    found.assert("sync", "ok", "`--sync all` is possible: 2 replicas", "");
}

/// A sentinel that watches a primary, gone when dropped.
pub struct Sentinel {
    process: Child,
    pub port: u16,
    _dir: tempfile::TempDir,
}

impl Sentinel {
    pub fn of(primary: &Redis, quorum: u32, down_after_ms: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (port, file) = (free_port(), dir.path().join("sentinel.conf"));
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor mymaster 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds mymaster {down_after_ms}\n",
            dir.path().display(),
            primary.port
        );
        fs::write(&file, config).unwrap();
        let process = SERVER
            .command()
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the sentinel listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Self {
            process,
            port,
            _dir: dir,
        }
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn sentinels_are_asked_whether_they_agree_and_whether_a_failover_is_over_in_time() {
    let (primary, other) = (good(), good());
    let port = primary.port.to_string();
    let replica = Redis::with(&["--replicaof", "127.0.0.1", &port]);
    await_sync(&primary, &replica);
    let first = Sentinel::of(&primary, 1, 5000);
    let examine = |hosts: &[u16], name: &str, options: &[&str]| {
        let hosts: Vec<String> = hosts
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let url = format!("redis-sentinel://{}/{name}", hosts.join(","));
        Examined::new(by_url(&url, &[]).args(options))
    };
    let found = examine(&[first.port], "mymaster", &[]);
    let agree = format!("1 of 1 agree on 127.0.0.1:{port}; 1 sentinel in all");
    found.assert("sentinels", "warn", &agree, "three or more");
    found.assert("failover", "ok", "begins 5s after the primary's death", "");
    found.assert("sync", "ok", "`--sync all` is possible", "");
    found.assert("role", "ok", "primary of 1 replica", "");
    assert_eq!(found.document["redis"], format!("127.0.0.1:{port}"));
    let found = examine(&[first.port], "mymaster", &["--ttl", "20s"]);
    let longer = "--ttl 21s (REDLOCK_TTL), or 31s with `--sync all`";
    found.assert(
        "failover",
        "warn",
        "leases of 20s may end before that failover is over",
        longer,
    );
    // The replica calls itself a primary: the sentinel still lists it.
    wait_until("the sentinel lists the replica", || {
        let mut cli = Command::new("redis-cli");
        cli.args(["-p", &first.port.to_string()]);
        let listed = cli.args(["SENTINEL", "REPLICAS", "mymaster"]).output();
        let listed = String::from_utf8_lossy(&listed.unwrap().stdout).into_owned();
        listed.contains(&replica.port.to_string())
    });
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    let found = examine(&[first.port], "mymaster", &[]);
    let both = format!("and 127.0.0.1:{port} are both primaries");
    found.assert("role", "fail", &both, "make one of them a replica");
    assert_eq!(found.of("fail"), ["role"]);

    let gone = free_port();
    let found = examine(&[first.port, gone], "mymaster", &[]);
    found.assert(
        "sentinels",
        "warn",
        &format!("127.0.0.1:{gone} gives no answer"),
        "start it",
    );
    let found = examine(&[gone], "mymaster", &[]);
    found.assert("sentinels", "fail", "none of 1 answers", "start them");
    assert_eq!(found.of("fail"), ["sentinels"]);
    // It holds no locks itself.
    let found = Examined::new(&mut by_url(
        &format!("redis://127.0.0.1:{}", first.port),
        &[],
    ));
    let url = format!("--url redis-sentinel://127.0.0.1:{}/NAME", first.port);
    found.assert("server", "fail", "holds none", &url);
    assert_eq!(found.of("fail"), ["server"], "{:?}", found.end);
    let found = examine(&[first.port], "nobody", &[]);
    found.assert(
        "sentinels",
        "fail",
        "no primary with the name",
        "SENTINEL MASTERS",
    );
    // One that has missed a failover.
    let second = Sentinel::of(&other, 1, 5000);
    let found = examine(&[first.port, second.port], "mymaster", &[]);
    found.assert(
        "sentinels",
        "fail",
        &format!("says 127.0.0.1:{}", other.port),
        "logs",
    );
    assert_eq!(all_keys(&primary), "");
}

#[test]
fn another_program_called_redlock_on_the_path_is_a_warning_and_a_link_to_this_one_is_not() {
    let redis = good();
    let directory = redis.dir.path().join("bin");
    fs::create_dir(&directory).unwrap();
    let path = format!("{}:{}", directory.display(), crate::support::path());
    let examine = || Examined::new(redis.redlock(&["doctor"]).env("PATH", &path));
    let file = directory.join("redlock");
    std::os::unix::fs::symlink(crate::support::REDLOCK, &file).unwrap();
    assert_eq!(examine().checks["program"]["level"], "ok");
    fs::remove_file(&file).unwrap();
    crate::support::script(&directory, "redlock", "#!/bin/sh\n");
    let found = examine();
    let check = &found.checks["program"];
    assert_eq!(check["level"], "warn");
    let said = check["message"].as_str().unwrap();
    assert!(
        said.ends_with(&format!("is on the PATH: {}", file.display())),
        "{said}"
    );
    found.end.assert_code(0);
}

//! `redlock doctor` finds the faults of a server or this host and prints the commands to type, within two seconds and without
//! leaving anything behind. For states that all commands notice, see the tables of `trouble`.

use std::collections::BTreeMap;

use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy, Request};

/// Checks without which a server isn't known to be fit.
const DECIDING: &str = "connection server role cluster eviction writes scripts name";

/// Doctor's report as JSON.
pub struct Examined {
    pub end: Outcome,
    pub document: Value,
    pub checks: BTreeMap<String, Value>,
}

impl Examined {
    /// Examines a server that answers. Repeats that if the machine is too busy for doctor's two seconds, which doctor reports.
    #[track_caller]
    pub fn new(command: &mut Command) -> Self {
        let has_time = |examined: &Self, _| !examined.end.stdout.contains("in time");
        Self::until(command, "doctor has the time", has_time)
    }

    /// Examines until the report and its duration are right.
    #[track_caller]
    fn until(
        command: &mut Command,
        what: &str,
        is_right: impl Fn(&Self, Duration) -> bool,
    ) -> Self {
        command.arg("--json");
        await_some(what, || {
            let began = Instant::now();
            let examined = Self::once(command);
            is_right(&examined, began.elapsed()).then_some(examined)
        })
    }

    /// Examines once. The command must have `--json`.
    #[track_caller]
    pub fn once(command: &mut Command) -> Self {
        let end = outcome(command);
        assert_eq!(end.stderr, "", "{end:?}");
        assert_eq!(end.stdout.lines().count(), 1, "{end:?}");
        for text in "hunter correct-horse Context Other( Error(".split(' ') {
            assert!(!end.stdout.contains(text), "{end:?}");
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

    /// Asserts that these checks have a level, and no others.
    #[track_caller]
    pub fn only(&self, level: &str, checks: &str) {
        let all = self.checks.iter().filter(|(_, it)| it["level"] == level);
        let names: Vec<&str> = all.map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.join(" "), checks, "{level}: {:?}", self.end);
    }

    /// Returns true if doctor did all checks.
    fn is_whole(&self) -> bool {
        let mut levels = self.checks.values().map(|check| &check["level"]);
        levels.all(|level| level != "unknown")
    }

    /// Asserts a finding: `CHECK LEVEL: part of its message → part of its fix`.
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

/// Starts a server that keeps its data, so that doctor finds nothing wrong.
pub fn good() -> Redis {
    Redis::with(&["--appendonly", "yes"])
}

/// Waits until an examination is right and takes less than two seconds. A busy machine is sometimes late, but a doctor that
/// waits too long always is.
#[track_caller]
fn within_two_seconds(command: &mut Command, is_right: fn(&Examined) -> bool) -> Examined {
    let is_quick = |examined: &Examined, took| took < Duration::from_secs(2) && is_right(examined);
    Examined::until(command, "doctor takes less than two seconds", is_quick)
}

pub fn by_url(url: &str, options: &[&str]) -> Command {
    let mut command = redlock(&[&["-u", url], options, &["doctor"]].concat());
    command.env("HOME", "/nonexistent");
    command
}

#[track_caller]
pub fn set(redis: &Redis, name: &str, value: &str) {
    assert_eq!(redis.cli(&["CONFIG", "SET", name, value]), "OK");
}

#[track_caller]
pub fn assert_no_key(redis: &Redis) {
    wait_until("no key is left", || redis.cli(&["KEYS", "*"]).is_empty());
}

#[test]
fn a_good_server_is_fit_and_doctor_leaves_nothing_there() {
    let redis = good();
    let examined = Examined::new(&mut redis.redlock(&["doctor", "deploy"]));
    examined.only(
        "ok",
        "clocks cluster connection eviction hook latency messages name persistence pidfd proc replicas role scripts \
         secrets server settings tls url writes",
    );
    assert_eq!(examined.checks.len(), 20, "{:?}", examined.end);
    let fields = ["name", "ttl_ms", "failures", "warnings"];
    let fields = fields.map(|field| examined.document[field].to_string());
    assert_eq!(fields, ["\"deploy\"", "30000", "0", "0"]);
    let latency = &examined.checks["latency"]["facts"];
    assert!(latency["p50_us"].as_u64() <= latency["max_us"].as_u64());
    assert_no_key(&redis);

    let end = await_some("doctor has the time", || {
        let end = ends(&redis, "doctor deploy");
        (!end.stdout.contains("Not checked")).then_some(end)
    });
    let text = &end.assert_code(0).stdout;
    let eviction = "\n  ok    eviction     noeviction";
    assert_has(text, &["Redis at ", eviction, "\nfit to hold locks ("]);
    // Doctor can't know whether a new server had locks before.
    let is_wrong = text.contains('\x1b') || text.contains("restart");
    assert!(!is_wrong, "{text}");
    ends(&redis, "-q doctor deploy").assert_printed(0, "");
    for (command, times) in [("keys", 1), ("scan", 0), ("monitor", 0)] {
        assert_eq!(redis.calls(command), times, "{command}");
    }
}

#[test]
fn a_server_without_a_command_is_found() {
    for disabled in ["EVAL", "HMGET"] {
        let redis = Redis::with(&["--rename-command", disabled, "other"]);
        let examined = Examined::new(&mut redis.redlock(&["doctor"]));
        examined.says(&format!("scripts fail: {disabled} → rename-command"));
        examined.only("fail", "scripts");
        assert_no_key(&redis);
    }
    let redis = Redis::with(words!("--rename-command HELLO other"));
    redis.play(
        "messages warn: waiters poll → rename-command
        scripts ok: handed over",
    );
    // A managed service that hides INFO and its configuration.
    let redis = Redis::with(words!("--rename-command INFO i --rename-command CONFIG c"));
    let examined = Examined::new(&mut redis.redlock(&["doctor"]));
    examined.only("fail", "");
    examined.only("warn", "");
    examined.says("eviction unknown: doesn't have the command INFO");
    let undecided =
        "not known to be fit to hold locks: server, role, cluster, eviction not checked";
    let end = ends(&redis, "doctor");
    assert!(end.stdout.contains(undecided), "{end:?}");
    let end = ends(&redis, "-q doctor");
    end.assert_code(1);
    assert!(end.stdout.starts_with(undecided), "{end:?}");
}

#[test]
fn a_failed_connection_is_explained_with_the_origin_of_the_url() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("redlock.env");
    let (here, port) = (directory.path().display(), free_port());
    let states = format!(
        "connection redis://127.0.0.1:{port} → start Redis there, or correct the address in the URL
        connection redis://nowhere.invalid → correct the host in the URL
        connection unix://{here}/none → start Redis, or correct the path in the URL
        sentinels redis-sentinel://127.0.0.1:{port}/main → start Redis there, or correct the address"
    );
    let origin = format!("the URL is from {}:1", file.display());
    for line in states.lines() {
        let (check, line) = line.trim_start().split_once(' ').unwrap();
        let (url, fix) = line.split_once(' ').unwrap();
        fs::write(&file, format!("REDLOCK_URL={url}\n")).unwrap();
        let mut doctor = redlock(&["doctor"]);
        doctor.env("XDG_CONFIG_HOME", directory.path());
        let report = outcome(&mut doctor).stdout;
        let examined = Examined::new(&mut doctor);
        let message = examined.checks[check]["message"].as_str().unwrap();
        if message.contains("looked up") {
            // No name server answers on this machine.
            continue;
        }
        examined.says(&format!("{check} fail:  {fix}"));
        assert_eq!(examined.checks[check]["facts"]["origin"], origin);
        assert!(!message.contains("the URL is from"), "{message}");
        let mut lines = report.lines().map(str::trim);
        assert!(lines.any(|line| line == origin), "{report}");
        assert!(lines.next().unwrap().starts_with(fix), "{report}");
        let others = "all else, which needs a connection";
        assert!(report.contains(others), "{report}");
    }
}

#[test]
fn doctor_ends_within_two_seconds_whatever_hangs() {
    let redis = good();
    redis.stall();
    let silent = UnresponsiveServer::new();
    let hanging = |url: &str| {
        let mut command = by_url(url, &["REDLOCK_REDIS_TIMEOUT=10s"]);
        command.env("REDLOCK_HOOK", "sleep 9 & exec sleep 9");
        command
    };
    let sentinel = silent.url().replace("redis://", "redis-sentinel://") + "/main";
    for (url, check) in [
        (redis.tcp_url(), "connection"),
        (redis.url(), "connection"),
        (silent.url(), "connection"),
        (sentinel, "sentinels"),
    ] {
        let examined = within_two_seconds(&mut hanging(&url), |_| true);
        examined.says(&format!("{check} fail: in time → firewall"));
        examined.says("hook warn: hasn't ended in time → time-out");
        examined.says("pidfd ok:");
    }
    redis.resume();
    // All other checks finish meanwhile.
    let examined = within_two_seconds(&mut hanging(&redis.tcp_url()), Examined::is_whole);
    examined.only("warn", "hook");
    // A single sentinel of several hangs.
    let all = Replicated::start();
    all.sentinels[0].stall();
    let examined = within_two_seconds(&mut hanging(&all.url()), Examined::is_whole);
    examined.says("sentinels warn: 2 of 3 agree on 127.0.0.1:");
    all.sentinels[0].resume();
}

#[test]
fn doctor_ends_in_time_and_leaves_nothing_if_the_connection_breaks() {
    // Side by side, because each mostly waits.
    side_by_side([Action::LoseReply, Action::Reset], ends_in_time_after);
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
        // On a busy machine doctor may have no time for this operation.
        let examined = await_some(operation, || {
            let proxy = Proxy::with(&redis, hook);
            let began = Instant::now();
            let mut command = by_url(&proxy.url(), &["REDLOCK_REDIS_TIMEOUT=500ms"]);
            let examined = Examined::once(command.arg("--json"));
            assert!(began.elapsed() < Duration::from_secs(20), "{operation}");
            (proxy.count(operation) > 0).then_some(examined)
        });
        let failed = examined.checks.values().any(|it| it["level"] == "fail");
        // Doctor sends these more than once.
        let is_repeated = ["TIME", "HELLO", "UNLINK"].contains(&operation);
        let is_noticed = failed || !examined.is_whole();
        assert!(is_noticed || is_repeated, "{operation} {action:?}");
        assert_no_key(&redis);
    }
}

#[test]
fn on_a_slow_line_everything_is_checked_in_two_seconds() {
    let redis = good();
    let proxy = Proxy::with_round_trip(&redis, Duration::from_millis(50));
    let examined = within_two_seconds(&mut by_url(&proxy.url(), &[]), Examined::is_whole);
    examined.says("messages ok:");
    let examined = Examined::new(by_url(&proxy.url(), &[]).args(["--ttl", "1s"]));
    examined.says("latency warn: p50  → --ttl ");
}

#[test]
fn a_password_that_leaves_this_host_without_tls_is_a_warning() {
    let redis = Redis::start();
    // Without TLS a password is readable on the network. Nobody has this address.
    let password = redis.dir.path().join("password");
    fs::write(&password, "hunter2\n").unwrap();
    let file = setting("REDLOCK_PASSWORD_FILE", password.to_str().unwrap());
    let local = redis.tcp_url().replace("://", "://:hunter2@");
    let states = format!(
        "redis://:hunter2@192.0.2.1 tls warn: → rediss://
        redis://192.0.2.1 {file} tls warn: → rediss://
        redis-sentinel://192.0.2.1/m?sentinel_password=hunter2 tls warn: → rediss://
        redis://192.0.2.1 tls unknown:
        rediss://:hunter2@192.0.2.1 tls unknown:
        {local} {file} tls ok:"
    );
    for line in states.lines() {
        let (start, finding) = line.trim_start().split_once(" tls ").unwrap();
        let (url, option) = start.split_once(' ').unwrap_or((start, ""));
        let options: Vec<&str> = option.split_whitespace().collect();
        let examined = Examined::once(by_url(url, &options).arg("--json"));
        examined.says(&format!("tls {finding}"));
    }
}

#[test]
fn a_key_of_another_program_is_78_and_found_by_doctor_at_a_locks_name() {
    let redis = good();
    redis.play(
        "HSET redlock:hash f v
        SET redlock:forever x
        SET {redlock:beside}:queue x
        SET {redlock:s}:state text
        78 redlock run --slots 2 hash -- true → key \"redlock:hash\", or a key … has another type
        78 redlock freeze hash --reason x → key \"redlock:hash\", or a key … has another type
        78 redlock run s -- true → key \"redlock:s\", or a key … has another type
        78 redlock status s → key \"redlock:s\", or a key … has another type
        78 redlock status a s → key \"redlock:s\", or a key … has another type
        SET redlock:foreign x PX 60000
        0 redlock freeze -q cold --reason x
        [hash] name fail: key redlock:hash is a hash → choose another name
        [beside] name fail: \"redlock:beside\" → choose another name
        [forever] name fail: has no expiry → redlock release --force forever
        [foreign] name ok: held by another client; expires in 5
        [free] name ok: \"free\" is free
        [cold] name warn: frozen for → redlock thaw cold",
    );
    // A name that no lock can have is a usage error.
    outcome(&mut redis.redlock(&["doctor", "a b"])).assert_code(64);
}

#[test]
fn sentinels_must_agree() {
    let all = Replicated::start();
    for sentinel in &all.sentinels {
        sentinel.cli(words!("SENTINEL SET {} quorum 2", MASTER));
    }
    let primary = all.servers[all.primary()].port;
    let examine = |url: &str| Examined::new(&mut by_url(url, &[]));
    let examined = examine(&all.url());
    let agree = format!("agree on 127.0.0.1:{primary}");
    examined.says(&format!("sentinels ok: 3 of 3 {agree}"));
    assert_eq!(examined.document["redis"], format!("127.0.0.1:{primary}"));
    let ports: Vec<u16> = all.sentinels.iter().map(|it| it.port).collect();
    let one_is_gone = all.url_at([ports[0], ports[1], free_port()].into_iter());
    let says = format!("2 of 3 {agree}: can't reach the sentinel at → start Redis there");
    examine(&one_is_gone).says(&format!("sentinels warn: {says}"));
    // A sentinel stores no locks.
    let (port, sentinel) = (ports[0], format!("redis://127.0.0.1:{}", ports[0]));
    let url = format!("--url redis-sentinel://127.0.0.1:{port}/NAME");
    examine(&sentinel).says(&format!("server fail: holds no locks → {url}"));
    let nobody = all.url().replace(MASTER, "nobody");
    examine(&nobody).says("sentinels fail: no primary with the name → SENTINEL MASTERS");
    // Each pause looks like a jump of the clock.
    all.sentinels[2].cli(words!("SENTINEL DEBUG TILT-TRIGGER 1 TILT-PERIOD 600000"));
    wait_until("it is in TILT mode", || {
        let info = all.sentinels[2].cli(&["INFO", "sentinel"]);
        info.contains("sentinel_tilt:1")
    });
    examine(&all.url()).says("sentinels warn: is in TILT mode → chrony");
    // A sentinel that has missed a failover.
    let other = free_port().to_string();
    for words in [
        words!("SENTINEL REMOVE {}", MASTER),
        words!("SENTINEL MONITOR {} 127.0.0.1 {} 1", MASTER, &other),
    ] {
        assert_eq!(all.sentinels[1].cli(words), "OK");
    }
    // Whichever of the two answers first.
    let first_two = all.url_at(ports[..2].iter().copied());
    examine(&first_two).says(&format!("sentinels fail: 127.0.0.1:{other} → logs"));
}

#[test]
fn doctor_tests_the_hook_the_settings_and_the_kernel_of_this_host() {
    let redis = good();
    let dir = redis.dir.path();
    let variables = dir.join("variables");
    let write = format!("env | grep ^REDLOCK >{}", variables.display());
    let after = |hook: &str, event: &str| {
        let mut command = redis.redlock(&["doctor", "deploy"]);
        command.env("REDLOCK_HOOK", hook);
        Examined::new(command.env("REDLOCK_EVENT", event))
    };
    after(&write, "").says("hook ok: status 0");
    let variables = fs::read_to_string(variables).unwrap();
    let has = |text: &str| variables.contains(text);
    let is_complete = has("REDLOCK_EVENT=test\n") && has("REDLOCK_NAME=deploy\n");
    assert!(is_complete && !has("REDLOCK_URL"), "{variables}");
    for (hook, status) in [("exit 7", 7), ("kill -9 $$", 137), ("no-such-program", 127)] {
        let says =
            format!("hook warn: ended with status {status} → by hand: REDLOCK_EVENT=test sh -c");
        after(hook, "").says(&says);
    }
    // A hook that calls doctor isn't called again.
    after("exit 7", "ended").says("hook ok:");

    redis.play("[REDLOCK_TLT=9s] settings warn: REDLOCK_TLT; did you mean REDLOCK_TTL? → correct");

    let mut command = Command::new("strace");
    let inject = "inject=pidfd_open:error=ENOSYS";
    command.args(words!("-f -o /dev/null -e {} {} doctor", inject, REDLOCK));
    command.env("REDLOCK_URL", redis.url());
    Examined::new(command.env("HOME", "/nonexistent")).says("pidfd warn: pidfd_open → Linux 5.3");
}

//! Checks of the server, the network to it, and the locks on it: asks on one connection, and judges the answers.
//!
//! All questions end at one moment at the latest. If one fails, doctor still asks those that don't depend on it, over a
//! new connection.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::finding::{Check, Finding, Group, Level, command};
use super::info::Info;
use crate::config::Settings;
use crate::decide::lease::renewal_interval;
use crate::protocol::{
    Client, Error, ErrorKind, Inspected, Key, Locks, Name, Quorum, RedisCli, Rehearsed, RollCall,
    Transport, Vote, Who, left,
};
use crate::report::{busy_line, format_duration, typed};

const CONNECTION: Check = Check("connection", Group::Network);
const TLS: Check = Check("tls", Group::Network);
const SENTINELS: Check = Check("sentinels", Group::Network);
const LATENCY: Check = Check("latency", Group::Network);
const CLOCKS: Check = Check("clocks", Group::Network);
const SERVER: Check = Check("server", Group::Server);
const ROLE: Check = Check("role", Group::Server);
const REPLICAS: Check = Check("replicas", Group::Server);
const CLUSTER: Check = Check("cluster", Group::Server);
const EVICTION: Check = Check("eviction", Group::Server);
const PERSISTENCE: Check = Check("persistence", Group::Server);
const WRITES: Check = Check("writes", Group::Server);
const SCRIPTS: Check = Check("scripts", Group::Locks);
const MESSAGES: Check = Check("messages", Group::Locks);
const NAME: Check = Check("name", Group::Locks);

/// Checks by INFO, by round trips and by the rehearsal.
const BY_INFO: [Check; 6] = [SERVER, ROLE, REPLICAS, CLUSTER, EVICTION, PERSISTENCE];
const BY_TRIPS: [Check; 2] = [LATENCY, CLOCKS];
const BY_REHEARSAL: [Check; 3] = [WRITES, SCRIPTS, MESSAGES];

/// Longest wait for a sentinel.
const SENTINEL_WITHIN: Duration = Duration::from_millis(700);

/// Most round trips that are measured, and the time for them.
const ROUND_TRIPS: usize = 40;
const ROUND_TRIPS_WITHIN: Duration = Duration::from_millis(250);

/// Renewals should take less than this part of the time between them.
const SLOW: u32 = 10;

/// Difference of clocks above which people can't compare times.
const CLOCKS_APART: Duration = Duration::from_secs(10);

/// Part of maxmemory above which a server is nearly full, in percent.
const NEARLY_FULL: u64 = 90;

/// A server under examination.
struct Server<'a> {
    locks: &'a Locks,
    /// The replicas that must confirm a grant, if that is set.
    quorum: Option<Quorum>,
    client: Client,
    until: Instant,
    redis_cli: RedisCli,
    info: Info,
    /// The server's address, as messages name it.
    place: String,
}

/// Checks all of it, and returns the server's address with the findings. `who` is shown as the holder of the lock for the
/// rehearsal.
pub fn examine(
    (settings, ttl): (&Settings, Duration),
    name: Option<&Name>,
    who: &Who,
    until: Instant,
) -> (String, Vec<Finding>) {
    let locks = &settings.locks;
    let roll_call = locks.call_sentinels(SENTINEL_WITHIN);
    let mut client = locks.client();
    let connected = connect(locks, &mut client, until);
    let mut server = Server {
        locks,
        quorum: settings.quorum(),
        client,
        until,
        redis_cli: locks.redis_cli(),
        info: Info::default(),
        place: match &roll_call {
            Some(RollCall { primary, .. }) if connected.is_err() => format!("\"{primary}\""),
            _ => locks.to_string(),
        },
    };
    let mut findings = vec![server.connection(&connected), server.tls(&connected)];
    findings.extend(roll_call.map(|it| server.sentinels(&it.primary, &it.votes())));
    if connected.is_ok() {
        findings.extend(server.by_info());
        findings.extend(server.by_trips(ttl));
        let rehearsed = locks.rehearse(&mut server.client, who, until);
        findings.extend(server.by_rehearsal(rehearsed));
        findings.extend(name.map(|name| server.name(name)));
    } else {
        let checks = BY_INFO.into_iter().chain(BY_TRIPS).chain(BY_REHEARSAL);
        findings.extend(checks.chain(name.map(|_| NAME)).map(Check::skipped));
    }
    (server.place, findings)
}

/// Connects, and asks something, as a server lets everyone connect.
fn connect(locks: &Locks, client: &mut Client, until: Instant) -> Result<Duration, Error> {
    use ErrorKind::{Busy, Crowded, Loading, Refused};
    let began = Instant::now();
    let key = format!("{}redlock-doctor", locks.prefix());
    match client.ask(&[&["EXISTS", &key]], until)?.pop() {
        // A server that answers so answers nothing else.
        Some(Err(error)) if matches!(error.kind, Loading | Busy | Crowded) => Err(error),
        Some(Err(error)) if error.kind == Refused && error.missing_rules().is_none() => Err(error),
        _ => Ok(began.elapsed()),
    }
}

impl Server<'_> {
    fn connection(&self, connected: &Result<Duration, Error>) -> Finding {
        match connected {
            Ok(took) => {
                let user = self.locks.user();
                let user = user.map_or(String::new(), |user| format!(" as user \"{user}\""));
                let message = format!("connected{user}, and answered in {}", short(*took));
                CONNECTION.ok(message).with("took_us", micros(*took))
            }
            Err(error) if self.is_about_tls(error) => CONNECTION.skipped(),
            Err(error) => self.failure(CONNECTION, error),
        }
    }

    fn is_about_tls(&self, error: &Error) -> bool {
        matches!(self.locks.transport(), Transport::Tls { .. }) && error.kind == ErrorKind::Config
    }

    fn tls(&self, connected: &Result<Duration, Error>) -> Finding {
        match (self.locks.transport(), connected) {
            _ if self.locks.send_open_password() => TLS.warn(
                "the password crosses the network unencrypted: anyone on the path can read it",
                "connect by rediss:// to a TLS port of the server (docs/servers.md), or by a tunnel",
            ),
            (Transport::Socket, _) => TLS.moot("a socket of this host"),
            (Transport::Plain { is_loopback: true }, _) => TLS.moot("not used within this host"),
            (_, Err(error)) if self.is_about_tls(error) => self.failure(TLS, error),
            (_, Err(_)) => TLS.skipped(),
            (Transport::Tls { host }, Ok(_)) => TLS.ok(format!("certificate valid for {host}")),
            (Transport::Plain { .. }, Ok(_)) => TLS.ok("unencrypted (rediss:// encrypts)"),
        }
    }

    /// Judges whether the sentinels agree on the primary with this name.
    fn sentinels(&self, name: &str, votes: &[Result<Vote, Error>]) -> Finding {
        let answers: Vec<&Vote> = votes.iter().flatten().collect();
        let errors = || votes.iter().filter_map(|vote| vote.as_ref().err());
        let Some(first) = answers.first() else {
            // A wrong name or password says more than silence.
            let says_more = |error: &&Error| error.kind != ErrorKind::Unreachable;
            let error = errors().find(says_more).or(errors().next());
            return error.map_or(SENTINELS.skipped(), |error| self.failure(SENTINELS, error));
        };
        let primary = &first.primary;
        let message = format!("{} of {} agree on {primary}", answers.len(), votes.len());
        if let Some(other) = answers.iter().find(|it| it.primary != *primary) {
            let (one, other, another) = (&first.by, &other.by, &other.primary);
            SENTINELS.fail(
                format!("{one} says that {name} is {primary}, but {other} says {another}"),
                "if this lasts longer than a failover, see the sentinels' logs",
            )
        } else if let Some(error) = errors().next() {
            SENTINELS.warn(format!("{message}: {}", error.message()), next_step(error))
        } else {
            SENTINELS.ok(message)
        }
    }

    /// Asks for INFO, two settings, and whether the user is an administrator.
    fn by_info(&mut self) -> [Finding; 6] {
        let info = self.client.ask(&[&["INFO"]], self.until);
        match info.and_then(|mut replies| replies.pop().unwrap_or(Ok(Vec::new()))) {
            Ok(text) => self.info.add(&text.concat()),
            Err(error) => return BY_INFO.map(|check| self.unknown(check, &error)),
        }
        let [save, fsync] = ["save", "appendfsync"].map(|name| ["CONFIG", "GET", name]);
        // Only administrators may list users.
        let questions: [&[&str]; 3] = [&save, &fsync, &["ACL", "USERS"]];
        let replies = self.client.ask(&questions, self.until).unwrap_or_default();
        if self.locks.user().is_some() {
            let is_admin = replies.last().is_some_and(Result::is_ok);
            self.redis_cli = self.redis_cli.clone().of_admin(is_admin);
        }
        for pair in replies.iter().take(2).flatten() {
            self.info.add(&pair.join(":"));
        }
        [
            self.kind(),
            self.role(),
            self.replicas(),
            self.cluster(),
            self.eviction(),
            self.persistence(),
        ]
    }

    fn kind(&self) -> Finding {
        let field = |name: &str| self.info.text(&format!("{}_version", name.to_lowercase()));
        let mut flavours = ["Valkey", "Dragonfly", "Garnet", "Redict", "Upstash"].into_iter();
        let flavour = flavours.find(|name| field(name).is_some());
        let flavour = flavour.or(self.info.text("mvcc_depth").map(|_| "KeyDB"));
        let flavour = flavour.unwrap_or("Redis");
        let version = field(flavour).or(field("Redis")).unwrap_or("?");
        let mode = self.info.mode();
        let message = format!("{flavour} {version}, {mode}");
        let finding = if mode == "sentinel" {
            let url = format!("--url redis-sentinel://{}/NAME", self.place);
            SERVER.fail(
                format!("{message}: a sentinel knows where the locks are, and holds none"),
                format!("{url} (SENTINEL MASTERS lists the names)"),
            )
        } else {
            SERVER.ok(message)
        };
        let finding = finding.with("flavour", flavour).with("version", version);
        finding.with("mode", mode)
    }

    fn role(&self) -> Finding {
        let text = |field| self.info.text(field);
        let primary = match (text("master_host"), text("master_port")) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            _ => "its primary".to_owned(),
        };
        // KeyDB has replicas that accept writes, too.
        let is_active = matches!(text("active_replica"), Some("1" | "yes"));
        let is_writable = is_active || text("slave_read_only") == Some("0");
        let role = text("role").unwrap_or_default();
        let replicas = counted(self.info.replicas().1, "replica");
        let finding = match role {
            "master" if !is_active => ROLE.ok(format!("primary of {replicas}")),
            "slave" if !is_writable => ROLE.fail(
                format!("a read-only replica of {primary}"),
                format!("--url {}://{primary}", self.locks.scheme()),
            ),
            "slave" | "master" | "active-replica" => ROLE.fail(
                format!("a writable replica of {primary}: both grant the same lock"),
                "make it read-only (replica-read-only, in KeyDB active-replica), and use its primary's URL",
            ),
            _ => return ROLE.unknown("INFO has no role"),
        };
        finding.with("role", role)
    }

    fn replicas(&self) -> Finding {
        let (online, all) = self.info.replicas();
        let needed = match self.quorum {
            Some(Quorum::All) if !self.locks.may_fail_over() => {
                return REPLICAS.fail(
                    "REDLOCK_SYNC=all needs Sentinel or Redis Cluster, which list the replicas",
                    "use the URL of Sentinel or of a cluster, or set a number, such as REDLOCK_SYNC=1",
                );
            }
            Some(Quorum::All) => 1,
            Some(Quorum::AtLeast(number)) => u64::from(number),
            None => 0,
        };
        let finding = if u64::try_from(online).unwrap_or(u64::MAX) < needed {
            REPLICAS.fail(
                format!("{online} in sync, and REDLOCK_SYNC needs {needed}: no run starts"),
                "start more replicas (replicaof; on a cluster, redis-cli --cluster add-node), or lower REDLOCK_SYNC",
            )
        } else if all == 0 && self.locks.may_fail_over() {
            REPLICAS.warn(
                "none: nothing takes over if this server dies",
                "start a replica (replicaof; on a cluster, redis-cli --cluster add-node)",
            )
        } else if all == 0 {
            REPLICAS.moot("none")
        } else if online < all {
            REPLICAS.warn(
                format!("{online} of {all} in sync: a failover to another one loses locks"),
                "see that replica's log, and the network between it and the primary",
            )
        } else {
            REPLICAS.ok(format!("{online} in sync"))
        };
        finding.with("replicas", all)
    }

    fn cluster(&self) -> Finding {
        let prefix = self.locks.prefix();
        match self.locks.hash_slot() {
            _ if !self.info.is_on("cluster_enabled") => CLUSTER.moot("not a cluster"),
            Some(slot) => CLUSTER.ok(format!("the prefix {prefix} keeps all keys in slot {slot}")),
            None => CLUSTER.fail(
                format!("the prefix {prefix} has no hash tag, so its keys are on several nodes"),
                format!("--url {}-cluster://HOST:PORT", self.locks.scheme()),
            ),
        }
    }

    fn eviction(&self) -> Finding {
        let Some(policy) = self.info.text("maxmemory_policy") else {
            return EVICTION.unknown("INFO has no maxmemory_policy");
        };
        let number = |field| self.info.number::<u64>(field).unwrap_or(0);
        let used = number("used_memory").saturating_mul(100);
        let used = used.checked_div(number("maxmemory"));
        let usage = used.map_or("no maxmemory".into(), |it| format!("{it}% of maxmemory"));
        let fix = || self.config_set("maxmemory-policy", "noeviction");
        let finding = match (policy, used) {
            ("noeviction", Some(NEARLY_FULL..)) => EVICTION.warn(
                format!("noeviction; {usage}: a full server grants no new lock"),
                "raise maxmemory, or remove keys",
            ),
            ("noeviction", _) => EVICTION.ok(format!("noeviction; {usage}")),
            (_, None) => {
                let message = format!("{policy}: evicts locks as soon as maxmemory is set");
                EVICTION.warn(message, fix())
            }
            (_, Some(_)) => {
                let message = format!("{policy}; {usage}: a full server evicts locks");
                EVICTION.fail(message, fix())
            }
        };
        let finding = finding.with("policy", policy);
        finding.with("evicted_keys", number("evicted_keys"))
    }

    fn persistence(&self) -> Finding {
        let fails = |field| self.info.text(field) == Some("err");
        let log = "the server's log says why; usually the disk is full";
        let supervisor = self.info.text("process_supervised");
        let supervisor = supervisor.filter(|it| matches!(*it, "systemd" | "upstart"));
        let append = || self.config_set("appendonly", "yes");
        if self.info.is_on("aof_enabled") && fails("aof_last_write_status") {
            let loss = "the append-only file can't be written: a restart forgets locks";
            PERSISTENCE.warn(loss, log)
        } else if self.info.is_on("aof_enabled") {
            PERSISTENCE.ok(match self.info.text("appendfsync") {
                Some("everysec") => {
                    "append-only file (everysec): a crash may forget the last second"
                }
                Some("no") => "append-only file (no fsync): a crash may forget the last 30s",
                _ => "append-only file",
            })
        } else if fails("rdb_last_bgsave_status") {
            let loss = "the last snapshot failed: a restart forgets all locks since the one before";
            PERSISTENCE.warn(loss, log)
        } else if self.info.raw("save") != Some("") {
            let loss = "snapshots at most: a crash forgets locks since the last snapshot";
            PERSISTENCE.warn(loss, append())
        } else if self.info.replicas().1 > 0 && supervisor.is_some() {
            let loss =
                "none, and a supervisor restarts the server: its replicas then copy the empty data";
            PERSISTENCE.fail(loss, append())
        } else {
            PERSISTENCE.warn("none: a restart forgets all locks", append())
        }
    }

    /// Measures the latency and the difference of the clocks, by asking for the time again and again.
    fn by_trips(&mut self, ttl: Duration) -> [Finding; 2] {
        let end = self.until.min(Instant::now() + ROUND_TRIPS_WITHIN);
        let mut trips = Vec::new();
        while trips.len() < ROUND_TRIPS && (trips.is_empty() || Instant::now() < end) {
            let (began, now) = (Instant::now(), SystemTime::now());
            match self.client.ask(&[&["TIME"]], self.until) {
                Ok(mut replies) => trips.push((began.elapsed(), now, replies.pop())),
                Err(error) if trips.is_empty() => {
                    return BY_TRIPS.map(|it| self.unknown(it, &error));
                }
                Err(_) => break,
            }
        }
        // The shortest round trip knows best.
        trips.sort_by_key(|(took, ..)| *took);
        let clock = match &trips[0] {
            (took, now, Some(Ok(time))) => clock(*took, *now, time),
            _ => CLOCKS.unknown("the server doesn't tell its time"),
        };
        let times: Vec<Duration> = trips.iter().map(|(took, ..)| *took).collect();
        [latency(&times, ttl), clock]
    }

    fn by_rehearsal(&self, rehearsed: Result<Rehearsed, Error>) -> [Finding; 3] {
        let rehearsed = match rehearsed {
            Ok(rehearsed) => rehearsed,
            Err(error) => return BY_REHEARSAL.map(|check| self.unknown(check, &error)),
        };
        let (calls, took) = (rehearsed.calls, rehearsed.took);
        match &rehearsed.failure {
            None => {
                let calls_took = format!("{} in {}", counted(calls, "call"), short(took));
                let message = format!("acquired, waited, handed over, released: {calls_took}");
                let scripts = SCRIPTS.ok(message).with("took_us", micros(took));
                [WRITES.ok("accepted"), scripts, self.messages(&rehearsed)]
            }
            Some(error) if matches!(error.kind, ErrorKind::NotNow | ErrorKind::Replica) => [
                self.failure(WRITES, error),
                SCRIPTS.skipped(),
                MESSAGES.skipped(),
            ],
            Some(error) => [
                WRITES.skipped(),
                self.failure(SCRIPTS, error),
                MESSAGES.skipped(),
            ],
        }
    }

    fn messages(&self, rehearsed: &Rehearsed) -> Finding {
        let mut finding = MESSAGES.ok("Redis notifies a waiter of its turn");
        if let Some(error) = &rehearsed.silence {
            finding = self.failure(MESSAGES, error);
            finding.level = Level::Warn;
            finding.message = format!("waiters poll four times a second: {}", finding.message);
        }
        finding.with("polls", rehearsed.silence.is_some())
    }

    fn name(&mut self, name: &Name) -> Finding {
        self.client.limit_to(left(self.until));
        match self.locks.inspect_one(&mut self.client, name) {
            Ok(lock) => self.lock(&lock),
            Err(error) if error.kind.is_unreachable() => self.unknown(NAME, &error),
            Err(error) => self.failure(NAME, &error),
        }
    }

    fn lock(&self, lock: &Inspected) -> Finding {
        let (name, prefix) = (&lock.name, self.locks.prefix());
        let mut holds = lock.holds().iter();
        match (&lock.key, lock.busy(), &lock.frozen) {
            (Key::NotALock(kind), ..) => NAME.fail(
                format!("key {prefix}{name} is a {kind} of another program"),
                "choose another name or REDLOCK_PREFIX: that program may still need its key",
            ),
            _ if holds.any(|hold| hold.holder.is_none() && hold.left.is_none()) => {
                let line = typed(&["release", "--force"], name);
                NAME.fail(
                    format!("the key of lock \"{name}\" has no expiry: it never becomes free"),
                    format!("make sure that the program that set the key is dead; then {line}"),
                )
            }
            (_, Some(busy), _) => NAME.ok(busy_line(name, "", &busy).trim_start_matches("lock ")),
            (_, None, Some(frozen)) => {
                let left = Duration::from_millis(frozen.until_ms.saturating_sub(lock.now_ms));
                let message = format!("\"{name}\" is frozen for {} more", format_duration(left));
                NAME.warn(message, typed(&["thaw"], name))
            }
            (_, None, None) => NAME.ok(format!("\"{name}\" is free")),
        }
    }

    /// Returns the command that changes a setting of the server, now and for its next start.
    fn config_set(&self, name: &str, value: &str) -> String {
        let set = self.redis_cli.admin_line(&["CONFIG", "SET", name, value]);
        let note = self.redis_cli.note();
        if self.info.text("config_file").is_none() {
            return command(&set, &[note, Some("and in redis.conf")]);
        }
        let rewrite = self.redis_cli.admin_line(&["CONFIG", "REWRITE"]);
        command(&format!("{set} && {rewrite}"), &[note])
    }

    /// Returns the command that adds ACL rules. If one command is missing, others may be, so all are added.
    fn permit(&self, missing: &str) -> String {
        let rules: Vec<&str> = if missing.starts_with(['~', '&']) {
            missing.split(' ').collect()
        } else {
            self.locks.acl_commands()
        };
        if self.locks.have_only_user() {
            return format!("give the user in the URL {}", rules.join(" "));
        }
        let user = self.locks.user().unwrap_or("default".into());
        let words = [&["ACL", "SETUSER", &user][..], &rules].concat();
        let servers = self.locks.may_fail_over().then_some("on each server");
        let keep = Some("if it is to acquire locks; ACL SAVE or CONFIG REWRITE keeps it");
        let notes = [self.redis_cli.note(), servers, keep];
        command(&self.redis_cli.admin_line(&words), &notes)
    }

    /// Returns the finding for an error.
    fn failure(&self, check: Check, error: &Error) -> Finding {
        let (message, fix) = self.parts(error);
        let fix = match (error.kind, error.missing_rules()) {
            (ErrorKind::Busy, _) => {
                let line = self.redis_cli.admin_line(&["SCRIPT", "KILL"]);
                command(&line, &[self.redis_cli.note()])
            }
            (_, Some(missing)) => self.permit(missing),
            (_, None) => fix.unwrap_or(next_step(error).into()),
        };
        let finding = check.fail(message, fix);
        let origin = error.origin().into_iter();
        origin.fold(finding, |finding, origin| finding.with("origin", origin))
    }

    fn unknown(&self, check: Check, error: &Error) -> Finding {
        check.unknown(&self.parts(error).0)
    }

    /// Splits the message of an error: what is so, and what to do. The heading names the server.
    fn parts(&self, error: &Error) -> (String, Option<String>) {
        let start = format!("Redis at {}", self.place);
        let message = error.message();
        let message = message.strip_prefix(&start).unwrap_or(message);
        let message = message.trim_start_matches([':', ' ']);
        let message = message.strip_prefix("is not ready: ").unwrap_or(message);
        match message.split_once("; ") {
            Some((message, fix)) => (message.to_owned(), Some(fix.to_owned())),
            None => (message.to_owned(), None),
        }
    }
}

/// Returns what to do if an error doesn't say that.
fn next_step(error: &Error) -> &'static str {
    let is = |reason| error.message().contains(reason);
    match error.kind {
        ErrorKind::Refused => "correct the user or the password",
        ErrorKind::NotNow | ErrorKind::Replica => "see the server's log",
        ErrorKind::Internal => "is this server compatible with Redis?",
        _ if is("connection refused") => "start Redis there, or correct the address in the URL",
        _ if is("socket") => "start Redis, or correct the path in the URL",
        _ if is("no such host") => "correct the host in the URL, or its name in DNS",
        _ if is("looked up") => "check whether this host's name servers answer",
        _ if is("in time") => "open the port if a firewall drops packets; restart a hung server",
        _ if is("password file") || is("no such file") => "write that file, or correct its name",
        _ if is("client certificate") => "set REDLOCK_TLS_CERT and REDLOCK_TLS_KEY",
        _ if is("was closed") => "see the log of the server, or of the proxy in front of it",
        _ => "correct the URL, or the network between this host and that one",
    }
}

/// Judges round trips, the shortest first.
fn latency(times: &[Duration], ttl: Duration) -> Finding {
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
    let (p50, p99, max) = (at(50), at(99), at(100));
    let [shown50, shown99, shown_max] = [p50, p99, max].map(short);
    let renewal = renewal_interval(ttl);
    let every = format_duration(renewal);
    let message =
        format!("p50 {shown50}, p99 {shown99}, max {shown_max}; one renewal every {every}");
    let longer = Duration::from_secs((max * 3 * SLOW).as_secs() + 1);
    let fix = format!("a longer TTL: --ttl {}", format_duration(longer));
    let finding = if max >= renewal {
        LATENCY.fail(message, fix)
    } else if p99 >= renewal / SLOW {
        LATENCY.warn(message, fix)
    } else {
        LATENCY.ok(message)
    };
    let finding = finding.with("p50_us", micros(p50));
    finding
        .with("p99_us", micros(p99))
        .with("max_us", micros(max))
}

/// Judges the server's clock by its reply to a TIME that was sent at `now`.
fn clock(took: Duration, now: SystemTime, time: &[String]) -> Finding {
    let part = |at: usize| time.get(at).and_then(|part| part.parse().ok()).unwrap_or(0);
    let theirs = Duration::from_secs(part(0)) + Duration::from_micros(part(1));
    let ours = now.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
    let apart = theirs.abs_diff(ours);
    let message = format!(
        "{} between the server's clock and this host's",
        short(apart)
    );
    let finding = if apart >= CLOCKS_APART {
        let message = format!("{message}; status and history show the server's time");
        CLOCKS.warn(message, "synchronise the hosts' clocks (NTP)")
    } else {
        CLOCKS.ok(message)
    };
    let us = i64::try_from(apart.as_micros()).unwrap_or(i64::MAX);
    finding.with("server_ahead_us", if theirs < ours { -us } else { us })
}

/// Returns a time as short as a table has it: `0.02 ms`, `0.3 ms`, `12 ms`, `1.4 s`.
pub fn short(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    match ms {
        ..0.1 => format!("{ms:.2} ms"),
        ..10.0 => format!("{ms:.1} ms"),
        ..1000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1000.0),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns `1 warning`, `2 warnings`.
pub fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Access;

    /// Returns a finding by a server's INFO, as `LEVEL: MESSAGE`.
    fn judged(url: &str, info: &str, judge: fn(&Server) -> Finding) -> String {
        let access = Access {
            url,
            timeout: Duration::from_secs(1),
            ..Access::default()
        };
        let locks = Locks::new(access, None, 0).unwrap();
        let mut server = Server {
            client: locks.client(),
            redis_cli: locks.redis_cli(),
            place: locks.to_string(),
            until: Instant::now(),
            info: Info::default(),
            quorum: None,
            locks: &locks,
        };
        server.info.add(&info.replace(' ', "\n"));
        let finding = judge(&server);
        format!("{:?}: {}", finding.level, finding.message)
    }

    // The methods take one lifetime each, and the closures any.
    #[allow(clippy::redundant_closure_for_method_calls)]
    #[test]
    fn servers_that_no_test_starts_are_judged_by_their_info() {
        let single = "redis://h";
        let role = |info: &str| judged(single, info, |it| it.role());
        let both = "Fail: a writable replica of h:1: both grant the same lock";
        let active = "role:active-replica master_host:h master_port:1";
        assert_eq!(role(active), both);
        let other = active.replace("active-replica", "master active_replica:1");
        assert_eq!(role(&other), both);
        assert_eq!(role(""), "Unknown: not checked: INFO has no role");
        let kind = |info: &str| judged(single, info, |it| it.kind());
        let keydb = "redis_version:6 mvcc_depth:0";
        assert_eq!(kind(keydb), "Ok: KeyDB 6, standalone");
        let valkey = "valkey_version:8 redis_version:7 server_mode:cluster";
        assert_eq!(kind(valkey), "Ok: Valkey 8, cluster");
        let kept = |info: &str| judged(single, info, |it| it.persistence());
        let copied = "save: connected_slaves:1 process_supervised:systemd";
        assert!(kept(copied).starts_with("Fail: none, and a supervisor restarts the server"));
        assert!(kept(&copied.replace("systemd", "no")).starts_with("Warn: none"));
        assert!(kept("").starts_with("Warn: snapshots at most"));
        let log = "aof_enabled:1 appendfsync:everysec";
        assert!(kept(log).ends_with("a crash may forget the last second"));
        let failing = "aof_enabled:1 aof_last_write_status:err";
        assert!(kept(failing).starts_with("Warn: the append-only file can't be written"));
        let replicas = |url: &str| judged(url, "", |it| it.replicas());
        assert_eq!(replicas(single), "Moot: none");
        assert!(replicas("redis-sentinel://h/m").starts_with("Warn: none"));
        let evicts = |info: &str| judged(single, info, |it| it.eviction());
        let full = "maxmemory_policy:noeviction maxmemory:100 used_memory:90";
        assert!(evicts(full).starts_with("Warn: noeviction; 90% of maxmemory"));
        assert!(evicts(&full.replace("90", "89")).starts_with("Ok: "));
    }

    #[test]
    fn latency_and_clocks_are_judged_by_their_round_trips() {
        let ms = Duration::from_millis;
        for (slowest, level) in [(99, Level::Ok), (100, Level::Warn), (1000, Level::Fail)] {
            let times = [ms(1), ms(slowest)];
            assert_eq!(latency(&times, ms(3000)).level, level, "{slowest}");
        }
        let now = UNIX_EPOCH + ms(1_000_000);
        for (seconds, level) in [
            ("1000", Level::Ok),
            ("1010", Level::Warn),
            ("989", Level::Warn),
        ] {
            let time = [seconds.to_owned(), "1000".to_owned()];
            assert_eq!(clock(ms(2), now, &time).level, level, "{seconds}");
        }
    }
}

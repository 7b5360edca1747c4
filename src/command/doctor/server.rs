//! Checks of the server, the network to it, and the locks on it: asks on one connection, and judges the answers.
//!
//! All questions end at one moment at the latest. If one fails, doctor still asks those that don't depend on it, over a
//! new connection.

use std::iter::repeat;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::finding::{Finding, NO_SETTINGS, fail, moot, named, ok, unknown, warn};
use super::info::Info;
use crate::config::Settings;
use crate::decide::lease::renewal_interval;
use crate::protocol::{
    Cause, Client, Error, ErrorKind, Inspected, Key, Locks, Name, Quorum, RedisCli, Rehearsed,
    RollCall, Transport, Vote, Who, left,
};
use crate::report::{busy_line, format_duration, typed};

/// Checks by INFO, by round trips and by the rehearsal.
const BY_INFO: &str = "server role replicas cluster eviction persistence";
const BY_TRIPS: &str = "latency clocks";
const BY_REHEARSAL: &str = "writes scripts messages";

/// Reason for a check that needs a connection, if there is none.
pub const NO_CONNECTION: &str = "there is no connection";

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
    /// Time until the first answer.
    connected: Result<Duration, Error>,
    redis_cli: RedisCli,
    info: Info,
    /// The server's address, as messages name it.
    place: String,
    findings: Vec<Finding>,
}

/// Checks all of it, and returns the server's address with the findings. `who` is shown as the holder of the lock for the
/// rehearsal.
pub fn examine(
    settings: &Settings,
    ttl: Duration,
    name: Option<&Name>,
    who: &Who,
    until: Instant,
) -> (String, Vec<Finding>) {
    let locks = &settings.locks;
    if settings.may_lack_the_url() {
        let unknown = unknown(NO_SETTINGS);
        return (locks.to_string(), named("connection", [unknown]).collect());
    }
    let roll_call = locks.call_sentinels(SENTINEL_WITHIN);
    let mut client = locks.client();
    let connected = connect(locks, &mut client, until);
    let mut server = Server {
        locks,
        quorum: settings.quorum(),
        place: match &roll_call {
            Some(RollCall { primary, .. }) if connected.is_err() => format!("\"{primary}\""),
            _ => locks.to_string(),
        },
        redis_cli: locks.server().redis_cli(),
        client,
        until,
        connected,
        info: Info::default(),
        findings: Vec::new(),
    };
    let first = [server.connection(), server.tls()];
    server.findings.extend(named("connection tls", first));
    let sentinels = roll_call.map(|all| server.sentinels(&all));
    server.findings.extend(named("sentinels", sentinels));
    server.check(BY_INFO, Server::by_info);
    server.check(BY_TRIPS, |it| it.by_trips(ttl));
    server.check(BY_REHEARSAL, |it| it.by_rehearsal(who));
    if let Some(name) = name {
        server.check("name", |it| it.name(name));
    }
    (server.place, server.findings)
}

/// Connects, and asks something, as a server lets everyone connect.
fn connect(locks: &Locks, client: &mut Client, until: Instant) -> Result<Duration, Error> {
    use ErrorKind::{Busy, Crowded, Loading, Refused};
    let began = Instant::now();
    let key = format!("{}redlock-doctor", locks.prefix());
    let lacks_rules = |error: &Error| matches!(error.cause, Some(Cause::MissingRules(_)));
    match client.ask(&[&["EXISTS", &key]], until)?.pop() {
        // A server that answers so answers nothing else.
        Some(Err(error)) if matches!(error.kind, Loading | Busy | Crowded) => Err(error),
        Some(Err(error)) if error.kind == Refused && !lacks_rules(&error) => Err(error),
        _ => Ok(began.elapsed()),
    }
}

impl Server<'_> {
    /// Does these checks. If there is no connection, or an error prevents the checks, all findings say so.
    fn check<const N: usize>(
        &mut self,
        checks: &'static str,
        check: impl FnOnce(&mut Self) -> Result<[Finding; N], Error>,
    ) {
        let why = match &self.connected {
            Err(_) => NO_CONNECTION.to_owned(),
            Ok(_) => match check(self) {
                Ok(findings) => return self.findings.extend(named(checks, findings)),
                Err(error) => self.parts(&error).0,
            },
        };
        self.findings.extend(named(checks, repeat(unknown(why))));
    }

    fn connection(&self) -> Finding {
        match &self.connected {
            Ok(took) => {
                let user = self.locks.user();
                let user = user.map_or(String::new(), |user| format!(" as user \"{user}\""));
                let message = format!("connected{user}, and answered in {}", short(*took));
                ok(message).with(json!({"took_us": micros(*took)}))
            }
            Err(error) if self.is_about_tls(error) => unknown(NO_CONNECTION),
            Err(error) => self.failure(error),
        }
    }

    fn is_about_tls(&self, error: &Error) -> bool {
        matches!(self.locks.server().transport(), Transport::Tls { .. })
            && error.kind == ErrorKind::Config
    }

    fn tls(&self) -> Finding {
        match (self.locks.server().transport(), &self.connected) {
            _ if self.locks.send_open_password() => warn(
                "the password crosses the network unencrypted: anyone on the path can read it",
                "connect by rediss:// to a TLS port of the server (docs/servers.md), or by a tunnel",
            ),
            (Transport::Socket, _) => moot("a socket of this host"),
            (Transport::Plain { is_loopback: true }, _) => moot("not used within this host"),
            (_, Err(error)) if self.is_about_tls(error) => self.failure(error),
            (_, Err(_)) => unknown(NO_CONNECTION),
            (Transport::Tls { host }, Ok(_)) => ok(format!("certificate valid for {host}")),
            (Transport::Plain { .. }, Ok(_)) => ok("unencrypted (rediss:// encrypts)"),
        }
    }

    /// Judges whether the sentinels agree on the primary.
    fn sentinels(&self, all: &RollCall) -> Finding {
        let (name, votes) = (&all.primary, all.votes());
        let answers: Vec<&Vote> = votes.iter().flatten().collect();
        let errors = votes.iter().filter_map(|vote| vote.as_ref().err());
        // A wrong name or password says more than silence.
        let error = errors.min_by_key(|error| error.kind == ErrorKind::Unreachable);
        let Some(first) = answers.first() else {
            return error.map_or(unknown(NO_CONNECTION), |error| self.failure(error));
        };
        let primary = &first.address;
        let message = format!("{} of {} agree on {primary}", answers.len(), votes.len());
        if let Some(other) = answers.iter().find(|it| it.address != *primary) {
            let (one, other, another) = (&first.by, &other.by, &other.address);
            fail(
                format!("{one} says that {name} is {primary}, but {other} says {another}"),
                "if this lasts longer than a failover, see the sentinels' logs",
            )
        } else if let Some(error) = error {
            let message = format!("{message}: {}", error.message());
            warn(message, self.next_step(error))
        } else {
            ok(message)
        }
    }

    /// Asks one question. A refusal is an error, too.
    fn ask(&mut self, words: &[&str]) -> Result<Vec<String>, Error> {
        let mut replies = self.client.ask(&[words], self.until)?;
        replies.pop().unwrap_or(Ok(Vec::new()))
    }

    /// Asks for INFO, two settings, and whether the user is an administrator.
    fn by_info(&mut self) -> Result<[Finding; 6], Error> {
        let text = self.ask(&["INFO"])?.concat();
        self.info.add(&text);
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
        Ok([
            self.kind(),
            self.role(),
            self.replicas(),
            self.cluster(),
            self.eviction(),
            self.persistence(),
        ])
    }

    fn kind(&self) -> Finding {
        let field = |name: &str| self.info.text(&format!("{}_version", name.to_lowercase()));
        let mut flavours = ["Valkey", "Dragonfly", "Garnet", "Redict", "Upstash"].into_iter();
        let flavour = flavours.find(|name| field(name).is_some());
        let flavour = flavour.or(self.info.text("mvcc_depth").map(|_| "KeyDB"));
        let flavour = flavour.unwrap_or("Redis");
        let version = field(flavour).or(field("Redis")).unwrap_or("?");
        let mode = self.info.text("redis_mode");
        let mode = mode.or(self.info.text("server_mode"));
        let mode = mode.unwrap_or("standalone");
        let message = format!("{flavour} {version}, {mode}");
        let finding = if mode == "sentinel" {
            let url = format!("--url redis-sentinel://{}/NAME", self.place);
            fail(
                format!("{message}: a sentinel knows where the locks are, and holds none"),
                format!("{url} (SENTINEL MASTERS lists the names)"),
            )
        } else {
            ok(message)
        };
        finding.with(json!({"flavour": flavour, "version": version, "mode": mode}))
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
            "master" if !is_active => ok(format!("primary of {replicas}")),
            "slave" if !is_writable => fail(
                format!("a read-only replica of {primary}"),
                format!("--url {}://{primary}", self.locks.server().scheme()),
            ),
            "slave" | "master" | "active-replica" => fail(
                format!("a writable replica of {primary}: both grant the same lock"),
                "make it read-only (replica-read-only, in KeyDB active-replica), and use its primary's URL",
            ),
            _ => return unknown("INFO has no role"),
        };
        finding.with(json!({"role": role}))
    }

    fn replicas(&self) -> Finding {
        let (online, all) = self.info.replicas();
        let needed = match self.quorum {
            Some(Quorum::All) => 1,
            Some(Quorum::AtLeast(number)) => usize::try_from(number).unwrap_or(usize::MAX),
            None => 0,
        };
        let fails_over = self.locks.may_fail_over();
        let finding = if self.quorum == Some(Quorum::All) && !fails_over {
            fail(
                "REDLOCK_SYNC=all needs Sentinel or Redis Cluster, which list the replicas",
                "use the URL of Sentinel or of a cluster, or set a number, such as REDLOCK_SYNC=1",
            )
        } else if online < needed {
            fail(
                format!("{online} in sync, and REDLOCK_SYNC needs {needed}: no run starts"),
                "start more replicas (replicaof; on a cluster, redis-cli --cluster add-node), or lower REDLOCK_SYNC",
            )
        } else if all == 0 && fails_over {
            warn(
                "none: nothing takes over if this server dies",
                "start a replica (replicaof; on a cluster, redis-cli --cluster add-node)",
            )
        } else if all == 0 {
            moot("none")
        } else if online < all {
            let fix = "see that replica's log, and the network between it and the primary";
            let loss = "a failover to another one loses locks";
            warn(format!("{online} of {all} in sync: {loss}"), fix)
        } else {
            ok(format!("{online} in sync"))
        };
        finding.with(json!({"replicas": all}))
    }

    fn cluster(&self) -> Finding {
        let prefix = self.locks.prefix();
        match self.locks.hash_slot() {
            _ if !self.info.is_on("cluster_enabled") => moot("not a cluster"),
            Some(slot) => ok(format!("the prefix {prefix} keeps all keys in slot {slot}")),
            None => fail(
                format!("the prefix {prefix} has no hash tag, so its keys are on several nodes"),
                format!("--url {}-cluster://HOST:PORT", self.locks.server().scheme()),
            ),
        }
    }

    fn eviction(&self) -> Finding {
        let Some(policy) = self.info.text("maxmemory_policy") else {
            return unknown("INFO has no maxmemory_policy");
        };
        let number = |field| self.info.number::<u64>(field).unwrap_or(0);
        let used = number("used_memory").saturating_mul(100);
        let used = used.checked_div(number("maxmemory"));
        let usage = used.map_or("no maxmemory".into(), |it| format!("{it}% of maxmemory"));
        let fix = || self.config_set("maxmemory-policy", "noeviction");
        let finding = match (policy, used) {
            ("noeviction", Some(NEARLY_FULL..)) => warn(
                format!("noeviction; {usage}: a full server grants no new lock"),
                "raise maxmemory, or remove keys",
            ),
            ("noeviction", _) => ok(format!("noeviction; {usage}")),
            (_, None) => {
                let message = format!("{policy}: evicts locks as soon as maxmemory is set");
                warn(message, fix())
            }
            (_, Some(_)) => {
                let message = format!("{policy}; {usage}: a full server evicts locks");
                fail(message, fix())
            }
        };
        let evicted = number("evicted_keys");
        finding.with(json!({"policy": policy, "evicted_keys": evicted}))
    }

    fn persistence(&self) -> Finding {
        let fails = |field| self.info.text(field) == Some("err");
        let log = "the server's log says why; usually the disk is full";
        let supervisor = self.info.text("process_supervised");
        let supervisor = supervisor.filter(|it| matches!(*it, "systemd" | "upstart"));
        let append = || self.config_set("appendonly", "yes");
        if self.info.is_on("aof_enabled") && fails("aof_last_write_status") {
            let loss = "the append-only file can't be written: a restart forgets locks";
            warn(loss, log)
        } else if self.info.is_on("aof_enabled") {
            ok(match self.info.text("appendfsync") {
                Some("everysec") => {
                    "append-only file (everysec): a crash may forget the last second"
                }
                Some("no") => "append-only file (no fsync): a crash may forget the last 30s",
                _ => "append-only file",
            })
        } else if fails("rdb_last_bgsave_status") {
            let loss = "the last snapshot failed: a restart forgets all locks since the one before";
            warn(loss, log)
        } else if self.info.raw("save") != Some("") {
            let loss = "snapshots at most: a crash forgets locks since the last snapshot";
            warn(loss, append())
        } else if self.info.replicas().1 > 0 && supervisor.is_some() {
            let loss =
                "none, and a supervisor restarts the server: its replicas then copy the empty data";
            fail(loss, append())
        } else {
            warn("none: a restart forgets all locks", append())
        }
    }

    /// Measures the latency and the difference of the clocks, by asking for the time again and again.
    fn by_trips(&mut self, ttl: Duration) -> Result<[Finding; 2], Error> {
        let end = self.until.min(Instant::now() + ROUND_TRIPS_WITHIN);
        let mut trips = Vec::new();
        while trips.len() < ROUND_TRIPS && (trips.is_empty() || Instant::now() < end) {
            let (began, now) = (Instant::now(), SystemTime::now());
            match self.client.ask(&[&["TIME"]], self.until) {
                Ok(mut replies) => trips.push((began.elapsed(), now, replies.pop())),
                Err(error) if trips.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        // The shortest round trip knows best.
        trips.sort_by_key(|(took, ..)| *took);
        let clock = match &trips[0] {
            (took, now, Some(Ok(time))) => clock(*took, *now, time),
            (.., Some(Err(error))) => unknown(self.parts(error).0),
            (.., None) => unknown("the server doesn't tell its time"),
        };
        let times: Vec<Duration> = trips.iter().map(|(took, ..)| *took).collect();
        Ok([latency(&times, ttl), clock])
    }

    fn by_rehearsal(&mut self, who: &Who) -> Result<[Finding; 3], Error> {
        let rehearsed = self.locks.rehearse(&mut self.client, who, self.until)?;
        let Some(error) = &rehearsed.failure else {
            let (calls, took) = (counted(rehearsed.calls, "call"), rehearsed.took);
            let message = format!("acquired, waited, handed over, released: {calls}");
            let message = format!("{message} in {}", short(took));
            let scripts = ok(message).with(json!({"took_us": micros(took)}));
            return Ok([ok("accepted"), scripts, self.messages(&rehearsed)]);
        };
        let (failure, skipped) = (self.failure(error), unknown("something above failed"));
        Ok(match error.kind {
            ErrorKind::NotNow | ErrorKind::Replica => [failure, skipped.clone(), skipped],
            _ => [skipped.clone(), failure, skipped],
        })
    }

    fn messages(&self, rehearsed: &Rehearsed) -> Finding {
        let finding = match &rehearsed.silence {
            None => ok("Redis notifies a waiter of its turn"),
            Some(error) => {
                let (message, fix) = self.parts(error);
                warn(format!("waiters poll four times a second: {message}"), fix)
            }
        };
        finding.with(json!({"polls": rehearsed.silence.is_some()}))
    }

    fn name(&mut self, name: &Name) -> Result<[Finding; 1], Error> {
        self.client.limit_to(left(self.until));
        match self.locks.inspect_one(&mut self.client, name) {
            Ok(lock) => Ok([self.lock(&lock)]),
            Err(error) if error.kind.is_unreachable() => Err(error),
            Err(error) => Ok([self.failure(&error)]),
        }
    }

    fn lock(&self, lock: &Inspected) -> Finding {
        let (name, prefix) = (&lock.name, self.locks.prefix());
        let mut holds = lock.holds().iter();
        match (&lock.key, lock.busy(), &lock.frozen) {
            (Key::NotALock(kind), ..) => fail(
                format!("key {prefix}{name} is a {kind} of another program"),
                "choose another name or REDLOCK_PREFIX: that program may still need its key",
            ),
            _ if holds.any(|hold| hold.holder.is_none() && hold.left.is_none()) => {
                let line = typed(&["release", "--force"], name);
                fail(
                    format!("the key of lock \"{name}\" has no expiry: it never becomes free"),
                    format!("make sure that the program that set the key is dead; then {line}"),
                )
            }
            (_, Some(busy), _) => ok(busy_line(name, "", &busy).trim_start_matches("lock ")),
            (_, None, Some(frozen)) => {
                let left = Duration::from_millis(frozen.until_ms.saturating_sub(lock.now_ms));
                let message = format!("\"{name}\" is frozen for {} more", format_duration(left));
                warn(message, typed(&["thaw"], name))
            }
            (_, None, None) => ok(format!("\"{name}\" is free")),
        }
    }

    /// Returns the commands that change a setting of the server, now and for its next start.
    fn config_set(&self, name: &str, value: &str) -> String {
        let set = ["CONFIG", "SET", name, value];
        match self.info.text("config_file") {
            Some(_) => self.commands(&[&set, &["CONFIG", "REWRITE"]], None),
            None => self.commands(&[&set], Some("and in redis.conf")),
        }
    }

    /// Returns commands for an administrator, with a note.
    fn commands(&self, commands: &[&[&str]], note: Option<&str>) -> String {
        let lines = commands.iter().map(|it| self.redis_cli.admin_line(it));
        let lines = lines.collect::<Vec<_>>().join(" && ");
        let notes: Vec<&str> = self.redis_cli.note().into_iter().chain(note).collect();
        match notes[..] {
            [] => lines,
            _ => format!("{lines}  # {}", notes.join(", ")),
        }
    }

    /// Returns the command that adds ACL rules. If one command is missing, others may be, so all are added.
    fn permit(&self, missing: &str) -> String {
        let rules: Vec<&str> = if missing.starts_with(['~', '&']) {
            missing.split(' ').collect()
        } else {
            self.locks.acl_commands()
        };
        if self.locks.server().has_only_user() {
            return format!("give the user in the URL {}", rules.join(" "));
        }
        let user = self.locks.user().unwrap_or("default".into());
        let command = [&["ACL", "SETUSER", &user][..], &rules].concat();
        let servers = self.locks.may_fail_over().then_some("on each server, ");
        let servers = servers.unwrap_or_default();
        let note = "if it is to acquire locks; ACL SAVE or CONFIG REWRITE keeps it";
        self.commands(&[&command], Some(&format!("{servers}{note}")))
    }

    /// Returns the finding for an error.
    fn failure(&self, error: &Error) -> Finding {
        let (message, fix) = self.parts(error);
        let finding = fail(message, fix);
        match &error.origin {
            Some(origin) => finding.with(json!({"origin": origin})),
            None => finding,
        }
    }

    /// Splits the message of an error: what is so, and what to do. The heading names the server.
    fn parts(&self, error: &Error) -> (String, String) {
        let start = format!("Redis at {}", self.place);
        let message = error.message();
        let message = message.strip_prefix(&start).unwrap_or(message);
        let message = message.trim_start_matches([':', ' ']);
        let message = message.strip_prefix("is not ready: ").unwrap_or(message);
        let (message, fix) = message.split_once("; ").unwrap_or((message, ""));
        let fix = match (error.kind, &error.cause) {
            (ErrorKind::Busy, _) => self.commands(&[&["SCRIPT", "KILL"]], None),
            (_, Some(Cause::MissingRules(rules))) => self.permit(rules),
            _ if fix.is_empty() => self.next_step(error).to_owned(),
            _ => fix.to_owned(),
        };
        (message.to_owned(), fix)
    }

    /// Returns what to do if an error doesn't say that.
    fn next_step(&self, error: &Error) -> &'static str {
        use Cause::{Closed, File, NoDefaultServer, NoServer, Silent, UnknownHost};
        match (error.kind, &error.cause) {
            (ErrorKind::Refused, _) => "correct the user or the password",
            (ErrorKind::NotNow | ErrorKind::Replica, _) => "see the server's log",
            (ErrorKind::Internal, _) => "is this server compatible with Redis?",
            (_, Some(NoServer)) if self.locks.server().transport() == Transport::Socket => {
                "start Redis, or correct the path in the URL"
            }
            (_, Some(NoServer | NoDefaultServer)) => {
                "start Redis there, or correct the address in the URL"
            }
            (_, Some(UnknownHost)) => "correct the host in the URL, or its name in DNS",
            (_, Some(Silent)) => "open the port if a firewall drops packets; restart a hung server",
            (_, Some(Closed)) => "see the log of the server, or of the proxy in front of it",
            (_, Some(File)) => "write that file, or correct its name",
            _ => "correct the URL, or the network between this host and that one",
        }
    }
}

/// Judges round trips, the shortest first.
fn latency(times: &[Duration], ttl: Duration) -> Finding {
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
    let (p50, p99, max) = (at(50), at(99), at(100));
    let renewal = renewal_interval(ttl);
    let message = format!(
        "p50 {}, p99 {}, max {}; one renewal every {}",
        short(p50),
        short(p99),
        short(max),
        format_duration(renewal)
    );
    let longer = Duration::from_secs((max * 3 * SLOW).as_secs() + 1);
    let fix = format!("a longer TTL: --ttl {}", format_duration(longer));
    let finding = if max >= renewal {
        fail(message, fix)
    } else if p99 >= renewal / SLOW {
        warn(message, fix)
    } else {
        ok(message)
    };
    let [p50, p99, max] = [p50, p99, max].map(micros);
    finding.with(json!({"p50_us": p50, "p99_us": p99, "max_us": max}))
}

/// Judges the server's clock by its reply to a TIME that was sent at `now`.
fn clock(took: Duration, now: SystemTime, time: &[String]) -> Finding {
    let part = |at: usize| time.get(at).and_then(|part| part.parse().ok()).unwrap_or(0);
    let theirs = Duration::from_secs(part(0)) + Duration::from_micros(part(1));
    let ours = now.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
    let apart = theirs.abs_diff(ours);
    let apart_in_words = short(apart);
    let message = format!("{apart_in_words} between the server's clock and this host's");
    let finding = if apart >= CLOCKS_APART {
        let message = format!("{message}; status and history show the server's time");
        warn(message, "synchronise the hosts' clocks (NTP)")
    } else {
        ok(message)
    };
    let us = i64::try_from(apart.as_micros()).unwrap_or(i64::MAX);
    finding.with(json!({"server_ahead_us": if theirs < ours { -us } else { us }}))
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
    use super::super::finding::Level;
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
            redis_cli: locks.server().redis_cli(),
            place: locks.to_string(),
            findings: Vec::new(),
            until: Instant::now(),
            connected: Ok(Duration::ZERO),
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
        assert_eq!(role(""), "Unknown: INFO has no role");
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

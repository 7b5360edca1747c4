//! Checks of the server, the network to it, and the locks on it.
//! Sends requests on one connection, and judges the replies.
//!
//! All requests share one time limit. After a failure, doctor still sends
//! the requests that don't depend on the failed one, on a new connection.

mod replicas;

use std::iter::repeat;
use std::time::{Duration, Instant};

use serde_json::json;

use super::finding::{Finding, NO_SETTINGS, fail, moot, named, ok, short, unknown, warn};
use super::info::Info;
use super::trips;
use crate::config::Settings;
use crate::protocol::{
    Cause, Client, Error, ErrorKind, Inspected, Key, Locks, Name, Quorum, RedisCli, Vote, Who, left,
};
use crate::report::{busy_line, counted, format_duration, typed};

/// Reason for a check that needs a connection, if there is none.
pub const NO_CONNECTION: &str = "there is no connection";

/// Longest wait for a sentinel.
const SENTINEL_WITHIN: Duration = Duration::from_millis(700);

/// Part of maxmemory from which a server is nearly full, in percent.
const NEARLY_FULL: u64 = 90;

/// A server under examination.
struct ExaminedServer<'a> {
    locks: &'a Locks,
    /// Replicas that must confirm a grant, if that is set.
    quorum: Option<Quorum>,
    client: Client,
    until: Instant,
    /// Time until the first reply.
    connected: Result<Duration, Error>,
    redis_cli: RedisCli,
    info: Info,
    /// Replies of the sentinels.
    votes: Vec<Vote>,
    /// Addresses of the promotable replicas that are up, as the sentinels or the cluster list them.
    listed: Vec<String>,
    /// Address of the server, as messages show it.
    place: String,
    findings: Vec<Finding>,
}

/// Runs all checks. Returns the server's address and the findings. `who` is the holder of the lock in the rehearsal.
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
        return (
            locks.server().to_string(),
            named("connection", [unknown]).collect(),
        );
    }
    let sentinels = locks.deployment.sentinels();
    let roll_call = sentinels.map(|sentinels| sentinels.roll_call(SENTINEL_WITHIN));
    let mut client = locks.client();
    let connected = connect(locks, &mut client, until);
    let mut server = ExaminedServer {
        locks,
        quorum: settings.quorum(),
        place: match &roll_call {
            Some((primary, _)) if connected.is_err() => format!("\"{primary}\""),
            _ => locks.server().to_string(),
        },
        redis_cli: locks.server().redis_cli(),
        client,
        until,
        connected,
        info: Info::default(),
        votes: Vec::new(),
        listed: Vec::new(),
        findings: Vec::new(),
    };
    let sentinels =
        roll_call.map(|(primary, votes)| server.sentinels(&primary, votes.iter().collect()));
    let first = server.connection_and_tls().into_iter().chain(sentinels);
    server.findings = named("connection tls sentinels", first).collect();
    server.check(
        "server role replicas cluster eviction persistence",
        ExaminedServer::by_info,
    );
    server.check("latency clocks", |it| {
        trips::examine(ttl, it.until, || it.ask(&["TIME"]))
    });
    server.check("writes scripts messages", |it| it.by_rehearsal(who));
    if let Some(name) = name {
        server.check("name", |it| it.name(name));
    }
    (server.place, server.findings)
}

/// Connects and sends a request, because a server accepts every connection.
fn connect(locks: &Locks, client: &mut Client, until: Instant) -> Result<Duration, Error> {
    use ErrorKind::{Busy, Crowded, Loading, Refused};
    let began = Instant::now();
    let key = format!("{}redlock-doctor", locks.prefix);
    let lacks_rules = |error: &Error| matches!(error.cause, Some(Cause::MissingRules(_)));
    match client.ask(&[&["EXISTS", &key]], until)?.pop() {
        // A server with one of these errors answers no other request either.
        Some(Err(error)) if matches!(error.kind, Loading | Busy | Crowded) => Err(error),
        Some(Err(error)) if error.kind == Refused && !lacks_rules(&error) => Err(error),
        _ => Ok(began.elapsed()),
    }
}

impl ExaminedServer<'_> {
    /// Runs these checks. Without a connection, or if an error prevents them, all of them are unknown.
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

    /// Judges the connection and its encryption.
    fn connection_and_tls(&self) -> [Finding; 2] {
        let server = self.locks.server();
        let (address, has_tls) = (&server.address, server.address.has_tls());
        let (connection, tls) = match &self.connected {
            Ok(took) => {
                let user = self.locks.user().map(|user| format!(" as user \"{user}\""));
                let user = user.unwrap_or_default();
                let message = format!("connected{user}, and answered in {}", short(*took));
                let tls = if has_tls {
                    format!("certificate valid for {}", address.host())
                } else {
                    "unencrypted (rediss:// encrypts)".into()
                };
                let facts = json!({"took_us": took.as_micros()});
                (ok(message).with(facts), ok(tls))
            }
            Err(error) if has_tls && error.kind == ErrorKind::Config => {
                (unknown(NO_CONNECTION), self.failure(error))
            }
            Err(error) => (self.failure(error), unknown(NO_CONNECTION)),
        };
        let tls = if self.locks.deployment.sends_open_password() {
            warn(
                "the password crosses the network unencrypted: anyone on the path can read it",
                "connect by rediss:// to a TLS port of the server (`redlock help servers`), or by a tunnel",
            )
        } else if address.is_socket() {
            moot("a socket of this host")
        } else if address.is_within_host() && !has_tls {
            moot("not used within this host")
        } else {
            tls
        };
        [connection, tls]
    }

    /// Sends one request. A refusal is an error, too.
    fn ask(&mut self, words: &[&str]) -> Result<Vec<String>, Error> {
        let mut replies = self.client.ask(&[words], self.until)?;
        replies.pop().unwrap_or(Ok(Vec::new()))
    }

    /// Requests INFO, three settings, and a list that only an administrator may see. Judges the replies.
    fn by_info(&mut self) -> Result<[Finding; 6], Error> {
        let text = self.ask(&["INFO"])?.concat();
        self.info.add(&text);
        // Only administrators may list the users.
        let questions: [&[&str]; 5] = [
            &["CLUSTER", "NODES"],
            &["ACL", "USERS"],
            &["CONFIG", "GET", "save"],
            &["CONFIG", "GET", "appendfsync"],
            &["CONFIG", "GET", "repl-timeout"],
        ];
        let replies = self.client.ask(&questions, self.until).unwrap_or_default();
        if let [nodes, users, settings @ ..] = &replies[..] {
            for pair in settings.iter().flatten() {
                self.info.add(&pair.join(":"));
            }
            if let Ok(nodes) = nodes {
                self.listed = self.locks.listed_replicas(&nodes.concat());
            }
            if self.locks.user().is_some() {
                self.redis_cli = self.redis_cli.clone().of_admin(users.is_ok());
            }
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
        let keydb = self.info.text("mvcc_depth").map(|_| "KeyDB");
        let flavour = flavour.or(keydb).unwrap_or("Redis");
        let version = field(flavour).or(field("Redis")).unwrap_or("?");
        let mode = ["redis_mode", "server_mode"].map(|field| self.info.text(field));
        let mode = mode.into_iter().flatten().next().unwrap_or("standalone");
        let message = format!("{flavour} {version}, {mode}");
        let finding = if mode == "sentinel" {
            let message = format!("{message}: a sentinel knows the primary, and holds no locks");
            let url = format!("--url redis-sentinel://{}/NAME", self.place);
            fail(message, url + " (SENTINEL MASTERS lists the names)")
        } else {
            ok(message)
        };
        finding.with(json!({"flavour": flavour, "version": version, "mode": mode}))
    }

    fn role(&self) -> Finding {
        let text = |field| self.info.text(field);
        let primary = text("master_host").zip(text("master_port"));
        let primary = primary.map(|(host, port)| format!("{host}:{port}"));
        let primary = primary.as_deref().unwrap_or("its primary");
        // KeyDB also has replicas that accept writes.
        let is_active = matches!(text("active_replica"), Some("1" | "yes"));
        let is_writable = is_active || text("slave_read_only") == Some("0");
        let role = text("role").unwrap_or_default();
        let replicas = counted(self.info.replicas().len(), "replica");
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

    fn cluster(&self) -> Finding {
        let prefix = &self.locks.prefix;
        match self.locks.hash_slot() {
            _ if self.info.number("cluster_enabled") == 0 => moot("not a cluster"),
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
        let used = self.info.number("used_memory").saturating_mul(100);
        let used = used.checked_div(self.info.number("maxmemory"));
        let usage = used.map_or("no maxmemory".into(), |it| format!("{it}% of maxmemory"));
        let state = format!("{policy}; {usage}");
        let fix = || self.config_set("maxmemory-policy", "noeviction");
        let finding = match (policy, used) {
            ("noeviction", Some(NEARLY_FULL..)) => warn(
                format!("{state}: a full server grants no new lock"),
                "raise maxmemory, or remove keys",
            ),
            ("noeviction", _) => ok(state),
            (_, None) => warn(
                format!("{policy}: evicts locks as soon as maxmemory is set"),
                fix(),
            ),
            (_, Some(_)) => fail(format!("{state}: a full server evicts locks"), fix()),
        };
        let evicted = self.info.number("evicted_keys");
        finding.with(json!({"policy": policy, "evicted_keys": evicted}))
    }

    fn persistence(&self) -> Finding {
        let fails = |field| self.info.text(field) == Some("err");
        let is_logged = self.info.number("aof_enabled") == 1;
        let supervisor = self.info.text("process_supervised");
        let is_supervised = matches!(supervisor, Some("systemd" | "upstart"));
        let append = || self.config_set("appendonly", "yes");
        if fails("aof_last_write_status") || !is_logged && fails("rdb_last_bgsave_status") {
            let loss = "the last write to the disk failed: a restart forgets locks";
            warn(loss, "the server's log says why; usually the disk is full")
        } else if is_logged {
            ok(match self.info.text("appendfsync") {
                Some("everysec") => {
                    "append-only file (everysec): a crash may forget the last second"
                }
                Some("no") => "append-only file (no fsync): a crash may forget the last 30s",
                _ => "append-only file",
            })
        } else if self.info.text("save") != Some("") {
            let loss = "snapshots at most: a crash forgets locks since the last snapshot";
            warn(loss, append())
        } else if is_supervised && !self.info.replicas().is_empty() {
            let loss = "none, and a supervisor restarts the server: replicas copy the empty data";
            fail(loss, append())
        } else {
            warn("none: a restart forgets all locks", append())
        }
    }

    fn by_rehearsal(&mut self, who: &Who) -> Result<[Finding; 3], Error> {
        let rehearsed = self.locks.rehearse(&mut self.client, who, self.until)?;
        if let Some(error) = &rehearsed.failure {
            let (failure, skipped) = (self.failure(error), unknown("something above failed"));
            return Ok(match error.kind {
                ErrorKind::NotNow | ErrorKind::Replica => [failure, skipped.clone(), skipped],
                _ => [skipped.clone(), failure, skipped],
            });
        }
        let (calls, took) = (counted(rehearsed.calls, "call"), short(rehearsed.took));
        let message = format!("acquired, waited, handed over, released: {calls} in {took}");
        let scripts = ok(message).with(json!({"took_us": rehearsed.took.as_micros()}));
        let messages = match &rehearsed.silence {
            None => ok("Redis notifies a waiter of its turn"),
            Some(error) => {
                let (message, fix) = self.parts(error);
                warn(format!("waiters poll four times a second: {message}"), fix)
            }
        };
        let polls = json!({"polls": rehearsed.silence.is_some()});
        Ok([ok("accepted"), scripts, messages.with(polls)])
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
        let (name, prefix) = (&lock.name, &self.locks.prefix);
        let mut holds = lock.holds().iter();
        match (&lock.key, lock.busy(), &lock.frozen) {
            (Key::NotALock(kind), ..) => fail(
                format!("key {prefix}{name} is a {kind} of another program"),
                "choose another name or REDLOCK_PREFIX: that program may still need its key",
            ),
            _ if holds.any(|hold| hold.holder.is_none() && hold.left.is_none()) => {
                let message = format!("the key of \"{name}\" has no expiry: it never becomes free");
                let fix = "make sure that the program that set the key is dead; then ".to_owned();
                fail(message, fix + &typed(&["release", "--force"], name))
            }
            (_, Some(mut busy), frozen) => {
                busy.frozen.clone_from(frozen);
                ok(busy_line(name, "", &busy).trim_start_matches("lock "))
            }
            (_, None, Some(frozen)) => {
                let left = Duration::from_millis(frozen.until_ms.saturating_sub(lock.now_ms));
                let message = format!("\"{name}\" is frozen for {} more", format_duration(left));
                warn(message, typed(&["thaw"], name))
            }
            (_, None, None) => ok(format!("\"{name}\" is free")),
        }
    }

    /// Returns the commands that change a setting of the server and its replicas, now and for their next start.
    fn config_set(&self, name: &str, value: &str) -> String {
        let mut all = vec![self.redis_cli.clone()];
        all.extend(self.listed.iter().map(|it| self.redis_cli.at(it)));
        let set = ["CONFIG", "SET", name, value];
        match self.info.text("config_file") {
            None | Some("") => RedisCli::admin_line(&all, &[&set], Some("and in redis.conf")),
            Some(_) => RedisCli::admin_line(&all, &[&set, &["CONFIG", "REWRITE"]], None),
        }
    }

    /// Returns a command for an administrator, with a note.
    fn command(&self, words: &[&str], note: Option<&str>) -> String {
        RedisCli::admin_line(std::slice::from_ref(&self.redis_cli), &[words], note)
    }

    /// Returns the command that adds ACL rules. If one command is missing, others may be too, so it adds all.
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
        let fails_over = self.locks.deployment.may_fail_over();
        let servers = if fails_over { "on each server, " } else { "" };
        let note = "if it is to acquire locks; ACL SAVE or CONFIG REWRITE keeps it";
        self.command(&command, Some(&format!("{servers}{note}")))
    }

    /// Returns the finding for an error.
    fn failure(&self, error: &Error) -> Finding {
        let (message, fix) = self.parts(error);
        let origin = error.origin.as_ref();
        fail(message, fix).with(json!(origin.map(|it| json!({"origin": it}))))
    }

    /// Splits an error into its description and its fix. Drops the server, which is in the heading.
    fn parts(&self, error: &Error) -> (String, String) {
        let start = format!("Redis at {}", self.place);
        let message = error.message.strip_prefix(&start);
        let message = message.unwrap_or(&error.message);
        let message = message.trim_start_matches([':', ' ']);
        let message = message.strip_prefix("is not ready: ").unwrap_or(message);
        let (message, fix) = message.split_once("; ").unwrap_or((message, ""));
        let is_socket = self.locks.server().address.is_socket();
        let fix = match (error.kind, &error.cause) {
            (ErrorKind::Busy, _) => self.command(&["SCRIPT", "KILL"], None),
            (_, Some(Cause::MissingRules(rules))) => self.permit(rules),
            _ if fix.is_empty() => error.next_step(is_socket).to_owned(),
            _ => fix.to_owned(),
        };
        (message.to_owned(), fix)
    }
}

#[cfg(test)]
mod tests;

//! The server: its kind, its role, and the fate of locks when it is full. Pure.

use super::super::evidence::{Evidence, Info, Replica, Unknown};
use super::super::finding::{Check, Finding, Group};
use super::super::fix::Repair;
use super::{config_set, counted, in_parts, refuses_writes, size};
use crate::protocol::{Transport, Trial};

pub(super) fn server(evidence: &Evidence) -> Finding {
    let check = Check("server", Group::Server);
    let info = known!(check, &evidence.info);
    let (flavour, version) = flavour(info);
    let mode = info.mode();
    let os = info.text("os").unwrap_or_default();
    let service = if os.starts_with("Amazon") || os.contains("ElastiCache") {
        format!(" ({os})")
    } else {
        String::new()
    };
    let message = format!("{flavour} {version}{service}, {mode}");
    let finding = if mode == "sentinel" {
        check.fail(
            format!("{message}: a sentinel knows where the locks are, and holds none"),
            format!(
                "--url redis-sentinel://{}/NAME (SENTINEL MASTERS lists the names)",
                evidence.place
            ),
        )
    } else {
        check.ok(message)
    };
    finding
        .with("flavour", flavour)
        .with("version", version)
        .with("mode", mode)
}

/// What it is, and its version.
fn flavour(info: &Info) -> (&'static str, &str) {
    for (field, name) in [
        ("valkey_version", "Valkey"),
        ("dragonfly_version", "Dragonfly"),
        ("garnet_version", "Garnet"),
        ("redict_version", "Redict"),
        ("upstash_version", "Upstash"),
    ] {
        if let Some(version) = info.text(field) {
            return (name, version);
        }
    }
    let version = info.text("redis_version").unwrap_or("of unknown version");
    let program = info.text("executable").unwrap_or_default();
    let is_keydb = program.contains("keydb") || info.text("mvcc_depth").is_some();
    (if is_keydb { "KeyDB" } else { "Redis" }, version)
}

/// Whether it accepts writes beside the server that it copies.
fn is_second_writer(info: &Info) -> bool {
    match info.text("role") {
        Some("active-replica") => true,
        Some("slave") => info.number("slave_read_only") == Some(0),
        _ => info
            .text("active_replica")
            .is_some_and(|it| it == "1" || it == "yes"),
    }
}

pub(super) fn role(evidence: &Evidence) -> Finding {
    let check = Check("role", Group::Server);
    let info = known!(check, &evidence.info);
    let primary = match (info.text("master_host"), info.number("master_port")) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => "its primary".to_owned(),
    };
    let url = match &evidence.transport {
        Transport::Tls { .. } => format!("--url rediss://{primary}"),
        _ => format!("--url redis://{primary}"),
    };
    let url = if info.text("master_host").is_some() {
        url
    } else {
        "use the URL of its primary".into()
    };
    let role = info.text("role").unwrap_or_default();
    let is_primary = |other: &&Replica| {
        let info = other.info.as_ref();
        info.is_ok_and(|info| info.text("role") == Some("master"))
    };
    let other = evidence.others.iter().find(is_primary);
    let finding = if let (Some(other), "master") = (other, role) {
        let (place, other) = (&evidence.place, other.entry.place());
        check.fail(
            format!("{other}, which the sentinels name, and {place} are both primaries: both grant the same lock"),
            format!("if this lasts longer than a failover, make one of them a replica (REPLICAOF, on {other})"),
        )
    } else if is_second_writer(info) {
        check.fail(
            format!(
                "a writable replica of {primary}: both grant the same lock"
            ),
            "make it read-only (active-replica no in KeyDB, replica-read-only yes), then use its primary's URL",
        )
    } else if role == "slave" {
        let link = info.text("master_link_status").unwrap_or("unknown");
        check.fail(
            format!("a read-only replica of {primary} (link {link})"),
            url,
        )
    } else if role == "master" {
        let many = usize::try_from(info.number("connected_slaves").unwrap_or(0));
        match many.unwrap_or(0) {
            0 => check.ok("primary, without replicas"),
            many => check.ok(format!("primary of {}", counted(many, "replica"))),
        }
    } else {
        return check.unknown(&Unknown::Unsupported("role in INFO"));
    };
    finding.with("role", role)
}

pub(super) fn cluster(evidence: &Evidence) -> Finding {
    let check = Check("cluster", Group::Server);
    let info = known!(check, &evidence.info);
    let prefix = &evidence.prefix;
    let slot = evidence
        .slot
        .map_or(String::new(), |slot| format!(", {slot}"));
    match (info.is_on("cluster_enabled"), evidence.prefix_has_tag) {
        (false, _) => check.moot("not a cluster"),
        (true, true) => check.ok(format!(
            "the prefix {prefix} keeps all keys in one hash slot{slot}"
        )),
        (true, false) => check.fail(
            format!("the prefix {prefix} has no hash tag, so its keys are on several nodes"),
            match &evidence.transport {
                Transport::Socket => "--url redis-cluster://HOST:PORT".to_owned(),
                Transport::Plain { .. } => format!("--url redis-cluster://{}", evidence.place),
                Transport::Tls { .. } => format!("--url rediss-cluster://{}", evidence.place),
            },
        ),
    }
}

/// Of the memory that a server may use, in percent: where it is full it admits no new locks.
const NEARLY_FULL: u64 = 90;

/// What a lock that is held takes of the server's memory, or a waiter, in bytes: twice what was measured, as a history grows.
const PER_LOCK: u64 = 2000;

pub(super) fn eviction(evidence: &Evidence) -> Finding {
    let check = Check("eviction", Group::Server);
    let info = known!(check, &evidence.info);
    let Some(policy) = info.text("maxmemory_policy") else {
        return check.unknown(&Unknown::Unsupported("maxmemory_policy in INFO"));
    };
    let most = info.number("maxmemory").unwrap_or(0);
    let used = info.number("used_memory").unwrap_or(0);
    let evicted = info.number("evicted_keys").unwrap_or(0);
    let limit = match most {
        0 => "no maxmemory".to_owned(),
        most => format!(
            "{} of {} used, room for about {} more locks or waiters",
            size(used),
            size(most),
            most.saturating_sub(used) / PER_LOCK
        ),
    };
    let fix = config_set(
        evidence,
        Repair::NoEviction,
        "maxmemory-policy",
        "noeviction",
    );
    let evicts = |replica: &&Replica| {
        let policy = replica
            .info
            .as_ref()
            .ok()
            .and_then(|info| info.text("maxmemory_policy"));
        policy.is_some_and(|policy| policy != "noeviction")
    };
    let replica = evidence.replicas.iter().find(evicts);
    let finding = if policy == "noeviction" {
        if let Some(replica) = replica {
            check.warn(
                format!(
                    "noeviction; {limit}; but replica {} may evict locks once it is the primary",
                    replica.entry.place()
                ),
                "set maxmemory-policy noeviction on that replica, too",
            )
        } else if most > 0 && used.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL) {
            check.warn(
                format!("noeviction; {limit}: a full server grants no new lock"),
                "raise maxmemory, or remove keys",
            )
        } else {
            check.ok(format!("noeviction; {limit}"))
        }
    } else if most == 0 {
        check.warn(
            format!("{policy}: evicts locks as soon as maxmemory is set"),
            fix,
        )
    } else if evicted > 0 {
        check.fail(
            format!("{policy}; {limit}: the server has evicted {evicted} keys, and evicts locks"),
            fix,
        )
    } else {
        check.fail(
            format!("{policy}; {limit}: a full server evicts locks"),
            fix,
        )
    };
    finding.with("policy", policy).with("evicted_keys", evicted)
}

pub(super) fn clients(evidence: &Evidence) -> Finding {
    let check = Check("clients", Group::Server);
    let info = known!(check, &evidence.info);
    let (Some(now), Some(most)) = (info.number("connected_clients"), info.number("maxclients"))
    else {
        return check.moot("not known");
    };
    let more = most.saturating_sub(now);
    let message = format!("{now} of at most {most}: {more} more runs can hold locks or wait");
    if now.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL) {
        check.warn(
            format!("{message}; further runs try again until there is room"),
            "close some, or raise maxclients",
        )
    } else {
        check.ok(message)
    }
}

pub(super) fn writes(evidence: &Evidence) -> Finding {
    let check = Check("writes", Group::Server);
    match &evidence.scripts {
        Ok(Trial {
            failure: Some((_, error)),
            ..
        }) if refuses_writes(error) => {
            // The role says so.
            if matches!(&evidence.info, Ok(info) if info.text("role") == Some("slave")) {
                return check.unknown(&Unknown::NotAsked);
            }
            let (message, fix) = in_parts(evidence, error);
            let it = if message.starts_with("is ") {
                "it "
            } else {
                ""
            };
            let fix = fix.unwrap_or_else(|| "see the server's log".into());
            check.fail(format!("refused: {it}{message}"), fix)
        }
        Ok(Trial { failure: None, .. }) => check.ok("accepted"),
        Ok(_) => check.unknown(&Unknown::NotAsked),
        Err(why) => check.unknown(why),
    }
}

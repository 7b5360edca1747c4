//! The server: what it is and may do, and what becomes of locks when it is full or restarts. Pure.

use std::time::Duration;

use super::super::evidence::{Evidence, Info, Replica, ReplicaEntry, SentinelEvidence, Unknown};
use super::super::finding::{Check, Finding, Group};
use super::super::fix::{Fix, Repair};
use super::{
    Measure, by_info, config_set, counted, in_parts, refuses_writes, rounded_up, size, with_notes,
};
use crate::lock::{Transport, Trial};
use crate::report::format_duration;

pub(super) fn server(evidence: &Evidence) -> Finding {
    let check = Check("server", Group::Server);
    by_info(evidence, check, |info| {
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
                format!("{message}: it knows where locks are, and holds none"),
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
    })
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
    by_info(evidence, check, |info| {
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
                format!("{other}, which the sentinels name, is a primary as well as {place}: both grant the same lock"),
                format!("if this lasts longer than a failover, make one of them a replica (REPLICAOF, on {other})"),
            )
        } else if is_second_writer(info) {
            check.fail(
                format!(
                    "writable, and a replica of {primary}: each of the two grants the same lock"
                ),
                "one writer only: active-replica no (KeyDB), replica-read-only yes; then its primary's URL",
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
    })
}

/// A replica that lags by more than this loses locks in a failover that it could have kept.
const BEHIND: u64 = 1_000_000;
const LAST_HEARD: Duration = Duration::from_secs(10);

pub(super) fn replicas(evidence: &Evidence) -> Finding {
    let check = Check("replicas", Group::Server);
    by_info(evidence, check, |info| {
        let entries = info.replicas();
        if entries.is_empty() {
            return check.moot("none");
        }
        let late = |entry: &&ReplicaEntry| {
            !entry.is_online
                || entry.behind.is_some_and(|behind| behind > BEHIND)
                || entry.last_heard.is_some_and(|heard| heard > LAST_HEARD)
        };
        if let Some(entry) = entries.iter().find(late) {
            let what = if !entry.is_online {
                "is not in sync yet".to_owned()
            } else if let Some(heard) = entry.last_heard.filter(|heard| *heard > LAST_HEARD) {
                format!("was last heard of {} ago", format_duration(heard))
            } else {
                format!("is {} behind", size(entry.behind.unwrap_or_default()))
            };
            let others = match entries.len() - 1 {
                0 => String::new(),
                others => format!(" (beside {})", counted(others, "other")),
            };
            return check.warn(
                format!(
                    "{} {what}{others}: a failover to it loses locks",
                    entry.place()
                ),
                "see its log, and the network between the two (INFO replication shows how it follows)",
            );
        }
        let priority = |replica: &Replica| {
            let info = replica.info.as_ref().ok()?;
            info.number("slave_priority")
        };
        let known: Vec<u64> = evidence.replicas.iter().filter_map(priority).collect();
        let priorities = known.iter().map(u64::to_string).collect::<Vec<_>>();
        let priorities = priorities.join(", ");
        if known.len() == entries.len() && known.iter().all(|&priority| priority == 0) {
            return check.warn(
                format!(
                    "{} in sync, but none may be promoted (replica-priority 0)",
                    counted(entries.len(), "replica")
                ),
                promote(evidence, &entries[0]),
            );
        }
        let behind = entries.iter().filter_map(|entry| entry.behind).max();
        let behind = behind.map_or(String::new(), |most| match most {
            0 => ", none behind".into(),
            most => format!(", at most {} behind", size(most)),
        });
        let is_unequal = known.windows(2).any(|pair| pair[0] != pair[1]);
        let first = if is_unequal {
            ": the lowest but 0 takes over first"
        } else {
            ""
        };
        let priorities = match known.len() {
            0 => String::new(),
            _ => format!("; replica-priority {priorities}{first}"),
        };
        check.ok(format!("{} in sync{behind}{priorities}", entries.len()))
    })
    .with(
        "replicas",
        evidence
            .replicas
            .iter()
            .map(|replica| replica.entry.place())
            .collect::<Vec<_>>(),
    )
}

/// The command after which this replica may be promoted.
fn promote(evidence: &Evidence, entry: &ReplicaEntry) -> Fix {
    let cli = evidence.redis_cli.at(&entry.host, entry.port);
    let line = cli.admin_line(&["CONFIG", "SET", "replica-priority", "100"]);
    let notes: Vec<&str> = cli.note().into_iter().collect();
    let notes = [&notes[..], &["and in its redis.conf"]].concat();
    Repair::Promotable.by(with_notes(&line, &notes))
}

/// What to do about replicas that don't confirm.
const FOLLOW: &str =
    "start the replicas that are down, and see why the others lag (INFO replication)";

const SYNC: Check = Check("sync", Group::Server);

/// Why `--sync all` is refused, or confirms nothing, by what the sentinels say: it waits for the replicas that they
/// list, also while those aren't connected.
fn sync_by_sentinels(
    evidence: &Evidence,
    info: &Info,
    found: &SentinelEvidence,
) -> Option<Finding> {
    found.answered().next()?;
    let (asked, all) = (found.asked(), found.all());
    if asked <= all / 2 {
        let message = format!(
            "--sync all is refused: the URL names {asked} of the {all} sentinels, and most of them have to agree"
        );
        let fix = format!(
            "add the others to the URL (SENTINEL SENTINELS {})",
            found.primary
        );
        return Some(SYNC.warn(message, fix));
    }
    let listed = match found.replicas() {
        Ok(listed) => listed,
        Err(why) => return Some(SYNC.unknown(&why)),
    };
    let connected: Vec<String> = info.replicas().iter().map(ReplicaEntry::place).collect();
    let absent = listed.iter().find(|place| !connected.contains(place));
    let unlisted = connected.iter().find(|place| found.naming(place) == 0);
    if let (Some(absent), Some(unlisted)) = (absent, unlisted) {
        return Some(SYNC.warn(
            format!("the sentinels list a replica {absent}, and {unlisted} is connected: --sync all waits for the former"),
            format!("if that is the same server, set its replica-announce-ip and -port to {absent}"),
        ));
    }
    let confirmed = *evidence.acknowledged.as_ref().ok()?;
    let listed = listed.len();
    (usize::try_from(confirmed).is_ok_and(|confirmed| confirmed < listed)).then(|| {
        let replicas = counted(listed, "replica");
        SYNC.warn(
            format!(
                "{confirmed} of {replicas} that the sentinels list confirm in time what is written: --sync all waits for them"
            ),
            FOLLOW,
        )
    })
}

/// Whether grants and renewals can be replicated before they count.
pub(super) fn sync(evidence: &Evidence) -> Finding {
    let check = SYNC;
    by_info(evidence, check, |info| {
        let many = info.number("connected_slaves").unwrap_or(0);
        let replicas = counted(usize::try_from(many).unwrap_or(usize::MAX), "replica");
        if let Some(found) = &evidence.sentinels
            && let Some(finding) = sync_by_sentinels(evidence, info, found)
        {
            return finding;
        }
        match (&evidence.acknowledged, evidence.knows_replicas) {
            (_, false) if many == 0 => check.moot("no replica to wait for"),
            (_, true) if many == 0 => check.warn(
                "no replica: --sync can't be used, and nothing takes over from this server",
                if info.is_on("cluster_enabled") {
                    "start another node, and add it as a replica (redis-cli --cluster help: add-node)"
                } else {
                    "start a replica (replicaof)"
                },
            ),
            (Err(why), _) => check.unknown(why),
            (Ok(confirmed), _) if *confirmed < many => check.warn(
                format!(
                    "{confirmed} of {replicas} confirm in time what is written: --sync waits for them"
                ),
                FOLLOW,
            ),
            (Ok(_), true) => check.ok(format!("--sync all is possible: {replicas} can confirm")),
            (Ok(_), false) => check.ok(format!(
                "--sync {many} is possible (--sync all with redis-sentinel://)"
            )),
        }
    })
}

pub(super) fn cluster(evidence: &Evidence) -> Finding {
    let check = Check("cluster", Group::Server);
    by_info(evidence, check, |info| {
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
    })
}

/// Of the memory that a server may use, in percent: where it is full it admits no new locks.
const NEARLY_FULL: u64 = 90;

pub(super) fn eviction(evidence: &Evidence) -> Finding {
    let check = Check("eviction", Group::Server);
    by_info(evidence, check, |info| {
        let Some(policy) = info.text("maxmemory_policy") else {
            return check.unknown(&Unknown::Unsupported("maxmemory_policy in INFO"));
        };
        let most = info.number("maxmemory").unwrap_or(0);
        let used = info.number("used_memory").unwrap_or(0);
        let evicted = info.number("evicted_keys").unwrap_or(0);
        let limit = match most {
            0 => "no maxmemory".to_owned(),
            most => format!("{} of {} used", size(used), size(most)),
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
                    format!("noeviction; {limit}; but replica {} may evict locks once it is the primary", replica.entry.place()),
                    "maxmemory-policy noeviction there, too",
                )
            } else if most > 0 && used.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL) {
                check.warn(
                    format!("noeviction; {limit}: when it is full, no new lock is granted"),
                    "raise maxmemory, or remove keys",
                )
            } else {
                check.ok(format!("noeviction; {limit}"))
            }
        } else if most == 0 {
            check.warn(
                format!("{policy}: evicts locks once there is a maxmemory"),
                fix,
            )
        } else if evicted > 0 {
            check.fail(
                format!("{policy}; {limit}: it has evicted {evicted} keys, and evicts locks"),
                fix,
            )
        } else {
            check.fail(
                format!("{policy}; {limit}: when it is full it evicts locks"),
                fix,
            )
        };
        finding.with("policy", policy).with("evicted_keys", evicted)
    })
}

pub(super) fn clients(evidence: &Evidence) -> Finding {
    let check = Check("clients", Group::Server);
    by_info(evidence, check, |info| {
        let (Some(now), Some(most)) = (info.number("connected_clients"), info.number("maxclients"))
        else {
            return check.moot("not known");
        };
        let message = format!("{now} of at most {most}");
        if now.saturating_mul(100) >= most.saturating_mul(NEARLY_FULL) {
            check.warn(
                format!("{message}: when it is full, redlock can't connect"),
                "close some, or raise maxclients",
            )
        } else {
            check.moot(message)
        }
    })
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
            let fix = fix.unwrap_or_else(|| "see its log".into());
            check.fail(format!("refused: {it}{message}"), fix)
        }
        Ok(Trial { failure: None, .. }) => check.ok("accepted"),
        Ok(_) => check.unknown(&Unknown::NotAsked),
        Err(why) => check.unknown(why),
    }
}

/// How a server keeps its data.
enum Kept {
    /// Each write, in a log.
    Log,
    Snapshots,
    Nothing,
    Unknown,
}

fn kept(evidence: &Evidence, info: &Info) -> Kept {
    match evidence.config.get("save") {
        _ if info.is_on("aof_enabled") => Kept::Log,
        Some(Ok(save)) if save.is_empty() => Kept::Nothing,
        Some(Ok(_)) => Kept::Snapshots,
        _ if info.number("rdb_saves").is_some_and(|saves| saves > 0) => Kept::Snapshots,
        _ => Kept::Unknown,
    }
}

pub(super) fn persistence(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("persistence", Group::Server);
    by_info(evidence, check, |info| {
        let append = config_set(evidence, Repair::AppendOnly, "appendonly", "yes");
        let has_replicas = info.number("connected_slaves").is_some_and(|many| many > 0);
        let supervisor = info.text("process_supervised");
        let supervisor = supervisor.filter(|it| matches!(*it, "systemd" | "upstart"));
        let keeps_no_log = |replica: &&Replica| {
            let info = replica.info.as_ref();
            info.is_ok_and(|info| info.number("aof_enabled") == Some(0))
        };
        let forgetful = evidence.replicas.iter().find(keeps_no_log);
        let forgetful = forgetful.map(|replica| replica.entry.place());
        match kept(evidence, info) {
            Kept::Log if info.text("aof_last_write_status") == Some("err") => check.warn(
                "the append-only file can't be written: a restart forgets locks",
                "its log says why; usually the disk is full",
            ),
            Kept::Log if forgetful.is_some() => check.warn(
                format!(
                    "append-only file, but replica {} keeps none: once it is the primary, a restart forgets locks",
                    forgetful.unwrap_or_default()
                ),
                "appendonly yes there, too",
            ),
            Kept::Log => {
                let fsync = match evidence.config.get("appendfsync") {
                    Some(Ok(fsync)) if fsync == "everysec" => {
                        " (appendfsync everysec): a crash may forget its last second".to_owned()
                    }
                    Some(Ok(fsync)) => format!(" (appendfsync {fsync})"),
                    _ => String::new(),
                };
                check.ok(format!("append-only file{fsync}"))
            }
            Kept::Snapshots if info.text("rdb_last_bgsave_status") == Some("err") => check.warn(
                "the last snapshot failed: a restart forgets all locks since the one before",
                "its log says why; usually the disk is full",
            ),
            Kept::Snapshots => {
                let last = info.number("rdb_last_save_time");
                let last = last.and_then(|last| u64::try_from(measure.now).ok()?.checked_sub(last));
                let last = last.map_or(String::new(), |ago| {
                    format!(", {} ago", format_duration(Duration::from_secs(ago)))
                });
                check.warn(
                    format!("snapshots only: a crash forgets locks since the last one{last}"),
                    append,
                )
            }
            Kept::Nothing => match (has_replicas, supervisor) {
                (true, Some(supervisor)) => check.fail(
                    format!(
                        "none, and {supervisor} restarts it: it comes back empty, and its replicas copy that"
                    ),
                    append,
                ),
                (true, None) => check.warn(
                    "none: a primary that is restarted is empty, and its replicas copy that",
                    append,
                ),
                (false, _) => check.warn("none: a restart forgets all locks", append),
            },
            Kept::Unknown => match evidence.config.get("save") {
                Some(Err(why)) => check.unknown(why),
                _ => check.unknown(&Unknown::NotAsked),
            },
        }
    })
}

pub(super) fn uptime(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("uptime", Group::Server);
    by_info(evidence, check, |info| {
        let Some(up) = info.number("uptime_in_seconds").map(Duration::from_secs) else {
            return check.moot("not known");
        };
        let since = format_duration(up);
        // A file that it begins later is written anew, which counts as a rewrite.
        let had_file = info.text("aof_last_rewrite_time_sec") == Some("-1")
            && info.text("aof_rewrite_in_progress") == Some("0");
        let finding = if matches!(kept(evidence, info), Kept::Log) && had_file {
            check.ok(format!("{since}, with the locks from before"))
        } else if up < measure.ttl {
            let left = format_duration(rounded_up(measure.ttl.saturating_sub(up)));
            check.warn(
                format!(
                    "restarted {since} ago: it may have forgotten locks whose leases aren't over"
                ),
                format!(
                    "wait {left}; runs with --restart-grace {} wait by themselves",
                    format_duration(measure.ttl)
                ),
            )
        } else {
            check.ok(since)
        };
        finding.with("uptime_s", up.as_secs())
    })
}

//! Replicas: whether they follow, may be promoted, and can confirm writes. Pure.

use std::time::Duration;

use super::super::evidence::{Evidence, Info, Replica, ReplicaEntry, SentinelEvidence};
use super::super::finding::{Check, Finding, Group};
use super::super::fix::{Fix, Repair};
use super::{counted, size, with_notes};
use crate::report::format_duration;

/// A replica that lags by more than this loses locks in a failover that it could have kept.
const BEHIND: u64 = 1_000_000;
const LAST_HEARD: Duration = Duration::from_secs(10);

pub(super) fn replicas(evidence: &Evidence) -> Finding {
    let places = evidence.replicas.iter().map(|it| it.entry.place());
    follow(evidence).with("replicas", places.collect::<Vec<_>>())
}

/// Whether they follow, and may be promoted.
fn follow(evidence: &Evidence) -> Finding {
    let check = Check("replicas", Group::Server);
    let info = known!(check, &evidence.info);
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
            "see that replica's log, and the network between it and the primary (INFO replication shows how it follows)",
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
                "{} in sync, but none can be promoted (replica-priority 0)",
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
        ": the replica with the lowest priority above 0 takes over first"
    } else {
        ""
    };
    let priorities = match known.len() {
        0 => String::new(),
        _ => format!("; replica-priority {priorities}{first}"),
    };
    check.ok(format!("{} in sync{behind}{priorities}", entries.len()))
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
            "`--sync all` is refused: the URL names {asked} of the {all} sentinels, and most of them have to agree"
        );
        let fix = format!(
            "add the others to the URL (SENTINEL SENTINELS {} lists them)",
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
            format!("the sentinels list a replica {absent}, but {unlisted} is connected: `--sync all` waits for {absent}"),
            format!("if both are the same server, set its replica-announce-ip and -port to {absent}"),
        ));
    }
    let confirmed = *evidence.acknowledged.as_ref().ok()?;
    let listed = listed.len();
    (usize::try_from(confirmed).is_ok_and(|confirmed| confirmed < listed)).then(|| {
        let replicas = counted(listed, "replica");
        SYNC.warn(
            format!(
                "{confirmed} of the {replicas} listed by the sentinels confirm writes in time: `--sync all` waits for all that are listed"
            ),
            FOLLOW,
        )
    })
}

/// Whether grants and renewals can be replicated before they count.
pub(super) fn sync(evidence: &Evidence) -> Finding {
    let check = SYNC;
    let info = known!(check, &evidence.info);
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
            "no replica: --sync isn't possible, and nothing takes over if this server dies",
            if info.is_on("cluster_enabled") {
                "start another node, and add it as a replica (redis-cli --cluster help: add-node)"
            } else {
                "start a replica (replicaof)"
            },
        ),
        (Err(why), _) => check.unknown(why),
        (Ok(confirmed), _) if *confirmed < many => check.warn(
            format!("{confirmed} of {replicas} confirm writes in time: runs with --sync may wait for the rest"),
            FOLLOW,
        ),
        (Ok(_), true) => check.ok(format!("`--sync all` is possible: {replicas} can confirm")),
        (Ok(_), false) => check.ok(format!(
            "`--sync {many}` is possible (`--sync all` with redis-sentinel://)"
        )),
    }
}

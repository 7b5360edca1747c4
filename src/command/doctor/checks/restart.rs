//! Restarts of the server: which locks it still knows after one. Pure.

use std::time::Duration;

use super::super::evidence::{Evidence, Info, Replica, Unknown};
use super::super::finding::{Check, Finding, Group};
use super::super::fix::Repair;
use super::{Measure, config_set, rounded_up};
use crate::report::format_duration;

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
    let info = known!(check, &evidence.info);
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
            "the server's log says why; usually the disk is full",
        ),
        Kept::Log if forgetful.is_some() => check.warn(
            format!(
                "append-only file, but replica {} keeps none: once that replica is the primary, a restart forgets locks",
                forgetful.unwrap_or_default()
            ),
            "set appendonly yes on that replica, too",
        ),
        Kept::Log => {
            let fsync = match evidence.config.get("appendfsync") {
                Some(Ok(fsync)) if fsync == "everysec" => {
                    " (appendfsync everysec): a crash may forget the last second".to_owned()
                }
                Some(Ok(fsync)) if fsync == "no" => {
                    " (appendfsync no): a crash of the host may forget the last 30s".to_owned()
                }
                Some(Ok(fsync)) => format!(" (appendfsync {fsync})"),
                _ => String::new(),
            };
            check.ok(format!("append-only file{fsync}"))
        }
        Kept::Snapshots if info.text("rdb_last_bgsave_status") == Some("err") => check.warn(
            "the last snapshot failed: a restart forgets all locks taken since the last successful snapshot",
            "the server's log says why; usually the disk is full",
        ),
        Kept::Snapshots => {
            let last = info.number("rdb_last_save_time");
            let last = last.and_then(|last| u64::try_from(measure.now).ok()?.checked_sub(last));
            let last = last.map_or(String::new(), |ago| {
                format!(", {} ago", format_duration(Duration::from_secs(ago)))
            });
            check.warn(
                format!("snapshots only: a crash forgets locks since the last snapshot{last}"),
                append,
            )
        }
        Kept::Nothing => match (has_replicas, supervisor) {
            (true, Some(supervisor)) => check.fail(
                format!(
                    "none, and {supervisor} restarts the server: it comes back empty, and its replicas then copy the empty data"
                ),
                append,
            ),
            (true, None) => check.warn(
                "none: a restarted primary is empty, and its replicas then copy the empty data",
                append,
            ),
            (false, _) => check.warn("none: a restart forgets all locks", append),
        },
        Kept::Unknown => match evidence.config.get("save") {
            Some(Err(why)) => check.unknown(why),
            _ => check.unknown(&Unknown::NotAsked),
        },
    }
}

pub(super) fn uptime(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("uptime", Group::Server);
    let info = known!(check, &evidence.info);
    let Some(up) = info.number("uptime_in_seconds").map(Duration::from_secs) else {
        return check.moot("not known");
    };
    let since = format_duration(up);
    // A file that it begins later is written anew, which counts as a rewrite.
    let had_file = info.text("aof_last_rewrite_time_sec") == Some("-1")
        && info.text("aof_rewrite_in_progress") == Some("0");
    let finding = if matches!(kept(evidence, info), Kept::Log) && had_file {
        check.ok(format!("{since}, with the locks from before the restart"))
    } else if up < measure.ttl {
        let left = format_duration(rounded_up(measure.ttl.saturating_sub(up)));
        check.warn(
            format!(
                "restarted {since} ago: the server may have forgotten locks whose leases haven't ended"
            ),
            format!("wait {left}"),
        )
    } else {
        check.ok(since)
    };
    finding.with("uptime_s", up.as_secs())
}

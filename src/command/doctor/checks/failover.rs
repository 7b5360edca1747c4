//! Failovers: what sentinels, or the nodes of a cluster, report, and whether leases outlive one. Pure.

use std::time::Duration;

use super::super::evidence::{Evidence, Sentinel, SentinelAnswer, SentinelEvidence, Unknown};
use super::super::finding::{Check, Finding, Group};
use super::super::fix::Repair;
use super::{Measure, counted, short, with_notes};
use crate::decide::lease::{Awaits, ttl_for_failover};
use crate::protocol::CLOCK_SKEW;
use crate::report::format_duration;

/// Each grant, renewal and new connection may have to wait for a sentinel.
const SLOW_SENTINEL: Duration = Duration::from_millis(250);

pub(super) fn sentinels(evidence: &Evidence, found: &SentinelEvidence) -> Finding {
    let check = Check("sentinels", Group::Network);
    let (asked, name) = (found.answers.len(), &found.primary);
    let answered = found.answered().count();
    let silent: Vec<(&str, String)> = found
        .answers
        .iter()
        .filter_map(|(one, answer)| {
            let why = answer.as_ref().err()?;
            Some((one.place.as_str(), why.to_string()))
        })
        .collect();
    let Some((first, answer)) = found.answered().next() else {
        // A wrong name or password says more than silence.
        let told = silent.iter().map(|(_, why)| why.as_str());
        let told = told
            .clone()
            .find(|why| !is_silence(why))
            .or(told.clone().next());
        let why = told.unwrap_or_default();
        return match why.split_once("; ") {
            None if why.contains("password for the sentinels") => check.fail(
                why,
                "correct sentinel_password in the URL, or the password in the file that the URL names",
            ),
            Some((message, fix)) if !is_silence(why) => check.fail(message, fix),
            _ => check
                .fail(
                    format!("none of {asked} answers: {why}"),
                    "start them, or correct their addresses in the URL",
                )
                .with_origin(found.origin.as_deref()),
        };
    };
    if let Some((other, differs)) = found
        .answered()
        .find(|(_, it)| it.primary != answer.primary)
    {
        return check.fail(
            format!(
                "{} says that {name} is {}, but {} says {}",
                first.place, answer.primary, other.place, differs.primary
            ),
            "if this lasts longer than a failover, see the sentinels' logs",
        );
    }
    let is_down = answer.flags.contains("down") && evidence.connected.is_err();
    let (known, quorum) = (known(found), quorum(found));
    let down = if is_down { ", which is down" } else { "" };
    let message = format!("{answered} of {asked} agree on {}{down}", answer.primary);
    let all = all(found);
    let finding = if quorum > all {
        let majority = (all / 2 + 1).to_string();
        let line = set_where(
            found,
            |it| it.quorum > all,
            &["SENTINEL", "SET", name, "quorum", &majority],
        );
        check.fail(
            format!("{message}, but the quorum is {quorum}, and there are only {all} sentinels"),
            Repair::Quorum.by(line),
        )
    } else if let Some((_, why)) = silent.first() {
        let why = why.strip_prefix("can't reach ").unwrap_or(why);
        let places: Vec<&str> = silent.iter().map(|(place, _)| *place).collect();
        let (give, fix) = match places.len() {
            1 => ("gives", "start it, or correct its address in the URL"),
            _ => ("give", "start them, or correct their addresses in the URL"),
        };
        check.warn(
            format!("{message}; {} {give} no answer: {why}", places.join(", ")),
            fix,
        )
    } else if let Some((one, slow)) = found.answered().find(|(_, it)| it.took >= SLOW_SENTINEL) {
        check.warn(
            format!(
                "{message}; {} took {} to answer",
                one.place,
                short(slow.took)
            ),
            "see the load of that sentinel's host, and the network to it",
        )
    } else if is_down {
        check.warn(message, "start it, or wait for the failover")
    } else if known < 3 {
        let sentinels = counted(usize::try_from(known).unwrap_or(usize::MAX), "sentinel");
        check.warn(
            format!("{message}; {sentinels} in all, so the failure of one prevents a failover"),
            "run three or more, each on its own host",
        )
    } else {
        check.ok(format!("{message}; quorum {quorum} of {known}"))
    };
    finding.with("quorum", quorum).with("known", known)
}

/// The command that changes a setting of those sentinels that need it, as they don't tell each other of their
/// settings.
fn set_where(
    found: &SentinelEvidence,
    needs_it: impl Fn(&SentinelAnswer) -> bool,
    words: &[&str],
) -> String {
    let those = found.answered().filter(|(_, answer)| needs_it(answer));
    let those: Vec<&Sentinel> = those.map(|(sentinel, _)| sentinel).collect();
    let lines: Vec<String> = those
        .iter()
        .map(|one| one.redis_cli.admin_line(words))
        .collect();
    let mut notes: Vec<&str> = those
        .iter()
        .filter_map(|one| one.redis_cli.note())
        .collect();
    notes.truncate(1);
    if known(found) > count(found.answers.len()) {
        notes.push("and do the same on the sentinels that the URL doesn't name");
    }
    with_notes(&lines.join(" && "), &notes)
}

fn count(many: usize) -> u64 {
    u64::try_from(many).unwrap_or(u64::MAX)
}

fn is_silence(why: &str) -> bool {
    why.starts_with("can't reach")
}

/// How many sentinels there are, as far as they know themselves. Those that have answered are some, also before they
/// have found each other.
fn known(found: &SentinelEvidence) -> u64 {
    let known = found.answered().map(|(_, it)| it.sentinels);
    known
        .max()
        .unwrap_or(0)
        .max(count(found.answered().count()))
}

/// How many there are with those of the URL that don't answer: a quorum is no less than their majority.
fn all(found: &SentinelEvidence) -> u64 {
    known(found).max(count(found.answers.len()))
}

fn quorum(found: &SentinelEvidence) -> u64 {
    found.answered().map(|(_, it)| it.quorum).max().unwrap_or(0)
}

/// Why no failover is possible now.
fn too_few(found: &SentinelEvidence) -> Option<String> {
    let (known, quorum) = (known(found), quorum(found));
    // That is said by the other check.
    if quorum > all(found) {
        return None;
    }
    let answered = count(found.answered().count());
    // The others, which the URL doesn't name, weren't asked.
    let others = known.saturating_sub(count(found.answers.len()));
    let most = (answered + others).min(known);
    let needed = quorum.max(known / 2 + 1);
    if most < needed {
        return Some(format!(
            "{most} of {known} sentinels answer, but a failover needs {needed}"
        ));
    }
    let said = found
        .answered()
        .find_map(|(one, it)| Some((one, it.no_quorum.as_ref()?)));
    said.map(|(one, why)| format!("{} reports that no failover can begin: {why}", one.place))
}

/// Default of --kill-after.
const KILL_AFTER: Duration = Duration::from_secs(5);

const FAILOVER: Check = Check("failover", Group::Network);

pub(super) fn failover(found: &SentinelEvidence, measure: Measure) -> Finding {
    let slowest = found.answered().map(|(_, it)| it);
    let Some(slowest) = slowest.max_by_key(|it| it.down_after) else {
        return FAILOVER.unknown(&Unknown::NotAsked);
    };
    if let Some(why) = too_few(found) {
        return FAILOVER.fail(
            format!("if the primary dies, no replica is promoted: {why}"),
            "start the sentinels that are down, and make sure that the sentinels reach each other",
        );
    }
    let message = format!(
        "begins {} after the primary's death, is retried after {}",
        format_duration(slowest.down_after),
        format_duration(2 * slowest.failover_timeout)
    );
    outlived(&message, slowest.down_after, measure, Awaits::Listed)
        .with("failover_timeout_ms", millis(slowest.failover_timeout))
}

/// The same for a cluster, where it says when its nodes take a primary for dead.
pub(super) fn cluster_failover(evidence: &Evidence, measure: Measure) -> Option<Finding> {
    let timeout = evidence.config.get("cluster-node-timeout")?.as_ref().ok()?;
    let timeout = Duration::from_millis(timeout.parse().ok()?);
    let message = format!(
        "begins {} after a primary's death",
        format_duration(timeout)
    );
    // A node that is replaced is known to be down.
    Some(outlived(&message, timeout, measure, Awaits::Connected))
}

/// Whether a lease outlives a failover that begins so long after the death of the primary; what `--sync all` awaits then.
fn outlived(message: &str, down_after: Duration, measure: Measure, awaits: Awaits) -> Finding {
    let needed = |awaits| ttl_for_failover(down_after, KILL_AFTER, CLOCK_SKEW, awaits);
    let (least, with_sync) = (needed(Awaits::None), needed(awaits));
    let ttl = format_duration(measure.ttl);
    let [shown, with_sync_shown] = [least, with_sync].map(format_duration);
    let finding = if measure.ttl < least {
        FAILOVER.warn(
            format!("{message}: leases of {ttl} may end before that failover is over"),
            format!("--ttl {shown} (REDLOCK_TTL), or {with_sync_shown} with `--sync all`"),
        )
    } else if measure.ttl < with_sync {
        FAILOVER.ok(format!(
            "{message}; leases of {ttl} outlive it; with `--sync all`, only leases of {with_sync_shown} do"
        ))
    } else {
        FAILOVER.ok(format!("{message}; leases of {ttl} outlive it"))
    };
    finding
        .with("down_after_ms", millis(down_after))
        .with("least_ttl_ms", millis(least))
        .with("least_ttl_with_sync_ms", millis(with_sync))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

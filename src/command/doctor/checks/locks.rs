//! Locks on the server: permissions, scripts, messages, and the key that is stored under a name. Pure.

use std::time::Duration;

use super::super::evidence::{Evidence, NamedLock, Probe, Subject, Unknown, Verdict};
use super::super::finding::{Check, Finding, Group};
use super::super::fix::{Fix, Repair};
use super::{Measure, counted, in_parts, micros, refuses_writes, short, with_notes};
use crate::protocol::{Key, Name};
use crate::report::{busy_line, format_duration, typed};

/// The rules with this verdict: those that are needed, and those that only help.
fn rules(probes: &[Probe], verdict: Verdict) -> (Vec<String>, Vec<String>) {
    let with = |is_needed: bool| {
        let found = probes.iter().filter(move |probe| {
            probe.verdict == verdict && probe.subject.is_needed() == is_needed
        });
        found.map(|probe| probe.subject.rule()).collect()
    };
    (with(true), with(false))
}

pub(super) fn commands(evidence: &Evidence) -> Finding {
    let check = Check("commands", Group::Locks);
    let probes = known!(check, &evidence.probes);
    if matches!(&evidence.info, Ok(info) if info.mode() == "sentinel") {
        return check.unknown(&Unknown::NotAsked);
    }
    let (missing, _) = rules(probes, Verdict::Missing);
    let names: Vec<String> = missing
        .iter()
        .map(|rule| rule.trim_start_matches('+').to_uppercase())
        .collect();
    if names.is_empty() {
        return check.ok("the server has every command that redlock uses");
    }
    let is_or_are = if names.len() == 1 { "is" } else { "are" };
    check
        .fail(
            format!(
                "{} {is_or_are} missing: renamed, disabled, or unknown to this server",
                names.join(", ")
            ),
            "remove its rename-command line (redis.conf), or use a server that has it",
        )
        .with("missing", names)
}

/// The commands that looking takes: `status` and `history`.
const LOOKING: &str = "evalsha eval get exists type pttl time hget hmget \
    hscan zrange zrank zscan zscore zcard zrangebyscore lrange";

/// Whether a user may look at locks, and do nothing with them.
fn may_only_look(probes: &[Probe]) -> bool {
    let (mut looks, mut writes) = (false, false);
    for Probe { subject, verdict } in probes {
        let is_permitted = *verdict == Verdict::Permitted;
        match subject {
            Subject::Command(name) if LOOKING.split(' ').any(|it| it == *name) => {
                if !is_permitted {
                    return false;
                }
                looks = true;
            }
            // These change nothing.
            Subject::Command("getrange" | "select") => {}
            Subject::Command(_) => writes |= is_permitted,
            Subject::Keys(_) if *verdict == Verdict::Denied => return false,
            Subject::Keys(_) | Subject::Optional(_) | Subject::Channels(_) => {}
        }
    }
    looks && !writes
}

/// The user, as messages and rules name it.
fn user(evidence: &Evidence) -> &str {
    evidence.user.as_deref().unwrap_or("default")
}

/// The command that gives our user these rules.
fn permit(evidence: &Evidence, rules: &[String]) -> Fix {
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let user = user(evidence);
    // It may be a password in the place of a user, which isn't shown.
    if user == HIDDEN {
        return format!("give the user in the URL {}", rules.join(" ")).into();
    }
    let cli = &evidence.redis_cli;
    let line = cli.admin_line(&[&["ACL", "SETUSER", user][..], &rules].concat());
    let mut notes: Vec<&str> = cli.note().into_iter().collect();
    if evidence.knows_replicas {
        notes.push("on each server");
    }
    notes.push("ACL SAVE or CONFIG REWRITE keeps it");
    Repair::Permit.by(with_notes(&line, &notes))
}

/// What is shown in the place of a user without a password.
const HIDDEN: &str = "***";

pub(super) fn permissions(evidence: &Evidence) -> Finding {
    let check = Check("permissions", Group::Locks);
    let probes = known!(check, &evidence.probes);
    let (needed, helpful) = rules(probes, Verdict::Denied);
    let user = user(evidence);
    if !needed.is_empty() && may_only_look(probes) {
        return check.fail(
            format!(
                "user \"{user}\" can read locks (status, history), but isn't permitted to acquire any"
            ),
            "ignore this if it is intended; otherwise use the URL of a user that acquires locks",
        );
    }
    let missing = [&needed[..], &helpful].concat();
    // What others hide may be missing as well.
    let (unclear, unclear_helpful) = rules(probes, Verdict::Unclear);
    let mut all = [&missing[..], &unclear].concat();
    for rule in unclear_helpful {
        // A user that has all channels can't be given one; of this one, which publishes and hears nothing, they are
        // no loss.
        if rule.starts_with('&') && !all.contains(&"resetchannels".to_owned()) {
            all.push("resetchannels".into());
        }
        all.push(rule);
    }
    if !needed.is_empty() {
        return check
            .fail(
                format!("user \"{user}\" lacks {}", needed.join(" ")),
                permit(evidence, &all),
            )
            .with("missing", missing);
    }
    if !helpful.is_empty() {
        // These are for what happens seldom.
        let in_changes = ["+asking", "+cluster|nodes"];
        let has = |wanted: &[&str]| helpful.iter().any(|rule| wanted.contains(&rule.as_str()));
        let without = if has(&in_changes) {
            "which redlock needs while nodes fail or hash slots move"
        } else if has(&["+info"]) {
            "which most checks of the server need"
        } else {
            "which redlock doesn't depend on"
        };
        return check
            .warn(
                format!("user \"{user}\" lacks {}, {without}", helpful.join(" ")),
                permit(evidence, &all),
            )
            .with("missing", missing);
    }
    check.ok(format!(
        "user \"{user}\" has every permission that redlock needs"
    ))
}

pub(super) fn scripts(evidence: &Evidence) -> Finding {
    let check = Check("scripts", Group::Locks);
    let trial = known!(check, &evidence.scripts);
    match &trial.failure {
        None => check
            .ok(format!(
                "acquired, waited, handed over, released: {} in {}",
                counted(usize::try_from(trial.done).unwrap_or(0), "call"),
                short(trial.took)
            ))
            .with("calls", trial.done)
            .with("took_us", micros(trial.took)),
        Some((_, error)) if refuses_writes(error) => check.unknown(&Unknown::NotAsked),
        Some((script, error)) => {
            let (message, fix) = in_parts(evidence, error);
            let fix = fix.unwrap_or_else(|| "is this server compatible with Redis?".into());
            check.fail(format!("{script}: {message}"), fix)
        }
    }
}

/// The line that does so stands at one check.
pub(super) const ADD_RULES: &str = "add the rules that are missing (permissions)";

/// What to do about messages that don't come: the reason may be one of these rules.
fn hear(evidence: &Evidence, wanted: &[&str]) -> &'static str {
    let denied = evidence
        .probes
        .as_ref()
        .map(|it| rules(it, Verdict::Denied));
    let is_denied = denied.is_ok_and(|(_, helpful)| {
        let mut helpful = helpful.iter();
        helpful.any(|rule| wanted.iter().any(|wanted| rule.starts_with(wanted)))
    });
    if is_denied { ADD_RULES } else { RESP3 }
}

/// What is done where RESP3 isn't spoken.
const RESP3: &str = "use Redis 6 or later, without a proxy that doesn't speak RESP3";

pub(super) fn messages(evidence: &Evidence) -> Finding {
    let check = Check("messages", Group::Locks);
    let heard = known!(check, &evidence.messages);
    let finding = if heard.was_granted {
        let publish = if heard.is_sharded {
            "SPUBLISH"
        } else {
            "PUBLISH"
        };
        check.ok(format!(
            "Redis notifies a waiter of its turn (RESP3, {publish})"
        ))
    } else {
        let why = match &heard.refused {
            Some(said) => format!(": {said}"),
            None if !heard.resp3 => ": no RESP3".into(),
            None if !heard.is_subscribed => ": it can't subscribe".into(),
            None => ": no message arrived".into(),
        };
        let fix = hear(
            evidence,
            &[
                "+publish",
                "+subscribe",
                "+spublish",
                "+ssubscribe",
                "+hello",
                "&",
            ],
        );
        check.warn(format!("waiters poll four times a second{why}"), fix)
    };
    finding
        .with("resp3", heard.resp3)
        .with("polls", !heard.was_granted)
}

pub(super) fn tracking(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("tracking", Group::Locks);
    let heard = known!(check, &evidence.messages);
    if heard.was_invalidated {
        return check.ok("Redis notifies a run at once when its lock is taken away");
    }
    let every = format_duration(measure.renewal());
    let fix = hear(evidence, &["+client", "+hello"]);
    check.warn(
        format!("a run notices a lost lock only at its next renewal, every {every}"),
        fix,
    )
}

pub(super) fn name(evidence: &Evidence) -> Option<Finding> {
    let check = Check("name", Group::Locks);
    Some(match evidence.named.as_ref()? {
        Ok(named) => named_lock(check, named, evidence.is_typed),
        Err(why) => check.unknown(why),
    })
}

/// A command of ours for the lock. A URL that was typed may have a password in it, and isn't repeated.
fn command(words: &[&str], lock: &Name, is_typed: bool) -> (String, &'static str) {
    let url = if is_typed {
        ", with the same --url"
    } else {
        ""
    };
    (typed(words, lock), url)
}

fn named_lock(check: Check, named: &NamedLock, is_typed: bool) -> Finding {
    if let Some(stranger) = named.strangers.first() {
        let key = &stranger.key;
        let more = match named.strangers.len() {
            1 => String::new(),
            many => format!(" (and {} more)", counted(many - 1, "key")),
        };
        let found = type_name(&stranger.found);
        return check.fail(
            format!("key {key} is {found} of another program, not a lock{more}"),
            "choose another name or --prefix: that program may still need its key",
        );
    }
    let Some(found) = &named.found else {
        return check.unknown(&Unknown::Failed("its state can't be read".into()));
    };
    let key = &named.key;
    let lock = &found.name;
    match (&found.key, found.busy()) {
        (Key::NotALock(kind), _) => check.fail(
            format!("key {key} is {} of another program", type_name(kind)),
            "choose another name or --prefix: that program may still need its key",
        ),
        (Key::Held(holds), _)
            if holds
                .iter()
                .any(|hold| hold.holder.is_none() && hold.left.is_none()) =>
        {
            check.fail(
                format!("key {key} of another client has no expiry: the lock never becomes free"),
                {
                    let (line, url) = command(&["release", "--force"], lock, is_typed);
                    format!(
                        "first make sure that the program that set the key is dead; then {line}{url}"
                    )
                },
            )
        }
        (_, Some(busy)) => {
            let message = busy_line(lock, &busy);
            check.ok(message
                .strip_prefix("lock ")
                .map_or(message.clone(), str::to_owned))
        }
        (_, None) => match &found.frozen {
            Some(frozen) => {
                let left = Duration::from_millis(frozen.until_ms.saturating_sub(found.now_ms));
                check.warn(
                    format!("\"{lock}\" is frozen for {} more", format_duration(left)),
                    thaw(lock, is_typed),
                )
            }
            None => check.ok(format!("\"{lock}\" is free")),
        },
    }
}

fn thaw(lock: &Name, is_typed: bool) -> Fix {
    match command(&["thaw"], lock, is_typed) {
        (line, "") => Repair::Thaw.by(line),
        (line, url) => format!("{line}{url}").into(),
    }
}

/// A type of keys in a sentence.
fn type_name(kind: &str) -> String {
    match kind {
        "zset" => "a sorted set".into(),
        "stream" | "set" | "list" | "hash" | "string" => format!("a {kind}"),
        other => format!("a {other}"),
    }
}

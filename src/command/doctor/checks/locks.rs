//! Locks on the server: what is permitted, the scripts, messages, and what is stored under a name. Pure.

use std::time::Duration;

use super::super::finding::{Check, Finding, Group};
use super::{Measure, counted, in_parts, micros, redis_cli, refuses_writes, short};
use crate::lock::Key;
use crate::lock::doctor::{Evidence, NamedLock, Probe, Unknown, Verdict};
use crate::report::{busy_line, format_duration, held_back, typed};

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
    let probes = match &evidence.probes {
        Ok(probes) => probes,
        Err(why) => return check.unknown(why),
    };
    if matches!(&evidence.info, Ok(info) if info.mode() == "sentinel") {
        return check.unknown(&Unknown::NotAsked);
    }
    let (missing, _) = rules(probes, Verdict::Missing);
    let names: Vec<String> = missing
        .iter()
        .map(|rule| rule.trim_start_matches('+').to_uppercase())
        .collect();
    if names.is_empty() {
        return check.ok("the server has all that redlock uses");
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

pub(super) fn permissions(evidence: &Evidence) -> Finding {
    let check = Check("permissions", Group::Locks);
    let probes = match &evidence.probes {
        Ok(probes) => probes,
        Err(why) => return check.unknown(why),
    };
    let (needed, helpful) = rules(probes, Verdict::Denied);
    let user = evidence.user.as_deref().unwrap_or("default");
    let add = |rules: &[String]| {
        let words: Vec<&str> = rules.iter().map(String::as_str).collect();
        redis_cli(evidence, &[&["ACL", "SETUSER", user][..], &words].concat())
    };
    if !needed.is_empty() {
        let all = [&needed[..], &helpful].concat();
        return check
            .fail(
                format!("user \"{user}\" lacks {}", needed.join(" ")),
                add(&all),
            )
            .with("missing", all);
    }
    if !helpful.is_empty() {
        // These are for what happens seldom.
        let in_changes = ["+asking", "+cluster|nodes"];
        let without = if helpful
            .iter()
            .any(|rule| in_changes.contains(&rule.as_str()))
        {
            "which it needs while nodes fail or slots move"
        } else {
            "which redlock can do without"
        };
        return check
            .warn(
                format!("user \"{user}\" lacks {}, {without}", helpful.join(" ")),
                add(&helpful),
            )
            .with("missing", helpful);
    }
    check.ok(format!("user \"{user}\" may do all that redlock does"))
}

pub(super) fn scripts(evidence: &Evidence) -> Finding {
    let check = Check("scripts", Group::Locks);
    let trial = match &evidence.scripts {
        Ok(trial) => trial,
        Err(why) => return check.unknown(why),
    };
    match &trial.failure {
        None => check
            .ok(format!(
                "acquired, waited, handed on, released: {} in {}",
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

/// The rules among the probes that would help, as a command to type.
fn rule_for(evidence: &Evidence, wanted: &[&str]) -> Option<String> {
    let probes = evidence.probes.as_ref().ok()?;
    let (_, helpful) = rules(probes, Verdict::Denied);
    let rules: Vec<&str> = helpful
        .iter()
        .map(String::as_str)
        .filter(|rule| wanted.iter().any(|wanted| rule.starts_with(wanted)))
        .collect();
    let user = evidence.user.as_deref().unwrap_or("default");
    let words = [&["ACL", "SETUSER", user][..], &rules].concat();
    (!rules.is_empty()).then(|| redis_cli(evidence, &words))
}

/// What is done where RESP3 isn't spoken.
const RESP3: &str = "Redis 6 or later, without a proxy in between that doesn't speak RESP3";

pub(super) fn messages(evidence: &Evidence) -> Finding {
    let check = Check("messages", Group::Locks);
    let heard = match &evidence.messages {
        Ok(heard) => heard,
        Err(why) => return check.unknown(why),
    };
    let finding = if heard.was_granted {
        let publish = if heard.is_sharded {
            "SPUBLISH"
        } else {
            "PUBLISH"
        };
        check.ok(format!(
            "a waiter is notified of its turn (RESP3, {publish})"
        ))
    } else {
        let why = match &heard.refused {
            Some(said) => format!(": {said}"),
            None if !heard.resp3 => ": no RESP3".into(),
            None if !heard.is_subscribed => ": it can't subscribe".into(),
            None => ": no message arrived".into(),
        };
        let fix = rule_for(
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
        check.warn(
            format!("waiters poll, four times a second{why}"),
            fix.unwrap_or_else(|| RESP3.into()),
        )
    };
    finding
        .with("resp3", heard.resp3)
        .with("polls", !heard.was_granted)
}

pub(super) fn tracking(evidence: &Evidence, measure: Measure) -> Finding {
    let check = Check("tracking", Group::Locks);
    let heard = match &evidence.messages {
        Ok(heard) => heard,
        Err(why) => return check.unknown(why),
    };
    if heard.was_invalidated {
        return check.ok("a run learns at once that its lock was taken away");
    }
    let every = format_duration(measure.renewal());
    let fix = rule_for(evidence, &["+client", "+hello"]);
    check.warn(
        format!("a run learns of a lost lock with its next renewal only, every {every}"),
        fix.unwrap_or_else(|| RESP3.into()),
    )
}

pub(super) fn name(evidence: &Evidence) -> Option<Finding> {
    let check = Check("name", Group::Locks);
    Some(match evidence.named.as_ref()? {
        Ok(named) => named_lock(check, named),
        Err(why) => check.unknown(why),
    })
}

fn named_lock(check: Check, named: &NamedLock) -> Finding {
    if let Some(stranger) = named.strangers.first() {
        let key = &stranger.key;
        let more = match named.strangers.len() {
            1 => String::new(),
            many => format!(" (and {} more)", counted(many - 1, "key")),
        };
        let found = type_name(&stranger.found);
        return check.fail(
            format!("key {key} is {found} of another program, not a lock's{more}"),
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
                format!("key {key} has no expiry, and isn't redlock's: it never becomes free"),
                format!(
                    "first make sure that the program that set it is dead; then {}",
                    typed(&["release", "--force"], lock)
                ),
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
                    typed(&["thaw"], lock),
                )
            }
            None => match found.restarted {
                Some(restarted) => {
                    let (left, why) = held_back(restarted, found.now_ms, Duration::ZERO);
                    check.ok(format!("\"{lock}\" is held back for {left} more: {why}"))
                }
                None => check.ok(format!("\"{lock}\" is free")),
            },
        },
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

//! `redlock expect`: whether a run has succeeded in time, for those who watch that jobs run at all.
//!
//! [`late_line`] and what it calls are pure; the rest fetches what it needs, and keeps in Redis what is expected.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};

use super::never_used::{mistaken, refuse_mistaken};
use super::usage::{BadUsage, name};
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration;
use crate::protocol::{Client, Expectation, HoldOutcome, Inspected, LockHistory, Name, SkipReason};
use crate::report::{
    self, Verbosity, client_in_words, escaped, expectation as usually, print, whole_seconds,
};

/// Checks what is expected of one lock, or of all.
pub fn expect(options: &cli::Expect, settings: &Settings) -> Result<Exit> {
    let locks = &settings.locks;
    let mut client = locks.open()?;
    client.ask_role()?;
    let known = locks.expected(&mut client)?;
    client.refuse_replica()?;
    let Some(text) = &options.name else {
        return expect_all(&known, &mut client, settings);
    };
    let name = name(text)?;
    if options.forget {
        return forget(&name, &mut client, settings);
    }
    let before = known.iter().find(|known| known.name == name);
    if before.is_none() && !options.new {
        let found = locks.inspect(&mut client, std::slice::from_ref(&name))?;
        if let Some(line) = mistaken(&found, &mut client, locks)? {
            report::error(format_args!("{line} (--new expects it)"));
            return Ok(Exit::NeverUsed);
        }
    }
    let expectation = of_one(name, options, before)?;
    let is_changed = before.is_none_or(|before| often(before) != often(&expectation));
    if is_changed {
        let was = before.map_or(String::new(), |before| format!(" (was {})", often(before)));
        settings.verbosity.info(format_args!(
            "lock \"{}\" is {} from now on{was}",
            expectation.name,
            often(&expectation)
        ));
    }
    let names = std::slice::from_ref(&expectation.name);
    let found = locks.inspect_with_usual(&mut client, names)?;
    let lock = found.first().context("Redis has answered nothing")?;
    let checked = check(expectation, lock, &mut client, settings)?;
    locks.expect(&mut client, &checked.expectation)?;
    if checked.is_late {
        print(&(checked.line + "\n"))?;
        return Ok(Exit::Late);
    }
    Ok(Exit::Success)
}

/// Shows what is expected of all locks, the late ones first.
fn expect_all(known: &[Expectation], client: &mut Client, settings: &Settings) -> Result<Exit> {
    if known.is_empty() {
        // A server that has lost its data is no reason to be silent.
        report::error(
            "nothing is expected of any lock; to expect it: redlock expect NAME --every DURATION",
        );
        return Ok(Exit::Late);
    }
    let names: Vec<Name> = known.iter().map(|one| one.name.clone()).collect();
    let found = settings.locks.inspect_with_usual(client, &names)?;
    let mut all = Vec::new();
    for (before, lock) in known.iter().zip(&found) {
        let checked = check(before.clone(), lock, client, settings)?;
        settings
            .locks
            .note_success(client, before, &checked.expectation)?;
        all.push(checked);
    }
    settings.locks.keep_expected(client)?;
    all.sort_by_key(|checked| !checked.is_late);
    let is_late = all.iter().any(|checked| checked.is_late);
    let shown = all
        .into_iter()
        .filter(|checked| checked.is_late || settings.verbosity != Verbosity::Quiet);
    let lines: String = shown.map(|checked| checked.line + "\n").collect();
    print(&lines)?;
    Ok(if is_late { Exit::Late } else { Exit::Success })
}

/// What came of an expectation.
struct Checked {
    /// With the last success that was seen.
    expectation: Expectation,
    is_late: bool,
    line: String,
}

fn check(
    mut expectation: Expectation,
    lock: &Inspected,
    client: &mut Client,
    settings: &Settings,
) -> Result<Checked> {
    // A clock that was ahead has noted what is still to come.
    let past = |at: &u64| *at <= lock.now_ms;
    let seen = expectation.succeeded_ms.filter(past);
    expectation.succeeded_ms = seen.max(lock.record.succeeded_ms.filter(past));
    let is_late = judge_time(&expectation, lock.now_ms).is_err();
    let line = if is_late {
        let names = std::slice::from_ref(&expectation.name);
        let history = settings.locks.history(client, names, true)?.pop();
        late_line(&expectation, lock, history.as_ref())
    } else {
        in_time_line(&expectation, lock.now_ms)
    };
    Ok(Checked {
        expectation,
        is_late,
        line,
    })
}

/// What is expected of a lock: as it is typed, and else as it was before.
fn of_one(name: Name, options: &cli::Expect, before: Option<&Expectation>) -> Result<Expectation> {
    let every = options.every.or(before.map(|before| before.every));
    let Some(every) = every else {
        let line = format!("nothing is expected of lock \"{name}\" yet; give --every DURATION");
        return Err(BadUsage(line).into());
    };
    let within = options.within.or(before.map(|before| before.within));
    Ok(Expectation {
        every,
        within: within.unwrap_or_default(),
        succeeded_ms: before.and_then(|before| before.succeeded_ms),
        name,
    })
}

fn forget(name: &Name, client: &mut Client, settings: &Settings) -> Result<Exit> {
    let was_expected = settings.locks.expect_no_more(client, name)?;
    settings.verbosity.info(if was_expected {
        format!("nothing is expected of lock \"{name}\" any more")
    } else {
        format!("nothing was expected of lock \"{name}\"")
    });
    if was_expected {
        return Ok(Exit::Success);
    }
    let found = settings.locks.inspect(client, std::slice::from_ref(name))?;
    let exit = refuse_mistaken(&found, client, &settings.locks)?;
    Ok(exit.unwrap_or(Exit::Success))
}

/// How long ago the last success was, if that is in time; else the same as an error, if there was any.
fn judge_time(expectation: &Expectation, now_ms: u64) -> Result<Duration, Option<Duration>> {
    let succeeded = expectation.succeeded_ms;
    let ago = succeeded.map(|at| Duration::from_millis(now_ms.saturating_sub(at)));
    let most = expectation.every.saturating_add(expectation.within);
    ago.filter(|ago| *ago <= most).ok_or(ago)
}

fn in_time_line(expectation: &Expectation, now_ms: u64) -> String {
    let ago = judge_time(expectation, now_ms).unwrap_or_default();
    let (name, ago) = (expectation.name.as_str(), whole_seconds(ago));
    format!("{name}: ok, succeeded {ago} ago ({})", often(expectation))
}

/// `nightly: late: last success 27h12m ago (expected every 26h); 3 failures since, the last with status 1 on web-2;
/// no success on web-3; held by ci@web-1 (pid 7) for 2h10m; usually done in 4m`.
fn late_line(expectation: &Expectation, lock: &Inspected, history: Option<&LockHistory>) -> String {
    let last = match judge_time(expectation, lock.now_ms) {
        Err(Some(ago)) | Ok(ago) => format!("last success {} ago", whole_seconds(ago)),
        Err(None) => "no run has ever succeeded".into(),
    };
    let mut parts = vec![format!("{last} ({})", often(expectation))];
    if let Some(history) = history {
        parts.extend(failures(history, expectation.succeeded_ms));
        parts.extend(never_on(history));
    }
    if let Some(frozen) = &lock.frozen {
        parts.push(format!(
            "frozen by {}",
            report::client_and_reason(&frozen.who)
        ));
    }
    for hold in lock.holders().take(1) {
        let Some(holder) = &hold.holder else {
            parts.push("held by another client".into());
            continue;
        };
        let running = Duration::from_millis(lock.now_ms.saturating_sub(holder.since_ms));
        let stopping = hold
            .stopping
            .as_ref()
            .map(|by| format!(", {}", report::stopping(by, &holder.who, lock.now_ms)));
        let usual = lock
            .usual
            .map(|usual| format!("; {}", usually(usual, running)));
        parts.push(format!(
            "held by {} for {}{}{}",
            client_in_words(&holder.who),
            whole_seconds(running),
            stopping.unwrap_or_default(),
            usual.unwrap_or_default()
        ));
    }
    let line = format!("{}: late: {}", expectation.name, parts.join("; "));
    escaped(&line).into_owned()
}

/// How many runs have failed since the last success, and how the last one of them ended.
fn failures(history: &LockHistory, succeeded_ms: Option<u64>) -> Option<String> {
    let since = succeeded_ms.unwrap_or(0);
    let failed: Vec<_> = history
        .holds
        .iter()
        .filter(|hold| hold.ended_ms.is_some_and(|ended| ended > since))
        .filter(|hold| !matches!(hold.outcome, HoldOutcome::Status(0) | HoldOutcome::Released))
        .collect();
    let last = failed.iter().max_by_key(|hold| hold.ended_ms)?;
    let count = match failed.len() {
        1 => "1 failure since".to_owned(),
        more => format!("{more} failures since, the last"),
    };
    let how = match &last.outcome {
        HoldOutcome::Status(status) => format!("with status {status}"),
        HoldOutcome::Signal(signal) => format!("by signal {signal}"),
        HoldOutcome::Timeout => "by --timeout".into(),
        HoldOutcome::Cancelled(Some(by)) => format!("stopped by {}", client_in_words(by)),
        HoldOutcome::Forced(Some(by)) => format!("forced out by {}", client_in_words(by)),
        other => format!("({})", other.kind()),
    };
    Some(format!("{count} {how} on {}", last.who.host))
}

/// The hosts that have wanted to run it and have never succeeded, as far as the history goes; others have.
fn never_on(history: &LockHistory) -> Option<String> {
    let hold = |hold: &crate::protocol::HistoryEntry| hold.outcome == HoldOutcome::Status(0);
    let succeeded: BTreeSet<&str> = history
        .holds
        .iter()
        .filter(|one| hold(one))
        .map(|one| one.who.host.as_str())
        .collect();
    // One that skips a run as another host has just run it is as it should be.
    let skips = history
        .skips
        .iter()
        .filter(|skip| skip.reason != SkipReason::Recent);
    let tried = history.holds.iter().map(|one| one.who.host.as_str());
    let tried: BTreeSet<&str> = tried
        .chain(skips.map(|skip| skip.who.host.as_str()))
        .collect();
    let never: Vec<&str> = tried.difference(&succeeded).copied().collect();
    let is_worth_saying = !succeeded.is_empty() && !never.is_empty();
    is_worth_saying.then(|| format!("no success on {}", never.join(", ")))
}

fn often(expectation: &Expectation) -> String {
    let every = duration::exact(expectation.every);
    if expectation.within.is_zero() {
        return format!("expected every {every}");
    }
    let within = duration::exact(expectation.within);
    format!("expected every {every}, within {within}")
}

//! `redlock stop`: asks the holder of a lock to stop, and waits until the lock is handed over.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};

use super::change::{change, with_last_words};
use super::inspections::Inspections;
use super::selection::{Selection, is_watched, kept, look, select};
use crate::cli;
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::milliseconds;
use crate::job::identity::own_request;
use crate::protocol::{Error, HistoryEntry, Hold, HoldOutcome, Inspected, Kept, LockHistory, Name};
use crate::report;
use crate::usage::{name, refuse};

/// Asks holders to stop, and waits for them unless `--no-wait` is given.
pub fn stop(options: &cli::Stop, settings: &Settings) -> Result<Exit> {
    let name = name(&options.name)?;
    let lock = settings.locks.lock(name.clone());
    let (mut client, state) = look(&name, settings)?;
    let (at, id) = (report::at_server(&settings.locks), options.id.as_deref());
    let holds = match select(&state, id, options.all) {
        Selection::Holders(holds) => holds,
        Selection::Waiter(waiting) => {
            let who = report::client_in_words(&waiting.waiter.who);
            let remove = report::typed(&["release", "--force", "--id", &waiting.id], &name);
            let line = format!(
                "{who} only waits for lock \"{name}\"{at}; to remove it from the queue: {remove}"
            );
            return refuse(Exit::Lost, line);
        }
        other => return other.refuse(&state, id, &mut client, settings),
    };
    // Checked before any holder gets the request.
    if let Some(line) = holds.iter().find_map(|hold| unwatched(&state, &at, hold)) {
        return refuse(Exit::Lost, line);
    }
    let by = own_request(settings, options.reason.as_deref());
    let began = now();
    let first = holds.first().and_then(|hold| hold.holder.as_ref());
    let count = u32::try_from(holds.len()).unwrap_or(u32::MAX);
    let whom = report::holder_and_others(first, count);
    let may = format_args!("{whom} may have been asked to stop");
    change(&name, may, || {
        // A holder that has ended meanwhile needs no request; a lock that is only kept by now is free soon.
        let mut holds = holds.iter();
        holds.try_for_each(|hold| lock.stop(&mut client, &hold.id, &by))
    })?;
    if options.no_wait {
        let signs = |hold: &&Hold| no_sign_of_life(&name, hold, state.now_ms);
        for line in holds.iter().filter_map(signs) {
            settings.verbosity.info(line);
        }
        let line = format!("asked {whom} to stop; \"{name}\"{at} is released after that");
        settings.verbosity.info(line);
        return Ok(Exit::Success);
    }
    let looks = Inspections::new(client, settings, std::slice::from_ref(&name), began);
    await_end(&name, &holds, &whom, looks)
}

/// Waits until the holders have ended, and reports the state of the lock.
fn await_end(name: &Name, holds: &[&Hold], whom: &str, mut looks: Inspections) -> Result<Exit> {
    let interrupted = format!(
        "interrupted, but the request stands: \"{name}\" is handed over once {whom} has stopped"
    );
    let after = with_last_words(interrupted, || wait_until_gone(holds, whom, &mut looks))?;
    if let Some(line) = lost_first(holds, whom, &mut looks) {
        return refuse(Exit::Lost, line);
    }
    let at = report::at_server(&looks.settings.locks);
    let took = report::format_duration(now().since(looks.began));
    let becomes = match after.holds() {
        [] => "is free",
        _ => "was handed over",
    };
    let freeze = after.frozen.map_or("", |_| ", and stays frozen");
    let line = format!("asked {whom} to stop; \"{name}\"{at} {becomes} after {took}{freeze}");
    looks.settings.verbosity.info(line);
    Ok(Exit::Success)
}

/// Returns the reason why a holder can't be stopped, if there is one. `at` is the server.
fn unwatched(state: &Inspected, at: &str, hold: &Hold) -> Option<String> {
    let (name, id) = (&state.name, &hold.id);
    let whom = report::holder_and_others(hold.holder.as_ref(), 1);
    let force = report::typed(&["release", "--force", "--id", id], name);
    match kept(hold) {
        Some(Kept::AtLeast) => {
            let left = report::format_duration(hold.left.unwrap_or_default());
            Some(format!(
                "nothing runs under lock \"{name}\"{at}: it is kept for {left} more after {whom} has ended (--hold-at-least); to free it now: {force}"
            ))
        }
        None if !is_watched(hold) => Some(format!(
            "no redlock process supervises {whom} under lock \"{name}\"{at}, so there is nothing to stop. To free the lock anyway: {force}"
        )),
        Some(Kept::ForGuards) | None => None,
    }
}

/// Waits until none of these holders has the lock. Returns the lock's state after that.
///
/// # Errors
/// Fails if the server is away for as long as the leases last, because there is nothing left to wait for.
fn wait_until_gone(holds: &[&Hold], whom: &str, looks: &mut Inspections) -> Result<Inspected> {
    let mut silent = HashSet::new();
    let leases = holds.iter().filter_map(|hold| hold.left).max();
    let leases = leases.unwrap_or_default();
    loop {
        let failed = || format!("asked {whom} to stop, but couldn't confirm that it did");
        // Waits through an outage, because the server was reachable before.
        let Some(lock) = looks.ask(leases).with_context(failed)?.pop() else {
            continue;
        };
        let is_asked = |hold: &&Hold| holds.iter().any(|asked| asked.id == hold.id);
        let mut at_work: Vec<&Hold> = lock.holds().iter().filter(is_asked).collect();
        at_work.retain(|hold| kept(hold) != Some(Kept::AtLeast));
        if at_work.is_empty() {
            report::status_line(None);
            return Ok(lock);
        }
        for hold in &at_work {
            if let Some(line) = no_sign_of_life(&lock.name, hold, lock.now_ms)
                && silent.insert(hold.id.clone())
            {
                looks.settings.verbosity.info(line);
            }
        }
        let began = looks.began;
        let line = || {
            let (name, lasting) = (&lock.name, report::whole_seconds(now().since(began)));
            let seen = at_work.first().filter(|hold| has_seen(hold, lock.now_ms));
            let both = seen.and_then(|hold| hold.stopping.as_ref().zip(hold.holder.as_ref()));
            let killed = both.map(|(by, it)| report::killed_in(by, &it.who, lock.now_ms));
            let killed = killed.unwrap_or_default();
            format!(
                "waited {lasting} so far for {whom} to stop and release lock \"{name}\"{killed}"
            )
        };
        looks.pause("", None, line);
    }
}

/// Returns a message if, according to the history, a hold ended before its command did.
fn lost_first(holds: &[&Hold], whom: &str, looks: &mut Inspections) -> Option<String> {
    let mut how = None;
    let end_of = |entry: &HistoryEntry| {
        let id = &entry.hold.as_ref()?.id;
        match entry.outcome {
            _ if !holds.iter().any(|hold| hold.id == *id) => None,
            HoldOutcome::Expired => Some("its lease expired"),
            HoldOutcome::Forced => Some("it was forced free"),
            _ => None,
        }
    };
    let read = |history: LockHistory| {
        how = history.entries.iter().find_map(end_of);
        Ok::<_, Error>(true)
    };
    let (settings, client) = (looks.settings, &mut looks.client);
    let read = settings.locks.each_history(client, looks.names, read);
    let how = how.filter(|_| read.is_ok())?;
    Some(format!(
        "asked {whom} to stop, but {how} before its command had ended; the command may still run"
    ))
}

/// Delay after which a command that should have been killed is overdue.
const KILL_TAKES: Duration = Duration::from_secs(2);

/// Returns the message that a holder may be dead, with the command that frees its lock.
fn no_sign_of_life(name: &Name, hold: &Hold, now_ms: u64) -> Option<String> {
    let (ago, who) = (hold.renewed_ago()?, &hold.running()?.who);
    let within = milliseconds(who.grace() + KILL_TAKES);
    let is_late = asked_at(hold).is_some_and(|asked| now_ms >= asked.saturating_add(within));
    // A run that has seen the request and can't kill its command is alive:
    // freeing its lock would start another command beside it.
    if hold.overdue().is_none() && (!is_late || has_seen(hold, now_ms)) {
        return None;
    }
    let whom = report::client_in_words(who);
    let left = hold.left.unwrap_or_default();
    let [ago, left] = [ago, left].map(report::whole_seconds);
    let force = report::typed(&["release", "--force", "--id", &hold.id], name);
    Some(format!(
        "no sign of life from {whom} for {ago}; if its host is dead, the lock passes on in {left}; to free lock \"{name}\" now: {force}"
    ))
}

/// Returns true if the run has renewed its lease since the request
/// to stop, because the renewal's answer contained the request.
fn has_seen(hold: &Hold, now_ms: u64) -> bool {
    let renewed = hold.renewed_ago().map(milliseconds);
    let both = asked_at(hold).zip(renewed);
    both.is_some_and(|(asked, ago)| asked.saturating_add(ago) <= now_ms)
}

/// Returns the time of the request to stop, in milliseconds of the server's clock.
fn asked_at(hold: &Hold) -> Option<u64> {
    hold.stopping.as_ref()?.asked_at
}

//! `redlock stop`: ask the holder of a lock to stop, and wait until its lock is handed over.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};

use super::change::{change, with_last_words};
use super::identity::own_request;
use super::looks::Looks;
use super::never_used::{is_unused, refuse_mistaken};
use super::selection::{Selection, refuse_unclear, select};
use super::usage::{name, refuse};
use crate::cli;
use crate::clock::{Moment, now};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration::milliseconds;
use crate::protocol::{
    Client, Error, HistoryEntry, Hold, HoldOutcome, Holder, Inspected, Kept, Key, Lock,
    LockHistory, Name,
};
use crate::report;

/// Asks the holder to end.
pub fn stop(options: &cli::Stop, settings: &Settings) -> Result<Exit> {
    let name = name(&options.name)?;
    let lock = settings.locks.lock(name.clone());
    let (mut client, found) = look(&name, settings)?;
    let at = report::at_server(&settings.locks);
    let holds = match select(&found, options.id.as_deref(), options.all) {
        Selection::Holders(holds) => holds,
        Selection::Waiter(waiting) => {
            let who = report::client_in_words(&waiting.waiter.who);
            let remove = report::typed(&["release", "--force", "--id", &waiting.id], &name);
            let line = format!(
                "{who} only waits for lock \"{name}\"{at}; to remove it from the queue: {remove}"
            );
            return refuse(Exit::Lost, line);
        }
        other => {
            let id = options.id.as_deref();
            return refuse_selection(&other, &found, id, &mut client, settings);
        }
    };
    // Before any of them is asked.
    if let Some(line) = holds.iter().find_map(|hold| unwatched(&found, &at, hold)) {
        return refuse(Exit::Lost, line);
    }
    let by = own_request(settings, options.reason.as_deref());
    let asked = now();
    let whom = whom(&holds);
    let may = format_args!("{whom} may have been asked to stop");
    change(&name, may, || {
        // A holder that has ended meanwhile is what was wanted; one that is only kept by now ends soon.
        let mut holds = holds.iter();
        holds.try_for_each(|hold| lock.stop(&mut client, &hold.id, &by))
    })?;
    if options.no_wait {
        let signs = |hold: &&Hold| no_sign_of_life(&name, hold, found.now_ms);
        for line in holds.iter().filter_map(signs) {
            settings.verbosity.info(line);
        }
        let fate = match found.frozen {
            Some(_) => "stays frozen",
            None => "is handed over",
        };
        settings.verbosity.info(format_args!(
            "asked {whom} to stop; \"{name}\"{at} {fate} after that"
        ));
        return Ok(Exit::Success);
    }
    await_end(&holds, &lock, asked, client, settings)
}

/// Waits until the holders have ended, and says what became of the lock.
fn await_end(
    holds: &[&Hold],
    lock: &Lock,
    asked: Moment,
    client: Client,
    settings: &Settings,
) -> Result<Exit> {
    let (name, whom) = (lock.name(), whom(holds));
    let mut looks = Looks::new(client, settings, std::slice::from_ref(name), asked);
    let interrupted = format!(
        "interrupted, but the request stands: \"{name}\" is handed over once {whom} has stopped"
    );
    let after = with_last_words(interrupted, || {
        wait_until_gone(holds, &whom, asked, &mut looks, settings)
    })?;
    if let Some(line) = lost_first(holds, lock, &mut looks.client, settings) {
        return refuse(Exit::Lost, line);
    }
    let (at, took) = (report::at_server(&settings.locks), now().since(asked));
    let took = report::format_wait(took);
    let is_free = after.holds().is_empty();
    let becomes = if is_free {
        "is free"
    } else {
        "was handed over"
    };
    let freeze = after.frozen.map_or("", |_| ", and stays frozen");
    settings.verbosity.info(format_args!(
        "asked {whom} to stop; \"{name}\"{at} {becomes} after {took}{freeze}"
    ));
    Ok(Exit::Success)
}

/// Looks at a lock that is to be changed, and refuses a replica.
pub(super) fn look(name: &Name, settings: &Settings) -> Result<(Client, Inspected)> {
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let found = settings.locks.inspect_one(&mut client, name)?;
    client.refuse_replica()?;
    Ok((client, found))
}

/// Refuses a selection that means nobody, or may mean several.
pub(super) fn refuse_selection(
    selection: &Selection,
    found: &Inspected,
    id: Option<&str>,
    client: &mut Client,
    settings: &Settings,
) -> Result<Exit> {
    if let Selection::Unclear(lines) = selection {
        refuse_unclear(found, id, lines);
        return Ok(Exit::Usage);
    }
    refuse_mistaken([found], client, &settings.locks)?;
    let at = report::at_server(&settings.locks);
    let line = nobody(found, id, &at) + &report::after_refusal(&settings.locks);
    refuse(Exit::Lost, line)
}

/// Who was asked, in a sentence.
fn whom(holds: &[&Hold]) -> String {
    let first = holds.first().and_then(|hold| hold.holder.as_ref());
    let count = u32::try_from(holds.len()).unwrap_or(u32::MAX);
    report::holder_and_others(first, count)
}

/// Returns the message that there is nobody to stop. `at`: the server.
fn nobody(found: &Inspected, id: Option<&str>, at: &str) -> String {
    let name = &found.name;
    match (&found.key, found.holds(), id) {
        (Key::NotALock(kind), ..) => {
            format!("\"{name}\"{at} is not a lock: its key is a {kind}; left unchanged")
        }
        (_, [_, _, ..], Some(id)) => {
            format!(
                "no holder of lock \"{name}\"{at} has an id that begins with {id}; nothing was changed; `{}` lists them",
                report::typed(&["status"], name)
            )
        }
        (_, [first], Some(_)) => held_by_other(name, at, first.holder.as_ref(), &first.id),
        _ if is_unused(found) => format!("lock \"{name}\"{at} was never used"),
        _ => format!("lock \"{name}\"{at} is not held"),
    }
}

/// Returns the message that the id is another holder's. `at`: the server.
pub(super) fn held_by_other(name: &Name, at: &str, holder: Option<&Holder>, id: &str) -> String {
    let whose = report::holder_and_others(holder, 1);
    format!(
        "the id you gave isn't the holder's: {whose} holds lock \"{name}\"{at} with id {id}; nothing was changed"
    )
}

/// Returns why the run of a hold is over and keeps the lock, if that is so.
pub(super) fn kept(hold: &Hold) -> Option<Kept> {
    hold.holder.as_ref()?.kept
}

/// Returns true if a process supervises the hold, and will notice that it lost the lock.
pub(super) fn is_watched(hold: &Hold) -> bool {
    let holder = hold.holder.as_ref();
    holder.is_some_and(|holder| holder.kept.is_none() && holder.who.instance.is_some())
}

/// Returns why a holder can't be stopped, if no process supervises its hold. `at`: the server.
fn unwatched(found: &Inspected, at: &str, hold: &Hold) -> Option<String> {
    let (name, id) = (&found.name, &hold.id);
    let whom = report::holder_and_others(hold.holder.as_ref(), 1);
    let force = report::typed(&["release", "--force", "--id", id], name);
    match kept(hold) {
        Some(Kept::ForGuards) => None,
        Some(Kept::AtLeast) => {
            let left = report::format_duration(hold.left.unwrap_or_default());
            Some(format!(
                "nothing runs under lock \"{name}\"{at}: it is kept for {left} more after {whom} has ended (--hold-at-least); to free it now: {force}"
            ))
        }
        None if is_watched(hold) => None,
        None => Some(format!(
            "no redlock process supervises {whom} under lock \"{name}\"{at}, so there is nothing to stop. To free the lock anyway: {force}"
        )),
    }
}

/// Pause between looks: Redis doesn't report that one of several holders has left, and a person waits.
const LOOK_OFTEN: Duration = Duration::from_millis(250);

/// Waits until none of these holds the lock any more; the lock after that.
///
/// # Errors
/// That of a server that has been away for as long as the leases last: there is nothing left to wait for.
fn wait_until_gone(
    holds: &[&Hold],
    whom: &str,
    began: Moment,
    looks: &mut Looks,
    settings: &Settings,
) -> Result<Inspected> {
    let mut silent = HashSet::new();
    let leases = holds.iter().filter_map(|hold| hold.left).max();
    let leases = leases.unwrap_or_default();
    loop {
        // The server was reached before, so it may come back.
        let looked = looks.ask(leases);
        let (looked, mut found) = looked
            .with_context(|| format!("asked {whom} to stop, but couldn't confirm that it did"))?;
        let Some(found) = found.pop() else {
            continue;
        };
        let asked: Vec<&Hold> = still_held(&found, holds).collect();
        if asked.is_empty() {
            report::status_line(None);
            return Ok(found);
        }
        for hold in &asked {
            if let Some(line) = no_sign_of_life(&found.name, hold, found.now_ms)
                && silent.insert(hold.id.clone())
            {
                settings.verbosity.info(line);
            }
        }
        let is_over = asked.iter().all(|hold| kept(hold) == Some(Kept::ForGuards));
        let guards = if is_over { "the guards of " } else { "" };
        let line = |at: Moment| {
            let (name, lasting) = (&found.name, report::whole_seconds(at.since(began)));
            let now_ms = found.now_ms.saturating_add(milliseconds(at.since(looked)));
            let seen = asked.first().filter(|hold| has_seen(hold, found.now_ms));
            let killed = seen.and_then(|hold| killed_in(hold, now_ms));
            let killed = killed.unwrap_or_default();
            format!(
                "waited {lasting} so far for {guards}{whom} to stop and release lock \"{name}\"{killed}"
            )
        };
        looks.wait_until(looked + LOOK_OFTEN, ("", None), line)?;
    }
}

/// Returns when the command of a holder that was asked to stop gets SIGKILL.
fn killed_in(hold: &Hold, now_ms: u64) -> Option<String> {
    let (by, holder) = (hold.stopping.as_ref()?, hold.holder.as_ref()?);
    Some(report::killed_in(by, &holder.who, now_ms))
}

/// What is known of a hold that is gone, and that its command has not ended: it lost the lock first. The
/// history knows how it ended.
fn lost_first(
    holds: &[&Hold],
    lock: &Lock,
    client: &mut Client,
    settings: &Settings,
) -> Option<String> {
    let mut how = None;
    let end_of = |entry: &HistoryEntry| {
        let id = &entry.hold.as_ref()?.id;
        match entry.outcome {
            _ if !holds.iter().any(|hold| hold.id == *id) => None,
            HoldOutcome::Expired => Some("its lease expired".to_owned()),
            HoldOutcome::Forced => {
                let by = entry.by.as_ref().map(report::client_in_words);
                let by = by.map_or(String::new(), |by| format!(" by {by}"));
                Some(format!("it was forced free{by}"))
            }
            _ => None,
        }
    };
    let read = |history: LockHistory| {
        how = history.entries.iter().find_map(end_of);
        Ok::<_, Error>(true)
    };
    let names = std::slice::from_ref(lock.name());
    settings.locks.each_history(client, names, read).ok()?;
    let how = how?;
    Some(format!(
        "asked {} to stop, but {how} before its command had ended; the command may still run",
        whom(holds)
    ))
}

/// Those of these holds that still have the lock while their commands run.
fn still_held<'a>(found: &'a Inspected, asked: &[&Hold]) -> impl Iterator<Item = &'a Hold> {
    let holds = found.holds().iter();
    let is_asked = |hold: &&Hold| asked.iter().any(|asked| asked.id == hold.id);
    holds.filter(move |hold| kept(hold) != Some(Kept::AtLeast) && is_asked(hold))
}

/// Delay after which a command that should have got SIGKILL is overdue.
const KILL_TAKES: Duration = Duration::from_secs(2);

/// That a holder may never do what it was asked to, and what to type then.
fn no_sign_of_life(name: &Name, hold: &Hold, now_ms: u64) -> Option<String> {
    let is_silent = is_silent(hold, now_ms) || hold.overdue().is_some();
    let ago = hold.renewed_ago().filter(|_| is_silent)?;
    let whom = report::holder_and_others(hold.holder.as_ref(), 1);
    let left = hold.left.unwrap_or_default();
    let [ago, left] = [ago, left].map(report::whole_seconds);
    let force = report::typed(&["release", "--force", "--id", &hold.id], name);
    Some(format!(
        "no sign of life from {whom} for {ago}; if its host is dead, the lock passes on in {left}; to free lock \"{name}\" now: {force}"
    ))
}

/// Returns true if a holder that was asked to stop should have released its lock by now. A run that has seen the request
/// and can't kill its command is alive: freeing its lock would start another beside it.
fn is_silent(hold: &Hold, now_ms: u64) -> bool {
    let (Some(asked), Some(holder)) = (asked_at(hold), &hold.holder) else {
        return false;
    };
    let within = milliseconds(holder.who.grace() + KILL_TAKES);
    now_ms >= asked.saturating_add(within) && !has_seen(hold, now_ms)
}

/// Returns true if the run has renewed its lease since it was asked to stop: the answer has shown it the request.
fn has_seen(hold: &Hold, now_ms: u64) -> bool {
    let renewed = hold.renewed_ago().map(milliseconds);
    let both = asked_at(hold).zip(renewed);
    both.is_some_and(|(asked, ago)| asked.saturating_add(ago) <= now_ms)
}

/// Returns when a holder was asked to stop, in milliseconds of the server's clock.
fn asked_at(hold: &Hold) -> Option<u64> {
    hold.stopping.as_ref()?.asked
}

//! `redlock stop`: ask the holder of a lock to stop, and wait until its lock is handed over.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result};

use super::change::{change, with_last_words};
use super::identity::{masked, own_identity};
use super::looks::{LOOK_EVERY, Looks};
use super::never_used::{is_unused, refuse_mistaken};
use super::selection::{Selection, refuse_unclear, select};
use super::usage::name;
use crate::cli;
use crate::clock::{Moment, now};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{
    Client, Error, GuardEntry, HistoryEntry, Hold, HoldOutcome, Holder, Inspected, Kept, Key,
    Limit, Lock, LockHistory, Name, Renewal, StopReply, Who,
};
use crate::report;

/// Asks the holder to end.
pub fn stop(options: &cli::Stop, settings: &Settings) -> Result<Exit> {
    let name = name(&options.name)?;
    let lock = settings.locks.lock(name.clone());
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let found = &settings.locks.inspect_one(&mut client, &name)?;
    client.refuse_replica()?;
    let at = report::at_server(&settings.locks);
    let holds = match select(found, options.id.as_deref(), options.all) {
        Selection::Holders(holds) => holds,
        Selection::Unclear(lines) => {
            refuse_unclear(found, options.id.as_deref(), &lines);
            return Ok(Exit::Usage);
        }
        Selection::Waiter(waiting) => {
            let who = report::client_in_words(&waiting.waiter.who);
            let remove = report::typed(&["release", "--force", "--id", &waiting.id], &name);
            report::error(format_args!(
                "{who} only waits for lock \"{name}\"{at}; to remove it from the queue: {remove}"
            ));
            return Ok(Exit::Lost);
        }
        Selection::Nobody => {
            if let Some(exit) = refuse_mistaken([found], &mut client, &settings.locks)? {
                return Ok(exit);
            }
            report::error(nobody(found, options.id.as_deref(), &at));
            return Ok(Exit::Lost);
        }
    };
    // Before any of them is asked.
    if let Some(line) = holds.iter().find_map(|hold| unwatched(found, &at, hold)) {
        report::error(line);
        return Ok(Exit::Lost);
    }
    let by = Who {
        reason: masked(options.reason.as_deref()),
        ..own_identity(settings)
    };
    let asked = now();
    let whom = whom(&holds);
    let may = format_args!("{whom} may have been asked to stop");
    change(std::slice::from_ref(&name), may, || {
        holds.iter().try_for_each(|hold| {
            // One that has ended meanwhile is what was wanted; one that is only kept by now ends soon.
            let _: StopReply = lock.stop(&mut client, &hold.id, &by)?;
            Ok(())
        })
    })?;
    if options.no_wait {
        for line in holds
            .iter()
            .filter_map(|hold| no_sign_of_life(&name, hold, found.now_ms))
        {
            settings.verbosity.info(line);
        }
        settings.verbosity.info(format_args!(
            "asked {whom} to stop; \"{name}\"{at} is handed over after that"
        ));
        return Ok(Exit::Success);
    }
    let names = std::slice::from_ref(&name);
    let mut looks = Looks::new(client, settings, names, asked);
    let interrupted = format!(
        "interrupted, but the request stands: \"{name}\" is handed over once {whom} has stopped"
    );
    let after = with_last_words(interrupted, || {
        wait_until_gone(&holds, &whom, asked, &mut looks, settings)
    })??;
    if let Some(line) = lost_first(&holds, &lock, &mut looks.client, settings) {
        report::error(line);
        return Ok(Exit::Lost);
    }
    let took = in_tenths(now().since(asked));
    settings.verbosity.info(format_args!(
        "asked {whom} to stop; \"{name}\"{at} {} after {took}{}",
        if after.holds().is_empty() {
            "is free"
        } else {
            "was handed over"
        },
        if after.frozen.is_some() {
            ", and stays frozen"
        } else {
            ""
        },
    ));
    Ok(Exit::Success)
}

/// Who was asked, in a sentence.
fn whom(holds: &[&Hold]) -> String {
    let first = holds.first().and_then(|hold| hold.holder.as_ref());
    let count = u32::try_from(holds.len()).unwrap_or(u32::MAX);
    report::holder_and_others(first, count)
}

/// Returns the message that there is nobody to stop. `at`: the server.
pub(super) fn nobody(found: &Inspected, id: Option<&str>, at: &str) -> String {
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

/// Returns why a holder can't be stopped, if no process supervises its hold. `at`: the server.
fn unwatched(found: &Inspected, at: &str, hold: &Hold) -> Option<String> {
    let (name, id) = (&found.name, &hold.id);
    let force = report::typed(&["release", "--force", "--id", id], name);
    match &hold.holder {
        Some(holder) if holder.kept == Some(Kept::ForGuards) => None,
        Some(holder) if holder.kept.is_some() => {
            let (whom, left) = (
                report::client_in_words(&holder.who),
                hold.left.unwrap_or_default(),
            );
            let left = report::format_duration(left);
            Some(format!(
                "nothing runs under lock \"{name}\"{at}: it is kept for {left} more after {whom} has ended (--hold-at-least); to free it now: {force}"
            ))
        }
        Some(holder) if holder.who.instance.is_some() => None,
        other => {
            let whom = report::holder_and_others(other.as_ref(), 1);
            Some(format!(
                "no redlock process supervises {whom} under lock \"{name}\"{at}, so there is nothing to stop. To free the lock anyway: {force}"
            ))
        }
    }
}

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
    // One of several that leave a lock doesn't change its key, so Redis doesn't tell us.
    let is_group = |hold: &&Hold| {
        let holder = hold.holder.as_ref();
        holder.is_some_and(|holder| holder.limit != Limit::EXCLUSIVE)
    };
    let every = if holds.iter().any(is_group) {
        LOOK_EVERY / 8
    } else {
        LOOK_EVERY
    };
    // It was reached before: it may come back.
    let gives_up = |since: Moment, at: Moment| at.since(since) >= leases;
    loop {
        let looked = looks.ask(gives_up);
        let mut looked = looked
            .with_context(|| format!("asked {whom} to stop, but couldn't confirm that it did"))?;
        let Some(found) = looked.found.pop() else {
            continue;
        };
        let asked: Vec<&Hold> = still_held(&found, holds).collect();
        for hold in &asked {
            if let Some(line) = no_sign_of_life(&found.name, hold, found.now_ms)
                && silent.insert(hold.id.clone())
            {
                settings.verbosity.info(line);
            }
        }
        if asked.is_empty() {
            report::status_line(None);
            return Ok(found);
        }
        let guards: Vec<&GuardEntry> = asked.iter().flat_map(|hold| &hold.guards).collect();
        let is_over = asked.iter().all(|hold| {
            let holder = hold.holder.as_ref();
            holder.is_some_and(|holder| holder.kept == Some(Kept::ForGuards))
        });
        let waited_for = match guards.first() {
            Some(first) if is_over => guards_in_words(first, guards.len()),
            _ => whom.to_owned(),
        };
        let killed_in = |at: Moment| {
            let since = u64::try_from(at.since(looked.at).as_millis()).unwrap_or(0);
            let hold = asked.first().filter(|_| !is_over)?;
            let (by, whom) = (hold.stopping.as_ref()?, &hold.holder.as_ref()?.who);
            has_seen(hold, by, found.now_ms).then_some(())?;
            Some(report::killed_in(
                by,
                whom,
                found.now_ms.saturating_add(since),
            ))
        };
        let line = |at: Moment| {
            let (name, lasting) = (&found.name, report::whole_seconds(at.since(began)));
            let killed = killed_in(at).unwrap_or_default();
            format!(
                "waited {lasting} so far for {waited_for} to stop and release lock \"{name}\"{killed}"
            )
        };
        let silent_in = asked
            .iter()
            .filter_map(|hold| silent_from(hold)?.checked_sub(found.now_ms))
            .filter(|ms| *ms > 0)
            .map(Duration::from_millis);
        let next = silent_in.fold(every, Duration::min);
        looks.wait_until(looked.at + next, ("", None), line)?;
    }
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
    holds.filter(|hold| !is_kept(hold) && asked.iter().any(|asked| asked.id == hold.id))
}

/// Delay after which a command that should have got SIGKILL is overdue.
const KILL_TAKES: Duration = Duration::from_secs(2);

/// Returns from when (ms of the server's clock) a holder that is asked to stop should have released its lock.
fn silent_from(hold: &Hold) -> Option<u64> {
    let (by, whom) = (hold.stopping.as_ref()?, &hold.holder.as_ref()?.who);
    let within = u64::try_from((whom.grace() + KILL_TAKES).as_millis()).ok()?;
    Some(by.asked?.saturating_add(within))
}

/// That a holder may never do what it was asked to, and what to type then.
fn no_sign_of_life(name: &Name, hold: &Hold, now_ms: u64) -> Option<String> {
    // A run that has seen the request and can't kill its command is alive: freeing its lock would start another beside it.
    let is_silent = silent_from(hold).is_some_and(|from| now_ms >= from)
        && !hold
            .stopping
            .as_ref()
            .is_some_and(|by| has_seen(hold, by, now_ms));
    let ago = match hold.renewal() {
        Renewal::Overdue(ago) => ago,
        Renewal::Ago(ago) if is_silent => ago,
        Renewal::Unknown | Renewal::None | Renewal::Ago(_) => return None,
    };
    let whom = report::holder_and_others(hold.holder.as_ref(), 1);
    let left = hold.left.unwrap_or_default();
    let [ago, left] = [ago, left].map(report::whole_seconds);
    let force = report::typed(&["release", "--force", "--id", &hold.id], name);
    Some(format!(
        "no sign of life from {whom} for {ago}; if its host is dead, the lock passes on in {left}; to free lock \"{name}\" now: {force}"
    ))
}

/// Returns true if the run has renewed its lease since it was asked to stop: the answer has shown it the request.
fn has_seen(hold: &Hold, by: &Who, now_ms: u64) -> bool {
    let (Renewal::Ago(ago) | Renewal::Overdue(ago)) = hold.renewal() else {
        return false;
    };
    let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
    by.asked
        .is_some_and(|asked| asked.saturating_add(ago) <= now_ms)
}

/// The work elsewhere that is waited for: `the guard root@web-1 (pid 312)`.
fn guards_in_words(first: &GuardEntry, count: usize) -> String {
    let whom = report::client_in_words(&first.who);
    match count {
        1 => format!("the guard {whom}"),
        more => format!("the guard {whom} and {} more", more - 1),
    }
}

/// Its command has ended, and so has all that guards it, whatever keeps the lock.
fn is_kept(hold: &Hold) -> bool {
    let holder = hold.holder.as_ref();
    holder.is_some_and(|holder| holder.kept == Some(Kept::AtLeast))
}

/// `1.2s`, and from ten seconds on without the tenths.
fn in_tenths(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        return format!("{:.1}s", duration.as_secs_f64());
    }
    report::format_duration(duration)
}

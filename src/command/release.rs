//! `redlock release`: release a lock by its token, or take it from its holder by force.

use anyhow::{Context, Result};

use super::change::change;
use super::identity::{masked, own_identity};
use super::job::{self, Held};
use super::never_used::refuse_mistaken;
use super::selection::{Selection, refuse_unclear, select};
use super::stop::{held_by_other, nobody};
use super::usage::{BadUsage, name};
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{
    Busy, Claim, Client, Forced, Hold, Inspected, Key, Lock, Name, ReleaseMode, Released, Renewal,
    Who,
};
use crate::report;
use crate::supervise::environment;

/// Releases a lock.
pub fn release(options: &cli::Release, settings: &Settings) -> Result<Exit> {
    if options.force {
        let names = environment::names();
        let Some(text) = options.ours.name.as_ref().or(names.as_ref()) else {
            return Err(BadUsage("no lock NAME given, and $REDLOCK_NAME is not set".into()).into());
        };
        let lock = settings.locks.lock(name(text)?);
        return force(&lock, options, settings);
    }
    match job::held(&options.ours, settings)? {
        Held::Unknown(name) => refuse(&name, settings),
        Held::Claims(claims) => {
            let mut client = settings.locks.open()?;
            // A replica refuses a release only where there is something to release.
            client.ask_role()?;
            let mut exit = Exit::Success;
            for claim in claims {
                let name = claim.lock().name();
                if options.ours.token_file.is_none()
                    && environment::is_reentered(name, claim.token())
                {
                    settings
                        .verbosity
                        .verbose(format_args!("the outer job still holds lock \"{name}\""));
                    continue;
                }
                if give_back(&claim, &mut client, settings)? != Exit::Success {
                    exit = Exit::Lost;
                }
            }
            Ok(exit)
        }
    }
}

fn give_back(claim: &Claim, client: &mut Client, settings: &Settings) -> Result<Exit> {
    let patience = client.longest(1);
    let (released, _) =
        claim.release_or_retry(client, &ReleaseMode::ByJob, patience, None, || {})?;
    client.refuse_replica()?;
    match released {
        Released::Kept { left, for_guards } => {
            if for_guards {
                settings.verbosity.info(format_args!(
                    "lock \"{}\" is kept until its guards have ended, for at most {}",
                    claim.lock().name(),
                    report::format_duration(left)
                ));
            }
            Ok(Exit::Success)
        }
        Released::Now | Released::HandedOn => {
            settings
                .verbosity
                .verbose(format_args!("released lock \"{}\"", claim.lock().name()));
            Ok(Exit::Success)
        }
        Released::Before => {
            let name = claim.lock().name();
            report::error(format_args!("lock \"{name}\" was already released"));
            Ok(Exit::Lost)
        }
        Released::NotOurs(loss) => {
            let name = claim.lock().name();
            let at = report::at_server(&settings.locks);
            report::error(report::not_held(name, &at, &loss));
            Ok(Exit::Lost)
        }
    }
}

/// Without a token: reports the holder of the lock, and changes nothing.
fn refuse(name: &Name, settings: &Settings) -> Result<Exit> {
    let mut client = settings.locks.open()?;
    let found = &settings.locks.inspect_one(&mut client, name)?;
    let at = report::at_server(&settings.locks);
    if let ([first, ..], Some(busy)) = (found.holds(), found.busy()) {
        // A freeze doesn't concern the holder.
        let busy = Busy {
            frozen: None,
            ..busy
        };
        let (line, id) = (report::busy_line(name, &at, &busy), &first.id);
        let stop = if is_watched(first) {
            format!("to stop its command: {}; ", report::typed(&["stop"], name))
        } else {
            String::new()
        };
        let force = report::typed(&["release", "--force", "--id", id], name);
        report::error(format_args!(
            "{line}; {stop}to force the lock free at once: {force}"
        ));
    } else if let Some(exit) = refuse_mistaken([found], &mut client, &settings.locks)? {
        return Ok(exit);
    } else {
        report::error(nobody(found, None, &at));
    }
    Ok(Exit::Lost)
}

/// Frees a lock from its holders, or removes a waiter from its queue.
fn force(lock: &Lock, options: &cli::Release, settings: &Settings) -> Result<Exit> {
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let name = lock.name();
    let id = options.id.as_deref();
    let found = &settings.locks.inspect_one(&mut client, name)?;
    client.refuse_replica()?;
    let at = report::at_server(&settings.locks);
    let (holds, id) = match select(found, id, options.all) {
        Selection::Unclear(lines) => {
            refuse_unclear(found, id, &lines);
            return Ok(Exit::Usage);
        }
        Selection::Holders(holds)
            if id.is_none() && !options.all && !options.yes && report::can_ask() =>
        {
            if !agrees(found)? {
                report::error("nothing was changed");
                return Ok(Exit::Lost);
            }
            // While that was waited for, the connection may have been closed.
            client.disconnect();
            // No newer holder than the one that was shown.
            let id = holds.first().map(|hold| hold.id.clone());
            (holds, id)
        }
        Selection::Holders(holds) => {
            let id = id.and_then(|_| Some(holds.first()?.id.clone()));
            (holds, id)
        }
        Selection::Waiter(waiting) => (Vec::new(), Some(waiting.id.clone())),
        // What isn't a lock is found by the script, which changes it never.
        Selection::Nobody if matches!(found.key, Key::NotALock(_)) => (Vec::new(), None),
        Selection::Nobody => {
            if let Some(exit) = refuse_mistaken([found], &mut client, &settings.locks)? {
                return Ok(exit);
            }
            report::error(nobody(found, id, &at));
            return Ok(Exit::Lost);
        }
    };
    let by = Who {
        reason: masked(options.reason.as_deref()),
        ..own_identity(settings)
    };
    let may = match holds[..] {
        [] => format!("a waiter may have been removed from the queue of lock \"{name}\""),
        _ => format!("lock \"{name}\" may have been forced free"),
    };
    let freed = change(std::slice::from_ref(name), may, || {
        lock.force(&mut client, id.as_deref(), &by)
    })?;
    match freed {
        Forced::Freed { holder, others } => {
            let whose = report::holder_and_others(holder.as_ref(), 1);
            let beside = match others {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            let aftermath = aftermath(&holds);
            settings.verbosity.info(format_args!(
                "lock \"{name}\"{at} forced free; it was held by {whose}{beside}{aftermath}"
            ));
            Ok(Exit::Success)
        }
        Forced::WaiterRemoved(waiter) => {
            let who = waiter.map_or("a waiter".into(), |waiter| {
                report::client_in_words(&waiter.who)
            });
            settings.verbosity.info(format_args!(
                "removed {who} from the queue of lock \"{name}\"{at}; its run gives up"
            ));
            Ok(Exit::Success)
        }
        Forced::WasFree => {
            report::error(format_args!("lock \"{name}\"{at} is not held"));
            Ok(Exit::Lost)
        }
        Forced::HeldByOther(id, holder) => {
            report::error(held_by_other(name, &at, holder.as_ref(), &id));
            Ok(Exit::Lost)
        }
    }
}

/// Asks on the terminal whether this holder is really to lose its lock.
fn agrees(found: &Inspected) -> Result<bool> {
    let name = &found.name;
    if let Some(busy) = found.busy() {
        let busy = Busy {
            frozen: None,
            ..busy
        };
        report::error(report::busy_line(name, "", &busy));
    }
    let question = if let Some(not_renewed) = found.holds().first().and_then(report::not_renewed) {
        format!("{not_renewed}; its command may still run; force the lock free?")
    } else if found.holds().iter().any(is_watched) {
        let silence = match found.holds().first().map(Hold::renewal) {
            Some(Renewal::Ago(ago)) => {
                format!(
                    "its last sign of life was {} ago; ",
                    report::whole_seconds(ago)
                )
            }
            _ => String::new(),
        };
        format!(
            "{silence}`{}` waits until its command is dead; force the lock free all the same?",
            report::typed(&["stop"], name)
        )
    } else {
        "no redlock process supervises this hold, so a job that relies on it keeps running; force the lock free?"
            .to_owned()
    };
    report::ask(&question).context("can't read the answer")
}

/// Whether a process watches over the hold, and will notice that it lost the lock.
fn is_watched(hold: &Hold) -> bool {
    let holder = hold.holder.as_ref();
    holder.is_some_and(|holder| holder.kept.is_none() && holder.who.instance.is_some())
}

/// What becomes of the work of those that lost the lock.
fn aftermath(holds: &[&Hold]) -> String {
    if let [hold] = holds
        && let Some(not_renewed) = report::not_renewed(hold)
    {
        return format!("; {not_renewed}: make sure that its command is dead");
    }
    let watched = holds.iter().filter(|hold| is_watched(hold)).count();
    let is_kept = |hold: &&Hold| {
        hold.holder
            .as_ref()
            .is_some_and(|holder| holder.kept.is_some())
    };
    if holds.iter().all(is_kept) {
        return String::new();
    }
    let becomes = match (watched, holds.len()) {
        (0, _) => {
            "; no redlock process supervised this hold, so a job that relied on it keeps running"
        }
        (1, 1) => "; its command is being stopped, unless it runs with REDLOCK_ON_LOST=warn",
        (watched, all) if watched == all => {
            "; their commands are being stopped, except with REDLOCK_ON_LOST=warn"
        }
        _ => {
            "; supervised commands are being stopped (except with REDLOCK_ON_LOST=warn); the rest keep running"
        }
    };
    becomes.to_owned()
}

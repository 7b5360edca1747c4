//! `redlock release`: releases a lock by its token, or takes it from its holder by force.

use anyhow::{Context, Result};

use super::change::change;
use super::selection::{Selection, is_watched, kept, look, not_the_holder, select};
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::job::identity::own_request;
use crate::job::surrounding;
use crate::protocol::{Claim, Client, Forced, Hold, Inspected, Key, Name, ReleaseMode, Released};
use crate::report;
use crate::supervise::environment;
use crate::usage::{Refusal, name, refuse};

/// Releases the locks of a job, or forces a lock free.
pub fn release(options: &cli::Release, settings: &Settings) -> Result<Exit> {
    if options.force {
        let given = options.ours.name.clone().or_else(environment::names);
        let name = name(&given.ok_or_else(|| Refusal(Exit::Usage, surrounding::NO_NAME.into()))?)?;
        return force(&name, options, settings);
    }
    let claims = match surrounding::claims(&options.ours, settings)? {
        Ok(claims) => claims,
        Err(name) => return refuse_without_token(&name, settings),
    };
    let mut client = settings.locks.open()?;
    // A replica refuses a release only if there is a lock to release.
    client.ask_role()?;
    let mut exit = Exit::Success;
    for claim in claims {
        let name = claim.lock().name();
        if options.ours.token_file.is_none() && environment::is_reentered(name, claim.token()) {
            let line = format_args!("the outer job still holds lock \"{name}\"");
            settings.verbosity.verbose(line);
        } else if !give_back(&claim, &mut client, settings)? {
            exit = Exit::Lost;
        }
    }
    Ok(exit)
}

/// Releases a lock by its token. Reports the failure and returns false if this job no longer held the lock.
fn give_back(claim: &Claim, client: &mut Client, settings: &Settings) -> Result<bool> {
    let (name, patience) = (claim.lock().name(), client.timeout());
    let verbosity = settings.verbosity;
    let (released, _) =
        claim.release_or_retry(client, &ReleaseMode::ByJob, patience, None, || {})?;
    client.refuse_replica()?;
    let was_held = matches!(released, Released::Kept { .. } | Released::Now);
    match released {
        Released::Kept {
            left,
            for_guards: true,
        } => verbosity.info(format_args!(
            "lock \"{name}\" is kept until its guards have ended, for at most {}",
            report::format_duration(left)
        )),
        Released::Kept { .. } => {}
        Released::Now => verbosity.verbose(format_args!("released lock \"{name}\"")),
        Released::Before => {
            report::error(format_args!("lock \"{name}\" was already released"));
        }
        Released::NotOurs(loss) => {
            report::error(report::not_held(name, &settings.locks, &loss));
        }
    }
    Ok(was_held)
}

/// Reports the holder of a lock whose token is unknown, and changes nothing.
fn refuse_without_token(name: &Name, settings: &Settings) -> Result<Exit> {
    let mut client = settings.locks.open()?;
    let lock = settings.locks.inspect_one(&mut client, name)?;
    let at = report::at_server(&settings.locks);
    let (Some(first), Some(busy)) = (lock.holds().first(), lock.busy()) else {
        return Selection::Nobody.refuse(&lock, None, &mut client, settings);
    };
    let line = report::busy_line(name, &at, &busy);
    let stop = report::typed(&["stop"], name);
    let stop = is_watched(first).then(|| format!("to stop its command: {stop}; "));
    let stop = stop.unwrap_or_default();
    let force = report::typed(&["release", "--force", "--id", &first.id], name);
    let line = format!("{line}; {stop}to force the lock free at once: {force}");
    refuse(Exit::Lost, line)
}

/// Takes a lock from its holders, or removes a waiter from its queue.
fn force(name: &Name, options: &cli::Release, settings: &Settings) -> Result<Exit> {
    let (mut client, lock) = look(name, settings)?;
    let (given, at) = (options.id.as_deref(), report::at_server(&settings.locks));
    let (holds, waiter) = match select(&lock, given, options.all) {
        Selection::Holders(holds) => (holds, None),
        Selection::Waiter(waiting) => (Vec::new(), Some(waiting.id.as_str())),
        // The script reports a key that isn't a lock, and doesn't change it.
        Selection::Nobody if matches!(lock.key, Key::NotALock(_)) => (Vec::new(), None),
        other => return other.refuse(&lock, given, &mut client, settings),
    };
    let shown = waiter.or_else(|| holds.first().map(|hold| hold.id.as_str()));
    let may_ask = given.is_none() && !options.all && !options.yes;
    let asks = may_ask && !holds.is_empty() && report::can_ask();
    if asks {
        if !agrees(&lock)? {
            return refuse(Exit::Lost, "nothing was changed".into());
        }
        // The server may have closed the connection while the user was thinking.
        client.disconnect();
    }
    // The id protects a newer holder than the displayed one.
    let id = shown.filter(|_| asks || given.is_some());
    let by = own_request(settings, options.reason.as_deref());
    let may = format_args!("lock \"{name}\" or its queue may have been changed");
    let freed = change(name, may, || {
        let lock = settings.locks.lock(name.clone());
        lock.force(&mut client, id, &by)
    })?;
    let done = match freed {
        Forced::Freed { holder, others } => {
            let whose = report::holder_and_others(holder.as_ref(), others.saturating_add(1));
            let aftermath = aftermath(&holds);
            let freeze = lock.frozen.as_ref().map_or("", |_| "; it stays frozen");
            format!("lock \"{name}\"{at} forced free; it was held by {whose}{aftermath}{freeze}")
        }
        Forced::WaiterRemoved(waiter) => {
            let who = waiter.map_or("a waiter".into(), |it| report::client_in_words(&it.who));
            format!("removed {who} from the queue of lock \"{name}\"{at}; its run gives up")
        }
        Forced::WasFree => {
            let server = report::after_refusal(&settings.locks);
            let line = format!("lock \"{name}\"{at} is not held{server}");
            return refuse(Exit::Lost, line);
        }
        Forced::HeldByOther => return refuse(Exit::Lost, not_the_holder(name, &at)),
    };
    settings.verbosity.info(done);
    Ok(Exit::Success)
}

/// Asks on the terminal whether the holder should really lose its lock.
fn agrees(lock: &Inspected) -> Result<bool> {
    if let Some(busy) = lock.busy() {
        report::error(report::busy_line(&lock.name, "", &busy));
    }
    let hold = lock.holds().first();
    let question = if hold.is_some_and(is_watched) {
        let ago = hold.and_then(Hold::renewed_ago).map(report::whole_seconds);
        let silence = ago.map(|ago| format!("its last sign of life was {ago} ago; "));
        let silence = silence.unwrap_or_default();
        let stop = report::typed(&["stop"], &lock.name);
        format!(
            "{silence}`{stop}` waits until its command is dead; force the lock free all the same?"
        )
    } else {
        "no redlock process supervises this hold, so a job that relies on it keeps running; force the lock free?"
            .to_owned()
    };
    report::ask(&question).context("can't read the answer")
}

/// Returns a description of what happens to the holders' work.
fn aftermath(holds: &[&Hold]) -> String {
    if let [hold] = holds
        && let Some(not_renewed) = report::not_renewed(hold)
    {
        return format!("; {not_renewed}: make sure that its command is dead");
    }
    let becomes = if holds.iter().any(|hold| is_watched(hold)) {
        "; commands that redlock supervises are being stopped, except with REDLOCK_ON_LOST=warn"
    } else if holds.iter().all(|hold| kept(hold).is_some()) {
        ""
    } else {
        "; no redlock process supervised this hold, so a job that relied on it keeps running"
    };
    becomes.to_owned()
}

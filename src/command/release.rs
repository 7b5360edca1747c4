//! `redlock release`: release a lock by its token, or take it from its holder by force.

use anyhow::Result;

use super::environment;
use super::identity::own_identity;
use super::job::{self, Held};
use super::usage::{BadUsage, name, refuse_pattern};
use crate::cli;
use crate::config::Settings;
use crate::exit::Exit;
use crate::lock::{Busy, Claim, Client, Forced, Inspected, Key, Lock, Name, ReleaseMode, Released};
use crate::{process, report};

/// Releases a lock.
pub fn release(options: &cli::Release, settings: &Settings) -> Result<Exit> {
    if options.force {
        let names = environment::names();
        let Some(text) = options.ours.name.as_ref().or(names.as_ref()) else {
            return Err(BadUsage("no lock NAME given, and $REDLOCK_NAME is not set".into()).into());
        };
        // An id names one hold, whatever the lock is called.
        if options.id.is_none() {
            refuse_pattern(text, "release")?;
        }
        let lock = settings.locks.lock(name(text)?);
        return force(&lock, options.id.as_deref(), settings);
    }
    match job::held(&options.ours, settings)? {
        Held::Unknown(name) => {
            refuse_pattern(name.as_str(), "release")?;
            refuse(&name, settings)
        }
        Held::Claims(claims) => {
            let mut client = settings.locks.open()?;
            // A replica refuses a release only where there is something to release.
            client.ask_role()?;
            let mut exit = Exit::Success;
            for claim in claims {
                if give_back(&claim, &mut client, settings)? != Exit::Success {
                    exit = Exit::Lost;
                }
            }
            Ok(exit)
        }
    }
}

fn give_back(claim: &Claim, client: &mut Client, settings: &Settings) -> Result<Exit> {
    let released = claim.release(client, &ReleaseMode::ByJob, || {})?;
    client.refuse_replica()?;
    match released {
        Released::Kept(_) => Ok(Exit::Success),
        Released::Now => {
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
            report::error(report::not_held(name, &loss));
            Ok(Exit::Lost)
        }
    }
}

/// Without a token: reports the holder of the lock, and changes nothing.
fn refuse(name: &Name, settings: &Settings) -> Result<Exit> {
    let mut client = settings.locks.open()?;
    let found = settings
        .locks
        .inspect(&mut client, std::slice::from_ref(name))?;
    let Some(found) = found.first() else {
        return Ok(Exit::Lost);
    };
    match (&found.key, found.holds(), found.busy()) {
        (Key::NotALock(kind), ..) => report::error(format_args!(
            "\"{name}\" is not a lock: its key is a {kind}; left unchanged"
        )),
        (_, [first, ..], Some(busy)) => {
            // A freeze doesn't concern the holder.
            let busy = Busy {
                frozen: None,
                ..busy
            };
            let (line, id) = (report::busy_line(name, &busy), &first.id);
            report::error(format_args!(
                "{line}; to release it without its token use --force, or --force --id {id} for this holder only"
            ));
        }
        _ => report::error(format_args!("lock \"{name}\" is not held")),
    }
    Ok(Exit::Lost)
}

fn force(lock: &Lock, id: Option<&str>, settings: &Settings) -> Result<Exit> {
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let name = lock.name();
    let by = own_identity();
    let before = settings
        .locks
        .inspect(&mut client, std::slice::from_ref(name))?;
    client.refuse_replica()?;
    let freed = lock.force(&mut client, id, Some(&by))?;
    if let Forced::Freed { .. } = freed {
        // A holder that is dead can't do that any more.
        for hold in before.iter().flat_map(Inspected::holds) {
            if id.is_none_or(|id| id == hold.id) {
                process::remove_mark(&hold.id);
            }
        }
    }
    match freed {
        Forced::Freed { holder, others } => {
            let whose = report::holder(holder.as_ref());
            let beside = match others {
                0 => String::new(),
                others => format!(" and {others} more"),
            };
            settings.verbosity.info(format_args!(
                "lock \"{name}\" forced free; it was held by {whose}{beside}"
            ));
            Ok(Exit::Success)
        }
        Forced::WasFree => {
            report::error(format_args!("lock \"{name}\" is not held"));
            Ok(Exit::Lost)
        }
        Forced::HeldByOther(id, holder) => {
            let whose = report::holder(holder.as_ref());
            report::error(format_args!(
                "lock \"{name}\" is held by {whose} with id {id}, not by the id you gave; nothing was changed"
            ));
            Ok(Exit::Lost)
        }
    }
}

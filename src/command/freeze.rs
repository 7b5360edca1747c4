//! `redlock freeze` and `redlock thaw`: let the holder finish, and admit no other run.

use anyhow::Result;

use super::change::change;
use super::identity::{masked, own_identity};
use super::usage::{name, refuse_pattern};
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::duration;
use crate::protocol::Who;
use crate::report;

/// Admits no new holder.
pub fn freeze(options: &cli::Freeze, settings: &Settings) -> Result<Exit> {
    refuse_pattern(&options.name, "freeze")?;
    let lock = settings.locks.lock(name(&options.name)?);
    let who = Who {
        reason: masked(Some(&options.reason)),
        ..own_identity(settings)
    };
    let mut client = settings.locks.open()?;
    let long = options.lasting.unwrap_or(cli::REMEMBERED);
    let name = lock.name();
    let may = format_args!("lock \"{name}\" may have been frozen");
    let found = change(name, may, || lock.freeze(&mut client, long, &who))?;
    let until = match options.lasting {
        Some(long) => format!("for {}", duration::exact(long)),
        None => format!(
            "until `{}`, at most for 30d",
            report::typed(&["thaw"], name)
        ),
    };
    let held = match found.holders {
        0 => "it has no holder".to_owned(),
        holders => format!(
            "{} may finish",
            report::holder_and_others(found.holder.as_ref(), holders)
        ),
    };
    let before = found.before.map_or(String::new(), |before| {
        format!(
            "; previously frozen by {}",
            report::client_and_reason(&before)
        )
    });
    settings.verbosity.info(format_args!(
        "lock \"{name}\" is frozen {until}; {held}{before}"
    ));
    Ok(Exit::Success)
}

/// Lets others in again.
pub fn thaw(options: &cli::Thaw, settings: &Settings) -> Result<Exit> {
    refuse_pattern(&options.name, "thaw")?;
    let lock = settings.locks.lock(name(&options.name)?);
    let mut client = settings.locks.open()?;
    client.ask_role()?;
    let name = lock.name();
    let may = format_args!("lock \"{name}\" may have been thawed");
    let thawed = change(name, may, || lock.thaw(&mut client))?;
    client.refuse_replica()?;
    match thawed {
        Some(by) => settings.verbosity.info(format_args!(
            "lock \"{name}\" is thawed; it was frozen by {}",
            report::client_and_reason(&by)
        )),
        None => settings
            .verbosity
            .info(format_args!("lock \"{name}\" was not frozen")),
    }
    Ok(Exit::Success)
}

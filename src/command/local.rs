//! `redlock local`: shows or stops the server of this host that `local:` and `local:user` use.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::asked::Asked;
use super::usage::BadUsage;
use crate::cli::{self, LocalAction};
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{
    Access, Error, Inspected, Local, LocalState, Locks, Scope, UrlOrigin, Which, usual_scope,
};
use crate::report::{self, THIS_HOST_ONLY, format_duration, print};

/// How long its answers may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Shows or stops the server of this host.
pub fn local(options: &cli::Local, settings: &Settings) -> Result<Exit> {
    let scope = match settings.locks.local_scope() {
        Some(scope) => scope,
        None if settings.locks.has_typed_url() => {
            let line = "`redlock local` shows or stops the server of this host: give `-u local:`, `-u local:user` or no URL";
            return Err(BadUsage(line.into()).into());
        }
        None => usual_scope(),
    };
    let local = Local::settled(scope);
    match options.action {
        LocalAction::Status => status(&local),
        LocalAction::Stop => stop(&local, options.force, settings),
    }
}

fn status(local: &Local) -> Result<Exit> {
    let socket = local.socket();
    let socket = socket.display();
    let (line, exit) = match local.state(Instant::now() + ANSWERS_WITHIN)? {
        LocalState::Running(running) => {
            let up_for = format_duration(running.up_for);
            let line = format!(
                "{} runs at {} (pid {}, up for {up_for}); its data is in {}",
                running.version,
                running.socket.display(),
                running.pid,
                local.data().display()
            );
            (line, Exit::Success)
        }
        LocalState::Silent(why) => {
            report::error(format_args!(
                "{THIS_HOST_ONLY}: the server for `{}` runs, but {why}; `{} local stop` ends it, and the next command starts another",
                local.scope(),
                local.command()
            ));
            return Ok(Exit::Unreachable);
        }
        LocalState::Stopped => (
            format!(
                "no server runs at {socket}; the next command with `-u {}` starts it",
                local.scope()
            ),
            Exit::Unreachable,
        ),
    };
    print(&format!("{THIS_HOST_ONLY}: {line}\n"))?;
    Ok(exit)
}

fn stop(local: &Local, force: bool, settings: &Settings) -> Result<Exit> {
    let is_running = matches!(
        local.state(Instant::now() + ANSWERS_WITHIN)?,
        LocalState::Running(_)
    );
    if is_running && !force {
        let locks = locks(local.scope(), settings)?;
        if let Some(lock) = in_use(&locks)?.first() {
            report::error(format_args!(
                "{THIS_HOST_ONLY}: lock \"{}\" is in use, and its users would start the server again; to stop the server all the same, use --force",
                lock.name
            ));
            return Ok(Exit::Busy(cli::BUSY));
        }
    }
    let line = if local.stop()? {
        "the server is stopped"
    } else {
        "no server was running"
    };
    settings
        .verbosity
        .info(format_args!("{THIS_HOST_ONLY}: {line}"));
    Ok(Exit::Success)
}

/// The locks on it, whatever the URL is.
fn locks(scope: Scope, settings: &Settings) -> Result<Locks, Error> {
    let url = scope.to_string();
    let access = Access {
        url: &url,
        origin: UrlOrigin::Option,
        timeout: ANSWERS_WITHIN,
        ..Access::default()
    };
    Locks::new(access, settings.prefix.as_deref(), 0)
}

/// Those that are held or waited for.
fn in_use(locks: &Locks) -> Result<Vec<Inspected>> {
    let mut client = locks.open()?;
    let names = Asked::parse([].into_iter())?.look_up(&mut client, locks, Which::InUse)?;
    let mut found = locks.inspect(&mut client, &names)?;
    found.retain(|lock| !lock.holds().is_empty() || !lock.waiters.is_empty());
    Ok(found)
}

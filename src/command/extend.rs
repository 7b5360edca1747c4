//! `redlock extend`: checks that a job still holds its locks, and extends their leases.

use std::time::Duration;

use anyhow::Result;

use crate::cli;
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::job::surrounding;
use crate::protocol::{Claim, LeaseState};
use crate::report;
use crate::usage::refuse;

/// Longest duration of a request that needs no repetition with more time.
const NEGLIGIBLE: Duration = Duration::from_millis(20);

/// Checks that the locks belong to this job, and extends their leases to at least the requested time.
pub fn extend(options: &cli::Extend, settings: &Settings) -> Result<Exit> {
    settings.replicate()?;
    let claims = surrounding::claims(&options.ours, settings)?.or_else(|name| {
        let line = format!(
            "no token for lock \"{name}\": run this inside `redlock run` or after `redlock acquire`, or give --token-file"
        );
        refuse(Exit::Lost, line)
    })?;
    let mut client = settings.locks.open()?;
    let states = match options.lasting {
        None => Claim::check_all(&claims, &mut client, Duration::ZERO)?,
        Some(more) => {
            let sent = now();
            let mut states = Claim::extend_all(&claims, &mut client, more)?;
            let took = now().since(sent);
            // Adds the time that the answer took, because the lease has become shorter by that.
            if took > NEGLIGIBLE {
                let more = (more + took * 2).min(cli::LONGEST);
                states = Claim::extend_all(&claims, &mut client, more)?;
            }
            states
        }
    };
    let mut exit = Exit::Success;
    for (claim, state) in claims.iter().zip(states) {
        let name = claim.lock().name();
        let line = match state {
            LeaseState::Held { .. } => continue,
            LeaseState::Released => format!("lock \"{name}\" was released"),
            LeaseState::Lost(loss) => report::not_held(name, &settings.locks, &loss),
        };
        report::error(line);
        exit = Exit::Lost;
    }
    Ok(exit)
}

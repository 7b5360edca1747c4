//! `redlock extend`: a job checks that it still holds its locks, and extends them.

use std::time::Duration;

use anyhow::Result;

use super::job;
use super::usage::refuse;
use crate::cli;
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{Claim, LeaseState};
use crate::report;

/// An answer that takes no longer than this is no reason to ask for more.
const NEGLIGIBLE: Duration = Duration::from_millis(20);

/// Checks that the locks are this job's, and makes them last at least as long as was asked for.
pub fn extend(options: &cli::Extend, settings: &Settings) -> Result<Exit> {
    settings.replicate()?;
    let claims = match job::claims(&options.ours, settings)? {
        Ok(claims) => claims,
        Err(name) => {
            let line = format!(
                "no token for lock \"{name}\": run this inside `redlock run` or after `redlock acquire`, or give --token-file"
            );
            return refuse(Exit::Lost, line);
        }
    };
    let mut client = settings.locks.open()?;
    let states = match options.lasting {
        None => Claim::check_all(&claims, &mut client, Duration::ZERO)?,
        Some(more) => {
            let sent = now();
            let states = Claim::extend_all(&claims, &mut client, more)?;
            let took = now().since(sent);
            // Time that has passed before the answer came isn't left of the lease any more.
            if took > NEGLIGIBLE {
                Claim::extend_all(&claims, &mut client, (more + took * 2).min(cli::LONGEST))?
            } else {
                states
            }
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

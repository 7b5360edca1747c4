//! `redlock pass`: admits a guard that doesn't get the token.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};

use super::job::{self, held_by_job};
use super::usage::BadUsage;
use crate::cli;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::protocol::{Claim, LeaseState, Pass, PassGiven};
use crate::report;
use crate::sys;
use crate::variables::HELD;

/// How long a pass admits guards.
const PASS_LASTS: Duration = Duration::from_secs(60);

/// Prints a pass for the locks of this job.
pub fn pass(options: &cli::Pass, settings: &Settings) -> Result<Exit> {
    if sys::stream_was_closed(1) {
        let why = "standard output is closed, so the pass would be lost";
        return Err(BadUsage(why.into()).into());
    }
    let claims: Vec<Claim> = match &options.ours.name {
        None if options.ours.token_file.is_none() => held_by_job()
            .into_iter()
            .map(|(name, token)| Claim::resume(settings.locks.lock(name), token))
            .collect(),
        _ => match job::claims(&options.ours, settings)? {
            Some(claims) => claims,
            None => return Ok(Exit::Lost),
        },
    };
    if claims.is_empty() {
        report::error(format_args!(
            "no lock to give a pass for: {HELD} isn't set here"
        ));
        return Ok(Exit::Lost);
    }
    let names = claims.iter().map(|claim| claim.lock().name().clone());
    let pass = Pass::new(names.collect())?;
    let mut client = settings.locks.open()?;
    for claim in &claims {
        let name = claim.lock().name();
        let given = claim.give_pass(&mut client, &pass.word, options.times, PASS_LASTS)?;
        let line = match given {
            PassGiven::Yes => continue,
            PassGiven::NotHeld(LeaseState::Lost(loss)) => report::not_held(name, &loss),
            PassGiven::NotHeld(_) => format!("the run that held lock \"{name}\" is over"),
            PassGiven::TooMany => {
                format!("lock \"{name}\" already has as many guards and passes as are permitted")
            }
        };
        report::error(line);
        return Ok(Exit::Lost);
    }
    writeln!(std::io::stdout(), "{pass}").context("can't write the pass")?;
    Ok(Exit::Success)
}

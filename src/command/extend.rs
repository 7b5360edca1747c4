//! `redlock extend` and `redlock check`: a job extends its locks, or checks that it still holds them.

use std::time::Duration;

use anyhow::Result;

use super::job;
use super::usage::{BadUsage, refuse_url};
use crate::cli;
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::{Lease, Terms};
use crate::duration;
use crate::protocol::{Claim, LeaseState};
use crate::report;

/// The longest that a grant lasts.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(5);

/// The pause between two looks whether a lock that was handed on has been confirmed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// An answer that takes no longer than this is no reason to ask for more.
const NEGLIGIBLE: Duration = Duration::from_millis(20);

/// Makes the locks last at least this long from now.
pub fn extend(options: &cli::Extend, settings: &Settings) -> Result<Exit> {
    let settings = &settings.replicated(&options.sync)?;
    let (name, duration) = match options.name_and_duration.as_slice() {
        [name, duration] => (Some(name.clone()), duration),
        [duration] => (None, duration),
        _ => return Err(BadUsage("extend takes a NAME and a DURATION".into()).into()),
    };
    refuse_url(duration)?;
    let more = cli::positive_duration(duration)
        .map_err(|why| BadUsage(format!("DURATION {duration:?}: {why}")))?;
    let ours = cli::OwnLock {
        name,
        token_file: options.token_file.clone(),
    };
    let Some(claims) = job::claims(&ours, settings)? else {
        return Ok(Exit::Lost);
    };
    let mut client = settings.locks.open()?;
    let sent = now();
    let mut states = Claim::extend_all(&claims, &mut client, more)?;
    let took = now().since(sent);
    // What the server may have given before its answer was under way is gone by now.
    if took > NEGLIGIBLE {
        states = Claim::extend_all(&claims, &mut client, (more + took * 2).min(cli::LONGEST))?;
    }
    Ok(all_of(&claims, states, |_| None))
}

/// Whether the locks are ours for at least this long from now.
pub fn check(options: &cli::Check, settings: &Settings) -> Result<Exit> {
    let Some(claims) = job::claims(&options.ours, settings)? else {
        return Ok(Exit::Lost);
    };
    let mut client = settings.locks.open()?;
    let mut sent = now();
    let mut states = Claim::check_all(&claims, &mut client, Duration::ZERO)?;
    // One that was just handed on lasts for seconds only, until its run confirms it, which is about to be.
    let is_unconfirmed = |state: &LeaseState| matches!(state, LeaseState::Held { left, is_grant: true, .. } if *left < options.at_least);
    let until = sent + CONFIRMED_WITHIN;
    while states.iter().any(is_unconfirmed) && now() < until {
        std::thread::sleep(LOOK_AGAIN);
        sent = now();
        states = Claim::check_all(&claims, &mut client, Duration::ZERO)?;
    }
    Ok(all_of(&claims, states, |left| {
        // As a run counts it: from before the question, and by clocks that may differ a little.
        let lease = Lease::new(
            sent,
            Terms {
                ttl: left,
                kill_after: Duration::ZERO,
                // The server has left it out.
                clock_skew: Duration::ZERO,
            },
        );
        let left = lease.deadline().since(now());
        (left < options.at_least).then(|| {
            let asked = duration::exact(options.at_least);
            format!(
                "held by this job for only {} more; {asked} required",
                report::format_duration(left)
            )
        })
    }))
}

/// Says what is wrong with a lock, if anything is; `too_short` judges the time that is left.
fn all_of(
    claims: &[Claim],
    states: Vec<LeaseState>,
    too_short: impl Fn(Duration) -> Option<String>,
) -> Exit {
    let mut exit = Exit::Success;
    for (claim, state) in claims.iter().zip(states) {
        let name = claim.lock().name();
        let wrong = match state {
            LeaseState::Held { left, .. } => {
                too_short(left).map(|why| format!("lock \"{name}\" is {why}"))
            }
            LeaseState::Released => Some(format!("lock \"{name}\" was released")),
            LeaseState::Lost(loss) => Some(report::not_held(name, &loss)),
        };
        if let Some(line) = wrong {
            report::error(line);
            exit = Exit::Lost;
        }
    }
    exit
}

//! `redlock guard`: runs COMMAND under a lock that this job holds, if the run that holds it can't stop COMMAND.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::{getpid, getsid};

use super::run::{cannot_run, prepare};
use crate::cli;
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::{Lease, Terms};
use crate::decide::session::Policy;
use crate::file;
use crate::job::identity::{own_identity, shortened};
use crate::job::{self, fail_on};
use crate::protocol::{Admission, Claim, Client, Guard, KILL_AFTER, LeaseState, Name, Who};
use crate::reason::reason;
use crate::report;
use crate::signal::{Signals, on_terminal};
use crate::stderr;
use crate::supervise::environment::{self, JobHold};
use crate::supervise::run::{EventSources, SupervisionTerms, supervise};
use crate::supervise::{HeldLock, HeldLocks};
use crate::usage::{Refusal, parse_names, refuse};
use crate::variables::HELD;

/// Runs COMMAND under locks of this job.
pub fn guard(options: &cli::Guard, settings: &Settings) -> Result<Exit> {
    let names = parse_names(&options.names)?;
    settings.replicate()?;
    let around = match &options.held {
        Some(path) => held_in(path)?,
        None => environment::inherited(),
    };
    let wanted = wanted(names, &around)?;
    let mut work = prepare(options.shell.as_ref(), &options.command)?;
    let who = Who {
        command: shortened(work.words.iter().map(|word| word.to_string_lossy())),
        ..own_identity(settings)
    };
    let kill_after = options.kill_after.or(settings.kill_after);
    let kill_after = kill_after.unwrap_or(KILL_AFTER);
    let on_terminal = on_terminal();
    let mut sources = EventSources::new(on_terminal)?;
    let mut holds = HeldLocks::none(settings.locks.client());
    let _unread = stderr::ImmediateMessages::new();
    fail_on(job::open(&mut holds.client, &sources.signals)?)?;
    let names: Vec<Name> = wanted.iter().map(|hold| hold.name.clone()).collect();
    let admitted = admit_all(&wanted, &who, kill_after, settings, &mut holds);
    // A signal ends the guard, even if it has just been admitted.
    let signal = sources.signals.next_ending().map_err(Into::into);
    let admitted = signal.and_then(fail_on).and(admitted);
    let exit = admitted.and_then(|has_slots| {
        work.environment = holds.environment(&names, &around, &who, has_slots);
        let terms = SupervisionTerms {
            policy: Policy {
                on_terminal,
                leads_session: getsid(None) == Ok(getpid()),
                with_children: options.with_children,
                kill_after,
                timeout: settings.max_runtime(options.max_runtime),
                ..Policy::default()
            },
            names: &names,
            locks: &settings.locks,
            who: &who,
            verbosity: settings.verbosity,
            hook: None,
        };
        let result = supervise(&terms, &work, &mut holds, &mut sources);
        let result = result.map_err(|error| cannot_run(&work.words, &error))?;
        Ok(result.exit)
    });
    leave_all(holds, settings, &sources.signals);
    Ok(job::exit_after(exit?, &sources.signals))
}

/// Reads the value of `REDLOCK_HELD` from a file or standard input. COMMAND can read the rest of standard input.
fn held_in(path: &Path) -> Result<Vec<JobHold>> {
    let place = match path.to_str() {
        Some("-") => "standard input".into(),
        _ => path.display().to_string(),
    };
    let text = file::read_or_input(path).map_err(|error| {
        let reason = reason(&error);
        Refusal(Exit::Usage, format!("--held: can't read {place}: {reason}"))
    })?;
    match environment::entries(text.trim_ascii()).collect::<Option<Vec<_>>>() {
        Some(held) if held.is_empty() => {
            refuse(Exit::Lost, format!("no lock to guard: {place} is empty"))
        }
        Some(held) => Ok(held),
        // The message doesn't quote the text, because it may contain a token.
        None => refuse(
            Exit::Usage,
            format!("--held: {place} doesn't contain the value of {HELD}, which is NAME=TOKEN"),
        ),
    }
}

/// Returns the holds to guard: those of `names`, or all. `around` are the job's holds.
fn wanted(mut names: Vec<Name>, around: &[JobHold]) -> Result<Vec<JobHold>> {
    if around.is_empty() {
        let line = format!(
            "no lock to guard: {HELD} isn't set here; set it to the value that it has in the job, or use --held FILE"
        );
        return refuse(Exit::Lost, line);
    }
    if names.is_empty() {
        for hold in around {
            if !names.contains(&hold.name) {
                names.push(hold.name.clone());
            }
        }
        // Sorts the names in the order of the run.
        let order = environment::names().unwrap_or_default();
        names.sort_by_key(|name| order.split(' ').position(|other| other == name.as_str()));
    }
    let hold_of = |name: Name| {
        // Searches backwards, because the innermost hold of a lock is the last.
        let mut holds = around.iter().rev();
        let hold = holds.find(|hold| hold.name == name).cloned();
        hold.ok_or_else(|| {
            let line = format!(
                "no lock to guard: this job doesn't hold \"{name}\"; a guard never acquires a lock"
            );
            Refusal(Exit::Lost, line).into()
        })
    };
    names.into_iter().map(hold_of).collect()
}

/// Adds a guard to each lock. Returns true if any lock has slots.
fn admit_all(
    wanted: &[JobHold],
    who: &Who,
    kill_after: Duration,
    settings: &Settings,
    holds: &mut HeldLocks,
) -> Result<bool> {
    let mut has_slots = false;
    for JobHold { name, token, .. } in wanted {
        let claim = Claim::resume(settings.locks.lock(name.clone()), token.clone());
        let guard = Guard::new(claim.clone(), who)?;
        let sent = now();
        let refused = match guard.admit(&mut holds.client)? {
            Admission::Guards {
                hold, left, ttl, ..
            } => {
                let terms = Terms {
                    ttl,
                    kill_after,
                    // The server has already subtracted the clock skew.
                    clock_skew: Duration::ZERO,
                };
                has_slots |= hold.limit.as_slots().is_some();
                let guarded = HeldLock {
                    claim,
                    fence: hold.fence,
                    slot: hold.slot.max(1),
                    reentrant: true,
                    guard: Some(guard),
                    waited: Duration::ZERO,
                };
                holds.add(guarded, Lease::of_another(sent, left, terms));
                continue;
            }
            Admission::NotHeld(LeaseState::Lost(loss)) => {
                report::not_held(name, &settings.locks, &loss)
            }
            Admission::NotHeld(_) => {
                format!("the run that held lock \"{name}\" is over; the command was not started")
            }
            Admission::TooMany => format!(
                "lock \"{name}\" already has as many guards as are permitted; the command was not started"
            ),
        };
        return refuse(Exit::Lost, refused);
    }
    Ok(has_slots)
}

/// Removes the guards, so that the locks can be handed over. If that fails, the guards' leases end by themselves.
/// All locks together are worth no more than two tries, and less if a signal has asked redlock to end.
fn leave_all(mut holds: HeldLocks, settings: &Settings, signals: &Signals) {
    let within = || {
        let _ = signals.next_ending();
        job::left_to_end(&settings.locks, signals)
    };
    holds.reclaim_client(within().map(|all| all / 4), || {});
    let until = now() + holds.client.timeout() * 2;
    while let Some(hold) = holds.all.pop() {
        let Some(guard) = hold.guard else { continue };
        // A request that was sent frees the lock even if nobody waits for the
        // answer. Half of the time is for connecting, and half for the answer.
        let leave = |client: &mut Client| {
            let left = until.since(now());
            let left = within().map_or(left, |within| left.min(within / 2));
            client.limit_to(left.max(job::TO_SEND));
            guard.leave(client)
        };
        // The first connection may be broken, so a second try gets a new one.
        let left = leave(&mut holds.client).or_else(|_| leave(&mut holds.client));
        if let Err(error) = left {
            settings.verbosity.info(format_args!(
                "lock \"{}\" may be kept until its lease ends, as this guard can't report that it has ended: {error}",
                hold.claim.lock().name()
            ));
        }
    }
}

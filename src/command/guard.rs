//! `redlock guard`: run COMMAND under a lock that this job holds, where the run that holds it can't stop it.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::{getpid, getsid};

use super::acquisition::{self, expect_no};
use super::identity::{own_identity, shortened};
use super::run::cannot_run;
use super::usage::{Refusal, parse_names, refuse};
use crate::cli;
use crate::clock::now;
use crate::config::Settings;
use crate::decide::exit::Exit;
use crate::decide::lease::{Lease, Terms};
use crate::decide::session::Policy;
use crate::file;
use crate::protocol::{Admitted, Claim, Client, Guard, KILL_AFTER, LeaseState, Name, Who};
use crate::reason::reason;
use crate::report;
use crate::signal::{Signals, on_terminal};
use crate::stderr;
use crate::supervise::child::Prepared;
use crate::supervise::environment::{self, JobHold};
use crate::supervise::run::{EventSources, Terms as RunTerms, Work, supervise};
use crate::supervise::{HeldLock, HeldLocks};
use crate::sys::SpawnError;
use crate::variables::{HELD, VARIABLES};

/// Runs COMMAND under locks of this job.
pub fn guard(options: &cli::Guard, settings: &Settings) -> Result<Exit> {
    settings.replicate()?;
    let held = options.held.as_deref().map(held_in).transpose()?;
    let around = held.unwrap_or_else(environment::inherited);
    let wanted = wanted(options, &around)?;
    let words: Vec<OsString> = match options.shell.clone() {
        Some(script) => vec!["sh".into(), "-c".into(), script],
        None => options.command.clone(),
    };
    let prepared = match Prepared::new(&words, &VARIABLES) {
        Ok(prepared) => prepared,
        Err(error) => return Ok(cannot_run(&words, &SpawnError::CannotExecute(error))),
    };
    let who = Who {
        command: shortened(words.iter().map(|word| word.to_string_lossy())),
        ..own_identity(settings)
    };
    let given = options.kill_after.or(settings.kill_after);
    let on_terminal = on_terminal();
    let mut sources = EventSources::new(on_terminal)?;
    let mut holds = HeldLocks::none(settings.locks.client());
    let _unread = stderr::Guard::new();
    expect_no(acquisition::open(&mut holds.client, &sources.signals)?)?;
    let names: Vec<Name> = wanted.iter().map(|hold| hold.name.clone()).collect();
    let admitted = admit_all(&wanted, around, &who, given, settings, &mut holds);
    // A signal ends the guard, whatever became of the admission.
    let signal = sources.signals.next_ending().map_err(Into::into);
    let exit = signal.and_then(expect_no).and(admitted).map(|environment| {
        let work = Work {
            words,
            prepared,
            environment,
            timeout: settings.max_runtime(options.max_runtime),
        };
        let terms = RunTerms {
            policy: Policy {
                on_terminal,
                leads_session: getsid(None) == Ok(getpid()),
                with_children: options.with_children,
                kill_after: given.unwrap_or(KILL_AFTER),
                ..Policy::default()
            },
            wait_is_limited: true,
            names: &names,
            locks: &settings.locks,
            who: &who,
            verbosity: settings.verbosity,
            hook: None,
        };
        supervise(&terms, &work, &mut holds, &mut sources).map_or_else(
            |error| cannot_run(&work.words, &error),
            |result| result.exit,
        )
    });
    leave_all(holds, settings, &sources.signals);
    exit
}

/// Reads the value of `REDLOCK_HELD` from a file, or from the first line of standard input. Of that, COMMAND finds the rest.
fn held_in(path: &Path) -> Result<Vec<JobHold>> {
    let place = if path == Path::new("-") {
        "standard input".into()
    } else {
        path.display().to_string()
    };
    let text = file::read_or_input(path).map_err(|error| {
        let reason = reason(&error);
        Refusal(Exit::Usage, format!("--held: can't read {place}: {reason}"))
    })?;
    let held = environment::parse_held(text.trim_ascii());
    // The text may contain a token.
    Ok(held.ok_or_else(|| {
        Refusal(
            Exit::Usage,
            format!("--held: {place} doesn't contain the value of {HELD}, which is NAME=TOKEN"),
        )
    })?)
}

/// Returns the locks that are to be guarded, with their tokens. `around`: all that the job holds.
fn wanted(options: &cli::Guard, around: &[JobHold]) -> Result<Vec<JobHold>> {
    let names = parse_names(&options.names)?;
    let mut all: Vec<JobHold> = Vec::new();
    for hold in around {
        // The innermost of two holds of a lock comes last.
        all.retain(|outer| outer.name != hold.name);
        all.push(hold.clone());
    }
    // In the order of the run.
    let order = environment::names().unwrap_or_default();
    all.sort_by_key(|hold| order.split(' ').position(|name| name == hold.name.as_str()));
    if all.is_empty() {
        let why = match &options.held {
            Some(path) if path == Path::new("-") => {
                format!("standard input is empty; is {HELD} set where it comes from?")
            }
            Some(path) => format!("{} is empty", path.display()),
            None => format!(
                "{HELD} isn't set here; set it to the value that it has in the job, or use --held FILE"
            ),
        };
        return refuse(Exit::Lost, format!("no lock to guard: {why}"));
    }
    if names.is_empty() {
        return Ok(all);
    }
    let lock = |name: Name| match all.iter().find(|hold| hold.name == name) {
        Some(lock) => Ok(lock.clone()),
        None => refuse(
            Exit::Lost,
            format!(
                "no lock to guard: this job doesn't hold \"{name}\"; a guard never acquires a lock"
            ),
        ),
    };
    names.into_iter().map(lock).collect()
}

/// Guards all locks. Returns the environment of COMMAND. `around`: all that the job holds.
fn admit_all(
    wanted: &[JobHold],
    mut around: Vec<JobHold>,
    who: &Who,
    given: Option<Duration>,
    settings: &Settings,
    holds: &mut HeldLocks,
) -> Result<environment::Environment> {
    let mut has_slots = false;
    for of_job in wanted {
        let JobHold { name, token, .. } = of_job;
        let claim = Claim::resume(settings.locks.lock(name.clone()), token.clone());
        let guard = Guard::new(claim.clone(), who)?;
        let sent = now();
        let (hold, left, ttl) = match guard.admit(&mut holds.client)? {
            Admitted::Guards {
                hold, left, ttl, ..
            } => (hold, left, ttl),
            Admitted::NotHeld(state) => return refuse(Exit::Lost, over(name, settings, &state)),
            Admitted::TooMany => {
                let line = format!(
                    "lock \"{name}\" already has as many guards as are permitted; the command was not started"
                );
                return refuse(Exit::Lost, line);
            }
        };
        // Once: the locks of one job usually have one TTL.
        let first_given = given.filter(|_| holds.all.is_empty());
        let _ = acquisition::usable_kill_after(
            first_given,
            ttl,
            Duration::ZERO,
            ("the run's --ttl", settings.verbosity),
        );
        let terms = Terms {
            ttl,
            kill_after: given.unwrap_or(KILL_AFTER),
            // The server has taken it off.
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
        // COMMAND's own children reenter what it works under, and release nothing of it.
        if !around.iter().any(|hold| hold.is_of(name, token)) {
            around.push(of_job.clone());
        }
    }
    let names: Vec<Name> = wanted.iter().map(|hold| hold.name.clone()).collect();
    Ok(holds.environment(&names, &around, who, has_slots))
}

/// Returns the message that the hold of a run is over.
fn over(name: &Name, settings: &Settings, state: &LeaseState) -> String {
    match state {
        LeaseState::Lost(loss) => report::not_held(name, &settings.locks, loss),
        LeaseState::Released | LeaseState::Held { .. } => {
            format!("the run that held lock \"{name}\" is over; the command was not started")
        }
    }
}

/// Says that the work is over, so that the locks can be handed on. Where that fails, the guard's lease ends by itself: for
/// all locks together it is worth no more than two tries, and less where one of these signals has asked us to end.
fn leave_all(mut holds: HeldLocks, settings: &Settings, signals: &Signals) {
    let within = || {
        let _ = signals.next_ending();
        acquisition::left_to_end(&settings.locks, signals)
    };
    holds.reclaim_client(within().map(|all| all / 4), || {});
    let until = now() + holds.client.longest(2);
    while let Some(hold) = holds.all.pop() {
        let Some(guard) = hold.guard else { continue };
        // What was sent frees the lock also when its answer isn't waited for. Half is for connecting, and half for the answer.
        let leave = |client: &mut Client| {
            let left = until.since(now());
            let left = within().map_or(left, |within| left.min(within / 2));
            client.limit_to(left.max(acquisition::TO_SEND));
            guard.leave(client)
        };
        let left = leave(&mut holds.client).or_else(|_| {
            // The connection may be broken.
            holds.client.disconnect();
            leave(&mut holds.client)
        });
        if let Err(error) = left {
            settings.verbosity.info(format_args!(
                "lock \"{}\" may be kept until its lease ends, as this guard can't report that it has ended: {error}",
                hold.claim.lock().name()
            ));
        }
    }
}

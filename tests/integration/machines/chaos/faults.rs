//! What befalls processes: killed, or stopped and resumed; at random, while they hold or wait, at the hand-off, just
//! before a renewal.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::history::{Hit, Job, MS, Nanos, Process, ProcessFault, Role, Span, beats_of, boottime};
use crate::support::Dice;

/// A process of a job.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub pid: i32,
    pub role: Role,
}

/// The variable by which the processes of a job are found.
pub const JOB: &str = "CHAOS_JOB";

/// What that is for a job of ours: chaos that runs beside us numbers its jobs in the same way.
pub fn job_value(job: u32) -> String {
    format!("{}.{job}", std::process::id())
}

fn job_mark(job: u32) -> String {
    format!("{JOB}={}\0", job_value(job))
}

/// All living redlocks and beaters of a job, found by its number in their environment.
pub fn members(job: u32) -> Vec<Member> {
    let pids = marked(&job_mark(job)).into_iter();
    pids.filter_map(|pid| {
        Some(Member {
            pid,
            role: role(pid)?,
        })
    })
    .collect()
}

/// The processes that have this in their environment.
pub fn marked(mark: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| is_marked(pid, mark)).collect()
}

fn is_marked(pid: i32, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .windows(mark.len())
        .any(|part| part == mark.as_bytes())
}

fn role(pid: i32) -> Option<Role> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = words.split(|&byte| byte == 0);
    match (words.next()?, words.next()?) {
        (b"redlock", b"run" | b"acquire") => Some(Role::Supervisor),
        (b"beater", _) => Some(Role::Worker),
        _ => None,
    }
}

/// What is going to be done to a job, and when.
pub struct Aim {
    pub job: u32,
    pub at: Nanos,
    pub how: &'static str,
    pub role: Role,
    pub fault: ProcessFault,
    pub lasts: Nanos,
}

/// Chooses whom to hit, and when.
pub fn aim(dir: &Path, jobs: &[&Job], dice: &mut Dice) -> Option<Aim> {
    let now = boottime();
    let all: Vec<(&Job, Vec<Process>)> = jobs
        .iter()
        .map(|job| (*job, beats_of(dir, job.id)))
        .collect();
    let beats_now = |beats: &[Process]| beats.iter().any(|process| is_beating(process, now));
    let (working, waiting): (Vec<_>, Vec<_>) = all.iter().partition(|(_, beats)| beats_now(beats));
    // A waiter that is stopped holds up those behind it.
    let chosen = match (working.is_empty(), dice.chance(75), dice.chance(40)) {
        (false, true, _) => working,
        (_, _, true) if !waiting.is_empty() => waiting,
        _ => return None,
    };
    let n = dice.between(0, i64::try_from(chosen.len()).ok()?);
    let (job, beats) = chosen[usize::try_from(n).ok()?];
    let beating = beats.iter().find(|process| is_beating(process, now));
    let how = match beating {
        None => "a waiter",
        Some(_) => dice.pick(&[
            "at random",
            "a holder",
            "a holder",
            "at the hand-off",
            "at the hand-off",
            "at a renewal",
        ]),
    };
    let at = match (how, beating) {
        ("at the hand-off", Some(process)) => process.ends + dice.between(-3, 12) * MS,
        ("at a renewal", Some(process)) => {
            next_renewal(job, process, now) + dice.between(-4, 3) * MS
        }
        _ => now,
    };
    let role = if dice.chance(70) {
        Role::Supervisor
    } else {
        Role::Worker
    };
    let fault = if dice.chance(70) {
        ProcessFault::Stopped
    } else {
        ProcessFault::Killed
    };
    let lasts = if fault == ProcessFault::Stopped {
        job.ttl * dice.between(5, 200) / 100
    } else {
        0
    };
    // A hand-off is as much about who comes next.
    let victim = if how == "at the hand-off" && dice.chance(50) {
        let others = jobs
            .iter()
            .filter(|other| other.id != job.id && other.names == job.names);
        others
            .min_by_key(|other| other.started)
            .map_or(job.id, |next| next.id)
    } else {
        job.id
    };
    Some(Aim {
        job: victim,
        at,
        how,
        role,
        fault,
        lasts,
    })
}

fn is_beating(process: &Process, now: Nanos) -> bool {
    process
        .periods
        .last()
        .is_some_and(|period| now - period.until < 20 * MS)
}

/// About when its next renewal is due: 50 ms after the start, and then after each third of the TTL.
fn next_renewal(job: &Job, process: &Process, now: Nanos) -> Nanos {
    let first = process.periods[0].from + 50 * MS;
    let step = job.ttl / 3;
    let passed = ((now - first).max(-1) + step) / step;
    first + passed * step
}

/// Does it. Nothing is hit where nobody is left who has this role.
pub fn strike(aim: &Aim, dice: &mut Dice) -> Option<Hit> {
    let all = members(aim.job);
    let of_role = all.iter().filter(|member| member.role == aim.role);
    let candidates: Vec<&Member> = of_role.collect();
    let victim = *candidates.get(
        usize::try_from(dice.between(0, i64::try_from(candidates.len().max(1)).ok()?)).ok()?,
    )?;
    let from = boottime();
    let signal = match aim.fault {
        ProcessFault::Stopped => Signal::SIGSTOP,
        ProcessFault::Killed | ProcessFault::CutOff => Signal::SIGKILL,
    };
    kill(Pid::from_raw(victim.pid), signal).ok()?;
    // It ends when it is resumed.
    let until = match aim.fault {
        ProcessFault::Stopped => Nanos::MAX,
        ProcessFault::Killed | ProcessFault::CutOff => boottime(),
    };
    Some(Hit {
        pid: victim.pid,
        role: aim.role,
        fault: aim.fault,
        span: Span::new(from, until),
        aim: aim.how.to_owned(),
    })
}

/// Lets a stopped process go on, if it is still the same one.
pub fn resume(job: u32, pid: i32) {
    if is_marked(pid, &job_mark(job)) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
    }
}

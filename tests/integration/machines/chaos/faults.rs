//! Faults of processes: they are killed, or suspended and resumed. A fault hits at random while a job holds or waits, at the
//! hand-over, or just before a renewal.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::history::{Hit, Job, MS, Nanos, Process, ProcessFault, Role, Span, beats_of, boottime};
use crate::support::{Dice, pids, proc, state};

/// Environment variable that marks the processes of a job.
pub const JOB: &str = "CHAOS_JOB";

/// Returns the mark of a job, which differs from the marks of a concurrent run of chaos.
pub fn job_value(job: u32) -> String {
    format!("{}.{job}", std::process::id())
}

fn job_mark(job: u32) -> String {
    format!("{JOB}={}\0", job_value(job))
}

/// Returns the processes that have this mark in their environment.
pub fn marked(mark: &str) -> Vec<i32> {
    pids().filter(|&pid| is_marked(pid, mark)).collect()
}

/// Describes a process by its state and its command line.
pub fn described(pid: i32) -> String {
    let words = proc(pid, "cmdline").replace('\0', " ");
    format!("process {pid} {:?}: {words}", state(pid))
}

fn is_marked(pid: i32, mark: &str) -> bool {
    proc(pid, "environ").contains(mark)
}

fn role(pid: i32) -> Option<Role> {
    let words = proc(pid, "cmdline");
    let mut words = words.split('\0');
    match (words.next()?, words.next()?) {
        ("redlock", "run" | "acquire") => Some(Role::Supervisor),
        ("beater", _) => Some(Role::Worker),
        _ => None,
    }
}

/// Planned hit.
pub struct Aim {
    pub job: u32,
    pub at: Nanos,
    pub lasts: Nanos,
    role: Role,
    fault: ProcessFault,
}

/// Draws a job to hit, and the time.
pub fn aim(dir: &Path, jobs: &[&Job], dice: &mut Dice) -> Option<Aim> {
    let now = boottime();
    let all = jobs.iter().map(|job| {
        let beats = beats_of(dir, job.id);
        (*job, beats.into_iter().find(|one| is_beating(one, now)))
    });
    let (working, waiting): (Vec<_>, Vec<_>) = all.partition(|(_, beating)| beating.is_some());
    // A suspended waiter delays all waiters behind it.
    let drawn = match (working.is_empty(), dice.chance(75), dice.chance(40)) {
        (false, true, _) => working,
        (_, _, true) if !waiting.is_empty() => waiting,
        _ => return None,
    };
    let (job, beating) = &drawn[dice.below(drawn.len())];
    let ways = ["at random", "at the hand-over", "at a renewal"];
    let (how, at) = match (beating, dice.pick(&ways)) {
        (Some(process), how @ "at the hand-over") => {
            (how, process.ends + dice.between(-3, 12) * MS)
        }
        (Some(process), how @ "at a renewal") => {
            let at = next_renewal(job, process, now) + dice.between(-4, 3) * MS;
            (how, at)
        }
        _ => ("at once", now),
    };
    let is_supervisor = dice.chance(70);
    let is_suspended = dice.chance(70);
    let mut aim = Aim {
        job: job.id,
        at,
        lasts: job.ttl * dice.between(5, 200) / 100,
        role: [Role::Worker, Role::Supervisor][usize::from(is_supervisor)],
        fault: [ProcessFault::Killed, ProcessFault::Suspended][usize::from(is_suspended)],
    };
    // Sometimes hits the next waiter instead, which takes part in the hand-over too.
    if how == "at the hand-over" && dice.chance(50) {
        let others = jobs.iter().filter(|other| other.names == job.names);
        let next = others.filter(|other| other.id != job.id);
        aim.job = next
            .min_by_key(|next| next.started)
            .map_or(job.id, |next| next.id);
    }
    Some(aim)
}

fn is_beating(process: &Process, now: Nanos) -> bool {
    let last = process.periods.last();
    last.is_some_and(|period| now - period.until < 20 * MS)
}

/// Returns the approximate time of the next renewal: 50 ms after the start, then after each third of the TTL.
fn next_renewal(job: &Job, process: &Process, now: Nanos) -> Nanos {
    let first = process.periods[0].from + 50 * MS;
    let step = job.ttl / 3;
    let passed = ((now - first).max(-1) + step) / step;
    first + passed * step
}

/// Hits a process of the planned role, if there is one.
pub fn strike(aim: &Aim, dice: &mut Dice) -> Option<Hit> {
    let mut pids = marked(&job_mark(aim.job));
    pids.retain(|&pid| role(pid) == Some(aim.role));
    if pids.is_empty() {
        return None;
    }
    let pid = dice.pick(&pids);
    let from = boottime();
    let signal = match aim.fault {
        ProcessFault::Suspended => Signal::SIGSTOP,
        ProcessFault::Killed => Signal::SIGKILL,
    };
    kill(Pid::from_raw(pid), signal).ok()?;
    let until = match aim.fault {
        ProcessFault::Suspended => Nanos::MAX,
        ProcessFault::Killed => boottime(),
    };
    Some(Hit {
        pid,
        role: aim.role,
        fault: aim.fault,
        span: Span::new(from, until),
    })
}

/// Resumes a suspended process, unless its number belongs to another process now.
pub fn resume(job: u32, pid: i32) {
    if is_marked(pid, &job_mark(job)) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
    }
}

//! Promises about who comes when: fences, turns, freezes, successes that count, newer runs.

use std::collections::BTreeMap;

use super::super::history::{
    Forgets, History, Job, JobKind, MS, Nanos, OperatorAction, OperatorCommand, ProcessFault, Role,
    SECOND, SiteFault, Span, Task,
};
use super::{Broken, Hold, Verdict};

/// How long a grant may wait for its waiter to begin.
const CLAIM: Nanos = 6 * SECOND;
/// From when on a job that was started surely stands in the queue.
const QUEUED: Nanos = SECOND;
const SLACK: Nanos = 400 * MS;

fn broken(promise: &'static str, detail: String, name: &str, span: Span, jobs: &[u32]) -> Broken {
    Broken {
        promise,
        detail,
        name: name.to_owned(),
        span,
        jobs: jobs.to_vec(),
    }
}

/// Whether any fault of the servers was going on, or its consequences.
fn is_quiet(history: &History, name: &str, span: Span) -> bool {
    let mut faults = history.faults.iter();
    !history.troubled.iter().any(|trouble| trouble.meets(span))
        && !faults.any(|fault| fault.is_about(name) && fault.span.meets(span))
}

/// Whether the servers may have forgotten what was there at the beginning of a span.
fn may_have_forgotten(history: &History, name: &str, span: Span) -> bool {
    let forgets =
        |fault: &SiteFault| fault.forgets != Forgets::Nothing || fault.promotes || fault.sets_clock;
    let mut faults = history.faults.iter();
    faults.any(|fault| fault.is_about(name) && fault.span.meets(span) && forgets(fault))
}

pub fn fences_grow(history: &History, holds: &[Hold]) -> Vec<Broken> {
    let exclusive: Vec<&Hold> = holds
        .iter()
        .filter(|hold| hold.limit == 1 && hold.fence.is_some())
        .collect();
    let mut found = Vec::new();
    for pair in exclusive.windows(2) {
        let (one, next) = (pair[0], pair[1]);
        if one.fence < next.fence || is_excused(history, one, next) {
            continue;
        }
        found.push(broken(
            "P3: the fence grows with each grant",
            format!(
                "#{} began with {:?}, and after it #{} with {:?}",
                one.job.id, one.fence, next.job.id, next.fence
            ),
            one.name,
            Span::new(one.span.from, next.span.from),
            &[one.job.id, next.job.id],
        ));
    }
    found
}

/// One that is stopped or forced out between its grant and its start may begin after the next. Without the state it is the clock that
/// makes the fence grow: not where it was set back (then it may be the same), and not on another host whose clock is behind.
fn is_excused(history: &History, one: &Hold, next: &Hold) -> bool {
    let was_stopped = next.job.hits.iter().any(|hit| {
        hit.fault == ProcessFault::Stopped
            && hit.role == Role::Supervisor
            && hit.span.from <= next.span.from
    });
    let since = |from| {
        let past = Span::new(from, next.span.from);
        history
            .faults
            .iter()
            .filter(move |fault| fault.is_about(one.name) && fault.span.meets(past))
    };
    let is_lost = since(one.span.from - SECOND).any(|fault| fault.forgets != Forgets::Nothing)
        && since(history.began).any(|fault| fault.sets_clock || fault.promotes);
    let wait = Span::new(next.job.started, next.span.from);
    let was_forced = history.commands.iter().any(|command| {
        command.what == OperatorAction::Force
            && command.name == next.name
            && command.span.meets(wait)
    });
    is_lost || one.fence != next.fence && (was_stopped || was_forced)
}

/// What was accepted before another write began isn't larger than that one's fence.
pub fn accepted_fences(history: &History, verdict: &mut Verdict) {
    let mut files: BTreeMap<&str, Vec<(&Task, u32)>> = BTreeMap::new();
    for job in &history.jobs {
        for task in job
            .tasks
            .iter()
            .filter(|task| task.label == "fence" && task.fence.is_some())
        {
            match task.status {
                0 => {
                    verdict.fences_accepted += 1;
                    files.entry(&task.name).or_default().push((task, job.id));
                }
                1 => verdict.fences_refused += 1,
                _ => {}
            }
        }
    }
    for (name, mut writes) in files {
        writes.sort_by_key(|(task, _)| task.span.until);
        let mut largest: Option<(&Task, u32)> = None;
        let mut ended = writes.clone().into_iter().peekable();
        writes.sort_by_key(|(task, _)| task.span.from);
        for (write, id) in writes {
            while let Some(before) = ended.next_if(|(task, _)| task.span.until < write.span.from) {
                if largest.is_none_or(|(task, _)| task.fence < before.0.fence) {
                    largest = Some(before);
                }
            }
            if let Some((before, other)) = largest.filter(|(task, _)| task.fence > write.fence) {
                verdict.broken.push(broken(
                    "P2: what checks the fence never goes back",
                    format!(
                        "#{id} wrote with {:?} after #{other} had with {:?}",
                        write.fence, before.fence
                    ),
                    name,
                    Span::new(before.span.from, write.span.until),
                    &[other, id],
                ));
            }
        }
    }
}

/// Two that waited at the same time, of whom the first had come clearly before the second.
pub fn first_come(history: &History, holds: &[Hold], verdict: &mut Verdict) {
    let is_usual = |hold: &&Hold| {
        let job = hold.job;
        job.kind != JobKind::Plain && job.names.len() == 1
    };
    let usual: Vec<&Hold> = holds.iter().filter(is_usual).collect();
    for first in &usual {
        for second in &usual {
            let came_before = first.job.started + QUEUED < second.job.started;
            if !came_before || second.job.started >= first.span.from {
                continue;
            }
            let waited = Span::new(first.job.started, first.span.from);
            let is_judged = are_undisturbed(history, first.job, second, waited);
            verdict.chance("P7, pairs that waited together", is_judged);
            let is_turned = second.span.from <= first.span.from && second.fence < first.fence;
            if is_judged && is_turned && second.fence.is_some() {
                verdict.broken.push(broken(
                    "P7: first come, first served",
                    format!(
                        "#{} got it before #{}, which had come before",
                        second.job.id, first.job.id
                    ),
                    first.name,
                    waited,
                    &[first.job.id, second.job.id],
                ));
            }
        }
    }
}

/// Whether nothing was done to a waiter, to another one that got its lock, or to the servers meanwhile.
fn are_undisturbed(history: &History, waiter: &Job, other: &Hold, span: Span) -> bool {
    waiter.is_undisturbed()
        && other.job.is_undisturbed()
        && is_quiet(history, other.name, span)
        && !is_starved(history, span)
}

fn is_starved(history: &History, span: Span) -> bool {
    let spans = history.starved.iter();
    spans
        .filter(|starved| starved.meets(span))
        .any(|starved| starved.until - starved.from > SLACK)
}

/// When a hold was granted: its fence is the server's time in microseconds. Not where the clock may have been set, as
/// then it is a later moment than that of the first beat, or one more than the last fence.
fn granted(history: &History, hold: &Hold) -> Option<Nanos> {
    let fence = hold.fence.and_then(|fence| Nanos::try_from(fence).ok())?;
    let moment = fence * 1000 - history.epoch;
    let around = Span::new(hold.span.from - 20 * SECOND, hold.span.from);
    let mut set = history.faults.iter().filter(|fault| fault.sets_clock);
    let is_set = set.any(|fault| fault.span.meets(around));
    let before = hold.span.from - moment;
    (!is_set && (-CLOCKS..CLAIM).contains(&before)).then_some(moment)
}

/// Whether a hold may have been granted by this moment.
pub fn may_be_granted_by(history: &History, hold: &Hold, moment: Nanos) -> bool {
    let earliest = match granted(history, hold) {
        Some(granted) => granted - CLOCKS,
        None => hold.span.from - CLAIM,
    };
    earliest.max(hold.job.started) <= moment
}

/// The clocks of servers may differ by this in a topology with several.
const CLOCKS: Nanos = 460 * MS;

/// Who is granted the lock while it is frozen.
pub fn frozen(history: &History, name: &str, holds: &[Hold], verdict: &mut Verdict) {
    for freeze in freezes(history, name) {
        verdict.chance("P4, freezes", freeze.is_judged);
        let judged = holds.iter().filter(|_| freeze.is_judged);
        let broken =
            judged.filter_map(|hold| breaks_in(history, hold, freeze.command, freeze.window));
        verdict.broken.extend(broken);
    }
}

/// A freeze that was made, and in which time nobody may get the lock because of it.
struct Freeze<'a> {
    command: &'a OperatorCommand,
    window: Span,
    /// Whether it is long enough, and the servers can't have forgotten it.
    is_judged: bool,
}

fn freezes<'a>(history: &'a History, name: &'a str) -> impl Iterator<Item = Freeze<'a>> {
    let of_name = move || {
        history
            .commands
            .iter()
            .filter(move |command| command.name == name)
    };
    of_name().filter_map(move |command| {
        let (OperatorAction::Freeze(length), Some(0)) = (command.what, command.status) else {
            return None;
        };
        let later = of_name().filter(|other| {
            matches!(other.what, OperatorAction::Thaw | OperatorAction::Freeze(_))
                && other.span.from > command.span.from
        });
        let next = later
            .map(|other| other.span.from)
            .min()
            .unwrap_or(Nanos::MAX);
        let window = Span::new(
            command.span.until,
            next.min(command.span.from + length) - CLOCKS,
        );
        let past = Span::new(command.span.from - SECOND, window.until);
        Some(Freeze {
            command,
            window,
            is_judged: window.from + CLOCKS < window.until
                && !may_have_forgotten(history, name, past),
        })
    })
}

fn breaks_in(
    history: &History,
    hold: &Hold,
    command: &OperatorCommand,
    window: Span,
) -> Option<Broken> {
    if hold.job.kind == JobKind::Plain {
        return None;
    }
    let (began, tolerance) = match granted(history, hold) {
        Some(moment) => (moment, CLOCKS),
        None => (hold.span.from, CLAIM),
    };
    (began > window.from + tolerance && began < window.until).then(|| {
        broken(
            "P4: a freeze keeps new holders out until it is thawed or over",
            format!(
                "#{} was granted the lock {} ms after it was frozen",
                hold.job.id,
                (began - command.span.until) / MS
            ),
            hold.name,
            Span::new(command.span.from, hold.span.from),
            &[hold.job.id],
        )
    })
}

/// A success keeps those out that ask for it, until the time is over.
pub fn once(history: &History, holds: &[Hold]) -> Vec<Broken> {
    let mut found = Vec::new();
    for success in holds.iter().filter(|hold| has_succeeded(hold.job)) {
        let Some(known) = success.job.ended else {
            continue;
        };
        for later in holds {
            let Some(once_per) = later.job.once_per else {
                continue;
            };
            let began = granted(history, later);
            let earliest = began.map_or(later.span.from - CLAIM, |began| began - CLOCKS);
            let latest = began.unwrap_or(later.span.from);
            let counts = Span::new(known, success.span.until + once_per - CLOCKS);
            let is_within = earliest > counts.from && latest < counts.until;
            let is_other = later.job.id != success.job.id;
            let past = Span::new(success.span.from, latest);
            if is_within && is_other && !may_have_forgotten(history, success.name, past) {
                found.push(broken(
                    "P4: a success counts for --once-per",
                    format!(
                        "#{} ran again {} ms after the success of #{}",
                        later.job.id,
                        (latest - known) / MS,
                        success.job.id
                    ),
                    later.name,
                    Span::new(success.span.from, later.span.from),
                    &[success.job.id, later.job.id],
                ));
            }
        }
    }
    found
}

/// It ended well, and Redis knows of it.
fn has_succeeded(job: &Job) -> bool {
    job.kind == JobKind::Run
        && job.status == Some(0)
        && !job.said.contains("can't release")
        && job.once_per.is_some()
}

/// A waiter that stands in the queue when a newer run comes gives up.
pub fn superseded(history: &History, holds: &[Hold], verdict: &mut Verdict) {
    for newer in holds.iter().filter(|hold| hold.job.supersedes) {
        for older in waiters(history, newer.name) {
            let own = || holds.iter().filter(|hold| hold.job.id == older.id);
            let waited_then = older.started + QUEUED < newer.job.started
                && older.ended.is_none_or(|ended| ended > newer.job.started);
            let is_first = own().all(|hold| hold.span.from > newer.span.from);
            if older.names.len() > 1 || !waited_then || !is_first {
                continue;
            }
            let waited = Span::new(older.started, newer.span.from);
            let is_judged = are_undisturbed(history, older, newer, waited);
            verdict.chance("P4, waiters that a newer run supersedes", is_judged);
            let late = own().find(|hold| is_judged && hold.fence > newer.fence);
            verdict.broken.extend(late.map(|late| {
                broken(
                    "P4: a newer run makes the older ones in the queue give up",
                    format!(
                        "#{} ran after #{}, which had superseded it",
                        older.id, newer.job.id
                    ),
                    newer.name,
                    Span::new(older.started, late.span.from),
                    &[older.id, newer.job.id],
                )
            }));
        }
    }
}

/// The redlocks that want this lock.
fn waiters<'a>(history: &'a History, name: &str) -> impl Iterator<Item = &'a Job> {
    let is_one =
        move |job: &&Job| job.kind != JobKind::Plain && job.names.iter().any(|own| own == name);
    history.jobs.iter().filter(is_one)
}

/// How often a run with `--once-per` ran or skipped while a success counted.
pub fn count_once(history: &History, holds: &[Hold], verdict: &mut Verdict) {
    for success in holds.iter().filter(|hold| has_succeeded(hold.job)) {
        for other in waiters(history, success.name) {
            let (Some(known), Some(once_per)) = (success.job.ended, other.once_per) else {
                continue;
            };
            let own = holds.iter().filter(|hold| hold.job.id == other.id);
            let began = own.map(|hold| hold.span.from).min();
            let skipped = other.ended.filter(|_| other.said.contains("skipped"));
            let Some(decided) = began.or(skipped) else {
                continue;
            };
            let counts_until = success.span.until + once_per - CLOCKS;
            if other.id != success.job.id && known < other.started && decided < counts_until {
                let past = Span::new(success.span.from, decided);
                let is_judged = !may_have_forgotten(history, success.name, past);
                verdict.chance("P4, runs with --once-per after a success", is_judged);
            }
        }
    }
}

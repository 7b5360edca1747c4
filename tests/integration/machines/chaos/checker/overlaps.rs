//! Two that exclude each other and beat at the same time: which of these overlaps the manual names, and which none may.

use super::super::history::{
    Forgets, History, Hit, JobKind, MS, Nanos, OperatorAction, ProcessFault, Role, SiteFault, Span,
};
use super::orders::may_be_granted_by;
use super::{Broken, Hold, Verdict};

/// Why two may have run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Forbidden,
    /// What should have stopped a command was stopped itself.
    Stopped,
    /// What should have stopped it was killed, and left descendants or a script without a keeper.
    Orphaned,
    Forced,
    DataLost,
    /// A plain client doesn't wait for replicas.
    Unconfirmed,
    ClockSet,
    /// The machine gave nobody a processor for as long.
    Starved,
}

impl Class {
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Forbidden => "FORBIDDEN",
            Self::Stopped => "a process was stopped (fenced)",
            Self::Orphaned => "a supervisor was killed and left processes (fenced)",
            Self::Forced => "release --force, within its window",
            Self::DataLost => "data lost (documented)",
            Self::Unconfirmed => "a plain client and a failover (documented)",
            Self::ClockSet => "a server's clock was set (documented)",
            Self::Starved => "the machine had no processor for the supervisor",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Overlap {
    pub name: String,
    pub earlier: u32,
    pub later: u32,
    pub span: Span,
    pub class: Class,
    pub detail: String,
}

/// A process that was stopped acts first on what it has missed, as soon as it gets a processor again.
const RESUMING: Nanos = 500 * MS;
/// A process that is killed is gone when the kernel has a moment for it.
const DYING: Nanos = 100 * MS;
/// How long it takes to notice that a lock was taken away, by the manual, and for what else takes time.
const NOTICING: Nanos = 100 * MS;
const SLACK: Nanos = 400 * MS;
/// What a busy machine may be late, and no later.
const STARVING: Nanos = 150 * MS;

/// Looks at each hold as it begins, and at those that go on.
pub fn in_turn(history: &History, holds: &[Hold]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (n, later) in holds.iter().enumerate() {
        let before = holds[..n].iter();
        let going_on: Vec<&Hold> = before
            .filter(|earlier| {
                earlier.span.until > later.span.from && earlier.job.id != later.job.id
            })
            .collect();
        if is_admitted(&going_on, later) {
            continue;
        }
        let classes: Vec<(&Hold, Option<Class>)> = going_on
            .into_iter()
            .map(|earlier| (earlier, excuse(history, earlier, later)))
            .collect();
        let unexcused = classes.iter().filter(|(_, class)| class.is_none());
        let unexcused: Vec<&Hold> = unexcused.map(|(earlier, _)| *earlier).collect();
        let is_forbidden = !is_admitted(&unexcused, later);
        for (earlier, class) in classes {
            let class = match class {
                Some(class) => class,
                None if is_forbidden => Class::Forbidden,
                None => continue,
            };
            found.push(overlap(earlier, later, class));
        }
    }
    found
}

/// The rule of the lock itself: as many holders as the smallest limit among them.
fn is_admitted(going_on: &[&Hold], later: &Hold) -> bool {
    let limits = going_on.iter().map(|hold| hold.limit);
    let smallest = limits.min().unwrap_or(later.limit).min(later.limit);
    u32::try_from(going_on.len() + 1).unwrap() <= smallest
}

fn shared(earlier: &Hold, later: &Hold) -> Span {
    Span::new(later.span.from, earlier.span.until.min(later.span.until))
}

fn overlap(earlier: &Hold, later: &Hold, class: Class) -> Overlap {
    Overlap {
        name: later.name.to_owned(),
        earlier: earlier.job.id,
        later: later.job.id,
        span: shared(earlier, later),
        class,
        detail: format!(
            "{:?} #{} (fence {:?}) and {:?} #{} (fence {:?})",
            earlier.job.kind,
            earlier.job.id,
            earlier.fence,
            later.job.kind,
            later.job.id,
            later.fence
        ),
    }
}

pub fn described(overlap: &Overlap) -> Broken {
    let took = (overlap.span.until - overlap.span.from) / MS;
    Broken {
        promise: "P1: two that exclude each other never run at the same time",
        detail: format!("for {took} ms: {}", overlap.detail),
        name: overlap.name.clone(),
        span: overlap.span,
        jobs: vec![overlap.earlier, overlap.later],
    }
}

/// What the manual says of such an overlap, if anything.
fn excuse(history: &History, earlier: &Hold, later: &Hold) -> Option<Class> {
    let span = shared(earlier, later);
    let is_stopped = |hold: &Hold| hold.job.hits.iter().any(|hit| covers(hit, hold, span));
    if let Some(from) = unsupervised_since(earlier, span)
        && is_early(history, earlier, later, from)
    {
        return None;
    }
    // Who is resumed looks at its lease before it begins; a plain client or a script need not.
    let begins_late = |hit: &Hit| {
        matches!(later.job.kind, JobKind::Run | JobKind::Kept) && hit.span.until <= later.span.from
    };
    let mut hits = later.job.hits.iter();
    let is_begun = hits.any(|hit| covers(hit, later, span) && !begins_late(hit));
    if is_stopped(earlier) || is_begun {
        return Some(Class::Stopped);
    }
    if earlier
        .job
        .hits
        .iter()
        .any(|hit| orphans(hit, earlier, span))
    {
        return Some(Class::Orphaned);
    }
    // The one that has got the lock first may be the last to begin: its grant is on a slow line.
    let displaced = match (earlier.fence, later.fence) {
        (Some(first), Some(second)) if second < first => later,
        _ => earlier,
    };
    if is_forced(history, displaced, span) {
        return Some(Class::Forced);
    }
    let lease = earlier.job.lease().max(later.job.lease());
    for class in [Class::DataLost, Class::ClockSet] {
        let mut windows = windows(history, earlier, class, lease);
        if windows.any(|window| window.from <= span.from && span.until <= window.until) {
            return Some(class);
        }
    }
    if is_unconfirmed(history, earlier, later) {
        return Some(Class::Unconfirmed);
    }
    is_starved(history, span).then_some(Class::Starved)
}

/// When faults of the servers excuse that another runs while this one does. What comes after a fault isn't hurt by it.
fn windows(
    history: &History,
    hold: &Hold,
    class: Class,
    lease: Nanos,
) -> impl Iterator<Item = Span> {
    let excuses = move |fault: &SiteFault| match (class, fault.forgets) {
        (Class::DataLost, Forgets::Holds) => true,
        (Class::ClockSet, _) => fault.sets_clock,
        _ => false,
    };
    let faults = history.faults.iter().filter(move |fault| {
        excuses(fault)
            && fault.is_about(hold.name)
            && may_be_granted_by(history, hold, fault.span.until)
    });
    faults.map(move |fault| Span::new(fault.span.from, fault.span.until + lease + SLACK))
}

/// Adds up for how long redlocks had this lock, and for how much of that faults would have excused that another one did.
pub fn excusable(history: &History, holds: &[Hold], verdict: &mut Verdict) {
    let redlocks = holds.iter().filter(|hold| hold.job.kind != JobKind::Plain);
    for hold in redlocks {
        verdict.held += hold.span.until - hold.span.from;
        for class in [Class::DataLost, Class::ClockSet] {
            let mut windows: Vec<Span> = windows(history, hold, class, hold.job.lease()).collect();
            windows.sort_by_key(|window| window.from);
            let (mut seen, mut excused) = (hold.span.from, 0);
            for window in windows {
                let until = window.until.min(hold.span.until);
                excused += (until - window.from.max(seen)).max(0);
                seen = seen.max(until);
            }
            *verdict.excusable.entry(class).or_default() += excused;
        }
    }
}

/// A plain client has what it was granted by one server alone: until the others agree with that one, another may be granted
/// the same by those. Where they agree again it keeps the lock, or believes so until its lease ends.
fn is_unconfirmed(history: &History, earlier: &Hold, later: &Hold) -> bool {
    let span = shared(earlier, later);
    let plain = [earlier, later];
    let mut plain = plain.iter().filter(|hold| hold.job.kind == JobKind::Plain);
    plain.any(|hold| {
        let promotes = history.faults.iter().filter(|fault| fault.promotes);
        promotes.into_iter().any(|fault| {
            let agreed = agreed(history, fault.span);
            fault.span.from <= span.from
                && span.until <= agreed + hold.job.lease() + SLACK
                && may_be_granted_by(history, hold, agreed)
        })
    })
}

/// How long after a fault a replica may still take over because of it.
const SETTLING: Nanos = 1500 * MS;

/// When all servers are well again after a fault that lets a replica take over.
pub fn agreed(history: &History, fault: Span) -> Nanos {
    let after = Span::new(fault.from, fault.until + SETTLING);
    let troubles = history.troubled.iter().filter(|span| span.meets(after));
    troubles
        .map(|span| span.until)
        .fold(fault.until, Nanos::max)
}

/// Who has to stop the work of a job in time.
fn is_responsible(role: Role, kind: JobKind) -> bool {
    match kind {
        JobKind::Run | JobKind::Kept => role == Role::Supervisor,
        JobKind::Unkept | JobKind::Plain => role == Role::Worker,
    }
}

fn covers(hit: &Hit, hold: &Hold, span: Span) -> bool {
    // One that is killed while it is stopped acts no more.
    let hits = hold.job.hits.iter();
    let mut deaths = hits.filter(|other| is_fatal(other) && other.pid == hit.pid);
    let dies = deaths.any(|death| hit.span.meets(death.span)) && hold.job.kind == JobKind::Kept;
    hit.fault == ProcessFault::Stopped
        && is_responsible(hit.role, hold.job.kind)
        && hit.span.from <= span.from
        && (dies || span.until <= hit.span.until.saturating_add(RESUMING))
}

/// The supervisor was killed: the kernel kills COMMAND of a run, but nobody what that has started, nor a script.
fn orphans(hit: &Hit, hold: &Hold, span: Span) -> bool {
    let is_left = match hold.job.kind {
        JobKind::Run => hold.command_until <= hit.span.from + DYING,
        JobKind::Kept => true,
        JobKind::Unkept | JobKind::Plain => false,
    };
    is_left && is_fatal(hit) && hit.span.from <= span.from
}

fn is_fatal(hit: &Hit) -> bool {
    hit.fault == ProcessFault::Killed && hit.role == Role::Supervisor
}

fn unsupervised_since(hold: &Hold, span: Span) -> Option<Nanos> {
    let hits = hold.job.hits.iter();
    let before = hits.filter(|hit| hit.span.from <= span.from);
    before
        .filter(|hit| is_fatal(hit) || covers(hit, hold, span))
        .map(|hit| hit.span.from)
        .min()
}

/// A lease lasts also where nobody watches over it. By the last renewal two thirds of it are left, at least.
fn is_early(history: &History, earlier: &Hold, later: &Hold, from: Nanos) -> bool {
    let around = Span::new(from - 2 * earlier.job.lease(), later.span.from);
    let is_watched = matches!(earlier.job.kind, JobKind::Run | JobKind::Kept);
    let is_quiet = !history.troubled.iter().any(|span| span.meets(around))
        && !history.faults.iter().any(|fault| fault.span.meets(around))
        && !is_forced(history, earlier, shared(earlier, later))
        && !history.starved.iter().any(|span| span.meets(around));
    // One that is cut off may have failed to renew it before.
    let hits = earlier.job.hits.iter();
    let mut lines = hits.filter(|hit| hit.role == Role::Line);
    let is_cut_off = lines.any(|hit| hit.span.meets(around));
    // Before the first renewal it may be a mere grant.
    let is_confirmed = earlier.span.from + SLACK < from;
    // One that begins late on a grant, as it was stopped itself, isn't early.
    let is_later_well = later.job.is_undisturbed();
    is_watched
        && is_quiet
        && !is_cut_off
        && is_confirmed
        && is_later_well
        && later.span.from < from + earlier.job.ttl / 2
}

fn is_forced(history: &History, earlier: &Hold, span: Span) -> bool {
    let forces = history.commands.iter().filter(|command| {
        command.what == OperatorAction::Force
            && command.name == earlier.name
            && command.span.from <= span.from
    });
    let is_unwatched = matches!(earlier.job.kind, JobKind::Unkept | JobKind::Plain);
    forces.into_iter().any(|command| {
        let soon = NOTICING + earlier.job.kill_after.min(earlier.job.lease()) + SLACK;
        let around = Span::new(command.span.from, command.span.until + soon);
        let is_quiet = !history.troubled.iter().any(|span| span.meets(around));
        let is_hit = may_be_granted_by(history, earlier, command.span.until);
        let hits = || earlier.job.hits.iter().filter(|hit| hit.span.meets(around));
        let is_cut_off = hits().any(|hit| hit.role == Role::Line);
        // One that is stopped before its time to kill is over does so when it goes on.
        let stops = hits().filter(|hit| {
            hit.fault == ProcessFault::Stopped && is_responsible(hit.role, earlier.job.kind)
        });
        let resumed = stops
            .map(|hit| hit.span.until.saturating_add(RESUMING))
            .max();
        // Nobody tells one without a keeper, but its lease ends as well.
        let within = if is_quiet && !is_cut_off && !is_unwatched {
            soon
        } else {
            soon.max(earlier.job.lease() + SLACK)
        };
        let until = command.span.until + within;
        is_hit && span.until <= until.max(resumed.unwrap_or(until))
    })
}

/// Nobody can be stopped in time who has no processor to do so.
fn is_starved(history: &History, span: Span) -> bool {
    let around = Span::new(span.from - STARVING, span.until);
    let spans = history
        .starved
        .iter()
        .filter(|starved| starved.meets(around));
    let starved: Nanos = spans.map(|starved| starved.until - starved.from).sum();
    span.until - span.from <= starved.min(STARVING)
}

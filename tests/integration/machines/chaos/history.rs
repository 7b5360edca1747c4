//! Record of a run of chaos for the checker: all beats under each lock, each fault, and the end of each process. All times are
//! nanoseconds since the machine started, by the clock that all its processes share.

use std::fs;
use std::path::Path;
use std::time::Duration;

pub type Nanos = i64;

pub const MS: Nanos = 1_000_000;
pub const SECOND: Nanos = 1000 * MS;

/// Limit of a shared holder, which sets none.
pub const SHARED: u32 = u32::MAX;

pub fn boottime() -> Nanos {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
    time.tv_sec() * SECOND + time.tv_nsec()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub from: Nanos,
    pub until: Nanos,
}

impl Span {
    pub fn new(from: Nanos, until: Nanos) -> Self {
        Self { from, until }
    }

    pub fn meets(&self, other: Span) -> bool {
        self.from <= other.until && other.from <= self.until
    }

    pub fn length(&self) -> Nanos {
        self.until - self.from
    }
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub began: Nanos,
    /// End of the last fault.
    pub healed: Nanos,
    pub ended: Nanos,
    /// Time of day minus the clock of all other times.
    pub epoch: Nanos,
    pub jobs: Vec<Job>,
    pub faults: Vec<SiteFault>,
    /// Times during which a server was down or unreachable.
    pub troubled: Vec<Span>,
    /// Times during which the machine gave no processor to a thread that only reads the clock.
    pub starved: Vec<Span>,
}

/// A process that wants locks, and all its descendants.
#[derive(Clone, Debug, Default)]
pub struct Job {
    pub id: u32,
    /// True for `redlock acquire --while-pid` instead of `redlock run`.
    pub is_kept: bool,
    /// Its command line.
    pub words: String,
    pub names: Vec<String>,
    pub limit: u32,
    pub ttl: Nanos,
    pub kill_after: Nanos,
    /// Longest lease beyond the TTL that its work requests.
    pub extends: Nanos,
    /// Its `--wait`; 0 for `--no-wait`.
    pub patience: Nanos,
    pub started: Nanos,
    pub ended: Option<Nanos>,
    /// Exit status, as a shell reports it.
    pub status: Option<i32>,
    /// Its standard error.
    pub said: String,
    pub processes: Vec<Process>,
    pub hits: Vec<Hit>,
    pub tasks: Vec<Task>,
}

impl Job {
    /// Returns the longest lease that it can have.
    pub fn lease(&self) -> Nanos {
        self.ttl.max(self.extends)
    }

    pub fn wants(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

/// A process that beats.
#[derive(Clone, Debug)]
pub struct Process {
    /// True if COMMAND started it.
    pub is_descendant: bool,
    /// Locks that it runs under, and their fencing tokens.
    pub names: Vec<String>,
    pub fences: Vec<u64>,
    pub limit: u32,
    /// Its planned end.
    pub ends: Nanos,
    /// Times during which it beat without a gap.
    pub periods: Vec<Span>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A redlock: waiter, supervisor of a command, or keeper.
    Supervisor,
    /// A process that runs under the lock.
    Worker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessFault {
    Suspended,
    Killed,
}

#[derive(Clone, Debug)]
pub struct Hit {
    pub pid: i32,
    pub role: Role,
    pub fault: ProcessFault,
    /// Time of the fault; empty for a kill.
    pub span: Span,
}

/// Command that a job ran within its work.
#[derive(Clone, Debug)]
pub struct Task {
    pub label: String,
    pub span: Span,
    pub status: i32,
    pub name: String,
    pub fence: Option<u64>,
}

/// Acknowledged data that servers may have lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgets {
    Nothing,
    /// Places in the queue, freezes, successes.
    AllButHolds,
    Holds,
}

/// A fault of servers or of the network.
#[derive(Clone, Debug)]
pub struct SiteFault {
    pub what: String,
    /// Time from before its begin until its expected end.
    pub span: Span,
    /// The only affected lock; all locks if `None`.
    pub name: Option<String>,
    pub forgets: Forgets,
    /// True if a replica may take over without the data that `REDLOCK_SYNC=all` doesn't wait for: freezes, releases, the queue.
    pub promotes: bool,
    /// True if it changes a server's clock, so that leases end earlier or later than planned.
    pub sets_clock: bool,
}

impl SiteFault {
    pub fn new(what: impl Into<String>, lasts: Duration) -> Self {
        let now = boottime();
        Self {
            what: what.into(),
            span: Span::new(now, now + Nanos::try_from(lasts.as_nanos()).unwrap()),
            name: None,
            forgets: Forgets::Nothing,
            promotes: false,
            sets_clock: false,
        }
    }

    pub fn forgetting(self, forgets: Forgets) -> Self {
        Self { forgets, ..self }
    }

    pub fn concerns(&self, name: &str) -> bool {
        self.name.as_deref().is_none_or(|own| own == name)
    }
}

/// Reads the file of a beater. Returns `None` if the beater hasn't written all of it yet.
pub fn read_beats(path: &Path) -> Option<Process> {
    let bytes = fs::read(path).ok()?;
    let number = |at: usize| -> Option<i64> {
        let part = bytes.get(at * 8..at * 8 + 8)?;
        Some(i64::from_ne_bytes(part.try_into().ok()?))
    };
    let text = |at: usize| -> Option<String> {
        let part = bytes.get(at..at + 64)?;
        let end = part.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&part[..end]).into_owned())
    };
    let count = usize::try_from(number(4)?).ok()?;
    let periods = (0..count).map_while(|n| {
        let at = 21 + 2 * n;
        Some(Span::new(number(at)?, number(at + 1)?))
    });
    let process = Process {
        is_descendant: number(1)? != 0,
        limit: match u32::try_from(number(2)?) {
            Ok(0) | Err(_) => SHARED,
            Ok(limit) => limit,
        },
        ends: number(3)?,
        names: text(40)?.split_whitespace().map(str::to_owned).collect(),
        fences: text(104)?
            .split_whitespace()
            .filter_map(|fence| fence.parse().ok())
            .collect(),
        periods: periods.collect(),
    };
    (!process.periods.is_empty()).then_some(process)
}

/// Returns all beating processes of a job.
pub fn beats_of(dir: &Path, job: u32) -> Vec<Process> {
    let own = fs::read_dir(dir.join("beats").join(job.to_string()));
    let own = own.into_iter().flatten().flatten();
    own.filter_map(|entry| read_beats(&entry.path())).collect()
}

/// Returns the commands that a job ran within its work.
pub fn tasks_of(dir: &Path, job: u32) -> Vec<Task> {
    let text = fs::read_to_string(dir.join("tasks").join(job.to_string())).unwrap_or_default();
    text.lines().filter_map(read_task).collect()
}

fn read_task(line: &str) -> Option<Task> {
    let words: Vec<&str> = line.split(' ').collect();
    Some(Task {
        label: (*words.first()?).to_owned(),
        span: Span::new(words.get(2)?.parse().ok()?, words.get(3)?.parse().ok()?),
        status: words.get(4)?.parse().ok()?,
        name: (*words.get(5)?).to_owned(),
        fence: words.get(6).and_then(|fence| fence.parse().ok()),
    })
}

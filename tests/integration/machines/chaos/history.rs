//! What happened in a run of chaos, as its checker reads it: who beat when under which lock, what was done to whom,
//! and how each process ended. All moments are nanoseconds of the clock that runs since the machine started, which
//! all processes of the machine share.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub type Nanos = i64;

pub const MS: Nanos = 1_000_000;
pub const SECOND: Nanos = 1000 * MS;

/// The limit of a shared holder: it sets none.
pub const SHARED: u32 = u32::MAX;

pub fn boottime() -> Nanos {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
    time.tv_sec() * SECOND + time.tv_nsec()
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
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
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub began: Nanos,
    /// From when on nothing was done to anybody any more.
    pub healed: Nanos,
    pub ended: Nanos,
    /// The time of day less the clock of all moments.
    pub epoch: Nanos,
    pub jobs: Vec<Job>,
    pub faults: Vec<SiteFault>,
    /// When some server wasn't well, or couldn't be reached.
    pub troubled: Vec<Span>,
    pub commands: Vec<OperatorCommand>,
    /// When the machine gave a process that only looks at the clock no processor.
    pub starved: Vec<Span>,
}

/// How a job has its lock.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum JobKind {
    /// `redlock run`.
    Run,
    /// `redlock acquire --while-pid`.
    Kept,
    /// `redlock acquire`, by a script that ends by itself before its lease does.
    Unkept,
    /// Another program's client, which writes the lock's key and knows of nothing else.
    Plain,
}

/// A process that wants locks, and all that it has started.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Job {
    pub id: u32,
    pub kind: JobKind,
    /// What was typed.
    pub words: String,
    pub names: Vec<String>,
    pub limit: u32,
    pub ttl: Nanos,
    pub kill_after: Nanos,
    /// The longest lease that its work asks for beyond the TTL.
    pub extends: Nanos,
    /// How long it waits.
    pub patience: Nanos,
    pub once_per: Option<Nanos>,
    pub supersedes: bool,
    pub started: Nanos,
    pub ended: Option<Nanos>,
    /// As a shell sees it.
    pub status: Option<i32>,
    pub said: String,
    pub processes: Vec<Process>,
    pub hits: Vec<Hit>,
    pub tasks: Vec<Task>,
}

impl Job {
    /// Whether anything was done to its processes.
    pub fn is_undisturbed(&self) -> bool {
        self.hits.is_empty()
    }

    /// The longest lease it can have.
    pub fn lease(&self) -> Nanos {
        self.ttl.max(self.extends)
    }
}

/// A process that beats.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Process {
    pub pid: i32,
    /// COMMAND has started it.
    pub is_descendant: bool,
    /// The names that it runs under, and the fence of each.
    pub names: Vec<String>,
    pub fences: Vec<u64>,
    pub limit: u32,
    /// When it means to end.
    pub ends: Nanos,
    /// It beat without a gap.
    pub periods: Vec<Span>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum Role {
    /// A redlock: one that waits, one that watches over a command, a keeper.
    Supervisor,
    /// What runs under the lock.
    Worker,
    /// Its way to the servers, which others don't use.
    Line,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum ProcessFault {
    Stopped,
    Killed,
    CutOff,
}

/// Something was done to a process, or to its line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Hit {
    pub pid: i32,
    pub role: Role,
    pub fault: ProcessFault,
    /// Until when it was stopped; a moment for a kill.
    pub span: Span,
    pub aim: String,
}

/// A command that a job ran within its work.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Task {
    pub label: String,
    pub span: Span,
    pub status: i32,
    pub name: String,
    pub fence: Option<u64>,
}

/// What servers may have forgotten of what they had acknowledged.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum Forgets {
    Nothing,
    /// Places in the queue, freezes, successes.
    AllButHolds,
    Holds,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SiteFault {
    pub what: String,
    /// From before it was done until it is expected to be over.
    pub span: Span,
    /// The one lock that it is about; all of them without it.
    pub name: Option<String>,
    pub forgets: Forgets,
    /// What no replica has confirmed may be forgotten.
    pub promotes: bool,
    pub sets_clock: bool,
}

impl SiteFault {
    pub fn is_about(&self, name: &str) -> bool {
        self.name.as_deref().is_none_or(|own| own == name)
    }
}

/// What an operator does.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum OperatorAction {
    /// For this long.
    Freeze(Nanos),
    Thaw,
    Force,
    Stop,
    Status,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct OperatorCommand {
    pub what: OperatorAction,
    pub name: String,
    pub span: Span,
    pub status: Option<i32>,
}

/// Reads what a beater has left; `None` while it is too young.
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
        pid: i32::try_from(number(0)?).ok()?,
        is_descendant: number(1)? != 0,
        limit: limit_of(number(2)?),
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

/// A limit as the command line of a beater has it: 0 for shared.
fn limit_of(number: i64) -> u32 {
    match u32::try_from(number) {
        Ok(0) | Err(_) => SHARED,
        Ok(limit) => limit,
    }
}

/// All processes that beat for a job.
pub fn beats_of(dir: &Path, job: u32) -> Vec<Process> {
    let own = fs::read_dir(dir.join("beats").join(job.to_string()));
    let own = own.into_iter().flatten().flatten();
    own.filter_map(|entry| read_beats(&entry.path())).collect()
}

/// What a job's work has noted of the commands that it ran.
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

/// Writes a history down: a line for each job, fault and command of an operator, and a last one with all else.
pub fn write_down(history: &History, path: &Path) {
    let mut file = File::create(path).unwrap();
    let mut line = |value: Value| writeln!(file, "{value}").unwrap();
    for job in &history.jobs {
        line(json!({ "job": job }));
    }
    for fault in &history.faults {
        line(json!({ "fault": fault }));
    }
    for command in &history.commands {
        line(json!({ "command": command }));
    }
    line(json!({
        "began": history.began,
        "healed": history.healed,
        "ended": history.ended,
        "epoch": history.epoch,
        "troubled": history.troubled,
        "starved": history.starved,
    }));
}

/// Reads what was written down, to judge it again.
pub fn read_back(path: &Path) -> History {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut history = History::default();
    for line in BufReader::new(file).lines() {
        let mut value: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(job) = value.get_mut("job") {
            history.jobs.push(read(job));
        } else if let Some(fault) = value.get_mut("fault") {
            history.faults.push(read(fault));
        } else if let Some(command) = value.get_mut("command") {
            history.commands.push(read(command));
        } else {
            history.began = read(&mut value["began"]);
            history.healed = read(&mut value["healed"]);
            history.ended = read(&mut value["ended"]);
            history.epoch = read(&mut value["epoch"]);
            history.troubled = read(&mut value["troubled"]);
            history.starved = read(&mut value["starved"]);
        }
    }
    history
}

fn read<T: serde::de::DeserializeOwned>(value: &mut Value) -> T {
    serde_json::from_value(value.take()).unwrap()
}

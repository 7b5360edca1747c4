//! Lets it happen: keeps jobs going, hits them and the servers, and writes all of it down.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::corners::Corners;
use super::faults::{self, Aim};
use super::history::{
    Forgets, History, Job, MS, Nanos, OperatorAction, OperatorCommand, ProcessFault, SECOND,
    SiteFault, Span, beats_of, boottime, tasks_of,
};
use super::plain::{self, PlainClients};
use super::site::{Injected, Kind, Loss, Site};
use super::workers::{self, NAMES, Stage};
use crate::support::{Dice, REDLOCK, now, seen_by_a_shell};

/// How many jobs there are at a time.
const JOBS: usize = 14;
const TICK: Duration = Duration::from_millis(5);
/// How often it is seen whether the servers are well, and how long ago that was at most when it is seen again.
const LOOKING: Nanos = 200 * MS;
const LOOKED_BEFORE: Nanos = 250 * MS;
/// Servers are left alone for a while after each storm, so that it shows what is promised while all is well.
const STORM: Nanos = 12 * SECOND;
const CALM: Nanos = 8 * SECOND;
/// Who tells a server to do something and waits for longer than this has got no answer.
const UNANSWERED: Nanos = 300 * MS;
/// For how long what stands beside a queue outlives it.
const BESIDE_A_QUEUE: Nanos = 100 * SECOND;
/// How long all may take to end when the faults are over.
const END: Nanos = 90 * SECOND;

struct Running {
    process: Child,
    job: Job,
    corner: Option<usize>,
}

struct Operator {
    process: Child,
    command: OperatorCommand,
    /// A freeze is undone after this long.
    thaw: Nanos,
}

/// A run of chaos under way.
pub struct Chaos {
    site: Site,
    /// Whether all servers were well when that was last seen.
    is_whole: bool,
    stage: Stage,
    corners: Corners,
    plain: PlainClients,
    dice: Dice,
    running: Vec<Running>,
    operators: Vec<Operator>,
    thaws: Vec<(Nanos, &'static str)>,
    aims: Vec<Aim>,
    stopped: Vec<(Nanos, u32, i32)>,
    history: History,
    clock: ClockWatch,
    next: Next,
    jobs: u32,
}

/// When what is next.
struct Next {
    job: Nanos,
    hit: Nanos,
    fault: Nanos,
    command: Nanos,
    look: Nanos,
}

/// What came of it.
pub struct Done {
    pub history: History,
    pub described: String,
    pub plain_clients: usize,
    /// What isn't well with the servers long after the last fault.
    pub unwell: Option<String>,
    /// Keys that are left although nobody holds or wants anything, and those that never expire.
    pub left: Vec<String>,
    pub processes_left: Vec<String>,
}

pub fn run(kind: Kind, seed: u64, lasts: Duration, dir: &Path) -> Done {
    let mut chaos = Chaos::start(kind, seed, dir);
    let end = chaos.history.began + Nanos::try_from(lasts.as_nanos()).unwrap();
    while boottime() < end {
        chaos.tick();
        chaos.start_jobs();
        chaos.step_in();
        chaos.hit();
        chaos.break_servers();
        chaos.cut_off();
        std::thread::sleep(TICK);
    }
    chaos.end()
}

impl Chaos {
    fn start(kind: Kind, seed: u64, dir: &Path) -> Self {
        for part in ["bin", "beats", "tasks", "said"] {
            fs::create_dir(dir.join(part)).unwrap();
        }
        install(dir);
        let mut dice = Dice::new(seed, 14);
        let site = Site::start(kind, &mut dice);
        let stage = Stage::new(dir, &site);
        let corners = Corners::of(&site);
        let plain = PlainClients::start(&stage, &site, &mut dice);
        let began = boottime();
        let time_of_day = Nanos::try_from(now().as_nanos()).unwrap();
        Self {
            site,
            is_whole: true,
            stage,
            corners,
            plain,
            dice,
            running: Vec::new(),
            operators: Vec::new(),
            thaws: Vec::new(),
            aims: Vec::new(),
            stopped: Vec::new(),
            history: History {
                began,
                epoch: time_of_day - began,
                ..History::default()
            },
            clock: ClockWatch::start(),
            next: Next {
                job: began,
                hit: began + SECOND,
                fault: began + SECOND,
                command: began + 2 * SECOND,
                look: began,
            },
            jobs: 0,
        }
    }

    /// What has to be done all the time.
    fn tick(&mut self) {
        let now = boottime();
        for injected in self.site.tick() {
            // It was some time since the last look.
            let fault = written("seen", injected, now - LOOKED_BEFORE);
            self.history.faults.push(fault);
        }
        let due: Vec<_> = self.stopped.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, job, pid) in due {
            self.resume(job, pid);
        }
        self.collect_jobs();
        self.collect_operators();
        if now >= self.next.look {
            self.next.look = now + LOOKING;
            self.plain.follow(&self.stage.dir, &self.site);
            self.note_trouble(now);
        }
    }

    /// Lets a stopped process go on, and notes when that was: a busy machine does it late.
    fn resume(&mut self, job: u32, pid: i32) {
        faults::resume(job, pid);
        let running = self.running.iter_mut().map(|running| &mut running.job);
        let ended = self.history.jobs.iter_mut();
        let found = running.chain(ended).find(|own| own.id == job);
        let hits = found.into_iter().flat_map(|own| &mut own.hits);
        for hit in hits.filter(|hit| hit.pid == pid && hit.span.until == Nanos::MAX) {
            hit.span.until = boottime();
        }
    }

    /// It lasts from the last look before it to the first one after it.
    fn note_trouble(&mut self, now: Nanos) {
        let was_whole = std::mem::replace(&mut self.is_whole, self.site.is_whole());
        if was_whole && !self.is_whole {
            let span = Span::new(now - LOOKED_BEFORE, now);
            self.history.troubled.push(span);
        }
        if let Some(span) = self.history.troubled.last_mut()
            && !(was_whole && self.is_whole)
        {
            span.until = boottime();
        }
    }

    fn collect_jobs(&mut self) {
        let mut n = 0;
        while n < self.running.len() {
            let Some(status) = self.running[n].process.try_wait().unwrap() else {
                n += 1;
                continue;
            };
            let mut job = self.running.swap_remove(n).job.clone();
            job.ended = Some(boottime());
            job.status = seen_by_a_shell(status);
            job.said = fs::read_to_string(self.stage.said(&job.id.to_string())).unwrap_or_default();
            let _ = fs::remove_file(self.stage.said(&job.id.to_string()));
            self.history.jobs.push(job);
        }
    }

    fn collect_operators(&mut self) {
        let now = boottime();
        let mut n = 0;
        while n < self.operators.len() {
            let Some(status) = self.operators[n].process.try_wait().unwrap() else {
                n += 1;
                continue;
            };
            let Operator {
                mut command, thaw, ..
            } = self.operators.swap_remove(n);
            command.span.until = now;
            command.status = seen_by_a_shell(status);
            if let OperatorAction::Freeze(_) = command.what {
                let name = NAMES
                    .into_iter()
                    .find(|name| *name == command.name)
                    .unwrap();
                self.thaws.push((now + thaw, name));
            }
            self.history.commands.push(command);
        }
        let due: Vec<_> = self.thaws.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, name) in due {
            self.let_do(OperatorAction::Thaw, name, &["thaw", "-q", name]);
        }
    }

    fn let_do(&mut self, what: OperatorAction, name: &str, words: &[&str]) {
        let place = self.site.place(&mut self.dice);
        let words = [&["redlock"], words].concat();
        let began = boottime();
        let process = self
            .stage
            .command(&place, &words, "operators")
            .spawn()
            .unwrap();
        let thaw = match what {
            OperatorAction::Freeze(length) => length * self.dice.between(10, 120) / 100,
            _ => 0,
        };
        let command = OperatorCommand {
            what,
            name: name.to_owned(),
            span: Span::new(began, Nanos::MAX),
            status: None,
        };
        self.operators.push(Operator {
            process,
            command,
            thaw,
        });
    }

    fn start_jobs(&mut self) {
        let now = boottime();
        if self.running.len() >= JOBS || now < self.next.job {
            return;
        }
        self.next.job = now + self.dice.between(5, 120) * MS;
        self.jobs += 1;
        let place = self.site.place(&mut self.dice);
        fs::create_dir(self.stage.dir.join("beats").join(self.jobs.to_string())).unwrap();
        let mut drawn = workers::draw(self.jobs, &self.stage, &place, &mut self.dice);
        let corner = self.corners.draw(&mut self.dice);
        if let Some((number, url)) = &corner {
            drawn.command.env("REDLOCK_URL", url);
            drawn.job.hits.extend(self.corners.trouble(*number));
        }
        let process = drawn.command.spawn().unwrap();
        self.running.push(Running {
            process,
            job: drawn.job,
            corner: corner.map(|(number, _)| number),
        });
    }

    fn step_in(&mut self) {
        let now = boottime();
        if now < self.next.command {
            return;
        }
        self.next.command = now + self.dice.between(200, 4000) * MS;
        let (what, name, words) = workers::step_in(&mut self.dice);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.let_do(what, name, &words);
    }

    fn hit(&mut self) {
        let now = boottime();
        if now >= self.next.hit {
            self.next.hit = now + self.dice.between(30, 600) * MS;
            let jobs: Vec<&Job> = self.running.iter().map(|running| &running.job).collect();
            if !jobs.is_empty() {
                self.aims
                    .extend(faults::aim(&self.stage.dir, &jobs, &mut self.dice));
            }
        }
        let due: Vec<Aim> = self
            .aims
            .extract_if(.., |aim| aim.at <= now + 2 * MS)
            .collect();
        for aim in due {
            self.strike(&aim);
        }
    }

    fn strike(&mut self, aim: &Aim) {
        while boottime() < aim.at {
            std::hint::spin_loop();
        }
        let Some(running) = self
            .running
            .iter_mut()
            .find(|running| running.job.id == aim.job)
        else {
            return;
        };
        let Some(hit) = faults::strike(aim, &mut self.dice) else {
            return;
        };
        if hit.fault == ProcessFault::Stopped {
            self.stopped
                .push((hit.span.from + aim.lasts, aim.job, hit.pid));
        }
        running.job.hits.push(hit);
    }

    /// Cuts a corner off: that of the job that means to go on for longest, more often than another.
    fn cut_off(&mut self) {
        if !self.corners.tick(&mut self.dice) {
            return;
        }
        let there = self
            .running
            .iter()
            .filter_map(|running| Some((running.corner?, &running.job)));
        let ends = |job: &Job| {
            beats_of(&self.stage.dir, job.id)
                .iter()
                .map(|process| process.ends)
                .max()
        };
        let longest = there.max_by_key(|(_, job)| ends(job));
        let (number, lease) = match longest {
            Some((number, job)) if self.dice.chance(80) => (number, job.ttl),
            _ => (self.dice.pick(&[0, 1, 2]), 2 * SECOND),
        };
        let Some(hit) = self.corners.cut(number, lease, &mut self.dice) else {
            return;
        };
        for running in self
            .running
            .iter_mut()
            .filter(|running| running.corner == Some(number))
        {
            running.job.hits.push(hit.clone());
        }
    }

    fn break_servers(&mut self) {
        let now = boottime();
        let age = (now - self.history.began) % (STORM + CALM);
        if now < self.next.fault || age > STORM {
            return;
        }
        self.next.fault = now + self.dice.between(100, 4000) * MS;
        let fault = self.dice.pick(self.site.faults());
        let injected = self.site.inject(fault, &mut self.dice);
        let is_nothing = injected.what.starts_with("nothing");
        let mut fault = written(fault, injected, now);
        if is_nothing && fault.span.until - now < UNANSWERED {
            return;
        }
        if is_nothing {
            // Whether it was done isn't known where the answer is missing.
            fault.what += ", perhaps";
            fault.forgets = Forgets::Holds;
            fault.promotes = true;
        }
        self.history.faults.push(fault);
    }

    /// All faults end, and then all jobs have to.
    fn end(mut self) -> Done {
        for (_, job, pid) in std::mem::take(&mut self.stopped) {
            self.resume(job, pid);
        }
        self.corners.heal();
        let unwell = self.site.heal().err();
        self.history.healed = boottime();
        while boottime() < self.history.healed + END {
            self.tick();
            File::create(self.stage.dir.join("over")).unwrap();
            let is_over =
                self.running.is_empty() && self.operators.is_empty() && self.thaws.is_empty();
            if is_over && self.plain.have_ended() {
                break;
            }
            std::thread::sleep(TICK);
        }
        self.history.ended = boottime();
        for running in std::mem::take(&mut self.running) {
            self.history.jobs.push(running.job.clone());
        }
        self.history.jobs.sort_by_key(|job| job.id);
        let processes_left = self.processes_left();
        for job in &mut self.history.jobs {
            job.processes = beats_of(&self.stage.dir, job.id);
            job.tasks = tasks_of(&self.stage.dir, job.id);
        }
        self.history
            .jobs
            .extend(plain::jobs(&self.stage.dir, self.jobs + 1));
        self.history.starved = self.clock.end();
        let left = match unwell {
            None => self.keys_left(),
            Some(_) => Vec::new(),
        };
        Done {
            described: self.site.described(),
            plain_clients: self.plain.count(),
            history: self.history,
            unwell,
            left,
            processes_left,
        }
    }

    /// Of jobs that have ended, after a moment in which they may.
    fn processes_left(&self) -> Vec<String> {
        let mark = format!("CHAOS_DIR={}\0", self.stage.dir.display());
        let find = || -> Vec<String> {
            let pids = faults::marked(&mark).into_iter();
            let lines = pids.map(|pid| {
                let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                format!(
                    "{pid}: {}",
                    String::from_utf8_lossy(&words).replace('\0', " ")
                )
            });
            lines.collect()
        };
        // Leases of those that were killed end, and keepers with them.
        let end = boottime() + 15 * SECOND;
        while !find().is_empty() && boottime() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        find()
    }

    /// When each lock was taken once more, nothing is left but what is remembered.
    fn keys_left(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for name in NAMES {
            let words = ["redlock", "run", "-w", "30s", "-q", name, "--", "true"];
            let place = self.site.place(&mut self.dice);
            let status = self.stage.command(&place, &words, "last").status().unwrap();
            if !status.success() {
                let said = fs::read_to_string(self.stage.said("last")).unwrap_or_default();
                left.push(format!("{name} can't be had: {status}: {said}"));
            }
        }
        let Some(redis) = self.site.observer() else {
            return vec!["no server has the keys".into()];
        };
        // What is remembered; and who waits for a second lock says so for a while, also when it is killed.
        let remembered = [":state", ":history", ":skips", ":index", ":notices"];
        // And what stood beside a queue that was lost, for a while.
        let lost = |fault: &&SiteFault| {
            fault.forgets != Forgets::Nothing && fault.span.until + BESIDE_A_QUEUE > boottime()
        };
        let lost: Vec<&SiteFault> = self.history.faults.iter().filter(lost).collect();
        let was_lost = |key: &str| {
            let name = NAMES.into_iter().find(|name| is_key_of(key, name));
            name.is_some_and(|name| lost.iter().any(|fault| fault.is_about(name)))
        };
        let is_known = |key: &String| {
            let is_beside = key.ends_with(":waiters") && was_lost(key);
            is_beside
                || remembered.iter().any(|end| key.ends_with(end))
                || key.contains(":blocked:")
        };
        let keys = redis.keys().into_iter().filter(|key| !is_known(key));
        left.extend(keys.map(|key| format!("{key} is left")));
        for key in redis
            .cli(&["KEYS", "*"])
            .lines()
            .filter(|key| !key.is_empty())
        {
            if redis.cli(&["PTTL", key]) == "-1" {
                left.push(format!("{key} never expires"));
            }
        }
        left
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A fault as its checker reads it.
fn written(fault: &str, injected: Injected, from: Nanos) -> SiteFault {
    let Injected {
        what,
        loses_data,
        loses,
        promotes,
        sets_clock,
        lasts,
    } = injected;
    let name = match &loses {
        Loss::Lock(key) | Loss::Sibling(key, _) => {
            NAMES.into_iter().find(|name| is_key_of(key, name))
        }
        Loss::Nothing | Loss::Everything | Loss::Latest => None,
    };
    let forgets = match &loses {
        Loss::Everything
        | Loss::Latest
        | Loss::Lock(_)
        | Loss::Sibling(_, "holders" | "slots" | "meta") => Forgets::Holds,
        Loss::Nothing | Loss::Sibling(..) if !loses_data => Forgets::Nothing,
        Loss::Nothing | Loss::Sibling(..) => Forgets::AllButHolds,
    };
    SiteFault {
        what: format!("{fault}: {what}"),
        span: Span::new(
            from,
            boottime() + Nanos::try_from(lasts.as_nanos()).unwrap(),
        ),
        name: name.map(str::to_owned),
        forgets,
        promotes,
        sets_clock,
    }
}

fn is_key_of(key: &str, name: &str) -> bool {
    let beside = [format!(":{name}}}:"), format!(":{name}:")];
    key.ends_with(&format!(":{name}")) || beside.iter().any(|part| key.contains(part))
}

/// Puts the binary under test and the beater where jobs find them.
pub fn install(dir: &Path) {
    let binary =
        std::env::var_os("REDLOCK_BIN").map_or_else(|| PathBuf::from(REDLOCK), PathBuf::from);
    std::os::unix::fs::symlink(binary, dir.join("bin/redlock")).unwrap();
    let source = dir.join("beater.c");
    fs::write(&source, include_str!("beater.c")).unwrap();
    let mut compile = Command::new("cc");
    compile
        .args(["-O2", "-o"])
        .arg(dir.join("bin/beater"))
        .arg(source);
    let output = compile.output().expect("there is a C compiler");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
}

/// Looks at the clock all the time, and notes when it couldn't.
pub struct ClockWatch {
    is_over: Arc<AtomicBool>,
    gaps: Arc<Mutex<Vec<Span>>>,
    thread: Option<JoinHandle<()>>,
}

/// A gap that is noted: what a supervisor has for killing its command is little more, with the shortest TTL.
const GAP: Nanos = 15 * MS;

impl ClockWatch {
    pub fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let gaps = Arc::new(Mutex::new(Vec::new()));
        let (over, found) = (is_over.clone(), gaps.clone());
        let thread = std::thread::spawn(move || {
            let mut last = boottime();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(2));
                let now = boottime();
                if now - last > GAP {
                    found.lock().unwrap().push(Span::new(last, now));
                }
                last = now;
            }
        });
        Self {
            is_over,
            gaps,
            thread: Some(thread),
        }
    }

    pub fn end(&mut self) -> Vec<Span> {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        std::mem::take(&mut self.gaps.lock().unwrap())
    }
}

impl Drop for ClockWatch {
    fn drop(&mut self) {
        self.end();
    }
}

//! Drives a run of chaos: keeps jobs going, hits them and the servers, and records everything.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::faults::{self, Aim};
use super::history::{
    Forgets, History, Job, MS, Nanos, ProcessFault, SECOND, SiteFault, Span, beats_of, boottime,
    tasks_of,
};
use super::site::Topology;
use super::workers::{self, NAMES, Stage, lock_of};
use crate::support::{Dice, REDLOCK, compile, is_notice, now, seen_by_a_shell};

/// Concurrent jobs.
const JOBS: usize = 14;
const TICK: Duration = Duration::from_millis(5);
/// Time between two checks of the servers, and its upper bound.
const LOOK_EVERY: Nanos = 200 * MS;
const LOOKED_BEFORE: Nanos = 250 * MS;
/// Lengths of a storm and of the undisturbed time after it, longer than the longest lease so that all jobs can go on.
const STORM: Nanos = 12 * SECOND;
const CALM: Nanos = 16 * SECOND;
/// Time without a reply after which a request counts as unanswered.
const UNANSWERED: Nanos = 300 * MS;
/// Lifetime of the keys beside a queue after its end.
const BESIDE_A_QUEUE: Nanos = 100 * SECOND;
/// Longest time for everything to end after the last fault.
const END: Nanos = 90 * SECOND;
/// Keys that are meant to stay, and the note of a killed waiter for a second lock, which expires.
const REMEMBERED: [&str; 4] = [":state", ":history", ":skips", ":index"];

/// Run of chaos.
pub struct Chaos {
    site: Box<dyn Topology>,
    /// True if all servers were well at the last check.
    is_whole: bool,
    stage: Stage,
    dice: Dice,
    running: Vec<(Child, Job)>,
    operators: Vec<Child>,
    aims: Vec<Aim>,
    suspended: Vec<(Nanos, u32, i32)>,
    history: History,
    next: Next,
    jobs: u32,
}

/// Times of the next steps.
struct Next {
    job: Nanos,
    hit: Nanos,
    fault: Nanos,
    command: Nanos,
    look: Nanos,
}

pub struct Done {
    pub history: History,
    pub described: String,
    /// Servers that aren't well, and keys and processes that should be gone.
    pub left: Vec<String>,
}

pub fn run(site: Box<dyn Topology>, dice: Dice, lasts: Duration, dir: &Path) -> Done {
    let clock = ClockWatch::start();
    let mut chaos = Chaos::start(site, dice, dir);
    let end = chaos.history.began + Nanos::try_from(lasts.as_nanos()).unwrap();
    while boottime() < end {
        chaos.tick();
        chaos.start_job();
        chaos.step_in();
        chaos.hit();
        chaos.break_servers();
        std::thread::sleep(TICK);
    }
    let mut done = chaos.end();
    done.history.starved = clock.end();
    done
}

impl Chaos {
    fn start(site: Box<dyn Topology>, dice: Dice, dir: &Path) -> Self {
        install(dir);
        let stage = Stage::new(dir, &*site);
        let began = boottime();
        Self {
            site,
            is_whole: true,
            stage,
            dice,
            running: Vec::new(),
            operators: Vec::new(),
            aims: Vec::new(),
            suspended: Vec::new(),
            history: History {
                began,
                epoch: Nanos::try_from(now().as_nanos()).unwrap() - boottime(),
                ..History::default()
            },
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

    /// Does the recurring work.
    fn tick(&mut self) {
        let now = boottime();
        self.site.tick();
        for mut fault in self.site.noticed() {
            // The fault happened after the last check.
            fault.span.from = now - LOOKED_BEFORE;
            self.history.faults.push(fault);
        }
        let over = self.suspended.extract_if(.., |(at, ..)| *at <= now);
        for (_, job, pid) in over.collect::<Vec<_>>() {
            self.resume(job, pid);
        }
        self.collect_jobs();
        self.operators
            .retain_mut(|process| process.try_wait().unwrap().is_none());
        if now >= self.next.look {
            self.next.look = now + LOOK_EVERY;
            self.note_trouble(now);
        }
    }

    /// Resumes a suspended process and records the time, because a busy machine does it late.
    fn resume(&mut self, job: u32, pid: i32) {
        faults::resume(job, pid);
        let running = self.running.iter_mut().map(|(_, job)| job);
        let mut all = running.chain(&mut self.history.jobs);
        let hits = all
            .find(|own| own.id == job)
            .into_iter()
            .flat_map(|own| &mut own.hits);
        for hit in hits.filter(|hit| hit.pid == pid && hit.span.until == Nanos::MAX) {
            hit.span.until = boottime();
        }
    }

    /// Records a trouble, from the last check before it to the first one after it.
    fn note_trouble(&mut self, now: Nanos) {
        let was_whole = std::mem::replace(&mut self.is_whole, self.site.is_whole());
        if was_whole && self.is_whole {
            return;
        }
        if was_whole {
            self.history
                .troubled
                .push(Span::new(now - LOOKED_BEFORE, now));
        }
        if let Some(span) = self.history.troubled.last_mut() {
            span.until = boottime();
        }
    }

    fn collect_jobs(&mut self) {
        for n in (0..self.running.len()).rev() {
            let Some(status) = self.running[n].0.try_wait().unwrap() else {
                continue;
            };
            let (_, mut job) = self.running.swap_remove(n);
            let path = self.stage.said(&job.id.to_string());
            job.ended = Some(boottime());
            job.status = seen_by_a_shell(status);
            job.said = fs::read_to_string(&path).unwrap_or_default();
            let _ = fs::remove_file(path);
            self.history.jobs.push(job);
        }
    }

    fn start_job(&mut self) {
        let now = boottime();
        if self.running.len() >= JOBS || now < self.next.job {
            return;
        }
        self.next.job = now + self.dice.between(5, 120) * MS;
        self.jobs += 1;
        let (job, mut command) = workers::draw(self.jobs, &self.stage, &mut self.dice);
        self.running.push((command.spawn().unwrap(), job));
    }

    fn step_in(&mut self) {
        let now = boottime();
        if now >= self.next.command {
            self.next.command = now + self.dice.between(400, 6000) * MS;
            let script = workers::step_in(&mut self.dice);
            let mut operator = self.stage.command(&["sh", "-c", &script], "operators");
            self.operators.push(operator.spawn().unwrap());
        }
    }

    fn is_stormy(&self) -> bool {
        (boottime() - self.history.began) % (STORM + CALM) < STORM
    }

    fn hit(&mut self) {
        let now = boottime();
        if now >= self.next.hit && self.is_stormy() && !self.running.is_empty() {
            self.next.hit = now + self.dice.between(30, 600) * MS;
            let jobs: Vec<&Job> = self.running.iter().map(|(_, job)| job).collect();
            self.aims
                .extend(faults::aim(&self.stage.dir, &jobs, &mut self.dice));
        }
        for aim in self.aims.extract_if(.., |aim| aim.at <= now + 2 * MS) {
            while boottime() < aim.at {
                std::hint::spin_loop();
            }
            let target = self.running.iter_mut().find(|(_, job)| job.id == aim.job);
            let Some((_, job)) = target else {
                continue;
            };
            let Some(hit) = faults::strike(&aim, &mut self.dice) else {
                continue;
            };
            if hit.fault == ProcessFault::Suspended {
                self.suspended
                    .push((hit.span.from + aim.lasts, aim.job, hit.pid));
            }
            job.hits.push(hit);
        }
    }

    fn break_servers(&mut self) {
        let now = boottime();
        if now < self.next.fault || !self.is_stormy() {
            return;
        }
        self.next.fault = now + self.dice.between(100, 4000) * MS;
        let faults: Vec<&str> = self.site.faults().split(", ").collect();
        let name = self.dice.pick(&faults);
        let mut fault = match self.site.inject(name, &mut self.dice) {
            Some(fault) => fault,
            None if boottime() - now < UNANSWERED => return,
            // A server that didn't answer may still have executed the command.
            None => SiteFault {
                promotes: true,
                ..SiteFault::new("perhaps", Duration::ZERO).forgetting(Forgets::Holds)
            },
        };
        fault.what = format!("{name}: {}", fault.what);
        fault.span.from = now;
        self.history.faults.push(fault);
    }

    /// Ends all faults and waits until all jobs have ended.
    fn end(mut self) -> Done {
        for (_, job, pid) in std::mem::take(&mut self.suspended) {
            self.resume(job, pid);
        }
        let unwell = self.site.heal().err();
        self.history.healed = boottime();
        File::create(self.stage.dir.join("over")).unwrap();
        let is_over = |chaos: &Self| chaos.running.is_empty() && chaos.operators.is_empty();
        while boottime() < self.history.healed + END && !is_over(&self) {
            self.tick();
            std::thread::sleep(TICK);
        }
        self.history.ended = boottime();
        for (mut process, job) in std::mem::take(&mut self.running) {
            let _ = process.kill();
            let _ = process.wait();
            self.history.jobs.push(job);
        }
        self.history.jobs.sort_by_key(|job| job.id);
        let mut left = self.processes_left();
        for job in &mut self.history.jobs {
            job.processes = beats_of(&self.stage.dir, job.id);
            job.tasks = tasks_of(&self.stage.dir, job.id);
        }
        match unwell {
            None => left.extend(self.keys_left()),
            Some(reason) => left.push(format!("the servers are not well again: {reason}")),
        }
        Done {
            described: self.site.described(),
            history: self.history,
            left,
        }
    }

    /// Returns the processes of ended jobs. Keepers may live until the leases of killed jobs end.
    fn processes_left(&self) -> Vec<String> {
        let mark = format!("CHAOS_DIR={}\0", self.stage.dir.display());
        let end = boottime() + 15 * SECOND;
        while !faults::marked(&mark).is_empty() && boottime() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        faults::marked(&mark)
            .into_iter()
            .map(faults::described)
            .collect()
    }

    /// Takes each lock once more. Returns the keys that should be gone afterwards.
    fn keys_left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for name in NAMES {
            let words = ["redlock", "run", "-w", "30s", "-q", name, "--", "true"];
            let status = self.stage.command(&words, "last").status().unwrap();
            if !status.success() {
                let stderr = fs::read_to_string(self.stage.said("last")).unwrap_or_default();
                left.push(format!("{name} can't be had: {status}: {stderr}"));
            }
        }
        let Some(redis) = self.site.observer() else {
            return vec!["no server has the keys".into()];
        };
        let has_lost = |key: &str| {
            let name = lock_of(key);
            self.history.faults.iter().any(|fault| {
                fault.forgets != Forgets::Nothing
                    && fault.span.until + BESIDE_A_QUEUE > boottime()
                    && name.is_some_and(|name| fault.concerns(name))
            })
        };
        let may_stay = |key: &String| {
            REMEMBERED.iter().any(|end| key.ends_with(end))
                || is_notice(key)
                || key.contains(":blocked:")
                || key.ends_with(":waiters") && has_lost(key)
        };
        let keys = redis.keys().into_iter().filter(|key| !may_stay(key));
        left.extend(keys.map(|key| format!("key {key}")));
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

/// Creates the folders of a run, with the binary under test and the beater in `bin`.
pub fn install(dir: &Path) {
    for part in ["bin", "beats", "tasks", "said"] {
        fs::create_dir(dir.join(part)).unwrap();
    }
    let binary =
        std::env::var_os("REDLOCK_BIN").map_or_else(|| PathBuf::from(REDLOCK), PathBuf::from);
    std::os::unix::fs::symlink(binary, dir.join("bin/redlock")).unwrap();
    let beater = dir.join("bin/beater");
    compile(&["-O2"], include_str!("beater.c"), &beater);
}

/// Thread that reads the clock all the time and records the times when it got no processor. Ends with this value.
struct ClockWatch {
    is_alive: Arc<()>,
    thread: JoinHandle<Vec<Span>>,
}

/// Shortest recorded gap. With the shortest TTL, a supervisor has little more time than this to kill its command.
const GAP: Nanos = 15 * MS;

impl ClockWatch {
    fn start() -> Self {
        let is_alive = Arc::new(());
        let watch = Arc::downgrade(&is_alive);
        let thread = std::thread::spawn(move || {
            let mut gaps = Vec::new();
            let mut last = boottime();
            while watch.strong_count() > 0 {
                std::thread::sleep(Duration::from_millis(2));
                let now = boottime();
                if now - last > GAP {
                    gaps.push(Span::new(last, now));
                }
                last = now;
            }
            gaps
        });
        Self { is_alive, thread }
    }

    fn end(self) -> Vec<Span> {
        drop(self.is_alive);
        self.thread.join().unwrap()
    }
}

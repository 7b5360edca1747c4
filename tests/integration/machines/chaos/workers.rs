//! Who wants the locks: jobs of all kinds, each drawn from the dice, and the operators who step in.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::faults::{JOB, job_value};
use super::history::{Job, JobKind, MS, Nanos, OperatorAction, SECOND, SHARED, boottime};
use super::site::Site;
use crate::support::{Dice, without_terminal};

/// The names of all locks: `a` is mostly exclusive and wanted by plain clients too, `b` has all modes, `c` is the second
/// of several, `d` is for what runs once, and `e` is always exclusive.
pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// How often each is wanted.
const OFTEN: [&str; 12] = ["a", "a", "a", "a", "b", "b", "b", "c", "d", "e", "e", "e"];

/// Where a run of chaos keeps its files, and how it calls redlock there.
pub struct Stage {
    pub dir: PathBuf,
    environment: Vec<(String, String)>,
    pub ttls: (u64, u64),
    clock_skew: Nanos,
}

impl Stage {
    pub fn new(dir: &Path, site: &Site) -> Self {
        let mut environment = vec![("REDLOCK_URL".to_owned(), site.url())];
        let options = site.options();
        for pair in options.chunks(2) {
            let name = pair[0]
                .trim_start_matches('-')
                .replace('-', "_")
                .to_uppercase();
            environment.push((format!("REDLOCK_{name}"), pair[1].clone()));
        }
        let clock_skew = if site.url().starts_with("redis://") {
            0
        } else {
            500 * MS
        };
        Self {
            dir: dir.to_owned(),
            environment,
            ttls: site.ttls(),
            clock_skew,
        }
    }

    /// A command in the surroundings of all jobs, with what it says on standard error in a file.
    pub fn command(&self, place: &[String], words: &[&str], said: &str) -> Command {
        let mut all = place
            .iter()
            .map(String::as_str)
            .chain(words.iter().copied());
        let mut command = Command::new(all.next().unwrap());
        command
            .args(all)
            .env_clear()
            .env(
                "PATH",
                format!(
                    "{}:/usr/sbin:/usr/bin:/sbin:/bin",
                    self.dir.join("bin").display()
                ),
            )
            .env("HOME", &self.dir)
            .env("CHAOS_DIR", &self.dir)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.said(said)).unwrap());
        without_terminal(&mut command);
        command
    }

    pub fn said(&self, who: &str) -> PathBuf {
        self.dir.join("said").join(who)
    }
}

/// A job that is drawn: what it is, and how it is started.
pub struct Drawn {
    pub job: Job,
    pub command: Command,
}

/// What a job does within its work.
struct Work {
    lasts: i64,
    words: Vec<String>,
    extends: Nanos,
}

pub fn draw(id: u32, stage: &Stage, place: &[String], dice: &mut Dice) -> Drawn {
    let ttl = dice.between(
        i64::try_from(stage.ttls.0).unwrap(),
        i64::try_from(stage.ttls.1).unwrap() + 1,
    );
    let mut job = Job {
        id,
        kind: JobKind::Run,
        words: String::new(),
        names: vec![dice.pick(&OFTEN).to_owned()],
        limit: 1,
        ttl: ttl * MS,
        kill_after: dice.between(10, ttl / 2) * MS,
        extends: 0,
        patience: dice.pick(&[1, 2, 3, 4, 6, 12]) * SECOND,
        once_per: None,
        supersedes: false,
        started: 0,
        ended: None,
        status: None,
        said: String::new(),
        processes: Vec::new(),
        hits: Vec::new(),
        tasks: Vec::new(),
    };
    let options = options(&mut job, dice);
    let script = match dice.between(0, 100) {
        0..65 => run(&mut job, &options, dice),
        65..80 => kept(&mut job, &options, dice),
        80..90 => unkept(&mut job, stage.clock_skew, dice),
        90..94 => several(&mut job, dice),
        _ => nested(&mut job, dice),
    };
    job.words.clone_from(&script);
    let mut command = stage.command(place, words!("sh -c", &script), &id.to_string());
    command.env("CHAOS_RUN", id.to_string());
    command.env(JOB, job_value(id));
    job.started = boottime();
    Drawn { job, command }
}

/// What the names of a job allow: its mode, its place in the queue, and how long it waits.
fn options(job: &mut Job, dice: &mut Dice) -> String {
    let mut words = vec![
        // Whether a success was noted shows in whether its lock was released.
        if job.names[0] == "d" { "" } else { "-q" }.into(),
        format!("--ttl {}ms", job.ttl / MS),
        format!("-k {}ms", job.kill_after / MS),
    ];
    if dice.chance(12) {
        job.patience = 0;
        words.push("-n".into());
    } else {
        words.push(format!("-w {}s", job.patience / SECOND));
    }
    let name = job.names[0].as_str();
    if name == "b" || name == "a" && dice.chance(5) {
        match dice.between(0, 10) {
            0..4 => {
                job.limit = SHARED;
                words.push("--shared".into());
            }
            4..8 => {
                job.limit = 2;
                words.push("--slots 2".into());
            }
            _ => {}
        }
    }
    words.join(" ")
}

/// The words of a beater, and what they mean for its job.
fn work(job: &Job, dice: &mut Dice) -> Work {
    let lasts = match dice.between(0, 10) {
        0..4 => dice.between(1, 100),
        4..7 => dice.between(100, 1000),
        _ => dice.between(900, 7000),
    };
    let limit = if job.limit == SHARED { 0 } else { job.limit };
    let mut words = vec![format!("beater --for {lasts} --limit {limit}")];
    match dice.between(0, 10) {
        0 => words.push("--ignore-term".into()),
        1 => words.push(format!("--linger {}", dice.between(1, 400))),
        2 => words.push("--exit 3".into()),
        _ => {}
    }
    let at = |dice: &mut Dice| dice.between(0, lasts.max(1));
    if dice.chance(60) {
        words.push(format!(
            r#"--do {} fence 'redlock fence -q "$CHAOS_DIR/fence.$REDLOCK_NAME"'"#,
            at(dice)
        ));
    }
    if dice.chance(15) {
        words.push(format!(
            r#"--do {} late 'redlock extend -q && redlock fence -q "$CHAOS_DIR/fence.$REDLOCK_NAME"'"#,
            at(dice)
        ));
    }
    let mut extends = 0;
    if dice.chance(12) {
        let ms = dice.between(500, 5000);
        extends = ms * MS;
        words.push(format!(
            "--do {} extend 'redlock extend -q --for {ms}ms'",
            at(dice)
        ));
    }
    if dice.chance(8) {
        words.push(format!("--do {} status 'redlock status --json'", at(dice)));
    }
    Work {
        lasts,
        words,
        extends,
    }
}

fn run(job: &mut Job, options: &str, dice: &mut Dice) -> String {
    let mut work = work(job, dice);
    job.extends = work.extends;
    let mut more = String::new();
    let name = job.names[0].clone();
    if dice.chance(25) {
        let ms = dice.between(1, 1500);
        work.words.push(format!("--fork {ms}"));
        // What is left when COMMAND ends would go on without the lock.
        more += if ms > work.lasts || dice.chance(50) {
            "--with-children "
        } else {
            ""
        };
        if work.lasts < ms + 50 && !more.contains("tree") {
            more += "--with-children ";
        }
    }
    if name == "d" {
        let once = dice.between(1, 6) * SECOND;
        job.once_per = Some(once);
        let _ = write!(more, "--once-per {}s ", once / SECOND);
    } else if name == "b" && dice.chance(8) {
        job.supersedes = true;
        more += "--supersede ";
        more += if dice.chance(50) {
            "--cancel-in-progress "
        } else {
            ""
        };
    } else if dice.chance(5) {
        let _ = write!(more, "--max-runtime {}ms ", dice.between(100, 2000));
    }
    format!(
        "exec redlock run {options} {more}{name} -- {}",
        work.words.join(" ")
    )
}

/// A script that a keeper watches over.
fn kept(job: &mut Job, options: &str, dice: &mut Dice) -> String {
    job.kind = JobKind::Kept;
    let work = work(job, dice);
    job.extends = work.extends;
    let name = &job.names[0];
    let ends = if dice.chance(30) {
        "; redlock release -q"
    } else {
        ""
    };
    let exec = if ends.is_empty() { "exec " } else { "" };
    format!(
        r#"lock=$(redlock acquire {options} --while-pid $$ {name}) || exit; eval "$lock"; {exec}{}{ends}"#,
        work.words.join(" ")
    )
}

/// A script that knows when its lease ends, and does so before.
fn unkept(job: &mut Job, skew: Nanos, dice: &mut Dice) -> String {
    job.kind = JobKind::Unkept;
    job.patience = 0;
    job.limit = 1;
    let mut work = work(job, dice);
    work.words.retain(|words| !words.contains(" extend "));
    let name = &job.names[0];
    // As redlock does: what clocks may drift apart, and a moment to end.
    let usable = job.ttl - skew - job.ttl / 20 - 10 * MS;
    format!(
        r#"now=$(beater now); lock=$(redlock acquire -qn --ttl {}ms {name}) || exit; eval "$lock"; {} --until $((now + {usable})); redlock release -q"#,
        job.ttl / MS,
        work.words.join(" ")
    )
}

fn several(job: &mut Job, dice: &mut Dice) -> String {
    job.names = vec!["a".into(), "c".into()];
    job.limit = 1;
    let work = work(job, dice);
    let words = work
        .words
        .iter()
        .filter(|words| !words.contains("fence") && !words.contains("extend"));
    let words: Vec<&str> = words.map(String::as_str).collect();
    format!(
        "exec redlock run -q --ttl {}ms -k {}ms -w {}s c a -- {}",
        job.ttl / MS,
        job.kill_after / MS,
        job.patience / SECOND,
        words.join(" ")
    )
}

/// A run within a run: of another lock, or of the same one again.
fn nested(job: &mut Job, dice: &mut Dice) -> String {
    let (outer, inner) = dice.pick(&[("a", "c"), ("a", "c"), ("c", "a"), ("a", "a"), ("c", "c")]);
    job.names = vec![outer.into(), inner.into()];
    job.names.dedup();
    job.limit = 1;
    let lasts = dice.between(1, 600);
    let ttl = job.ttl / MS;
    format!(
        "exec redlock run -q --ttl {ttl}ms -k {kill_after}ms -w {wait}s {outer} -- beater --for {long} --do 0 nested 'redlock run -q --ttl {ttl}ms -k {kill_after}ms -w 2s {inner} -- beater --for {lasts}'",
        kill_after = job.kill_after / MS,
        wait = job.patience / SECOND,
        long = lasts + 20
    )
}

/// What an operator does next, and the command for it.
pub fn step_in(dice: &mut Dice) -> (OperatorAction, &'static str, Vec<String>) {
    let name = dice.pick(&NAMES);
    let (what, words) = match dice.between(0, 10) {
        0..3 => {
            let ms = dice.between(300, 3000);
            (
                OperatorAction::Freeze(ms * MS),
                format!("freeze -q --reason chaos --for {ms}ms {name}"),
            )
        }
        3..4 => (
            OperatorAction::Force,
            format!("release -q --force --all {name}"),
        ),
        4..7 => (OperatorAction::Stop, format!("stop -q --all {name}")),
        _ => (OperatorAction::Status, "status --json".to_owned()),
    };
    let words = words.split(' ').map(str::to_owned).collect();
    (what, name, words)
}

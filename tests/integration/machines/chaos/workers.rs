//! Jobs of all kinds that compete for the locks, and operators who step in, all drawn from the dice.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::faults::{JOB, job_value};
use super::history::{Job, MS, SECOND, SHARED, boottime};
use super::site::Topology;
use crate::support::{Dice, without_terminal};

/// Names of all locks: `a` is mostly exclusive, `b` has all modes, `c` is the second of several, `d` is for jobs that run once,
/// and `e` is always exclusive.
pub const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// First lock of a job; more popular names occur more often.
const WANTED: [&str; 12] = ["a", "a", "a", "a", "b", "b", "b", "c", "d", "e", "e", "e"];

/// Files of a run of chaos, and the environment of its commands.
pub struct Stage {
    pub dir: PathBuf,
    pub environment: Vec<(&'static str, String)>,
    pub ttls: (i64, i64),
}

impl Stage {
    pub fn new(dir: &Path, site: &dyn Topology) -> Self {
        Self {
            dir: dir.to_owned(),
            environment: site.environment(),
            ttls: site.ttls(),
        }
    }

    /// Returns a command without a terminal, whose standard error goes to the file of `who`.
    pub fn command(&self, words: &[&str], who: &str) -> Command {
        let bin = self.dir.join("bin");
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env_clear()
            .env(
                "PATH",
                format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()),
            )
            .env("HOME", &self.dir)
            .env("CHAOS_DIR", &self.dir)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.said(who)).unwrap());
        without_terminal(&mut command);
        command
    }

    /// Returns the command of a job, whose beaters leave signs of life.
    pub fn job(&self, id: u32, words: &[&str]) -> Command {
        let id = id.to_string();
        fs::create_dir(self.dir.join("beats").join(&id)).unwrap();
        let mut command = self.command(words, &id);
        command.env("CHAOS_RUN", id);
        command
    }

    pub fn said(&self, who: &str) -> PathBuf {
        self.dir.join("said").join(who)
    }
}

/// Draws a job. Returns it with the command that starts it.
pub fn draw(id: u32, stage: &Stage, dice: &mut Dice) -> (Job, Command) {
    let ttl = dice.between(stage.ttls.0, stage.ttls.1);
    let mut job = Job {
        id,
        names: vec![dice.pick(&WANTED).to_owned()],
        limit: 1,
        ttl: ttl * MS,
        kill_after: dice.between(10, ttl / 2) * MS,
        patience: dice.pick(&[0, 1, 2, 3, 4, 6, 12]) * SECOND,
        ..Job::default()
    };
    let options = options(&mut job, dice);
    let script = match dice.between(0, 100) {
        0..75 => run(&mut job, &options, dice),
        75..94 => kept(&mut job, &options, dice),
        _ => several(&mut job, dice),
    };
    let mut command = stage.job(id, &["sh", "-c", &script]);
    command.env(JOB, job_value(id));
    job.words = script;
    job.started = boottime();
    (job, command)
}

fn timing(job: &Job) -> String {
    let wait = match job.patience {
        0 => "-n".to_owned(),
        patience => format!("-w {}s", patience / SECOND),
    };
    let (ttl, kill_after) = (job.ttl / MS, job.kill_after / MS);
    format!("--ttl {ttl}ms -k {kill_after}ms {wait}")
}

/// Draws the mode of a job. Returns its options.
fn options(job: &mut Job, dice: &mut Dice) -> String {
    let name = job.names[0].as_str();
    // Without -q, redlock reports whether it has released the lock, and so recorded the success.
    let quiet = if name == "d" { "" } else { "-q " };
    let may_share = name == "b" || name == "a" && dice.chance(5);
    let mode = match dice.between(0, 10) {
        0..4 if may_share => {
            job.limit = SHARED;
            " --shared"
        }
        4..8 if may_share => {
            job.limit = 2;
            " --slots 2"
        }
        _ => "",
    };
    format!("{quiet}{}{mode}", timing(job))
}

/// Returns the command line of a beater, and the length of its work in milliseconds.
fn work(job: &mut Job, dice: &mut Dice) -> (Vec<String>, i64) {
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
    if job.names.len() > 1 {
        return (words, lasts);
    }
    let fence = r#"redlock fence -q "$CHAOS_DIR/fence.$REDLOCK_NAME""#;
    if dice.chance(60) {
        words.push(format!("--do {} fence '{fence}'", at(dice)));
    }
    if dice.chance(15) {
        let at = at(dice);
        words.push(format!("--do {at} late 'redlock extend -q && {fence}'"));
    }
    if dice.chance(12) {
        let ms = dice.between(500, 5000);
        job.extends = ms * MS;
        let at = at(dice);
        words.push(format!("--do {at} extend 'redlock extend -q --for {ms}ms'"));
    }
    (words, lasts)
}

fn run(job: &mut Job, options: &str, dice: &mut Dice) -> String {
    let (mut words, lasts) = work(job, dice);
    let mut more = String::new();
    if dice.chance(25) {
        let ms = dice.between(1, 1500);
        words.push(format!("--fork {ms}"));
        // Descendants that outlive COMMAND would go on without the lock.
        if lasts < ms + 50 || dice.chance(50) {
            more += "--with-children ";
        }
    }
    let name = job.names[0].as_str();
    if name == "d" {
        let _ = write!(more, "--once-per {}s ", dice.between(1, 6));
    }
    let words = words.join(" ");
    format!("exec redlock run {options} {more}{name} -- {words}")
}

/// Returns a script whose lock a keeper renews.
fn kept(job: &mut Job, options: &str, dice: &mut Dice) -> String {
    job.is_kept = true;
    let (words, _) = work(job, dice);
    let (exec, end) = dice.pick(&[("exec ", ""), ("exec ", ""), ("", "; redlock release -q")]);
    format!(
        r#"lock=$(redlock acquire {options} --while-pid $$ {}) || exit; eval "$lock"; {exec}{}{end}"#,
        job.names[0],
        words.join(" ")
    )
}

fn several(job: &mut Job, dice: &mut Dice) -> String {
    job.names = vec!["a".into(), "c".into()];
    job.limit = 1;
    let (words, _) = work(job, dice);
    let (timing, words) = (timing(job), words.join(" "));
    format!("exec redlock run -q {timing} c a -- {words}")
}

/// Draws the next step of an operator, as a script.
pub fn step_in(dice: &mut Dice) -> String {
    let name = dice.pick(&NAMES);
    if dice.chance(50) {
        return format!("exec redlock stop -q --all {name}");
    }
    let ms = dice.between(300, 3000);
    let thaw_after = ms * dice.between(10, 120) / 100;
    format!(
        "redlock freeze -q --reason chaos --for {ms}ms {name}; sleep {}.{:03}; exec redlock thaw -q {name}",
        thaw_after / 1000,
        thaw_after % 1000
    )
}

/// Returns the name of the lock that a key belongs to.
pub fn lock_of(key: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|name| {
        let beside = [format!(":{name}}}:"), format!(":{name}:")];
        key.ends_with(&format!(":{name}")) || beside.iter().any(|part| key.contains(part))
    })
}

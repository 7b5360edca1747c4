//! Measures whole processes for docs/benchmarks.md, from spawn to reaped, in turns; and the memory of a holder.
//!
//! `make bench` runs it with the release binary in `REDLOCK_BIN`. The benchmark judges no times: machines differ, so only the
//! ratios within one run mean something. redlock and the C program run as two copies each. Figures are the mean of their
//! medians.

mod common;

use std::fs;
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    Redis, Result, command, compile, copies, directory, machine, mean_of_medians, median, note,
    percentile, redlock, row, run_for_text, table,
};

/// Measurements of each copy of a program.
const ROUNDS: usize = 500;
const WARM_UP: usize = 20;

/// A program that runs a command: its row of the page, and each copy of the program.
struct Contender {
    row: &'static str,
    copies: Vec<Box<dyn Fn() -> Result<()>>>,
}

fn main() -> Result<()> {
    let redlock = redlock();
    let directory = directory()?;
    let redis = Redis::start(directory.path())?;
    let mut out = stdout();
    let version = run_for_text(Command::new(&redlock).args(["--version", "-v"]))?;
    let size = fs::metadata(&redlock)?.len() / 1024;
    note(format!("the binary has {size} KiB"))?;
    writeln!(out, "{}\nMeasured: {version}.", machine()?)?;

    writeln!(out, "\n## One run\n")?;
    one_run(&redis, &redlock, directory.path())?;
    note(format!(
        "one uncontended run sends: {}",
        commands_of_a_run(&redis, &redlock)?
    ))?;

    writeln!(out, "\n## A holder's memory\n")?;
    weight_of_a_holder(&redis, &redlock)
}

fn one_run(redis: &Redis, redlock: &str, directory: &Path) -> Result<()> {
    let contenders = contenders(redis, redlock, directory)?;
    let times = measure(&contenders)?;
    let all_of_flock = &times[FLOCK];
    let figures: Vec<f64> = times.iter().map(|copies| mean_of_medians(copies)).collect();
    table(&["", "µs", "relative to flock", "relative to the C program"])?;
    for (contender, figure) in contenders.iter().zip(&figures) {
        let to = |other: usize| format!("{:.2}", figure / figures[other]);
        row(&[
            contender.row,
            &format!("{figure:.0}"),
            &to(FLOCK),
            &to(C_PROGRAM),
        ])?;
    }
    for (contender, copies) in contenders.iter().zip(&times) {
        for (number, times) in copies.iter().enumerate() {
            let [p10, p50, p90] = [10, 50, 90].map(|percent| percentile(times, percent));
            let by_round: Vec<f64> = times
                .iter()
                .zip(&all_of_flock[0])
                .map(|(time, flock)| time / flock)
                .collect();
            note(format!(
                "copy {}: p10 {p10:.0}, median {p50:.0}, p90 {p90:.0}, relative to flock by round {:.2}: {}",
                number + 1,
                median(&by_round),
                contender.row
            ))?;
        }
    }
    Ok(())
}

/// Positions of flock and the C program among the contenders.
const FLOCK: usize = 1;
const C_PROGRAM: usize = 2;

fn contenders(redis: &Redis, redlock: &str, directory: &Path) -> Result<Vec<Contender>> {
    let lock = directory.join("lock").display().to_string();
    let (port, url) = (redis.port.to_string(), redis.url());
    let peers = copies(&compile("peer", directory)?, directory)?;
    let redlocks = copies(Path::new(redlock), directory)?;
    let runs = |programs: &[String], words: &[&str]| -> Vec<Box<dyn Fn() -> Result<()>>> {
        let run = |program: &String| -> Box<dyn Fn() -> Result<()>> {
            let words = [&[program.as_str()], words].concat();
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            Box::new(move || succeed(&mut command(&words)))
        };
        programs.iter().map(run).collect()
    };
    let by_hand = |program: &String| -> Box<dyn Fn() -> Result<()>> {
        let words = |words: &[&str]| -> Vec<String> {
            let words = [&[program.as_str(), "-u", &url], words].concat();
            words.into_iter().map(str::to_owned).collect()
        };
        let acquire = words(&["acquire", "bench", "--format", "token"]);
        let release = words(&["release", "bench"]);
        Box::new(move || {
            let output = command(&acquire).stdout(Stdio::piped()).output()?;
            let token = String::from_utf8(output.stdout)?;
            succeed(command(&release).env("REDLOCK_TOKEN", token.trim()))
        })
    };
    Ok(vec![
        Contender {
            row: "`true` alone",
            copies: runs(&["true".into()], &[]),
        },
        Contender {
            row: "`flock FILE true`",
            copies: runs(&["flock".into()], &[&lock, "true"]),
        },
        Contender {
            row: "a static C program: connect, `SET NX PX`, spawn, wait, compare-and-delete",
            copies: runs(&peers, &[&port, "peer", "true"]),
        },
        Contender {
            row: "`redlock run x -- true`",
            copies: runs(&redlocks, &["-u", &url, "run", "bench", "--", "true"]),
        },
        Contender {
            row: "`redlock acquire x` and `redlock release x`, without a command",
            copies: redlocks.iter().map(by_hand).collect(),
        },
    ])
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if !status.success() {
        return Err(format!("{command:?} ended with {status}").into());
    }
    Ok(())
}

/// Times all copies in turns, in µs, so that other load on the machine affects all of them equally.
fn measure(contenders: &[Contender]) -> Result<Vec<Vec<Vec<f64>>>> {
    let mut times: Vec<Vec<Vec<f64>>> = contenders
        .iter()
        .map(|contender| vec![Vec::new(); contender.copies.len()])
        .collect();
    let all: Vec<(usize, usize)> = contenders
        .iter()
        .enumerate()
        .flat_map(|(which, contender)| (0..contender.copies.len()).map(move |copy| (which, copy)))
        .collect();
    for round in 0..WARM_UP + ROUNDS {
        for turn in 0..all.len() {
            let (which, copy) = all[(turn + round) % all.len()];
            let started = Instant::now();
            contenders[which].copies[copy]()?;
            let took = started.elapsed();
            if round >= WARM_UP {
                times[which][copy].push(took.as_secs_f64() * 1e6);
            }
        }
    }
    Ok(times)
}

/// Returns the round trips of one run on a server that has the scripts already.
fn commands_of_a_run(redis: &Redis, redlock: &str) -> Result<String> {
    const RUNS: usize = 10;
    let url = redis.url();
    let words = [redlock, "-u", &url, "run", "bench", "--", "true"].map(str::to_owned);
    let sent = redis.sent_during(|| {
        for _ in 0..RUNS {
            command(&words).status()?;
        }
        Ok(())
    })?;
    let one = &sent[..sent.len() / RUNS];
    if one.is_empty() || sent.chunks(one.len()).any(|run| run != one) {
        return Err(format!("runs differ in what they send: {sent:?}").into());
    }
    Ok(one.join(", "))
}

/// Age of a holder when its memory is measured: the watchdog and the renewer have started by then.
const SETTLED: Duration = Duration::from_secs(2);

/// Measures the memory of redlock, its watchdog and a keeper.
fn weight_of_a_holder(redis: &Redis, redlock: &str) -> Result<()> {
    let url = redis.url();
    let words = |words: &[&str]| -> Vec<String> {
        let words = [&[redlock, "-u", &url], words].concat();
        words.into_iter().map(str::to_owned).collect()
    };
    let mut holder = command(&words(&["run", "held", "--", "sleep", "4"])).spawn()?;
    let own = std::process::id().to_string();
    let acquire = words(&["acquire", "kept", "--format", "token", "--while-pid", &own]);
    let output = command(&acquire).stdout(Stdio::piped()).output()?;
    let token = String::from_utf8(output.stdout)?;
    std::thread::sleep(SETTLED);

    let is_watchdog = |process: &Process| process.parent == holder.id() && process.name != "sleep";
    let is_keeper = |process: &Process| {
        let mut words = process.words.iter();
        words.any(|word| word == "--while-pid") && words.next() == Some(&own)
    };
    let all = processes();
    let only = |what: &str, is_it: &dyn Fn(&Process) -> bool| -> Result<u32> {
        let pids: Vec<u32> = all
            .iter()
            .filter(|one| is_it(one))
            .map(|one| one.pid)
            .collect();
        match pids[..] {
            [pid] => Ok(pid),
            _ => Err(format!("{} processes are {what}", pids.len()).into()),
        }
    };
    let rows = [
        ("`redlock run`", holder.id()),
        ("its watchdog", only("a watchdog", &is_watchdog)?),
        (
            "a keeper, the background process of `acquire --while-pid`",
            only("a keeper", &is_keeper)?,
        ),
    ];
    table(&["after 2 s", "KiB resident", "of these its own", "threads"])?;
    for (what, pid) in rows {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let sums = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        // A run and its watchdog share pages: `Pss_Anon` includes this process's part of them.
        let (resident, own) = (field(&status, "VmRSS:")?, field(&sums, "Pss_Anon:")?);
        row(&[what, &resident, &own, &field(&status, "Threads:")?])?;
    }
    succeed(command(&words(&["release", "kept"])).env("REDLOCK_TOKEN", token.trim()))?;
    holder.wait()?;
    Ok(())
}

/// Returns the word after a name at the start of a line.
fn field(text: &str, name: &str) -> Result<String> {
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    let word = value.and_then(|rest| rest.split_whitespace().next());
    Ok(word
        .ok_or_else(|| format!("there is no {name}"))?
        .to_owned())
}

struct Process {
    pid: u32,
    parent: u32,
    name: String,
    words: Vec<String>,
}

/// Returns all readable processes of this machine.
fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |entry: fs::DirEntry| -> Option<Process> {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words);
        Some(Process {
            pid: entry.file_name().to_str()?.parse().ok()?,
            parent: field(&status, "PPid:").ok()?.parse().ok()?,
            name: field(&status, "Name:").ok()?,
            words: words.split('\0').map(str::to_owned).collect(),
        })
    };
    entries.filter_map(process).collect()
}

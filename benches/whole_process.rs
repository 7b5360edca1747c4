//! The measurements of the figures in docs/benchmarks.md: whole processes, from spawn to reaped, in turns.
//!
//! `make bench` runs it with the release binary in `REDLOCK_BIN`. It reports and judges no times:
//! machines differ, so only the ratios within one run count.
//! Even the same bytes may differ by 7 % from one copy of a file to another, by how they lie in the
//! page cache; to compare two builds, drop the cached pages of both and measure a second copy too.

mod common;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write, stdout};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    Redis, Result, command, compile, machine, median, percentile, redlock, run_for_text,
};

/// How often each command is measured.
const ROUNDS: usize = 500;
const WARM_UP: usize = 20;

fn main() -> Result<()> {
    let redlock = redlock();
    let directory = tempfile::tempdir()?;
    let redis = Redis::start(directory.path())?;
    let mut out = stdout();

    writeln!(out, "machine   {}", machine()?)?;
    writeln!(
        out,
        "redlock   {}",
        run_for_text(Command::new(&redlock).args(["--version", "-v"]))?
    )?;
    writeln!(
        out,
        "size      {} KiB",
        fs::metadata(&redlock)?.len() / 1024
    )?;

    writeln!(
        out,
        "\nwhole process around `true`, {ROUNDS} interleaved rounds, µs"
    )?;
    let peer = compile("peer", directory.path())?;
    let lock_file = directory.path().join("lock");
    let commands = [
        ("true", vec!["true".into()]),
        (
            "flock",
            vec![
                "flock".into(),
                lock_file.display().to_string(),
                "true".into(),
            ],
        ),
        (
            "peer in C",
            vec![
                peer.display().to_string(),
                redis.port.to_string(),
                "peer".into(),
                "true".into(),
            ],
        ),
        (
            "redlock",
            vec![
                redlock.clone(),
                "-u".into(),
                redis.url(),
                "run".into(),
                "bench".into(),
                "--".into(),
                "true".into(),
            ],
        ),
    ];
    let times = measure(&commands)?;
    writeln!(
        out,
        "{:<10} {:>8} {:>8} {:>8}  to flock          to peer",
        "", "median", "p10", "p90"
    )?;
    for (name, _) in &commands {
        let to = |other: &str| {
            let of_medians = median(&times[name]) / median(&times[other]);
            let by_round = median(&ratios(&times[name], &times[other]));
            format!("{of_medians:.3} ({by_round:.3})")
        };
        writeln!(
            out,
            "{name:<10} {:>8.0} {:>8.0} {:>8.0}  {:<16}  {}",
            median(&times[name]),
            percentile(&times[name], 10),
            percentile(&times[name], 90),
            to("flock"),
            to("peer in C"),
        )?;
    }
    writeln!(
        out,
        "ratio of the medians (median of the ratios within a round)"
    )?;

    other_figures(&redis, &redlock)
}

/// What isn't the time of a whole process.
fn other_figures(redis: &Redis, redlock: &str) -> Result<()> {
    let mut out = stdout();
    writeln!(
        out,
        "\none uncontended run sends: {}",
        commands_of_a_run(redis, redlock)?
    )?;
    for (what, seconds) in [("short run", "0.2"), ("run with three renewals", "1.2")] {
        let (memory, threads) = footprint(redis, redlock, seconds)?;
        writeln!(
            out,
            "{what}: {memory} KiB resident at the most, {threads} thread(s)"
        )?;
    }
    writeln!(
        out,
        "acquire and release by hand: {:.3} of a run of true",
        by_hand(redis, redlock)?
    )?;
    let keeper = keeper_memory(redis, redlock)?;
    writeln!(out, "a keeper: {keeper} KiB resident")?;
    // One stays behind for each script: that is judged, as it doesn't depend on the machine.
    if keeper > 4096 {
        return Err("a keeper has more than 4 MiB".into());
    }
    writeln!(
        out,
        "status of 1000 held locks: {:.1} ms",
        status_of_a_thousand(redis, redlock)?
    )?;
    Ok(())
}

/// Times the commands in turns, so that all meet the same weather; µs.
fn measure<'a>(commands: &[(&'a str, Vec<String>)]) -> Result<HashMap<&'a str, Vec<f64>>> {
    let mut times: HashMap<&str, Vec<f64>> = HashMap::new();
    for round in 0..WARM_UP + ROUNDS {
        for turn in 0..commands.len() {
            let (name, words) = &commands[(turn + round) % commands.len()];
            let mut command = command(words);
            let started = Instant::now();
            let status = command.spawn()?.wait()?;
            let took = started.elapsed();
            if !status.success() {
                return Err(format!("{name} ended with {status}").into());
            }
            if round >= WARM_UP {
                times
                    .entry(name)
                    .or_default()
                    .push(took.as_secs_f64() * 1e6);
            }
        }
    }
    Ok(times)
}

fn ratios(dividends: &[f64], divisors: &[f64]) -> Vec<f64> {
    dividends
        .iter()
        .zip(divisors)
        .map(|(dividend, divisor)| dividend / divisor)
        .collect()
}

/// What clients send for one run on a server that knows the scripts; each is a round trip.
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

/// The peak memory (KiB) and the threads of a redlock whose command sleeps.
fn footprint(redis: &Redis, redlock: &str, seconds: &str) -> Result<(u64, u64)> {
    let url = redis.url();
    let words = [
        redlock, "-u", &url, "run", "--ttl", "1s", "bench", "--", "sleep", seconds,
    ]
    .map(str::to_owned);
    let mut process = command(&words).spawn()?;
    let path = format!("/proc/{}/status", process.id());
    let mut last = (0, 0);
    while process.try_wait()?.is_none() {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        };
        if let (Some(memory), Some(threads)) = (field("VmHWM:"), field("Threads:")) {
            last = (memory, threads);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(last)
}

/// How much longer than a run of `true` it takes to acquire a lock and to release it, as two
/// processes; the ratio of the medians of interleaved rounds.
fn by_hand(redis: &Redis, redlock: &str) -> Result<f64> {
    let url = redis.url();
    let base = [redlock, "-u", &url];
    let words = |rest: &[&str]| -> Vec<String> {
        let words = base.iter().chain(rest);
        words.map(|&word| word.to_owned()).collect()
    };
    let run = words(&["run", "bench", "--", "true"]);
    let acquire = words(&["acquire", "bench", "--format", "token"]);
    let release = words(&["release", "bench"]);
    let (mut runs, mut pairs) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        let started = Instant::now();
        command(&run).status()?;
        let ran = started.elapsed();
        let started = Instant::now();
        let output = command(&acquire).stdout(Stdio::piped()).output()?;
        let token = String::from_utf8(output.stdout)?;
        let mut release = command(&release);
        let status = release.env("REDLOCK_TOKEN", token.trim()).status()?;
        let both = started.elapsed();
        if !status.success() {
            return Err("what was acquired could not be released".into());
        }
        if round >= WARM_UP {
            runs.push(ran.as_secs_f64());
            pairs.push(both.as_secs_f64());
        }
    }
    Ok(median(&pairs) / median(&runs))
}

/// The resident memory (KiB) of a keeper that has renewed several times.
fn keeper_memory(redis: &Redis, redlock: &str) -> Result<u64> {
    let url = redis.url();
    let pid = std::process::id().to_string();
    let acquire = [
        redlock,
        "-u",
        &url,
        "acquire",
        "kept",
        "--ttl",
        "1s",
        "--format",
        "token",
        "--while-pid",
        &pid,
    ]
    .map(str::to_owned);
    let output = command(&acquire).stdout(Stdio::piped()).output()?;
    std::thread::sleep(Duration::from_millis(1500));
    let mut memory = None;
    for entry in fs::read_dir("/proc")?.flatten() {
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|&byte| byte == 0);
        if words.any(|word| word == b"--while-pid") && words.next() == Some(pid.as_bytes()) {
            let status = fs::read_to_string(entry.path().join("status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            memory = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        }
    }
    let release = [redlock, "-u", &url, "release", "kept"].map(str::to_owned);
    let token = String::from_utf8(output.stdout)?;
    command(&release)
        .env("REDLOCK_TOKEN", token.trim())
        .status()?;
    memory.ok_or_else(|| "there is no keeper".into())
}

/// How long `redlock status` takes for a thousand locks, ms; the median of 20.
fn status_of_a_thousand(redis: &Redis, redlock: &str) -> Result<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port))?;
    let script = include_str!(concat!(env!("OUT_DIR"), "/acquire.lua"));
    let who = r#"{"host":"bench","user":"bench","pid":1,"command":["sleep","60"]}"#;
    for number in 0..1000 {
        let name = format!("lock-{number}");
        let lock = format!("redlock:{name}");
        let siblings = ["state", "meta", "holders", "queue", "waiters", "history"];
        let keys = siblings.map(|sibling| format!("{{{lock}}}:{sibling}"));
        let channels = format!("{{{lock}}}:");
        let slots = format!("{{{lock}}}:slots");
        let notices = format!("{{{lock}}}:notices");
        let mut words = vec!["EVAL", script, "10", &lock];
        words.extend(keys.iter().map(String::as_str));
        words.extend([
            "{redlock:}:index",
            &slots,
            &notices,
            &name,
            &channels,
            "200",
        ]);
        words.extend([
            "token", "600000", "1", who, "", "", "0", "fifo", "0", "", "0", "0",
        ]);
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            write!(request, "${}\r\n{word}\r\n", word.len())?;
        }
        stream.write_all(request.as_bytes())?;
        let mut reply = [0; 256];
        let read = stream.read(&mut reply)?;
        if !reply[..read].starts_with(b"*4\r\n:1") {
            return Err("a lock could not be made".into());
        }
    }
    let url = redis.url();
    let words = [redlock, "-u", &url, "status"].map(str::to_owned);
    let mut times = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let output = command(&words).stdout(Stdio::piped()).output()?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        if String::from_utf8_lossy(&output.stdout).lines().count() != 1001 {
            return Err("status doesn't show a thousand locks".into());
        }
    }
    Ok(median(&times))
}

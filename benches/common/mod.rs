//! Shares a private Redis and its scripts, programs to run, statistics and tables among the benchmarks.
//!
//! Each benchmark prints its tables of docs/benchmarks.md to standard output, exactly as on that page. Other figures that help
//! to judge them go to standard error.

// Each benchmark uses only some of these items.
#![allow(dead_code, unused_macros, unused_imports)]

use std::error::Error;
use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Write, stderr, stdout};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::{Cmd, Connection};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Returns the binary under test.
pub fn redlock() -> String {
    std::env::var("REDLOCK_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_redlock").into())
}

/// Returns the program of the server: `redis-server`, or the one in `REDIS_SERVER`.
fn redis_server() -> String {
    std::env::var("REDIS_SERVER")
        .ok()
        .filter(|path| !path.is_empty())
        .unwrap_or_else(|| "redis-server".into())
}

/// A private Redis on loopback, gone when dropped.
pub struct Redis {
    process: Child,
    pub port: u16,
}

impl Redis {
    pub fn start(directory: &Path) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // In a session of its own, like a service, because the kernel schedules processes by session.
        let process = Command::new("setsid")
            .args([
                &redis_server(),
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .arg("--dir")
            .arg(directory)
            .stdout(Stdio::null())
            .spawn()?;
        let mut redis = Self { process, port };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = redis.process.try_wait()? {
                return Err(format!("redis-server ended with {status}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(redis)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the name of each command that clients send during `work`. MONITOR distinguishes clients' commands from those of
    /// scripts; INFO doesn't.
    pub fn sent_during(&self, work: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
        let mut monitor = TcpStream::connect(("127.0.0.1", self.port))?;
        monitor.write_all(b"MONITOR\r\n")?;
        let mut lines = BufReader::new(monitor).lines();
        let confirmed = lines.next().transpose()?;
        if confirmed.as_deref() != Some("+OK") {
            return Err(format!("MONITOR was answered with {confirmed:?}").into());
        }
        work()?;
        let mut end = TcpStream::connect(("127.0.0.1", self.port))?;
        end.write_all(b"ECHO end-of-work\r\n")?;
        // A line is `+<time> [<database> <client>] "<command>" "<argument>"…`.
        let mut sent = Vec::new();
        for line in lines {
            let line = line?;
            if line.ends_with("\"ECHO\" \"end-of-work\"") {
                break;
            }
            let (client, words) = line.split_once("] \"").ok_or("MONITOR has a new format")?;
            if !client.ends_with(" lua") {
                sent.extend(words.split('"').next().map(str::to_lowercase));
            }
        }
        Ok(sent)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the keys of a lock, in the order of the scripts.
pub fn keys(name: &str) -> Vec<String> {
    let key = format!("redlock:{name}");
    let sibling = |sibling: &str| format!("{{{key}}}:{sibling}");
    let siblings = [
        "state", "meta", "holders", "queue", "waiters", "history", "", "slots", "exempt", "guards",
        "skips",
    ];
    let mut keys: Vec<String> = siblings.map(sibling).into();
    keys[6] = "{redlock:}:index".into();
    keys.insert(0, key);
    keys
}

/// Returns the call of a script for a lock, as redlock sends it: with the first `count` keys, and the arguments of all scripts.
pub fn call(hash: &str, name: &str, count: usize, arguments: &[&str]) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(hash).arg(count).arg(&keys(name)[..count]);
    call.arg(name)
        .arg(format!("{{redlock:{name}}}:"))
        .arg("200");
    call.arg(arguments);
    call
}

/// Loads one of redlock's scripts.
macro_rules! script {
    ($name:literal) => {
        redis::Script::new(include_str!(concat!(env!("OUT_DIR"), "/", $name, ".lua")))
    };
}

pub(crate) use script;

/// Returns a number from the server's INFO.
pub fn info(connection: &mut Connection, section: &str, name: &str) -> Result<f64> {
    let info: String = redis::cmd("INFO").arg(section).query(connection)?;
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value
        .ok_or_else(|| format!("INFO says nothing of {name}"))?
        .parse()?)
}

/// Returns the calls of a command by clients and scripts so far, and their total time in µs.
pub fn spent_on(connection: &mut Connection, command: &str) -> Result<(f64, f64)> {
    let info: String = redis::cmd("INFO").arg("commandstats").query(connection)?;
    let start = format!("cmdstat_{command}:");
    let Some(line) = info.lines().find_map(|line| line.strip_prefix(&start)) else {
        return Ok((0.0, 0.0));
    };
    let field = |name: &str| -> Result<f64> {
        let field = line.split(',').find_map(|field| field.strip_prefix(name));
        Ok(field.ok_or("INFO has a new format")?.parse()?)
    };
    Ok((field("calls=")?, field("usec=")?))
}

/// Creates a directory for a benchmark's files, on the same file system as the programs.
pub fn directory() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?)
}

/// Copies a program twice in the same way. The layout of a file in the page cache makes one copy up to 8 % faster than another.
/// Linkers write files differently from `install`.
pub fn copies(program: &Path, directory: &Path) -> Result<[String; 2]> {
    let name = program.file_name().ok_or("a program without a name")?;
    let copy = |number: u32| -> Result<String> {
        let copy = directory.join(format!("copy-{number}")).join(name);
        let done = Command::new("install")
            .args(["-D", "-m", "755"])
            .args([program, copy.as_path()])
            .status()?;
        if !done.success() {
            return Err(format!("{} can't be copied", program.display()).into());
        }
        Ok(copy.display().to_string())
    };
    Ok([copy(1)?, copy(2)?])
}

/// Compiles a C program of this directory, linked statically.
pub fn compile(name: &str, directory: &Path) -> Result<PathBuf> {
    let source = format!("{}/benches/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = directory.join(name);
    let has_musl = Command::new("musl-gcc")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok();
    let compiler = if has_musl { "musl-gcc" } else { "cc" };
    let status = Command::new(compiler)
        .args(["-O2", "-static", "-o"])
        .arg(&program)
        .arg(source)
        .status()?;
    if !status.success() {
        return Err(format!("{name}.c doesn't compile").into());
    }
    Ok(program)
}

/// Returns a command with a minimal environment, because the size of the environment costs time in each process.
pub fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", std::env::var_os("HOME").unwrap_or_default())
        .env("USER", "bench")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// Returns the middle value.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// Returns the smallest value that is at least as large as this percentage of the values.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * percent / 100]
}

/// Returns the mean of the copies' medians.
pub fn mean_of_medians(copies: &[Vec<f64>]) -> f64 {
    let medians = copies.iter().map(|values| median(values));
    medians.sum::<f64>() / f64::from(u32::try_from(copies.len()).unwrap_or(u32::MAX))
}

/// Prints the head of a table.
pub fn table(columns: &[&str]) -> Result<()> {
    row(columns)?;
    Ok(writeln!(stdout(), "|{}", " --- |".repeat(columns.len()))?)
}

/// Prints a row of a table.
pub fn row(cells: &[impl Display]) -> Result<()> {
    let mut line = "|".to_owned();
    for cell in cells {
        // An empty cell becomes one space.
        line.push_str(&format!(" {cell} |").replace("  ", " "));
    }
    Ok(writeln!(stdout(), "{line}")?)
}

/// Prints a line to standard error, which isn't part of the page.
pub fn note(text: impl Display) -> Result<()> {
    Ok(writeln!(stderr(), "{text}")?)
}

/// Formats a whole number with commas, as in 820,000.
pub fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Describes the machine of the measurements.
pub fn machine() -> Result<String> {
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let server = run_for_text(Command::new(redis_server()).arg("--version"))?;
    // `Redis server v=7.0.15 sha=00000000:0 malloc=...`.
    let (name, rest) = server
        .split_once(" server v=")
        .ok_or("the server's version has a new format")?;
    let version = rest.split_whitespace().next().unwrap_or_default();
    let mut kernel = kernel.trim().splitn(3, '.');
    let (major, minor) = (kernel.next(), kernel.next());
    Ok(format!(
        "The machine has {cores} cores, Linux {}.{} and {name} {version} over loopback TCP.",
        major.unwrap_or_default(),
        minor.unwrap_or_default()
    ))
}

/// Runs a program. Returns its output as one line.
pub fn run_for_text(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().replace('\n', ", "))
}

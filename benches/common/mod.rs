//! What the benchmarks share: a private Redis, programs to run, and statistics.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The binary that is measured.
pub fn redlock() -> String {
    std::env::var("REDLOCK_BIN").unwrap_or_else(|_| env!("CARGO_BIN_EXE_redlock").into())
}

/// The server that is measured with: `redis-server`, or the program that `REDIS_SERVER` names.
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
        // In a separate session, as a service has: the kernel's scheduler looks at that.
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

    /// Every command that a client sends while `work` goes on, by name. MONITOR tells these from
    /// what scripts call, as INFO doesn't.
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

/// A C program of this directory, linked statically.
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

/// An ordinary environment, and no more: how large it is counts in each process.
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

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// The value that this many percent are not above.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * percent / 100]
}

/// What it was measured on.
pub fn machine() -> Result<String> {
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let server = run_for_text(Command::new(redis_server()).arg("--version"))?;
    // `Redis server v=7.0.15 sha=00000000:0 malloc=...`.
    let (name, rest) = server
        .split_once(" server v=")
        .ok_or("the server's version has a new format")?;
    let version = rest.split_whitespace().next().unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    Ok(format!(
        "{cores} cores (load {load}), Linux {}, {name} {version}",
        kernel.trim()
    ))
}

/// What a program prints.
pub fn run_for_text(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?} ended with {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().replace('\n', ", "))
}

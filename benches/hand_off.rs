//! How fast a lock goes from one to the next, and what waiting costs.
//!
//! `make bench` runs it with the release binary in `REDLOCK_BIN`, beside `flock` and (where it is
//! installed) `etcdctl lock`, in turns. The times are taken by the commands themselves.

// Counts here are small.
#![allow(clippy::cast_precision_loss)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write, stdout};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis::Commands;
use sha1_smol::Sha1;

use crate::common::{Redis, Result, command, compile, machine, median, percentile, redlock};

fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let redis = Redis::start(directory.path())?;
    let mut out = stdout();
    writeln!(out, "machine   {}", machine()?)?;
    hand_off(&redis, directory.path())?;
    load_of_waiters(&redis)?;
    loops(&redis)?;
    work_of_the_server(&redis)?;
    Ok(())
}

/// A tool that runs a command under a lock.
struct Tool {
    name: &'static str,
    /// What comes before the command.
    words: Vec<String>,
    /// How many wait now.
    waiting: Box<dyn Fn() -> Result<usize>>,
    /// How often it is measured with this many waiters.
    rounds: fn(usize) -> usize,
    /// Its server, which stands still while others are measured.
    server: Option<Pid>,
}

/// How many runs wait at the same time.
const WAITERS: [usize; 3] = [1, 10, 100];

fn hand_off(redis: &Redis, directory: &Path) -> Result<()> {
    let mut out = stdout();
    let stamp = compile("stamp", directory)?;
    let etcd = Etcd::start(directory);
    let tools = tools(redis, directory, etcd.as_ref().ok());
    for tool in &tools {
        signal(tool, Signal::SIGSTOP)?;
    }
    writeln!(
        out,
        "\nfrom the end of one command to the start of the next, µs (in parentheses: until the last of all, ms)"
    )?;
    if let Err(why) = &etcd {
        writeln!(out, "without etcdctl: {why}")?;
    }
    for waiters in WAITERS {
        let mut gaps = vec![Vec::new(); tools.len()];
        let mut drains = vec![Vec::new(); tools.len()];
        for round in 0..(tools[0].rounds)(waiters) {
            for turn in 0..tools.len() {
                let which = (turn + round) % tools.len();
                let tool = &tools[which];
                if round < (tool.rounds)(waiters) {
                    signal(tool, Signal::SIGCONT)?;
                    let times = one_round(tool, waiters, &stamp, directory)?;
                    signal(tool, Signal::SIGSTOP)?;
                    gaps[which].extend(times.windows(2).map(|two| two[1].0 - two[0].1));
                    drains[which].push((times[waiters].0 - times[0].1) / 1e3);
                }
            }
        }
        for (which, tool) in tools.iter().enumerate() {
            let middle = median(&gaps[which]);
            writeln!(
                out,
                "{waiters:>3} waiting  {:<8} {middle:>7.0}  p90 {:>7.0}  to flock {:.2}  ({:.1})",
                tool.name,
                percentile(&gaps[which], 90),
                middle / median(&gaps[0]),
                median(&drains[which])
            )?;
        }
    }
    Ok(())
}

/// Lets a tool's own server go on, or stops it.
fn signal(tool: &Tool, signal: Signal) -> Result<()> {
    Ok(tool.server.map_or(Ok(()), |server| kill(server, signal))?)
}

fn tools(redis: &Redis, directory: &Path, etcd: Option<&Etcd>) -> Vec<Tool> {
    let often = |waiters| [100, 20, 6][WAITERS.iter().position(|&w| w == waiters).unwrap_or(2)];
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let lock = directory.join("lock");
    let url = redis.url();
    let mut tools = vec![
        Tool {
            name: "flock",
            words: words(&["flock", &lock.display().to_string()]),
            waiting: Box::new(move || {
                // Others on this machine may wait for files of theirs.
                let file = format!(":{} ", fs::metadata(&lock)?.ino());
                let locks = fs::read_to_string("/proc/locks")?;
                let waits = |line: &&str| line.contains("->") && line.contains(&file);
                Ok(locks.lines().filter(waits).count())
            }),
            rounds: often,
            server: None,
        },
        Tool {
            name: "redlock",
            words: words(&[&redlock(), "-q", "-u", &url, "run", "bench", "--"]),
            waiting: Box::new(move || {
                let mut redis = redis::Client::open(url.as_str())?.get_connection()?;
                Ok(redis.zcard("{redlock:bench}:queue")?)
            }),
            rounds: often,
            server: None,
        },
    ];
    if let Some(etcd) = etcd {
        let endpoint = etcd.endpoint.clone();
        let arguments = [
            "etcdctl",
            "--endpoints",
            &etcd.endpoint,
            "lock",
            "bench",
            "--",
        ];
        tools.push(Tool {
            name: "etcdctl",
            words: words(&arguments),
            waiting: Box::new(move || {
                let get = [
                    "--endpoints",
                    &endpoint,
                    "get",
                    "bench",
                    "--prefix",
                    "--keys-only",
                ];
                let keys = Command::new("etcdctl")
                    .args(get)
                    .env("ETCDCTL_API", "3")
                    .output()?;
                let keys = String::from_utf8_lossy(&keys.stdout)
                    .matches("bench/")
                    .count();
                Ok(keys.saturating_sub(1))
            }),
            rounds: |waiters| if waiters == 1 { 20 } else { 2 },
            server: i32::try_from(etcd.process.id()).ok().map(Pid::from_raw),
        });
    }
    tools
}

/// When the holder's command and then the waiters' began and ended, in µs, in order.
fn one_round(
    tool: &Tool,
    waiters: usize,
    stamp: &Path,
    directory: &Path,
) -> Result<Vec<(f64, f64)>> {
    let times = directory.join("times");
    let gate = directory.join("gate");
    let _ = fs::remove_file(&times);
    let _ = fs::remove_file(&gate);
    Command::new("mkfifo").arg(&gate).status()?;
    let under = |command: &[&str]| {
        let words: Vec<String> = tool
            .words
            .iter()
            .map(String::as_str)
            .chain(command.iter().copied())
            .map(str::to_owned)
            .collect();
        let mut command = self::command(&words);
        command.env("ETCDCTL_API", "3");
        command
    };
    let (stamp, file) = (stamp.display().to_string(), times.display().to_string());
    let script = format!(
        "echo ready; read go <{}; exec {stamp} {file}",
        gate.display()
    );
    let mut holder = under(&["sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut ready = [0; 6];
    holder
        .stdout
        .as_mut()
        .ok_or("no output")?
        .read_exact(&mut ready)?;
    let mut all = (0..waiters)
        .map(|_| Ok(under(&[&stamp, &file]).spawn()?))
        .collect::<Result<Vec<Child>>>()?;
    wait_until("all wait", || Ok((tool.waiting)()? == waiters))?;
    // Whatever else they do at the start is to be over.
    std::thread::sleep(Duration::from_millis(100));
    fs::write(&gate, "go\n")?;
    all.push(holder);
    for mut process in all {
        process.wait()?;
    }
    let mut stamps = fs::read_to_string(&times)?
        .lines()
        .map(|line| {
            let (began, ended) = line.split_once(' ').ok_or("half a line")?;
            Ok((began.parse::<f64>()? / 1e3, ended.parse::<f64>()? / 1e3))
        })
        .collect::<Result<Vec<(f64, f64)>>>()?;
    stamps.sort_by(|one, other| one.0.total_cmp(&other.0));
    if stamps.len() != waiters + 1 {
        return Err(format!("{}: {} of {waiters} ran", tool.name, stamps.len()).into());
    }
    Ok(stamps)
}

/// What a hundred waiters of one lock send while nothing happens. A holder that is a redlock sends
/// something as well; a key of a plain client doesn't.
fn load_of_waiters(redis: &Redis) -> Result<()> {
    let mut out = stdout();
    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
    let _: () = connection.set_ex("redlock:plain", "somebody", 600)?;
    writeln!(
        out,
        "\n100 waiters, commands a second (in parentheses: with those that scripts call)"
    )?;
    let (sent, all) = load(redis, &mut connection, "plain")?;
    writeln!(out, "held by a plain client  {sent:>5.1} ({all:.0})")?;
    let _: () = connection.del("redlock:plain")?;

    let url = redis.url();
    let words = [&redlock(), "-q", "-u", &url, "run", "load", "--", "sleep"];
    let words: Vec<String> = words
        .iter()
        .chain(&["600"])
        .map(ToString::to_string)
        .collect();
    let mut holder = command(&words).spawn()?;
    wait_until("it is held", || Ok(connection.exists("redlock:load")?))?;
    let measured = load(redis, &mut connection, "load");
    kill(Pid::from_raw(i32::try_from(holder.id())?), Signal::SIGTERM)?;
    holder.wait()?;
    let (sent, all) = measured?;
    writeln!(out, "held by a redlock       {sent:>5.1} ({all:.0})")?;
    Ok(())
}

/// The commands a second of all clients while a hundred wait for the lock: what they send, and what
/// `INFO commandstats` counts, which is the scripts' calls too.
fn load(redis: &Redis, connection: &mut redis::Connection, name: &str) -> Result<(f64, f64)> {
    // The longest heartbeat. Those far behind beat together when they came together, so that less
    // would leave them out.
    const SECONDS: u64 = 30;
    let url = redis.url();
    let words = [&redlock(), "-q", "-u", &url, "run", name, "--", "true"].map(ToString::to_string);
    let mut all = (0..100)
        .map(|_| Ok(command(&words).spawn()?))
        .collect::<Result<Vec<Child>>>()?;
    wait_until("all wait", || {
        let queue = format!("{{redlock:{name}}}:queue");
        Ok(connection.zcard::<_, usize>(queue)? == 100)
    })?;
    // Whatever else they do at the start is to be over.
    std::thread::sleep(Duration::from_secs(3));
    let _: () = redis::cmd("CONFIG").arg("RESETSTAT").query(connection)?;
    let sent = redis.sent_during(|| {
        std::thread::sleep(Duration::from_secs(SECONDS));
        Ok(())
    })?;
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection)?;
    for process in &mut all {
        process.kill()?;
        process.wait()?;
    }
    let calls = stats
        .lines()
        .filter_map(|line| line.split_once("calls=")?.1.split(',').next())
        .map(str::parse::<f64>)
        .sum::<std::result::Result<f64, _>>()?;
    Ok((sent.len() as f64 / SECONDS as f64, calls / SECONDS as f64))
}

/// Ten that run in a loop on one name, against one alone: runs a second.
fn loops(redis: &Redis) -> Result<()> {
    let url = redis.url();
    let words =
        [&redlock(), "-q", "-u", &url, "run", "loop", "--", "true"].map(ToString::to_string);
    let rate = |threads: usize| -> Result<f64> {
        let (count, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let stop = AtomicBool::new(false);
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let done = command(&words).status();
                        let counter = if done.is_ok_and(|status| status.success()) {
                            &count
                        } else {
                            &failed
                        };
                        counter.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(Duration::from_secs(2));
            stop.store(true, Ordering::Relaxed);
        });
        match failed.load(Ordering::Relaxed) {
            0 => {}
            failed => return Err(format!("{failed} runs failed").into()),
        }
        Ok(count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
    };
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        alone.push(rate(1)?);
        together.push(rate(10)?);
    }
    writeln!(
        stdout(),
        "one in a loop: {:.0} runs a second; ten on one name: {:.0} ({:.0} %)",
        median(&alone),
        median(&together),
        100.0 * median(&together) / median(&alone)
    )?;
    Ok(())
}

/// What the scripts of a hand-off cost the server, by how many wait: release, and the claim.
fn work_of_the_server(redis: &Redis) -> Result<()> {
    const HAND_OFFS: usize = 200;
    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
    macro_rules! script {
        ($name:literal) => {
            redis::Script::new(include_str!(concat!(env!("OUT_DIR"), "/", $name, ".lua")))
        };
    }
    let acquire = script!("acquire");
    let release = script!("release");
    let renew = script!("renew");
    let channels = "{redlock:work}:";
    let who = r#"{"host":"bench","user":"bench","pid":1,"command":["sleep","60"]}"#;
    writeln!(
        stdout(),
        "\nserver's work for a hand-off (release and claim)"
    )?;
    for waiters in [10, 100, 1_000, 10_000_usize] {
        let token = |number: usize| format!("{number:032x}:bench:{number}");
        // A client has to receive the messages.
        let mut listener = TcpStream::connect(("127.0.0.1", redis.port))?;
        for number in 0..waiters + HAND_OFFS {
            let id = &Sha1::from(token(number)).digest().to_string()[..12];
            listener.write_all(format!("SUBSCRIBE {channels}{id}\r\n").as_bytes())?;
        }
        let mut heard = listener.try_clone()?;
        let ear = std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while heard.read(&mut buffer).is_ok_and(|read| read > 0) {}
        });
        let mut enter = |number: usize| -> Result<()> {
            let arguments = [
                &token(number),
                "30000",
                "1",
                who,
                "listen",
                "",
                "0",
                "fifo",
                "0",
                "",
                "0",
                "0",
            ];
            let _: redis::Value = call(&acquire, &arguments).invoke(&mut connection)?;
            Ok(())
        };
        for number in 0..=waiters {
            enter(number)?;
        }
        let mut connection = redis::Client::open(redis.url())?.get_connection()?;
        let _: () = redis::cmd("CONFIG")
            .arg("RESETSTAT")
            .query(&mut connection)?;
        let hand_offs = HAND_OFFS.min(waiters);
        for number in 0..hand_offs {
            let released: Vec<i64> =
                call(&release, &[&token(number), "0", "status:0", "0"]).invoke(&mut connection)?;
            let next = token(number + 1);
            let renewed: Vec<Option<i64>> =
                call(&renew, &[&next, "30000", "", "0"]).invoke(&mut connection)?;
            if released != [1] || renewed.first() != Some(&Some(1)) {
                return Err("a lock was not handed on".into());
            }
        }
        let stats: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut connection)?;
        let line = stats
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"));
        let spent =
            line.and_then(|line| line.split(',').find_map(|part| part.strip_prefix("usec=")));
        let spent: f64 = spent.ok_or("no figure for EVALSHA")?.parse()?;
        writeln!(
            stdout(),
            "{waiters:>6} waiting  {:>5.1} µs",
            spent / hand_offs as f64
        )?;
        let _: () = redis::cmd("FLUSHALL").query(&mut connection)?;
        listener.shutdown(std::net::Shutdown::Both)?;
        ear.join().map_err(|_| "the listener failed")?;
    }
    Ok(())
}

/// A call of a script for the lock "work".
fn call<'a>(script: &'a redis::Script, arguments: &[&str]) -> redis::ScriptInvocation<'a> {
    let mut call = script.prepare_invoke();
    call.key("redlock:work");
    for sibling in ["state", "meta", "holders", "queue", "waiters", "history"] {
        call.key(format!("{{redlock:work}}:{sibling}"));
    }
    call.key("{redlock:}:index")
        .key("{redlock:work}:slots")
        .arg("work")
        .arg("{redlock:work}:")
        .arg("200");
    for argument in arguments {
        call.arg(*argument);
    }
    call
}

/// A private etcd, gone when dropped.
struct Etcd {
    process: Child,
    endpoint: String,
}

impl Etcd {
    fn start(directory: &Path) -> std::result::Result<Self, String> {
        let url = || -> std::io::Result<String> {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            Ok(format!("http://127.0.0.1:{port}"))
        };
        let clients = url().map_err(|error| error.to_string())?;
        let peers = url().map_err(|error| error.to_string())?;
        let data: PathBuf = directory.join("etcd");
        // In a separate session, as the Redis.
        let mut process = Command::new("setsid")
            .args(["etcd", "--data-dir"])
            .arg(&data)
            .args([
                "--listen-client-urls",
                &clients,
                "--advertise-client-urls",
                &clients,
            ])
            .args([
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
            ])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("etcd: {error}"))?;
        let healthy = ["--endpoints", &clients, "endpoint", "health"];
        let up = wait_until("etcd answers", || {
            if let Some(status) = process.try_wait()? {
                return Err(format!("etcd ended with {status}").into());
            }
            let health = Command::new("etcdctl")
                .args(healthy)
                .env("ETCDCTL_API", "3")
                .output()?;
            Ok(health.status.success())
        });
        if let Err(error) = up {
            let _ = process.kill();
            let mut said = String::new();
            let mut lines = process.stderr.take().map(BufReader::new);
            if let Some(lines) = &mut lines {
                let _ = lines.read_line(&mut said);
            }
            let _ = process.wait();
            return Err(format!("{error}; {said}"));
        }
        Ok(Self {
            process,
            endpoint: clients,
        })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // A stopped process ends as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition()? {
        if Instant::now() > end {
            return Err(format!("never happened: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

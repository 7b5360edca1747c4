//! Measures the time from one hold to the next, and the cost of waiting.
//!
//! `make bench` runs it with the release binary in `REDLOCK_BIN`. redlock takes turns with `flock`, a C program that hands a
//! lock over through Redis (queue.c), and `etcdctl lock` if that is installed. The commands themselves take the times. Each
//! copy of redlock and of the C program has its turns too; the figure is the mean of two copies' medians.

// Counts here are small.
#![allow(clippy::cast_precision_loss)]

mod common;

use std::fs::{self, File};
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

use crate::common::{
    Redis, Result, call, command, compile, copies, directory, mean_of_medians, median, note,
    percentile, redlock, row, script, spent_on, table, whole,
};

fn main() -> Result<()> {
    let directory = directory()?;
    let redis = Redis::start(directory.path())?;
    let mut out = stdout();
    let stamp = compile("stamp", directory.path())?.display().to_string();
    let etcd = Etcd::start(directory.path());
    if let Err(why) = &etcd {
        note(format!("without etcdctl: {why}"))?;
    }
    let tools = tools(&redis, directory.path(), etcd.as_ref().ok())?;
    for tool in &tools {
        signal(tool, Signal::SIGSTOP)?;
    }
    writeln!(out, "\n## A hand-over\n")?;
    hand_over(&tools, &stamp)?;
    writeln!(out, "\n### After a long hold\n")?;
    after_a_long_hold(&redis, &tools, &stamp, directory.path())?;
    writeln!(out, "\n### What waiting costs the server\n")?;
    work_of_the_server(&redis)?;
    writeln!(out)?;
    table(&["", ""])?;
    load_of_waiters(&redis)?;
    loops(&redis)
}

/// A tool that runs a command under a lock.
struct Tool {
    name: &'static str,
    /// Words before the command, for each copy of the program.
    copies: Vec<Vec<String>>,
    /// Counts the current waiters.
    waiting: Box<dyn Fn() -> Result<usize>>,
    /// Number of rounds with this many waiters.
    rounds: fn(usize) -> usize,
    /// Its server, suspended while other tools are measured.
    server: Option<Pid>,
    /// Directory for the files of its rounds.
    directory: PathBuf,
}

impl Tool {
    /// Returns the copy whose turn it is.
    fn copy(&self, round: usize) -> usize {
        round % self.copies.len()
    }
}

/// Numbers of concurrent waiters.
const WAITERS: [usize; 3] = [1, 10, 100];

/// Returns the cells of a row: each tool's figure, and redlock's relative to two others.
fn cells(tools: &[Tool], gaps: &[Vec<Vec<f64>>]) -> Vec<String> {
    let figure = |name: &str| {
        let which = tools.iter().position(|tool| tool.name == name)?;
        Some(mean_of_medians(gaps.get(which)?))
    };
    let micros = |name: &str| figure(name).map_or("–".into(), |gap| format!("{gap:.0}"));
    let to = |name: &str| match (figure("redlock"), figure(name)) {
        (Some(redlock), Some(other)) => format!("{:.2}", redlock / other),
        _ => "–".into(),
    };
    let (flock, queue) = ("flock", "C program");
    vec![
        micros(flock),
        micros(queue),
        micros("redlock"),
        to(flock),
        to(queue),
    ]
}

/// Columns that [`cells`] fills.
const CELLS: [&str; 5] = [
    "flock",
    "C program",
    "redlock",
    "relative to flock",
    "relative to the C program",
];

fn hand_over(tools: &[Tool], stamp: &str) -> Result<()> {
    table(&[&["waiters"], &CELLS[..], &["etcdctl lock"]].concat())?;
    for waiters in WAITERS {
        let mut gaps = no_times(tools);
        for round in 0..(tools[0].rounds)(waiters) {
            for turn in 0..tools.len() {
                let which = (turn + round) % tools.len();
                let tool = &tools[which];
                if round < (tool.rounds)(waiters) {
                    signal(tool, Signal::SIGCONT)?;
                    let copy = tool.copy(round);
                    let under_way = Round::start(tool, copy, waiters, stamp, None)?;
                    // Waits until they have finished all other work of their start.
                    std::thread::sleep(Duration::from_millis(100));
                    under_way.end_hold()?;
                    let times = under_way.finish(tool)?;
                    signal(tool, Signal::SIGSTOP)?;
                    gaps[which][copy].extend(times.windows(2).map(|two| two[1].0 - two[0].1));
                }
            }
        }
        let etcd = tools.iter().position(|tool| tool.name == "etcdctl lock");
        let etcd = etcd.map_or("–".into(), |which| {
            format!("{:.0}", mean_of_medians(&gaps[which]))
        });
        row(&[vec![waiters.to_string()], cells(tools, &gaps), vec![etcd]].concat())?;
        for (tool, copies) in tools.iter().zip(&gaps) {
            let of_copies = |percent| -> Vec<String> {
                let values = copies.iter().map(|gaps| percentile(gaps, percent));
                values.map(|value| format!("{value:.0}")).collect()
            };
            let (middle, high) = (of_copies(50).join(", "), of_copies(90).join(", "));
            note(format!(
                "{waiters} waiting, {}: {middle}; p90 {high}",
                tool.name
            ))?;
        }
    }
    Ok(())
}

/// Returns empty lists of times for each copy of each tool.
fn no_times(tools: &[Tool]) -> Vec<Vec<Vec<f64>>> {
    let copies = |tool: &Tool| vec![Vec::new(); tool.copies.len()];
    tools.iter().map(copies).collect()
}

/// Length of a hold like a real job's: the first waiters have sent heartbeats, and connections and caches are cold. Besides,
/// the server notifies the most waiters of the next grant (100, one for each 20 ms of the hold).
const LONG_HOLD: Duration = Duration::from_millis(2500);
const LONG_ROUNDS: usize = 10;

/// Measures the first hand-over after a long hold, and the server's work in the second after it. All tools hold at the same
/// time and end one after the other. The next command runs longer than that second.
fn after_a_long_hold(redis: &Redis, tools: &[Tool], stamp: &str, directory: &Path) -> Result<()> {
    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
    // Without etcd, because its server would need to run all the time.
    let here = tools
        .iter()
        .take_while(|tool| tool.server.is_none())
        .count();
    let tools = &tools[..here];
    let more = ["server's time, µs", "messages", "heartbeats"];
    table(&[&["waiters"], &CELLS[..], &more].concat())?;
    for waiters in [10, 100] {
        let mut gaps = no_times(tools);
        let (mut spent, mut messages, mut heartbeats) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..LONG_ROUNDS {
            let gate = Gate::close(&directory.join("second"))?;
            let start = |tool| Round::start(tool, tool.copy(round), waiters, stamp, Some(&gate));
            let rounds = tools.iter().map(start).collect::<Result<Vec<Round>>>()?;
            std::thread::sleep(LONG_HOLD);
            for turn in 0..tools.len() {
                let which = (turn + round) % tools.len();
                let _: () = redis::cmd("CONFIG")
                    .arg("RESETSTAT")
                    .query(&mut connection)?;
                rounds[which].end_hold()?;
                if tools[which].name == "redlock" {
                    std::thread::sleep(Duration::from_secs(1));
                    let (calls, time) = spent_on(&mut connection, "evalsha")?;
                    spent.push(time);
                    // The other calls are the release, and the next run's first renewal and first check of its lock.
                    heartbeats.push(calls - 3.0);
                    messages.push(spent_on(&mut connection, "publish")?.0);
                } else {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            drop(gate);
            for (which, under_way) in rounds.into_iter().enumerate() {
                let times = under_way.finish(&tools[which])?;
                gaps[which][tools[which].copy(round)].push(times[1].0 - times[0].1);
            }
        }
        for (tool, copies) in tools.iter().zip(&gaps) {
            note(format!("{waiters} waiting, {}: {copies:.0?}", tool.name))?;
        }
        let figures = [&spent, &messages, &heartbeats].map(|values| whole(median(values)));
        row(&[
            vec![waiters.to_string()],
            cells(tools, &gaps),
            figures.into(),
        ]
        .concat())?;
    }
    Ok(())
}

/// Sends a signal to a tool's own server, to suspend or resume it.
fn signal(tool: &Tool, signal: Signal) -> Result<()> {
    Ok(tool.server.map_or(Ok(()), |server| kill(server, signal))?)
}

fn tools(redis: &Redis, directory: &Path, etcd: Option<&Etcd>) -> Result<Vec<Tool>> {
    let often = |waiters| [100, 20, 6][WAITERS.iter().position(|&w| w == waiters).unwrap_or(2)];
    let words =
        |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
    let files = |name: &str| -> Result<PathBuf> {
        let directory = directory.join(name);
        fs::create_dir(&directory)?;
        Ok(directory)
    };
    let lock = directory.join("lock");
    let (url, port) = (redis.url(), redis.port.to_string());
    let redlocks = copies(Path::new(&redlock()), directory)?;
    let queues = copies(&compile("queue", directory)?, directory)?;
    let length = |command: &'static str, key: &'static str| {
        let url = redis.url();
        move || {
            let mut redis = redis::Client::open(url.as_str())?.get_connection()?;
            Ok(redis::cmd(command).arg(key).query(&mut redis)?)
        }
    };
    let mut tools = vec![
        Tool {
            name: "flock",
            copies: vec![words(&["flock", &lock.display().to_string()])],
            waiting: Box::new(move || {
                // Other programs on this machine may wait for locks on their own files.
                let file = format!(":{} ", fs::metadata(&lock)?.ino());
                let locks = fs::read_to_string("/proc/locks")?;
                let waits = |line: &&str| line.contains("->") && line.contains(&file);
                Ok(locks.lines().filter(waits).count())
            }),
            rounds: often,
            server: None,
            directory: files("flock")?,
        },
        Tool {
            name: "C program",
            copies: queues
                .iter()
                .map(|queue| words(&[queue, &port, "bench"]))
                .collect(),
            waiting: Box::new(length("LLEN", "bench:queue")),
            rounds: often,
            server: None,
            directory: files("queued")?,
        },
        Tool {
            name: "redlock",
            copies: redlocks
                .iter()
                .map(|redlock| words(&[redlock, "-q", "-u", &url, "run", "bench", "--"]))
                .collect(),
            waiting: Box::new(length("ZCARD", "{redlock:bench}:queue")),
            rounds: often,
            server: None,
            directory: files("redlock")?,
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
            name: "etcdctl lock",
            copies: vec![words(&arguments)],
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
            directory: files("etcdctl")?,
        });
    }
    Ok(tools)
}

/// Keeps commands from ending while it exists.
struct Gate {
    path: PathBuf,
    /// Write end of the FIFO: readers wait until it is closed.
    _open: File,
}

impl Gate {
    fn close(path: &Path) -> Result<Self> {
        let _ = fs::remove_file(path);
        Command::new("mkfifo").arg(path).status()?;
        // Opened for reading too, because opening a FIFO only for writing blocks until there is a reader.
        let open = File::options().read(true).write(true).open(path)?;
        Ok(Self {
            path: path.into(),
            _open: open,
        })
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A holder and its waiters.
struct Round {
    times: PathBuf,
    gate: PathBuf,
    processes: Vec<Child>,
}

impl Round {
    /// Starts a round. Returns when one run holds the lock and all others wait. Their commands end at once, or when the gate
    /// opens.
    fn start(
        tool: &Tool,
        copy: usize,
        waiters: usize,
        stamp: &str,
        second: Option<&Gate>,
    ) -> Result<Self> {
        let times = tool.directory.join("times");
        let gate = tool.directory.join("gate");
        let _ = fs::remove_file(&times);
        let _ = fs::remove_file(&gate);
        Command::new("mkfifo").arg(&gate).status()?;
        let under = |words: &[&str]| {
            let words = words.iter().map(|&word| word.to_owned());
            let words: Vec<String> = tool.copies[copy].iter().cloned().chain(words).collect();
            let mut command = command(&words);
            command.env("ETCDCTL_API", "3");
            command
        };
        let file = times.display().to_string();
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
        let second = second.map(|gate| gate.path.display().to_string());
        let waiter: Vec<&str> = [stamp, file.as_str()]
            .into_iter()
            .chain(second.as_deref())
            .collect();
        let mut processes = (0..waiters)
            .map(|_| Ok(under(&waiter).spawn()?))
            .collect::<Result<Vec<Child>>>()?;
        processes.push(holder);
        wait_until("all wait", || Ok((tool.waiting)()? == waiters))?;
        Ok(Self {
            times,
            gate,
            processes,
        })
    }

    /// Lets the holder's command end.
    fn end_hold(&self) -> Result<()> {
        Ok(fs::write(&self.gate, "go\n")?)
    }

    /// Returns the start and end of each command, first the holder's and then the waiters', in µs, in order.
    fn finish(self, tool: &Tool) -> Result<Vec<(f64, f64)>> {
        let all = self.processes.len();
        for mut process in self.processes {
            process.wait()?;
        }
        let mut stamps = fs::read_to_string(&self.times)?
            .lines()
            .map(|line| {
                let (began, ended) = line.split_once(' ').ok_or("half a line")?;
                Ok((began.parse::<f64>()? / 1e3, ended.parse::<f64>()? / 1e3))
            })
            .collect::<Result<Vec<(f64, f64)>>>()?;
        stamps.sort_by(|one, other| one.0.total_cmp(&other.0));
        if stamps.len() != all {
            return Err(format!("{}: {} of {all} ran", tool.name, stamps.len()).into());
        }
        if stamps.windows(2).any(|two| two[1].0 < two[0].1) {
            return Err(format!("{}: two had the lock at once", tool.name).into());
        }
        Ok(stamps)
    }
}

/// Measures the traffic of a hundred waiters of one lock while nothing happens.
fn load_of_waiters(redis: &Redis) -> Result<()> {
    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
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
    note(format!(
        "100 waiters: {all:.0} commands a second with those that scripts call"
    ))?;
    let waiting = "a hundred waiters and their holder, while nothing else happens";
    row(&[waiting.into(), format!("{sent:.0} commands per second")])
}

/// Returns the commands a second while a hundred wait for the lock. The first figure is for clients; the second is from `INFO
/// commandstats`, including the scripts' calls.
fn load(redis: &Redis, connection: &mut redis::Connection, name: &str) -> Result<(f64, f64)> {
    // Longest heartbeat. Distant waiters that came together send heartbeats together, so a shorter time could miss them.
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
    // Waits until they have finished all other work of their start.
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

/// Compares ten loops of runs on one name with a single loop, in runs a second.
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
    let (alone, together) = (median(&alone), median(&together));
    note(format!(
        "in a loop: {alone:.0} runs a second, ten {together:.0}"
    ))?;
    row(&[
        "runs of ten processes in a loop on one name, relative to one process alone".into(),
        format!("{:.2}", together / alone),
    ])
}

/// Measures the server's time for the scripts of a hand-over, by number of waiters: the release and the confirmation of the
/// grant.
fn work_of_the_server(redis: &Redis) -> Result<()> {
    let server = Server::new(redis);
    table(&["", "the release, µs", "its confirmation, µs"])?;
    let row = |what: String, (release, renewal): (Vec<f64>, Vec<f64>)| {
        let figures = [release, renewal].map(|times| format!("{:.0}", median(&times)));
        row(&[&[what], &figures[..]].concat())
    };
    for waiters in [10, 100, 1_000, 10_000] {
        let [short, _] = server.hand_overs(1, waiters)?;
        row(format!("{} waiters", whole(f64::from(waiters))), short)?;
    }
    let [short, long] = server.hand_overs(1_000, 3_000)?;
    let slots = "1,000 slots, 3,000 waiters";
    row(format!("{slots}, after a hold of some milliseconds"), short)?;
    row(format!("{slots}, after a hold of more than 2 s"), long)
}

/// Server with redlock's scripts.
struct Server<'a> {
    redis: &'a Redis,
    acquire: redis::Script,
    release: redis::Script,
    renew: redis::Script,
}

/// Server's times for releases and for the renewals that confirm the grants, in µs.
type Times = (Vec<f64>, Vec<f64>);

impl<'a> Server<'a> {
    fn new(redis: &'a Redis) -> Self {
        Self {
            redis,
            acquire: script!("acquire"),
            release: script!("release"),
            renew: script!("renew"),
        }
    }

    /// Hands over a lock with this many slots again and again, at most 200 times. Returns the times after short holds, and
    /// (with slots) after holds that began before the others came.
    fn hand_overs(&self, slots: u32, waiters: u32) -> Result<[Times; 2]> {
        const WHO: &str = r#"{"host":"bench","user":"bench","pid":1,"command":["sleep","60"]}"#;
        let hand_overs = waiters.min(200);
        let limit = slots.to_string();
        let token = |number: u32| format!("{number:032x}:bench:{number}");
        let mut connection = redis::Client::open(self.redis.url())?.get_connection()?;
        for script in [&self.acquire, &self.release, &self.renew] {
            script.load(&mut connection)?;
        }
        // Without a subscriber the server would have no messages to deliver.
        let mut listener = TcpStream::connect(("127.0.0.1", self.redis.port))?;
        let channel = |number| {
            let id = &Sha1::from(token(number)).digest().to_string()[..12];
            format!("{{redlock:work}}:{id}")
        };
        for number in 0..slots + waiters {
            listener.write_all(format!("SUBSCRIBE {}\r\n", channel(number)).as_bytes())?;
        }
        let mut heard = listener.try_clone()?;
        let ear = std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while heard.read(&mut buffer).is_ok_and(|read| read > 0) {}
        });
        wait_until("all listen", || {
            let last = ["NUMSUB", &channel(slots + waiters - 1)];
            let heard: (String, u32) = redis::cmd("PUBSUB").arg(&last).query(&mut connection)?;
            Ok(heard.1 == 1)
        })?;
        for number in 0..slots + waiters {
            let arguments = [
                &token(number),
                "30000",
                &limit,
                WHO,
                "listen",
                "",
                "0",
                "",
                "0",
                "0",
                "",
                "",
            ];
            let acquire = self.acquire.get_hash();
            let _: redis::Value = call(acquire, "work", 11, &arguments).query(&mut connection)?;
        }
        if slots > 1 {
            // A hold so long that the server notifies the most waiters that it ever does.
            std::thread::sleep(Duration::from_millis(2100));
        }
        let [mut short, mut long] = [Times::default(), Times::default()];
        let mut time_of =
            |script: &redis::Script, token: &str, arguments: &[&str]| -> Result<f64> {
                let arguments = [&[token], arguments].concat();
                let before = spent_on(&mut connection, "evalsha")?.1;
                let answer: Vec<redis::Value> =
                    call(script.get_hash(), "work", 11, &arguments).query(&mut connection)?;
                if answer.first() != Some(&redis::Value::Int(1)) {
                    return Err(format!("a lock was not handed over: {answer:?}").into());
                }
                Ok(spent_on(&mut connection, "evalsha")?.1 - before)
            };
        // The first holder, or one slot after the other, has held the lock for long; the next holder ends at once.
        let mut oldest = 0;
        let mut newest = None;
        for next in slots..slots + hand_overs {
            let (ends, times) = match newest {
                Some(newest) if slots == 1 || next % 2 == 1 => (newest, &mut short),
                _ => {
                    oldest += 1;
                    (oldest - 1, &mut long)
                }
            };
            times.0.push(time_of(
                &self.release,
                &token(ends),
                &["0", "status:0", "0"],
            )?);
            times
                .1
                .push(time_of(&self.renew, &token(next), &["30000", "", "0"])?);
            newest = Some(next);
        }
        let _: () = redis::cmd("FLUSHALL").query(&mut connection)?;
        listener.shutdown(std::net::Shutdown::Both)?;
        ear.join().map_err(|_| "the listener failed")?;
        Ok([short, long])
    }
}

/// Private etcd, gone when dropped.
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
        // In a session of its own, like the Redis.
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
            let mut message = String::new();
            let mut lines = process.stderr.take().map(BufReader::new);
            if let Some(lines) = &mut lines {
                let _ = lines.read_line(&mut message);
            }
            let _ = process.wait();
            return Err(format!("{error}; {message}"));
        }
        Ok(Self {
            process,
            endpoint: clients,
        })
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // SIGKILL ends a suspended process too.
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

//! Measures the capacity of one Redis: the scripts' cost, the memory of a name, and the time to list many.
//!
//! `make bench` runs it with the release binary in `REDLOCK_BIN`, and a Redis of its own. To renew, the load generator sends the same bytes as a run:
//! in one write, the script and the request for a notification of the next change.

// Counts here are far below 2^52.
#![allow(clippy::cast_precision_loss)]

mod common;

use std::io::{Read, Write, stdout};
use std::net::TcpStream;
use std::ops::Range;
use std::process::Stdio;
use std::time::Instant;

use redis::{Cmd, Connection, Pipeline, Script, Value, cmd};

use crate::common::{
    Redis, Result, call, command, directory, info, keys, median, note, redlock, row, script, table,
    whole,
};

const LOCKS: usize = 100_000;
/// Locks in one measurement, or half of them if two ways take turns.
const PART: usize = 20_000;
/// Requests under way at a time on one connection.
const BATCH: usize = 500;
/// Connections if each run has its own, with one request under way on each.
const CONNECTIONS: usize = 300;
/// Length of a run's lease and the time between two renewals, in seconds, for the table of capacities.
const TTL: f64 = 30.0;
const RENEWED_EVERY: f64 = TTL / 3.0;

const WHO: &str = r#"{"host":"ci-7.example.com","user":"deploy","pid":27523,"command":["./deploy.sh","--to","production"],"ttl":30000,"instance":"5b0c2a3e-8d4f-4a6b-9c1d-2e3f4a5b6c7d:4026531836:27523:123456789:27000"}"#;

/// The arguments of the scripts, after the token. All leases outlast the benchmark.
const ACQUIRE: [&str; 11] = ["600000", "1", WHO, "", "", "0", "", "0", "0", "", ""];
/// TTL of each lease, in ms, as in `ACQUIRE`.
const LASTING: &str = "600000";
/// Time after which the server forgets a holder, in ms.
const REMEMBERED: &str = "2592600000";
const RELEASE: [&str; 3] = ["0", "status:0", "0"];

/// Arguments of a run that gave up because another run held the lock. Clients leave out the fields of both runs that matter
/// only while a lock is held.
const SKIP: [&str; 4] = [
    "busy",
    "0",
    r#"{"host":"ci-7.example.com","user":"deploy","pid":27524,"command":["./deploy.sh","--to","production"]}"#,
    r#"{"host":"ci-7.example.com","user":"deploy","pid":27523,"command":[]}"#,
];

fn main() -> Result<()> {
    let directory = directory()?;
    let redis = Redis::start(directory.path())?;
    let mut server = Server::connect(&redis)?;
    let empty = server.memory()?;
    let (acquired, mut listings) = acquire_all(&mut server)?;
    let held = server.memory()? - empty;
    let one_held = server.weight(&own_keys("lock-0"))?;
    let (pipelined, connected) = renew_all(&mut server)?;
    let released = release_all(&mut server)?;
    let taken = take_all(&mut server)?;
    release_all(&mut server)?;
    let after = server.memory()? - empty;
    let one_after = server.weight(&own_keys("lock-0"))?;
    let index = server.weight(&[INDEX.into()])?;
    let (holds, skips) = full_history(&mut server)?;
    listings.extend(used_names(&redis)?);

    let mut out = stdout();
    writeln!(out, "\n## The server\n")?;
    let micros = |times: &[f64]| format!("{:.1}", median(times));
    let locks = |times: &[f64]| whole(1e6 / median(times) * RENEWED_EVERY);
    let none = |_: &[f64]| String::new();
    let pipelining = format!("{BATCH} requests under way on one connection");
    let connecting = format!("{CONNECTIONS} connections with one request each under way");
    table(&[
        "",
        "µs of the server's processor",
        "locks per Redis at a TTL of 30 s",
    ])?;
    let server_row = |what, how: &str, times: &[f64], locks: &dyn Fn(&[f64]) -> String| {
        row(&[format!("{what}, {how}"), micros(times), locks(times)])
    };
    server_row(
        "an acquire, the first of its name on a day",
        &pipelining,
        &acquired,
        &none,
    )?;
    server_row("an acquire later on that day", &pipelining, &taken, &none)?;
    server_row("a release", &pipelining, &released, &none)?;
    server_row("a renewal", &pipelining, &pipelined, &locks)?;
    server_row("a renewal", &connecting, &connected, &locks)?;

    writeln!(out, "\n### The memory of a name\n")?;
    let each = |bytes: f64| whole(bytes / LOCKS as f64);
    table(&[
        "",
        "bytes of its keys",
        "bytes of the server's memory, per name of 100,000",
    ])?;
    let weights = [
        ("while its lock is held", whole(one_held), each(held)),
        ("after one run", whole(one_after), each(after)),
        ("and in the index of all names", each(index), String::new()),
        (
            "after 220 runs, the longest history",
            whole(holds),
            String::new(),
        ),
        (
            "and 200 skipped runs, the longest list",
            whole(skips),
            String::new(),
        ),
    ];
    for (what, keys, memory) in weights {
        row(&[what, &keys, &memory])?;
    }

    writeln!(out, "\n### Many names\n")?;
    table(&["", "ms"])?;
    for (what, took) in listings {
        row(&[what, took.map_or_else(|| "refused".into(), whole)])?;
    }
    Ok(())
}

/// The server and a connection like a run's.
struct Server<'a> {
    redis: &'a Redis,
    connection: Connection,
}

/// Title of a listing, and its duration in ms; `None` if redlock refused it.
type Listing = (String, Option<f64>);

/// Acquires all locks. Returns the server's time per lock in each part, in µs, and the listings in between.
fn acquire_all(server: &mut Server) -> Result<(Vec<f64>, Vec<Listing>)> {
    let acquire = server.load(script!("acquire"))?;
    let mut listings = Vec::new();
    for (from, to) in [(0, 1_000), (1_000, 10_000), (10_000, PART)] {
        server.time_for(&all(&acquire, &ACQUIRE, from..to))?;
        if to < PART {
            let what = format!("`redlock status` of {} held locks", whole(to as f64));
            listings.push((what, listing(server.redis, &["status"], Some(to + 1))?));
        }
        if to == 1_000 {
            let what = "`redlock status --prometheus` of 1,000 held locks".to_owned();
            let words = ["status", "--prometheus", "-"];
            listings.push((what, listing(server.redis, &words, None)?));
        }
    }
    let parts = (PART..LOCKS).step_by(PART);
    let times = parts.map(|from| server.time_for(&all(&acquire, &ACQUIRE, from..from + PART)));
    Ok((times.collect::<Result<_>>()?, listings))
}

/// Renews all leases, half of them on one connection and half on many. Returns the server's time per lock in each part, in µs.
fn renew_all(server: &mut Server) -> Result<(Vec<f64>, Vec<f64>)> {
    let prolong = server.load(script!("prolong"))?;
    // Each lock is renewed on one connection only, because the server would notify any other connection that tracks its key.
    let renewals = |locks: Range<usize>| -> Vec<Vec<Cmd>> {
        locks.map(|lock| renewal(&prolong, lock)).collect()
    };
    let (mut pipelined, mut connected) = (Vec::new(), Vec::new());
    let mut runs = Runs::connect(server.redis)?;
    for from in (0..LOCKS).step_by(PART) {
        let middle = from + PART / 2;
        let one = server.time_for(&renewals(from..middle))?;
        let each = runs.time_for(server, &renewals(middle..from + PART))?;
        // The first round is a warm-up.
        if from > 0 {
            pipelined.push(one);
            connected.push(each);
        }
    }
    Ok((pipelined, connected))
}

/// Releases all locks. Returns the server's time per lock in each part, in µs.
fn release_all(server: &mut Server) -> Result<Vec<f64>> {
    let release = server.load(script!("free"))?;
    let parts = (0..LOCKS).step_by(PART);
    let times = parts.map(|from| server.time_for(&all(&release, &RELEASE, from..from + PART)));
    let times: Vec<f64> = times.collect::<Result<_>>()?;
    Ok(times[1..].to_vec())
}

/// Acquires all locks again that were used earlier today. Returns the server's time per lock in each part, in µs.
fn take_all(server: &mut Server) -> Result<Vec<f64>> {
    let take = server.load(script!("take"))?;
    let parts = (0..LOCKS).step_by(PART);
    let times = parts.map(|from| server.time_for(&all(&take, &ACQUIRE, from..from + PART)));
    let times: Vec<f64> = times.collect::<Result<_>>()?;
    Ok(times[1..].to_vec())
}

/// Returns a call with these arguments for each lock.
fn all(script: &Script, arguments: &[&str], locks: Range<usize>) -> Vec<Vec<Cmd>> {
    locks
        .map(|lock| vec![of_lock(script, lock, arguments)])
        .collect()
}

/// Measures how long it takes to list the used names.
fn used_names(redis: &Redis) -> Result<Vec<Listing>> {
    let used = "of 100,000 names that were used";
    let listings = [
        (
            format!("`redlock history` {used}: the last 20 holds"),
            &["history"][..],
        ),
        (
            format!("`redlock status` {used}: none is in use"),
            &["status"],
        ),
    ];
    let timed = listings.map(|(what, words)| Ok((what, listing(redis, words, None)?)));
    timed.into_iter().collect()
}

impl<'a> Server<'a> {
    fn connect(redis: &'a Redis) -> Result<Self> {
        let url = format!("{}?protocol=resp3", redis.url());
        let mut connection = redis::Client::open(url)?.get_connection()?;
        let tracking = ["TRACKING", "ON", "OPTIN", "NOLOOP"];
        let _: () = cmd("CLIENT").arg(&tracking).query(&mut connection)?;
        Ok(Self { redis, connection })
    }

    fn load(&mut self, script: Script) -> Result<Script> {
        script.load(&mut self.connection)?;
        Ok(script)
    }

    /// Sends these requests. Returns the server's processor time for each, in µs, including reading and answering.
    fn time_for(&mut self, requests: &[Vec<Cmd>]) -> Result<f64> {
        let before = self.processor_time()?;
        for batch in requests.chunks(BATCH) {
            let mut pipeline = Pipeline::new();
            for command in batch.iter().flatten() {
                pipeline.add_command(command.clone());
            }
            let answers: Vec<Value> = pipeline.query(&mut self.connection)?;
            for (answer, request) in answers.iter().step_by(batch[0].len()).zip(batch) {
                let is_done = match answer {
                    Value::Array(fields) => fields.first() == Some(&Value::Int(1)),
                    // `prolong` answers with the length of the lease.
                    answer => *answer != Value::Int(0),
                };
                if !is_done {
                    return Err(format!("{answer:?} to {request:?}").into());
                }
            }
        }
        Ok((self.processor_time()? - before) * 1e6 / requests.len() as f64)
    }

    /// Returns the server's processor time so far, in seconds.
    fn processor_time(&mut self) -> Result<f64> {
        let mut seconds = |name| info(&mut self.connection, "cpu", name);
        Ok(seconds("used_cpu_user")? + seconds("used_cpu_sys")?)
    }

    /// Returns the server's memory, in bytes.
    fn memory(&mut self) -> Result<f64> {
        info(&mut self.connection, "memory", "used_memory")
    }

    /// Returns the memory that these keys take, in bytes.
    fn weight(&mut self, keys: &[String]) -> Result<f64> {
        let mut sum = 0.0;
        for key in keys {
            let usage = ["USAGE", key, "SAMPLES", "0"];
            let bytes: Option<f64> = cmd("MEMORY").arg(&usage).query(&mut self.connection)?;
            sum += bytes.unwrap_or_default();
        }
        Ok(sum)
    }
}

fn token(lock: usize) -> String {
    format!("{lock:032x}:ci-7:27523")
}

/// Returns the call of a script for one of the locks, with its token.
fn of_lock(script: &Script, lock: usize, arguments: &[&str]) -> Cmd {
    let token = token(lock);
    let arguments = [&[token.as_str()], arguments].concat();
    call(script.get_hash(), &format!("lock-{lock}"), 11, &arguments)
}

/// Returns the usual requests of a renewal.
fn renewal(prolong: &Script, lock: usize) -> Vec<Cmd> {
    let (key, token) = (format!("redlock:lock-{lock}"), token(lock));
    let hash = Script::new(&token);
    let id = &hash.get_hash()[..12];
    let mut call = cmd("EVALSHA");
    call.arg(prolong.get_hash()).arg(3).arg(&key);
    call.arg(format!("{{{key}}}:meta"));
    call.arg(format!("{{{key}}}:cancelled:{id}"));
    call.arg(token).arg(LASTING).arg(REMEMBERED);
    vec![
        call,
        cmd("CLIENT").arg("CACHING").arg("YES").take(),
        cmd("GETRANGE").arg(key).arg(0).arg(60).take(),
    ]
}

/// Connections of many runs.
struct Runs {
    streams: Vec<TcpStream>,
}

impl Runs {
    fn connect(redis: &Redis) -> Result<Self> {
        let stream = |_| -> Result<TcpStream> {
            let mut stream = TcpStream::connect(("127.0.0.1", redis.port))?;
            stream.set_nodelay(true)?;
            stream.write_all(b"HELLO 3\r\nCLIENT TRACKING ON OPTIN NOLOOP\r\n")?;
            let mut answer = Vec::new();
            while !answer.ends_with(b"+OK\r\n") {
                let mut buffer = [0; 1024];
                let read = stream.read(&mut buffer)?;
                answer.extend_from_slice(&buffer[..read]);
                if read == 0 {
                    return Err("a connection was closed".into());
                }
            }
            Ok(stream)
        };
        let streams = (0..CONNECTIONS).map(stream).collect::<Result<_>>()?;
        Ok(Self { streams })
    }

    /// Sends these requests. Each connection sends the next one after the last reply. Returns the server's processor time for
    /// each, in µs.
    fn time_for(&mut self, server: &mut Server, requests: &[Vec<Cmd>]) -> Result<f64> {
        let packed = |request: &Vec<Cmd>| -> Vec<u8> {
            request.iter().flat_map(Cmd::get_packed_command).collect()
        };
        let packed: Vec<Vec<u8>> = requests.iter().map(packed).collect();
        let before = server.processor_time()?;
        let connections = self.streams.len();
        for number in 0..packed.len() + connections {
            let stream = &mut self.streams[number % connections];
            if number >= connections {
                read_renewal(stream)?;
            }
            if let Some(request) = packed.get(number) {
                stream.write_all(request)?;
            }
        }
        Ok((server.processor_time()? - before) * 1e6 / requests.len() as f64)
    }
}

/// Reads the replies to a renewal: the lease's length, OK, and the token.
fn read_renewal(stream: &mut TcpStream) -> Result<()> {
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    while !(answer.ends_with(b":ci-7:27523\r\n")) {
        let read = stream.read(&mut buffer)?;
        answer.extend_from_slice(&buffer[..read]);
        if read == 0 || !answer.starts_with(b":") {
            let answer = String::from_utf8_lossy(&answer);
            return Err(format!("{answer:?} to a renewal").into());
        }
    }
    if !String::from_utf8_lossy(&answer).starts_with(&format!(":{LASTING}\r\n")) {
        return Err("a lock was not renewed".into());
    }
    Ok(())
}

/// Returns the memory of a name with the longest history, and with the longest list of skipped runs in addition, in bytes.
fn full_history(server: &mut Server) -> Result<(f64, f64)> {
    let mut hash = |script| -> Result<_> { Ok(server.load(script)?.get_hash().to_owned()) };
    let (acquire, release) = (hash(script!("acquire"))?, hash(script!("release"))?);
    let skip = hash(script!("skip"))?;
    let run = |server: &mut Server, script: &str, keys, arguments: &[&str]| -> Result<()> {
        let call = call(script, "often", keys, arguments);
        let answer: Vec<Value> = call.query(&mut server.connection)?;
        match answer.first() {
            Some(Value::Int(1)) => Ok(()),
            _ => Err(format!("{answer:?} to {arguments:?}").into()),
        }
    };
    for number in 0..220 {
        let token = format!("{number:032x}:ci-7:27523");
        run(
            server,
            &acquire,
            11,
            &[&[token.as_str()], &ACQUIRE[..]].concat(),
        )?;
        run(
            server,
            &release,
            11,
            &[&[token.as_str()], &RELEASE[..]].concat(),
        )?;
    }
    let holds = server.weight(&own_keys("often"))?;
    for _ in 0..200 {
        run(server, &skip, 12, &SKIP)?;
    }
    Ok((holds, server.weight(&own_keys("often"))?))
}

/// Returns the keys of one lock, without the index of all names.
fn own_keys(name: &str) -> Vec<String> {
    let mut keys = keys(name);
    keys.retain(|key| key != INDEX);
    keys
}

const INDEX: &str = "{redlock:}:index";

/// Returns the median time of five listings after a warm-up, in ms, or the shorter of two if a listing takes over a second.
/// Returns `None` if redlock refuses. Fails if the output doesn't have `lines` lines.
fn listing(redis: &Redis, words: &[&str], lines: Option<usize>) -> Result<Option<f64>> {
    let (redlock, url) = (redlock(), redis.url());
    let words = [&[redlock.as_str(), "-u", &url], words].concat();
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let mut times: Vec<f64> = Vec::new();
    for round in 0..6 {
        // Long ones vary less.
        if times.len() == 2 && times[0] > 1000.0 {
            break;
        }
        let started = Instant::now();
        let output = command(&words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()?;
        let took = started.elapsed();
        let stderr = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            note(format!("{words:?}: {stderr}"))?;
            return Ok(None);
        }
        let printed = String::from_utf8_lossy(&output.stdout).lines().count();
        if lines.is_some_and(|lines| printed != lines) {
            return Err(format!("{words:?} printed {printed} lines: {stderr}").into());
        }
        if round > 0 {
            times.push(took.as_secs_f64() * 1e3);
        }
    }
    Ok(Some(median(&times)))
}

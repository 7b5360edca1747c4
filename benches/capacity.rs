//! How many locks one Redis carries: what a renewal costs the server, and what a lock weighs in its memory.
//!
//! `make bench` runs it. The load generator sends what a run sends for each renewal, in one write: the
//! script, and the request to be notified of the next change of the key.

// Counts here are small.
#![allow(clippy::cast_precision_loss)]

// Not all of it is for this one.
#[allow(dead_code)]
mod common;

use std::io::{Write, stdout};

use redis::{Cmd, Connection, Pipeline, Script, Value, cmd};

use crate::common::{Redis, Result};

const LOCKS: u32 = 100_000;
/// How many requests are under way at a time, as those of many runs are.
const BATCH: usize = 500;
/// A lease, and how often it is renewed, in seconds.
const TTL: f64 = 30.0;
const RENEWED_EVERY: f64 = TTL / 3.0;

macro_rules! script {
    ($name:literal) => {
        Script::new(include_str!(concat!(env!("OUT_DIR"), "/", $name, ".lua")))
    };
}

fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let redis = Redis::start(directory.path())?;
    let url = format!("{}?protocol=resp3", redis.url());
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let mut out = stdout();
    let tracking = ["TRACKING", "ON", "OPTIN", "NOLOOP"];
    let _: () = cmd("CLIENT").arg(&tracking).query(&mut connection)?;
    let (acquire, renew, release) = (script!("acquire"), script!("renew"), script!("release"));
    for script in [&acquire, &renew, &release] {
        script.load(&mut connection)?;
    }
    let who = r#"{"host":"ci-7.example.com","user":"deploy","pid":27523,"command":["./deploy.sh","--to","production"],"instance":"5b0c2a3e-8d4f-4a6b-9c1d-2e3f4a5b6c7d:4026531836:27523:123456789:27000"}"#;
    let empty = memory(&mut connection)?;
    let all = |script: &Script, arguments: &[&str]| -> Vec<Vec<Cmd>> {
        let hash = script.get_hash();
        (0..LOCKS)
            .map(|lock| vec![call(hash, lock, arguments)])
            .collect()
    };
    let taken = ["30000", "1", who, "", "", "0", "fifo", "0", "", "0", "0"];
    let spent = server_time(&mut connection, &all(&acquire, &taken))?;
    let held = memory(&mut connection)?;
    writeln!(
        out,
        "acquire   {spent:>6.1} µs of the server's time, free lock"
    )?;
    let renewals = (0..LOCKS).map(|lock| {
        let key = format!("redlock:lock-{lock}");
        vec![
            call(renew.get_hash(), lock, &["30000", "", "0"]),
            cmd("CLIENT").arg("CACHING").arg("YES").take(),
            cmd("GETRANGE").arg(key).arg(0).arg(60).take(),
        ]
    });
    let spent = server_time(&mut connection, &renewals.collect::<Vec<_>>())?;
    let each_second = 1e6 / spent;
    writeln!(
        out,
        "renewal   {spent:>6.1} µs with tracking: {each_second:.0} a second, {:.0} locks at a TTL of {TTL} s",
        each_second * RENEWED_EVERY
    )?;
    let spent = server_time(&mut connection, &all(&release, &["0", "status:0", "0"]))?;
    let after = memory(&mut connection)?;
    writeln!(out, "release   {spent:>6.1} µs for which nobody waits")?;
    let each = |bytes: i64| bytes as f64 / f64::from(LOCKS);
    writeln!(
        out,
        "memory    {:.0} bytes for a lock that is held, {:.0} after its first run",
        each(held - empty),
        each(after - empty)
    )?;
    Ok(())
}

/// A call of a script for one of the locks, by its token.
fn call(hash: &str, lock: u32, arguments: &[&str]) -> Cmd {
    let name = format!("lock-{lock}");
    let key = format!("redlock:{name}");
    let mut call = cmd("EVALSHA");
    call.arg(hash).arg(10).arg(&key);
    for sibling in ["state", "meta", "holders", "queue", "waiters", "history"] {
        call.arg(format!("{{{key}}}:{sibling}"));
    }
    call.arg("{redlock:}:index").arg(format!("{{{key}}}:slots"));
    call.arg(format!("{{{key}}}:notices"));
    call.arg(name).arg(format!("{{{key}}}:")).arg("200");
    call.arg(format!("{lock:032x}:ci-7:27523")).arg(arguments);
    call
}

/// Sends these requests; how long the server's processor works for each, in microseconds, with what it
/// takes to read them and to answer.
fn server_time(connection: &mut Connection, requests: &[Vec<Cmd>]) -> Result<f64> {
    let count = requests.len();
    let before = processor_time(connection)?;
    for batch in requests.chunks(BATCH) {
        let mut pipeline = Pipeline::new();
        for command in batch.iter().flatten() {
            pipeline.add_command(command.clone());
        }
        let answers: Vec<Value> = pipeline.query(connection)?;
        for (answer, request) in answers.iter().step_by(batch[0].len()).zip(batch) {
            let is_done =
                matches!(answer, Value::Array(fields) if fields.first() == Some(&Value::Int(1)));
            if !is_done {
                return Err(format!("{answer:?} to {request:?}").into());
            }
        }
    }
    Ok((processor_time(connection)? - before) * 1e6 / count as f64)
}

/// How long the server's processor has worked, in seconds.
fn processor_time(connection: &mut Connection) -> Result<f64> {
    let info = info(connection, "cpu")?;
    let seconds = |name: &str| -> Result<f64> { Ok(field(&info, name)?.parse()?) };
    Ok(seconds("used_cpu_user")? + seconds("used_cpu_sys")?)
}

/// How much memory the server uses, in bytes.
fn memory(connection: &mut Connection) -> Result<i64> {
    Ok(field(&info(connection, "memory")?, "used_memory")?.parse()?)
}

fn info(connection: &mut Connection, section: &str) -> Result<String> {
    Ok(cmd("INFO").arg(section).query(connection)?)
}

fn field<'a>(info: &'a str, name: &str) -> Result<&'a str> {
    let found = info
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(found.ok_or_else(|| format!("INFO says nothing of {name}"))?)
}

//! Measures the longest time that the server needs for one call when 10,000 hold a lock and 10,000 wait for it.
//!
//! `make bench` runs it.

mod common;

use std::io::{Write, stdout};

use redis::{Connection, Script, Value, cmd};

use crate::common::{Redis, Result, directory, info, median, row, script, table};

const WHO: &str = r#"{"host":"ci-7.example.com","user":"deploy","pid":27523,"command":["./deploy.sh","--to","production"],"instance":"5b0c2a3e-8d4f-4a6b-9c1d-2e3f4a5b6c7d:4026531836:27523:123456789:27000"}"#;

const KEYS: [&str; 11] = [
    "redlock:a",
    "{redlock:a}:state",
    "{redlock:a}:meta",
    "{redlock:a}:holders",
    "{redlock:a}:queue",
    "{redlock:a}:waiters",
    "{redlock:a}:history",
    "{redlock:}:index",
    "{redlock:a}:slots",
    "{redlock:a}:exempt",
    "{redlock:a}:guards",
];

/// Members with a slot each, and waiters that poll.
const CROWD: &str = "
local now = redis.call('TIME')[1] * 1000
redis.call('SET', KEYS[1], 'redlock:slots', 'PX', 600000)
redis.call('HSET', KEYS[2], 'fence', 10000, 'ticket', 10000)
for n = 1, 10000 do
  redis.call('ZADD', KEYS[4], now + 600000, 'member' .. n)
  redis.call('HSET', KEYS[3], 'member' .. n, table.concat({n, now, 10001, n, 0, 'held', ARGV[1]}, ' '))
  redis.call('ZADD', KEYS[9], n, 'slot member' .. n, string.format('%.0f', 2 ^ 40 + 10001), 'limit member' .. n)
  redis.call('ZADD', KEYS[5], n, 'waiter' .. n)
  redis.call('HSET', KEYS[6], 'waiter' .. n, now + 600000 .. ':2000 1 ' .. now .. ' 0 ' .. ARGV[1])
end
";

/// Lua that lets all waiters die and gives the lock to the run `token` alone.
const DEAD: &str = "
redis.call('DEL', KEYS[3], KEYS[4], KEYS[9])
redis.call('SET', KEYS[1], 'token', 'PX', 600000)
redis.call('HSET', KEYS[3], 'token', '10001 ' .. now .. ' 1 1 0 held ' .. ARGV[1])
for n = 1, 10000 do
  redis.call('HSET', KEYS[6], 'waiter' .. n, now - 1 .. ':2000 1 ' .. now .. ' 0 ' .. ARGV[1])
end
";

struct Case {
    what: &'static str,
    /// Lua that changes the crowd before the call.
    before: &'static str,
    script: Script,
    arguments: Vec<&'static str>,
}

fn cases() -> [Case; 10] {
    let case = |what, before, script, arguments: &[&'static str]| Case {
        what,
        before,
        script,
        arguments: arguments.to_vec(),
    };
    let acquire = |what, before, limit, place, supersede| Case {
        what,
        before,
        script: script!("acquire"),
        arguments: vec![
            "token", "30000", limit, WHO, place, "", supersede, "", "0", "0", "", "",
        ],
    };
    let lost_key = "redis.call('DEL', KEYS[1], KEYS[5], KEYS[6])";
    let lost_slots = "redis.call('DEL', KEYS[9], KEYS[5], KEYS[6])";
    [
        acquire("`run --supersede`", "", "1", "poll", "1"),
        acquire(
            "`run --supersede --cancel-in-progress`",
            "",
            "1",
            "poll",
            "2",
        ),
        acquire("`run`, the lock's key deleted", lost_key, "1", "", "0"),
        acquire("`run`, the slots deleted", lost_slots, "10001", "", "0"),
        acquire(
            "`run`, the state deleted",
            "redis.call('DEL', KEYS[2])",
            "1",
            "poll",
            "0",
        ),
        case(
            "the end of a run, all waiters dead",
            DEAD,
            script!("release"),
            &["token", "0", "status:0", "0"],
        ),
        case(
            "`release --force`",
            "",
            script!("force"),
            &["", WHO, "0", "0"],
        ),
        case(
            "`stop --id`",
            "",
            script!("stop"),
            &["c0ffee000000", WHO, "0"],
        ),
        case("`history`", "", script!("history"), &[]),
        case("`status`", "", script!("inspect"), &["10", "0", "-inf"]),
    ]
}

fn main() -> Result<()> {
    let directory = directory()?;
    let redis = Redis::start(directory.path())?;
    let mut connection = redis::Client::open(redis.url())?.get_connection()?;
    writeln!(stdout(), "\n## The longest calls\n")?;
    table(&["", "ms of the server's processor"])?;
    for case in cases() {
        let mut times = Vec::new();
        for _ in 0..9 {
            times.push(work(&mut connection, &case)?);
        }
        row(&[case.what, &format!("{:.1}", median(&times))])?;
    }
    Ok(())
}

/// Returns the server's processor time for the call, in ms.
fn work(connection: &mut Connection, case: &Case) -> Result<f64> {
    let _: () = cmd("FLUSHALL").query(connection)?;
    let mut crowd = cmd("EVAL");
    crowd.arg([CROWD, case.before].concat()).arg(KEYS.len());
    let _: Value = crowd.arg(&KEYS).arg(WHO).query(connection)?;
    case.script.load(connection)?;
    let mut call = cmd("EVALSHA");
    call.arg(case.script.get_hash());
    if case.what == "`status`" {
        let [lock, state, meta, holders, queue, waiters, history, ..] = KEYS;
        call.arg(7)
            .arg(&[lock, state, meta, holders, queue, waiters, history]);
    } else {
        call.arg(KEYS.len()).arg(&KEYS);
        call.arg(&["a", "{redlock:a}:", "200"]);
    }
    call.arg(&case.arguments);
    let before = processor_time(connection)?;
    let answer: Value = call.query(connection)?;
    let spent = processor_time(connection)? - before;
    if !matches!(answer, Value::Array(_)) {
        return Err(format!("{answer:?} to {}", case.what).into());
    }
    Ok(spent * 1e3)
}

/// Returns the processor time of the server's main thread, in seconds.
fn processor_time(connection: &mut Connection) -> Result<f64> {
    let mut seconds = |name| info(connection, "cpu", name);
    Ok(seconds("used_cpu_user_main_thread")? + seconds("used_cpu_sys_main_thread")?)
}

//! Shared helpers of the tests, on one page. Nothing here sleeps for a guessed time: a test waits for a `ready` line, for the
//! end of a stream, or for a condition.
//!
//! | a server | |
//! | --- | --- |
//! | `Redis::start()`, `Redis::with(&[option])` | a private Redis; `left_empty` fails if the test leaves a key there |
//! | `redis.redlock(words!("run a -- true"))` | a command of redlock that uses it, with a home of its own |
//! | `redis.cli(&["GET", "x"])`, `is_held`, `holder`, `queue` | its contents |
//! | `redis.await_calls("pexpire", 2)`, `await_renewals("a", 2)` | waits for this many calls from now on |
//! | `redis.stall()`, `kill()`, `start_again()` | failures; `UnresponsiveServer` accepts and never answers |
//! | `Proxy::new(&redis)` (`proxy`) | loses, delays, cuts, repeats or forges requests and replies |
//! | `Replicated`, `Cluster` | replicas with sentinels, and a cluster; `network` gives hosts of their own |
//!
//! | a process | |
//! | --- | --- |
//! | `ends(&redis, "run -n a -- true").assert_code(75)` | runs redlock with this line; `assert_said(75, "held by")` |
//! | `outcome(&mut command)` | the same for any command |
//! | `outcome(&mut directly(&redis, words!("nice redlock run a -- true")))` | a shell or another program around redlock |
//! | `Running::start(&mut command)`, `Running::ready(…)` | a process that goes on: `line()`, `pid()`, `signal(…)`, `finish()` |
//! | `Gated::start(&redis, &["a"]).ready()` | a run whose command ends at `open()`; `Gated::queued` waits in line |
//! | `Gate::new(&redis)` | a pipe `$HOME/gate` at which a script waits for `open()` or `say("word")` |
//! | `await_watchdog(pid)`, `is_alive(pid)`, `children(pid)` | processes by their pids |
//! | `OtherUser::new()`, `among_own_processes!()` | another user, another pid namespace |
//! | `pty`, `tmux` | terminals |
//!
//! | in general | |
//! | --- | --- |
//! | `wait_until("it is free", \|\| …)`, `await_some` | patience with a limit, on a busy machine, too |
//! | `some_or_return!(…)`, `return_unless!(…)` | ends a test that this machine can't run |
//! | `words!("run --ttl 1s a -c", script)` | an argument list in one line |
//! | `side_by_side(rows, \|row\| …)` | runs the rows of a table that mostly wait in parallel |
//! | `lua` | calls of the scripts without redlock |

/// Returns the value of an option. Ends the test if there is none, because this machine lacks something.
macro_rules! some_or_return {
    ($option:expr) => {
        match $option {
            Some(value) => value,
            None => return,
        }
    };
}

/// Ends the test here if this machine lacks something.
macro_rules! return_unless {
    ($condition:expr) => {
        if !$condition {
            return;
        }
    };
}

mod clock;
mod cluster;
mod compiler;
mod dice;
mod isolation;
mod life;
pub mod lua;
mod network;
mod patience;
pub mod prelude;
mod processes;
mod program;
pub mod proxy;
pub mod pty;
mod running;
mod scripts;
mod sentinel;
mod server;
mod threads;
pub mod tmux;
mod turns;

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use self::clock::*;
pub use self::cluster::*;
pub use self::compiler::*;
pub use self::dice::*;
pub use self::isolation::*;
pub use self::life::*;
pub use self::network::*;
pub use self::patience::*;
pub use self::processes::*;
pub use self::program::*;
pub use self::running::*;
pub use self::sentinel::*;
pub use self::server::*;
pub use self::threads::*;
pub use self::turns::*;

/// Returns an argument list from one line: `words!("run --ttl 1s a -c", script)` is `&["run", "--ttl", "1s", "a", "-c",
/// script]`. The line is split at its spaces. A `{}`, also at the end of a word, becomes the next of the values, unchanged;
/// further values follow the line.
macro_rules! words {
    ($line:literal $(, $value:expr)* $(,)?) => {
        &$crate::support::words($line, &[$($value),*])[..]
    };
}

/// Returns the list of `words!`.
pub fn words<'a>(line: &'a str, values: &[&'a str]) -> Vec<&'a str> {
    let mut values = values.iter().copied();
    let mut value = || values.next().expect("there is a value for each {}");
    let words = line.split(' ');
    let words = words.map(|word| match word.strip_suffix("{}") {
        None => word,
        Some("") => value(),
        Some(start) => format!("{start}{}", value()).leak(),
    });
    let mut words: Vec<&str> = words.collect();
    words.extend(values);
    words
}

/// Returns a setting as a word for [`redlock`]: `REDLOCK_SYNC=all`.
pub fn setting(name: &str, value: &str) -> &'static str {
    format!("{name}={value}").leak()
}

/// The binary under test.
pub const REDLOCK: &str = env!("CARGO_BIN_EXE_redlock");

/// Returns the time since 1970, by the clock of all processes.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Parses the output of `date +%s%N`.
#[track_caller]
pub fn moment(line: &str) -> Duration {
    let nanoseconds = line.trim().parse();
    Duration::from_nanos(nanoseconds.unwrap_or_else(|_| panic!("no moment: {line:?}")))
}

/// Asserts that a time limit was kept in several independent rounds. A round may be late, because the machine does other things
/// as well (its disk alone may delay a process for seconds).
#[track_caller]
pub fn assert_within(limit: Duration, mut times: Vec<Duration>) {
    times.sort();
    let median = times[times.len() / 2];
    let most = *times.last().unwrap();
    assert!(
        median < limit && most < limit + Duration::from_secs(4),
        "more than {limit:?}: {times:?}"
    );
}

/// Asserts that less time has passed since `began`.
#[track_caller]
pub fn assert_took_less(began: Instant, limit: Duration) {
    let took = began.elapsed();
    assert!(took < limit, "{took:?}");
}

/// Calls a function with all rows in parallel, for work that mostly waits.
pub fn side_by_side<T: Send>(rows: impl IntoIterator<Item = T>, each: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for row in rows {
            let each = &each;
            scope.spawn(move || each(row));
        }
    });
}

/// Returns the name of this machine.
pub fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

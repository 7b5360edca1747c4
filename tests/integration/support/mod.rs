//! Helpers that tests share, on one page. Nothing here sleeps for a guessed time: a test meets its processes at a `ready` line,
//! at the end of a stream, or at a condition that it waits for.
//!
//! | a server | |
//! | --- | --- |
//! | `Redis::start()`, `Redis::with(&[option])` | a private Redis; `left_empty` fails if the test leaves a key there |
//! | `redis.redlock(words!("run a -- true"))` | a command of redlock's that uses it, with a home of its own |
//! | `redis.cli(&["GET", "x"])`, `is_held`, `holder`, `queue` | what is in it |
//! | `redis.await_calls("pexpire", 2)`, `await_renewals("a", 2)` | until it was asked so often from now on |
//! | `redis.stall()`, `kill()`, `start_again()` | trouble; `UnresponsiveServer` accepts and never answers |
//! | `Proxy::new(&redis)` (`proxy`) | requests are lost, late, cut, repeated or answered with lies |
//! | `Replicated`, `Cluster` | replicas with sentinels, and a cluster; `network` gives hosts of their own |
//!
//! | a process | |
//! | --- | --- |
//! | `ends(&redis, "run -n a -- true").assert_code(75)` | a line of redlock's, played to its end; `assert_said(75, "held by")` |
//! | `outcome(&mut command)` | the same of any command |
//! | `Running::start(&mut command)`, `Running::ready(…)` | one that goes on: `line()`, `pid()`, `signal(…)`, `finish()` |
//! | `Gated::start(&redis, &["a"]).ready()` | a run whose command ends at `open()`; `Gated::queued` waits in line |
//! | `Gate::new(&redis)` | a pipe `$HOME/gate` at which a script waits for `open()` or `say("word")` |
//! | `await_watchdog(pid)`, `is_alive(pid)`, `children(pid)` | processes by their numbers |
//! | `OtherUser::new()`, `among_own_processes!()` | another user, another pid namespace |
//! | `pty`, `tmux` | terminals |
//!
//! | in general | |
//! | --- | --- |
//! | `wait_until("it is free", \|\| …)`, `await_some` | patience with a limit, on a busy machine, too |
//! | `some_or_return!(…)`, `return_unless!(…)` | the end of a test that this machine can't play |
//! | `words!("run --ttl 1s a -c", script)` | an argument list in one line |
//! | `side_by_side(rows, \|row\| …)` | rows of a table that wait most of the time |
//! | `lua` | calls of the scripts without redlock |

/// Returns the value of an option. Without one the test ends here: this machine can't do what it needs.
macro_rules! some_or_return {
    ($option:expr) => {
        match $option {
            Some(value) => value,
            None => return,
        }
    };
}

/// Ends the test here if this machine can't do what it needs.
macro_rules! return_unless {
    ($condition:expr) => {
        if !$condition {
            return;
        }
    };
}

mod clock;
mod cluster;
mod dice;
mod heavy;
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
pub use self::dice::*;
pub use self::heavy::*;
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

/// An argument list in one line: `words!("run --ttl 1s a -c", script)` is `&["run", "--ttl", "1s", "a", "-c", script]`.
/// The line is split at its spaces. A `{}` in it, also at the end of a word, is the next of the values, which are taken as
/// they are; the others follow the line.
macro_rules! words {
    ($line:literal $(, $value:expr)* $(,)?) => {
        &$crate::support::words($line, &[$($value),*])[..]
    };
}

/// What `words!` gives.
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

/// A setting as a word for [`redlock`]: `REDLOCK_SYNC=all`.
pub fn setting(name: &str, value: &str) -> &'static str {
    format!("{name}={value}").leak()
}

/// The binary under test.
pub const REDLOCK: &str = env!("CARGO_BIN_EXE_redlock");

/// A moment by the clock of all processes, since 1970.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// The moment that `date +%s%N` has printed.
#[track_caller]
pub fn moment(line: &str) -> Duration {
    let nanoseconds = line.trim().parse();
    Duration::from_nanos(nanoseconds.unwrap_or_else(|_| panic!("no moment: {line:?}")))
}

/// A promise about time was kept, in several independent rounds. The machine does other things as
/// well (its disk alone may hold a process up for seconds), so that one of the rounds may be late.
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

/// Asserts that less time has passed since this moment.
#[track_caller]
pub fn assert_took_less(began: Instant, limit: Duration) {
    let took = began.elapsed();
    assert!(took < limit, "{took:?}");
}

/// Does the same with each of these side by side, as it waits most of the time.
pub fn side_by_side<T: Send>(rows: impl IntoIterator<Item = T>, each: impl Fn(T) + Sync) {
    thread::scope(|scope| {
        for row in rows {
            let each = &each;
            scope.spawn(move || each(row));
        }
    });
}

/// The name of this machine.
pub fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

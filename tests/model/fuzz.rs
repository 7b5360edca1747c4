//! Whatever happens, the protocol keeps its promises: the scripts as they are shipped, on a real server
//! whose time is simulated, with clients that crash, are suspended, repeat themselves and lose their
//! answers, and with users that force, freeze, delete keys and set clocks.
//!
//! All of a run is drawn from its seed, so each failure can be had again: `make fuzz SEED=…`. The
//! file `plan` says what is going to happen, `world` lets it happen, `promises` looks at it, `scripts`
//! knows how the scripts are called, `server` is the server, and `memory` another one, in memory.

pub mod memory;
pub mod plan;
mod promises;
pub mod scripts;
pub mod server;
pub mod world;

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memory::{Both, Memory, Sources};
use plan::Plan;
use server::{Server, Simulated};
use world::{Done, Failure, World};

use crate::protocol::model::support::asked;
use crate::protocol::model::support::lua::SCRIPTS;

/// How many seeds are tried by default.
const SEEDS: u64 = 60;
/// How many of them are run on a real server and on one in memory.
const ON_BOTH: u64 = 5;
/// How many more are run in memory alone.
const IN_MEMORY: u64 = 100;
/// How long a failure is made shorter.
const SHRINKING: Duration = Duration::from_secs(30);

#[test]
fn the_protocol_keeps_its_promises_whatever_happens() {
    let (seconds, seed) = (asked("FUZZ_SECONDS"), asked("FUZZ_SEED"));
    // A longer run takes other seeds than the last one.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = seed.unwrap_or(if seconds.is_some() { now.as_secs() } else { 1 });
    let began = Instant::now();
    let mut server = Server::start();
    let (mut tried, mut steps, mut held) = (0, 0, 0);
    for n in 0.. {
        let is_over = match (seconds, seed) {
            (Some(seconds), _) => began.elapsed() >= Duration::from_secs(seconds),
            (None, Some(_)) => n >= 1,
            (None, None) => n >= SEEDS,
        };
        if is_over {
            break;
        }
        let plan = Plan::of(first + n);
        match World::run(&mut server, &plan, false) {
            Ok(Done {
                steps: more,
                held: holders,
            }) => {
                tried += 1;
                steps += more;
                held += holders;
            }
            Err(failure) => panic!("{}", report(&mut server, plan, failure)),
        }
    }
    let done = format!("{tried} seeds from {first} on, {steps} steps, {held} holds\n");
    if seconds.is_some() || seed.is_some() {
        let _ = std::io::stdout().write_all(done.as_bytes());
    }
    // A fuzz in which nothing happens finds nothing.
    assert!(
        seed.is_some() || steps > SEEDS * 100 && held > 200,
        "{done}"
    );
}

#[test]
fn a_server_in_memory_does_the_same_as_a_real_one_all_along() {
    let mut both = Both::start();
    for seed in 1..=ON_BOTH {
        let plan = Plan::of(seed);
        if let Err(failure) = World::run(&mut both, &plan, false) {
            panic!("{}", report(&mut both, plan, failure));
        }
    }
    assert!(both.calls > 500, "{}", both.calls);
}

/// `FUZZ_MEMORY=1-3000 cargo test --profile model` runs these seeds, and shows each that fails.
#[test]
fn the_protocol_keeps_its_promises_on_a_server_in_memory() {
    let range = asked("FUZZ_MEMORY").map(|asked: String| {
        let number = |text: &str| -> u64 { text.parse().expect("a number") };
        let (first, last) = asked.split_once('-').expect("two seeds, as in 1-3000");
        (number(first), number(last))
    });
    let (first, last) = range.unwrap_or((SEEDS + 1, SEEDS + IN_MEMORY));
    let next = AtomicU64::new(first);
    let (done, failed) = (Mutex::new(Done::default()), Mutex::new(Vec::new()));
    let work = || {
        let mut memory = Memory::new(SCRIPTS.into());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > last {
                return;
            }
            let plan = Plan::of(seed);
            match World::run(&mut memory, &plan, false) {
                Ok(Done { steps, held }) => {
                    let mut done = done.lock().unwrap();
                    done.steps += steps;
                    done.held += held;
                }
                Err(failure) => {
                    let told = report(&mut memory, plan, failure);
                    failed.lock().unwrap().push(told);
                }
            }
        }
    };
    let threads = match range {
        Some(_) => thread::available_parallelism().map_or(1, usize::from),
        // Other tests run beside it.
        None => 1,
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (done, failed) = (done.into_inner().unwrap(), failed.into_inner().unwrap());
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    let seeds = last + 1 - first;
    let line = format!(
        "{seeds} seeds from {first} on, {} steps, {} holds\n",
        done.steps, done.held
    );
    if range.is_some() {
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
    // A fuzz in which nothing happens finds nothing.
    assert!(done.steps > seeds * 50 && done.held > 0, "{line}");
}

#[test]
fn a_waiter_that_lost_its_ticket_is_a_new_one_to_a_server_whose_clock_was_set_forward() {
    let mut memory = Memory::new(SCRIPTS.into());
    let plan = Plan::of(29_123);
    if let Err(failure) = World::run(&mut memory, &plan, false) {
        panic!("{}", report(&mut memory, plan, failure));
    }
}

/// The promise that is found broken in the first seeds, with something else in place of parts of a script.
fn found_with(script: &'static str, changes: &[(&str, &str)]) -> Option<&'static str> {
    let mut source = crate::protocol::model::support::lua::source(script).to_owned();
    for (part, other) in changes {
        assert!(source.contains(part), "{part} isn't in {script}");
        source = source.replace(part, other);
    }
    let mut sources: Sources = SCRIPTS.into();
    sources.insert(script, source.leak());
    let mut memory = Memory::new(sources);
    (1..=20).find_map(|seed| {
        let run = World::run(&mut memory, &Plan::of(seed), false);
        Some(run.err()?.broken.promise)
    })
}

#[test]
fn a_success_that_no_run_had_and_one_noted_for_another_time_are_found() {
    let of_any_status = [("how == 'status:0'", "string.find(how, '^status:')")];
    let earlier = [
        ("'succeeded', at)", "'succeeded', at - 1000)"),
        (
            "'succeeded', int_text(now_ms)",
            "'succeeded', int_text(now_ms - 1000)",
        ),
    ];
    let forgotten = [("how == 'status:0'", "how == 'status:'")];
    for mistake in [&of_any_status[..], &earlier, &forgotten] {
        let found = found_with("release", mistake);
        assert_eq!(
            found,
            Some("P4: a success is when its run ended"),
            "{mistake:?}"
        );
    }
}

/// A failure in full, after all was taken out of the plan that it doesn't need.
fn report(server: &mut dyn Simulated, plan: Plan, failure: Failure) -> String {
    let seed = plan.seed;
    let (plan, failure) = shrink(server, plan, failure);
    let clients = plan.clients.iter();
    let clients: Vec<String> = clients.map(|client| format!("{client:?}")).collect();
    format!(
        "seed {seed}: {}: {}\nwhat happened (`make fuzz SEED={seed}`; the clients that matter: {}):\n{}",
        failure.broken.promise,
        failure.broken.detail,
        clients.join("\n  "),
        failure.trace.join("\n")
    )
}

/// Takes clients and deeds out of a plan, one after the other, as long as it fails in the same way.
fn shrink(server: &mut dyn Simulated, mut plan: Plan, mut failure: Failure) -> (Plan, Failure) {
    let until = Instant::now() + SHRINKING;
    let promise = failure.broken.promise;
    let mut fails = |smaller: &Plan| match World::run(server, smaller, true) {
        Err(failure) if failure.broken.promise == promise => Some(failure),
        Ok(_) | Err(_) => None,
    };
    // The same again, this time with a trace.
    failure = fails(&plan).unwrap_or(failure);
    loop {
        let before = plan.clients.len() + plan.deeds.len();
        for n in (0..before).rev() {
            if Instant::now() > until {
                return (plan, failure);
            }
            let mut smaller = plan.clone();
            if n < plan.clients.len() {
                smaller.clients.remove(n);
            } else if n - plan.clients.len() < plan.deeds.len() {
                smaller.deeds.remove(n - plan.clients.len());
            }
            if let Some(shorter) = fails(&smaller) {
                (plan, failure) = (smaller, shorter);
            }
        }
        if plan.clients.len() + plan.deeds.len() == before {
            return (plan, failure);
        }
    }
}

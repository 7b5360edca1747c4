//! Whatever happens, the protocol keeps its promises: the scripts and the clients as they are shipped, with clients that
//! crash, are suspended, repeat themselves and lose their answers, beside others that know of nothing but the key, and
//! with users that force, freeze, delete keys and set clocks. A real server whose time is simulated does the same as the
//! one in memory.
//!
//! All of a run is drawn from its seed, so each failure can be had again: `make fuzz SEED=…`. The file `plan` says what is
//! going to happen, `run` lets it happen, `view` is what a server has then, `promises` looks at it, and `scripts` reads
//! calls and answers.

pub mod plan;
mod promises;
pub mod run;
mod scripts;
pub mod view;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sha1_smol::Sha1;

use plan::Plan;
use run::{Done, Failure, Run, Server, Witness};

use crate::protocol::model::fake::Real;
use crate::protocol::model::support::lua::SCRIPTS;
use crate::protocol::model::support::{asked, cores, on_threads};

/// How many seeds are tried by default, on a real server as well.
const SEEDS: u64 = 20;
/// How many more are run in memory alone.
const IN_MEMORY: u64 = 80;
/// How long a failure is made shorter.
const SHRINKING: Duration = Duration::from_secs(30);

#[test]
fn the_protocol_keeps_its_promises_whatever_happens_and_a_real_server_does_the_same() {
    let (seconds, seed) = (asked("FUZZ_SECONDS"), asked("FUZZ_SEED"));
    // A longer run takes other seeds than the last one.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = seed.unwrap_or(if seconds.is_some() { now.as_secs() } else { 1 });
    let began = Instant::now();
    let (server, mut real) = (Server::default(), Real::start());
    let (mut tried, mut all) = (0, Done::default());
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
        match Run::of(&plan, &server, &mut real, false) {
            Ok(done) => {
                tried += 1;
                all.add(&done);
            }
            Err(failure) => panic!("{}", report(&server, &mut real, plan, failure)),
        }
    }
    let told = all.told(tried, first);
    if seconds.is_some() || seed.is_some() {
        let _ = std::io::stdout().write_all(told.as_bytes());
    }
    // A fuzz in which nothing happens finds nothing.
    assert!(
        seed.is_some() || all.steps > SEEDS * 100 && all.held > 200,
        "{told}"
    );
}

impl Done {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.held += other.held;
    }

    fn told(&self, seeds: u64, first: u64) -> String {
        let Self { steps, held } = self;
        format!("{seeds} seeds from {first} on, {steps} steps, {held} holds\n")
    }
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
    let seeds = last + 1 - first;
    thread_local!(static OWN: Server = Server::default());
    // Other tests run beside it.
    let threads = range.map_or(1, |_| cores());
    let results = on_threads(threads, usize::try_from(seeds).unwrap(), |number| {
        let plan = Plan::of(first + number as u64);
        OWN.with(|server| {
            let run = Run::of(&plan, server, &mut (), false);
            run.map_err(|failure| report(server, &mut (), plan.clone(), failure))
        })
    });
    let (mut done, mut failed) = (Done::default(), Vec::new());
    for result in results {
        match result {
            Ok(of_one) => done.add(&of_one),
            Err(told) => failed.push(told),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    let line = done.told(seeds, first);
    if range.is_some() {
        let _ = std::io::stdout().write_all(line.as_bytes());
    }
    // A fuzz in which nothing happens finds nothing.
    assert!(done.steps > seeds * 50 && done.held > 0, "{line}");
}

/// The promise that is found broken when scripts are changed.
pub fn broken_with(
    change: impl Fn(&'static str, &'static str) -> &'static str,
    seeds: u64,
) -> Option<&'static str> {
    let changed = SCRIPTS.map(|(name, source)| (source, change(name, source)));
    let changed = changed
        .into_iter()
        .filter(|(source, other)| source != other);
    let replaced = changed.map(|(source, other)| {
        let hash: &str = Sha1::from(source).digest().to_string().leak();
        (hash, other)
    });
    let server = Server {
        replaced: replaced.collect(),
        ..Server::default()
    };
    (1..=seeds).find_map(|seed| {
        let plan = Plan::of(seed);
        let run = || Run::of(&plan, &server, &mut (), false);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(run) => Some(run.err()?.broken.promise),
            Err(_) => Some("a run comes to its end"),
        }
    })
}

const UNTRUE: &str = "P4: a success is when its run ended";

/// Parts of scripts, what stands there by mistake, and the promise that the fuzz finds broken.
const MISTAKES: [(&str, &str, &str); 12] = [
    ("how == 'status:0'", "string.find(how, '^status:')", UNTRUE),
    (
        "'succeeded', int_text(now_ms)",
        "'succeeded', int_text(now_ms - 1000)",
        UNTRUE,
    ),
    (
        "how == 'status:0'",
        "how == 'status:'",
        "P4: a success is enough for as long as it is to be",
    ),
    (
        "if is_kept and not insist then return {2} end",
        "",
        "P1: a guard is admitted while its run goes on",
    ),
    (
        "if notice('over', guard) then return {2} end",
        "",
        "P5: a guard that has left isn't admitted again",
    ),
    (
        "or guarded_for(token, entry) > 0 then return {1} end",
        "then return {1} end",
        "P1: a lease that has not run out is held",
    ),
    (
        "value == token then return true end",
        "value ~= token then return true end",
        "no script fails",
    ),
    (
        "if frozen > 0 and not ignores_freezes(who) then return nil end",
        "",
        "P4: no client gets a frozen lock",
    ),
    (
        "count + 1 > smallest - LIMITS",
        "count + 1 >= smallest - LIMITS",
        "P5: who is admitted gets the lock at once",
    ),
    (
        "redis.call('UNLINK', lock, meta)",
        "",
        "P6: what is released is free, and what is kept is held",
    ),
    (
        "redis.call('PEXPIRE', lock, ttl)",
        "",
        "P1: a lease that has not run out is held",
    ),
    (
        "if fence <= last then fence = last + 1 end",
        "",
        "P3: the fence grows with each grant",
    ),
];

#[test]
fn a_mistake_in_a_script_breaks_a_promise_that_the_fuzz_sees() {
    let found = MISTAKES.map(|(part, other, _)| {
        let is_there = SCRIPTS.iter().any(|(_, source)| source.contains(part));
        assert!(is_there, "{part} is in no script");
        broken_with(|_, source| source.replace(part, other).leak(), 40)
    });
    assert_eq!(found, MISTAKES.map(|(_, _, promise)| Some(promise)));
}

/// A failure in full, after all was taken out of the plan that it doesn't need.
fn report(server: &Server, witness: &mut dyn Witness, plan: Plan, failure: Failure) -> String {
    let seed = plan.seed;
    let (plan, failure) = shrink(server, witness, plan, failure);
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
fn shrink(
    server: &Server,
    witness: &mut dyn Witness,
    mut plan: Plan,
    mut failure: Failure,
) -> (Plan, Failure) {
    let until = Instant::now() + SHRINKING;
    let promise = failure.broken.promise;
    let mut fails = |smaller: &Plan| match Run::of(smaller, server, witness, true) {
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

//! The scenarios: their clients, their possible faults and the number of these, and their duration.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::client::{Defects, Guarding, Setup};
use super::explore::{Explored, Order, check_same, explore, told};
use super::network::Asked;
use super::promises::Promise::{
    self, EndsWithLease, FenceGrows, FreezeHolds, OnceHolds, OneCommand, OneLease, OrderHolds,
    OwnSlot, Served, SupersedeHolds,
};
use super::support::asked;
use super::world::{Deed, Kind, Rules, Sync, World};
use crate::decide::lease::Terms;
use crate::protocol::claim::QueueOptions;
use crate::protocol::name::Keys;
use crate::protocol::scripts::{
    ACQUIRE, FORCE, FREE, FREEZE, GUARD, LEAVE, PROLONG, RELEASE, RENEW, Script, TAKE, THAW,
};
use crate::protocol::{Claim, Guard, Limit, Lock, Request, Supersede, Token, Who};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(3);

fn lock() -> Lock {
    let name = "deploy".parse().expect("a name");
    Lock {
        keys: Keys::new("redlock:", &name),
        name,
        history: 20,
    }
}

pub fn who(host: &str) -> Who {
    Who {
        host: host.into(),
        user: "ci".into(),
        pid: 7,
        ..Who::default()
    }
}

pub const HOSTS: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

/// Returns the default run with this number.
pub fn run(number: usize) -> Setup {
    let host = HOSTS[number];
    let token = Token::read(format!("{number:032x}:{host}:7").into()).expect("a token");
    Setup {
        claim: Claim::resume(lock(), token),
        wish: Request {
            who: who(host),
            ttl: TTL,
            limit: Limit::EXCLUSIVE,
            queue: QueueOptions::default(),
            once_per: Duration::ZERO,
            once_key: None,
            repair_ttl: false,
        },
        terms: Terms {
            ttl: TTL,
            kill_after: Duration::from_millis(500),
            clock_skew: Duration::ZERO,
        },
        limit: None,
        starts_on_grant: true,
        is_replicated: false,
        awaits_replicas: false,
        polls: false,
        answers_take: Duration::ZERO,
        kills_take: Duration::ZERO,
        guards: None,
        is_keeper: false,
        ends_with: 0,
        keep_for: Duration::ZERO,
        host,
        defects: Defects::default(),
    }
}

/// Returns rules with runs that exclude each other, without faults.
pub fn rules(name: &'static str, runs: usize) -> Rules {
    Rules {
        name,
        lock: lock(),
        clients: (0..runs).map(run).collect(),
        has_plain: false,
        plain_ttl: Duration::from_secs(2),
        plain_from: Duration::ZERO,
        deeds: Vec::new(),
        may_interrupt: false,
        keeps_strays: true,
        are_alike: true,
        clock_fast: 0,
        nodes: vec![0],
        sync: Sync::None,
        one_sentinel_lists: false,
        kinds: Vec::new(),
        victims: runs,
        faults: 0,
        horizon: 4 * SECOND,
        promises: vec![OneLease, EndsWithLease, FenceGrows],
        replaced: Vec::new(),
        witnesses: Vec::new(),
        interpreter: Rc::default(),
        executed: Some(RefCell::default()),
    }
}

/// Promises that hold even if a lock may be lost.
const EVEN_IF_LOST: [Promise; 2] = [EndsWithLease, FenceGrows];

/// Promises that hold even if runs aren't copies of each other.
const OF_ALL_LEASES: [Promise; 2] = [OneLease, EndsWithLease];

/// Largest difference between the clocks of the servers.
const SKEW: Duration = Duration::from_secs(1);

impl Rules {
    fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }

    /// Permits at most this many faults, of these kinds.
    fn with(self, faults: u8, kinds: &[Kind]) -> Self {
        let kinds = kinds.to_vec();
        Self {
            kinds,
            faults,
            ..self
        }
    }

    fn without_faults(self) -> Self {
        Self { faults: 0, ..self }
    }

    fn lasting(self, horizon: Duration) -> Self {
        Self { horizon, ..self }
    }

    fn promising(self, promises: &[Promise]) -> Self {
        let promises = promises.to_vec();
        Self { promises, ..self }
    }

    fn also_promising(mut self, promise: Promise) -> Self {
        self.promises.push(promise);
        self
    }

    /// Lets faults hit only this many of the runs.
    fn hitting(self, victims: usize) -> Self {
        Self { victims, ..self }
    }

    /// Declares that the runs differ in more than their names.
    fn unlike(mut self) -> Self {
        self.are_alike = false;
        self
    }

    fn beside_a_plain_client(mut self) -> Self {
        self.has_plain = true;
        self
    }

    fn each(mut self, change: impl FnMut(&mut Setup)) -> Self {
        self.clients.iter_mut().for_each(change);
        self
    }

    fn with_deeds(self, deeds: Vec<Deed>) -> Self {
        Self { deeds, ..self }
    }

    /// Adds a primary and two replicas. A replica may be promoted with any part of the primary's writes; with
    /// `REDLOCK_SYNC=all` it has at least the confirmed ones.
    fn failing_over(self, sync: Sync) -> Self {
        let rules = self.with(1, &[Kind::FailOver]).each(|run| {
            run.wish.ttl = 5 * SECOND;
            run.terms.ttl = 5 * SECOND;
            run.terms.clock_skew = SKEW;
            run.starts_on_grant = sync == Sync::None;
            run.is_replicated = sync != Sync::None;
            run.awaits_replicas = sync == Sync::All;
        });
        Self {
            nodes: vec![0, 1000, -1000],
            sync,
            ..rules
        }
    }

    /// Replaces the text of a script.
    fn replacing(mut self, script: &Script, source: &'static str) -> Self {
        self.replaced.push((script.hash, source));
        self
    }

    /// Replaces parts of scripts.
    fn changing(self, scripts: &[&Script], changes: &[(&str, &str)]) -> Self {
        scripts.iter().fold(self, |rules, script| {
            let mut source = script.source.to_owned();
            for (part, other) in changes {
                assert!(source.contains(part), "{part} isn't in the script");
                source = source.replace(part, other);
            }
            rules.replacing(script, source.leak())
        })
    }

    /// Returns a defect, which must break this promise within a second or so.
    fn breaks(self, promise: Promise, name: &'static str) -> Defect {
        Defect {
            rules: self.named(name),
            promise,
            is_near: true,
        }
    }

    /// Like `breaks`, for a defect that takes longer to find.
    fn breaks_later(self, promise: Promise, name: &'static str) -> Defect {
        Defect {
            is_near: false,
            ..self.breaks(promise, name)
        }
    }
}

/// A search through the states of a scenario, up to a number of them.
struct Visit {
    start: World,
    explored: Explored,
    line: String,
}

fn visit(rules: Rules, most: usize, order: Order) -> Visit {
    let began = Instant::now();
    let start = World::new(&Rc::new(rules));
    let explored = explore(start.clone(), most, order);
    let rules = &start.rules;
    let line = format!(
        "{:<48} {} runs, {} faults, {:>4.1} s: {:>9} states, {:>3} steps deep, {}",
        rules.name,
        rules.clients.len(),
        rules.faults,
        rules.horizon.as_secs_f64(),
        explored.states,
        explored.depth,
        if explored.broken.is_some() {
            "broken"
        } else if explored.is_exhausted {
            "all of them"
        } else {
            "not all of them"
        },
    );
    let took = began.elapsed().as_secs_f64();
    writeln!(std::io::stderr(), "{line} ({took:.1} s)").expect("stderr");
    Visit {
        start,
        explored,
        line,
    }
}

impl Visit {
    /// Describes the broken promise, and the steps to it.
    fn told(&self) -> String {
        let Some((broken, path)) = &self.explored.broken else {
            return format!("{}: nothing broken", self.line);
        };
        let steps = told(self.start.clone(), path);
        format!("{}\n{broken}, in {} steps:\n{steps}", self.line, path.len())
    }
}

/// Faults of processes and messages, without loss of data.
const USUAL: [Kind; 7] = [
    Kind::Cut,
    Kind::Messages,
    Kind::Repeat,
    Kind::Late,
    Kind::Kill,
    Kind::Vanish,
    Kind::Stop,
];

/// Faults of messages alone.
const MESSAGES: [Kind; 4] = [Kind::Cut, Kind::Messages, Kind::Repeat, Kind::Late];

/// Lets users end runs that wait.
fn two_runs_that_are_interrupted() -> Rules {
    let mut rules = rules("two runs, interrupted", 2).with(1, &USUAL);
    rules.may_interrupt = true;
    rules
}

/// Lets another client's writes, or a restart without data, take a lock from its holder. Then two commands may run until the
/// first run notices. Their fencing tokens still grow, and each command ends with its lease.
fn lost_data() -> Rules {
    rules("keys are deleted, and the server restarts empty", 2)
        .with(1, &[Kind::Delete, Kind::Restart, Kind::Cut])
        .promising(&EVEN_IF_LOST)
}

/// Changes a server's clock, which moves the ends of all leases on that server.
fn set_clock() -> Rules {
    rules("the server's clock is set", 2)
        .with(1, &[Kind::SetClock(3_600_000), Kind::SetClock(1500)])
        .promising(&EVEN_IF_LOST)
}

fn shared() -> Rules {
    let mut rules = rules("two readers and a writer", 3)
        .unlike()
        .with(1, &USUAL)
        .promising(&OF_ALL_LEASES);
    for reader in &mut rules.clients[..2] {
        reader.wish.limit = Limit::SHARED;
    }
    rules
}

/// Returns deeds of a person who freezes the lock for this long, and thaws it.
pub fn freeze_and_thaw(long: Duration) -> Vec<Deed> {
    let lock = lock();
    let long = long.as_millis().to_string().into_bytes();
    let json = serde_json::to_vec(&who("desk")).expect("JSON");
    vec![
        Deed {
            name: "a person freezes the lock",
            asked: Asked::new(lock.call(&FREEZE, vec![long, json])),
        },
        Deed {
            name: "a person thaws it",
            asked: Asked::new(lock.call(&THAW, Vec::new())),
        },
    ]
}

fn frozen() -> Rules {
    rules("a freeze", 2)
        .with_deeds(freeze_and_thaw(2 * SECOND))
        .with(1, &MESSAGES)
        .lasting(3 * SECOND)
        .also_promising(FreezeHolds)
}

/// Lets the second run ignore the freeze, and go in ahead of the third one.
fn frozen_and_ignored() -> Rules {
    let mut rules = rules("a freeze, and a run that ignores it", 3)
        .unlike()
        .with_deeds(freeze_and_thaw(2 * SECOND))
        .with(1, &MESSAGES)
        .lasting(3 * SECOND)
        .also_promising(FreezeHolds);
    rules.clients[1].wish.who.ignores_freeze = true;
    rules
}

/// Lets a person free the lock: until its run notices, two commands may run.
fn forced() -> Rules {
    let json = serde_json::to_vec(&who("desk")).expect("JSON");
    let force = lock().call(&FORCE, vec![Vec::new(), json, "0".into(), "0".into()]);
    let deed = Deed {
        name: "a person frees the lock",
        asked: Asked::new(force),
    };
    rules("a release by force", 2)
        .with_deeds(vec![deed])
        .with(1, &MESSAGES)
        .promising(&EVEN_IF_LOST)
}

fn superseded() -> Rules {
    let mut rules = rules("a run that supersedes", 3)
        .unlike()
        .with(1, &MESSAGES)
        .also_promising(SupersedeHolds);
    rules.clients[2].wish.queue.supersede = Supersede::Waiters;
    rules
}

fn once() -> Rules {
    rules("once per hour", 2)
        .with(1, &USUAL)
        .also_promising(OnceHolds)
        .each(|run| {
            run.wish.once_per = 3600 * SECOND;
            run.starts_on_grant = false;
        })
}

fn once_with_key() -> Rules {
    once().named("once per key").each(|run| {
        run.wish.once_per = Duration::ZERO;
        run.wish.once_key = Some("monday".into());
        run.wish.who.once = Some("monday".into());
    })
}

/// Bounds the idle time of a lock. The hold of a dead run ends with its lease. A waiter has 5 s to confirm a grant; the next
/// waiter asks with its heartbeat.
fn served() -> Rules {
    rules("a free lock is granted", 2)
        .with(1, &USUAL)
        .lasting(14 * SECOND)
        .promising(&[Served(TTL + 8 * SECOND)])
}

/// Kills waiters, which are passed over at once.
fn dead_waiters() -> Rules {
    let mut rules = rules("killed waiters are passed over", 3)
        .with(1, &[Kind::KillWaiter])
        .promising(&[Served(SECOND)]);
    // Otherwise a late request of a dead waiter could get the lock.
    rules.keeps_strays = false;
    rules
}

const AT_ONCE: Promise = Served(Duration::from_millis(10));

/// Checks that without a fault a released lock is granted at once.
fn handed_on() -> Rules {
    rules("a released lock is granted at once", 3).also_promising(AT_ONCE)
}

/// Lets the server's clock run faster than those of the clients, by this many percent.
fn fast_clock(percent: i64) -> Rules {
    let mut rules = rules("the server's clock runs faster", 2)
        .with(1, &[Kind::Late, Kind::Cut])
        .hitting(1);
    rules.clock_fast = percent;
    rules
}

/// Uses up the whole safety margin of a lease. Each answer takes the longest time with which a command still starts at once.
/// The server's clock is 1 % faster, and a killed command is dead after 2 % of a lease.
fn with_late_answers(name: &'static str, runs: usize, ttl: Duration) -> Rules {
    let rules = rules(name, runs).with(1, &[Kind::Late]).each(|run| {
        run.wish.ttl = ttl;
        run.terms.ttl = ttl;
        run.answers_take = Duration::from_millis(90);
        run.kills_take = ttl / 50;
    });
    Rules {
        clock_fast: 1,
        has_plain: true,
        plain_from: ttl * 9 / 10,
        keeps_strays: false,
        ..rules
    }
}

/// Delays answers: a lease begins with its request, and after each renewal with the request of that.
fn late_answers() -> Rules {
    with_late_answers("answers take 90 ms", 1, TTL)
}

/// Delays answers and grants. A run knows of a grant only that it began, by the server's clock, some time after the run's last
/// request. A person who thaws the lock grants it to the run.
fn late_answers_and_grants() -> Rules {
    with_late_answers("answers and grants take 90 ms", 1, 5 * SECOND)
        .with_deeds(freeze_and_thaw(SECOND))
        .lasting(6 * SECOND)
}

/// Admits two of three runs at a time, each in its own slot.
fn slots() -> Rules {
    rules("two slots for three runs", 3)
        .with(1, &[Kind::Kill])
        .promising(&[OneLease, OwnSlot, EndsWithLease])
        .each(|run| run.wish.limit = Limit::slots(2))
}

/// Returns a reader and a writer, with all faults of processes and messages.
fn reader_and_writer() -> Rules {
    let mut rules = rules("a reader and a writer", 2)
        .unlike()
        .with(1, &USUAL)
        .promising(&OF_ALL_LEASES);
    rules.clients[0].wish.limit = Limit::SHARED;
    rules
}

/// Returns runs with sequence numbers (`--supersede --seq`), of which a later one may come first.
fn in_order(name: &'static str, runs: usize) -> Rules {
    let mut numbers = 1..;
    rules(name, runs)
        .unlike()
        .also_promising(OrderHolds)
        .each(|run| {
            run.wish.queue.supersede = Supersede::Waiters;
            run.wish.queue.number = numbers.next();
            run.starts_on_grant = false;
        })
}

fn three_in_order() -> Rules {
    in_order("three runs in an outside order", 3)
}

/// Longest wait for waiters that no message reaches: they check every quarter of a second, a bit more rarely further behind.
const LOOK: Promise = Served(Duration::from_millis(350));

fn polling() -> Rules {
    let mut rules = rules("waiters that poll, and one that listens", 3)
        .unlike()
        .lasting(2 * SECOND)
        .also_promising(LOOK);
    for run in &mut rules.clients[..2] {
        run.polls = true;
    }
    rules
}

fn failover(sync: Sync) -> Rules {
    rules("a failover", 2)
        .failing_over(sync)
        .lasting(6 * SECOND)
}

/// Fails over without `REDLOCK_SYNC`: a lock may be lost, but some promises still hold.
fn failover_without_sync() -> Rules {
    let rules = failover(Sync::None)
        .named("a failover without SYNC")
        .with(1, &[Kind::FailOver, Kind::Kill])
        .promising(&EVEN_IF_LOST);
    Rules {
        nodes: vec![0, 0, 0],
        ..rules
    }
}

/// Cuts the network of a primary with three replicas and three sentinels in two. The sentinel on the old primary's side is
/// reset, after which it lists only the replica on its side, which has all data.
fn cut_with_a_sentinel() -> Rules {
    let rules = failover(Sync::All)
        .named("a cut, and a sentinel that is reset behind it")
        .unlike()
        .with(2, &[Kind::Split, Kind::Reset])
        .promising(&OF_ALL_LEASES);
    Rules {
        nodes: vec![0; 4],
        ..rules
    }
}

/// Returns a guard of a hold, with this id.
pub fn guard_with(id: &str, claim: Claim, who: &Who) -> Guard {
    let mut guard = Guard::new(claim, who).expect("random numbers");
    guard.id = id.to_owned();
    guard
}

/// Guards work under the hold of the first run, with faults of both, while another run waits.
fn guarded(name: &'static str) -> Rules {
    let mut rules = rules(name, 3)
        .unlike()
        .with(1, &USUAL)
        .hitting(2)
        .promising(&OF_ALL_LEASES);
    let run = rules.clients[0].claim.clone();
    let guard = guard_with("0123456789ab", run, &who(HOSTS[1]));
    rules.clients[1].guards = Some(Guarding { run: 0, guard });
    rules
}

/// Checks that without faults no two commands ever run, and that the lock is handed over as soon as the guard has ended.
fn guarded_without_faults() -> Rules {
    guarded("a guard, and no fault")
        .without_faults()
        .promising(&[OneCommand, EndsWithLease, AT_ONCE])
}

/// Like `guarded`, for a reader beside another reader and a writer.
fn guarded_reader() -> Rules {
    let mut rules = guarded("a guard of a reader")
        .with(1, &[Kind::Cut, Kind::Kill])
        .lasting(3 * SECOND);
    rules.clients.push(run(3));
    for reader in [0, 1, 3] {
        rules.clients[reader].wish.limit = Limit::SHARED;
    }
    rules
}

/// Returns all scenarios in which the promises must hold, the small ones first.
fn all() -> Vec<Rules> {
    vec![
        handed_on(),
        guarded_without_faults(),
        dead_waiters(),
        late_answers(),
        polling(),
        three_in_order(),
        failover(Sync::All),
        cut_with_a_sentinel(),
        failover_without_sync(),
        fast_clock(1),
        // A grant lasts 5 s at the server, and its message may be late. A client that comes after its end must not meet the
        // command of the granted run.
        rules("grants whose message comes late", 2)
            .with(1, &[Kind::Late])
            .beside_a_plain_client()
            .lasting(8 * SECOND)
            .each(|run| {
                run.wish.ttl = 6 * SECOND;
                run.terms.ttl = 6 * SECOND;
            }),
        set_clock(),
        frozen(),
        frozen_and_ignored(),
        forced(),
        lost_data(),
        once(),
        once_with_key(),
        two_runs_that_are_interrupted(),
        superseded(),
        served(),
        in_order("two runs in an outside order", 2).with(1, &USUAL),
        // No message announces a grant to a polling run, which finds it only by checking.
        rules("two runs that poll", 2)
            .with(1, &USUAL)
            .each(|run| run.polls = true),
        reader_and_writer(),
        late_answers_and_grants(),
        slots(),
        failover(Sync::All)
            .named("a failover and another fault")
            .with(
                2,
                &[Kind::FailOver, Kind::Unconfirmed, Kind::Cut, Kind::Late],
            ),
        // A third run takes the lock that the second one releases.
        rules("a failover with three runs", 3)
            .failing_over(Sync::All)
            .lasting(5 * SECOND),
        // A primary that knows the guard is replaced.
        guarded("a guard, and a failover")
            .failing_over(Sync::All)
            .lasting(5 * SECOND),
        guarded_reader(),
        guarded("a guard"),
        // All faults of runs that wait or hold, beside a client of another program.
        rules("two runs and a plain client", 2)
            .with(1, &USUAL)
            .beside_a_plain_client(),
        rules("three runs", 3).with(1, &USUAL),
        shared(),
        // More faults at once.
        rules("two runs", 2).with(2, &USUAL),
    ]
}

/// A deliberate defect.
struct Defect {
    rules: Rules,
    /// The promise that it breaks.
    promise: Promise,
    /// True if it is found within a second or so.
    is_near: bool,
}

#[allow(clippy::too_many_lines)] // A list.
fn defects() -> Vec<Defect> {
    let stopped = || rules("", 2).with(1, &[Kind::Stop]).beside_a_plain_client();
    let late = || rules("", 2).hitting(1);
    let from_the_answer = |rules: Rules| {
        let rules = rules.each(|run| run.defects.is_asked_with_the_answer = true);
        rules.promising(&[OneLease])
    };
    let never_stopped = |rules: Rules| rules.each(|run| run.defects.is_never_stopped = true);
    // Both scripts look for the next holder.
    let both = [&ACQUIRE, &RELEASE];
    let recreates = "redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5]) return {1, tonumber(ARGV[5]), 1, 1, 1, false}";
    let ignores_freeze = "return string.find(who, '\"ignores_freeze\":true', 1, true) ~= nil";
    let supersedes = [
        ("supersede_waiter(older[n], older[n + 1], entry)", ""),
        ("supersede_older(ticket)", ""),
    ];
    let counter = ("fence = time[1] * 1000000 + time[2]", "fence = 1");
    let keeps_key = ("if not key then return end", "do return end");
    let success = ("set_state('succeeded', int_text(now_ms))", "local _ = 1");
    let freed = ("redis.call('HSET', state, 'succeeded', now)", "local _ = 1");
    let any_number = ("if count + 1 > limit then return nil end", "");
    let one_too_many = "if count + 1 > smallest - LIMITS then return nil end";
    let notes_number = "if number then set_state('number', int_text(number), 'number_by', who) end";
    let hears_hello = ("'hello')) or 0) == 0", "'hello')) or 0) < 0");
    let counts_guards = "last = math.max(last, tonumber(until_ms) - now_ms)";
    let left_of_hold = "return {1, math.max(0, left - skew_of(entry))";
    let mut any_list = cut_with_a_sentinel().promising(&[OneLease]);
    any_list.one_sentinel_lists = true;
    vec![
        stopped()
            .replacing(&RELEASE, "redis.call('DEL', KEYS[1]) return {1}")
            .breaks(OneLease, "a release that doesn't check the token"),
        stopped()
            .replacing(&PROLONG, "return tonumber(ARGV[2])")
            .breaks(OneLease, "a short renewal that doesn't look whose it is"),
        stopped()
            .replacing(&RENEW, recreates)
            .breaks(OneLease, "a renewal that creates the lock again"),
        dead_waiters()
            .changing(&both, &[("if heard == 0 then slot = nil end", "")])
            .breaks(Served(SECOND), "PUBLISH's result is ignored"),
        frozen()
            .without_faults()
            .replacing(&FREEZE, "return {0, false, false}")
            .breaks(FreezeHolds, "a freeze that isn't kept"),
        frozen()
            .without_faults()
            .changing(&[&ACQUIRE], &[(ignores_freeze, "return true")])
            .breaks(FreezeHolds, "a freeze that any run ignores"),
        once_with_key()
            .without_faults()
            .changing(&[&RELEASE], &[keeps_key])
            .breaks(OnceHolds, "a key that isn't kept"),
        once()
            .without_faults()
            .changing(&[&RELEASE], &[success])
            .changing(&[&FREE], &[freed])
            .breaks(OnceHolds, "a success that isn't kept"),
        rules("two runs, no fault", 2)
            .without_faults()
            .changing(&[&TAKE], &[("KEYS[9]) > 0 then", "KEYS[9]) > 9 then")])
            .breaks(OneLease, "a short acquire of a lock that is held"),
        stopped()
            .changing(&[&FREE], &[("~= token or", "== '' or")])
            .breaks(OneLease, "a short release that doesn't check the token"),
        lost_data()
            .changing(&[&ACQUIRE], &[counter])
            .breaks(FenceGrows, "a fence from a counter"),
        from_the_answer(late_answers()).breaks(OneLease, "a lease counted from an answer"),
        from_the_answer(late_answers_and_grants())
            .breaks(OneLease, "a grant counted from an answer"),
        slots()
            .without_faults()
            .changing(&both, &[(one_too_many, ""), any_number])
            .breaks(OneLease, "one more than there are slots"),
        slots()
            .without_faults()
            .changing(&both, &[("return first * (low + 1)", "return first")])
            .breaks(OwnSlot, "the same slot for all"),
        reader_and_writer()
            .without_faults()
            .changing(&both, &[any_number])
            .breaks(OneLease, "a writer beside a reader"),
        three_in_order()
            .changing(&[&ACQUIRE], &[(notes_number, "")])
            .breaks(OrderHolds, "an order that isn't kept"),
        polling()
            .changing(&[&ACQUIRE], &[hears_hello])
            .breaks(LOOK, "nobody is told to poll"),
        guarded("")
            .without_faults()
            .changing(&[&RELEASE], &[(counts_guards, "")])
            .breaks(OneLease, "a release that forgets a guard"),
        guarded_without_faults()
            .replacing(&LEAVE, "redis.call('HDEL', KEYS[11], ARGV[5]) return {1}")
            .breaks(AT_ONCE, "a lock that nobody frees after its guard"),
        failover(Sync::AtLeast(1))
            .promising(&[OneLease])
            .breaks(OneLease, "SYNC=1 of two replicas"),
        any_list.breaks(OneLease, "the list of any sentinel"),
        late()
            .with(2, &[Kind::Late])
            .each(|run| run.defects.deadline_from_reply = true)
            .breaks_later(OneLease, "a lease counted from the reply"),
        superseded()
            .without_faults()
            .changing(&[&ACQUIRE], &supersedes)
            .breaks_later(SupersedeHolds, "a superseded waiter that isn't removed"),
        never_stopped(late().with(1, &[Kind::Late]))
            .breaks_later(EndsWithLease, "the command isn't stopped"),
        fast_clock(5).breaks_later(OneLease, "a clock that is 5 % faster"),
        guarded("")
            .with(1, &[Kind::Kill, Kind::Late])
            .changing(&[&GUARD], &[(left_of_hold, "return {1, 9000")])
            .promising(&[OneLease])
            .breaks_later(OneLease, "a guard that outlives the hold"),
        failover(Sync::All)
            .with(2, &[Kind::FailOver, Kind::Late])
            .hitting(1)
            .promising(&[OneLease])
            .each(|run| run.terms.clock_skew = Duration::ZERO)
            .breaks_later(OneLease, "no margin for the clocks of the servers"),
        never_stopped(late().with(1, &[Kind::Late]))
            .promising(&[OneCommand])
            .breaks_later(OneCommand, "the command isn't stopped when its lease ends"),
    ]
}

/// Stops processes, which then can't stop their commands: only the fencing token keeps these from doing harm.
fn stopped() -> Rules {
    rules("redlock, stopped for longer than its lease", 2)
        .with(1, &[Kind::Stop])
        .promising(&[OneCommand])
}

/// Returns true if a scenario with this name is selected.
fn is_chosen(name: &str) -> bool {
    let only = std::env::var("MODEL_ONLY").unwrap_or_default();
    name.contains(&only)
}

#[test]
fn the_promises_hold_in_each_state_that_is_visited() {
    // Only states near the start by default, to save time.
    let most = asked("MODEL_STATES").unwrap_or(500);
    let chosen = all().into_iter().filter(|rules| is_chosen(rules.name));
    let visits = chosen.map(|rules| visit(rules, most, Order::DepthFirst));
    let broken: Vec<String> = visits
        .filter(|visit| visit.explored.broken.is_some())
        .map(|visit| visit.told())
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

#[test]
fn states_that_count_as_the_same_lead_to_the_same() {
    let most = asked("MODEL_STATES").unwrap_or(300).min(100_000);
    for rules in all().into_iter().filter(|rules| is_chosen(rules.name)) {
        let name = rules.name;
        match check_same(&World::new(&Rc::new(rules)), most) {
            Ok(same) => {
                writeln!(std::io::stderr(), "{name}: {same} count as another").expect("stderr");
            }
            Err(paths) => panic!("{name}: these differ in what comes after them:\n{paths}"),
        }
    }
}

#[test]
fn without_faults_the_promises_hold_until_each_run_has_had_the_lock() {
    for rules in [
        rules("two runs, no fault", 2),
        handed_on(),
        once(),
        frozen(),
    ] {
        let quiet = Rules { faults: 0, ..rules };
        let most = asked("MODEL_STATES").unwrap_or(2_500);
        let visit = visit(quiet, most, Order::DepthFirst);
        assert!(visit.explored.broken.is_none(), "{}", visit.told());
    }
}

#[test]
fn what_is_made_wrong_on_purpose_is_found() {
    let most = asked("MODEL_STATES").unwrap_or(50_000);
    let is_whole = asked::<usize>("MODEL_STATES").is_some();
    for defect in defects() {
        let name = defect.rules.name;
        if is_chosen(name) && (is_whole || defect.is_near) {
            let visit = visit(defect.rules, most, Order::BreadthFirst);
            let broken = visit.explored.broken.as_ref();
            let promise = broken.map(|(broken, _)| broken.promise);
            assert_eq!(promise, Some(defect.promise), "{name}: {}", visit.told());
            let (broken, path) = broken.expect("it was found");
            let line = format!("{name}: found in {} steps: {broken}", path.len());
            writeln!(std::io::stderr(), "  {line}").expect("stderr");
        }
    }
}

#[test]
fn a_command_whose_redlock_is_stopped_may_outlive_its_lease_and_then_has_the_smaller_fence() {
    let visit = visit(stopped(), 20_000, Order::BreadthFirst);
    let (broken, _) = visit.explored.broken.as_ref().expect("two commands");
    assert_eq!(broken.promise, OneCommand);
    assert!(broken.is_fenced, "{}", visit.told());
}

//! The scenarios: which clients there are, which faults may happen and how many of them, and for how long.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::client::{Defects, Guarding, Setup};
use super::explore::{Explored, Order, check_same, explore, told};
use super::figure::picture;
use super::network::Asked;
use super::promises::Promise;
use super::simulate::{Mode, Simulation};
use super::support::asked;
use super::world::{Deed, Kind, Replaced, Rules, Sync, World};
use crate::decide::lease::Terms;
use crate::decide::wait::WaitLimit;
use crate::protocol::claim::QueueOptions;
use crate::protocol::name::Keys;
use crate::protocol::scripts::{
    ACQUIRE, FORCE, FREEZE, GUARD, LEAVE, PROLONG, RELEASE, RENEW, THAW,
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

/// The run with this number, as it is by default.
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
        limit: WaitLimit::Forever,
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

/// Runs that exclude each other, and nothing that goes wrong.
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
        promises: vec![
            Promise::OneLease,
            Promise::EndsWithLease,
            Promise::FenceGrows,
        ],
        replaced: Vec::new(),
        interpreter: Rc::default(),
        executed: RefCell::default(),
    }
}

/// A visit of the states of a scenario, up to a number of them.
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
    /// What was broken, and the steps to it.
    fn told(&self) -> String {
        let Some((broken, path)) = &self.explored.broken else {
            return format!("{}: nothing broken", self.line);
        };
        let told = told(self.start.clone(), path);
        format!("{}\n{broken}, in {} steps:\n{told}", self.line, path.len())
    }
}

/// What happens to processes and messages, all data being kept.
const USUAL: [Kind; 7] = [
    Kind::Cut,
    Kind::Messages,
    Kind::Repeat,
    Kind::Late,
    Kind::Kill,
    Kind::Vanish,
    Kind::Stop,
];

/// All that happens to a run that waits or holds, beside a client of another program.
fn two_runs_and_a_plain_client() -> Rules {
    Rules {
        has_plain: true,
        kinds: USUAL.to_vec(),
        faults: 1,
        ..rules("two runs and a plain client", 2)
    }
}

/// With more faults at once.
fn two_runs() -> Rules {
    Rules {
        kinds: USUAL.to_vec(),
        faults: 2,
        ..rules("two runs", 2)
    }
}

/// Users end runs while they wait.
fn two_runs_that_are_interrupted() -> Rules {
    Rules {
        may_interrupt: true,
        kinds: USUAL.to_vec(),
        faults: 1,
        ..rules("two runs, interrupted", 2)
    }
}

fn three_runs() -> Rules {
    Rules {
        kinds: USUAL.to_vec(),
        faults: 1,
        ..rules("three runs", 3)
    }
}

/// Somebody else's writes, or a restart without data, may take a lock from its holder: then two commands may
/// run until the first one learns of it. Their fences still grow, and each ends with its lease.
fn lost_data() -> Rules {
    Rules {
        kinds: vec![Kind::Delete, Kind::Restart, Kind::Cut],
        faults: 1,
        promises: vec![Promise::EndsWithLease, Promise::FenceGrows],
        ..rules("keys are deleted, and the server restarts empty", 2)
    }
}

/// A server's clock that is set moves the ends of all leases that it counts.
fn set_clock() -> Rules {
    Rules {
        kinds: vec![Kind::SetClock(3_600_000), Kind::SetClock(1500)],
        faults: 1,
        promises: vec![Promise::EndsWithLease, Promise::FenceGrows],
        ..rules("the server's clock is set", 2)
    }
}

fn shared() -> Rules {
    let mut rules = Rules {
        kinds: USUAL.to_vec(),
        faults: 1,
        are_alike: false,
        promises: vec![Promise::OneLease, Promise::EndsWithLease],
        ..rules("two readers and a writer", 3)
    };
    for reader in &mut rules.clients[..2] {
        reader.wish.limit = Limit::SHARED;
    }
    rules
}

/// A person freezes the lock for so long, and thaws it.
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
    let mut rules = rules("a freeze", 2);
    rules.deeds = freeze_and_thaw(2 * SECOND);
    rules.kinds = MESSAGES.to_vec();
    rules.faults = 1;
    rules.horizon = 3 * SECOND;
    rules.promises.push(Promise::FreezeHolds);
    rules
}

/// The second run ignores the freeze, and goes in ahead of the third one.
fn frozen_and_ignored() -> Rules {
    let mut rules = rules("a freeze, and a run that ignores it", 3);
    rules.are_alike = false;
    rules.deeds = freeze_and_thaw(2 * SECOND);
    rules.clients[1].wish.who.ignores_freeze = true;
    rules.kinds = MESSAGES.to_vec();
    rules.faults = 1;
    rules.horizon = 3 * SECOND;
    rules.promises.push(Promise::FreezeHolds);
    rules
}

/// A person frees the lock: until its run learns of that, two commands may run.
fn forced() -> Rules {
    let lock = lock();
    let json = serde_json::to_vec(&who("desk")).expect("JSON");
    let force = lock.call(&FORCE, vec![Vec::new(), json, "0".into(), "0".into()]);
    let mut rules = rules("a release by force", 2);
    rules.deeds = vec![Deed {
        name: "a person frees the lock",
        asked: Asked::new(force),
    }];
    rules.kinds = MESSAGES.to_vec();
    rules.faults = 1;
    rules.promises = vec![Promise::EndsWithLease, Promise::FenceGrows];
    rules
}

/// What may go wrong with messages alone.
const MESSAGES: [Kind; 4] = [Kind::Cut, Kind::Messages, Kind::Repeat, Kind::Late];

fn superseded() -> Rules {
    let mut rules = rules("a run that supersedes", 3);
    rules.are_alike = false;
    rules.clients[2].wish.queue.supersede = Supersede::Waiters;
    rules.kinds = MESSAGES.to_vec();
    rules.faults = 1;
    rules.promises.push(Promise::SupersedeHolds);
    rules
}

fn once() -> Rules {
    let mut rules = rules("once per hour", 2);
    for run in &mut rules.clients {
        run.wish.once_per = 3600 * SECOND;
        run.starts_on_grant = false;
    }
    rules.kinds = USUAL.to_vec();
    rules.faults = 1;
    rules.promises.push(Promise::OnceHolds);
    rules
}

fn once_with_key() -> Rules {
    let mut rules = Rules {
        name: "once per key",
        ..once()
    };
    for run in &mut rules.clients {
        run.wish.once_per = Duration::ZERO;
        run.wish.once_key = Some("monday".into());
        run.wish.who.once = Some("monday".into());
    }
    rules
}

/// What a dead holder leaves ends with its lease; a waiter that doesn't take what it got has 5 s for it, and
/// the next one asks with its heartbeat.
fn served() -> Rules {
    let mut rules = rules("a free lock is granted", 2);
    rules.kinds = USUAL.to_vec();
    rules.faults = 1;
    rules.horizon = 14 * SECOND;
    rules.promises = vec![Promise::Served(TTL + 8 * SECOND)];
    rules
}

/// Waiters that were killed are passed over at once.
fn dead_waiters() -> Rules {
    let mut rules = rules("killed waiters are passed over", 3);
    rules.kinds = vec![Kind::KillWaiter];
    // Else a dead one may be granted the lock by what it had asked.
    rules.keeps_strays = false;
    rules.faults = 1;
    rules.promises = vec![Promise::Served(SECOND)];
    rules
}

/// Without a fault a lock that is released is granted at once.
fn handed_on() -> Rules {
    let mut rules = rules("a released lock is granted at once", 3);
    let at_once = Duration::from_millis(10);
    rules.promises.push(Promise::Served(at_once));
    rules
}

/// A grant is good for 5 s at the server, and its message may come late; whoever comes when it is over must
/// not find the command of its run.
fn late_grants() -> Rules {
    let mut rules = rules("grants whose message comes late", 2);
    for run in &mut rules.clients {
        run.wish.ttl = 6 * SECOND;
        run.terms.ttl = 6 * SECOND;
    }
    rules.has_plain = true;
    rules.kinds = vec![Kind::Late];
    rules.faults = 1;
    rules.horizon = 8 * SECOND;
    rules
}

/// The clock of the server runs by so many percent faster than those of the clients.
fn fast_clock(percent: i64) -> Rules {
    let mut rules = rules("the server's clock runs faster", 2);
    rules.clock_fast = percent;
    rules.kinds = vec![Kind::Late, Kind::Cut];
    rules.victims = 1;
    rules.faults = 1;
    rules
}

/// Each answer is under way for as long as one may be on which a command starts at once, the server's clock is 1 %
/// faster, and a command is dead 2 % of a lease after it was killed: what a lease is shortened by is used up.
fn with_late_answers(name: &'static str, runs: usize, ttl: Duration) -> Rules {
    let mut rules = rules(name, runs);
    for run in &mut rules.clients {
        run.wish.ttl = ttl;
        run.terms.ttl = ttl;
        run.answers_take = Duration::from_millis(90);
        run.kills_take = ttl / 50;
    }
    rules.clock_fast = 1;
    rules.has_plain = true;
    rules.plain_from = ttl * 9 / 10;
    rules.keeps_strays = false;
    rules.kinds = vec![Kind::Late];
    rules.faults = 1;
    rules
}

/// A lease begins when it is asked for, and with each renewal when that is.
fn late_answers() -> Rules {
    with_late_answers("answers take 90 ms", 1, TTL)
}

/// A grant of 5 s begins, as far as its run can know, as long after its last question as the server says. A person who
/// thaws the lock grants it to the run.
fn late_answers_and_grants() -> Rules {
    Rules {
        deeds: freeze_and_thaw(SECOND),
        horizon: 6 * SECOND,
        ..with_late_answers("answers and grants take 90 ms", 1, 5 * SECOND)
    }
}

/// Two of three runs at a time, each in a slot of its own.
fn slots() -> Rules {
    let mut rules = rules("two slots for three runs", 3);
    for run in &mut rules.clients {
        run.wish.limit = Limit::slots(2);
    }
    rules.kinds = vec![Kind::Kill];
    rules.faults = 1;
    rules.promises = vec![Promise::OneLease, Promise::OwnSlot, Promise::EndsWithLease];
    rules
}

/// A reader and a writer, and whatever happens to them.
fn reader_and_writer() -> Rules {
    let mut rules = rules("a reader and a writer", 2);
    rules.are_alike = false;
    rules.clients[0].wish.limit = Limit::SHARED;
    rules.kinds = USUAL.to_vec();
    rules.faults = 1;
    rules.promises = vec![Promise::OneLease, Promise::EndsWithLease];
    rules
}

/// Runs with places in an order from outside (`--supersede --seq`), of which a later one may come first.
fn in_order(name: &'static str, runs: usize) -> Rules {
    let mut rules = rules(name, runs);
    rules.are_alike = false;
    for (run, number) in rules.clients.iter_mut().zip(1..) {
        run.wish.queue.supersede = Supersede::Waiters;
        run.wish.queue.number = Some(number);
        run.starts_on_grant = false;
    }
    rules.promises.push(Promise::OrderHolds);
    rules
}

fn two_in_order() -> Rules {
    Rules {
        kinds: USUAL.to_vec(),
        faults: 1,
        ..in_order("two runs in an outside order", 2)
    }
}

fn three_in_order() -> Rules {
    in_order("three runs in an outside order", 3)
}

/// Waiters that no message reaches look every quarter of a second, and a bit more rarely further behind.
fn polling() -> Rules {
    let mut rules = rules("waiters that poll, and one that listens", 3);
    rules.are_alike = false;
    for run in &mut rules.clients[..2] {
        run.polls = true;
    }
    rules.horizon = 2 * SECOND;
    let look = Duration::from_millis(350);
    rules.promises.push(Promise::Served(look));
    rules
}

/// A grant to one of them isn't heard of, so that it is known only when it looks.
fn two_that_poll() -> Rules {
    let mut rules = rules("two runs that poll", 2);
    for run in &mut rules.clients {
        run.polls = true;
    }
    rules.kinds = USUAL.to_vec();
    rules.faults = 1;
    rules
}

/// By how much the clocks of the servers differ, at most.
const SKEW: Duration = Duration::from_secs(1);

fn failover_runs(runs: usize, sync: Sync) -> Vec<Setup> {
    let mut all: Vec<Setup> = (0..runs).map(run).collect();
    for run in &mut all {
        run.wish.ttl = 5 * SECOND;
        run.terms.ttl = 5 * SECOND;
        run.terms.clock_skew = SKEW;
        run.starts_on_grant = sync == Sync::None;
        run.is_replicated = sync != Sync::None;
        run.awaits_replicas = sync == Sync::All;
    }
    all
}

/// A primary with two replicas, one of which follows it with any part of what it wrote; with `REDLOCK_SYNC=all` only
/// with what was confirmed.
fn failover(sync: Sync) -> Rules {
    let mut rules = rules("a failover", 2);
    rules.clients = failover_runs(2, sync);
    rules.nodes = vec![0, 1000, -1000];
    rules.sync = sync;
    rules.kinds = vec![Kind::FailOver];
    rules.faults = 1;
    rules.horizon = 6 * SECOND;
    rules
}

/// Without `REDLOCK_SYNC` a lock may be lost; what holds all the same.
fn failover_without_sync() -> Rules {
    let mut rules = Rules {
        name: "a failover without SYNC",
        nodes: vec![0, 0, 0],
        promises: vec![Promise::EndsWithLease, Promise::FenceGrows],
        ..failover(Sync::None)
    };
    rules.kinds.push(Kind::Kill);
    rules
}

/// A third run takes what the second one gives back.
fn failover_of_three() -> Rules {
    Rules {
        name: "a failover with three runs",
        clients: failover_runs(3, Sync::All),
        victims: 3,
        horizon: 5 * SECOND,
        ..failover(Sync::All)
    }
}

/// The same with a second fault.
fn failover_and_more() -> Rules {
    let mut rules = failover(Sync::All);
    rules.name = "a failover and another fault";
    rules.kinds = vec![Kind::FailOver, Kind::Unconfirmed, Kind::Cut, Kind::Late];
    rules.faults = 2;
    rules
}

/// A primary with three replicas and three sentinels. The network is cut in two, and the sentinel on the side of the old
/// primary is reset: it lists nothing but the replica on that side, which has all.
fn cut_with_a_sentinel() -> Rules {
    Rules {
        nodes: vec![0; 4],
        kinds: vec![Kind::Split, Kind::Reset],
        are_alike: false,
        faults: 2,
        promises: vec![Promise::OneLease, Promise::EndsWithLease],
        name: "a cut, and a sentinel that is reset behind it",
        ..failover(Sync::All)
    }
}

/// Work elsewhere under the hold of the first run, and whatever happens to it and to that run, while another one waits.
fn guarded(name: &'static str) -> Rules {
    let mut rules = rules(name, 3);
    rules.are_alike = false;
    let run = rules.clients[0].claim.clone();
    let guard = Guard::of(run, "0123456789ab", &who(HOSTS[1]));
    rules.clients[1].guards = Some(Guarding { run: 0, guard });
    rules.kinds = USUAL.to_vec();
    rules.faults = 1;
    rules.victims = 2;
    rules.promises = vec![Promise::OneLease, Promise::EndsWithLease];
    rules
}

/// Nothing goes wrong, so that no two commands run at any time, and the lock is handed on as soon as the guard has ended.
fn guarded_without_faults() -> Rules {
    let mut rules = guarded("a guard, and no fault");
    rules.faults = 0;
    rules.promises = vec![
        Promise::OneCommand,
        Promise::EndsWithLease,
        Promise::Served(Duration::from_millis(10)),
    ];
    rules
}

/// The same for a reader, beside which there is another one, and a writer.
fn guarded_reader() -> Rules {
    let mut rules = guarded("a guard of a reader");
    rules.clients.push(run(3));
    for reader in [0, 1, 3] {
        rules.clients[reader].wish.limit = Limit::SHARED;
    }
    rules.kinds = vec![Kind::Cut, Kind::Kill];
    rules.horizon = 3 * SECOND;
    rules
}

/// A primary that knows of the guard is replaced.
fn guarded_failover() -> Rules {
    let mut rules = guarded("a guard, and a failover");
    let guards = rules.clients[1].guards.take();
    rules.clients = failover_runs(3, Sync::All);
    rules.clients[1].guards = guards;
    Rules {
        horizon: 5 * SECOND,
        nodes: vec![0, 1000, -1000],
        sync: Sync::All,
        kinds: vec![Kind::FailOver],
        ..rules
    }
}

/// All scenarios in which the promises have to hold, the small ones first.
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
        late_grants(),
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
        two_in_order(),
        two_that_poll(),
        reader_and_writer(),
        late_answers_and_grants(),
        slots(),
        failover_and_more(),
        failover_of_three(),
        guarded_failover(),
        guarded_reader(),
        guarded("a guard"),
        two_runs_and_a_plain_client(),
        three_runs(),
        shared(),
        two_runs(),
    ]
}

/// A script with something else in place of a part of it.
fn with(script: &'static str, changes: &[(&str, &str)]) -> &'static str {
    let mut source = script.to_owned();
    for (part, other) in changes {
        assert!(source.contains(part), "{part} isn't in the script");
        source = source.replace(part, other);
    }
    source.leak()
}

/// Something that is made wrong on purpose.
struct Defect {
    rules: Rules,
    /// The promise that it breaks.
    promise: Promise,
    /// It is found within a second or so.
    is_near: bool,
}

#[allow(clippy::too_many_lines)] // A list.
fn defects() -> Vec<Defect> {
    let blind = Rules {
        replaced: vec![(RELEASE.hash, "redis.call('DEL', KEYS[1]) return {1}")],
        has_plain: true,
        kinds: vec![Kind::Stop],
        faults: 1,
        ..rules("a release that doesn't check the token", 2)
    };
    let mut from_reply = Rules {
        kinds: vec![Kind::Late],
        victims: 1,
        faults: 2,
        ..rules("a lease counted from the reply", 2)
    };
    for run in &mut from_reply.clients {
        run.defects.deadline_from_reply = true;
    }
    let recreates = "redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5]) return {1, tonumber(ARGV[5]), 1, 1, 1, false}";
    let renewal = Rules {
        replaced: vec![(RENEW.hash, recreates)],
        has_plain: true,
        kinds: vec![Kind::Stop],
        faults: 1,
        ..rules("a renewal that creates the lock again", 2)
    };
    let blind_renewal = Rules {
        replaced: vec![(PROLONG.hash, "return tonumber(ARGV[2])")],
        has_plain: true,
        kinds: vec![Kind::Stop],
        faults: 1,
        ..rules("a short renewal that doesn't look whose lock it is", 2)
    };
    let is_ignored = ("if heard == 0 then slot = nil end", "");
    let unheard = Rules {
        replaced: vec![
            (ACQUIRE.hash, with(ACQUIRE.source, &[is_ignored])),
            (RELEASE.hash, with(RELEASE.source, &[is_ignored])),
        ],
        name: "PUBLISH's result is ignored",
        ..dead_waiters()
    };
    let one_of_two = Rules {
        name: "SYNC=1 of two replicas",
        promises: vec![Promise::OneLease],
        ..failover(Sync::AtLeast(1))
    };
    let one_list = Rules {
        name: "the list of any sentinel",
        one_sentinel_lists: true,
        promises: vec![Promise::OneLease],
        ..cut_with_a_sentinel()
    };
    let mut no_margin = Rules {
        name: "no margin for the clocks of the servers",
        kinds: vec![Kind::FailOver, Kind::Late],
        victims: 1,
        faults: 2,
        promises: vec![Promise::OneLease],
        ..failover(Sync::All)
    };
    for run in &mut no_margin.clients {
        run.terms.clock_skew = Duration::ZERO;
    }
    let mut published = Rules {
        kinds: vec![Kind::Late],
        victims: 1,
        faults: 1,
        promises: vec![Promise::OneCommand],
        ..rules("the command isn't stopped when its lease ends", 2)
    };
    for run in &mut published.clients {
        run.defects.is_never_stopped = true;
    }
    let open_freeze = Rules {
        name: "a freeze that any run ignores",
        replaced: vec![(
            ACQUIRE.hash,
            with(
                ACQUIRE.source,
                &[(
                    "return string.find(who, '\"ignores_freeze\":true', 1, true) ~= nil",
                    "return true",
                )],
            ),
        )],
        faults: 0,
        ..frozen()
    };
    let forgotten_key = Rules {
        name: "a key that isn't kept",
        replaced: vec![(
            RELEASE.hash,
            with(
                RELEASE.source,
                &[("if not key then return end", "do return end")],
            ),
        )],
        faults: 0,
        ..once_with_key()
    };
    let forgotten_freeze = Rules {
        name: "a freeze that isn't kept",
        replaced: vec![(FREEZE.hash, "return {0, false, false}")],
        faults: 0,
        ..frozen()
    };
    let noted = "set_state('succeeded', int_text(now_ms))";
    let forgotten_success = Rules {
        name: "a success that isn't kept",
        replaced: vec![(
            RELEASE.hash,
            with(RELEASE.source, &[(noted, "local _ = 1")]),
        )],
        faults: 0,
        ..once()
    };
    let noted = [
        "supersede_waiter(older[n], older[n + 1], entry)",
        "supersede_older(ticket)",
    ];
    let forgotten_supersede = Rules {
        name: "a superseded waiter that isn't removed",
        replaced: vec![(
            ACQUIRE.hash,
            with(ACQUIRE.source, &noted.map(|noted| (noted, ""))),
        )],
        faults: 0,
        ..superseded()
    };
    let clock = "local fence = time[1] * 1000000 + time[2]";
    let count = "local fence = 1";
    let counter = Rules {
        name: "a fence from a counter",
        replaced: vec![(ACQUIRE.hash, with(ACQUIRE.source, &[(clock, count)]))],
        ..lost_data()
    };
    let mut unending = rules("the command isn't stopped", 2);
    unending.kinds = vec![Kind::Late];
    unending.victims = 1;
    unending.faults = 1;
    for run in &mut unending.clients {
        run.defects.is_never_stopped = true;
    }
    let asked_with_the_answer = |name, mut rules: Rules| {
        rules.name = name;
        for run in &mut rules.clients {
            run.defects.is_asked_with_the_answer = true;
        }
        rules.promises = vec![Promise::OneLease];
        rules
    };
    let both = |changes: &[(&str, &str)]| {
        vec![
            (ACQUIRE.hash, with(ACQUIRE.source, changes)),
            (RELEASE.hash, with(RELEASE.source, changes)),
        ]
    };
    let one_too_many = (
        "if smallest and count + 1 > smallest - LIMITS then return nil end",
        "",
    );
    let any_number = ("if count + 1 > limit then return nil end", "");
    let third_holder = Rules {
        name: "one more than there are slots",
        replaced: both(&[one_too_many, any_number]),
        faults: 0,
        ..slots()
    };
    let first_slot = Rules {
        name: "the same slot for all",
        replaced: both(&[("return first * (low + 1)", "return first")]),
        faults: 0,
        ..slots()
    };
    let writer_comes_in = Rules {
        name: "a writer beside a reader",
        replaced: both(&[any_number]),
        faults: 0,
        ..reader_and_writer()
    };
    let noted = "if number then set_state('number', int_text(number), 'number_by', who) end";
    let forgotten_order = Rules {
        name: "an order that isn't kept",
        replaced: vec![(ACQUIRE.hash, with(ACQUIRE.source, &[(noted, "")]))],
        ..three_in_order()
    };
    let unheard_hello = ("'hello')) or 0) == 0", "'hello')) or 0) < 0");
    let not_told_to_poll = Rules {
        name: "nobody is told to poll",
        replaced: vec![(ACQUIRE.hash, with(ACQUIRE.source, &[unheard_hello]))],
        ..polling()
    };
    let served_by_a_look = not_told_to_poll.promises[not_told_to_poll.promises.len() - 1];
    let lives = "last = math.max(last, tonumber(until_ms) - now_ms)";
    let forgotten_guard = Rules {
        replaced: vec![(RELEASE.hash, with(RELEASE.source, &[(lives, "")]))],
        faults: 0,
        ..guarded("a release that forgets a guard")
    };
    let mut free_guard = Rules {
        replaced: vec![(
            GUARD.hash,
            with(
                GUARD.source,
                &[(
                    "return {1, math.max(0, left - skew_of(entry))",
                    "return {1, 9000",
                )],
            ),
        )],
        kinds: vec![Kind::Kill, Kind::Late],
        ..guarded("a guard that outlives the hold")
    };
    free_guard.promises = vec![Promise::OneLease];
    let kept_on = Rules {
        name: "a lock that nobody frees after its guard",
        replaced: vec![(
            LEAVE.hash,
            "redis.call('HDEL', KEYS[12], ARGV[5]) return {1}",
        )],
        ..guarded_without_faults()
    };
    let lease = asked_with_the_answer("a lease counted from an answer", late_answers());
    let grant = asked_with_the_answer("a grant counted from an answer", late_answers_and_grants());
    let fast = Rules {
        name: "a clock that is 5 % faster",
        ..fast_clock(5)
    };
    let defect = |is_near| {
        move |(rules, promise)| Defect {
            rules,
            promise,
            is_near,
        }
    };
    let at_once = Promise::Served(Duration::from_millis(10));
    let near = [
        (blind, Promise::OneLease),
        (blind_renewal, Promise::OneLease),
        (renewal, Promise::OneLease),
        (unheard, Promise::Served(SECOND)),
        (forgotten_freeze, Promise::FreezeHolds),
        (open_freeze, Promise::FreezeHolds),
        (forgotten_key, Promise::OnceHolds),
        (forgotten_success, Promise::OnceHolds),
        (counter, Promise::FenceGrows),
        (lease, Promise::OneLease),
        (grant, Promise::OneLease),
        (third_holder, Promise::OneLease),
        (first_slot, Promise::OwnSlot),
        (writer_comes_in, Promise::OneLease),
        (forgotten_order, Promise::OrderHolds),
        (not_told_to_poll, served_by_a_look),
        (forgotten_guard, Promise::OneLease),
        (kept_on, at_once),
        (one_of_two, Promise::OneLease),
        (one_list, Promise::OneLease),
    ];
    let far = [
        (from_reply, Promise::OneLease),
        (forgotten_supersede, Promise::SupersedeHolds),
        (unending, Promise::EndsWithLease),
        (fast, Promise::OneLease),
        (free_guard, Promise::OneLease),
        (no_margin, Promise::OneLease),
        (published, Promise::OneCommand),
    ];
    let near = near.into_iter().map(defect(true));
    near.chain(far.into_iter().map(defect(false))).collect()
}

/// A process that is stopped can't stop its command: only the fence keeps that from doing harm.
fn stopped() -> Rules {
    Rules {
        kinds: vec![Kind::Stop],
        faults: 1,
        promises: vec![Promise::OneCommand],
        ..rules("redlock, stopped for longer than its lease", 2)
    }
}

/// Whether all that has to hold holds with these scripts in place of those that are shipped, near the start and
/// in some minutes of virtual time; else what doesn't.
pub fn check(replaced: &Replaced) -> Result<(), String> {
    for mut rules in all() {
        rules.replaced.clone_from(replaced);
        let explored = explore(World::new(&Rc::new(rules)), 400, Order::BreadthFirst);
        if let Some((broken, _)) = explored.broken {
            return Err(broken.to_string());
        }
    }
    for (seed, mode) in [(1, Mode::Kept), (2, Mode::Lost), (3, Mode::Kept)] {
        Simulation::new(seed, mode, replaced.clone()).run(10)?;
    }
    Ok(())
}

#[test]
fn scripts_that_break_a_promise_are_told_from_those_that_are_shipped() {
    assert_eq!(check(&Vec::new()), Ok(()));
    let blind = (RELEASE.hash, "redis.call('DEL', KEYS[1]) return {1}");
    check(&vec![blind]).expect_err("a release that doesn't look at the token");
}

#[test]
fn the_promises_hold_in_each_state_that_is_visited() {
    let states = asked("MODEL_STATES");
    let only = std::env::var("MODEL_ONLY").unwrap_or_default();
    let chosen = all().into_iter().filter(|rules| rules.name.contains(&only));
    let visits = chosen.map(|rules| match states {
        Some(most) => visit(rules, most, Order::DepthFirst),
        // In little time: what is near the start.
        None => visit(rules, 500, Order::DepthFirst),
    });
    let broken: Vec<String> = visits
        .filter(|visit| visit.explored.broken.is_some())
        .map(|visit| visit.told())
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

#[test]
fn states_that_count_as_the_same_lead_to_the_same() {
    let most = asked("MODEL_STATES").unwrap_or(300).min(100_000);
    let only = std::env::var("MODEL_ONLY").unwrap_or_default();
    let chosen = all().into_iter().filter(|rules| rules.name.contains(&only));
    for rules in chosen {
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
    let most = asked("MODEL_STATES").unwrap_or(40_000);
    let is_whole = asked::<usize>("MODEL_STATES").is_some();
    let only = std::env::var("MODEL_ONLY").unwrap_or_default();
    let chosen = defects().into_iter();
    for defect in chosen.filter(|defect| defect.rules.name.contains(&only)) {
        let name = defect.rules.name;
        if is_whole || defect.is_near {
            let visit = visit(defect.rules, most, Order::BreadthFirst);
            let broken = visit.explored.broken.as_ref();
            let found = broken.map(|(broken, _)| broken.promise);
            assert_eq!(found, Some(defect.promise), "{name}: {}", visit.told());
            let (broken, path) = broken.expect("it was found");
            let line = format!("{name}: found in {} steps: {broken}", path.len());
            let picture = picture(visit.start.clone(), path);
            writeln!(std::io::stderr(), "  {line}\n{picture}").expect("stderr");
        }
    }
}

#[test]
fn a_command_whose_redlock_is_stopped_may_outlive_its_lease_and_then_has_the_smaller_fence() {
    let visit = visit(stopped(), 20_000, Order::BreadthFirst);
    let (broken, path) = visit.explored.broken.as_ref().expect("two commands");
    assert_eq!(broken.promise, Promise::OneCommand);
    assert!(broken.is_fenced, "{}", visit.told());
    let picture = picture(visit.start.clone(), path);
    writeln!(std::io::stderr(), "  {broken}, fenced\n{picture}").expect("stderr");
}

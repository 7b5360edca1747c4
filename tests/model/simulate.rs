//! Simulations in virtual time. Runs, guards and plain clients come and go, while processes are killed and stopped, connections
//! break, and requests arrive late or twice. The server stalls, loses keys, and has its clock changed, and people freeze, stop
//! and force. Everything is drawn from a seed: `make search WHAT=simulate SEED=n` repeats it to the byte. `promises::calls`
//! judges each call; another witness may observe it as well, such as a real server that must agree.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::iter::once;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sha1_smol::Sha1;

use super::client::{Client, Guarding, Setup, Stage};
use super::fake::Real;
use super::network::Delay;
use super::promises::calls::{Judge, Seen, Witness};
use super::promises::{Broken, Promise};
use super::redis::Interpreter;
use super::scenarios;
use super::support::lua::{SCRIPTS, id};
use super::support::{Dice, asked, cores, on_threads};
use super::view::is_notice;
use super::world::{BOOT, Plain, Replaced, Rules, Step, World};
use crate::clock::Moment;
use crate::protocol::claim::ServerTraits;
use crate::protocol::name::Keys;
use crate::protocol::scripts::{CHECK, FORCE, FREEZE, HISTORY, INSPECT, SKIP, STOP, THAW};
use crate::protocol::{Claim, HoldOutcome, Limit, Lock, ReleaseMode, Supersede, Token};
use crate::server::call::Call;

const SECOND: Duration = Duration::from_secs(1);

fn ms(number: i64) -> Duration {
    Duration::from_millis(number.max(0).unsigned_abs())
}

/// Draws a time up to `most`; short ones are likelier.
fn time(dice: &mut Dice, most: Duration) -> Duration {
    let mut share = || u32::try_from(dice.below(1000)).expect("small");
    most * share() / 1000 * share() / 1000 + Duration::from_millis(1)
}

/// A set of possible faults; the seeds take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// No faults: waiters are served at once.
    Quiet,
    /// No data is lost, and no clock is changed.
    Kept,
    /// Keys are deleted, the server restarts empty, its clock is changed.
    Lost,
}

impl Mode {
    /// Returns the promises about states; those about calls are judged in any case.
    fn promises(self) -> Vec<Promise> {
        match self {
            Self::Quiet | Self::Kept => vec![
                Promise::OneLease,
                Promise::OwnSlot,
                Promise::EndsWithLease,
                Promise::FenceGrows,
                Promise::Served(AFTER_FAULTS),
            ],
            Self::Lost => vec![Promise::EndsWithLease],
        }
    }
}

const MODES: [Mode; 3] = [Mode::Quiet, Mode::Kept, Mode::Lost];

/// Kinds of runs and faults of a seed: only a few, so that less is excused.
struct Kinds {
    limits: &'static [u32],
    /// Longest pause before a run returns, longest command, longest times between two faults and between two deeds of people.
    rests: Duration,
    holds: Duration,
    calms: Duration,
    people: Duration,
    /// Percentages of runs that supersede, that are skipped after a success, and that keep their locks for a while.
    supersede: i64,
    once: i64,
    keep: i64,
    /// Percentages of requests that arrive twice, and that are delayed.
    twice: i64,
    late: i64,
    has_plain: bool,
}

const SHARED: u32 = 1_000_000_000;

impl Kinds {
    fn draw(dice: &mut Dice, mode: Mode) -> Self {
        let limits: [&[u32]; 9] = [
            &[1],
            &[1],
            &[1],
            &[2],
            &[3, 2],
            &[SHARED],
            &[SHARED, 1],
            &[SHARED, SHARED, 3, 1],
            &[1, 2, 3, SHARED],
        ];
        let is_quiet = mode == Mode::Quiet;
        // Without faults there is one draw less.
        let unless_quiet =
            |dice: &mut Dice, shares: &[i64]| if is_quiet { 0 } else { dice.pick(shares) };
        Self {
            limits: dice.pick(&limits),
            rests: dice.pick(&[2, 10, 30]) * SECOND,
            holds: dice.pick(&[1, 4, 60]) * SECOND,
            calms: dice.pick(&[4, 15, 60]) * SECOND,
            people: dice.pick(&[15, 60, 600]) * SECOND,
            supersede: dice.pick(&[0, 0, 10, 50]),
            once: dice.pick(&[0, 0, 0, 40]),
            keep: unless_quiet(dice, &[0, 0, 0, 40]),
            twice: dice.pick(&[0, 20]),
            late: unless_quiet(dice, &[0, 10]),
            has_plain: !is_quiet && dice.chance(50),
        }
    }

    /// Draws the options and the behaviour of a run.
    fn run(&self, dice: &mut Dice, usual: &Setup) -> Setup {
        let mut setup = usual.clone();
        let (wish, terms) = (&mut setup.wish, &mut setup.terms);
        let ttl = dice.pick(&[1, 3, 10, 30]) * SECOND;
        (wish.ttl, terms.ttl) = (ttl, ttl);
        terms.kill_after = dice.pick(&[0, 500, 5000]) * SECOND / 1000;
        wish.limit = match dice.pick(self.limits) {
            SHARED => Limit::SHARED,
            limit => Limit::slots(limit),
        };
        if dice.chance(self.supersede) {
            let waiters = Supersede::Waiters;
            wish.queue.supersede = dice.pick(&[waiters, waiters, Supersede::HoldersToo]);
            let is_numbered = dice.chance(50);
            wish.queue.number = is_numbered.then(|| dice.between(1, 30).unsigned_abs());
        }
        wish.queue.most_waiting = dice.pick(&[None, None, None, None, None, Some(1), Some(3)]);
        if dice.chance(self.once) {
            wish.once_per = dice.pick(&[0, 5, 60]) * SECOND;
            let key = dice.pick(&[None, Some("monday"), Some("tuesday")]);
            wish.once_key = key.map(str::to_owned);
        }
        wish.who.once.clone_from(&wish.once_key);
        wish.who.ttl = u64::try_from(ttl.as_millis()).ok();
        wish.who.instance = dice.chance(70).then(|| "i".into());
        wish.who.ignores_freeze = dice.chance(10);
        setup.is_keeper = dice.chance(20);
        let is_plain = wish.once_per.is_zero() && wish.once_key.is_none();
        setup.starts_on_grant = is_plain && wish.queue.number.is_none() && !setup.is_keeper;
        setup.polls = dice.chance(15);
        setup.ends_with = dice.pick(&[0, 0, 256, 15]);
        setup.keep_for = if dice.chance(self.keep) {
            ms(dice.between(500, 6_000))
        } else {
            Duration::ZERO
        };
        setup
    }
}

/// Counts of a simulation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    pub steps: u64,
    /// Number of started commands.
    pub holds: u64,
    /// Number of started commands of guards.
    pub guards: u64,
    pub faults: u64,
    /// Digest of all events.
    digest: u64,
}

impl Simulated {
    fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.holds += other.holds;
        self.guards += other.guards;
        self.faults += other.faults;
    }
}

/// Returns the lock "a", with a history of fifty holds.
pub fn lock() -> Lock {
    let name = "a".parse().expect("a name");
    Lock {
        keys: Keys::new("redlock:", &name),
        name,
        history: 50,
    }
}

/// An interpreter of the scripts, and replacements for some of them.
#[derive(Clone, Default)]
pub struct Server {
    pub interpreter: Rc<Interpreter>,
    pub replaced: Replaced,
}

pub type SharedWitness = Rc<RefCell<dyn Witness>>;

/// Lines about the events.
#[derive(Default)]
struct Trace(Vec<String>);

impl Witness for Trace {
    fn sees(&mut self, seen: &Seen) -> Result<(), Broken> {
        self.0.push(format!("{:>12}     {}", "", seen.told()));
        Ok(())
    }
}

struct Simulation {
    world: World,
    dice: Dice,
    mode: Mode,
    kinds: Kinds,
    judge: Rc<RefCell<Judge>>,
    trace: Option<Rc<RefCell<Trace>>>,
    agenda: VecDeque<(Duration, Planned)>,
    /// Number of runs at a time; the other clients are guards.
    runs: usize,
    /// Number of runs and guards so far.
    serial: usize,
    done: Simulated,
    hasher: DefaultHasher,
    idle_since: Option<Duration>,
}

/// An event of the agenda.
#[derive(Clone, Copy, Debug)]
enum Planned {
    Start(usize),
    Guard(usize),
    End(usize),
    Interrupt(usize),
    Resume(usize),
    LetThrough(usize),
    /// A request over a given-up connection arrives.
    Stray,
    Plain,
    Person,
    Fault,
}

/// Number of guards at a time.
const GUARDS: usize = 3;

/// Upper bound on the steps of any simulation, besides one for each millisecond.
const MOST_STEPS: u64 = 10_000;

/// Number of the last steps and calls that a failure shows.
const SHOWN: usize = 200;

/// Longest idle time after faults. The parts are a dead holder's lease (30 s), an unconfirmed grant (5 s) and two heartbeats,
/// all of it twice in a row.
const AFTER_FAULTS: Duration = Duration::from_secs(80);

/// Longest idle time of a lock with undisturbed waiters: a polling waiter asks once a second.
const AT_MOST_IDLE: Duration = Duration::from_millis(1500);

impl Simulation {
    fn new(seed: u64, server: &Server, witness: Option<SharedWitness>, is_traced: bool) -> Self {
        let mut dice = Dice::new(seed, 0);
        let mode = MODES[usize::try_from(seed % 3).expect("small")];
        let kinds = Kinds::draw(&mut dice, mode);
        let runs = dice.pick(&[4, 8, 16]);
        let lock = lock();
        let judge = Rc::new(RefCell::new(Judge::new(lock.keys.clone())));
        let trace = is_traced.then(Rc::<RefCell<Trace>>::default);
        let mut witnesses: Vec<SharedWitness> = Vec::new();
        witnesses.extend(trace.clone().map(|trace| trace as SharedWitness));
        witnesses.extend(witness);
        witnesses.push(Rc::clone(&judge) as SharedWitness);
        let rules = Rules {
            clients: vec![scenarios::run(0); runs + GUARDS],
            lock,
            horizon: Duration::MAX,
            faults: u8::MAX,
            has_plain: kinds.has_plain,
            plain_ttl: dice.pick(&[1, 4]) * SECOND,
            promises: mode.promises(),
            interpreter: Rc::clone(&server.interpreter),
            replaced: server.replaced.clone(),
            witnesses,
            executed: None,
            ..scenarios::rules("simulated", 0)
        };
        let mut simulation = Self {
            world: World::new(&Rc::new(rules)),
            dice,
            mode,
            kinds,
            judge,
            trace,
            agenda: VecDeque::new(),
            runs,
            serial: 0,
            done: Simulated::default(),
            hasher: DefaultHasher::new(),
            idle_since: None,
        };
        for c in 0..runs {
            simulation.come_again(c);
        }
        for guard in runs..runs + GUARDS {
            simulation.plan(20 * SECOND, Planned::Guard(guard));
        }
        for planned in [
            Planned::Plain,
            Planned::Person,
            Planned::Fault,
            Planned::Stray,
        ] {
            simulation.plan(10 * SECOND, planned);
        }
        simulation
    }

    /// Plans an event at a time within this duration.
    fn plan(&mut self, within: Duration, planned: Planned) -> Duration {
        let at = self.world.now + time(&mut self.dice, within);
        let place = self.agenda.partition_point(|(other, _)| *other <= at);
        self.agenda.insert(place, (at, planned));
        at
    }

    fn comes(&mut self, c: usize, setup: Setup) {
        self.world.network.close(c);
        self.world.network.delays[c] = Delay::None;
        self.world.clients[c] = Rc::new(Client::new(c, setup));
        self.judge.borrow_mut().comes(&self.world.clients[c].setup);
    }

    /// Replaces an ended run by another one with other options.
    fn come_again(&mut self, c: usize) {
        self.serial += 1;
        let mut setup = self.kinds.run(&mut self.dice, &scenarios::run(0));
        setup.host = "elsewhere";
        let token = format!("{:032x}:{}:{}", self.serial, setup.host, self.serial);
        let token = Token::read(token.into()).expect("a token");
        setup.claim = Claim::resume(self.world.rules.lock.clone(), token);
        let starts = self.plan(self.kinds.rests, Planned::Start(c));
        let patience = self.dice.pick(&[0, 2, 10, 40, 3600, 3600]) * SECOND;
        setup.limit = Some(Moment::at(BOOT + starts + patience));
        self.comes(c, setup);
        self.world.facts.begins_again(c);
    }

    /// Starts guarded work under the hold of a run, if one has a command.
    fn guard(&mut self, c: usize) -> Result<(), Broken> {
        self.plan(20 * SECOND, Planned::Guard(c));
        let is_guarding = !matches!(self.world.clients[c].stage, Stage::New) && !self.is_over(c);
        let holders: Vec<usize> = (0..self.runs)
            .filter(|&run| self.world.clients[run].has_command)
            .collect();
        if is_guarding || holders.is_empty() {
            return Ok(());
        }
        let run = self.dice.pick(&holders);
        self.serial += 1;
        let mut setup = (*self.world.clients[run].setup).clone();
        let id = format!("{:012x}", self.serial);
        let who = scenarios::who(setup.host);
        let guard = scenarios::guard_with(&id, setup.claim.clone(), &who);
        setup.guards = Some(Guarding { run, guard });
        setup.is_keeper = false;
        self.comes(c, setup);
        self.take(Step::Start(c))
    }

    fn is_over(&self, c: usize) -> bool {
        let client = &self.world.clients[c];
        matches!(client.stage, Stage::Over | Stage::Dead) && !client.has_command
    }

    /// Returns true if guarded work goes on under the hold of a run.
    fn is_guarded(&self, run: usize) -> bool {
        let mut guards = self.runs..self.runs + GUARDS;
        guards.any(|guard| self.world.clients[guard].unit() == run && !self.is_over(guard))
    }

    /// Lets this many minutes pass, and checks the remains after all clients are gone.
    fn run(&mut self, minutes: u32) -> Result<(), Broken> {
        let end = minutes * 60 * SECOND;
        while self.world.now < end {
            self.go_on()?;
        }
        self.look_afterwards()?;
        self.done.digest = self.hasher.finish();
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), Broken> {
        let now = self.world.now;
        if self.agenda.front().is_some_and(|(at, _)| *at <= now) {
            let (_, planned) = self.agenda.pop_front().expect("something");
            return self.act(planned);
        }
        let mut ready = self.world.steps();
        ready.retain(|step| matches!(step, Step::Serve(..) | Step::Receive(_) | Step::Tick(_)));
        if ready.is_empty() {
            let next = self.agenda.front().map(|(at, _)| *at);
            let to = next.into_iter().chain(self.world.next_moment()).min();
            self.world.now = to.expect("the agenda has something").max(now);
            return self.watch_idleness();
        }
        match self.dice.pick(&ready) {
            Step::Serve(c, _) if self.dice.chance(self.kinds.twice) => {
                // The request that says whether messages reach a waiter may then come after others.
                if self.world.clients[c].setup.polls {
                    self.hit(c, false);
                }
                self.take(Step::Repeat(c))
            }
            Step::Serve(c, _) if self.dice.chance(self.kinds.late) => {
                self.hit(c, true);
                self.plan(8 * SECOND, Planned::LetThrough(c));
                self.take(Step::HoldUp(c, Delay::All))
            }
            step => self.take(step),
        }
    }

    fn take(&mut self, step: Step) -> Result<(), Broken> {
        self.does(&step, |world| world.apply(step))
    }

    /// Performs a step, and checks all consequences.
    fn does(
        &mut self,
        what: &dyn Display,
        act: impl FnOnce(&mut World) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let line = format!("{:>12} ms  {what}", self.world.now.as_millis());
        line.hash(&mut self.hasher);
        if let Some(trace) = &self.trace {
            trace.borrow_mut().0.push(line);
        }
        self.done.steps += 1;
        if self.done.steps > MOST_STEPS + u64::try_from(self.world.now.as_millis()).unwrap() {
            return Err(Broken::new(Promise::NothingIsLeft, "steps without an end"));
        }
        let (before, stored) = (self.commands(), Rc::clone(&self.world.nodes[0].stored));
        self.world.faults_left = u8::MAX;
        act(&mut self.world)?;
        let after = self.commands();
        for c in 0..after.len() {
            let client = &self.world.clients[c];
            self.world.facts.excused[c] |= self.judge.borrow_mut().follow(client);
            if after[c] && !before[c] {
                client.fence.hash(&mut self.hasher);
                let is_run = c < self.runs;
                self.done.holds += u64::from(is_run);
                self.done.guards += u64::from(!is_run);
                self.plan(self.kinds.holds, Planned::End(c));
            }
            let is_start = |planned: &Planned| matches!(planned, Planned::Start(of) if *of == c);
            let is_planned = self.agenda.iter().any(|(_, planned)| is_start(planned));
            // A guard knows its run by its number.
            if c < self.runs && self.is_over(c) && !is_planned && !self.is_guarded(c) {
                self.come_again(c);
            }
        }
        if Rc::ptr_eq(&stored, &self.world.nodes[0].stored) && before == after {
            return Ok(());
        }
        let World { clients, nodes, .. } = &self.world;
        let moments = (self.world.now, self.world.server_ms());
        let judge = Rc::clone(&self.judge);
        judge
            .borrow()
            .check_leases(clients, &nodes[0].stored.data, moments)?;
        self.watch_idleness()
    }

    fn commands(&self) -> Vec<bool> {
        let clients = self.world.clients.iter();
        clients.map(|client| client.has_command).collect()
    }

    fn act(&mut self, planned: Planned) -> Result<(), Broken> {
        let is_active = |c: usize| self.world.clients[c].is_active();
        match planned {
            Planned::Start(c) => {
                if let Stage::New = self.world.clients[c].stage {
                    if self.dice.chance(25) {
                        self.plan(40 * SECOND, Planned::Interrupt(c));
                    }
                    return self.take(Step::Start(c));
                }
            }
            Planned::Guard(c) => return self.guard(c),
            Planned::End(c) if self.world.clients[c].has_command => return self.end(c),
            Planned::Interrupt(c) if is_active(c) && self.world.clients[c].waits() => {
                return self.take(Step::Interrupt(c));
            }
            Planned::Resume(c) if self.world.clients[c].is_stopped => {
                return self.take(Step::Resume(c));
            }
            Planned::LetThrough(c) if self.world.network.delays[c] != Delay::None => {
                return self.take(Step::LetThrough(c));
            }
            Planned::Stray => {
                self.plan(4 * SECOND, Planned::Stray);
                let strays = self.world.network.strays.len();
                if strays > 0 {
                    let stray = self.dice.below(strays);
                    return self.take(Step::ServeStray(stray));
                }
            }
            Planned::Plain if self.kinds.has_plain => {
                let holds = matches!(self.world.plain, Plain::Holds(_));
                self.plan(if holds { 20 } else { 3 } * SECOND, Planned::Plain);
                if self.world.plain == Plain::Over {
                    self.world.plain = Plain::New;
                }
                return self.take(Step::Plain);
            }
            Planned::Person => {
                self.plan(self.kinds.people, Planned::Person);
                let (name, call) = self.deed();
                let is_force = call.script.hash == FORCE.hash;
                self.does(&name, |world| world.call(call).map(drop))?;
                // A plain client doesn't notice.
                if is_force && matches!(self.world.plain, Plain::Holds(_)) {
                    self.world.plain = Plain::Over;
                }
            }
            Planned::Fault if self.mode != Mode::Quiet => {
                self.plan(self.kinds.calms, Planned::Fault);
                return self.go_wrong();
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends a command, unless its job first releases the lock or extends the lease.
    fn end(&mut self, c: usize) -> Result<(), Broken> {
        let setup = Rc::clone(&self.world.clients[c].setup);
        let (name, call) = match self.dice.below(10) {
            0 if c < self.runs => ("release", setup.claim.release_call(&ReleaseMode::ByJob)),
            1 if c < self.runs => ("extend", setup.claim.renewal(2 * setup.wish.ttl, true)),
            _ => return self.take(Step::CommandEnds(c)),
        };
        self.plan(SECOND, Planned::End(c));
        let what = format!("the job of run {c} asks to {name}");
        self.does(&what, |world| world.call(call).map(drop))
    }

    /// Draws the deed of a person.
    fn deed(&mut self) -> (&'static str, Call) {
        let lock = self.world.rules.lock.clone();
        let who = scenarios::who("desk").to_json();
        let clients = self.world.clients[..self.runs].iter();
        let running = clients.filter(|client| client.has_command || client.waits());
        let tokens: Vec<&str> = running
            .map(|client| std::str::from_utf8(client.setup.claim.token().as_bytes()).expect("text"))
            .collect();
        let one = match tokens.len() {
            0 => "stranger",
            most => tokens[self.dice.below(most)],
        };
        let force = |id: &str| {
            let args = vec![id.into(), who.clone(), "0".into(), "0".into()];
            lock.call(&FORCE, args)
        };
        match self.dice.below(12) {
            0 => ("a person frees the lock", force("")),
            1 => ("a person frees it from nobody", force("0123456789ab")),
            2 | 3 => ("a person frees it from one run", force(&id(one))),
            4 | 5 => {
                let long = self.dice.between(100, 20_000).to_string();
                let args = vec![long.into(), who];
                ("a person freezes the lock", lock.call(&FREEZE, args))
            }
            6 => ("a person thaws it", lock.call(&THAW, Vec::new())),
            7 | 8 => {
                let args = vec![id(one).into(), who, "0".into()];
                ("a person stops a run", lock.call(&STOP, args))
            }
            9 => {
                let args = vec!["busy".into(), "7".into(), who, Vec::new()];
                ("a run without the lock is noted", lock.call(&SKIP, args))
            }
            10 => {
                let args = vec![one.into(), "10000".into()];
                ("a person checks a lease", lock.call(&CHECK, args))
            }
            _ if self.dice.chance(50) => {
                let args = ["0", "-inf"].map(Into::into).into();
                ("a person looks at it", lock.call(&INSPECT, args))
            }
            _ => (
                "a person reads its history",
                lock.call(&HISTORY, Vec::new()),
            ),
        }
    }

    fn hit(&mut self, c: usize, is_late: bool) {
        self.judge.borrow_mut().hit(&self.world.clients[c], is_late);
    }

    fn go_wrong(&mut self) -> Result<(), Broken> {
        let all = self.world.clients.len();
        let c = self.dice.below(all);
        let is_active = self.world.clients[c].is_active();
        let link = self.world.network.links[c].as_ref();
        let (has_link, is_asking) = (
            link.is_some(),
            link.is_some_and(|link| !link.requests.is_empty()),
        );
        let step = match self.dice.below(16) {
            0 | 1 if is_active => Step::Kill(c),
            2 if is_active => Step::Vanish(c),
            3 | 4 if is_active => {
                self.plan(60 * SECOND, Planned::Resume(c));
                Step::Stop(c)
            }
            5 | 6 if has_link => Step::LoseRequest(c),
            7 if is_asking => Step::LoseAnswer(c),
            8..=10 if is_active => {
                self.plan(20 * SECOND, Planned::LetThrough(c));
                Step::HoldUp(c, self.dice.pick(&[Delay::Answers, Delay::All]))
            }
            // The server stalls for all clients.
            11 | 12 => {
                for c in 0..all {
                    self.plan(5 * SECOND, Planned::LetThrough(c));
                    self.hit(c, true);
                    self.take(Step::HoldUp(c, Delay::All))?;
                }
                self.done.faults += 1;
                return Ok(());
            }
            13 if self.mode == Mode::Lost => Step::Delete(self.dice.below(12)),
            14 if self.mode == Mode::Lost => Step::Restart,
            15 if self.mode == Mode::Lost => {
                self.judge.borrow_mut().is_lost = true;
                // At most an hour away from the clients' clock.
                let ahead = self.world.nodes[0].clock_ahead;
                let to = self
                    .dice
                    .pick(&[-3_600_000, -5000, -500, 0, 500, 5000, 3_600_000]);
                Step::SetClock(to - ahead)
            }
            // No client can have this fault.
            _ => return Ok(()),
        };
        self.hit(c, matches!(step, Step::HoldUp(_, Delay::All)));
        self.done.faults += 1;
        self.take(step)
    }

    fn watch_idleness(&mut self) -> Result<(), Broken> {
        let World {
            clients,
            now,
            nodes,
            ..
        } = &self.world;
        let is_idle = if self.mode == Mode::Quiet {
            let data = &nodes[0].stored.data;
            self.judge.borrow().has_room(data, self.world.server_ms())
        } else {
            let has_plain = matches!(self.world.plain, Plain::Holds(_));
            let is_used = has_plain || clients.iter().any(|client| client.has_command);
            let is_frozen = self.world.facts.is_frozen(self.world.server_ms());
            !is_used && !is_frozen && self.world.someone_waits()
        };
        if !is_idle {
            self.idle_since = None;
            return Ok(());
        }
        let idle = now.saturating_sub(*self.idle_since.get_or_insert(*now));
        // A dead holder's lease of 30 s, an unconfirmed grant (5 s), and two heartbeats, all of it twice in a row.
        let bound = match self.mode {
            Mode::Quiet => AT_MOST_IDLE,
            Mode::Kept => 80 * SECOND,
            Mode::Lost => Duration::MAX,
        };
        if idle > bound {
            let what = format!("nobody has the lock since {:?}", self.idle_since);
            return Err(Broken::new(Promise::Served(bound), what));
        }
        Ok(())
    }

    /// Removes all clients: a day later the lock must be free, and in the end no key must remain.
    fn look_afterwards(&mut self) -> Result<(), Broken> {
        self.judge.borrow_mut().is_lost = true;
        self.world.facts.lost_data = true;
        self.world.now += Duration::from_secs(29 * 3_600);
        let token = Token::read(b"visitor".to_vec()).expect("a token");
        let claim = Claim::resume(self.world.rules.lock.clone(), token);
        let acquire = claim.acquire_call(&scenarios::run(0).wish, None, ServerTraits::default());
        let release = claim.release_call(&ReleaseMode::Finished {
            outcome: HoldOutcome::Status(0),
            keep_for: Duration::ZERO,
        });
        let mut codes = Vec::new();
        for call in [acquire, release] {
            codes.push(format!(
                "{:?}",
                self.world
                    .execute(0, &super::network::Asked::new(call), None)?
                    .answer
            ));
        }
        let is_free = codes.iter().all(|code| code.starts_with("array([int(1)"));
        let keys = self.world.rules.lock.keys.clone();
        let remembered = [
            keys.of("state"),
            keys.of("history"),
            keys.of("skips"),
            keys.index.clone(),
        ];
        let left = |world: &World| -> Vec<Vec<u8>> {
            let (now, data) = (world.server_ms(), &world.nodes[0].stored.data);
            let keys = data.entries().map(|(key, _)| key.to_vec());
            keys.filter(|key| data.get(now, key).is_some()).collect()
        };
        let is_memory = left(&self.world)
            .iter()
            .all(|key| remembered.contains(key) || is_notice(key, &keys));
        self.world.now += Duration::from_secs(62 * 24 * 3_600);
        if !is_free || !is_memory || !left(&self.world).is_empty() {
            let what = format!("afterwards a run is answered {codes:?}, or keys are left");
            return Err(Broken::new(Promise::NothingIsLeft, what));
        }
        Ok(())
    }
}

/// Simulates a seed for this many minutes.
pub fn simulate(
    seed: u64,
    minutes: u32,
    server: &Server,
    witness: Option<SharedWitness>,
) -> Result<Simulated, Broken> {
    let mut simulation = Simulation::new(seed, server, witness, false);
    simulation.run(minutes)?;
    Ok(simulation.done)
}

/// Repeats a seed. Returns its last steps and calls.
fn report(seed: u64, minutes: u32, broken: &Broken) -> String {
    let mut simulation = Simulation::new(seed, &Server::default(), None, true);
    let _ = simulation.run(minutes);
    let trace = simulation.trace.expect("a trace").take().0;
    let last = &trace[trace.len().saturating_sub(SHOWN)..];
    let mode = simulation.mode;
    format!("seed {seed}, {mode:?}: {broken}\n{}", last.join("\n"))
}

/// Default length of a seed, in minutes of virtual time.
pub const MINUTES: u32 = 1;

/// Returns the promise that changed scripts break, with the first of these seeds that shows it.
pub fn broken_with(
    change: impl Fn(&'static str, &'static str) -> &'static str,
    mut seeds: impl Iterator<Item = u64>,
) -> Option<Promise> {
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
    seeds.find_map(|seed| {
        let run = || simulate(seed, MINUTES, &server, None);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(run) => Some(run.err()?.promise),
            Err(_) => Some(Promise::AnswersAreRead),
        }
    })
}

/// Default number of seeds, in memory and beside a real server.
const SEEDS: u64 = 12;
const BESIDE: u64 = 4;

#[test]
fn simulations_keep_the_promises_and_a_seed_replays_to_the_byte() {
    let first = asked("SIMULATE_SEED").unwrap_or(1);
    let seeds: Option<u64> = asked("SIMULATE_SEEDS");
    let minutes = asked("SIMULATE_MINUTES").unwrap_or(MINUTES);
    thread_local!(static OWN: Server = Server::default());
    // Without SIMULATE_SEEDS, other tests run at the same time.
    let threads = seeds.map_or(1, |_| cores());
    let seeds = seeds.unwrap_or(SEEDS);
    let results = on_threads(threads, usize::try_from(seeds).unwrap(), |number| {
        let seed = first + number as u64;
        let run = OWN.with(|server| simulate(seed, minutes, server, None));
        run.map_err(|broken| report(seed, minutes, &broken))
    });
    let mut all = Simulated::default();
    let mut failed = Vec::new();
    for result in &results {
        match result {
            Ok(done) => all.add(done),
            Err(report) => failed.push(report.as_str()),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    let again = simulate(first, minutes, &Server::default(), None).expect("as before");
    assert_eq!(Ok(&again), results[0].as_ref());
    let line = format!("{seeds} seeds from {first} on, of {minutes} minutes: {all:?}");
    writeln!(std::io::stderr(), "{line}").expect("stderr");
    // A simulation without events finds nothing.
    let minutes = seeds * u64::from(minutes);
    assert!(all.holds > minutes && all.guards > minutes / 10, "{line}");
}

#[test]
fn a_real_server_does_the_same_in_simulated_time() {
    let (seconds, seed) = (asked("SIMULATE_SECONDS"), asked("SIMULATE_SEED"));
    let first = seed.unwrap_or(1);
    let began = Instant::now();
    let real = Rc::new(RefCell::new(Real::start()));
    let mut all = Simulated::default();
    for seed in first.. {
        let is_over = match seconds {
            Some(seconds) => began.elapsed() >= Duration::from_secs(seconds),
            None => seed >= first + BESIDE,
        };
        if is_over {
            break;
        }
        real.borrow_mut().clear();
        let witness = Rc::clone(&real) as SharedWitness;
        match simulate(seed, MINUTES, &Server::default(), Some(witness)) {
            Ok(done) => all.add(&done),
            Err(broken) => panic!("{}", report(seed, MINUTES, &broken)),
        }
    }
    writeln!(
        std::io::stderr(),
        "beside a server, from {first} on: {all:?}"
    )
    .expect("stderr");
    assert!(all.holds > 100, "{all:?}");
}

/// Mistakes that break a promise in a simulation: the first seed that shows it, the promise, a part of a script, and the mistake.
const MISTAKES: &str = "\
2 OnceHolds: how == 'status:0' | string.find(how, '^status:')
2 OnceHolds: 'succeeded', int_text(now_ms) | 'succeeded', int_text(now_ms - 1000)
2 OnceHolds: how == 'status:0' | how == 'status:'
1 GuardsHold: if is_kept and not insist then return {2} end | local _ = 1
1 GuardsHold: if notice('over', guard) then return {2} end | local _ = 1
1 LeaseIsHeld: or guarded_for(token, entry) > 0 then return {1} end | then return {1} end
1 AnswersAreRead: value == token then return true end | value ~= token then return true end
2 FreezeHolds: if frozen > 0 and not ignores_freezes(who) then return nil end | local _ = 1
1 AdmittedAtOnce: count + 1 > smallest - LIMITS | count + 1 >= smallest - LIMITS
12 AnswersAreTrue: redis.call('UNLINK', lock, meta) | local _ = 1
21 LeaseIsHeld: redis.call('PEXPIRE', lock, ttl) | local _ = 1
1 FenceGrows: if fence <= last then fence = last + 1 end | local _ = 1";

#[test]
fn a_mistake_in_a_script_breaks_a_promise_that_a_simulation_sees() {
    for line in MISTAKES.lines() {
        let (seed, line) = line.split_once(' ').expect("a seed");
        let seed: u64 = seed.parse().expect("a number");
        let (promise, change) = line.split_once(": ").expect("a promise");
        let (part, mistake) = change.split_once(" | ").expect("a mistake");
        let is_there = SCRIPTS.iter().any(|(_, source)| source.contains(part));
        assert!(is_there, "{part} is in no script");
        // Another simulation may need other seeds.
        let seeds = once(seed).chain(1..=120);
        let broken = broken_with(|_, source| source.replace(part, mistake).leak(), seeds);
        let broken = broken.map(|promise| format!("{promise:?}"));
        assert_eq!(broken.as_deref(), Some(promise), "{line}");
    }
}

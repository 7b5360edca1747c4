//! Long simulations in virtual time: holders and waiters that come and go for hours, while processes are killed and
//! stopped, connections break, the server stalls, restarts, loses its data, and has its clock set. All of it is drawn
//! from a seed: the same seed does the same, to the byte.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use super::client::{Client, Guarding, Stage};
use super::network::Delay;
use super::promises::{Broken, Promise};
use super::scenarios::{self, HOSTS};
use super::support::{Dice, asked};
use super::world::{Plain, Replaced, Step, World};
use crate::protocol::{Claim, Guard, Limit, Supersede, Token};

const SECOND: Duration = Duration::from_secs(1);

/// A time up to `most`; short ones are likelier.
fn time(dice: &mut Dice, most: Duration) -> Duration {
    let mut share = || u32::try_from(dice.below(1000)).expect("small");
    most * share() / 1000 * share() / 1000 + Duration::from_millis(1)
}

/// What may happen, besides the usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is lost, and no clock is set.
    Kept,
    /// Keys are deleted, the server restarts empty, its clock is set.
    Lost,
}

/// How a simulation went.
#[derive(Debug, Default)]
pub struct Simulated {
    pub steps: u64,
    /// Commands that were started.
    pub holds: u64,
    /// And those of guards.
    pub guards: u64,
    pub faults: u64,
    /// The longest time that a lock was free, or held by nobody alive, while somebody waited.
    pub longest_idle: Duration,
    /// A number for all that happened.
    pub digest: u64,
}

pub struct Simulation {
    world: World,
    dice: Dice,
    mode: Mode,
    agenda: VecDeque<(Duration, Planned)>,
    /// How many runs there were.
    runs: usize,
    last: VecDeque<String>,
    done: Simulated,
    hasher: DefaultHasher,
    idle_since: Option<Duration>,
}

/// What is to happen at a time.
#[derive(Clone, Copy, Debug)]
enum Planned {
    Start(usize),
    Guard(usize),
    End(usize),
    Interrupt(usize),
    Resume(usize),
    LetThrough(usize),
    Plain,
    Person,
    Fault,
}

/// How many runs there are at a time.
const RUNS: usize = 4;

/// Who works elsewhere under the holds of these.
const GUARDS: [usize; 2] = [RUNS, RUNS + 1];

const ALL: usize = RUNS + GUARDS.len();

/// How many of the last steps a failure shows.
const SHOWN: usize = 120;

impl Simulation {
    pub fn new(seed: u64, mode: Mode, replaced: Replaced) -> Self {
        let mut rules = scenarios::rules("simulated", ALL);
        rules.replaced = replaced;
        rules.deeds = scenarios::freeze_and_thaw(20 * SECOND);
        rules.horizon = Duration::MAX;
        rules.faults = u8::MAX;
        rules.promises = match mode {
            Mode::Kept => vec![
                Promise::OneLease,
                Promise::EndsWithLease,
                Promise::FenceGrows,
                Promise::FreezeHolds,
                Promise::SupersedeHolds,
                Promise::OnceHolds,
            ],
            Mode::Lost => vec![Promise::EndsWithLease],
        };
        let world = World::new(&Rc::new(rules));
        let mut simulation = Self {
            world,
            dice: Dice::new(seed, 0),
            mode,
            agenda: VecDeque::new(),
            runs: 0,
            last: VecDeque::new(),
            done: Simulated::default(),
            hasher: DefaultHasher::new(),
            idle_since: None,
        };
        for c in 0..RUNS {
            simulation.come_again(c);
        }
        for guard in GUARDS {
            simulation.plan(20 * SECOND, Planned::Guard(guard));
        }
        simulation.plan(10 * SECOND, Planned::Plain);
        simulation.plan(60 * SECOND, Planned::Person);
        simulation.plan(20 * SECOND, Planned::Fault);
        simulation
    }

    /// Plans something for some time from now.
    fn plan(&mut self, within: Duration, planned: Planned) {
        let at = self.world.now + time(&mut self.dice, within);
        let place = self.agenda.partition_point(|(other, _)| *other <= at);
        self.agenda.insert(place, (at, planned));
    }

    /// A run that is over is followed by another one, with other options.
    fn come_again(&mut self, c: usize) {
        self.runs += 1;
        let mut setup = (*self.world.clients[c].setup).clone();
        let token = format!("{:032x}:{}:{}", self.runs, setup.host, self.runs);
        let token = Token::read(token.into()).expect("a token");
        setup.claim = Claim::resume(self.world.rules.lock.clone(), token);
        let ttl = self.dice.pick(&[1, 3, 10, 30]) * SECOND;
        setup.wish.ttl = ttl;
        setup.terms.ttl = ttl;
        setup.terms.kill_after = self.dice.pick(&[0, 500, 5000]) * SECOND / 1000;
        setup.wish.limit = match self.dice.below(10) {
            0 | 1 => Limit::SHARED,
            2 => Limit::slots(2),
            _ => Limit::EXCLUSIVE,
        };
        setup.wish.queue.supersede = if self.dice.below(12) == 0 {
            Supersede::Waiters
        } else {
            Supersede::Nobody
        };
        let is_once = setup.wish.limit == Limit::EXCLUSIVE && self.dice.below(6) == 0;
        setup.wish.once_per = if is_once { 60 * SECOND } else { Duration::ZERO };
        setup.is_keeper = self.dice.below(4) == 0;
        setup.starts_on_grant = !is_once && !setup.is_keeper;
        self.world.network.close(c);
        self.world.network.delays[c] = Delay::None;
        self.world.clients[c] = Rc::new(Client::new(c, setup));
        self.world.facts.begins_again(c);
        self.plan(30 * SECOND, Planned::Start(c));
    }

    /// Work elsewhere begins under the hold of a run, if one has a command.
    fn guard(&mut self, c: usize) -> Result<(), Broken> {
        self.plan(30 * SECOND, Planned::Guard(c));
        let is_guarding = !matches!(self.world.clients[c].stage, Stage::New) && !self.is_over(c);
        let holders: Vec<usize> = (0..RUNS)
            .filter(|&run| self.world.clients[run].has_command)
            .collect();
        if is_guarding || holders.is_empty() {
            return Ok(());
        }
        let run = self.dice.pick(&holders);
        self.runs += 1;
        let mut setup = (*self.world.clients[run].setup).clone();
        let id = format!("{:012x}", self.runs);
        let guard = Guard::of(setup.claim.clone(), &id, &scenarios::who(HOSTS[c]));
        setup.guards = Some(Guarding { run, guard });
        setup.host = HOSTS[c];
        setup.is_keeper = false;
        self.world.network.close(c);
        self.world.network.delays[c] = Delay::None;
        self.world.clients[c] = Rc::new(Client::new(c, setup));
        self.take(Step::Start(c))
    }

    fn is_over(&self, c: usize) -> bool {
        let client = &self.world.clients[c];
        matches!(client.stage, Stage::Over | Stage::Dead) && !client.has_command
    }

    /// Whether work elsewhere goes on under the hold of a run.
    fn is_guarded(&self, run: usize) -> bool {
        let mut guards = GUARDS.into_iter();
        guards.any(|guard| self.world.clients[guard].unit() == run && !self.is_over(guard))
    }

    /// Lets so many minutes pass.
    ///
    /// # Errors
    /// What was broken, and the last steps before it.
    pub fn run(mut self, minutes: u32) -> Result<Simulated, String> {
        let end = minutes * 60 * SECOND;
        while self.world.now < end {
            if let Err(broken) = self.go_on() {
                let last: Vec<String> = self.last.into();
                return Err(format!("{broken}\n{}", last.join("\n")));
            }
        }
        self.done.digest = self.hasher.finish();
        Ok(self.done)
    }

    fn go_on(&mut self) -> Result<(), Broken> {
        let now = self.world.now;
        if self.agenda.front().is_some_and(|(at, _)| *at <= now) {
            let (_, planned) = self.agenda.pop_front().expect("something");
            return self.act(planned);
        }
        let ready: Vec<Step> = self
            .world
            .steps()
            .into_iter()
            .filter(|step| match step {
                Step::Serve(..) | Step::Receive(_) | Step::Tick(_) => true,
                Step::ServeStray(_) => self.world.network.strays.len() > 4,
                _ => false,
            })
            .collect();
        if !ready.is_empty() {
            let step = self.dice.pick(&ready);
            return self.take(step);
        }
        let next = self.agenda.front().map(|(at, _)| *at);
        let to = next.into_iter().chain(self.world.next_moment()).min();
        self.world.now = to.expect("the agenda has something").max(now);
        self.watch_idleness();
        Ok(())
    }

    fn take(&mut self, step: Step) -> Result<(), Broken> {
        let line = format!("{:>12} ms  {step}", self.world.now.as_millis());
        line.hash(&mut self.hasher);
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back(line);
        self.done.steps += 1;
        let before: Vec<bool> = self.commands();
        self.world.faults_left = u8::MAX;
        self.world.apply(step)?;
        let after = self.commands();
        for c in 0..ALL {
            if after[c] && !before[c] {
                self.done.holds += u64::from(c < RUNS);
                self.done.guards += u64::from(c >= RUNS);
                let fence = self.world.clients[c].fence;
                fence.hash(&mut self.hasher);
                self.plan(60 * SECOND, Planned::End(c));
            }
            let is_planned = self
                .agenda
                .iter()
                .any(|(_, planned)| matches!(planned, Planned::Start(of) if *of == c));
            // What guards it is told from another run by its number.
            if c < RUNS && self.is_over(c) && !is_planned && !self.is_guarded(c) {
                self.come_again(c);
            }
        }
        self.watch_idleness();
        Ok(())
    }

    fn commands(&self) -> Vec<bool> {
        let clients = self.world.clients.iter();
        clients.map(|client| client.has_command).collect()
    }

    fn act(&mut self, planned: Planned) -> Result<(), Broken> {
        match planned {
            Planned::Start(c) => {
                if let Stage::New = self.world.clients[c].stage {
                    if self.dice.below(4) == 0 {
                        self.plan(40 * SECOND, Planned::Interrupt(c));
                    }
                    return self.take(Step::Start(c));
                }
            }
            Planned::Guard(c) => return self.guard(c),
            Planned::End(c) => {
                if self.world.clients[c].has_command {
                    return self.take(Step::CommandEnds(c));
                }
            }
            Planned::Interrupt(c) => {
                if self.world.clients[c].is_active() && self.world.clients[c].waits() {
                    return self.take(Step::Interrupt(c));
                }
            }
            Planned::Resume(c) => {
                if self.world.clients[c].is_stopped {
                    return self.take(Step::Resume(c));
                }
            }
            Planned::LetThrough(c) => {
                if self.world.network.delays[c] != Delay::None {
                    return self.take(Step::LetThrough(c));
                }
            }
            Planned::Plain => {
                let holds = matches!(self.world.plain, Plain::Holds(_));
                self.plan(if holds { 60 } else { 3 } * SECOND, Planned::Plain);
                if self.world.plain == Plain::Over {
                    self.world.plain = Plain::New;
                }
                return self.take(Step::Plain);
            }
            Planned::Person => {
                self.plan(600 * SECOND, Planned::Person);
                let deed = self.dice.below(self.world.rules.deeds.len());
                return self.take(Step::Deed(deed));
            }
            Planned::Fault => {
                self.plan(60 * SECOND, Planned::Fault);
                return self.go_wrong();
            }
        }
        Ok(())
    }

    fn go_wrong(&mut self) -> Result<(), Broken> {
        let c = self.dice.below(ALL);
        let is_active = self.world.clients[c].is_active();
        let has_link = self.world.network.links[c].is_some();
        let is_asking = self.world.network.links[c]
            .as_ref()
            .is_some_and(|link| !link.requests.is_empty());
        let taken = match self.dice.below(16) {
            0 | 1 if is_active => self.take(Step::Kill(c)),
            2 if is_active => self.take(Step::Vanish(c)),
            3 | 4 if is_active => {
                self.plan(60 * SECOND, Planned::Resume(c));
                self.take(Step::Stop(c))
            }
            5 | 6 if has_link => self.take(Step::LoseRequest(c)),
            7 if is_asking => self.take(Step::LoseAnswer(c)),
            8 if is_asking => self.take(Step::Repeat(c)),
            9 | 10 if is_active => {
                let delay = self.dice.pick(&[Delay::Answers, Delay::All]);
                self.plan(20 * SECOND, Planned::LetThrough(c));
                self.take(Step::HoldUp(c, delay))
            }
            // The server stands still: for all.
            11 | 12 => {
                for c in 0..ALL {
                    self.plan(5 * SECOND, Planned::LetThrough(c));
                    self.take(Step::HoldUp(c, Delay::All))?;
                }
                Ok(())
            }
            13 if self.mode == Mode::Lost => {
                let key = self.dice.below(7);
                self.take(Step::Delete(key))
            }
            14 if self.mode == Mode::Lost => self.take(Step::Restart),
            15 if self.mode == Mode::Lost => {
                let by = self.dice.pick(&[-3_600_000, -5000, 5000, 3_600_000]);
                self.take(Step::SetClock(by))
            }
            // Nothing is there that this could happen to.
            _ => return Ok(()),
        };
        self.done.faults += 1;
        taken
    }

    fn watch_idleness(&mut self) {
        let waits = self.world.someone_waits();
        let clients = &self.world.clients;
        let is_used = clients.iter().any(|client| client.has_command)
            || matches!(self.world.plain, Plain::Holds(_));
        if is_used || !waits || self.world.facts.is_frozen(self.world.server_ms()) {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(self.world.now);
        self.done.longest_idle = self
            .done
            .longest_idle
            .max(self.world.now.saturating_sub(since));
    }
}

#[test]
fn simulations_keep_the_promises_and_a_seed_replays_to_the_byte() {
    let first = asked("SIMULATE_SEED").unwrap_or(1);
    let seeds = asked("SIMULATE_SEEDS").unwrap_or(2);
    let minutes = asked("SIMULATE_MINUTES").unwrap_or(10);
    for mode in [Mode::Kept, Mode::Lost] {
        let mut all = Simulated::default();
        for seed in first..first + seeds {
            let simulated = Simulation::new(seed, mode, Vec::new()).run(minutes);
            let done = simulated.unwrap_or_else(|broken| panic!("seed {seed}, {mode:?}: {broken}"));
            if seed == first {
                let again = Simulation::new(seed, mode, Vec::new())
                    .run(minutes)
                    .expect("the same");
                assert_eq!((done.steps, done.digest), (again.steps, again.digest));
            }
            all.steps += done.steps;
            all.holds += done.holds;
            all.guards += done.guards;
            all.faults += done.faults;
            all.longest_idle = all.longest_idle.max(done.longest_idle);
        }
        let hours = seeds * u64::from(minutes) / 60;
        let line = format!(
            "{mode:?}: {hours} virtual hours, {} steps, {} holds, {} guards, {} faults; nobody had a lock that was waited for during at most {:.1} s",
            all.steps,
            all.holds,
            all.guards,
            all.faults,
            all.longest_idle.as_secs_f64()
        );
        writeln!(std::io::stderr(), "{line}").expect("stderr");
        // A dead holder's lease of 30 s, a grant that nobody takes (5 s), and two heartbeats; twice, as that may follow each other.
        let bound = 80 * SECOND;
        assert!(mode == Mode::Lost || all.longest_idle < bound, "{line}");
        // A simulation in which nothing happens finds nothing.
        assert!(all.holds > seeds * u64::from(minutes) / 2, "{line}");
        assert!(all.guards > seeds * u64::from(minutes) / 10, "{line}");
    }
}

//! One run of a plan in the model's world: shipped clients, and others that know of nothing but the key, on a network that
//! delays, loses and repeats. Times are in microseconds since the run began.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use redis::Value;

use super::plan::{self, Plan, What, ms};
use super::promises::{Act, Broken, Promises, Step};
use super::scripts::{self, Answer};
use super::view::{Key, View, text};
use crate::clock::Moment;
use crate::protocol::claim::Needs;
use crate::protocol::model::client::{Client, Stage};
use crate::protocol::model::fake::name_of;
use crate::protocol::model::network::Asked;
use crate::protocol::model::redis::{self as server, Bytes, Data, Interpreter};
use crate::protocol::model::scenarios;
use crate::protocol::model::support::Dice;
use crate::protocol::model::support::lua::id;
use crate::protocol::model::world::{BOOT, Replaced, Rules, World};
use crate::protocol::name::Keys;
use crate::protocol::scripts::{CHECK, FORCE, FREEZE, HISTORY, INSPECT, SKIP, STOP, Script, THAW};
use crate::protocol::{Acquired, Claim, HoldOutcome, Lock, ReleaseMode, Token};
use crate::redis::call::Call;

const MS: i64 = 1_000;
const SECOND: i64 = 1_000_000;

/// More than any run does that comes to its end.
const MOST_STEPS: u64 = 50_000;

/// A command of a client that knows of no script of ours.
static PLAIN: Script = of_others("return redis.call(unpack(ARGV))");

/// As such clients release a lock.
static PLAIN_RELEASE: Script = of_others(
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0",
);

/// What isn't shipped has no hash.
const fn of_others(source: &'static str) -> Script {
    Script {
        source,
        hash: "",
        counts_when_replicated: false,
        may_arrive_late: false,
    }
}

/// How a run went that kept all promises.
#[derive(Default)]
pub struct Done {
    /// How many scripts and commands the server has run.
    pub steps: u64,
    /// How many clients have held the lock.
    pub held: usize,
}

/// How a run went that broke one.
pub struct Failure {
    pub broken: Broken,
    pub trace: Vec<String>,
}

/// A call, and all that came of it.
pub struct Seen<'a> {
    pub moment: &'a server::Moment,
    pub call: &'a Call,
    pub before: &'a Data,
    pub after: &'a Data,
    pub answer: &'a Value,
    /// The messages that somebody heard, with their channels.
    pub heard: Vec<&'a (Bytes, Bytes)>,
}

impl Seen<'_> {
    pub fn told(&self) -> String {
        let name = name_of(self.call.script).unwrap_or("command");
        let words: Vec<String> = self.call.args.iter().map(|word| text(word)).collect();
        format!("{name} {words:?}")
    }
}

/// Looks at all that the server does.
pub trait Witness {
    /// Another run begins, on an empty server.
    fn begins(&mut self) {}
    fn sees(&mut self, _: &Seen) {}
}

impl Witness for () {}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    New,
    Waits,
    Holds,
    Leaves,
    Gone,
}

/// A lease as its holder counts it.
#[derive(Clone, Copy, Debug)]
pub struct Belief {
    pub until: i64,
    pub slot: i64,
    /// When the request was sent that gave or confirmed it.
    pub since: i64,
}

/// What is known of a client from outside.
#[derive(Default)]
pub struct Known {
    pub plan: plan::Client,
    dice: Dice,
    pub phase: Phase,
    pub belief: Option<Belief>,
    /// What was done until then says nothing about its lease any more.
    pub tainted: i64,
    /// The longest lease that it has asked for, in milliseconds.
    pub asked_most: i64,
    /// When it last asked for something.
    asked: i64,
    /// Those of its requests that are under way.
    sent: Vec<Rc<Asked>>,
    /// When it looks at the clock.
    due: Option<Moment>,
    /// Something is about to reach it.
    is_reached: bool,
    /// Its job has released the lock.
    has_returned: bool,
    stands_until: i64,
    ever_held: bool,
}

impl Known {
    fn new(plan: plan::Client) -> Self {
        Self {
            dice: Dice::new(plan.seed, 1),
            tainted: -1,
            asked_most: plan.wish.ttl,
            plan,
            ..Self::default()
        }
    }

    pub fn token(&self) -> &str {
        &self.plan.wish.token
    }

    /// The token of the hold under which its command works.
    pub fn hold(&self) -> &str {
        self.plan.guards.as_deref().unwrap_or(self.token())
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    is_repeated: bool,
    loses_answer: bool,
    breaks: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Comes(usize),
    /// It looks at the clock; void if it looks at another time by now.
    Due(usize, Moment),
    Arrives(usize, Rc<Asked>, Fate),
    /// What is sent to it first reaches it.
    Reaches(usize),
    CommandEnds(usize),
    /// Its job asks for something, over a connection of its own.
    Job(usize, Rc<Asked>),
    Crash(usize),
    Stop(usize),
    Resume(usize),
    Deed(usize),
}

pub struct Run<'a> {
    witness: &'a mut dyn Witness,
    plan: &'a Plan,
    world: World,
    agenda: BTreeMap<(i64, u64), Event>,
    serial: u64,
    step: u64,
    clients: Vec<Known>,
    promises: Promises,
    view: View,
    trace: Option<Vec<String>>,
}

/// The lock "a", of whose holds fifty are remembered.
pub fn lock() -> Lock {
    let name = "a".parse().expect("a name");
    Lock {
        keys: Keys::new("redlock:", &name),
        name,
        history: 50,
    }
}

/// What runs the scripts, and what it runs in place of them.
#[derive(Clone, Default)]
pub struct Server {
    pub interpreter: Rc<Interpreter>,
    pub replaced: Replaced,
}

impl<'a> Run<'a> {
    pub fn of(
        plan: &'a Plan,
        server: &Server,
        witness: &'a mut dyn Witness,
        is_traced: bool,
    ) -> Result<Done, Failure> {
        witness.begins();
        let lock = lock();
        let tokens = || plan.clients.iter().map(|client| &client.wish.token);
        let run = |client: &plan::Client| {
            let is_it = |token: &String| client.guards.as_ref() == Some(token);
            tokens().position(is_it).unwrap_or(usize::MAX)
        };
        let clients = plan.clients.iter();
        let setups = clients.map(|client| client.setup(&lock, run(client)));
        let rules = Rules {
            clients: setups.collect(),
            lock,
            promises: Vec::new(),
            horizon: Duration::MAX,
            interpreter: Rc::clone(&server.interpreter),
            replaced: server.replaced.clone(),
            ..scenarios::rules("fuzz", 0)
        };
        let mut run = Run {
            witness,
            plan,
            world: World::new(&Rc::new(rules)),
            agenda: BTreeMap::new(),
            serial: 0,
            step: 0,
            clients: plan.clients.iter().cloned().map(Known::new).collect(),
            promises: Promises::new(plan),
            view: View::default(),
            trace: is_traced.then(Vec::new),
        };
        match run.until_all_is_over() {
            Ok(()) => Ok(Done {
                steps: run.step,
                held: run.clients.iter().filter(|c| c.ever_held).count(),
            }),
            Err(broken) => Err(Failure {
                broken,
                trace: run.trace.unwrap_or_default(),
            }),
        }
    }

    fn until_all_is_over(&mut self) -> Result<(), Broken> {
        for n in 0..self.clients.len() {
            if self.clients[n].plan.guards.is_none() {
                self.comes_after(n, 0);
            }
        }
        for (n, deed) in self.plan.deeds.iter().enumerate() {
            self.at(deed.at * MS, Event::Deed(n));
        }
        while let Some(((at, _), event)) = self.agenda.pop_first() {
            self.world.now = self.world.now.max(Duration::from_micros(at.unsigned_abs()));
            self.happen(event)?;
            let (now, is_frozen) = (self.now(), self.view.is_frozen());
            self.promises
                .believed(now, &self.view, is_frozen, &self.clients)?;
            self.look_for_outlived()?;
        }
        self.afterwards()
    }

    /// A client comes, so long after this moment as its plan says.
    fn comes_after(&mut self, n: usize, moment: i64) {
        let plan = &self.clients[n].plan;
        let (comes, manners) = (moment + plan.comes * MS, plan.manners.clone());
        self.at(comes, Event::Comes(n));
        if let Some(after) = manners.crashes {
            self.at(comes + after * MS, Event::Crash(n));
        }
        if let Some((after, _)) = manners.stops {
            self.at(comes + after * MS, Event::Stop(n));
        }
    }

    /// A command is dead when its lease ends, unless its redlock is stopped, or a few calls later.
    fn look_for_outlived(&self) -> Result<(), Broken> {
        let now = self.world.moment().before(Duration::from_millis(5));
        let is_late = |client: &&Rc<Client>| {
            let lease = client.dead_by().filter(|_| client.has_command);
            client.is_active() && lease.is_some_and(|end| end < now)
        };
        match self.world.clients.iter().find(is_late) {
            Some(client) => Err(Broken::new(
                "P1: a command ends with its lease",
                format!("that of c{} runs on", client.number),
            )),
            None => Ok(()),
        }
    }

    /// Everybody is gone; in the end nothing of them is left.
    fn afterwards(&mut self) -> Result<(), Broken> {
        self.world.now += Duration::from_secs(27 * 3_600);
        let token = Token::read(b"visitor".to_vec()).expect("a token");
        let claim = Claim::resume(lock(), token);
        let request = scenarios::run(0).wish;
        let call = claim.acquire_call(&request, None, Needs::default());
        let answer = self
            .execute("visitor", Act::Visit, &Asked::new(call), None)?
            .0;
        if !matches!(answer, Answer::Acquired(Acquired::Held { .. })) {
            let detail = format!("a day later it answers {answer:?}");
            return Err(Broken::new("P5: a lock that nobody uses is free", detail));
        }
        let mode = ReleaseMode::Finished {
            outcome: HoldOutcome::Status(0),
            keep_for: Duration::ZERO,
        };
        let call = claim.release_call(&mode);
        self.execute("visitor", Act::Visit, &Asked::new(call), None)?;
        let remembered = [Key::State, Key::History, Key::Index];
        let is_left = |key: &&Key| !remembered.contains(key);
        if let Some(key) = self.view.keys.keys().find(is_left) {
            let detail = format!("{} is left after the last release", key.name());
            return Err(Broken::new("afterwards nothing but memory is left", detail));
        }
        self.world.now += Duration::from_secs(62 * 24 * 3_600);
        let (now, data) = (self.world.server_ms(), &self.world.nodes[0].stored.data);
        let left = data.entries().map(|(key, _)| key);
        let left: Vec<String> = left
            .filter(|key| data.get(now, key).is_some())
            .map(text)
            .collect();
        if !left.is_empty() {
            let detail = format!("after two months there are {left:?}");
            return Err(Broken::new("afterwards nothing but memory is left", detail));
        }
        Ok(())
    }

    fn now(&self) -> i64 {
        i64::try_from(self.world.now.as_micros()).expect("a time that fits")
    }

    fn at(&mut self, at: i64, event: Event) {
        self.serial += 1;
        self.agenda.insert((at.max(self.now()), self.serial), event);
    }

    /// Writes a line of the trace, if it is wanted.
    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    /// The same, of a client.
    fn note_of(&mut self, n: usize, what: &str) {
        let stamp = stamp(self.now());
        self.note(|| format!("{stamp} c{n} {what}"));
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        let moment = self.world.moment();
        let World {
            clients, network, ..
        } = &mut self.world;
        match event {
            Event::Comes(n) if self.clients[n].plan.plain => return self.plain_goes_on(n),
            Event::Comes(n) => {
                clients[n].changed().start(moment, network);
                self.follow(n);
            }
            Event::Due(n, at) => {
                if self.clients[n].due == Some(at) {
                    self.clients[n].due = None;
                    clients[n].changed().tick(moment, network);
                    self.follow(n);
                }
            }
            Event::Arrives(n, asked, fate) => self.arrives(n, &asked, fate)?,
            Event::Reaches(n) => {
                self.clients[n].is_reached = false;
                if clients[n].is_active()
                    && let Some(link) = network.link(n)
                    && let Some(incoming) = link.incoming.pop_front()
                {
                    clients[n].changed().receive(incoming.what, moment, network);
                    self.follow(n);
                }
            }
            Event::CommandEnds(n) => {
                if clients[n].has_command {
                    clients[n].changed().command_ends(moment, network);
                    self.follow(n);
                }
            }
            Event::Job(n, asked) => {
                if clients[n].has_command {
                    let act = scripts::act(n, &asked.call);
                    // It doesn't count on the lock any more.
                    self.clients[n].has_returned |= matches!(act, Act::Release { .. });
                    self.follow(n);
                    self.execute(&format!("the job of c{n}"), act, &asked, None)?;
                }
            }
            Event::Crash(n) => {
                let was_alive = clients[n].is_alive();
                clients[n].changed().die();
                network.close(n);
                self.follow(n);
                if was_alive {
                    self.note_of(n, "crashes");
                }
            }
            Event::Stop(n) => {
                let (_, long) = self.clients[n].plan.manners.stops.unwrap_or_default();
                clients[n].changed().is_stopped = true;
                self.clients[n].stands_until = self.now() + long * MS;
                self.at(self.clients[n].stands_until, Event::Resume(n));
                self.note_of(n, &format!("stands still for {long} ms"));
            }
            Event::Resume(n) if self.clients[n].plan.plain => {}
            Event::Resume(n) => {
                clients[n].changed().resume(moment, network);
                self.follow(n);
            }
            Event::Deed(n) => self.deed(self.plan.deeds[n].what)?,
        }
        Ok(())
    }

    /// A client has done something: what it sends, gets, and does next.
    fn follow(&mut self, n: usize) {
        let client = Rc::clone(&self.world.clients[n]);
        let known = &mut self.clients[n];
        known.phase = match client.stage {
            Stage::New | Stage::Joining => Phase::New,
            Stage::Waiting(_) => Phase::Waits,
            Stage::Running(_) => Phase::Holds,
            Stage::Releasing { .. } => Phase::Leaves,
            Stage::Over | Stage::Dead => Phase::Gone,
        };
        let counts = client.has_command && !known.has_returned;
        let until = client.dead_by().filter(|_| counts).map(since);
        known.belief = until.map(|until| match known.belief {
            Some(belief) if belief.until == until => belief,
            _ => Belief {
                until,
                slot: client.slot.into(),
                since: known.asked,
            },
        });
        if client.has_command && !known.ever_held {
            known.ever_held = true;
            self.works(n);
        }
        let known = &mut self.clients[n];
        let due = client.due();
        if due != known.due {
            known.due = due;
            if let Some(due) = due {
                // No earlier, however it is rounded.
                self.at(since(due) + 1, Event::Due(n, due));
            }
        }
        self.follow_requests(n);
        self.follow_answers(n);
    }

    /// Its command has been started.
    fn works(&mut self, n: usize) {
        let now = self.now();
        let claim = self.world.clients[n].setup.claim.clone();
        let known = &mut self.clients[n];
        let ends = now + known.plan.holds * MS;
        let is_early = known.plan.early;
        if known.plan.manners.extends {
            known.asked_most = 2 * known.plan.wish.ttl;
            let call = claim.renewal(ms(known.asked_most), true);
            let at = known.dice.between(now, ends);
            self.at(at, Event::Job(n, Asked::new(call)));
        }
        if is_early {
            let call = claim.release_call(&ReleaseMode::ByJob);
            self.at(ends, Event::Job(n, Asked::new(call)));
            self.at(ends + SECOND / 5, Event::CommandEnds(n));
        } else {
            self.at(ends, Event::CommandEnds(n));
        }
        for guard in 0..self.clients.len() {
            if self.clients[guard].plan.guards.as_deref() == Some(self.clients[n].token()) {
                self.comes_after(guard, now);
            }
        }
    }

    /// Draws what becomes of the requests that it has just sent.
    fn follow_requests(&mut self, n: usize) {
        let now = self.now();
        let link = self.world.network.links[n].as_ref();
        let requests = link.into_iter().flat_map(|link| &link.requests);
        let all: Vec<Rc<Asked>> = requests.map(|request| Rc::clone(&request.asked)).collect();
        let before = std::mem::replace(&mut self.clients[n].sent, all.clone());
        for asked in all {
            if before.iter().any(|sent| Rc::ptr_eq(sent, &asked)) {
                continue;
            }
            let known = &mut self.clients[n];
            known.asked = now;
            let (manners, dice) = (known.plan.manners.clone(), &mut known.dice);
            let mut arrives = now + dice.between(50, self.plan.slowest);
            let lost = dice.chance(manners.loses).then(|| dice.between(0, 4));
            if dice.chance(manners.late) {
                arrives = now + dice.between(SECOND, 4 * SECOND);
            }
            let fate = Fate {
                is_repeated: dice.chance(manners.twice),
                loses_answer: lost == Some(2),
                breaks: lost == Some(3),
            };
            if lost.is_some_and(|lost| lost < 2) {
                self.note_of(n, "loses a request");
            } else {
                self.at(arrives, Event::Arrives(n, asked, fate));
            }
        }
    }

    /// What the server sends reaches a client after a while, in order.
    fn follow_answers(&mut self, n: usize) {
        let link = self.world.network.links[n].as_ref();
        let is_expected =
            link.is_some_and(|link| !link.incoming.is_empty()) && self.world.clients[n].is_active();
        let known = &mut self.clients[n];
        if is_expected && !std::mem::replace(&mut known.is_reached, true) {
            let takes = known.dice.between(50, self.plan.slowest);
            self.at(self.now() + takes, Event::Reaches(n));
        }
    }

    /// A request reaches the server, over its connection or after that was given up.
    fn arrives(&mut self, n: usize, asked: &Rc<Asked>, fate: Fate) -> Result<(), Broken> {
        let network = &mut self.world.network;
        let link = network.link(n).and_then(|link| {
            let mut requests = link.requests.iter();
            let place = requests.position(|request| Rc::ptr_eq(&request.asked, asked))?;
            let request = link.requests.remove(place)?;
            link.listens |= request.subscribes;
            Some(request)
        });
        let stray = network
            .strays
            .iter()
            .position(|stray| Rc::ptr_eq(&stray.asked, asked));
        if link.is_none() && stray.map(|stray| network.strays.remove(stray)).is_none() {
            return Ok(());
        }
        let (name, act) = (format!("c{n}"), scripts::act(n, &asked.call));
        let value = self.execute(&name, act, asked, Some(n))?.1;
        if fate.is_repeated {
            self.execute(&name, act, asked, None)?;
        }
        let Some(request) = link else {
            return Ok(());
        };
        if let Some(link) = self.world.network.link(n) {
            link.tracks |= request.tracks;
        }
        if fate.breaks {
            self.world.network.cut(n);
        } else if !fate.loses_answer {
            self.world.deliver(n, request.asked.incoming(value));
        }
        if fate.breaks || fate.loses_answer {
            self.note(|| "        (its answer is lost)".into());
        }
        self.follow_answers(n);
        Ok(())
    }

    /// Has the server run a script, passes on what it publishes, and sees to the promises.
    fn execute(
        &mut self,
        by: &str,
        act: Act,
        asked: &Asked,
        client: Option<usize>,
    ) -> Result<(Answer, Value), Broken> {
        // No two things happen within the resolution of the fence.
        self.world.now += Duration::from_micros(100);
        self.step += 1;
        assert!(self.step <= MOST_STEPS, "the run doesn't end");
        let (moment, before) = (self.world.server(0), Rc::clone(&self.world.nodes[0].stored));
        let Ok(done) = self.world.execute(0, asked, client) else {
            unreachable!("the world has no promises of its own here");
        };
        let after = Rc::clone(&self.world.nodes[0].stored);
        let heard = done.published.iter();
        let heard = heard.filter(|(channel, _)| moment.listeners.contains_key(channel));
        let seen = Seen {
            moment: &moment,
            call: &asked.call,
            before: &before.data,
            after: &after.data,
            answer: &done.answer,
            heard: heard.collect(),
        };
        self.witness.sees(&seen);
        let view = View::of(seen.after, seen.moment.now_ms());
        let stamp = stamp(self.now());
        self.note(|| {
            let (told, view) = (seen.told(), shown(&view));
            format!(
                "{stamp} {by} {told}\n        = {:?}\n        {view}",
                seen.answer
            )
        });
        if let Value::ServerError(error) = seen.answer {
            return Err(Broken::new("no script fails", format!("{error:?}")));
        }
        let answer = scripts::read(&asked.call, done.answer.clone())
            .map_err(|odd| Broken::new("answers have one form", format!("{odd:?}")))?;
        for n in 0..self.clients.len() {
            self.follow_answers(n);
        }
        let before = std::mem::replace(&mut self.view, view);
        let now = self.now();
        let step = Step {
            number: self.step,
            now,
            act,
            asked,
            answer: &answer,
            before: &before,
            after: &self.view,
            old: before.held(),
            new: self.view.held(),
            all: &self.clients,
        };
        let tainted = self.promises.tainted(&step);
        self.promises.observe(&step)?;
        for n in tainted {
            self.clients[n].tainted = now;
        }
        Ok((answer, done.answer.clone()))
    }

    /// One that takes the lock with SET NX PX and deletes it if it is its own; its answers come at once, or never.
    fn plain_goes_on(&mut self, n: usize) -> Result<(), Broken> {
        let now = self.now();
        let client = &mut self.clients[n];
        let plan = &client.plan;
        let (ttl, lasts) = (plan.wish.ttl, plan.holds * MS);
        let gives_up = (plan.comes + plan.patience) * MS;
        let (token, name) = (plan.wish.token.clone(), format!("c{n}"));
        if client.phase == Phase::Gone {
            return Ok(());
        }
        if client.stands_until > now {
            self.at(self.clients[n].stands_until, Event::Comes(n));
            return Ok(());
        }
        let key = Key::Lock.name();
        if client.phase == Phase::Holds {
            client.belief = None;
            client.phase = Phase::Gone;
            let call = Call {
                script: &PLAIN_RELEASE,
                keys: vec![key.into()],
                args: vec![token.into()],
            };
            self.execute(&name, Act::PlainRelease(n), &Asked::new(call), None)?;
            return Ok(());
        }
        let is_lost = client.dice.chance(plan.manners.loses);
        let again = now + client.dice.between(200, 700) * MS;
        let words = ["SET", key, &token, "NX", "PX", &ttl.to_string()];
        let asked = Asked::new(plain(&words));
        let answer = self.execute(&name, Act::PlainAcquire(n), &asked, None)?.1;
        let is_taken = answer == Value::Okay;
        let client = &mut self.clients[n];
        if is_taken && !is_lost {
            client.phase = Phase::Holds;
            client.ever_held = true;
            client.belief = Some(Belief {
                until: now + (ttl - 1) * MS,
                slot: 0,
                since: now,
            });
            self.at(now + lasts, Event::Comes(n));
        } else if again < gives_up {
            self.at(again, Event::Comes(n));
        } else {
            client.phase = Phase::Gone;
        }
        Ok(())
    }

    fn deed(&mut self, what: What) -> Result<(), Broken> {
        let held: Vec<String> = self.view.held().into_keys().collect();
        let one = |n: usize| held.get(n % held.len().max(1)).cloned();
        let number_of = |token: &str| {
            let mut clients = self.clients.iter();
            let number = clients.position(|client| client.token() == token);
            number.unwrap_or(usize::MAX)
        };
        let rules = Rc::clone(&self.world.rules);
        let lock = &rules.lock;
        let who = scenarios::who("op").to_json();
        let force = |id: &str| {
            let args = vec![id.into(), who.clone(), "0".into(), "0".into()];
            lock.call(&FORCE, args)
        };
        let (act, call) = match what {
            What::ForceAny => (Act::Force(None), force("")),
            What::ForceNobody => (Act::Force(Some(usize::MAX)), force("0123456789ab")),
            What::ForceOne(n) => {
                let Some(token) = one(n) else { return Ok(()) };
                let victim = number_of(&token);
                (Act::Force(Some(victim)), force(&id(&token)))
            }
            What::Stop(n) => {
                let Some(token) = one(n) else { return Ok(()) };
                let args = vec![id(&token).into(), who.clone(), "0".into()];
                (Act::Stop(number_of(&token)), lock.call(&STOP, args))
            }
            What::Skip => {
                let args = vec!["busy".into(), "7".into(), who.clone(), Vec::new()];
                let mut call = lock.call_with_guards(&SKIP, args);
                call.keys.push(lock.keys.skips.clone());
                (Act::Skip, call)
            }
            What::Freeze(long) => {
                let args = vec![long.to_string().into(), who.clone()];
                (Act::Freeze, lock.call(&FREEZE, args))
            }
            What::Thaw => (Act::Thaw, lock.call(&THAW, Vec::new())),
            What::Delete(key) => (Act::Delete(key), plain(&["DEL", key.name()])),
            What::SetClock(by) => {
                self.world.nodes[0].clock_ahead += by;
                let now = self.now();
                self.note(|| format!("{} the server's clock is set by {by} ms", stamp(now)));
                (Act::SetClock(by), plain(&["TIME"]))
            }
            What::Check(n) => {
                let token = one(n).unwrap_or_else(|| "stranger".into());
                let args = vec![token.into(), "10000".into()];
                (Act::Look, lock.call(&CHECK, args))
            }
            What::Inspect => {
                let mut call = lock.call_with_guards(&INSPECT, Vec::new());
                call.args = ["10", "0", "-inf"].map(Into::into).into();
                (Act::Look, call)
            }
            What::History => (Act::Look, lock.call_with_guards(&HISTORY, Vec::new())),
        };
        self.execute("somebody", act, &Asked::new(call), None)
            .map(drop)
    }
}

/// Since the run began.
fn since(moment: Moment) -> i64 {
    let since = moment.since_boot().saturating_sub(BOOT);
    i64::try_from(since.as_micros()).expect("a time that fits")
}

fn plain(words: &[&str]) -> Call {
    Call {
        script: &PLAIN,
        keys: Vec::new(),
        args: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
    }
}

fn stamp(now: i64) -> String {
    format!(
        "{:>5}.{:03} {:03}",
        now / SECOND,
        now / MS % 1_000,
        now % MS
    )
}

/// A view in a line: the holders, the waiters.
fn shown(view: &View) -> String {
    let held: Vec<String> = view
        .held()
        .iter()
        .map(|(token, end)| {
            let phase = view
                .hold(token)
                .map_or("?".into(), |hold| format!("{} {}", hold.phase, hold.fence));
            format!("{token} ({phase}, {} ms)", end - view.now)
        })
        .collect();
    let queue: Vec<String> = view
        .queue
        .iter()
        .map(|(token, score)| format!("{token} ({score})"))
        .collect();
    format!(
        "{}: {}; waiting: {}",
        view.mark.as_deref().unwrap_or("free"),
        held.join(", "),
        queue.join(", ")
    )
}

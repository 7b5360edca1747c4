//! A state of everything, and what can happen next: clients, servers and what is under way between
//! them, in virtual time. A step is one thing that one of them does, or one fault; time passes only
//! between moments at which something is due.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use redis::Value;

use super::client::{Client, Setup, Stage};
use super::digest::{Cached, digest_of};
use super::network::{Arriving, Asked, Delay, Incoming, Network, Request};
use super::promises::calls::{Seen, Witness};
use super::promises::{Broken, Facts, Promise, is_queued};
use super::redis::{Bytes, Data, Interpreter};
use super::same::{digest_of_data, last_fence};
use super::view::is_notice;
use crate::clock::Moment;
use crate::protocol::Lock;
use crate::protocol::scripts::{ACQUIRE, Script};
use crate::redis::call::Call;

/// When the servers' clocks start, in milliseconds since 1970: in the year 2020.
pub const START_MS: i64 = 1_577_836_800_000;
/// When the clients' clock starts, since boot.
pub const BOOT: Duration = Duration::from_secs(1000);

/// The scripts that the servers run in place of those that are shipped.
pub type Replaced = Vec<(&'static str, &'static str)>;

/// A command of another program, as a script.
static PLAIN: Script = plain("return redis.call(unpack(ARGV))");

/// The release of a client that knows of nothing but the key.
static PLAIN_RELEASE: Script =
    plain("if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 0");

const fn plain(source: &'static str) -> Script {
    Script {
        source,
        hash: "",
        keys: 1,
        counts_when_replicated: false,
        may_arrive_late: false,
    }
}

/// What a person does in between, with a script of ours.
pub struct Deed {
    pub name: &'static str,
    pub asked: Rc<Asked>,
}

/// A client that does `SET key token NX PX ttl`, and trusts in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plain {
    New,
    /// It believes that the lock is its own until this moment.
    Holds(Millis),
    Over,
}

/// Milliseconds of the clients' clock, which can be hashed.
pub type Millis = u64;

/// Which replicas have to confirm a grant or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    None,
    /// This many, whichever.
    AtLeast(usize),
    /// All that could follow the primary.
    All,
}

/// What may go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection breaks before its first request arrives, or before the answer does.
    Cut,
    /// A message that the server pushes is lost, or comes twice.
    Messages,
    /// The server gets a request twice.
    Repeat,
    /// What is under way to or from a client takes any time.
    Late,
    /// A process is killed.
    Kill,
    /// One that is in the queue.
    KillWaiter,
    /// A host is gone, and its connections stay.
    Vanish,
    /// A process is stopped, and goes on at any time.
    Stop,
    /// Another program deletes a key of the lock, or all.
    Delete,
    /// The server restarts without its data.
    Restart,
    /// The server's clock is set.
    SetClock(i64),
    /// The primary is gone, and a replica follows it with what it has.
    FailOver,
    /// No replica confirms what a client has.
    Unconfirmed,
    /// The network is cut in two: the first two nodes, one of three sentinels and the first run on one side, all else on
    /// the other, where the two other sentinels make the third node the primary.
    Split,
    /// Behind that cut, the one sentinel forgets the others, and all that its primary doesn't list.
    Reset,
}

/// A network that is cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// The sentinel on the side of the old primary knows of nothing beyond the cut any more.
    is_reset: bool,
}

/// What there is from the start, and what may happen.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Rules {
    pub name: &'static str,
    pub lock: Lock,
    pub clients: Vec<Setup>,
    pub has_plain: bool,
    pub plain_ttl: Duration,
    /// It comes no earlier.
    pub plain_from: Duration,
    pub deeds: Vec<Deed>,
    pub may_interrupt: bool,
    /// What was sent over a connection that its client has given up may arrive later on.
    pub keeps_strays: bool,
    /// The runs are the same but for their names.
    pub are_alike: bool,
    /// By how many percent the servers' clocks are faster than those of the clients.
    pub clock_fast: i64,
    /// By how much the clock of each node is ahead, in milliseconds; the first is the primary.
    pub nodes: Vec<i64>,
    pub sync: Sync,
    /// With `Sync::All`, any sentinel's list of the replicas will do.
    pub one_sentinel_lists: bool,
    pub kinds: Vec<Kind>,
    /// Only so many of the runs, the first ones, may be hit by them.
    pub victims: usize,
    /// How many faults at most.
    pub faults: u8,
    /// How much virtual time a history covers.
    pub horizon: Duration,
    pub promises: Vec<Promise>,
    pub replaced: Replaced,
    /// Judges of each call, and servers that have to do the same.
    pub witnesses: Vec<Rc<RefCell<dyn Witness>>>,
    pub interpreter: Rc<Interpreter>,
    /// What came of calls, by a digest of the data, the moment and the call.
    pub executed: RefCell<HashMap<u128, Rc<Executed>>>,
}

/// From how many on they are forgotten.
const KEPT: usize = 100_000;

/// What comes of a call.
pub struct Executed {
    pub answer: Value,
    pub published: Vec<(Bytes, Bytes)>,
    /// What is stored then, if that is something else.
    stored: Option<Rc<Stored>>,
}

impl Rules {
    fn source(&self, script: &'static Script) -> &'static str {
        let replaced = self.replaced.iter().find(|(hash, _)| *hash == script.hash);
        replaced.map_or(script.source, |(_, source)| *source)
    }

    /// Calls a script. What it does is looked up where the same was called before on the same data: of most
    /// states there are many that differ in something else.
    fn execute(
        &self,
        before: &Stored,
        moment: &super::redis::Moment,
        asked: &Asked,
    ) -> Rc<Executed> {
        let key = digest_of(&(before.exact_digest, moment, asked.digest));
        if let Some(executed) = self.executed.borrow().get(&key) {
            return Rc::clone(executed);
        }
        let mut data = before.data.clone();
        let call = &asked.call;
        let source = self.source(call.script);
        let done = self
            .interpreter
            .eval(&mut data, moment, source, &call.keys, &call.args);
        let done = Rc::new(Executed {
            answer: done.answer,
            published: done.published,
            stored: (done.writes > 0).then(|| Stored::new(data, self)),
        });
        let mut executed = self.executed.borrow_mut();
        if executed.len() >= KEPT {
            executed.clear();
        }
        executed.insert(key, Rc::clone(&done));
        done
    }
}

/// What a server has stored.
pub struct Stored {
    pub data: Data,
    /// A number for all of it.
    pub exact_digest: u128,
    digest: Cached,
    /// The last one that was given.
    pub fence: i64,
}

impl Stored {
    fn new(data: Data, rules: &Rules) -> Rc<Self> {
        Rc::new(Self {
            exact_digest: digest_of(&data),
            digest: Cached::default(),
            fence: last_fence(&data, &rules.lock.keys),
            data,
        })
    }

    /// A number for what something depends on, but for the fence.
    pub fn digest(&self, rules: &Rules) -> u128 {
        self.digest.get_or(|| digest_of_data(&self.data, rules))
    }
}

/// One server.
#[derive(Clone)]
pub struct Node {
    pub stored: Rc<Stored>,
    pub clock_ahead: i64,
    /// How much of the primary's log it has for certain.
    pub confirmed: usize,
    pub is_up: bool,
}

/// Which replicas confirm something.
const ALL: usize = usize::MAX;
const NOBODY: usize = usize::MAX - 1;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Start(usize),
    Interrupt(usize),
    CommandEnds(usize),
    Tick(usize),
    /// The server gets the first request of a client; where only some replicas confirm it, this one does.
    Serve(usize, usize),
    Receive(usize),
    /// The server gets what was sent over a connection that was given up.
    ServeStray(usize),
    Plain,
    Deed(usize),
    Resume(usize),
    /// What was held up goes on.
    LetThrough(usize),
    /// Time passes until something is due.
    Advance,
    // Faults.
    LoseRequest(usize),
    LoseAnswer(usize),
    LoseMessage(usize),
    RepeatMessage(usize),
    Repeat(usize),
    HoldUp(usize, Delay),
    Kill(usize),
    Vanish(usize),
    Stop(usize),
    Delete(usize),
    Restart,
    SetClock(i64),
    /// To a node, with so much of the log.
    FailOver(usize, usize),
    ServeUnconfirmed(usize),
    /// With so much of the log on the other side.
    Split(usize),
    Reset,
}

impl Step {
    pub fn is_fault(self) -> bool {
        !matches!(
            self,
            Self::Start(_)
                | Self::Interrupt(_)
                | Self::CommandEnds(_)
                | Self::Tick(_)
                | Self::Serve(..)
                | Self::Receive(_)
                | Self::ServeStray(_)
                | Self::Plain
                | Self::Deed(_)
                | Self::Resume(_)
                | Self::LetThrough(_)
                | Self::Advance
        )
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_fault() { "FAULT: " } else { "" };
        write!(f, "{sign}{self:?}")
    }
}

/// A state of everything.
#[derive(Clone)]
pub struct World {
    pub rules: Rc<Rules>,
    pub now: Duration,
    pub nodes: Vec<Node>,
    /// What the primary had after each write since it became that.
    pub log: Vec<Rc<Stored>>,
    pub split: Option<Split>,
    pub network: Network,
    pub clients: Vec<Rc<Client>>,
    pub plain: Plain,
    pub deeds_done: usize,
    pub faults_left: u8,
    pub facts: Facts,
}

impl World {
    pub fn new(rules: &Rc<Rules>) -> Self {
        let empty = Stored::new(Data::default(), rules);
        let clients = rules.clients.iter().cloned().enumerate();
        let count = rules.clients.len();
        Self {
            now: Duration::ZERO,
            nodes: rules
                .nodes
                .iter()
                .map(|&clock_ahead| Node {
                    stored: Rc::clone(&empty),
                    clock_ahead,
                    confirmed: 0,
                    is_up: true,
                })
                .collect(),
            log: vec![empty],
            split: None,
            network: Network::new(count, rules.keeps_strays),
            clients: clients
                .map(|(n, setup)| Rc::new(Client::new(n, setup)))
                .collect(),
            plain: if rules.has_plain {
                Plain::New
            } else {
                Plain::Over
            },
            deeds_done: 0,
            faults_left: rules.faults,
            facts: Facts::new(count),
            rules: Rc::clone(rules),
        }
    }

    pub fn moment(&self) -> Moment {
        Moment::at(BOOT + self.now)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.now.as_millis()).expect("a time that fits")
    }

    /// The clock of a node, in microseconds since 1970.
    pub fn clock_us(&self, node: usize) -> i64 {
        let since = i64::try_from(self.now.as_micros()).expect("a time that fits");
        // A grant and one that follows it, after all was deleted, are at least so much apart.
        let later = i64::from(self.facts.lost_data);
        let fast = since / 100 * self.rules.clock_fast;
        (START_MS + self.nodes[node].clock_ahead) * 1000 + since + fast + later
    }

    /// The clock of the primary, in milliseconds since 1970.
    pub fn server_ms(&self) -> i64 {
        self.clock_us(self.network.primary) / 1000
    }

    /// All that can happen next.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let now = self.moment();
        let mut someone_is_due = false;
        for client in &self.clients {
            let c = client.number;
            // Runs that differ in nothing but their names start in the order of these.
            let is_next = c == 0 || !matches!(self.clients[c - 1].stage, Stage::New);
            // What guards a hold comes from its command.
            let is_asked = client.unit() == c || self.facts.has_started(client.unit());
            if let (Stage::New, true) = (
                &client.stage,
                (is_next || !self.rules.are_alike) && is_asked,
            ) {
                steps.push(Step::Start(c));
            }
            if client.due().is_some_and(|due| due <= now) {
                someone_is_due = true;
                steps.push(Step::Tick(c));
            }
            if client.has_command {
                steps.push(Step::CommandEnds(c));
            }
            if client.is_stopped {
                steps.push(Step::Resume(c));
            }
            if self.rules.may_interrupt && client.is_active() && client.waits() {
                steps.push(Step::Interrupt(c));
            }
            let delay = self.network.delays[c];
            if delay != Delay::None && (!client.is_over() || self.network.is_open(c)) {
                steps.push(Step::LetThrough(c));
            }
            if let Some(link) = &self.network.links[c] {
                if !link.requests.is_empty() && delay != Delay::All {
                    let mut by: Vec<usize> = self.followers(link.node).collect();
                    if by.is_empty() || self.rules.sync != Sync::AtLeast(1) {
                        by = vec![ALL];
                    }
                    steps.extend(by.into_iter().map(|by| Step::Serve(c, by)));
                }
                let is_there = link
                    .incoming
                    .front()
                    .is_some_and(|next| next.is_there(self.now));
                if is_there && delay == Delay::None && client.is_active() {
                    steps.push(Step::Receive(c));
                }
            }
        }
        steps.extend((0..self.network.strays.len()).map(Step::ServeStray));
        let comes_later = self.plain == Plain::New && self.now < self.rules.plain_from;
        if self.plain != Plain::Over && !comes_later {
            steps.push(Step::Plain);
        }
        if self.deeds_done < self.rules.deeds.len() {
            steps.push(Step::Deed(self.deeds_done));
        }
        let can_advance = !someone_is_due && self.next_moment().is_some();
        if can_advance && !self.is_busy() {
            steps.push(Step::Advance);
        }
        if self.faults_left > 0 {
            for kind in &self.rules.kinds {
                self.add_faults(*kind, &mut steps);
            }
        }
        steps
    }

    /// A client whose next step changes nothing but itself and what it sends. Where nothing can go wrong any
    /// more, all else can wait for it: whatever happens first leads to the same.
    pub fn alone(&self) -> Option<(usize, Vec<Step>)> {
        if self.faults_left > 0 {
            return None;
        }
        let now = self.moment();
        for client in self.clients.iter().filter(|client| client.is_active()) {
            let c = client.number;
            let link = self.network.links[c].as_ref();
            let incoming = link.and_then(|link| link.incoming.front());
            let incoming = incoming.filter(|next| next.is_there(self.now));
            let is_asking = link.is_some_and(|link| !link.requests.is_empty());
            let is_due = client.due().is_some_and(|due| due <= now);
            let closes = matches!(
                link.and_then(|link| Some(&link.incoming.back()?.what)),
                Some(Incoming::Closed | Incoming::NotReplicated)
            );
            let releases = matches!(client.stage, Stage::Releasing { .. });
            let is_held_up = self.network.delays[c] != Delay::None;
            if is_asking
                || closes
                || releases
                || is_held_up
                || (self.rules.may_interrupt && client.waits())
            {
                continue;
            }
            let mut steps = Vec::new();
            if incoming.is_some() {
                steps.push(Step::Receive(c));
            }
            if is_due {
                steps.push(Step::Tick(c));
            }
            if !steps.is_empty() {
                if client.has_command {
                    steps.push(Step::CommandEnds(c));
                }
                return Some((c, steps));
            }
        }
        None
    }

    fn add_faults(&self, kind: Kind, steps: &mut Vec<Step>) {
        let links = || {
            let links = self.network.links[..self.rules.victims].iter().enumerate();
            links.filter_map(|(c, link)| Some((c, link.as_ref()?)))
        };
        let victims = || {
            let victims = self.clients[..self.rules.victims].iter();
            victims.filter(|client| client.is_active())
        };
        let alive = || {
            let victims = self.clients[..self.rules.victims].iter();
            let alive = victims.filter(|client| client.is_alive());
            alive.map(|client| client.number)
        };
        match kind {
            Kind::Cut => {
                for (c, link) in links() {
                    if !link.is_closing() {
                        steps.push(Step::LoseRequest(c));
                        if !link.requests.is_empty() {
                            steps.push(Step::LoseAnswer(c));
                        }
                    }
                }
            }
            Kind::Messages => {
                let heard = links().filter(|(c, _)| !self.clients[*c].is_over());
                let pushed = heard.filter(|(_, link)| {
                    matches!(
                        link.incoming.front().map(|next| &next.what),
                        Some(Incoming::Message(_) | Incoming::KeyChanged)
                    )
                });
                for (c, _) in pushed {
                    steps.extend([Step::LoseMessage(c), Step::RepeatMessage(c)]);
                }
            }
            Kind::Repeat => {
                let busy = links().filter(|(_, link)| !link.requests.is_empty());
                steps.extend(busy.map(|(c, _)| Step::Repeat(c)));
            }
            Kind::Late => {
                for client in victims() {
                    let c = client.number;
                    if self.network.delays[c] == Delay::None {
                        steps.push(Step::HoldUp(c, Delay::Answers));
                        steps.push(Step::HoldUp(c, Delay::All));
                    }
                }
            }
            Kind::KillWaiter => {
                let data = &self.nodes[self.network.primary].stored.data;
                let keys = &self.rules.lock.keys;
                let waiting = victims().filter(|client| is_queued(data, keys, client));
                steps.extend(waiting.map(|client| Step::Kill(client.number)));
            }
            Kind::Kill => steps.extend(alive().map(Step::Kill)),
            Kind::Vanish => steps.extend(alive().map(Step::Vanish)),
            Kind::Stop => {
                let running = alive().filter(|&c| !self.clients[c].is_stopped);
                steps.extend(running.map(Step::Stop));
            }
            Kind::Delete => {
                let data = &self.nodes[self.network.primary].stored.data;
                if data.entries().next().is_some() {
                    steps.extend((0..=6).map(Step::Delete));
                }
            }
            Kind::Restart => steps.push(Step::Restart),
            Kind::SetClock(by) => {
                steps.push(Step::SetClock(by));
                steps.push(Step::SetClock(-by));
            }
            Kind::Unconfirmed => {
                let busy = links().filter(|(_, link)| !link.requests.is_empty());
                steps.extend(busy.map(|(c, _)| Step::ServeUnconfirmed(c)));
            }
            Kind::Split | Kind::Reset => self.add_cuts(kind, steps),
            Kind::FailOver => {
                for to in self.followers(self.network.primary) {
                    let from = self.nodes[to].confirmed;
                    steps.extend((from..self.log.len()).map(|at| Step::FailOver(to, at)));
                }
            }
        }
    }

    fn add_cuts(&self, kind: Kind, steps: &mut Vec<Step>) {
        match self.split {
            None if kind == Kind::Split => {
                let from = self.nodes[2].confirmed;
                steps.extend((from..self.log.len()).map(Step::Split));
            }
            Some(Split { is_reset: false }) if kind == Kind::Reset => steps.push(Step::Reset),
            None | Some(_) => {}
        }
    }

    /// The replicas of a node.
    fn followers(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        let follows = move |node: usize| match self.split {
            None => of == self.network.primary,
            Some(_) => is_cut_off(node) == is_cut_off(of),
        };
        (0..self.nodes.len())
            .filter(move |&node| node != of && follows(node) && self.nodes[node].is_up)
    }

    /// The replicas that have to confirm what a node has written, by the sentinels that the client reaches; `None` where it
    /// isn't known.
    fn listed(&self, node: usize) -> Option<Vec<usize>> {
        let all = || {
            (0..self.nodes.len())
                .filter(|other| *other != node)
                .collect()
        };
        match self.split {
            Some(_) if is_cut_off(node) && !self.rules.one_sentinel_lists => None,
            Some(Split { is_reset: false }) if is_cut_off(node) => Some(all()),
            // Most sentinels take those beyond the cut for down, and one that was reset knows of none.
            Some(_) | None => Some(self.followers(node).collect()),
        }
    }

    /// Whether something is under way.
    fn is_busy(&self) -> bool {
        let clients = &self.clients;
        self.network
            .is_busy(self.now, |client| clients[client].is_active())
    }

    /// The next moment at which something is due, within the horizon.
    pub fn next_moment(&self) -> Option<Duration> {
        let of_clients = self.clients.iter().flat_map(|client| {
            let deadline = client.dead_by().filter(|_| client.has_command);
            // One that is stopped doesn't look, and what holds without it is to be seen after that.
            let over = deadline.map(|deadline| deadline + Duration::from_millis(1));
            client.due().into_iter().chain(over)
        });
        let of_clients = of_clients.map(|moment| moment.since_boot().saturating_sub(BOOT));
        let of_keys = self
            .nodes
            .iter()
            .filter(|node| node.is_up)
            .flat_map(|node| {
                let clock = START_MS + node.clock_ahead;
                let ends = node.stored.data.expiries();
                ends.map(move |(_, at)| {
                    Duration::from_millis(u64::try_from(at + 1 - clock).unwrap_or(0))
                })
            });
        let of_plain = match self.plain {
            Plain::Holds(until) => Some(Duration::from_millis(until)),
            _ => None,
        };
        let of_answers = self.clients.iter().filter_map(|client| {
            let link = self.network.links[client.number].as_ref()?;
            let is_awaited =
                client.is_active() && self.network.delays[client.number] == Delay::None;
            link.incoming.front().filter(|_| is_awaited)?.at
        });
        let horizon = self.rules.horizon;
        of_clients
            .chain(of_keys)
            .chain(of_plain)
            .chain(of_answers)
            .filter(|&at| at > self.now && at <= horizon)
            .min()
    }

    /// What comes of a step; what it breaks, if it does.
    pub fn apply(&mut self, step: Step) -> Result<(), Broken> {
        if step.is_fault() {
            self.faults_left -= 1;
        }
        let now = self.moment();
        match step {
            Step::Start(c) => self.clients[c].changed().start(now, &mut self.network),
            Step::Interrupt(c) => self.clients[c].changed().interrupt(now, &mut self.network),
            Step::CommandEnds(c) => self.clients[c]
                .changed()
                .command_ends(now, &mut self.network),
            Step::Tick(c) => self.clients[c].changed().tick(now, &mut self.network),
            Step::Serve(c, by) => self.serve(c, by)?,
            Step::Receive(c) => self.receive(c),
            Step::ServeStray(n) => {
                let stray = self.network.strays.remove(n);
                if self.nodes[stray.node].is_up {
                    let before = self.nodes[stray.node].stored.exact_digest;
                    self.execute(stray.node, &stray.asked, None)?;
                    if self.nodes[stray.node].stored.exact_digest != before {
                        self.facts.a_late_request_was_done();
                    }
                }
            }
            Step::Plain => self.plain_goes_on()?,
            Step::Deed(n) => self.deed(n)?,
            Step::Resume(c) => self.clients[c].changed().resume(now, &mut self.network),
            Step::LetThrough(c) => self.network.delays[c] = Delay::None,
            Step::HoldUp(c, delay) => self.network.delays[c] = delay,
            Step::Advance => {
                self.now = self.next_moment().expect("something is due");
                self.forget_expired();
            }
            Step::LoseRequest(c) => self.network.cut(c),
            Step::LoseAnswer(c) => {
                self.serve(c, ALL)?;
                self.network.cut(c);
            }
            Step::LoseMessage(c) => {
                let link = self.network.link(c).expect("a connection");
                link.incoming.pop_front();
            }
            Step::RepeatMessage(c) => {
                let link = self.network.link(c).expect("a connection");
                let again = link.incoming[0].clone();
                link.incoming.push_front(again);
            }
            Step::Repeat(c) => {
                let link = self.network.links[c].as_ref().expect("a connection");
                let (node, request) = (link.node, link.requests[0].clone());
                self.serve(c, ALL)?;
                self.execute(node, &request.asked, None)?;
            }
            Step::Kill(c) => {
                self.clients[c].changed().die();
                self.network.close(c);
            }
            Step::Vanish(c) => {
                let client = self.clients[c].changed();
                client.die();
                client.has_command = false;
                if let Some(link) = self.network.link(c) {
                    link.is_abandoned = true;
                }
            }
            Step::Stop(c) => {
                self.clients[c].changed().is_stopped = true;
            }
            Step::Delete(n) => self.delete(n)?,
            Step::Restart => {
                self.delete(0)?;
                self.network.cut_all(self.network.primary);
            }
            Step::SetClock(by) => {
                self.nodes[self.network.primary].clock_ahead += by;
            }
            Step::FailOver(to, at) => self.fail_over(to, at),
            Step::ServeUnconfirmed(c) => self.serve(c, NOBODY)?,
            Step::Split(at) => self.split(at),
            Step::Reset => self.split = Some(Split { is_reset: true }),
        }
        self.look()
    }

    /// Has the primary run a script for somebody who isn't among the clients.
    pub fn call(&mut self, call: Call) -> Result<Rc<Executed>, Broken> {
        let done = self.execute(self.network.primary, &Asked::new(call), None)?;
        self.look()?;
        Ok(done)
    }

    fn look(&mut self) -> Result<(), Broken> {
        let now_ms = self.server_ms();
        let someone_waits = self.someone_waits();
        let Self {
            facts,
            clients,
            plain,
            rules,
            now,
            ..
        } = self;
        let moments = (*now, now_ms);
        facts.look(clients, *plain, someone_waits, moments, &rules.promises)
    }

    /// Whether there is a waiter that runs and can reach the servers.
    pub fn someone_waits(&self) -> bool {
        self.clients.iter().any(|client| {
            let is_held_up = self.network.delays[client.number] != Delay::None;
            client.waits() && !client.is_stopped && !is_held_up
        })
    }

    fn receive(&mut self, c: usize) {
        let now = self.moment();
        let link = self.network.link(c).expect("a connection");
        let incoming = link.incoming.pop_front().expect("something");
        self.clients[c]
            .changed()
            .receive(incoming.what, now, &mut self.network);
    }

    /// The server does what is asked first over a connection.
    fn serve(&mut self, c: usize, confirmed_by: usize) -> Result<(), Broken> {
        let link = self.network.link(c).expect("a connection");
        let request = link.requests.pop_front().expect("a request");
        link.listens |= request.subscribes;
        let node = link.node;
        let done = self.execute(node, &request.asked, Some(c))?;
        let mut value = done.answer.clone();
        if self.clients[c].setup.wish.once_per.is_zero() {
            forget_success(&mut value, &request);
        }
        let is_replicated = self.replicate(node, &request, &value, confirmed_by);
        let link = self.network.link(c).expect("a connection");
        link.tracks |= request.tracks;
        let answer = if is_replicated {
            request.asked.incoming(value)
        } else {
            Incoming::NotReplicated
        };
        self.deliver(c, answer);
        Ok(())
    }

    /// Sends something to a client over its connection.
    pub fn deliver(&mut self, c: usize, what: Incoming) {
        let takes = self.clients[c].setup.answers_take;
        let at = (!takes.is_zero()).then(|| self.now + takes);
        if let Some(link) = self.network.link(c) {
            link.incoming.push_back(Arriving { what, at });
        }
    }

    /// Whether what a client has now counts, by how many replicas have to have it.
    fn replicate(&mut self, node: usize, request: &Request, value: &Value, by: usize) -> bool {
        let is_ours =
            matches!(value, Value::Array(fields) if fields.first() == Some(&Value::Int(1)));
        if !is_ours || !request.asked.call.script.counts_when_replicated {
            return true;
        }
        let followers: Vec<usize> = self.followers(node).collect();
        let confirm: Vec<usize> = match self.rules.sync {
            Sync::None => return true,
            _ if by == NOBODY => Vec::new(),
            Sync::AtLeast(1) => followers.into_iter().filter(|&node| node == by).collect(),
            Sync::AtLeast(_) | Sync::All => followers,
        };
        if node == self.network.primary {
            for &node in &confirm {
                self.nodes[node].confirmed = self.log.len() - 1;
            }
        }
        match self.rules.sync {
            Sync::None => true,
            Sync::AtLeast(most) => confirm.len() >= most,
            Sync::All => self.listed(node).is_some_and(|listed| {
                !listed.is_empty() && listed.iter().all(|node| confirm.contains(node))
            }),
        }
    }

    /// What a node is at this moment: its clock, and who listens.
    pub fn server(&self, node: usize) -> super::redis::Moment {
        let mut moment = super::redis::Moment::at(self.clock_us(node));
        for (c, link) in self.network.links.iter().enumerate() {
            if link
                .as_ref()
                .is_some_and(|link| link.node == node && link.listens)
            {
                moment.listeners.insert(self.clients[c].channel(), 1);
            }
        }
        moment
    }

    /// Runs a script on a node.
    pub fn execute(
        &mut self,
        node: usize,
        asked: &Asked,
        c: Option<usize>,
    ) -> Result<Rc<Executed>, Broken> {
        let rules = Rc::clone(&self.rules);
        let moment = self.server(node);
        let before = Rc::clone(&self.nodes[node].stored);
        let done = rules.execute(&before, &moment, asked);
        let after = done.stored.as_ref().unwrap_or(&before);
        self.facts.executed(
            &asked.call,
            &rules,
            &self.clients,
            (&before.data, &after.data),
            moment.now_ms(),
        )?;
        if !rules.witnesses.is_empty() {
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
            for witness in &rules.witnesses {
                witness.borrow_mut().sees(&seen)?;
            }
        }
        if let Some(stored) = &done.stored {
            self.notify_trackers(node, &before.data, &stored.data, c);
            self.write(node, Rc::clone(stored));
        }
        for (channel, text) in &done.published {
            for c in 0..self.clients.len() {
                let hears = self.network.links[c].as_ref().is_some_and(|link| {
                    link.node == node && link.listens && self.clients[c].channel() == *channel
                });
                if hears {
                    self.deliver(c, Incoming::Message(text.clone()));
                }
            }
        }
        Ok(done)
    }

    /// The server pushes once that a key has changed that is tracked; not to the client that did it.
    fn notify_trackers(&mut self, node: usize, before: &Data, after: &Data, by: Option<usize>) {
        let key = &self.rules.lock.keys.lock;
        let now_ms = self.clock_us(node) / 1000;
        if before.get(now_ms, key) == after.get(now_ms, key) {
            return;
        }
        for c in 0..self.clients.len() {
            let tracks = self.network.links[c]
                .as_ref()
                .is_some_and(|link| link.node == node && link.tracks);
            if tracks && let Some(link) = self.network.link(c) {
                link.tracks = false;
                if by != Some(c) {
                    self.deliver(c, Incoming::KeyChanged);
                }
            }
        }
    }

    /// A node has other data; that of the primary goes into its log.
    fn write(&mut self, node: usize, stored: Rc<Stored>) {
        self.nodes[node].stored = Rc::clone(&stored);
        if node == self.network.primary && self.nodes.len() > 1 {
            self.log.push(stored);
        }
    }

    /// Keys that have expired are gone for good, but where another clock counts, or the same one is set.
    fn forget_expired(&mut self) {
        if self.nodes.len() > 1 || self.rules.sets_clocks() {
            return;
        }
        let now_ms = self.server_ms();
        let stored = &self.nodes[0].stored;
        if stored.data.expiries().any(|(_, at)| at < now_ms) {
            let mut data = stored.data.clone();
            data.forget_expired(now_ms);
            self.nodes[0].stored = Stored::new(data, &self.rules);
        }
    }

    fn command(&mut self, words: &[&[u8]]) -> Result<Value, Broken> {
        let args = words.iter().map(|word| word.to_vec()).collect();
        self.plain_call(&PLAIN, Vec::new(), args)
    }

    fn plain_call(
        &mut self,
        script: &'static Script,
        keys: Vec<Bytes>,
        args: Vec<Bytes>,
    ) -> Result<Value, Broken> {
        let call = Asked::new(Call { script, keys, args });
        let done = self.execute(self.network.primary, &call, None)?;
        Ok(done.answer.clone())
    }

    /// It asks and has its answer at once: it counts from when it asked, so that it would only believe less
    /// if that took longer.
    fn plain_goes_on(&mut self) -> Result<(), Broken> {
        let key = self.rules.lock.keys.lock.clone();
        self.plain = match self.plain {
            Plain::New => {
                let ttl = u64::try_from(self.rules.plain_ttl.as_millis()).expect("a TTL");
                let text = ttl.to_string();
                let words: [&[u8]; 6] = [b"SET", &key, b"plain", b"NX", b"PX", text.as_bytes()];
                match self.command(&words)? {
                    Value::Okay => Plain::Holds(self.now_ms() + ttl),
                    _ => Plain::Over,
                }
            }
            Plain::Holds(_) => {
                self.plain_call(&PLAIN_RELEASE, vec![key], vec![b"plain".to_vec()])?;
                Plain::Over
            }
            Plain::Over => Plain::Over,
        };
        Ok(())
    }

    fn deed(&mut self, n: usize) -> Result<(), Broken> {
        self.deeds_done += 1;
        let rules = Rc::clone(&self.rules);
        let primary = self.network.primary;
        self.execute(primary, &rules.deeds[n].asked, None).map(drop)
    }

    fn delete(&mut self, n: usize) -> Result<(), Broken> {
        self.facts.lost_data = true;
        let keys = &self.rules.lock.keys;
        let kinds = "state meta holders queue waiters history slots exempt guards";
        let others = kinds.split(' ').map(|kind| keys.of(kind));
        let all: Vec<_> = std::iter::once(keys.lock.clone()).chain(others).collect();
        let data = &self.nodes[self.network.primary].stored.data;
        let notice = || data.entries().find(|(key, _)| is_notice(key, keys));
        let key = n.checked_sub(1).map(|n| match all.get(n) {
            Some(key) => Some(key.clone()),
            None => Some(notice()?.0.to_vec()),
        });
        // There is no notice.
        if let Some(None) = key {
            return Ok(());
        }
        let key = key.flatten();
        let words = key
            .as_ref()
            .map_or(vec![&b"FLUSHALL"[..]], |key| vec![b"DEL", key]);
        self.command(&words).map(drop)
    }

    /// The network is cut. The old primary lives on beside the new one, which has so much of what it had.
    fn split(&mut self, at: usize) {
        let old = self.network.primary;
        let data = Rc::clone(&self.log[at]);
        for c in 1..self.clients.len() {
            self.network.cut(c);
        }
        self.network.strays.clear();
        self.network.cut_off = Some(old);
        self.network.primary = 2;
        self.split = Some(Split { is_reset: false });
        self.facts.lost_data = true;
        for node in &mut self.nodes[2..] {
            node.confirmed = 0;
            node.stored = Rc::clone(&data);
        }
        self.log = vec![data];
    }

    /// The primary is gone; a replica has so much of what it had.
    fn fail_over(&mut self, to: usize, at: usize) {
        let from = self.network.primary;
        self.nodes[from].is_up = false;
        self.network.cut_all(from);
        let data = Rc::clone(&self.log[at]);
        self.network.primary = to;
        self.log = vec![Rc::clone(&data)];
        // The last writes may be among what it lacks.
        self.facts.lost_data = true;
        for node in &mut self.nodes {
            node.confirmed = 0;
            node.stored = Rc::clone(&data);
        }
    }
}

/// Whether a node is on the side of the old primary, once the network is cut.
fn is_cut_off(node: usize) -> bool {
    node < 2
}

/// A run without `--once-per` hears of the last success only to tell its command.
fn forget_success(answer: &mut Value, request: &Request) {
    if let Value::Array(fields) = answer
        && request.asked.call.script.hash == ACQUIRE.hash
        && let [Value::Int(1), _, _, ago] = fields.as_mut_slice()
    {
        *ago = Value::Int(-1);
    }
}

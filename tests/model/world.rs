//! The state of the whole model, and the possible next steps: clients, servers and messages under way, in virtual time. A step
//! is one action of one of them, or one fault. Time passes only between times at which something is due.

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
use crate::server::call::Call;

/// Start of the servers' clocks, in milliseconds since 1970: in the year 2020.
pub const START_MS: i64 = 1_577_836_800_000;
/// Start of the clients' clock, since boot.
pub const BOOT: Duration = Duration::from_secs(1000);

/// Scripts that the servers run instead of the shipped ones.
pub type Replaced = Vec<(&'static str, &'static str)>;

/// Script that runs a command of another program.
static PLAIN: Script = plain("return redis.call(unpack(ARGV))");

/// Release by a client that knows only the key.
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

/// An action of a person, with one of redlock's scripts.
pub struct Deed {
    pub name: &'static str,
    pub asked: Rc<Asked>,
}

/// A client that runs `SET key token NX PX ttl` and relies on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plain {
    New,
    /// Relies on the lock until this time.
    Holds(Millis),
    Over,
}

/// Milliseconds of the clients' clock, which can be hashed.
pub type Millis = u64;

/// Replicas that must confirm a grant or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    None,
    /// Any replicas of this number.
    AtLeast(usize),
    /// All that could follow the primary.
    All,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A connection breaks before its first request arrives, or before the answer does.
    Cut,
    /// A pushed message is lost, or arrives twice.
    Messages,
    /// The server gets a request twice.
    Repeat,
    /// Messages to or from a client take any time.
    Late,
    /// A process is killed.
    Kill,
    /// A process in the queue is killed.
    KillWaiter,
    /// A host vanishes, and its connections stay.
    Vanish,
    /// A process is stopped, and goes on at any time.
    Stop,
    /// Another program deletes one key of the lock, or all.
    Delete,
    /// The server restarts without its data.
    Restart,
    /// The server's clock is changed.
    SetClock(i64),
    /// The primary vanishes, and a replica is promoted with the data that it has.
    FailOver,
    /// No replica confirms the data of a client.
    Unconfirmed,
    /// The network is cut in two. On one side are the first two nodes, one of three sentinels and the first run. On the other
    /// side the two other sentinels promote the third node.
    Split,
    /// Behind that cut, the single sentinel forgets the other sentinels, and all replicas that its primary doesn't list.
    Reset,
}

/// A network that is cut in two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// True if the sentinel on the old primary's side has forgotten everything beyond the cut.
    is_reset: bool,
}

/// The initial state, and the possible events.
#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Rules {
    pub name: &'static str,
    pub lock: Lock,
    pub clients: Vec<Setup>,
    pub has_plain: bool,
    pub plain_ttl: Duration,
    /// Earliest time at which the plain client comes.
    pub plain_from: Duration,
    pub deeds: Vec<Deed>,
    pub may_interrupt: bool,
    /// True if requests over a given-up connection may arrive later.
    pub keeps_strays: bool,
    /// True if the runs differ only in their names.
    pub are_alike: bool,
    /// Lead of the servers' clocks over those of the clients, in percent of the time.
    pub clock_fast: i64,
    /// Lead of each node's clock, in milliseconds; the first node is the primary.
    pub nodes: Vec<i64>,
    pub sync: Sync,
    /// True if, with `Sync::All`, a single sentinel's list of the replicas is enough.
    pub one_sentinel_lists: bool,
    pub kinds: Vec<Kind>,
    /// Number of runs, the first ones, that faults may hit.
    pub victims: usize,
    /// Largest number of faults.
    pub faults: u8,
    /// Virtual time of a history.
    pub horizon: Duration,
    pub promises: Vec<Promise>,
    pub replaced: Replaced,
    /// Judges of each call, and servers that must agree.
    pub witnesses: Vec<Rc<RefCell<dyn Witness>>>,
    pub interpreter: Rc<Interpreter>,
    /// Results of calls, by a digest of the data, the moment and the call; a search that merges no states repeats none.
    pub executed: Option<RefCell<HashMap<u128, Rc<Executed>>>>,
}

/// Number of results above which all are forgotten.
const KEPT: usize = 100_000;

/// Result of a call.
pub struct Executed {
    pub answer: Value,
    pub published: Vec<(Bytes, Bytes)>,
    /// The new data, if it differs.
    stored: Option<Rc<Stored>>,
}

impl Rules {
    fn source(&self, script: &'static Script) -> &'static str {
        let replaced = self.replaced.iter().find(|(hash, _)| *hash == script.hash);
        replaced.map_or(script.source, |(_, source)| *source)
    }

    /// Calls a script. Reuses the result of an equal call on the same data, because many states differ only in other things.
    fn execute(
        &self,
        before: &Stored,
        moment: &super::redis::Moment,
        asked: &Asked,
    ) -> Rc<Executed> {
        let Some(executed) = &self.executed else {
            return self.call(before, moment, asked);
        };
        let key = digest_of(&(before.exact_digest(), moment, asked.digest()));
        if let Some(executed) = executed.borrow().get(&key) {
            return Rc::clone(executed);
        }
        let done = self.call(before, moment, asked);
        let mut executed = executed.borrow_mut();
        if executed.len() >= KEPT {
            executed.clear();
        }
        executed.insert(key, Rc::clone(&done));
        done
    }

    fn call(&self, before: &Stored, moment: &super::redis::Moment, asked: &Asked) -> Rc<Executed> {
        let mut data = before.data.clone();
        let call = &asked.call;
        let source = self.source(call.script);
        let done = self
            .interpreter
            .eval(&mut data, moment, source, &call.keys, &call.args);
        Rc::new(Executed {
            answer: done.answer,
            published: done.published,
            stored: (done.writes > 0).then(|| Stored::new(data, self)),
        })
    }
}

/// Data of a server.
pub struct Stored {
    pub data: Data,
    exact_digest: Cached,
    digest: Cached,
    /// The last fencing token that was granted.
    pub fence: i64,
}

impl Stored {
    fn new(data: Data, rules: &Rules) -> Rc<Self> {
        Rc::new(Self {
            exact_digest: Cached::default(),
            digest: Cached::default(),
            fence: last_fence(&data, &rules.lock.keys),
            data,
        })
    }

    /// Returns a digest of all data.
    pub fn exact_digest(&self) -> u128 {
        self.exact_digest.get_or(|| digest_of(&self.data))
    }

    /// Returns a digest of the relevant data, without the fencing token.
    pub fn digest(&self, rules: &Rules) -> u128 {
        self.digest.get_or(|| digest_of_data(&self.data, rules))
    }
}

/// A server.
#[derive(Clone)]
pub struct Node {
    pub stored: Rc<Stored>,
    pub clock_ahead: i64,
    /// Length of the primary's log that it has for certain.
    pub confirmed: usize,
    pub is_up: bool,
}

/// Special values instead of the one replica that confirms a call.
const ALL: usize = usize::MAX;
const NOBODY: usize = usize::MAX - 1;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Start(usize),
    Interrupt(usize),
    CommandEnds(usize),
    Tick(usize),
    /// The server executes the first request of a client; if only some replicas confirm it, this one does.
    Serve(usize, usize),
    Receive(usize),
    /// The server executes a request over a given-up connection.
    ServeStray(usize),
    Plain,
    Deed(usize),
    Resume(usize),
    /// Delayed messages go on.
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
    /// Promotes a node with this much of the log.
    FailOver(usize, usize),
    ServeUnconfirmed(usize),
    /// Promotes the node on the other side with this much of the log.
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

/// The state of the whole model.
#[derive(Clone)]
pub struct World {
    pub rules: Rc<Rules>,
    pub now: Duration,
    pub nodes: Vec<Node>,
    /// Data of the primary after each write since its promotion.
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

    /// Returns the clock of a node, in microseconds since 1970.
    pub fn clock_us(&self, node: usize) -> i64 {
        let since = i64::try_from(self.now.as_micros()).expect("a time that fits");
        // After a loss of all data, the next grant comes at least this much later.
        let later = i64::from(self.facts.lost_data);
        let fast = since / 100 * self.rules.clock_fast;
        (START_MS + self.nodes[node].clock_ahead) * 1000 + since + fast + later
    }

    /// Returns the clock of the primary, in milliseconds since 1970.
    pub fn server_ms(&self) -> i64 {
        self.clock_us(self.network.primary) / 1000
    }

    /// Returns all possible next steps.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let now = self.moment();
        let mut someone_is_due = false;
        for client in &self.clients {
            let c = client.number;
            // Runs that differ only in their names start in the order of these.
            let is_next = c == 0 || !matches!(self.clients[c - 1].stage, Stage::New);
            // The command of a hold starts its guards.
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

    /// Returns a client whose next step affects only itself and its own messages. If no more faults are possible, all others
    /// can wait for it, because any order leads to the same state.
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

    /// Returns the replicas of a node.
    fn followers(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        let follows = move |node: usize| match self.split {
            None => of == self.network.primary,
            Some(_) => is_cut_off(node) == is_cut_off(of),
        };
        (0..self.nodes.len())
            .filter(move |&node| node != of && follows(node) && self.nodes[node].is_up)
    }

    /// Returns the replicas that must confirm the writes of a node, according to the sentinels that the client reaches; `None`
    /// if that is unknown.
    fn listed(&self, node: usize) -> Option<Vec<usize>> {
        let all = || {
            (0..self.nodes.len())
                .filter(|other| *other != node)
                .collect()
        };
        match self.split {
            Some(_) if is_cut_off(node) && !self.rules.one_sentinel_lists => None,
            Some(Split { is_reset: false }) if is_cut_off(node) => Some(all()),
            // Most sentinels consider the nodes beyond the cut down, and a sentinel that was reset doesn't know them.
            Some(_) | None => Some(self.followers(node).collect()),
        }
    }

    /// Returns true if a message is under way.
    fn is_busy(&self) -> bool {
        let clients = &self.clients;
        self.network
            .is_busy(self.now, |client| clients[client].is_active())
    }

    /// Returns the next time at which something is due, within the horizon.
    pub fn next_moment(&self) -> Option<Duration> {
        let of_clients = self.clients.iter().flat_map(|client| {
            let deadline = client.dead_by().filter(|_| client.has_command);
            // A stopped client doesn't check, so the promises that hold without it are judged after its deadline.
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

    /// Performs a step. Returns the promise that it breaks, if it does.
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
                    let before = self.nodes[stray.node].stored.exact_digest();
                    self.execute(stray.node, &stray.asked, None)?;
                    if self.nodes[stray.node].stored.exact_digest() != before {
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

    /// Runs a script on the primary for somebody who isn't among the clients.
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

    /// Returns true if there is a running waiter that can reach the servers.
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

    /// Executes the first request over a connection.
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

    /// Returns true if a grant or a renewal is valid, because enough replicas have it.
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

    /// Returns the state of a node at this time: its clock and its subscribers.
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

    /// Notifies each tracking client once of a change of the key, except the client that made it.
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

    /// Replaces the data of a node; the primary's also goes into the log.
    fn write(&mut self, node: usize, stored: Rc<Stored>) {
        self.nodes[node].stored = Rc::clone(&stored);
        if node == self.network.primary && self.nodes.len() > 1 {
            self.log.push(stored);
        }
    }

    /// Deletes expired keys for good, unless another clock could still need them, or the clock may be changed.
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

    /// Performs the next action of the plain client, with an immediate answer. Its lease starts with its request, so a later
    /// answer could only shorten it.
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
        // There is no such notice.
        if let Some(None) = key {
            return Ok(());
        }
        let key = key.flatten();
        let words = key
            .as_ref()
            .map_or(vec![&b"FLUSHALL"[..]], |key| vec![b"DEL", key]);
        self.command(&words).map(drop)
    }

    /// Cuts the network. The old primary lives on beside the new one, which has this much of its log.
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

    /// Removes the primary, and promotes a replica with this much of its log.
    fn fail_over(&mut self, to: usize, at: usize) {
        let from = self.network.primary;
        self.nodes[from].is_up = false;
        self.network.cut_all(from);
        let data = Rc::clone(&self.log[at]);
        self.network.primary = to;
        self.log = vec![Rc::clone(&data)];
        // The last writes may be among those that it lacks.
        self.facts.lost_data = true;
        for node in &mut self.nodes {
            node.confirmed = 0;
            node.stored = Rc::clone(&data);
        }
    }
}

/// Returns true if a node is on the side of the old primary after a cut.
fn is_cut_off(node: usize) -> bool {
    node < 2
}

/// Removes the last success from an answer: a run without `--once-per` only passes it to its command.
fn forget_success(answer: &mut Value, request: &Request) {
    if let Value::Array(fields) = answer
        && request.asked.call.script.hash == ACQUIRE.hash
        && let [Value::Int(1), _, _, ago] = fields.as_mut_slice()
    {
        *ago = Value::Int(-1);
    }
}

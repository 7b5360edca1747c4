//! One run of a plan: clients that behave as redlock does, on a network that delays, loses and
//! repeats, in simulated time. Times are in microseconds since the run began.

use std::collections::BTreeMap;

use super::plan::{self, Plan, What};
use super::promises::{Act, Broken, Promises, Step};
use super::scripts::{self, Answer, Call};
use super::server::{START, Simulated, View};
use crate::protocol::model::support::Dice;

const MS: i64 = 1_000;
const SECOND: i64 = 1_000_000;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    New,
    /// Asks for the lock, not for a place in the queue yet.
    Tries,
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
    /// The step that gave or confirmed it.
    pub step: u64,
}

#[allow(clippy::struct_excessive_bools)] // Each is one fact.
pub struct Client {
    pub plan: plan::Client,
    dice: Dice,
    pub phase: Phase,
    ticket: Option<i64>,
    polls: bool,
    listens: bool,
    channel: String,
    /// The request whose answer it waits for: its number, and when it was sent.
    pending: Option<(u64, i64)>,
    /// The number of its timer; an older one is void.
    timer: u64,
    pub belief: Option<Belief>,
    /// What was done up to this step says nothing about its lease any more.
    pub tainted: u64,
    /// The last question that was answered: when it was sent, the server's clock then (ms), and the step of the answer.
    asked: Option<(i64, i64, u64)>,
    /// The pause between two of its heartbeats.
    pub beat: i64,
    gives_up: i64,
    done: i64,
    renewed: i64,
    /// The short script may do for the next renewal.
    is_plain: bool,
    /// The longest lease that it has asked for, in milliseconds.
    pub asked_most: i64,
    stands_until: i64,
    farewells: u32,
    farewell: Option<Call>,
    keeps: i64,
    /// What reaches it comes in order.
    inbox: i64,
    ever_held: bool,
}

impl Client {
    fn new(plan: plan::Client) -> Self {
        Self {
            dice: Dice::new(plan.seed, 1),
            phase: Phase::New,
            ticket: None,
            polls: plan.manners.polls,
            listens: false,
            channel: scripts::channel(&plan.wish.token),
            pending: None,
            timer: 0,
            belief: None,
            tainted: 0,
            asked: None,
            beat: 0,
            gives_up: (plan.comes + plan.patience) * MS,
            done: 0,
            renewed: 0,
            is_plain: false,
            asked_most: plan.wish.ttl,
            stands_until: 0,
            farewells: 0,
            farewell: None,
            keeps: 0,
            inbox: 0,
            ever_held: false,
            plan,
        }
    }

    pub fn token(&self) -> &str {
        &self.plan.wish.token
    }
}

/// What is known of a request at the moment that it arrives.
#[derive(Clone, Debug)]
struct Request {
    client: usize,
    number: u64,
    act: Act,
    call: Call,
    is_answered: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Timer(usize, u64),
    Arrives(Request),
    Answered(usize, u64, Act, Answer, u64),
    Message(usize, String, u64),
    NoAnswer(usize, u64),
    Crash(usize),
    Stop(usize),
    Deed(usize),
}

pub struct World<'a> {
    server: &'a mut dyn Simulated,
    plan: &'a Plan,
    now: i64,
    /// By how much the server's clock is ahead.
    skew: i64,
    agenda: BTreeMap<(i64, u64), Event>,
    serial: u64,
    step: u64,
    clients: Vec<Client>,
    promises: Promises,
    view: View,
    trace: Option<Vec<String>>,
}

/// When a grant is confirmed.
const FIRST_RENEWAL: i64 = 50 * MS;

/// What two clocks may drift apart within a lease, as `src/decide/lease.rs` has it.
fn drift(lease: i64) -> i64 {
    lease / 100 + 2 * MS
}

/// What a lease is good for, likewise.
fn usable(lease: i64) -> i64 {
    lease - drift(lease) - (lease / 50).min(200 * MS)
}

fn heartbeat(ahead: i64) -> i64 {
    (2 * SECOND + SECOND / 2 * ahead)
        .min(8 * SECOND + 8 * MS * ahead)
        .min(30 * SECOND)
}

impl<'a> World<'a> {
    pub fn run(
        server: &'a mut dyn Simulated,
        plan: &'a Plan,
        is_traced: bool,
    ) -> Result<Done, Failure> {
        server.set_clock(START);
        server.clear();
        let mut world = World {
            server,
            plan,
            now: 0,
            skew: 0,
            agenda: BTreeMap::new(),
            serial: 0,
            step: 0,
            clients: plan.clients.iter().cloned().map(Client::new).collect(),
            promises: Promises::new(plan),
            view: View::default(),
            trace: is_traced.then(Vec::new),
        };
        match world.until_all_is_over() {
            Ok(()) => Ok(Done {
                steps: world.step,
                held: world.clients.iter().filter(|c| c.ever_held).count(),
            }),
            Err(broken) => Err(Failure {
                broken,
                trace: world.trace.unwrap_or_default(),
            }),
        }
    }

    fn until_all_is_over(&mut self) -> Result<(), Broken> {
        for n in 0..self.clients.len() {
            let plan = &self.clients[n].plan;
            let (comes, manners) = (plan.comes * MS, plan.manners.clone());
            self.at(comes, Event::Timer(n, 0));
            if let Some(after) = manners.crashes {
                self.at(comes + after * MS, Event::Crash(n));
            }
            if let Some((after, _)) = manners.stops {
                self.at(comes + after * MS, Event::Stop(n));
            }
        }
        for (n, deed) in self.plan.deeds.iter().enumerate() {
            self.at(deed.at * MS, Event::Deed(n));
        }
        while let Some(((at, _), event)) = self.agenda.pop_first() {
            self.now = self.now.max(at);
            self.happen(event)?;
            let (now, is_frozen) = (self.now, self.view.is_frozen());
            self.promises
                .believed(now, &self.view, is_frozen, &self.clients)?;
        }
        self.afterwards()
    }

    /// Everybody is gone; in the end nothing of them is left.
    fn afterwards(&mut self) -> Result<(), Broken> {
        self.pass(27 * 3_600);
        let wish = scripts::Wish {
            token: "visitor".into(),
            who: r#"{"host":"h"}"#.into(),
            ttl: 5_000,
            limit: 1,
            priority: 0,
            lifo: false,
            supersede: 0,
            number: None,
            once: 0,
        };
        let answer = self.execute("visitor", Act::Visit, &scripts::acquire(&wish, "", None))?;
        if !matches!(answer, Answer::Held { .. }) {
            let detail = format!("a day later it answers {answer:?}");
            return Err(Broken::new("P5: a lock that nobody uses is free", detail));
        }
        self.execute(
            "visitor",
            Act::Visit,
            &scripts::release("visitor", false, "status:0", 0),
        )?;
        let remembered = [
            scripts::Key::State,
            scripts::Key::History,
            scripts::Key::Index,
            scripts::Key::Notices,
        ];
        let is_left = |key: &&scripts::Key| !remembered.contains(key);
        if let Some(key) = self.view.keys.keys().find(is_left) {
            let detail = format!("{} is left after the last release", key.name());
            return Err(Broken::new("afterwards nothing but memory is left", detail));
        }
        self.pass(62 * 24 * 3_600);
        self.execute("nobody", Act::Visit, &scripts::command(&["PING"]))?;
        let left = self.server.size();
        if !left.is_empty() {
            let detail = format!("after two months there are {left:?}");
            return Err(Broken::new("afterwards nothing but memory is left", detail));
        }
        Ok(())
    }

    /// Lets seconds pass.
    fn pass(&mut self, seconds: i64) {
        self.now += seconds * SECOND;
    }

    fn at(&mut self, at: i64, event: Event) {
        self.serial += 1;
        self.agenda.insert((at, self.serial), event);
    }

    /// Writes a line of the trace, if it is wanted.
    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), Broken> {
        // A suspended client takes notice when it continues; a dead one never does.
        if let Event::Timer(n, _)
        | Event::Answered(n, ..)
        | Event::Message(n, ..)
        | Event::NoAnswer(n, _) = event
        {
            let client = &self.clients[n];
            if client.phase == Phase::Gone {
                return Ok(());
            }
            let until = client.stands_until;
            if until > self.now {
                self.at(until, event);
                return Ok(());
            }
        }
        match event {
            Event::Timer(n, timer) => {
                if timer == self.clients[n].timer {
                    self.wake(n);
                }
            }
            Event::Arrives(request) => self.arrives(&request)?,
            Event::Answered(n, number, act, answer, step) => {
                if let Some((expected, sent)) = self.clients[n].pending
                    && expected == number
                {
                    self.clients[n].pending = None;
                    self.answered(n, sent, act, answer, step);
                }
            }
            Event::Message(n, text, step) => self.message(n, &text, step),
            Event::NoAnswer(n, number) => {
                if self.clients[n]
                    .pending
                    .is_some_and(|(expected, _)| expected == number)
                {
                    self.clients[n].pending = None;
                    self.hang_up(n);
                    self.no_answer(n);
                }
            }
            Event::Crash(n) => {
                let client = &mut self.clients[n];
                if client.phase != Phase::Gone && client.phase != Phase::New {
                    let now = self.now;
                    self.note(|| format!("{} c{n} crashes", stamp(now)));
                }
                self.gone(n);
            }
            Event::Stop(n) => {
                let (_, long) = self.clients[n].plan.manners.stops.unwrap_or_default();
                self.clients[n].stands_until = self.now + long * MS;
                let now = self.now;
                self.note(|| format!("{} c{n} stands still for {long} ms", stamp(now)));
            }
            Event::Deed(n) => self.deed(self.plan.deeds[n].what)?,
        }
        Ok(())
    }

    /// Its connection is gone, and with it the subscription.
    fn hang_up(&mut self, n: usize) {
        if std::mem::take(&mut self.clients[n].listens) {
            let channel = self.clients[n].channel.clone();
            self.server.stop_listening(&channel);
        }
    }

    fn set_timer(&mut self, n: usize, at: i64) {
        self.clients[n].timer += 1;
        let timer = self.clients[n].timer;
        self.at(at.max(self.now), Event::Timer(n, timer));
    }

    fn gone(&mut self, n: usize) {
        self.clients[n].belief = None;
        self.clients[n].phase = Phase::Gone;
        self.hang_up(n);
    }

    /// What a client does when its timer expires.
    fn wake(&mut self, n: usize) {
        let now = self.now;
        let client = &mut self.clients[n];
        if client.pending.is_some() {
            return;
        }
        match client.phase {
            Phase::New | Phase::Tries => {
                client.phase = Phase::Tries;
                self.acquire(n);
            }
            Phase::Waits => {
                if now >= client.gives_up {
                    self.leave(n, false, "", 0);
                } else {
                    self.acquire(n);
                }
            }
            Phase::Holds => {
                let plan = &client.plan;
                if now >= client.done {
                    let (early, how, keep) = (plan.early, plan.how, plan.keep);
                    if early {
                        self.leave(n, true, "released", 0);
                    } else {
                        self.leave(n, false, how, keep);
                    }
                } else if plan.plain {
                    let done = client.done;
                    self.set_timer(n, done);
                } else {
                    self.renew(n);
                }
            }
            Phase::Leaves => self.bid_farewell(n),
            Phase::Gone => {}
        }
    }

    fn acquire(&mut self, n: usize) {
        let client = &mut self.clients[n];
        let wish = &client.plan.wish;
        if client.plan.plain {
            let call = scripts::plain_acquire(&wish.token, wish.ttl);
            self.send(n, Act::PlainAcquire(n), &call, SECOND);
            return;
        }
        let place = match client.phase {
            Phase::Tries => "",
            _ if client.polls => "poll",
            _ => "listen",
        };
        if place == "listen" && !client.listens {
            client.listens = true;
            let channel = client.channel.clone();
            self.server.listen(&channel);
        }
        let client = &self.clients[n];
        let call = scripts::acquire(&client.plan.wish, place, client.ticket);
        let queues = !place.is_empty();
        self.send(n, Act::Acquire { client: n, queues }, &call, SECOND);
    }

    fn renew(&mut self, n: usize) {
        let now = self.now;
        let client = &mut self.clients[n];
        client.renewed = now;
        let mut ttl = client.plan.wish.ttl;
        let extends =
            client.plan.manners.extends && client.asked_most == ttl && client.dice.chance(50);
        if extends {
            ttl *= 2;
            client.asked_most = ttl;
        }
        let within = (ttl * MS / 10).clamp(SECOND / 5, SECOND);
        let is_short = client.is_plain && !extends;
        // A whole renewal comes first, and then each is followed by the other kind.
        client.is_plain = !is_short;
        let call = if is_short {
            scripts::prolong(client.token(), ttl)
        } else {
            scripts::renew(client.token(), ttl, extends)
        };
        self.send(n, Act::Renew(n), &call, within);
    }

    /// Stops counting on the lock, and releases it or the place in the queue.
    fn leave(&mut self, n: usize, early: bool, how: &str, keep: i64) {
        let client = &mut self.clients[n];
        client.belief = None;
        client.phase = Phase::Leaves;
        client.keeps = keep;
        client.farewells = 0;
        client.farewell = Some(if client.plan.plain {
            scripts::plain_release(client.token())
        } else {
            scripts::release(client.token(), early, how, keep)
        });
        self.bid_farewell(n);
    }

    fn bid_farewell(&mut self, n: usize) {
        let client = &mut self.clients[n];
        client.farewells += 1;
        let Some(call) = client.farewell.clone().filter(|_| client.farewells <= 8) else {
            self.gone(n);
            return;
        };
        let act = if client.plan.plain {
            Act::PlainRelease(n)
        } else {
            let keeps = client.keeps > 0;
            Act::Release { client: n, keeps }
        };
        self.send(n, act, &call, SECOND);
    }

    fn send(&mut self, client: usize, act: Act, call: &Call, within: i64) {
        let now = self.now;
        let slowest = self.plan.slowest;
        self.serial += 1;
        let number = self.serial;
        let sender = &mut self.clients[client];
        sender.pending = Some((number, now));
        let manners = sender.plan.manners.clone();
        let dice = &mut sender.dice;
        let mut arrives = now + dice.between(50, slowest);
        let lost = dice.chance(manners.loses);
        let never_comes = dice.chance(50);
        if dice.chance(manners.late) {
            arrives = now + dice.between(SECOND, 4 * SECOND);
        }
        let is_repeated = dice.chance(manners.twice);
        self.at(now + within, Event::NoAnswer(client, number));
        if lost && never_comes {
            let now = self.now;
            self.note(|| format!("{} c{client} {act:?} is lost", stamp(now)));
            return;
        }
        let request = |is_answered| Request {
            client,
            number,
            act,
            call: call.clone(),
            is_answered,
        };
        if is_repeated {
            self.at(arrives, Event::Arrives(request(false)));
        }
        self.at(arrives, Event::Arrives(request(!lost)));
    }

    fn arrives(&mut self, request: &Request) -> Result<(), Broken> {
        let n = request.client;
        let name = format!("c{n}");
        let answer = self.execute(&name, request.act, &request.call)?;
        if !request.is_answered {
            self.note(|| "        (its answer is lost)".into());
            return Ok(());
        }
        let step = self.step;
        let at = self.reaches(n);
        self.at(
            at,
            Event::Answered(n, request.number, request.act, answer, step),
        );
        Ok(())
    }

    /// When something that the server sends now reaches a client.
    fn reaches(&mut self, n: usize) -> i64 {
        let slowest = self.plan.slowest;
        let client = &mut self.clients[n];
        let at = self.now + client.dice.between(50, slowest);
        client.inbox = client.inbox.max(at);
        client.inbox
    }

    /// Has the server run something now, passes on what it publishes, and sees to the promises.
    fn execute(&mut self, by: &str, act: Act, call: &Call) -> Result<Answer, Broken> {
        // No two things happen within the resolution of the fence.
        self.now += 100;
        self.step += 1;
        self.server.set_clock(START + self.now + self.skew);
        let (value, view, messages) = self.server.call(call);
        let before = std::mem::replace(&mut self.view, view);
        let name = call.script.unwrap_or("command");
        let stamp = stamp(self.now);
        // What all scripts are given says nothing.
        let args = match call.script {
            Some(script) if script != "inspect" => &call.args[3..],
            _ => &call.args[..],
        };
        self.note(|| format!("{stamp} {by} {name} {args:?}"));
        let value = value.map_err(|error| Broken::new("no script fails", error))?;
        let answer = scripts::read(call.script, &value)
            .map_err(|odd| Broken::new("answers have one form", odd))?;
        self.note(|| match answer {
            Answer::Other => format!("        = {value:?}"),
            _ => format!("        = {answer:?}"),
        });
        let view = self.trace.is_some().then(|| shown(&self.view));
        self.note(|| format!("        {}", view.unwrap_or_default()));
        let step = self.step;
        for (channel, text) in messages {
            let listener = |client: &Client| client.channel == channel;
            if let Some(n) = self.clients.iter().position(listener) {
                self.note(|| format!("        to c{n}: {text}"));
                let at = self.reaches(n);
                self.at(at, Event::Message(n, text, step));
            }
        }
        let step = Step {
            number: self.step,
            now: self.now,
            act,
            call,
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
            self.clients[n].tainted = self.step;
        }
        Ok(answer)
    }

    fn answered(&mut self, n: usize, sent: i64, act: Act, answer: Answer, step: u64) {
        let now = self.now;
        let client = &mut self.clients[n];
        match (act, answer) {
            (Act::Acquire { .. } | Act::PlainAcquire(_), Answer::Held { slot, .. }) => {
                if !matches!(client.phase, Phase::Tries | Phase::Waits) {
                    return;
                }
                let lease = client.plan.wish.ttl * MS;
                let until = sent + usable(lease);
                if now >= until {
                    // Too late to begin: it is asked for again.
                    self.set_timer(n, now);
                    return;
                }
                client.phase = Phase::Holds;
                client.ever_held = true;
                client.belief = Some(Belief { until, slot, step });
                client.done = now + client.plan.holds * MS;
                client.renewed = sent;
                self.next_renewal(n);
            }
            (
                Act::Acquire { queues, .. },
                Answer::Busy {
                    now: server,
                    ahead,
                    ticket,
                    polls,
                    left,
                    all,
                },
            ) => {
                client.asked = Some((sent, server, step));
                client.ticket = ticket.or(client.ticket);
                client.polls |= polls;
                if now >= client.gives_up {
                    if queues {
                        self.leave(n, false, "", 0);
                    } else {
                        self.gone(n);
                    }
                    return;
                }
                client.phase = Phase::Waits;
                if !queues {
                    // At once, now with a place in the queue.
                    self.acquire(n);
                    return;
                }
                client.beat = if client.polls {
                    let look = (SECOND / 4 + SECOND / 16 * ahead).min(SECOND);
                    look * client.dice.between(75, 125) / 100
                } else {
                    heartbeat(ahead)
                };
                let mut pause = client.beat;
                if (ahead == 0 || all) && left >= 0 {
                    pause = pause.min((left + 1) * MS);
                }
                let at = (now + pause).min(client.gives_up);
                self.set_timer(n, at);
            }
            (Act::Acquire { .. }, Answer::Enough { .. } | Answer::Removed) => {
                self.leave(n, false, "", 0);
            }
            (Act::Acquire { .. } | Act::PlainRelease(_), _) => self.gone(n),
            (Act::PlainAcquire(_), _) => {
                if now >= client.gives_up {
                    self.gone(n);
                } else {
                    let at = now + client.dice.between(200, 700) * MS;
                    self.set_timer(n, at);
                }
            }
            (Act::Renew(_), Answer::Ours { left }) => {
                if client.phase != Phase::Holds {
                    return;
                }
                if let Some(belief) = &mut client.belief {
                    let lease = left.min(client.asked_most) * MS;
                    belief.until = sent + usable(lease);
                    belief.step = step;
                }
                self.next_renewal(n);
            }
            (Act::Renew(_), Answer::Unsure) if client.phase == Phase::Holds => self.renew(n),
            (Act::Renew(_), _) if client.phase == Phase::Holds => {
                let how = client.plan.how;
                self.leave(n, false, how, 0);
            }
            (Act::Release { .. }, _) if client.phase == Phase::Leaves => {
                let how = client.plan.how;
                if client.plan.early && client.farewell.as_ref().is_some_and(is_early) {
                    // The run itself ends later, and releases what isn't its own any more.
                    self.leave(n, false, how, 0);
                } else {
                    self.gone(n);
                }
            }
            _ => {}
        }
    }

    fn next_renewal(&mut self, n: usize) {
        let client = &self.clients[n];
        let at = client.renewed + client.plan.wish.ttl * MS / 3;
        let at = at.min(client.done);
        self.set_timer(n, at);
    }

    fn no_answer(&mut self, n: usize) {
        let client = &mut self.clients[n];
        let pause = client.dice.between(0, SECOND / 4);
        let at = self.now + pause;
        self.set_timer(n, at);
    }

    fn message(&mut self, n: usize, text: &str, step: u64) {
        let now = self.now;
        let client = &mut self.clients[n];
        // A message that crosses a question is answered by it.
        if client.phase != Phase::Waits || client.pending.is_some() || !client.listens {
            return;
        }
        if now >= client.gives_up {
            self.leave(n, false, "", 0);
            return;
        }
        if let (Some((slot, at, lasting)), Some((asked, server, asked_at))) =
            (scripts::grant(text), client.asked)
            && client.plan.manners.starts_on_grant
            && at >= server
            // What a clock says that was set since then is worth nothing.
            && client.tainted < step
        {
            let later = (at - server) * MS;
            let from = (asked + later - drift(later)).min(now);
            let until = from + usable((lasting * MS).min(client.plan.wish.ttl * MS));
            if now < until {
                client.phase = Phase::Holds;
                client.ever_held = true;
                // It rests on the clock of that answer, too, which may have been set since then.
                let step = step.min(asked_at);
                client.belief = Some(Belief { until, slot, step });
                client.done = now + client.plan.holds * MS;
                let at = client.done.min(now + FIRST_RENEWAL);
                self.set_timer(n, at);
                return;
            }
        }
        self.acquire(n);
    }

    fn deed(&mut self, what: What) -> Result<(), Broken> {
        let who = r#"{"host":"op","user":"root","pid":1}"#;
        let held: Vec<String> = self.view.held().into_keys().collect();
        let one = |n: usize| held.get(n % held.len().max(1)).cloned();
        let (act, call) = match what {
            What::ForceAny => (Act::Force(None), scripts::force("", who)),
            What::ForceNobody => {
                let id = "0123456789ab";
                (Act::Force(Some(usize::MAX)), scripts::force(id, who))
            }
            What::ForceOne(n) => {
                let Some(token) = one(n) else { return Ok(()) };
                let victim = self
                    .clients
                    .iter()
                    .position(|client| client.token() == token);
                let id = scripts::id(&token);
                (
                    Act::Force(Some(victim.unwrap_or(usize::MAX))),
                    scripts::force(&id, who),
                )
            }
            What::Freeze(long) => (Act::Freeze, scripts::freeze(long, who)),
            What::Thaw => (Act::Thaw, scripts::thaw()),
            What::Delete(key) => (Act::Delete(key), scripts::command(&["DEL", key.name()])),
            What::SetClock(by) => {
                self.skew += by * MS;
                let now = self.now;
                self.note(|| format!("{} the server's clock is set by {by} ms", stamp(now)));
                (Act::SetClock(by), scripts::command(&["PING"]))
            }
            What::Check(n) => {
                let token = one(n).unwrap_or_else(|| "stranger".into());
                (Act::Look, scripts::check(&token, 10_000))
            }
            What::Inspect => (Act::Look, scripts::inspect()),
            What::History => (Act::Look, scripts::history()),
        };
        self.execute("somebody", act, &call).map(drop)
    }
}

fn is_early(call: &Call) -> bool {
    call.args.iter().any(|arg| arg == "released")
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

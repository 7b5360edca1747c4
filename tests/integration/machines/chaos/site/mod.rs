//! The servers of a run of chaos, and what befalls them: processes that die, hang and come back with or
//! without their data, full memory, clocks that are set, lines that are slow or cut, failovers.
//!
//! A fault begins with [`Site::inject`], and ends by itself when [`Site::tick`] finds that its time is over.

mod cluster;
mod each;
pub mod line;
mod sentinel;
mod server;
mod single;

use std::time::{Duration, Instant};

use crate::support::{Dice, Redis, WallClock};

/// What the servers are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Single,
    Sentinel,
    Cluster,
}

/// What servers have forgotten of what they had acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    Nothing,
    Everything,
    /// Writes of the last second or two.
    Latest,
    /// This key: the lock itself.
    Lock(String),
    /// This key, which stands beside a lock, and what it is: "queue", "state".
    Sibling(String, &'static str),
}

/// A fault that has begun.
#[derive(Clone, Debug)]
pub struct Injected {
    pub what: String,
    /// Something that matters is forgotten: documented promises may break around it.
    pub loses_data: bool,
    pub loses: Loss,
    /// A replica may take over, without what `--sync all` doesn't wait for: locks of plain clients, freezes,
    /// releases, the queue.
    pub promotes: bool,
    /// A server's clock is set, and leases end sooner or later than was asked for.
    pub sets_clock: bool,
    /// The time until it ends; what it leads to (a failover, say) may take longer.
    pub lasts: Duration,
}

impl Injected {
    fn new(what: impl Into<String>, lasts: Duration) -> Self {
        Self {
            what: what.into(),
            loses_data: false,
            loses: Loss::Nothing,
            promotes: false,
            sets_clock: false,
            lasts,
        }
    }

    /// One that is over as soon as it has begun.
    fn at_once(what: impl Into<String>) -> Self {
        Self::new(what, Duration::ZERO)
    }

    /// No fault at all, and why.
    fn nothing(why: &str) -> Self {
        Self::at_once(format!("nothing: {why}"))
    }

    fn losing(mut self, loss: Loss) -> Self {
        // What only tells of the past is missed by nobody.
        let past = ["history", "skips", "index"];
        self.loses_data = match &loss {
            Loss::Nothing => false,
            Loss::Sibling(_, kind) => !past.contains(kind),
            Loss::Everything | Loss::Latest | Loss::Lock(_) => true,
        };
        self.loses = loss;
        self
    }

    fn setting_the_clock(mut self) -> Self {
        self.sets_clock = true;
        self
    }
}

/// The servers of a run, all gone when dropped.
pub struct Site(Box<dyn Topology>);

impl Site {
    /// Starts them; all is well when this returns.
    pub fn start(kind: Kind, dice: &mut Dice) -> Self {
        Self(match kind {
            Kind::Single => Box::new(single::Single::start(dice)),
            Kind::Sentinel => Box::new(sentinel::Watched::start(dice)),
            Kind::Cluster => Box::new(cluster::Sharded::start(dice)),
        })
    }

    /// What was drawn when it was started, for people.
    pub fn described(&self) -> String {
        self.0.described()
    }

    /// The URL for redlock.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// The options with which all runs and acquires have to begin here.
    pub fn options(&self) -> Vec<String> {
        self.0.options()
    }

    /// The shortest and the longest TTL, in milliseconds, that make sense here.
    pub fn ttls(&self) -> (u64, u64) {
        self.0.ttls()
    }

    /// What the keys of locks begin with.
    pub fn prefix(&self) -> &'static str {
        self.0.prefix()
    }

    /// What begins the command of a client, drawn anew for each, so that it runs on one of the site's hosts.
    pub fn place(&self, dice: &mut Dice) -> Vec<String> {
        self.0.place(dice)
    }

    /// Where a plain client connects now: the host and the port of the server that takes writes.
    pub fn plain_address(&self) -> Option<(String, u16)> {
        self.0.plain_address()
    }

    /// The server that has the keys now, to look at by its Unix socket, which no line leads to.
    pub fn observer(&self) -> Option<&Redis> {
        self.0.observer()
    }

    /// The names of what can be injected; those that are to happen more often occur more often.
    pub fn faults(&self) -> &'static [&'static str] {
        self.0.faults()
    }

    /// Begins a fault. Takes 50 ms at most.
    pub fn inject(&mut self, fault: &str, dice: &mut Dice) -> Injected {
        self.0.inject(fault, dice)
    }

    /// Ends what is due. To be called every 20 ms or so. Returns what has happened without having been
    /// injected, as on a busy machine a server may seem dead to the others.
    pub fn tick(&mut self) -> Vec<Injected> {
        self.go_on();
        self.0.noticed()
    }

    fn go_on(&mut self) {
        let now = Instant::now();
        while let Some(then) = self.0.later().due(now) {
            self.0.carry_out(then);
        }
        self.0.look_after();
    }

    /// Whether all servers are well now.
    pub fn is_whole(&mut self) -> bool {
        self.0.later().0.is_empty() && self.0.lacking().is_none()
    }

    /// Ends all faults; returns when all is well again, or, where that takes too long, what isn't.
    pub fn heal(&mut self) -> Result<(), String> {
        let later = std::mem::take(&mut self.0.later().0);
        for (_, then) in later {
            self.0.carry_out(then);
        }
        let end = Instant::now() + HEALING;
        let mut well_since: Option<Instant> = None;
        loop {
            self.go_on();
            match self.0.lacking() {
                None => {
                    let since = *well_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.0.settles_in() {
                        return Ok(());
                    }
                }
                Some(lacking) => {
                    if Instant::now() >= end {
                        return Err(lacking);
                    }
                    well_since = None;
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// How long it may take until all is well, where nothing is done about it any more.
const HEALING: Duration = Duration::from_secs(60);

/// When something is tried again that a server didn't do.
const AGAIN: Duration = Duration::from_millis(50);

/// What the kinds of sites have in common.
trait Topology {
    fn described(&self) -> String;
    fn url(&self) -> String;
    fn options(&self) -> Vec<String>;
    fn ttls(&self) -> (u64, u64);
    fn prefix(&self) -> &'static str {
        "redlock:"
    }
    fn place(&self, _dice: &mut Dice) -> Vec<String> {
        Vec::new()
    }
    fn plain_address(&self) -> Option<(String, u16)>;
    fn observer(&self) -> Option<&Redis>;
    fn faults(&self) -> &'static [&'static str];
    fn inject(&mut self, fault: &str, dice: &mut Dice) -> Injected;
    fn noticed(&mut self) -> Vec<Injected> {
        Vec::new()
    }
    /// How long all has to be well until nothing more comes of what was: one server may still be about to take the
    /// place of another.
    fn settles_in(&self) -> Duration {
        Duration::ZERO
    }
    fn later(&mut self) -> &mut Later;
    fn carry_out(&mut self, then: Then);
    /// What is done again and again.
    fn look_after(&mut self);
    /// What isn't well.
    fn lacking(&mut self) -> Option<String>;
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Stopped,
    Dead,
}

/// What ends a fault. Servers are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// A stopped server goes on.
    Resume(usize),
    /// A dead server starts.
    Launch(usize),
    /// A dead server starts also where it was the primary and has lost all.
    Restart(usize),
    /// A full server has memory again.
    Free(usize),
    /// Lines are as they should be.
    Open,
    /// The clock of a server is set by this many milliseconds.
    SetClock(i64),
    /// A stopped sentinel goes on.
    ResumeSentinel(usize),
    /// A dead sentinel starts.
    LaunchSentinel(usize),
    /// The host of a server is in the network again.
    Mend(usize),
    /// A server lets the sentinels and the others in again.
    LetIn(usize),
    /// The rest of a slot is moved.
    Move,
}

/// What is to be done later, the order as it comes.
#[derive(Default)]
struct Later(Vec<(Instant, Then)>);

impl Later {
    fn after(&mut self, time: Duration, then: Then) {
        self.0.push((Instant::now() + time, then));
    }

    fn due(&mut self, now: Instant) -> Option<Then> {
        let at = self.0.iter().position(|(at, _)| *at <= now)?;
        Some(self.0.remove(at).1)
    }
}

/// A duration of this many milliseconds, the end excluded.
fn ms(dice: &mut Dice, from: i64, to: i64) -> Duration {
    Duration::from_millis(dice.between(from, to).unsigned_abs())
}

/// How far clocks are ahead at most, in milliseconds: somewhat less than the clock skew that redlock expects.
const APART: i64 = 450;

/// The clocks of servers, which aren't quite the same.
fn clocks(count: usize, dice: &mut Dice) -> Vec<WallClock> {
    let ahead = (0..count).map(|_| dice.between(0, APART));
    ahead.map(WallClock::ahead_by).collect()
}

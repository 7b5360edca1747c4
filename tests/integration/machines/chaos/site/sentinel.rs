//! A primary, two replicas and three sentinels. Where namespaces are permitted, each server shares a host with
//! a sentinel and some of the clients, and hosts can be cut off; elsewhere a server refuses the others.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::server::{answers, disturb, tell};
use super::{AGAIN, APART, Injected, Later, Loss, State, Then, Topology, clocks, ms};
use crate::support::{
    Dice, MASTER, Network, Plan, Redis, Replicated, Sentinel, WallClock, free_port, permit_channels,
};

/// How long a server is missing before a sentinel takes it for down, or less.
const NOTICED: Duration = Duration::from_millis(800);

/// What can be injected; first what needs hosts.
const FAULTS: [&str; 27] = [
    "host cut",
    "host cut",
    "host of the primary cut",
    "host of the primary cut",
    "primary killed",
    "primary killed",
    "primary killed",
    "primary restarted",
    "primary stopped",
    "primary stopped",
    "primary shut in",
    "failover asked",
    "failover asked",
    "replica killed",
    "replica stopped",
    "replica cut",
    "sentinel killed",
    "sentinel stopped",
    "memory full",
    "clients reset",
    "a client reset",
    "writes paused",
    "all paused",
    "scripts flushed",
    "slow command",
    "a lock deleted",
    "a key deleted",
];
const OF_HOSTS: usize = 4;

/// Longer than it takes from the end of a server's silence to the failover that it leads to.
const SETTLED: Duration = Duration::from_millis(1500);

/// How often it is seen whether the replicas have it all.
const LOOKING: Duration = Duration::from_millis(200);

pub struct Watched {
    // Gone before the hosts are.
    all: Replicated,
    network: Option<Network>,
    _clocks: Vec<WallClock>,
    keeps_data: bool,
    servers: [State; 3],
    sentinels: [State; 3],
    /// Which servers the others don't reach, and which hosts are cut off.
    shut_in: [bool; 3],
    cut: [bool; 3],
    /// Since when a server has missed what the others have.
    missing: [Option<Instant>; 3],
    /// What was launched and has to be told something as soon as it answers.
    new_servers: Vec<usize>,
    new_sentinels: Vec<usize>,
    /// When it was last seen whether the replicas have it all.
    looked: Instant,
    /// The one that was the primary when that was last seen.
    last: Option<usize>,
    noticed: Vec<Injected>,
    later: Later,
}

impl Watched {
    pub fn start(dice: &mut Dice) -> Self {
        let keeps_data = dice.chance(50);
        let network = if dice.chance(67) {
            Network::of(3)
        } else {
            None
        };
        let mut options = vec!["--enable-debug-command", "local"];
        if keeps_data {
            options.extend(["--appendonly", "yes", "--appendfsync", "always"]);
        }
        let clocks = clocks(3, dice);
        let before = clocks.iter().map(WallClock::before).enumerate();
        let all = Replicated::with(&Plan {
            options: &options,
            before: before.collect(),
            network: network.as_ref(),
            ports: Some(free_port),
            ..Plan::default()
        });
        Self {
            all,
            network,
            _clocks: clocks,
            keeps_data,
            servers: [State::Running; 3],
            sentinels: [State::Running; 3],
            shut_in: [false; 3],
            cut: [false; 3],
            missing: [None; 3],
            new_servers: Vec::new(),
            new_sentinels: Vec::new(),
            looked: Instant::now(),
            last: Some(0),
            noticed: Vec::new(),
            later: Later::default(),
        }
    }

    /// The number of the server that most sentinels call the primary, of those that can be asked.
    fn primary(&self) -> Option<usize> {
        let mut votes: HashMap<u16, usize> = HashMap::new();
        for (sentinel, state) in self.all.sentinels.iter().zip(self.sentinels) {
            let port = (state == State::Running).then(|| sentinel.primary_port());
            if let Some(port) = port.flatten() {
                *votes.entry(port).or_default() += 1;
            }
        }
        let (port, _) = votes.into_iter().max_by_key(|(_, votes)| *votes)?;
        self.all.servers.iter().position(|one| one.port == port)
    }

    /// One that isn't the primary and runs, where there is one.
    fn replica(&self, dice: &mut Dice) -> Option<usize> {
        let primary = self.primary()?;
        let runs = |number: &usize| self.servers[*number] == State::Running;
        let others: Vec<usize> = (0..3).filter(|&n| n != primary).filter(runs).collect();
        (!others.is_empty()).then(|| dice.pick(&others))
    }

    /// Sees whether another one has become the primary.
    fn notice(&mut self) {
        let now = self.primary();
        if now.is_some() && now != self.last {
            let what = format!("the primary is now {}", now.unwrap_or_default());
            self.noticed.push(self.promoting(what, Duration::ZERO));
            self.last = now;
        }
    }

    /// From now on a server may miss what the others get.
    fn misses(&mut self, number: usize) {
        self.missing[number].get_or_insert_with(Instant::now);
    }

    /// What a change of the primary loses now. A grant has been confirmed by each replica that wasn't taken for
    /// down; one that was, and is promoted before it has caught up, knows nothing of it.
    fn at_risk(&self) -> Loss {
        let is_behind =
            |since: &Option<Instant>| since.is_some_and(|since| since.elapsed() > NOTICED);
        if self.missing.iter().any(is_behind) {
            Loss::Latest
        } else {
            Loss::Nothing
        }
    }

    /// A fault that may change the primary.
    fn promoting(&self, what: String, lasts: Duration) -> Injected {
        let injected = Injected::new(what, lasts).losing(self.at_risk());
        Injected {
            promotes: true,
            ..injected
        }
    }

    fn kill(&mut self, number: usize, role: &str, dice: &mut Dice) -> Injected {
        let was_whole = self.missing == [None; 3];
        let what = format!("the {role} {number} is killed");
        let mut injected = self.promoting(what, ms(dice, 200, 6000));
        if !self.keeps_data && !was_whole {
            // Sentinels may promote it for what it had.
            injected = injected.losing(Loss::Latest);
        }
        self.die(number);
        self.later.after(injected.lasts, Then::Launch(number));
        injected
    }

    /// A primary that comes back before anybody has missed it.
    fn restart(&mut self, number: usize, dice: &mut Dice) -> Injected {
        let time = ms(dice, 20, 300);
        let injected = self.promoting(format!("the primary {number} restarts"), time);
        self.die(number);
        self.later.after(time, Then::Restart(number));
        if self.keeps_data {
            injected
        } else {
            injected.losing(Loss::Everything)
        }
    }

    fn die(&mut self, number: usize) {
        let primary = self.primary().filter(|&primary| primary != number);
        let address = primary.map(|primary| {
            let host = self.all.sentinels[primary].host.as_str();
            (host, self.all.servers[primary].port)
        });
        self.all.servers[number].remember_role(address);
        self.all.servers[number].kill();
        self.servers[number] = State::Dead;
        self.shut_in[number] = false;
        self.misses(number);
        if !self.keeps_data {
            // What it comes back with is nothing, however soon that is.
            self.missing[number] = Instant::now().checked_sub(NOTICED * 2);
        }
    }

    fn launch(&mut self, number: usize) {
        self.all.servers[number].launch_again();
        self.servers[number] = State::Running;
        self.new_servers.push(number);
    }

    fn stop(&mut self, number: usize, role: &str, dice: &mut Dice) -> Injected {
        let time = ms(dice, 100, 6000);
        let injected = self.promoting(format!("the {role} {number} is stopped"), time);
        self.all.servers[number].stall();
        self.servers[number] = State::Stopped;
        self.misses(number);
        self.later.after(time, Then::Resume(number));
        injected
    }

    fn ask_for_failover(&self) -> Injected {
        let injected = self.promoting("SENTINEL FAILOVER".into(), Duration::ZERO);
        let runs = self.sentinels.iter().position(|one| *one == State::Running);
        let asked =
            runs.and_then(|one| self.all.sentinels[one].ask(&["SENTINEL", "FAILOVER", MASTER]));
        match asked {
            Some(_) => injected,
            None => Injected::nothing("no sentinel does that now"),
        }
    }

    fn cut_replication(&mut self, primary: usize, replica: usize, dice: &mut Dice) -> Injected {
        if !answers(&self.all.servers[primary]) {
            return Injected::nothing("the primary doesn't answer");
        }
        let time = ms(dice, 200, 5000);
        let what = format!("the primary {primary} refuses the replica {replica}");
        let injected = self.promoting(what, time);
        self.all.refuse(primary, &format!("server-{replica}"));
        self.shut_in[primary] = true;
        self.misses(replica);
        self.later.after(time, Then::LetIn(primary));
        injected
    }

    fn shut_in(&mut self, primary: usize, dice: &mut Dice) -> Injected {
        if !answers(&self.all.servers[primary]) {
            return Injected::nothing("the primary doesn't answer");
        }
        let time = ms(dice, 200, 8000);
        let what = format!("the primary {primary} refuses sentinels and replicas");
        let injected = self.promoting(what, time);
        self.all.shut_in(primary);
        self.shut_in[primary] = true;
        (0..3).for_each(|number| self.misses(number));
        self.later.after(time, Then::LetIn(primary));
        injected
    }

    /// A server, a sentinel and the clients of one host see each other alone.
    fn cut_host(&mut self, number: usize, dice: &mut Dice) -> Injected {
        let Some(network) = &self.network else {
            unreachable!("there are no hosts");
        };
        let time = ms(dice, 200, 8000);
        let injected = self.promoting(format!("the host {number} is cut off"), time);
        network.cut(number);
        self.cut[number] = true;
        self.misses(number);
        self.later.after(time, Then::Mend(number));
        injected
    }

    fn disturb_sentinel(&mut self, is_killed: bool, dice: &mut Dice) -> Injected {
        let number = dice.pick(&[0, 1, 2]);
        if self.sentinels[number] != State::Running {
            return Injected::nothing("that sentinel isn't there");
        }
        let time = ms(dice, 200, 5000);
        let sentinel = &self.all.sentinels[number];
        let (state, then, word) = if is_killed {
            sentinel.kill();
            (State::Dead, Then::LaunchSentinel(number), "killed")
        } else {
            sentinel.stall();
            (State::Stopped, Then::ResumeSentinel(number), "stopped")
        };
        self.sentinels[number] = state;
        self.later.after(time, then);
        Injected::new(format!("the sentinel {number} is {word}"), time)
    }

    fn fill(&mut self, number: usize, dice: &mut Dice) -> Injected {
        tell(&self.all.servers[number], words!("CONFIG SET maxmemory 1"));
        let time = ms(dice, 200, 3000);
        self.later.after(time, Then::Free(number));
        Injected::new(format!("the memory of {number} is full"), time)
    }

    fn all_run(&self) -> bool {
        let states = self.servers.iter().chain(&self.sentinels);
        let reached = ![self.shut_in, self.cut].concat().contains(&true);
        reached
            && states.into_iter().all(|state| *state == State::Running)
            && self.new_servers.is_empty()
            && self.new_sentinels.is_empty()
    }
}

impl Topology for Watched {
    fn described(&self) -> String {
        let hosts = match self.network {
            Some(_) => "on a host each",
            None => "on one host",
        };
        let data = if self.keeps_data { "all" } else { "nothing" };
        format!(
            "a primary, two replicas and three sentinels, {hosts}; a server that dies keeps {data}; clocks up to {APART} ms apart"
        )
    }

    fn url(&self) -> String {
        self.all.url()
    }

    fn options(&self) -> Vec<String> {
        ["--sync", "all"].map(str::to_owned).to_vec()
    }

    fn ttls(&self) -> (u64, u64) {
        (3000, 9000)
    }

    fn place(&self, dice: &mut Dice) -> Vec<String> {
        match &self.network {
            Some(network) => network.on(dice.pick(&[0, 1, 2])),
            None => Vec::new(),
        }
    }

    fn plain_address(&self) -> Option<(String, u16)> {
        let primary = self.primary()?;
        let host = self.all.sentinels[primary].host.clone();
        Some((host, self.all.servers[primary].port))
    }

    fn observer(&self) -> Option<&Redis> {
        let primary = self.primary()?;
        (self.servers[primary] == State::Running).then(|| &self.all.servers[primary])
    }

    fn faults(&self) -> &'static [&'static str] {
        match self.network {
            Some(_) => &FAULTS,
            None => &FAULTS[OF_HOSTS..],
        }
    }

    fn inject(&mut self, fault: &str, dice: &mut Dice) -> Injected {
        match fault {
            "sentinel killed" => return self.disturb_sentinel(true, dice),
            "sentinel stopped" => return self.disturb_sentinel(false, dice),
            "failover asked" => return self.ask_for_failover(),
            "host cut" => return self.cut_host(dice.pick(&[0, 1, 2]), dice),
            _ => {}
        }
        let Some(primary) = self.primary() else {
            return Injected::nothing("there is no primary");
        };
        if fault == "host of the primary cut" {
            return self.cut_host(primary, dice);
        }
        if let Some(deed) = fault.strip_prefix("replica ") {
            let Some(replica) = self.replica(dice) else {
                return Injected::nothing("there is no replica");
            };
            return match deed {
                "killed" => self.kill(replica, "replica", dice),
                "stopped" => self.stop(replica, "replica", dice),
                _ if self.servers[primary] != State::Running => Injected::nothing("no primary"),
                _ => self.cut_replication(primary, replica, dice),
            };
        }
        match (fault, self.servers[primary]) {
            (_, State::Dead) => Injected::nothing("the primary is dead"),
            ("primary killed", _) => self.kill(primary, "primary", dice),
            ("primary restarted", _) => self.restart(primary, dice),
            (_, State::Stopped) => Injected::nothing("the primary is stopped"),
            ("primary stopped", _) => self.stop(primary, "primary", dice),
            ("primary shut in", _) => self.shut_in(primary, dice),
            ("memory full", _) => self.fill(primary, dice),
            (fault, State::Running) => disturb(&self.all.servers[primary], fault, dice),
        }
    }

    fn noticed(&mut self) -> Vec<Injected> {
        std::mem::take(&mut self.noticed)
    }

    fn settles_in(&self) -> Duration {
        SETTLED
    }

    fn later(&mut self) -> &mut Later {
        &mut self.later
    }

    fn carry_out(&mut self, then: Then) {
        match then {
            Then::Resume(number) => {
                if self.servers[number] == State::Stopped {
                    self.all.servers[number].resume();
                    self.servers[number] = State::Running;
                }
            }
            // The empty one would be the primary again, and the replicas empty as well.
            Then::Launch(number)
                if !self.keeps_data && self.primary().is_none_or(|of| of == number) =>
            {
                self.later.after(AGAIN, then);
            }
            Then::Launch(number) | Then::Restart(number) => self.launch(number),
            Then::Free(number) => {
                let server = &self.all.servers[number];
                let told = tell(server, &["CONFIG", "SET", "maxmemory", "0"]);
                if told.is_none() && self.servers[number] != State::Dead {
                    self.later.after(AGAIN, then);
                }
            }
            Then::ResumeSentinel(number) => {
                self.all.sentinels[number].resume();
                self.sentinels[number] = State::Running;
            }
            Then::LaunchSentinel(number) => {
                self.all.sentinels[number].launch_again();
                self.sentinels[number] = State::Running;
                self.new_sentinels.push(number);
            }
            Then::Mend(number) => {
                if let Some(network) = &self.network {
                    network.mend(number);
                }
                self.cut[number] = false;
            }
            Then::LetIn(number) => match self.servers[number] {
                State::Running => {
                    self.all.let_in(number);
                    self.shut_in[number] = false;
                }
                State::Stopped => self.later.after(AGAIN, then),
                // It lets all in when it starts.
                State::Dead => {}
            },
            Then::Open | Then::SetClock(_) | Then::Move => {
                unreachable!("nothing of the kind is here")
            }
        }
    }

    fn look_after(&mut self) {
        let Self {
            all,
            new_servers,
            new_sentinels,
            ..
        } = self;
        new_servers.retain(|&number| {
            let server = &all.servers[number];
            let is_up = answers(server);
            if is_up {
                permit_channels(server);
            }
            !is_up
        });
        new_sentinels.retain(|&number| !all.sentinels[number].hurry());
        if self.looked.elapsed() < LOOKING {
            return;
        }
        self.notice();
        if self.missing != [None; 3] && self.lacking().is_none() {
            self.missing = [None; 3];
        }
        self.looked = Instant::now();
    }

    fn lacking(&mut self) -> Option<String> {
        if !self.all_run() {
            let Self {
                servers,
                sentinels,
                shut_in,
                cut,
                ..
            } = self;
            return Some(format!(
                "servers {servers:?}, sentinels {sentinels:?}, shut in {shut_in:?}, cut off {cut:?}"
            ));
        }
        let silent = self.all.servers.iter().find(|server| !answers(server));
        match silent {
            Some(server) => Some(format!("the server at {} doesn't answer", server.port)),
            None => self.all.lacking().map(|lacking| {
                let each = self.all.sentinels.iter();
                let named: Vec<_> = each.map(Sentinel::primary_port).collect();
                format!("{lacking}; the primary's port is {named:?}")
            }),
        }
    }
}

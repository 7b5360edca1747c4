//! A primary, two replicas and three sentinels.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::history::{Forgets, SiteFault};
use super::{AGAIN, Later, State, Then, Topology, answers, disturb, draw_options, ms, tell};
use crate::support::{Dice, MASTER, Plan, Redis, Replicated, WallClock, permit_channels};

/// Largest lead of a server's clock, in milliseconds: somewhat less than the clock skew that redlock expects.
const APART: i64 = 450;

/// Shortest silence after which sentinels consider a server down.
const DOWN_AFTER: Duration = Duration::from_millis(800);

/// Longer than the time from the end of a server's silence to the failover that it causes.
const SETTLED: Duration = Duration::from_millis(1500);

/// Time between two checks of the replicas.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub struct Watched {
    all: Replicated,
    _clocks: Vec<WallClock>,
    keeps_data: bool,
    servers: [State; 3],
    sentinels: [State; 3],
    /// Times since which servers have missed writes.
    behind_since: [Option<Instant>; 3],
    /// Launched ones that must be told something as soon as they answer.
    new_servers: Vec<usize>,
    new_sentinels: Vec<usize>,
    looked: Instant,
    /// Primary at the last check.
    last: Option<usize>,
    noticed: Vec<SiteFault>,
    later: Later,
}

impl Watched {
    pub fn start(dice: &mut Dice) -> Self {
        let (keeps_data, options) = draw_options(dice);
        let clocks = std::iter::repeat_with(|| WallClock::ahead_by(dice.between(0, APART)));
        let clocks: Vec<WallClock> = clocks.take(3).collect();
        let before = clocks.iter().map(WallClock::before).enumerate();
        let all = Replicated::with(&Plan {
            options: &options,
            before: before.collect(),
            ..Plan::default()
        });
        Self {
            all,
            _clocks: clocks,
            keeps_data,
            servers: [State::Running; 3],
            sentinels: [State::Running; 3],
            behind_since: [None; 3],
            new_servers: Vec::new(),
            new_sentinels: Vec::new(),
            looked: Instant::now(),
            last: Some(0),
            noticed: Vec::new(),
            later: Later::default(),
        }
    }

    /// Returns the number of the server that most reachable sentinels call the primary.
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

    fn note_behind(&mut self, number: usize) {
        self.behind_since[number].get_or_insert_with(Instant::now);
    }

    /// Returns a fault that may change the primary. A replica that seemed down hasn't confirmed the latest grants, and may be
    /// promoted before it has caught up.
    fn promoting(&self, what: String, lasts: Duration) -> SiteFault {
        let is_behind =
            |since: &Option<Instant>| since.is_some_and(|since| since.elapsed() > DOWN_AFTER);
        let forgets = if self.behind_since.iter().any(is_behind) {
            Forgets::Holds
        } else {
            Forgets::Nothing
        };
        SiteFault {
            promotes: true,
            ..SiteFault::new(what, lasts).forgetting(forgets)
        }
    }

    /// Kills a server, which returns later, or before the sentinels notice.
    fn kill(&mut self, number: usize, may_be_missed: bool, dice: &mut Dice) -> SiteFault {
        let was_whole = self.behind_since == [None; 3];
        let time = if may_be_missed {
            ms(dice, 200, 6000)
        } else {
            ms(dice, 20, 300)
        };
        let mut fault = self.promoting(number.to_string(), time);
        // Sentinels may promote an empty server because of the data that it had.
        let may_return_empty = !may_be_missed || !was_whole;
        if !self.keeps_data && may_return_empty {
            fault.forgets = Forgets::Holds;
        }
        let primary = self.primary().filter(|&primary| primary != number);
        let address = primary.map(|primary| {
            let host = self.all.sentinels[primary].host.as_str();
            (host, self.all.servers[primary].port)
        });
        self.all.servers[number].remember_role(address);
        self.all.servers[number].kill();
        self.servers[number] = State::Dead;
        self.note_behind(number);
        if !self.keeps_data {
            // The server returns empty, however soon.
            self.behind_since[number] = Instant::now().checked_sub(DOWN_AFTER * 2);
        }
        let again = if may_be_missed {
            Then::Launch
        } else {
            Then::Restart
        };
        self.later.after(time, again(number));
        fault
    }

    fn suspend(&mut self, number: usize, dice: &mut Dice) -> SiteFault {
        let fault = self.promoting(number.to_string(), ms(dice, 100, 6000));
        self.all.servers[number].stall();
        self.servers[number] = State::Suspended;
        self.note_behind(number);
        self.end_later(&fault, Then::Resume(number));
        fault
    }

    fn disturb_sentinel(&mut self, fault: &str, dice: &mut Dice) -> Option<SiteFault> {
        let number = dice.below(3);
        if self.sentinels[number] != State::Running {
            return None;
        }
        let sentinel = &mut self.all.sentinels[number];
        let then = if fault == "sentinel killed" {
            sentinel.kill();
            self.sentinels[number] = State::Dead;
            Then::LaunchSentinel(number)
        } else {
            sentinel.stall();
            self.sentinels[number] = State::Suspended;
            Then::ResumeSentinel(number)
        };
        let fault = SiteFault::new(number.to_string(), ms(dice, 200, 5000));
        self.end_later(&fault, then);
        Some(fault)
    }

    fn end_later(&mut self, fault: &SiteFault, then: Then) {
        let time = Duration::from_nanos(fault.span.length().unsigned_abs());
        self.later.after(time, then);
    }
}

impl Topology for Watched {
    fn described(&self) -> String {
        let data = if self.keeps_data { "all" } else { "nothing" };
        format!("a primary, two replicas and three sentinels; a server that dies keeps {data}")
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("REDLOCK_URL", self.all.url()),
            ("REDLOCK_SYNC", "all".into()),
        ]
    }

    fn ttls(&self) -> (i64, i64) {
        (3000, 9000)
    }

    fn observer(&self) -> Option<&Redis> {
        let primary = self.primary()?;
        (self.servers[primary] == State::Running).then(|| &self.all.servers[primary])
    }

    fn faults(&self) -> &'static str {
        "primary killed, primary killed, primary killed, primary restarted, primary suspended, \
         primary suspended, failover asked, failover asked, replica killed, replica suspended, \
         sentinel killed, sentinel suspended, memory full, clients reset, clients reset, \
         writes paused, all paused, scripts flushed, slow command, a key deleted, a key deleted"
    }

    fn inject(&mut self, fault: &str, dice: &mut Dice) -> Option<SiteFault> {
        if fault.starts_with("sentinel ") {
            return self.disturb_sentinel(fault, dice);
        }
        let primary = self.primary()?;
        let state = self.servers[primary];
        if fault.starts_with("replica ") {
            let is_replica =
                |number: &usize| *number != primary && self.servers[*number] == State::Running;
            let replicas: Vec<usize> = (0..3).filter(is_replica).collect();
            if replicas.is_empty() {
                return None;
            }
            let replica = dice.pick(&replicas);
            return match fault {
                "replica killed" => Some(self.kill(replica, true, dice)),
                _ => Some(self.suspend(replica, dice)),
            };
        }
        match fault {
            "failover asked" => {
                let fault = self.promoting("SENTINEL FAILOVER".into(), Duration::ZERO);
                let one = self
                    .sentinels
                    .iter()
                    .position(|one| *one == State::Running)?;
                self.all.sentinels[one].ask(&["SENTINEL", "FAILOVER", MASTER])?;
                Some(fault)
            }
            _ if state == State::Dead => None,
            "primary killed" => Some(self.kill(primary, true, dice)),
            "primary restarted" => Some(self.kill(primary, false, dice)),
            _ if state == State::Suspended => None,
            "primary suspended" => Some(self.suspend(primary, dice)),
            "memory full" => {
                tell(&self.all.servers[primary], words!("CONFIG SET maxmemory 1"));
                let fault = SiteFault::new(primary.to_string(), ms(dice, 200, 3000));
                self.end_later(&fault, Then::Free(primary));
                Some(fault)
            }
            fault => disturb(&self.all.servers[primary], fault, dice),
        }
    }

    fn noticed(&mut self) -> Vec<SiteFault> {
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
            Then::Resume(number) if self.servers[number] == State::Suspended => {
                self.all.servers[number].resume();
                self.servers[number] = State::Running;
            }
            // An empty server would become the primary again, and empty the replicas too.
            Then::Launch(number)
                if !self.keeps_data && self.primary().is_none_or(|of| of == number) =>
            {
                self.later.after(AGAIN, then);
            }
            Then::Launch(number) | Then::Restart(number) => {
                self.all.servers[number].launch_again();
                self.servers[number] = State::Running;
                self.new_servers.push(number);
            }
            Then::Free(number) => {
                let reply = tell(&self.all.servers[number], words!("CONFIG SET maxmemory 0"));
                if reply.is_none() && self.servers[number] != State::Dead {
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
            _ => {}
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
            let is_up = answers(&all.servers[number]);
            if is_up {
                permit_channels(&all.servers[number]);
            }
            !is_up
        });
        new_sentinels.retain(|&number| !all.sentinels[number].hurry());
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        let primary = self.primary();
        if primary.is_some() && primary != self.last {
            let fault = self.promoting(format!("the primary is now {primary:?}"), Duration::ZERO);
            self.noticed.push(fault);
            self.last = primary;
        }
        if self.behind_since != [None; 3] && self.lacking().is_none() {
            self.behind_since = [None; 3];
        }
        self.looked = Instant::now();
    }

    fn lacking(&mut self) -> Option<String> {
        let mut states = self.servers.iter().chain(&self.sentinels);
        let are_new = !self.new_servers.is_empty() || !self.new_sentinels.is_empty();
        if are_new || states.any(|state| *state != State::Running) {
            let (servers, sentinels) = (self.servers, self.sentinels);
            return Some(format!(
                "{servers:?}, sentinels {sentinels:?}, new {are_new}"
            ));
        }
        let silent = self.all.servers.iter().find(|server| !answers(server));
        match silent {
            Some(server) => Some(format!("the server at {} doesn't answer", server.port)),
            None => self.all.lacking(),
        }
    }
}

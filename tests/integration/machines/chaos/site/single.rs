//! One server behind a line. Whether it keeps its data when it dies is drawn.

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::line::Line;
use super::server::{answers, disturb, tell};
use super::{AGAIN, Injected, Later, Loss, State, Then, Topology, ms};
use crate::support::{Dice, Redis, WallClock, free_port, wait_until};

/// What the server has after its process has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// All that it has acknowledged.
    All,
    /// All but the last second or two.
    Most,
    Nothing,
}

pub struct Single {
    redis: Redis,
    state: State,
    line: Line,
    /// How far it is ahead, in milliseconds.
    ahead: i64,
    clock: WallClock,
    keeps: Keeps,
    /// How long the append-only file was in the last second.
    sizes: VecDeque<(Instant, u64)>,
    later: Later,
}

impl Single {
    pub fn start(dice: &mut Dice) -> Self {
        let keeps = dice.pick(&[Keeps::All, Keeps::Most, Keeps::Nothing]);
        let clock = WallClock::ahead_by(0);
        let options: &[&str] = match keeps {
            Keeps::All => &["--appendonly", "yes", "--appendfsync", "always"],
            Keeps::Most => &["--appendonly", "yes", "--appendfsync", "everysec"],
            Keeps::Nothing => &[],
        };
        let options = [options, &["--enable-debug-command", "local"]].concat();
        let before = clock.before();
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let redis = Redis::at(free_port, &before, &options);
        let line = Line::new();
        line.lead_to(redis.port);
        Self {
            redis,
            state: State::Running,
            line,
            ahead: 0,
            clock,
            keeps,
            sizes: VecDeque::new(),
            later: Later::default(),
        }
    }

    /// What a death of the process loses. Where the file is written each second, the kernel has what was
    /// written when the process dies; only a host that dies takes that along, and a slow disk delays it.
    fn loss(&self) -> Loss {
        match self.keeps {
            Keeps::All => Loss::Nothing,
            Keeps::Most => Loss::Latest,
            Keeps::Nothing => Loss::Everything,
        }
    }

    fn die(&mut self, how: &str, dice: &mut Dice) -> Injected {
        self.redis.kill();
        self.state = State::Dead;
        let time = ms(dice, 20, 1500);
        self.later.after(time, Then::Launch(0));
        Injected::new(how, time).losing(self.loss())
    }

    fn shut_down(&mut self, dice: &mut Dice) -> Injected {
        if !answers(&self.redis) {
            return Injected::nothing("the server doesn't answer");
        }
        tell(&self.redis, &["SHUTDOWN", "NOSAVE"]);
        // The file is written before the end, if there is one.
        wait_until("the server shuts down", || self.redis.has_ended());
        let injected = self.die("SHUTDOWN NOSAVE", dice);
        match self.keeps {
            Keeps::Most => injected.losing(Loss::Nothing),
            Keeps::All | Keeps::Nothing => injected,
        }
    }

    /// The host dies: of what was written but not synced, some is lost.
    fn cut_power(&mut self, dice: &mut Dice) -> Injected {
        let injected = self.die("the host loses power", dice);
        let sizes: Vec<u64> = self.sizes.drain(..).map(|(_, size)| size).collect();
        if let (Keeps::Most, false, Some(file)) = (self.keeps, sizes.is_empty(), self.file()) {
            let size = dice.pick(&sizes);
            let file = fs::OpenOptions::new().write(true).open(file).unwrap();
            let lost = file.metadata().unwrap().len().saturating_sub(size);
            file.set_len(size).unwrap();
            return Injected {
                what: format!("the host loses power, and {lost} bytes"),
                ..injected
            };
        }
        injected
    }

    /// The append-only file that grows.
    fn file(&self) -> Option<PathBuf> {
        let dir = self.redis.dir.path();
        let old = dir.join("appendonly.aof");
        let parts = fs::read_dir(dir.join("appendonlydir"));
        let parts = parts
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let grows = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
        parts.filter(grows).max().or(old.exists().then_some(old))
    }

    fn remember_size(&mut self) {
        if self.keeps != Keeps::Most || self.state != State::Running {
            return;
        }
        let Some(Ok(file)) = self.file().map(fs::metadata) else {
            return;
        };
        let now = Instant::now();
        self.sizes.push_back((now, file.len()));
        let is_old = |(at, _): &(Instant, u64)| now - *at > Duration::from_secs(1);
        while self.sizes.front().is_some_and(is_old) {
            self.sizes.pop_front();
        }
    }

    fn set_clock(&mut self, by: i64) {
        self.ahead += by;
        self.clock.set(self.ahead);
    }

    /// Forward for good, or back for a while: it would leave dead holders their leases for as long.
    fn step(&mut self, dice: &mut Dice) -> Injected {
        let by = dice.pick(&[10, 60, 600, 3600]) * 1000;
        if dice.chance(50) {
            self.set_clock(by);
            let what = format!("the clock goes {} s forward", by / 1000);
            return Injected::at_once(what).setting_the_clock();
        }
        let time = ms(dice, 1000, 8000);
        self.set_clock(-by);
        self.later.after(time, Then::SetClock(by));
        let what = format!(
            "the clock goes {} s back, and forward again later",
            by / 1000
        );
        Injected::new(what, time).setting_the_clock()
    }

    fn fill(&mut self, dice: &mut Dice) -> Injected {
        if !answers(&self.redis) {
            return Injected::nothing("the server doesn't answer");
        }
        tell(&self.redis, &["CONFIG", "SET", "maxmemory", "1"]);
        let time = ms(dice, 200, 3000);
        self.later.after(time, Then::Free(0));
        Injected::new("the memory is full", time)
    }

    fn stop(&mut self, dice: &mut Dice) -> Injected {
        self.redis.stall();
        self.state = State::Stopped;
        let time = ms(dice, 100, 3000);
        self.later.after(time, Then::Resume(0));
        Injected::new("the server is stopped", time)
    }
}

impl Topology for Single {
    fn described(&self) -> String {
        format!("one server that keeps {:?} of its data", self.keeps).to_lowercase()
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.line.port)
    }

    fn options(&self) -> Vec<String> {
        Vec::new()
    }

    fn ttls(&self) -> (u64, u64) {
        (1000, 4000)
    }

    fn plain_address(&self) -> Option<(String, u16)> {
        Some(("127.0.0.1".into(), self.line.port))
    }

    fn observer(&self) -> Option<&Redis> {
        (self.state == State::Running).then_some(&self.redis)
    }

    fn faults(&self) -> &'static [&'static str] {
        &[
            "server killed",
            "server killed",
            "power lost",
            "server shut down",
            "server stopped",
            "server stopped",
            "memory full",
            "clients reset",
            "a client reset",
            "a client reset",
            "writes paused",
            "all paused",
            "scripts flushed",
            "slow command",
            "all keys deleted",
            "a lock deleted",
            "a key deleted",
            "clock set",
            "line slow",
            "line reset",
            "line held",
            "line held",
            "line silent",
            "line refused",
            "replies lost",
            "replies lost",
        ]
    }

    fn inject(&mut self, fault: &str, dice: &mut Dice) -> Injected {
        match fault {
            fault if fault.starts_with("line") || fault == "replies lost" => {
                let injected = self.line.disturb(fault, dice);
                self.later.after(injected.lasts, Then::Open);
                injected
            }
            "clock set" => self.step(dice),
            _ if self.state == State::Dead => Injected::nothing("the server is dead"),
            "server killed" => self.die("the server is killed", dice),
            "power lost" => self.cut_power(dice),
            _ if self.state == State::Stopped => Injected::nothing("the server is stopped"),
            "server shut down" => self.shut_down(dice),
            "server stopped" => self.stop(dice),
            "memory full" => self.fill(dice),
            fault => disturb(&self.redis, fault, dice),
        }
    }

    fn later(&mut self) -> &mut Later {
        &mut self.later
    }

    fn carry_out(&mut self, then: Then) {
        match then {
            Then::Resume(_) => {
                if self.state == State::Stopped {
                    self.redis.resume();
                    self.state = State::Running;
                }
            }
            Then::Launch(_) | Then::Restart(_) => {
                self.redis.launch_again();
                self.state = State::Running;
            }
            Then::Free(_) => {
                let told = tell(&self.redis, &["CONFIG", "SET", "maxmemory", "0"]);
                // A dead one begins anew with what it needs.
                if told.is_none() && self.state != State::Dead {
                    self.later.after(AGAIN, then);
                }
            }
            Then::Open => {
                self.line.open();
            }
            Then::SetClock(by) => self.set_clock(by),
            Then::ResumeSentinel(_)
            | Then::LaunchSentinel(_)
            | Then::Mend(_)
            | Then::LetIn(_)
            | Then::Move => {
                unreachable!("nothing of the kind is here")
            }
        }
    }

    fn look_after(&mut self) {
        self.remember_size();
    }

    fn lacking(&mut self) -> Option<String> {
        (!answers(&self.redis)).then(|| format!("the server doesn't answer: {:?}", self.state))
    }
}

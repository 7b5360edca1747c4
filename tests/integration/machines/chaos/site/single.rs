//! A server behind a proxy. A draw decides whether the server keeps its data when it dies.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::history::{Forgets, SiteFault};
use super::{AGAIN, Later, State, Then, Topology, answers, disturb, draw_options, ms, tell};
use crate::support::proxy::{Action, Proxy};
use crate::support::{Dice, Redis, WallClock, free_port};

pub struct Single {
    redis: Redis,
    state: State,
    proxy: Proxy,
    /// Current treatment of each request.
    action: Arc<Mutex<Action>>,
    /// Lead of its clock, in milliseconds.
    ahead: i64,
    clock: WallClock,
    keeps_data: bool,
    later: Later,
}

impl Single {
    pub fn start(dice: &mut Dice) -> Self {
        let (keeps_data, options) = draw_options(dice);
        let clock = WallClock::ahead_by(0);
        let redis = Redis::at(free_port, &clock.before(), &options);
        let action = Arc::new(Mutex::new(Action::Pass));
        let current = Arc::clone(&action);
        Self {
            proxy: Proxy::with(&redis, move |_| *current.lock().unwrap()),
            redis,
            state: State::Running,
            action,
            ahead: 0,
            clock,
            keeps_data,
            later: Later::default(),
        }
    }

    fn die(&mut self, dice: &mut Dice) -> SiteFault {
        self.redis.kill();
        self.state = State::Dead;
        let time = ms(dice, 20, 1500);
        self.later.after(time, Then::Launch(0));
        SiteFault::new("", time).forgetting(if self.keeps_data {
            Forgets::Nothing
        } else {
            Forgets::Holds
        })
    }

    /// Begins a fault of the network, which affects each request until it ends.
    fn disturb_line(&self, fault: &str, dice: &mut Dice) -> SiteFault {
        let time = ms(dice, 50, 3000);
        let action = match fault {
            "line slow" => {
                self.proxy.set_round_trip(ms(dice, 10, 800));
                Action::Pass
            }
            "line held" => Action::Stall(time),
            "line loses requests" => Action::LoseRequest,
            "line loses replies" => Action::LoseReply,
            "line resets" => Action::Reset,
            "line resets after requests" => Action::ResetReply,
            _ => unreachable!("no such fault: {fault}"),
        };
        *self.action.lock().unwrap() = action;
        SiteFault::new("", time)
    }

    fn set_clock(&mut self, by: i64) {
        self.ahead += by;
        self.clock.set(self.ahead);
    }

    /// Sets the clock forward for good, or back for a while only, because dead holders would keep their leases for as long.
    fn step(&mut self, dice: &mut Dice) -> SiteFault {
        let by = dice.pick(&[10, 60, 600, 3600]) * 1000;
        let (by, time) = if dice.chance(50) {
            (by, Duration::ZERO)
        } else {
            let time = ms(dice, 1000, 8000);
            self.later.after(time, Then::SetClock(by));
            (-by, time)
        };
        self.set_clock(by);
        SiteFault {
            sets_clock: true,
            ..SiteFault::new(format!("by {} s", by / 1000), time)
        }
    }
}

impl Topology for Single {
    fn described(&self) -> String {
        let data = if self.keeps_data { "all" } else { "nothing" };
        format!("one server, which keeps {data} when it dies")
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![("REDLOCK_URL", self.proxy.url())]
    }

    fn ttls(&self) -> (i64, i64) {
        (1000, 4000)
    }

    fn observer(&self) -> Option<&Redis> {
        (self.state == State::Running).then_some(&self.redis)
    }

    fn faults(&self) -> &'static str {
        "killed, killed, killed, suspended, suspended, memory full, clients reset, clients reset, \
         writes paused, all paused, scripts flushed, slow command, all keys deleted, a key deleted, \
         a key deleted, clock set, line slow, line held, line held, line loses requests, \
         line loses replies, line resets, line resets after requests"
    }

    fn inject(&mut self, fault: &str, dice: &mut Dice) -> Option<SiteFault> {
        let (fault, then) = match fault {
            _ if fault.starts_with("line ") => (self.disturb_line(fault, dice), Then::EndLineFault),
            "clock set" => return Some(self.step(dice)),
            _ if self.state == State::Dead => return None,
            "killed" => return Some(self.die(dice)),
            _ if self.state == State::Suspended => return None,
            "suspended" => {
                self.redis.stall();
                self.state = State::Suspended;
                (SiteFault::new("", ms(dice, 100, 3000)), Then::Resume(0))
            }
            "memory full" => {
                if !answers(&self.redis) {
                    return None;
                }
                tell(&self.redis, words!("CONFIG SET maxmemory 1"));
                (SiteFault::new("", ms(dice, 200, 3000)), Then::Free(0))
            }
            _ => return disturb(&self.redis, fault, dice),
        };
        let time = Duration::from_nanos(fault.span.length().unsigned_abs());
        self.later.after(time, then);
        Some(fault)
    }

    fn later(&mut self) -> &mut Later {
        &mut self.later
    }

    fn carry_out(&mut self, then: Then) {
        match then {
            Then::Resume(_) if self.state == State::Suspended => {
                self.redis.resume();
                self.state = State::Running;
            }
            Then::Launch(_) => {
                self.redis.launch_again();
                self.state = State::Running;
            }
            Then::Free(_) => {
                let reply = tell(&self.redis, words!("CONFIG SET maxmemory 0"));
                // A dead server starts with enough memory.
                if reply.is_none() && self.state != State::Dead {
                    self.later.after(AGAIN, then);
                }
            }
            Then::EndLineFault => {
                self.proxy.set_round_trip(Duration::ZERO);
                *self.action.lock().unwrap() = Action::Pass;
            }
            Then::SetClock(by) => self.set_clock(by),
            _ => {}
        }
    }

    fn lacking(&mut self) -> Option<String> {
        (!answers(&self.redis)).then(|| format!("the server doesn't answer: {:?}", self.state))
    }
}

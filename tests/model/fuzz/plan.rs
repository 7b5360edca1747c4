//! What is going to happen in a run, all of it drawn from a seed: which client comes when and wants what, how
//! each behaves, and what befalls the lock.

use std::time::Duration;

use super::view::Key;
use crate::clock::Moment;
use crate::decide::lease::Terms;
use crate::decide::wait::WaitLimit;
use crate::protocol::claim::QueueOptions;
use crate::protocol::model::client::{Guarding, Setup};
use crate::protocol::model::scenarios;
use crate::protocol::model::support::Dice;
use crate::protocol::model::support::lua::id;
use crate::protocol::model::world::BOOT;
use crate::protocol::{Claim, Guard, Limit, Lock, Request, Supersede, Token, Who};

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub clients: Vec<Client>,
    pub deeds: Vec<Deed>,
    /// The longest that a request or an answer is under way, in microseconds.
    pub slowest: i64,
    /// The server's clock is set.
    pub sets_clock: bool,
}

/// A run of redlock, or a plain client. Times are in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Draws what is left to chance during the run.
    pub seed: u64,
    pub comes: i64,
    pub wish: Wish,
    /// Guards the hold of the run with this token. It comes so long after that run's command was started.
    pub guards: Option<String>,
    /// Takes the lock with SET NX PX and knows of nothing else.
    pub plain: bool,
    /// How long it waits; 0: not at all.
    pub patience: i64,
    pub holds: i64,
    /// It keeps the lock for at least this long.
    pub keep: i64,
    /// Its job releases the lock before the run ends.
    pub early: bool,
    /// How its command ends, as the kernel has it.
    pub ends_with: i32,
    pub manners: Manners,
}

/// What one client asks for, always the same.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub token: String,
    /// Others could find out whether its process lives.
    pub is_watched: bool,
    pub ttl: i64,
    pub limit: i64,
    pub queue: QueueOptions,
    pub once: i64,
    /// A success with this key is enough.
    pub key: Option<&'static str>,
    /// The client runs although the lock is frozen.
    pub ignores_freeze: bool,
}

impl Wish {
    /// Whether older runs give up for it.
    pub fn supersedes(&self) -> bool {
        self.queue.supersede != Supersede::Nobody
    }
}

/// The limit of a shared request: none.
pub const SHARED: i64 = 1_000_000_000;

/// So many milliseconds, or none.
pub fn ms(number: i64) -> Duration {
    Duration::from_millis(number.max(0).unsigned_abs())
}

impl Client {
    /// The shipped client that does it. A guard guards the hold of the client with the number `run`.
    pub fn setup(&self, lock: &Lock, run: usize) -> Setup {
        let (wish, usual) = (&self.wish, scenarios::run(0));
        let claim = |token: &str| {
            let token = Token::read(token.to_owned().into()).expect("a token");
            Claim::resume(lock.clone(), token)
        };
        let ttl = ms(wish.ttl);
        let guards = self.guards.as_ref().map(|token| Guarding {
            run,
            guard: Guard::of(claim(token), &id(&wish.token), &usual.wish.who),
        });
        Setup {
            claim: claim(&wish.token),
            guards,
            wish: Request {
                who: Who {
                    instance: wish.is_watched.then(|| "i".into()),
                    ttl: Some(wish.ttl.unsigned_abs()),
                    once: wish.key.map(str::to_owned),
                    ignores_freeze: wish.ignores_freeze,
                    ..usual.wish.who
                },
                ttl,
                limit: Limit::of(u32::try_from(wish.limit).expect("a limit")),
                queue: wish.queue,
                once_per: ms(wish.once),
                once_key: wish.key.map(str::to_owned),
                ..usual.wish
            },
            terms: Terms {
                ttl,
                kill_after: Duration::ZERO,
                ..usual.terms
            },
            limit: WaitLimit::Until(Moment::at(BOOT + ms(self.comes + self.patience))),
            starts_on_grant: self.manners.starts_on_grant
                && wish.once == 0
                && wish.key.is_none()
                && wish.queue.number.is_none(),
            polls: self.manners.polls,
            ends_with: self.ends_with,
            keep_for: ms(self.keep),
            host: "elsewhere",
            ..usual
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// Of a hundred requests this many are lost, or their answers are.
    pub loses: i64,
    /// Of a hundred requests this many arrive seconds later.
    pub late: i64,
    /// Of a hundred requests this many arrive once more, just after they were answered.
    pub twice: i64,
    /// Looks for its turn; no message can reach it.
    pub polls: bool,
    /// Its work begins with the message of the grant, before the confirmation is answered.
    pub starts_on_grant: bool,
    /// Lengthens its lease beyond what it asked for.
    pub extends: bool,
    /// Dies this long after it came.
    pub crashes: Option<i64>,
    /// Stands still from then on, and for how long.
    pub stops: Option<(i64, i64)>,
}

impl Manners {
    /// Nothing disturbs it, so it has what the manual promises to everybody.
    pub fn are_perfect(&self) -> bool {
        self.loses == 0 && self.late == 0 && self.crashes.is_none() && self.stops.is_none()
    }
}

/// What befalls the lock, and when (in milliseconds).
#[derive(Clone, Debug)]
pub struct Deed {
    pub at: i64,
    pub what: What,
}

#[derive(Clone, Copy, Debug)]
pub enum What {
    ForceAny,
    /// One of the holders, by this number.
    ForceOne(usize),
    ForceNobody,
    /// One of the holders is asked to end.
    Stop(usize),
    /// A run that ended without the lock is noted.
    Skip,
    Freeze(i64),
    Thaw,
    Delete(Key),
    /// The server's clock is set forwards or backwards by this many milliseconds.
    SetClock(i64),
    Check(usize),
    Inspect,
    History,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let mut dice = Dice::new(seed, 0);
        let long = dice.between(30_000, 90_000);
        let sets_clock = dice.chance(20);
        let kinds = Kinds::draw(&mut dice);
        let count = dice.between(12, 70);
        let mut clients: Vec<Client> = (0..count)
            .map(|n| kinds.client(&mut dice, n, long))
            .collect();
        let mut deeds = Vec::new();
        let mut add =
            |dice: &mut Dice, percent: i64, most: i64, what: &mut dyn FnMut(&mut Dice) -> What| {
                if dice.chance(percent) {
                    for _ in 0..dice.between(1, most + 1) {
                        let at = dice.between(0, long);
                        deeds.push(Deed {
                            at,
                            what: what(dice),
                        });
                    }
                }
            };
        add(&mut dice, 30, 4, &mut |dice| match dice.between(0, 4) {
            0 => What::ForceAny,
            1 => What::ForceNobody,
            n => What::ForceOne(usize::try_from(n).unwrap()),
        });
        add(&mut dice, 30, 4, &mut |dice| {
            if dice.chance(70) {
                What::Freeze(dice.between(100, 10_000))
            } else {
                What::Thaw
            }
        });
        // The guards are drawn later, and the index isn't the lock's own.
        let mut evicted = Key::ALL.to_vec();
        evicted.retain(|key| !matches!(key, Key::Index | Key::Exempt | Key::Guards));
        add(&mut dice, 35, 4, &mut |dice| {
            What::Delete(dice.pick(&evicted))
        });
        add(&mut dice, 50, 4, &mut |dice| match dice.between(0, 3) {
            0 => What::Inspect,
            1 => What::History,
            _ => What::Check(usize::try_from(dice.between(0, 30)).unwrap()),
        });
        if sets_clock {
            add(&mut dice, 100, 4, &mut |dice| {
                let furthest = dice.pick(&[500, 5_000, 60_000, 3_600_000]);
                What::SetClock(dice.between(-furthest, furthest))
            });
        }
        let slowest = if dice.chance(20) { 150_000 } else { 700 };
        if dice.chance(50) {
            for n in 0..dice.between(1, count) {
                let runs = [(); 2].map(|()| &clients[dice.below(usize::try_from(count).unwrap())]);
                let run = runs.into_iter().max_by_key(|run| run.holds).unwrap();
                let guard = kinds.guard(&mut dice, n, run);
                clients.extend(guard);
            }
        }
        for _ in 0..dice.pick(&[0, 0, 2]) {
            let held = dice.below(4);
            let what = dice.pick(&[What::Stop(held), What::Skip, What::Delete(Key::Guards)]);
            let at = dice.between(0, long);
            deeds.push(Deed { at, what });
        }
        Self {
            seed,
            clients,
            deeds,
            slowest,
            sets_clock,
        }
    }
}

/// What clients a run has: a run with few kinds disturbs less, so more can be promised.
struct Kinds {
    limits: Vec<i64>,
    plain: i64,
    misbehaves: i64,
    supersedes: i64,
    once: i64,
    keeps: i64,
}

impl Kinds {
    fn draw(dice: &mut Dice) -> Self {
        let all: [&[i64]; 8] = [
            &[1],
            &[1],
            &[2],
            &[3, 2],
            &[SHARED],
            &[SHARED, 1],
            &[SHARED, SHARED, 3, 1],
            &[1, 2, 3, SHARED],
        ];
        Self {
            limits: dice.pick(&all).to_vec(),
            plain: dice.pick(&[0, 0, 15]),
            misbehaves: dice.pick(&[0, 30, 70]),
            supersedes: dice.pick(&[0, 0, 25, 60]),
            once: dice.pick(&[0, 0, 0, 0, 0, 40]),
            keeps: dice.pick(&[0, 0, 0, 40]),
        }
    }

    /// A guard of a run, unless that is a plain client.
    fn guard(&self, dice: &mut Dice, n: i64, run: &Client) -> Option<Client> {
        let mut guard = self.client(dice, n, run.holds + 1_000);
        guard.guards = Some(run.wish.token.clone());
        guard.wish = Wish {
            token: format!("guard-{n}"),
            ..run.wish.clone()
        };
        (guard.plain, guard.early, guard.manners.extends) = (false, false, false);
        // Some requests come so late that it has left meanwhile, and its run goes on.
        if dice.chance(30) {
            (guard.comes, guard.manners.late) = (dice.between(0, 500), 60);
        }
        (!run.plain).then_some(guard)
    }

    fn client(&self, dice: &mut Dice, n: i64, long: i64) -> Client {
        let plain = dice.chance(self.plain);
        let supersede = if dice.chance(self.supersedes) {
            let waiters = Supersede::Waiters;
            dice.pick(&[waiters, waiters, Supersede::HoldersToo])
        } else {
            Supersede::Nobody
        };
        let is_numbered = supersede != Supersede::Nobody && dice.chance(50);
        let wish = Wish {
            token: if plain {
                format!("plain-{n}")
            } else {
                format!("{n:04x}:host:{n}")
            },
            is_watched: dice.chance(70),
            ttl: dice.between(1_000, 10_000),
            limit: if plain { 1 } else { dice.pick(&self.limits) },
            queue: QueueOptions {
                supersede,
                number: is_numbered.then(|| dice.between(1, 30).unsigned_abs()),
                most_waiting: match dice.below(9) {
                    7 => Some(1),
                    8 => Some(3),
                    _ => None,
                },
            },
            key: if dice.chance(self.once) {
                dice.pick(&[None, Some("monday"), Some("tuesday")])
            } else {
                None
            },
            ignores_freeze: dice.chance(10),
            once: if dice.chance(self.once) {
                dice.between(1_000, 20_000)
            } else {
                0
            },
        };
        let mut manners = Manners {
            twice: dice.pick(&[0, 0, 20]),
            polls: dice.chance(15),
            starts_on_grant: dice.chance(50),
            extends: dice.chance(10),
            ..Manners::default()
        };
        if dice.chance(self.misbehaves) {
            match dice.between(0, 5) {
                0 => manners.loses = dice.between(5, 50),
                1 => manners.late = dice.between(5, 30),
                2 => manners.crashes = Some(dice.between(0, 15_000)),
                3 => manners.stops = Some((dice.between(0, 10_000), dice.between(100, 20_000))),
                _ => {
                    manners.loses = 20;
                    manners.stops = Some((dice.between(0, 10_000), dice.between(100, 20_000)));
                }
            }
        }
        Client {
            seed: u64::try_from(dice.between(0, i64::MAX)).unwrap(),
            comes: dice.between(0, long),
            wish,
            guards: None,
            plain,
            patience: if dice.chance(10) {
                0
            } else {
                dice.between(500, 40_000)
            },
            holds: dice.pick(&[1, 20, 300, 1_000, 4_000]) + dice.between(0, 1_000),
            keep: if dice.chance(self.keeps) {
                dice.between(500, 6_000)
            } else {
                0
            },
            early: dice.chance(10),
            ends_with: dice.pick(&[0, 0, 256, 15]),
            manners,
        }
    }
}

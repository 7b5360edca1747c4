//! Corners of the network: lines that only some of the jobs use, so that these are cut off while all others go on. Where
//! the servers are hosts of their own, those hosts are the corners, and there are none here.

use std::time::Duration;

use super::history::{Hit, MS, Nanos, ProcessFault, Role, Span, boottime};
use super::site::{Site, line::Line};
use crate::support::Dice;

/// What goes wrong with them; most of it is meant to outlast a lease.
const FAULTS: [&str; 9] = [
    "line reset",
    "line slow",
    "line held",
    "line held",
    "line silent",
    "line silent",
    "line silent",
    "line refused",
    "replies lost",
];

pub struct Corners {
    all: Vec<Corner>,
    next: Nanos,
}

struct Corner {
    line: Line,
    /// When it is mended; it is well without it.
    until: Option<Nanos>,
}

impl Corners {
    /// Three of them, where the servers are behind one address.
    pub fn of(site: &Site) -> Self {
        let port = site
            .url()
            .strip_prefix("redis://127.0.0.1:")
            .and_then(|port| port.parse().ok());
        let lines = port.into_iter().flat_map(|port| {
            std::iter::repeat_with(move || {
                let line = Line::new();
                line.lead_to(port);
                line
            })
            .take(3)
        });
        Self {
            all: lines.map(|line| Corner { line, until: None }).collect(),
            next: boottime(),
        }
    }

    /// The corner of a new job, if it is in one: its number, and the URL from there.
    pub fn draw(&self, dice: &mut Dice) -> Option<(usize, String)> {
        if self.all.is_empty() || dice.chance(30) {
            return None;
        }
        let number = dice.pick(&[0, 1, 2]);
        // What begins without a server ends at once.
        if self.all[number].until.is_some() && dice.chance(80) {
            return None;
        }
        Some((
            number,
            format!("redis://127.0.0.1:{}", self.all[number].line.port),
        ))
    }

    /// What befalls a job that begins in this corner now.
    pub fn trouble(&self, number: usize) -> Option<Hit> {
        self.all[number]
            .until
            .map(|until| hit(boottime(), until, "a corner is cut off"))
    }

    /// Mends what is due; whether it is time to cut a corner off.
    pub fn tick(&mut self, dice: &mut Dice) -> bool {
        let now = boottime();
        for corner in &mut self.all {
            if corner.until.is_some_and(|until| until <= now) {
                corner.line.open();
                corner.until = None;
            }
        }
        let is_time = now >= self.next && !self.all.is_empty();
        if is_time {
            self.next = now + dice.between(200, 3000) * MS;
        }
        is_time
    }

    /// Cuts a corner off, for half a lease or three: what befalls the jobs there.
    pub fn cut(&mut self, number: usize, lease: Nanos, dice: &mut Dice) -> Option<Hit> {
        let corner = &mut self.all[number];
        if corner.until.is_some() {
            return None;
        }
        let fault = dice.pick(&FAULTS);
        let lasts = if corner.line.disturb(fault, dice).lasts == Duration::ZERO {
            0
        } else {
            lease * dice.between(50, 300) / 100
        };
        let until = boottime() + lasts;
        corner.until = Some(until);
        Some(hit(boottime(), until, fault))
    }

    /// All is well again.
    pub fn heal(&mut self) {
        for corner in &mut self.all {
            corner.line.open();
            corner.until = None;
        }
        self.next = Nanos::MAX;
    }
}

fn hit(from: Nanos, until: Nanos, aim: &str) -> Hit {
    Hit {
        pid: 0,
        role: Role::Line,
        fault: ProcessFault::CutOff,
        span: Span::new(from, until),
        aim: aim.to_owned(),
    }
}

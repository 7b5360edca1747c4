//! Other servers: a thread for each asks for its clock and for its report of itself.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::answers::{question, text, why_not};
use super::facts::{ClockOffset, Known, Replica, RoundTrip, Unknown, best_clock};
use super::info::{Info, ReplicaEntry};
use crate::protocol::{Answer, Endpoint, Error, Question};

/// How often a server is asked for its clock.
const CLOCK_QUESTIONS: usize = 3;

/// Its clock, and what it says of itself.
type Found = (Known<ClockOffset>, Known<Info>);

/// A server that is being asked.
pub(super) struct Questioned {
    entry: ReplicaEntry,
    answers: Option<JoinHandle<Known<Found>>>,
}

impl Questioned {
    pub(super) fn start(server: Endpoint, entry: ReplicaEntry, until: Instant) -> Self {
        let thread = thread::Builder::new()
            .name("replica".into())
            .spawn(move || ask(&server, until));
        let answers = thread.ok();
        Self { entry, answers }
    }

    pub(super) fn finish(self) -> Replica {
        let answers = self.answers.and_then(|thread| thread.join().ok());
        let failed = || Err(Unknown::Failed("the connection to it failed".into()));
        let (clock, info) = answers
            .unwrap_or_else(failed)
            .unwrap_or_else(|why| (Err(why.clone()), Err(why)));
        let entry = self.entry;
        Replica { entry, clock, info }
    }
}

fn ask(server: &Endpoint, until: Instant) -> Known<Found> {
    let failed = |error: Error| Unknown::Failed(error.to_string());
    let (mut connection, _) = server.open(&[], until).map_err(failed)?;
    let mut trips = Vec::new();
    for _ in 0..CLOCK_QUESTIONS {
        let asked = ask_time(|question| connection.ask(question, until));
        let (took, clock) = asked.map_err(failed)?;
        let clock = Some(clock?);
        trips.push(RoundTrip { took, clock });
    }
    let answers = connection.ask(&[question(&["INFO"])], until);
    let info = text("INFO", answers.unwrap_or_default().into_iter().next());
    let clock = best_clock(&trips).ok_or(Unknown::NoAnswer);
    Ok((clock, info.map(|text| Info::parse(&text))))
}

/// Asks for the time once: how long that took, and the other clock.
pub(super) fn ask_time(
    ask: impl FnOnce(&[Question]) -> Result<Vec<Answer>, Error>,
) -> Result<(Duration, Known<ClockOffset>), Error> {
    let (began, at) = (Instant::now(), now_us());
    let answer = ask(&[question(&["TIME"])])?.into_iter().next();
    let took = began.elapsed();
    let error_us = u64::try_from(took.as_micros() / 2).unwrap_or(u64::MAX);
    let parts = answer.as_ref().and_then(Answer::list).unwrap_or_default();
    let [Some(seconds), Some(micros)] = [0, 1].map(|at| parts.get(at)?.number()) else {
        return Ok((took, Err(why_not("TIME", answer))));
    };
    let theirs = i128::from(seconds) * 1_000_000 + i128::from(micros);
    let ours = i128::from(at.saturating_add(error_us));
    let ahead_us = i64::try_from(theirs - ours).unwrap_or(i64::MAX);
    Ok((took, Ok(ClockOffset { ahead_us, error_us })))
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

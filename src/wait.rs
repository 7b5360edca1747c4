//! Waiting for a lock: when to ask again, and when to give up. Pure.

use std::time::Duration;

use crate::clock::Moment;

/// How long a user wants to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    ForEver,
    /// Until this moment; one that is over already means not at all.
    Until(Moment),
}

/// What to do about a busy lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask again at this moment, or when a release is announced.
    AskAt(Moment),
    GiveUp,
}

/// How often one who hears of releases looks all the same: a plain client deletes its key without
/// telling anybody, and a message can be lost with its connection.
const LISTENING: Duration = Duration::from_secs(2);

/// How often one who can't listen looks.
const DEAF: Duration = Duration::from_millis(250);

/// The lock is busy for `left` more (`None`: for ever). `dice` in 0..1 spreads those who wait for
/// the same moment.
pub fn next(
    patience: Patience,
    listening: bool,
    left: Option<Duration>,
    now: Moment,
    dice: f64,
) -> Next {
    let look = if listening { LISTENING } else { DEAF }.mul_f64(0.75 + dice / 2.0);
    // One millisecond more, as Redis rounds the remaining time down.
    let expiry = left.map_or(look, |left| left + Duration::from_millis(1));
    let ask_at = now + look.min(expiry);
    match patience {
        Patience::ForEver => Next::AskAt(ask_at),
        Patience::Until(end) if now < end => Next::AskAt(ask_at.min(end)),
        Patience::Until(_) => Next::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::at(Duration::from_secs(100));
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_listener_asks_again_when_the_lease_ends_or_after_about_two_seconds() {
        let ask = |left| next(Patience::ForEver, true, left, START, 0.5);
        assert_eq!(ask(Some(MS * 300)), Next::AskAt(START + MS * 301));
        assert_eq!(ask(Some(MS * 30_000)), Next::AskAt(START + MS * 2_000));
        assert_eq!(ask(None), Next::AskAt(START + MS * 2_000));
    }

    #[test]
    fn the_last_look_is_at_the_end_of_the_patience() {
        let until = Patience::Until(START + MS * 500);
        assert_eq!(
            next(until, true, None, START, 0.0),
            Next::AskAt(START + MS * 500)
        );
        assert_eq!(next(until, true, None, START + MS * 500, 0.0), Next::GiveUp);
        assert_eq!(
            next(Patience::Until(START), true, None, START, 0.0),
            Next::GiveUp
        );
    }

    #[test]
    fn those_who_cannot_listen_look_often_and_not_all_at_once() {
        let early = next(Patience::ForEver, false, None, START, 0.0);
        let late = next(Patience::ForEver, false, None, START, 1.0);
        assert_ne!(early, late);
        assert!(matches!(late, Next::AskAt(at) if at.since(START) < MS * 400));
    }
}

//! Since when the processes of a command have done nothing, and whether that was said to others. Pure.
//!
//! It is shown, and nothing is decided by it: a command that waits for another host does nothing either.

use std::time::Duration;

use crate::clock::Moment;

/// What is known of the processes of a command. `T`: which there are, and how much of the processors each has used.
#[derive(Clone, Debug)]
pub struct Idle<T> {
    /// After so long it is said.
    after: Duration,
    /// What was used when it was looked at, and since when that is so.
    seen: Option<(T, Moment)>,
    /// Others have been told that it is idle.
    is_told: bool,
    /// What the renewal that is under way tells.
    telling: Option<bool>,
}

impl<T: PartialEq> Idle<T> {
    pub fn new(after: Duration) -> Self {
        Self {
            after,
            seen: None,
            is_told: false,
            telling: None,
        }
    }

    /// The processes were looked at; `None` where that says nothing of some of them.
    pub fn look(&mut self, used: Option<T>, now: Moment) {
        let is_same = match (&self.seen, &used) {
            (Some((seen, _)), Some(used)) => seen == used,
            _ => false,
        };
        if !is_same {
            self.seen = used.map(|used| (used, now));
        }
    }

    /// What a renewal that is sent now is to tell: for how long they have done nothing, zero when they do something again,
    /// or `None` where nothing has changed.
    pub fn tell(&mut self, now: Moment) -> Option<Duration> {
        let idle = self.seen.as_ref().map(|(_, since)| now.since(*since));
        let idle = idle.filter(|idle| *idle >= self.after);
        self.telling = (idle.is_some() != self.is_told).then_some(idle.is_some());
        self.telling.map(|_| idle.unwrap_or_default())
    }

    /// The renewal was answered.
    pub fn told(&mut self) {
        if let Some(is_idle) = self.telling.take() {
            self.is_told = is_idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Moment {
        Moment::at(MS * ms)
    }

    #[test]
    fn a_command_that_does_nothing_for_long_is_told_once_and_once_more_when_it_does_something() {
        let mut idle = Idle::new(MS * 100);
        assert_eq!(idle.tell(at(0)), None);
        idle.look(Some(1), at(0));
        assert_eq!(idle.tell(at(99)), None);
        idle.look(Some(1), at(100));
        assert_eq!(idle.tell(at(120)), Some(MS * 120));
        idle.told();
        assert_eq!(idle.tell(at(900)), None);
        idle.look(Some(2), at(1_000));
        assert_eq!(idle.tell(at(1_001)), Some(Duration::ZERO));
        idle.told();
        assert_eq!(idle.tell(at(1_050)), None);
        idle.look(Some(2), at(1_060));
        assert_eq!(idle.tell(at(1_100)), Some(MS * 100));
        idle.told();
        // What isn't seen may do something.
        idle.look(None, at(1_200));
        assert_eq!(idle.tell(at(1_201)), Some(Duration::ZERO));
        idle.told();
        idle.look(Some(2), at(1_300));
        assert_eq!(idle.tell(at(1_399)), None);
    }

    #[test]
    fn what_no_answer_has_confirmed_is_told_again() {
        let mut idle = Idle::new(MS * 100);
        idle.look(Some(1), at(0));
        for now in [100, 200] {
            assert_eq!(idle.tell(at(now)), Some(MS * now));
        }
        idle.look(Some(2), at(300));
        // That it was idle has reached nobody.
        assert_eq!(idle.tell(at(301)), None);
        idle.told();
        assert_eq!(idle.tell(at(399)), None);
    }
}

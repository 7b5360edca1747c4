//! A server that fails during a wait: whether and when to ask it again, and the message about it.

use std::time::Duration;

use super::timing::{FAILOVER, Outage, RECONNECT, reconnect};
use super::{Action, End, Phase, Wait};
use crate::clock::Moment;
use crate::protocol::{self, ErrorKind};

impl Wait {
    pub(super) fn on_failure(&mut self, error: protocol::Error, now: Moment) {
        if let Phase::Searching { due } = self.phase {
            // Other runs may have read the published wait all the same.
            self.plan_search(due);
        }
        match self.phase {
            Phase::Searching { due } | Phase::Sending { due } | Phase::Asking { due, .. } => {
                self.retry_or_fail(error, due, now);
            }
            Phase::Queued { .. } | Phase::Pausing { .. } | Phase::Connecting { .. } => {
                self.actions.push(Action::Disconnect(error));
                self.ask_again(now);
            }
            Phase::Over => {}
        }
    }

    /// Handles a request that had no answer, or was refused for now. The wait ends at an error that
    /// can't pass, and at the first failure of a server that has never answered, unless the user has set a time
    /// to wait, sentinels or other nodes know the server, or it will be ready soon.
    pub(super) fn retry_or_fail(&mut self, error: protocol::Error, due: Moment, now: Moment) {
        self.unanswered |= matches!(self.phase, Phase::Asking { .. });
        let (kind, goes_elsewhere) = (error.kind, error.goes_elsewhere());
        // A run that has waited goes on waiting; after a failover the list of the replicas takes a while to
        // settle.
        let is_first = self.outage.is_none();
        let is_new = self.place.is_none() && is_first;
        let lacks_replicas = kind == ErrorKind::NotReplicated && !self.policy.awaits_replicas;
        let is_absent = is_first && !self.is_reached && !kind.is_worth_waiting();
        let since = self.outage.as_ref().map_or(due, |outage| outage.since);
        let end = self.tries_until(kind, since);
        let is_over = !kind.may_pass() || end.is_some_and(|end| now >= end);
        if (lacks_replicas && is_new) || is_absent || is_over {
            return self.end(End::Failed(error));
        }
        self.actions.push(Action::Disconnect(error));
        let single_line = self.policy.single_line;
        let new = || Outage::new(kind, since, single_line);
        self.outage.get_or_insert_with(new).kind = kind;
        self.show_outage(now);
        // The first retry comes at once, if the server itself named another one.
        let pause = if goes_elsewhere && is_first {
            Duration::ZERO
        } else {
            // Missing replicas need no long pause, because they fail only one waiter at a time: the one with
            // the grant.
            let longest = match kind {
                ErrorKind::NoPrimary | ErrorKind::Crowded => FAILOVER,
                _ => RECONNECT,
            };
            reconnect(now.since(since), (self.policy.jitter)(), longest)
        };
        let at = due + pause;
        self.phase = Phase::Connecting {
            until: end.map_or(at, |end| at.min(end)),
        };
    }

    /// Returns the end of all retries for a server that has failed in this way from `since` on; `None`: never.
    fn tries_until(&self, kind: ErrorKind, since: Moment) -> Option<Moment> {
        let limit = self.policy.limit.map(|end| match end {
            end if end > self.began => end,
            _ if kind.will_pass() => self.began + self.policy.answer_may_take,
            _ => self.began + self.policy.failover_may_take,
        });
        let silence = self.policy.silence.filter(|_| kind.is_unreachable());
        let silence = silence.map(|silence| since + silence);
        limit.into_iter().chain(silence).min()
    }

    pub(super) fn show_outage(&mut self, now: Moment) {
        let shown = self.outage.as_mut().and_then(|outage| outage.shown(now));
        self.actions
            .extend(shown.map(|(kind, lasting)| Action::ShowOutage { kind, lasting }));
    }
}

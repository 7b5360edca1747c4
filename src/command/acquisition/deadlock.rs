//! Whether a wait is part of a deadlock: when to look, and how to say it.

use std::time::Duration;

use super::{Acquisition, HeldLocks};
use crate::clock::Moment;
use crate::lock::{self, Claim, Client, CycleMember, Name, WaitEdge};
use crate::report;

/// After how long a waiter looks whether it is part of a deadlock. The second time is for those who
/// began to wait in the same moment, and hadn't said so yet.
const AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_millis(1300)];

/// One wait, as a part of a deadlock.
pub struct Deadlock<'a> {
    edge: WaitEdge<'a>,
    /// When the wait began.
    began: Moment,
    /// How many of the first looks are behind us.
    looks: usize,
    /// For how long others may believe that we wait.
    pub(super) lasting: Duration,
}

impl<'a> Deadlock<'a> {
    /// The wait for what `claim` wants begins.
    pub(super) fn new(
        acquisition: &'a Acquisition,
        holds: &HeldLocks,
        claim: &Claim,
        began: Moment,
    ) -> Self {
        let inherited = acquisition.inherited.iter().map(|(_, token)| token.id());
        let own = holds.all.iter().map(|hold| hold.claim.id());
        Self {
            edge: WaitEdge {
                locks: &acquisition.settings.locks,
                holds: inherited.chain(own).collect(),
                wants: claim.lock().name().clone(),
                id: claim.id(),
            },
            began,
            looks: 0,
            lasting: Duration::ZERO,
        }
    }

    /// When one of the first looks is due; after them each heartbeat looks. Where a job holds
    /// nothing, nobody waits for it.
    pub(super) fn due(&self) -> Option<Moment> {
        let after = AFTER.get(self.looks)?;
        (!self.edge.holds.is_empty()).then_some(self.began + *after)
    }

    /// Whether others may have read that we wait.
    pub(super) fn noted(&self) -> bool {
        self.looks > 0
    }

    /// If this wait closes a cycle and has to break it: the cycle in words. A connection that fails
    /// is given up.
    pub(super) fn look(
        &mut self,
        client: &mut Client,
        at: Moment,
    ) -> Result<Option<String>, lock::Error> {
        if self.edge.holds.is_empty() || at < self.began + AFTER[0] {
            return Ok(None);
        }
        if !client.is_open() {
            return Ok(None);
        }
        let passed = |after: &&Duration| at >= self.began + **after;
        self.looks = AFTER.iter().filter(passed).count();
        self.edge.publish(client, self.lasting)?;
        let cycle = self.edge.look(client)?;
        Ok(cycle.map(|members| in_words(&self.edge.wants, &members)))
    }

    /// The wait has ended.
    pub(super) fn forget(&self, client: &mut Client) {
        if self.noted() && client.is_open() {
            // Where that fails, others find out for themselves that nobody waits any more.
            let _ = self.edge.forget(client);
        }
    }
}

/// A deadlock for people: who holds what and waits for what.
fn in_words(wants: &Name, members: &[CycleMember]) -> String {
    let others = members.iter().map(|member| {
        format!(
            "{} holds \"{}\" and waits for \"{}\"",
            report::by(&member.who),
            member.holds,
            member.wants
        )
    });
    let ours = members.last().map_or(wants, |last| &last.wants);
    format!(
        "deadlock: {}; this job holds \"{ours}\" and waits for \"{wants}\", and gives up, as it began to wait last",
        others.collect::<Vec<_>>().join("; ")
    )
}

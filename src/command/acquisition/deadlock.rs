//! A wait that is part of a deadlock: as others read it, and how to say it.

use super::{Acquisition, HeldLocks};
use crate::protocol::{Claim, CycleMember, Name, WaitEdge};
use crate::report;

/// The wait for what `claim` wants, by a job that holds what it inherited and what is held.
pub(super) fn edge<'a>(
    acquisition: &'a Acquisition,
    held: &HeldLocks,
    claim: &Claim,
) -> WaitEdge<'a> {
    let inherited = acquisition.inherited.iter().map(|(_, token)| token.id());
    let own = held.all.iter().map(|hold| hold.claim.id());
    WaitEdge {
        locks: &acquisition.settings.locks,
        holds: inherited.chain(own).collect(),
        wants: claim.lock().name().clone(),
        id: claim.id(),
    }
}

/// A deadlock for people: which job holds what and waits for what.
pub(super) fn in_words(wants: &Name, members: &[CycleMember]) -> String {
    let others = members.iter().map(|member| {
        format!(
            "{} holds \"{}\" and waits for \"{}\"",
            report::user_at_host(&member.who),
            member.holds,
            member.wants
        )
    });
    let ours = members.last().map_or(wants, |last| &last.wants);
    format!(
        "deadlock: {}; this job holds \"{ours}\" and waits for \"{wants}\"; giving up, as this job started waiting last",
        others.collect::<Vec<_>>().join("; ")
    )
}

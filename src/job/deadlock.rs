//! Deadlocks: the note about a wait that other runs read, and the message.

use super::background::Background;
use super::{Acquisition, HeldLocks};
use crate::protocol::{Claim, Client, CycleMember, Error, Name, WaitEdge};
use crate::report;

/// A running search, which sends the server several requests. Returns
/// the client, and the cycle that this wait must break, if there is one.
pub(super) type DeadlockSearch = Background<(Client, Result<Option<Vec<CycleMember>>, Error>)>;

/// Returns the note about this wait for `claim`: the job holds its inherited locks and those in `held`.
pub(super) fn edge(acquisition: &Acquisition, held: &HeldLocks, claim: &Claim) -> WaitEdge {
    let inherited = acquisition.inherited.iter().map(|hold| hold.token.id());
    let own = held.all.iter().map(|hold| hold.claim.id());
    WaitEdge {
        locks: acquisition.settings.locks.clone(),
        holds: inherited.chain(own).collect(),
        wants: claim.lock().name().clone(),
        id: claim.id(),
    }
}

/// Describes a deadlock: which job holds which lock and waits for which.
pub(super) fn in_words(wants: &Name, members: &[CycleMember]) -> String {
    let others = members.iter().map(|member| {
        format!(
            "{} holds \"{}\" and waits for \"{}\"",
            report::client_in_words(&member.who),
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

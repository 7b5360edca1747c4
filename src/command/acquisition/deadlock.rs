//! A wait that is part of a deadlock: the note that other runs read, and the message.

use super::background::Background;
use super::{Acquisition, HeldLocks};
use crate::protocol::{Claim, Client, CycleMember, Error, Name, WaitEdge};
use crate::report;

/// A search that is under way: it asks the server several questions. It gives the client back, and the cycle that the wait
/// has to break, if there is one.
pub(super) type Search = Background<(Client, Result<Option<Vec<CycleMember>>, Error>)>;

/// The wait for what `claim` wants, by a job that holds what it inherited and what is held.
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

/// A deadlock for people: which job holds what and waits for what.
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

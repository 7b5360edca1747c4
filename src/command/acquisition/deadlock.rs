//! A wait that is part of a deadlock: the note that other runs read, and the message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Acquisition, HeldLocks};
use crate::protocol::{Claim, Client, CycleMember, Error, Name, WaitEdge};
use crate::{report, sys};

/// A look for a deadlock that is under way, in a thread of its own: it asks the server several questions, and
/// signals, and the leases of what is held, can't wait for the answers.
pub(super) struct Search {
    done: Arc<EventFd>,
    found: Receiver<(Client, Found)>,
}

/// The cycle that the wait has to break, if there is one.
pub(super) type Found = Result<Option<Vec<CycleMember>>, Error>;

impl Search {
    /// Begins to publish a wait, for this long, and to look for a deadlock, over the client's connection. Where no thread
    /// can be made for that, the client keeps it.
    pub(super) fn start(
        edge: WaitEdge,
        client: &mut Client,
        lasting: Duration,
    ) -> io::Result<Self> {
        let done = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC)?);
        let (answer, found) = channel();
        let (hand, handed) = channel::<Client>();
        let waker = Arc::clone(&done);
        sys::start_thread("deadlock", sys::USUAL_STACK, move || {
            let Ok(mut client) = handed.recv() else {
                return;
            };
            let found = look(&edge, &mut client, lasting);
            let _ = answer.send((client, found));
            let _ = waker.write(1);
        })?;
        let _ = hand.send(client.hand_over());
        Ok(Self { done, found })
    }

    /// What was found, with the client, once it is done.
    pub(super) fn finished(&self) -> Option<(Client, Found)> {
        self.found.try_recv().ok()
    }

    /// The client, if it is done within this time.
    pub(super) fn end(&self, within: Duration) -> Option<Client> {
        let found = self.found.recv_timeout(within);
        found.ok().map(|(client, _)| client)
    }
}

impl AsFd for Search {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

/// Publishes a wait, for this long, and looks for a deadlock.
pub(super) fn look(edge: &WaitEdge, client: &mut Client, lasting: Duration) -> Found {
    edge.publish(client, lasting)?;
    edge.look(client)
}

/// The wait for what `claim` wants, by a job that holds what it inherited and what is held.
pub(super) fn edge(acquisition: &Acquisition, held: &HeldLocks, claim: &Claim) -> WaitEdge {
    let inherited = acquisition.inherited.iter().map(|(_, token)| token.id());
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

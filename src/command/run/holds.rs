//! What a run holds: its locks, the lease they have together, and who keeps it alive.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::lease::Lease;
use crate::lock::{Claim, Link, Name, Server};
use crate::renewer::{News, Renewer};

/// A lock that we hold.
pub(super) struct Hold {
    pub(super) claim: Claim,
    pub(super) fence: u64,
    pub(super) slot: u32,
    /// It was taken by a run around ours, which will release it.
    pub(super) reused: bool,
}

/// All locks of a run, in the order in which they were taken.
pub(super) struct Holds {
    pub(super) all: Vec<Hold>,
    /// The lease of all together: it ends when the first of them does.
    pub(super) lease: Option<Lease>,
    /// The connection, while nobody uses it.
    pub(super) link: Option<Link>,
    server: Arc<Server>,
    renewer: Option<Renewer>,
}

impl Holds {
    /// Nothing is held yet.
    pub(super) fn none(server: &Arc<Server>) -> Self {
        Self {
            all: Vec::new(),
            lease: None,
            link: None,
            server: Arc::clone(server),
            renewer: None,
        }
    }

    /// A lock is ours.
    pub(super) fn add(&mut self, hold: Hold, lease: Lease) {
        self.all.push(hold);
        self.lease = match self.lease {
            Some(all) if all.deadline() <= lease.deadline() => Some(all),
            Some(_) | None => Some(lease),
        };
    }

    /// A lock is not ours any more.
    pub(super) fn forget(&mut self, name: &Name) {
        self.all.retain(|hold| hold.claim.lock().name() != name);
    }

    /// Has the leases renewed; the first time the renewer is started for it, with the connection
    /// if that is free.
    pub(super) fn renew(&mut self) -> Result<()> {
        let claims: Vec<Claim> = self.all.iter().map(|hold| hold.claim.clone()).collect();
        let renewer = match self.renewer.take() {
            Some(renewer) => renewer,
            None => Renewer::start(self.link.take(), &self.server, &claims)
                .context("can't start the renewing thread")?,
        };
        renewer.renew(claims);
        self.renewer = Some(renewer);
        Ok(())
    }

    /// What came of a renewal, or happened between two.
    pub(super) fn news(&self) -> Option<News> {
        self.renewer.as_ref()?.news()
    }

    /// Becomes readable when there is news.
    pub(super) fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.renewer.as_ref().map(AsFd::as_fd)
    }

    /// Ends the renewing. Its connection serves on, where it is good and we have no other.
    pub(super) fn rest(&mut self) {
        if let Some(renewer) = self.renewer.take() {
            let link = renewer.stop();
            self.link = self.link.take().or(link);
        }
    }
}

//! A grant that replicas haven't confirmed yet.

use std::time::{Duration, Instant};

use super::claim::{Claim, ReleaseMode};
use super::client::Client;
use crate::redis::error::{Error, ErrorKind};

/// A grant that replicas haven't confirmed yet.
#[derive(Default)]
pub struct Unconfirmed {
    /// Time of the first failure.
    since: Option<Instant>,
}

impl Unconfirmed {
    /// Gives the grant back if replicas have failed to confirm it for a TTL: another server may have granted the lock since
    /// then, with a larger fencing token. The next request gets a new one.
    pub fn on_failure(&mut self, error: &Error, claim: &Claim, client: &mut Client, ttl: Duration) {
        if error.kind != ErrorKind::NotReplicated {
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let mode = ReleaseMode::Unused { is_pending: false };
        if since.elapsed() >= ttl && claim.release(client, &mode, || {}).is_ok() {
            self.since = None;
        }
    }
}

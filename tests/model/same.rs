//! Decides which states are equal: those with the same possible futures. The digest of a state leaves out everything that
//! nothing depends on any more, such as when an ended run held the lock. `explore::check_same` checks for some states that
//! equal ones have the same futures.

use std::hash::Hash;

use super::digest::Digester;
use super::network::Link;
use super::promises::field;
use super::redis::Data;
use super::redis::data::Content;
use super::world::{Kind, Rules, START_MS, World};
use crate::protocol::name::Keys;

impl World {
    /// Returns a digest of the state, different for states with different futures.
    pub fn digest(&self) -> u128 {
        let mut hasher = Digester::new();
        self.now.hash(&mut hasher);
        // A smaller fencing token doesn't affect the next one, which comes from the clock.
        let next_fence = self.next_fence();
        for (client, link) in self.clients.iter().zip(&self.network.links) {
            client.digest().hash(&mut hasher);
            let link = link.as_ref().map(|link| {
                if client.is_over() {
                    digest_of_abandoned(link)
                } else {
                    link.digest()
                }
            });
            link.hash(&mut hasher);
        }
        for node in &self.nodes {
            let fence = node.stored.fence.max(next_fence - 1);
            (node.stored.digest(&self.rules), fence).hash(&mut hasher);
            (node.clock_ahead, node.confirmed, node.is_up).hash(&mut hasher);
        }
        for stored in &self.log {
            let fence = stored.fence.max(next_fence - 1);
            (stored.digest(&self.rules), fence).hash(&mut hasher);
        }
        let strays = self.network.strays.iter();
        let mut strays: Vec<(usize, u128)> = strays
            .map(|stray| (stray.node, stray.asked.digest()))
            .collect();
        strays.sort_unstable();
        strays.hash(&mut hasher);
        (self.network.primary, &self.network.delays).hash(&mut hasher);
        self.split.hash(&mut hasher);
        (self.plain, self.deeds_done, self.faults_left).hash(&mut hasher);
        let next_fence = u64::try_from(next_fence).unwrap_or(1);
        self.facts.hash_relevant(
            &mut hasher,
            &self.clients,
            next_fence,
            self.server_ms(),
            &self.rules.promises,
        );
        hasher.digest()
    }

    /// Returns a digest of the whole state.
    pub fn exact_digest(&self) -> u128 {
        let mut hasher = Digester::new();
        self.now.hash(&mut hasher);
        for client in &self.clients {
            client.exact_digest().hash(&mut hasher);
        }
        for node in &self.nodes {
            node.stored.exact_digest().hash(&mut hasher);
            (node.clock_ahead, node.confirmed, node.is_up).hash(&mut hasher);
        }
        for stored in &self.log {
            stored.exact_digest().hash(&mut hasher);
        }
        for link in &self.network.links {
            let digest = link.as_ref().map(|link| link.digest());
            digest.hash(&mut hasher);
        }
        for stray in &self.network.strays {
            (stray.node, stray.asked.digest()).hash(&mut hasher);
        }
        (self.network.primary, &self.network.delays).hash(&mut hasher);
        self.split.hash(&mut hasher);
        (self.plain, self.deeds_done, self.faults_left).hash(&mut hasher);
        self.facts.hash(&mut hasher);
        hasher.digest()
    }

    /// Returns the smallest fencing token that a server grants from now on, if it knows no larger one.
    fn next_fence(&self) -> i64 {
        if self.rules.sets_clocks() {
            return 1;
        }
        let clocks = (0..self.nodes.len()).map(|node| self.clock_us(node));
        clocks.min().expect("a server")
    }
}

impl Rules {
    pub fn sets_clocks(&self) -> bool {
        let mut kinds = self.kinds.iter();
        kinds.any(|kind| matches!(kind, Kind::SetClock(_)))
    }

    /// Returns the time after which, by any clock, nothing expires within a history.
    fn end_ms(&self) -> i64 {
        if self.sets_clocks() {
            return i64::MAX;
        }
        let Ok(lasts) = i64::try_from(self.horizon.as_millis()) else {
            return i64::MAX;
        };
        let ahead = self.nodes.iter().max().expect("a server");
        START_MS + lasts + lasts * self.clock_fast / 100 + ahead + 1000
    }

    fn asks_for_successes(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.any(|client| !client.wish.once_per.is_zero() || client.wish.once_key.is_some())
    }
}

/// Returns a digest of a connection whose client has vanished: its sent requests, and whether the server believes that it is
/// subscribed.
fn digest_of_abandoned(link: &Link) -> u128 {
    let mut hasher = Digester::new();
    (link.node, link.listens, link.is_closing()).hash(&mut hasher);
    for request in &link.requests {
        (request.asked.digest(), request.subscribes).hash(&mut hasher);
    }
    hasher.digest()
}

/// Returns a digest of the relevant part of a server's data, without the last fencing token.
pub fn digest_of_data(data: &Data, rules: &Rules) -> u128 {
    let mut hasher = Digester::new();
    let keys = &rules.lock.keys;
    let (state, history) = (keys.of("state"), keys.of("history"));
    let end_ms = rules.end_ms();
    data.entries().next().is_none().hash(&mut hasher);
    // The index of names is only for people.
    for (key, entry) in data.entries().filter(|(key, _)| *key != keys.index) {
        // Waiters learn the expiry of the lock's key, so it stays exact.
        let latest = if key == keys.lock { i64::MAX } else { end_ms };
        let expires = entry.expires.map(|at| at.min(latest));
        (key, expires).hash(&mut hasher);
        match &*entry.content {
            Content::Hash(fields) if key == state => {
                // Nothing depends on the numbers of ends and freezes.
                let counted = |field: &[u8]| field.starts_with(b"ended:") || field == b"freezes";
                for (field, value) in fields.iter().filter(|(field, _)| !counted(field)) {
                    field.hash(&mut hasher);
                    let is_left_out = match &field[..] {
                        b"fence" => true,
                        b"succeeded" => !rules.asks_for_successes(),
                        _ => false,
                    };
                    if !is_left_out {
                        value.hash(&mut hasher);
                    }
                }
            }
            Content::List(records) if key == history => {
                for record in records {
                    hash_end(record, &mut hasher);
                }
            }
            content => content.hash(&mut hasher),
        }
    }
    hasher.digest()
}

/// Hashes the parts of a record that a release reads: its owner, and whether the owner ended the hold.
fn hash_end(record: &[u8], hasher: &mut Digester) {
    let mut words = record.split(|byte| *byte == b' ');
    let whose = words.next();
    let how = words.nth(1);
    let gone: [&[u8]; 3] = [b"lost", b"expired", b"forced"];
    let is_own = how.is_some_and(|how| !gone.contains(&how));
    (whose, is_own).hash(hasher);
}

/// Returns the last fencing token that a server has granted.
pub fn last_fence(data: &Data, keys: &Keys) -> i64 {
    field(data, &keys.of("state"), b"fence")
        .parse()
        .unwrap_or(0)
}

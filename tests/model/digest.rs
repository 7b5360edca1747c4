//! Hashes of 128 bits of states and their parts. Two different states have the same hash by chance less than once in 10^18
//! searches of 10^10 states.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// Collects the bytes to hash.
#[derive(Default)]
pub struct Digester(Vec<u8>);

impl Digester {
    pub fn new() -> Self {
        Self(Vec::with_capacity(2048))
    }

    pub fn digest(&self) -> u128 {
        xxh3_128(&self.0)
    }
}

impl Hasher for Digester {
    fn finish(&self) -> u64 {
        xxh3_64(&self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl fmt::Write for Digester {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

pub fn digest_of(what: &impl Hash) -> u128 {
    let mut digester = Digester::new();
    what.hash(&mut digester);
    digester.digest()
}

/// Returns the digest of a value whose `Debug` output shows every field.
pub fn digest_of_debug(what: &impl fmt::Debug) -> u128 {
    let mut digester = Digester::new();
    write!(digester, "{what:?}").expect("memory takes it");
    digester.digest()
}

/// The digest of the value that contains it, once computed; not part of that digest itself.
#[derive(Clone, Default)]
pub struct Cached(Cell<Option<u128>>);

impl Cached {
    pub fn get_or(&self, compute: impl FnOnce() -> u128) -> u128 {
        let digest = self.0.get().unwrap_or_else(compute);
        self.0.set(Some(digest));
        digest
    }

    /// Invalidates the digest before a change of the value.
    pub fn forget(&self) {
        self.0.set(None);
    }
}

impl fmt::Debug for Cached {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

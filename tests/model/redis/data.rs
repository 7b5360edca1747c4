//! The data of a Redis server: four types of value, and keys with optional expiries. Copies are cheap, because they share
//! values until one of them changes, so that a search can keep millions.

use std::collections::BTreeMap;
use std::sync::Arc;

pub type Bytes = Vec<u8>;

pub type Fields = BTreeMap<Bytes, Bytes>;
/// Members of a sorted set. Their scores are whole numbers here.
pub type Members = Vec<(i64, Bytes)>;
pub type Entries = Vec<Bytes>;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    Text(Bytes),
    Hash(Fields),
    /// Sorted by score, then by member.
    Sorted(Members),
    /// The head comes first.
    List(Entries),
}

/// A type of value.
pub trait Kind: Sized {
    const EMPTY: Content;
    fn of(content: &Content) -> Option<&Self>;
    fn of_mut(content: &mut Content) -> Option<&mut Self>;
}

macro_rules! kinds {
    ($($kind:ident $type:ty),*) => {$(
        impl Kind for $type {
            const EMPTY: Content = Content::$kind(<$type>::new());
            fn of(content: &Content) -> Option<&Self> {
                if let Content::$kind(value) = content { Some(value) } else { None }
            }
            fn of_mut(content: &mut Content) -> Option<&mut Self> {
                if let Content::$kind(value) = content { Some(value) } else { None }
            }
        }
    )*};
}
kinds!(Text Bytes, Hash Fields, Sorted Members, List Entries);

impl Content {
    /// Returns true if the value is empty: Redis has no such key.
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::Sorted(members) => members.is_empty(),
            Self::List(entries) => entries.is_empty(),
        }
    }
}

/// A key's value, and its expiry in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    pub content: Arc<Content>,
    pub expires: Option<i64>,
}

/// All keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Data {
    keys: BTreeMap<Arc<[u8]>, Entry>,
}

impl Data {
    /// Returns true if a key with this expiry exists at this time, up to the end of its last millisecond.
    fn lasts(entry: &Entry, now_ms: i64) -> bool {
        entry.expires.is_none_or(|expires| now_ms <= expires)
    }

    /// Returns the entry of a key at this time.
    pub fn get(&self, now_ms: i64, key: &[u8]) -> Option<&Entry> {
        self.keys
            .get(key)
            .filter(|entry| Self::lasts(entry, now_ms))
    }

    /// Returns the value of a key, if it is of this type.
    pub fn kind<K: Kind>(&self, now_ms: i64, key: &[u8]) -> Option<&K> {
        K::of(&self.get(now_ms, key)?.content)
    }

    pub(super) fn entry_mut(&mut self, now_ms: i64, key: &[u8]) -> Option<&mut Entry> {
        self.keys
            .get_mut(key)
            .filter(|entry| Self::lasts(entry, now_ms))
    }

    /// Returns the value of a key for a change. Creates a missing key; returns `None` if it has another type. Callers must call
    /// `tidy` afterwards.
    pub(super) fn kind_mut<K: Kind>(&mut self, now_ms: i64, key: &[u8]) -> Option<&mut K> {
        let new = || Entry {
            content: Arc::new(K::EMPTY),
            expires: None,
        };
        let entry = self.keys.entry(key.into()).or_insert_with(new);
        if !Self::lasts(entry, now_ms) {
            *entry = new();
        }
        K::of(&entry.content)?;
        K::of_mut(Arc::make_mut(&mut entry.content))
    }

    pub(super) fn insert(&mut self, key: &[u8], content: Content, expires: Option<i64>) {
        let content = Arc::new(content);
        self.keys.insert(key.into(), Entry { content, expires });
    }

    /// Deletes a key. Returns true if it existed.
    pub(super) fn remove(&mut self, now_ms: i64, key: &[u8]) -> bool {
        self.keys
            .remove(key)
            .is_some_and(|entry| Self::lasts(&entry, now_ms))
    }

    /// Deletes a key if it is empty.
    pub(super) fn tidy(&mut self, key: &[u8]) {
        if self
            .keys
            .get(key)
            .is_some_and(|entry| entry.content.is_empty())
        {
            self.keys.remove(key);
        }
    }

    pub(super) fn clear(&mut self) -> bool {
        let had_any = !self.keys.is_empty();
        self.keys.clear();
        had_any
    }

    /// Deletes expired keys, so that servers that no client can tell apart are equal.
    pub fn forget_expired(&mut self, now_ms: i64) {
        if self.keys.values().any(|entry| !Self::lasts(entry, now_ms)) {
            self.keys.retain(|_, entry| Self::lasts(entry, now_ms));
        }
    }

    /// Returns the expiries of keys, in milliseconds since 1970: each key exists until the end of that millisecond.
    pub fn expiries(&self) -> impl Iterator<Item = (&[u8], i64)> {
        self.keys
            .iter()
            .filter_map(|(key, entry)| Some((&**key, entry.expires?)))
    }

    /// Returns every key, including expired ones that weren't deleted yet.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.keys.iter().map(|(key, entry)| (&**key, entry))
    }
}

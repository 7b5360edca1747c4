//! What a Redis server stores: four types of value, each key with an expiry or none. A copy costs little, as
//! it shares the values until one of the two changes them, so that a search can keep millions.

use std::collections::BTreeMap;
use std::sync::Arc;

pub type Bytes = Vec<u8>;

pub type Fields = BTreeMap<Bytes, Bytes>;
/// Scores of sorted sets are whole numbers here.
pub type Members = Vec<(i64, Bytes)>;
pub type Entries = Vec<Bytes>;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    Text(Bytes),
    Hash(Fields),
    /// By score, then by member.
    Sorted(Members),
    /// The head first.
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
    /// Redis has no key whose hash, sorted set or list is empty.
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::Sorted(members) => members.is_empty(),
            Self::List(entries) => entries.is_empty(),
        }
    }
}

/// A key's value, and when it expires, in milliseconds since 1970.
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
    /// Whether a key with this expiry is there at a moment: also in the last of its milliseconds.
    fn lasts(entry: &Entry, now_ms: i64) -> bool {
        entry.expires.is_none_or(|expires| now_ms <= expires)
    }

    /// What a key has at this moment.
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

    /// The value of a key that may be changed, and is created if it isn't there; `None` if it is of another type. The caller
    /// calls `tidy` for it afterwards.
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

    /// Deletes a key; whether it was there.
    pub(super) fn remove(&mut self, now_ms: i64, key: &[u8]) -> bool {
        self.keys
            .remove(key)
            .is_some_and(|entry| Self::lasts(&entry, now_ms))
    }

    /// Deletes a key if nothing is left in it.
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

    /// Deletes what has expired, so that two servers that differ in nothing a client can see are equal.
    pub fn forget_expired(&mut self, now_ms: i64) {
        if self.keys.values().any(|entry| !Self::lasts(entry, now_ms)) {
            self.keys.retain(|_, entry| Self::lasts(entry, now_ms));
        }
    }

    /// When keys expire, in milliseconds since 1970: each is there until that millisecond is over.
    pub fn expiries(&self) -> impl Iterator<Item = (&[u8], i64)> {
        self.keys
            .iter()
            .filter_map(|(key, entry)| Some((&**key, entry.expires?)))
    }

    /// Every key, also those that have expired and weren't forgotten yet.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.keys.iter().map(|(key, entry)| (&**key, entry))
    }
}

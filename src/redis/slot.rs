//! The hash slots of keys, and of what keys begin with, as a Redis Cluster has them. Pure.

/// A key that belongs to no single lock. Where the prefix has a hash tag, it is in the slot of all locks
/// below that prefix.
pub fn key_of_prefix(prefix: &str, what: &str) -> String {
    match hash_tag(prefix) {
        Some(tag) => format!("{{{tag}}}:{prefix}:{what}"),
        None => format!("{{{prefix}}}:{what}"),
    }
}

/// Whether all keys below this prefix are in one hash slot of a Redis Cluster.
pub fn is_in_one_slot(prefix: &str) -> bool {
    hash_tag(prefix).is_some()
}

/// What Redis Cluster hashes of a key: the text between the first `{` and the next `}`.
pub fn hash_tag(key: &str) -> Option<&str> {
    let inner = &key[key.find('{')? + 1..];
    let tag = &inner[..inner.find('}')?];
    (!tag.is_empty()).then_some(tag)
}

/// The hash slot of a text, as Redis Cluster has it: CRC16 (XMODEM) modulo 16384.
pub fn hash_slot(text: &[u8]) -> u16 {
    let crc = text.iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    });
    crc % 16384
}

/// The smallest number that, as text, has this hash slot.
pub fn number_in(wanted: u16) -> u32 {
    let is_it = |number: &u32| hash_slot(number.to_string().as_bytes()) == wanted;
    // Six digits reach every slot.
    (0..1_000_000).find(is_it).unwrap_or(0)
}

/// What the keys of the locks begin with, and those beside them, whose names don't contain braces.
pub fn key_starts(prefix: &str) -> (String, String) {
    // Where the prefix has a hash tag, all keys begin with that, too.
    let beside = match prefix.find('{') {
        None => format!("{{{prefix}"),
        Some(at) => {
            let tag = &prefix[at..];
            tag.split_inclusive('}').next().unwrap_or(tag).to_owned()
        }
    };
    (prefix.to_owned(), beside)
}

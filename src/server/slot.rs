//! Hash slots and hash tags of keys, as Redis Cluster defines them. Pure.

/// Returns a key that belongs to no single lock. If the prefix has a hash tag, the key is in the slot of all locks with that
/// prefix.
pub fn key_of_prefix(prefix: &str, what: &str) -> String {
    match hash_tag(prefix) {
        Some(tag) => format!("{{{tag}}}:{prefix}:{what}"),
        None => format!("{{{prefix}}}:{what}"),
    }
}

/// Returns the part of a key that Redis Cluster hashes: the text between the first `{` and the next `}`.
pub fn hash_tag(key: &str) -> Option<&str> {
    let inner = &key[key.find('{')? + 1..];
    let tag = &inner[..inner.find('}')?];
    (!tag.is_empty()).then_some(tag)
}

/// Returns the hash slot of a text in Redis Cluster: CRC16 (XMODEM) modulo 16384.
pub fn hash_slot(text: &[u8]) -> u16 {
    let crc = text.iter().fold(0_u16, |crc, &byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            let carry = crc & 0x8000 != 0;
            (crc << 1) ^ if carry { 0x1021 } else { 0 }
        })
    });
    crc % 16384
}

/// Returns the smallest number whose decimal text has this hash slot.
pub fn number_in(wanted: u16) -> u32 {
    let is_it = |number: &u32| hash_slot(number.to_string().as_bytes()) == wanted;
    // Six digits reach every slot.
    (0..1_000_000).find(is_it).unwrap_or(0)
}

/// Returns the beginning of the locks' own keys, and that of their accompanying keys if the lock's name has no braces.
pub fn key_starts(prefix: &str) -> (String, String) {
    // If the prefix has a hash tag, all keys begin with the same text up to the tag.
    let beside = match prefix.find('{') {
        None => format!("{{{prefix}"),
        Some(at) => {
            let tag = &prefix[at..];
            tag.split_inclusive('}').next().unwrap_or(tag).to_owned()
        }
    };
    (prefix.to_owned(), beside)
}

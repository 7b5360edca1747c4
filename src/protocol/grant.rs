//! A lease that was granted without a request, as the message to a waiter reports it. Pure.

use std::time::Duration;

use super::who::{SLOTS, number};

/// A lease granted without a request. Read from a message, so what no script of ours could
/// have written is ignored.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub fence: u64,
    pub slot: u32,
    /// When, by the server's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// How long it lasts.
    pub lasting: Duration,
}

impl Grant {
    /// Reads `granted <fence> <slot> <at> <lasting>`; `None` for anything else.
    pub fn parse(message: &str) -> Option<Self> {
        let words: Vec<&str> = message.split(' ').collect();
        let ["granted", fence, slot, at, lasting] = words[..] else {
            return None;
        };
        let lasting = number(lasting).filter(|ms| *ms <= LONGEST_GRANT)?;
        Some(Self {
            fence: number(fence)?,
            slot: slot.parse().ok().filter(|slot| *slot <= SLOTS)?,
            at_ms: number(at)?,
            lasting: Duration::from_millis(lasting),
        })
    }
}

/// No grant is longer than this, in milliseconds: a waiter that can't confirm it delays all others.
const LONGEST_GRANT: u64 = 60_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_script_can_have_written_is_a_grant() {
        let grant = Grant::parse("granted 1700000000000000 2 1700000000000 2000").unwrap();
        assert_eq!((grant.fence, grant.slot), (1_700_000_000_000_000, 2));
        assert_eq!(grant.lasting, Duration::from_secs(2));
        for message in [
            "",
            "granted",
            "granted 1 1 1",
            "granted 1 1 1 2000 1",
            "granted 1 1 1 2000 soon",
            "granted -1 1 1 2000",
            "granted 1 1 1 1800000000000",
            "granted 1 10000 1 2000",
            "granted 9007199254740993 1 1 2000",
            "granted 1 1 9007199254740993 2000",
        ] {
            assert!(Grant::parse(message).is_none(), "{message:?}");
        }
    }
}

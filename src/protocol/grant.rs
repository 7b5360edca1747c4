//! A lease granted to a waiter, as the message to it reports the lease. Pure.

use std::time::Duration;

use super::who::{SLOTS, number};

/// A lease granted without a request. The data comes from a message, so any text that redlock's scripts can't
/// have written is ignored.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    pub fence: u64,
    pub slot: u32,
    /// Time of the grant by the server's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// Length of the lease.
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

/// Longest grant, in milliseconds: a waiter that can't confirm its grant delays all others.
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

//! The time during which a certificate is valid, read from its DER. Pure.

use std::time::UNIX_EPOCH;

use humantime::parse_rfc3339;

/// The time of a certificate, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: i64,
    pub until: i64,
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

impl Validity {
    /// Reads a certificate (RFC 5280, 4.1); `None` for anything else.
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let (content, _) = element(certificate, SEQUENCE)?;
        let (signed, _) = element(content, SEQUENCE)?;
        // The version may be absent; then come the serial number, the algorithm and the issuer.
        let rest = element(signed, VERSION).map_or(signed, |(_, rest)| rest);
        let rest = skip(skip(skip(rest)?)?)?;
        let (validity, _) = element(rest, SEQUENCE)?;
        let (from, rest) = time(validity)?;
        let (until, _) = time(rest)?;
        Some(Self { from, until })
    }
}

/// The content of an element with this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = any(bytes)?;
    (found == tag).then_some((content, rest))
}

fn skip(bytes: &[u8]) -> Option<&[u8]> {
    any(bytes).map(|(_, _, rest)| rest)
}

/// The first element: its tag, its content, and what follows it.
fn any(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        // So many bytes hold the length.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let fold = |length: usize, digit: &u8| length << 8 | usize::from(*digit);
            (digits.iter().fold(0, fold), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// A moment from 1970 on (`YYMMDDHHMMSSZ`, or with four digits for the year), and what follows it.
fn time(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (tag, content, rest) = any(bytes)?;
    let text = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
    let century = match tag {
        UTC_TIME if text < "50" => "20",
        UTC_TIME => "19",
        GENERALIZED_TIME => "",
        _ => return None,
    };
    let text = format!("{century}{text}");
    if text.len() < 14 || !text.is_ascii() {
        return None;
    }
    let [year, month, day] = [&text[..4], &text[4..6], &text[6..8]];
    let [hour, minute, second] = [&text[8..10], &text[10..12], &text[12..14]];
    let moment = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z");
    let since_1970 = parse_rfc3339(&moment).ok()?.duration_since(UNIX_EPOCH);
    Some((i64::try_from(since_1970.ok()?.as_secs()).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        match content.len() {
            short @ 0..0x80 => bytes.push(u8::try_from(short).unwrap()),
            long => {
                bytes.extend([&[0x82][..], &u16::try_from(long).unwrap().to_be_bytes()].concat());
            }
        }
        [bytes, content.to_vec()].concat()
    }

    fn certificate(version: &[u8], from: &[u8], until: &[u8]) -> Vec<u8> {
        let issuer = der(SEQUENCE, &[0; 300]);
        let validity = der(SEQUENCE, &[from, until].concat());
        let serial = der(0x02, &[1]);
        let algorithm = der(SEQUENCE, &[]);
        let signed = [version, &serial, &algorithm, &issuer, &validity].concat();
        der(SEQUENCE, &der(SEQUENCE, &signed))
    }

    #[test]
    fn the_time_of_a_certificate_is_read() {
        let version = der(VERSION, &[2, 1, 2]);
        let from = der(UTC_TIME, b"700101000000Z");
        let until = der(GENERALIZED_TIME, b"20240229123456Z");
        let expected = Validity {
            from: 0,
            until: 1_709_210_096,
        };
        for version in [&version[..], b""] {
            let bytes = certificate(version, &from, &until);
            assert_eq!(Validity::of(&bytes), Some(expected));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_time() {
        let whole = certificate(
            b"",
            &der(UTC_TIME, b"7001"),
            &der(UTC_TIME, b"700101000000Z"),
        );
        assert_eq!(Validity::of(&whole), None);
        let whole = certificate(
            b"",
            &der(UTC_TIME, b"700101000000Z"),
            &der(UTC_TIME, b"700101000000Z"),
        );
        for end in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..end]), None);
        }
        assert_eq!(Validity::of(&[0x30, 0x85, 1, 1, 1, 1, 1]), None);
    }
}

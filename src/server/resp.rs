//! A parser of the Redis protocol's replies, for a stream of bytes. Pure.
//!
//! The input may be anything: from a proxy in between, or from a server that is broken or malicious. So each reply has a
//! limit of its size and depth, which is checked before anything is stored. The parser parses each value only once,
//! however small the pieces in which a reply comes; only the first line of a text is read again with each piece. After a
//! violation it doesn't trust the rest of the stream, and returns no more replies.
//!
//! The redis crate's parser detects the processor's features before its first byte, and on a virtual machine that takes longer
//! than Redis itself. So this module uses it only for errors and rare kinds of replies.

use redis::{PushKind, Value};

/// Deepest nesting of replies. redlock's own nest three lists.
const DEEPEST: usize = 8;

/// Weight of a value in addition to its text, in bytes, so that many small values count with the memory that they use: as
/// input, as parsed values, and as output.
const WEIGHT: usize = 192;

/// Reason why no more replies can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The input isn't the protocol. Contains its beginning.
    Noise(String),
    /// A reply exceeds its size limit.
    TooLarge,
    /// A reply is nested deeper than any of redlock's.
    TooDeep,
}

/// An incomplete list.
struct List {
    /// First byte of the list in the protocol.
    kind: u8,
    values: Vec<Value>,
    missing: usize,
}

/// A parser of the replies in a stream of bytes.
#[derive(Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// Position of the first byte that isn't part of a value yet.
    at: usize,
    /// Position up to which there is no end of line.
    looked: usize,
    lists: Vec<List>,
    /// Weight of the incomplete reply so far.
    weight: usize,
    /// Weight of the last reply, in bytes.
    pub last_weight: usize,
    broken: Option<Fault>,
}

impl Replies {
    /// Adds input.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.looked = self.looked.saturating_sub(self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the input that isn't part of a reply yet.
    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.at.min(self.bytes.len())..]
    }

    /// Returns the next reply, or `None` if it isn't complete. A reply may weigh at most `limit`.
    pub fn next(&mut self, limit: usize) -> Result<Option<Value>, Fault> {
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        self.read(limit)
            .inspect_err(|broken| self.broken = Some(broken.clone()))
    }

    fn read(&mut self, limit: usize) -> Result<Option<Value>, Fault> {
        while let Some(value) = self.item(limit)? {
            if let Some(reply) = self.put(value)? {
                self.last_weight = std::mem::take(&mut self.weight);
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Returns the next value that is complete, and opens the lists around it.
    fn item(&mut self, limit: usize) -> Result<Option<Value>, Fault> {
        let weight = self.weight;
        let Some((start, end)) = self.line(limit)? else {
            return Ok(None);
        };
        self.weigh(end - start + WEIGHT, limit)?;
        let line = &self.bytes[start..end];
        let noise = || Fault::Noise(beginning(line));
        let (&kind, rest) = line.split_first().ok_or_else(noise)?;
        let number = number(rest);
        let value = match kind {
            b':' => Value::Int(number.ok_or_else(noise)?),
            b'_' if rest.is_empty() => Value::Nil,
            b'$' | b'*' if number == Some(-1) => Value::Nil,
            b'+' if rest == b"OK" => Value::Okay,
            b'+' => Value::SimpleString(String::from_utf8_lossy(rest).into_owned()),
            b'$' | b'=' | b'!' => {
                let size = number.and_then(|size| usize::try_from(size).ok());
                let size = size.ok_or_else(noise)?;
                self.weigh(size, limit)?;
                let Some(text) = self.bytes[self.at..].get(..size + 2) else {
                    // Reads the first line again when more has come.
                    (self.at, self.looked, self.weight) = (start, start, weight);
                    return Ok(None);
                };
                let end = || Fault::Noise(beginning(text));
                let text = text.strip_suffix(b"\r\n").ok_or_else(end)?;
                self.at += size + 2;
                match kind {
                    b'$' => Value::BulkString(text.to_vec()),
                    // redlock treats an error of several lines as one line.
                    b'!' => {
                        let line = String::from_utf8_lossy(text).replace(['\r', '\n'], " ");
                        rare(format!("-{line}").as_bytes())?
                    }
                    // The first four bytes are the kind of text.
                    _ => Value::SimpleString(
                        String::from_utf8_lossy(text.get(4..).unwrap_or_default()).into_owned(),
                    ),
                }
            }
            b'*' | b'~' | b'>' | b'%' => {
                if kind == b'>' && !self.lists.is_empty() {
                    return Err(noise());
                }
                let count = number.and_then(|count| usize::try_from(count).ok());
                let count = count.ok_or_else(noise)?;
                let missing = count.saturating_mul(if kind == b'%' { 2 } else { 1 });
                let most = self.weight.saturating_add(missing.saturating_mul(WEIGHT));
                if most > limit {
                    return Err(Fault::TooLarge);
                }
                let values = Vec::with_capacity(missing.min(64));
                let list = List {
                    kind,
                    values,
                    missing,
                };
                if missing > 0 {
                    if self.lists.len() == DEEPEST {
                        return Err(Fault::TooDeep);
                    }
                    self.lists.push(list);
                    return self.item(limit);
                }
                closed(list)?
            }
            b'-' | b'#' | b',' | b'(' => rare(line)?,
            _ => return Err(noise()),
        };
        Ok(Some(value))
    }

    /// Adds a value to its list. Returns the reply if it is complete now.
    fn put(&mut self, mut value: Value) -> Result<Option<Value>, Fault> {
        while let Some(mut list) = self.lists.pop() {
            list.values.push(value);
            list.missing -= 1;
            if list.missing > 0 {
                self.lists.push(list);
                return Ok(None);
            }
            value = closed(list)?;
        }
        Ok(Some(value))
    }

    /// Returns the next line without its end, as a range, and moves past it.
    fn line(&mut self, limit: usize) -> Result<Option<(usize, usize)>, Fault> {
        let from = self.looked.max(self.at);
        let Some(length) = self.bytes[from..].iter().position(|&byte| byte == b'\n') else {
            self.looked = self.bytes.len();
            let pending = self.bytes.len() - self.at;
            if self.weight + pending > limit {
                return Err(Fault::TooLarge);
            }
            return Ok(None);
        };
        let (start, end) = (self.at, from + length);
        self.at = end + 1;
        self.looked = self.at;
        match self.bytes[start..end].strip_suffix(b"\r") {
            Some(line) => Ok(Some((start, start + line.len()))),
            None => Err(Fault::Noise(beginning(&self.bytes[start..end]))),
        }
    }

    fn weigh(&mut self, more: usize, limit: usize) -> Result<(), Fault> {
        self.weight = self.weight.saturating_add(more);
        if self.weight > limit {
            return Err(Fault::TooLarge);
        }
        Ok(())
    }
}

/// Returns a complete list as a value.
fn closed(list: List) -> Result<Value, Fault> {
    let mut values = list.values;
    Ok(match list.kind {
        b'~' => Value::Set(values),
        b'%' => {
            let mut pairs = Vec::with_capacity(values.len() / 2);
            let mut values = values.into_iter();
            while let (Some(key), Some(value)) = (values.next(), values.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
        b'>' => {
            if values.is_empty() {
                return Err(Fault::Noise(">0".into()));
            }
            let kind = match values.remove(0) {
                Value::BulkString(kind) if kind == b"message" => PushKind::Message,
                Value::BulkString(kind) if kind == b"subscribe" => PushKind::Subscribe,
                Value::BulkString(kind) if kind == b"invalidate" => PushKind::Invalidate,
                Value::BulkString(kind) if kind == b"smessage" => PushKind::SMessage,
                Value::BulkString(kind) if kind == b"ssubscribe" => PushKind::SSubscribe,
                Value::BulkString(kind) if kind == b"sunsubscribe" => PushKind::SUnsubscribe,
                Value::BulkString(kind) => PushKind::Other(beginning(&kind)),
                _ => return Err(Fault::Noise(">".into())),
            };
            Value::Push { kind, data: values }
        }
        _ => Value::Array(values),
    })
}

/// Has the crate parse a line.
fn rare(line: &[u8]) -> Result<Value, Fault> {
    redis::parse_redis_value(&[line, b"\r\n"].concat()).map_err(|_| Fault::Noise(beginning(line)))
}

/// Returns the beginning of the input, as long as a message can quote it.
fn beginning(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned()
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&str; 23] = [
        ":1\r\n",
        ":-42\r\n",
        "$5\r\nhello\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "_\r\n",
        "*0\r\n",
        "*3\r\n:0\r\n$-1\r\n*2\r\n$2\r\n\r\n\r\n_\r\n",
        "+OK\r\n",
        "-NOSCRIPT No matching script.\r\n",
        "*2\r\n+string\r\n:3\r\n",
        "%1\r\n$1\r\na\r\n:1\r\n",
        "~2\r\n:1\r\n*1\r\n:2\r\n",
        ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
        ">2\r\n$5\r\nother\r\n$1\r\nm\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        ">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n",
        ">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n",
        "#t\r\n",
        ",1.5\r\n",
    ];

    const MANY: usize = 1 << 20;

    fn next(bytes: &[u8], limit: usize) -> Result<Option<Value>, Fault> {
        let mut replies = Replies::default();
        replies.add(bytes);
        replies.next(limit)
    }

    #[test]
    fn a_long_error_is_an_error_and_a_marked_text_is_its_text() {
        let parse = |reply: &str| redis::parse_redis_value(reply.as_bytes()).unwrap();
        for (reply, same_as) in [
            ("!5\r\nERR x\r\n", "-ERR x\r\n"),
            ("!6\r\nERR\r\nx\r\n", "-ERR  x\r\n"),
            ("=7\r\ntxt:abc\r\n", "+abc\r\n"),
        ] {
            let read = next(reply.as_bytes(), MANY);
            assert_eq!(read, Ok(Some(parse(same_as))), "{reply:?}");
        }
    }

    #[test]
    fn every_reply_is_read_as_the_crate_reads_it_in_whatever_pieces_it_comes() {
        let stream = REPLIES.concat().into_bytes();
        for size in [1, 2, 3, 7, 50, stream.len()] {
            let mut replies = Replies::default();
            let mut values = Vec::new();
            for piece in stream.chunks(size) {
                replies.add(piece);
                while let Some(value) = replies.next(MANY).unwrap() {
                    values.push(value);
                }
            }
            let right = REPLIES.map(|reply| redis::parse_redis_value(reply.as_bytes()).unwrap());
            assert_eq!(values, right, "in pieces of {size}");
        }
    }

    #[test]
    fn what_is_not_the_protocol_is_an_error_and_stays_one() {
        for noise in [
            "HTTP/1.1 400 Bad Request\r\n",
            "\r\n",
            "$x\r\n\r\n",
            "$-2\r\n\r\n",
            "*-7\r\n",
            "$2\r\nabc\r\n",
            "*1\r\n?\r\n",
            "*1\r\n>2\r\n$1\r\na\r\n:1\r\n",
            ">0\r\n",
            ":1\n",
            "_x\r\n",
        ] {
            let mut replies = Replies::default();
            replies.add(noise.as_bytes());
            assert!(
                matches!(replies.next(MANY), Err(Fault::Noise(_))),
                "{noise:?}"
            );
            replies.add(b":1\r\n");
            assert!(replies.next(MANY).is_err(), "{noise:?}");
        }
        assert_eq!(next(b"SSH-2.0", MANY), Ok(None));
    }

    #[test]
    fn what_was_read_is_not_kept_and_what_was_not_can_be_seen() {
        let mut replies = Replies::default();
        for _ in 0..1_000 {
            replies.add(b":1\r\n:2");
            assert_eq!(replies.next(MANY), Ok(Some(Value::Int(1))));
            assert_eq!(replies.next(MANY), Ok(None));
            assert_eq!(replies.unread(), b":2");
            replies.add(b"\r\n");
            assert_eq!(replies.next(MANY), Ok(Some(Value::Int(2))));
            assert_eq!(replies.unread(), b"");
        }
        assert!(replies.bytes.len() < 10, "{}", replies.bytes.len());
    }

    #[test]
    fn no_reply_is_deeper_than_ours_are() {
        let deep = |depth: usize| "*1\r\n".repeat(depth) + ":1\r\n";
        assert!(matches!(next(deep(8).as_bytes(), MANY), Ok(Some(_))));
        for depth in [9, 150_000] {
            assert_eq!(next(deep(depth).as_bytes(), MANY * 64), Err(Fault::TooDeep));
        }
    }

    #[test]
    fn no_reply_is_larger_than_its_limit_whatever_it_promises() {
        let long = |size: usize| format!("${size}\r\n{}\r\n", "x".repeat(size));
        assert!(matches!(next(long(800).as_bytes(), 1000), Ok(Some(_))));
        for large in [
            long(1000),
            "$1000\r\n".into(),
            "$9223372036854775807\r\n".into(),
            "*9223372036854775807\r\n".into(),
            "%9223372036854775807\r\n".into(),
            "*2\r\n".to_owned() + &long(300) + &long(300),
            "*5\r\n".to_owned() + &"_\r\n".repeat(5),
            // A line without an end.
            "+".to_owned() + &"x".repeat(1000),
        ] {
            assert_eq!(
                next(large.as_bytes(), 1000),
                Err(Fault::TooLarge),
                "{large:?}"
            );
        }
        // A limit of exactly its weight is enough for a reply.
        for reply in REPLIES {
            let mut replies = Replies::default();
            replies.add(reply.as_bytes());
            assert!(matches!(replies.next(MANY), Ok(Some(_))));
            let weight = replies.last_weight;
            assert!(matches!(next(reply.as_bytes(), weight), Ok(Some(_))));
            let less = next(reply.as_bytes(), weight - 1);
            assert_eq!(less, Err(Fault::TooLarge), "{reply:?}");
        }
        // An incomplete line weighs no more than its length.
        let mut replies = Replies::default();
        replies.add((":1\r\n".repeat(240) + "+x").as_bytes());
        for _ in 0..240 {
            assert!(matches!(replies.next(1000), Ok(Some(_))));
        }
        assert_eq!(replies.next(1000), Ok(None));
        // Each reply is weighed by itself.
        let many = long(500).repeat(100);
        let mut replies = Replies::default();
        replies.add(many.as_bytes());
        for _ in 0..100 {
            assert!(matches!(replies.next(1000), Ok(Some(_))));
            assert!(replies.last_weight > 500);
        }
    }
}

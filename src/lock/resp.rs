//! Replies of the Redis protocol, cut out of a stream of bytes. Pure.
//!
//! The redis crate's parser knows all of the protocol, but finds out what the processor can do
//! before it reads its first byte, and on a virtual machine that takes longer than Redis does. So
//! the few kinds of reply that our scripts make are read here, and all others given to the crate.

use redis::{PushKind, RedisResult, Value};

/// Cuts the first reply off the buffer; `None` while it isn't complete.
pub(super) fn next(buffer: &mut Vec<u8>) -> RedisResult<Option<Value>> {
    let Some(length) = length(buffer, 0) else {
        return Ok(None);
    };
    let value = match plain(buffer, &mut 0) {
        Some(value) => value,
        None => redis::parse_redis_value(&buffer[..length])?,
    };
    buffer.drain(..length);
    Ok(Some(value))
}

/// Where the reply that starts at `start` ends. A reply of unknown kind ends with its line, so
/// that the crate can say what is wrong with it.
fn length(buffer: &[u8], start: usize) -> Option<usize> {
    let (line, end) = line(buffer, start)?;
    let Some((kind, rest)) = line.split_first() else {
        return Some(end);
    };
    let count = || {
        number(rest)
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(0)
    };
    match kind {
        b'$' | b'=' | b'!' if number(rest) == Some(-1) => Some(end),
        b'$' | b'=' | b'!' => {
            let end = end.checked_add(count())?.checked_add(2)?;
            (end <= buffer.len()).then_some(end)
        }
        b'*' | b'~' | b'>' => (0..count()).try_fold(end, |end, _| length(buffer, end)),
        b'%' => (0..2 * count()).try_fold(end, |end, _| length(buffer, end)),
        _ => Some(end),
    }
}

/// Reads an integer, a text, an absent value, an array of these, or what the server says by itself;
/// `None` for all else.
fn plain(buffer: &[u8], position: &mut usize) -> Option<Value> {
    let (line, end) = line(buffer, *position)?;
    let (kind, rest) = line.split_first()?;
    *position = end;
    match (kind, number(rest)) {
        (b':', Some(number)) => Some(Value::Int(number)),
        (b'$' | b'*', Some(-1)) => Some(Value::Nil),
        (b'$', Some(size)) => {
            let text = buffer.get(end..end.checked_add(usize::try_from(size).ok()?)?)?;
            *position = end + text.len() + 2;
            Some(Value::BulkString(text.to_vec()))
        }
        (b'*', Some(count)) => (0..count)
            .map(|_| plain(buffer, position))
            .collect::<Option<_>>()
            .map(Value::Array),
        (b'>', Some(count)) => {
            let mut data = (0..count)
                .map(|_| plain(buffer, position))
                .collect::<Option<Vec<_>>>()?;
            let kind = match data.first()? {
                Value::BulkString(kind) if kind == b"message" => PushKind::Message,
                Value::BulkString(kind) if kind == b"subscribe" => PushKind::Subscribe,
                Value::BulkString(kind) if kind == b"invalidate" => PushKind::Invalidate,
                _ => return None,
            };
            data.remove(0);
            Some(Value::Push { kind, data })
        }
        (b'_', None) if rest.is_empty() => Some(Value::Nil),
        _ => None,
    }
}

/// The line that starts at `start`, without its end, and where the next begins.
fn line(buffer: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let rest = buffer.get(start..)?;
    let size = rest.windows(2).position(|two| two == b"\r\n")?;
    Some((&rest[..size], start + size + 2))
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&str; 19] = [
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
        ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
        ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n",
        ">2\r\n$5\r\nother\r\n$1\r\nm\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n",
        "#t\r\n",
        ",1.5\r\n",
    ];

    #[test]
    fn every_reply_is_read_as_the_crate_reads_it() {
        for reply in REPLIES {
            let mut buffer = reply.as_bytes().to_vec();
            let value = next(&mut buffer).unwrap().unwrap();
            assert_eq!(
                value,
                redis::parse_redis_value(reply.as_bytes()).unwrap(),
                "{reply:?}"
            );
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn replies_that_come_in_pieces_are_waited_for() {
        let stream = REPLIES.concat().into_bytes();
        let mut buffer = Vec::new();
        let mut found = 0;
        for byte in stream {
            buffer.push(byte);
            while next(&mut buffer).unwrap().is_some() {
                found += 1;
            }
        }
        assert_eq!((found, buffer.len()), (REPLIES.len(), 0));
    }

    #[test]
    fn what_is_not_the_protocol_is_an_error() {
        for noise in [
            "HTTP/1.1 400 Bad Request\r\n",
            "\r\n",
            "$x\r\n\r\n",
            "*1\r\n?\r\n",
        ] {
            assert!(next(&mut noise.as_bytes().to_vec()).is_err(), "{noise:?}");
        }
        assert!(matches!(next(&mut b"SSH-2.0".to_vec()), Ok(None)));
    }
}

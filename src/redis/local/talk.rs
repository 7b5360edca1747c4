//! A few questions to the server of this host, by whoever starts it, looks after it or ends it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};

use crate::redis::reply::lossy_text;
use crate::redis::resp::Replies;

/// The largest answer.
const LIMIT: usize = 1 << 20;

/// What the server answers.
///
/// # Errors
/// Also where it answers something else than Redis does.
pub fn ask(mut stream: &UnixStream, question: &Cmd, until: Instant) -> io::Result<Value> {
    stream.write_all(&question.get_packed_command())?;
    let mut replies = Replies::default();
    let mut bytes = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => replies.add(&bytes[..read]),
        }
        match replies.next(LIMIT) {
            Ok(Some(answer)) => return Ok(answer),
            Ok(None) => {}
            Err(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// What a server says of itself.
pub struct Facts(String);

impl Facts {
    pub fn ask(stream: &UnixStream, until: Instant) -> io::Result<Self> {
        ask(stream, &cmd("INFO"), until).map(|answer| Self(lossy_text(&answer)))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}

/// Whether a key of this type is there. What is held, kept or frozen is a text, and all that is only remembered isn't.
pub fn has_text(stream: &UnixStream, until: Instant) -> io::Result<bool> {
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(&cursor).arg(&["COUNT", "1000", "TYPE", "string"]);
        let Value::Array(parts) = ask(stream, &scan, until)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        match parts.as_slice() {
            [_, Value::Array(keys)] if !keys.is_empty() => return Ok(true),
            [next, Value::Array(_)] => cursor = lossy_text(next),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        if cursor == "0" {
            return Ok(false);
        }
    }
}

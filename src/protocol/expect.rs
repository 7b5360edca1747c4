//! What is expected of locks: that a run succeeds again and again. It is kept beside the locks, for all that look.

use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::locks::Locks;
use super::name::{Name, expected_key};
use super::scripts::{array, lossy_text, number, unexpected_reply};
use crate::redis::error::Error;

/// What is expected of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    pub name: Name,
    /// A run is to succeed so often.
    pub every: Duration,
    /// So much later is in time, too.
    pub within: Duration,
    /// When a run has succeeded last, as far as that was seen: in milliseconds since 1970 by the server's clock.
    pub succeeded_ms: Option<u64>,
}

/// How long an expectation outlives the last look, in milliseconds.
const RETENTION: u64 = 60 * 24 * 3600 * 1000;

/// More than these are no list of jobs.
const MOST_EXPECTED: usize = 100_000;

impl Expectation {
    /// `<every (ms)> <within (ms)> <last success (ms), or 0>`
    fn to_text(&self) -> String {
        let [every, within] = [self.every, self.within].map(|it| it.as_millis());
        format!("{every} {within} {}", self.succeeded_ms.unwrap_or(0))
    }

    fn parse(name: &str, text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (every, within, succeeded) = (next()?, next()?, next()?);
        Some(Self {
            name: name.parse().ok()?,
            every: Duration::from_millis(every),
            within: Duration::from_millis(within),
            succeeded_ms: (succeeded > 0).then_some(succeeded),
        })
    }
}

impl Locks {
    /// Keeps what is expected of a lock.
    pub fn expect(&self, client: &mut Client, expectation: &Expectation) -> Result<(), Error> {
        let mut set = redis::cmd("HSET");
        set.arg(expected_key(&self.prefix))
            .arg(expectation.name.as_str())
            .arg(expectation.to_text());
        client.with_connection(|connection, _| connection.query(&set).map(drop))?;
        self.keep_expected(client)
    }

    /// Keeps when a run has succeeded last, if that is new, and nobody else has changed what is expected meanwhile.
    pub fn note_success(
        &self,
        client: &mut Client,
        before: &Expectation,
        after: &Expectation,
    ) -> Result<(), Error> {
        if before == after {
            return Ok(());
        }
        let mut get = redis::cmd("HGET");
        get.arg(expected_key(&self.prefix))
            .arg(before.name.as_str());
        let found = client.with_connection(|connection, _| connection.query(&get))?;
        if lossy_text(&found) == before.to_text() {
            self.expect(client, after)?;
        }
        Ok(())
    }

    /// Somebody has looked.
    pub fn keep_expected(&self, client: &mut Client) -> Result<(), Error> {
        let mut keep = redis::cmd("PEXPIRE");
        keep.arg(expected_key(&self.prefix)).arg(RETENTION);
        client.with_connection(|connection, _| connection.query(&keep).map(drop))
    }

    /// Expects nothing of this lock any more; whether anything was.
    pub fn expect_no_more(&self, client: &mut Client, name: &Name) -> Result<bool, Error> {
        let mut remove = redis::cmd("HDEL");
        remove.arg(expected_key(&self.prefix)).arg(name.as_str());
        client.with_connection(|connection, _| Ok(number(&connection.query(&remove)?)? > 0))
    }

    /// All that is expected, in the order of the names.
    pub fn expected(&self, client: &mut Client) -> Result<Vec<Expectation>, Error> {
        let key = expected_key(&self.prefix);
        let mut found = client.with_connection(|connection, _| {
            let (mut found, mut cursor) = (Vec::new(), "0".to_owned());
            loop {
                let mut scan = redis::cmd("HSCAN");
                scan.arg(&key).arg(&cursor).arg("COUNT").arg(1000);
                let answer = array(connection.query_list(&scan)?)?;
                let [next, fields] = answer.as_slice() else {
                    return Err(unexpected_reply(&answer));
                };
                let fields = array(fields.clone())?;
                let (pairs, []) = fields.as_chunks::<2>() else {
                    return Err(unexpected_reply(&fields));
                };
                // What another program has written there is nothing of ours.
                let parse = |[name, it]: &[Value; 2]| {
                    Expectation::parse(&lossy_text(name), &lossy_text(it))
                };
                found.extend(pairs.iter().filter_map(parse));
                cursor = lossy_text(next);
                if cursor == "0" || found.len() > MOST_EXPECTED {
                    return Ok(found);
                }
            }
        })?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_is_read_as_it_was_written() {
        let expectation = |succeeded_ms| Expectation {
            name: "nightly".parse().unwrap(),
            every: Duration::from_secs(26 * 3600),
            within: Duration::from_secs(7200),
            succeeded_ms,
        };
        for one in [expectation(None), expectation(Some(1_577_836_800_000))] {
            assert_eq!(Expectation::parse("nightly", &one.to_text()), Some(one));
        }
        for text in ["", "1", "1 2", "1 2 x", "-1 2 3", "a b c"] {
            assert_eq!(Expectation::parse("nightly", text), None, "{text}");
        }
        assert_eq!(Expectation::parse("not a name", "1 2 3"), None);
    }
}

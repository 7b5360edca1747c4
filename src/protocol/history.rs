//! The past and present holds of a lock, as the scripts have recorded them, and the runs that ended without the lock.

use std::fmt;
use std::time::Duration;

use redis::Value;
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::lock::Lock;
use super::locks::Locks;
use super::name::Name;
use super::scripts::{HISTORY, SKIP, array, is_id, lossy_text, number, unexpected_reply};
use super::who::{self, Holder, Limit, Who};
use crate::server::error::Error;

/// Known holds of a lock, and runs that ended without it.
#[derive(Clone, Debug)]
pub struct LockHistory {
    pub name: Name,
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// The holds in the order in which they got the lock, then the other runs in the order in which they ended.
    pub entries: Vec<HistoryEntry>,
}

/// Reason of a run to end without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SkipReason {
    /// A run had succeeded recently enough (`--once-per`).
    Recent,
    /// The lock was busy, and the run didn't want to wait.
    Busy,
    /// The lock stayed busy for the whole time to wait.
    Timeout,
    /// As many waiters were queued as it is willing to wait behind (`--max-queue`).
    Crowded,
    /// The lock was frozen.
    Frozen,
    /// A newer run superseded it, or had been there before it.
    Superseded,
    /// A person removed it from the queue.
    Removed,
    /// The run gave up to break a deadlock.
    Deadlock,
}

/// Shows the word that the history and JSON have for the reason.
impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.serialize(f)
    }
}

/// A hold of a lock, over or not, or a run that ended without it.
#[derive(Clone, Debug)]
pub struct HistoryEntry {
    pub name: Name,
    /// `None` for a run that ended without the lock.
    pub hold: Option<PastHold>,
    pub who: Who,
    /// Start of the hold, or of the wait of a run without one, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    pub waited: Duration,
    /// `None` while the hold lasts.
    pub ended_ms: Option<u64>,
    pub outcome: HoldOutcome,
    /// The client that ended the hold, or blocked the run, if known.
    pub by: Option<Who>,
    /// Time since the success that made the run needless ([`SkipReason::Recent`]).
    pub success_ago: Option<Duration>,
}

/// Properties of a hold that a run without the lock lacks.
#[derive(Clone, Debug)]
pub struct PastHold {
    /// Public id of its token.
    pub id: String,
    pub fence: u64,
    pub limit: Limit,
    /// Number among those that hold the lock; 0 for shared ones.
    pub slot: u32,
    /// Number of guards that it has had.
    pub guards: u32,
}

impl HistoryEntry {
    /// Returns the entry of a client that waits.
    pub fn waiting(name: &Name, who: Who, since_ms: u64, waited: Duration) -> Self {
        Self {
            name: name.clone(),
            hold: None,
            who,
            since_ms,
            waited,
            ended_ms: None,
            outcome: HoldOutcome::Running,
            by: None,
            success_ago: None,
        }
    }

    /// Returns how long the hold lasted, or has lasted until now.
    pub fn ran(&self, now_ms: u64) -> Duration {
        let until = self.ended_ms.unwrap_or(now_ms);
        Duration::from_millis(until.saturating_sub(self.since_ms))
    }
}

/// End of a hold, or of a run without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldOutcome {
    /// The hold lasts, or the run waits.
    #[serde(skip_deserializing)]
    Running,
    /// COMMAND exited with this status.
    Status(u8),
    /// COMMAND was killed by this signal.
    Signal(i32),
    /// `--max-runtime` stopped COMMAND.
    Timeout,
    /// The lock was lost while COMMAND ran.
    Lost,
    /// A newer run, or a person, had the run stopped.
    Cancelled,
    /// The lock was taken by force.
    Forced,
    /// Its process died, or could not renew the lease in time.
    Expired,
    /// The lock was released with `redlock release`, or by a keeper.
    Released,
    /// The run ended without the lock.
    Skipped(SkipReason),
}

impl HoldOutcome {
    /// Returns true if the hold ended as its job wanted it to.
    pub fn is_success(self) -> bool {
        matches!(self, Self::Status(0) | Self::Released)
    }

    /// Returns the outcome in one word.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Status(_) => "status",
            Self::Signal(_) => "signal",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Cancelled => "cancelled",
            Self::Forced => "forced",
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Skipped(_) => "skipped",
        }
    }

    /// Returns the outcome as it is recorded.
    pub(super) fn to_text(self) -> String {
        match self {
            Self::Status(number) => format!("status:{number}"),
            Self::Signal(number) => format!("signal:{number}"),
            other => other.kind().into(),
        }
    }

    /// Reads a text of [`Self::to_text`] or of the scripts.
    fn parse(text: &str) -> Option<Self> {
        Some(match text.split_once(':') {
            Some(("status", status)) => Self::Status(status.parse().ok()?),
            // No other signals exist.
            Some(("signal", signal)) => {
                Self::Signal(signal.parse().ok().filter(|it| (1..=64).contains(it))?)
            }
            _ => serde_json::from_value(text.into()).ok()?,
        })
    }
}

/// Least number of successes that make a usual length.
const ENOUGH: usize = 3;

/// Returns the usual length of a hold: the median of those that succeeded.
pub(super) fn usual_of(mut lasted: Vec<Duration>) -> Option<Duration> {
    lasted.sort_unstable();
    (lasted.len() >= ENOUGH).then(|| lasted[(lasted.len() - 1) / 2])
}

/// Number of histories per request: the server keeps all of these answers in memory.
const FEW: usize = 32;

/// Longest time to record a run without the lock, because nothing depends on that.
const SKIP_WITHIN: Duration = Duration::from_millis(250);

impl Lock {
    /// Records that a run ended without this lock, if Redis answers soon. Returns the host whose success made
    /// the run needless, if the history has it.
    pub fn record_skip(
        &self,
        client: &mut Client,
        (reason, after, by): (SkipReason, Duration, Option<&Who>),
        who: &Who,
    ) -> Result<Option<String>, Error> {
        let who = Who {
            ttl: None,
            skew: None,
            instance: None,
            kill_after: None,
            ..who.clone()
        };
        // The command of that client is in the history.
        let by = by.map(|by| Who {
            host: by.host.clone(),
            user: by.user.clone(),
            pid: by.pid,
            known_as: by.known_as.clone(),
            url: by.url.clone(),
            ..Who::default()
        });
        let (reason, ms) = (reason.to_string(), after.as_millis().to_string());
        let by = by.map_or(Vec::new(), |by| by.to_json());
        let args = vec![reason.into(), ms.into(), who.to_json(), by];
        let call = self.call(&SKIP, args);
        client.limit_to(SKIP_WITHIN);
        let noted = client.call(call, |fields| match fields {
            [Value::Int(1)] => Ok(None),
            [Value::Int(1), host] => Ok(Some(lossy_text(host))),
            other => Err(unexpected_reply(other)),
        });
        client.lift_limit();
        noted
    }
}

impl Locks {
    /// Reads the histories of any number of locks, a few at a time. Passes each to `each` until that returns
    /// false.
    pub fn each_history<E: From<Error>>(
        &self,
        client: &mut Client,
        names: &[Name],
        mut each: impl FnMut(LockHistory) -> Result<bool, E>,
    ) -> Result<(), E> {
        for few in names.chunks(FEW) {
            let locks = few.iter().map(|name| self.lock(name.clone()));
            let calls = locks.map(|lock| lock.call(&HISTORY, Vec::new()));
            let calls = calls.collect();
            let (mut names, mut goes_on) = (few.iter(), Ok(true));
            client.with_connection(|connection, _| {
                let read = |answer| {
                    if let (Some(name), Ok(true)) = (names.next(), &goes_on) {
                        goes_on = each(parse(self.history, name, answer)?);
                    }
                    Ok(())
                };
                // Weight 0, because nothing of an answer is kept.
                connection.list(calls, read, |()| 0)
            })?;
            if !goes_on? {
                break;
            }
        }
        Ok(())
    }
}

pub(super) fn parse(most: u32, name: &Name, answer: Value) -> Result<LockHistory, Error> {
    let fields = <[Value; 4]>::try_from(array(answer)?);
    let [now_ms, records, live, skipped] = fields.map_err(|fields| unexpected_reply(&fields))?;
    // The server trims rarely, so there may be a few more than wanted.
    let wanted = usize::try_from(most).unwrap_or(usize::MAX);
    let records = array(records)?.into_iter().take(wanted);
    let mut entries: Vec<_> = records.filter_map(|record| over(name, &record)).collect();
    for hold in array(live)? {
        entries.extend(not_written(name, &array(hold)?));
    }
    entries.sort_by_key(|entry| entry.hold.as_ref().map(|hold| hold.fence));
    let skipped = array(skipped)?;
    let skips = skipped.iter().take(wanted).rev();
    entries.extend(skips.filter_map(|record| skip(name, record)));
    Ok(LockHistory {
        name: name.clone(),
        now_ms: number(&now_ms)?,
        entries,
    })
}

/// Longest record that is read, in bytes: two entries and the fields before them.
const LONGEST: usize = 300 * 1024;

/// Reads `"<word> <word> <word> <bytes of by> <by><entry>"`.
fn split(record: &str) -> Option<([&str; 3], Option<Who>, &str)> {
    let mut parts = (record.len() <= LONGEST).then(|| record.splitn(5, ' '))?;
    let words = [parts.next()?, parts.next()?, parts.next()?];
    let length = parts.next()?.parse().ok()?;
    let (by, entry) = parts.next()?.split_at_checked(length)?;
    Some((words, Who::parse(by.as_bytes()), entry))
}

/// Reads a hold that is over: `"<id> <ended> <how> <bytes of by> <by><entry>"`.
pub(super) fn over(name: &Name, record: &Value) -> Option<HistoryEntry> {
    let record = lossy_text(record);
    let ([id, ended, how], by, entry) = split(&record)?;
    let (ended_ms, outcome) = (who::number(ended)?, HoldOutcome::parse(how)?);
    let is_by_other = matches!(outcome, HoldOutcome::Cancelled | HoldOutcome::Forced);
    Some(HistoryEntry {
        ended_ms: Some(ended_ms),
        outcome,
        by: by.filter(|_| is_by_other),
        ..hold_of(name, id, entry)?
    })
}

/// Reads a run without the lock: `"<ended> <why> <ms> <bytes of by> <by><who>"`.
pub(super) fn skip(name: &Name, record: &Value) -> Option<HistoryEntry> {
    let record = lossy_text(record);
    let ([ended, why, ms], by, who) = split(&record)?;
    let (ended_ms, after_ms) = (who::number(ended)?, who::number(ms)?);
    let reason = serde_json::from_value(why.into()).ok()?;
    let (waited_ms, success_ago) = match reason {
        SkipReason::Recent => (0, Some(Duration::from_millis(after_ms))),
        _ => (after_ms, None),
    };
    let who = Who::parse(who.as_bytes())?;
    let since_ms = ended_ms.saturating_sub(waited_ms);
    Some(HistoryEntry {
        ended_ms: Some(ended_ms),
        outcome: HoldOutcome::Skipped(reason),
        by,
        success_ago,
        ..HistoryEntry::waiting(name, who, since_ms, Duration::from_millis(waited_ms))
    })
}

/// Reads a hold without a record: `{id, 1 when held, 0 when its lease has ended or 2 when it was lost, when,
/// entry}`.
fn not_written(name: &Name, fields: &[Value]) -> Option<HistoryEntry> {
    let [id, Value::Int(how), when, entry] = fields else {
        return None;
    };
    let (ended_ms, outcome) = match how {
        0 => (Some(number(when).ok()?), HoldOutcome::Expired),
        1 => (None, HoldOutcome::Running),
        2 => (Some(number(when).ok()?), HoldOutcome::Lost),
        _ => return None,
    };
    Some(HistoryEntry {
        ended_ms,
        outcome,
        ..hold_of(name, &lossy_text(id), &lossy_text(entry))?
    })
}

/// Reads the entry of a hold into an entry of the history.
fn hold_of(name: &Name, id: &str, entry: &str) -> Option<HistoryEntry> {
    let holder = Holder::parse(entry.as_bytes()).filter(|_| is_id(id))?;
    let hold = PastHold {
        id: id.to_owned(),
        fence: holder.fence,
        limit: holder.limit,
        slot: holder.slot,
        guards: holder.guards,
    };
    Some(HistoryEntry {
        hold: Some(hold),
        ..HistoryEntry::waiting(name, holder.who, holder.since_ms, holder.waited)
    })
}

#[cfg(test)]
mod tests {
    use super::super::client::tests::locks_behind;
    use super::*;

    #[test]
    fn three_holds_say_what_is_usual_and_two_do_not() {
        let usual = |lasted: &[u64]| {
            usual_of(lasted.iter().map(|ms| Duration::from_millis(*ms)).collect())
                .map(|usual| usual.as_millis())
        };
        assert_eq!(usual(&[]), None);
        assert_eq!(usual(&[3, 4]), None);
        assert_eq!(usual(&[9, 1, 4]), Some(4));
        assert_eq!(usual(&[9000, 1, 4, 5]), Some(4));
    }

    #[test]
    fn the_limit_for_the_note_of_a_skipped_run_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let locks = locks_behind(&dir.path().join("nobody"));
        let mut client = locks.client();
        let skipped = (SkipReason::Busy, Duration::ZERO, None);
        let lock = locks.lock("a".parse().unwrap());
        let noted = lock.record_skip(&mut client, skipped, &Who::default());
        assert!(noted.is_err());
        assert_eq!(client.timeout(), Duration::from_secs(20));
    }

    #[test]
    fn a_record_is_read_as_it_is_written() {
        let name: Name = "a".parse().unwrap();
        let entry = r#"7 8000 1 1 250 held {"host":"h é","pid":3}"#;
        let by = r#"{"host":"d k","pid":4}"#;
        let record = |how: &str, by: &str| {
            let record = format!("c0ffee 9000 {how} {} {by}{entry}", by.len());
            over(&name, &Value::BulkString(record.into()))
        };
        let forced = record("forced", by).unwrap();
        let fence = forced.hold.map(|hold| hold.fence);
        assert_eq!((fence, forced.since_ms), (Some(7), 8000));
        assert_eq!(forced.waited, Duration::from_millis(250));
        assert_eq!(
            (forced.who.host.as_str(), forced.ended_ms),
            ("h é", Some(9000))
        );
        assert_eq!(forced.by.unwrap().host, "d k");
        for end in [
            HoldOutcome::Status(3),
            HoldOutcome::Signal(9),
            HoldOutcome::Timeout,
            HoldOutcome::Lost,
            HoldOutcome::Cancelled,
            HoldOutcome::Expired,
            HoldOutcome::Released,
        ] {
            let entry = record(&end.to_text(), "").unwrap();
            assert_eq!((entry.outcome, entry.by), (end, None));
        }
        let skipped = |why: &str| {
            let record = format!("9000 {why} 250 {} {by}{{\"host\":\"h é\"}}", by.len());
            skip(&name, &Value::BulkString(record.into()))
        };
        let reasons = "recent busy timeout crowded frozen superseded removed deadlock";
        for why in reasons.split(' ') {
            let skip = skipped(why).unwrap();
            assert!(skip.hold.is_none() && skip.ended_ms == Some(9000));
            assert_eq!(skip.who.host, "h é");
            assert_eq!(skip.by, Who::parse(by.as_bytes()));
            let HoldOutcome::Skipped(reason) = skip.outcome else {
                panic!("{:?}", skip.outcome);
            };
            assert_eq!(reason.to_string(), why);
            let ms = Duration::from_millis(250);
            let (waited, success_ago) = match reason {
                SkipReason::Recent => (Duration::ZERO, Some(ms)),
                _ => (ms, None),
            };
            assert_eq!((skip.waited, skip.success_ago), (waited, success_ago));
        }
        assert!(skipped("later").is_none());
        for how in ["later", "running", "status", "signal", "skipped", "lost:1"] {
            assert!(record(how, "").is_none(), "{how}");
        }
        assert!(over(&name, &Value::BulkString("x 1 lost 99 y".into())).is_none());
    }
}

//! The past and present holds of a lock, as the scripts have recorded them, and the runs that ended without the lock.

use std::borrow::Cow;
use std::time::Duration;

use redis::Value;

use super::client::Client;
use super::lock::Lock;
use super::locks::Locks;
use super::name::Name;
use super::scripts::{HISTORY, SKIP, array, is_id, lossy_text, number, unexpected_reply};
use super::who::{Holder, Limit, Who};
use crate::duration::milliseconds;
use crate::redis::error::Error;
use crate::redis::reply::MAX_EXACT_INT;

/// Known holds of a lock, and runs that ended without it.
#[derive(Clone, Debug)]
pub struct LockHistory {
    pub name: Name,
    /// The server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// The holds in the order in which they got the lock, then the other runs in the order in which they ended.
    pub entries: Vec<HistoryEntry>,
}

/// Why a run ended without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A run had succeeded recently enough (`--once-per`).
    Recent,
    /// The lock was busy, and it didn't want to wait.
    Busy,
    /// The lock stayed busy for as long as it wanted to wait.
    Timeout,
    /// Others waited already, behind whom it doesn't wait (`--max-queue`).
    Crowded,
    /// No new holder was admitted.
    Frozen,
    /// A newer run made it give up, or had been there before it.
    Superseded,
    /// A person removed it from the queue.
    Removed,
    /// It gave up to break a deadlock.
    Deadlock,
}

impl SkipReason {
    const ALL: [(Self, &str); 8] = [
        (Self::Recent, "recent"),
        (Self::Busy, "busy"),
        (Self::Timeout, "timeout"),
        (Self::Crowded, "crowded"),
        (Self::Frozen, "frozen"),
        (Self::Superseded, "superseded"),
        (Self::Removed, "removed"),
        (Self::Deadlock, "deadlock"),
    ];

    /// In one word.
    pub fn kind(self) -> &'static str {
        let own = Self::ALL.into_iter().find(|(one, _)| *one == self);
        own.map_or("", |(_, kind)| kind)
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
}

/// Properties of a hold that a run without the lock lacks.
#[derive(Clone, Debug)]
pub struct PastHold {
    /// Public id of its token.
    pub id: String,
    pub fence: u64,
    pub limit: Limit,
    /// Its number among those that held the lock; 0 for shared ones.
    pub slot: u32,
    /// Number of guards that it has had.
    pub guards: u32,
}

impl HistoryEntry {
    /// Returns how long the hold lasted, or has lasted until now.
    pub fn ran(&self, now_ms: u64) -> Duration {
        let until = self.ended_ms.unwrap_or(now_ms);
        Duration::from_millis(until.saturating_sub(self.since_ms))
    }
}

/// How a hold ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldOutcome {
    /// It hasn't.
    Running,
    /// COMMAND exited with this status.
    Status(u8),
    /// COMMAND was killed by this signal.
    Signal(i32),
    /// `--max-runtime` stopped COMMAND.
    Timeout,
    /// The lock was lost while COMMAND ran.
    Lost,
    /// A newer run had it stopped.
    Cancelled(Option<Who>),
    /// It was taken by force.
    Forced(Option<Who>),
    /// Its process died, or could not renew the lease in time.
    Expired,
    /// It was released with `redlock release`, or by a keeper.
    Released,
    /// The run ended without the lock.
    Skipped {
        reason: SkipReason,
        /// Time waited; with [`SkipReason::Recent`], the time since the success.
        after: Duration,
        /// The run that stood in the way, if it is known.
        by: Option<Who>,
    },
}

impl HoldOutcome {
    /// Returns the client that ended the hold, or stood in the way of the run, if it is known.
    pub fn by(&self) -> Option<&Who> {
        match self {
            Self::Cancelled(by) | Self::Forced(by) | Self::Skipped { by, .. } => by.as_ref(),
            _ => None,
        }
    }

    /// In one word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Status(_) => "status",
            Self::Signal(_) => "signal",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Cancelled(_) => "cancelled",
            Self::Forced(_) => "forced",
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Skipped { .. } => "skipped",
        }
    }

    /// As it is recorded; the client that did it is recorded beside it.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Status(number) => format!("status:{number}"),
            Self::Signal(number) => format!("signal:{number}"),
            other => other.kind().into(),
        }
    }

    /// Reads what [`Self::to_text`] and the scripts write.
    fn parse(text: &str, by: Option<Who>) -> Option<Self> {
        Some(match text.split_once(':') {
            Some(("status", status)) => Self::Status(status.parse().ok()?),
            Some(("signal", signal)) => {
                // No other signals exist.
                let number = signal.parse().ok()?;
                Self::Signal((1..=64).contains(&number).then_some(number)?)
            }
            Some(_) => return None,
            None => match text {
                "timeout" => Self::Timeout,
                "lost" => Self::Lost,
                "cancelled" => Self::Cancelled(by),
                "forced" => Self::Forced(by),
                "expired" => Self::Expired,
                "released" => Self::Released,
                _ => return None,
            },
        })
    }
}

/// Of how many of the newest holds the usual length is taken.
pub(super) const NEWEST: usize = 10;

/// The same where many locks are looked at: a server with a thousand shall answer at once.
pub(super) const NEWEST_OF_MANY: usize = 5;

/// How many of them say what is usual.
const ENOUGH: usize = 3;

/// How long a hold usually lasts, by those that succeeded: their median.
pub(super) fn usual_of(mut lasted: Vec<Duration>) -> Option<Duration> {
    lasted.sort_unstable();
    let middle = lasted.len().saturating_sub(1) / 2;
    lasted
        .get(middle)
        .copied()
        .filter(|_| lasted.len() >= ENOUGH)
}

/// How many histories are asked for at once: the server has all of these answers in memory.
const FEW: usize = 32;

/// The longest that the note of a run that ended without the lock may take: nothing depends on it.
const SKIP_WITHIN: Duration = Duration::from_millis(250);

impl Lock {
    /// Notes that a run ended without this lock; the host whose success made that needless, where the history
    /// has it. Where Redis doesn't answer soon, nothing is noted.
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
        // What it ran is in the history.
        let by = by.map(|by| Who {
            host: by.host.clone(),
            user: by.user.clone(),
            pid: by.pid,
            known_as: by.known_as.clone(),
            url: by.url.clone(),
            ..Who::default()
        });
        let args = vec![
            reason.kind().into(),
            after.as_millis().to_string().into(),
            who.to_json(),
            by.map(|by| by.to_json()).unwrap_or_default(),
        ];
        let mut call = self.call_with_guards(&SKIP, args);
        call.keys.push(self.keys.skips.clone());
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
    /// How long a hold of this lock usually lasts, if the history knows that. One short question.
    pub fn usual(&self, client: &mut Client, name: &Name) -> Result<Option<Duration>, Error> {
        let key = self.lock(name.clone()).keys.history;
        let mut command = redis::cmd("LRANGE");
        command.arg(key).arg(0).arg(NEWEST - 1);
        let found =
            client.with_connection(|connection, _| match connection.query_list(&command) {
                // Where we may not read the history, nothing is usual: that is no reason to end a wait.
                Err(error) if !error.kind.may_pass() => Ok(Value::Array(Vec::new())),
                other => other,
            })?;
        let lasted = |record: &Value| {
            let entry = over(name, record)?;
            let succeeded = matches!(
                entry.outcome,
                HoldOutcome::Status(0) | HoldOutcome::Released
            );
            let lasted = entry.ended_ms?.saturating_sub(entry.since_ms);
            succeeded.then_some(Duration::from_millis(lasted))
        };
        Ok(usual_of(array(found)?.iter().filter_map(lasted).collect()))
    }

    /// Reads the histories of any number of locks, a few at a time, and passes them to `each` one after the other until
    /// that returns false.
    pub fn each_history<E: From<Error>>(
        &self,
        client: &mut Client,
        names: &[Name],
        mut each: impl FnMut(LockHistory) -> Result<bool, E>,
    ) -> Result<(), E> {
        for few in names.chunks(FEW) {
            let call = |name: &Name| {
                let lock = self.lock(name.clone());
                let mut call = lock.call_with_guards(&HISTORY, Vec::new());
                call.keys.push(lock.keys.skips);
                call
            };
            let calls = few.iter().map(call).collect();
            let (mut names, mut goes_on) = (few.iter(), Ok(true));
            client.with_connection(|connection, _| {
                connection.stream(calls, |answer| {
                    if let (Some(name), Ok(true)) = (names.next(), &goes_on) {
                        goes_on = each(parse(self.history, name, answer)?);
                    }
                    Ok(())
                })
            })?;
            if !goes_on? {
                break;
            }
        }
        Ok(())
    }
}

pub(super) fn parse(most: u32, name: &Name, answer: Value) -> Result<LockHistory, Error> {
    let fields: [Value; 4] = array(answer)?
        .try_into()
        .map_err(|fields: Vec<Value>| unexpected_reply(&fields))?;
    let [now_ms, records, live, skipped] = fields;
    // A few more may be there than are wanted, until they are cut off.
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
    let (name, now_ms) = (name.clone(), number(&now_ms)?);
    Ok(LockHistory {
        name,
        now_ms,
        entries,
    })
}

/// The longest record that is read: two entries and the fields before them.
const LONGEST: usize = 300 * 1024;

/// A record as text, unless it is none of ours.
fn text_of(record: &Value) -> Option<Cow<'_, str>> {
    match record {
        Value::BulkString(record) if record.len() <= LONGEST => {
            Some(String::from_utf8_lossy(record))
        }
        _ => None,
    }
}

/// Reads `"<id> <ended> <how> <bytes of by> <by><entry>"`.
pub(super) fn over(name: &Name, record: &Value) -> Option<HistoryEntry> {
    let record = text_of(record)?;
    let mut parts = record.splitn(5, ' ');
    let id = parts.next()?;
    let ended_ms = parts
        .next()?
        .parse()
        .ok()
        .filter(|ended| *ended <= MAX_EXACT_INT)?;
    let how = parts.next()?;
    let length: usize = parts.next()?.parse().ok()?;
    let (by, entry) = parts.next()?.split_at_checked(length)?;
    let outcome = HoldOutcome::parse(how, Who::parse(by.as_bytes()))?;
    entry_of(name, id, entry, Some(ended_ms), outcome)
}

/// Reads `"<ended> <why> <ms> <bytes of by> <by><who>"`.
pub(super) fn skip(name: &Name, record: &Value) -> Option<HistoryEntry> {
    let record = text_of(record)?;
    let mut parts = record.splitn(5, ' ');
    let ms = |text: &str| text.parse().ok().filter(|ms| *ms <= MAX_EXACT_INT);
    let ended_ms = ms(parts.next()?)?;
    let why = parts.next()?;
    let (reason, _) = SkipReason::ALL.into_iter().find(|(_, kind)| *kind == why)?;
    let after = Duration::from_millis(ms(parts.next()?)?);
    let length: usize = parts.next()?.parse().ok()?;
    let (by, who) = parts.next()?.split_at_checked(length)?;
    let by = Who::parse(by.as_bytes());
    let waited = match reason {
        SkipReason::Recent => Duration::ZERO,
        _ => after,
    };
    let waited_ms = milliseconds(waited);
    Some(HistoryEntry {
        name: name.clone(),
        hold: None,
        who: Who::parse(who.as_bytes())?,
        since_ms: ended_ms.saturating_sub(waited_ms),
        waited,
        ended_ms: Some(ended_ms),
        outcome: HoldOutcome::Skipped { reason, after, by },
    })
}

/// Reads `{id, 1 when held, 0 when its lease has ended or 2 when it was lost, when, entry}`.
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
    entry_of(name, &lossy_text(id), &lossy_text(entry), ended_ms, outcome)
}

fn entry_of(
    name: &Name,
    id: &str,
    entry: &str,
    ended_ms: Option<u64>,
    outcome: HoldOutcome,
) -> Option<HistoryEntry> {
    let holder = Holder::parse(entry.as_bytes()).filter(|_| is_id(id))?;
    let hold = PastHold {
        id: id.to_owned(),
        fence: holder.fence,
        limit: holder.limit,
        slot: holder.slot,
        guards: holder.guards,
    };
    Some(HistoryEntry {
        name: name.clone(),
        hold: Some(hold),
        who: holder.who,
        since_ms: holder.since_ms,
        waited: holder.waited,
        ended_ms,
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Access;
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
        let access = Access {
            url: &format!("unix://{}", dir.path().join("nobody").display()),
            timeout: Duration::from_secs(20),
            ..Access::default()
        };
        let locks = Locks::new(access, None, 0).unwrap();
        let mut client = locks.client();
        let skipped = (SkipReason::Busy, Duration::ZERO, None);
        let lock = locks.lock("a".parse().unwrap());
        let noted = lock.record_skip(&mut client, skipped, &Who::default());
        assert!(noted.is_err());
        assert_eq!(client.longest(1), Duration::from_secs(20));
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
        assert_eq!(forced.outcome.by().unwrap().host, "d k");
        for end in [
            HoldOutcome::Status(3),
            HoldOutcome::Signal(9),
            HoldOutcome::Timeout,
            HoldOutcome::Lost,
            HoldOutcome::Cancelled(None),
            HoldOutcome::Expired,
            HoldOutcome::Released,
        ] {
            assert_eq!(record(&end.to_text(), "").unwrap().outcome, end);
        }
        let skipped = |why: &str| {
            let record = format!("9000 {why} 250 {} {by}{{\"host\":\"h é\"}}", by.len());
            skip(&name, &Value::BulkString(record.into()))
        };
        for (reason, _) in SkipReason::ALL {
            let skip = skipped(reason.kind()).unwrap();
            assert!(skip.hold.is_none() && skip.ended_ms == Some(9000));
            assert_eq!(skip.who.host, "h é");
            let by = Who::parse(by.as_bytes());
            let after = Duration::from_millis(250);
            assert_eq!(skip.outcome, HoldOutcome::Skipped { reason, after, by });
        }
        assert!(skipped("later").is_none());
        assert!(record("later", "").is_none());
        assert!(over(&name, &Value::BulkString("x 1 lost 99 y".into())).is_none());
    }
}

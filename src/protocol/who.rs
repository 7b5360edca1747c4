//! Holders of a lock and its waiters, as others see them. Pure.
//!
//! All of this is read from Redis, so it may come from another client, another version, or an attacker.
//! Longer texts than redlock writes are cut. An entry with numbers that no script of redlock can have written
//! is ignored. Control characters are escaped when a text is shown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::milliseconds;
use crate::server::reply::MAX_EXACT_INT;

/// Most holders of a lock that have slots, and so the largest slot.
pub const SLOTS: u32 = 9999;

/// Longest entry that is read, in bytes: the longest texts, with each character escaped.
const ENTRY: usize = 128 * 1024;

/// Length limits of the texts, in bytes. `NAME` is the longest name of a host or a user. `TEXT` is for a text
/// of a person, or the link to a job. `COMMAND` is the longest stored part of a command.
const NAME: usize = 255;
const TEXT: usize = 2000;
const COMMAND: usize = 4000;

/// A client that holds a lock, waits for it or acts on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Who {
    pub host: String,
    pub user: String,
    pub pid: u32,
    /// Name to show instead of a meaningless user and host: `acme/shop deploy #1234`.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub known_as: Option<String>,
    /// COMMAND and its arguments; shortened if very long.
    pub command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Link to the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Key of `--once`: no run is needed after a success with the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once: Option<String>,
    /// Build number (`--seq`), which the server writes.
    #[serde(skip_serializing)]
    pub order: Option<u64>,
    /// TTL that the run asks for, in milliseconds. With the rest of its lease it tells when the lease was
    /// renewed. The history keeps neither this field nor any after it (`brief` in `lib/ends.lua`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u64>,
    /// Clock skew in milliseconds, if any: the run treats its lease as over by so much earlier than the
    /// server does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skew: Option<u64>,
    /// Identity of the run's processes (boot and process), by which others can check whether they are alive.
    /// Present only if a process supervises the lock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The run asked for the lock although it is frozen.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignores_freeze: bool,
    /// Time between SIGTERM and SIGKILL for its command, in milliseconds, unless it is [`KILL_AFTER`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_after: Option<u64>,
    /// Time at which it asked another run to end, in milliseconds since 1970 by the server's clock. The
    /// server writes it.
    #[serde(rename = "asked", skip_serializing)]
    pub asked_at: Option<u64>,
}

/// Default time between SIGTERM and SIGKILL.
pub const KILL_AFTER: Duration = Duration::from_secs(5);

impl Who {
    /// Reads a client from JSON; `None` for anything else.
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        if json.len() > ENTRY {
            return None;
        }
        let mut who: Self = serde_json::from_slice(json).ok()?;
        who.shorten();
        Some(who)
    }

    /// Returns the JSON that is stored for others to see.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let json = serde_json::to_vec(self).unwrap_or_default();
        // An entry as short as this contains no text that is too long.
        if json.len() <= NAME {
            return json;
        }
        let mut short = self.clone();
        short.shorten();
        serde_json::to_vec(&short).unwrap_or_default()
    }

    /// Returns a grace in milliseconds to store, unless it is the one that others assume.
    pub fn unusual_grace(kill_after: Duration) -> Option<u64> {
        (kill_after != KILL_AFTER).then(|| milliseconds(kill_after))
    }

    /// Returns how long its command has to end after a SIGTERM: at most half the TTL.
    pub fn grace(&self) -> Duration {
        let asked_for = self.kill_after.map_or(KILL_AFTER, Duration::from_millis);
        let half = self.ttl.map(|ttl| Duration::from_millis(ttl) / 2);
        half.map_or(asked_for, |half| asked_for.min(half))
    }

    /// Returns about how much memory its texts take up, in bytes.
    pub fn weight(&self) -> usize {
        self.to_json().len() + self.command.len() * size_of::<String>()
    }

    fn shorten(&mut self) {
        let names = [&mut self.host, &mut self.user].into_iter();
        for name in names.chain(&mut self.known_as) {
            cut(name, NAME);
        }
        let texts = [&mut self.reason, &mut self.url, &mut self.once];
        for text in texts.into_iter().flatten() {
            cut(text, TEXT);
        }
        let mut room = COMMAND;
        self.command.retain_mut(|word| {
            let has_room = room > 1;
            cut(word, room.saturating_sub(1));
            room = room.saturating_sub(word.len() + 1);
            has_room
        });
        // The list's capacity would keep the memory of the dropped words.
        if room <= 1 {
            self.command.shrink_to_fit();
        }
        // A part of an identity identifies nothing.
        self.instance = self.instance.take().filter(|text| text.len() <= TEXT);
    }
}

/// Cuts a text to this many bytes, and marks the cut.
pub fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
        text.shrink_to_fit();
    }
}

/// Reads a fence or a time.
pub(super) fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number <= MAX_EXACT_INT)
}

/// Number of simultaneous holders that a request allows, including itself. A request is admitted if the
/// number of holders, with itself, exceeds neither its limit nor any holder's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit(u32);

impl Limit {
    /// A single holder.
    pub const EXCLUSIVE: Self = Self(1);
    /// Any number of holders, if all of them allow that.
    pub const SHARED: Self = Self(1_000_000_000);

    /// Returns the limit of this many holders.
    pub fn slots(count: u32) -> Self {
        Self(count.clamp(1, Self::SHARED.0 - 1))
    }

    /// Returns the limit as a number, as the scripts take it.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns the name in `status`.
    pub fn mode(self) -> &'static str {
        match self {
            Self::EXCLUSIVE => "exclusive",
            Self::SHARED => "shared",
            Self(_) => "slots",
        }
    }

    /// Returns the number of slots, if the limit has one.
    pub fn as_slots(self) -> Option<u32> {
        (self > Self::EXCLUSIVE && self < Self::SHARED).then_some(self.0)
    }

    /// Returns the phrase for how a lock is held with this limit.
    pub fn adverb(self) -> String {
        match self {
            Self::EXCLUSIVE => "exclusively".into(),
            Self::SHARED => "shared".into(),
            Self(slots) => format!("with {slots} slots"),
        }
    }

    /// Reads a limit from an entry.
    fn parse(text: &str) -> Option<Self> {
        let number = text.parse().ok();
        number
            .filter(|it| (1..=Self::SHARED.0).contains(it))
            .map(Self)
    }

    /// Returns the limit with this number.
    pub(super) fn of(number: u32) -> Self {
        Self(number)
    }
}

/// Entry of a holder, in `meta`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub fence: u64,
    /// Time of the grant, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    pub limit: Limit,
    /// Number among those that hold the lock; 0 for shared ones.
    pub slot: u32,
    /// Time for which it had waited for the lock.
    pub waited: Duration,
    /// Reason for which the lock is kept, if its run is over.
    pub kept: Option<Kept>,
    /// The grant isn't confirmed yet: its waiter may not know of it, or the replicas that must confirm it may
    /// not have it.
    pub granted: bool,
    /// Number of guards that it has had.
    pub guards: u32,
    pub who: Who,
}

/// Reason to keep a lock although its run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The run wanted to keep it (`--hold-at-least`).
    AtLeast,
    /// Work elsewhere guards it and hasn't ended yet.
    ForGuards,
}

impl Holder {
    /// Returns when it began to wait, in milliseconds since 1970 by the server's clock.
    pub fn waiting_since_ms(&self) -> u64 {
        let waited = milliseconds(self.waited);
        self.since_ms.saturating_sub(waited)
    }

    /// Reads `"<fence> <since> <limit> <slot> <waited> <phase> <who as JSON>"`; `None` for anything
    /// else.
    pub(super) fn parse(entry: &[u8]) -> Option<Self> {
        let ([fence, since_ms, limit, slot, waited, phase], who) = words(entry)?;
        let is_replicating = phase == "held:";
        let (phase, number_of) = phase.split_once(':').unwrap_or((phase, ""));
        Some(Self {
            fence: number(fence)?,
            since_ms: number(since_ms)?,
            limit: Limit::parse(limit)?,
            slot: slot.parse().ok().filter(|slot| *slot <= SLOTS)?,
            waited: Duration::from_millis(number(waited)?),
            kept: match (phase, number_of) {
                ("kept", "") => Some(Kept::AtLeast),
                ("kept", _) => Some(Kept::ForGuards),
                _ => None,
            },
            granted: phase == "granted" || is_replicating,
            guards: match phase {
                "guarded" => number_of.parse().unwrap_or(1),
                _ => 0,
            },
            who,
        })
    }
}

/// Entry of a waiter in the queue, in `waiters`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    pub limit: Limit,
    /// Start of its wait, in milliseconds since 1970 by the server's clock.
    pub since_ms: u64,
    /// A message reaches it; otherwise it polls.
    pub listens: bool,
    /// Its channel belongs to the hash slot, in a cluster.
    pub is_sharded: bool,
    pub who: Who,
}

impl Waiter {
    /// Reads `"<dies at> <limit> <since> <listens> <who as JSON>"`; `None` for anything
    /// else.
    pub(super) fn parse(entry: &[u8]) -> Option<Self> {
        let ([_, limit, since, listens], who) = words(entry)?;
        Some(Self {
            limit: Limit::parse(limit)?,
            since_ms: number(since)?,
            listens: matches!(listens, "1" | "2"),
            is_sharded: listens == "2",
            who,
        })
    }
}

/// A freeze, during which no new holder is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frozen {
    /// End of the freeze, in milliseconds since 1970 by the server's clock.
    pub until_ms: u64,
    pub since_ms: u64,
    /// The client that froze it, with its reason.
    pub who: Who,
}

impl Frozen {
    /// Reads `"<until> <since> <who as JSON>"`; `None` for anything else.
    pub(super) fn parse(entry: &[u8]) -> Option<Self> {
        let ([until, since], who) = words(entry)?;
        Some(Self {
            until_ms: number(until)?,
            since_ms: number(since)?,
            who,
        })
    }
}

/// Splits an entry into words, and the client as JSON at its end. Returns `None` for an entry that redlock
/// can't have written.
pub(super) fn words<const N: usize>(entry: &[u8]) -> Option<([&str; N], Who)> {
    let entry = std::str::from_utf8(entry).ok();
    let mut parts = entry
        .filter(|entry| entry.len() <= ENTRY)?
        .splitn(N + 1, ' ');
    let mut words = [""; N];
    for word in &mut words {
        *word = parts.next()?;
    }
    Some((words, Who::parse(parts.next()?.as_bytes())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_script_of_ours_can_have_written_is_ignored() {
        let entry = |numbers: &str| Holder::parse(format!("{numbers} held {{}}").as_bytes());
        assert!(entry("7 8000 1 1 250").is_some());
        for numbers in [
            "9007199254740993 8000 1 1 250",
            "-7 8000 1 1 250",
            "7 18446744073709551615 1 1 250",
            "7 8000 0 1 250",
            "7 8000 1000000001 1 250",
            "7 8000 1 10000 250",
            "7 8000 1 1 9007199254740993",
        ] {
            assert_eq!(entry(numbers), None, "{numbers}");
        }
        let long = format!(r#"7 8000 1 1 250 held {{"x":"{}"}}"#, "y".repeat(ENTRY));
        assert_eq!(Holder::parse(long.as_bytes()), None);
        let deep = format!("7 8000 1 1 250 held {}", "[".repeat(ENTRY / 2));
        assert_eq!(Holder::parse(deep.as_bytes()), None);
    }

    #[test]
    fn an_entry_ends_with_the_fields_that_the_history_does_not_keep() {
        let text = || Some(r#"a","ttl":7"#.to_owned());
        let who = Who {
            host: "h".into(),
            user: "u".into(),
            pid: 3,
            known_as: text(),
            command: vec![r#"b,"ttl":8"#.into()],
            reason: text(),
            url: text(),
            once: Some("2026-11-26".into()),
            ttl: Some(30_000),
            skew: Some(500),
            instance: Some("i".into()),
            ignores_freeze: false,
            kill_after: Some(9_000),
            order: None,
            asked_at: None,
        };
        let json = String::from_utf8(who.to_json()).unwrap();
        let (kept, dropped) = json.split_once(r#","ttl":"#).unwrap();
        assert_eq!(
            dropped,
            r#"30000,"skew":500,"instance":"i","kill_after":9000}"#
        );
        let kept = Who::parse(format!("{kept}}}").as_bytes()).unwrap();
        let expected = Who {
            ttl: None,
            skew: None,
            instance: None,
            ignores_freeze: false,
            kill_after: None,
            ..who
        };
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_holder_is_granted_guarded_or_kept_by_its_phase() {
        for (phase, granted, guards, kept) in [
            ("held", false, 0, None),
            ("held:", true, 0, None),
            ("granted:3", true, 0, None),
            ("guarded:2", false, 2, None),
            ("kept", false, 0, Some(Kept::AtLeast)),
            ("kept:9000", false, 0, Some(Kept::ForGuards)),
        ] {
            let entry = format!(r#"7 8000 1 1 250 {phase} {{"host":"h"}}"#);
            let holder = Holder::parse(entry.as_bytes()).unwrap();
            let read = (holder.granted, holder.guards, holder.kept);
            assert_eq!(read, (granted, guards, kept), "{phase}");
            assert_eq!(holder.waiting_since_ms(), 7_750);
        }
    }

    #[test]
    fn a_command_has_as_long_to_end_as_its_run_says_and_no_longer_than_half_the_ttl() {
        let ms = Duration::from_millis;
        for (kill_after, ttl, grace) in [
            (None, None, KILL_AFTER),
            (Some(9_000), None, ms(9_000)),
            (Some(9_000), Some(30_000), ms(9_000)),
            (Some(9_000), Some(10_000), ms(5_000)),
            (None, Some(6_000), ms(3_000)),
        ] {
            let who = Who {
                ttl,
                kill_after,
                ..Who::default()
            };
            assert_eq!(who.grace(), grace, "{kill_after:?} {ttl:?}");
        }
        assert_eq!(Who::unusual_grace(KILL_AFTER), None);
        assert_eq!(Who::unusual_grace(ms(9_000)), Some(9_000));
    }

    #[test]
    fn an_entry_weighs_at_least_what_its_texts_and_the_list_of_words_do() {
        let who = Who {
            host: "hh".into(),
            user: "u".into(),
            known_as: Some("as".into()),
            reason: Some("because".into()),
            command: vec!["ls".into(), "-l".into()],
            ..Who::default()
        };
        assert!(who.weight() >= 2 + 1 + 2 + 7 + 2 * (size_of::<String>() + 2));
        let empty = Who {
            command: vec![String::new(); 100],
            ..Who::default()
        };
        assert!(empty.weight() >= 100 * size_of::<String>());
        assert!(empty.weight() < 200 * size_of::<String>());
    }

    #[test]
    fn texts_are_cut_when_they_are_written_and_when_they_are_read() {
        let long = |count| "é".repeat(count);
        let who = Who {
            host: long(1000),
            user: "\0".repeat(1000),
            pid: 3,
            known_as: Some(long(1000)),
            command: vec![String::new(); 100_000],
            reason: Some(long(5000)),
            url: Some(long(5000)),
            once: Some(long(5000)),
            ttl: Some(30_000),
            skew: Some(500),
            instance: Some(long(5000)),
            ignores_freeze: false,
            kill_after: None,
            order: None,
            asked_at: None,
        };
        let written = who.to_json();
        assert!(written.len() < ENTRY, "{}", written.len());
        let read = Who::parse(&written).unwrap();
        assert_eq!(read.host, long(127) + "…");
        assert_eq!(read.pid, 3);
        assert_eq!(read.reason, Some(long(1000) + "…"));
        assert_eq!(read.instance, None);
        // The memory of the dropped words is freed.
        let mut short = who.clone();
        short.shorten();
        assert!(
            short.command.capacity() <= COMMAND,
            "{}",
            short.command.capacity()
        );
        let raw = serde_json::to_vec(&Who {
            command: vec!["x".repeat(50_000)],
            ..who
        })
        .unwrap();
        let read = Who::parse(&raw).unwrap();
        assert_eq!(read.command, ["x".repeat(COMMAND - 1) + "…"]);
        let short = Who {
            host: "h".into(),
            ..Who::default()
        };
        assert_eq!(short.to_json(), serde_json::to_vec(&short).unwrap());
    }

    #[test]
    fn each_text_is_cut_by_itself_and_only_when_it_is_longer_than_allowed() {
        type Text = fn(&mut Who) -> &mut String;
        let texts: [(Text, usize); 5] = [
            (|who| &mut who.host, NAME),
            (|who| &mut who.user, NAME),
            (|who| who.known_as.get_or_insert_default(), NAME),
            (|who| who.reason.get_or_insert_default(), TEXT),
            (|who| who.url.get_or_insert_default(), TEXT),
        ];
        for (text, most) in texts {
            let mut who = Who::default();
            *text(&mut who) = "x".repeat(most);
            assert_eq!(Who::parse(&who.to_json()).unwrap(), who);
            // Another text that is long doesn't cut this one.
            let mut beside = Who {
                command: vec!["x".repeat(COMMAND)],
                ..who.clone()
            };
            let mut read = Who::parse(&beside.to_json()).unwrap();
            assert_eq!(text(&mut read), text(&mut beside));
            text(&mut who).push('x');
            let expected = "x".repeat(most) + "…";
            // Cut by the writer, and by the reader of another writer's text.
            for json in [who.to_json(), serde_json::to_vec(&who).unwrap()] {
                assert_eq!(*text(&mut Who::parse(&json).unwrap()), expected);
            }
        }
        // A part of an identity identifies nothing.
        for (length, is_kept) in [(TEXT, true), (TEXT + 1, false)] {
            for command in [0, COMMAND] {
                let who = Who {
                    instance: Some("x".repeat(length)),
                    ignores_freeze: false,
                    command: vec!["x".repeat(command)],
                    ..Who::default()
                };
                let read = Who::parse(&who.to_json()).unwrap();
                assert_eq!(read.instance.is_some(), is_kept);
            }
        }
    }

    #[test]
    fn a_command_is_cut_after_so_many_bytes_with_the_spaces_between_its_words() {
        let read = |words: &[String]| {
            let who = Who {
                command: words.to_vec(),
                ..Who::default()
            };
            Who::parse(&who.to_json()).unwrap().command
        };
        let word = |length| "x".repeat(length);
        let most = vec![word(1); COMMAND / 2];
        assert_eq!(read(&most), most);
        assert_eq!(read(&vec![word(1); COMMAND / 2 + 1]), most);
        assert_eq!(read(&[word(COMMAND - 1)]), [word(COMMAND - 1)]);
        assert_eq!(read(&[word(COMMAND)]), [word(COMMAND - 1) + "…"]);
        // A mark alone says nothing.
        assert_eq!(read(&[word(COMMAND - 2), word(1)]), [word(COMMAND - 2)]);
    }

    #[test]
    fn a_limit_is_one_holder_or_a_number_of_slots_or_none() {
        let most = 999_999_999;
        for (limit, number, mode, slots, adverb) in [
            (Limit::EXCLUSIVE, 1, "exclusive", None, "exclusively"),
            (Limit::SHARED, most + 1, "shared", None, "shared"),
            (Limit::slots(2), 2, "slots", Some(2), "with 2 slots"),
            (Limit::slots(0), 1, "exclusive", None, "exclusively"),
            (
                Limit::slots(u32::MAX),
                most,
                "slots",
                Some(most),
                "with 999999999 slots",
            ),
        ] {
            assert_eq!(limit.number(), number);
            assert_eq!((limit.mode(), limit.as_slots()), (mode, slots));
            assert_eq!(limit.adverb(), adverb);
            assert_eq!(Limit::of(number), limit);
            assert_eq!(Limit::parse(&number.to_string()), Some(limit));
        }
    }

    #[test]
    fn a_waiter_is_reached_by_a_message_by_one_of_its_slot_or_not_at_all() {
        for (listens, is_reached, by_slot) in [
            ("0", false, false),
            ("1", true, false),
            ("2", true, true),
            ("3", false, false),
        ] {
            let entry = format!("9 1 8 {listens} {{}}");
            let waiter = Waiter::parse(entry.as_bytes()).unwrap();
            assert_eq!((waiter.listens, waiter.is_sharded), (is_reached, by_slot));
        }
    }

    #[test]
    fn an_entry_that_is_longer_than_any_of_ours_is_not_read() {
        let padded = |length: usize| format!("{{}}{}", " ".repeat(length - 2)).into_bytes();
        assert!(Who::parse(&padded(128 * 1024)).is_some());
        assert!(Who::parse(&padded(128 * 1024 + 1)).is_none());
        assert!(Who::parse(&padded(128 * 1024 + 2)).is_none());
    }

    #[test]
    fn a_foreign_entry_is_ignored() {
        assert_eq!(Holder::parse(b"\xff\xfe"), None);
        assert_eq!(Holder::parse(b"1 2"), None);
        assert_eq!(Waiter::parse(b"1 2 3"), None);
        let holder =
            Holder::parse(br#"7 8 3 2 40 kept {"host":"h","pid":3,"later":true}"#).unwrap();
        assert_eq!((holder.fence, holder.since_ms, holder.who.pid), (7, 8, 3));
        assert_eq!((holder.limit.mode(), holder.slot), ("slots", 2));
        assert_eq!(
            (holder.waited.as_millis(), holder.kept),
            (40, Some(Kept::AtLeast))
        );
        let waiter = Waiter::parse(br#"9 1000000000 8 1 {"host":"h h"}"#).unwrap();
        assert_eq!((waiter.limit, waiter.since_ms), (Limit::SHARED, 8));
        assert_eq!((waiter.listens, waiter.who.host.as_str()), (true, "h h"));
    }
}

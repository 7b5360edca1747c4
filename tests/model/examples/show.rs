//! The notation of examples: times from the start of the example, and names instead of ids and clients.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use redis::Value;

use crate::protocol::model::fake::Outcome;
use crate::protocol::model::fake::deeds::KEYS;
use crate::protocol::model::fake::server::START;
use crate::protocol::model::support::lua::{SHARED, id};

/// Parses a time such as `30d10s`. Returns milliseconds.
pub fn duration(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let mut all = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units = [
            ("ms", 1.0),
            ("s", 1e3),
            ("m", 6e4),
            ("h", 3.6e6),
            ("d", 8.64e7),
        ];
        let (unit, factor) = units.iter().find(|(unit, _)| rest.starts_with(unit))?;
        all += number * factor;
        rest = &rest[unit.len()..];
    }
    #[allow(clippy::cast_possible_truncation)] // Whole, and before the year 10000.
    (!text.is_empty()).then_some(sign * all.round() as i64)
}

/// Formats a time, in milliseconds.
fn long(ms: i64) -> String {
    if ms < 0 {
        return format!("-{}", long(-ms));
    }
    let mut text = String::new();
    let mut left = ms;
    for (unit, factor) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)] {
        if left >= factor {
            let _ = write!(text, "{}{unit}", left / factor);
            left %= factor;
        }
    }
    if left > 0 || text.is_empty() {
        let seconds = format!("{}.{:03}", left / 1000, left % 1000);
        text += seconds.trim_end_matches('0').trim_end_matches('.');
        text += "s";
    }
    text
}

/// Distance from the start of an example within which a number is a time, in milliseconds.
const NEAR: i64 = 100_000_000_000;

/// Formats a number that is a time: `@1.5s`, or, in microseconds like fencing tokens, `f@1.5s`.
fn number(digits: &str) -> Option<String> {
    let n: i64 = digits.parse().ok()?;
    if digits.len() == 13 && (n - START / 1000).abs() < NEAR {
        return Some(format!("@{}", long(n - START / 1000)));
    }
    if digits.len() == 16 && (n - START).abs() < NEAR * 1000 {
        let (ms, more) = ((n - START).div_euclid(1000), (n - START).rem_euclid(1000));
        let more = if more > 0 {
            format!("+{more}")
        } else {
            String::new()
        };
        return Some(format!("f@{}{more}", long(ms)));
    }
    None
}

/// Translates a word of a call.
pub fn read(word: &str) -> String {
    let key = KEYS.iter().zip(NAMES).find(|(_, name)| *name == word);
    if let Some((key, _)) = key {
        return (*key).to_owned();
    }
    let kind = word.split_once(':').map_or("", |(kind, _)| kind);
    let mut text = String::new();
    if NOTICES.contains(&kind) {
        text.push_str("{redlock:a}:");
    }
    let mut rest = word;
    while let Some(c) = rest.chars().next() {
        let while_in = |from: usize, is: fn(char) -> bool| {
            rest[from..]
                .find(|c| !is(c))
                .map_or(rest.len(), |n| n + from)
        };
        let time = |from: usize| {
            let end = while_in(from, |c| c.is_ascii_alphanumeric() || c == '.' || c == '-');
            (duration(&rest[from..end]).expect("a time"), end)
        };
        let end = if rest.starts_with("f@") {
            let (ms, end) = time(2);
            let more = rest[end..].strip_prefix('+').unwrap_or("");
            let digits = more
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(more.len());
            let add: i64 = more[..digits].parse().unwrap_or(0);
            let _ = write!(text, "{}", START + ms * 1000 + add);
            end + if digits > 0 { digits + 1 } else { 0 }
        } else if c == '@' {
            let (ms, end) = time(1);
            let _ = write!(text, "{}", START / 1000 + ms);
            end
        } else if c == '#' {
            let end = while_in(1, |c| c.is_ascii_alphanumeric());
            text += &id(&rest[1..end]);
            end
        } else if c == '{' {
            let end = rest.find('}').map_or(rest.len(), |end| end + 1);
            text += &who(&rest[1..end - 1]);
            end
        } else {
            text.push(c);
            c.len_utf8()
        };
        rest = &rest[end..];
    }
    text
}

/// Tokens of a file, by their hashes, with their notation.
#[derive(Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    pub fn know(&mut self, token: &str) {
        self.0.insert(id(token), format!("#{token}"));
    }

    /// Formats a text for an example.
    fn show(&self, text: &str) -> String {
        let mut text = text.to_owned();
        // In reverse order, because the first key is a part of the others.
        for (key, name) in KEYS.iter().zip(NAMES).rev() {
            text = text.replace(key, name);
        }
        text = text.replace("{lock}:", "");
        for (hash, name) in &self.0 {
            text = text.replace(hash, name);
        }
        text = short_who(&text);
        let mut shown = String::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            if digits > 0 {
                shown += &number(&rest[..digits]).unwrap_or_else(|| rest[..digits].to_owned());
                rest = &rest[digits..];
            } else {
                let other = rest
                    .find(|c: char| c.is_ascii_digit())
                    .unwrap_or(rest.len());
                shown += &rest[..other];
                rest = &rest[other..];
            }
        }
        shown
    }

    /// Formats an entry, with its parts named.
    fn entry(&self, text: &str) -> String {
        if text.is_empty() {
            return "\"\"".into();
        }
        record(text)
            .or_else(|| hold(text))
            .or_else(|| waiter(text))
            .or_else(|| guard(text))
            .map_or_else(|| self.show(text), |text| self.show(&text))
    }
}

/// Names of the keys in examples.
const NAMES: [&str; 12] = [
    "lock", "state", "meta", "holders", "queue", "waiters", "history", "index", "slots", "exempt",
    "guards", "skips",
];

/// Kinds of notices, with which their keys begin.
const NOTICES: [&str; 6] = ["left", "removed", "cancelled", "forced", "released", "over"];

/// Returns a client in JSON from the text between the brackets: a name, and any other fields. No process supervises the lock of
/// a client that is `unwatched`.
fn who(inner: &str) -> String {
    let parts = inner.split(',').map(|part| {
        if part.is_empty() || part.starts_with('"') {
            return part.to_owned();
        }
        let (name, is_watched) = match part.strip_suffix("-unwatched") {
            Some(name) => (name, false),
            None => (part, true),
        };
        let (first, last) = AROUND;
        let instance = if is_watched { INSTANCE } else { "" };
        format!("{first}{name}{last}{instance}")
    });
    format!("{{{}}}", parts.collect::<Vec<_>>().join(","))
}

const AROUND: (&str, &str) = ("\"host\":\"", "\",\"user\":\"u\",\"pid\":1");
const INSTANCE: &str = ",\"instance\":\"i\"";

fn short_who(text: &str) -> String {
    let (first, last) = AROUND;
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(first) {
        let name = &rest[at + first.len()..];
        let end = name.find('"').unwrap_or(name.len());
        let Some(after) = name[end..].strip_prefix(last) else {
            shown += &rest[..at + first.len()];
            rest = name;
            continue;
        };
        shown += &rest[..at];
        shown += &name[..end];
        rest = if let Some(after) = after.strip_prefix(INSTANCE) {
            after
        } else {
            shown += "-unwatched";
            after
        };
    }
    shown + rest
}

fn are_numbers(words: &[&str]) -> bool {
    let is_number = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    words.iter().all(is_number)
}

fn shown_limit(limit: &str) -> String {
    match limit {
        SHARED => "shared".into(),
        limit => format!("limit {limit}"),
    }
}

/// Formats an entry of `meta`.
fn hold(text: &str) -> Option<String> {
    let words: Vec<&str> = text.splitn(7, ' ').collect();
    let [fence, since, limit, slot, waited, phase, who] = words[..] else {
        return None;
    };
    (are_numbers(&words[..5]) && who.starts_with('{')).then(|| {
        let waited = long(waited.parse().unwrap_or(0));
        let parts = [
            (false, format!("fence {fence}")),
            (limit == "1", shown_limit(limit)),
            (slot == "1", format!("slot {slot}")),
            (waited == "0s", format!("waited {waited}")),
        ];
        let unusual = parts.into_iter().filter(|(is_usual, _)| !is_usual);
        let unusual: Vec<String> = unusual.map(|(_, text)| text).collect();
        format!("{phase} since {since} by {who} ({})", unusual.join(", "))
    })
}

/// Formats an entry of `waiters`.
fn waiter(text: &str) -> Option<String> {
    let words: Vec<&str> = text.splitn(5, ' ').collect();
    let [life, limit, since, listens, who] = words[..] else {
        return None;
    };
    let (dies, beat) = life.split_once(':')?;
    let limit_text = match limit {
        "1" => String::new(),
        _ => shown_limit(limit) + ", ",
    };
    let listens =
        ["polls", "listens", "listens in its slot"].get(listens.parse::<usize>().ok()?)?;
    (are_numbers(&[dies, beat, limit, since]) && who.starts_with('{')).then(|| {
        format!("since {since} by {who} ({limit_text}{listens}, each {beat} ms, until {dies})")
    })
}

/// Formats an entry of `guards`.
fn guard(text: &str) -> Option<String> {
    let words: Vec<&str> = text.splitn(4, ' ').collect();
    let [until, hold, since, who] = words[..] else {
        return None;
    };
    (are_numbers(&[until, since]) && hold.len() == 12 && who.starts_with('{'))
        .then(|| format!("guards {hold} since {since} by {who} (until {until})"))
}

/// Formats an entry of `history`.
fn record(text: &str) -> Option<String> {
    let words: Vec<&str> = text.splitn(5, ' ').collect();
    let [id, ended, how, length, rest] = words[..] else {
        return None;
    };
    (are_numbers(&[ended, length]) && id.len() == 12).then_some(())?;
    let length: usize = length.parse().ok()?;
    let (by, entry) = rest.split_at_checked(length)?;
    let by = if by.is_empty() {
        String::new()
    } else {
        format!(" by {by}")
    };
    let entry = hold(entry).unwrap_or_else(|| format!("{entry:?}"));
    Some(format!("{id} ended {ended}, {how}{by}: {entry}"))
}

/// All keys at one time.
#[derive(Default)]
pub struct Snapshot(BTreeMap<String, Key>);

#[derive(PartialEq)]
struct Key {
    kind: String,
    /// Expiry, in milliseconds since 1970.
    expires: Option<i64>,
    parts: Vec<String>,
}

impl Snapshot {
    pub fn of(outcome: &Outcome, now_ms: i64) -> Self {
        let keys = outcome.keys.iter().map(|line| {
            let words: Vec<&str> = line.splitn(4, "  ").collect();
            let left: i64 = words[2].parse().unwrap();
            let key = Key {
                kind: words[1].to_owned(),
                expires: (left >= 0).then_some(now_ms + left),
                parts: words[3].split(" | ").map(str::to_owned).collect(),
            };
            (words[0].to_owned(), key)
        });
        Self(keys.collect())
    }
}

/// Returns the meaning of an answer, by the script and the first field, and the names of the other fields.
fn fields(script: &str, first: i64) -> Option<(&'static str, &'static str)> {
    Some(match (script, first) {
        ("take" | "acquire", 1) => ("held", "fence, slot"),
        ("take", 0) => ("acquire is to be asked", ""),
        ("acquire", 0) => (
            "busy",
            "now, ahead, ticket, polls, left, holders, holder, its entry, frozen, repaired, behind dead ones, \
             asked to end by",
        ),
        ("acquire", 2) => ("superseded", "by"),
        ("acquire", 3) => ("skip: a success is recent enough", "last success ago"),
        ("acquire", 4) => ("not wanted any more", "by"),
        ("acquire", 5) => ("enough wait already", "how many"),
        ("renew", 1) => ("renewed", "left, fence, limit, slot, cancelled by"),
        ("renew" | "check" | "release", 2) => ("released before", ""),
        ("renew" | "check" | "release" | "guard", 0) => ("lost", "forced out by, a holder"),
        ("check", 1) => ("held", "left, cancelled by"),
        ("free" | "release", 1) => ("released", ""),
        ("free", 0) => ("release is to be asked", ""),
        ("release", 3) => ("kept", "left, for guards"),
        ("guard", 1) => (
            "guards",
            "left, the run's ttl, fence, limit, slot, cancelled by",
        ),
        ("guard", 2) => ("the run is over", ""),
        ("guard", 3) => ("too many", ""),
        ("leave", 1) => ("left", ""),
        ("keep", 1) | ("prolong", 1..) => ("extended", ""),
        ("keep", 0) => ("not ours alone", ""),
        ("prolong", 0) => ("renew is to be asked", ""),
        ("force", 1) => ("freed", "a holder, holders, others"),
        ("force", 0) => ("free", ""),
        ("force", 2) => ("others hold it", "id, its entry"),
        ("force", 3) => ("removed from the queue", "its entry"),
        ("force", 4) => ("others are to be compared", "holders from, waiters from"),
        ("stop", 1) => ("asked", ""),
        ("stop", 2) => ("no process watches over it", ""),
        ("stop", 0) => ("no such holder", ""),
        ("stop", 4) => ("others are to be compared", "holders from"),
        ("thaw", 1) => ("thawed", "had been frozen by"),
        ("thaw", 0) => ("it wasn't frozen", ""),
        ("skip", 1) => ("noted", "host with the success"),
        _ => return None,
    })
}

/// Fields that are left out with their usual value, 0.
const USUALLY_0: [&str; 4] = ["polls", "repaired", "behind dead ones", "others"];

/// Formats the result of a call: its answer, the received messages, and the changes of the keys.
pub fn result(
    names: &Names,
    script: Option<&str>,
    outcome: &Outcome,
    before: &Snapshot,
    after: &Snapshot,
    at_us: i64,
) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        let _ = writeln!(text, "        {line}");
    };
    for answer in answer(names, script, &outcome.value, at_us) {
        line(answer);
    }
    for (channel, message) in &outcome.heard {
        line(if channel.starts_with("__keyspace") {
            "lock is written, which runs that track it are told".into()
        } else {
            format!("{} hears: {}", names.show(channel), names.show(message))
        });
    }
    for change in changes(names, before, after, at_us / 1000) {
        line(change);
    }
    text
}

/// Fields of the state that `inspect` returns.
const RECORD: &str =
    "succeeded, success, failure, lost, forced, stopped, released, skipped, freezes";

/// Formats an answer: single values in its first line, and each element of a list in a line of its own. Leaves out values that
/// are missing, and the time of the call.
fn answer(names: &Names, script: Option<&str>, value: &Value, at_us: i64) -> Vec<String> {
    let is_now = |what: &str, value: &Value| {
        let now = format!("@{}", long((at_us - START) / 1000));
        what == "now" && plain(names, value) == now
    };
    let listed = match script {
        Some("freeze") => "holders, a holder, had been frozen by",
        Some("history") => "now, ended, not ended, skips",
        Some("inspect") => {
            "type, fence, now, holders, waiters, frozen, durations, goes on at, record"
        }
        _ => "",
    };
    if let (false, Value::Array(values)) = (listed.is_empty(), value) {
        let (mut singles, mut lines) = (Vec::new(), Vec::new());
        for (what, value) in listed.split(", ").zip(values) {
            let Value::Array(values) = value else {
                let is_left_out = *value == Value::Nil || is_now(what, value);
                singles.extend((!is_left_out).then(|| format!("{what} {}", plain(names, value))));
                continue;
            };
            let shown = values.iter().map(|value| plain(names, value));
            if what == "record" {
                let fields = RECORD.split(", ").zip(shown);
                let fields = fields.filter(|(_, value)| value != "none");
                let fields = fields.map(|(name, value)| format!("{name} {value}"));
                let fields: Vec<String> = fields.collect();
                lines.extend(joined(what, &fields));
            } else if ["durations", "goes on at"].contains(&what) {
                let is_any = values
                    .iter()
                    .any(|value| *value != Value::BulkString(Vec::new()));
                let values: Vec<String> = shown.filter(|_| is_any).collect();
                lines.extend(joined(what, &values));
            } else {
                lines.extend(shown.map(|value| format!("-> {what}: {value}")));
            }
        }
        if lines.is_empty() && singles.is_empty() {
            singles.push("nothing".to_owned());
        }
        if !singles.is_empty() {
            lines.insert(0, format!("-> {}", singles.join(", ")));
        }
        return lines;
    }
    let (first, rest) = match value {
        Value::Array(values) => match values.split_first() {
            Some((Value::Int(first), rest)) => (*first, rest),
            _ => return vec![format!("-> {}", plain(names, value))],
        },
        Value::Int(first) => (*first, &[][..]),
        _ => return vec![format!("-> {}", plain(names, value))],
    };
    let Some((meaning, what)) = script.and_then(|script| fields(script, first)) else {
        return vec![format!("-> {}", plain(names, value))];
    };
    let mut text = format!("-> {meaning}");
    let (mut what, mut is_first) = (what.split(", "), true);
    for value in rest {
        let what = what.next().filter(|what| !what.is_empty()).unwrap_or("?");
        let value = match value {
            // The usual value, left out.
            Value::Nil => continue,
            value if is_now(what, value) => continue,
            Value::Int(0) if USUALLY_0.contains(&what) => continue,
            Value::Int(-1) if what == "last success ago" => continue,
            Value::BulkString(text) if text.is_empty() && what == "ticket" => continue,
            Value::Int(ms) if *ms != -1 && ["left", "last success ago"].contains(&what) => {
                long(*ms)
            }
            value => plain(names, value),
        };
        let _ = write!(text, "{} {what} {value}", if is_first { ":" } else { "," });
        is_first = false;
    }
    vec![text]
}

/// Formats a list in one line, if it has elements.
fn joined(what: &str, values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| format!("-> {what}: {}", values.join(", ")))
}

fn plain(names: &Names, value: &Value) -> String {
    match value {
        Value::Nil => "none".into(),
        Value::Int(number) => names.show(&number.to_string()),
        Value::BulkString(text) => names.entry(&String::from_utf8_lossy(text)),
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(|value| plain(names, value)).collect();
            format!("[{}]", texts.join(", "))
        }
        Value::ServerError(error) => format!("error {}", error.code()),
        Value::Okay => "OK".into(),
        other => format!("{other:?}"),
    }
}

/// Largest number of changes of a key that are shown.
const MOST_PARTS: usize = 16;

fn changes(names: &Names, before: &Snapshot, after: &Snapshot, now_ms: i64) -> Vec<String> {
    let mut lines = Vec::new();
    // Keys by the way in which they ended.
    let mut gone: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut all: Vec<&String> = before.0.keys().chain(after.0.keys()).collect();
    let place = |key: &str| KEYS.iter().position(|other| *other == key);
    // Notices come last.
    all.sort_by_key(|key| (place(key).unwrap_or(KEYS.len()), *key));
    all.dedup();
    for key in all {
        let (before, after) = (before.0.get(key), after.0.get(key));
        let mut parts = Vec::new();
        match (before, after) {
            (Some(before), None) => {
                let has_expired = before.expires.is_some_and(|expires| expires < now_ms);
                let how = if has_expired {
                    "had expired"
                } else {
                    "deleted"
                };
                gone.entry(how).or_default().push(names.show(key));
            }
            (before, Some(after)) => {
                let same = before.filter(|before| before.kind == after.kind);
                parts.extend(content(names, same.map(|key| &key.parts), after));
                if before.is_none_or(|before| before.expires != after.expires) {
                    parts.push(match after.expires {
                        Some(expires) => format!("for {}", long(expires - now_ms)),
                        None => "for ever".into(),
                    });
                }
            }
            (None, None) => {}
        }
        shorten(&mut parts);
        if !parts.is_empty() {
            lines.push(format!("{}: {}", names.show(key), parts.join("; ")));
        }
    }
    shorten(&mut lines);
    lines.extend(
        gone.iter()
            .map(|(how, keys)| format!("{how}: {}", keys.join(", "))),
    );
    lines
}

/// Leaves out the middle of a long list.
fn shorten(parts: &mut Vec<String>) {
    if parts.len() > MOST_PARTS {
        let more = parts.len() - MOST_PARTS;
        parts.splice(
            MOST_PARTS / 2..MOST_PARTS / 2 + more,
            [format!("... {more} more ...")],
        );
    }
}

/// Returns the differences in a key.
fn content(names: &Names, before: Option<&Vec<String>>, after: &Key) -> Vec<String> {
    let now = &after.parts;
    if before == Some(now) {
        return Vec::new();
    }
    let none = Vec::new();
    let before = before.unwrap_or(&none);
    match after.kind.as_str() {
        "hash" | "zset" => {
            let pairs = |parts: &[String]| -> BTreeMap<String, String> {
                let pairs = parts.chunks_exact(2);
                pairs
                    .map(|pair| (pair[0].clone(), pair[1].clone()))
                    .collect()
            };
            let (before, now) = (pairs(before), pairs(now));
            let gone = before.keys().filter(|name| !now.contains_key(*name));
            let mut lines: Vec<String> = gone
                .map(|name| format!("without {}", names.show(name)))
                .collect();
            for (name, value) in &now {
                if before.get(name) != Some(value) {
                    lines.push(format!("{} = {}", names.show(name), names.entry(value)));
                }
            }
            lines
        }
        "list" => {
            let new = now.strip_suffix(&before[..]);
            let trimmed = before.len() > now.len();
            match new {
                Some(new) => new.iter().map(|part| names.entry(part)).collect(),
                None if trimmed || now.get(1..).is_some_and(|rest| before.starts_with(rest)) => {
                    let first = names.entry(&now[0]);
                    vec![format!("{first}; {} in all", now.len())]
                }
                None => now.iter().map(|part| names.entry(part)).collect(),
            }
        }
        _ => now.iter().map(|part| names.show(part)).collect(),
    }
}

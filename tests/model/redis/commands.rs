//! The commands that the scripts call, and those of plain clients, each as far as they are used: what they
//! answer, what they refuse and what they change is as in Redis 7.0.

use std::ops::{Bound, RangeBounds};

use redis::Value;

use super::data::{Bytes, Content, Data, Entries, Fields, Kind, Members, Score};
use super::{Evaluated, Moment};

/// A command in progress, alone or with others of a script.
#[derive(Debug)]
pub struct Run {
    pub data: Data,
    pub moment: Moment,
    pub published: Vec<(Bytes, Bytes)>,
    pub heard: Vec<(Bytes, Bytes)>,
    pub writes: usize,
    pub calls: usize,
    pub is_script: bool,
    /// A write command was let through, whatever it changed: after that a full server lets all through.
    wrote: bool,
}

/// An answer, or the text of an error.
type Answer = Result<Value, String>;

/// Effect of a command on the data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    /// May need memory.
    Adds,
    Changes,
}

/// A command: its name, how many words it has, itself included (negative: at least that many), and what it does.
type Command = (&'static str, i64, Effect, fn(&mut Run, &[Bytes]) -> Answer);

use Effect::{Adds, Changes, Reads};

/// In alphabetical order.
static COMMANDS: [Command; 31] = [
    ("DEL", -2, Changes, Run::del),
    ("EXISTS", -2, Reads, Run::exists),
    ("FLUSHALL", -1, Changes, Run::flushall),
    ("GET", 2, Reads, Run::get),
    ("GETRANGE", 4, Reads, Run::getrange),
    ("HDEL", -3, Changes, Run::hdel),
    ("HGET", 3, Reads, Run::hget),
    ("HMGET", -3, Reads, Run::hmget),
    ("HSCAN", -3, Reads, Run::hscan),
    ("HSET", -4, Adds, Run::hset),
    ("INFO", -1, Reads, Run::info),
    ("LPUSH", -3, Adds, Run::lpush),
    ("LRANGE", 4, Reads, Run::lrange),
    ("LTRIM", 4, Changes, Run::ltrim),
    ("PEXPIRE", -3, Changes, Run::pexpire),
    ("PTTL", 2, Reads, Run::pttl),
    ("PUBLISH", 3, Reads, Run::publish),
    ("SET", -3, Adds, Run::set),
    ("SPUBLISH", 3, Reads, Run::spublish),
    ("TIME", 1, Reads, Run::time),
    ("TYPE", 2, Reads, Run::kind),
    ("UNLINK", -2, Changes, Run::del),
    ("ZADD", -4, Adds, Run::zadd),
    ("ZCARD", 2, Reads, Run::zcard),
    ("ZRANGE", -4, Reads, Run::zrange),
    ("ZRANGEBYSCORE", -4, Reads, Run::zrangebyscore),
    ("ZRANK", 3, Reads, Run::zrank),
    ("ZREM", -3, Changes, Run::zrem),
    ("ZREMRANGEBYSCORE", 4, Changes, Run::zremrangebyscore),
    ("ZSCAN", -3, Reads, Run::zscan),
    ("ZSCORE", 3, Reads, Run::zscore),
];

/// The names of all commands that the fake has.
pub fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(name, ..)| *name)
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_FLOAT: &str = "ERR value is not a valid float";
const NO_BOUND: &str = "ERR min or max is not a float";
const SYNTAX: &str = "ERR syntax error";
const FULL: &str = "OOM command not allowed when used memory > 'maxmemory'.";

#[allow(clippy::unnecessary_wraps)] // All commands have one shape.
impl Run {
    /// What has expired is deleted first, as a server may do at any time.
    pub fn new(mut data: Data, moment: Moment, is_script: bool) -> Self {
        data.forget_expired(moment.now_ms());
        Self {
            data,
            moment,
            published: Vec::new(),
            heard: Vec::new(),
            writes: 0,
            calls: 0,
            is_script,
            wrote: false,
        }
    }

    /// Carries a command out, if the server would.
    pub fn call(&mut self, words: &[Bytes]) -> Value {
        self.calls += 1;
        self.answer(words).unwrap_or_else(|text| error(&text))
    }

    fn answer(&mut self, words: &[Bytes]) -> Answer {
        let name = words.first().map(|name| name.to_ascii_uppercase());
        let name = name.unwrap_or_default();
        let found = COMMANDS.binary_search_by(|(other, ..)| other.as_bytes().cmp(&name));
        let Ok(&(name, count, effect, run)) = found.map(|at| &COMMANDS[at]) else {
            let name = String::from_utf8_lossy(words.first().map_or(b"", |name| name));
            return Err(self.wording(
                "ERR Unknown Redis command called from script",
                format!("ERR unknown command '{name}'"),
            ));
        };
        let given = i64::try_from(words.len()).unwrap();
        if given != count && (count > 0 || given < -count) {
            return Err(self.wording(
                "ERR Wrong number of args calling Redis command from script",
                wrong_number(name),
            ));
        }
        if self.moment.denied.contains(name) {
            let name = name.to_lowercase();
            return Err(self.wording(
                "ERR The user executing the script can't run this command or subcommand",
                format!("NOPERM this user has no permissions to run the '{name}' command"),
            ));
        }
        if effect != Reads {
            if let Some(why) = self.moment.refuses_writes {
                return Err(why.into());
            }
            if self.moment.is_full && effect == Adds && !self.wrote {
                return Err(FULL.into());
            }
            self.wrote = self.is_script;
        }
        run(self, &words[1..])
    }

    /// Scripts and clients hear other words.
    fn wording(&self, to_script: &str, to_client: String) -> String {
        if self.is_script {
            to_script.into()
        } else {
            to_client
        }
    }

    fn now(&self) -> i64 {
        self.moment.now_ms()
    }

    fn content(&self, key: &[u8]) -> Option<&Content> {
        self.data.get(self.now(), key).map(|entry| &*entry.content)
    }

    /// Returns the value of a key, which must be of this type.
    fn value<K: Kind>(&self, key: &[u8]) -> Result<Option<&K>, String> {
        let content = self.content(key);
        let value = content.map(|content| K::of(content).ok_or(WRONG_TYPE.into()));
        value.transpose()
    }

    /// The same, to be changed; a key that isn't there is created.
    fn value_mut<K: Kind>(&mut self, key: &[u8]) -> Result<&mut K, String> {
        let now = self.now();
        self.data.kind_mut(now, key).ok_or(WRONG_TYPE.into())
    }

    // Keys.

    fn del(&mut self, keys: &[Bytes]) -> Answer {
        let now = self.now();
        let deleted = keys.iter().filter(|key| self.data.remove(now, key)).count();
        self.writes += usize::from(deleted > 0);
        Ok(count(deleted))
    }

    fn exists(&mut self, keys: &[Bytes]) -> Answer {
        Ok(count(
            keys.iter()
                .filter(|key| self.content(key).is_some())
                .count(),
        ))
    }

    fn flushall(&mut self, words: &[Bytes]) -> Answer {
        let is_how = |word: &Bytes| [&b"SYNC"[..], b"ASYNC"].contains(&&*word.to_ascii_uppercase());
        if words.len() > 1 || !words.iter().all(is_how) {
            return Err(SYNTAX.into());
        }
        self.writes += usize::from(self.data.clear());
        Ok(Value::Okay)
    }

    fn kind(&mut self, words: &[Bytes]) -> Answer {
        let kind = match self.content(&words[0]) {
            None => "none",
            Some(Content::Text(_)) => "string",
            Some(Content::Hash(_)) => "hash",
            Some(Content::Sorted(_)) => "zset",
            Some(Content::List(_)) => "list",
        };
        Ok(Value::SimpleString(kind.into()))
    }

    fn pttl(&mut self, words: &[Bytes]) -> Answer {
        let now = self.now();
        let left = match self.data.get(now, &words[0]) {
            None => -2,
            Some(entry) => entry.expires.map_or(-1, |expires| expires - now),
        };
        Ok(Value::Int(left))
    }

    fn pexpire(&mut self, words: &[Bytes]) -> Answer {
        if let Some(option) = words.get(2) {
            let option = String::from_utf8_lossy(option);
            return Err(format!("ERR Unsupported option {option}"));
        }
        let now = self.now();
        let long = integer(&words[1])?;
        let until = if long > 0 {
            long.checked_add(now)
        } else {
            Some(long.saturating_add(now))
        };
        let until = until.ok_or("ERR invalid expire time in 'pexpire' command")?;
        let Some(entry) = self.data.entry_mut(now, &words[0]) else {
            return Ok(Value::Int(0));
        };
        entry.expires = Some(until);
        if until <= now {
            self.data.remove(i64::MIN, &words[0]);
        }
        self.writes += 1;
        Ok(Value::Int(1))
    }

    // Strings.

    fn get(&mut self, words: &[Bytes]) -> Answer {
        Ok(bulk_or_nil(self.value(&words[0])?))
    }

    fn getrange(&mut self, words: &[Bytes]) -> Answer {
        let (first, last) = (integer(&words[1])?, integer(&words[2])?);
        let text = self
            .value::<Bytes>(&words[0])?
            .map_or(&b""[..], |text| text);
        Ok(bulk(&text[range(first, last, text.len())]))
    }

    fn set(&mut self, words: &[Bytes]) -> Answer {
        let now = self.now();
        let (mut expires, mut keeps, mut only_new, mut only_old) = (None, false, false, false);
        let mut options = words[2..].iter();
        while let Some(option) = options.next() {
            match &option.to_ascii_uppercase()[..] {
                b"NX" if !only_old => only_new = true,
                b"XX" if !only_new => only_old = true,
                b"KEEPTTL" if expires.is_none() => keeps = true,
                unit @ (b"PX" | b"EX" | b"PXAT") if expires.is_none() && !keeps => {
                    expires = Some((unit.to_vec(), options.next().ok_or(SYNTAX)?));
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        let mut expires = match expires {
            None => None,
            Some((unit, number)) => Some(expiry(&unit, integer(number)?, now)?),
        };
        let before = self.data.get(now, &words[0]);
        if (only_new && before.is_some()) || (only_old && before.is_none()) {
            return Ok(Value::Nil);
        }
        if keeps {
            expires = before.and_then(|entry| entry.expires);
        }
        let content = Content::Text(words[1].clone());
        self.data.insert(&words[0], content, expires);
        self.writes += 1;
        // Of the notifications of keyspaces only this one, with notify-keyspace-events K$.
        let channel = [b"__keyspace@0__:", &words[0][..]].concat();
        if self.moment.listeners.contains_key(&channel) {
            self.heard.push((channel, b"set".to_vec()));
        }
        Ok(Value::Okay)
    }

    // Hashes.

    fn fields(&self, key: &[u8]) -> Result<Option<&Fields>, String> {
        self.value(key)
    }

    fn hset(&mut self, words: &[Bytes]) -> Answer {
        if words.len().is_multiple_of(2) {
            return Err(wrong_number("HSET"));
        }
        let fields: &mut Fields = self.value_mut(&words[0])?;
        let mut added = 0;
        for pair in words[1..].chunks_exact(2) {
            let before = fields.insert(pair[0].clone(), pair[1].clone());
            added += usize::from(before.is_none());
        }
        self.writes += 1;
        Ok(count(added))
    }

    fn hget(&mut self, words: &[Bytes]) -> Answer {
        let fields = self.fields(&words[0])?;
        Ok(bulk_or_nil(fields.and_then(|fields| fields.get(&words[1]))))
    }

    fn hmget(&mut self, words: &[Bytes]) -> Answer {
        let fields = self.fields(&words[0])?;
        let value = |name| bulk_or_nil(fields.and_then(|fields| fields.get(name)));
        Ok(Value::Array(words[1..].iter().map(value).collect()))
    }

    fn hscan(&mut self, words: &[Bytes]) -> Answer {
        let cursor = cursor(&words[1])?;
        let pairs = self.fields(&words[0])?.into_iter().flatten();
        let all = pairs.map(|(name, value)| (name.clone(), value.clone()));
        scan(all.collect(), cursor, &words[2..])
    }

    fn hdel(&mut self, words: &[Bytes]) -> Answer {
        if self.fields(&words[0])?.is_none() {
            return Ok(Value::Int(0));
        }
        let fields: &mut Fields = self.value_mut(&words[0])?;
        let removed = words[1..]
            .iter()
            .filter(|name| fields.remove(*name).is_some())
            .count();
        self.data.tidy(&words[0]);
        self.writes += usize::from(removed > 0);
        Ok(count(removed))
    }

    // Sorted sets.

    fn members(&self, key: &[u8]) -> Result<&[(Score, Bytes)], String> {
        let members = self.value::<Members>(key)?;
        Ok(members.map_or(&[][..], Vec::as_slice))
    }

    fn zadd(&mut self, words: &[Bytes]) -> Answer {
        if words.len().is_multiple_of(2) {
            return Err(SYNTAX.into());
        }
        let pairs = words[1..].chunks_exact(2);
        let pairs: Vec<(Score, &Bytes)> = pairs
            .map(|pair| Ok((Score::new(float(&pair[0]).ok_or(NO_FLOAT)?), &pair[1])))
            .collect::<Result<_, String>>()?;
        let members: &mut Members = self.value_mut(&words[0])?;
        let (mut added, mut changed) = (0, false);
        for (score, member) in pairs {
            let before = members.iter().position(|(_, other)| other == member);
            match before {
                Some(at) if members[at].0 == score => continue,
                Some(at) => drop(members.remove(at)),
                None => added += 1,
            }
            changed = true;
            let new = (score, member.clone());
            let at = members.partition_point(|other| *other < new);
            members.insert(at, new);
        }
        self.writes += usize::from(changed);
        Ok(count(added))
    }

    fn zrem(&mut self, words: &[Bytes]) -> Answer {
        self.remove_members(&words[0], |(_, member)| words[1..].contains(member))
    }

    fn zremrangebyscore(&mut self, words: &[Bytes]) -> Answer {
        let between = between(&words[1], &words[2])?;
        self.remove_members(&words[0], |(score, _)| between.contains(&score.get()))
    }

    fn remove_members(&mut self, key: &[u8], goes: impl Fn(&(Score, Bytes)) -> bool) -> Answer {
        if !self.members(key)?.iter().any(&goes) {
            return Ok(Value::Int(0));
        }
        let members: &mut Members = self.value_mut(key)?;
        let before = members.len();
        members.retain(|member| !goes(member));
        let removed = before - members.len();
        self.data.tidy(key);
        self.writes += 1;
        Ok(count(removed))
    }

    fn zcard(&mut self, words: &[Bytes]) -> Answer {
        Ok(count(self.members(&words[0])?.len()))
    }

    fn zscore(&mut self, words: &[Bytes]) -> Answer {
        let members = self.members(&words[0])?;
        let found = members.iter().find(|(_, member)| *member == words[1]);
        Ok(found.map_or(Value::Nil, |(score, _)| bulk(score_text(*score).as_bytes())))
    }

    fn zscan(&mut self, words: &[Bytes]) -> Answer {
        let cursor = cursor(&words[1])?;
        let members = self.members(&words[0])?.iter();
        let all = members.map(|(score, member)| (member.clone(), score_text(*score).into_bytes()));
        scan(all.collect(), cursor, &words[2..])
    }

    fn zrank(&mut self, words: &[Bytes]) -> Answer {
        let members = self.members(&words[0])?;
        let found = members.iter().position(|(_, member)| *member == words[1]);
        Ok(found.map_or(Value::Nil, count))
    }

    fn zrange(&mut self, words: &[Bytes]) -> Answer {
        let is_known = |option: &Bytes| option.eq_ignore_ascii_case(b"WITHSCORES");
        if !words[3..].iter().all(is_known) {
            return Err(SYNTAX.into());
        }
        let (first, last) = (integer(&words[1])?, integer(&words[2])?);
        let members = self.members(&words[0])?;
        let found = &members[range(first, last, members.len())];
        Ok(listed(found, words.len() > 3))
    }

    fn zrangebyscore(&mut self, words: &[Bytes]) -> Answer {
        let (mut with_scores, mut limit) = (false, None);
        let mut options = words[3..].iter();
        while let Some(option) = options.next() {
            match &option.to_ascii_uppercase()[..] {
                b"WITHSCORES" => with_scores = true,
                b"LIMIT" => {
                    let mut number = || integer(options.next().ok_or(SYNTAX)?);
                    limit = Some((number()?, number()?));
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        let between = between(&words[1], &words[2])?;
        let members = self.members(&words[0])?.iter();
        let mut found: Vec<_> = members
            .filter(|(score, _)| between.contains(&score.get()))
            .cloned()
            .collect();
        if let Some((skipped, most)) = limit {
            // A negative start finds nothing, a negative number of members is no limit.
            found.drain(
                ..usize::try_from(skipped)
                    .unwrap_or(usize::MAX)
                    .min(found.len()),
            );
            found.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        }
        Ok(listed(&found, with_scores))
    }

    // Lists.

    fn list(&self, key: &[u8]) -> Result<&[Bytes], String> {
        let entries = self.value::<Entries>(key)?;
        Ok(entries.map_or(&[][..], Vec::as_slice))
    }

    fn lpush(&mut self, words: &[Bytes]) -> Answer {
        let entries: &mut Entries = self.value_mut(&words[0])?;
        entries.splice(..0, words[1..].iter().rev().cloned());
        let length = entries.len();
        self.writes += 1;
        Ok(count(length))
    }

    fn lrange(&mut self, words: &[Bytes]) -> Answer {
        let (first, last) = (integer(&words[1])?, integer(&words[2])?);
        let entries = self.list(&words[0])?;
        let entries = &entries[range(first, last, entries.len())];
        Ok(Value::Array(
            entries.iter().map(|entry| bulk(entry)).collect(),
        ))
    }

    fn ltrim(&mut self, words: &[Bytes]) -> Answer {
        let (first, last) = (integer(&words[1])?, integer(&words[2])?);
        let length = self.list(&words[0])?.len();
        let kept = range(first, last, length);
        if kept.len() < length {
            let entries: &mut Entries = self.value_mut(&words[0])?;
            *entries = entries[kept].to_vec();
            self.data.tidy(&words[0]);
            self.writes += 1;
        }
        Ok(Value::Okay)
    }

    // The rest.

    fn publish(&mut self, words: &[Bytes]) -> Answer {
        let heard = self.moment.listeners.get(&words[0]).copied();
        Ok(self.send(words, heard))
    }

    fn spublish(&mut self, words: &[Bytes]) -> Answer {
        let heard = self.moment.shard_listeners.get(&words[0]).copied();
        Ok(self.send(words, heard))
    }

    fn send(&mut self, words: &[Bytes], heard: Option<i64>) -> Value {
        let heard = heard.unwrap_or(0);
        let message = (words[0].clone(), words[1].clone());
        if heard > 0 {
            self.heard.push(message.clone());
        }
        self.published.push(message);
        Value::Int(heard)
    }

    fn time(&mut self, _words: &[Bytes]) -> Answer {
        let clock = self.moment.clock_us;
        let parts = [clock.div_euclid(1_000_000), clock.rem_euclid(1_000_000)];
        let parts = parts.iter().map(|part| bulk(part.to_string().as_bytes()));
        Ok(Value::Array(parts.collect()))
    }

    fn info(&mut self, words: &[Bytes]) -> Answer {
        let has_server = |section: &Bytes| {
            let sections = [&b"server"[..], b"default", b"all", b"everything"];
            sections.contains(&&*section.to_ascii_lowercase())
        };
        if !words.is_empty() && !words.iter().any(has_server) {
            return Ok(bulk(b""));
        }
        let second = |clock: i64| clock.div_euclid(1_000_000);
        let up = second(self.moment.clock_us) - second(self.moment.started_us);
        let text = format!("# Server\r\nredis_version:7.0.15\r\nuptime_in_seconds:{up}\r\n");
        Ok(bulk(text.as_bytes()))
    }
}

impl Data {
    /// Carries out a command of a plain client.
    pub fn command(&mut self, moment: &Moment, words: &[&[u8]]) -> Evaluated {
        let words: Vec<Bytes> = words.iter().map(|word| word.to_vec()).collect();
        let mut run = Run::new(std::mem::take(self), moment.clone(), false);
        let answer = run.call(&words);
        *self = run.data;
        Evaluated {
            answer,
            published: run.published,
            heard: run.heard,
            writes: run.writes,
            calls: 1,
        }
    }
}

/// The error with this text, as a client gets it.
pub fn error(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).unwrap()
}

fn wrong_number(name: &str) -> String {
    let name = name.to_lowercase();
    format!("ERR wrong number of arguments for '{name}' command")
}

pub(super) fn bulk(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

fn bulk_or_nil(bytes: Option<&Bytes>) -> Value {
    bytes.map_or(Value::Nil, |bytes| bulk(bytes))
}

fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap())
}

/// A whole number as Redis takes it: without a sign that says nothing, without leading zeros.
fn integer(word: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(word).ok().and_then(|word| {
        let number: i64 = word.parse().ok()?;
        (number.to_string() == word).then_some(number)
    });
    number.ok_or_else(|| NO_INTEGER.into())
}

/// A number as Redis takes it, if it is one that a float can be near to.
fn float(word: &[u8]) -> Option<f64> {
    let word = std::str::from_utf8(word).ok()?;
    let number: f64 = word.parse().ok().filter(|number: &f64| !number.is_nan())?;
    let is_named = word.to_ascii_lowercase().contains("inf");
    (number.is_finite() || is_named).then_some(number)
}

/// Returns the scores within two bounds.
fn between(low: &[u8], high: &[u8]) -> Result<impl RangeBounds<f64> + use<>, String> {
    Ok((bound(low)?, bound(high)?))
}

/// A bound, which excludes itself if it begins with a parenthesis.
fn bound(word: &[u8]) -> Result<Bound<f64>, String> {
    let number = word.strip_prefix(b"(").unwrap_or(word);
    // Anything larger than a float counts as infinite here, and nothing as 0.
    let number = if number.is_empty() { b"0" } else { number };
    let text = std::str::from_utf8(number).ok();
    let number = text.and_then(|text| text.parse::<f64>().ok());
    let number = number.filter(|number| !number.is_nan()).ok_or(NO_BOUND)?;
    Ok(if word.starts_with(b"(") {
        Bound::Excluded(number)
    } else {
        Bound::Included(number)
    })
}

/// When a key that is set with this option expires.
fn expiry(unit: &[u8], number: i64, now: i64) -> Result<i64, String> {
    let invalid = "ERR invalid expire time in 'set' command";
    let until = match unit {
        _ if number <= 0 => None,
        b"EX" => number.checked_mul(1000).and_then(|ms| ms.checked_add(now)),
        b"PX" => number.checked_add(now),
        _ => Some(number),
    };
    until.ok_or_else(|| invalid.into())
}

/// The places from `first` to `last`, the last of them included; negative ones are counted from the end.
fn range(first: i64, last: i64, length: usize) -> std::ops::Range<usize> {
    let length = i64::try_from(length).unwrap();
    let from_start = |place: i64| {
        if place < 0 {
            place.saturating_add(length)
        } else {
            place
        }
    };
    let (first, last) = (from_start(first).max(0), from_start(last).min(length - 1));
    if first > last {
        return 0..0;
    }
    usize::try_from(first).unwrap()..usize::try_from(last + 1).unwrap()
}

fn listed(members: &[(Score, Bytes)], with_scores: bool) -> Value {
    let mut fields = Vec::new();
    for (score, member) in members {
        fields.push(bulk(member));
        if with_scores {
            fields.push(bulk(score_text(*score).as_bytes()));
        }
    }
    Value::Array(fields)
}

/// Where a scan goes on. A server reads it before it looks at the key.
fn cursor(word: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(word).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| "ERR invalid cursor".into())
}

/// A page of pairs, and the cursor of the next one: in the order of their names if it is the only one, and else in
/// that of a hash, so that what is removed meanwhile leaves the others where they are.
fn scan(mut all: Vec<(Bytes, Bytes)>, cursor: u64, options: &[Bytes]) -> Answer {
    if all.is_empty() {
        return Ok(Value::Array(vec![bulk(b"0"), Value::Array(Vec::new())]));
    }
    let most = match options {
        [] => 10,
        [option, most] if option.eq_ignore_ascii_case(b"COUNT") => integer(most)?,
        _ => return Err(SYNTAX.into()),
    };
    let most = usize::try_from(most).unwrap_or(0);
    if most == 0 {
        return Err(SYNTAX.into());
    }
    let mut next = 0;
    if cursor > 0 || all.len() > most {
        let hash = |(name, _): &(Bytes, Bytes)| {
            let mixed = name.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (mixed >> 16).max(1)
        };
        all.retain(|pair| hash(pair) >= cursor);
        all.sort_by_key(hash);
        next = all.get(most).map_or(0, hash);
        all.truncate(most);
    } else {
        all.sort();
    }
    let fields = all
        .iter()
        .flat_map(|(name, value)| [bulk(name), bulk(value)]);
    let page = Value::Array(fields.collect());
    Ok(Value::Array(vec![bulk(next.to_string().as_bytes()), page]))
}

fn score_text(score: Score) -> String {
    number_text(score.get())
}

/// A number with 17 digits at most, as "%.17g" writes it.
pub fn number_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.into();
    }
    if number.is_nan() {
        return if number.is_sign_negative() {
            "-nan"
        } else {
            "nan"
        }
        .into();
    }
    let text = format!("{number:.16e}");
    let (digits, exponent) = text.split_once('e').unwrap();
    let exponent: i32 = exponent.parse().unwrap();
    if (-4..17).contains(&exponent) {
        let places = usize::try_from(16 - exponent).unwrap();
        return shortened(&format!("{number:.places$}")).into();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", shortened(digits), exponent.abs())
}

/// Without the zeros that end a fraction.
fn shortened(digits: &str) -> &str {
    if digits.contains('.') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    }
}

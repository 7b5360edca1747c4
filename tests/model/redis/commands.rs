//! The commands of the scripts and of plain clients, with the options that these use. Their answers, refusals and changes are
//! those of Redis 7.0.

use std::ops::{Bound, RangeBounds};

use redis::Value;

use super::Moment;
use super::data::{Bytes, Content, Data, Entries, Fields, Kind, Members};

/// A script in progress.
#[derive(Debug)]
pub struct Run {
    pub data: Data,
    pub moment: Moment,
    pub published: Vec<(Bytes, Bytes)>,
    pub heard: Vec<(Bytes, Bytes)>,
    pub writes: usize,
    /// True after a write command was let through, even without a change: from then on a full server refuses nothing.
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

/// A command: its name, its number of words including the name (negative: at least that many), its effect, and its function.
type Command = (&'static str, i64, Effect, fn(&mut Run, &[Bytes]) -> Answer);

use Effect::{Adds, Changes, Reads};

/// All commands, in alphabetical order.
static COMMANDS: [Command; 29] = [
    ("DEL", -2, Changes, Run::del),
    ("EXISTS", -2, Reads, Run::exists),
    ("FLUSHALL", -1, Changes, Run::flushall),
    ("GET", 2, Reads, Run::get),
    ("HDEL", -3, Changes, Run::hdel),
    ("HGET", 3, Reads, Run::hget),
    ("HMGET", -3, Reads, Run::hmget),
    ("HSCAN", -3, Reads, Run::hscan),
    ("HSET", -4, Adds, Run::hset),
    ("LPUSH", -3, Adds, Run::lpush),
    ("LRANGE", 4, Reads, Run::lrange),
    ("LTRIM", 4, Changes, Run::ltrim),
    ("PEXPIRE", 3, Changes, Run::pexpire),
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

/// Returns the names of all commands of the fake.
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
    /// Starts a script. Deletes all expired keys first, as a server may do at any time.
    pub fn new(mut data: Data, moment: Moment) -> Self {
        data.forget_expired(moment.now_ms());
        Self {
            data,
            moment,
            published: Vec::new(),
            heard: Vec::new(),
            writes: 0,
            wrote: false,
        }
    }

    /// Executes a command, or returns the server's error.
    pub fn call(&mut self, words: &[Bytes]) -> Value {
        self.answer(words).unwrap_or_else(|text| error(&text))
    }

    fn answer(&mut self, words: &[Bytes]) -> Answer {
        let name = words.first().map(|name| name.to_ascii_uppercase());
        let name = name.unwrap_or_default();
        let index = COMMANDS.binary_search_by(|(other, ..)| other.as_bytes().cmp(&name));
        let Ok(&(name, count, effect, run)) = index.map(|at| &COMMANDS[at]) else {
            return Err("ERR Unknown Redis command called from script".into());
        };
        let given = i64::try_from(words.len()).unwrap();
        if given != count && (count > 0 || given < -count) {
            return Err("ERR Wrong number of args calling Redis command from script".into());
        }
        if self.moment.denied.contains(name) {
            let why = "ERR The user executing the script can't run this command or subcommand";
            return Err(why.into());
        }
        if effect != Reads {
            if let Some(why) = self.moment.refuses_writes {
                return Err(why.into());
            }
            if self.moment.is_full && effect == Adds && !self.wrote {
                return Err(FULL.into());
            }
            self.wrote = true;
        }
        run(self, &words[1..])
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

    /// Like `value`, for a change. Creates a missing key.
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

    fn flushall(&mut self, _words: &[Bytes]) -> Answer {
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
        let now = self.now();
        let until = now.saturating_add(integer(&words[1])?);
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

    fn set(&mut self, words: &[Bytes]) -> Answer {
        let now = self.now();
        let before = self.data.get(now, &words[0]);
        let mut expires = None;
        let mut options = words[2..].iter();
        while let Some(option) = options.next() {
            match &option[..] {
                b"NX" if before.is_some() => return Ok(Value::Nil),
                b"NX" => {}
                b"KEEPTTL" => expires = before.and_then(|entry| entry.expires),
                b"PX" => match integer(options.next().ok_or(SYNTAX)?)? {
                    ms @ 1.. => expires = Some(now.saturating_add(ms)),
                    _ => return Err("ERR invalid expire time in 'set' command".into()),
                },
                _ => return Err(SYNTAX.into()),
            }
        }
        let content = Content::Text(words[1].clone());
        self.data.insert(&words[0], content, expires);
        self.writes += 1;
        // The only keyspace notification here, as with notify-keyspace-events K$.
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
            return Err("ERR wrong number of arguments for 'hset' command".into());
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

    fn members(&self, key: &[u8]) -> Result<&[(i64, Bytes)], String> {
        let members = self.value::<Members>(key)?;
        Ok(members.map_or(&[][..], Vec::as_slice))
    }

    fn zadd(&mut self, words: &[Bytes]) -> Answer {
        if words.len().is_multiple_of(2) {
            return Err(SYNTAX.into());
        }
        let pairs = words[1..].chunks_exact(2);
        let pairs: Vec<(i64, &Bytes)> = pairs
            .map(|pair| Ok((score(&pair[0])?, &pair[1])))
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
        self.remove_members(&words[0], |(score, _)| between.contains(score))
    }

    fn remove_members(&mut self, key: &[u8], goes: impl Fn(&(i64, Bytes)) -> bool) -> Answer {
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
        let pair = members.iter().find(|(_, member)| *member == words[1]);
        Ok(pair.map_or(Value::Nil, |(score, _)| bulk(score.to_string().as_bytes())))
    }

    fn zscan(&mut self, words: &[Bytes]) -> Answer {
        let cursor = cursor(&words[1])?;
        let members = self.members(&words[0])?.iter();
        let all = members.map(|(score, member)| (member.clone(), score.to_string().into_bytes()));
        scan(all.collect(), cursor, &words[2..])
    }

    fn zrank(&mut self, words: &[Bytes]) -> Answer {
        let members = self.members(&words[0])?;
        let rank = members.iter().position(|(_, member)| *member == words[1]);
        Ok(rank.map_or(Value::Nil, count))
    }

    fn zrange(&mut self, words: &[Bytes]) -> Answer {
        let (first, last) = (integer(&words[1])?, integer(&words[2])?);
        let members = self.members(&words[0])?;
        let selected = &members[range(first, last, members.len())];
        Ok(listed(selected, words[3..] == [b"WITHSCORES"]))
    }

    fn zrangebyscore(&mut self, words: &[Bytes]) -> Answer {
        let (mut with_scores, mut most) = (false, usize::MAX);
        let mut options = words[3..].iter();
        while let Some(option) = options.next() {
            match &option[..] {
                b"WITHSCORES" => with_scores = true,
                b"LIMIT" if options.next().is_some_and(|first| first == b"0") => {
                    let number = integer(options.next().ok_or(SYNTAX)?)?;
                    // A negative number means no limit.
                    most = usize::try_from(number).unwrap_or(usize::MAX);
                }
                _ => return Err(SYNTAX.into()),
            }
        }
        let between = between(&words[1], &words[2])?;
        let members = self.members(&words[0])?.iter();
        let members = members.filter(|(score, _)| between.contains(score));
        let page: Vec<_> = members.take(most).cloned().collect();
        Ok(listed(&page, with_scores))
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

    // All others.

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
}

/// Returns the error with this text, as a client gets it.
pub fn error(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).unwrap()
}

fn bulk(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

fn bulk_or_nil(bytes: Option<&Bytes>) -> Value {
    bytes.map_or(Value::Nil, |bytes| bulk(bytes))
}

fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap())
}

/// Parses a whole number like Redis: without a plus sign or leading zeros.
fn integer(word: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(word).ok().and_then(|word| {
        let number: i64 = word.parse().ok()?;
        (number.to_string() == word).then_some(number)
    });
    number.ok_or_else(|| NO_INTEGER.into())
}

/// Parses a score, which is a float on a server.
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn score(word: &[u8]) -> Result<i64, String> {
    Ok(integer(word).or(Err(NO_FLOAT))? as f64 as i64)
}

/// Returns the scores within two bounds.
fn between(low: &[u8], high: &[u8]) -> Result<impl RangeBounds<i64> + use<>, String> {
    Ok((bound(low)?, bound(high)?))
}

/// Parses a bound, which excludes itself if it begins with a parenthesis.
fn bound(word: &[u8]) -> Result<Bound<i64>, String> {
    Ok(match word {
        b"-inf" | b"+inf" => Bound::Unbounded,
        [b'(', score @ ..] => Bound::Excluded(integer(score).or(Err(NO_BOUND))?),
        score => Bound::Included(integer(score).or(Err(NO_BOUND))?),
    })
}

/// Returns the indices from `first` to `last` inclusive; negative ones count from the end.
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

fn listed(members: &[(i64, Bytes)], with_scores: bool) -> Value {
    let mut fields = Vec::new();
    for (score, member) in members {
        fields.push(bulk(member));
        if with_scores {
            fields.push(bulk(score.to_string().as_bytes()));
        }
    }
    Value::Array(fields)
}

/// Parses the position of a scan. A server does so before it reads the key.
fn cursor(word: &[u8]) -> Result<u64, String> {
    let text = std::str::from_utf8(word).ok();
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| "ERR invalid cursor".into())
}

/// Returns a page of pairs, sorted by the hashes of their names, and the cursor of the next page. This order keeps the
/// remaining pairs in place when others are removed.
fn scan(mut all: Vec<(Bytes, Bytes)>, cursor: u64, options: &[Bytes]) -> Answer {
    let most = match options {
        [option, most] if option == b"COUNT" => integer(most)?,
        _ => return Err(SYNTAX.into()),
    };
    let most = usize::try_from(most).unwrap_or(0);
    if most == 0 {
        return Err(SYNTAX.into());
    }
    let hash = |(name, _): &(Bytes, Bytes)| {
        let mixed = name.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (mixed >> 16).max(1)
    };
    all.retain(|pair| hash(pair) >= cursor);
    all.sort_by_key(hash);
    let next = all.get(most).map_or(0, hash);
    all.truncate(most);
    all.sort();
    let fields = all
        .iter()
        .flat_map(|(name, value)| [bulk(name), bulk(value)]);
    let page = Value::Array(fields.collect());
    Ok(Value::Array(vec![bulk(next.to_string().as_bytes()), page]))
}

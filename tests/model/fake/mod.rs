//! Compares the Redis in memory, on which the models run, with a real one. Each call of a simulation or an example gets the
//! same answer from both. Both send the same messages, and have the same keys and expiries afterwards.

pub mod deeds;
pub mod memory;
pub mod server;

use std::collections::{BTreeMap, BTreeSet};

use ::redis::{Connection, Value};

use self::deeds::{Deed, KEYS, keys_of};
use self::memory::Memory;
use self::server::{START, Server};
use super::redis::data::Content;
use super::redis::{Bytes, Data, READONLY, commands};
use crate::protocol::model::promises::Broken;
use crate::protocol::model::promises::calls::{Seen, Witness};
use crate::protocol::model::support::SERVER;
use crate::protocol::model::support::lua::{SCRIPTS, source};
use crate::protocol::model::view::text as lossy;
use crate::server::call::Script;

/// A real server with three connections: of a user whose permissions change, of an administrator, and of a subscriber.
pub struct Real {
    server: Server,
    calls: Connection,
    admin: Connection,
    ear: Connection,
    /// Subscriptions of the last connection: the command to end each, and the channel.
    listens: BTreeSet<(&'static str, String)>,
}

/// Result of a deed: the answer, the received messages, and all keys afterwards.
#[derive(Debug)]
pub struct Outcome {
    answer: String,
    /// The unformatted answer.
    pub value: Value,
    pub heard: Vec<(String, String)>,
    /// Name, type, remaining milliseconds (-1: for ever) and content of each key, with two spaces between.
    pub keys: Vec<String>,
}

/// Ignores differences in the wording of an error.
impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        (&self.answer, &self.heard, &self.keys) == (&other.answer, &other.heard, &other.keys)
    }
}

/// Lua code before a script that sorts the results of scans by name, because Redis promises no order.
const IN_ORDER: &str = "
local plain = redis
local function in_order(command, answer)
  if (command ~= 'HSCAN' and command ~= 'ZSCAN') or answer.err then return answer end
  local names, values = {}, {}
  for n = 1, #answer[2], 2 do names[#names + 1], values[answer[2][n]] = answer[2][n], answer[2][n + 1] end
  table.sort(names)
  local all = {}
  for _, name in ipairs(names) do all[#all + 1], all[#all + 2] = name, values[name] end
  return {answer[1], all}
end
local redis = {sha1hex = plain.sha1hex,
  call = function(...) return in_order((...), plain.call(...)) end,
  pcall = function(...) return in_order((...), plain.pcall(...)) end}
";

/// Lua script that returns all keys, one line each. Reading them also deletes the expired ones.
const DUMP: &str = "
for _, key in ipairs(ARGV) do redis.call('EXISTS', key) end
local lines = {}
local keys = redis.call('KEYS', '*')
table.sort(keys)
for _, key in ipairs(keys) do
  local kind, line = redis.call('TYPE', key).ok, {}
  if kind == 'string' then
    line = {redis.call('GET', key)}
  elseif kind == 'list' then
    line = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then
    line = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else
    local all, names = redis.call('HGETALL', key), {}
    for n = 1, #all, 2 do names[#names + 1], line[all[n]] = all[n], all[n + 1] end
    table.sort(names)
    local fields = {}
    for _, name in ipairs(names) do fields[#fields + 1], fields[#fields + 2] = name, line[name] end
    line = fields
  end
  lines[#lines + 1] = table.concat({key, kind, redis.call('PTTL', key), table.concat(line, ' | ')}, '  ')
end
redis.call('PUBLISH', 'dumped', '')
return lines";

impl Real {
    pub fn start() -> Self {
        let server = Server::start();
        let (mut calls, mut admin) = (server.connect(), server.connect());
        tell(&mut admin, "ACL SETUSER client on nopass ~* &* +@all");
        tell(&mut calls, "AUTH client -");
        tell(&mut admin, "CONFIG SET notify-keyspace-events K$");
        let mut ear = server.connect();
        tell(&mut ear, "SUBSCRIBE dumped");
        Self {
            server,
            calls,
            admin,
            ear,
            listens: BTreeSet::new(),
        }
    }

    pub fn clear(&mut self) {
        for (leave, channel) in std::mem::take(&mut self.listens) {
            tell(&mut self.ear, &format!("{leave} {channel}"));
        }
        for words in [
            "REPLICAOF NO ONE",
            "CONFIG SET maxmemory 0",
            "ACL SETUSER client +@all",
            "FLUSHALL",
        ] {
            tell(&mut self.admin, words);
        }
        self.server.set_clock(START);
    }

    fn listen(&mut self, words: [&'static str; 2], channel: &str, on: bool) {
        tell(
            &mut self.ear,
            &format!("{} {channel}", words[usize::from(on)]),
        );
        let listened = (words[0], channel.to_owned());
        if on {
            self.listens.insert(listened);
        } else {
            self.listens.remove(&listened);
        }
    }

    /// Performs a deed at this time. Returns the result of a call.
    pub fn perform(&mut self, deed: &Deed, clock: i64) -> Option<Outcome> {
        self.server.set_clock(clock);
        match deed {
            Deed::Listen(channel, on) => {
                self.listen(["UNSUBSCRIBE", "SUBSCRIBE"], channel, *on);
            }
            Deed::ListenInShard(channel, on) => {
                self.listen(["SUNSUBSCRIBE", "SSUBSCRIBE"], channel, *on);
            }
            Deed::Full(on) => {
                let most = i32::from(*on);
                tell(&mut self.admin, &format!("CONFIG SET maxmemory {most}"));
            }
            Deed::Replica(true) => tell(&mut self.admin, "REPLICAOF 127.0.0.1 1"),
            Deed::Replica(false) => tell(&mut self.admin, "REPLICAOF NO ONE"),
            Deed::Permit(command, on) => {
                let (sign, command) = (if *on { '+' } else { '-' }, command.to_lowercase());
                tell(
                    &mut self.admin,
                    &format!("ACL SETUSER client {sign}{command}"),
                );
            }
            Deed::Command(words) => return Some(self.call(words)),
            Deed::Script(name, args) => {
                return Some(self.eval(source(name), &keys_of(name, args), args));
            }
        }
        None
    }

    fn eval(&mut self, script: &str, keys: &[Bytes], args: &[Bytes]) -> Outcome {
        let script = format!("{IN_ORDER}{script}").into_bytes();
        let number = keys.len().to_string().into_bytes();
        self.call(&[&[b"EVAL".to_vec(), script, number], keys, args].concat())
    }

    fn call(&mut self, words: &[Bytes]) -> Outcome {
        let answer = ask(&mut self.calls, words);
        let mut dump = vec![b"EVAL".to_vec(), DUMP.into(), b"0".to_vec()];
        dump.extend(KEYS.iter().map(|key| key.as_bytes().to_vec()));
        let Value::Array(lines) = ask(&mut self.admin, &dump) else {
            panic!("the keys can't be listed");
        };
        Outcome {
            answer: shown(&answer),
            value: answer,
            heard: self.heard(),
            keys: lines.iter().map(text).collect(),
        }
    }

    /// Returns the messages before the last dump.
    fn heard(&mut self) -> Vec<(String, String)> {
        let mut heard = Vec::new();
        loop {
            let Ok(Value::Array(words)) = self.ear.recv_response() else {
                panic!("the connection that listens has ended");
            };
            match &words.iter().map(text).collect::<Vec<_>>()[..] {
                [_, channel, _] if channel == "dumped" => return heard,
                [kind, channel, message] if kind.ends_with("message") => {
                    heard.push((channel.clone(), message.clone()));
                }
                other => panic!("the server says {other:?}"),
            }
        }
    }
}

impl Memory {
    /// Performs a deed at this time. Returns the result of a call.
    pub fn perform(&mut self, deed: &Deed, clock: i64) -> Option<Outcome> {
        fn listen(map: &mut BTreeMap<Bytes, i64>, channel: &str, on: bool) {
            let channel = channel.as_bytes().to_vec();
            if on {
                map.insert(channel, 1);
            } else {
                map.remove(&channel);
            }
        }
        let moment = &mut self.moment;
        moment.clock_us = clock;
        match deed {
            Deed::Listen(channel, on) => listen(&mut moment.listeners, channel, *on),
            Deed::ListenInShard(channel, on) => {
                listen(&mut moment.shard_listeners, channel, *on);
            }
            Deed::Full(on) => moment.is_full = *on,
            Deed::Replica(on) => moment.refuses_writes = on.then_some(READONLY),
            Deed::Permit(command, true) => drop(moment.denied.remove(command)),
            Deed::Permit(command, false) => drop(moment.denied.insert(command)),
            Deed::Command(words) => {
                return Some(self.eval("return redis.call(unpack(ARGV))", &[], words));
            }
            Deed::Script(name, args) => {
                return Some(self.eval(self.sources[name], &keys_of(name, args), args));
            }
        }
        None
    }

    fn eval(&mut self, script: &'static str, keys: &[Bytes], args: &[Bytes]) -> Outcome {
        let interpreter = &self.interpreter;
        let done = interpreter.eval(&mut self.data, &self.moment, script, keys, args);
        let now = self.moment.now_ms();
        Outcome::of(&done.answer, &done.heard, &self.data, now)
    }
}

impl Outcome {
    fn of<'a>(
        answer: &Value,
        heard: impl IntoIterator<Item = &'a (Bytes, Bytes)>,
        data: &Data,
        now_ms: i64,
    ) -> Self {
        let heard = heard.into_iter();
        Self {
            answer: shown(answer),
            value: answer.clone(),
            heard: heard.map(|(a, b)| (lossy(a), lossy(b))).collect(),
            keys: dump(data, now_ms),
        }
    }
}

/// Repeats every call of a simulation on a real server, and compares the results.
impl Witness for Real {
    fn sees(&mut self, seen: &Seen) -> Result<(), Broken> {
        let clock = seen.moment.clock_us;
        let channels = seen.moment.listeners.keys().map(|channel| lossy(channel));
        let listened: BTreeSet<String> = channels.collect();
        let before = self.listens.iter().map(|(_, channel)| channel.clone());
        let before: BTreeSet<String> = before.collect();
        for channel in before.symmetric_difference(&listened) {
            let on = listened.contains(channel);
            self.perform(&Deed::Listen(channel.clone(), on), clock);
        }
        self.server.set_clock(clock);
        let heard = seen.heard.iter().copied();
        let now = clock.div_euclid(1000);
        let ours = Outcome::of(seen.answer, heard, seen.after, now);
        let call = seen.call;
        let theirs = self.eval(call.script.source, &call.keys, &call.args);
        assert_eq!(theirs, ours, "{}", seen.told());
        Ok(())
    }
}

/// Returns the name of a script, if it is shipped.
pub fn name_of(script: &Script) -> Option<&'static str> {
    let mut all = SCRIPTS.iter();
    Some(all.find(|(_, source)| *source == script.source)?.0)
}

/// Returns all keys in memory, in the format of `DUMP`.
fn dump(data: &Data, now_ms: i64) -> Vec<String> {
    let lasts = |expires: &Option<i64>| expires.is_none_or(|expires| expires >= now_ms);
    let entries = data.entries().filter(|(_, entry)| lasts(&entry.expires));
    let lines = entries.map(|(key, entry)| {
        let left = entry.expires.map_or(-1, |expires| expires - now_ms);
        let (kind, parts) = parts(&entry.content);
        format!("{}  {kind}  {left}  {}", lossy(key), parts.join(" | "))
    });
    lines.collect()
}

fn parts(content: &Content) -> (&'static str, Vec<String>) {
    match content {
        Content::Text(text) => ("string", vec![lossy(text)]),
        Content::List(all) => ("list", all.iter().map(|entry| lossy(entry)).collect()),
        Content::Hash(all) => {
            let pairs = all
                .iter()
                .flat_map(|(name, value)| [lossy(name), lossy(value)]);
            ("hash", pairs.collect())
        }
        Content::Sorted(all) => {
            let pairs = all
                .iter()
                .flat_map(|(score, member)| [lossy(member), score.to_string()]);
            ("zset", pairs.collect())
        }
    }
}

/// Formats the parts of an answer that Redis promises.
fn shown(answer: &Value) -> String {
    let Value::ServerError(error) = answer else {
        return format!("{answer:?}");
    };
    // Other versions use other words.
    if SERVER.is_before(7, 0) || !SERVER.is_before(7, 1) {
        return error.code().to_owned();
    }
    let details = error.details().unwrap_or_default();
    // A server also prints the script and the line.
    let details = details.split(" script: ").next().unwrap();
    format!("{} {details}", error.code())
}

fn ask(connection: &mut Connection, words: &[Bytes]) -> Value {
    let mut command = ::redis::Cmd::new();
    command.arg(words);
    connection
        .send_packed_command(&command.get_packed_command())
        .unwrap();
    connection.recv_response().unwrap()
}

/// Like `ask`. Asserts that the server doesn't refuse.
fn tell(connection: &mut Connection, words: &str) {
    let words: Vec<Bytes> = words.split(' ').map(Into::into).collect();
    let answer = ask(connection, &words);
    assert!(!matches!(answer, Value::ServerError(_)), "{answer:?}");
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => lossy(bytes),
        other => format!("{other:?}"),
    }
}

#[test]
fn the_redis_of_the_models_has_the_commands_that_scripts_call_and_those_of_other_clients() {
    let calls = SCRIPTS
        .iter()
        .flat_map(|(_, source)| source.split("call('").skip(1));
    let mut expected: BTreeSet<&str> = calls.filter_map(|call| call.split('\'').next()).collect();
    expected.extend(["DEL", "FLUSHALL", "PUBLISH", "SPUBLISH"]);
    assert_eq!(commands::names().collect::<BTreeSet<_>>(), expected);
}

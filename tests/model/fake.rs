//! The Redis in memory, on which the models run, does as a real one: random commands and the shipped scripts,
//! with arguments that make sense and with some that don't, get the same answers from both, send the same
//! messages, and leave the same keys with the same expiries. `FAKE_SECONDS` makes it longer.

pub mod deeds;
pub mod memory;
pub mod server;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Duration, Instant};

use ::redis::{Connection, Value};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::deeds::{Deed, KEYS, PROBE, keys_of};
use self::memory::Memory;
use self::server::{START, Server};
use super::redis::data::{Content, Score};
use super::redis::{Bytes, Data, READONLY, commands};
use crate::protocol::model::promises::Broken;
use crate::protocol::model::promises::calls::{Seen, Witness};
use crate::protocol::model::support::lua::{self, source};
use crate::protocol::model::support::{SERVER, asked};
use crate::protocol::model::view::text as lossy;
use crate::redis::call::Script;

/// How many lists of deeds are tried by default, each with its own seed.
const CASES: u32 = 60;

/// A real server, and three connections to it: of a user whose rights change, of one who may do everything, and of
/// one who listens.
pub struct Real {
    server: Server,
    calls: Connection,
    admin: Connection,
    ear: Connection,
    /// What the last one listens to: how it left, and the channel.
    listens: BTreeSet<(&'static str, String)>,
}

/// What a deed did: the answer, the messages that were heard, and all keys afterwards.
#[derive(Debug)]
pub struct Outcome {
    answer: String,
    /// The answer as it came.
    pub value: Value,
    pub heard: Vec<(String, String)>,
    /// Name, type, remaining milliseconds (-1: for ever) and content of each key, with two spaces between.
    pub keys: Vec<String>,
}

/// How an error is worded, and the order of fields, are no difference.
impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        (&self.answer, &self.heard, &self.keys) == (&other.answer, &other.heard, &other.keys)
    }
}

/// Lua code in front of a script: what is scanned comes in the order of its names, as Redis promises none.
pub const IN_ORDER: &str = "
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
local redis = {error_reply = plain.error_reply, status_reply = plain.status_reply, sha1hex = plain.sha1hex,
  call = function(...) return in_order((...), plain.call(...)) end,
  pcall = function(...) return in_order((...), plain.pcall(...)) end}
";

/// All keys, a line each; looking at them also deletes those that have expired.
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

    /// What the deed did; `None` where it did something else than to call.
    pub fn perform(&mut self, deed: &Deed, clock: i64) -> Option<Outcome> {
        match deed {
            Deed::Time(_) => self.server.set_clock(clock),
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
                let script = format!("{IN_ORDER}{}", source(name));
                return Some(self.eval(&script, &keys_of(name, args), args));
            }
            Deed::Lua(script, args) => {
                let script = format!("{IN_ORDER}{script}");
                return Some(self.eval(&script, &KEYS, args));
            }
        }
        None
    }

    fn eval(&mut self, script: &str, keys: &[impl AsRef<str>], args: &[Bytes]) -> Outcome {
        let mut words = vec![
            b"EVAL".to_vec(),
            script.into(),
            keys.len().to_string().into(),
        ];
        words.extend(keys.iter().map(|key| key.as_ref().into()));
        words.extend_from_slice(args);
        self.call(&words)
    }

    fn call(&mut self, words: &[Bytes]) -> Outcome {
        let answer = ask(&mut self.calls, words);
        let mut dump = vec![b"EVAL".to_vec(), DUMP.into(), b"0".to_vec()];
        dump.extend(KEYS.iter().map(|key| key.as_bytes().to_vec()));
        let Value::Array(lines) = ask(&mut self.admin, &dump) else {
            panic!("the keys can't be listed");
        };
        Outcome {
            answer: shown(words, &answer),
            value: answer,
            heard: self.heard(),
            keys: lines.iter().map(text).collect(),
        }
    }

    /// What was heard before the last dump.
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
    /// What the deed did; `None` where it did something else than to call.
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
        match deed {
            Deed::Time(_) => moment.clock_us = clock,
            Deed::Listen(channel, on) => listen(&mut moment.listeners, channel, *on),
            Deed::ListenInShard(channel, on) => {
                listen(&mut moment.shard_listeners, channel, *on);
            }
            Deed::Full(on) => moment.is_full = *on,
            Deed::Replica(on) => moment.refuses_writes = on.then_some(READONLY),
            Deed::Permit(command, true) => drop(moment.denied.remove(command)),
            Deed::Permit(command, false) => drop(moment.denied.insert(command)),
            Deed::Command(words) => {
                let refs: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                let done = self.data.command(&self.moment, &refs);
                return Some(self.outcome(words, &done));
            }
            Deed::Script(name, args) => {
                return Some(self.eval(self.sources[name], &keys_of(name, args), args));
            }
            Deed::Lua(script, args) => return Some(self.eval(script, &KEYS, args)),
        }
        None
    }

    fn eval(&mut self, script: &'static str, keys: &[impl AsRef<str>], args: &[Bytes]) -> Outcome {
        let keys: Vec<Bytes> = keys.iter().map(|key| key.as_ref().into()).collect();
        let interpreter = &self.interpreter;
        let done = interpreter.eval(&mut self.data, &self.moment, script, &keys, args);
        self.outcome(&[], &done)
    }

    fn outcome(&self, words: &[Bytes], done: &super::redis::Evaluated) -> Outcome {
        let now = self.moment.now_ms();
        Outcome::of(words, &done.answer, &done.heard, &self.data, now)
    }
}

impl Outcome {
    fn of<'a>(
        words: &[Bytes],
        answer: &Value,
        heard: impl IntoIterator<Item = &'a (Bytes, Bytes)>,
        data: &Data,
        now_ms: i64,
    ) -> Self {
        let heard = heard.into_iter();
        Self {
            answer: shown(words, answer),
            value: answer.clone(),
            heard: heard.map(|(a, b)| (lossy(a), lossy(b))).collect(),
            keys: dump(data, now_ms),
        }
    }
}

/// A real server that does all that a simulation has done in memory, and must come out the same.
impl Witness for Real {
    fn sees(&mut self, seen: &Seen) -> Result<(), Broken> {
        let clock = seen.moment.clock_us;
        self.perform(&Deed::Time(0), clock);
        let channels = seen.moment.listeners.keys().map(|channel| lossy(channel));
        let listened: BTreeSet<String> = channels.collect();
        let before = self.listens.iter().map(|(_, channel)| channel.clone());
        for channel in before
            .collect::<BTreeSet<_>>()
            .symmetric_difference(&listened)
        {
            let on = listened.contains(channel);
            self.perform(&Deed::Listen(channel.clone(), on), clock);
        }
        let args = seen.call.args.clone();
        let deed = match name_of(seen.call.script) {
            Some(name) => Deed::Script(name, args),
            None => Deed::Lua(seen.call.script.source, args),
        };
        let heard = seen.heard.iter().copied();
        let now = clock.div_euclid(1000);
        let ours = Outcome::of(&[], seen.answer, heard, seen.after, now);
        let theirs = self.perform(&deed, clock).expect("a call");
        let told = deed.told();
        assert!(theirs == ours, "{told}\n{}", compared(&theirs, &ours));
        Ok(())
    }
}

/// The name of a script, if it is shipped.
pub fn name_of(script: &Script) -> Option<&'static str> {
    let mut all = lua::SCRIPTS.iter();
    Some(all.find(|(_, source)| *source == script.source)?.0)
}

/// All keys of the fake, as `DUMP` writes those of a server.
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
    let score = |score: &Score| commands::number_text(score.get());
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
                .flat_map(|(own, member)| [lossy(member), score(own)]);
            ("zset", pairs.collect())
        }
    }
}

/// An answer in which only what Redis promises counts.
fn shown(words: &[Bytes], answer: &Value) -> String {
    let is_it = |name: &str| {
        words
            .first()
            .is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
    };
    match answer {
        // Other versions use other words.
        Value::ServerError(error) if SERVER.is_before(7, 0) || !SERVER.is_before(7, 1) => {
            error.code().to_owned()
        }
        Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            // Where in which script it was isn't told by the fake, nor what Lua says of an error.
            let details = details.split(" script: ").next().unwrap();
            if details.contains("user_script:") {
                "a mistake in Lua".to_owned()
            } else {
                format!(
                    "{} {}",
                    error.code(),
                    details.split(", with args").next().unwrap()
                )
            }
        }
        Value::BulkString(text) if is_it("INFO") => {
            let text = lossy(text);
            let up = text
                .lines()
                .find(|line| line.starts_with("uptime_in_seconds"));
            up.unwrap_or_default().to_owned()
        }
        Value::Array(page) if is_it("HSCAN") || is_it("ZSCAN") => match page.as_slice() {
            [next, Value::Array(fields)] => {
                let pairs: BTreeSet<_> = fields.chunks(2).map(|pair| format!("{pair:?}")).collect();
                format!("{next:?} {pairs:?}")
            }
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    }
}

fn ask(connection: &mut Connection, words: &[Bytes]) -> Value {
    let mut command = ::redis::Cmd::new();
    command.arg(words);
    connection
        .send_packed_command(&command.get_packed_command())
        .unwrap();
    connection.recv_response().unwrap()
}

/// The same for what is not refused.
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

/// Does all of it on both; the first difference.
fn difference(real: &mut Real, fake: &mut Memory, list: &[Deed]) -> Option<String> {
    real.clear();
    fake.clear();
    let mut clock = START;
    let mut is_replica = false;
    let mut told = String::new();
    for deed in list {
        if let Deed::Replica(on) = deed {
            is_replica = *on;
        }
        if let Deed::Time(by) = deed {
            // A replica keeps what has expired, which comes to light if its clock is set back.
            clock += if is_replica { by.abs() } else { *by };
        }
        let _ = writeln!(told, "{}", deed.told());
        let (real, fake) = (real.perform(deed, clock), fake.perform(deed, clock));
        if let (Some(real), Some(fake)) = (real, fake)
            && real != fake
        {
            return Some(format!("{told}{}", compared(&real, &fake)));
        }
    }
    None
}

fn compared(real: &Outcome, fake: &Outcome) -> String {
    let mut lines = String::new();
    let mut compare = |what: &str, real: &str, fake: &str| {
        if real != fake {
            let _ = write!(lines, "{what}\n  real: {real}\n  fake: {fake}\n");
        }
    };
    compare("answer", &real.answer, &fake.answer);
    compare(
        "heard",
        &format!("{:?}", real.heard),
        &format!("{:?}", fake.heard),
    );
    for line in &real.keys {
        if !fake.keys.contains(line) {
            compare("key", line, "");
        }
    }
    for line in &fake.keys {
        if !real.keys.contains(line) {
            compare("key", "", line);
        }
    }
    lines
}

#[test]
fn the_redis_of_the_models_does_as_a_real_one() {
    let seconds = asked("FAKE_SECONDS");
    let both = RefCell::new((Real::start(), Memory::new(lua::SCRIPTS.into())));
    let began = Instant::now();
    let lists = deeds::lists();
    let (mut cases, mut changed) = (0, 0);
    let calls = Cell::new(0);
    for case in 0.. {
        let is_over = match seconds {
            Some(seconds) => began.elapsed() >= Duration::from_secs(seconds),
            None => case >= CASES,
        };
        if is_over {
            break;
        }
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&case.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let config = Config {
            cases: 1,
            max_shrink_iters: 5_000,
            failure_persistence: None,
            ..Config::default()
        };
        let mut runner = TestRunner::new_with_rng(config, rng);
        let tree = lists.new_tree(&mut runner).unwrap();
        let outcome = runner.run_one(tree, |list| {
            calls.update(|calls| calls + list.iter().filter(|deed| deed.is_call()).count());
            let (real, fake) = &mut *both.borrow_mut();
            match difference(real, fake, &list) {
                None => Ok(()),
                Some(text) => Err(TestCaseError::fail(text)),
            }
        });
        if let Err(TestError::Fail(reason, _)) = outcome {
            panic!("case {case}:\n{reason}");
        }
        cases += 1;
        changed += usize::from(both.borrow().1.data != Data::new());
    }
    if seconds.is_some() {
        let _ = writeln!(
            std::io::stderr(),
            "{cases} lists with {} calls, seed 0 to {}: no difference",
            calls.get(),
            cases - 1
        );
    }
    // Lists that store nothing compare nothing.
    assert!(changed > cases * 3 / 4, "{changed} of {cases}");
}

/// Returns true for a key that a whole script refreshes once a day, and a short one doesn't.
fn is_for_days(key: &str) -> bool {
    let names = [
        "{redlock:a}:state",
        "{redlock:a}:history",
        "{redlock:}:index",
    ];
    names.iter().any(|name| key.starts_with(name))
}

/// A short script, and the whole one for the same, with their arguments for a token; the first field of a success.
fn short_and_whole(token: &str) -> [(&'static str, Vec<String>, &'static str, Vec<String>); 3] {
    let common = ["a", "{redlock:a}:", "200", token];
    let words = |more: &[&str]| -> Vec<String> {
        let all = common.iter().chain(more);
        all.map(|&word| word.to_owned()).collect()
    };
    let acquire = words(&["10000", "1", lua::WHO, "", "", "0", "", "0", "0"]);
    let release = words(&["0", "status:0", "0"]);
    [
        (
            "prolong",
            deeds::prolonging(token, "10000"),
            "renew",
            words(&["10000", "0"]),
        ),
        ("take", acquire.clone(), "acquire", acquire),
        ("free", release.clone(), "release", release),
    ]
}

#[test]
fn a_short_script_does_the_same_as_the_whole_one_or_nothing() {
    let mut memory = Memory::new(lua::SCRIPTS.into());
    let mut runner = TestRunner::deterministic();
    let mut done = BTreeMap::new();
    for _ in 0..CASES {
        memory.clear();
        let mut clock = START;
        for deed in deeds::lists().new_tree(&mut runner).unwrap().current() {
            if let Deed::Time(by) = deed {
                clock += by;
            }
            memory.perform(&deed, clock);
            let (before, keys) = (
                memory.data.clone(),
                dump(&memory.data, memory.moment.now_ms()),
            );
            for (short, args, whole, words) in deeds::TOKENS.iter().flat_map(|t| short_and_whole(t))
            {
                let mut called = |script, args: Vec<String>| {
                    let args = args.into_iter().map(String::into_bytes).collect();
                    let outcome = memory.perform(&Deed::Script(script, args), clock).unwrap();
                    memory.data = before.clone();
                    outcome
                };
                let quick = called(short, args);
                if quick.value == Value::Int(0) {
                    assert_eq!(quick.keys, keys);
                }
                if matches!(quick.value, Value::Int(0) | Value::ServerError(_)) {
                    continue;
                }
                let thorough = called(whole, words);
                // It makes more calls than the short one, so the server may not permit them.
                if thorough.answer.contains("can't run this command") {
                    continue;
                }
                *done.entry(short).or_insert(0) += 1;
                if short == "prolong" {
                    let Value::Array(fields) = &thorough.value else {
                        panic!("{thorough:?}");
                    };
                    // Only the fence may be any.
                    let [one, ttl] = [1, 10_000].map(Value::Int);
                    let fence = fields[2].clone();
                    let expected = [one.clone(), ttl, fence, one.clone(), one, Value::Nil];
                    assert_eq!(fields[..], expected);
                } else {
                    assert_eq!(quick.answer, thorough.answer, "{short}");
                }
                assert_eq!(quick.heard, thorough.heard);
                let without = |outcome: &Outcome| -> Vec<String> {
                    let keys = outcome.keys.iter().filter(|key| !is_for_days(key.as_str()));
                    keys.cloned().collect()
                };
                assert_eq!(without(&quick), without(&thorough), "{short}");
            }
        }
    }
    assert!(
        done.len() == 3 && done.values().all(|&n| n > 50),
        "{done:?}"
    );
}

/// The commands of the access list in docs/servers.md, for a server and for a node of a cluster.
fn permitted() -> BTreeSet<String> {
    let mut permitted = BTreeSet::new();
    for page in [
        include_str!("../../docs/servers.md"),
        include_str!("../../man/redlock-protocol.7"),
    ] {
        let page = page.replace("\\fB", " ").replace("\\fR", " ");
        let words = page
            .split_whitespace()
            .filter_map(|word| word.strip_prefix('+'));
        permitted.extend(
            words
                .filter(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase()))
                .map(str::to_uppercase),
        );
    }
    permitted
}

#[test]
fn the_redis_of_the_models_has_the_commands_of_the_access_list_and_those_that_scripts_call() {
    // These a client sends itself, on a connection that the models don't have.
    let of_connections = "EVAL EVALSHA HELLO ROLE WAIT SELECT SUBSCRIBE SSUBSCRIBE ASKING";
    let mut expected = permitted();
    for name in of_connections.split(' ') {
        assert!(expected.remove(name), "{name} is not in the access list");
    }
    // Plain clients and people, and a server that restarted.
    expected.extend(["DEL", "FLUSHALL"].map(str::to_owned));
    let mut called = BTreeSet::new();
    for (_, source) in lua::SCRIPTS {
        let calls = source.split("call('").skip(1);
        called.extend(
            calls
                .filter_map(|call| call.split_once('\''))
                .map(|(name, _)| name.to_owned()),
        );
    }
    let known: BTreeSet<String> = commands::names().map(str::to_owned).collect();
    assert!(called.is_subset(&known), "{:?}", called.difference(&known));
    expected.extend(called);
    assert_eq!(known, expected);
}

#[test]
fn the_deeds_call_every_command_and_every_script() {
    let mut runner = TestRunner::deterministic();
    let lists = deeds::lists();
    let (mut words, mut scripts) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..2 * CASES {
        for deed in lists.new_tree(&mut runner).unwrap().current() {
            match deed {
                Deed::Command(command) | Deed::Lua(PROBE, command) => {
                    words.insert(lossy(&command[0]));
                }
                Deed::Script(name, _) => {
                    scripts.insert(name);
                }
                _ => {}
            }
        }
    }
    for name in commands::names() {
        assert!(words.contains(name), "{name}");
    }
    assert_eq!(scripts.len(), lua::SCRIPTS.len(), "{scripts:?}");
}

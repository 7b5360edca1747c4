//! A server in memory, which the fuzz takes where a real one is too slow; and both at once, to see that they do
//! the same.

use std::collections::BTreeMap;

use redis::Value;

use super::scripts::{Call, Key, PLAIN_RELEASE};
use super::server::{Called, START, Server, Simulated, View};
use crate::protocol::model::fake::IN_ORDER;
use crate::protocol::model::fake::deeds::keys_of;
use crate::protocol::model::redis::data::{Content, Entry};
use crate::protocol::model::redis::{Bytes, Data, Interpreter, Moment};
use crate::protocol::model::support::lua::{KEYS, SCRIPTS};

/// The scripts by their names.
pub type Sources = BTreeMap<&'static str, &'static str>;

/// A server in memory that runs these scripts.
pub struct Memory {
    pub sources: Sources,
    pub interpreter: Interpreter,
    pub data: Data,
    pub moment: Moment,
    calls: u32,
}

/// More calls than any run makes that comes to its end.
const MOST_CALLS: u32 = 50_000;

impl Memory {
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            interpreter: Interpreter::new(),
            data: Data::new(),
            moment: Moment::at(START),
            calls: 0,
        }
    }

    pub fn view(&self) -> View {
        let now = self.moment.now_ms();
        let data = &self.data;
        let entry = |key: Key| data.get(now, key.name().as_bytes());
        let left = |entry: &Entry| entry.expires.map_or(-1, |expires| expires - now);
        let hash = |key: Key| {
            let fields = data.fields(now, key.name().as_bytes());
            let fields = fields.into_iter().flatten();
            fields.map(|(a, b)| (text(a), text(b))).collect()
        };
        #[allow(clippy::cast_possible_truncation)] // Scores are whole, and below 2^53.
        let sorted = |key: Key| -> Vec<(String, i64)> {
            let members = data.members(now, key.name().as_bytes()).iter();
            members
                .map(|(score, member)| (text(member), score.get() as i64))
                .collect()
        };
        let keys = Key::ALL.into_iter();
        View {
            now,
            keys: keys
                .filter_map(|key| Some((key, left(entry(key)?))))
                .collect(),
            mark: match entry(Key::Lock).map(|entry| &*entry.content) {
                Some(Content::Text(mark)) => Some(text(mark)),
                _ => None,
            },
            state: hash(Key::State),
            meta: hash(Key::Meta),
            holders: sorted(Key::Holders).into_iter().collect(),
            queue: sorted(Key::Queue),
            waiters: hash(Key::Waiters),
            notices: hash(Key::Notices),
            history: match entry(Key::History).map(|entry| &*entry.content) {
                Some(Content::List(entries)) => entries.iter().map(|entry| text(entry)).collect(),
                _ => Vec::new(),
            },
        }
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn bytes<T: AsRef<str>>(words: &[T]) -> Vec<Bytes> {
    words
        .iter()
        .map(|word| word.as_ref().as_bytes().to_vec())
        .collect()
}

impl Simulated for Memory {
    fn set_clock(&mut self, to: i64) {
        self.moment.clock_us = to;
    }

    fn clear(&mut self) {
        self.data = Data::new();
        self.moment = Moment::at(START);
        self.moment.started_us = START;
        self.calls = 0;
    }

    fn call(&mut self, call: &Call) -> Called {
        let Self {
            sources,
            interpreter,
            data,
            moment,
            calls,
        } = self;
        *calls += 1;
        assert!(*calls <= MOST_CALLS, "the run doesn't end");
        let words: Vec<&str> = call.args.iter().map(String::as_str).collect();
        let done = match (call.script, &words[..]) {
            (Some(name), args) => {
                let keys = bytes(&keys_of(name, &KEYS));
                interpreter.eval(data, moment, sources[name], &keys, &bytes(args))
            }
            (None, ["EVAL", PLAIN_RELEASE, "1", key, token]) => interpreter.eval(
                data,
                moment,
                PLAIN_RELEASE,
                &bytes(&[key]),
                &bytes(&[token]),
            ),
            // That the server says something is enough.
            (None, ["PING"]) => data.command(moment, &[b"TIME"]),
            (None, words) => {
                let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
                data.command(moment, &words)
            }
        };
        let heard = done
            .heard
            .iter()
            .map(|(channel, message)| (text(channel), text(message)));
        let heard = heard.collect();
        let answer = match done.answer {
            Value::ServerError(error) => Err(format!("{error:?}")),
            value => Ok(value),
        };
        (answer, self.view(), heard)
    }

    fn size(&mut self) -> Vec<String> {
        let (now, data) = (self.moment.now_ms(), &self.data);
        let keys = data
            .entries()
            .filter(|(key, _)| data.get(now, key).is_some());
        keys.map(|(key, _)| text(key)).collect()
    }

    fn listen(&mut self, channel: &str) {
        self.moment.listeners.insert(channel.into(), 1);
    }

    fn stop_listening(&mut self, channel: &str) {
        self.moment.listeners.remove(channel.as_bytes());
    }
}

/// A real server and one in memory, which have to do the same.
pub struct Both {
    real: Server,
    memory: Memory,
    pub calls: usize,
}

impl Both {
    pub fn start() -> Self {
        Self {
            real: Server::with(IN_ORDER),
            memory: Memory::new(SCRIPTS.into()),
            calls: 0,
        }
    }
}

impl Simulated for Both {
    fn set_clock(&mut self, to: i64) {
        self.real.set_clock(to);
        self.memory.set_clock(to);
    }

    fn clear(&mut self) {
        self.real.clear();
        self.memory.clear();
    }

    fn call(&mut self, call: &Call) -> Called {
        self.calls += 1;
        let real = self.real.call(call);
        let memory = self.memory.call(call);
        if call.args != ["PING"] {
            assert_eq!(real.0, memory.0, "{call:?}");
        }
        assert_eq!(real.1, memory.1, "{call:?}");
        assert_eq!(real.2, memory.2, "{call:?}");
        real
    }

    fn size(&mut self) -> Vec<String> {
        let (mut real, memory) = (self.real.size(), self.memory.size());
        real.sort();
        assert_eq!(real, memory);
        real
    }

    fn listen(&mut self, channel: &str) {
        self.real.listen(channel);
        self.memory.listen(channel);
    }

    fn stop_listening(&mut self, channel: &str) {
        self.real.stop_listening(channel);
        self.memory.stop_listening(channel);
    }
}

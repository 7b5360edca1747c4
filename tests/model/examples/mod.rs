//! Examples of the protocol, in `examples/*.txt`: calls and their results, to read and to test. Each must have its written
//! results on a real server and on the one in memory. `UPDATE=1` writes the results. `examples/README.md` explains how to read
//! them.

mod show;

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use redis::Value;

use crate::protocol::model::digest::digest_of;
use crate::protocol::model::fake::deeds::{Deed, KEYS, keys_of, prolonging};
use crate::protocol::model::fake::memory::{Memory, Sources};
use crate::protocol::model::fake::server::START;
use crate::protocol::model::fake::{Outcome, Real};
use crate::protocol::model::redis::data::{Bytes, Data, Entry};
use crate::protocol::model::support::lua::{SCRIPTS, SHARED, WHO, id};

use self::show::{Names, Snapshot};

/// A deed, and its time in microseconds since 1970.
type Timed = (Deed, i64);

/// A call, and its line.
struct Step {
    line: usize,
    /// Several if the line stands for many calls.
    deeds: Vec<Timed>,
    script: Option<&'static str>,
    is_shown: bool,
    /// True if only the answer is shown, and a checksum of the rest.
    is_brief: bool,
}

/// Mark before an answer on the line of its call.
const ANSWER: &str = "  -> ";

/// Length of the longest such line, in bytes; longer answers have lines of their own.
const WIDTH: usize = 120;

/// An example, which begins on an empty server.
struct Example {
    title: String,
    steps: Vec<Step>,
}

struct File {
    path: PathBuf,
    /// Lines without the results of the calls.
    lines: Vec<String>,
    text: String,
    examples: Vec<Example>,
    names: Names,
}

impl File {
    fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<String> = text
            .lines()
            .filter(|line| !line.starts_with(' '))
            .map(|line| line.split(ANSWER).next().unwrap_or(line).to_owned())
            .collect();
        let mut names = Names::default();
        let mut examples: Vec<Example> = Vec::new();
        for (n, line) in lines.iter().enumerate() {
            if let Some(title) = line.strip_prefix("# ") {
                let (title, steps) = (title.to_owned(), Vec::new());
                examples.push(Example { title, steps });
            } else if line.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                let step = step(n, line, &mut names)
                    .unwrap_or_else(|what| panic!("{}: {line}: {what}", path.display()));
                examples.last_mut().expect("a title").steps.push(step);
            }
        }
        Self {
            path,
            lines,
            text,
            examples,
            names,
        }
    }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/model/examples")
}

fn files() -> Vec<File> {
    let entries = fs::read_dir(directory()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    paths.into_iter().map(File::read).collect()
}

/// Returns the words of a line; a word in backquotes may contain spaces.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quoted, mut empty) = (false, true);
    for c in text.chars() {
        match c {
            '`' => (quoted, empty) = (!quoted, false),
            ' ' if !quoted => {
                if !empty {
                    words.push(String::new());
                }
                empty = true;
            }
            _ => {
                words.last_mut().unwrap().push(c);
                empty = false;
            }
        }
    }
    if empty {
        words.pop();
    }
    words
}

/// Arguments of scripts after the common ones: names, and defaults if there are any.
const PARAMETERS: [(&str, &str); 15] = [
    ("take", "token ttl=10s limit=1 who="),
    ("free", "token by_job=0 how=status:0"),
    (
        "acquire",
        "token ttl=10s limit=1 who= place= ticket= supersede=0 order= once=0 repair=0 sync= waiting=",
    ),
    ("renew", "token ttl=10s notify=0"),
    ("check", "token ttl=0"),
    ("release", "token by_job=0 how=status:0 keep=0 answered="),
    ("guard", "token guard who={g1} insist=0"),
    ("leave", "token guard"),
    ("keep", "token ttl=10s"),
    ("prolong", "token ttl=10s"),
    ("force", "id by={op} holders=0 waiters=0"),
    ("stop", "id by={op} holders=0"),
    ("freeze", "long who={op}"),
    ("skip", "why ms=0 who={t1} by="),
    ("inspect", "holders=0 waiters=-inf"),
];

fn parameters(script: &str) -> Vec<(&'static str, Option<&'static str>)> {
    let all = PARAMETERS.iter().find(|(name, _)| *name == script);
    let words = all.into_iter().flat_map(|(_, words)| words.split(' '));
    let parts = words.map(|word| match word.split_once('=') {
        Some((name, default)) => (name, Some(default)),
        None => (word, None),
    });
    parts.collect()
}

fn step(line: usize, text: &str, names: &mut Names) -> Result<Step, String> {
    let (time, rest) = text.split_once(' ').ok_or("a time and a call")?;
    let brief = rest.trim().strip_suffix(" …");
    let rest = brief.unwrap_or(rest.trim());
    let at = show::duration(time).ok_or("a time")?;
    let at = START + at * 1000;
    let quiet = rest
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'));
    let mut deeds = Vec::new();
    let many = rest.strip_prefix('x').and_then(|rest| {
        let (number, rest) = rest.split_once(' ')?;
        Some((number.parse::<usize>().ok()?, rest))
    });
    let mut script = None;
    if let Some((number, rest)) = many {
        for n in 1..=number {
            let words = words(&rest.replace('$', &n.to_string()));
            deeds.push((deed(&words, names)?.0, at));
        }
    } else if let Some(quiet) = quiet {
        for words in quiet.split("; ").flat_map(calls) {
            deeds.push((deed(&words, names)?.0, at));
        }
    } else {
        let (deed, name) = deed(&words(rest), names)?;
        script = name;
        deeds.push((deed, at));
    }
    Ok(Step {
        line,
        deeds,
        script,
        is_shown: quiet.is_none() && many.is_none(),
        is_brief: brief.is_some(),
    })
}

/// Returns the calls that a part of a line in brackets stands for: `wait t2` subscribes, and then requests the lock.
fn calls(text: &str) -> Vec<Vec<String>> {
    let mut all = words(text);
    if all[0] != "wait" {
        return vec![all];
    }
    let listen = vec!["listen".to_owned(), all[1].clone()];
    all[0] = "acquire".to_owned();
    all.push("place=listen".to_owned());
    vec![listen, all]
}

fn deed(words: &[String], names: &mut Names) -> Result<(Deed, Option<&'static str>), String> {
    let refs: Vec<&str> = words.iter().map(String::as_str).collect();
    let channel = |token: &str| format!("{{redlock:a}}:{}", id(token));
    let command = |name: &str| {
        let mut all = crate::protocol::model::redis::commands::names();
        all.find(|other| *other == name)
            .ok_or_else(|| format!("no command {name}"))
    };
    let deed = match refs[..] {
        [] => return Err("nothing".into()),
        ["listen", token] => Deed::Listen(channel(token), true),
        ["unlisten", token] => Deed::Listen(channel(token), false),
        ["listen-shard", token] => Deed::ListenInShard(channel(token), true),
        ["unlisten-shard", token] => Deed::ListenInShard(channel(token), false),
        // Each write of the lock's key sends a message, as to a run that tracks the key.
        ["track", "lock"] => Deed::Listen("__keyspace@0__:redlock:a".into(), true),
        ["full"] => Deed::Full(true),
        ["not-full"] => Deed::Full(false),
        ["replica"] => Deed::Replica(true),
        ["primary"] => Deed::Replica(false),
        ["forbid", name] => Deed::Permit(command(name)?, false),
        ["permit", name] => Deed::Permit(command(name)?, true),
        // Words with a `$` are repeated, with a number replacing the `$`.
        ["redis", ref words @ .., "times", number] => {
            let number: usize = number.parse().map_err(|_| "how often?")?;
            let (often, once): (Vec<&str>, Vec<&str>) =
                words.iter().partition(|word| word.contains('$'));
            let once = once.into_iter().map(show::read);
            let often = (1..=number).flat_map(|n| {
                let words = often.iter();
                words.map(move |word| word.replace('$', &n.to_string()))
            });
            let often = often.map(|word| show::read(&word));
            Deed::Command(once.chain(often).map(String::into_bytes).collect())
        }
        ["redis", ref words @ ..] => {
            let words = words.iter().map(|word| show::read(word).into_bytes());
            Deed::Command(words.collect())
        }
        [name, ..] => {
            let shipped = SCRIPTS.iter().find(|(script, _)| *script == name);
            let (script, _) = shipped.ok_or_else(|| format!("no script {name}"))?;
            let args = arguments(script, &refs[1..], names)?;
            let args = args.into_iter().map(String::into_bytes).collect();
            return Ok((Deed::Script(script, args), Some(script)));
        }
    };
    Ok((deed, None))
}

fn arguments(script: &str, words: &[&str], names: &mut Names) -> Result<Vec<String>, String> {
    let parameters = parameters(script);
    let mut given: BTreeMap<&str, String> = BTreeMap::new();
    for (n, word) in words.iter().enumerate() {
        let pair = word.split_once('=').filter(|(name, _)| {
            parameters.iter().any(|(other, _)| other == name) || ["history", "args"].contains(name)
        });
        let (name, value) = match pair {
            Some(pair) => pair,
            None if n == 0 && !parameters.is_empty() => (parameters[0].0, *word),
            None => return Err(format!("what is {word}?")),
        };
        let value = match (name, value) {
            ("limit", "shared") => SHARED.to_owned(),
            ("ttl" | "once" | "keep" | "long" | "ms", value) => {
                show::duration(value).map_or_else(|| show::read(value), |ms| ms.to_string())
            }
            _ => show::read(value),
        };
        given.insert(name, value);
    }
    if let Some(token) = given.get("token") {
        names.know(token);
    }
    if script == "prolong" {
        let (token, ttl) = (&given["token"], given.get("ttl"));
        let ttl = ttl.map_or("10000", String::as_str);
        return Ok(prolonging(token, ttl));
    }
    let mut args = Vec::new();
    if script != "keep" {
        let history = given.get("history").map_or("200", String::as_str);
        args = vec![
            "a".to_owned(),
            "{redlock:a}:".to_owned(),
            history.to_owned(),
        ];
    }
    for &(name, default) in &parameters {
        let value = match (given.get(name), default) {
            (Some(value), _) => value.clone(),
            (None, Some(_)) if name == "who" && ["take", "acquire"].contains(&script) => {
                show::read(&format!("{{{}}}", given["token"]))
            }
            (None, Some("10s")) => "10000".to_owned(),
            (None, Some(default)) => show::read(default),
            (None, None) => return Err(format!("no {name}")),
        };
        args.push(value);
    }
    // Like clients, leaves out rarely used arguments at the end.
    let rare = ["sync", "waiting", "answered"];
    let mut names = parameters.iter().rev().map(|(name, _)| *name);
    while ["acquire", "release"].contains(&script)
        && names.next().is_some_and(|name| rare.contains(&name))
        && args.last().is_some_and(String::is_empty)
    {
        args.pop();
    }
    if let Some(most) = given.get("args") {
        args.truncate(most.parse().map_err(|_| "a number")?);
    }
    Ok(args)
}

/// Returns the text of a file with its results in memory and, if there is one, on a real server.
fn written(file: &File, fake: &mut Memory, mut real: Option<&mut Real>) -> String {
    let mut results: BTreeMap<usize, String> = BTreeMap::new();
    for example in &file.examples {
        fake.clear();
        if let Some(real) = &mut real {
            real.clear();
        }
        let mut before = Snapshot::default();
        for step in &example.steps {
            for (deed, at) in &step.deeds {
                let outcome = fake.perform(deed, *at);
                if let Some(real) = &mut real {
                    let theirs = real.perform(deed, *at);
                    let place = format!("{}: {}", example.title, file.lines[step.line]);
                    assert_eq!(outcome, theirs, "{place}");
                }
                let Some(outcome) = outcome else { continue };
                let after = Snapshot::of(&outcome, *at / 1000);
                if step.is_shown {
                    let mut result =
                        show::result(&file.names, step.script, &outcome, &before, &after, *at);
                    if step.is_brief {
                        let lines = result.lines();
                        let (answer, rest): (Vec<&str>, Vec<&str>) =
                            lines.partition(|line| line.contains(" -> "));
                        let checksum = digest_of(&rest) & 0xffff;
                        result = format!("{} …{checksum:04x}\n", answer.join("\n"));
                    }
                    results.insert(step.line, result);
                }
                before = after;
            }
        }
    }
    let mut text = String::new();
    for (n, line) in file.lines.iter().enumerate() {
        text += line;
        let result = results.get(&n).map_or("", String::as_str);
        let answer = result.strip_prefix("      ").filter(|rest| {
            let answer = rest.lines().next().unwrap_or("");
            answer.starts_with(ANSWER) && line.len() + answer.len() <= WIDTH
        });
        text += answer.map_or("\n", |_| "");
        text += answer.unwrap_or(result);
    }
    text
}

#[test]
fn every_example_of_the_protocol_comes_out_as_it_is_written() {
    let (mut fake, mut real) = (Memory::new(SCRIPTS.into()), Real::start());
    for file in files() {
        let text = written(&file, &mut fake, Some(&mut real));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file.path, text).unwrap();
        } else {
            similar(&file, &text);
        }
    }
}

fn similar(file: &File, text: &str) {
    let name = file.path.display();
    for (n, (ours, theirs)) in file.text.lines().zip(text.lines()).enumerate() {
        assert_eq!(ours, theirs, "{name}:{}", n + 1);
    }
    assert_eq!(file.text.len(), text.len(), "{name}");
}

type Expectation = (Timed, Option<Outcome>);

/// Results of each call with the shipped scripts, for comparison with other scripts.
pub struct Expected {
    /// Title of each example, with its deeds and their results.
    examples: Vec<(String, Vec<Expectation>)>,
    /// Order in which examples are tried: first those that have detected changed scripts before.
    order: Mutex<Vec<usize>>,
}

impl Expected {
    pub fn of_the_scripts() -> Self {
        let mut fake = Memory::new(SCRIPTS.into());
        let mut examples = Vec::new();
        for example in files().into_iter().flat_map(|file| file.examples) {
            fake.clear();
            let deeds = example.steps.into_iter().flat_map(|step| step.deeds);
            let outcomes = deeds.map(|(deed, at)| {
                let outcome = fake.perform(&deed, at);
                ((deed, at), outcome)
            });
            let outcomes = outcomes.collect();
            examples.push((example.title, outcomes));
        }
        let order = Mutex::new((0..examples.len()).collect());
        Self { examples, order }
    }

    /// Returns the title of an example with different results under these scripts.
    pub fn broken_by(&self, sources: &Sources) -> Option<&str> {
        let mut fake = Memory::new(sources.clone());
        let order = self.order.lock().unwrap().clone();
        let broken = order.into_iter().find(|&n| {
            let differs = catch_unwind(AssertUnwindSafe(|| {
                fake.clear();
                self.examples[n]
                    .1
                    .iter()
                    .any(|((deed, at), expected)| fake.perform(deed, *at) != *expected)
            }));
            differs.unwrap_or(true)
        })?;
        let mut order = self.order.lock().unwrap();
        let place = order.iter().position(|&n| n == broken).unwrap();
        order[..=place].rotate_right(1);
        Some(&self.examples[broken].0)
    }
}

/// Returns the pairs of a short script and the whole one, with their arguments for a token.
fn short_and_whole(token: &str) -> [(&'static str, Vec<String>, &'static str, Vec<String>); 3] {
    let common = ["a", "{redlock:a}:", "200", token];
    let words = |more: &[&str]| -> Vec<String> {
        let all = common.iter().chain(more);
        all.map(|&word| word.to_owned()).collect()
    };
    let acquire = words(&["10000", "1", WHO, "", "", "0", "", "0", "0"]);
    let release = words(&["0", "status:0", "0"]);
    let prolong = prolonging(token, "10000");
    [
        ("prolong", prolong, "renew", words(&["10000", "0"])),
        ("take", acquire.clone(), "acquire", acquire),
        ("free", release.clone(), "release", release),
    ]
}

/// Compares each short script with the whole one, for four tokens. Returns the names of those that did something.
fn compare_short_and_whole(memory: &Memory) -> Vec<&'static str> {
    let mut before = memory.data.clone();
    before.forget_expired(memory.moment.now_ms());
    let call = |script, args: Vec<String>| {
        let args: Vec<Bytes> = args.into_iter().map(String::into_bytes).collect();
        let (mut data, keys) = (before.clone(), keys_of(script, &args));
        let (interpreter, source) = (&memory.interpreter, memory.sources[script]);
        let done = interpreter.eval(&mut data, &memory.moment, source, &keys, &args);
        (done, data)
    };
    let mut did = Vec::new();
    let calls = ["t1", "t2", "t3", "t4"]
        .into_iter()
        .flat_map(short_and_whole);
    for (short, args, whole, words) in calls {
        let (quick, data) = call(short, args);
        if quick.answer == Value::Int(0) {
            assert_eq!(data, before, "{short}");
        }
        if matches!(quick.answer, Value::Int(0) | Value::ServerError(_)) {
            continue;
        }
        let (thorough, others) = call(whole, words);
        // The whole script makes more calls, which the server may not permit.
        if matches!(thorough.answer, Value::ServerError(_)) && !memory.moment.denied.is_empty() {
            continue;
        }
        did.push(short);
        let expected = match (short, &thorough.answer) {
            ("prolong", Value::Array(fields)) => {
                // The fencing token may have any value.
                let [one, ttl] = [1, 10_000].map(Value::Int);
                let fence = fields[2].clone();
                let held = [one.clone(), ttl, fence, one.clone(), one, Value::Nil];
                assert_eq!(fields[..], held);
                &Value::Int(10_000)
            }
            (_, answer) => answer,
        };
        assert_eq!(&quick.answer, expected, "{short}");
        assert_eq!(quick.heard, thorough.heard, "{short}");
        assert_eq!(for_now(&data), for_now(&others), "{short}");
    }
    did
}

/// Returns all keys except those that only a whole script refreshes, once a day.
fn for_now(data: &Data) -> BTreeMap<&[u8], &Entry> {
    let [_, state, _, _, _, _, history, index, ..] = KEYS.map(str::as_bytes);
    let keys = data.entries();
    keys.filter(|(key, _)| ![state, history, index].contains(key))
        .collect()
}

#[test]
fn a_short_script_does_the_same_as_the_whole_one_or_nothing() {
    let mut memory = Memory::new(SCRIPTS.into());
    let mut did = Vec::new();
    for example in files().into_iter().flat_map(|file| file.examples) {
        memory.clear();
        for Step { deeds, .. } in example.steps {
            let few = deeds.len() < 10;
            for (n, (deed, clock)) in deeds.into_iter().enumerate() {
                if few || n == 0 {
                    memory.moment.clock_us = clock;
                    did.extend(compare_short_and_whole(&memory));
                }
                memory.perform(&deed, clock);
            }
        }
        did.extend(compare_short_and_whole(&memory));
    }
    for short in ["prolong", "take", "free"] {
        let count = did.iter().filter(|name| **name == short).count();
        assert!(count > 50, "{short}: {count}");
    }
}

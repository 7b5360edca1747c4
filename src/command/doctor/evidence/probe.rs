//! What this user may do on a server: each command that redlock uses is tried, on keys of a name of our own.
//!
//! A server checks the command before the keys and the channels, and all of them before anything is done. So
//! one key is enough for all commands: it is a string, at which the commands for other types fail, and
//! nothing is left of it.

use super::answers::{Refused, is_unknown, question, refused};
use super::facts::{Probe, Subject, Verdict};
use crate::protocol::{Answer, KeyNames, Question};

/// A command, and what its answer says something about.
pub(super) struct Attempt {
    subjects: Vec<Subject>,
    pub(super) words: Question,
}

/// A command without which nothing works.
fn needed(name: &'static str, words: &[&str]) -> Attempt {
    Attempt {
        subjects: vec![Subject::Command(name)],
        words: question(words),
    }
}

/// One without which something is slower.
fn optional(name: &'static str, words: &[&str]) -> Attempt {
    Attempt {
        subjects: vec![Subject::Optional(name)],
        words: question(words),
    }
}

impl Attempt {
    /// The same, which says something about this, too.
    fn and(mut self, subject: Subject) -> Self {
        self.subjects.push(subject);
        self
    }
}

/// Commands that only look at a key, or fail at a string; what stands behind it.
const ON_A_KEY: &str = "get, getrange 0 0, exists, type, pttl, pexpire 5000, hget f, hmget f, \
    hscan 0, hdel f, zrem m, zrange 0 0, zrank m, zscan 0, \
    zscore m, zcard, zrangebyscore 0 0, zremrangebyscore 0 0, ltrim 0 0, lrange 0 0";

/// The commands that don't create anything; the first one creates the key that the others are about.
/// `is_node`: the server is used as a node of a cluster.
pub(super) fn questions(keys: &KeyNames, is_node: bool) -> Vec<Attempt> {
    let (of_lock, beside) = &keys.starts;
    let (state, channels) = (keys.state.as_str(), keys.channels.as_str());
    let at = |(name, rest): (&'static str, &str), key: &str, start: &str| {
        let rest = rest.split_whitespace();
        let words: Vec<&str> = [name, key].into_iter().chain(rest).collect();
        needed(name, &words).and(Subject::Keys(start.to_owned()))
    };
    // If it can't be removed, it is kept for this long.
    let mut asked = vec![at(("set", "doctor PX 5000"), state, beside)];
    let on_a_key = ON_A_KEY.split(", ");
    asked
        .extend(on_a_key.map(|line| at(line.split_once(' ').unwrap_or((line, "")), state, beside)));
    asked.extend([
        at(("exists", ""), &keys.lock, of_lock),
        at(("type", ""), &keys.lock, of_lock),
        at(("pttl", ""), &keys.index, beside),
        needed("time", &["TIME"]),
        needed("eval", &["EVAL", "return 1", "0"]),
        needed("evalsha", &["EVALSHA", &"0".repeat(40), "0"]),
        // Listeners pass this word over.
        optional("publish", &["PUBLISH", channels, "hello"]).and(Subject::Channels(beside.clone())),
        optional("role", &["ROLE"]),
        optional("info", &["INFO", "server"]),
        // For none it doesn't wait.
        optional("wait", &["WAIT", "0", "1"]),
        optional("client|tracking", &["CLIENT", "TRACKING", "OFF"]),
        optional("client|caching", &["CLIENT", "CACHING", "YES"]),
    ]);
    if is_node {
        asked.extend([
            optional("spublish", &["SPUBLISH", channels, "hello"])
                .and(Subject::Channels(beside.clone())),
            optional("cluster|nodes", &["CLUSTER", "NODES"]),
            optional("asking", &["ASKING"]),
        ]);
    }
    asked
}

/// These create something where the key isn't there.
const CREATING: [(&str, &[&str]); 3] = [
    ("hset", &["f", "v"]),
    ("zadd", &["0", "m"]),
    ("lpush", &["v"]),
];

/// What isn't known where they weren't tried.
pub(super) fn not_tried() -> impl Iterator<Item = Probe> {
    CREATING.into_iter().map(|(name, _)| Probe {
        subject: Subject::Command(name),
        verdict: Verdict::Unclear,
    })
}

/// How a database is chosen, where the URL has one.
pub(super) fn selecting(database: i64) -> Attempt {
    needed("select", &["SELECT", &database.to_string()])
}

/// How a waiter listens; in RESP2 that has an answer like any other command.
pub(super) fn listening(keys: &KeyNames, is_node: bool) -> Attempt {
    let name = if is_node { "ssubscribe" } else { "subscribe" };
    optional(name, &[name, &keys.channels]).and(Subject::Channels(keys.starts.1.clone()))
}

/// The commands that would create something if the key weren't there; the last one removes it.
pub(super) fn more_questions(keys: &KeyNames, is_there: bool) -> Vec<Attempt> {
    let state = keys.state.as_str();
    let creating = CREATING.into_iter().filter(|_| is_there);
    let creating = creating.map(|(name, rest)| needed(name, &[&[name, state][..], rest].concat()));
    // Where that isn't permitted, it goes by itself.
    let removing = [
        needed("unlink", &["UNLINK", state]),
        needed("pexpire", &["PEXPIRE", state, "1"]),
    ];
    creating.chain(removing).collect()
}

/// What the answers say, each subject once.
pub(super) fn verdicts(asked: &[Attempt], answers: &[Answer]) -> Vec<Probe> {
    let mut found: Vec<Probe> = Vec::new();
    for (question, answer) in asked.iter().zip(answers) {
        for subject in &question.subjects {
            let verdict = verdict(subject, answer);
            match found.iter_mut().find(|probe| probe.subject == *subject) {
                Some(known) => known.verdict = clearer(known.verdict, verdict),
                None => found.push(Probe {
                    subject: subject.clone(),
                    verdict,
                }),
            }
        }
    }
    found
}

fn clearer(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Unclear, other) => other,
        (one, Verdict::Unclear) => one,
        (Verdict::Permitted, other) => other,
        (one, _) => one,
    }
}

fn verdict(subject: &Subject, answer: &Answer) -> Verdict {
    let Some(refusal) = answer.refusal() else {
        return Verdict::Permitted;
    };
    let is_command = matches!(subject, Subject::Command(_) | Subject::Optional(_));
    match (subject, refused(refusal)) {
        _ if is_unknown(refusal) && is_command => Verdict::Missing,
        _ if is_unknown(refusal) => Verdict::Unclear,
        (Subject::Keys(_), Some(Refused::Keys))
        | (Subject::Channels(_), Some(Refused::Channels))
        | (Subject::Command(_) | Subject::Optional(_), Some(Refused::Command)) => Verdict::Denied,
        (_, None) | (Subject::Command(_) | Subject::Optional(_), _) => Verdict::Permitted,
        (Subject::Keys(_) | Subject::Channels(_), _) => Verdict::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use redis::parse_redis_value;

    use super::*;

    fn answer(line: &str) -> Answer {
        parse_redis_value(format!("{line}\r\n").as_bytes())
            .unwrap()
            .into()
    }

    #[test]
    fn each_command_of_the_rules_in_the_manual_is_tried() {
        let manual = std::fs::read_to_string("man/redlock-protocol.7").unwrap();
        let (_, rules) = manual.split_once("SETUSER jobs").unwrap();
        let (rules, _) = rules.split_once(".fi").unwrap();
        let rules: BTreeSet<String> = rules
            .split(|c: char| c.is_whitespace() || c == '\\')
            .filter_map(|word| word.strip_prefix('+').or(word.strip_prefix("(aq+")))
            .map(str::to_owned)
            // These are tried where they are used.
            .filter(|name| !["subscribe", "hello", "select"].contains(&name.as_str()))
            .collect();
        let keys = KeyNames::new("redlock:", &"doctor".parse().unwrap());
        let mut asked = questions(&keys, false);
        asked.extend(more_questions(&keys, true));
        let names = asked.iter().flat_map(|question| &question.subjects);
        let tried: BTreeSet<String> = names
            .filter_map(|subject| match subject {
                Subject::Command(name) | Subject::Optional(name) => Some((*name).to_owned()),
                Subject::Keys(_) | Subject::Channels(_) => None,
            })
            .collect();
        assert_eq!(tried, rules);

        // On a cluster those that the manual names beside them, too.
        let on_node = questions(&keys, true);
        let more: Vec<String> = on_node
            .iter()
            .flat_map(|question| &question.subjects)
            .map(Subject::rule)
            .filter(|rule| !tried.contains(rule.trim_start_matches('+')) && rule.starts_with('+'))
            .collect();
        assert_eq!(more, ["+spublish", "+cluster|nodes", "+asking"]);
        assert!(more.iter().all(|rule| manual.contains(rule.as_str())));
    }

    #[test]
    fn a_refusal_is_about_the_command_the_keys_or_the_channels() {
        let command = Subject::Command("get");
        let (keys, channels) = (Subject::Keys("p:".into()), Subject::Channels("{p:".into()));
        let no_command = "-NOPERM User jobs has no permissions to run the 'get' command";
        let no_key =
            "-NOPERM this user has no permissions to access one of the keys used as arguments";
        let no_channel = "-NOPERM No permissions to access a channel";
        let unknown = "-ERR unknown command 'GET', with args beginning with: ";
        for (subject, line, expected) in [
            (&command, "+OK", Verdict::Permitted),
            (
                &command,
                "-WRONGTYPE Operation against a key",
                Verdict::Permitted,
            ),
            (&command, no_command, Verdict::Denied),
            (&command, no_key, Verdict::Permitted),
            (&command, unknown, Verdict::Missing),
            (&keys, no_command, Verdict::Unclear),
            (&keys, no_key, Verdict::Denied),
            (&keys, unknown, Verdict::Unclear),
            (&channels, no_channel, Verdict::Denied),
            (&channels, no_command, Verdict::Unclear),
            (&channels, ":0", Verdict::Permitted),
        ] {
            assert_eq!(
                verdict(subject, &answer(line)),
                expected,
                "{subject:?} {line}"
            );
        }
    }

    #[test]
    fn of_several_answers_the_clearer_one_counts() {
        use Verdict::{Denied, Permitted, Unclear};
        for (one, other, both) in [
            (Unclear, Permitted, Permitted),
            (Permitted, Unclear, Permitted),
            (Permitted, Denied, Denied),
            (Denied, Permitted, Denied),
        ] {
            assert_eq!(clearer(one, other), both);
        }
    }
}

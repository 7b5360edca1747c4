//! What this user may do on a server: each command that redlock uses is tried, on keys of a name of our own.
//!
//! A server checks the command before the keys and the channels, and all of them before anything is done. So
//! one key is enough for all commands: it is a string, at which the commands for other types fail, and
//! nothing is left of it.

use redis::{Cmd, ServerError, ServerErrorKind, Value, cmd};

use super::super::error::key_starts;
use super::super::name::Keys;
use super::evidence::{Probe, Subject, Verdict};

/// A command, and what its answer says something about.
pub(super) struct Question {
    subjects: Vec<Subject>,
    pub(super) command: Cmd,
}

/// How long the key is kept if it can't be removed.
const KEPT_MS: u32 = 5000;

/// The commands that don't create anything; the first one creates the key that the others are about.
/// `is_node`: the server is used as a node of a cluster.
pub(super) fn questions(prefix: &str, keys: &Keys, is_node: bool) -> Vec<Question> {
    let (lock, beside) = key_starts(prefix);
    let state = keys.state.as_slice();
    let about = |name: &'static str| vec![Subject::Command(name)];
    let mut asked = vec![ask(
        [about("set"), vec![Subject::Keys(beside.clone())]].concat(),
        cmd("SET").arg(state).arg("doctor").arg("PX").arg(KEPT_MS),
    )];
    let plain: [(&'static str, &[&str]); 23] = [
        ("get", &[]),
        ("getrange", &["0", "0"]),
        ("exists", &[]),
        ("type", &[]),
        ("pttl", &[]),
        ("pexpire", &["5000"]),
        ("hget", &["f"]),
        ("hmget", &["f"]),
        ("hscan", &["0"]),
        ("hdel", &["f"]),
        ("zrem", &["m"]),
        ("zrange", &["0", "0"]),
        ("zrank", &["m"]),
        ("zscan", &["0"]),
        ("zscore", &["m"]),
        ("zcard", &[]),
        ("zrangebyscore", &["0", "0"]),
        ("zremrangebyscore", &["0", "0"]),
        ("ltrim", &["0", "0"]),
        ("lrange", &["0", "0"]),
        ("exists", &[]),
        ("type", &[]),
        ("pttl", &[]),
    ];
    for (at, (name, rest)) in plain.into_iter().enumerate() {
        // The last ones are about the lock itself, and the index.
        let (key, start) = match at {
            0..20 => (state, &beside),
            20 | 21 => (keys.lock.as_slice(), &lock),
            _ => (keys.index.as_slice(), &beside),
        };
        asked.push(ask(
            vec![Subject::Command(name), Subject::Keys(start.clone())],
            cmd(name).arg(key).arg(rest),
        ));
    }
    asked.extend([
        ask(about("time"), &mut cmd("TIME")),
        ask(about("eval"), cmd("EVAL").arg("return 1").arg(0)),
        ask(about("evalsha"), cmd("EVALSHA").arg("0".repeat(40)).arg(0)),
        ask(
            vec![
                Subject::Optional("publish"),
                Subject::Channels(beside.clone()),
            ],
            // Listeners pass this word over.
            cmd("PUBLISH").arg(keys.channels.as_slice()).arg("hello"),
        ),
        ask(vec![Subject::Optional("role")], &mut cmd("ROLE")),
        ask(vec![Subject::Optional("info")], cmd("INFO").arg("server")),
        // For none it doesn't wait.
        ask(vec![Subject::Optional("wait")], cmd("WAIT").arg(0).arg(1)),
        ask(
            vec![Subject::Optional("client|tracking")],
            cmd("CLIENT").arg("TRACKING").arg("OFF"),
        ),
        ask(
            vec![Subject::Optional("client|caching")],
            cmd("CLIENT").arg("CACHING").arg("YES"),
        ),
    ]);
    if is_node {
        asked.extend([
            ask(
                vec![Subject::Optional("spublish"), Subject::Channels(beside)],
                cmd("SPUBLISH").arg(keys.channels.as_slice()).arg("hello"),
            ),
            ask(
                vec![Subject::Optional("cluster|nodes")],
                cmd("CLUSTER").arg("NODES"),
            ),
            ask(vec![Subject::Optional("asking")], &mut cmd("ASKING")),
        ]);
    }
    asked
}

/// These create something where the key isn't there.
const CREATING: [&str; 3] = ["hset", "zadd", "lpush"];

/// What isn't known where they weren't tried.
pub(super) fn not_tried() -> impl Iterator<Item = Probe> {
    CREATING.into_iter().map(|name| Probe {
        subject: Subject::Command(name),
        verdict: Verdict::Unclear,
    })
}

/// How a database is chosen, where the URL has one.
pub(super) fn selecting(database: i64) -> Question {
    ask(
        vec![Subject::Command("select")],
        cmd("SELECT").arg(database),
    )
}

/// How a waiter listens; in RESP2 that has an answer like any other command.
pub(super) fn listening(prefix: &str, keys: &Keys, is_node: bool) -> Question {
    let (_, beside) = key_starts(prefix);
    let name = if is_node { "ssubscribe" } else { "subscribe" };
    ask(
        vec![Subject::Optional(name), Subject::Channels(beside)],
        cmd(name).arg(keys.channels.as_slice()),
    )
}

/// The commands that would create something if the key weren't there; the last one removes it.
pub(super) fn more_questions(keys: &Keys, is_there: bool) -> Vec<Question> {
    let state = keys.state.as_slice();
    let about = |name: &'static str| vec![Subject::Command(name)];
    let mut asked = Vec::new();
    if is_there {
        let [hset, zadd, lpush] = CREATING.map(|name| (about(name), cmd(name)));
        asked.extend([
            ask(hset.0, hset.1.clone().arg(state).arg("f").arg("v")),
            ask(zadd.0, zadd.1.clone().arg(state).arg(0).arg("m")),
            ask(lpush.0, lpush.1.clone().arg(state).arg("v")),
        ]);
    }
    // Where that isn't permitted, it goes by itself.
    asked.push(ask(about("unlink"), cmd("UNLINK").arg(state)));
    asked.push(ask(about("pexpire"), cmd("PEXPIRE").arg(state).arg(1)));
    asked
}

fn ask(subjects: Vec<Subject>, command: &mut Cmd) -> Question {
    Question {
        subjects,
        command: command.clone(),
    }
}

/// What the answers say, each subject once.
pub(super) fn verdicts(asked: &[Question], answers: &[Value]) -> Vec<Probe> {
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

/// What a refusal is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refused {
    Command,
    Keys,
    Channels,
}

fn refused(error: &ServerError) -> Option<Refused> {
    if error.kind() != Some(ServerErrorKind::NoPerm) {
        return None;
    }
    let details = error.details().unwrap_or_default();
    Some(if details.contains("to run the") {
        Refused::Command
    } else if details.contains("channel") {
        Refused::Channels
    } else {
        Refused::Keys
    })
}

/// Whether a server doesn't know a command.
pub(super) fn is_unknown(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default().to_lowercase();
    details.contains("unknown command") || details.contains("unknown subcommand")
}

/// Whether the command itself was refused.
pub(super) fn is_denied(error: &ServerError) -> bool {
    refused(error) == Some(Refused::Command)
}

fn verdict(subject: &Subject, answer: &Value) -> Verdict {
    let Value::ServerError(error) = answer else {
        return Verdict::Permitted;
    };
    let is_command = matches!(subject, Subject::Command(_) | Subject::Optional(_));
    match (subject, refused(error)) {
        _ if is_unknown(error) && is_command => Verdict::Missing,
        _ if is_unknown(error) => Verdict::Unclear,
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

    fn answer(line: &str) -> Value {
        parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap()
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
        let keys = Keys::new("redlock:", &"doctor".parse().unwrap());
        let mut asked = questions("redlock:", &keys, false);
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
        let on_node = questions("redlock:", &keys, true);
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

//! Locks as metrics, in the text format of Prometheus. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use super::age;
use crate::protocol::{Hold, Inspected, RESULTS, Renewal};

/// What the metrics say of a lock.
#[derive(Clone, Debug, Default)]
pub struct Sample<'a> {
    name: &'a str,
    holders: usize,
    /// For how long it has been held; `None` where that isn't known.
    held: Option<Duration>,
    waiters: usize,
    waited: Duration,
    is_frozen: bool,
    guards: usize,
    /// How long ago the lease was renewed that was renewed least recently, where that is known.
    renewed: Option<Duration>,
    /// How many holds, or runs, ended, by result.
    ended: Vec<(&'a str, u64)>,
    /// When a run last succeeded, in milliseconds since 1970, where that is known.
    succeeded_ms: Option<u64>,
}

impl<'a> Sample<'a> {
    pub fn new(lock: &'a Inspected) -> Self {
        let holders = lock.holders().count();
        let ago = |hold: &Hold| match hold.renewal() {
            Renewal::Ago(ago) | Renewal::Overdue(ago) => Some(ago),
            Renewal::Unknown | Renewal::None => None,
        };
        Self {
            name: lock.name.as_str(),
            holders,
            held: match holders {
                0 => Some(Duration::ZERO),
                _ => age::held(lock),
            },
            waiters: lock.waiters.len() + lock.grants().count(),
            waited: age::waited(lock).unwrap_or_default(),
            is_frozen: lock.frozen.is_some(),
            guards: lock.holds().iter().map(|hold| hold.guards.len()).sum(),
            renewed: lock.holders().filter_map(ago).max(),
            ended: RESULTS.into_iter().zip(lock.record.ended).collect(),
            succeeded_ms: lock.record.succeeded_ms,
        }
    }
}

/// A metric that has one value a lock.
struct Metric {
    name: &'static str,
    help: &'static str,
    value: fn(&Sample) -> Option<f64>,
}

const METRICS: [Metric; 8] = [
    Metric {
        name: "redlock_held",
        help: "How many holders the lock has.",
        value: |lock| Some(count(lock.holders)),
    },
    Metric {
        name: "redlock_held_seconds",
        help: "For how long the oldest holder has held the lock; 0 if it is free.",
        value: |lock| lock.held.map(seconds),
    },
    Metric {
        name: "redlock_waiting",
        help: "How many runs wait for the lock.",
        value: |lock| Some(count(lock.waiters)),
    },
    Metric {
        name: "redlock_oldest_wait_seconds",
        help: "For how long the oldest waiter has waited for the lock; 0 if nobody waits.",
        value: |lock| Some(seconds(lock.waited)),
    },
    Metric {
        name: "redlock_frozen",
        help: "1 if the lock is frozen, so that it admits no new holder; else 0.",
        value: |lock| Some(f64::from(u8::from(lock.is_frozen))),
    },
    Metric {
        name: "redlock_guards",
        help: "How many guards work elsewhere under the lock.",
        value: |lock| Some(count(lock.guards)),
    },
    Metric {
        name: "redlock_last_renewal_seconds",
        help: "How long ago the lease was renewed; of several leases, the one renewed least recently.",
        value: |lock| lock.renewed.map(seconds),
    },
    Metric {
        name: "redlock_last_success_timestamp_seconds",
        help: "When a run last succeeded, in seconds since 1970.",
        value: |lock| lock.succeeded_ms.map(timestamp),
    },
];

/// The metrics of locks that were read at this moment, in milliseconds since 1970.
pub fn text(locks: &[Sample], now_ms: u64) -> String {
    let mut text = up(true);
    let name = "redlock_last_scrape_timestamp_seconds";
    let help = "When redlock read the locks, in seconds since 1970.";
    let line = format!("{name} {}\n", timestamp(now_ms));
    add(&mut text, (name, "gauge", help), &line);
    let names: Vec<String> = locks.iter().map(|lock| quoted(lock.name)).collect();
    for metric in &METRICS {
        let mut lines = String::new();
        for (lock, name) in locks.iter().zip(&names) {
            if let Some(value) = (metric.value)(lock) {
                let _ = writeln!(lines, "{}{{lock={name}}} {value}", metric.name);
            }
        }
        add(&mut text, (metric.name, "gauge", metric.help), &lines);
    }
    let name = "redlock_runs_total";
    let help = "How many holds ended, by result; skipped: runs that ended without the lock.";
    let mut lines = String::new();
    for (lock, of) in locks.iter().zip(&names) {
        for (result, count) in &lock.ended {
            let result = quoted(result);
            let _ = writeln!(lines, "{name}{{lock={of},result={result}}} {count}");
        }
    }
    add(&mut text, (name, "counter", help), &lines);
    text
}

/// All that is known where Redis didn't answer.
pub fn down() -> String {
    up(false)
}

fn up(is_up: bool) -> String {
    let mut text = String::new();
    let name = "redlock_up";
    let line = format!("{name} {}\n", u8::from(is_up));
    add(
        &mut text,
        (name, "gauge", "1 if Redis answered, else 0."),
        &line,
    );
    text
}

/// Adds the lines of a metric, if there are any, below its name, its type and what it means.
fn add(text: &mut String, (name, kind, help): (&str, &str, &str), lines: &str) {
    if !lines.is_empty() {
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    }
}

/// The value of a label.
fn quoted(value: &str) -> String {
    let value = value.replace('\\', r"\\");
    let value = value.replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{value}\"")
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

fn timestamp(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

fn count(number: usize) -> f64 {
    u32::try_from(number).unwrap_or(u32::MAX).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::tests::cases;

    /// The name of a metric, its labels, and their value.
    type Value = (String, Vec<(String, String)>, f64);

    /// A line of the text format.
    #[derive(Debug, PartialEq)]
    enum Parsed {
        Help(String),
        Type(String, String),
        Value(Value),
    }

    fn is_metric(name: &str) -> bool {
        let is_letter = |c: char| c.is_ascii_alphabetic() || "_:".contains(c);
        name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
    }

    /// Reads a line as the format is defined, a label's value without its escapes; `None` where it isn't of the format.
    fn parse(line: &str) -> Option<Parsed> {
        if let Some(comment) = line.strip_prefix("# ") {
            let (kind, rest) = comment.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            return match kind {
                "HELP" if is_metric(name) => Some(Parsed::Help(name.into())),
                "TYPE" if ["gauge", "counter"].contains(&rest) => {
                    Some(Parsed::Type(name.into(), rest.into()))
                }
                _ => None,
            };
        }
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                let (label, after) = rest.split_once("=\"")?;
                let mut value = String::new();
                let mut characters = after.char_indices();
                let end = loop {
                    match characters.next()? {
                        (at, '"') => break at,
                        (_, '\\') => value.push(match characters.next()?.1 {
                            'n' => '\n',
                            c @ ('\\' | '"') => c,
                            _ => return None,
                        }),
                        (_, c) => value.push(c),
                    }
                };
                labels.push((label.to_owned(), value));
                let after = &after[end + 1..];
                if let Some(after) = after.strip_prefix('}') {
                    rest = after;
                    break;
                }
                rest = after.strip_prefix(',')?;
            }
        }
        let value = rest.strip_prefix(' ')?.parse().ok()?;
        is_metric(name).then(|| Parsed::Value((name.into(), labels, value)))
    }

    /// The values, where all of the text is of the format: each metric has its HELP and TYPE right before its values,
    /// which stand together, and no two values have the same labels.
    #[track_caller]
    fn values(text: &str) -> Vec<Value> {
        assert!(text.ends_with('\n'), "{text:?}");
        let (mut values, mut known) = (Vec::new(), BTreeSet::new());
        let mut current = String::new();
        // Not `lines`, which would take a carriage return away.
        let mut lines = text.strip_suffix('\n').unwrap().split('\n').peekable();
        while let Some(line) = lines.next() {
            match parse(line) {
                Some(Parsed::Help(name)) => {
                    assert!(known.insert((name.clone(), Vec::new())), "again: {line}");
                    let next = lines.next().and_then(parse);
                    let kind = if name.ends_with("_total") {
                        "counter"
                    } else {
                        "gauge"
                    };
                    assert_eq!(next, Some(Parsed::Type(name.clone(), kind.into())));
                    assert!(lines.peek().is_some_and(|line| line.starts_with(&name)));
                    current = name;
                }
                Some(Parsed::Value((name, labels, value))) => {
                    assert_eq!(name, current, "{text}");
                    let is_new = known.insert((name.clone(), labels.clone()));
                    assert!(is_new || labels.is_empty(), "twice: {line}");
                    values.push((name, labels, value));
                }
                Some(Parsed::Type(..)) | None => panic!("not of the format: {line:?}"),
            }
        }
        values
    }

    fn free(name: &str) -> Sample<'_> {
        Sample {
            name,
            held: Some(Duration::ZERO),
            ..Sample::default()
        }
    }

    #[test]
    fn a_held_lock_has_a_value_for_each_metric_and_a_free_one_for_those_that_are_known() {
        let held = Sample {
            name: "deploy",
            holders: 2,
            held: Some(Duration::from_millis(90_500)),
            waiters: 3,
            waited: Duration::from_secs(7),
            is_frozen: true,
            guards: 4,
            renewed: Some(Duration::from_millis(1_250)),
            ended: vec![("success", 12), ("lost", 1)],
            succeeded_ms: Some(1_795_000_000_250),
        };
        let text = text(&[free("backup"), held], 1_795_000_100_000);
        let ours = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(
            ours.collect::<Vec<_>>(),
            [
                "redlock_up 1",
                "redlock_last_scrape_timestamp_seconds 1795000100",
                "redlock_held{lock=\"backup\"} 0",
                "redlock_held{lock=\"deploy\"} 2",
                "redlock_held_seconds{lock=\"backup\"} 0",
                "redlock_held_seconds{lock=\"deploy\"} 90.5",
                "redlock_waiting{lock=\"backup\"} 0",
                "redlock_waiting{lock=\"deploy\"} 3",
                "redlock_oldest_wait_seconds{lock=\"backup\"} 0",
                "redlock_oldest_wait_seconds{lock=\"deploy\"} 7",
                "redlock_frozen{lock=\"backup\"} 0",
                "redlock_frozen{lock=\"deploy\"} 1",
                "redlock_guards{lock=\"backup\"} 0",
                "redlock_guards{lock=\"deploy\"} 4",
                "redlock_last_renewal_seconds{lock=\"deploy\"} 1.25",
                "redlock_last_success_timestamp_seconds{lock=\"deploy\"} 1795000000.25",
                "redlock_runs_total{lock=\"deploy\",result=\"success\"} 12",
                "redlock_runs_total{lock=\"deploy\",result=\"lost\"} 1",
            ]
        );
        values(&text);
    }

    #[test]
    fn without_an_answer_nothing_is_known_but_that() {
        let text = down();
        assert_eq!(values(&text), [("redlock_up".into(), Vec::new(), 0.0)]);
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn each_line_is_of_the_format_and_each_name_is_read_as_it_is(
            names in prop::collection::btree_set("[\"\\\\\n\r{},= a#é\u{2028}]{0,8}|\\PC{0,8}", 0..6),
            numbers in prop::collection::vec(any::<u64>(), 6),
            now_ms: u64,
        ) {
            let locks: Vec<Sample> = names.iter().zip(numbers).map(|(name, number)| Sample {
                holders: usize::try_from(number % 3).unwrap(),
                held: (number % 2 == 0).then_some(Duration::from_millis(number)),
                renewed: (number % 5 == 0).then_some(Duration::from_millis(number / 7)),
                ended: vec![("success", number), (name, 1)],
                succeeded_ms: (number % 3 == 0).then_some(number),
                ..free(name)
            }).collect();
            let values = values(&text(&locks, now_ms));
            let of_locks = values.iter().filter(|(metric, ..)| metric == "redlock_held");
            let found: Vec<&str> = of_locks.map(|(_, labels, _)| labels[0].1.as_str()).collect();
            prop_assert_eq!(found, names.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }
}

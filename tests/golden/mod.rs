//! Output for programs, byte for byte: the JSON of `status` and `history`, and the metrics. Users' filters and alerts depend on
//! these names, so a change of golden.txt changes the interface. screens.txt has the output for people. `UPDATE=1` writes both
//! files.

use std::fs;
use std::path::Path;

use super::super::history::{RecentEvents, calendar::Calendar, entry_object};
use super::super::json::array;
use super::{detail, json::lock_object, prometheus, table};
use crate::protocol::Inspected;
use crate::protocol::golden::{NOW, histories, locks};
use crate::report::painted;

/// Locks with each kind of metric; the metrics of the others repeat these.
const MEASURED: [&str; 6] = ["deploy", "readers", "slots", "foreign", "queue", "free"];

fn shown() -> String {
    let (locks, histories) = (locks(), histories());
    let entries = histories.into_iter().flat_map(|lock| lock.entries);
    let entries: Vec<_> = entries.collect();
    let status = array(&locks, lock_object);
    let history = array(&entries, |entry| entry_object(entry, NOW));
    let is_measured = |lock: &&Inspected| MEASURED.contains(&lock.name.as_str());
    let measured: Vec<_> = locks.iter().filter(is_measured).collect();
    let metrics = prometheus::text(&measured, NOW + 100);
    let lines = |json: &str| json.trim_end().replace("},{\"name\"", "},\n{\"name\"");
    format!(
        "$ redlock status --json\n{}\n$ redlock history --json --skipped\n{}\n$ redlock status --prometheus -\n{metrics}",
        lines(&status),
        lines(&history)
    )
}

/// Returns the tables and screens of these locks. On a narrow terminal, two screens show how lines are cut and broken.
fn screens() -> String {
    let (locks, histories) = (locks(), histories());
    let pasts: Vec<RecentEvents> = histories.iter().map(RecentEvents::of).collect();
    let all = [(40, 2), (120, locks.len())].map(|(width, count)| {
        let screens = &locks[..count];
        let detail = detail::lines(screens, &pasts, (&[], ""), Calendar::UTC, Some(width));
        let texts = [table::lines(&locks, Some(width)), detail];
        let texts = texts.map(|lines| painted(&lines, false));
        format!("{width} columns\n\n{}\n", texts.concat())
    });
    all.concat()
}

#[track_caller]
fn assert_golden(name: &str, shown: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, shown).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap();
    for (shown, expected) in shown.lines().zip(expected.lines()) {
        assert_eq!(shown, expected);
    }
    assert_eq!(shown, expected);
}

#[test]
fn json_and_metrics_are_those_of_the_golden_file() {
    assert_golden("golden.txt", &shown());
}

#[test]
fn tables_and_screens_are_those_of_their_file() {
    assert_golden("screens.txt", &screens());
}

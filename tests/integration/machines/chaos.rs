//! Chaos on real servers: jobs of all kinds, operators who step in, and clients that aren't redlock want the same locks,
//! while processes are killed and stopped and servers fail. What runs under a lock gives a sign of life each millisecond, and
//! a checker decides afterwards which promises were kept.
//!
//! `make chaos SECONDS=60 SEED=1 TOPOLOGY=single|sentinel|cluster`. A seed chooses jobs and faults, but how processes and
//! servers get along is up to the machine: the same seed isn't the same run. `TOPOLOGY=partition` is `partition`: scenarios
//! in a network that is cut, each with what has to come out. With `CHAOS_HISTORY`, a directory that a run has left,
//! nothing runs: what was written down there is judged again.
//!
//! `site` is the servers and their faults, `workers` the jobs, `plain` the other clients, `faults` what befalls processes, `corners` what befalls their lines,
//! `driver` lets it happen, `history` is what it wrote down, `checker` decides, and `timeline` shows it.

mod checker;
mod corners;
mod driver;
mod faults;
mod history;
mod partition;
mod plain;
mod site;
mod timeline;
mod workers;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use checker::{Broken, Class, Verdict};
use driver::Done;
use history::{History, MS, SECOND};
use site::Kind;

use crate::support::asked;

#[test]
fn what_runs_under_a_lock_keeps_its_promises_while_processes_and_servers_fail() {
    if let Some(dir) = asked::<String>("CHAOS_HISTORY") {
        return judge_again(Path::new(&dir));
    }
    // Not among the other tests, for which it would leave no processor.
    let Some(seconds) = asked("CHAOS_SECONDS") else {
        return;
    };
    let seed = asked("CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let topology = asked("CHAOS_TOPOLOGY").unwrap_or_else(|| "single".to_owned());
    if topology == "partition" {
        return partition::run(
            Duration::from_secs(seconds),
            seed,
            asked::<String>("CHAOS_SCENARIO").as_deref(),
        );
    }
    let kind = match topology.as_str() {
        "single" => Kind::Single,
        "sentinel" => Kind::Sentinel,
        "cluster" => Kind::Cluster,
        other => {
            panic!("no such topology: {other}; there are single, sentinel, cluster and partition")
        }
    };
    let lasts = Duration::from_secs(seconds);
    // In memory where there is such a place: signs of life don't wait for a disk.
    let shared = Path::new("/dev/shm");
    let dir = if shared.is_dir() {
        tempfile::Builder::new().prefix("chaos").tempdir_in(shared)
    } else {
        tempfile::tempdir()
    };
    let dir = dir.unwrap();
    let done = driver::run(kind, seed, lasts, dir.path());
    let verdict = Verdict::of(&done.history);
    let title = format!(
        "{topology}, seed {seed} (which doesn't repeat a run), {} s",
        lasts.as_secs()
    );
    let title = format!(
        "{title}\n{}, {} plain clients",
        done.described, done.plain_clients
    );
    let text = summary(&title, &done.history, &verdict);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let out = asked("CHAOS_OUT").unwrap_or_else(|| target.join("chaos"));
    let out = out.join(format!("{topology}-{seed}"));
    fs::create_dir_all(&out).unwrap();
    history::write_down(&done.history, &out.join("history.jsonl"));
    let failures = left(&done) + &failures(&done.history, &verdict);
    tell(&out, &done.history, &verdict, &text, &failures);
}

/// What is written there is judged by the checker as it is now.
fn judge_again(dir: &Path) {
    let history = history::read_back(&dir.join("history.jsonl"));
    let verdict = Verdict::of(&history);
    let title = format!("{}, judged again", dir.display());
    let text = summary(&title, &history, &verdict);
    let out = asked("CHAOS_OUT").unwrap_or_else(|| dir.join("again"));
    fs::create_dir_all(&out).unwrap();
    let failures = failures(&history, &verdict);
    tell(&out, &history, &verdict, &text, &failures);
}

/// Says what was found, where it is written, and fails if a promise was broken.
fn tell(out: &Path, history: &History, verdict: &Verdict, text: &str, failures: &str) {
    keep(out, history, verdict, text);
    let said = format!("{text}written to {}\n", out.display());
    let _ = std::io::stdout().write_all(said.as_bytes());
    assert!(failures.is_empty(), "{text}{failures}{}", out.display());
}

fn summary(title: &str, history: &History, verdict: &Verdict) -> String {
    let mut text = format!("chaos: {title}\n");
    let _ = writeln!(
        text,
        "{} jobs, {} commands of operators; exit statuses: {}",
        history.jobs.len(),
        history.commands.len(),
        statuses(history)
    );
    let _ = writeln!(
        text,
        "faults of servers: {}",
        counted(
            history
                .faults
                .iter()
                .map(|fault| fault.what.split(':').next().unwrap().to_owned())
        )
    );
    let hits = history.jobs.iter().flat_map(|job| &job.hits);
    let _ = writeln!(
        text,
        "processes hit: {}",
        counted(
            hits.map(|hit| format!("{:?} {:?} {}", hit.role, hit.fault, hit.aim).to_lowercase())
        )
    );
    let starved = history.starved.iter().map(|span| span.until - span.from);
    let _ = writeln!(
        text,
        "no processor for more than 15 ms: {} times, {} ms at most",
        starved.clone().count(),
        starved.max().unwrap_or(0) / MS
    );
    let _ = writeln!(
        text,
        "after the last fault all had ended in {} s",
        (history.ended - history.healed) / SECOND
    );
    text += &verdict.in_words();
    text
}

fn counted(words: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let parts: Vec<String> = counts
        .into_iter()
        .map(|(word, count)| format!("{word} {count}"))
        .collect();
    parts.join(", ")
}

fn statuses(history: &History) -> String {
    counted(
        history
            .jobs
            .iter()
            .filter(|job| job.kind != history::JobKind::Plain)
            .map(|job| {
                job.status
                    .map_or_else(|| "none".to_owned(), |status| format!("{status}:"))
            }),
    )
}

/// What isn't as it should be when all is over.
fn left(done: &Done) -> String {
    let mut text = String::new();
    if let Some(unwell) = &done.unwell {
        let _ = writeln!(text, "the servers are not well again: {unwell}");
    }
    for line in &done.left {
        let _ = writeln!(text, "left afterwards: {line}");
    }
    for line in &done.processes_left {
        let _ = writeln!(text, "a process is left: {line}");
    }
    text
}

/// What makes the test fail, with a timeline for each.
fn failures(history: &History, verdict: &Verdict) -> String {
    let mut text = String::new();
    let first = verdict.broken.iter().map(|broken| broken.span.until).min();
    if let Some(first) = first {
        let _ = writeln!(
            text,
            "broken first after {} s",
            (first - history.began) / SECOND
        );
    }
    for broken in verdict.broken.iter().take(5) {
        text += &described(history, broken);
    }
    text
}

fn described(history: &History, broken: &Broken) -> String {
    let lanes = timeline::timeline(history, &broken.name, broken.span, &broken.jobs);
    format!("\n{}: {}\n{lanes}", broken.promise, broken.detail)
}

/// Writes down what was found: where it can be read when the run is over.
fn keep(out: &Path, history: &History, verdict: &Verdict, text: &str) {
    let mut all = text.to_owned();
    for broken in &verdict.broken {
        all += &described(history, broken);
    }
    fs::write(out.join("summary.txt"), all).unwrap();
    let mut overlaps = String::new();
    for overlap in verdict
        .overlaps
        .iter()
        .filter(|overlap| overlap.class != Class::Forbidden)
    {
        let lanes = timeline::timeline(
            history,
            &overlap.name,
            overlap.span,
            &[overlap.earlier, overlap.later],
        );
        let _ = writeln!(
            overlaps,
            "{}: {}\n{lanes}",
            overlap.class.in_words(),
            overlap.detail
        );
    }
    fs::write(out.join("overlaps.txt"), overlaps).unwrap();
}

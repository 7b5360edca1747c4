//! Chaos on real servers: jobs of all kinds and operators compete for locks, while processes are killed and suspended and
//! servers fail. Commands under a lock beat each millisecond; afterwards a checker decides which promises were kept.
//!
//! `make search WHAT=chaos SECONDS=60 SEED=1 TOPOLOGY=single|sentinel`. A seed draws jobs and faults, but can't repeat a run,
//! because processes and servers run at their own pace. `partition` has scenarios in a network that is cut (`make search
//! WHAT=partition`).
//!
//! `site` is the servers and their faults, `workers` the jobs, `faults` hits processes, `driver` runs everything, `history` is
//! the record, and `checker` judges.

mod checker;
mod driver;
pub mod faults;
mod history;
mod partition;
mod site;
mod workers;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use checker::Verdict;
use history::{History, MS, SECOND, Span};
use site::Topology;
use site::sentinel::Watched;
use site::single::Single;

use crate::support::{Dice, asked};

#[test]
fn jobs_keep_their_promises_while_processes_and_servers_fail() {
    // Only on request, because it would leave no processor to the other tests.
    let seconds = some_or_return!(asked("CHAOS_SECONDS"));
    let lasts = Duration::from_secs(seconds);
    let seed = asked("CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let mut dice = Dice::new(seed, 14);
    let topology = asked("CHAOS_TOPOLOGY").unwrap_or_else(|| "single".to_owned());
    let site: Box<dyn Topology> = match topology.as_str() {
        "single" => Box::new(Single::start(&mut dice)),
        "sentinel" => Box::new(Watched::start(&mut dice)),
        other => panic!("no such topology: {other}; there are single and sentinel"),
    };
    // In memory if possible, so that beats don't wait for a disk.
    let shared = Path::new("/dev/shm");
    let dir = if shared.is_dir() {
        tempfile::Builder::new().prefix("chaos").tempdir_in(shared)
    } else {
        tempfile::tempdir()
    };
    let dir = dir.unwrap();
    let done = driver::run(site, dice, lasts, dir.path());
    let verdict = Verdict::of(&done.history);
    let mut text = format!("chaos: {}, seed {seed}, {seconds} s\n", done.described);
    text += &summary(&done.history);
    text += &verdict.in_words();
    for line in &done.left {
        let _ = writeln!(text, "LEFT: {line}");
    }
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chaos/{topology}-{seed}"));
    fs::create_dir_all(&out).unwrap();
    fs::write(out.join("history.txt"), format!("{:#?}", done.history)).unwrap();
    let _ = writeln!(text, "written to {}", out.display());
    let _ = std::io::stdout().write_all(text.as_bytes());
    assert!(verdict.broken.is_empty() && done.left.is_empty(), "{text}");
}

fn summary(history: &History) -> String {
    let hits: usize = history.jobs.iter().map(|job| job.hits.len()).sum();
    let starved = history.starved.iter().map(Span::length);
    format!(
        "{} jobs, {} faults of servers, {hits} hits\n\
         no processor for more than 15 ms: {} times, {} ms at most\n\
         all had ended {} s after the last fault\n",
        history.jobs.len(),
        history.faults.len(),
        starved.clone().count(),
        starved.max().unwrap_or(0) / MS,
        (history.ended - history.healed) / SECOND
    )
}

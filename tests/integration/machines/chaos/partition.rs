//! Failovers in a network that is cut, slow or lossy: servers, sentinels and clients have a host each, and a switch of the
//! tests' own joins these. Each scenario states what has to come out, and is repeated by
//! `make chaos TOPOLOGY=partition SCENARIO=name`; without a name all are played that `SECONDS` have room for, and in the
//! time that is left cuts are drawn at random.
//!
//! `lab` is the hosts and the jobs, `report` is what was seen of each lock, `directed` the scenarios, and `random` the rest.

mod directed;
mod lab;
mod random;
mod report;

use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::support::Network;
use report::Finding;

/// Plays scenarios and fails if one of them comes out otherwise than it has to.
pub fn run(lasts: Duration, seed: u64, only: Option<&str>) {
    if Network::of(1).is_none() {
        return say("namespaces or TAP devices aren't permitted here: nothing was tried\n");
    }
    let end = Instant::now() + lasts;
    let left = || end.saturating_duration_since(Instant::now());
    let names = directed::ALL.iter().map(|(name, ..)| *name);
    let known = names
        .chain(["random"])
        .any(|name| only.is_none_or(|only| only == name));
    assert!(known, "no such scenario: {only:?}");
    let mut broken = Vec::new();
    for &(name, seconds, play) in directed::ALL {
        let takes = Duration::from_secs(seconds);
        match only {
            Some(only) if only != name => continue,
            None if takes > left() => {
                say(&format!("{name:<22} not played: it takes {takes:?}\n"));
                continue;
            }
            _ => {}
        }
        // A site that never gets well is one that has failed, and the others are played all the same.
        let finding = std::panic::catch_unwind(play).unwrap_or_else(|_| Finding::unplayed());
        say(&finding.in_words(name));
        if finding.broken > 0 {
            broken.push(name);
        }
    }
    if only.is_none_or(|only| only == "random") && left() > random::EPISODE {
        let finding = random::play(end, seed);
        say(&finding.in_words("random"));
        if finding.broken > 0 {
            broken.push("random");
        }
    }
    assert!(broken.is_empty(), "not as they have to be: {broken:?}");
}

/// The one that takes seconds is played among the other tests, too.
#[test]
fn jobs_of_a_client_that_is_cut_off_are_over_before_others_start() {
    if Network::of(1).is_some() {
        let finding = directed::cut_client();
        assert_eq!(finding.broken, 0, "{}", finding.in_words("cut-client"));
    }
}

fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

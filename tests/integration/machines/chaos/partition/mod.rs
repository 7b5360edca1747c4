//! Failovers in a network that is cut, slow or lossy. Each server, sentinel and client has a host of its own, and a switch of
//! the tests joins the hosts. Each scenario states its expected outcome. `make search WHAT=partition` plays all,
//! `SCENARIO=name` only that one.
//!
//! `lab` is the hosts and the jobs, `report` the events of each lock, and `directed` the scenarios.

mod directed;
mod lab;
mod report;

use std::io::Write as _;

use crate::support::{Network, asked};
use report::Finding;

#[test]
fn scenarios_have_their_expected_outcomes() {
    // Only on request, because all scenarios take half an hour.
    let Some(only) = asked::<String>("PARTITION_SCENARIO") else {
        return;
    };
    assert!(
        Network::of(1).is_some(),
        "namespaces or TAP devices aren't permitted here"
    );
    let is_wanted = |name: &str| only == "all" || only == name;
    let wanted = directed::ALL.iter().filter(|(name, _)| is_wanted(name));
    let mut broken = Vec::new();
    let mut count = 0;
    for (name, play) in wanted {
        // A site that never becomes well counts as failed, and the other scenarios are still played.
        let finding = std::panic::catch_unwind(play).unwrap_or_else(|_| Finding::unplayed());
        let _ = std::io::stdout().write_all(finding.in_words(name).as_bytes());
        count += 1;
        if finding.broken > 0 {
            broken.push(name);
        }
    }
    assert!(count > 0, "no such scenario: {only}");
    assert!(
        broken.is_empty(),
        "other outcomes than expected: {broken:?}"
    );
}

/// Plays the scenario that takes only seconds; it runs in `make test` too.
#[test]
fn jobs_of_a_client_that_is_cut_off_are_over_before_others_start() {
    if Network::of(1).is_some() {
        let finding = directed::cut_client();
        assert_eq!(finding.broken, 0, "{}", finding.in_words("cut-client"));
    }
}

//! Jobs that take turns under a lock. Each records its fencing token, its label, and whether another job runs at the same time.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Gated;

/// First commands of each job. The kernel's lock ends with the last process of the job, however it ends.
const ENTER: &str = r#"
    exec 9>>"$HOME/inside"; flock -n 9 || echo "$REDLOCK_FENCE" >>"$HOME/overlaps"
    echo "$REDLOCK_FENCE $LABEL" >>"$HOME/turns"; echo ready
"#;

impl Gated {
    /// Starts a job that takes turns; `run` is a command up to the names of the locks. The jobs write into `home`.
    pub fn labelled(label: &str, home: &Path, mut run: Command) -> Self {
        run.env("LABEL", label).env("HOME", home);
        Self::of(run, home, ENTER)
    }
}

/// Returns the fencing tokens and labels of all started jobs, in the order of their starts.
pub fn turns(home: &Path) -> Vec<(u64, String)> {
    let text = fs::read_to_string(home.join("turns")).unwrap_or_default();
    let each = text.lines().map(|line| {
        let (fence, label) = line.split_once(' ').unwrap();
        (fence.parse().unwrap(), label.to_owned())
    });
    each.collect()
}

/// Asserts that no two jobs ran at once, and that each had a larger fencing token.
#[track_caller]
pub fn assert_in_turn(home: &Path) {
    let turns = turns(home);
    let overlaps = fs::read_to_string(home.join("overlaps")).unwrap_or_default();
    assert_eq!(
        overlaps, "",
        "fences of those that ran beside another: {turns:?}"
    );
    assert!(
        turns.is_sorted_by(|(one, _), (next, _)| one < next),
        "{turns:?}"
    );
}

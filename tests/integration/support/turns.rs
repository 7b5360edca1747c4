//! Jobs that take turns under a lock and write down what they see: their fence, their label, and whether
//! another one runs at the same time.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::Gated;

/// What each of them does first. The kernel's lock goes with the last process of the job, however it ends.
const ENTER: &str = r#"
    exec 9>>"$HOME/inside"; flock -n 9 || echo "$REDLOCK_FENCE" >>"$HOME/overlaps"
    echo "$REDLOCK_FENCE $LABEL" >>"$HOME/turns"; echo ready
"#;

impl Gated {
    /// Starts a job that takes turns; `run` is a command up to the names of the locks. In `home` the jobs write.
    pub fn labelled(label: &str, home: &Path, mut run: Command) -> Self {
        run.env("LABEL", label).env("HOME", home);
        Self::of(run, home, ENTER)
    }
}

/// The fences and labels of all jobs that have begun, in the order in which they did.
pub fn turns(home: &Path) -> Vec<(u64, String)> {
    let text = fs::read_to_string(home.join("turns")).unwrap_or_default();
    let each = text.lines().map(|line| {
        let (fence, label) = line.split_once(' ').unwrap();
        (fence.parse().unwrap(), label.to_owned())
    });
    each.collect()
}

/// No two ran at once, and the fence grew with each.
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

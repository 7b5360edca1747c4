//! Jobs that take turns under a lock and write down what they see: their fence, their label, and whether
//! another one runs at the same time.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Gate, Outcome, Running};

/// What each of them does first. The kernel's lock goes with the last process of the job, however it ends.
const ENTER: &str = r#"
    exec 9>>"$HOME/inside"; flock -n 9 || echo "$REDLOCK_FENCE" >>"$HOME/overlaps"
    echo "$REDLOCK_FENCE $LABEL" >>"$HOME/turns"; echo ready
"#;

/// A job whose COMMAND says `ready` when it starts, and ends when it is asked to. It may be asked before.
pub struct Job {
    pub run: Running,
    gate: Gate,
}

impl Job {
    /// `run` is a command up to the names of the locks; in `home` the jobs write.
    pub fn start(label: &str, home: &Path, mut run: Command) -> Self {
        let (gate, path) = Gate::another(home);
        run.env("LABEL", label).env("HOME", home);
        run.args(["--", "sh", "-c", &format!("{ENTER} read go <\"$0\"")]);
        let run = Running::start(run.arg(&path));
        Self { run, gate }
    }

    /// Waits until COMMAND runs.
    #[track_caller]
    pub fn ready(mut self) -> Self {
        self.run.expect_line("ready");
        self
    }

    /// Tells COMMAND to end, whenever it is there.
    pub fn let_go(&mut self) {
        self.gate.open();
    }

    /// Waits for the end of the run.
    #[track_caller]
    pub fn finish(self) -> Outcome {
        self.run.finish()
    }

    /// Tells COMMAND to end, and waits for the end of the run, which is a good one.
    #[track_caller]
    pub fn end(mut self) {
        self.let_go();
        self.finish().assert_code(0);
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

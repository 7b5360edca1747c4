//! Work that gives signs of life, so that a test knows when it was last alive.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::moment;

/// Script of a COMMAND that prints `ready` with its pid, and `TERM` at each SIGTERM instead of ending. Every few milliseconds
/// the script writes the time into the file of its argument, for a minute at most.
pub const STUBBORN: &str = r#"
    $SIG{TERM} = sub { print "TERM\n" };
    use Time::HiRes qw(time sleep);
    $| = 1;
    open my $life, ">", $ARGV[0]; select((select($life), $| = 1)[0]);
    print "ready $$\n";
    my $limit = time + 60;
    while (time < $limit) { seek $life, 0, 0; printf $life "%d\n", time * 1e9; sleep 0.003 }
"#;

/// Returns the last sign of life in the file "life" of this directory.
#[track_caller]
pub fn last_sign_of_life(home: &Path) -> Duration {
    let life = fs::read_to_string(home.join("life")).unwrap();
    moment(life.lines().last().unwrap())
}

/// Asserts that the last sign of life was before `over`. Returns it.
#[track_caller]
pub fn assert_dead_before(home: &Path, over: Duration) -> Duration {
    let last = last_sign_of_life(home);
    assert!(last < over, "alive at {last:?}, over at {over:?}");
    last
}

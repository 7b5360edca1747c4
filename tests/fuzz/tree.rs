//! What the kernel says of a process, whose name anybody chooses, as a target of [`crate::fuzz`].

use nix::unistd::Pid;

use super::Stat;
use crate::fuzz::{Target, texts};

pub const TARGET: Target = Target {
    name: "stat",
    check: stat,
    examples,
};

/// What follows the name.
const FIELDS: &str = " S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 4096 0 0 0 0 0 0 0 0 0 2 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 256";

fn examples() -> Vec<Vec<u8>> {
    let of = |name: &str| format!("7 ({name}){FIELDS}");
    texts(&[&of("redlock"), &of("a) Z 1 (b"), "7 (x) Z 1", "7 () S"])
}

/// A line; and the same as the name of a program, which changes nothing of what is known of it.
fn stat(bytes: &[u8]) {
    let pid = Pid::from_raw(7);
    let text = String::from_utf8_lossy(bytes);
    let _ = Stat::parse(pid, &text);
    let named = format!("7 ({text}){FIELDS}");
    let stat = Stat::parse(pid, &named).expect("a name changes nothing");
    assert_eq!((stat.parent.as_raw(), stat.session), (1, 7));
    assert_eq!((stat.started.as_millis(), stat.exit_code), (123_450, 256));
    assert!(!stat.has_ended && !stat.is_stopped && stat.ignores_int);
}

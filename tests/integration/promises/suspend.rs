//! The clock of leases runs while the machine is suspended. No test can suspend the machine, but the kernel names the clock of
//! each timer. In a time namespace that clock alone is ahead of the others.

use crate::support::prelude::*;

/// `CLOCK_BOOTTIME`, in the kernel's words.
const RUNS_IN_SUSPEND: &str = "clockid: 7";

/// Enters a namespace in which the machine seems to have been suspended for eleven days.
const AFTER_SUSPEND: &str = "unshare --fork --kill-child --time --boottime 1000000";

/// Returns the kernel's text about each timer of a process.
fn timers(pid: i32) -> Vec<String> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap();
    let texts = files.flatten().map(|file| fs::read_to_string(file.path()));
    let is_timer = |text: &String| text.contains("clockid: ");
    texts.flatten().filter(is_timer).collect()
}

/// Returns the seconds until a timer expires; 0 if it isn't set.
fn seconds_left(timer: &str) -> u64 {
    let (_, value) = timer.split_once("it_value: (").unwrap();
    value.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn leases_are_timed_on_the_clock_that_runs_while_the_machine_is_suspended() {
    for before in ["env", AFTER_SUSPEND] {
        let before = words(before, &[]);
        if !is_permitted(&[&before[..], &["true"]].concat()) {
            continue;
        }
        let redis = Redis::start();
        let run = words!(
            "{} run --ttl 300s a -c",
            REDLOCK,
            "echo $PPID; exec sleep 60"
        );
        let mut holder = Running::start(&mut directly(&redis, &[&before[..], run].concat()));
        let pid: i32 = holder.line().trim().parse().unwrap();
        // By that clock, the next renewal is due after half a minute.
        wait_until("it sleeps until the renewal after the first", || {
            let timers = timers(pid);
            let run_in_suspend = timers.iter().all(|timer| timer.contains(RUNS_IN_SUSPEND));
            assert!(run_in_suspend && timers.len() < 2, "{timers:?}");
            // COMMAND may print before redlock has set its timer.
            let timer = timers.first();
            timer.is_some_and(|timer| (20..=30).contains(&seconds_left(timer)))
        });
    }
}

//! A primary with replicas, watched over by sentinels: whichever way the primary goes, the holder goes on,
//! the waiters get their turns, and no two run at once.

use crate::support::{Job, Redis, Replicated, assert_in_turn, turns, wait_until};

/// A way in which the primary is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Sentinels are asked to.
    Asked,
    /// It is killed; it comes back empty.
    Killed,
    /// It hangs, and goes on later as if nothing had happened.
    Stopped,
}

const WAYS: [Way; 3] = [Way::Asked, Way::Killed, Way::Stopped];

impl Way {
    /// Replaces the primary; the number of the next one.
    #[track_caller]
    fn replace(self, all: &mut Replicated, old: usize) -> usize {
        match self {
            Self::Asked => all.failover(),
            Self::Killed => {
                all.servers[old].kill();
                all.primary_after(old)
            }
            Self::Stopped => {
                all.servers[old].stall();
                all.primary_after(old)
            }
        }
    }

    /// All servers are there again.
    #[track_caller]
    fn recover(self, all: &mut Replicated, old: usize) {
        match self {
            Self::Asked => {}
            Self::Killed => all.servers[old].start_again(),
            Self::Stopped => all.servers[old].resume(),
        }
        all.wait_until_whole();
    }
}

/// Starts a job.
fn job(all: &Replicated, label: &str, options: &[&str]) -> Job {
    let run = all.redlock(&[&["run", "--ttl", "12s", "-k", "1s"], options, &["a"]].concat());
    Job::start(label, all.home.path(), run)
}

/// Starts waiters one after the other.
#[track_caller]
fn waiters(all: &Replicated, primary: usize, labels: &[&str]) -> Vec<Job> {
    let start = |label: &&str| {
        let job = job(all, label, &[]);
        wait_until("it stands in the queue", || {
            all.servers[primary].queue("a").contains(&job.run.pid())
        });
        job
    };
    labels.iter().map(start).collect()
}

/// How many waiters listen at a server.
fn listening(server: &Redis) -> usize {
    let channels = server.cli(&["PUBSUB", "CHANNELS", "{redlock:*"]);
    channels.lines().filter(|line| !line.is_empty()).count()
}

const FIVE: [&str; 5] = ["1", "2", "3", "4", "5"];

#[test]
fn whichever_way_the_primary_is_replaced_the_holder_goes_on_and_the_waiters_get_their_turns() {
    let mut all = Replicated::start();
    let home = all.home.path().to_owned();
    let mut labels = Vec::new();
    for way in WAYS {
        let old = all.primary();
        let holder = job(&all, "holder", &[]).ready();
        let token = all.servers[old].cli(&["GET", "redlock:a"]);
        let waiting = waiters(&all, old, &FIVE);
        all.settle(old);
        let new = way.replace(&mut all, old);
        let server = &all.servers[new];
        let left = || server.cli(&["PTTL", "redlock:a"]).parse::<i64>().unwrap();
        let before = left();
        wait_until("it is renewed at the new primary", || left() > before);
        assert_eq!(server.cli(&["GET", "redlock:a"]), token, "{way:?}");
        // One that isn't there yet when its turn comes would have to queue again.
        wait_until("all waiters listen there", || {
            listening(server) == FIVE.len()
        });
        holder.end();
        for waiter in waiting {
            waiter.end();
        }
        labels.push("holder");
        labels.extend(FIVE);
        let each = turns(&home);
        let order: Vec<&str> = each.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(order, labels, "{way:?}");
        assert_in_turn(&home);
        way.recover(&mut all, old);
    }
}

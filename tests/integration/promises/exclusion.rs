//! Two holders never run at once, and each has a larger fencing token than the one before.

use crate::support::prelude::*;

#[test]
fn fifty_parallel_runs_never_overlap_and_their_fences_grow() {
    let redis = Redis::start();
    let home = redis.dir.path();
    let mut runs: Vec<Gated> = (0..50)
        .map(|_| redis.redlock(words!("run -q REDLOCK_REDIS_TIMEOUT=60s a")))
        .map(|run| Gated::labelled("", home, run))
        .collect();
    runs.iter_mut().for_each(Gated::open);
    for run in runs {
        run.finish().assert_silent().assert_code(0);
    }
    assert_in_turn(home);
    assert_eq!(turns(home).len(), 50);
    assert_eq!(redis.keys(), ["{redlock:a}:state"]);
}

#[test]
fn the_fence_grows_across_expiry_flushes_and_restarts() {
    let mut redis = Redis::start();
    let fence = |redis: &Redis| -> u64 {
        let end = outcome(&mut redis.run("a -- sh", "echo $REDLOCK_FENCE"));
        end.stdout.trim().parse().unwrap()
    };
    let mut fences = vec![fence(&redis)];
    redis.cli(&["FLUSHALL"]);
    fences.push(fence(&redis));
    redis.kill();
    redis.start_again();
    fences.push(fence(&redis));
    // A fencing token from the future, as after the clock was set back.
    redis.cli(&["HSET", "{redlock:a}:state", "fence", "4000000000000000"]);
    fences.extend([fence(&redis), fence(&redis)]);
    assert!(fences.is_sorted_by(|one, next| one < next), "{fences:?}");
    assert_eq!(fences[3..], [4_000_000_000_000_001, 4_000_000_000_000_002]);
}

//! The protocol under attack: late requests, suspended or distant servers, and crowds.

use crate::support::lua::KEYS;
use crate::support::prelude::*;
use crate::support::proxy::{Proxy, load_scripts};

const MS: Duration = Duration::from_millis(1);

#[test]
fn work_is_not_started_on_a_grant_that_came_later_than_is_possible_by_our_own_clock() {
    let redis = Redis::start();
    load_scripts(&redis);
    let holder = Gated::start(&redis, &["a"]).ready();
    let mut waiter = Gated::queued(&redis, &["-q", "a"]);
    wait_until("it listens", || {
        !redis.cli(&["PUBSUB", "CHANNELS"]).is_empty()
    });
    // The waiter is suspended, the server's clock is set an hour forward, and the waiter gets the lock. Without its
    // confirmation, the lock goes to another waiter.
    waiter.run.suspend();
    let token = redis.cli(&["ZRANGE", KEYS[4], "0", "0"]);
    let script = "return string.sub(redis.sha1hex(ARGV[1]), 1, 12)";
    let id = redis.cli(&["EVAL", script, "0", &token]);
    let at = now().as_millis() + 3_600_000;
    let message = format!("granted {at}000 1 {at} 5000");
    let heard = redis.cli(&["PUBLISH", &format!("{{redlock:a}}:{id}"), &message]);
    assert_eq!(heard, "1");
    std::thread::sleep(MS * 5_500);
    waiter.run.resume();
    std::thread::sleep(MS * 1_000);
    assert!(!waiter.run.has_ended(), "{:?}", waiter.run.finish());
    holder.end();
    waiter.ready().end();
}

#[test]
fn a_lease_of_eight_round_trips_is_renewed() {
    side_by_side(
        [(400, "6s"), (700, "8s"), (1_500, "12s")],
        |(round_trip, ttl)| {
            let redis = Redis::start();
            load_scripts(&redis);
            let proxy = Proxy::with_round_trip(&redis, MS * round_trip);
            let url = proxy.url();
            let words = words!("run --url {} --ttl {} a -- sleep 10", &url, ttl);
            let end = outcome(&mut redis.redlock(words));
            assert_eq!(end.code(), Some(0), "{round_trip} {ttl}: {end:?} {proxy:?}");
        },
    );
}

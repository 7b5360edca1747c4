//! A server without free memory (`maxmemory` without eviction): holders and waiters go on, and only new ones are refused.

use crate::support::prelude::*;

const MODES: [&[&str]; 3] = [&[], &["--shared"], &["--slots", "2"]];

/// Makes the server refuse all commands that need memory.
fn fill(redis: &Redis) {
    assert_eq!(redis.cli(&["CONFIG", "SET", "maxmemory", "1"]), "OK");
    let refused = redis.cli(&["SET", "more", "memory"]);
    assert!(refused.starts_with("OOM"), "{refused}");
}

#[test]
fn on_a_full_server_a_lock_is_renewed_and_released() {
    side_by_side(MODES, |mode| {
        let redis = Redis::left_empty();
        let options = [words!("--ttl 12s -k 100ms"), mode, &["a"]].concat();
        let mut holder = Gated::start(&redis, &options).ready();
        fill(&redis);
        redis.await_renewals("a", 2);
        holder.open();
        holder.finish().assert_code(0).assert_silent();
    });
}

#[test]
fn on_a_full_server_a_lock_is_handed_on_to_waiters_that_were_there_before() {
    for mode in MODES {
        let redis = Redis::left_empty();
        let holder = Gated::start(&redis, &["a"]).ready();
        let first = Gated::queued(&redis, &[&["-q"], mode, &["a"]].concat());
        let last = Gated::queued(&redis, &["-q", "a"]);
        let leaves = Gated::queued(&redis, &["-q", "a"]);
        fill(&redis);
        leaves.run.signal(Signal::SIGTERM);
        leaves.run.finish().assert_code(143).assert_silent();
        // Long enough for a heartbeat of each waiter.
        redis.await_calls("evalsha", 4);
        assert_eq!(redis.queue("a"), [first.run.pid(), last.run.pid()]);
        holder.end();
        first.ready().end();
        last.ready().end();
    }
}

#[test]
fn on_a_full_server_a_holder_is_stopped_or_forced_out_and_the_lock_goes_on() {
    for (mode, line, says) in [
        (MODES[0], "release --force -q a", "was forced free by"),
        (MODES[1], "stop -q a", "asked this run to stop"),
        (MODES[2], "release --force -q a", "was forced free by"),
        (MODES[0], "stop -q a", "asked this run to stop"),
    ] {
        let redis = Redis::left_empty();
        let holder = Gated::start(&redis, &[mode, &["a"]].concat()).ready();
        let waiter = Gated::queued(&redis, &["-q", "a"]);
        fill(&redis);
        ends(&redis, line).assert_code(0);
        holder.run.finish_saying(79, says);
        waiter.ready().end();
    }
}

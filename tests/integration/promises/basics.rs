//! The uncontended run: environment and requests.

use crate::support::prelude::*;
use crate::support::proxy::{Proxy, load_scripts};

#[test]
fn the_child_knows_its_lock() {
    let redis = Redis::start();
    let script = r#"echo "$REDLOCK_NAME"; echo "$REDLOCK_TOKEN"; redis-cli -s "$1" GET redlock:deploy; echo "$REDLOCK_FENCE $REDLOCK_WAITED_MS"; echo "$REDLOCK_HELD""#;
    let socket = redis.socket();
    let run = outcome(&mut redis.redlock(words!(
        "run deploy -- sh -c {} sh",
        script,
        socket.to_str().unwrap()
    )));
    run.assert_code(0);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert_eq!(lines[0], "deploy");
    assert_eq!(lines[1], lines[2], "the token is the key's value");
    let (fence, waited) = lines[3].split_once(' ').unwrap();
    assert!(fence.parse::<u64>().unwrap() > 1_700_000_000_000_000);
    assert!(waited.parse::<u64>().unwrap() < 30_000);
    assert_eq!(lines[4], format!("deploy={}", lines[1]));
}

#[test]
fn an_uncontended_run_sends_two_scripts_and_nothing_else() {
    let redis = Redis::start();
    load_scripts(&redis);
    // The first run of a day also refreshes the keys that are kept for weeks.
    outcome(&mut redis.run("a", "true")).assert_code(0);
    let proxy = Proxy::new(&redis);
    let mut run = redis.redlock(&["run", "a", "--", "true"]);
    outcome(run.env("REDLOCK_URL", proxy.url())).assert_code(0);
    let requests = proxy.seen();
    // A run longer than 50 ms also renews, and tracks its key from then on.
    let [first, renewals @ .., last] = &requests[..] else {
        panic!("{requests:?}");
    };
    assert_eq!([first, last], ["take", "release"], "{requests:?}");
    let is_renewal = renewals.first().is_none_or(|request| request == "renew");
    assert!(is_renewal, "{requests:?}");
    let others = "take acquire release AUTH SELECT PING SUBSCRIBE";
    let mut others = others.split(' ');
    let other = others.find(|&other| renewals.iter().any(|request| request == other));
    assert_eq!(other, None, "{requests:?}");
}

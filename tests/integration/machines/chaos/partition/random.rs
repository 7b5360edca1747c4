//! Cuts, delays, losses and failovers at random.

use std::time::{Duration, Instant};

use super::lab::{CLIENTS, Lab};
use super::report::Finding;
use crate::machines::chaos::history::boottime;
use crate::support::{Dice, MASTER};

/// How long trouble lasts and what it leads to, at most.
pub const EPISODE: Duration = Duration::from_secs(60);

/// How long it may take until all is well again.
const WHOLE: Duration = Duration::from_secs(45);

/// Jobs of three clients with `REDLOCK_SYNC=all` while one thing after the other befalls the network and the servers: never
/// two at once.
pub fn play(end: Instant, seed: u64) -> Finding {
    let mut dice = Dice::new(seed, 28);
    let mut lab = Lab::start(3, 3, "--repl-timeout 6");
    for client in CLIENTS..CLIENTS + 3 {
        lab.repeat(client, "all", "REDLOCK_SYNC=all --ttl 8s -k 1s", 20..4000);
        lab.repeat(client, "plain", "--ttl 8s -k 1s", 20..4000);
    }
    let began = boottime();
    let mut episodes = 0;
    while Instant::now() + EPISODE < end {
        episode(&mut lab, &mut dice);
        episodes += 1;
    }
    let (mut finding, [all, _]) = lab.end(began, ["all", "plain"]);
    finding.expect_exclusion(&all);
    let holds = all.starts.len();
    let what = format!("{holds} holds in {episodes} episodes of seed {seed}");
    finding.expect(holds > episodes, what);
    finding
}

fn episode(lab: &mut Lab, dice: &mut Dice) {
    let all = lab.network.all();
    let half: Vec<usize> = all.iter().copied().filter(|_| dice.chance(50)).collect();
    let rest: Vec<usize> = all
        .iter()
        .copied()
        .filter(|host| !half.contains(host))
        .collect();
    let lasts = Duration::from_millis(dice.between(500, 15_000).unsigned_abs());
    let server = usize::try_from(dice.between(0, 3)).unwrap();
    match dice.between(0, 8) {
        0 => lab.network.part(&half, &rest),
        1 => lab.network.change(&half, &rest, |link| link.is_cut = true),
        2 => lab.network.cut(dice.pick(&all)),
        3 => {
            let delay = Duration::from_millis(dice.between(1, 200).unsigned_abs());
            lab.network.change(&half, &rest, |link| link.delay = delay);
            lab.network.change(&rest, &half, |link| link.delay = delay);
        }
        4 => {
            let loss = dice.between(1, 30);
            lab.network.change(&half, &rest, |link| link.loss = loss);
        }
        5 => {
            lab.all.sentinels[server].ask(&["SENTINEL", "FAILOVER", MASTER]);
        }
        6 => lab.all.servers[server].stall(),
        _ => lab.network.change(&half, &rest, |link| link.cap = 600),
    }
    if dice.chance(30) {
        // A sentinel forgets what it knew of the replicas and of the others.
        lab.all.sentinels[dice.pick(&[0, 1, 2])].ask(&["SENTINEL", "RESET", MASTER]);
    }
    std::thread::sleep(lasts);
    lab.network.heal();
    lab.all.servers[server].resume();
    if dice.chance(70) {
        // Otherwise the next trouble comes before all is well.
        let whole = Instant::now() + WHOLE;
        while lab.all.lacking().is_some() && Instant::now() < whole {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

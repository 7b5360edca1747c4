//! Each fault alone: it does what it says, its end is its end, and redlock works afterwards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::line::{Flow, Line};
use super::{Injected, Kind, Loss, Site, ms};
use crate::support::{Dice, REDLOCK, Redis, Running, path, wait_until, without_terminal};

/// Runs a command at a site.
fn run(site: &Site, dice: &mut Dice, words: &[&str]) -> Running {
    let (place, options) = (site.place(dice), site.options());
    let mut all: Vec<&str> = place.iter().map(String::as_str).collect();
    all.extend([REDLOCK, "run", "-q", "--ttl", "3s", "-w", "20s"]);
    all.extend(options.iter().map(String::as_str));
    all.extend(words);
    let mut command = Command::new(all[0]);
    command.args(&all[1..]).env_clear().env("PATH", path());
    command.env("REDLOCK_URL", site.url());
    without_terminal(&mut command);
    Running::start(&mut command)
}

/// Each fault of a site begins while a run holds a lock; that one and the next come to their ends.
fn assert_each_ends(kind: Kind, seed: u64) {
    let dice = &mut Dice::new(seed, 0);
    let mut site = Site::start(kind, dice);
    let mut faults = site.faults().to_vec();
    faults.sort_unstable();
    faults.dedup();
    for fault in faults {
        let name = fault.replace(' ', "-");
        let mut holder = run(&site, dice, &[&name, "-c", "echo ready; exec sleep 60"]);
        holder.expect_line("ready");
        let mut injected = site.inject(fault, dice);
        wait_until("the fault begins", || {
            // On a busy machine a server may be slow to answer.
            let is_none = injected.what.starts_with("nothing");
            if is_none {
                injected = site.inject(fault, dice);
            }
            !is_none
        });
        let about = format!("{}: {fault}: {injected:?}", site.described());
        site.heal().unwrap();
        holder.signal(Signal::SIGTERM);
        let end = holder.finish();
        assert!(matches!(end.code(), Some(143 | 79)), "{about}: {end:?}");
        let end = run(&site, dice, &[&name, "--", "true"]).finish();
        assert_eq!(end.code(), Some(0), "{about}: {end:?}");
    }
}

/// What takes long is part of `make chaos`.
fn is_asked_for() -> bool {
    std::env::var_os("CHAOS_SECONDS").is_some_and(|text| !text.is_empty())
}

#[test]
fn after_each_fault_of_one_server_the_lock_is_free_again() {
    if is_asked_for() {
        assert_each_ends(Kind::Single, 1);
    }
}

#[test]
fn each_fault_of_a_primary_its_replicas_and_sentinels_ends_and_the_lock_is_free_again() {
    if is_asked_for() {
        // On one host, and on several, where that is permitted.
        assert_each_ends(Kind::Sentinel, 1);
        assert_each_ends(Kind::Sentinel, 2);
    }
}

#[test]
fn each_fault_of_a_cluster_ends_and_the_lock_is_free_again() {
    if is_asked_for() {
        assert_each_ends(Kind::Cluster, 1);
        assert_each_ends(Kind::Cluster, 2);
    }
}

/// Faults come upon each other; then all is well again, and the lock is free.
fn assert_all_end(kind: Kind) {
    for seed in 0..6 {
        let dice = &mut Dice::new(seed, 1);
        let mut site = Site::start(kind, dice);
        let mut seen = vec![site.described()];
        for _ in 0..3 {
            let until = Instant::now() + ms(dice, 500, 6000);
            while Instant::now() < until {
                let began = Instant::now();
                if dice.chance(3) {
                    let fault = dice.pick(site.faults());
                    let injected = site.inject(fault, dice);
                    seen.push(format!("{:?} {injected:?}", began.elapsed()));
                }
                site.tick();
                let took = began.elapsed();
                if took > Duration::from_millis(60) {
                    seen.push(format!("that took {took:?}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            site.heal().unwrap();
            seen.push("healed".into());
            wait_until("there is a server that plain clients find", || {
                site.tick();
                let is_there = site.observer().is_some() && site.plain_address().is_some();
                site.is_whole() && is_there
            });
            let end = run(&site, dice, &["any", "--", "true"]).finish();
            assert_eq!(end.code(), Some(0), "{end:?}: {seen:#?}");
        }
    }
}

#[test]
fn faults_of_one_server_upon_each_other_end_and_the_lock_is_free_again() {
    if is_asked_for() {
        assert_all_end(Kind::Single);
    }
}

#[test]
fn faults_of_a_primary_with_sentinels_upon_each_other_end_and_the_lock_is_free_again() {
    if is_asked_for() {
        assert_all_end(Kind::Sentinel);
    }
}

#[test]
fn faults_of_a_cluster_upon_each_other_end_and_the_lock_is_free_again() {
    if is_asked_for() {
        assert_all_end(Kind::Cluster);
    }
}

#[test]
fn a_slot_that_no_node_of_a_cluster_has_is_given_to_one() {
    if !is_asked_for() {
        return;
    }
    let dice = &mut Dice::new(1, 0);
    let mut site = Site::start(Kind::Cluster, dice);
    let owner = site.observer().unwrap();
    let slot = owner.cli(&["CLUSTER", "KEYSLOT", "{redlock}:a"]);
    assert_eq!(owner.cli(&["CLUSTER", "DELSLOTS", &slot]), "OK");
    site.heal().unwrap();
    let end = run(&site, dice, &["any", "--", "true"]).finish();
    assert_eq!(end.code(), Some(0), "{end:?}");
}

/// Faults that end the server, and what they may lose.
#[test]
fn a_server_forgets_what_the_fault_says_and_nothing_else() {
    if !is_asked_for() {
        return;
    }
    let mut seen = Vec::new();
    for seed in [0, 1, 2, 8] {
        let dice = &mut Dice::new(seed, 0);
        let mut site = Site::start(Kind::Single, dice);
        for fault in ["server killed", "power lost", "server shut down"] {
            site.tick();
            site.observer().unwrap().cli(&["SET", "mark", fault]);
            let Injected { loses, what, .. } = site.inject(fault, dice);
            site.heal().unwrap();
            let mark = site.observer().unwrap().cli(&["GET", "mark"]);
            match loses {
                Loss::Nothing => assert_eq!(mark, fault, "{what}: {}", site.described()),
                Loss::Everything => assert_eq!(mark, "", "{what}"),
                Loss::Latest | Loss::Lock(_) | Loss::Sibling(..) => {}
            }
            seen.push((fault, loses, mark == fault));
        }
    }
    for (loss, is_kept) in [
        (Loss::Nothing, true),
        (Loss::Everything, false),
        (Loss::Latest, false),
    ] {
        let is_seen = seen
            .iter()
            .any(|(_, loses, kept)| (loses, *kept) == (&loss, is_kept));
        assert!(is_seen, "never {loss:?} {is_kept}: {seen:?}");
    }
}

/// What comes back from a request on a connection, within a time.
fn answer(client: &mut TcpStream, limit: Duration) -> Result<Vec<u8>, std::io::ErrorKind> {
    client.set_read_timeout(Some(limit)).unwrap();
    let mut bytes = [0; 64];
    let asked = client.write_all(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n");
    asked
        .and_then(|()| client.read(&mut bytes))
        .map_err(|error| error.kind())
        .map(|read| bytes[..read].to_vec())
}

#[test]
fn a_line_delays_holds_back_loses_and_resets_and_is_a_line_again() {
    use std::io::ErrorKind::{ConnectionReset, WouldBlock};
    let redis = Redis::start();
    let line = Line::new();
    line.lead_to(redis.port);
    let connect = || TcpStream::connect(("127.0.0.1", line.port)).unwrap();
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(100));
    let count = || redis.cli(&["GET", "n"]);

    let mut client = connect();
    assert_eq!(answer(&mut client, long).as_deref(), Ok(&b":1\r\n"[..]));
    line.set_delay(40);
    let began = Instant::now();
    assert_eq!(answer(&mut client, long).as_deref(), Ok(&b":2\r\n"[..]));
    assert!(began.elapsed() >= Duration::from_millis(80));
    line.set_delay(0);

    line.set_flow(Flow::Held);
    assert_eq!(answer(&mut client, short), Err(WouldBlock));
    assert_eq!(count(), "2");
    line.set_flow(Flow::Open);
    client.set_read_timeout(Some(long)).unwrap();
    let mut late = [0; 4];
    client.read_exact(&mut late).unwrap();
    assert_eq!(&late, b":3\r\n", "it arrives when the line is open again");

    line.set_flow(Flow::Silent);
    let mut other = connect();
    assert_eq!(answer(&mut client, short), Err(WouldBlock));
    assert_eq!(answer(&mut other, short), Err(WouldBlock));
    line.set_flow(Flow::Open);
    for mut dead in [client, other] {
        let end = dead.read(&mut [0; 4]).map_err(|error| error.kind());
        assert_eq!(end, Err(ConnectionReset));
    }
    assert_eq!(count(), "3", "what was lost isn't sent later");

    line.set_flow(Flow::NoReplies);
    assert_eq!(answer(&mut connect(), long), Err(ConnectionReset));
    assert_eq!(count(), "4", "it is carried out");
    line.set_flow(Flow::Refused);
    assert!(answer(&mut connect(), long).is_err());
    assert_eq!(count(), "4");
    line.set_flow(Flow::Open);
    let mut client = connect();
    assert_eq!(answer(&mut client, long).as_deref(), Ok(&b":5\r\n"[..]));
    line.cut();
    let end = client.read(&mut [0; 4]).map_err(|error| error.kind());
    assert_eq!(end, Err(ConnectionReset));
}

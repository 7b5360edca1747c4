//! A primary with replicas and sentinels. However the primary is replaced, the holder goes on, the waiters get their turns, and
//! no two run at once.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::promises::trouble::{encrypted, self_signed};
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy};

/// A way in which the primary is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// An operator requests a failover.
    Asked,
    /// The primary is killed, and returns empty.
    Killed,
    /// The primary hangs, and later goes on as if nothing had happened.
    Stopped,
    /// The sentinels and the other servers can't reach the primary any more, but its clients can.
    ShutIn,
}

impl Way {
    /// Loses the primary, without waiting for another one.
    fn lose(self, all: &mut Replicated, primary: usize) {
        match self {
            Self::Asked => {}
            Self::Killed => all.servers[primary].kill(),
            Self::Stopped => all.servers[primary].stall(),
            Self::ShutIn => all.shut_in(primary),
        }
    }

    /// Replaces the primary. Returns the number of the next one.
    #[track_caller]
    fn replace(self, all: &mut Replicated, old: usize) -> usize {
        if self == Self::Asked {
            return all.failover();
        }
        self.lose(all, old);
        all.primary_after(old)
    }

    /// Brings all servers back.
    #[track_caller]
    fn recover(self, all: &mut Replicated, old: usize) {
        match self {
            Self::Asked => {}
            Self::Killed => all.start_again(old),
            Self::Stopped => all.servers[old].resume(),
            Self::ShutIn => all.let_in(old),
        }
        // The sentinels would do that a second later.
        let primary = all.primary_after(old);
        let port = all.servers[primary].port.to_string();
        all.servers[old].cli(words!("REPLICAOF 127.0.0.1 {}", &port));
        all.wait_until_whole();
    }
}

/// Starts a job. The words are redlock's, up to the names of the locks.
fn start(all: &Replicated, label: &str, words: &[&str]) -> Gated {
    Gated::labelled(label, all.home.path(), all.redlock(words))
}

/// Starts a job under the lock "a" with a usual lease.
fn job(all: &Replicated, label: &str, url: &str) -> Gated {
    start(all, label, words!("run --ttl 20s -k 1s --url {} a", url))
}

/// Asserts that no history of these locks contains a lost lock.
#[track_caller]
fn assert_none_lost(all: &Replicated, names: &[&str]) {
    for name in names {
        let history = outcome(&mut all.redlock(&["history", name, "--json"]));
        let history = &history.assert_code(0).stdout;
        assert!(!history.contains("lost"), "{history}");
    }
}

/// Starts waiters one after the other, with one URL and the other in turn.
#[track_caller]
fn waiters(all: &Replicated, primary: usize, urls: [&str; 2]) -> Vec<Gated> {
    let start = |(label, url): (&&str, &&str)| {
        let mut job = job(all, label, url);
        job.run.wait_until_queued(&all.servers[primary]);
        job
    };
    FIVE.iter().zip(urls.iter().cycle()).map(start).collect()
}

/// Returns the number of waiters that listen at a server.
fn listening(server: &Redis) -> usize {
    let channels = server.cli(&["PUBSUB", "CHANNELS", "{redlock:*"]);
    channels.lines().filter(|line| !line.is_empty()).count()
}

const FIVE: [&str; 5] = ["1", "2", "3", "4", "5"];

/// Creates a user on the servers. Returns the URL of these sentinels with its password.
fn with_password(all: &Replicated, ports: &[u16]) -> String {
    for server in &all.servers {
        let user = words!("ACL SETUSER app on >theirs ~* &* +@all");
        assert_eq!(server.cli(user), "OK");
    }
    let url = all.url_at(ports.iter().copied());
    url.replace("://", "://app:theirs@")
}

#[test]
fn whichever_way_the_primary_is_replaced_the_holder_goes_on_and_the_waiters_get_their_turns() {
    let mut all = Replicated::start();
    let home = all.home.path().to_owned();
    let honest = [0, 1, 2].map(|number| all.sentinels[number].port);
    let mut labels = Vec::new();
    for (way, login) in [
        (Way::Asked, ""),
        (Way::Killed, "app:theirs@"),
        (Way::Stopped, ""),
        (Way::ShutIn, "app:theirs@"),
    ] {
        let with_login = with_password(&all, &honest);
        let url = with_login.replace("app:theirs@", login);
        let old = all.primary();
        let holder = job(&all, "holder", &url).ready();
        let token = all.servers[old].cli(&["GET", "redlock:a"]);
        let waiting = waiters(&all, old, [&all.url(), &with_login]);
        all.settle(old);
        let new = way.replace(&mut all, old);
        let server = &all.servers[new];
        server.await_renewals("a", 1);
        assert_eq!(server.cli(&["GET", "redlock:a"]), token, "{way:?} {url}");
        // An absent waiter would need to queue again after its turn.
        wait_until("all waiters listen there", || {
            listening(server) == FIVE.len()
        });
        holder.end();
        for job in waiting {
            job.end();
        }
        // A new run finds the new primary too.
        job(&all, "next", &url).ready().end();
        labels.push("holder");
        labels.extend(FIVE);
        labels.push("next");
        let each = turns(&home);
        let order: Vec<&str> = each.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(order, labels, "{way:?} {url}");
        assert_in_turn(&home);
        way.recover(&mut all, old);
    }
}

/// A proxy in front of each server, and exchanges in front of the sentinels that report the proxies' ports.
pub struct Proxied {
    pub proxies: Vec<Proxy>,
    exchanges: Vec<Exchange>,
}

impl Proxied {
    pub fn new(all: &Replicated) -> Self {
        let proxies: Vec<Proxy> = all.servers.iter().map(Proxy::new).collect();
        let ports = all.servers.iter().zip(&proxies);
        let ports: Vec<(u16, u16)> = ports.map(|(of, by)| (of.port, by.port())).collect();
        let each = all.sentinels.iter();
        let exchanges = each.map(|of| Exchange::new(of, ports.clone())).collect();
        Self { proxies, exchanges }
    }

    pub fn url(&self, all: &Replicated) -> String {
        all.url_at(self.exchanges.iter().map(|exchange| exchange.port))
    }

    /// Holds back the first request of this operation; for a heartbeat, the first one after a release. All later requests to
    /// that server wait with it. Returns where the request is announced, and where its treatment is awaited.
    fn hold_back(&self, server: usize, operation: &'static str) -> (Receiver<()>, Sender<Action>) {
        let (reached, waiting) = channel();
        let (go, action) = channel();
        let (mut begins, mut is_over) = (operation != "heartbeat", false);
        self.proxies[server].set_hook(move |request| {
            begins |= request.operation == "release";
            if is_over || !begins || request.operation != operation {
                return Action::Pass;
            }
            is_over = true;
            let _ = reached.send(());
            action.recv_timeout(TIMEOUT).unwrap_or(Action::Pass)
        });
        (waiting, go)
    }
}

#[test]
fn if_the_primary_is_replaced_at_any_step_of_a_run_each_job_runs_once() {
    use Way::{Asked, Killed, Stopped};
    let mut all = Replicated::start();
    let home = all.home.path().to_owned();
    let proxied = Proxied::new(&all);
    let url = proxied.url(&all);
    let words = words!("run --url {} --ttl 30s -k 1s a", &url);
    // The request at which the primary is replaced: before it arrives there, or after it was executed, with the reply lost. The
    // heartbeat confirms a lock that was handed over.
    for (operation, way, is_before) in [
        ("take", Killed, true),
        ("take", Asked, false),
        ("heartbeat", Killed, true),
        ("heartbeat", Asked, true),
        ("heartbeat", Stopped, false),
        ("renew", Killed, true),
        ("renew", Stopped, false),
        ("release", Killed, false),
        ("release", Asked, true),
    ] {
        let before = turns(&home).len();
        let old = all.primary();
        let arm = || proxied.hold_back(old, operation);
        let mut jobs = Vec::new();
        let (waiting, go) = if operation == "take" {
            let armed = arm();
            jobs.push(start(&all, "0", words));
            armed
        } else {
            jobs.push(start(&all, "0", words).ready());
            for label in ["1", "2"] {
                let mut job = start(&all, label, words);
                job.run.wait_until_queued(&all.servers[old]);
                jobs.push(job);
            }
            arm()
        };
        let ends_first = ["heartbeat", "release"].contains(&operation);
        if ends_first {
            jobs[0].open();
        }
        waiting.recv_timeout(TIMEOUT).expect("it is asked");
        if !is_before {
            let server = &all.servers[old];
            let calls_before = server.scripts();
            go.send(Action::LoseReply).unwrap();
            wait_until("it is carried out", || server.scripts() > calls_before);
        }
        all.settle(old);
        way.replace(&mut all, old);
        if is_before {
            // After a requested failover, the old primary briefly accepts writes that are lost later.
            if way == Asked {
                all.wait_until_whole();
            }
            go.send(Action::Pass).unwrap();
        }
        // The order may change, because an unconfirmed grant goes to the next waiter.
        let has_ended = usize::from(ends_first);
        jobs.iter_mut().skip(has_ended).for_each(Gated::open);
        let ends: Vec<Outcome> = jobs.into_iter().map(Gated::finish).collect();
        let are_well = ends.iter().all(|end| end.code() == Some(0));
        let turns = turns(&home);
        let where_it_was = format!("{operation} {way:?} {is_before}: {turns:?} {ends:?}");
        assert!(are_well, "{where_it_was}");
        let count = if operation == "take" { 1 } else { 3 };
        assert_eq!(turns.len() - before, count, "{where_it_was}");
        assert_in_turn(&home);
        way.recover(&mut all, old);
    }
}

#[test]
fn on_a_primary_that_only_its_holder_reaches_the_command_is_dead_before_another_grants() {
    let all = Replicated::start();
    let proxied = Proxied::new(&all);
    let by_proxies = proxied.url(&all);
    let job = |label: &str, url: &str, ttl: &str| {
        let words = words!(
            "run REDLOCK_SYNC=all --url {} -k 500ms --ttl {} a",
            url,
            ttl
        );
        start(&all, label, words)
    };
    let holder = job("holder", &by_proxies, "6s").ready();
    let mut waiter = job("waiter", &all.url(), "30s");
    waiter.open();
    // The holder reaches no sentinel, and no server except the old primary.
    proxied.exchanges.iter().for_each(Exchange::cut);
    proxied.proxies[1..].iter().for_each(Proxy::vanish);
    all.shut_in(0);
    // The waiter needs no place in the queue, because it waits for the lock in any case.
    waiter.finish().assert_code(0);
    holder.finish().assert_code(79);
    let turns = turns(all.home.path());
    let labels: Vec<&str> = turns.iter().map(|(_, label)| label.as_str()).collect();
    assert_eq!(labels, ["holder", "waiter"]);
    assert_in_turn(all.home.path());
}

#[test]
fn one_silent_sentinel_costs_a_moment_and_two_of_three_prevent_a_start() {
    let all = Replicated::start();
    // The first sentinel doesn't accept connections, the second does.
    let busy = UnresponsiveServer::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (busy, silent) = (busy.url(), silent.local_addr().unwrap().to_string());
    let busy = busy.strip_prefix("redis://").unwrap();
    let ports = [1, 2].map(|number| all.sentinels[number].port);
    let good = format!("127.0.0.1:{},127.0.0.1:{}", ports[0], ports[1]);
    side_by_side([("a", busy), ("b", &silent)], |(lock, bad)| {
        let url = format!("redis-sentinel://{bad},{good}/{MASTER}");
        let began = Instant::now();
        let words = words!(
            "run --url {} -q REDLOCK_REDIS_TIMEOUT=50s {} -- true",
            &url,
            lock
        );
        outcome(&mut all.redlock(words))
            .assert_code(0)
            .assert_silent();
        assert_took_less(began, Duration::from_secs(25));
        // With this URL redlock also renews a lock several times, and releases it.
        let words = words!("run --url {} --ttl 9s -k 200ms {}", &url, lock);
        let holder = start(&all, "holder", words).ready();
        all.servers[0].await_renewals(lock, 2);
        holder.end();
    });
    // A holder goes on while most sentinels hang. A new run explains why it doesn't start.
    let holder = start(&all, "holder", words!("run --ttl 9s -k 200ms a")).ready();
    all.sentinels[..2].iter().for_each(Sentinel::stall);
    all.servers[0].await_renewals("a", 2);
    let hasty = words!("run -n REDLOCK_REDIS_TIMEOUT=2s b -- echo ran");
    let end = outcome(&mut all.redlock(hasty));
    let says = "only 1 of 3 sentinels named the primary";
    assert_eq!(end.assert_said(69, says).stdout, "");
    outcome(&mut all.redlock(words!("status REDLOCK_REDIS_TIMEOUT=2s"))).assert_said(69, says);
    all.sentinels[..2].iter().for_each(Sentinel::resume);
    holder.end();
}

#[test]
fn a_sentinel_that_lies_has_no_password_sent_to_where_it_points() {
    let all = Replicated::start();
    let nowhere = Redis::start();
    let stranger = Proxy::new(&nowhere);
    let ports = vec![(all.servers[0].port, stranger.port())];
    let liar = Exchange::new(&all.sentinels[0], ports);
    let [second, third] = [1, 2].map(|number| all.sentinels[number].port);
    let url = with_password(&all, &[liar.port, second, third]);
    let end = outcome(&mut all.redlock(words!("run --url {} -q a -- true", &url)));
    end.assert_code(0).assert_silent();
    // A holder asks all sentinels with each renewal.
    let words = words!("run --url {} --ttl 6s -k 200ms a", &url);
    let holder = start(&all, "holder", words).ready();
    all.servers[0].await_renewals("a", 2);
    holder.end();
    // With one against one, neither has a majority.
    let of_two = with_password(&all, &[liar.port, second]);
    outcome(&mut all.redlock(&["--url", &of_two, "status"])).assert_said(69, "don't agree");
    assert_eq!(stranger.seen(), [""; 0]);
}

#[test]
fn sentinels_that_want_a_password_get_their_own() {
    let all = Replicated::start();
    let run = |url: &str| outcome(&mut all.redlock(words!("run --url {} -q a -- true", url)));
    // A server's URL, but at a sentinel.
    let address = format!("127.0.0.1:{}", all.sentinels[0].port);
    let right = format!("use redis-sentinel://{address}/NAME");
    run(&format!("redis://{address}")).assert_said(78, &right);
    // A password that the sentinel doesn't want.
    let unwanted = format!("redis-sentinel://{address}/{MASTER}?sentinel_password=x");
    let end = run(&unwanted);
    end.assert_code(77);
    end.assert_says("needs no password; leave sentinel_password out of the URL");
    let honest = [0, 1, 2].map(|number| all.sentinels[number].port);
    let url = with_password(&all, &honest);
    for server in &all.servers {
        server.cli(&["ACL", "SETUSER", "default", "resetkeys"]);
    }
    for sentinel in &all.sentinels {
        // Redis 6.0 has no users for sentinels.
        if sentinel.cli(&["ACL", "WHOAMI"]) != "default" {
            return;
        }
        let user = ["ACL", "SETUSER", "asker", "on", ">hush hush", "+sentinel"];
        assert_eq!(sentinel.cli(&user), "OK");
        assert_eq!(sentinel.cli(words!("ACL SETUSER default off")), "OK");
    }
    let file = format!("{}/password", all.home.path().display());
    fs::write(&file, "hush hush\n").unwrap();
    let by_file = format!("?sentinel_user=asker&sentinel_password_file={file}");
    for (options, code) in [
        ("?sentinel_user=asker&sentinel_password=hush%20hush", 0),
        (by_file.as_str(), 0),
        ("?sentinel_user=asker&sentinel_password=hush", 77),
        ("", 77),
    ] {
        let end = run(&format!("{url}{options}"));
        end.assert_code(code);
        for secret in ["theirs", "hush"] {
            assert!(!end.stderr.contains(secret), "{end:?}");
        }
    }
}

#[test]
fn freezes_history_groups_and_locks_of_scripts_survive_a_failover() {
    let all = Replicated::start();
    let redlock = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        outcome(&mut all.redlock(&words))
    };
    redlock("run done -- false").assert_code(1);
    redlock("freeze frozen --reason release-night").assert_code(0);
    let script =
        r#"eval "$(redlock acquire --while-pid $$ --ttl 12s kept)"; echo ready; exec sleep 60"#;
    let mut outer = all.redlock(words!("run -q outer -c", r#"eval "$SCRIPT""#));
    let outer = Running::ready(outer.env("SCRIPT", script));
    let read = words!("run --ttl 12s -k 200ms --shared read");
    let two = words!("run --ttl 12s -k 200ms --slots 2 two");
    let groups = [read, read, two, two].map(|words| start(&all, "member", words).ready());
    all.settle(0);
    let new = all.failover();
    let server = &all.servers[new];
    let renewals = server.calls("pexpire") + 12;
    wait_until("all are renewed there", || {
        server.calls("pexpire") >= renewals
    });
    let end = redlock("run -n frozen -- true");
    end.assert_said(75, "release-night");
    let history = redlock("history done");
    assert!(history.stdout.contains("status 1"), "{history:?}");
    for busy in ["kept", "read", "two", "--slots 2 two"] {
        redlock(&format!("run -q -n {busy} -- true")).assert_code(75);
    }
    redlock("run -q -n --shared read -- true").assert_code(0);
    for job in groups {
        job.end();
    }
    drop(outer);
    redlock("run -q -w 50s kept -- true").assert_code(0);
    redlock("thaw frozen").assert_code(0);
    redlock("run -n frozen -- true").assert_code(0);
}

impl Replicated {
    /// Returns all servers except the primary. While they are suspended, none of them takes over.
    fn replicas(&self, primary: usize) -> impl Iterator<Item = &Redis> {
        let servers = self.servers.iter().enumerate();
        servers.filter_map(move |(number, server)| (number != primary).then_some(server))
    }
}

#[test]
fn a_release_goes_to_the_primary_that_the_sentinels_name_or_will_name_next() {
    let mut all = Replicated::start();
    for (way, timeout, is_replaced, sync) in [
        // No primary receives the release.
        (Way::Killed, "10s", false, "0"),
        (Way::Stopped, "10s", false, "0"),
        // The release is lost with the old primary.
        (Way::ShutIn, "10s", false, "all"),
        // A failover takes longer than this timeout: a release tries for 5 s, or for --kill-after if that is longer.
        (Way::Killed, "500ms", false, "0"),
        (Way::Stopped, "500ms", false, "0"),
        // Another primary than the one that granted the lock.
        (Way::Asked, "10s", true, "all"),
        (Way::ShutIn, "10s", true, "all"),
    ] {
        let old = all.primary();
        let options = "run --ttl 90s -k 30s a REDLOCK_REDIS_TIMEOUT={} REDLOCK_SYNC={}";
        let words = crate::support::words(options, &[timeout, sync]);
        let mut holder = start(&all, "holder", &words).ready();
        all.settle(old);
        if is_replaced {
            let new = way.replace(&mut all, old);
            assert!(all.servers[new].is_held("a"));
        } else {
            way.lose(&mut all, old);
        }
        holder.open();
        let end = holder.finish();
        end.assert_code(0);
        if !is_replaced {
            end.assert_silent();
        }
        let new = all.primary_after(old);
        let held = all.servers[new].cli(&["EXISTS", "redlock:a"]);
        assert_eq!(held, "0", "{way:?} {timeout} {is_replaced}");
        assert_none_lost(&all, &["a"]);
        way.recover(&mut all, old);
    }
    assert_in_turn(all.home.path());
}

#[test]
fn a_run_that_could_not_release_its_locks_says_within_which_time_they_expire() {
    let mut all = Replicated::start();
    for (way, sync) in [
        (Way::Killed, "0"),
        (Way::Stopped, "0"),
        (Way::ShutIn, "all"),
    ] {
        let old = all.primary();
        let options = "run --ttl 9s -k 0s REDLOCK_REDIS_TIMEOUT=1500ms REDLOCK_SYNC={} a b";
        let words = crate::support::words(options, &[sync]);
        let mut holder = start(&all, "holder", &words).ready();
        all.settle(old);
        way.lose(&mut all, old);
        all.replicas(old).for_each(Redis::stall);
        holder.open();
        let end = holder.finish();
        end.assert_said(0, "within 9s");
        assert_eq!(end.stderr.matches("within 9s").count(), 2, "{end:?}");
        all.replicas(old).for_each(Redis::resume);
        let new = all.primary_after(old);
        all.servers[new].await_free("a b");
        assert_none_lost(&all, &["a", "b"]);
        way.recover(&mut all, old);
    }
}

#[test]
fn without_a_primary_a_run_releases_many_locks_in_the_time_of_one() {
    let mut all = Replicated::start();
    let options = words!("run --ttl 1m -k 2s REDLOCK_REDIS_TIMEOUT=2s");
    let names = locks(20);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut holder = start(&all, "holder", &[options, &names].concat()).ready();
    all.servers.iter_mut().for_each(Redis::kill);
    let began = Instant::now();
    holder.open();
    holder.finish().assert_code(0);
    // Five seconds for the first lock, and one more attempt for each other lock: not forty seconds.
    assert_took_less(began, Duration::from_secs(30));
}

#[test]
fn a_replica_that_hangs_costs_a_release_a_moment_and_one_that_was_shut_down_costs_nothing() {
    let mut all = Replicated::start();
    all.set_patient(true);
    let words = words!("run --ttl 90s -k 45s REDLOCK_SYNC=all a");
    let mut holder = start(&all, "holder", words).ready();
    all.servers[1].stall();
    holder.open();
    let began = Instant::now();
    let end = holder.finish();
    assert_took_less(began, Duration::from_secs(20));
    all.servers[1].resume();
    let says = "some replicas haven't confirmed the release of lock \"a\"";
    end.assert_said(0, says);
    assert!(!all.servers[0].is_held("a"));

    all.set_patient(false);
    all.wait_until_whole();
    let holders = [
        ("a", words!("run --ttl 12s -k 1s a")),
        ("b", words!("run --ttl 12s -k 1s REDLOCK_SYNC=1 b")),
        ("c", words!("run --ttl 12s -k 1s REDLOCK_SYNC=all c")),
    ];
    let holders = holders.map(|(name, words)| (name, start(&all, name, words).ready()));
    wait_until("all were renewed", || all.servers[0].trackers() >= 3);
    all.servers[1].kill();
    let primary = &all.servers[0];
    wait_until("the replica is gone", || {
        primary.info("replication", "connected_slaves") == "1"
    });
    // Two renewals later nobody waits for the replica any more.
    side_by_side(holders, |(name, mut holder)| {
        primary.await_renewals(name, 3);
        holder.open();
        let began = Instant::now();
        let end = holder.finish();
        assert_took_less(began, Duration::from_secs(10));
        end.assert_code(0);
        assert!(!end.stderr.contains("replicas"), "{name} {end:?}");
        assert_eq!(primary.holder(name), None);
    });
}

/// Returns this many names of locks.
fn locks(count: u32) -> Vec<String> {
    (0..count).map(|number| format!("lock-{number}")).collect()
}

#[test]
fn a_run_that_a_signal_ends_does_not_wait_for_silent_sentinels_with_each_release() {
    let mut all = Replicated::start();
    let locks = locks(48);
    let names: Vec<&str> = locks.iter().map(String::as_str).collect();
    let options = words!("run --ttl 6s -k 1s");
    let words = [options, &names, &["--", "sleep", "60"]].concat();
    let run = Running::start(&mut all.redlock(&words));
    wait_until("it has all", || {
        let primary = &all.servers[0];
        locks.iter().all(|name| primary.holder(name).is_some())
    });
    all.sentinels.iter().for_each(Sentinel::stall);
    all.servers[1..].iter_mut().for_each(Redis::kill);
    let primary = &all.servers[0];
    // Renewals that ask the silent sentinels are late. After two of them, releases don't ask the sentinels any more.
    primary.await_renewals("lock-0", 5);
    let began = Instant::now();
    send(run.pid(), libc::SIGTERM);
    run.finish();
    assert_took_less(began, Duration::from_secs(12));
    all.sentinels.iter().for_each(Sentinel::resume);
    wait_until("all are free", || {
        locks.iter().all(|name| primary.holder(name).is_none())
    });
}

#[test]
fn a_run_whose_lease_a_failover_may_outlast_says_so() {
    let all = Replicated::start();
    let says = "may end during a failover";
    for (words, times) in [
        (words!("run --ttl 7s a -k 1s -- true"), 1),
        (words!("run --ttl 7s -q a -k 1s -- true"), 0),
        (words!("run --ttl 30s a -k 1s -- true"), 0),
        (words!("run --ttl 7s REDLOCK_SYNC=all a -k 1s -- true"), 1),
        (words!("run --ttl 12s REDLOCK_SYNC=all a -k 1s -- true"), 0),
    ] {
        let end = outcome(&mut all.redlock(words));
        let count = end.assert_code(0).stderr.matches(says).count();
        assert_eq!(count, times, "{words:?} {end:?}");
    }
}

#[test]
fn over_tls_a_primary_that_is_named_by_its_ip_is_reached_by_the_urls_name_of_that_host() {
    let directory = tempfile::tempdir().unwrap();
    self_signed(directory.path(), "leaf", "2", "FALSE");
    let (_primary, primary_port) = encrypted(directory.path(), "leaf");
    let file = |ending: &str| directory.path().join(format!("leaf.{ending}"));
    let (cert, key) = (file("crt"), file("key"));
    let port = free_port();
    let text = format!(
        "port 0\ntls-port {port}\ntls-replication yes\ntls-auth-clients no\ntls-cert-file {0}\n\
         tls-key-file {1}\ntls-ca-cert-file {0}\nprotected-mode no\n\
         sentinel monitor {MASTER} 127.0.0.1 {primary_port} 1\n",
        cert.display(),
        key.display(),
    );
    let _sentinel = Sentinel::start("127.0.0.1".into(), port, &text, Vec::new());
    let url = format!("rediss-sentinel://localhost:{port}/{MASTER}");
    let ca = cert.to_str().unwrap();
    let words = words!("-u {} REDLOCK_TLS_CA={} run -w 30s a -- echo ran", &url, ca);
    outcome(&mut redlock(words)).assert_printed(0, "ran\n");
}

//! A primary with replicas, watched over by sentinels: whichever way the primary goes, the holder goes on,
//! the waiters get their turns, and no two run at once.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::promises::config::set_mode;
use crate::promises::trouble::{encrypted, self_signed};
use crate::support::prelude::*;
use crate::support::proxy::{Action, Proxy};

/// A way in which the primary is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Sentinels are asked to.
    Asked,
    /// It is killed; it comes back empty.
    Killed,
    /// It hangs, and goes on later as if nothing had happened.
    Stopped,
    /// The sentinels and the other servers can't reach it any more. Its clients can.
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

    /// Replaces the primary; the number of the next one.
    #[track_caller]
    fn replace(self, all: &mut Replicated, old: usize) -> usize {
        if self == Self::Asked {
            return all.failover();
        }
        self.lose(all, old);
        all.primary_after(old)
    }

    /// All servers are there again.
    #[track_caller]
    fn recover(self, all: &mut Replicated, old: usize) {
        match self {
            Self::Asked => {}
            Self::Killed => all.start_again(old),
            Self::Stopped => all.servers[old].resume(),
            Self::ShutIn => all.let_in(old),
        }
        all.wait_until_whole();
    }
}

/// Starts a job; the words are those of redlock up to the names of the locks.
fn start(all: &Replicated, label: &str, words: &[&str]) -> Gated {
    Gated::labelled(label, all.home.path(), all.redlock(words))
}

/// Starts a job of the lock "a" with a usual lease.
fn job(all: &Replicated, label: &str, url: &str) -> Gated {
    start(all, label, words!("run --ttl 20s -k 1s --url {} a", url))
}

/// A run of the lock "a" with these options succeeds and says nothing.
#[track_caller]
fn assert_runs(all: &Replicated, options: &[&str]) {
    let words = [options, words!("run -q a -- true")].concat();
    let end = outcome(&mut all.redlock(&words));
    end.assert_code(0).assert_silent();
}

/// Starts waiters one after the other.
#[track_caller]
fn waiters(all: &Replicated, primary: usize, url: &str) -> Vec<Gated> {
    let start = |label: &&str| {
        let mut job = job(all, label, url);
        job.run.wait_until_queued(&all.servers[primary]);
        job
    };
    FIVE.iter().map(start).collect()
}

/// How many waiters listen at a server.
fn listening(server: &Redis) -> usize {
    let channels = server.cli(&["PUBSUB", "CHANNELS", "{redlock:*"]);
    channels.lines().filter(|line| !line.is_empty()).count()
}

const FIVE: [&str; 5] = ["1", "2", "3", "4", "5"];

/// Has the servers know a user, and returns a URL with its password.
fn with_password(all: &Replicated, url: &str) -> String {
    for server in &all.servers {
        let user = words!("ACL SETUSER app on >theirs ~* &* +@all");
        assert_eq!(server.cli(user), "OK");
    }
    url.replace("://", "://app:theirs@")
}

#[test]
fn whichever_way_the_primary_is_replaced_the_holder_goes_on_and_the_waiters_get_their_turns() {
    let mut all = Replicated::start();
    let home = all.home.path().to_owned();
    for (way, login) in [
        (Way::Asked, ""),
        (Way::Killed, ""),
        (Way::Stopped, ""),
        (Way::ShutIn, ""),
        (Way::Asked, "app:theirs@"),
        (Way::Killed, "app:theirs@"),
        (Way::ShutIn, "app:theirs@"),
    ] {
        let url = with_password(&all, &all.url()).replace("app:theirs@", login);
        let old = all.primary();
        let holder = job(&all, "holder", &url).ready();
        let token = all.servers[old].cli(&["GET", "redlock:a"]);
        let waiting = waiters(&all, old, &url);
        all.settle(old);
        let new = way.replace(&mut all, old);
        let server = &all.servers[new];
        server.await_renewals("a", 1);
        assert_eq!(server.cli(&["GET", "redlock:a"]), token, "{way:?} {url}");
        // One that isn't there yet when its turn comes would have to queue again.
        wait_until("all waiters listen there", || {
            listening(server) == FIVE.len()
        });
        holder.end();
        for job in waiting {
            job.end();
        }
        // One that starts now finds it as well.
        job(&all, "next", &url).ready().end();
        let each = turns(&home);
        let last = each[each.len() - FIVE.len() - 2..].iter();
        let order: Vec<&str> = last.map(|(_, label)| label.as_str()).collect();
        let expected = ["holder", "1", "2", "3", "4", "5", "next"];
        assert_eq!(order, expected, "{way:?} {url}");
        assert_in_turn(&home);
        way.recover(&mut all, old);
    }
}

/// A proxy in front of each server, and a way to each sentinel that tells of the proxies.
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

    /// Holds back the first request of this operation, a `heartbeat` only after a release, and all that comes to that server
    /// after it. Returns what hears of its arrival, and what lets it go.
    fn hold_back(&self, server: usize, operation: &'static str) -> (Receiver<()>, Sender<Action>) {
        let (reached, arrival) = channel();
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
        (arrival, go)
    }
}

#[test]
fn a_primary_that_is_replaced_at_any_step_of_a_run_has_nobody_run_twice_or_not_at_all() {
    use Way::{Asked, Killed, Stopped};
    let mut all = Replicated::start();
    let home = all.home.path().to_owned();
    let proxied = Proxied::new(&all);
    let url = proxied.url(&all);
    let words = words!("run --url {} --ttl 30s -k 1s a", &url);
    // The heartbeat confirms a lock that was handed over. A request is lost, or only its answer is.
    let (before, after) = (false, true);
    for (operation, way, is_done) in [
        ("take", Killed, before),
        ("take", Asked, after),
        ("heartbeat", Killed, before),
        ("heartbeat", Asked, before),
        ("heartbeat", Stopped, after),
        ("renew", Killed, before),
        ("renew", Stopped, after),
        ("release", Killed, after),
        ("release", Asked, before),
    ] {
        let earlier = turns(&home).len();
        let old = all.primary();
        let arm = || proxied.hold_back(old, operation);
        let mut jobs = Vec::new();
        let (arrival, go) = if operation == "take" {
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
        let has_ended = ["heartbeat", "release"].contains(&operation);
        if has_ended {
            jobs[0].open();
        }
        arrival.recv_timeout(TIMEOUT).expect("the request comes");
        if is_done {
            let server = &all.servers[old];
            let calls = server.scripts();
            go.send(Action::LoseReply).unwrap();
            wait_until("it is carried out", || server.scripts() > calls);
        }
        all.settle(old);
        way.replace(&mut all, old);
        if !is_done {
            // Asked for, the old primary takes for a moment what is lost then.
            if way == Asked {
                all.wait_until_whole();
            }
            go.send(Action::Pass).unwrap();
        }
        // A grant that isn't confirmed in time goes to the next one, so their order may be another.
        let rest = jobs.iter_mut().skip(usize::from(has_ended));
        rest.for_each(Gated::open);
        let ends: Vec<Outcome> = jobs.into_iter().map(Gated::finish).collect();
        let are_well = ends.iter().all(|end| end.code() == Some(0));
        let turns = turns(&home);
        let row = format!("{operation} {way:?} {is_done}: {turns:?} {ends:?}");
        assert!(are_well, "{row}");
        let count = if operation == "take" { 1 } else { 3 };
        assert_eq!(turns.len() - earlier, count, "{row}");
        assert_in_turn(&home);
        way.recover(&mut all, old);
    }
}

#[test]
fn on_a_primary_that_only_its_holder_reaches_the_command_is_dead_before_another_grants() {
    let all = Replicated::start();
    let proxied = Proxied::new(&all);
    let job = |label, url: &str, ttl| {
        let words = words!(
            "REDLOCK_SYNC=all run -k 500ms a --url {} --ttl {}",
            url,
            ttl
        );
        start(&all, label, words)
    };
    let holder = job("holder", &proxied.url(&all), "8s").ready();
    let mut waiter = job("waiter", &all.url(), "30s");
    waiter.open();
    // The holder sees none of the sentinels, and only the old one of the servers.
    proxied.exchanges.iter().for_each(Exchange::cut);
    proxied.proxies[1..].iter().for_each(Proxy::vanish);
    all.shut_in(0);
    // Without a place in the queue it would do as well: it waits for as long as the lock isn't its own.
    waiter.finish().assert_code(0);
    holder.finish().assert_code(79);
    let turns = turns(all.home.path());
    let labels: Vec<&str> = turns.iter().map(|(_, label)| label.as_str()).collect();
    assert_eq!(labels, ["holder", "waiter"]);
    assert_in_turn(all.home.path());
}

#[test]
fn a_sentinel_that_never_answers_costs_a_moment() {
    let all = Replicated::start();
    // One doesn't accept connections, the other one does.
    let busy = UnresponsiveServer::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (busy, silent) = (busy.url(), silent.local_addr().unwrap().to_string());
    let busy = busy.strip_prefix("redis://").unwrap();
    let good = all.url_at(all.sentinels[1..].iter().map(|one| one.port));
    for bad in [busy, &silent] {
        let url = good.replace("://", &format!("://{bad},"));
        let began = Instant::now();
        assert_runs(&all, words!("--url {} REDLOCK_REDIS_TIMEOUT=50s", &url));
        assert_took_less(began, Duration::from_secs(25));
        // While a lock is held, too: it is renewed several times, and released.
        let words = words!("run --url {} --ttl 9s -k 200ms a", &url);
        let holder = start(&all, "holder", words).ready();
        all.servers[0].await_renewals("a", 2);
        holder.end();
    }
}

#[test]
fn a_sentinel_that_lies_has_no_password_sent_to_where_it_points() {
    let all = Replicated::start();
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    let assert_nobody_comes = || {
        let client = stranger.accept();
        assert!(client.is_err(), "a client has come: {client:?}");
    };
    let port = stranger.local_addr().unwrap().port();
    let liar = Exchange::new(&all.sentinels[0], vec![(all.servers[0].port, port)]);
    let ports = [liar.port, all.sentinels[1].port, all.sentinels[2].port];
    let url_of = |count| with_password(&all, &all.url_at(ports.into_iter().take(count)));
    let (of_two, of_three) = (url_of(2), url_of(3));
    assert_runs(&all, &["--url", &of_three]);
    assert_nobody_comes();
    // While a lock is held, all sentinels are asked with each renewal.
    let words = words!("run --url {} --ttl 6s -k 200ms a", &of_three);
    let holder = start(&all, "holder", words).ready();
    all.servers[0].await_renewals("a", 4);
    holder.end();
    assert_nobody_comes();
    // One against one: nobody knows which is right.
    outcome(&mut all.redlock(&["--url", &of_two, "status"])).assert_said(69, "don't agree");
    assert_nobody_comes();
    // A quick sentinel isn't most of three, nor of two, however late the others are.
    all.sentinels[1..].iter().for_each(Sentinel::stall);
    for (url, of) in [(of_three, 3), (of_two, 2)] {
        let hasty = words!("--url {} REDLOCK_REDIS_TIMEOUT=4s status", &url);
        let says = format!("only 1 of {of} sentinels named the primary");
        outcome(&mut all.redlock(hasty)).assert_said(69, &says);
    }
    assert_nobody_comes();
    all.sentinels[1..].iter().for_each(Sentinel::resume);
}

#[test]
fn sentinels_that_want_a_password_get_their_own() {
    let all = Replicated::start();
    let play = |table: &str| all.servers[0].play(table);
    // A URL for a server, at a sentinel; and a password that it doesn't want.
    let address = format!("127.0.0.1:{}", all.sentinels[0].port);
    play(&format!(
        "78 redis://{address} → use redis-sentinel://{address}/NAME
        77 redis-sentinel://{address}/{MASTER}?sentinel_password=x → needs no password; leave sentinel_password out of the URL"
    ));
    let url = with_password(&all, &all.url());
    for server in &all.servers {
        server.cli(&["ACL", "SETUSER", "default", "resetkeys"]);
    }
    for sentinel in &all.sentinels {
        // Redis 6.0 has no users of sentinels.
        if sentinel.cli(&["ACL", "WHOAMI"]) != "default" {
            return;
        }
        let user = words!("ACL SETUSER asker on {} +sentinel", ">hunter2 hush");
        assert_eq!(sentinel.cli(user), "OK");
        assert_eq!(sentinel.cli(words!("ACL SETUSER default off")), "OK");
    }
    let file = all.home.path().join("password");
    fs::write(&file, "hunter2 hush\n").unwrap();
    set_mode(&file, 0o600);
    let (user, file) = ("sentinel_user=asker", file.display());
    play(&format!(
        "0 '{url}?{user}&sentinel_password=hunter2%20hush'
        0 '{url}?{user}&sentinel_password_file={file}'"
    ));
    for refused in [format!("{url}?{user}&sentinel_password=hunter2"), url] {
        let end = outcome(&mut redlock(&["run", "-u", &refused, "a", "--", "true"]));
        end.assert_code(77);
        let shown = ["theirs", "hunter2"].map(|secret| end.stderr.contains(secret));
        assert_eq!(shown, [false; 2], "{end:?}");
    }
}

#[test]
fn a_freeze_the_history_groups_and_the_lock_of_a_script_survive_a_failover() {
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

#[test]
fn a_release_goes_to_the_primary_that_the_sentinels_name_or_will_name_next() {
    let mut all = Replicated::start();
    for (way, timeout, is_replaced, sync) in [
        // No primary hears it.
        (Way::Killed, "10s", false, "0"),
        (Way::Stopped, "10s", false, "0"),
        // The old primary takes it with it.
        (Way::ShutIn, "10s", false, "all"),
        // A failover takes longer than this: the time for that is 5 s, or --kill-after.
        (Way::Killed, "500ms", false, "0"),
        (Way::Stopped, "500ms", false, "0"),
        // There is another primary than the one that granted the lock.
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
        let history = outcome(&mut all.redlock(&["history", "a", "--json"]));
        let history = &history.assert_code(0).stdout;
        assert!(!history.contains("lost"), "{history}");
        way.recover(&mut all, old);
    }
    assert_in_turn(all.home.path());
}

#[test]
fn a_run_of_many_locks_tries_to_release_them_for_as_long_as_one_where_no_primary_answers() {
    let mut all = Replicated::start();
    let line = format!("run --ttl 1m -k 2s REDLOCK_REDIS_TIMEOUT=2s {}", locks(20));
    let mut holder = start(&all, "holder", &words(&line, &[])).ready();
    all.servers.iter_mut().for_each(Redis::kill);
    let began = Instant::now();
    holder.open();
    holder.finish().assert_code(0);
    // For the first two seconds, and once more for each: not for forty.
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
    let holders = [("a", "0"), ("b", "1"), ("c", "all")].map(|(name, sync)| {
        let words = words!("run --ttl 12s -k 1s REDLOCK_SYNC={} {}", sync, name);
        (name, start(&all, name, words).ready())
    });
    wait_until("all were renewed", || all.servers[0].trackers() >= 3);
    all.servers[1].kill();
    let primary = &all.servers[0];
    wait_until("the replica is gone", || {
        primary.info("replication", "connected_slaves") == "1"
    });
    for (name, mut holder) in holders {
        // Two renewals later nobody waits for it any more.
        primary.await_renewals(name, 3);
        holder.open();
        let began = Instant::now();
        let end = holder.finish();
        assert_took_less(began, Duration::from_secs(10));
        end.assert_code(0);
        assert!(!end.stderr.contains("replicas"), "{name} {end:?}");
        assert_eq!(primary.holder(name), None);
    }
}

/// The names of so many locks, in a line.
fn locks(count: u32) -> String {
    let names: Vec<String> = (0..count).map(|number| format!("lock-{number}")).collect();
    names.join(" ")
}

#[test]
fn a_run_that_a_signal_ends_does_not_wait_for_silent_sentinels_with_each_release() {
    let mut all = Replicated::start();
    let locks = locks(48);
    let line = format!("run --ttl 9s -k 1s {locks} -- sleep 60");
    let run = Running::start(&mut all.redlock(&words(&line, &[])));
    wait_until("it has all", || {
        locks.split(' ').all(|name| all.servers[0].is_held(name))
    });
    all.sentinels.iter().for_each(Sentinel::stall);
    all.servers[1..].iter_mut().for_each(Redis::kill);
    // No release asks for them any more after the second renewal that is that much later.
    all.servers[0].await_renewals("lock-0", 5);
    let began = Instant::now();
    send(run.pid(), libc::SIGTERM);
    run.finish();
    assert_took_less(began, Duration::from_secs(12));
    all.sentinels.iter().for_each(Sentinel::resume);
    all.servers[0].await_free(&locks);
}

#[test]
fn a_run_whose_lease_a_failover_may_outlast_says_so() {
    let all = Replicated::start();
    let (run, says) = (
        format!("redlock -u {} run", all.url()),
        "may end during a failover",
    );
    all.servers[0].play(&format!(
        "0 {run} --ttl 7s -k 1s a -- true → {says}
        0 {run} --ttl 7s -k 1s -q a -- true
        0 {run} --ttl 30s -k 1s a -- true
        0 REDLOCK_SYNC=all {run} --ttl 7s -k 1s a -- true → {says}
        0 REDLOCK_SYNC=all {run} --ttl 12s -k 1s a -- true"
    ));
}

#[test]
fn over_tls_a_primary_that_is_named_by_its_number_is_reached_by_the_urls_name_of_that_host() {
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
    let _sentinel = Sentinel::start("127.0.0.1".into(), port, &text, Vec::new(), Vec::new());
    let url = format!("rediss-sentinel://localhost:{port}/{MASTER}");
    let ca = cert.to_str().unwrap();
    let words = words!("-u {} REDLOCK_TLS_CA={} run -w 30s a -- echo ran", &url, ca);
    outcome(&mut redlock(words)).assert_printed(0, "ran\n");
}

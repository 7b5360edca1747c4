//! A primary with replicas and three sentinels.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::proxy::{Action, Proxy};
use super::{
    Network, Redis, Scratch, TIMEOUT, ask, await_some, cli, free_port, redlock_at, send,
    server_under, state, wait_until, words,
};

/// Name of the primary in the sentinels' configuration.
pub const MASTER: &str = "main";

/// Time of silence after which each sentinel considers a server dead. The first sentinel does so some time before the second,
/// and calls for an election at once. Simultaneous candidates would share the votes, and none would win.
const DOWN_AFTER_MS: [u32; 3] = [900, 1900, 2900];

/// Timers of the sentinels, which check all servers and each other more often than usual, so that a failover takes a second or
/// two. Sentinels without such options (Redis 6) need somewhat longer.
// The TILT timers are long, because a busy machine is no reason to do nothing for half a minute.
const TIMERS: &str = "INFO-PERIOD 300 PING-PERIOD 400 ASK-PERIOD 100 PUBLISH-PERIOD 200 MIN-LINK-RECONNECT-PERIOD 500 \
    SLAVE-RECONF-TIMEOUT 1500 ELECTION-TIMEOUT 1500 TILT-TRIGGER 15000 TILT-PERIOD 500";

/// Places and options of the servers.
#[derive(Default)]
pub struct Plan<'a> {
    /// Options of all servers.
    pub options: &'a [&'a str],
    /// Words that start a server, by its number: a clock, for example.
    pub before: HashMap<usize, Vec<String>>,
    /// Network in which each server and each sentinel has a host of its own.
    pub network: Option<&'a Network>,
    /// More lines for the sentinels' configuration.
    pub sentinel_lines: &'a str,
}

/// A primary, two replicas and three sentinels, all gone when dropped. The servers are numbered; number 0 is the first primary.
pub struct Replicated {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Sentinel>,
    /// Home directory of its users.
    pub home: Scratch,
}

impl Replicated {
    /// Starts everything: the sentinels know all servers, and the replicas are in sync.
    pub fn start() -> Self {
        Self::with(&Plan::default())
    }

    pub fn with(plan: &Plan) -> Self {
        let address = |number: usize| match plan.network {
            Some(_) => Network::address(number),
            None => "127.0.0.1".to_owned(),
        };
        let mut servers: Vec<Redis> = Vec::new();
        for number in 0..3 {
            let mut before = match plan.network {
                Some(network) => network.on(number),
                None => Vec::new(),
            };
            before.extend(plan.before.get(&number).cloned().unwrap_or_default());
            let bind = address(number);
            // A user for each of them, so that a server can refuse one of the others.
            let mut options = vec!["--repl-diskless-sync-delay", "0", "--repl-timeout", "5"];
            options.extend(["--protected-mode", "no", "--bind", &bind]);
            let users = ["sentinel", "server-0", "server-1", "server-2"];
            for user in users {
                options.extend(["--user", user, "on", ">secret", "~*", "+@all"]);
            }
            options.extend(["--masteruser", users[1 + number], "--masterauth", "secret"]);
            let primary = servers.first().map(|first| first.port.to_string());
            let first = address(0);
            if let Some(port) = &primary {
                options.extend(["--replicaof", &first, port]);
            }
            options.extend(plan.options);
            servers.push(Redis::at(free_port, &before, &options));
            permit_channels(&servers[number]);
        }
        // Otherwise the sentinels would find a replica late, because the primary doesn't know it yet.
        let in_sync = |server: &Redis| server.info("replication", "master_link_status");
        for replica in &servers[1..] {
            wait_until("the replica is in sync", || in_sync(replica) == "up");
        }
        let places: Vec<(String, u16)> = (0..3).map(|at| (address(at), servers[at].port)).collect();
        let sentinels = Sentinel::three(plan, &places);
        let home = Scratch::new();
        let all = Self {
            servers,
            sentinels,
            home,
        };
        all.wait_until_whole();
        all
    }

    /// Returns the URL of the sentinels.
    pub fn url(&self) -> String {
        let each = self.sentinels.iter();
        self.url_at(each.map(|sentinel| sentinel.port))
    }

    /// Returns the URL of the sentinels at these ports.
    pub fn url_at(&self, ports: impl Iterator<Item = u16>) -> String {
        let each = self.sentinels.iter().zip(ports);
        let each = each.map(|(sentinel, port)| format!("{}:{port}", sentinel.host));
        let hosts: Vec<String> = each.collect();
        format!("redis-sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// Returns a redlock that knows the sentinels, with nothing of the tests' environment.
    pub fn redlock(&self, arguments: &[&str]) -> Command {
        redlock_at(&self.url(), self.home.path(), arguments)
    }

    /// Returns the number of the server that the sentinels call the primary; `None` while they don't agree, or while that
    /// server isn't a primary yet.
    pub fn agreed(&self) -> Option<usize> {
        let mut all = self.sentinels.iter().filter(|one| one.is_running());
        let port = all.next()?.primary_port()?;
        let agree = all.all(|other| other.primary_port() == Some(port));
        let number = self.servers.iter().position(|one| one.port == port)?;
        let is_primary = || self.servers[number].info("replication", "role") == "master";
        (agree && is_primary()).then_some(number)
    }

    /// Waits until all agree about the primary. Returns its number.
    pub fn primary(&self) -> usize {
        await_some("the sentinels agree about the primary", || self.agreed())
    }

    /// Waits until all agree about another primary. Returns its number.
    pub fn primary_after(&self, old: usize) -> usize {
        await_some("the sentinels agree about another primary", || {
            self.agreed().filter(|&number| number != old)
        })
    }

    /// Waits until the replicas have all of their primary's data.
    #[track_caller]
    pub fn settle(&self, primary: usize) {
        // `WAIT` on a connection that has written nothing waits for nothing.
        let offset = |server: &Redis| server.info("replication", "master_repl_offset");
        let at: u64 = offset(&self.servers[primary]).parse().unwrap();
        let has_it = |server: &Redis| offset(server).parse().is_ok_and(|has: u64| has >= at);
        wait_until("the replicas have it all", || {
            self.servers.iter().all(has_it)
        });
    }

    /// Lets the sentinels promote another server; the old primary becomes its replica. Returns the number of the new one.
    #[track_caller]
    pub fn failover(&self) -> usize {
        let old = self.primary();
        let old_port = Some(self.servers[old].port);
        let mut requested_at: Option<Instant> = None;
        wait_until("the sentinels have made another server the primary", || {
            // A failover may fail on a busy machine. If the other sentinels are only slow, a second one would be too many.
            if requested_at.is_none_or(|at| at.elapsed() > Duration::from_secs(4))
                && self.sentinels[0].primary_port() == old_port
            {
                self.sentinels[0].cli(&["SENTINEL", "FAILOVER", MASTER]);
                requested_at = Some(Instant::now());
            }
            self.agreed().is_some_and(|number| number != old)
        });
        self.primary()
    }

    /// Waits until everything is well: the sentinels agree and see each other, all servers run, and the replicas are in sync.
    #[track_caller]
    pub fn wait_until_whole(&self) {
        let end = Instant::now() + TIMEOUT;
        while let Some(lacking) = self.lacking() {
            assert!(Instant::now() < end, "never well: {lacking}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns a fault that remains, if there is one.
    pub fn lacking(&self) -> Option<String> {
        let Some(primary) = self.agreed() else {
            return Some("the sentinels don't agree".into());
        };
        let port = self.servers[primary].port.to_string();
        for (number, server) in self.servers.iter().enumerate() {
            let field = |name| server.info("replication", name);
            let follows = field("master_link_status") == "up" && field("master_port") == port;
            if number != primary && !follows {
                let all = server.cli(&["INFO", "replication"]);
                return Some(format!("{number} doesn't follow {primary}: {all}"));
            }
        }
        let replicas = self.servers.len() - 1;
        if !self.servers[primary].is_followed_by(u32::try_from(replicas).unwrap()) {
            let info = self.servers[primary].cli(&["INFO", "replication"]);
            return Some(format!("the primary passes nothing on to one: {info}"));
        }
        let mut sentinels = self.sentinels.iter();
        let blind = sentinels.find(|sentinel| !sentinel.sees(replicas))?;
        let [replicas, sentinels] = ["REPLICAS", "SENTINELS"].map(|of| blind.fields(of, "flags"));
        Some(format!("a sentinel sees {replicas:?} {sentinels:?}"))
    }

    /// Starts a killed server again, empty.
    pub fn start_again(&mut self, number: usize) {
        self.servers[number].start_again();
        permit_channels(&self.servers[number]);
    }

    /// Lets a server refuse the sentinels and the other servers, but nobody else, as if it were cut off together with its
    /// clients.
    pub fn shut_in(&self, number: usize) {
        let server = &self.servers[number];
        for user in self.others(number) {
            self.refuse(number, &user);
        }
        // A server whose own user is refused becomes the default user.
        let rules = ["-@dangerous", "-ping", "+role", "+acl"];
        server.cli(&[&["ACL", "SETUSER", "default"][..], &rules].concat());
    }

    /// Undoes `shut_in`.
    pub fn let_in(&self, number: usize) {
        let server = &self.servers[number];
        server.cli(&["ACL", "SETUSER", "default", "+@all"]);
        for user in self.others(number) {
            server.cli(&["ACL", "SETUSER", &user, "on"]);
        }
    }

    /// Returns the users of the sentinels and the other servers.
    fn others(&self, number: usize) -> Vec<String> {
        let others = (0..self.servers.len()).filter(|&other| other != number);
        let others = others.map(|other| format!("server-{other}"));
        others.chain(["sentinel".to_owned()]).collect()
    }

    /// Keeps the sentinels from considering any server dead during a test, or restores their usual timers.
    pub fn set_patient(&self, is_patient: bool) {
        for (sentinel, usual) in self.sentinels.iter().zip(DOWN_AFTER_MS) {
            let after = if is_patient { 600_000 } else { usual };
            let set = ["SENTINEL", "SET", MASTER, "down-after-milliseconds"];
            let set = sentinel.cli(&[&set[..], &[&after.to_string()]].concat());
            assert_eq!(set, "OK");
        }
    }

    /// Lets the sentinels prefer this replica for a promotion; they never promote those with a priority of 0.
    #[track_caller]
    pub fn prefer(&self, replica: usize) {
        let server = &self.servers[replica];
        assert_eq!(
            server.cli(&["CONFIG", "SET", "replica-priority", "1"]),
            "OK"
        );
        let port = server.port.to_string();
        let knows = |sentinel: &Sentinel| {
            let listed = sentinel.fields("REPLICAS", "slave-priority");
            let of = sentinel.fields("REPLICAS", "port");
            of.iter()
                .zip(listed)
                .any(|(of, is)| *of == port && is == "1")
        };
        wait_until("the sentinels know", || self.sentinels.iter().all(knows));
    }

    /// Breaks the connection from a replica to its primary: no later write reaches the replica. To sentinels both look well.
    #[track_caller]
    pub fn cut_replication(&self, primary: usize, replica: usize) {
        self.refuse(primary, &format!("server-{replica}"));
        let link = || self.servers[replica].info("replication", "master_link_status");
        wait_until("the replica isn't connected", || link() == "down");
    }

    /// Lets a server refuse a user, and ends the user's connections.
    pub fn refuse(&self, number: usize, user: &str) {
        let server = &self.servers[number];
        server.cli(&["ACL", "SETUSER", user, "off"]);
        server.cli(&["CLIENT", "KILL", "USER", user]);
    }
}

/// Permits the channels by which sentinels find each other. Redis 6.0 has no such permissions.
pub fn permit_channels(server: &Redis) {
    server.cli(&["ACL", "SETUSER", "sentinel", "&*"]);
}

/// A sentinel, gone when dropped.
pub struct Sentinel {
    pub host: String,
    pub port: u16,
    dir: tempfile::TempDir,
    before: Vec<String>,
    process: Child,
}

impl Sentinel {
    /// Starts three sentinels that know each other from the start, because finding each other takes seconds.
    fn three(plan: &Plan, places: &[(String, u16)]) -> Vec<Self> {
        let ports = std::iter::repeat_with(free_port);
        let hosts = places.iter().map(|(host, _)| host.clone());
        let sentinels: Vec<(String, u16)> = hosts.zip(ports).collect();
        let each = (0..3).map(|number| {
            let settings = format!(
                "down-after-milliseconds {}, failover-timeout 2000, parallel-syncs 2, \
                 auth-user sentinel, auth-pass secret",
                DOWN_AFTER_MS[number]
            );
            let text = Self::configuration(number, &sentinels, places, 1, &settings);
            let before = plan
                .network
                .map_or_else(Vec::new, |network| network.on(number));
            let (host, port) = sentinels[number].clone();
            Self::start(host, port, &(text + plan.sentinel_lines), before)
        });
        let all: Vec<Self> = each.collect();
        for sentinel in &all {
            wait_until("the sentinel answers", || sentinel.cli(&["PING"]) == "PONG");
            sentinel.hurry();
        }
        all
    }

    /// Returns the configuration of one sentinel that knows the others and these servers, the primary first.
    pub fn configuration(
        number: usize,
        sentinels: &[(String, u16)],
        servers: &[(String, u16)],
        quorum: u32,
        settings: &str,
    ) -> String {
        let id = |number: usize| format!("{:040x}", 0xabc + number);
        let ((host, port), (primary, primary_port)) = (&sentinels[number], &servers[0]);
        let mut text = format!(
            "port {port}\nbind {host}\nprotected-mode no\nsentinel myid {}\n\
             sentinel monitor {MASTER} {primary} {primary_port} {quorum}\n",
            id(number)
        );
        for (name, value) in settings.split(", ").filter_map(|line| line.split_once(' ')) {
            let _ = writeln!(text, "sentinel {name} {MASTER} {value}");
        }
        for (host, port) in &servers[1..] {
            let _ = writeln!(text, "sentinel known-replica {MASTER} {host} {port}");
        }
        for (other, (host, port)) in sentinels.iter().enumerate() {
            if other != number {
                let id = id(other);
                let _ = writeln!(text, "sentinel known-sentinel {MASTER} {host} {port} {id}");
            }
        }
        text
    }

    /// Starts a sentinel with this configuration and the words `before`.
    pub fn start(host: String, port: u16, text: &str, before: Vec<String>) -> Self {
        // In memory, because a sentinel writes to the disk before it votes, and a busy disk would delay elections.
        let memory = ["/dev/shm", "/tmp"]
            .into_iter()
            .find(|path| fs::exists(path).unwrap_or(false));
        let dir = tempfile::tempdir_in(memory.unwrap_or(".")).unwrap();
        let configuration = dir.path().join("sentinel.conf");
        let directory = dir.path().display();
        let all = format!("dir {directory}\nunixsocket {directory}/redis.sock\n{text}");
        fs::write(&configuration, all).unwrap();
        let process = Self::launch(dir.path(), &before);
        Self {
            host,
            port,
            dir,
            before,
            process,
        }
    }

    /// Starts the process with the configuration in this directory.
    fn launch(dir: &Path, before: &[String]) -> Child {
        let mut log = fs::OpenOptions::new();
        let log = log.create(true).append(true).open(dir.join("sentinel.log"));
        let log = log.unwrap();
        let mut command = server_under(before);
        command
            .arg(dir.join("sentinel.conf"))
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Starts it again after `kill`, with its old knowledge. Call [`Self::hurry`] once it answers.
    pub fn launch_again(&mut self) {
        self.process = Self::launch(self.dir.path(), &self.before);
    }

    /// Makes it check servers more often. Returns true if it has answered.
    pub fn hurry(&self) -> bool {
        let answers = self.cli(&["PING"]) == "PONG";
        self.cli(&words(&format!("SENTINEL DEBUG {TIMERS}"), &[]));
        answers
    }

    /// Returns what redis-cli would print for a command.
    pub fn cli(&self, command: &[&str]) -> String {
        cli(&self.socket(), command)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// Returns the port of the server that it calls the primary.
    pub fn primary_port(&self) -> Option<u16> {
        let address = self.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])?;
        let (_, port): (String, String) = redis::from_redis_value(address).ok()?;
        port.parse().ok()
    }

    pub fn ask(&self, command: &[&str]) -> Option<redis::Value> {
        ask(&self.socket(), command)
    }

    /// Returns true if it considers the primary, this many replicas and both other sentinels well.
    pub fn sees(&self, replicas: usize) -> bool {
        self.fields("REPLICAS", "flags") == vec!["slave"; replicas]
            && self.fields("SENTINELS", "flags") == ["sentinel"; 2]
    }

    /// Returns a field of each server of this kind that it knows.
    pub fn fields(&self, of: &str, name: &str) -> Vec<String> {
        let each = self.ask(&["SENTINEL", of, MASTER]);
        let each = each.and_then(|each| redis::from_redis_value(each).ok());
        let each: Vec<HashMap<String, String>> = each.unwrap_or_default();
        let field = |one: &HashMap<String, String>| one.get(name).cloned();
        each.iter().filter_map(field).collect()
    }

    /// Returns true if its process has neither ended nor been suspended.
    pub fn is_running(&self) -> bool {
        !matches!(state(self.pid()), None | Some('Z' | 'T'))
    }

    /// Suspends its process: it accepts connections and never answers.
    pub fn stall(&self) {
        send(self.pid(), libc::SIGSTOP);
    }

    pub fn resume(&self) {
        send(self.pid(), libc::SIGCONT);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("sentinel.log"));
            let log = log.unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(200).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            let _ = writeln!(
                std::io::stderr(),
                "sentinel {}:\n{}",
                self.port,
                last.join("\n")
            );
        }
    }
}

/// A proxy in front of a sentinel that replaces the ports of servers by those of their proxies. Gone when dropped.
pub struct Exchange {
    pub port: u16,
    proxy: Proxy,
}

impl Exchange {
    /// Starts one that replaces the first port of each pair by the second, in everything about the primary.
    pub fn new(sentinel: &Sentinel, ports: Vec<(u16, u16)>) -> Self {
        let text = |port: u16| format!("\n{port}\r");
        let ports = ports.into_iter();
        let texts = ports.map(|(server, proxy)| (text(server), text(proxy)));
        let texts: Vec<(String, String)> = texts.collect();
        let exchange = move |answer: &mut Vec<u8>| {
            // A list of lists contains the replicas.
            let is_of_replicas = answer.windows(3).find(|part| part.starts_with(b"\r\n"));
            if is_of_replicas.is_some_and(|part| part[2] == b'*') {
                return;
            }
            // Both ports have five digits, so the length stays.
            let text = String::from_utf8_lossy(answer).into_owned();
            let exchanged = texts
                .iter()
                .fold(text, |text, (old, new)| text.replace(old, new));
            *answer = exchanged.into_bytes();
        };
        let proxy = Proxy::rewriting(sentinel.port, |_| Action::Pass, exchange);
        Self {
            port: proxy.port(),
            proxy,
        }
    }

    /// Stops passing anything.
    pub fn cut(&self) {
        self.proxy.set_hook(|_| Action::LoseReply);
    }
}

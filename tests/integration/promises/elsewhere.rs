//! Guarded work on the hosts that a deploy reaches over ssh. If the connection, the run or the guard fails, the work of two
//! holders still never overlaps: each piece of work logs a beat every 10 ms.
//!
//! The hosts are one sshd, which runs as the user of the tests and so can't use PAM. root needs a directory
//! for it, /run/sshd.

use std::path::{Path, PathBuf};

use crate::promises::terminal::parent;
use crate::support::prelude::*;

const HOSTS: [&str; 3] = ["web-1", "web-2", "web-3"];

/// Script of the work on a host, which only its guard or the test ends: it ignores ends of streams, SIGTERM, SIGHUP and
/// SIGPIPE.
const WORK: &str = r#"#!/bin/sh
trap '' TERM HUP PIPE
beat() { date +%s%N >>"$SITE/beats.$1"; }
beat "$1"
echo "$$ $PPID" >"$SITE/at.draft.$1"; mv "$SITE/at.draft.$1" "$SITE/at.$1"
while [ ! -e "$SITE/over" ]; do beat "$1"; sleep 0.01; done
"#;

/// Script of a deploy to all hosts at once, which prints the pid of each client.
const OVER_SSH: &str = r#"
    for host in web-1 web-2 web-3; do
        printf '%s\n' "$REDLOCK_HELD" |
            ssh -F "$SITE/ssh" "$host" redlock guard -k 200ms --held - -- '"$SITE/work"' "$host" &
        echo $!
    done
    wait"#;

/// Hosts, with a Redis that all of them reach.
struct Site {
    redis: Redis,
    server: Running,
}

impl Site {
    fn dir(&self) -> &Path {
        self.redis.dir.path()
    }

    /// Starts hosts that are reached over ssh.
    fn over_ssh() -> Self {
        let redis = Redis::start();
        let dir = redis.dir.path().to_owned();
        script(&dir, "work", WORK);
        // A system service would create the directory, which some versions of sshd require. sshd needs its full path to
        // re-execute itself.
        let prepare =
            "for key in host-key key; do ssh-keygen -q -t ed25519 -N '' -f ~/$key || exit; done
            [ ! -d /run ] || mkdir -p -m 755 /run/sshd 2>/dev/null
            PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin; command -v sshd";
        let end = outcome(&mut sh(&redis, prepare));
        let sshd = end.assert_code(0).stdout.trim();
        // At this SHLVL bash doesn't read the user's .bashrc.
        let config = format!(
            "ListenAddress 127.0.0.1\nHostKey {dir}/host-key\nPidFile none\nStrictModes no\n\
             PermitRootLogin yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             AuthorizedKeysFile {dir}/key.pub\nMaxStartups 100\n\
             SetEnv SHLVL=1 \"PATH={path}\" SITE={dir} REDLOCK_URL={url}\n",
            dir = dir.display(),
            path = path(),
            url = redis.url(),
        );
        fs::write(dir.join("sshd"), config).unwrap();
        let (server, port) = loop {
            let port = free_port();
            let mut command = Command::new(sshd);
            command.args(["-D", "-e", "-p", &port.to_string(), "-f"]);
            let mut server = Running::start(command.arg(dir.join("sshd")));
            let answers = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            wait_until("sshd listens, or has ended", || {
                server.has_ended() || answers()
            });
            if !server.has_ended() {
                break (server, port);
            }
            server.finish().assert_says("Address already in use");
        };
        let config = format!(
            "Host web-*\n HostName 127.0.0.1\n Port {port}\n IdentityFile {dir}/key\n \
             IdentitiesOnly yes\n BatchMode yes\n StrictHostKeyChecking no\n \
             UserKnownHostsFile /dev/null\n GlobalKnownHostsFile /dev/null\n LogLevel ERROR\n",
            dir = dir.display(),
        );
        fs::write(dir.join("ssh"), config).unwrap();
        Self { redis, server }
    }

    /// Starts a deploy under lock "a". Returns the run and its ssh clients when the work has begun on each host. `before`
    /// precedes the words of redlock.
    fn deploy(&self, before: &[&str], ttl: &str, deploy: &str) -> (Running, Vec<i32>) {
        let run = words!("{} run --ttl {} a -c", REDLOCK, ttl, deploy);
        let mut command = directly(&self.redis, &[before, run].concat());
        let mut run = Running::start(command.env("SITE", self.dir()));
        let clients = HOSTS.map(|_| run.line().parse().unwrap()).to_vec();
        wait_until("the work has begun on each host", || {
            HOSTS.iter().all(|host| self.at(host).exists())
        });
        (run, clients)
    }

    /// Returns the file with the pids of the work on a host and of its guard.
    fn at(&self, host: &str) -> PathBuf {
        self.dir().join(format!("at.{host}"))
    }

    fn pids(&self, host: &str) -> (i32, i32) {
        let text = fs::read_to_string(self.at(host)).unwrap();
        let (work, guard) = text.trim().split_once(' ').unwrap();
        (work.parse().unwrap(), guard.parse().unwrap())
    }

    fn let_work_end(&self) {
        fs::write(self.dir().join("over"), "").unwrap();
    }

    /// Queues the next deploy, whose work begins with its turn.
    fn next(&self) -> Running {
        let turn = r#"date +%s%N >"$HOME/beats.next"; echo turn"#;
        queued(&self.redis, &["run", "-q", "a", "-c", turn])
    }

    /// Returns true if the lock is kept for the guards of a run that is over.
    fn is_kept(&self) -> bool {
        json(&self.redis, "status --json a")[0]["holders"][0]["kept"] == true
    }

    /// Returns the times of the beats on a host.
    fn beats(&self, host: &str) -> Vec<Duration> {
        let beats = self.dir().join(format!("beats.{host}"));
        let text = fs::read_to_string(beats).unwrap();
        text.lines().map(crate::support::moment).collect()
    }

    /// Asserts that the work on each host goes on.
    #[track_caller]
    fn assert_works(&self) {
        for host in HOSTS {
            assert!(is_alive(self.pids(host).0), "{host}");
        }
    }

    /// Waits for the next deploy's turn, and asserts that all work of this one was over before.
    #[track_caller]
    fn assert_hands_on(&self, mut next: Running) {
        next.expect_line("turn");
        next.finish().assert_exited(0);
        // Work that should be dead by now gets time to beat once more.
        for host in HOSTS {
            let (work, _) = self.pids(host);
            wait_until("the work is dead", || !is_alive(work));
        }
        let last = HOSTS.into_iter().flat_map(|host| self.beats(host)).max();
        let (last, turn) = (last.unwrap(), self.beats("next")[0]);
        assert!(
            last < turn,
            "work went on for {:?} after the next deploy's turn",
            last.saturating_sub(turn)
        );
    }

    /// Asserts that no guard is left in Redis.
    #[track_caller]
    fn assert_all_have_left(&self) {
        let guards = self.redis.cli(&["HKEYS", "{redlock:a}:guards"]);
        assert_eq!(guards, "", "no guard is left");
    }

    /// Returns the process that sshd started for the connection to a host.
    fn connection(&self, host: &str) -> i32 {
        let (_, guard) = self.pids(host);
        let mut process = guard;
        loop {
            let above = parent(process);
            assert!(above > 1, "the guard isn't sshd's");
            if above == self.server.pid() {
                return process;
            }
            process = above;
        }
    }
}

#[test]
fn a_deploy_over_ssh_hands_its_lock_on_after_the_work_on_each_host_even_if_ssh_or_sshd_was_killed()
{
    for killed in ["nothing", "sshd", "ssh"] {
        let site = Site::over_ssh();
        let (run, clients) = site.deploy(&[], "60s", OVER_SSH);
        let next = site.next();
        if killed == "nothing" {
            site.let_work_end();
        } else if killed == "sshd" {
            let kill = |host: &str| send(site.connection(host), libc::SIGKILL);
            HOSTS.into_iter().for_each(kill);
        } else {
            send(clients[0], libc::SIGTERM);
            send(clients[1], libc::SIGKILL);
            // The rest of the deploy goes on, including the work that lost its connection.
            wait_until("two clients are gone", || {
                !is_alive(clients[0]) && !is_alive(clients[1])
            });
            site.assert_works();
            send(clients[2], libc::SIGKILL);
        }
        run.finish().assert_exited(0);
        site.assert_hands_on(next);
        site.assert_all_have_left();
    }
}

#[test]
fn a_guard_that_is_suspended_on_its_host_does_not_delay_the_next_turn_for_long() {
    let site = Site::over_ssh();
    let (run, clients) = site.deploy(&[], "10s", OVER_SSH);
    let next = site.next();
    let (_, guard) = site.pids(HOSTS[0]);
    await_watchdog(guard);
    send(guard, libc::SIGSTOP);
    let suspended = Instant::now();
    for client in clients {
        send(client, libc::SIGKILL);
    }
    wait_until("the run is over for the server", || site.is_kept());
    site.assert_hands_on(next);
    // A lease, and slack for a busy machine.
    assert_took_less(suspended, Duration::from_secs(30));
    send(guard, libc::SIGCONT);
    run.finish().assert_exited(0);
}

#[test]
fn after_the_death_of_the_holders_host_all_work_is_dead_when_its_lease_ends() {
    let site = Site::over_ssh();
    // The run gets a PID namespace of its own, if that is permitted: then its watchdog and the next deploy can't find
    // the work by the token.
    let apart = in_own_pids().unwrap_or_default();
    let (mut run, _) = site.deploy(&apart, "10s", OVER_SSH);
    let next = site.next();
    run.kill();
    site.assert_hands_on(next);
}

#[test]
fn a_ci_job_that_is_cancelled_and_then_killed_leaves_its_lock_to_the_work_on_its_hosts() {
    let site = Site::over_ssh();
    // Gives the guarded work plenty of time to end.
    let deploy = OVER_SSH.replace("-k 200ms", "-k 25s");
    let (mut run, _) = site.deploy(&[], "60s", &deploy);
    let mut next = site.next();
    run.signal(Signal::SIGTERM);
    wait_until("the run is over for the server", || site.is_kept());
    assert!(!run.has_ended(), "it waits for its guards");
    run.kill();
    site.assert_works();
    assert!(!next.has_ended());
    site.let_work_end();
    site.assert_hands_on(next);
    site.assert_all_have_left();
}

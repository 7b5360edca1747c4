//! Hosts in a network that can be cut, slowed down and made to lose frames. Each host is a network namespace with a TAP device,
//! and one thread is the switch between them. The kernel only needs `/dev/net/tun`.

#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Dice, Running, TIMEOUT, is_permitted, outcome, path, without_terminal};

/// Treatment of the frames from one host to another.
#[derive(Clone, Copy, Default)]
pub struct Link {
    /// True if no frame arrives. The sender isn't notified, as with a router that drops packets.
    pub is_cut: bool,
    /// Delay of the frames.
    pub delay: Duration,
    /// Percentage of lost frames.
    pub loss: i64,
    /// Size above which frames are silently lost, in bytes (0: none): a black hole for large packets.
    pub cap: usize,
}

/// Links by the numbers of the sending and the receiving host; missing ones work normally.
type Links = Arc<Mutex<HashMap<(usize, usize), Link>>>;

/// A network of hosts, gone when dropped.
pub struct Network {
    hosts: Vec<Running>,
    links: Links,
    is_over: Arc<AtomicBool>,
    switch: Option<JoinHandle<()>>,
}

impl Network {
    /// Creates a network. Returns `None` if namespaces or TAP devices aren't permitted.
    pub fn of(hosts: usize) -> Option<Self> {
        let probe = "ip tuntap add probe mode tap";
        if !is_permitted(&["unshare", "-nu", "sh", "-c", probe]) {
            return None;
        }
        let hosts: Vec<Running> = (0..hosts).map(namespaces).collect();
        let mut taps = Vec::new();
        for (number, host) in hosts.iter().enumerate() {
            taps.push(within(host.pid(), tap));
            let address = Self::address(number);
            let link = format!(
                "ip link set eth0 address 02:00:00:00:00:{number:02x} up && ip addr add {address}/24 dev eth0"
            );
            outcome(&mut inside(host, &["sh", "-c", &link])).assert_code(0);
        }
        let links = Links::default();
        let is_over = Arc::new(AtomicBool::new(false));
        let mut switch = Switch {
            taps,
            links: Arc::clone(&links),
            dice: Dice::new(1, 28),
            delayed: BinaryHeap::new(),
            count: 0,
        };
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                switch.forward();
            }
        });
        Some(Self {
            hosts,
            links,
            is_over,
            switch: Some(thread),
        })
    }

    /// Returns the address of a host.
    pub fn address(host: usize) -> String {
        format!("10.0.0.{}", host + 1)
    }

    /// Returns the words that start a command on a host ([`super::Redis::under`]).
    pub fn on(&self, host: usize) -> Vec<String> {
        let pid = self.hosts[host].pid().to_string();
        ["nsenter", "-t", &pid, "-n", "-u"]
            .map(str::to_owned)
            .to_vec()
    }

    /// Changes the links from each of some hosts to each of others, but not those in the other direction.
    pub fn change(&self, from: &[usize], to: &[usize], change: impl Fn(&mut Link)) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        for &one in from {
            for &other in to.iter().filter(|&&other| other != one) {
                change(links.entry((one, other)).or_default());
            }
        }
    }

    /// Cuts some hosts off from others, in both directions.
    pub fn part(&self, some: &[usize], others: &[usize]) {
        self.change(some, others, |link| link.is_cut = true);
        self.change(others, some, |link| link.is_cut = true);
    }

    /// Restores all links.
    pub fn heal(&self) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.clear();
    }

    /// Cuts a host off; all its frames are lost from then on.
    pub fn cut(&self, host: usize) {
        self.part(&[host], &self.all());
    }

    /// Returns the numbers of all hosts.
    pub fn all(&self) -> Vec<usize> {
        (0..self.hosts.len()).collect()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(switch) = self.switch.take() {
            let _ = switch.join();
        }
    }
}

/// A delayed frame: its time, its order among frames of the same time, its receiver, and its bytes.
type Delayed = Reverse<(Instant, u64, usize, Vec<u8>)>;

/// Passes frames from host to host. A host's hardware address ends with its number.
struct Switch {
    taps: Vec<File>,
    links: Links,
    dice: Dice,
    delayed: BinaryHeap<Delayed>,
    count: u64,
}

impl Switch {
    /// Waits a while for frames, and passes on those that have arrived or are due.
    fn forward(&mut self) {
        const LONGEST: Duration = Duration::from_millis(50);
        let first = self.delayed.peek().map(|Reverse((due, ..))| *due);
        let wait = first.map_or(LONGEST, |due| due.saturating_duration_since(Instant::now()));
        let wait = wait.min(LONGEST).as_micros().div_ceil(1000);
        let mut fds: Vec<PollFd> = self
            .taps
            .iter()
            .map(|tap| PollFd::new(tap.as_fd(), PollFlags::POLLIN))
            .collect();
        let _ = poll(&mut fds, PollTimeout::try_from(wait).unwrap());
        let readable: Vec<usize> = (0..fds.len())
            .filter(|&host| fds[host].any() == Some(true))
            .collect();
        for host in readable {
            let mut bytes = [0; 2048];
            // With a limit, so that no host delays the others.
            for _ in 0..64 {
                let Ok(length) = (&self.taps[host]).read(&mut bytes) else {
                    break;
                };
                self.pass(host, &bytes[..length]);
            }
        }
        let now = Instant::now();
        while self
            .delayed
            .peek()
            .is_some_and(|Reverse((due, ..))| *due <= now)
        {
            let Some(Reverse((_, _, to, frame))) = self.delayed.pop() else {
                break;
            };
            self.deliver(to, &frame);
        }
    }

    fn pass(&mut self, from: usize, frame: &[u8]) {
        let is_arp = match frame.get(12..14) {
            Some([8, 0]) => false,
            Some([8, 6]) => true,
            _ => return,
        };
        let is_for_all = frame[0] & 1 == 1;
        for to in (0..self.taps.len()).filter(|&to| to != from) {
            if !(is_for_all || usize::from(frame[5]) == to) {
                continue;
            }
            // ARP always works: a host that is cut off gets no "unreachable", but silence.
            let link = if is_arp {
                Link::default()
            } else {
                self.link(from, to)
            };
            let is_lost = link.is_cut
                || link.cap > 0 && frame.len() > link.cap
                || link.loss > 0 && self.dice.chance(link.loss);
            if is_lost {
                continue;
            }
            if link.delay.is_zero() {
                self.deliver(to, frame);
            } else {
                self.count += 1;
                let due = Instant::now() + link.delay;
                let delayed = (due, self.count, to, frame.to_vec());
                self.delayed.push(Reverse(delayed));
            }
        }
    }

    fn link(&self, from: usize, to: usize) -> Link {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.get(&(from, to)).copied().unwrap_or_default()
    }

    fn deliver(&self, to: usize, frame: &[u8]) {
        // A host with a full queue loses the frame.
        let _ = (&self.taps[to]).write(frame);
    }
}

/// Starts a process in namespaces of its own.
fn namespaces(host: usize) -> Running {
    // The process ends with the tests, even if they crash.
    let stay = "exec setpriv --pdeathsig KILL sleep infinity";
    let script = format!("hostname host{host} && ip link set lo up && echo ready && {stay}");
    let mut command = Command::new("unshare");
    command
        .args(["-nu", "sh", "-c", &script])
        .env("PATH", path());
    without_terminal(&mut command);
    let mut process = Running::start(&mut command);
    process.expect_line("ready");
    process
}

fn inside(host: &Running, words: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    let pid = host.pid().to_string();
    command.args(["-t", &pid, "-n"]).args(words);
    command
}

/// Runs `open` in the network of a host, because a device or socket belongs to the network of the thread that opens it.
fn within<T: Send + 'static>(host: i32, open: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let namespace = File::open(format!("/proc/{host}/ns/net")).unwrap();
        // SAFETY: a system call on a descriptor that this function owns.
        let entered = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
        open()
    });
    thread.join().unwrap()
}

/// Creates the device `eth0`, through which the frames of a host are read and written.
fn tap() -> File {
    let tap = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .unwrap();
    // SAFETY: all zero is an ifreq without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"eth0") {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).unwrap();
    // SAFETY: the request lives until the call returns.
    let made = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    tap
}

#[test]
fn a_link_delays_loses_and_cuts_off_what_is_sent_in_its_direction_alone() {
    let network = some_or_return!(Network::of(2));
    let sockets = [0, 1].map(|host| {
        let bind = || UdpSocket::bind("0.0.0.0:5000").unwrap();
        within(network.hosts[host].pid(), bind)
    });
    // Returns the time that these bytes take, if they arrive in time.
    let takes = |from: usize, to: usize, bytes: usize, patience: Duration| {
        let began = Instant::now();
        let address = (Network::address(to), 5000);
        sockets[from].send_to(&vec![0; bytes], address).unwrap();
        sockets[to].set_read_timeout(Some(patience)).unwrap();
        let read = sockets[to].recv(&mut [0; 2000]);
        read.is_ok().then(|| began.elapsed())
    };
    let arrives = |from, to, bytes| takes(from, to, bytes, TIMEOUT).is_some();
    let is_lost = |from, to, bytes| takes(from, to, bytes, Duration::from_secs(1)).is_none();
    assert!(arrives(0, 1, 1400) && arrives(1, 0, 1400));
    let late = Duration::from_secs(3);
    network.change(&[0], &[1], |link| link.delay = late);
    let takes = |from, to| takes(from, to, 10, TIMEOUT).unwrap();
    assert!(takes(0, 1) >= late && takes(1, 0) < late);
    network.change(&[0], &[1], |link| *link = Link::default());
    network.change(&[0], &[1], |link| link.cap = 600);
    assert!(arrives(0, 1, 500) && is_lost(0, 1, 700) && arrives(1, 0, 700));
    network.change(&[0], &[1], |link| link.loss = 100);
    assert!(is_lost(0, 1, 10) && arrives(1, 0, 10));
    network.heal();
    assert!(arrives(0, 1, 1400));
    network.part(&[0], &[1]);
    assert!(is_lost(0, 1, 10) && is_lost(1, 0, 10));
}

//! Hosts in a network that can be cut: each is a network namespace, and all are plugged into one switch.

use std::process::Command;

use super::{Running, is_permitted, outcome, path, without_terminal};

/// A network of hosts, gone when dropped.
pub struct Network {
    switch: Running,
    hosts: Vec<Running>,
}

impl Network {
    /// `None` where namespaces aren't permitted.
    pub fn of(hosts: usize) -> Option<Self> {
        let probe = "ip link add switch type bridge && ip link add v0 type veth peer name v1";
        if !is_permitted(&["unshare", "-n", "sh", "-c", probe]) {
            return None;
        }
        let switch = namespace("ip link add switch type bridge && ip link set switch up");
        let hosts = (0..hosts).map(|_| namespace("true")).collect();
        let network = Self { switch, hosts };
        for (number, host) in network.hosts.iter().enumerate() {
            let pid = host.pid();
            let plug = format!(
                "ip link add v{number} type veth peer name eth0 netns {pid} && ip link set v{number} master switch up"
            );
            outcome(&mut inside(&network.switch, &["sh", "-c", &plug])).assert_code(0);
            let address = Self::address(number);
            let link = format!("ip addr add {address}/24 dev eth0 && ip link set eth0 up");
            outcome(&mut inside(host, &["sh", "-c", &link])).assert_code(0);
        }
        Some(network)
    }

    /// The address of a host.
    pub fn address(host: usize) -> String {
        format!("10.0.0.{}", host + 1)
    }

    /// What starts a command on a host ([`super::Redis::under`]).
    pub fn on(&self, host: usize) -> Vec<String> {
        let pid = self.hosts[host].pid().to_string();
        ["nsenter", "-t", &pid, "-n"].map(str::to_owned).to_vec()
    }

    /// Pulls the plug of a host; what is sent is lost from then on.
    pub fn cut(&self, host: usize) {
        self.set(host, "down");
    }

    /// Puts it back.
    pub fn mend(&self, host: usize) {
        self.set(host, "up");
    }

    fn set(&self, host: usize, state: &str) {
        let plug = format!("v{host}");
        let words = ["ip", "link", "set", &plug, state];
        outcome(&mut inside(&self.switch, &words)).assert_code(0);
    }
}

/// A process in a network namespace of its own.
fn namespace(set_up: &str) -> Running {
    // It ends with the tests, however these end.
    let stay = "exec setpriv --pdeathsig KILL sleep infinity";
    let script = format!("ip link set lo up && {set_up} && echo ready && {stay}");
    let mut command = Command::new("unshare");
    command
        .args(["-n", "sh", "-c", &script])
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

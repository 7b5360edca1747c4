//! The README's commands for a second host, on two hosts made of namespaces: a network of two, and an `/etc` for each. The test
//! does nothing without namespaces.

use std::path::Path;

use crate::generated::root;
use crate::pages::blocks;
use crate::promises::recipes::GATE;
use crate::support::prelude::*;

/// A host: a process in namespaces of its own.
struct Host {
    process: Running,
    path: String,
}

impl Host {
    fn new(dir: &Path, name: &str) -> Self {
        let etc = dir.join(name);
        fs::create_dir_all(etc.join("redis")).unwrap();
        fs::write(etc.join("redis/redis.conf"), "").unwrap();
        for file in ["passwd", "group", "ld.so.cache"] {
            let _ = fs::copy(format!("/etc/{file}"), etc.join(file));
        }
        let text = format!(
            "mount --make-rprivate / && mount --bind {} /etc && ip link set lo up && echo ready && exec sleep 600",
            etc.display()
        );
        let mut command = Command::new("unshare");
        command.args(["-mn", "sh", "-c", &text]);
        without_terminal(&mut command);
        let process = Running::ready(&mut command);
        Self {
            process,
            path: format!("{}:{}", dir.join("bin").display(), path()),
        }
    }

    fn sh(&self, text: &str) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.process.pid().to_string();
        command
            .args(["-t", &pid, "-m", "-n", "sh", "-e", "-c", text])
            .env_clear()
            .env("PATH", &self.path);
        without_terminal(&mut command);
        command
    }
}

#[test]
fn the_same_command_takes_turns_on_two_hosts() {
    let veth = "ip link add v0 type veth peer name v1";
    return_unless!(is_permitted(&["unshare", "-mn", "sh", "-c", veth]));
    let dir = Scratch::new();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&bin, "sudo", "#!/bin/sh\nexec \"$@\"\n");
    let pid_file = dir.path().join("redis.pid");
    let systemctl = format!(
        "#!/bin/sh\n[ \"$*\" = 'restart redis-server' ] || exit 64\n\
         redis-cli shutdown\n\
         '{}' /etc/redis/redis.conf --daemonize yes --save '' --dir {} --pidfile {} >/dev/null\n\
         until redis-cli ping; do sleep 0.02; done >/dev/null 2>&1\n",
        SERVER.path.display(),
        dir.path().display(),
        pid_file.display()
    );
    script(&bin, "systemctl", &systemctl);
    let gate = format!("#!/bin/sh\ncd {}\n{GATE}\n", dir.path().display());
    let gate = script(dir.path(), "gate", &gate);
    std::os::unix::fs::symlink(REDLOCK, bin.join("redlock")).unwrap();

    let [server, second] = ["server", "second"].map(|name| Host::new(dir.path(), name));
    let link = format!(
        "{veth} netns {} && ip addr add 10.0.0.5/24 dev v0 && ip link set v0 up",
        second.process.pid()
    );
    outcome(&mut server.sh(&link)).assert_code(0);
    let link = "ip addr add 10.0.0.6/24 dev v1 && ip link set v1 up";
    outcome(&mut second.sh(link)).assert_code(0);

    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = blocks(&readme, "Add a second host");
    let [(_, for_server), (_, for_each), (_, job)] = &blocks[..] else {
        panic!("no three blocks: {blocks:?}");
    };
    // A server with data, which stays.
    let restart = "systemctl restart redis-server; redis-cli set shop precious";
    outcome(&mut server.sh(restart)).assert_code(0);
    outcome(&mut server.sh(for_server)).assert_code(0);
    let kept = "REDISCLI_AUTH=correct-horse-battery-staple redis-cli get shop";
    outcome(&mut server.sh(kept)).assert_printed(0, "precious\n");
    for host in [&server, &second] {
        outcome(&mut host.sh(for_each)).assert_printed(0, "no lock is held at 10.0.0.5:6379\n");
    }
    let job = job.replace("sleep 10", gate.to_str().unwrap());
    let first = Running::ready(&mut server.sh(&job));
    let mut other = Running::start(&mut second.sh(&job));
    let status = "until redlock status --json | grep -q position; do sleep 0.02; done";
    outcome(&mut second.sh(status)).assert_code(0);
    fs::write(dir.path().join("go"), "").unwrap();
    first.finish().assert_code(0);
    other.expect_line("ready");
    other.finish().assert_code(0);
    // Only after success: if the test fails, dropping its directory ends the server.
    let end = format!("kill -KILL $(cat {})", pid_file.display());
    outcome(&mut server.sh(&end)).assert_code(0);
}

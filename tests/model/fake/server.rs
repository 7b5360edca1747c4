//! A real redis-server with a simulated clock, which changes only when it is set.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use redis::Connection;

use crate::protocol::model::support::{LIBRARY, QUIET, SERVER, compile, wait_until};

/// Start of every run: in the year 2020.
pub const START: i64 = 1_577_836_800_000_000;

pub struct Server {
    dir: tempfile::TempDir,
    _process: Process,
    clock: File,
}

impl Server {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let shim = dir.path().join("clock.so");
        let source = include_str!("../../integration/support/clock.c");
        compile(LIBRARY, source, &shim);
        let path = dir.path().join("clock");
        // The second number stops the clock.
        fs::write(&path, [START, 1].map(i64::to_ne_bytes).concat()).unwrap();
        let clock = File::options().write(true).open(&path).unwrap();
        let socket = dir.path().join("redis.sock");
        let log = File::create(dir.path().join("redis.log")).unwrap();
        let process = SERVER
            .command()
            .args(QUIET)
            .args(["--port", "0"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(dir.path())
            // With DEBUG, keys expire only when a client reads them, not at a time of the server's choice.
            .args(SERVER.known(&["--enable-debug-command".into(), "yes".into()]))
            .env("LD_PRELOAD", &shim)
            .env("CLOCK_OFFSET_FILE", &path)
            // Makes Lua compare texts by their bytes.
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("redis-server is installed");
        let mut process = Process(process);
        wait_until("redis-server accepts connections", || {
            let ended = process.0.try_wait().unwrap();
            let log = || fs::read_to_string(dir.path().join("redis.log")).unwrap_or_default();
            assert!(ended.is_none(), "redis-server ended: {}", log());
            UnixStream::connect(&socket).is_ok()
        });
        let server = Self {
            dir,
            _process: process,
            clock,
        };
        let mut set = redis::cmd("DEBUG");
        let set = set.arg("SET-ACTIVE-EXPIRE").arg(0);
        set.exec(&mut server.connect()).unwrap();
        server
    }

    /// Sets the clock, in microseconds since 1970.
    pub fn set_clock(&self, to: i64) {
        self.clock.write_all_at(&to.to_ne_bytes(), 0).unwrap();
    }

    /// Opens another connection.
    pub fn connect(&self) -> Connection {
        let socket = self.dir.path().join("redis.sock");
        let client = redis::Client::open(format!("unix://{}", socket.display())).unwrap();
        client.get_connection().unwrap()
    }
}

/// A process that ends with the test, even if the test ends before the server is ready.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

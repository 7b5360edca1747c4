//! The server's program: `redis-server`, or the one in `REDIS_SERVER`, which may be another version of Redis or another server
//! with the same options.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

/// The server under the tests. The first test that starts one prints its version, bypassing the test runner, which captures the
/// output of tests.
pub static SERVER: LazyLock<ServerProgram> = LazyLock::new(|| {
    let path = std::env::var_os("REDIS_SERVER")
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from("redis-server"), PathBuf::from);
    let output = Command::new(&path).arg("--version").output();
    let output = output.unwrap_or_else(|error| panic!("{} --version: {error}", path.display()));
    let (name, version) = name_and_version(&String::from_utf8_lossy(&output.stdout));
    let line = format!("tests run on {name} {version} ({})\n", path.display());
    let _ = std::io::stderr().write_all(line.as_bytes());
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    let mut number = || numbers.next().unwrap_or(0);
    ServerProgram {
        path,
        version: (number(), number()),
    }
});

pub struct ServerProgram {
    pub path: PathBuf,
    version: (u32, u32),
}

impl ServerProgram {
    pub fn command(&self) -> Command {
        Command::new(&self.path)
    }

    /// Returns true for older versions. Valkey and others that began as Redis 7 have higher numbers.
    pub fn is_before(&self, major: u32, minor: u32) -> bool {
        self.version < (major, minor)
    }

    /// Returns the options without those that this server neither knows nor needs.
    pub fn known<'a>(&self, options: &'a [String]) -> impl Iterator<Item = &'a String> {
        // Before Redis 7, DEBUG is always enabled, and a cluster's bus uses the port plus 10,000. A server bound to all
        // addresses explicitly isn't in protected mode.
        let since_7 = [
            "--enable-debug-command",
            "--cluster-port",
            "--loading-process-events-interval-bytes",
        ];
        let is_old = self.is_before(7, 0);
        let is_left_out = move |at: usize| {
            since_7.contains(&options[at].as_str())
                || options[at..].starts_with(&["--bind".into(), "0.0.0.0".into()])
        };
        // An option and its value.
        let words = options.iter().enumerate();
        words
            .filter(move |&(at, _)| !is_old || !(is_left_out(at) || at > 0 && is_left_out(at - 1)))
            .map(|(_, word)| word)
    }
}

/// Options of a server without background work. The thread that returns memory would never sleep with a changed clock.
pub const QUIET: [&str; 6] = [
    "--save",
    "",
    "--appendonly",
    "no",
    "--jemalloc-bg-thread",
    "no",
];

/// Parses `Redis server v=7.0.15 sha=00000000:0 malloc=...`.
fn name_and_version(line: &str) -> (String, String) {
    let parts = line.split_once(" server v=").and_then(|(name, rest)| {
        let version = rest.split_whitespace().next()?;
        Some((name.trim().to_owned(), version.to_owned()))
    });
    parts.unwrap_or_else(|| panic!("no name and version of a server: {line:?}"))
}

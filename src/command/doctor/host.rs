//! This host: the abilities of its kernel on which a run relies, and the rights of other users to its settings.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use crate::config::{Exposure, Settings};
use crate::sys;

/// What is known of this host.
#[derive(Debug)]
pub struct Host {
    /// What its kernel can do for a run.
    pub kernel: Kernel,
    /// Configuration files that aren't used, because others may have written them.
    pub refused: Vec<Exposure>,
    /// Secrets that every user of this host can read.
    pub exposed: Vec<Exposure>,
    /// Other files on the PATH that are called redlock.
    pub namesakes: Vec<String>,
    /// The socket of the server for `local:`, if that is used.
    pub local_socket: Option<PathBuf>,
    /// No URL is set, so that redlock uses the default server.
    pub has_no_url: bool,
}

/// What the kernel can do; what it said otherwise.
#[derive(Debug)]
pub struct Kernel {
    /// How long it was suspended since it was started, on a clock that runs meanwhile.
    pub boot_clock: Result<Duration, String>,
    /// A process can be killed when its parent ends.
    pub pdeathsig: Result<(), String>,
    /// A process can be watched by a descriptor.
    pub pidfd: Result<(), String>,
    /// Orphans can be adopted.
    pub subreaper: Result<(), String>,
    /// What /proc shows.
    pub proc: Proc,
}

/// What /proc shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proc {
    /// All processes that we see.
    All,
    /// Not those of other users: it is mounted with `hidepid`.
    OwnUsers,
    /// Those of another pid namespace.
    Foreign,
}

impl Host {
    /// Looks at it, beside what is known of its kernel.
    pub fn examine(kernel: Kernel, settings: &Settings) -> Self {
        Self {
            kernel,
            refused: settings.refused.clone(),
            exposed: settings.exposed.clone(),
            namesakes: namesakes().unwrap_or_default(),
            local_socket: settings.locks.local_socket(),
            has_no_url: settings.locks.have_no_url(),
        }
    }
}

/// A job may run one of them in place of this program. Links to this one are none.
fn namesakes() -> Option<Vec<String>> {
    let path = env::var_os("PATH")?;
    let own = fs::metadata(sys::own_program()).ok()?;
    let mut seen = vec![(own.dev(), own.ino())];
    let mut found = Vec::new();
    for file in env::split_paths(&path).map(|directory| directory.join("redlock")) {
        let Ok(it) = fs::metadata(&file) else {
            continue;
        };
        let identity = (it.dev(), it.ino());
        if it.is_file() && it.mode() & 0o111 != 0 && !seen.contains(&identity) {
            seen.push(identity);
            found.push(file.display().to_string());
        }
    }
    Some(found)
}

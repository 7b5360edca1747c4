//! `redlock --version`.

use anyhow::Result;

use crate::decide::exit::Exit;
use crate::report;

/// The version on stdout; at length how it was built.
pub fn version(at_length: bool) -> Result<Exit> {
    let mut text = format!("redlock {}\n", env!("CARGO_PKG_VERSION"));
    if at_length {
        let linked = if cfg!(target_feature = "crt-static") {
            "static"
        } else {
            "dynamic"
        };
        let libc = if cfg!(target_env = "musl") {
            "musl"
        } else {
            "glibc"
        };
        let profile = if cfg!(debug_assertions) {
            "debug"
        } else {
            "release"
        };
        let arch = std::env::consts::ARCH;
        let commit = match env!("REDLOCK_COMMIT") {
            "" => String::new(),
            commit => format!(" of commit {commit}"),
        };
        text = format!("{text}{profile} build{commit} for {arch}-linux, {linked} {libc}\n");
    }
    report::print(&text)?;
    Ok(Exit::Success)
}

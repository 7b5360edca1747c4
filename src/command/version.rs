//! `redlock --version`.

use anyhow::Result;

use crate::decide::exit::Exit;
use crate::report;

/// Prints the version; with `at_length` also the details of the build.
pub fn version(at_length: bool) -> Result<Exit> {
    let mut text = format!("redlock {}\n", env!("CARGO_PKG_VERSION"));
    if at_length {
        let is_static = cfg!(target_feature = "crt-static");
        let linked = if is_static { "static" } else { "dynamic" };
        let is_musl = cfg!(target_env = "musl");
        let libc = if is_musl { "musl" } else { "glibc" };
        let is_debug = cfg!(debug_assertions);
        let profile = if is_debug { "debug" } else { "release" };
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

//! Joins the Lua scripts with what they include, and computes the hashes by which Redis knows them.

use std::path::Path;
use std::{env, fs};

#[path = "build/join.rs"]
mod join;

/// The scripts, one an operation.
const SCRIPTS: [&str; 15] = [
    "acquire", "renew", "keep", "check", "release", "force", "stop", "freeze", "thaw", "skip",
    "history", "inspect", "guard", "leave", "pass",
];

/// Those whose answers count only when the replicas that have to have what they wrote do.
const COUNT_WHEN_REPLICATED: [&str; 3] = ["acquire", "renew", "guard"];

/// Those that are wanted also when they come late.
const MAY_ARRIVE_LATE: [&str; 2] = ["release", "leave"];

fn main() {
    let directory = Path::new("src/protocol");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    let mut constants = String::new();
    for name in SCRIPTS {
        let source = join::join(directory, name).unwrap_or_else(|error| panic!("{error}"));
        let hash = sha1_smol::Sha1::from(&source).digest();
        fs::write(out.join(format!("{name}.lua")), &source).expect("OUT_DIR can be written");
        let constant = name.to_uppercase();
        let counts = COUNT_WHEN_REPLICATED.contains(&name);
        let late = MAY_ARRIVE_LATE.contains(&name);
        constants.extend([
            format!("pub static {constant}: Script = Script {{\n"),
            format!("    source: include_str!(\"{name}.lua\"),\n    hash: \"{hash}\",\n"),
            format!("    counts_when_replicated: {counts},\n    may_arrive_late: {late},\n}};\n"),
        ]);
    }
    fs::write(out.join("scripts.rs"), constants).expect("OUT_DIR can be written");
    println!("cargo::rerun-if-changed=src/protocol");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=build.rs");
}

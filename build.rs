//! Joins the Lua scripts with what they include, and computes the hashes by which Redis knows them; lists the pages of the
//! manual; finds out which commit is built.

use std::path::Path;
use std::{env, fs};

#[path = "build/join.rs"]
mod join;

/// The scripts, one an operation.
const SCRIPTS: [&str; 15] = [
    "acquire", "renew", "prolong", "keep", "check", "release", "force", "stop", "freeze", "thaw",
    "skip", "history", "inspect", "guard", "leave",
];

/// Those whose answers count only when the replicas that have to have what they wrote do.
const COUNT_WHEN_REPLICATED: [&str; 4] = ["acquire", "renew", "prolong", "guard"];

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
            format!(
                "#[allow(clippy::unreadable_literal)]\npub static {constant}: Script = Script {{\n"
            ),
            format!("    source: include_str!(concat!(env!(\"OUT_DIR\"), \"/{name}.lua\")),\n"),
            format!("    hash: \"{hash}\",\n"),
            format!("    counts_when_replicated: {counts},\n    may_arrive_late: {late},\n}};\n"),
        ]);
    }
    fs::write(out.join("scripts.rs"), constants).expect("OUT_DIR can be written");
    write_pages(out);
    println!("cargo::rustc-env=REDLOCK_COMMIT={}", commit());
    println!("cargo::rerun-if-env-changed=REDLOCK_COMMIT");
    println!("cargo::rerun-if-changed=man");
    println!("cargo::rerun-if-changed=src/protocol");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=build.rs");
}

/// Lists the pages of the manual, which `redlock help` shows.
fn write_pages(out: &Path) {
    let entries = fs::read_dir("man").expect("the manual").flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".1") || name.ends_with(".7"))
        .collect();
    names.sort();
    let mut table = String::from("static PAGES: &[(&str, &str)] = &[\n");
    for name in names {
        let path = "concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/man/";
        table.extend([format!(
            "    (\"{name}\", include_str!({path}{name}\"))),\n"
        )]);
    }
    table.push_str("];\n");
    fs::write(out.join("pages.rs"), table).expect("OUT_DIR can be written");
}

/// The commit that is built, as `make` says, or as cargo has written into the archive that it installs from.
fn commit() -> String {
    if let Ok(commit) = env::var("REDLOCK_COMMIT") {
        return commit;
    }
    let packaged = fs::read_to_string(".cargo_vcs_info.json").unwrap_or_default();
    let hash = packaged.split_once("\"sha1\": \"").map(|(_, rest)| rest);
    hash.and_then(|rest| rest.get(..12))
        .unwrap_or_default()
        .to_owned()
}

//! Joins the Lua scripts with their includes and computes their hashes; lists the pages of the manual.

use std::path::Path;
use std::{env, fs};

#[path = "build/join.rs"]
mod join;

/// Scripts, one for each operation.
const SCRIPTS: [&str; 17] = [
    "take", "acquire", "renew", "prolong", "keep", "check", "free", "release", "force", "stop",
    "freeze", "thaw", "skip", "history", "inspect", "guard", "leave",
];

/// Scripts whose answers are valid only after the required replicas have the write.
const COUNT_WHEN_REPLICATED: [&str; 5] = ["take", "acquire", "renew", "prolong", "guard"];

/// Scripts that are still useful if they arrive late.
const MAY_ARRIVE_LATE: [&str; 3] = ["free", "release", "leave"];

fn main() {
    let directory = Path::new("src/protocol");
    let out = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    let mut constants = String::new();
    for name in SCRIPTS {
        let source = join::join(directory, name).unwrap_or_else(|error| panic!("{error}"));
        let hash = sha1_smol::Sha1::from(&source).digest();
        fs::write(out.join(format!("{name}.lua")), &source).expect("OUT_DIR can be written");
        constants.extend([format!(
            "pub static {}: Script = Script {{ source: include_str!(concat!(env!(\"OUT_DIR\"), \"/{name}.lua\")), hash: \"{hash}\", keys: {}, counts_when_replicated: {}, may_arrive_late: {} }};\n",
            name.to_uppercase(),
            keys_of(&source),
            COUNT_WHEN_REPLICATED.contains(&name),
            MAY_ARRIVE_LATE.contains(&name)
        )]);
    }
    fs::write(out.join("scripts.rs"), constants).expect("OUT_DIR can be written");
    write_pages(out);
    // `make` says which commit is built. What cargo installs is known by its version.
    let commit = env::var("REDLOCK_COMMIT").unwrap_or_default();
    println!("cargo::rustc-env=REDLOCK_COMMIT={commit}");
    println!("cargo::rerun-if-env-changed=REDLOCK_COMMIT");
    println!("cargo::rerun-if-changed=man");
    println!("cargo::rerun-if-changed=src/protocol");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=build.rs");
}

/// Returns the number of the last key that a script uses.
fn keys_of(source: &str) -> usize {
    let numbers = source.split("KEYS[").skip(1);
    let numbers = numbers.filter_map(|rest| rest.split(']').next()?.parse().ok());
    numbers.max().unwrap_or_default()
}

/// Lists the pages of the manual, which `redlock help` shows.
fn write_pages(out: &Path) {
    let entries = fs::read_dir("man").expect("the manual").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.ends_with(".1") || name.ends_with(".7"))
        .collect();
    names.sort();
    let page = |name: &String| {
        format!(
            "({name:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/man/{name}\"))),\n"
        )
    };
    let rows: String = names.iter().map(page).collect();
    let table = format!("static PAGES: &[(&str, &str)] = &[\n{rows}];\n");
    fs::write(out.join("pages.rs"), table).expect("OUT_DIR can be written");
}

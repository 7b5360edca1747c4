//! The rules of the code that its text shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::generated::root;

/// Returns all source files without tests: the path of each below `src`, and its text.
pub fn sources() -> Vec<(String, String)> {
    let src = root().join("src");
    let mut folders = vec![src.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).unwrap().flatten();
        for path in entries.map(|entry| entry.path()) {
            let is_code = path.extension().is_some_and(|extension| extension == "rs");
            if path.is_dir() {
                folders.push(path);
            } else if is_code && !path.ends_with("tests.rs") {
                let name = path.strip_prefix(&src).unwrap().display().to_string();
                let text = fs::read_to_string(&path).unwrap();
                let starts = ["#[cfg(test)]\nmod tests", "#[cfg(test)]\npub mod tests"];
                let end = starts.iter().filter_map(|start| text.find(start)).min();
                sources.push((name, text[..end.unwrap_or(text.len())].to_owned()));
            }
        }
    }
    assert!(sources.len() > 10, "the sources were not found");
    sources
}

/// Returns the lines of code of a text, without blank lines and comments.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with("//"))
}

/// Returns the lines of code that contain one of the words, outside the permitted files.
fn strays(words: &[&str], permitted: &[&str]) -> Vec<String> {
    let has_one = |line: &&str| words.iter().any(|word| line.contains(word));
    let mut strays = Vec::new();
    for (name, code) in sources() {
        if !permitted.iter().any(|file| name.starts_with(file)) {
            let all = lines(&code).filter(has_one);
            strays.extend(all.map(|line| format!("{name}: {line}")));
        }
    }
    strays
}

/// Words that only some files or folders may contain.
const BELONGS: [(&str, &str); 11] = [
    ("redis::|use redis|Value::", "protocol/|server/"),
    (
        "Connection::|Connection>|Connection,|server::endpoint|Server>",
        "protocol/|server/",
    ),
    // Only doctor sends requests of its own to servers.
    (
        "rehearse(|client.ask(|roll_call(",
        "protocol/|server/|command/doctor/server/",
    ),
    ("doctor::", "command/|main.rs"),
    // Environment variables of a job.
    (
        "\"REDLOCK_NAME\"|\"REDLOCK_TOKEN\"|\"REDLOCK_FENCE\"|\"REDLOCK_SLOT\"|\"REDLOCK_WAITED_MS\"|REDLOCK_HELD",
        "variables.rs",
    ),
    ("unsafe ", "sys/"),
    ("nix::poll|libc::poll", "sys/poll.rs"),
    // Only one place spawns supervised processes.
    ("sys::spawn(", "supervise/child.rs"),
    ("process::Command", "command/manual.rs|sys/"),
    (
        "= Command::new(",
        "command/completions.rs|command/manual.rs",
    ),
    ("process::exit|process::abort", "main.rs"),
];

#[test]
fn restricted_words_appear_only_in_their_files() {
    for (words, files) in BELONGS {
        let words: Vec<&str> = words.split('|').collect();
        let files: Vec<&str> = files.split('|').collect();
        assert_eq!(strays(&words, &files), [""; 0], "{words:?}");
    }
    // Each kind of server opens its connections for locks; all other connections are for queries.
    let opens = ["Connection::open(", "Self::open(", "Connection::over("];
    let mut opens = strays(&opens, &["server/deployment.rs", "server/local.rs"]);
    opens.retain(|line| line.contains("&[])"));
    assert_eq!(opens, [""; 0]);
}

#[test]
fn decisions_read_no_clock_and_do_no_io() {
    let pure = "decide/ pattern.rs protocol/name.rs protocol/who.rs ci.rs report/table.rs \
        command/history/listing.rs command/history/chart command/status/age.rs \
        command/status/prometheus.rs command/doctor/finding.rs command/doctor/info.rs \
        command/doctor/page.rs";
    let impure = "now() std::io std::fs std::thread std::env Instant SystemTime getrandom";
    let impure: Vec<&str> = impure.split(' ').collect();
    let mut broken = strays(&impure, &[]);
    broken.retain(|line| pure.split(' ').any(|name| line.starts_with(name)));
    assert_eq!(broken, [""; 0]);
}

/// Returns the modules of each layer, from the top down, from `docs/architecture.md`. A module imports only modules of lower
/// layers, so each can be read, and changed, with only those.
fn layers() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let (_, section) = page.split_once("\n## Layers\n").unwrap();
    let rows = section.split("\n## ").next().unwrap().lines();
    let rows = rows.filter(|row| row.starts_with("| ") && row.contains('`'));
    let columns = rows.filter_map(|row| row.split('|').nth(2));
    let modules = columns.map(|modules| modules.split('`').skip(1).step_by(2));
    modules
        .map(|all| all.map(str::to_owned).collect())
        .collect()
}

/// Returns the modules that a line names after `crate::`.
fn named_modules(line: &str) -> Vec<&str> {
    let ends_word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let lists = line.split("crate::").skip(1);
    let lists = lists.map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap_or_default(),
        None => rest.split(ends_word).next().unwrap_or_default(),
    });
    let names = lists.flat_map(|list| list.split(',').map(str::trim));
    let modules = names.map(|name| name.split(ends_word).next().unwrap_or_default());
    modules.collect()
}

#[test]
fn each_module_imports_only_modules_of_lower_layers() {
    let layers = layers();
    assert!(layers.len() > 9, "{layers:?}");
    let layer_of = |module: &str| {
        let has = |layer: &Vec<String>| layer.iter().any(|other| other == module);
        layers.iter().position(has)
    };
    let mut wrong = Vec::new();
    for (name, code) in sources() {
        let own = name.split('/').next().unwrap().trim_end_matches(".rs");
        let Some(layer) = layer_of(own) else {
            wrong.push(format!("{own} is in no layer"));
            continue;
        };
        for module in lines(&code).flat_map(named_modules) {
            let is_below = layer_of(module).is_some_and(|other| other > layer);
            if module != own && !is_below {
                wrong.push(format!("{name} imports {module}"));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// Files that still import each other, as single files and those of their own folder.
const IN_ONE_PIECE: &str = "command/status config job report sys";

/// Returns the modules of the product: the path of each (`server::url` for `server/url.rs`), and its text.
fn modules() -> BTreeMap<Vec<String>, String> {
    let named = sources().into_iter().map(|(name, code)| {
        let parts = name.trim_end_matches(".rs").split('/');
        let parts = parts.filter(|part| !["mod", "main"].contains(part));
        let name: Vec<String> = parts.map(str::to_owned).collect();
        (name, code)
    });
    named.collect()
}

/// Returns the whole paths in a list such as `a::{b, c::{self, d}}`, without their `as` names.
fn paths(list: &str) -> Vec<String> {
    let mut list = list.to_owned();
    while let Some(close) = list.find('}') {
        let open = list[..close].rfind('{').expect("a list begins");
        let start = list[..open].rfind(['{', ',']).map_or(0, |at| at + 1);
        let before = list[start..open].trim();
        let inner = list[open + 1..close].split(',').map(str::trim);
        let inner = inner.filter(|part| !part.is_empty());
        let whole: Vec<String> = inner.map(|part| format!("{before}{part}")).collect();
        let whole = whole.join(",");
        list = format!("{}{whole}{}", &list[..start], &list[close + 1..]);
    }
    let paths = list.split(',').filter_map(|path| path.split(" as ").next());
    paths.map(|path| path.trim().to_owned()).collect()
}

/// Returns the imports of a file, each from the root of the crate.
fn imports(name: &[String], modules: &BTreeMap<Vec<String>, String>) -> Vec<Vec<String>> {
    let mut imported = Vec::new();
    let mut lines = modules[name].lines().map(str::trim);
    while let Some(line) = lines.next() {
        let starts = ["use ", "pub use ", "pub(super) use "];
        let Some(list) = starts.iter().find_map(|start| line.strip_prefix(start)) else {
            continue;
        };
        let mut list = list.to_owned();
        while !list.ends_with(';') {
            list += lines.next().expect("an import ends");
        }
        imported.extend(paths(list.trim_end_matches(';')));
    }
    let whole = imported.iter().filter_map(|path| {
        let mut from = name.to_vec();
        for (at, part) in path.split("::").enumerate() {
            match part {
                "crate" => from.clear(),
                "self" => {}
                "super" => drop(from.pop()),
                child => {
                    from.push(child.to_owned());
                    if at == 0 && !modules.contains_key(&from) {
                        // The path belongs to another crate.
                        return None;
                    }
                }
            }
        }
        Some(from)
    });
    whole.collect()
}

/// Returns the file that defines an imported item. Follows re-exports.
fn file_of(
    path: &[String],
    modules: &BTreeMap<Vec<String>, String>,
    imported: &BTreeMap<Vec<String>, Vec<Vec<String>>>,
) -> Vec<String> {
    let mut ends = (0..=path.len()).rev();
    let end = ends.find(|end| modules.contains_key(&path[..*end]));
    let end = end.unwrap();
    let (file, rest) = path.split_at(end);
    let passed_on = rest.first().and_then(|name| {
        let from = imported[file].iter();
        from.filter(|other| other.last() == Some(name))
            .find(|other| *other != path)
    });
    match passed_on {
        Some(from) => file_of(&[from, &rest[1..]].concat(), modules, imported),
        None => file.to_vec(),
    }
}

#[test]
fn no_two_files_need_each_other() {
    let modules = modules();
    let names = modules.keys();
    let imported = names.map(|name| (name.clone(), imports(name, &modules)));
    let imported: BTreeMap<_, _> = imported.collect();
    let mut needs: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
    for (name, paths) in &imported {
        let files = paths.iter().map(|path| file_of(path, &modules, &imported));
        needs.insert(name, files.filter(|file| file != name).collect());
    }
    let count: usize = needs.values().map(BTreeSet::len).sum();
    assert!(count > 200, "the imports were not found");
    // Returns all direct and indirect imports of a file.
    let all_of = |name: &Vec<String>| {
        let mut all = BTreeSet::new();
        let mut left = vec![name.clone()];
        while let Some(next) = left.pop() {
            let files = needs[&next].iter();
            let new = files.filter(|file| all.insert((*file).clone()));
            left.extend(new.cloned());
        }
        all
    };
    let is_known = |one: &str, other: &str| {
        let within = |piece: &str| one.starts_with(piece) && other.starts_with(piece);
        IN_ONE_PIECE.split(' ').any(within)
    };
    let mut circles = Vec::new();
    for (name, files) in &needs {
        for file in files {
            let (one, other) = (name.join("/"), file.join("/"));
            if all_of(file).contains(*name) && !is_known(&one, &other) {
                circles.push(format!("{one} imports {other}"));
            }
        }
    }
    assert_eq!(circles, [""; 0]);
}

#[test]
fn the_table_of_processes_has_each_name_of_a_process_and_a_thread() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let begins = [": &CStr = c\"", "start_thread(\"", ".name(\""];
    let mut names = BTreeSet::new();
    for (_, code) in sources() {
        for begin in begins {
            let rests = code.split(begin).skip(1);
            names.extend(rests.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    assert!(names.contains("rl-watchdog") && names.contains("renewer"));
    names.retain(|name| !page.contains(&format!("`{name}`")));
    assert_eq!(names, BTreeSet::new());
}

/// Largest number of lines of code for each part of the program, without tests, comments and blank lines. A number may be
/// lowered; it is only raised if a feature is removed (docs/refused.md).
const BUDGET: [(&str, usize); 11] = [
    ("cli", 529),
    ("command", 4605),
    ("job", 1370),
    ("config", 519),
    ("decide", 1564),
    ("protocol", 2592),
    ("server", 4520),
    ("report", 779),
    ("supervise", 2594),
    ("sys", 837),
    ("usage", 141),
];

#[test]
fn no_part_of_the_program_outgrows_its_budget() {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for (name, code) in sources() {
        let part = name.split('/').next().unwrap().trim_end_matches(".rs");
        *sizes.entry(part.to_owned()).or_default() += lines(&code).count();
    }
    let mut over = BUDGET
        .map(|(part, most)| (part, sizes[part], most))
        .to_vec();
    over.retain(|(_, lines, most)| lines > most);
    assert!(over.is_empty(), "(part, lines, budget): {over:?}");
}

//! The invariants of the crate's documentation that can be seen in its text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// All source files with their text, without their unit tests.
fn sources() -> Vec<(PathBuf, String)> {
    fn collect(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let starts = ["mod", "pub mod", "pub(super) mod"];
                let starts = starts.map(|start| format!("#[cfg(test)]\n{start} tests"));
                let ends = starts.iter().filter_map(|start| text.find(start));
                let code = text[..ends.min().unwrap_or(text.len())].to_owned();
                found.push((path, code));
            }
        }
    }
    let mut found = Vec::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut found,
    );
    assert!(found.len() > 10, "the sources were not found");
    found
}

/// The lines of code (not of comments) that contain one of the words, outside the permitted files.
fn strays(words: &[&str], permitted: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut strays = Vec::new();
    for (path, code) in sources() {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        if permitted
            .iter()
            .any(|permitted| name.starts_with(permitted))
        {
            continue;
        }
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            if words.iter().any(|word| line.contains(word)) {
                strays.push(format!("{name}: {}", line.trim()));
            }
        }
    }
    strays
}

#[test]
fn only_the_protocol_and_the_way_to_a_server_know_the_redis_crate() {
    assert_eq!(
        strays(
            &["redis::", "use redis", "Value::"],
            &["protocol/", "redis/"]
        ),
        [""; 0]
    );
}

#[test]
fn connections_and_servers_are_known_to_the_protocol_alone() {
    let words = [
        "Connection::",
        "Connection>",
        "Connection,",
        "redis::server",
        "Server>",
    ];
    assert_eq!(strays(&words, &["protocol/", "redis/"]), [""; 0]);
}

#[test]
fn doctor_alone_asks_servers_other_things_than_the_protocol_does() {
    let words = ["rehearse(", "client.ask(", "call_sentinels("];
    assert_eq!(
        strays(&words, &["protocol/", "redis/", "command/doctor/server.rs"]),
        [""; 0]
    );
    assert_eq!(strays(&["doctor::"], &["command/", "main.rs"]), [""; 0]);
}

#[test]
fn a_connection_is_opened_in_one_place() {
    let opens = strays(&["Connection::open(", "Self::open("], &[]);
    assert_eq!(opens.len(), 1, "{opens:?}");
}

#[test]
fn one_file_names_the_variables_of_a_job() {
    let words = [
        "\"REDLOCK_NAME\"",
        "\"REDLOCK_TOKEN\"",
        "\"REDLOCK_FENCE\"",
        "\"REDLOCK_SLOT\"",
        "\"REDLOCK_WAITED_MS\"",
        "REDLOCK_HELD",
    ];
    assert_eq!(strays(&words, &["variables.rs"]), [""; 0]);
}

#[test]
fn only_sys_is_unsafe() {
    assert_eq!(strays(&["unsafe "], &["sys/"]), [""; 0]);
}

#[test]
fn only_one_file_waits_for_descriptors() {
    assert_eq!(
        strays(&["nix::poll", "libc::poll"], &["sys/poll.rs"]),
        [""; 0]
    );
}

#[test]
fn only_child_spawns_what_is_supervised() {
    assert_eq!(strays(&["sys::spawn("], &["supervise/child.rs"]), [""; 0]);
    assert_eq!(
        strays(&["process::Command"], &["command/manual.rs", "sys/"]),
        [""; 0]
    );
    assert_eq!(
        strays(
            &["= Command::new("],
            &["command/completions.rs", "command/manual.rs"]
        ),
        [""; 0]
    );
}

#[test]
fn decisions_read_no_clock_and_do_no_io() {
    let pure = [
        "decide/",
        "pattern.rs",
        "protocol/name.rs",
        "protocol/who.rs",
        "ci.rs",
        "report/table.rs",
        "command/history/listing.rs",
        "command/status/age.rs",
        "command/status/prometheus.rs",
        "command/history/chart",
        "command/doctor/finding.rs",
        "command/doctor/info.rs",
        "command/doctor/page.rs",
    ];
    let impure = [
        "now()",
        "std::io",
        "std::fs",
        "std::thread",
        "std::env",
        "Instant",
        "SystemTime",
        "getrandom",
    ];
    let all: Vec<String> = strays(&impure, &[]);
    let broken: Vec<&String> = all
        .iter()
        .filter(|line| pure.iter().any(|name| line.starts_with(name)))
        .collect();
    assert_eq!(broken, Vec::<&String>::new());
}

#[test]
fn only_main_ends_the_process() {
    assert_eq!(
        strays(&["process::exit", "process::abort"], &["main.rs"]),
        [""; 0]
    );
}

/// The rooms of the house, from the top floor down. A room imports only rooms that stand below it: so no two of them need each
/// other, and each can be read, and changed, with what is below it alone.
const FLOORS: [&[&str]; 11] = [
    &["main"],
    &["command"],
    &["supervise"],
    &["decide", "config"],
    &["report"],
    &["protocol"],
    &["redis"],
    &["signal", "stderr", "typed"],
    &["cli"],
    &[
        "clock",
        "pattern",
        "ci",
        "systemd",
        "duration",
        "file",
        "reason",
        "shell",
        "variables",
    ],
    &["sys"],
];

/// The rooms that a text names after `crate::`.
fn named_rooms(code: &str) -> Vec<&str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let word = |text: &'_ str| -> usize { text.find(|c| !is_part(c)).unwrap_or(text.len()) };
    let mut rooms = Vec::new();
    let code = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    for line in code {
        for (at, _) in line.match_indices("crate::") {
            let rest = &line[at + "crate::".len()..];
            match rest.strip_prefix('{') {
                Some(list) => {
                    let list = list.split('}').next().unwrap_or_default();
                    let each = list.split(',').map(str::trim);
                    rooms.extend(each.map(|name| &name[..word(name)]));
                }
                None => rooms.push(&rest[..word(rest)]),
            }
        }
    }
    rooms
}

#[test]
fn each_room_imports_only_rooms_on_lower_floors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let floor_of = |room: &str| FLOORS.iter().position(|floor| floor.contains(&room));
    let mut wrong = Vec::new();
    for (path, code) in sources() {
        let path = path.strip_prefix(&root).unwrap();
        if path.ends_with("tests.rs") {
            // Tests may ask what stands above.
            continue;
        }
        let first = path.iter().next().unwrap().to_str().unwrap();
        let own = first.strip_suffix(".rs").unwrap_or(first);
        let Some(floor) = floor_of(own) else {
            wrong.push(format!("{own} stands on no floor"));
            continue;
        };
        for room in named_rooms(&code) {
            let below = floor_of(room).is_some_and(|other| other > floor);
            if room != own && !below {
                wrong.push(format!("{} imports {room}", path.display()));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// Files that still know each other, as one file and those of its own folder.
const IN_ONE_PIECE: [&str; 6] = [
    "command/acquisition",
    "command/run",
    "command/status",
    "config",
    "report",
    "sys",
];

/// The files of the product: what each is named by (`redis::url` for `redis/url.rs`), and its text.
fn modules() -> BTreeMap<Vec<String>, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let named = sources().into_iter().map(|(path, code)| {
        let name = path.strip_prefix(&root).unwrap().with_extension("");
        let parts = name.iter().map(|part| part.to_str().unwrap().to_owned());
        let mut parts: Vec<String> = parts.collect();
        if matches!(parts.last().map(String::as_str), Some("mod" | "main")) {
            parts.pop();
        }
        (parts, code)
    });
    let is_test = |name: &[String]| name.last().is_some_and(|last| last == "tests");
    named.filter(|(name, _)| !is_test(name)).collect()
}

/// The paths in a list such as `a::{b, c::{self, d}}`, whole; what comes after `as` is left out.
fn paths(list: &str, before: &str, found: &mut Vec<String>) {
    let (mut depth, mut start) = (0_usize, 0);
    let mut parts = Vec::new();
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    for part in parts.into_iter().map(str::trim) {
        match part.split_once('{') {
            Some((start, inner)) => {
                let inner = inner.strip_suffix('}').unwrap();
                paths(inner, &format!("{before}{start}"), found);
            }
            None if part.is_empty() => {}
            None => {
                let path = part.split(" as ").next().unwrap();
                found.push(format!("{before}{path}"));
            }
        }
    }
}

/// What a file imports, each from the root of the crate on.
fn imports(name: &[String], modules: &BTreeMap<Vec<String>, String>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut lines = modules[name].lines().map(str::trim);
    while let Some(line) = lines.next() {
        let imported = ["use ", "pub use ", "pub(super) use "];
        let Some(list) = imported.iter().find_map(|start| line.strip_prefix(start)) else {
            continue;
        };
        let mut list = list.to_owned();
        while !list.ends_with(';') {
            list += lines.next().expect("an import ends");
        }
        paths(list.trim_end_matches(';'), "", &mut found);
    }
    let whole = found.iter().filter_map(|path| {
        let mut parts: Vec<&str> = path.split("::").collect();
        let mut from = match parts[0] {
            "crate" => Vec::new(),
            "self" | "super" => name.to_vec(),
            child => {
                let own = [name, &[child.to_owned()]].concat();
                modules.contains_key(&own).then(|| name.to_vec())?
            }
        };
        while let Some("crate" | "self" | "super") = parts.first().copied() {
            if parts.remove(0) == "super" {
                from.pop();
            }
        }
        from.extend(
            parts
                .iter()
                .filter(|part| **part != "self")
                .map(|&part| part.to_owned()),
        );
        Some(from)
    });
    whole.collect()
}

/// The file in which something is that is imported by this path: where a file only passes it on, the one that has it.
fn file_of(
    path: &[String],
    modules: &BTreeMap<Vec<String>, String>,
    imported: &BTreeMap<Vec<String>, Vec<Vec<String>>>,
) -> Vec<String> {
    let end = (0..=path.len())
        .rev()
        .find(|end| modules.contains_key(&path[..*end]));
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
    let imported = modules
        .keys()
        .map(|name| (name.clone(), imports(name, &modules)));
    let imported: BTreeMap<_, _> = imported.collect();
    let mut needs: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> = BTreeMap::new();
    for (name, paths) in &imported {
        let files = paths.iter().map(|path| file_of(path, &modules, &imported));
        needs.insert(name, files.filter(|file| file != name).collect());
    }
    assert!(
        needs.values().map(BTreeSet::len).sum::<usize>() > 200,
        "the imports were not found"
    );
    // Whatever a file needs by way of others.
    let all_of = |name: &Vec<String>| {
        let mut all = BTreeSet::new();
        let mut left = vec![name.clone()];
        while let Some(next) = left.pop() {
            left.extend(
                needs[&next]
                    .iter()
                    .filter(|file| all.insert((*file).clone()))
                    .cloned(),
            );
        }
        all
    };
    let is_known = |one: &str, other: &str| {
        let within = |piece: &&str| one.starts_with(*piece) && other.starts_with(*piece);
        IN_ONE_PIECE.iter().any(within)
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

/// The most lines of code that each part of the program may have, without tests, comments and blank lines. A figure may be
/// lowered; it is never raised unless a feature goes (docs/refused.md).
const BUDGET: [(&str, usize); 9] = [
    ("cli", 683),
    ("command", 8402),
    ("config", 580),
    ("decide", 1829),
    ("protocol", 3279),
    ("redis", 6296),
    ("report", 1090),
    ("supervise", 3409),
    ("sys", 1264),
];

#[test]
fn no_part_of_the_program_outgrows_its_budget() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut lines = BTreeMap::new();
    for (path, code) in sources() {
        let name = path.strip_prefix(&root).unwrap();
        if name.ends_with("tests.rs") {
            continue;
        }
        let part = name.components().next().unwrap().as_os_str();
        let part = part.to_str().unwrap().trim_end_matches(".rs").to_owned();
        let code = code.lines().map(str::trim_start);
        let code = code.filter(|line| !line.is_empty() && !line.starts_with("//"));
        *lines.entry(part).or_insert(0) += code.count();
    }
    let over = BUDGET.map(|(part, most)| (part, lines[part], most));
    let over: Vec<_> = over
        .iter()
        .filter(|(_, lines, most)| lines > most)
        .collect();
    assert!(over.is_empty(), "(part, lines, budget): {over:?}");
}

//! Mutants of the Lua scripts: each has one mistake, which must change the result of an example or break a promise in the
//! simulation. `make search WHAT=mutants-lua` tries all of them. A mutant that survives must be in the list of explained ones.

#[path = "../../../build/join.rs"]
mod join;
mod mutate;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use self::mutate::Mutant;
use crate::protocol::model::examples::Expected;
use crate::protocol::model::fake::memory::Sources;
use crate::protocol::model::promises::Promise;
use crate::protocol::model::simulate::broken_with;
use crate::protocol::model::support::lua::SCRIPTS;
use crate::protocol::model::support::{asked, cores, on_threads};

/// Returns the Lua files below a directory by name: `acquire`, `lib/queue`.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in ["", "lib/"] {
        for entry in fs::read_dir(directory.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "lua") {
                let name = format!("{folder}{}", path.file_stem().unwrap().to_str().unwrap());
                files.insert(name, fs::read_to_string(path).unwrap());
            }
        }
    }
    files
}

/// A copy of the scripts' files, one of which is changed at a time.
struct Workshop {
    directory: tempfile::TempDir,
    files: BTreeMap<String, String>,
}

impl Workshop {
    fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("lib")).unwrap();
        let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol"));
        for (name, text) in &files {
            fs::write(Self::path(&directory, name), text).unwrap();
        }
        Self { directory, files }
    }

    fn path(directory: &tempfile::TempDir, name: &str) -> PathBuf {
        directory.path().join(format!("{name}.lua"))
    }

    /// Returns the scripts with a mutant instead of its file. Leaks the changed texts.
    fn sources(&self, file: &str, mutant: &Mutant) -> Sources {
        let path = Self::path(&self.directory, file);
        fs::write(&path, &mutant.text).unwrap();
        let joined = |name| join::join(self.directory.path(), name).unwrap();
        let sources = SCRIPTS.map(|(name, source)| {
            let joined = joined(name);
            let source = if joined == source {
                source
            } else {
                joined.leak()
            };
            (name, source)
        });
        fs::write(&path, &self.files[file]).unwrap();
        sources.into()
    }
}

/// Returns all mutants, each with its file.
fn all(files: &BTreeMap<String, String>) -> Vec<(&String, Mutant)> {
    let mut all = Vec::new();
    for (file, text) in files {
        let mutants = mutate::mutants(file, text).into_iter();
        all.extend(mutants.map(|mutant| (file, mutant)));
    }
    all
}

/// Returns a name for a mutant that stays the same when lines move.
fn key(file: &str, mutant: &Mutant) -> String {
    format!("{file} | {} | {}", mutant.before, mutant.after)
}

/// Returns the explained mutants: a reason, and the entries that it is for. An entry is a file, a file and the line before, or
/// those and the line after.
fn explained() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut explained: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in include_str!("explained.txt").lines() {
        if let Some(reason) = line.strip_prefix("# ") {
            explained.push((reason, Vec::new()));
        } else if !line.is_empty() {
            explained
                .last_mut()
                .expect("a reason comes first")
                .1
                .push(line);
        }
    }
    explained
}

/// Returns true if an entry of that list is for this mutant.
fn is_for(entry: &str, key: &str) -> bool {
    let rest = key.strip_prefix(entry);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" | "))
}

/// Evidence that distinguishes a mutant from the scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Title of an example.
    Example(String),
    /// The broken promise.
    Simulation(Promise),
    Explained(&'static str),
    Survives,
}

/// Number of simulated seeds for each mutant.
const SEEDS: u64 = 30;

/// Tries each mutant with the examples, in memory, and then with the simulation.
fn in_memory(workshop: &Workshop, all: &[(&String, Mutant)]) -> Vec<Verdict> {
    let explained = explained();
    let seeds = asked("MUTANTS_SEEDS").unwrap_or(SEEDS);
    let expected = Expected::of_the_scripts();
    let workshop = Mutex::new(workshop);
    on_threads(cores(), all.len(), |n| {
        let (file, mutant) = &all[n];
        let sources = workshop.lock().unwrap().sources(file, mutant);
        let key = key(file, mutant);
        let is_it = |entries: &Vec<&str>| entries.iter().any(|entry| is_for(entry, &key));
        let reason = || explained.iter().find(|(_, entries)| is_it(entries));
        let verdict = if let Some(title) = expected.broken_by(&sources) {
            Verdict::Example(title.to_owned())
        } else if let Some(promise) = broken_with(|name, _| sources[name], 1..=seeds) {
            Verdict::Simulation(promise)
        } else if let Some((reason, _)) = reason() {
            Verdict::Explained(reason)
        } else {
            Verdict::Survives
        };
        let (name, before, after) = (&mutant.name, &mutant.before, &mutant.after);
        let _ = writeln!(
            std::io::stderr(),
            "{name} {verdict:?}\n  - {before}\n  + {after}"
        );
        verdict
    })
}

#[test]
fn every_mutant_of_the_scripts_is_caught_or_explained() {
    let Ok(only) = std::env::var("MUTANTS_LUA") else {
        return;
    };
    std::panic::set_hook(Box::new(|_| {}));
    let workshop = Workshop::open();
    let mut all = all(&workshop.files);
    all.retain(|(_, mutant)| mutant.name.starts_with(&only));
    let verdicts = in_memory(&workshop, &all);
    let _ = std::panic::take_hook();
    let _ = std::io::stderr().write_all(summary(&verdicts).as_bytes());
    let survivors = all
        .iter()
        .zip(&verdicts)
        .filter(|(_, verdict)| matches!(verdict, Verdict::Survives));
    let survivors: Vec<String> = survivors
        .map(|((file, mutant), _)| key(file, mutant))
        .collect();
    assert!(
        survivors.is_empty(),
        "{} survive:\n{}",
        survivors.len(),
        survivors.join("\n")
    );
}

/// Returns the number of mutants with each kind of evidence.
fn summary(verdicts: &[Verdict]) -> String {
    let count = |is: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| is(verdict)).count();
    format!(
        "{} mutants: {} caught by the examples, {} by the simulation, {} explained\n",
        verdicts.len(),
        count(|verdict| matches!(verdict, Verdict::Example(_))),
        count(|verdict| matches!(verdict, Verdict::Simulation(_))),
        count(|verdict| matches!(verdict, Verdict::Explained(_))),
    )
}

#[test]
fn each_explanation_is_for_an_existing_mutant() {
    let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol"));
    let keys: Vec<String> = all(&files)
        .iter()
        .map(|(file, mutant)| key(file, mutant))
        .collect();
    let entries = explained().into_iter().flat_map(|(_, entries)| entries);
    let stale: Vec<&str> = entries
        .filter(|entry| !keys.iter().any(|key| is_for(entry, key)))
        .collect();
    assert!(stale.is_empty(), "{}", stale.join("\n"));
}

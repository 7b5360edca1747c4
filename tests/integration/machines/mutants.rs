//! Deliberate faults of redlock, in `tests/mutants`. Each patch still applies, and names the tests that must notice it. `make
//! search WHAT=mutants-named` applies the patches and runs these tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::generated::root;
use crate::support::outcome;

/// Deliberate fault, as its patch describes it.
struct Mutant {
    name: String,
    patch: PathBuf,
    /// True if it names the promise that redlock breaks with it.
    has_promise: bool,
    /// Tests that notice it, each with `unit` or `integration` first.
    tests: Vec<String>,
}

fn mutants() -> Vec<Mutant> {
    let directory = fs::read_dir(root().join("tests/mutants")).unwrap();
    let mut mutants: Vec<Mutant> = directory.flatten().map(|file| read(file.path())).collect();
    mutants.sort_by(|one, other| one.name.cmp(&other.name));
    assert!(mutants.len() > 10, "the patches were not found");
    mutants
}

fn read(patch: PathBuf) -> Mutant {
    let text = fs::read_to_string(&patch).unwrap();
    let header = || text.lines().take_while(|line| !line.starts_with("--- "));
    let values = |key: &'static str| header().filter_map(move |line| line.strip_prefix(key));
    Mutant {
        name: patch.file_stem().unwrap().to_str().unwrap().to_owned(),
        has_promise: values("Breaks: ").next().is_some(),
        tests: values("Test: ").map(str::to_owned).collect(),
        patch,
    }
}

#[test]
fn every_fault_can_still_be_put_in() {
    for Mutant { name, patch, .. } in mutants() {
        let mut apply = Command::new("git");
        apply.args(["apply", "--check"]).arg(patch);
        let end = outcome(apply.current_dir(root()));
        assert_eq!(end.code(), Some(0), "{name}: {end:?}");
    }
}

#[test]
fn every_fault_names_a_promise_and_tests_that_exist() {
    for mutant in mutants() {
        let name = &mutant.name;
        assert!(mutant.has_promise, "{name} names no promise");
        assert!(!mutant.tests.is_empty(), "{name} names no test");
        for test in &mutant.tests {
            assert!(exists(test), "{name}: there is no {test}");
        }
    }
}

/// Returns true if there is such a test: `unit session::tests::NAME` or `integration promises::loss::NAME`.
fn exists(test: &str) -> bool {
    let (kind, path) = test.split_once(' ').unwrap();
    let (module, function) = path.rsplit_once("::").unwrap();
    let base = match kind {
        "unit" => root().join("src"),
        "integration" => root().join("tests/integration"),
        other => panic!("{other} is no kind of test"),
    };
    let inline = module.strip_suffix("::tests").unwrap_or(module);
    let function = format!("fn {function}()");
    [module, inline].iter().any(|module| {
        let module = module.replace("::", "/");
        let files = [format!("{module}.rs"), format!("{module}/mod.rs")];
        files.iter().any(|file| {
            fs::read_to_string(base.join(file)).is_ok_and(|text| text.contains(&function))
        })
    })
}

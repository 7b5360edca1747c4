//! Deliberate faults of redlock, in `tests/mutants`. Each patch still applies, and names the tests that must notice it. `make
//! search WHAT=mutants-named` applies the patches and runs these tests.

use std::fs;
use std::process::Command;

use crate::generated::root;
use crate::support::outcome;

#[test]
fn every_fault_can_still_be_put_in_and_names_a_promise_and_tests_that_exist() {
    let directory = fs::read_dir(root().join("tests/mutants")).unwrap();
    let mut count = 0;
    for patch in directory.flatten().map(|file| file.path()) {
        let mut apply = Command::new("git");
        let apply = apply.args(["apply", "--check"]).arg(&patch);
        outcome(apply.current_dir(root())).assert_code(0);
        let (name, text) = (patch.display(), fs::read_to_string(&patch).unwrap());
        let (header, _) = text.split_once("\n--- ").unwrap();
        let values = |key: &'static str| header.lines().filter_map(move |it| it.strip_prefix(key));
        assert_eq!(values("Breaks: ").count(), 1, "{name} names no promise");
        assert!(values("Test: ").count() > 0, "{name} names no test");
        let missing: Vec<&str> = values("Test: ").filter(|test| !exists(test)).collect();
        assert!(missing.is_empty(), "{name}: there is no {missing:?}");
        count += 1;
    }
    assert!(count > 10, "the patches were not found");
}

/// Returns true if there is such a test: `unit session::tests::NAME` or `integration promises::loss::NAME`.
fn exists(test: &str) -> bool {
    let (kind, path) = test.split_once(' ').unwrap();
    let (module, function) = path.rsplit_once("::").unwrap();
    let is_unit = kind == "unit";
    let base = root().join(["tests/integration", "src"][usize::from(is_unit)]);
    let inline = module.strip_suffix("::tests").unwrap_or(module);
    let function = format!("fn {function}()");
    let modules = [module, inline].map(|module| module.replace("::", "/"));
    let files = modules.map(|module| [format!("{module}.rs"), format!("{module}/mod.rs")]);
    let texts = files
        .iter()
        .flatten()
        .map(|file| fs::read_to_string(base.join(file)));
    texts.flatten().any(|text| text.contains(&function))
}

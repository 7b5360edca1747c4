//! A parser of the most common line, `[-q] [-u URL] run [-n] NAME… -- COMMAND`, without clap: defining clap's command
//! line and parsing with it takes half of the instructions of a short run.
//!
//! If any word is something else, the parser leaves the line to clap. So it accepts no line that clap refuses, and parses each
//! line like clap. A test checks that with random lines.

use std::ffi::OsString;

use crate::cli::{Cli, Command, Common, Run};

/// Parses the words after `redlock`, if they are such a line.
pub fn read(words: &[OsString]) -> Option<Cli> {
    let dashes = words.iter().position(|word| word == "--")?;
    let (mut common, mut run, mut is_run) = (Common::default(), Run::default(), false);
    let no_wait = &mut run.acquire.no_wait;
    let mut before = words[..dashes].iter().map(|word| word.to_str());
    while let Some(word) = before.next() {
        match word? {
            "-q" | "--quiet" if !common.quiet => common.quiet = true,
            "-u" | "--url" if common.url.is_none() => {
                let url = before.next()?.filter(|url| !url.starts_with('-'));
                common.url = Some(url?.to_owned());
            }
            "-n" | "--no-wait" if is_run && !*no_wait => *no_wait = true,
            option if option.starts_with('-') => return None,
            "run" if !is_run => is_run = true,
            name if is_run => run.names.push(name.to_owned()),
            _ => return None,
        }
    }
    run.command = words[dashes + 1..].to_vec();
    if run.names.is_empty() || run.command.is_empty() {
        return None;
    }
    Some(Cli {
        command: Some(Command::Run(Box::new(run))),
        common,
        version: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::typed;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(Into::into).collect()
    }

    /// Words of such lines, and of other lines.
    const WORDS: [&str; 20] = [
        "run",
        "-q",
        "--quiet",
        "-n",
        "--no-wait",
        "-u",
        "--url",
        "redis://h",
        "a",
        "b",
        "--",
        "true",
        "-",
        "",
        "-v",
        "-w",
        "5",
        "-nq",
        "--ttl=5",
        "status",
    ];

    /// Generates a usual line with a few words repeated, left out or replaced.
    fn lines() -> impl Strategy<Value = Vec<&'static str>> {
        let optional =
            |words: &'static [&'static str]| proptest::option::of(proptest::sample::select(words));
        let quiet: &[&str] = &["-q", "--quiet"];
        let usual = (
            optional(quiet),
            optional(&["-u", "--url"]),
            optional(quiet),
            optional(&["-n", "--no-wait"]),
            optional(&["b"]),
        );
        let usual = usual.prop_map(|(before, url, after, no_wait, other)| {
            let url = url.map(|option| [option, "redis://h"]);
            let global = before.into_iter().chain(url.into_iter().flatten());
            let own = ["run"]
                .into_iter()
                .chain(after)
                .chain(["a"])
                .chain(no_wait)
                .chain(other);
            global.chain(own).chain(["--", "true"]).collect::<Vec<_>>()
        });
        let change = (
            0_u8..4,
            any::<proptest::sample::Index>(),
            proptest::sample::select(&WORDS[..]),
        );
        (usual, proptest::collection::vec(change, 0..3)).prop_map(|(mut line, changes)| {
            for (kind, at, word) in changes {
                let at = at.index(line.len().max(1)).min(line.len());
                match kind {
                    0 if at < line.len() => line.insert(at, line[at]),
                    1 if at < line.len() => drop(line.remove(at)),
                    2 if at < line.len() => line[at] = word,
                    _ => line.insert(at, word),
                }
            }
            line
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

        #[test]
        fn clap_means_the_same(line in lines()) {
            let line = words(&line);
            if let Some(cli) = read(&line) {
                let by_clap = typed::read(&line);
                let by_clap = by_clap.map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(format!("{cli:?}"), format!("{by_clap:?}"));
            }
        }
    }

    #[test]
    fn the_usual_lines_are_read() {
        for line in [
            &["run", "a", "--", "true"][..],
            &["run", "-n", "a", "--", "sh", "-c", "true"],
            &[
                "-q",
                "-u",
                "redis://h",
                "run",
                "a",
                "b",
                "-n",
                "--",
                "true",
                "--",
            ],
            &["run", "-q", "--no-wait", "a", "--", "run"],
        ] {
            let line = words(line);
            let by_clap = typed::read(&line).unwrap();
            let cli = read(&line).unwrap_or_else(|| panic!("{line:?}"));
            assert_eq!(format!("{cli:?}"), format!("{by_clap:?}"), "{line:?}");
        }
    }
}

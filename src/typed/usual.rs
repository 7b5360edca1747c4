//! The line that most jobs have, `[-q] [-u URL] run [-q] [-n] NAME… -- COMMAND`, read without clap: defining clap's command
//! line and reading with it is half of the instructions of a short run.
//!
//! A line of which any word is something else is clap's. So it takes no line that clap refuses, and means by each
//! line what clap means, which a test draws lines for.

use std::ffi::OsString;
use std::time::Duration;

use crate::cli::{AcquireOptions, Cli, Command, Common, Invocation, Run, SyncOptions, WaitOptions};

/// What the words after `redlock` mean, if they are such a line.
pub fn read(words: &[OsString]) -> Option<Cli> {
    let dashes = words.iter().position(|word| word == "--")?;
    let command = words[dashes + 1..].to_vec();
    let before = words[..dashes].iter().map(|word| word.to_str());
    let before: Vec<&str> = before.collect::<Option<_>>()?;
    let run = before.iter().position(|word| *word == "run")?;

    let mut common = Common::default();
    let mut options = before[..run].iter();
    while let Some(option) = options.next() {
        match *option {
            "-q" | "--quiet" if !common.quiet => common.quiet = true,
            "-u" | "--url" if common.url.is_none() => {
                let url = options.next().filter(|url| !url.starts_with('-'))?;
                common.url = Some((*url).to_owned());
            }
            _ => return None,
        }
    }
    let mut of_run = Common::default();
    let mut no_wait = false;
    let mut names = Vec::new();
    for word in &before[run + 1..] {
        match *word {
            "-q" | "--quiet" if !of_run.quiet => of_run.quiet = true,
            "-n" | "--no-wait" if !no_wait => no_wait = true,
            option if option.starts_with('-') => return None,
            name => names.push(name.to_owned()),
        }
    }
    if names.is_empty() || command.is_empty() {
        return None;
    }
    Some(Cli {
        chosen: Some(Invocation {
            command: Command::Run(Box::new(by_default(names, command, no_wait))),
            common: of_run,
        }),
        common,
        version: false,
    })
}

/// A run with the defaults of all other options.
fn by_default(names: Vec<String>, command: Vec<OsString>, no_wait: bool) -> Run {
    Run {
        names,
        command,
        acquire: AcquireOptions {
            ttl: Duration::from_secs(30),
            sync: SyncOptions {
                sync_timeout: Duration::from_secs(1),
                ..SyncOptions::default()
            },
            wait: WaitOptions {
                no_wait,
                ..WaitOptions::default()
            },
            ..AcquireOptions::default()
        },
        kill_after: Duration::from_secs(5),
        ..Run::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::typed::Typed;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(Into::into).collect()
    }

    /// Words of which such lines are made, and some that make another line of them.
    const WORDS: [&str; 22] = [
        "run",
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn clap_means_the_same(line in proptest::collection::vec(proptest::sample::select(&WORDS[..]), 1..9)) {
            let line = words(&line);
            if let Some(cli) = read(&line) {
                let by_clap = Typed::new(line.clone()).read(&line);
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
            let by_clap = Typed::new(line.clone()).read(&line).unwrap();
            let cli = read(&line).unwrap_or_else(|| panic!("{line:?}"));
            assert_eq!(format!("{cli:?}"), format!("{by_clap:?}"), "{line:?}");
        }
    }
}

//! Fuzz targets: parsers of outside input, as functions of bytes. They panic if a promise is broken: no panic, no hang, no
//! unbounded memory, and no text that controls a terminal.
//!
//! The test below calls them with randomly changed examples. With `make search WHAT=input`, libFuzzer looks for inputs that
//! reach new code.

use crate::{config, protocol};

/// A function that reads bytes, and its examples, most of them valid.
pub struct Target {
    pub name: &'static str,
    pub check: fn(&[u8]),
    pub examples: fn() -> Vec<Vec<u8>>,
}

impl Target {
    pub const fn new(name: &'static str, check: fn(&[u8]), examples: fn() -> Vec<Vec<u8>>) -> Self {
        Self {
            name,
            check,
            examples,
        }
    }
}

pub fn targets() -> Vec<Target> {
    let mut all = vec![config::fuzz::TARGET];
    all.extend(protocol::fuzz::TARGETS);
    all
}

pub fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// Panics if a line controls a terminal or changes the direction of its text.
#[track_caller]
pub fn assert_safe_line(line: &str) {
    let is_unsafe = |c: char| {
        let turns = ['\u{61c}', '\u{200e}', '\u{200f}'].contains(&c);
        let ranges = ['\u{2028}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
        c.is_control() || turns || ranges.iter().any(|range| range.contains(&c))
    };
    assert!(!line.contains(is_unsafe), "{line:?}");
}

/// Entry point for libFuzzer: `REDLOCK_FUZZ_TARGET` names the target, and its examples go to the directory
/// `REDLOCK_FUZZ_EXAMPLES`. Lists all targets if none has that name.
#[cfg(fuzzing)]
mod libfuzzer {
    use std::alloc::System;
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use cap::Cap;

    use super::{Target, targets};

    /// Limit on the memory for one input, in bytes. redlock's own largest need is a listing of 16 MiB, as received and as
    /// shown.
    const MEMORY: usize = 64 << 20;

    #[global_allocator]
    static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

    static CHOSEN: OnceLock<Target> = OnceLock::new();

    fn choose() {
        let name = std::env::var("REDLOCK_FUZZ_TARGET").unwrap_or_default();
        let Some(target) = targets().into_iter().find(|target| target.name == name) else {
            let names: Vec<&str> = targets().iter().map(|target| target.name).collect();
            let _ = crate::report::print(&(names.join("\n") + "\n"));
            return;
        };
        if let Some(directory) = std::env::var_os("REDLOCK_FUZZ_EXAMPLES").map(PathBuf::from) {
            for (n, example) in (target.examples)().iter().enumerate() {
                let path = directory.join(format!("example-{n}"));
                std::fs::write(path, example).expect("the directory of examples is there");
            }
        }
        let _ = CHOSEN.set(target);
    }

    libfuzzer_sys::fuzz_target!(init: choose(), |bytes: &[u8]| {
        let Some(target) = CHOSEN.get() else {
            return;
        };
        // The process ends if an input needs more.
        let limit = ALLOCATOR.allocated().saturating_add(MEMORY);
        let _ = ALLOCATOR.set_limit(limit);
        (target.check)(bytes);
        let _ = ALLOCATOR.set_limit(usize::MAX);
    });
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngSeed, TestRunner};

    use super::*;

    /// Returns a configuration with this many cases, the same in each run.
    pub fn cases(cases: u32) -> Config {
        Config {
            cases,
            rng_seed: RngSeed::Fixed(1),
            failure_persistence: None,
            ..Config::default()
        }
    }

    /// Bytes with a meaning somewhere, and numbers at the edge, separated by bars.
    const WORDS: &str = "\r\n|\0| |:|/|@|%|=|,|{|}|\"|'|\\|[|-1|0|9007199254740993|18446744073709551616|\
        99999999999999999999999|\x1b[2J|\u{202e}|\u{9b}|東\u{301}|*1\r\n|$-1\r\n|nan|%00|--";

    /// A change of an input: replaces a part by a piece. Positions are shares of the length.
    #[derive(Clone, Debug)]
    struct Change {
        part: (u16, u16),
        piece: Piece,
    }

    #[derive(Clone, Debug)]
    enum Piece {
        Byte(u8),
        Word(&'static str),
        /// Repeats the part.
        Again(usize),
        /// Inserts a part of another example.
        Other(usize, u16, u16),
    }

    fn change() -> impl Strategy<Value = Change> {
        let short = (any::<u16>(), 0..500_u16).prop_map(|(at, more)| (at, at.saturating_add(more)));
        let words = prop::sample::select(WORDS.split('|').collect::<Vec<_>>());
        let part = prop_oneof![short, (any::<u16>(), any::<u16>())];
        let piece = prop_oneof![
            any::<u8>().prop_map(Piece::Byte),
            words.prop_map(Piece::Word),
            (0..20_usize).prop_map(Piece::Again),
            (any::<usize>(), any::<u16>(), any::<u16>())
                .prop_map(|(other, from, to)| Piece::Other(other, from, to)),
        ];
        (part, piece).prop_map(|(part, piece)| Change { part, piece })
    }

    fn range(one: u16, other: u16, length: usize) -> std::ops::Range<usize> {
        let place = |share: u16| length * usize::from(share) / usize::from(u16::MAX);
        place(one.min(other))..place(one.max(other))
    }

    fn changed(mut bytes: Vec<u8>, change: &Change, examples: &[Vec<u8>]) -> Vec<u8> {
        let part = range(change.part.0, change.part.1, bytes.len());
        let piece = match change.piece {
            Piece::Byte(byte) => vec![byte],
            Piece::Word(word) => word.into(),
            Piece::Again(times) => bytes[part.clone()].repeat(times),
            Piece::Other(other, from, to) => {
                let other = &examples[other % examples.len()];
                other[range(from, to, other.len())].to_vec()
            }
        };
        bytes.splice(part, piece);
        bytes.truncate(64 * 1024);
        bytes
    }

    #[test]
    fn whatever_comes_in_is_read_or_refused() {
        let mut broken = Vec::new();
        for target in targets() {
            let examples = (target.examples)();
            let input = (any::<usize>(), prop::collection::vec(change(), 0..6));
            let mut runner = TestRunner::new(cases(100));
            let result = runner.run(&input, |(example, changes)| {
                let mut bytes = examples[example % examples.len()].clone();
                for change in &changes {
                    bytes = changed(bytes, change, &examples);
                }
                let shown = String::from_utf8_lossy(&bytes).into_owned();
                let read = std::panic::catch_unwind(|| (target.check)(&bytes));
                prop_assert!(read.is_ok(), "{}: {shown:?}", target.name);
                Ok(())
            });
            broken.extend(result.err().map(|error| error.to_string()));
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }
}

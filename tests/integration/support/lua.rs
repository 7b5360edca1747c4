//! The scripts are joined from what they include when redlock is built, as they are shipped; and how the
//! tests call them.

use std::fs;
use std::path::Path;

use crate::support::Redis;

#[path = "../../../build/join.rs"]
pub mod join;

pub use super::scripts::*;

/// Calls a script on the lock "a"; its answer, a line for each field, in which nil is an empty one.
pub fn call(redis: &Redis, name: &str, args: &[&str]) -> Vec<String> {
    let count = KEYS.len().to_string();
    let command = ["EVAL", source(name), &count];
    let common = ["a", "{redlock:a}:", "200"];
    let answer = redis.cli(&[&command[..], &KEYS, &common, args].concat());
    assert!(!answer.contains("ERR"), "{answer}");
    answer.split('\n').map(str::to_owned).collect()
}

/// Files below a directory, and what joining the script `a` among them gives.
fn joined(files: &[(&str, &str)]) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("lib")).unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    join::join(directory.path(), "a")
}

#[test]
fn what_is_included_twice_is_there_once_where_it_is_named_first_and_comments_are_dropped() {
    let files = [
        (
            "a.lua",
            "-- a: adds\n-- @include b\n-- @include c\n  return b + c -- 3\n",
        ),
        ("lib/b.lua", "-- One.\n-- @include c\nlocal b = c - 1\n\n"),
        ("lib/c.lua", "local c, dashes = 2, '--'\n"),
    ];
    let expected = "local c, dashes = 2, '--'\nlocal b = c - 1\nreturn b + c\n";
    assert_eq!(joined(&files).unwrap(), expected);
}

#[test]
fn an_include_that_is_missing_or_leads_back_to_itself_fails_the_build_and_is_named() {
    let missing = joined(&[("a.lua", "-- @include b\n")]).unwrap_err();
    assert!(
        missing.contains("a.lua") && missing.contains("lib/b.lua"),
        "{missing}"
    );
    let circular = [
        ("a.lua", "-- @include b\n"),
        ("lib/b.lua", "-- @include c\n"),
        ("lib/c.lua", "-- @include b\n"),
    ];
    let circular = joined(&circular).unwrap_err();
    assert!(
        circular.contains("lib/c.lua: b includes itself"),
        "{circular}"
    );
    let long = joined(&[("a.lua", "--[[ not\na line ]]\n")]).unwrap_err();
    assert!(long.contains("a comment is a line here"), "{long}");
}

#[test]
fn a_constant_is_defined_before_its_file_is_included_and_one_that_is_missing_fails_the_build() {
    let files = |constants: &'static str| {
        let a: &str = format!("-- @constant {constants}\nreturn B\n").leak();
        [
            ("a.lua", a),
            (
                "lib/b.lua",
                "local B, D = 1, 2\nlocal B = 2 ^ 3 -- eight\nlocal C = 4\n",
            ),
        ]
    };
    let expected = "local C = 4\nlocal B = 2 ^ 3\nreturn B\n";
    assert_eq!(joined(&files("C, B of b")).unwrap(), expected);
    for (constants, part) in [
        ("E of b", "no E"),
        ("B of x", "lib/x.lua"),
        ("B", "which file"),
    ] {
        let error = joined(&files(constants)).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn every_script_is_what_its_files_are_joined_to() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/protocol");
    for (name, source) in SCRIPTS {
        assert_eq!(join::join(&directory, name).unwrap(), source, "{name}");
        assert!(
            !source.contains("@include") && !source.contains("@constant"),
            "{name}"
        );
    }
}

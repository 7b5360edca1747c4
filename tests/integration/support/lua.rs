//! Tests of the scripts' build, which joins them with their includes, and calls of the shipped scripts.

use std::fs;

use crate::support::{Redis, assert_has};

#[path = "../../../build/join.rs"]
pub mod join;

pub use super::scripts::*;

/// Calls a script on the lock "a". Returns its answer, one line for each field; nil becomes an empty line.
pub fn call(redis: &Redis, name: &str, args: &[&str]) -> Vec<String> {
    let count = KEYS.len().to_string();
    let command = ["EVAL", source(name), &count];
    let common = ["a", "{redlock:a}:", "200"];
    let answer = redis.cli(&[&command[..], &KEYS, &common, args].concat());
    assert!(!answer.contains("ERR"), "{answer}");
    answer.split('\n').map(str::to_owned).collect()
}

/// Writes files into a directory. Returns the joined script `a`.
fn joined(files: &[(&str, &str)]) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("lib")).unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    join::join(directory.path(), "a")
}

#[test]
fn a_script_has_each_include_and_each_constant_once_where_it_is_named_first_and_no_comments() {
    let files = [
        (
            "a.lua",
            "-- a: adds\n-- @constant C, B of d\n-- @include b\n-- @include c\n  return b + c -- 3\n",
        ),
        ("lib/b.lua", "-- One.\n-- @include c\nlocal b = c - 1\n\n"),
        ("lib/c.lua", "local c, dashes = 2, '--'\n"),
        (
            "lib/d.lua",
            "local B, D = 1, 2\nlocal B = 2 ^ 3 -- eight\nlocal C = 4\n",
        ),
    ];
    let expected = [
        "local C = 4",
        "local B = 2 ^ 3",
        "local c, dashes = 2, '--'",
        "local b = c - 1",
        "return b + c",
    ];
    assert_eq!(joined(&files).unwrap(), expected.join("\n") + "\n");
}

#[test]
fn an_include_or_a_constant_that_is_missing_or_leads_back_to_itself_fails_the_build_and_is_named() {
    for (a, parts) in [
        ("-- @include x\n", &["a.lua: includes", "lib/x.lua"][..]),
        ("-- @include b\n", &["lib/c.lua: b includes itself"]),
        ("--[[ not\na line ]]\n", &["a comment is a line here"]),
        ("-- @constant E of b\n", &["no E"]),
        ("-- @constant B of x\n", &["lib/x.lua"]),
        ("-- @constant B\n", &["which file"]),
    ] {
        let files = [
            ("a.lua", a),
            ("lib/b.lua", "-- @include c\nlocal B = 1\n"),
            ("lib/c.lua", "-- @include b\n"),
        ];
        assert_has(&joined(&files).unwrap_err(), parts);
    }
}

//! C programs and libraries of the tests.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Options for a library that is preloaded into another program.
pub const LIBRARY: &[&str] = &["-O1", "-Wall", "-Werror", "-shared", "-fPIC"];

/// Compiles a program in C, or a library.
pub fn compile(options: &[&str], source: &str, to: &Path) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), source).unwrap();
    let mut compile = Command::new("cc");
    compile.args(options).args(["-x", "c"]).arg(file.path());
    let output = compile.arg("-o").arg(to).output();
    let output = output.expect("there is a C compiler");
    assert!(output.status.success(), "{output:?}");
}

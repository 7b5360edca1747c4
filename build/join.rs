// Joins a script with its includes and drops the comments, as Redis gets it. Part of the build script; the integration tests
// check what it refuses.

use std::fs;
use std::path::Path;

/// Joins `DIR/NAME.lua` with each `DIR/lib/OTHER.lua` that one of its lines `-- @include OTHER` names, directly or not. Each
/// file is included once, at its first mention. A line `-- @constant NAME, OTHER of FILE` stands for the lines of
/// `DIR/lib/FILE.lua` that define these constants, for code before that file is included. Comments, indentation and empty lines
/// are dropped.
///
/// # Errors
/// Names the file that can't be read, includes itself, lacks such a constant, or has a comment that could pass for code.
pub fn join(directory: &Path, name: &str) -> Result<String, String> {
    let mut script = Script {
        directory,
        included: Vec::new(),
        text: String::new(),
    };
    script.add(&directory.join(format!("{name}.lua")), &[])?;
    Ok(script.text)
}

/// A script that is being joined.
struct Script<'a> {
    directory: &'a Path,
    included: Vec<String>,
    text: String,
}

impl Script<'_> {
    /// Adds a file, which these files include.
    fn add(&mut self, path: &Path, open: &[&str]) -> Result<(), String> {
        let wrong = |what: String| format!("{}: {what}", path.display());
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("-- @include ") {
                if open.contains(&name) {
                    return Err(wrong(format!("{name} includes itself")));
                }
                if !self.included.iter().any(|included| included == name) {
                    let file = self.directory.join("lib").join(format!("{name}.lua"));
                    let added = self.add(&file, &[open, &[name]].concat());
                    added.map_err(|error| wrong(format!("includes {error}")))?;
                    self.included.push(name.to_owned());
                }
            } else if let Some(constants) = line.strip_prefix("-- @constant ") {
                self.text += &defined(self.directory, constants)?;
            } else if line.contains("--[[") {
                return Err(wrong(format!("a comment is a line here: {line}")));
            } else if !without_comment(line).is_empty() {
                self.text += without_comment(line);
                self.text.push('\n');
            }
        }
        Ok(())
    }
}

/// Returns the lines that define constants, given as `NAME, OTHER of FILE`.
fn defined(directory: &Path, constants: &str) -> Result<String, String> {
    let (names, file) = constants
        .split_once(" of ")
        .ok_or_else(|| format!("{constants}: of which file?"))?;
    let path = directory.join("lib").join(format!("{file}.lua"));
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut lines = String::new();
    for name in names.split(", ") {
        let start = format!("local {name} = ");
        let line = text.lines().find(|line| line.starts_with(&start));
        let line = line.ok_or_else(|| format!("{}: no {name}", path.display()))?;
        lines.push_str(without_comment(line));
        lines.push('\n');
    }
    Ok(lines)
}

/// Returns a line up to its comment. Strings in these files have single quotes and no escapes.
fn without_comment(line: &str) -> &str {
    let is_code = |at: &usize| line[..*at].matches('\'').count().is_multiple_of(2);
    let mut comments = line.match_indices("--").map(|(at, _)| at);
    comments
        .find(is_code)
        .map_or(line, |at| line[..at].trim_end())
}

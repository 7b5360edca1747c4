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
    let mut joined = String::new();
    let path = directory.join(format!("{name}.lua"));
    add(
        directory,
        &path,
        &mut Vec::new(),
        &mut Vec::new(),
        &mut joined,
    )?;
    Ok(joined)
}

fn add(
    directory: &Path,
    path: &Path,
    open: &mut Vec<String>,
    done: &mut Vec<String>,
    joined: &mut String,
) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    for line in text.lines() {
        if let Some(included) = line.trim().strip_prefix("-- @include ") {
            let included = included.to_owned();
            if open.contains(&included) {
                return Err(format!("{}: {included} includes itself", path.display()));
            }
            if !done.contains(&included) {
                let file = directory.join("lib").join(format!("{included}.lua"));
                open.push(included.clone());
                add(directory, &file, open, done, joined)
                    .map_err(|error| format!("{}: includes {error}", path.display()))?;
                open.pop();
                done.push(included);
            }
            continue;
        }
        if let Some(constants) = line.trim().strip_prefix("-- @constant ") {
            joined.push_str(&defined(directory, constants)?);
            continue;
        }
        if line.contains("--[[") {
            return Err(format!(
                "{}: a comment is a line here: {line}",
                path.display()
            ));
        }
        let code = without_comment(line).trim();
        if !code.is_empty() {
            joined.push_str(code);
            joined.push('\n');
        }
    }
    Ok(())
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
        lines.push_str(without_comment(line).trim());
        lines.push('\n');
    }
    Ok(lines)
}

/// Returns a line up to its comment. Strings in these files have single quotes and no escapes.
fn without_comment(line: &str) -> &str {
    let is_code = |at: &usize| line[..*at].matches('\'').count().is_multiple_of(2);
    let mut comments = line.match_indices("--").map(|(at, _)| at);
    comments.find(is_code).map_or(line, |at| &line[..at])
}

//! `redlock man` and `redlock completions`: what packages install as files, for those who have the binary alone.

use std::io::{self, IsTerminal};

use anyhow::Result;

use super::usage::BadUsage;
use crate::cli::{self, Shell};
use crate::decide::exit::Exit;
use crate::{output, report};

// The file names and texts of all pages: `PAGES`.
include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Shows a page by man, or prints its source.
pub fn man(options: &cli::Man) -> Result<Exit> {
    let name = options.page.as_deref().unwrap_or("redlock");
    let Some(page) = page(name) else {
        let pages: Vec<&str> = PAGES.iter().map(|(file, _)| short(file)).collect();
        let pages = pages.join(", ");
        return Err(BadUsage(format!("no page {name:?}; the pages are {pages}")).into());
    };
    // Comes back only if there is no man.
    if io::stdout().is_terminal() {
        let man: &[&str] = if report::is_dumb() {
            // Its standard output isn't a terminal then, so it prints plain text without a pager.
            &["sh", "-c", "man -l - | cat"]
        } else {
            &["man", "-l", "-"]
        };
        output::replace_by(man, page);
    }
    report::print(page)?;
    Ok(Exit::Success)
}

/// The text of a page by its name or a command's: `run`, `redlock-run`, `redlock-run.1`.
fn page(name: &str) -> Option<&'static str> {
    let named = |file: &str| name == file || name == stem(file) || name == short(file);
    let (_, page) = PAGES.iter().find(|(file, _)| named(file))?;
    Some(page)
}

/// A file's name without the section.
fn stem(file: &str) -> &str {
    file.rsplit_once('.').map_or(file, |(stem, _)| stem)
}

/// What is typed for it.
fn short(file: &str) -> &str {
    let stem = stem(file);
    stem.strip_prefix("redlock-").unwrap_or(stem)
}

/// Prints the file that packages install for this shell.
pub fn completions(options: &cli::Completions) -> Result<Exit> {
    report::print(match options.shell {
        Shell::Bash => include_str!("../../completions/redlock.bash"),
        Shell::Zsh => include_str!("../../completions/_redlock"),
        Shell::Fish => include_str!("../../completions/redlock.fish"),
    })?;
    Ok(Exit::Success)
}

//! `redlock help`: the pages that packages install as files, for those who have the binary alone.

use std::fs::File;
use std::io::{self, IsTerminal, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Result;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::mistakes::print_help;
use super::usage::refuse;
use crate::cli;
use crate::decide::exit::Exit;
use crate::{report, sys, typed};

// The file names and texts of all pages: `PAGES`.
include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Shows a page: on a terminal through man, or if that isn't installed, through the pager.
pub fn help(options: &cli::Help) -> Result<Exit> {
    let Some(name) = options.page.as_deref() else {
        return print_help(None, true);
    };
    // A command may have another name.
    let command = typed::command(&[name.into()]);
    let wanted = short(command.as_deref().unwrap_or(name));
    let Some((_, page)) = PAGES.iter().find(|(file, _)| short(file) == wanted) else {
        let pages = pages().collect::<Vec<_>>().join(", ");
        return refuse(
            Exit::Usage,
            format!("no page {name:?}; the pages are {pages}"),
        );
    };
    let text = report::plain(page);
    if io::stdout().is_terminal() && !report::is_dumb() {
        // These come back only if the program isn't installed.
        become_reader(&["man", "-l", "-"], page);
        become_reader(&["sh", "-c", "${PAGER:-less} 2>/dev/null || cat"], &text);
    }
    report::print(&text)?;
    Ok(Exit::Success)
}

/// What is typed for each page.
pub(super) fn pages() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|(file, _)| short(file))
}

/// Becomes a program that reads this text from its standard input. Returns only if that fails.
fn become_reader(words: &[&str], text: &str) {
    let Ok(file) = memfd_create(c"redlock", MFdFlags::MFD_CLOEXEC) else {
        return;
    };
    let mut file = File::from(file);
    if file.write_all(text.as_bytes()).is_ok() && file.rewind().is_ok() {
        sys::set_default(libc::SIGPIPE);
        let _ = Command::new(words[0]).args(&words[1..]).stdin(file).exec();
    }
}

/// Returns what is typed for a page: `run` for `run`, `redlock-run` or `redlock-run.1`.
fn short(file: &str) -> &str {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    stem.strip_prefix("redlock-").unwrap_or(stem)
}

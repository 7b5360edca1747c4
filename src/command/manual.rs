//! `redlock help`: shows the manual's pages to users who have only the binary.

use std::fs::File;
use std::io::{self, IsTerminal, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Result;
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::mistakes::print_help;
use crate::cli;
use crate::decide::exit::Exit;
use crate::usage::refuse;
use crate::{report, sys, typed};

// Defines `PAGES`, the file names and texts of all pages.
include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Shows a page. On a terminal uses man, or the pager if man isn't installed.
pub fn help(options: &cli::Help) -> Result<Exit> {
    let Some(name) = options.page.as_deref() else {
        return print_help(None, true);
    };
    // The name may be an alias of a command.
    let command = typed::command(&[name.into()]);
    let wanted = short(command.as_deref().unwrap_or(name));
    let Some((_, page)) = PAGES.iter().find(|(file, _)| short(file) == wanted) else {
        let pages = pages().collect::<Vec<_>>().join(", ");
        let line = format!("no page {name:?}; the pages are {pages}");
        return refuse(Exit::Usage, line);
    };
    let text = report::plain(page);
    if io::stdout().is_terminal() && !report::is_dumb() {
        // These calls return only if the program can't be started.
        become_reader(&["man", "-l", "-"], page);
        become_reader(&["sh", "-c", "${PAGER:-less} 2>/dev/null || cat"], &text);
    }
    report::print(&text)?;
    Ok(Exit::Success)
}

/// Returns the names of the pages, as users type them.
pub(super) fn pages() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|(file, _)| short(file))
}

/// Replaces this process by a program that reads this text from its standard input. Returns only if that fails.
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

/// Returns the short name of a page: `run` for `run`, `redlock-run` or `redlock-run.1`.
fn short(file: &str) -> &str {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    stem.strip_prefix("redlock-").unwrap_or(stem)
}

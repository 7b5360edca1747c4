//! Output: one line on stderr, prefixed `redlock: `, safe for a terminal; and products on stdout.

mod roff;
mod style;
mod table;
mod text;
mod words;

use std::fmt;
use std::io::{self, IsTerminal, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::reason::{reason, without_number};
use crate::{file, stderr};

pub use crate::duration::brief as format_duration;
pub use crate::shell::{command_line, quote};

pub use self::roff::plain;
pub use self::style::{Style, has_colors, is_dumb, line_columns, painted};
pub use self::table::{Step, Table};
pub use self::text::*;
pub use self::words::*;

/// Start of each line on stderr.
const PREFIX: &str = "redlock: ";

/// Amount of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// And messages that a user should know.
    Normal,
    /// And each change of state.
    Verbose,
}

impl Verbosity {
    /// Prints what a user should know, except with --quiet.
    pub fn info(self, line: impl fmt::Display) {
        if self >= Self::Normal {
            error(line);
        }
    }

    /// Prints how things stand, except with --quiet: on a terminal in a line that the next one
    /// takes the place of.
    pub fn progress(self, line: &str) {
        if has_terminal() && self >= Self::Normal {
            status_line(Some(line));
        } else {
            self.info(line);
        }
    }

    /// Prints that an outage is over, of which the user was shown a line: on a terminal that is taken away.
    pub fn answers_again(self) {
        if has_terminal() {
            status_line(None);
        } else {
            self.info("Redis answers again");
        }
    }

    /// Prints a change of state, with --verbose.
    pub fn verbose(self, line: impl fmt::Display) {
        if self >= Self::Verbose {
            error(line);
        }
    }
}

/// Prints what went wrong. In one write, so that lines of parallel runs don't mix; a closed stderr
/// changes nothing.
pub fn error(line: impl fmt::Display) {
    status_line(None);
    let line = without_number(&line.to_string());
    let line = format!("{PREFIX}{}\n", escaped(&line));
    stderr::write(line.into_bytes());
}

/// Has the runner of GitHub Actions mask a secret in the log of the job. It reads standard error as well as standard
/// output, which may be the file for variables, and knows its commands at the start of a line.
pub fn mask_in_github(secret: &str) {
    stderr::write(format!("::add-mask::{secret}\n").into_bytes());
}

/// Returns true if stderr is a terminal.
pub fn has_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Shows a line on the terminal that the next one takes the place of; `None` takes it away.
pub fn status_line(line: Option<&str>) {
    static SHOWN: AtomicBool = AtomicBool::new(false);
    let was_shown = SHOWN.swap(line.is_some(), Ordering::Relaxed);
    if line.is_none() && !was_shown {
        return;
    }
    let line = line.map_or(String::new(), |line| format!("{PREFIX}{}", escaped(line)));
    let line = truncate(&line, line_width());
    stderr::write(format!("\r{line}\x1b[K").into_bytes());
}

/// Returns true if a question would reach a person.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && has_terminal()
}

/// Asks a question on the terminal; true for a yes.
pub fn ask(question: &str) -> io::Result<bool> {
    stderr::write(format!("{PREFIX}{} [y/N] ", escaped(question)).into_bytes());
    stderr::flush(stderr::LINGER);
    let mut answer = String::new();
    if io::stdin().read_line(&mut answer)? == 0 {
        // The answer would have ended the line.
        stderr::write(b"\n".to_vec());
    }
    let answer = answer.trim().to_lowercase();
    Ok(answer == "y" || answer == "yes")
}

/// Prints to stdout; false if its reader has closed the pipe (`| head`), which isn't an error.
pub fn print(text: &str) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    let printed = stdout.write_all(text.as_bytes());
    match printed.and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let why = format!("can't write to standard output: {}", reason(&error));
            Err(io::Error::new(error.kind(), why))
        }
    }
}

/// Prints to stdout if the path is `-`; otherwise the file is replaced as a whole.
pub fn print_to(path: &Path, text: &str) -> io::Result<bool> {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem};
    if path == Path::new("-") {
        return print(text);
    }
    let Err(error) = file::replace(path, text) else {
        return Ok(true);
    };
    let why = match error.kind() {
        NotFound => "there is no such directory".into(),
        PermissionDenied | ReadOnlyFilesystem => {
            reason(&error) + "; its directory has to be writable, as a new file replaces it"
        }
        _ => reason(&error),
    };
    let line = format!("can't write {}: {why}", path.display());
    Err(io::Error::other(line))
}

/// Names for a program, one a line. A changed name would be another lock's, and one that drives a terminal or is a
/// command to a CI agent would be obeyed if a script lets it into a log: such names are left out. So are those that
/// xargs takes quotes and backslashes from, and those that `$(...)` in a shell makes names of files.
pub fn lines_of<'a>(names: impl IntoIterator<Item = &'a str>, verbosity: Verbosity) -> String {
    let mut lines = String::new();
    for name in names {
        if is_safe(name) && !name.contains(['"', '\'', '\\', '*', '?', '[']) {
            lines.extend([name, "\n"]);
        } else {
            verbosity.info(format_args!(
                "name \"{name}\" is not listed, because it isn't safe in a script"
            ));
        }
    }
    lines
}

/// Returns the columns of a line on the terminal; without one, all that there can be.
fn line_width() -> usize {
    if !has_terminal() {
        return usize::MAX;
    }
    let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0.into());
    // One less, so that no terminal breaks the line.
    width.unwrap_or(80_usize).saturating_sub(1)
}

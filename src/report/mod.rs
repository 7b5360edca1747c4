//! Output: lines on stderr, prefixed `redlock: ` and safe for a terminal, and results on stdout.

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
pub use self::table::{Narrowing, Table};
pub use self::text::*;
pub use self::words::*;

/// Start of each line on stderr.
const PREFIX: &str = "redlock: ";

/// Amount of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Errors, and messages that a user should know.
    Normal,
    /// All of these, and each change of state.
    Verbose,
}

impl Verbosity {
    /// Prints a message that a user should know, except with --quiet.
    pub fn info(self, line: impl fmt::Display) {
        if self >= Self::Normal {
            error(line);
        }
    }

    /// Prints the current state, except with --quiet. On a terminal, the next line replaces this one.
    pub fn progress(self, line: &str) {
        if has_terminal() && self >= Self::Normal {
            status_line(Some(line));
        } else {
            self.info(line);
        }
    }

    /// Ends the message about an outage that the user was shown: removes its line on a terminal, or prints that Redis answers.
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

/// Prints an error or another message. Uses one write, so that lines of parallel runs don't mix. Ignores a closed stderr.
pub fn error(line: impl fmt::Display) {
    status_line(None);
    let line = without_number(&line.to_string());
    let line = format!("{PREFIX}{}\n", escaped(&line));
    stderr::write(line.into_bytes());
}

/// Has the runner of GitHub Actions mask a secret in the log of the job. Prints to stderr, because stdout may be the file for
/// variables. The runner reads both, and recognizes its commands at the start of a line.
pub fn mask_in_github(secret: &str) {
    stderr::write(format!("::add-mask::{secret}\n").into_bytes());
}

/// Returns true if stderr is a terminal.
pub fn has_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Shows a line on the terminal, which the next line replaces. `None` removes it.
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

/// Returns true if a person can answer a question.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && has_terminal()
}

/// Asks a question on the terminal. Returns true for a yes.
pub fn ask(question: &str) -> io::Result<bool> {
    stderr::write(format!("{PREFIX}{} [y/N] ", escaped(question)).into_bytes());
    stderr::flush(stderr::LINGER);
    let mut answer = String::new();
    if io::stdin().read_line(&mut answer)? == 0 {
        // The user's answer would have ended the line.
        stderr::write(b"\n".to_vec());
    }
    let answer = answer.trim().to_lowercase();
    Ok(answer == "y" || answer == "yes")
}

/// Prints to stdout. Returns false if the reader has closed the pipe (`| head`), which isn't an error.
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

/// Prints to stdout if the path is `-`; otherwise replaces the file as a whole.
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

/// Returns names for a program, one per line. Leaves out a name with a character that would have to be escaped: escaped, it
/// would be another lock's name; unescaped, it could drive a terminal or a CI agent once a script logs it. Also leaves out
/// names with quotes or backslashes, which xargs removes, and names that `$(...)` in a shell expands to file names.
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

/// Returns the number of columns for a line on the terminal, or no limit without a terminal.
pub fn line_width() -> usize {
    if !has_terminal() {
        return usize::MAX;
    }
    let width = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0.into());
    // The last column stays free, because some terminals break a full line.
    width.unwrap_or(80_usize).saturating_sub(1)
}

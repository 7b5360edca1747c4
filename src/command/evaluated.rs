//! The end of a failed command whose output a shell evaluates.

use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::time::Duration;

use crate::decide::exit::Exit;
use crate::report::print;
use crate::sys::poll;

/// How long the end of a failed acquire waits for a reader.
const READER_WITHIN: Duration = Duration::from_secs(1);

/// Has the shell that evaluates our output end the script with our status, as we have failed; it is 0 where the user
/// wants that for a busy lock. An interactive shell only gets the status.
pub fn fail_eval(exit: Exit) {
    let status = exit.code();
    let stdout = std::io::stdout();
    if matches!(exit, Exit::Success) || stdout.is_terminal() {
        return;
    }
    let line = format!("case $- in *i*) (exit {status});; *) exit {status};; esac\n");
    // Without a reader it is not evaluated.
    if poll::is_ready(poll::writable(stdout.as_fd()), READER_WITHIN) {
        let _ = print(&line);
    }
}

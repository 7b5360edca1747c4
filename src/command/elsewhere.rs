//! Where this isn't Linux, the commands of a job under supervision refuse. All others work.

// They are called as the commands are that they stand in for.
#![allow(clippy::unnecessary_wraps)]

use anyhow::Result;

use crate::decide::exit::Exit;
use crate::report;

pub fn run<Options, Settings>(_: &Options, _: &Settings) -> Result<Exit> {
    Ok(refuse("run"))
}

pub fn acquire<Options, Settings>(_: &Options, _: &Settings) -> Result<Exit> {
    Ok(refuse("acquire"))
}

pub fn guard<Options, Settings>(_: &Options, _: &Settings) -> Result<Exit> {
    Ok(refuse("guard"))
}

fn refuse(command: &str) -> Exit {
    report::error(refusal(command));
    Exit::Unreachable
}

/// The sentence of a command that refuses.
fn refusal(command: &str) -> String {
    format!(
        "redlock {command} works on Linux only: it needs Linux to find and to kill the processes of a job; status, stop, history and the other commands work here"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_supervise_refuse_elsewhere_with_69_and_name_those_that_work() {
        let refused = [run, acquire, guard].map(|command| command(&(), &()));
        for exit in refused {
            assert_eq!(exit.unwrap().code(), 69);
        }
        assert_eq!(
            refusal("run"),
            "redlock run works on Linux only: it needs Linux to find and to kill the processes of a job; status, stop, history and the other commands work here"
        );
    }
}

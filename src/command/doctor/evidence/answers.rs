//! The text of questions, and the meaning of answers and refusals. Pure.

use super::facts::{Known, Unknown};
use crate::protocol::{Answer, Question, Refusal};

/// A question in words.
pub(super) fn question(words: &[&str]) -> Question {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// A text, or why there is none.
pub(super) fn text(command: &'static str, answer: Option<Answer>) -> Known<String> {
    let answer = answer.ok_or(Unknown::NoAnswer)?;
    match answer.refusal() {
        None => Ok(answer.text()),
        Some(refusal) if is_denied(refusal) => Err(Unknown::Denied(command)),
        Some(refusal) if is_unknown(refusal) => Err(Unknown::Unsupported(command)),
        Some(refusal) => Err(Unknown::Failed(refusal.to_string())),
    }
}

/// Why an answer isn't the one that was asked for.
pub(super) fn why_not(command: &'static str, answer: Option<Answer>) -> Unknown {
    text(command, answer).err().unwrap_or(Unknown::NoAnswer)
}

/// What a refusal is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Command,
    Keys,
    Channels,
}

pub(super) fn refused(refusal: Refusal<'_>) -> Option<Refused> {
    let details = refusal.details();
    refusal
        .is_by_rule()
        .then_some(if details.contains("to run the") {
            Refused::Command
        } else if details.contains("channel") {
            Refused::Channels
        } else {
            Refused::Keys
        })
}

/// Whether a server doesn't know a command.
pub(super) fn is_unknown(refusal: Refusal<'_>) -> bool {
    let details = refusal.details().to_lowercase();
    details.contains("unknown command") || details.contains("unknown subcommand")
}

/// Whether the command itself was refused.
pub(super) fn is_denied(refusal: Refusal<'_>) -> bool {
    refused(refusal) == Some(Refused::Command)
}

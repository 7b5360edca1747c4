//! Promises of redlock, each tested from outside with a real, private Redis.
//!
//! | where | what |
//! | --- | --- |
//! | `promises/` | a file for each kind of promise; its `mod.rs` lists them |
//! | `machines/` | searches for a broken promise by drawing, playing or breaking things; its `mod.rs` lists them |
//! | `support/` | helpers of every test: a private Redis, redlock as a process, terminals, lines that fail |
//! | `generated` | man pages and completions agree with the command line, and work |
//! | `pages` | the README and the pages of docs/ have valid links |
//! | `roff` | makes pages of the manual from pages of docs/ |
//! | `tidy` | the invariants that the text of the code shows |
//! | `words` | comments are sentences that one reads once |
//!
//! A new test belongs in the file of `promises/` whose line in that list it proves.

// A test fails by panicking, and its helpers explain more than an error type would.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used)]

#[macro_use]
mod support;

mod generated;
mod machines;
mod pages;
mod promises;
mod roff;
mod tidy;
mod words;

//! The promises of redlock, each tested from outside on a real, private Redis.
//!
//! | where | what |
//! | --- | --- |
//! | `promises/` | a file for each kind of promise; its `mod.rs` lists them |
//! | `machines/` | what draws, plays or breaks things to find a promise that doesn't hold; its `mod.rs` lists them |
//! | `support/` | what every test needs: a private Redis, redlock as a process, terminals, lines that fail |
//! | `generated` | man pages and completions agree with the command line, and work |
//! | `messages` | all sentences that redlock prints are in one file to read through |
//! | `pages` | the README and the pages of docs/ lead where they say |
//! | `roff` | makes pages of the manual from pages of docs/ |
//! | `tidy` | the invariants of the code that can be seen in its text |
//!
//! A new test belongs in the file of `promises/` whose line in that list it proves.

// A test's failure is a panic; its helpers say more than an error type would.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used)]

#[macro_use]
mod support;

mod generated;
mod machines;
mod messages;
mod pages;
mod promises;
mod roff;
mod tidy;

//! The vocabulary of nearly every test: servers, processes and their ends, and what these need of other crates.

pub use std::fs;
pub use std::process::Command;
pub use std::time::{Duration, Instant};

pub use nix::sys::signal::Signal;
pub use serde_json::Value;

pub use super::*;

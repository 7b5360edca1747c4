//! Names that nearly every test uses: servers, processes and their ends, and items of other crates.

pub use std::fs;
pub use std::process::Command;
pub use std::time::{Duration, Instant};

pub use nix::sys::signal::Signal;
pub use serde_json::Value;

pub use super::*;

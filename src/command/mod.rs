//! The subcommands, a module each, and what they share: the choice of holders, and corrected command lines.

pub mod acquire;
mod change;
pub mod completions;
mod corrections;
pub mod doctor;
pub mod extend;
pub mod fence;
pub mod freeze;
#[cfg(test)]
#[path = "../../tests/fuzz/command.rs"]
mod fuzz;
pub mod guard;
pub mod history;
mod inspections;
mod json;
pub mod manual;
pub mod mistakes;
mod never_used;
pub mod release;
mod requested;
pub mod run;
mod selection;
pub mod status;
pub mod stop;
pub mod version;

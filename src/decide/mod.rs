//! Decisions, apart from the code that carries them out. Pure: the clock and the dice come in as arguments.

pub mod exit;
pub mod job_control;
pub mod lease;
pub mod renewals;
pub mod session;
pub mod wait;

//! Shares some helpers of the integration tests.

#[path = "../integration/support/compiler.rs"]
mod compiler;
#[allow(dead_code)] // The integration tests use the rest of it.
#[path = "../integration/support/dice.rs"]
mod dice;
#[path = "../integration/support/scripts.rs"]
pub mod lua;
#[allow(dead_code)]
#[path = "../integration/support/patience.rs"]
mod patience;
#[allow(dead_code)]
#[path = "../integration/support/program.rs"]
mod program;
#[path = "../integration/support/threads.rs"]
mod threads;

pub use self::compiler::{LIBRARY, compile};
pub use self::dice::{Dice, asked};
pub use self::patience::wait_until;
pub use self::program::{QUIET, SERVER};
pub use self::threads::{cores, on_threads};

//! What finds cases that nobody wrote down: it draws or plays them, fails each step in turn, or breaks the
//! program to see whether a test notices.
//!
//! | file | what it does |
//! | --- | --- |
//! | `faults` | any one request or answer gets lost, late or cut, at any step |
//! | `sweep` | each system call fails once, or is the last one, and the promises hold |
//! | `examples` | examples of the protocol: what each call answers, says to whom, and leaves in Redis |
//! | `lua_mutants` | a mistake in a script is found by some test |
//! | `fuzz` | the protocol's promises, whatever happens, in simulated time |
//! | `fake` | the Redis in memory, on which the models run, does as a real one |
//! | `chaos` | real commands, real servers, and whatever can befall them, at random |
//! | `mutants` | faults put in on purpose can still be put in, and name the tests that notice them |

mod chaos;
mod examples;
pub mod fake;
mod faults;
pub mod fuzz;
mod lua_mutants;
mod mutants;
mod sweep;

//! What finds cases that nobody wrote down: it draws or plays them, fails each step in turn, or breaks the
//! program to see whether a test notices.
//!
//! | file | what it does |
//! | --- | --- |
//! | `faults` | any one request or answer gets lost, late or cut, at any step |
//! | `sweep` | each system call fails once, or is the last one, and the promises hold |
//! | `chaos` | real commands, real servers, and whatever can befall them, at random |
//! | `mutants` | faults put in on purpose can still be put in, and name the tests that notice them |

mod chaos;
mod faults;
mod mutants;
mod sweep;

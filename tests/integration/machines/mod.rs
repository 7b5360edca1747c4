//! Searches for cases that nobody wrote down. The tests draw or play cases, fail each step in turn, or break the program to see
//! whether a test notices.
//!
//! | file | what it does |
//! | --- | --- |
//! | `faults` | one request or reply is lost, late or cut, at any step |
//! | `sweep` | each system call fails once or is the last one, and the promises hold |
//! | `chaos` | real commands and servers meet random faults |
//! | `mutants` | each deliberate fault still applies, and names the tests that notice it |

mod chaos;
mod faults;
mod mutants;
mod sweep;

//! The promises of redlock, each tested from outside on a real, private Redis.
//!
//! | file | promises about |
//! | --- | --- |
//! | `basics` | the uncontended run: silence, environment, exit statuses, commands sent |
//! | `exit` | every exit status, reached the way a user reaches it |
//! | `generated` | man pages and completions agree with the command line, and work |
//! | `supervision` | signals, process groups, streams: what COMMAND finds and what becomes of it |
//! | `terminal` | Ctrl-C, Ctrl-Z, `fg` and hang-up on a real terminal |
//! | `loss` | what happens when the lock is lost, or can't be renewed |
//! | `survival` | what goes wrong within the lease and isn't noticed |
//! | `exclusion` | two never run at once, whoever they are |
//! | `queue` | waiting: the order of turns, and what disturbs it |
//! | `protocol` | the scripts: requests that are repeated, keys that are gone, clocks that were set, and bounds |
//! | `groups` | shared locks and slots: who runs together, and who never does |
//! | `nesting` | several names, runs within runs, deadlocks |
//! | `waiting` | what is seen of a wait, and waiting without taking |
//! | `takeover` | a holder on this host that is dead, and what is no proof of that |
//! | `status` | who holds which lock, for people and for programs |
//! | `release` | giving back by token, and by force |
//! | `scripts` | locks of scripts that aren't wrapped: acquire, extend, check, release |
//! | `fencing` | a fence file lets no late writer pass |
//! | `keeper` | what stays behind to keep a script's lock, and when it goes |
//! | `cron` | doing it once: --hold-at-least, --once-per, --unless, --jitter, and silence |
//! | `ci` | pipelines: links to jobs, the newest deploy, joining a run, cancelled jobs |
//! | `frozen` | freezing: the holder finishes, nobody new gets in, and all see why |
//! | `full` | a server without memory to spare: what is held goes on |
//! | `repair` | locks that other clients have left without an expiry |
//! | `history` | who held a lock, how long, and how it ended |
//! | `recipes` | each recipe of the README, run as it stands there |
//! | `config` | settings, passwords, TLS |
//! | `tidy` | the invariants of the code that can be seen in its text |

// A test's failure is a panic; its helpers say more than an error type would.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used)]

mod basics;
mod ci;
mod config;
mod cron;
mod exclusion;
mod exit;
mod fencing;
mod frozen;
mod full;
mod generated;
mod groups;
mod history;
mod keeper;
mod loss;
mod nesting;
mod protocol;
mod pty;
mod queue;
mod recipes;
mod release;
mod repair;
mod scripts;
mod status;
mod supervision;
mod support;
mod survival;
mod takeover;
mod terminal;
mod tidy;
mod waiting;

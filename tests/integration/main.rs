//! The promises of redlock, each tested from outside on a real, private Redis.
//!
//! | file | promises about |
//! | --- | --- |
//! | `basics` | the uncontended run: silence, environment, exit statuses, commands sent |
//! | `exit` | every exit status, reached the way a user reaches it |
//! | `generated` | man pages and completions agree with the command line, and work |
//! | `supervision` | signals, process groups, streams: what COMMAND finds and what becomes of it |
//! | `relayed` | one request to end that comes in many ways, and what a second one is |
//! | `by_signal` | how redlock ends where a signal ended COMMAND or the wait, and the script around it |
//! | `blocked` | nothing that redlock says holds it up: a full pipe, a stopped terminal |
//! | `terminal` | Ctrl-C, Ctrl-Z, `fg` and hang-up on a real terminal |
//! | `lies` | servers, proxies and data that lie: no crash, no hang, no memory, no lock that isn't there |
//! | `loss` | what happens when the lock is lost, or can't be renewed |
//! | `faults` | any one request or answer gets lost, late or cut, at any step |
//! | `survival` | what goes wrong within the lease and isn't noticed |
//! | `farewell` | leaving while Redis stands still, and starting nothing under a lease that is over |
//! | `distance` | servers that are far away, stand still or aren't ready |
//! | `exclusion` | two never run at once, whatever they are |
//! | `queue` | waiting: the order of turns, and what disturbs it |
//! | `protocol` | the scripts: requests that are repeated, keys that are gone, clocks that were set, and bounds |
//! | `contested` | what an adversary of the protocol has found: crowds, grants and replies that come late |
//! | `groups` | shared locks and slots: who runs together, and who never does |
//! | `nesting` | several names, runs within runs, deadlocks |
//! | `waiting` | what is seen of a wait, and waiting without taking |
//! | `starting` | how COMMAND is found and started, and what can't be made when it runs |
//! | `tree` | COMMAND and all that it started: waited for, asked to stop, killed |
//! | `adversary` | what an adversary has found from outside, for each of the promises above |
//! | `survivors` | what a killed redlock leaves behind keeps the lock until it has ended |
//! | `sweep` | each system call fails once, or is the last, and the promises hold |
//! | `takeover` | a holder on this host that is dead, and what is no proof of that |
//! | `status` | who holds which lock, for people and for programs |
//! | `release` | giving back by token, and by force |
//! | `scripts` | locks of scripts that aren't wrapped: acquire, extend, check, release |
//! | `fencing` | a fence file lets no late writer pass |
//! | `keeper` | what stays behind to keep a script's lock, and when it goes |
//! | `cron` | doing it once: --hold-at-least, --once-per, --unless, --jitter, and silence |
//! | `ci` | pipelines: links to jobs, the newest deploy, joining a run, cancelled jobs |
//! | `frozen` | freezing: the holder finishes, nobody new gets in, and all see why |
//! | `lua` | the scripts are joined as they should be (and how tests call them)
//! | `full` | a server without memory to spare: what is held goes on |
//! | `repair` | locks that other clients have left without an expiry |
//! | `history` | who held a lock, how long, and how it ended |
//! | `recipes` | each recipe of the README, run as it stands there |
//! | `packages` | tarball, .deb and image; installing by checksum, also in CI: the action and the template |
//! | `fuzz` | the protocol's promises, whatever happens, in simulated time |
//! | `config` | settings, passwords, TLS |
//! | `proxy` | (a way to a server on which requests and answers get lost, late or cut) |
//! | `tidy` | the invariants of the code that can be seen in its text |

// A test's failure is a panic; its helpers say more than an error type would.
#![allow(clippy::missing_panics_doc, clippy::unwrap_used)]

mod adversary;
mod basics;
mod blocked;
mod by_signal;
mod ci;
mod config;
mod contested;
mod cron;
mod distance;
mod exclusion;
mod exit;
mod farewell;
mod faults;
mod fencing;
mod frozen;
mod full;
mod fuzz;
mod generated;
mod groups;
mod history;
mod keeper;
mod lies;
mod loss;
mod lua;
mod nesting;
mod packages;
mod protocol;
mod proxy;
mod pty;
mod queue;
mod recipes;
mod relayed;
mod release;
mod repair;
mod scripts;
mod starting;
mod status;
mod supervision;
mod support;
mod survival;
mod survivors;
mod sweep;
mod takeover;
mod terminal;
mod tidy;
mod tmux;
mod tree;
mod waiting;

//! Tests of redlock's promises, one file for each kind of promise. A test's name states its promise.
//!
//! | file | promises about |
//! | --- | --- |
//! | `basics` | the uncontended run: environment and requests |
//! | `exit` | every exit status, reached the way a user reaches it |
//! | `supervision` | signals, process groups, streams: COMMAND's environment, and its fate |
//! | `signals` | which signals reach COMMAND, and how often: keys, relays, process groups, first and second requests to end |
//! | `by_signal` | how redlock and the script around it end if a signal ended COMMAND or the wait |
//! | `blocked` | writing a message never delays redlock: a full pipe, a stopped terminal |
//! | `terminal` | job control, reads and modes on a real terminal; a COMMAND that is stopped |
//! | `untrusted` | servers, proxies and data that lie: no crash, no hang, no memory, no lock that isn't there |
//! | `loss` | what happens when the lock is lost, or can't be renewed |
//! | `survival` | failures shorter than the lease change nothing |
//! | `unresponsive` | ending while Redis doesn't respond, and starting nothing under an expired lease |
//! | `trouble` | faults of Redis or its URL: one clear line, the status and a fix |
//! | `distance` | distant, suspended or unready servers |
//! | `doctor` | whether a Redis is fit to hold locks: finds each fault, with the command to type |
//! | `doctor_fixes` | each command that doctor prints, pasted into a shell, repairs its problem |
//! | `exclusion` | two holders never run at once, and their fencing tokens grow |
//! | `queue` | waiting: the order of turns, and what disturbs it |
//! | `protocol` | properties of the scripts on a real server: bounds, requests in parts, keys of other programs |
//! | `contested` | crowds, and grants and replies that arrive late |
//! | `groups` | shared locks, slots and plain clients: which runs overlap, and which never do |
//! | `missed` | names that nobody has used, and corrections of typos |
//! | `nesting` | several names, runs within runs, deadlocks |
//! | `waiting` | visibility of a wait, and waiting without taking |
//! | `starting` | how COMMAND is found and started, and what happens when that fails |
//! | `tree` | COMMAND and its descendants: redlock waits for them, stops them, kills them |
//! | `unkillable` | unkillable or invisible work keeps its lock until it ends or is given up |
//! | `status` | the holders and waiters of each lock, for people and for programs |
//! | `monitoring` | locks that are held for too long, and metrics: output for cron and Prometheus, whatever fails |
//! | `screen` | output on terminals of 40, 80 and 120 columns |
//! | `stepping_in` | stopping a holder, forcing a lock free, removing a waiter: the right target, and messages for all sides |
//! | `privacy` | visibility of a command to others; its secrets aren't stored |
//! | `release` | releasing by token, and by force |
//! | `scripts` | locks of scripts without a wrapper: acquire, extend, check, release |
//! | `guards` | work elsewhere under a lock: it ends with the run, and then the lock is handed over |
//! | `elsewhere` | guarded work on hosts behind ssh and in a daemon's containers: no two holders' work beats at once |
//! | `fencing` | a fence file rejects every stale writer |
//! | `keeper` | the process that renews a script's lock, and its end |
//! | `cron` | running once: --hold-at-least, --once-per, REDLOCK_JITTER, and silence |
//! | `ci` | pipelines: links to jobs, the newest deploy, joining a run, cancelled jobs |
//! | `clock_skew` | leases end sooner, because the clocks of the Redis hosts may differ |
//! | `frozen` | freezing: the holder finishes, no new holder is admitted, and everybody sees the reason |
//! | `full` | a server without free memory: locks that are held stay held |
//! | `repair` | locks that other clients have left without an expiry |
//! | `hook` | a script for the events of a run, outside COMMAND's process tree |
//! | `history` | the holders of a lock, how long each held it, and how each hold ended |
//! | `recipes` | the README's recipes, run unchanged; all shell code on the pages |
//! | `second_host` | the README's commands for a second host, on two hosts |
//! | `services` | a service under systemd: systemd knows whether it waits or runs |
//! | `packages` | tarball and .deb; installing by checksum, also by GitHub's action |
//! | `releases` | redlock's home in one place, installing a release from there, what GitHub runs |
//! | `cluster` | Redis Cluster: one hash slot, whichever node answers, wherever the slot moves |
//! | `watchdog` | a killed or stopped redlock: nothing of COMMAND outlives it, or its lease |
//! | `usage` | command lines, right and wrong: messages for mistakes, durations, help, a variable for each option |
//! | `sentinel` | a primary with replicas, with sentinels: no failover loses or doubles a lock |
//! | `sync` | replicas that confirm grants: the promises of REDLOCK_SYNC, and clocks that differ |
//! | `manual` | the manual and the completions inside the binary |
//! | `config` | settings, passwords, TLS |
//! | `local` | a server of this host, started by the first command that needs it, and the fate of its locks |
//! | `password` | password files, and locks that outlive their passwords |
//! | `suspend` | the clock of leases runs while the machine is suspended |

mod basics;
mod blocked;
mod by_signal;
mod ci;
mod clock_skew;
mod cluster;
pub mod config;
mod contested;
mod cron;
mod distance;
pub mod doctor;
mod doctor_fixes;
mod elsewhere;
mod exclusion;
mod exit;
mod fencing;
mod frozen;
mod full;
mod groups;
mod guards;
mod history;
mod hook;
mod keeper;
mod local;
mod loss;
mod manual;
mod missed;
mod monitoring;
mod nesting;
mod packages;
mod password;
mod privacy;
mod protocol;
mod queue;
mod recipes;
mod release;
mod releases;
mod repair;
mod screen;
mod scripts;
mod second_host;
mod sentinel;
mod services;
mod signals;
mod starting;
mod status;
mod stepping_in;
mod supervision;
mod survival;
mod suspend;
mod sync;
mod terminal;
mod tree;
mod trouble;
mod unkillable;
mod unresponsive;
pub mod untrusted;
mod usage;
mod waiting;
mod watchdog;

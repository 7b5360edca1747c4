//! What redlock promises, a file for each kind of promise. A test is named by its promise.
//!
//! | file | promises about |
//! | --- | --- |
//! | `basics` | the uncontended run: environment, commands sent |
//! | `exit` | every exit status, reached the way a user reaches it |
//! | `supervision` | signals, process groups, streams: what COMMAND finds and what becomes of it |
//! | `signals` | which signals reach COMMAND, and how often: keys, relays, groups, one request to end and a second one |
//! | `by_signal` | how redlock ends where a signal ended COMMAND or the wait, and the script around it |
//! | `blocked` | writing a message never delays redlock: a full pipe, a stopped terminal |
//! | `terminal` | job control, reads and modes on a real terminal; a COMMAND that is stopped |
//! | `untrusted` | servers, proxies and data that lie: no crash, no hang, no memory, no lock that isn't there |
//! | `loss` | what happens when the lock is lost, or can't be renewed |
//! | `survival` | failures that are over within the lease change nothing |
//! | `unresponsive` | ending while Redis doesn't respond, and starting nothing under an expired lease |
//! | `trouble` | each way in which Redis or its URL can be wrong: one clear line, the status, what to do |
//! | `distance` | servers that are far away, suspended or not ready |
//! | `doctor` | whether a Redis is fit to hold locks: each thing that can be wrong is found, with what to type |
//! | `doctor_fixes` | each command that doctor prints, pasted into a shell, repairs its problem |
//! | `exclusion` | two holders never run at once, whichever clients they are |
//! | `queue` | waiting: the order of turns, and what disturbs it |
//! | `protocol` | what only a real server shows of the scripts: bounds, requests in parts, keys of other programs |
//! | `contested` | crowds, and grants and replies that arrive late |
//! | `groups` | shared locks and slots: which runs overlap, and which never do |
//! | `missed` | names that nobody has used, and the ones that were meant |
//! | `nesting` | several names, runs within runs, deadlocks |
//! | `waiting` | what is seen of a wait, and waiting without taking |
//! | `starting` | how COMMAND is found and started, and what happens when that fails |
//! | `tree` | COMMAND and all that it started: waited for, asked to stop, killed |
//! | `unkillable` | work that can't be killed, or can't be seen, keeps its lock until it ends or is left |
//! | `status` | the holders and waiters of each lock, for people and for programs |
//! | `monitoring` | locks that are held for too long, and metrics: what cron mails and Prometheus reads, whatever fails |
//! | `screen` | what people see of locks on terminals of 40, 80 and 120 columns |
//! | `stepping_in` | stopping a holder, forcing a lock free, removing a waiter: who is meant, and what all sides are told |
//! | `privacy` | what of a command others can see, and that its secrets aren't stored |
//! | `release` | releasing by token, and by force |
//! | `scripts` | locks of scripts that aren't wrapped: acquire, extend, check, release |
//! | `guards` | work elsewhere under a lock: it ends with the run that has it, which is handed on after that |
//! | `elsewhere` | guarded work on hosts behind ssh and in a daemon's containers: no two holders' work beats at once |
//! | `fencing` | a fence file rejects every stale writer |
//! | `keeper` | what stays behind to keep a script's lock, and when it goes |
//! | `cron` | running once: --hold-at-least, --once-per, REDLOCK_JITTER, and silence |
//! | `ci` | pipelines: links to jobs, the newest deploy, joining a run, cancelled jobs |
//! | `clock_skew` | a lease ends sooner by what the clocks of the Redis hosts may differ |
//! | `frozen` | freezing: the holder finishes, no new holder is admitted, and all see why |
//! | `full` | a server without free memory: locks that are held stay held |
//! | `repair` | locks that other clients have left without an expiry |
//! | `hook` | a script that is told what happens to a run, beside its COMMAND and no part of it |
//! | `history` | the holders of a lock, how long each held it, and how that ended |
//! | `recipes` | the README's recipes, run as they stand there; all shell on the pages |
//! | `second_host` | the README's commands for a second host, on two hosts |
//! | `services` | a service under systemd: its manager knows whether it waits or runs |
//! | `packages` | tarball and .deb; installing by checksum, also by GitHub's action |
//! | `releases` | redlock's home in one place, installing a release from there, what GitHub runs |
//! | `cluster` | Redis Cluster: one slot, whichever node is asked, wherever the slot goes |
//! | `watchdog` | a killed or stopped redlock: nothing of COMMAND outlives it, or its lease |
//! | `usage` | what is typed, right and wrong: sentences for mistakes, durations, help, a variable an option |
//! | `sentinel` | a primary with replicas, watched over by sentinels: no failover loses or doubles a lock |
//! | `sync` | replicas that confirm what is granted: what REDLOCK_SYNC promises, and clocks that differ |
//! | `manual` | the manual and the completions that are in the binary |
//! | `config` | settings, passwords, TLS |
//! | `local` | a server of this host, started once by whoever needs it first, and what becomes of its locks |
//! | `password` | password files, and locks that outlive their passwords |
//! | `suspend` | leases are counted on a clock that runs while the machine is suspended |

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

//! The shipped protocol in all possible orders of events. The scripts run in a Lua interpreter over a fake of the commands. The
//! wait, the lease and the session of each run are in virtual time. `make search WHAT=model` visits all states of each
//! scenario, or the first 30 million; `make test` a few hundred.
//!
//! - `redis`: the interpreter and the commands; `fake`: compares them with a real server.
//! - `client`: one run; `network`: the messages under way; `world`: a state, and the steps from it.
//! - `promises`: the conditions that each state must meet; `explore`: visits all states; `same`: decides which states are
//!   equal.
//! - `scenarios`: the clients and the possible faults.
//! - `simulate`: a long path with all kinds of clients and faults, drawn from a seed; `view`: the lock as the judge of each
//!   call sees it; `refusals`: a server that refuses each call.
//! - `examples`: the answer, the messages and the keys of each call; `lua_mutants`: mistakes in the scripts that must be found.

mod client;
mod digest;
mod examples;
mod explore;
mod fake;
mod lua_mutants;
mod network;
mod promises;
mod redis;
mod refusals;
mod same;
mod scenarios;
mod simulate;
mod support;
mod view;
mod world;

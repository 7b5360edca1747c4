//! The protocol as it is shipped, in all the orders in which things can happen: the scripts in a Lua
//! interpreter over a fake of the commands, and the wait, the lease and the session of each run, in virtual
//! time. `make search WHAT=model` visits all states of each scenario, or the first 30 million; `make test` a few hundred.
//!
//! - `redis`: the interpreter and the commands; `fake`: they do as a real server does.
//! - `client`: one run; `network`: what is under way; `world`: a state, and the steps from it.
//! - `promises`: what has to hold in each state; `explore`: visits all of them; `same`: which of them count as one.
//! - `scenarios`: who there is, and what may go wrong.
//! - `simulate`: a long path through it with all kinds of clients and faults, drawn from a seed; `view`: the lock as the
//!   judge of each call sees it; `refusals`: the server refuses each call, too.
//! - `examples`: what each call answers, says to whom, and leaves in Redis; `lua_mutants`: a mistake in a script is found.

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

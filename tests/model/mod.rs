//! The protocol as it is shipped, in all the orders in which things can happen: the scripts in a Lua
//! interpreter over a fake of the commands, and the wait, the lease and the session of each run, in virtual
//! time. `make model` visits all states of each scenario, or the first 30 million; `make test` a few hundred.
//!
//! - `redis`: the interpreter, the commands, and that they do as a real server does.
//! - `client`: one run; `network`: what is under way; `world`: a state, and the steps from it.
//! - `promises`: what has to hold in each state; `explore`: visits all of them; `same`: which of them count as one.
//! - `scenarios`: who there is, and what may go wrong.
//! - `simulate`: one long way through it, drawn from a seed.

mod client;
#[allow(dead_code)] // The integration tests use the rest of it.
#[path = "../integration/support/dice.rs"]
mod dice;
mod digest;
mod explore;
mod figure;
mod network;
mod promises;
#[allow(dead_code, unused_imports)]
// The models use a part of it, and the differential test another.
pub mod redis;
mod same;
mod scenarios;
mod simulate;
mod world;

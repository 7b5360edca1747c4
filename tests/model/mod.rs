//! Models of the protocol: what ships runs in them, in simulated time, whatever order things happen in.

#[allow(dead_code)] // Until the models use all of it.
pub mod redis;

//! Models of the protocol: what ships runs in them, in simulated time, whatever order things happen in.

#[allow(dead_code, unused_imports)]
// The models use a part of it, and the differential test another.
pub mod redis;

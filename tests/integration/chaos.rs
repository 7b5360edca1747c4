//! Chaos on real servers.
#![allow(dead_code)] // Until the driver is there.

mod site;

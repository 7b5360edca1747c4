//! Histories written by hand: each kind of violation is found, and what is documented passes.

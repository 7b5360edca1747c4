//! The identities by which holders say which process they are, as a target of [`crate::fuzz`].

use super::Identity;
use crate::fuzz::{Target, texts};

pub const TARGET: Target = Target {
    name: "instance",
    check: instance,
    examples,
};

const SCOPE: &str = "b007-1d:4026531836";

fn examples() -> Vec<Vec<u8>> {
    texts(&[
        "b007-1d:4026531836:7:99",
        "b007-1d:4026531836:2147483647:18446744073709551615",
        "b007-1d:4026531836:-1:0",
        "b007-1d:4026531837:7:99",
        "b007-1d:4026531836",
    ])
}

fn instance(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(identity) = Identity::parse_in(SCOPE, &text) {
        assert!(identity.pid > 0);
    }
}

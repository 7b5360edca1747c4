//! The marks that holders leave on their host, and who they say they are, as a target of [`crate::fuzz`].

use super::{Identity, Mark, Scope, mark};
use crate::fuzz::{Target, texts};

pub const TARGET: Target = Target {
    name: "mark",
    check: mark_file,
    examples,
};

fn examples() -> Vec<Vec<u8>> {
    texts(&[
        "b007-1d:4026531836:7:99:7:1000:4026531837:4026531834\n1000\n8 980\n9 990\nbelow\n1 0\nend\n",
        "x\n0\nbelow\nend\n",
        "x\r\r\n0\nbelow\nend\n",
        "b007-1d:4026531836:2147483647:18446744073709551615:-1:0:4026531837:4026531834",
        "b007-1d:4026531836:7:99:7,b007-1d:4026531836:8:99:7:0:4026531837:4026531834",
        "c0ffee",
    ])
}

fn mark_file(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Some(mark) = Mark::parse(&text) {
        assert_eq!(Mark::parse(&mark.to_text()), Some(mark));
    }
    // Where pids, users and times mean the same.
    let scope = Scope {
        pids: "b007-1d:4026531836".into(),
        others: "4026531837:4026531834".into(),
    };
    for instance in text.split(',') {
        if let Some(identity) = Identity::parse_in(&scope, instance) {
            assert!(identity.pid > 0);
        }
    }
    // No other file is one.
    if let Some(path) = mark(&text) {
        let name = path.strip_prefix("/dev/shm").expect("it is there");
        assert_eq!(name.components().count(), 1);
    }
}

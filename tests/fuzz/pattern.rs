//! Patterns and the order of names, as a target of [`crate::fuzz`].

use std::cmp::Ordering;

use super::{matches, natural_cmp};
use crate::fuzz::{Target, texts};

pub const TARGET: Target = Target {
    name: "pattern",
    check: pattern,
    examples,
};

fn examples() -> Vec<Vec<u8>> {
    texts(&[
        "a*b?c\naxxbyc\na?b",
        "lock-2\nlock-10\nlock-002",
        "*?*\né\n",
        "a01\na1\na1b",
    ])
}

/// Three lines, each a pattern and a text.
fn pattern(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n').map(|line| line.get(..200).unwrap_or(line));
    let [a, b, c] = std::array::from_fn(|_| lines.next().unwrap_or_default());
    for (pattern, text) in [(a, b), (b, c), (c, a)] {
        assert_eq!(
            matches(pattern, text),
            by_the_table(pattern, text),
            "{pattern:?} {text:?}"
        );
        assert!(matches(text, text));
        let order = natural_cmp(pattern, text);
        assert_eq!(order, natural_cmp(text, pattern).reverse());
        assert_eq!(order == Ordering::Equal, pattern == text);
    }
    let mut sorted = [a, b, c];
    sorted.sort_by(|one, other| natural_cmp(one, other));
    assert_ne!(natural_cmp(sorted[0], sorted[2]), Ordering::Greater);
}

/// The same as `matches`, by which beginnings of the pattern match which of the text.
fn by_the_table(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut row = vec![false; text.len() + 1];
    row[0] = true;
    for c in pattern.chars() {
        let mut next = vec![c == '*' && row[0]];
        for (at, &other) in text.iter().enumerate() {
            next.push(match c {
                '*' => row[at + 1] || next[at],
                '?' => row[at],
                _ => row[at] && c == other,
            });
        }
        row = next;
    }
    row[text.len()]
}

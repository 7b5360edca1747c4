//! Patterns for names, and the order in which people expect names. Pure.

use std::cmp::Ordering;

use crate::lock::Name;

/// A pattern: `*` stands for any text, `?` for one character.
#[derive(Clone, Debug)]
pub struct Pattern(Name);

impl Pattern {
    /// The pattern, or the name if it is none.
    pub fn of(name: Name) -> Result<Self, Name> {
        if is_pattern(name.as_str()) {
            Ok(Self(name))
        } else {
            Err(name)
        }
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Whether a name matches. In at most as many steps as the product of both lengths.
    pub fn matches(&self, name: &Name) -> bool {
        let pattern: Vec<char> = self.0.as_str().chars().collect();
        let name: Vec<char> = name.as_str().chars().collect();
        let (mut at, mut from) = (0, 0);
        // Where the last star was, and where what follows it was tried last.
        let mut star: Option<(usize, usize)> = None;
        while from < name.len() {
            match pattern.get(at) {
                Some('*') => {
                    star = Some((at, from));
                    at += 1;
                }
                Some(&c) if c == '?' || c == name[from] => {
                    at += 1;
                    from += 1;
                }
                _ => {
                    let Some((after, tried)) = &mut star else {
                        return false;
                    };
                    *tried += 1;
                    (at, from) = (*after + 1, *tried);
                }
            }
        }
        pattern[at..].iter().all(|&c| c == '*')
    }
}

/// Whether a text is a pattern.
fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// The order of names in which numbers count as such: `lock-2` before `lock-10`.
pub fn natural_order(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one, other);
    loop {
        let (number, rest) = split_number(left);
        let (other_number, other_rest) = split_number(right);
        let order = if number.is_empty() || other_number.is_empty() {
            let (first, other_first) = (left.chars().next(), right.chars().next());
            let (Some(first), Some(other_first)) = (first, other_first) else {
                // One is the start of the other, but for zeros; names that differ are never equal.
                return left.cmp(right).then_with(|| one.cmp(other));
            };
            left = &left[first.len_utf8()..];
            right = &right[other_first.len_utf8()..];
            first.cmp(&other_first)
        } else {
            (left, right) = (rest, other_rest);
            let (number, other_number) = (digits(number), digits(other_number));
            (number.len().cmp(&other_number.len())).then_with(|| number.cmp(other_number))
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// The number that a text begins with, and the rest.
fn split_number(text: &str) -> (&str, &str) {
    text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    )
}

/// A number without zeros in front of it.
fn digits(number: &str) -> &str {
    number.trim_start_matches('0')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_as_people_count() {
        let mut names = [
            "lock-10", "lock-2", "lock-02", "b", "lock", "a2b10", "a2b9", "a10", "10", "9", "é1",
        ];
        names.sort_by(|one, other| natural_order(one, other));
        let sorted = [
            "9", "10", "a2b9", "a2b10", "a10", "b", "lock", "lock-02", "lock-2", "lock-10", "é1",
        ];
        assert_eq!(names, sorted);
    }

    #[test]
    fn a_star_is_any_text_and_a_question_mark_one_character() {
        let matches = |pattern: &str, name: &str| {
            let pattern = Pattern::of(pattern.parse().unwrap()).unwrap();
            pattern.matches(&name.parse().unwrap())
        };
        for (pattern, name) in [
            ("deploy-*", "deploy-"),
            ("deploy-*", "deploy-a"),
            ("*", "a"),
            ("*-a-*b", "x-a-a-b"),
            ("?b", "éb"),
            ("a*b*c", "abbbbc"),
            ("a*b", "a*b"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("deploy-*", "deploy"),
            ("deploy-*", "redeploy-a"),
            ("?b", "b"),
            ("a*b", "abc"),
            ("*a*a*a*a*a*a*a*b", &"a".repeat(200)),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(Pattern::of("a[b]".parse().unwrap()).is_err());
    }
}

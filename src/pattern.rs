//! Names as a person picks and orders them: globs, and numbers by their value. Pure.

use std::cmp::Ordering;

/// Whether a text is meant as a pattern.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Whether the whole text matches a glob: `*` is any text, `?` any one character. A text matches itself,
/// also where it contains these characters.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // The last `*`, and how much of the text it stands for so far. One that comes later can do whatever this
    // one could, so only the last is ever extended: the work is bounded by the product of the lengths.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, t));
            p += 1;
        } else if pattern.get(p).is_some_and(|&c| c == '?' || c == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// The order in which a person expects names: `lock-2` before `lock-10`. Only equal texts are equal.
pub fn natural_cmp(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a, b);
    loop {
        let (Some(x), Some(y)) = (left.chars().next(), right.chars().next()) else {
            // `a01` and `a1` are the same number.
            return left.len().cmp(&right.len()).then_with(|| a.cmp(b));
        };
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let (one, rest) = split_number(left);
            left = rest;
            let (other, rest) = split_number(right);
            right = rest;
            one.len().cmp(&other.len()).then_with(|| one.cmp(other))
        } else {
            left = &left[x.len_utf8()..];
            right = &right[y.len_utf8()..];
            x.cmp(&y)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// The digits at the start of a text, without leading zeros, and the rest.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    (digits.trim_start_matches('0'), rest)
}

/// Of these words the one that this one was probably meant to be: with up to a third of its letters changed.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.len() / 3).clamp(1, 3);
    // The others aren't compared: a word may be as long as an environment.
    let alike = known.filter(|known| known.len().abs_diff(word.len()) <= allowed);
    alike
        .map(|known| (strsim::osa_distance(word, known), known))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text_and_a_question_mark_any_character() {
        for (pattern, text) in [
            ("deploy", "deploy"),
            ("deploy-*", "deploy-"),
            ("deploy-*", "deploy-eu-1"),
            ("*", ""),
            ("*", "x"),
            ("*eu*1", "deploy-eu-11"),
            ("a*b*c", "a-b-b-c-c"),
            ("lock-?", "lock-é"),
            ("??", "ab"),
            ("a?c", "a?c"),
            ("a*", "a*"),
            ("[ab]", "[ab]"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("deploy", "deploy-1"),
            ("deploy-*", "deploy"),
            ("", "x"),
            ("?", ""),
            ("?", "ab"),
            ("a*b", "a-b-c"),
            ("[ab]", "a"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
        assert!(is_pattern("a*") && is_pattern("?") && !is_pattern("a[b]"));
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_longer() {
        let pattern = "*a".repeat(100) + "b";
        assert!(!matches(&pattern, &"a".repeat(200)));
    }

    #[test]
    fn numbers_within_names_are_ordered_by_their_value() {
        let mut names = [
            "lock-10",
            "lock-2",
            "Lock-3",
            "lock",
            "lock-02",
            "lock-2a",
            "a1b10",
            "a1b9",
            "é",
            "7",
            "18446744073709551616",
            "lock-",
        ];
        names.sort_by(|a, b| natural_cmp(a, b));
        assert_eq!(
            names,
            [
                "7",
                "18446744073709551616",
                "Lock-3",
                "a1b9",
                "a1b10",
                "lock",
                "lock-",
                "lock-02",
                "lock-2",
                "lock-2a",
                "lock-10",
                "é",
            ]
        );
        for a in names {
            for b in names {
                assert_eq!(natural_cmp(a, b) == Ordering::Equal, a == b, "{a} {b}");
                assert_eq!(natural_cmp(a, b), natural_cmp(b, a).reverse(), "{a} {b}");
            }
        }
    }
}

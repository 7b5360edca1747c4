//! Picking and ordering names as a person does: globs, and numbers by their value. Pure.

use std::cmp::Ordering;

/// Returns true if a text is a pattern.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?'])
}

/// Returns true if the whole text matches a glob: `*` is any text, `?` any single character. A text matches itself, even if it
/// contains these characters.
pub fn matches(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    // is_match[n]: the first n characters of the text match the pattern so far.
    let mut is_match = vec![false; text.len() + 1];
    is_match[0] = true;
    for c in pattern.chars() {
        if c == '*' {
            let shortest = is_match.iter().position(|it| *it);
            is_match[shortest.unwrap_or(text.len())..].fill(shortest.is_some());
            continue;
        }
        for at in (0..text.len()).rev() {
            is_match[at + 1] = is_match[at] && (c == '?' || c == text[at]);
        }
        is_match[0] = false;
    }
    is_match[text.len()]
}

/// Compares names as a person orders them: `lock-2` before `lock-10`. Only equal texts compare as equal.
pub fn natural_cmp(a: &str, b: &str) -> Ordering {
    natural_key(a).cmp(natural_key(b)).then_with(|| a.cmp(b))
}

/// Splits a text into numbers, represented by their digits without leading zeros, and other text. Numbers sort first.
fn natural_key(text: &str) -> impl Iterator<Item = (bool, usize, &[u8])> {
    let bytes = text.as_bytes();
    let parts = bytes.chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit());
    parts.map(|part| {
        if !part[0].is_ascii_digit() {
            return (true, 0, part);
        }
        let zeros = part.iter().take_while(|digit| **digit == b'0').count();
        (false, part.len() - zeros, &part[zeros..])
    })
}

/// Returns the candidate that a mistyped word probably means: with up to a third of its letters changed.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (word.len() / 3).clamp(1, 3);
    // Candidates of another length aren't compared, because a word may be as long as an environment.
    let alike = candidates.filter(|candidate| candidate.len().abs_diff(word.len()) <= allowed);
    alike
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
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

//! Words as a shell takes them. Pure.

use std::borrow::Cow;

/// A command line for people: quoted where a shell would need it.
pub fn command_line(command: &[String]) -> String {
    let words = command.iter().map(|word| quote(word));
    words.collect::<Vec<_>>().join(" ")
}

/// A text as one word of a shell: as it is, unless a shell would change it.
pub fn quote(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%^".contains(c);
    // zsh expands =word, and with extended patterns ^word.
    if !word.is_empty() && word.chars().all(is_plain) && !word.starts_with(['=', '^']) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_quoted_where_a_shell_needs_it() {
        let words = ["sh", "-c", "echo it's", ""].map(str::to_owned);
        assert_eq!(command_line(&words), r"sh -c 'echo it'\''s' ''");
        let words = ["HEAD^", "a=b", "=ls", "^a", "$(id)"].map(str::to_owned);
        assert_eq!(command_line(&words), "HEAD^ a=b '=ls' '^a' '$(id)'");
    }
}

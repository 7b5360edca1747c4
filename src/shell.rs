//! Quoting for shells: the only code of the crate for that. Pure.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write as _;

/// Returns a command line for people, with quotes if a shell needs them.
pub fn command_line(command: &[impl AsRef<OsStr>]) -> String {
    let words = command.iter().map(|word| quote(word.as_ref()));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns a text as a single word for a shell, for people: unchanged, unless a shell would change it.
pub fn quote(word: &(impl AsRef<OsStr> + ?Sized)) -> Cow<'_, str> {
    let word = word.as_ref();
    let Some(text) = word
        .to_str()
        .filter(|text| !text.contains(char::is_control))
    else {
        return ansi_quoted(word).into();
    };
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%^".contains(c);
    // zsh expands =word, and with extended patterns ^word.
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with(['=', '^']) {
        text.into()
    } else if text.contains('\'') && !text.contains(['"', '$', '`', '\\', '!']) {
        format!("\"{text}\"").into()
    } else {
        literal(text).into()
    }
}

/// Returns a text as a single word for any POSIX shell to evaluate: in single quotes no character is special.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a word with bytes that only `$'…'` can express. A shell without these quotes sees the same end of the word.
fn ansi_quoted(word: &OsStr) -> String {
    let mut text = String::from("$'");
    for chunk in word.as_encoded_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                '\\' => text.push_str("\\\\"),
                c if c.is_ascii_control() || c == '\'' => {
                    let _ = write!(text, "\\{:03o}", u32::from(c));
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    text + "'"
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_command_line_is_quoted_where_a_shell_needs_it() {
        let words = ["sh", "-c", "echo it's", "", "it's $x"];
        assert_eq!(command_line(&words), r#"sh -c "echo it's" '' 'it'\''s $x'"#);
        let words = ["HEAD^", "a=b", "=ls", "^a", "$(id)"];
        assert_eq!(command_line(&words), "HEAD^ a=b '=ls' '^a' '$(id)'");
        assert_eq!(quote("l\n'm\u{1}"), r"$'l\n\047m\001'");
        assert_eq!(quote(OsStr::from_bytes(b"caf\xe9")), r"$'caf\351'");
    }

    #[test]
    fn a_value_is_one_word_of_a_shell() {
        assert_eq!(literal("it's $(x)"), r"'it'\''s $(x)'");
    }
}

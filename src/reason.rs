//! Errors of the operating system, in words for people and without error numbers. Pure.

use std::io;

/// Returns the meaning of a system error, as the end of a sentence: `no such file`.
pub fn reason(error: &io::Error) -> String {
    let text = match error.kind() {
        io::ErrorKind::NotFound => "no such file",
        io::ErrorKind::PermissionDenied => "permission denied",
        io::ErrorKind::IsADirectory => "it is a directory",
        io::ErrorKind::NotADirectory => "a part of its path is not a directory",
        io::ErrorKind::InvalidData => "it isn't UTF-8 text",
        // The operating system's own sentences contain no names, so lower case is safe.
        _ if error.raw_os_error().is_some() => {
            return without_number(&error.to_string()).to_lowercase();
        }
        _ => return without_number(&error.to_string()),
    };
    text.to_owned()
}

/// Removes the number that the standard library appends to an error: ` (os error 2)`.
pub fn without_number(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kept, part| {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) => kept + rest,
            None => kept + " (os error " + part,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_numbers_are_left_out() {
        let reason = |number| reason(&io::Error::from_raw_os_error(number));
        assert_eq!(reason(libc::ENOENT), "no such file");
        assert_eq!(reason(libc::EACCES), "permission denied");
        assert!(!reason(libc::EIO).contains("error 5"));
        for (text, kept) in [
            (
                "can't: No such file (os error 2); more",
                "can't: No such file; more",
            ),
            ("x (os error 2) y (os error 13)", "x y"),
            ("x (os error two)", "x (os error two)"),
            ("x (os error ", "x (os error "),
        ] {
            assert_eq!(without_number(text), kept);
        }
    }
}

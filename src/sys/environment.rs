//! The environment, read without copies of unused variables, because a run reads it only once.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;

unsafe extern "C" {
    /// The C library's array of `NAME=value` texts, with a null pointer at the end.
    static environ: *const *const c_char;
}

/// Returns all variables as `NAME=value` texts, without copies.
pub fn all_variables() -> Vec<&'static CStr> {
    let mut variables = Vec::new();
    // SAFETY: nothing in this process changes the environment, and each pointer before the null pointer points
    // to a text that ends with a zero byte.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            variables.push(CStr::from_ptr(*next));
            next = next.add(1);
        }
    }
    variables
}

/// Returns the name and the value of a variable, or `None` for a text without a name.
pub fn name_and_value(variable: &CStr) -> Option<(&[u8], &[u8])> {
    let text = variable.to_bytes();
    // A name may begin with `=`, as in the standard library.
    let end = text.iter().skip(1).position(|&byte| byte == b'=')? + 1;
    Some((&text[..end], &text[end + 1..]))
}

/// Returns the variables whose names begin with `beginning`.
pub fn variables(beginning: &str) -> Vec<(OsString, OsString)> {
    let owned = |text: &[u8]| OsString::from_vec(text.to_vec());
    let like_this = |variable: &&CStr| variable.to_bytes().starts_with(beginning.as_bytes());
    let matching = all_variables()
        .into_iter()
        .filter(like_this)
        .filter_map(name_and_value);
    matching
        .map(|(name, value)| (owned(name), owned(value)))
        .collect()
}

//! The environment, read without a copy of what isn't asked for: a run looks at it once.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;

unsafe extern "C" {
    /// The C library's: `NAME=value` texts, and a null pointer at the end.
    static environ: *const *const c_char;
}

/// All variables, as `NAME=value` texts, where they are.
pub fn all_variables() -> Vec<&'static CStr> {
    let mut found = Vec::new();
    // SAFETY: nothing in this process changes the environment, and each pointer before the null pointer is
    // that of a text that ends with a zero byte.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            found.push(CStr::from_ptr(*next));
            next = next.add(1);
        }
    }
    found
}

/// The name and the value of a variable; `None` for a text that has no name.
pub fn name_and_value(variable: &CStr) -> Option<(&[u8], &[u8])> {
    let text = variable.to_bytes();
    // As the standard library has it, a name may begin with `=`.
    let end = text.iter().skip(1).position(|&byte| byte == b'=')? + 1;
    Some((&text[..end], &text[end + 1..]))
}

/// The variables whose names begin like this.
pub fn variables(beginning: &str) -> Vec<(OsString, OsString)> {
    let owned = |text: &[u8]| OsString::from_vec(text.to_vec());
    let like_this = |variable: &&CStr| variable.to_bytes().starts_with(beginning.as_bytes());
    let found = all_variables()
        .into_iter()
        .filter(like_this)
        .filter_map(name_and_value);
    found
        .map(|(name, value)| (owned(name), owned(value)))
        .collect()
}

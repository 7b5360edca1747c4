//! The environment, read without a copy of what isn't asked for: a run looks at it once.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt;

unsafe extern "C" {
    /// The C library's: `NAME=value` texts, and a null pointer at the end.
    static environ: *const *const c_char;
}

/// The variables whose names begin like this. To be called before any thread is started.
pub fn variables(beginning: &str) -> Vec<(OsString, OsString)> {
    let mut found = Vec::new();
    // SAFETY: nothing in this process changes the environment, and each pointer before the null pointer is
    // that of a text that ends with a zero byte.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            let variable = CStr::from_ptr(*next).to_bytes();
            next = next.add(1);
            if !variable.starts_with(beginning.as_bytes()) {
                continue;
            }
            if let Some(end) = variable.iter().position(|&byte| byte == b'=') {
                let (name, value) = (&variable[..end], &variable[end + 1..]);
                found.push((
                    OsString::from_vec(name.to_vec()),
                    OsString::from_vec(value.to_vec()),
                ));
            }
        }
    }
    found
}

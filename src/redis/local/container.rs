//! Whether this is a container, and what is mounted here. What a container calls its host is not the host's: two of them
//! would have two servers, and exclude nobody but themselves.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The numbers of the namespaces of a system's first processes, which the kernel never changes.
const FIRST_NAMESPACES: [(&str, u64); 4] = [
    ("ipc", 0xEFFF_FFFF),
    ("uts", 0xEFFF_FFFE),
    ("pid", 0xEFFF_FFFC),
    ("cgroup", 0xEFFF_FFFB),
];

/// What Docker, Podman, and systemd put into a container.
const MARKS: [&str; 3] = [
    "/.dockerenv",
    "/run/.containerenv",
    "/run/systemd/container",
];

/// Whether we are in a container. A virtual machine that was made from the image of one is a host, and has its mark.
pub fn is_container() -> bool {
    has_mark() && !has_first_namespaces()
}

fn has_mark() -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    if MARKS.iter().any(|path| Path::new(path).exists())
        || is_set("container")
        || is_set("KUBERNETES_SERVICE_HOST")
    {
        return true;
    }
    // Of the first process, where we may read it.
    let variables = fs::read("/proc/1/environ").unwrap_or_default();
    let mut variables = variables.split(|&byte| byte == 0);
    variables.any(|variable| variable.starts_with(b"container="))
}

fn has_first_namespaces() -> bool {
    FIRST_NAMESPACES.iter().all(|(kind, number)| {
        let link = fs::read_link(format!("/proc/self/ns/{kind}"));
        link.is_ok_and(|link| link == Path::new(&format!("{kind}:[{number}]")))
    })
}

/// Whether something is mounted at just this path.
pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut lines = mounts.split(|&byte| byte == b'\n');
    lines.any(|line| {
        let place = line.split(|&byte| byte == b' ').nth(4);
        place.is_some_and(|place| unescaped(place) == path)
    })
}

/// A path of the kernel's list, in which a space is `\040`.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\');
        let number = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(number.unwrap_or(first));
        rest = if number.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_is_known_by_its_whole_path() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/pro")));
        assert!(!is_mounted(Path::new("/proc/self")));
        assert_eq!(unescaped(br"/a\040b\134"), Path::new(r"/a b\"));
    }
}

//! Who may write a configuration file, and who may read a secret.
//!
//! A configuration file can name a command, so it is believed only where nobody else could have written it: not the
//! file that was opened, nor, by putting another one or a link in its place, its directory. Links matter: some files
//! of root have a content that another user chooses, such as `/proc/PID/environ` of a program that is run by sudo.
//! Directories further up don't: another directory in the place of this one would have to be root's or the
//! user's as well, and have a file of that name.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, access, geteuid};

use crate::file;

/// What others may do with a file, and the command that ends that.
#[derive(Clone, Debug)]
pub struct Exposure {
    pub what: String,
    pub fix: String,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.fix)
    }
}

/// A configuration file.
pub enum Read {
    Text(String),
    /// Others may have written it.
    Refused(Exposure),
}

/// Reads a configuration file, unless others may have written it.
///
/// # Errors
/// As [`file::read_text`].
pub fn read(path: &Path) -> io::Result<Read> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    // A path without a slash is below the working directory.
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    // Most hosts have one of two or none, and a short run notices each system call.
    access(path, AccessFlags::F_OK)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = File::from(open(parent, flags, Mode::empty())?);
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let file = File::from(openat(&directory, name, flags, Mode::empty())?);
    let user = geteuid().as_raw();
    for (place, opened) in [(parent, &directory), (path, &file)] {
        let found = opened.metadata()?;
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        let Some(fix) = mistrust(place, owner, mode, user) else {
            continue;
        };
        // /dev/null in its place sets nothing.
        if file::read_all(&file)?.is_empty() {
            break;
        }
        let whose = if place == path {
            "it".to_owned()
        } else {
            format!("its directory {}", place.display())
        };
        let what = format!(
            "{} is not used, as others may write it: {whose} belongs to {} and has mode {mode:o}",
            path.display(),
            name_of(owner)
        );
        return Ok(Read::Refused(Exposure { what, fix }));
    }
    let text = String::from_utf8(file::read_all(file)?);
    Ok(Read::Text(text.map_err(|_| {
        io::Error::from(io::ErrorKind::InvalidData)
    })?))
}

/// What to do about a file or directory that others than root and this user may write; `None` where they may not.
fn mistrust(path: &Path, owner: u32, mode: u32, user: u32) -> Option<String> {
    let is_writable = mode & 0o022 != 0;
    let path = path.display();
    match (owner == 0 || owner == user, is_writable) {
        (true, false) => None,
        (true, true) => Some(format!("run: chmod go-w {path}")),
        (false, _) => {
            let also = if is_writable {
                format!(" && chmod go-w {path}")
            } else {
                String::new()
            };
            let hint = if owner == UNKNOWN {
                "; in a container, mount it so that its root is the owner, or set the variables in the environment"
            } else if user == 0 {
                "; or use root's own, as with sudo -H"
            } else {
                ""
            };
            Some(format!("run: chown {user} {path}{also}{hint}"))
        }
    }
}

/// Who owns what belongs to a user without a number in this container.
const UNKNOWN: u32 = 65534;

fn name_of(user: u32) -> String {
    match user {
        0 => "root".into(),
        _ => format!("user {user}"),
    }
}

/// Looks whether every user of this host can read a file with a secret.
pub fn exposed(path: &Path, secret: &str) -> Option<Exposure> {
    let real = path.canonicalize().ok()?;
    let is_open = |(part, bit): (&Path, u32)| {
        let found = fs::metadata(part);
        found.is_ok_and(|found| found.mode() & bit != 0)
    };
    let bits = std::iter::once(0o004).chain(std::iter::repeat(0o001));
    let is_exposed = real.is_file() && real.ancestors().zip(bits).all(is_open);
    let path = path.display();
    is_exposed.then(|| Exposure {
        what: format!("every user of this host can read {path}, which has {secret}"),
        fix: format!("run: chmod o-r {path}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_user_are_believed_where_nobody_else_may_write() {
        let fix = |owner, mode, user| mistrust(Path::new("/f"), owner, mode, user);
        for (owner, mode, user) in [(0, 0o644, 0), (0, 0o644, 7), (7, 0o600, 7), (7, 0o755, 7)] {
            assert_eq!(fix(owner, mode, user), None, "{owner} {mode:o} {user}");
        }
        for (owner, mode, user, says) in [
            (0, 0o664, 0, "run: chmod go-w /f"),
            (7, 0o602, 7, "run: chmod go-w /f"),
            (0, 0o1777, 7, "run: chmod go-w /f"),
            (7, 0o644, 0, "run: chown 0 /f; or use root's own"),
            (8, 0o644, 7, "run: chown 7 /f"),
            (8, 0o666, 7, "run: chown 7 /f && chmod go-w /f"),
            (UNKNOWN, 0o644, 0, "run: chown 0 /f; in a container"),
        ] {
            let said = fix(owner, mode, user).expect("it is refused");
            assert!(said.starts_with(says), "{said}");
        }
    }
}

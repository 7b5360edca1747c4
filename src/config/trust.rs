//! Who may write a configuration file, and who may read a secret.
//!
//! A configuration file can name a command, so it is believed only where nobody else could have written it, put another
//! one in its place, or chosen it: each directory and link on the way to it counts, as for ssh. Some files of root have a
//! content that another user chooses, such as `/proc/PID/environ` of a program that is run by sudo.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, geteuid};

use crate::file;
use crate::shell::quote;

/// What others may do with a file, and what ends that.
#[derive(Clone, Debug)]
pub struct Exposure {
    pub what: String,
    /// A command for a shell.
    pub command: Option<String>,
    /// What to do instead, in words.
    pub otherwise: Option<String>,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(command) = &self.command {
            write!(f, "; run: {command}")?;
        }
        match (&self.command, &self.otherwise) {
            (Some(_), Some(otherwise)) => write!(f, "; or {otherwise}"),
            (None, Some(otherwise)) => write!(f, "; {otherwise}"),
            (_, None) => Ok(()),
        }
    }
}

/// What ends an exposure: a command, and what to do instead of it.
type Cure = (String, Option<&'static str>);

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
    // Most hosts have one of two or none, and a short run notices each system call.
    access(path, AccessFlags::F_OK)?;
    let way = Way::to(path)?;
    let user = geteuid().as_raw();
    let found = fs::symlink_metadata(&way.end)?;
    // /dev/null in its place sets nothing, and the kernel's own files look as empty.
    if found.len() == 0 && (found.is_file() || way.end == Path::new("/dev/null")) {
        return Ok(Read::Text(String::new()));
    }
    // To open something else may wait for a writer, or do more.
    if !found.is_file() {
        let what = format!("{} isn't used: it isn't a file", path.display());
        let fix = format!("put a file there, or remove {}", path.display());
        return Ok(Read::Refused(Exposure {
            what,
            command: None,
            otherwise: Some(fix),
        }));
    }
    for directory in &way.directories {
        let found = fs::metadata(directory)?;
        // In /tmp nobody replaces what is another's.
        let is_shared = found.mode() & STICKY != 0 && way.end.parent() != Some(directory);
        let writable = found.mode() & 0o022 != 0 && !is_shared && !is_read_only(directory);
        if let Some(fix) = mistrust(directory, found.uid(), writable, user) {
            let whose = format!("its directory {}", directory.display());
            return Ok(Read::Refused(exposure(path, &whose, &found, fix)));
        }
    }
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file = File::from(open(&way.end, flags, Mode::empty())?);
    let found = file.metadata()?;
    let writable = found.mode() & 0o022 != 0 && !is_read_only(&way.end);
    if let Some(fix) = mistrust(path, found.uid(), writable, user) {
        return Ok(Read::Refused(exposure(path, "it", &found, fix)));
    }
    let text = String::from_utf8(file::read_all(file)?);
    Ok(Read::Text(text.map_err(|_| {
        io::Error::from(io::ErrorKind::InvalidData)
    })?))
}

/// The way to a file: each directory in which something on it is looked up, links included, and the file itself.
struct Way {
    directories: Vec<PathBuf>,
    end: PathBuf,
}

/// How many links there may be on a way, as for the kernel.
const MAX_LINKS: usize = 40;

impl Way {
    /// Follows links by their texts: the kernel's own in /proc lead out of what we see, where another user may have put
    /// anything.
    fn to(path: &Path) -> io::Result<Self> {
        let mut left: Vec<PathBuf> = parts(&std::path::absolute(path)?);
        let mut directories = BTreeSet::new();
        let mut here = PathBuf::from("/");
        let mut links = 0;
        while let Some(part) = left.pop() {
            if part == Path::new("..") {
                here.pop();
                continue;
            }
            let next = here.join(&part);
            directories.insert(here.clone());
            if !fs::symlink_metadata(&next)?.is_symlink() {
                here = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            let target = fs::read_link(&next)?;
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            left.extend(parts(&target));
        }
        Ok(Self {
            directories: directories.into_iter().collect(),
            end: here,
        })
    }
}

/// The names in a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let is_name = |part: &Component| matches!(part, Component::Normal(_) | Component::ParentDir);
    let names = path.components().filter(is_name);
    let mut parts: Vec<PathBuf> = names.map(|part| PathBuf::from(part.as_os_str())).collect();
    parts.reverse();
    parts
}

/// The bit of a directory in which only the owner of a file may replace it.
const STICKY: u32 = 0o1000;

/// Whether nobody may write there by this way, whatever the mode says.
fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|found| found.flags().contains(FsFlags::ST_RDONLY))
}

fn exposure(path: &Path, whose: &str, found: &Metadata, cure: Cure) -> Exposure {
    let what = format!(
        "{} isn't used, as other users can write it: {whose} belongs to {} and has mode {:o}",
        path.display(),
        name_of(found.uid()),
        found.mode() & 0o7777
    );
    let (command, otherwise) = cure;
    Exposure {
        what,
        command: Some(command),
        otherwise: otherwise.map(str::to_owned),
    }
}

/// What to do about a file or directory that others than root and this user may write; `None` where they may not.
fn mistrust(path: &Path, owner: u32, is_writable: bool, user: u32) -> Option<Cure> {
    let path = quote(path);
    let is_trusted = owner == 0 || owner == user || (owner == UNKNOWN && !knows_root());
    match (is_trusted, is_writable) {
        (true, false) => None,
        (true, true) => Some((format!("chmod go-w {path}"), None)),
        (false, _) => {
            let also = if is_writable {
                format!(" && chmod go-w {path}")
            } else {
                String::new()
            };
            let otherwise = if owner == UNKNOWN {
                Some(
                    "in a container, mount it with the container's root as its owner, or set the variables in the environment",
                )
            } else if user == 0 {
                Some("use root's own configuration file, as `sudo -H` does")
            } else {
                None
            };
            Some((format!("chown {user} {path}{also}"), otherwise))
        }
    }
}

/// Whether the host's root has a number here. In a user namespace of a single user it is as unknown as all others, and
/// that user has no more rights than outside.
fn knows_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut fields = map.split_ascii_whitespace();
    // The first line begins with the first number here, that outside, and how many there are.
    map.lines().count() != 1 || fields.nth(2) != Some("1")
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
    is_exposed.then(|| Exposure {
        what: format!(
            "every user of this host can read {}, which has {secret}",
            path.display()
        ),
        command: Some(format!("chmod o-r {}", quote(path))),
        otherwise: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_user_are_believed_where_nobody_else_may_write() {
        let fix =
            |owner, mode: u32, user| mistrust(Path::new("/f"), owner, mode & 0o022 != 0, user);
        for (owner, mode, user) in [(0, 0o644, 0), (0, 0o644, 7), (7, 0o600, 7), (7, 0o755, 7)] {
            assert_eq!(fix(owner, mode, user), None, "{owner} {mode:o} {user}");
        }
        for (owner, mode, user, says) in [
            (0, 0o664, 0, "chmod go-w /f"),
            (7, 0o602, 7, "chmod go-w /f"),
            (0, 0o1777, 7, "chmod go-w /f"),
            (
                7,
                0o644,
                0,
                "chown 0 /f or use root's own configuration file",
            ),
            (8, 0o644, 7, "chown 7 /f"),
            (8, 0o666, 7, "chown 7 /f && chmod go-w /f"),
            (UNKNOWN, 0o644, 0, "chown 0 /f or in a container"),
        ] {
            let (command, otherwise) = fix(owner, mode, user).expect("it is refused");
            let otherwise = otherwise.map_or(String::new(), |words| format!(" or {words}"));
            let said = command + &otherwise;
            assert!(said.starts_with(says), "{said}");
        }
    }
}

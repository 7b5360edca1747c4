//! Checks who may write a configuration file, and who may read a secret.
//!
//! A configuration file can name a command, so redlock trusts it only if no other user could have written or replaced
//! it. The file and its directory must belong to root or to this user, and only their owners may write to them.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{AccessFlags, access, geteuid};

use crate::file;
use crate::shell::quote;

/// Access of other users to a file, and a shell command that takes the access away.
#[derive(Clone, Debug)]
pub struct Exposure {
    pub what: String,
    pub command: String,
}

impl fmt::Display for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; run: {}", self.what, self.command)
    }
}

/// Reads a configuration file, unless others may have written it.
/// Checks only open files, so that nobody can swap a path in between.
///
/// # Errors
/// As [`file::read_text`].
pub fn read(path: &Path) -> io::Result<Result<String, Exposure>> {
    // Most hosts have at most one of the two files, and a short run notices each system call.
    access(path, AccessFlags::F_OK)?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(ErrorKind::IsADirectory.into());
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = File::from(open(parent, flags, Mode::empty())?);
    let whose = format!("its directory {}", parent.display());
    if let Some(exposure) = exposure(path, &directory, (parent, &whose))? {
        return Ok(Err(exposure));
    }
    // O_NONBLOCK: a pipe without a writer doesn't make redlock wait.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(openat(&directory, name, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    // /dev/null sets nothing. Nor does an empty file: the kernel's own
    // files look empty, and another user may have chosen their text.
    let is_null = metadata.file_type().is_char_device() && metadata.rdev() == libc::makedev(1, 3);
    if is_null || (metadata.is_file() && metadata.len() == 0) {
        return Ok(Ok(String::new()));
    }
    if !metadata.is_file() {
        let (shown, path) = (path.display(), quote(path));
        return Ok(Err(Exposure {
            what: format!("{shown} isn't used: it isn't a file"),
            command: format!("mv {path} {path}.unused"),
        }));
    }
    if let Some(exposure) = exposure(path, &file, (path, "it"))? {
        return Ok(Err(exposure));
    }
    let text = String::from_utf8(file::read_all(file)?);
    Ok(Ok(text.map_err(|_| ErrorKind::InvalidData)?))
}

/// Returns the access of users other than root and this one to an open file or directory, whose path is `fix`.
fn exposure(
    path: &Path,
    opened: &File,
    (fix, whose): (&Path, &str),
) -> io::Result<Option<Exposure>> {
    let metadata = opened.metadata()?;
    let (owner, user, fix) = (metadata.uid(), geteuid().as_raw(), quote(fix));
    // On a read-only mount the mode says nothing. A ConfigMap is an example.
    let is_fixed = || fstatvfs(opened).is_ok_and(|it| it.flags().contains(FsFlags::ST_RDONLY));
    let is_writable = metadata.mode() & 0o022 != 0 && !is_fixed();
    let is_unknown = owner == UNKNOWN && owner != user && knows_root();
    let is_trusted = [0, user, UNKNOWN].contains(&owner) && !is_unknown;
    let chown = (!is_trusted).then(|| format!("chown {user} {fix}"));
    let chmod = is_writable.then(|| format!("chmod go-w {fix}"));
    let commands: Vec<String> = chown.into_iter().chain(chmod).collect();
    if commands.is_empty() {
        return Ok(None);
    }
    let note = match user {
        _ if is_unknown => " (in a container, mount it as the container's root)",
        0 if !is_trusted => " (`sudo -H` uses root's own file)",
        _ => "",
    };
    let owner = match owner {
        0 => "root".to_owned(),
        _ => format!("user {owner}"),
    };
    let (path, mode) = (path.display(), metadata.mode() & 0o7777);
    Ok(Some(Exposure {
        what: format!(
            "{path} isn't used, as other users can write it: {whose} belongs to {owner} and has mode {mode:o}{note}"
        ),
        command: commands.join(" && "),
    }))
}

/// Owner that the kernel shows for files whose real owner has no id in this container.
const UNKNOWN: u32 = 65534;

/// Returns true if the host's root may have an id in this user namespace. In a namespace of a single
/// user, root is as unknown as everybody else, and that user has no more rights than outside.
fn knows_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // The fields are the first id inside, the first id outside, and the count.
    map.lines().count() != 1 || map.split_ascii_whitespace().nth(2) != Some("1")
}

/// Returns the exposure of a file with a secret, if every user of this host can read it.
pub fn exposed(path: &Path, secret: &str) -> Option<Exposure> {
    let real = path.canonicalize().ok()?;
    let is_open = |(part, bit): (&Path, u32)| {
        let metadata = fs::metadata(part);
        metadata.is_ok_and(|it| it.mode() & bit != 0)
    };
    let bits = std::iter::once(0o004).chain(std::iter::repeat(0o001));
    let is_exposed = real.is_file() && real.ancestors().zip(bits).all(is_open);
    is_exposed.then(|| Exposure {
        what: format!(
            "every user of this host can read {}, which has {secret}",
            path.display()
        ),
        command: format!("chmod o-r {}", quote(path)),
    })
}
